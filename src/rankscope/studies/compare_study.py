"""What changed between scans: every number against the first scan, beyond chance and beyond rounding."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field, field_validator

from rankscope.core.config import Config
from rankscope.core.registry import unknown_name
from rankscope.errors import ConfigError
from rankscope.measures import DEFAULTS
from rankscope.results import Decision, Outcome, Table, provenance
from rankscope.results.outcome import judged as judged_span
from rankscope.results.outcome import span_of, worst
from rankscope.studies.compare_findings import by_size, findings_of, number
from rankscope.studies.compare_sides import KEY, Scannable, Side, sides_of
from rankscope.studies.compare_statistics import Error, Floats, adjusted, p_values, paired_error, welch_error
from rankscope.studies.compare_trend import ends, ends_of, series_of
from rankscope.studies.compare_words import CORRECTION, told
from rankscope.studies.rows import run_id

AT_LAYER, AT_LAST = "layer", "last block"
"""What the column ``at`` holds: the same layer of both, or the last block of each where the depths differ."""

VISIBLE = 1e-3
"""A change below this part of a number (of a cosine: below this) does not show in the three digits that are printed."""


class CompareConfig(Config):
    """What is compared: all definitions and sites by default; ``alpha`` is the share of false calls allowed."""

    scans: tuple[str, ...] = Field(min_length=2)
    measures: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    alpha: float = Field(default=0.05, gt=0, lt=1)

    @field_validator("measures")
    @classmethod
    def _bare_names_mean_defaults(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = ("".join(name.split()) for name in names)
        return tuple(dict.fromkeys(DEFAULTS.get(name, name) for name in plain))


def compare(
    *scans: Scannable, measures: Sequence[str] = (), sites: Sequence[str] = (), alpha: float = 0.05
) -> Table:
    """One row per stack, layer, site, head and definition, for every scan after the first: after minus before.

    Each scan is a saved table (.json, .parquet; from .csv the summary is made again from the rows), a Table, or
    anything with a ``table``. The first is the baseline. ``value`` is the change of the mean over texts; added
    columns:

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
    the change is beyond rounding. The section ``compare`` says in words what changed, ``ends`` compares the last
    block and the worst layer, ``trend`` follows them over three or more scans.
    """
    sides = sides_of(scans)
    config = CompareConfig(
        scans=tuple(side.name for side in sides), measures=tuple(measures), sites=tuple(sites), alpha=alpha
    )
    sides = _chosen(sides, config)
    differences = pl.concat([_differences(sides[0], side) for side in sides[1:]])
    if not differences.height:
        raise ConfigError(
            f"{', '.join(config.scans)} have no stack, layer, site and definition in common; nothing can be compared"
        )
    judged = _judged(differences, alpha)
    return Table(
        frame=judged.with_columns(pl.lit(run_id(config)).alias("run")),
        command="compare",
        provenance=provenance(config.model_dump(mode="json")),
        sections=_sections(sides, judged, config),
    )


def _chosen(sides: list[Side], config: CompareConfig) -> list[Side]:
    """The sides with only the definitions and sites asked for; an error if none of them has one."""
    wanted = {"definition": config.measures, "site": config.sites}
    for column, names in wanted.items():
        known = {str(name) for side in sides for name in side.cells[column].unique()}
        for name in names:
            if name not in known:
                raise unknown_name(f"{column} in these scans", name, known)
    keep = [pl.col(column).is_in(names) for column, names in wanted.items() if names]
    return [side.only(pl.all_horizontal(keep)) for side in sides] if keep else sides


def _differences(a: Side, b: Side) -> pl.DataFrame:
    """All cells that both have, with means, floors, and the error of their difference."""
    deeper = [stack for stack in a.stacks if stack in b.stacks and a.depth(stack) != b.depth(stack)]
    parts = [_joined(a, b).with_columns(pl.lit(AT_LAYER).alias("at"))]
    if deeper:
        last = _joined(a.last_blocks(deeper), b.last_blocks(deeper))
        parts.append(last.with_columns(pl.lit(AT_LAST).alias("at")))
    return pl.concat(parts).with_columns(
        pl.lit(b.name).alias("scan"), pl.lit(b.model, dtype=pl.String).alias("model")
    )


def _joined(a: Side, b: Side) -> pl.DataFrame:
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


def _pairs(a: Side, b: Side) -> pl.DataFrame:
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


def _texts(side: Side, stack: str) -> tuple[object, ...] | None:
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


def _judged(frame: pl.DataFrame, alpha: float) -> pl.DataFrame:
    """With ``p_adjusted`` and ``significant``.

    A change within the floors counts as a test that failed (p = 1): rounding is systematic, it would pass any test
    against chance and by its number make the correction too lenient for the others.
    """
    change, floor, p = (_array(frame[name]) for name in ("change", "floor", "p"))
    is_real = np.abs(change) > floor
    p_adjusted = adjusted(np.where(np.isnan(p), p, np.where(is_real, p, 1.0)))
    calls = [
        (None if real else False) if math.isnan(one) else one <= alpha
        for one, real in zip(p_adjusted.tolist(), is_real.tolist(), strict=True)
    ]
    judged = frame.drop("p").with_columns(
        pl.Series("p_adjusted", p_adjusted, nan_to_null=True),
        pl.Series("significant", calls, dtype=pl.Boolean),
    )
    by_chance = adjusted(p) > alpha  # whether chance alone explains it, rounding aside; NaN is no
    outcomes = [_outcome(row, bool(chance)) for row, chance in zip(judged.to_dicts(), by_chance, strict=True)]
    return judged.drop("empty").with_columns(pl.Series("outcome", outcomes, dtype=pl.String))


def _outcome(row: dict[str, Any], by_chance: bool) -> Outcome:
    """Whether the number changed: ``significant``, with what cannot be told kept apart from what did not change.

    A change within the floors is anything up to them. It is no change where that would not show in three digits.
    """
    change, floor = row["change"], math.inf if row["floor"] is None else row["floor"]
    if row["significant"]:
        return Outcome.CROSSED
    if change is None or row["empty"]:
        return Outcome.UNDECIDED
    if change == 0 or by_chance:
        return Outcome.CLEAR
    if abs(change) > floor:
        return Outcome.UNDECIDED  # one text: no spread to hold it against
    scale = 1.0 if row["measure"] == "cosine" else max(abs(row["before"]), abs(row["after"]))
    return judged_span(span_of(abs(change), floor, vanishes=True, resolved=0.0), ">", VISIBLE * scale)


def has_changed(table: Table) -> Decision:
    """Whether anything in a comparison changed, with the largest number that decides it."""
    outcome = worst(map(Outcome, table.frame["outcome"].unique()))
    if outcome is Outcome.CLEAR:
        return Decision(outcome=outcome)
    rows = by_size(table.frame.filter(pl.col("outcome") == outcome))
    row, alpha = rows.row(0, named=True), table.sections["compare"]["alpha"]
    head = "" if row["head"] is None else f", head {row['head']}"
    layer = "the last block" if row["layer"] is None else f"layer {row['layer']}"
    words = (
        f"{row['definition']} at {layer}{head} of {row['stack']}, {row['site']}, in {row['scan']}: value "
        f"{number(row['before'])} before, {number(row['after'])} after, rounding floor {number(row['floor'])}, "
        f"p {number(row['p_adjusted'])} against the limit {alpha:g}"
    )
    more = f"; so for {rows.height - 1} more" if rows.height > 1 else ""
    if outcome is Outcome.CROSSED:
        return Decision(outcome=outcome, words=f"changed: {words}{more}")
    if row["change"] is None:
        why = "a text or both have no number there (NaN, infinity or zeros)"
    elif row["p_adjusted"] is None:
        why = "one text has no spread to tell change from chance; scan two texts or more"
    elif abs(row["change"]) <= (row["floor"] or math.inf):
        why = "more than chance, and no more than rounding can make; scan in a wider dtype"
    else:
        why = "some texts have no number there (NaN, infinity or zeros)"
    return Decision(outcome=outcome, words=f"whether anything changed is undecided: {words}: {why}{more}")


def _sections(sides: list[Side], judged: pl.DataFrame, config: CompareConfig) -> dict[str, Any]:
    findings = findings_of(judged)
    found = [ends(side) for side in sides]
    changes = ends_of(sides, found)
    trends = series_of(sides, found, alpha=config.alpha) if len(sides) > 2 else None
    return {
        "compare": {
            "words": told(sides, judged, findings=findings, ends=changes, trends=trends, alpha=config.alpha),
            "findings": findings,
            "baseline": sides[0].name,
            "scans": [side.summary() for side in sides],
            "alpha": config.alpha,
            "correction": CORRECTION,
        },
        "ends": changes,
        "definitions": {name: words for side in sides for name, words in side.definitions.items()},
        **({} if trends is None else {"trend": trends}),
    }
