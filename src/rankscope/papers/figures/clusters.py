"""Figure ``clusters``: tokens on the circle and the sphere gather in clusters that stand still before they meet.

The table. One row per plateau: ``sample`` is the start, ``layer`` the number of the plateau within it (from 1), the
measure is ``cosine[off_diagonal]`` of the tokens where the plateau is slowest. Added columns:

- ``dim``, ``beta``: the sphere and the inverse temperature;
- ``clusters``: how many there are; ``gap``: least angle between two of them, in radians;
- ``log10_start``: steps before the plateau (null for none); ``log10_life``: its steps;
- ``log10_speed``: largest angle per step, where that is least; ``log10_estimate``: life of the nearest two clusters
  alone, ``exp(beta (1 - cos gap)) / (K beta sin^2 gap)``;
- ``seen_by_float64``: whether a step in float64 would move the tokens by more than the unit round-off.

Sections:

- ``plateaus``: one object per dim and beta: ``{dim, beta, starts, met, first_clusters, first_low, first_high,
  first_log10_life, total_log10_life, total_low, total_high, unseen}``: starts, those that met, mean number of clusters
  on the first plateau (one for a start without plateau) with the least and the most, median log10 of its life, median,
  least and most of log10 of all steps to consensus, and the share of plateaus that float64 steps cannot see moving;
- ``trajectories``: ``{beta as text: {steps, log10_steps, angles}}`` of the first start on the circle, at most 200
  looks; ``angles`` is ``[look][token]`` in radians, continuous in time; ``log10_steps`` is of steps + 1;
- ``fits``: per dim ``{dim, slope, low, high, barrier, starts, betas}``: slope of log (natural) of all steps against
  beta, mean and 95% interval over starts, and the mean ``1 - cos gap`` of the longest plateau at the largest beta;
- ``estimates``: ``{plateaus, median, largest}``: |log10_life - log10_estimate| where the estimate is meant to hold;
- ``float64``: per dim and beta ``{dim, beta, clusters, log10_speed, ending}``: how ``dynamics.run`` ends from the
  slowest plateau; ``masks``: ``{beta, mask, steps, clusters}`` mean clusters after plain steps; ``verdict``, ``notes``.
"""

import math
from collections.abc import Sequence
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from scipy import stats

from rankscope.core.config import Config
from rankscope.core.numerics import threads_for, unit_roundoff
from rankscope.core.refs import Ref
from rankscope.dynamics import run
from rankscope.dynamics.clusters import cluster_system, count_clusters, uniform_starts
from rankscope.dynamics.plateaus import Coarsening, Plateau, coarsen, log_estimate, nearest_pair
from rankscope.masks import parse_mask
from rankscope.measures import evaluate, find_measure
from rankscope.papers.figures.cluster_words import cluster_notes, cluster_points
from rankscope.papers.figures.figure import Advance, Job, OldFigure, Size, register
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

if TYPE_CHECKING:
    from rankscope.plots import Chart

COSINE = "cosine[off_diagonal]"
MASK_STEPS = 200
LOOKS_KEPT = 200
COLD = 8.0
"""From this beta on lives are fitted: below it tokens meet within few steps and there is no plateau to speak of."""


class ClusterConfig(Config):
    """Starts to follow, for every dim and inverse temperature."""

    tokens: int = Field(default=32, ge=3, le=512)
    dims: tuple[int, ...] = Field(default=(2, 3), min_length=1)
    betas: tuple[float, ...] = Field(default=(1.0, 4.0, 8.0, 16.0, 32.0, 64.0), min_length=1)
    starts: int = Field(default=6, ge=1)
    masks: tuple[str, ...] = ("full", "causal")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=1)


SIZES: dict[Size, ClusterConfig] = {
    "fast": ClusterConfig(tokens=16, dims=(2,), betas=(1.0, 4.0, 16.0, 32.0), starts=4),
    "usual": ClusterConfig(),
    "full": ClusterConfig(
        tokens=64,
        dims=(2, 3, 8),
        betas=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0, 150.0, 200.0),
        starts=20,
    ),
}


