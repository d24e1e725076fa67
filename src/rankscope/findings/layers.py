"""``rankscope rate`` of a layer, or of every block of a model as one: what it makes of nearly equal tokens."""

import math
from typing import Any, ClassVar

from rankscope.charts import Bar, Bars, Chart
from rankscope.core.words import NOTHING, count, number, ranges
from rankscope.document import Column, Document, Facts, Notes, Section, Tabular, Tone, Verdict, some
from rankscope.findings.atlas import (
    KEPT,
    WHY_NO_RATE,
    LayerFacts,
    depth_differs,
    ends_of,
    factor_words,
    is_settled,
    rate_cell,
    rate_text,
    varying_order,
)
from rankscope.findings.base import Finding


class BlockFacts(LayerFacts):
    """The facts of one block, or of the one layer that was given."""

    block: int
    """Its number, from 1."""

    path: str = ""
    """Where the module is in its model; empty for a function."""


class LayersFinding(Finding):
    """What a layer, or every block of a model, makes of equal and of nearly equal tokens."""

    command: ClassVar[str] = "layers"

    subject: str
    """Name of the layer, or of the model."""

    is_model: bool
    """Whether these are the blocks of a model."""

    blocks: tuple[BlockFacts, ...]
    """The layer, or every block of the model in the order in which they run."""

    @property
    def words(self) -> tuple[str, ...]:
        """What becomes of equal tokens, how fast nearly equal ones become equal, and what is not known."""
        first = self.blocks[0]
        if len(self.blocks) == 1:
            who = f"Block 1 of {self.subject}" if self.is_model else self.subject
            return tuple(said_of(who, first))
        return (self._conclusion(), *self._laws())

    def _conclusion(self) -> str:
        falling = [one.block for one in self.blocks if one.collapses]
        kinds = {one.consensus for one in self.blocks if one.collapses}
        what = "tokens" if kinds != {"directions"} else "directions of tokens"
        what = "tokens or their directions" if {"directions", "kept"} <= kinds else what
        keeping = [one.block for one in self.blocks if one.consensus == "kept"]
        whole = count(len(self.blocks), "block")
        return (
            f"Of {whole} of {self.subject}, {_those(keeping, self.blocks)} equal tokens equal, and copies of "
            f"{_copies(falling, self.blocks)} make {what} equal over depth."
        )

    def _laws(self) -> list[str]:
        """What is said of blocks, with the blocks that it is said of."""
        found = dict[str, list[int]]()
        for one in self.blocks:
            found.setdefault(law_of(one), []).append(one.block)
        return [f"{_named(blocks)}: {law}." for law, blocks in found.items()]

    @property
    def headline(self) -> str:
        """The law in a few words."""
        first = self.blocks[0]
        if len(self.blocks) > 1:
            kept = sum(one.consensus == "kept" for one in self.blocks)
            return f"{kept} of {count(len(self.blocks), 'block')} keep equal tokens equal"
        if first.consensus == "none":
            return "Equal tokens do not stay equal"
        who = "Directions of tokens" if first.consensus == "directions" else "Tokens"
        return (
            f"{who} become equal over depth" if first.collapses else f"{who} do not become equal over depth"
        )

    @property
    def tone(self) -> Tone:
        """Red where tokens become equal."""
        if any(one.collapses for one in self.blocks):
            return "bad"
        return "unknown" if any(one.collapses is None for one in self.blocks) else "good"

    @property
    def notes(self) -> tuple[str, ...]:
        """What numbers mean, and what limits them."""
        coarse = sorted({one.precision for one in self.blocks} - {"float64"})
        kinks = [one.kink for one in self.blocks if one.kink is not None and not _is_above(one)]
        above = [one.kink for one in self.blocks if one.kink is not None and _is_above(one)]
        said = {
            f"The layer computes in {', '.join(coarse)}: floors are those of that arithmetic.": bool(coarse),
            f"Orders are read below a kink at the scale {number(min(kinks, default=None))}.": bool(kinks),
            f"Orders are read above a kink at the scale {number(min(above, default=None))}: below it too few scales "
            "are above rounding.": bool(above),
            "A state starts at zero: orders and rates are those of the second half of the tokens.": any(
                one.from_token for one in self.blocks
            ),
            "No row was found that the layer maps to a multiple of itself; the rate is the same at all rows that were "
            "tried.": any(
                one.rate_at == "given" and one.rate_low is None and is_settled(one) for one in self.blocks
            ),
            "No row was found that the layer maps to a multiple of itself: the rate is that at a random row.": any(
                one.rate_at == "given" and one.rate_low is None and not is_settled(one) for one in self.blocks
            ),
            "No row was found that the layer maps to a multiple of itself, and the rate depends on the row: it is that "
            "of one random row, and its ends are those of three.": any(
                one.rate_low is not None for one in self.blocks
            ),
        }
        return tuple(words for words, holds in said.items() if holds)

    def document(self) -> Document:
        """The conclusion, the facts of one layer, or a table of all blocks."""
        one = len(self.blocks) == 1
        first = self.blocks[0]
        return Document(
            title=f"Orders and rates of {self.subject}",
            command="rate",
            facts=[
                f"{first.tokens} tokens x {first.dim}",
                count(len(self.blocks), "block" if self.is_model else "layer"),
            ],
            blocks=some(
                Verdict(self.headline, self.words, self.tone),
                one
                and Facts(
                    [(label, said) for name, label in SHOWN.items() if (said := fact(first, name)) != NOTHING]
                ),
                bool(self.notes) and Notes(self.notes),
                not one and Section("By block", [self._table()]),
            ),
            definitions=list(DEFINITIONS.items()),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """One bar per block: the factor per layer near consensus, and the orders of residual and directions."""
        wanted = {"rate": "Factor per layer near consensus", "residual_order": "Order of the residual"}
        wanted["direction_order"] = "Order of directions"
        held = {title: (name, self._bars(name)) for name, title in wanted.items()}
        pictures = [Bars(title=title, bars=bars, value=name) for title, (name, bars) in held.items() if bars]
        gaps = Bars(title="Residual ratio of equal tokens", bars=self._bars("consensus_gap"), value="gap")
        return Chart(pictures or [gaps])

    def _bars(self, name: str) -> list[Bar]:
        known = [(one.block, getattr(one, name)) for one in self.blocks]
        ends = {
            one.block: (one.rate_low, one.rate_high) for one in self.blocks if name == "rate" and one.rate_low
        }
        texts = {one.block: fact(one, name) for one in self.blocks}
        return [
            Bar(
                f"block {at}",
                value,
                text=texts[at],
                low=ends.get(at, NO_ENDS)[0],
                high=ends.get(at, NO_ENDS)[1],
            )
            for at, value in known
            if value is not None and math.isfinite(value)
        ]

    def _table(self) -> Tabular:
        names = ("consensus", "residual_order", "direction_order", "rate", "rate_normed", "fall", "collapses")
        words = ("consensus", "collapses")
        columns = [Column("block", "number")]
        columns += [
            Column(one.replace("_", " "), "name" if one in words else "number", optional=True)
            for one in names
        ]
        return Tabular(
            columns=columns,
            rows=[[str(one.block), *(fact(one, name) for name in names)] for one in self.blocks],
        )


NO_ENDS = (None, None)


def _is_above(facts: LayerFacts) -> bool:
    """Whether the smallest scale at which an order was read is above the kink."""
    return facts.kink is not None and facts.scales is not None and facts.scales[0] >= facts.kink


SHOWN = {
    "consensus": "equal tokens",
    "consensus_gap": "residual ratio that equal tokens get",
    "residual_order": "order p of the residual, out ~ in^p",
    "direction_order": "order q of directions",
    "rate": "factor per layer near consensus",
    "rate_uncertainty": "how far the factor may be off",
    "rate_normed": "the same with tokens brought to one length",
    "fall": "factor over 400 layers, with an orthogonal map after each",
    "collapses": "tokens, or the directions they keep, become equal over depth",
    "scales": "scales of the residual",
    "slem": "second eigenvalue modulus of the map",
    "rank_cap": "rank of the map",
    "entropy": "entropy of its rows",
    "dobrushin": "its Dobrushin coefficient",
}
"""Facts with their names on the page."""

CONSENSUS = {"kept": "stay equal", "directions": "keep their direction", "none": "do not stay equal"}

DEFINITIONS = {
    "residual_order": "X = 1 x + s R: the exponent p of ||f(X) - mean|| / ||f(X)|| ~ s^p as s -> 0",
    "direction_order": "the same exponent with every token of f(X) at unit length",
    "rate": "spectral radius of the derivative at 1 x modulo common rows, over that on common rows",
}


def law_of(facts: LayerFacts) -> str:
    """What nearly equal tokens become, without a subject."""
    p, q = facts.residual_order, facts.direction_order
    if p is None and q is None:
        return (
            "it keeps no consensus, so there is no order"
            if facts.consensus == "none"
            else "no order was found"
        )
    said = [
        f"the residual has the order {_order(p)}" if p is not None else "lengths differ whatever the tokens",
        f"directions have the order {_order(q)}" if q is not None else "a token has no direction",
    ]
    if facts.rate is not None:
        low, high = (number(one, 2) for one in ends_of(facts))
        about = "depends on the tokens" if facts.rate_low is not None else "is not settled"
        said.append(
            f"the factor per layer is {rate_text(facts.rate, 6, facts.rate_uncertainty)}"
            if is_settled(facts)
            else f"the factor per layer {about} ({low} to {high})"
        )
    return ", ".join(said)


def said_of(who: str, facts: LayerFacts) -> list[str]:
    """Sentences about one layer; the first is the conclusion."""
    p, q = facts.residual_order, facts.direction_order
    said = list[str]()
    match facts.consensus:
        case "kept":
            said.append(f"{who} keeps equal tokens equal.")
        case "directions":
            gap = number(facts.consensus_gap)
            said.append(
                f"{who} keeps the directions of equal tokens, but not their lengths (residual ratio {gap})."
            )
        case "none":
            gap = number(facts.consensus_gap)
            said.append(f"{who} does not keep equal tokens equal: they get a residual ratio of {gap}.")
    later = f" of the tokens from number {facts.from_token + 1} on" if facts.from_token else ""
    if p == math.inf and not varying_order(facts, "residual"):
        said.append("One layer makes nearly equal tokens equal, up to rounding.")
    elif varying := varying_order(facts, "residual"):
        said.append(f"Differences between tokens {varying}.")
    elif p is not None:
        said.append(f"A small residual ratio{later} s becomes one of the order s^{_order(p)}.")
    if q is not None and (p is None or _order(q) != _order(p)):
        what = "become equal in one layer" if q == math.inf else f"differ by the order s^{_order(q)}"
        said.append(f"Directions{later} {what}.")
    if facts.rate is not None:
        differs = depth_differs(facts)
        relative = " relative to changes of the common token" if differs else ""
        said.append(f"Near consensus the residual changes {factor_words(facts, 6)}{relative}.")
        if differs and facts.collapses and abs(facts.rate - 1) <= 1 - KEPT:
            said.append("Changes of the common token fall just as fast, and over depth both vanish.")
    elif facts.rate_missing is not None:
        said.append(f"There is no rate: {WHY_NO_RATE[facts.rate_missing]}.")
    if facts.collapses is not None:
        what = "the directions of tokens" if facts.consensus == "directions" else "tokens"
        said.append(f"Over depth {what} {'become' if facts.collapses else 'do not become'} equal.")
    return said


def fact(facts: LayerFacts, name: str) -> str:
    """One fact as a cell."""
    value: Any = getattr(facts, name)
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case str():
            return CONSENSUS.get(value, value)
        case int():
            return str(value)
        case tuple():
            return f"{number(value[0])} to {number(value[1])}"
    match name:
        case "rate":
            return rate_cell(facts)
        case "rate_normed":
            return rate_text(value, 6, facts.rate_normed_uncertainty)
        case "rate_uncertainty":
            return number(value, 2)
    return _order(value) if name.endswith("_order") else number(value, 6)


def _order(value: float) -> str:
    """An order in few digits; what one layer makes equal has none.

    >>> _order(2.9999), _order(math.inf)
    ('3', 'exact')
    """
    return "exact" if value == math.inf else number(round(value, 2) + 0.0, 3)


def _named(blocks: list[int]) -> str:
    return f"Block{'s' * (len(blocks) > 1)} {ranges(blocks)}"


def _those(blocks: list[int], every: tuple[BlockFacts, ...]) -> str:
    if not blocks:
        return "none keeps"
    return "all keep" if len(blocks) == len(every) else f"{len(blocks)} keep{'s' * (len(blocks) == 1)}"


def _copies(blocks: list[int], every: tuple[BlockFacts, ...]) -> str:
    return (
        "none"
        if not blocks
        else "each"
        if len(blocks) == len(every)
        else f"block{'s' * (len(blocks) > 1)} {ranges(blocks)}"
    )
