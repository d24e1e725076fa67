"""``dong-bert``, ``dong-albert``, ``dong-xlnet``: residual ratio per layer with and without skips and MLPs.

What is computed stands in ``dong_curves``; here is what is said of it and how it is drawn. The three figures differ in
their subject alone.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.refs import Ref
from rankscope.core.words import count, listed, number, power, ranges
from rankscope.findings.blocks import LN10
from rankscope.papers.figures.dong_curves import (
    FALLING,
    REPEATS,
    SUBJECTS,
    TOKENS,
    VARIANTS,
    DongFound,
    DongResidualConfig,
    Weights,
    compute,
)
from rankscope.papers.figures.figure import Figure, Statement, all_or_none, register
from rankscope.papers.figures.statistics import Mean, all_within, first_below, mean_of, side, within
from rankscope.results import Table

FEWEST = 3
"""Fewer draws, or texts, do not tell whether something holds for all of them."""

SOON = 0.02
"""Published BERT is below it after one layer of attention."""

GONE = 0.01
"""Tokens of a ratio below it count as collapsed."""

ORDER_ONE = (0.3, 1.0)
"""Between these the published curves of untrained BERT with skips stay."""

APART = 0.1
"""A level of ours, where none is published: tokens of a ratio above it are apart."""

NEAR, FAR = 1.25, 2.0
"""Largest quotient of ours and theirs. Untrained: each published curve is one draw, single draws scatter by up to 8% in
a layer, and three times that is about a fourth. Trained: the weights are the same, the texts are not, and where the
ratio falls the published spread over texts is as large as the mean."""

ORDER = (2.9, 3.1)
"""``log r`` of a layer over that of the layer before, where a layer cubes the residual."""

EVEN = 1.25
"""Decades per layer count as even if those of the last layers and of the ones before differ by no more than this."""

SHOWN = (0, 1, 2, 6, 12)
"""Layers whose numbers statements write out."""

WITH_SKIPS = ("san+skip", "transformer")


# ---------------------------------------------------------------------------------------------------- statements


def points(found: DongFound) -> list[Statement]:
    """Point by point where values are known, else by shape."""
    has_published = bool(found.published)
    said = [published_point(found, name) for name in VARIANTS if has_published]
    said += [soon_point(found), mlp_point(found), skip_point(found), repeats_point(found)]
    said += [order_point(found)] if found.log10("san") is not None else []
    if found.has("trained"):
        if has_published and found.setting.is_paper:
            said += [trained_published_point(found, name) for name in VARIANTS]
        said += [later_point(found), trained_mlp_point(found), trained_skip_point(found)]
    return said


def published_point(found: DongFound, variant: str) -> Statement:
    """Agrees if values that count are within ``NEAR`` by intervals, and every draw is at rounding where theirs is.

    Disagrees if a value is outside, by intervals that hold for all layers at once, or no draw comes down to rounding.
    """
    ours, theirs, floor = found.each(variant), np.asarray(found.theirs(variant)), _floor_of(found, variant)
    judged, below = np.flatnonzero(theirs > floor).tolist(), np.flatnonzero(theirs <= floor).tolist()
    logs = np.log(ours / theirs)
    at = max(judged, key=lambda layer: abs(logs[:, layer].mean()))
    limits = [(-math.log(NEAR), math.log(NEAR))] * len(judged)
    values = all_within([logs[:, layer].tolist() for layer in judged], limits)
    down = [bool((curve[below] < floor[below]).all()) for curve in ours]
    measured = (
        f"{_at_layers(ours.mean(axis=0), floor)}, mean over {count(len(ours), 'draw')}. Largest quotient: "
        f"{_quotient(logs[:, at])} at layer {at} (allowed {NEAR:g}, as theirs is one draw)."
    )
    if below:
        measured += (
            f" Theirs is below the floor of float32 at layers {ranges(below)}; so is ours in {sum(down)} of "
            f"{count(len(down), 'draw')}."
        )
    return Statement(
        source="reported",
        statement=f"{found.setting.label}, untrained, {variant}: {_at_layers(theirs)} at layers "
        f"{_layers_shown(theirs)} (read from the figure).",
        measured=measured,
        agrees=_both(values, _unanimous(down) if below else True),
    )


def soon_point(found: DongFound) -> Statement:
    """By the interval over draws."""
    san = found.each("san")
    after, is_known = mean_of(san[:, 1].tolist()), bool(found.published)
    return Statement(
        source="reported" if is_known else "ours",
        statement=f"{found.setting.label}, untrained: attention alone is below {SOON} after one layer"
        + ("." if is_known else ", as is reported of BERT."),
        measured=f"{after.text()} after layer 1, from {number(san[:, 0].mean())}; below {SOON} in "
        f"{int((san[:, 1] < SOON).sum())} of {count(len(san), 'draw')}.",
        agrees=within(after, -math.inf, SOON),
    )


def mlp_point(found: DongFound) -> Statement:
    """Agrees if in every draw the ratio with MLPs reaches the floor of float32, at most a layer later than without."""
    ends = {
        name: [first_below((one / _floor_of(found, name)).tolist(), 1.0) for one in found.each(name)]
        for name in FALLING
    }
    return Statement(
        source="reported",
        statement=f"{found.setting.label}, untrained: an MLP without attention skips does not help.",
        measured=f"First layer below the floor of float32: {_ends_text(ends)}, {_draws(found)}.",
        agrees=_no_help(ends),
    )


def skip_point(found: DongFound) -> Statement:
    """By intervals over draws of the least and of the greatest value of any layer."""
    is_known = bool(found.published)
    low, high = ORDER_ONE if is_known else (APART, math.inf)
    said, checks = list[str](), list[bool | None]()
    for name in WITH_SKIPS:
        curves = found.each(name)
        least, most = (mean_of(ends.tolist()) for ends in (curves.min(axis=1), curves.max(axis=1)))
        checks.append(_both(within(least, low, high), within(most, low, high)))
        said.append(f"{name} {least.text()} and {most.text()}")
    between = f"between {low:g} and {high:g}" if is_known else f"above {low:g}, a level of ours"
    return Statement(
        source="reported" if is_known else "ours",
        statement=f"{found.setting.label}, untrained: with skips the ratio stays {between}.",
        measured=f"Least and greatest value of any layer, mean over {_draws(found)}: {'; '.join(said)}.",
        agrees=all_or_none(checks),
    )


def repeats_point(found: DongFound) -> Statement:
    """Holds if by intervals over draws half and double R move attention alone after layer 1 as they should.

    That is by ``power`` of the subject, up to a factor ``NEAR``.
    """
    exponent, every = found.setting.subject.power, found.at_repeats("san")
    own = next(one for one in every if one.repeats == REPEATS)
    others = [one for one in every if one is not own]
    after = [np.log(np.asarray(one.each)[:, 1] / np.asarray(own.each)[:, 1]) for one in others]
    expected = [exponent * math.log(one.repeats / own.repeats) for one in others]
    limits = [(log - math.log(NEAR), log + math.log(NEAR)) for log in expected]
    rule = (
        f"goes as R^{exponent:g} within a factor of {NEAR:g}, because the mean token alone sets the scale"
        if exponent
        else f"is within a factor of {NEAR:g} of what it is there"
    )
    theirs = found.theirs("san")
    values = "; ".join(f"R = {one.repeats:g}: {one.layers[1].text()}" for one in every)
    quotients = [f"{_quotient(logs)} at R = {one.repeats:g}" for one, logs in zip(others, after, strict=True)]
    return Statement(
        source="ours",
        statement=f"{found.setting.label}, untrained: how often tokens repeat matters{'' if exponent else ' little'}. "
        f"With half and with double the R of English, attention alone after layer 1 {rule}.",
        measured=f"{values}. Quotients: {listed(quotients)}."
        + (f" Published, on texts of an R that is not known: {number(theirs[1])}." if theirs else ""),
        agrees=all_within([logs.tolist() for logs in after], limits),
    )


def order_point(found: DongFound) -> Statement:
    """Cubes, or a steady factor, as ``falls`` of the subject says; by intervals over draws."""
    curve = found.log10("san")
    if curve is None:
        raise ValueError("the split pass was not run")
    orders = mean_of((curve[:, -1] / curve[:, -2]).tolist())
    if found.setting.subject.falls == "cubic":
        return Statement(
            source="ours",
            statement="Attention alone loses rank doubly exponentially: a layer cubes the residual. Theorem 2.3 of the "
            "paper, to which this is compared, is an upper bound that cubes it; it does not say that it is reached.",
            measured=f"By the split pass, log r of the last layer over the one before: {orders.text()}; the last ratio "
            f"is {power(LN10 * curve[:, -1].mean())}.",
            agrees=within(orders, *ORDER),
        )
    falls = np.diff(curve, axis=1)
    half = falls.shape[1] // 2
    late, early = falls[:, half:].mean(axis=1), falls[:, 1:half].mean(axis=1)
    return Statement(
        source="ours",
        statement=f"The attention of {found.setting.label} alone falls by a steady factor per layer, not doubly "
        "exponentially: its logits depend on relative positions, so that attention tells tokens apart even where they "
        "are equal.",
        measured=f"By the split pass, factor per layer over the last half {mean_of((10**late).tolist()).text()}, over "
        f"the layers before {mean_of((10**early).tolist()).text()}; order of the last layer {orders.text()}.",
        agrees=within(mean_of((late / early).tolist()), 1 / EVEN, EVEN),
    )


def trained_published_point(found: DongFound, variant: str) -> Statement:
    """Agrees if by intervals over texts no value above ``GONE`` is off by more than ``FAR``, and the others are small.

    Disagrees if one of them is, by intervals that hold for all layers at once.
    """
    ours, theirs = found.each(variant, "trained"), np.asarray(found.theirs(variant, "trained"))
    quotients = ours.mean(axis=0) / theirs
    at = max(np.flatnonzero(theirs > GONE).tolist(), key=lambda layer: abs(math.log(quotients[layer])))
    limits = [
        (value / FAR, FAR * value) if value > GONE else (-math.inf, FAR * GONE) for value in theirs.tolist()
    ]
    return Statement(
        source="reported",
        statement=f"{found.setting.label}, trained, {variant}: {_at_layers(theirs)} at layers "
        f"{_layers_shown(theirs)} (read from the figure).",
        measured=f"{_at_layers(ours.mean(axis=0), _floor_of(found, variant, 'trained'))}, mean over "
        f"{count(len(ours), 'text')}, which are others. Largest quotient where theirs is above {GONE}: "
        f"{number(quotients[at])} at layer {at} (allowed {FAR:g}).",
        agrees=all_within(ours.T.tolist(), limits),
    )


def later_point(found: DongFound) -> Statement:
    """Agrees if on every text trained attention falls below the level for good, but after every untrained draw."""
    ends, drawn = _first_layers_below(found, "san", "trained"), _first_layers_below(found, "san")
    later = [at is not None and all(one is not None and one < at for one in drawn) for at in ends]
    return Statement(
        source="reported",
        statement=f"{_trained_name(found)}: attention alone collapses, some layers later than untrained.",
        measured=f"First layer below {GONE} for good: trained {_layers_text(ends)}, {count(len(ends), 'text')}; "
        f"untrained {_layers_text(drawn)}, {_draws(found)}.",
        agrees=_unanimous(later) if len(drawn) >= FEWEST else None,
    )


def trained_mlp_point(found: DongFound) -> Statement:
    """The rule of ``mlp_point``, text by text and down to the level."""
    ends = {name: _first_layers_below(found, name, "trained") for name in FALLING}
    return Statement(
        source="reported",
        statement=f"{_trained_name(found)}: an MLP without attention skips does not help.",
        measured=f"First layer below {GONE} for good: {_ends_text(ends)}, {count(len(ends['san']), 'text')}.",
        agrees=_no_help(ends),
    )


def trained_skip_point(found: DongFound) -> Statement:
    """By the interval over texts of the least value of the whole model."""
    least = {name: mean_of(found.each(name, "trained").min(axis=1).tolist()) for name in WITH_SKIPS}
    end, theirs = found.each("san+skip", "trained")[:, -1].mean(), found.theirs("san+skip", "trained")
    known = f" (published for san+skip of BERT: {number(theirs[-1], 2)})" if theirs else ""
    return Statement(
        source="reported",
        statement=f"{_trained_name(found)}: the whole model keeps its tokens apart.",
        measured=f"Least value of any layer, {count(found.each('san', 'trained').shape[0], 'text')} (apart: above "
        f"{APART}, a level of ours): transformer {least['transformer'].text()}; san+skip {least['san+skip'].text()}, "
        f"at the end {number(end)}{known}.",
        agrees=side(least["transformer"], APART),
    )


def _floor_of(found: DongFound, variant: str, weights: Weights = "initial") -> np.ndarray:
    return np.asarray(found.floor[: len(found.curve(variant, weights).layers)])


def _first_layers_below(found: DongFound, variant: str, weights: Weights = "initial") -> list[int | None]:
    """For every draw, or text, the first layer below ``GONE`` for good."""
    return [first_below(curve, GONE) for curve in found.curve(variant, weights).each]


def _no_help(ends: Mapping[str, Sequence[int | None]]) -> bool | None:
    """Whether MLPs delay the end by a layer at most, in every draw: a layer more or less is a matter of the draw."""
    checks = list[bool | None]()
    for alone, with_mlp in zip(ends["san"], ends["san+mlp"], strict=True):
        if alone is None and with_mlp is None:  # neither comes down: there is no help to judge
            checks.append(None)
        else:
            checks.append(with_mlp is not None and (alone is None or with_mlp <= alone + 1))
    return _unanimous(checks)


def _unanimous(checks: Sequence[bool | None]) -> bool | None:
    """``all_or_none``, of three draws or texts and more."""
    return all_or_none(checks) if len(checks) >= FEWEST else None


def _both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both hold; one that fails is enough to fail."""
    if one is False or other is False:
        return False
    return True if one and other else None