def clusters(config: ClusterConfig, *, advance: Advance | None = None) -> Table:
    """The table of the figure, see the module."""
    rows, sections = Rows(), _Sections()
    cells = [(dim, beta) for dim in config.dims for beta in config.betas]
    with torch.no_grad(), threads_for(config.starts * config.tokens**2):
        for done, (dim, beta) in enumerate(cells, start=1):
            generator = torch.Generator().manual_seed(config.seeds[0])
            x = uniform_starts(config.starts, config.tokens, dim, generator=generator)
            found = coarsen(x, beta, keep=1 if dim == 2 else 0)
            _add_rows(rows, found, dim, beta, config.seeds[0])
            sections.add(found, dim, beta)
            if dim == 2:
                sections.trajectories[f"{beta:g}"] = _trajectory(found[0])
                sections.masks += [_after_plain_steps(x, beta, mask) for mask in config.masks]
            if advance is not None:
                advance(done, len(cells))
    return rows.table(
        config,
        command="reproduce clusters",
        seeds=config.seeds,
        definitions=definitions([COSINE]),
        **sections.closed(),
    )


def _add_rows(rows: Rows, found: Sequence[Coarsening], dim: int, beta: float, seed: int) -> None:
    measure = find_measure(COSINE)
    for sample, one in enumerate(found):
        for number, plateau in enumerate(one.plateaus(), start=1):
            about = {"model": "random", "mask": "full", "norm": "sphere", "seed": seed, "sample": sample}
            about |= {
                "layer": number,
                "site": "block",
                "dim": dim,
                "beta": beta,
                **_facts(one, plateau, beta),
            }
            x = one.tokens_of(plateau).unsqueeze(0)
            rows.add_measured(measure, evaluate(measure, x, layer=1, dtype=torch.float64), about)


def _facts(one: Coarsening, plateau: Plateau, beta: float) -> dict[str, object]:
    x = one.tokens_of(plateau)
    return {
        "clusters": plateau.clusters,
        "gap": nearest_pair(x)[0],
        "log10_start": _log10(plateau.start),
        "log10_life": _log10(plateau.length),
        "log10_speed": plateau.log_speed / math.log(10),
        "log10_estimate": log_estimate(x, beta) / math.log(10),
        "seen_by_float64": plateau.log_speed > math.log(unit_roundoff(torch.float64)),
    }


def _log10(steps: float) -> float | None:
    return math.log10(steps) if steps > 0 else None


