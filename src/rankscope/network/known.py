"""What interpreters of the tree know by its exact class, besides the parts that each has rules for."""

from rankscope.core.interpreter import Interpreter
from rankscope.network.activations import Activation
from rankscope.network.attention import Values
from rankscope.network.mixers import (
    Differential,
    Entmax,
    Fixed,
    Gaussian,
    HeadGate,
    Linear,
    LinearSums,
    Linformer,
    Observed,
    Retention,
    Sigmoid,
    SinkSoftmax,
    Softmax,
    Uniform,
)
from rankscope.network.norms import LayerNorm, RMSNorm, Sphere
from rankscope.network.parts import Part, every_part
from rankscope.network.positions import (
    Alibi,
    HeadFactors,
    NoPosition,
    RelativeBias,
    Rotary,
    SeenBias,
    SeenOffsets,
    Segments,
    Several,
    TransformerXL,
)
from rankscope.network.tree import Network

NORMS = (LayerNorm, RMSNorm, Sphere)

PIECES = (
    *(Values, Softmax, Uniform, Fixed, Activation, *NORMS),
    *(NoPosition, Rotary, Alibi, RelativeBias, TransformerXL, Segments, SeenBias),
    *(SeenOffsets, HeadFactors, Several),
)
"""What parts are made of; mask rules are not among them, which answer every question by their own matrix."""


HELD_MAPS = (
    *(Observed, Gaussian, Entmax, Linear),
    *(SinkSoftmax, Sigmoid, Differential, LinearSums, Linformer, Retention, HeadGate),
)
"""Mixers whose maps can be run and held by whoever asks for no more of a mixer; rows of the second line do not sum to
one."""


def interpreter(name: str, hint: str = "") -> Interpreter:
    """A new interpreter, without rules yet, that knows what parts can be made of."""
    found = Interpreter(name, hint)
    found.admit(*PIECES, Network)
    return found


def check_tree(asks: Interpreter, *trees: Network | Part) -> None:
    """Raise, before any work is done, if an interpreter has no rule for something in the blocks of these trees."""
    for tree in trees:
        if isinstance(tree, Network):
            asks.check(tree)
            check_tree(asks, *tree.blocks)
        else:
            asks.check(*every_part(tree))
