"""The figure ``wu-counterexample``: maps over the weights of the two-token system, and its multipliers."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import look
from rankscope.results import Table

SIDE = 290


def counterexample_chart(table: Table) -> Chart:
    """Share of starts that keep rank 2; the same weights without the norm; multipliers of B."""
    systems = table.sections["systems"]
    config = table.provenance["config"]
    maps = [
        _map(
            systems,
            "share",
            "with the sphere: starts that keep rank 2",
            alt.Scale(
                domain=[0, max(one["share"] for one in systems) or 1],
                range=["#ffffff", "#0072B2"],
                interpolate="rgb",
            ),
            ".0%",
        ),
        _map(
            systems,
            "log10_ratio_without_norm",
            f"without a norm: log10 mu/||X||_F, layer {config['layers']}",
            alt.Scale(scheme="greys", reverse=True),
            ".0f",
        ),
    ]
    whole = alt.hconcat(*maps, _multipliers(systems), spacing=26).resolve_scale(color="independent")
    notes = [
        f"{config['starts']} random starts each, {config['steps']} steps",
        "solid line: w = alpha/(1 - alpha), above it B exists",
        "dashed: above it the multiplier of B is below -1",
        "right: lines from the closed form, points from one step of the system",
    ]
    title = alt.TitleParams(
        "Two tokens, one value map: where rank 2 is kept, and the same weights without the norm",
        subtitle=lines_of(notes, 3 * SIDE),
    )
    words = "Maps over alpha and w: starts that keep rank 2, and collapse without a norm. Curves: multipliers of B."
    return finished(whole.properties(title=title, description=words))


def _map(systems: Sequence[Row], field: str, heading: str, scale: Any, number: str) -> Any:
    alphas, logs = (sorted({f(one) for one in systems}) for f in (_alpha, _log_shear))
    wide, high = _step(alphas) / 2, _step(logs) / 2
    rows = [
        {
            "x": _alpha(one) - wide,
            "x2": _alpha(one) + wide,
            "y": _log_shear(one) - high,
            "y2": _log_shear(one) + high,
            "value": one[field],
        }
        for one in systems
    ]
    bottom, top = logs[0] - high, logs[-1] + high
    x = alt.Scale(domain=[alphas[0] - wide, alphas[-1] + wide], nice=False, zero=False)
    y = alt.Scale(domain=[bottom, top], nice=False, zero=False)
    axis = log_axis(log_ticks(bottom, top), title="w, shear of the value map (log scale)", grid=False)
    legend = alt.Legend(title=None, format=number, orient="bottom", gradientLength=SIDE - 40)
    cells = (
        rows_chart(rows)
        .mark_rect()
        .encode(
            x=alt.X("x:Q", scale=x, axis=alt.Axis(title="alpha, weight of token 2 on token 1", grid=False)),
            x2="x2:Q",
            y=alt.Y("y:Q", scale=y, axis=axis),
            y2="y2:Q",
            color=alt.Color("value:Q", scale=scale, legend=legend),
        )
    )
    edges = [
        rows_chart(_edge(name, alphas, bottom, top))
        .mark_line(color="#D55E00", strokeWidth=2, strokeDash=dash, clip=True)
        .encode(x=alt.X("x:Q", scale=x), y=alt.Y("y:Q", scale=y))
        for name, dash in (("least", [1, 0]), ("greatest", [5, 3]))
    ]
    return alt.layer(cells, *edges).properties(width=SIDE, height=SIDE, title=_heading(heading))


def _edge(name: str, alphas: Sequence[float], bottom: float, top: float) -> list[Row]:
    """A boundary over alpha, in closed form, as far as it lies near the panel."""
    wide = _step(alphas) / 2
    low, high = alphas[0] - wide, alphas[-1] + wide
    found = []
    for k in range(201):
        alpha = low + (high - low) * k / 200
        odds = alpha / (1 - alpha) if 0 < alpha < 1 else math.nan
        if name == "greatest":
            odds = odds * odds / math.sqrt(odds * odds - 4) if odds > 2.0001 else math.nan
        if odds > 0 and bottom - 0.3 < math.log10(odds) < top + 0.3:
            found.append({"x": alpha, "y": math.log10(odds)})
    return found


def _multipliers(systems: Sequence[Row]) -> Any:
    """Multiplier of B over the shear for a few alphas: lines from the closed form, points from steps of the system."""
    attracting = [one for one in systems if one["stable"]]
    alphas = sorted({_alpha(one) for one in attracting})
    chosen = alphas[:: max(1, len(alphas) // 4)][:4]
    series = look([f"alpha {alpha:g}" for alpha in chosen])
    rows = [
        {
            "x": _log_shear(one),
            "closed": one["multiplier"],
            "measured": one["measured_multiplier"],
            "series": f"alpha {one['alpha']:g}",
        }
        for one in attracting
        if one["alpha"] in chosen
    ]
    logs = sorted({_log_shear(one) for one in systems})
    axis = log_axis(log_ticks(logs[0], logs[-1]), title="w, shear of the value map (log scale)", grid=False)
    color = alt.Color(
        "series:N",
        scale=alt.Scale(domain=series.names, range=series.colors),
        legend=alt.Legend(title=None, orient="bottom", columns=4),
    )
    base = rows_chart(rows).encode(
        x=alt.X("x:Q", axis=axis, scale=alt.Scale(domain=[logs[0], logs[-1]], nice=False, zero=False)),
        color=color,
    )
    scale = alt.Scale(domain=[-1, 1], nice=False)
    line = base.mark_line(strokeWidth=1.6).encode(
        y=alt.Y("closed:Q", axis=alt.Axis(title="multiplier"), scale=scale)
    )
    point = base.mark_point(size=34, fill="white", opacity=1).encode(y=alt.Y("measured:Q", scale=scale))
    return alt.layer(line, point).properties(
        width=SIDE, height=SIDE, title=_heading("multiplier of B where it attracts")
    )


def _heading(text: str) -> Any:
    return alt.TitleParams(text, fontSize=12, anchor="middle", offset=6)


def _alpha(one: Row) -> float:
    return float(one["alpha"])


def _log_shear(one: Row) -> float:
    return math.log10(one["shear"])


def _step(values: Sequence[float]) -> float:
    return min((b - a for a, b in pairwise(values)), default=1.0)
