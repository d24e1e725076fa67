"""Real checkpoints for tests, loaded at most once per process: reading the largest one takes many seconds."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from torch import nn

from rankscope.sources import BUILTINS, Batch, Loaded, Translation, load_model, text_batches, translate


def checkpoints(*names: str) -> list[Any]:
    """Parameters of a test, one per checkpoint; where its package is absent the test is skipped and says so."""
    return [pytest.param(name, id=name, marks=_marks(name)) for name in names]


def _marks(name: str) -> list[Any]:
    entry = BUILTINS[name]
    return [
        pytest.mark.checkpoint,
        pytest.mark.skipif(not entry.installed, reason=f"the checkpoint is not installed: {entry.pip}"),
    ]


@cache
def loaded(name: str) -> Loaded:
    """A checkpoint in its own dtype; not to be changed."""
    with _read_once():
        return load_model(name)


def first_texts(name: str) -> Batch:
    """Three texts of the checkpoint's own domain, cut where a short one ends."""
    found = loaded(name)
    texts = text_batches(found.texts[:3], found.tokenizer, batch_size=3, max_tokens=24, takes=found.takes)
    return next(iter(texts))


@cache
def translated(name: str) -> Translation:
    """The tree of a checkpoint, proven on its texts; not to be changed."""
    return translate(loaded(name).model, first_texts(name))


def shortened(model: nn.Module, blocks: int) -> nn.Module:
    """The model with its first blocks alone, which it shares with the whole one."""
    short = copy.copy(model)
    short._modules = dict(model._modules)
    short.layers, short.config = model.layers[:blocks], copy.deepcopy(model.config)
    short.config.num_hidden_layers = blocks
    return short


@contextmanager
def _read_once() -> Iterator[None]:
    """Inside, a GGUF file is read once, not for config, weights and tokenizer each: half of the time of loading.

    The names of its tensors are looked up once too, not for every module of the model. The file is one plain array:
    of a memmap every one of a million small pieces would be a memmap again, which takes long to make.
    """
    if find_spec("gguf") is None:
        yield
        return
    import gguf

    reader, names = cache(gguf.GGUFReader), cache(gguf.get_tensor_name_map)
    plain = partial(_plain_array, np.memmap)
    with (
        patch("gguf.GGUFReader", reader),
        patch("gguf.get_tensor_name_map", names),
        patch("gguf.gguf_reader.np.memmap", plain),
    ):
        yield


def _plain_array(mapped: Callable[..., np.ndarray], *args: Any, **options: Any) -> np.ndarray:
    return np.asarray(mapped(*args, **options))
