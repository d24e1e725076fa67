"""A token matrix split into what all tokens share and what is left, the latter with its scale kept as a logarithm."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.types import IsToken


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """``X = 1 common + exp(log_scale) residual``; rows of the residual sum to zero and its Frobenius norm is one.

    Where all tokens are equal the residual is zero and ``log_scale`` is minus infinity. Rows of padding are zero.

    Args:
        common: ``*batch dim``, the mean token.
        residual: ``*batch tokens dim``.
        log_scale: ``*batch``, natural logarithm of the Frobenius residual.
        is_token: False on padding, or None.
    """

    common: Tensor
    residual: Tensor
    log_scale: Tensor
    is_token: IsToken | None = None

    @property
    def scale(self) -> Tensor:
        """``exp(log_scale)``, ready to multiply ``*batch tokens dim``; zero once it is below the smallest float."""
        return self.log_scale.exp()[..., None, None]

    def tokens(self) -> Tensor:
        """The token matrix as one float matrix; differences below its rounding are lost. Padding holds the mean."""
        return self.common.unsqueeze(-2) + self.scale * self.residual

    def log_residual(self, *, norm: str, center: str) -> Tensor:
        """Natural log of the residual in that norm, from that center; see ``rankscope.split.log_residual``."""
        from rankscope.split.values import log_residual  # that file reads this one

        return log_residual(self, norm=norm, center=center)

    def kept(self, values: Tensor) -> Tensor:
        """``values`` (one row per token) with the rows of padding set to zero."""
        return values if self.is_token is None else values * self.is_token.unsqueeze(-1)

    def count(self) -> Tensor | int:
        """Real tokens of each text, ready to divide ``*batch dim``."""
        return self.residual.shape[-2] if self.is_token is None else self.is_token.sum(dim=-1, keepdim=True)

    def moved(self, common: Tensor, mantissa: Tensor, log_scale: Tensor) -> "Split":
        """The split of ``1 common + exp(log_scale) mantissa``, for a mantissa of any size and any mean."""
        return normalized(replace(self, common=common, residual=mantissa, log_scale=log_scale))


def normalized(raw: Split) -> Split:
    """``raw`` with the mean of its residual moved to the common row, and its size to the scale."""
    mantissa = raw.kept(raw.residual)
    mean = mantissa.sum(dim=-2) / raw.count()
    common = raw.common + raw.log_scale.exp().unsqueeze(-1) * mean
    mantissa = raw.kept(mantissa - mean.unsqueeze(-2))
    peak = mantissa.abs().amax(dim=(-2, -1))
    is_zero = peak == 0
    peak = torch.where(is_zero, 1.0, peak)
    mantissa = mantissa / peak[..., None, None]  # before squaring: entries may be as large as floats go
    size = torch.where(is_zero, 1.0, torch.linalg.matrix_norm(mantissa))
    log_scale = torch.where(is_zero, -torch.inf, raw.log_scale + size.log() + peak.log())
    return replace(raw, common=common, residual=mantissa / size[..., None, None], log_scale=log_scale)


def split_tokens(x: Tensor, is_token: IsToken | None = None) -> Split:
    """A token matrix as its mean row and its residual.

    The first token is subtracted before averaging, so equal tokens have a residual of exactly zero.
    """
    first = x[..., :1, :] if is_token is None else _first_token(x, is_token)
    zero = torch.zeros(x.shape[:-2], dtype=x.dtype, device=x.device)
    raw = Split(common=first.squeeze(-2), residual=x - first, log_scale=zero, is_token=is_token)
    return normalized(raw)


def _first_token(x: Tensor, is_token: IsToken) -> Tensor:
    place = is_token.expand(x.shape[:-1]).long().argmax(dim=-1)
    return x.gather(-2, place[..., None, None].expand(*place.shape, 1, x.shape[-1]))


def added(states: Sequence[Split]) -> Split:
    """The split of the sum of token matrices, their scales brought to the largest before adding."""
    logs = torch.stack([state.log_scale for state in states])
    largest, weights = aligned(logs, dim=0)
    mantissa, common = torch.zeros_like(states[0].residual), torch.zeros_like(states[0].common)
    for weight, state in zip(weights, states, strict=True):
        mantissa, common = mantissa + weight[..., None, None] * state.residual, common + state.common
    return states[0].moved(common, mantissa, largest)


def aligned(logs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest of some logarithms, and ``exp(log - largest)`` of each; all zero where all are minus infinity."""
    largest = logs.amax(dim=dim)
    reference = torch.where(largest > -torch.inf, largest, 0.0).unsqueeze(dim)
    return largest, (logs - reference).exp()
