"""A scan that reads a model block by block has the numbers of one that reads it whole, and reads every weight once."""

import json
import os
import subprocess
import sys
import weakref
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from torch import nn

import rankscope as rs
from kit import checkpoint_folders as folders
from kit import small_families
from kit.big_llama import write_llama
from kit.models import LLAMA, MODELS, hub
from rankscope.cli.app import app
from rankscope.errors import ConfigError, FileError, ModelError, NotTapped, RankscopeError
from rankscope.sources import promised

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
QUICK = ("gemma3", "t5")
"""Own masks and angles in each block, two halves with one table."""

SOME = ("mixtral", "albert-two-groups", "xlnet", "deberta-v2", "wav2vec2", "deepseek-v3", "gpt-neo")
"""Joined weights, shared blocks, tokens first, positions beside the blocks, sound."""

ELSE = tuple(
    name
    for name in MODELS
    if name not in (*QUICK, *SOME, "whisper", "whisper-encoder", "siglip")  # not run by a scan of a folder
    and not name.startswith(("timm", "torch"))
)
FAMILIES = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in SOME),
    *(
        pytest.param(
            name, marks=[pytest.mark.slow, pytest.mark.skipif(not SOAK, reason="one of many: make soak")]
        )
        for name in ELSE
    ),
]


def both(folder: Path, **options: Any) -> tuple[rs.ScanFinding, rs.ScanFinding]:
    """The scan of a folder, and block by block; weights that are missing are drawn alike."""
    found = []
    for stream in (False, True):
        torch.manual_seed(0)
        found.append(rs.scan(folder, stream=stream, **options))
    return found[0], found[1]


def same(whole: rs.ScanFinding, parts: rs.ScanFinding) -> None:
    one, other = (
        whole.table.frame.drop("run"),
        parts.table.frame.drop("run"),
    )  # the name of the run holds options
    assert len(one) > 50
    assert one.equals(other, null_equal=True)
    assert whole.table.sections == parts.table.sections
    assert whole.verdict == parts.verdict


def feed(name: str) -> dict[str, str]:
    """Random tokens for a model of texts; images and sound are made for the others."""
    kind = getattr(MODELS[name].model(), "main_input_name", "")
    return {"random_tokens": "3x5"} if kind == "input_ids" else {"max_texts": "3"}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_same_bits_block_by_block(name: str, tmp_path: Path) -> None:
    folder = folders.save(MODELS[name].model(), tmp_path / name)
    has_maps = name != "jamba"  # in every block
    same(*both(folder, batch_size=2, attention=SOAK and has_maps, **feed(name)))


FEW = ("bart", "big_bird", "ibert", "bloom", "starcoder2")
"""Of all types that families know, those that are run without being asked for more."""

REFUSED = {
    "vit_mae": "ViTMAEModel draws random numbers",
    "siglip": "check that the inputs fit the model",  # two towers with one forward
    "vivit": "check that the inputs fit the model",  # films
}
"""Types that are not scanned block by block, with what is said of them."""


@pytest.mark.parametrize(
    "kind",
    [
        name
        if name in FEW
        else pytest.param(
            name, marks=[pytest.mark.slow, pytest.mark.skipif(not SOAK, reason="one of many: make soak")]
        )
        for name in small_families.types()
    ],
)
def test_every_type_of_every_family_has_the_same_bits_or_is_refused(kind: str, tmp_path: Path) -> None:
    model = small_families.small(kind)
    reads_ids = getattr(model, "main_input_name", "") == "input_ids"
    folder = folders.save(model, tmp_path / "m")
    options: dict[str, Any] = {"random_tokens": "3x8"} if reads_ids else {"max_texts": 3}
    if kind in REFUSED:
        with pytest.raises(RankscopeError, match=REFUSED[kind]):
            rs.scan(folder, stream=True, batch_size=2, **options)
    else:
        same(*both(folder, batch_size=2, **options))


