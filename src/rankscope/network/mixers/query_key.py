"""What mixers share that compare queries with keys: the weights, a position rule, a mask rule, the logits.

Logits of head h: ``a_ij = scale * q_i . k_j + position_ij``, then the soft-cap ``c tanh(a / c)`` if there is one. Keys
are those of the tokens themselves, or of a memory that is given. What becomes of the logits is the mixer's own.
"""

from typing import Literal, Required, TypedDict

import torch
from torch import Tensor

from rankscope.core.types import AttentionMap, TokenMatrix
from rankscope.errors import ConfigError
from rankscope.masks import Full, MaskRule
from rankscope.network.context import Context
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.network.masking import allowed_keys
from rankscope.network.mixers.base import Mixer
from rankscope.network.norms import Norm
from rankscope.network.parts import affine, held_bias, held_matrix, weight
from rankscope.network.positions import NoPosition, Position
from rankscope.network.positions.base import memory_distances


class Asked(TypedDict, total=False):
    """The arguments of ``QueryKey`` besides its two matrices, for mixers that hand them on."""

    heads: Required[int]
    key_heads: int | None
    query_bias: Tensor | None
    key_bias: Tensor | None
    rule: MaskRule | None
    position: Position | None
    query_norm: Norm | None
    key_norm: Norm | None
    normed: Literal["head", "all"]
    scale: float | None
    softcap: float | None
    per_head: bool


class QueryKey(Mixer):
    """A mixer whose maps are made of scaled query-key products.

    Args:
        query: ``*seeds dim (heads head_dim)``.
        key: ``*seeds dim (key_heads head_dim)``; each key head serves ``heads / key_heads`` consecutive heads.
        rule: which keys each query may read.
        position: how positions enter the logits.
        query_norm: norm of the queries (and ``key_norm`` of the keys) before positions enter.
        normed: whether these norms run over each head by itself or over all heads at once.
        scale: factor on the products, ``head_dim ** -0.5`` by default.
        softcap: logits become ``softcap * tanh(logits / softcap)``.
        per_head: query and key are ``*seeds heads dim head_dim`` and their biases ``*seeds heads head_dim``, as
            views of weights that keep the heads apart. The attributes are the joined matrices all the same.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        *,
        heads: int,
        key_heads: int | None = None,
        query_bias: Tensor | None = None,
        key_bias: Tensor | None = None,
        rule: MaskRule | None = None,
        position: Position | None = None,
        query_norm: Norm | None = None,
        key_norm: Norm | None = None,
        normed: Literal["head", "all"] = "head",
        scale: float | None = None,
        softcap: float | None = None,
        per_head: bool = False,
    ) -> None:
        super().__init__()
        self.per_head = per_head
        for name, value in (
            ("query", query),
            ("key", key),
            ("query_bias", query_bias),
            ("key_bias", key_bias),
        ):
            self.register_parameter(name, weight(value))
        self.heads = heads
        self.key_heads = heads if key_heads is None else key_heads
        self.head_dim = self.query.shape[-1] // heads
        _check_widths(self)
        self.rule = Full() if rule is None else rule
        self.position = NoPosition() if position is None else position
        self.query_norm, self.key_norm, self.normed = query_norm, key_norm, normed
        self.scale = self.head_dim**-0.5 if scale is None else scale
        self.softcap = softcap

    @property
    def query(self) -> Tensor:
        """``*seeds dim (heads head_dim)``."""
        return held_matrix(self, "query")

    @property
    def key(self) -> Tensor:
        """``*seeds dim (key_heads head_dim)``."""
        return held_matrix(self, "key")

    @property
    def query_bias(self) -> Tensor | None:
        """``*seeds (heads head_dim)``."""
        return held_bias(self, "query_bias")

    @property
    def key_bias(self) -> Tensor | None:
        """``*seeds (key_heads head_dim)``."""
        return held_bias(self, "key_bias")

    def pieces(self) -> tuple[object, ...]:
        """What the logits are made of besides weights."""
        norms = (self.query_norm, self.key_norm)
        return (self.position, *(norm for norm in norms if norm is not None))

    def queries_and_keys(
        self, x: TokenMatrix, context: Context, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys ``*batch heads tokens head_dim``, normed, before positions enter."""
        query = self._heads(affine(x, self.query, self.query_bias), self.heads, self.query_norm)
        read = x if memory is None else memory
        key = self._heads(affine(read, self.key, self.key_bias), self.key_heads, self.key_norm)
        return query, repeat_groups(key, self.heads)

    def logits(self, x: TokenMatrix, context: Context, memory: Tensor | None = None) -> AttentionMap:
        """Logits of every query and key, before the mask."""
        query, key = self.queries_and_keys(x, context, memory)
        if memory is None:
            rotated, turned = self.position.rotate(query, key, context)
            bias = self.position.bias(query, context, self.scale)
        else:
            rotated, turned = query, key
            bias = self.position.at_distances(memory_distances(query, memory, context), query.dtype)
        logits = (rotated * self.scale) @ turned.transpose(-1, -2)
        if bias is not None:
            logits = logits + bias
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def allowed(self, x: TokenMatrix, context: Context) -> Tensor | None:
        """Which keys each query may read, ``tokens tokens`` or ``*batch 1 tokens tokens``; None for all."""
        return allowed_keys(self.rule, x.shape[-2], context, x.device)

    def _heads(self, flat: Tensor, heads: int, norm: Norm | None) -> Tensor:
        if norm is None:
            return split_heads(flat, heads)
        if self.normed == "all":
            return split_heads(norm(flat), heads)
        return norm.per_head(split_heads(flat, heads))


def _check_widths(mixer: QueryKey) -> None:
    width, key_width = mixer.query.shape[-1], mixer.key.shape[-1]
    if width % mixer.heads or mixer.heads % mixer.key_heads or key_width != mixer.key_heads * mixer.head_dim:
        raise ConfigError(
            f"queries of width {width} in {mixer.heads} heads do not fit keys of width {key_width} in "
            f"{mixer.key_heads} heads; heads must divide the width, key heads the heads, and widths per head agree"
        )
