"""``python -m bench.performance docs/performance.md``: ratios and growth, measured now, written into that page.

Times are CPU times of this process (``time.process_time``), medians of rounds in which all ways take turns: a busy
machine slows all of them alike. ``--threads 2`` counts both threads; run it on a machine that is quiet.
"""

import argparse
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from bench import bench_alone, bench_growth
from bench.bench_scan import bert_base, tokens_of, usual_way
from bench.timing import median_times
from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.pathways import spectrum
from rankscope.probe import Panel, Tally, probe_into
from rankscope.results import write_atomically
from rankscope.sources import layout_of
from rankscope.split import split_states

BEGIN, END = "<!-- bench -->\n", "<!-- end of bench -->\n"

Row = Sequence[object]

PATHS = Spec(layers=12, heads=12, dim=768, variant="transformer", norm="layer", activation="gelu")
"""A network of the size of BERT-base."""

WORDS = 2
"""Columns of words in both tables."""


def main() -> None:
    """Measure, print, and write between the markers of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    text = measured(given.repeats)
    print(text)
    if given.page is not None:
        before = given.page.read_text("utf-8")
        head, rest = before.split(BEGIN)
        write_atomically(given.page, (head + BEGIN + text + END + rest.split(END)[1]).encode())


def measured(repeats: int) -> str:
    """Both tables with the conditions, as Markdown."""
    conditions = (
        f"torch {torch.__version__.partition('+')[0]}, {platform.machine()}, {os.cpu_count()} processors, "
        f"{torch.get_num_threads()} thread(s), CPU time, medians of {repeats} rounds in turns"
    )
    ratios = _table(("work", "over", "ratio", "aim"), _ratios(repeats))
    found = bench_growth.run(repeats)
    growth = _table(tuple(found[0]), [tuple(row.values()) for row in found])
    return f"\n{conditions}.\n\n{ratios}\n\nGrowth, as exponents of time and of memory:\n\n{growth}\n\n"


@torch.no_grad()
def _ratios(repeats: int) -> list[Row]:
    rows: list[Row] = []
    for texts, tokens, ways in (
        (
            8,
            128,
            {
                "scan": (Panel(), 1.12),
                "scan --no-spectra": (Panel(spectra=False), 1.06),
                "scan --attention": (Panel(attention=True), 2.0),
            },
        ),
        (1, 128, {"scan --full": (Panel(full=True), 5.0)}),
        (1, 512, {"scan --attention": (Panel(attention=True), 3.0)}),
        (1, 1024, {"scan --attention": (Panel(attention=True), 3.0)}),
    ):
        model, batch = bert_base(max(512, tokens)), tokens_of(30_000, texts, tokens)
        layout = layout_of(model)

        def scan(panel: Panel, batch=batch, model=model, layout=layout) -> Callable[[], object]:  # type: ignore[no-untyped-def]
            return lambda: probe_into(Tally(), model, [batch], layout=layout, panel=panel)

        runs: dict[str, Callable[[], object]] = {name: scan(panel) for name, (panel, _) in ways.items()}
        aims: dict[str, object] = {name: aim for name, (_, aim) in ways.items()}
        if texts == 8:
            runs["hidden states stacked, SVD of each"] = lambda batch=batch, model=model: usual_way(
                model, batch
            )
        if texts == 1 and tokens == 128:
            runs["scan --attention"] = scan(Panel(attention=True))
            runs["scan --attention --exact (all eigenvalues)"] = scan(Panel(attention=True, exact=True))
            aims["scan --attention"] = 2.0
        over = f"plain pass, {texts} x {tokens}"
        plain, *times = median_times(
            lambda batch=batch, model=model: model(**batch.inputs), *runs.values(), repeats=repeats
        )
        rows += [
            (name, over, f"{time / plain:.2f}", aims.get(name, ""))
            for name, time in zip(runs, times, strict=True)
        ]
    return [*rows, *_paths(repeats), *_split(repeats), *_alone(repeats)]


@torch.no_grad()
def _paths(repeats: int) -> list[Row]:
    """The exact spectrum of all paths through 12 x 12 heads over a plain pass of the same network."""
    generator = torch.Generator().manual_seed(0)
    network = build(PATHS, generator).float()
    x = gaussian_tokens(128, PATHS.dim, generator=generator).float()
    forward, whole = median_times(
        lambda: network(x), lambda: spectrum(network, x, dtype=torch.float32), repeats=repeats
    )
    return [("exact spectrum of paths", "plain pass, 12 x 12 heads", f"{whole / forward:.2f}", 7.5)]


def _alone(repeats: int) -> list[Row]:
    found = bench_alone.run(repeats)
    return [
        ("scan minilm, one short text", "load and run by hand", f"{found['short text']:.2f}", 1.15),
        ("scan, 4 layers of width 256", "plain pass, 1 x 8,192", f"{found['long text']:.2f}", 1.25),
        ("its anonymous memory", "plain pass, 1 x 8,192", f"{found['memory of long text']:.2f}", 1.15),
    ]


def _split(repeats: int) -> list[Row]:
    """The split pass with GELU over that with ReLU."""
    runs = []
    for activation in ("relu", "gelu"):
        for_weights, for_tokens = generators(0)
        spec = Spec.of(
            layers=12, heads=8, dim=512, variant="transformer", norm="layer", activation=activation
        )
        network, x = build(spec, for_weights), gaussian_tokens(128, 512, generator=for_tokens)
        runs.append(lambda network=network, x=x: split_states(network, x, error=False))
    relu, gelu = median_times(*runs, repeats=repeats)
    return [("split pass with GELU", "with ReLU", f"{gelu / relu:.2f}", 1.2)]


def _table(heads: Sequence[str], rows: Sequence[Row]) -> str:
    """In Markdown; numbers to the right."""
    rule = ["---" if place < WORDS else "---:" for place in range(len(heads))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, rule, *rows))


if __name__ == "__main__":
    main()
