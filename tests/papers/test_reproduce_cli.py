import json
import os
from copy import deepcopy
from dataclasses import replace

import pytest
from click.testing import CliRunner

from rankscope.cli.app import app
from rankscope.papers.figures import FIGURES, Job
from rankscope.results import Table

runner = CliRunner()

FAST = ["reproduce", "wu-counterexample", "--fast"]


@pytest.fixture(scope="module")
def made():
    return FIGURES["wu-counterexample"].make(Job(size="fast"))


@pytest.fixture
def table(made, monkeypatch):
    """What the command will find: the figure made once, as a copy that a test may change."""
    fresh = replace(made, sections=deepcopy(made.sections))
    figure = replace(FIGURES["wu-counterexample"], make=lambda *_: fresh)
    monkeypatch.setitem(FIGURES._items, "wu-counterexample", figure)
    return fresh


@pytest.mark.usefixtures("table")
def test_the_verdict_is_printed_point_by_point():
    found = runner.invoke(app, FAST)
    assert found.exit_code == 0
    for word in (
        "1. agrees",
        "   reported:",
        "2. holds",
        "   stated here:",
        "measured:",
        "Source: wu2024",
        "Notes",
    ):
        assert word in found.stdout


@pytest.mark.usefixtures("table")
def test_four_files_are_written(tmp_path):
    folder = tmp_path / "new" / "deeper"
    found = runner.invoke(app, [*FAST, "--output", str(folder), "--format", "json"])
    assert found.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"wu-counterexample.{ending}" for ending in ("csv", "html", "json", "png")
    ]
    printed = json.loads(found.stdout)
    assert printed["schema"] == "rankscope/1"
    assert printed["command"] == "reproduce"
    table = Table.load(folder / "wu-counterexample.json")
    assert table.sections["verdict"] == printed["verdict"]
    assert (folder / "wu-counterexample.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "wu-counterexample.html").read_text()
    assert "<script" not in page
    assert "Verdict" in page
    assert "<td>reported: With LayerNorm" in page
    assert "<td>stated here: B exists" in page
    assert "data:image/svg+xml" in page


def test_a_figure_of_seeds_takes_one_seed():
    found = runner.invoke(app, ["reproduce", "wu-temperature", "--fast", "--seed", "3", "--format", "json"])
    assert found.exit_code == 0
    assert {row["seed"] for row in json.loads(found.stdout)["rows"]} == {3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wu-mask"], "did you mean 'wu-masks'"),
        (["wu-masks", "--fast", "--full"], "--fast or --full, not both"),
        (["wu-masks", "--seeds", "0"], "need at least one network"),
        (["wu-masks", "--seeds", "2", "--seed", "1"], "not both"),
        (["wu-masks", "--format", "html"], "prints table or json"),
        (["wu-masks", "--quick"], "No such option"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(arguments, words):
    found = runner.invoke(app, ["reproduce", *arguments])
    assert found.exit_code == 2
    assert words in found.stderr
    assert found.stderr.count("\n") == 1


def _must_not_run(*_):
    raise AssertionError("work began")


@pytest.mark.parametrize("kind", ["file", "below a file", "empty"])
def test_a_bad_folder_is_refused_before_any_work(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(FIGURES._items, "wu-masks", replace(FIGURES["wu-masks"], make=_must_not_run))
    taken = tmp_path / "taken"
    taken.write_text("x")
    target = {"file": taken, "below a file": taken / "deeper", "empty": ""}[kind]
    words = {"file": "is a file", "below a file": "cannot make the folder", "empty": "--output is empty"}[
        kind
    ]
    found = runner.invoke(app, ["reproduce", "wu-masks", "--output", str(target)])
    assert found.exit_code == 2
    assert "work began" not in found.stderr
    assert words in found.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    found = runner.invoke(app, [*FAST, "--output", str(tmp_path)])
    tmp_path.chmod(0o700)
    assert found.exit_code == 2
    assert "no permission" in found.stderr


def test_a_disagreement_with_the_paper_is_not_an_error(table):
    for point in table.sections["verdict"]:
        point["agrees"] = False
    found = runner.invoke(app, FAST)
    assert found.exit_code == 0
    assert "1. does not agree" in found.stdout
    assert "2. does not hold" in found.stdout


def test_text_of_a_figure_is_escaped(table, tmp_path):
    table.sections["verdict"][0]["measured"] = "<b onload=x>"
    table.sections["notes"][0] = "</ul><i>"
    assert runner.invoke(app, [*FAST, "--output", str(tmp_path)]).exit_code == 0
    page = (tmp_path / "wu-counterexample.html").read_text()
    assert "<b onload" not in page
    assert "&lt;b onload=x&gt;" in page
    assert "</ul><i>" not in page


def test_figures_are_listed():
    found = runner.invoke(app, ["list", "figures", "--format", "json"])
    rows = {row["name"]: row for row in json.loads(found.stdout)["rows"]}
    assert {"wu-masks", "wu-temperature", "wu-geometry", "wu-counterexample"} <= set(rows)
    assert all(row["usual"] and "wu2024" in row["source"] for name, row in rows.items() if name[:3] == "wu-")


def test_collapse_names_masks_with_separate_limits():
    small = ["--layers", "2", "--dim", "4", "--heads", "1", "--tokens", "6", "--position", "rotary"]
    found = runner.invoke(
        app, ["collapse", "--norm", "sphere", "--mask", "blocks:2,causal", *small, "--format", "json"]
    )
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["apart"] == [{"mask": "blocks:2", "tokens": 6, "groups": [[0, 1, 2], [3, 4, 5]]}]
    (note,) = answer["notes"]
    assert note.startswith(
        "Under the mask blocks:2, 2 groups of the 6 tokens read nothing outside themselves"
    )


@pytest.mark.parametrize("values", ["gaussian", "orthogonal", "identity"])
def test_collapse_on_the_sphere_has_a_split_pass(values):
    small = ["--layers", "3", "--dim", "8", "--heads", "2", "--tokens", "6", "--norm", "sphere", "--split"]
    found = runner.invoke(app, ["collapse", *small, "--values", values, "--format", "json"])
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["apart"] == []
    for row in answer["rows"]:
        if row["float_value"] > 1e3 * row["float_floor"]:
            assert row["value"] == pytest.approx(
                row["float_value"], rel=1e-3
            )  # a floor is a thousandth there
