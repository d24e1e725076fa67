"""Position rules of softmax attention. One file each."""

from rankscope.network.positions.alibi import Alibi
from rankscope.network.positions.base import NoPosition, Position, distances
from rankscope.network.positions.relative import ClippedBuckets, LogBuckets, RelativeBias
from rankscope.network.positions.rotary import Rotary
from rankscope.network.positions.seen import SeenBias, SeenDistances
from rankscope.network.positions.several import HeadFactors, SeenOffsets, Several
from rankscope.network.positions.transformer_xl import Segments, TransformerXL, sinusoid

__all__ = [
    "Alibi",
    "ClippedBuckets",
    "HeadFactors",
    "LogBuckets",
    "NoPosition",
    "Position",
    "RelativeBias",
    "Rotary",
    "SeenBias",
    "SeenDistances",
    "SeenOffsets",
    "Segments",
    "Several",
    "TransformerXL",
    "distances",
    "sinusoid",
]
