"""What chains of attention maps say about the statements, in words."""

import math
from collections.abc import Sequence

import numpy as np

from rankscope.papers.figures.chained_attention_found import MEAN, RANK_ONE, ROWS
from rankscope.papers.figures.chained_attention_rules import (
    Chains,
    does_fall,
    is_bounded,
    is_geometric,
    is_same,
    is_slower,
    linearity,
    pooled,
    slopes,
)
from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.statistics import mean_of, median_of
from rankscope.papers.figures.wording import listed, rate

ANSWERS = {True: "yes", False: "no", None: "in part, or not decided"}
NAMES = {"notebook": "notebook's order", "true": "true order"}


def verdict(found: Sequence[Chains]) -> list[Point]:
    """The points of the figure, in their order."""
    return [
        falls(found),
        geometric(found),
        same_order(found),
        explained(found),
        slower(found),
    ]


def _answer(checks: Sequence[bool | None]) -> str:
    return ANSWERS[decided(checks)]


def _by_seed(found: Sequence[Chains], one: Chains) -> list[Chains]:
    return [each for each in found if each.model == one.model and one.weights.startswith(each.weights)]


def falls(found: Sequence[Chains]) -> Point:
    told = []
    for one in pooled(found):
        for order, name in NAMES.items():
            checks = [does_fall(each.curves[order, RANK_ONE]) for each in _by_seed(found, one)]
            curves = one.curves[order, RANK_ONE]
            told.append(
                f"{one.name}, {name} {listed(_ends(curves))} at depths {_depths(curves)}, falls at every step: "
                f"{_answer(checks)}"
            )
    return Point(
        source="reported",
        statement="The distance of a product of attention maps to the best rank-one matrix falls with depth.",
        measured=f"Median over paths of the ratio: {'; '.join(told)}.",
        agrees=decided([does_fall(one.curves[order, RANK_ONE]) for one in found for order in NAMES]),
    )


def geometric(found: Sequence[Chains]) -> Point:
    told = []
    for one in pooled(found):
        for order, name in NAMES.items():
            checks = [is_geometric(each.curves[order, RANK_ONE]) for each in _by_seed(found, one)]
            curves = one.curves[order, RANK_ONE]
            told.append(
                f"{one.name}, {name} {rate(mean_of(slopes(curves)))}, R^2 of a line {linearity(curves):.4f}, "
                f"geometric: {_answer(checks)}"
            )
    return Point(
        source="reported",
        statement="It decays roughly geometrically in depth.",
        measured=f"Factor per layer, geometric mean over paths with its 95% interval: {'; '.join(told)}. Roughly "
        "geometric means: later layers take between half and twice as many decades as earlier ones, by intervals over "
        "paths.",
        agrees=decided([is_geometric(one.curves[order, RANK_ONE]) for one in found for order in NAMES]),
    )


def same_order(found: Sequence[Chains]) -> Point:
    """The notebook multiplies the first layer on the left; does it matter?"""
    told = []
    for one in pooled(found):
        off = one.curves["notebook", RANK_ONE] - one.curves["true", RANK_ONE]
        medians = [median_of(row.tolist()) for row in off]
        worst = max(medians, key=lambda each: abs(each.median))
        between = f" ({10**worst.low:.3g} to {10**worst.high:.3g})" if worst.is_enough else ""
        told.append(
            f"{one.name} {10**worst.median:.3g}{between} at depth {medians.index(worst) + 1}, "
            f"for a single path up to {10 ** float(np.abs(off).max()):.3g} either way"
        )
    return Point(
        source="ours",
        statement="The notebook multiplies in the reverse of the order in which tokens pass the layers; the picture is "
        "the same within a factor 2.",
        measured="Notebook's order over the true one, median over the same paths, at the depth where it is farthest "
        f"from 1 (95% interval): {'; '.join(told)}.",
        agrees=decided(
            [is_same(one.curves["notebook", RANK_ONE], one.curves["true", RANK_ONE]) for one in found]
        ),
    )