def test_long_texts_of_a_model_that_changes_itself_for_short_ones(tmp_path: Path) -> None:
    """BigBird's own attention is one of blocks: neither scan may leave it with another one."""
    model = small_families.small("big_bird", attention_type="block_sparse")
    same(*both(folders.save(model, tmp_path / "m"), batch_size=2, random_tokens="3x60"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model with a head that its blocks do not need, a tokenizer, in several shards."""
    model = hub("LlamaConfig", "LlamaForCausalLM", **LLAMA)().eval()
    words = folders.word_tokenizer(around=False)
    words.bos_token = words.cls_token
    return folders.save(model, tmp_path_factory.mktemp("llama") / "m", tokenizer=words, max_shard_size="20KB")


def broken(folder: Path, place: Path) -> Path:
    """A copy to be broken."""
    place.mkdir()
    for file in folder.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    return place


def test_texts_of_other_lengths_padded_and_as_many_as_tokens(folder: Path) -> None:
    texts = ["the cat sat on a mat", "a dog sat", "the very small cat sat on it and it was", "a cat"]
    same(*both(folder, texts=texts, batch_size=2, dtype="bfloat16"))
    same(*both(folder, random_tokens="4x4", batch_size=4))  # of a square which axis is which?


def test_what_is_said_of_a_missing_begin_is_said_block_by_block_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.sources.begin_token.CLEAR", -10.0)  # say it whatever it is worth
    monkeypatch.setattr("rankscope.sources.begin_token.sqrt", lambda _: -1e-3)
    whole, parts = both(folder, texts=["the cat sat on the mat", "a dog sat on it"])
    same(whole, parts)
    assert any("begins no text" in note for note in parts.scan.reported)


class Live:
    """How much of the files is in memory, from the memory itself: what was made and is not yet gone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        self.read: Counter[tuple[str, int, int]] = Counter()
        plain, reading = promised._room, promised.read_stored

        def room(size: int) -> Any:
            made = plain(size)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(made, self._gone, size)
            return made

        def read(one: promised.Stored) -> torch.Tensor:
            self.read[one.file.name, one.start, one.size] += 1
            return reading(one)

        monkeypatch.setattr(promised, "_room", room)
        monkeypatch.setattr(promised, "read_stored", read)

    def _gone(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize("texts", [1, 9])
def test_every_weight_is_read_once_and_one_block_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    """Every byte of the files once, whatever the number of texts; also weights that no text needs."""
    sizes = LLAMA | {"num_hidden_layers": 6, "hidden_size": 64, "intermediate_size": 256, "vocab_size": 64}
    folder = folders.save(hub("LlamaConfig", **sizes)(), tmp_path / "m", max_shard_size="200KB")
    files = list(folder.glob("*.safetensors"))
    assert len(files) > 2
    live = Live(monkeypatch)
    rs.scan(folder, stream=True, random_tokens=f"{texts}x5", batch_size=2)
    assert set(live.read.values()) == {1}
    for file in files:
        header = int.from_bytes(file.read_bytes()[:8], "little")
        places = sorted((start, size) for name, start, size in live.read if name == file.name)
        assert places[0][0] == 8 + header
        assert all(a + b == c for (a, b), (c, _) in pairwise(places))
        assert sum(places[-1]) == file.stat().st_size
    block = sum(one.nbytes for file in files for name, one in load_file(file).items() if "layers.3." in name)
    assert live.now == 0
    assert block <= live.most < 1.5 * block


def test_weights_that_are_no_numbers_are_named_also_where_no_text_asks_for_them(tmp_path: Path) -> None:
    model = folders.bert()
    with torch.no_grad():
        model.pooler.dense.weight[0, 0] = float("nan")
        model.encoder.layer[1].output.dense.weight[:2, 0] = float("inf")
    folder = folders.save(model, tmp_path / "m")
    whole, parts = both(folder, random_tokens="2x4")
    same(whole, parts)
    assert {(one.name, one.nans, one.infinities) for one in parts.scan.not_finite} == {
        ("pooler.dense.weight", 1, 0),
        ("encoder.layer.1.output.dense.weight", 0, 2),
    }


def test_a_model_that_fails_says_so_and_is_left_as_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second batch, at the second block: the first batch waits at the third then, with its hooks taken off."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

    models = list[nn.Module]()
    plain, start = LlamaDecoderLayer.forward, LlamaModel.__init__
    calls = list[int]()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise ValueError("no such thing")
        return plain(self, *args, **kwargs)

    def made(self: Any, config: Any) -> None:
        start(self, config)
        models.append(self)

    monkeypatch.setattr(LlamaDecoderLayer, "forward", forward)
    monkeypatch.setattr(LlamaModel, "__init__", made)
    with pytest.raises(ModelError, match=r"4: random tokens.*ValueError: no such thing"):
        rs.scan(folder, stream=True, random_tokens="4x5", batch_size=2)
    modules = list(models[-1].modules())
    assert len(calls) == 4
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    assert not any("forward" in vars(module) for module in modules)


def test_a_model_that_draws_random_numbers_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: plain(self, x) + 1e-3 * torch.randn(1))
    with pytest.raises(NotTapped, match="draws random numbers"):
        rs.scan(folder, stream=True, random_tokens="4x5", batch_size=2)


# ---------------------------------------------------------------------------------------------------------- bad input


def refused(folder: Path | str, kind: type[RankscopeError] = FileError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        rs.scan(folder, stream=True, **({"random_tokens": "2x5"} | options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_that_are_missing_cut_off_or_not_what_the_index_says(folder: Path, tmp_path: Path) -> None:
    one = broken(folder, tmp_path / "missing")
    shards = sorted(one.glob("*.safetensors"))
    shards[1].unlink()
    assert shards[1].name in refused(one)
    two = broken(folder, tmp_path / "cut")
    shard = two / shards[1].name
    shard.write_bytes(shard.read_bytes()[:-8])
    assert "damaged or incomplete" in refused(two)
    three = broken(folder, tmp_path / "index")
    index = three / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"]["model.layers.9.mlp.weight"] = shards[1].name
    index.write_text(json.dumps(said))
    assert "'model.layers.9.mlp.weight' is in" in refused(three)
    four = broken(folder, tmp_path / "size")
    tensors = load_file(four / shards[1].name)
    name = next(name for name, one in tensors.items() if one.ndim == 2)
    save_file(tensors | {name: torch.ones(2, 3)}, four / shards[1].name)
    assert "another size than config.json says" in refused(four)


def test_a_file_that_is_cut_while_it_is_read(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    one = broken(folder, tmp_path / "m")
    plain = promised.stored_tensors

    def cut(file: Path) -> Any:
        found = list(plain(file))
        os.truncate(file, file.stat().st_size - 8)
        return iter(found)

    monkeypatch.setattr(promised, "stored_tensors", cut)
    assert "the file ends 8 bytes too early" in refused(one)


def test_folders_and_models_of_other_kinds_are_refused_by_name(tmp_path: Path, folder: Path) -> None:
    pickled = folders.as_pickle(folders.save(folders.bert(), tmp_path / "pickle"))
    assert "has its weights in a pickle (pytorch_model.bin)" in refused(pickled, ConfigError)
    folders.write_gguf(tmp_path / "m.gguf")
    assert "has no effect on a file" in refused(tmp_path / "m.gguf", ConfigError)
    assert "has no effect on a built-in model" in refused("minilm", ConfigError)
    assert "there is no folder" in refused("./nothing")
    quantised = folders.change_config(
        folders.save(folders.bert(), tmp_path / "few"), quantization_config={"quant_method": "gptq"}
    )
    assert "is quantised" in refused(quantised, ConfigError)
    for options in (
        {"gradients": True},
        {"tree": True},
        {"weights": "initial"},
        {"blocks": "model.layers"},
        {"across": "inputs"},
    ):
        assert str(next(iter(options))) in refused(folder, ConfigError, **options)
    ids = torch.ones(2, 5, dtype=torch.long)
    with pytest.raises(ConfigError, match="give texts"):
        rs.scan(folder, inputs=ids, stream=True)
    with pytest.raises(ConfigError, match="loaded already"):
        rs.scan(folders.bert(), stream=True)


def test_a_model_without_blocks_has_the_words_of_any_scan(tmp_path: Path) -> None:
    folder = folders.save(folders.bert(num_hidden_layers=0), tmp_path / "m")
    messages = []
    for stream in (False, True):
        with pytest.raises(RankscopeError) as caught:
            rs.scan(folder, stream=stream, random_tokens="2x5")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_the_command_prints_what_it_prints_without_and_refuses_in_one_line(folder: Path) -> None:
    asked = ["scan", str(folder), "--random-tokens", "3x5"]
    whole, parts = (CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--stream"]))
    assert whole.exit_code == parts.exit_code == 0
    assert whole.stdout == parts.stdout
    for more in (["--stream", "--gradients"], ["--stream", "--resume"], ["--stream", "--device", "meta"]):
        found = CliRunner().invoke(app, [*asked, *more])
        assert found.exit_code == 2
        assert len(found.stderr.strip().splitlines()) == 1
        assert "--stream" in found.stderr or "block by block" in found.stderr


# -------------------------------------------------------------------------------------- weights that are put elsewhere


@pytest.mark.parametrize(
    "where", [*(pytest.param(place, marks=pytest.mark.slow) for place in ("cpu", "disk")), "both"]
)
def test_a_model_whose_weights_accelerate_has_put_elsewhere(where: str, tmp_path: Path) -> None:
    from copy import deepcopy

    from accelerate import cpu_offload, disk_offload, dispatch_model

    model = MODELS["gemma3"].model()
    put = deepcopy(model)
    if where == "cpu":
        cpu_offload(put, execution_device=torch.device("cpu"))
    elif where == "disk":
        disk_offload(put, str(tmp_path), execution_device=torch.device("cpu"))
    else:
        places = {
            name: "disk" if number % 2 else "cpu" for number, (name, _) in enumerate(put.named_children())
        }
        dispatch_model(put, places, main_device="cpu", offload_dir=str(tmp_path))
    assert any(weight.is_meta for weight in put.parameters())
    options: dict[str, Any] = {"random_tokens": "3x5", "batch_size": 2}
    same(rs.scan(model, **options), rs.scan(put, **options))


# --------------------------------------------------------------------------------------------------------------- large

MEASURE = """
import os, resource, sys, threading, time
import torch, transformers
from transformers import LlamaModel
import rankscope as rs

def status():
    lines = (line.split() for line in open("/proc/self/status"))
    return {line[0]: int(line[1]) * 1024 for line in lines if line[0] in ("VmSize:", "RssAnon:")}

before, peak, is_over = status(), 0, False
if sys.argv[2] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (before["VmSize:"] + 3 * 2**29,) * 2)

def watch():
    global peak
    while not is_over:
        peak = max(peak, status()["RssAnon:"] - before["RssAnon:"])
        time.sleep(0.02)

def read():
    return int(open("/proc/self/io").readline().split()[1])

watching = threading.Thread(target=watch, daemon=True)
watching.start()
start = read()
try:
    found = rs.scan(sys.argv[1], random_tokens="4x16", batch_size=2, stream=sys.argv[3] == "stream")
finally:
    is_over = True
    watching.join()
print(peak, read() - start, len(found.table.frame))
"""


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="3 GB on the disk: make soak")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("is_sharded", [True, False])
def test_three_gigabytes_within_half_of_that(tmp_path: Path, is_sharded: bool) -> None:
    """In shards under a limit of the address space, and in one file by the memory that is the process's own."""
    write_llama(tmp_path / "m", is_sharded=is_sharded)
    files = list((tmp_path / "m").glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    assert size > 2.9 * 2**30
    assert not is_sharded or max(file.stat().st_size for file in files) <= 500e6

    def measured(how: str) -> subprocess.CompletedProcess[str]:
        limit = "limited" if is_sharded else "free"
        command = [sys.executable, "-c", MEASURE, str(tmp_path / "m"), limit, how]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)  # noqa: S603 - ours

    found = measured("stream")
    assert found.returncode == 0, found.stderr
    peak, read, rows = map(int, found.stdout.split())
    assert rows > 1000
    assert peak < 1.5 * 2**30
    assert size <= read < 1.01 * size  # by the count of the kernel: every byte once
    if is_sharded:  # the limit is one
        assert "Cannot allocate memory" in measured("whole").stderr


@pytest.mark.slow
@pytest.mark.skipif(not SOAK, reason="a real checkpoint twice: make soak")
def test_smollm2_saved_as_a_folder(tmp_path: Path) -> None:
    from kit.checkpoints import loaded

    ready = loaded("smollm2")
    place = folders.save(ready.model, tmp_path / "m", tokenizer=ready.tokenizer, max_shard_size="100MB")
    same(*both(place, max_texts=6, batch_size=4))
