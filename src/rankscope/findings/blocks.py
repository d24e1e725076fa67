"""Views over the table of a finding that several pages show: means by layer as a table, and as curves."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rankscope.charts import Line, Panel, Point
from rankscope.core.words import count, number, power
from rankscope.document import Cell, Column, Notes, Prose, Section, Tabular

if TYPE_CHECKING:
    import polars as pl

    from rankscope.results import Table
    from rankscope.results.statistics import LayerMean

LINES = ("variant", "mask", "norm", "model", "semantics", "site", "head", "dim")
"""Columns that tell networks and places of measurement apart, in the order in which they are named."""

LN10 = math.log(10.0)

TAGS = {
    "frobenius": "Frobenius norm",
    "composite": "composite norm",
    "spectral": "spectral norm",
    "l1": "l1 norm",
    "l2": "l2 norm",
    "linf": "linf norm",
    "mean": "",
    "off_diagonal": "mean over pairs of tokens",
    "unit": "unit tokens",
}
"""Words for what stands in the brackets of a definition; that the mean token is subtracted needs none."""

ROUNDING_ALONE = "not above its rounding floor, the value that rounding errors alone could produce"
"""What a star behind a number means, and what a floor is."""


HOW_TO_READ = "How to read this"


def how_to_read(lines: Sequence[str]) -> tuple[Section, Section]:
    """What the words of an output mean, in a terminal and on a page; it follows the conclusion."""
    return Section(HOW_TO_READ, [Notes(lines)], only="text"), Section(
        HOW_TO_READ, [Prose(lines)], only="html"
    )


def legend(lines: Sequence[str]) -> Prose:
    """What the columns and marks of a table mean, one line each."""
    return Prose(lines, "Legend")


def in_words(definition: str) -> str:
    """A definition in words, without its id.

    >>> in_words("residual_ratio[composite,mean]"), in_words("diameter[l2]")
    ('residual ratio (composite norm)', 'diameter (l2 norm)')
    """
    name, _, tags = definition.removesuffix("]").partition("[")
    words = ", ".join(filter(None, (TAGS.get(tag, tag.replace("_", " ")) for tag in tags.split(","))))
    return f"{name.replace('_', ' ')} ({words})" if words else name.replace("_", " ")


def heading(definition: str) -> str:
    """A definition as a heading: its words, then its id.

    >>> heading("residual_ratio[composite,mean]")
    'Residual ratio (composite norm): residual_ratio[composite,mean]'
    """
    words = in_words(definition)
    return f"{words[:1].upper()}{words[1:]}: {definition}"


def varying(table: "Table", names: Sequence[str] = LINES) -> list[str]:
    """Those of the columns in which rows differ."""
    return [name for name in names if name in table.frame.columns and table.frame[name].n_unique() > 1]


def mean_by_layer(table: "Table", definition: str, *, most: int = 13, note: str = "") -> Tabular:
    """One line per network, one column per layer: the mean over seeds and texts; of many layers an even choice.

    Means of residuals, ratios and diameters are geometric, because layers multiply them. A cell in which some number is
    not above its floor is faint and ends in a star.
    """
    from rankscope.findings.pivot import pivot
    from rankscope.results import UNRESOLVED_MARK

    own = table.where(definition=definition)
    names = varying(own)
    frame = pivot(own, rows=[*names, "definition"])
    layers = [name for name in frame.columns if name.isdecimal()]
    shown = [layers[at] for at in even(len(layers), most)]
    rows = list[list[Cell | str]]()
    for row in frame.iter_rows(named=True):
        cells = [row[layer] or "" for layer in shown]
        rows.append(
            [*(str(row[name]) for name in names), *(Cell(c, c.endswith(UNRESOLVED_MARK)) for c in cells)]
        )
    columns = [*(Column(name, "name") for name in names), *(Column(layer) for layer in shown)]
    return Tabular(columns=columns, rows=rows, title=heading(definition), note=note)


def text_lengths(table: "Table", texts: int, tokens: float) -> str:
    """How many texts of how many tokens; "on average" unless the rows show that every text has as many."""
    kept = (
        table.frame.filter(table.frame["sample"].is_not_null()) if "tokens" in table.frame.columns else None
    )
    is_whole = kept is not None and kept["sample"].n_unique() == texts
    is_alike = texts <= 1 or (kept is not None and is_whole and kept["tokens"].n_unique() == 1)
    return f"{count(texts, 'text')} of {number(tokens)} tokens{'' if is_alike else ' on average'}"


def curves(table: "Table", definition: str, *, title: str, notes: Sequence[str] = ()) -> Panel:
    """One line per network over layers: the geometric mean, and a band from the smallest to the largest."""
    from rankscope.results import layer_summary
    from rankscope.results.statistics import GROUP, LayerMean
    from rankscope.results.table import read_rows

    own = table.where(definition=definition)
    names = varying(own)
    summary = layer_summary(own, by=[name for name in names if name not in GROUP])
    lines = []
    for key, rows in summary.group_by(*(names or ["definition"]), maintain_order=True):
        name = " ".join(_shown(at, one) for at, one in zip(names, key, strict=False)) if names else ""
        lines.append(
            Line(name=name, points=[_point(row, name) for row in read_rows(rows.sort("layer"), LayerMean)])
        )
    floors = _floors(summary)
    if floors:
        lines.append(Line(name="floor", points=floors, style="dotted", color=-1, dots=False))
    name = definition.partition("[")[0].replace("_", " ")
    return Panel(title=title, lines=lines, value=name, notes=[definition, *notes])


def _shown(column: str, value: object) -> str:
    return f"dim {value}" if column == "dim" else str(value)


def split_curves(table: "Table", definition: str, *, title: str) -> Panel:
    """The same of the split pass, with ordinary arithmetic beside it, and the floor of the latter."""
    import polars as pl

    panel = curves(table, definition, title=title)
    own = table.where(definition=definition).frame
    ordinary = own.group_by("layer", *varying(table.where(definition=definition)), maintain_order=True).agg(
        pl.when(pl.col("float_value") > 0).then(pl.col("float_value").log10()).mean().alias("log10"),
        pl.when(pl.col("float_floor") > 0).then(pl.col("float_floor").log10()).max().alias("floor"),
    )
    rings = [
        Point(int(layer), y, f"ordinary arithmetic: {power(y * LN10)}", hollow=True, faint=True)
        for layer, y in ordinary.select("layer", "log10").iter_rows()
        if y is not None
    ]
    floors = ordinary.group_by("layer").agg(pl.col("floor").max()).drop_nulls().sort("layer")
    level = [Point(int(layer), floor) for layer, floor in floors.iter_rows()]
    beside = [
        Line(name="ordinary", points=rings, style="none", color=-1),
        Line(name="its floor", points=level, style="dotted", color=-1, dots=False),
    ]
    lines = [line for line in panel.lines if line.name != "floor"]
    return replace(panel, lines=[*(line for line in beside if line.points), *lines])


def on_one_axis(panels: Sequence[Panel]) -> list[Panel]:
    """The same panels with one value axis, so that they can be compared by eye."""
    found = [
        one
        for panel in panels
        for line in panel.lines
        for point in line.points
        for one in (point.y, point.low, point.high)
        if one is not None
    ]
    ends = (min(found), max(found)) if found else ()
    return [replace(panel, inside=ends) for panel in panels]


def _point(row: "LayerMean", name: str) -> Point:
    y = row.log10_mean
    words = f"{name or 'mean'}: {power(None if y is None else y * LN10)}"
    if row.count > 1 and row.log10_min is not None and row.log10_max is not None:
        words += f" ({power(row.log10_min * LN10)} to {power(row.log10_max * LN10)})"
    resolved = row.share_resolved == 1.0
    return Point(
        row.layer,
        y,
        words if resolved else f"{words}, not above its floor",
        low=row.log10_min,
        high=row.log10_max,
        hollow=not resolved,
    )


def _floors(summary: "pl.DataFrame") -> list[Point]:
    """The largest floor of every layer, where there is one."""
    import polars as pl

    found = (
        summary.filter(pl.col("log10_floor").is_finite()).group_by("layer").agg(pl.col("log10_floor").max())
    )
    return [Point(int(layer), floor) for layer, floor in found.sort("layer").iter_rows()]


def even(count: int, most: int) -> list[int]:
    """Places of an even choice of that many, with both ends.

    >>> even(5, 13), even(100, 5)
    ([0, 1, 2, 3, 4], [0, 25, 50, 74, 99])
    """
    if count <= most:
        return list(range(count))
    return [round(at * (count - 1) / (most - 1)) for at in range(most)]


def facts_of(pairs: Sequence[tuple[str, float | None]]) -> list[tuple[str, str]]:
    """Names and numbers, as text."""
    return [(name, number(value)) for name, value in pairs]
