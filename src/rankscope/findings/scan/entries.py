"""What a scan says over all its texts: one entry per place and definition, and the curves and maps drawn of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pydantic import FiniteFloat

from rankscope.charts import Grid, GridCell, Line, Panel, Point
from rankscope.charts.specs import Style
from rankscope.core.words import clipped, number
from rankscope.findings.base import Number, Value

FINAL = "final"
"""The site after the final norm, which is not a layer: it stands apart, after the last one."""

SITES = ("block", "attention", "mlp", FINAL)

STAR = "*"
"""Stands behind a mean that is not above its rounding floor in every text; everywhere the same."""

NOT_RESOLVED = "in some text not above its rounding floor, the value that rounding errors alone could produce"
ABOVE_FLOOR = "above their rounding floors, the values that rounding errors alone could produce"

VARIANTS = ("centered", "unit")
"""Tags that say what was done to the tokens before measuring; they stand last in a definition."""

SHORT = {
    "residual_ratio[frobenius,mean]": "residual ratio",
    "residual_ratio[frobenius,mean,unit]": "unit residual ratio",
    "cosine[off_diagonal]": "mean cosine",
    "token_share[largest]": "largest token",
    "channel_share[largest]": "largest channel",
    "effective_rank[entropy]": "effective rank",
    "effective_rank[entropy,centered]": "centered rank",
}
"""Names of what a terminal shows of every layer; sentences, columns and pictures use the same."""

USUAL = frozenset({"mean", "off_diagonal", "largest", "entropy", "map"})
"""Tags of the default panel that a short label need not repeat."""

VARIANT_WORDS = {
    "": "tokens as they are",
    "unit": "unit tokens",
    "centered": "centered",
    "centered,unit": "centered, unit",
}

HEADLINES = ("residual_ratio[frobenius,mean]", "residual_ratio[composite,mean]")
"""The headline is the first of these that was measured. In the Frobenius norm the ratio never exceeds one."""

READING_ORDER = ("residual_ratio", "cosine", "effective_rank", "token_share", "channel_share")
"""Measures of the default panel in the order in which a person asks; all others follow in the table's order."""

ANCHORS = {
    "residual_ratio": (0.0, 1.0),
    "cosine": (0.0, 1.0),
    "token_share": (0.0,),
    "channel_share": (0.0,),
    "effective_rank": (0.0,),
}
"""Values that a linear axis always shows, so that 0.93 does not look like a fall from 0.95."""

DECADES_FOR_LOG = 1.5
"""Values that span at least this many decades stand on a logarithmic axis."""

DECADES_TO_FLOOR = 3.0
"""A floor further below the values than this is not drawn: it would press the curves flat."""

NEAR = 0.01
"""On a linear axis a floor below this share of the range is too small to be seen."""

APART = 1.5
"""Layers between the last one and the final norm on an axis."""

STYLES: tuple[Style, ...] = ("solid", "dashed", "dotted")
"""Strokes of lines one after the other, so that lines on top of each other are both seen."""

COLUMNS_BESIDE = 16
"""Columns of one map; further definitions start another one below."""

SMALL, LARGE, BROAD = 400, 440, 1120
"""Widths of pictures: three abreast, beside the verdict, over the whole page."""


class Entry(Value):
    """One definition at one layer and site of one stack, over all texts."""

    stack: str
    """Name of the run of blocks."""

    layer: int
    """The layer; 0 is the input of the first block."""

    site: str
    """Where: block, attention, mlp, final."""

    head: int | None = None
    """Of attention maps, which head."""

    measure: str
    """Bare name of the measure."""

    definition: str
    """Its full id."""

    texts: int
    """How many were read."""

    mean: Number
    """Over the texts that gave a number; null where none did."""

    std: Number
    """Standard deviation over them."""

    min: Number
    """The smallest."""

    max: Number
    """The largest."""

    numbers: int | None = None
    """How many texts gave a number."""

    floor: Number
    """Mean of their floors."""

    resolved: FiniteFloat
    """Share of texts that are above their floor."""

    @property
    def is_resolved(self) -> bool:
        """Whether every text is above its rounding floor."""
        return self.mean is not None and self.resolved >= 1

    def text(self, digits: int = 3) -> str:
        """The mean, with a star if some text is not above its floor."""
        return number(self.mean, digits) + ("" if self.is_resolved or self.mean is None else STAR)

    @property
    def place(self) -> str:
        """The layer in a column of a table or a map."""
        return FINAL if self.site == FINAL else str(self.layer)


