"""Predictions as curves over layers: the forecast cosine of every depth, and proven bounds of the spread."""

import math
from typing import Any

import polars as pl

from rankscope.errors import ConfigError
from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.style import GRAY, PALETTE, configured
from rankscope.results import Table

WIDTH, HEIGHT = 560, 300

BOUNDS = {
    "lower": "at least, for the given spread",
    "upper": "at most, for the given spread",
    "gain_lower": "at least, per block",
    "gain_upper": "at most, per block",
    "critical": "critical spread: below it a block shrinks every input",
}
GIVEN = ("lower", "upper", "critical")
GAINS = ("gain_lower", "gain_upper")


def predict_chart(table: Table) -> Chart:
    """Cosine by layer, one line per depth, dashed where the width keeps the number of weights; and proven bounds.

    The spread after every block is drawn where one was given, with the critical spread of each block; gains for all
    inputs otherwise. What is not proven has no point.
    """
    kinds = table.frame["statement"].unique().to_list() if "statement" in table.frame.columns else []
    parts, words = list[Any](), list[str]()
    if "forecast" in kinds:
        parts.append(_forecast(table))
        depths = [one["layers"] for one in table.sections["forecast"]["depths"]]
        words.append(f"Forecast cosine by layer for depths {', '.join(map(str, dict.fromkeys(depths)))}.")
    if "a-priori" in kinds:
        drawn = _bounds(table)
        parts += [] if drawn is None else [drawn]
        words.append("Proven bounds by layer." if drawn is not None else "Nothing is proven of any layer.")
    if not parts:
        raise ConfigError("nothing to draw: the table holds no forecast and no bound that is finite")
    whole: Any = (
        parts[0]
        if len(parts) == 1
        else alt.vconcat(*parts, spacing=36).resolve_scale(color="independent", strokeDash="independent")
    )
    return configured(whole.properties(description=" ".join(words)))


def _forecast(table: Table) -> Any:
    told = table.sections["forecast"]
    rows = table.frame.filter(pl.col("statement") == "forecast")
    names = rows["variant"].unique(maintain_order=True).to_list()
    depths = rows["layers"].unique(maintain_order=True).to_list()
    colors = [PALETTE[depths.index(int(name.split()[0])) % len(PALETTE)] for name in names]
    dashes = [[5, 3] if "dim" in name else [1, 0] for name in names]
    data = alt.InlineData(values=rows.select("layer", "layers", "value", "variant", "dim").to_dicts())
    legend = alt.Legend(title=None, orient="right", symbolType="stroke", symbolStrokeWidth=2)
    tint = alt.Scale(domain=names, range=colors)
    line = (
        alt.Chart(data)
        .mark_line(strokeWidth=1.8)
        .encode(
            x=alt.X(
                "layer:Q",
                title="layer",
                axis=alt.Axis(tickMinStep=1, format="d"),
                scale=alt.Scale(domain=[0, max(depths)]),
            ),
            y=alt.Y("value:Q", title="mean token cosine", scale=alt.Scale(domain=_domain(rows["value"]))),
            color=alt.Color("variant:N", scale=tint, legend=legend),
            strokeDash=alt.StrokeDash(
                "variant:N", scale=alt.Scale(domain=names, range=dashes), legend=legend
            ),
            tooltip=[
                alt.Tooltip("variant:N", title="network"),
                alt.Tooltip("layer:Q"),
                alt.Tooltip("value:Q", title="cosine", format=".3f"),
            ],
        )
    )
    ends = (  # depths whose curves coincide still show where each of them ends
        alt.Chart(data)
        .transform_filter("datum.layer == datum.layers")
        .mark_point(filled=True, size=46, opacity=1)
        .encode(
            x="layer:Q",
            y="value:Q",
            color=alt.Color("variant:N", scale=tint, legend=None),
        )
    )
    rule = (
        alt.Chart(alt.InlineData(values=[{"y": told["threshold"]}]))
        .mark_rule(strokeDash=[2, 2], color=GRAY)
        .encode(y="y:Q")
    )
    heading = alt.TitleParams(
        f"Forecast for untrained weights: {told['model']}",
        subtitle=f"{told['tokens']} tokens; dotted: {told['threshold']:g}; dashed: the width that keeps the weights",
    )
    return alt.layer(line, ends, rule).properties(width=WIDTH, height=HEIGHT, title=heading)


def _domain(values: pl.Series) -> list[float]:
    return [min(0.0, float(values.min() or 0.0)), 1.0]  # type: ignore[arg-type]  # a column of floats


def _bounds(table: Table) -> Any | None:
    """Bounds on a logarithmic axis; None where none is finite."""
    rows = table.frame.filter(pl.col("statement") == "a-priori")
    told = table.sections["apriori"]
    names = GIVEN if told["spread"] is not None else GAINS
    points = [
        {
            "layer": row["layer"],
            "y": row[name] / math.log(10),
            "series": BOUNDS[name],
            "shown": _power(row[name]),
        }
        for name in names
        for row in rows.to_dicts()
        if row[name] is not None
    ]
    if told["spread"] is not None:
        start = math.log10(told["spread"])
        points += [
            {"layer": 0, "y": start, "series": BOUNDS[name], "shown": f"{told['spread']:g}"}
            for name in ("lower", "upper")
            if any(point["series"] == BOUNDS[name] for point in points)
        ]
    if not points:
        return None
    shown = [BOUNDS[name] for name in names if any(point["series"] == BOUNDS[name] for point in points)]
    marks = {BOUNDS[name]: mark for name, mark in zip(names, (PALETTE[0], PALETTE[1], GRAY), strict=False)}
    heights = [float(point["y"]) for point in points]
    margin = max(
        0.05 * (max(heights) - min(heights)), (0.8 - max(heights) + min(heights)) / 2
    )  # room for ticks
    low, high = min(heights) - margin, max(heights) + margin
    what = "spread: largest distance of two tokens" if told["spread"] is not None else "gain of the spread"
    line = (
        alt.Chart(alt.InlineData(values=points))
        .mark_line(strokeWidth=1.8, point=True)
        .encode(
            x=alt.X("layer:Q", title="layer", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y(
                "y:Q",
                title=what,
                scale=alt.Scale(domain=[low, high], zero=False),
                axis=log_axis(log_ticks(low, high)),
            ),
            color=alt.Color(
                "series:N",
                scale=alt.Scale(domain=shown, range=[marks[name] for name in shown]),
                legend=alt.Legend(title=None, orient="bottom", columns=1),
            ),
            tooltip=[alt.Tooltip("series:N"), alt.Tooltip("layer:Q"), alt.Tooltip("shown:N", title="value")],
        )
    )
    heading = alt.TitleParams(f"Proven for every input: {told['model']}", subtitle=_claim(told))
    return line.properties(width=WIDTH, height=HEIGHT, title=heading)


def _claim(told: dict[str, Any]) -> str:
    if told["keeps_apart"]:
        return "no input collapses"
    if told["critical_spread"]:
        return f"inputs with a spread below {told['critical_spread']:.4g} shrink in every block"
    return "what has no line is not proven"


def _power(log: float) -> str:
    exponent = math.floor(log / math.log(10))
    return f"{10 ** (log / math.log(10) - exponent):.2f}e{exponent}"
