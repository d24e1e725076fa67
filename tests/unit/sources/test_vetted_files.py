"""No file of a checkpoint is opened that was not looked at first, whatever lies beside it and whatever a config names.

Every folder is filled with traps: pickles that leave a mark when they are opened, code, adapters, under all names that
some version of some library looks for. An audit hook sees every file that Python opens; safetensors are opened by a
library that no hook sees, but a trap with that ending is no safetensors file and would be an error.
"""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from kit import checkpoint_folders as folders
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.sources.extras import import_timm
from rankscope.sources.initial import initial_model
from rankscope.sources.loading import load_model

SEEN: list[str] | None = None
TRAPS = (
    *("pytorch_model.bin", "adapter_model.bin", "adapter_model.safetensors", "adapter.eng.bin", "model.pt"),
    *(
        "model.pth",
        "model.ckpt",
        "training_args.bin",
        "optimizer.pt",
        "vocab.pkl",
        "vocab.bin",
        "tokenizer.pkl",
    ),
    *(
        "tf_model.h5",
        "flax_model.msgpack",
        "preprocessor.pkl",
        "open_clip_pytorch_model.bin",
        "readout.safetensors",
    ),
    *("modeling_own.py", "tokenization_own.py", "adapter_config.json", "pytorch_model.bin.index.json"),
)
SETTINGS = {
    *(
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
    ),
    *(
        "preprocessor_config.json",
        "model.safetensors.index.json",
        "vocab.txt",
        "added_tokens.json",
        "vocab.json",
    ),
}


def _watch(event: str, arguments: tuple) -> None:
    if SEEN is not None and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        SEEN.append(os.path.realpath(os.fsdecode(arguments[0])))


sys.addaudithook(_watch)  # cannot be taken away again; it costs nothing while SEEN is None


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for place in ("transformers.integrations.peft", "transformers.models.auto.auto_factory"):
        monkeypatch.setattr(f"{place}.is_peft_available", lambda: True)  # as where adapters are looked for


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "a pickle ran"


def trapped(folder: Path, mark: Path) -> Path:
    """The folder with every trap whose name is not taken."""
    for name in TRAPS:
        if not (folder / name).exists():
            torch.save({"weight": Payload(mark)}, folder / name)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    shards = {"weight_map": {"weight": "optimizer.pt"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(shards))
    return folder


def opened(folder: Path, mark: Path, load) -> set[str]:
    """The names of the files of the folder that are opened by ``load``, after seeing that no pickle ran."""
    global SEEN
    SEEN = []
    try:
        load()
    finally:
        seen, SEEN = SEEN, None
    assert not mark.exists()
    home = os.path.realpath(folder)
    return {os.path.relpath(path, home) for path in seen if path.startswith(home + os.sep)}


# ------------------------------------------------------------------------------------------- kinds of folders


def _bert(place: Path) -> Path:
    return folders.save(folders.bert(head=True), place, tokenizer=folders.word_tokenizer())


def _shards(place: Path) -> Path:
    return folders.save(folders.bert(), place, max_shard_size="10KB")


def _named(place: Path) -> Path:
    folder = folders.save(folders.bert(), place)
    (folder / "model.safetensors").rename(folder / "own.safetensors")
    return folders.change_config(folder, transformers_weights="own.safetensors")


def _words(place: Path) -> Path:
    """A tokenizer of the old kind, one word per line."""
    folder = folders.save(folders.bert(), place)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join([*special, *folders.WORDS]))
    return folder


def _image(place: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        image_size=16,
        patch_size=8,
    )
    folder = folders.save(transformers.ViTModel(config), place)
    kind = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
    (folder / "preprocessor_config.json").write_text(json.dumps(kind))
    return folder


def _sound(place: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        **{"vocab_size": 8, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        **{"conv_dim": [8], "conv_kernel": [4], "conv_stride": [2], "num_feat_extract_layers": 1},
        adapter_attn_dim=4,
    )
    return folders.save(transformers.Wav2Vec2ForCTC(config), place)


TIMM = {"img_size": 32, "patch_size": 8, "depth": 1, "embed_dim": 12, "num_heads": 2}


def _timm(place: Path, **more) -> Path:
    torch.manual_seed(0)
    model = import_timm().create_model("vit_tiny_patch16_224", num_classes=0, **TIMM)
    place.mkdir()
    save_file(model.state_dict(), place / "model.safetensors")
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 0,
        "model_args": TIMM,
        "pretrained_cfg": {},
    }
    (place / "config.json").write_text(json.dumps(config | more))
    return place