def stacks_of(entries: Iterable[Entry]) -> list[str]:
    """Names of the stacks, in the order of the scan."""
    return list(dict.fromkeys(entry.stack for entry in entries))


def of_stack(entries: Iterable[Entry], stack: str) -> list[Entry]:
    """Entries of that stack that belong to no head: token states, not attention maps."""
    return [entry for entry in entries if entry.stack == stack and entry.head is None]


# ---------------------------------------------------------------------------------------------------------- labels


def parted(definition: str) -> tuple[str, str]:
    """The definition on the tokens as they are, and what was done to them before.

    >>> parted("residual_ratio[composite,mean,unit]")
    ('residual_ratio[composite,mean]', 'unit')
    """
    name, bracket, rest = definition.partition("[")
    if not bracket or not rest.endswith("]"):
        return definition, ""
    tags = rest[:-1].split(",")
    kept = [one for one in tags if one not in VARIANTS]
    return f"{name}[{','.join(kept)}]", ",".join(one for one in tags if one in VARIANTS)


def label(base: str) -> str:
    """A definition in words, without the tags of the default panel.

    >>> label("residual_ratio[composite,mean]"), label("cosine[off_diagonal]")
    ('residual ratio, composite', 'mean cosine')
    """
    if base in SHORT:
        return SHORT[base]
    name, bracket, rest = base.partition("[")
    if not bracket or not rest.endswith("]"):
        return clipped(base)
    tags = [
        one.replace("_", " ").replace("frobenius", "Frobenius")
        for one in rest[:-1].split(",")
        if one not in USUAL
    ]
    return clipped(", ".join([name.replace("_", " "), *tags]))


def full_label(definition: str) -> str:
    """The label with what was done to the tokens before measuring.

    >>> full_label("residual_ratio[composite,mean,unit]")
    'residual ratio, composite, unit tokens'
    """
    if definition in SHORT:
        return SHORT[definition]
    base, variant = parted(definition)
    return label(base) + (f", {VARIANT_WORDS.get(variant, variant)}" if variant else "")


def bases_of(entries: Iterable[Entry]) -> list[str]:
    """Definitions without their variants, in reading order: the residual ratio first, of it the headline's."""
    found = dict.fromkeys((entry.measure, parted(entry.definition)[0]) for entry in entries)
    measures = {name: place for place, name in enumerate(READING_ORDER)}
    headlines = {name: place for place, name in enumerate(HEADLINES)}

    def rank(pair: tuple[str, str]) -> tuple[int, int]:
        return measures.get(pair[0], len(measures)), headlines.get(pair[1], len(headlines))

    return [base for _, base in sorted(found, key=rank)]


