"""The figures ``dong-*``: the residual ratio against layers by variant, beside the published curves where known."""

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import FLOOR_FILL, GRAY, Look, look
from rankscope.plots.wu_curves import series_key
from rankscope.results import Table

WIDTH, HEIGHT = 330, 230
DEEPEST = -24.0
"""The lower axis ends here: where a layer cubes the residual, the next point would be at 1e-60."""

FALLEN = 0.5
"""A variant is shown against R in layers in which its ratio is below so much of that at layer 0."""

Y_TITLE = "||res(X)|| / ||X||, composite norm"
LINES: dict[str, list[int]] = {"ours": [1, 0], "published": [5, 3], "split": [1, 2]}


def dong_chart(table: Table) -> Chart:
    """Left untrained, right trained weights; above as the paper draws it, below with a logarithmic axis.

    Without trained weights the two panels stand side by side.
    """
    setting = table.sections["setting"]
    names = table.frame["variant"].unique(maintain_order=True).to_list()
    series = look([str(name) for name in names])
    columns = []
    for weights in ("initial", "trained"):
        rows = chart_rows(table, weights)
        if rows:
            heading = _heading(setting, weights)
            columns.append([_panel(rows, series, heading), _log_panel(rows, series)])
    # a single column lies down: both panels side by side
    pairs = zip(*columns, strict=True) if len(columns) > 1 else columns
    blocks = [series_key(series), _line_key(table), *(alt.hconcat(*pair, spacing=30) for pair in pairs)]
    first = [_repeats_panel(rows, series) for rows in repeats_rows(table).values()]
    blocks += [alt.hconcat(*first, spacing=30)] if first else []
    seeds = table.frame["seed"].n_unique() - (setting["trained"] is not None)
    notes = [
        f"{setting['tokens']} tokens, mean over texts",
        f"band: 95% interval of the mean over {seeds} draws" if seeds > 1 else "one draw of the weights",
        "shaded: below the rounding floor of float32",
        "dotted: geometric mean over the first texts alone; lines that leave the axis go on falling",
    ]
    title = alt.TitleParams(
        f"{setting['label']} without skips, without MLPs, without either",
        subtitle=lines_of(notes, 2 * WIDTH + 80),
    )
    words = "Ratio of the residual to the tokens against layers for four variants of one model."
    return finished(alt.vconcat(*blocks, spacing=14).properties(title=title, description=words))


def chart_rows(table: Table, weights: str) -> list[Row]:
    """One row per kind of line, variant and layer: value and its logarithm with the ends of its band, and the floor."""
    frame = table.frame.filter(pl.col("weights") == weights)
    if frame.is_empty():
        return []
    bands = {
        (curve["variant"], layer): one
        for curve in table.sections["curves"]
        if curve["weights"] == weights
        for layer, one in enumerate(curve["layers"])
    }
    floors = dict(
        frame.filter(pl.col("arithmetic") == "float32").select("layer", "floor").unique().iter_rows()
    )
    rows = [
        _row("ours", variant, layer, one["mean"], (one["low"], one["high"]), floors[layer])
        for (variant, layer), one in bands.items()
    ]
    rows += [
        _row("published", one["variant"], one["layer"], one["published"], (None, None), None)
        for one in table.sections["published"]
        if one["weights"] == weights and _applies(table, weights)
    ]
    return rows + _split_rows(frame)


def _applies(table: Table, weights: str) -> bool:
    """Published curves of trained weights stand beside those of the same model only."""
    return weights == "initial" or any(
        one["ours"] is not None for one in table.sections["published"] if one["weights"] == weights
    )


def _row(
    kind: str,
    variant: str,
    layer: int,
    value: float,
    band: tuple[float | None, float | None],
    floor: float | None,
) -> Row:
    low, high = (value if end is None else end for end in band)
    least = value / 10  # an interval may reach below zero, which has no logarithm
    return {
        "kind": kind,
        "series": variant,
        "layer": layer,
        "value": value,
        "low": max(low, 0.0),
        "high": min(high, 1.0),
        "log": _log(value),
        "log_low": _log(max(low, least)),
        "log_high": _log(min(high, 1.0)),
        "floor": None if floor is None else _log(floor),
    }


