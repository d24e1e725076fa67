"""Rotary positions (Su et al. 2021): pairs of channels turn by an angle proportional to the position."""

import torch
from torch import Tensor

from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.positions.base import Position


class Rotary(Position):
    """Turn the first ``2 * len(frequencies)`` channels of every head.

    Args:
        frequencies: angle per position of each pair of channels.
        interleaved: pairs are channels (2p, 2p + 1); otherwise (p, p + half).
        gain: factor on the turned channels (the attention factor of YaRN-scaled models).
    """

    def __init__(self, frequencies: Tensor, *, interleaved: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.frequencies = (
            frequencies.double()
        )  # not a buffer: a network in float16 keeps its angles in float64
        self.interleaved = interleaved
        self.gain = gain

    @classmethod
    def from_base(
        cls,
        head_dim: int,
        *,
        base: float = 10_000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
        stretch: float = 1.0,
    ) -> "Rotary":
        """Frequencies ``base ** (-2p / width) / stretch`` on the first ``width = fraction * head_dim`` channels.

        >>> Rotary.from_base(4).frequencies
        tensor([1.0000, 0.0100], dtype=torch.float64)
        """
        width = int(head_dim * fraction)
        if width < 2 or width % 2 or base <= 0 or not 0 < fraction <= 1:
            raise ConfigError(
                f"rotary positions turn pairs of channels by a positive base, got {width} of head_dim={head_dim} "
                f"channels and base={base}; fraction is at most 1, and fraction * dim / heads must be even"
            )
        exponents = torch.arange(0, width, 2, dtype=torch.float64) / width
        return cls(base**-exponents / stretch, interleaved=interleaved)

    def rotate(self, query: Tensor, key: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        same = tuple(self.frequencies.tolist()), self.gain  # layers with the same angles share a table
        name = ("rotary", same, query.shape[-2], query.dtype, query.device)
        cos, sin = context.shared(name, lambda: self._table(query, context))
        return self.turn(query, cos, sin), self.turn(key, cos, sin)

    def _table(self, query: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        position = context.token_positions(query.shape[-2], query.device)
        angle = position.double().unsqueeze(-1) * self.frequencies.to(query.device)
        angle = angle if angle.ndim == 2 else angle.unsqueeze(-3)
        return (angle.cos() * self.gain).to(query.dtype), (angle.sin() * self.gain).to(query.dtype)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Every pair ``(a, b)`` of channels as ``(a cos - b sin, b cos + a sin)``, other channels as they are."""
        turned, rest = x.split([2 * len(self.frequencies), x.shape[-1] - 2 * len(self.frequencies)], dim=-1)
        if self.interleaved:
            a, b = turned[..., 0::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        else:
            a, b = turned.chunk(2, dim=-1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
        return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
