"""``wu-masks``: mu(X) against depth for four masks, with and without a norm, without a floor and in float32."""

from collections.abc import Sequence
from itertools import combinations
from typing import Literal

import numpy as np
import polars as pl
from scipy.special import digamma

from rankscope.charts import Chart, Panel
from rankscope.core.refs import Ref
from rankscope.core.words import count, listed, number, power
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.masks import parse_mask, slem_words
from rankscope.papers.figures.figure import Figure, Job, Statement, all_or_none, register
from rankscope.papers.figures.resting import (
    DIM,
    DRIFT,
    RANKS,
    SHEAR,
    STEADY,
    TOKENS,
    PushedState,
    RandomStarts,
    kept_cells,
    push_states,
    random_starts,
)
from rankscope.papers.figures.stacks import (
    CURVE_MEASURES,
    Shape,
    StackConfig,
    StackCurve,
    ValueKind,
    add_curve,
    cells,
    follow,
    recorded_layers,
    stacks,
)
from rankscope.papers.figures.statistics import (
    Mean,
    depths,
    late_order,
    late_slope,
    mean_of,
    shallower,
    share_text,
)
from rankscope.papers.figures.wu_curves import PANEL_NOTES, RATIO, depth_panel
from rankscope.results import Table
from rankscope.results.statistics import wilson
from rankscope.studies.rows import RowBuilder, definitions

NORMS = {"none": "no norm", "sphere": "unit sphere", "layer": "LayerNorm"}

LEVEL = -3.0
"""Collapse counts from here: the residual is a thousandth of the tokens."""

STILL = 1e-9
"""Decades per layer; less than this is the rounding of a fitted slope."""

FAR = 1e3
"""The residual must lie this much below what float32 shows before that is called rounding."""

LEVEL_RATIO = 3.0
"""A float32 curve is level if its medians over the two halves of its last quarter differ by no more than this."""

AT_REST = 1e-12
"""Largest entry of ``|step(x) - x|`` of a built state, in float64."""

UNMOVED = 1e-6
"""Decades by which the ratio of a built state may change within the steady layers; rounding grows to 1e-12 there."""

GONE = -6.0
"""Decades of a ratio below which the built states have collapsed without the norm."""

DEEPEST = -40.0
"""The axis ends here: the complete mask leaves it within a few layers, the causal one just reaches it."""


class WuMasksConfig(StackConfig):
    """Sizes of the stacks; value maps other than Gaussian run on the first ``other_seeds`` seeds alone."""

    figure: Literal["wu-masks"] = "wu-masks"
    other_seeds: int
    random_starts: int = 200
    random_steps: int = 4000
    pushes: int = 64
    push: float = 1e-6


# ------------------------------------------------------------------------------------------------ what is found


class MaskedNetworks(Value):
    """One kind of network over its seeds: the ratio is mu(X)/||X||_F, from the split pass unless float32 is named."""

    values: str
    norm: str
    mask: str
    seeds: int
    layers_to_thousandth: Mean | None
    """First layers from which on the ratio is below a thousandth, of the seeds that get there."""

    reached_thousandth: int
    log10_fall: Mean
    """Decades between the ratio at the last layer and that of the input."""

    log10_ratio_at_last_layer: Mean
    log10_rate_last_half: Mean | None
    """Decades per layer; null for the complete mask, which has an order in place of a rate."""

    order_last_layer: Mean | None
    """Logarithm of the ratio over that of the layer before, of the complete mask."""

    float32_log10_ratio_at_last_layer: Mean | None
    """Of the seeds in which it is not exactly zero."""

    float32_exactly_zero: int
    float32_log10_floor: float | None
    float32_log10_mu_at_last_layer: Mean | None
    """Of mu(X) itself, of the seeds in which it is not exactly zero."""

    float32_is_level: bool | None
    """Whether the float32 curve stands still at rounding; null if it is not there yet, see ``is_level``."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells the networks apart."""
        return self.values, self.norm, self.mask

    @property
    def falls(self) -> bool | None:
        """Whether the ratio is on its way to zero in the end, by 95% intervals; None where they do not tell.

        The complete mask by its order (above 2; at most 1 it does not fall), all others by decades per layer.
        """
        order, rate = self.order_last_layer, self.log10_rate_last_half
        if order is not None and order.low is not None and order.high is not None:
            return True if order.low > 2 else False if order.high <= 1 else None
        if rate is not None and rate.low is not None and rate.high is not None:
            return True if rate.high < -STILL else False if rate.low >= -STILL else None
        return None

    @property
    def speed(self) -> str:
        """The order of the complete mask, or the factor per layer, geometric mean over seeds."""
        if self.order_last_layer is not None:
            return f"{self.mask} order {self.order_last_layer.text()}"
        return f"{self.mask} {self.log10_rate_last_half.power(4)}" if self.log10_rate_last_half else self.mask


