"""``width-depth``: sorting networks of one to many layers with the same number of weights."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Literal

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.width_depth_words import (
    ACCURACY,
    BARE,
    SKIP,
    Form,
    Found,
    notes,
    summary,
    verdict,
)
from rankscope.papers.tasks.long_paths import LONG_ONLY
from rankscope.papers.tasks.sort import SORT, SortConfig
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table
from rankscope.studies.rows import Rows

TRIAL = 1000
"""The seed at which learning rates are tried, or the next one that is not reported."""


class WidthDepthConfig(Config):
    """Depths, the training whose number of weights all share, and the learning rates of which each shape takes one.

    ``variants`` are networks with their skips, and without.
    """

    figure: Literal["width-depth"] = "width-depth"
    size: Size
    training: SortConfig
    layers: tuple[int, ...]
    rates: tuple[float, ...]
    variants: tuple[str, ...]
    seeds: tuple[int, ...]


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {
        "training": SORT.configured("fast", epochs=10),
        "layers": (1, 3, 7),
        "rates": (3e-3,),
        "variants": (SKIP,),
        "seeds": (0, 1),
    },
    "usual": {
        "training": SORT.configured("paper"),
        "layers": (1, 2, 3, 6, 12),
        "rates": (1e-3, 2e-3),
        "variants": (SKIP,),
        "seeds": (0, 1, 2),
    },
    "full": {
        "training": SORT.configured("paper"),
        "layers": (1, 2, 3, 4, 6, 8, 12),
        "rates": (5e-4, 1e-3, 2e-3, 4e-3),
        "variants": (SKIP, BARE),
        "seeds": (0, 1, 2, 3, 4),
    },
}


def make(job: Job) -> Table:
    """The table of the figure: accuracy of every shape and seed, at the rate its shape was given."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = WidthDepthConfig.of(size=job.size, **chosen)
    shapes = forms(config.training, config.layers)
    rows, found, done = Rows(), Found(), 0
    each = len(config.seeds) + (len(config.rates) if len(config.rates) > 1 else 0)
    for variant in config.variants:
        for form in shapes:
            rate = _best(job, config, form, variant)
            pieces = [_piece(job, config, form, variant, rate, seed) for seed in config.seeds]
            found[variant, form.layers] = [one["accuracy"] for one in pieces]
            for seed, one in zip(config.seeds, pieces, strict=True):
                rows.add(1, _row(form, variant, rate, seed, one))
            done += each
            job.tell(done, each * len(shapes) * len(config.variants))
    lines = dict(SORT.lines(config.training))
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions={ACCURACY: "share of positions at which the right letter has the largest logit"},
        setting={"heads": config.training.heads, "parameters": parameters(config.training)},
        shapes=[form.section() for form in shapes],
        lines=lines,
        over_seeds=summary(found, shapes),
        verdict=verdict(found, shapes, usual=config.training.layers),
        notes=notes(config.training, config.rates, shapes),
    )


def parameters(config: SortConfig) -> int:
    """How many weights the network of a configuration without MLPs has, all of them counted.

    ``L (4 d^2 + 6 d)`` in the blocks (four maps with their biases, a norm), letter and position vectors with a norm,
    and the classifier.

    >>> parameters(SortConfig())
    58474
    """
    dim = config.dim
    blocks = config.layers * (4 * dim**2 + 6 * dim)
    return blocks + (config.alphabet + config.length + 2) * dim + (dim + 1) * config.alphabet


def forms(training: SortConfig, depths: Sequence[int]) -> list[Form]:
    """For every depth the width, a multiple of the heads, that has nearly as many weights as ``training``."""
    target, found = parameters(training), []
    for layers in depths:
        widths = range(training.heads, 8 * training.dim * training.heads, training.heads)
        counts = {
            dim: parameters(training.model_copy(update={"layers": layers, "dim": dim})) for dim in widths
        }
        dim = min(counts, key=lambda width: abs(counts[width] - target))
        found.append(Form(layers=layers, dim=dim, heads=training.heads, parameters=counts[dim]))
    return found


def _best(job: Job, config: WidthDepthConfig, form: Form, variant: str) -> float:
    """The rate with the smallest training loss in the end, at a seed that is not reported.

    Test sequences have no say. A single rate needs no trial.
    """
    if len(config.rates) == 1:
        return config.rates[0]
    seed = next(one for one in count(TRIAL) if one not in config.seeds)
    tried = {rate: _piece(job, config, form, variant, rate, seed)["loss"] for rate in config.rates}
    return min(tried, key=lambda rate: tried[rate])


def _piece(
    job: Job, config: WidthDepthConfig, form: Form, variant: str, rate: float, seed: int
) -> dict[str, Any]:
    objective = LONG_ONLY.name if variant == BARE else "plain"
    own = {
        "layers": form.layers,
        "dim": form.dim,
        "learning_rate": rate,
        "seed": seed,
        "objective": objective,
    }
    training = SortConfig.of(**config.training.model_dump() | own)
    key = f"{variant.replace(' ', '-')}-{form.layers}-{rate:g}-{seed}"
    asked = training.model_dump(mode="json")

    def made() -> dict[str, Any]:
        trained = train_task(SORT, training, folder=job.store.folder(f"{key}-training", asked))
        last = trained.curve[-1]
        return {"accuracy": trained.score, "loss": last.loss, "train_accuracy": last.train_score}

    found: dict[str, Any] = job.store.remember(key, asked, made)
    return found


def _row(form: Form, variant: str, rate: float, seed: int, one: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": SORT.name,
        "variant": variant,
        "seed": seed,
        **form.section(),
        "learning_rate": rate,
        "train_loss": one["loss"],
        "train_accuracy": one["train_accuracy"],
        "measure": ACCURACY,
        "definition": ACCURACY,
        "value": one["accuracy"],
        "floor": 0.0,
        "resolved": True,
    }


def _chart(table: Table) -> Any:
    from rankscope.plots.width_depth_chart import width_depth_chart

    return width_depth_chart(table)


register(
    OldFigure(
        name="width-depth",
        title="sorting with the same number of weights in few wide or many narrow layers",
        source=Ref(
            key="dong2021",
            where="open question on width and depth",
            differs="not in the paper: networks of equal numbers of weights, on its sorting task",
        ),
        question="Is it better to be wide or to be deep, when short paths do the work?",
        durations={
            "fast": "about 10 seconds",
            "usual": "about 6 minutes (extrapolated)",
            "full": "about 70 minutes (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
