"""What a probe has seen so far: running means over all texts, and the numbers of the first few texts themselves."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from rankscope.measures import PANEL, find_measure

KEPT_TEXTS = 64
"""So many texts keep rows of their own; all texts are in the summary. This is what holds memory constant."""


class Place(NamedTuple):
    """Where numbers were taken. ``head`` is None for a state."""

    stack: str
    layer: int
    site: str
    head: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Numbers of one batch at one place: rows are texts, columns definitions."""

    place: Place
    definitions: tuple[str, ...]
    values: np.ndarray
    floors: np.ndarray
    tokens: tuple[int, ...]
    dim: int | None = None  # width of a token; None for maps


@dataclass(slots=True)
class _Running:
    """Count, mean, spread, ends, floors and resolved of every definition, without keeping the values."""

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    floor: np.ndarray
    resolved: np.ndarray
    texts: int

    @classmethod
    def empty(cls, width: int) -> "_Running":
        zeros = {name: np.zeros(width) for name in _ARRAYS}
        return cls(**zeros | {"low": np.full(width, np.inf), "high": np.full(width, -np.inf)}, texts=0)

    def add(self, value: np.ndarray, floor: np.ndarray) -> None:
        """One text more (Welford's update: no digits are lost however many texts there are)."""
        known = np.isfinite(value)
        safe = np.where(known, value, 0.0)
        self.count += known
        step = np.where(known, safe - self.mean, 0.0)
        self.mean += step / np.maximum(self.count, 1)
        self.squares += np.where(known, step * (safe - self.mean), 0.0)
        self.low = np.where(known, np.minimum(self.low, safe), self.low)
        self.high = np.where(known, np.maximum(self.high, safe), self.high)
        self.floor += np.where(known & np.isfinite(floor), floor, 0.0)
        self.resolved += known & (np.abs(safe) > floor)
        self.texts += 1

    def join(self, later: "_Running") -> None:
        """The texts of another one behind those of this one.

        Means and sums of squares about them as in Chan, Golub and LeVeque (Algorithms for computing the sample
        variance, 1983), section 2.
        """
        many = np.maximum(self.count + later.count, 1)
        step = later.mean - self.mean
        self.mean += step * (later.count / many)
        self.squares += later.squares + (step * (self.count / many)) * (step * later.count)
        self.count += later.count
        self.low, self.high = np.minimum(self.low, later.low), np.maximum(self.high, later.high)
        self.floor += later.floor
        self.resolved += later.resolved
        self.texts += later.texts


