"""The folder of one training: its state, its log, its model, and a lock, so that a killed run can go on.

| file                | what it is                                                                          |
|---------------------|-------------------------------------------------------------------------------------|
| `state.safetensors` | weights, optimizer and curve after the last saved epoch; gone when training is done |
| `model.safetensors` | the trained model, see ``load_trained``                                             |
| `config.json`       | what the folder holds, so that it is a model of every command                       |
| `log.csv`           | one line per epoch                                                                  |
| `result.json`       | what was found, written by ``rs.train`` when training is done                       |
| `.lock`             | held by the process that trains here                                                |

Every file is written in one step: after a kill at any moment each is the old one or the new one.
"""

import csv
import io
import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankscope.errors import FileError, NotSaved
from rankscope.findings.train import FILES, RESULT
from rankscope.papers.tasks.checkpoint import (
    MODEL_FORMAT,
    STATE_FORMAT,
    Epoch,
    Trained,
    load_state,
    load_trained,
    save_state,
    save_trained,
    told_by,
)
from rankscope.papers.tasks.model_folder import is_config_of, write_config
from rankscope.papers.tasks.task import Task, TaskConfig
from rankscope.results.files import check_output, clear_leftovers, lock_folder, write_atomically

LONGEST = 60
"""Letters of a value in a message."""

SECONDS = 2.0
"""Between two saved states: no more than so much work is lost, and short epochs do not wait for the disk."""


class RunFolder:
    """Where one training of one configuration lives; a folder of another one is refused and left as it is."""

    def __init__(self, folder: str | os.PathLike[str], task: Task[Any], config: TaskConfig) -> None:
        self.path, self.task, self.config = Path(folder), task, config
        self.state, self.model, self.log, self.config_file = (self.path / name for name in FILES[:4])
        self._saved_at = -math.inf

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains here inside the block, and all that is here belongs to this training."""
        with lock_folder(self.path):
            for file in (self.state, self.model, self.log, self.config_file):
                check_output(file)
            self._check_foreign()
            for file, form in ((self.model, MODEL_FORMAT), (self.state, STATE_FORMAT)):
                if file.exists():
                    self._check_same(file, form)
            clear_leftovers(self.path)
            write_config(self.config_file, self.task, self.config)
            yield

    def finished(self) -> Trained | None:
        """The trained model, if training was done here before."""
        if not self.model.exists():
            return None
        trained = load_trained(self.model, dtype=torch.float32)
        self._close(trained)  # a kill just after the model was saved leaves this undone
        return trained

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Epoch]:
        """The curve up to the last saved epoch; model and optimizer are then as they were after it."""
        return load_state(self.state, model, optimizer)[2] if self.state.exists() else []

    def keep(self, curve: Sequence[Epoch], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save the state, unless that was done a moment ago; if that fails, warn: only a run after a kill needs it."""
        if time.monotonic() - self._saved_at < SECONDS:
            return
        try:
            save_state(self.state, self.task, self.config, curve, model, optimizer)
            self._write_log(curve)
        except FileError as error:
            warnings.warn(f"the state of the training is not saved: {error}", NotSaved, stacklevel=2)
        self._saved_at = time.monotonic()

    def finish(self, trained: Trained) -> None:
        """Save the model; the state is then no longer needed. A model that cannot be saved here is kept aside."""
        try:
            save_trained(trained, self.model)
        except FileError as error:
            raise FileError(f"{error}; {_kept_aside(trained)}") from error
        self._close(trained)

    def _close(self, trained: Trained) -> None:
        self._write_log(trained.curve)
        self.state.unlink(missing_ok=True)

    def _write_log(self, curve: Sequence[Epoch]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, [column.name for column in fields(Epoch)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(one) for one in curve)
        write_atomically(self.log, text.getvalue().encode())

    def _check_foreign(self) -> None:
        """A log, a result or a configuration without a model or a state beside it is not ours to replace."""
        if self.model.exists() or self.state.exists():
            return
        for file in (self.log, self.path / RESULT, self.config_file):
            if file.exists() and not is_config_of(file, self.task, self.config):
                raise FileError(
                    f"{os.fspath(file)!r} is there without a model that it belongs to, and would be replaced; move it "
                    "away, or name another folder"
                )

    def _check_same(self, file: Path, form: str) -> None:
        task, config, _ = told_by(file, form)
        if task.name != self.task.name:
            raise FileError(
                f"{os.fspath(self.path)!r} holds a model of the task {task.name!r}, asked was {self.task.name!r}; "
                "name another folder"
            )
        mine, theirs = self.config.model_dump(), config.model_dump()
        different = [
            f"{name} {_short(theirs[name])} there, {_short(mine[name])} asked"
            for name in mine
            if mine[name] != theirs[name]
        ]
        if different:
            raise FileError(
                f"{os.fspath(self.path)!r} holds another model of the task {task.name!r}: {'; '.join(different)}; "
                "name another folder, or ask for the same to go on with it"
            )


def _kept_aside(trained: Trained) -> str:
    """In words where the model is now: in the folder for temporary files, if that can be written."""
    try:
        place = Path(tempfile.mkdtemp(prefix="rankscope-")) / "model.safetensors"
        save_trained(trained, place)
    except (FileError, OSError):
        return "nor could the model be kept in the folder for temporary files"
    return f"the trained model is in {place}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
