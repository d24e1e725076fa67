"""What ``train`` wrote is a model of the other commands: its folder by name, with held-out examples as inputs."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import rankscope as rs
from rankscope.cli.app import app
from rankscope.papers.tasks import load_trained

SMALL = {
    "sort": {"layers": 2, "epochs": 1},
    "hull": {"layers": 2, "epochs": 1},
    "memorize": {"layers": 2, "epochs": 1},
    "circle": {"epochs": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for task, fields in SMALL.items():
        rs.train(task, folder=home / task, fast=True, **fields)
    return home


def run(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("command", ["scan", "ablate", "paths", "certify"])
@pytest.mark.parametrize("task", SMALL)
def test_every_command_reads_it(runs, task, command):
    found = run(command, runs / task, "--max-texts", 2)
    assert found.exit_code == 0, found.stderr
    assert task in found.stdout.splitlines()[0]


@pytest.mark.parametrize("task", SMALL)
def test_states_are_those_of_the_network_that_was_trained(runs, task):
    trained = load_trained(runs / task / "model.safetensors", dtype=torch.float64)
    x, _ = trained.task.held_out(trained.config)
    embedded = trained.model.embed(x[:2]) if hasattr(trained.model, "embed") else x[:2].double()
    wanted = list(trained.model.network.states(embedded))[-1]
    measure = "residual[frobenius,mean]"
    scanned = rs.scan(str(runs / task), dtype="float64", max_texts=2, measures=(measure,))
    frame = scanned.table.where(definition=measure, site="block").frame
    found = frame.filter(frame["layer"] == frame["layer"].max())["value"].to_list()
    residual = (wanted - wanted.mean(dim=-2, keepdim=True)).flatten(1).norm(dim=1)
    assert found == pytest.approx(residual.tolist(), rel=1e-9)


def test_initial_weights_follow_from_the_seed(runs):
    one, same, other = (
        rs.scan(str(runs / "sort"), weights="initial", seed=seed, max_texts=2).table.frame["value"].to_list()
        for seed in (3, 3, 4)
    )
    assert one == same != other


def test_inputs_of_the_user_come_first(runs):
    found = rs.scan(str(runs / "sort"), inputs=torch.zeros(3, 5, dtype=torch.int64))
    assert found.table.frame["sample"].n_unique() == 3


def test_a_folder_that_is_half_written_says_what_to_do(runs, tmp_path):
    whole = runs / "sort"
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    nothing = run("scan", tmp_path)
    drawn = run("scan", tmp_path, "--weights", "initial", "--max-texts", 2)
    assert drawn.exit_code == 0, drawn.stderr
    (tmp_path / "state.safetensors").write_bytes(b"")
    started = run("scan", tmp_path)
    (tmp_path / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:100])
    cut = run("scan", tmp_path)
    for found, words in (
        (nothing, "--weights initial"),
        (started, "not finished"),
        (cut, "model.safetensors"),
    ):
        assert found.exit_code == 2
        assert words in found.stderr
        assert len(found.stderr.strip().splitlines()) == 1


def test_a_configuration_of_somebody_else_is_never_replaced(tmp_path):
    theirs = json.dumps({"model_type": "bert"})
    (tmp_path / "config.json").write_text(theirs)
    found = run("train", "sort", "--fast", "--epochs", 1, "--output", tmp_path)
    assert found.exit_code == 2
    assert "config.json" in found.stderr
    assert (tmp_path / "config.json").read_text() == theirs


class Narrow(nn.Module):
    """As many tokens as channels, and a first block that knows its width: cutting both axes at once must not crash."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dtype=torch.float64) for _ in range(2)
        )

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_as_many_tokens_as_channels():
    torch.manual_seed(0)
    model, x = Narrow().eval(), torch.randn(3, 4, 4, dtype=torch.float64)
    assert rs.paths(model, inputs=x).words
