"""Groups of significant changes, and how one of them reads."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import polars as pl

SITES = {
    "block": "after the block",
    "attention": "at the attention output",
    "mlp": "at the MLP output",
    "final": "after the final norm",
}

_GROUP = ("scan", "stack", "site", "definition", "at", "direction")


def by_size(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows, largest changes first, with their ``size``: change relative to the larger of before and after.

    Cosines have a scale of their own and may be zero, so their size is the change itself.
    """
    larger = pl.max_horizontal(pl.col("before").abs(), pl.col("after").abs())
    scale = pl.when(pl.col("measure") == "cosine").then(1.0).otherwise(larger)
    size = pl.when(scale > 0).then(pl.col("change").abs() / scale).otherwise(0.0)
    return frame.with_columns(size.alias("size")).sort("size", descending=True, maintain_order=True)


def findings_of(judged: pl.DataFrame) -> list[dict[str, Any]]:
    """Significant changes in groups of neighboring layers that moved the same way, largest first."""
    rows = by_size(judged.filter(pl.col("significant"))).with_columns(
        pl.when(pl.col("change") > 0).then(pl.lit("rose")).otherwise(pl.lit("fell")).alias("direction")
    )
    found = []
    for key, members in rows.sort(*_GROUP, "layer").group_by(*_GROUP, maintain_order=True):
        for run in _runs(members.to_dicts()):
            largest = max(run, key=lambda row: row["size"])
            found.append(_finding(dict(zip(_GROUP, key, strict=True)), run, largest))
    return sorted(found, key=lambda one: -one["size"])


def _runs(rows: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in order of their layer, cut where a layer is left out."""
    layers = sorted({row["layer"] or 0 for row in rows})
    for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        inside = {layer for _, layer in run}
        yield [row for row in rows if (row["layer"] or 0) in inside]


def _finding(group: dict[str, Any], run: Sequence[dict[str, Any]], largest: dict[str, Any]) -> dict[str, Any]:
    finding = {
        **group,
        "layers": [run[0]["layer"], run[-1]["layer"]],
        "numbers": len(run),
        **{
            name: largest[name]
            for name in ("layer", "head", "before", "after", "change", "spread", "z", "size")
        },
    }
    return finding | {"words": _finding_words(finding)}


def _finding_words(finding: dict[str, Any]) -> str:
    first, last = finding["layers"]
    head, layer = finding["head"], finding["layer"]
    what = f"{stack_prefix(finding['stack'])}{finding['definition']} {SITES.get(finding['site'], finding['site'])}"
    if finding["at"] == "last block":
        where, most = " at the last block of each", ""
    elif first == last:
        where, most = f" at layer {first}", ""
    else:
        where, most = f" at layers {first} to {last}", f", most at layer {layer}"
    if head is not None:
        where = f"{where} in {counted(finding['numbers'], 'head')}"
        most = f", most in head {head} of layer {layer}" if finding["numbers"] > 1 else f" (head {head})"
    z = "no spread" if finding["z"] is None else f"{abs(finding['z']):.1f} standard errors"
    return (
        f"{what} {finding['direction']}{where}{most}: {number(finding['before'])} before, "
        f"{number(finding['after'])} after ({z})"
    )


def merged(findings: Sequence[dict[str, Any]]) -> list[str]:
    """One line for all definitions of a measure that moved the same way at the same layers, the largest in full."""
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for one in findings:
        measure = one["definition"].partition("[")[0]
        key = (one["stack"], one["site"], measure, one["at"], one["direction"], *one["layers"])
        groups.setdefault(key, []).append(one)
    return [
        first["words"] + (f"; so did {listed(one['definition'] for one in rest)}" if rest else "")
        for first, *rest in groups.values()
    ]


def number(value: float | None) -> str:
    """Three digits, for reading.

    >>> number(0.123456), number(None)
    ('0.123', '-')
    """
    return "-" if value is None else f"{value:.3g}"


def stack_prefix(stack: str) -> str:
    """What names a stack at the start of a line; nothing for the only one."""
    return "" if stack == "blocks" else f"{stack}: "


def counted(count: int, noun: str) -> str:
    """``1 text``, ``2 texts``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Iterable[object]) -> str:
    """Names with commas."""
    return ", ".join(map(str, names))
