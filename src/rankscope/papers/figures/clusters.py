"""``clusters``: tokens on the circle and the sphere gather in clusters that stand still before they meet.

The table has one row per plateau: ``sample`` is the start, ``layer`` the number of the plateau within it (from 1), the
measure is ``cosine[off_diagonal]`` of the tokens where the plateau is slowest. Added columns:

- ``dim``, ``beta``: the sphere and the inverse temperature;
- ``clusters``: how many there are; ``gap``: least angle between two of them, in radians;
- ``log10_start``: steps before the plateau (null for none); ``log10_life``: its steps;
- ``log10_speed``: largest angle per step, where that is least; ``log10_estimate``: life of the nearest two clusters
  alone, ``exp(beta (1 - cos gap)) / (K beta sin^2 gap)``;
- ``seen_by_float64``: whether a step in float64 would move the tokens by more than the unit round-off.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.charts.svg import points_to_keep
from rankscope.core.numerics import threads_for, unit_roundoff
from rankscope.core.refs import Ref
from rankscope.core.words import count, number, power
from rankscope.dynamics import run
from rankscope.dynamics.clusters import CLOSE, cluster_system, count_clusters, uniform_starts
from rankscope.dynamics.endings import AT_REST
from rankscope.dynamics.plateaus import Coarsening, Plateau, coarsen, log_estimate, nearest_pair
from rankscope.findings.base import Value
from rankscope.masks import parse_mask
from rankscope.measures import evaluate, find_measure
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_of, register
from rankscope.papers.figures.statistics import mean_of, share_text
from rankscope.results import Table
from rankscope.results.table import Row
from rankscope.studies.rows import RowBuilder, definitions

COSINE = "cosine[off_diagonal]"

MASK_STEPS = 200
"""Plain steps after which clusters are counted, by mask."""

LOOKS_KEPT = 200
"""Looks at one start that are kept for the picture."""

COLD = 8.0
"""From this beta on lives are fitted: below it tokens meet within few steps and there is no plateau to speak of."""

STEEP = 5.0
"""The law of a plateau's life holds for ``beta sin^2 gap`` above this: else corrections are as large as the law."""

LONG = 100.0
"""Plateaus of fewer steps are not compared with the law: they end before the exponential rules."""

WITHIN = 0.5
"""Decades by which the law may miss in the median: a factor of 3."""

LN10 = math.log(10)

PANELS = 4
"""Inverse temperatures whose ways are drawn."""

FINE = 0.002
"""A point nearer than this part of the panel to the line between its neighbors is left out."""


class ClusterConfig(FigureConfig):
    """Starts to follow, for every dim and inverse temperature. One seed draws all of them."""

    figure: Literal["clusters"] = "clusters"
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=1)
    tokens: int = Field(default=32, ge=3, le=512)
    dims: tuple[int, ...] = Field(default=(2, 3), min_length=1)
    betas: tuple[float, ...] = Field(default=(1.0, 4.0, 8.0, 16.0, 32.0, 64.0), min_length=1)
    starts: int = Field(default=6, ge=1)
    masks: tuple[str, ...] = ("full", "causal")


# ------------------------------------------------------------------------------------------------ what is found


class ClustersSetting(Value):
    """Sizes of the starts."""

    tokens: int


class ClusterCell(Value):
    """What the starts of one dim and inverse temperature did. Lives are log10 of steps."""

    dim: int
    beta: float
    starts: int
    met: int
    """Starts whose tokens are all equal in the end."""

    first_clusters: float
    """Clusters on the first plateau, mean over starts; a start without a plateau counts as one."""

    first_low: int
    first_high: int
    first_log10_life: float | None
    """Median life of the first plateau; null if no start has one."""

    total_log10_life: float
    """Median of all steps to consensus."""

    total_low: float
    total_high: float
    unseen: float
    """Share of plateaus on which a step in float64 moves no token."""


class Trajectory(Value):
    """The first start on the circle: steps done at every look, and ``angles[look][token]`` in radians without jumps.

    ``log10_steps`` is of steps + 1.
    """

    steps: tuple[float, ...]
    log10_steps: tuple[float, ...]
    angles: tuple[tuple[float, ...], ...]


class LifeFit(Value):
    """How log (natural) of all steps grows with beta: mean and 95% interval over starts."""

    dim: int
    slope: float
    low: float
    high: float
    barrier: float
    """Mean ``1 - cos gap`` of the longest plateau at the largest beta: the slope that the law predicts."""

    starts: int
    betas: tuple[float, ...]