def _timm_shards(place: Path) -> Path:
    """Safetensors in shards, for which versions of timm open a pickle beside them."""
    folder = _timm(place)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: state[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _timm_wrapper(place: Path) -> Path:
    """As transformers saves it, which needs torchvision for that."""
    folder = _timm(place, model_type="timm_wrapper", architectures=["TimmWrapperModel"], num_classes=1000)
    state = load_file(folder / "model.safetensors")
    save_file({f"timm_model.{name}": value for name, value in state.items()}, folder / "model.safetensors")
    return folder


KINDS = {
    kind.__name__.strip("_"): kind
    for kind in (_bert, _shards, _named, _words, _image, _sound, _timm, _timm_shards, _timm_wrapper)
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_head", [False, True], ids=["bare", "head"])
def test_only_what_was_looked_at_is_opened(kind, with_head, tmp_path, mark):
    folder = KINDS[kind](tmp_path / "model")
    expected = None if "timm" in kind else _as_transformers_loads_it(folder, with_head)
    trapped(folder, mark)
    found = []
    names = opened(folder, mark, lambda: found.append(load_model(folder, with_head=with_head)))
    assert names <= SETTINGS
    assert "config.json" in names
    (result,) = found
    assert [note for note in result.warnings if "an adapter, which was not applied" in note] == list(
        result.warnings
    )
    if expected is not None:
        assert type(result.model) is type(expected)
        drawn = "pooler"  # not in the checkpoint
        theirs = {name: value for name, value in expected.state_dict().items() if drawn not in name}
        ours = {name: value for name, value in result.model.state_dict().items() if drawn not in name}
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def _as_transformers_loads_it(folder: Path, with_head: bool) -> torch.nn.Module:
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    try:
        maker = getattr(transformers, name) if with_head else transformers.AutoModel
        return maker.from_pretrained(folder)
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


@pytest.mark.parametrize("kind", KINDS)
def test_untrained_weights_open_no_weights(kind, tmp_path, mark):
    folder = trapped(KINDS[kind](tmp_path / "model"), mark)
    assert opened(folder, mark, lambda: initial_model(folder)) <= SETTINGS


def test_the_timm_model_is_the_one_that_was_saved(tmp_path):
    picture = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    makers = (_timm, _timm_shards, _timm_wrapper)
    models = [load_model(make(tmp_path / make.__name__)).model for make in makers]
    torch.manual_seed(0)
    expected = import_timm().create_model("vit_tiny_patch16_224", num_classes=0, **TIMM).eval()
    for model in models:
        torch.testing.assert_close(model(picture), expected(picture), rtol=0, atol=0)
        assert "state_dict" not in model.pretrained_cfg


def test_a_gguf_file_alone_is_opened(tmp_path, mark):
    for package in ("gguf", "accelerate"):
        pytest.importorskip(package, reason=f"reading GGUF files needs {package}")
    (tmp_path / "model").mkdir()
    folders.write_gguf(tmp_path / "model" / "tiny.gguf", dim=32, layers=1)
    folder = trapped(tmp_path / "model", mark)
    (folder / "generation_config.json").write_text("{}")
    for source in (folder, folder / "tiny.gguf"):
        assert opened(folder, mark, lambda source=source: load_model(source)) == {"tiny.gguf"}


def test_a_hub_id_opens_no_more_than_a_folder(tmp_path, mark, monkeypatch):
    home = tmp_path / "hub" / "models--org--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    (home / "snapshots").mkdir()
    folder = trapped(_bert(home / "snapshots" / ("0" * 40)), mark)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for load in (load_model, initial_model):
        assert opened(folder, mark, lambda load=load: load("org/tiny")) <= SETTINGS


def test_what_is_fetched_from_the_hub_is_named(tmp_path, monkeypatch):
    """Configs and vocabularies by their endings, weights by their exact names, pickles only if they are allowed."""
    from rankscope.sources import hub

    asked = []

    def fetch(name, *, revision, allow_patterns, ignore_patterns):
        asked.append(allow_patterns)
        assert (name, revision, ignore_patterns) == ("org/tiny", "v1", ["*/*"])
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    folder = _shards(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(transformers.PreTrainedConfig, "get_config_dict", lambda *a, **k: (config, {}))
    assert hub.load_hub("org/tiny", hub.Request(revision="v1")).name == "org/tiny"
    shards = sorted(file.name for file in folder.glob("*.safetensors"))
    assert [list(patterns) for patterns in asked[1:]] == [shards]
    assert not any(pattern.endswith((".bin", ".pt", ".pkl", ".py")) for pattern in asked[0])


# ------------------------------------------------------------------------------------------------- refusals


def _outside(name: str):
    def make(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        index = {"weight_map": {"x": name.format(parent=folder.parent)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return make


def _pickled_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"x": "model-1.safetensors"}})
    )


REFUSED = {
    "pickle-by-config": (
        lambda folder: folders.change_config(folder, transformers_weights="adapter_model.bin"),
        "names 'adapter_model.bin' as its weights",
    ),
    "outside-by-config": (
        lambda folder: folders.change_config(folder, transformers_weights="../outside.safetensors"),
        "expected the name of a file in the folder",
    ),
    "parent": (_outside("../outside.safetensors"), "expected .safetensors files of the same folder"),
    "absolute": (_outside("{parent}/outside.safetensors"), "expected .safetensors files of the same folder"),
    "pickle-in-index": (_outside("pytorch_model.bin"), "expected .safetensors files of the same folder"),
    "pickle-in-disguise": (_pickled_shard, "cannot read"),
    "code": (
        lambda folder: folders.change_config(folder, auto_map={"AutoModel": "modeling_own.M"}),
        "code of its own",
    ),
    "kernel": (
        lambda folder: folders.change_config(folder, attn_implementation="org/kernel"),
        "asks for code from the Hub",
    ),
}


@pytest.mark.parametrize("trick", REFUSED)
def test_tricks_are_refused_and_nothing_but_settings_was_opened(trick, tmp_path, mark):
    folder = trapped(_bert(tmp_path / "model"), mark)
    change, words = REFUSED[trick]
    change(folder)

    def load() -> None:
        with pytest.raises((ConfigError, FileError)) as caught:
            load_model(folder)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)

    assert opened(folder, mark, load) <= SETTINGS


@pytest.mark.parametrize("wrapped", [False, True], ids=["timm", "timm_wrapper"])
@pytest.mark.parametrize("argument", ["checkpoint_path", "pretrained", "pretrained_cfg"])
def test_arguments_of_timm_that_load_weights_are_refused(argument, wrapped, tmp_path, mark):
    folder = trapped((_timm_wrapper if wrapped else _timm)(tmp_path / "model"), mark)
    folders.change_config(folder, model_args=TIMM | {argument: str(folder / "pytorch_model.bin")})

    def load() -> None:
        for read in (load_model, initial_model):
            with pytest.raises(
                RankscopeError, match=f"asks timm to load other weights .{argument} under model_args"
            ):
                read(folder)

    assert opened(folder, mark, load) == {"config.json"}


def test_an_architecture_in_another_place_is_refused(tmp_path):
    folder = _timm(tmp_path / "model", architecture=f"local-dir:{tmp_path}")
    with pytest.raises(ConfigError, match="takes its architecture from another place"):
        load_model(folder)


def test_a_file_that_the_config_names_is_opened_if_it_is_allowed(tmp_path):
    folder = folders.as_pickle(folders.save(folders.bert(), tmp_path / "model"))
    (folder / "pytorch_model.bin").rename(folder / "adapter_model.bin")
    folders.change_config(folder, transformers_weights="adapter_model.bin")
    found = load_model(folder, allow_pickle=True)
    torch.testing.assert_close(found.model.state_dict(), dict(folders.bert().state_dict()), rtol=0, atol=0)


def test_an_error_names_no_folder_of_ours(tmp_path):
    """Libraries are shown a folder that is gone when their words are read."""
    (tmp_path / "m.gguf").write_bytes(b"no such thing" * 9)
    with pytest.raises(RankscopeError, match=r"m\.gguf") as told:
        load_model(tmp_path / "m.gguf")
    assert "/rankscope-" not in str(told.value)
