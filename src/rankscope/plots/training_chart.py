"""Loss and scores of a training by epoch, with the scores it is to be compared with."""

from typing import Any

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.paths_marks import rows_chart
from rankscope.plots.style import GRAY, INK, PALETTE, configured
from rankscope.results import Table

WIDTH, HEIGHT = 620, 230
NAMES = {"train_score": "in training", "test_score": "held out"}
APART = 0.05
"""Part of the height that two labels of lines keep between them."""


def training_chart(table: Table) -> Chart:
    """Scores above, with dashed lines for guessing and ceilings, the loss below on a logarithmic axis."""
    found = table.sections["training"]
    rows = [
        {"epoch": row["epoch"], "name": row["measure"], "value": row["value"]}
        for row in table.frame.iter_rows(named=True)
        if row["value"] is not None
    ]
    if not rows:
        raise ConfigError("nothing to draw: no epoch was trained; ask for at least one with --epochs")
    title = alt.TitleParams(
        f"{found['task']}: {found['score']:.4f} after {found['epochs']} epochs",
        subtitle=[found["about"], f"score: {found['scored']}"],
    )
    whole = alt.vconcat(_scores(rows, found["lines"]), _loss(rows), spacing=14).properties(title=title)
    return configured(whole)


def _scores(rows: list[dict[str, Any]], lines: dict[str, float]) -> Any:
    curves = [{**row, "series": NAMES[row["name"]]} for row in rows if row["name"] in NAMES]
    values = [row["value"] for row in curves] + list(lines.values())
    scale = alt.Scale(domain=[min(0.0, *values), max(1.0, *values)], nice=False)
    y = alt.Y("value:Q", title="score", scale=scale)
    color = alt.Color(
        "series:N",
        scale=alt.Scale(domain=list(NAMES.values()), range=[PALETTE[1], PALETTE[0]]),
        legend=alt.Legend(title=None, orient="top"),
    )
    line = rows_chart(curves).mark_line(point=len({row["epoch"] for row in curves}) < 60, strokeWidth=2)
    named = _spread(
        [{"value": value, "words": f"{name} {value:.3g}"} for name, value in lines.items()], scale.domain
    )
    layers = [line.encode(x=_x(rows), y=y, color=color)]
    if named:
        base = rows_chart(named)
        layers.append(base.mark_rule(strokeDash=[5, 4], color=GRAY).encode(y=y))
        words = base.mark_text(align="left", color=INK, fontSize=11, dx=6)
        layers.append(words.encode(x=alt.value(WIDTH), y=alt.Y("label:Q", scale=scale), text="words:N"))
    return alt.layer(*layers).properties(width=WIDTH, height=HEIGHT)


def _spread(named: list[dict[str, Any]], domain: Any) -> list[dict[str, Any]]:
    """The lines with places for their labels that do not overlap, from below."""
    step, before = APART * (domain[1] - domain[0]), float("-inf")
    placed = []
    for row in sorted(named, key=lambda row: float(row["value"])):
        before = max(row["value"], before + step)
        placed.append({**row, "label": before})
    return placed


def _loss(rows: list[dict[str, Any]]) -> Any:
    curve = [row for row in rows if row["name"] == "loss"]
    kind: Any = "log" if min(row["value"] for row in curve) > 0 else "linear"
    y = alt.Y("value:Q", title="loss", scale=alt.Scale(type=kind, nice=False), axis=alt.Axis(format="~g"))
    line = rows_chart(curve).mark_line(color=PALETTE[2], strokeWidth=2)
    return line.encode(x=_x(rows), y=y).properties(width=WIDTH, height=HEIGHT // 2)


def _x(rows: list[dict[str, Any]]) -> Any:
    last = max(row["epoch"] for row in rows)
    return alt.X(
        "epoch:Q", title="epoch", scale=alt.Scale(domain=[0, last], nice=False), axis=alt.Axis(format="d")
    )
