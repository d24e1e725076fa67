"""The figure ``long-paths``: networks that were trained for long paths, whole and by their paths of one length."""

from typing import Any

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import LENGTH_TITLE, Row, finished, rows_chart
from rankscope.plots.style import GRAY, Look, look
from rankscope.results import Table

WIDTH, HEIGHT, STEP = 300, 190, 30
ACCURACY = "token_accuracy"
KINDS = {"full": "whole network", "without skips": "its skips taken out"}
READINGS = {
    "frozen": "frozen: maps and norms of the whole network",
    "isolated": "isolated: each path run again",
}
APART = 0.07
"""Lengths between the intervals of two lines at one length."""

DEEPEST = -16.5
"""Ratios of a float64 network end at rounding, about here."""


def long_paths_chart(table: Table) -> Chart:
    """Accuracy of whole networks on top; accuracy and residual of paths of one length below, by two readings."""
    setting, entries = table.sections["setting"], table.sections["over_seeds"]
    variants = look(list(setting["variants"]))
    lines = {str(name): float(value) for name, value in table.sections["lines"].items()}
    level = max(lines, key=lambda name: lines[name])
    rows: list[Any] = [_whole(entries, variants, lines[level])]
    for is_accuracy in (True, False):
        panels = [
            _by_length(entries, mode, variants, lines[level], is_accuracy=is_accuracy, is_first=place == 0)
            for place, mode in enumerate(READINGS)
        ]
        rows.append(alt.hconcat(*panels, spacing=26))
    notes = [
        f"sorting, {setting['layers']} layers, {setting['heads']} heads, {setting['dim']} channels",
        f"{entries[0]['count']} seeds; bars: 95% interval of the mean",
        f"dashed: {level}, {lines[level]:.0%}, the most without bringing letters together",
        "residual ratio: Frobenius norm, tokens at length one",
    ]
    if not all(one["resolved"] for one in entries):
        notes.append("hollow: not above the rounding floor")
    title = alt.TitleParams("Training that asks for long paths", subtitle=lines_of(notes, 2 * WIDTH + 120))
    words = (
        "Accuracy of whole networks and of their paths by length, and residual of these, by way of training."
    )
    # the shapes of the first panel and of the others mean different things
    whole = alt.vconcat(*rows, spacing=18).resolve_scale(shape="independent", color="independent")
    return finished(whole.properties(title=title, description=words))


def _whole(entries: list[Row], variants: Look, level: float) -> Any:
    rows = [
        {
            "variant": one["variant"],
            "kind": KINDS[one["mode"]],
            "at": one["mean"],
            "low": one["mean"] if one["low"] is None else max(one["low"], 0.0),
            "high": one["mean"] if one["high"] is None else min(one["high"], 1.0),
        }
        for one in entries
        if one["mode"] in KINDS and one["definition"] == ACCURACY
    ]
    kinds = list(KINDS.values())
    x = alt.X("at:Q", scale=alt.Scale(domain=[0, 1], nice=False), axis=_percent("token accuracy", room=0))
    color = alt.Color("variant:N", scale=alt.Scale(domain=variants.names, range=variants.colors), legend=None)
    base = rows_chart(rows).encode(
        y=alt.Y("variant:N", sort=variants.names, axis=alt.Axis(title=None, labelLimit=260, domain=False)),
        yOffset=alt.YOffset("kind:N", sort=kinds),
        color=color,
    )
    shape = alt.Shape(
        "kind:N",
        scale=alt.Scale(domain=kinds, range=["circle", "triangle-up"]),
        legend=alt.Legend(title=None, orient="top", symbolFillColor=GRAY, symbolStrokeColor=GRAY),
    )
    rule = base.mark_rule(strokeWidth=1.6, opacity=0.7).encode(x=alt.X("low:Q"), x2="high:Q")
    point = base.mark_point(filled=True, size=64, opacity=1).encode(x=x, shape=shape)
    line = rows_chart([{"at": level}]).mark_rule(strokeDash=[6, 4], color=GRAY).encode(x=x)
    return alt.layer(line, rule, point).properties(
        width=WIDTH + 70, height=STEP * len(variants.names), title=_heading("whole networks")
    )