def _draws(found: DongFound) -> str:
    return count(len(found.each("san")), "draw")


def _quotient(logs: np.ndarray) -> str:
    """``1.08 (95% interval 1.02 to 1.15)`` of the logarithms of quotients, one per draw."""
    mean = mean_of(logs.tolist())
    if mean.low is None or mean.high is None:
        return f"{math.exp(mean.mean):.2f}"
    return f"{math.exp(mean.mean):.2f} (95% interval {math.exp(mean.low):.2f} to {math.exp(mean.high):.2f})"


def _ends_text(ends: Mapping[str, Sequence[int | None]]) -> str:
    return "; ".join(f"{name} {_layers_text(at)}" for name, at in ends.items())


def _layers_text(ends: Sequence[int | None]) -> str:
    """``2``, ``1-2`` or ``never``."""
    seen = ranges(at for at in ends if at is not None)
    return ", or ".join(filter(None, [seen, "never" if None in ends else ""]))


def _layers_shown(values: np.ndarray) -> str:
    return listed([str(layer) for layer in SHOWN if layer < len(values)])


def _at_layers(values: np.ndarray, floor: np.ndarray | None = None) -> str:
    """Values at some layers; those below a floor are called rounding."""
    return ", ".join(
        "rounding" if floor is not None and values[layer] < floor[layer] else number(values[layer], 3)
        for layer in SHOWN
        if layer < len(values)
    )


