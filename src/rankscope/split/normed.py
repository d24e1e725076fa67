"""Norms of split tokens: the change of a normed token divided by the scale, and tokens normed one by one."""

import math

import torch
from torch import Tensor

from rankscope.network import LayerNorm, Norm, Sphere


def norm_quotient(
    norm: Norm, at: Tensor, mantissa: Tensor, scale: Tensor, *, heads: bool = False
) -> tuple[Tensor, Tensor]:
    """The normed row ``at`` (``*batch 1 dim``) without its bias, and the change of every normed token over the scale.

    Let ``z`` be the row and ``u`` the mantissa of a token (both centred for LayerNorm), ``u = a z + w`` with ``w``
    orthogonal to ``z``, and ``n0^2 = |z|^2/d + eps``, ``ni^2 = (1 + s a)^2 |z|^2/d + |s w|^2/d + eps`` the squared
    divisors of row and token (without the ``/d`` on the sphere). The token is ``(1 + s a) z + s w``, so its change is

        w / ni + z [(1 + s a) / ni - 1 / n0] / s.

    The bracket is a difference of near-equal numbers. Expanded by ``(1 + s a) n0 + ni`` its top is
    ``(1 + s a)^2 n0^2 - ni^2 = eps ((1 + s a)^2 - 1) - |s w|^2/d``, in which the large terms are gone:

        [...] / s = (eps a (2 + s a) - s |w|^2/d) / (ni n0 ((1 + s a) n0 + ni)).

    Where ``1 + s a < 0`` the token points the other way and the plain difference has nothing to cancel.
    """
    z, u = (_centred(norm, one) for one in (at, mantissa))
    # One unit for all tokens, so that no square leaves the floats.
    largest = torch.maximum(
        z.abs().amax(dim=-1, keepdim=True), (scale * u).abs().amax(dim=(-2, -1), keepdim=True)
    )
    unit = torch.where(largest > 0, largest, 1.0).clamp(min=math.sqrt(norm.eps))
    z, u, eps = z / unit, u / unit, (math.sqrt(norm.eps) / unit).square()
    width = _width(norm, at)
    size = z.abs().amax(dim=-1, keepdim=True)
    along, across = _parts(u, _divided(z, size))
    if at.shape[-1] == (2 if isinstance(norm, LayerNorm) else 1):
        across = torch.where(size > 0, 0.0, across)  # one dimension is left: nothing is orthogonal to z
    along = _divided(along, size)
    turned = scale * across  # before squaring: its square may be a float where that of the mantissa is none
    kept = 1 + scale * along
    level = z.square().sum(dim=-1, keepdim=True) / width
    before = (level + eps).sqrt()
    after = (kept.square() * level + turned.square().sum(dim=-1, keepdim=True) / width + eps).sqrt()
    top = eps * along * (2 + scale * along) - (turned * across).sum(dim=-1, keepdim=True) / width
    bracket = _divided(top, after * before * (kept * before + after))
    safe = torch.where(scale > 0, scale, 1.0)
    opposite = kept < 0
    if bool(opposite.any()):
        plain = (_divided(kept, after) - _divided(torch.ones_like(before), before)) / safe
        bracket = torch.where(opposite, plain, bracket)
    row, quotient = _divided(z, before), _divided(across, after) + z * bracket
    gone = (after == 0) & (before > 0)  # a token that is exactly zero stays zero on the sphere
    if bool(gone.any()):
        quotient = torch.where(gone, -row / safe, quotient)
    row, quotient = (norm.affine(one, heads=heads, with_bias=False) for one in (row, quotient))
    return row, quotient


def short_change(norm: Norm, at: Tensor, direct: Tensor, *, heads: bool = False) -> Tensor:
    """The change of every normed token from the normed row ``at``, from the tokens themselves.

    As in ``norm_quotient`` with ``1 + s a`` and ``s w`` read off the token ``(1 + s a) z + s w``: for tokens far
    shorter than the row these are small numbers that have their digits. The plain difference of two normed rows has
    none where they are parallel, and no disturbance of what is normed would show it.
    """
    z, y = (_centred(norm, one) for one in (at, direct))
    size = z.abs().amax(dim=-1, keepdim=True)
    unit = torch.where(size > 0, size, 1.0).clamp(min=math.sqrt(norm.eps))
    z, y, root = z / unit, y / unit, math.sqrt(norm.eps) / unit
    width = _width(norm, at)
    kept, turned = _parts(y, z)
    if at.shape[-1] == (2 if isinstance(norm, LayerNorm) else 1):
        turned = torch.where(size > 0, 0.0, turned)
    level = z.square().sum(dim=-1, keepdim=True) / width
    before = (level + root.square()).sqrt()
    # The divisor of a token, from numbers relative to the token: their squares are floats however short it is.
    own = torch.maximum(y.abs().amax(dim=-1, keepdim=True), root)
    across = _divided(turned, own).square().sum(dim=-1, keepdim=True) / width
    after = own * (_divided(kept, own).square() * level + across + _divided(root, own).square()).sqrt()
    along, aside = _divided(kept, after), _divided(turned, after)
    top = _divided(root, after).square() * (kept - 1) * (kept + 1)
    top = top - aside.square().sum(dim=-1, keepdim=True) / width
    near = _divided(top, before * (along * before + 1))
    plain = along - _divided(torch.ones_like(before), before)
    change = aside + z * torch.where(kept < 0, plain, near)
    change = torch.where((after == 0) & (before > 0), -_divided(z, before), change)
    return norm.affine(change, heads=heads, with_bias=False)


def _parts(u: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """The coefficient of ``u`` along ``e`` and the rest, orthogonalised twice: the first leaves a rounding of u."""
    square = e.square().sum(dim=-1, keepdim=True)
    along = _divided((u * e).sum(dim=-1, keepdim=True), square)
    rest = u - along * e
    more = _divided((rest * e).sum(dim=-1, keepdim=True), square)
    return along + more, rest - more * e


def norm_rows(norm: Norm, x: Tensor, *, heads: bool = False, with_bias: bool = True) -> Tensor:
    """The norm of every token on its own, also of tokens whose squares leave the floats."""
    y = _centred(norm, x)
    size = y.abs().amax(dim=-1, keepdim=True).clamp(min=math.sqrt(norm.eps))
    size = torch.where(size > 0, size, 1.0)
    y = y / size
    eps = (math.sqrt(norm.eps) / size).square()
    length = (y.square().sum(dim=-1, keepdim=True) / _width(norm, x) + eps).sqrt()
    return norm.affine(_divided(y, length), heads=heads, with_bias=with_bias)


def _centred(norm: Norm, x: Tensor) -> Tensor:
    """``x`` without its mean over the channels, taken twice: the first leaves a rounding of the mean."""
    if not isinstance(norm, LayerNorm):
        return x
    y = x - x.mean(dim=-1, keepdim=True)
    return y - y.mean(dim=-1, keepdim=True)


def _width(norm: Norm, x: Tensor) -> int:
    """What the sum of squares is divided by."""
    return 1 if isinstance(norm, Sphere) else x.shape[-1]


def _divided(x: Tensor, by: Tensor) -> Tensor:
    return torch.where(by > 0, x / torch.where(by > 0, by, 1.0), 0.0)
