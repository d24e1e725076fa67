"""Where random starts end: shares with their intervals and, for two tokens in the plane, a map of the starts."""

import math
from typing import Any

import numpy as np

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.dynamics_marks import UNKNOWN, equilibrium_color, heading, notes_of
from rankscope.plots.dynamics_sections import (
    Basins,
    Equilibrium,
    Outcome,
    basins_of,
    known_equilibria,
)
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.paths_words import percent
from rankscope.plots.scan_entries import clipped
from rankscope.plots.style import INK
from rankscope.results import Table
from rankscope.results.equilibria_lines import ended_words
from rankscope.results.statistics import wilson

WIDTH, STEP = 260, 30
MAP_SIDE = 300
MOST_BARS = 12
MOST_POINTS = 4000


def basins_chart(table: Table, *, title: str | None = None) -> Chart:
    """Shares of random starts by where they ended, with 95% Wilson intervals; a map of starts where there is one."""
    bars = bars_part(table, title=title)
    if basins_of(table).angles is None:
        return finished(bars)
    map_ = map_part(table)
    both: Any = alt.hconcat(bars, map_, spacing=40).resolve_scale(color="independent")
    return finished(both.properties(description=f"{bars.description} {map_.description}"))


def bars_part(table: Table, *, title: str | None = None, alone: bool = True) -> Any:
    """The shares alone, without settings."""
    basins, found = basins_of(table), known_equilibria(table)
    if basins.starts < 1 or not basins.outcomes:
        raise ConfigError(f"nothing to draw: the section 'basins' tells of {basins.starts} starts")
    rows = bar_rows(basins, found)
    who = "one random start ends" if basins.starts == 1 else f"{basins.starts:,} random starts end"
    title = title or f"Where {who}"
    domain = [0.0, min(1.0, 1.04 * max(row["high"] for row in rows))]
    x: dict[str, Any] = {
        "axis": alt.Axis(title="share of starts", format="~%", tickCount=5),
        "scale": alt.Scale(domain=domain),
    }
    names = [row["name"] for row in rows]
    axis = alt.Axis(title=None, labelLimit=0, ticks=False, domain=False, labelPadding=8)
    base = rows_chart(rows).encode(y=alt.Y("name:N", sort=names, axis=axis))
    tips = [
        alt.Tooltip("name:N", title="ended"),
        alt.Tooltip("text:N", title="starts"),
        alt.Tooltip("range:N", title="95% interval"),
    ]
    bar = base.mark_bar(size=15).encode(
        x=alt.X("share:Q", **x), color=alt.Color("ink:N", scale=None, legend=None), tooltip=tips
    )
    rule = base.mark_rule(color=INK, strokeWidth=1.3).encode(x=alt.X("low:Q", **x), x2="high:Q")
    ends = [
        base.mark_tick(color=INK, thickness=1.3, size=7).encode(x=alt.X(f"{end}:Q", **x))
        for end in ("low", "high")
    ]
    text = base.mark_text(align="left", dx=8, fontSize=10.5, color=INK).encode(
        x=alt.value(WIDTH), text="text:N"
    )
    notes = notes_of(table, ["whiskers: 95% interval (Wilson)"], alone=alone)
    return alt.layer(bar, rule, *ends, text).properties(
        width=WIDTH, height=max(STEP * len(rows), 60), title=heading(title, notes, WIDTH + 230),
        description=basin_words(basins, rows),
    )  # fmt: skip


def basin_words(basins: Basins, rows: list[Row]) -> str:
    """Alternative text: every share and its interval."""
    told = [f"{row['name']}: {row['text']}, interval {row['range']}" for row in rows]
    return f"Shares of {basins.starts:,} starts with 95% Wilson intervals. " + "; ".join(told) + "."