def _by_length(
    entries: list[Row], mode: str, variants: Look, level: float, *, is_accuracy: bool, is_first: bool
) -> Any:
    own = [one for one in entries if one["mode"] == mode and (one["definition"] == ACCURACY) == is_accuracy]
    lengths = sorted({one["length"] for one in own})
    middle = (len(variants.names) - 1) / 2
    rows = [_point(one, APART * (variants.names.index(one["variant"]) - middle), is_accuracy) for one in own]
    height = _accuracy_height(is_first) if is_accuracy else _ratio_height(entries, is_first)
    y = alt.Y("at:Q", **height)
    scale = alt.Scale(domain=[lengths[0] - 0.5, lengths[-1] + 0.5], nice=False, zero=False)
    axis = alt.Axis(title=None if is_accuracy else LENGTH_TITLE, values=lengths, format="d", grid=False)
    colors = alt.Scale(domain=variants.names, range=variants.colors)
    legend = alt.Legend(title=None, orient="top", columns=3, symbolSize=70) if is_accuracy else None
    base = rows_chart(rows).encode(
        x=alt.X("x:Q", scale=scale, axis=axis), color=alt.Color("variant:N", scale=colors, legend=legend)
    )
    dash = alt.StrokeDash(
        "variant:N", scale=alt.Scale(domain=variants.names, range=variants.dashes), legend=None
    )
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=variants.names, range=variants.shapes), legend=None)
    dots = base.encode(y=y, shape=shape)
    point = {"filled": True, "size": 44, "opacity": 1}
    marks = [
        base.mark_rule(strokeWidth=1.4, opacity=0.7, clip=True).encode(
            y=alt.Y("low:Q", **height), y2="high:Q"
        ),
        base.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=dash),
        dots.transform_filter("!datum.hollow").mark_point(**point),
        dots.transform_filter("datum.hollow")
        .mark_point(**point, fill="white", strokeWidth=1.4)
        .encode(stroke=alt.Stroke("variant:N", scale=colors, legend=None)),
    ]
    if is_accuracy:
        marks.insert(0, rows_chart([{"at": level}]).mark_rule(strokeDash=[6, 4], color=GRAY).encode(y=y))
    heading = _heading(READINGS[mode]) if is_accuracy else alt.TitleParams("")
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT, title=heading)


def _point(one: Row, offset: float, is_accuracy: bool) -> Row:
    least, most = (0.0, 1.0) if is_accuracy else (DEEPEST, 0.0)
    ends = {name: one["mean"] if one[name] is None else one[name] for name in ("low", "high")}
    numbers = {"at": one["mean"], **ends}
    return {
        "variant": one["variant"],
        "length": one["length"],
        "x": one["length"] + offset,
        "hollow": not one["resolved"],
        **{name: min(max(value, least), most) for name, value in numbers.items()},
    }


def _accuracy_height(is_first: bool) -> Row:
    axis = _percent("accuracy, paths of one length" if is_first else None)
    return {"scale": alt.Scale(domain=[0, 1.02], nice=False), "axis": axis}


def _ratio_height(entries: list[Row], is_first: bool) -> Row:
    seen = [one["mean"] for one in entries if one["definition"] != ACCURACY and one["mode"] in READINGS]
    low = max(min(seen), DEEPEST) - 0.3
    title = "residual ratio" if is_first else None
    axis = log_axis(log_ticks(low, 0.1), title=title, minExtent=40, maxExtent=40)
    return {"scale": alt.Scale(domain=[low, 0.1], nice=False, zero=False), "axis": axis}


def _percent(title: str | None, *, room: int = 40) -> Any:
    ticks = [0, 0.2, 0.4, 0.6, 0.8, 1]
    return alt.Axis(title=title, format=".0%", values=ticks, domain=False, labelOverlap=False, minExtent=room)


def _heading(words: str) -> Any:
    return alt.TitleParams(words, fontSize=12, anchor="middle", offset=6)
