"""``path-length``: how many paths of published models have which length, and what such paths weigh in a trained one."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal

from torch import Tensor

from rankscope.charts import Bar, Bars, Chart, Line, Panel, Point
from rankscope.core.refs import Ref
from rankscope.core.words import number, percent, power, whole
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_or_none, register
from rankscope.papers.figures.statistics import Mean, mean_of, side
from rankscope.papers.tasks import initial_model, load_trained
from rankscope.papers.tasks.effectiveness import Weights
from rankscope.papers.tasks.model import TaskModel
from rankscope.pathways import spectrum
from rankscope.pathways.counts import ARCHITECTURES, Architecture, LengthDistribution
from rankscope.results import Table
from rankscope.studies.rows import RowBuilder

SHARE, WEIGHT = "path_share[count]", "path_share[output]"
DEFINITIONS = {
    SHARE: "share of all paths that have k heads on them: C(L, k) H^k / (1 + H)^L",
    WEIGHT: "share of the output's residual that all paths with k heads add: <J Z_k, J Y> / |J Y|^2",
}

STATED = {
    "DistilBert": 5.54,
    "MobileBert": 9.60,
    "BERT-base/ViT-B": 11.08,
    "BERT-large/ViT-L": 22.59,
    "ViT-H": 30.12,
    "T5-3B": 23.27,
    "T5-11B": 23.81,
    "GPT-3": 95.01,
    "DeiT-T": 9.00,
}
"""Mean lengths ``L H / (H + 1)`` of the published models to two digits after the point."""

SHORT = 3
LEVELS = ("0.05", "0.5", "0.95")
EXACT = "Calculated, nothing random enters."


class PathLengthConfig(FigureConfig):
    """The published models are counted exactly at every size; ``texts`` sequences pass the small trained one.

    No seed changes anything: the network is the built-in one.
    """

    figure: Literal["path-length"] = "path-length"
    seeds: tuple[int, ...] = (0,)
    texts: int


# ------------------------------------------------------------------------------------------------ what is found


class PathCount(Value):
    """How long the paths of one model are. Whole numbers and fractions that no float holds are texts."""

    name: str
    heads: int
    layers: int
    paths: str
    log10_paths: float
    is_closed_form: bool
    """Whether counting layer by layer gives ``C(L, k) H^k`` at every length k."""

    mean: float
    mean_exactly: str
    std: float
    mode: int
    """The commonest length; of several the longest."""

    quantiles: dict[str, int]
    is_mostly_long: bool
    """Whether more than half of the paths take a head in more than half of the layers."""

    at_most_3: float
    log10_at_most_3: float

    @property
    def middle(self) -> tuple[int, int]:
        """Lengths between which 90% of the paths lie."""
        return self.quantiles[LEVELS[0]], self.quantiles[LEVELS[-1]]


class PathWeights(Value):
    """Of the small network: how many paths have each length, and the share of the output that they add."""

    weights: Weights
    counts: tuple[int, ...]
    shares: tuple[Mean, ...]
    """Means over sequences, by length."""

    short: Mean
    """What lengths up to half of the layers add together."""

    @property
    def half(self) -> int:
        return (len(self.counts) - 1) // 2

    @property
    def short_count(self) -> int:
        """How many paths are that short."""
        return sum(self.counts[: self.half + 1])


class PathLengthSetting(Value):
    """The small network, and how many sequences it read."""

    texts: int
    layers: int
    heads: int


class PathLengthFound(Value):
    """Counts of the published models, and weights in the small one."""

    architectures: tuple[PathCount, ...]
    setting: PathLengthSetting
    weighed: tuple[PathWeights, ...]

    @property
    def trained(self) -> PathWeights:
        return {one.weights: one for one in self.weighed}["trained"]


# ------------------------------------------------------------------------------------------------- computation


def compute(config: PathLengthConfig, job: Job) -> tuple[Table, PathLengthFound]:
    """A row per model and length."""
    rows = RowBuilder()
    for name, architecture in ARCHITECTURES.items():
        _add_counts(rows, name, architecture)
    job.tell(1, 3)
    trained = load_trained()
    letters = trained.task.held_out(trained.config)[0][: config.texts]
    models: dict[Weights, object] = {
        "trained": trained.model,
        "initial": initial_model(trained.task, trained.config),
    }
    weighed = list[PathWeights]()
    for done, (weights, model) in enumerate(models.items(), start=2):
        if not isinstance(model, TaskModel):
            raise TypeError(f"the built-in model is a {type(model).__name__}, not one that sorts")
        weighed.append(_weigh_paths(rows, weights, model, letters))
        job.tell(done, 3)
    found = PathLengthFound(
        architectures=path_counts(ARCHITECTURES),
        setting=PathLengthSetting(
            texts=config.texts, layers=trained.config.layers, heads=trained.config.heads
        ),
        weighed=tuple(weighed),
    )
    asked = config.model_copy(update={"seeds": (trained.config.seed,)})  # others would give the same rows
    return rows.table(asked, command="reproduce", seeds=asked.seeds, definitions=DEFINITIONS), found


def path_counts(models: Mapping[str, Architecture]) -> tuple[PathCount, ...]:
    """What is said of each model."""
    return tuple(_path_count(name, one.heads, one.layers, one.lengths()) for name, one in models.items())


def _path_count(name: str, heads: int, layers: int, lengths: LengthDistribution) -> PathCount:
    closed = tuple(math.comb(layers, k) * heads**k for k in range(layers + 1))
    return PathCount(
        name=name,
        heads=heads,
        layers=layers,
        paths=str(lengths.total),
        log10_paths=math.log10(lengths.total),
        is_closed_form=lengths.counts == closed,
        mean=lengths.mean,
        mean_exactly=str(exact_mean(lengths)),
        std=lengths.std,
        mode=mode(lengths),
        quantiles={level: quantile(lengths, Fraction(level)) for level in LEVELS},
        is_mostly_long=2 * sum(lengths.counts[layers // 2 + 1 :]) > lengths.total,
        at_most_3=lengths.at_most(SHORT),
        log10_at_most_3=math.log10(sum(lengths.counts[: SHORT + 1])) - math.log10(lengths.total),
    )


def exact_mean(lengths: LengthDistribution) -> Fraction:
    """The mean length as a fraction."""
    return Fraction(sum(k * count for k, count in enumerate(lengths.counts)), lengths.total)


def mode(lengths: LengthDistribution) -> int:
    """The commonest length; of several the longest."""
    most = max(lengths.counts)
    return max(length for length, count in enumerate(lengths.counts) if count == most)


def quantile(lengths: LengthDistribution, level: Fraction) -> int:
    """The smallest length that at least this share of the paths does not exceed, in exact arithmetic."""
    needed, seen = level * lengths.total, 0
    for length, count in enumerate(lengths.counts):
        seen += count
        if seen >= needed:
            return length
    raise ValueError(f"a quantile lies between 0 and 1, got {level}")


def log10_shares(lengths: LengthDistribution) -> list[float | None]:
    """Logarithms of the shares, from whole numbers: they exist where a share is below the smallest float."""
    total = math.log10(lengths.total)
    return [math.log10(count) - total if count else None for count in lengths.counts]


def _add_counts(rows: RowBuilder, name: str, found: Architecture) -> None:
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


def _weigh_paths(rows: RowBuilder, weights: Weights, model: TaskModel, letters: Tensor) -> PathWeights:
    """The small model on test sequences: rows of its counts and of what they weigh."""
    found = spectrum(model.network, model.embed(letters))
    counts = tuple(count for count in found.counts if isinstance(count, int))
    reading = found.read()
    shares = tuple(mean_of(row.tolist()) for row in reading.share)
    about = {
        "model": "sorting",
        "weights": weights,
        "heads": model.config.heads,
        "layers": model.config.layers,
        "length": list(range(len(counts))),
        "measure": "path_share",
    }
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
    half = (len(counts) - 1) // 2
    short = mean_of(reading.share[: half + 1].sum(dim=0).tolist())
    return PathWeights(weights=weights, counts=counts, shares=shares, short=short)


# ---------------------------------------------------------------------------------------------------- statements


def points(found: PathLengthFound) -> list[Statement]:
    """Four statements on counts, which are exact, and one on weights."""
    models = found.architectures
    return [
        _closed_form(models),
        _means(models),
        _long_by_count(models),
        _modes(models),
        _short_by_weight(found),
    ]


def _closed_form(models: Sequence[PathCount]) -> Statement:
    """Every model must agree: one that differs refutes a formula."""
    wrong = [one.name for one in models if not one.is_closed_form]
    largest = max(models, key=lambda one: one.log10_paths)
    return Statement(
        source="reported",
        statement="Of a network with skips, C(L, k) H^k paths have length k, and there are (1 + H)^L in all.",
        measured=f"{EXACT} Counted layer by layer in whole numbers for {len(models)} published models: "
        + (f"differs for {', '.join(wrong)}." if wrong else "equal at every length.")
        + f" The most paths are {largest.heads + 1}^{largest.layers} = {power(largest.log10_paths * LN10)}.",
        agrees=not wrong,
    )


def _means(models: Sequence[PathCount]) -> Statement:
    """Model by model; a number to two digits after the point agrees if it is the exact one rounded."""
    said, checks = [], []
    for one in models:
        exact = Fraction(one.mean_exactly)
        is_right = abs(exact - Fraction(str(STATED[one.name]))) <= Fraction(1, 200)
        checks.append(is_right and exact == Fraction(one.layers * one.heads, one.heads + 1))
        said.append(
            f"{one.name} ({one.heads}, {one.layers}) {one.mean:.2f}{'' if is_right else ' (differs)'}"
        )
    stated = ", ".join(f"{one.name} {STATED[one.name]:.2f}" for one in models)
    return Statement(
        source="ours",
        statement=f"The mean length is L H / (H + 1): {stated}.",
        measured=f"{EXACT} (Heads, layers) and mean from whole numbers: {', '.join(said)}.",
        agrees=all_or_none(checks),
    )


def _long_by_count(models: Sequence[PathCount]) -> Statement:
    said = [
        f"{one.name} {power(one.log10_at_most_3 * LN10, digits=2)}, {one.middle[0]} to {one.middle[1]} of {one.layers}"
        for one in models
    ]
    return Statement(
        source="ours",
        statement="By count, paths are overwhelmingly long: most take a head in more than half of the layers. Short "
        "paths can only matter by their weight.",
        measured=f"{EXACT} Share of paths with at most {SHORT} heads, and the lengths of the middle 90%: "
        f"{'; '.join(said)}.",
        agrees=all_or_none([one.is_mostly_long for one in models]),
    )


def _modes(models: Sequence[PathCount]) -> Statement:
    """``C(L, L) H^L / (C(L, L-1) H^(L-1)) = H / L``, and the shares rise up to their one maximum."""
    said = [f"{one.name} {one.mode} of {one.layers} ({one.heads} heads)" for one in models]
    return Statement(
        source="ours",
        statement="The commonest path takes a head in every layer just where there are at least as many heads as "
        "layers.",
        measured=f"{EXACT} Commonest length of the layers: {', '.join(said)}. With as many heads as layers one layer "
        "less is as common.",
        agrees=all_or_none([(one.mode == one.layers) == (one.heads >= one.layers) for one in models]),
    )


def _short_by_weight(found: PathLengthFound) -> Statement:
    """Holds if the trained network's shorter half has under half of the paths and, by interval, most of the output."""
    trained = found.trained
    said = [
        f"{one.weights} {one.short.text(5)} (by length {', '.join(number(mean.mean, 2) for mean in one.shares)})"
        for one in found.weighed
    ]
    few, total = trained.short_count, sum(trained.counts)
    heavy = side(trained.short, 0.5)
    return Statement(
        source="ours",
        statement="By count paths are long, by weight they are short: in a small trained network the shorter half of "
        "the lengths has the minority of the paths and most of the output.",
        measured=f"Network that sorts (L = {found.setting.layers}): lengths 0 to {trained.half} have {few} of {total} "
        f"paths ({percent(few / total)}); share of the output, mean over sequences (95% interval): "
        f"{'; '.join(said)}.",
        agrees=False if 2 * few >= total else heavy,
    )