def _split_rows(frame: pl.DataFrame) -> list[Row]:
    """Mean logarithm by the split pass, up to the first point beyond the axis."""
    exact = frame.filter(pl.col("arithmetic") == "split")
    if exact.is_empty():
        return []
    means = exact.group_by("variant", "layer", maintain_order=True).agg(pl.col("log10_value").mean())
    rows, gone = list[Row](), set[str]()
    for one in means.sort("layer").iter_rows(named=True):
        if one["variant"] not in gone:
            log = max(one["log10_value"], 4 * DEEPEST)
            rows.append({"kind": "split", "series": one["variant"], "layer": one["layer"], "log": log})
        if one["log10_value"] < DEEPEST:
            gone.add(one["variant"])
    return rows


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else DEEPEST


def _heading(setting: dict[str, Any], weights: str) -> str:
    if weights == "initial":
        return "untrained weights"
    other = "" if setting["is_paper"] else "of another model"
    return f"trained weights {other}: {setting['trained']}".replace(" :", ":")


def _panel(rows: Sequence[Row], series: Look, heading: str) -> Any:
    scale = alt.Scale(domain=[0, 1.02], nice=False)
    axis = alt.Axis(title=Y_TITLE, tickCount=6, domain=False)

    def height(name: str) -> Any:
        return alt.Y(f"{name}:Q", scale=scale, axis=axis)

    shown = [row for row in rows if row["kind"] != "split"]
    marks = _marks(shown, series, height("value"), (height("low"), "high:Q"))
    return alt.layer(*marks).properties(
        width=WIDTH, height=HEIGHT, title=alt.TitleParams(heading, fontSize=12, anchor="middle", offset=6)
    )


def _log_panel(rows: Sequence[Row], series: Look) -> Any:
    bottom = max(DEEPEST, min(row["log"] for row in rows) - 1)
    scale = alt.Scale(domain=[bottom, 0.3], nice=False, zero=False)
    axis = log_axis(log_ticks(bottom, 0.3), title=f"{Y_TITLE} (log)", domain=False)

    def height(name: str) -> Any:
        return alt.Y(f"{name}:Q", scale=scale, axis=axis)

    floors = {row["layer"]: row["floor"] for row in rows if row["kind"] == "ours"}
    base = rows_chart([{"layer": layer, "floor": floor} for layer, floor in sorted(floors.items())]).encode(
        x=_layers(rows)
    )
    marks = [
        base.mark_area(color=FLOOR_FILL, opacity=0.18, clip=True).encode(
            y=height("floor"), y2=alt.datum(bottom)
        ),
        base.mark_line(color=GRAY, strokeDash=[4, 3], strokeWidth=1, clip=True).encode(y=height("floor")),
    ]
    marks += _marks(rows, series, height("log"), (height("log_low"), "log_high:Q"))
    return alt.layer(*marks).properties(width=WIDTH, height=HEIGHT)


def _layers(rows: Sequence[Row]) -> Any:
    last = max(row["layer"] for row in rows)
    axis = alt.Axis(
        values=list(range(0, last + 1, 2 if last > 8 else 1)), title="layer", grid=False, format="d"
    )
    return alt.X("layer:Q", axis=axis, scale=alt.Scale(domain=[-0.2, last + 0.2], nice=False))


def _marks(rows: Sequence[Row], series: Look, y: Any, band: tuple[Any, str]) -> list[Any]:
    """Bands, then one line per kind and variant, then points: filled ours, hollow the published ones."""
    x = _layers(rows)
    color = alt.Color("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    fill = alt.Fill("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series.names, range=series.shapes), legend=None)
    first = series.names[0]  # drawn broad, since the second often covers it
    bold = {True: {"width": 3.6, "area": 64}, False: {"width": 1.6, "area": 20}}
    sized = [
        row | (bold[row["series"] == first] if row["kind"] == "ours" else {"width": 1.3}) for row in rows
    ]
    kinds = {kind: rows_chart([row for row in sized if row["kind"] == kind]).encode(x=x) for kind in LINES}
    marks = [kinds["ours"].mark_area(opacity=0.18, clip=True).encode(y=band[0], y2=band[1], color=color)]
    for kind, dash in LINES.items():
        line = kinds[kind].mark_line(strokeDash=dash, clip=True)
        marks.append(line.encode(y=y, color=color, strokeWidth=alt.StrokeWidth("width:N", scale=None)))
    hollow = kinds["published"].mark_point(size=52, strokeWidth=1.3, fill="white", opacity=1, clip=True)
    filled = (
        kinds["ours"]
        .mark_point(strokeWidth=0, opacity=1, clip=True)
        .encode(size=alt.Size("area:N", scale=None))
    )
    dots = kinds["split"].mark_point(size=12, strokeWidth=0, opacity=1, clip=True)
    marks += [hollow.encode(y=y, color=color, shape=shape)]
    marks += [one.encode(y=y, fill=fill, shape=shape) for one in (filled, dots)]
    return marks


