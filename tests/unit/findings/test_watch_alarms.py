"""Alarms as pure functions of a history: each rings on what it is for, after two scans of three, and not before."""

import math
import random
from pathlib import Path

import pytest

from rankscope.document import Tabular
from rankscope.findings.trivial import Sizes
from rankscope.findings.watch import ALARMS, LossCurve, Reading, RunSoFar, judge_run
from rankscope.findings.watch.history import MOST_BUCKETS, persists, reaches
from rankscope.findings.watch.log import RunLog
from rankscope.studies.watch import finding_of


def reading(step: int, dtype: str = "float32", **signals: float) -> Reading:
    """Numbers of the stack ``blocks``; of heads, those of head 0 of block 1."""
    heads = ("entropy", "largest_logit", "logit_range")
    return Reading(
        step=step,
        dtype=dtype,
        signals={
            name: {"blocks/1/0" if name in heads else "blocks": value} for name, value in signals.items()
        },
    )


def rings(readings: list[Reading], **about: object) -> list[str]:
    return [one.name for one in judge_run(RunSoFar(readings=readings, **about))]


def series(
    signal: str, *values: float, every: int = 100, dtype: str = "float32", **fixed: float
) -> list[Reading]:
    return [reading(place * every, dtype, **{signal: value}, **fixed) for place, value in enumerate(values)]


ILL = {
    "collapsing": series("ratio", 0.5, 0.5, 0.5, 0.02, 0.01, input_ratio=0.9),
    "inputs collapsing": series("inputs_ratio", 0.9, 0.9, 0.05, 0.01),
    "logits": series("largest_logit", 10, 12, 14, 55, 70),
    "massive token": series("token_share", 0.1, 0.1, 0.7, 0.8),
    "growth": series("length", 8, 8, 900, 1000),
    "dead": series("dead_channels", 0, 0, 0.2, 0.3),
    "overflow ahead": series("largest_state", 10, 100, 9000, 20000, dtype="float16"),
    "flat": series("logit_range", 0.05, 0.05, 0.04, 0.04, every=1000),
}


@pytest.mark.parametrize("name", ILL)
def test_an_alarm_rings_on_what_it_is_for_and_on_nothing_else(name: str) -> None:
    assert rings(ILL[name]) == [name]
    (alarm,) = judge_run(RunSoFar(readings=ILL[name]))
    assert alarm.sentence.endswith(".")
    assert alarm.try_
    assert alarm.page.startswith("docs/watch.md#")


@pytest.mark.parametrize("name", [name for name in ILL if name != "flat"])
def test_one_scan_is_not_enough(name: str) -> None:
    first = next(place for place in range(len(ILL[name])) if rings(ILL[name][: place + 1]))
    assert first >= 2
    once = [*ILL[name][:first], ILL[name][0].model_copy(update={"step": ILL[name][first].step})]
    assert not rings(once)


@pytest.mark.parametrize("name", [name for name in ILL if name not in ("flat", "dead", "overflow ahead")])
def test_what_was_so_from_the_start_is_no_change(name: str) -> None:
    last = ILL[name][-1].signals
    same = [Reading(step=100 * step, signals=last, dtype="float32") for step in range(6)]
    assert name not in rings(same)


def test_a_ratio_that_comes_back_does_not_ring() -> None:
    dip = series("ratio", 0.6, 0.3, 0.045, 0.03, 0.048, input_ratio=0.9)
    assert rings(dip[:4]) == ["collapsing"]
    assert rings(dip) == []


def test_inputs_that_part_again_do_not_ring() -> None:
    """A contrastive encoder trained by SGD on digits: its rows come near each other and part again by step 35."""
    values = {0: 0.854, 1: 0.291, 2: 0.175, 3: 0.137, 5: 0.109, 10: 0.096, 20: 0.129, 35: 0.603}
    run = [reading(step, inputs_ratio=value) for step, value in values.items()]
    assert [rings(run[:cut]) for cut in range(1, len(run) + 1)] == [[]] * len(run)
    falling = [reading(step, inputs_ratio=0.9 / (1 + step)) for step in range(0, 21, 2)]
    assert rings(falling) == ["inputs collapsing"]
    noisy = [0.9, 0.9] + [0.05 * (1 + 0.15 * (-1) ** step) for step in range(20)]
    rang = [bool(rings(series("inputs_ratio", *noisy[:cut], every=5))) for cut in range(1, len(noisy) + 1)]
    assert rang == [False] * rang.index(True) + [True] * (len(rang) - rang.index(True))


