"""A mask as a graph: tokens on a circle, information flowing from key to query."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.plots.backend import Chart, alt
from rankscope.plots.mask_rules import Rule, check_size, plural, reach_in_words
from rankscope.plots.style import INK, PALETTE, configured

MOST_TOKENS = 64
SIZE = 460
EXTENT = 1.12
"""Half the side of the picture, in units of the circle's radius."""

CENTER, OTHER = "center token: reaches every token", "other token"
ONE_WAY, BOTH_WAYS = "from key to query", "both ways"
INKS = {ONE_WAY: "#3a3a3a", BOTH_WAYS: "#8a8a8a"}

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """A curve from the rim of one token to the rim of another, bent towards the middle of the circle."""

    start: Point
    bend: Point
    end: Point
    flow: str


def mask_graph(rule: Rule, tokens: int) -> Chart:
    """Tokens on a circle, an arrow from key to query, a plain line where both read each other.

    Center tokens are filled. That a token reads itself is said and not drawn.
    """
    check_size(tokens, MOST_TOKENS, "the graph of a mask")
    allowed, graph = rule.matrix(tokens), rule.graph(tokens)
    centers = set(graph.centers().tolist())
    places = _circle(tokens)
    node = _node_radius(tokens)
    edges = _edges(allowed, places, node)
    facts = f"{plural(tokens, 'token')} · {reach_in_words(graph)} · {_self_loops(allowed)}"
    chart = alt.layer(*_lines(edges), *_heads(edges, node), *_nodes(places, centers, node))
    listed = ", ".join(map(str, sorted(centers))) or "none"
    return configured(
        chart.properties(
            width=SIZE,
            height=SIZE,
            view=alt.ViewConfig(stroke=None),
            title=alt.TitleParams(f"mask {rule.text}", subtitle=facts),
            description=f"Mask {rule.text} as a graph: {facts}. Centers: {listed}.",
        )
    )


def _circle(tokens: int) -> list[Point]:
    """Token 0 at the top, then clockwise."""
    turns = [2 * math.pi * token / tokens for token in range(tokens)]
    return [(math.sin(turn), math.cos(turn)) for turn in turns]


def _node_radius(tokens: int) -> float:
    return min(0.085, 0.66 * math.pi / max(tokens, 2))


def _self_loops(allowed: NDArray[np.bool_]) -> str:
    count = int(np.diagonal(allowed).sum())
    if count == len(allowed):
        return "every token also reads itself"
    return "no token reads itself" if count == 0 else f"{count} of the tokens also read themselves"


def _edges(allowed: NDArray[np.bool_], places: list[Point], node: float) -> list[Edge]:
    """One edge per pair of tokens; from key to query if only one reads the other."""
    edges = []
    for query, key in zip(*np.nonzero(allowed), strict=True):
        both = bool(allowed[key, query])
        if key == query or (both and key > query):
            continue
        start, end = places[key], places[query]
        # Straight lines between neighbors would run along the circle, under the tokens between them.
        inward = 1 - min(0.22, 0.4 * math.dist(start, end))
        bend = (inward * (start[0] + end[0]) / 2, inward * (start[1] + end[1]) / 2)
        edges.append(
            Edge(
                start=_towards(start, bend, node),
                bend=bend,
                end=_towards(end, bend, node),
                flow=BOTH_WAYS if both else ONE_WAY,
            )
        )
    return edges


def _towards(start: Point, end: Point, distance: float) -> Point:
    share = distance / math.dist(start, end)
    return (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))


def _lines(edges: list[Edge]) -> list[Any]:
    values = [
        {"edge": number, "step": step, "x": x, "y": y, "flow": edge.flow}
        for number, edge in enumerate(edges)
        for step, (x, y) in enumerate((edge.start, edge.bend, edge.end))
    ]
    if not values:
        return []
    present = [flow for flow in INKS if any(edge.flow == flow for edge in edges)]
    scale = alt.Scale(domain=present, range=[INKS[flow] for flow in present])
    legend = alt.Legend(
        title=None, orient="bottom", symbolType="stroke", symbolStrokeWidth=2, symbolOpacity=1
    )
    thin = 1.0 if len(edges) < 150 else 0.6
    base = alt.Chart(alt.InlineData(values=values)).mark_line(
        interpolate="basis", strokeWidth=thin, opacity=0.85
    )
    return [
        base.encode(
            x=_place("x"),
            y=_place("y"),
            detail="edge:N",
            order="step:Q",
            color=alt.Color("flow:N", scale=scale, legend=legend),
        )
    ]


def _heads(edges: list[Edge], node: float) -> list[Any]:
    """Triangles at the queries of one-way edges, pointing along the end of the curve."""
    side = min(7.5, max(4.0, 0.4 * _pixels(node)))
    back = side / 2 / _pixels(1.0)
    values = []
    for edge in edges:
        if edge.flow == BOTH_WAYS:
            continue
        x, y = _towards(edge.end, edge.bend, back)
        # Degrees clockwise from straight up, as Vega turns a symbol.
        angle = math.degrees(math.atan2(edge.end[0] - edge.bend[0], edge.end[1] - edge.bend[1]))
        values.append({"x": x, "y": y, "angle": angle})
    if not values:
        return []
    marks = alt.Chart(alt.InlineData(values=values)).mark_point(
        shape="triangle-up", filled=True, size=side**2, opacity=1, color=INKS[ONE_WAY]
    )
    return [marks.encode(x=_place("x"), y=_place("y"), angle=alt.Angle("angle:Q", scale=None))]


def _nodes(places: list[Point], centers: set[int], node: float) -> list[Any]:
    kinds = [CENTER if token in centers else OTHER for token in range(len(places))]
    values = [
        {"x": x, "y": y, "token": str(token), "kind": kind}
        for token, ((x, y), kind) in enumerate(zip(places, kinds, strict=True))
    ]
    present = [kind for kind in (CENTER, OTHER) if kind in kinds]
    fills = {CENTER: PALETTE[1], OTHER: "white"}
    legend = alt.Legend(
        title=None, orient="bottom", symbolSize=130, symbolStrokeColor=INK, symbolStrokeWidth=1.2
    )
    fill = alt.Fill(
        "kind:N", scale=alt.Scale(domain=present, range=[fills[kind] for kind in present]), legend=legend
    )
    base = alt.Chart(alt.InlineData(values=values)).encode(x=_place("x"), y=_place("y"))
    pixels = _pixels(node)
    circles = base.mark_point(
        shape="circle", size=math.pi * pixels**2, stroke=INK, strokeWidth=1.2, opacity=1
    ).encode(fill=fill)
    ink = alt.when(f"datum.kind == '{CENTER}'").then(alt.value("white")).otherwise(alt.value(INK))
    labels = base.mark_text(fontSize=max(7, min(13, 0.95 * pixels)), fontWeight="bold").encode(
        text="token:N", color=ink
    )
    return [circles, labels]


def _pixels(length: float) -> float:
    """A length in units of the circle's radius, in pixels."""
    return length * SIZE / (2 * EXTENT)


def _place(field: str) -> Any:
    channel = alt.X if field == "x" else alt.Y
    return channel(f"{field}:Q", axis=None, scale=alt.Scale(domain=[-EXTENT, EXTENT], nice=False, zero=False))
