"""What a sweep is asked, what it found, and how that is said, shown and drawn."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import field_validator, model_validator

from rankscope.charts import Bar, Bars, Chart, Line, Panel, Point
from rankscope.core.words import clipped, count, duration, listed, number, percent, power, whole
from rankscope.document import Cell, Column, Document, Figure, Section, Tabular, Tone, Verdict, some
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import CommandConfig, FolderConfig, SharedWork, option
from rankscope.findings.base import Finding, Number, Quoted, Value
from rankscope.findings.blocks import LN10, how_to_read, in_words
from rankscope.findings.sweep.shares import COMBINATIONS, Share

if TYPE_CHECKING:
    import polars as pl

TABLE, PAGE = "table.parquet", "sweep.html"
"""What stands in the folder of a finished sweep, beside its ledger."""

MOST_GROUPS = 40
"""Groups that the table of a page lists."""

MOST_CURVES = 12
"""Groups that are drawn."""

MOST_CONFIGURATIONS = 100
"""Configurations that a page lists one by one."""

TINY = 1e-4
"""A share below this is said to be below it: more digits of nothing tell nothing."""

MOST_REASONS = 10
"""Reasons of failures that a page lists."""


class SweepView(CommandConfig):
    """Which rows are looked at, and how they are grouped."""

    group = "What is shown"
    where: tuple[str, ...] = option(
        (), "Only rows with COLUMN=VALUE, or !=, <, <=, >, >=; may be given several times.", many=True
    )
    group_by: tuple[str, ...] = option(
        (), "Group configurations by these columns, comma list.", shown="what varies"
    )
    measure: str | None = option(None, "Which number is compared, by its definition.", shown="the first")

    @field_validator("group_by", mode="before")
    @classmethod
    def _as_tuple(cls, given: object) -> object:
        return (given,) if isinstance(given, str) else given


class SweepConfig(SweepView, SharedWork, FolderConfig):
    """Run a command for many configurations, on one machine or many, and keep what is done.

    SPEC is a YAML file: command, fixed (fields that stay), and product, zip or rows (fields that vary, with lists,
    {range: [0, 50]} or {log_range: [1, 64, 7]}). Results go to --output DIR, or to a folder with the name of the spec.
    The same command goes on after an interruption or a kill. 'rankscope sweep show DIR' looks at what is done.
    """

    group = "Sweep"
    spec: str | None = option(None, "YAML file that says what is swept.", positional=True)
    dry_run: bool = option(False, "Check every configuration, time a few, and run no more.")
    yes: bool = option(False, "Run very many configurations without asking.")
    retry: bool = option(False, "Run configurations again that failed before.")

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into the folder at the end."""
        return (TABLE, PAGE)

    @property
    def reads(self) -> tuple[str | None, ...]:
        """The spec, so that no result is written over it."""
        return (self.spec,)


class SweepShowConfig(SweepView):
    """Look at what a sweep has found so far, also while it runs."""

    group = "Sweep"
    folder: str = option("", "Folder of a sweep.", positional=True)

    @field_validator("folder")
    @classmethod
    def _named(cls, folder: str) -> str:
        if not folder.strip():
            raise ConfigError("no folder was named; name the folder of a sweep, its ", Option("output"))
        return folder


class FailureReason(Value):
    """Configurations that failed for one reason."""

    reason: Quoted
    """What the command said."""

    configurations: int
    """How many."""

    first: int
    """The number of the first of them, in the order of the spec."""


class SweepOutcome(Value):
    """The number by which configurations are compared."""

    definition: str
    """What was measured."""

    layer: int | None
    """The layer at which it is read; null: at the last layer of each configuration, or where there are no layers."""

    is_log: bool
    """Whether values are logarithms to base ten, which is so for residuals, ratios and diameters."""


class GroupValue(Value):
    """Configurations with the same values of the columns by which they are grouped."""

    values: tuple[str, ...]
    """The values, in the order of ``group_by``."""

    configurations: int
    """How many."""

    mean: Number
    """Mean of the outcome; null where none has one."""

    low: Number
    """The smallest outcome."""

    high: Number
    """The largest outcome."""

    resolved: bool
    """Whether every number behind it is above its rounding floor."""

    @property
    def name(self) -> str:
        """The group in a few words."""
        return clipped(" ".join(self.values), 40) or "all"


