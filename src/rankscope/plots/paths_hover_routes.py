"""The top paths as routes in HTML: hovering a line or its place in the list brings it forward and tells its numbers.

Every route is the label of a radio button over the whole picture that only its line and its entry of the list react
to, so that the pointer, a finger and the arrow keys all work without JavaScript.
"""

from itertools import pairwise

from rankscope.plots.markup import Fragment, tag, void
from rankscope.plots.paths_colors import path_color
from rankscope.plots.paths_lanes import Plan, Route, plan_routes
from rankscope.plots.paths_sections import Place, TopPath
from rankscope.plots.paths_words import percent, route_words, short_percent
from rankscope.plots.scan_entries import clipped, number

WIDTH = 1000
"""Width of the drawing before it is stretched; its height is in pixels."""

ENTRY, EXIT = 0.05, 0.1
"""Parts of the width before the first layer and behind the last one."""

NAMES, NAMES_ON_PHONE = 24, 8
MOST_TOLD = 24
"""Heads of a path that its note names."""

HIT = 9.0
"""Pixels around a line that react to the pointer, at least."""


def hover_routes(paths: list[TopPath], places: list[Place], *, score: str, group: str) -> Fragment:
    """The picture with its list; ``group`` is unique on the page."""
    plan = plan_routes(paths, places, score=score)
    spots = _spots(len(places))
    routes = [_route(plan, route, places, spots, score, group) for route in reversed(plan.routes)]
    height = f"height:{plan.height:.4g}px"
    head = tag(
        "span", tag("span"), tag("span", "share"), tag("span", score), tag("span", "heads on the path"),
        class_="end head", style=f"top:{plan.routes[0].heights[-1] - 17:.4g}px",
    )  # fmt: skip
    box = tag(
        "div", _background(plan, spots), *_lane_names(plan), *_layer_names(places, spots), head,
        tag("div", *routes, class_="all", role="radiogroup", aria_label="the largest paths"),
        class_="box routes", style=height,
    )  # fmt: skip
    return tag("div", box, class_="plot routeplot" + (" slanted" if _has_long(places) else ""))


def _spots(places: int) -> list[float]:
    """Positions of the input, every attention part and the output, from 0 to 1."""
    step = (1 - ENTRY - EXIT) / max(1, places - 1)
    middle = [ENTRY + step * at for at in range(places)] if places > 1 else [ENTRY + 0.3]
    return [0.0, *middle, 1.0]


def _background(plan: Plan, spots: list[float]) -> Fragment:
    left, right = WIDTH * (spots[1] - ENTRY / 3), WIDTH * (spots[-2] + ENTRY / 3)
    bands = "".join(
        f"M{left:.5g} {lane.top:.5g}H{right:.5g}v{lane.height:.5g}H{left:.5g}Z"
        for place, lane in enumerate(plan.lanes)
        if lane.head is not None and place % 2 == 0
    )
    skip, first = plan.lanes[-1], plan.lanes[0]
    low = f"M{left:.5g} {skip.top:.5g}H{right:.5g}v{skip.height:.5g}H{left:.5g}Z"
    rules = "".join(
        f"M{WIDTH * spot:.5g} {first.top:.5g}V{skip.top + skip.height:.5g}" for spot in spots[1:-1]
    )
    marks = [
        tag("path", class_="band0", d=bands), tag("path", class_="skipband", d=low),
        tag("path", class_="grid", d=rules), tag("path", class_="start0", d=f"M0 {skip.middle:.5g}h0"),
    ]  # fmt: skip
    return _svg(plan, *marks)