@dataclass(slots=True)
class Tally:
    """All that is kept of the texts measured so far, in memory that does not grow with their number.

    ``kept`` texts, the first ones, keep rows of their own.
    """

    texts: int = 0
    tokens: int = 0
    stacks: dict[str, dict[str, int]] = field(default_factory=dict)  # texts, tokens and width of each
    silent: set[str] = field(default_factory=set)  # stacks that no input has reached
    _running: dict[tuple[Place, tuple[str, ...]], _Running] = field(default_factory=dict)
    _rows: dict[str, list[Any]] = field(default_factory=dict)
    kept: int = KEPT_TEXTS

    def add(self, seen: Sequence[Seen], tokens: Sequence[int]) -> None:
        """A whole batch; ``tokens`` are the measured tokens of its texts."""
        for one in seen:
            self._count(one)
            running = self._running.setdefault(
                (one.place, one.definitions), _Running.empty(len(one.definitions))
            )
            for sample, (value, floor) in enumerate(
                zip(one.values, one.floors, strict=True), start=self.texts
            ):
                running.add(value, floor)
                if sample < self.kept:
                    self._keep(one, sample, value, floor, one.tokens[sample - self.texts])
        self.texts += len(tokens)
        self.tokens += sum(tokens)

    def join(self, later: "Tally") -> None:
        """The texts of another tally behind those of this one, as if they had been added one after the other.

        Counts, ends and rows are those of one tally to the bit; means and spreads to rounding, and to the bit for the
        same pieces in the same order.
        """
        for key, running in later._running.items():
            self._running.setdefault(key, _Running.empty(len(key[1]))).join(running)
        if later._rows:
            within = [self.texts + sample < self.kept for sample in later._rows["sample"]]
            for name, entries in later._rows.items():
                own = list(compress(entries, within))
                self._rows.setdefault(name, []).extend(
                    [self.texts + sample for sample in own] if name == "sample" else own
                )
        for stack, one in later.stacks.items():
            known = self.stacks.setdefault(stack, {"texts": 0, "tokens": 0, "dim": one["dim"]})
            known["texts"] += one["texts"]
            known["tokens"] += one["tokens"]
        self.silent |= later.silent
        self.texts += later.texts
        self.tokens += later.tokens

    def _count(self, seen: Seen) -> None:
        if seen.dim is None or seen.place.layer or seen.definitions[0] != PANEL[0]:
            return
        stack = self.stacks.setdefault(seen.place.stack, {"texts": 0, "tokens": 0, "dim": seen.dim})
        stack["texts"] += len(seen.tokens)
        stack["tokens"] += sum(seen.tokens)

    def _keep(self, seen: Seen, sample: int, value: np.ndarray, floor: np.ndarray, tokens: int) -> None:
        width, rows = len(seen.definitions), self._rows
        columns: list[tuple[str, Sequence[Any]]] = [
            ("definition", seen.definitions),
            ("measure", _measures_of(seen.definitions)),
            ("value", _finite(value)),
            ("floor", _finite(floor)),
            ("sample", [sample] * width),
            ("tokens", [tokens] * width),
        ]
        columns += [
            (name, [entry] * width) for name, entry in zip(seen.place._fields, seen.place, strict=True)
        ]
        for name, entries in columns:
            if name not in rows:
                rows[name] = []
            rows[name] += entries

    @property
    def rows(self) -> dict[str, list[Any]]:
        """Columns of the texts that keep rows of their own."""
        return self._rows

    def summary(self) -> list[dict[str, Any]]:
        """One entry per place and definition, over all texts: mean, spread, ends, mean floor, share resolved."""
        return [
            entry for (place, names), running in self._ordered() for entry in _told(place, names, running)
        ]

    def definitions(self) -> list[str]:
        """Every definition that was taken, in the order of first use."""
        return list(dict.fromkeys(name for _, names in self._running for name in names))

    def _ordered(self) -> list[tuple[tuple[Place, tuple[str, ...]], _Running]]:
        stacks = list(dict.fromkeys(place.stack for place, _ in self._running))
        return sorted(
            self._running.items(),
            key=lambda item: (
                stacks.index(item[0][0].stack),
                item[0][0].layer,
                ("attention", "mlp", "block", "final").index(item[0][0].site),
                -1 if item[0][0].head is None else item[0][0].head,
            ),
        )

    def state(self) -> dict[str, Any]:
        """All of it as JSON values, to go on later."""
        running = [
            {
                "place": list(place),
                "definitions": list(names),
                "texts": one.texts,
                "numbers": [
                    [None if not math.isfinite(x) else x for x in getattr(one, name).tolist()]
                    for name in _ARRAYS
                ],
            }
            for (place, names), one in self._running.items()
        ]
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "stacks": self.stacks,
            "silent": sorted(self.silent),
            "running": running,
            "rows": self._rows,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Tally":
        """The tally that ``state`` was taken of."""
        tally = cls(
            texts=state["texts"],
            tokens=state["tokens"],
            stacks=state["stacks"],
            silent=set(state["silent"]),
            _rows=state["rows"],
        )
        for one in state["running"]:
            arrays = dict(zip(_ARRAYS, one["numbers"], strict=True))
            ends = {"low": np.inf, "high": -np.inf}
            found = {
                name: np.array(
                    [ends.get(name, np.nan) if x is None else x for x in arrays[name]], dtype=float
                )
                for name in _ARRAYS
            }
            running = _Running(**found, texts=one["texts"])
            tally._running[Place(*one["place"]), tuple(one["definitions"])] = running
        return tally


@cache
def _measures_of(definitions: tuple[str, ...]) -> tuple[str, ...]:
    """The names before the brackets."""
    return tuple(name.partition("[")[0] for name in definitions)


def _finite(numbers: np.ndarray) -> list[float | None]:
    """None for what is no number."""
    found: list[float | None] = numbers.tolist()
    if np.isfinite(numbers).all():
        return found
    return [number if number is not None and math.isfinite(number) else None for number in found]


_ARRAYS = ("count", "mean", "squares", "low", "high", "floor", "resolved")


def _told(place: Place, names: Sequence[str], running: _Running) -> Iterator[dict[str, Any]]:
    for k, name in enumerate(names):
        count = int(running.count[k])
        yield {
            **place._asdict(),
            "measure": find_measure(name).name,
            "definition": name,
            "texts": running.texts,
            "mean": float(running.mean[k]) if count else None,
            "std": math.sqrt(running.squares[k] / (count - 1)) if count > 1 else None,
            "min": float(running.low[k]) if count else None,
            "max": float(running.high[k]) if count else None,
            "numbers": count,
            "floor": float(running.floor[k]) / max(count, 1),
            "resolved": float(running.resolved[k]) / max(running.texts, 1),
        }
