"""How positions enter the logits: by turning queries and keys, by adding to the logits, or not at all."""

from torch import Tensor, nn

from rankscope.network.context import Context


class Position(nn.Module):
    """A position rule. ``rotate`` acts on queries and keys, ``bias`` is added to the scaled logits."""

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        return query, key

    def bias(self, query: Tensor, context: Context, scale: float) -> Tensor | None:
        return None


class NoPosition(Position):
    """Positions do not enter: attention without a mask cannot tell the order of tokens."""


def distances(query: Tensor, context: Context) -> Tensor:
    """``position(i) - position(j)`` as integers, ``tokens tokens`` or ``*batch 1 tokens tokens`` (all heads)."""
    tokens = query.shape[-2]

    def make() -> Tensor:
        position = context.token_positions(tokens, query.device)
        difference = position.unsqueeze(-1) - position.unsqueeze(-2)
        return difference if difference.ndim == 2 else difference.unsqueeze(-3)

    return context.shared(("distances", tokens, query.device), make)
