"""What a row of the atlas is: a layer by its name, with how it is made for any number of tokens.

A layer is a plain function of tokens, ``f(x)`` with x and f(x) of shape ``tokens x dim`` in float64: deterministic and
without state, so that two calls with equal tokens give equal tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from rankscope.core.refs import Ref
from rankscope.core.registry import Registry
from rankscope.layers.layer import Mixer

MakeMixer = Callable[[int, int, torch.Generator], Mixer]
"""How a layer is made: for so many tokens of such a dim, with weights drawn from the generator."""

Group = Literal["attention", "masks", "efficient attention", "recurrent", "state space", "graphs", "others"]
"""What stands together in the atlas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerKind:
    """One kind of layer. Equal arguments and generators in equal states make equal layers."""

    name: str
    """What it is asked for by: "softmax", "mask:prefix:2+causal", "gcn@karate"."""

    group: Group
    """What it stands with in the atlas."""

    sentence: str
    """What it computes, in one sentence."""

    make: MakeMixer
    """The layer itself."""

    maps: MakeMixer | None = None
    """Of a layer that is linear in its values: made like the layer, tokens to its maps ``heads x tokens x tokens``."""

    tokens: int | None = None
    """The only number of tokens there is, where the layer is one of a graph."""

    ref: Ref | None = None
    """Where it comes from."""


LAYERS: Registry[LayerKind] = Registry("mixer")


def register(kind: LayerKind) -> LayerKind:
    """Enter a kind of layer under its name; a name is taken once."""
    return LAYERS.register(kind.name, kind)