def _trained_name(found: DongFound) -> str:
    setting = found.setting
    other = "" if setting.is_paper else f" (shape alone, on another model: {setting.trained})"
    return f"{setting.label}, trained{other}"


def notes(found: DongFound) -> list[str]:
    """Sentences for the reader."""
    setting, subject = found.setting, found.setting.subject
    own = next(one for one in found.repeats if one.repeats == REPEATS)
    said = [
        f"{subject.hub[0]} from a bare config, weights drawn as transformers draws them, evaluation mode, float32, "
        f"{count(setting.texts, 'text')} of {setting.tokens} tokens, {_draws(found)}. A draw serves all four variants; "
        "in the paper each variant drew its own. Layer 0 is what enters the first block.",
        "Texts: what the first layers of an untrained model see of a text is R, the sum of the squared counts of its "
        f"tokens over their number. Ids are drawn with R = {REPEATS:g} on average (drawn: {number(own.drawn)}), which "
        f"is that of the bundled English sample in runs of {TOKENS} word pieces of MiniLM; it was measured on text and "
        "chosen by no curve. The paper's biographies are not at hand; their R is not known.",
        "san is attention alone, san+mlp and san+skip have MLPs or skips back, transformer both. Variants as in the "
        "official code: norms are always kept; without skips only those of attention are gone; without MLPs "
        f"{subject.without_mlp}.",
        "The published code measures in float32 too, which lifts the plateau of rounding; statements compare such "
        "numbers (column official_value), the column value is measured in float64.",
    ]
    true = f"'rankscope ablate {subject.hub[0]} --semantics paper' runs the checkpoint of the paper"
    if setting.trained is None:
        said.append(
            f"Trained weights: none at hand. {true}; once it is in the local cache, this figure shows it."
        )
    elif not setting.is_paper:
        said.append(
            f"Trained weights: those of {subject.hub[0]} are not in the local cache. Shown is another model, "
            f"{setting.trained}: published numbers do not apply to it, only the shape. {true}; once it is cached, so "
            "does this figure."
        )
    return said


