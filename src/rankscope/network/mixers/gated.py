"""A gate per head and query: ``diag(g_h) P_h`` with ``g_ih = sigmoid(x_i . w_h + b_h)``.

A head whose output is multiplied by one number per token is the same head with the rows of its map multiplied by it:
``g_i sum_j P_ij v_j = sum_j (g_i P_ij) v_j``. Rows sum to the gate times what they summed to before.
"""

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.masks import MaskRule
from rankscope.network.context import Context
from rankscope.network.mixers.base import Mixer
from rankscope.network.parts import affine, shallow_copy, weight


class HeadGate(Mixer):
    """The maps of ``inner``, every row times the gate of its head and query.

    ``gate`` is ``*seeds dim heads`` and ``bias`` ``*seeds heads``. A gate with a number per channel is no map of tokens
    but a part: ``GatedAttention``.
    """

    rows_sum_to_one = False

    def __init__(self, inner: Mixer, gate: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        widths = {gate.shape[-1], inner.heads if bias is None else bias.shape[-1]}
        if gate.ndim < 2 or widths != {inner.heads}:
            raise ConfigError(
                f"a gate per head of {inner.heads} heads is (*seeds, dim, {inner.heads}), its bias (*seeds, "
                f"{inner.heads}); got {tuple(gate.shape)} and {None if bias is None else tuple(bias.shape)}"
            )
        self.inner = inner
        self.gate, self.bias = weight(gate), weight(bias)
        self.heads, self.rule = inner.heads, inner.rule

    def pieces(self) -> tuple[object, ...]:
        """The mixer behind the gate."""
        return (self.inner,)

    def with_rule(self, rule: MaskRule) -> "HeadGate":
        twin = shallow_copy(self)
        twin.rule = rule
        twin.inner = self.inner.with_rule(rule)
        return twin

    def forward(self, x: TokenMatrix, context: Context) -> AttentionMap:
        opened = torch.sigmoid(affine(x, self.gate, self.bias))
        return opened.mT.unsqueeze(-1) * self.inner(x, context)