# ---------------------------------------------------------------------------------------------------------- curves


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: the entries of one definition at one site, by layer."""

    name: str
    entries: Sequence[Entry]


def headline(entries: Sequence[Entry], *, start: int | None = None, width: int = LARGE) -> Panel:
    """The residual ratio after every block of one stack, of the tokens as they are and on unit tokens.

    ``start`` is the layer at which the verdict sees collapse begin.
    """
    base = next(iter(bases_of(entries)), "")
    found = [entry for entry in entries if parted(entry.definition)[0] == base]
    shown = [entry for entry in found if entry.site in ("block", FINAL)] or found
    panel = curves(_title(label(base)) if base else "Curves by layer", base, _by_variant(shown))
    marks = [] if start is None else [(float(start), f"starts at layer {start}")]
    return replace(panel, marks=marks, width=width)


def site_panels(entries: Sequence[Entry]) -> list[Panel]:
    """A panel per definition of one stack, a line per site.

    A definition known at one site alone shares its panel with its variants (of X and of centered X). A variant that
    says the same as the raw one, or the same number everywhere, is mentioned and not drawn.
    """
    panels: list[Panel] = []
    for base in bases_of(entries):
        found = [entry for entry in entries if parted(entry.definition)[0] == base]
        if len({entry.site for entry in found} - {FINAL}) == 1:
            panels.append(curves(_title(label(base)), base, _by_variant(found)))
            continue
        drawn: list[Panel] = []
        first: list[Entry] = []
        for definition in dict.fromkeys(entry.definition for entry in found):
            own = [entry for entry in found if entry.definition == definition]
            same = _same_everywhere(own) or ("the same numbers" if first and _are_same(own, first) else "")
            if drawn and same:
                said = f"On {VARIANT_WORDS.get(parted(definition)[1], 'other tokens')}: {same}."
                drawn[0] = replace(drawn[0], notes=[*drawn[0].notes, said])
                continue
            first = first or own
            drawn.append(curves(_title(full_label(definition)), definition, _by_site(own)))
        panels += drawn
    return panels


def curves(title: str, definition: str, lines: Sequence[Curve]) -> Panel:
    """A panel: means over texts with a band from the smallest to the largest, and the floor as a shade below.

    A point is hollow if some text is not above its floor; a zero stands at its floor on an axis of logarithms.
    """
    entries = [entry for line in lines for entry in line.entries]
    is_log = _is_log(entries)
    last = max((entry.layer for entry in entries if entry.site != FINAL), default=0)
    finals = any(entry.site == FINAL for entry in entries)
    drawn = [
        Line(name=clipped(line.name), points=_points(line, is_log, last), style=STYLES[place % len(STYLES)])
        for place, line in enumerate(lines)
    ]
    floors = _floors(entries, is_log, last)
    if floors:
        floor = Line(name="floor", points=floors, style="dotted", color=-1, dots=False, shade=True)
        drawn = [floor, *drawn]
    anchors = () if is_log or not entries else ANCHORS.get(entries[0].measure, ())
    values = [
        one
        for line in drawn
        for point in line.points
        for one in (point.y, point.low, point.high)
        if one is not None
    ]
    return Panel(
        title=title,
        lines=drawn,
        value="mean over texts",
        scale="log" if is_log else "linear",
        inside=[*values, *anchors] if values else (),
        notes=_notes(definition, entries, is_log, bool(floors)),
        places=[(last + APART, FINAL)] if finals else (),
        width=SMALL,
    )


def _title(words: str) -> str:
    return words[:1].upper() + words[1:]


def _points(line: Curve, is_log: bool, last: int) -> list[Point]:
    points, has_layers = list[Point](), False
    for entry in line.entries:
        x = last + APART if entry.site == FINAL else float(entry.layer)
        if entry.site == FINAL and has_layers:
            points.append(Point(x - APART / 2, None))  # the final norm is no layer: no stroke leads to it
        has_layers = has_layers or entry.site != FINAL
        y = None if entry.mean is None else _position(entry.mean, entry.floor, is_log)
        ends = [
            None if one is None else _position(one, entry.floor, is_log) for one in (entry.min, entry.max)
        ]
        has_band = entry.texts > 1 and entry.site != FINAL and None not in ends
        points.append(
            Point(
                x,
                y,
                _tip(line.name, entry),
                low=ends[0] if has_band else None,
                high=ends[1] if has_band else None,
                hollow=not entry.is_resolved,
            )
        )
    return points


def _tip(name: str, entry: Entry) -> str:
    spread = ""
    if entry.texts > 1 and entry.min is not None and entry.max is not None:
        spread = f" ({number(entry.min, 2)} to {number(entry.max, 2)})"
    below = "" if entry.is_resolved or not entry.floor else f", floor {number(entry.floor, 2)}"
    return f"{clipped(name, 20)}: {entry.text()}{spread}{below}"


def _position(value: float, floor: float | None, is_log: bool) -> float | None:
    """Where a value stands; on an axis of logarithms a zero stands at its floor."""
    if not is_log:
        return value
    size = value if value > 0 else (floor or 0.0)
    return math.log10(size) if size > 0 else None


def _is_log(entries: Sequence[Entry]) -> bool:
    """Whether no value is negative and they span decades."""
    values = [one for entry in entries for one in (entry.min, entry.mean, entry.max) if one is not None]
    sizes = [one for one in values if one > 0]
    return bool(sizes) and min(values) >= 0 and math.log10(max(sizes) / min(sizes)) >= DECADES_FOR_LOG


def _floors(entries: Sequence[Entry], is_log: bool, last: int) -> list[Point]:
    """The lowest floor of every place, if it is near enough to the values to be seen beside them."""
    known = [
        entry for entry in entries if entry.floor is not None and entry.floor > 0 and entry.mean is not None
    ]
    if not known:
        return []
    values = [one for entry in entries for one in (entry.min, entry.mean, entry.max) if one is not None]
    highest = max(entry.floor for entry in known if entry.floor is not None)
    if is_log:
        reach = DECADES_TO_FLOOR if _vanishes(known[0]) else 0.0
        seen = math.log10(highest) >= math.log10(min(one for one in values if one > 0)) - reach
    else:
        seen = highest >= NEAR * (max(values) - min(values))
    if not seen:
        return []
    by_place = dict[float, float]()
    for entry in known:
        x = last + APART if entry.site == FINAL else float(entry.layer)
        by_place[x] = min(by_place.get(x, math.inf), entry.floor or math.inf)
    return [Point(x, _position(floor, None, is_log)) for x, floor in sorted(by_place.items())]


def _notes(definition: str, entries: Sequence[Entry], is_log: bool, has_floor: bool) -> list[str]:
    notes = [f"definition: {clipped(definition)}"] if definition else []
    if any(not entry.is_resolved and entry.mean is not None for entry in entries):
        notes.append(f"Hollow: {NOT_RESOLVED}.")
    floors = [entry.floor for entry in entries if entry.floor]
    if is_log and floors and not has_floor and _vanishes(entries[0]):
        notes.append(f"The rounding floor, at most {number(max(floors), 2)}, lies below this axis.")
    missing = sum(entry.mean is None for entry in entries)
    return [*notes, *([f"{missing} points without a number are not drawn."] if missing else [])]


def _vanishes(entry: Entry) -> bool:
    """Whether the measure goes to zero with collapse, down to its floor."""
    from rankscope.results.statistics import (
        VANISHING,
    )  # not at the top: it brings polars, which --help can do without

    return entry.measure in VANISHING


def _by_variant(entries: Sequence[Entry]) -> list[Curve]:
    """A line per variant; the final norm belongs to the line of its variant."""
    return [
        Curve(
            VARIANT_WORDS.get(parted(definition)[1], parted(definition)[1]),
            _ordered(entry for entry in entries if entry.definition == definition),
        )
        for definition in dict.fromkeys(entry.definition for entry in entries)
    ]


def _by_site(entries: Sequence[Entry]) -> list[Curve]:
    known = dict.fromkeys([*SITES, *(entry.site for entry in entries)])
    lines = [Curve(site, _ordered(entry for entry in entries if entry.site == site)) for site in known]
    return [line for line in lines if line.entries]


def _ordered(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: (entry.site == FINAL, entry.layer))


def _same_everywhere(entries: Sequence[Entry]) -> str:
    found = means(entries)
    if len(found) < 2 or not all(math.isclose(one, found[0], rel_tol=1e-6) for one in found):
        return ""
    return f"{number(found[0])} everywhere"


def _are_same(entries: Sequence[Entry], others: Sequence[Entry]) -> bool:
    known = {(other.site, other.layer): other.mean for other in others}
    pairs = [(entry.mean, known.get((entry.site, entry.layer))) for entry in entries]
    return all(
        one == other if one is None or other is None else math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
        for one, other in pairs
    )


def means(entries: Iterable[Entry]) -> list[float]:
    """All means that are numbers."""
    return [entry.mean for entry in entries if entry.mean is not None]


# ------------------------------------------------------------------------------------------------------------ maps

TOWARD_ZERO = frozenset({"residual_ratio", "dobrushin", "doeblin"})
TOWARD_ONE = frozenset({"cosine", "token_share", "channel_share", "sink_share"})
COUNTS = frozenset({"massive_tokens", "massive_channels"})
RANKS = frozenset({"effective_rank", "stable_rank", "participation_ratio", "numerical_rank"})

LOG_BELOW = 0.01
"""A ratio that falls below this is colored by its logarithm: how small it is would not be seen otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shade:
    """Values at the dark and at the bright end of the colors; ``dark`` may be the larger one."""

    dark: float
    bright: float
    is_log: bool = False

    def share(self, value: float) -> float:
        """How bright: 0 at the dark end, 1 at the bright one, cut off beyond.

        >>> Shade(dark=1.0, bright=0.0).share(0.25)
        0.75
        """
        if self.is_log:
            value = max(value, min(self.dark, self.bright))
            share = math.log(value / self.dark) / math.log(self.bright / self.dark)
        else:
            share = (value - self.dark) / (self.bright - self.dark)
        return min(1.0, max(0.0, share))


