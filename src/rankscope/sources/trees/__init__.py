"""Tools that families build their trees with: maps, norms, MLPs, attention, and how a block puts them together."""

from rankscope.sources.trees.arrange import normed_skip, parallel, post, pre, sandwich
from rankscope.sources.trees.attention import (
    HEADS,
    KEY_HEADS,
    attribute,
    config_heads,
    counted,
    full,
    softmax,
)
from rankscope.sources.trees.choices import either, refuse
from rankscope.sources.trees.fused import cut, gated_halves, stacked
from rankscope.sources.trees.kinds import kind_of_layer, rotary_by_kind, sliding_both_ways, some_layers
from rankscope.sources.trees.maps import Linear, Projections, interleaved, linear, packed, separate, thirds
from rankscope.sources.trees.mlps import gated, mlp, plain, whole
from rankscope.sources.trees.norms import norm
from rankscope.sources.trees.place import Builder, Place
from rankscope.sources.trees.positions import (
    causal,
    causal_if_decoder,
    relative,
    rotary,
    rotary_from,
    sliding,
)

__all__ = [
    "HEADS",
    "KEY_HEADS",
    "Builder",
    "Linear",
    "Place",
    "Projections",
    "attribute",
    "causal",
    "causal_if_decoder",
    "config_heads",
    "counted",
    "cut",
    "either",
    "full",
    "gated",
    "gated_halves",
    "interleaved",
    "kind_of_layer",
    "linear",
    "mlp",
    "norm",
    "normed_skip",
    "packed",
    "parallel",
    "plain",
    "post",
    "pre",
    "refuse",
    "relative",
    "rotary",
    "rotary_by_kind",
    "rotary_from",
    "sandwich",
    "separate",
    "sliding",
    "sliding_both_ways",
    "softmax",
    "some_layers",
    "stacked",
    "thirds",
    "whole",
]