class Estimates(Value):
    """By how many decades lives miss the law of the nearest two clusters, where that law is meant to hold."""

    plateaus: int
    median: float | None
    largest: float | None


class Resting(Value):
    """How a plain run in float64 ends that starts from the slowest plateau."""

    dim: int
    beta: float
    clusters: int
    log10_speed: float
    ending: str


class MaskedClusters(Value):
    """Clusters on the circle after plain steps, mean over starts."""

    beta: float
    mask: str
    steps: int
    clusters: float


class ClustersFound(Value):
    """What was found for every dim and inverse temperature, and over them."""

    setting: ClustersSetting
    plateaus: tuple[ClusterCell, ...]
    trajectories: dict[str, Trajectory]
    """By beta as text."""

    fits: tuple[LifeFit, ...]
    estimates: Estimates
    float64: tuple[Resting, ...]
    masks: tuple[MaskedClusters, ...]

    @property
    def dims(self) -> list[int]:
        return list(dict.fromkeys(one.dim for one in self.plateaus))

    @property
    def grows_exponentially(self) -> bool:
        """Whether the steps to consensus grow with beta in every dim, by their intervals."""
        return bool(self.fits) and all(fit.low > 0 for fit in self.fits)


# ------------------------------------------------------------------------------------------------- computation


def compute(config: ClusterConfig, job: Job) -> tuple[Table, ClustersFound]:
    """All starts of every dim and inverse temperature, followed to consensus."""
    rows, gathered = RowBuilder(), _Cells()
    work = [(dim, beta) for dim in config.dims for beta in config.betas]
    with torch.no_grad(), threads_for(config.starts * config.tokens**2):
        for done, (dim, beta) in enumerate(work, start=1):
            generator = torch.Generator().manual_seed(config.seeds[0])
            x = uniform_starts(config.starts, config.tokens, dim, generator=generator)
            found = coarsen(x, beta, keep=1 if dim == 2 else 0)
            _add_rows(rows, found, dim, beta, config.seeds[0])
            gathered.add(found, dim, beta)
            if dim == 2:
                gathered.trajectories[f"{beta:g}"] = _trajectory(found[0])
                gathered.masks += [_after_plain_steps(x, beta, mask) for mask in config.masks]
            job.tell(done, len(work))
    table = rows.table(config, command="reproduce", seeds=config.seeds, definitions=definitions([COSINE]))
    return table, gathered.as_value(ClustersSetting(tokens=config.tokens))


def _add_rows(rows: RowBuilder, found: Sequence[Coarsening], dim: int, beta: float, seed: int) -> None:
    measure = find_measure(COSINE)
    for sample, one in enumerate(found):
        for place, plateau in enumerate(one.plateaus(), start=1):
            x = one.tokens_of(plateau)
            about: Row = {
                "model": "random",
                "mask": "full",
                "norm": "sphere",
                "seed": seed,
                "sample": sample,
                "layer": place,
                "site": "block",
                "dim": dim,
                "beta": beta,
                "clusters": plateau.clusters,
                "gap": nearest_pair(x)[0],
                "log10_start": _log10(plateau.start),
                "log10_life": _log10(plateau.length),
                "log10_speed": plateau.log_speed / LN10,
                "log10_estimate": log_estimate(x, beta) / LN10,
                "seen_by_float64": not _is_unseen(plateau),
            }
            rows.add_measured(measure, evaluate(measure, x.unsqueeze(0), layer=1, dtype=torch.float64), about)


def _log10(steps: float) -> float | None:
    return math.log10(steps) if steps > 0 else None


def _is_unseen(plateau: Plateau) -> bool:
    return plateau.log_speed <= math.log(unit_roundoff(torch.float64))


