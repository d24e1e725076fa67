"""Layers by heads: what all paths through each head give to the output."""

import json
import math
from typing import Any, Literal

from rankscope.errors import ConfigError
from rankscope.plots.axes import log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.heat_colors import VIRIDIS, ink_on, viridis
from rankscope.plots.paths_colors import ADDS, ON_PAPER, TAKES, largest, signed_color, signed_place
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.paths_sections import HeadValue, Place, heads_of, name_of, places_of
from rankscope.plots.paths_words import head_words, of_heads, percent, short_percent
from rankscope.plots.scan_entries import clipped, number
from rankscope.plots.style import GRAY, INK
from rankscope.results import UNRESOLVED_MARK, Table

HeadColor = Literal["share", "norm"]

WIDEST, CELL, SMALLEST = 720, 40, 8
CELL_HIGH, HIGHEST = 24, 760
NUMBERS_FROM = 34
"""Width of a cell, in pixels, that a number fits in."""

MOST_NAMES = 33
BESIDE = 110


def heads_map(table: Table, *, value: str = "share", title: str | None = None) -> Chart:
    """A cell per head, first layer at the top: blue adds to the output, vermilion works against it, white is nothing.

    A share counts all paths through the head, so heads of one layer sum to what does not pass by that layer (the bars
    beside), and all heads together count a path once for every head on it. ``value="norm"`` colors by the logarithm
    of the norm instead. A star marks what is not above its rounding floor; a layer with fewer heads leaves a gap.
    """
    return finished(heads_part(table, value=value, title=title))


