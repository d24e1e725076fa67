"""What was found about the paths of a model, as text for the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankscope.cli.output import printable, text_table

if TYPE_CHECKING:
    from rankscope.results import Table

MOST_LENGTHS = 26
MOST_HEADS = 12
MOST_SOURCES = 8
MOST_PAIRS = 12
UNRESOLVED = "*"


def paths_text(table: "Table") -> str:
    """What was taken apart, the finding, then lengths, heads, sources and single paths."""
    told = table.sections
    about = told["paths"]
    texts = f"{about['texts']} text" + ("s" if about["texts"] != 1 else "")
    seeds = f", {about['seeds']} seeds" if about["seeds"] > 1 else ""
    lines = [
        f"{' '.join(about['model'].split())}: {about['weights']} weights, computed in {told['identity']['dtype']}",
        f"{texts} of {about['tokens']:.0f} tokens on average{seeds}; {about['special rule']}",
        *(f"note: {warning}" for warning in about["warnings"]),
        "",
        *told["finding"]["words"],
        "",
        *_lengths(told["spectrum"]),
        "",
        *_heads(told["heads"]),
        "",
        *_sources(told["sources"]),
    ]
    parts = (
        ("mlps", _by_mlps),
        ("top", _top),
        ("pairs", _pairs),
        ("samples", _samples),
        ("pruning", _pruning),
    )
    for name, write in parts:
        if name in told and (told[name] or name == "pairs"):
            lines += ["", *write(told)]
    lines += [
        "",
        f"{UNRESOLVED} = not above the rounding floor, - = not defined or not computed; shares are of the residual",
    ]
    return printable("\n".join(lines))


def _lengths(spectrum: list[dict[str, Any]]) -> list[str]:
    spectrum = [
        entry for entry in spectrum if entry["paths"] or entry["norm"]
    ]  # no path is that long or short
    shown, left = _most(spectrum, MOST_LENGTHS, key=lambda entry: -abs(entry["share"] or 0.0))
    names = [
        "length",
        "paths",
        "share",
        "norm",
        "residual",
        "token cosine",
        "cosine to output",
        "cancellation",
    ]
    rows = [
        [
            str(entry["length"]),
            _count(entry["paths"]),
            _share(entry),
            _number(entry["norm"]),
            _number(entry["residual"], resolved=entry["resolved"]),
            _cosine(entry["cosine"]),
            _cosine(entry["cosine_to_output"]),
            _number(entry["cancellation_ratio"]),
        ]
        for entry in sorted(shown, key=lambda entry: int(entry["length"]))
    ]
    return [f"all paths of each length{left}", text_table(names, rows)]


def _heads(heads: list[dict[str, Any]]) -> list[str]:
    if not heads:
        return ["the network has no heads"]
    shown, left = _most(heads, MOST_HEADS, key=lambda entry: -abs(entry["share"] or 0.0))
    has_norms = any(entry["norm"] is not None for entry in shown)
    names = ["layer", "head", "share", *(["norm", "residual", "cosine to output"] if has_norms else [])]
    rows = []
    for entry in shown:
        row = [_layer(entry), str(entry["head"]), _share(entry)]
        if has_norms:
            row += [_number(entry["norm"]), _number(entry["residual"], resolved=entry["resolved"])]
            row.append(_cosine(entry["cosine_to_output"]))
        rows.append(row)
    return [f"all paths through a head{left}", text_table(names, rows)]


def _sources(sources: list[dict[str, Any]]) -> list[str]:
    sources = [
        entry for entry in sources if entry["share"] != 0 or entry["norm"]
    ]  # biases that are zero say nothing
    shown, left = _most(sources, MOST_SOURCES, key=lambda entry: -abs(entry["share"] or 0.0))
    rows = [
        [
            entry["source"],
            "-" if entry["layer"] is None else str(entry["layer"]),
            _share(entry),
            _number(entry["norm"]),
            _number(entry["residual"], resolved=entry["resolved"]),
        ]
        for entry in shown
    ]
    return [
        f"all paths from a source{left}",
        text_table(["source", "layer", "share", "norm", "residual"], rows),
    ]


def _top(told: dict[str, Any]) -> list[str]:
    search = told["search"]
    if search["exact"]:
        sure = "proven"
    elif search["ranked"] < len(told["top"]):
        sure = "not proven; - where the score is rounding, which has no order"
    elif not search["tells"]:
        sure = "the best found, not proven"
    else:
        sure = f"not proven; none left out scores above {1 + search['gap']:.3g} times the last"
    rows = [
        [
            str(entry["rank"]) if entry["ranked"] else "-",
            entry["path"],
            str(entry["length"]),
            _number(entry["norm"], resolved=entry["norm"] > entry["norm_floor"]),
            _number(entry["residual"], resolved=entry["resolved"]),
            _share(entry),
        ]
        for entry in told["top"]
    ]
    names = ["rank", "head of each layer", "length", "norm", "residual", "share"]
    heading = f"strongest single paths from the input by {search['score']} ({sure})"
    return [heading + _first(told), text_table(names, rows)]


def _pairs(told: dict[str, Any]) -> list[str]:
    shown = told["pairs"][:MOST_PAIRS]
    if not shown:
        return ["no head comes after another, so there are no pairs"]
    rows = [
        [
            f"{_layer(entry['first'])}.{entry['first']['head']}",
            f"{_layer(entry['second'])}.{entry['second']['head']}",
            _signed(entry["share"]),
        ]
        for entry in shown
    ]
    return ["all paths through two heads, layer.head", text_table(["first", "second", "share"], rows)]


def _samples(told: dict[str, Any]) -> list[str]:
    gaps = {(entry["length"], entry["mode"]): entry for entry in told["gaps"]}
    rows = []
    for entry in told["samples"]:
        gap = gaps.get((entry["length"], entry["mode"]))
        rows.append(
            [
                str(entry["length"]),
                entry["mode"],
                _interval(entry) if entry["resolved"] else f"at most {entry['mean']:.3g}{UNRESOLVED}",
                "-" if gap is None else _interval(gap),
                f"{entry['count']}" + (" (all)" if entry["exact"] else ""),
            ]
        )
    names = ["length", "single paths", "residual ratio (95%)", "gap to frozen (95%)", "looked at"]
    return [
        f"single paths, in the decomposition and re-run alone; geometric means{_first(told)}",
        text_table(names, rows),
    ]


def _pruning(told: dict[str, Any]) -> list[str]:
    found = told["pruning"]
    first = [f"{_layer(entry)}.{entry['head']}" for entry in found["scores"][:MOST_HEADS]]
    removed = found["curves"][0]["removed"]
    rows = [
        [curve["method"], *(_number(value) for value in curve["lost"]), _number(curve["area"])]
        for curve in found["curves"]
    ]
    names = ["chosen by", *(str(count) for count in removed), "mean"]
    return [
        f"heads the output needs least, as layer.head{_first(told)}: {', '.join(first)}",
        f"{found['of']} when so many heads are removed and the network is run again",
        text_table(names, rows),
    ]


def _first(told: dict[str, Any]) -> str:
    """Single paths and pruning are those of one text; said where there are several."""
    return "" if told["identity"]["texts"] == 1 else ", of the first text"


def _by_mlps(told: dict[str, Any]) -> list[str]:
    entries = [entry for entry in told["mlps"] if entry["paths"] or entry["norm"]]
    counts = sorted({entry["mlps"] for entry in entries})
    shares = {(entry["length"], entry["mlps"]): _share(entry) for entry in entries}
    lengths = sorted({entry["length"] for entry in entries})
    rows = [[str(length), *(shares.get((length, mlps), "") for mlps in counts)] for length in lengths]
    return ["shares by length and number of MLPs", text_table(["length", *map(str, counts)], rows)]


def _most(entries: list[dict[str, Any]], most: int, key: Any) -> tuple[list[dict[str, Any]], str]:
    """The strongest entries, and in words how many were left out."""
    shown: Sequence[dict[str, Any]] = sorted(entries, key=key)[:most]
    return list(shown), f"; the strongest {most} of {len(entries)}" if len(entries) > most else ""


def _layer(entry: dict[str, Any]) -> str:
    return str(entry["layer"]) + ("" if entry["site"] == "attention" else f" {entry['site']}")


def _count(count: int) -> str:
    from rankscope.studies.paths_words import float_text

    return float_text(count)


def _share(entry: dict[str, Any]) -> str:
    """A share, with a star where it is not above its floor."""
    share, floor = entry["share"], entry["share_floor"]
    is_noise = share is not None and floor is not None and abs(share) <= floor
    return _signed(share) + (UNRESOLVED if is_noise else "")


def _signed(value: float | None) -> str:
    return (
        "-"
        if value is None
        else f"{100 * value:+.2f}%"
        if abs(value) >= 1e-4 or value == 0
        else f"{100 * value:+.0e}%"
    )


def _number(value: float | None, *, resolved: bool | None = True) -> str:
    return "-" if value is None else f"{value:.3g}" + ("" if resolved else UNRESOLVED)


def _cosine(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(entry: dict[str, Any]) -> str:
    return f"{entry['mean']:.3g} ({entry['low']:.3g} to {entry['high']:.3g})"
