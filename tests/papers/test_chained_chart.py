"""The picture of chained attention: made of a synthetic table, checked by what it holds."""

import json
import math

import numpy as np
import polars as pl
import pytest

from rankscope.plots import svg
from rankscope.plots.chained_chart import ORDERS, box_rows, chained_chart, fitted
from rankscope.results import Table

DEFINITIONS = ("rank_one_ratio[composite,svd]", "residual_ratio[composite,mean]", "residual_ratio[linf,mean]")
DEPTHS, PATHS = 5, 9


def logs(depth: int) -> list[float]:
    return [-4.0 * depth + 0.1 * path for path in range(PATHS)]


def frame(*, plain: float = 1.0, model: str = "a") -> pl.DataFrame:
    """``plain``: by which factor ordinary products are off at the last depth."""
    blocks = [
        pl.DataFrame(
            {
                "model": model, "weights": "initial", "seed": 0, "order": order, "definition": name, "start": 1,
                "depth": depth, "path": list(range(PATHS)), "log10_value": logs(depth),
                "float_value": [10**log * (plain if depth == DEPTHS else 1.0) for log in logs(depth)[:3]]
                + [None] * (PATHS - 3),
            }
        )
        for order in ORDERS
        for name in DEFINITIONS
        for depth in range(1, DEPTHS + 1)
    ]  # fmt: skip
    return pl.concat(blocks)


def own(whole: pl.DataFrame) -> pl.DataFrame:
    return whole.filter(pl.col("definition") == DEFINITIONS[0])


def test_boxes_are_quantiles_over_paths() -> None:
    rows = box_rows(own(frame()))
    assert len(rows) == 2 * DEPTHS
    for row in rows:
        wanted = np.quantile(logs(row["depth"]), [0.05, 0.25, 0.5, 0.75, 0.95])
        found = [row[name] for name in ("low", "first", "median", "third", "high")]
        assert found == pytest.approx(wanted.tolist())
        assert row["left"] < row["x"] < row["right"]
        assert (row["x"] < row["depth"]) == (row["series"] == ORDERS["true"])
    sides = [row for row in rows if row["depth"] == 1]
    assert sides[0]["right"] <= sides[1]["left"]  # boxes of the two orders do not overlap


def test_ordinary_products_are_drawn_only_where_they_are_off() -> None:
    assert [row["plain"] for row in box_rows(own(frame()))] == [None] * (2 * DEPTHS)
    shown = {row["depth"]: row["plain"] for row in box_rows(own(frame(plain=100.0)))}
    assert shown == {1: None, 2: None, 3: None, 4: None, 5: pytest.approx(np.median(logs(5)[:3]) + 2)}


def test_the_line_is_fitted_to_the_true_order() -> None:
    turned = (
        pl.when(pl.col("order") == "notebook")
        .then(pl.col("log10_value") * 3)
        .otherwise(pl.col("log10_value"))
    )
    line = fitted(own(frame()).with_columns(turned.alias("log10_value")))
    assert [row["x"] for row in line] == [1, DEPTHS]
    assert [row["slope"] for row in line] == pytest.approx([-4.0, -4.0])
    assert [row["y"] for row in line] == pytest.approx([-4.0 + 0.4, -20.0 + 0.4])
    assert fitted(own(frame()).filter(pl.col("depth") == 1)) == []


def table(whole: pl.DataFrame) -> Table:
    columns = {name: whole[name].to_list() for name in whole.columns}
    values = [10**log for log in columns["log10_value"]]
    return Table.from_columns(
        {**columns, "measure": "ratio", "value": values, "floor": 0.0},
        provenance={},
        command="reproduce",
        sections={"setting": {"paths": PATHS, "tokens": 8, "texts": 1}},
    )


def test_a_row_of_panels_per_model_and_a_column_per_distance() -> None:
    later = frame(model="late").with_columns(start=pl.lit(2, dtype=pl.Int32), log10_value=pl.lit(7.0))
    shallow = frame(model="b").filter(pl.col("depth") <= 3).with_columns(pl.col("log10_value") / 10)
    whole = pl.concat([frame(), shallow, later], how="vertical_relaxed")
    drawn = chained_chart(table(whole)).to_dict()
    titles = [panel["title"]["text"] for row in drawn["vconcat"][1:] for panel in row["hconcat"]]
    assert titles == [
        "a, initial weights: to the best rank one (SVD)", "a, initial weights: to the mean row",
        "b, initial weights: to the best rank one (SVD)", "b, initial weights: to the mean row",
    ]  # fmt: skip
    text = json.dumps(drawn)
    assert "late" not in text  # chains that start later are in the table alone
    shaded = [
        sum(layer["mark"].get("opacity") == 0.18 for layer in panel["layer"])
        for row in drawn["vconcat"][1:]
        for panel in row["hconcat"]
    ]
    assert shaded == [1, 1, 0, 0]  # only the deep chains go below rounding
    assert svg(chained_chart(table(whole))).startswith("<svg")


def test_deep_values_stay_on_the_axis() -> None:
    drawn = chained_chart(table(frame())).to_dict()
    (panel, _) = drawn["vconcat"][1]["hconcat"]
    scales = [
        layer["encoding"]["y"]["scale"]["domain"] for layer in panel["layer"] if "y" in layer["encoding"]
    ]
    for low, high in scales:
        assert low < min(logs(DEPTHS))
        assert high > max(logs(1))
        assert math.isfinite(low)
