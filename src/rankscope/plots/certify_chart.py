"""A certificate as a picture: the band in which the residual is proven to lie, and what was measured inside it."""

from typing import Any

from rankscope.plots.axes import log_axis
from rankscope.plots.backend import Chart, alt
from rankscope.plots.certify_panels import (
    Panel,
    Row,
    arrow_rows,
    band_rows,
    label_rows,
    line_rows,
    panels_of,
)
from rankscope.plots.curve_marks import layer_axis, lines_of
from rankscope.plots.paths_marks import finished, rows_chart
from rankscope.plots.scan_entries import clipped, label
from rankscope.plots.style import GRAY, INK
from rankscope.results import Table
from rankscope.results.certify_lines import power_text, subject

WIDTH, HEIGHT = 300, 250
COLUMNS = 3
PROVEN, PRINTED, VACUOUS = "#0072B2", "#D55E00", "#9a9a9a"
COLORS = {"measured": INK, "upper": PROVEN, "lower": PROVEN, "bound": PRINTED}


def certify_chart(table: Table, *, title: str | None = None) -> Chart:
    """A panel per definition over layers: proven band, measured line, printed bound dashed, vacuous pieces gray.

    Over several texts the band holds of every one of them: the least lower bound to the largest upper one. Numbers
    beyond the axis stand at its edge as triangles. Far below 1e-60 ticks are ten times as many decades apart each.
    """
    panels = panels_of(table)
    drawn = [_figure(panel) for panel in panels]
    rows = [alt.hconcat(*drawn[at : at + COLUMNS], spacing=18) for at in range(0, len(drawn), COLUMNS)]
    whole: Any = rows[0] if len(rows) == 1 else alt.vconcat(*rows, spacing=24)
    about = table.sections.get("certify") or {}
    name = clipped(subject(about))
    heading = alt.TitleParams(
        title or f"What is proven of {name}",
        subtitle=lines_of(_notes(table, panels), (WIDTH + 130) * min(len(panels), COLUMNS)),
    )
    return finished(whole.properties(title=heading, description=certify_words(table)))


def certify_charts(table: Table) -> list[Chart]:
    """The panels one by one, each a figure of its own."""
    found = []
    for panel in panels_of(table):
        title = alt.TitleParams(
            label(panel.definition), subtitle=lines_of(_notes(table, [panel]), WIDTH + 130)
        )
        words = f"Proven bounds of {panel.definition} by layer."
        found.append(finished(_figure(panel).properties(title=title, description=words)))
    return found


def certify_words(table: Table) -> str:
    """Alternative text: the verdict."""
    found = (table.sections.get("finding") or {}).get("words") or []
    names = ", ".join(panel.definition for panel in panels_of(table))
    return " ".join([f"Proven bounds of {names} by layer.", *map(str, found)])


def _figure(panel: Panel) -> Any:
    axis = log_axis(
        panel.ticks,
        title="value (log scale of the exponent)" if panel.is_deep else "value (log scale)",
        domain=False,
    )
    scale = alt.Scale(domain=[panel.bottom, panel.top], nice=False, zero=False)
    x = layer_axis(0, panel.last)

    def base(rows: list[Row]) -> Any:
        return rows_chart(rows).encode(x=x)

    def height(field: str) -> Any:
        return alt.Y(f"{field}:Q", axis=axis, scale=scale)

    marks = [
        _band(base(band_rows(panel)), height),
        _trivial(panel, base, height),
        *_bounds(panel, base, height),
        *_measured(panel, base, height),
        *_arrows(panel, base, height),
        _labels(panel, height),
    ]
    title = alt.TitleParams(label(panel.definition), fontSize=13, offset=6)
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT, title=title)


def _band(base: Any, height: Any) -> Any:
    color = alt.condition("datum.vacuous", alt.value(VACUOUS), alt.value(PROVEN))
    return base.mark_area(opacity=0.16).encode(y=height("low"), y2="high:Q", color=color, detail="piece:N")


def _trivial(panel: Panel, base: Any, height: Any) -> Any:
    rows = [
        {
            "layer": entry["layer"],
            "y": panel.at(entry["trivial"], panel.top),
            "text": power_text(entry["trivial"]),
        }
        for entry in panel.entries
        if entry["trivial"] is not None
    ]
    line = base(rows).mark_line(strokeDash=[1, 3], strokeWidth=1.2, color=GRAY)
    return line.encode(y=height("y"), tooltip=alt.Tooltip("text:N", title="size of the state"))


