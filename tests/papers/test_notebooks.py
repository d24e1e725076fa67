"""The notebooks of ``examples`` run from top to bottom and print what they keep."""

import json
from pathlib import Path

import notebooks
import pytest

from rankscope.sources import BUILTINS

PATHS = {path.stem: path for path in notebooks.notebooks()}
WITH_MINILM = [
    pytest.mark.checkpoint,
    pytest.mark.skipif(not BUILTINS["minilm"].installed, reason="the checkpoint of MiniLM is not installed"),
]


def test_there_are_four() -> None:
    assert set(PATHS) == {"my_model", "paths_of_a_real_model", "the_papers_in_ten_minutes", "what_is_proven"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=WITH_MINILM if '"minilm' in PATHS[name].read_text() else []) for name in PATHS],
)
def test_a_notebook_prints_what_it_keeps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drifted = notebooks.drifts(PATHS[name])
    assert not drifted, "\n".join(drifted) + f"\nif this is meant: python docs/notebooks.py write {name}"


@pytest.mark.parametrize("name", PATHS)
def test_outputs_are_kept_and_small(name: str) -> None:
    cells = [cell for cell in json.loads(PATHS[name].read_text())["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 2
    assert PATHS[name].stat().st_size < 200_000


def test_a_cell_shows_what_it_prints_and_its_last_value() -> None:
    cells = [
        {"cell_type": "code", "source": ["x = 2\n", "print(x)"], "outputs": []},
        {"cell_type": "markdown", "source": ["text"]},
        {"cell_type": "code", "source": ["print('a')\n", "x + 1"], "outputs": []},
    ]
    first, second = notebooks.executed({"cells": cells}, "made here")
    assert [one["text"] for one in first] == [["2\n"]]
    assert [one.get("text") or one["data"]["text/plain"] for one in second] == [["a\n"], ["3"]]
