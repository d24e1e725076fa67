"""``rankscope ablate`` and ``rankscope rate`` on what they cannot do: one line that says what would work."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit.checkpoint_folders import bert, save
from kit.models import MODELS
from rankscope.cli import app
from rankscope.sources.extras import import_timm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save(bert(seed=1, initializer_range=0.4), tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def changed(folder: Path, to: Path, **settings: Any) -> Path:
    """A copy of a checkpoint whose config says something else."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text()) | settings
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_hidden_layers": 9}, "are not in the checkpoint and are random: encoder.layer."),
        ({"num_hidden_layers": 1}, "belong to blocks that config.json lacks: encoder.layer."),
        ({"intermediate_size": 17}, "have another size than config.json says"),
    ],
)
def test_a_config_that_disagrees_with_the_weights(
    settings: dict[str, Any], words: str, folder: Path, tmp_path: Path
) -> None:
    for command in ("ablate", "rate"):
        other = changed(folder, tmp_path / command, **settings)
        said = refused(command, other, "--random-tokens", "2x8")
        assert words in said
        assert "check that config.json belongs to these weights" in said


def test_an_architecture_that_no_family_knows_is_read_from_what_runs(tmp_path: Path) -> None:
    import transformers

    config = transformers.MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)
    transformers.MambaModel(config).save_pretrained(tmp_path / "mamba")
    result = CliRunner().invoke(app, ["ablate", str(tmp_path / "mamba"), "--random-tokens", "2x8"])
    assert result.exit_code == 0, result.output
    assert "what is run is a copy of the model that rankscope builds with the same weights" in result.stdout
    said = refused("certify", tmp_path / "mamba", "--random-tokens", "1x8")
    assert "certify has no rule for the part Opaque" in said
    assert "modeling_mamba.py:" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sites", "mlp", "--variant", "san", "--only-blocks", "1-2"), "no variant among san has an MLP"),
        (("--norm", "none", "--variant", "san,san-norm"), "san and san-norm are the same network"),
        (("--skip-scale", "0.5", "--variant", "san"), "no variant among san has a skip to scale"),
        (("--semantics", "paper", "--norm", "none"), "the paper's code always keeps the norms"),
    ],
)
def test_options_that_come_to_nothing(options: tuple[str, ...], words: str, folder: Path) -> None:
    assert words in refused("ablate", folder, "--random-tokens", "2x8", *options)


def test_the_words_know_that_only_some_blocks_are_cut(folder: Path) -> None:
    options = ("--random-tokens", "2x8", "--only-blocks", "2", "--variant", "san", "--mask", "causal")
    result = CliRunner().invoke(app, ["ablate", str(folder), *options, "--format", "json"])
    found = json.loads(result.stdout)
    assert found["words"][1].startswith("The model with block 2 as san ")
    assert {row["mask"] for row in found["rows"]} == {"full / causal"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layers", "20", "--allow-pickle"), "--allow-pickle belongs to a model, but none was named"),
        (("--layers", "20", "--texts", "x"), "--texts belongs to a model"),
        (("MODEL", "--heads", "2"), "--heads belongs to a random network"),
        (("MODEL", "--random-tokens", "2x8", "--max-texts", "0"), "greater than or equal to 1"),
        (("MODEL", "--random-tokens", "2x8", "--layers", "0"), "--layers 0: input should be greater"),
        (("MODEL", "--text", "a", "--texts", "b"), "give texts, or a file of them, not both"),
    ],
)
def test_rate_of_the_wrong_thing(options: tuple[str, ...], words: str, folder: Path) -> None:
    assert words in refused("rate", *(folder if option == "MODEL" else option for option in options))


def test_rates_of_several_seeds_say_whose_they_are(folder: Path) -> None:
    options = ("--random-tokens", "2x8", "--layers", "6", "--seeds", "2", "--format", "json")
    found = json.loads(CliRunner().invoke(app, ["rate", str(folder), *options]).stdout)
    assert [(fit["seed"], fit["sample"]) for fit in found["runs"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {(row["seed"], row["sample"]) for row in found["rows"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_rates_that_cannot_be_written_are_kept_aside(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = tmp_path / "gone" / "rate.json"
    target.parent.mkdir()

    def vanish(*_: object, **__: object) -> None:
        raise OSError("the folder is gone")

    monkeypatch.setattr("rankscope.results.write_atomically", vanish)
    said = refused("rate", folder, "--random-tokens", "2x8", "--layers", "4", "--output", target)
    assert "the folder is gone" in said


def test_untrained_models_of_timm_by_the_name_of_their_architecture() -> None:
    import_timm()
    from rankscope.sources.initial import initial_model

    one, other = (initial_model("vit_tiny_patch16_224", seed=seed) for seed in (0, 1))
    assert one.kind == "image"
    assert one.name == "vit_tiny_patch16_224"
    assert not bool((one.model.norm.weight == 0).all())
    assert not bool((one.model.blocks[0].attn.qkv.weight == other.model.blocks[0].attn.qkv.weight).all())


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
def test_a_compiled_block_is_looked_into() -> None:
    import copy

    import torch

    from rankscope.sources import translate

    model = copy.deepcopy(MODELS["bert"].model())
    model.encoder.layer[1] = torch.compile(model.encoder.layer[1])
    assert translate(model).proof.worst < 1e-5
