"""What short and long paths of a trained network are worth: residual and accuracy of the paths of each length.

The setting is the path-effectiveness experiment of Dong, Cordonnier and Loukas (2021, Section 4.2): a network is
trained with all its heads and skips, and then only paths of one length are kept. Three readings of "kept" (``mode``):

``frozen``    all paths of a length, exactly, with attention maps, norm scales and gates held at their values in the
              full network. Lengths add up to the network. Every length still profits from the others: the maps that
              its paths multiply were computed by the full network.
``isolated``  the network run again along each path with everything else taken out; outputs are summed over paths.
``official``  the same as the published code does it: layers that the path skips are dropped, and a LayerNorm without
              gain and bias stands after every head. MLPs, if there are any, are left out.

In the last two modes a few paths are drawn at random and summed, as in the paper (5 and 20 of them, in 5 draws), and
all of a length are run as well if there are not too many. Isolated paths do not add up to the network. In every mode
the summed states pass one LayerNorm without gain and bias before the classifier, so that it does not matter how many
paths were summed; residuals are measured before that norm.

A row of the table is one number. Columns besides the usual ones (``model`` is the task, ``seed`` that of the training):

| column    | meaning                                                                                      |
|-----------|----------------------------------------------------------------------------------------------|
| `weights` | `trained`, or `initial`: the same network before training                                    |
| `mode`    | `frozen`, `isolated` or `official`                                                           |
| `paths`   | which paths were summed: `all` of the length, `up_to` (all of this length or a shorter one), |
|           | `drawn` (at random), or `single` (none summed: the mean over all paths, each alone)          |
| `summed`  | how many paths were summed                                                                   |
| `length`  | heads on a path                                                                              |
| `low`     | lower end of the 95% interval of the mean over draws; null where nothing is drawn            |
| `high`    | upper end of it                                                                              |
| `repeats` | how many draws the value is the mean of; null where nothing is drawn                         |

``definition`` is one of: ``token_accuracy``; ``residual_ratio[composite,mean]`` and ``residual[frobenius,mean]``, means
over the examples; for ``frozen`` and ``all`` also ``share``, the signed part ``<J Z, J Y> / |J Y|^2`` that the summed
paths Z have in the residual of the output Y (shares of all lengths add up to one); and for ``all`` also
``refit_accuracy``, that of a linear classifier fitted to these sums on training examples, with ``refit_common`` and
``refit_chance`` to compare it with (see ``refit``). The classifier of the network was trained on the whole; a fresh one
tells what is there to be read. It is not resolved where the residual is not.

Sections: ``models`` (accuracy of each full network), ``over_seeds`` (mean of every row over the seeds of training, with
its 95% interval and the values themselves; every seed has its own draw of paths), ``baselines`` (the lines of the
task), ``published`` (scores of the paper), ``lengths`` (how many paths there are, exactly), ``identity`` (how far the
lengths are from adding up to the network), ``refit`` (what fresh classifiers were fitted to), ``training`` (the
configuration of the models), ``definitions``.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.findings.base import Value
from rankscope.measures import evaluate_many, find_measure
from rankscope.papers.tasks.checkpoint import Trained, initial_model
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.path_runs import Mode, PathPlan, plan_paths, summed_paths
from rankscope.papers.tasks.task import Batch, Task, TaskConfig, token_accuracy
from rankscope.pathways import spectrum
from rankscope.pathways.counts import counts_of
from rankscope.pathways.isolated import OFFICIAL_EPS
from rankscope.results import Table
from rankscope.results.statistics import mean_interval
from rankscope.studies.rows import RowBuilder, definitions

Weights = Literal["trained", "initial"]
Sense = Literal["frozen", "isolated", "official"]
Summed = Literal["all", "up_to", "drawn", "single"]

ACCURACY, SHARE = "token_accuracy", "share"
REFIT, COMMON, CHANCE = "refit_accuracy", "refit_common", "refit_chance"
RATIO = "residual_ratio[composite,mean]"
MEASURES = (RATIO, "residual[frobenius,mean]")

WORDS = {
    ACCURACY: "share of tokens at which the right class has the largest logit",
    SHARE: "signed part of the output's residual, <J Z, J Y> / |J Y|^2; all lengths add up to one",
    REFIT: "token accuracy of a linear classifier fitted to these sums of paths, by ridge regression",
    COMMON: "the same for a classifier that sees no more than their mean over the tokens of an example",
    CHANCE: "the same for a classifier fitted to the same labels in random order, which mean nothing",
}
"""What the definitions that are no measures of token matrices mean."""

AT_ONCE = 2**18
"""Entries of the states of examples that are run together, which bounds the memory."""

RIDGE = 1e-6
"""Of the mean variance of a feature: what a fresh classifier holds its weights back with."""


class EffectivenessConfig(Config):
    """How many paths to draw, and on how many examples to run them."""

    draws: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = Field(
        default=(5, 20), description="how many paths are summed"
    )
    repeats: int = Field(default=5, ge=2, strict=True, description="how often they are drawn")
    modes: tuple[Mode, ...] = ("isolated", "official")
    most_paths: int = Field(
        default=1500,
        ge=0,
        strict=True,
        description="all paths of a length are run if there are no more than this",
    )
    singles: bool = Field(default=True, description="look at each of these alone, too")
    examples: int | None = Field(default=None, ge=1, strict=True, description="all that are scored if None")
    refit: int = Field(
        default=200,
        ge=0,
        strict=True,
        description="examples that fresh classifiers are fitted to; 0 for none",
    )
    seed: int = Field(
        default=0, ge=0, strict=True, description="of the drawn paths, together with the seed of the model"
    )

    @property
    def pieces(self) -> int:
        """How often the work on one model tells of its progress."""
        return 2 * (1 + len(self.modes))


# ---------------------------------------------------------------------------------------------- what is found


class KeptPaths(Value):
    """Which paths of which model were kept, and summed."""

    model: str
    seed: int
    weights: Weights
    mode: Sense
    length: int
    paths: Summed
    summed: int


class PathRow(KeptPaths):
    """One number of the table."""

    measure: str
    definition: str
    value: float
    floor: float
    resolved: bool
    low: float | None = None
    high: float | None = None
    repeats: int | None = None


class FullModel(Value):
    """The accuracy of a whole network."""

    model: str
    seed: int
    weights: Weights
    accuracy: float


class Refit(Value):
    """What fresh classifiers were fitted to."""

    examples: int
    in_sample: bool
    """They are scored on what they were fitted to, because the task holds nothing out."""


class PathScores(Value):
    """What the paths of one model achieve."""

    rows: tuple[PathRow, ...]
    models: tuple[FullModel, ...]
    identity: float
    examples: int
    refit: Refit | None
    seed: int


class SeedRows(Value):
    """Rows that differ in the seed of training alone: their values, and the mean with its 95% interval."""

    weights: Weights
    mode: Sense
    paths: Summed
    summed: int
    length: int
    definition: str
    mean: float
    low: float | None
    high: float | None
    seeds: int
    resolved: bool
    """Whether all of them are."""

    resolved_seeds: int
    values: tuple[float, ...]
    """One per seed, in the same order everywhere."""


class LengthIdentity(Value):
    """How far the lengths are from adding up to the network."""

    relative_error: float
    dtype: str


class LengthShare(Value):
    """How many paths have a length, and which share of all that is."""

    length: int
    paths: int
    share: float


class Effectiveness(Value):
    """What the paths of the models of one task achieve."""

    models: tuple[FullModel, ...]
    over_seeds: tuple[SeedRows, ...]
    identity: LengthIdentity
    refit: Refit | None
    examples: int
    baselines: dict[str, float]
    """Scores to compare with, by name: guessing, ceilings."""

    published: dict[str, float]
    lengths: tuple[LengthShare, ...]


# -------------------------------------------------------------------------------------------------- the study


def effectiveness(trained: Sequence[Trained], config: EffectivenessConfig | None = None) -> Table:
    """The table of models of one task, trained in the same way with different seeds."""
    config = EffectivenessConfig() if config is None else config
    _check(trained)
    found = [score_paths(one, config) for one in trained]
    task, training = trained[0].task, trained[0].config
    return table_of(
        found,
        config,
        command="effectiveness",
        training=training.model_dump(mode="json", exclude={"seed"}),
        **summary(found, task, training).model_dump(mode="json"),
    )


@torch.no_grad()
def score_paths(
    trained: Trained, config: EffectivenessConfig, tell: Callable[[], object] | None = None
) -> PathScores:
    """What the paths of one model achieve; ``tell`` is called ``config.pieces`` times on the way."""
    model = _ready(trained)
    inputs, targets = (side[: config.examples] for side in trained.task.held_out(trained.config))
    scored = (inputs, targets)
    classes = len(model.classifier_bias)
    fit = fit_of(trained, scored, count=config.refit, classes=classes) if config.refit else None
    plan = plan_paths(
        model.network,
        most_paths=config.most_paths,
        draws=config.draws,
        repeats=config.repeats,
        singles=config.singles,
        generator=path_source(config, trained.config),
    )
    rows = list[PathRow]()
    models, errors = list[FullModel](), list[float]()
    both: dict[Weights, TaskModel] = {
        "trained": model,
        "initial": _task_model(trained.task, trained.config),
    }
    task, seed = trained.task.name, trained.config.seed
    with threads_for(0):
        for weights, one in both.items():
            subject = ScoredModel(model=one, scored=scored, fit=fit, task=task, seed=seed, weights=weights)
            accuracy, error = _add_frozen(rows, subject)
            models.append(FullModel(model=task, seed=seed, weights=weights, accuracy=accuracy))
            errors.append(error)
            _tell(tell)
            for mode in config.modes:
                _add_runs(rows, subject, plan, mode)
                _tell(tell)
    return PathScores(
        rows=tuple(rows),
        models=tuple(models),
        identity=max(errors),
        examples=len(targets),
        refit=None if fit is None else Refit(examples=len(fit.fitted[0]), in_sample=fit.in_sample),
        seed=seed,
    )


def path_source(config: EffectivenessConfig, training: TaskConfig) -> torch.Generator:
    """What paths of one model are drawn from: models of different seeds have draws that are independent.

    So an interval over the seeds of training covers what the draw of paths adds, too.
    """
    digest = hashlib.sha256(f"paths {config.seed} {training.seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def summary(found: Sequence[PathScores], task: Task[Any], training: TaskConfig) -> Effectiveness:
    """What was measured in each model, over all of them."""
    counts = counts_of(_task_model(task, training).network)
    return Effectiveness(
        models=tuple(entry for one in found for entry in one.models),
        over_seeds=over_seeds([row for one in found for row in one.rows]),
        identity=LengthIdentity(relative_error=max(one.identity for one in found), dtype="float64"),
        refit=found[0].refit,
        examples=found[0].examples,
        baselines=dict(task.lines(training)),
        published=dict(task.published),
        lengths=tuple(
            LengthShare(length=length, paths=count, share=count / sum(counts))
            for length, count in enumerate(counts)
        ),
    )


def table_of(found: Sequence[PathScores], config: Config, *, command: str, **sections: Any) -> Table:
    """The rows of all models, with what their definitions mean."""
    rows = RowBuilder()
    for one in found:
        for row in one.rows:
            rows.add(1, row.model_dump(exclude_none=True))
    used = {row.definition for one in found for row in one.rows}
    words = {name: meaning for name, meaning in WORDS.items() if name in used} | definitions(MEASURES)
    return rows.table(
        config, command=command, seeds=[one.seed for one in found], definitions=words, **sections
    )


def over_seeds(rows: Sequence[PathRow]) -> tuple[SeedRows, ...]:
    """Rows averaged over the seeds of training."""
    groups: dict[tuple[Weights, Sense, Summed, int, int, str], list[PathRow]] = {}
    for row in rows:
        key = (row.weights, row.mode, row.paths, row.summed, row.length, row.definition)
        groups.setdefault(key, []).append(row)
    found = []
    for (weights, mode, paths, summed, length, definition), some in groups.items():
        values = tuple(row.value for row in some)
        mean, low, high = _mean(values)
        resolved = sum(row.resolved for row in some)
        found.append(
            SeedRows(
                weights=weights,
                mode=mode,
                paths=paths,
                summed=summed,
                length=length,
                definition=definition,
                mean=mean,
                low=low,
                high=high,
                seeds=len(some),
                resolved=resolved == len(some),
                resolved_seeds=resolved,
                values=values,
            )
        )
    return tuple(found)


def _ready(trained: Trained) -> TaskModel:
    """A copy in float64 and in evaluation mode, whose weights ask for no gradients."""
    twin = _task_model(trained.task, trained.config)
    twin.load_state_dict(trained.model.state_dict())
    return twin


def _task_model(task: Task[Any], config: TaskConfig) -> TaskModel:
    model = initial_model(task, config)
    if not isinstance(model, TaskModel):
        raise ConfigError(
            f"the task {task.name!r} does not classify tokens, so that its paths have no accuracy; use sort, hull or "
            "memorize"
        )
    return model


def _check(trained: Sequence[Trained]) -> None:
    if not trained:
        raise ConfigError("no models were given; give at least one, such as load_trained()")
    seeds = [one.config.seed for one in trained]
    alike = {(one.task.name, one.config.model_copy(update={"seed": 0})) for one in trained}
    if len(set(seeds)) < len(seeds) or len(alike) > 1:
        raise ConfigError(
            f"models are told apart by their seeds and must be alike otherwise; got seeds {seeds} and "
            f"{len(alike)} different configurations; study the others in a call of their own"
        )


def _tell(tell: Callable[[], object] | None) -> None:
    if tell is not None:
        tell()


# ------------------------------------------------------------------------------------------ rows of one model


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassifierData:
    """What fresh classifiers are fitted to, and probed on: the scored examples.

    Where the task holds no examples out (``Task.in_sample``), as all that are scored were trained on, they are probed
    on what they were fitted to.
    """

    fitted: Batch
    probed: Batch
    in_sample: bool
    classes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredModel:
    """A model in float64 and evaluation mode, the examples it is scored on, and what its rows are named by."""

    model: TaskModel
    scored: Batch
    fit: ClassifierData | None
    task: str
    seed: int
    weights: Weights

    def chunks(self, examples: Batch) -> list[Batch]:
        """States of the examples and their targets, in pieces that fit the memory."""
        x = self.model.embed(examples[0])
        count = max(1, AT_ONCE // max(1, x[0].numel()))
        return list(zip(x.split(count), examples[1].split(count), strict=True))

    def kept_paths(self, mode: Sense, length: int, paths: Summed, summed: int) -> KeptPaths:
        """Some of its paths."""
        return KeptPaths(
            model=self.task,
            seed=self.seed,
            weights=self.weights,
            mode=mode,
            length=length,
            paths=paths,
            summed=summed,
        )


@dataclass(kw_only=True, slots=True)
class ScoreSums:
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


def _add_frozen(rows: list[PathRow], subject: ScoredModel) -> tuple[float, float]:
    """Rows of exact terms; accuracy of the full network, and how far the terms are from adding up to it."""
    network, model = subject.model.network, subject.model
    counts = counts_of(network)
    every, up_to = ([ScoreSums() for _ in counts] for _ in range(2))
    shares = [[0.0, 0.0] for _ in counts]
    kept, right, error = list[Tensor](), 0.0, 0.0
    for x, targets in subject.chunks(subject.scored):
        found = spectrum(network, x)
        reading = found.read()
        for length, states in enumerate(found.terms):
            every[length].add(model, states, targets)
            up_to[length].add(model, found.terms[: length + 1].sum(dim=0), targets)
            shares[length][0] += float(reading.share[length].sum())
            shares[length][1] += float(reading.share_floor[length].sum())
        right += token_accuracy(model.classify(found.output), targets) * len(targets)
        error = max(error, float(found.relative_error.max()))
        kept.append(found.terms)
    total = every[0].examples
    for length, count in enumerate(counts):
        alone = subject.kept_paths("frozen", length, "all", count)
        rows += _tally_rows(alone, [every[length]])
        share, floor = (one / total for one in shares[length])
        rows.append(_row(alone, SHARE, share, floor))
        together = subject.kept_paths("frozen", length, "up_to", sum(counts[: length + 1]))
        rows += _tally_rows(together, [up_to[length]])
    if subject.fit is not None:
        fitted = [spectrum(network, x).terms for x, _ in subject.chunks(subject.fit.fitted)]
        _add_refits(rows, subject, subject.fit, "frozen", _whole(fitted), _whole(kept))
    return right / total, error


def _whole(pieces: Sequence[Tensor]) -> dict[int, Tensor]:
    """Terms of all examples, by length."""
    return dict(enumerate(torch.cat(list(pieces), dim=1)))


def _add_runs(rows: list[PathRow], subject: ScoredModel, plan: PathPlan, mode: Mode) -> None:
    """Rows of paths that are run again, summed as planned."""
    network = subject.model.network
    tallies = {key: ScoreSums() for key in plan.keys}
    up_to = {length: ScoreSums() for length in plan.cumulative}
    every = [length for length, paths in enumerate(plan.every) if paths]
    single = {length: ScoreSums() for length in every if plan.singles}
    kept: dict[int, list[Tensor]] = {}
    for x, targets in subject.chunks(subject.scored):

        def alone(length: int, states: Tensor, targets: Tensor = targets) -> None:
            single[length].add(subject.model, states, targets)

        sums = summed_paths(network, x, plan, mode, alone if plan.singles else None)
        for key, states in sums.items():
            tallies[key].add(subject.model, states, targets)
        total = torch.zeros_like(x)
        for length in plan.cumulative:
            total = total + sums[length, 0, 0]
            up_to[length].add(subject.model, total, targets)
        for length in every:
            kept.setdefault(length, []).append(sums[length, 0, 0])
    counted = 0
    for length, (paths, drawn) in enumerate(zip(plan.every, plan.drawn, strict=True)):
        counted += len(paths)
        if paths:
            rows += _tally_rows(subject.kept_paths(mode, length, "all", len(paths)), [tallies[length, 0, 0]])
        if length in single:
            rows += _tally_rows(subject.kept_paths(mode, length, "single", 1), [single[length]])
        if length in up_to:
            rows += _tally_rows(subject.kept_paths(mode, length, "up_to", counted), [up_to[length]])
        for summed, repeats in drawn.items():
            own = [tallies[length, summed, repeat] for repeat in range(len(repeats))]
            rows += _tally_rows(subject.kept_paths(mode, length, "drawn", summed), own)
    if subject.fit is not None and every:
        fitted = _classifier_states(subject, subject.fit, plan, mode)
        known = {length: torch.cat(some) for length, some in kept.items()}
        _add_refits(rows, subject, subject.fit, mode, fitted, known)


def _classifier_states(
    subject: ScoredModel, fit: ClassifierData, plan: PathPlan, mode: Mode
) -> dict[int, Tensor]:
    """Sums of all paths of a length on the examples that fresh classifiers are fitted to."""
    found: dict[int, list[Tensor]] = {}
    for x, _ in subject.chunks(fit.fitted):
        for (length, _, _), states in summed_paths(
            subject.model.network, x, plan.without_draws(), mode
        ).items():
            found.setdefault(length, []).append(states)
    return {length: torch.cat(pieces) for length, pieces in found.items()}


def _add_refits(
    rows: list[PathRow],
    subject: ScoredModel,
    fit: ClassifierData,
    mode: Sense,
    fitted: Mapping[int, Tensor],
    scored: Mapping[int, Tensor],
) -> None:
    """Rows of fresh classifiers, one per length."""
    resolved = {
        row.length: row.resolved
        for row in rows
        if (row.weights, row.mode, row.paths, row.definition) == (subject.weights, mode, "all", RATIO)
    }
    counts = counts_of(subject.model.network)
    for length, states in fitted.items():
        found = refit(fit, states, states if fit.in_sample else scored[length])
        about = subject.kept_paths(mode, length, "all", counts[length])
        # A classifier of sums whose residual is rounding reads rounding.
        known = {"resolved": resolved[length]}
        rows += [_row(about, name, value, 0.0).model_copy(update=known) for name, value in found.items()]


def _tally_rows(about: KeptPaths, tallies: Sequence[ScoreSums]) -> list[PathRow]:
    """A row per definition: the number, or if paths were drawn the mean over draws with its interval."""
    found, rows = [tally.means() for tally in tallies], list[PathRow]()
    for definition in found[0]:
        values, floors = zip(*(one[definition] for one in found), strict=True)
        mean, low, high = _mean(values)
        row = _row(about, definition, mean, math.fsum(floors) / len(floors))
        drawn = {"low": low, "high": high, "repeats": len(values)} if about.paths == "drawn" else {}
        rows.append(row.model_copy(update=drawn))
    return rows


def _mean(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean of independent numbers and the ends of its 95% interval; a single number has none."""
    low, high = mean_interval(np.asarray(values, dtype=float)) if len(values) > 1 else (None, None)
    return math.fsum(values) / len(values), low, high


