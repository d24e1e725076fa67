"""Mean cosine between pairs of tokens: how far they point the same way, whatever their length."""

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.norms import turned, unit_tokens

PAIRS = ("off_diagonal", "absolute", "with_diagonal")


def cosine(x: Tensor, *, pairs: str) -> PerMatrix:
    """Mean cosine between tokens; NaN if a token is zero, because it has no direction.

    ``off_diagonal``: over pairs of different tokens; ``absolute``: of |cos| over the same pairs;
    ``with_diagonal``: over all pairs, each token with itself included, which adds 1/n.

    >>> import torch
    >>> cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), pairs="with_diagonal").item()
    0.5
    """
    if pairs not in PAIRS:
        raise unknown_name("choice of pairs", pairs, PAIRS)
    return cosine_of(checked(x, tokens=2), pairs)


def cosine_of(x: TokenMatrix, pairs: str) -> PerMatrix:
    """As ``cosine``, of checked input."""
    directions, tokens = unit_tokens(x), x.shape[-2]
    cosines = directions @ directions.transpose(-1, -2)
    if pairs == "with_diagonal":
        mean = cosines.mean(dim=(-2, -1))
    else:
        others = ~torch.eye(tokens, dtype=torch.bool, device=x.device)
        cosines = cosines.abs() if pairs == "absolute" else cosines
        mean = torch.where(others, cosines, 0.0).sum(dim=(-2, -1)) / (tokens * (tokens - 1))
    return torch.where((x == 0).all(dim=-1).any(dim=-1), torch.nan, mean)


def cosine_floor(x: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of a mean cosine when every token moves by at most ``relative`` of its own length.

    A cosine moves by no more than the two directions together, and never by more than 2.
    """
    return (2 * turned(relative)).clamp(max=2.0).to(x.device).expand(x.shape[:-2])
