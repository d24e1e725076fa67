"""The program as a person meets it: what it prints, where, and how it fails."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rankscope.cli import app
from rankscope.cli.body import Output
from rankscope.cli.fields import items
from rankscope.errors import ConfigError
from rankscope.results import COLUMNS, Table

SMALL = ["collapse", "--layers", "3", "--heads", "2", "--dim", "8", "--tokens", "5"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def failed(*arguments: str) -> str:
    """The one line a failing command prints."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def test_help_needs_no_heavy_library() -> None:
    code = (
        "import sys; from rankscope.cli import app\n"
        "from click.testing import CliRunner\n"
        "assert 'collapse' in CliRunner().invoke(app, ['--help']).output\n"
        "heavy = {'torch', 'scipy', 'transformers', 'polars', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr


def test_python_runs_the_package_as_the_command() -> None:
    command = [sys.executable, "-m", "rankscope", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "rankscope", "")


def test_json_is_one_object_with_the_fixed_columns() -> None:
    result = run(
        *SMALL, "--variant", "san,transformer", "--mask", "full,causal", "--seeds", "2", "--format", "json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["schema"] == "rankscope/2"
    assert found["command"] == "collapse"
    assert list(found["rows"][0])[: len(COLUMNS)] == list(COLUMNS)
    assert len(found["rows"]) == 2 * 2 * 2 * 4 * 2
    row = found["rows"][0]
    assert (row["model"], row["variant"], row["mask"], row["norm"]) == ("random", "san", "full", "none")
    assert (row["layer"], row["site"], row["semantics"], row["head"]) == (0, "block", None, None)
    assert {r["definition"] for r in found["rows"]} == {
        "residual_ratio[composite,mean]",
        "residual[frobenius,mean]",
    }
    assert found["provenance"]["config"]["seeds"] == [0, 1]


def test_the_same_seed_gives_the_same_rows() -> None:
    first, second = (
        json.loads(run(*SMALL, "--seed", "7", "--format", "json").stdout)["rows"] for _ in range(2)
    )
    assert first == second
    of_many = json.loads(run(*SMALL, "--seeds", "8", "--format", "json").stdout)["rows"]
    seventh = [row for row in of_many if row["seed"] == 7]
    assert [row["layer"] for row in seventh] == [row["layer"] for row in first]
    for one, other in zip(seventh, first, strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-9, abs=1e-14)


def test_csv_and_table_and_files(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(*SMALL, "--format", "csv").stdout)))
    assert len(rows) == 8
    text = run(*SMALL).stdout
    assert "residual_ratio[composite,mean]" in text
    assert "means over seeds, geometric for residuals" in text
    for name in ("t.json", "t.csv", "t.parquet"):
        result = run(*SMALL, "--output", str(tmp_path / name))
        assert result.exit_code == 0
        assert result.stdout == ""
        assert f"wrote {tmp_path / name}" in result.stderr
        assert len(Table.load(tmp_path / name)) == 8
    assert run(*SMALL, "--output", str(tmp_path / "t.txt")).exit_code == 0
    assert "residual_ratio" in (tmp_path / "t.txt").read_text()


def test_pictures_and_report(tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "curves.png"
    result = run(*SMALL, "--seeds", "2", "--plot", str(picture), "--output", str(page))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "residual_ratio" in page.read_text()


def test_sites_and_measures_can_be_named() -> None:
    result = run(
        *(*SMALL, "--variant", "transformer", "--placement", "pre", "--norm", "layer"),
        *(
            "--sites",
            "attention,mlp,block,final",
            "--measure",
            "cosine, residual[composite,best]",
            "--format",
            "json",
        ),
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["site"] for row in rows} == {"attention", "mlp", "block", "final"}
    assert {row["definition"] for row in rows} == {"cosine[off_diagonal]", "residual[composite,best]"}
    brackets = [row for row in rows if row["definition"] == "residual[composite,best]"]
    assert all(0 < row["low"] <= row["high"] == row["value"] for row in brackets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "3"], "heads=3 does not divide dim=8"),
        (["--tokens", "1"], "--tokens 1: input should be greater than or equal to 2"),
        (["--tokens", "0"], "--tokens 0"),
        (["--layers", "0"], "--layers 0"),
        (["--layers", "x"], "valid integer"),
        (["--mask", "window:-1"], "at least"),
        (["--mask", "widow:1"], "did you mean 'window'"),
        (["--mask", "file:absent.npy"], "absent.npy"),
        (["--mask", ""], "masks: an empty list was given"),
        (["--norm", "layr"], "did you mean 'layer'"),
        (["--variant", "sam"], "did you mean 'san'"),
        (["--placement", "bef"], "Known: parallel, post, pre, sandwich"),
        (["--position", "rotory"], "did you mean 'rotary'"),
        (["--values", "gausian"], "did you mean 'gaussian'"),
        (["--init", "papr"], "did you mean 'paper'"),
        (["--measure", "residul_ratio"], "did you mean"),
        (["--measure", "dobrushin"], "measures attention maps"),
        (["--sites", "blok"], "did you mean 'block'"),
        (["--dtype", "float8"], "Known: bfloat16, float16, float32, float64"),
        (["--device", "gpu7"], "device 'gpu7' is not available"),
        (["--seeds", "0"], "need at least one network"),
        (["--seed", "-1"], "--seed -1: input should be greater than or equal to 0"),
        (["--sites", "mlp"], "has an MLP to measure"),
        (["--seed", "1", "--seeds", "2"], "not both"),
        (["--sede", "1"], "No such option '--sede'"),
        (["--format", "xml"], "unknown format 'xml'"),
        (["--output", "/nowhere/at/all.json"], "/nowhere/at"),
        (["--plot", "curves.bmp"], ".bmp"),
        (["--plot", "same.svg", "--output", "./same.svg"], "ends like a picture"),
        (["--format", "parquet"], "give --output FILE"),
        (["--position", "rotary:1:2"], "fraction is at most 1"),
        (["--tokens", "99999999999999999999"], "less than or equal to 16384"),
        (["--dim", "99999999999999999999"], "less than or equal to 65536"),
        (["--layers", "99999999999999999999"], "less than or equal to"),
        (["--seeds", "99999999999999999999"], "at most"),
        (["--seed", "99999999999999999999"], "--seed 99999999999999999999: input should be less than"),
        (["--device", "meta"], "not available"),
    ],
)
def test_wrong_use_is_one_line_and_code_two(arguments: list[str], message: str) -> None:
    assert message in failed(*SMALL, *arguments)


