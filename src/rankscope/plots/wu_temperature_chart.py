"""The figure ``wu-temperature``: mu(X)/||X||_F against depth, a panel per mask and norm, a line per temperature."""

from typing import Any

import polars as pl

from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import finished
from rankscope.plots.style import Look, look
from rankscope.plots.wu_curves import WIDTH, drawn_panel, panel_of, series_key, summarized
from rankscope.results import Table

DEEPEST = -20.0
RATIO = "residual_ratio[frobenius,mean]"


def temperature_chart(table: Table) -> Chart:
    """Rows are masks, columns no norm and the unit sphere."""
    setting = table.sections["setting"]
    frame = table.frame.filter(pl.col("definition") == RATIO).with_columns(
        pl.format("d_QK = {}", "temperature").alias("term")
    )
    series = look([f"d_QK = {name}" for name in setting["temperatures"]])
    blocks: list[Any] = [series_key(series, [("split pass", "filled"), ("float32", "hollow")])]
    for mask in setting["masks"]:
        points = summarized(frame.filter(pl.col("mask") == mask), "term", by_median=True)
        blocks.append(_row(points, mask, series, is_last=mask == setting["masks"][-1]))
    notes = [
        f"dim {setting['dim']}, {setting['tokens']} tokens, one head, {frame['seed'].n_unique()} seeds",
        "logits divided by sqrt(d_QK)",
        "line and band: median over seeds with its 95% interval, or least to most below six seeds",
        "shaded: below the rounding floor of float32",
        "lines that leave the axis go on falling",
        "no hollow point where float32 gives exactly 0",
    ]
    title = alt.TitleParams(
        "Temperature term and collapse, mask by mask",
        subtitle=lines_of(notes, 2 * WIDTH + 80),
    )
    words = "Log-log curves of mu over the size of X against layers for three temperatures, by mask and norm."
    return finished(alt.vconcat(*blocks, spacing=18).properties(title=title, description=words))


def _row(points: pl.DataFrame, mask: str, series: Look, *, is_last: bool) -> Any:
    panels = [
        drawn_panel(
            panel_of(points.filter(pl.col("norm") == norm), f"mask {mask}, {words}", deepest=DEEPEST),
            series,
            y_title="mu(X) / ||X||_F",
            is_last=is_last,
        )
        for norm, words in (("none", "no norm"), ("sphere", "unit sphere"))
    ]
    return alt.hconcat(*panels, spacing=26)
