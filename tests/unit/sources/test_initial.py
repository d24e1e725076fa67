"""Untrained models: the library's own draw, the same for a seed, no other random numbers touched, clear refusals."""

import json

import pytest
import torch
import transformers

from kit.checkpoint_folders import bert_config, word_tokenizer
from rankscope.errors import ConfigError, FileError, RankscopeError, UnknownNameError
from rankscope.sources import BUILTINS, load_model
from rankscope.sources.initial import UNTRAINED, initial_model, is_config_only, reset

CHECKPOINTS = [
    pytest.param(
        name,
        marks=[
            pytest.mark.checkpoint,
            pytest.mark.skipif(not BUILTINS[name].installed, reason=f"not installed: {BUILTINS[name].pip}"),
        ],
    )
    for name in ("minilm", "rxnmapper", "sapiens", "ruaccent")
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def bare(tmp_path):
    """A folder with nothing but a config."""
    bert_config().save_pretrained(tmp_path / "bare")
    return tmp_path / "bare"


def written(folder, config):
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def weights(loaded):
    return dict(loaded.model.named_parameters())


def test_the_weights_are_those_that_transformers_draws_from_the_seed(bare):
    found = weights(initial_model(bare, seed=5))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = dict(transformers.BertModel(bert_config()).named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name], parameter, rtol=0, atol=0)


def test_seeds_differ_and_nothing_else_is_touched(bare):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (weights(initial_model(bare, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(first[name], other[name])


def test_what_is_loaded(bare):
    found = initial_model(bare)
    assert (found.name, found.kind, found.dtype, found.tokenizer) == ("bare", "text", torch.float32, None)
    assert found.max_tokens == 40
    assert not found.model.training


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_another_dtype_is_the_same_model_rounded(bare, dtype):
    plain, cast = initial_model(bare, seed=3), initial_model(bare, seed=3, dtype=dtype)
    assert cast.dtype == getattr(torch, dtype)
    for name, parameter in weights(plain).items():
        assert torch.equal(weights(cast)[name], parameter.to(cast.dtype))


def test_a_dtype_in_the_config_does_not_count(tmp_path):
    """The rounding plateau of the paper is that of float32, whatever the checkpoint was saved in."""
    bert_config(dtype="bfloat16").save_pretrained(tmp_path)
    assert initial_model(tmp_path).dtype == torch.float32


def test_a_tokenizer_in_the_folder_is_used_and_weights_are_not(bare):
    word_tokenizer().save_pretrained(bare)
    (bare / "model.safetensors").write_text("not weights at all")
    found = initial_model(bare)
    assert found.tokenizer("the cat")["input_ids"] == [2, 5, 7, 3]


def test_folders_with_a_config_alone_are_told(bare, tmp_path):
    assert is_config_only(bare)
    assert is_config_only(str(bare))
    (bare / "model.safetensors").write_text("")
    assert not is_config_only(bare)
    assert not is_config_only(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "bert-base",
            {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 28_996},
        ),
        (
            "albert-base",
            {"hidden_size": 768, "num_hidden_layers": 12, "embedding_size": 128, "vocab_size": 30_000},
        ),
        (
            "xlnet-base",
            {"d_model": 768, "n_layer": 12, "d_inner": 3072, "vocab_size": 32_000},
        ),
        ("gpt2", {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257}),
        ("llama-small", {"hidden_size": 512, "num_hidden_layers": 12, "num_key_value_heads": 4}),
    ],
)
def test_the_shapes_behind_the_names(name, expected):
    entry = UNTRAINED[name]
    config = transformers.CONFIG_MAPPING[entry.model_type](**entry.settings)
    assert {key: getattr(config, key) for key in expected} == expected
    assert str(expected.get("hidden_size", expected.get("d_model", 768))) in entry.description


def test_a_name_gives_a_model():
    found = initial_model("albert-base", seed=1)
    assert (type(found.model).__name__, found.name, found.parameters) == (
        "AlbertModel",
        "albert-base",
        11_683_584,
    )


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_real_checkpoint_is_drawn_anew(name):
    trained, found, again = load_model(name), initial_model(name, seed=1), initial_model(name, seed=1)
    assert type(found.model) is type(trained.model)
    assert (found.name, found.takes, found.texts) == (name, trained.takes, trained.texts)
    assert len(found.tokenizer) == len(trained.tokenizer)
    theirs = weights(trained)
    for key, parameter in weights(found).items():
        assert torch.equal(parameter, weights(again)[key]), key
        if key in theirs and parameter.dim() > 1:  # vectors begin at zero or one, and some stay there
            assert parameter.shape == theirs[key].shape
            assert not torch.equal(parameter, theirs[key]), key


def test_a_parameter_that_nobody_draws_is_refused():
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.gain = torch.nn.Parameter(torch.ones(2))

    with pytest.raises(ConfigError, match="does not say how its parameter 'gain' is drawn"):
        reset(Own())
    reset(Own().inner)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        (
            {"hidden_size": 8},
            ConfigError,
            'has no model_type; expected an entry such as "model_type": "bert"',
        ),
        ("{", FileError, "cannot read .*config.json"),
        ("[]", FileError, "holds a list"),
        (
            {"model_type": "brt"},
            UnknownNameError,
            "'brt', which this version of transformers .* near names: bert",
        ),
        ({"model_type": "bert", "auto_map": {"AutoModel": "x.Y"}}, ConfigError, "brings code of its own"),
        (
            {"model_type": "bert", "hidden_size": 10, "num_attention_heads": 3},
            FileError,
            "cannot load the config",
        ),
    ],
)
def test_a_wrong_config_is_one_clear_line(tmp_path, config, error, match):
    with pytest.raises(error, match=match) as caught:
        initial_model(written(tmp_path / "wrong", config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("bert-bas", "did you mean 'bert-base'"),
        ("", "no model was named"),
        ("./absent", "there is no folder './absent'"),
        ("mine:model", "your own code's to draw"),
        ("org/absent", "HF_HUB_OFFLINE is set"),
    ],
)
def test_a_wrong_name_is_one_clear_line(source, match):
    with pytest.raises(RankscopeError, match=match):
        initial_model(source)


def test_a_file_of_weights_has_nothing_to_draw(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=r"drawn from a config\.json"):
        initial_model(tmp_path / "model.gguf")


def test_a_seed_is_a_whole_number_from_zero(bare):
    with pytest.raises(ConfigError, match="seeds are integers"):
        initial_model(bare, seed=-1)


def test_no_folder_without_a_config(tmp_path):
    with pytest.raises(FileError, match=r"has no config\.json: found nothing"):
        initial_model(tmp_path)
