"""Summaries against plain loops; unresolved cells are marked; different things are never averaged."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.errors import UnknownNameError
from rankscope.findings.pivot import pivot
from rankscope.results import Table, layer_summary
from reference.table_loops import grouped

# Sizes whose squares stay in range, so that the standard deviation of the loop does too.
values = st.none() | st.just(0.0) | st.floats(1e-100, 1e100) | st.floats(-1e100, -1e-100)
rows = st.fixed_dictionaries(
    {
        "variant": st.sampled_from(["san", "transformer", None]),
        "head": st.sampled_from([None, 0, 1]),
        "layer": st.integers(0, 3),
        "seed": st.integers(0, 3),
        "value": values,
        "floor": st.sampled_from([0.0, 1e-15, 1.0]),
    }
)
KEYS = ("variant", "head", "layer")


def table_of(rows, **more):
    names = ("variant", "head", "layer", "seed", "value", "floor")
    columns = {name: [row[name] for row in rows] for name in names}
    return Table.from_columns({"measure": "m", "definition": "m[a]"} | columns | more)


@settings(deadline=None, max_examples=60)
@given(st.lists(rows, min_size=1, max_size=12))
def test_the_layer_summary_equals_a_loop(rows):
    table = table_of(rows)
    found = layer_summary(table)
    expected = grouped(table.frame.to_dicts(), KEYS)
    assert found.height == len(expected)
    assert found["layer"].is_sorted()
    for row in found.to_dicts():
        for name, entry in expected[tuple(row[key] for key in KEYS)].items():
            # Sums of up to twelve terms in another order: a dozen roundings, relative to the largest term.
            scale = max(abs(row["min"] or 0), abs(row["max"] or 0)) if name in ("mean", "std") else 0.0
            slack = 1e-14 * scale + 1e-12 * name.startswith("log")
            assert row[name] == (entry if entry is None else pytest.approx(entry, rel=1e-12, abs=slack))


def curve(**columns):
    base = {"measure": "residual_ratio", "definition": "residual_ratio[composite,mean]", "floor": 1e-14}
    return Table.from_columns(base | columns)


def test_seeds_and_samples_are_averaged_and_nothing_else():
    table = curve(
        value=[1.0, 2.0, 4.0, 8.0],
        seed=[0, 1, 0, 1],
        sample=[0, 1, 0, 1],
        layer=0,
        site=["block"] * 2 + ["mlp"] * 2,
    )
    assert layer_summary(table)["mean"].to_list() == [1.5, 6.0]


def test_the_geometric_mean_reaches_below_the_smallest_float():
    table = curve(value=[0.0, 0.0], log10_value=[-45677.0, -45679.0], floor=0.0, layer=7, seed=[0, 1])
    row = layer_summary(table).to_dicts()[0]
    assert (row["log10_mean"], row["log10_min"], row["log10_max"]) == (-45678.0, -45679.0, -45677.0)
    assert row["share_resolved"] == 1.0


def test_an_added_column_separates_only_when_named():
    table = curve(value=[1.0, 3.0], layer=0, steps=[1, 2])
    assert layer_summary(table)["mean"].to_list() == [2.0]
    assert layer_summary(table, by=["steps"])["mean"].to_list() == [1.0, 3.0]
    with pytest.raises(UnknownNameError, match="unknown column 'stepz'; did you mean 'steps'"):
        layer_summary(table, by=["stepz"])


def test_pivot_has_one_line_per_network_and_one_column_per_layer():
    table = curve(
        variant=["transformer", "transformer", "san", "san"] * 2, mask="full", norm="none",
        seed=[0, 1] * 4, layer=[0] * 4 + [10] * 4, value=[1.0, 3.0, 0.5, 0.5, 2.0, 4.0, 1e-16, 1e-3],
    )  # fmt: skip
    found = pivot(table)
    assert found.columns == ["variant", "mask", "norm", "definition", "0", "10"]
    assert found["variant"].to_list() == ["transformer", "san"]
    assert found["0"].to_list() == ["1.7", "0.5"]  # sqrt(1 * 3): ratios have geometric means
    assert found["10"].to_list() == ["2.8", "3.2e-10*"]


def test_pivot_takes_the_arithmetic_mean_of_what_layers_do_not_multiply():
    table = Table.from_columns(
        {
            "measure": "cosine",
            "definition": "cosine[off_diagonal]",
            "value": [1.0, -0.5],
            "floor": 0.0,
            "layer": 0,
        }
    )
    assert pivot(table)["0"].to_list() == ["0.25"]
    zero = curve(value=[0.0, 1e-2], floor=1e-6, layer=0)
    assert pivot(zero)["0"].to_list() == ["1e-4*"]  # a zero stands at its floor


def test_pivot_orders_layers_as_numbers():
    found = pivot(curve(value=[1.0] * 3, layer=[10, 2, 0]))
    assert found.columns[-3:] == ["0", "2", "10"]


def test_pivot_keeps_models_sites_and_heads_apart():
    table = curve(value=[1.0, 3.0], layer=0, site=["block", "mlp"], model="gpt2")
    found = pivot(table)
    assert found.columns == ["variant", "mask", "norm", "site", "definition", "0"]
    assert found["0"].to_list() == ["1", "3"]
    assert pivot(table, rows=["model"])["0"].to_list() == ["1.7"]


def test_pivot_shows_what_is_missing():
    table = curve(value=[1.0, math.nan, 2.0], layer=[0, 1, 2], variant=["san", "san", "transformer"])
    found = pivot(table, rows=["variant"], digits=3)
    assert found.rows() == [("san", "1", "-*", None), ("transformer", None, None, "2")]


def test_pivot_across_another_column():
    table = curve(value=[1.0, 2.0], layer=[1, 1], head=[0, 1])
    assert pivot(table, rows=["layer"], across="head").rows() == [(1, "1", "2")]
    with pytest.raises(UnknownNameError, match="unknown column 'heads'"):
        pivot(table, across="heads")


def test_pivot_of_an_empty_table_is_empty():
    assert pivot(Table.from_records([])).height == 0
