"""What an MLP does to tokens that are known up to a distance, and to the distances between tokens.

The difference of two tokens y - z leaves an MLP as ``(y - z) U diag(c) D``, where c holds a secant slope of the
activation for every inner entry. Over the tokens of a text each inner entry stays in an interval, so its slope does
too, ``c = mid +- rad``; where tokens are near each other ``rad`` is small, and the MLP is nearly the matrix
``U diag(mid) D``. With a gate, ``a b - a' b' = (a + a')/2 (b - b') + (b + b')/2 (a - a')`` gives the same with two
such sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.bounds.enclosure import TINY, Enclosed, U, gamma, known, lengths_of, linear
from rankscope.bounds.sizes import COL, COUNT, by_norm
from rankscope.bounds.slopes import lipschitz, slope_range
from rankscope.bounds.terms import Terms
from rankscope.core.operator_norms import MARGIN, column_sum_bound, row_sum_bound, spectral_bound
from rankscope.network import Activation, Mlp
from rankscope.network.parts import affine


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Inner:
    """Inner entries of an MLP, ``*batch tokens width``, each known up to ``error`` (l2 of a token's entries).

    Args:
        up: before the activation, or what the gate multiplies.
        gate: before the activation of a gate, if there is one.
        up_norm: ``|U|_2``, ``*seeds``.
        down_norm: ``|D|_2``.
    """

    up: Enclosed
    gate: Enclosed | None
    up_norm: Tensor
    down_norm: Tensor


def inner(mlp: Mlp, state: Enclosed) -> Inner:
    """What the first maps of an MLP make of the tokens."""
    norms = {"up_norm": spectral_bound(mlp.up), "down_norm": spectral_bound(mlp.down)}
    up = linear(state, affine(state.x, mlp.up, mlp.up_bias), mlp.up, mlp.up_bias, norms["up_norm"])
    if mlp.gate is None:
        return Inner(up=up, gate=None, **norms)
    gate = affine(state.x, mlp.gate, mlp.gate_bias)
    return Inner(up=up, gate=linear(state, gate, mlp.gate, mlp.gate_bias), **norms)


def through_mlp(mlp: Mlp, found: Inner) -> Enclosed:
    """What leaves the MLP, with its error."""
    entering = found.up if found.gate is None else found.gate
    active = mlp.activation(entering.x)
    error = activated_error(mlp.activation, entering) + TINY
    if found.gate is not None:
        largest = [one.abs().amax(dim=-1) for one in (active, found.up.x)]
        error = (largest[0] + error) * found.up.error + largest[1] * error
        active = active * found.up.x
        error = error + 4 * U * torch.linalg.vector_norm(active, dim=-1)
    inside = Enclosed(x=active, error=known(error))
    y = affine(active, mlp.down, mlp.down_bias)
    return linear(inside, y, mlp.down, mlp.down_bias, found.down_norm)


def activated_error(activation: Activation, found: Enclosed) -> Tensor:
    """How far the activation of the exact entries is from that of the computed ones, ``*batch tokens``, l2."""
    carried = steepest(activation, found) * found.error + 32 * U * found.lengths
    if math.isinf(lipschitz(activation)):  # values that outgrow their arguments have a rounding of their own
        carried = carried + 32 * U * lengths_of(activation(found.x))
    return known(carried)


def steepest(activation: Activation, found: Enclosed) -> Tensor:
    """The largest slope between computed and exact entries: anywhere, or of each token where there is no such slope."""
    most = lipschitz(activation)
    if math.isfinite(most):
        return found.x.new_tensor(most)
    error = found.error.unsqueeze(-1)
    ends = slope_range(activation, found.x - error, found.x + error)
    largest: Tensor = torch.maximum(*(end.abs() for end in ends)).amax(dim=-1)
    return largest * (1 + MARGIN)


def mlp_terms(mlp: Mlp, found: Inner) -> Terms:
    """The MLP as the matrix at its mean slopes, and how far from it the secants of these tokens can be."""
    if found.gate is None:
        low, high = slope_range(mlp.activation, *_range(found.up))
        terms = _around([(mlp.up, low, high)], mlp.down)
        if math.isfinite(lipschitz(mlp.activation)):
            terms = replace(terms, most=_everywhere(mlp, found, low))
        return _about_mean(terms, found.up.x.shape[-2])
    ups, gates = _range(found.up), _range(found.gate)
    slopes = slope_range(mlp.activation, *gates)
    corners = torch.stack([a * b for a in ups for b in slopes])
    corners = torch.where(torch.isnan(corners), torch.inf, corners)
    active = mlp.activation(found.gate.x)
    # The activation moves at most by its slope times the error of what enters it.
    loose = activated_error(mlp.activation, found.gate).amax(dim=-1, keepdim=True)
    opened = (active.amin(dim=-2) - loose, active.amax(dim=-2) + loose)
    branches = [(mlp.up, *opened), (mlp.gate, corners.amin(dim=0), corners.amax(dim=0))]
    return _about_mean(_around(branches, mlp.down), found.up.x.shape[-2])


def _about_mean(terms: Terms, tokens: int) -> Terms:
    """Column sums about the mean grow by ``2 - 2/n`` times what a slope that differs from pair to pair does.

    ``sum_i |y_i - mean| <= 1/n sum_ij |y_i - y_j|`` and ``1/n sum_ij |x_i - x_j| <= (2 - 2/n) sum_i |x_i - mean|``; one
    slope for all pairs needs no such detour.
    """
    if terms.radius is None:
        return terms
    factor = torch.ones_like(terms.radius)
    factor[COL] = 2 - 2 / tokens
    most = None if terms.most is None else terms.most * factor
    return replace(terms, radius=terms.radius * factor, most=most)


def _everywhere(mlp: Mlp, found: Inner, like: Tensor) -> Tensor:
    """``L |U| |D|`` in the norm of every size, whatever the tokens; for a batch of ``*batch width`` as ``like``."""
    pairs = ((mlp.up, found.up_norm), (mlp.down, found.down_norm))
    norms = [by_norm(spectral, row_sum_bound(one), column_sum_bound(one)) for one, spectral in pairs]
    most: Tensor = lipschitz(mlp.activation) * norms[0] * norms[1]
    batch = like.shape[:-1]
    most = most.reshape(COUNT, *[1] * (len(batch) - most.ndim + 1), *most.shape[1:])
    return most.expand(COUNT, *batch)


def _range(found: Enclosed) -> tuple[Tensor, Tensor]:
    """Smallest and largest inner entry over the tokens, channel by channel, ``*batch width``."""
    error = found.error.unsqueeze(-1)
    return (found.x - error).amin(dim=-2), (found.x + error).amax(dim=-2)


def _around(branches: Sequence[tuple[Tensor | None, Tensor, Tensor]], down: Tensor) -> Terms:
    """``sum U diag(mid) D``, and the norms of ``sum U diag(+-rad) D``."""
    channels: Tensor | None = None
    radius: Tensor | None = None
    for up, low, high in branches:
        if up is None:
            raise TypeError("an MLP with a gate has the weights of it")
        mid, rad = (low + high) / 2, (high - low) / 2 * (1 + MARGIN) + U * (low.abs() + high.abs())
        mid = torch.where(torch.isfinite(mid), mid, 0.0)
        rad = torch.where(torch.isnan(rad), torch.inf, rad)
        matrix = (up * mid.unsqueeze(-2)) @ down
        own = _radius(up, rad, down) + _rounding(up, mid, down)
        channels = matrix if channels is None else channels + matrix
        radius = own if radius is None else radius + own
    return Terms(channels=channels, radius=radius)


def _radius(up: Tensor, rad: Tensor, down: Tensor) -> Tensor:
    """Norms ``sizes *batch`` of ``U diag(c) D`` for all ``|c| <= rad``."""
    half = rad.sqrt()
    left, right = up * half.unsqueeze(-2), half.unsqueeze(-1) * down
    spectral = spectral_bound(torch.nan_to_num(left)) * spectral_bound(torch.nan_to_num(right))
    rows = (up.abs() @ (rad * down.abs().sum(dim=-1)).unsqueeze(-1)).squeeze(-1).amax(dim=-1)
    columns = ((rad * up.abs().sum(dim=-2)).unsqueeze(-2) @ down.abs()).squeeze(-2).amax(dim=-1)
    norms = by_norm(spectral, rows * (1 + MARGIN), columns * (1 + MARGIN))
    return torch.where(torch.isfinite(rad).all(dim=-1), norms, torch.inf)


def _rounding(up: Tensor, mid: Tensor, down: Tensor) -> Tensor:
    """Rounding of the product at the mean slopes, in the norm of every size, at most."""
    width = up.shape[-1]
    size = torch.linalg.matrix_norm(up) * torch.linalg.matrix_norm(down) * mid.abs().amax(dim=-1)
    # Row and column sums exceed Frobenius norms by a root of dim.
    most: Tensor = gamma(width) * size * up.shape[-2] ** 0.5
    return most
