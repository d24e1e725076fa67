"""``rankscope equilibria`` as a person meets it: text, files, pictures, wrong input."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from kit.html_reader import Reader
from rankscope import EquilibriaFinding, Table, equilibria
from rankscope.cli import app
from rankscope.errors import FileError

FEW = ("--starts", 8, "--steps", 60, "--newton", 0, "--trajectories", 1, "--pushes", 0)
TINY = ("--tokens", 3, "--dim", 2, *FEW)


def run(*arguments):
    return CliRunner().invoke(app, ["equilibria", *map(str, arguments)])


def good(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def failed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_json_is_the_finding_of_the_library():
    found = json.loads(good(*TINY, "--rank", 2, "--seed", 3, "--format", "json").stdout)
    wanted = equilibria(
        tokens=3, dim=2, rank=2, seed=3, starts=8, steps=60, newton=0, trajectories=1, pushes=0
    )
    assert (found["schema"], found["command"]) == ("rankscope/2", "equilibria")
    same = json.loads(wanted.to_json())
    for one in (found, same):
        del one["provenance"]
    assert found == same


def test_the_text_says_the_conclusion_first_and_then_what_was_found():
    text = good("--rank", 3, *FEW).stdout
    assert text.startswith(
        "Equilibria of X <- norm(A X W)\n"
        "6 tokens of dim 4, mask causal, uniform attention, values shear:10, norm sphere\n\n"
        "There is an equilibrium of rank 3, proven: one step moves no entry of its tokens by more than "
    )
    assert "The equilibrium of rank 3\n" in text
    assert re.search(r"^rank +3, proven; 3 singular values above the threshold \d\.\de-\d+$", text, re.M)
    assert re.search(r"^proof +3 tokens have their first entry that is not zero in 3 different", text, re.M)
    assert re.search(r"^mean \|cos\| +0\.9\d+ between two tokens$", text, re.M)
    assert re.search(r"^stability +neutral to first order: token", text, re.M)
    assert re.search(r"^token +0 +1 +2 +3$", text, re.M)
    assert "Where 8 random starts are after at most 60 steps." in text
    assert "The same weights without the norm, from the tokens of the equilibrium" in text


def test_a_search_without_a_rank():
    text = good(*TINY, "--values", "identity").stdout
    assert "All 8 random starts end with all tokens equal: they collapse." in text
    assert "Equilibrium 1, reached by 100% of the starts, has rank 1 and is neutral to first order" in text
    assert re.search(r"^ +8 +100% +\d+% to 100% +equilibrium 1 +1$", text, re.M)
    assert "the first random start" in text


def test_files_a_picture_and_a_report(tmp_path):
    bare = (*TINY, "--rank", 2, "--starts", 0, "--trajectories", 0)  # few pictures
    result = good(*bare, "--output", tmp_path / "a.parquet", "--plot", tmp_path / "a.svg")
    assert f"wrote {tmp_path / 'a.parquet'}" in result.stderr
    assert Table.load(tmp_path / "a.parquet").frame["kind"].to_list().count("equilibrium") == 4
    assert "<svg" in (tmp_path / "a.svg").read_text()
    page = good(*bare, "--format", "html").stdout
    assert Reader(page).open == []
    assert "The equilibrium of rank 2" in page


def test_rows_as_lines_of_csv():
    lines = good(
        *TINY, "--rank", 1, "--starts", 0, "--trajectories", 0, "--format", "csv"
    ).stdout.splitlines()
    assert {"kind", "step"} <= set(lines[0].split(","))
    assert any(",equilibrium," in line for line in lines)


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((2, 3)))
    np.save(tmp_path / "nan.npy", np.full((2, 2), np.nan))
    np.save(tmp_path / "zero.npy", np.zeros((2, 2)))
    (tmp_path / "text.csv").write_text("a,b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", 0), "--tokens 0: a system needs at least 2 tokens"),
        (("--tokens", 1), "one alone has nothing to mix with"),
        (("--dim", 0), "--dim 0: a token needs at least 1 number"),
        (("--rank", 0), "--rank 0 is impossible: 6 tokens of dim 4 have rank 1 to 4"),
        (("--rank", 9), "--rank 9 is impossible: 6 tokens of dim 4 have rank 1 to 4"),
        (
            ("--rank", 5, "--tokens", 4, "--dim", 8),
            "--rank 5 is impossible: 4 tokens of dim 8 have rank 1 to 4",
        ),
        (("--rank", 2, "--values", "identity"), "use --values shear:10, or leave the rank out"),
        (("--rank", 2, "--norm", "layer"), "use --norm sphere"),
        (("--rank", 2, "--attention", "gaussian"), "use --attention uniform"),
        (("--rank", 2, "--mask", "full"), "full"),
        (("--values", "shar:3"), "unknown value map 'shar'; did you mean 'shear'?"),
        (("--values", "shear"), "such as shear:10"),
        (("--values", "shear:inf"), "expected a number after the colon, got 'inf'"),
        (("--attention", "sofmax:1"), "unknown attention 'sofmax'; did you mean 'softmax'?"),
        (("--attention", "softmax:-1"), "an inverse temperature is 0 or more"),
        (("--attention", "weight:1", "--tokens", 2), "between 0 and 1"),
        (("--attention", "weight:0.5"), "use --tokens 2 and --mask causal, or --attention uniform"),
        (("--norm", "shpere"), "unknown norm 'shpere'; did you mean 'sphere'?"),
        (("--mask", "casual"), "unknown mask 'casual'; did you mean 'causal'?"),
        (("--starts", 0), "--starts 0 without a rank leaves nothing to do"),
        (("--steps", 0), "--steps 0"),
        (("--seed", -1), "--seed -1"),
        (("--tokens", 3000, "--dim", 3000), "its Jacobian has the square of that; at most 4,096 fit"),
        (("--tokens", 60, "--dim", 60, "--starts", 100000), "do not fit in memory at once; at most"),
        (("--plot", "a.pdf"), ".svg"),
        (("--format", "parquet"), "parquet is a binary format"),
        (("--sede", 3), "No such option"),
        (("--dim", 2, "--values", "file:{}/wide.npy"), "is 2 x 3; tokens of dim 2 need 2 x 2"),
        (("--dim", 2, "--values", "file:{}/nan.npy"), "holds NaN or infinity"),
        (("--dim", 2, "--values", "file:{}/zero.npy"), "sends token 0 of start 0 to zero"),
        (("--dim", 2, "--values", "file:{}/text.csv"), "expected lines of numbers between commas"),
        (("--dim", 2, "--values", "file:{}/none.npy"), "no such file"),
        (("--dim", 2, "--values", "file:{}/a.pt"), "expected a file ending in .npy, .csv, .safetensors"),
    ],
)
def test_wrong_input_is_one_line(arguments, words, files):
    assert words in failed(*(str(one).format(files) for one in arguments))


def test_a_failure_leaves_output_files_as_they_were(tmp_path):
    kept = tmp_path / "a.json"
    kept.write_text("old")
    failed("--rank", 9, "--output", kept)
    assert kept.read_text() == "old"


def test_results_that_cannot_be_written_are_kept_aside(monkeypatch, tmp_path):
    def full(*_):
        raise FileError("the disk is full")

    monkeypatch.setattr("rankscope.results.write_atomically", full)  # finding.save has its own name for it
    said = failed(*TINY, "--rank", 1, "--starts", 0, "--trajectories", 0, "--output", tmp_path / "a.json")
    place = re.search(r"the disk is full; the results are in (\S+)", said)
    assert place
    assert EquilibriaFinding.load(place[1]).rank == 1


def test_files_that_are_read_are_not_replaced(files):
    words = failed("--dim", 2, "--values", f"file:{files / 'zero.npy'}", "--output", files / "zero.npy")
    assert "zero.npy" in words
    assert np.load(files / "zero.npy").shape == (2, 2)