def notes(found: PathLengthFound) -> list[str]:
    """Sentences for the reader."""
    setting = found.setting
    return [
        "Counts are exact, and the network is the built-in one on its own test sequences. A seed changes nothing.",
        "The column paths holds every count in full, log10_value the logarithm of every share however small.",
        "A path picks one head or the skip around the attention of every layer, so a uniformly random path has "
        "Binomial(L, H / (H + 1)) heads. MLPs and norms are not choices. Heads and layers are those of the published "
        "figure; cross-attention is not counted.",
        f"The weight is that of the built-in network that sorts letters ({setting.layers} layers, {setting.heads} "
        f"heads, attention alone) on {setting.texts} test sequences: the share of the output's residual in the "
        "direction of the output, with attention maps and norms held at their values. Shares add up to 1 and may be "
        "negative.",
        "For another model: 'rankscope paths MODEL' weighs its lengths.",
    ]


# ------------------------------------------------------------------------------------------------------- picture


def chart(found: PathLengthFound, _: Table) -> Chart:
    """How long paths are by count, and what paths of each length weigh."""
    by_count, by_weight = _long_by_count(found.architectures).agrees, _short_by_weight(found).agrees
    long = "By count paths are long" if by_count else "How long paths are by count"
    short = "by weight they are short" if by_weight else "and by weight"
    return Chart([length_bars(found.architectures), _weights(found)], title=f"{long}, {short}")


