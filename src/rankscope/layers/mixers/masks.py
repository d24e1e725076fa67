"""Uniform rows over what a mask allows: softmax attention at consensus, whatever its weights."""

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.kinds import LayerKind, register
from rankscope.layers.mixers.logits import may_read
from rankscope.layers.mixers.weights import Maps, map_kind
from rankscope.masks import parse_mask

PREFIX = "mask:"
"""What stands before a mask where it is the name of a layer."""

LISTED = (
    "causal",
    "window:2",
    "causal-window:2",
    "prefix:2+causal",
    "longformer:2:1",
    "longformer:2:2",
    "longformer:2:4",
    "bigbird:1:1:2",
    "dilated:1:1+dilated:1:2+dilated:1:4+dilated:1:8",
    "dilated:2:2",
    "strided:8",
    "blocks:2",
)
"""Masks that have a row."""


def mask_layer(text: str) -> LayerKind:
    """The layer that averages what a mask lets every token read; the mask is in the grammar of masks.

    >>> mask_layer("prefix:2+causal").name
    'mask:prefix:2+causal'
    """
    rule = parse_mask(text)

    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        allowed = may_read(rule, tokens).double()
        map_: Tensor = (allowed / allowed.sum(dim=-1, keepdim=True))[None]
        return lambda x: map_

    return map_kind(
        f"{PREFIX}{text}",
        "masks",
        f"Every token becomes the mean of the tokens that the mask {text} lets it read.",
        maps_for,
        ref=Ref(key="wu2024", where="Section 3", differs="uniform weights"),
    )


for _text in LISTED:
    register(mask_layer(_text))
