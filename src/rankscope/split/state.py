"""A token matrix split into what all tokens share and what is left, the latter with its scale kept as a logarithm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.types import IsToken
from rankscope.split.noise import Noise

SHORT = 100.0
"""A token this many times shorter than the common row is carried directly too: as a sum it has two digits less."""

FAINT = 1e-300
"""A residual whose largest entry is below this was computed from numbers that are no longer held to all digits."""

FAINT_SUM = 1e-260
"""What a branch lost is below 1e-290 times its weights: far below the rounding of tokens and residuals above this."""

LARGE_SCALE = 60.0
"""Logarithm of a scale: a product of mantissas that underflows (e^-744) may be more than the underflow floor (e^-670)
there, with room for the number of tokens."""

SMALLEST = -708.0
"""Natural log of about the smallest float that has all its digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """``X = 1 common + exp(log_scale) residual``; rows of the residual sum to zero and its Frobenius norm is one.

    Where all tokens are equal the residual is zero and ``log_scale`` is minus infinity. Rows of padding are zero.

    A token that is much shorter than the common row is a difference of two larger numbers in this form, and has lost
    its digits: a token that is exactly zero becomes 1e-17, which a norm makes a unit vector. Where there are such
    tokens the token matrix is carried beside the split.

    Args:
        common: ``*batch dim``, the mean token.
        residual: ``*batch tokens dim``.
        log_scale: ``*batch``, natural logarithm of the Frobenius residual.
        is_token: False on padding, or None.
        direct: ``*batch tokens dim``, the tokens themselves, where one of them is short; None elsewhere.
        lost: ``*batch``, True where numbers left the range of floats on the way, so that nothing is known; or None.
        twins: the same state of perturbed runs, from which errors are estimated; none without an error.
        noise: set only while a run and its twins go through a network together, stacked along the first axis.
    """

    common: Tensor
    residual: Tensor
    log_scale: Tensor
    is_token: IsToken | None = None
    direct: Tensor | None = None
    lost: Tensor | None = None
    twins: "tuple[Split, ...]" = ()
    noise: Noise | None = None

    @property
    def scale(self) -> Tensor:
        """``exp(log_scale)``, ready to multiply ``*batch tokens dim``; zero once it is below the smallest float."""
        return power(self.log_scale)[..., None, None]

    def tokens(self) -> Tensor:
        """The token matrix as one float matrix; differences below its rounding are lost. Padding holds the mean."""
        if self.direct is not None:
            return self.direct
        return self.common.unsqueeze(-2) + self.scale * self.residual

    def is_short(self, x: Tensor) -> Tensor:
        """Which rows of ``x`` (``*batch tokens``) are much shorter than the common row."""
        return self.kept_true(_is_short(x, self.common.unsqueeze(-2)))

    def may_be_short(self) -> bool:
        """Whether any token can be short: its residual must take away nearly all of the common row."""
        far = power(self.log_scale) * self.residual.abs().amax(dim=(-2, -1))
        return bool((far * (1 + 2 / SHORT) > (1 - 1 / SHORT) * self.common.abs().amax(dim=-1)).any())

    def log_residual(self, *, norm: str, center: str) -> Tensor:
        """Natural log of the residual in that norm, from that center; see ``rankscope.split.log_residual``."""
        from rankscope.split.values import log_residual  # that file reads this one

        return log_residual(self, norm=norm, center=center)

    def kept(self, values: Tensor) -> Tensor:
        """``values`` (one row per token) with the rows of padding set to zero."""
        return values if self.is_token is None else values * self.is_token.unsqueeze(-1)

    def kept_true(self, found: Tensor) -> Tensor:
        """``found`` (one truth value per token) with padding set to False."""
        return found if self.is_token is None else found & self.is_token

    def count(self) -> Tensor | int:
        """Real tokens of each text, ready to divide ``*batch dim``."""
        return self.residual.shape[-2] if self.is_token is None else self.is_token.sum(dim=-1, keepdim=True)

    def moved(self, common: Tensor, mantissa: Tensor, log_scale: Tensor) -> "Split":
        """The split of ``1 common + exp(log_scale) mantissa``, for a mantissa of any size and any mean.

        A mantissa that has shrunk to the end of the floats has lost digits on its way there, and so has a common row
        that nothing larger hides. The twin would not show it: both runs are rounded to the same few numbers.
        """
        raw = replace(self, common=common, residual=mantissa, log_scale=log_scale, direct=None, twins=())
        state, peak = _normalized(raw)
        row = state.common.abs().amax(dim=-1)
        faint = (row > 0) & (row < FAINT) & (state.log_scale < math.log(FAINT_SUM))
        # Zero may be what is left of products that underflowed: at a large scale they were numbers.
        gone = (peak < FAINT) & ((peak > 0) | (log_scale > LARGE_SCALE))
        return state.with_lost(faint | gone)

    def disturb(self, numbers: Tensor) -> None:
        """Disturbs those of the twins in place, where there are any; ``numbers`` must belong to nobody else."""
        if self.noise is not None:
            self.noise.disturb(numbers)

    def disturbed(self) -> "Split":
        """The same with its twins disturbed, where there are any; numbers are changed in place."""
        for numbers in (self.common, self.residual, self.log_scale, self.direct):
            if numbers is not None:
                self.disturb(numbers)
        return self

    def with_lost(self, lost: Tensor) -> "Split":
        """The same, and lost where ``lost`` (``*batch``) says so too."""
        if self.lost is None and not bool(lost.any()):
            return self
        return replace(self, lost=lost if self.lost is None else self.lost | lost)


