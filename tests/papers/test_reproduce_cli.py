"""``rankscope reproduce`` and ``rs.reproduce``: files, pages, errors, and what a finding says when it is loaded."""

import io
import json
import os
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from PIL import Image

import rankscope
from kit.findings import temperature
from rankscope.charts import Chart, CustomPicture
from rankscope.cli.app import app
from rankscope.errors import ConfigError, FileError
from rankscope.findings.base import Finding
from rankscope.findings.reproduce import ReproduceConfig, ReproduceFinding, Statement
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures.run import finding_of

runner = CliRunner()

NAME = "wu-temperature"
FAST = ["reproduce", NAME, "--fast"]


def statement(agrees, source="paper", **more):
    return Statement(**{"source": source, "statement": "s", "measured": "m", "agrees": agrees} | more)


@pytest.fixture
def declare(monkeypatch):
    """Enter the figure with other parts; its tiny networks are made once for all tests."""

    def enter(name=NAME, **parts):
        known = {"compute": lambda config, job: temperature()} if name == NAME else {}
        figure = replace(FIGURES[name], **known | parts)
        monkeypatch.setitem(FIGURES._items, name, figure)
        return figure

    return enter


@pytest.fixture
def figure(declare):
    return declare()


@pytest.fixture
def found(figure):
    return finding_of(figure, "fast", *temperature())


def test_the_verdict_is_printed_point_by_point(declare):
    declare(
        points=lambda found: [statement(True, "reported"), statement(True, "ours"), statement(True, "ours")]
    )
    found = runner.invoke(app, FAST)
    assert found.exit_code == 0
    for word in (
        "1. agrees",
        "   reported:",
        "2. holds",
        "   stated here:",
        "measured:",
        "The one published or reported statement agrees with what was measured.",
        "All 2 statements of rankscope hold.",
        "Source: wu2024",
        "Notes",
    ):
        assert word in found.stdout


def test_four_files_are_written(declare, tmp_path):
    declare(points=lambda found: [statement(True, "reported"), statement(True, "ours")])
    folder = tmp_path / "new" / "deeper"
    found = runner.invoke(app, [*FAST, "--output", str(folder), "--format", "json"])
    assert found.exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{NAME}.{ending}" for ending in ("csv", "html", "json", "png")
    ]
    printed = json.loads(found.stdout)
    assert printed["schema"] == "rankscope/2"
    assert printed["command"] == "reproduce"
    assert json.loads((folder / f"{NAME}.json").read_text()) == printed
    assert printed["data"]["slowing"]
    assert (folder / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / f"{NAME}.html").read_text()
    assert "<script" not in page
    assert "Agrees</bdi></h2>" in page
    for label in ("reported", "stated here"):
        assert re.search(f'<td class="why"[^>]*><bdi>{label}: s', page)
    assert page.count("<svg") >= len(FIGURES[NAME].chart(*reversed(temperature())).pictures)


def test_a_finding_loads_to_an_equal_one_that_says_and_draws_the_same(found, tmp_path):
    found.save(tmp_path / "found.json")
    again = ReproduceFinding.load(tmp_path / "found.json")
    assert again == found
    assert again.data == found.data == temperature()[1].model_dump(mode="json")
    assert (again.verdict, again.notes, again.words) == (found.verdict, found.notes, found.words)
    assert str(again) == str(found)
    assert again.to_html() == found.to_html()
    assert again.chart().svg() == found.chart().svg()
    assert again == found  # a picture that was drawn is no part of what was found
    found.chart().save(tmp_path / "found.png")
    with Image.open(tmp_path / "found.png") as picture, Image.open(io.BytesIO(found.chart().png())) as other:
        assert picture.size == other.size
        assert min(picture.size) > 500


