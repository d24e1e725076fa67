"""Models and states of training as safetensors files that say what they are: task, configuration, curve."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import ConfigDict, Field, JsonValue, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rankscope.errors import FileError, RankscopeError
from rankscope.findings.base import Value, one_line
from rankscope.findings.train import EarlyStop
from rankscope.network import generators
from rankscope.papers.tasks.objectives import OBJECTIVES
from rankscope.papers.tasks.task import TASKS, Task, TaskConfig
from rankscope.results.files import from_json, write_atomically
from rankscope.results.table import rankscope_version, versions

MODEL_FORMAT = "rankscope/task/1"
STATE_FORMAT = "rankscope/training/1"
ENTRY = "rankscope"
"""Name of the metadata that says what a file is."""

BUILTIN = "sort.safetensors"
"""The trained model that comes with the package: sorting with its default settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """How far training is after an epoch, counted from 1.

    ``loss`` is what was minimized; it and ``train_score`` are means over the epoch's batches, each taken before the
    step on that batch. ``learning_rate`` is that of the last step.
    """

    epoch: int
    learning_rate: float
    loss: float
    train_score: float
    test_score: float


class Card(Value):
    """What a file says of itself, beside its tensors. What later versions add is not read."""

    model_config = ConfigDict(extra="ignore")

    format: str
    versions: dict[str, str | None] = Field(default_factory=dict)
    task: str
    config: dict[str, JsonValue]
    curve: tuple[Epoch, ...] = ()
    stopped: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A trained model in evaluation mode, and what was seen on the way."""

    task: Task[Any]
    config: TaskConfig
    model: nn.Module
    curve: tuple[Epoch, ...]

    @property
    def stopped(self) -> EarlyStop | None:
        """Why training ended before its last epoch, if so."""
        return why_stop(self.config, self.curve)

    @property
    def score(self) -> float:
        """Score of the model on the held-out examples."""
        return measured_score(self.task, self.config, self.model)


def why_stop(config: TaskConfig, curve: Sequence[Epoch]) -> EarlyStop | None:
    """The reason to stop before the last epoch, or None."""
    if not curve or len(curve) == config.epochs:
        return None
    if config.stop_at is not None and curve[-1].test_score >= config.stop_at:
        return EarlyStop(by="score", limit=config.stop_at, epoch=curve[-1].epoch)
    best = min(curve, key=lambda one: one.loss)
    if config.patience is not None and curve[-1].epoch - best.epoch >= config.patience:
        return EarlyStop(by="patience", limit=config.patience, epoch=best.epoch)
    return None


def measured_score(task: Task[Any], config: TaskConfig, model: nn.Module) -> float:
    """Score of a model on the held-out examples of its configuration."""
    inputs, targets = task.held_out(config)
    with torch.no_grad():
        return task.score(OBJECTIVES[config.objective].answer(model, inputs), targets)


def initial_model(task: Task[Any], config: TaskConfig, *, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The model as it is before training, in evaluation mode; its weights ask for no gradients."""
    model = task.model(config, generators(config.seed)[0])
    return model.to(dtype).requires_grad_(requires_grad=False).eval()


def save_trained(trained: Trained, path: str | os.PathLike[str]) -> Path:
    """The path, after it holds the weights in float32 and what they are."""
    tensors = {name: value.detach().float() for name, value in trained.model.state_dict().items()}
    card = _card(MODEL_FORMAT, trained.task, trained.config, trained.curve)
    why = trained.stopped
    return _save(path, tensors, card.model_copy(update={"stopped": None if why is None else why.words}))


def load_trained(
    path: str | os.PathLike[str] | None = None, *, dtype: torch.dtype = torch.float64
) -> Trained:
    """A trained model in evaluation mode, from a file of ``save_trained``; without a path the built-in one."""
    if path is None:
        with as_file(files("rankscope.papers.tasks") / BUILTIN) as builtin:
            return load_trained(builtin, dtype=dtype)
    name = os.fspath(path)
    about, tensors = _read_file(name)
    task, config, card = _task_of(name, about, MODEL_FORMAT)
    model = initial_model(task, config, dtype=dtype)
    _check_tensors(name, model.state_dict(), tensors)
    model.load_state_dict(tensors)
    return Trained(task=task, config=config, model=model, curve=card.curve)


