"""What is kept of a training run: readings at scans, the loss in buckets, and helpers that read curves. No torch."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import FiniteFloat

from rankscope.findings.base import Value
from rankscope.findings.remedies import Probe
from rankscope.findings.trivial import Sizes

MOST_BUCKETS = 1024
"""Buckets of the loss; when there are more, neighbours are joined."""

FIRST = 3
"""Scans at the start of a run that later ones are compared with."""

WINDOW, NEEDED = 3, 2
"""An alarm rings where its condition held in the second number of the last scans, the first number of them."""

FITTED = 8
"""Scans that a line is fitted to."""


FALLS = frozenset({"ratio", "float32_ratio", "input_ratio", "inputs_ratio", "inputs_rank", "entropy"})
"""Signals whose smallest value is the worst one; of all others it is the largest."""


class Reading(Value):
    """Numbers of one scan: by signal, then by place."""

    step: int
    """The step of the optimizer."""

    signals: dict[str, dict[str, FiniteFloat]]
    """By name of the signal, then by place: a stack, a head, or the model."""

    not_finite: tuple[str, ...] = ()
    """What holds NaN or infinity: weights by name, states, the loss."""

    dtype: str | None = None
    """What the scan computed in."""

    def value(self, signal: str, place: str) -> float | None:
        """One number; None where there is none."""
        return self.signals.get(signal, {}).get(place)

    def thinned(self) -> "Reading":
        """Of signals of heads the worst head of every stack alone: a long run of a large model has millions of them."""
        kept = dict[str, dict[str, float]]()
        for signal, places in self.signals.items():
            worst = dict[str, str]()
            better = min if signal in FALLS else max
            for place in places:
                stack = place.split("/")[0]
                worst[stack] = better(worst.get(stack, place), place, key=places.__getitem__)
            kept[signal] = {place: places[place] for place in worst.values()}
        return self.model_copy(update={"signals": kept})


class LossBucket(Value):
    """Losses of neighbouring steps."""

    first: int
    """The first step."""

    last: int
    """The last step."""

    count: int
    """Losses that are numbers."""

    mean: FiniteFloat
    """Their mean; 0 where there are none."""

    low: FiniteFloat
    """The smallest."""

    high: FiniteFloat
    """The largest."""

    lost: int = 0
    """Losses that are not numbers."""

    def joined(self, other: "LossBucket") -> "LossBucket":
        """Both as one."""
        count = self.count + other.count
        own = [one for one in (self, other) if one.count]
        return LossBucket(
            first=self.first,
            last=other.last,
            count=count,
            mean=sum(one.mean * one.count for one in own) / max(count, 1),
            low=min((one.low for one in own), default=0.0),
            high=max((one.high for one in own), default=0.0),
            lost=self.lost + other.lost,
        )


@dataclass(slots=True)
class LossCurve:
    """The loss of a run in constant memory: single steps as long as they are few, then means of neighbours."""

    buckets: list[LossBucket] = field(default_factory=list)
    width: int = 1
    """Losses of a full bucket."""

    def add(self, step: int, loss: float) -> None:
        """One loss more; a step that was passed before drops what came after it."""
        is_number = math.isfinite(loss)
        shown = float(loss) if is_number else 0.0
        self.take(_one_loss(step, shown, is_number))

    def take(self, one: LossBucket) -> None:
        """Losses that were counted already."""
        if self.buckets and self.buckets[-1].last >= one.first:
            self.drop_from(one.first)

        if self.buckets and self.buckets[-1].count + self.buckets[-1].lost < self.width:
            self.buckets[-1] = self.buckets[-1].joined(one)
        else:
            self.buckets.append(one)
        if len(self.buckets) > MOST_BUCKETS:
            pairs = zip(self.buckets[::2], self.buckets[1::2], strict=False)
            rest = self.buckets[-1:] if len(self.buckets) % 2 else []
            self.buckets = [*(a.joined(b) for a, b in pairs), *rest]
            self.width *= 2

    def drop_from(self, step: int) -> None:
        """Forget this step and all after it."""
        self.buckets = [one for one in self.buckets if one.last < step]


def _one_loss(step: int, loss: float, is_number: bool) -> LossBucket:
    return LossBucket(
        first=step,
        last=step,
        count=int(is_number),
        mean=loss,
        low=loss,
        high=loss,
        lost=int(not is_number),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSoFar:
    """All that alarms are judged by.

    Args:
        steps: length of the whole run, where it is known.
        warmup: steps of its warm-up, where they are known.
        sizes: what is known of the loss.
        probe: a few steps on a copy before the first one.
    """

    readings: Sequence[Reading] = ()
    losses: Sequence[LossBucket] = ()
    steps: int | None = None
    warmup: int | None = None
    sizes: Sizes = field(default_factory=Sizes)
    probe: Probe | None = None

    @property
    def step(self) -> int:
        """The latest step."""
        last = [one.step for one in self.readings[-1:]] + [one.last for one in self.losses[-1:]]
        return max(last, default=0)

    @property
    def horizon(self) -> int:
        """The last step of the run; where that is not known, as many more as there were, at least a thousand."""
        return self.step + max(1000, self.step) if self.steps is None else self.steps

    def places(self, signal: str) -> Iterator[str]:
        """Where the latest scan has a signal."""
        if self.readings:
            yield from self.readings[-1].signals.get(signal, {})

    def start(self, signal: str, place: str, *, rises: bool) -> float | None:
        """The healthiest of the first scans: the smallest where rising is ill, otherwise the largest.

        The scan that is judged is compared with those before it, so a run of one scan has no start.
        """
        first = self.readings[: min(FIRST, len(self.readings) - 1)]
        known = [value for one in first if (value := one.value(signal, place)) is not None]
        return None if not known else min(known) if rises else max(known)

    def latest(self, signal: str, place: str) -> float | None:
        """The latest number."""
        return self.readings[-1].value(signal, place) if self.readings else None

    def window(self) -> Sequence[Reading]:
        """The scans that persistence is asked of."""
        return self.readings[-WINDOW:]


def persists(holds: Iterable[tuple[int, bool]]) -> int | None:
    """The first step at which a condition held, if it holds now and held in two of the last three scans.

    >>> persists([(0, False), (10, True), (20, True)]), persists([(0, True), (10, False), (20, False)])
    (10, None)
    >>> persists([(0, True)])
    """
    last = list(holds)[-WINDOW:]
    held = [step for step, is_so in last if is_so]
    return held[0] if len(held) >= NEEDED and last[-1][1] else None


def reaches(points: Sequence[tuple[int, float]], target: float) -> int | None:
    """The step at which a straight line through the points comes to a value; None where it goes away from it.

    >>> reaches([(0, 10.0), (100, 20.0), (200, 30.0)], 100.0)
    900
    """
    if len(points) < 2:
        return None
    middle = sum(step for step, _ in points) / len(points)
    mean = sum(value for _, value in points) / len(points)
    spread = sum((step - middle) ** 2 for step, _ in points)
    slope = sum((step - middle) * (value - mean) for step, value in points) / spread if spread else 0.0
    if slope <= 0 or mean >= target:
        return None
    step = middle + (target - mean) / slope
    return math.ceil(step) if step < 1e15 else None


def curve(readings: Sequence[Reading], signal: str, place: str) -> list[tuple[int, float]]:
    """Steps and values of one signal at one place."""
    return [(one.step, value) for one in readings if (value := one.value(signal, place)) is not None]
