"""A panel as HTML that shows its numbers on hover, touch and arrow keys, without JavaScript.

Curves are an SVG stretched over the box, strokes keep their width; texts are HTML, so a chart fits any width and
stays legible. Every column of the box is the label of a radio button: one tab stop per chart, arrow keys walk along
the layers, and the label that is hovered or focused shows what all lines say there.
"""

from itertools import groupby

from rankscope.plots.markup import Fragment, tag, void
from rankscope.plots.scan_axes import ValueAxis, layer_ticks
from rankscope.plots.scan_entries import FINAL, Entry, clipped, marked, number
from rankscope.plots.scan_panels import Line, Panel, in_words
from rankscope.results.outcome import VANISHING

SIZE = 1000
"""Width and height of the drawing before it is stretched."""

COLORS = 6
"""Line styles that the style sheet knows; further lines start again."""

FLOORS_DIFFER = 2.0

MANY = 30
"""With more columns than this, points are drawn smaller."""

NEAREST_TICK = 0.085
"""How near to the word under the final norm a number may stand, as a share of the width."""


def hover_chart(panel: Panel, *, group: str, start: int | None = None, tall: bool = False) -> Fragment:
    """The panel as a figure. ``group`` is unique on the page; ``start`` is a layer to mark with a line."""
    axis = panel.axis()
    final = [None] if panel.has_final else []
    columns = tag(
        "div",
        *(_column(panel, layer, group) for layer in [*range(panel.first, panel.last + 1), *final]),
        class_="cols",
        role="radiogroup",
        aria_label=f"{panel.title}: values by layer",
    )
    box = tag(
        "div",
        _drawing(panel, axis),
        *_value_ticks(axis),
        *_layer_ticks(panel),
        *_start_mark(panel, start),
        columns,
        class_="box" + (" tall" if tall else "") + (" many" if panel.places > MANY else ""),
    )
    caption = tag(
        "figcaption",
        tag("b", panel.title),
        tag("code", clipped(panel.definition)),
        tag("span", *_legend(panel, axis), class_="legend"),
    )
    notes = " ".join(_notes(panel, axis))
    return tag(
        "figure",
        caption,
        tag("div", box, class_="plot"),
        *([tag("p", notes, class_="note")] if notes else []),
        class_="chart",
        aria_label=in_words(panel),
    )


def _drawing(panel: Panel, axis: ValueAxis) -> Fragment:
    grid = "".join(f"M0 {_y(axis.tick_depth(tick))}H{SIZE}" for tick in axis.ticks.positions)
    marks = [
        tag("path", class_="grid", d=grid),
        *(_floors(panel, axis) if axis.has_floor else []),
        *(_band(panel, line, axis, style) for style, line in _styled(panel)),
        *(_curve(panel, line, axis, style) for style, line in _styled(panel)),
        *(mark for style, line in _styled(panel) for mark in _points(panel, line, axis, style)),
    ]
    return tag("svg", *marks, viewBox=f"0 0 {SIZE} {SIZE}", preserveAspectRatio="none", aria_hidden="true")


def _styled(panel: Panel) -> list[tuple[int, Line]]:
    return [(place % COLORS, line) for place, line in enumerate(panel.lines)]


def _curve(panel: Panel, line: Line, axis: ValueAxis, style: int) -> Fragment:
    """The means, with a gap where there is no number and none to the final norm, which is not a layer."""
    parts = []
    for is_drawn, run in groupby(
        line.entries, key=lambda entry: entry.mean is not None and entry.site != FINAL
    ):
        if is_drawn:
            parts.append("M" + "L".join(_at(panel, entry, axis, entry.mean) for entry in run))
    return tag("path", class_=f"line s{style}", d="".join(parts))


def _band(panel: Panel, line: Line, axis: ValueAxis, style: int) -> Fragment:
    """From the smallest to the largest value over texts."""
    parts = []
    known = [
        one for one in line.entries if one.low is not None and one.high is not None and one.site != FINAL
    ]
    for _, run in groupby(enumerate(known), key=lambda pair: pair[1].layer - pair[0]):
        kept = [entry for _, entry in run]
        up = [_at(panel, entry, axis, entry.high) for entry in kept]
        down = [_at(panel, entry, axis, entry.low) for entry in reversed(kept)]
        parts.append("M" + "L".join(up + down) + "Z")
    return tag("path", class_=f"band s{style}", d="".join(parts))


def _points(panel: Panel, line: Line, axis: ValueAxis, style: int) -> list[Fragment]:
    """Dots of no length and round ends, so that stretching leaves them round; hollow where not resolved."""
    known = [entry for entry in line.entries if entry.mean is not None]
    dots = "".join(f"M{_at(panel, entry, axis, entry.mean)}h0" for entry in known)
    hollow = "".join(f"M{_at(panel, entry, axis, entry.mean)}h0" for entry in known if not entry.is_resolved)
    drawn = [tag("path", class_=f"dots s{style}", d=dots)]
    return [*drawn, tag("path", class_="holes", d=hollow)] if hollow else drawn


def _floors(panel: Panel, axis: ValueAxis) -> list[Fragment]:
    """A dashed line over a shade; one per line of the panel where their floors differ by more than two."""
    by_place: dict[float, list[float]] = {}
    for entry in panel.entries:
        if entry.floor is not None:
            by_place.setdefault(panel.place(entry), []).append(entry.floor)
    differ = any(max(floors) > FLOORS_DIFFER * min(floors) for floors in by_place.values())
    lowest = sorted((place, min(floors)) for place, floors in by_place.items())
    shade = _steps(panel, axis, lowest)
    marks = [tag("path", class_="shade", d=f"{shade}V{SIZE}H{_x(panel, lowest[0][0] - 0.5)}Z")]
    if not differ:
        return [*marks, tag("path", class_="floor", d=shade)]
    for style, line in _styled(panel):
        own = [(panel.place(one), one.floor) for one in line.entries if one.floor is not None]
        marks += [tag("path", class_=f"floor s{style}", d=_steps(panel, axis, own))] if own else []
    return marks


