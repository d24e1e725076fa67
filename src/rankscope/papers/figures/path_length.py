"""``path-length``: how many paths of published models have which length, and what such paths weigh in a trained one."""

import math
from fractions import Fraction
from typing import Any, Literal

from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.path_length_words import (
    LEVELS,
    SHORT,
    STATED,
    Weighed,
    counted,
    exact_mean,
    long_by_count,
    means,
    mode,
    modes,
    quantile,
    short_by_weight,
)
from rankscope.papers.figures.statistics import mean_of
from rankscope.papers.tasks import initial_model, load_trained
from rankscope.papers.tasks.model import TaskModel
from rankscope.pathways import spectrum
from rankscope.pathways.counts import ARCHITECTURES, Architecture, LengthDistribution
from rankscope.results import Table
from rankscope.studies.rows import Rows

SHARE, WEIGHT = "path_share[count]", "path_share[output]"
DEFINITIONS = {
    SHARE: "share of all paths with so many heads on them: C(L, k) H^k / (1 + H)^L",
    WEIGHT: "share of the output's residual that all paths with so many heads add: <J Z_k, J Y> / |J Y|^2",
}


class PathLengthConfig(Config):
    """The published models are counted exactly at every size; ``texts`` sequences pass the small trained one."""

    figure: Literal["path-length"] = "path-length"
    size: Size
    texts: int


SIZES: dict[Size, int] = {"fast": 60, "usual": 200, "full": 200}


def make(job: Job) -> Table:
    """The table of the figure: a row per model and length."""
    config = PathLengthConfig(size=job.size, texts=SIZES[job.size])
    rows = Rows()
    sections = []
    for name, found in ARCHITECTURES.items():
        _add_counts(rows, name, found)
        sections.append({"name": name, **summary(found)})
    job.tell(1, 3)
    trained = load_trained()
    letters = trained.task.held_out(trained.config)[0][: config.texts]
    models = {"trained": trained.model, "initial": initial_model(trained.task, trained.config)}
    weighed = []
    for done, (weights, model) in enumerate(models.items(), start=2):
        if not isinstance(model, TaskModel):
            raise TypeError(f"the built-in model is a {type(model).__name__}, not one that sorts")
        weighed.append(_weighed(rows, weights, model, letters))
        job.tell(done, 3)
    return rows.table(
        config,
        command="reproduce",
        seeds=[trained.config.seed],
        definitions=DEFINITIONS,
        architectures=sections,
        setting={"texts": config.texts, "layers": trained.config.layers, "heads": trained.config.heads},
        verdict=[
            counted(ARCHITECTURES),
            means(ARCHITECTURES, STATED),
            long_by_count(ARCHITECTURES),
            modes(ARCHITECTURES),
            short_by_weight(weighed),
        ],
        notes=_notes(config),
    )


def summary(found: Architecture) -> dict[str, Any]:
    """Numbers of one model; whole numbers too large for a float are texts."""
    lengths = found.lengths()
    short = sum(lengths.counts[: SHORT + 1])
    return {
        "heads": found.heads,
        "layers": found.layers,
        "paths": str(lengths.total),
        "log10_paths": math.log10(lengths.total),
        "mean": lengths.mean,
        "mean_exactly": str(exact_mean(lengths)),
        "std": lengths.std,
        "mode": mode(lengths),
        "quantiles": {str(level): quantile(lengths, Fraction(str(level))) for level in LEVELS},
        "at_most_3": lengths.at_most(SHORT),
        "log10_at_most_3": math.log10(short) - math.log10(lengths.total),
    }


def log10_shares(lengths: LengthDistribution) -> list[float | None]:
    """Logarithms of the shares, from whole numbers: they are there where a share is below the smallest float."""
    whole = math.log10(lengths.total)
    return [math.log10(count) - whole if count else None for count in lengths.counts]


def _add_counts(rows: Rows, name: str, found: Architecture) -> None:
    lengths = found.lengths()
    rows.add(
        len(lengths.counts),
        {
            "model": name,
            "heads": found.heads,
            "layers": found.layers,
            "length": list(range(len(lengths.counts))),
            "measure": "path_share",
            "definition": SHARE,
            "value": list(lengths.shares),
            "log10_value": log10_shares(lengths),
            "paths": [str(count) for count in lengths.counts],
            "floor": 0.0,
            "resolved": True,
        },
    )


def _weighed(rows: Rows, weights: str, model: TaskModel, letters: Tensor) -> Weighed:
    """The small model on test sequences: rows of its counts and of what they weigh, and both for the verdict."""
    found = spectrum(model.network, model.embed(letters))
    counts = tuple(count for count in found.counts if isinstance(count, int))
    reading = found.read()
    shares = tuple(mean_of(row.tolist()) for row in reading.share)
    half = (len(counts) - 1) // 2
    about: dict[str, Any] = {
        "model": "sorting",
        "weights": weights,
        "heads": model.config.heads,
        "layers": model.config.layers,
    }
    about |= {"length": list(range(len(counts))), "measure": "path_share"}
    total = sum(counts)
    rows.add(
        len(counts),
        {
            **about, "definition": SHARE, "value": [count / total for count in counts],
            "paths": [str(count) for count in counts], "floor": 0.0, "resolved": True,
        },
    )  # fmt: skip
    floors = [float(row.max()) for row in reading.share_floor]
    rows.add(
        len(counts),
        {
            **about, "definition": WEIGHT, "semantics": "frozen", "value": [one.mean for one in shares],
            "low": [one.low for one in shares], "high": [one.high for one in shares], "floor": floors,
            "resolved": [abs(one.mean) > floor for one, floor in zip(shares, floors, strict=True)],
        },
    )  # fmt: skip
    short = mean_of(reading.share[: half + 1].sum(dim=0).tolist())
    return Weighed(weights=weights, counts=counts, shares=shares, short=short)


def _notes(config: PathLengthConfig) -> list[str]:
    return [
        "Nothing here is drawn at random: counts are exact, and the network is the built-in one on its own test "
        "sequences. A seed changes nothing.",
        "Counts are whole numbers, shares are rounded once; the column paths holds every count in full, log10_value "
        "the logarithm of every share however small.",
        "A path picks one head or the skip around the attention of every layer. MLPs and norms are not choices. Heads "
        "and layers are those of the published figure; cross-attention and other layouts are not counted.",
        "A uniformly random path has Binomial(L, H / (H + 1)) heads. Drawing paths of one length evenly, as for path "
        "effectiveness, is another distribution.",
        f"The weight is that of the built-in network that sorts letters (6 layers, 2 heads, attention alone) on "
        f"{config.texts} test sequences: the share of the output's residual in the direction of the output, with "
        "attention maps and norms held at their values. Shares add up to 1 and may be negative.",
        "For another model: 'rankscope paths MODEL' weighs its lengths.",
    ]


def _chart(table: Table) -> Any:
    from rankscope.plots.path_length_chart import path_length_chart

    return path_length_chart(table)


register(
    OldFigure(
        name="path-length",
        title="how long paths are, by count and by weight",
        source=Ref(
            key="dong2021",
            where="on skip connections, numbers of paths, and the figure of path lengths of published models",
            differs="a small trained network beside it, where paths are weighed",
        ),
        question="Are most paths short, or is it only that short paths matter most?",
        durations={"fast": "about 1 second", "usual": "about 2 seconds", "full": "about 2 seconds"},
        make=make,
        chart=_chart,
    )
)
