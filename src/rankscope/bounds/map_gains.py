"""What attention maps do to the sizes of a residual, head by head and all heads together."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.contraction import dobrushin_bound
from rankscope.bounds.enclosure import gamma
from rankscope.bounds.facts_weights import product_norms
from rankscope.bounds.logs import log_sum, log_tanh, raised
from rankscope.bounds.map_rules import Maps
from rankscope.core.operator_norms import (
    MARGIN,
    column_sum_bound,
    eigenvalue_bound,
    product_underflow,
    spectral_bound,
)

EXACT_COLUMNS = 256
"""Up to so many tokens the distances between columns of a map are computed; beyond, bounded."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MapGains:
    """Natural logarithms of the factors of every map, ``*batch heads``, and of all maps of a batch, ``*batch``.

    Args:
        tau: Dobrushin's coefficient, for diameters.
        kappa: ``|J P|_2``, for the Frobenius residual.
        columns: half the largest l1 distance of two columns of ``J P``.
        side_by_side: ``|[J P_1 ... J P_H]|_2``.
        below: ``|[J P_1; ...; J P_H]|_2``.
    """

    tau: Tensor
    kappa: Tensor
    columns: Tensor
    side_by_side: Tensor
    below: Tensor


def map_gains(found: Maps, log_diameter: Tensor) -> MapGains:
    """The factors of maps that are known up to their radius.

    Args:
        found: the maps.
        log_diameter: logarithm of the l2 diameter of the tokens, at most, ``*batch``: where differences of logits are
            bilinear in differences of tokens, ``tau <= tanh(|scale Q K^T| diameter^2 / 4)``.
    """
    maps, tokens = found.maps, found.maps.shape[-1]
    row_sums = maps.sum(dim=-1)  # one, up to rounding
    loose = found.radius * row_sums
    tau = (dobrushin_bound(maps) + loose.amax(dim=-1)).clamp(max=1.0).log()
    if found.bilinear is not None:
        cubic = log_tanh(found.bilinear.log() + 2 * log_diameter.unsqueeze(-1) - math.log(4))
        tau = torch.minimum(tau, raised(cubic))
    tau = torch.where(torch.isnan(tau), 0.0, tau)
    centered = maps - maps.mean(dim=-2, keepdim=True)
    apart = torch.linalg.vector_norm(found.radius * torch.linalg.vector_norm(maps, dim=-1), dim=-1)
    far = raised(tau + math.log(tokens / 2) / 2)
    kappa = torch.minimum(_log(spectral_bound(centered) + apart), far)
    columns = torch.minimum(
        _log(_columns(centered) + 2 * _column_radius(found)), raised(tau + math.log(tokens / 2))
    )
    together = torch.linalg.vector_norm(apart, dim=-1)
    root = raised(log_sum(*(2 * kappa).unbind(dim=-1)) / 2)
    wide, tall = centered.transpose(-3, -2).flatten(-2), centered.flatten(-3, -2)
    stacks = (torch.minimum(_log(spectral_bound(stack) + together), root) for stack in (wide, tall))
    return MapGains(tau=tau, kappa=kappa, columns=columns, side_by_side=next(stacks), below=next(stacks))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ValueNorms:
    """Natural logarithms of norms of value maps ``W_h = V_h O_h``, ``*seeds heads`` and ``*seeds``.

    Args:
        spectral: ``|W_h|_2``.
        rows: largest absolute row sum.
        columns: largest absolute column sum.
        side_by_side: ``|[W_1 ... W_H]|_2``.
        below: ``|[W_1; ...; W_H]|_2``.
    """

    spectral: Tensor
    rows: Tensor
    columns: Tensor
    side_by_side: Tensor
    below: Tensor


def value_norms(values: Tensor, outs: Tensor) -> ValueNorms:
    """Norms of the products of ``*seeds heads dim width`` and ``*seeds heads width dim``."""
    heads = product_norms(values, outs)
    return ValueNorms(
        spectral=_log(heads["spectral"]),
        rows=_log(heads["linf"]),
        columns=_log(heads["l1"]),
        side_by_side=_log(_stack_norm(values, outs)),
        below=_log(_stack_norm(outs.mT, values.mT)),
    )


def _stack_norm(left: Tensor, right: Tensor) -> Tensor:
    """``|[A_1 B_1 ... A_H B_H]|_2``, the root of the largest eigenvalue of ``sum_h A_h (B_h B_h^T) A_h^T``."""
    dim, hidden = left.shape[-2], product_underflow(left, right).amax(dim=-1)
    sizes = [one.abs().amax(dim=(-3, -2, -1)) for one in (left, right)]
    sizes = [torch.where(one > 0, one, 1.0) for one in sizes]
    left, right = (one / size[..., None, None, None] for one, size in zip((left, right), sizes, strict=True))
    wide = left.transpose(-3, -2).flatten(-2)
    weighted = (left @ (right @ right.mT)).transpose(-3, -2).flatten(-2)
    gram = weighted @ wide.mT
    largest = eigenvalue_bound((gram + gram.mT) / 2).clamp(min=0.0)
    # Products of factors round relative to the factors, which may be far larger than what comes out.
    size = (torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right)).square().sum(dim=-1)
    most: Tensor = (largest * (1 + MARGIN) + 4 * gamma(dim * left.shape[-3]) * size).sqrt()
    return most * sizes[0] * sizes[1] * (1 + MARGIN) + hidden


def _columns(centered: Tensor) -> Tensor:
    """Half the largest l1 distance of two columns, or the largest l1 norm of a column, which is never less."""
    if centered.shape[-1] <= EXACT_COLUMNS:
        return dobrushin_bound(centered.mT)
    return column_sum_bound(centered)


def _column_radius(found: Maps) -> Tensor:
    """By how much the l1 norm of a column may differ from the computed one, at most."""
    return (found.radius.unsqueeze(-2) @ found.maps).squeeze(-2).amax(dim=-1)


def _log(value: Tensor) -> Tensor:
    """The logarithm, infinite where nothing is known."""
    return torch.where(torch.isnan(value), torch.inf, value).log()
