"""The writer: a picture as SVG that shows its numbers on hover, touch and the tab key, without any script.

Colors stand on the elements themselves, so that a file looks the same everywhere; each element also has a class, by
which a page in dark colors draws it otherwise (``PAGE_STYLE``).
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import groupby, pairwise

from markupsafe import Markup

from rankscope.charts.axes import BROAD, Axis, count_ticks, decade_ticks, double_ticks, linear_axis, log_axis
from rankscope.charts.colors import BLIND_SAFE, ON_DARK, ink_on, viridis
from rankscope.charts.markup import Attribute, legal, tag
from rankscope.charts.specs import (
    WIDTH,
    Bar,
    Bars,
    CustomPicture,
    Grid,
    GridCell,
    Line,
    Panel,
    Picture,
    Plane,
    Point,
    Scale,
    Spot,
    Square,
)
from rankscope.core.words import clipped, number

TOP, BOTTOM = 30, 44
"""Space above and below the drawing: title, names of the axis."""

LETTER = 0.56
"""Mean width of a letter, as a share of the font's size. SVG cannot measure text, so room is estimated."""

NAME_SIZE, NOTE_SIZE, ROW = 11, 10.5, 14
"""Font sizes of names and of notes, and the height of a line of text."""

LONGEST_NAME = 30
"""Letters of the name of a line, a row or a bar; longer ones are cut, and the tip has them whole."""

MOST_TIPS = 14
"""Lines of one tip; more do not fit beside a chart."""

MOST_BOARDS = 150
"""Cells of a grid that have a board each, which keys reach too. A board is a thousand letters of markup, and maps of a
deep model have thousands of cells: those have the plain tip of the browser."""

MOST_NAMES = 40
"""Lines whose names stand at their ends."""

WIDEST_SQUARE, SQUARE_GAP = 360.0, 10.0
"""The side of a square of a plane that stands alone, and the space between several."""

TOUCH = 6.0
"""Spots nearer than about this are looked at together."""

MOST_SPOTS = 80
"""Places of one square that say something when they are looked at."""

THIN = 0.3
"""A point of a way that is nearer than this to the line without it is left out."""

NEAREST = 26
"""Dots between the middle of a name below the axis and that of the next number; nearer ones would touch."""

FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
INK, SOFT, GRAY, RULE = "#1c2128", "#59616c", "#8b939d", "#e4e7eb"
DASHES = {"solid": None, "dashed": "6 4", "dotted": "1.5 3", "none": None}

STYLE = Markup(
    ".col{outline:none}.col .tip,.col .guide{visibility:hidden;pointer-events:none}"
    ".col:hover .tip,.col:focus .tip,.col:hover .guide,.col:focus .guide{visibility:visible}"
)
"""What makes tips appear; part of every picture."""

PAGE_STYLE = (
    "svg.chart{display:block;width:100%;height:auto}svg.chart.narrow{max-width:36rem}"
    "@media screen and (max-width:40rem){svg.chart{min-width:34rem}svg.chart.broad{min-width:52rem}"
    "svg.chart.narrow{min-width:0}}"
    "@media screen and (prefers-color-scheme:dark){"
    ".chart .back,.chart .hole{fill:var(--paper)}.chart .ink{fill:var(--ink)}.chart .soft{fill:var(--soft)}"
    ".chart .rule{stroke:var(--grid)}.chart .board{fill:var(--tint);stroke:var(--line)}"
    + "".join(
        f".chart .s{place}{{stroke:{color}}}.chart .f{place}{{fill:{color}}}"
        for place, color in enumerate(ON_DARK)
    )
    + "}"
)
"""What a page adds: width, and other colors where the reader prefers dark ones."""


@dataclass(frozen=True, slots=True)
class Room:
    """The least space that a picture leaves left, right and above its drawing, so that it is aligned with others."""

    left: float = 0.0
    right: float = 0.0
    top: float = 0.0


ALONE = Room()


def room_of(pictures: Sequence[Picture]) -> Room:
    """The space that the neediest of these pictures takes."""
    heads = [_head(one)[1] for one in pictures if not isinstance(one, CustomPicture)]
    sides = [_sides(one) for one in pictures if isinstance(one, Panel)]
    lefts, rights = zip(*sides, strict=True) if sides else ((), ())
    return Room(max(lefts, default=0.0), max(rights, default=0.0), max(heads, default=0.0))


def to_svg(picture: Picture, *, tips: bool = True, room: Room = ALONE) -> Markup:
    """The picture. Without ``tips`` it is still: for files that cannot be hovered."""
    if isinstance(picture, CustomPicture):
        return legal(picture.draw())
    drawing = _drawing_of(picture, room)
    body = Markup("").join([*drawing.parts, *(drawing.tips if tips else ())])
    style = tag("style", STYLE) if tips else Markup("")
    back = tag("rect", class_="back", width="100%", height="100%", fill="#fff")
    whole = tag(
        "svg",
        style,
        back,
        body,
        xmlns="http://www.w3.org/2000/svg",
        class_=f"chart{' narrow' if picture.width < WIDTH else ' broad' if picture.width > WIDTH else ''}",
        width=picture.width,
        height=f"{drawing.height:g}",
        viewBox=f"0 0 {picture.width} {drawing.height:g}",
        role="group",
        aria_label=clipped(". ".join([picture.title, *picture.notes]), 400),
        font_family=FONTS,
    )
    return legal(whole)


