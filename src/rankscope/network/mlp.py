"""The feed-forward part: two linear maps around an activation, or gated."""

from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.network.activations import ACTIVATIONS
from rankscope.network.context import Context
from rankscope.network.parts import Part, affine, weight


class Mlp(Part):
    """``act(x U + u) D + d``, or with a gate ``(act(x G + g) * (x U + u)) D + d`` (SwiGLU, GeGLU).

    Weights are ``*seeds in out``; ``up`` and ``gate`` map dim to width, ``down`` maps width to dim.
    """

    def __init__(
        self,
        up: Tensor,
        down: Tensor,
        *,
        activation: str,
        gate: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        gate_bias: Tensor | None = None,
        site: str = "mlp",
    ) -> None:
        super().__init__()
        self.up, self.down, self.gate = weight(up), weight(down), weight(gate)
        self.up_bias, self.down_bias, self.gate_bias = weight(up_bias), weight(down_bias), weight(gate_bias)
        self.activation = ACTIVATIONS[activation]
        self.site = site

    def pieces(self) -> tuple[object, ...]:
        return (self.activation,)

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        up = affine(x, self.up, self.up_bias)
        if self.gate is None:
            inner = self.activation(up)
        else:
            inner = self.activation(affine(x, self.gate, self.gate_bias)) * up
        return affine(inner, self.down, self.down_bias)
