"""An option that is given and read by nobody is refused in one line: which one, why, and what would work."""

from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit import checkpoint_folders as folders
from rankscope.cli import app
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import Inputs, Limits, Model
from rankscope.findings.scan import ScanConfig
from rankscope.findings.ways import EFFECTS, LOADED, READING
from rankscope.network import Spec, build, generators

IDS = torch.arange(8, 20)[None].repeat(2, 1)
CODE = """
import torch
from kit import checkpoint_folders as folders

model = folders.bert()
ids = torch.arange(8, 20)[None]
loader = [{"input_ids": ids}, {"input_ids": ids}]


def step(given):
    given(ids)


def never(given):
    raise AssertionError("called before the options were looked at")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, ready inputs, hidden states and a file of code."""
    place = tmp_path_factory.mktemp("idle")
    folders.save(folders.bert(), place / "tiny")
    np.save(place / "ids.npy", IDS.numpy())
    np.save(place / "states.npy", np.random.default_rng(0).standard_normal((4, 6, 8)))
    (place / "code.py").write_text(dedent(CODE))
    return place


CALL, INPUTS, LOADER = ("--call", "code.py:never"), ("--inputs", "ids.npy"), ("--loader", "code.py:loader")
DRAWN = ("--random-tokens", "1x6")
STATES = ("scan", "states.npy", "--axes", "layers,tokens,dim")
REFUSED = [
    (("scan", "tiny", *CALL, "--max-tokens", "5"), "--max-tokens", "--texts"),
    (("ablate", "tiny", *CALL, "--batch-size", "2"), "--batch-size", "run as they are"),
    (("certify", "tiny", *LOADER, "--batch-size", "2"), "--batch-size", "run as they are"),
    (("rate", "tiny", *CALL, "--special", "drop"), "--special", "--texts"),
    (("paths", "tiny", *INPUTS, "--max-tokens", "5"), "--max-tokens", "--texts"),
    (("scan", "tiny", *INPUTS, "--special", "keep"), "--special", "--texts"),
    (("scan", "tiny", *INPUTS, "--vocab", "30"), "--vocab", "--random-tokens 2x48"),
    (("scan", "tiny", *DRAWN, "--max-tokens", "4"), "--max-tokens", "--texts"),
    (("scan", "tiny", *DRAWN, "--axes", "tokens,texts"), "--axes", "--inputs"),
    (("scan", "tiny", *INPUTS, "--seed", "3"), "--seed", "--weights initial"),
    (("ablate", "tiny", *INPUTS, "--seed", "0"), "--seed", "--random-tokens 2x48"),
    (("certify", "tiny", "--call", "code.py:step", "--seed", "1"), "--seed", "nothing is drawn"),
    (("paths", "tiny", *LOADER, "--seed", "1"), "--seed", "nothing is drawn"),
    (("scan", "tiny", *DRAWN, "--revision", "main"), "--revision", "org/name"),
    (("rate", "minilm", "--trust-remote-code"), "--trust-remote-code", "folder or a Hub id"),
    (("certify", "code.py:model", *DRAWN, "--allow-pickle"), "--allow-pickle", "folder or a Hub id"),
    (("ablate", "code.py:model", *DRAWN, "--weights", "trained"), "--weights", "taken as they are"),
    (
        ("scan", "tiny", *DRAWN, "--weights", "initial", "--allow-pickle"),
        "--allow-pickle",
        "opens no checkpoint",
    ),
    ((*STATES, "--batch-size", "8"), "--batch-size", "live model"),
    ((*STATES, "--seed", "0"), "--seed", "live model"),
    ((*STATES, "--dtype", "float32"), "--dtype", "live model"),
    ((*STATES, "--undecided", "ok"), "--undecided", "--fail-if"),
    (("certify", "--layers", "2", "--undecided", "fail"), "--undecided", "--require-lower, --require-upper"),
    (("predict", "bert-base", "--undecided", "fail"), "--undecided", "--fail-if-passed"),
    (("compare", "a.json", "b.json", "--undecided", "ok"), "--undecided", "--fail-if-changed"),
    (("rate", "--device", "cpu"), "--device", "name a model"),
    (("rate", "--dtype", "float32"), "--dtype", "name a model"),
    (("predict", "bert-base", "--seed", "0"), "--seed", "--weights initial"),
    (("predict", "bert-base", "--weights", "initial", "--cosine", "0.8"), "--cosine", "without --weights"),
    (("predict", "bert-base", "--weights", "initial", "--tokens", "9"), "--tokens", "without --weights"),
    (("predict", "bert-base", "--revision", "main"), "--revision", "org/name"),
    (("paths", "--layers", "2", "--top", "0", "--score", "norm"), "--score", "--top 20"),
    (("paths", "--layers", "2", "--top", "0", "--seconds", "1"), "--seconds", "--top 20"),
    (("equilibria", "--rank", "2", "--starts", "0", "--trajectories", "5"), "--trajectories", "--starts 200"),
    (
        ("certify", "--layers", "2", "--require-lower", "0.1", "--require-upper", "0.05"),
        "--require-lower 0.1 and --require-upper 0.05",
        "cannot both hold",
    ),
    (("paths", "--layers", "2", "--mlps", "source"), "--mlps", "--variant transformer"),
    (("paths", "--layers", "2", "--count-mlps"), "--count-mlps", "--variant transformer"),
    (("paths", "--layers", "2", "--before-final-norm"), "--before-final-norm", "final norm"),
]


