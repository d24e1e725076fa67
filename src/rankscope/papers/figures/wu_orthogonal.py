"""``wu-orthogonal``: orthogonal values collapse on the sphere, mask by mask, and the bound of every step.

One row per mask and step (``layer``): ``diameter[l2]`` of the tokens, the largest over all starts; for unit tokens it
is ``sqrt(2 (1 - c))``, c the smallest cosine. Added columns, over starts: ``defect_median``, ``defect_low`` and
``defect_high`` of ``1 - c``; ``defect_floor``, below which it is rounding; ``covered``, starts with ``c >= 0``;
``bound_median`` and ``bound_high`` of the accumulated bound where more than half of the starts, or all, are covered;
``ratio``, the largest left side over right side of the step that led here (null where no start was covered).
"""

import math
from collections.abc import Sequence
from typing import Literal

import polars as pl
import torch
from pydantic import Field, field_validator
from torch import Tensor

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.numerics import relative_floor, threads_for
from rankscope.core.refs import Ref
from rankscope.core.words import count, number, power
from rankscope.dynamics.orthogonal import Draw, Followed, follow, in_hemisphere
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.findings.subject import Apart
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_of, register
from rankscope.papers.figures.statistics import share_text
from rankscope.results import Table
from rankscope.studies.collapse import apart_under
from rankscope.studies.rows import RowBuilder, definitions

DIAMETER = "diameter[l2]"

Connected = Literal["strongly", "quasi-strongly", "not"]


class OrthogonalConfig(FigureConfig):
    """Random starts, each with weights of its own; all masks share them."""

    figure: Literal["wu-orthogonal"] = "wu-orthogonal"
    tokens: int = Field(default=12, ge=2, le=512)
    dim: int = Field(default=4, ge=2)
    starts: int = Field(default=200, ge=1)
    steps: int = Field(default=4000, ge=1, description="after which a start is given up")
    looks: int = Field(default=128, ge=1, description="steps in which the bound is computed and drawn")
    gain: float = Field(default=1.0, gt=0, description="query and key entries N(0, gain^2 / dim)")
    masks: tuple[str, ...] = Field(
        default=("full", "causal", "window:2", "causal-window:2", "prefix:1", "window:1", "blocks:2"),
        min_length=1,
    )
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, max_length=1)

    @field_validator("masks")
    @classmethod
    def _masks_parse(cls, masks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(parse_mask(mask).text for mask in masks))


# ------------------------------------------------------------------------------------------------ what is found


class WuOrthogonalSetting(Value):
    """Sizes of the systems."""

    tokens: int
    dim: int
    steps: int
    """After which a start is given up."""


class Starts(Value):
    """Where the random starts lie."""

    count: int
    obtuse: int
    """Starts with two tokens at an obtuse angle."""

    outside_hemisphere: int


class Mask(Value):
    """What became of the starts under one mask."""

    mask: str
    connected: Connected
    starts: int
    collapsed: int
    steps_median: float
    steps_most: int
    worst_ratio: float | None
    """Largest left side over right side of the one-step bound; null where no step was covered."""

    steps_covered: int
    apart: Apart | None
    """Groups of tokens that read nothing outside themselves, where there are several."""

    @property
    def collapse(self) -> str:
        """How many starts collapse, in words."""
        return f"{self.mask}: starts that collapse {share_text(self.collapsed, self.starts)}"


class OrthogonalFound(Value):
    """What became of the starts, mask by mask."""

    setting: WuOrthogonalSetting
    masks: tuple[Mask, ...]
    starts: Starts


# -------------------------------------------------------------------------------------------------- computation


def compute(config: OrthogonalConfig, job: Job) -> tuple[Table, OrthogonalFound]:
    """One row per mask and step, see the module."""
    rows, masks = RowBuilder(), list[Mask]()
    with threads_for(config.starts * config.tokens**2):
        for done, mask in enumerate(config.masks, start=1):
            draw = Draw.of(
                parse_mask(mask),
                starts=config.starts,
                tokens=config.tokens,
                dim=config.dim,
                gain=config.gain,
                generator=torch.Generator().manual_seed(config.seeds[0]),
            )
            found = follow(draw.mixer, draw.values, draw.x, steps=config.steps, looks=config.looks)
            _add_rows(rows, found, mask, config)
            masks.append(_summary(found, mask, config.tokens))
            job.tell(done, len(config.masks))
    starts = Starts(  # all masks share them, so that the last ones are those of every mask
        count=config.starts,
        obtuse=int((found.defects[0] > 1).sum()),
        outside_hemisphere=config.starts - sum(in_hemisphere(draw.x)),
    )
    table = rows.table(config, command="reproduce", seeds=config.seeds, definitions=definitions([DIAMETER]))
    setting = WuOrthogonalSetting(tokens=config.tokens, dim=config.dim, steps=config.steps)
    return table, OrthogonalFound(setting=setting, masks=tuple(masks), starts=starts)


