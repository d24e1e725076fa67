"""What blame found: the change that every step of every block makes, who does most, and the rows of a table."""

import math
from collections.abc import Iterable, Iterator, Mapping
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
        resolved: whether the residual is above its floor on both sides of the step.
    """

    block: int
    stage: int
    name: str
    kind: str
    values: tuple[float | None, ...]
    floors: tuple[float | None, ...]
    resolved: tuple[bool, ...]

    def mean(self) -> float | None:
        """The mean over the texts in which it is resolved."""
        return self._mean(self.values)

    def mean_floor(self) -> float | None:
        """The mean floor over the same texts."""
        return self._mean(self.floors)

    def _mean(self, entries: tuple[float | None, ...]) -> float | None:
        known = [entry for entry, ok in zip(entries, self.resolved, strict=True) if ok and entry is not None]
        return math.fsum(known) / len(known) if known else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """All changes in order of execution; ``totals`` is the whole change of each text, None where it has none."""

    changes: tuple[Change, ...]
    totals: tuple[float | None, ...]
    blocks: int
    texts: int

    def unresolved(self, block: int | None = None) -> int:
        """How many changes, counted over texts, say nothing: in one block, or in all."""
        return sum(not ok for change in self._of(block) for ok in change.resolved)

    def by_kind(self, block: int | None = None) -> dict[str, float]:
        """Sum of the resolved changes of each kind of part, mean over texts: in one block, or in all."""
        return _summed((change.kind, change.mean()) for change in self._of(block))

    def strongest(self, block: int | None = None) -> tuple[str | None, str | None]:
        """The kind that does most for collapse and the one that does most against it, where rounding does less."""
        floors = _summed((change.kind, change.mean_floor()) for change in self._of(block))
        kinds = self.by_kind(block)
        known = [kind for kind in kinds if abs(kinds[kind]) > max(floors[kind], NOTHING)]
        down = min((kind for kind in known if kinds[kind] < 0), key=lambda kind: kinds[kind], default=None)
        up = max((kind for kind in known if kinds[kind] > 0), key=lambda kind: kinds[kind], default=None)
        return down, up

    def _of(self, block: int | None) -> list[Change]:
        if block is not None and not 1 <= block <= self.blocks:
            raise ConfigError(f"block {block} was asked for; the network has blocks 1 to {self.blocks}")
        return [change for change in self.changes if block in (None, change.block)]

    def in_words(self, block: int | None = None) -> str:
        """One sentence: what does most for collapse and what most against it, in one block or in all."""
        kinds = self.by_kind(block)
        where = f"In block {block}" if block is not None else f"Over {_counted(self.blocks, 'block')}"
        where += f" (mean of {self.texts} texts)" if self.texts > 1 else ""
        if not kinds:
            return f"{where}, no change is above the rounding floor."
        down, up = self.strongest(block)
        lead = (
            f"{down} does most for collapse ({kinds[down]:+.3g} in ln {RATIO})"
            if down
            else "nothing works for collapse"
        )
        does = "most" if down else "does most"
        tail = f"{up} {does} against it ({kinds[up]:+.3g})" if up else "nothing works against it"
        left_out = self.unresolved(block)
        note = f"; {_counted(left_out, 'change')} not above the rounding floor left out" if left_out else ""
        return f"{where}, {lead} and {tail}{note}."

    def summary(self) -> dict[str, Any]:
        """The sums and the sentences as one JSON section: in total, then block by block."""

        def part(block: int | None) -> dict[str, Any]:
            kinds = self.by_kind(block)
            down, up = self.strongest(block)
            return {"kinds": kinds, "most_for": down, "most_against": up, "sentence": self.in_words(block)}

        blocks = [{"block": number, **part(number)} for number in range(1, self.blocks + 1)]
        return {"definition": DEFINITION, "unresolved": self.unresolved(), **part(None), "blocks": blocks}


def blame_rows(found: Blame, about: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Columns of table rows, one block of rows (one per text) for each change, to be added with ``Rows.add``.

    ``layer`` is the block, ``site`` the name of the step, ``value`` the change of the natural logarithm, and the added
    column ``stage`` the number of the step in its block. ``about`` fills further columns and may name the samples.
    """
    for change in found.changes:
        yield {
            "sample": list(range(found.texts)),
            **about,
            "layer": change.block,
            "site": change.name,
            "measure": "blame",
            "definition": DEFINITION,
            "value": list(change.values),
            "floor": list(change.floors),
            "resolved": list(change.resolved),
            "stage": change.stage,
        }


def _summed(pairs: Iterable[tuple[str, float | None]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for kind, number in pairs:
        if number is not None:
            found.setdefault(kind, []).append(number)
    return {kind: math.fsum(numbers) for kind, numbers in found.items()}


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