def heads_part(table: Table, *, value: str = "share", title: str | None = None) -> Any:
    """The same without settings, to be put beside other charts."""
    if value not in ("share", "norm"):
        raise ConfigError(f"heads are colored by 'share' or by 'norm', not by {value!r}")
    places, heads = places_of(table), heads_of(table)
    cells, legend = _by_share(heads, places) if value == "share" else _by_norm(heads, places)
    columns = max(place.heads for place in places)
    wide = min(CELL, max(SMALLEST, WIDEST // columns))
    high = min(CELL_HIGH, max(SMALLEST, HIGHEST // len(places)))
    parts = [_cells(cells, places, legend, wide, high)]
    if value == "share":
        parts.append(_layers(heads, places, high))
    whole: Any = alt.hconcat(*parts, spacing=14).resolve_scale(color="independent")
    words = "What runs through each head" if value == "share" else "The norm of all paths through each head"
    name = clipped(name_of(table))
    notes = [
        *([name] if name else []), of_heads(places), "first layer at the top",
        *([f"{UNRESOLVED_MARK} not above the rounding floor"] if not all(one.resolved for one in heads) else []),
    ]  # fmt: skip
    heading = alt.TitleParams(title or words, subtitle=lines_of(notes, wide * columns + 60))
    return whole.properties(title=heading, description=heads_words(heads, places))


def heads_words(heads: list[HeadValue], places: list[Place]) -> str:
    """Alternative text: the heads with the largest shares of either sign."""
    known = sorted((one for one in heads if one.share is not None), key=lambda one: one.share or 0.0)
    sentences = [f"Shares of the output that run through each of {len(heads)} heads, {of_heads(places)}."]
    if known:
        best = [f"{head_words(places[one.place], one.head)} {percent(one.share)}" for one in known[:-4:-1]]
        sentences.append(f"Largest: {', '.join(best)}.")
        if (known[0].share or 0.0) < 0:
            least = f"{head_words(places[known[0].place], known[0].head)} {percent(known[0].share)}"
            sentences.append(f"Most against the output: {least}.")
    return " ".join(sentences)


def layer_sums(heads: list[HeadValue], places: list[Place]) -> list[float | None]:
    """For every attention part the share of the output that does not pass it by; None unless all heads are known."""
    sums: list[float | None] = []
    for at, place in enumerate(places):
        own = [one.share for one in heads if one.place == at and one.share is not None]
        sums.append(sum(own) if len(own) == place.heads else None)
    return sums


def _by_share(heads: list[HeadValue], places: list[Place]) -> tuple[list[Row], Any]:
    most = largest(one.share for one in heads)
    cells = [
        _cell(one, places, signed_place(one.share, most), short_percent(one.share, sign="").removesuffix("%"))
        for one in heads
        if one.share is not None
    ]
    for cell in cells:
        cell["is_dark"] = ink_on(signed_color(cell["at"])) == "#fff"
    names = [percent(sign * most * part) for sign, part in ((-1, 1), (-1, 0.25), (0, 0), (1, 0.25), (1, 1))]
    scale = alt.Scale(domain=[-1, 1], range=list(ON_PAPER), interpolate="rgb")
    return cells, _color(
        scale, [-1.0, -0.5, 0.0, 0.5, 1.0], names, "share of the output through the head, cells in percent"
    )


def _by_norm(heads: list[HeadValue], places: list[Place]) -> tuple[list[Row], Any]:
    sizes = [one.norm for one in heads if one.norm]
    low, high = (math.log10(min(sizes)), math.log10(max(sizes))) if sizes else (0.0, 1.0)
    high = high if high > low else low + 1.0
    cells = [_cell(one, places, math.log10(one.norm), number(one.norm, 2)) for one in heads if one.norm]
    for cell in cells:
        cell["is_dark"] = ink_on(viridis((cell["at"] - low) / (high - low))) == "#fff"
    ticks = log_ticks(low, high)
    scale = alt.Scale(domain=[low, high], range=list(VIRIDIS), interpolate="rgb")
    return cells, _color(scale, ticks.positions, ticks.labels, "norm of all paths through the head")


def _cell(one: HeadValue, places: list[Place], at: float, text: str) -> Row:
    return {
        "row": one.place,
        "head": one.head,
        "at": at,
        "text": text + ("" if one.resolved else UNRESOLVED_MARK),
        "low": not one.resolved,
        "name": head_words(places[one.place], one.head),
        "share": percent(one.share, 3),
        "norm": number(one.norm),
        "residual": number(one.residual),
        "cosine": number(one.cosine_to_output),
    }


def _color(scale: Any, values: list[float], names: list[str], title: str) -> Any:
    looked_up = f"{json.dumps(names)}[indexof({json.dumps(values)}, datum.value)]"
    legend = alt.Legend(
        orient="bottom", title=title, direction="horizontal", gradientLength=300, gradientThickness=10, values=values,
        labelExpr=looked_up, titleOrient="top", titleLimit=420, tickCount=len(values),
    )  # fmt: skip
    return alt.Color("at:Q", scale=scale, legend=legend)


def _row(places: list[Place], *, labels: bool) -> Any:
    names = [clipped(place.label, 30) for place in places]
    step = math.ceil(len(places) / MOST_NAMES)
    is_named = all(name.isdecimal() for name in names)
    axis = alt.Axis(
        title="layer" if labels else None, values=list(range(0, len(places), step)), labels=labels, ticks=False,
        domain=False, grid=False, labelExpr=f"{json.dumps(names)}[datum.value]", labelOverlap=False, labelPadding=6,
        labelLimit=160, titleAngle=0 if is_named else 270, titleAlign="right" if is_named else "center",
    )  # fmt: skip
    return alt.Y("row:O", axis=axis, scale=alt.Scale(domain=list(range(len(places)))))


def _cells(cells: list[Row], places: list[Place], color: Any, wide: int, high: int) -> Any:
    columns = list(range(max(place.heads for place in places)))
    step = math.ceil(len(columns) / MOST_NAMES)
    axis = alt.Axis(
        title="head", values=columns[::step], labelAngle=0, ticks=False, domain=False, grid=False,
        labelOverlap=False,
    )  # fmt: skip
    x = alt.X("head:O", axis=axis, scale=alt.Scale(domain=columns))
    base = rows_chart(cells).encode(x=x, y=_row(places, labels=True))
    tooltip = [
        alt.Tooltip(f"{field}:N", title=title)
        for field, title in (
            ("name", "head"), ("share", "share of the output"), ("norm", "norm"), ("residual", "residual"),
            ("cosine", "cosine to the output"), ("low", "below the rounding floor"),
        )
    ]  # fmt: skip
    edge = min(1.0, min(wide, high) / 16)
    marks = [base.mark_rect(stroke="#c9ced6", strokeWidth=0.6 * edge).encode(color=color, tooltip=tooltip)]
    ink = alt.when("datum.is_dark").then(alt.value("white")).otherwise(alt.value(INK))
    if wide >= NUMBERS_FROM and high >= CELL_HIGH - 6:
        marks.append(base.mark_text(fontSize=10).encode(text="text:N", color=ink))
    else:
        star = base.transform_filter("datum.low").mark_text(text="*", fontSize=min(11, high), dy=high / 8)
        marks.append(star.encode(color=ink))
    return alt.layer(*marks).properties(
        width=wide * len(columns), height=high * len(places), view=alt.ViewConfig(stroke=None)
    )


def _layers(heads: list[HeadValue], places: list[Place], high: int) -> Any:
    """A bar per layer: what its heads carry together."""
    rows: list[Row] = [
        {
            "row": at, "sum": total, "color": ADDS if total >= 0 else TAKES, "side": total >= 0,
            "text": short_percent(total, sign=""),
        }
        for at, total in enumerate(layer_sums(heads, places))
        if total is not None
    ]  # fmt: skip
    sums = [row["sum"] for row in rows]
    low, high_end = min([0.0, *sums]), max([0.0, *sums])
    room = 0.45 * ((high_end - low) or 1.0)
    scale = alt.Scale(domain=[low - (room if low < 0 else 0.0), high_end + room], nice=False)
    base = rows_chart(rows).encode(y=_row(places, labels=False))
    x = alt.X("sum:Q", scale=scale, axis=None)
    bar = base.mark_bar(size=max(2.0, 0.62 * high)).encode(x=x, color=alt.Color("color:N", scale=None))
    zero = alt.Chart().mark_rule(color=GRAY, strokeWidth=0.8).encode(x=alt.XDatum(0, scale=scale, axis=None))
    marks: list[Any] = [bar, zero]
    if high >= 11:
        for side, align, dx in (("datum.side", "left", 4), ("!datum.side", "right", -4)):
            text = base.transform_filter(side).mark_text(align=align, dx=dx, fontSize=10, color=INK)
            marks.append(text.encode(x=x, text="text:N"))
    return alt.layer(*marks).properties(
        width=BESIDE, height=high * len(places), view=alt.ViewConfig(stroke=None),
        title=alt.TitleParams("all heads of a layer", fontSize=11, fontWeight="normal", anchor="middle", offset=4),
    )  # fmt: skip
