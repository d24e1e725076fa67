"""``rankscope compare`` as a person meets it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kit.compare_tables import random_scan
from rankscope.cli import app
from rankscope.results import Table

UNIT = "residual_ratio[composite,mean,unit]"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def failed(*arguments: object) -> str:
    """The one line a failing command prints."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def falls(definition: str, layer: int, site: str) -> float:
    return -0.1 * layer if definition == UNIT else 0.0


@pytest.fixture
def scans(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A scan, the same with other noise, and one whose tokens come together."""
    paths = tmp_path / "before.json", tmp_path / "again.parquet", tmp_path / "after.json"
    random_scan("m").save(paths[0])
    random_scan("m", seed=1).save(paths[1])
    random_scan("m", seed=2, change=falls, verdict="collapsing").save(paths[2])
    return paths


def test_words_come_first_then_the_largest_changes(scans: tuple[Path, Path, Path]) -> None:
    result = run(scans[0], scans[2])
    assert result.exit_code == 0, result.output
    title, told, rows, changes, table, *_ = result.stdout.split("\n\n")
    assert title.splitlines() == ["after against before", "2 scans", "20 numbers"]
    lead, said, verdict = told.splitlines()
    assert lead.startswith("Residual ratio after the last block fell from 0.7")
    assert lead.endswith(", beyond the spread over texts.")
    assert said.startswith("4 of 20 numbers changed from before to after, beyond chance")
    assert verdict == "The verdict is healthy in before, then collapsing in after."
    assert [line.split()[0] for line in rows.splitlines()[-2:]] == ["before", "after"]
    assert f"{UNIT} after the block fell at layers 1 to 4, most at layer 4" in changes
    lines = table.splitlines()
    assert lines[0] == "Largest significant changes"
    assert lines[2].split()[:5] == ["definition", "site", "layer", "before", "after"]
    assert [line.split()[2] for line in lines[4:]] == ["4", "3", "2", "1"]
    assert result.stderr == ""


def test_nothing_to_show_is_said(scans: tuple[Path, Path, Path]) -> None:
    result = run(scans[0], scans[1])
    assert "None of 20 numbers changed from before to again, beyond chance" in result.stdout
    assert "Largest" not in result.stdout


def test_formats(scans: tuple[Path, Path, Path], tmp_path: Path) -> None:
    found = json.loads(run(scans[0], scans[2], "--format", "json").stdout)
    assert (found["schema"], found["command"]) == ("rankscope/2", "compare")
    assert len(found["rows"]) == 20
    added = {"before", "after", "change", "ratio", "spread", "z", "significant", "stack", "scan"}
    assert added <= set(found["rows"][0])
    assert found["compare"]["findings"][0]["definition"] == UNIT
    header = run(scans[0], scans[2], "--format", "csv").stdout.splitlines()[0]
    assert "significant" in header.split(",")
    out = tmp_path / "out.parquet"
    result = run(scans[0], scans[2], "--output", out)
    assert result.exit_code == 0
    assert result.stderr.startswith(f"wrote {out}\n")
    assert len(Table.load(out)) == 20
    for name, content in (("page.html", "<!doctype html>"), ("picture.svg", "<svg")):
        option = "--plot" if name.endswith("svg") else "--output"
        assert run(scans[0], scans[2], option, tmp_path / name).exit_code == 0
        assert (tmp_path / name).read_text().startswith(content)


def test_a_series_shows_its_last_scan_and_the_trend(scans: tuple[Path, Path, Path]) -> None:
    text = run(*scans).stdout
    assert text.startswith("after against before\n3 scans")
    assert "Over 3 scans, in the order the scans were given, " in text


def test_measures_and_sites_are_chosen(scans: tuple[Path, Path, Path]) -> None:
    for names in (("--measures", "--sites"), ("--measure", "--site")):  # the former names are hidden options
        options = (names[0], f"cosine,{UNIT}", names[1], "block", "--format", "json")
        rows = json.loads(run(scans[0], scans[2], *options).stdout)["rows"]
        assert {row["definition"] for row in rows} == {"cosine[off_diagonal]", UNIT}
    assert "unknown site in these scans 'blok'" in failed(scans[0], scans[2], "--sites", "blok")


def test_exit_codes(scans: tuple[Path, Path, Path], tmp_path: Path) -> None:
    assert run(scans[0], scans[2]).exit_code == 0
    changed = run(scans[0], scans[2], "--fail-if-changed")
    assert changed.exit_code == 1
    assert "The verdict is healthy in before" in changed.stdout
    assert changed.stderr.startswith("changed: ")
    assert run(scans[0], scans[1], "--fail-if-changed").exit_code == 0
    for name, seed in (("one", 0), ("two", 1)):
        random_scan(name, tokens=(9,), seed=seed).save(tmp_path / f"{name}.json")
    alone = (tmp_path / "one.json", tmp_path / "two.json")
    assert run(*alone).exit_code == 0
    undecided = run(*alone, "--fail-if-changed")
    assert undecided.exit_code == 3
    assert "one text has no spread" in undecided.stderr
    assert undecided.stdout  # the comparison itself is told all the same
    assert run(*alone, "--fail-if-changed", "--undecided", "ok").exit_code == 0
    assert run(*alone, "--fail-if-changed", "--undecided", "fail").exit_code == 1


def test_a_change_that_rounding_may_have_made_is_undecided(tmp_path: Path) -> None:
    """Beyond chance, within the floors: no change in float32, whose floors hide no digit that is shown."""

    def both(dtype: str, change: float, noise: float) -> tuple[Path, Path]:
        found = []
        for name, moved in (("a", 0.0), ("b", change)):
            path = tmp_path / f"{dtype}-{name}.json"
            # ranks are thirty times the others, and would be beyond their floors
            scan = random_scan(
                name,
                change=lambda one, *_, by=moved: 0.0 if one.startswith("effective") else by,
                noise=noise,
                dtype=dtype,
            )
            scan.save(path)
            found.append(path)
        return found[0], found[1]

    coarse = run(*both("bfloat16", 0.05, 1e-3), "--fail-if-changed")
    assert coarse.exit_code == 3, coarse.output
    assert "no more than rounding can make" in coarse.stderr
    assert "rounding floor" in coarse.stderr
    assert run(*both("float32", 1e-6, 1e-8), "--fail-if-changed").exit_code == 0
    assert run(*both("float32", 1e-3, 1e-8), "--fail-if-changed").exit_code == 1


def test_a_number_that_was_lost_is_not_unchanged(tmp_path: Path) -> None:
    scan = random_scan("a")
    scan.save(tmp_path / "a.json")
    told = json.loads((tmp_path / "a.json").read_text())
    for row in told["rows"]:
        if row["layer"] == 2:
            row.update({"value": None, "log10_value": None, "resolved": False})
    for entry in told["summary"]:
        if entry["layer"] == 2:
            entry.update(dict.fromkeys(("mean", "std", "min", "max")))
    (tmp_path / "b.json").write_text(json.dumps(told))
    result = run(tmp_path / "a.json", tmp_path / "b.json", "--fail-if-changed")
    assert result.exit_code == 3
    assert "at layer 2" in result.stderr
    assert "no number" in result.stderr


def test_wrong_use_is_one_line(scans: tuple[Path, Path, Path], tmp_path: Path) -> None:
    assert "needs two scans or more, got 1" in failed(scans[0])
    assert "are one file" in failed(scans[0], scans[0])
    assert "cannot read" in failed(scans[0], tmp_path / "absent.json")
    assert "known formats: .parquet, .csv, .json" in failed(scans[0], tmp_path / "model.safetensors")
    (tmp_path / "text.json").write_text("not json")
    assert "does not hold a table of rankscope" in failed(scans[0], tmp_path / "text.json")
    columns = {"measure": "m", "definition": "m", "value": [1.0], "floor": 0.0}
    Table.from_columns(columns, command="rate").save(tmp_path / "rate.json")
    assert "comes from 'rankscope rate'" in failed(scans[0], tmp_path / "rate.json")
    assert "binary format" in failed(*scans, "--format", "parquet")
    assert "is one of the files that are to be read" in failed(*scans, "--output", scans[0])
    assert "--alpha 2: input should be less than 1" in failed(*scans, "--alpha", "2")
    assert "No such option" in failed(*scans, "--sede", "1")
    assert "needs two scans or more, got 0" in failed()


def test_a_table_from_csv_has_no_verdict_but_the_same_numbers(scans: tuple[Path, Path, Path]) -> None:
    csv = [path.with_suffix(".csv") for path in (scans[0], scans[2])]
    for source, target in zip((scans[0], scans[2]), csv, strict=True):
        Table.load(source).save(target)
    text = run(*csv).stdout
    assert "verdict is" not in text
    whole = run(scans[0], scans[2]).stdout
    assert text.split("\n\n")[4] == whole.split("\n\n")[4]
    assert "Largest significant changes" in text.split("\n\n")[4]


def test_odd_names_do_not_break_lines(tmp_path: Path) -> None:
    paths = [tmp_path / "a\nb.json", tmp_path / "<script>.json"]
    for seed, path in enumerate(paths):
        random_scan("m", seed=seed).save(path)
    told = run(*paths).stdout
    assert "changed from a b to <script>, beyond chance" in told
