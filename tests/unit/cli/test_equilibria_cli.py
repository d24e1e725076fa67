"""``rankscope equilibria`` as a person meets it: text, files, pictures, wrong input."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.cli.equilibria_text import equilibria_text
from rankscope.errors import FileError
from rankscope.results import Table
from rankscope.results.equilibria_lines import (
    fact_lines,
    list_lines,
    multiplier_words,
    power_of_ten,
    returns_words,
    stable_word,
    token_lines,
)
from rankscope.studies.equilibria_study import equilibria

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


def test_json_is_the_table_of_the_library():
    told = json.loads(good(*TINY, "--rank", 2, "--seed", 3, "--format", "json").stdout)
    wanted = equilibria(
        tokens=3, dim=2, rank=2, seed=3, starts=8, steps=60, newton=0, trajectories=1, pushes=0
    )
    assert told["schema"] == "rankscope/1"
    assert told["command"] == "equilibria"
    for name in ("system", "equilibrium", "equilibria", "basins", "trajectories", "notes"):
        assert told[name] == wanted.sections[name]
    assert [row["value"] for row in told["rows"]] == wanted.frame["value"].to_list()


def test_the_text_says_what_the_system_is_and_what_was_found():
    text = good("--rank", 3, *FEW).stdout
    assert text.startswith(
        "X <- norm(A X W): 6 tokens of dim 4, mask causal, uniform attention, values shear:10, norm sphere\n"
    )
    assert "the equilibrium of rank 3\n" in text
    assert re.search(r"^  rank +3, proven; 3 singular values above the threshold \d\.\de-\d+$", text, re.M)
    assert re.search(r"^  proof +3 tokens have their first entry that is not zero in 3 different", text, re.M)
    assert re.search(r"^  a step moves it by +\d\.\de-1[3-9] at most$", text, re.M)
    assert re.search(r"^  mean \|cos\| +0\.9\d+ between two tokens$", text, re.M)
    assert re.search(r"^  stability +\S", text, re.M)
    assert re.search(r"^token +0 +1 +2 +3$", text, re.M)
    assert "where 8 random starts are after at most 60 steps" in text
    assert re.search(
        r"^note: the same weights without the norm, from the tokens of the equilibrium", text, re.M
    )
    assert max(map(len, text.splitlines())) <= 120


def test_a_search_without_a_rank():
    text = good(*TINY, "--values", "identity").stdout
    assert "the equilibrium that more starts reach than any other (100%)" in text
    assert re.search(r"^\d +\d+(\.\d+)?% +equilibrium 1 +1$", text, re.M)
    assert "the first random start" in text


def test_separate_limits_are_said_first():
    text = good(*FEW, "--tokens", 4, "--dim", 2, "--mask", "blocks:2", "--values", "identity").stdout
    assert text.splitlines()[1].startswith(
        "note: mask blocks:2 on 4 tokens: 2 components read nothing outside"
    )


def test_files_a_picture_and_a_report(tmp_path):
    bare = (*TINY, "--rank", 2, "--starts", 0, "--trajectories", 0)  # few pictures
    result = good(*bare, "--output", tmp_path / "a.parquet", "--plot", tmp_path / "a.svg")
    assert f"wrote {tmp_path / 'a.parquet'}" in result.stderr
    assert "note: the same weights without the norm" in result.stderr
    table = Table.load(tmp_path / "a.parquet")
    assert table.sections["equilibrium"]["rank"] == 2
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert equilibria_text(table).startswith("X <- norm(A X W): 3 tokens of dim 2")
    page = good(*bare, "--format", "html").stdout
    assert Reader(page).open == []
    assert "The equilibrium of rank 2" in page


def test_rows_as_lines_of_csv():
    lines = good(*TINY, "--rank", 1, "--starts", 0, "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("run,model,variant")
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
        (("--tokens", 0), "tokens=0: a system needs at least 2 tokens"),
        (("--tokens", 1), "one alone has nothing to mix with"),
        (("--dim", 0), "dim=0: a token needs at least 1 number"),
        (("--rank", 0), "rank=0 is impossible: 6 tokens of dim 4 have rank 1 to 4"),
        (("--rank", 9), "rank=9 is impossible: 6 tokens of dim 4 have rank 1 to 4"),
        (
            ("--rank", 5, "--tokens", 4, "--dim", 8),
            "rank=5 is impossible: 4 tokens of dim 8 have rank 1 to 4",
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
        (("--attention", "weight:0.5"), "is of 2 tokens under the causal mask, got 6 tokens"),
        (("--norm", "shpere"), "unknown norm 'shpere'; did you mean 'sphere'?"),
        (("--mask", "casual"), "unknown mask 'casual'; did you mean 'causal'?"),
        (("--starts", 0), "starts=0 without a rank leaves nothing to do"),
        (("--steps", 0), "--steps 0"),
        (("--seed", -1), "--seed -1"),
        (("--tokens", 3000, "--dim", 3000), "its Jacobian has the square of that; at most 4,096 fit"),
        (("--tokens", 60, "--dim", 60, "--starts", 100000), "do not fit in memory at once; at most"),
        (("--plot", "a.pdf"), "known formats: .png"),
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

    monkeypatch.setattr("rankscope.results.write_atomically", full)
    said = failed(*TINY, "--rank", 1, "--starts", 0, "--output", tmp_path / "a.json")
    place = re.search(r"the disk is full; the results are in (\S+)", said)
    assert place
    assert Table.load(place[1]).command == "equilibria"


def test_numbers_as_text():
    assert [power_of_ten(log) for log in (0.0, -0.5, -4.5, -601.4998, -5 - 1e-9)] == [
        "1",
        "0.316",
        "3.16e-5",
        "3.16e-602",
        "1.00e-5",
    ]
    one = {"components": [{"tokens": [n], "largest_multiplier": 0.5} for n in range(4)]}
    assert multiplier_words(one) == "0.5 (tokens 0-3)"
    header, rows = token_lines({"tokens": [[-0.0] * 9] * 13})
    assert header[-1] == "..."
    assert rows[0][1] == "0.000000"
    assert rows[-1][0] == "..."


def test_numbers_that_are_not_known_are_dashes():
    one = {"rank": 1, "rank_proof": None, "rank_threshold": 1e-15, "singular_values": [1.0], "digits": 15}
    one |= {"equation_residual": 0.0, "mean_abs_cosine": None, "components": [], "stability": "neutral"}
    one |= {"returns": None, "share": None, "largest_multiplier": None, "stable": None}
    assert [name for name, _ in fact_lines(one)] == [
        "rank",
        "singular values",
        "a step moves it by",
        "multipliers",
        "stability",
    ]
    assert list_lines([one])[0][2:6] == ["-", "-", "neutral", "-"]


def test_what_comes_back_and_what_is_not_decided():
    one = {"returns": 0.47, "returns_mirrored": 0.5, "push_size": 0.01, "push_steps": 1000}
    said = "within 1,000 steps: 47% of random pushes of 1%"
    assert returns_words(one) == f"{said}, 50% more to the mirror image"
    assert returns_words(one | {"returns_mirrored": None}) == said
    assert [stable_word(*one) for one in ((None, [2]), (None, []), (True, []), (False, [1]))] == [
        "not decided",
        "neutral",
        "yes",
        "no",
    ]
    assert token_lines({"tokens": [[-1e-12, 0.5]]})[1] == [["0", "-1.0e-12", "0.500000"]]


def test_a_long_list_is_cut_but_for_the_one_that_was_asked_for():
    one = {"rank": 1, "share": 0.5, "largest_multiplier": 0.5, "stable": True, "mean_abs_cosine": 1.0}
    many = [one | {"singular_values": [float(n)], "found_by": "run"} for n in range(20)]
    lines = list_lines(many, many[17], most=3)
    assert [line[0] for line in lines] == ["1", "2", "3", "18", "16 more"]
    assert lines[0] == ["1", "1", "50%", "0.5", "yes", "1.0000", "0.0e+00", "run"]
