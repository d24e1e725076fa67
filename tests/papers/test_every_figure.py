"""Every figure of ``rankscope list figures``, made with ``--fast`` as a user would; run by ``make papers``.

These take minutes together, so they stand beside the suite: ``make test`` does not run them, CI does.
"""

import json
import os
import random
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from rankscope.cli.app import app
from rankscope.errors import FileError
from rankscope.findings.reproduce import ReproduceFinding
from rankscope.papers.figures import FIGURES

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
runner = CliRunner()
ENDINGS = ("csv", "html", "json", "png")
PAGE = Path(__file__).parents[2] / "docs" / "figures.md"


def reproduce(name: str, folder: Path, *options: str):
    return runner.invoke(app, ["reproduce", name, "--fast", "--output", str(folder), *options])


def table_of(folder: Path, name: str) -> dict:
    """The table as it was saved, without the time at which that was."""
    found = json.loads((folder / f"{name}.json").read_text())
    found["provenance"].pop("time")
    return found


def obeys_the_laws(one: ReproduceFinding, path: Path) -> None:
    """The chart draws; words and picture follow from the file; what another figure or version found is one line."""
    picture = str(one.chart().svg())
    assert "<script" not in picture
    assert "NaN" not in picture
    one.save(path)
    again = ReproduceFinding.load(path)
    assert again == one
    assert (again.words, again.verdict, again.notes) == (one.words, one.verdict, one.notes)
    assert str(again) == str(one)
    assert str(again.chart().svg()) == picture
    assert one.chart().title or all(picture.title for picture in one.chart().pictures)
    whole = json.loads(one.to_json())
    # Sentences of the file are not read, so that they cannot contradict what was found.
    said = {"verdict": [], "notes": ["Changed."], "words": ["Changed."]}
    path.write_text(json.dumps(whole | said))
    assert ReproduceFinding.load(path).to_json() == one.to_json()
    for data in ({}, {"of": {"another": "figure"}}):
        path.write_text(json.dumps(whole | {"data": data}))
        with pytest.raises(FileError) as error:
            ReproduceFinding.load(path)
        assert str(error.value).endswith(f"make it again with 'rankscope reproduce {one.figure.name}'")
        assert "\n" not in str(error.value)
    path.unlink()


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_made_and_judged(name, tmp_path):
    found = reproduce(name, tmp_path)
    assert found.exit_code == 0, found.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.{ending}" for ending in ENDINGS]
    one = ReproduceFinding.load(tmp_path / f"{name}.json")
    assert one.table.frame.height
    assert set(one.table.frame["definition"]) <= set(one.definitions)
    assert one.verdict
    for point in one.verdict:
        assert point.statement.strip()
        assert point.measured.strip()
        assert "nan" not in point.measured.lower().split()
    assert all(note.strip() for note in one.notes)
    assert str(one) == found.stdout
    obeys_the_laws(one, tmp_path / "again.json")
    with Image.open(tmp_path / f"{name}.png") as picture:
        assert min(picture.size) > 200
    HTMLParser().feed((tmp_path / f"{name}.html").read_text())


@pytest.mark.parametrize("name", FIGURES)
def test_the_page_of_figures_names_it(name):
    first = [line.split("|")[1] for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert any(f"`{name}`" in names for names in first), f"docs/figures.md: add a row for {name}"


def files_below(folder: Path) -> set[Path]:
    """Read with ``os.walk``, which forgives that another process takes folders away."""
    return {Path(at, name) for at, _, names in os.walk(folder) for name in names}


@pytest.mark.parametrize("name", ["paths-sort", "circle"] if SOAK else ["paths-sort"])
def test_a_figure_that_is_killed_again_and_again_ends_in_the_same_table(name, tmp_path):
    """Real processes: a fork of this one may wait forever for a lock of a library's threads."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert reproduce(name, whole).exit_code == 0
    command = [sys.executable, "-m", "rankscope.cli", "reproduce", name, "--fast", "--output", str(broken)]
    chance, kills = random.Random(3), 0  # noqa: S311 - not a secret
    for _ in range(20 if SOAK else 3):
        before = files_below(broken)
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        # Every attempt gets on before it is killed.
        while child.poll() is None and files_below(broken) <= before:
            time.sleep(0.02)
        try:
            child.wait(chance.uniform(0.0, 2.0))
            break
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            kills += 1
    assert kills
    assert reproduce(name, broken).exit_code == 0
    assert table_of(broken, name) == table_of(whole, name)
    assert [path.name for path in broken.iterdir() if path.is_dir()] == []
