"""ALiBi (Press et al. 2022): logits fall linearly with the distance, with one slope per head."""

import torch
from torch import Tensor

from rankscope.network.context import Context
from rankscope.network.parts import weight
from rankscope.network.positions.base import Position, distances


class Alibi(Position):
    """``-slope_h |position(i) - position(j)|`` added to the logits; ``slopes`` is ``*seeds heads``."""

    def __init__(self, slopes: Tensor) -> None:
        super().__init__()
        self.slopes = weight(slopes)

    @classmethod
    def geometric(cls, heads: int) -> "Alibi":
        """The slopes published for powers of two, ``2 ** (-8 h / heads)`` for h = 1..heads, at any number of heads.

        >>> Alibi.geometric(2).slopes.tolist()
        [0.0625, 0.00390625]
        """
        return cls(2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads))

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        return self.at_distances(distances(query, context), query.dtype)

    def at_distances(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        return -self.slopes[..., None, None].to(dtype) * distance.abs()
