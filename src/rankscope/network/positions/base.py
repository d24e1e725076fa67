"""How positions enter the logits: by turning queries and keys, by adding to the logits, or not at all."""

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.network.context import Context


class Position(nn.Module):
    """A position rule. ``rotate`` acts on queries and keys, ``bias`` is added to the scaled logits."""

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return query, key

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        return None

    def at_distances(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The bias at ``position(i) - position(j)``, ``*batch 1 i j`` or ``i j``, where that is all the rule asks."""
        raise ConfigError(
            f"{type(self).__name__} asks for more than distances, and reads no memory; use NoPosition"
        )


class NoPosition(Position):
    """Positions do not enter: attention without a mask cannot tell the order of tokens."""

    def at_distances(self, distance: Tensor, dtype: torch.dtype) -> Tensor | None:
        return None


def memory_distances(query: Tensor, memory: Tensor, context: Context) -> Tensor:
    """``position(i) - place(j)`` of tokens i and tokens j of the memory, whose places are counted from zero."""

    def make() -> Tensor:
        position = context.token_positions(query.shape[-2], query.device)
        place = Context(is_token=context.memory_is_token).token_positions(memory.shape[-2], memory.device)
        difference = position.unsqueeze(-1) - place.unsqueeze(-2)
        return difference if difference.ndim == 2 else difference.unsqueeze(-3)

    return context.shared(("memory distances", query.shape[-2], memory.shape[-2], query.device), make)


def distances(query: Tensor, context: Context) -> Tensor:
    """``position(i) - position(j)`` as integers, ``tokens tokens`` or ``*batch 1 tokens tokens`` (all heads)."""
    tokens = query.shape[-2]

    def make() -> Tensor:
        position = context.token_positions(tokens, query.device)
        difference = position.unsqueeze(-1) - position.unsqueeze(-2)
        return difference if difference.ndim == 2 else difference.unsqueeze(-3)

    return context.shared(("distances", tokens, query.device), make)
