"""What every part of a network may know besides the tokens: padding, positions, and what layers share."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from rankscope.core.types import IsMemoryToken, IsToken
from rankscope.errors import ShapeError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Context:
    """Everything about one batch that is not the token matrix itself.

    Args:
        is_token: False on padding; None when every position is a token.
        positions: position of each token in its text; None counts the tokens of each text from zero.
        segments: which part of its text each token belongs to, for position rules that ask (XLNet).
        memory: states that cross-attention reads; None for self-attention.
        memory_is_token: False on padding of ``memory``.
        cache: what layers share (masks, rotary tables, relative biases), filled on first use from the rest.
    """

    is_token: IsToken | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    memory: Tensor | None = None
    memory_is_token: IsMemoryToken | None = None
    cache: dict[Hashable, object] = field(default_factory=dict, repr=False)

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value stored under ``key``, made once per batch."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]  # type: ignore[return-value]  # stored by the line above under a private key

    def check(self, x: Tensor) -> None:
        """Raise unless padding, positions and memory fit the tokens of ``x``."""
        held = (("is_token", self.is_token), ("positions", self.positions), ("segments", self.segments))
        for name, value in held:
            if value is not None and not _broadcasts(value.shape, x.shape[:-1]):
                raise ShapeError(
                    f"{name} has shape {tuple(value.shape)}, but the tokens have shape {tuple(x.shape[:-1])}; "
                    "give one entry per token"
                )
        if self.is_token is not None and self.is_token.dtype != torch.bool:
            raise ShapeError(f"is_token must be boolean, got {self.is_token.dtype}; use is_token.bool()")

        self._check_memory(x)

    def _check_memory(self, x: Tensor) -> None:
        memory, is_token = self.memory, self.memory_is_token
        if memory is None:
            if is_token is not None:
                raise ShapeError(
                    "memory_is_token is the padding of a memory, and there is no memory; give both"
                )
            return
        leading = memory.shape[:-2]
        if memory.ndim < 2 or memory.numel() == 0 or not memory.is_floating_point():
            raise ShapeError(
                f"expected a floating-point memory (*batch, tokens, dim) with at least one token, got "
                f"{str(memory.dtype).removeprefix('torch.')} of shape {tuple(memory.shape)}"
            )
        if not _broadcasts_to(leading, x.shape[:-2]):
            raise ShapeError(
                f"the memory has shape {tuple(memory.shape)} and the tokens {tuple(x.shape)}; give one memory per text"
            )
        if is_token is None:
            return
        if is_token.dtype != torch.bool:
            raise ShapeError(
                f"memory_is_token must be boolean, got {is_token.dtype}; use memory_is_token.bool()"
            )
        if not _broadcasts(is_token.shape, torch.Size((*x.shape[:-2], memory.shape[-2]))):
            raise ShapeError(
                f"memory_is_token has shape {tuple(is_token.shape)}, but the memory has {tuple(memory.shape[:-1])}; "
                "give one entry per token of the memory"
            )

    def of_text(self, row: int) -> "Context":
        """What is known of one text of a batch by itself, its padding cut out."""
        keep = None if self.is_token is None else self.is_token[row]

        def cut(value: Tensor | None) -> Tensor | None:
            if value is None:
                return None
            own = value if value.ndim == 1 else value[row if len(value) > 1 else 0]
            return own if keep is None else own[keep]

        memory = self.memory
        if memory is not None and memory.ndim > 2:
            memory = memory[row if len(memory) > 1 else 0]
        real = self.memory_is_token
        if real is not None and real.ndim > 1:
            real = real[row if len(real) > 1 else 0]
        if memory is not None and real is not None:
            memory = memory[real]  # cut out as the padding of the text itself is
        return Context(positions=cut(self.positions), segments=cut(self.segments), memory=memory)

    def token_positions(self, tokens: int, device: torch.device) -> Tensor:
        """Integer positions ``*batch tokens``: as given, or counted over the real tokens of each text."""
        if self.positions is not None:
            return self.positions
        if self.is_token is None:
            return torch.arange(tokens, device=device)
        return token_ranks(self.is_token)


def token_ranks(is_token: IsToken) -> Tensor:
    """Index of each token among the real tokens of its text; padding repeats its left neighbour's, at least 0.

    >>> token_ranks(torch.tensor([False, True, True, False]))
    tensor([0, 0, 1, 1])
    """
    return (is_token.long().cumsum(dim=-1) - 1).clamp(min=0)


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    return shape[-1:] == target[-1:] and _broadcasts_to(shape, target)


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    return len(shape) <= len(target) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False)
    )