@pytest.mark.parametrize(("words", "option", "instead"), REFUSED, ids=[" ".join(one[0]) for one in REFUSED])
def test_an_option_without_effect_is_refused(
    words: tuple[str, ...], option: str, instead: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert option in result.stderr
    assert instead in result.stderr


ANSWERED = [
    ("scan", "tiny", *INPUTS, "--batch-size", "1", "--weights", "trained", "--device", "cpu"),
    ("scan", "tiny", *DRAWN, "--seed", "3", "--batch-size", "1", "--vocab", "30"),
    ("scan", "tiny", *INPUTS, "--weights", "initial", "--seed", "3"),
    ("scan", "code.py:model", "--loader", "code.py:loader", "--dtype", "float32", "--axes", "texts,tokens"),
    ("paths", "tiny", *INPUTS, "--max-texts", "1", "--sample", "2", "--seed", "1", "--count-mlps"),
    ("rate", "tiny", *INPUTS, "--max-texts", "1", "--layers", "5", "--seed", "1"),
    ("predict", "--layers", "2", "--seed", "1"),
]


@pytest.mark.parametrize("words", ANSWERED, ids=" ".join)
def test_an_option_with_an_effect_is_not(
    words: tuple[str, ...], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output


def test_python_hears_of_fields() -> None:
    model = folders.bert()
    with pytest.raises(ConfigError, match=r"^max_tokens= has no effect on ready inputs: .*texts=") as caught:
        rs.scan(model, inputs={"input_ids": IDS}, max_tokens=4)
    assert caught.value.pieces[0] == Option("max_tokens")
    for fields in ({"revision": "main"}, {"allow_pickle": True}, {"trust_remote_code": True}):
        with pytest.raises(
            ConfigError, match=f"{next(iter(fields))}= has no effect on a model that is loaded"
        ):
            rs.ablate(model, inputs={"input_ids": IDS}, **fields)
    with pytest.raises(ConfigError, match="is on cpu, but meta was asked for"):
        rs.scan(model, inputs={"input_ids": IDS}, device="meta")
    with rs.record(model) as seen:
        model(IDS)
    with pytest.raises(ConfigError, match="batch_size= has no effect on inputs that come call by call"):
        rs.scan(seen, batch_size=2)


def test_trees_and_specs_take_what_is_about_them_alone() -> None:
    spec = Spec(layers=2, heads=1, dim=4)
    tree = build(spec, generators(0)[0])
    with pytest.raises(ConfigError, match="max_tokens= cannot be used"):
        rs.certify(tree, inputs=torch.ones(3, 4).double(), max_tokens=4)
    with pytest.raises(ConfigError, match="seed= has no effect on a tree"):
        rs.certify(tree, inputs=torch.eye(4).double(), seed=4)
    with pytest.raises(ConfigError, match="revision= belongs to a model"):
        rs.certify(spec, revision="main")
    with pytest.raises(ConfigError, match="layers= belongs to a random network, but a Network was named"):
        rs.predict(tree, layers=3)


def test_a_configuration_that_was_written_down_is_accepted_again() -> None:
    model = folders.bert()
    asked = ScanConfig(random_tokens="1x6", full=True)
    again = ScanConfig.of(**asked.model_dump())
    assert asked.explicit == again.explicit == {"random_tokens", "full"}
    assert rs.scan(model, config=again).table.frame.equals(rs.scan(model, config=asked).table.frame)


def test_every_option_that_some_way_does_not_read_has_words() -> None:
    ways = {**READING, **LOADED}
    read = {name for way in ways.values() for name in way.reads}
    assert {name for name in read if name not in EFFECTS} == {"dtype", "device"}  # which every way reads
    assert all({"dtype", "device"} <= set(way.reads) for way in LOADED.values())
    assert read <= {*Model.model_fields, *Inputs.model_fields, *ScanConfig.model_fields}


def test_every_view_with_limits_says_which_they_are() -> None:
    from rankscope.cli.app import COMMANDS
    from rankscope.cli.program import found_at

    views = [found_at(one.view) for one in COMMANDS.values() if one.view]
    limited = [one for one in views if issubclass(one, Limits)]
    assert len(limited) == 5
    for one in limited:
        assert one.limits
        assert set(one.limits) <= set(one.model_fields)
