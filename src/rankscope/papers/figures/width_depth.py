"""``width-depth``: sorting networks of one to many layers with the same number of weights."""

from collections.abc import Sequence
from itertools import count as count_up
from typing import Literal

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.refs import Ref
from rankscope.core.words import count, listed, number, percent
from rankscope.findings.base import Value
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, register
from rankscope.papers.figures.statistics import Mean, accuracy_text, mean_of, seeds_text, side, together
from rankscope.papers.tasks.long_paths import LONG_ONLY
from rankscope.papers.tasks.sort import SORT, SortConfig
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table
from rankscope.studies.rows import RowBuilder

Variant = Literal["with skips", "without skips"]
SKIP: Variant = "with skips"
BARE: Variant = "without skips"
ACCURACY = "token_accuracy"

TRIAL = 1000
"""The seed at which learning rates are tried, or the next one that is not reported."""

MARGIN = 0.01
"""Differences of accuracy up to this are not worth a word."""


class WidthDepthConfig(FigureConfig):
    """Depths, the training whose number of weights all share, and the learning rates of which each shape takes one.

    ``variants`` are networks with their skips, and without.
    """

    figure: Literal["width-depth"] = "width-depth"
    training: SortConfig
    layers: tuple[int, ...]
    rates: tuple[float, ...]
    variants: tuple[Variant, ...]


# ------------------------------------------------------------------------------------------------ what is found


class Form(Value):
    """A depth with its width."""

    layers: int
    dim: int
    heads: int
    parameters: int


class Trial(Value):
    """How one training ended."""

    accuracy: float
    loss: float
    train_accuracy: float


class Accuracy(Value):
    """Accuracy of one shape: the mean over seeds with its 95% interval, and the numbers themselves."""

    variant: Variant
    layers: int
    dim: int
    mean: float
    low: float | None
    high: float | None
    count: int
    values: tuple[float, ...]
    """One per seed, in the same order everywhere."""


class WidthDepthSetting(Value):
    """The training that all shapes share."""

    heads: int
    parameters: int
    layers: int
    epochs: int
    initial_std: float
    rates: tuple[float, ...]


class WidthDepthFound(Value):
    """Accuracies by shape, and what they are compared with."""

    setting: WidthDepthSetting
    shapes: tuple[Form, ...]
    lines: dict[str, float]
    over_seeds: tuple[Accuracy, ...]

    @property
    def depths(self) -> list[int]:
        return [form.layers for form in self.shapes]

    def own(self, variant: Variant, layers: int) -> Accuracy:
        """The accuracy of one shape."""
        return {(one.variant, one.layers): one for one in self.over_seeds}[variant, layers]

    def changes(self, variant: Variant, layers: int, other: int) -> list[float]:
        """How much better one depth is than another, seed by seed."""
        pairs = zip(self.own(variant, layers).values, self.own(variant, other).values, strict=True)
        return [one - two for one, two in pairs]


# ------------------------------------------------------------------------------------------------- computation


def compute(config: WidthDepthConfig, job: Job) -> tuple[Table, WidthDepthFound]:
    """Accuracy of every shape and seed, at the rate its shape was given."""
    shapes = forms(config.training, config.layers)
    rows, accuracies, done = RowBuilder(), list[Accuracy](), 0
    each = len(config.seeds) + (len(config.rates) if len(config.rates) > 1 else 0)
    for variant in config.variants:
        for form in shapes:
            rate = _best(job, config, form, variant)
            pieces = [_piece(job, config, form, variant, rate, seed) for seed in config.seeds]
            accuracies.append(accuracy_of(variant, form, [one.accuracy for one in pieces]))
            for seed, one in zip(config.seeds, pieces, strict=True):
                rows.add(1, _row(form, variant, rate, seed, one))
            done += each
            job.tell(done, each * len(shapes) * len(config.variants))
    training = config.training
    found = WidthDepthFound(
        setting=WidthDepthSetting(
            heads=training.heads,
            parameters=parameters(training),
            layers=training.layers,
            epochs=training.epochs,
            initial_std=training.initial_std,
            rates=config.rates,
        ),
        shapes=tuple(shapes),
        lines=dict(SORT.lines(training)),
        over_seeds=tuple(accuracies),
    )
    words = {ACCURACY: "share of positions at which the right letter has the largest logit"}
    return rows.table(config, command="reproduce", seeds=config.seeds, definitions=words), found


