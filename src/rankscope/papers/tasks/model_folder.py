"""A trained task as a model of every command: the folder that ``train`` writes, read again.

Beside ``model.safetensors``, which says what it is in its metadata, stands a ``config.json`` by which the folder is
known as a model.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import FileError
from rankscope.network import generators
from rankscope.papers.tasks.checkpoint import MODEL_FORMAT, load_trained, told_by
from rankscope.papers.tasks.task import Task, TaskConfig
from rankscope.results.files import write_atomically

MODEL_TYPE = "rankscope-task"
CONFIG, MODEL, STATE = "config.json", "model.safetensors", "state.safetensors"


def write_config(file: Path, task: Task[Any], config: TaskConfig) -> None:
    """What the folder of the file holds, or will hold when training is done."""
    if not is_config_of(file, task, config):
        write_atomically(file, _text(task, config).encode())


def is_config_of(file: Path, task: Task[Any], config: TaskConfig) -> bool:
    """Whether the file says just this: an interrupted training may have left it alone in its folder."""
    try:
        return file.name == CONFIG and file.read_text(encoding="utf-8") == _text(task, config)
    except (OSError, ValueError):
        return False


def _text(task: Task[Any], config: TaskConfig) -> str:
    whole = {"model_type": MODEL_TYPE, "format": MODEL_FORMAT, "task": task.name}
    return json.dumps(whole | {"config": config.model_dump(mode="json")}, indent=2)


def read_folder(folder: Path, dtype: torch.dtype | None, seed: int | None) -> tuple[nn.Module, Tensor]:
    """The trained model, or one with weights drawn from ``seed``, and the held-out examples of its task."""
    file = folder / MODEL
    if not file.is_file():
        started = (folder / STATE).is_file()
        raise FileError(
            f"the folder {str(folder)!r} has no {MODEL}: "
            + (
                "its training is not finished; run the same 'rankscope train' again, which goes on with it"
                if started
                else "train again into it with 'rankscope train TASK --output FOLDER'"
            )
        )
    if seed is None:
        trained = load_trained(file, dtype=dtype or torch.float32)
        task, config, model = trained.task, trained.config, trained.model
    else:
        task, config, _ = told_by(file, MODEL_FORMAT)
        model = task.model(config, generators(seed)[0]).to(dtype or torch.float32)
    examples, _ = task.held_out(config)
    return model.requires_grad_(requires_grad=False).eval(), examples
