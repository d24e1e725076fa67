"""Whether the split pass keeps its promise: |value - truth| <= floor, for every layer and every measure it offers.

The truth comes from ball arithmetic with as many bits as it takes. A number counts as uncovered if its error exceeds
its floor, also where it is below its floor and so not presented. A row is one layer of one text; it is lost if its
residual is not resolved although the truth is not zero.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from flint import arb, ctx
from torch import Tensor

from kit.exact_specs import describe, plain
from kit.split_corpus import Case, case
from rankscope.errors import NumericalError
from rankscope.measures import MEASURES, Measure, centers, residuals
from rankscope.measures.brackets import best_rows
from rankscope.network import Network
from rankscope.split import LogValue, Split, can_measure, log_measure, split_states
from rankscope.split.twin import stacked
from reference import ball_measures
from reference.ball_measures import LostDigitsError, Truth
from reference.ball_network import Ball, Matrix, states

OFFERED: tuple[Measure, ...] = tuple(measure for measure in MEASURES.values() if can_measure(measure))
PLAIN = tuple(measure for measure in OFFERED if not measure.is_bracket and ",linf]" not in measure.definition)
"""Without those that search for a center, which takes most of the time."""

FEW = tuple(
    measure
    for measure in OFFERED
    if measure.definition in ("residual[frobenius,mean]", "residual_ratio[composite,mean]", "diameter[l2]")
)
ROW = "residual[frobenius,mean]"
BITS = (320, 960, 2_880, 8_640, 25_920)
"""Bits of the balls, raised until the truth has its digits."""

LARGEST = 700.0
"""Natural log of tokens that a pass in floats can hold: e^709 is the largest float."""

Read = Callable[[Measure, Split], LogValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """One number of one layer against its truth; logs are natural, ``excess`` is error over floor."""

    kind: str
    seed: int
    text: int
    layer: int
    measure: str
    log: float
    log_floor: float
    log_truth: float
    error: float
    excess: float

    @property
    def covered(self) -> bool:
        return self.excess <= 1.0

    @property
    def resolved(self) -> bool:
        return self.log > self.log_floor

    @property
    def lost(self) -> bool:
        """Nothing is known although there is something to know."""
        return not self.resolved and self.log_truth > -math.inf

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.seed}, text {self.text}, layer {self.layer}, {self.measure}: "
            f"e^{self.log:.4f} for e^{self.log_truth:.4f}, off by {self.error:.1e} of it, "
            f"{self.excess:.1e} times the floor of e^{self.log_floor:.4f}"
        )


@dataclass(slots=True)
class Tally:
    """What a sweep found, by kind."""

    trees: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)
    uncovered: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    overflow: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    by_measure: Counter[str] = field(default_factory=Counter)
    lost_by_measure: Counter[str] = field(default_factory=Counter)
    worst: list[Number] = field(default_factory=list)
    gone: list[Number] = field(default_factory=list)
    refused: list[tuple[str, int]] = field(default_factory=list)

    @property
    def share_uncovered(self) -> float:
        return self.uncovered.total() / max(self.numbers.total(), 1)

    @property
    def share_lost(self) -> float:
        return self.lost.total() / max(self.rows.total(), 1)

    def add(self, number: Number) -> None:
        self.numbers[number.kind] += 1
        self.lost_by_measure[number.measure] += number.lost
        if number.measure == ROW:
            self.rows[number.kind] += 1
            if number.lost:
                self.lost[number.kind] += 1
                self.gone.append(number)
        if not number.covered:
            self.uncovered[number.kind] += 1
            self.by_measure[number.measure] += 1
            self.worst.append(number)

    def give_up(self, of: Case, truth: dict[str, Truth] | None, size: float) -> None:
        """Counts a pass that ended before this layer: an overflow, or a row lost if its tokens are floats after all."""
        if size < LARGEST and truth is not None:
            self.rows[of.kind] += 1
            self.lost[of.kind] += 1
            self.refused.append((of.kind, of.seed))
        else:
            self.overflow[of.kind] += 1

    def __str__(self) -> str:
        """The counts by kind, then the worst number of every tree that has one, worst first."""
        columns = {
            "trees": self.trees,
            "numbers": self.numbers,
            "uncovered": self.uncovered,
            "rows": self.rows,
            "lost": self.lost,
            "overflow": self.overflow,
            "no truth": self.unknown,
        }
        lines = [f"{'kind':16}" + "".join(f"{name:>10}" for name in columns)]
        for kind in self.trees:
            lines.append(f"{kind:16}" + "".join(f"{count[kind]:>10}" for count in columns.values()))
        lines.append(f"{'all':16}" + "".join(f"{count.total():>10}" for count in columns.values()))
        lines.append(f"uncovered {self.share_uncovered:.4%} of numbers, lost {self.share_lost:.2%} of rows")
        trees: dict[tuple[str, int], Number] = {}
        for number in sorted(self.worst, key=lambda one: -one.excess):
            trees.setdefault((number.kind, number.seed), number)
        lines += [str(number) for number in list(trees.values())[:40]]
        lines += [f"{name} {seed}: the pass gave up on tokens that are floats" for name, seed in self.refused]
        return "\n".join(lines)


def sweep(
    trees: Iterable[tuple[str, int]],
    *,
    measures: tuple[Measure, ...] = OFFERED,
    read: Read = log_measure,
    change: Callable[[Network], Network] = lambda network: network,
) -> Tally:
    """The tally of these trees. ``change`` plants a fault: the truth is that of the network as it was."""
    tally = Tally()
    with solved_once():
        for name, seed in trees:
            judge(case(name, seed), tally, measures=measures, read=read, change=change)
    return tally


@contextmanager
def solved_once(most: int = 50) -> Iterator[None]:
    """Remembers the centers of the matrices of late: a dozen measures ask for the same one, and each takes long."""
    seen: dict[tuple[object, ...], object] = {}

    def once(y: Tensor, solve: Callable[..., object], tolerance: float) -> object:
        key = (y.detach().numpy().tobytes(), y.shape, solve, tolerance)
        if key not in seen:
            if len(seen) > most:
                seen.clear()
            seen[key] = best_rows(y, solve, tolerance)
        return seen[key]

    with patch.object(centers, "best_rows", once), patch.object(residuals, "best_rows", once):
        yield


def judge(
    of: Case,
    tally: Tally,
    *,
    measures: tuple[Measure, ...] = OFFERED,
    read: Read = log_measure,
    change: Callable[[Network], Network] = lambda network: network,
) -> None:
    """Adds all numbers of one tree to the tally."""
    tally.trees[of.kind] += 1
    found = split(change(of.network), of)
    values = dict[str, LogValue]()
    if found:  # all layers at once, which takes a fraction of the time
        layers = joined(found)
        kept = [measure for measure in measures if measure.tokens <= _fewest(layers)]
        values = {measure.definition: read(measure, layers) for measure in kept}
    for row in range(len(of.x)):
        for layer, (truth, size) in enumerate(truths(of, row)):
            if layer >= len(found):
                tally.give_up(of, truth, size)
                break
            if truth is None:
                tally.unknown[of.kind] += 1
                continue
            for name, value in values.items():
                if name in truth:
                    tally.add(compared(of, row, layer, name, value, truth[name]))


def split(network: Network, of: Case) -> list[Split]:
    """Split states up to the layer where the network leaves the range of floats."""
    for layers in range(len(network.blocks), -1, -1):
        try:
            return list(split_states(Network(list(network.blocks)[:layers]), of.x, of.context))
        except NumericalError:
            continue
    return []


def joined(layers: Sequence[Split]) -> Split:
    """The states of all layers as one batch, ``layers texts``, each with its twins."""
    twins = zip(*(state.twins for state in layers), strict=True)
    return replace(stacked(layers), twins=tuple(stacked(of_layers) for of_layers in twins))


def _fewest(state: Split) -> int:
    return state.residual.shape[-2] if state.is_token is None else int(state.is_token.sum(dim=-1).min())


def compared(of: Case, row: int, layer: int, name: str, value: LogValue, truth: Truth) -> Number:
    """One number beside its truth; ``value`` is that of all layers and texts."""
    assert value.log_floor is not None, "the split pass ran without its error"
    log, low, log_floor = (float(end[layer, row]) for end in (value.log, value.low, value.log_floor))
    with ctx.workprec(256):
        floor, high, least = (_exp(end) for end in (log_floor, log, low))
        # How far the interval of the truth is beyond the ends that the value has: zero where they overlap.
        beyond = max((truth.low - high).mid(), (least - truth.high).mid(), arb(0), key=_order)
        excess = _ratio(beyond, floor) if log_floor < math.inf else 0.0
        if math.isnan(log) and log_floor < math.inf:
            excess = math.inf
        return Number(
            kind=of.kind,
            seed=of.seed,
            text=row,
            layer=layer,
            measure=name,
            log=log,
            log_floor=log_floor,
            log_truth=_log(truth.low),
            error=_ratio(beyond, truth.high),
            excess=excess,
        )


def truths(of: Case, row: int) -> Iterator[tuple[dict[str, Truth] | None, float]]:
    """The truth of every layer of one text, None where no number of bits gives it, and the log of its largest entry."""
    x, context = of.text(row)
    blocks = describe(
        of.network, len(x), tables="exact", positions=context.positions, segments=context.segments
    )
    numbers, done = plain(x), 0
    for bits in BITS:
        for layer, state in enumerate(states(blocks, numbers, bits=bits)):
            if layer < done:
                continue
            try:
                found = ball_measures.measures(state)
            except LostDigitsError:
                if bits < BITS[-1]:
                    break
                found = _bounded(state)
            yield found, max(_log(entry.abs_upper()) for token in state for entry in token)
            done += 1
        if done > len(blocks):
            return


def _bounded(state: Matrix) -> dict[str, Truth] | None:
    """What is known of equal tokens: residuals are at most the size of the balls. None where that is not small."""
    with ctx.workprec(256):
        most = ball_measures.below(state)
        if not most.is_finite() or not most < arb(2) ** (-BITS[-1] // 2):
            return None
        return ball_measures.nearly_zero(state)


def _order(ball: Ball) -> float:
    return math.inf if not ball.is_finite() else _log_of(ball)


def _log_of(ball: Ball) -> float:
    return _log(ball) if ball > 0 else -math.inf


def _exp(log: float) -> Ball:
    if log == -math.inf or math.isnan(log):
        return arb(0)
    return arb(math.inf) if log == math.inf else arb(log).exp()


def _log(ball: Ball) -> float:
    return float(ball.log().mid()) if ball > 0 else -math.inf


def _ratio(part: Ball, whole: Ball) -> float:
    if not part > 0:
        return 0.0
    if not whole > 0:
        return math.inf
    log = _log(part) - _log(whole)
    return math.exp(log) if log < 700 else math.inf
