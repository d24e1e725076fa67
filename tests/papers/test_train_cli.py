"""``rankscope train`` as a user meets it."""

import json
import os

import pytest
from click.testing import CliRunner

from rankscope.cli.app import app
from rankscope.findings.train import TrainFinding
from rankscope.papers.tasks import load_trained

runner = CliRunner()

SIZES = ["alphabet=4", "length=4", "train=40", "test=30", "warmup=4"]
TINY = [
    *("train", "sort", "--layers", "2", "--heads", "2", "--dim", "8", "--epochs", "3", "--batch", "16"),
    *(part for size in SIZES for part in ("--set", size)),
]


def run(*arguments):
    return runner.invoke(app, [*TINY, *map(str, arguments)])


def test_the_result_is_printed_with_what_it_is_compared_to():
    found = run()
    assert found.exit_code == 0, found.stderr
    assert "sort: token accuracy on held-out sequences is 0." in found.stdout
    assert "after 3 epochs" in found.stdout
    assert "Compare with: naive 0.25," in found.stdout
    assert "Published at the paper's sizes: full model 0.98" in found.stdout
    assert found.stderr == ""


def test_the_folder_holds_model_log_and_result(tmp_path):
    folder = tmp_path / "new" / "run"
    found = run("--output", folder, "--tensorboard", "--plot", tmp_path / "curve.png", "--format", "json")
    assert found.exit_code == 0, found.stderr
    names = {path.name for path in folder.iterdir()}
    assert names == {".lock", "config.json", "log.csv", "model.safetensors", "result.json", "tensorboard"}
    assert (tmp_path / "curve.png").stat().st_size > 1000
    printed = json.loads(found.stdout)
    assert printed["command"] == "train"
    assert printed["schema"] == "rankscope/2"
    assert json.loads((folder / "result.json").read_text()) == printed
    assert TrainFinding.load(folder / "result.json").training.task == "sort"
    assert load_trained(folder / "model.safetensors").config.length == 4


def test_the_same_command_goes_on_and_another_is_refused(tmp_path):
    first = run("--output", tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    again = run("--output", tmp_path)
    assert again.stdout == first.stdout
    other = run("--output", tmp_path, "--seed", "5")
    assert other.exit_code == 2
    assert "seed 0 there, 5 asked" in other.stderr
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_early_stop_is_told():
    found = run("--stop-at", "0")
    assert "Training stopped early: the test score reached 0.0 in epoch 1." in found.stdout


def test_official_settings_are_a_choice():
    found = runner.invoke(app, ["train", "sort", "--official", "--epochs", "0", "--format", "json"])
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["provenance"]["config"]["learning_rate"] == 1e-5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "srot"], "unknown task 'srot'; did you mean 'sort'"),
        (["train", "sort", "--official", "--fast"], "--official and --fast were both given"),
        (["train"], "no task was named"),
        (["train", "sort", "--format", "parquet"], "unknown format 'parquet'"),
        (["train", "sort", "--tensorboard"], "--tensorboard writes a log into a folder"),
        (["train", "sort", "--output", ""], "--output is empty"),
        (["train", "sort", "--corpus", "a.txt"], "--corpus is not for the task 'sort'"),
        (["train", "sort", "--corpus", " "], "--corpus is empty"),
        (["train", "memorize", "--text", "a.txt"], "train has no --text any more; use --corpus"),
        (["train", "memorize", "--corpus", "a.txt"], "a.txt"),
        (["train", "sort", "--set", "warmup"], "--set warmup: expected FIELD=VALUE"),
        (["train", "sort", "--set", "lenght=3"], "did you mean 'length'"),
        (["train", "sort", "--seed", "1", "--set", "seed=2"], "given twice"),
        (["train", "sort", "--heads", "5"], "heads=5 does not divide dim=48"),
        (["train", "sort", "--epochs", "-1"], "--epochs -1"),
        (["train", "sort", "--set", 'dim="x"'], "dim='x'"),
        (["train", "sort", "--set", "learning_rate=NaN"], "learning_rate=nan"),
        (["train", "sort", "--set", "warmup=-1"], "warmup=-1: input should be"),
        (["train", "sort", "--plot", "curve.bmp"], "known formats"),
        (["train", "sort", "--output", "/proc/none"], "/proc/none"),
        (["train", "sort", "--objective", "plane"], "did you mean 'plain'"),
    ],
)
def test_wrong_use_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = runner.invoke(app, arguments)
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert message in found.stderr
    assert os.listdir(tmp_path) == []


def test_an_interrupted_run_says_how_to_go_on(tmp_path, monkeypatch):
    import rankscope.papers.tasks.training as loop

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_epoch", interrupt)
    found = run("--output", tmp_path)
    assert found.exit_code == 130
    assert "interrupted; the same command goes on" in found.stderr
    monkeypatch.undo()
    assert run("--output", tmp_path).exit_code == 0


def test_tasks_and_objectives_are_listed():
    for what, word in (("tasks", "sort"), ("objectives", "plain")):
        found = runner.invoke(app, ["list", what, "--format", "json"])
        assert word in [row["name"] for row in json.loads(found.stdout)["rows"]]
