"""``long-paths``: sorting networks trained so that long paths have to work, beside one trained as usual."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from rankscope.charts import Bar, Bars, Chart, Line, Panel, Point
from rankscope.core.refs import Ref
from rankscope.core.words import count, listed, number, percent, power
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.measures import evaluate_many, find_measure
from rankscope.network import Network, without_attention_skip
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_or_none, register
from rankscope.papers.figures.statistics import Mean, accuracy_text, mean_of, seeds_text, side, together
from rankscope.papers.tasks.checkpoint import Trained
from rankscope.papers.tasks.effectiveness import read_states
from rankscope.papers.tasks.long_paths import LONG_ONLY, PATH_DROPOUT, SPREAD_LONG
from rankscope.papers.tasks.model import TaskModel
from rankscope.papers.tasks.path_runs import path_outputs
from rankscope.papers.tasks.sort import SORT, SortConfig
from rankscope.papers.tasks.sort import model as sort_model
from rankscope.papers.tasks.task import FieldValue, token_accuracy
from rankscope.papers.tasks.training import train_task
from rankscope.pathways import counts_of, every_path, spectrum
from rankscope.results import Table
from rankscope.studies.rows import RowBuilder, definitions

Mode = Literal["full", "without skips", "frozen", "isolated"]
FULL: Mode = "full"
BARE: Mode = "without skips"
FROZEN: Mode = "frozen"
ISOLATED: Mode = "isolated"

READINGS: tuple[Mode, ...] = (FROZEN, ISOLATED, BARE)
"""What paths of the full length are worth alone: with everything held, each run again, all run again together."""

ACCURACY, RATIO = "token_accuracy", "residual_ratio[frobenius,mean,unit]"

EQUAL = "one answer for all positions"

MARGIN = 0.01
"""Accuracy that a whole network may lose and still count as kept."""

FEWEST = 3
"""Fewer seeds do not tell whether something holds for all of them."""


class Variant(Value):
    """One way to train: an objective, and where weights start if not as usual."""

    name: str
    objective: str
    strength: float = 0.0
    initial_std: float | None = None

    def fields(self) -> dict[str, FieldValue]:
        """What it changes in the configuration of a training."""
        own: dict[str, FieldValue] = {"objective": self.objective, "strength": self.strength}
        return own if self.initial_std is None else own | {"initial_std": self.initial_std}


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


class LongPathsConfig(FigureConfig):
    """What is trained, in which ways; the first of ``variants`` is what the others are compared with."""

    figure: Literal["long-paths"] = "long-paths"
    training: SortConfig
    variants: tuple[Variant, ...]


# ------------------------------------------------------------------------------------------------ what is found


class LengthRow(Value):
    """One number of one network; ``length`` is null for the whole network."""

    mode: Mode
    length: int | None
    measure: str
    definition: str
    value: float
    floor: float
    resolved: bool


class VariantScores(Value):
    """What one network and its paths achieve."""

    rows: tuple[LengthRow, ...]


class OverSeeds(Value):
    """A number of one variant over seeds: the mean with its 95% interval, and the numbers themselves.

    Residual ratios have a geometric mean: mean, low and high are logarithms to base ten.
    """

    variant: str
    mode: Mode
    length: int | None
    definition: str
    mean: float
    low: float | None
    high: float | None
    count: int
    is_log10: bool
    resolved: bool
    """Whether all of them are."""

    values: tuple[float, ...]
    """One per seed, in the same order everywhere; ratios as they are."""

    @property
    def logs(self) -> list[float]:
        """Logarithms to base ten."""
        return [_log10(value) for value in self.values]


class LongPathsSetting(Value):
    """The training that all variants share."""

    layers: int
    heads: int
    dim: int
    epochs: int
    initial_std: float
    variants: tuple[str, ...]


class LongPathsFound(Value):
    """Accuracies and residuals of every variant, and accuracies to compare with."""

    setting: LongPathsSetting
    variants: tuple[Variant, ...]
    lines: dict[str, float]
    over_seeds: tuple[OverSeeds, ...]

    @property
    def base(self) -> Variant:
        return self.variants[0]

    @property
    def others(self) -> tuple[Variant, ...]:
        return self.variants[1:]

    @property
    def line(self) -> float:
        """The largest accuracy that is possible without bringing letters together."""
        return max(self.lines.values())

    def own(self, variant: Variant, mode: Mode, length: int | None, definition: str = ACCURACY) -> OverSeeds:
        """One number of a variant."""
        known = {(one.variant, one.mode, one.length, one.definition): one for one in self.over_seeds}
        return known[variant.name, mode, length, definition]

    def curve(self, variant: Variant, mode: Mode, definition: str = ACCURACY) -> list[OverSeeds]:
        """By length."""
        key = (variant.name, mode, definition)
        own = [one for one in self.over_seeds if (one.variant, one.mode, one.definition) == key]
        return sorted(own, key=lambda one: -1 if one.length is None else one.length)


def _log10(value: float) -> float:
    """Of a ratio that is not above zero the logarithm of the least positive float."""
    return math.log10(max(value, 5e-324))


# ------------------------------------------------------------------------------------------------- computation


def compute(config: LongPathsConfig, job: Job) -> tuple[Table, LongPathsFound]:
    """Accuracies of each network, and accuracy and residual of its paths by length."""
    pieces: dict[str, list[VariantScores]] = {variant.name: [] for variant in config.variants}
    rows, total = RowBuilder(), len(config.variants) * len(config.seeds)
    for done, (variant, seed) in enumerate(_work(config), start=1):
        one = _piece(job, config.training, variant, seed)
        pieces[variant.name].append(one)
        for row in one.rows:
            rows.add(1, {"model": SORT.name, "variant": variant.name, "seed": seed, **row.model_dump()})
        job.tell(done, total)
    training = config.training
    found = LongPathsFound(
        setting=LongPathsSetting(
            layers=training.layers,
            heads=training.heads,
            dim=training.dim,
            epochs=training.epochs,
            initial_std=training.initial_std,
            variants=tuple(pieces),
        ),
        variants=config.variants,
        lines={**SORT.lines(training), EQUAL: equal_accuracy(training)},
        over_seeds=tuple(one for name, own in pieces.items() for one in over_seeds(name, own)),
    )
    words = {ACCURACY: "share of positions at which the right letter has the largest logit"}
    table = rows.table(
        config, command="reproduce", seeds=config.seeds, definitions=words | definitions([RATIO])
    )
    return table, found


def _work(config: LongPathsConfig) -> Iterator[tuple[Variant, int]]:
    """Seed by seed, so that a run that is stopped has whole seeds."""
    for seed in config.seeds:
        for variant in config.variants:
            yield variant, seed


def _piece(job: Job, training: SortConfig, variant: Variant, seed: int) -> VariantScores:
    config = SortConfig.of(**training.model_dump() | variant.fields() | {"seed": seed})
    key = f"{variant.name.replace(' ', '-').replace(',', '')}-{seed}"
    asked = config.model_dump(mode="json")

    def made() -> VariantScores:
        return score_variant(train_task(SORT, config, folder=job.store.folder(f"{key}-training", asked)))

    return job.store.keep(VariantScores, key, asked, made)


@torch.no_grad()
def score_variant(trained: Trained) -> VariantScores:
    """What a network achieves, without its skips, and by the paths of each length alone.

    The network of ``long-only`` is the one without skips, which has paths of the full length alone.
    """
    model = _ready(trained)
    layers = trained.config.layers
    inputs, targets = SORT.held_out(trained.config)
    x = model.embed(inputs)
    bare = without_attention_skip(model.network)
    network = bare if trained.config.objective == LONG_ONLY.name else model.network
    rows = [
        _accuracy(FULL, None, token_accuracy(model.classify(network(x)), targets)),
        _accuracy(BARE, layers, token_accuracy(model.classify(bare(x)), targets)),
        _residual(BARE, layers, bare(x), layers),
    ]
    readings: dict[Mode, dict[int, Tensor]] = {
        FROZEN: _frozen(network, x),
        ISOLATED: _paths_alone(network, x),
    }
    for mode, sums in readings.items():
        for length, states in sums.items():
            rows.append(_accuracy(mode, length, token_accuracy(read_states(model, states), targets)))
            rows.append(_residual(mode, length, states, layers))
    return VariantScores(rows=tuple(rows))


def _ready(trained: Trained) -> TaskModel:
    """A copy in float64 and in evaluation mode."""
    config = SortConfig.of(**trained.config.model_dump())
    model = sort_model(config, torch.Generator())
    model.load_state_dict(trained.model.state_dict())
    return model.double().requires_grad_(requires_grad=False).eval()


def _frozen(network: Network, x: Tensor) -> dict[int, Tensor]:
    """The exact sum of all paths of each length; lengths that only biases have are left out."""
    counts, terms = counts_of(network), spectrum(network, x).terms
    return {length: terms[length] for length, many in enumerate(counts) if many}


def _paths_alone(network: Network, x: Tensor) -> dict[int, Tensor]:
    """The sum over all paths of each length of the network run again along them."""
    sums: dict[int, Tensor] = {}
    paths = [
        path for length, many in enumerate(counts_of(network)) if many for path in every_path(network, length)
    ]
    for path, states in path_outputs(network, x, paths, "isolated"):
        sums[path.length] = sums[path.length] + states if path.length in sums else states
    return dict(sorted(sums.items()))


def _accuracy(mode: Mode, length: int | None, value: float) -> LengthRow:
    return LengthRow(
        mode=mode, length=length, measure=ACCURACY, definition=ACCURACY, value=value, floor=0.0, resolved=True
    )


def _residual(mode: Mode, length: int, states: Tensor, layers: int) -> LengthRow:
    """The mean over sequences."""
    measure = find_measure(RATIO)
    (found,) = evaluate_many([measure], states, layer=layers, dtype=states.dtype)
    value, floor = float(found.value.mean()), float(found.floor.mean())
    return LengthRow(
        mode=mode,
        length=length,
        measure=measure.name,
        definition=measure.definition,
        value=value,
        floor=floor,
        resolved=value > floor,
    )


def over_seeds(variant: str, seeds: Sequence[VariantScores]) -> list[OverSeeds]:
    """Every number of a variant over its seeds, which have the same rows."""
    found = []
    for same in zip(*(one.rows for one in seeds), strict=True):
        first, values = same[0], [row.value for row in same]
        is_log = first.definition == RATIO
        own = mean_of([_log10(value) for value in values] if is_log else values)
        found.append(
            OverSeeds(
                variant=variant,
                mode=first.mode,
                length=first.length,
                definition=first.definition,
                mean=own.mean,
                low=own.low,
                high=own.high,
                count=own.count,
                is_log10=is_log,
                resolved=all(row.resolved for row in same),
                values=tuple(values),
            )
        )
    return found


def equal_accuracy(config: SortConfig) -> float:
    """Largest token accuracy possible if all tokens are equal: always the commonest letter of the sequence.

    Its expected number over the length. No letter is there more than m times in ``n! [x^n] (sum_(k<=m) x^k / k!)^a``
    of the ``a^n`` sequences.

    >>> round(equal_accuracy(SortConfig(alphabet=2, length=2)), 4)
    0.75
    """
    n, total = config.length, config.alphabet**config.length
    return math.fsum(1 - _no_more(most, config) / total for most in range(n)) / n


def _no_more(most: int, config: SortConfig) -> int:
    """How many sequences have no letter more than ``most`` times."""
    ways = [1] + [0] * config.length  # by the number of positions that are taken
    for _ in range(config.alphabet):
        ways = [
            sum(math.comb(taken, k) * ways[taken - k] for k in range(min(most, taken) + 1))
            for taken in range(config.length + 1)
        ]
    return ways[config.length]


# ---------------------------------------------------------------------------------------------------- statements


def points(found: LongPathsFound) -> list[Statement]:
    """Statements on every variant, one more on the regularizer, and one on all of them."""
    said = []
    for one in found.others:
        said.append(_useful(found, one))
        if one.objective != LONG_ONLY.name:  # which has no shorter paths to compare
            said.append(_longer(found, one))
        if one.objective == SPREAD_LONG.name:
            said.append(_apart(found, one))
        said.append(_price(found, one))
    return [*said, _principle(found)]


def _useful(found: LongPathsFound, variant: Variant) -> Statement:
    """By each reading: above what is possible without mixing or with equal tokens, and above the baseline.

    It holds or fails by whole intervals: below one of the two is enough to fail. Readings that disagree leave it open.
    """
    said, checks, layers = [], list[bool | None](), found.setting.layers
    for mode in READINGS:
        own, usual = (found.own(which, mode, layers).values for which in (variant, found.base))
        accuracy, gain = mean_of(own), _mean_difference(own, usual)
        checks.append(_both(side(accuracy, found.line), side(gain, 0.0)))
        said.append(f"{mode} {accuracy_text(accuracy)}, baseline {accuracy_text(mean_of(usual))}")
    return Statement(
        source="ours",
        statement=f"{_variant_name(variant)} makes paths of the full length useful.",
        measured=f"Accuracy of paths of length {layers} alone, {seeds_text(accuracy.count)}: {'; '.join(said)}. "
        f"{_possible(found)}",
        agrees=all_or_none(checks),
    )


def _longer(found: LongPathsFound, variant: Variant) -> Statement:
    """The greatest length whose paths alone are above the line, seed by seed: greater in all of them, or in none.

    By each reading of single lengths; readings that disagree, and fewer than three seeds, leave it open.
    """
    said, checks = [], list[bool | None]()
    for mode in (FROZEN, ISOLATED):
        own, usual = (reach(found.curve(which, mode), found.line) for which in (variant, found.base))
        longer = [a > b for a, b in zip(own, usual, strict=True)]
        checks.append(all_or_none(longer) if len(longer) >= FEWEST else None)
        said.append(f"{mode} {_lengths(own)}, baseline {_lengths(usual)}")
    return Statement(
        source="ours",
        statement=f"{_variant_name(variant)} makes longer paths useful than those of the baseline.",
        measured=f"Greatest length whose paths alone are more accurate than {number(found.line)}, by seed: "
        f"{'; '.join(said)}.",
        agrees=all_or_none(checks),
    )


def reach(curve: Sequence[OverSeeds], line: float) -> list[int]:
    """By seed the greatest length with an accuracy above the line; -1 if there is none."""
    lengths = [-1 if one.length is None else one.length for one in curve]
    seeds = zip(*(one.values for one in curve), strict=True)
    return [
        max((length for length, value in zip(lengths, own, strict=True) if value > line), default=-1)
        for own in seeds
    ]


def _price(found: LongPathsFound, variant: Variant) -> Statement:
    """Paired by seed: the interval of the loss within the margin, or beyond it."""
    own, usual = (found.own(which, FULL, None).values for which in (variant, found.base))
    change = _mean_difference(own, usual)
    return Statement(
        source="ours",
        statement=f"{_variant_name(variant)} costs no accuracy of the whole network (no more than {MARGIN:.0%}).",
        measured=f"Accuracy {accuracy_text(mean_of(own))}, baseline {accuracy_text(mean_of(usual))}; difference by "
        f"seed {change.text()}.",
        agrees=side(change, -MARGIN),
    )


def _apart(found: LongPathsFound, variant: Variant) -> Statement:
    """Paired by seed, in decades, on test sequences: as the penalty sees these paths, and for each run again."""
    said, checks, layers = [], list[bool | None](), found.setting.layers
    for mode in (FROZEN, ISOLATED):
        own, usual = (found.own(which, mode, layers, RATIO) for which in (variant, found.base))
        if not (own.resolved and usual.resolved):
            checks.append(None)
            said.append(f"{mode} not above rounding in every seed")
            continue
        change = _mean_difference(own.logs, usual.logs)
        checks.append(side(change, 0.0))
        said.append(f"{mode} {_ten(own.mean)}, baseline {_ten(usual.mean)} ({change.text()} decades apart)")
    return Statement(
        source="ours",
        statement=f"{_variant_name(variant)} keeps the tokens of paths of the full length further apart.",
        measured=f"Residual ratio of the sum of all paths of length {layers}, tokens at length one: {'; '.join(said)}. "
        "The penalty is on the frozen ones.",
        agrees=all_or_none(checks),
    )


def _principle(found: LongPathsFound) -> Statement:
    """Whether any network at all works without its skips, where nothing of short paths is left.

    One of several is enough, so that it is judged by intervals that hold for all of them at once.
    """
    numbers = [found.own(one, BARE, found.setting.layers).values for one in found.others]
    means = dict(zip((one.name for one in found.others), together(numbers), strict=True))
    best = max(means, key=lambda name: means[name].mean)
    any_works = any(side(mean, found.line) for mean in means.values())
    none_works = all(side(mean_of(one), found.line) is False for one in numbers)
    return Statement(
        source="ours",
        statement="Long paths can be trained to be useful: they fail for want of training, not in principle.",
        measured=f"With all skips taken out after training, the most accurate network ({best}) has "
        f"{accuracy_text(means[best])}; the interval is widened for {count(len(means), 'comparison')} (Bonferroni). "
        f"{_possible(found)}",
        agrees=True if any_works else False if none_works else None,
    )


def _possible(found: LongPathsFound) -> str:
    return (
        f"Without bringing letters together, or with equal tokens, at most {number(found.line)} is possible."
    )


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both hold; one that fails is enough to fail."""
    if one is False or other is False:
        return False
    return True if one and other else None


