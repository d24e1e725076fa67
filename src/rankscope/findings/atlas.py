"""The facts of a layer: does it keep equal tokens equal, and how fast does it make nearly equal ones equal?

``rankscope atlas`` shows them for every layer that has a name, ``rankscope rate FILE.py:function`` for one's own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import FiniteFloat, field_validator

from rankscope.charts import Chart, Grid, GridCell
from rankscope.core.words import NOTHING, clipped, count, listed, number
from rankscope.document import Cell, Column, Document, Figure, Notes, Prose, Section, Tabular, Verdict, some
from rankscope.findings.asked import CommandConfig, View, option
from rankscope.findings.base import Finding, Number, Quoted, Value, Words

Consensus = Literal["kept", "directions", "none"]
"""What a layer makes of equal tokens: equal tokens, tokens of one direction but different lengths, or neither."""

Around = Literal["bare", "skip", "norm", "skip+norm"]
"""What stands around a layer f: nothing, x + f(x), norm(f(x)) or norm(x + f(x)), with one LayerNorm per token."""

AROUND: tuple[Around, ...] = ("bare", "skip", "norm", "skip+norm")

Order = Annotated[float, Words(exact=math.inf)] | None
"""The exponent p of out ~ in^p; "exact" in JSON where one layer makes all tokens equal; null where there is none."""


NoRate = Literal["no derivative", "nothing common", "tokens vanish"]
"""Why there is no rate though an order is one: the layer has a kink at equal tokens; it maps what equal tokens have in
common to zero; or its copies leave some tokens without a length, and so without a direction."""


WHY_NO_RATE: dict[NoRate, str] = {
    "no derivative": "the layer has no derivative at equal tokens",
    "nothing common": "what equal tokens have in common becomes zero",
    "tokens vanish": "copies of the layer leave some tokens without a length",
}
"""The same in words."""


class LayerFacts(Value):
    """How a layer f treats tokens X = 1 x + s R that are nearly equal: s is small, R is any token matrix."""

    around: Around = "bare"
    """What stands around the layer."""

    tokens: int
    """Tokens of the matrices that it was tried on."""

    dim: int
    """Their dimension."""

    precision: str = "float64"
    """The dtype in which the layer computes; floors follow from it."""

    consensus: Consensus
    """What becomes of equal tokens."""

    consensus_gap: FiniteFloat
    """Residual ratio of f(1x) (Frobenius norm, mean as centre): 0 where equal tokens stay equal."""

    consensus_gap_unit: Number
    """The same of tokens at unit length; null where a token has length zero."""

    residual_order: Order
    """The exponent p of residual ratio ~ s^p."""

    residual_order_low: Order = None
    """Smallest exponent of the draws."""

    residual_order_high: Order = None
    """Largest exponent of the draws."""

    direction_order: Order
    """The exponent q of the same with tokens at unit length."""

    direction_order_low: Order = None
    """Smallest exponent of the draws."""

    direction_order_high: Order = None
    """Largest exponent of the draws."""

    scales: tuple[FiniteFloat, FiniteFloat] | None = None
    """Smallest and largest scale s at which slopes were read."""

    kink: Number = None
    """Smallest scale at which a draw meets a kink of the layer; orders are read below it. Null where none was met."""

    rate: Number = None
    """Factor per layer of what is unequal over what is equal, near consensus; null unless an order is one.

    Where no row is found that the layer maps to a multiple of itself, it is that at the given row.
    """

    rate_normed: Number = None
    """The same with every token brought to one length after every layer; of layers that keep directions alone."""

    rate_at: Literal["fixed point", "given"] | None = None
    """Whether the rate is taken at a row that the layer maps to a multiple of itself, or at the row that was given."""

    rate_low: Number = None
    """Smallest rate of the given row and two others, where it depends on the row. Else null."""

    rate_high: Number = None
    """Largest rate of these rows, where it depends on the row. Else null."""

    rate_uncertainty: Number = None
    """How far the rate may be off: from the arithmetic, and from draws of x that give another."""

    rate_normed_uncertainty: Number = None
    """How far the rate with tokens at one length may be off."""

    rate_missing: NoRate | None = None
    """Why there is no rate though an order is one; null where there is a rate, or where no order is one."""

    fall: Number = None
    """Factor per layer that was measured over many layers, with one orthogonal value map after each; null where there
    is none, or where rounding hides it."""

    collapses: bool | None = None
    """Whether 400 copies of the layer make tokens equal, or their directions where the layer keeps these alone; null
    where that could not be told."""

    from_token: int = 0
    """First token that orders and rates count: half of them where a state starts at zero, else 0."""

    slem: Number = None
    """Second largest eigenvalue modulus of the map, where the layer is linear in its values."""

    rank_cap: int | None = None
    """Rank of the map: no output has a higher one."""

    entropy: Number = None
    """Mean entropy of the rows of the map in nats, where they are probabilities."""

    dobrushin: Number = None
    """Largest factor by which the map shrinks the diameter of tokens, where its rows are probabilities."""


NEAR_ORDER = 0.02
"""Orders are whole numbers; one that was measured may be off by this much."""

SAME_ORDER = 0.1
"""Orders of three draws that lie within this are one."""

KEPT = 1 - 1e-6
"""A rate from here on keeps differences for ever."""

NEVER = 1 - 1e-4
"""A rate below this would make tokens equal over depth."""

NO_RATE = 1e-9
"""A smaller rate is nothing but rounding."""

SETTLED = 0.1
"""A rate that may be off by more than this share of itself has hardly one sure digit: its ends are said instead."""

MOST_SENTENCES = 4
"""Layers that get a sentence each in the conclusion; of more, one sentence counts them."""


class AtlasConfig(CommandConfig):
    """Show how fast each kind of layer makes tokens equal: attention of all kinds, masks, recurrent layers, graphs.

    Tokens are put at X = 1 x + s R with a small s. The order p says that differences s become s^p; where the order is
    one, the rate is the factor per layer. Two orders are given: of the residual, and of the directions of tokens,
    which is what a norm behind the layer leaves. Finished rows are kept, so that the same question is answered at
    once; --fresh computes them again.
    """

    group = "Layers"
    only: tuple[str, ...] = option((), "Names or groups of 'rankscope list mixers'.", shown="all")
    around: tuple[Around, ...] = option(
        AROUND, "What stands around the layer: bare, skip, norm, skip+norm.", min_length=1
    )
    tokens: int = option(64, "Tokens that a layer is tried on; a graph has its own number.", ge=2, le=4096)
    dim: int = option(32, "Width of a token.", ge=2, le=4096)
    seed: int = option(0, "Of the weights and of the directions that are tried.", ge=0, lt=2**63)

    @field_validator("only", "around")
    @classmethod
    def _each_once(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(items))


class AtlasView(View):
    """What changes no number."""

    group = "What is shown"
    fresh: bool = option(False, "Compute every row again, also those that were kept.")
    workers: int | None = option(
        None, "Processes that compute rows where many are missing.", ge=1, le=64, shown="one per processor"
    )


class MixerFacts(LayerFacts, title="Mixer"):
    """One layer of the atlas, with what stands around it."""

    name: str
    """What it is called in 'rankscope list mixers'."""

    group: str
    """What it stands with."""

    computes: Quoted
    """What it computes."""

    source: Quoted | None = None
    """Where it comes from."""

    @property
    def title(self) -> str:
        """Its name, with what stands around it."""
        return self.name if self.around == "bare" else f"{self.name}, {self.around}"

    @property
    def words(self) -> str:
        """What it does to tokens that are nearly equal, in one sentence."""
        return said_of(self)


def said_of(facts: LayerFacts) -> str:
    """One sentence: what becomes of equal tokens, and of small differences between them."""
    if facts.consensus == "none":
        start = f"Equal tokens become different (residual ratio {number(facts.consensus_gap)})"
        if not facts.from_token or facts.residual_order is None:
            return f"{start}: there is no order."
        return f"{start}; from token {facts.from_token + 1} on, {_fall(facts)}."
    if facts.consensus == "directions":
        return f"Equal tokens keep one direction but get different lengths; {_fall(facts)}."
    text = _fall(facts)
    return f"{text[:1].upper()}{text[1:]}."


def _fall(facts: LayerFacts) -> str:
    """What becomes of small differences, as part of a sentence."""
    whole, turned = facts.residual_order, facts.direction_order
    if facts.consensus == "directions" or whole is None:
        return f"differences of direction {varying_order(facts, 'direction') or _power(turned, facts)}"
    if varying := varying_order(facts, "residual"):
        return f"differences between tokens {varying}"
    if whole == turned or (turned is not None and abs(whole - turned) <= NEAR_ORDER):
        return "differences between tokens " + _power(whole, facts)
    return (
        f"differences between tokens {_power(whole, facts)}, but those of their directions "
        f"{_power(turned, None)}"
    )


def varying_order(facts: LayerFacts, kind: Literal["residual", "direction"]) -> str:
    """That three random rows have different orders, as those of a layer that is dead at some of them; else empty."""
    ends = getattr(facts, f"{kind}_order_low"), getattr(facts, f"{kind}_order_high")
    low, high = (order_text(one) for one in ends)
    if None in ends or low == high or ends[1] - ends[0] <= SAME_ORDER:
        return ""
    return f"have an order that depends on the tokens ({low} to {high} at three random ones)"


def _power(order: float | None, facts: LayerFacts | None) -> str:
    if order is None:
        return "have no order"
    if math.isinf(order):
        return "are gone after one layer"
    named = {2: "are squared by every layer", 3: "are cubed by every layer"}
    if abs(order - 1) > NEAR_ORDER:
        near = named.get(round(order)) if abs(order - round(order)) <= NEAR_ORDER else None
        return near or f"are raised to the power {number(order)} by every layer"
    if facts is None:
        return "change by a factor per layer"
    if facts.rate is None:
        why = "" if facts.rate_missing is None else f" that cannot be told: {WHY_NO_RATE[facts.rate_missing]}"
        return f"change by a factor per layer{why}"
    low, high = ends_of(facts)
    is_one = is_settled(facts) and abs(facts.rate - 1) <= 1 - KEPT
    verb = "fall" if high < 1 else "grow" if low > 1 else "change"
    if not depth_differs(facts):
        return "do not all fall" if is_one else f"{verb} {factor_words(facts)}"
    fall = fall_of(facts)
    by = "" if fall is None else f", by a factor {number(fall)} per layer"
    if is_one:
        return f"fall as changes of the common token do, and over depth both vanish{by}"
    ends = "vanish" if facts.collapses else "do not vanish" if fall is None else "grow"
    return f"{verb} {factor_words(facts)} relative to changes of the common token, and over depth they {ends}{by}"


def depth_differs(facts: LayerFacts) -> bool:
    """Whether copies of the layer do what the rate does not say: tokens become equal though it is one, or the reverse.

    The rate compares differences between tokens with changes of the row that they have in common, not with that row.
    A layer that treats every token by itself, such as attention to a fixed memory, does the same to both; if it brings
    every token to one place, both vanish, and the common row stays. Where changes of the row grow, so that it never
    comes to rest, differences may grow as well, and yet be small beside these.
    """
    if facts.rate is None or facts.collapses is None or facts.consensus == "none":
        return False
    low, high = (facts.rate, facts.rate) if is_settled(facts) else ends_of(facts)
    return low >= KEPT if facts.collapses else high < NEVER


def fall_of(facts: LayerFacts) -> float | None:
    """The measured factor per layer, where it says the same of depth as copies of the layer alone do."""
    return facts.fall if facts.fall is not None and (facts.fall < 1) == facts.collapses else None


def ends_of(facts: LayerFacts) -> tuple[float, float]:
    """Between which numbers the rate is: those of the draws where it depends on the tokens, else those of rounding."""
    rate, off = facts.rate or 0.0, facts.rate_uncertainty or 0.0
    if facts.rate_low is not None and facts.rate_high is not None:
        return facts.rate_low, facts.rate_high
    return max(rate - off, 0.0), rate + off


def is_settled(facts: LayerFacts) -> bool:
    """Whether the rate is one number, not an interval."""
    return facts.rate is None or (facts.rate_uncertainty or 0.0) <= max(SETTLED * facts.rate, NO_RATE)


def factor_words(facts: LayerFacts, digits: int = 4) -> str:
    """By which factor: with the digits that are sure, or why there is no one number, and between which it is."""
    low, high = (number(one, 2) for one in ends_of(facts))
    rate, off = facts.rate or 0.0, facts.rate_uncertainty or 0.0
    if is_settled(facts):
        shown = f" ± {number(off, 1)}" if off > 10.0**-digits * max(rate, NO_RATE) and rate > NO_RATE else ""
        return f"by a factor {rate_text(rate, digits, off)}{shown} per layer"
    if facts.rate_low is not None:
        return f"by a factor per layer that depends on the tokens ({low} to {high} at three random ones)"
    return f"by a factor per layer that is not settled ({low} to {high})"


def rate_cell(facts: LayerFacts, digits: int = 6) -> str:
    """The rate in a cell: with the digits that are sure, or as an interval."""
    if is_settled(facts):
        return rate_text(facts.rate, digits, facts.rate_uncertainty)
    return " to ".join(number(one, 2) for one in ends_of(facts))


def speed_of(facts: LayerFacts) -> float | None:
    """The share of small differences that one layer leaves: 0 where the order is above one, else the rate.

    None where there is no order, or no rate.
    """
    order = facts.residual_order if facts.consensus != "directions" else facts.direction_order
    if order is None:
        return None
    return 0.0 if order > 1 + NEAR_ORDER else factor_of(facts)


def factor_of(facts: LayerFacts) -> float | None:
    """By what differences change per layer: the rate, or the measured fall where the rate is not what depth shows.

    Of a rate that is no one number it is the middle of its ends.
    """
    if depth_differs(facts) and (fall := fall_of(facts)) is not None:
        return fall
    return facts.rate if is_settled(facts) else sum(ends_of(facts)) / 2


def order_text(order: float | None) -> str:
    """An order in a cell.

    >>> order_text(3.0001), order_text(math.inf), order_text(None), order_text(1.5)
    ('3', 'exact', '-', '1.5')
    """
    if order is None:
        return NOTHING
    if math.isinf(order):
        return "exact"
    return number(float(round(order)) if abs(order - round(order)) <= NEAR_ORDER else order)


def rate_text(rate: float | None, digits: int = 4, off: float | None = None) -> str:
    """A rate with at most so many digits, and none below the first of how far it may be off.

    One that is rounding alone is written as such; one of which no digit is sure keeps its first, after a ~.

    >>> rate_text(0.896142), rate_text(1e-31), rate_text(None)
    ('0.8961', '< 1e-9', '-')
    >>> rate_text(0.556444, 6, 0.033), rate_text(0.9975, 6, 0.097), rate_text(0.0144, 6, 0.011)
    ('0.56', '1', '~0.01')
    """
    if rate is not None and rate < NO_RATE:
        return "< 1e-9"
    if rate is None or not off:
        return number(rate, digits)
    # 0.097 is a tenth: its first digit is the one that it has after rounding
    sure = math.floor(math.log10(rate)) - math.floor(math.log10(float(f"{off:.0e}"))) + 1
    about = "~" if off > SETTLED * rate else ""
    return about + number(rate, max(1, min(digits, sure)))


class AtlasFinding(Finding):
    """Layers, and how fast each makes tokens equal."""

    command: ClassVar[str] = "atlas"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = {
        "mixer": "Name of the layer.",
        "group": "What it stands with.",
        "around": "What stands around it: bare, skip, norm or skip+norm.",
    }

    mixers: tuple[MixerFacts, ...]
    """Every layer with everything that stands around it."""

    left_out: tuple[str, ...] = ()
    """Layers that need a package which is not installed."""

    @property
    def words(self) -> tuple[str, ...]:
        """How many layers raise differences to a power, how many shrink them by a factor, how many do neither."""
        if not self.mixers:
            return ("No layer was tried.",)
        first = self.mixers[0].around
        own = [one for one in self.mixers if one.around == first]
        if len(self.mixers) <= MOST_SENTENCES:
            return tuple(f"{one.title}: {one.words}" for one in self.mixers)
        kinds = {
            "raising differences to a power above one, or leaving none": [
                one for one in own if one.consensus == "kept" and (speed_of(one) == 0.0)
            ],
            "shrinking them by a factor": [
                one for one in own if one.consensus == "kept" and 0 < (speed_of(one) or 0) < KEPT
            ],
            "leaving some of them as they are": [
                one for one in own if one.consensus == "kept" and (speed_of(one) or 0) >= KEPT
            ],
            "keeping only the direction of equal tokens": [
                one for one in own if one.consensus == "directions"
            ],
            "making equal tokens different": [one for one in own if one.consensus == "none"],
        }
        what = {"bare": "layers", "skip": "layers with a skip", "norm": "layers with a norm"}
        said = [
            f"{len(own)} {what.get(first, 'layers with skip and norm')}: "
            + "; ".join(f"{len(some_)} {kind}" for kind, some_ in kinds.items() if some_)
            + "."
        ]
        return (*said, *self._over_depth)

    @property
    def _over_depth(self) -> tuple[str, ...]:
        """How many collapse, by what stands around them."""
        said = []
        for around in dict.fromkeys(one.around for one in self.mixers):
            known = [one for one in self.mixers if one.around == around and one.collapses is not None]
            if known:
                fallen = sum(bool(one.collapses) for one in known)
                said.append(f"{around} {fallen} of {len(known)}")
        alone = any(one.collapses and one.consensus == "directions" for one in self.mixers)
        who = "Tokens, or the directions that a layer keeps alone," if alone else "Tokens"
        return (f"{who} become equal over depth: {', '.join(said)}.",) if said else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the columns mean, and what is missing."""
        some_ = self.mixers[0] if self.mixers else None
        said = []
        if some_ is not None:
            said.append(
                f"Orders and rates are those near consensus, at {some_.tokens} tokens of width {some_.dim} "
                "(a graph has its own number of tokens). They say nothing of tokens that are far apart."
            )
        if self.left_out:
            said.append(
                f"Left out, because a package is missing: {listed(self.left_out)}; pip install 'rankscope[graphs]'."
            )
        return tuple(said)

    def document(self) -> Document:
        """The conclusion, the pictures, the whole table, and a sentence for each row."""
        groups = dict.fromkeys(one.group for one in self.mixers)
        tables = [
            Section(
                group.capitalize(),
                [_tabular([one for one in self.mixers if one.group == group])],
            )
            for group in groups
        ]
        return Document(
            title="Atlas of layers: how fast each makes tokens equal",
            command=self.command,
            facts=[count(len({one.name for one in self.mixers}), "layer")],
            blocks=some(
                Verdict("How fast layers make tokens equal", self.words, "look"),
                Notes(self.notes) if self.notes else None,
                Section("Pictures", [Figure(one) for one in self.chart().pictures], only="html"),
                *tables,
                Section("What each layer computes", [self._sentences()], only="html", folded=True),
            ),
            definitions=DEFINITIONS,
            origin=self.provenance,
        )

    def _sentences(self) -> Prose:
        own = {one.name: one for one in self.mixers}
        return Prose(
            [f"{one.name}: {one.computes}{f' ({one.source})' if one.source else ''}" for one in own.values()]
        )

    def chart(self) -> Chart:
        """For each group, where its layers stand between equal at once and kept; below, what skips and norms change."""
        first = self.mixers[0].around if self.mixers else "bare"
        own = [one for one in self.mixers if one.around == first]
        pictures = [
            _map(group, sorted((one for one in own if one.group == group), key=_by_speed))
            for group in dict.fromkeys(one.group for one in self.mixers)
        ]
        arounds = list(dict.fromkeys(one.around for one in self.mixers))
        if len(arounds) > 1:
            pictures.append(self._grid(arounds))
        named = "" if first == "bare" else f" ({first})"
        return Chart(
            pictures,
            title=f"How fast each kind of layer makes tokens equal{named}",
            notes=(
                "Left: at once. Right: never. A number is the order of the residual where it is above one, else its "
                f"rate per layer (~ where it depends on the tokens); {RING} stands where the directions of tokens "
                "differ from that.",
            ),
        )

    def _grid(self, arounds: Sequence[Around]) -> Grid:
        found = {(one.name, one.around): one for one in self.mixers}
        names = list(dict.fromkeys(one.name for one in self.mixers))
        return Grid(
            title="With skips and norms" if any("norm" in one for one in arounds) else "With skips",
            rows=names,
            columns=list(arounds),
            cells=[[_cell(found.get((name, around))) for around in arounds] for name in names],
            down="",
            ends=("gone after one layer", "kept"),
            notes=("The share of small differences that one layer leaves; white: no order.",),
        )