def test_what_rounding_leaves_does_not_end_an_alarm() -> None:
    rounding = [1e-16, 3e-17, 9e-17, 2e-16, 4e-17, 3e-16]
    for signal in ("inputs_ratio", "ratio"):
        run = series(signal, 0.6, 0.6, *rounding, input_ratio=0.9)
        assert [len(rings(run[:cut])) for cut in range(4, len(run) + 1)] == [1] * (len(rounding) - 1)


def test_heads_of_one_stack_share_an_alarm() -> None:
    def heads(step: int, one: float, other: float) -> Reading:
        return Reading(step=step, signals={"largest_logit": {"blocks/1/0": one, "blocks/2/1": other}})

    log = RunLog()
    for step, (one, other) in enumerate([(5, 5), (5, 5), (60, 55), (70, 80), (75, 300), (400, 300)]):
        log.take(heads(step, one, other))
        log.judged()
    assert [(one.name, one.where, one.since) for one in log.rang] == [("logits", "blocks/2/1", 2)]
    assert [(one.where, one.since) for one in log.ringing] == [("blocks/1/0", 2)]


def test_small_weights_may_take_their_time_to_leave_flat_attention() -> None:
    """A small GPT-2 at a low learning rate: its logits grow slowly, and its loss falls."""
    values = {0: 0.081, 20: 0.087, 40: 0.090, 50: 0.092, 60: 0.097, 80: 0.099, 120: 0.102}
    run = [reading(step, logit_range=value) for step, value in values.items()]
    for steps in (None, 300):
        assert [rings(run[:cut], steps=steps) for cut in range(1, len(run) + 1)] == [[]] * len(run)
    still = [reading(step, logit_range=0.08) for step in (0, 50, 120, 140)]
    assert rings(still, steps=300) == ["flat"]
    assert rings(still[:2], steps=300) == rings(still, steps=300, warmup=150) == []


def test_entropy_rings_only_while_logits_grow() -> None:
    falling = [0.9, 0.9, 0.05, 0.04]
    grown = [reading(s, entropy=e, largest_logit=5.0 + 5 * s) for s, e in enumerate(falling)]
    still = [reading(s, entropy=e, largest_logit=5.0) for s, e in enumerate(falling)]
    assert rings(grown) == ["entropy"]
    assert rings(still) == []


def test_same_direction_needs_equal_tokens_as_well() -> None:
    def moving(ratio: float) -> list[Reading]:
        return [
            reading(s, coherence=0.8, coherence_chance=0.14, input_ratio=0.9, ratio=0.6 if s < 2 else ratio)
            for s in range(5)
        ]

    assert "same direction" in rings(moving(0.01))
    assert rings(moving(0.2)) == []
    few = [
        one.model_copy(update={"signals": {**one.signals, "coherence_chance": {"blocks": 0.5}}})
        for one in moving(0.01)
    ]
    assert "same direction" in rings(few)  # of two blocks, three times chance would be 1.5


def test_only_one_precision_is_ill() -> None:
    both = [reading(s, "bfloat16", ratio=0.001, float32_ratio=0.5, input_ratio=0.9) for s in range(2)]
    (alarm,) = judge_run(RunSoFar(readings=both))
    assert alarm.name == "collapsing"
    assert "only bfloat16 is ill" in alarm.sentence


def test_a_start_that_is_collapsed_is_named() -> None:
    run = [reading(s, ratio=0.01, input_ratio=0.9) for s in range(3)]
    assert rings(run) == ["first steps"]
    assert rings([*run, *(reading(s, ratio=0.5, input_ratio=0.9) for s in (3, 4))]) == []


def test_since_is_kept_while_it_rings() -> None:
    run = ILL["collapsing"]
    first = judge_run(RunSoFar(readings=run))
    later = [*run, reading(900, ratio=0.01, input_ratio=0.9), reading(1000, ratio=0.01, input_ratio=0.9)]
    (alarm,) = judge_run(RunSoFar(readings=later), first)
    assert alarm.since == first[0].since == 300


def test_weights_that_are_no_numbers_ring_at_once() -> None:
    log = RunLog()
    for step, lost in enumerate((("weight b",), ("weight a", "weight b"))):
        log.take(Reading(step=step, signals={}, not_finite=lost))
        log.judged()
    assert [(one.step, one.where) for one in log.rang] == [(0, "weight b")]
    assert [(one.since, one.sentence) for one in log.ringing] == [(0, "NaN or infinity in weight b.")]
    assert rings([Reading(step=0, signals={}, not_finite=("weight a",))]) == ["non-finite"]


