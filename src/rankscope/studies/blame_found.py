"""What blame found: the change that every step of every block makes, who does most, and the rows of a table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.errors import ConfigError

RATIO = "residual_ratio[frobenius,mean]"
DEFINITION = f"blame[{RATIO}]"

NOTHING = 1e-12
"""Changes of a logarithm below this are its own rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What one step of one block does to the log residual ratio of every text; below zero is towards collapse.

    Args:
        block: number of the block, from 1.
        stage: number of the step in its block, from 1.
        name: name of the step; a second one of the same name in a block is called ``name.2``.
        kind: attention, mlp, norm, skip or scale; of a branch of a sum, what it holds.
        values: change of the natural logarithm per text, None where the residual or the state is exactly zero.
        floors: what rounding may add to or take from it; None without a value.
        known: whether the residual is above its floor on both sides of the step. Sums are over known changes, also
            those smaller than their floor; the floor of a sum is the sum of the floors.
    """

    block: int
    stage: int
    name: str
    kind: str
    values: tuple[float | None, ...]
    floors: tuple[float | None, ...]
    known: tuple[bool, ...]

    @property
    def resolved(self) -> tuple[bool, ...]:
        """Whether the change of a text by itself says something: it is known, and above its floor or exactly zero."""
        return tuple(map(_is_resolved, self.values, self.floors, self.known))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Changes of each kind of part, mean over the texts in which every step is known; all None without such a text.

    Args:
        texts: how many texts these are.
        kinds: sum of the changes of each kind; they add up to ``total``.
        floors: what rounding may add to or take from each of them.
        total: sum over all kinds.
    """

    texts: int
    kinds: dict[str, float] | None
    floors: dict[str, float] | None
    total: float | None

    def strongest(self) -> tuple[str | None, str | None]:
        """The kind that does most for collapse and the one that does most against it, None if rounding may do more."""
        return self._most(-1), self._most(+1)

    def is_open(self, sign: int) -> bool:
        """Whether some kind seems to work for collapse (-1) or against it (+1), known or lost in rounding."""
        return any(sign * number > NOTHING for number in (self.kinds or {}).values())

    def _most(self, sign: int) -> str | None:
        kinds, floors = self.kinds or {}, self.floors or {}
        kind = max(kinds, key=lambda one: sign * kinds[one], default=None)
        return kind if kind is not None and sign * kinds[kind] > max(floors[kind], NOTHING) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Dominance:
    """What one channel, or the massive tokens, hold of the energy of a layer in every text; None where that is little.

    The residual ratio is then theirs: a branch that lacks that channel moves it a lot whatever it does to the tokens,
    and the skip that puts the channel back is credited with everything.
    """

    layer: int
    kind: str  # channel or token
    shares: tuple[float | None, ...]

    @property
    def is_usual(self) -> bool:
        """Whether it holds in half of the texts or more."""
        return 2 * sum(share is not None for share in self.shares) >= len(self.shares)

    def facts(self) -> dict[str, Any]:
        known = [share for share in self.shares if share is not None]
        return {
            "layer": self.layer,
            "kind": self.kind,
            "share": math.fsum(known) / max(len(known), 1),
            "texts": len(known),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """All changes in order of execution; ``totals`` is the whole change of each text, None where it has none.

    Where massive tokens or one channel dominate the norm of a state, nothing is ranked: see ``Dominance``.
    """

    changes: tuple[Change, ...]
    totals: tuple[float | None, ...]
    blocks: int
    texts: int
    split: bool = False
    dominance: tuple[Dominance, ...] = ()

    def dominated(self, block: int | None = None) -> list[Dominance]:
        """What dominates the state before or after that block, or any state, in half of the texts or more."""
        usual = [one for one in self.dominance if one.is_usual]
        return usual if block is None else [one for one in usual if one.layer in (block - 1, block)]

    def unresolved(self, block: int | None = None) -> int:
        """How many changes, counted over texts, say nothing by themselves: in one block, or in all."""
        return sum(not ok for change in self._of(block) for ok in change.resolved)

    def sums(self, block: int | None = None) -> Sums:
        """The changes of each kind of part, summed over the steps of one block or of all, mean over texts.

        Averaged are the texts in which all of these steps are known, so that the kinds add up to the mean change.
        """
        changes = self._of(block)
        texts = [text for text in range(self.texts) if all(change.known[text] for change in changes)]
        if not texts:
            return Sums(texts=0, kinds=None, floors=None, total=None)
        kinds = _means(changes, texts, lambda change: change.values)
        floors = _means(changes, texts, lambda change: change.floors)
        return Sums(texts=len(texts), kinds=kinds, floors=floors, total=math.fsum(kinds.values()))

    def by_kind(self, block: int | None = None) -> dict[str, float] | None:
        """The sums of each kind alone."""
        return self.sums(block).kinds

    def strongest(self, block: int | None = None) -> tuple[str | None, str | None]:
        """The kind that does most for collapse and the one that does most against it.

        None if rounding may do more, and where something dominates the norm.
        """
        return (None, None) if self.dominated(block) else self.sums(block).strongest()

    def _of(self, block: int | None) -> list[Change]:
        if block is not None and not 1 <= block <= self.blocks:
            raise ConfigError(f"block {block} was asked for; the network has blocks 1 to {self.blocks}")
        return [change for change in self.changes if block in (None, change.block)]

    def in_words(self, block: int | None = None) -> str:
        """One sentence: what does most for collapse and what most against it, in one block or in all."""
        found = self.sums(block)
        where = f"In block {block}" if block is not None else f"Over {_counted(self.blocks, 'block')}"
        if found.kinds is None:
            return f"{where}, {self._reason()}."
        dominated = self.dominated(block)
        if dominated:
            return f"{where}, nothing is ranked: {_dominates(dominated)}."
        down, up = found.strongest()
        if down:
            lead = f"{down} does most for collapse ({found.kinds[down]:+.3g} in ln {RATIO})"
        else:
            lead = _nobody("for collapse", found.is_open(-1))
        does = "most" if down else "does most"
        tail = (
            f"{up} {does} against it ({found.kinds[up]:+.3g})"
            if up
            else _nobody("against it", found.is_open(+1))
        )
        return f"{where}{self._mean_of(found.texts)}, {lead} and {tail}."

    def _mean_of(self, texts: int) -> str:
        if self.texts == 1:
            return ""
        if texts == self.texts:
            return f" (mean of {texts} texts)"
        return (
            f" (mean of {texts} of {self.texts} texts; the others are not above the rounding floor in every step"
            f"{self._hint()})"
        )

    def _reason(self) -> str:
        return f"no text is above the rounding floor in every step{self._hint()}"

    def _hint(self) -> str:
        return "" if self.split else ": --split carries the residual below it"

    def summary(self) -> dict[str, Any]:
        """The sums and the sentences as one JSON section: in total, then block by block.

        ``texts`` of all are averaged, those in which every step is known; a block may know more than the network. Where
        there are none, kinds and total are null and ``reason`` says why.
        """
        blocks = [{"block": number, **self._part(number)} for number in range(1, self.blocks + 1)]
        return {
            "definition": DEFINITION,
            "all texts": self.texts,
            "unresolved": self.unresolved(),
            "dominated": [one.facts() for one in self.dominated()],
            **self._part(None),
            "blocks": blocks,
        }

    def _part(self, block: int | None) -> dict[str, Any]:
        found = self.sums(block)
        down, up = self.strongest(block)
        return {
            "texts": found.texts,
            "total": found.total,
            "kinds": found.kinds,
            "most_for": down,
            "most_against": up,
            "is_dominated": bool(self.dominated(block)),
            "reason": None if found.texts else self._reason(),
            "sentence": self.in_words(block),
        }


def blame_rows(found: Blame, about: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Columns of table rows, one block of rows (one per text) for each change, to be added with ``Rows.add``.

    ``layer`` is the block, ``site`` where the step is (``attention``, ``mlp``, or ``block`` for skips, norms and
    scales), ``value`` the change of the natural logarithm and ``floor`` what rounding may add to or take from it, null
    if one end of the step is below its own floor. Added columns are ``part``, the name of the step, and ``stage``, its
    number in the block. A row is resolved if both ends of the step are above their floors, and the value is above its
    own or exactly zero.
    ``about`` fills further columns and may name the samples.
    """
    for change in found.changes:
        yield {
            "sample": list(range(found.texts)),
            **about,
            "layer": change.block,
            "site": change.kind if change.kind in ("attention", "mlp") else "block",
            "part": change.name,
            "measure": "blame",
            "definition": DEFINITION,
            "value": list(change.values),
            "floor": list(change.floors),
            "resolved": list(change.resolved),
            "stage": change.stage,
        }


def _is_resolved(value: float | None, floor: float | None, is_known: bool) -> bool:
    return is_known and value is not None and floor is not None and (floor < abs(value) or value == 0)


def _means(
    changes: Sequence[Change], texts: Sequence[int], entries: Callable[[Change], Sequence[float | None]]
) -> dict[str, float]:
    """Entries of the named texts, summed by kind of part, over the number of texts."""
    found: dict[str, list[float]] = {}
    for change in changes:
        known = (entries(change)[text] for text in texts)  # a known change is a number
        found.setdefault(change.kind, []).extend(number for number in known if number is not None)
    return {kind: math.fsum(numbers) / len(texts) for kind, numbers in found.items()}


def _dominates(found: Sequence[Dominance]) -> str:
    """What dominates, and what follows."""
    first = found[0].facts()
    holder = "one channel holds" if first["kind"] == "channel" else "massive tokens hold"
    return (
        f"{holder} {first['share']:.2g} of the energy at layer {first['layer']}, and the ratio follows "
        f"{'that channel' if first['kind'] == 'channel' else 'those tokens'}, not the others"
    )


def _nobody(side: str, is_open: bool) -> str:
    return f"what does most {side} is lost in rounding" if is_open else f"nothing works {side}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
