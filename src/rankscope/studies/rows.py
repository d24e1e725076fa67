"""Rows gathered piece by piece while a study runs, made into a table at the end."""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rankscope.core.config import Config
from rankscope.measures import Evaluation, Measure, find_measure
from rankscope.results import Table, provenance
from rankscope.results.table import Cell, Columns
from rankscope.split import LogValue


class RowBuilder:
    """Columns that grow: each addition is a block of rows, columns it does not name are null there."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Cell]] = {}
        self._count = 0

    def add(self, count: int, columns: Columns) -> None:
        """``count`` rows; sequences hold one entry per row, anything else is repeated."""
        for name, entries in columns.items():
            column = self._columns.setdefault(name, [None] * self._count)
            if isinstance(entries, str) or not isinstance(entries, Sequence):
                column.extend([entries] * count)
            else:
                column.extend(entries)
        self._count += count
        for column in self._columns.values():
            column.extend([None] * (self._count - len(column)))

    def add_measured(self, measure: Measure, found: Evaluation, about: Columns) -> None:
        """One row per value of ``found``; a certified bracket also fills the columns ``low`` and ``high``."""
        columns: dict[str, Cell | Sequence[Cell]] = {
            "measure": measure.name,
            "definition": measure.definition,
            **about,
        }
        columns |= {
            "value": _flat(found.value),
            "floor": _flat(found.floor),
            "resolved": _flat(found.resolved),
        }
        if measure.is_bracket:
            columns |= {"low": _flat(found.low), "high": _flat(found.high)}
        self.add(found.value.numel(), columns)

    def add_split(self, measure: Measure, found: LogValue, ordinary: Evaluation, about: Columns) -> None:
        """One row per value of the split pass; the float pass stands beside it.

        ``floor`` is estimated from a perturbed run, ``log10_floor`` is its logarithm, which goes on where floats end;
        both are null where nothing is known of the value, and where no perturbed run went along. ``float_value`` and
        ``float_floor`` are value and floor of the ordinary pass.
        """
        logs, values = _flat(found.log10), _flat(found.log.exp())
        columns: dict[str, Cell | Sequence[Cell]] = {
            "measure": measure.name,
            "definition": measure.definition,
            **about,
        }
        columns |= {"value": values, "log10_value": [log if math.isfinite(log) else None for log in logs]}
        unknown = [math.nan] * len(values)  # a table makes it null, and keeps the column one of numbers
        columns |= {"floor": unknown, "log10_floor": unknown, "resolved": _flat(found.resolved)}
        if found.log_floor is not None and found.log10_floor is not None:
            floors = _flat(found.log10_floor)
            columns["floor"] = _flat(found.log_floor.exp())
            columns["log10_floor"] = [log if math.isfinite(log) else None for log in floors]
        columns |= {"float_value": _flat(ordinary.value), "float_floor": _flat(ordinary.floor)}
        if measure.is_bracket:
            columns |= {"low": _flat(found.low.exp()), "high": values}
        self.add(len(values), columns)

    def table(self, config: Config, *, command: str, seeds: Sequence[int], **sections: Any) -> Table:
        """All rows, named by the run, with the configuration as provenance."""
        return Table.from_columns(
            {"run": run_id(config), **self._columns},
            provenance=provenance(config.model_dump(mode="json"), seeds=list(seeds)),
            command=command,
            sections=sections,
        )


def run_id(config: Config) -> str:
    """Twelve hexadecimal digits that depend on the configuration alone: the same run has the same name."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]


def _flat(values: Tensor) -> list[Any]:
    return values.reshape(-1).tolist()


def definitions(names: Sequence[str]) -> dict[str, str]:
    """What each measure is, in words and as a formula, for the reader of a table."""
    return {m.definition: f"{m.meaning}: {m.formula}" for m in map(find_measure, names)}