def accuracy_of(variant: Variant, form: Form, values: Sequence[float]) -> Accuracy:
    """The mean of one number per seed."""
    own = mean_of(values)
    return Accuracy(
        variant=variant,
        layers=form.layers,
        dim=form.dim,
        mean=own.mean,
        low=own.low,
        high=own.high,
        count=own.count,
        values=tuple(values),
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


def _best(job: Job, config: WidthDepthConfig, form: Form, variant: Variant) -> float:
    """The rate with the smallest training loss in the end, at a seed that is not reported.

    Test sequences have no say. A single rate needs no trial.
    """
    if len(config.rates) == 1:
        return config.rates[0]
    seed = next(one for one in count_up(TRIAL) if one not in config.seeds)
    tried = {rate: _piece(job, config, form, variant, rate, seed).loss for rate in config.rates}
    return min(tried, key=lambda rate: tried[rate])


def _piece(job: Job, config: WidthDepthConfig, form: Form, variant: Variant, rate: float, seed: int) -> Trial:
    own = {
        "layers": form.layers,
        "dim": form.dim,
        "learning_rate": rate,
        "seed": seed,
        "objective": LONG_ONLY.name if variant == BARE else "plain",
    }
    training = SortConfig.of(**config.training.model_dump() | own)
    key = f"{variant.replace(' ', '-')}-{form.layers}-{rate:g}-{seed}"
    asked = training.model_dump(mode="json")

    def made() -> Trial:
        trained = train_task(SORT, training, folder=job.store.folder(f"{key}-training", asked))
        last = trained.curve[-1]
        return Trial(accuracy=trained.score, loss=last.loss, train_accuracy=last.train_score)

    return job.store.keep(Trial, key, asked, made)


def _row(
    form: Form, variant: Variant, rate: float, seed: int, one: Trial
) -> dict[str, str | int | float | bool]:
    return {
        "model": SORT.name,
        "variant": variant,
        "seed": seed,
        "layers": form.layers,
        "dim": form.dim,
        "heads": form.heads,
        "parameters": form.parameters,
        "learning_rate": rate,
        "train_loss": one.loss,
        "train_accuracy": one.train_accuracy,
        "measure": ACCURACY,
        "definition": ACCURACY,
        "value": one.accuracy,
        "floor": 0.0,
        "resolved": True,
    }


# ---------------------------------------------------------------------------------------------------- statements


def points(found: WidthDepthFound) -> list[Statement]:
    """Statements on the networks with skips, and one on those without if there are any."""
    said = [_deeper(found, SKIP), _shallow(found)]
    if found.setting.layers in found.depths:
        said.append(_usual(found))
    if any(one.variant == BARE for one in found.over_seeds):
        said.append(_deeper(found, BARE))
    return said


def _deeper(found: WidthDepthFound, variant: Variant) -> Statement:
    """The deepest against the shallowest network, paired by seed."""
    first, last = found.depths[0], found.depths[-1]
    change = mean_of(found.changes(variant, last, first))
    said = [
        f"{count(layers, 'layer')} {accuracy_text(mean_of(found.own(variant, layers).values))}"
        for layers in found.depths
    ]
    return Statement(
        source="ours",
        statement=f"At equal numbers of weights, {variant}, the deepest network sorts better than the shallowest.",
        measured=f"Accuracy, {seeds_text(change.count)}: {', '.join(said)}. {count(last, 'layer')} less {first}, by "
        f"seed: {change.text()}.",
        agrees=side(change, 0.0),
    )


def _shallow(found: WidthDepthFound) -> Statement:
    """The shallowest network against each other one: within the margin of all of them, or clearly below one."""
    first, others = found.depths[0], found.depths[1:]
    changes = [found.changes(SKIP, layers, first) for layers in others]
    name = "One layer" if first == 1 else f"A network of {first} layers"
    return Statement(
        source="ours",
        statement=f"{name} of that many weights is enough: no depth is better by more than {MARGIN:.0%}.",
        measured=f"Accuracy less that of {count(first, 'layer')}, by seed: {_comparison_words(others, changes)}",
        agrees=_none_above(changes),
    )


def _usual(found: WidthDepthFound) -> Statement:
    """The depth of the paper against each other one, by the same rule."""
    usual = found.setting.layers
    others = [layers for layers in found.depths if layers != usual]
    changes = [found.changes(SKIP, layers, usual) for layers in others]
    return Statement(
        source="ours",
        statement=f"The {usual} layers of the usual network are as good a depth as any, within {MARGIN:.0%}.",
        measured=f"Accuracy less that of {usual} layers, by seed: {_comparison_words(others, changes)}",
        agrees=_none_above(changes),
    )


def _none_above(changes: Sequence[Sequence[float]]) -> bool | None:
    """True if every mean is below the margin by its interval, False if one is above it by those of all at once."""
    if all(side(mean_of(one), MARGIN) is False for one in changes):
        return True
    return False if any(side(mean, MARGIN) for mean in together(changes)) else None


def _comparison_words(depths: Sequence[int], changes: Sequence[Sequence[float]]) -> str:
    said = [
        f"{count(layers, 'layer')} {mean_of(one).text()}" for layers, one in zip(depths, changes, strict=True)
    ]
    compared = count(len(changes), "comparison")
    return f"{', '.join(said)}. To refute, intervals are widened for {compared} (Bonferroni)."


def notes(found: WidthDepthFound) -> list[str]:
    """Sentences for the reader."""
    setting, rates = found.setting, [number(rate) for rate in found.setting.rates]
    rate = (
        rates[0]
        if len(rates) == 1
        else f"the one of {listed(rates)} that ends with the smallest training loss at a seed that is not shown"
    )
    return [
        "Shapes, layers x channels, all weights counted: "
        + ", ".join(f"{form.layers} x {form.dim} ({form.parameters:,})" for form in found.shapes)
        + ".",
        f"All have {count(setting.heads, 'head')}, as the usual network has, so that a layer gives as many paths at "
        "every depth and the width of a head goes with that of the network.",
        f"Same sequences, {count(setting.epochs, 'epoch')} and batches for all; learning rate: {rate}. Weights start "
        f"as N(0, {setting.initial_std:g}^2) at every width; there are no MLPs.",
        "Without skips a network is trained and tested without them.",
    ]


# ------------------------------------------------------------------------------------------------------- picture


def chart(found: WidthDepthFound, _: Table) -> Chart:
    """Mean and interval over seeds at every depth, single networks in gray; widths stand below the depths."""
    lines, seen = list[Line](), list[float]()
    variants = list(dict.fromkeys(one.variant for one in found.over_seeds))
    for place, variant in enumerate(variants):
        own = [found.own(variant, layers) for layers in found.depths]
        single = [
            Point(one.layers, value, f"{variant}, one network: {percent(value, 3)}")
            for one in own
            for value in one.values
        ]
        means = [_point(one) for one in own]
        lines.append(Line(name="", points=single, style="none", color=-1))
        lines.append(Line(name=variant, points=means, color=place))
        ends = [end for one in [*means, *single] for end in (one.y, one.low, one.high)]
        seen += [end for end in ends if end is not None]
    for name, level in found.lines.items():
        if level > min(seen) - 0.1:  # those far below say nothing here
            flat = [Point(layers, level) for layers in (found.depths[0], found.depths[-1])]
            lines.append(Line(name=name, points=flat, style="dashed", color=-1, dots=False))
            seen.append(level)
    weights = [form.parameters for form in found.shapes]
    panel = Panel(
        title=_skip_words(found),
        lines=lines,
        value="token accuracy",
        across="layers x channels",
        scale="linear",
        inside=(min(seen), max(seen)),
        places=[(form.layers, f"{form.layers} x {form.dim}") for form in found.shapes],
        along="log",
        notes=[
            f"Sorting, {count(found.setting.heads, 'head')}, no MLPs, {min(weights):,} to {max(weights):,} weights",
            f"{seeds_text(found.over_seeds[0].count).capitalize()}; gray: single networks",
        ],
    )
    return Chart([panel])


def _point(one: Accuracy) -> Point:
    mean = Mean(mean=one.mean, low=one.low, high=one.high, count=one.count)
    low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (one.low, one.high))
    return Point(one.layers, one.mean, f"{one.variant}: {accuracy_text(mean)}", low=low, high=high)


