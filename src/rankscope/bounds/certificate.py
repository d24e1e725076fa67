"""What is proven of a network on one batch of inputs: bounds of every layer, and what they rest on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
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
        measured_floor: the floor of that, estimated from a perturbed run; infinity where nothing is known of it.
        upper: infinity where nothing is proven.
        trivial: what is true of any state of this size, the same norm of the state itself; an upper bound above it is
            vacuous, so is a lower bound of minus infinity.
        gain_lower: the block alone: by what its output's residual exceeds its input's, at least. Not for the composite.
        gain_upper: the same, at most.
        lower_by: how the block's lower gain was found, one of ``methods``, as an index ``*batch``.
        upper_by: the same for the upper gain.
        methods: names that ``lower_by`` and ``upper_by`` point to.
        no_lower: what kept the lower bound of this block from saying more, the first one first.
        no_upper: the same of the upper bound.
        enclosed_lower: of the state as it was computed, minus how far rounding may have moved it: what is proven of
            this input by running the network, and explains nothing.
        enclosed_upper: the same, plus.
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
    no_lower: tuple[Assumption, ...] = ()
    no_upper: tuple[Assumption, ...] = ()
    enclosed_lower: Mapping[str, Tensor] = field(default_factory=dict)
    enclosed_upper: Mapping[str, Tensor] = field(default_factory=dict)
    error: Tensor | None = None
    measured_floor: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Assumption, ...]:
        """What kept either bound from saying more."""
        return (*self.no_lower, *self.no_upper)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Certificate:
    """Bounds of layers 0 .. L.

    Args:
        layers: one for each state.
        notes: what holds of the whole, such as a mask whose parts never meet.
    """

    layers: tuple[LayerBounds, ...]
    notes: tuple[str, ...] = ()


def side_by_side(layers: Sequence[LayerBounds]) -> LayerBounds:
    """The same layer of several texts as one batch."""
    first = layers[0]

    def stacked(name: str) -> dict[str, Tensor]:
        held = [getattr(one, name) for one in layers]
        return {key: torch.stack([one[key] for one in held]) for key in held[0]}

    return LayerBounds(
        layer=first.layer,
        lower=stacked("lower"),
        measured=stacked("measured"),
        upper=stacked("upper"),
        trivial=stacked("trivial"),
        gain_lower=stacked("gain_lower"),
        gain_upper=stacked("gain_upper"),
        lower_by=stacked("lower_by"),
        upper_by=stacked("upper_by"),
        methods=first.methods,
        no_lower=_failed_somewhere([one.no_lower for one in layers]),
        no_upper=_failed_somewhere([one.no_upper for one in layers]),
        enclosed_lower=stacked("enclosed_lower"),
        enclosed_upper=stacked("enclosed_upper"),
        error=torch.stack([one.error for one in layers if one.error is not None]),
        measured_floor=stacked("measured_floor"),
    )


def _failed_somewhere(texts: Sequence[tuple[Assumption, ...]]) -> tuple[Assumption, ...]:
    """What failed in some text; in the others it holds, and its number is not known."""
    names = dict.fromkeys(one.name for failed in texts for one in failed)
    found = []
    for name in names:
        own = [next((one for one in failed if one.name == name), None) for failed in texts]
        first = next(one for one in own if one is not None)
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        found.append(
            Assumption(
                name=name,
                says=first.says,
                relation=first.relation,
                holds=torch.stack([torch.tensor(True) if one is None else one.holds for one in own]),
                value=torch.stack([nothing if one is None else one.value for one in own]),
                limit=torch.stack([nothing if one is None else one.limit for one in own]),
            )
        )
    return tuple(found)