def _row(about: KeptPaths, definition: str, value: float, floor: float) -> PathRow:
    return PathRow(
        **dict(about),
        measure=definition.partition("[")[0],
        definition=definition,
        value=value,
        floor=floor,
        resolved=floor == 0.0 or abs(value) > floor,
    )


# ---------------------------------------------------------------------------- what is read from sums of paths


def standardize(states: Tensor) -> Tensor:
    """LayerNorm without gain and bias: a classifier learns on states of one size, sums of paths have any."""
    return F.layer_norm(states, states.shape[-1:], eps=OFFICIAL_EPS)


def read_states(model: TaskModel, states: Tensor) -> Tensor:
    """Logits of states that are sums of paths: one LayerNorm without gain and bias, then the classifier."""
    return model.classify(standardize(states))


def refit(fit: ClassifierData, fitted: Tensor, probed: Tensor) -> dict[str, float]:
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
    own, against = (standardize(states) for states in (fitted, probed))
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


def fit_of(trained: Trained, scored: Batch, *, count: int, classes: int) -> ClassifierData:
    """The first training examples to fit to, probed on the scored ones; or ``in_sample``, see ``ClassifierData``."""
    task = trained.task
    config = trained.config.model_copy(update={"epochs": 1})
    source = [task.held_out(config)] if task.in_sample else next(iter(task.batches(config)))
    inputs, targets = (torch.cat(side)[:count] for side in zip(*source, strict=True))
    fitted = (inputs, targets)
    probed = fitted if task.in_sample else scored
    return ClassifierData(fitted=fitted, probed=probed, in_sample=task.in_sample, classes=classes)
