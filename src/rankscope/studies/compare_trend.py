"""The last block and the worst layer of every stack, between two scans and over a series of them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rankscope.studies.compare_sides import Side
from rankscope.studies.compare_statistics import adjusted, trend

HIGH_IS_WORST = frozenset(
    {
        "cosine",
        "token_share",
        "channel_share",
        "outlier_tokens",
        "massive_channels",
        "massive_tokens",
        "sink_share",
        "spectral_gap",
    }
)
"""Measures that grow as tokens become equal or one of them takes over; all others fall."""

LAST, WORST = "last block", "worst layer"


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """A mean over texts at one layer, and what rounding may have added to it."""

    layer: int
    value: float
    floor: float


Ends = dict[tuple[str, str, str], End]
"""Stack, definition and ``last block`` or ``worst layer`` to its number."""


def ends(side: Side) -> Ends:
    """Last block and worst layer of every stack and definition, of the states after a block.

    The worst layer has the smallest mean over texts, or for measures that grow in collapse the largest; what enters
    the first block counts only if there is nothing else.
    """
    found: Ends = {}
    states = side.cells.filter(
        (pl.col("site") == "block") & pl.col("head").is_null() & pl.col("mean").is_not_null()
    )
    depths = {stack: side.depth(stack) for stack in side.stacks}
    for stack, layer, measure, definition, value, floor in states.select(
        "stack", "layer", "measure", "definition", "mean", "floor"
    ).iter_rows():
        if layer == 0 and depths[stack]:
            continue
        end = End(layer=layer, value=value, floor=math.inf if floor is None else floor)
        if layer == depths[stack]:
            found[stack, definition, LAST] = end
        worst = found.get((stack, definition, WORST))
        sign = 1 if measure in HIGH_IS_WORST else -1
        if worst is None or sign * value > sign * worst.value:
            found[stack, definition, WORST] = end
    return found


def ends_of(sides: Sequence[Side], found: Sequence[Ends]) -> list[dict[str, Any]]:
    """The section ``ends``: last block and worst layer of every scan against those of the first.

    ``resolved``: the change is larger than both floors together. No test against chance: a worst layer is chosen by
    its value, so its change is more extreme than that of a layer chosen beforehand.
    """
    return list(_changes(sides, found))


def _changes(sides: Sequence[Side], found: Sequence[Ends]) -> Iterator[dict[str, Any]]:
    for side, other in zip(sides[1:], found[1:], strict=True):
        for (stack, definition, at), before in found[0].items():
            after = other.get((stack, definition, at))
            if after is None:
                continue
            change = after.value - before.value
            yield {
                "scan": side.name,
                "stack": stack,
                "definition": definition,
                "at": at,
                "before": before.value,
                "before_layer": before.layer,
                "after": after.value,
                "after_layer": after.layer,
                "change": change,
                "resolved": abs(change) > before.floor + after.floor,
            }


def series_of(sides: Sequence[Side], ends_found: Sequence[Ends], *, alpha: float) -> dict[str, Any]:
    """The section ``trend``: ``order`` (by training step, or as given), ``x``, and one of ``lines`` per definition.

    A line is significant if Kendall's test, after Benjamini and Hochberg over all lines, and the distance between its
    extremes, against both floors, agree that it moves.
    """
    steps = [side.step for side in sides]
    is_by_step = None not in steps and len(set(steps)) == len(steps)
    places = (
        sorted(range(len(sides)), key=lambda place: steps[place] or 0) if is_by_step else range(len(sides))
    )
    x = [steps[place] if is_by_step else place for place in places]
    found = [ends_found[place] for place in places]
    lines = [
        line
        for key in dict.fromkeys(key for one in found for key in one)
        if (line := _line(key, x, [one.get(key) for one in found])) is not None
    ]
    for line, p in zip(lines, adjusted(np.array([line["p"] for line in lines])), strict=True):
        line["p_adjusted"] = float(p)
        line["significant"] = bool(p <= alpha and line["resolved"])
    order = "by training step" if is_by_step else "in the order the scans were given"
    return {"order": order, "x": x, "scans": [sides[place].name for place in places], "lines": lines}


def _line(
    key: tuple[str, str, str], x: Sequence[int | None], found: Sequence[End | None]
) -> dict[str, Any] | None:
    values = [math.nan if end is None else end.value for end in found]
    moved = trend(np.array(x, dtype=float), np.array(values))
    if moved is None:
        return None
    known = sorted((end for end in found if end is not None), key=lambda end: end.value)
    reach = known[-1].value - known[0].value
    stack, definition, at = key
    return {
        "stack": stack,
        "definition": definition,
        "at": at,
        "values": values,
        "layers": [None if end is None else end.layer for end in found],
        "tau": moved.tau,
        "p": moved.p,
        "slope": moved.slope,
        "agreeing": moved.agreeing,
        "moves": moved.moves,
        "resolved": reach > known[-1].floor + known[0].floor,
    }
