"""What a checkpoint folder holds, what of it may be opened, and the only place where its weights are opened.

The libraries that build models look for weights by names of their own, and those differ from version to version: an
adapter beside the model, a file that ``config.json`` names, a pickle where the safetensors come in shards. So no
library is ever given a folder of the user. It gets tensors that were read here from files that were looked at here
(:func:`read_tensors`), and for settings and tokenizers a folder that holds nothing else (:func:`only`).
"""

import math
import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankscope.core.words import article
from rankscope.errors import ConfigError, FileError, Option, OutOfMemory
from rankscope.results.files import from_json

CONFIG = "config.json"
ADAPTER = "adapter_config.json"
SAFE = "model.safetensors"
PICKLE = "pytorch_model.bin"

SETTINGS = (
    ".json",
    ".txt",
    ".model",
    ".jinja",
    ".spm",
    ".codes",
    ".tokenizer",
    ".tiktoken",
    ".vocab",
    ".bpe",
)
"""How the names of configs and vocabularies end; none of these is ever read as a pickle."""

_OURS = "rankscope-"
"""How the names of folders begin that are made for a library and removed again."""

Format = Literal["safetensors", "pickle", "gguf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The weight files of one folder, in one format."""

    format: Format
    files: tuple[Path, ...]


def needs_gpu(error: BaseException) -> bool:
    """Whether code failed because it asks for a GPU that is not there."""
    said = str(error)
    return "CUDA" in said or "NVIDIA" in said


NO_GPU = "it asks for a GPU, and none is used here; let it follow the device of its input, or run this where it works"
"""What to do about that."""


def first_line(error: BaseException) -> str:
    """The message of an error on one line, or its type if it has none.

    Files in a folder that :func:`only` made are named as the user knows them: that folder is gone when it is read.

    >>> first_line(ValueError("no such thing\\nsee the manual")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    ours = rf"{re.escape(gettempdir())}/{_OURS}[^/\s]+/"
    lines = [re.sub(ours, "", line.strip()) for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def read_config(folder: Path) -> dict[str, Any]:
    """The content of ``config.json``, or an error that says what the folder lacks."""
    file = folder / CONFIG
    if not file.is_file():
        raise FileError(_no_config(folder))
    try:
        config = from_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; save the model again with save_pretrained"
        ) from error
    if not isinstance(config, dict):
        raise FileError(
            f"{str(file)!r} holds {article(type(config).__name__)}; expected an object with a model_type"
        )
    return config


def find_weights(folder: Path, config: Mapping[str, Any], *, allow_pickle: bool) -> Weights:
    """The files to load from, safetensors before GGUF before pickles; pickles only if they are allowed.

    ``config`` may name the file itself (``transformers_weights``); that name is then the only one looked for.
    """
    named = config.get("transformers_weights")
    if named is not None:
        return _named_weights(folder, named, allow_pickle=allow_pickle)
    safe = _sharded(folder, SAFE)
    if safe:
        return _checked(safe)
    gguf = tuple(sorted(folder.glob("*.gguf")))
    if gguf:
        return Weights(format="gguf", files=gguf)
    pickles = _sharded(folder, PICKLE)
    if not pickles:
        adapter = f"; {ADAPTER} belongs to an adapter, which holds no model" if is_adapter(folder) else ""
        raise FileError(
            f"the folder {str(folder)!r} has no weights: found {_listing(folder)}; expected {SAFE} or a .gguf "
            f"file{adapter}"
        )
    if not allow_pickle:
        raise ConfigError(
            f"the folder {str(folder)!r} has its weights only as a pickle ({pickles[0].name}), which can run any "
            "code when opened; save it as safetensors, or use ",
            Option("allow_pickle", True),
            " if you trust it",
        )
    return Weights(format="pickle", files=pickles)


def _named_weights(folder: Path, named: object, *, allow_pickle: bool) -> Weights:
    where = f"{str(folder / CONFIG)!r} names {named!r} as its weights (transformers_weights)"
    if not isinstance(named, str) or not _is_inside(named):
        raise FileError(f"{where}; expected the name of a file in the folder")
    if not (folder / named).is_file():
        raise FileError(f"{where}, but the folder holds {_listing(folder)}")
    if named.endswith(".safetensors"):
        return _checked((folder / named,))
    if named.endswith(".safetensors.index.json"):
        return _checked(_sharded(folder, named.removesuffix(".index.json")))
    if not allow_pickle:
        raise ConfigError(
            f"{where}, which is no safetensors file; a pickle can run any code when opened: save it as safetensors, "
            "or use ",
            Option("allow_pickle", True),
            " if you trust it",
        )
    return Weights(format="pickle", files=(folder / named,))


def extra_weights(folder: Path, names: Iterable[str]) -> Weights:
    """Files that a model type keeps beside its weights, those of them that are there and are safetensors."""
    there = (folder / name for name in names if _is_inside(name) and name.endswith(".safetensors"))
    return _checked(tuple(file for file in there if file.is_file()))


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, alone or beside a model."""
    return (folder / ADAPTER).is_file()


def read_tensors(
    weights: Weights, *, only_tensors: bool = False
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """All tensors of these files by name, and a warning if a pickle had to be opened in full.

    Safetensors are mapped, not copied. A pickle is read as plain tensors first, and as arbitrary objects only if that
    fails and not ``only_tensors``.
    """
    found: dict[str, Tensor] = {}
    notes: tuple[str, ...] = ()
    for file in weights.files:
        if weights.format == "safetensors":
            with safe_open(file, framework="pt") as content:
                found |= {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - no mapping
            continue
        try:
            loaded = torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if only_tensors or not _is_pickle(file):
                raise
            loaded = torch.load(file, map_location="cpu", weights_only=False)
            words = "its pickle holds more than tensors and was opened in full, which can run any code"
            notes = (f"{words} ({first_line(error)})",)
        if not isinstance(loaded, Mapping):
            raise FileError(f"{str(file)!r} holds {article(type(loaded).__name__)}; expected tensors by name")
        found |= {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    return found, notes


def _is_pickle(file: Path) -> bool:
    """Whether the file begins like something torch.save wrote: a zip archive or a pickle."""
    with open(file, "rb") as content:
        return content.read(2) in (b"PK", *(bytes([0x80, number]) for number in range(2, 6)))


def settings_files(folder: Path) -> tuple[Path, ...]:
    """The configs and vocabularies of a folder, without those that would lead to other weights."""
    return tuple(
        entry
        for entry in sorted(folder.iterdir())
        if entry.name.endswith(SETTINGS)
        and entry.is_file()
        and entry.name != ADAPTER
        and not entry.name.endswith(".index.json")
    )


@contextmanager
def only(files: Iterable[Path], name: str) -> Iterator[Path]:
    """A folder called ``name`` that holds these files and nothing else, until the block ends."""
    with TemporaryDirectory(prefix=_OURS) as place:
        folder = Path(place) / name
        folder.mkdir()
        for file in files:
            os.symlink(file.resolve(), folder / file.name)
        yield folder


def _checked(files: tuple[Path, ...]) -> Weights:
    for file in files:
        check_safetensors(file)
    return Weights(format="safetensors", files=files)


def check_safetensors(file: Path) -> None:
    """Nothing, or an error if the header does not parse or does not describe the whole file."""
    try:
        with safe_open(file, framework="pt"):
            pass
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; the file is damaged or incomplete, copy it again"
        ) from error


def check_remote_code(config: Mapping[str, Any], name: str, *, allowed: bool) -> None:
    """Nothing, or an error if the checkpoint asks for code of its own and that was not allowed.

    A checkpoint with ``auto_map`` is refused even where transformers knows its ``model_type``: the same type
    name is used by variants with other positions or norms, which would load and give wrong numbers.
    """
    wanted = config.get("auto_map")
    if wanted and not allowed:
        code = next(iter(wanted.values())) if isinstance(wanted, Mapping) else wanted
        raise ConfigError(
            f"the model {name!r} brings code of its own ({code}), which was not run; read that code and use ",
            Option("trust_remote_code", True),
            " if you trust it",
        )


def check_settings(config: Mapping[str, Any], where: str) -> None:
    """Nothing, or an error if a config would make timm or transformers fetch weights or code on their own.

    ``model_args`` are handed to ``timm.create_model``, which opens a ``checkpoint_path``; an architecture such as
    ``local-dir:/elsewhere`` is another folder; an attention such as ``org/kernel`` is code from the Hub.
    """
    for settings in _mappings(config):
        arguments = settings.get("model_args")
        for name in arguments if isinstance(arguments, Mapping) else ():
            if str(name).startswith(("pretrained", "checkpoint", "cache_dir")):
                raise ConfigError(
                    f"{where} asks timm to load other weights ({name} under model_args), which is not done; remove "
                    "that entry"
                )
        for key in ("architecture", "backbone"):
            value = settings.get(key)
            if isinstance(value, str) and ":" in value:
                raise ConfigError(
                    f"{where} takes its {key} from another place ({value!r}); expected a plain name"
                )
        for key in ("attn_implementation", "_attn_implementation", "experts_implementation"):
            value = settings.get(key)
            if isinstance(value, str) and "/" in value:
                raise ConfigError(
                    f"{where} asks for code from the Hub ({key} {value!r}), which was not run; remove that entry"
                )


MOST_LAYERS = 10_000
"""Blocks, heads, experts or stages of a model, at most; the deepest that were ever trained have a thousand."""

_COUNTED = re.compile(r"(layers?|blocks?|depths?|heads?|experts?|groups?|stages?)$")
"""How names of settings end that say how often something is built."""

_WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim")
_INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_inner", "d_ff", "encoder_ffn_dim")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth")


def check_sizes(config: Mapping[str, Any], where: str, *, bytes_each: float = 0.0) -> None:
    """Nothing, or an error if a config asks for more than any machine could build, or this one could hold.

    Building a billion blocks takes days before memory runs out, so the numbers are looked at first. ``bytes_each`` is
    what a weight takes; what is held against the memory is less than any model of these numbers needs: the table of
    embeddings, and of every block one square matrix and two of the MLP.
    """
    for settings in _mappings(config):
        for name, value in settings.items():
            most = max(_numbers(value), default=0)
            if most > MOST_LAYERS and _COUNTED.search(str(name)):
                raise ConfigError(
                    f"{where} says {name}={most:.12g}, which no machine can build; expected at most {MOST_LAYERS}"
                )
        least, memory = bytes_each * _least_weights(settings), _memory()
        if least > memory:
            names = (*_WIDTHS, *_INNER, *_DEPTHS, "vocab_size")
            shown = ", ".join(
                f"{name}={max(n):.12g}" for name in names if (n := _numbers(settings.get(name)))
            )
            raise OutOfMemory(
                f"{where} asks for at least {least / 2**30:.3g} GB of weights ({shown}), but this machine has "
                f"{memory / 2**30:.3g} GB of memory; name a smaller model"
            )


def _least_weights(settings: Mapping[str, Any]) -> float:
    def first(names: Iterable[str]) -> float:
        return next((max(found) for name in names if (found := _numbers(settings.get(name)))), 0.0)

    width = first(_WIDTHS)
    shared = (
        "num_hidden_groups" in settings or "embedding_size" in settings
    )  # one block for many layers; small tables
    depth = 1.0 if shared else first(_DEPTHS)
    table = first(("vocab_size",)) * min(width, first(("embedding_size",)) or width)
    return table + depth * (width**2 + 2 * width * first(_INNER))


def _numbers(value: object) -> list[float]:
    """The number, or the numbers of a list."""
    entries = value if isinstance(value, list | tuple) else [value]
    known = [one for one in entries if isinstance(one, int | float) and not isinstance(one, bool)]
    found = [abs(float(max(-HUGE, min(one, HUGE)))) for one in known]
    return [one for one in found if not math.isnan(one)]


HUGE = 10**90
"""Larger numbers are as good as this one, of which products of three are still floats."""


def _memory() -> float:
    """Bytes of memory that this machine has; infinity where it does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES")) * float(os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _mappings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and all objects inside it, however deep."""
    left: list[Any] = [config]
    while left:
        entry = left.pop()
        if isinstance(entry, Mapping):
            yield entry
            left += entry.values()
        elif isinstance(entry, list):
            left += entry


def model_types(config: Mapping[str, Any]) -> set[str]:
    """The model types that a config names, for itself and for its parts.

    >>> sorted(model_types({"model_type": "detr", "backbone_config": {"model_type": "timm_backbone"}}))
    ['detr', 'timm_backbone']
    """
    return {str(part["model_type"]) for part in _mappings(config) if "model_type" in part}


def _is_inside(name: str) -> bool:
    """Whether this is the plain name of a file in a folder.

    A link with such a name is followed, as the cache of the Hub consists of links: what is behind it is parsed as
    safetensors and never run.

    >>> [_is_inside(name) for name in ("a.safetensors", "../a.safetensors", "/a.safetensors", "..", "")]
    [True, False, False, False, False]
    """
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


def _sharded(folder: Path, name: str) -> tuple[Path, ...]:
    """The single file, or all shards that its index names; empty if there is neither."""
    if (folder / name).is_file():
        return (folder / name,)
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return ()
    return tuple(folder / shard for shard in shard_names(index))


def shard_names(index: Path, *, present: bool = True) -> tuple[str, ...]:
    """The files that an index names, plain names of its own folder with its own ending; ``present``: which exist."""
    try:
        shards = sorted(set(from_json(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"cannot read {str(index)!r}: {first_line(error)}; copy the file again") from error
    ending = Path(index.name.removesuffix(".index.json")).suffix
    for shard in shards:
        if not isinstance(shard, str) or not _is_inside(shard) or not shard.endswith(ending):
            raise FileError(
                f"{str(index)!r} names the weight file {str(shard)!r}; expected {ending} files of the same folder"
            )
    missing = [shard for shard in shards if present and not (index.parent / shard).is_file()]
    if missing or not shards:
        raise FileError(
            f"{str(index)!r} names {len(shards)} weight files, of which {len(missing)} are missing"
            + (f" (first: {missing[0]})" if missing else "")
            + "; copy the whole folder"
        )
    return tuple(shards)


def _no_config(folder: Path) -> str:
    if is_adapter(folder):
        return (
            f"the folder {str(folder)!r} holds an adapter, not a model; merge it into its base model first "
            "(merge_and_unload) and save that"
        )
    return (
        f"the folder {str(folder)!r} has no {CONFIG}: found {_listing(folder)}; expected a folder written by "
        "save_pretrained"
    )


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return (
        ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        if names
        else "nothing"
    )