# ------------------------------------------------------------------------------------------------------- picture

DEEPEST = -24.0
"""Decades at which the axes of the picture end: where a layer cubes the residual, the next point is at 1e-60."""


def chart(found: DongFound, table: Table) -> Chart:
    """Above as the paper draws it, below with a logarithmic axis; untrained weights, and trained ones beside them."""
    weighed: tuple[Weights, ...] = ("initial", "trained")
    shown = [weights for weights in weighed if found.has(weights)]
    draws, setting = len(found.each("san")), found.setting
    said = [
        f"composite norm of the residual over that of the tokens, mean over texts of {setting.tokens} tokens",
        f"bands: 95% interval of the mean over {draws} draws" if draws > 1 else "one draw of the weights",
    ]
    if found.published:
        said.append("dashed with rings: published")
    if found.split:
        said.append(
            "dotted: the residual itself, by the split pass, geometric mean over the first texts, as far as the axis"
        )
    said.append(f"shaded: below the rounding floor of float32; collapsed: below {GONE} for good")
    return Chart(
        [_linear(found, weights) for weights in shown] + [_logarithmic(found, weights) for weights in shown],
        title=title_of(found),
        notes=said,
    )


def title_of(found: DongFound) -> str:
    """What is seen of untrained weights, as far as it is true of every draw."""
    label = found.setting.label
    ends = {name: _first_layers_below(found, name) for name in FALLING}
    alone, both = ([at for at in ends[name] if at is not None] for name in FALLING)
    if len(alone) < len(ends["san"]) or max(alone) == 0:  # not in every draw, or already where it enters
        return f"{label} without skips, without MLPs, without either"
    has_both = len(both) == len(ends["san+mlp"]) and max(both) <= max(alone)
    said = (
        f"Attention of untrained {label} alone{' or with MLPs' if has_both else ''} collapses in "
        f"{count(max(alone), 'layer')}"
    )
    is_apart = all(bool((found.each(name) > APART).all()) for name in WITH_SKIPS)
    return f"{said}; skips keep the tokens apart" if is_apart else said