def _skip_words(found: WidthDepthFound) -> str:
    """What the networks with skips show, in words."""
    judged = _deeper(found, SKIP).agrees
    if judged is None:
        return "Equal numbers of weights: no clear winner of wide and deep"
    better, worse = ("deepest", "shallowest") if judged else ("shallowest", "deepest")
    return f"Equal numbers of weights: the {better} network beats the {worse}"


register(
    Figure(
        name="width-depth",
        title="sorting with the same number of weights in few wide or many narrow layers",
        source=Ref(
            key="dong2021",
            where="open question on width and depth",
            differs="not in the paper: networks of equal numbers of weights, on its sorting task",
        ),
        question="Is it better to be wide or to be deep, when short paths do the work?",
        durations={
            "fast": "seconds",
            "usual": "minutes",
            "full": "an hour",
        },
        sizes={
            "fast": WidthDepthConfig(
                size="fast",
                training=SORT.configured("fast", epochs=10),
                layers=(1, 3, 7),
                rates=(3e-3,),
                variants=(SKIP,),
                seeds=(0, 1),
            ),
            "usual": WidthDepthConfig(
                size="usual",
                training=SORT.configured("paper"),
                layers=(1, 2, 3, 6, 12),
                rates=(1e-3, 2e-3),
                variants=(SKIP,),
                seeds=(0, 1, 2),
            ),
            "full": WidthDepthConfig(
                size="full",
                training=SORT.configured("paper"),
                layers=(1, 2, 3, 4, 6, 8, 12),
                rates=(5e-4, 1e-3, 2e-3, 4e-3),
                variants=(SKIP, BARE),
                seeds=(0, 1, 2, 3, 4),
            ),
        },
        found=WidthDepthFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