def test_statements_are_computed_and_never_stored(declare, found, tmp_path):
    """A file whose sentences were changed says what the figure says, and so does one of an older wording."""
    whole = json.loads(found.to_json())
    assert not {"verdict", "notes", "words", "question"} & set(ReproduceFinding.model_fields)
    whole["verdict"][0]["agrees"], whole["notes"], whole["words"] = True, ["Changed."], ["Changed."]
    (tmp_path / "found.json").write_text(json.dumps(whole))
    again = ReproduceFinding.load(tmp_path / "found.json")
    assert again == found
    assert again.to_json() == found.to_json()
    declare(points=lambda found: [statement(False)], notes=lambda found: ["New."])
    newer = ReproduceFinding.load(tmp_path / "found.json")
    assert (newer.verdict, newer.notes) == ((statement(False),), ("New.",))
    assert again.verdict == found.verdict  # said before, and kept


def test_a_copy_with_other_data_says_something_else(found):
    data = found.data | {"setting": found.data["setting"] | {"dim": 4096}}
    assert found.notes
    assert "dim 4096" in found.model_copy(update={"data": data}).notes[1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "setting: Field required"),
        ({"systems": [], "example": []}, "setting: Field required"),  # of another figure
        ({"setting": {"layers": "many"}}, "setting.layers: Input should be a valid integer"),
        ({"slowing": {}}, "index out of range"),  # whole, and not enough to say anything
        ({"more": 1}, "more: Extra inputs are not permitted"),  # of a version that found more
    ],
)
def test_what_another_figure_or_version_found_is_one_line_that_says_what_to_do(found, tmp_path, data, words):
    keeps = "slowing" in data or "more" in data
    other = found.model_copy(update={"data": found.data | data if keeps else data})
    with pytest.raises(FileError, match="are not what this version of 'wu-temperature' finds"):
        str(other)
    whole = json.loads(found.to_json()) | {"data": other.data}
    (tmp_path / "found.json").write_text(json.dumps(whole))
    for kind in (ReproduceFinding, Finding):
        with pytest.raises(FileError) as error:
            kind.load(tmp_path / "found.json")
        line = str(error.value)
        assert words in line
        assert line.endswith("make it again with 'rankscope reproduce wu-temperature'")
        assert "\n" not in line


def test_rows_of_another_figure_are_one_line_when_drawn(found):
    frame = found.table.frame
    for bad in (frame.drop("temperature"), frame.clear()):
        other = found.model_copy(update={"table": replace(found.table, frame=bad)})
        with pytest.raises(
            FileError, match="its rows are not what this version of 'wu-temperature'"
        ) as error:
            other.chart()
        assert "\n" not in str(error.value)


def test_text_is_printed_without_drawing(declare):
    def draw():
        raise AssertionError("drawn for a terminal")

    picture = Chart([CustomPicture(title="a picture", draw=draw)])
    found = finding_of(declare(chart=lambda found, table: picture), "fast", *temperature())
    assert "Notes" in str(found)
    assert found.to_json()
    assert "drawn for a terminal" not in runner.invoke(app, FAST).stderr
    with pytest.raises(AssertionError, match="drawn for a terminal"):
        found.to_html()


@pytest.mark.usefixtures("figure")
def test_the_verb_takes_a_configuration_or_fields():
    one = rankscope.reproduce(NAME, size="fast")
    assert one.figure.size == "fast"
    assert rankscope.reproduce(ReproduceConfig(figure=NAME, fast=True)) == one
    assert rankscope.reproduce(figure=NAME, fast=True) == one
    assert ReproduceConfig(figure="x", seeds=3).seeds == (0, 1, 2)
    assert ReproduceConfig(figure="x", seed=3).seeds == (3,)
    assert ReproduceConfig(figure="x").seeds == ()
    assert ReproduceConfig(figure="x", full=True).size == "full"
    with pytest.raises(ConfigError, match="fast and full"):
        ReproduceConfig(figure="x", fast=True, size="full")