def _panel_title(found: DongFound, weights: Weights) -> str:
    setting = found.setting
    if weights == "initial":
        return f"{setting.label}, untrained"
    return f"{setting.label}, trained" if setting.is_paper else f"another model, trained: {setting.trained}"


def _linear(found: DongFound, weights: Weights) -> Panel:
    lines = list[Line]()
    for place, name in enumerate(VARIANTS):
        theirs = _theirs(found, name, weights)
        rings = [
            Point(layer, value, f"{name}, published: {number(value)}", hollow=True)
            for layer, value in enumerate(theirs)
        ]
        lines.append(Line(name="", points=rings, style="dashed", color=place))
        points = [
            Point(
                layer,
                one.mean,
                _tip(name, one),
                low=None if one.low is None else max(one.low, 0.0),
                high=one.high,
            )
            for layer, one in enumerate(found.curve(name, weights).layers)
        ]
        lines.append(Line(name=name, points=points, color=place))
    return Panel(
        title=_panel_title(found, weights),
        lines=lines,
        value="||res(X)|| / ||X||",
        scale="linear",
        inside=(0.0, 1.0),
    )


def _logarithmic(found: DongFound, weights: Weights) -> Panel:
    """The same on a logarithmic axis, with the floor of float32 and the split pass, which goes on below it."""
    layers = len(found.curve("san", weights).layers)
    floor = [Point(layer, math.log10(one)) for layer, one in enumerate(found.floor[:layers])]
    lines = [Line(name="floor of float32", points=floor, style="none", color=-1, dots=False, shade=True)]
    for place, name in enumerate(VARIANTS):
        theirs = _theirs(found, name, weights)
        rings = [
            Point(layer, math.log10(value), f"{name}, published: {number(value)}", hollow=True)
            for layer, value in enumerate(theirs)
            if value > 0
        ]
        lines.append(Line(name="", points=rings, style="dashed", color=place))
        split = found.log10(name, weights)
        if split is not None:
            lines.append(_split_line(name, place, split.mean(axis=0).tolist()))
        points = [_log_point(name, layer, one) for layer, one in enumerate(found.curve(name, weights).layers)]
        lines.append(Line(name=name, points=points, color=place))
    ends = [point.y for line in lines for point in line.points if point.y is not None]
    return Panel(
        title=f"{_panel_title(found, weights)}, logarithmic",
        lines=lines,
        value="||res(X)|| / ||X||",
        inside=(max(DEEPEST, min(ends)), 0.0),
    )


