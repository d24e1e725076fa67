"""The top paths drawn as routes: from the input at the left through one head, or none, of every layer to the output."""

import json
import math
from collections.abc import Sequence
from typing import Any, Literal

from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_colors import ADDS, TAKES, path_color
from rankscope.plots.paths_lanes import Plan, Route, plan_routes
from rankscope.plots.paths_marks import finished, inline, rows_chart
from rankscope.plots.paths_sections import Place, name_of, places_of, score_of, top_of
from rankscope.plots.paths_words import percent, route_words, short_percent
from rankscope.plots.scan_entries import clipped, number
from rankscope.plots.style import GRAY, INK
from rankscope.results import Table

STEP, NARROWEST, WIDEST = 62, 330, 800
MOST_NAMES = 32
BENDS = 6
"""Points that lead a smooth line from one lane to another."""

SHOULDER = 0.1
"""How far a line runs straight on either side of a column, of the way to the next."""

STEPS_LISTED = 5
LANE_FILL, SKIP_FILL = "#f5f7f9", "#eff2f5"
ENTRY, EXIT = 46, 90
"""Pixels from the input to the first layer and from the last one to the list."""


def routes_chart(table: Table, *, title: str | None = None) -> Chart:
    """One line per path: lanes are heads, the lowest one passes by; thicker is larger, darker is a better rank.

    Blue paths add to the output, vermilion ones work against it. Common pieces run side by side. The list at the
    right names the heads on each path. With more than 16 heads, lanes that no path uses are left out.
    """
    return finished(routes_part(table, title=title))


def routes_part(table: Table, *, title: str | None = None) -> Any:
    """The same without settings, to be put beside other charts."""
    paths, places, score = top_of(table), places_of(table), score_of(table)
    plan = plan_routes(paths, places, score=score)
    layers = min(max(STEP * (len(places) - 1), NARROWEST), WIDEST) if len(places) > 1 else 0
    width = ENTRY + layers + EXIT
    spots = [0.0, *(ENTRY + layers * at / max(1, len(places) - 1) for at in range(len(places))), float(width)]
    x = _x(places, spots)
    y = _y(plan)
    marks = [
        *_lanes(plan, spots, x, y),
        *_lines(plan, places, spots, x, y),
        *_list(plan, places, score, spots, x, y),
    ]
    drawn = alt.layer(*marks).properties(width=width, height=plan.height, view=alt.ViewConfig(stroke=None))
    count = len(paths)
    heading = title or (f"The {count} largest paths" if count > 1 else "The largest path")
    return drawn.properties(
        title=alt.TitleParams(heading, subtitle=lines_of(route_facts(table), width + 260)),
        description=routes_in_words(table),
    )


def route_facts(table: Table) -> list[str]:
    """Model, what the ranking is by, and how far it can be trusted."""
    name = clipped(name_of(table))
    return [
        *([name] if name else []),
        f"thickness: {score_of(table)}",
        "blue adds to the output, vermilion works against it",
        *([words] if (words := search_words(table)) else []),
    ]


def search_words(table: Table) -> str:
    """Whether the list is exact, and what a path outside it can reach at most if it is not."""
    search = table.sections.get("search")
    if not isinstance(search, dict) or "exact" not in search:
        return ""
    if search["exact"]:
        return "exact: no other path is larger"
    gap, ranked = search.get("gap"), search.get("ranked")
    if isinstance(ranked, int) and ranked < len(top_of(table)):
        return f"not exact: from place {ranked + 1} on scores are rounding, which has no order"
    if not isinstance(gap, int | float) or not search.get("tells", True):
        return "not exact: larger paths may exist"
    return f"not exact: a path outside the list is at most {1 + gap:.3g} times the last one"


def routes_in_words(table: Table) -> str:
    """Alternative text: the first paths with their heads."""
    paths, places = top_of(table), places_of(table)
    score = score_of(table)
    first = "; ".join(
        f"{path.rank}. {route_words(path, places)} ({score} {number(getattr(path, score))}, {percent(path.share)})"
        for path in paths[:5]
    )
    return f"Routes of the {len(paths)} largest paths through {len(places)} attention parts. {first}."