class _Sections:
    """What is gathered cell by cell."""

    def __init__(self) -> None:
        self.plateaus, self.float64, self.masks = (
            list[dict[str, Any]](),
            list[dict[str, Any]](),
            list[dict[str, Any]](),
        )
        self.trajectories: dict[str, Any] = {}
        self.lives: dict[int, dict[float, list[float]]] = {}
        self.barriers: dict[int, list[float]] = {}
        self.misses: list[float] = []

    def add(self, found: Sequence[Coarsening], dim: int, beta: float) -> None:
        each = [(one, one.plateaus()) for one in found]
        firsts = [plateaus[0] for _, plateaus in each if plateaus]
        totals = [math.log10(max(one.steps[-1], 1.0)) for one, _ in each]
        every = [plateau for _, plateaus in each for plateau in plateaus]
        counts = [plateaus[0].clusters if plateaus else 1 for _, plateaus in each]
        unseen = [plateau.log_speed <= math.log(unit_roundoff(torch.float64)) for plateau in every]
        self.plateaus.append(
            {
                "dim": dim,
                "beta": beta,
                "starts": len(found),
                "met": sum(one.is_over for one, _ in each),
                "first_clusters": mean(counts),
                "first_low": min(counts),
                "first_high": max(counts),
                "first_log10_life": median([math.log10(max(p.length, 1.0)) for p in firsts])
                if firsts
                else None,
                "total_log10_life": median(totals),
                "total_low": min(totals),
                "total_high": max(totals),
                "unseen": mean(map(float, unseen)) if unseen else 0.0,
            }
        )
        self.lives.setdefault(dim, {})[beta] = totals
        self._longest(each, dim, beta)

    def _longest(self, each: Sequence[tuple[Coarsening, list[Plateau]]], dim: int, beta: float) -> None:
        longest = [(one, max(plateaus, key=lambda p: p.length)) for one, plateaus in each if plateaus]
        if not longest:
            return
        self.barriers[dim] = [1 - math.cos(nearest_pair(one.tokens_of(p))[0]) for one, p in longest]
        one, slowest = min(longest, key=lambda pair: pair[1].log_speed)
        after = run(cluster_system(beta, dim), one.tokens_of(slowest), 100)
        self.float64.append(
            {
                "dim": dim,
                "beta": beta,
                "clusters": slowest.clusters,
                "log10_speed": slowest.log_speed / math.log(10),
                "ending": after.endings[0].name.lower(),
            }
        )
        for one, plateaus in each:
            for plateau in plateaus:
                gap, _ = nearest_pair(x := one.tokens_of(plateau))
                if (
                    beta * math.sin(gap) ** 2 > 5 and plateau.length > 100
                ):  # else corrections are as large as the law
                    self.misses.append(abs(math.log10(plateau.length) - log_estimate(x, beta) / math.log(10)))

    def closed(self) -> dict[str, Any]:
        fits = [fit for dim in self.lives if (fit := self._fit(dim)) is not None]
        estimates: dict[str, Any] = {"plateaus": len(self.misses), "median": None, "largest": None}
        if self.misses:
            estimates |= {"median": median(self.misses), "largest": max(self.misses)}
        return {
            "plateaus": self.plateaus,
            "trajectories": self.trajectories,
            "fits": fits,
            "estimates": estimates,
            "float64": self.float64,
            "masks": self.masks,
            "verdict": cluster_points(self.plateaus, fits, estimates),
            "notes": cluster_notes(self.plateaus, self.float64, self.masks),
        }

    def _fit(self, dim: int) -> dict[str, Any] | None:
        cold = {beta: totals for beta, totals in self.lives[dim].items() if beta >= COLD}
        if len(cold) < 2 or len(next(iter(cold.values()))) < 2:
            return None
        logs = np.array(list(cold.values())) * math.log(10)
        slopes = np.polyfit(np.array(list(cold)), logs, 1)[0]
        width = float(stats.t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1)) / math.sqrt(len(slopes))
        middle = float(slopes.mean())
        found = {"dim": dim, "slope": middle, "low": middle - width, "high": middle + width}
        return found | {"barrier": mean(self.barriers[dim]), "starts": len(slopes), "betas": list(cold)}


def _trajectory(one: Coarsening) -> dict[str, Any]:
    kept = np.unique(np.linspace(0, len(one.steps) - 1, min(LOOKS_KEPT, len(one.steps))).round().astype(int))
    states = torch.stack(one.states).numpy()
    angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]), axis=0)[kept]
    steps = [one.steps[look] for look in kept]
    return {
        "steps": steps,
        "log10_steps": [math.log10(step + 1) for step in steps],
        "angles": angles.round(6).tolist(),
    }


def _after_plain_steps(x: torch.Tensor, beta: float, mask: str) -> dict[str, Any]:
    system = cluster_system(beta, x.shape[-1], rule=parse_mask(mask))
    found = run(system, x, MASK_STEPS, slowness=None)
    return {
        "beta": beta,
        "mask": mask,
        "steps": MASK_STEPS,
        "clusters": float(count_clusters(found.final).double().mean()),
    }


def _make(job: Job) -> Table:
    config = SIZES[job.size]
    if job.seeds:
        config = ClusterConfig.of(**(config.model_dump() | {"seeds": job.seeds}))
    return clusters(config, advance=job.advance)


def _chart(table: Table) -> "Chart":
    from rankscope.plots import clusters_chart

    return clusters_chart(table)


register(
    OldFigure(
        name="clusters",
        title="clusters on the sphere, and how long they last, by temperature",
        source=Ref(
            key="wu2024",
            where="Section 4",
            differs="own study beside it: identity values, softmax(beta X X^T), plateaus before the collapse",
        ),
        question="How many clusters do tokens on the sphere form, and how long do they last before all are one?",
        durations={"fast": "about 5 s", "usual": "about 20 s", "full": "about 15 minutes (estimated)"},
        make=_make,
        chart=_chart,
    )
)
