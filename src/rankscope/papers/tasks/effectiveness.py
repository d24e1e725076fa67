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
|           | `drawn` (at random), or `single` (none summed: the mean over all paths, each by itself)      |
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
its 95% interval; every seed has its own draw of paths), ``baselines`` (the lines of the task), ``published`` (scores of
the paper), ``lengths`` (how many paths there are, exactly), ``identity`` (how far the lengths are from adding up to the
network), ``refit`` (what fresh classifiers were fitted to), ``training`` (the configuration of the models),
``definitions``.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.papers.tasks.checkpoint import Trained, initial_model
from rankscope.papers.tasks.effectiveness_model import add_frozen, add_runs
from rankscope.papers.tasks.effectiveness_reading import (
    ACCURACY,
    CHANCE,
    COMMON,
    MEASURES,
    REFIT,
    Subject,
    fit_of,
)
from rankscope.papers.tasks.effectiveness_rows import Row, over_seeds
from rankscope.papers.tasks.effectiveness_runs import Mode, planned
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.task import Task, TaskConfig
from rankscope.pathways.counts import counts_of
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

WORDS = {
    ACCURACY: "share of tokens at which the right class has the largest logit",
    "share": "signed part of the output's residual, <J Z, J Y> / |J Y|^2; all lengths add up to one",
    REFIT: "token accuracy of a linear classifier fitted to these sums of paths, by ridge regression",
    COMMON: "the same for a classifier that sees no more than their mean over the tokens of an example",
    CHANCE: "the same for a classifier fitted to the same labels in random order, which mean nothing",
}
"""What the definitions that are no measures of token matrices mean."""


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
        description="all paths of a length are run if there are no more than so many",
    )
    singles: bool = Field(default=True, description="look at each of these by itself, too")
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


def effectiveness(trained: Sequence[Trained], config: EffectivenessConfig | None = None) -> Table:
    """The table of models of one task, trained in the same way with different seeds."""
    config = EffectivenessConfig() if config is None else config
    _check(trained)
    found = [measured(one, config) for one in trained]
    return table_of(found, config, trained[0].task, trained[0].config)


@torch.no_grad()
def measured(
    trained: Trained, config: EffectivenessConfig, tell: Callable[[], object] | None = None
) -> dict[str, Any]:
    """What the paths of one model achieve, as JSON: ``rows``, ``models`` and ``identity``; see ``table_of``."""
    model = _ready(trained)
    inputs, targets = (side[: config.examples] for side in trained.task.held_out(trained.config))
    scored = (inputs, targets)
    classes = len(model.classifier_bias)
    fit = fit_of(trained, scored, count=config.refit, classes=classes) if config.refit else None
    plan = planned(
        model.network,
        most_paths=config.most_paths,
        draws=config.draws,
        repeats=config.repeats,
        singles=config.singles,
        generator=path_source(config, trained.config),
    )
    rows: list[Row] = []
    models, errors = [], []
    with threads_for(0):
        for weights, one in (("trained", model), ("initial", _task_model(trained.task, trained.config))):
            about = {"model": trained.task.name, "seed": trained.config.seed, "weights": weights}
            subject = Subject(model=one, scored=scored, fit=fit, about=about)
            accuracy, error = add_frozen(rows, subject)
            models.append({**about, "accuracy": accuracy})
            errors.append(error)
            _tell(tell)
            for mode in config.modes:
                add_runs(rows, subject, plan, mode)
                _tell(tell)
    seen = None if fit is None else {"examples": len(fit.fitted[0]), "in_sample": fit.in_sample}
    return {
        "rows": rows,
        "models": models,
        "identity": max(errors),
        "examples": len(targets),
        "refit": seen,
        "seed": trained.config.seed,
    }


def path_source(config: EffectivenessConfig, training: TaskConfig) -> torch.Generator:
    """What paths of one model are drawn from: models of different seeds have draws that are independent.

    So an interval over the seeds of training covers what the draw of paths adds, too.
    """
    digest = hashlib.sha256(f"paths {config.seed} {training.seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def table_of(
    found: Sequence[Mapping[str, Any]],
    config: Config,
    task: Task[Any],
    training: TaskConfig,
    *,
    command: str = "effectiveness",
    **about: Any,
) -> Table:
    """The table of what ``measured`` found in each model; ``about`` are more sections."""
    rows = Rows()
    for one in found:
        for row in one["rows"]:
            rows.add(1, row)
    counts = counts_of(_task_model(task, training).network)
    every = [row for one in found for row in one["rows"]]
    sections = {
        "models": [entry for one in found for entry in one["models"]],
        "over_seeds": over_seeds(every),
        "identity": {"relative_error": max(one["identity"] for one in found), "dtype": "float64"},
        "refit": found[0]["refit"],
        "examples": found[0]["examples"],
        "training": training.model_dump(mode="json", exclude={"seed"}),
        "baselines": dict(task.lines(training)),
        "published": dict(task.published),
        "lengths": [
            {"length": length, "paths": count, "share": count / sum(counts)}
            for length, count in enumerate(counts)
        ],
        "definitions": {
            name: WORDS[name] for name in WORDS if any(row["definition"] == name for row in every)
        }
        | definitions(MEASURES),
    }
    return rows.table(config, command=command, seeds=[one["seed"] for one in found], **{**sections, **about})


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
