"""What a task is here: data with a right answer per token, a network of the tree for it, and how that is trained."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.errors import ConfigError
from rankscope.papers.tasks.objectives import OBJECTIVES

Batch = tuple[Tensor, Tensor]
"""Inputs and targets; the first axis of both runs over examples."""

Setting = Literal["paper", "official", "fast"]
"""Sizes of the paper with an optimizer that trains them; those with the published optimizer; small ones."""


FieldValue = JsonValue | tuple[int, ...]
"""What a field of a configuration is given as, from Python or from JSON."""

LARGEST = 1e37
"""A float32 can hold it."""


class TaskConfig(Config):
    """What all tasks share: the network, the optimizer, when to stop. Each task adds its data and its defaults."""

    layers: int = Field(default=6, ge=1, strict=True)
    heads: int = Field(default=2, ge=1, strict=True)
    dim: int = Field(default=48, ge=1, strict=True)
    mlp_width: int | None = Field(default=None, ge=1, strict=True, description="no MLPs if None")
    initial_std: float = Field(
        default=0.02, gt=0, le=LARGEST, allow_inf_nan=False, description="of every weight; 0.02 as in BERT"
    )
    value_std: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="of the value and output maps; as all others if None",
    )
    dropout: float = Field(
        default=0.0, ge=0, lt=1, allow_inf_nan=False, description="while the model learns; see dropout.py"
    )
    epochs: int = Field(default=40, ge=0, strict=True)
    batch: int = Field(default=50, ge=1, strict=True, description="examples in one step of the optimizer")
    optimizer: Literal["adam", "adamw"] = Field(
        default="adam", description="they differ in what weight decay does: L2 term or decoupled"
    )
    learning_rate: float = Field(default=1e-3, gt=0, le=LARGEST, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    warmup: int = Field(default=100, ge=0, strict=True, description="steps in which the rate grows from zero")
    decay: Literal["cosine", "steps", "none"] = Field(
        default="cosine", description="to zero, by a factor at milestones, or not at all"
    )
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="epochs after which the rate falls by the factor"
    )
    factor: float = Field(default=0.1, gt=0, le=1, allow_inf_nan=False)
    objective: str = Field(default="plain", description="what a step of the optimizer minimizes")
    strength: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="of the objective; see there")
    stop_at: float | None = Field(
        default=None,
        le=1,
        allow_inf_nan=False,
        description="stop after an epoch with a test score at least this good",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        strict=True,
        description="stop after that many epochs without a smaller training loss",
    )
    threads: int = Field(
        default=1, ge=1, le=64, strict=True, description="of torch; another number moves the last bits"
    )
    seed: int = Field(default=0, ge=0, le=2**63 - 1, strict=True)

    @model_validator(mode="after")
    def _fits_together(self) -> "TaskConfig":
        if self.dim % self.heads:
            raise ConfigError(f"heads={self.heads} does not divide dim={self.dim}; choose heads that do")
        if self.milestones and self.decay != "steps":
            raise ConfigError(f"milestones are for decay='steps', got decay={self.decay!r}")
        OBJECTIVES[self.objective].check(self.strength, self.layers)
        return self

    @property
    def examples(self) -> int:
        """Training examples of one epoch."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimizer in an epoch; the last batch may be smaller."""
        return math.ceil(self.examples / self.batch)

    @property
    def steps(self) -> int:
        """Steps of the optimizer in the whole training, if it is not stopped early."""
        return self.epochs * self.steps_per_epoch


C = TypeVar("C", bound=TaskConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class Task(Generic[C]):
    """A task by name.

    Args:
        about: what the network has to say of every token, in one sentence.
        source: the experiment of the paper.
        config: type of its configuration; the defaults have the sizes of the paper and train well.
        settings: fields by which ``official`` (the published optimizer) and ``fast`` (seconds) differ from them.
        model: the network with weights drawn from a generator, in float32.
        batches: for every epoch its batches. They depend on the configuration alone.
        held_out: examples to test on.
        loss: of outputs against targets; a scalar to minimize.
        score: of outputs against targets; larger is better, 1 is perfect.
        scored: what the score is, in a few words.
        in_sample: whether the examples to test on are some of those that are trained on.
        lines: scores to compare with, by name in words: guessing, ceilings.
        published: scores of the paper, by name.
        notes: sentences on what differs from the paper, and what the published settings do.
    """

    name: str
    about: str
    source: Ref
    config: type[C]
    settings: Mapping[Literal["official", "fast"], Mapping[str, FieldValue]]
    model: Callable[[C, torch.Generator], nn.Module]
    batches: Callable[[C], Iterator[list[Batch]]]
    held_out: Callable[[C], Batch]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], float]
    scored: str
    lines: Callable[[C], Mapping[str, float]]
    published: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    in_sample: bool = False

    def configured(self, setting: Setting = "paper", **fields: FieldValue) -> C:
        """The configuration of a setting with some fields changed."""
        known = {} if setting == "paper" else dict(self.settings[setting])
        return self.config.of(**known | fields)


TASKS: Registry[Task[Any]] = Registry("task")


def register(task: Task[Any]) -> Task[Any]:
    """Enter a task under its name."""
    TASKS.register(task.name, task)
    return task


def shuffled_batches(
    examples: Callable[[], Batch], config: TaskConfig, *, generator: torch.Generator, fresh: bool = False
) -> Iterator[list[Batch]]:
    """For every epoch its batches in shuffled order: of one set of examples, or with ``fresh`` of a new one each."""
    inputs, targets = examples()
    for epoch in range(config.epochs):
        if fresh and epoch:
            inputs, targets = examples()
        order = torch.randperm(len(inputs), generator=generator)
        yield [(inputs[chosen], targets[chosen]) for chosen in order.split(config.batch)]


def token_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Share of tokens at which the target has the largest logit; of several largest ones the first counts."""
    return float((outputs.argmax(dim=-1) == targets).double().mean())


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all tokens."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
