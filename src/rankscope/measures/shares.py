"""Whether a few tokens or channels carry the state: shares of its energy, and tokens far longer than the others."""

from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.centers import median_row
from rankscope.measures.norms import frobenius_norm, row_lengths, unit_scale

OUTLIER_FACTOR = 10.0
"""A token is an outlier if it is longer than this many median tokens."""


def token_share(x: Tensor) -> PerMatrix:
    """Share of the squared Frobenius norm that the largest token holds; NaN for the zero matrix.

    1/n if all tokens are equally long, 1 if one is alone.

    >>> import torch
    >>> token_share(torch.tensor([[3.0, 0.0], [0.0, 1.0]])).item()
    0.9
    """
    return token_share_of(checked(x))


def channel_share(x: Tensor) -> PerMatrix:
    """Share of the squared Frobenius norm that the largest channel (column) holds; NaN for the zero matrix.

    >>> import torch
    >>> channel_share(torch.tensor([[3.0, 0.0], [3.0, 3.0]])).item()
    0.6666666666666666
    """
    return channel_share_of(checked(x))


def outlier_tokens(x: Tensor) -> PerMatrix:
    """How many tokens are longer than ten times the median length.

    >>> import torch
    >>> outlier_tokens(torch.tensor([[1.0], [2.0], [50.0]])).item()
    1.0
    """
    return outlier_tokens_of(checked(x))


def token_share_of(x: TokenMatrix) -> PerMatrix:
    """As ``token_share``, of checked input."""
    energy = unit_scale(x)[0].square()
    return energy.sum(dim=-1).amax(dim=-1) / energy.sum(dim=(-2, -1))


def channel_share_of(x: TokenMatrix) -> PerMatrix:
    """As ``channel_share``, of checked input."""
    energy = unit_scale(x)[0].square()
    return energy.sum(dim=-2).amax(dim=-1) / energy.sum(dim=(-2, -1))


def outlier_tokens_of(x: TokenMatrix) -> PerMatrix:
    """As ``outlier_tokens``, of checked input."""
    lengths = row_lengths(x)
    usual = median_row(lengths[..., None])
    return (lengths > OUTLIER_FACTOR * usual).sum(dim=-1).double()


def share_floor(share: PerMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of a largest share when ``|E|_F <= relative |X|_F``.

    The root of a share is the length of a part of X/|X|_F, a matrix that moves by at most ``2 relative``; so the
    root a moves by that and the share by ``2 relative (2 a + 2 relative)``. No share moves by more than 1.
    """
    return (4 * relative * (share.sqrt() + relative)).clamp(max=1.0)


def outlier_floor(x: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """How many tokens could cross the outlier threshold when ``|E|_F <= relative |X|_F``.

    A length and the median length move by at most ``|E|_F`` each, so only tokens within ``11 |E|_F`` of the
    threshold.
    """
    lengths = row_lengths(x)
    distance = (lengths - OUTLIER_FACTOR * median_row(lengths[..., None])).abs()
    moved = (1 + OUTLIER_FACTOR) * relative * frobenius_norm(x)
    return (distance <= moved[..., None]).sum(dim=-1).double()
