"""``paths-memorize``, ``paths-sort``, ``paths-hull``: what paths of each length achieve on a task, over seeds.

``clearly above`` a line means that the whole 95% interval of the mean over seeds lies above it. ``near`` the naive line
means that the interval lies within a tenth of the way from there to the full model, on either side. The rules are the
same for all tasks and senses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from pydantic import JsonValue, SerializeAsAny

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.charts.specs import Style
from rankscope.core.refs import Ref
from rankscope.core.words import listed, number, percent, power, sentence
from rankscope.findings.blocks import LN10
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Size, Statement, all_or_none, register
from rankscope.papers.figures.statistics import Mean, accuracy_text, mean_of, seeds_text, side, within
from rankscope.papers.tasks.effectiveness import (
    ACCURACY,
    CHANCE,
    COMMON,
    RATIO,
    REFIT,
    Effectiveness,
    EffectivenessConfig,
    PathScores,
    SeedRows,
    Sense,
    Summed,
    Weights,
    score_paths,
    summary,
    table_of,
)
from rankscope.papers.tasks.hull import HULL
from rankscope.papers.tasks.memorize import MEMORIZE
from rankscope.papers.tasks.sort import SORT
from rankscope.papers.tasks.task import Task, TaskConfig
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table

Name = Literal["memorize", "sort", "hull"]
TASKS_OF: dict[Name, Task[Any]] = {"memorize": MEMORIZE, "sort": SORT, "hull": HULL}
TITLES: dict[Name, str] = {"memorize": "Memorization", "sort": "Sorting", "hull": "Convex hulls"}

NEAR = 0.1
"""Share of the way from the naive line to the full model that counts as near."""

SAME = 0.005
"""Published accuracies have two digits."""

SINGLE_HEAD: dict[Name, float] = {"memorize": 0.8, "sort": 0.6, "hull": 0.65}
"""Accuracy that paths of one head are reported to exceed."""

SENSES: dict[Sense, Summed] = {"frozen": "all", "isolated": "drawn", "official": "drawn"}
"""Which paths each sense is judged by: all of a length, exactly; or the largest number that was drawn."""

LEAST = 1e-300
"""Logarithms of smaller ratios are those of this."""


class PathsEffectivenessConfig(FigureConfig):
    """A task as it is trained, and how its paths are measured; the seed of ``training`` is each of ``seeds``."""

    task: Name
    training: SerializeAsAny[TaskConfig]
    paths: EffectivenessConfig

    @property
    def is_paper_size(self) -> bool:
        """Whether the networks are those of the paper."""
        return bool(self.training == TASKS_OF[self.task].configured("paper", seed=self.training.seed))


# ------------------------------------------------------------------------------------------------ what is found


class PathsFound(Effectiveness):
    """What paths achieve, and what they are compared with."""

    task: Name
    is_paper_size: bool
    drawn: int
    """The largest number of paths that were drawn and summed; 0 if none were."""

    repeats: int
    """How often they were drawn."""

    @property
    def senses(self) -> list[Sense]:
        """The senses that were measured."""
        return [mode for mode in SENSES if self.curve(ACCURACY, mode)]

    @property
    def main(self) -> Sense:
        """The sense of the paper if it was measured."""
        return "official" if "official" in self.senses else self.senses[0]

    @property
    def longest(self) -> int:
        """Heads on the longest path."""
        return self.lengths[-1].length

    @property
    def naive(self) -> float:
        return self.baselines["naive"]

    @property
    def margin(self) -> float:
        """How far from the naive line is still near it."""
        return NEAR * abs(self.full("trained").mean - self.naive)

    def full(self, weights: Weights) -> Mean:
        """Accuracy of the full models."""
        return full_accuracy(self, weights)

    def curve(self, definition: str, mode: Sense, weights: Weights = "trained") -> list[SeedRows]:
        """By length, of the paths that the sense is judged by; fresh classifiers read all paths of a length."""
        of_all = definition in (REFIT, COMMON, CHANCE)
        return curve(self, definition, mode, "all" if of_all else SENSES[mode], weights)

    def accuracies(self, mode: Sense) -> list[Mean]:
        """Of the trained networks, by length."""
        return [mean_of(one.values) for one in self.curve(ACCURACY, mode)]


def full_accuracy(found: Effectiveness, weights: Weights) -> Mean:
    """Accuracy of the full models."""
    return mean_of([one.accuracy for one in found.models if one.weights == weights])


def curve(
    found: Effectiveness, definition: str, mode: Sense, paths: Summed, weights: Weights
) -> list[SeedRows]:
    """One entry per length; of several numbers of drawn paths the largest."""
    most = max((one.summed for one in found.over_seeds if one.paths == "drawn"), default=0)
    key = (definition, mode, paths, weights)
    return sorted(
        (
            one
            for one in found.over_seeds
            if (one.definition, one.mode, one.paths, one.weights) == key
            and (paths != "drawn" or one.summed == most)
        ),
        key=lambda one: one.length,
    )


# ------------------------------------------------------------------------------------------------- computation


def compute(config: PathsEffectivenessConfig, job: Job) -> tuple[Table, PathsFound]:
    """Models of all seeds, trained and measured."""
    task = TASKS_OF[config.task]
    per_seed = config.training.epochs + config.paths.pieces
    pieces = list[PathScores]()
    for place, seed in enumerate(config.seeds):
        tell = partial(_advance, job, place * per_seed, per_seed * len(config.seeds))
        training = config.training.model_copy(update={"seed": seed})
        pieces.append(_one(job, task, training, config.paths, tell))
        tell(per_seed)
    first = config.training.model_copy(update={"seed": config.seeds[0]})
    found = PathsFound(
        **dict(summary(pieces, task, first)),
        task=config.task,
        is_paper_size=config.is_paper_size,
        drawn=max(config.paths.draws, default=0),
        repeats=config.paths.repeats,
    )
    return table_of(pieces, config, command="reproduce"), found


def _one(
    job: Job, task: Task[Any], config: TaskConfig, paths: EffectivenessConfig, tell: Callable[[int], None]
) -> PathScores:
    """What is measured in one model; it is trained first, unless that is known already."""
    asked: dict[str, JsonValue] = {"task": task.name, "config": config.model_dump(mode="json")}

    def work() -> PathScores:
        folder = job.store.folder(f"seed{config.seed}", asked)
        trained = train_task(task, config, folder=folder, tell=lambda epoch: tell(epoch.epoch))
        done = iter(range(config.epochs + 1, config.epochs + paths.pieces + 1))
        return score_paths(trained, paths, lambda: tell(next(done)))

    question = {**asked, "paths": paths.model_dump(mode="json")}
    return job.store.keep(PathScores, f"measured{config.seed}", question, work)


def _advance(job: Job, before: int, total: int, done: int) -> None:
    job.tell(before + done, total)


# ---------------------------------------------------------------------------------------------------- statements


def points(found: PathsFound) -> list[Statement]:
    """Published statements, the same in the senses that the paper does not have, and what fresh classifiers find."""
    senses = sorted(found.senses, key=lambda mode: mode != "official")
    said = [_full(found), _naive(found)]
    if "official" in senses:
        said.append(_single_head(found))
    said += [_short(found, mode) for mode in senses]
    said += [_long(found, mode) for mode in senses]
    said += [_decay(found), _no_heads(found)]
    said += [_residuals(found, mode) for mode in found.senses if mode != "official"]
    return said + [_readable(found, mode) for mode in found.senses if found.curve(REFIT, mode)]


def _full(found: PathsFound) -> Statement:
    """By the interval over seeds, from the least number that rounds to the published one."""
    published, own = found.published["full model"], found.full("trained")
    more = " That is more than the published network has." if side(own, published + SAME) else ""
    return Statement(
        source="reported",
        statement=f"The full model has a token accuracy of at least {published:g}, the published one.",
        measured=f"{sentence(_of(own))}{more}{_small(found)}",
        agrees=side(own, published - SAME) if found.is_paper_size else None,
    )


def _naive(found: PathsFound) -> Statement:
    published = found.published["naive"]
    others = [f"{name} {number(value)}" for name, value in found.baselines.items() if name != "naive"]
    return Statement(
        source="reported",
        statement=f"A naive answer has an accuracy of {published:g}.",
        measured=f"By calculation {number(found.naive)}"
        + (f"; other lines: {listed(others)}" if others else "")
        + f".{_small(found)}",
        agrees=abs(published - found.naive) <= SAME if found.is_paper_size else None,
    )


def _single_head(found: PathsFound) -> Statement:
    level = SINGLE_HEAD[found.task]
    own = {mode: found.accuracies(mode)[1] for mode in found.senses}
    return Statement(
        source="reported",
        statement=f"Paths of length 1 exceed an accuracy of {level:g} (judged in the sense official, as published).",
        measured=f"{sentence(seeds_text(own['official'].count))[:-1]}: "
        + f"{', '.join(f'{mode} {accuracy_text(one)}' for mode, one in own.items())}.{_small(found)}",
        agrees=side(own["official"], level) if found.is_paper_size else None,
    )


def _short(found: PathsFound, mode: Sense) -> Statement:
    own = found.accuracies(mode)[1]
    return Statement(
        source=_source(mode),
        statement=f"Paths of length 1 are clearly above the naive line, in the sense {mode}.",
        measured=f"{_sum_words(mode)}: {_of(own)}; naive {number(found.naive)}.",
        agrees=side(own, found.naive),
    )


def _long(found: PathsFound, mode: Sense) -> Statement:
    own, low, high = found.accuracies(mode)[-1], found.naive - found.margin, found.naive + found.margin
    judged = within(own, low, high)
    where = "" if judged is not False else f" It lies {'below' if own.mean < found.naive else 'above'} that."
    return Statement(
        source=_source(mode),
        statement=f"Paths of length {found.longest} are near the naive line, in the sense {mode}.",
        measured=f"{_sum_words(mode)}: {_of(own)}; near is {number(low)} to {number(high)}.{where}",
        agrees=judged,
    )


def _decay(found: PathsFound) -> Statement:
    lists = "; ".join(
        f"{mode} {', '.join(f'{one.mean:.2f}' for one in found.accuracies(mode)[1:])}"
        for mode in found.senses
    )
    own = [one.values for one in found.curve(ACCURACY, found.main)[1:]]
    return Statement(
        source="reported",
        statement=f"From length 1 on accuracy falls with length (judged in the sense {found.main}).",
        measured=f"Means over seeds, lengths 1 to {found.longest}: {lists}. Rises between values that are both near "
        "the naive line do not count.",
        agrees=falls(own, found.naive, found.margin),
    )


def falls(values: Sequence[Sequence[float]], line: float, margin: float) -> bool | None:
    """Whether a curve falls with length, read as a whole and paired by seed; ``values`` are seeds by length.

    A step rises if the difference is clearly above zero, unless both of its ends are near the line. True if the last
    value is clearly below the first and no step rises. False if the last is clearly above the first, or not clearly
    below it while some step rises. None otherwise.
    """
    whole = difference(values[-1], values[0])
    if whole.low is None or whole.high is None:
        return None
    rises = [
        side(difference(after, before), 0.0) is True
        and any(abs(mean_of(one).mean - line) > margin for one in (before, after))
        for before, after in pairwise(values)
    ]
    if whole.high < 0:
        return None if any(rises) else True
    return False if whole.low > 0 or any(rises) else None


def difference(one: Sequence[float], other: Sequence[float]) -> Mean:
    """The mean of differences of the same seeds."""
    return mean_of([a - b for a, b in zip(one, other, strict=True)])


def _no_heads(found: PathsFound) -> Statement:
    starts = {mode: found.curve(ACCURACY, mode)[:2] for mode in found.senses}
    changes = {mode: difference(none.values, one.values) for mode, (none, one) in starts.items()}
    is_higher = side(changes[found.main], 0.0)
    return Statement(
        source="reported",
        statement=f"Without any head accuracy is lower than with one (judged in the sense {found.main}).",
        measured="Length 0 minus length 1, by seed: "
        + ", ".join(f"{mode} {one.text()}" for mode, one in changes.items())
        + f". Length 0 alone: {', '.join(f'{mode} {number(one[0].mean)}' for mode, one in starts.items())}.",
        agrees=None if is_higher is None else not is_higher,
    )


def _residuals(found: PathsFound, mode: Sense) -> Statement:
    """Ratios are compared as logarithms, paired by seed, at lengths from 2 on that show more than rounding.

    A ratio that is not above rounding is no larger than what was found for it.
    """
    trained, initial = found.curve(RATIO, mode), found.curve(RATIO, mode, "initial")
    lifted = [
        side(difference(_logs(after), _logs(before)), 0.0)
        for after, before in zip(trained[2:], initial[2:], strict=True)
        if after.resolved or before.resolved
    ]
    return Statement(
        source="ours",
        statement=f"Training makes paths of two and more heads keep more of their residual, in the sense {mode}.",
        measured=f"Residual ratio, means over seeds, lengths 0 to {found.longest}: initial {_ratios(initial)}; "
        f"trained {_ratios(trained)}.",
        agrees=all_or_none(lifted),
    )


def _logs(one: SeedRows) -> list[float]:
    return [math.log10(max(value, LEAST)) for value in one.values]


def _ratios(own: Sequence[SeedRows]) -> str:
    return ", ".join(number(one.mean, 2) if one.resolved else "rounding" for one in own)


def _readable(found: PathsFound, mode: Sense) -> Statement:
    """Whether a fresh classifier reads more from the longest paths than their mean over tokens or chance would give.

    False also where their residual is not above rounding: then nothing tells tokens apart. None if that is so for
    some of the seeds.
    """
    own, common, chance = (found.curve(name, mode)[-1] for name in (REFIT, COMMON, CHANCE))
    if own.resolved:
        less = [max(pair) for pair in zip(common.values, chance.values, strict=True)]
        agrees, hidden = side(difference(own.values, less), 0.0), ""
    else:
        agrees = None if own.resolved_seeds else False
        rounding = own.seeds - own.resolved_seeds
        hidden = f" Its residual is not above rounding with {rounding} of {own.seeds} seeds."
    said = {"own": own, "mean over tokens": common, "chance": chance}
    lists = "; ".join(
        f"{weights} {', '.join(f'{one.mean:.2f}' for one in found.curve(REFIT, mode, weights))}"
        for weights in ("trained", "initial")
    )
    return Statement(
        source="ours",
        statement=f"Paths of length {found.longest} hold something that tells tokens apart and that a classifier of "
        f"their own can read, in the sense {mode}.",
        measured="Fresh linear classifier on the sum of all of that length: "
        + ", ".join(f"{words} {accuracy_text(mean_of(one.values))}" for words, one in said.items())
        + f".{hidden} By length: {lists}.",
        agrees=agrees,
    )


def _source(mode: Sense) -> Literal["reported", "ours"]:
    """The paper keeps paths in one sense; the other two are ours."""
    return "reported" if mode == "official" else "ours"


def _small(found: PathsFound) -> str:
    return "" if found.is_paper_size else " The size is not that of the paper, so that this is not judged."


def _sum_words(mode: Sense) -> str:
    return "All paths of the length" if SENSES[mode] == "all" else "Drawn paths"


def _of(own: Mean) -> str:
    return f"{accuracy_text(own)}, {seeds_text(own.count)}"


def notes(found: PathsFound) -> list[str]:
    """Sentences for the reader."""
    task = TASKS_OF[found.task]
    said = [
        "frozen: all paths of a length, exactly; lengths add up to the network (relative error "
        f"{number(found.identity.relative_error, 1)}). Attention maps are those of the full network, so every length "
        "profits from all others.",
        "isolated: the network run again along a path with everything else taken out. official: as in the published "
        "code, without the layers that a path skips and with a LayerNorm after every head. Both are judged by "
        f"{found.drawn} drawn paths, {found.repeats} times, and do not add up to the network.",
        f"Scored: {task.scored}, {found.examples} examples. Every seed has its own data and weights. Near the naive "
        f"line: within {NEAR:.0%} of the way from there to the full model.",
    ]
    if found.refit is not None:
        where = "the same examples" if found.refit.in_sample else "held-out examples"
        said.append(
            f"Fresh classifiers are ridge regressions fitted to {found.refit.examples} examples and scored on {where}; "
            "chance is one fitted to labels in random order, and the mean over tokens is what is left of a state once "
            "all tokens are equal. If one reads long paths well, the network failed to use them; that is no proof that "
            "training could use them."
        )
    said.append(f"Before training the full model has an accuracy of {accuracy_text(found.full('initial'))}.")
    return [*said, *task.notes]


# ------------------------------------------------------------------------------------------------------- picture

LOOKS: dict[tuple[Sense, Summed], tuple[int, Style]] = {
    ("frozen", "all"): (0, "solid"),
    ("frozen", "up_to"): (1, "dashed"),
    ("isolated", "drawn"): (2, "dotted"),
    ("official", "drawn"): (3, "solid"),
    ("isolated", "all"): (2, "dotted"),
    ("official", "all"): (3, "solid"),
}
"""Color and stroke of a line: a sense looks the same in every panel."""

WEIGHTS: dict[Weights, str] = {"trained": "After training", "initial": "Before training"}


def chart(found: PathsFound, _: Table) -> Chart:
    """Columns are the networks after and before training; rows accuracy, fresh classifiers, residual."""
    firsts = [side(found.accuracies(mode)[1], found.naive) for mode in found.senses]
    low, high = found.naive - found.margin, found.naive + found.margin
    lasts = [within(found.accuracies(mode)[-1], low, high) for mode in found.senses]
    seen = "what paths of each length achieve"
    if all(firsts):
        seen = "paths of one head beat a naive answer" + (", the longest do not" if all(lasts) else "")
    return _pictures(found, f"{TITLES[found.task]}: {seen}")


def effectiveness_chart(table: Table) -> Chart:
    """The picture of a table of ``rankscope.effectiveness``."""
    own = {name: table.sections[name] for name in Effectiveness.model_fields}
    return _pictures(Effectiveness.model_validate(own), "What paths of each length achieve")


def _pictures(found: Effectiveness, title: str) -> Chart:
    panels = [_accuracy_panel(found, weights, ACCURACY) for weights in WEIGHTS]
    if found.refit is not None:
        panels += [_accuracy_panel(found, weights, REFIT) for weights in WEIGHTS]
    panels += [_ratio_panel(found, weights) for weights in WEIGHTS]
    seeds = found.over_seeds[0].seeds
    notes = [
        f"Number of paths of length 0 to {found.lengths[-1].length}: "
        + ", ".join(f"{one.paths:,}" for one in found.lengths),
        f"Bands: 95% interval of the mean over {seeds} seeds of training"
        if seeds > 1
        else "One seed of training",
    ]
    if not all(one.resolved for one in found.over_seeds if one.definition in (REFIT, RATIO)):
        notes.append("Rings: not above the rounding floor")
    return Chart(panels, title=title, notes=notes)


def _accuracy_panel(found: Effectiveness, weights: Weights, definition: str) -> Panel:
    levels = {"full model": full_accuracy(found, weights).mean, **found.baselines}
    title = "accuracy of the paths of one length"
    if definition == REFIT:
        # Fitted classifiers beat guessing even on shuffled labels where they are scored on what they were fitted to.
        title = "accuracy of a fresh classifier on them"
        chances = [one.mean for one in found.over_seeds if (one.definition, one.weights) == (CHANCE, weights)]
        levels = {name: level for name, level in levels.items() if name != "naive"}
        levels["shuffled labels"] = sum(chances) / len(chances)
    last = found.lengths[-1].length
    lines = [
        Line(
            name=f"{name} {percent(level, 3)}",
            points=[Point(0, level), Point(last, level)],
            style="dashed",
            color=-1,
            dots=False,
        )
        for name, level in levels.items()
    ]
    return Panel(
        title=f"{WEIGHTS[weights]}: {title}",
        lines=[*lines, *_lines(found, weights, definition)],
        value="token accuracy",
        across="heads on the path",
        scale="linear",
        inside=(0.0, 1.0),
    )


def _ratio_panel(found: Effectiveness, weights: Weights) -> Panel:
    lines = _lines(found, weights, RATIO)
    ends = [point.y for line in lines for point in line.points if point.y is not None]
    return Panel(
        title=f"{WEIGHTS[weights]}: residual of the paths of one length",
        lines=lines,
        value="residual ratio, composite",
        across="heads on the path",
        inside=(min(ends), 0.0),
    )


def _lines(found: Effectiveness, weights: Weights, definition: str) -> list[Line]:
    lines = []
    for (mode, paths), (color, style) in LOOKS.items():
        # Fresh classifiers read all paths of a length; otherwise those sums are shown that statements are about.
        if (definition == REFIT) == (paths == "all") or mode == "frozen":
            own = curve(found, definition, mode, paths, weights)
            name = _name(mode, paths, own)
            dots = [_point(one, name) for one in own]
            lines += [Line(name=name, points=dots, style=style, color=color)] if own else []
    return lines


def _name(mode: Sense, paths: Summed, own: Sequence[SeedRows]) -> str:
    if paths == "drawn":
        return f"{mode}, {own[0].summed} drawn" if own else ""
    return f"{mode}, up to this length" if paths == "up_to" else mode


def _point(one: SeedRows, name: str) -> Point:
    """Residual ratios have geometric means, on a logarithmic axis; one that is zero has no place on it."""
    is_hollow = not one.resolved
    if one.definition != RATIO:
        mean = mean_of(one.values)
        low, high = (None if end is None else min(max(end, 0.0), 1.0) for end in (mean.low, mean.high))
        tip = f"{name}: {percent(mean.mean, 3)}" + _interval(low, high, partial(percent, digits=3))
        return Point(one.length, mean.mean, tip, low=low, high=high, hollow=is_hollow)
    if min(one.values) <= 0:
        return Point(one.length, None)
    mean = mean_of([math.log10(value) for value in one.values])
    low, high = mean.low, None if mean.high is None else min(mean.high, 0.0)
    said = "not above rounding" if is_hollow else f"{_power(mean.mean)}{_interval(low, high, _power)}"
    return Point(one.length, mean.mean, f"{name}: {said}", low=low, high=high, hollow=is_hollow)


def _power(log10: float) -> str:
    return power(log10 * LN10)


def _interval(low: float | None, high: float | None, said: Callable[[float], str]) -> str:
    return "" if low is None or high is None else f" ({said(low)} to {said(high)})"


# --------------------------------------------------------------------------------------------------- declarations

SEEDS: dict[Size, int] = {"fast": 3, "usual": 3, "full": 6}


def _sizes(
    name: Name, paths: Mapping[Size, EffectivenessConfig], usual: TaskConfig | None = None
) -> dict[Size, PathsEffectivenessConfig]:
    """The networks of the paper but at the size fast, and where ``usual`` names smaller ones."""
    task = TASKS_OF[name]
    paper: TaskConfig = task.configured("paper")
    training: dict[Size, TaskConfig] = {
        "fast": task.configured("fast"),
        "usual": paper if usual is None else usual,
        "full": paper,
    }
    return {
        size: PathsEffectivenessConfig(
            figure=f"paths-{name}",
            size=size,
            task=name,
            training=training[size],
            paths=own,
            seeds=tuple(range(SEEDS[size])),
        )
        for size, own in paths.items()
    }


def _declare(
    name: Name, durations: Mapping[Size, str], sizes: Mapping[Size, PathsEffectivenessConfig]
) -> None:
    source = TASKS_OF[name].source
    register(
        Figure(
            name=f"paths-{name}",
            title=f"accuracy of paths by their length, task {name}",
            source=Ref(
                key="dong2021",
                where=f"Section 4.2, path effectiveness, {source.where.rpartition(', ')[2]}",
                differs="three senses of a path beside each other, intervals over seeds, "
                "fresh classifiers; " + source.differs,
            ),
            question="Do short paths alone solve the task, and are long ones collapsed, or only not read?",
            durations=durations,
            sizes=sizes,
            found=PathsFound,
            compute=compute,
            points=points,
            chart=chart,
            notes=notes,
        )
    )


_declare(
    "memorize",
    {
        "fast": "a minute",
        "usual": "minutes",
        "full": "hours",
    },
    _sizes(
        "memorize",
        {
            "fast": EffectivenessConfig(examples=20, refit=40, repeats=3, singles=False),
            "usual": EffectivenessConfig(examples=20, refit=88, singles=False),
            # All paths of a length would take hours with 250 channels and 128 tokens.
            "full": EffectivenessConfig(examples=16, refit=88, most_paths=0),
        },
        usual=MEMORIZE.configured("paper", dim=96, length=64, sequences=100, epochs=60),
    ),
)
_declare(
    "sort",
    {
        "fast": "seconds",
        "usual": "minutes",
        "full": "minutes",
    },
    _sizes(
        "sort",
        {
            "fast": EffectivenessConfig(examples=60, refit=100, repeats=3),
            "usual": EffectivenessConfig(),
            "full": EffectivenessConfig(repeats=20, refit=500),
        },
    ),
)
_declare(
    "hull",
    {
        "fast": "seconds",
        "usual": "minutes",
        "full": "an hour",
    },
    _sizes(
        "hull",
        {
            "fast": EffectivenessConfig(examples=40, refit=100, repeats=3),
            "usual": EffectivenessConfig(examples=100, refit=100, singles=False),
            "full": EffectivenessConfig(repeats=20, refit=300),
        },
    ),
)
