"""The figure ``wu-masks``: mu(X) beside mu(X)/||X||_F for every norm, and the value map that keeps tokens apart."""

from typing import Any

import polars as pl

from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_marks import finished
from rankscope.plots.style import look
from rankscope.plots.wu_curves import (
    TITLES,
    WIDTH,
    drawn_panel,
    panel_of,
    series_key,
    summarized,
)
from rankscope.results import Table

DEEPEST = -40.0
"""The axis ends here: the complete mask leaves it within a few layers, the causal one just reaches it."""


def masks_chart(table: Table) -> Chart:
    """Rows are norms, columns mu(X) and mu(X)/||X||_F; below, other value maps, and a start that does not collapse."""
    frame = table.frame
    masks = look(table.sections["setting"]["masks"])
    blocks: list[Any] = [series_key(masks, [("split pass", "filled"), ("float32", "hollow")])]
    gaussian = summarized(frame.filter(pl.col("values") == "gaussian"), "mask")
    small = summarized(frame.filter(pl.col("values") == "small"), "mask")
    blocks.append(_pair(gaussian, "none", "no norm", masks))
    blocks.append(_pair(small, "none", "no norm, value maps as small as BERT's", masks))
    blocks.append(_pair(gaussian, "sphere", "unit sphere", masks))
    blocks.append(_pair(gaussian, "layer", "LayerNorm", masks, is_last=True))
    ratio = "residual_ratio[frobenius,mean]"
    others = [
        _panel(
            summarized(frame.filter(pl.col("values") == values), "mask"),
            "sphere",
            ratio,
            f"unit sphere, {values} value maps",
            masks,
            is_last=True,
        )
        for values in ("orthogonal", "identity")
    ]
    blocks.append(alt.hconcat(*others, spacing=26))
    blocks += _kept(frame)
    setting = table.sections["setting"]
    seeds = frame.filter(pl.col("values") == "gaussian")["seed"].n_unique()
    notes = [
        f"dim {setting['dim']}, {setting['tokens']} tokens, one head, {seeds} seeds",
        "line and band: mean of the logarithm over seeds with its 95% interval",
        "shaded: below the rounding floor of float32",
        "lines that leave the axis go on falling",
        "no hollow point where float32 gives exactly 0",
        "value maps N(0, 1/dim) unless named",
    ]
    title = alt.TitleParams(
        "mu and mu over the size of the tokens against depth, by mask, norm and value map",
        subtitle=lines_of(notes, 2 * WIDTH + 80),
    )
    words = "Log-log curves of mu and of mu over the size of X against layers, for four masks, by norm and value maps."
    return finished(alt.vconcat(*blocks, spacing=18).properties(title=title, description=words))


def _pair(points: pl.DataFrame, norm: str, words: str, series: Any, *, is_last: bool = False) -> Any:
    panels = [_panel(points, norm, name, words, series, is_last=is_last) for name in TITLES]
    return alt.hconcat(*panels, spacing=26)


def _panel(points: pl.DataFrame, norm: str, name: str, heading: str, series: Any, *, is_last: bool) -> Any:
    shown = points.filter((pl.col("norm") == norm) & (pl.col("definition") == name))
    return drawn_panel(
        panel_of(shown, heading, deepest=DEEPEST), series, y_title=TITLES[name], is_last=is_last
    )


def _kept(frame: pl.DataFrame) -> list[Any]:
    """The constructed starts: one line per rank, with the sphere and without any norm."""
    shown = frame.filter(pl.col("model") == "constructed").with_columns(
        pl.format("rank {} at the start", "rank").alias("start")
    )
    if shown.is_empty():
        return []
    points = summarized(shown, "start")
    series = look(points["series"].unique(maintain_order=True).to_list())
    name = "residual_ratio[frobenius,mean]"
    values = shown["values"][0]
    panels = [
        _panel(points, norm, name, f"{words}, value map {values}, causal", series, is_last=True)
        for norm, words in (("sphere", "unit sphere"), ("none", "no norm"))
    ]
    return [series_key(series), alt.hconcat(*panels, spacing=26)]
