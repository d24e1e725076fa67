"""Mask and position rules of live models."""

from collections.abc import Callable

from torch import Tensor, nn

from rankscope.errors import NotTranslated
from rankscope.masks import Causal, CausalWindow, Full, MaskRule
from rankscope.network import LogBuckets, Position, RelativeBias, Rotary
from rankscope.sources.trees.place import Place


def causal(place: Place) -> MaskRule:
    """Each token reads itself and those before it; every token, if the configuration says ``is_causal=False``."""
    return Causal() if getattr(place.config, "is_causal", True) else Full()


def causal_if_decoder(place: Place) -> MaskRule:
    """Causal where the configuration says ``is_decoder=True``; else every token reads every token."""
    return Causal() if getattr(place.config, "is_decoder", False) else Full()


def sliding(place: Place) -> MaskRule:
    """Causal; in layers of the kind ``sliding_attention`` (all, if the configuration names no kinds) within a window.

    A sliding window of W tokens counts the token itself, ours does not.
    """
    width = getattr(place.config, "sliding_window", None)
    kinds = getattr(place.config, "layer_types", None)
    if width is None or (kinds is not None and kinds[place.number] != "sliding_attention"):
        return causal(place)
    return CausalWindow(width=width - 1)


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


def rotary(path: str = "rotary_emb", *, interleaved: bool = False) -> Callable[[Place], Position]:
    """The frequencies that the model's own table holds as ``inv_freq``, with its factor ``attention_scaling``."""

    def read(place: Place) -> Position:
        module = place.shared(path)
        return rotary_from(module, interleaved=interleaved)

    return read


def rotary_from(module: object, prefix: str = "", *, interleaved: bool = False) -> Rotary:
    """The rotary rule of a module that holds ``inv_freq``; names may start with the kind of layer."""
    kind = getattr(module, f"{prefix}rope_type", None) or getattr(module, "rope_type", "default")
    kind = kind.get(prefix.rstrip("_"), "default") if isinstance(kind, dict) else kind
    if kind in ("dynamic", "longrope"):
        raise NotTranslated(
            f"rotary positions of the kind {kind!r} change with the length of the text; "
            "set rope_scaling to null for texts of the usual length"
        )
    frequencies = getattr(module, f"{prefix}inv_freq", None)
    if not isinstance(frequencies, Tensor):
        raise NotTranslated(f"{type(module).__name__} holds no frequencies under {prefix}inv_freq")
    gain = getattr(module, f"{prefix}attention_scaling", 1.0)
    return Rotary(frequencies.detach(), interleaved=interleaved, gain=float(gain))
