"""From what a person types to a live model, and one clear line for everything that cannot be loaded."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from kit import checkpoint_folders as folders
from rankscope.errors import ConfigError, FileError, MissingExtraError, RankscopeError, UnknownNameError
from rankscope.sources.extras import import_timm
from rankscope.sources.images import image_batches, sample_images
from rankscope.sources.loaded import inputs_of, kind_of, position_limit
from rankscope.sources.loading import load_attribute, load_model


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """No test may wait for a network that is not there."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A BERT with a head and a tokenizer, not to be changed by a test."""
    return folders.save(
        folders.bert(head=True), tmp_path_factory.mktemp("bert") / "tiny", tokenizer=folders.word_tokenizer()
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    """The same without head and tokenizer, to be broken."""
    return folders.save(folders.bert(), tmp_path / "model")


def fails(error, source, **options) -> str:
    """The message of the error that loading raises, after seeing that it is one line."""
    with pytest.raises(error) as caught:
        load_model(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert isinstance(caught.value, RankscopeError)
    return message


# ------------------------------------------------------------------------------------------- local folders


def test_a_folder_gives_the_bare_model_with_its_tokenizer(saved):
    result = load_model(saved)
    expected = folders.bert(head=True)
    for name, value in expected.bert.state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=0, atol=0)
    assert (result.name, result.kind, result.dtype, result.max_tokens) == ("tiny", "text", torch.float32, 40)
    assert result.parameters == sum(p.numel() for p in result.model.parameters())
    assert {"input_ids", "attention_mask", "token_type_ids"} <= set(result.takes)
    assert result.tokenizer("the cat")["input_ids"] == [2, 5, 7, 3]
    assert not result.model.training
    assert result.warnings == ()  # what is newly initialized is only the pooler


def test_the_head_comes_when_asked_for(saved):
    result = load_model(str(saved), with_head=True)
    assert isinstance(result.model, transformers.BertForMaskedLM)
    for name, value in folders.bert(head=True).state_dict().items():
        torch.testing.assert_close(result.model.state_dict()[name], value, rtol=0, atol=0)


def test_loading_prints_nothing(saved, capfd):
    load_model(saved)
    load_model(saved, with_head=True)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
    assert transformers.utils.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_models_keep_the_dtype_of_their_checkpoint(tmp_path, dtype):
    path = folders.save(folders.bert().to(dtype), tmp_path / "model")
    assert load_model(path).dtype == dtype
    for name in ("float64", torch.float64):
        result = load_model(path, dtype=name)
        assert result.dtype == torch.float64
        assert {p.dtype for p in result.model.parameters()} == {torch.float64}


def test_weights_that_the_checkpoint_lacks_are_reported(folder):
    state = load_file(folder / "model.safetensors")
    missing = sorted(name for name in state if "layer.1.attention.self" in name)
    save_file(
        {k: v for k, v in state.items() if k not in missing}, folder / "model.safetensors", {"format": "pt"}
    )
    (warning,) = load_model(folder).warnings
    assert warning == (
        f"{len(missing)} weights are not in the checkpoint and are random: {', '.join(missing[:3])} "
        f"and {len(missing) - 3} more"
    )


def test_a_missing_pooler_is_not_worth_a_warning(folder):
    state = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in state.items() if "pooler" not in name}
    assert len(kept) < len(state)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert load_model(folder).warnings == ()


def test_weights_of_another_model_are_refused(folder):
    save_file({"nothing.weight": torch.zeros(3)}, folder / "model.safetensors", {"format": "pt"})
    message = fails(FileError, folder)
    assert "none of the weights fits a BertModel" in message
    assert "check that config.json belongs to these weights" in message


def test_weights_of_another_size_are_refused(folder):
    folders.change_config(folder, intermediate_size=48)
    message = fails(FileError, folder)
    assert (
        "6 weights have another size than config.json says: encoder.layer.0.intermediate.dense.bias is (32,)"
        in message
    )
    assert "expected (48,); check that config.json belongs to these weights" in message


def test_blocks_that_the_config_leaves_out_are_reported(folder, saved, tmp_path):
    folders.change_config(folder, num_hidden_layers=1)
    (warning,) = load_model(folder).warnings
    assert warning.startswith("16 weights belong to blocks that config.json lacks: encoder.layer.1.")
    headed = folders.change_config(
        folders.save(folders.bert(head=True), tmp_path / "headed"), num_hidden_layers=1
    )
    (warning,) = load_model(headed).warnings
    assert warning.startswith("16 weights belong to blocks")


