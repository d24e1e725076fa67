"""``rankscope scan``: point it at a model and learn whether its tokens are collapsing."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import Format, given_inputs, listed
from rankscope.cli.output import (
    command_line,
    exit_code,
    note,
    prepared,
    printable,
    progress,
    text_table,
    write_table,
)
from rankscope.errors import ConfigError, RankscopeError

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Table
    from rankscope.studies import Partial, Scan, ScanConfig

STATE_FILES = (".npy", ".safetensors")


def scan(
    model: Annotated[
        str,
        Argument(
            help="Hub id, folder, built-in name ('rankscope list models'), module:attribute or file.py:attribute; "
            "or hidden states: a .npy or .safetensors file."
        ),
    ],
    texts: Annotated[str | None, Option(help="File with one text per line, .jsonl, or - for stdin.")] = None,
    text: Annotated[list[str] | None, Option(help="A text; may be given several times.")] = None,
    images: Annotated[str | None, Option(help="Image file or folder, for vision models.")] = None,
    audio: Annotated[str | None, Option(help="Sound file or folder, for speech models.")] = None,
    inputs: options.Inputs = None,
    call: options.Call = None,
    loader: options.Loader = None,
    random_tokens: options.DrawnTokens = None,
    vocab: options.Vocab = None,
    batch_size: Annotated[int, Option(help="Texts per forward pass.")] = 8,
    max_tokens: Annotated[int | None, Option(help="Tokens read of each text.", show_default="128")] = None,
    max_texts: Annotated[int | None, Option(help="Stop after so many texts.", show_default="all")] = None,
    special: Annotated[str, Option(help="Special tokens around a text: drop or keep.")] = "drop",
    weights: options.Weights = None,
    seed: Annotated[int, Option(help="Of initial weights, random tokens and sample inputs.")] = 0,
    spectra: Annotated[bool, Option(help="Effective ranks, once per block.")] = True,
    full: Annotated[
        bool, Option("--full", help="One of every other measure too: singular values, best centers.")
    ] = False,
    attention: Annotated[
        bool, Option("--attention", help="Entropy, Dobrushin, gap and sink share of every head.")
    ] = False,
    gradients: Annotated[
        bool, Option("--gradients", help="Gradients of query, key and value weights.")
    ] = False,
    tree: Annotated[
        bool, Option("--tree", help="The model as a tree of parts, and how much of its weights that covers.")
    ] = False,
    loss: Annotated[str | None, Option(help="module:function of model and batch, for --gradients.")] = None,
    measure: Annotated[
        str | None, Option(help="More measures per block, see 'rankscope list measures'; comma list.")
    ] = None,
    blocks: Annotated[
        str | None,
        Option(
            help="Where the blocks are: model.layers, or one by one in their order, comma list; found if left out."
        ),
    ] = None,
    axes: Annotated[
        str | None,
        Option(help="Of hidden states: what each axis is, such as layers,tokens,dim or texts,tokens,dim."),
    ] = None,
    dtype: Annotated[
        str | None, Option(help="Run in this dtype.", show_default="the checkpoint's own")
    ] = None,
    device: Annotated[str, Option(help="Where to run.")] = "cpu",
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a Hub id.")] = None,
    allow_pickle: Annotated[
        bool, Option("--allow-pickle", help="Load checkpoints that are pickles.")
    ] = False,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    threshold: Annotated[
        str | None, Option(help="Of the verdict: name=value, comma list; see docs/verdict.md.")
    ] = None,
    fail_if: Annotated[
        str | None, Option(help="Exit with 1 if this holds of a block: 'residual_ratio<0.01'; comma list.")
    ] = None,
    undecided: options.Undecided = None,
    resume: Annotated[bool, Option("--resume", help="Go on with an interrupted scan.")] = False,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> int:
    """Measure a live model layer by layer and say in plain words whether its tokens are collapsing.

    Hooks reduce every state to numbers where it appears: after attention, after the MLP, after the block and after
    the final norm. Padding and special tokens are left out. Numbers below the rounding floor are marked.
    """
    wanted = prepared(format_, output, plot, reads=(model, texts, images, audio, inputs, call, loader, loss))
    given = given_inputs(
        texts=texts, text=text, inputs=inputs, call=call, loader=loader, images=images, audio=audio
    )
    from rankscope.studies import Partial, ScanConfig
    from rankscope.verdict import decided, parse_condition

    conditions = [parse_condition(one) for one in listed(fail_if or "")]
    if fail_if is not None and not conditions:
        raise ConfigError("--fail-if names no condition; expected one such as 'residual_ratio<0.01'")
    asked = [*listed(measure or ""), *(one.definition for one in conditions)]
    config = ScanConfig.of(
        batch_size=batch_size,
        max_tokens=max_tokens,
        max_texts=max_texts,
        special=special,
        random_tokens=random_tokens,
        vocab=vocab,
        seed=seed,
        weights=weights,
        spectra=spectra,
        full=full,
        attention=attention,
        gradients=gradients,
        tree=tree,
        measures=tuple(asked),
        blocks=blocks,
        axes=axes,
        thresholds=_thresholds(threshold),
    )
    loading = {
        "dtype": dtype,
        "device": device,
        "revision": revision,
        "allow_pickle": allow_pickle,
        "trust_remote_code": trust_remote_code,
    }
    if _is_states(model):
        live = {"blocks": blocks, "loss": loss, "weights": weights, "max_texts": max_texts}
        _refuse_unused(given, loading, **live, resume=resume or None)
    partial = Partial(_partial_path(model, output), resume=resume)
    found = _run(model, config, loading, given, loss, partial)
    _write(found.table, wanted, output, plot)
    partial.remove()
    return exit_code([decided(one, found.table) for one in conditions], undecided)


def _run(
    model: str,
    config: "ScanConfig",
    loading: dict[str, Any],
    given: dict[str, Any],
    loss: str | None,
    partial: "Partial",
) -> "Scan":
    from rankscope.studies import load_loss, scan_states
    from rankscope.studies import scan as run

    if _is_states(model):
        return scan_states(model, config=config)
    function = None if loss is None else load_loss(loss)
    try:
        with progress("texts") as advance:
            found = run(
                model, config=config, load=loading, loss=function, progress=advance, partial=partial, **given
            )
    except KeyboardInterrupt:
        saved = f"what was measured is in {partial.path}; go on with --resume" if partial.is_written else ""
        note(f"rankscope: interrupted; {saved or 'nothing was saved'}")
        raise typer.Exit(130) from None
    except RankscopeError as error:
        if partial.is_written:
            raise type(error)(f"{error}; what was measured is in {partial.path}") from error
        raise
    return found


def _is_states(model: str) -> bool:
    return Path(model).suffix.lower() in STATE_FILES and Path(model).is_file()


def _refuse_unused(given: dict[str, Any], loading: dict[str, Any], **others: Any) -> None:
    """Options that only a live model can use are not ignored silently."""
    asked = given | others | {name: loading[name] for name in ("dtype", "revision")}
    unused = [f"--{name.replace('_', '-')}" for name, value in asked.items() if value is not None]
    if unused:
        raise ConfigError(
            f"{', '.join(unused)} needs a live model; a file of hidden states is measured as it is"
        )


def _partial_path(model: str, output: Path | None) -> Path:
    """Beside the output, or in the current folder under the model's name."""
    if output is not None:
        from rankscope.studies.scan_partial import partial_beside

        return partial_beside(output)
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(model).name)
    return Path(f"rankscope-scan-{name[:60]}.partial.json")


