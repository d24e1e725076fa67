"""What a certificate says of one definition, brought to an axis: positions, pieces and labels of its picture."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rankscope.errors import ConfigError
from rankscope.plots.axes import Ticks, log_ticks
from rankscope.plots.split_curves import DEEP, deep_ticks, placed
from rankscope.results import Table
from rankscope.results.certify_lines import power_text

BELOW, ABOVE = 0.6, 0.35
"""How far lower bounds may reach below, and upper ones above, what was measured: parts of its own range."""

LEAST = 1.5
"""What was measured spans so many decades at least."""

LOWER = 3.0
"""Lower bounds may reach so many decades below it at least."""

INSET = 0.02
"""Marks of numbers beyond the axis stand so far inside its ends, as part of its length."""

LABEL_GAP = 14.0
"""Labels at the end of lines are so many pixels apart at least."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One definition: entries by layer, and an axis of powers of ten on which they stand.

    ``place`` brings a power of ten to its position; of a deep panel that is the logarithm of the number of decades.
    """

    definition: str
    entries: list[Row]
    place: Callable[[float], float]
    bottom: float
    top: float
    ticks: Ticks
    is_deep: bool

    @property
    def last(self) -> int:
        """The last layer."""
        return int(self.entries[-1]["layer"])

    def at(self, log: float | None, nothing: float) -> float:
        """The position of a natural logarithm, held within the axis; ``nothing`` where there is none."""
        if log is None:
            return nothing
        low, high = self.ends
        return min(max(self.place(log / math.log(10)), low), high)

    @property
    def ends(self) -> tuple[float, float]:
        """Between these positions numbers stand where they belong."""
        inset = INSET * (self.top - self.bottom)
        return self.bottom + inset, self.top - inset

    def is_outside(self, log: float | None) -> bool:
        """Whether a number lies beyond the axis."""
        return log is not None and not self.ends[0] <= self.place(log / math.log(10)) <= self.ends[1]


def panels_of(table: Table) -> list[Panel]:
    """A panel per definition, in the order of the section ``bounds``."""
    found = table.sections.get("bounds")
    if not isinstance(found, list) or not found:
        raise ConfigError(
            "a certificate is drawn from the section 'bounds' of its table, and this table has none; give the table "
            "that 'rankscope certify' made, or one saved as .json or .parquet (.csv keeps the rows alone)"
        )
    names = list(dict.fromkeys(entry["definition"] for entry in found))
    return [_panel(name, [entry for entry in found if entry["definition"] == name]) for name in names]


def _panel(definition: str, entries: list[Row]) -> Panel:
    decades = math.log(10)
    core = [entry[name] for entry in entries for name in ("measured_low", "measured_high", "trivial")]
    core += [entry["upper"] for entry in entries if not entry["upper_vacuous"]]
    known = [value / decades for value in core if value is not None] or [0.0, 1.0]
    is_deep = min(known) < -DEEP
    place = placed if is_deep else float
    low, high = place(min(known)), place(max(known))
    reach = max(high - low, 0.3 if is_deep else LEAST)
    below = max(BELOW * reach, 0.0 if is_deep else LOWER)
    lowest = [place(one["lower"] / decades) for one in entries if one["lower"] is not None]
    highest = [
        place(one[key] / decades) for one in entries for key in ("upper", "bound") if one[key] is not None
    ]
    bottom = max(min([low, *lowest]), low - below) - 0.06 * reach
    top = min(max([high, *highest]), high + ABOVE * reach) + 0.06 * reach
    ticks = deep_ticks(-(10 ** abs(bottom)) + 1, 10**top - 1) if is_deep else log_ticks(bottom, top)
    inside = [
        place_ for place_ in zip(ticks.positions, ticks.labels, strict=True) if bottom <= place_[0] <= top
    ]
    shown = Ticks(positions=[one for one, _ in inside], labels=[text for _, text in inside])
    return Panel(
        definition=definition,
        entries=entries,
        place=place,
        bottom=bottom,
        top=top,
        ticks=shown,
        is_deep=is_deep,
    )


def band_rows(panel: Panel) -> list[Row]:
    """The ends of the proven band, piece by piece; a piece is gray where nothing beyond the trivial is proven.

    Where the upper bound is vacuous the band ends at the size of the state, which is as true.
    """
    return [
        {
            "layer": entry["layer"],
            "low": panel.at(entry["lower"], panel.bottom),
            "high": panel.at(entry["trivial" if entry["upper_vacuous"] else "upper"], panel.bottom),
            "piece": piece,
            "vacuous": is_vacuous,
        }
        for piece, is_vacuous, run in pieces(panel.entries, "vacuous")
        for entry in run
    ]


def line_rows(panel: Panel, name: str, flag: str) -> list[Row]:
    """The line of ``name`` (lower, upper or bound), piece by piece, with its number as text; no number, no point."""
    toward = {"lower": -1, "upper": 1}.get(name, 0)
    return [
        {
            "layer": entry["layer"],
            "y": panel.at(entry[name], panel.top),
            "piece": piece,
            "vacuous": is_vacuous,
            "gray": bool(entry[flag]),
            "text": power_text(entry[name], toward=toward),
            "by": entry.get(f"{name}_by") or entry.get(f"{name}_name") or "",
        }
        for piece, is_vacuous, run in pieces(panel.entries, flag)
        for entry in run
        if entry[name] is not None
    ]


def arrow_rows(panel: Panel) -> list[Row]:
    """A mark at the edge of the axis for every number beyond it."""
    return [
        {
            "layer": entry["layer"],
            "y": panel.at(entry[name], panel.top),
            "shape": "triangle-up" if panel.at(entry[name], panel.top) == panel.ends[1] else "triangle-down",
            "what": name,
            "vacuous": bool(entry[f"{name}_vacuous"]),
            "text": power_text(entry[name]),
        }
        for entry in panel.entries
        for name in ("lower", "upper", "bound")
        if panel.is_outside(entry[name])
    ]


def pieces(entries: Sequence[Row], flag: str) -> list[tuple[int, bool, list[Row]]]:
    """Runs of layers with the same flag; a run starts at the layer before its first, so that pieces touch.

    >>> entries = [{"layer": place, "x": place > 1} for place in range(4)]
    >>> [(flag, [one["layer"] for one in run]) for _, flag, run in pieces(entries, "x")]
    [(False, [0, 1]), (True, [1, 2, 3])]
    """
    if len(entries) == 1:
        return [(0, bool(entries[0][flag]), [entries[0]])]
    runs: list[tuple[int, bool, list[Row]]] = []
    for before, entry in pairwise(entries):
        if not runs or runs[-1][1] != bool(entry[flag]):
            runs.append((len(runs), bool(entry[flag]), [before]))
        runs[-1][2].append(entry)
    return runs


def label_rows(panel: Panel, height: int) -> list[Row]:
    """What stands at the end of every line, pushed apart where two would touch."""
    last = panel.entries[-1]
    wanted = [
        ("measured", "measured", last["measured"], 0, False),
        ("upper", "at most", last["upper"], 1, last["upper_vacuous"]),
        ("lower", "at least", last["lower"], -1, last["lower_vacuous"]),
        ("bound", f"{last['bound_name']} {'' if last['bound_proven'] else '(unproven)'}", last["bound"], 0,
         last["bound_vacuous"]),
    ]  # fmt: skip
    rows = [
        {
            "what": name,
            "y": panel.at(log, panel.top),
            "text": f"{words.strip()} {power_text(log, toward=toward)}",
            "vacuous": bool(is_vacuous),
        }
        for name, words, log, toward, is_vacuous in wanted
        if log is not None
    ]
    if last["lower"] is None:
        rows.append({"what": "lower", "y": panel.bottom, "text": "no lower bound", "vacuous": True})
    if last["upper"] is None and last["upper_vacuous"]:
        rows.append({"what": "upper", "y": panel.top, "text": "no upper bound", "vacuous": True})
    return _apart(rows, panel, height)


def _apart(rows: list[Row], panel: Panel, height: int) -> list[Row]:
    """The rows from the top down, each at least a gap below the one above, then pushed back up from the lower end."""
    per_pixel = (panel.top - panel.bottom) / height
    gap = LABEL_GAP * per_pixel
    ordered = sorted(rows, key=lambda row: -row["y"])
    ordered[0]["y"] = min(ordered[0]["y"], panel.top - gap / 2)  # above the axis it would push the heading up
    for above, row in pairwise(ordered):
        row["y"] = min(row["y"], above["y"] - gap)
    floor = panel.bottom - gap / 2
    for row in reversed(ordered):
        row["y"] = max(row["y"], floor)
        floor = row["y"] + gap
    return ordered