def size_of(picture: Picture, room: Room = ALONE) -> tuple[float, float]:
    """Width and height; of a picture that other code draws as that code says."""
    if not isinstance(picture, CustomPicture):
        return picture.width, _drawing_of(picture, room).height
    root = re.search(r"<svg\b[^>]*>", picture.draw())
    found = [re.search(rf'\b{name}="([0-9.]+)', root[0] if root else "") for name in ("width", "height")]
    if None in found:
        raise ValueError(f"the picture {picture.title!r} is no SVG with a width and a height")
    width, height = (float(one[1]) for one in found if one)
    return width, height


@dataclass(frozen=True, slots=True)
class _Drawing:
    parts: Sequence[Markup]
    tips: Sequence[Markup]
    height: float


@singledispatch
def _drawing_of(picture: object, room: Room) -> _Drawing:
    raise TypeError(f"{type(picture).__name__} is no picture; expected a Panel, a Grid, Bars or a Plane")


# ---------------------------------------------------------------------------------------------------------- panels


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the values of a panel stand on paper."""

    axis: Axis
    first: float
    last: float
    left: float
    right: float
    top: float
    bottom: float
    along: Scale = "linear"

    def x(self, value: float) -> float:
        if self.last == self.first:  # a single place stands in the middle
            return (self.left + self.right) / 2
        if self.along == "log":
            share = math.log(value / self.first) / math.log(self.last / self.first)
        else:
            share = (value - self.first) / (self.last - self.first)
        return self.left + (self.right - self.left) * share

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * self.axis.at(value)

    def at(self, point: Point, value: float) -> str:
        return f"{self.x(point.x):.1f} {self.y(value):.1f}"


@_drawing_of.register
def _(panel: Panel, room: Room) -> _Drawing:
    head, top = _head(panel, room.top)
    lines = _drawn_lines(panel)
    if not lines:
        return _empty(panel, head, top, "There is no number to draw.")
    colors = _colors(panel.lines)
    inks = [color for line, color in zip(panel.lines, colors, strict=True) if line in lines]
    named = [(line, color) for line, color in zip(lines, inks, strict=True) if line.name]
    left, right = _sides(panel)
    height = max(240.0, ROW * len(named[:MOST_NAMES]))
    places = [point.x for line in lines for point in line.points]
    axis = _axis_of(panel, lines)
    frame = _Frame(
        axis=axis,
        first=min(places),
        last=max(places),
        left=max(left, room.left),
        right=panel.width - (max(right, room.right) if named else right),
        top=top,
        bottom=top + height,
        along=panel.along,
    )
    marks = _placed_marks(panel, frame)
    above = ROW * max((mark.row for mark in marks), default=0)  # labels that would meet stand in several rows
    frame = replace(frame, top=frame.top + above, bottom=frame.bottom + above)
    parts = [*head, *_rules_and_ticks(panel, frame), *_drawn_marks(marks, frame)]
    for line, color in zip(lines, inks, strict=True):
        parts += [*_shades(line, color, frame), *_bands(line, color, frame), *_curves(line, color, frame)]
    for line, color in zip(lines, inks, strict=True):
        parts += _dots(line, color, frame, is_small=len(line.points) > 40)
    parts += _names(named[:MOST_NAMES], frame)
    if len(named) > MOST_NAMES:
        parts.append(
            _text(frame.right, frame.bottom + 30, f"and {len(named) - MOST_NAMES} more lines", anchor="end")
        )
    return _Drawing(parts, list(_columns(panel, lines, inks, frame)), frame.bottom + BOTTOM)


def _drawn_lines(panel: Panel) -> list[Line]:
    return [line for line in panel.lines if any(point.y is not None for point in line.points)]


def _sides(panel: Panel) -> tuple[float, float]:
    """The space for the numbers left of the drawing, and for the names of lines right of it."""
    lines = _drawn_lines(panel)
    if not lines:
        return 0.0, 0.0
    names = [clipped(line.name, LONGEST_NAME) for line in lines if line.name][:MOST_NAMES]
    numbers = [words for _, words in _axis_of(panel, lines).ticks]
    left = 34 + LETTER * 10.5 * max(map(len, numbers), default=1)
    return left, 16 + LETTER * NAME_SIZE * max(map(len, names)) if names else 14.0


def _axis_of(panel: Panel, lines: Sequence[Line]) -> Axis:
    found = [
        one
        for line in lines
        for point in line.points
        for one in (point.y, point.low, point.high)
        if one is not None and math.isfinite(one)
    ]
    values = list(panel.inside) or found
    return log_axis(values) if panel.scale == "log" else linear_axis(values)


def _colors(lines: Sequence[Line]) -> list[int]:
    """The color of every line: its own, or the next one; -1 is gray."""
    taken = {line.color for line in lines}
    free = [place for place in range(len(BLIND_SAFE)) if place not in taken] or list(range(len(BLIND_SAFE)))
    found, at = [], 0
    for line in lines:
        found.append(free[at % len(free)] if line.color is None else line.color)
        at += line.color is None
    return found


def _rules_and_ticks(panel: Panel, frame: _Frame) -> Iterator[Markup]:
    """Grid lines, ticks, names of the axes, and places that are marked."""
    for share, words in frame.axis.ticks:
        place = frame.bottom - (frame.bottom - frame.top) * share
        yield tag("path", class_="rule", stroke=RULE, d=f"M{frame.left:.0f} {place:.1f}H{frame.right:.1f}")
        yield _text(frame.left - 7, place + 3.5, words, anchor="end")
    named = dict(panel.places)
    numbered = [point.x for line in panel.lines for point in line.points if point.x not in named]
    near = [frame.x(place) for place in named]
    # Where every place has a name, numbers between them would be places at which nothing was measured.
    for place, words in _ticks_along(panel.along, frame.first, max(numbered)) if numbered else ():
        if all(abs(frame.x(place) - other) >= NEAREST for other in near):
            yield _text(frame.x(place), frame.bottom + 16, words, anchor="middle")
    for at, words in named.items():
        yield _text(frame.x(at), frame.bottom + 16, clipped(words, 12), anchor="middle")
    yield _text(
        (frame.left + frame.right) / 2,
        frame.bottom + 34,
        clipped(panel.across) + (", log scale" if panel.along == "log" else ""),
        size=11,
        anchor="middle",
    )
    kind = "" if panel.scale == "linear" else ", log of exponent" if frame.axis.is_deep else ", log scale"
    middle = (frame.top + frame.bottom) / 2
    letters = int((frame.bottom - frame.top) / (LETTER * 11)) - len(kind)
    name = _text(-middle, 13, clipped(panel.value, max(letters, 8)) + kind, size=11, anchor="middle")
    yield tag("g", name, transform="rotate(-90)")


@dataclass(frozen=True, slots=True)
class _Mark:
    """A marked place with its label: where that begins or ends, and in which row above the drawing it stands."""

    x: float
    words: str
    way: str
    row: int


def _placed_marks(panel: Panel, frame: _Frame) -> list[_Mark]:
    """Marks of the places that are drawn; no label meets another one of its row."""
    found, taken = list[_Mark](), list[list[tuple[float, float]]]()
    for place, whole in panel.marks:
        if not frame.first <= place <= frame.last:
            continue
        x, words = frame.x(place), clipped(whole, LONGEST_NAME)
        way = "end" if x > (frame.left + frame.right) / 2 else "start"
        wide = LETTER * 10.5 * len(words) + 6
        ends = (x - wide, x + 6) if way == "end" else (x - 6, x + wide)
        free = (
            row
            for row, others in enumerate(taken)
            if all(ends[1] < low or high < ends[0] for low, high in others)
        )
        row = next(free, len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append(ends)
        found.append(_Mark(x, words, way, row))
    return found


def _drawn_marks(marks: Sequence[_Mark], frame: _Frame) -> Iterator[Markup]:
    for mark in marks:
        line = f"M{mark.x:.1f} {frame.top:.0f}V{frame.bottom:.0f}"  # below all labels, so that it strikes out none
        yield tag("path", stroke=GRAY, stroke_dasharray="2 3", d=line)
        x, y = mark.x + (-3 if mark.way == "start" else 3), frame.top - 5 - ROW * mark.row
        yield _text(x, y, mark.words, anchor=mark.way)


def _ticks_along(along: Scale, first: float, last: float) -> list[tuple[float, str]]:
    """Places along the layers, and what is written there."""
    if along == "log" and last >= BROAD * first:
        return decade_ticks(first, last)
    return [(place, str(place)) for place in (double_ticks if along == "log" else count_ticks)(first, last)]


def _runs(points: Sequence[Point]) -> Iterator[tuple[bool, list[Point]]]:
    """Runs of points that are drawn alike, broken where there is no number. Neighbours share an end."""
    for is_drawn, run in groupby(points, key=lambda point: point.y is not None):
        if not is_drawn:
            continue
        kept = list(run)
        piece = kept[:1]
        for before, point in pairwise(kept):
            if len(piece) > 1 and before.faint != point.faint:
                yield before.faint, piece
                piece = [before]
            piece.append(point)
        yield piece[-1].faint, piece


def _curves(line: Line, color: int, frame: _Frame) -> Iterator[Markup]:
    if line.style == "none":
        return
    for faint, run in _runs(line.points):
        way = "L".join(frame.at(point, point.y) for point in run if point.y is not None)
        yield tag(
            "path",
            class_=_stroke(color, faint),
            fill="none",
            stroke=_ink(color, faint),
            stroke_width=1.8,
            stroke_linejoin="round",
            stroke_dasharray=DASHES[line.style],
            d=f"M{way}",
        )


def _shades(line: Line, color: int, frame: _Frame) -> Iterator[Markup]:
    """Everything below a line that is shaded, half a place beyond its ends, so that a single point is seen too."""
    known = [point for point in line.points if point.y is not None]
    if not line.shade or not known:
        return
    half = (
        0.0 if frame.along == "log" else 0.5 * (frame.right - frame.left) / max(frame.last - frame.first, 1)
    )
    way = [f"{frame.x(point.x):.1f} {frame.y(point.y):.1f}" for point in known if point.y is not None]
    start, end = (max(frame.x(known[0].x) - half, frame.left), min(frame.x(known[-1].x) + half, frame.right))
    first, last = way[0].split()[1], way[-1].split()[1]
    yield tag(
        "path",
        class_=_fill(color, False),
        fill=_ink(color, False),
        fill_opacity=0.13,
        stroke="none",
        d=f"M{start:.1f} {frame.bottom:.1f}V{first}L{'L'.join(way)}H{end:.1f}V{last}V{frame.bottom:.1f}Z",
    )


def _bands(line: Line, color: int, frame: _Frame) -> Iterator[Markup]:
    for is_known, run in groupby(
        line.points, key=lambda point: point.low is not None and point.high is not None
    ):
        if not is_known:
            continue
        kept = list(run)
        if (
            len(kept) == 1 and kept[0].low is not None and kept[0].high is not None
        ):  # no area: a bar in its place
            x, top, bottom = frame.x(kept[0].x), frame.y(kept[0].high), frame.y(kept[0].low)
            yield tag(
                "path",
                class_=_stroke(color, kept[0].faint),
                stroke=_ink(color, kept[0].faint),
                stroke_width=5,
                stroke_opacity=0.25,
                d=f"M{x:.1f} {top:.1f}V{bottom:.1f}",
            )
            continue
        up = [frame.at(point, point.high) for point in kept if point.high is not None]
        down = [frame.at(point, point.low) for point in reversed(kept) if point.low is not None]
        faint = all(point.faint for point in kept)
        yield tag(
            "path",
            class_=_fill(color, faint),
            fill=_ink(color, faint),
            fill_opacity=0.15,
            stroke="none",
            d=f"M{'L'.join(up + down)}Z",
        )


def _dots(line: Line, color: int, frame: _Frame, *, is_small: bool) -> Iterator[Markup]:
    """Dots; rings where hollow; triangles at the end of the axis for what lies beyond it."""
    size = 1.8 if is_small else 3.1
    for point in line.points:
        if point.y is None:
            continue
        x, y, ink = frame.x(point.x), frame.y(point.y), _ink(color, point.faint)
        if frame.axis.is_beyond(point.y):
            way = 6 if frame.axis.at(point.y) == 0.0 else -6
            yield tag(
                "path", class_=_fill(color, point.faint), fill=ink, d=f"M{x - 4:.1f} {y:.1f}h8l-4 {way}z"
            )
        elif line.dots:
            yield tag(
                "circle",
                class_=f"hole {_stroke(color, point.faint)}" if point.hollow else _fill(color, point.faint),
                cx=f"{x:.1f}",
                cy=f"{y:.1f}",
                r=size,
                fill="#fff" if point.hollow else ink,
                stroke=ink if point.hollow else None,
                stroke_width=1.3 if point.hollow else None,
            )


def _names(lines: Sequence[tuple[Line, int]], frame: _Frame) -> Iterator[Markup]:
    """The names at the ends of the lines, moved apart where two would touch, and kept beside the drawing."""
    wanted = []
    for line, color in lines:
        last = next(point for point in reversed(line.points) if point.y is not None)
        if last.y is not None:
            is_faint = all(point.faint for point in line.points if point.y is not None)
            wanted.append((frame.y(last.y), line.name, -1 if is_faint else color))
    wanted.sort(key=lambda one: one[0])
    places = list[float]()
    for place, _, _ in wanted:
        places.append(max(place, places[-1] + ROW) if places else place)
    low = frame.bottom
    for at in reversed(range(len(places))):
        places[at] = min(places[at], low)
        low = places[at] - ROW
    for place, (_, name, color) in zip(places, wanted, strict=True):
        yield _text(
            frame.right + 9, place + 3.5, clipped(name, LONGEST_NAME), size=NAME_SIZE, ink=_ink(color, False),
            kind=_fill(color, False),
        )  # fmt: skip


def _columns(panel: Panel, lines: Sequence[Line], colors: Sequence[int], frame: _Frame) -> Iterator[Markup]:
    """For every place along the layers what all lines say there, shown when that column is looked at."""
    said = dict[float, list[tuple[str, int]]]()
    for line, color in zip(lines, colors, strict=True):
        for point in line.points if line.dots else ():
            if point.y is not None:
                own = (
                    point.tip or f"{line.name}: {number(10.0**point.y if panel.scale == 'log' else point.y)}"
                )
                said.setdefault(point.x, []).append((own, -1 if point.faint else color))
    places = sorted(said)
    for at, place in enumerate(places):
        start, end = frame.left - 12, frame.right + 6
        if at:
            start = max((frame.x(places[at - 1]) + frame.x(place)) / 2, start)
        elif len(places) > 1:
            start = max(1.5 * frame.x(place) - 0.5 * frame.x(places[1]), start)
        if at + 1 < len(places):
            end = min((frame.x(place) + frame.x(places[at + 1])) / 2, end)
        if len(places) == 1:
            start, end = frame.left, frame.right
        yield _looked_at(
            dict(panel.places).get(place, f"{panel.across} {place:g}"),
            said[place],
            (start, frame.top, end, frame.bottom),
            guide=frame.x(place),
            width=panel.width,
        )


# ----------------------------------------------------------------------------------------------------------- grids


@_drawing_of.register
def _(grid: Grid, room: Room) -> _Drawing:
    head, top = _head(grid, room.top)
    if not grid.rows or not grid.columns:
        return _empty(grid, head, top, "There is no cell to draw.")
    names = [*grid.rows, *(name for name, _ in grid.feet)]
    left = min(
        max(30.0, 12 + LETTER * NAME_SIZE * max(len(clipped(row, LONGEST_NAME)) for row in names)), 200.0
    )
    across = (grid.width - left - 14) / len(grid.columns)
    down = across if grid.is_square else min(20.0, max(6.0, 900 / len(grid.rows)))
    has_text = all(
        LETTER * 9.5 * len(cell.text) + 3 < across and down >= 12 for row in grid.cells for cell in row
    )
    longest = max(len(clipped(name, 16)) for name in grid.columns)
    turned = LETTER * 10 * longest > across - 2 and len(grid.columns) <= 40
    parts, tips, body = list(head), list[Markup](), top
    if grid.across:
        parts.append(_text(left, top + 9, clipped(grid.across, 60)))
        body += 14
    if grid.groups:
        headings, high = _groups(grid, left, body, across)
        parts += headings
        body += high
    body += LETTER * 10 * longest + 8 if turned else 16
    fitting = max(1, int((grid.width - left) // (LETTER * 10 * longest + 8)))
    every = 1 if turned else -(-len(grid.columns) // fitting)
    for at, name in enumerate(grid.columns):
        x = left + (at + 0.5) * across
        if turned:
            words = _text(0, 0, clipped(name, 16), size=10)
            parts.append(tag("g", words, transform=f"translate({x + 3:.1f} {body - 5:.1f}) rotate(-90)"))
        elif at % every == 0:
            parts.append(_text(x, body - 5, clipped(name, 16), size=10, anchor="middle"))
    sparse, has_boards = max(1, math.ceil(11 / down)), len(grid.rows) * len(grid.columns) <= MOST_BOARDS
    for place, (name, row) in enumerate(zip(grid.rows, grid.cells, strict=True)):
        y = body + place * down
        if place % sparse == 0:
            parts.append(
                _text(left - 6, y + down / 2 + 3.5, clipped(name, LONGEST_NAME), size=10, anchor="end")
            )
        for at, cell in enumerate(row):
            box = (left + at * across, y, left + (at + 1) * across, y + down)
            where = ", ".join(
                filter(None, [f"{grid.down} {name}".strip(), f"{grid.across} {grid.columns[at]}".strip()])
            )
            said = cell.tip or cell.text
            parts += _cell(cell, box, has_text, "" if has_boards else clipped(f"{where}: {said}", 200))
            if has_boards:
                tips.append(_looked_at(where, [(said, -1)], box, width=grid.width))
    bottom = body + len(grid.rows) * down
    for name, texts in grid.feet:
        bottom += 12
        parts.append(_text(left - 6, bottom, clipped(name, LONGEST_NAME), size=9, anchor="end"))
        shown = [clipped(text, max(3, int(across / (LETTER * 9)))) for text in texts]
        parts += [
            _text(left + (at + 0.5) * across, bottom, text, size=9, anchor="middle")
            for at, text in enumerate(shown)
        ]
    if any(grid.ends):
        parts += _color_bar(grid.ends, left, bottom + 12)
        bottom += 26
    return _Drawing(parts, tips, bottom + 12)


def _groups(grid: Grid, left: float, top: float, across: float) -> tuple[list[Markup], float]:
    """Headings over neighbouring columns, each of at most two lines over a thin rule, and how high they are."""
    ends, at = list[tuple[float, float]](), 0
    for _, many in grid.groups:
        ends.append((left + at * across, left + (at + many) * across - 3))
        at += many
    lines = [
        list(_wrap(name, max(3.0, (end - start) / (LETTER * 10.5))))[:2]
        for (name, _), (start, end) in zip(grid.groups, ends, strict=True)
    ]
    high = 12.0 * max(map(len, lines))
    parts = list[Markup]()
    for (start, end), shown in zip(ends, lines, strict=True):
        for place, words in enumerate(shown):
            y = top + high - 2 - 12 * (len(shown) - 1 - place)
            parts.append(_text((start + end) / 2, y, words, size=10, anchor="middle", ink=INK, kind="ink"))
        parts.append(
            tag("path", class_="rule", stroke=RULE, d=f"M{start:.1f} {top + high + 2:.1f}H{end:.1f}")
        )
    return parts, high + 5


def _cell(
    cell: GridCell, box: tuple[float, float, float, float], has_text: bool, title: str
) -> Iterator[Markup]:
    left, top, right, bottom = box
    color = "#fff" if cell.share is None else viridis(cell.share)
    size = {"width": f"{right - left - 1:.1f}", "height": f"{bottom - top - 1:.1f}"}
    yield tag(
        "rect",
        *([tag("title", title)] if title else []),
        class_="hole" if cell.share is None else None,
        x=f"{left:.1f}",
        y=f"{top:.1f}",
        fill=color,
        stroke=RULE if cell.share is None else None,
        **size,
    )
    if cell.faint:  # strokes across: not above its floor
        steps = [left + 7 * at for at in range(int((right - left - 1 + bottom - top) // 7) + 1)]
        high = bottom - top - 1
        way = "".join(
            f"M{min(one, right - 1):.1f} {top + max(0.0, one - right + 1):.1f}"
            f"L{max(left, one - high):.1f} {min(bottom - 1, top + one - left):.1f}"
            for one in steps
        )
        yield tag("path", class_="hatch", stroke=ink_on(color), stroke_opacity=0.3, d=way)
    if has_text and cell.text:
        middle = (left + right) / 2
        kind = "soft" if cell.share is None else ""
        yield _text(
            middle, (top + bottom) / 2 + 3, cell.text, size=9.5, anchor="middle", ink=ink_on(color), kind=kind
        )


def _color_bar(ends: tuple[str, str], left: float, top: float) -> Iterator[Markup]:
    start = left + 8 + LETTER * 10 * len(ends[0])
    yield _text(left, top + 9, ends[0], size=10)
    for at in range(24):
        yield tag(
            "rect", x=f"{start + 6 * at:.1f}", y=f"{top:.1f}", width=6.5, height=10, fill=viridis(at / 23)
        )
    yield _text(start + 24 * 6 + 8, top + 9, ends[1], size=10)


# ------------------------------------------------------------------------------------------------------------ bars


@_drawing_of.register
def _(bars: Bars, room: Room) -> _Drawing:
    head, top = _head(bars, room.top)
    known = [bar for bar in bars.bars if bar.value is not None]
    if not known:
        return _empty(bars, head, top, "There is no number to draw.")
    left = min(
        14 + LETTER * NAME_SIZE * max(len(clipped(bar.name, LONGEST_NAME)) for bar in bars.bars), 220.0
    )
    texts = 14 + LETTER * 10 * max(len(clipped(bar.text, 24)) for bar in bars.bars)
    ends = [0.0, *(one for bar in known for one in (bar.value, bar.low, bar.high) if one is not None)]
    low, high = min(ends), max(ends)
    wide = (high - low) or 1.0
    step = 20.0

    def x(value: float) -> float:
        return left + (bars.width - left - texts) * (value - low) / wide

    parts, tips = list(head), []
    for place, bar in enumerate(bars.bars):
        y = top + place * step
        parts.append(_text(left - 8, y + 13, clipped(bar.name, LONGEST_NAME), size=NAME_SIZE, anchor="end"))
        parts += _bar(bar, x, y)
        tips.append(
            _looked_at(
                bar.name,
                [(bar.tip or bar.text, -1 if bar.faint else 0)],
                (left, y, bars.width - 4, y + step),
                width=bars.width,
            )
        )
    bottom = top + len(bars.bars) * step
    parts.append(tag("path", class_="rule", stroke=GRAY, d=f"M{x(0.0):.1f} {top:.1f}V{bottom:.1f}"))
    parts.append(
        _text((left + bars.width - texts) / 2, bottom + 16, clipped(bars.value, 60), size=11, anchor="middle")
    )
    return _Drawing(parts, tips, bottom + 28)


def _bar(bar: Bar, x: Callable[[float], float], y: float) -> Iterator[Markup]:
    if bar.value is None:
        yield _text(x(0.0) + 6, y + 13, bar.text or "-", size=10)
        return
    start, end = sorted((x(0.0), x(bar.value)))
    color = -1 if bar.faint else 0
    yield tag(
        "rect", class_=_fill(color, False), x=f"{start:.1f}", y=f"{y + 3:.1f}", height=13,
        width=f"{max(end - start, 0.6):.1f}", fill=_ink(color, False), fill_opacity=0.85,
    )  # fmt: skip
    if bar.low is not None and bar.high is not None:
        middle, ends = y + 9.5, (x(bar.low), x(bar.high))
        way = f"M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}" + "".join(
            f"M{one:.1f} {middle - 3:.1f}v6" for one in ends
        )
        yield tag("path", stroke=INK, stroke_width=1.2, d=way)
    right = max(end, x(bar.high) if bar.high is not None else end)
    yield _text(right + 6, y + 13, clipped(bar.text, 24), size=10)


# ---------------------------------------------------------------------------------------------------------- planes


@dataclass(frozen=True, slots=True)
class _SquareFrame:
    """Where the places of a square stand on paper."""

    square: Square
    left: float
    top: float
    side: float

    def x(self, value: float) -> float:
        return self.left + self.size(value + self.square.extent)

    def y(self, value: float) -> float:
        return self.top + self.size(self.square.extent - value)

    def size(self, length: float) -> float:
        return self.side * length / (2 * self.square.extent)


@_drawing_of.register
def _(plane: Plane, room: Room) -> _Drawing:
    head, top = _head(plane, room.top)
    if not plane.squares:
        return _empty(plane, head, top, "There is nothing to draw.")
    legend, top = _legend(plane.names, top)
    parts, tips = [*head, *legend], list[Markup]()
    many = len(plane.squares)
    side = min(WIDEST_SQUARE, (WIDTH - 16 - SQUARE_GAP * (many - 1)) / many)
    margin = (WIDTH - many * side - (many - 1) * SQUARE_GAP) / 2
    letters = side / (LETTER * NOTE_SIZE)
    said = [[*_few(_wrap(one.name, letters)), *_few(_wrap(one.note, letters))] for one in plane.squares]
    body = top + ROW * max(map(len, said)) + 2
    for at, (square, lines) in enumerate(zip(plane.squares, said, strict=True)):
        window = _SquareFrame(square, margin + at * (side + SQUARE_GAP), body, side)
        middle = window.left + side / 2
        parts += [
            _text(middle, top + ROW * (place + 0.7), line, size=NOTE_SIZE, anchor="middle")
            for place, line in enumerate(lines)
        ]
        parts += [*_circles(window), *_ways(window), *_spots(window), *_words_at(window)]
        tips += _spot_tips(window)
    return _Drawing(parts, tips, body + side + 10)


def _few(lines: Iterator[str], most: int = 2) -> list[str]:
    """The first lines; where more follow, the last one says so."""
    kept = list(lines)
    return kept if len(kept) <= most else [*kept[: most - 1], f"{kept[most - 1]} …"]


def _legend(names: Sequence[tuple[str, int | str]], top: float) -> tuple[list[Markup], float]:
    """Dots with names, in as many lines as they need, and where the drawing may begin."""
    parts, x, y = list[Markup](), 12.0, top
    for name, color in names:
        shown = clipped(name, LONGEST_NAME)
        wide = 24 + LETTER * 10.5 * len(shown)
        if x > 12 and x + wide > WIDTH:
            x, y = 12.0, y + ROW
        parts.append(tag("circle", cx=f"{x:.1f}", cy=f"{y + 5:.1f}", r=4, **_paint(color, "fill")))
        parts.append(_text(x + 8, y + 8.5, shown))
        x += wide
    return parts, y + ROW + 4 if names else top


def _circles(window: _SquareFrame) -> Iterator[Markup]:
    square = window.square
    place = {"cx": f"{window.x(0):.1f}", "cy": f"{window.y(0):.1f}", "fill": "none"}
    last = -math.inf
    for radius, words in sorted(square.rings):
        if radius > square.extent:
            continue
        yield tag("circle", class_="rule", r=f"{window.size(radius):.1f}", stroke=RULE, **place)
        if words and window.size(radius) - last >= ROW:  # words that would touch are left out
            last = window.size(radius)
            at = radius * math.cos(square.turn), radius * math.sin(square.turn)
            yield _text(window.x(at[0]), window.y(at[1]) + 3.5, words, size=9, anchor="middle")
    if square.disk is not None:
        shade: dict[str, Attribute] = {"fill": GRAY, "fill_opacity": 0.13} if square.is_shaded else {}
        yield tag(
            "circle", r=f"{window.size(square.disk):.1f}", stroke=GRAY, stroke_width=1.3, **(place | shade)
        )


def _ways(window: _SquareFrame) -> Iterator[Markup]:
    for way in window.square.ways:
        places = [(window.x(x), window.y(y)) for x, y in way.points if math.isfinite(x) and math.isfinite(y)]
        if len(places) > 1:
            path = "L".join(f"{places[at][0]:.1f} {places[at][1]:.1f}" for at in points_to_keep(places, THIN))
            yield tag(
                "path",
                fill="none",
                stroke_width=1 if way.color == -1 else 1.7,
                stroke_linejoin="round",
                stroke_opacity=0.3 if way.faint else None,
                d=f"M{path}",
                **_paint(way.color, "stroke"),
            )


def _spots(window: _SquareFrame) -> Iterator[Markup]:
    for spot in _inside(window):
        x, y = window.x(spot.x), window.y(spot.y)
        strength: dict[str, Attribute] = {"opacity": 0.45 if spot.faint else None}
        if spot.shape == "cross":
            way = f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"
            yield tag("path", stroke_width=1.5, d=way, **_paint(spot.color, "stroke"), **strength)
            continue
        place: dict[str, Attribute] = {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": 3.6}
        if spot.shape == "dot":
            yield tag("circle", **place, **_paint(spot.color, "fill"), **strength)
            continue
        ring = _paint(spot.color, "stroke")
        classes = " ".join(filter(None, ["hole", str(ring.pop("class_") or "")]))
        yield tag("circle", class_=classes, fill="#fff", stroke_width=1.5, **place, **ring, **strength)


def _words_at(window: _SquareFrame) -> Iterator[Markup]:
    for x, y, words in window.square.words:
        yield _text(window.x(x), window.y(y) + 3.5, clipped(words, LONGEST_NAME), size=9.5, anchor="middle")


def _spot_tips(window: _SquareFrame) -> Iterator[Markup]:
    """What is said of spots; those that touch say it together."""
    together = dict[tuple[int, int], list[Spot]]()
    for spot in _inside(window):
        if spot.tip:
            place = round(window.x(spot.x) / TOUCH), round(window.y(spot.y) / TOUCH)
            together.setdefault(place, []).append(spot)
    for spots in list(together.values())[:MOST_SPOTS]:
        x, y = window.x(spots[0].x), window.y(spots[0].y)
        colors = [one.color if isinstance(one.color, int) else -1 for one in spots]
        said = list(zip([one.tip for one in spots], colors, strict=True))
        yield _looked_at(window.square.name, said, (x - TOUCH, y - TOUCH, x + TOUCH, y + TOUCH))


def _inside(window: _SquareFrame) -> Iterator[Spot]:
    far = window.square.extent
    return (spot for spot in window.square.spots if abs(spot.x) <= far and abs(spot.y) <= far)


def _paint(color: int | str, how: str) -> dict[str, Attribute]:
    """The attributes that give an element one of the numbered colors, or a color by its code."""
    if isinstance(color, str):
        return {"class_": None, how: color}
    return {"class_": (_fill if how == "fill" else _stroke)(color, False), how: _ink(color, False)}


def points_to_keep(line: Sequence[tuple[float, float]], tolerance: float) -> list[int]:
    """Which points to keep so that none is farther than ``tolerance`` from the line (Douglas and Peucker 1973).

    >>> points_to_keep([(0, 0), (1, 0), (2, 0), (2, 1)], 0.01)
    [0, 2, 3]
    """
    kept, pieces = {0, len(line) - 1}, [(0, len(line) - 1)]
    while pieces:
        first, last = pieces.pop()
        if last - first < 2:
            continue
        away = [_from_piece(line[at], line[first], line[last]) for at in range(first + 1, last)]
        farthest = max(range(len(away)), key=away.__getitem__)
        if away[farthest] > tolerance:
            middle = first + 1 + farthest
            kept.add(middle)
            pieces += [(first, middle), (middle, last)]
    return sorted(kept)


def _from_piece(point: tuple[float, float], start: tuple[float, float], end: tuple[float, float]) -> float:
    """The distance of a point from the straight piece between two others."""
    along = end[0] - start[0], end[1] - start[1]
    to = point[0] - start[0], point[1] - start[1]
    length = along[0] ** 2 + along[1] ** 2
    share = min(max((to[0] * along[0] + to[1] * along[1]) / length, 0.0), 1.0) if length > 0 else 0.0
    return math.hypot(to[0] - share * along[0], to[1] - share * along[1])


# ------------------------------------------------------------------------------------------------- shared by all


def heading(title: str, notes: Sequence[str], width: float) -> tuple[list[Markup], float]:
    """Title and notes over that width, and where what follows may begin."""
    parts, at = [], 18.0
    for line in _wrap(title, (width - 16) / (LETTER * 15)):  # bold letters are wider
        parts.append(_text(8, at, line, size=14, ink=INK, bold=True, kind="ink"))
        at += 18
    for note in notes:
        for line in _wrap(note, (width - 16) / (LETTER * NOTE_SIZE)):
            parts.append(_text(8, at, line, size=NOTE_SIZE))
            at += ROW
    return parts, max(at, TOP) + 2


def _head(picture: Picture, least: float = 0.0) -> tuple[list[Markup], float]:
    parts, top = heading(picture.title, picture.notes, picture.width)
    if isinstance(picture, Panel) and picture.marks:
        top += ROW
    return parts, max(top, least)


def _empty(picture: Picture, head: list[Markup], top: float, words: str) -> _Drawing:
    return _Drawing(
        [*head, _text(picture.width / 2, top + 30, words, size=12, anchor="middle")], [], top + 56
    )


def _wrap(text: str, letters: float) -> Iterator[str]:
    """Text in lines of about so many letters; a word longer than a line is cut."""
    line = ""
    for word in clipped(text, 600).split():
        shown = clipped(word, int(letters))
        if line and len(line) + 1 + len(shown) > letters:
            yield line
            line = ""
        line = f"{line} {shown}".strip()
    if line:
        yield line


def _looked_at(
    where: str,
    said: Sequence[tuple[str, int]],
    box: tuple[float, float, float, float],
    guide: float | None = None,
    width: int = WIDTH,
) -> Markup:
    """A region that shows what is said of it when the pointer or the keyboard is on it."""
    left, top, right, bottom = box
    shown = [(clipped(words, 70), color) for words, color in said[:MOST_TIPS]]
    if len(said) > MOST_TIPS:
        shown.append((f"and {len(said) - MOST_TIPS} more", -1))
    wide = 20 + LETTER * 11 * max(len(where), *(len(words) + 2 for words, _ in shown))
    high = 12 + ROW * (len(shown) + 1)
    middle = (left + right) / 2
    x = min(max(middle + 10 if middle < width / 2 else middle - 10 - wide, 2.0), max(2.0, width - wide - 2))
    y = max(2.0, min(top + 6, bottom - high)) if bottom - top > 60 else max(2.0, top - high - 4)
    rows = [_text(x + 8, y + 15, where, size=11, ink=INK, bold=True, kind="ink")]
    for at, (words, color) in enumerate(shown, start=1):
        dot: dict[str, Attribute] = {"cx": f"{x + 12:.1f}", "cy": f"{y + 11 + ROW * at:.1f}", "r": 3}
        rows.append(tag("circle", class_=_fill(color, False), fill=_ink(color, False), **dot))
        rows.append(_text(x + 20, y + 15 + ROW * at, words, size=11, ink=INK, kind="ink"))
    board = tag(
        "rect", class_="board", x=f"{x:.1f}", y=f"{y:.1f}", width=f"{wide:.0f}", height=f"{high:.0f}", rx=5,
        fill="#fff", stroke="#c3cad2",
    )  # fmt: skip
    line = Markup("")
    if guide is not None:
        line = tag("path", class_="guide", stroke=GRAY, d=f"M{guide:.1f} {top:.0f}V{bottom:.0f}")
    cover = tag(
        "rect", x=f"{left:.1f}", y=f"{top:.1f}", width=f"{max(right - left, 1):.1f}", height=f"{bottom - top:.1f}",
        fill="#fff", fill_opacity=0,
    )  # fmt: skip
    words = clipped(". ".join([where, *(one for one, _ in shown)]), 600)
    return tag(
        "g",
        line,
        cover,
        tag("g", board, *rows, class_="tip"),
        class_="col",
        tabindex=0,
        role="img",
        aria_label=words,
    )


def _text(
    x: float, y: float, words: str, *, size: float = 10.5, anchor: str = "start", ink: str = SOFT, bold: bool = False,
    kind: str | None = "soft",
) -> Markup:  # fmt: skip
    return tag(
        "text",
        words,
        class_=kind or None,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        font_size=f"{size:g}",
        text_anchor=None if anchor == "start" else anchor,
        font_weight=600 if bold else None,
        fill=ink,
    )


def _ink(color: int, faint: bool) -> str:
    return GRAY if faint or color < 0 else BLIND_SAFE[color % len(BLIND_SAFE)]


def _stroke(color: int, faint: bool) -> str | None:
    return None if faint or color < 0 else f"s{color % len(BLIND_SAFE)}"


def _fill(color: int, faint: bool) -> str | None:
    return None if faint or color < 0 else f"f{color % len(BLIND_SAFE)}"