class _Cells:
    """What is gathered cell by cell."""

    def __init__(self) -> None:
        self.cells, self.float64, self.masks = list[ClusterCell](), list[Resting](), list[MaskedClusters]()
        self.trajectories = dict[str, Trajectory]()
        self.lives = dict[int, dict[float, list[float]]]()
        self.barriers = dict[int, list[float]]()
        self.misses = list[float]()

    def add(self, found: Sequence[Coarsening], dim: int, beta: float) -> None:
        each = [(one, one.plateaus()) for one in found]
        firsts = [plateaus[0] for _, plateaus in each if plateaus]
        totals = [math.log10(max(one.steps[-1], 1.0)) for one, _ in each]
        counts = [plateaus[0].clusters if plateaus else 1 for _, plateaus in each]
        unseen = [float(_is_unseen(plateau)) for _, plateaus in each for plateau in plateaus]
        lives = [math.log10(max(plateau.length, 1.0)) for plateau in firsts]
        self.cells.append(
            ClusterCell(
                dim=dim,
                beta=beta,
                starts=len(found),
                met=sum(one.is_over for one in found),
                first_clusters=mean(counts),
                first_low=min(counts),
                first_high=max(counts),
                first_log10_life=median(lives) if lives else None,
                total_log10_life=median(totals),
                total_low=min(totals),
                total_high=max(totals),
                unseen=mean(unseen) if unseen else 0.0,
            )
        )
        self.lives.setdefault(dim, {})[beta] = totals
        self._longest([(one, plateaus) for one, plateaus in each if plateaus], dim, beta)

    def _longest(self, each: Sequence[tuple[Coarsening, list[Plateau]]], dim: int, beta: float) -> None:
        """Of starts with a plateau: their barriers, where float64 stands still, and how far the law misses."""
        if not each:
            return
        longest = [(one, max(plateaus, key=lambda plateau: plateau.length)) for one, plateaus in each]
        self.barriers[dim] = [
            1 - math.cos(nearest_pair(one.tokens_of(plateau))[0]) for one, plateau in longest
        ]
        one, slowest = min(longest, key=lambda pair: pair[1].log_speed)
        after = run(cluster_system(beta, dim), one.tokens_of(slowest), 100)
        self.float64.append(
            Resting(
                dim=dim,
                beta=beta,
                clusters=slowest.clusters,
                log10_speed=slowest.log_speed / LN10,
                ending=after.endings[0].name.lower(),
            )
        )
        for one, plateaus in each:
            for plateau in plateaus:
                gap, _ = nearest_pair(x := one.tokens_of(plateau))
                if beta * math.sin(gap) ** 2 > STEEP and plateau.length > LONG:
                    self.misses.append(abs(math.log10(plateau.length) - log_estimate(x, beta) / LN10))

    def as_value(self, setting: ClustersSetting) -> ClustersFound:
        return ClustersFound(
            setting=setting,
            plateaus=tuple(self.cells),
            trajectories=self.trajectories,
            fits=tuple(fit for dim in self.lives if (fit := self._fit(dim)) is not None),
            estimates=Estimates(
                plateaus=len(self.misses),
                median=median(self.misses) if self.misses else None,
                largest=max(self.misses, default=None),
            ),
            float64=tuple(self.float64),
            masks=tuple(self.masks),
        )

    def _fit(self, dim: int) -> LifeFit | None:
        """A line through log steps against beta for every start, and the mean of their slopes."""
        cold = {beta: totals for beta, totals in self.lives[dim].items() if beta >= COLD}
        if len(cold) < 2 or len(next(iter(cold.values()))) < 2:
            return None
        slopes = np.polyfit(np.array(list(cold)), np.array(list(cold.values())) * LN10, 1)[0]
        over = mean_of(slopes.tolist())
        if over.low is None or over.high is None:
            return None
        return LifeFit(
            dim=dim,
            slope=over.mean,
            low=over.low,
            high=over.high,
            barrier=mean(self.barriers[dim]),
            starts=over.count,
            betas=tuple(cold),
        )


def _trajectory(one: Coarsening) -> Trajectory:
    kept = np.unique(np.linspace(0, len(one.steps) - 1, min(LOOKS_KEPT, len(one.steps))).round().astype(int))
    states = torch.stack(one.states).numpy()
    angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]), axis=0)[kept]
    steps = [one.steps[look] for look in kept]
    return Trajectory(
        steps=tuple(steps),
        log10_steps=tuple(math.log10(step + 1) for step in steps),
        angles=tuple(map(tuple, angles.round(6).tolist())),
    )


def _after_plain_steps(x: torch.Tensor, beta: float, mask: str) -> MaskedClusters:
    system = cluster_system(beta, x.shape[-1], rule=parse_mask(mask))
    found = run(system, x, MASK_STEPS, slowness=None)
    many = float(count_clusters(found.final).double().mean())
    return MaskedClusters(beta=beta, mask=mask, steps=MASK_STEPS, clusters=many)


# ---------------------------------------------------------------------------------------------------- statements


