"""What is saved is what is loaded: every bit of Parquet and JSON, every row of CSV."""

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rankscope.errors import FileError
from rankscope.results import COLUMNS, TABLE_FORMATS, Table

SETTINGS = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

# Characters that formats treat specially, beside everything else that text can hold.
words = st.text(
    st.sampled_from("\",;\n\r\t\\'<>&#= 0na") | st.characters(exclude_categories=["Cs"]), max_size=8
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [5e-324, -0.0, 1.7976931348623157e308]
)
integers = st.integers(-(2**63), 2**63 - 1)
kinds = {pl.String: words, pl.Int64: integers, pl.Float64: numbers, pl.Boolean: st.booleans()}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def tables(draw):
    height = draw(st.integers(0, 4))

    def column(dtype, *, nullable):
        entries = (st.none() | kinds[dtype]) if nullable else kinds[dtype]
        return pl.Series(draw(st.lists(entries, min_size=height, max_size=height)), dtype=dtype)

    columns = {
        name: column(dtype, nullable=name not in ("measure", "definition")) for name, dtype in COLUMNS.items()
    }
    extras = {
        name: draw(st.sampled_from(list(kinds))) for name in draw(st.sets(words.filter(bool), max_size=2))
    }
    columns |= {f"x{name}": column(dtype, nullable=True) for name, dtype in extras.items()}
    sections = {
        f"s{name}": value for name, value in draw(st.dictionaries(words, json_values, max_size=2)).items()
    }
    return Table(
        frame=pl.DataFrame(columns), provenance=draw(st.dictionaries(words, json_values, max_size=3)),
        command=draw(words), sections=sections,
    )  # fmt: skip


def sample(**columns):
    return Table.from_columns({"measure": "m", "definition": "m[a,b]", "value": 1.0, "floor": 0.0} | columns)


def reloaded(table, suffix):
    with tempfile.TemporaryDirectory() as folder:
        table.save(Path(folder) / f"t{suffix}")
        return Table.load(Path(folder) / f"t{suffix}")


def load_text(text, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"t{suffix}"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Table.load(path)


def bits(table):
    """Rows with floats as their bytes, so that -0.0 and 0.0 are told apart."""
    return [
        [struct.pack("<d", entry) if isinstance(entry, float) else entry for entry in row]
        for row in table.frame.rows()
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
@SETTINGS
@given(table=tables())
def test_a_file_gives_back_rows_and_origin_bit_by_bit(tmp_path, suffix, table):
    path = tmp_path / f"table{suffix}"
    table.save(path)
    loaded = Table.load(path)
    assert loaded == table
    assert loaded.frame.schema == table.frame.schema
    assert bits(loaded) == bits(table)


@SETTINGS
@given(table=tables())
def test_csv_gives_back_the_fixed_columns_bit_by_bit_and_the_same_file_again(tmp_path, table):
    path = tmp_path / "table.csv"
    table.save(path)
    loaded = Table.load(path)
    fixed = Table(frame=table.frame.select(list(COLUMNS)))
    assert bits(Table(frame=loaded.frame.select(list(COLUMNS)))) == bits(fixed)
    assert loaded.frame.columns == table.frame.columns
    assert loaded.to_csv() == table.to_csv()
    assert (loaded.provenance, loaded.command, loaded.sections) == ({}, "", {})


@example(extra=["007", "1"], dtype=pl.String)
@example(extra=["true", None], dtype=pl.Boolean)
@example(extra=[1, None], dtype=pl.Int64)
@example(extra=[0.5, 1e-300], dtype=pl.Float64)
@example(extra=["", None], dtype=pl.String)
@settings(max_examples=1, deadline=None)
@given(extra=st.just(["a", "b"]), dtype=st.just(pl.String))
def test_csv_guesses_the_dtype_of_an_added_column_without_changing_its_text(extra, dtype):
    table = sample(value=[1.0, 2.0], note=extra)
    loaded = reloaded(table, ".csv")
    assert loaded.frame["note"].dtype == dtype
    assert loaded.to_csv() == table.to_csv()


def test_the_json_object_is_the_documented_one():
    table = Table(
        frame=sample(layer=3).frame, provenance={"python": "3.11"}, command="c", sections={"fits": [1]}
    )
    found = table.to_json()
    assert list(found) == ["schema", "command", "rows", "provenance", "fits"]
    assert found["schema"] == "rankscope/1"
    assert list(found["rows"][0]) == list(COLUMNS)
    assert found["rows"][0]["layer"] == 3
    assert json.loads(table.to_json_text()) == found


def test_json_holds_null_in_place_of_nan():
    table = sample(value=[float("nan"), float("inf")], note=[float("nan"), 1.0])
    text = table.to_json_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert [row["value"] for row in json.loads(text)["rows"]] == [None, None]
    assert [row["note"] for row in json.loads(text)["rows"]] == [None, 1.0]


def test_json_of_another_program_may_leave_out_what_is_null():
    row = {"measure": "m", "definition": "m", "value": 0.5, "floor": 0.0, "note": "x"}
    text = json.dumps({"schema": "rankscope/1", "command": "", "rows": [row], "provenance": {}})
    loaded = load_text(text, ".json")
    assert loaded.frame["note"].to_list() == ["x"]
    assert loaded.frame["resolved"].to_list() == [True]


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".json", "{", "does not hold a table of rankscope"),
        (".json", "[]", "its schema is None"),
        (".json", '{"schema": "rankscope/3"}', "its schema is 'rankscope/3'"),
        (".json", '{"schema": "rankscope/1", "command": "", "provenance": {}}', "'rows'"),
        (".json", '{"schema": "rankscope/1", "command": "", "provenance": {}, "rows": [1]}', "does not hold"),
        (".json", b"\xff\xfe\x00", "does not hold"),
        (".csv", "a,b\n1,2\n", "missing columns run, model"),
        (".csv", "", "does not hold"),
        (".csv", ",".join(COLUMNS) + "\n" + "," * 8 + "one" + "," * 8 + "\n", "does not hold"),
        (".csv", ",".join(COLUMNS) + "\n" + "," * 16 + "yes\n", "does not hold"),
        (".parquet", b"PAR1 not really", "does not hold"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(suffix, content, message):
    with pytest.raises(FileError, match=message) as caught:
        load_text(content, suffix)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_of_another_program_is_refused(tmp_path):
    sample().frame.write_parquet(tmp_path / "foreign.parquet")
    with pytest.raises(FileError, match="no entry 'rankscope'"):
        Table.load(tmp_path / "foreign.parquet")


@pytest.mark.parametrize("name", ["table.xlsx", "table", ".json.bak"])
def test_an_unknown_extension_lists_the_known_ones(tmp_path, name):
    listed = ", ".join(TABLE_FORMATS)
    with pytest.raises(FileError, match=f"known formats: {listed}"):
        sample().save(tmp_path / name)
    with pytest.raises(FileError, match=f"known formats: {listed}"):
        Table.load(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_extensions_ignore_case(tmp_path):
    sample().save(tmp_path / "T.JSON")
    assert Table.load(tmp_path / "T.JSON") == sample()


def test_a_missing_file_is_an_error_in_one_line(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*No such file"):
        Table.load(tmp_path / "none.csv")


def test_many_rows_are_built_saved_and_loaded(tmp_path):
    rows = 200_000
    table = sample(
        value=np.linspace(0, 1, rows), layer=np.arange(rows) % 13, variant="san", seed=np.arange(rows) % 8
    )
    table.save(tmp_path / "big.parquet")
    assert Table.load(tmp_path / "big.parquet") == table
