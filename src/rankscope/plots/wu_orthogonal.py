"""Orthogonal values on the sphere: how fast the smallest cosine tends to one, mask by mask, beside its bound."""

import math
from typing import Any

import polars as pl

from rankscope.errors import ConfigError
from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.style import FLOOR_FILL, GRAY, PALETTE, configured
from rankscope.results import Table

WIDTH, HEIGHT, COLUMNS = 250, 190, 3
MEASURED, BOUND = "measured: median, least to most", "accumulated one-step bound, median"
NEEDED = ("defect_median", "defect_low", "defect_high", "defect_floor", "bound_median")


def wu_orthogonal_chart(table: Table) -> Chart:
    """``1 - c`` by step, one panel per mask: median and range over starts, and the accumulated bound, dashed.

    Lines end where rounding begins, which is shaded; the bound begins where it covers more than half of the starts.
    """
    missing = [name for name in NEEDED if name not in table.frame.columns]
    if missing or table.frame.is_empty():
        raise ConfigError(
            f"nothing to draw: this chart reads the table of wu-orthogonal; missing {', '.join(missing)}"
        )
    points, low = _points(table.frame)
    facts = {one["mask"]: one for one in table.sections.get("masks", [])}
    masks = points["mask"].unique(maintain_order=True).to_list()
    panels = [_panel(points.filter(pl.col("mask") == mask), facts.get(mask, {}), low) for mask in masks]
    rows = [
        alt.hconcat(*panels[first : first + COLUMNS], spacing=24) for first in range(0, len(panels), COLUMNS)
    ]
    whole: Any = alt.vconcat(*rows, spacing=28).resolve_scale(color="shared", strokeDash="shared")
    title = alt.TitleParams(
        "Orthogonal values on the unit sphere: 1 - smallest cosine of two tokens, by step",
        subtitle=_facts(table),
    )
    return configured(whole.properties(title=title, description=_in_words(table, masks)))


def _points(frame: pl.DataFrame) -> tuple[pl.DataFrame, float]:
    """Logs to base ten of everything, null below the floor; and the floor."""
    floor = float(frame["defect_floor"].max())  # type: ignore[arg-type]
    low = math.log10(floor)

    def log(name: str) -> pl.Expr:
        return pl.when(pl.col(name) > floor).then(pl.col(name).log10()).alias(name)

    lowest = pl.when(pl.col("defect_high") > floor).then(
        pl.max_horizontal("defect_low", pl.lit(floor)).log10()
    )
    columns = [log("defect_median"), log("defect_high"), log("bound_median"), lowest.alias("defect_low")]
    return frame.select("mask", "layer", *columns), low


def _panel(points: pl.DataFrame, facts: dict[str, Any], low: float) -> Any:
    last = int(points["layer"].max())  # type: ignore[arg-type]
    span = alt.Scale(domain=[0, last], nice=False)
    step = alt.X("layer:Q", title="step", scale=span, axis=alt.Axis(tickMinStep=1, grid=False))
    scale = alt.Scale(domain=[low - 1.5, 0.8], nice=False)
    axis = log_axis(log_ticks(low - 1.5, 0.8), title="1 - c")
    kind = alt.Scale(domain=[MEASURED, BOUND], range=[PALETTE[0], PALETTE[1]])
    dash = alt.Scale(domain=[MEASURED, BOUND], range=[[1, 0], [5, 3]])

    def line(column: str, name: str) -> Any:
        drawn = points.select("layer", pl.col(column).alias("log10"), pl.lit(name).alias("line")).drop_nulls()
        y = alt.Y("log10:Q", scale=scale, axis=axis)
        color = alt.Color(
            "line:N", scale=kind, legend=alt.Legend(title=None, orient="bottom", symbolStrokeWidth=2)
        )
        dashes = alt.StrokeDash("line:N", scale=dash, legend=alt.Legend(title=None, orient="bottom"))
        data = alt.InlineData(values=drawn.to_dicts())
        return (
            alt.Chart(data)
            .mark_line(strokeWidth=2, clip=True)
            .encode(x=step, y=y, color=color, strokeDash=dashes)
        )

    band = points.select("layer", "defect_low", "defect_high").drop_nulls()
    area = (
        alt.Chart(alt.InlineData(values=band.to_dicts()))
        .mark_area(opacity=0.25, color=PALETTE[0], clip=True)
        .encode(x=step, y=alt.Y("defect_low:Q", scale=scale, axis=axis), y2="defect_high:Q")
    )
    box = alt.InlineData(values=[{"left": 0, "right": last, "low": low - 1.5, "high": low}])
    floor = (
        alt.Chart(box)
        .mark_rect(color=FLOOR_FILL, opacity=0.3)
        .encode(
            x=alt.X("left:Q", title="step", scale=span),
            x2="right:Q",
            y=alt.Y("low:Q", scale=scale, axis=axis),
            y2="high:Q",
        )
    )
    layers = alt.layer(floor, area, line("defect_median", MEASURED), line("bound_median", BOUND))
    return layers.properties(width=WIDTH, height=HEIGHT, title=_panel_title(points, facts))


def _panel_title(points: pl.DataFrame, facts: dict[str, Any]) -> Any:
    if not facts:
        return alt.TitleParams(points["mask"][0], fontSize=13)
    connected = {"not": "not connected"}.get(facts["connected"], f"{facts['connected']} connected")
    says = f"{connected}; {facts['collapsed']} of {facts['starts']} collapse"
    return alt.TitleParams(points["mask"][0], subtitle=says, fontSize=13, subtitleColor=GRAY)


def _facts(table: Table) -> str:
    config, starts = table.provenance.get("config", {}), table.sections.get("starts", {})
    parts = [
        f"{config[name]} tokens" if name == "tokens" else f"dim {config[name]}" for name in ("tokens", "dim")
    ]
    if starts:
        parts += [f"{starts['count']} starts, {starts['outside_hemisphere']} of them in no hemisphere"]
    return " · ".join([*parts, "shaded below: rounding"])


def _in_words(table: Table, masks: list[str]) -> str:
    found = "; ".join(
        f"{one['mask']}: {one['collapsed']} of {one['starts']} starts collapse"
        for one in table.sections.get("masks", [])
    )
    shown = "One minus the smallest cosine of two tokens by step, on a logarithmic axis, for"
    return f"{shown} {', '.join(masks)}. {found}."
