"""All scans of a run in little memory: numbers per step, names once, single texts only where they are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import polars as pl

from rankscope.results import Table
from rankscope.results.table import Dtype, Row

KEPT = (
    "of every step one row per stack, layer, site, head and definition (sample null: the mean over texts, with std "
    "and the number of texts); rows of single texts of the first and of the latest step only"
)

_KEY = {
    "stack": pl.String,
    "layer": pl.Int64,
    "site": pl.String,
    "head": pl.Int64,
    "measure": pl.String,
    "definition": pl.String,
    "texts": pl.Int64,
}
_NUMBERS = {"mean": "value", "std": "std", "floor": "floor"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _HistoryStep:
    step: int
    keys: pl.DataFrame  # one object shared by all steps that measured the same things
    numbers: pl.DataFrame

    def rows(self, model: str) -> pl.DataFrame:
        about = (pl.lit(model).alias("model"), pl.lit(self.step, dtype=pl.Int64).alias("step"))
        return pl.concat([self.keys, self.numbers], how="horizontal").with_columns(*about)


class StepVerdict(TypedDict):
    """The verdict on one step, as the section ``monitor`` of a record keeps it."""

    step: int
    verdict: str | None
    words: str | None
    stacks: Any


class Restart(TypedDict):
    """A step at which a run went on with the record of another one.

    Args:
        dropped: steps whose scans were replaced.
        kept: name of a copy of the record before that.
    """

    step: int
    dropped: list[int]
    kept: str | None


@dataclass(slots=True)
class History:
    """The scans so far. ``KEPT`` says what is left of them."""

    steps: list[_HistoryStep] = field(default_factory=list)
    verdicts: list[StepVerdict] = field(default_factory=list)
    first: Table | None = None
    latest: Table | None = None

    def add(self, step: int, table: Table) -> None:
        """One scan more, with its sections ``summary`` and ``verdict``."""
        summary = table.sections["summary"]
        keys = _frame(summary, {name: name for name in _KEY}, _KEY)
        if self.steps and self.steps[-1].keys.equals(keys):
            keys = self.steps[-1].keys
        numbers = _frame(summary, _NUMBERS, dict.fromkeys(_NUMBERS, pl.Float64))
        self.steps.append(_HistoryStep(step=step, keys=keys, numbers=numbers))
        verdict = table.sections.get("verdict", {})
        name, words, stacks = map(verdict.get, ("verdict", "words", "stacks"))
        self.verdicts.append(StepVerdict(step=step, verdict=name, words=words, stacks=stacks))
        stamped = replace(table, frame=table.frame.with_columns(pl.lit(step, dtype=pl.Int64).alias("step")))
        self.first, self.latest = self.first or stamped, stamped

    @classmethod
    def of(cls, table: Table) -> "History":
        """The scans of a table that ``table()`` made, so that a run can go on where another one ended."""
        about, frame = table.sections["monitor"], table.frame
        found = cls(verdicts=list(about.get("verdicts", [])))
        for step in about["steps"]:
            means = frame.filter((pl.col("step") == step) & pl.col("sample").is_null())
            keys = means.select(pl.col(name).cast(dtype) for name, dtype in _KEY.items())
            if found.steps and found.steps[-1].keys.equals(keys):
                keys = found.steps[-1].keys
            numbers = means.select(pl.col(name).cast(pl.Float64) for name in _NUMBERS.values())
            found.steps.append(_HistoryStep(step=step, keys=keys, numbers=numbers))
        if found.steps:
            sections = {name: value for name, value in table.sections.items() if name != "monitor"}
            single = frame.filter(pl.col("sample").is_not_null()).drop("texts", "std")  # of means alone
            found.first, found.latest = (
                replace(
                    table,
                    frame=single.filter(pl.col("step") == one.step),
                    command="scan",
                    sections=sections,
                )
                for one in (found.steps[0], found.steps[-1])
            )
            if len(found.steps) == 1:
                found.latest = found.first
        return found

    def drop_from(self, step: int) -> list[int]:
        """The steps that were forgotten: this one and all after it."""
        dropped = [one.step for one in self.steps if one.step >= step]
        self.steps = [one for one in self.steps if one.step < step]
        self.verdicts = self.verdicts[: len(self.steps)]
        if not self.steps:
            self.first = self.latest = None
        return dropped

    def table(self, **monitor: Any) -> Table:
        """The rows that are kept; ``monitor`` is what the section of that name says besides steps and verdicts."""
        if self.first is None or self.latest is None:
            return Table.from_records([], command="monitor", sections={"monitor": monitor | {"steps": []}})
        model = str(self.latest.sections["scan"]["model"])
        single = [self.latest.frame] if self.first is self.latest else [self.first.frame, self.latest.frame]
        frame = pl.concat([*(one.rows(model) for one in self.steps), *single], how="diagonal")
        about = {
            "step": self.steps[-1].step,
            "steps": [one.step for one in self.steps],
            "verdicts": self.verdicts,
            "kept": KEPT,
        }
        return replace(
            self.latest,
            frame=frame,
            command="monitor",
            sections=self.latest.sections | {"monitor": monitor | about},
        )


def _frame(summary: Sequence[Row], names: Mapping[str, str], dtypes: Mapping[str, Dtype]) -> pl.DataFrame:
    return pl.DataFrame(
        [pl.Series(new, [entry[old] for entry in summary], dtype=dtypes[old]) for old, new in names.items()]
    )
