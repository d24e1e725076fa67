"""``circle``: one layer, applied again and again to two points on opposite sides of a circle."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np
import polars as pl
from pydantic import JsonValue
from scipy import stats

from rankscope.charts import Chart, Grid, GridCell, Line, Panel, Plane, PlaneLine, Point, Spot, Square
from rankscope.core.refs import Ref
from rankscope.core.words import count, number, span
from rankscope.findings.base import Value
from rankscope.papers.figures.circle_orbits import (
    ATTRACTING,
    MERGED,
    StepRecord,
    attracting_weights,
    multipliers,
    one_head,
    record_step,
)
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_or_none, register
from rankscope.papers.figures.statistics import share_text
from rankscope.papers.tasks.circle import CIRCLE, CircleConfig
from rankscope.papers.tasks.task import Setting as TaskSetting
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table
from rankscope.results.statistics import wilson
from rankscope.studies.rows import RowBuilder

DISTANCE, MEAN = "distance[start]", "mean[radius]"
DEFINITIONS = {
    DISTANCE: "distance of the two points over that at the start",
    MEAN: "length of the mean of the two points over the radius of the circle",
}

AROUND = 0.1
"""Noise on the points learned from, in radii, where the surroundings of the circle are taught as well."""

LEVEL = 0.05
FEWEST = 4
"""With fewer networks that all do the same the 95% interval of the share still has one half in it."""

LAG = 0.9
"""Points that have turned by less than this share of what was taught lag behind."""

ENDINGS = ("merged", "apart", "nearer", "ran off")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a step is made of, and how it is taught."""

    name: str
    title: str
    variant: str
    setting: TaskSetting = "paper"
    fields: Mapping[str, float] = field(default_factory=dict)


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

GROUPS = {
    "attention, skip and MLP": ("san", "skip", "mlp", "both"),
    "published code, and attention taught more": ("official", "official-mlp", "around"),
}
"""Cases that are drawn together, by what they have in common."""


class CircleFigureConfig(FigureConfig):
    """Which hidden sizes and seeds, how many steps are followed, and how training differs."""

    figure: Literal["circle"] = "circle"
    hidden: tuple[int, ...]
    steps: int = 300
    points: int = 1000
    epochs: int = 70
    around_epochs: int = 190

    def task(self, case: Case, hidden: int, seed: int) -> CircleConfig:
        """The configuration of one network."""
        epochs = self.around_epochs if case.name == "around" else self.epochs
        fields = {"points": self.points, "epochs": epochs, "dim": hidden, "seed": seed}
        config: CircleConfig = CIRCLE.configured(
            case.setting, **fields | {"variant": case.variant} | dict(case.fields)
        )
        return config


# ------------------------------------------------------------------------------------------------ what is found


class CircleSetting(Value):
    """How many steps are followed, and how many points a turn has."""

    steps: int
    points: int


