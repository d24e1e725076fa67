"""A few tokens far longer than all others, or one channel far larger: how the rest is without them.

Massive are the k longest tokens if each of them is at least five times as long as the others are on average (root mean
square), for the largest such k below half of all tokens. A single one, as many language models have at the first token,
is the case k = 1. If two tokens are equally long and one of them is massive, so is the other: without it the others are
shorter still.
"""

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.norms import frobenius_norm, row_lengths, turned, unit_scale, unit_tokens
from rankscope.measures.residuals import residual_ratio_of
from rankscope.measures.shares import share_floor

LENGTH = 5.0
"""A massive token is at least so many times as long as the others."""

HALF = 0.5
"""A channel is massive if it holds this share of the energy of unit tokens."""

MASSIVE = (
    "massive_tokens[5x_others]",
    "token_share[massive]",
    "residual_ratio[frobenius,mean,unit,others]",
    "residual_ratio[frobenius,mean,unit,other_channels]",
)
"""Taken once per block."""


def massive_tokens(x: Tensor) -> PerMatrix:
    """How many tokens are massive: at least five times as long as the tokens that are not, fewer than half of all.

    >>> massive_tokens(torch.tensor([[50.0, 0.0], [0.0, 40.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])).item()
    2.0
    """
    return massive_tokens_of(checked(x))


def massive_tokens_of(x: TokenMatrix) -> PerMatrix:
    """As ``massive_tokens``, of checked input."""
    return massive_count(row_lengths(unit_scale(x)[0]))


def massive_share_of(x: TokenMatrix) -> PerMatrix:
    """Share of the squared Frobenius norm that the massive tokens hold, 0 without any; NaN for the zero matrix."""
    lengths = row_lengths(unit_scale(x)[0])
    return massive_share(lengths, massive_count(lengths))


def others_ratio_of(x: TokenMatrix) -> PerMatrix:
    """Residual ratio of the tokens that are not massive, each scaled to length one; NaN if a token is zero."""
    flat = x.reshape(-1, *x.shape[-2:])
    counts = massive_tokens_of(flat)
    found = [
        residual_ratio_of(
            unit_tokens(one[others(row_lengths(unit_scale(one)[0]), int(count))]), "frobenius", "mean"
        )
        for one, count in zip(flat, counts, strict=True)
    ]
    values = torch.stack([value for value in found if isinstance(value, Tensor)]).reshape(x.shape[:-2])
    return torch.where((x == 0).all(dim=-1).any(dim=-1), torch.nan, values)


def others(lengths: Tensor, count: int) -> Tensor:
    """Places of all but the ``count`` longest tokens, in order."""
    return lengths.argsort(descending=True)[count:].sort().values


def massive_count(lengths: Tensor, slack: Tensor | float = 0.0) -> PerMatrix:
    """How many of tokens with these lengths are massive, if lengths may be off by ``slack`` (below zero: the fewest).

    With m others whose squared lengths sum to s, the k-th longest is massive if ``len_k sqrt(m) >= 5 sqrt(s)``. The
    left side moves by ``sqrt(m)`` times what a length moves by, ``sqrt(s)`` by no more than all lengths together.
    """
    n = lengths.shape[-1]
    most = (n - 1) // 2
    if most < 1:
        return torch.zeros_like(lengths[..., 0])
    longest = lengths.sort(dim=-1, descending=True).values
    rest = longest.square().flip(-1).cumsum(dim=-1).flip(-1)[..., 1 : most + 1].sqrt()
    counts = torch.arange(1, most + 1, dtype=torch.float64, device=lengths.device)
    size = (n - counts).sqrt()
    room = (size + LENGTH) * torch.as_tensor(slack, dtype=torch.float64, device=lengths.device)[..., None]
    is_massive = (longest[..., :most] * size + room >= LENGTH * rest) & (longest[..., :most] > 0)
    return torch.where(is_massive, counts, 0.0).amax(dim=-1)


def massive_share(lengths: Tensor, count: PerMatrix) -> PerMatrix:
    """The share of the energy that the ``count`` longest tokens hold."""
    energy = lengths.sort(dim=-1, descending=True).values.square()
    places = torch.arange(lengths.shape[-1], device=lengths.device)
    return torch.where(places < count[..., None], energy, 0.0).sum(dim=-1) / energy.sum(dim=-1)


def count_floor(lengths: Tensor, moved: Tensor) -> PerMatrix:
    """By how many the count may be off if every length, and all of them together, are off by ``moved``."""
    count = massive_count(lengths)
    return torch.maximum(massive_count(lengths, moved) - count, count - massive_count(lengths, -moved))


def massive_tokens_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """How many tokens could become massive or stop to be when ``|E|_F <= relative |X|_F``."""
    y = unit_scale(x)[0]
    return count_floor(row_lengths(y), relative * frobenius_norm(y))


def massive_share_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """As that of every share; 1 where it is open which tokens are massive."""
    moved = torch.as_tensor(relative, dtype=torch.float64, device=x.device).expand(x.shape[:-2])
    floor = share_floor(massive_share_of(x), moved)
    return torch.where(massive_tokens_floor(x, relative) > 0, 1.0, floor)


def others_ratio_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """How far directions move when every token moves by ``relative`` of its own length."""
    return turned(relative).to(x.device).expand(x.shape[:-2])


def other_channels_of(x: TokenMatrix) -> PerMatrix:
    """Residual ratio of unit tokens without the channel that holds half of their energy or more; of all if none does.

    Tokens are scaled to length one after that channel is gone; NaN if one of them is zero then.
    """
    rest, _ = _without_channel(x)
    value = residual_ratio_of(unit_tokens(rest), "frobenius", "mean")
    has_zero = (rest == 0).all(dim=-1).any(dim=-1)
    return torch.where(has_zero, torch.nan, value if isinstance(value, Tensor) else torch.nan)


def other_channels_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """How far the ratio moves when every token moves by ``relative`` of its own length, the channel included.

    Relative to what is left of a token that is more, by the length it has lost.
    """
    _, share = _without_channel(x)
    left = (1 - share).clamp(min=0).sqrt()
    moved = torch.as_tensor(relative, dtype=torch.float64, device=x.device)[..., None] / left
    return turned(moved.nan_to_num(nan=2.0)).square().mean(dim=-1).sqrt()


def _without_channel(x: TokenMatrix) -> tuple[TokenMatrix, Tensor]:
    """``x`` with the massive channel set to zero, and which share of its energy every token lost with it.

    The only channel there is stays: without it nothing would be left.
    """
    energy = unit_tokens(x).square()
    shares = energy.mean(dim=-2)
    largest = torch.nn.functional.one_hot(shares.argmax(dim=-1), x.shape[-1]).bool()
    gone = (largest & (shares.amax(dim=-1) >= HALF)[..., None])[..., None, :] & (x.shape[-1] > 1)
    return torch.where(gone, 0.0, x), torch.where(gone, energy, 0.0).sum(dim=-1)