def _is_short(x: Tensor, beside: Tensor) -> Tensor:
    return x.abs().amax(dim=-1) * SHORT < beside.abs().amax(dim=-1)


def normalized(raw: Split) -> Split:
    """``raw`` with the mean of its residual moved to the common row, and its size to the scale."""
    return _normalized(raw)[0]


def _normalized(raw: Split) -> tuple[Split, Tensor]:
    """The same, and the largest entry of the residual before it was divided out."""
    mantissa = raw.kept(raw.residual)
    largest = mantissa.abs().amax(dim=(-2, -1))
    peak = torch.where(largest > 0, largest, 1.0)
    # Before anything else: a scale beyond the floats may belong to a mantissa below them, and entries may be as large
    # as floats go, so that their squares and sums are not.
    mantissa = mantissa / peak[..., None, None]
    log_scale = raw.log_scale + peak.log()
    mean = mantissa.sum(dim=-2) / raw.count()
    # A scale may be beyond the floats where the mantissa has underflowed to zero.
    common = raw.common + torch.where(mean != 0, power(log_scale).unsqueeze(-1) * mean, 0.0)
    mantissa = raw.kept(mantissa - mean.unsqueeze(-2))
    size = torch.linalg.matrix_norm(mantissa)
    is_zero = size == 0
    size = torch.where(is_zero, 1.0, size)
    # The two small logarithms first: beside a scale of -1e6 each would be rounded to ten digits.
    log_scale = torch.where(is_zero, -torch.inf, raw.log_scale + (size.log() + peak.log()))
    return replace(
        raw, common=common, residual=mantissa / size[..., None, None], log_scale=log_scale
    ), largest


def split_tokens(x: Tensor, is_token: IsToken | None = None) -> Split:
    """A token matrix as its mean row and its residual.

    The first token is subtracted before averaging, so equal tokens have a residual of exactly zero.
    """
    first = x[..., :1, :] if is_token is None else _first_token(x, is_token)
    zero = torch.zeros(x.shape[:-2], dtype=x.dtype, device=x.device)
    raw = Split(common=first.squeeze(-2), residual=x - first, log_scale=zero, is_token=is_token)
    return carrying(normalized(raw), x)


def carrying(state: Split, x: Tensor) -> Split:
    """``state`` with its tokens ``x`` beside it, if one of them is short."""
    return replace(state, direct=x) if bool(state.is_short(x).any()) else state


def _first_token(x: Tensor, is_token: IsToken) -> Tensor:
    place = is_token.expand(x.shape[:-1]).long().argmax(dim=-1)
    return x.gather(-2, place[..., None, None].expand(*place.shape, 1, x.shape[-1]))


def added(states: Sequence[Split]) -> Split:
    """The split of the sum of token matrices, their scales brought to the largest before adding."""
    if all(state.twins for state in states):
        twins = zip(*(state.twins for state in states), strict=True)
        return replace(_added(states), twins=tuple(map(_added, twins)))
    return _added(states)


def _added(states: Sequence[Split]) -> Split:
    logs = torch.stack([state.log_scale for state in states])
    largest, weights = aligned(logs, dim=0)
    mantissa, common = torch.zeros_like(states[0].residual), torch.zeros_like(states[0].common)
    for weight, state in zip(weights, states, strict=True):
        mantissa, common = mantissa + weight[..., None, None] * state.residual, common + state.common
    out = states[0].moved(common, mantissa, largest)
    for state in states[1:]:
        out = out if state.lost is None else out.with_lost(state.lost)
    if out.lost is not None:  # beside a branch that is not next to nothing, what another one lost is
        faint = out.kept_true(out.tokens().abs().amax(dim=-1) < FAINT_SUM).any(dim=-1)
        out = replace(out, lost=out.lost & (faint | (out.log_scale < math.log(FAINT_SUM))))
    if all(state.direct is None for state in states):
        return out
    total = states[0].tokens()
    for state in states[1:]:
        total = total + state.tokens()
    return carrying(out, total)


def power(log: Tensor) -> Tensor:
    """``exp(log)``, and zero where that would be a number with less than all digits.

    What is multiplied by such a number and divided by it again would lose them, and both runs in the same way.
    """
    return torch.where(log > SMALLEST, log, -torch.inf).exp()


def aligned(logs: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest of some logarithms, and ``exp(log - largest)`` of each; all zero where all are minus infinity."""
    largest = logs.amax(dim=dim)
    reference = torch.where(largest > -torch.inf, largest, 0.0).unsqueeze(dim)
    return largest, (logs - reference).exp()
