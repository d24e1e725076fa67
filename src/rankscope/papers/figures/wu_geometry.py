"""``wu-geometry``: rank, smallest singular value and mean absolute cosine of the tokens against depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.numerics import relative_floor
from rankscope.core.refs import Ref
from rankscope.core.words import number, percent, power
from rankscope.findings.base import Value
from rankscope.findings.blocks import LN10
from rankscope.measures import evaluate_many, find_measure
from rankscope.papers.figures.figure import Figure, Job, Statement, all_or_none, register
from rankscope.papers.figures.resting import DIM, DRIFT, KIND, SHEAR, STEADY, TOKENS, kept_cells
from rankscope.papers.figures.stacks import (
    Shape,
    StackCell,
    StackConfig,
    ValueKind,
    cells,
    recorded_layers,
    stacks,
)
from rankscope.papers.figures.statistics import Mean, Median, mean_of, median_of
from rankscope.results import Table
from rankscope.results.table import Row
from rankscope.split import log_measure, split_states
from rankscope.studies.rows import RowBuilder, definitions

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

NEARLY = 0.9
"""Share of full rank, and mean cosine, above which tokens are called full rank, and anisotropic."""

LOWEST = -18.0
"""Singular values of a float64 state are rounding from about 1e-16 on; the axis of their ratio ends a little below."""


class WuGeometryConfig(StackConfig):
    """Sizes of the stacks."""

    figure: Literal["wu-geometry"] = "wu-geometry"


# ------------------------------------------------------------------------------------------------ what is found


class WuGeometrySetting(Shape):
    """Sizes of the stacks and masks, and the ranks that their tokens can have."""

    full_rank: int
    kept_full_rank: int
    """Of the built state, which has tokens and dimensions of its own."""


class Ends(Value):
    """One measure at layer 0 and at the last layer, over seeds."""

    first: Mean
    last: Mean
    first_median: Median
    last_median: Median
    change: Median
    """The median over seeds of the last minus the first."""


class NetworkGeometry(Value):
    """One kind of network: every measure, by its definition."""

    values: str
    norm: str
    mask: str
    measures: dict[str, Ends]


class BuiltState(Value):
    """The built state, at a layer at which rounding has not moved it."""

    layer: int
    above_rounding: int
    """Singular values that float64 can tell from zero."""

    above_thousandth: int
    """Singular values above 1e-3 of the largest."""

    smallest: float
    cosine: float


class WuGeometryFound(Value):
    """What became of the tokens of every network, and of the built state."""

    setting: WuGeometrySetting
    networks: tuple[NetworkGeometry, ...]
    built: BuiltState

    def ends(self, values: str, name: str) -> dict[str, Ends]:
        """A measure on the sphere, by mask."""
        return {
            one.mask: one.measures[name]
            for one in self.networks
            if one.norm == "sphere" and one.values == values
        }


# -------------------------------------------------------------------------------------------------- computation

Lists = dict[str, list[list[float]]]
"""By definition one list of seeds per recorded layer."""


def compute(config: WuGeometryConfig, job: Job) -> tuple[Table, WuGeometryFound]:
    """Float64 with floors, and the shape of what differs between tokens by the split pass."""
    rows, keep, done = RowBuilder(), recorded_layers(config.layers), 0
    found: dict[tuple[str, str, str], Lists] = {}
    total = len(config.seeds) * len(PLAN) * len(config.shape.masks) + 1
    for cell in _work(config):
        about = cell.about
        key = (str(about["values"]), str(about["norm"]), str(about["mask"]))
        _measure(rows, cell, keep, found.setdefault(key, {}))
        done += len(cell.x)
        job.tell(done, total)
    table = rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions((*MEASURES, LEFT))
        | {ABOVE: "singular values above 32 u sqrt(layer) of the largest, u the unit round-off of float64"},
    )
    return table, found_of(config.shape, found)


def found_of(shape: Shape, found: Mapping[tuple[str, str, str], Lists]) -> WuGeometryFound:
    """What is said of the numbers of every network at the recorded layers."""
    (built,) = (curves for key, curves in found.items() if key[0] == KIND)
    keep = recorded_layers(shape.layers)
    at = max(place for place, layer in enumerate(keep) if layer <= STEADY)
    return WuGeometryFound(
        setting=WuGeometrySetting.of(
            layers=shape.layers,
            dim=shape.dim,
            tokens=shape.tokens,
            full_rank=min(shape.tokens, shape.dim),
            kept_full_rank=min(TOKENS, DIM),
        ),
        networks=tuple(
            NetworkGeometry(
                values=values,
                norm=norm,
                mask=mask,
                measures={name: _ends(curves[name]) for name in (*MEASURES, ABOVE, LEFT)},
            )
            for (values, norm, mask), curves in found.items()
        ),
        built=BuiltState(
            layer=keep[at],
            above_rounding=round(built[ABOVE][at][0]),
            above_thousandth=round(built[RANK][at][0]),
            smallest=built[SMALLEST][at][0],
            cosine=built[COSINE][at][0],
        ),
    )


def _ends(curves: Sequence[Sequence[float]]) -> Ends:
    first, last = curves[0], curves[-1]
    return Ends(
        first=mean_of(first),
        last=mean_of(last),
        first_median=median_of(first),
        last_median=median_of(last),
        change=median_of([b - a for a, b in zip(first, last, strict=True)]),
    )


def _work(config: WuGeometryConfig) -> Iterator[StackCell]:
    for values, norm in PLAN:
        for batch in stacks(config.shape, config.seeds, values):
            yield from cells(batch, masks=config.shape.masks, norms=[norm], values=values)
    sphere = kept_cells(config.layers)[0]
    yield replace(sphere, about={**sphere.about, "rank": [DIM]}, x=sphere.x[-1:])


@torch.no_grad()
def _measure(rows: RowBuilder, cell: StackCell, keep: Sequence[int], found: Lists) -> None:
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
        about_rank: Row = {
            "measure": "numerical_rank",
            "definition": ABOVE,
            "arithmetic": "float64",
            "floor": 0.0,
        }
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


def _extend(found: Lists, name: str, layer: int, keep: Sequence[int], value: Tensor) -> None:
    lists = found.setdefault(name, [[] for _ in keep])
    lists[list(keep).index(layer)].extend(value.tolist())


# --------------------------------------------------------------------------------------------------- statements


def points(found: WuGeometryFound) -> list[Statement]:
    """Three readings of the published figure, and what a built state shows."""
    return [
        _ranks(found),
        _change(found, SMALLEST, "The smallest singular value falls.", wanted=-1),
        _change(found, COSINE, "The mean absolute cosine of tokens rises.", wanted=1),
        _rest_statement(found.built),
    ]


def _ranks(found: WuGeometryFound) -> Statement:
    """Agrees if the whole interval lies above nine tenths for every mask; otherwise the setups are not comparable."""
    most = found.setting.full_rank
    above = found.ends("gaussian", ABOVE)

    def shares(values: str, name: str) -> str:
        return ", ".join(
            f"{mask} {percent(one.last.mean / most)}" for mask, one in found.ends(values, name).items()
        )

    left = ", ".join(f"{mask} {number(one.last.mean)}" for mask, one in found.ends("gaussian", LEFT).items())
    return Statement(
        source="reported",
        statement="Share of full rank stays near 100% in depth.",
        measured=f"Random value maps on the sphere, layer {found.setting.layers}, mean over seeds, of {most}: above "
        f"rounding {shares('gaussian', ABOVE)} (orthogonal value maps: {shares('orthogonal', ABOVE)}); above 1e-3 of "
        f"the largest {shares('gaussian', RANK)}. These are bare stacks; the published figure may show networks with "
        f"skips and MLPs. What still differs between tokens, by the split pass, has numerical rank {left} of "
        f"{most - 1}.",
        agrees=True
        if all(one.last.low is not None and one.last.low > NEARLY * most for one in above.values())
        else None,
    )


def _change(found: WuGeometryFound, name: str, says: str, *, wanted: int) -> Statement:
    """From layer 0 to the last, paired by seed; agrees if the interval of the median is on that side for all masks."""
    ends = found.ends("gaussian", name)
    is_enough = all(one.change.is_enough for one in ends.values())
    count = min(one.change.count for one in ends.values())
    kind = "95% interval" if is_enough else f"{count} seeds are too few for an interval"
    what = "Over the largest" if name == SMALLEST else "Mean absolute cosine"
    each = "; ".join(
        f"{mask} {_value(name, one.first_median.median)} to {_value(name, one.last_median.median)}"
        + (
            f" ({_value(name, one.last_median.low)} to {_value(name, one.last_median.high)})"
            if is_enough
            else ""
        )
        for mask, one in ends.items()
    )
    return Statement(
        source="reported",
        statement=says,
        measured=f"{what}, on the sphere, layer 0 to the last, median over seeds ({kind}): {each}.",
        agrees=all_or_none(
            [{wanted: True, -wanted: False}.get(one.change.sign or 0) for one in ends.values()]
        ),
    )


def _value(name: str, value: float) -> str:
    if name == SMALLEST:
        return "rounding" if value < np.finfo(float).eps * 32 else number(value, 2)
    return number(value)


def _rest_statement(built: BuiltState) -> Statement:
    return Statement(
        source="ours",
        statement="There is a state that a norm keeps at full rank while its tokens are anisotropic.",
        measured=f"One built state, the equilibrium of rank {DIM} of W = I + {SHEAR:g} S ({TOKENS} tokens, {DIM} "
        f"dimensions, causal, unit sphere), read at layer {built.layer} while rounding has not moved it: "
        f"{built.above_rounding} of {DIM} singular values are above rounding ({built.above_thousandth} above 1e-3 of "
        f"the largest), the smallest is {number(built.smallest, 2)} of the largest, the mean absolute cosine is "
        f"{number(built.cosine)}. It does not attract, see the notes.",
        agrees=built.above_rounding == DIM and built.cosine > NEARLY,
    )


def notes(found: WuGeometryFound) -> list[str]:
    """Sentences for the reader."""
    setting = found.setting
    return [
        f"Stacks of {setting.layers} layers, dim {setting.dim}, {setting.tokens} Gaussian tokens, one head, value maps "
        f"N(0, 1/dim), windows of {setting.window} to a side, in float64; numbers below their floor are marked as "
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


# ------------------------------------------------------------------------------------------------------ picture

TITLES = {
    ABOVE: "rank above rounding",
    RANK: "rank above 1e-3 of the largest",
    SMALLEST: "smallest singular value",
    COSINE: "mean absolute cosine",
}
SYMBOLS = {
    ABOVE: "share of full rank",
    RANK: "share of full rank",
    SMALLEST: "over the largest",
    COSINE: "cosine",
}


def chart(found: WuGeometryFound, table: Table) -> Chart:
    """Rows are measures, columns Gaussian value maps (with the built state beside them) and orthogonal ones."""
    setting = found.setting
    rises, falls = (
        all(one.change.sign == way for one in found.ends("gaussian", name).values())
        for name, way in ((COSINE, 1), (SMALLEST, -1))
    )
    seeds = table.frame["seed"].drop_nulls().n_unique()
    return Chart(
        [
            _panel(found, table.frame, name, values, title)
            for name in TITLES
            for values, title in (("gaussian", "Gaussian values"), ("orthogonal", "orthogonal values"))
        ],
        title="Tokens of random stacks align and lose directions; one built state keeps them"
        if rises and falls and _rest_statement(found.built).agrees
        else "Rank, smallest singular value and cosine of the tokens against depth",
        notes=[
            f"Unit sphere after every layer; width {setting.dim}, {setting.tokens} tokens, one head, float64; means "
            f"over {seeds} seeds, geometric ones for singular values",
            "rings: at least half of the seeds are at rounding; built: the state of full rank of W = I + "
            f"{SHEAR:g} S, {DIM} dimensions, causal",
        ],
    )


def _panel(found: WuGeometryFound, frame: pl.DataFrame, name: str, values: str, title: str) -> Panel:
    own = frame.filter((pl.col("definition") == name) & (pl.col("norm") == "sphere") & (pl.col("layer") > 0))
    lines = [
        _line(
            own.filter((pl.col("values") == values) & (pl.col("mask") == mask)),
            name,
            mask,
            found.setting.full_rank,
        )
        for mask in found.setting.masks
    ]
    if values == "gaussian":
        built = own.filter(pl.col("model") == "constructed")
        lines.append(replace(_line(built, name, "built", found.setting.kept_full_rank), color=-1))
    is_log = name == SMALLEST
    return Panel(
        title=f"{TITLES[name]}, {title}",
        lines=lines,
        value=SYMBOLS[name],
        scale="log" if is_log else "linear",
        inside=(LOWEST, 0.0) if is_log else (0.0, 1.0),
        along="log",
    )


def _line(rows: pl.DataFrame, name: str, words: str, full_rank: int) -> Line:
    """The mean over seeds at every layer, as a share of full rank where it is a rank."""
    number_of = {
        ABOVE: pl.col("value").mean() / full_rank,
        RANK: pl.col("value").mean() / full_rank,
        SMALLEST: pl.col("log10_value").mean(),
        COSINE: pl.col("value").mean(),
    }[name]
    means = rows.group_by("layer", maintain_order=True).agg(
        number_of.alias("y"), (pl.col("resolved").mean() <= 0.5).alias("hollow")
    )
    found = list[Point]()
    for layer, y, is_hollow in means.iter_rows():
        text = power(y * LN10) if name == SMALLEST and y is not None else number(y)
        shown = max(y, LOWEST) if name == SMALLEST and y is not None else y
        found.append(Point(layer, shown, f"{words}: {text}", hollow=is_hollow))
    return Line(name=words, points=found)


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
            "fast": "seconds",
            "usual": "a minute",
            "full": "minutes, about 10 GB of memory",
        },
        sizes={
            "fast": WuGeometryConfig(size="fast", layers=24, dim=12, tokens=12, seeds=tuple(range(6))),
            "usual": WuGeometryConfig(size="usual", layers=128, dim=64, tokens=64, seeds=tuple(range(20))),
            "full": WuGeometryConfig(size="full", layers=128, dim=768, tokens=128, seeds=tuple(range(3))),
        },
        found=WuGeometryFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
