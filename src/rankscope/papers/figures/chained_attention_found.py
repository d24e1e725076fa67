"""What chains of attention maps of one model give: ratios by depth, order and path, and coefficients of the maps."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankscope.measures.maps import dobrushin_of
from rankscope.measures.norms import linf_norm
from rankscope.papers.figures.chained_attention_products import (
    ORDERS,
    Factors,
    Order,
    Product,
    consensus_ratio,
    factors,
    plain_ratios,
    products,
    rank_one_ratio,
)

MEAN, RANK_ONE = "residual_ratio[composite,mean]", "rank_one_ratio[composite,svd]"
ROWS = "residual_ratio[linf,mean]"
CHUNK = 10
"""Paths at a time, so that their matrices stay in the cache of a processor."""

Curves = dict[str, list[list[float]]]
"""``log10`` and ``floor`` of a ratio, by depth and path."""


def chained(maps: Sequence[Tensor], *, paths: int, plain: int, window: int, seed: int) -> dict[str, Any]:
    """Ratios along ``paths`` random paths of nested depths, as lists; the first ``plain`` also as ordinary products.

    A path takes one head per layer and one text; its chain of depth k are the maps of layers 1 .. k. ``window`` more
    paths start at every later layer.
    """
    generator = torch.Generator().manual_seed(seed)
    texts, heads = maps[0].shape[:2]
    chosen = torch.randint(heads, (paths, len(maps)), generator=generator)
    text = torch.arange(paths) % texts
    split = [factors(own, layer=layer) for layer, own in enumerate(maps, start=1)]
    curves = {order: _curves(split, chosen, text, order) for order in ORDERS}
    few = [own[text[:plain], chosen[:plain, place]] for place, own in enumerate(maps)]
    return {
        "layers": len(maps),
        "heads": chosen.tolist(),
        "texts": text.tolist(),
        "curves": curves,
        "plain": {order: _plain(few, order) for order in ORDERS},
        "windows": _windows(split, window, generator),
        **_coefficients(maps, split, chosen, text),
    }


def _curves(split: Sequence[Factors], chosen: Tensor, text: Tensor, order: Order) -> dict[str, Curves]:
    found: dict[str, Curves] = {
        name: {"log10": [[] for _ in split], "floor": [[] for _ in split]} for name in (MEAN, RANK_ONE, ROWS)
    }
    for start in range(0, len(text), CHUNK):
        part = slice(start, start + CHUNK)
        steps = [own.at(text[part], chosen[part, place]) for place, own in enumerate(split)]
        for depth, product in enumerate(products(steps, order=order)):
            for name, ratio in ((MEAN, consensus_ratio(product)), (RANK_ONE, rank_one_ratio(product))):
                found[name]["log10"][depth] += ratio.log10.tolist()
                found[name]["floor"][depth] += ratio.floor.tolist()
            log, floor = _rows(product)
            found[ROWS]["log10"][depth] += log.tolist()
            found[ROWS]["floor"][depth] += floor.tolist()
    return found


def _rows(product: Product) -> tuple[Tensor, Tensor]:
    """The largest row sum of what differs from the mean row; rows of the product itself sum to one."""
    log = (linf_norm(product.rest).log() + product.log_scale) / math.log(10)
    return log, math.sqrt(product.rest.shape[-1]) * product.error * product.scale


def _plain(few: Sequence[Tensor], order: Order) -> dict[str, list[list[float]]]:
    found = plain_ratios(few, order=order)
    return {MEAN: [mean.tolist() for mean, _ in found], RANK_ONE: [rank.tolist() for _, rank in found]}


def _windows(split: Sequence[Factors], paths: int, generator: torch.Generator) -> list[dict[str, Any]]:
    """Chains in the true order that start at layer 2, 3, ...: one entry per start."""
    texts, heads = split[0].mean.shape[:2]
    text = torch.arange(paths) % texts
    found = []
    for start in range(1, len(split)):
        own = split[start:]
        chosen = torch.randint(heads, (paths, len(own)), generator=generator)
        steps = [one.at(text, chosen[:, place]) for place, one in enumerate(own)]
        ratios = [consensus_ratio(product) for product in products(steps, order="true")]
        found.append(
            {
                "start": start + 1,
                "log10": [one.log10.tolist() for one in ratios],
                "floor": [one.floor.tolist() for one in ratios],
            }
        )
    return found


def _coefficients(
    maps: Sequence[Tensor], split: Sequence[Factors], chosen: Tensor, text: Tensor
) -> dict[str, list[list[float]]]:
    """By layer and path, ``log10`` of three coefficients of the path's map.

    ``dobrushin`` bounds how the map shrinks distances between rows, ``spectral`` how it shrinks what differs from the
    mean row; ``typical`` is the root of the mean square of the latter over all directions, ``|E|_F / sqrt(n - 1)``.
    """
    found: dict[str, list[list[float]]] = {"dobrushin": [], "spectral": [], "typical": []}
    for place, (own, parts) in enumerate(zip(maps, split, strict=True)):
        at = (text, chosen[:, place])
        size = torch.linalg.matrix_norm(parts.rest) / math.sqrt(own.shape[-1] - 1)
        tau = torch.stack([dobrushin_of(one) for one in own])  # a text at a time: n^3 numbers per map
        for name, values in (("dobrushin", tau), ("spectral", parts.gain), ("typical", size)):
            found[name].append(values[at].log10().tolist())
    return found
