"""``wu-geometry``: rank, smallest singular value and mean absolute cosine of the tokens against depth."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.numerics import relative_floor
from rankscope.core.refs import Ref
from rankscope.measures import evaluate_many, find_measure
from rankscope.papers.figures.figure import Job, OldFigure, Point, Size, decided, register
from rankscope.papers.figures.kept import DIM, DRIFT, KIND, SHEAR, STEADY, TOKENS, kept_cells
from rankscope.papers.figures.stacks import Cell, Shape, ValueKind, cells, recorded_layers, stacks
from rankscope.papers.figures.statistics import Mean, mean_of, median_of
from rankscope.results import Table
from rankscope.split import log_measure, split_states
from rankscope.studies.rows import Rows, definitions

RANK, SMALLEST, COSINE = "numerical_rank[relative]", "smallest_singular_value[ratio]", "cosine[absolute]"
MEASURES = (RANK, SMALLEST, COSINE)
ABOVE = "numerical_rank[rounding]"
"""Singular values above 32 u sqrt(layer) of the largest: those that a float64 run can tell from zero."""

LEFT = "numerical_rank[relative,centered]"
"""Of what differs between tokens, from the split pass: it has a shape however small it is."""

PLAN: tuple[tuple[ValueKind, str], ...] = (
    ("gaussian", "none"),
    ("gaussian", "sphere"),
    ("orthogonal", "sphere"),
)
"""Value maps and norm of the random stacks; the sphere is the paper's LayerNorm."""


class WuGeometryConfig(Config):
    """Sizes of the stacks."""

    figure: Literal["wu-geometry"] = "wu-geometry"
    size: Size
    layers: int
    dim: int
    tokens: int
    seeds: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, dim=self.dim, tokens=self.tokens)


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {"layers": 24, "dim": 12, "tokens": 12, "seeds": range(6)},
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20)},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3)},
}

Key = tuple[str, str, str]
"""Value maps, norm and mask."""

Found = dict[Key, dict[str, list[list[float]]]]
"""By network and definition one list of seeds per recorded layer."""


