"""Folders that rankscope wrote itself: a ``config.json`` that names their kind, and weights as safetensors."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from rankscope.sources.loaded import Loaded, Request, loaded
from rankscope.sources.safety import read_config

KINDS = {"rankscope-task": "rankscope.papers.tasks.model_folder"}
"""Modules that read each kind. They stand above this row, hence names in place of imports."""

EXAMPLES = 16
"""Examples that are read where the user gives no inputs."""


class Reader(Protocol):
    """What such a module has."""

    def read_folder(
        self, folder: Path, dtype: torch.dtype | None, seed: int | None
    ) -> tuple[nn.Module, Tensor]:
        """The model with its stored weights, or with weights drawn from a seed; and examples that it can read."""


def is_own(config: Mapping[str, object]) -> bool:
    """Whether a ``config.json`` was written by rankscope."""
    return config.get("model_type") in KINDS


def load_own(folder: Path, request: Request, *, seed: int | None = None) -> Loaded:
    """The model of such a folder, with examples of what it was trained for; with a seed, as it was before training."""
    reader: Reader = import_module(KINDS[str(read_config(folder)["model_type"])])
    model, examples = reader.read_folder(folder, request.dtype, seed)
    found = loaded(model.to(request.device or torch.device("cpu")), folder.name)
    return found.with_examples(examples[:EXAMPLES])