class SweepFinding(Finding):
    """Many configurations of one command: what each gave, by group, and which option matters."""

    command: ClassVar[str] = "sweep"
    shown: ClassVar[tuple[str, ...]] = ("words",)
    columns: ClassVar[Mapping[str, str]] = {
        "configuration": "Number of the configuration, from zero on, in the order of the spec.",
        "failure": "Why a configuration has no number; null where it has.",
        "dim": "Width of the network, where it is varied.",
    }

    swept: str
    """The command that was run."""

    configurations: int
    """How many the spec has, or how many of them are shown."""

    finished: int
    """How many of them are done, failed ones included."""

    options: tuple[str, ...]
    """The fields that vary, as the spec names them."""

    group_by: tuple[str, ...]
    """The columns by which configurations are grouped."""

    failures: tuple[FailureReason, ...] = ()
    """Why configurations failed, the most frequent reason first."""

    outcome: SweepOutcome | None = None
    """The number by which they are compared; null where there is none."""

    groups: tuple[GroupValue, ...] = ()
    """The groups, in the order of the spec."""

    shares: tuple[Share, ...] = ()
    """What each option explains, of a balanced product in which every configuration has a number."""

    no_shares: str | None = None
    """Why nothing is said of what options explain; null where it is."""

    seconds: Number = None
    """Of a dry run: how long a configuration took, the median of a few; null otherwise."""

    @model_validator(mode="after")
    def _groups_are_columns(self) -> Self:
        missing = [name for name in self.group_by if name not in self.table.frame.columns]
        if missing:
            raise ValueError(f"{missing[0]!r} is no column of the table")
        return self

    @property
    def failed(self) -> int:
        """How many failed."""
        return sum(one.configurations for one in self.failures)

    @property
    def words(self) -> tuple[str, ...]:
        """How many there are and failed, then what matters most."""
        many = f"{whole(self.configurations)} configuration{'' if self.configurations == 1 else 's'} of {self.swept}"
        if self.seconds is not None:
            spent = duration(self.seconds * self.configurations)
            return (f"The spec has {many}, and all are valid; on one processor they take about {spent}.",)
        left = self.configurations - self.finished
        said = [
            f"{many}: {f'{whole(left)} still to run' if left else 'all have run'}, {self._failed_words()}."
        ]
        if self.shares and self.outcome is not None:
            first, *others = [one for one in self.shares if one.option != COMBINATIONS]
            what = f"of the variance of the {self._outcome_words()}"
            said.append(
                f"The option {first.option} matters most: it accounts for {_share(first)} {what}."
                if first.resolved
                else f"No option alone accounts for more {what} than rounding could make."
            )
            rest = [
                f"{one.option} {_share(one)}"
                for one in [*([] if first.resolved else [first]), *others, self.shares[-1]]
            ]
            said.append(f"{'The others' if first.resolved else 'They are'}: {listed(rest)}.")
        elif self.no_shares is not None and not left:
            said.append(f"Which option matters most cannot be said: {self.no_shares}.")
        return tuple(said)

    def _failed_words(self) -> str:
        return "none failed" if not self.failed else f"{whole(self.failed)} failed"

    def _outcome_words(self) -> str:
        if self.outcome is None:
            return "number"
        what = in_words(self.outcome.definition)
        where = "at the end" if self.outcome.layer is None else f"at layer {self.outcome.layer}"
        return f"{'logarithm of the ' if self.outcome.is_log else ''}{what} {where}"

    @property
    def tone(self) -> Tone:
        """Red where all failed."""
        if self.finished and self.failed == self.finished:
            return "bad"
        return "look" if self.failed or self.finished < self.configurations else "good"

    def save_into(self, folder: str | os.PathLike[str], made_by: str = "") -> tuple[str, ...]:
        """Write the table and the page into a folder, beside the ledger; their names."""
        from rankscope.results.files import write_atomically

        self.table.save(Path(folder) / TABLE)
        write_atomically(Path(folder) / PAGE, self.to_html(made_by).encode())
        return (TABLE, PAGE)

    def document(self) -> Document:
        """The conclusion, what matters, groups, curves, failures, configurations."""
        return Document(
            title=f"Sweep of {self.swept}",
            command=self.command,
            facts=[
                count(self.configurations, "configuration"),
                *(f"varied: {name}" for name in self.options),
            ],
            blocks=some(
                Verdict(
                    {"bad": "All failed", "look": "Not all gave numbers", "good": "Done"}.get(self.tone, "")
                    if self.seconds is None
                    else "Ready to run",
                    self.words,
                    self.tone if self.seconds is None else "good",
                ),
                *(how_to_read(self._meanings()) if self.outcome is not None else ()),
                self._shares_block(),
                self._groups_block(),
                Section("Curves by group", [Figure(one) for one in self.chart().pictures], only="html")
                if self.groups
                else None,
                self._failures_block(),
                self._configurations_block(),
            ),
            origin=self.provenance,
        )

    def _meanings(self) -> list[str]:
        said = [
            f"Configurations are compared by the {self._outcome_words()}, a mean where a configuration has several "
            "such numbers."
        ]
        if self.outcome is not None and self.outcome.layer is not None:
            said.append(
                f"Layer {self.outcome.layer} is the last one at which every number is above its rounding floor."
            )
        if self.shares:
            said.append(
                "Share of variance: how much of the spread over all configurations the means of one option's values "
                "account for; combinations are what is left. In brackets stands the 95 % interval over seeds, where "
                "the seed varies."
            )
        return said

    def _shares_block(self) -> Section | None:
        if not self.shares:
            return None
        rows: list[list[Cell | str]] = [
            [one.option, Cell(_own_share(one), not one.resolved), _interval(one)] for one in self.shares
        ]
        columns = [Column("option", "name"), Column("share of variance"), Column("95 % interval")]
        return Section("What matters", [Tabular(columns=columns, rows=rows)])

    def _groups_block(self) -> Section | None:
        if not self.groups or self.outcome is None:
            return None
        rows = list[list[Cell | str]]()
        for one in self.groups[:MOST_GROUPS]:
            numbers = [Cell(self._value(value), not one.resolved) for value in (one.mean, one.low, one.high)]
            rows.append([*one.values, str(one.configurations), *numbers])
        mean = "geometric mean" if self.outcome.is_log else "mean"
        columns = [*(Column(name, "name") for name in self.group_by), Column("configurations")]
        more = len(self.groups) - MOST_GROUPS
        note = f"{whole(more)} more groups are in the table." if more > 0 else ""
        table = Tabular(columns=[*columns, Column(mean), Column("smallest"), Column("largest")], rows=rows)
        return Section(f"By group: {in_words(self.outcome.definition)}", [table], note=note)

    def _failures_block(self) -> Section | None:
        if not self.failures:
            return None
        rows = [[str(one.configurations), str(one.first), one.reason] for one in self.failures[:MOST_REASONS]]
        columns = [Column("configurations"), Column("first"), Column("reason", "words")]
        more = len(self.failures) - MOST_REASONS
        note = f"{whole(more)} more reasons are in the table." if more > 0 else ""
        return Section("Failures", [Tabular(columns=columns, rows=rows)], note=note)

    def _configurations_block(self) -> Section | None:
        """The table itself: one line per configuration with its outcome."""
        frame = self._outcomes()
        if frame is None or not frame.height:
            return None
        names = [name for name in self.options if name in frame.columns]
        rows = list[list[Cell | str]]()
        for row in frame.head(MOST_CONFIGURATIONS).iter_rows(named=True):
            value = Cell(self._value(row["y"]), not row["resolved"])
            rows.append([str(row["configuration"]), *(str(row[name]) for name in names), value])
        columns = [Column("configuration"), *(Column(name, "name") for name in names), Column("value")]
        more = frame.height - MOST_CONFIGURATIONS
        note = f"{whole(more)} more are in the table." if more > 0 else ""
        return Section(
            "Configurations", [Tabular(columns=columns, rows=rows)], note=note, only="html", folded=True
        )

    def _value(self, y: float | None) -> str:
        """An outcome as it was measured, not its logarithm."""
        return (
            power(None if y is None else y * LN10)
            if self.outcome is not None and self.outcome.is_log
            else number(y)
        )

    def _outcomes(self) -> "pl.DataFrame | None":
        return None if self.outcome is None else outcomes(self.table.frame, self.outcome, self.options)

    def chart(self) -> Chart:
        """Curves of the groups over layers, or bars where there are none; the shares beside them."""
        if self.outcome is None or not self.groups:
            none = Panel(title="Curves by group", lines=(), notes=["No configuration gave a number."])
            return Chart([none], title=self.picture_title)
        pictures: list[Panel | Bars] = [self._curves() or self._bars()]
        if self.shares:
            bars = [Bar(one.option, one.share, _share(one)) for one in self.shares]
            pictures.append(
                Bars(title="Share of the variance that each option explains", bars=bars, value="share")
            )
        return Chart(pictures, title=self.picture_title)

    @property
    def picture_title(self) -> str:
        """What matters most, or what was swept."""
        return self.words[min(1, len(self.words) - 1)].partition(":")[0].removesuffix(".")

    def _curves(self) -> Panel | None:
        """One line per group over layers (or epochs); None where every configuration has one place alone."""
        if self.outcome is None:
            return None
        import polars as pl

        from rankscope.results.statistics import with_sizes

        own = with_sizes(self.table.frame.filter(pl.col("definition") == self.outcome.definition))
        along = next(
            (name for name in ("layer", "epoch") if name in own.columns and own[name].n_unique() > 1), None
        )
        if along is None:
            return None
        value = pl.col("size") if self.outcome.is_log else pl.col("value")
        by = list(self.group_by)
        means = (
            own.filter(pl.col(along).is_not_null())
            .group_by(*dict.fromkeys([*by, along]), maintain_order=True)
            .agg(
                value.mean().alias("y"),
                value.min().alias("low"),
                value.max().alias("high"),
                pl.col("resolved").all(),
            )
            .sort(along, maintain_order=True)
        )

        def as_text(name: str) -> pl.Expr:
            return pl.col(name).cast(pl.String).fill_null("-")

        lines = []
        drawn = self.groups[:MOST_CURVES]
        for group in drawn:
            own_rows = [as_text(name) == text for name, text in zip(by, group.values, strict=True)]
            rows = means.filter(pl.all_horizontal(pl.lit(True), *own_rows))
            points = [
                Point(
                    row[along],
                    row["y"],
                    f"{group.name}: {self._value(row['y'])}{'' if row['resolved'] else ', not above its floor'}",
                    low=row["low"],
                    high=row["high"],
                    hollow=not row["resolved"],
                )
                for row in rows.iter_rows(named=True)
            ]
            lines.append(Line(name=group.name, points=points))
        notes = [self.outcome.definition]
        if len(self.groups) > len(drawn):
            notes.append(f"The first {len(drawn)} of {len(self.groups)} groups.")
        name = self.outcome.definition.partition("[")[0].replace("_", " ")
        title = f"{name[:1].upper()}{name[1:]} by {listed(by)}" if by else f"{name[:1].upper()}{name[1:]}"
        return Panel(
            title=title,
            lines=lines,
            value=name,
            across=along,
            scale="log" if self.outcome.is_log else "linear",
            notes=notes,
        )

    def _bars(self) -> Bars:
        bars = [Bar(one.name, one.mean or 0.0, self._value(one.mean)) for one in self.groups[:MOST_CURVES]]
        name = "number" if self.outcome is None else in_words(self.outcome.definition)
        is_log = self.outcome is not None and self.outcome.is_log
        return Bars(
            title=f"{name[:1].upper()}{name[1:]} by group",
            bars=bars,
            value=f"log10 of {name}" if is_log else name,
        )


