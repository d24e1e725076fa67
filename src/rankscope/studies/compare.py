"""What changed between scans: every number against the first scan, beyond chance and beyond rounding."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError, FileError, Option, options
from rankscope.findings.base import Finding
from rankscope.findings.compare import (
    LAST_SHOWN,
    Against,
    Change,
    CompareConfig,
    ComparedScan,
    ComparedStack,
    CompareFinding,
    Comparison,
    End,
    LastNumber,
    LimitOutcome,
    Only,
    Series,
    TrendLine,
    by_size,
    with_resolved,
)
from rankscope.findings.scan import ScanFinding
from rankscope.measures import DEFAULTS, MEASURES
from rankscope.results import Outcome, Table, provenance
from rankscope.results.statistics import (
    Error,
    Floats,
    benjamini_hochberg,
    p_values,
    paired_error,
    span_of,
    trend,
    welch_error,
)
from rankscope.results.statistics import judge_span as judged_span
from rankscope.results.table import read_rows
from rankscope.sources import Loaded, Seen
from rankscope.sources.seen import Call
from rankscope.studies.compared_models import (
    is_model,
    listed_scans,
    names_of,
    refuse_idle_beside_results,
    refuse_mixed,
    scan_models,
    settled_checkpoints,
)
from rankscope.studies.inputs import CallInputs
from rankscope.studies.rows import run_id

Advance = Callable[[int, int], None]
M = TypeVar("M", bound=BaseModel)

KEY = ("stack", "layer", "site", "head", "measure", "definition")
"""What names one number of a model; the rest is which text it was measured on."""

AT_LAYER, AT_LAST = "layer", "last block"
"""What the column ``at`` holds: the same layer of both, or the last block of each where the depths differ."""

LOOKED_AGAIN = 1.0
"""Seconds between two looks at a run that is followed."""

VISIBLE = 1e-3
"""A change below this part of a number (of a cosine: below this) does not show in the three digits that are printed."""

_CELL_DTYPES = {
    "stack": pl.String,
    "layer": pl.Int64,
    "site": pl.String,
    "head": pl.Int64,
    "measure": pl.String,
    "definition": pl.String,
    "texts": pl.Int64,
    "mean": pl.Float64,
    "std": pl.Float64,
    "floor": pl.Float64,
}


@runtime_checkable
class HasTable(Protocol):
    """Anything that carries its table, such as what ``scan`` returns, or a monitor."""

    @property
    def table(self) -> Table: ...


Scannable = Table | HasTable | str | os.PathLike[str]
Comparable = Scannable | nn.Module | Loaded | Seen


def compare(
    *scans: Comparable | CompareConfig,
    texts: Any = None,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: CompareConfig | None = None,
    folder: str | os.PathLike[str] | None = None,
    save: Callable[[CompareFinding], object] | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> CompareFinding:
    """What changed between models, or between saved scans, every number against that of the first.

    Give models, as ``scan`` takes them, and perhaps what they read: ``rs.compare(before, after, texts=["a text"])``.
    Each is scanned with the same inputs. Or give scans: a saved result (.json, .parquet; from .csv the summary is made
    again from the rows), a Table, or anything with a ``table``. One folder of checkpoints or of saved scans is a
    series, by the numbers in their names. The first is the baseline. Give a ``CompareConfig``, or its fields as
    keywords: ``rs.compare("before.json", "after.json", alpha=0.01)``. There is one row per stack, layer, site, head
    and definition for every scan after the first. ``value`` is the change of the mean over texts; added columns:

    - ``stack``; ``scan``, the name of the later one; ``at``: ``layer``, or ``last block`` where the depths differ;
    - ``before``, ``after``, ``change``; ``ratio`` after/before, null unless both are above their floors;
    - ``spread``, the standard error of the change over texts: from the differences text by text (``paired``) if
      both scans have rows for the same number of texts with the same tokens counts, after Welch otherwise;
    - ``z``, change over spread; ``p_adjusted``, Student's p after Benjamini and Hochberg over the whole table;
    - ``significant``: p_adjusted at most alpha, and the change larger than both floors together; null if there is
      no spread (one text) and the change is above the floor;
    - ``outcome``: ``crossed`` if significant; ``undecided`` where a text has no number, where nothing tells a change
      from chance, or where one beyond chance is no larger than rounding can make; ``not crossed`` otherwise.

    ``floor`` is the sum of both floors, the most that rounding can add to a difference, so ``resolved`` says whether
    the change is beyond rounding.
    """
    live = [one for one in scans if not isinstance(one, CompareConfig)]
    given = [one for one in (*scans, config) if isinstance(one, CompareConfig)]
    if len(given) > 1 or (given and fields):
        raise ConfigError("compare takes one CompareConfig, or its fields as keywords, not both")
    asked = _full_names(given[0] if given else CompareConfig.of(**fields))
    if live and asked.scans:
        raise ConfigError("scans were given twice: as arguments and as the field scans; leave one out")
    objects = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    read = partial(_read_sides, live or asked.scans, asked, objects, tokenizer, advance, folder)
    keep = save or (lambda found: None if folder is None else found.save_into(folder))
    if not asked.follow:
        found = _compared(*read(), asked)
        keep(found)
        return found
    followed = (live or asked.scans)[0] if len(live or asked.scans) == 1 else None
    if folder is None or not isinstance(followed, str | os.PathLike):
        raise ConfigError(
            Option("follow"),
            " goes on with one folder of checkpoints; name it alone, and a folder: ",
            Option("output"),
        )
    return _followed(Path(followed).expanduser(), read, asked, keep)


def _followed(
    run: Path,
    read: "Callable[[], tuple[list[ScanSide], tuple[LimitOutcome, ...]]]",
    asked: CompareConfig,
    keep: Callable[[CompareFinding], object],
) -> CompareFinding:
    """The comparison again whenever a checkpoint is new, until a limit is crossed or nothing new appears."""
    found: CompareFinding | None = None
    seen, since = -1, time.monotonic()
    try:
        while True:
            many = settled_checkpoints(run)
            if many > max(seen, 1):
                found, seen, since = _compared(*read(), asked), many, time.monotonic()
                keep(found)
                if any(one.outcome == "crossed" for one in found.limits):
                    return found
            if asked.idle is not None and time.monotonic() - since > asked.idle:
                break
            time.sleep(LOOKED_AGAIN)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped following; what was found so far is in the folder") from None
    if found is None:
        raise FileError(
            f"no two checkpoints appeared in {str(run)!r}; name the folder of a run that writes some"
        )
    return found


def _compared(
    sides: "list[ScanSide]", limits: tuple[LimitOutcome, ...], asked: CompareConfig
) -> CompareFinding:
    """What changed between the sides."""
    sides = _select(sides, asked)
    asked = asked.model_copy(update={"scans": tuple(side.name for side in sides)})
    differences = pl.concat([_differences(sides[0], side) for side in sides[1:]])
    if not differences.height:
        raise ConfigError(
            f"{', '.join(asked.scans)} have no stack, layer, site and definition in common; nothing can be compared"
        )
    rows = _with_significance(differences, asked.alpha)
    places = [_ends(side) for side in sides]
    return CompareFinding(
        compare=Comparison(
            baseline=sides[0].name,
            scans=tuple(side.summary() for side in sides),
            alpha=asked.alpha,
            findings=tuple(sorted(_changes(rows), key=lambda one: -one.size)),
            against=tuple(_counted_rows(side.name, rows) for side in sides[1:]),
            only=tuple(one for side in sides[1:] for one in _only(sides[0], side)),
        ),
        ends=tuple(_end_changes(sides, places)),
        lasts=tuple(_last_numbers(sides, rows, asked.alpha)),
        trend=_series(sides, places, alpha=asked.alpha) if len(sides) > 2 else None,
        limits=limits,
        definitions={name: words for side in sides for name, words in side.definitions.items()},
        table=Table(
            frame=rows.with_columns(pl.lit(run_id(asked)).alias("run")),
            command="compare",
            provenance=provenance(asked.model_dump(mode="json")),
        ),
    )


def _full_names(config: CompareConfig) -> CompareConfig:
    """The configuration with bare names of measures, such as ``residual_ratio``, replaced by their definitions."""
    if not config.measures:
        return config
    plain = ("".join(name.split()) for name in config.measures)
    return config.model_copy(
        update={"measures": tuple(dict.fromkeys(DEFAULTS.get(name, name) for name in plain))}
    )


# What is read: saved or live scans, each brought to one frame of cells and one of rows per text.


class _SavedPart(BaseModel):
    """A part of a result file of a scan; what this program does not know is left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _About(_SavedPart):
    """The section ``scan``."""

    model: str | None = None
    dtype: str | None = None
    tokens: float | None = None


