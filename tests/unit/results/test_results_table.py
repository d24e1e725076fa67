"""The table keeps its columns, fills its defaults and refuses what it cannot hold."""

import json
import math
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import ConfigError, MissingExtraError, ShapeError, UnknownNameError
from rankscope.results import COLUMNS, Record, Table
from reference.table_loops import filled

DESIGNED = [
    "run",
    "model",
    "variant",
    "semantics",
    "mask",
    "norm",
    "seed",
    "sample",
    "layer",
    "site",
    "head",
    "measure",
    "definition",
    "value",
    "log10_value",
    "floor",
    "resolved",
]


def small(**columns):
    given = {"measure": "residual", "definition": "residual[frobenius,mean]", "value": [1.0], "floor": 1e-15}
    return Table.from_columns(given | columns)


def test_the_fixed_columns_come_in_the_documented_order():
    assert list(COLUMNS) == DESIGNED
    assert small().frame.columns == DESIGNED
    assert dict(small().frame.schema) == {name: dtype() for name, dtype in COLUMNS.items()}


def test_columns_that_do_not_apply_are_null():
    row = small().frame.to_dicts()[0]
    assert [name for name, entry in row.items() if entry is None] == DESIGNED[:11]


@given(st.floats(), st.floats(min_value=0.0) | st.just(math.nan))
def test_defaults_follow_value_and_floor(value, floor):
    row = small(value=[value], floor=[floor]).frame.to_dicts()[0]
    expected = filled(value, floor)
    logarithm = expected.pop("log10_value")
    # The logarithms of the two libraries may differ in the last bit.
    assert row["log10_value"] == (logarithm and pytest.approx(logarithm, rel=4e-16, abs=0))
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize("exponent", [-300, -16, -5, -1, 0, 3, 300])
def test_logarithms_of_powers_of_ten_are_exact(exponent):
    assert small(value=[10.0**exponent]).frame["log10_value"].item() == exponent


def test_a_value_below_the_smallest_float_is_resolved_by_its_logarithm():
    table = small(
        value=[0.0] * 4, log10_value=[-45677.0, -45677.0, -400.0, None], floor=[0.0, 1e-300, 0.0, 0.0]
    )
    assert table.frame["resolved"].to_list() == [True, False, True, False]
    assert table.frame["log10_value"].to_list() == [-45677.0, -45677.0, -400.0, None]


def test_a_null_value_is_never_resolved_even_if_the_caller_says_so():
    table = small(value=[None, math.nan, math.inf, 1.0], floor=[0.0, 0.0, 0.0, math.nan], resolved=True)
    assert table.frame["resolved"].to_list() == [False] * 4


def test_a_caller_may_declare_a_row_unresolved():
    assert small(resolved=[False]).frame["resolved"].to_list() == [False]


def test_records_and_columns_make_the_same_table():
    records = [
        Record(
            measure="residual", definition="residual[frobenius,mean]", value=value, floor=1e-15,
            layer=layer, seed=0, extra={"steps": layer * 2},
        )
        for layer, value in enumerate([1.0, 0.5, 1e-20])
    ]  # fmt: skip
    columns = small(value=np.array([1.0, 0.5, 1e-20]), layer=range(3), seed=0, steps=(0, 2, 4))
    assert Table.from_records(records) == columns
    assert len(columns) == 3


def test_an_added_column_that_only_some_records_have_is_null_in_the_others():
    common = {"measure": "m", "definition": "m", "value": 1.0, "floor": 0.0}
    table = Table.from_records([Record(**common), Record(**common, extra={"steps": 3})])
    assert table.frame["steps"].to_list() == [None, 3]


def test_a_record_cannot_hide_a_fixed_column_among_the_added_ones():
    with pytest.raises(ConfigError, match="layer is a fixed column: pass it as Record"):
        Record(measure="m", definition="m", value=1.0, floor=0.0, extra={"layer": 3})


