"""``rankscope train``: a small transformer on one of the tasks of the papers."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.words import count, number, percent
from rankscope.document import Column, Document, Figure, Prose, Section, Tabular, Tone, Verdict, some
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import FolderConfig, option
from rankscope.findings.base import Finding, Number, Quoted, Value
from rankscope.findings.blocks import even

if TYPE_CHECKING:
    from rankscope.papers.tasks import Trained

CURVES = {
    "loss": "what the optimizer minimized, mean over the epoch's batches, each taken before the step on it",
    "train_score": "score on the epoch's batches, taken in the same way",
    "test_score": "score on the held-out examples after the epoch",
}
"""The numbers of an epoch; they are also the definitions of the rows."""

RESULT = "result.json"
"""The finding, beside the model."""

FILES = ("state.safetensors", "model.safetensors", "log.csv", "config.json", RESULT)
"""All that a training writes into its folder."""

CEILING = "ceiling"
"""The line that no network of the kind exceeds."""

TASK_FIELDS = (
    *("seed", "epochs", "batch", "learning_rate", "layers", "heads", "dim", "mlp_width", "stop_at"),
    *("patience", "objective", "strength", "corpus", "positions", "sequences"),
)
"""Options that are fields of the task's configuration; all other fields are set by ``set``."""

WIDE = 10.0
"""A loss that falls by more than this factor is drawn on a logarithmic axis."""

MOST_EPOCHS = 13
"""Rows of the table of epochs."""


