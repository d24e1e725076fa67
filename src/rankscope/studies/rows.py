"""Rows gathered piece by piece while a study runs, made into a table at the end."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.core.config import Config
from rankscope.measures import Evaluation, Measure, find_measure
from rankscope.results import Table, provenance


class Rows:
    """Columns that grow: each addition is a block of rows, columns it does not name are null there."""

    def __init__(self) -> None:
        self._columns: dict[str, list[object]] = {}
        self._count = 0

    def add(self, count: int, columns: Mapping[str, object | Sequence[object]]) -> None:
        """``count`` rows; lists hold one entry per row, anything else is repeated."""
        for name, entries in columns.items():
            column = self._columns.setdefault(name, [None] * self._count)
            column.extend(entries if isinstance(entries, list) else [entries] * count)
        self._count += count
        for column in self._columns.values():
            column.extend([None] * (self._count - len(column)))

    def add_measured(self, measure: Measure, found: Evaluation, about: Mapping[str, object]) -> None:
        """One row per value of ``found``; a certified bracket also fills the columns ``low`` and ``high``."""
        columns = {"measure": measure.name, "definition": measure.definition, **about}
        columns |= {
            "value": found.value.tolist(),
            "floor": found.floor.tolist(),
            "resolved": found.resolved.tolist(),
        }
        if measure.is_bracket:
            columns |= {"low": found.low.tolist(), "high": found.high.tolist()}
        self.add(found.value.numel(), columns)

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


def definitions(names: Sequence[str]) -> dict[str, str]:
    """What each measure is, in words and as a formula, for the reader of a table."""
    return {m.definition: f"{m.meaning}: {m.formula}" for m in map(find_measure, names)}
