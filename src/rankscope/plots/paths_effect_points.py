"""What a study of path lengths measured, read from its table: points, levels to compare with, numbers of paths."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from scipy import stats

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

REFIT = "refit_accuracy"
CHANCE = "refit_chance"
ACCURACIES = {ACCURACY: "token accuracy", REFIT: "accuracy of a fresh classifier"}
"""Definitions that are shares of right answers, and what their axes are called."""

LEVEL = 0.95


def effect_points(
    table: Table, *, lines: Sequence[str] | None, definitions: Sequence[str] | None
) -> pl.DataFrame:
    """One row per panel, definition, line and length: value, floor, low, high, seeds, and whether it is resolved.

    Rows of one point are seeds: they are averaged, and the interval is that of the mean over them, 95% by Student's t.
    Residuals, which are drawn on a logarithmic axis, have geometric means; one that is zero leaves no interval.
    A single seed has the interval of its row, if there is one. A line is a mode, and where there are columns ``paths``
    and ``summed`` also which paths were summed. Without ``lines``, of a mode with draws only the largest draw is kept
    (fresh classifiers are always those of all paths), and of others all but single paths; without ``definitions``, the
    accuracy, that of fresh classifiers and the first residual are.
    """
    frame = _named(table)
    frame = _chosen(frame, "definition", definitions, _usual_definitions(frame))
    if lines is None:
        frame = _usual_lines(frame)
    else:
        frame = _chosen(frame, "line", lines, ())
    keys = ("panel", "definition", "line", "length")
    grouped = frame.group_by(*keys, maintain_order=True)
    points = grouped.agg(
        pl.col("value").alias("values"),
        pl.col("floor").mean(),
        pl.col("resolved").all(),
        pl.col("low").first(),
        pl.col("high").first(),
        pl.len().alias("seeds"),
    )
    found = [_over_seeds(row) for row in points.iter_rows(named=True)]
    names = ("value", "low", "high")
    numbers = [pl.Series(name, [one[i] for one in found], pl.Float64) for i, name in enumerate(names)]
    short = [pl.col(name).map_elements(clipped, return_dtype=pl.String) for name in ("panel", "line")]
    return points.drop("values").with_columns(*numbers, *short).sort("length", maintain_order=True)


def _over_seeds(point: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    """Mean and interval; shares end at 0 and 1."""
    values, is_share = point["values"], point["definition"] in ACCURACIES
    if len(values) == 1:
        mean, low, high = values[0], point["low"], point["high"]
    elif point["definition"].startswith("residual"):
        if min(values) <= 0:
            return math.fsum(values) / len(values), None, None
        mean, low, high = map(math.exp, _student([math.log(value) for value in values]))
    else:
        mean, low, high = _student(values)
    if low is None or high is None or not is_share:
        return mean, low, high
    return mean, max(low, 0.0), min(high, 1.0)


def _student(values: Sequence[float]) -> tuple[float, float, float]:
    mean = math.fsum(values) / len(values)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    reach = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - reach, mean + reach


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
    for name, level in naive.items():
        if (known := _number(level, panel)) is not None:
            found[clipped(str(name))] = known
    return found


def chance_of(table: Table, panel: str) -> float | None:
    """Mean accuracy of fresh classifiers fitted to labels in random order, over lengths and ways of keeping paths."""
    rows = table.frame.filter(pl.col("definition") == CHANCE)
    if "weights" in rows.columns and rows["weights"].n_unique() > 1:
        rows = rows.filter(pl.col("weights") == panel)
    values = rows["value"].drop_nulls().to_list()
    return sum(values) / len(values) if values else None


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


def _usual_lines(frame: pl.DataFrame) -> pl.DataFrame:
    if "paths" not in frame.columns:
        return frame
    is_drawn = (pl.col("paths") == "drawn").fill_null(value=False)
    keys = ("mode", "definition")
    largest = pl.col("summed") == pl.col("summed").filter(is_drawn).max().over(keys)
    has_draws = is_drawn.any().over(keys)
    single = (pl.col("paths") == "single").fill_null(value=False)
    kept = pl.when(has_draws).then(is_drawn & largest).otherwise(~single)
    return frame.filter(kept.fill_null(value=False))


def _usual_definitions(frame: pl.DataFrame) -> list[str]:
    known: list[str] = frame["definition"].unique(maintain_order=True).to_list()
    residuals = [name for name in known if name.startswith("residual")][:1]
    return [*(name for name in ACCURACIES if name in known), *residuals] or known[:2]


def _chosen(
    frame: pl.DataFrame, column: str, wanted: Sequence[str] | None, usual: Sequence[str]
) -> pl.DataFrame:
    known = frame[column].unique(maintain_order=True).to_list()
    unknown = [name for name in wanted or () if name not in known]
    if unknown:
        raise UnknownNameError(f"the table has no {column} {unknown[0]!r}; it has: {', '.join(known)}")
    return frame.filter(pl.col(column).is_in(list(usual if wanted is None else wanted)))
