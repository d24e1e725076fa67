"""What is proven of a network on one batch of inputs: bounds of every layer, and what they rest on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rankscope.bounds.assumption import Assumption

FROBENIUS = "residual[frobenius,mean]"
COLUMNS = "residual[l1,mean]"
COMPOSITE = "residual[composite,mean]"
DIAMETERS = ("diameter[l1]", "diameter[l2]", "diameter[linf]")
CERTIFIED = (FROBENIUS, COMPOSITE, *DIAMETERS, COLUMNS)
"""Definitions that a certificate speaks of."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerBounds:
    """Bounds of one layer's state; every number is a natural logarithm ``*batch``, by definition.

    The statement: for the network computed with real numbers from the stored weights and input,
    ``exp(lower) <= residual of the state <= exp(upper)``.

    Args:
        layer: 0 is what enters the first block; its bounds are the residual itself.
        lower: minus infinity where nothing is proven.
        measured: what the split pass finds, between the two.
        upper: infinity where nothing is proven.
        trivial: what is true of any state of this size, the same norm of the state itself; an upper bound above it is
            vacuous, so is a lower bound of minus infinity.
        gain_lower: the block alone: by what its output's residual exceeds its input's, at least. Not for the composite.
        gain_upper: the same, at most.
        lower_by: how the block's lower gain was found, one of ``methods``, as an index ``*batch``.
        upper_by: the same for the upper gain.
        methods: names that ``lower_by`` and ``upper_by`` point to.
        failed: what kept the bounds of this block from saying more, the first one first.
        error: largest distance of a computed token from the exact one, at most, ``*batch``; infinity once lost.
    """

    layer: int
    lower: Mapping[str, Tensor]
    measured: Mapping[str, Tensor]
    upper: Mapping[str, Tensor]
    trivial: Mapping[str, Tensor]
    gain_lower: Mapping[str, Tensor] = field(default_factory=dict)
    gain_upper: Mapping[str, Tensor] = field(default_factory=dict)
    lower_by: Mapping[str, Tensor] = field(default_factory=dict)
    upper_by: Mapping[str, Tensor] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    failed: tuple[Assumption, ...] = ()
    error: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Certificate:
    """Bounds of layers 0 .. L.

    Args:
        layers: one for each state.
        notes: what holds of the whole, such as a mask whose parts never meet.
    """

    layers: tuple[LayerBounds, ...]
    notes: tuple[str, ...] = ()