def points(found: ClustersFound) -> list[Statement]:
    """Consensus in the end, lives that grow with beta, more clusters when it is colder, and the law of a plateau."""
    starts, met = (sum(getattr(one, name) for one in found.plateaus) for name in ("starts", "met"))
    longest = max(one.total_high for one in found.plateaus)
    said = [
        Statement(
            source="reported",
            statement="Orthogonal values, here the identity, collapse on the sphere for every strongly connected mask "
            "(Wu et al. 2024, Theorem 2).",
            measured=f"Starts that end with all tokens equal: {share_text(met, starts)}, after up to "
            f"1e{longest:.0f} steps.",
            agrees=all_of(met, starts),
        )
    ]
    said += [
        Statement(
            source="paper",
            statement="Several clusters last for a time exponential in beta (Geshkovski et al. 2024, "
            "arXiv:2410.06833, proven for the flow).",
            measured=f"dim {fit.dim}: the log of the steps to consensus grows by {number(fit.slope, 4)} per unit of "
            f"beta (mean over {count(fit.starts, 'start')}, 95% interval {number(fit.low, 4)} to "
            f"{number(fit.high, 4)}); the barrier 1 - cos of the longest plateau is {number(fit.barrier, 4)}.",
            agrees=True if fit.low > 0 else False if fit.high < 0 else None,
        )
        for fit in found.fits
    ]
    for dim in found.dims:
        by_beta = [(one.beta, one.first_clusters) for one in found.plateaus if one.dim == dim]
        listed = ", ".join(f"{many:.1f} at beta {number(beta)}" for beta, many in by_beta)
        said.append(
            Statement(
                source="ours",
                statement="The colder, the more clusters stand still at first (mean over starts).",
                measured=f"dim {dim}: {listed}.",
                agrees=all(later >= earlier for (_, earlier), (_, later) in pairwise(by_beta)),
            )
        )
    if found.estimates.median is not None:
        said.append(
            Statement(
                source="ours",
                statement="A plateau lasts exp(beta (1 - cos gap)) / (K beta sin^2 gap) steps, by the nearest two "
                "clusters alone, up to a factor of 3 in the median.",
                measured=f"{count(found.estimates.plateaus, 'plateau')}: log10 of the life misses it by "
                f"{found.estimates.median:.2f} in the median, {found.estimates.largest:.2f} at most.",
                agrees=found.estimates.median < WITHIN,
            )
        )
    return said


def notes(found: ClustersFound) -> list[str]:
    """Sentences for the reader."""
    lives = [
        f"{one.first_log10_life:.1f} (dim {one.dim}, beta {number(one.beta)})"
        for one in found.plateaus
        if one.first_log10_life is not None
    ]
    said = [
        "What can last exponentially longer as beta grows is a state with a given number of clusters, and so the whole "
        "way to one. The first plateau need not: it is another state at every beta."
        + (f" Median log10 of its steps: {'; '.join(lives)}." if lives else ""),
        "Steps beyond those of a plain run are counted in leaps, from speeds that are known as logs. An orthogonal "
        "value map turns all tokens together and changes nothing here.",
    ]
    at_rest = [one for one in found.float64 if one.ending == "equilibrium"]
    if at_rest:
        first = min(at_rest, key=lambda one: one.beta)
        said.append(
            f"A plain run in float64 ends as an equilibrium where tokens turn by less than {AT_REST:.0e} per step. "
            f"Here that happens from beta = {number(first.beta)} on, on a plateau of "
            f"{count(first.clusters, 'cluster')} that turn by {power(first.log10_speed * LN10, digits=2)} per step: it "
            "is no equilibrium."
        )
    if found.masks:
        listed = "; ".join(f"{one.mask} {one.clusters:.1f} at beta {number(one.beta)}" for one in found.masks)
        said.append(
            f"Mean number of clusters after {found.masks[0].steps} plain steps on the circle: {listed}. With a causal "
            "mask the first token never turns, so all tokens go to its place."
        )
    return said


# ------------------------------------------------------------------------------------------------------- picture


def chart(found: ClustersFound, table: Table) -> Chart:
    """Angles of all tokens over time for some inverse temperatures; below them steps and clusters by temperature."""
    ways = sorted(found.trajectories.items(), key=lambda pair: float(pair[0]))
    if len(ways) > PANELS:  # evenly spaced, with the coldest; the warmest has no plateaus
        ways = [ways[round(at)] for at in np.linspace(1, len(ways) - 1, PANELS)]
    starts = max(one.starts for one in found.plateaus)
    return Chart(
        [*(angle_panel(beta, way) for beta, way in ways), _lives(found), _firsts(found)],
        title="The colder the attention, the longer clusters stay apart: exponentially"
        if found.grows_exponentially
        else "Clusters of tokens on the sphere, and how long they last",
        notes=[
            f"X <- softmax(beta X X^T) X on the unit sphere, {found.setting.tokens} tokens, "
            f"{count(starts, 'start')} for every inverse temperature beta",
            *(
                ["angles: one start on the circle, a line per token; a cluster that waits is a level line"]
                * bool(ways)
            ),
        ],
    )


