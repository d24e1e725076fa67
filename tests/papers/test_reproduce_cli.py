import io
import json
import os
import re
from copy import deepcopy
from dataclasses import replace

import pytest
from click.testing import CliRunner
from PIL import Image

import rankscope
from rankscope.cli.app import app
from rankscope.errors import ConfigError, FileError
from rankscope.findings.reproduce import ReproduceConfig, ReproduceFinding, Statement
from rankscope.papers.figures import FIGURES, Job
from rankscope.papers.figures.run import finding_of
from rankscope.plots import svg

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
        "The one published or reported statement agrees with what was measured.",
        "All 3 statements of rankscope hold.",
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
    assert printed["schema"] == "rankscope/2"
    assert printed["command"] == "reproduce"
    assert json.loads((folder / "wu-counterexample.json").read_text()) == printed
    assert printed["data"]["systems"]
    assert (folder / "wu-counterexample.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "wu-counterexample.html").read_text()
    assert "<script" not in page
    assert "Agrees</bdi></h2>" in page
    assert '<td class="why"><bdi>reported: With LayerNorm' in page
    assert '<td class="why"><bdi>stated here: B exists' in page
    assert "data:image/svg+xml" in page


def test_a_finding_loads_to_an_equal_one_and_draws_the_same_picture(table, tmp_path):
    found = finding_of(FIGURES["wu-counterexample"], "fast", table)
    found.save(tmp_path / "found.json")
    again = ReproduceFinding.load(tmp_path / "found.json")
    assert again == found
    assert again.data == found.data == {name: table.sections[name] for name in ("systems", "example")}
    assert str(again) == str(found)
    drawn = svg(FIGURES["wu-counterexample"].chart(table))
    pictures = [again.chart().svg(), found.chart().svg(), drawn]
    assert len({re.sub(r"(clip|gradient_)\d+", "", one) for one in pictures}) == 1  # names are counted on
    assert again == found  # a picture that was drawn is no part of what was found
    found.chart().save(tmp_path / "found.png")
    with Image.open(tmp_path / "found.png") as picture, Image.open(io.BytesIO(found.chart().png())) as other:
        assert picture.size == other.size
        assert min(picture.size) > 500


def test_a_picture_without_its_data_is_an_error_that_says_so(table):
    found = finding_of(FIGURES["wu-counterexample"], "fast", table).model_copy(update={"data": {}})
    assert str(found)
    with pytest.raises(FileError, match="not all that the picture of 'wu-counterexample' shows: 'systems'"):
        found.chart().svg()


def test_text_is_printed_without_drawing(table, monkeypatch):
    def draw(*_):
        raise AssertionError("drawn for a terminal")

    figure = replace(FIGURES["wu-counterexample"], chart=draw)
    monkeypatch.setitem(FIGURES._items, "wu-counterexample", figure)
    found = finding_of(figure, "fast", table)
    assert "Notes" in str(found)
    assert found.to_json()
    assert "drawn for a terminal" not in runner.invoke(app, FAST).stderr
    with pytest.raises(AssertionError, match="drawn for a terminal"):
        found.to_html()


def test_the_verb_takes_a_configuration_or_fields(table):
    one = rankscope.reproduce("wu-counterexample", size="fast")
    assert one.figure.size == "fast"
    assert rankscope.reproduce(ReproduceConfig(figure="wu-counterexample", fast=True)) == one
    assert rankscope.reproduce(figure="wu-counterexample", fast=True) == one
    assert ReproduceConfig(figure="x", seeds=3).seeds == (0, 1, 2)
    assert ReproduceConfig(figure="x", seed=3).seeds == (3,)
    assert ReproduceConfig(figure="x").seeds == ()
    assert ReproduceConfig(figure="x", full=True).size == "full"
    with pytest.raises(ConfigError, match="fast and full"):
        ReproduceConfig(figure="x", fast=True, size="full")


def test_a_folder_is_filled_by_the_verb_as_by_the_command(table, tmp_path):
    rankscope.reproduce("wu-counterexample", fast=True, folder=tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        f"wu-counterexample.{ending}" for ending in ("csv", "html", "json", "png")
    ]


MEASURED = "with what was measured"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([True, True], f"All 2 published or reported statements agree {MEASURED}."),
        (
            [True, False, None],
            f"Of 3 published or reported statements 1 agrees {MEASURED}, 1 does not and 1 holds in part or is not "
            "decided.",
        ),
        ([False] * 2, f"Of 2 published or reported statements none agrees {MEASURED} and 2 do not."),
        (
            [None],
            f"Of 1 published or reported statement none agrees {MEASURED} and 1 holds in part or is not decided.",
        ),
    ],
)
def test_statements_are_counted_in_words(table, found, words):
    whole = finding_of(FIGURES["wu-counterexample"], "fast", table)
    points = [Statement(source="paper", statement="s", measured="m", agrees=one) for one in found]
    one = whole.model_copy(update={"verdict": tuple(points)})
    assert one.words == (words,)
    assert one.tone == ("good" if all(found) else "look")
    none = whole.model_copy(update={"verdict": ()})
    assert none.words == ("The figure makes no statement.",)
    assert "no statement" in str(none)


