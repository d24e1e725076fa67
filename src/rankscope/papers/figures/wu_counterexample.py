"""``wu-counterexample``: two tokens that the unit sphere keeps apart, over the weights of the system."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.dynamics import attention_system, run
from rankscope.dynamics.clusters import uniform_starts
from rankscope.dynamics.two_tokens import TwoTokens
from rankscope.measures import find_measure
from rankscope.network import Attention, Fixed, Network, Sphere, Values
from rankscope.papers.figures.figure import Job, OldFigure, Point, Size, register
from rankscope.papers.figures.stacks import WORKERS
from rankscope.papers.figures.statistics import share_text
from rankscope.results import Table
from rankscope.split import log_measure, split_states
from rankscope.studies.rows import Rows, definitions

RATIO = "residual_ratio[frobenius,mean]"
ANGLE = 0.005
"""Two tokens span a plane if the sine of their angle is above this; a slower approach than 1/(w steps) is not seen."""

CLOSE = 0.05
"""Token 2 is at B if it ends this near: token 1, 1/(w steps) from its limit, moves the place of B by as little."""

EXAMPLE = TwoTokens(alpha=0.5, shear=3.0)


class WuCounterexampleConfig(Config):
    """A grid of systems, each with random starts."""

    figure: Literal["wu-counterexample"] = "wu-counterexample"
    size: Size
    alphas: tuple[float, ...]
    shears: tuple[float, ...]
    starts: int
    steps: int
    layers: int = 256
    seed: int = 0


def _powers(low: float, high: float, count: int) -> tuple[float, ...]:
    return tuple(round(low * (high / low) ** (k / (count - 1)), 6) for k in range(count))


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {
        "alphas": (0.2, 0.5, 0.8),
        "shears": _powers(0.25, 8, 6),
        "starts": 100,
        "steps": 1000,
        "layers": 128,
    },
    "usual": {
        "alphas": tuple(k / 20 for k in range(2, 19)),
        "shears": _powers(0.25, 8, 21),
        "starts": 200,
        "steps": 2000,
    },
    "full": {
        "alphas": tuple(k / 40 for k in range(4, 37)),
        "shears": _powers(0.25, 8, 41),
        "starts": 500,
        "steps": 4000,
    },
}


def make(job: Job) -> Table:
    """One row per system and measure; a seed names the draw of the starts, the first one given counts."""
    chosen = SIZES[job.size] | ({"seed": job.seeds[0]} if job.seeds else {})
    config = WuCounterexampleConfig.of(size=job.size, **chosen)
    rows = Rows()
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done, systems in enumerate(
            pool.map(lambda alpha: _measured(alpha, config), config.alphas), start=1
        ):
            found += systems
            job.tell(done, len(config.alphas))
    for one in found:
        _add(rows, one, config)
    points, notes = _verdict(found, config), _notes(config)
    return rows.table(
        config,
        command="reproduce",
        seeds=[config.seed],
        definitions=definitions([RATIO])
        | {
            DEFINITIONS[0]: "share of random starts whose two tokens span a plane in the end",
            DEFINITIONS[1]: "largest distance of token 2 from B, of the starts that stay apart",
        },
        systems=found,
        example=[
            {"name": one.name, "token": list(one.token), "multiplier": one.multiplier, "stable": one.stable}
            for one in EXAMPLE.equilibria()
        ],
        verdict=points,
        notes=notes,
    )


DEFINITIONS = (f"rank_two_share[sine>{ANGLE:g}]", "distance_to_limit[B]")


def _measured(alpha: float, config: WuCounterexampleConfig) -> list[dict[str, Any]]:
    """Starts of all systems with that alpha as one batch, and one start of each without the norm."""
    pairs = [TwoTokens(alpha=alpha, shear=shear) for shear in config.shears]
    starts = uniform_starts(config.starts, 2, 2, generator=torch.Generator().manual_seed(config.seed))
    maps, values = _weights(pairs)
    several = [one.repeat_interleave(config.starts, dim=0) for one in (maps, values)]
    system = attention_system(Fixed(several[0]), several[1], Sphere())
    final = run(system, starts.repeat(len(pairs), 1, 1), config.steps, slowness=None).final
    ends = final.reshape(len(pairs), config.starts, 2, 2)
    plain = _without_norm(maps, values, starts[:1].expand(len(pairs), 2, 2), config.layers)
    return [
        _one(pair, end) | {"log10_ratio_without_norm": log10}
        for pair, end, log10 in zip(pairs, ends, plain.tolist(), strict=True)
    ]


def _add(rows: Rows, one: dict[str, Any], config: WuCounterexampleConfig) -> None:
    about = {"model": "two tokens", "mask": "causal", "alpha": one["alpha"], "shear": one["shear"]}
    for definition, value in zip(DEFINITIONS, (one["share"], one["distance"]), strict=True):
        named = {"measure": definition.partition("[")[0], "definition": definition}
        rows.add(1, {**about, **named, "norm": "sphere", "value": value, "floor": 0.0})
    log10 = one["log10_ratio_without_norm"]
    named = {"measure": "residual_ratio", "definition": RATIO, "value": 10**log10, "log10_value": log10}
    rows.add(1, {**about, **named, "norm": "none", "layer": config.layers, "floor": 0.0})


def _one(pair: TwoTokens, end: Tensor) -> dict[str, Any]:
    """Share of starts that keep a plane, how far from B they end, and both multipliers of B."""
    sine = (end[:, 0, 0] * end[:, 1, 1] - end[:, 0, 1] * end[:, 1, 0]).abs()
    apart = end[sine > ANGLE]
    at_b = next((one for one in pair.equilibria() if one.name == "B"), None)
    distance = None
    if at_b is not None and len(apart):
        mirrored = apart[:, 1] * apart[:, 0, 1:].sign()  # token 1 may go to (0, -1): then all signs turn
        distance = float((mirrored - torch.tensor(at_b.token, dtype=torch.float64)).norm(dim=-1).max())
    return {
        "alpha": pair.alpha,
        "shear": pair.shear,
        "least_shear": pair.least_shear,
        "greatest_stable_shear": pair.greatest_stable_shear,
        "exists": pair.exists,
        "share": len(apart) / len(end),
        "stable": None if at_b is None else at_b.stable,
        "multiplier": None if at_b is None else at_b.multiplier,
        "measured_multiplier": None if at_b is None else _slope(pair, at_b.token),
        "limit": None if at_b is None else list(at_b.token),
        "distance": distance,
    }


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
    """Log10 of value and floor of the ratio, after that many layers of the same weights without a norm."""
    eye = torch.eye(2, dtype=torch.float64).expand_as(values)
    block = Attention(Fixed(maps), Values(values, eye, heads=1))
    found = log_measure(find_measure(RATIO), split_states(Network([block] * layers), x)[-1])
    floor = torch.full_like(found.log, torch.inf) if found.log_floor is None else found.log_floor
    return torch.logaddexp(found.log, floor) / math.log(10.0)


def _verdict(found: Sequence[dict[str, Any]], config: WuCounterexampleConfig) -> list[Point]:
    missing = [one for one in found if not one["exists"]]
    lone = [one for one in missing if one["share"] > 0]
    settled = [one for one in found if one["stable"]]
    kept = [one for one in settled if one["share"] > 0]
    distances = sorted(one["distance"] for one in kept)
    off = distances[-1] if distances else math.nan
    slopes = max((abs(one["multiplier"] - one["measured_multiplier"]) for one in settled), default=math.nan)
    deepest = max(one["log10_ratio_without_norm"] for one in found)
    low = min(config.shears) * config.steps
    return [
        Point(
            source="reported",
            statement="With LayerNorm and a suitable value map two tokens keep rank 2 (token 1 tends to (0, 1) or "
            "(0, -1), token 2 to B).",
            measured=f"With token 1 at its limit, B attracts token 2 in {len(settled)} of {len(found)} systems of the "
            f"grid; in {len(kept)} of these some of {config.starts} random starts of both tokens end there"
            f"{_ends(kept, config)}.",
            agrees=len(kept) > 0,
        ),
        Point(
            source="ours",
            statement="B exists from w = alpha / (1 - alpha) on (closed form of the rebuilt example).",
            measured=f"Below the boundary {len(missing) - len(lone)} of {len(missing)} systems have no start that "
            f"keeps rank 2; where B attracts, token 2 of all starts that keep rank 2 ends within {off:.1e} of the "
            f"closed form in all {len(kept)} systems (median over systems of the largest distance "
            f"{median(distances) if distances else math.nan:.1e}); token 1 itself is still about 1/(w steps), up to "
            f"{1 / low:.0e}, from its limit.",
            agrees=not lone and off < CLOSE if kept and missing else None,
        ),
        Point(
            source="ours",
            statement="At B the circle map of token 2 has multiplier 1 + alpha/(1 - alpha) q.",
            measured=f"Largest difference from the derivative of one step of the system: {slopes:.1e}.",
            agrees=slopes < 1e-6 if settled else None,
        ),
        Point(
            source="ours",
            statement="The same weights without LayerNorm collapse.",
            measured=f"By the split pass, mu/||X||_F of one start after {config.layers} layers is at most "
            f"1e{deepest:.1f} over the whole grid.",
            agrees=deepest < -6,
        ),
    ]


def _ends(kept: Sequence[dict[str, Any]], config: WuCounterexampleConfig) -> str:
    """The least and the greatest share over systems, each with its interval."""
    if not kept:
        return ""
    counts = [round(one["share"] * config.starts) for one in kept]
    return f", from {share_text(min(counts), config.starts)} to {share_text(max(counts), config.starts)}"


def _notes(config: WuCounterexampleConfig) -> list[str]:
    found = {one.name: one for one in EXAMPLE.equilibria()}
    return [
        "Two tokens in two dimensions, causal: token 2 puts the weight alpha on token 1, W = [[1, w], [0, 1]]; "
        "attention is fixed. The example is rebuilt from the caption of the paper's figure.",
        f"At alpha = 1/2, w = 3: B = ({found['B'].token[0]:.6f}, {found['B'].token[1]:.6f}) with multiplier "
        f"{found['B'].multiplier:.4f}, the other equilibrium A is unstable with {found['A'].multiplier:.4f}.",
        "For alpha > 2/3 and large w the multiplier of B falls below -1: token 2 then goes to and fro near B, or "
        "leaves for token 1. Such systems are not counted as attracting, though their tokens may still span a plane.",
        "That B attracts is said of token 2, with token 1 at its limit (0, 1). Token 1 itself is neutral there: it "
        "approaches from one side and leaves to the other.",
        f"A start counts as rank 2 if the sine of the angle of its tokens is above {ANGLE:g} after {config.steps} "
        "steps. Token 1 approaches its limit like 1/(w steps), from one side only.",
    ]


def _chart(table: Table) -> Any:
    from rankscope.plots.wu_counterexample_chart import counterexample_chart

    return counterexample_chart(table)


register(
    OldFigure(
        name="wu-counterexample",
        title="two tokens that LayerNorm keeps apart, by attention weight and value map",
        source=Ref(
            key="wu2024",
            where="Section 4, two-token counter-example",
            differs="rebuilt from the caption of its figure, and over all weights in place of one",
        ),
        question="For which weights does the norm keep rank 2, and from how many starts?",
        durations={
            "fast": "about 2 seconds",
            "usual": "about 1 minute",
            "full": "about 15 minutes (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