def make(job: Job) -> Table:
    """The table of the figure: float64 with floors, and the shape of what differs by the split pass."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = WuGeometryConfig.of(size=job.size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, keep, done = Rows(), recorded_layers(config.layers), 0
    found: Found = {}
    total = len(config.seeds) * len(PLAN) * len(config.shape.masks) + 1
    for cell in _work(config):
        about = cell.about
        key = (str(about["values"]), str(about["norm"]), str(about["mask"]))
        _measure(rows, cell, keep, found.setdefault(key, {}))
        done += len(cell.x)
        job.tell(done, total)
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions((*MEASURES, LEFT))
        | {ABOVE: "singular values above 32 u sqrt(layer) of the largest, u the unit round-off of float64"},
        setting={
            "layers": config.layers,
            "dim": config.dim,
            "tokens": config.tokens,
            "window": config.shape.window,
            "masks": list(config.shape.masks),
            "full_rank": _full_rank(config.shape),
            "kept_full_rank": min(TOKENS, DIM),
        },
        networks=[_network(key, curves) for key, curves in found.items()],
        verdict=_verdict(found, config.shape),
        notes=_notes(config),
    )


def _work(config: WuGeometryConfig) -> Iterator[Cell]:
    for values, norm in PLAN:
        for batch in stacks(config.shape, config.seeds, values):
            yield from cells(batch, masks=config.shape.masks, norms=[norm], values=values)
    sphere = kept_cells(config.layers)[0]
    about = {**sphere.about, "rank": [DIM]}
    yield Cell(about=about, network=sphere.network, single=sphere.single, x=sphere.x[-1:], mask=sphere.mask)


def _full_rank(shape: Shape) -> int:
    return min(shape.tokens, shape.dim)


@torch.no_grad()
def _measure(rows: Rows, cell: Cell, keep: Sequence[int], found: dict[str, list[list[float]]]) -> None:
    """States of an ordinary float64 run at the recorded layers, and what differs between tokens by the split pass."""
    network = cell.built(cell.network)
    for layer, (state, split) in enumerate(
        zip(network.states(cell.x), split_states(network, cell.x), strict=True)
    ):
        if layer not in keep:
            continue
        about = {**cell.about, "layer": layer}
        measures = [find_measure(name) for name in MEASURES]
        for measure, value in zip(
            measures, evaluate_many(measures, state, layer=layer, dtype=torch.float64), strict=True
        ):
            rows.add_measured(measure, value, {**about, "arithmetic": "float64"})
            _extend(found, measure.definition, layer, keep, value.value)
        above = _above_rounding(state, layer)
        about_rank = {"measure": "numerical_rank", "definition": ABOVE, "arithmetic": "float64", "floor": 0.0}
        rows.add(len(above), {**about, **about_rank, "value": above.tolist()})
        _extend(found, ABOVE, layer, keep, above)
        left = find_measure(LEFT)
        (shape,) = evaluate_many([left], split.residual, layer=0, dtype=torch.float64)
        known = log_measure(find_measure("residual[frobenius,mean]"), split).resolved
        shape = replace(shape, resolved=shape.resolved & known)
        rows.add_measured(left, shape, {**about, "arithmetic": "split"})
        _extend(found, LEFT, layer, keep, shape.value)


def _above_rounding(state: Tensor, layer: int) -> Tensor:
    sizes = torch.linalg.svdvals(state)
    above = torch.gt(sizes, relative_floor(layer, torch.float64) * sizes[:, :1])
    return above.sum(dim=-1).double()


def _extend(
    found: dict[str, list[list[float]]], name: str, layer: int, keep: Sequence[int], value: Tensor
) -> None:
    lists = found.setdefault(name, [[] for _ in keep])
    lists[list(keep).index(layer)].extend(value.tolist())


def _network(key: Key, curves: dict[str, list[list[float]]]) -> dict[str, Any]:
    return {
        "values": key[0],
        "norm": key[1],
        "mask": key[2],
        **{
            f"{name} at layer {words}": mean_of(curves[name][at]).section()
            for name in (*MEASURES, ABOVE, LEFT)
            for at, words in ((0, "0"), (-1, "last"))
        },
    }


def _last(found: Found, key: Key, name: str) -> Mean:
    return mean_of(found[key][name][-1])


def _verdict(found: Found, shape: Shape) -> list[Point]:
    return [
        rank_point(found, shape),
        _change(found, shape, SMALLEST, "The smallest singular value falls.", wanted=-1),
        _change(found, shape, COSINE, "The mean absolute cosine of tokens rises.", wanted=1),
        _kept(found, recorded_layers(shape.layers)),
    ]


def rank_point(found: Found, shape: Shape) -> Point:
    """Agrees if the whole interval lies above nine tenths for every mask; otherwise the setups are not comparable."""
    most, masks = _full_rank(shape), shape.masks
    ranks = {mask: _last(found, ("gaussian", "sphere", mask), RANK).mean / most for mask in masks}
    above = {mask: _last(found, ("gaussian", "sphere", mask), ABOVE) for mask in masks}
    isometric = {mask: _last(found, ("orthogonal", "sphere", mask), ABOVE).mean / most for mask in masks}
    left = {mask: _last(found, ("gaussian", "sphere", mask), LEFT).mean for mask in masks}
    means = {mask: one.mean / most for mask, one in above.items()}
    return Point(
        source="reported",
        statement="Share of full rank stays near 100% in depth.",
        measured=f"Random value maps on the sphere, layer {shape.layers}, mean over seeds, of {most}: above rounding "
        f"{_shares(means)} (orthogonal value maps: {_shares(isometric)}); above 1e-3 of the "
        f"largest {_shares(ranks)}: bare stacks do not keep it; networks with skips and MLPs, which the published "
        f"figure may show, are not these. What still differs between tokens, by the split pass, has numerical rank "
        f"{', '.join(f'{mask} {value:.3g}' for mask, value in left.items())} of {most - 1}.",
        agrees=True if all(one.low is not None and one.low > 0.9 * most for one in above.values()) else None,
    )


def _change(found: Found, shape: Shape, name: str, says: str, *, wanted: int) -> Point:
    """From layer 0 to the last, paired by seed; agrees if the interval of the median is on that side for all masks."""
    told, sides = [], list[bool | None]()
    for mask in shape.masks:
        lists = found["gaussian", "sphere", mask][name]
        first, last = median_of(lists[0]), median_of(lists[-1])
        change = median_of([b - a for a, b in zip(lists[0], lists[-1], strict=True)])
        text = _small if name == SMALLEST else "{:.3f}".format
        between = "" if not change.is_enough else f" ({text(last.low)} to {text(last.high)})"
        told.append(f"{mask} {text(first.median)} to {text(last.median)}{between}")
        sides.append({wanted: True, -wanted: False}.get(change.sign or 0))
    what = "Over the largest" if name == SMALLEST else "Mean absolute cosine"
    kind = "95% interval" if change.is_enough else f"{change.count} seeds are too few for an interval"
    return Point(
        source="reported",
        statement=says,
        measured=f"{what}, on the sphere, layer 0 to the last, median over seeds ({kind}): {'; '.join(told)}.",
        agrees=decided(sides),
    )


def _kept(found: Found, keep: Sequence[int]) -> Point:
    key = next(key for key in found if key[0] == KIND)
    layer = max(place for place, at in enumerate(keep) if at <= STEADY)
    rank, above, smallest, cosine = (found[key][name][layer][0] for name in (RANK, ABOVE, SMALLEST, COSINE))
    return Point(
        source="ours",
        statement="There is a state that a norm keeps at full rank while its tokens are anisotropic.",
        measured=f"One built state, the equilibrium of rank {DIM} of W = I + {SHEAR:g} S ({TOKENS} tokens, {DIM} "
        f"dimensions, causal, unit sphere), read at layer {keep[layer]} while rounding has not moved it: {above:.0f} "
        f"of {DIM} singular values are above rounding ({rank:.0f} above 1e-3 of the largest), the smallest is "
        f"{smallest:.1e} of the largest, the mean absolute cosine is {cosine:.3f}. It does not attract, see the notes. "
        "At random value maps the tokens are anisotropic because they collapse.",
        agrees=above == DIM and cosine > 0.9,
    )


def _shares(ranks: dict[str, float]) -> str:
    return ", ".join(f"{mask} {value:.0%}" for mask, value in ranks.items())


def _small(value: float) -> str:
    return "rounding" if value < np.finfo(float).eps * 32 else f"{value:.1e}"


def _notes(config: WuGeometryConfig) -> list[str]:
    return [
        f"Stacks of {config.layers} layers, dim {config.dim}, {config.tokens} Gaussian tokens, one head, value maps "
        f"N(0, 1/dim), windows of {config.shape.window} to a side, in float64; numbers below their floor are marked as "
        "not resolved.",
        "Rank is a matter of the threshold, which every definition names: in exact arithmetic a random stack keeps its "
        "rank, generically, at any finite depth, while its small singular values tend to zero.",
        "The norm is the paper's projection to the unit sphere. LayerNorm with its mean removal takes one direction "
        "out of all tokens, so that with as many tokens as dimensions the smallest singular value is 0 at once.",
        "A product of Gaussian value maps alone thins out the directions, whatever attention does; a product of "
        "orthogonal ones does not.",
        DRIFT,
        "For a trained model: 'rankscope scan MODEL --measure numerical_rank,smallest_singular_value,cosine[absolute]' "
        "gives the same three numbers layer by layer.",
    ]


def _chart(table: Table) -> Any:
    from rankscope.plots.wu_geometry_chart import geometry_chart

    return geometry_chart(table)


register(
    OldFigure(
        name="wu-geometry",
        title="token geometry against depth: rank, smallest singular value, cosine",
        source=Ref(
            key="wu2024",
            where="Section 5, rank, smallest singular value and absolute cosine in depth",
            differs="random stacks in place of trained models, plus a value map that keeps rank",
        ),
        question="Are tokens full rank but anisotropic, or collapsed?",
        durations={
            "fast": "about 3 seconds",
            "usual": "about 1 minute",
            "full": "about 6 minutes, up to 11 GB (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