def test_an_empty_table_has_all_columns():
    table = Table.from_records([])
    assert (len(table), table.frame.columns) == (0, DESIGNED)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"layer": [0, 1], "value": [1.0, 2.0, 3.0]}, "of one length.*value has 3, layer has 2"),
        ({"value": ["1.0"]}, "'value' holds Float64, got str"),
        ({"layer": [0.5]}, "'layer' holds Int64, got float"),
        ({"layer": np.array([0.5])}, "'layer' holds Int64, got Float64"),
        ({"seed": True}, "'seed' holds Int64, got bool"),
        ({"variant": 3}, "'variant' holds String, got int"),
        ({"resolved": 1}, "'resolved' holds Boolean, got int"),
        ({"value": np.zeros((2, 2))}, r"one entry per row, got an array of shape \(2, 2\)"),
        ({"note": [[1, 2]]}, "added column 'note' has dtype List.*text, integers, floats and booleans"),
        ({"note": ["a", 1], "value": [1.0, 2.0]}, "'note' needs entries of one kind, got int, str"),
        ({"seed": np.array([2**63], dtype=np.uint64)}, "'seed' of UInt64 does not fit into Int64"),
    ],
)  # fmt: skip
def test_wrong_columns_are_refused_with_their_name(columns, message):
    with pytest.raises(ShapeError, match=message):
        small(**columns)


def test_a_missing_required_column_is_named():
    with pytest.raises(ShapeError, match="missing here: value, floor"):
        Table.from_columns({"measure": "m", "definition": "m"})


def test_numbers_of_one_column_may_mix_integers_and_floats():
    table = small(value=[1, 2.5, None], note=[1, 0.5, None])
    assert table.frame["value"].to_list() == [1.0, 2.5, None]
    assert table.frame["note"].to_list() == [1.0, 0.5, None]


def test_narrow_arrays_are_widened():
    table = small(value=np.array([0.5], dtype=np.float32), layer=np.array([3], dtype=np.int16))
    assert (table.frame["value"].item(), table.frame["layer"].item()) == (0.5, 3)


class TestWhere:
    table = small(
        value=[1.0, 2.0, 3.0, 4.0], layer=[0, 1, 1, None], variant=["san", "san", "transformer", None]
    )

    def values(self, **equals):
        return self.table.where(**equals).frame["value"].to_list()

    def test_equal_entries_are_kept(self):
        assert self.values(layer=1) == [2.0, 3.0]
        assert self.values(layer=1, variant="san") == [2.0]
        assert self.values(value=2) == [2.0]

    def test_a_list_means_any_of_its_entries_and_none_means_null(self):
        assert self.values(variant=["san", "other"]) == [1.0, 2.0]
        assert self.values(variant=None) == [4.0]
        assert self.values(layer=(0, None)) == [1.0, 4.0]
        assert self.values() == [1.0, 2.0, 3.0, 4.0]

    def test_an_unknown_column_is_refused_with_a_suggestion(self):
        with pytest.raises(UnknownNameError, match="unknown column 'varient'; did you mean 'variant'"):
            self.values(varient="san")

    def test_a_value_of_another_kind_is_refused(self):
        with pytest.raises(ShapeError, match="'layer' holds Int64, so it never equals 'one'"):
            self.values(layer="one")

    def test_provenance_stays(self):
        table = Table(frame=self.table.frame, provenance={"config": {"dim": 4}}, command="rankscope collapse")
        assert table.where(layer=1).provenance == {"config": {"dim": 4}}
        assert table.where(layer=1).command == "rankscope collapse"


