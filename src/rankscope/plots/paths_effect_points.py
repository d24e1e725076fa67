"""What a study of path lengths measured, read from its table: points, levels to compare with, numbers of paths."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots.scan_entries import clipped
from rankscope.results import Table

ACCURACY = "token_accuracy"

SPLITS = ("weights", "variant")
"""The first of these columns that varies makes panels beside each other."""

KINDS = {
    "all": "all of a length",
    "up_to": "up to this length",
    "drawn": "{} drawn",
    "single": "each by itself",
}
"""Which paths were summed, in words; by the column ``paths``."""

LEVELS = {
    "naive": "naive",
    "uniform": "random guess",
    "unmixed": "own letter only",
    "position": "position only",
}


def effect_points(
    table: Table, *, lines: Sequence[str] | None, definitions: Sequence[str] | None
) -> pl.DataFrame:
    """One row per panel, definition, line and length: value, floor, low, high and whether it is resolved.

    Rows of one point (seeds) are averaged, and the interval covers all of them. A line is a mode, and where there are
    columns ``paths`` and ``summed`` also which paths were summed. Without ``lines``, of a mode with draws only the
    largest draw is kept, and of others all but single paths; without ``definitions``, the accuracy and the first
    residual are.
    """
    frame = _named(table)
    frame = _chosen(frame, "line", lines, _usual_lines(frame))
    frame = _chosen(frame, "definition", definitions, _usual_definitions(frame))
    ends = [
        pl.when(pl.len() > 1).then(near("value")).otherwise(near(name)).alias(name)
        for name, near in (("low", _least), ("high", _most))
    ]
    keys = ("panel", "definition", "line", "length")
    grouped = frame.group_by(*keys, maintain_order=True)
    points = grouped.agg(pl.col("value").mean(), pl.col("floor").mean(), pl.col("resolved").all(), *ends)
    short = [pl.col(name).map_elements(clipped, return_dtype=pl.String) for name in ("panel", "line")]
    return points.with_columns(short).sort("length", maintain_order=True)


def _least(name: str) -> pl.Expr:
    return pl.min_horizontal(pl.col(name).min(), pl.col("low").min())


def _most(name: str) -> pl.Expr:
    return pl.max_horizontal(pl.col(name).max(), pl.col("high").max())


def paths_by_length(table: Table) -> dict[int, int]:
    """Numbers of paths, from the section ``counts`` or ``lengths``: a list from length 0 on, or of objects."""
    found = table.sections.get("counts", table.sections.get("lengths"))
    if isinstance(found, Mapping):
        return {int(length): int(count) for length, count in found.items()}
    pairs = [
        (one.get("length"), one.get("paths")) if isinstance(one, Mapping) else (length, one)
        for length, one in enumerate(found if isinstance(found, list) else [])
    ]
    return {int(length): int(count) for length, count in pairs if length is not None and count is not None}


def levels_of(table: Table, panel: str) -> dict[str, float]:
    """Accuracies to compare with: of the full model, from the section ``full`` or ``models``, and of naive answers."""
    found: dict[str, float] = {}
    full = _number(table.sections.get("full"), panel)
    full = _mean_of_models(table, panel) if full is None else full
    if full is not None:
        found["full model"] = full
    baselines = table.sections.get("baselines")
    naive = {"naive": table.sections.get("naive"), **(baselines if isinstance(baselines, Mapping) else {})}
    for name, words in LEVELS.items():
        level = _number(naive.get(name), panel)
        if level is not None:
            found[words] = level
    return found


def _number(value: Any, panel: str) -> float | None:
    """A number, or of an object what stands under the panel, the accuracy or ``value``."""
    for key in (panel, ACCURACY, "value"):
        value = value[key] if isinstance(value, Mapping) and key in value else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _mean_of_models(table: Table, panel: str) -> float | None:
    models = table.sections.get("models")
    own = [
        one["accuracy"]
        for one in (models if isinstance(models, list) else [])
        if isinstance(one, Mapping)
        and isinstance(one.get("accuracy"), int | float)
        and panel in ("all", *(str(one.get(name)) for name in SPLITS))
    ]
    return sum(own) / len(own) if own else None


def _named(table: Table) -> pl.DataFrame:
    """The rows that have a length, a mode and a value, with the names of their panel and line."""
    frame = table.frame
    missing = [name for name in ("length", "mode") if name not in frame.columns]
    if missing:
        raise ConfigError(
            f"the chart needs rows with length and mode, and the table has no column {missing[0]!r}; "
            "give the table of a study of path lengths"
        )
    frame = frame.drop_nulls(["length", "mode", "value", "definition"])
    if frame.is_empty():
        raise ConfigError("nothing to draw: no row of the table has a length, a mode and a value")
    split = next((name for name in SPLITS if name in frame.columns and frame[name].n_unique() > 1), None)
    added: list[pl.Expr] = [
        pl.lit(None, pl.Float64).alias(name) for name in ("low", "high") if name not in frame.columns
    ]
    added.append((pl.col(split).cast(pl.String).fill_null("-") if split else pl.lit("all")).alias("panel"))
    names = [_line(row) for row in frame.iter_rows(named=True)]
    return frame.with_columns(*added, pl.Series("line", names, dtype=pl.String))


def _line(row: Mapping[str, Any]) -> str:
    """A mode and which paths were summed.

    >>> _line({"mode": "isolated", "paths": "drawn", "summed": 20})
    'isolated, 20 drawn'
    """
    kind = row.get("paths")
    if kind is None:
        return str(row["mode"])
    return f"{row['mode']}, {KINDS.get(kind, str(kind)).format(row.get('summed'))}"


def _usual_lines(frame: pl.DataFrame) -> list[str]:
    if "paths" not in frame.columns:
        return frame["line"].unique(maintain_order=True).to_list()
    is_drawn = (pl.col("paths") == "drawn").fill_null(value=False)
    largest = pl.col("summed") == pl.col("summed").filter(is_drawn).max().over("mode")
    has_draws = is_drawn.any().over("mode")
    single = (pl.col("paths") == "single").fill_null(value=False)
    kept = pl.when(has_draws).then(is_drawn & largest).otherwise(~single)
    return frame.filter(kept.fill_null(value=False))["line"].unique(maintain_order=True).to_list()


def _usual_definitions(frame: pl.DataFrame) -> list[str]:
    known: list[str] = frame["definition"].unique(maintain_order=True).to_list()
    residuals = [name for name in known if name.startswith("residual")][:1]
    return [*(name for name in known if name == ACCURACY), *residuals] or known[:2]


def _chosen(
    frame: pl.DataFrame, column: str, wanted: Sequence[str] | None, usual: Sequence[str]
) -> pl.DataFrame:
    known = frame[column].unique(maintain_order=True).to_list()
    unknown = [name for name in wanted or () if name not in known]
    if unknown:
        raise UnknownNameError(f"the table has no {column} {unknown[0]!r}; it has: {', '.join(known)}")
    return frame.filter(pl.col(column).is_in(list(usual if wanted is None else wanted)))
