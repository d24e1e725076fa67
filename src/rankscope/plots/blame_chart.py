"""Blame by block: what each part does to the log residual ratio, bars below zero pulling towards collapse."""

import math
from typing import Any

import polars as pl

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.curves import facts_of
from rankscope.plots.style import GRAY, INK, PALETTE, configured
from rankscope.results import Table

COLORS = {
    "attention": PALETTE[1],
    "mlp": PALETTE[0],
    "skip": PALETTE[2],
    "norm": PALETTE[3],
    "scale": PALETTE[4],
}
"""One color per part, the same in every figure; anything else takes what is left of the palette."""

OTHER_COLORS = PALETTE[5:]
TOGETHER = "all parts together"

PANELS = ("model", "variant", "semantics", "mask", "norm")
"""Whatever of these varies makes a panel of its own."""

STEP, NARROWEST, WIDEST, HEIGHT = 44, 360, 880, 310
MOST_LABELS = 16
WIDEST_BAR = 34.0


def blame_chart(table: Table, *, title: str | None = None) -> Chart:
    """One bar per block, stacked by part: above zero what keeps tokens apart, below zero what brings them together.

    The table holds rows with the measure ``blame``. Bars are means over the seeds and samples in which a change is
    resolved, others are left out and counted; the point is their sum, what the block does as a whole, where all are.
    Networks of different model, variant, semantics, mask or norm get a panel each, with an axis of its own.
    """
    rows = table.frame.filter(pl.col("measure") == "blame")
    if rows.is_empty():
        raise ConfigError(
            "nothing to draw: the table has no rows of the measure blame; run ablate with blame"
        )
    bars, left_out = _bars(rows)
    heading = title or "What each part does to the tokens, block by block"
    panels = bars["panel"].unique(maintain_order=True).to_list()
    kinds = _ordered(bars["kind"].unique(maintain_order=True).to_list())
    blocks = rows["layer"].unique().sort().to_list()
    width = min(max(STEP * len(blocks), NARROWEST), WIDEST)
    notes = [facts_of(table), "below zero: towards collapse", "above zero: against it"]
    if left_out:
        word = "changes" if left_out > 1 else "change"
        notes.append(f"{left_out} {word} not above the rounding floor left out")
    drawn = alt.layer(*_marks(blocks, kinds, width)).properties(width=width, height=HEIGHT)
    whole: Any = drawn.properties(data=_data(bars))
    if len(panels) > 1:
        whole = drawn.facet(data=_data(bars), row=alt.Row("panel:N", title=None, sort=panels))
        # a network that collapses falls by thousands in one block, beside which no other could be seen
        whole = whole.resolve_scale(y="independent")
    words = lines_of([note for note in notes if note], width)
    whole = whole.properties(
        title=alt.TitleParams(heading, subtitle=words), description=_in_words(bars, kinds, heading)
    )
    return configured(whole)


