"""What the figures of path effectiveness say: published against measured, sense by sense, and notes for the reader."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.paths_effectiveness_curves import (
    CHANCE,
    COMMON,
    NEAR,
    RATIO,
    REFIT,
    SENSES,
    Curves,
    above,
    difference,
    falls,
    lifted,
    near,
    told_apart,
)
from rankscope.papers.figures.statistics import Mean, mean_of
from rankscope.papers.tasks.effectiveness import EffectivenessConfig
from rankscope.papers.tasks.task import Task

SINGLE_HEAD = {"memorize": 0.8, "sort": 0.6, "hull": 0.65}
"""Accuracy that paths of one head are reported to exceed."""

SAME = 0.005
"""Published accuracies have two digits."""

SMALL = " The size is not that of the paper, so that this is not judged."


def verdict(curves: Curves, task: Task[Any]) -> list[Point]:
    """Published statements, the same in the senses that the paper does not have, and what fresh classifiers find."""
    points = [_full(curves, task), _naive(curves, task)]
    if "official" in curves.senses:
        points.append(_single_head(curves, task))
    points += [_short(curves, mode) for mode in _official_first(curves.senses)]
    points += [_long(curves, mode) for mode in _official_first(curves.senses)]
    main = _official_first(curves.senses)[0]
    points += [_decay(curves, main), _no_heads(curves, main)]
    points += [_residuals(curves, mode) for mode in curves.senses if mode != "official"]
    readable = [mode for mode in curves.senses if ("trained", mode, "all", REFIT) in curves.values]
    return points + [_readable(curves, mode) for mode in readable]


def _official_first(senses: Sequence[str]) -> list[str]:
    return sorted(senses, key=lambda mode: mode != "official")


def _full(curves: Curves, task: Task[Any]) -> Point:
    """By the interval over seeds, from the least number that rounds to the published one."""
    published, found = task.published["full model"], mean_of(curves.full["trained"])
    more = " That is more than the published network has." if above(found, published + SAME) else ""
    return Point(
        source="reported",
        statement=f"The full model has a token accuracy of at least {published:g}, the published one.",
        measured=f"{_over_seeds(found).capitalize()}: {_share(found)}.{more}{_small(curves)}",
        agrees=above(found, published - SAME) if curves.is_paper_size else None,
    )


def _naive(curves: Curves, task: Task[Any]) -> Point:
    published = task.published["naive"]
    others = ", ".join(f"{name} {value:.3g}" for name, value in curves.lines.items() if name != "naive")
    return Point(
        source="reported",
        statement=f"A naive answer has an accuracy of {published:g}.",
        measured=f"By calculation {curves.naive:.3g}{f'; other lines: {others}' if others else ''}.{_small(curves)}",
        agrees=abs(published - curves.naive) <= SAME if curves.is_paper_size else None,
    )


def _single_head(curves: Curves, task: Task[Any]) -> Point:
    level = SINGLE_HEAD[task.name]
    found = {mode: mean_of(curves.accuracy(mode)[1]) for mode in curves.senses}
    return Point(
        source="reported",
        statement=f"Paths of length 1 exceed an accuracy of {level:g} (judged in the sense official, as published).",
        measured=f"Mean over seeds, with its 95% interval where there are several: {_told(found)}.{_small(curves)}",
        agrees=above(found["official"], level) if curves.is_paper_size else None,
    )


def _short(curves: Curves, mode: str) -> Point:
    found = mean_of(curves.accuracy(mode)[1])
    return Point(
        source=_source(mode),
        statement=f"Paths of length 1 are clearly above the naive line, in the sense {mode}.",
        measured=f"{_summed(mode)}, {_over_seeds(found)}: {_share(found)}; naive {curves.naive:.3g}.",
        agrees=above(found, curves.naive),
    )


def _long(curves: Curves, mode: str) -> Point:
    found = mean_of(curves.accuracy(mode)[-1])
    judged = near(found, curves.naive, curves.margin)
    where = " It lies below that." if found.mean < curves.naive else " It lies above that."
    return Point(
        source=_source(mode),
        statement=f"Paths of length {curves.longest} are near the naive line, in the sense {mode}.",
        measured=f"{_summed(mode)}, {_over_seeds(found)}: {_share(found)}; near is "
        f"{curves.naive - curves.margin:.3g} to {curves.naive + curves.margin:.3g}.{where if judged is False else ''}",
        agrees=judged,
    )


def _decay(curves: Curves, main: str) -> Point:
    means = "; ".join(f"{mode} {_listed(curves.means(mode)[1:])}" for mode in curves.senses)
    return Point(
        source="reported",
        statement=f"From length 1 on accuracy falls with length (judged in the sense {main}).",
        measured=f"Means over seeds, lengths 1 to {curves.longest}: {means}. Rises between "
        "values that are both near the naive line do not count.",
        agrees=falls(curves.accuracy(main)[1:], curves.naive, curves.margin),
    )


def _no_heads(curves: Curves, main: str) -> Point:
    found = {mode: difference(curves.accuracy(mode)[0], curves.accuracy(mode)[1]) for mode in curves.senses}
    lower = above(found[main], 0.0)
    means = ", ".join(f"{mode} {curves.means(mode)[0]:.3g}" for mode in curves.senses)
    told = ", ".join(f"{mode} {one.text()}" for mode, one in found.items())
    return Point(
        source="reported",
        statement=f"Without any head accuracy is lower than with one (judged in the sense {main}).",
        measured=f"Length 0: {means}; length 0 minus length 1: {told}.",
        agrees=None if lower is None else not lower,
    )


def _residuals(curves: Curves, mode: str) -> Point:
    found = lifted(curves, mode)
    kind = SENSES[mode]
    told = "; ".join(
        f"{weights} {_ratios(curves, (weights, mode, kind, RATIO))}" for weights in ("initial", "trained")
    )
    return Point(
        source="ours",
        statement=f"Training makes paths of two and more heads keep more of their residual, in the sense {mode}.",
        measured=f"Residual ratio, means over seeds, lengths 0 to {curves.longest}: {told}.",
        agrees=decided(list(found.values())),
    )


def _readable(curves: Curves, mode: str) -> Point:
    names = {"own": REFIT, "mean over tokens": COMMON, "chance": CHANCE}
    last = {words: mean_of(curves.values["trained", mode, "all", name][-1]) for words, name in names.items()}
    known = curves.resolved["trained", mode, "all", REFIT][-1]
    hidden = (
        ""
        if all(known)
        else f" Its residual is not above rounding with {known.count(False)} of {len(known)} seeds."
    )
    lists = "; ".join(
        f"{weights} {_listed([mean_of(one).mean for one in curves.values[weights, mode, 'all', REFIT]])}"
        for weights in ("trained", "initial")
    )
    return Point(
        source="ours",
        statement=f"Paths of length {curves.longest} hold something that tells tokens apart and that a classifier of "
        f"their own can read, in the sense {mode}.",
        measured=f"Fresh linear classifier on the sum of all of that length: {_told(last)}.{hidden} By length: "
        f"{lists}.",
        agrees=told_apart(curves, mode),
    )


def notes(curves: Curves, task: Task[Any], paths: EffectivenessConfig, found: Mapping[str, Any]) -> list[str]:
    """Sentences for the reader."""
    most = max(paths.draws, default=0)
    said = [
        "frozen: all paths of a length, exactly; lengths add up to the network (relative error "
        f"{found['identity']:.0e}). The maps are those of the full network, so that every length profits from all "
        "others.",
        "isolated: the network run again along a path with everything else taken out. official: as the published code "
        "does it, without the layers that a path skips and with a LayerNorm after every head. Both are judged by "
        f"{most} drawn paths, {paths.repeats} times, and do not add up to the network.",
        f"Scored: {task.scored}, {found['examples']} examples. Intervals are 95% of the mean over seeds of training, "
        "each with data and weights of its own.",
        f"Near the naive line: within {NEAR:.0%} of the way from there to the full model.",
    ]
    if found["refit"] is not None:
        where = "the same examples" if found["refit"]["in_sample"] else "held-out examples"
        said.append(
            f"Fresh classifiers are ridge regressions fitted to {found['refit']['examples']} examples and scored on "
            f"{where}; chance is one fitted to labels in random order, and the mean over tokens is what is left of a "
            "state once all tokens are equal. One that reads long paths well says that they failed to be used, not "
            "that they cannot be; it is no proof that training could use them."
        )
    if any(len(values) > 1 for values in curves.full.values()):
        initial = mean_of(curves.full["initial"])
        said.append(f"Before training the full model has an accuracy of {_share(initial)}.")
    return [*said, *task.notes]


def _source(mode: str) -> Any:
    """The paper keeps paths in one sense; the other two are ours."""
    return "reported" if mode == "official" else "ours"


def _small(curves: Curves) -> str:
    return "" if curves.is_paper_size else SMALL


def _summed(mode: str) -> str:
    return "All paths of the length" if SENSES[mode] == "all" else "Drawn paths"


def _over_seeds(found: Mean) -> str:
    if found.count < 2:
        return "one seed, which is too few for an interval"
    return f"mean over {found.count} seeds with its 95% interval"


def _told(found: Mapping[str, Mean]) -> str:
    return ", ".join(f"{name} {_share(one)}" for name, one in found.items())


def _share(found: Mean) -> str:
    """An accuracy with an interval that ends at 0 and 1 as accuracies do."""
    if found.low is None or found.high is None:
        return found.text()
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0)).text()


def _listed(means: Sequence[float]) -> str:
    return ", ".join(f"{mean:.2f}" for mean in means)


def _ratios(curves: Curves, key: tuple[str, str, str, str]) -> str:
    means = [mean_of(values).mean for values in curves.values[key]]
    return ", ".join(
        f"{mean:.1e}" if all(known) else "rounding"
        for mean, known in zip(means, curves.resolved[key], strict=True)
    )
