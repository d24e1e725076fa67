"""Pictures of an ablation: one line per cut of the model, and below them what each part is to blame for."""

import copy
from dataclasses import replace
from typing import Any

import polars as pl

from rankscope.plots.backend import Chart, alt
from rankscope.plots.blame_chart import blame_chart
from rankscope.plots.curves import layer_curves
from rankscope.plots.files import description
from rankscope.plots.split_curves import split_curves
from rankscope.plots.style import configured
from rankscope.results import Table


def ablate_chart(table: Table) -> Chart:
    """The curves of all measures and, where parts were blamed, the bars of blame, in one picture."""
    charts = ablate_charts(table)
    if len(charts) == 1:
        return charts[0]
    # a chart inside another cannot have settings of its own, so they are taken off and set once for all
    plain: list[Any] = [copy.copy(chart) for chart in charts]
    for chart in plain:
        chart.config = alt.Undefined
    whole: Any = alt.vconcat(*plain, spacing=40).resolve_scale(color="independent", shape="independent")
    return configured(whole.properties(description=" ".join(map(description, charts))))


def ablate_charts(table: Table) -> list[Chart]:
    """The same as pictures of their own."""
    charts = [ablate_curves(table)]
    is_blamed = bool((table.frame["measure"] == "blame").any())
    return [*charts, blame_chart(table)] if is_blamed else charts


def ablate_curves(table: Table, *, definition: str | None = None, title: str | None = None) -> Chart:
    """Value against layer, one line per variant and skip scale, a panel per mask; see ``layer_curves``.

    With the columns of a split pass the residual itself is drawn; see ``split_curves``.
    """
    drawn = cuts_named(table)
    draw = split_curves if "float_value" in table.frame.columns else layer_curves
    return draw(drawn, definition=definition, title=title)


def cuts_named(table: Table) -> Table:
    """The measured states, with the skip scale as part of the variant's name wherever scales differ.

    Whoever groups rows by the fixed columns then keeps cuts apart that differ in the scale alone.
    """
    frame = table.frame.filter(pl.col("measure") != "blame")
    if frame["skip_scale"].n_unique() > 1:
        scale = pl.col("skip_scale").map_elements(lambda value: f"{value:g}", return_dtype=pl.String)
        named = pl.format("{}, skip {}", "variant", scale).fill_null(pl.col("variant"))
        frame = frame.with_columns(named.alias("variant"))
    return replace(table, frame=frame)