def bends(route: Route, spots: Sequence[float]) -> list[tuple[float, float]]:
    """Points of a smooth line, flat at every column; ``spots`` are the positions of the columns."""
    points = [(spots[0], route.heights[0])]
    ends = zip(spots, spots[1:], route.heights, route.heights[1:], strict=False)
    for left, right, start, end in ends:
        if start != end:
            for piece in range(BENDS + 1):
                part = piece / BENDS
                across = SHOULDER + (1 - 2 * SHOULDER) * part
                height = start + (end - start) * part * part * (3 - 2 * part)
                points.append((left + (right - left) * across, height))
        points.append((right, end))
    return points


def _x(places: list[Place], spots: list[float]) -> Any:
    names = ["input", *(clipped(place.label, 18) for place in places), "output"]
    step = math.ceil(len(places) / MOST_NAMES)
    shown = {spots[at]: names[at] for at in [0, *range(1, len(spots) - 1, step), len(spots) - 1]}
    is_long = any(len(name) > 4 for name in names[1:-1])
    axis = alt.Axis(
        title="layer", values=list(shown), labelExpr=_looked_up(shown), grid=False, ticks=False, domain=False,
        labelAngle=-40 if is_long else 0, labelOverlap=False, labelPadding=6, labelFlush=False,
        labelAlign="right" if is_long else "center", titleX=(spots[1] + spots[-2]) / 2, labelLimit=120,
    )  # fmt: skip
    return alt.X("x:Q", axis=axis, scale=alt.Scale(domain=[0, spots[-1]], nice=False, zero=False))


def _looked_up(names: dict[float, str]) -> str:
    """An expression that writes the name of a position; positions are compared after rounding."""
    at = [round(position, 3) for position in names]
    return f"{json.dumps(list(names.values()))}[indexof({json.dumps(at)}, round(datum.value * 1000) / 1000)]"


def _y(plan: Plan) -> Any:
    names = {lane.middle: "skip" if lane.head is None else str(lane.head) for lane in plan.lanes}
    axis = alt.Axis(
        title="head", values=list(names), labelExpr=_looked_up(names), grid=False, ticks=False, domain=False,
        labelOverlap=False, labelPadding=8,
    )  # fmt: skip
    return alt.Y("y:Q", axis=axis, scale=alt.Scale(domain=[plan.height, 0], nice=False, zero=False))


def _lanes(plan: Plan, spots: list[float], x: Any, y: Any) -> list[Any]:
    """Bands behind the lines, every other head and the lane that passes by, and a faint rule at every layer."""
    left, right = spots[1] - ENTRY / 3, spots[-2] + ENTRY / 3
    rows = [
        {"x": left, "x2": right, "y": lane.top, "y2": lane.top + lane.height, "fill": fill}
        for place, lane in enumerate(plan.lanes)
        if (fill := SKIP_FILL if lane.head is None else LANE_FILL if place % 2 == 0 else None)
    ]
    bands = rows_chart(rows).encode(x=x, x2="x2:Q", y=y, y2="y2:Q")
    last = plan.lanes[-1]
    rules = [{"x": spot, "y": plan.lanes[0].top, "y2": last.top + last.height} for spot in spots[1:-1]]
    columns = rows_chart(rules).encode(x=x, y=y, y2="y2:Q")
    return [
        bands.mark_rect().encode(color=alt.Color("fill:N", scale=None)),
        columns.mark_rule(color="#dfe4ea", strokeWidth=0.7),
    ]


