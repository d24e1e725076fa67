"""A legend of charts that altair draws; it goes with the last of them."""

from collections.abc import Sequence
from typing import Any

from rankscope.plots.backend import alt
from rankscope.plots.paths_marks import rows_chart
from rankscope.plots.style import GRAY, Look

WIDTH = 330


def series_key(series: Look, extra: Sequence[tuple[str, str]] = ()) -> Any:
    """A legend drawn as a row of marks with their names, then the kinds of marks in words."""
    step, rows = 0.0, []
    for name, color, shape in zip(series.names, series.colors, series.shapes, strict=True):
        rows.append({"x": step, "label": name, "color": color, "shape": shape, "fill": color})
        step += 36 + 7 * len(name)
    for label, kind in extra:
        fill = {"filled": GRAY, "hollow": "white"}[kind]
        rows.append({"x": step, "label": label, "color": GRAY, "shape": "circle", "fill": fill})
        step += 36 + 7 * len(label)
    base = rows_chart(rows).encode(
        x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 2 * WIDTH + 80], nice=False))
    )
    mark = base.mark_point(size=60, opacity=1, strokeWidth=1.4).encode(
        color=alt.Color("color:N", scale=None),
        fill=alt.Fill("fill:N", scale=None),
        shape=alt.Shape("shape:N", scale=None),
    )
    text = base.mark_text(align="left", dx=9, fontSize=12).encode(text="label:N")
    return alt.layer(mark, text).properties(
        width=2 * WIDTH + 80, height=16, view=alt.ViewBackground(stroke=None)
    )
