"""Masks and positions that configurations of live models tell of, for texts longer than those a tree is read from."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.masks import Causal, CausalWindow, Full, MaskRule, Window
from rankscope.network import LogBuckets, Position, RelativeBias
from rankscope.sources.place import Place

_CHANGING = ("dynamic", "longrope")


def kind_of_layer(place: Place) -> str | None:
    """The entry of ``layer_types`` for this block, None where the configuration names no kinds."""
    kinds = getattr(place.config, "layer_types", None)
    return None if kinds is None else str(kinds[place.number])


def sliding(place: Place) -> MaskRule:
    """Causal; in layers of the kind ``sliding_attention`` (all, if the configuration names no kinds) within a window.

    A sliding window of W tokens counts the token itself, ours does not.
    """
    width = getattr(place.config, "sliding_window", None)
    if width is None or kind_of_layer(place) not in (None, "sliding_attention"):
        return Causal()
    return CausalWindow(width=width - 1)


def sliding_both_ways(place: Place) -> MaskRule:
    """As ``sliding``, but with ``use_bidirectional_attention`` the tokens after the query are read as well."""
    if not getattr(place.config, "use_bidirectional_attention", False):
        return sliding(place)
    if kind_of_layer(place) != "sliding_attention":
        return Full()
    return Window(width=place.setting("sliding_window") - 1)


def relative(
    table: Callable[[Place], nn.Module], *, buckets: Callable[[Place], LogBuckets]
) -> Callable[[Place], Position]:
    """A learned bias per head and bucket of the distance: the weight of an embedding, ``buckets heads``."""

    def read(place: Place) -> Position:
        held = table(place).weight
        if not isinstance(held, Tensor):
            raise NotTranslated(f"the table of relative biases is a {type(held).__name__}, not a tensor")
        return RelativeBias(held.detach(), buckets(place))

    return read


def changing_angles(place: Place) -> str:
    """What to say of a model whose rotary angles depend on the length of the text; empty for others."""
    for module in place.model.modules():
        told: Any = getattr(module, "rope_type", None)
        kinds = told.values() if isinstance(told, dict) else (told,)
        kind = next((kind for kind in kinds if kind in _CHANGING), None)
        if kind is not None:
            return (
                f"rotary positions of the kind {kind!r} change with the length of the text; "
                "set rope_scaling to null for texts of the usual length"
            )
    return ""