def test_a_picture_without_numbers_is_no_failure(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    arguments = (*SMALL, "--init", "rezero", "--sites", "final", "--measure", "residual_ratio")
    result = run(*arguments, "--plot", str(tmp_path / "p.png"), "--output", str(kept))
    assert result.exit_code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")  # it says that there is no number to draw
    assert len(Table.load(kept)) == 1


def test_repeated_names_run_once() -> None:
    twice = run(
        *SMALL, "--mask", "full,full", "--measure", "residual,residual[frobenius,mean]", "--format", "json"
    )
    assert len(json.loads(twice.stdout)["rows"]) == 4


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m rankscope.cli list measures | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602 - a pipe
    assert "Traceback" not in done.stderr


def test_a_failing_run_leaves_the_old_file(tmp_path: Path) -> None:
    kept = tmp_path / "old.json"
    kept.write_text("precious")
    failed(*SMALL, "--mask", "file:absent.npy", "--output", str(kept))
    assert kept.read_text() == "precious"
    assert os.listdir(tmp_path) == ["old.json"]


def test_a_mask_with_an_empty_row_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "mask.txt"
    path.write_text("1 0 0 0 0\n1 1 0 0 0\n0 0 0 0 0\n1 1 1 1 0\n1 1 1 1 1\n")
    assert "row 2" in failed(*SMALL, "--mask", f"file:{path}")


@pytest.mark.parametrize("what", ["measures", "masks", "parts", "positions", "inits", "variants"])
def test_lists_have_names_and_definitions(what: str) -> None:
    found = json.loads(run("list", what, "--format", "json").stdout)
    assert found["what"] == what
    assert len(found["rows"]) >= 4
    assert all(row["name"] for row in found["rows"])
    assert run("list", what).stdout.splitlines()[2].startswith(found["rows"][0]["name"])
    assert len(run("list", what, "--format", "csv").stdout.splitlines()) >= 5


def test_masks_are_described_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "masks.png"
    result = run("list", "masks", "--tokens", "12", "--plot", str(picture), "--format", "json")
    rows = {row["mask"]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["causal"]["centers"] == [0]
    assert rows["window:2"]["radius"] == 3
    assert rows["blocks:2"]["radius"] is None
    assert picture.read_bytes().startswith(b"\x89PNG")
    one = run("list", "masks", "--tokens", "6", "--mask", "causal", "--plot", str(tmp_path / "mask.svg"))
    assert one.exit_code == 0
    assert "mask causal on 6 tokens" in (tmp_path / "mask.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measurs"], "did you mean 'measures'"),
        (["measures", "--tokens", "3"], "go with 'rankscope list masks'"),
        (["masks", "--mask", "causal"], "need --tokens"),
        (["masks", "--tokens", "0"], "--tokens 0: input should be greater"),
        (["masks", "--format", "html"], "no format 'html'"),
        (["masks", "--tokens", "4", "--mask", ""], "names nothing"),
        (["masks", "--tokens", "99999999"], "up to 16384 tokens"),
    ],
)
def test_wrong_lists(arguments: list[str], message: str) -> None:
    assert message in failed("list", *arguments)


def test_version_and_bare_call() -> None:
    assert run("--version").stdout.startswith("rankscope 0.")
    bare = run()
    assert "collapse" in bare.output
    assert run("colapse").exit_code == 2