def toward_collapse(measure: str, values: Sequence[float], *, most: float | None = None) -> Shade:
    """Ends of the colors of one measure, dark where tokens are alike or one of them holds everything.

    Ratios and shares run over the whole of 0 to 1 whatever the values, so that a healthy model looks healthy. A ratio
    that falls below 0.01 and all ranks are colored by their logarithm; ``most`` is the largest rank possible. No
    massive token is bright, the most of them dark.
    """
    if measure in TOWARD_ZERO:
        least = min((value for value in values if value > 0), default=1.0)
        if least < LOG_BELOW:
            return Shade(dark=10.0 ** math.floor(math.log10(least)), bright=1.0, is_log=True)
        return Shade(dark=0.0, bright=1.0)
    if measure in TOWARD_ONE:
        return Shade(dark=1.0, bright=0.0)
    if measure in COUNTS:
        return Shade(dark=max([1.0, *values]), bright=0.0)
    if measure in RANKS:
        return Shade(dark=1.0, bright=max([2.0, *values, *([most] if most else [])]), is_log=True)
    return _own_range(values)


def plain_shade(measure: str, values: Sequence[float]) -> Shade:
    """Dark at 0 and bright at 1 for what lies between, dark at the smallest and bright at the largest otherwise."""
    if measure in TOWARD_ZERO | TOWARD_ONE | {"spectral_gap"}:
        return Shade(dark=0.0, bright=1.0)
    if measure == "attention_entropy":
        return Shade(dark=0.0, bright=max([*values, 0.0]) or 1.0)
    return _own_range(values)