class Order(Value):
    """Two masks: in how many seeds the first collapses earlier, and lies lower in the end."""

    norm: str
    faster: str
    slower: str
    seeds: int
    earlier_below_thousandth: int
    lower_at_last_layer: int
    log10_gap_at_last_layer: Mean


class RestingStates(Value):
    """Built states that the sphere keeps at rest. By norm and rank, the log10 of their ratio over the layers."""

    ranks: tuple[int, ...]
    steady_layers: int
    """Layers up to which rounding has not moved them."""

    log10_ratio_at_start: tuple[float, ...]
    log10_ratio_when_steady: tuple[float, ...]
    """On the sphere, after ``steady_layers``."""

    log10_ratio_at_last_layer: dict[str, tuple[float, ...]]
    pushed: tuple[PushedState, ...]
    random_starts: RandomStarts


class WuMasksFound(Value):
    """What the curves say: every network, the order of masks, and the states that stay apart."""

    setting: Shape
    networks: tuple[MaskedNetworks, ...]
    order: tuple[Order, ...]
    in_order: dict[str, int]
    """By norm, seeds with complete before causal before both windows, by depth and at the last layer."""

    kept: RestingStates

    def network(self, values: str, norm: str, mask: str) -> MaskedNetworks:
        """One of the networks."""
        return next(one for one in self.networks if one.key == (values, norm, mask))

    def over_masks(self, values: str, norm: str) -> list[MaskedNetworks]:
        """The networks that differ by their masks alone, in the order of masks."""
        return [self.network(values, norm, mask) for mask in self.setting.masks]


# -------------------------------------------------------------------------------------------------- computation


def compute(config: WuMasksConfig, job: Job) -> tuple[Table, WuMasksFound]:
    """One row per network, seed, recorded layer and measure."""
    rows, done = RowBuilder(), 0
    parts: dict[tuple[str, str, str], list[StackCurve]] = {}
    plan = _plan(config)
    total = sum(len(work_seeds) * len(norms) for _, work_seeds, norms in plan) * len(config.shape.masks) + 1
    for values, work_seeds, norms in plan:
        for batch in stacks(config.shape, work_seeds, values):
            work = list(cells(batch, masks=config.shape.masks, norms=norms, values=values))
            for curve in follow(work, config.layers):
                add_curve(rows, curve)
                about = curve.cell.about
                key = (str(about["values"]), str(about["norm"]), str(about["mask"]))
                parts.setdefault(key, []).append(curve)
                done += len(batch.seeds)
                job.tell(done, total)
    built: dict[str, np.ndarray] = {}
    for curve in follow(kept_cells(config.layers), config.layers):
        add_curve(rows, curve)
        built[str(curve.cell.about["norm"])] = np.asarray(curve.log10_ratio)
    steps, seed = config.random_steps, config.seeds[0]
    ends = (
        push_states(config.pushes, config.push, steps, seed=seed),
        random_starts(config.random_starts, steps, seed=seed),
    )
    job.tell(total, total)
    curves = {
        key: np.concatenate([np.asarray(one.log10_ratio) for one in each], axis=1)
        for key, each in parts.items()
    }
    found = found_of(
        config.shape, [_network(*key, each) for key, each in parts.items()], curves, built, *ends
    )
    table = rows.table(
        config, command="reproduce", seeds=config.seeds, definitions=definitions(CURVE_MEASURES)
    )
    return table, found


def _plan(config: WuMasksConfig) -> list[tuple[ValueKind, tuple[int, ...], tuple[str, ...]]]:
    """Value maps, their seeds and norms. Behind a norm the small maps would be the Gaussian ones
    again; isometries are asked about with a norm."""
    few, norms = config.seeds[: config.other_seeds], tuple(NORMS)
    return [
        ("gaussian", config.seeds, norms),
        ("small", few, ("none",)),
        ("orthogonal", few, norms[1:]),
        ("identity", few, norms[1:]),
    ]