def _route(
    plan: Plan, route: Route, places: list[Place], spots: list[float], score: str, group: str
) -> Fragment:
    path, place = route.path, plan.place(route)
    line = _line(route, spots)
    heads = [at for at, head in enumerate(path.heads, start=1) if head is not None]
    dots = "".join(f"M{WIDTH * spots[at]:.5g} {route.heights[at]:.5g}h0" for at in heads)
    marks = [
        tag("path", class_="edge", d=line, style=f"stroke-width:{route.width + 1.6:.3g}"),
        tag("path", class_="road", d=line, style=f"stroke-width:{route.width:.3g}"),
        tag("path", class_="hit", d=line, style=f"stroke-width:{max(HIT, route.width + 4):.3g}"),
    ]
    if dots:
        marks += [
            tag("path", class_="stop", d=dots, style=f"stroke-width:{route.width + 4:.3g}"),
            tag("path", class_="hole", d=dots, style=f"stroke-width:{max(1.8, route.width * 0.5 + 0.6):.3g}"),
        ]
    colors = f"--c:{path_color(path.share, place)};--d:{path_color(path.share, place, on_dark=True)}"
    middle = spots[heads[len(heads) // 2]] if heads else 0.5
    words = f"{path.rank}. {route_words(path, places)}"
    return tag(
        "label", void("input", type="radio", name=group, aria_label=words), _svg(plan, *marks),
        _entry(route, places, score), _tip(path, places), class_="route", style=f"{colors};--f:{middle:.3g}",
    )  # fmt: skip


def _line(route: Route, spots: list[float]) -> str:
    """A smooth line, flat at every column."""
    parts = [f"M{WIDTH * spots[0]:.5g} {route.heights[0]:.5g}"]
    for (left, start), (right, end) in pairwise(zip(spots, route.heights, strict=True)):
        middle = WIDTH * (left + right) / 2
        parts.append(
            f"H{WIDTH * right:.5g}"
            if start == end
            else f"C{middle:.5g} {start:.5g} {middle:.5g} {end:.5g} {WIDTH * right:.5g} {end:.5g}"
        )
    return "".join(parts)


def _entry(route: Route, places: list[Place], score: str) -> Fragment:
    """The place of the path in the list: rank, share, score and heads."""
    path = route.path
    side = "takes" if (path.share or 0.0) < 0 else "adds"
    return tag(
        "span", tag("span", str(path.rank)), tag("span", short_percent(path.share), class_=side),
        tag("span", number(getattr(path, score))), tag("span", route_words(path, places)), class_="end",
        style=f"top:{route.heights[-1]:.5g}px",
    )  # fmt: skip


def _tip(path: TopPath, places: list[Place]) -> Fragment:
    """Two lines above the picture, so that they hide no part of the route."""
    numbers = (
        f"{percent(path.share, 3)} of the output", f"norm {number(path.norm)}", f"residual {number(path.residual)}",
        f"length {path.length}",
    )  # fmt: skip
    heads = tag("b", f"{path.rank}. {route_words(path, places, most=MOST_TOLD)}")
    return tag("span", heads, void("br"), " · ".join(numbers), class_="tip")


def _lane_names(plan: Plan) -> list[Fragment]:
    return [
        tag("span", "skip" if lane.head is None else str(lane.head), class_="ytick", style=f"top:{lane.middle:.5g}px")
        for lane in plan.lanes
    ]  # fmt: skip


def _has_long(places: list[Place]) -> bool:
    """Whether names of attention parts are too long to stand beside each other."""
    return any(len(place.label) > 4 for place in places)


def _layer_names(places: list[Place], spots: list[float]) -> list[Fragment]:
    step, on_phone = -(-len(places) // NAMES), -(-len(places) // NAMES_ON_PHONE)
    is_long = _has_long(places)
    names = [
        tag(
            "span", clipped(place.label, 18),
            class_="xtick" + (" extra" if at % on_phone else "") + (" slanted" if is_long else ""),
            style=f"left:{100 * spots[at + 1]:.4g}%",
        )
        for at, place in enumerate(places)
        if at % step == 0
    ]  # fmt: skip
    ends = [
        tag("span", name, class_="xtick extra", style=f"left:{left}%")
        for name, left in (("input", 0), ("output", 100))
    ]
    return [*ends, *names, tag("span", "layer", class_="xname")]


def _svg(plan: Plan, *marks: Fragment) -> Fragment:
    box = f"0 0 {WIDTH} {plan.height:.5g}"
    return tag("svg", *marks, viewBox=box, preserveAspectRatio="none", aria_hidden="true")
