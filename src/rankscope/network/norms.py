"""Normalisation of each token by itself."""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.types import TokenMatrix
from rankscope.network.context import Context
from rankscope.network.parts import Part, row, weight


def default_eps(dtype: torch.dtype) -> float:
    """The eps of ``torch.nn.RMSNorm`` without one: that of the dtype it computes in, float32 for less than float32.

    >>> default_eps(torch.bfloat16) == torch.finfo(torch.float32).eps
    True
    """
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


class Norm(Part, ABC):
    """Any of the norms below: ``unit(x) * gain + bias`` with ``unit`` the row-wise normalisation."""

    def __init__(
        self,
        weight_: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = weight(weight_)
        self.bias = weight(bias)
        self.eps = eps
        self.offset = offset

    @property
    def gain(self) -> Tensor | None:
        """The factor per channel, ``weight + offset`` (some families store gain - 1), or None for ones."""
        if self.weight is None or self.offset == 0.0:
            return self.weight
        return self.weight + self.offset

    @abstractmethod
    def unit(self, x: Tensor) -> Tensor:
        """The normalised token, before gain and bias."""

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, context: Context | None = None) -> Tensor: ...

    def forward(self, x: TokenMatrix, context: Context | None = None) -> TokenMatrix:
        return self.affine(self.unit(x))

    def per_head(self, x: Tensor) -> Tensor:
        """The norm of ``*batch heads tokens width`` over the width, with one gain and bias for all heads."""
        return self.affine(self.unit(x), heads=True)

    def affine(self, y: Tensor, *, heads: bool = False, with_bias: bool = True) -> Tensor:
        """Gain and bias applied to ``*batch tokens dim``, or with ``heads`` to ``*batch heads tokens width``."""
        gain = self.gain
        if gain is not None:
            y = y * (row(row(gain)) if heads else row(gain))
        if self.bias is None or not with_bias:
            return y
        return y + (row(row(self.bias)) if heads else row(self.bias))


class LayerNorm(Norm):
    """``(x - mean) / sqrt(mean((x - mean)^2) + eps)`` over the channels, then gain and bias."""

    def forward(self, x: TokenMatrix, context: Context | None = None) -> TokenMatrix:
        gain = self.gain
        if all(one is None or one.ndim == 1 for one in (gain, self.bias)):
            return F.layer_norm(
                x, x.shape[-1:], gain, self.bias, self.eps
            )  # one operation, as live models run it
        return super().forward(x, context)

    def unit(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], eps=self.eps)


class RMSNorm(Norm):
    """``x / sqrt(mean(x^2) + eps)`` over the channels, then gain and bias."""

    def unit(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float16:
            return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        # Squares of ordinary numbers leave the range of float16, so the token is brought to size one before.
        size = x.abs().amax(dim=-1, keepdim=True).clamp(min=math.sqrt(self.eps), max=torch.finfo(x.dtype).max)
        unit = x / size
        return unit * torch.rsqrt(
            unit.square().mean(dim=-1, keepdim=True) + (math.sqrt(self.eps) / size).square()
        )


class Sphere(Norm):
    """``x / sqrt(|x|^2 + eps)``: projection to the unit sphere. A zero token has no direction and stays zero."""

    def __init__(
        self,
        weight_: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        eps: float = 0.0,
        offset: float = 0.0,
    ) -> None:
        super().__init__(weight_, bias, eps=eps, offset=offset)

    def unit(self, x: Tensor) -> Tensor:
        length = (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() + self.eps).sqrt()
        return torch.where(length > 0, x / length.clamp(min=torch.finfo(x.dtype).tiny), x)