def _network(values: str, norm: str, mask: str, parts: Sequence[StackCurve]) -> MaskedNetworks:
    """All chunks of seeds of one network."""
    last = max(parts[0].ordinary)
    # ordinary[layer] holds mu(X) and the ratio, as CURVE_MEASURES names them
    single = [
        np.stack([np.asarray(one.ordinary[layer][1].value) for layer in sorted(one.ordinary)])
        for one in parts
    ]
    return network_of(
        (values, norm, mask),
        log10=np.concatenate([np.asarray(one.log10_ratio) for one in parts], axis=1),
        single=np.concatenate(single, axis=1),
        mu=np.concatenate([np.asarray(one.ordinary[last][0].value) for one in parts]),
        floor=float(parts[0].ordinary[last][1].floor.max()),  # it depends on the layer alone
    )


def network_of(
    key: tuple[str, str, str], *, log10: np.ndarray, single: np.ndarray, mu: np.ndarray, floor: float
) -> MaskedNetworks:
    """What is said of one network.

    ``log10`` is the ratio from the split pass, ``layers seeds``; ``single`` the ratio in float32, ``recorded seeds``,
    no logarithms because it may be exactly zero; ``mu`` and ``floor`` are those of float32 at the last layer.
    """
    reached = [depth for depth in depths(log10, LEVEL) if depth is not None]
    is_full = key[2] == "full"
    return MaskedNetworks(
        values=key[0],
        norm=key[1],
        mask=key[2],
        seeds=log10.shape[1],
        layers_to_thousandth=mean_of(reached) if reached else None,
        reached_thousandth=len(reached),
        log10_fall=mean_of((log10[-1] - log10[0]).tolist()),
        log10_ratio_at_last_layer=mean_of(log10[-1].tolist()),
        log10_rate_last_half=None if is_full else mean_of([late_slope(curve) for curve in log10.T]),
        order_last_layer=mean_of([late_order(curve) for curve in log10.T]) if is_full else None,
        float32_log10_ratio_at_last_layer=_geometric(single[-1]),
        float32_exactly_zero=int((single[-1] == 0).sum()),
        float32_log10_floor=float(np.log10(floor)) if floor > 0 else None,
        float32_log10_mu_at_last_layer=_geometric(mu),
        float32_is_level=is_level(log10, single, floor),
    )


def _geometric(values: np.ndarray) -> Mean | None:
    seen = [float(np.log10(value)) for value in values if value > 0]
    return mean_of(seen) if seen else None