def _bars(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Panel, block, part, kind, stage and mean change of every bar; how many rows are left out.

    Means are over the texts of which every step of the block is known, so that the bars of a block add up.
    """
    varying = [name for name in PANELS if rows[name].n_unique() > 1]
    panel = pl.concat_str(
        [pl.col(name).cast(pl.String) for name in varying], separator=" · ", ignore_nulls=True
    )
    rows = rows.with_columns((panel if varying else pl.lit("all")).alias("panel"))
    known = (pl.col("value").is_not_null() & pl.col("floor").is_not_null()).all()
    kept = rows.filter(known.over("panel", "layer", "seed", "sample"))
    if kept.is_empty():
        raise ConfigError(
            "nothing to draw: no change is above the rounding floor; the split pass carries the residual below it"
        )
    stage = pl.col("stage") if "stage" in rows.columns else pl.lit(0)
    bars = (
        kept.group_by("panel", "layer", "part", maintain_order=True)
        .agg(pl.col("value").mean().alias("change"), stage.first().alias("stage"), pl.len().alias("count"))
        .with_columns(pl.col("part").str.replace(r"\.\d+$", "").alias("kind"))
        .sort("panel", "layer", "stage", maintain_order=True)
    )
    order = {name: at for at, name in enumerate(rows["panel"].unique(maintain_order=True))}
    bars = bars.sort(pl.col("panel").replace_strict(order, return_dtype=pl.Int64), maintain_order=True)
    whole = pl.col("change").sum().over("panel", "layer").alias("together")
    return bars.with_columns(
        whole,
        pl.col("stage").min().over("panel", "layer").alias("first"),
        pl.lit(TOGETHER).alias("sum_label"),
    ), rows.height - kept.height


def _marks(blocks: list[int], kinds: list[str], width: int) -> list[Any]:
    step = width / len(blocks)
    shown = blocks[:: math.ceil(len(blocks) / MOST_LABELS)]
    axis = alt.Axis(title="block", values=shown, labelAngle=0, grid=False, labelOverlap=False)
    base = alt.Chart().encode(x=alt.X("layer:O", axis=axis, scale=alt.Scale(domain=blocks, padding=0.2)))
    names, colors = [*kinds, TOGETHER], [*_colors(kinds), INK]
    legend = alt.Legend(
        orient="bottom", title=None, columns=min(len(names), 6), symbolSize=110, symbolOpacity=1
    )
    color = alt.Color("kind:N", scale=alt.Scale(domain=names, range=colors), legend=legend)
    tips = [
        alt.Tooltip("part:N", title="part"),
        alt.Tooltip("layer:O", title="block"),
        alt.Tooltip("change:Q", title="change of ln ratio", format=".4g"),
        alt.Tooltip("count:Q", title="rows"),
    ]
    bar = base.mark_bar(
        stroke="white", strokeWidth=0.6 if step > 12 else 0.2, size=min(WIDEST_BAR, 0.78 * step)
    )
    bar = bar.encode(
        y=alt.Y(
            "change:Q",
            stack="zero",
            axis=alt.Axis(title="change of ln residual_ratio[frobenius,mean]", tickCount=7),
        ),
        color=color,
        order=alt.Order("stage:Q"),
        tooltip=tips,
    )
    zero = alt.Chart().mark_rule(color=GRAY, strokeWidth=1.2).encode(y=alt.datum(0))
    point = (
        base.transform_filter("datum.stage == datum.first && datum.together != null")
        .mark_point(
            shape="diamond", filled=True, size=min(60.0, 4 * step), opacity=1, stroke="white", strokeWidth=0.7
        )
        .encode(
            y=alt.Y("together:Q"),
            color=alt.Color("sum_label:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        )
    )
    return [bar, zero, point]


def _data(bars: pl.DataFrame) -> Any:
    return alt.InlineData(values=bars.to_dicts())


def _ordered(kinds: list[str]) -> list[str]:
    """Known parts in their fixed order, then the others as they come."""
    return [kind for kind in COLORS if kind in kinds] + [kind for kind in kinds if kind not in COLORS]


def _colors(kinds: list[str]) -> list[str]:
    others = [kind for kind in kinds if kind not in COLORS]
    return [COLORS.get(kind) or OTHER_COLORS[others.index(kind) % len(OTHER_COLORS)] for kind in kinds]


def _in_words(bars: pl.DataFrame, kinds: list[str], heading: str) -> str:
    """Alternative text: the blocks, and the sum of every part over all of them."""
    panels = bars["panel"].n_unique()
    sums = bars.group_by("kind").agg(pl.col("change").sum() / panels)
    found = dict(zip(sums["kind"], sums["change"], strict=True))
    listed = ", ".join(f"{kind} {found[kind]:+.3g}" for kind in kinds)
    blocks: list[int] = bars["layer"].unique().sort().to_list()
    where = f"blocks {blocks[0]} to {blocks[-1]}"
    return f"{heading}. Change of the log residual ratio in {where}, summed by part: {listed}."
