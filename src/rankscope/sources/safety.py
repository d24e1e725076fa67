"""What a checkpoint folder holds, and whether it may be opened: no pickle and no foreign code by default."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from rankscope.errors import ConfigError, FileError

CONFIG = "config.json"
SAFE = "model.safetensors"
PICKLE = "pytorch_model.bin"

Format = Literal["safetensors", "pickle", "gguf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The weight files of one folder, in one format."""

    format: Format
    files: tuple[Path, ...]


def first_line(error: BaseException) -> str:
    """The message of an error on one line, or its type if it has none.

    >>> first_line(ValueError("no such thing\\nsee the manual")), first_line(KeyError())
    ('no such thing', 'KeyError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def read_config(folder: Path) -> dict[str, Any]:
    """The content of ``config.json``, or an error that says what the folder lacks."""
    file = folder / CONFIG
    if not file.is_file():
        raise FileError(_no_config(folder))
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; save the model again with save_pretrained"
        ) from error
    if not isinstance(config, dict):
        raise FileError(
            f"{str(file)!r} holds a {type(config).__name__}; expected an object with a model_type"
        )
    return config


def find_weights(folder: Path, *, allow_pickle: bool) -> Weights:
    """The files to load from, safetensors before GGUF before pickles; pickles only if they are allowed."""
    safe = _sharded(folder, SAFE)
    if safe:
        for file in safe:
            check_safetensors(file)
        return Weights(format="safetensors", files=safe)
    gguf = tuple(sorted(folder.glob("*.gguf")))
    if gguf:
        return Weights(format="gguf", files=gguf)
    pickles = _sharded(folder, PICKLE)
    if not pickles:
        raise FileError(
            f"the folder {str(folder)!r} has no weights: found {_listing(folder)}; expected {SAFE} or a .gguf file"
        )
    if not allow_pickle:
        raise ConfigError(
            f"the folder {str(folder)!r} has its weights only as a pickle ({pickles[0].name}), which can run any "
            f"code when opened; save it as safetensors, or pass --allow-pickle if you trust it"
        )
    return Weights(format="pickle", files=pickles)


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
            f"the model {name!r} brings code of its own ({code}), which was not run; read that code and pass "
            "--trust-remote-code if you trust it"
        )


def _sharded(folder: Path, name: str) -> tuple[Path, ...]:
    """The single file, or all shards that its index names; empty if there is neither."""
    if (folder / name).is_file():
        return (folder / name,)
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return ()
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"cannot read {str(index)!r}: {first_line(error)}; copy the file again") from error
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing or not shards:
        raise FileError(
            f"{str(index)!r} names {len(shards)} weight files, of which {len(missing)} are missing"
            + (f" (first: {missing[0]})" if missing else "")
            + "; copy the whole folder"
        )
    return tuple(folder / shard for shard in shards)


def _no_config(folder: Path) -> str:
    if (folder / "adapter_config.json").is_file():
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