def _theirs(found: DongFound, variant: str, weights: Weights) -> list[float]:
    """Published curves stand beside those of the same model only."""
    return found.theirs(variant, weights) if weights == "initial" or found.setting.is_paper else []


def _tip(name: str, one: Mean) -> str:
    span = "" if one.low is None or one.high is None else f" ({number(one.low)} to {number(one.high)})"
    return f"{name}: {number(one.mean)}{span}"


def _log_point(name: str, layer: int, one: Mean) -> Point:
    """An interval may reach below zero, which has no logarithm: it is cut at a tenth of the mean."""
    if one.mean <= 0:
        return Point(layer, None)
    low = None if one.low is None else math.log10(max(one.low, one.mean / 10))
    high = None if one.high is None else math.log10(one.high)
    return Point(layer, math.log10(one.mean), _tip(name, one), low=low, high=high)


def _split_line(name: str, place: int, logs: Sequence[float]) -> Line:
    """Up to the first layer beyond the axis, which has a margin of a twentieth."""
    end = next((layer for layer, log in enumerate(logs) if log < 1.1 * DEEPEST), len(logs) - 1)
    said = [
        Point(layer, log, f"{name}, split pass: {power(LN10 * log)}")
        for layer, log in enumerate(logs[: end + 1])
    ]
    return Line(name="", points=said, style="dotted", color=place)


for _subject in SUBJECTS.values():
    _sizes = partial(DongResidualConfig, figure=_subject.figure)
    register(
        Figure(
            name=_subject.figure,
            title=f"residual per layer of {_subject.label} without skips, without MLPs, without either",
            source=Ref(
                key="dong2021",
                where=f"Section 4, relative residual per layer, panel of {_subject.label}",
                differs="drawn texts whose tokens repeat as those of English do in place of wiki_bio, several draws, "
                "the split pass below rounding",
            ),
            question="Do skips or MLPs keep a real architecture from collapsing?",
            durations={
                "fast": "seconds",
                "usual": "minutes",
                "full": "minutes",
            },
            sizes={
                "fast": _sizes(size="fast", texts=1, exact=1, split=("san",), seeds=(0,)),
                "usual": _sizes(size="usual", texts=32, exact=2, seeds=tuple(range(3))),
                "full": _sizes(size="full", texts=32, exact=8, seeds=tuple(range(12))),
            },
            found=DongFound,
            compute=compute,
            points=points,
            chart=chart,
            notes=notes,
        )
    )
