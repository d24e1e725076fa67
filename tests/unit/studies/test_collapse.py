"""What random networks are known to do."""

import polars as pl
import pytest

from rankscope import CollapseConfig, collapse
from rankscope.errors import ConfigError

PAPER = {"tokens": 16, "dim": 32, "heads": 2, "seeds": tuple(range(40))}


def by_layer(frame: pl.DataFrame, definition: str) -> pl.DataFrame:
    return (
        frame.filter(pl.col("definition") == definition)
        .group_by("layer")
        .agg(
            pl.col("value").mean(),
            pl.col("resolved").any().alias("any"),
            pl.col("resolved").all().alias("all"),
        )
        .sort("layer")
    )


def test_pure_attention_falls_below_its_floor_by_layer_five_for_every_seed() -> None:
    frame = collapse(CollapseConfig(layers=6, **PAPER)).table.frame
    for definition in ("residual_ratio[composite,mean]", "residual[frobenius,mean]"):
        found = by_layer(frame, definition)
        assert found["all"][:3].all(), "the fall itself is resolved"
        assert not found["any"][5:].any(), "nothing below the floor is presented as real"


def test_skips_slow_the_fall_and_keep_it_resolved() -> None:
    frame = collapse(CollapseConfig(layers=12, variants=("san+skip",), **PAPER)).table.frame
    found = by_layer(frame, "residual_ratio[composite,mean]")
    assert found["all"].all()
    # forty seeds; the means are .55 and .20, their standard errors about .02
    assert found["value"][6] == pytest.approx(0.5, abs=0.1)
    assert found["value"][12] == pytest.approx(0.2, abs=0.08)


def test_rows_of_a_seed_do_not_depend_on_what_runs_beside_it() -> None:
    wide = collapse(
        CollapseConfig(
            layers=3, dim=8, tokens=5, masks=("full", "causal"), variants=("san", "transformer"), seeds=(0, 5)
        )
    ).table.frame
    alone = collapse(CollapseConfig(layers=3, dim=8, tokens=5, masks=("causal",), seeds=(5,))).table.frame
    same = wide.filter((pl.col("mask") == "causal") & (pl.col("variant") == "san") & (pl.col("seed") == 5))
    assert same["value"].to_list() == pytest.approx(alone["value"].to_list(), rel=1e-12)


def test_rezero_without_skips_is_zero_over_zero_and_so_null() -> None:
    frame = collapse(CollapseConfig(layers=2, dim=8, heads=2, tokens=5, init="rezero")).table.frame
    ratios = frame.filter((pl.col("measure") == "residual_ratio") & (pl.col("layer") > 0))
    assert ratios["value"].is_null().all()
    assert not ratios["resolved"].any()


def test_overflow_is_null_and_unresolved() -> None:
    frame = collapse(
        CollapseConfig(layers=60, dim=8, heads=2, tokens=5, variants=("transformer",), dtype="float16")
    ).table.frame
    assert frame["value"].is_null().any()
    assert not frame.filter(pl.col("value").is_null())["resolved"].any()


def test_lower_precision_has_a_higher_floor_and_stops_being_resolved_earlier() -> None:
    last = {}
    for dtype in ("float64", "float32", "bfloat16"):
        frame = collapse(
            CollapseConfig(layers=6, dtype=dtype, measures=("residual_ratio",), **PAPER)
        ).table.frame
        last[dtype] = frame.filter(pl.col("resolved"))["layer"].max()
    assert last["float64"] >= last["float32"] >= last["bfloat16"]
    assert last["float64"] > last["bfloat16"]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    config = CollapseConfig(layers=1, dim=4, heads=1, tokens=3, masks=("full", "causal"), seeds=(0, 1))
    collapse(config, advance=lambda done, total: told.append((done, total)))
    assert told == [(2, 4), (4, 4)]


def test_maps_are_not_measured_here() -> None:
    with pytest.raises(ConfigError, match="token states"):
        collapse(measures=("dobrushin",))
