"""Norms and MLPs as matrices, one for every token: exact on the tokens they were taken at.

A part that treats each token by itself maps ``x_i - c`` to ``f(x_i) - f(c)``, which is ``(x_i - c) M_i`` with a secant
matrix ``M_i`` known from the tokens. With the mean token as c this makes the whole part a linear map of the residual,
true of this residual, and its singular values bound what can become of it.
"""

import torch
from torch import Tensor

from rankscope.bounds.dense import Dense, of_tokens
from rankscope.bounds.enclosure import TINY, Enclosed, U, known
from rankscope.bounds.mlp_rules import Inner, activated_error, inner, steepest
from rankscope.bounds.norm_rules import view
from rankscope.bounds.slopes import lipschitz, slope_range
from rankscope.core.operator_norms import MARGIN, spectral_bound
from rankscope.network import LayerNorm, Mlp
from rankscope.network.activations import Activation
from rankscope.network.norms import Norm
from rankscope.network.parts import row


def mean_token(state: Enclosed) -> Enclosed:
    """The mean of all tokens as one token, with its error."""
    error = state.error.mean(dim=-1, keepdim=True) + 4 * state.x.shape[-2] * U * state.lengths.amax(
        dim=-1, keepdim=True
    )
    return Enclosed(x=state.x.mean(dim=-2, keepdim=True), error=error)


def norm_matrix(norm: Norm, state: Enclosed) -> Dense:
    """``M_i = (C / s_i - C (2 z + u_i)^T z / (m s_i s_0 (s_i + s_0))) diag(gain)``, z the centered mean token.

    Sizes obey ``s_i^2 - s_0^2 = u_i (2 z + u_i)^T / m`` with ``u_i`` the centered difference to the mean token: that
    turns the difference of ``1/s`` into a linear map of it. Both summands have a norm of at most ``1 / s_i``.
    """
    x, dim = state.x, state.x.shape[-1]
    center = mean_token(state)
    found, middle = view(norm, state), view(norm, center)
    eye = torch.eye(dim, dtype=x.dtype, device=x.device)
    flat = eye - 1 / dim if isinstance(norm, LayerNorm) else eye
    z = center.x @ flat
    both = (x - center.x) @ flat + 2 * z
    own, common = found.size.unsqueeze(-1), middle.size.unsqueeze(-1)
    # Quotients of things of one size: products of three sizes leave the range of floats.
    weight, unit = both / (own + common) / own, z / common / found.parts
    matrices = flat / own.unsqueeze(-1) - weight.unsqueeze(-1) * unit.unsqueeze(-2)
    if norm.gain is not None:
        matrices = matrices * row(row(norm.gain))
    error = found.error + middle.error
    share = 3 * error / torch.minimum(found.size - found.error, middle.size - middle.error).clamp(min=0.0)
    loose = found.weight[1].unsqueeze(-1) * 10 * (share + dim * U) / found.size
    loose = torch.where(share <= 0.05, loose, torch.inf)  # the factor 10 is good for small shares only
    return of_tokens(matrices, known(loose).amax(dim=-1))


def mlp_matrix(mlp: Mlp, state: Enclosed) -> Dense:
    """``M_i = U diag(c_i) D``, c the secant slopes between a token and the mean token; with a gate two such sums."""
    found, middle = inner(mlp, state), inner(mlp, mean_token(state))
    down = mlp.down
    matrices, radius = None, None
    for up, factor, unknown in _branches(mlp, found, middle):
        own = (up.unsqueeze(-3) * factor.unsqueeze(-2)) @ down.unsqueeze(-3)
        norms = spectral_bound(up) * spectral_bound(down)
        size = torch.linalg.matrix_norm(up) * torch.linalg.matrix_norm(down)
        width = up.shape[-1]
        apart = norms.unsqueeze(-1) * unknown.amax(dim=-1)
        apart = apart + 4 * (width + 8) * U * size.unsqueeze(-1) * factor.abs().amax(dim=-1)
        matrices = own if matrices is None else matrices + own
        radius = apart if radius is None else radius + apart
    if matrices is None or radius is None:
        raise TypeError("an MLP has at least one branch")
    return of_tokens(matrices, known(radius).amax(dim=-1))


def _branches(mlp: Mlp, found: Inner, middle: Inner) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The matrices U, for each of them the factors c of every token, and how far the exact factors may be from them.

    With a gate ``a b - a' b' = (a + a')/2 (b - b') + (b + b')/2 (a - a')``: activations a multiply differences of b;
    secant slopes of the activation, times the mean of b and b', multiply differences of what enters it. A product of
    factors c and B that are known up to ``loose`` and ``off`` is known up to ``loose |B| + |c| off``.
    """
    if found.gate is None or middle.gate is None or mlp.gate is None:
        return [(mlp.up, *_secants(mlp.activation, found.up, middle.up))]
    slopes, loose = _secants(mlp.activation, found.gate, middle.gate)
    active = [mlp.activation(one.x) for one in (found.gate, middle.gate)]
    moved = [activated_error(mlp.activation, one) for one in (found.gate, middle.gate)]
    total = found.up.x + middle.up.x
    off = (found.up.error + middle.up.error).unsqueeze(-1) / 2
    steep = torch.maximum(*(steepest(mlp.activation, one) for one in (found.gate, middle.gate)))
    unknown = loose * (total.abs() / 2 + off) + steep.unsqueeze(-1) * off
    return [
        (mlp.up, (active[0] + active[1]) / 2, (moved[0] + moved[1]).unsqueeze(-1) / 2 + TINY),
        (mlp.gate, slopes * total / 2, unknown),
    ]


def _secants(activation: Activation, found: Enclosed, middle: Enclosed) -> tuple[Tensor, Tensor]:
    """Slopes between inner entries of each token and of the mean token, and how far the exact ones may be from them.

    A quotient of differences where these are large; where they are small, the middle of what the slope can be between.
    """
    error = (found.error + middle.error).unsqueeze(-1)
    apart = found.x - middle.x
    low, high = torch.minimum(found.x, middle.x) - error, torch.maximum(found.x, middle.x) + error
    least, most = slope_range(activation, low, high)
    values = activation(found.x) - activation(middle.x)
    steep, rounding = apart.new_tensor(lipschitz(activation)), 64 * U * (found.x.abs() + middle.x.abs())
    evaluated = rounding
    if not bool(
        torch.isfinite(steep)
    ):  # then the steepest slope between these two, which values do not outgrow
        steep = torch.maximum(least.abs(), most.abs()) * (1 + MARGIN)
        evaluated = rounding * steep.clamp(min=1.0)
    sure = (apart.abs() - error - rounding).clamp(min=0.0)
    quotient = values / torch.where(apart == 0, 1.0, apart)
    by_quotient = known((2 * steep * error + 2 * evaluated) / sure)
    # The middle of the range is rounded, and some ranges end exactly where slopes do: tanh has none above 1.
    by_range = (most - least) / 2 * (1 + MARGIN) + 2 * U * (least.abs() + most.abs())
    use = torch.lt(by_quotient, by_range)
    middle_slope = torch.where(torch.isfinite(least + most), (least + most) / 2, 0.0)
    return torch.where(use, quotient, middle_slope), torch.where(use, by_quotient, known(by_range))
