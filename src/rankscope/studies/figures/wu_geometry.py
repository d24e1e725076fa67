"""``wu-geometry``: rank, smallest singular value and mean absolute cosine of the tokens against depth."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rankscope.core.config import Config
from rankscope.core.numerics import relative_floor
from rankscope.core.refs import Ref
from rankscope.measures import evaluate_many, find_measure
from rankscope.results import Table
from rankscope.split import split_states
from rankscope.studies.figures.figure import Advance, Figure, Point, Size, register
from rankscope.studies.figures.kept import DIM, DRIFT, KIND, SHEAR, STEADY, TOKENS, kept_cells
from rankscope.studies.figures.stacks import Cell, Shape, ValueKind, cells, recorded_layers, stacks
from rankscope.studies.figures.statistics import Mean, mean_of
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
    "fast": {"layers": 24, "dim": 16, "tokens": 16, "seeds": range(4)},
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20)},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3)},
}

Key = tuple[str, str, str]
"""Value maps, norm and mask."""

Found = dict[Key, dict[str, list[list[float]]]]
"""By network and definition one list of seeds per recorded layer."""


def make(size: Size, seeds: Sequence[int], advance: Advance | None = None) -> Table:
    """The table of the figure: float64 with floors, and the shape of what differs by the split pass."""
    chosen = SIZES[size] | ({"seeds": seeds} if seeds else {})
    config = WuGeometryConfig.of(size=size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, keep, done = Rows(), recorded_layers(config.layers), 0
    found: Found = {}
    total = len(config.seeds) * len(PLAN) * len(config.shape.masks) + 1
    for cell in _work(config):
        about = cell.about
        key = (str(about["values"]), str(about["norm"]), str(about["mask"]))
        _measure(rows, cell, keep, found.setdefault(key, {}))
        done += len(cell.x)
        if advance is not None:
            advance(done, total)
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
    most, masks = _full_rank(shape), shape.masks
    ranks = {mask: _last(found, ("gaussian", "sphere", mask), RANK).mean / most for mask in masks}
    above = {mask: _last(found, ("gaussian", "sphere", mask), ABOVE).mean / most for mask in masks}
    isometric = {mask: _last(found, ("orthogonal", "sphere", mask), ABOVE).mean / most for mask in masks}
    left = {mask: _last(found, ("gaussian", "sphere", mask), LEFT).mean for mask in masks}
    smallest = {
        mask: (
            mean_of(found["gaussian", "sphere", mask][SMALLEST][0]),
            _last(found, ("gaussian", "sphere", mask), SMALLEST),
        )
        for mask in masks
    }
    cosines = {
        mask: (
            mean_of(found["gaussian", "sphere", mask][COSINE][0]),
            _last(found, ("gaussian", "sphere", mask), COSINE),
        )
        for mask in masks
    }
    return [
        Point(
            published="Share of full rank stays near 100% in depth.",
            measured=f"Random value maps on the sphere, layer {shape.layers}, of {most}: above rounding "
            f"{_shares(above)} (orthogonal value maps: {_shares(isometric)}); above 1e-3 of the "
            f"largest {_shares(ranks)}: bare stacks do not keep it; networks with skips and MLPs, which the published "
            f"figure may show, are not these. What still differs between tokens, by the split pass, has numerical rank "
            f"{', '.join(f'{mask} {value:.3g}' for mask, value in left.items())} of {most - 1}.",
            agrees=True if all(value > 0.9 for value in above.values()) else None,
        ),
        Point(
            published="The smallest singular value falls.",
            measured="On the sphere, over the largest, layer 0 to the last: "
            + "; ".join(f"{mask} {_small(a.mean)} to {_small(b.mean)}" for mask, (a, b) in smallest.items())
            + ".",
            agrees=all(b.mean < a.mean for a, b in smallest.values()),
        ),
        Point(
            published="The mean absolute cosine of tokens rises.",
            measured="; ".join(f"{mask} {a.mean:.3f} to {b.mean:.3f}" for mask, (a, b) in cosines.items())
            + ".",
            agrees=all(b.mean > a.mean for a, b in cosines.values()),
        ),
        _kept(found, recorded_layers(shape.layers)),
    ]


def _kept(found: Found, keep: Sequence[int]) -> Point:
    key = next(key for key in found if key[0] == KIND)
    layer = max(place for place, at in enumerate(keep) if at <= STEADY)
    rank, above, smallest, cosine = (found[key][name][layer][0] for name in (RANK, ABOVE, SMALLEST, COSINE))
    return Point(
        published="Tokens keep full rank but are anisotropic.",
        measured=f"So it is at an equilibrium of rank {DIM} of W = I + {SHEAR:g} S ({TOKENS} tokens, {DIM} dimensions, "
        f"causal, unit sphere), layer {keep[layer]}: {above:.0f} of {DIM} singular values are above rounding "
        f"({rank:.0f} above 1e-3 of the largest), the smallest is {smallest:.1e} of the largest, the mean absolute "
        f"cosine is {cosine:.3f}. "
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
    Figure(
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