def _mean_difference(own: Sequence[float], usual: Sequence[float]) -> Mean:
    return mean_of([a - b for a, b in zip(own, usual, strict=True)])


def _variant_name(one: Variant) -> str:
    return one.name[0].upper() + one.name[1:]


def _lengths(lengths: Sequence[int]) -> str:
    return ", ".join("none" if length < 0 else str(length) for length in lengths)


def _ten(log10: float) -> str:
    return power(log10 * LN10, digits=2)


def notes(found: LongPathsFound) -> list[str]:
    """Sentences for the reader."""
    setting = found.setting
    said = [
        f"Sorting with {count(setting.layers, 'layer')} of {count(setting.heads, 'head')} on {setting.dim} channels, "
        f"no MLPs, {count(setting.epochs, 'epoch')}; every variant has the same data, steps and learning rate.",
        "Path dropout: in training every skip around attention is dropped with the probability named, independently "
        "for each example and layer; afterwards the network is used with all its skips. The expected length of a path "
        f"drawn at random is {setting.layers} (H + p) / (H + 1), H = {setting.heads}.",
        "Regularizer: the loss plus the factor named times -log of the residual ratio of the sum of all paths of the "
        "full length, tokens at length one. It asks that tokens stay apart, not that they are right.",
        "Long paths only: trained and used without skips; its paths all have the full length. With the usual start, "
        f"weights N(0, {setting.initial_std:g}^2), such a network begins collapsed.",
        "Readings of paths alone: frozen, exact, with maps and norms held at their values in the full network; "
        "isolated, the network run again along each path; without skips, run again with all paths of the full length "
        "at once. Sums of paths pass a LayerNorm without gain and bias before the classifier.",
        f"To compare with: {listed([f'{name} {number(value)}' for name, value in found.lines.items()])}. Intervals "
        "over few seeds are wide.",
    ]
    wider = [one for one in found.variants if one.initial_std is not None]
    return said + [f"Wider start: weights N(0, {one.initial_std:g}^2)." for one in wider]


