"""Layers by heads as an HTML table: numbers in the cells where there is room, on hover and touch everywhere."""

import math

from rankscope.plots.heat_colors import Shade, step_of
from rankscope.plots.hover_heat import NUMBERS_UP_TO, color_bar
from rankscope.plots.markup import Fragment, joined, tag
from rankscope.plots.paths_colors import largest, step_of_share
from rankscope.plots.paths_heads import HeadColor, heads_words, layer_sums
from rankscope.plots.paths_sections import HeadValue, Place
from rankscope.plots.paths_words import percent, short_percent
from rankscope.plots.scan_entries import clipped, number
from rankscope.results import UNRESOLVED_MARK


def hover_heads(heads: list[HeadValue], places: list[Place], *, value: HeadColor = "share") -> Fragment:
    """A row per attention part, first layer at the top, a column per head, and the colors explained below.

    By share a last column has what all heads of the row carry together. A star marks what is not above its rounding
    floor. Notes hold numbers alone: layer and head come from counters of the style sheet, as there may be thousands.
    """
    cells = {(one.place, one.head): one for one in heads}
    columns = range(max(place.heads for place in places))
    most = largest(one.share for one in heads)
    shade = _shade(heads)
    has_numbers = len(columns) <= NUMBERS_UP_TO
    sums = layer_sums(heads, places) if value == "share" else []
    whole = largest(sums)
    rows = []
    for at, place in enumerate(places):
        own = [cells.get((at, head)) for head in columns[: place.heads]]
        drawn = [_cell(one, place, most if value == "share" else shade, has_numbers) for one in own]
        gaps = [tag("td")] * (len(columns) - place.heads)
        total = [_total(sums[at], whole)] if sums else []
        name = tag("th", clipped(place.label, 30), scope="row")
        rows.append(
            tag("tr", name, *drawn, *gaps, *total, style=f"counter-reset:layer {place.layer} head -1")
        )
    table = tag(
        "table",
        tag("caption", heads_words(heads, places), class_="unseen"),
        tag("thead", _head(len(columns), has_total=bool(sums))),
        tag("tbody", *rows),
        class_="heat heads paths"
        + (" numbers" if has_numbers else "")
        + (" sited" if _is_sited(places) else ""),
        style=f"--n:{len(columns)}",
    )
    return joined(table, _signed_bar(most) if value == "share" else color_bar(shade))


def _is_sited(places: list[Place]) -> bool:
    return any(place.label != str(place.layer) for place in places)


def _shade(heads: list[HeadValue]) -> Shade:
    sizes = [one.norm for one in heads if one.norm] or [1.0]
    low, high = min(sizes), max(sizes)
    return Shade(dark=low, bright=high if high > low else 10 * low, is_log=True)


def _head(columns: int, *, has_total: bool) -> Fragment:
    every = -(-columns // NUMBERS_UP_TO)
    names = [tag("th", str(head) if head % every == 0 else "") for head in range(columns)]
    total = [tag("th", "all heads", class_="total")] if has_total else []
    return tag("tr", tag("th", tag("span", "layer"), class_="corner"), *names, *total)


def _cell(one: HeadValue | None, place: Place, scale: float | Shade, has_number: bool) -> Fragment:
    value = None if one is None else one.norm if isinstance(scale, Shade) else one.share
    if one is None or value is None or not math.isfinite(value):
        return tag("td", tag("b", number(None)), class_="none")
    mark = "" if one.resolved else UNRESOLVED_MARK
    if isinstance(scale, Shade):
        color, text = f"c{step_of(scale.share(value))}", number(value, 2)
    else:
        color, text = f"v{step_of_share(value, scale)}", short_percent(value, sign="").removesuffix("%")
    look = color if one.resolved else f"{color} low"
    return tag("td", text + mark if has_number else "", tag("b", _note(one, place)), class_=look)


def _note(one: HeadValue, place: Place) -> str:
    site = [] if place.label == str(place.layer) else [clipped(place.site, 40)]
    sizes = [
        f"{name} {number(size, 3)}"
        for name, size in (("norm", one.norm), ("residual", one.residual))
        if size is not None
    ]
    floor = [] if one.resolved else ["not above the rounding floor"]
    return " · ".join([f"{percent(one.share, 3)} of the output", *sizes, *site, *floor])


def _total(total: float | None, most: float) -> Fragment:
    """What all heads carry, with a bar as long as its size."""
    if total is None:
        return tag("td", number(None), class_="total")
    side = "takes" if total < 0 else "adds"
    return tag(
        "td", tag("i", class_=f"key fill {side}", style=f"--w:{abs(total) / most:.3g}"),
        tag("span", short_percent(total, sign="")), class_="total",
    )  # fmt: skip


def _signed_bar(most: float) -> Fragment:
    """The colors from most negative to most positive, by the square root of the share."""
    ends = (-most, -most / 4, 0.0, most / 4, most)
    scale = tag("span", *(tag("span", percent(end)) for end in ends), class_="ends")
    return tag("div", tag("i", class_="signed"), scale, class_="colors signedcolors")
