"""Mask and position rules that differ from layer to layer."""

from collections.abc import Callable

from rankscope.masks import Full, MaskRule, Window
from rankscope.network import NoPosition, Position
from rankscope.sources.trees.place import Place
from rankscope.sources.trees.positions import rotary_from, sliding


def kind_of_layer(place: Place) -> str | None:
    """The entry of ``layer_types`` for this block, None where the configuration names no kinds."""
    kinds = getattr(place.config, "layer_types", None)
    return None if kinds is None else str(kinds[place.number])


def rotary_by_kind(path: str = "rotary_emb") -> Callable[[Place], Position]:
    """The frequencies of a table that keeps one set for each kind of layer: ``sliding_attention_inv_freq``."""
    return lambda place: rotary_from(place.shared(path), f"{kind_of_layer(place)}_")


def some_layers(
    test: Callable[[Place], object], position: Callable[[Place], Position]
) -> Callable[[Place], Position]:
    """A position rule for the layers where a test holds; no positions in the others."""
    return lambda place: position(place) if test(place) else NoPosition()


def sliding_both_ways(place: Place) -> MaskRule:
    """As ``sliding``, but with ``use_bidirectional_attention`` the tokens after the query are read as well."""
    if not getattr(place.config, "use_bidirectional_attention", False):
        return sliding(place)
    if kind_of_layer(place) != "sliding_attention":
        return Full()
    return Window(width=place.setting("sliding_window") - 1)
