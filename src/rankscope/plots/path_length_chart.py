"""The figure ``path-length``: ridges of the published models, and count against weight in a small trained one."""

from typing import Any

import polars as pl

from rankscope.plots.backend import Chart, alt
from rankscope.plots.paths_lengths import WIDTH, length_distribution_chart
from rankscope.plots.paths_marks import LENGTH_TITLE, Row, finished, rows_chart
from rankscope.plots.paths_words import percent
from rankscope.plots.style import GRAY, INK, PALETTE
from rankscope.results import Table

HEIGHT = 210
BAR = 0.27
LABELED = 0.001
"""Bars above this share carry it in writing; those below cannot be seen."""

SHARE, WEIGHT = "path_share[count]", "path_share[output]"
SERIES = {
    (SHARE, "trained"): ("share of the paths", GRAY),
    (WEIGHT, "trained"): ("share of the output, trained", PALETTE[0]),
    (WEIGHT, "initial"): ("share of the output, at initial weights", PALETTE[1]),
}


def path_length_chart(table: Table) -> Chart:
    """Above, how many paths have which length; below, what they weigh where that was measured."""
    frame = table.frame
    published = frame.filter((pl.col("definition") == SHARE) & (pl.col("model") != "sorting"))
    rows = [
        {"name": f"{row['model']}  (H {row['heads']}, L {row['layers']})", **row}
        for row in published.select(
            "model", "heads", "layers", "length", pl.col("value").alias("share")
        ).to_dicts()
    ]
    ridges: Any = length_distribution_chart(rows, title="By count, paths are long")
    ridges.config = alt.Undefined  # only the whole figure may have one
    words = (
        f"{ridges.description} Below, shares of paths and of the output of a small network by path length."
    )
    blocks = [ridges, _weights(weight_rows(frame), table.sections["setting"])]
    return finished(
        alt.vconcat(*blocks, spacing=30).resolve_scale(color="independent").properties(description=words)
    )


def weight_rows(frame: pl.DataFrame) -> list[Row]:
    """A bar per length and series of the small network, the series side by side."""
    rows: list[Row] = []
    for place, ((definition, weights), (name, color)) in enumerate(SERIES.items()):
        own = frame.filter(
            (pl.col("model") == "sorting")
            & (pl.col("definition") == definition)
            & (pl.col("weights") == weights)
        )
        for row in own.to_dicts():
            left = row["length"] + (place - len(SERIES) / 2) * BAR
            rows.append(
                {
                    "series": name, "color": color, "length": row["length"], "left": left, "right": left + BAR,
                    "share": row["value"], "base": 0.0, "text": percent(row["value"], 2), "middle": left + BAR / 2,
                }
            )  # fmt: skip
    return rows


def _weights(rows: list[Row], setting: Row) -> Any:
    last = max(row["length"] for row in rows)
    x = alt.Scale(domain=[-0.5, last + 0.5], nice=False, zero=False)
    axis = alt.Axis(values=list(range(last + 1)), title=LENGTH_TITLE, grid=False, format="d")
    top = max(row["share"] for row in rows)
    low = min(0.0, *(row["share"] for row in rows))
    y = alt.Scale(domain=[low, 1.12 * top], nice=False)
    names, colors = ([own[place] for own in SERIES.values()] for place in (0, 1))
    legend = alt.Legend(orient="top", title=None, direction="horizontal", symbolType="square", symbolSize=110)
    color = alt.Color("series:N", scale=alt.Scale(domain=names, range=colors), legend=legend)
    base = rows_chart(rows)
    bars = base.mark_rect(stroke="white", strokeWidth=0.5).encode(
        x=alt.X("left:Q", scale=x, axis=axis), x2="right:Q",
        y=alt.Y("share:Q", scale=y, axis=alt.Axis(title="share", format=".0%", domain=False)), y2="base:Q",
        color=color, tooltip=[alt.Tooltip(f"{name}:N") for name in ("series", "length", "text")],
    )  # fmt: skip
    labels = (
        rows_chart([row for row in rows if row["share"] >= LABELED])
        .mark_text(dy=-6, fontSize=9, color=INK)
        .encode(x=alt.X("middle:Q", scale=x), y=alt.Y("share:Q", scale=y), text="text:N")
    )
    title = alt.TitleParams(
        "By weight, they are short",
        subtitle=[
            f"a network that sorts letters, {setting['layers']} layers of {setting['heads']} heads, mean over "
            f"{setting['texts']} sequences; shares of the output add up to 100% and may be negative"
        ],
    )
    return alt.layer(bars, labels).properties(width=WIDTH, height=HEIGHT, title=title)
