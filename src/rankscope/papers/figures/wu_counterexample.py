"""``wu-counterexample``: two tokens that the unit sphere keeps apart, over the weights of the system."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from rankscope.charts import Chart, Grid, GridCell
from rankscope.core.refs import Ref
from rankscope.core.words import count, number, percent, power
from rankscope.dynamics import attention_system, run
from rankscope.dynamics.clusters import uniform_starts
from rankscope.dynamics.two_tokens import TwoTokens
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.measures import find_measure
from rankscope.network import Attention, Fixed, Network, Sphere, Values
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, register
from rankscope.papers.figures.stacks import WORKERS
from rankscope.papers.figures.statistics import share_text
from rankscope.results import Table
from rankscope.results.table import Row
from rankscope.split import log_measure, split_states
from rankscope.studies.rows import RowBuilder, definitions

RATIO = "residual_ratio[frobenius,mean]"
ANGLE = 0.005
"""Two tokens span a plane if the sine of their angle is above this; a slower approach than 1/(w steps) is not seen."""

CLOSE = 0.05
"""Token 2 is at B if it ends this near: token 1, 1/(w steps) from its limit, moves the place of B by as little."""

SLOPES = 1e-6
"""A central difference over 1e-5 is off by about 1e-10 through curvature and as much through rounding."""

GONE = -6.0
"""Decades of mu/||X||_F below which two tokens have collapsed."""

EXAMPLE = TwoTokens(alpha=0.5, shear=3.0)

DEFINITIONS = (f"rank_two_share[sine>{ANGLE:g}]", "distance_to_limit[B]")


class WuCounterexampleConfig(FigureConfig):
    """A grid of systems, each with random starts; the first seed draws them."""

    figure: Literal["wu-counterexample"] = "wu-counterexample"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=1)
    alphas: tuple[float, ...]
    shears: tuple[float, ...]
    starts: int
    steps: int
    layers: int = 256


def _powers(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(round(low * (high / low) ** (k / (count - 1)), 6) for k in range(count))


# ------------------------------------------------------------------------------------------------ what is found


class WuCounterexampleSetting(Value):
    """How the systems were run."""

    starts: int
    steps: int
    layers: int
    """Of the same weights without a norm."""


class WeightPair(Value):
    """One pair of weights. B is the equilibrium at which two tokens span a plane; null where there is no B."""

    alpha: float
    shear: float
    least_shear: float
    """From which on B exists."""

    greatest_stable_shear: float | None
    """Up to which B attracts; null where it does for every shear above the least."""

    exists: bool
    share: float
    """Of random starts whose tokens span a plane in the end."""

    stable: bool | None
    multiplier: float | None
    """Of B, in closed form."""

    measured_multiplier: float | None
    """Of B, from two steps of the system."""

    limit: tuple[float, float] | None
    distance: float | None
    """Largest distance of token 2 from B, of the starts that stay apart."""

    log10_ratio_without_norm: float


class TokenEquilibrium(Value):
    """An equilibrium of token 2 in the example alpha = 1/2, w = 3."""

    name: str
    token: tuple[float, float]
    multiplier: float
    stable: bool | None


class WuCounterexampleFound(Value):
    """Every system of the grid, and the equilibria of the published example."""

    setting: WuCounterexampleSetting
    systems: tuple[WeightPair, ...]
    example: tuple[TokenEquilibrium, ...]

    @property
    def attracting(self) -> list[WeightPair]:
        """Systems whose B attracts token 2."""
        return [one for one in self.systems if one.stable]


# -------------------------------------------------------------------------------------------------- computation


def compute(config: WuCounterexampleConfig, job: Job) -> tuple[Table, WuCounterexampleFound]:
    """One row per system and measure."""
    rows, systems = RowBuilder(), list[WeightPair]()
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done, some in enumerate(
            pool.map(lambda alpha: _run_systems(alpha, config), config.alphas), start=1
        ):
            systems += some
            job.tell(done, len(config.alphas))
    for one in systems:
        _add(rows, one, config.layers)
    table = rows.table(
        config,
        command="reproduce",
        seeds=config.seeds[:1],
        definitions=definitions([RATIO])
        | {
            DEFINITIONS[0]: "share of random starts whose two tokens span a plane in the end",
            DEFINITIONS[1]: "largest distance of token 2 from B, of the starts that stay apart",
        },
    )
    found = WuCounterexampleFound(
        setting=WuCounterexampleSetting(starts=config.starts, steps=config.steps, layers=config.layers),
        systems=tuple(systems),
        example=tuple(
            TokenEquilibrium(name=one.name, token=one.token, multiplier=one.multiplier, stable=one.stable)
            for one in EXAMPLE.equilibria()
        ),
    )
    return table, found


def _run_systems(alpha: float, config: WuCounterexampleConfig) -> list[WeightPair]:
    """Starts of all systems with that alpha as one batch, and one start of each without the norm."""
    pairs = [TwoTokens(alpha=alpha, shear=shear) for shear in config.shears]
    starts = uniform_starts(config.starts, 2, 2, generator=torch.Generator().manual_seed(config.seeds[0]))
    maps, values = _weights(pairs)
    several = [one.repeat_interleave(config.starts, dim=0) for one in (maps, values)]
    system = attention_system(Fixed(several[0]), several[1], Sphere())
    final = run(system, starts.repeat(len(pairs), 1, 1), config.steps, slowness=None).final
    ends = final.reshape(len(pairs), config.starts, 2, 2)
    plain = _without_norm(maps, values, starts[:1].expand(len(pairs), 2, 2), config.layers)
    return [_one(pair, end, log10) for pair, end, log10 in zip(pairs, ends, plain.tolist(), strict=True)]


def _add(rows: RowBuilder, one: WeightPair, layers: int) -> None:
    about: Row = {"model": "two tokens", "mask": "causal", "alpha": one.alpha, "shear": one.shear}
    for definition, value in zip(DEFINITIONS, (one.share, one.distance), strict=True):
        named = {"measure": definition.partition("[")[0], "definition": definition}
        rows.add(1, {**about, **named, "norm": "sphere", "value": value, "floor": 0.0})
    log10 = one.log10_ratio_without_norm
    named = {"measure": "residual_ratio", "definition": RATIO}
    rows.add(
        1,
        {
            **about,
            **named,
            "value": 10**log10,
            "log10_value": log10,
            "norm": "none",
            "layer": layers,
            "floor": 0.0,
        },
    )


def _one(pair: TwoTokens, end: Tensor, log10_without_norm: float) -> WeightPair:
    """Share of starts that keep a plane, how far from B they end, and both multipliers of B."""
    sine = (end[:, 0, 0] * end[:, 1, 1] - end[:, 0, 1] * end[:, 1, 0]).abs()
    apart = end[sine > ANGLE]
    at_b = next((one for one in pair.equilibria() if one.name == "B"), None)
    distance = None
    if at_b is not None and len(apart):
        mirrored = apart[:, 1] * apart[:, 0, 1:].sign()  # token 1 may go to (0, -1): then all signs turn
        distance = float((mirrored - torch.tensor(at_b.token, dtype=torch.float64)).norm(dim=-1).max())
    greatest = pair.greatest_stable_shear
    return WeightPair(
        alpha=pair.alpha,
        shear=pair.shear,
        least_shear=pair.least_shear,
        greatest_stable_shear=greatest if math.isfinite(greatest) else None,
        exists=pair.exists,
        share=len(apart) / len(end),
        stable=None if at_b is None else at_b.stable,
        multiplier=None if at_b is None else at_b.multiplier,
        measured_multiplier=None if at_b is None else _slope(pair, at_b.token),
        limit=None if at_b is None else at_b.token,
        distance=distance,
        log10_ratio_without_norm=log10_without_norm,
    )


def _slope(pair: TwoTokens, token: tuple[float, float]) -> float:
    """Derivative of the angle of token 2 over one step at that place, from two steps of the system itself."""
    angle, shift = math.atan2(token[1], token[0]), 1e-5
    near = torch.tensor([angle - shift, angle + shift], dtype=torch.float64)
    second = torch.stack([near.cos(), near.sin()], dim=-1)
    first = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(2, 2)
    after = pair.system().step(torch.stack([first, second], dim=1))[:, 1]
    low, high = torch.atan2(after[:, 1], after[:, 0]).tolist()
    return math.remainder(high - low, 2 * math.pi) / (2 * shift)


def _weights(pairs: Sequence[TwoTokens]) -> tuple[Tensor, Tensor]:
    maps = [[[[1.0, 0.0], [pair.alpha, 1 - pair.alpha]]] for pair in pairs]
    values = [[[1.0, pair.shear], [0.0, 1.0]] for pair in pairs]
    return torch.tensor(maps, dtype=torch.float64), torch.tensor(values, dtype=torch.float64)


@torch.no_grad()
def _without_norm(maps: Tensor, values: Tensor, x: Tensor, layers: int) -> Tensor:
    """Log10 of value plus floor of the ratio, after that many layers of the same weights without a norm."""
    eye = torch.eye(2, dtype=torch.float64).expand_as(values)
    block = Attention(Fixed(maps), Values(values, eye, heads=1))
    found = log_measure(find_measure(RATIO), split_states(Network([block] * layers), x)[-1])
    floor = torch.full_like(found.log, torch.inf) if found.log_floor is None else found.log_floor
    return torch.logaddexp(found.log, floor) / math.log(10.0)


# --------------------------------------------------------------------------------------------------- statements


def points(found: WuCounterexampleFound) -> list[Statement]:
    """The published counter-example, and what its closed form says of all weights."""
    setting, systems = found.setting, found.systems
    missing = [one for one in systems if not one.exists]
    alone = [one for one in missing if one.share > 0]
    settled = found.attracting
    kept = [one for one in settled if one.share > 0]
    distances = sorted(one.distance for one in kept if one.distance is not None)
    off = distances[-1] if distances else None
    slopes = max((abs(_off_slope(one)) for one in settled), default=None)
    deepest = max(one.log10_ratio_without_norm for one in systems)
    late = 1 / (min(one.shear for one in systems) * setting.steps)
    return [
        Statement(
            source="reported",
            statement="With LayerNorm and a suitable value map two tokens keep rank 2 (token 1 tends to (0, 1) or "
            "(0, -1), token 2 to B).",
            measured=f"With token 1 at its limit, B attracts token 2 in {len(settled)} of {len(systems)} systems of "
            f"the grid; in {len(kept)} of these some of {setting.starts} random starts of both tokens end there"
            f"{_ends(kept, setting.starts)}.",
            agrees=len(kept) > 0,
        ),
        Statement(
            source="ours",
            statement="B exists from w = alpha / (1 - alpha) on (closed form of the rebuilt example).",
            measured=f"Below the boundary {len(missing) - len(alone)} of {len(missing)} systems have no start that "
            "keeps rank 2; where B attracts, "
            + (
                f"token 2 of all starts that keep rank 2 ends within {number(off, 2)} of the closed form in all "
                f"{count(len(kept), 'system')} (median over systems of the largest distance "
                f"{number(median(distances), 2)}); token 1 itself is still about 1/(w steps), up to {number(late, 1)}, "
                "from its limit."
                if distances
                else "no start keeps rank 2."
            ),
            agrees=not alone and off is not None and off < CLOSE if kept and missing else None,
        ),
        Statement(
            source="ours",
            statement="At B the circle map of token 2 has multiplier 1 + alpha/(1 - alpha) q.",
            measured=f"Largest difference from the derivative of one step of the system: {number(slopes, 2)}.",
            agrees=None if slopes is None else slopes < SLOPES,
        ),
        Statement(
            source="ours",
            statement="The same weights without LayerNorm collapse.",
            measured=f"By the split pass, mu/||X||_F of one start after {setting.layers} layers is at most "
            f"{power(deepest * LN10, digits=2)} over the whole grid.",
            agrees=deepest < GONE,
        ),
    ]


def _off_slope(one: WeightPair) -> float:
    return (one.multiplier or 0.0) - (one.measured_multiplier or 0.0)


def _ends(kept: Sequence[WeightPair], starts: int) -> str:
    """The least and the greatest share over systems, each with its interval."""
    if not kept:
        return ""
    counts = [round(one.share * starts) for one in kept]
    return f", from {share_text(min(counts), starts)} to {share_text(max(counts), starts)}"


def notes(found: WuCounterexampleFound) -> list[str]:
    """Sentences for the reader."""
    example = {one.name: one for one in found.example}
    at_b, at_a = example["B"], example["A"]
    return [
        "Two tokens in two dimensions, causal: token 2 puts the weight alpha on token 1, W = [[1, w], [0, 1]]; "
        "attention is fixed. The example is rebuilt from the caption of the paper's figure.",
        f"At alpha = 1/2, w = 3: B = ({number(at_b.token[0], 6)}, {number(at_b.token[1], 6)}) with multiplier "
        f"{number(at_b.multiplier, 4)}, the other equilibrium A is unstable with {number(at_a.multiplier, 4)}.",
        "For alpha > 2/3 and large w the multiplier of B falls below -1: token 2 then goes to and fro near B, or "
        "leaves for token 1. Such systems are not counted as attracting, though their tokens may still span a plane.",
        "That B attracts is said of token 2, with token 1 at its limit (0, 1). Token 1 itself is neutral there: it "
        "approaches from one side and leaves to the other.",
        f"A start counts as rank 2 if the sine of the angle of its tokens is above {ANGLE:g} after "
        f"{found.setting.steps} steps. Token 1 approaches its limit like 1/(w steps), from one side only.",
    ]


# ------------------------------------------------------------------------------------------------------ picture


def chart(found: WuCounterexampleFound, table: Table) -> Chart:
    """Two maps over the weights: how many starts keep rank 2 on the sphere, and the same weights without a norm."""
    setting, systems = found.setting, found.systems
    most = max(one.share for one in systems) or 1.0
    logs = [one.log10_ratio_without_norm for one in systems]
    low, high = min(logs), max(logs)
    agrees, kept = [one.agrees for one in points(found)], sum(one.share > 0 for one in found.attracting)
    return Chart(
        [
            _map(
                systems,
                "unit sphere: random starts that keep rank 2",
                lambda one: GridCell(
                    one.share / most if one.exists or one.share else None, _share(one), _tip(one, setting)
                ),
                ends=("0%", percent(most)),
            ),
            _map(
                systems,
                f"no norm: mu/||X||_F at layer {setting.layers}",
                lambda one: GridCell(
                    (one.log10_ratio_without_norm - low) / (high - low) if high > low else 0.5,
                    f"1e{one.log10_ratio_without_norm:.0f}",
                    f"{_pair_name(one)}: {power(one.log10_ratio_without_norm * LN10)}",
                ),
                ends=(f"1e{low:.0f}", f"1e{high:.0f}"),
            ),
        ],
        title=f"The sphere keeps two tokens apart for {kept} of {len(systems)} weights; without a norm all collapse"
        if kept and agrees[3]
        else "Two tokens over the weights of their system, with the sphere and without a norm",
        notes=[
            f"{setting.starts} random starts each, {setting.steps} steps; alpha: weight of token 2 on token 1; w: "
            "shear of the value map",
            "no color: w < alpha/(1 - alpha), where the equilibrium B of rank 2 does not exist; o: B exists and does "
            "not attract",
        ],
    )


def _map(
    systems: Sequence[WeightPair], title: str, cell: Callable[[WeightPair], GridCell], ends: tuple[str, str]
) -> Grid:
    """Rows are w from the largest down, columns alpha."""
    by_place = {(one.shear, one.alpha): cell(one) for one in systems}
    shears = sorted({one.shear for one in systems}, reverse=True)
    alphas = sorted({one.alpha for one in systems})
    few = len(alphas) <= MOST_TEXTS
    return Grid(
        title=title,
        rows=[f"w {number(shear)}" for shear in shears],
        columns=[number(alpha) for alpha in alphas],
        cells=[
            [one if few else GridCell(one.share, "o" if one.text == "o" else "", one.tip) for one in row]
            for row in ([by_place[shear, alpha] for alpha in alphas] for shear in shears)
        ],
        down="w",
        across="alpha",
        ends=ends,
    )


MOST_TEXTS = 9
"""Columns of a map whose cells have room for their numbers; beyond that the tips have them."""


def _share(one: WeightPair) -> str:
    return percent(one.share) if one.stable or one.share else "o" if one.exists else ""


def _pair_name(one: WeightPair) -> str:
    return f"alpha {number(one.alpha)}, w {number(one.shear)}"


def _tip(one: WeightPair, setting: WuCounterexampleSetting) -> str:
    if not one.exists:
        about = "no B"
    elif one.multiplier is None:  # on the boundary, where B and A are one point
        about = "B on its boundary"
    else:
        about = f"B {'attracts' if one.stable else 'does not attract'}, multiplier {number(one.multiplier)}"
    return f"{_pair_name(one)}: {round(one.share * setting.starts)} of {setting.starts} starts; {about}"


register(
    Figure(
        name="wu-counterexample",
        title="two tokens that LayerNorm keeps apart, by attention weight and value map",
        source=Ref(
            key="wu2024",
            where="Section 4, two-token counter-example",
            differs="rebuilt from the caption of its figure, and over all weights in place of one",
        ),
        question="For which weights does the norm keep rank 2, and from how many starts?",
        durations={
            "fast": "seconds",
            "usual": "a minute",
            "full": "tens of minutes",
        },
        sizes={
            "fast": WuCounterexampleConfig(
                size="fast",
                alphas=(0.2, 0.5, 0.8),
                shears=_powers(0.25, 8, 6),
                starts=100,
                steps=1000,
                layers=128,
            ),
            "usual": WuCounterexampleConfig(
                size="usual",
                alphas=tuple(k / 20 for k in range(2, 19)),
                shears=_powers(0.25, 8, 21),
                starts=200,
                steps=2000,
            ),
            "full": WuCounterexampleConfig(
                size="full",
                alphas=tuple(k / 40 for k in range(4, 37)),
                shears=_powers(0.25, 8, 41),
                starts=500,
                steps=4000,
            ),
        },
        found=WuCounterexampleFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
        draws="seed",
    )
)
