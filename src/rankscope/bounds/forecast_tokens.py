"""How random parts change the covariance of tokens, on average over weights, where channels are many.

With random weights the channels of a token are independent draws, so all that is left of a token matrix is the
covariance between tokens, ``C_ij = x_i . x_j / dim``, and every part is a rule for it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rankscope.network import ACTIVATIONS
from rankscope.network.activations import LEAK

NODES = 160
"""Points of the quadrature over one normal variable."""

TERMS = 48
"""Hermite coefficients of an activation: what is left out is below 1e-6 for smooth ones."""

STEPS = 24
"""Strengths at which tilted averages are computed; between them they are interpolated."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tokens:
    """Covariances of tokens.

    Args:
        same: ``kinds``, variance of a token of each kind.
        pairs: ``kinds kinds``, covariance of two different tokens of these kinds.
        count: how many tokens there are. Either every token is a kind of its own, or all are of one kind.
    """

    same: Tensor
    pairs: Tensor
    count: int

    @property
    def is_alike(self) -> bool:
        """Whether all tokens are of one kind."""
        return len(self.same) < self.count

    def matrix(self) -> Tensor:
        """The whole covariance matrix, where every token is a kind of its own."""
        return torch.where(torch.eye(self.count, dtype=torch.bool), self.same, self.pairs)

    def cosine(self) -> float:
        """Mean over pairs of different tokens of ``C_ij / sqrt(C_ii C_jj)``."""
        size = self.same.sqrt()
        cosines = self.pairs / (size.unsqueeze(-1) * size)
        if self.is_alike or self.count == 1:
            return float(cosines.mean())
        return float((cosines.sum() - cosines.diagonal().sum()) / (self.count * (self.count - 1)))

    def times(self, factor: float) -> "Tokens":
        """The same, every covariance times ``factor``."""
        return Tokens(same=self.same * factor, pairs=self.pairs * factor, count=self.count)

    def plus(self, other: "Tokens") -> "Tokens":
        """The sum with independent tokens."""
        return Tokens(same=self.same + other.same, pairs=self.pairs + other.pairs, count=self.count)


def fresh_tokens(count: int, *, variance: float, cosine: float, alike: bool) -> Tokens:
    """Tokens of one variance of which any two have the same cosine."""
    kinds = 1 if alike else count
    same = torch.full((kinds,), variance, dtype=torch.float64)
    return Tokens(same=same, pairs=same.new_full((kinds, kinds), variance * cosine), count=count)


def normed(tokens: Tokens, *, eps: float, size: float) -> Tokens:
    """Tokens divided by their length: every variance becomes ``size``, but for eps."""
    scale = (tokens.same + eps).rsqrt() * math.sqrt(size)
    return Tokens(
        same=tokens.same * scale.square(),
        pairs=tokens.pairs * scale.unsqueeze(-1) * scale,
        count=tokens.count,
    )


def mixed(tokens: Tokens, base: Tensor | None, strength: float) -> Tokens:
    """Covariances of ``P X``, averaged over heads, for attention with random query and key maps.

    Logits of random maps are normal with ``cov(a_ik, a_jl) = strength C_ij C_kl``, so on average over heads

        sum_kl E[P_ik P_jl] C_kl = sum_kl b_ik b_jl exp(strength C_ij C_kl) C_kl / (the same sum without C_kl)

    to first order in the fluctuation of the normalization, with b the map without content: uniform over the keys a row
    may read, or softmax of a position bias. Without strength it is ``b C b^T``.

    Args:
        tokens: what the attention reads.
        base: b, ``tokens tokens``; None for uniform attention to all keys.
        strength: variance of a logit between tokens of variance one.
    """
    if tokens.is_alike:
        return _mixed_alike(tokens, strength)
    whole = tokens.matrix()
    b = torch.full_like(whole, 1 / tokens.count) if base is None else base
    tilt = strength * whole
    grid = torch.linspace(float(tilt.min()), float(tilt.max()), STEPS, dtype=torch.float64)
    if float(grid[-1] - grid[0]) * float(whole.abs().max()) < 1e-12:
        averages = _tilted(whole, b, float(grid[0]))
        return Tokens(same=averages.diagonal().clone(), pairs=averages, count=tokens.count)
    table = torch.stack([_tilted(whole, b, float(step)) for step in grid])
    place = ((tilt - grid[0]) / (grid[1] - grid[0])).clamp(0, STEPS - 1)
    left = place.floor().long().clamp(max=STEPS - 2)
    part = place - left
    ends = [table.gather(0, (left + k).unsqueeze(0)).squeeze(0) for k in (0, 1)]
    averages = ends[0] * (1 - part) + ends[1] * part
    return Tokens(same=averages.diagonal().clone(), pairs=averages, count=tokens.count)


