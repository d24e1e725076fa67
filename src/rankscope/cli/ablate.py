"""``rankscope ablate``: a model without skips, MLPs or norms, with other masks and skip scales, side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.ablate_text import ablate_text, finding_lines
from rankscope.cli.options import Format, given_inputs, listed, mask_files, seed_list
from rankscope.cli.output import command_line, note, prepared, progress, write_table
from rankscope.cli.random_network import DEFAULT_TOKENS, random_spec

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Table
    from rankscope.studies import AblateConfig


def ablate(
    model: Annotated[
        str | None,
        Argument(
            help="Hub id, folder, built-in name ('rankscope list models'), module:attribute or file.py:attribute; "
            "leave out for a random network (--layers N ...).",
            show_default=False,
        ),
    ] = None,
    variant: Annotated[
        str, Option(help="san, san+mlp, san+skip, transformer; -norm drops norms; comma list.")
    ] = "san,san+mlp,san+skip,transformer",
    mask: Annotated[str, Option(help="own, or mask rules, see 'rankscope list masks'; comma list.")] = "own",
    skip_scale: Annotated[
        str, Option(help="own, or numbers that skips carry their input times; comma list.")
    ] = "own",
    norm: Annotated[
        str | None,
        Option(help="Of a model: own or none. Of a random network: none, layer, rms, sphere."),
    ] = None,
    blocks: Annotated[
        str | None, Option(help="Change these blocks only, from 1: 3,5-7.", show_default="all")
    ] = None,
    semantics: Annotated[
        str, Option(help="clean, or paper: what the code of Dong et al. does (BERT, ALBERT, XLNet).")
    ] = "clean",
    weights: options.Weights = None,
    measure: Annotated[
        str | None, Option(help="Measures, see 'rankscope list measures'; comma list.")
    ] = None,
    sites: Annotated[
        str, Option(help="Where to measure: block, attention, mlp, final; comma list.")
    ] = "block",
    split: Annotated[
        bool, Option("--split", help="Carry the residual itself, far below the rounding of the states.")
    ] = False,
    no_error: options.NoError = False,
    blame: Annotated[
        bool, Option("--blame", help="What each norm, attention, skip and MLP does for or against collapse.")
    ] = False,
    suggest: Annotated[
        bool, Option("--suggest", help="Changes that would help, each computed, best first.")
    ] = False,
    texts: Annotated[str | None, Option(help="File with one text per line, .jsonl, or - for stdin.")] = None,
    text: Annotated[list[str] | None, Option(help="A text; may be given several times.")] = None,
    images: Annotated[str | None, Option(help="Image file or folder, for vision models.")] = None,
    audio: Annotated[str | None, Option(help="Sound file or folder, for speech models.")] = None,
    inputs: options.Inputs = None,
    call: options.Call = None,
    loader: options.Loader = None,
    random_tokens: options.DrawnTokens = None,
    vocab: options.Vocab = None,
    seed: Annotated[
        int | None, Option(help="Of initial weights, random tokens and sample inputs.", show_default="0")
    ] = None,
    seeds: Annotated[int | None, Option(help="How many models (or draws of tokens): seeds 0 .. N-1.")] = None,
    batch_size: Annotated[int, Option(help="Texts per pass.")] = 8,
    max_tokens: Annotated[int | None, Option(help="Tokens read of each text.", show_default="128")] = None,
    max_texts: Annotated[int | None, Option(help="Stop after so many texts.", show_default="all")] = None,
    special: Annotated[str, Option(help="Special tokens around a text: drop or keep.")] = "drop",
    stack: Annotated[
        str | None, Option(help="Which run of blocks, of a model with several.", show_default="the first")
    ] = None,
    dtype: Annotated[
        str | None, Option(help="Run in this dtype.", show_default="the checkpoint's own; initial: float32")
    ] = None,
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
    """Cut a model and see what keeps its tokens apart: its skips, its MLPs, its norms or its mask.

    The model is rewritten as a tree of parts, which is compared with the model itself before anything is cut. All cuts
    share their weights and read the same texts. Measured are the same tokens as in a scan; numbers below the rounding
    floor are marked. With --split floors are
    estimated from a perturbed run, which --no-error leaves out.
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
    from rankscope.studies import AblateConfig

    own = {"layers": layers, "heads": heads, "dim": dim, "tokens": tokens, "placement": placement}
    spec = random_spec(model, own | {"position": position, "values": values, "init": init}, norm)
    config = AblateConfig.of(
        variants=listed(variant),
        masks=listed(mask),
        skip_scales=listed(skip_scale),
        norm="own" if spec is not None else norm or "own",
        blocks=blocks,
        semantics=semantics,
        weights=weights,
        sites=listed(sites),
        split=split,
        error=not no_error,
        blame=blame,
        suggest=suggest,
        random_tokens=random_tokens,
        vocab=vocab,
        tokens=None if spec is None else DEFAULT_TOKENS if tokens is None else tokens,
        seeds=seed_list(seeds, seed),
        batch_size=batch_size,
        max_tokens=max_tokens,
        max_texts=max_texts,
        special=special,
        stack=stack,
        dtype=dtype,
        device=device,
        **({} if measure is None else {"measures": listed(measure)}),
    )
    load = {"revision": revision, "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    table = _run(spec or model, config, load, given)
    _write(table, wanted, output, plot)


def _run(model: Any, config: "AblateConfig", load: dict[str, Any], given: dict[str, Any]) -> "Table":
    from rankscope.studies import ablate as run

    with progress("passes") as advance:
        return run(model, config=config, load=load, progress=advance, **given)


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None) -> None:
    title = f"Ablation of {table.sections['ablate']['model']}"
    write_table(table, title, wanted, output, plot, text=ablate_text, page=_page, curves=_curves)
    if wanted is not Format.TABLE or output is not None:
        for line in finding_lines(table):
            note(line)


def _page(table: "Table", title: str) -> str:
    from rankscope.report.ablate_page import ablate_page

    return ablate_page(table, title=title, command=command_line())


def _curves(table: "Table") -> "Chart":
    from rankscope.plots.ablate_chart import ablate_chart

    return ablate_chart(table)