def _lines(plan: Plan, places: list[Place], spots: list[float], x: Any, y: Any) -> list[Any]:
    """Better paths are drawn over worse ones, with a pale edge where lines cross and a ring at every head.

    Lines are drawn in the order of the data, so an edge stands right before its line.
    """
    lines: list[dict[str, Any]] = []
    rings: list[dict[str, Any]] = []
    for route in reversed(plan.routes):
        rank, color = route.path.rank, path_color(route.path.share, plan.place(route))
        points = bends(route, spots)
        for name, own, width in (("edge", "#ffffff", route.width + 1.4), ("line", color, route.width)):
            about = {"key": f"{name} {rank}", "color": own, "width": width, "rank": rank}
            lines += [{"x": round(at, 2), "y": round(high, 2), **about} for at, high in points]
        ring = {
            "color": color,
            "rank": rank,
            "size": (route.width + 3.0) ** 2,
            "edge": max(1.2, route.width / 3),
        }
        rings += [
            {"x": spots[at], "y": route.heights[at], **ring}
            for at, head in enumerate(route.path.heads, start=1)
            if head is not None
        ]
    told = alt.LookupData(
        data=inline([_told(route, places) for route in plan.routes]), key="rank", fields=list(TOLD)
    )  # fmt: skip
    charts = [rows_chart(rows).encode(x=x, y=y, tooltip=_tips()) for rows in (lines, rings)]
    drawn = [chart.transform_lookup(lookup="rank", from_=told) for chart in charts]
    stroke, thick = alt.Stroke("color:N", scale=None), alt.StrokeWidth("width:Q", scale=None)
    line = drawn[0].mark_line(interpolate="monotone", strokeJoin="round", strokeCap="round")
    ring_mark = drawn[1].mark_point(filled=True, fill="white", opacity=1)
    edge, size = alt.StrokeWidth("edge:Q", scale=None), alt.Size("size:Q", scale=None)
    start = rows_chart([{"x": 0, "y": plan.lanes[-1].middle}]).encode(x=x, y=y)
    return [
        line.encode(stroke=stroke, strokeWidth=thick, detail=alt.Detail("key:N")),
        *([ring_mark.encode(stroke=stroke, strokeWidth=edge, size=size)] if rings else []),
        start.mark_point(filled=True, color=INK, size=60, opacity=1),
    ]


TOLD = {
    "heads": "heads",
    "length": "length",
    "norm": "norm",
    "residual": "residual",
    "share": "share of the output",
}


def _told(route: Route, places: list[Place]) -> dict[str, Any]:
    """Everything known about a path, by the names of ``TOLD``."""
    path = route.path
    return {
        "rank": path.rank,
        "heads": route_words(path, places),
        "length": str(path.length),
        "norm": number(path.norm),
        "residual": number(path.residual),
        "share": percent(path.share, 3),
    }


def _tips() -> list[Any]:
    texts = [alt.Tooltip(f"{field}:N", title=name) for field, name in TOLD.items()]
    return [alt.Tooltip("rank:O", title="rank"), *texts]


def _list(plan: Plan, places: list[Place], score: str, spots: list[float], x: Any, y: Any) -> list[Any]:
    """Rank, share, size and heads of every path where its line ends."""
    names = {"rank": "", "share": "share", "score": score, "route": "heads on the path"}
    head = {"y": plan.routes[0].heights[-1] - 18, **names, "ink": GRAY, "color": GRAY}
    rows = [head] + [
        {
            "y": route.heights[-1],
            "rank": str(route.path.rank),
            "share": short_percent(route.path.share),
            "score": number(getattr(route.path, score), 3),
            "route": route_words(route.path, places, STEPS_LISTED),
            "ink": INK,
            "color": TAKES if (route.path.share or 0.0) < 0 else ADDS,
        }
        for route in plan.routes
    ]
    base = rows_chart([{"x": spots[-1], **row} for row in rows]).encode(x=x, y=y)
    columns: tuple[tuple[str, Literal["left", "right"], int, str], ...] = (
        ("rank", "right", 24, "ink"),
        ("share", "right", 76, "color"),
        ("score", "right", 124, "ink"),
        ("route", "left", 137, "ink"),
    )
    return [
        base.mark_text(align=align, dx=dx, fontSize=10.5).encode(
            text=f"{field}:N", color=alt.Color(f"{ink}:N", scale=None)
        )
        for field, align, dx, ink in columns
    ]
