"""The figure ``circle``: ways of two points in the plane by case and hidden size, their distance and their mean."""

import math
from collections.abc import Sequence
from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import GRAY, INK, PALETTE, look
from rankscope.results import Table

SIDE, HEIGHT, GAP = 122, 105, 16
REACH = 1.9
"""Half the width of a panel in the plane, in radii; ways that leave it are cut off at its frame."""

TOKENS = (PALETTE[0], PALETTE[1])
RING = "#cfcfcf"
ENDINGS = ("merged", "apart", "nearer", "ran off")
DISTANCES, MEANS = (-17.0, 3.0), (-4.0, 4.0)
"""Ends of the vertical axes in decades."""

BEYOND = 5.0
"""Decades outside the axis at which numbers are held: the line leaves the panel there."""

EVERY = 4
"""Of the later steps of a curve so many are drawn as one."""

FIRST = 40


def circle_chart(table: Table) -> Chart:
    """Columns are the cases, rows the hidden sizes; below them distance and mean against steps, logarithmic."""
    networks, cases = table.sections["networks"], table.sections["cases"]
    config = table.provenance["config"]
    sizes = config["hidden"]
    rows: list[Any] = [
        alt.hconcat(
            *(
                _plane(_chosen(networks, case, hidden), _heading(words, hidden, sizes), _label(hidden, place))
                for place, (case, words) in enumerate(cases.items())
            ),
            spacing=GAP,
            bounds="flush",
        )
        for hidden in sizes
    ]
    for measure, title, ends in (
        ("distance", "distance / start", DISTANCES),
        ("mean", "|mean| / radius", MEANS),
    ):
        panels = [
            _curves(
                curve_points(table, measure, case, ends),
                sizes,
                config["steps"],
                ends,
                title if not place else "",
            )
            for place, case in enumerate(cases)
        ]
        rows.append(alt.hconcat(*panels, spacing=GAP, bounds="flush"))
    words = "Ways of two points by case and hidden size; their distance and the length of their mean by step."
    heading = alt.TitleParams(
        "One layer, applied again and again to two points of a circle", subtitle=_subtitle(table, len(cases))
    )
    # by default all panels would share one scale of colors, that of the tokens with that of the hidden sizes
    whole = alt.vconcat(_key(sizes), *rows, spacing=10).resolve_scale(
        color="independent", fill="independent", strokeDash="independent", shape="independent"
    )
    return finished(whole.properties(title=heading, description=words))


def curve_points(table: Table, measure: str, case: str, ends: tuple[float, float]) -> list[Row]:
    """Points of the curves of one case: log10 of the measure until it is not resolved.

    The first point that is below its floor is drawn at the floor, and nothing after it.
    """
    frame = table.where(measure=measure, case=case).frame
    found: list[Row] = []
    for (hidden, seed), group in frame.group_by("hidden", "seed", maintain_order=True):
        for row in group.to_dicts():
            if row["step"] >= FIRST and row["step"] % EVERY and row["resolved"]:
                continue
            shown = max(row["value"], row["floor"])
            height = math.log10(shown) if shown > 0 else ends[0]
            found.append(
                {
                    "x": row["step"],
                    "y": min(max(height, ends[0] - BEYOND), ends[1] + BEYOND),
                    "hidden": str(hidden),
                    "line": f"{hidden} {seed}",
                }
            )
            if not row["resolved"]:
                break
    return found


def endings_text(networks: Sequence[Row]) -> str:
    """``2 merged, 1 apart``: how the networks of one panel ended."""
    counts = {name: sum(one["ending"] == name for one in networks) for name in ENDINGS}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _chosen(networks: Sequence[Row], case: str, hidden: int) -> list[Row]:
    return [one for one in networks if one["case"] == case and one["hidden"] == hidden]


def _heading(words: str, hidden: int, sizes: Sequence[int]) -> str:
    return words if hidden == sizes[0] else ""


def _label(hidden: int, place: int) -> str | None:
    return f"hidden {hidden}" if place == 0 else None


def _plane(networks: Sequence[Row], heading: str, label: str | None) -> Any:
    """The ways of both points of every seed, with start and end, over the circle that was taught."""
    radius = networks[0]["distance"][0] / 2
    ways: list[Row] = []
    marks: list[Row] = []
    for one in networks:
        for token in (0, 1):
            way = [
                {"x": point[2 * token] / radius, "y": point[2 * token + 1] / radius, "step": step}
                for step, point in enumerate(one["path"])
            ]
            name = f"{one['seed']} {token}"
            inside = _until_out(way)
            ways += [{**row, "line": name, "token": str(token + 1)} for row in inside]
            marks.append({**way[0], "token": str(token + 1), "kind": "start"})
            if max(abs(way[-1]["x"]), abs(way[-1]["y"])) <= REACH:
                marks.append({**way[-1], "token": str(token + 1), "kind": "end"})
    x, y = _across(), _upwards(label)
    color = alt.Color("token:N", scale=alt.Scale(domain=["1", "2"], range=list(TOKENS)), legend=None)
    ring = (
        rows_chart(_ring()).mark_line(color=RING, strokeWidth=4, clip=True).encode(x=x, y=y, order="step:Q")
    )
    line = (
        rows_chart(ways)
        .mark_line(strokeWidth=1.1, opacity=0.75, clip=True)
        .encode(x=x, y=y, color=color, detail="line:N", order="step:Q")
    )
    fill = alt.Fill("token:N", scale=alt.Scale(domain=["1", "2"], range=list(TOKENS)), legend=None)
    points = [
        rows_chart([row for row in marks if row["kind"] == kind])
        .mark_point(size=size, shape=shape, strokeWidth=1.3, opacity=1, clip=True)
        .encode(x=x, y=y, color=color, fill=alt.value("white") if kind == "start" else fill)
        for kind, shape, size in (("start", "circle", 46), ("end", "diamond", 34))
    ]
    ended = rows_chart([{"x": 0, "y": -REACH + 0.22, "text": endings_text(networks)}])
    told = [
        ended.mark_text(fontSize=10, **words).encode(x=x, y=y, text="text:N")
        for words in (
            {"color": "white", "stroke": "white", "strokeWidth": 4},
            {"color": INK},
        )  # readable over lines
    ]
    title = alt.TitleParams(heading, fontSize=11, anchor="middle", offset=5)
    return alt.layer(ring, line, *points, *told).properties(width=SIDE, height=SIDE, title=title)


