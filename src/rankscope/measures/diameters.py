"""The largest distance between two tokens. Averaging shrinks it: attention never makes a diameter grow."""

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.centers import mean_row, spread
from rankscope.measures.norms import frobenius_norm

ROW_NORMS = ("l1", "l2", "linf")


def diameter(x: Tensor, *, norm: str) -> PerMatrix:
    """Largest distance between two tokens in the row norm l1, l2 or linf: ``max_ij |x_i - x_j|``.

    >>> import torch
    >>> diameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), norm="l2").item()
    5.0
    """
    if norm not in ROW_NORMS:
        raise unknown_name("row norm", norm, ROW_NORMS)
    return diameter_of(checked(x, tokens=2), norm)


def diameter_of(x: TokenMatrix, norm: str) -> PerMatrix:
    """As ``diameter``, of checked input. Offsets from the mean, so that tiny distances neither cancel nor underflow."""
    parts = spread(x)
    y = parts.offsets - mean_row(parts.offsets)[..., None, :]
    if norm == "linf":  # largest range of a column: the same number without looking at pairs
        widest = (y.amax(dim=-2) - y.amin(dim=-2)).amax(dim=-1)
    else:
        # For l2 and many tokens cdist may expand the square. That cancels for close pairs but not for the widest
        # one: the mean lies among the tokens, so some pair is at least as far apart as the longest row of y.
        widest = torch.cdist(y, y, p=float(norm[1:])).amax(dim=(-2, -1))
    return widest * parts.scale


def diameter_floor(x: TokenMatrix, relative: float | PerMatrix, norm: str) -> PerMatrix:
    """Error bound of a diameter when ``|E|_F <= relative |X|_F``.

    Two rows of E differ by at most ``sqrt(2) |E|_F`` in l2, hence in linf, and by ``sqrt(dim)`` times that in l1.
    """
    rows = x.shape[-1] ** 0.5 if norm == "l1" else 1.0
    return 2**0.5 * rows * relative * frobenius_norm(x)