class TrainConfig(FolderConfig):
    """Train a small transformer on a task of the papers: sorting, convex hulls, memorization, the circle.

    The defaults have the sizes of the paper and optimizer settings that train well; --official has the published
    ones. The same command in the same folder goes on after a kill, to the same result.
    """

    group = "Training"
    task: str = option("", "sort, hull, memorize or circle.", positional=True)
    official: bool = option(False, "The published optimizer settings, as they are.")
    fast: bool = option(False, "A small task and network, in seconds.")
    seed: int | None = option(None, "Of weights, examples and their order.", ge=0, lt=2**63, shown="0")
    epochs: int | None = option(None, "Passes over the examples.", ge=0, shown="the task's")
    batch: int | None = option(None, "Examples in a step.", ge=1, shown="the task's")
    learning_rate: float | None = option(
        None, "Largest rate of the optimizer.", gt=0, allow_inf_nan=False, shown="the task's"
    )
    layers: int | None = option(None, "Number of blocks.", ge=1, shown="the paper's")
    heads: int | None = option(None, "Heads of every attention.", ge=1, shown="the paper's")
    dim: int | None = option(None, "Width of a token.", ge=1, shown="the paper's")
    mlp_width: int | None = option(None, "Adds MLPs of this width to the blocks.", ge=1, shown="none")
    stop_at: float | None = option(
        None,
        "Stop after an epoch with a test score of at least this.",
        le=1,
        allow_inf_nan=False,
        shown="never",
    )
    patience: int | None = option(
        None, "Stop after this many epochs without a smaller training loss.", ge=1, shown="never"
    )
    objective: str | None = option(None, "What is minimized, see 'rankscope list objectives'.", shown="plain")
    strength: float | None = option(None, "Of the objective.", ge=0, allow_inf_nan=False, shown="0")
    corpus: str | None = option(
        None, "memorize: file with the text to learn by heart.", shown="the bundled one", moved=("text",)
    )
    positions: str | None = option(None, "memorize: none, or learned position vectors.", shown="none")
    sequences: int | None = option(None, "memorize: how many sequences of the text.", ge=1, shown="500")
    set: tuple[str, ...] = option(
        (),
        "FIELD=VALUE: any other field of the task's configuration; may be given several times.",
        many=True,
    )
    tensorboard: bool = option(False, "Also write a log for TensorBoard into the folder.")

    @field_validator("task")
    @classmethod
    def _named(cls, task: str) -> str:
        if not task.strip():
            raise ConfigError("no task was named; give one, such as sort: see 'rankscope list tasks'")
        return task

    @field_validator("corpus")
    @classmethod
    def _not_empty(cls, corpus: str | None) -> str | None:
        if corpus is not None and not corpus.strip():
            raise ConfigError(
                Option("corpus"),
                " is empty; name a file",
            )
        return corpus

    @field_validator("set")
    @classmethod
    def _pairs(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            name, equals, _ = one.partition("=")
            if not equals or not name.strip():
                raise ConfigError(
                    Option("set", one),
                    ": expected FIELD=VALUE, such as warmup=50",
                )
        return given

    @model_validator(mode="after")
    def _one_setting(self) -> "TrainConfig":
        if self.official and self.fast:
            raise ConfigError(
                Option("official"),
                " and ",
                Option("fast"),
                " were both given; choose one, or none for the paper's sizes, trained well",
            )
        return self

    @property
    def setting(self) -> Literal["paper", "official", "fast"]:
        """Sizes of the paper with an optimizer that trains them; those with the published optimizer; small ones."""
        return "official" if self.official else "fast" if self.fast else "paper"

    @property
    def reads(self) -> tuple[str, ...]:
        """The file with the text."""
        return () if self.corpus is None else (self.corpus,)

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into the folder."""
        return FILES


class EarlyStop(Value, title="Stopped"):
    """Why a training ended before its last epoch."""

    by: Literal["score", "patience"]
    """The test score was good enough, or the loss did not become smaller for too long."""

    limit: float
    """The score that was to be reached, or the number of epochs without a smaller loss."""

    epoch: int
    """In which the score was reached, or after which the loss did not become smaller."""

    @property
    def words(self) -> str:
        """The reason as a part of a sentence."""
        if self.by == "score":
            return f"the test score reached {self.limit} in epoch {self.epoch}"
        return f"no smaller loss in {count(int(self.limit), 'epoch')} after epoch {self.epoch}"


class Training(Value):
    """What came out of a training."""

    task: str
    """Name of the task."""

    about: Quoted
    """What the network has to say of every token."""

    source: str
    """The experiment of the paper."""

    score: Number
    """Score on the examples to test on; larger is better, 1 is perfect."""

    scored: str
    """What the score is."""

    epochs: int
    """How many were trained."""

    stopped: EarlyStop | None = None
    """Why it ended before its last epoch, if it did."""

    parameters: int
    """Of the network."""

    lines: dict[str, float]
    """Scores to compare with, by name: guessing, ceilings."""

    published: dict[str, float]
    """Scores of the paper, by name."""


class TrainFinding(Finding):
    """A trained network, and what its score is worth."""

    command: ClassVar[str] = "train"

    columns: ClassVar[Mapping[str, str]] = {"epoch": "The epoch, from one on."}

    training: Training
    """What came out."""

    notes: tuple[Quoted, ...] = ()
    """What differs from the paper, as the task declares it."""

    definitions: dict[str, str]
    """What every measure is, by its id."""

    @property
    def trained(self) -> "Trained | None":
        """The network itself with its configuration and curve; None in a finding that was loaded.

        It is no field: what was found is the same with and without it, and it is not saved.
        """
        return self.__dict__.get("_trained")

    def holding(self, trained: "Trained") -> Self:
        """The same finding, with the network at hand."""
        self.__dict__["_trained"] = trained
        return self

    @property
    def score(self) -> Number:
        """Score of the network on the examples to test on."""
        return self.training.score

    @property
    def model(self) -> Any:
        """The trained network; an error in a finding that was loaded."""
        if self.trained is None:
            raise ConfigError(
                "a finding that was loaded has no network; load_trained reads the model.safetensors of its folder"
            )
        return self.trained.model

    @property
    def words(self) -> tuple[str, ...]:
        """The score, and the scores that it is to be compared with."""
        found = self.training
        when = f"after {count(found.epochs, 'epoch')}" if found.epochs else "before any training"
        said = [f"{found.task}: {found.scored} is {number(found.score, 4)} {when}."]
        if found.lines:
            said.append(f"Compare with: {_score_words(found.lines, 4)}.")
        ceiling = found.lines.get(CEILING)
        if ceiling and found.score is not None:
            said.append(f"The score is {percent(found.score / ceiling, 3)} of the ceiling.")
        if found.published:
            said.append(f"Published at the paper's sizes: {_score_words(found.published, 3)}.")
        if found.stopped is not None:
            said.append(f"Training stopped early: {found.stopped.words}.")
        return tuple(said)

    @property
    def tone(self) -> Tone:
        """Green where the score is above every line but the ceiling."""
        found = self.training
        if not found.epochs or found.score is None:
            return "unknown"
        return (
            "good"
            if all(found.score > one for name, one in found.lines.items() if name != CEILING)
            else "look"
        )

    def document(self) -> Document:
        """The score, the task, the curves, the numbers by epoch."""
        found = self.training
        return Document(
            title=f"Training: {found.task}",
            command=self.command,
            facts=[count(found.epochs, "epoch"), count(found.parameters, "parameter")],
            blocks=some(
                Verdict(f"Score {number(found.score, 4)}", self.words, self.tone),
                Prose([found.about, f"Source: {found.source}"]),
                Section("Curves", [Figure(one) for one in self.chart().pictures], only="html"),
                Section("By epoch", [self._by_epoch()], only="html") if found.epochs else None,
                Section("Notes", [Prose(self.notes)]) if self.notes else None,
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def _curve(self, name: str) -> list[tuple[int, Number]]:
        rows = self.table.where(definition=name).frame
        return list(rows.select("epoch", "value").iter_rows()) if rows.height else []

    def _by_epoch(self) -> Tabular:
        curves = {name: dict(self._curve(name)) for name in CURVES}
        epochs = list(curves["loss"])
        rows = [
            [str(epoch), *(number(curves[name].get(epoch), 4) for name in CURVES)]
            for epoch in (epochs[at] for at in even(len(epochs), MOST_EPOCHS))
        ]
        names = [name.replace("_", " ") for name in CURVES]
        return Tabular(columns=[Column("epoch"), *map(Column, names)], rows=rows)

    def chart(self) -> Chart:
        """Scores by epoch with the lines to compare them with, and the loss."""
        found, last = self.training, self.training.epochs
        held, taught, loss = (self._curve(name) for name in ("test_score", "train_score", "loss"))
        values = [value for _, value in [*held, *taught] if value is not None] + list(found.lines.values())
        scores = [
            _line("tested", held, 0),
            _line("in training", taught, 1),
            *(
                Line(
                    name=f"{name} {number(value)}",
                    points=[Point(0, value), Point(last, value)],
                    style="dashed",
                    color=-1,
                    dots=False,
                )
                for name, value in found.lines.items()
            ),
        ]
        known = [value for _, value in loss if value is not None]
        is_log = bool(known) and min(known) > 0 and max(known) > WIDE * min(known)
        return Chart(
            [
                Panel(
                    title="Score by epoch",
                    lines=scores if last else (),
                    value="score",
                    across="epoch",
                    scale="linear",
                    inside=(min(0.0, *values), max(1.0, *values)) if values else (0.0, 1.0),
                    notes=[found.scored],
                ),
                Panel(
                    title="Loss by epoch",
                    lines=[_line("loss", loss, 2, is_log=is_log)] if last else (),
                    value="loss",
                    across="epoch",
                    scale="log" if is_log else "linear",
                ),
            ],
            title=self.picture_title,
        )

    def save_into(self, folder: str | os.PathLike[str], made_by: str = "") -> tuple[str, ...]:
        """Write the result beside the model and the log that the training wrote; the names of all three."""
        self.save(Path(folder) / RESULT)
        return FILES[1:]


def _score_words(scores: dict[str, float], digits: int) -> str:
    return ", ".join(f"{name} {number(value, digits)}" for name, value in scores.items())


def _line(name: str, curve: list[tuple[int, Number]], color: int, *, is_log: bool = False) -> Line:
    points = [
        Point(epoch, math.log10(value) if is_log and value else value, f"{name}: {number(value, 4)}")
        for epoch, value in curve
    ]
    return Line(name=name, points=points, color=color)