def _thresholds(text: str | None) -> dict[str, str]:
    pairs = [one.partition("=") for one in listed(text or "")]
    for name, sign, value in pairs:
        if not sign or not value.strip():
            raise ConfigError(f"threshold {name!r}: expected name=value, as in collapsed=0.05")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None) -> None:
    model, verdict = table.sections["scan"]["model"], table.sections["verdict"]
    write_table(table, f"Scan of {model}", wanted, output, plot, text=_text, page=_page, curves=_curves)
    if wanted is not Format.TABLE or output is not None:
        note(f"{model}: {verdict['words']}")


def _page(table: "Table", title: str) -> str:
    from rankscope.report import scan_page

    return scan_page(table, title=title, command=command_line())


def _curves(table: "Table") -> "Chart":
    from rankscope.plots import scan_curves

    return scan_curves(table)


COLUMNS = {
    "ratio": "residual_ratio[frobenius,mean]",
    "ratio, unit": "residual_ratio[frobenius,mean,unit]",
    "cosine": "cosine[off_diagonal]",
    "token share": "token_share[largest]",
    "channel share": "channel_share[largest]",
    "rank": "effective_rank[entropy]",
    "rank, centered": "effective_rank[entropy,centered]",
}
"""What the terminal shows of every block; everything else is in the other formats."""


def _text(table: "Table") -> str:
    """The verdict in words, then one line per block."""
    scan, verdict = table.sections["scan"], table.sections["verdict"]
    lines = [
        f"{' '.join(scan['model'].split())}: {verdict['verdict']}",
        verdict["words"],
        "",
        f"{scan['texts']} texts of {scan['tokens']:.0f} tokens on average, {scan['dtype']}; {scan['special rule']}",
        *(f"note: {warning}" for warning in scan["warnings"]),
    ]
    for stack in verdict["stacks"]:
        lines += ["", _stack_text(table, stack)]
    if "tree" in table.sections:
        from rankscope.results.tree_lines import tree_lines

        lines += ["", *tree_lines(table.sections["tree"])]
    legend = "means over texts at the site block; * = not above the rounding floor"
    return printable("\n".join([*lines, "", legend]))


def _stack_text(table: "Table", stack: dict[str, Any]) -> str:
    entries = {
        (entry["layer"], entry["definition"]): entry
        for entry in table.sections["summary"]
        if entry["stack"] == stack["stack"] and entry["site"] == "block"
    }
    shown = {title: name for title, name in COLUMNS.items() if any(key[1] == name for key in entries)}
    rows = [
        [
            str(layer["layer"]),
            *(_cell(entries.get((layer["layer"], name))) for name in shown.values()),
            layer["verdict"],
        ]
        for layer in stack["layers"]
    ]
    return text_table([stack["stack"], *shown, "verdict"], rows)


def _cell(entry: dict[str, Any] | None) -> str:
    if entry is None or entry["mean"] is None:
        return "-"
    return f"{entry['mean']:.3g}" + ("" if entry["resolved"] > 0.5 else "*")
