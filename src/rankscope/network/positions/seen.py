"""Biases of the logits as they were seen, for no more tokens than were seen."""

from dataclasses import dataclass

from torch import Tensor

from rankscope.errors import ShapeError
from rankscope.network.context import Context
from rankscope.network.parts import weight
from rankscope.network.positions.base import Position


@dataclass(frozen=True, slots=True)
class SeenDistances:
    """One bucket for every distance from ``-most`` to ``most``; farther ones were never seen and are refused.

    >>> import torch
    >>> SeenDistances(2)(torch.tensor([-2, 0, 1]))
    tensor([0, 2, 3])
    """

    most: int

    def __call__(self, distance: Tensor) -> Tensor:
        farthest = int(distance.abs().max())
        if farthest > self.most:
            raise ShapeError(
                f"this bias by distance was seen up to {self.most} and is asked for {farthest}; use texts of at most "
                f"{self.most + 1} tokens, or record a longer one"
            )
        return distance + self.most


class SeenBias(Position):
    """A constant ``heads tokens tokens`` added to the logits, for texts of exactly as many tokens without padding."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = weight(table)

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        padded = context.is_token is not None and not bool(context.is_token.all())
        if query.shape[-2] != self.table.shape[-1] or padded:
            raise ShapeError(
                f"this bias of the logits was seen for texts of {self.table.shape[-1]} tokens without padding, got "
                f"{query.shape[-2]} positions{' with padding' if padded else ''}; record texts of that length"
            )
        return self.table.to(query.dtype)
