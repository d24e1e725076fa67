"""The chart of blame: bars that stack to what the table says, nothing drawn that is not resolved, any depth."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rankscope.errors import ConfigError
from rankscope.plots import blame_chart, description, save_figure
from rankscope.results import Table

STEPS = {"norm": 0.1, "attention": -2.0, "skip": 1.5, "norm.2": -0.1, "mlp": -0.25, "skip.2": 0.5}


def table(blocks: int, *, samples: int = 2, **columns: object) -> Table:
    rows = [
        {
            **{
                "model": "m",
                "variant": "transformer",
                "layer": block,
                "site": "block",
                "part": site,
                "sample": sample,
            },
            **{"measure": "blame", "definition": "blame[residual_ratio[frobenius,mean]]", "floor": 1e-12},
            **{"stage": stage, "value": change * block + sample, "resolved": True},
        }
        for block in range(1, blocks + 1)
        for stage, (site, change) in enumerate(STEPS.items(), start=1)
        for sample in range(samples)
    ]
    frame = pl.DataFrame(rows).with_columns(pl.lit(value).alias(name) for name, value in columns.items())
    return Table(frame=frame)


def bars(chart: Any) -> pl.DataFrame:
    spec = chart.to_dict()
    return pl.DataFrame(spec["data"].get("values") or spec["datasets"][spec["data"]["name"]])


@pytest.mark.parametrize("blocks", [1, 12, 48])
def test_any_number_of_blocks_renders_with_legible_labels(blocks: int, tmp_path: Path) -> None:
    chart = blame_chart(table(blocks))
    save_figure(chart, tmp_path / "blame.png")
    assert (tmp_path / "blame.png").stat().st_size > 5_000
    spec = chart.to_dict()
    assert len(spec["layer"][0]["encoding"]["x"]["axis"]["values"]) <= 16
    assert spec["layer"][0]["mark"]["size"] >= 10
    assert bars(chart).height == 6 * blocks


def test_bars_are_means_over_samples_in_order_of_execution() -> None:
    found = bars(blame_chart(table(3)))
    second = found.filter(pl.col("layer") == 2)
    assert second["part"].to_list() == list(STEPS)
    assert second["kind"].to_list() == ["norm", "attention", "skip", "norm", "mlp", "skip"]
    assert second["change"].to_list() == pytest.approx([2 * change + 0.5 for change in STEPS.values()])
    assert second["together"].to_list() == pytest.approx([2 * sum(STEPS.values()) + 3.0] * 6)


def test_a_block_is_drawn_from_the_texts_of_which_all_is_known() -> None:
    frame = table(4).frame
    is_first = (pl.col("layer") == 3) & (pl.col("part") == "attention") & (pl.col("sample") == 0)
    floor = pl.when(is_first | (pl.col("layer") == 4)).then(None).otherwise(pl.col("floor")).alias("floor")
    chart = blame_chart(Table(frame=frame.with_columns(floor)))
    third = bars(chart).filter(pl.col("layer") == 3)
    assert third["part"].to_list() == list(STEPS)
    assert third["change"].to_list() == pytest.approx([3 * change + 1 for change in STEPS.values()])
    assert third["together"].to_list() == pytest.approx([third["change"].sum()] * 6)
    assert bars(chart).filter(pl.col("layer") == 4).is_empty()
    spec = chart.to_dict()
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [1, 2, 3, 4]
    assert "18 changes not above the rounding floor left out" in " ".join(spec["title"]["subtitle"])


def test_networks_get_panels_with_axes_of_their_own() -> None:
    both = Table.concat([table(3, variant="transformer"), table(3, variant="san")])
    chart = blame_chart(both)
    spec = chart.to_dict()
    assert spec["facet"]["row"]["sort"] == ["transformer", "san"]
    assert spec["resolve"]["scale"]["y"] == "independent"
    assert bars(chart)["panel"].unique(maintain_order=True).to_list() == ["transformer", "san"]


def test_words_and_colors_are_the_same_in_every_figure() -> None:
    chart = blame_chart(table(2, samples=1), title="tiny")
    assert description(chart) == (
        "tiny. Change of the log residual ratio in blocks 1 to 2, summed by part: "
        "attention -6, mlp -0.75, skip +6, norm +0."
    )
    scale = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert scale["domain"] == ["attention", "mlp", "skip", "norm", "all parts together"]
    only = table(2).frame.filter(pl.col("part").is_in(["skip", "mlp"]))
    odd = only.with_columns(pl.col("part").replace("mlp", "attention+mlp"))
    other = blame_chart(Table(frame=odd)).to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert other["domain"] == ["skip", "attention+mlp", "all parts together"]
    assert other["range"][0] == scale["range"][2]
    assert other["range"][1] not in scale["range"]


def test_nothing_to_draw_is_said() -> None:
    other = Table.from_columns({"measure": "residual", "definition": "residual", "value": 1.0, "floor": 0.0})
    with pytest.raises(ConfigError, match="no rows of the measure blame"):
        blame_chart(other)
    with pytest.raises(ConfigError, match="no change is above the rounding floor"):
        blame_chart(table(2, floor=None))
