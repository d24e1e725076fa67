"""Figure ``wu-orthogonal``: orthogonal values collapse on the sphere, mask by mask, and the bound of every step.

The table. One row per mask and step (``layer``): ``diameter[l2]`` of the tokens, the largest over all starts; for unit
tokens it is ``sqrt(2 (1 - c))``, c the smallest cosine. Added columns, over starts: ``defect_median``, ``defect_low``
and ``defect_high`` of ``1 - c``; ``defect_floor``, below which it is rounding; ``covered``, starts with ``c >= 0``;
``bound_median`` and ``bound_high`` of the accumulated bound where more than half of the starts, or all, are covered;
``ratio``, the largest left side over right side of the step that led here (null where no start was covered).

Sections: ``masks``, one object per mask ``{mask, connected, starts, collapsed, steps_median, steps_most, worst_ratio,
steps_covered, note}``; ``starts`` ``{count, obtuse, outside_hemisphere}``; ``verdict``, ``notes``.
"""

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.numerics import relative_floor, threads_for
from rankscope.core.refs import Ref
from rankscope.dynamics.orthogonal import Draw, Followed, follow, in_hemisphere
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.papers.figures.figure import Advance, Job, OldFigure, Point, Size, all_of, register
from rankscope.papers.figures.statistics import share_text
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

if TYPE_CHECKING:
    from rankscope.plots import Chart

DIAMETER = "diameter[l2]"

Connected = Literal["strongly", "quasi-strongly", "not"]


class OrthogonalConfig(Config):
    """Random starts, each with weights of its own; all masks share them."""

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


SIZES: dict[Size, OrthogonalConfig] = {
    "fast": OrthogonalConfig(
        tokens=8, starts=50, steps=600, looks=64, masks=("full", "causal", "window:2", "blocks:2")
    ),
    "usual": OrthogonalConfig(),
    "full": OrthogonalConfig(tokens=32, dim=8, starts=1000, steps=20_000, looks=512),
}


def orthogonal(config: OrthogonalConfig, *, advance: Advance | None = None) -> Table:
    """The table of the figure, see the module."""
    rows, masks = Rows(), list[dict[str, Any]]()
    starts = torch.zeros(0)
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
            starts = draw.x
            _add_rows(rows, found, mask, config)
            masks.append(_summary(found, mask, config.tokens))
            if advance is not None:
                advance(done, len(config.masks))
    about = {
        "count": config.starts,
        "obtuse": int((found.defects[0] > 1).sum()),
        "outside_hemisphere": config.starts - sum(in_hemisphere(starts)),
    }
    return rows.table(
        config,
        command="reproduce wu-orthogonal",
        seeds=config.seeds,
        definitions=definitions([DIAMETER]),
        masks=masks,
        starts=about,
        verdict=_verdict(masks),
        notes=_notes(masks, about),
    )


def _add_rows(rows: Rows, found: Followed, mask: str, config: OrthogonalConfig) -> None:
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


def _summary(found: Followed, mask: str, tokens: int) -> dict[str, Any]:
    steps = found.run.steps.double()
    return {
        "mask": mask,
        "connected": connection(mask, tokens),
        "starts": len(found.run.endings),
        "collapsed": found.collapsed,
        "steps_median": float(steps.median()),
        "steps_most": int(steps.max()),
        "worst_ratio": None if math.isnan(found.worst) else found.worst,
        "steps_covered": int((~found.ratios.isnan()).sum()),
        "note": found.run.note,
    }


def _verdict(masks: list[dict[str, Any]]) -> list[Point]:
    points = list[Point]()
    for kind, says in (
        ("strongly", "orthogonal values collapse in spite of the norm where the mask is strongly connected"),
        (
            "quasi-strongly",
            "the same where only some token reaches all: versions for quasi-strongly connected masks",
        ),
    ):
        these = [one for one in masks if one["connected"] == kind]
        if these:
            listed = "; ".join(
                f"{one['mask']}: starts that collapse {share_text(one['collapsed'], one['starts'])}, in "
                f"{one['steps_median']:.0f} steps (median; most {one['steps_most']})"
                for one in these
            )
            agrees = all_of(sum(one["collapsed"] for one in these), sum(one["starts"] for one in these))
            points.append({"source": "reported", "statement": says, "measured": listed, "agrees": agrees})
    known = [one for one in masks if one["worst_ratio"] is not None]
    joined = [one for one in known if one["connected"] != "not"]
    worst = max(joined, key=lambda one: one["worst_ratio"], default=None)
    if worst is not None:
        covered = sum(one["steps_covered"] for one in known)
        points.append(
            {
                "source": "ours",
                "statement": "1 - c' <= (1 - c)(1 - min <A_i, A_j>) after one step wherever c >= 0",
                "measured": f"{covered} steps with c >= 0: left side over right side is at most "
                f"{worst['worst_ratio']:.4f} ({worst['mask']}) where the mask connects the tokens",
                "agrees": all(one["worst_ratio"] <= 1 for one in known),
            }
        )
    return points


def _notes(masks: list[dict[str, Any]], starts: dict[str, int]) -> list[str]:
    notes = [
        f"{starts['obtuse']} of {starts['count']} starts hold two tokens at an obtuse angle and "
        f"{starts['outside_hemisphere']} lie in no hemisphere, so that nothing is proven of their first steps; they "
        "collapse as well where the mask lets them. The bound begins where no two tokens are at an obtuse angle.",
        "The bound is an equality for permutations of tokens and for rows that read disjoint, orthogonal tokens; "
        "where rows overlap it is strict. Complete maps collapse at third order, faster than any bound by overlaps. In "
        "windows some rows share no key, so that a single step of the bound gives nothing.",
    ]
    apart = [one for one in masks if one["connected"] == "not"]
    notes += [
        f"{one['mask']}: starts that collapse {share_text(one['collapsed'], one['starts'])}. {one['note']}"
        for one in apart
    ]
    return notes


def _make(job: Job) -> Table:
    config = SIZES[job.size]
    if job.seeds:
        config = OrthogonalConfig.of(**(config.model_dump() | {"seeds": job.seeds}))
    return orthogonal(config, advance=job.advance)


def _chart(table: Table) -> "Chart":
    from rankscope.plots.wu_orthogonal import wu_orthogonal_chart

    return wu_orthogonal_chart(table)


register(
    OldFigure(
        name="wu-orthogonal",
        title="orthogonal values on the sphere, mask by mask, with the bound of one step",
        source=Ref(
            key="wu2024",
            where="Theorem 2",
            differs="a one-step bound with constants, and random starts outside of what it covers",
        ),
        question="Do tokens on the unit sphere collapse if the value maps are orthogonal, and how fast must they?",
        durations={"fast": "about 3 s", "usual": "about 20 s", "full": "about 10 minutes (estimated)"},
        make=_make,
        chart=_chart,
    )
)
