"""Files of ready inputs: arrays and tensors, read without running code."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.words import article
from rankscope.errors import FileError, Option
from rankscope.sources.entries import entries_of_source
from rankscope.sources.files import load_array
from rankscope.sources.safety import first_line

SUFFIXES = (".npy", ".npz", ".safetensors", ".pt", ".pth")


def read_inputs(source: str | os.PathLike[str]) -> Any:
    """What a file of ready inputs holds: one tensor or array, several by name, or what ``torch.save`` was given.

    Of a .pt file tensors, numbers, texts and plain containers are read (``weights_only=True``), of .npy and .npz arrays
    of numbers; a pickle of anything else is refused.
    """
    file = Path(source).expanduser()
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(
            f"cannot read inputs from {str(file)!r}: expected a file ending in {', '.join(SUFFIXES)}; Python code "
            "goes to ",
            Option("loader", "file.py:loader"),
            " or ",
            Option("call", "file.py:function"),
        )
    if not file.is_file():
        raise FileError(f"cannot read inputs from {str(file)!r}: no such file")
    if suffix == ".npy":
        return load_array(file)
    if suffix == ".npz":
        return _arrays(file)
    if suffix == ".safetensors":
        return {entry.name: entry.read(()) for entry in entries_of_source(file)}
    return _saved(file)


def _arrays(file: Path) -> dict[str, Any]:
    try:
        with open(file, "rb") as content, np.load(content, allow_pickle=False) as stored:
            found = {name: stored[name] for name in stored.files}
    except Exception as error:  # zipfile, zlib and numpy each have errors of their own
        reason = first_line(error)
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = "it holds Python objects (a pickle), which can run any code when opened"
        raise FileError(
            f"cannot read {str(file)!r}: {reason}; expected arrays of numbers written by numpy.savez"
        ) from error
    if not found:
        raise FileError(f"{str(file)!r} holds no arrays")
    return found


def _saved(file: Path) -> Any:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise FileError(
            f"cannot read {str(file)!r}: it holds more than tensors, numbers and plain containers, which could run any "
            "code when opened; save those alone, as in torch.save({'x': x}, 'batch.pt')"
        ) from error
    except Exception as error:
        raise FileError(
            f"cannot read {str(file)!r}: {first_line(error)}; expected what torch.save has written"
        ) from error
    if not isinstance(found, Tensor | Mapping | list | tuple):
        raise FileError(
            f"{str(file)!r} holds {article(type(found).__name__)}; expected a tensor, or a dict, list or tuple of them"
        )
    return found