@pytest.mark.usefixtures("figure")
def test_a_folder_is_filled_by_the_verb_as_by_the_command(tmp_path):
    rankscope.reproduce(NAME, fast=True, folder=tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        f"{NAME}.{ending}" for ending in ("csv", "html", "json", "png")
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
def test_statements_are_counted_in_words(declare, found, words):
    figure = declare(points=lambda _: [statement(one) for one in found])
    one = finding_of(figure, "fast", *temperature())
    assert one.words == (words,)
    assert one.tone == ("good" if all(found) else "look")
    none = finding_of(declare(points=lambda _: []), "fast", *temperature())
    assert none.words == ("The figure makes no statement.",)
    assert "no statement" in str(none)
    assert none.tone == "unknown"


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
        (["path-length", "--seed", "4"], "--seed has no effect on path-length"),
        (["path-length", "--seeds", "2"], "--seeds has no effect on path-length"),
        (["wu-counterexample", "--seeds", "4"], "one seed draws all starts of wu-counterexample"),
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


@pytest.fixture
def never(declare):
    declare("wu-masks", compute=_must_not_run)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("kind", ["file", "below a file", "empty"])
def test_a_bad_folder_is_refused_before_any_work(tmp_path, kind):
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


@pytest.mark.usefixtures("never")
def test_files_that_cannot_be_written_are_refused_before_any_work(tmp_path):
    (tmp_path / "wu-masks.csv").mkdir()
    found = runner.invoke(app, ["reproduce", "wu-masks", "--output", str(tmp_path)])
    assert found.exit_code == 2
    assert "wu-masks.csv" in found.stderr
    assert "work began" not in found.stderr


def test_an_interrupted_figure_says_how_to_go_on(declare, tmp_path):
    def interrupt(config, job):
        job.store.remember("piece", {}, lambda: 1)
        raise KeyboardInterrupt

    declare("wu-masks", compute=interrupt)
    found = runner.invoke(app, ["reproduce", "wu-masks", "--output", str(tmp_path)])
    assert found.exit_code == 130
    assert found.stderr == "rankscope: interrupted; the same command goes on with what is done\n"
    assert [path.name for path in tmp_path.iterdir()] == [".wu-masks.unfinished"]
    alone = runner.invoke(app, ["reproduce", "wu-masks"])
    assert alone.exit_code == 130
    assert "nothing was written" in alone.stderr


def test_a_result_that_cannot_be_written_is_kept_aside_and_so_are_its_pieces(declare, tmp_path, monkeypatch):
    def full(*_):
        raise FileError("the disk is full")

    def compute(config, job):
        job.store.remember("piece", {}, lambda: 1)
        return temperature()

    declare(compute=compute)
    with monkeypatch.context() as broken:
        broken.setattr("rankscope.results.write_atomically", full)
        found = runner.invoke(app, [*FAST, "--output", str(tmp_path)])
    assert found.exit_code == 2
    kept = re.search(r"the disk is full; the results are in (\S+)", found.stderr)
    assert kept is not None
    assert ReproduceFinding.load(kept[1]).figure.name == NAME
    (pieces,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert any(path.name.startswith("piece-") for path in pieces.iterdir())
    assert runner.invoke(app, [*FAST, "--output", str(tmp_path)]).exit_code == 0
    assert not any(path.is_dir() for path in tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    found = runner.invoke(app, [*FAST, "--output", str(tmp_path)])
    tmp_path.chmod(0o700)
    assert found.exit_code == 2
    assert "no permission" in found.stderr


def test_a_disagreement_with_the_paper_is_not_an_error(declare):
    declare(points=lambda found: [statement(False), statement(False, "ours")])
    found = runner.invoke(app, FAST)
    assert found.exit_code == 0
    assert "1. does not agree" in found.stdout
    assert "2. does not hold" in found.stdout


def test_text_of_a_figure_is_escaped(declare, tmp_path):
    declare(points=lambda found: [statement(None, measured="<b onload=x>")], notes=lambda found: ["</ul><i>"])
    assert runner.invoke(app, [*FAST, "--output", str(tmp_path)]).exit_code == 0
    page = (tmp_path / f"{NAME}.html").read_text()
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
