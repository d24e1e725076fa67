"""Transformer-XL positions (Dai et al. 2019): queries also read a projected sinusoid of the distance."""

import torch
from torch import Tensor

from rankscope.network.context import Context
from rankscope.network.heads import split_heads
from rankscope.network.parts import weight
from rankscope.network.positions.base import Position, distances


class TransformerXL(Position):
    """``scale * (q_i + shift_h) . (R_h sinusoid(i - j))`` added to the logits.

    ``q_i`` already carries the content bias u (as the query bias of the mixer); ``shift = v - u`` replaces it by
    the position bias v.

    Args:
        projection: ``*seeds dim (heads head_dim)``, the map from sinusoids of width dim to keys.
        shift: ``*seeds heads head_dim``.
    """

    def __init__(self, projection: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.projection = weight(projection)
        self.shift = weight(shift)

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        distance = distances(query, context)
        farthest = int(distance.abs().max())
        near = torch.arange(-farthest, farthest + 1, device=query.device)
        keys = split_heads(
            sinusoid(near, self.projection.shape[-2]).to(query.dtype) @ self.projection, query.shape[-3]
        )
        by_distance = ((query + self.shift.unsqueeze(-2)) * scale) @ keys.transpose(-1, -2)
        index = (distance + farthest).expand(*query.shape[:-1], query.shape[-2])
        return by_distance.gather(-1, index)


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of ``position * 10000 ** (-2p / width)`` for p = 0 .. width/2 - 1."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width)
    angle = position.double().unsqueeze(-1) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
