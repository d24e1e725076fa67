"""Random stacks of the model of Wu et al. 2024 (arXiv:2405.18781), Section 2: ``X <- D A X W``, one head, no skips."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor

from rankscope.findings.base import Value
from rankscope.masks import parse_mask
from rankscope.measures import Evaluation, find_measure
from rankscope.network import (
    Attention,
    Chain,
    LayerNorm,
    Network,
    Norm,
    Softmax,
    Spec,
    Sphere,
    Values,
    gaussian_tokens,
    generators,
    with_mask,
    with_temperature,
)
from rankscope.network.initial import haar_orthogonal
from rankscope.network.seeds import Seeds, chunked, seeds_per_chunk
from rankscope.papers.figures.figure import FigureConfig
from rankscope.results.table import Cell as Entry
from rankscope.results.table import Columns
from rankscope.split import LogValue, split_states
from rankscope.split.run import in_dtype
from rankscope.studies.collapse import split_layers
from rankscope.studies.rows import RowBuilder

ValueKind = Literal["gaussian", "small", "orthogonal", "identity"]

BERT_GAIN = 0.02 * 768**0.5
"""Entries N(0, 0.02^2) at width 768, the initialisation of BERT-base, against N(0, 1/dim): a factor of 0.554."""

CURVE_MEASURES = ("residual[frobenius,mean]", "residual_ratio[frobenius,mean]")
"""mu(X) of the paper, and the same relative to the size of X."""

WORKERS = 2
"""Cells that run at the same time, each on one thread: their matrices are too small to share one product."""


class Shape(Value):
    """Size of the stacks, and their masks: complete, causal, sliding window, one-sided sliding window."""

    layers: int
    dim: int
    tokens: int
    window: int
    """Reach of the sliding windows: an eighth of the tokens to a side, at least one."""

    masks: tuple[str, ...]

    @classmethod
    def of(cls, *, layers: int, dim: int, tokens: int, **more: object) -> Self:
        """The masks of that many tokens; ``more`` are fields of a class that adds some."""
        window = max(1, tokens // 8)
        masks = ("full", "causal", f"window:{window}", f"causal-window:{window}")
        return cls.model_validate(
            {"layers": layers, "dim": dim, "tokens": tokens, "window": window, "masks": masks, **more}
        )


class StackConfig(FigureConfig):
    """Sizes of the stacks."""

    layers: int
    dim: int
    tokens: int

    @property
    def shape(self) -> Shape:
        """Sizes and masks."""
        return Shape.of(layers=self.layers, dim=self.dim, tokens=self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StackCell:
    """One architecture for a chunk of seeds.

    Args:
        about: columns of the table that name it.
        network: in float64, the norms inside, the mask not yet.
        single: the same in float32.
        x: ``seeds tokens dim``.
    """

    about: Columns
    network: Network
    single: Network
    x: Tensor
    mask: str
    temperature: float = 1.0

    def built(self, network: Network) -> Network:
        """One of the two networks with the mask and the temperature of this cell."""
        return with_temperature(with_mask(network, parse_mask(self.mask)), self.temperature)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StackCurve:
    """What one cell gave: both arithmetics at the recorded layers, and the log of the ratio at all of them.

    ``log10_ratio`` is ``layers seeds``, from the split pass.
    """

    cell: StackCell
    split: dict[int, list[LogValue]]
    ordinary: dict[int, list[Evaluation]]
    log10_ratio: Tensor


def stacks(shape: Shape, seeds: Sequence[int], values: ValueKind) -> Iterator[Seeds]:
    """Stacks and Gaussian tokens of every seed, in chunks that fit the cache; draws are shared by all value kinds."""
    size = seeds_per_chunk(Spec(layers=shape.layers, heads=1, dim=shape.dim), shape.tokens)
    return chunked(seeds, size, lambda seed: _one(shape, seed, values))


def _one(shape: Shape, seed: int, values: ValueKind) -> tuple[Network, Tensor]:
    for_weights, for_tokens = generators(seed)
    eye, size = torch.eye(shape.dim, dtype=torch.float64), shape.dim**-0.5
    blocks = []
    for _ in range(shape.layers):
        query, key, draw = torch.randn(
            3, shape.dim, shape.dim, generator=for_weights, dtype=torch.float64
        ).unbind()
        blocks.append(
            Attention(
                Softmax(query * size, key * size, heads=1), Values(_value_map(values, draw), eye, heads=1)
            )
        )
    return Network(blocks), gaussian_tokens(shape.tokens, shape.dim, generator=for_tokens)


def _value_map(kind: ValueKind, draw: Tensor) -> Tensor:
    match kind:
        case "gaussian":
            return torch.mul(draw, draw.shape[-1] ** -0.5)
        case "small":
            return torch.mul(draw, BERT_GAIN * draw.shape[-1] ** -0.5)
        case "orthogonal":
            return haar_orthogonal(draw)
        case "identity":
            return torch.eye(draw.shape[-1], dtype=draw.dtype)


def with_norm(network: Network, norm: str) -> Network:
    """The stack with that norm after every attention; ``none`` leaves it as it is."""
    made = norm_named(norm)
    return (
        network if made is None else network.with_blocks([Chain([block, made]) for block in network.blocks])
    )


def norm_named(norm: str) -> Norm | None:
    """The norm without weights: ``sphere``, ``layer`` (mean removed, eps 1e-5) or ``none``."""
    match norm:
        case "none":
            return None
        case "sphere":
            return Sphere()
        case _:
            return LayerNorm(eps=1e-5)


def cells(batch: Seeds, *, masks: Sequence[str], norms: Sequence[str], values: str) -> Iterator[StackCell]:
    """Every mask and norm on the weights of the batch."""
    single = in_dtype(batch.network, torch.float32)
    for norm in norms:
        normed, normed_single = with_norm(batch.network, norm), with_norm(single, norm)
        for mask in masks:
            about: Columns = {
                **{"model": "random", "mask": mask, "norm": norm, "values": values},
                **{"seed": list(batch.seeds), "site": "block"},
            }
            yield StackCell(about=about, network=normed, single=normed_single, x=batch.x, mask=mask)


def at_temperature(cell: StackCell, scale: float, **about: Entry) -> StackCell:
    """The cell with its logits divided by ``scale``."""
    return replace(cell, temperature=scale, about={**cell.about, **about})


def recorded_layers(layers: int) -> tuple[int, ...]:
    """0, 1, 2, ... and then four to an octave: evenly spread over an axis of logarithms."""
    steps = {round(2 ** (k / 4)) for k in range(4 * layers.bit_length() + 1)}
    return tuple(sorted({0, layers, *(step for step in steps if step <= layers)}))


def follow(work: Sequence[StackCell], layers: int) -> Iterator[StackCurve]:
    """The curves of all cells, in order, two cells at a time."""
    keep = recorded_layers(layers)
    with ThreadPoolExecutor(WORKERS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield from pool.map(lambda cell: follow_cell(cell, keep), work)


@torch.no_grad()
def follow_cell(cell: StackCell, keep: Sequence[int]) -> StackCurve:
    """One cell by the split pass in float64, and once more in float32 as an ordinary run would have it."""
    measures = [find_measure(name) for name in CURVE_MEASURES]
    splits = split_states(cell.built(cell.network), cell.x)
    states = cell.built(cell.single).states(cell.x.float())
    layers = list(split_layers(measures, splits, states, dtype=torch.float32, keep=keep))
    return StackCurve(
        cell=cell,
        split={layer: split for layer, split, _ in layers if layer in keep},
        ordinary={layer: ordinary for layer, _, ordinary in layers if layer in keep},
        log10_ratio=torch.stack([split[1].log10 for _, split, _ in layers]),
    )


def add_curve(rows: RowBuilder, curve: StackCurve) -> None:
    """Rows of the recorded layers: ``value`` from the split pass, ``float_value`` and ``float_floor`` in float32."""
    for layer, found in curve.split.items():
        for name, split, ordinary in zip(CURVE_MEASURES, found, curve.ordinary[layer], strict=True):
            rows.add_split(find_measure(name), split, ordinary, {**curve.cell.about, "layer": layer})
