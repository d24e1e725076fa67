"""What is read from sums of paths: accuracy of the task's classifier and of a fresh one, and residuals."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.measures import evaluate_many, find_measure
from rankscope.papers.tasks.checkpoint import Trained
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.task import Batch
from rankscope.pathways.isolated import OFFICIAL_EPS

ACCURACY, REFIT, COMMON, CHANCE = "token_accuracy", "refit_accuracy", "refit_common", "refit_chance"
MEASURES = ("residual_ratio[composite,mean]", "residual[frobenius,mean]")

AT_ONCE = 2**18
"""Entries of the states of examples that are run together, which bounds the memory."""

RIDGE = 1e-6
"""Of the mean variance of a feature: what a fresh classifier holds its weights back with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What fresh classifiers are fitted to, and probed on: the scored examples.

    Where the task holds no examples out (``Task.in_sample``), as all that are scored were trained on, they are probed
    on what they were fitted to.
    """

    fitted: Batch
    probed: Batch
    in_sample: bool
    classes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model in float64 and evaluation mode, the examples it is scored on, and how its rows are labeled."""

    model: TaskModel
    scored: Batch
    fit: Fit | None
    about: dict[str, object]

    def chunks(self, examples: Batch) -> list[Batch]:
        """States of the examples and their targets, in pieces that fit the memory."""
        x = self.model.embed(examples[0])
        count = max(1, AT_ONCE // max(1, x[0].numel()))
        return list(zip(x.split(count), examples[1].split(count), strict=True))


@dataclass(kw_only=True, slots=True)
class Tally:
    """Sums over examples of what was measured; a mean is its number divided by the number of examples."""

    examples: int = 0
    sums: dict[str, list[float]] = field(default_factory=dict)

    def add(self, model: TaskModel, states: Tensor, targets: Tensor) -> None:
        """Measure summed states, ``examples tokens dim``."""
        right = read_states(model, states).argmax(dim=-1) == targets
        self._add(ACCURACY, right.double().mean(dim=-1), torch.zeros(()))
        measures = [find_measure(name) for name in MEASURES]
        found = evaluate_many(measures, states, layer=model.config.layers, dtype=states.dtype)
        for measure, one in zip(measures, found, strict=True):
            self._add(measure.definition, one.value, one.floor)
        self.examples += len(targets)

    def means(self) -> dict[str, tuple[float, float]]:
        """Value and floor by definition."""
        return {
            name: (value / self.examples, floor / self.examples) for name, (value, floor) in self.sums.items()
        }

    def _add(self, name: str, value: Tensor, floor: Tensor) -> None:
        known = self.sums.setdefault(name, [0.0, 0.0])
        known[0] += float(value.sum())
        known[1] += float(floor.sum())


def normed(states: Tensor) -> Tensor:
    """LayerNorm without gain and bias: a classifier learns on states of one size, sums of paths have any."""
    return F.layer_norm(states, states.shape[-1:], eps=OFFICIAL_EPS)


def read_states(model: TaskModel, states: Tensor) -> Tensor:
    """Logits of states that are sums of paths: one LayerNorm without gain and bias, then the classifier."""
    return model.classify(normed(states))


def refit(fit: Fit, fitted: Tensor, probed: Tensor) -> dict[str, float]:
    """Accuracy of a linear classifier fitted to sums of paths, and of two that know less.

    All are ridge regressions of one-hot labels on normed states. ``refit_common`` sees the mean of these over the
    tokens of an example only, which is all that is left where tokens are equal. ``refit_chance`` is fitted to the true
    labels in random order, which mean nothing: about the share of the commonest class, and more where a classifier is
    scored on what it was fitted to.
    """
    truth, asked = (side[1].flatten() for side in (fit.fitted, fit.probed))
    generator = torch.Generator().manual_seed(0)
    mixed = truth[torch.randperm(len(truth), generator=generator)]
    other = mixed if fit.in_sample else asked[torch.randperm(len(asked), generator=generator)]
    one_hot = torch.cat([F.one_hot(side, fit.classes).double() for side in (truth, mixed)], dim=-1)
    own, against = (normed(states) for states in (fitted, probed))
    common, against_common = (x.mean(dim=-2, keepdim=True).expand_as(x) for x in (own, against))
    answers = _ridge(own, one_hot, against).split(fit.classes, dim=-1)
    blurred = _ridge(common, one_hot[:, : fit.classes], against_common)
    pairs = {REFIT: (answers[0], asked), COMMON: (blurred, asked), CHANCE: (answers[1], other)}
    return {name: float((x.argmax(dim=-1) == y).double().mean()) for name, (x, y) in pairs.items()}


def _ridge(fitted: Tensor, targets: Tensor, scored: Tensor) -> Tensor:
    """Least squares with an intercept, on features scaled to variance one.

    Features are centered first, so that tokens that are nearly equal keep all the digits in which they differ.
    """
    fitted, scored = fitted.flatten(0, -2), scored.flatten(0, -2)
    center = fitted.mean(dim=0)
    x, y = fitted - center, targets - targets.mean(dim=0)
    scale = x.square().mean(dim=0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    x = x / scale
    gram = x.mT @ x + RIDGE * len(x) * torch.eye(x.shape[-1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.mT @ y)
    found: Tensor = (scored - center) / scale @ weights
    return found + targets.mean(dim=0)


def fit_of(trained: Trained, scored: Batch, *, count: int, classes: int) -> Fit:
    """The first training examples to fit to, probed on those that are scored; or ``in_sample``, see ``Fit``."""
    task = trained.task
    config = trained.config.model_copy(update={"epochs": 1})
    source = [task.held_out(config)] if task.in_sample else next(iter(task.batches(config)))
    inputs, targets = (torch.cat(side)[:count] for side in zip(*source, strict=True))
    fitted = (inputs, targets)
    probed = fitted if task.in_sample else scored
    return Fit(fitted=fitted, probed=probed, in_sample=task.in_sample, classes=classes)
