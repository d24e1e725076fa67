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
        content: u, where ``shift`` is given as v: what the queries carry already, subtracted on use.
    """

    def __init__(self, projection: Tensor, shift: Tensor, *, content: Tensor | None = None) -> None:
        super().__init__()
        self.projection = weight(projection)
        self.shift = weight(shift)
        self.content = weight(content)

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        distance = distances(query, context)
        farthest = int(distance.abs().max())
        near = torch.arange(-farthest, farthest + 1, device=query.device)
        keys = split_heads(
            sinusoid(near, self.projection.shape[-2]).to(query.dtype) @ self.projection, query.shape[-3]
        )
        by_distance = (shifted(query, self.shift, self.content) * scale) @ keys.transpose(-1, -2)
        index = (distance + farthest).expand(*query.shape[:-1], query.shape[-2])
        return by_distance.gather(-1, index)


class Segments(Position):
    """``scale * (q_i + shift_h - content_h) . table_h[segment(i) != segment(j)]`` added to what ``inner`` adds (XLNet).

    Segments are those of the context; without them nothing is added.

    Args:
        inner: the rule for distances.
        table: ``2 heads head_dim``, for keys of the same segment and of another one.
        shift: ``heads head_dim``.
        content: what the queries carry already.
    """

    def __init__(
        self, inner: Position, table: Tensor, shift: Tensor, *, content: Tensor | None = None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.table, self.shift, self.content = weight(table), weight(shift), weight(content)

    def pieces(self) -> tuple[object, ...]:
        """The rule inside."""
        return (self.inner,)

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        by_distance = self.inner.bias(query, context, scale)
        segments = context.segments
        if segments is None:
            return by_distance
        asked = shifted(query, self.shift, self.content) * scale
        same, other = (asked @ self.table.unsqueeze(-1)[side] for side in (0, 1))  # *batch heads tokens 1
        differs = (segments.unsqueeze(-1) != segments.unsqueeze(-2)).unsqueeze(-3)
        by_segment = torch.where(differs, other, same)
        return by_segment if by_distance is None else by_distance + by_segment


def shifted(query: Tensor, shift: Tensor, content: Tensor | None) -> Tensor:
    """Queries ``*batch heads tokens head_dim`` with one bias in place of another."""
    return query + (shift if content is None else shift - content).unsqueeze(-2)


def sinusoid(position: Tensor, width: int) -> Tensor:
    """Sines, then cosines, of ``position * 10000 ** (-2p / width)`` for p = 0 .. width/2 - 1."""
    frequency = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width)
    angle = position.double().unsqueeze(-1) * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