NUMBERS = ("value", "log10_value", "floor", "resolved", "y", "error")
"""Columns that nothing is grouped by."""


def outcomes(
    frame: "pl.DataFrame", outcome: SweepOutcome, options: Sequence[str], by: Sequence[str] = ()
) -> "pl.DataFrame":
    """One row per configuration that has the number: ``configuration``, its options, ``y``, ``error`` and ``resolved``.

    With ``by`` one for each of its values of these columns, of which it may have several: of ``variant``, for example.
    ``error`` is how far rounding may have moved ``y``, by the floors of the rows.
    """
    import polars as pl

    from rankscope.results.statistics import with_sizes

    own = with_sizes(frame.filter((pl.col("definition") == outcome.definition) & pl.col("failure").is_null()))
    for place in ("layer", "epoch"):
        if place in own.columns:
            at = pl.col(place).max().over("configuration") if outcome.layer is None else outcome.layer
            own = own.filter(pl.col(place).is_null() | (pl.col(place) == at))
    if outcome.is_log:  # a value and its floor together, as logarithms
        value = pl.col("size")
        error = (1 + pl.lit(10.0).pow((pl.col("log10_floor") - value).clip(upper_bound=0.0))).log10()
    else:
        value, error = pl.col("value"), pl.col("floor")
    keys = list(dict.fromkeys(["configuration", *by]))
    columns = [pl.col(name).first() for name in options if name in own.columns and name not in keys]
    return own.group_by(*keys, maintain_order=True).agg(
        *columns,
        pl.when(value.is_finite()).then(value).mean().alias("y"),
        error.fill_null(0.0).fill_nan(0.0).mean().alias("error"),
        pl.col("resolved").all(),
    )


def _share(one: Share) -> str:
    return f"{_own_share(one)} ({_interval(one)})" if one.low is not None else _own_share(one)


def _own_share(one: Share) -> str:
    """The share, or of one that rounding could make how large it is at most."""
    if one.most < TINY:
        return f"under {percent(TINY)}"
    return percent(one.share) if one.resolved else f"at most {percent(one.most)}"


def _interval(one: Share) -> str:
    return "" if one.low is None else f"{percent(one.low)} to {percent(one.high)}"
