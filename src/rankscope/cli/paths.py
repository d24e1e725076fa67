"""``rankscope paths``: what every path length, head and single path adds to the output of a model, exactly."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import Format, given_inputs, mask_files, seed_list
from rankscope.cli.output import command_line, note, prepared, progress, write_table
from rankscope.cli.paths_text import paths_text
from rankscope.cli.random_network import DEFAULT_TOKENS, random_spec

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Table


def paths(
    model: Annotated[
        str | None,
        Argument(
            help="Hub id, folder, built-in name ('rankscope list models'), module:attribute or file.py:attribute; "
            "leave out for a random network (--layers N ...).",
            show_default=False,
        ),
    ] = None,
    text: Annotated[list[str] | None, Option(help="A text; may be given several times.")] = None,
    texts: Annotated[str | None, Option(help="File with one text per line, .jsonl, or - for stdin.")] = None,
    images: Annotated[str | None, Option(help="Image file or folder, for vision models.")] = None,
    audio: Annotated[str | None, Option(help="Sound file or folder, for speech models.")] = None,
    inputs: options.Inputs = None,
    call: options.Call = None,
    loader: options.Loader = None,
    random_tokens: options.DrawnTokens = None,
    vocab: options.Vocab = None,
    top: Annotated[
        int | None, Option(help="How many single paths; 0 for none.", show_default="20, or all")
    ] = None,
    score: Annotated[str, Option(help="Rank single paths by norm or residual.")] = "norm",
    seconds: Annotated[float, Option(help="Time for proving the list of single paths complete.")] = 3.0,
    pairs: Annotated[
        bool, Option("--pairs", help="All paths through every two heads; the strongest are told.")
    ] = False,
    count_mlps: Annotated[
        bool, Option("--count-mlps", help="Tell lengths apart by the number of MLPs too.")
    ] = False,
    sample: Annotated[
        int, Option(help="Single paths per length, in the decomposition and re-run alone; 0 for none.")
    ] = 0,
    prune: Annotated[
        bool, Option("--prune", help="Rank heads by what the output loses without their paths, and try it.")
    ] = False,
    vectors: Annotated[
        bool | None,
        Option(
            "--vectors/--no-vectors",
            help="Norms of what passes each head, not shares alone.",
            show_default="where it takes about a minute at most",
        ),
    ] = None,
    mlps: Annotated[
        str, Option(help="through: paths cross MLPs, their gates held; source: paths begin at them.")
    ] = "through",
    before_final_norm: Annotated[
        bool, Option("--before-final-norm", help="Decompose the last state before the final norm.")
    ] = False,
    variant: Annotated[
        str | None,
        Option(
            help="san, san+mlp, san+skip, transformer; -norm drops norms.",
            show_default="a model as it is, a random network san",
        ),
    ] = None,
    mask: Annotated[str, Option(help="own, or a mask rule, see 'rankscope list masks'.")] = "own",
    norm: Annotated[
        str | None, Option(help="Of a model: own or none. Of a random network: none, layer, rms, sphere.")
    ] = None,
    weights: options.Weights = None,
    seed: Annotated[
        int | None, Option(help="Of random networks, initial weights and random tokens.", show_default="0")
    ] = None,
    seeds: Annotated[
        int | None, Option(help="How many networks (or draws of tokens): seeds 0 .. N-1.")
    ] = None,
    max_tokens: Annotated[int | None, Option(help="Tokens read of each text.", show_default="128")] = None,
    max_texts: Annotated[int | None, Option(help="Stop after so many texts.", show_default="all")] = None,
    special: Annotated[str, Option(help="Special tokens around a text: drop or keep.")] = "drop",
    stack: Annotated[
        str | None, Option(help="Which run of blocks, of a model with several.", show_default="the first")
    ] = None,
    dtype: Annotated[str, Option(help="Compute in float64 or float32; a model keeps its own.")] = "float64",
    device: Annotated[str, Option(help="Where to run.")] = "cpu",
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a Hub id.")] = None,
    allow_pickle: Annotated[
        bool, Option("--allow-pickle", help="Load checkpoints that are pickles.")
    ] = False,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    layers: Annotated[int | None, Option(help="Random network: blocks.", show_default="12")] = None,
    heads: Annotated[
        int | None, Option(help="Random network: heads; must divide --dim.", show_default="4")
    ] = None,
    dim: Annotated[int | None, Option(help="Random network: width of a token.", show_default="64")] = None,
    tokens: Annotated[
        int | None, Option(help="Random network: tokens, N(0, 1) each.", show_default="32")
    ] = None,
    placement: Annotated[
        str | None, Option(help="Random network: post, pre, sandwich, parallel.", show_default="post")
    ] = None,
    position: Annotated[
        str | None, Option(help="Random network: position rule.", show_default="none")
    ] = None,
    values: Annotated[
        str | None, Option(help="Random network: gaussian, orthogonal, identity.", show_default="gaussian")
    ] = None,
    init: Annotated[str | None, Option(help="Random network: initialisation.", show_default="paper")] = None,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Take the output of a model apart into paths: by length, by head, by where they start, and one by one.

    Attention maps, scales of norms and gates of MLPs are held at their values on the input; then the output is the sum
    over all sequences of heads, exactly. Sums over lengths, heads and sources cost a few passes, however many
    sequences there are. Single paths are searched best first; the list says whether it is proven complete.
    """
    wanted = prepared(
        format_,
        output,
        plot,
        reads=(model, texts, images, audio, inputs, call, loader, *mask_files(mask)),
    )
    given = given_inputs(
        texts=texts, text=text, inputs=inputs, call=call, loader=loader, images=images, audio=audio
    )
    from rankscope.studies import PathsConfig

    own = {"layers": layers, "heads": heads, "dim": dim, "tokens": tokens, "placement": placement}
    spec = random_spec(model, own | {"position": position, "values": values, "init": init}, norm)
    is_random = spec is not None
    config = PathsConfig.of(
        variant=variant or ("san" if is_random else "transformer"),
        mask=mask,
        norm="own" if is_random else norm or "own",
        mlps=mlps,
        final_norm=not before_final_norm,
        count_mlps=count_mlps,
        top=top,
        score=score,
        seconds=seconds,
        vectors=vectors,
        pairs=pairs,
        sample=sample,
        prune=prune,
        weights=weights,
        random_tokens=random_tokens,
        vocab=vocab,
        tokens=None if not is_random else DEFAULT_TOKENS if tokens is None else tokens,
        seeds=seed_list(seeds, seed),
        max_tokens=max_tokens,
        max_texts=max_texts,
        special=special,
        stack=stack,
        dtype=dtype,
        device=device,
    )
    load = {"revision": revision, "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    table = _run(spec or model, config, load, given)
    _write(table, wanted, output, plot)


def _run(model: Any, config: Any, load: dict[str, Any], given: dict[str, Any]) -> "Table":
    from rankscope.studies import decompose

    with _stages() as advance:
        return decompose(model, config=config, load=load, progress=advance, **given)


@contextmanager
def _stages() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar that says what is being computed of which text."""
    with progress("paths") as advance:
        yield lambda doing, done, total: advance(done, total, doing)


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None) -> None:
    title = f"Paths through {table.sections['paths']['model']}"
    write_table(table, title, wanted, output, plot, text=paths_text, page=_page, curves=_curves)
    if wanted is not Format.TABLE or output is not None:
        for line in table.sections["finding"]["words"]:
            note(line)


def _page(table: "Table", title: str) -> str:
    from rankscope.report.paths_page import paths_page

    return paths_page(table, title=title, command=command_line())


def _curves(table: "Table") -> "Chart":
    from rankscope.plots.paths_chart import paths_chart

    return paths_chart(table)
