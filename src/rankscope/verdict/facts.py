"""What the panel says about one layer, and what follows from it by arithmetic alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.core.numerics import DTYPES, relative_floor
from rankscope.findings.verdict import (
    COSINE,
    MASSIVE_CHANNELS,
    MASSIVE_SHARE,
    MASSIVE_TOKENS,
    TOKEN,
    UNIT,
)
from rankscope.measures.norms import turned
from rankscope.results import Table
from rankscope.results.statistics import span_of

SMALLEST = "smallest_singular_value[ratio]"


ROW = ("stack", "sample", "layer", "tokens", "definition", "value", "floor", "resolved")


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelNumber:
    """A mean over texts, what rounding may make of it, and the share of texts in which it is above that."""

    value: float | None
    floor: float | None
    resolved: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelFacts:
    """The panel of one layer at the site ``block``: means over texts.

    Rules get a number only if it is above its floor in most texts. Of one that is not, all that is known is that it
    is no larger than its floor: comparisons with a limit then have three answers, yes, no and None.
    """

    layer: int
    tokens: float
    dim: int
    numbers: Mapping[str, PanelNumber]

    texts: int = 1
    """How many texts the means are over."""

    broken: int = 0
    """In how many of them the state holds NaN or infinity."""

    def __getitem__(self, definition: str) -> float | None:
        """The mean, or None where there is none or it is not above its floor in most texts."""
        found = self.numbers.get(definition)
        if found is None or found.value is None or math.isnan(found.value) or found.resolved <= 0.5:
            return None
        return found.value

    def is_number(self, definition: str) -> bool:
        """Whether there is a mean at all, above its floor or not."""
        found = self.numbers.get(definition)
        return found is not None and found.value is not None and not math.isnan(found.value)

    def most(self, definition: str = UNIT) -> float | None:
        """What a mean that is not resolved is at most: its floor, more if some texts are above it; None if unknown."""
        found = self.numbers.get(definition)
        if found is None or not self.is_number(definition):
            return None
        most = span_of(found.value, found.floor, vanishes=True, resolved=found.resolved).high
        return most if math.isfinite(most) else None

    def at_least(self, definition: str, limit: float) -> bool | None:
        """Whether the number is at least ``limit``, which is above 0; None where that cannot be told."""
        value = self[definition]
        if value is None and definition == COSINE:
            value = self.cosine  # a cosine near 0 is below its floor, and known all the same
        if value is not None:
            return value >= limit
        most = self.most(definition)
        return False if most is not None and most < limit else None

    @property
    def cosine(self) -> float | None:
        """The mean cosine, from the ratio of unit tokens where it is not above its own floor.

        Of n unit tokens the squared length of the mean is ``1 - r^2 = (1 + (n - 1) cosine) / n``.
        """
        value, ratio = self[COSINE], self[UNIT]
        if value is not None or ratio is None:
            return value
        return (self.tokens * (1 - min(ratio, 1.0) ** 2) - 1) / (self.tokens - 1)

    def ratio_at(self, cosine: float) -> float:
        """The ratio of so many unit tokens whose mean cosine is this."""
        return math.sqrt((1 - cosine) * (self.tokens - 1) / self.tokens)

    @property
    def massive_tokens(self) -> float | None:
        """How many tokens are massive; one, if need be, in tables that hold the largest share alone."""
        return self[MASSIVE_TOKENS] if MASSIVE_TOKENS in self.numbers else 1.0

    @property
    def massive_share(self) -> float | None:
        """What they hold of the energy together."""
        return self[MASSIVE_SHARE] if MASSIVE_SHARE in self.numbers else self[TOKEN]

    @property
    def has_massive_channels(self) -> bool | None:
        """Whether several channels are massive, not one; no in tables that hold the largest share alone."""
        return self.at_least(MASSIVE_CHANNELS, 1.5) if MASSIVE_CHANNELS in self.numbers else False

    @property
    def times_longer(self) -> float | None:
        """Length of the massive tokens over that of the others, both as root mean squares."""
        count, share = self.massive_tokens, self.massive_share
        if count is None or share is None:
            return None
        few = max(count, 1.0)
        return math.sqrt(share / few * (self.tokens - few) / (1 - share)) if share < 1 else math.inf

    @property
    def most_rank(self) -> float:
        """The largest effective rank that so many tokens of this width can have after centering."""
        return min(self.tokens - 1, self.dim)


def facts_by_text(table: Table, scan: Mapping[str, Any]) -> dict[str, list[list[PanelFacts]]]:
    """Of every stack the texts that keep rows of their own, each with its layers in order."""
    stacks = scan.get("stacks", {})
    found: dict[str, dict[int, dict[int, list[dict[str, Any]]]]] = {}
    if "stack" not in table.frame.columns:
        return {}
    wanted = table.frame.filter(
        (table.frame["site"] == "block") & table.frame["head"].is_null() & table.frame["sample"].is_not_null()
    )
    for row in wanted.select(*ROW).iter_rows(named=True):
        found.setdefault(row["stack"], {}).setdefault(row["sample"], {}).setdefault(row["layer"], []).append(
            row
        )
    return {
        stack: [
            [
                PanelFacts(
                    layer=layer,
                    tokens=float(rows[0]["tokens"]),
                    dim=int(stacks[stack]["dim"]),
                    numbers={
                        one["definition"]: PanelNumber(
                            value=one["value"], floor=one["floor"], resolved=float(one["resolved"])
                        )
                        for one in rows
                    },
                )
                for layer, rows in sorted(layers.items())
            ]
            for _, layers in sorted(texts.items())
        ]
        for stack, texts in found.items()
    }


def facts_by_stack(
    summary: Sequence[Mapping[str, Any]], scan: Mapping[str, Any]
) -> dict[str, list[PanelFacts]]:
    """The layers of every stack in order, from the sections of a scan."""
    stacks = scan.get("stacks", {})
    found: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for entry in summary:
        if entry["site"] == "block" and entry["head"] is None:
            found.setdefault(entry["stack"], {}).setdefault(entry["layer"], []).append(entry)
    return {
        stack: [
            PanelFacts(
                layer=layer,
                tokens=float(stacks[stack]["tokens"]),
                dim=int(stacks[stack]["dim"]),
                numbers={
                    one["definition"]: PanelNumber(
                        value=one["mean"], floor=one["floor"], resolved=one["resolved"]
                    )
                    for one in entries
                },
                texts=max(int(one["texts"]) for one in entries),
                broken=_texts_not_finite(entries),
            )
            for layer, entries in sorted(layers.items())
        ]
        for stack, layers in found.items()
    }


def _texts_not_finite(entries: Sequence[Mapping[str, Any]]) -> int:
    """In how many texts the state of a layer holds NaN or infinity.

    Told from the number of massive tokens, the one measure that every finite state has: a state of zeros has none, and
    of two equal tokens neither is longer. Tables from before that measure do not show it.
    """
    count = next((one for one in entries if one["definition"] == MASSIVE_TOKENS), None)
    if count is None:
        return 0
    known = count.get("numbers")
    texts = int(count["texts"])
    return (0 if count["mean"] is not None else texts) if known is None else texts - int(known)


FINER = ("float32", "float64")
"""What a model can be run in for a second look. float16 is left out: states of large models overflow in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """The dtype whose rounding the floors of these layers are, if it can be told, and the one that would decide."""

    dtype: str | None
    would_decide: str | None


def precision_of(facts: Sequence[PanelFacts], collapsed: float) -> Precision:
    """Told from the floors themselves; a dtype would decide if its floor is below ``collapsed``."""
    last = facts[-1]
    found = last.numbers.get(UNIT)
    floor = None if found is None else found.floor
    if floor is None:
        return Precision(dtype=None, would_decide=None)
    names = [name for name in DTYPES if abs(_floor(last.layer, name) - floor) <= 0.01 * floor]
    return Precision(dtype=next(iter(names), None), would_decide=deciding_dtype(last.layer, floor, collapsed))


def deciding_dtype(layer: int, floor: float, collapsed: float) -> str | None:
    """The dtype whose floor at that layer is below ``collapsed`` and below ``floor``; None if there is none."""
    return next((name for name in FINER if _floor(layer, name) < min(floor, collapsed)), None)


def _floor(layer: int, dtype: str) -> float:
    return float(turned(relative_floor(layer, DTYPES[dtype])))
