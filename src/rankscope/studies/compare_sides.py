"""What a comparison reads: saved or live scans, each brought to one frame of cells and one of rows per text."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import polars as pl

from rankscope.errors import ConfigError, FileError
from rankscope.results import Table

KEY = ("stack", "layer", "site", "head", "measure", "definition")
"""What names one number of a model; the rest is which text it was measured on."""

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
    """Anything that carries its table, such as what ``scan`` returns."""

    @property
    def table(self) -> Table: ...


Scannable = Table | HasTable | str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One scan of a comparison.

    ``cells``: the columns of ``KEY`` with mean, std, texts, empty and floor over all texts. ``rows``: the same columns
    with sample, tokens and value, for the texts that have rows of their own.
    """

    name: str
    cells: pl.DataFrame
    rows: pl.DataFrame
    about: dict[str, Any]
    verdict: dict[str, Any]
    definitions: dict[str, Any]
    step: int | None = None

    @property
    def dtype(self) -> str | None:
        """The arithmetic the model ran in, where the scan says it."""
        found = self.about.get("dtype")
        return None if found is None else str(found)

    @property
    def model(self) -> str | None:
        found = self.about.get("model")
        return None if found is None else str(found)

    @property
    def texts(self) -> int:
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

    def only(self, keep: pl.Expr) -> "Side":
        """The cells and rows for which ``keep`` holds."""
        return replace(self, cells=self.cells.filter(keep), rows=self.rows.filter(keep))

    def last_blocks(self, stacks: Sequence[str]) -> "Side":
        """What was measured at the last block of each of these stacks, with null for the layer."""
        last = pl.any_horizontal(
            (pl.col("stack") == stack) & (pl.col("layer") == self.depth(stack)) for stack in stacks
        )
        side, no_layer = self.only(last), pl.lit(None, dtype=pl.Int64).alias("layer")
        return replace(side, cells=side.cells.with_columns(no_layer), rows=side.rows.with_columns(no_layer))

    def summary(self) -> dict[str, Any]:
        """What this scan is, as a JSON object."""
        return {
            "name": self.name,
            "model": self.model,
            "dtype": self.dtype,
            "texts": self.texts,
            "tokens": self.about.get("tokens"),
            "layers": {stack: self.depth(stack) for stack in self.stacks},
            "verdict": self.verdict.get("verdict"),
            "step": self.step,
        }


def sides_of(scans: Sequence[Scannable]) -> list[Side]:
    """The scans in the order given, with names that differ; the first is the baseline.

    A record of training (``CollapseMonitor``) given alone is the series of its steps; beside others, its last one.
    """
    named = [_read(scan) for scan in scans]
    _refuse_repeats(scans, [table for _, table in named])
    if len(named) == 1:
        name, table = named[0]
        by_step = _by_step(table)
        sides = [_step_side(f"step {step}", table, by_step[step], step) for step in sorted(by_step)]
        sides = sides or [_side(name, table)]
    else:
        sides = [_side(name, table) for name, table in named]
    if len(sides) < 2:
        raise ConfigError(
            f"a comparison needs two scans or more, got {len(sides)}; "
            "save one per model with 'rankscope scan MODEL --output FILE.json'"
        )
    return [replace(side, name=name) for side, name in zip(sides, _distinct(sides, scans), strict=True)]


def _read(scan: Scannable) -> tuple[str, Table]:
    if isinstance(scan, str | os.PathLike):
        return Path(scan).stem, _checked(Table.load(scan), f"{os.fspath(scan)!r}")
    table = scan if isinstance(scan, Table) else getattr(scan, "table", None)
    if not isinstance(table, Table):
        raise ConfigError(
            f"compare takes saved scans, tables or what scan returns; got {type(scan).__name__}"
        )
    name = _mapping(table.sections.get("scan")).get("model")
    return str(name or "scan"), _checked(table, "a table")


def _checked(table: Table, what: str) -> Table:
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


def _refuse_repeats(scans: Sequence[Scannable], tables: Sequence[Table]) -> None:
    """Stop at one scan given twice: it never changes, and a trend would count it twice."""
    seen: dict[object, str] = {}
    for scan, table in zip(scans, tables, strict=True):
        name = os.fspath(scan) if isinstance(scan, str | os.PathLike) else ""
        key: object = os.path.realpath(name) if name else id(table)
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


def _side(name: str, table: Table) -> Side:
    """A scan; of a record of training, its last step."""
    by_step = _by_step(table)
    if len(by_step) > 1:
        return _step_side(name, table, by_step[max(by_step)], max(by_step))
    frame, summary = table.frame, table.sections.get("summary")
    cells = _from_section(summary, name) if summary else _summarized(frame)
    recorded = _mapping(table.sections.get("monitor")).get("step")
    step = max(by_step, default=recorded if isinstance(recorded, int) else None)
    return _of(name, table, cells, frame, _mapping(table.sections.get("verdict")), step)


def _step_side(name: str, table: Table, frame: pl.DataFrame, step: int) -> Side:
    means = frame.filter(pl.col("sample").is_null()).rename({"value": "mean"})
    told = _mapping(table.sections.get("monitor")).get("verdicts", [])
    verdict = next((_mapping(one) for one in told if _mapping(one).get("step") == step), {})
    return _of(name, table, means if means.height else _summarized(frame), frame, verdict, step)


def _of(
    name: str,
    table: Table,
    cells: pl.DataFrame,
    frame: pl.DataFrame,
    verdict: dict[str, Any],
    step: int | None,
) -> Side:
    rows = frame.filter(pl.col("sample").is_not_null()).select(*KEY, "sample", "tokens", "value")
    told = pl.col("empty") if "empty" in cells.columns else pl.lit(0, dtype=pl.Int64)
    typed = (pl.col(column).cast(dtype) for column, dtype in _CELL_DTYPES.items())
    cells = cells.select(*typed, told.alias("empty"))
    return Side(
        name=name,
        cells=_counted(cells, rows),
        rows=rows,
        about=_mapping(table.sections.get("scan")),
        verdict=verdict,
        definitions=_mapping(table.sections.get("definitions")),
        step=step,
    )


def _counted(cells: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The cells with only those texts counted that have a number (not 0/0, not NaN); ``empty`` counts the others.

    An older summary does not say how many there are; then they are counted in the rows that were kept.
    """
    seen = rows.filter(pl.col("value").is_null()).group_by(*KEY).agg(pl.len().cast(pl.Int64).alias("seen"))
    joined = cells.join(seen, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    empty = pl.max_horizontal("empty", pl.col("seen").fill_null(0))
    return joined.with_columns(pl.col("texts") - empty, empty.alias("empty")).drop("seen")


def _summarized(frame: pl.DataFrame) -> pl.DataFrame:
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
    except (KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise FileError(
            f"the summary of {origin!r} is not that of a scan ({' '.join(str(error).split())[:80]}); scan again"
        ) from error


def _distinct(sides: Sequence[Side], scans: Sequence[Scannable]) -> list[str]:
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


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