def _add_rows(rows: RowBuilder, found: Followed, mask: str, config: OrthogonalConfig) -> None:
    measure, bounds, defects = find_measure(DIAMETER), found.bounds, found.defects
    none = torch.full_like(found.ratios[:1], torch.nan)
    for layer, (defect, bound, ratio) in enumerate(
        zip(defects, bounds, torch.cat([none, found.ratios]), strict=True)
    ):
        covered = int((~bound.isnan()).sum())
        high = float(defect.max())
        rows.add(
            1,
            {
                "measure": measure.name,
                "definition": measure.definition,
                "model": "random",
                "mask": mask,
                "norm": "sphere",
                "seed": config.seeds[0],
                "layer": layer,
                "site": "block",
                "value": math.sqrt(2 * high),
                "floor": math.sqrt(2 * config.tokens) * relative_floor(layer, torch.float64),
                "defect_median": float(defect.median()),
                "defect_low": float(defect.min()),
                "defect_high": high,
                "defect_floor": 2 * float(found.rounding.after.max()) ** 2,
                "covered": covered,
                "bound_median": float(bound.nan_to_num(nan=2.0).median())
                if 2 * covered > len(bound)
                else None,
                "bound_high": float(bound.max()) if covered == len(bound) else None,
                "ratio": _largest(ratio),
            },
        )


def _largest(ratio: Tensor) -> float | None:
    known = ratio[~ratio.isnan()]
    return float(known.max()) if known.numel() else None


def connection(mask: str, tokens: int) -> Connected:
    """How the graph of the mask hangs together."""
    graph = parse_mask(mask).graph(tokens)
    if graph.is_strongly_connected:
        return "strongly"
    return "quasi-strongly" if graph.is_quasi_strongly_connected else "not"


def _summary(found: Followed, mask: str, tokens: int) -> Mask:
    steps = found.run.steps.double()
    return Mask(
        mask=mask,
        connected=connection(mask, tokens),
        starts=len(found.run.endings),
        collapsed=found.collapsed,
        steps_median=float(steps.median()),
        steps_most=int(steps.max()),
        worst_ratio=None if math.isnan(found.worst) else found.worst,
        steps_covered=int((~found.ratios.isnan()).sum()),
        apart=apart_under(mask, tokens),
    )


# --------------------------------------------------------------------------------------------------- statements


def points(found: OrthogonalFound) -> list[Statement]:
    """Collapse by how the mask connects the tokens, where such masks were run, and the bound of one step."""
    says: tuple[tuple[Connected, str], ...] = (
        ("strongly", "Orthogonal values collapse in spite of the norm where the mask is strongly connected."),
        (
            "quasi-strongly",
            "They also do where only some token reaches all (quasi-strongly connected masks).",
        ),
    )
    groups = [(words, [one for one in found.masks if one.connected == kind]) for kind, words in says]
    collapse = [
        Statement(
            source="reported",
            statement=words,
            measured="; ".join(
                f"{one.collapse}, in {one.steps_median:.0f} steps (median; most {one.steps_most})"
                for one in masks
            ),
            agrees=all_of(sum(one.collapsed for one in masks), sum(one.starts for one in masks)),
        )
        for words, masks in groups
        if masks
    ]
    return [*collapse, *_bound_statements(found.masks)]


def _bound_statements(masks: Sequence[Mask]) -> list[Statement]:
    """The bound of one step, if it was covered anywhere that the mask connects the tokens."""
    known = {one.mask: one.worst_ratio for one in masks if one.worst_ratio is not None}
    joined = [one.mask for one in masks if one.mask in known and one.connected != "not"]
    if not joined:
        return []
    worst = max(joined, key=lambda mask: known[mask])
    covered = sum(one.steps_covered for one in masks if one.mask in known)
    return [
        Statement(
            source="ours",
            statement="1 - c' <= (1 - c)(1 - min <A_i, A_j>) after one step wherever c >= 0.",
            measured=f"{count(covered, 'step')} with c >= 0: left side over right side is at most "
            f"{number(known[worst], 4)} ({worst}) where the mask connects the tokens.",
            agrees=all(ratio <= 1 for ratio in known.values()),
        )
    ]


