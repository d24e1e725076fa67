"""A curve the size of a word, as SVG that needs no style sheet."""

from rankscope.plots.markup import Fragment, tag
from rankscope.plots.scan_entries import FINAL
from rankscope.plots.scan_panels import Line, Panel, in_words
from rankscope.plots.style import DASHES, PALETTE

WIDTH, HEIGHT, MARGIN = 240, 56, 4


def sparkline(panel: Panel) -> Fragment:
    """The lines of the panel without axes: the first solid, the others dashed; unresolved points as rings."""
    marks = [tag("title", in_words(panel))]
    for place, line in enumerate(panel.lines):
        color = PALETTE[place % len(PALETTE)]
        spots = _spots(panel, line)
        marks.append(
            tag(
                "polyline",
                points=" ".join(f"{x:.4g},{y:.4g}" for x, y, _ in spots),
                fill="none",
                stroke=color,
                stroke_width=1.8,
                stroke_dasharray=" ".join(map(str, DASHES[place % len(DASHES)])) if place else None,
            )
        )
        marks += [
            tag("circle", cx=f"{x:.4g}", cy=f"{y:.4g}", r=2.2, fill="#fff", stroke=color)
            for x, y, is_resolved in spots
            if not is_resolved
        ]
    return tag(
        "svg", *marks, width=WIDTH, height=HEIGHT, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img",
        style="background:#fff;border:1px solid #d9d9d9;border-radius:4px;max-width:100%",
    )  # fmt: skip


def _spots(panel: Panel, line: Line) -> list[tuple[float, float, bool]]:
    axis = panel.axis()
    across = WIDTH - 2 * MARGIN
    layers = max(1, panel.last - panel.first)
    return [
        (
            MARGIN + across * (entry.layer - panel.first) / layers,
            MARGIN + (HEIGHT - 2 * MARGIN) * axis.depth(entry.mean, entry.floor),
            entry.is_resolved,
        )
        for entry in line.entries
        if entry.mean is not None and entry.site != FINAL
    ]
