"""What ``rankscope equilibria`` found, read from the sections of its table: system, equilibria, basins, paths."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import ConfigError
from rankscope.plots.scan_entries import clipped
from rankscope.results import Table

Array = NDArray[np.float64]

SAME_LENGTH = 1e-3
"""Tokens whose lengths differ by less, relatively, lie on one sphere: norms add a small number under their root."""

MOST_CROSSES = 24
"""More tokens of equilibria than this would hide the paths."""

NEAR = 0.05
"""A start that ends nearer to an equilibrium than this, relative to its longest token, is said to end near it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Equilibrium:
    """One state at rest; ``index`` is its place in the list, ``tokens`` is ``tokens dim``.

    ``groups`` are the components of the mask graph, which have multipliers of their own: their tokens and the largest.
    Multipliers are known to ``tolerance``. ``is_asked`` marks the one of
    the section ``equilibrium``. A ``mirrored`` one stands for the state of opposite sign as well.
    """

    index: int
    rank: int | None
    tokens: Array
    singular_values: tuple[float, ...]
    threshold: float | None
    multipliers: tuple[complex, ...]
    groups: tuple[tuple[tuple[int, ...], float], ...]
    tolerance: float
    is_asked: bool
    stable: bool | None
    is_undecided: bool
    mirrored: bool

    @property
    def name(self) -> str:
        """How figures call it; counted from 1, as the list of the command is."""
        return f"equilibrium {self.index + 1}" + ("" if self.rank is None else f", rank {self.rank}")

    @property
    def both(self) -> list[Array]:
        """The tokens, and those of opposite sign where they are at rest as well."""
        return [self.tokens, -self.tokens] if self.mirrored else [self.tokens]

    @property
    def verdict(self) -> str:
        """Stable or not, in a word."""
        if self.stable is None and self.is_undecided:
            return "not decided"
        return {True: "stable", False: "unstable", None: "neutral"}[self.stable]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Starts that ended alike; ``equilibrium`` is a place in the list, or None."""

    equilibrium: int | None
    ending: str
    rank: int | None
    count: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Basins:
    """Where random starts ended. ``angles`` (``starts 2``) and ``limits`` are there for two tokens in the plane."""

    starts: int
    outcomes: tuple[Outcome, ...]
    angles: Array | None
    limits: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Paths:
    """Recorded states ``starts steps tokens dim``, the numbers of their steps and those of the starts."""

    steps: Array
    states: Array
    numbers: tuple[int, ...]

    @property
    def is_on_sphere(self) -> bool:
        """Whether all tokens have one length from the first recorded step on; the start itself may have another."""
        moved = self.states[:, 1:] if self.states.shape[1] > 1 else self.states
        lengths = np.linalg.norm(moved, axis=-1)
        return bool(lengths.min() > 0 and lengths.max() - lengths.min() <= SAME_LENGTH * lengths.max())


def paths_of(table: Table) -> Paths:
    """The section ``trajectories``; states beyond the range of numbers are left out with all that follow."""
    found = _section(table, "trajectories")
    try:
        steps = np.asarray(found["steps"], dtype=np.float64)
        states = np.asarray(found["starts"], dtype=np.float64)
        numbers = tuple(int(one) for one in found.get("numbers") or range(len(states)))
        if states.ndim != 4 or not states.size or states.shape[:2] != (len(numbers), len(steps)):
            raise ValueError(f"starts has shape {states.shape} for {len(numbers)} starts, {len(steps)} steps")
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable("trajectories", error, "steps, and starts as [start][step][token][dim]") from error
    known = np.isfinite(states).all(axis=(0, 2, 3))
    last = len(steps) if known.all() else int(np.argmin(known))
    if last == 0:
        raise ConfigError("nothing to draw: the first recorded state holds numbers that are not finite")
    return Paths(steps=steps[:last], states=states[:, :last], numbers=numbers)


def equilibria_of(table: Table) -> list[Equilibrium]:
    """All of the section ``equilibria``, or the one of ``equilibrium`` where there is no list."""
    sections = table.sections
    if "equilibria" not in sections and "equilibrium" not in sections:
        raise _missing("equilibria")
    found = sections.get("equilibria") or [one for one in (sections.get("equilibrium"),) if one]
    asked = (sections.get("equilibrium") or {}).get("tokens")
    try:
        return [_equilibrium(index, one, asked) for index, one in enumerate(found)]
    except (KeyError, TypeError, ValueError) as error:
        needed = "rank, tokens, singular_values, rank_threshold, multipliers and stable"
        raise _unreadable("equilibria", error, needed) from error


def basins_of(table: Table) -> Basins:
    """The section ``basins``, most frequent endings first."""
    found = _section(table, "basins")
    try:
        outcomes = [
            Outcome(
                equilibrium=_whole(one["equilibrium"]),
                ending=str(one["ending"]),
                rank=_whole(one["rank"]),
                count=int(one["count"]),
            )
            for one in found["shares"]
        ]
        starts = int(found["starts"])
        angles, limits = found.get("start_angles"), found.get("limit")
        return Basins(
            starts=starts,
            outcomes=tuple(sorted(outcomes, key=lambda one: -one.count)),
            angles=np.asarray(angles, dtype=np.float64).reshape(-1, 2) if angles and limits else None,
            limits=tuple(_whole(one) for one in limits or ()),
        )
    except (KeyError, TypeError, ValueError) as error:
        needed = "starts, and shares with equilibrium, ending, rank and count"
        raise _unreadable("basins", error, needed) from error


def system_facts(table: Table) -> list[str]:
    """What was iterated, in a few words each; empty where the table does not say."""
    found = table.sections.get("system")
    found = found if isinstance(found, dict) else {}
    counted = (("tokens", "{} tokens"), ("dim", "dim {}"))
    facts = [text.format(found[name]) for name, text in counted if found.get(name) is not None]
    named = ("mask", "norm", "values", "attention")
    facts += [f"{name} {clipped(str(found[name]), 48)}" for name in named if found.get(name) is not None]
    return ["1 token" if fact == "1 tokens" else fact for fact in facts]


def known_equilibria(table: Table) -> list[Equilibrium]:
    """As ``equilibria_of``, and none where the table does not speak of equilibria at all."""
    return equilibria_of(table) if {"equilibria", "equilibrium"} & set(table.sections) else []


def system_note(table: Table) -> str | None:
    """The sentence about separate limits, if there is one."""
    found = table.sections.get("system")
    note = found.get("note") if isinstance(found, dict) else None
    return None if note is None else str(note)


def nearest(state: Array, equilibria: list[Equilibrium]) -> Equilibrium | None:
    """The equilibrium whose tokens all lie near those of the state; None if there is none."""
    fitting = [one for one in equilibria if one.tokens.shape == state.shape]
    distances = [
        min(float(np.linalg.norm(tokens - state, axis=-1).max()) for tokens in one.both) for one in fitting
    ]
    if not distances:
        return None
    best = int(np.argmin(distances))
    size = float(np.linalg.norm(fitting[best].tokens, axis=-1).max())
    return fitting[best] if distances[best] <= NEAR * size else None


def crossed(equilibria: list[Equilibrium], end: Array) -> list[Equilibrium]:
    """Equilibria marked beside a path: all if they are few, otherwise the one it ends at and the one asked for."""
    fitting = [one for one in equilibria if one.tokens.shape == end.shape]
    if sum(one.tokens.shape[0] * len(one.both) for one in fitting) <= MOST_CROSSES:
        return fitting
    near = nearest(end, fitting)
    return [one for one in fitting if one is near or one.is_asked]


def first_of(equilibria: list[Equilibrium], most: int) -> list[Equilibrium]:
    """The first so many, among them the one that was asked for, in the order of the list."""
    wanted = sorted(equilibria, key=lambda one: (not one.is_asked, one.index))[:most]
    return sorted(wanted, key=lambda one: one.index)


def chosen_starts(paths: Paths, most: int) -> list[int]:
    """At most so many starts that end far apart: the first, then always the one farthest from all taken."""
    ends = paths.states[:, -1].reshape(len(paths.states), -1)
    taken, apart = [0], np.linalg.norm(ends - ends[0], axis=1)
    while len(taken) < min(most, len(ends)):
        apart[taken] = -1.0
        taken.append(int(np.argmax(apart)))
        apart = np.minimum(apart, np.linalg.norm(ends - ends[taken[-1]], axis=1))
    return sorted(taken)


def _equilibrium(index: int, found: Any, asked: Any) -> Equilibrium:
    threshold = found["rank_threshold"]
    return Equilibrium(
        index=index,
        rank=_whole(found["rank"]),
        tokens=np.atleast_2d(np.asarray(found["tokens"], dtype=np.float64)),
        singular_values=tuple(float(one) for one in found["singular_values"]),
        threshold=None if threshold is None else float(threshold),
        multipliers=_numbers(found.get("multipliers")),
        groups=tuple(
            (tuple(int(token) for token in one["tokens"]), float(one["largest_multiplier"]))
            for one in found.get("components") or ()
        ),
        tolerance=float(found.get("multiplier_error") or 0.0),
        is_asked=found["tokens"] == asked,
        stable=found["stable"],
        is_undecided=bool(found.get("undecided_tokens")),
        mirrored=bool(found.get("mirrored", False)),
    )


def _numbers(found: Any) -> tuple[complex, ...]:
    pairs = [complex(real, imaginary) for real, imaginary in found or ()]
    return tuple(one for one in pairs if math.isfinite(abs(one)))


def _whole(found: Any) -> int | None:
    return None if found is None else int(found)


def _section(table: Table, name: str) -> dict[str, Any]:
    found = table.sections.get(name)
    if not isinstance(found, dict):
        raise _missing(name)
    return found


def _missing(name: str) -> ConfigError:
    return ConfigError(
        f"this picture is drawn from the section '{name}' of its table, and this table has none; give the table that "
        "'rankscope equilibria' made, or one saved as .json or .parquet (.csv keeps the rows alone)"
    )


def _unreadable(name: str, error: Exception, needed: str) -> ConfigError:
    return ConfigError(
        f"the section '{name}' cannot be read ({type(error).__name__}: {error}); it needs {needed}"
    )