def _until_out(way: Sequence[Row]) -> list[Row]:
    """The way up to the first point far outside the panel: the frame cuts it off."""
    kept: list[Row] = []
    for row in way:
        size = max(abs(row["x"]), abs(row["y"]))
        if size > 3 * REACH:
            kept.append({**row, "x": row["x"] / size * 3 * REACH, "y": row["y"] / size * 3 * REACH})
            break
        kept.append(row)
    return kept


def _ring() -> list[Row]:
    angles = [2 * math.pi * k / 90 for k in range(91)]
    return [{"x": math.cos(a), "y": math.sin(a), "step": k} for k, a in enumerate(angles)]


def _across() -> Any:
    return alt.X("x:Q", scale=alt.Scale(domain=[-REACH, REACH], nice=False), axis=None)


def _upwards(label: str | None) -> Any:
    axis = alt.Axis(
        title=label, labels=False, ticks=False, grid=False, domain=False, minExtent=40, maxExtent=40
    )
    scale = alt.Scale(domain=[-REACH, REACH], nice=False)
    return alt.Y("y:Q", scale=scale, axis=axis if label else None)


def _curves(
    rows: Sequence[Row], sizes: Sequence[int], steps: int, ends: tuple[float, float], title: str
) -> Any:
    series = look([str(hidden) for hidden in sizes])
    color = alt.Color("hidden:N", scale=alt.Scale(domain=series.names, range=_colors(sizes)), legend=None)
    dash = alt.StrokeDash("hidden:N", scale=alt.Scale(domain=series.names, range=series.dashes), legend=None)
    axis = log_axis(log_ticks(*ends), title=title, domain=False, minExtent=40, maxExtent=40, labelFontSize=9)
    bare = alt.Axis(values=log_ticks(*ends).positions, labels=False, ticks=False, title=None, domain=False)
    time = alt.Axis(
        values=[0, steps // 2, steps], grid=False, title="step" if ends == MEANS else None, labelFontSize=9
    )
    return (
        rows_chart(rows)
        .mark_line(strokeWidth=1.2, opacity=0.85, clip=True)
        .encode(
            x=alt.X("x:Q", axis=time, scale=alt.Scale(domain=[0, steps], nice=False)),
            y=alt.Y(
                "y:Q",
                axis=axis if title else bare,
                scale=alt.Scale(domain=list(ends), nice=False, zero=False),
            ),
            color=color,
            strokeDash=dash,
            detail="line:N",
        )
        .properties(width=SIDE, height=HEIGHT)
    )


def _colors(sizes: Sequence[int]) -> list[str]:
    """One per hidden size, none of those of the two points."""
    others = [color for color in PALETTE if color not in TOKENS]
    return [others[place % len(others)] for place in range(len(sizes))]


def _key(sizes: Sequence[int]) -> Any:
    """The legend as a row of marks with their names."""
    entries = [
        ("first token", TOKENS[0], "stroke", TOKENS[0]),
        ("second token", TOKENS[1], "stroke", TOKENS[1]),
        ("start", GRAY, "circle", "white"),
        ("end", GRAY, "diamond", GRAY),
        ("circle taught", RING, "stroke", RING),
        *(
            (f"hidden {hidden}", color, "stroke", color)
            for hidden, color in zip(sizes, _colors(sizes), strict=True)
        ),
    ]
    place, rows = 0.0, []
    for label, color, shape, fill in entries:
        rows.append({"x": place, "label": label, "color": color, "shape": shape, "fill": fill})
        place += 34 + 6.6 * len(label)
    base = rows_chart(rows).encode(x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, place], nice=False)))
    mark = base.mark_point(size=70, opacity=1, strokeWidth=2).encode(
        color=alt.Color("color:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        shape=alt.Shape("shape:N", scale=None),
    )
    text = base.mark_text(align="left", dx=10, fontSize=12).encode(text="label:N")
    return alt.layer(mark, text).properties(width=place, height=14, view=alt.ViewBackground(stroke=None))


def _subtitle(table: Table, columns: int) -> list[str]:
    config = table.provenance["config"]
    seeds = len(config["seeds"])
    notes = [
        f"{config['points']} points to a turn, {config['steps']} steps",
        f"{seeds} seed{'s' if seeds > 1 else ''} each",
        "in each panel how they ended (merged: distance below 1% of the start for good)",
        "curves end where rounding hides them",
        "shaken: learned from points beside the circle as well",
    ]
    return lines_of(notes, columns * (SIDE + GAP))