def _bounds(panel: Panel, base: Any, height: Any) -> list[Any]:
    """Lower and upper bound as lines, the printed one dashed; gray where vacuous."""
    marks = []
    for name, flag, dash in (
        ("upper", "upper_vacuous", [1, 0]),
        ("lower", "lower_vacuous", [1, 0]),
        ("bound", "bound_vacuous", [6, 4]),
    ):
        rows = line_rows(panel, name, flag)
        if not rows:
            continue
        color, dot = (
            alt.condition(f"datum.{one}", alt.value(VACUOUS), alt.value(COLORS[name]))
            for one in ("vacuous", "gray")
        )
        tips = [
            alt.Tooltip("layer:Q"),
            alt.Tooltip("text:N", title="printed bound" if name == "bound" else f"{name} bound"),
            alt.Tooltip("by:N"),
        ]
        line = base(rows).mark_line(strokeWidth=1.6, strokeDash=dash)
        marks.append(line.encode(y=height("y"), color=color, detail="piece:N", tooltip=tips))
        point = base(rows).mark_point(size=18, filled=True, opacity=1)
        marks.append(point.encode(y=height("y"), color=dot, tooltip=tips))
    return marks


def _measured(panel: Panel, base: Any, height: Any) -> list[Any]:
    rows = [
        {
            "layer": entry["layer"],
            "y": panel.at(entry["measured"], panel.bottom),
            "low": panel.at(entry["measured_low"], panel.bottom),
            "high": panel.at(entry["measured_high"], panel.bottom),
            "text": power_text(entry["measured"]),
        }
        for entry in panel.entries
        if entry["measured"] is not None
    ]
    tips = [alt.Tooltip("layer:Q"), alt.Tooltip("text:N", title="measured")]
    line = base(rows).mark_line(strokeWidth=2, color=INK).encode(y=height("y"))
    few = panel.last <= 40
    point = base(rows).mark_point(size=34 if few else 10, filled=True, opacity=1, color=INK)
    spread = base(rows).mark_rule(strokeWidth=1, color=INK, opacity=0.5).encode(y=height("low"), y2="high:Q")
    has_spread = any(row["low"] != row["high"] for row in rows)
    return [*([spread] if has_spread else []), line, point.encode(y=height("y"), tooltip=tips)]


def _arrows(panel: Panel, base: Any, height: Any) -> list[Any]:
    """Triangles at the edge; one layer per shape and color, since both are constants."""
    rows, marks = arrow_rows(panel), []
    kinds = {(row["shape"], VACUOUS if row["vacuous"] else COLORS[row["what"]]) for row in rows}
    for shape, color in sorted(kinds):
        own = [
            row
            for row in rows
            if (row["shape"], VACUOUS if row["vacuous"] else COLORS[row["what"]]) == (shape, color)
        ]
        mark = base(own).mark_point(shape=shape, size=55, filled=True, opacity=1, color=color)
        marks.append(mark.encode(y=height("y"), tooltip=[alt.Tooltip("what:N"), alt.Tooltip("text:N")]))
    return marks


def _labels(panel: Panel, height: Any) -> Any:
    rows = [
        row | {"ink": GRAY if row["vacuous"] else COLORS[row["what"]]} for row in label_rows(panel, HEIGHT)
    ]
    text = rows_chart(rows).mark_text(align="left", baseline="middle", dx=8, fontSize=11)
    return text.encode(
        x=alt.value(WIDTH), y=height("y"), text="text:N", color=alt.Color("ink:N", scale=None, legend=None)
    )


def _notes(table: Table, panels: list[Panel]) -> list[str]:
    about = table.sections.get("certify") or {}
    notes = [f"{about[name]}" for name in ("variant",) if about.get(name)]
    texts = about.get("texts", 1) * about.get("seeds", 1)
    if texts > 1:
        notes.append(f"{texts} texts: the bounds hold of every one, the line is the geometric mean")
    notes.append("band: proven, from the lower to the upper bound")
    notes.append("dotted: size of the state")
    entries = [entry for panel in panels for entry in panel.entries]
    if any(entry["upper_vacuous"] or entry["bound_vacuous"] for entry in entries):
        notes.append("gray: vacuous, not below the size of the state")
    if any(entry["bound"] is not None for entry in entries):
        notes.append("dashed: the bound as printed in a paper")
    if any(arrow_rows(panel) for panel in panels):
        notes.append("triangles: beyond the axis")
    return notes
