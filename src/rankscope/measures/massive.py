"""A few tokens far longer than all others, or a few channels far larger: how the rest is without them.

Massive are the k longest tokens if each of them is at least five times as long as the others are on average (root mean
square), for the largest such k below half of all tokens. A single one, as many language models have at the first token,
is the case k = 1. If two tokens are equally long and one of them is massive, so is the other: without it the others are
shorter still. Massive channels are counted in the same way, in tokens of length one.
"""

import torch
from torch import Tensor

from rankscope.core.numerics import broadcast, checked
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.norms import frobenius_norm, row_lengths, turned, unit_scale, unit_tokens
from rankscope.measures.residuals import residual_ratio_of
from rankscope.measures.shares import share_floor

LENGTH = 5.0
"""A massive token, or channel, is at least so many times as long as the others."""

HALF = 0.5
"""A channel is massive by itself if it holds this share of the energy of unit tokens."""

MASSIVE = (
    "massive_tokens[5x_others]",
    "token_share[massive]",
    "residual_ratio[frobenius,mean,unit,others]",
    "massive_channels[5x_others,unit]",
    "channel_share[massive,unit]",
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
    return torch.where(_has_zero(x), torch.nan, values)


def others(lengths: Tensor, count: int) -> Tensor:
    """Places of all but the ``count`` longest tokens, in order."""
    return lengths.argsort(descending=True)[count:].sort().values


def massive_count(lengths: Tensor, slack: Tensor | float = 0.0, number: PerMatrix | None = None) -> PerMatrix:
    """How many of tokens with these lengths are massive, if lengths may be off by ``slack`` (below zero: the fewest).

    ``number`` is how many of them count, if not all do; those that do not have length zero.

    With m others whose squared lengths sum to s, the k-th longest is massive if ``len_k sqrt(m) >= 5 sqrt(s)``. The
    left side moves by ``sqrt(m)`` times what a length moves by, ``sqrt(s)`` by no more than all lengths together.
    """
    n = lengths.shape[-1]
    most = (n - 1) // 2
    slack = torch.as_tensor(slack, dtype=torch.float64, device=lengths.device)
    if most < 1:
        return lengths.new_zeros(broadcast(slack.shape, lengths.shape[:-1]))
    longest = lengths.sort(dim=-1, descending=True).values
    rest = longest.square().flip(-1).cumsum(dim=-1).flip(-1)[..., 1 : most + 1].sqrt()
    counts = torch.arange(1, most + 1, dtype=torch.float64, device=lengths.device)
    of = torch.full_like(lengths[..., 0], n) if number is None else number
    size = (of[..., None] - counts).clamp(min=0).sqrt()
    room = (size + LENGTH) * slack[..., None]
    is_massive = (longest[..., :most] * size + room >= LENGTH * rest) & (longest[..., :most] > 0)
    is_massive &= 2 * counts < of[..., None]
    return torch.where(is_massive, counts, 0.0).amax(dim=-1)


def massive_share(lengths: Tensor, count: PerMatrix) -> PerMatrix:
    """The share of the energy that the ``count`` longest tokens hold."""
    energy = lengths.sort(dim=-1, descending=True).values.square()
    places = torch.arange(lengths.shape[-1], device=lengths.device)
    return torch.where(places < count[..., None], energy, 0.0).sum(dim=-1) / energy.sum(dim=-1)


def count_floor(lengths: Tensor, moved: Tensor) -> PerMatrix:
    """By how many the count may be off if every length, and all of them together, are off by ``moved``."""
    count, most, fewest = massive_count(lengths, _either_way(lengths, moved))
    return torch.maximum(most - count, count - fewest)


def _either_way(lengths: Tensor, moved: Tensor | float) -> Tensor:
    """Slacks of none, of ``moved`` and of minus that, along a first axis: all three counts are taken at once."""
    by = torch.as_tensor(moved, dtype=torch.float64, device=lengths.device).expand(lengths.shape[:-1])
    return torch.stack([torch.zeros_like(by), by, -by])


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
    """How far directions move when every token moves by ``relative`` of its own length; 1 where it is open who is left.

    The ratio of what is left is a sine, never above 1.
    """
    moved = torch.as_tensor(relative, dtype=torch.float64, device=x.device).expand(x.shape[:-2])
    return torch.where(is_open(row_lengths(unit_scale(x)[0]), moved), 1.0, turned(moved))


def is_open(lengths: Tensor, relative: Tensor) -> Tensor:
    """Whether other tokens could be massive if every length is off by ``relative`` of itself.

    Both sides of ``len_k sqrt(m) >= 5 sqrt(s)`` are then off by that share of themselves, so that the comparison is
    open where their quotient is within ``(1 + relative) / (1 - relative)`` of one, in either direction.
    """
    reach = ((1 + relative) / (1 - relative).clamp(min=1e-12))[..., None]
    longest, most = lengths.sort(dim=-1, descending=True).values, (lengths.shape[-1] - 1) // 2
    rest = longest.square().flip(-1).cumsum(dim=-1).flip(-1)[..., 1 : most + 1].sqrt()
    others = lengths.shape[-1] - torch.arange(1, most + 1, dtype=torch.float64, device=lengths.device)
    left, right = longest[..., :most] * others.sqrt(), LENGTH * rest
    return ((left * reach >= right) & (left <= right * reach) & (left > 0)).any(dim=-1)


def massive_channels(x: Tensor) -> PerMatrix:
    """How many channels of unit tokens are massive: at least five times as long as the others, or half of the energy.

    NaN if a token is zero.

    >>> massive_channels(torch.tensor([[50.0, 1.0, 0.0, 9.0, 1.0], [50.0, 0.0, 1.0, -9.0, 0.0]])).item()
    2.0
    """
    return massive_channels_of(checked(x))


def massive_channels_of(x: TokenMatrix) -> PerMatrix:
    """As ``massive_channels``, of checked input."""
    return torch.where(_has_zero(x), torch.nan, channel_count(_unit_channels(x)))


def channel_count(lengths: Tensor, slack: Tensor | float = 0.0) -> PerMatrix:
    """How many of channels with these lengths are massive, if lengths may be off by ``slack`` (below zero: the fewest).

    As tokens are counted, among channels that are not zero throughout: those belong to no token. A channel with half
    of the energy is massive also where so few others are left that it cannot be five times as long. The only channel in
    use is not: without it nothing would be left.
    """
    slack = torch.as_tensor(slack, dtype=torch.float64, device=lengths.device)
    slack = slack.expand(broadcast(slack.shape, lengths.shape[:-1]))
    in_use = lengths > (-slack).clamp(min=0)[..., None]
    # what may move may also come into use
    number = torch.where(slack > 0, float(lengths.shape[-1]), in_use.sum(dim=-1).double())
    energy = lengths.square()
    share = energy.amax(dim=-1) / energy.sum(dim=-1)
    room = slack.sign() * share_floor(share.expand(slack.shape), slack.abs())
    alone = ((share + room >= HALF) & (number > 1)).double()
    return torch.maximum(massive_count(lengths, slack, number), alone)


def channel_count_floor(lengths: Tensor, moved: Tensor | float) -> PerMatrix:
    """By how many the count may be off if every length, and all of them together, are off by ``moved``."""
    count, most, fewest = channel_count(lengths, _either_way(lengths, moved))
    return torch.maximum(most - count, count - fewest)


def massive_channels_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """How many channels could become massive or stop to be when every token moves by ``relative`` of its own length."""
    return channel_count_floor(_unit_channels(x), turned(relative).to(x.device))


def massive_channel_share_of(x: TokenMatrix) -> PerMatrix:
    """Share of the energy of unit tokens that the massive channels hold, 0 without any; NaN if a token is zero."""
    lengths = _unit_channels(x)
    return torch.where(_has_zero(x), torch.nan, massive_share(lengths, channel_count(lengths)))


def massive_channel_share_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """As that of every share of unit tokens; 1 where it is open which channels are massive."""
    floor = share_floor(massive_channel_share_of(x), turned(relative).to(x.device).expand(x.shape[:-2]))
    return torch.where(massive_channels_floor(x, relative) > 0, 1.0, floor)


def other_channels_of(x: TokenMatrix) -> PerMatrix:
    """Residual ratio of unit tokens without the massive channels; of all channels if none is massive.

    Tokens are scaled to length one after those channels are gone; NaN if one of them is zero then.
    """
    rest, _ = _without_channels(x)
    value = residual_ratio_of(unit_tokens(rest), "frobenius", "mean")
    return torch.where(_has_zero(rest), torch.nan, value if isinstance(value, Tensor) else torch.nan)


def other_channels_floor(x: TokenMatrix, relative: float | Tensor) -> PerMatrix:
    """How far the ratio moves when every token moves by ``relative`` of its own length, all channels included.

    Relative to what is left of a token that is more, by the length it has lost. Given which channels are massive:
    whether that is open is said by the floor of their number, and without an answer nothing would be known of any state
    whose channels are about equally large.
    """
    _, share = _without_channels(x)
    left = (1 - share).clamp(min=0).sqrt()
    moved = torch.as_tensor(relative, dtype=torch.float64, device=x.device)[..., None] / left
    return turned(moved.nan_to_num(nan=2.0)).square().mean(dim=-1).sqrt()


def _has_zero(x: TokenMatrix) -> Tensor:
    """Whether some token is zero and has no direction."""
    return (x == 0).all(dim=-1).any(dim=-1)


def _unit_channels(x: TokenMatrix) -> Tensor:
    """The length of every channel of unit tokens, as a root mean square over tokens."""
    return unit_tokens(x).square().mean(dim=-2).sqrt()


def _without_channels(x: TokenMatrix) -> tuple[TokenMatrix, Tensor]:
    """``x`` with the massive channels set to zero, and which share of its energy every token lost with them."""
    lengths = _unit_channels(x)
    places = lengths.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
    gone = (places < channel_count(lengths)[..., None])[..., None, :]
    return torch.where(gone, 0.0, x), torch.where(gone, unit_tokens(x).square(), 0.0).sum(dim=-1)