def is_level(log10: np.ndarray, single: np.ndarray, floor: float) -> bool | None:
    """Whether the float32 curve stands still at rounding; None if it is not there yet.

    There: below its floor at the last layer in every seed, and over the last quarter of recorded layers the median
    of the split pass a thousand times below that of float32. Still: the medians over seeds and layers of the two
    halves of that quarter are within a factor of three, and not zero.
    """
    layers = recorded_layers(len(log10) - 1)
    last = max(2, len(layers) // 4)
    shown = np.median(single[-last:], axis=1)
    real = np.median(log10[list(layers[-last:])], axis=1)
    is_there = (single[-1] <= floor).all() and ((shown == 0) | (10**real < shown / FAR)).all()
    if not is_there:
        return None
    early, late = (float(np.median(half)) for half in np.array_split(single[-last:], 2))
    return early > 0 and 1 / LEVEL_RATIO <= late / early <= LEVEL_RATIO


def found_of(
    shape: Shape,
    networks: Sequence[MaskedNetworks],
    curves: dict[tuple[str, str, str], np.ndarray],
    built: dict[str, np.ndarray],
    ends: Sequence[PushedState],
    starts: RandomStarts,
) -> WuMasksFound:
    """What was found; ``curves`` are log10 of the ratio, ``layers seeds``, ``built`` the same of the built states."""
    gaussian = {norm: {mask: curves["gaussian", norm, mask] for mask in shape.masks} for norm in NORMS}
    steady = min(STEADY, shape.layers)
    return WuMasksFound(
        setting=shape,
        networks=tuple(networks),
        order=tuple(
            _order(norm, fast, slow, by_mask)
            for norm, by_mask in gaussian.items()
            for fast, slow in combinations(shape.masks, 2)
        ),
        in_order={norm: _in_order(by_mask) for norm, by_mask in gaussian.items()},
        kept=RestingStates(
            ranks=RANKS,
            steady_layers=steady,
            log10_ratio_at_start=tuple(built["sphere"][0].tolist()),
            log10_ratio_when_steady=tuple(built["sphere"][steady].tolist()),
            log10_ratio_at_last_layer={norm: tuple(log10[-1].tolist()) for norm, log10 in built.items()},
            pushed=tuple(ends),
            random_starts=starts,
        ),
    )


def _order(norm: str, fast: str, slow: str, curves: dict[str, np.ndarray]) -> Order:
    one, other = curves[fast], curves[slow]
    gaps = (other[-1] - one[-1]).tolist()
    return Order(
        norm=norm,
        faster=fast,
        slower=slow,
        seeds=len(gaps),
        earlier_below_thousandth=sum(map(shallower, depths(one, LEVEL), depths(other, LEVEL))),
        lower_at_last_layer=sum(gap > 0 for gap in gaps),
        log10_gap_at_last_layer=mean_of(gaps),
    )


def _in_order(curves: dict[str, np.ndarray]) -> int:
    """Seeds with complete before causal before both windows, by depth and at the last layer."""
    full, causal, *windows = curves
    reached = {mask: depths(log10, LEVEL) for mask, log10 in curves.items()}
    pairs = [(full, causal), *((causal, window) for window in windows)]
    return sum(
        all(
            shallower(reached[fast][seed], reached[slow][seed])
            and curves[fast][-1, seed] < curves[slow][-1, seed]
            for fast, slow in pairs
        )
        for seed in range(curves[full].shape[1])
    )


# --------------------------------------------------------------------------------------------------- statements


def points(found: WuMasksFound) -> list[Statement]:
    """Without a norm, by masks, with a norm alone, in float32, with isometries, and states that stay apart."""
    return [
        _pure(found),
        _order_statement(found),
        _norm_statement(found),
        _single(found),
        _isometries(found),
        _rest_statement(found.kept),
    ]


def _pure(found: WuMasksFound) -> Statement:
    networks = found.over_masks("gaussian", "none")
    return Statement(
        source="paper",
        statement="Attention alone: mu(X) falls with depth for every mask whose graph is quasi-strongly connected.",
        measured=f"mu/||X||_F after {found.setting.layers} layers over its start, without a norm, geometric mean over "
        f"seeds with its 95% interval: {'; '.join(f'{one.mask} {one.log10_fall.power()}' for one in networks)}.",
        agrees=all_or_none([_is_below_zero(one.log10_fall) for one in networks]),
    )


def _is_below_zero(fall: Mean) -> bool | None:
    if fall.low is None or fall.high is None:
        return None
    return True if fall.high < 0 else False if fall.low >= 0 else None


def _order_statement(found: WuMasksFound) -> Statement:
    """Agrees if all seeds keep the order and their number makes more than half of all networks likely."""
    networks = found.over_masks("gaussian", "none")
    seeds = networks[0].seeds
    counts = "; ".join(f"norm {norm} {share_text(count, seeds)}" for norm, count in found.in_order.items())
    return Statement(
        source="reported",
        statement="Order of masks: complete collapses fastest, then causal, the windows slowest.",
        measured=f"Seeds with this order, both in layers to 1e-3 and at layer {found.setting.layers}: {counts}. Layers "
        f"to 1e-3 without a norm, mean over seeds: {'; '.join(f'{one.mask} {_depth(one)}' for one in networks)}.",
        agrees=all_or_none([_keeps(count, seeds) for count in found.in_order.values()]),
    )


def _keeps(count: int, seeds: int) -> bool | None:
    low, high = wilson(count, seeds)
    if count == seeds and low > 0.5:
        return True
    return False if high < 0.5 else None


def _depth(one: MaskedNetworks) -> str:
    if one.layers_to_thousandth is None:
        return "not reached"
    partly = (
        "" if one.reached_thousandth == one.seeds else f" in {one.reached_thousandth} of {one.seeds} seeds"
    )
    return one.layers_to_thousandth.text() + partly


def _norm_statement(found: WuMasksFound) -> Statement:
    """Refuted where the ratio goes on falling for every mask with either norm, by intervals over seeds."""
    shape = found.setting
    falls = all_or_none(
        [one.falls for norm in ("sphere", "layer") for one in found.over_masks("gaussian", norm)]
    )
    start = {
        True: "Not here: mu/||X||_F goes on falling with either norm and every mask",
        False: "So it is here: with either norm mu/||X||_F falls for no mask",
        None: "Not decided for every mask",
    }[falls]
    speeds = "; ".join(
        f"norm {norm}: {', '.join(one.speed + _forecast(one, shape) for one in found.over_masks('gaussian', norm))}"
        for norm in ("sphere", "layer")
    )
    return Statement(
        source="reported",
        statement="LayerNorm alone keeps mu(X) from going to 0 at random value maps.",
        measured=f"{start} (one head, Gaussian tokens and weights, no skips, no MLPs). Factor per layer over the last "
        f"half, geometric mean with its 95% interval, for the complete mask the order: {speeds}."
        + (" The norm keeps the scale of the tokens, not their differences." if falls else ""),
        agrees=None if falls is None else not falls,
    )


def _forecast(one: MaskedNetworks, shape: Shape) -> str:
    """The one-sided window has the rate of the causal mask only in the end, which is far away."""
    if one.mask not in (shape.masks[1], shape.masks[2]):
        return ""
    return f", forecast {number(forecast_rate(one.mask, one.norm, shape), 4)}"


def forecast_rate(mask: str, norm: str, shape: Shape) -> float:
    """Factor per layer of the ratio once tokens are close, value maps Gaussian: ``SLEM exp(lambda_2 - lambda_1)``.

    Without a norm residual and tokens grow alike, with the largest Lyapunov exponent of the product of the value maps,
    and the factor is the SLEM of the mask. On the sphere the residual is projected off the common token at every layer
    and grows with the second exponent: ``lambda_i = (log(2/d) + digamma((d - i + 1) / 2)) / 2`` for entries N(0, 1/d)
    (Newman 1986). LayerNorm takes one dimension out before.

    >>> shape = Shape.of(layers=2, dim=64, tokens=64)
    >>> [round(forecast_rate("causal", norm, shape), 4) for norm in ("none", "sphere")]
    [0.5, 0.496]
    """
    slem = parse_mask(mask).graph(shape.tokens).slem()
    if norm == "none":
        return slem
    dim = shape.dim - (norm == "layer")
    return float(slem * np.exp((digamma((dim - 1) / 2) - digamma(dim / 2)) / 2))


def _single(found: WuMasksFound) -> Statement:
    full, causal, _, one_sided = found.setting.masks
    normed, plain = (
        [found.network("gaussian", norm, mask) for norm in norms for mask in (causal, one_sided)]
        for norms in (("sphere", "layer"), ("none",))
    )
    levels = [one.float32_is_level for one in normed]
    judged = False if False in levels else all_or_none(levels)
    start = {
        True: "They do, at rounding",
        False: "Not all of them do",
        None: "Not all are at rounding over the last quarter of the recorded layers",
    }[judged]
    stops = [one.mask for one in plain if one.float32_is_level]
    cause = (
        f" Without a norm {listed(stops)} {'levels' if len(stops) == 1 else 'level'} off as well: the plateau is "
        "rounding, not the norm."
        if stops
        else ""
    )
    complete = found.network("gaussian", "sphere", full)
    large, small = (found.network(kind, "none", causal) for kind in ("gaussian", "small"))
    return Statement(
        source="ours",
        statement="Drawn from a float32 run, curves of mu/||X||_F with a norm level off at rounding while the residual "
        "itself goes on falling.",
        measured=f"{start}: in float32 at layer {found.setting.layers}, geometric mean over seeds, "
        f"{'; '.join(map(_fall_words, normed))}.{cause} The complete mask on the sphere is exactly 0 in "
        f"{complete.float32_exactly_zero} of {complete.seeds} seeds. With value maps as small as BERT's and no norm "
        f"mu itself ends at {_size(small.float32_log10_mu_at_last_layer)} against "
        f"{_size(large.float32_log10_mu_at_last_layer)} with N(0, 1/dim), causal: X shrinks, which is scale and not "
        "collapse.",
        agrees=judged,
    )


def _fall_words(one: MaskedNetworks) -> str:
    kind = {True: "level", False: "still moving", None: "not at rounding for long"}[one.float32_is_level]
    zeros = (
        f", exactly 0 in {one.float32_exactly_zero} of {one.seeds} seeds" if one.float32_exactly_zero else ""
    )
    real = power(one.log10_ratio_at_last_layer.mean * LN10, digits=2)
    return f"{one.norm}, {one.mask} {_size(one.float32_log10_ratio_at_last_layer)} ({kind}{zeros}; split pass {real})"


def _size(log10: Mean | None) -> str:
    return "0" if log10 is None else power(log10.mean * LN10, digits=2)


def _isometries(found: WuMasksFound) -> Statement:
    """Agrees if every strongly connected mask falls on the sphere, by intervals, for both kinds of maps."""
    full, causal, window, one_sided = found.setting.masks
    kinds = ("orthogonal", "identity")

    def speeds(*masks: str) -> str:
        each = ([found.network(values, "sphere", mask).speed for mask in masks] for values in kinds)
        return "; ".join(f"{values}: {', '.join(one)}" for values, one in zip(kinds, each, strict=True))

    return Statement(
        source="reported",
        statement="Orthogonal value maps with LayerNorm: exponential collapse for every strongly connected mask.",
        measured="On the sphere, the paper's LayerNorm, factor per layer over the last half with its 95% interval, for "
        f"the complete mask the order: {speeds(full, window)}; the SLEM of {window} is "
        f"{slem_words(parse_mask(window).graph(found.setting.tokens))}. Masks that are only quasi-strongly connected, "
        f"SLEM 1/2: {speeds(causal, one_sided)}.",
        agrees=all_or_none(
            [found.network(values, "sphere", mask).falls for values in kinds for mask in (full, window)]
        ),
    )


def _rest_statement(kept: RestingStates) -> Statement:
    """Agrees if the built states rest and the same weights collapse without the norm: existence, not attraction."""
    moved = max(one.equation_residual for one in kept.pushed)
    steady, plain = kept.log10_ratio_when_steady, kept.log10_ratio_at_last_layer["none"]
    stays = all(
        abs(now - before) < UNMOVED and now > -1
        for before, now in zip(kept.log10_ratio_at_start, steady, strict=True)
    )
    return Statement(
        source="paper",
        statement="With suitable value maps LayerNorm has equilibria of every rank, so that it can prevent collapse.",
        measured=f"Existence, not attraction. W = I + {SHEAR:g} S, {TOKENS} tokens in {DIM} dimensions, causal, unit "
        f"sphere, built states of rank {listed([str(rank) for rank in kept.ranks])}: one step moves them by at most "
        f"{number(moved, 1)}, and a stack started exactly there keeps mu/||X||_F at {_powers(steady)} over "
        f"{kept.steady_layers} layers; without the norm the same weights and starts end at {_powers(plain)}. "
        f"{_pushes(kept.pushed)}. {_random(kept.random_starts)}",
        agrees=moved < AT_REST and stays and all(log < GONE for log in plain),
    )


def _powers(logs: Sequence[float]) -> str:
    return listed([power(log * LN10) for log in logs])


def _pushes(found: Sequence[PushedState]) -> str:
    each = [f"{share_text(one.collapsed, one.pushes)} at rank {one.rank}" for one in found]
    return f"Pushed by {number(found[0].size, 1)} in every entry, {listed(each)} collapse within {found[0].steps} steps"


def _random(starts: RandomStarts) -> str:
    parts = [
        f"Random starts that keep rank 2 after {starts.steps} steps: {share_text(starts.rank_two, starts.starts)}"
    ]
    if starts.second_low is not None and starts.second_high is not None:
        parts[0] += (
            f", with sigma_2/sigma_1 from {number(starts.second_low, 2)} to {number(starts.second_high, 2)}"
        )
    parts.append(
        f"{starts.higher} have a third singular value" if starts.higher else "none reaches rank 3 or 4"
    )
    if starts.opposite:
        parts.append(f"{starts.opposite} more are equal up to sign")
    return "; ".join(parts) + "."


def notes(found: WuMasksFound) -> list[str]:
    """Sentences for the reader."""
    shape = found.setting
    slowest = found.network("gaussian", "none", shape.masks[2])
    return [
        f"Stacks of {shape.layers} layers X <- D A X W with one head, dim {shape.dim}, {shape.tokens} Gaussian "
        f"tokens; all weights N(0, 1/dim) unless named; windows reach {count(shape.window, 'token')} to a side. The "
        "weights of a seed are the same for all masks and norms.",
        "Split pass: the residual is carried apart from the tokens, with its scale as a logarithm; floors are "
        "estimated from a perturbed run. Float32: an ordinary run; below its floor (32 u sqrt(layer)) a number says "
        "nothing.",
        "Known rates: the complete mask cubes the residual in every layer (order 3); the causal mask halves it (second "
        f"largest eigenvalue modulus 1/2, SLEM); {shape.masks[3]} has the same asymptotic rate 1/2 after a long "
        f"transient; {slowest.speed} per layer over the last half, without a norm.",
        "Forecasts: the SLEM of the mask without a norm. On the sphere the residual is projected off the common token "
        "at every layer, so that it falls slightly faster, by exp((digamma((d - 1)/2) - digamma(d/2))/2); d is one "
        "less for LayerNorm.",
        DRIFT,
        "'rankscope reproduce wu-counterexample' shows for two tokens for which weights and how many random starts the "
        "norm does stop collapse.",
    ]


# ------------------------------------------------------------------------------------------------------ picture


def chart(found: WuMasksFound, table: Table) -> Chart:
    """Panels of norms and value maps with a line per mask; the last two are starts that the sphere keeps apart."""
    shape, frame = found.setting, table.frame
    falls = [one.falls for norm in NORMS for one in found.over_masks("gaussian", norm)]
    masks = [(mask, mask) for mask in shape.masks]
    many, few = (found.network(values, "none", "full").seeds for values in ("gaussian", "small"))

    def panel(values: str, norm: str, title: str, name: str = RATIO) -> Panel:
        own = (pl.col("values") == values) & (pl.col("norm") == norm) & (pl.col("definition") == name)
        return depth_panel(frame.filter(own), "mask", title=title, names=masks, deepest=DEEPEST)

    return Chart(
        [
            panel("gaussian", "none", NORMS["none"]),
            panel("small", "none", "no norm, value maps as small as BERT's: mu itself", CURVE_MEASURES[0]),
            panel("gaussian", "sphere", NORMS["sphere"]),
            panel("gaussian", "layer", NORMS["layer"]),
            panel("orthogonal", "sphere", "unit sphere, orthogonal value maps"),
            panel("identity", "sphere", "unit sphere, identity value maps"),
            *(_rest_panel(frame, found.kept, norm) for norm in ("sphere", "none")),
        ],
        title="Every mask collapses, with a norm and without; on the sphere built states stay apart"
        if all(falls) and _rest_statement(found.kept).agrees
        else "How fast four masks collapse, with a norm and without",
        notes=[
            f"mu(X) / ||X||_F of stacks of width {shape.dim} with {shape.tokens} tokens, one head, value maps "
            f"N(0, 1/dim) unless named; means of the logarithm over {many} seeds ({few} for other value maps) with "
            "their 95% interval",
            *PANEL_NOTES,
        ],
    )


def _rest_panel(frame: pl.DataFrame, kept: RestingStates, norm: str) -> Panel:
    """One line per rank of the built states."""
    own = (pl.col("model") == "constructed") & (pl.col("norm") == norm) & (pl.col("definition") == RATIO)
    return depth_panel(
        frame.filter(own).with_columns(pl.col("rank").cast(pl.String)),
        "rank",
        title=f"{NORMS[norm]}, causal, value map I + {SHEAR:g} S, built starts",
        names=[(str(rank), f"rank {rank}") for rank in kept.ranks],
        deepest=DEEPEST,
    )


register(
    Figure(
        name="wu-masks",
        title="masks and norms against depth: mu(X) and mu(X)/||X||_F",
        source=Ref(
            key="wu2024",
            where="Section 5, mu(X) against depth at initialisation",
            differs="Gaussian tokens in place of texts, one head, windows of an eighth of the tokens, and the split "
            "pass beside float32",
        ),
        question="Do masks slow collapse, and does a norm alone stop it at random weights?",
        durations={
            "fast": "seconds",
            "usual": "a minute",
            "full": "minutes, about 10 GB of memory",
        },
        sizes={
            "fast": WuMasksConfig(
                size="fast",
                layers=40,
                dim=32,
                tokens=8,
                seeds=tuple(range(6)),
                other_seeds=3,
                random_starts=50,
                random_steps=500,
                pushes=16,
            ),
            "usual": WuMasksConfig(
                size="usual", layers=128, dim=64, tokens=64, seeds=tuple(range(20)), other_seeds=5
            ),
            "full": WuMasksConfig(
                size="full", layers=128, dim=768, tokens=128, seeds=tuple(range(3)), other_seeds=1
            ),
        },
        found=WuMasksFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