# ------------------------------------------------------------------------------------------------------- picture

DEEPEST = -8.0
"""Decades at which the axis of residual ratios ends."""

TITLES: dict[Mode, str] = {FROZEN: "Paths frozen", ISOLATED: "Each path run again"}


def chart(found: LongPathsFound, _: Table) -> Chart:
    """Whole networks with and without their skips, then accuracy and residual of the paths of one length."""
    layers = found.setting.layers
    pictures: list[Bars | Panel] = [
        _whole(found, FULL, None, "The network as it was trained"),
        _whole(found, BARE, layers, "All skips taken out: the longest paths"),
        *(_panel(found, mode, ACCURACY) for mode in TITLES),
        *(_panel(found, mode, RATIO) for mode in TITLES),
    ]
    title = {
        True: "Training can make the longest paths useful",
        False: "No training here makes the longest paths useful",
        None: "Training that asks for long paths: the seeds do not tell whether it helps",
    }[_principle(found).agrees]
    seeds = found.over_seeds[0].count
    said = [
        f"Sorting, {count(layers, 'layer')} of {count(found.setting.heads, 'head')} on {found.setting.dim} channels; "
        f"{count(seeds, 'seed')}"
        + ("" if seeds < 2 else "; lines on bars and bands: 95% interval of the mean"),
        f"Without bringing letters together at most {percent(found.line)} is possible. Residual ratio: Frobenius norm, "
        "tokens at length one",
    ]
    if not all(one.resolved for one in found.over_seeds):
        said.append("Rings: not above the rounding floor")
    return Chart(pictures, title=title, notes=said)