DEFINITIONS = (
    (
        "residual order",
        "the p of residual ratio of f(1 x + s R) ~ s^p as s falls (Frobenius norm, token mean)",
    ),
    ("direction order", "the same with every token at unit length"),
    (
        "rate",
        "spectral radius of the derivative at equal tokens on differences of tokens, divided by that on common rows",
    ),
    ("exact", "all tokens are equal after one layer, up to rounding, at every scale s"),
)


def _by_speed(one: MixerFacts) -> tuple[int, float, float, str]:
    """Fastest first: equal at once, by order, by rate; what has no order is last."""
    share, order = speed_of(one), one.residual_order
    if share is None:
        return (1 if order is not None else 2, 0.0, 0.0, one.name)
    return (0, round(share, 9), -round(order or 0.0, 1), one.name)


PLACES = ("at once", "3", "2", "< 0.5", "< 0.9", "< 1", "kept", "no rate")
"""Columns of the map, from fast to slow: by order where it is above one, then by rate."""

OVER = (("order above one", 3), ("order one, by its rate", 4), ("neither", 1))
"""Headings over them."""

RING = "○"


def _place(order: float | None, rate: float | None) -> int:
    """Which of the ``PLACES`` an order and its rate belong to.

    >>> [PLACES[_place(*pair)] for pair in ((math.inf, None), (3.0, None), (1.0, 0.5), (1.0, 1.0), (None, None))]
    ['at once', '3', '< 0.9', 'kept', 'no rate']
    >>> PLACES[_place(1.0, 0.5 - 1e-15)]
    '< 0.9'
    """
    if order is None or (rate is None and order <= 1 + NEAR_ORDER):
        return len(PLACES) - 1
    if order > 1 + NEAR_ORDER:
        return 0 if math.isinf(order) else 1 if order > 2.5 else 2
    # rounding must not part equal rates: 1/2 of one layer may be 1/2 - 1e-16 of another
    return 3 + sum(round(rate or 0.0, 9) >= limit for limit in (0.5, 0.9, KEPT))