def _own_range(values: Sequence[float]) -> Shade:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return Shade(dark=low, bright=high if high > low else low + 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MapColumn:
    """One column of a map: group and name of its head, its colors, and its entry by row, where there is one."""

    group: str
    name: str
    words: str
    shade: Shade
    entries: dict[str, Entry]


def maps(entries: Sequence[Entry], *, site: str, most: float | None, width: int = BROAD) -> list[Grid]:
    """Layers by measures at one site of one stack; at the site block the final norm is the last row."""
    sites = ("block", FINAL) if site == "block" else (site,)
    here = [entry for entry in entries if entry.site in sites]
    columns = list[MapColumn]()
    for base in bases_of(here):
        definitions = dict.fromkeys(one.definition for one in here if parted(one.definition)[0] == base)
        columns += [_column(one, here, most, has_variants=len(definitions) > 1) for one in definitions]
    rows = [one.place for one in _ordered({entry.place: entry for entry in here}.values())]
    found, rest = list[Grid](), iter(columns)
    while piece := list(islice(rest, COLUMNS_BESIDE)):
        found.append(_map(piece, rows, site, width))
    return found


def _column(definition: str, here: Sequence[Entry], most: float | None, *, has_variants: bool) -> MapColumn:
    own = [entry for entry in here if entry.definition == definition]
    base, variant = parted(definition)
    return MapColumn(
        group=label(base),
        name=VARIANT_WORDS.get(variant, variant) if has_variants else "",
        words=full_label(definition),
        shade=toward_collapse(own[0].measure, means(own), most=most),
        entries={entry.place: entry for entry in own},
    )


def _map(columns: Sequence[MapColumn], rows: Sequence[str], site: str, width: int) -> Grid:
    groups = list[tuple[str, int]]()
    for one in columns:
        if groups and groups[-1][0] == one.group:
            groups[-1] = (one.group, groups[-1][1] + 1)
        else:
            groups.append((one.group, 1))

    def ends(value: Callable[[Shade], float]) -> list[str]:
        return [number(value(one.shade), 2) for one in columns]

    return Grid(
        title=f"Means at site {clipped(site)}",
        rows=rows,
        columns=[one.name for one in columns],
        cells=[[_cell(one.entries.get(row), one.shade, f"{one.words}: ") for one in columns] for row in rows],
        groups=groups,
        feet=[("dark", ends(lambda shade: shade.dark)), ("bright", ends(lambda shade: shade.bright))],
        width=width,
    )


def _cell(entry: Entry | None, shade: Shade, words: str) -> GridCell:
    if entry is None:
        return GridCell(None)
    if entry.mean is None:
        return GridCell(None, number(None), f"{words}no number")
    rest = "" if entry.is_resolved else f", {NOT_RESOLVED}"
    return GridCell(
        shade.share(entry.mean), entry.text(2), f"{words}{entry.text()}{rest}", not entry.is_resolved
    )


def head_maps(entries: Sequence[Entry], *, width: int = SMALL) -> list[Grid]:
    """A map per measure of attention: a row per layer, a column per head, mean over texts."""
    found = []
    for definition in dict.fromkeys(entry.definition for entry in entries):
        own = {(entry.layer, entry.head): entry for entry in entries if entry.definition == definition}
        first = next(iter(own.values()))
        shade = plain_shade(first.measure, means(own.values()))
        layers = sorted({layer for layer, _ in own})
        heads = sorted({head for _, head in own if head is not None})
        found.append(
            Grid(
                title=_title(full_label(definition)),
                rows=[str(layer) for layer in layers],
                columns=[str(head) for head in heads],
                cells=[[_cell(own.get((layer, head)), shade, "") for head in heads] for layer in layers],
                across="head",
                ends=(number(shade.dark, 2), number(shade.bright, 2)),
                notes=[clipped(definition)],
                width=width,
            )
        )
    return found
