"""The attention part: a mixer makes one map per head, the values are mixed by it and projected back."""

from torch import Tensor, nn

from rankscope.core.types import TokenMatrix
from rankscope.errors import ConfigError
from rankscope.network.context import Context
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.mixers import Mixer
from rankscope.network.parts import Part, affine, held_bias, held_matrix, row, weight


class Values(nn.Module):
    """Value and output projections of all heads.

    Args:
        value: ``*seeds dim (value_heads width)``.
        out: ``*seeds (heads width) dim``.
        heads: number of heads.
        value_heads: number of distinct value heads; each serves ``heads / value_heads`` consecutive heads.
        value_bias: ``*seeds (value_heads width)``.
        out_bias: ``*seeds dim``.
        per_head: value is ``*seeds value_heads dim width`` and its bias ``*seeds value_heads width``, as views of
            weights that keep the heads apart. The attributes are the joined ones all the same.
    """

    def __init__(
        self,
        value: Tensor,
        out: Tensor,
        *,
        heads: int,
        value_heads: int | None = None,
        value_bias: Tensor | None = None,
        out_bias: Tensor | None = None,
        per_head: bool = False,
    ) -> None:
        super().__init__()
        self.per_head = per_head
        self.register_parameter("value", weight(value))
        self.register_parameter("value_bias", weight(value_bias))
        self.out, self.out_bias = weight(out), weight(out_bias)
        self.heads = heads
        self.value_heads = heads if value_heads is None else value_heads
        value = self.value
        width = value.shape[-1] // self.value_heads
        if value.shape[-1] % self.value_heads or heads % self.value_heads or out.shape[-2] != heads * width:
            raise ConfigError(
                f"values of width {value.shape[-1]} in {self.value_heads} heads do not fit an output projection of "
                f"{out.shape[-2]} rows in {heads} heads; rows must be heads times the width of one value head"
            )

    @property
    def value(self) -> Tensor:
        """``*seeds dim (value_heads width)``."""
        return held_matrix(self, "value")

    @property
    def value_bias(self) -> Tensor | None:
        """``*seeds (value_heads width)``."""
        return held_bias(self, "value_bias")

    def project(self, x: TokenMatrix) -> Tensor:
        """Values of every head, ``*batch heads tokens width``."""
        return repeat_groups(
            split_heads(affine(x, self.value, self.value_bias), self.value_heads), self.heads
        )

    def head_values(self) -> Tensor:
        """Value matrix of every head, ``*seeds heads dim width``."""
        return repeat_groups(split_heads(self.value, self.value_heads), self.heads)

    def head_outs(self) -> Tensor:
        """Rows of the output projection that belong to each head, ``*seeds heads width dim``."""
        return self.out.reshape(*self.out.shape[:-2], self.heads, -1, self.out.shape[-1])

    def value_out(self) -> Tensor:
        """Value map of every head, value times its slice of the output projection: ``*seeds heads dim dim``."""
        return self.head_values() @ self.head_outs()

    def bias(self) -> Tensor | None:
        """What the biases add to every token: ``out_bias + sum_h value_bias_h out_h`` (maps sum to one)."""
        if self.value_bias is None:
            return self.out_bias
        repeated = repeat_groups(split_heads(row(self.value_bias), self.value_heads), self.heads)
        carried = (repeated @ self.head_outs()).sum(dim=-3).squeeze(-2)
        return carried if self.out_bias is None else carried + self.out_bias


class SelfAttention(Part):
    """What attention among the tokens shares: a mixer, values, a site. Each kind is a class with rules of its own."""

    def __init__(self, mixer: Mixer, values: Values, site: str = "attention") -> None:
        super().__init__()
        if mixer.heads != values.heads:
            raise ConfigError(
                f"the mixer has {mixer.heads} heads and the values {values.heads}; they must agree"
            )
        self.mixer = mixer
        self.values = values
        self.site = site

    def pieces(self) -> tuple[object, ...]:
        return (self.mixer, self.values)


class Attention(SelfAttention):
    """``sum_h P_h x V_h O_h + 1 b``: the mixer gives the maps P, values hold V, O and the biases."""

    def forward(self, x: TokenMatrix, context: Context) -> TokenMatrix:
        return self.mixed(self.mixer(x, context), x)

    def mixed(self, maps: Tensor, x: TokenMatrix) -> TokenMatrix:
        """What the part puts out if its maps are these, ``*batch heads tokens tokens``."""
        return affine(join_heads(maps @ self.values.project(x)), self.values.out, self.values.out_bias)

    def head_outputs(self, x: TokenMatrix, context: Context) -> Tensor:
        """What each head adds, ``*batch heads tokens dim``; with the output bias they sum to the part's output."""
        return self.mixer(x, context) @ self.values.project(x) @ self.values.head_outs()
