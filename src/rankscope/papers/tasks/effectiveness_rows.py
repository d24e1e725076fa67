"""Rows of the table of path effectiveness, and their means over the seeds of training."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from rankscope.papers.tasks.effectiveness_reading import Tally

CONFIDENCE = 0.95
KEYS = ("weights", "mode", "paths", "summed", "length", "definition")
"""What rows that differ in their seeds alone have in common."""

Row = dict[str, Any]


def student(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of independent numbers and the ends of its 95% interval by Student's t; a single number has none.

    >>> [round(end, 3) for end in student([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    reach = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


def tally_rows(about: Mapping[str, object], tallies: Sequence[Tally]) -> list[Row]:
    """A row per definition: the number, or if paths were drawn the mean over draws with its interval."""
    found = [tally.means() for tally in tallies]
    rows = []
    for definition in found[0]:
        values, floors = zip(*(one[definition] for one in found), strict=True)
        mean, low, high = student(values)
        row = _row(about, definition, mean, math.fsum(floors) / len(floors))
        drawn = {"low": low, "high": high, "repeats": len(values)} if about["paths"] == "drawn" else {}
        rows.append(row | drawn)
    return rows


def share_row(about: Mapping[str, object], share: float, floor: float) -> Row:
    """The row of a share of the output."""
    return _row(about, "share", share, floor)


def refit_rows(about: Mapping[str, object], found: Mapping[str, float], *, resolved: bool) -> list[Row]:
    """Rows of accuracies of fresh classifiers."""
    return [_row(about, name, value, 0.0) | {"resolved": resolved} for name, value in found.items()]


def over_seeds(rows: Sequence[Row]) -> list[Row]:
    """Rows averaged over the seeds of training: ``mean``, ``low``, ``high``, ``seeds`` and whether all are resolved."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEYS), []).append(row)
    found = []
    for key, some in groups.items():
        mean, low, high = student([row["value"] for row in some])
        numbers = {"mean": mean, "low": low, "high": high, "seeds": len(some)}
        resolved = all(row["resolved"] for row in some)
        found.append(dict(zip(KEYS, key, strict=True)) | numbers | {"resolved": resolved})
    return found


def _row(about: Mapping[str, object], definition: str, value: float, floor: float) -> Row:
    return {
        **about,
        "measure": definition.partition("[")[0],
        "definition": definition,
        "value": value,
        "floor": floor,
        "resolved": floor == 0.0 or abs(value) > floor,
    }
