"""Token matrices as a common row and a residual, and what a decomposition does with them: add, scale, weigh tokens.

All are ``Split`` states, so that a residual of 1e-40 is as good as one of 0.5. A state of the ordinary pass carries
its own tokens beside the two, and lengths are read off these.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.types import IsToken
from rankscope.mechanism.identities import TINY, log_ratio
from rankscope.split.state import Split, aligned, normalized, power, split_tokens

NEAR = 0.5
"""Squared lengths that differ by less than this share of the common one are compared by their difference."""


def of_tokens(x: Tensor, is_token: IsToken | None) -> Split:
    """The state of ordinary tokens, which stay beside it."""
    if is_token is not None:
        is_token = is_token.expand(x.shape[:-1])
    return replace(split_tokens(x, is_token), direct=x)


def measured(state: Split, keep: IsToken | None) -> Split:
    """The same tokens, only those of ``keep`` counted; None counts all that the state counts."""
    if keep is None:
        return state
    found = normalized(replace(state, is_token=keep.expand(state.residual.shape[:-1]), direct=None))
    return replace(found, direct=state.direct)


def constant(row: Tensor, like: Split) -> Split:
    """All tokens equal to one row, ``*batch dim``."""
    return Split(
        common=row.expand(like.common.shape),
        residual=torch.zeros_like(like.residual),
        log_scale=torch.full_like(like.log_scale, -torch.inf),
        is_token=like.is_token,
    )


def apart(mantissa: Tensor, like: Split) -> Split:
    """``exp(like.log_scale) mantissa``: what a linear map makes of the residual of a state."""
    raw = Split(
        common=torch.zeros_like(like.common),
        residual=mantissa,
        log_scale=like.log_scale,
        is_token=like.is_token,
    )
    return normalized(raw)


def plus(states: Sequence[Split]) -> Split:
    """The sum of some states."""
    if len(states) == 1:
        return states[0]
    largest, weights = aligned(torch.stack([state.log_scale for state in states]), dim=0)
    mantissa, common = torch.zeros_like(states[0].residual), torch.zeros_like(states[0].common)
    for weight, state in zip(weights, states, strict=True):
        mantissa, common = mantissa + weight[..., None, None] * state.residual, common + state.common
    raw = Split(common=common, residual=mantissa, log_scale=largest, is_token=states[0].is_token)
    return normalized(raw)


def times(state: Split, common: Tensor, log_residual: Tensor) -> Split:
    """The common row times a number per text, the residual times another one, of which the logarithm is given."""
    return replace(
        state,
        common=state.common * common.unsqueeze(-1),
        log_scale=state.log_scale + log_residual,
        direct=None,
    )


def negative(state: Split) -> Split:
    """Minus the state."""
    return replace(state, common=-state.common, residual=-state.residual, direct=None)


def by_channel(state: Split, scale: float | Tensor) -> Split:
    """Every token times a number, or channel by channel."""
    wide = scale.unsqueeze(-2).to(state.residual.dtype) if isinstance(scale, Tensor) else scale
    own = scale.to(state.common.dtype) if isinstance(scale, Tensor) else scale
    raw = replace(state, common=state.common * own, residual=state.residual * wide, direct=None)
    found = normalized(raw)
    return found if state.direct is None else replace(found, direct=state.direct * wide)


def centred(state: Split) -> Split:
    """Every token minus the mean of its channels."""
    direct = state.direct
    raw = replace(
        state,
        common=state.common - state.common.mean(dim=-1, keepdim=True),
        residual=state.residual - state.residual.mean(dim=-1, keepdim=True),
        direct=None,
    )
    found = normalized(raw)
    return found if direct is None else replace(found, direct=direct - direct.mean(dim=-1, keepdim=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """A number per token, ``level (1 + exp(log_scale) change)``: the change is known where it is below rounding.

    Args:
        level: ``*batch``.
        change: ``*batch tokens``.
        log_scale: ``*batch``.
    """

    level: Tensor
    change: Tensor
    log_scale: Tensor


def inverse_lengths(state: Split, *, width: float = 1.0, eps: float = 0.0) -> Weights:
    """``1 / sqrt(|x_i|^2 / width + eps)`` of every token; a token without length has the weight zero.

    With ``x_i = m + s r_i`` the squared divisor is ``(|m|^2 / width + eps) (1 + s d_i)`` with
    ``d_i = (2 m . r_i + s |r_i|^2) / (|m|^2 + width eps)``, so relative to that of the common row the weight is
    ``(1 + s d)^(-1/2) = 1 + s d [expm1(-log1p(s d) / 2) / (s d)]``, without a difference of near-equal numbers.
    """
    tokens = state.tokens()
    # One unit for all tokens, so that no square leaves the floats.
    peak = torch.maximum(state.common.abs().amax(dim=-1), state.kept(tokens).abs().amax(dim=(-2, -1)))
    peak = torch.where(peak > 0, peak, 1.0)
    scale = (power(state.log_scale) / peak)[..., None]
    m, r, eps_ = state.common / peak[..., None], state.residual, eps / peak / peak
    level = m.square().sum(dim=-1) + width * eps_
    safe = torch.where(level > 0, level, 1.0)
    slope = 2 * (r @ m.unsqueeze(-1)).squeeze(-1) + scale * r.square().sum(dim=-1)
    slope = slope / safe[..., None]
    slope = state.kept(slope.unsqueeze(-1)).squeeze(-1)
    by = scale * slope
    is_near = (by.abs().amax(dim=-1) < NEAR) & (level > 0)
    small = by.abs() < 1e-6
    bent = torch.expm1(-0.5 * torch.log1p(by.clamp(min=-NEAR, max=NEAR))) / torch.where(small, 1.0, by)
    near = slope * torch.where(small, -0.5 + 0.375 * by - 0.3125 * by.square(), bent)
    squared = (tokens / peak[..., None, None]).square().sum(dim=-1) / width + eps_[..., None]
    each = torch.where(squared > 0, squared.clamp(min=1e-300).rsqrt(), 0.0)
    each = state.kept(each.unsqueeze(-1)).squeeze(-1)
    count = state.count()
    mean = each.sum(dim=-1) / (count.squeeze(-1) if isinstance(count, Tensor) else count)
    mean = torch.where(mean > 0, mean, 1.0)
    return Weights(
        level=torch.where(is_near, (width / safe).sqrt(), mean) / peak,
        change=torch.where(is_near[..., None], near, each / mean[..., None] - 1),
        log_scale=torch.where(is_near, state.log_scale - peak.log(), 0.0),
    )


def weighed(state: Split, weights: Weights) -> Split:
    """Every token times its weight.

    ``w_i (m + s r_i) = w m + w t c_i m + w s (1 + t c_i) r_i`` with ``w_i = w (1 + t c_i)``: two differences, each with
    a scale of its own.
    """
    logs, (turned, own) = aligned(torch.stack([weights.log_scale, state.log_scale]), dim=0)
    change = weights.change[..., None]
    factors = 1 + power(weights.log_scale)[..., None, None] * change
    mantissa = turned[..., None, None] * change * state.common.unsqueeze(-2)
    mantissa = (
        mantissa + torch.where(own > 0, own, 0.0)[..., None, None] * factors * state.residual
    ) * weights.level[..., None, None]
    raw = Split(
        common=state.common * weights.level[..., None],
        residual=mantissa,
        log_scale=logs,
        is_token=state.is_token,
    )
    return normalized(raw)


def log_energies(state: Split) -> tuple[Tensor, Tensor]:
    """``ln M`` and ``ln r^2``: the squared sizes of the common part and of the residual."""
    count = state.count()
    many = count.squeeze(-1).double() if isinstance(count, Tensor) else size_like(state, count)
    size = torch.linalg.vector_norm(state.common, dim=-1)
    floor = 0.5 * state.log_scale.clamp(min=-600.0).exp() * TINY  # an exact zero counts as next to nothing
    return 2 * torch.maximum(size, floor).clamp(min=1e-300).log() + many.log(), (2 * state.log_scale)


def size_like(state: Split, count: int) -> Tensor:
    """A number of tokens as a tensor of the state's dtype."""
    return state.log_scale.new_tensor(float(count))


def log_energy(state: Split) -> Tensor:
    """``ln |X|^2``."""
    return torch.logaddexp(*log_energies(state))


def log_odds(state: Split) -> Tensor:
    """``ln(r^2 / M)``."""
    common, residual = log_energies(state)
    return residual - common


def plain_log_ratio(state: Split) -> Tensor:
    """``ln rho`` of the tokens as they are."""
    return log_ratio(log_odds(state))


def unit_log_ratio(state: Split) -> Tensor:
    """``ln rho`` after every token is scaled to length one."""
    return plain_log_ratio(weighed(state, inverse_lengths(state)))
