"""The verdict of ``circle`` in words: who merges, who stays apart, and why."""

from collections.abc import Callable
from statistics import median

from rankscope.papers.figures.circle_cases import AROUND, CASES
from rankscope.papers.figures.circle_orbits import ATTRACTING, attracting_weights, multipliers, one_head
from rankscope.papers.figures.circle_rules import (
    FEWEST,
    Network,
    Networks,
    by_hidden,
    is_apart,
    is_collapsed,
    is_fastest,
    is_merged,
    is_rare,
    is_still,
    last_mean,
    last_ratio,
    last_share,
    leaving_growth,
    most,
    of_case,
)
from rankscope.papers.figures.circle_runs import MERGED
from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.statistics import share_text
from rankscope.papers.figures.wording import geometric

ANSWERS = {True: "yes", False: "no", None: "not decided"}


def verdict_and_notes(networks: Networks, steps: int, points: int) -> tuple[list[Point], list[str]]:
    """Points for the section ``verdict``, sentences for the section ``notes``."""
    found = [
        merging_point(networks, steps),
        order_point(networks),
        skip_point(networks, steps),
        mlp_point(networks, steps),
        lag_point(networks),
        collapse_point(networks, steps),
        cause_point(networks, steps, points),
        both_point(networks, steps),
        law_point(networks, steps),
        orbit_point(),
    ]
    return found, _notes(networks, steps, points)


def merging_point(networks: Networks, steps: int) -> Point:
    """Of attention alone, and of the layer of the published code; agrees if both do."""
    ours, theirs = of_case(networks, "san"), of_case(networks, "official")
    ran = [one for one in ours if one["ending"] == "ran off"]
    still = [one for one in theirs if one["ending"] != "merged"]
    return Point(
        source="reported",
        statement="Without skips and MLPs the two trajectories merge to one point.",
        measured=f"Distance below 1% of the start for good within {steps} steps. Attention alone: "
        f"{_merging(ours)}; {len(ran)} run away from each other. Layer of the published code with its optimizer: "
        f"{_merging(theirs)}; of those that do not merge {sum(is_still(one) for one in still)} of {len(still)} stand "
        "still before.",
        agrees=decided([most(ours, is_merged), most(theirs, is_merged)]),
    )


def order_point(networks: Networks) -> Point:
    """Agrees if the smallest hidden size merges before the others and the largest in fewer than half of its networks.

    Both are judged in both readings, see ``is_fastest`` and ``is_rare``.
    """
    told, checks = [], list[bool | None]()
    for case in ("san", "official"):
        groups = by_hidden(of_case(networks, case))
        parts = []
        for hidden, group in groups.items():
            merged = [one for one in group if is_merged(one)]
            errors = geometric([one["error_over_zero"] for one in group])
            parts.append(
                f"hidden {hidden} {len(merged)} of {len(group)}, median step {_median(group, 'merged_at')}, "
                f"error {errors}"
            )
        sizes, own = list(groups), list(groups.values())
        (fastest, chance), rare = is_fastest(own), is_rare(own[-1]) if len(own) > 1 else None
        checks += [fastest, rare]
        judged = (
            ""
            if len(own) < 2
            else (
                f"; {sizes[0]} is the fastest: {ANSWERS[fastest]}{'' if chance is None else f' (p = {chance:.2g})'}, "
                f"{sizes[-1]} merges in fewer than half: {ANSWERS[rare]}"
            )
        )
        told.append(f"{_title(case)}: {'; '.join(parts)}{judged}")
    return Point(
        source="reported",
        statement="They merge fastest with 32 channels; with 128 it is hardly seen.",
        measured=f"Networks that merge, when, and the mean squared error of one step over that of saying zero. "
        f"{'. '.join(told)}. Fastest is judged by ranks of the step of merging, never being last (permutation test), "
        "hardly seen by the 95% interval of the share. Adam at the published rate moves a weight by about 1e-5 per "
        "step, 0.012 in the 1190 steps of the paper, so that a narrow network has learned less: width and training "
        "are not told apart there.",
        agrees=decided(checks),
    )


