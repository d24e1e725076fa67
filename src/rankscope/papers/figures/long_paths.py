"""``long-paths``: sorting networks trained so that long paths have to work, beside one trained as usual."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.measures import evaluate_many, find_measure
from rankscope.network import Network, without_attention_skip
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.long_paths_words import (
    ACCURACY,
    BARE,
    EQUAL,
    FROZEN,
    FULL,
    ISOLATED,
    RATIO,
    Found,
    Variant,
    equal_accuracy,
    notes,
    summary,
    verdict,
)
from rankscope.papers.tasks.checkpoint import Trained
from rankscope.papers.tasks.effectiveness import read_states
from rankscope.papers.tasks.long_paths import LONG_ONLY, PATH_DROPOUT, SPREAD_LONG
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.path_runs import path_outputs
from rankscope.papers.tasks.sort import SORT, SortConfig
from rankscope.papers.tasks.sort import model as sort_model
from rankscope.papers.tasks.task import token_accuracy
from rankscope.papers.tasks.training import train_task
from rankscope.pathways import counts_of, every_path, spectrum
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

BASELINE = Variant(name="baseline", objective="plain")
ONLY = Variant(name="long paths only", objective=LONG_ONLY.name)
WIDER = Variant(name="long paths only, wider start", objective=LONG_ONLY.name, initial_std=0.144)
"""Weights N(0, 1/dim) at 48 channels: a network that does not start collapsed."""


def dropout(strength: float) -> Variant:
    """Path dropout with that probability."""
    return Variant(name=f"path dropout {strength:g}", objective=PATH_DROPOUT.name, strength=strength)


def spread(strength: float) -> Variant:
    """The penalty on the collapse of the longest paths with that factor."""
    return Variant(name=f"regularizer {strength:g}", objective=SPREAD_LONG.name, strength=strength)


class LongPathsConfig(Config):
    """What is trained, in which ways, and with which seeds."""

    figure: Literal["long-paths"] = "long-paths"
    size: Size
    training: SortConfig
    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {
        "training": SORT.configured("fast", epochs=12),
        "variants": (BASELINE, dropout(0.5), spread(0.1), ONLY),
        "seeds": (0, 1),
    },
    "usual": {
        "training": SORT.configured("paper"),
        "variants": (BASELINE, dropout(0.2), dropout(0.5), spread(0.01), spread(0.1), ONLY, WIDER),
        "seeds": (0, 1, 2),
    },
    "full": {
        "training": SORT.configured("paper"),
        "variants": (
            BASELINE,
            *map(dropout, (0.1, 0.2, 0.5, 0.9)),
            *map(spread, (0.01, 0.1, 1.0)),
            ONLY,
            WIDER,
        ),
        "seeds": (0, 1, 2, 3, 4),
    },
}


def make(job: Job) -> Table:
    """The table of the figure: accuracies of each network, and accuracy and residual of its paths by length."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = LongPathsConfig.of(size=job.size, **chosen)
    found: Found = {variant.name: [] for variant in config.variants}
    rows, total = Rows(), len(config.variants) * len(config.seeds)
    for done, (variant, seed) in enumerate(_work(config), start=1):
        one = _piece(job, config.training, variant, seed)
        found[variant.name].append(one)
        for row in one:
            rows.add(1, {"model": SORT.name, "variant": variant.name, "seed": seed, **row})
        job.tell(done, total)
    lines = {**SORT.lines(config.training), EQUAL: equal_accuracy(config.training)}
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions={ACCURACY: "share of positions at which the right letter has the largest logit"}
        | definitions([RATIO]),
        setting={
            "layers": config.training.layers,
            "heads": config.training.heads,
            "dim": config.training.dim,
            "variants": [variant.name for variant in config.variants],
        },
        lines=lines,
        over_seeds=summary(found),
        verdict=verdict(found, config.variants, layers=config.training.layers, line=max(lines.values())),
        notes=notes(config.training, config.variants, lines),
    )


def _work(config: LongPathsConfig) -> Iterator[tuple[Variant, int]]:
    """Seed by seed, so that a run that is stopped has whole seeds."""
    for seed in config.seeds:
        for variant in config.variants:
            yield variant, seed