def _tilted(whole: Tensor, base: Tensor, tilt: float) -> Tensor:
    weights = torch.exp(tilt * whole - float((tilt * whole).max()))
    return (base @ (weights * whole) @ base.mT) / (base @ weights @ base.mT)


def _mixed_alike(tokens: Tokens, strength: float) -> Tokens:
    """The same for tokens of one kind: ``n`` equal terms and ``n (n - 1)`` of another value."""
    v, c, others = tokens.same, tokens.pairs[0], tokens.count - 1

    def average(own: Tensor) -> Tensor:
        favored = torch.exp((strength * own * (v - c)).clamp(max=700.0))
        return (favored * v + others * c) / (favored + others)

    return Tokens(same=average(v), pairs=average(c).unsqueeze(0), count=tokens.count)


def reread(tokens: Tokens, base: Tensor | None, scale: Tensor) -> Tokens:
    """Covariances between tokens and the average of scaled tokens that attention without content gives to them.

    ``C diag(scale) b^T``, made symmetric: what ``x + b (scale x)`` has besides the variances of its two terms.
    """
    if tokens.is_alike:
        mean = scale * (tokens.same + (tokens.count - 1) * tokens.pairs[0]) / tokens.count
        return Tokens(same=mean, pairs=mean.unsqueeze(0), count=tokens.count)
    whole = tokens.matrix()
    b = torch.full_like(whole, 1 / tokens.count) if base is None else base
    cross = whole * scale @ b.mT
    cross = (cross + cross.mT) / 2
    return Tokens(same=cross.diagonal().clone(), pairs=cross, count=tokens.count)


def activated(tokens: Tokens, activation: str) -> Tokens:
    """Covariances of ``f(a_i)`` for normal ``a`` with the covariances of ``tokens``.

    For ReLU and its square in closed form (Cho, Saul 2009, the arc-cosine kernels of order one and two). Otherwise with
    the coefficients ``h_m(v) = E f(sqrt(v) z) He_m(z) / sqrt(m!)`` of each kind of token: ``E f(a_i) f(a_j)`` is
    ``sum_m h_m h_m rho^m``.
    """
    size = tokens.same.sqrt()
    lengths = size.unsqueeze(-1) * size
    rho = (tokens.pairs / lengths).clamp(-1, 1)
    if activation in ("relu", "leaky_relu"):
        angle = torch.acos(rho)
        pairs = lengths / (2 * math.pi) * (torch.sin(angle) + (math.pi - angle) * rho)
        found = Tokens(same=tokens.same / 2, pairs=pairs, count=tokens.count)
        return found if activation == "relu" else _leaky(tokens, found)
    if activation == "relu2":
        angle = torch.acos(rho)
        pairs = 3 * torch.sin(angle) * rho + (math.pi - angle) * (1 + 2 * rho.square())
        pairs = lengths.square() / (2 * math.pi) * pairs
        return Tokens(same=1.5 * tokens.same.square(), pairs=pairs, count=tokens.count)
    coefficients, same = _hermite(ACTIVATIONS[activation].fn, size)
    pairs, power = torch.zeros_like(rho), torch.ones_like(rho)
    for row in coefficients:
        pairs = pairs + row.unsqueeze(-1) * row * power
        power = power * rho
    left = same - coefficients.square().sum(dim=0)  # what the terms left out hold at rho = 1
    pairs = pairs + (left.clamp(min=0).sqrt().unsqueeze(-1) * left.clamp(min=0).sqrt()) * power
    return Tokens(same=same, pairs=pairs, count=tokens.count)


def _leaky(tokens: Tokens, relu: Tokens) -> Tokens:
    """The same for ``f(a) = s a + (1 - s) relu(a)``: since ``E a_i relu(a_j)`` is half of ``E a_i a_j``, the covariance
    of ``f`` is ``s`` times that of ``a`` and ``(1 - s)^2`` times that of its ReLU."""
    rest = (1 - LEAK) ** 2
    return Tokens(
        same=LEAK * tokens.same + rest * relu.same,
        pairs=LEAK * tokens.pairs + rest * relu.pairs,
        count=tokens.count,
    )


def _hermite(fn: Callable[[Tensor], Tensor], size: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients ``terms kinds`` of ``f(size z)`` in normed Hermite polynomials, and ``E f(size z)^2``."""
    z, w = _quadrature()
    values = fn(size * z.unsqueeze(-1))
    before, now = torch.zeros_like(z), torch.ones_like(z)
    found = []
    for m in range(TERMS):
        found.append((w * now) @ values)
        before, now = now, (z * now - math.sqrt(m) * before) / math.sqrt(m + 1)
    return torch.stack(found), w @ values.square()


@cache
def _quadrature() -> tuple[Tensor, Tensor]:
    """Points and weights of the mean over one normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights / math.sqrt(2 * math.pi))