def skip_point(networks: Networks, steps: int) -> Point:
    group = of_case(networks, "skip")
    return Point(
        source="reported",
        statement="With a skip the two points stay apart.",
        measured=f"Distance between half and twice the start after {steps} steps: {_share(group, is_apart)}; "
        f"it is {_range(group, last_share)} of the start. Their mean is {_range(group, last_mean)} radii out.",
        agrees=most(group, is_apart),
    )


def mlp_point(networks: Networks, steps: int) -> Point:
    """Agrees if MLPs keep the points apart in both readings."""
    ours, theirs = of_case(networks, "mlp"), of_case(networks, "official-mlp")
    without = of_case(networks, "official")
    return Point(
        source="reported",
        statement="With an MLP the two points stay apart.",
        measured=f"After {steps} steps, MLP after attention and no skip at all: {_share(ours, is_apart)} apart, "
        f"{sum(map(is_merged, ours))} merged, {sum(one['ending'] == 'ran off' for one in ours)} ran off. Layer of the "
        f"published code with its optimizer, which has skips around attention and MLP: {_share(theirs, is_apart)} "
        f"apart and {sum(map(is_merged, theirs))} merged with the MLP, {sum(map(is_apart, without))} and "
        f"{sum(map(is_merged, without))} of {len(without)} without it.",
        agrees=decided([most(ours, is_apart), most(theirs, is_apart)]),
    )


def lag_point(networks: Networks) -> Point:
    """Agrees if most networks fall behind by a tenth or more."""
    group = of_case(networks, "skip")
    return Point(
        source="reported",
        statement="With a skip the points lag behind those of the circle.",
        measured=f"Angle that the pair has turned over the angle taught, with a skip around the step: "
        f"{_range(group, lambda one: one['turned'])}. The published code does not run what it trained: in training its "
        "network sees the sum of two pairs, afterwards the sum of all its answers. That is not repeated here.",
        agrees=most(group, lambda one: one["turned"] < 0.9),
    )


def collapse_point(networks: Networks, steps: int) -> Point:
    """Holds if most networks of attention alone end below the level, and most with a skip above it."""
    cases = ("san", "skip", "mlp", "both", "official", "official-mlp")
    told = "; ".join(
        f"{_title(case)} {_range(group, last_ratio)}, {sum(map(is_collapsed, group))} of {len(group)} below"
        for case in cases
        if (group := of_case(networks, case))
    )
    san, skip = of_case(networks, "san"), of_case(networks, "skip")
    return Point(
        source="ours",
        statement="Collapse is relative. By the residual ratio, too, attention alone collapses and with a skip it does "
        "not: the mean does not outgrow the distance.",
        measured=f"|x1 - x2| / (sqrt(2) |X|) after {steps} steps, 1 at the start, no smaller than "
        f"rounding, "
        f"collapsed below {MERGED:g}: {told}.",
        agrees=decided([most(san, is_collapsed), most(skip, lambda one: not is_collapsed(one))]),
    )


def cause_point(networks: Networks, steps: int, points: int) -> Point:
    """Holds if most networks of attention alone grow fast enough to leave, and most with a skip grow more slowly.

    Fast enough is ``leaving_growth``. With a skip they are compared network by network, same hidden size and seed.
    """
    san, skip = of_case(networks, "san"), of_case(networks, "skip")
    alone = {(one["hidden"], one["seed"]): one["growth"] for one in san}
    leaving = leaving_growth(steps, points)
    return Point(
        source="ours",
        statement="Attention alone cannot hold the circle it was taught: changes of the pair grow so fast that it "
        "leaves within the steps followed; with a skip they grow more slowly. Opposite points have no mean, so that "
        "nothing is learned about it.",
        measured="Largest growth per step along the taught points, from the derivatives of a step: attention alone "
        f"{_range(san, lambda one: one['growth'])} (mean by itself {_range(san, lambda one: one['mean_growth'])}, "
        f"difference by itself {_range(san, lambda one: one['difference_growth'])}), with a skip "
        f"{_range(skip, lambda one: one['growth'])}; above {leaving:.4g} the mean of the first pair is out at the "
        f"radius within {steps} steps. Weak attention cubes a difference, so that relative changes of it grow by up to "
        f"3: inwards they end merged, outwards far away. Attention alone leaves the circle at step "
        f"{_median(san, 'left_at')} (median). Once the mean is large it rules the logits of both tokens, they read "
        "the same one, and the difference is gone.",
        agrees=decided(
            [
                most(san, lambda one: one["growth"] > leaving),
                most(skip, lambda one: one["growth"] < alone[one["hidden"], one["seed"]]),
            ]
        ),
    )