def save_state(
    path: str | os.PathLike[str],
    task: Task[Any],
    config: TaskConfig,
    curve: Sequence[Epoch],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> Path:
    """The path, after it holds all that training needs to go on with the same bits after the epochs of ``curve``."""
    tensors = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    return _save(path, tensors, _card(STATE_FORMAT, task, config, curve))


def load_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Task[Any], TaskConfig, list[Epoch]]:
    """What the state was made for, and its curve; model and optimizer hold what they held then.

    The caller has made sure with ``told_by`` that the model is the right one.
    """
    name = os.fspath(path)
    about, tensors = _read_file(name)
    task, config, card = _task_of(name, about, STATE_FORMAT)
    if card.versions != _versions():
        raise FileError(
            f"{name!r} was written by {card.versions}, here is {_versions()}: going on would not give the same "
            "bits; use those versions, or train in another folder"
        )
    weights = {key.removeprefix("model."): one for key, one in tensors.items() if key.startswith("model.")}
    _check_tensors(name, model.state_dict(), weights)
    model.load_state_dict(weights)
    moments: dict[int, dict[str, Tensor]] = {}
    for key, one in tensors.items():
        if key.startswith("optimizer."):
            _, number, moment = key.split(".", 2)
            moments.setdefault(int(number), {})[moment] = one
    optimizer.load_state_dict({"state": moments, "param_groups": optimizer.state_dict()["param_groups"]})
    return task, config, list(card.curve)


def told_by(path: str | os.PathLike[str], form: str) -> tuple[Task[Any], TaskConfig, tuple[Epoch, ...]]:
    """What a file of ``save_trained`` or ``save_state`` says it is, without its tensors."""
    name = os.fspath(path)
    task, config, card = _task_of(name, _read_file(name, tensors=False)[0], form)
    return task, config, card.curve


def _card(form: str, task: Task[Any], config: TaskConfig, curve: Sequence[Epoch]) -> Card:
    return Card(
        format=form,
        versions=_versions(),
        task=task.name,
        config=config.model_dump(mode="json"),
        curve=tuple(curve),
    )


def _versions() -> dict[str, str | None]:
    """Of what decides the bits of a training."""
    return {"rankscope": rankscope_version(), "torch": versions().get("torch")}


def _save(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], card: Card) -> Path:
    whole = {name: value.contiguous() for name, value in tensors.items()}
    # one entry: the order of several is not the same in every process, and equal models are to be equal files
    text = json.dumps(card.model_dump(mode="json"))
    return write_atomically(path, safetensors.torch.save(whole, metadata={ENTRY: text}))


def _task_of(name: str, about: Mapping[str, JsonValue], form: str) -> tuple[Task[Any], TaskConfig, Card]:
    if about.get("format") != form:
        raise FileError(
            f"{name!r} holds another model (format {about.get('format')!r}, expected {form!r}); "
            "make one with rankscope train TASK --output FOLDER"
        )
    try:
        card = Card.model_validate(about)
        task = TASKS[card.task]
        config = task.config.of(**card.config)
    except (RankscopeError, ValidationError, TypeError) as error:
        raise FileError(
            f"{name!r} says it is a model of a task, but not which one: {one_line(error)}; train it again"
        ) from error
    return task, config, card


def _read_file(name: str, *, tensors: bool = True) -> tuple[dict[str, JsonValue], dict[str, Tensor]]:
    if not Path(name).is_file():
        raise FileError(
            f"cannot read {name!r}: there is no such file; name a .safetensors file of rankscope train"
        )
    try:
        with safe_open(name, framework="pt") as stored:
            about = _parse_metadata((stored.metadata() or {}).get(ENTRY))
            keys = list(stored.keys()) if tensors else []
            return about, {key: stored.get_tensor(key) for key in keys}
    except (OSError, SafetensorError) as error:
        raise FileError(
            f"cannot read {name!r}: {error}; the file is damaged, or it is not a .safetensors file; name another, or "
            "remove it and train again"
        ) from error


def _parse_metadata(entry: str | None) -> dict[str, JsonValue]:
    """What a file says of itself; nothing if it says nothing that can be read."""
    try:
        found = from_json(entry or "")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_tensors(name: str, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    shapes, others = ({key: tuple(value.shape) for key, value in side.items()} for side in (expected, found))
    for key in sorted(shapes.keys() ^ others.keys()):
        trouble = "is missing" if key in shapes else "does not belong to it"
        raise FileError(
            f"{name!r} does not fit its own configuration: the tensor {key!r} {trouble}; train it again"
        )
    for key, shape in shapes.items():
        if others[key] != shape:
            raise FileError(
                f"{name!r} does not fit its own configuration: {key!r} has shape {others[key]}, expected {shape}; "
                "train it again"
            )
        if not bool(torch.isfinite(found[key]).all()):
            raise FileError(
                f"{name!r} holds NaN or infinity in {key!r}; train it again with a smaller learning rate"
            )
