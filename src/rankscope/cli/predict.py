"""``rankscope predict``: how alike tokens become, from a config alone; and what weights prove about all inputs."""

import math
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import Format, listed, mask_files
from rankscope.cli.output import (
    command_line,
    exit_code,
    note,
    prepared,
    printable,
    text_table,
    write_table,
)
from rankscope.cli.random_network import DEFAULTS
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.plots import Chart
    from rankscope.results import Table


def predict(
    config: Annotated[
        str | None,
        Argument(
            help="Folder with a config.json, .json or .yaml file, Hub id, or a name of 'rankscope list models' or "
            "'rankscope list architectures'; leave out for a random network.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None, Option(help="Depths to forecast; comma list.", show_default="12, or the config's own")
    ] = None,
    tokens: Annotated[int, Option(help="Tokens of a text, for the forecast.")] = 128,
    threshold: Annotated[float, Option(help="Tell at which layer the mean cosine passes this.")] = 0.9,
    placement: Annotated[
        str | None, Option(help="post, pre, sandwich, parallel.", show_default="post, or the config's own")
    ] = None,
    weights: Annotated[
        str | None, Option(help="Statements proven from the weights of a model: trained or initial.")
    ] = None,
    spread: Annotated[
        float | None, Option(help="Largest distance between two tokens of the input.", show_default="any")
    ] = None,
    size: Annotated[
        float | None, Option(help="Length of the longest token of the input.", show_default="any")
    ] = None,
    target: Annotated[float | None, Option(help="Tell after which layer the spread is below this.")] = None,
    heads: Annotated[int | None, Option(help="Random network: heads.", show_default="4")] = None,
    dim: Annotated[int | None, Option(help="Random network: width of a token.", show_default="64")] = None,
    variant: Annotated[
        str | None, Option(help="Random network: san, san+mlp, san+skip, transformer.", show_default="san")
    ] = None,
    norm: Annotated[
        str | None, Option(help="Random network: none, layer, rms, sphere.", show_default="none")
    ] = None,
    mask: Annotated[str | None, Option(help="Random network: mask rule.", show_default="full")] = None,
    position: Annotated[
        str | None, Option(help="Random network: position rule.", show_default="none")
    ] = None,
    values: Annotated[
        str | None, Option(help="Random network: gaussian, orthogonal, identity.", show_default="gaussian")
    ] = None,
    init: Annotated[str | None, Option(help="Random network: initialisation.", show_default="paper")] = None,
    seed: options.Seed = None,
    revision: Annotated[str | None, Option(help="Branch, tag or commit of a Hub id.")] = None,
    allow_pickle: Annotated[
        bool, Option("--allow-pickle", help="Load checkpoints that are pickles.")
    ] = False,
    trust_remote_code: Annotated[
        bool, Option("--trust-remote-code", help="Run code that comes with the model.")
    ] = False,
    fail_if_passed: Annotated[
        bool,
        Option(
            "--fail-if-passed", help="Exit with code 1 if a forecast at its own width passes --threshold."
        ),
    ] = False,
    undecided: options.Undecided = None,
    plot: options.Plot = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> int:
    """Forecast the mean token cosine of untrained networks, and prove what weights do to any input.

    The forecast follows the covariance of tokens through random parts: each depth at the config's width, and at the
    width that keeps the number of weights. Statements are about the largest distance between two tokens: by how much
    every block enlarges or keeps it at least and at most, whatever the text.
    """
    wanted = prepared(format_, output, plot, reads=(config, *mask_files(mask)))
    own = {"heads": heads, "dim": dim, "variant": variant, "norm": norm, "mask": mask}
    own |= {"position": position, "values": values, "init": init}
    given = {name: value for name, value in own.items() if value is not None}
    depths = _depths(layers)
    if fail_if_passed and weights is not None:
        raise ConfigError(
            f"--fail-if-passed speaks of a forecast, but --weights {weights} asks for proven statements; leave one out"
        )
    if config is not None and given:
        shown = ", ".join(f"--{name}" for name in given)
        raise ConfigError(f"{shown} belongs to a random network, but {config!r} was named; leave one out")
    if config is None and not given and not depths:
        raise ConfigError(
            "no config was named; give a CONFIG such as bert-base, or a random network such as --layers 4,8,16"
        )
    asked: dict[str, Any] = {"layers": depths, "tokens": tokens, "threshold": threshold, "weights": weights}
    asked |= {"spread": spread, "size": size, "target": target, "seed": 0 if seed is None else seed}
    load = {"revision": revision, "allow_pickle": allow_pickle, "trust_remote_code": trust_remote_code}
    from rankscope.studies.predict_study import has_passed

    table = _run(config, asked, given, placement, load)
    write_table(
        table,
        f"Predictions for {config or 'a random network'}",
        wanted,
        output,
        plot,
        text=predict_text,
        page=_page,
        curves=_chart,
    )
    if wanted is not Format.TABLE:
        for line in table.sections.get("forecast", {}).get("notes", ()):
            note(f"note: {line}")
    return exit_code([has_passed(table)] if fail_if_passed else [], undecided)


def _depths(text: str | None) -> tuple[int, ...]:
    items = listed(text or "")
    if any(not item.isdecimal() for item in items) or (text is not None and not items):
        raise ConfigError(f"--layers {text!r}: expected whole numbers such as 12 or 4,8,16,32")
    return tuple(map(int, items))


def _run(
    config: str | None,
    asked: dict[str, Any],
    given: dict[str, Any],
    placement: str | None,
    load: dict[str, Any],
) -> "Table":
    from rankscope.network import Spec
    from rankscope.studies.predict_study import PredictConfig
    from rankscope.studies.predict_study import predict as run

    if config is not None:
        return run(config, PredictConfig.of(**asked, placement=placement), load=load)
    if asked["weights"] is not None:
        raise ConfigError("--weights belongs to a model, but none was named; a random network has its own")
    chosen = DEFAULTS | given | ({} if placement is None else {"placement": placement})
    depth = {"layers": (asked["layers"] or (DEFAULTS["layers"],))[0]}
    return run(Spec.of(**chosen | depth), PredictConfig.of(**asked))


def predict_text(table: "Table") -> str:
    """The forecast of every depth, then the statements about every block, for reading."""
    told, lines = table.sections, list[str]()
    if "forecast" in told:
        lines += _forecast_lines(table)
    if "apriori" in told:
        lines += ([""] if lines else []) + _statement_lines(table)
    if told.get("mlps"):
        lines += ["", *_mlp_lines(told["mlps"], told["apriori"]["spread"])]
    return printable("\n".join(lines))


def _forecast_lines(table: "Table") -> list[str]:
    told = table.sections["forecast"]
    passes = f"passes {told['threshold']:g}"
    header = ["layers", "dim", "width chosen by", "weights", "last cosine", passes]
    rows = [
        [
            str(one["layers"]),
            str(one["dim"]),
            one["sizing"],
            f"{one['parameters']:.3g}",
            f"{one['cosine']:.3f}",
            f"not in {one['layers']}" if one["passes"] is None else f"layer {one['passes']}",
        ]
        for one in told["depths"]
    ]
    words = f"{told['model']}: mean cosine of two tokens of {told['tokens']}, forecast for untrained weights"
    return [
        *(words, "", text_table(header, rows), "", _by_layer(table)),
        *(f"note: {line}" for line in told["notes"]),
    ]


def _by_layer(table: "Table") -> str:
    """The cosine after a few layers of every network: powers of two, and the last."""
    rows = table.frame.filter(table.frame["statement"] == "forecast").to_dicts()
    deepest = max(row["layers"] for row in rows)
    chosen = sorted({0, deepest, *(2**k for k in range(deepest.bit_length()))})
    by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        by_name.setdefault(row["variant"], {})[row["layer"]] = row["value"]
    lines = [[name, *(_cosine(found.get(layer)) for layer in chosen)] for name, found in by_name.items()]
    return text_table(["cosine after layer", *map(str, chosen)], lines)


def _cosine(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _statement_lines(table: "Table") -> list[str]:
    told = table.sections["apriori"]
    shown = table.frame.filter(table.frame["statement"] == "a-priori").to_dicts()
    header = ["layer", "gain at least", "gain at most", "spread at least", "spread at most", "shrinks below"]
    names = ("gain_lower", "gain_upper", "lower", "upper", "critical")
    rows = [[str(row["layer"]), *(_power(row[name]) for name in names)] for row in shown]
    given = "any input" if told["spread"] is None else f"inputs of spread {told['spread']:g}"
    if told["size"] is not None:
        given += f" with tokens no longer than {told['size']:g}"
    lines = [f"{told['model']}: proven for {given}; gains for all of them, - = nothing is proven", ""]
    lines += [text_table(header, rows), "", _in_words(told)]
    return [*lines, *_reason_lines(told, "below", "no_lower"), *_reason_lines(told, "above", "no_upper")]


def _reason_lines(told: dict[str, Any], side: str, key: str) -> list[str]:
    """Every condition that fails, once, with the layers in which it does and the largest number that decides it."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for layer in told["layers"]:
        for reason in layer[key]:
            found.setdefault(reason["name"], []).append((layer["layer"], reason))
    lines = []
    for name, cases in found.items():
        worst = max((reason for _, reason in cases), key=lambda reason: reason["value"] or 0.0)
        number = "" if worst["value"] is None else f" ({worst['value']:.4g} against {worst['limit']:.4g})"
        layers = _span([layer for layer, _ in cases])
        lines.append(f"layers {layers}, bound from {side}, what fails: {name}{number}; {worst['says']}")
    return lines


def _in_words(told: dict[str, Any]) -> str:
    if told["keeps_apart"]:
        words = "No input collapses: every block keeps a share of the spread."
    elif told["contracts_always"]:
        words = "Every input collapses: every block shrinks every spread."
    elif told["critical_spread"]:
        words = f"Inputs with a spread below {told['critical_spread']:.4g} shrink in every block."
    else:
        words = "For no spread is it proven that every block shrinks it."
    if told["target"] is not None:
        reached = told["layers_until"]
        words += f" Below {told['target']:g} " + (
            "in no layer." if reached is None else f"after layer {reached}."
        )
    return words


def _mlp_lines(told: list[dict[str, Any]], spread: float) -> list[str]:
    header = [
        "layer",
        "mlp",
        "gain at most",
        f"needed at spread {spread:g}",
        "could stop collapse",
        "sensitivity",
    ]
    rows = [
        [
            str(one["layer"]),
            one["site"],
            "-" if one["lipschitz"] is None else f"{one['lipschitz']:.4g}",
            "-" if one["needed"] is None else f"{one['needed']:.4g}",
            "yes" if one["is_enough"] else "no",
            _power(one["log_sensitivity"]),
        ]
        for one in told
    ]
    return [
        text_table(header, rows),
        "needed: what an MLP must make up for, if attention before it had no skip",
    ]


def _power(log: float | None) -> str:
    """A natural logarithm as a number, also where that leaves the range of floats."""
    if log is None:
        return "-"
    exponent = log / math.log(10)
    if abs(exponent) < 5:
        return f"{math.exp(log):.4g}"
    whole = math.floor(exponent)
    return f"{10 ** (exponent - whole):.2f}e{whole:+d}"


def _span(layers: list[int]) -> str:
    if layers == list(range(layers[0], layers[-1] + 1)):
        return str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}"
    return ", ".join(map(str, layers))


def _page(table: "Table", title: str) -> str:
    from rankscope.report import page

    return page(table, [_chart(table)], title=title, command=command_line())


def _chart(table: "Table") -> "Chart":
    from rankscope.plots.predict_chart import predict_chart

    return predict_chart(table)
