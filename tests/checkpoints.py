"""Real checkpoints for tests, loaded at most once per process: reading the largest one takes many seconds."""

from functools import cache
from typing import Any

import pytest

from rankscope.sources import BUILTINS, Loaded, load_model


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
    return load_model(name)
