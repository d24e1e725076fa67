"""Attention whose output is multiplied by a gate of its own tokens, channel by channel.

Before the output map: ``y = (m * sigmoid(x G + g)) O + 1 b`` with m the mixed values of all heads side by side. Behind
it: ``y = (m O + 1 b) * sigmoid(x G + g)``. A gate with one number per head is a mixer, ``HeadGate``.
"""

from typing import Literal

import torch
from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.attention import SelfAttention, Values
from rankscope.network.context import Context
from rankscope.network.heads import join_heads
from rankscope.network.mixers import Mixer
from rankscope.network.parts import affine, weight


class GatedAttention(SelfAttention):
    """Attention with a gate per token and channel.

    Args:
        mixer: gives the maps.
        values: value and output projections.
        gate: ``*seeds dim (heads width)`` before the output map, ``*seeds dim dim`` behind it.
        gate_bias: as wide as the gate.
        place: where the gate stands, ``before`` or ``behind`` the output map.
        site: name of the output.
    """

    def __init__(
        self,
        mixer: Mixer,
        values: Values,
        gate: Tensor,
        *,
        gate_bias: Tensor | None = None,
        place: Literal["before", "behind"] = "before",
        site: str = "attention",
    ) -> None:
        super().__init__(mixer, values, site)
        wanted = values.out.shape[-2 if place == "before" else -1]
        widths = {gate.shape[-1], wanted if gate_bias is None else gate_bias.shape[-1]}
        if place not in ("before", "behind") or gate.ndim < 2 or widths != {wanted}:
            raise ConfigError(
                f"a gate {place} the output map has one column for each of {wanted} channels, got "
                f"{tuple(gate.shape)}; a gate stands before or behind the output map, one per head is HeadGate"
            )
        self.gate, self.gate_bias, self.place = weight(gate), weight(gate_bias), place

    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""
        return f"at the site {self.site!r} the tokens gate what they read, channel by channel"

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        mixed = join_heads(self.mixer(x, context) @ self.values.project(x))
        opened = torch.sigmoid(affine(x, self.gate, self.gate_bias))
        if self.place == "before":
            return affine(mixed * opened, self.values.out, self.values.out_bias)
        return affine(mixed, self.values.out, self.values.out_bias) * opened