def to_meeting(angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angles ``looks tokens`` in degrees from the place where tokens meet, without jumps, equal within a cluster.

    Every path is moved by whole turns so that it ends within half a turn of that place. Tokens of one cluster go the
    same way from then on, so that their paths lie on each other.
    """
    end = angles[-1]
    middle = math.atan2(np.sin(end).mean(), np.cos(end).mean())
    last = np.remainder(end - middle + np.pi, 2 * np.pi) - np.pi
    found: NDArray[np.float64] = np.degrees(angles - end + last)
    return found


def angle_panel(beta: str, way: Trajectory) -> Panel:
    """A line per token over 1 + steps; points that change nothing are left out."""
    degrees, places = to_meeting(np.asarray(way.angles)), np.asarray(way.log10_steps)
    across, shares = places / max(places[-1], 1e-9), degrees / 360
    is_one = float(np.ptp(degrees[-1])) < math.degrees(CLOSE)
    lines = [
        Line(
            name="",
            points=[
                Point(way.steps[at] + 1, float(own[at]))
                for at in points_to_keep(list(zip(across, share, strict=True)), FINE)
            ],
            color=0,
            dots=False,
        )
        for own, share in zip(degrees.T, shares.T, strict=True)
    ]
    return Panel(
        title=f"Inverse temperature {beta}: tokens {'meet' if is_one else 'are apart'} after "
        f"{power(math.log(max(way.steps[-1], 1.0)), digits=2)} steps",
        lines=lines,
        value="angle to the meeting point, degrees",
        across="1 + steps",
        scale="linear",
        along="log",
    )


def _lives(found: ClustersFound) -> Panel:
    """Steps to consensus and on the first plateau; the axis has decades, so that an exponential is a straight line."""
    lines = list[Line]()
    for place, dim in enumerate(found.dims):
        own = [one for one in found.plateaus if one.dim == dim]
        whole = [
            Point(
                one.beta,
                one.total_log10_life,
                f"dim {dim}, to consensus: 1e{one.total_log10_life:.1f} steps (1e{one.total_low:.1f} to "
                f"1e{one.total_high:.1f})",
                low=one.total_low,
                high=one.total_high,
            )
            for one in own
        ]
        first = [
            Point(
                one.beta,
                one.first_log10_life,
                f"dim {dim}, first plateau: 1e{one.first_log10_life:.1f} steps",
            )
            for one in own
            if one.first_log10_life is not None
        ]
        lines += [
            Line(name=f"dim {dim}, to consensus", points=whole, color=place),
            Line(name=f"dim {dim}, first plateau", points=first, color=place, style="dashed"),
        ]
    return Panel(
        title="Steps to consensus, and steps of the first plateau",
        lines=lines,
        value="log10 of the steps",
        across="inverse temperature",
        scale="linear",
        notes=["medians over starts; bands from the least to the most"],
    )


def _firsts(found: ClustersFound) -> Panel:
    lines = [
        Line(
            name=f"dim {dim}",
            points=[
                Point(
                    one.beta,
                    one.first_clusters,
                    f"dim {dim}: {number(one.first_clusters)} clusters ({one.first_low} to {one.first_high})",
                    low=one.first_low,
                    high=one.first_high,
                )
                for one in found.plateaus
                if one.dim == dim
            ],
        )
        for dim in found.dims
    ]
    return Panel(
        title="Clusters on the first plateau",
        lines=lines,
        value="clusters",
        across="inverse temperature",
        scale="linear",
        along="log",
        notes=["means over starts; bands from the least to the most"],
    )


register(
    Figure(
        name="clusters",
        title="clusters on the sphere, and how long they last, by temperature",
        source=Ref(
            key="wu2024",
            where="Section 4",
            differs="own study beside it: identity values, softmax(beta X X^T), plateaus before the collapse",
        ),
        question="How many clusters do tokens on the sphere form, and how long do they last before all are one?",
        durations={"fast": "seconds", "usual": "seconds", "full": "tens of minutes"},
        sizes={
            "fast": ClusterConfig(size="fast", tokens=16, dims=(2,), betas=(1.0, 4.0, 16.0, 32.0), starts=4),
            "usual": ClusterConfig(size="usual"),
            "full": ClusterConfig(
                size="full",
                tokens=64,
                dims=(2, 3, 8),
                betas=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0, 150.0, 200.0),
                starts=20,
            ),
        },
        found=ClustersFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
        draws="seed",
    )
)
