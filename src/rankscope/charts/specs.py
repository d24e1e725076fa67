"""What is drawn, not how: curves with bands and floors, grids of cells, bars, pictures of other code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

WIDTH = 620
"""Width of a picture, in dots. A narrow one keeps its letters legible on a phone, a broad one fills a desk."""

Style = Literal["solid", "dashed", "dotted", "none"]
Scale = Literal["linear", "log"]


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a curve.

    Args:
        x: a layer, or another whole number.
        y: the value, or its logarithm to base ten where the panel's scale is ``log``; None where there is no number.
        tip: what is said when the point is looked at.
        low, high: ends of a band around it, on the same scale as ``y``.
        hollow: drawn as a ring: the value is not above its floor.
        faint: drawn in gray: true, but of no weight.
    """

    x: float
    y: float | None
    tip: str = ""
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Points in order.

    Args:
        name: stands at the end of the line.
        style: of the stroke; ``none`` leaves the points alone.
        color: which of the colors; None takes the next one that is free, -1 is gray.
        dots: whether points are drawn as dots. A line without dots has no tips.
        shade: fills the drawing below the line in its color, as below a floor.
    """

    name: str
    points: Sequence[Point]
    style: Style = "solid"
    color: int | None = None
    dots: bool = True
    shade: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Curves over layers, or over another count.

    Args:
        title: what is seen.
        value: the name of the value axis; ``across`` that of the other one.
        inside: values that must be on the axis. Points beyond them then stand at its ends as triangles.
        notes: short sentences below the title.
        marks: places along the layers, each with a word, at which a thin line stands.
        places: places with a name in place of a number, such as what follows the last layer.
        along: how layers are spread; ``log`` gives the first ones more room, and has no place for layer 0.
    """

    title: str
    lines: Sequence[Line]
    value: str = "value"
    across: str = "layer"
    scale: Scale = "log"
    inside: Sequence[float] = ()
    notes: Sequence[str] = ()
    marks: Sequence[tuple[float, str]] = ()
    places: Sequence[tuple[float, str]] = ()
    along: Scale = "linear"
    width: int = WIDTH


@dataclass(frozen=True, slots=True)
class GridCell:
    """One cell of a grid: how bright it is (0 to 1, None for no color), what stands in it, what is said of it."""

    share: float | None
    text: str = ""
    tip: str = ""
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Colored cells, row by row.

    Args:
        ends: what the darkest and the brightest color mean.
        groups: headings over neighbouring columns, each with how many it covers.
        feet: lines below the cells, each with a name and a text per column, where columns have ends of their own.
        is_square: whether cells are as high as they are wide.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[GridCell]]
    down: str = "layer"
    across: str = ""
    ends: tuple[str, str] = ("", "")
    notes: Sequence[str] = ()
    groups: Sequence[tuple[str, int]] = ()
    feet: Sequence[tuple[str, Sequence[str]]] = ()
    width: int = WIDTH
    is_square: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. ``value`` and its ends are on the scale of the bars; ``text`` stands at its end."""

    name: str
    value: float | None
    text: str = ""
    low: float | None = None
    high: float | None = None
    tip: str = ""
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Horizontal bars from zero, one below the other."""

    title: str
    bars: Sequence[Bar]
    value: str = "value"
    notes: Sequence[str] = ()
    width: int = WIDTH


@dataclass(frozen=True, slots=True)
class PlaneLine:
    """A line in a plane; ``color`` is one of the numbered colors, -1 for gray, or a color by its code."""

    points: Sequence[tuple[float, float]]
    color: int | str = -1
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Spot:
    """A point in a plane: a dot, a ring if ``hollow``, or a cross. ``tip`` is said when it is looked at."""

    x: float
    y: float
    tip: str = ""
    color: int | str = -1
    shape: Literal["dot", "ring", "cross"] = "dot"
    faint: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Square:
    """One view of a plane; both axes go from ``-extent`` to ``extent``.

    Args:
        name, note: stand above it.
        rings: circles around the middle, each with a word at the angle ``turn`` (in radians).
        disk: radius of a circle that is drawn strongly; shaded if ``is_shaded``.
        words: short words at places.
    """

    name: str
    extent: float
    ways: Sequence[PlaneLine] = ()
    spots: Sequence[Spot] = ()
    rings: Sequence[tuple[float, str]] = ()
    turn: float = 0.0
    disk: float | None = None
    is_shaded: bool = False
    words: Sequence[tuple[float, float, str]] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plane:
    """Points and paths where both axes have the same unit: complex numbers, a circle, a sphere seen from outside.

    ``names`` is the legend: words, each with its color.
    """

    title: str
    squares: Sequence[Square]
    names: Sequence[tuple[str, int | str]] = ()
    notes: Sequence[str] = ()

    width: ClassVar[int] = WIDTH


@dataclass(frozen=True, kw_only=True, slots=True)
class CustomPicture:
    """A picture that curves, grids and bars cannot show, as other code draws it.

    Args:
        title: what is seen, also for those who cannot see it.
        draw: makes the SVG, when it is needed.
    """

    title: str
    draw: Callable[[], str]
    notes: Sequence[str] = ()

    width: ClassVar[int] = WIDTH


Picture = Panel | Grid | Bars | Plane | CustomPicture
