"""Softmax attention of live models as a part of the tree."""

from collections.abc import Callable
from typing import Literal

from rankscope.masks import Full, MaskRule
from rankscope.network import Attention, NoPosition, Norm, Position, Softmax, Values
from rankscope.sources.trees.maps import ReadMaps
from rankscope.sources.trees.norms import norm
from rankscope.sources.trees.place import Builder, Place

ReadNumber = Callable[[Place], float | None]


def config_heads(*names: str) -> Callable[[Place], int]:
    """The number of heads from the configuration, under the first of these names that it has."""
    return lambda place: int(place.setting(*names))


HEADS = config_heads("num_attention_heads")
KEY_HEADS = config_heads("num_key_value_heads", "num_attention_heads")


def counted(path: str) -> Callable[[Place], int]:
    """The number of heads that the module at a path in the block holds: ``self_attn.num_heads``."""
    read = attribute(path)
    return lambda place: int(read(place))  # type: ignore[arg-type]  # a module that counts heads has some


def full(place: Place) -> MaskRule:
    """Every token reads every token."""
    return Full()


def no_position(place: Place) -> Position:
    """Positions do not enter the attention: they are in the embeddings."""
    return NoPosition()


def nothing(place: Place) -> None:
    """The default of the tree: ``head_dim ** -0.5`` as scale, no soft-cap."""


def attribute(path: str) -> ReadNumber:
    """A number that the module at a path in the block holds: ``self_attn.scaling``."""
    at, _, name = path.rpartition(".")
    return lambda place: getattr(place.part(at), name)


def softmax(
    maps: ReadMaps,
    *,
    heads: Callable[[Place], int] = HEADS,
    key_heads: Callable[[Place], int] | None = None,
    rule: Callable[[Place], MaskRule] = full,
    position: Callable[[Place], Position] = no_position,
    scale: ReadNumber = nothing,
    softcap: ReadNumber = nothing,
    query_norm: str = "",
    key_norm: str = "",
    normed: Literal["head", "all"] = "head",
    norm_offset: float = 0.0,
) -> Builder:
    """Attention from its maps; norms of queries and keys are used where the block has them."""

    def build(place: Place) -> Attention:
        count = heads(place)
        key_count = count if key_heads is None else key_heads(place)
        held = maps(place, count)
        mixer = Softmax(
            held.query.matrix,
            held.key.matrix,
            heads=count,
            key_heads=key_count,
            query_bias=held.query.bias,
            key_bias=held.key.bias,
            rule=rule(place),
            position=position(place),
            query_norm=_norm(place, query_norm, norm_offset),
            key_norm=_norm(place, key_norm, norm_offset),
            normed=normed,
            scale=scale(place),
            softcap=softcap(place),
            per_head=held.per_head,
        )
        values = Values(
            held.value.matrix,
            held.out.matrix,
            heads=count,
            value_heads=key_count,
            value_bias=held.value.bias,
            out_bias=held.out.bias,
            per_head=held.per_head,
        )
        return Attention(mixer, values)

    return build


def _norm(place: Place, path: str, offset: float) -> Norm | None:
    module = place.maybe(path)
    return None if module is None else norm(module, offset=offset)
