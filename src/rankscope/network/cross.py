"""The cross-attention part: queries of the tokens, keys and values of the memory that the context holds."""

from torch import Tensor

from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError, ShapeError
from rankscope.masks import Full
from rankscope.network.attention import Values
from rankscope.network.context import Context
from rankscope.network.heads import join_heads
from rankscope.network.mixers import Softmax
from rankscope.network.norms import Norm
from rankscope.network.parts import Part, affine
from rankscope.network.positions import Alibi, NoPosition, RelativeBias


class CrossAttention(Part):
    """``sum_h P_h m V_h O_h + 1 b`` with ``m`` the memory: an encoder's states, the tokens of an image.

    Args:
        mixer: softmax attention without a mask of its own; its ``key`` is as wide as the memory. Position rules can
            be biases by distance, with the tokens of the memory counted from zero.
        values: their ``value`` is as wide as the memory.
        memory_norm: a norm that the memory passes before keys and values are made of it.
        site: name of the output.
    """

    def __init__(
        self, mixer: Softmax, values: Values, *, memory_norm: Norm | None = None, site: str = "cross"
    ) -> None:
        super().__init__()
        if mixer.heads != values.heads:
            raise ConfigError(
                f"the mixer has {mixer.heads} heads and the values {values.heads}; they must agree"
            )
        if mixer.rule != Full():
            raise ConfigError(
                f"cross-attention lets every token read the whole memory, got the mask {mixer.rule}; use full"
            )
        if not isinstance(mixer.position, NoPosition | Alibi | RelativeBias):
            raise ConfigError(
                f"cross-attention takes no positions, or biases by distance, got {type(mixer.position).__name__}"
            )
        if mixer.key.shape[-2] != values.value.shape[-2]:
            raise ConfigError(
                f"keys read a memory of {mixer.key.shape[-2]} channels and values one of {values.value.shape[-2]}; "
                "they must agree"
            )
        self.mixer, self.values, self.memory_norm = mixer, values, memory_norm
        self.site = site

    def pieces(self) -> tuple[object, ...]:
        return (self.mixer, self.values, *(() if self.memory_norm is None else (self.memory_norm,)))

    def refused(self) -> str:
        """Said where an interpreter has no rule for it."""
        return (
            f"at the site {self.site!r} it reads a memory, which is no part of the tokens that are followed"
        )

    def memory(self, x: TokenMatrix, context: Context) -> Tensor:
        """The memory in the dtype of the tokens, after its norm; raises if the context has none that fits."""
        memory = context.memory
        if memory is None:
            raise ShapeError(
                f"cross-attention at the site {self.site!r} reads a memory and the context has none; give "
                "Context(memory=...), the states that it reads, and memory_is_token=... if they are padded"
            )
        width = self.values.value.shape[-2]
        if memory.shape[-1] != width:
            raise ShapeError(
                f"the memory has {memory.shape[-1]} channels, but cross-attention at the site {self.site!r} reads "
                f"{width}; give the states that this part of the model reads"
            )
        memory = memory.to(x.dtype)
        return memory if self.memory_norm is None else self.memory_norm(memory, context)

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        memory = self.memory(x, context)
        mixed = self.mixer(x, context, memory) @ self.values.project(memory)
        return affine(join_heads(mixed), self.values.out, self.values.out_bias)

    def head_outputs(self, x: TokenMatrix, context: Context) -> Tensor:
        """What each head adds, ``*batch heads tokens dim``; with the output bias they sum to the part's output."""
        memory = self.memory(x, context)
        return self.mixer(x, context, memory) @ self.values.project(memory) @ self.values.head_outs()
