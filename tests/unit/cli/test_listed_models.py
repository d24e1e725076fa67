"""Names of ``rankscope list models``: no command touches the network for one, and untrained ones say what they are."""

import socket
from dataclasses import replace

import pytest
from click.testing import CliRunner

from rankscope.cli import app
from rankscope.core.registry import Registry
from rankscope.errors import ConfigError
from rankscope.sources import initial, load_drawn, load_model, loading
from rankscope.sources.initial import UNTRAINED, Untrained

SMALL = {"vocab_size": 40}
SIZES = {
    "bert-base": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "albert-base": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "xlnet-base": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "llama-small": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "num_key_value_heads": 1,
    },
}
NOTE = "is listed with initial weights only"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("the network was touched")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def small(monkeypatch):
    """The same names for models that are drawn in no time."""
    found: Registry[Untrained] = Registry("untrained model")
    for name, entry in UNTRAINED.items():
        found.register(name, replace(entry, settings=entry.settings | SMALL | SIZES[name]))
    monkeypatch.setattr(initial, "UNTRAINED", found)
    monkeypatch.setattr(loading, "UNTRAINED", found)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", UNTRAINED)
def test_a_scan_draws_them_and_says_so(name):
    done = run("scan", name)
    assert done.exit_code == 0, done.output
    assert done.output.count(NOTE) == 1
    assert "drawn at random, from seed 0" in done.output
    assert "random tokens, as the model has no tokenizer" in done.output.lower()
    asked = run("scan", name, "--weights", "initial", "--seed", "3", "--random-tokens", "2x6")
    assert asked.exit_code == 0, asked.output
    assert NOTE not in asked.output
    refused = run("scan", name, "--weights", "trained")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert f"{name!r} {NOTE}" in refused.output
    assert "use --weights initial" in refused.output


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ["ablate", "rate", "paths", "certify"])
def test_other_commands_do_the_same(command):
    done = run(command, "bert-base", "--random-tokens", "1x5")
    assert done.exit_code == 0, done.output
    refused = run(command, "bert-base", "--weights", "trained")
    assert (refused.exit_code, refused.output.count("\n")) == (2, 1)
    assert NOTE in refused.output


@pytest.mark.usefixtures("small")
def test_it_is_said_of_an_ablation():
    done = run("ablate", "gpt2", "--random-tokens", "1x5")
    assert done.output.startswith("Ablation of gpt2\ninitial weights, ")
    assert done.output.count(NOTE) == 1
    assert "(the trained ones are openai-community/gpt2 on the Hub)" in done.output


def test_a_forecast_needs_no_network_either():
    for name in UNTRAINED:
        done = run("predict", name)
        assert "the network was touched" not in done.output
        assert done.exit_code in (0, 2)


@pytest.mark.usefixtures("small")
def test_seeds_give_other_weights_and_where_they_come_from_is_a_fact():
    first, again, other = (load_drawn("bert-base", weights=None, seed=seed) for seed in (0, 0, 1))
    name = "encoder.layer.0.attention.self.query.weight"
    weights = [one.model.get_parameter(name) for one in (first, again, other)]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])
    assert first.weights == "initial"
    assert load_model(first.model).weights == "given"
    with pytest.raises(ConfigError, match=NOTE):
        load_model("bert-base")
    with pytest.raises(ConfigError, match="untrained weights are drawn for a name or a folder"):
        load_drawn(first.model, weights="initial")


def test_states_have_no_weights(tmp_path):
    import numpy as np

    np.save(tmp_path / "states.npy", np.ones((2, 1, 3, 4)))
    done = run("scan", str(tmp_path / "states.npy"), "--weights", "initial")
    assert done.exit_code == 2
    assert "--weights needs a live model" in done.output


def test_a_slip_in_the_option_is_one_line():
    done = run("scan", "bert-base", "--weights", "untrained")
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert "weights" in done.output