def repeats_rows(table: Table) -> dict[int, list[Row]]:
    """By layer, what the variants that fall there have at every R; layers in which rounding is in it are left out."""
    floors = {
        one["layer"]: one["floor"]
        for one in table.frame.filter(pl.col("arithmetic") == "float32").iter_rows(named=True)
    }
    theirs = {
        (one["variant"], one["layer"]): one["published"]
        for one in table.sections["published"]
        if one["weights"] == "initial"
    }
    found: dict[int, list[Row]] = {}
    for one in table.sections["repeats"]:
        start = one["layers"][0]["mean"]
        for layer, value in enumerate(one["layers"]):
            if value["mean"] < FALLEN * start:
                ends = {end: value["mean"] if value[end] is None else value[end] for end in ("low", "high")}
                known = {"published": theirs.get((one["variant"], layer))}
                row = {
                    "layer": layer,
                    "series": one["variant"],
                    "repeats": one["repeats"],
                    "value": value["mean"],
                }
                found.setdefault(layer, []).append(row | ends | known)
    return {layer: rows for layer, rows in found.items() if min(row["value"] for row in rows) > floors[layer]}


def _repeats_panel(rows: Sequence[Row], series: Look) -> Any:
    """The ratio of one layer against how often tokens repeat; published values, of an R that is not known, as lines."""
    layer, every = rows[0]["layer"], sorted({row["repeats"] for row in rows})
    highest = max(max(row["high"], row["published"] or 0.0) for row in rows)
    scale = alt.Scale(domain=[0, 1.1 * highest], nice=False)
    axis = alt.Axis(title=f"the same at layer {layer}", tickCount=5, domain=False)

    def place(name: str) -> Any:
        return alt.X(
            f"{name}:Q",
            axis=alt.Axis(values=every, title="R, how often tokens repeat", grid=False, format="~g"),
            scale=alt.Scale(domain=[0, every[-1] + every[0]], nice=False),
        )

    color = alt.Color("series:N", scale=alt.Scale(domain=series.names, range=series.colors), legend=None)
    shape = alt.Shape("series:N", scale=alt.Scale(domain=series.names, range=series.shapes), legend=None)
    base = rows_chart([row | {"last": every[-1] + every[0], "none": 0} for row in rows]).encode(color=color)
    y = alt.Y("value:Q", scale=scale, axis=axis)
    known = base.transform_filter("datum.published != null").mark_rule(strokeDash=LINES["published"])
    return alt.layer(
        known.encode(x=place("none"), x2="last:Q", y=alt.Y("published:Q", scale=scale, axis=axis)),
        base.mark_rule(strokeWidth=1.3).encode(
            x=place("repeats"), y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q"
        ),
        base.mark_line(strokeWidth=1.6).encode(x=place("repeats"), y=y),
        base.mark_point(filled=True, opacity=1, size=46).encode(x=place("repeats"), y=y, shape=shape),
    ).properties(width=WIDTH, height=HEIGHT // 2)


def _line_key(table: Table) -> Any:
    """The kinds of lines in words; the published one only where there is one."""
    words = {
        "ours": "here, float32",
        "published": "published",
        "split": "here, split pass: the residual itself",
    }
    shown = [kind for kind in words if kind != "published" or table.sections["published"]]
    rows, step = list[Row](), 0.0
    for kind in shown:
        rows += [{"x": step + end, "kind": kind, "label": words[kind] if end else ""} for end in (0, 30)]
        step += 60 + 7 * len(words[kind])
    width = 2 * WIDTH + 80
    base = rows_chart(rows).encode(x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, width], nice=False)))
    dash = alt.StrokeDash(
        "kind:N", scale=alt.Scale(domain=list(LINES), range=list(LINES.values())), legend=None
    )
    line = base.mark_line(color=GRAY, strokeWidth=1.8).encode(detail="kind:N", strokeDash=dash)
    text = base.mark_text(align="left", dx=8, fontSize=12).encode(text="label:N")
    return alt.layer(line, text).properties(width=width, height=14, view=alt.ViewBackground(stroke=None))