def _whole(found: LongPathsFound, mode: Mode, length: int | None, title: str) -> Bars:
    bars = []
    for variant in found.variants:
        own = mean_of(found.own(variant, mode, length).values)
        low, high = _ends(own, 0.0, 1.0)
        tip = f"{variant.name}: {accuracy_text(own)}"
        bars.append(Bar(variant.name, own.mean, percent(own.mean, 3), low=low, high=high, tip=tip))
    bars.append(Bar("without mixing letters", found.line, percent(found.line, 3), faint=True))
    return Bars(title=title, bars=bars, value="token accuracy")


def _panel(found: LongPathsFound, mode: Mode, definition: str) -> Panel:
    is_accuracy = definition == ACCURACY
    lines = list[Line]()
    if is_accuracy:
        flat = [Point(0, found.line), Point(found.setting.layers, found.line)]
        lines.append(Line(name="without mixing letters", points=flat, style="dashed", color=-1, dots=False))
    for place, variant in enumerate(found.variants):
        dots = [_point(one) for one in found.curve(variant, mode, definition)]
        lines.append(Line(name=variant.name, points=dots, color=place, style=STROKES[place % len(STROKES)]))
    seen = [point.y for line in lines for point in line.points if point.y is not None]
    words = "accuracy of one length" if is_accuracy else "residual of one length"
    return Panel(
        title=f"{TITLES[mode]}: {words}",
        lines=lines,
        value="token accuracy" if is_accuracy else "residual ratio",
        across="heads on the path",
        scale="linear" if is_accuracy else "log",
        inside=(0.0, 1.0) if is_accuracy else (max(min(seen), DEEPEST), 0.0),
    )


