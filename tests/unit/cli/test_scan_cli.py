"""``rankscope scan`` as a person meets it: output, exit codes, wrong input, interruption."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from kit.models import MODELS
from rankscope.cli import app
from rankscope.results import Table
from rankscope.sources import BUILTINS


def run(*arguments):
    return CliRunner().invoke(app, ["scan", *map(str, arguments)])


def failed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT as Hugging Face keeps it, without a tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny-bert"
    MODELS["bert"].model().save_pretrained(path)
    return path


@pytest.fixture
def states(tmp_path):
    """Six layers in which tokens become equal by a factor of three each."""
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(8, 2, 12, 16))
    np.save(tmp_path / "states.npy", 1.0 + noise * (3.0 ** -np.arange(8))[:, None, None, None])
    return tmp_path / "states.npy"


def test_the_verdict_comes_first(folder):
    result = run(folder, "--random-tokens", "2x8")
    assert result.exit_code == 0, result.output
    title, said, words, *_ = result.stdout.split("\n\n")
    assert title.startswith("Scan of tiny-bert\n")
    assert words.startswith("How to read this\nToken: ")
    assert re.match(r"(Healthy: |Not collapsing: (cone|clusters|shared mean|dead directions) )", said)
    assert (
        "\nresidual ratio: the Frobenius norm (root of the sum of squares) of the residual" in result.stdout
    )


def test_the_tree_is_told(folder):
    result = run(folder, "--random-tokens", "2x8", "--no-spectra", "--tree")
    assert result.exit_code == 0, result.output
    said = "blocks 1 to 3, 100% of their weights:\n  Skip\n    Attention: 4 heads, scale 0.3536\n"
    assert said in result.stdout
    assert re.search(r"the tree equals the model to \de-\d+; seen to hold up to", result.stdout)


def test_json_is_one_object_with_sections(folder, tmp_path):
    result = run(folder, "--random-tokens", "2x8", "--output", tmp_path / "scan.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "scan.json").read_text())
    assert found["schema"] == "rankscope/2"
    assert found["command"] == "scan"
    assert {"rows", "provenance", "summary", "verdict", "scan", "definitions"} <= set(found)
    assert found["verdict"]["words"] in result.stderr
    assert Table.load(tmp_path / "scan.json").frame.height == len(found["rows"])


@pytest.mark.parametrize("ending", ["csv", "html", "parquet", "txt"])
def test_other_formats_are_written(folder, tmp_path, ending):
    result = run(folder, "--random-tokens", "1x6", "--output", tmp_path / f"scan.{ending}")
    assert result.exit_code == 0, result.output
    assert (tmp_path / f"scan.{ending}").stat().st_size > 500


def test_a_picture_is_drawn(folder, tmp_path):
    result = run(folder, "--random-tokens", "1x6", "--plot", tmp_path / "scan.svg")
    assert result.exit_code == 0, result.output
    assert "<svg" in (tmp_path / "scan.svg").read_text()


def test_hidden_states_in_a_file_are_scanned(states):
    result = run(states)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Scan of states\n")
    assert "\nCollapsing: from layer 1 on" in result.stdout


def test_states_of_three_axes_are_asked_about(folder, states, tmp_path):
    one = tmp_path / "one.npy"
    np.save(one, np.load(states)[:, 0])
    assert "--axes layers,tokens,dim or --axes texts,tokens,dim" in failed(one)
    result = run(one, "--axes", "layers,tokens,dim")
    assert result.exit_code == 0, result.output
    assert "\nCollapsing: from layer 1 on" in result.stdout
    assert "axes are (layers, tokens, dim) as given: one text" in result.stdout
    assert "axes 'layers,tokens,dim' are 3" in failed(states, "--axes", "layers,tokens,dim")
    assert "cannot be read" in failed(one, "--axes", "layers,token,dim")
    assert "names the axes of ready inputs" in failed(
        folder, "--random-tokens", "2x8", "--axes", "layers,tokens,dim"
    )


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("residual_ratio<0.01", 1),
        ("residual_ratio<1e-9", 0),
        ("cosine>0.999", 1),
        ("residual_ratio[frobenius,mean,unit]<=0.001, cosine > 2", 1),
        ("stable_rank<0.5", 0),
    ],
)
def test_a_crossed_condition_sets_the_exit_code(states, rule, code):
    result = run(states, "--fail-if", rule)
    assert result.exit_code == code, result.output
    assert ("holds at layer" in result.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("rule", "code", "words"),
    [
        ("residual_ratio<0.01", 1, "holds at layer 1 of blocks, value"),  # all of 0 .. floor is below
        ("residual_ratio<1e-9", 3, "is undecided at layer 1 of blocks, value"),
        ("residual_ratio>0.01", 0, ""),  # none of 0 .. floor is above
        (
            "residual_ratio<1e-9, cosine>0.9",
            1,
            "cosine[off_diagonal]>0.9 holds",
        ),  # crossed outweighs undecided
        ("residual_ratio<1e-9, residual_ratio>0.01", 3, "limit 1e-9"),
    ],
)
def test_an_unresolved_number_is_held_against_all_it_may_be(tmp_path, rule, code, words):
    """Tokens equal to the rounding of float32: the ratio is anything from zero to its floor."""
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((4, 2, 1, 16)) * np.ones((1, 1, 8, 1))
    states = (shared + 1e-8 * rng.standard_normal((4, 2, 8, 16))).astype(np.float32)
    np.save(tmp_path / "states.npy", states)
    result = run(tmp_path / "states.npy", "--fail-if", rule)
    assert result.exit_code == code, result.stderr
    assert words in result.stderr
    assert ("rounding floor" in result.stderr) == (code != 0)
    accepted = {3: 0}.get(code, code)
    assert run(tmp_path / "states.npy", "--fail-if", rule, "--undecided", "ok").exit_code == accepted
    refused = {3: 1}.get(code, code)
    assert run(tmp_path / "states.npy", "--fail-if", rule, "--undecided", "fail").exit_code == refused


def test_one_layer_alone_is_read_by_a_condition(tmp_path):
    """Layer 0 is the input of a stack, but of a file with one layer it is all there is."""
    x = np.ones((1, 2, 8, 4)) + 1e-4 * np.random.default_rng(0).standard_normal((1, 2, 8, 4))
    np.save(tmp_path / "states.npy", x)
    result = run(tmp_path / "states.npy", "--fail-if", "residual_ratio<0.01")
    assert result.exit_code == 1
    assert "holds at layer 0" in result.stderr


def test_thresholds_can_be_set(states):
    assert "\nNot collapsed yet: shared mean" in run(states, "--thresholds", "fall=1e5").stdout
    assert (
        "\nNot collapsed yet: shared mean" in run(states, "--threshold", "fall=1e5").stdout
    )  # as it was called
    assert "did you mean 'collapsed'" in failed(states, "--thresholds", "colapsed=0.1")
    assert "name=value" in failed(states, "--thresholds", "collapsed")
    assert "less than 1" in failed(states, "--thresholds", "collapsed=7")


@pytest.mark.checkpoint
@pytest.mark.skipif(not BUILTINS["minilm"].installed, reason=f"not installed: {BUILTINS['minilm'].pip}")
def test_texts_come_from_a_file_from_stdin_or_from_the_command(tmp_path):
    texts = ["The river had been rising for days.", "Nobody could say whether the bridge would hold."]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    by_file = run("minilm", "--texts", tmp_path / "texts.txt", "--format", "csv")
    by_stdin = CliRunner().invoke(
        app, ["scan", "minilm", "--texts", "-", "--format", "csv"], input="\n".join(texts)
    )
    by_option = run("minilm", "--text", texts[0], "--text", texts[1], "--format", "csv")
    assert by_file.exit_code == 0, by_file.output
    rows = [
        [line.partition(",")[2] for line in one.stdout.splitlines()] for one in (by_file, by_stdin, by_option)
    ]
    assert len(rows[0]) > 100
    assert rows[0] == rows[1] == rows[2]  # all but the name of the run, which the options give


def test_wrong_input_is_one_line(folder, tmp_path, states, monkeypatch):
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "folder").mkdir()
    cases = {
        ("no/such/folder/here",): "no folder or file",
        (tmp_path / "folder",): "config.json",
        (folder,): "--random-tokens 2x48",
        (folder, "--random-tokens", "2"): "expected TxN",
        (folder, "--random-tokens", "2x8", "--blocks", "encoder.lair"): "encoder.layer",
        (folder, "--random-tokens", "2x8", "--special", "maybe"): "drop",
        (folder, "--random-tokens", "2x8", "--fail-if", "residual_ratio"): "residual_ratio<0.01",
        (folder, "--random-tokens", "2x8", "--fail-if", "residul_ratio<1"): "residual_ratio",
        (folder, "--random-tokens", "2x8", "--batch-size", "0"): "--batch-size 0",
        (folder, "--random-tokens", "2x8", "--resume"): "nothing to resume",
        (folder, "--random-tokens", "2x8", "--loss", "nowhere:f"): "nowhere",
        (states, "--attention"): "live model",
        (tmp_path / "empty.txt",): "not a model",
    }
    monkeypatch.chdir(tmp_path)
    for arguments, words in cases.items():
        assert words in failed(*arguments), arguments


def test_what_fails_inside_the_model_is_one_line(folder, tmp_path):
    np.save(tmp_path / "ids.npy", np.full((1, 6), 10**6))
    line = failed(folder, "--inputs", tmp_path / "ids.npy")
    assert "BertModel failed on the texts" in line
    assert "IndexError" in line


def test_states_without_numbers_decide_no_condition(tmp_path):
    np.save(tmp_path / "states.npy", np.full((3, 2, 5, 4), np.nan))
    result = run(tmp_path / "states.npy", "--fail-if", "residual_ratio<0.01")
    assert result.exit_code == 3
    assert "is undecided at layer 1 of blocks, 2 of 2 texts have no number" in result.stderr
    assert "finite" in failed(tmp_path / "states.npy", "--fail-if", "residual_ratio<nan")
    assert "no condition" in failed(tmp_path / "states.npy", "--fail-if", ",")


def test_options_of_live_models_are_not_ignored_for_states(states):
    assert "--max-texts needs a live model" in failed(states, "--max-texts", "1")


def test_an_unfinished_scan_of_another_is_left_alone(folder, tmp_path):
    old = tmp_path / "scan.json.partial.json"
    old.write_text("{}")
    result = run(folder, "--random-tokens", "1x6", "--output", tmp_path / "scan.json")
    assert result.exit_code == 0, result.output
    assert old.read_text() == "{}"


def test_a_pickle_is_refused_unless_allowed(folder, tmp_path):
    torch.save(MODELS["bert"].model().state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert "--allow-pickle" in failed(tmp_path, "--random-tokens", "1x6")
    assert run(tmp_path, "--random-tokens", "1x6", "--allow-pickle").exit_code == 0


def test_remote_code_is_refused_unless_allowed(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert "--trust-remote-code" in failed(tmp_path, "--random-tokens", "1x6")


def test_a_corrupted_file_is_told(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    whole = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "model.safetensors" in failed(tmp_path, "--random-tokens", "1x6")


SLOW = """
import time
from torch import nn
layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
model = nn.Sequential(nn.Embedding(50, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
calls = []
def slowly(*_):
    calls.append(0)
    if len(calls) == 4:
        open("running", "w").close()
    time.sleep(0.2)
model.register_forward_hook(slowly)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are different there")
def test_an_interrupt_saves_what_was_measured(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", "rankscope.cli", "scan", "slow.py:model", "--random-tokens", "400x6"]
    command += ["--batch-size", "1", "--output", "scan.json"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, **pipes)  # noqa: S603 - our own program
    until = time.monotonic() + 120
    while not (tmp_path / "running").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err.count("\n") == 1, err
    assert "scan.json.partial.json" in err
    assert "--resume" in err
    kept = Table.load(tmp_path / "scan.json.partial.json")
    assert 1 <= kept.sections["scan"]["texts"] < 400
    assert not (tmp_path / "scan.json").exists()
