"""Rows gathered piece by piece while a study runs, made into a table at the end."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rankscope.core.config import Config
from rankscope.errors import ConfigError
from rankscope.measures import Evaluation, Measure, find_measure
from rankscope.results import Table, provenance
from rankscope.split import LogValue

MOST_TOKENS = 16_384
"""Beyond this the attention maps of one layer alone would need gigabytes."""


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
            "value": _flat(found.value),
            "floor": _flat(found.floor),
            "resolved": _flat(found.resolved),
        }
        if measure.is_bracket:
            columns |= {"low": _flat(found.low), "high": _flat(found.high)}
        self.add(found.value.numel(), columns)

    def add_split(
        self, measure: Measure, found: LogValue, ordinary: Evaluation, about: Mapping[str, object]
    ) -> None:
        """One row per value of the split pass; the float pass stands beside it.

        ``floor`` is estimated from a perturbed run, ``log10_floor`` is its logarithm, which goes on where floats end;
        both are null where nothing is known of the value, and where no perturbed run went along. ``float_value`` and
        ``float_floor`` are value and floor of the ordinary pass.
        """
        logs, values = _flat(found.log10), _flat(found.log.exp())
        columns = {"measure": measure.name, "definition": measure.definition, **about}
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


def check_error(*, split: bool, error: bool) -> None:
    """Raise if the perturbed run is left out of a study that has no split pass."""
    if not error and not split:
        raise ConfigError(
            "error=False (--no-error) leaves out a run of the split pass; add split=True (--split)"
        )


def split_words(*, error: bool) -> dict[str, Any]:
    """The section ``split`` of a table: whether its numbers have floors, and where those come from."""
    words = "floors are estimated from a perturbed run; they are no bounds"
    if not error:
        words = "run without an error: no number of the split pass has a floor, and none counts as resolved"
    return {"error": "perturbed run" if error else None, "words": words}


def run_id(config: Config) -> str:
    """Twelve hexadecimal digits that depend on the configuration alone: the same run has the same name."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]


def _flat(values: Tensor) -> list[Any]:
    return values.reshape(-1).tolist()


def definitions(names: Sequence[str]) -> dict[str, str]:
    """What each measure is, in words and as a formula, for the reader of a table."""
    return {m.definition: f"{m.meaning}: {m.formula}" for m in map(find_measure, names)}
