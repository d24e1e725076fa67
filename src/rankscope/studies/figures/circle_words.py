"""The verdict of ``circle`` in words: who merges, who stays apart, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from rankscope.results.intervals import wilson
from rankscope.studies.figures.circle_orbits import ATTRACTING, attracting_weights, multipliers, one_head
from rankscope.studies.figures.figure import Point, decided
from rankscope.studies.figures.statistics import share_text
from rankscope.studies.figures.wording import geometric
from rankscope.studies.tasks.task import Setting

Networks = Sequence[Mapping[str, Any]]
"""One mapping per network: its case, hidden size and seed, and what ``circle_runs.described`` says of it."""

AROUND = 0.1
"""Noise on the points learned from, in radii, where the surroundings of the circle are taught as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A column of the figure: what a step is made of, and how it is taught."""

    name: str
    title: str
    variant: str
    setting: Setting = "paper"
    fields: Mapping[str, Any] = field(default_factory=dict)


CASES = (
    Case(name="san", title="attention alone", variant="san"),
    Case(name="skip", title="with a skip", variant="san+skip"),
    Case(name="mlp", title="with an MLP", variant="san+mlp"),
    Case(name="both", title="with both", variant="transformer"),
    Case(name="official", title="published code", variant="official", setting="official"),
    Case(name="official-mlp", title="published code, MLP", variant="official+mlp", setting="official"),
    Case(
        name="around",
        title="attention alone, shaken",
        variant="san",
        fields={"noise": AROUND, "learning_rate": 3e-3, "batch": 64},
    ),
)


def verdict_and_notes(networks: Networks, steps: int, points: int) -> tuple[list[Point], list[str]]:
    """Points for the section ``verdict``, sentences for the section ``notes``."""
    found = [
        merging_point(networks, steps),
        order_point(networks),
        skip_point(networks, steps),
        mlp_point(networks, steps),
        lag_point(networks),
        cause_point(networks),
        both_point(networks, steps),
        law_point(networks, steps),
        orbit_point(),
    ]
    return found, _notes(networks, steps, points)


def merging_point(networks: Networks, steps: int) -> Point:
    """Of attention alone, and of the layer of the published code; agrees if both do."""
    ours, theirs = _of(networks, "san"), _of(networks, "official")
    ran = [one for one in ours if one["ending"] == "ran off"]
    still = [one for one in theirs if one["ending"] != "merged"]
    return Point(
        source="reported",
        statement="Without skips and MLPs the two trajectories merge to one point.",
        measured=f"Distance below 1% of the start for good within {steps} steps. Attention alone: "
        f"{_share(ours, _is_merged)}, at a median step of {_median(ours, 'merged_at')}; {len(ran)} run away from each "
        f"other. The common point of those that merge is no rest: it has left the circle, {_out(ours)} radii out when "
        f"it was last seen. Layer of the published code with its optimizer: {_share(theirs, _is_merged)}, at a median "
        f"step of {_median(theirs, 'merged_at')}, and at rest {_out(theirs)} radii out; of those that do not merge "
        f"{sum(_is_still(one) for one in still)} of {len(still)} stand still before.",
        agrees=decided([_most(ours, _is_merged), _most(theirs, _is_merged)]),
    )


def order_point(networks: Networks) -> Point:
    """Agrees if the share that merges falls and the median step rises from each hidden size to the next."""
    told, checks = [], []
    for case in ("san", "official"):
        groups = _by_hidden(_of(networks, case))
        parts = []
        for hidden, group in groups.items():
            merged = [one for one in group if _is_merged(one)]
            errors = geometric([one["error_over_zero"] for one in group])
            parts.append(
                f"hidden {hidden} {len(merged)} of {len(group)}, median step {_median(group, 'merged_at')}, "
                f"error {errors}"
            )
        told.append(f"{_title(case)}: {'; '.join(parts)}")
        checks.append(_is_slower(list(groups.values())))
    return Point(
        source="reported",
        statement="They merge fastest with 32 channels; with 128 it is hardly seen.",
        measured=f"Networks that merge, when, and the mean squared error of one step over that of saying zero. "
        f"{'. '.join(told)}. Adam at the published rate moves a weight by about 1e-5 per step, 0.012 in the 1190 steps "
        "of the paper, so that a narrow network has learned less: width and training are not told apart there.",
        agrees=decided(checks),
    )


def skip_point(networks: Networks, steps: int) -> Point:
    group = _of(networks, "skip")
    return Point(
        source="reported",
        statement="With a skip the two points stay apart.",
        measured=f"Distance between half and twice the start after {steps} steps: {_share(group, _is_apart)}; "
        f"it is {_range(group, _last_share)} of the start. Their mean is {_range(group, _last_mean)} radii out.",
        agrees=_most(group, _is_apart),
    )


def mlp_point(networks: Networks, steps: int) -> Point:
    """Agrees if MLPs keep the points apart in both readings."""
    ours, theirs = _of(networks, "mlp"), _of(networks, "official-mlp")
    without = _of(networks, "official")
    return Point(
        source="reported",
        statement="With an MLP the two points stay apart.",
        measured=f"After {steps} steps, MLP after attention and no skip at all: {_share(ours, _is_apart)} apart, "
        f"{sum(map(_is_merged, ours))} merged, {sum(one['ending'] == 'ran off' for one in ours)} ran off. Layer of the "
        f"published code with its optimizer, which has skips around attention and MLP: {_share(theirs, _is_apart)} "
        f"apart and {sum(map(_is_merged, theirs))} merged with the MLP, {sum(map(_is_apart, without))} and "
        f"{sum(map(_is_merged, without))} of {len(without)} without it.",
        agrees=decided([_most(ours, _is_apart), _most(theirs, _is_apart)]),
    )


def lag_point(networks: Networks) -> Point:
    """Agrees if most networks fall behind by a tenth or more."""
    group = _of(networks, "skip")
    return Point(
        source="reported",
        statement="With a skip the points lag behind those of the circle.",
        measured=f"Angle that the pair has turned over the angle taught, with a skip around the step: "
        f"{_range(group, lambda one: one['turned'])}. The published code does not run what it trained: in training its "
        "network sees the sum of two pairs, afterwards the sum of all its answers. That is not repeated here.",
        agrees=_most(group, lambda one: one["turned"] < 0.9),
    )


def cause_point(networks: Networks) -> Point:
    """Holds if the factor is above 1 in all networks that left, and the skip has the smaller one."""
    san, skip = _of(networks, "san"), _of(networks, "skip")
    return Point(
        source="ours",
        statement="Attention alone cannot hold the circle it was taught: changes of the pair grow in every step. "
        "Opposite points have no mean, so that nothing is learned about it.",
        measured="Largest growth per step along the taught points, from the derivatives of a step: attention alone "
        f"{_range(san, lambda one: one['growth'])} (mean by itself {_range(san, lambda one: one['mean_growth'])}, "
        f"difference by itself {_range(san, lambda one: one['difference_growth'])}), with a skip "
        f"{_range(skip, lambda one: one['growth'])}. Weak attention cubes a difference, so that relative changes of it "
        f"grow by up to 3: inwards they end merged, outwards far away. Attention alone leaves the circle at step "
        f"{_median(san, 'left_at')} (median). Once the mean is large it rules the logits of both tokens, they read "
        "the same one, and the difference is gone.",
        agrees=decided(
            [_most(san, lambda one: one["growth"] > 1.1), _most(skip, lambda one: one["growth"] < 1.1)]
        ),
    )


def both_point(networks: Networks, steps: int) -> Point:
    group = _of(networks, "both")
    return Point(
        source="ours",
        statement="With a skip and an MLP the two points stay apart.",
        measured=f"After {steps} steps: {_share(group, _is_apart)}; distance {_range(group, _last_share)} of the "
        f"start, mean {_range(group, _last_mean)} radii out.",
        agrees=_most(group, _is_apart),
    )


def law_point(networks: Networks, steps: int) -> Point:
    """Holds if most networks that were taught the surroundings stay apart."""
    group = _of(networks, "around")
    return Point(
        source="ours",
        statement="Merging is no law of attention alone: the same layer holds two points apart if it is also taught "
        "what lies around the circle.",
        measured=f"Inputs shaken by {AROUND:g} of the radius, targets on the circle: {_share(group, _is_apart)} apart "
        f"after {steps} steps, {sum(map(_is_merged, group))} merged, at {_range(group, _last_share)} of the distance "
        f"at the start. Largest growth per step {_range(group, lambda one: one['growth'])}.",
        agrees=_most(group, _is_apart),
    )


def orbit_point() -> Point:
    """From closed forms; two heads are one example, one head is said of every strength."""
    two = multipliers(ATTRACTING, attracting_weights())
    one = multipliers([1.0], one_head(1.0))
    return Point(
        source="ours",
        statement="With isotropic logits one head never holds two opposite points, two heads can.",
        measured=f"Multipliers of a small change per step, closed form. One head of strength z: mean 1/tanh(z), "
        f"difference 1 + 4z/sinh(2z), both above 1 for every z; at z = 1 {one.mean_across:.3f} and "
        f"{one.difference_along:.3f}. Two heads of strengths {ATTRACTING[0]:g} and {ATTRACTING[1]:g} with weights "
        f"{attracting_weights()[0]:.3f} and -2: {two.difference_along:.3f}, {two.mean_along:.3f}, "
        f"{two.mean_across:.3f}, and 1 for a turn of both.",
        agrees=two.largest < 1 and one.mean_across > 1 and one.difference_along > 1,
    )


def _notes(networks: Networks, steps: int, points: int) -> list[str]:
    trained = {case.name: _of(networks, case.name) for case in CASES}
    errors = "; ".join(
        f"{case.title} {geometric([one['error_over_staying'] for one in trained[case.name]])}"
        for case in CASES
    )
    return [
        f"Two tokens of the plane, {points} points to a turn, taught to be one step further; then {steps} steps on "
        "the network's own answers, in float64, from the first pair. The two arcs start at angle 0 and one step before "
        "pi, as in the published code.",
        "A skip is that of the recurrence, x + step(x). The published code has another one inside its layer in every "
        "case, norm(h + attention(h)); it is shown as it is, trained with the published optimizer (Adam at 1e-5, 70 "
        "epochs of batches of 30 in order), without dropout.",
        f"Mean squared error of one taught step over that of not moving, geometric mean: {errors}.",
        "Merging and leaving are two things: the distance of the points may vanish while their mean runs away, and "
        "the mean may run away while the distance stays. A run ends where rounding of the positions hides 1% of the "
        "distance at the start.",
        "Two tokens x = m +- d: a head whose rows differ by t sends d to t d W and m to m W, |t| < 1. To keep d on its "
        "circle W must grow by 1/t, and so grows m, unless another head takes it back.",
        "An MLP after one head does not help: it works on each token by itself, has to bring a circle of radius t r "
        "back to r, stretches by 1/t along that circle, and with it a mean across d. A skip needs W for one step of "
        "the walk alone, not for all of d.",
    ]


def _of(networks: Networks, case: str) -> list[Mapping[str, Any]]:
    return [one for one in networks if one["case"] == case]


def _by_hidden(group: Networks) -> dict[int, list[Mapping[str, Any]]]:
    sizes = sorted({one["hidden"] for one in group})
    return {hidden: [one for one in group if one["hidden"] == hidden] for hidden in sizes}


def _is_merged(one: Mapping[str, Any]) -> bool:
    return bool(one["ending"] == "merged")


def _is_apart(one: Mapping[str, Any]) -> bool:
    return bool(one["ending"] == "apart")


def _is_still(one: Mapping[str, Any]) -> bool:
    """Whether the points stand: the last tenth of the way moves them by less than 1% of the distance."""
    early, late = one["path"][-max(len(one["path"]) // 10, 2)], one["path"][-1]
    moved = max(abs(a - b) for a, b in zip(early, late, strict=True))
    return bool(moved < 0.01 * one["distance"][0])


def _most(group: Networks, holds: Callable[[Mapping[str, Any]], bool]) -> bool | None:
    """True if it holds in all and their number makes more than half likely, False if in less than half, else None."""
    count = sum(map(holds, group))
    low, high = wilson(count, len(group))
    if count == len(group) and low > 0.5:
        return True
    return False if high < 0.5 else None


def _is_slower(groups: Sequence[Networks]) -> bool | None:
    """Whether every next group merges less often and later; None for a single group or none that merges."""
    if len(groups) < 2 or not any(_is_merged(one) for group in groups for one in group):
        return None
    never = float("inf")
    medians = [median([never if one["merged_at"] is None else one["merged_at"] for one in g]) for g in groups]
    if all(first < second for first, second in pairwise(medians)):
        return True
    return False if medians[0] >= medians[-1] else None


def _share(group: Networks, holds: Callable[[Mapping[str, Any]], bool]) -> str:
    return share_text(sum(map(holds, group)), len(group))


def _median(group: Networks, name: str) -> str:
    seen = [one[name] for one in group if one[name] is not None]
    return f"{median(seen):g}" if seen else "none"


def _range(group: Networks, number: Callable[[Mapping[str, Any]], float]) -> str:
    numbers = sorted(map(number, group))
    return f"{median(numbers):.3g} ({numbers[0]:.3g} to {numbers[-1]:.3g})"


def _last_share(one: Mapping[str, Any]) -> float:
    return float(one["distance"][-1] / one["distance"][0])


def _last_mean(one: Mapping[str, Any]) -> float:
    """Length of the mean in radii; the pair starts on opposite sides, so that the distance is two radii."""
    return float(one["mean"][-1] / (one["distance"][0] / 2))


def _out(group: Networks) -> str:
    merged = [one for one in group if _is_merged(one)]
    return _range(merged, _last_mean) if merged else "none"


def _title(case: str) -> str:
    return next(one.title for one in CASES if one.name == case)