class TestConcat:
    def test_rows_follow_each_other_and_missing_columns_are_null(self):
        joined = Table.concat([small(note=["a"]), small(value=[2.0])])
        assert joined.frame["value"].to_list() == [1.0, 2.0]
        assert joined.frame["note"].to_list() == ["a", None]
        assert joined.frame.columns == [*DESIGNED, "note"]

    def test_equal_provenance_is_kept_and_different_provenance_becomes_parts(self):
        one = Table(frame=small().frame, provenance={"python": "3.11", "config": {"seed": 0}}, command="a")
        two = Table(frame=small().frame, provenance={"python": "3.11", "config": {"seed": 1}}, command="b")
        assert Table.concat([one, one]).provenance == one.provenance
        joined = Table.concat([one, two])
        assert joined.provenance == {"python": "3.11", "parts": [one.provenance, two.provenance]}
        assert joined.command == "a; b"
        assert Table.concat([one, two], command="c", provenance={}).command == "c"

    def test_sections_are_merged_and_a_conflict_is_an_error(self):
        one = Table(frame=small().frame, sections={"a": 1})
        two = Table(frame=small().frame, sections={"b": 2})
        assert Table.concat([one, two]).sections == {"a": 1, "b": 2}
        with pytest.raises(ConfigError, match="different sections called 'a'"):
            Table.concat([one, Table(frame=small().frame, sections={"a": 3})])

    def test_clashing_dtypes_are_refused(self):
        with pytest.raises(ShapeError, match="differ in dtype"):
            Table.concat([small(note=["a"]), small(note=[1])])

    def test_nothing_joined_is_an_empty_table(self):
        assert len(Table.concat([])) == 0


def test_provenance_is_copied_and_brought_to_json():
    config = {"dims": (1, 2), "rate": math.inf, "size": np.float64(0.5), "count": np.int64(3), 7: None}
    table = Table(frame=small().frame, provenance={"config": config})
    config["dims"] = "changed later"
    assert table.provenance == {"config": {"dims": [1, 2], "rate": None, "size": 0.5, "count": 3, "7": None}}
    assert json.loads(json.dumps(table.provenance, allow_nan=False)) == table.provenance


def test_provenance_that_json_cannot_hold_is_refused_with_its_place():
    with pytest.raises(
        ConfigError, match=r"provenance\['config'\]\['shape'\]\[1\] is a set, which JSON cannot hold"
    ):
        Table(frame=small().frame, provenance={"config": {"shape": [1, {2}]}})
    with pytest.raises(ConfigError, match="JSON keys are text"):
        Table(frame=small().frame, sections={"map": {(0, 1): 2}})


@pytest.mark.parametrize("name", ["rows", "schema", "command", "provenance", "extra_columns"])
def test_a_section_cannot_take_a_key_of_the_json_object(name):
    with pytest.raises(ConfigError, match=f"cannot be called {name}"):
        Table(frame=small().frame, sections={name: 1})


def test_equality_looks_at_rows_and_origin():
    assert small() == small()
    assert small() != small(value=[2.0])
    assert small() != Table(frame=small().frame, command="other")
    assert small() != "table"


def test_a_table_is_not_a_key_because_its_frame_is_not():
    with pytest.raises(TypeError, match="unhashable"):
        hash(small())


def test_pandas_gets_nulls_without_pyarrow():
    frame = small(
        value=[1.0, None], layer=[3, None], variant=["san", None], resolved=[True, False]
    ).to_pandas()
    assert list(frame.columns) == DESIGNED
    assert frame["layer"].dtype == "Int64"
    assert frame["resolved"].dtype == "boolean"
    assert frame["layer"].isna().tolist() == [False, True]
    assert math.isnan(frame["value"][1])
    assert frame["variant"][0] == "san"


def test_a_missing_pandas_names_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        small().to_pandas()


def test_to_polars_is_a_frame_of_its_own():
    table = small()
    frame = table.to_polars()
    frame.insert_column(0, pl.Series("own", [1]))
    assert table.frame.columns == DESIGNED


def test_the_notebook_view_is_static_and_escaped():
    hostile = "<script>alert(1)</script>"
    table = Table(
        frame=small(value=[1.0] * 20, variant=hostile, **{hostile: "x"}).frame,
        provenance={"config": {hostile: hostile}}, command=hostile,
    )  # fmt: skip
    view = table._repr_html_()
    assert "<script" not in view
    assert view.count("&lt;script&gt;") >= 14
    assert "20 rows, 18 columns, first 10 shown" in view
    assert "all null: run, model" in view


def test_the_short_form_does_not_print_the_rows():
    assert repr(small()) == "Table(1 rows, 17 columns, command='')"