def test_the_fit_of_logits_says_when() -> None:
    run = series("largest_logit", 10, 20, 40, 60, 80)
    (alarm,) = judge_run(RunSoFar(readings=run))
    assert alarm.reaches is not None
    assert 430 <= alarm.reaches <= 560
    assert reaches([(0, 3.0), (10, 2.0)], 100.0) is None


def test_persistence_is_two_of_three() -> None:
    assert persists([(1, True), (2, False), (3, True)]) == 1
    assert persists([(1, True), (2, True), (3, False)]) is None


# the loss


def run_of(losses: list[float], **sizes: float) -> list[str]:
    """The sentences of all alarms that ring at any step."""
    curve, said = LossCurve(), []
    for step, loss in enumerate(losses):
        curve.add(step, loss)
        if step % 20 == 0 or step == len(losses) - 1:
            run = RunSoFar(losses=curve.buckets, steps=len(losses), sizes=Sizes(**sizes))
            said += [one.sentence for one in judge_run(run)]
    return said


@pytest.mark.parametrize(
    ("value", "sizes", "formula"),
    [
        (math.log(4096), {"classes": 4096}, "ln 4096"),
        (math.log(128), {"batch": 128}, "ln 128"),
        (math.log(2), {}, "ln 2"),
        (0.2, {"margin": 0.2}, "0.2"),
        (math.log(4096), {}, "ln 4096"),
        (-1.0, {}, "-1"),
    ],
)
def test_a_stuck_loss_is_named(value: float, sizes: dict[str, float], formula: str) -> None:
    g = random.Random(0)  # noqa: S311
    noise = 1e-3 if sizes else 5e-5
    start = [value * 1.1 ** (1 - step / 20) for step in range(20)] if value > 0 else []
    losses = [*start, *(value * (1 + g.gauss(0, noise)) for _ in range(400))]
    said = run_of(losses, **sizes)
    assert said
    assert f"{formula}" in said[-1]


@pytest.mark.parametrize("seed", range(50))
def test_a_healthy_loss_is_never_called_stuck(seed: int) -> None:
    """Falls of several shapes, with noise, from the value of a uniform output to some plateau."""
    g = random.Random(seed)  # noqa: S311
    classes = g.choice([2, 10, 100, 1000, 4096, 50257])
    top, length = math.log(classes), g.choice([300, 600, 1000])
    end, tau = top * g.uniform(0.05, 0.8), length * g.uniform(0.03, 0.4)
    warm = length * g.uniform(0.0, 0.05)
    noise = g.choice([0.0, 0.002, 0.01, 0.05])
    power = g.random() < 0.5
    losses = []
    for step in range(length):
        time = max(0.0, step - warm)
        fall = (1 + time / tau) ** -1.5 if power else math.exp(-time / tau)
        losses.append((end + (top - end) * fall) * (1 + g.gauss(0, noise)))
    assert run_of(losses, classes=classes, batch=g.choice([64, 128, 256])) == []


def test_a_loss_that_is_nan_twice_rings() -> None:
    assert "the loss" in run_of([2.0] * 10 + [math.nan] * 11)[-1]


def test_the_curve_is_kept_in_constant_memory_and_its_mean_is_right() -> None:
    curve = LossCurve()
    for step in range(5 * MOST_BUCKETS):
        curve.add(step, float(step))
    assert len(curve.buckets) <= MOST_BUCKETS
    assert sum(one.count for one in curve.buckets) == 5 * MOST_BUCKETS
    for one in curve.buckets:
        assert one.mean == (one.first + one.last) / 2
    curve.add(100, 1.0)
    assert curve.buckets[-1].last == 100


def test_every_alarm_is_declared_whole() -> None:
    page = Path(__file__).parents[3] / "docs/watch.md"
    headings = {line[4:] for line in page.read_text().splitlines() if line.startswith("### ")}
    assert headings == set(ALARMS)
    for one in ALARMS.values():
        assert one.formula
        assert one.source
        assert one.default
        assert one.try_.endswith(".")


def test_the_table_of_alarms_leaves_room_for_what_to_try() -> None:
    """Two columns of words side by side are wider than a page."""
    log = RunLog(readings=list(ILL["logits"]))
    log.judged()
    tables = [
        one
        for one in finding_of(log, source="x", origin="live").document().blocks
        if isinstance(one, Tabular)
    ]
    assert [[column.kind for column in one.columns].count("words") for one in tables] == [1]
