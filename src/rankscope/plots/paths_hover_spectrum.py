"""The spectrum of paths as HTML that shows its numbers on hover, touch and arrow keys, without JavaScript."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

from rankscope.plots.axes import Ticks, log_ticks
from rankscope.plots.markup import Fragment, tag, void
from rankscope.plots.paths_marks import MOST_LABELS
from rankscope.plots.paths_sections import Length
from rankscope.plots.paths_sizes import SIZES, has_sizes, is_hollow, size_at, size_ends
from rankscope.plots.paths_spectrum import ADDED, TAKEN, paths_words, share_ends, spectrum_words, written
from rankscope.plots.paths_words import MINUS, count_words, percent, short_percent
from rankscope.plots.scan_axes import linear_ticks
from rankscope.plots.scan_entries import number
from rankscope.results import UNRESOLVED_MARK

SIZE = 1000
"""Width and height of the drawings before they are stretched."""

WIDE, NARROW = 1000.0, 300.0
"""Pixels that a drawing has at a desk and on a phone; numbers that fit the latter are always written."""

NAMES_ON_PHONE = 13
BAR, GRAY_BAR = 0.56, 0.92
WIDEST, GRAY_WIDEST = 0.07, 0.115
"""Parts of a place that the bars take, and of the whole width that they take at most."""

STYLES = dict(zip(SIZES, (2, 3), strict=True))
"""Line styles of the page, which have the colors of the figure."""

MANY = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """The lengths side by side, and the ends of the axis of values."""

    lengths: list[Length]
    low: float
    high: float

    def depth(self, value: float) -> float:
        """How far below the upper end a value stands, from 0 to 1."""
        return (self.high - value) / (self.high - self.low)

    def across(self, place: float) -> float:
        """How far from the left end a place stands, from 0 to 1."""
        return place / len(self.lengths)

    def point(self, place: float, value: float) -> str:
        """Both in the units of the drawing."""
        return f"{SIZE * self.across(place):.5g} {SIZE * self.depth(value):.5g}"


def hover_spectrum(lengths: list[Length], *, group: str) -> list[Fragment]:
    """Shares as bars, and norms and residuals as lines, a figure each; ``group`` is unique on the page."""
    figures = [_shares(lengths, f"{group}s")]
    return [*figures, _sizes(lengths, f"{group}n")] if has_sizes(lengths) else figures


def _shares(lengths: list[Length], group: str) -> Fragment:
    low, high, enlarged = share_ends(lengths)
    frame = Frame(lengths=lengths, low=low, high=high)
    ticks = linear_ticks(low, high, 6)
    ticks = Ticks(positions=ticks.positions, labels=[_whole_percent(tick) for tick in ticks.positions])
    marks = [
        _path(
            "allpaths",
            _bars(frame, [enlarged * one.path_share for one in lengths], _part(frame, GRAY_BAR, GRAY_WIDEST)),
        ),
        *_colored(frame),
        _path("zero", f"M{frame.point(0.0, 0.0)}H{SIZE}"),
    ]
    box = _box(frame, ticks, marks, _written(frame), group, "shares by path length")
    keys = [("fill adds", ADDED), ("fill takes", TAKEN), ("fill allpaths", paths_words(enlarged))]
    if not all(one.resolved for one in lengths):
        keys.append(("fill hollow", "hollow: not above the rounding floor"))
    return _figure("Share of the output", keys, box, spectrum_words(lengths))


def _sizes(lengths: list[Length], group: str) -> Fragment:
    low, high, has_floor = size_ends(lengths)
    frame = Frame(lengths=lengths, low=low, high=high)
    marks = [_path("floor", _floor(frame))] if has_floor else []
    for name, style in STYLES.items():
        known = {
            place: frame.point(place + 0.5, at)
            for place, one in enumerate(lengths)
            if (at := size_at(one, name)) is not None
        }
        hollow = [point for place, point in known.items() if is_hollow(lengths[place], name)]
        curve = "".join(("L" if place - 1 in known else "M") + point for place, point in known.items())
        marks += [
            _path(f"line s{style}", curve),
            _path(f"dots s{style}", "".join(f"M{point}h0" for point in known.values())),
            _path("holes", "".join(f"M{point}h0" for point in hollow)),
        ]
    box = _box(frame, log_ticks(low, high), marks, [], group, "norm and residual by path length")
    keys = [(f"s{style}", name) for name, style in STYLES.items()]
    keys += [("floorkey", "rounding floor")] if has_floor else []
    return _figure("Frobenius norm", keys, box, "Norm and residual of all paths of each length.")


def _whole_percent(share: float) -> str:
    """A share on an axis, without zeros behind the point.

    >>> _whole_percent(0.4), _whole_percent(-0.025)
    ('40%', '−2.5%')
    """
    return f"{100 * share:.6g}%".replace("-", MINUS)


def _path(look: str, drawn: str) -> Fragment:
    return tag("path", class_=look, d=drawn) if drawn else Fragment()


def _figure(title: str, keys: Sequence[tuple[str, str]], box: Fragment, words: str) -> Fragment:
    legend = [tag("span", tag("i", class_=f"key {look}"), name) for look, name in keys]
    caption = tag("figcaption", tag("b", title), tag("span", *legend, class_="legend"))
    return tag("figure", caption, tag("div", box, class_="plot"), class_="chart spectrum", aria_label=words)


def _box(
    frame: Frame, ticks: Ticks, marks: list[Fragment], texts: list[Fragment], group: str, words: str
) -> Fragment:
    """The drawing with its axes and a column over every length that shows its note."""
    grid = "".join(f"M{frame.point(0.0, tick)}H{SIZE}" for tick in ticks.positions)
    view: dict[str, str] = {"viewBox": f"0 0 {SIZE} {SIZE}", "preserveAspectRatio": "none"}
    drawing = tag("svg", _path("grid", grid), *marks, aria_hidden="true", **view)
    sides = [
        tag("span", text, class_="ytick", style=f"top:{100 * frame.depth(position):.4g}%")
        for position, text in zip(ticks.positions, ticks.labels, strict=True)
    ]
    count = len(frame.lengths)
    step, on_phone = -(-count // MOST_LABELS), -(-count // NAMES_ON_PHONE)
    names = [
        tag(
            "span", str(frame.lengths[place].length), class_="xtick" + (" extra" if place % on_phone else ""),
            style=f"left:{100 * frame.across(place + 0.5):.4g}%",
        )
        for place in range(0, count, step)
    ]  # fmt: skip
    columns = tag(
        "div", *(_column(frame, place, group) for place in range(count)), class_="cols", role="radiogroup",
        aria_label=words,
    )  # fmt: skip
    look = "box tall" + (" many" if count > MANY else "")
    return tag("div", drawing, *sides, *names, *texts, columns, class_=look)


def _column(frame: Frame, place: int, group: str) -> Fragment:
    one = frame.lengths[place]
    mark = "" if one.resolved else UNRESOLVED_MARK
    rows = (
        (f"key fill {_side(one)}", "share of the output", percent(one.share, 3) + mark, ""),
        ("key fill allpaths", "of all paths", percent(one.path_share), count_words(one.paths)),
        (f"key s{STYLES['norm']}", "norm", number(one.norm), ""),
        (f"key s{STYLES['residual']}", "residual", number(one.residual) + mark, ""),
        (None, "token cosine", number(one.cosine), ""),
        (None, "cosine to the output", number(one.cosine_to_output), ""),
    )
    cells = [
        cell
        for look, name, value, more in rows
        for cell in (tag("i", class_=look), tag("span", name), tag("b", value), tag("small", more))
    ]
    floor = f"rounding floor {number(one.floor, 2)}"
    under = [tag("small", floor, class_="under")] if one.floor is not None else []
    tip = tag("span", tag("b", f"length {one.length}", class_="at"), *cells, *under, class_="tip")
    button = void("input", type="radio", name=group, aria_label=f"length {one.length}")
    return tag("label", button, tip, style=f"--f:{frame.across(place + 0.5):.3g}")


def _side(one: Length) -> str:
    return "takes" if (one.share or 0.0) < 0 else "adds"


def _colored(frame: Frame) -> list[Fragment]:
    """Bars that add, bars that work against, and the hollow ones of either."""
    found = []
    for side in ("adds", "takes"):
        for is_resolved, look in ((True, side), (False, f"{side} hollow")):
            own = [
                (one.share or 0.0) * (_side(one) == side and one.resolved == is_resolved)
                for one in frame.lengths
            ]
            found.append(_path(look, _bars(frame, own, _part(frame, BAR, WIDEST))))
    return found


def _part(frame: Frame, most: float, widest: float) -> float:
    return min(most, widest * len(frame.lengths))


def _bars(frame: Frame, values: list[float], part: float) -> str:
    """Rectangles from zero to each value, none for zero."""
    zero, wide = SIZE * frame.depth(0.0), SIZE * part / len(values)
    return "".join(
        f"M{frame.point(place + 0.5 - part / 2, value)}h{wide:.5g}V{zero:.5g}h{-wide:.5g}Z"
        for place, value in enumerate(values)
        if value
    )


def _written(frame: Frame) -> list[Fragment]:
    """Numbers at the ends of the bars; those that only a wide page has room for are marked."""
    shares = {one.length: one.share for one in frame.lengths if one.share is not None}
    wide, narrow = (written(shares, width / len(frame.lengths)) for width in (WIDE, NARROW))
    found = []
    for place, one in enumerate(frame.lengths):
        if one.length in wide and one.share is not None:
            left, top = 100 * frame.across(place + 0.5), 100 * frame.depth(one.share)
            look = "value" + (" below" if one.share < 0 else "") + ("" if one.length in narrow else " extra")
            text = short_percent(one.share, sign="")
            found.append(tag("span", text, class_=look, style=f"left:{left:.4g}%;top:{top:.4g}%"))
    return found


def _floor(frame: Frame) -> str:
    step = SIZE / len(frame.lengths)
    return "".join(
        f"M{frame.point(float(place), log10(one.floor))}h{step:.5g}"
        for place, one in enumerate(frame.lengths)
        if one.floor
    )