def _steps(panel: Panel, axis: ValueAxis, floors: list[tuple[float, float]]) -> str:
    """A level over every column, so that a floor known at one place alone is seen too."""
    parts = []
    for place, floor in floors:
        half = 1.0 if panel.has_final and place > panel.places - 1.5 else 0.5
        parts.append(f"{_x(panel, place - half)} {_y(axis.depth(floor))}H{_x(panel, place + half)}")
    return "M" + "L".join(parts)


def _column(panel: Panel, layer: int | None, group: str) -> Fragment:
    """One layer, or the final norm: a radio button that covers its column, and the note with all values there."""
    here = [
        (style, line.name, entry)
        for style, line in _styled(panel)
        for entry in line.entries
        if (None if entry.site == FINAL else entry.layer) == layer
    ]
    title = "after the final norm" if layer is None else f"layer {layer}"
    rows = [cell for style, name, entry in here for cell in _values(style, name, entry)]
    middle = panel.places - 1 if layer is None else layer - panel.first + 0.5
    tip = tag("span", tag("b", title, class_="at"), *rows, *_floor_line(here), class_="tip")
    return tag(
        "label",
        void("input", type="radio", name=group),
        tip,
        style=f"--f:{middle / panel.places:.3g}",
        class_="double" if layer is None else None,
    )


def _values(style: int, name: str, entry: Entry) -> list[Fragment]:
    """Line, mean, and the spread over texts."""
    notes = [f"± {number(entry.std, 2)}"] if entry.std is not None else []
    if entry.texts > 1 and entry.low is not None and entry.high is not None:
        notes.append(f"{number(entry.low, 2)} to {number(entry.high, 2)}")
    return [
        tag("i", class_=f"key s{style}"),
        tag("span", name),
        tag("b", marked(entry)),
        tag("small", " · ".join(notes)),
    ]


def _floor_line(here: list[tuple[int, str, Entry]]) -> list[Fragment]:
    floors = [entry.floor for _, _, entry in here if entry.floor]
    if not floors:
        return []
    low, high = number(min(floors), 2), number(max(floors), 2)
    return [tag("small", f"rounding floor {low}" + (f" to {high}" if high != low else ""), class_="under")]


def _value_ticks(axis: ValueAxis) -> list[Fragment]:
    return [
        tag("span", text, class_="ytick", style=f"top:{100 * axis.tick_depth(position):.4g}%")
        for position, text in zip(axis.ticks.positions, axis.ticks.labels, strict=True)
    ]


def _layer_ticks(panel: Panel) -> list[Fragment]:
    places = [
        (layer - panel.first + 0.5, str(layer)) for layer in layer_ticks(panel.last) if layer >= panel.first
    ]
    if panel.has_final:
        end = panel.places - 1
        # Too near to the word, the last number would run into it.
        places = [one for one in places if end - one[0] >= NEAREST_TICK * panel.places]
        places.append((end, "final"))
    return [
        tag("span", text, class_="xtick", style=f"left:{100 * place / panel.places:.4g}%")
        for place, text in places
    ]


def _start_mark(panel: Panel, start: int | None) -> list[Fragment]:
    if start is None or not panel.first <= start <= panel.last:
        return []
    spread = 100 * (start - panel.first + 0.5) / panel.places
    words = tag("span", f"starts at layer {start}", class_="left" if spread > 50 else None)
    return [tag("div", words, class_="start", style=f"left:{spread:.4g}%")]


def _legend(panel: Panel, axis: ValueAxis) -> list[Fragment]:
    names = [
        tag("span", tag("i", class_=_key(line, style)), tag("bdi", line.name))
        for style, line in _styled(panel)
    ]
    floor = [tag("span", tag("i", class_="key floorkey"), "rounding floor")] if axis.has_floor else []
    return names + floor


def _key(line: Line, style: int) -> str:
    """A piece of the line, or a dot if the line is a single one."""
    return f"key s{style}" + (" dot" if len(line.entries) == 1 else "")


def _notes(panel: Panel, axis: ValueAxis) -> list[str]:
    notes = [panel.note] if panel.note else []
    if any(not entry.is_resolved and entry.mean is not None for entry in panel.entries):
        notes.append("Hollow: not above the rounding floor in every text.")
    floors = [entry.floor for entry in panel.entries if entry.floor]
    if axis.is_log and floors and not axis.has_floor and panel.entries[0].measure in VANISHING:
        notes.append(f"The rounding floor, at most {number(max(floors), 2)}, lies below this axis.")
    missing = sum(entry.mean is None for entry in panel.entries)
    if missing:
        notes.append(f"{missing} points without a number are not drawn.")
    return notes


def _at(panel: Panel, entry: Entry, axis: ValueAxis, value: float | None) -> str:
    depth = axis.depth(value if value is not None else axis.bottom, entry.floor)
    return f"{_x(panel, panel.place(entry))} {_y(depth)}"


def _x(panel: Panel, place: float) -> str:
    return f"{SIZE * place / panel.places:.4g}"


def _y(depth: float) -> str:
    return f"{SIZE * depth:.4g}"