def length_bars(models: Sequence[PathCount]) -> Bars:
    """The mean length of every model as a share of its layers, with the middle 90% of its paths."""
    return Bars(
        title="Mean length of a path, as a share of the layers",
        bars=[
            Bar(
                f"{one.name}, H {one.heads}, L {one.layers}",
                one.mean / one.layers,
                f"{one.mean:.2f} of {one.layers}",
                low=one.middle[0] / one.layers,
                high=one.middle[1] / one.layers,
                tip=f"mean {one.mean:.2f} of {one.layers}, 90% of {whole(int(one.paths))} paths have "
                f"{one.middle[0]} to {one.middle[1]} heads",
            )
            for one in sorted(models, key=lambda one: one.mean)
        ],
        value="share of the layers in which a path takes a head",
        notes=["All paths count the same. Lines: the middle 90% of them. H heads, L layers."],
    )


def _weights(found: PathLengthFound) -> Panel:
    counts = found.trained.counts
    shares = [count / sum(counts) for count in counts]
    names = {"trained": "share of output, trained", "initial": "share of output, initial"}
    lines = [
        Line(
            name="share of paths",
            points=[Point(at, one, f"share of paths: {percent(one)}") for at, one in enumerate(shares)],
            style="dashed",
            color=-1,
        )
    ]
    for place, one in enumerate(found.weighed):
        name = names[one.weights]
        dots = [
            Point(at, mean.mean, f"{name}: {percent(mean.mean)}", low=mean.low, high=mean.high)
            for at, mean in enumerate(one.shares)
        ]
        lines.append(Line(name=name, points=dots, color=place))
    setting = found.setting
    return Panel(
        title="A network that sorts: share by path length",
        lines=lines,
        value="share",
        across="heads on the path",
        scale="linear",
        notes=[
            f"{setting.layers} layers of {setting.heads} heads, mean over {setting.texts} sequences (bands: 95% "
            "interval). Shares of the output may be negative."
        ],
    )


register(
    Figure(
        name="path-length",
        title="how long paths are, by count and by weight",
        source=Ref(
            key="dong2021",
            where="on skip connections, numbers of paths, and the figure of path lengths of published models",
            differs="a small trained network beside it, where paths are weighed",
        ),
        question="Are most paths short, or is it only that short paths matter most?",
        durations={"fast": "seconds", "usual": "seconds", "full": "seconds"},
        sizes={
            "fast": PathLengthConfig(size="fast", texts=60),
            "usual": PathLengthConfig(size="usual", texts=200),
            "full": PathLengthConfig(size="full", texts=200),
        },
        found=PathLengthFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
        draws="nothing",
    )
)