def _piece(job: Job, training: SortConfig, variant: Variant, seed: int) -> list[dict[str, Any]]:
    config = SortConfig.of(**training.model_dump() | variant.fields() | {"seed": seed})
    key = f"{variant.name.replace(' ', '-').replace(',', '')}-{seed}"
    asked = config.model_dump(mode="json")

    def made() -> list[dict[str, Any]]:
        return measured(train_task(SORT, config, folder=job.store.folder(f"{key}-training", asked)))

    rows: list[dict[str, Any]] = job.store.remember(key, asked, made)
    return rows


@torch.no_grad()
def measured(trained: Trained) -> list[dict[str, Any]]:
    """Rows of one network: what it achieves, without its skips, and by the paths of each length alone.

    The network of ``long-only`` is the one without skips, which has paths of the full length alone.
    """
    model = _ready(trained)
    inputs, targets = SORT.held_out(trained.config)
    x = model.embed(inputs)
    bare = without_attention_skip(model.network)
    network = bare if trained.config.objective == LONG_ONLY.name else model.network
    rows = [
        _accuracy(FULL, None, token_accuracy(model.classify(network(x)), targets)),
        _accuracy(BARE, trained.config.layers, token_accuracy(model.classify(bare(x)), targets)),
        *_residual(BARE, trained.config.layers, bare(x), trained.config.layers),
    ]
    for mode, sums in ((FROZEN, _frozen(network, x)), (ISOLATED, _isolated(network, x))):
        for length, states in sums.items():
            rows.append(_accuracy(mode, length, token_accuracy(read_states(model, states), targets)))
            rows += _residual(mode, length, states, trained.config.layers)
    return rows


def _ready(trained: Trained) -> TaskModel:
    """A copy in float64 and in evaluation mode."""
    config = SortConfig.of(**trained.config.model_dump())
    model = sort_model(config, torch.Generator())
    model.load_state_dict(trained.model.state_dict())
    return model.double().requires_grad_(requires_grad=False).eval()


def _frozen(network: Network, x: Tensor) -> dict[int, Tensor]:
    """The exact sum of all paths of each length; lengths that only biases have are left out."""
    counts, terms = counts_of(network), spectrum(network, x).terms
    return {length: terms[length] for length, count in enumerate(counts) if count}


def _isolated(network: Network, x: Tensor) -> dict[int, Tensor]:
    """The sum over all paths of each length of the network run again along them."""
    sums: dict[int, Tensor] = {}
    paths = [
        path
        for length, count in enumerate(counts_of(network))
        if count
        for path in every_path(network, length)
    ]
    for path, states in path_outputs(network, x, paths, "isolated"):
        sums[path.length] = sums[path.length] + states if path.length in sums else states
    return dict(sorted(sums.items()))


def _accuracy(mode: str, length: int | None, value: float) -> dict[str, Any]:
    about = {"mode": mode, "length": length, "measure": ACCURACY, "definition": ACCURACY}
    return {**about, "value": value, "floor": 0.0, "resolved": True}


def _residual(mode: str, length: int, states: Tensor, layers: int) -> list[dict[str, Any]]:
    """The mean over sequences."""
    measure = find_measure(RATIO)
    (found,) = evaluate_many([measure], states, layer=layers, dtype=states.dtype)
    value, floor = float(found.value.mean()), float(found.floor.mean())
    about = {"mode": mode, "length": length, "measure": measure.name, "definition": measure.definition}
    return [{**about, "value": value, "floor": floor, "resolved": value > floor}]


def _chart(table: Table) -> Any:
    from rankscope.plots.long_paths_chart import long_paths_chart

    return long_paths_chart(table)


register(
    OldFigure(
        name="long-paths",
        title="training that asks for long paths: does it make them useful, and at what price",
        source=Ref(
            key="dong2021",
            where="Section 4.2 and its open questions",
            differs="not in the paper: path dropout, a penalty on collapse, and long paths only, on sorting",
        ),
        question="Do long paths fail because nothing asks for them, or in principle?",
        durations={
            "fast": "about 15 seconds",
            "usual": "about 8 minutes",
            "full": "about 20 minutes (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