def explained(found: Sequence[Chains]) -> Point:
    """Against the product of Dobrushin coefficients, a theorem, and of typical gains, a guess."""
    told = []
    for one in pooled(found):
        measured = one.curves["true", ROWS]
        rates = {
            name: 10 ** float(logs[1:].mean()) if len(logs) > 1 else math.nan
            for name, logs in one.coefficients.items()
        }
        step = 10 ** float(np.diff(measured, axis=0).mean()) if len(measured) > 1 else math.nan
        told.append(
            f"{one.name}: measured {step:.3g}, typical gain {rates['typical']:.3g}, spectral norm "
            f"{rates['spectral']:.3g}, Dobrushin {rates['dobrushin']:.3g}"
        )
    holds = [is_bounded(one) for one in found]
    return Point(
        source="ours",
        statement="On every path the rows of the product differ from their mean by at most 2 (1 - 1/n) times the "
        "product of the Dobrushin coefficients of its maps.",
        measured="A theorem, calculated for these maps: no run can break it. Factor per layer from depth 1 to the "
        f"last, geometric mean over paths, true order, beside that of three coefficients of the maps: "
        f"{'; '.join(told)}.",
        agrees=decided(holds),
    )


def slower(found: Sequence[Chains]) -> Point:
    """Trained against initial, over the depths that both have."""
    initial = [one for one in found if one.weights == "initial"]
    trained = [one for one in found if one.weights == "trained"]
    statement = "Chains of trained maps fall more slowly than those of maps at initial weights."
    if not initial or not trained:
        return Point(
            source="ours", statement=statement, measured="No trained model is on this machine.", agrees=None
        )
    last = min(len(one.curves["true", MEAN]) for one in found)
    rates = {one.name: mean_of(slopes(one.curves["true", MEAN][:last])) for one in found}
    checks = [is_slower(rates[a.name], rates[b.name]) for a in trained for b in initial]
    told = "; ".join(
        f"{one.name} {rate(mean_of(slopes(one.curves['true', MEAN][:last])))}" for one in pooled(found)
    )
    return Point(
        source="ours",
        statement=statement,
        measured=f"Factor per layer of the ratio to the mean row, depths 1 to {last}, true order: {told}. The models "
        "differ in depth and width as well.",
        agrees=decided(checks),
    )


def _depths(curves: np.ndarray) -> str:
    return ", ".join(map(str, _places(len(curves))))


def _ends(curves: np.ndarray) -> list[float]:
    medians = np.median(curves, axis=1)
    return [float(medians[depth - 1]) for depth in _places(len(curves))]


def _places(last: int) -> list[int]:
    return sorted({1, max(last // 2, 1), last})


def notes(found: Sequence[Chains], *, paths: int, texts: int, tokens: int) -> list[str]:
    """What a reader must know."""
    read = "one text" if texts == 1 else f"one of {texts} texts"
    return [
        f"{paths} random paths per model, each through one head of every layer on {read} of {tokens} tokens. The chain "
        "of depth k has the maps of layers 1 to k, so the depths of one path are nested; the notebook draws anew at "
        "every depth, which is the same distribution. Intervals are over paths, given the maps; what is decided is "
        "decided for every seed. Rows with a start above 1 are chains that begin at a later layer.",
        "Maps are those of the whole network, skips and MLPs included (frozen), and of about equal strength in all "
        "layers; their products decay geometrically. Doubly exponential decay (Theorem 2.2) is that of a network "
        "without skips, whose maps lose their own differences on the way.",
        "Two distances, both over the composite norm of the product: to the best matrix of rank one (first singular "
        "pair, best in the Frobenius norm), as in the notebook, and to the mean row, which the theory speaks of. No "
        "constant row is nearer than the mean row by more than a factor 2. The first can exceed 1, as what is best in "
        "one norm need not be in another.",
        "Products are carried as the mean row plus the product of what the maps differ by from their mean rows. That "
        "is exact and has no floor but the rounding of the maps; the floor beside a number bounds its error.",
        *_plain_note(found),
        "Untrained BERT reads random tokens, trained models the bundled English texts. Typical gain: root mean square "
        "of |E v| over directions v, where E is what a map differs by from its mean row. Second eigenvalues of single "
        "maps are left out, as they do not bound those of a product.",
    ]


def _plain_note(found: Sequence[Chains]) -> list[str]:
    told = []
    for one in pooled(found):
        if one.plain is None:
            continue
        split = 10 ** one.curves["true", RANK_ONE][:, : one.plain.shape[1]]
        off = [
            depth
            for depth, (a, b) in enumerate(zip(one.plain, split, strict=True), start=1)
            if (abs(a / b - 1) > 0.1).any()
        ]
        where = f"off by more than 10% from depth {off[0]} on" if off else "right at every depth"
        told.append(f"{one.name}: {where}")
    if not told:
        return []
    return [f"Multiplied out in float64 and decomposed, the same ratios are: {'; '.join(told)}."]