STROKES: tuple[Literal["solid", "dashed", "dotted"], ...] = ("solid", "dashed", "dotted")


def _point(one: OverSeeds) -> Point:
    own = Mean(mean=one.mean, low=one.low, high=one.high, count=one.count)
    length = 0 if one.length is None else one.length
    if one.is_log10:
        low, high = _ends(own, -math.inf, 0.0)
        said = _ten(one.mean) if one.resolved else "not above rounding"
        return Point(length, one.mean, f"{one.variant}: {said}", low=low, high=high, hollow=not one.resolved)
    low, high = _ends(own, 0.0, 1.0)
    return Point(length, one.mean, f"{one.variant}: {accuracy_text(own)}", low=low, high=high)


def _ends(own: Mean, least: float, most: float) -> tuple[float | None, float | None]:
    """The ends of the interval, within what is possible."""
    if own.low is None or own.high is None:
        return None, None
    return min(max(own.low, least), most), min(max(own.high, least), most)


register(
    Figure(
        name="long-paths",
        title="training that asks for long paths: does it make them useful, and at what price",
        source=Ref(
            key="dong2021",
            where="Section 4.2 and its open questions",
            differs="not in the paper: path dropout, a penalty on collapse, and long paths only, on sorting",
        ),
        question="Do long paths fail because nothing asks for them, or in principle?",
        durations={
            "fast": "seconds",
            "usual": "minutes",
            "full": "tens of minutes",
        },
        sizes={
            "fast": LongPathsConfig(
                size="fast",
                training=SORT.configured("fast", epochs=12),
                variants=(BASELINE, dropout(0.5), spread(0.1), ONLY),
                seeds=(0, 1),
            ),
            "usual": LongPathsConfig(
                size="usual",
                training=SORT.configured("paper"),
                variants=(BASELINE, dropout(0.2), dropout(0.5), spread(0.01), spread(0.1), ONLY, WIDER),
                seeds=(0, 1, 2),
            ),
            "full": LongPathsConfig(
                size="full",
                training=SORT.configured("paper"),
                variants=(
                    BASELINE,
                    *map(dropout, (0.1, 0.2, 0.5, 0.9)),
                    *map(spread, (0.01, 0.1, 1.0)),
                    ONLY,
                    WIDER,
                ),
                seeds=(0, 1, 2, 3, 4),
            ),
        },
        found=LongPathsFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
