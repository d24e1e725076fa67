"""``rankscope certify``: what is proven of the residual of every layer of a network, from below and from above."""

import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from rankscope.cli import options
from rankscope.cli.options import Format, given_inputs, listed, mask_files, seed_list
from rankscope.cli.output import command_line, exit_code, note, prepared, progress, write_table
from rankscope.cli.random_network import DEFAULT_TOKENS, random_spec
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Decision, Table


def certify(
    model: options.Model = None,
    text: options.Text = None,
    texts: options.Texts = None,
    images: options.Images = None,
    audio: options.Audio = None,
    inputs: options.Inputs = None,
    call: options.Call = None,
    loader: options.Loader = None,
    random_tokens: options.DrawnTokens = None,
    vocab: options.Vocab = None,
    definition: Annotated[
        str,
        Option(help="What is bounded: frobenius, composite, columns; diameters l1, l2, linf; comma list."),
    ] = "frobenius,l2,composite",
    explain: Annotated[
        bool,
        Option("--explain", help="Print what printed bounds are made of, and which assumption fails first."),
    ] = False,
    gamma: Annotated[float, Option(help="The factor gamma of Dong's bounds; 1 as first printed.")] = 1.0,
    require_lower: Annotated[
        float | None,
        Option(help="Exit with 1 unless the last layer keeps this part of the input's residual, proven."),
    ] = None,
    require_upper: Annotated[
        float | None,
        Option(help="Exit with 1 unless the last layer has at most this part of it, proven."),
    ] = None,
    undecided: options.Undecided = None,
    joint_side: Annotated[
        int | None,
        Option(
            help="Certify blocks jointly, the sharpest way, up to (tokens - 1) * dim of this size; the cost grows with "
            "its cube.",
            show_default="512",
        ),
    ] = None,
    variant: options.OneVariant = None,
    mask: options.OneMask = "own",
    norm: options.NormChoice = None,
    weights: options.Weights = None,
    seed: options.DrawSeed = None,
    seeds: options.DrawSeeds = None,
    max_tokens: options.MaxTokens = None,
    max_texts: options.MaxTexts = None,
    special: options.Special = "drop",
    stack: options.Stack = None,
    device: options.Device = "cpu",
    revision: options.Revision = None,
    allow_pickle: options.AllowPickle = False,
    trust_remote_code: options.TrustRemoteCode = False,
    layers: options.OwnLayers = None,
    heads: options.OwnHeads = None,
    dim: options.OwnDim = None,
    tokens: options.OwnTokens = None,
    placement: options.OwnPlacement = None,
    position: options.OwnPosition = None,
    values: options.OwnValues = None,
    init: options.OwnInit = None,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> int:
    """Prove bounds of the residual of every layer: it is at least this and at most that, on these inputs.

    They speak of the network computed with real numbers from the stored weights, so no rounding can make them wrong,
    and come from the attention maps of one forward pass. Next to them stand what was measured and the bound that the
    papers print. --require-lower and --require-upper speak of the first definition.
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
    from rankscope.studies.certify_config import CertifyConfig

    limits = _limits(require_lower, require_upper)
    own = {"layers": layers, "heads": heads, "dim": dim, "tokens": tokens, "placement": placement}
    spec = random_spec(model, own | {"position": position, "values": values, "init": init}, norm)
    is_random = spec is not None
    config = CertifyConfig.of(
        definitions=listed(definition),
        gamma=gamma,
        variant=variant or ("san" if is_random else "transformer"),
        mask=mask,
        norm="own" if is_random else norm or "own",
        weights=weights,
        random_tokens=random_tokens,
        vocab=vocab,
        tokens=None if not is_random else DEFAULT_TOKENS if tokens is None else tokens,
        seeds=seed_list(seeds, seed),
        max_tokens=max_tokens,
        max_texts=max_texts,
        special=special,
        stack=stack,
        device=device,
        **({} if joint_side is None else {"joint_side": joint_side}),
    )
    load = {"revision": revision, "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    table = _run(spec or model, config, load, given)
    _write(table, wanted, output, plot, explain=explain)
    return exit_code(_decisions(table, limits), undecided)


def _limits(lower: float | None, upper: float | None) -> dict[str, float]:
    limits = {name: value for name, value in (("lower", lower), ("upper", upper)) if value is not None}
    for name, value in limits.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"--require-{name} {value}: expected a positive number such as 0.1")
    return limits


def _run(model: Any, config: Any, load: dict[str, Any], given: dict[str, Any]) -> "Table":
    from rankscope.studies.certify_study import certify as prove

    with progress("texts") as advance:
        return prove(model, config=config, load=load, progress=advance, **given)


def _write(table: "Table", wanted: Format, output: Path | None, plot: Path | None, *, explain: bool) -> None:
    from rankscope.cli.certify_text import certify_text
    from rankscope.results.certify_lines import subject

    title = f"What is proven of {subject(table.sections['certify'])}"
    is_terminal = output is None and sys.stdout.isatty()
    text = partial(certify_text, explain=explain, is_terminal=is_terminal)
    write_table(table, title, wanted, output, plot, text=text, page=_page, curves=_curves)
    if wanted is not Format.TABLE or output is not None:
        for line in table.sections["finding"]["words"]:
            note(line)


def _page(table: "Table", title: str) -> str:
    from rankscope.report.certify_page import certify_page

    return certify_page(table, title=title, command=command_line())


def _curves(table: "Table") -> "Chart":
    from rankscope.plots.certify_chart import certify_chart

    return certify_chart(table)


def _decisions(table: "Table", limits: dict[str, float]) -> "list[Decision]":
    """Whether the first definition reaches what was required: it is crossed unless that is proven.

    A bound that proves nothing does not meet a requirement. One whose number was lost, because the input's own residual
    is 0/0 or a logarithm left the range of floats, is undecided.
    """
    from rankscope.results.certify_lines import power_text
    from rankscope.results.outcome import Decision, Outcome, Span, judged

    name, found = next(iter(table.sections["finding"]["definitions"].items()))
    nothing = {"lower": -math.inf, "upper": -math.inf if found["upper_is_zero"] else math.inf}
    decisions = []
    for side, limit in limits.items():
        bound = nothing[side] if found[side] is None else found[side]
        bound = math.nan if found[f"{side}_is_lost"] else bound
        span = Span(low=bound, high=bound)  # bounds are rounded outward: they have no floor
        outcome = judged(span, "<" if side == "lower" else ">", math.log(limit))
        end = power_text(bound, toward=-1 if side == "lower" else 1)
        says = "undecided" if outcome is Outcome.UNDECIDED else "not proven"
        words = (
            f"--require-{side} {limit:g} is {says}: the {side} bound of {name} over the input's is {end} at layer "
            f"{found['layers']}, limit {limit:g}, rounding counted in"
        )
        decisions.append(Decision(outcome=outcome, words="" if outcome is Outcome.CLEAR else words))
    return decisions
