"""Results of the older schema rankscope/1 load, print and compare; they have no picture."""

import json
from pathlib import Path

import pytest

from kit.compare_tables import random_scan
from rankscope.errors import ConfigError, FileError
from rankscope.findings.base import Finding
from rankscope.findings.collapse import CollapseFinding
from rankscope.findings.old import OldFinding
from rankscope.results import Table
from rankscope.studies.compare import compare

VERDICT = {"verdict": "cone", "words": ["The tokens share a direction.", "Layer 3 decides."], "stacks": []}


def saved(path: Path, **more: object) -> Path:
    random_scan("model", verdict=VERDICT, **more).save(path)
    assert json.loads(path.read_text())["schema"] == "rankscope/1"
    return path


def test_it_loads_with_the_sentences_that_were_saved(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json")
    found = Finding.load(path)
    assert isinstance(found, OldFinding)
    assert found.words == ("The tokens share a direction.", "Layer 3 decides.")
    assert found.table == Table.load(path)
    assert found.table.sections["verdict"] == VERDICT


def test_it_prints_sentences_and_first_rows(tmp_path: Path) -> None:
    found = Finding.load(saved(tmp_path / "a.json"))
    lines = str(found).splitlines()
    assert lines[:3] == ["Result of rankscope scan", "120 rows", "schema rankscope/1"]
    assert "The tokens share a direction." in lines
    assert "the first 20 of 120" in lines
    row = found.table.frame.row(0, named=True)
    assert any(f"{row['value']:.3g}" in line and row["definition"] in line for line in lines)


def test_without_sentences_it_says_what_it_is(tmp_path: Path) -> None:
    columns = {"measure": "m", "definition": "m", "value": [1.0, None], "floor": 0.0}
    Table.from_columns(columns, command="rate", sections={"a": 3, "b": {"words": 4}}).save(
        tmp_path / "a.json"
    )
    found = Finding.load(tmp_path / "a.json")
    assert found.words == ("2 rows of rankscope rate, without sentences.",)
    Table.from_records([], command="rate").save(tmp_path / "b.json")
    assert "0 rows" in str(Finding.load(tmp_path / "b.json"))


def test_it_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="printed and compared, not drawn; run rankscope scan again"
    ) as error:
        Finding.load(saved(tmp_path / "a.json")).chart()
    assert "\n" not in str(error.value)


def test_it_is_saved_as_it_was(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.json")
    Finding.load(path).save(tmp_path / "b.json")
    assert (tmp_path / "b.json").read_text() == path.read_text()
    Finding.load(path).save(tmp_path / "page.html")
    assert "Layer 3 decides." in (tmp_path / "page.html").read_text()


def test_it_is_compared(tmp_path: Path) -> None:
    first, second = saved(tmp_path / "a.json"), saved(tmp_path / "b.json", seed=1)
    loaded = compare(Finding.load(first), Finding.load(second))
    from_files = compare(first, second)
    assert loaded.table.frame.drop("run", "scan").equals(from_files.table.frame.drop("run", "scan"))


def test_a_class_of_its_own_does_not_take_it(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is 'rankscope/1' of the command 'scan', expected 'rankscope/2'"):
        CollapseFinding.load(saved(tmp_path / "a.json"))
    path = tmp_path / "broken.json"
    path.write_text('{"schema": "rankscope/1", "command": "scan", "rows": 3}')
    with pytest.raises(FileError, match="does not hold a table of rankscope"):
        Finding.load(path)
