"""Summaries of rows by plain loops over dictionaries; imports nothing of rankscope."""

import math
from collections.abc import Iterable

Row = dict[str, object]


def filled(value: float, floor: float) -> dict[str, object]:
    """What a row must say about one number: null if not finite, log10 if it is positive, above the floor."""
    finite = not (math.isnan(value) or math.isinf(value))
    floor_finite = not (math.isnan(floor) or math.isinf(floor))
    return {
        "value": value if finite else None,
        "floor": floor if floor_finite else None,
        "log10_value": math.log10(value) if finite and value > 0 else None,
        "resolved": finite and floor_finite and abs(value) > floor,
    }


def grouped(rows: Iterable[Row], keys: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, float | None]]:
    """Mean, spread and geometric mean of each group of rows; in logarithms a zero stands at its floor."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return {key: _summary(members) for key, members in groups.items()}


def _summary(rows: list[Row]) -> dict[str, float | None]:
    values = [row["value"] for row in rows if row["value"] is not None]
    logs = []
    for row in rows:
        if row["value"] is None:
            continue
        size = row["value"] if row["value"] != 0 else row["floor"]
        if size > 0:
            logs.append(math.log10(size))
    if any(value < 0 for value in values):
        logs = []  # there is no geometric mean
    mean = sum(values) / len(values) if values else None
    spread = None
    if len(values) > 1:
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return {
        "count": len(rows),
        "mean": mean,
        "min": min(values, default=None),
        "max": max(values, default=None),
        "std": spread,
        "share_resolved": sum(bool(row["resolved"]) for row in rows) / len(rows),
        "log10_mean": sum(logs) / len(logs) if logs else None,
        "log10_min": min(logs, default=None),
        "log10_max": max(logs, default=None),
    }
