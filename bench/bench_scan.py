"""What a scan costs over the plain forward pass of a model of BERT-base size, and whether memory grows with texts."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.timing import best_times
from rankscope.measures import effective_rank, residual_ratio
from rankscope.probe import Panel, Tally, probe_into
from rankscope.sources import Batch, layout_of

TEXTS, TOKENS = 8, 128
THREADS = 2


def run() -> dict[str, float]:
    """Ratios to the plain forward pass in the same run, and the growth of peak memory from 10 to 200 batches."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return _ratios() | _memory()
    finally:
        torch.set_num_threads(before)


def _ratios() -> dict[str, float]:
    """The dear options are timed on one text, against the plain pass on that text."""
    model = bert_base()
    layout = layout_of(model)

    def scan(panel: Panel, batch: Batch) -> Callable[[], None]:
        return lambda: probe_into(Tally(), model, [batch], layout=layout, panel=panel)

    found = {}
    with torch.no_grad():
        for texts, repeats, ways in (
            (TEXTS, 3, {"panel": Panel(), "without_spectra": Panel(spectra=False)}),
            (1, 1, {"attention": Panel(attention=True), "full": Panel(full=True)}),
        ):
            batch = tokens_of(30_000, texts)
            runs: dict[str, Callable[[], object]] = {"plain": lambda batch=batch: model(**batch.inputs)}
            runs |= {name: scan(panel, batch) for name, panel in ways.items()}
            if texts == TEXTS:
                runs["usual_way"] = lambda batch=batch: usual_way(model, batch)
            times = dict(zip(runs, best_times(*runs.values(), repeats=repeats), strict=True))
            found |= {
                f"scan_{name}_over_plain": time / times["plain"]
                for name, time in times.items()
                if name != "plain"
            }
    return found


def usual_way(model: nn.Module, batch: Batch) -> Tensor:
    """Ask for all hidden states, stack them, measure them with singular value decompositions."""
    states = torch.stack(model(**batch.inputs, output_hidden_states=True).hidden_states).double()
    ratios = [
        residual_ratio(x, norm=norm, center="mean")
        for norm in ("frobenius", "composite")
        for x in (states, nn.functional.normalize(states, dim=-1))
    ]
    ranks = [effective_rank(states, of="entropy", centered=centered) for centered in (False, True)]
    return torch.stack([*ratios, *ranks])


def bert_base(positions: int = 512) -> nn.Module:
    """Random weights, for texts of at most so many tokens."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    return BertModel(BertConfig(max_position_embeddings=positions), add_pooling_layer=False).eval()


def tokens_of(vocabulary: int, texts: int = TEXTS, tokens: int = TOKENS) -> Batch:
    """Random tokens, all measured; as batches that are made of texts, it says which axis holds these."""
    ids = torch.randint(5, vocabulary, (texts, tokens), generator=torch.Generator().manual_seed(0))
    return Batch(
        inputs={"input_ids": ids},
        is_token=torch.ones_like(ids, dtype=torch.bool),
        labels=tuple(map(str, range(texts))),
        text_axes={"input_ids": 0},
    )


def _memory() -> dict[str, float]:
    """Peak memory of 200 batches over that of 10, each in a process of its own."""
    peaks = [
        json.loads(
            subprocess.run(  # noqa: S603 - our own module
                [sys.executable, "-m", "bench.bench_scan", str(count)],
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
        for count in (10, 200)
    ]
    return {"scan_peak_memory_200_over_10_batches": peaks[1] / peaks[0]}


def _peak(batches: int) -> int:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=500, hidden_size=64, num_hidden_layers=6, num_attention_heads=4, intermediate_size=128
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    batch = tokens_of(500)
    tally = Tally()
    probe_into(tally, model, (batch for _ in range(batches)), layout=layout_of(model), panel=Panel())
    tally.summary()
    # Not ru_maxrss: a process starts with that of the one that started it.
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1])


if __name__ == "__main__":
    json.dump(_peak(int(sys.argv[1])), sys.stdout)
