"""``wu-masks``: mu(X) against depth for four masks, with and without a norm, without a floor and in float32."""

from typing import Any, Literal

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.kept import kept_cells, pushed, random_starts
from rankscope.papers.figures.stacks import (
    CURVE_MEASURES,
    Curve,
    Shape,
    ValueKind,
    add_curve,
    cells,
    follow,
    stacks,
)
from rankscope.papers.figures.wu_masks_found import Found
from rankscope.papers.figures.wu_masks_words import verdict_and_notes
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

NORMS = ("none", "sphere", "layer")


class WuMasksConfig(Config):
    """Sizes of the stacks; value maps other than Gaussian run on the first ``other_seeds`` seeds alone."""

    figure: Literal["wu-masks"] = "wu-masks"
    size: Size
    layers: int
    dim: int
    tokens: int
    seeds: tuple[int, ...]
    other_seeds: int
    random_starts: int = 200
    random_steps: int = 4000
    pushes: int = 64
    push: float = 1e-6

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, dim=self.dim, tokens=self.tokens)


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {
        "layers": 40,
        "dim": 32,
        "tokens": 8,
        "seeds": range(6),
        "other_seeds": 3,
        "random_starts": 50,
        "random_steps": 500,
        "pushes": 16,
    },
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20), "other_seeds": 5},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3), "other_seeds": 1},
}


def make(job: Job) -> Table:
    """The table of the figure: one row per network, seed, recorded layer and measure."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = WuMasksConfig.of(size=job.size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, found = Rows(), Found()
    plan = _plan(config)
    total, done = sum(len(work_seeds) * len(norms) for _, work_seeds, norms in plan) * 4 + 1, 0
    for values, work_seeds, norms in plan:
        for batch in stacks(config.shape, work_seeds, values):
            work = list(cells(batch, masks=config.shape.masks, norms=norms, values=values))
            for curve in follow(work, config.layers):
                _keep(rows, found, curve)
                done += len(batch.seeds)
                job.tell(done, total)
    for curve in follow(kept_cells(config.layers), config.layers):
        add_curve(rows, curve)
        found.add_kept(curve)
    found.pushed = pushed(config.pushes, config.push, config.random_steps, seed=config.seeds[0])
    found.starts = random_starts(config.random_starts, config.random_steps, seed=config.seeds[0])
    job.tell(total, total)
    points, notes = verdict_and_notes(found, config.shape)
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions(CURVE_MEASURES),
        **found.sections(config.shape),
        verdict=points,
        notes=notes,
    )


def _plan(config: WuMasksConfig) -> list[tuple[ValueKind, tuple[int, ...], tuple[str, ...]]]:
    """Value maps, their seeds and norms. Behind a norm the small maps would be the Gaussian ones
    again; isometries are asked about with a norm."""
    few = config.seeds[: config.other_seeds]
    return [
        ("gaussian", config.seeds, NORMS),
        ("small", few, ("none",)),
        ("orthogonal", few, NORMS[1:]),
        ("identity", few, NORMS[1:]),
    ]


def _keep(rows: Rows, found: Found, curve: Curve) -> None:
    add_curve(rows, curve)
    ordinary = [curve.ordinary[layer] for layer in sorted(curve.ordinary)]
    found.add(
        curve.cell.about,
        curves=np.asarray(curve.log10_ratio),
        single=np.stack([np.asarray(both[1].value) for both in ordinary]),
        floors=np.stack([np.asarray(both[1].floor) for both in ordinary]),
        size=np.asarray(ordinary[-1][0].value),
    )


def _chart(table: Table) -> Any:
    from rankscope.plots.wu_masks_chart import masks_chart

    return masks_chart(table)


register(
    OldFigure(
        name="wu-masks",
        title="masks and norms against depth: mu(X) and mu(X)/||X||_F",
        source=Ref(
            key="wu2024",
            where="Section 5, mu(X) against depth at initialisation",
            differs="Gaussian tokens in place of texts, one head, windows of an eighth of the tokens, and the split "
            "pass beside float32",
        ),
        question="Do masks slow collapse, and does a norm alone stop it at random weights?",
        durations={
            "fast": "about 8 seconds",
            "usual": "about 80 seconds",
            "full": "about 6 minutes, up to 11 GB",
        },
        make=make,
        chart=_chart,
    )
)