def test_shards(tmp_path):
    path = folders.save(folders.bert(), tmp_path / "model", max_shard_size="10KB")
    shards = sorted(path.glob("model-*.safetensors"))
    assert len(shards) > 1
    torch.testing.assert_close(
        load_model(path).model.state_dict(), dict(folders.bert().state_dict()), rtol=0, atol=0
    )
    shards[1].unlink()
    message = fails(FileError, path)
    assert f"names {len(shards)} weight files, of which 1 are missing (first: {shards[1].name})" in message
    (path / "model.safetensors.index.json").write_text("{")
    assert "cannot read" in fails(FileError, path)


# ------------------------------------------------------------------------------------------------- pickles


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_is_refused_unless_it_is_allowed(folder, monkeypatch):
    expected = folders.bert().state_dict()
    folders.as_pickle(folder)
    message = fails(ConfigError, folder)
    assert "only as a pickle (pytorch_model.bin)" in message
    assert "use allow_pickle=True if you trust it" in message
    opened, real = [], torch.load

    def watched(*args, **options):
        opened.append(options["weights_only"])
        return real(*args, **options)

    monkeypatch.setattr(torch, "load", watched)
    result = load_model(folder, allow_pickle=True)
    assert set(opened) == {True}  # an ordinary one is read as tensors and nothing else
    torch.testing.assert_close(result.model.state_dict(), dict(expected), rtol=0, atol=0)
    assert result.warnings == ()


def test_a_pickle_that_runs_code_is_only_opened_when_allowed_and_says_so(folder, tmp_path):
    mark = tmp_path / "ran"
    state = load_file(folder / "model.safetensors")
    folders.as_pickle(folder, {**state, "extra": Payload(mark)})
    fails(ConfigError, folder)
    assert not mark.exists()
    result = load_model(folder, allow_pickle=True)
    assert mark.exists()
    assert "its pickle holds more than tensors and was opened in full" in result.warnings[0]
    torch.testing.assert_close(result.model.state_dict(), dict(folders.bert().state_dict()), rtol=0, atol=0)


def test_safetensors_are_preferred_to_a_pickle_beside_them(folder, tmp_path):
    torch.save({"x": Payload(tmp_path / "ran")}, folder / "pytorch_model.bin")
    load_model(folder, allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_pickle(folder):
    folders.as_pickle(folder)
    (folder / "pytorch_model.bin").write_bytes(b"no pickle at all")
    assert "cannot load the folder" in fails(FileError, folder, allow_pickle=True)


# ------------------------------------------------------------------------------------------ broken folders


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "header"])
def test_damaged_safetensors(folder, damage):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(
        {"cut": content[:-7], "empty": b"", "noise": b"\xff" * 4096, "header": content[:30]}[damage]
    )
    message = fails(FileError, folder)
    assert message.startswith(f"cannot read {str(file)!r}: ")
    assert "the file is damaged or incomplete, copy it again" in message


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    message = fails(FileError, folder)
    assert (
        "has no config.json: found model.safetensors; expected a folder written by save_pretrained" in message
    )


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has no weights: found config.json; expected model.safetensors or a .gguf file" in fails(
        FileError, folder
    )