def notes(found: OrthogonalFound) -> list[str]:
    """Sentences for the reader."""
    starts = found.starts
    return [
        f"{starts.obtuse} of {starts.count} starts hold two tokens at an obtuse angle and {starts.outside_hemisphere} "
        "lie in no hemisphere, so that nothing is proven of their first steps. The bound begins where no two tokens "
        "are at an obtuse angle.",
        "The bound is an equality for permutations of tokens and for rows that read disjoint, orthogonal tokens; "
        "where rows overlap it is strict. Complete maps collapse at third order, faster than any bound by overlaps. In "
        "windows some rows share no key, so that a single step of the bound gives nothing.",
        *(f"{one.collapse}. {one.apart.words}" for one in found.masks if one.apart is not None),
    ]


# ------------------------------------------------------------------------------------------------------ picture


def chart(found: OrthogonalFound, table: Table) -> Chart:
    """``1 - c`` by step, one panel per mask: median and range over starts, and the accumulated bound, dashed."""
    joined = [one for one in found.masks if one.connected != "not"]
    starts = found.starts
    return Chart(
        [_panel(table.frame.filter(pl.col("mask") == one.mask), one) for one in found.masks],
        title="Orthogonal values collapse on the sphere wherever the mask connects the tokens"
        if joined and all(one.collapsed == one.starts for one in joined)
        else "Orthogonal values on the unit sphere: 1 - smallest cosine of two tokens, by step",
        notes=[
            f"c: smallest cosine of two of {found.setting.tokens} tokens in {found.setting.dim} dimensions; median of "
            f"{starts.count} starts, least to most; {starts.outside_hemisphere} starts lie in no hemisphere; those "
            f"that collapse do within {found.setting.steps} steps",
            "dashed: the accumulated bound of every step, median, from where it covers more than half of the starts; "
            "shaded: rounding",
        ],
    )


def _panel(rows: pl.DataFrame, mask: Mask) -> Panel:
    """Lines end where rounding begins, which is shaded."""
    floor = math.log10(float(rows["defect_floor"].max()))  # type: ignore[arg-type]
    measured, bound = list[Point](), list[Point]()
    columns = ("layer", "defect_median", "defect_low", "defect_high", "bound_median")
    for step, middle, low, high, most in rows.select(columns).iter_rows():
        measured.append(_point(step, "measured", middle, low, high, floor=floor))
        bound.append(_point(step, "bound", most, floor=floor))
    steps = [point.x for point in measured]
    connected = "not connected" if mask.connected == "not" else f"{mask.connected} connected"
    return Panel(
        title=f"{mask.mask}: {mask.collapsed} of {mask.starts} starts collapse",
        notes=[connected],
        lines=[
            Line(
                name="",
                points=[Point(step, floor) for step in steps],
                style="dotted",
                color=-1,
                dots=False,
                shade=True,
            ),
            Line(name="measured", points=measured, color=0),
            Line(name="bound", points=bound, color=1, style="dashed", dots=False),
        ],
        value="1 - c",
        across="step",
        inside=(floor - 1.5, math.log10(2)),
    )


def _point(
    step: int,
    name: str,
    middle: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    floor: float,
) -> Point:
    """On the axis of logarithms; nothing where the middle is at rounding."""

    def log(value: float) -> float:
        return max(math.log10(value), floor) if value > 0 else floor

    if middle is None or log(middle) <= floor:
        return Point(step, None)
    said = f"{name}: {power(math.log10(middle) * LN10)}"
    ends = (None, None) if low is None or high is None else (log(low), log(high))
    return Point(step, log(middle), said, low=ends[0], high=ends[1])


register(
    Figure(
        name="wu-orthogonal",
        title="orthogonal values on the sphere, mask by mask, with the bound of one step",
        source=Ref(
            key="wu2024",
            where="Theorem 2",
            differs="a one-step bound with constants, and random starts outside of what it covers",
        ),
        question="Do tokens on the unit sphere collapse if the value maps are orthogonal, and how fast must they?",
        durations={
            "fast": "seconds",
            "usual": "seconds",
            "full": "minutes",
        },
        sizes={
            "fast": OrthogonalConfig(
                size="fast",
                tokens=8,
                starts=50,
                steps=600,
                looks=64,
                masks=("full", "causal", "window:2", "blocks:2"),
            ),
            "usual": OrthogonalConfig(size="usual"),
            "full": OrthogonalConfig(size="full", tokens=32, dim=8, starts=1000, steps=20_000, looks=512),
        },
        found=OrthogonalFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
        draws="seed",
    )
)