def test_listed_keeps_commas_in_brackets() -> None:
    assert items("a[b,c],d , e[f]") == ("a[b,c]", "d", "e[f]")
    assert items(" , ") == ()


def test_format_follows_the_ending_unless_named() -> None:
    assert Output(output=Path("x.JSON")).wanted == "json"
    assert Output(format="csv", output=Path("x.dat")).wanted == "csv"
    assert Output(format="json", output=Path("x.txt")).wanted == "json"
    assert Output().wanted == "table"
    for format_, name in (("csv", "x.json"), ("table", "x.csv"), ("parquet", "x.txt")):
        with pytest.raises(ConfigError, match=f"--output {name} ends like"):
            _ = Output.of(format=format_, output=name).wanted
    with pytest.raises(ConfigError, match=re.escape("--plot x.png")):
        _ = Output(output=Path("x.png")).wanted


def test_split_rows_go_on_below_the_smallest_float(tmp_path: Path) -> None:
    arguments = ("collapse", "--layers", "12", "--heads", "2", "--dim", "32", "--tokens", "16", "--split")
    result = run(*arguments, "--plot", str(tmp_path / "split.png"), "--format", "json")
    assert result.exit_code == 0, result.output
    rows = [r for r in json.loads(result.stdout)["rows"] if r["definition"] == "residual[frobenius,mean]"]
    last = rows[-1]
    assert last["value"] == 0.0
    assert last["log10_value"] < -50_000
    assert last["resolved"]
    assert last["float_value"] <= last["float_floor"]
    assert rows[0]["float_value"] == pytest.approx(rows[0]["value"], rel=1e-12)
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")
    table = run(*arguments).stdout
    assert re.search(r"\de-\d{4,}", table), "the table shows the power of ten"


def test_split_measures_what_it_can(tmp_path: Path) -> None:
    assert "cosine[off_diagonal] cannot be read off a split state" in failed(
        *SMALL, "--split", "--measure", "cosine"
    )
    assert "site block alone" in failed(*SMALL, "--split", "--sites", "final")
    page = tmp_path / "page.html"
    assert (
        run(*SMALL, "--split", "--measure", "diameter,residual[linf,best]", "--output", str(page)).exit_code
        == 0
    )
    assert "estimated from a perturbed run" in page.read_text()


def test_rate_of_the_issue() -> None:
    arguments = (
        "--mask",
        "causal",
        "--tokens",
        "12",
        "--position",
        "none",
        "--heads",
        "1",
        "--layers",
        "200",
    )
    found = json.loads(run("rate", *arguments, "--format", "json").stdout)
    assert found["command"] == "rate"
    fit = found["fit"]
    keys = {"order", "rate", "value_growth", "regime", "uncertainty"}
    assert keys | {"predicted_order", "predicted_rate", "method", "declined"} <= set(fit)
    assert fit["rate"] == pytest.approx(0.5, abs=1e-6)
    assert (fit["predicted_rate"], fit["method"], fit["regime"], fit["declined"]) == (
        0.5,
        "slem",
        "linear",
        [],
    )
    text = run("rate", *arguments).stdout
    assert "predicted factor per layer" in text
    assert "slem" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mask", "widow:1"], "did you mean 'window'"),
        (["--mask", "blocks:13"], "13"),
        (["--tokens", "1"], "--tokens 1"),
        (["--heads", "3"], "does not divide"),
        (["--init", "papr"], "did you mean 'paper'"),
        (["--format", "parquet"], "give --output FILE"),
    ],
)
def test_wrong_rates(arguments: list[str], message: str) -> None:
    assert message in failed("rate", *arguments)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["stuck", "-1"], 0, "-1 is a trivial value: negative cosine, collapsed."),
        (["stuck", "-1.0", "--format", "json"], 0, '"formula": "-1"'),
        (["stuck", "--", "-1"], 0, "negative cosine, collapsed"),
        (["stuck", "-nan"], 2, "which is no value of a loss"),
        (["stuck", "-x"], 2, "No such option"),
        (["stuck", "-1", "--clases", "3"], 2, "--classes"),
        (["stuck", "1", "--margin", "-0.5"], 2, "--margin -0.5: input should be greater than 0"),
    ],
)
def test_a_negative_number_is_no_option(arguments: list[str], code: int, said: str) -> None:
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == code
    assert said in found.output


@pytest.mark.parametrize("told", ["", "no processor found"])
@pytest.mark.parametrize("body", ["    return x\nsys.exit({})\n", "    y = x\n    sys.exit({})\n"])
def test_code_that_ends_the_program_is_told_where(tmp_path: Path, body: str, told: str) -> None:
    """A script without a guard ends it when it is read, a layer when it runs."""
    file = tmp_path / "my_layer.py"
    file.write_text("import sys\ndef mixer(x):\n" + body.format(repr(told or 0)))
    said = failed("rate", f"{file}:mixer", "--tokens", "4", "--dim", "2")
    assert f"ends the program{f' ({told})' if told else ''} in {file}, line 4;" in said