class _Stack(_SavedPart):
    stack: str
    verdict: str | None = None
    starts: int | None = None


class _Verdict(_SavedPart):
    """The section ``verdict``, and one of the verdicts of a record of training."""

    verdict: str | None = None
    stacks: tuple[_Stack, ...] | None = None
    step: int | None = None


class _Monitor(_SavedPart):
    """The section ``monitor`` of a record of training."""

    step: int | None = None
    verdicts: tuple[_Verdict, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanSide:
    """One scan of a comparison.

    ``cells``: the columns of ``KEY`` with mean, std, texts, empty and floor over all texts. ``rows``: the same columns
    with sample, tokens and value, for the texts that have rows of their own.
    """

    name: str
    cells: pl.DataFrame
    rows: pl.DataFrame
    about: _About
    verdict: _Verdict
    definitions: dict[str, str]
    step: int | None = None

    @property
    def texts(self) -> int:
        """The most texts that any number was measured on."""
        found = self.cells["texts"].max()
        return found if isinstance(found, int) else 0

    @property
    def stacks(self) -> list[str]:
        """Names of the runs of blocks, in order of execution."""
        return self.cells["stack"].unique(maintain_order=True).to_list()

    def depth(self, stack: str) -> int:
        """Blocks of a stack: the largest layer measured in it."""
        found = self.cells.filter(pl.col("stack") == stack)["layer"].max()
        return found if isinstance(found, int) else 0

    def only(self, keep: pl.Expr) -> "ScanSide":
        """The cells and rows for which ``keep`` holds."""
        return replace(self, cells=self.cells.filter(keep), rows=self.rows.filter(keep))

    def last_blocks(self, stacks: Sequence[str]) -> "ScanSide":
        """What was measured at the last block of each of these stacks, with null for the layer."""
        last = pl.any_horizontal(
            (pl.col("stack") == stack) & (pl.col("layer") == self.depth(stack)) for stack in stacks
        )
        side, no_layer = self.only(last), pl.lit(None, dtype=pl.Int64).alias("layer")
        return replace(side, cells=side.cells.with_columns(no_layer), rows=side.rows.with_columns(no_layer))

    def summary(self) -> ComparedScan:
        """What this scan is."""
        stacks = [
            ComparedStack(stack=one.stack, verdict=one.verdict, starts=one.starts)
            for one in self.verdict.stacks or ()
        ]
        return ComparedScan(
            name=self.name,
            model=self.about.model,
            dtype=self.about.dtype,
            texts=self.texts,
            tokens=self.about.tokens,
            layers={stack: self.depth(stack) for stack in self.stacks},
            verdict=self.verdict.verdict,
            stacks=tuple(stacks),
            step=self.step,
        )


def _read_sides(
    scans: Sequence[Any],
    config: CompareConfig,
    given: CallInputs,
    tokenizer: Any,
    advance: Advance | None,
    folder: str | os.PathLike[str] | None,
) -> "tuple[list[ScanSide], tuple[LimitOutcome, ...]]":
    """The sides of a comparison, and limits they cross: saved scans are read, models are scanned, all alike."""
    whole = listed_scans(scans, config.every, is_settled=config.follow)
    refuse_mixed(whole)
    if not whole or not is_model(whole[0].what):
        refuse_idle_beside_results(config, given, tokenizer)
        idle = [name for name in ("follow", "fail_if") if name in config.explicit]
        if idle:
            raise ConfigError(*options(idle), " needs models, which are scanned; these are saved scans")
        sides = sides_of([one.what for one in whole], advance)
        steps = [one.step for one in whole]
        if len(sides) == len(whole) and all(side.step is None for side in sides):
            sides = [replace(side, step=step) for side, step in zip(sides, steps, strict=True)]
        return sides, ()
    if len(whole) < 2:
        raise ConfigError(
            f"a comparison needs two models or more, got {os.fspath(whole[0].what)!r} alone; name another one, or a "
            "folder of checkpoints"
            if isinstance(whole[0].what, str | os.PathLike)
            else "a comparison needs two models or more, got one; give another one"
        )
    found = scan_models(whole, config, given, tokenizer, advance, folder)
    names = names_of(whole, found)
    named = zip(sides_of(found), names, whole, strict=True)
    limits = tuple(_limits(config, names, found))
    return [replace(side, name=name, step=one.step) for side, name, one in named], limits


def _limits(
    config: CompareConfig, names: Sequence[str], found: Sequence[ScanFinding]
) -> Iterator[LimitOutcome]:
    """The limits that a model crosses, or that cannot be decided in it."""
    for name, one in zip(names, found, strict=True):
        for condition in config.conditions:
            outcome = one.decided(condition).outcome
            if outcome is not Outcome.CLEAR:
                said: Literal["crossed", "undecided"] = (
                    "crossed" if outcome is Outcome.CROSSED else "undecided"
                )
                text = condition.text(one.definition_of(condition.measure))
                yield LimitOutcome(scan=name, condition=text, outcome=said)


def sides_of(scans: Sequence[Scannable], advance: Advance | None = None) -> list[ScanSide]:
    """The scans in the order given, with names that differ; the first is the baseline.

    A record of training (``CollapseMonitor``) given alone is the series of its steps; beside others, its last one.
    """
    named = list[tuple[str, Table]]()
    for scan in scans:
        named.append(_load(scan))
        if advance is not None:
            advance(len(named), len(scans))
    _refuse_repeats(scans, [table for _, table in named])
    sides = [_side(name, table) for name, table in named]
    if len(named) == 1:
        table = named[0][1]
        by_step = _by_step(table)
        sides = [_step_side(f"step {step}", table, by_step[step], step) for step in sorted(by_step)] or sides
    if len(sides) < 2:
        raise ConfigError(
            f"a comparison needs two scans or more, got {len(sides)}; "
            "save one per model with 'rankscope scan MODEL --output FILE.json'"
        )
    return [replace(side, name=name) for side, name in zip(sides, _distinct(sides, scans), strict=True)]


def _load(scan: Scannable) -> tuple[str, Table]:
    if isinstance(scan, str | os.PathLike):
        return Path(scan).stem, _check_table(Table.load(scan), f"{os.fspath(scan)!r}")
    table = scan if isinstance(scan, Table) else getattr(scan, "table", None)
    if not isinstance(table, Table):
        raise ConfigError(
            f"compare takes saved scans, tables or what scan returns; got {type(scan).__name__}"
        )
    if isinstance(scan, Finding):  # its fields are what the file holds beside the rows
        table = replace(table, sections=table.sections | scan.model_dump(mode="json"))
    table = _check_table(table, "a table")
    return _part(_About, table, "scan", "a table").model or "scan", table


def _check_table(table: Table, what: str) -> Table:
    missing = [name for name in ("stack", "tokens") if name not in table.frame.columns]
    if missing:
        origin = f"comes from 'rankscope {table.command}'" if table.command else "is not from a scan"
        raise FileError(
            f"{what} {origin}: it has no column {' and no column '.join(missing)}; "
            "compare reads tables that 'rankscope scan' wrote"
        )
    if not len(table):
        raise FileError(f"{what} is a scan without rows; scan at least one text and save it again")
    return table


def _part(kind: type[M], table: Table, name: str, origin: str) -> M:
    """A section of a scan, typed; an empty one where it is missing."""
    found = table.sections.get(name)
    try:
        return kind.model_validate({} if found is None else found)
    except ValidationError as error:
        wrong = error.errors()[0]
        at = ".".join(map(str, (name, *wrong["loc"])))
        raise FileError(
            f"the section {at} of {origin!r} is not that of a scan ({wrong['msg']}); scan again"
        ) from None


def _refuse_repeats(scans: Sequence[Scannable], tables: Sequence[Table]) -> None:
    """Stop at one scan given twice: it never changes, and a trend would count it twice."""
    seen: dict[object, str] = {}
    for scan, table in zip(scans, tables, strict=True):
        name = os.fspath(scan) if isinstance(scan, str | os.PathLike) else ""
        whole = (
            scan.table if isinstance(scan, Finding) else table
        )  # reading a finding makes another table of it
        key: object = os.path.realpath(name) if name else id(whole.frame)
        if key in seen:
            both = f"{seen[key]!r} and {name!r} are one file" if name else "one table in two places"
            raise ConfigError(f"the same scan was given twice: {both}; give each scan once")
        seen[key] = name


def _by_step(table: Table) -> dict[int, pl.DataFrame]:
    """The rows of every training step; empty for an ordinary scan."""
    if "step" not in table.frame.columns:
        return {}
    parts = table.frame.drop_nulls("step").partition_by("step", as_dict=True, maintain_order=True)
    return {int(step): part for (step,), part in parts.items()}


def _side(name: str, table: Table) -> ScanSide:
    """A scan; of a record of training, its last step."""
    by_step = _by_step(table)
    if len(by_step) > 1:
        return _step_side(name, table, by_step[max(by_step)], max(by_step))
    frame, summary = table.frame, table.sections.get("summary")
    cells = _from_section(summary, name) if summary else _summarize_rows(frame)
    step = max(by_step, default=_part(_Monitor, table, "monitor", name).step)
    return _of(name, table, cells, frame, _part(_Verdict, table, "verdict", name), step)


def _step_side(name: str, table: Table, frame: pl.DataFrame, step: int) -> ScanSide:
    means = frame.filter(pl.col("sample").is_null()).rename({"value": "mean"})
    known = _part(_Monitor, table, "monitor", name).verdicts
    verdict = next((one for one in known if one.step == step), _Verdict())
    return _of(name, table, means if means.height else _summarize_rows(frame), frame, verdict, step)


def _of(
    name: str, table: Table, cells: pl.DataFrame, frame: pl.DataFrame, verdict: _Verdict, step: int | None
) -> ScanSide:
    rows = frame.filter(pl.col("sample").is_not_null()).select(*KEY, "sample", "tokens", "value")
    empty = pl.col("empty") if "empty" in cells.columns else pl.lit(0, dtype=pl.Int64)
    typed = (pl.col(column).cast(dtype) for column, dtype in _CELL_DTYPES.items())
    definitions = table.sections.get("definitions")
    return ScanSide(
        name=name,
        cells=_with_counts(cells.select(*typed, empty.alias("empty")), rows),
        rows=rows,
        about=_part(_About, table, "scan", name),
        verdict=verdict,
        definitions={str(one): str(words) for one, words in definitions.items()}
        if isinstance(definitions, Mapping)
        else {},
        step=step,
    )


def _with_counts(cells: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The cells with only those texts counted that have a number (not 0/0, not NaN); ``empty`` counts the others.

    An older summary does not say how many there are; then they are counted in the rows that were kept.
    """
    seen = rows.filter(pl.col("value").is_null()).group_by(*KEY).agg(pl.len().cast(pl.Int64).alias("seen"))
    joined = cells.join(seen, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    empty = pl.max_horizontal("empty", pl.col("seen").fill_null(0))
    return joined.with_columns(pl.col("texts") - empty, empty.alias("empty")).drop("seen")


def _summarize_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """The summary over texts made again from their rows, where the file kept nothing else.

    Rows without a text are means already; they count where no text has rows of its own, as norms of gradients do.
    """
    of_texts = frame.drop_nulls("sample")
    alone = frame.filter(pl.col("sample").is_null()).join(of_texts, on=KEY, how="anti", nulls_equal=True)
    value = pl.col("value")
    return (
        pl.concat([of_texts, alone])
        .group_by(*KEY, maintain_order=True)
        .agg(
            pl.len().alias("texts"),
            value.mean().alias("mean"),
            value.std().alias("std"),
            pl.col("floor").mean(),
        )
    )


def _from_section(section: Any, origin: str) -> pl.DataFrame:
    try:
        columns = {name: [entry[name] for entry in section] for name in _CELL_DTYPES}
        columns["empty"] = [entry["texts"] - entry.get("numbers", entry["texts"]) for entry in section]
        dtypes = _CELL_DTYPES | {"empty": pl.Int64}
        return pl.DataFrame([pl.Series(name, columns[name], dtype=dtypes[name]) for name in columns])
    except (KeyError, TypeError, AttributeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise FileError(
            f"the summary of {origin!r} is not that of a scan ({' '.join(str(error).split())[:80]}); scan again"
        ) from error


def _distinct(sides: Sequence[ScanSide], scans: Sequence[Scannable]) -> list[str]:
    """File stems or model names; where two agree, the paths as given, and then a number."""
    names = [" ".join(side.name.split()) for side in sides]
    if len(set(names)) < len(names) and len(scans) == len(sides):
        names = [
            os.fspath(scan) if isinstance(scan, str | os.PathLike) else name
            for scan, name in zip(scans, names, strict=True)
        ]
    return [
        f"{name} #{names[:place].count(name) + 1}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _select(sides: list[ScanSide], config: CompareConfig) -> list[ScanSide]:
    """The sides with only the definitions and sites asked for; an error if none of them has one."""
    wanted = {"definition": config.measures, "site": config.sites}
    for column, names in wanted.items():
        known = {str(name) for side in sides for name in side.cells[column].unique()}
        for name in names:
            if name not in known:
                raise unknown_name(f"{column} in these scans", name, known)
    keep = [pl.col(column).is_in(names) for column, names in wanted.items() if names]
    return [side.only(pl.all_horizontal(keep)) for side in sides] if keep else sides


# Differences, and what chance and rounding make of them.


def _differences(a: ScanSide, b: ScanSide) -> pl.DataFrame:
    """All cells that both have, with means, floors, and the error of their difference."""
    deeper = [stack for stack in a.stacks if stack in b.stacks and a.depth(stack) != b.depth(stack)]
    parts = [_join(a, b).with_columns(pl.lit(AT_LAYER).alias("at"))]
    if deeper:
        last = _join(a.last_blocks(deeper), b.last_blocks(deeper))
        parts.append(last.with_columns(pl.lit(AT_LAST).alias("at")))
    return pl.concat(parts).with_columns(
        pl.lit(b.name).alias("scan"), pl.lit(b.about.model, dtype=pl.String).alias("model")
    )


def _join(a: ScanSide, b: ScanSide) -> pl.DataFrame:
    cells = a.cells.join(b.cells, on=KEY, how="inner", suffix="_b", nulls_equal=True, maintain_order="left")
    cells = cells.join(_pairs(a, b), on=KEY, how="left", nulls_equal=True, maintain_order="left")
    before, after = cells["mean"], cells["mean_b"]
    columns = {
        name: _array(cells[name]) for name in ("std", "texts", "std_b", "texts_b", "std_pairs", "pairs")
    }
    paired = paired_error(columns["std_pairs"], columns["pairs"], columns["texts"])
    welch = welch_error(columns["std"], columns["texts"], columns["std_b"], columns["texts_b"])
    is_paired = np.isfinite(columns["pairs"])
    change = _array(after) - _array(before)
    error = Error(
        size=np.where(is_paired, paired.size, welch.size),
        freedom=np.where(is_paired, paired.freedom, welch.freedom),
    )
    return cells.select(
        *KEY,
        pl.Series("before", before),
        pl.Series("after", after),
        pl.Series("value", change, nan_to_null=True),
        pl.Series("change", change, nan_to_null=True),
        pl.Series("ratio", _ratio(cells), nan_to_null=True),
        pl.Series("spread", error.size, nan_to_null=True),
        pl.Series("z", _z(change, error.size), nan_to_null=True),
        pl.Series("p", p_values(change, error), nan_to_null=True),
        pl.Series("paired", is_paired),
        pl.col("texts"),
        (pl.col("floor") + pl.col("floor_b")).alias("floor"),
        pl.col("floor_b").alias("floor_after"),
        (pl.col("empty") + pl.col("empty_b")).alias("empty"),
    )


def _pairs(a: ScanSide, b: ScanSide) -> pl.DataFrame:
    """Spread of the differences text by text, for stacks in which both scans read the same texts.

    The same texts: as many in all, and the same samples with the same numbers of tokens. If they were other texts of
    equal lengths after all, the pairs would be random and the error still right, only without the gain of pairing.
    """
    stacks = [stack for stack in a.stacks if _texts(a, stack) == _texts(b, stack) is not None]
    both = a.rows.filter(pl.col("stack").is_in(stacks)).join(
        b.rows, on=[*KEY, "sample"], how="inner", suffix="_b", nulls_equal=True
    )
    gap = pl.col("value_b") - pl.col("value")
    found = both.group_by(*KEY).agg(
        gap.std().alias("std_pairs"), gap.count().cast(pl.Float64).alias("pairs"), pl.len()
    )
    # A text without a number on one side is in one mean and not in the other: those are no pairs.
    return found.filter(pl.col("pairs") == pl.col("len")).drop("len")


def _texts(side: ScanSide, stack: str) -> tuple[object, ...] | None:
    """How many texts, and the tokens of each that has rows; None if none has."""
    rows = side.rows.filter(pl.col("stack") == stack)
    if not rows.height:
        return None
    counts = rows.select("sample", "tokens").unique().sort("sample", "tokens").rows()
    return (side.cells.filter(pl.col("stack") == stack)["texts"].max(), *counts)


def _array(series: pl.Series) -> Floats:
    return series.cast(pl.Float64).fill_null(math.nan).to_numpy()


def _ratio(cells: pl.DataFrame) -> Floats:
    before, after = _array(cells["mean"]), _array(cells["mean_b"])
    ratio = np.full(before.shape, math.nan)
    known = (np.abs(before) > _array(cells["floor"])) & (np.abs(after) > _array(cells["floor_b"]))
    np.divide(after, before, out=ratio, where=known & (before != 0))
    return ratio


def _z(change: Floats, size: Floats) -> Floats:
    z = np.full(change.shape, math.nan)
    np.divide(change, size, out=z, where=size > 0)
    return z


def _with_significance(frame: pl.DataFrame, alpha: float) -> pl.DataFrame:
    """With ``p_adjusted`` and ``significant``.

    A change within the floors counts as a test that failed (p = 1): rounding is systematic, it would pass any test
    against chance and by its number make the correction too lenient for the others.
    """
    change, floor, p = (_array(frame[name]) for name in ("change", "floor", "p"))
    is_real = np.abs(change) > floor
    p_adjusted = benjamini_hochberg(np.where(np.isnan(p), p, np.where(is_real, p, 1.0)))
    calls = [
        (None if real else False) if math.isnan(one) else one <= alpha
        for one, real in zip(p_adjusted.tolist(), is_real.tolist(), strict=True)
    ]
    judged = frame.drop("p").with_columns(
        pl.Series("p_adjusted", p_adjusted, nan_to_null=True),
        pl.Series("significant", calls, dtype=pl.Boolean),
    )
    by_chance = benjamini_hochberg(p) > alpha  # whether chance alone explains it, rounding aside; NaN is no
    rows = read_rows(judged, _RowSignificance)
    outcomes = [_outcome(row, bool(chance)) for row, chance in zip(rows, by_chance, strict=True)]
    return judged.drop("empty").with_columns(pl.Series("outcome", outcomes, dtype=pl.String))


@dataclass(frozen=True, kw_only=True, slots=True)
class _RowSignificance:
    """What of a row decides whether its number changed."""

    measure: str
    before: float | None
    after: float | None
    change: float | None
    floor: float | None
    empty: int
    significant: bool | None


def _outcome(row: _RowSignificance, by_chance: bool) -> Outcome:
    """Whether the number changed: ``significant``, with what cannot be told kept apart from what did not change.

    A change within the floors is anything up to them. It is no change where that would not show in three digits.
    """
    change, floor = row.change, math.inf if row.floor is None else row.floor
    if row.significant:
        return Outcome.CROSSED
    if change is None or row.before is None or row.after is None or row.empty:
        return Outcome.UNDECIDED
    if change == 0 or by_chance:
        return Outcome.CLEAR
    if abs(change) > floor:
        return Outcome.UNDECIDED  # one text: no spread to hold it against
    scale = 1.0 if row.measure == "cosine" else max(abs(row.before), abs(row.after))
    return judged_span(span_of(abs(change), floor, vanishes=True, resolved=0.0), ">", VISIBLE * scale)


# Groups of changes, counts, and what one of two scans lacks.

_GROUP = ("scan", "stack", "site", "definition", "at", "direction")


@dataclass(frozen=True, kw_only=True, slots=True)
class _MovedNumber:
    """A number that changed, by the names of the fields of ``Change``."""

    layer: int | None
    head: int | None
    before: float
    after: float
    change: float
    spread: float | None
    z: float | None
    size: float
    before_resolved: bool
    after_resolved: bool


def _changes(rows: pl.DataFrame) -> Iterator[Change]:
    """Significant changes in groups of neighbouring layers that moved the same way."""
    moved = with_resolved(by_size(rows.filter(pl.col("significant")))).with_columns(
        pl.when(pl.col("change") > 0).then(pl.lit("rose")).otherwise(pl.lit("fell")).alias("direction")
    )
    for key, members in moved.sort(*_GROUP, "layer").group_by(*_GROUP, maintain_order=True):
        for run in _runs(read_rows(members, _MovedNumber)):
            most = max(run, key=lambda row: row.size)
            yield Change(
                **dict(zip(_GROUP, key, strict=True)),
                layers=(run[0].layer, run[-1].layer),
                numbers=len(run),
                **asdict(most),
            )


def _runs(rows: Sequence[_MovedNumber]) -> Iterator[list[_MovedNumber]]:
    """Rows in order of their layer, cut where a layer is left out."""
    layers = sorted({row.layer or 0 for row in rows})
    for _, run in groupby(enumerate(layers), key=lambda pair: pair[1] - pair[0]):
        inside = {layer for _, layer in run}
        yield [row for row in rows if (row.layer or 0) in inside]


def _counted_rows(scan: str, rows: pl.DataFrame) -> Against:
    """The rows of one later scan, counted."""
    rows = rows.filter(pl.col("scan") == scan)
    size, floor = rows["change"].abs(), rows["floor"]
    tested = rows.filter(pl.col("spread").is_not_null())
    without = rows.filter(pl.col("significant").is_null())
    ratios = rows.filter(pl.col("measure") == "residual_ratio")
    # The column floor is the sum of both floors.
    floors = [*(ratios["floor"] - ratios["floor_after"]), *ratios["floor_after"]]
    return Against(
        scan=scan,
        numbers=rows.height,
        changed=int(rows["significant"].fill_null(value=False).sum()),
        beyond_rounding=int(size.gt(floor).fill_null(value=False).sum()),
        within_rounding=int(size.le(floor).fill_null(value=False).sum()),
        without_number=rows["change"].null_count(),
        without_spread=without.height,
        untested=tuple(without["definition"].unique(maintain_order=True)),
        is_tested=tested.height > 0,
        is_paired=bool((tested if tested.height else rows)["paired"].all()),
        ratio_floor=max((one for one in floors if one is not None), default=None),
    )


def _only(base: ScanSide, side: ScanSide) -> Iterator[Only]:
    """What one of the two has and the other lacks, coarsest first."""
    for one, other in ((base, side), (side, base)):
        stacks = [stack for stack in one.stacks if stack not in other.stacks]
        if stacks:
            yield Only(scan=one.name, lacks=other.name, kind="stack", stack=None, names=tuple(stacks))
        for stack in (stack for stack in one.stacks if stack in other.stacks):
            yield from _only_in_stack(one, other, stack)


def _only_in_stack(one: ScanSide, other: ScanSide, stack: str) -> Iterator[Only]:
    mine, theirs = (side.cells.filter(pl.col("stack") == stack) for side in (one, other))
    kinds: tuple[Literal["layer", "site", "definition", "head"], ...] = (
        "layer",
        "site",
        "definition",
        "head",
    )
    for kind in kinds:
        names = set(theirs[kind].drop_nulls())
        extra = [name for name in mine[kind].drop_nulls().unique(maintain_order=True) if name not in names]
        if extra:
            yield Only(scan=one.name, lacks=other.name, kind=kind, stack=stack, names=tuple(extra))


# The last block and the worst layer of every stack, between two scans and over a series of them.


@dataclass(frozen=True, kw_only=True, slots=True)
class _MeanAtLayer:
    """A mean over texts at one layer, and what rounding may have added to it."""

    layer: int
    value: float
    floor: float


Places = dict[tuple[str, str, Literal["last block", "worst layer"]], _MeanAtLayer]
"""Stack, definition and ``last block`` or ``worst layer`` to its number."""


def _ends(side: ScanSide) -> Places:
    """Last block and worst layer of every stack and definition, of the states after a block.

    The worst layer has the smallest mean over texts, or for measures that grow in collapse the largest; what enters
    the first block counts only if there is nothing else.
    """
    found: Places = {}
    states = side.cells.filter(
        (pl.col("site") == "block") & pl.col("head").is_null() & pl.col("mean").is_not_null()
    )
    depths = {stack: side.depth(stack) for stack in side.stacks}
    for stack, layer, definition, value, floor in states.select(
        "stack", "layer", "definition", "mean", "floor"
    ).iter_rows():
        if layer == 0 and depths[stack]:
            continue
        place = _MeanAtLayer(layer=layer, value=value, floor=math.inf if floor is None else floor)
        if layer == depths[stack]:
            found[stack, definition, "last block"] = place
        worst = found.get((stack, definition, "worst layer"))
        # A file may hold a measure of another project, which is not registered here: it is taken to fall.
        sign = 1 if definition in MEASURES and MEASURES[definition].rises else -1
        if worst is None or sign * value > sign * worst.value:
            found[stack, definition, "worst layer"] = place
    return found


def _end_changes(sides: Sequence[ScanSide], found: Sequence[Places]) -> Iterator[End]:
    """Last block and worst layer of every later scan against those of the first."""
    for side, other in zip(sides[1:], found[1:], strict=True):
        for (stack, definition, at), before in found[0].items():
            after = other.get((stack, definition, at))
            if after is None:
                continue
            change = after.value - before.value
            yield End(
                scan=side.name,
                stack=stack,
                definition=definition,
                at=at,
                before=before.value,
                before_layer=before.layer,
                after=after.value,
                after_layer=after.layer,
                change=change,
                resolved=abs(change) > before.floor + after.floor,
            )


def _last_numbers(sides: Sequence[ScanSide], rows: pl.DataFrame, alpha: float) -> Iterator[LastNumber]:
    """Rank, residual ratio and cosine after the last block of every stack of every scan.

    These few are asked about before anything is looked at, so they are tested on their own, with Bonferroni's factor
    for as many as there are, and not as some among hundreds.
    """
    measured = {one for side in sides for one in side.cells.filter(pl.col("site") == "block")["definition"]}
    chosen = [next(one for one in group if one in measured) for group in LAST_SHOWN if measured & {*group}]
    chosen = chosen or sorted(measured)[:1]
    many = len(chosen) * sum(len(side.stacks) for side in sides[1:])
    for definition in chosen:
        for side in sides:
            for stack in side.stacks:
                found = _last_number(sides[0], side, stack, definition, rows, alpha / max(many, 1))
                if found is not None:
                    yield found


def _last_number(
    base: ScanSide, side: ScanSide, stack: str, definition: str, rows: pl.DataFrame, alpha: float
) -> LastNumber | None:
    layer = side.depth(stack)
    here = (pl.col("stack") == stack) & (pl.col("site") == "block") & pl.col("head").is_null()
    here &= pl.col("definition") == definition
    cells = side.cells.filter(here & (pl.col("layer") == layer))
    if not cells.height:
        return None
    cell = cells.row(0, named=True)
    mean, std, texts, floor = (cell[name] for name in ("mean", "std", "texts", "floor"))
    same = base.depth(stack) == layer
    place = (pl.col("at") == AT_LAYER) & (pl.col("layer") == layer) if same else pl.col("at") == AT_LAST
    moved = rows.filter(here & place & (pl.col("scan") == side.name)) if side is not base else rows.clear()
    row = moved.row(0, named=True) if moved.height else {}
    change = row.get("change")
    return LastNumber(
        scan=side.name,
        stack=stack,
        layer=layer,
        definition=definition,
        value=mean,
        error=std / math.sqrt(texts) if std is not None and texts > 1 else None,
        resolved=mean is not None and floor is not None and abs(mean) > floor,
        change=change,
        beyond_rounding=None if change is None else row["floor"] is not None and abs(change) > row["floor"],
        significant=_is_beyond_chance(
            Difference(**{name: row.get(name) for name in Difference._fields}), texts, alpha
        ),
    )


class Difference(NamedTuple):
    """What a row says about how far a number moved."""

    significant: bool | None
    paired: bool | None
    z: float | None
    change: float | None
    floor: float | None


def _is_beyond_chance(one: Difference, texts: int, alpha: float) -> bool | None:
    """Whether one number that was asked about moved, by its differences text by text; else what its row says."""
    is_asked = one.significant is False and one.paired and one.z is not None and one.change is not None
    if not is_asked or abs(one.change or 0.0) <= (one.floor or 0.0):
        return one.significant
    freedom = np.array([texts - 1.0])
    p = p_values(np.array([one.z]), Error(size=np.ones(1), freedom=freedom))
    return bool(p[0] <= alpha)


def _series(sides: Sequence[ScanSide], ends_found: Sequence[Places], *, alpha: float) -> Series:
    """Every definition at the last block and at the worst layer over the scans, by training step or as given.

    A line is significant if Kendall's test, after Benjamini and Hochberg over all lines, and the distance between its
    extremes, against both floors, agree that it moves.
    """
    steps = [side.step for side in sides]
    known = [step for step in steps if step is not None]
    is_by_step = len(known) == len(steps) == len(set(known))
    places = sorted(range(len(sides)), key=lambda place: known[place]) if is_by_step else range(len(sides))
    x = [known[place] if is_by_step else place for place in places]
    found = [ends_found[place] for place in places]
    lines = [
        line
        for key in dict.fromkeys(key for one in found for key in one)
        if (line := _line(key, x, [one.get(key) for one in found])) is not None
    ]
    p = benjamini_hochberg(np.array([line.p for line in lines], dtype=float)).tolist()
    return Series(
        order="by training step" if is_by_step else "in the order the scans were given",
        x=tuple(x),
        scans=tuple(sides[place].name for place in places),
        lines=tuple(
            line.model_copy(update={"p_adjusted": one, "significant": one <= alpha and line.resolved})
            for line, one in zip(lines, p, strict=True)
        ),
    )


def _line(
    key: tuple[str, str, Literal["last block", "worst layer"]],
    x: Sequence[int],
    found: Sequence[_MeanAtLayer | None],
) -> TrendLine | None:
    """One line, not yet adjusted for the number of lines."""
    values = [math.nan if place is None else place.value for place in found]
    moved = trend(np.array(x, dtype=float), np.array(values))
    if moved is None:
        return None
    known = sorted((place for place in found if place is not None), key=lambda place: place.value)
    stack, definition, at = key
    return TrendLine(
        stack=stack,
        definition=definition,
        at=at,
        values=tuple(None if place is None else place.value for place in found),
        layers=tuple(None if place is None else place.layer for place in found),
        tau=moved.tau,
        p=moved.p,
        p_adjusted=moved.p,
        slope=moved.slope,
        agreeing=moved.agreeing,
        moves=moved.moves,
        resolved=known[-1].value - known[0].value > known[-1].floor + known[0].floor,
        significant=False,
    )