def test_an_empty_folder_and_an_adapter(tmp_path):
    assert "has no config.json: found nothing" in fails(FileError, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "holds an adapter, not a model; merge it into its base model" in fails(FileError, tmp_path)


@pytest.mark.parametrize("content", ["{", "", "\udcff"])
def test_an_unreadable_config(folder, content):
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert "save the model again with save_pretrained" in fails(FileError, folder)


def test_a_config_that_is_no_model(folder):
    (folder / "config.json").write_text("[1]")
    assert "holds a list; expected an object with a model_type" in fails(FileError, folder)
    (folder / "config.json").write_text("{}")
    assert "cannot load the folder" in fails(FileError, folder)
    (folder / "config.json").write_text('{"model_type": "bort-of-tomorrow"}')
    assert "bort-of-tomorrow" in fails(FileError, folder)


def test_no_architecture_to_load_the_head_from(folder):
    folders.change_config(folder, architectures=None)
    assert "names no architecture; expected one such as BertForMaskedLM" in fails(
        ConfigError, folder, with_head=True
    )
    folders.change_config(folder, architectures=["BertForTelepathy"])
    message = fails(ConfigError, folder, with_head=True)
    assert "names the architecture BertForTelepathy, which transformers does not have" in message


def test_a_folder_without_tokenizer_has_none(folder):
    result = load_model(folder)
    assert result.tokenizer is None
    assert result.warnings == ()


def test_a_broken_tokenizer_is_a_warning(saved, tmp_path):
    path = folders.save(folders.bert(), tmp_path / "model", tokenizer=folders.word_tokenizer())
    (path / "tokenizer.json").write_text("{")
    result = load_model(path)
    assert result.tokenizer is None
    assert result.warnings[0].startswith("its tokenizer could not be loaded: ")


def test_a_tokenizer_larger_than_the_model_is_a_warning(tmp_path):
    big = folders.word_tokenizer(words=[*folders.WORDS, *(f"w{n}" for n in range(50))])
    path = folders.save(folders.bert(), tmp_path / "model", tokenizer=big)
    (warning,) = load_model(path).warnings
    assert warning.startswith(f"the tokenizer has {len(big)} entries but the model has 32 token embeddings")


# --------------------------------------------------------------------------------------------- remote code

CODE = """
import torch
from transformers import BertConfig, BertModel

class OwnModel(BertModel):
    config_class = BertConfig
    own = True
"""


def test_remote_code_is_refused_unless_allowed(folder, tmp_path, monkeypatch):
    folders.change_config(folder, auto_map={"AutoModel": "modeling_own.OwnModel"})
    (folder / "modeling_own.py").write_text(CODE)
    message = fails(ConfigError, folder)
    assert "brings code of its own (modeling_own.OwnModel), which was not run" in message
    assert "trust_remote_code=True" in message
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = load_model(folder, trust_remote_code=True)
    assert result.model.own


# ------------------------------------------------------------------------------------------------- the Hub


@pytest.mark.parametrize("name", ["nobody/nothing-like-this", "some-bare-name"])
def test_offline_says_so_and_what_would_work(name):
    message = fails(FileError, name)
    assert (
        f"cannot load the model {name!r}: HF_HUB_OFFLINE is set and the model is not in the local cache"
        in message
    )
    assert "unset it or name a local folder or a built-in model (rankscope list models)" in message


def test_online_the_reason_of_the_hub_is_passed_on(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def refuse(*args, **kwargs):
        raise OSError("nobody/nothing is not a valid model identifier\nIf this is a private repository, ...")

    monkeypatch.setattr(transformers.PreTrainedConfig, "get_config_dict", refuse)
    message = fails(FileError, "nobody/nothing")
    assert "nobody/nothing is not a valid model identifier; check the name and the network" in message


@pytest.mark.parametrize("name", ["a/b c", "org/@name", "what?", "-dash/x"])
def test_what_is_no_id_is_never_looked_up(name):
    assert f"{name!r} is not a model; expected a local folder" in fails(ConfigError, name)


def test_a_misspelled_built_in_name_is_not_looked_up():
    assert "unknown model 'minlm'; did you mean 'minilm'?" in fails(UnknownNameError, "minlm")


CACHED = """
import sys
from rankscope.errors import RankscopeError
from rankscope.sources.loading import load_model
result = load_model("org/tiny")
print(result.name, result.kind, result.parameters, result.tokenizer is not None)
for name in ("org/pickled", "org/coded", "org/absent"):
    try:
        load_model(name)
    except RankscopeError as error:
        print(type(error).__name__, error)
print(load_model("org/pickled", allow_pickle=True).parameters)
"""


@pytest.mark.slow
def test_hub_ids_are_served_from_the_cache_offline(saved, tmp_path):
    """The layout of the cache as huggingface_hub writes it, with HF_HUB_OFFLINE=1 in the environment."""
    kinds = {"tiny": saved}
    kinds["pickled"] = folders.as_pickle(folders.save(folders.bert(), tmp_path / "pickled"))
    kinds["coded"] = folders.change_config(
        folders.save(folders.bert(), tmp_path / "coded"), auto_map={"AutoModel": "own.OwnModel"}
    )
    for name, path in kinds.items():
        home = tmp_path / "home" / "hub" / f"models--org--{name}"
        (home / "refs").mkdir(parents=True)
        (home / "refs" / "main").write_text("0" * 40)
        (home / "snapshots").mkdir()
        (home / "snapshots" / ("0" * 40)).symlink_to(path)
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", CACHED], env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    size = sum(p.numel() for p in folders.bert().parameters())
    assert lines[0] == f"org/tiny text {size} True"
    assert lines[1].startswith("ConfigError the model 'org/pickled' has no safetensors weights on the Hub")
    assert "allow_pickle=True" in lines[1]
    assert lines[2].startswith("ConfigError the model 'org/coded' brings code of its own")
    assert lines[3].startswith("FileError cannot load the model 'org/absent': HF_HUB_OFFLINE is set")
    assert lines[4] == str(size)


# ---------------------------------------------------------------------------------------------------- GGUF


def test_gguf_files_are_found_in_a_folder_and_damaged_ones_are_named(tmp_path):
    pytest.importorskip("gguf", reason="reading GGUF files needs gguf")
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF, but not really")
    for source in (file, tmp_path):
        message = fails(FileError, source)
        assert message.startswith(f"cannot load the GGUF file {str(file)!r}: ")
        assert message.endswith("; it may be damaged or incomplete")
    (tmp_path / "other.gguf").write_bytes(b"")
    assert "holds 2 GGUF files (other.gguf, tiny.gguf); name one of them" in fails(ConfigError, tmp_path)


def test_a_gguf_file_is_expanded_to_floating_point(tmp_path, capfd):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason=f"reading GGUF files needs {package}")
    weights = folders.write_gguf(tmp_path / "tiny.gguf")
    result = load_model(tmp_path)
    assert isinstance(result.model, transformers.LlamaModel)
    assert (result.name, result.kind, result.dtype, result.max_tokens) == ("tiny", "text", torch.float32, 48)
    assert result.warnings == (
        "the weights were stored in few bits (tiny.gguf) and expanded to floating point",
    )
    # eight bits: half a step of 1/127 of the largest number of a row of 32, and that is below five here
    torch.testing.assert_close(
        result.model.embed_tokens.weight.detach(), weights["token_embd"], rtol=0, atol=5 / 254
    )
    torch.testing.assert_close(
        result.model.layers[1].mlp.gate_proj.weight.detach(), weights["blk.1.ffn_gate"], rtol=0, atol=5 / 254
    )
    assert result.tokenizer.tokenize("the cat") == ["the", "\u0120", "c", "a", "t"]
    head = load_model(tmp_path / "tiny.gguf", with_head=True, dtype="float64")
    assert isinstance(head.model, transformers.LlamaForCausalLM)
    assert head.dtype == torch.float64
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_gguf_names_the_packages_it_needs(tmp_path, monkeypatch, package):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("rankscope.sources.hub.find_spec", lambda name: None if name == package else object())
    message = fails(MissingExtraError, tmp_path / "tiny.gguf")
    assert (
        f"reading the GGUF file 'tiny.gguf' needs {package}: pip install --no-deps gguf accelerate" in message
    )


# ---------------------------------------------------------------------------------------------------- timm


class FakeTimm(nn.Module):
    """Stands for a model of timm, which says of itself where it comes from and what it reads."""

    __module__ = "timm.models.fake"
    pretrained_cfg = {"input_size": (3, 32, 32)}  # noqa: RUF012 - as in timm

    def forward(self, x):
        return x


def test_timm_gets_a_name_and_tensors_and_no_place_to_look_in(folder, monkeypatch):
    asked = []

    class Timm:
        class models:  # noqa: N801 - as in timm
            @dataclass
            class PretrainedCfg:
                url: str = ""
                file: str = ""
                hf_hub_id: str = ""
                num_classes: int = 1000
                state_dict: dict | None = None

        @staticmethod
        def create_model(name, **options):
            asked.append((name, options))
            return FakeTimm()

    monkeypatch.setitem(sys.modules, "timm", Timm)
    places = {"url": "https://x", "file": "pytorch_model.bin", "hf_hub_id": "org/x", "unknown": 1}
    config = {
        "architecture": "vit_tiny",
        "num_classes": 0,
        "model_args": {"depth": 2},
        "pretrained_cfg": places,
    }
    (folder / "config.json").write_text(json.dumps(config))
    result = load_model(folder)
    assert (result.kind, result.name) == ("image", "model")
    ((name, options),) = asked
    assert (name, options["pretrained"], options["depth"]) == ("vit_tiny", True, 2)
    assert options["pretrained_cfg"].keys() == {"architecture", "num_classes", "state_dict"}
    assert options["pretrained_cfg"]["state_dict"].keys() == load_file(folder / "model.safetensors").keys()


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed: pip install 'rankscope[timm]'")
def test_a_folder_of_timm_gives_its_model(tmp_path):
    torch.manual_seed(0)
    options = {"img_size": 32, "patch_size": 8, "depth": 1}
    expected = import_timm().create_model("vit_tiny_patch16_224", num_classes=0, **options).eval()
    save_file(expected.state_dict(), tmp_path / "model.safetensors")
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "model_args": options,
        "pretrained_cfg": {},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = load_model(tmp_path, dtype="float64")
    assert (result.kind, result.dtype) == ("image", torch.float64)
    (batch,) = image_batches(sample_images(2), result.model)
    torch.testing.assert_close(result.model(batch.inputs[""]), expected.double()(batch.inputs[""]))


def test_a_missing_timm_names_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_tiny"}))
    assert "pip install 'rankscope[timm]'" in fails(MissingExtraError, folder)


def test_a_missing_transformers_names_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for source in (folder, "org/name"):
        assert "pip install 'rankscope[hub]'" in fails(MissingExtraError, source)


# ------------------------------------------------------------------------------------------ the user's own

OWN = """
import torch
from torch import nn
model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
class Nested:
    make = staticmethod(lambda: nn.Linear(3, 3))
def build():
    return nn.Linear(2, 2)
def broken():
    raise ValueError("no weights\\nanywhere")
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "own_models_for_test.py"
    file.write_text(OWN)
    yield file
    for name in [name for name in sys.modules if "own_models_for_test" in name]:
        del sys.modules[name]


def test_models_of_the_user(own):
    for home in ("own_models_for_test", str(own), "./own_models_for_test.py"):
        result = load_model(f"{home}:model", dtype="float64")
        assert (result.kind, result.name) == ("tensor", f"{home}:model")
        assert result.dtype == torch.float64
        assert not result.model.training
        assert load_model(f"{home}:build").parameters == 6
        assert load_model(f"{home}:Nested.make").parameters == 12
    assert result.takes[0] == "src"


def test_what_is_wrong_with_a_model_of_the_user(own, tmp_path):
    home = own.stem
    assert f"{home!r} has no attribute 'modle'" in fails(ConfigError, f"{home}:modle")
    assert "is an int; expected a torch.nn.Module or a callable" in fails(ConfigError, f"{home}:number")
    message = fails(ConfigError, f"{home}:broken")
    assert (
        "failed with ValueError: no weights; it must return a model when called without arguments" in message
    )
    assert "importing 'no_module_like_this' failed" in fails(ConfigError, "no_module_like_this:model")
    assert "there is no file 'nowhere.py'" in fails(FileError, "nowhere.py:model")
    (tmp_path / "wrong.py").write_text("def (")
    assert "importing 'wrong.py' failed with SyntaxError" in fails(ConfigError, "wrong.py:model")
    assert "own_models_for_test.py:NAME" in fails(FileError, "own_models_for_test.py")
    with pytest.raises(ConfigError, match="'number' does not name an attribute; expected module:attribute"):
        load_attribute("number")


def test_a_module_is_taken_as_it_is():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
    model.train()
    result = load_model(model)
    assert result.model is model
    assert model.training
    assert (result.name, result.kind, result.tokenizer) == ("TransformerEncoder", "tensor", None)
    assert load_model(model, device="cpu", dtype="float32").model is model
    message = fails(ConfigError, model, dtype="bfloat16")
    assert "is in float32, but bfloat16 was asked for; call model.to(torch.bfloat16) yourself" in message
    message = fails(ConfigError, model, device="meta")
    assert "is on cpu, but meta was asked for; call model.to('meta') yourself" in message


# -------------------------------------------------------------------------------------------- other errors


def test_paths_that_are_no_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (
        "./nowhere",
        "/nowhere/at/all",
        "~/nowhere-at-all",
        "a/b/c",
        "x.gguf",
        "folder/",
        "absent.json",
        "absent.npz",
        Path("nowhere"),
    ):
        message = fails(FileError, source)
        assert f"there is no folder or file {os.fspath(source)!r}; expected a local folder" in message
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "name the folder that holds it together with its config.json" in fails(
        FileError, "model.safetensors"
    )
    (tmp_path / "notes.txt").write_text("")
    assert "'notes.txt' is a file, not a model folder; expected" in fails(FileError, "notes.txt")
    for nothing in ("", "  "):
        assert "no model was named; expected" in fails(ConfigError, nothing)


def test_a_folder_named_like_a_built_in_is_reached_with_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders.save(folders.bert(), tmp_path / "minilm")
    assert load_model("./minilm").parameters == sum(p.numel() for p in folders.bert().parameters())
    assert load_model(Path("minilm")).name == "minilm"


@pytest.mark.parametrize("dtype", ["int8", "float", "fp16", torch.int64, torch.complex64])
def test_unknown_dtypes(dtype):
    message = fails(ConfigError, nn.Linear(2, 2), dtype=dtype)
    assert "expected one of float64, float32, bfloat16, float16" in message


def test_unknown_devices():
    assert "the device 'gpu' cannot be used here" in fails(ConfigError, nn.Linear(2, 2), device="gpu")
    if not torch.cuda.is_available():
        assert "cpu always works" in fails(ConfigError, nn.Linear(2, 2), device="cuda")


# ---------------------------------------------------------------------------------- what a model says of itself

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def _random(config):
    return transformers.AutoModel.from_config(config)


@pytest.mark.parametrize(
    ("config", "kind", "limit"),
    [
        (transformers.BertConfig(**SMALL, vocab_size=30, max_position_embeddings=40), "text", 40),
        (
            transformers.RobertaConfig(**SMALL, vocab_size=30, max_position_embeddings=42, pad_token_id=1),
            "text",
            40,
        ),
        (transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=24, vocab_size=30), "text", 24),
        (
            transformers.T5Config(d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=30),
            "text",
            None,
        ),
        (transformers.XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=32, vocab_size=30), "text", None),
        (transformers.ViTConfig(**SMALL, image_size=32, patch_size=8), "image", None),
    ],
    ids=lambda value: getattr(value, "model_type", str(value)),
)
def test_kind_and_longest_text(config, kind, limit):
    model = _random(config)
    assert kind_of(model) == kind
    assert position_limit(model) == limit
    if kind == "text" and limit is not None:
        ids = torch.full((1, limit), 7)
        model(input_ids=ids)
        if config.model_type != "t5":
            with pytest.raises((IndexError, RuntimeError)):
                model(input_ids=torch.full((1, limit + 1), 7))


def test_a_tokenizer_may_know_a_shorter_limit():
    tokenizer = folders.word_tokenizer()
    assert position_limit(folders.bert(), tokenizer) == 40
    tokenizer.model_max_length = 12
    assert position_limit(folders.bert(), tokenizer) == 12


def test_inputs_of_a_plain_module():
    assert inputs_of(nn.Linear(2, 2)) == ("input",)
    assert kind_of(nn.Linear(2, 2)) == "tensor"
    assert kind_of(FakeTimm()) == "image"


def test_inputs_of_a_model_inside_a_wrapper():
    model = folders.bert()
    assert (
        inputs_of(torch.compile(model, backend="eager"))
        == inputs_of(nn.DataParallel(model))
        == inputs_of(model)
    )
    assert kind_of(torch.compile(model, backend="eager")) == kind_of(nn.DataParallel(model)) == "text"


def test_a_model_on_the_device_meta_is_asked_for_its_weights(tmp_path, monkeypatch):
    words = r"holds no numbers in 'weight': it is on the device meta; .* load its weights first"
    with pytest.raises(ConfigError, match=f"the model you passed {words}"):
        load_model(nn.Linear(2, 2, device="meta"))
    file = tmp_path / "empty_model.py"
    file.write_text("from torch import nn\nmodel = nn.Linear(2, 2, device='meta')\n")
    with pytest.raises(ConfigError, match=words):
        load_model(f"{file}:model")
    put_away = nn.Linear(2, 2, device="meta")
    monkeypatch.setattr(put_away, "_hf_hook", object(), raising=False)
    assert load_model(put_away).model is put_away