def test_a_figure_of_seeds_takes_one_seed():
    found = runner.invoke(app, ["reproduce", "wu-temperature", "--fast", "--seed", "3", "--format", "json"])
    assert found.exit_code == 0
    assert {row["seed"] for row in json.loads(found.stdout)["rows"]} == {3}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wu-mask"], "did you mean 'wu-masks'"),
        ([], "no figure was named"),
        (["wu-masks", "--fast", "--full"], "sizes fast and full: choose one"),
        (["wu-masks", "--size", "small"], "unknown size 'small'"),
        (["wu-masks", "--seeds", "0"], "need at least one network"),
        (["wu-masks", "--seeds", "2", "--seed", "1"], "not both"),
        (["wu-masks", "--format", "parquet"], "unknown format 'parquet'"),
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


def test_a_wrong_name_makes_no_folder(tmp_path):
    found = runner.invoke(app, ["reproduce", "wu-mask", "--fast", "--output", str(tmp_path / "new")])
    assert found.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_are_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(FIGURES._items, "wu-masks", replace(FIGURES["wu-masks"], make=_must_not_run))
    (tmp_path / "wu-masks.csv").mkdir()
    found = runner.invoke(app, ["reproduce", "wu-masks", "--output", str(tmp_path)])
    assert found.exit_code == 2
    assert "wu-masks.csv" in found.stderr
    assert "work began" not in found.stderr


def test_an_interrupted_figure_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(job):
        job.store.remember("piece", {}, lambda: 1)
        raise KeyboardInterrupt

    monkeypatch.setitem(FIGURES._items, "wu-masks", replace(FIGURES["wu-masks"], make=interrupt))
    found = runner.invoke(app, ["reproduce", "wu-masks", "--output", str(tmp_path)])
    assert found.exit_code == 130
    assert found.stderr == "rankscope: interrupted; the same command goes on with what is done\n"
    assert [path.name for path in tmp_path.iterdir()] == [".wu-masks.unfinished"]
    alone = runner.invoke(app, ["reproduce", "wu-masks"])
    assert alone.exit_code == 130
    assert "nothing was written" in alone.stderr


def test_a_result_that_cannot_be_written_is_kept_aside_and_so_are_its_pieces(table, tmp_path, monkeypatch):
    def full(*_):
        raise FileError("the disk is full")

    def make(job):
        job.store.remember("piece", {}, lambda: 1)
        return table

    figure = replace(FIGURES["wu-counterexample"], make=make)
    monkeypatch.setitem(FIGURES._items, "wu-counterexample", figure)
    monkeypatch.setattr("rankscope.results.write_atomically", full)
    found = runner.invoke(app, [*FAST, "--output", str(tmp_path)])
    assert found.exit_code == 2
    kept = re.search(r"the disk is full; the results are in (\S+)", found.stderr)
    assert kept is not None
    assert ReproduceFinding.load(kept[1]).figure.name == "wu-counterexample"
    (pieces,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert any(path.name.startswith("piece-") for path in pieces.iterdir())
    monkeypatch.undo()
    monkeypatch.setitem(FIGURES._items, "wu-counterexample", figure)
    assert runner.invoke(app, [*FAST, "--output", str(tmp_path)]).exit_code == 0
    assert not any(path.is_dir() for path in tmp_path.iterdir())


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