def bar_rows(basins: Basins, equilibria: list[Equilibrium]) -> list[Row]:
    """One row per outcome, most frequent first; those beyond twelve are counted together."""
    merged: dict[str, tuple[str, int]] = {}
    for one in basins.outcomes:
        name, ink = outcome_name(one, equilibria), equilibrium_color(one.equilibrium)
        merged[name] = (ink, merged.get(name, (ink, 0))[1] + one.count)
    named = sorted(((name, ink, count) for name, (ink, count) in merged.items()), key=lambda one: -one[2])
    if len(named) > MOST_BARS:
        rest = named[MOST_BARS - 1 :]
        named = [
            *named[: MOST_BARS - 1],
            (f"{len(rest)} other endings", UNKNOWN, sum(one[2] for one in rest)),
        ]
    return [_bar_row(name, ink, count, basins.starts) for name, ink, count in named]


def outcome_name(one: Outcome, equilibria: list[Equilibrium]) -> str:
    """Where starts ended, in a few words."""
    if one.equilibrium is not None and one.equilibrium < len(equilibria):
        return equilibria[one.equilibrium].name
    words = clipped(ended_words({"equilibrium": None, "ending": one.ending}), 40)
    return words if one.rank is None else f"{words}, rank {one.rank}"


def map_part(table: Table) -> Any:
    """Start angles of two tokens, each start in the color of its limit."""
    basins, found = basins_of(table), known_equilibria(table)
    if basins.angles is None:
        raise ConfigError(
            "a map of basins needs the start angles of two tokens in the plane; this table has none"
        )
    every = max(1, math.ceil(len(basins.angles) / MOST_POINTS))
    rows = map_rows(basins, found)[::every]
    present = sorted(set(basins.limits), key=lambda one: (one is None, one or 0))
    names = [_limit_name(limit, found) for limit in present]
    colors = [equilibrium_color(limit) for limit in present]
    legend = alt.Legend(title=None, orient="right", symbolType="square", symbolSize=110, symbolOpacity=1)
    # Squares that touch at this number of starts if they lie on a grid, and overlap little if they are random.
    size = min(160.0, max(9.0, MAP_SIDE**2 / max(len(rows), 1)))
    mark = rows_chart(rows).mark_point(shape="square", filled=True, size=size, opacity=0.9, clip=True)
    whole: Any = mark.encode(
        x=_angle("a", "start angle of token 0"),
        y=_angle("b", "start angle of token 1"),
        color=alt.Color("limit:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        tooltip=[alt.Tooltip("limit:N", title="ends at"), alt.Tooltip("a:Q"), alt.Tooltip("b:Q")],
    )
    words = f"Map of {len(rows):,} starts of two tokens by their angles, colored by the limit: {', '.join(names)}."
    notes = [f"every {every}th start"] if every > 1 else [f"{len(rows):,} starts"]
    return whole.properties(
        width=MAP_SIDE, height=MAP_SIDE, description=words,
        title=heading("Basins in the angles of the start", notes, MAP_SIDE + 120),
    )  # fmt: skip


def map_rows(basins: Basins, equilibria: list[Equilibrium]) -> list[Row]:
    """Angles in degrees from -180 to 180, and the name of the limit."""
    if basins.angles is None:
        return []
    degrees = (np.degrees(basins.angles) + 180) % 360 - 180
    return [
        {"a": round(float(a), 2), "b": round(float(b), 2), "limit": _limit_name(limit, equilibria)}
        for (a, b), limit in zip(degrees, basins.limits, strict=True)
    ]


def _angle(field: str, title: str) -> Any:
    channel = alt.X if field == "a" else alt.Y
    axis = alt.Axis(
        title=title,
        values=[-180, -90, 0, 90, 180],
        labelExpr="datum.label + '°'",
        grid=False,
        format="d",
        labelFlush=False,
    )
    return channel(f"{field}:Q", axis=axis, scale=alt.Scale(domain=[-180, 180], nice=False, zero=False))


def _limit_name(limit: int | None, equilibria: list[Equilibrium]) -> str:
    if limit is None:
        return "no equilibrium"
    return equilibria[limit].name if limit < len(equilibria) else f"equilibrium {limit + 1}"


def _bar_row(name: str, ink: str, count: int, starts: int) -> Row:
    low, high = wilson(count, starts)
    share = count / starts
    return {
        "name": name,
        "ink": ink,
        "share": share,
        "low": low,
        "high": high,
        "text": f"{count:,} of {starts:,}, {percent(share)}",
        "range": f"{percent(low)} to {percent(high)}",
    }
