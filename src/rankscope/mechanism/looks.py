"""What an attention looks like to a person: how evenly it reads, how far its logits differ, what averaging leaves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankscope.mechanism.states import plus, unit_log_ratio
from rankscope.network import Attention, Context, HeadGate, Mixer, QueryKey, ValueResidual
from rankscope.network.masking import allowed_keys
from rankscope.split.state import Split

if TYPE_CHECKING:
    from rankscope.mechanism.pieces import Piece

SEEN = 1e-9
"""Below this residual ratio of the input, differences of logits are rounding."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionLook:
    """One attention on every text, ``*batch``; NaN where there is no number.

    Args:
        entropy: of the rows of its maps over the logarithm of the keys they may read, mean over rows with several.
        logit_std: how far the logits of a row differ, root mean square over rows and heads.
        logit_gain: that over the residual ratio of the input.
        averaging: size of the differences after averaging over that before it.
        value_gain: size of the differences of the values over that of the input.
        itself: mean weight with which tokens read themselves.
    """

    entropy: Tensor
    logit_std: Tensor
    logit_gain: Tensor
    averaging: Tensor
    value_gain: Tensor
    itself: Tensor


def look_at(
    part: Attention | ValueResidual, state: Split, context: Context, pieces: "Sequence[Piece]"
) -> AttentionLook:
    """What the attention looks like on its input."""
    x = state.tokens()
    maps = part.mixer(x, context)
    allowed = allowed_keys(part.mixer.rule, x.shape[-2], context, x.device)
    if allowed is None:
        allowed = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device)
    # *batch heads tokens: rows of real tokens that may read several keys
    keys = allowed.sum(dim=-1).expand(maps.shape[:-1])
    used = keys > 1
    if context.is_token is not None:
        used = used & context.is_token.expand(x.shape[:-1]).unsqueeze(-2)
    terms = torch.where(maps > 0, maps * maps.clamp(min=1e-300).log(), 0.0)
    entropy = -terms.sum(dim=-1) / keys.clamp(min=2).to(maps.dtype).log()
    itself = maps.diagonal(dim1=-2, dim2=-1)
    named = {one.name: one.state for one in pieces}
    own, mixed = (
        named["own"],
        [one for one in (named.get("averaging"), named.get("whole")) if one is not None],
    )
    std = _logit_std(part.mixer, x, context, allowed, used)
    ratio = unit_log_ratio(state).exp()
    nothing = torch.full_like(ratio, torch.nan)
    std = nothing if std is None else torch.where(ratio > SEEN, std, nothing)
    return AttentionLook(
        entropy=_mean(entropy, used),
        logit_std=std,
        logit_gain=std / torch.where(ratio > 0, ratio, 1.0),
        averaging=(plus([own, *mixed]).log_scale - own.log_scale).exp(),
        value_gain=(own.log_scale - state.log_scale).exp(),
        itself=_mean(itself, used),
    )


def _logit_std(mixer: Mixer, x: Tensor, context: Context, allowed: Tensor, used: Tensor) -> Tensor | None:
    while isinstance(mixer, HeadGate):
        mixer = mixer.inner
    if not isinstance(mixer, QueryKey):
        return None
    logits = mixer.logits(x, context)
    if logits.shape[:-1] != used.shape:  # heads that are differences of two maps have logits of each
        return None
    may = allowed.expand(logits.shape).to(logits.dtype)
    mean = (logits * may).sum(dim=-1, keepdim=True) / may.sum(dim=-1, keepdim=True).clamp(min=1)
    off = ((logits - mean) * may).square().sum(dim=-1) / may.sum(dim=-1).clamp(min=1)
    return _mean(off, used).sqrt()


def _mean(values: Tensor, used: Tensor) -> Tensor:
    """The mean over heads and used rows; NaN where there is none."""
    many = used.sum(dim=(-2, -1))
    total = torch.where(used, values, 0.0).sum(dim=(-2, -1))
    return torch.where(many > 0, total / many.clamp(min=1), torch.nan)