class CircleNetwork(StepRecord):
    """One trained network, and how its two points went."""

    case: str
    variant: str
    hidden: int
    seed: int

    @property
    def is_merged(self) -> bool:
        return self.ending == "merged"

    @property
    def is_apart(self) -> bool:
        return self.ending == "apart"

    @property
    def is_still(self) -> bool:
        """Whether the points stand: the last tenth of the way moves them by less than 1% of the distance."""
        early, late = self.path[-max(len(self.path) // 10, 2)], self.path[-1]
        return max(abs(a - b) for a, b in zip(early, late, strict=True)) < 0.01 * self.distance[0]

    @property
    def last_share(self) -> float:
        """Distance at the end over that at the start."""
        return self.distance[-1] / self.distance[0]

    @property
    def last_mean(self) -> float:
        """Length of the mean in radii; the pair starts on opposite sides, so that the distance is two radii."""
        return self.mean[-1] / (self.distance[0] / 2)

    @property
    def last_ratio(self) -> float:
        """``|x1 - x2| / (sqrt(2) |X|)`` at the end: the residual ratio in the Frobenius norm, for two tokens.

        With mean ``m`` and ``d = x1 - x2``, ``|X|^2 = 2 |m|^2 + |d|^2 / 2`` and the residual has ``|d|^2 / 2``. A
        distance below its floor is taken to be the floor.
        """
        apart = max(self.distance[-1], self.floor[-1])
        return apart / math.hypot(apart, 2 * self.mean[-1]) if apart else 0.0

    @property
    def is_collapsed(self) -> bool:
        return self.last_ratio < MERGED


class CircleFound(Value):
    """All networks, what the cases are called, and how the first network of every case was trained."""

    setting: CircleSetting
    cases: dict[str, str]
    networks: tuple[CircleNetwork, ...]
    training: dict[str, CircleConfig]

    def of(self, case: str) -> list[CircleNetwork]:
        return [one for one in self.networks if one.case == case]

    @property
    def hidden(self) -> list[int]:
        return sorted({one.hidden for one in self.networks})

    @property
    def leaving_growth(self) -> float:
        """The growth per step that takes the mean of the first pair out to the radius within the steps followed.

        It starts with ``radius sin(pi / points)``, so that ``g^steps sin(pi / points) = 1``.
        """
        return float(math.sin(math.pi / self.setting.points) ** (-1 / self.setting.steps))


# -------------------------------------------------------------------------------------------------------- rules


def most(holds: Sequence[bool]) -> bool | None:
    """True if it holds in all and their number makes more than half likely, False if in less than half, else None."""
    low, high = wilson(sum(holds), len(holds))
    if all(holds) and low > 0.5:
        return True
    return False if high < 0.5 else None


def is_rare(holds: Sequence[bool]) -> bool | None:
    """Whether it holds in fewer than half, or in more, by the interval of the share."""
    low, high = wilson(sum(holds), len(holds))
    return True if high < 0.5 else False if low > 0.5 else None


def is_fastest(groups: Sequence[Sequence[int | None]]) -> tuple[bool | None, float | None]:
    """Whether the first group merges before all others together, and how likely such a difference is by chance.

    Groups hold steps of merging, None for never. Ranks of the steps, never being last, are compared with those after
    networks change groups at random (two-sided permutation test). None if that chance is not below 5%.
    """
    steps = [math.inf if one is None else one for group in groups for one in group]
    if len(groups) < 2 or all(map(math.isinf, steps)):
        return None, None
    if len(set(steps)) == 1:
        return None, 1.0
    ranks, first = stats.rankdata(steps), len(groups[0])

    def later(one: np.ndarray, others: np.ndarray) -> float:
        return float(one.mean() - others.mean())

    found = stats.permutation_test(
        (ranks[:first], ranks[first:]), later, n_resamples=9999, random_state=np.random.default_rng(0)
    )
    chance = float(found.pvalue)
    return (bool(found.statistic < 0) if chance < LEVEL else None), chance


# ------------------------------------------------------------------------------------------------- computation


def compute(config: CircleFigureConfig, job: Job) -> tuple[Table, CircleFound]:
    """Distance and mean at every step of every network."""
    rows, networks = RowBuilder(), list[CircleNetwork]()
    work = list(_work(config))
    for done, (case, hidden, seed) in enumerate(work):
        job.tell(done, len(work))
        task = config.task(case, hidden, seed)
        walk = walk_of(task, config.steps, job, f"{case.name}-{hidden}-{seed}")
        about = {"case": case.name, "variant": case.variant, "hidden": hidden, "seed": seed}
        networks.append(CircleNetwork.model_validate(about | walk.model_dump()))
        _add(rows, networks[-1], task.radius)
    job.tell(len(work), len(work))
    table = rows.table(config, command="reproduce", seeds=config.seeds, definitions=DEFINITIONS)
    return table, CircleFound(
        setting=CircleSetting(steps=config.steps, points=config.points),
        cases={case.name: case.title for case in CASES},
        networks=tuple(networks),
        training={case.name: config.task(case, config.hidden[0], 0) for case in CASES},
    )


def _work(config: CircleFigureConfig) -> Iterator[tuple[Case, int, int]]:
    for case in CASES:
        for hidden in config.hidden:
            for seed in config.seeds:
                yield case, hidden, seed


def walk_of(config: CircleConfig, steps: int, job: Job, key: str) -> StepRecord:
    """One network, trained and followed; both are kept in the store of the job."""
    asked: dict[str, JsonValue] = {"config": config.model_dump(mode="json"), "steps": steps}

    def make() -> StepRecord:
        trained = train_task(CIRCLE, config, folder=job.store.folder(key, asked))
        return record_step(trained.model.double(), config, steps)

    return job.store.keep(StepRecord, key, asked, make)


def _add(rows: RowBuilder, one: CircleNetwork, radius: float) -> None:
    many = len(one.distance)
    for definition, name, values, unit in (
        (DISTANCE, "distance", one.distance, one.distance[0]),
        (MEAN, "mean", one.mean, radius),
    ):
        rows.add(
            many,
            {
                "case": one.case,
                "variant": one.variant,
                "hidden": one.hidden,
                "seed": one.seed,
                "model": "circle",
                "step": list(range(many)),
                "measure": name,
                "definition": definition,
                "value": [value / unit for value in values],
                "floor": [floor / unit for floor in one.floor],
            },
        )


# ---------------------------------------------------------------------------------------------------- statements


def points(found: CircleFound) -> list[Statement]:
    """Five readings of the paper, then why attention alone leaves the circle, and that it need not."""
    return [
        _merging(found),
        _order(found),
        _apart(found, "skip", "reported", "With a skip the two points stay apart."),
        _mlp(found),
        _lag(found),
        _collapse(found),
        _cause(found),
        _apart(found, "both", "ours", "With a skip and an MLP the two points stay apart."),
        _law(found),
        _orbit(),
    ]


def _merging(found: CircleFound) -> Statement:
    """Of attention alone, and of the layer of the published code; agrees if both do."""
    ours, theirs = found.of("san"), found.of("official")
    return Statement(
        source="reported",
        statement="Without skips and MLPs the two trajectories merge to one point.",
        measured=f"Distance below {MERGED:.0%} of the start for good within {found.setting.steps} steps. Attention "
        f"alone: {_merged_text(ours)}; {_count(ours, lambda one: one.ending == 'ran off')} run away from each other. "
        f"Layer of the published code with its optimizer: {_merged_text(theirs)}; "
        f"{_count(theirs, lambda one: not one.is_merged and one.is_still)} stand still before that.",
        agrees=all_or_none([most([one.is_merged for one in group]) for group in (ours, theirs)]),
    )


def _order(found: CircleFound) -> Statement:
    """Agrees if the smallest hidden size merges before the others and the largest in fewer than half of its networks.

    Both are judged for attention alone and for the published layer.
    """
    said, checks = [], list[bool | None]()
    for case in ("san", "official"):
        groups = [[one for one in found.of(case) if one.hidden == hidden] for hidden in found.hidden]
        fastest, chance = is_fastest([[one.merged_at for one in group] for group in groups])
        rare = is_rare([one.is_merged for one in groups[-1]]) if len(groups) > 1 else None
        checks += [fastest, rare]
        parts = [
            f"hidden {hidden} {_count(group, lambda one: one.is_merged)} of {len(group)}"
            + (f", median step {number(_median(group, 'merged_at'))}" if _median(group, "merged_at") else "")
            for hidden, group in zip(found.hidden, groups, strict=True)
        ]
        sure = "" if chance is None else f", p = {number(chance, 2)}"
        judged = (
            f" ({found.hidden[0]} is the fastest: {ANSWERS[fastest]}{sure}; {found.hidden[-1]} merges in fewer than "
            f"half: {ANSWERS[rare]})"
            if len(groups) > 1
            else ""
        )
        said.append(f"{found.cases[case]}: {'; '.join(parts)}{judged}")
    return Statement(
        source="reported",
        statement="They merge fastest with 32 channels; with 128 it is hardly seen.",
        measured=f"Networks that merge. {'. '.join(said)}. Fastest is judged by ranks of the step of merging "
        "(permutation test), hardly seen by the 95% interval of the share.",
        agrees=all_or_none(checks),
    )


def _apart(found: CircleFound, case: str, source: Literal["reported", "ours"], statement: str) -> Statement:
    group = found.of(case)
    return Statement(
        source=source,
        statement=statement,
        measured=f"Distance between half and twice the start after {found.setting.steps} steps: "
        f"{_share(group, lambda one: one.is_apart)}; it is {_range(group, lambda one: one.last_share)} of the start. "
        f"Their mean is {_range(group, lambda one: one.last_mean)} radii out.",
        agrees=most([one.is_apart for one in group]),
    )


def _mlp(found: CircleFound) -> Statement:
    """Agrees if MLPs keep the points apart in both readings."""
    ours, theirs, without = found.of("mlp"), found.of("official-mlp"), found.of("official")
    return Statement(
        source="reported",
        statement="With an MLP the two points stay apart.",
        measured=f"After {found.setting.steps} steps, MLP after attention and no skip: "
        f"{_apart_words(ours)}. Layer of the published code, which has skips around attention and MLP: "
        f"{_apart_words(theirs)}; without its MLP {_apart_words(without)}.",
        agrees=all_or_none([most([one.is_apart for one in group]) for group in (ours, theirs)]),
    )


def _lag(found: CircleFound) -> Statement:
    """Agrees if most networks fall behind by a tenth or more."""
    group = found.of("skip")
    return Statement(
        source="reported",
        statement="With a skip the points lag behind those of the circle.",
        measured="Angle that the pair has turned over the angle taught, with a skip around the step: "
        f"{_range(group, lambda one: one.turned)}. The published code sums all answers where its training summed two; "
        "that is not repeated here.",
        agrees=most([one.turned < LAG for one in group]),
    )


def _collapse(found: CircleFound) -> Statement:
    """Holds if most networks of attention alone end below the level, and most with a skip above it."""
    said = "; ".join(
        f"{title} {_range(group, lambda one: one.last_ratio)}, {_count(group, lambda one: one.is_collapsed)} of "
        f"{len(group)} below"
        for case, title in found.cases.items()
        if case != "around" and (group := found.of(case))
    )
    return Statement(
        source="ours",
        statement="Collapse is relative: by the residual ratio, too, attention alone collapses and with a skip it does "
        "not.",
        measured=f"|x1 - x2| / (sqrt(2) |X|) after {found.setting.steps} steps, 1 at the start, collapsed below "
        f"{MERGED:g}. {said}.",
        agrees=all_or_none(
            [
                most([one.is_collapsed for one in found.of("san")]),
                most([not one.is_collapsed for one in found.of("skip")]),
            ]
        ),
    )


def _cause(found: CircleFound) -> Statement:
    """Holds if most networks of attention alone grow fast enough to leave, and most with a skip grow more slowly.

    Fast enough is ``leaving_growth``. With a skip they are compared network by network, same hidden size and seed.
    """
    san, skip = found.of("san"), found.of("skip")
    alone = {(one.hidden, one.seed): one.growth for one in san}
    left = _median(san, "left_at")
    return Statement(
        source="ours",
        statement="Attention alone cannot hold the circle it was taught: changes of the pair grow so fast that it "
        "leaves within the steps followed; with a skip they grow more slowly.",
        measured="Largest growth per step along the taught points, from the derivatives of a step: attention alone "
        f"{_range(san, lambda one: one.growth)} (mean {_range(san, lambda one: one.mean_growth)}, difference "
        f"{_range(san, lambda one: one.difference_growth)}), with a skip {_range(skip, lambda one: one.growth)}. Above "
        f"{number(found.leaving_growth, 4)} the mean of the first pair is out at the radius within "
        f"{found.setting.steps} steps."
        + ("" if left is None else f" Attention alone leaves the circle at step {number(left)} (median)."),
        agrees=all_or_none(
            [
                most([one.growth > found.leaving_growth for one in san]),
                most([one.growth < alone[one.hidden, one.seed] for one in skip]),
            ]
        ),
    )


def _law(found: CircleFound) -> Statement:
    """Holds if most networks that were taught the surroundings stay apart."""
    group = found.of("around")
    return Statement(
        source="ours",
        statement="Merging is no law of attention alone: the same layer holds two points apart if it is also taught "
        "what lies around the circle.",
        measured=f"Inputs shaken by {AROUND:g} of the radius, targets on the circle: "
        f"{_apart_words(group)} after {found.setting.steps} steps, at "
        f"{_range(group, lambda one: one.last_share)} of the distance at the start. "
        f"Largest growth per step {_range(group, lambda one: one.growth)}.",
        agrees=most([one.is_apart for one in group]),
    )


def _orbit() -> Statement:
    """From closed forms; two heads are one example, one head is said of every strength."""
    two = multipliers(ATTRACTING, attracting_weights())
    one = multipliers([1.0], one_head(1.0))
    first, second = attracting_weights()
    return Statement(
        source="ours",
        statement="With isotropic logits one head never holds two opposite points, two heads can.",
        measured="Closed form, factors of a small change per step. One head of strength z: mean 1/tanh(z), difference "
        f"1 + 4z/sinh(2z), both above 1 for every z; at z = 1 {number(one.mean_across, 4)} and "
        f"{number(one.difference_along, 4)}. Two heads of strengths {ATTRACTING[0]:g} and {ATTRACTING[1]:g} with "
        f"weights {number(first, 4)} and {number(second)}: {number(two.difference_along)}, {number(two.mean_along)} "
        f"and {number(two.mean_across)}, and 1 for a turn of both.",
        agrees=two.largest < 1 and one.mean_across > 1 and one.difference_along > 1,
    )


ANSWERS = {True: "yes", False: "no", None: "not decided"}

Group = Sequence[CircleNetwork]


def _count(group: Group, holds: Callable[[CircleNetwork], bool]) -> int:
    return sum(map(holds, group))


def _share(group: Group, holds: Callable[[CircleNetwork], bool]) -> str:
    return share_text(_count(group, holds), len(group))


def _apart_words(group: Group) -> str:
    return (
        f"{_share(group, lambda one: one.is_apart)} apart, {_count(group, lambda one: one.is_merged)} merged"
    )


def _median(group: Group, name: Literal["merged_at", "left_at"]) -> float | None:
    seen = [step for one in group if (step := getattr(one, name)) is not None]
    return float(median(seen)) if seen else None


def _range(group: Group, value: Callable[[CircleNetwork], float]) -> str:
    """The median, with the least and the greatest."""
    values = [value(one) for one in group]
    middle, ends = number(median(values)), span(values)
    return middle if ends == middle else f"{middle} ({ends})"


def _merged_text(group: Group) -> str:
    """How many merge, when, and how far out their common point is when it is last seen."""
    share, merged = _share(group, lambda one: one.is_merged), [one for one in group if one.is_merged]
    if not merged:
        return share
    return (
        f"{share}, at a median step of {number(_median(group, 'merged_at'))}, with the common point "
        f"{_range(merged, lambda one: one.last_mean)} radii out when it was last seen"
    )


def notes(found: CircleFound) -> list[str]:
    """What a reader must know."""
    setting = found.setting
    fewest = min(len(found.of(case)) for case in found.cases)
    few = (
        f"{count(fewest, 'network')} of each kind: what depends on the seed is judged from {FEWEST} on. With fewer "
        "that all do the same, the 95% interval of the share still holds one half."
    )
    theirs = found.training["official"]
    moved = theirs.learning_rate * theirs.epochs * math.ceil(theirs.examples / theirs.batch)
    errors = "; ".join(
        f"{title} {number(_geometric([one.error_over_staying for one in found.of(case)]), 2)}"
        for case, title in found.cases.items()
    )
    return [
        *([few] if fewest < FEWEST else []),
        f"Two tokens of the plane, {setting.points} points to a turn, taught to be one step further; then "
        f"{setting.steps} steps on the network's own answers, in float64. A run ends where rounding of the positions "
        f"hides {MERGED:.0%} of the distance at the start.",
        "A skip is that of the recurrence, x + step(x). The published code has another one inside its layer in every "
        f"case, norm(h + attention(h)); it is shown as it is, with the published optimizer: Adam at a rate of "
        f"{number(theirs.learning_rate)}, {count(theirs.epochs, 'epoch')}. That moves a weight by about "
        f"{number(moved, 2)} in all, so that a narrow network learns less: width and training cannot be kept apart.",
        f"Mean squared error of one taught step over that of not moving, geometric mean: {errors}.",
        "Why attention alone leaves: for two tokens m + d and m - d a head whose rows differ by t < 1 sends d to t d W "
        "and m to m W. To keep d on its circle W must grow by 1/t, and so grows m, unless another head takes it back. "
        "Opposite points have no mean, so nothing is learned about it.",
    ]


def _geometric(values: Sequence[float]) -> float:
    """The geometric mean of those above zero; 0 if there are none."""
    logs = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


# ------------------------------------------------------------------------------------------------------- picture

REACH = 1.6
"""Half the width of a square, in radii."""

EVERY, FIRST = 4, 40
"""From step ``FIRST`` on only every fourth is drawn."""


def chart(found: CircleFound, table: Table) -> Chart:
    """Ways in the plane, distance and mean against steps, for the smallest hidden size; endings of all sizes."""
    hidden = found.hidden[0]
    frame = table.frame.filter(pl.col("hidden") == hidden)
    groups = list(GROUPS.values())
    pictures: list[Plane | Panel | Grid] = [
        Plane(
            title=f"In the plane, hidden size {hidden}: {words}",
            squares=[plane_square(found, case, hidden) for case in group],
            names=[("first point", 0), ("second point", 1), ("circle taught", -1)],
        )
        for words, group in GROUPS.items()
    ]
    for measure, title, value in (
        ("distance", "Distance of the two points, over that at the start", "distance / start"),
        ("mean", "Length of their mean, in radii", "mean / radius"),
    ):
        pictures += [
            Panel(
                title=title,
                lines=[
                    line
                    for place, case in enumerate(group)
                    for line in step_lines(frame, measure, case, found.cases[case], place)
                ],
                value=value,
                across="step",
            )
            for group in groups
        ]
    if len(found.hidden) > 1:
        pictures.append(_endings_grid(found))
    alone, skip = (found.of(case) for case in ("san", "skip"))
    is_told = most([one.is_merged for one in alone]) and most([one.is_apart for one in skip])
    return Chart(
        pictures,
        title="Under attention alone two points merge, with a skip they stay apart"
        if is_told
        else "Two points of a circle under one layer that is applied again and again",
        notes=[
            f"{found.setting.points} points to a turn, {found.setting.steps} steps, "
            f"{count(len({one.seed for one in found.networks}), 'seed')} of each kind; shaken: learned from points "
            "beside the circle as well",
            f"above each square how all networks of the kind ended (merged: below {MERGED:.0%} of the distance at the "
            "start for good); rings: start, dots: end; a path ends where it leaves its square, a curve where rounding "
            "hides it",
        ],
    )


def plane_square(found: CircleFound, case: str, hidden: int) -> Square:
    """The ways of both points of every seed, in radii, over the circle that was taught."""
    every = found.of(case)
    ways, spots = list[PlaneLine](), list[Spot]()
    for place, one in enumerate(one for one in every if one.hidden == hidden):
        radius = one.distance[0] / 2
        for token in (0, 1):
            way = [(step[2 * token] / radius, step[2 * token + 1] / radius) for step in one.path]
            kept = until_out(way)
            ways.append(PlaneLine(kept, token, faint=place > 0))
            said = f"point {token + 1}, seed {one.seed}"
            spots.append(Spot(*way[0], f"{said}: start", token, "ring"))
            if kept == way:  # else the end would stand apart from its path
                spots.append(Spot(*way[-1], f"{said}: after step {len(way) - 1}", token))
    counts = {name: sum(one.ending == name for one in every) for name in ENDINGS}
    return Square(
        name=found.cases[case],
        note=", ".join(f"{many} {name}" for name, many in counts.items() if many),
        extent=REACH,
        ways=ways,
        spots=spots,
        disk=1.0,
    )


def until_out(way: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The way up to where it first leaves the square."""
    kept = list[tuple[float, float]]()
    for x, y in way:
        size = max(abs(x), abs(y))
        if size <= REACH or not kept:
            kept.append((x, y))
            continue
        # The piece from the last point (a, b) inside crosses the frame at the least share of it that meets a side.
        a, b = kept[-1]
        shares = [
            (math.copysign(REACH, end) - start) / (end - start)
            for start, end in ((a, x), (b, y))
            if abs(end) > REACH
        ]
        share = min(shares)
        kept.append((a + share * (x - a), b + share * (y - b)))
        break
    return kept


def step_lines(frame: pl.DataFrame, measure: str, case: str, name: str, color: int) -> list[Line]:
    """A line per seed, named once. The first number below its floor stands at the floor, and ends the line."""
    own = frame.filter((pl.col("measure") == measure) & (pl.col("case") == case))
    lines = list[Line]()
    for (seed,), rows in own.group_by("seed", maintain_order=True):
        made = list[Point]()
        for step, value, floor, is_resolved in rows.select("step", "value", "floor", "resolved").iter_rows():
            if step >= FIRST and step % EVERY and is_resolved:
                continue
            shown = max(value, floor)
            said = f"{name}, seed {seed}: {number(value) if is_resolved else f'below {number(floor)}'}"
            made.append(Point(step, math.log10(shown) if shown > 0 else None, said, hollow=not is_resolved))
            if not is_resolved:
                break
        lines.append(Line(name="" if lines else name, points=made, color=color))
    return lines


def _endings_grid(found: CircleFound) -> Grid:
    cells = []
    for case in found.cases:
        row = []
        for hidden in found.hidden:
            group = [one for one in found.of(case) if one.hidden == hidden]
            merged = _count(group, lambda one: one.is_merged)
            ended = ", ".join(
                f"{many} {name}" for name in ENDINGS if (many := sum(one.ending == name for one in group))
            )
            row.append(GridCell(merged / len(group) if group else None, f"{merged} of {len(group)}", ended))
        cells.append(row)
    return Grid(
        title="Networks whose points merge",
        rows=list(found.cases.values()),
        columns=[str(hidden) for hidden in found.hidden],
        cells=cells,
        down="",
        across="hidden size",
        ends=("none", "all"),
    )


register(
    Figure(
        name="circle",
        title="one layer applied again and again to two points of a circle",
        source=Ref(
            key="dong2021",
            where="Section 4.3, recurrent attention on two points",
            differs="attention without the skip and norm that the published layer has inside, beside that layer; "
            "settings that train, beside the published ones",
        ),
        question="Do two tokens merge when one layer is repeated, and what keeps them apart?",
        durations={
            "fast": "seconds",
            "usual": "minutes",
            "full": "minutes",
        },
        sizes={
            "fast": CircleFigureConfig(
                size="fast", hidden=(32,), seeds=(0,), points=200, steps=100, epochs=70, around_epochs=400
            ),
            "usual": CircleFigureConfig(size="usual", hidden=(32, 64, 128), seeds=tuple(range(3))),
            "full": CircleFigureConfig(size="full", hidden=(32, 64, 128), seeds=tuple(range(10))),
        },
        found=CircleFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
