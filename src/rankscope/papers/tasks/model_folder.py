"""A trained task as a model of every command: the folder that ``train`` writes, read again.

Beside ``model.safetensors``, which says what it is in its metadata, stands a ``config.json`` by which the folder is
known as a model.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import FileError, Option, RankscopeError
from rankscope.network import generators
from rankscope.papers.tasks.checkpoint import MODEL_FORMAT, Trained, load_trained
from rankscope.papers.tasks.task import TASKS, Task, TaskConfig
from rankscope.results.files import from_json, write_atomically

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
    if seed is None:
        trained = _load_trained(folder, dtype or torch.float32)
        task, config, model = trained.task, trained.config, trained.model
    else:
        task, config = _describe(folder / CONFIG)
        model = task.model(config, generators(seed)[0]).to(dtype or torch.float32)
    examples, _ = task.held_out(config)
    return model.requires_grad_(requires_grad=False).eval(), examples


def _load_trained(folder: Path, dtype: torch.dtype) -> Trained:
    if not (folder / MODEL).is_file():
        where = f"the folder {str(folder)!r} has no {MODEL}: "
        if (folder / STATE).is_file():
            raise FileError(
                f"{where}its training is not finished; the same 'rankscope train' goes on with it"
            )
        raise FileError(
            f"{where}train into it with 'rankscope train', or draw weights at random: ",
            Option("weights", "initial"),
        )
    return load_trained(folder / MODEL, dtype=dtype)


def _describe(file: Path) -> tuple[Task[Any], TaskConfig]:
    """What a ``config.json`` says of its folder."""
    found = from_json(file.read_text(encoding="utf-8"))
    try:
        task = TASKS[str(found["task"])]
        return task, task.config.of(**found["config"])
    except (RankscopeError, LookupError, TypeError) as error:
        raise FileError(
            f"{str(file)!r} does not describe a task of this rankscope: {error}; train again into another folder"
        ) from error
