"""Training by name: a configuration in, a finding out."""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import JsonValue

from rankscope.core.registry import unknown_name
from rankscope.core.words import listed
from rankscope.errors import ConfigError, FileError, NotSaved, Option
from rankscope.findings.train import CURVES, TASK_FIELDS, TrainConfig, TrainFinding, Training
from rankscope.papers.tasks.checkpoint import Epoch, Trained
from rankscope.papers.tasks.task import TASKS, FieldValue, Task, TaskConfig
from rankscope.papers.tasks.training import Tell, train_task
from rankscope.results.files import from_json, make_folder
from rankscope.sources.extras import import_extra
from rankscope.studies.rows import RowBuilder

Advance = Callable[[int, int, str], None]
"""Called after every epoch: how many of how many are done, and how it goes."""


def train(
    config: TrainConfig | str | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    advance: Advance | None = None,
    tell: Tell | None = None,
    save: Callable[[TrainFinding], object] | None = None,
    **fields: Any,
) -> TrainFinding:
    """The trained network of a task, one row per epoch and number, and what the score is to be compared with.

    Give a ``TrainConfig``, or the name of a task and fields: ``rs.train("sort", epochs=3)``. Every field of the task's
    own configuration is one, too: ``rs.train("sort", fast=True, alphabet=4)``.

    With a folder, training that was interrupted there goes on, to the same bits; model, log and result are written
    there, the result by ``save`` if that is given. ``tell`` hears of every epoch as it ends, of earlier ones first.
    """
    asked = _train_config(config, fields)
    task = TASKS[asked.task]
    if asked.tensorboard and folder is None:
        raise ConfigError(
            Option("tensorboard"),
            " writes a log into a folder; name one",
        )
    own = task_config(task, asked)
    with ExitStack() as stack:
        hear: list[Tell] = [] if tell is None else [tell]
        if asked.tensorboard and folder is not None:
            hear.append(stack.enter_context(EventLog(Path(folder) / "tensorboard")))
        if advance is not None:
            hear.append(_progress(task, own, advance))
        trained = train_task(task, own, folder=folder, tell=lambda one: [each(one) for each in hear])
    found = finding_of(trained)
    if folder is not None:
        (save or (lambda one: one.save_into(folder)))(found)
    return found


def finding_of(trained: Trained) -> TrainFinding:
    """What a training found: one row per epoch and number, in the column ``epoch``."""
    rows, task = RowBuilder(), trained.task
    for one in trained.curve:
        for name in CURVES:
            rows.add(
                1,
                {
                    "model": task.name,
                    "seed": trained.config.seed,
                    "epoch": one.epoch,
                    "measure": name,
                    "definition": name,
                    "value": getattr(one, name),
                    "floor": 0.0,
                    "resolved": True,
                },
            )
    if not trained.curve:  # a table needs its columns even if no epoch was asked for
        rows.add(0, {name: [] for name in ("measure", "definition", "value", "floor")})
    return TrainFinding(
        training=Training(
            task=task.name,
            about=task.about,
            source=str(task.source),
            score=trained.score,
            scored=task.scored,
            epochs=len(trained.curve),
            stopped=trained.stopped,
            parameters=sum(one.numel() for one in trained.model.parameters()),
            lines=dict(task.lines(trained.config)),
            published=dict(task.published),
        ),
        notes=task.notes,
        definitions={**CURVES, "score": task.scored},
        table=rows.table(trained.config, command="train", seeds=[trained.config.seed]),
    ).holding(trained)


def check_config(config: TrainConfig) -> None:
    """Raise for a task that does not exist, and for fields that it does not take."""
    task_config(TASKS[config.task], config)


def task_config(task: Task[Any], asked: TrainConfig) -> TaskConfig:
    """The task's configuration of the setting, with what was asked; a field that the task lacks is named."""
    known = task.config.model_fields
    given: dict[str, FieldValue] = {}
    for name in TASK_FIELDS:
        value, field = getattr(asked, name), "text" if name == "corpus" else name
        if value is None:
            continue
        if field not in known:
            raise ConfigError(
                Option(name), f" is not for the task {task.name!r}; its fields: {', '.join(known)}"
            )
        given[field] = value
    for name, value in map(_parse_field, asked.set):
        if name not in known:
            raise unknown_name(f"field of the task {task.name!r}", name, known)
        if name in given:
            raise ConfigError(f"{name} was given twice; keep one")
        given[name] = value
    try:
        config: TaskConfig = task.configured(asked.setting, **given)
    except ConfigError as error:  # only what was given as an option is named as one
        given_as = {one for one in TASK_FIELDS if getattr(asked, one) is not None}
        pieces = [
            one if isinstance(one, Option) and one.field in given_as else str(one) for one in error.pieces
        ]
        raise ConfigError(*pieces) from None
    return config


def _train_config(config: TrainConfig | str | None, fields: Mapping[str, FieldValue]) -> TrainConfig:
    if isinstance(config, TrainConfig):
        return config
    named = {} if config is None else {"task": config}
    # Fields of one task alone are set by name; those that are None are left to the task.
    own = {name: value for name, value in fields.items() if name in TrainConfig.model_fields}
    others = {name: value for name, value in fields.items() if name not in own and value is not None}
    if "text" in others:
        raise ConfigError(f"text={others['text']!r}: the file with the text is corpus= now")
    pairs = (f"{name}={json.dumps(value)}" for name, value in others.items())
    before = own.get("set", ())
    known = tuple(before) if isinstance(before, list | tuple) else (before,)
    return TrainConfig.of(**named, **own | {"set": (*known, *pairs)})


def _parse_field(text: str) -> tuple[str, JsonValue]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), from_json(value)
    except ValueError:
        return name.strip(), value


def _progress(task: Task[Any], config: TaskConfig, advance: Advance) -> Tell:
    """Says after every epoch how it goes, beside the scores to compare with."""
    lines = listed([f"{name} {value:.4f}" for name, value in task.lines(config).items()])

    def tell(one: Epoch) -> None:
        how = f"loss {one.loss:.4f}, test {one.test_score:.4f}"
        advance(one.epoch, config.epochs, f"{task.name}: {how} ({lines})" if lines else f"{task.name}: {how}")

    return tell


class EventLog:
    """Told of every epoch from the first on, it writes one file of events into ``folder``, in place of earlier ones."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        import_extra("tensorboard", extra="tensorboard", purpose="a log for TensorBoard")
        self._writer: Any = None

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def __call__(self, found: Epoch) -> None:
        try:
            if self._writer is None:
                self._writer = self._begin()
            for name in (*CURVES, "learning_rate"):
                self._writer.add_scalar(name, getattr(found, name), found.epoch)
            self._writer.flush()
        except (FileError, OSError) as error:  # a log is no reason to stop a training
            warnings.warn(f"the log for TensorBoard is not written: {error}", NotSaved, stacklevel=2)

    def _begin(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # a run that goes on tells of its earlier epochs again, so their old events would be there twice
        make_folder(self.folder)
        for old in self.folder.glob("events.out.tfevents.*"):
            old.unlink()
        return SummaryWriter(str(self.folder))