def _map(group: str, mixers: Sequence[MixerFacts]) -> Grid:
    """One row per layer: a cell where its residual stands, and a ring where its directions do if that is elsewhere."""
    cells = []
    for one in mixers:
        turned = _place(one.direction_order, factor_of(one))
        place = turned if one.consensus == "directions" else _place(one.residual_order, factor_of(one))
        row = [GridCell(None) for _ in PLACES]
        if turned != place:
            row[turned] = GridCell(None, text=RING, tip=one.words)
        row[place] = GridCell(
            place / (len(PLACES) - 2) if place < len(PLACES) - 1 else None, text=_figure(one), tip=one.words
        )
        cells.append(row)
    return Grid(
        title=group.capitalize(),
        rows=[one.name for one in mixers],
        columns=PLACES,
        cells=cells,
        down="",
        groups=OVER,
    )


def _figure(one: LayerFacts) -> str:
    """The order where it is above one, the rate where it is one."""
    order = one.direction_order if one.consensus == "directions" else one.residual_order
    if order is None:
        return NOTHING
    if order > 1 + NEAR_ORDER:
        return order_text(order)
    if one.rate is None:  # alone a 1 would be a rate
        return f"order {order_text(order)}"
    measured = depth_differs(one) and fall_of(one) is not None
    return rate_text(factor_of(one), 4, None if measured else one.rate_uncertainty)


def _cell(one: MixerFacts | None) -> GridCell:
    if one is None:
        return GridCell(None)
    share = speed_of(one)
    return GridCell(None if share is None else min(share, 1.0), text=_figure(one), tip=one.words)


def _tabular(mixers: Sequence[MixerFacts]) -> Tabular:
    numbers = ("residual", "direction", "rate", "normed")
    heads = (
        "layer",
        "around",
        "consensus",
        "residual",
        "direction",
        "rate",
        "normed",
        "over depth",
        "in words",
    )
    columns = [
        Column(
            head, "number" if head in numbers else "words" if head == "in words" else "name", optional=True
        )
        for head in heads
    ]
    return Tabular(columns=columns, rows=[_row(one) for one in mixers])


def _row(one: MixerFacts) -> list[Cell | str]:
    depth = {True: "collapses", False: "does not", None: NOTHING}[one.collapses]
    return [
        one.name,
        one.around,
        one.consensus,
        order_text(one.residual_order),
        order_text(one.direction_order),
        rate_cell(one),
        rate_text(one.rate_normed, 6, one.rate_normed_uncertainty),
        depth,
        clipped(one.words, 200),
    ]
