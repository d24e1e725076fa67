"""What short and long paths of the sorting model are worth: residual and accuracy of the paths of each length.

The setting is the path-effectiveness experiment of Dong, Cordonnier and Loukas (2021, Section 4.2): a network is
trained with all its heads and skips, and then only paths of one length are kept. Three readings of "kept" (``mode``):

``frozen``    all paths of a length, exactly, with attention maps, norm scales and gates held at their values in the
              full network. Lengths add up to the network, so there is also the sum of all lengths up to one. Every
              length still profits from the others: the maps that its paths multiply were computed by the full network.
``isolated``  the network run again along each path with everything else taken out; outputs are summed over paths.
``official``  the same as the published code does it: layers that the path skips are dropped, and a LayerNorm without
              gain and bias stands after every head. MLPs, if there are any, are left out.

In the last two modes a few paths are drawn at random and summed, as in the paper (5 and 20 of them, in 5 draws); as
there are only 3^6 = 729 paths, all of a length are run as well. Isolated paths do not add up to the network. In every
mode the summed states pass one LayerNorm without gain and bias before the classifier, so that it does not matter how
many paths were summed; residuals are measured before that norm.

A row of the table is one number. Columns besides the usual ones (``seed`` is that of the training):

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

``definition`` is one of: ``token_accuracy``, the share of positions at which the right letter has the largest logit;
``residual_ratio[composite,mean]`` and ``residual[frobenius,mean]``, means over the test sequences; and, for ``frozen``
and ``all``, ``share``: the signed part ``<J Z, J Y> / |J Y|^2`` that the summed paths Z have in the residual of the
output Y. Shares of all lengths add up to one.

Sections: ``models`` (accuracy of each full network), ``baselines`` (accuracy of a random guess, the line that is called
naive in the paper; the most that is possible without seeing any letter; and the most if every position sees its own
letter alone), ``lengths`` (how many paths there are, exactly), ``identity`` (how far the lengths are from adding up to
the network), ``training`` (the configuration that the models were trained with), ``definitions``.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from scipy.special import stdtrit
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.measures import evaluate_many, find_measure
from rankscope.network import Network, generators
from rankscope.paths import Path, Spectrum, spectrum
from rankscope.paths.counts import counts_of
from rankscope.paths.drawing import draw_paths, every_path
from rankscope.paths.isolated import OFFICIAL_EPS, run_path
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions
from rankscope.studies.sorting_model import SortingModel, initial_sorting, load_sorting, token_accuracy
from rankscope.studies.sorting_task import (
    held_out,
    position_accuracy,
    uniform_accuracy,
    unmixed_accuracy,
)

Mode = Literal["isolated", "official"]
Run = Callable[[Path], Tensor]
MEASURES = ("residual_ratio[composite,mean]", "residual[frobenius,mean]")
CONFIDENCE = 0.95
KEPT = 64
"""States of so many beginnings of paths are kept; in lexicographic order each is asked for soon after it was made."""

WORDS = {
    "token_accuracy": "share of positions at which the right letter has the largest logit",
    "share": "signed part of the output's residual, <J Z, J Y> / |J Y|^2; all lengths add up to one",
}
"""What the definitions that are no measures of token matrices mean."""


class SortingPathsConfig(Config):
    """Which trained model to look at, and how many paths to draw."""

    model: str | None = Field(default=None, description="a file of save_sorting; None is the built-in model")
    draws: tuple[Annotated[int, Field(ge=1, strict=True)], ...] = Field(
        default=(5, 20), description="how many paths are summed"
    )
    repeats: int = Field(default=5, ge=2, strict=True, description="how often they are drawn")
    modes: tuple[Mode, ...] = ("isolated", "official")
    most_paths: int = Field(
        default=1000,
        ge=0,
        strict=True,
        description="all paths of a length are run if there are no more than so many",
    )
    sequences: int | None = Field(default=None, ge=1, strict=True, description="all test sequences if None")
    seed: int = Field(default=0, ge=0, strict=True, description="of the drawn paths")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Subject:
    """A model, its test sequences and what its rows are labeled with."""

    model: SortingModel
    x: Tensor
    targets: Tensor
    about: Mapping[str, object]


@torch.no_grad()
def sorting_paths(config: SortingPathsConfig, models: Sequence[SortingModel] | None = None) -> Table:
    """Residual and accuracy by path length, of trained models and of the same models before training.

    ``models`` are looked at in place of the one that ``config`` names; they are told apart by the seed of training.
    """
    trained = [load_sorting(config.model)] if models is None else [_ready(model) for model in models]
    _check(trained)
    rows, told, errors = Rows(), [], []
    with threads_for(0):
        for subject in _subjects(trained, config.sequences):
            found = spectrum(subject.model.network, subject.x)
            _add_frozen(rows, subject, found)
            for mode in config.modes:
                _add_runs(rows, subject, config, mode)
            accuracy = token_accuracy(subject.model.classify(found.output), subject.targets)
            told.append({**subject.about, "accuracy": accuracy})
            errors.append(float(found.relative_error.max()))
    sections = {
        "models": told,
        "identity": {"relative_error": max(errors), "dtype": "float64"},
        **_facts(trained[0]),
    }
    return rows.table(
        config, command="sorting_paths", seeds=[model.config.seed for model in trained], **sections
    )


def read_states(model: SortingModel, states: Tensor) -> Tensor:
    """Logits of states that are sums of paths: one LayerNorm without gain and bias, then the classifier.

    The classifier was trained on states of one size; sums over paths have any size.
    """
    return model.classify(F.layer_norm(states, states.shape[-1:], eps=OFFICIAL_EPS))


def _ready(model: SortingModel) -> SortingModel:
    """A copy in float64 and in evaluation mode, whose weights ask for no gradients."""
    twin = initial_sorting(model.config)
    twin.load_state_dict(model.state_dict())
    return twin


def _check(models: Sequence[SortingModel]) -> None:
    if not models:
        raise ConfigError("no models were given; give at least one, or leave models out for the built-in one")
    seeds = [model.config.seed for model in models]
    alike = {model.config.model_copy(update={"seed": 0}) for model in models}
    if len(set(seeds)) < len(seeds) or len(alike) > 1:
        raise ConfigError(
            f"models are told apart by their seeds and must be alike otherwise; got seeds {seeds} and "
            f"{len(alike)} different configurations; study the others in a call of their own"
        )


def _subjects(trained: Sequence[SortingModel], sequences: int | None) -> Iterator[_Subject]:
    for model in trained:
        letters, targets = (side[:sequences] for side in held_out(model.config))
        for weights, one in (("trained", model), ("initial", initial_sorting(model.config))):
            about = {"model": "sorting", "seed": model.config.seed, "weights": weights}
            yield _Subject(model=one, x=one.embed(letters), targets=targets, about=about)


def _facts(model: SortingModel) -> dict[str, Any]:
    config, counts = model.config, counts_of(model.network)
    return {
        "training": config.model_dump(mode="json", exclude={"seed"}),
        "baselines": {
            "uniform": uniform_accuracy(config),
            "position": position_accuracy(config),
            "unmixed": unmixed_accuracy(config),
        },
        "lengths": [
            {"length": length, "paths": count, "share": count / sum(counts)}
            for length, count in enumerate(counts)
        ],
        "definitions": WORDS | definitions(MEASURES),
    }


def _add_frozen(rows: Rows, subject: _Subject, found: Spectrum) -> None:
    reading, counts = found.read(), counts_of(subject.model.network)
    for length, states in enumerate(found.terms):
        about = {"mode": "frozen", "length": length}
        _add(rows, subject, [states], {**about, "paths": "all", "summed": counts[length]})
        share, floor = float(reading.share[length].mean()), float(reading.share_floor[length].mean())
        here = {**subject.about, **about, "paths": "all", "summed": counts[length]}
        rows.add(1, here | {"measure": "share", "definition": "share"} | _number(share, floor))
        up_to = found.terms[: length + 1].sum(dim=0)
        _add(rows, subject, [up_to], {**about, "paths": "up_to", "summed": sum(counts[: length + 1])})


def _add_runs(rows: Rows, subject: _Subject, config: SortingPathsConfig, mode: Mode) -> None:
    network, generator = subject.model.network, generators(config.seed)[1]
    run = path_runner(network, subject.x, mode)
    for length, count in enumerate(counts_of(network)):
        about = {"mode": mode, "length": length}
        known: dict[Path, Tensor] = {}
        if count <= config.most_paths:
            known = {path: run(path) for path in every_path(network, length)}
            _add(rows, subject, [_sum(known.values())], {**about, "paths": "all", "summed": count})
            _add(rows, subject, list(known.values()), {**about, "paths": "single", "summed": 1})
        for summed in config.draws:
            drawn = [draw_paths(network, length, summed, generator=generator) for _ in range(config.repeats)]
            sums = [_sum(known[path] if path in known else run(path) for path in paths) for paths in drawn]
            _add(rows, subject, sums, {**about, "paths": "drawn", "summed": summed})


def path_runner(network: Network, x: Tensor, mode: Mode) -> Run:
    """A function from a path to the output along it: ``run_path``, block by block, with beginnings shared by paths.

    For networks of one attention per block and no final norm, as that of ``SortingModel``.
    """
    blocks = [network.with_blocks([block]) for block in network.blocks]

    @lru_cache(maxsize=KEPT)
    def along(heads: tuple[int | None, ...]) -> Tensor:
        if not heads:
            return x
        return run_path(blocks[len(heads) - 1], along(heads[:-1]), Path(heads[-1:]), mode=mode)

    return lambda path: along(path.heads)


def _sum(states: Iterable[Tensor]) -> Tensor:
    first, *others = states
    total = first.clone()
    for one in others:
        total += one
    return total


def _add(rows: Rows, subject: _Subject, samples: Sequence[Tensor], about: Mapping[str, object]) -> None:
    """A row per definition: the mean over samples, with an interval if they were drawn."""
    found = [_measured(subject, states) for states in samples]
    for definition in found[0]:
        values, floors = zip(*(one[definition] for one in found), strict=True)
        value, floor = (math.fsum(side) / len(samples) for side in (values, floors))
        here = {**subject.about, **about, "measure": definition.partition("[")[0], "definition": definition}
        if about["paths"] == "drawn":
            reach = _reach(values)
            here |= {"low": value - reach, "high": value + reach, "repeats": len(samples)}
        rows.add(1, here | _number(value, floor))


def _measured(subject: _Subject, states: Tensor) -> dict[str, tuple[float, float]]:
    """Value and floor by definition; of measures the mean over the sequences."""
    accuracy = token_accuracy(read_states(subject.model, states), subject.targets)
    found = {"token_accuracy": (accuracy, 0.0)}
    measures = [find_measure(name) for name in MEASURES]
    layers = subject.model.config.layers
    for measure, one in zip(
        measures, evaluate_many(measures, states, layer=layers, dtype=states.dtype), strict=True
    ):
        found[measure.definition] = float(one.value.mean()), float(one.floor.mean())
    return found


def _number(value: float, floor: float) -> dict[str, object]:
    return {"value": value, "floor": floor, "resolved": floor == 0.0 or abs(value) > floor}


def _reach(values: Sequence[float]) -> float:
    """Half the width of Student's interval of the mean over independent draws."""
    freedom = len(values) - 1
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))