def both_point(networks: Networks, steps: int) -> Point:
    group = of_case(networks, "both")
    return Point(
        source="ours",
        statement="With a skip and an MLP the two points stay apart.",
        measured=f"After {steps} steps: {_share(group, is_apart)}; distance {_range(group, last_share)} of the "
        f"start, mean {_range(group, last_mean)} radii out.",
        agrees=most(group, is_apart),
    )


def law_point(networks: Networks, steps: int) -> Point:
    """Holds if most networks that were taught the surroundings stay apart."""
    group = of_case(networks, "around")
    return Point(
        source="ours",
        statement="Merging is no law of attention alone: the same layer holds two points apart if it is also taught "
        "what lies around the circle.",
        measured=f"Inputs shaken by {AROUND:g} of the radius, targets on the circle: {_share(group, is_apart)} apart "
        f"after {steps} steps, {sum(map(is_merged, group))} merged, at {_range(group, last_share)} of the distance "
        f"at the start. Largest growth per step {_range(group, lambda one: one['growth'])}.",
        agrees=most(group, is_apart),
    )


def orbit_point() -> Point:
    """From closed forms; two heads are one example, one head is said of every strength."""
    two = multipliers(ATTRACTING, attracting_weights())
    one = multipliers([1.0], one_head(1.0))
    return Point(
        source="ours",
        statement="With isotropic logits one head never holds two opposite points, two heads can.",
        measured="Calculated, nothing random enters: multipliers of a small change per step, closed form. One head "
        f"of strength z: mean 1/tanh(z), "
        f"difference 1 + 4z/sinh(2z), both above 1 for every z; at z = 1 {one.mean_across:.3f} and "
        f"{one.difference_along:.3f}. Two heads of strengths {ATTRACTING[0]:g} and {ATTRACTING[1]:g} with weights "
        f"{attracting_weights()[0]:.3f} and -2: {two.difference_along:.3f}, {two.mean_along:.3f}, "
        f"{two.mean_across:.3f}, and 1 for a turn of both.",
        agrees=two.largest < 1 and one.mean_across > 1 and one.difference_along > 1,
    )


def _notes(networks: Networks, steps: int, points: int) -> list[str]:
    trained = {case.name: of_case(networks, case.name) for case in CASES}
    errors = "; ".join(
        f"{case.title} {geometric([one['error_over_staying'] for one in trained[case.name]])}"
        for case in CASES
    )
    fewest = min(map(len, trained.values()))
    told = "1 network was" if fewest == 1 else f"{fewest} networks were"
    few = f"Of each kind {told} trained. What was seen is told; what depends on the seed is judged from {FEWEST} on."
    return [
        *([few] if fewest < FEWEST else []),
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


def _share(group: Networks, holds: Callable[[Network], bool]) -> str:
    return share_text(sum(map(holds, group)), len(group))


def _median(group: Networks, name: str) -> str:
    seen = [one[name] for one in group if one[name] is not None]
    return f"{median(seen):g}" if seen else "none"


def _range(group: Networks, number: Callable[[Network], float]) -> str:
    numbers = sorted(map(number, group))
    if len(numbers) == 1:
        return f"{numbers[0]:.3g}"
    return f"{median(numbers):.3g} ({numbers[0]:.3g} to {numbers[-1]:.3g})"


def _merging(group: Networks) -> str:
    """How many merge, when, and how far out their common point is when it is last seen."""
    merged = [one for one in group if is_merged(one)]
    if not merged:
        return _share(group, is_merged)
    return (
        f"{_share(group, is_merged)}, at a median step of {_median(group, 'merged_at')}, with the common point "
        f"{_range(merged, last_mean)} radii out when it was last seen"
    )


def _title(case: str) -> str:
    return next(one.title for one in CASES if one.name == case)
