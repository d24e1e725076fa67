"""The alarms of a training run, each declared once: what it says, its formula, its limits, and what to try.

An alarm is judged by a pure function over the run so far. None is a bare threshold: a number must be ill in two of the
last three scans, and it must have changed against the first scans of the same run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rankscope.core.words import listed, number, percent
from rankscope.findings.base import Number, Value
from rankscope.findings.inputs import InputsName
from rankscope.findings.mechanism import Cause
from rankscope.findings.remedies import LEAST_RATIO, Probe
from rankscope.findings.stuck import Fit, fit_of
from rankscope.findings.trivial import CONSTANT, GIVEN, USUAL, Candidate, candidates
from rankscope.findings.watch.history import FITTED, LossBucket, Reading, RunSoFar, curve, persists, reaches

DTYPE_MOST = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38, "float64": 1.79e308}
"""The largest number of a dtype."""

RATIO, INPUT_RATIO, PLAIN_RATIO = "ratio", "input_ratio", "float32_ratio"
INPUTS, INPUTS_RANK, OUTPUT = "inputs_ratio", "inputs_rank", "output"
ENTROPY, LOGIT, LOGIT_RANGE = "entropy", "largest_logit", "logit_range"
COHERENCE, CHANCE = "coherence", "coherence_chance"
SHARE, LARGEST, LENGTH = "token_share", "largest_state", "length"
DEAD = ("dead_tokens", "dead_channels", "dead_heads")

SIGNALS: Mapping[str, str] = {
    RATIO: "unit residual ratio after the last block of a stack (Frobenius, mean over texts)",
    INPUT_RATIO: "the same of what enters the first block",
    PLAIN_RATIO: "the same after the last block, run in float32",
    INPUTS: "unit residual ratio of the embeddings of the inputs: 0 where all inputs have one direction",
    INPUTS_RANK: "effective rank of the centred embeddings over that of Gaussian rows of the same shape",
    ENTROPY: "entropy of a head's attention rows over ln of the keys allowed, mean over rows",
    LOGIT: "largest attention logit of a head, in absolute value",
    LOGIT_RANGE: "difference of the largest and smallest logit of a row, mean over rows of a head",
    COHERENCE: "|sum of D| / sum of |D|, D what each sublayer adds to its common row since the scan before",
    CHANCE: "the same of unrelated directions: one over the root of their number",
    SHARE: "share of the squared lengths of all tokens that the longest one has, largest layer",
    LARGEST: "largest entry of any state, in absolute value",
    LENGTH: "root mean square length of the tokens after the last block",
    "dead_tokens": "share of tokens whose length is below 1e-6 of the root mean square of all",
    "dead_channels": "share of channels of the last state whose spread over tokens is below 1e-6 of that of all",
    "dead_heads": "share of heads whose output is below 1e-6 of that of all",
    "weights": "norm of all weights",
}
"""What is read at a scan."""


AlarmName = Literal[
    "non-finite",
    "first steps",
    "collapsing",
    "inputs collapsing",
    "same direction",
    "overflow ahead",
    "logits",
    "entropy",
    "stuck",
    "growth",
    "flat",
    "dead",
    "massive token",
]
"""The alarms, the most urgent first."""


class Alarm(Value):
    """Something that goes wrong, since when, and what to try."""

    name: AlarmName
    """Which alarm: a row of ``rankscope list alarms``."""

    where: str
    """A stack, a head, an output, or the loss."""

    since: int
    """The step of the first scan at which it was so."""

    step: int
    """The latest scan that it was judged by."""

    value: Number = None
    """The number that decided it."""

    start: Number = None
    """The same at the first scans of the run."""

    reaches: int | None = None
    """The step at which a straight fit comes to the limit."""

    count: int | None = None
    """How many places are ill."""

    plain: Number = None
    """The same number in float32, where both precisions were scanned."""

    dtype: str | None = None
    """What the scan computed in."""

    constant: Fit | None = None
    """The trivial value at which the loss stands."""

    inputs: InputsName | None = None
    """What the embeddings of the inputs amount to: the verdict of ``rs.scan_embeddings``."""

    cause: Cause | None = None
    """The first cause of the fall, where the model could be taken apart."""

    probe: Probe | None = None
    """A few steps on a copy before the first one."""

    not_finite: tuple[str, ...] = ()
    """What holds no numbers."""

    @property
    def key(self) -> tuple[AlarmName, str]:
        """What it is about: heads of one stack share an alarm, which names the worst of them; so do all NaN."""
        return self.name, "" if self.name == "non-finite" else self.where.split("/")[0]

    @property
    def kind(self) -> "AlarmKind":
        """Its declaration."""
        return ALARMS[self.name]

    @property
    def sentence(self) -> str:
        """What is wrong."""
        return f"{self.kind.words(self)}{'' if self.cause is None else f' {self.cause.sentence}'}"

    @property
    def try_(self) -> str:
        """What to try."""
        return self.constant.look if self.constant is not None else self.kind.try_

    @property
    def page(self) -> str:
        """Where it is explained."""
        return self.kind.page


Judge = Callable[[RunSoFar], Iterator[Alarm]]


@dataclass(frozen=True, kw_only=True, slots=True)
class AlarmKind:
    """One alarm.

    Args:
        formula: when it rings.
        source: where the rule comes from.
        default: its limits.
        words: the sentence of an alarm of this kind.
        try_: what to try.
        page: where it is explained.
        judge: the alarms of this kind that ring now.
    """

    name: AlarmName
    formula: str
    source: str
    default: str
    words: Callable[[Alarm], str]
    try_: str
    judge: Judge

    @property
    def page(self) -> str:
        return f"docs/watch.md#{self.name.replace(' ', '-')}"


def judge_run(run: RunSoFar, ringing: Sequence[Alarm] = ()) -> tuple[Alarm, ...]:
    """The alarms that ring now, the most urgent first; those that rang before keep how they began."""
    before = {one.key: one for one in ringing}
    found = [one for kind in ALARMS.values() for one in kind.judge(run)]
    return tuple(one if one.key not in before else _gone_on(before[one.key], one) for one in found)


def _gone_on(began: Alarm, now: Alarm) -> Alarm:
    """An alarm that still rings; of what is no number it names what was lost first: one NaN spreads to every weight."""
    lost = began if began.not_finite else now
    return now.model_copy(
        update={
            "since": began.since,
            "cause": began.cause,
            "inputs": began.inputs,
            "where": lost.where,
            "not_finite": lost.not_finite,
        }
    )


# ------------------------------------------------------------------------------------------------------------ judges


@dataclass(frozen=True, kw_only=True, slots=True)
class Ill:
    """Whether a signal is ill at one scan, given its start."""

    signal: str
    is_ill: Callable[[float, float], bool]
    rises: bool

    def since(self, run: RunSoFar, place: str) -> tuple[int, float, float] | None:
        """Since when, the latest value, and the start; None where it does not persist."""
        start = self.start(run, place)
        if start is None:
            return None
        holds = [
            (one.step, value is not None and self.is_ill(value, start))
            for one in run.window()
            for value in (one.value(self.signal, place),)
        ]
        since, latest = persists(holds), run.latest(self.signal, place)
        return None if since is None or latest is None else (since, latest, start)

    def start(self, run: RunSoFar, place: str) -> float | None:
        return run.start(self.signal, place, rises=self.rises)


ILL_RATIO, FALL = 0.05, 3.0
"""Tokens are nearly equal at or below this ratio, if it was so many times larger at the start of the run and is so many
times larger where it enters the first block. A pre-norm model may pass through 0.08 in its first steps and recover."""

RECOVERS = 1.5
"""A ratio that has risen by this factor from the lowest of the last three scans is on its way back."""


DEEP = 0.1
"""Below this share of its limit a ratio is beyond doubt, and so small that its rises and falls mean nothing."""


def _recovers(run: RunSoFar, signal: str, place: str, limit: float) -> bool:
    values = [value for _, value in curve(run.window(), signal, place)]
    return bool(values) and values[-1] > RECOVERS * max(min(values), DEEP * limit)


def _collapsed(reading: Reading, place: str, signal: str) -> bool:
    """Nearly equal after the last block, and not so before the first."""
    value, entering = reading.value(signal, place), reading.value(INPUT_RATIO, place)
    return value is not None and value <= ILL_RATIO and (entering is None or entering >= FALL * value)


def _collapsing(run: RunSoFar) -> Iterator[Alarm]:
    for place in run.places(RATIO):
        yield from _equal_tokens(run, place, RATIO, PLAIN_RATIO)
        yield from _equal_tokens(run, place, PLAIN_RATIO, RATIO)


def _equal_tokens(run: RunSoFar, place: str, signal: str, twin: str) -> Iterator[Alarm]:
    """Ill against the start of the run, or against the other precision."""
    start = run.start(signal, place, rises=False)

    def is_ill(one: Reading) -> bool:
        value, other = one.value(signal, place), one.value(twin, place)
        fell = value is not None and start is not None and value <= start / FALL
        alone = value is not None and other is not None and other >= max(FALL * value, LEAST_RATIO)
        return _collapsed(one, place, signal) and (fell or alone)

    since = persists((one.step, is_ill(one)) for one in run.window())
    if since is None or _recovers(run, signal, place, ILL_RATIO):
        return
    other = run.latest(twin, place)
    is_plain = signal == PLAIN_RATIO
    both = other is not None and other <= ILL_RATIO
    if is_plain and both:
        return  # said of the precision of training already
    yield Alarm(
        name="collapsing",
        where=f"{place} (float32)" if is_plain else place,
        since=since,
        step=run.step,
        value=run.latest(signal, place),
        start=start,
        plain=None if is_plain else other,
        dtype="float32" if is_plain else run.readings[-1].dtype,
    )


def _collapsing_words(alarm: Alarm) -> str:
    shown = (
        f"The tokens of {alarm.where} are becoming equal: the unit residual ratio after its last block is "
    )
    shown += f"{number(alarm.value)}"
    if alarm.plain is not None and alarm.value is not None and alarm.plain >= FALL * alarm.value:
        return (
            f"{shown} in {alarm.dtype}, but {number(alarm.plain)} in float32: only {alarm.dtype} is ill, the weights "
            "are not."
        )
    if alarm.where.endswith("(float32)"):
        return f"{shown}, in float32 alone."
    return f"{shown}, and was {number(alarm.start)} at the start."


ILL_INPUTS, INPUTS_FALL = 0.2, 2.5
"""Inputs have nearly one direction at or below this unit residual ratio, if it was so many times larger before. At 0.2
the mean cosine is 0.96."""

ILL_RANK, RANK_FALL = 0.1, 4.0
"""Inputs lose dimensions at or below this share of the rank of Gaussian rows, if it was so many times larger."""


PATIENCE, STILL_FALLING = 10, 1.05
"""Inputs come near each other at many a healthy start, where a network first learns the mean of its targets, and part
again: so for this many steps they must be near each other, and then be no farther apart than ever before, but for the
second number."""


def _lasts(run: RunSoFar, signal: str, place: str, limit: float) -> bool:
    """Whether a number stays below its limit long enough without turning, or is far below it."""
    points = curve(run.readings, signal, place)
    first = len(points)
    while first > 0 and any(value <= limit for _, value in points[max(first - 2, 0) : first]):
        first -= 1
    spell = [(step, value) for step, value in points[first:] if value <= limit]
    lowest = math.inf
    for step, value in spell:
        is_late = step - spell[0][0] >= PATIENCE
        if value <= DEEP * limit or (is_late and value <= STILL_FALLING * lowest):
            return True
        lowest = min(lowest, value)
    return False


def _inputs(run: RunSoFar) -> Iterator[Alarm]:
    for place in run.places(INPUTS):
        ratio = Ill(
            signal=INPUTS,
            is_ill=lambda value, start: value <= min(ILL_INPUTS, start / INPUTS_FALL),
            rises=False,
        )
        rank = Ill(
            signal=INPUTS_RANK,
            is_ill=lambda value, start: value <= min(ILL_RANK, start / RANK_FALL),
            rises=False,
        )
        for one, signal, most, fall in (
            (ratio, INPUTS, ILL_INPUTS, INPUTS_FALL),
            (rank, INPUTS_RANK, ILL_RANK, RANK_FALL),
        ):
            found = one.since(run, place)
            if found is None or _recovers(run, signal, place, most):
                continue
            since, value, start = found
            if _lasts(run, signal, place, min(most, start / fall)):
                where = place if signal == INPUTS else f"{place} (rank)"
                yield Alarm(
                    name="inputs collapsing",
                    where=where,
                    since=since,
                    step=run.step,
                    value=value,
                    start=start,
                )
                break


def _inputs_words(alarm: Alarm) -> str:
    if alarm.where.endswith("(rank)"):
        return (
            f"The embeddings of different inputs lose dimensions ({alarm.where.removesuffix(' (rank)')}): their "
            f"effective rank is {number(alarm.value)} of that of Gaussian rows, and was {number(alarm.start)}"
            f"{_named(alarm)}."
        )
    what = "output" if alarm.where == OUTPUT else f"embedding ({alarm.where})"
    return (
        f"Different inputs get nearly the same {what}: the unit residual ratio across inputs is "
        f"{number(alarm.value)}, and was {number(alarm.start)} at the start{_named(alarm)}."
    )


def _named(alarm: Alarm) -> str:
    return "" if alarm.inputs is None else f" (rankscope scan --across inputs calls them {alarm.inputs!r})"


def _first_steps(run: RunSoFar) -> Iterator[Alarm]:
    if not run.readings or _trains(run):
        return
    first = run.readings[0]
    if run.probe is not None and run.probe.stuck:
        probe = run.probe
        yield Alarm(
            name="first steps",
            where="start",
            since=first.step,
            step=run.step,
            value=probe.after,
            start=probe.before,
            probe=probe,
        )
        return
    for place in first.signals.get(RATIO, {}):
        since = persists((one.step, _collapsed(one, place, RATIO)) for one in run.readings[-3:])
        other = first.value(PLAIN_RATIO, place)
        if other is not None and other > LEAST_RATIO:
            continue  # the weights are sound: the precision is said to be ill
        if since is not None and _collapsed(first, place, RATIO):
            entering = first.value(INPUT_RATIO, place)
            yield Alarm(
                name="first steps",
                where=place,
                since=first.step,
                step=run.step,
                value=first.value(RATIO, place),
                start=entering,
            )


def _trains(run: RunSoFar) -> bool:
    """Whether two of the last three scans after the first show that tokens stay apart after all."""
    later = run.readings[1:]
    return any(
        persists((one.step, (one.value(RATIO, place) or 0.0) > LEAST_RATIO) for one in later) is not None
        for place in run.places(RATIO)
    )


def _first_words(alarm: Alarm) -> str:
    if alarm.probe is not None:
        return alarm.probe.sentence
    return (
        f"The start is collapsed: the unit residual ratio falls from {number(alarm.start)} to {number(alarm.value)} "
        f"over the blocks of {alarm.where} before the first step."
    )


SAME, SURELY_SAME = 0.5, 0.8
"""Sublayers that move more coherently than the first number, and three times more than by chance, go the same way; and
those that do more than the second, which is beyond chance for the few sublayers whose threefold chance is above one."""


def _same_direction(run: RunSoFar) -> Iterator[Alarm]:
    for place in run.places(COHERENCE):
        holds = []
        for one in run.window():
            value, chance = one.value(COHERENCE, place), one.value(CHANCE, place)
            is_so = (
                value is not None
                and chance is not None
                and value >= max(SAME, min(FALL * chance, SURELY_SAME))
            )
            holds.append((one.step, is_so and (one.value(RATIO, place) or 1.0) <= ILL_RATIO))
        since, start = persists(holds), run.start(RATIO, place, rises=False)
        ratio = run.latest(RATIO, place)
        fell = start is not None and ratio is not None and ratio <= start / FALL
        if since is not None and fell and not _recovers(run, RATIO, place, ILL_RATIO):
            yield Alarm(
                name="same direction",
                where=place,
                since=since,
                step=run.step,
                value=run.latest(COHERENCE, place),
                start=run.latest(CHANCE, place),
            )


def _same_words(alarm: Alarm) -> str:
    return (
        f"The updates of all sublayers of {alarm.where} write the same row ({number(alarm.value, 2)} coherent; chance "
        f"{number(alarm.start, 2)}), and its tokens become equal."
    )


LOW_ENTROPY, GROWN = 0.1, 1.5
"""A head reads one key below this share of ln n, if its largest logit has grown by the second number."""


def _entropy(run: RunSoFar) -> Iterator[Alarm]:
    ill = Ill(
        signal=ENTROPY,
        is_ill=lambda value, start: value <= min(LOW_ENTROPY, start / FALL),
        rises=False,
    )
    stacks: dict[str, list[tuple[float, float, int, str]]] = {}
    for place in run.places(ENTROPY):
        found = ill.since(run, place)
        logit, first = run.latest(LOGIT, place), run.start(LOGIT, place, rises=True)
        if found is not None and logit is not None and first is not None and logit >= GROWN * first:
            since, value, start = found
            stacks.setdefault(place.split("/")[0], []).append((value, start, since, place))
    for heads in stacks.values():
        value, start, _, place = min(heads)
        yield Alarm(
            name="entropy",
            where=place,
            since=min(since for _, _, since, _ in heads),
            step=run.step,
            value=value,
            start=start,
            count=len(heads),
        )


def _entropy_words(alarm: Alarm) -> str:
    more = f" ({alarm.count} heads do)" if (alarm.count or 1) > 1 else ""
    return (
        f"Attention of {head_name(alarm.where)} comes to read one key{more}: its entropy is {percent(alarm.value)} of "
        f"ln n, and was {percent(alarm.start)} at the start, while its logits grow."
    )


LARGE_LOGIT, HALF_LOGIT, FULL_LOGIT = 50.0, 25.0, 100.0
"""Logits are large above the first number, or above the second one if they have doubled; the step is given at which
they come to the third."""


def _logits(run: RunSoFar) -> Iterator[Alarm]:
    def is_ill(value: float, start: float) -> bool:
        return (value >= LARGE_LOGIT and value >= GROWN * start) or (
            value >= HALF_LOGIT and value >= 2 * start
        )

    ill = Ill(signal=LOGIT, is_ill=is_ill, rises=True)
    stacks: dict[str, list[tuple[float, float, int, str]]] = {}
    for place in run.places(LOGIT):
        found = ill.since(run, place)
        if found is not None:
            since, value, start = found
            stacks.setdefault(place.split("/")[0], []).append((value, start, since, place))
    for heads in stacks.values():
        value, start, _, place = max(heads)
        yield Alarm(
            name="logits",
            where=place,
            since=min(since for _, _, since, _ in heads),
            step=run.step,
            value=value,
            start=start,
            count=len(heads),
            reaches=reaches(curve(run.readings[-FITTED:], LOGIT, place), FULL_LOGIT),
        )


def _logits_words(alarm: Alarm) -> str:
    fit = f"; a straight line reaches {number(FULL_LOGIT)} at step {alarm.reaches}" if alarm.reaches else ""
    return (
        f"The attention logits of {head_name(alarm.where)} grow: the largest is {number(alarm.value)}, and was "
        f"{number(alarm.start)} at the start{fit}."
    )


FLAT, WARM, LEAST_WARM = 0.1, 1000, 100
"""Attention is flat where the logits of a row differ by less than the first number, after the warm-up: as many steps as
are given, a tenth of the run but no fewer than the third number, or the second one. It is not where a straight line
through the last scans leaves this range within the run: small weights take their time."""


def _flat(run: RunSoFar) -> Iterator[Alarm]:
    usual = WARM if run.steps is None else max(run.steps // 10, LEAST_WARM)
    warm = usual if run.warmup is None else run.warmup
    if not run.readings or run.readings[-1].step <= warm:
        return
    stacks: dict[str, list[str]] = {}
    for place in run.places(LOGIT_RANGE):
        stacks.setdefault(place.split("/")[0], []).append(place)
    for stack, places in stacks.items():

        def middle(one: Reading, places: Sequence[str] = places) -> float | None:
            known = sorted(v for place in places if (v := one.value(LOGIT_RANGE, place)) is not None)
            return known[len(known) // 2] if known else None

        start = next((value for one in run.readings if (value := middle(one)) is not None), None)
        holds = [
            (one.step, one.step > warm and (value := middle(one)) is not None and value <= FLAT)
            for one in run.window()
        ]
        since, latest = persists(holds), middle(run.readings[-1])
        points = [(one.step, value) for one in run.readings[-FITTED:] if (value := middle(one)) is not None]
        leaves = reaches(points, FLAT)
        if leaves is not None and leaves <= run.horizon:
            continue
        if since is not None and latest is not None and start is not None and latest <= 2 * start:
            yield Alarm(name="flat", where=stack, since=since, step=run.step, value=latest, start=start)


def _flat_words(alarm: Alarm) -> str:
    return (
        f"After the warm-up the attention of {alarm.where} still reads all keys alike: the logits of a row differ by "
        f"{number(alarm.value)} (median head), at the start by {number(alarm.start)}."
    )


ILL_SHARE = 0.5


def _massive(run: RunSoFar) -> Iterator[Alarm]:
    ill = Ill(signal=SHARE, is_ill=lambda value, start: value >= max(ILL_SHARE, 2 * start), rises=True)
    yield from _each(run, ill, "massive token")


def _massive_words(alarm: Alarm) -> str:
    return (
        f"One token of {alarm.where} holds {percent(alarm.value)} of the squared lengths of all, and held "
        f"{percent(alarm.start)} at the start."
    )


NEAR_OVERFLOW = 0.1


def _overflow(run: RunSoFar) -> Iterator[Alarm]:
    most = DTYPE_MOST.get(run.readings[-1].dtype or "", math.inf) if run.readings else math.inf
    for place in run.places(LARGEST):
        points = curve(run.readings[-FITTED:], LARGEST, place)
        logs = [(step, math.log(value)) for step, value in points if value > 0]
        ahead = reaches(logs, math.log(most)) if math.isfinite(most) and len(logs) >= 3 else None
        soon = ahead is not None and ahead <= run.horizon

        def is_ill(value: float, start: float, soon: bool = soon) -> bool:
            near = value >= NEAR_OVERFLOW * most or (soon and value >= 1e-3 * most)
            return near and value >= 2 * start

        found = Ill(signal=LARGEST, is_ill=is_ill, rises=True).since(run, place)
        if found is not None:
            since, value, start = found
            yield Alarm(
                name="overflow ahead",
                where=place,
                since=since,
                step=run.step,
                value=value,
                start=start,
                reaches=ahead,
                dtype=run.readings[-1].dtype,
            )


def _overflow_words(alarm: Alarm) -> str:
    fit = f"; it gets there at step {alarm.reaches} if it grows on like this" if alarm.reaches else ""
    return (
        f"The largest entry of a state of {alarm.where} is {number(alarm.value)}, and was {number(alarm.start)} at the "
        f"start; {alarm.dtype} ends at {number(DTYPE_MOST.get(alarm.dtype or ''))}{fit}."
    )


STREAM_GROWTH = 100.0


def _growth(run: RunSoFar) -> Iterator[Alarm]:
    ill = Ill(signal=LENGTH, is_ill=lambda value, start: value >= STREAM_GROWTH * start > 0, rises=True)
    yield from _each(run, ill, "growth")


def _growth_words(alarm: Alarm) -> str:
    times = (alarm.value or 0.0) / alarm.start if alarm.start else None
    return (
        f"The stream of {alarm.where} grows: its tokens have the length {number(alarm.value)} after the last block, "
        f"{number(times)} times that of the start."
    )


ILL_DEAD = 0.05


def _dead(run: RunSoFar) -> Iterator[Alarm]:
    for signal in DEAD:
        ill = Ill(signal=signal, is_ill=lambda value, start: value >= start + ILL_DEAD, rises=True)
        for one in _each(run, ill, "dead"):
            yield one.model_copy(update={"where": f"{signal.removeprefix('dead_')} of {one.where}"})


def _dead_words(alarm: Alarm) -> str:
    return f"Dead {alarm.where}: {percent(alarm.value)} say nothing now, {percent(alarm.start)} did at the start."


def _each(run: RunSoFar, ill: Ill, name: AlarmName) -> Iterator[Alarm]:
    for place in run.places(ill.signal):
        found = ill.since(run, place)
        if found is not None:
            since, value, start = found
            yield Alarm(name=name, where=place, since=since, step=run.step, value=value, start=start)


def _not_finite(run: RunSoFar) -> Iterator[Alarm]:
    """Weights and states that are no numbers do not recover: one scan is enough. A loss may skip a step."""
    lost = tuple(run.readings[-1].not_finite) if run.readings else ()
    since = run.readings[-1].step if lost else None
    recent = run.losses[-3:]
    bad = sum(one.lost for one in recent)
    if not lost and recent and recent[-1].lost and bad >= 2:
        lost, since = ("the loss",), recent[0].first if recent[0].lost else recent[-1].first
    if lost and since is not None:
        yield Alarm(name="non-finite", where=lost[0], since=since, step=run.step, not_finite=lost[:3])


def _not_finite_words(alarm: Alarm) -> str:
    return f"NaN or infinity in {listed(alarm.not_finite)}."


# ------------------------------------------------------------------------------------------------------------- stuck

PRIMARY = {
    *("uniform classes", "class prior", "uniform tokens", "unigram", "InfoNCE at equal similarities"),
    *("NT-Xent at equal similarities", "InfoNCE with a queue", "triplet margin", "prototypes, uniform"),
    *("preference at equal scores", "negative cosine, collapsed", "mean of the targets"),
}
"""Rows of the table of trivial values that a run is compared with: those at which no network that learns stands still,
so that a healthy plateau near one is a contradiction. The others are for ``rankscope stuck``."""

STUCK, STUCK_SHARE, STUCK_LEAST = 0.005, 0.05, 20
"""A loss is stuck that stays within this share of a trivial value for this share of the run, and so many losses."""

STUCK_UNKNOWN = 200
"""Steps that it takes where the length of the run is not known."""

PIECES = 10
"""Pieces of the time whose means are looked at: batches make single losses noisy."""

EXACT = {GIVEN: STUCK, CONSTANT: 5e-4, USUAL: 1e-4}
"""How near the mean must be, by rank: a size that nobody gave fits by chance unless the loss has its digits."""

STILL = {GIVEN: 0.0025, CONSTANT: 5e-4, USUAL: 1e-4}
"""The two halves of the time differ by less than this share of the value: a loss that falls slowly comes past many
trivial values."""


def _stuck(run: RunSoFar) -> Iterator[Alarm]:
    if not run.losses:
        return
    length = STUCK_SHARE * (run.steps or run.losses[-1].last + 1)
    length = max(length, STUCK_LEAST if run.steps else STUCK_UNKNOWN)
    first = run.losses[-1].last - length
    recent = [one for one in run.losses if one.first > first]
    before = run.losses[len(run.losses) - len(recent) - 1] if len(recent) < len(run.losses) else None
    covered = run.losses[-1].last - (recent[0].first if recent else 0) + 1
    if before is not None and covered < length:  # the bucket that the time begins in
        recent = [before, *recent]
        covered = run.losses[-1].last - recent[0].first + 1
    many = sum(one.count for one in recent)
    logged = run.losses[-1].last - run.losses[0].first + 1
    seldom = many * 2 < covered  # a trainer logs means of many steps
    if (
        covered < length
        or logged < length
        or many < (3 if seldom else STUCK_LEAST)
        or any(one.lost for one in recent)
    ):
        return
    half = len(recent) // 2
    mean, before_half, after_half = _mean(recent), _mean(recent[:half]), _mean(recent[half:])
    if mean is None or before_half is None or after_half is None:
        return
    for one in candidates(run.sizes):
        if one.row.name not in PRIMARY or one.rank not in EXACT or abs(one.value) < 1e-6:
            continue
        if _stands(one, mean, (before_half, after_half), recent):
            since = next(
                (
                    bucket.last + 1
                    for bucket in reversed(run.losses)
                    if abs(bucket.mean - one.value) > STUCK * abs(one.value)
                ),
                run.losses[0].first,
            )
            yield Alarm(
                name="stuck",
                where="loss",
                since=min(since, recent[0].first),
                step=run.step,
                value=mean,
                start=run.losses[0].mean,
                constant=fit_of(one, mean),
            )
            return


def _mean(buckets: Sequence[LossBucket]) -> float | None:
    many = sum(one.count for one in buckets)
    return sum(one.mean * one.count for one in buckets) / many if many else None


def _stands(one: Candidate, mean: float, halves: tuple[float, float], recent: Sequence[LossBucket]) -> bool:
    size = abs(one.value)
    near = (
        abs(mean - one.value) <= EXACT[one.rank] * size
        and abs(halves[0] - halves[1]) <= STILL[one.rank] * size
    )
    pieces = min(PIECES, len(recent))
    cuts = [round(at * len(recent) / pieces) for at in range(pieces + 1)]
    means = [_mean(recent[first:last]) for first, last in pairwise(cuts)]
    inside = sum(mean is not None and abs(mean - one.value) <= STUCK * size for mean in means)
    return near and inside >= 0.9 * pieces


def _stuck_words(alarm: Alarm) -> str:
    fit = alarm.constant
    what = "a trivial value" if fit is None else f"{fit.equation} ({fit.name}): {fit.outputs}"
    return f"The loss stands still at {number(alarm.value, 4)} since step {alarm.since}, which is {what}"


def head_name(place: str) -> str:
    """A place in words.

    >>> head_name("blocks/3/0"), head_name("blocks")
    ('head 0 of block 3 (blocks)', 'blocks')
    """
    stack, *rest = place.split("/")
    return f"head {rest[1]} of block {rest[0]} ({stack})" if len(rest) == 2 else place


PAPER = "Noci et al. 2022, Signal propagation in transformers; the limits of the verdict of a scan"

ALARMS: Mapping[str, AlarmKind] = {
    one.name: one
    for one in (
        AlarmKind(
            name="non-finite",
            formula="a weight, a state or two of the last three losses are NaN or infinite",
            source="no number comes back from NaN",
            default="one scan; of the loss 2 of 3 buckets",
            words=_not_finite_words,
            try_="Load the checkpoint before this step, lower the learning rate, clip gradients; look at the logits.",
            judge=_not_finite,
        ),
        AlarmKind(
            name="first steps",
            formula="unit residual ratio after three steps on a copy <= 0.1; or the start itself is collapsed",
            source="three-step probe: right for 26 of 27 designs",
            default="3 steps of AdamW at the learning rate of the run; ends when 2 of 3 scans are above 0.1",
            words=_first_words,
            try_="Move the norms before attention and MLP, scale the branches by 1/sqrt(2L), or warm up the learning "
            "rate; rankscope diagnose tries them.",
            judge=_first_steps,
        ),
        AlarmKind(
            name="collapsing",
            formula="ratio <= 0.05, and <= 1/3 of the first scans (or of float32), and <= 1/3 of what enters block 1",
            source=PAPER,
            default="0.05, factor 3, 2 of 3 scans, not if it has risen by half from its lowest",
            words=_collapsing_words,
            try_="Stop and start again with norms before attention and MLP, branches scaled by 1/sqrt(2L), or a "
            "warm-up; rankscope diagnose ranks the remedies.",
            judge=_collapsing,
        ),
        AlarmKind(
            name="inputs collapsing",
            formula="ratio across inputs <= 0.2 and 0.4 of the first scans; or rank <= 0.1 of Gaussian, 1/4 of it",
            source="Chen and He 2021, Exploring simple Siamese representation learning; Garrido et al. 2023, RankMe",
            default="0.2, factor 2.5 (rank: 0.1, factor 4), 2 of 3 scans, 10 steps without turning",
            words=_inputs_words,
            try_="Check the stop-gradient, the predictor, negatives or the variance term of the loss; lower the "
            "learning rate of the head. A predictor that first learns the mean of its targets passes through this.",
            judge=_inputs,
        ),
        AlarmKind(
            name="same direction",
            formula="|sum D| / sum |D| >= 0.5 and min(0.8, 3/sqrt(sublayers)), the ratio <= 0.05 and 1/3 of the start",
            source="the first step of Adam moves every weight by the learning rate, whatever its gradient",
            default="0.5, 3 times chance or 0.8, 2 of 3 scans",
            words=_same_words,
            try_="Warm up the learning rate, lower it, or scale the branches by 1/sqrt(2L).",
            judge=_same_direction,
        ),
        AlarmKind(
            name="overflow ahead",
            formula="largest entry >= a tenth of the dtype's largest, or a fit of its logarithm gets there in this run",
            source="float16 ends at 65504",
            default="0.1 of the largest number, twice the start, 2 of 3 scans",
            words=_overflow_words,
            try_="Train in bfloat16, or clip, or lower the learning rate; look for a massive token.",
            judge=_overflow,
        ),
        AlarmKind(
            name="logits",
            formula="largest logit >= 50 and 1.5 times the start, or >= 25 and twice the start",
            source="Dehghani et al. 2023, Scaling vision transformers to 22 billion parameters; Wortsman et al. 2023, "
            "Small-scale proxies",
            default="50, 25, factor 2, 2 of 3 scans",
            words=_logits_words,
            try_="Normalise queries and keys, lower the learning rate, or decay the weights of queries and keys.",
            judge=_logits,
        ),
        AlarmKind(
            name="entropy",
            formula="entropy of a head <= 0.1 ln n and <= 1/3 of its start, while its largest logit grew by half",
            source="Zhai et al. 2023, Stabilizing transformer training by preventing attention entropy collapse",
            default="0.1, factor 3, 2 of 3 scans",
            words=_entropy_words,
            try_="Normalise queries and keys, lower the learning rate, lengthen the warm-up.",
            judge=_entropy,
        ),
        AlarmKind(
            name="stuck",
            formula="loss within 0.5% of a trivial value for 5% of the run, and its two halves within 0.25%",
            source="the table of rankscope stuck",
            default="0.5%, 5% (200 steps where the length is not known); sizes not given: 0.01% to 0.05%",
            words=_stuck_words,
            try_="rankscope stuck says what the network outputs there.",
            judge=_stuck,
        ),
        AlarmKind(
            name="growth",
            formula="length of the tokens after the last block >= 100 times the first scans",
            source="the scale of a pre-norm stream grows with its branches",
            default="factor 100, 2 of 3 scans",
            words=_growth_words,
            try_="Lower the learning rate, decay the weights, or scale the branches.",
            judge=_growth,
        ),
        AlarmKind(
            name="flat",
            formula="logits of a row differ by <= 0.1 (median head) after the warm-up, at most twice the start",
            source="equal tokens give queries and keys no gradient",
            default="0.1; warm-up as given, a tenth of the run (100 or more), or 1000; 2 of 3 scans, no line out of it",
            words=_flat_words,
            try_="Check that queries and keys get gradients (rankscope scan --gradients), and their initial size.",
            judge=_flat,
        ),
        AlarmKind(
            name="dead",
            formula="share of tokens, channels or heads below 1e-6 of their root mean square: 5 points above the start",
            source="a zero output gives no gradient",
            default="5%, 2 of 3 scans",
            words=_dead_words,
            try_="Lower the learning rate, check masks and padding, and the gain of the norms.",
            judge=_dead,
        ),
        AlarmKind(
            name="massive token",
            formula="one token has >= half of the squared lengths, and twice its share at the start",
            source="Sun et al. 2024, Massive activations in large language models",
            default="0.5, factor 2, 2 of 3 scans",
            words=_massive_words,
            try_="Usual in trained language models (attention sinks); in float16 watch for overflow.",
            judge=_massive,
        ),
    )
}
"""By name, the most urgent first."""
