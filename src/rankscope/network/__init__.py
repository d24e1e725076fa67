"""The tree of parts: what a transformer is made of, how one is built at random, run, and rewritten.

Axis letters: b batch, h head, i query token, j key token, d e model dim.
"""

from rankscope.network.activations import ACTIVATIONS, Activation
from rankscope.network.attention import Attention, SelfAttention, Values
from rankscope.network.context import Context
from rankscope.network.cross import CrossAttention
from rankscope.network.cures import (
    equal_blocks,
    redrawn,
    with_deepnorm,
    with_layerscale,
    with_qk_norm,
    with_skips,
    with_unit_gains,
    without_biases,
)
from rankscope.network.factory import build, gaussian_tokens, generators, stack
from rankscope.network.gated import GatedAttention
from rankscope.network.initial import INITS, Init
from rankscope.network.mixers import (
    Differential,
    Entmax,
    Fixed,
    Gaussian,
    HeadGate,
    Linear,
    LinearSums,
    Linformer,
    Mixer,
    Observed,
    QueryKey,
    Retention,
    Sigmoid,
    SinkSoftmax,
    Softmax,
    Uniform,
    cosine,
)
from rankscope.network.mlp import Mlp
from rankscope.network.norms import LayerNorm, Norm, RMSNorm, Sphere
from rankscope.network.opaque import Opaque
from rankscope.network.parts import Chain, Part, Scale, Skip, Sum, TokenMap
from rankscope.network.placement import PLACEMENTS, placement_of, with_placement
from rankscope.network.positions import (
    Alibi,
    ClippedBuckets,
    HeadFactors,
    LogBuckets,
    NoPosition,
    Position,
    RelativeBias,
    Rotary,
    SeenBias,
    SeenDistances,
    SeenOffsets,
    Segments,
    Several,
    TransformerXL,
)
from rankscope.network.positions.grammar import POSITIONS
from rankscope.network.rewrites import (
    PAPER_KINDS,
    mlp_as_activation,
    only_in,
    paper_variant,
    with_branch_scale,
    with_temperature,
    without_attention_skip,
)
from rankscope.network.sequence import SequenceMap
from rankscope.network.spec import Spec
from rankscope.network.stages import Stage, stages
from rankscope.network.surgery import VARIANTS, variant, with_mask, with_skip_scale, without
from rankscope.network.tree import Network, Trace
from rankscope.network.value_residual import ValueResidual

PARTS: dict[str, type] = {
    part.__name__: part
    for part in (
        *(Network, Chain, Sum, Skip, Scale, Attention, Softmax, Uniform, Fixed, Observed),
        *(
            SinkSoftmax,
            Sigmoid,
            Gaussian,
            Entmax,
            Differential,
            Linear,
            LinearSums,
            Linformer,
            Retention,
            HeadGate,
        ),
        *(GatedAttention, ValueResidual, SequenceMap),
        *(CrossAttention, Mlp, LayerNorm, RMSNorm, Sphere, TokenMap, Opaque),
        *(NoPosition, Rotary, Alibi, RelativeBias, TransformerXL, Segments, SeenBias),
        *(SeenOffsets, HeadFactors, Several),
    )
}
"""Everything a tree can be made of, by name."""

__all__ = [
    "ACTIVATIONS",
    "INITS",
    "PAPER_KINDS",
    "PARTS",
    "PLACEMENTS",
    "POSITIONS",
    "VARIANTS",
    "Activation",
    "Alibi",
    "Attention",
    "Chain",
    "ClippedBuckets",
    "Context",
    "CrossAttention",
    "Differential",
    "Entmax",
    "Fixed",
    "GatedAttention",
    "Gaussian",
    "HeadFactors",
    "HeadGate",
    "Init",
    "LayerNorm",
    "Linear",
    "LinearSums",
    "Linformer",
    "LogBuckets",
    "Mixer",
    "Mlp",
    "Network",
    "NoPosition",
    "Norm",
    "Observed",
    "Opaque",
    "Part",
    "Position",
    "QueryKey",
    "RMSNorm",
    "RelativeBias",
    "Retention",
    "Rotary",
    "Scale",
    "SeenBias",
    "SeenDistances",
    "SeenOffsets",
    "Segments",
    "SelfAttention",
    "SequenceMap",
    "Several",
    "Sigmoid",
    "SinkSoftmax",
    "Skip",
    "Softmax",
    "Spec",
    "Sphere",
    "Stage",
    "Sum",
    "TokenMap",
    "Trace",
    "TransformerXL",
    "Uniform",
    "ValueResidual",
    "Values",
    "build",
    "cosine",
    "equal_blocks",
    "gaussian_tokens",
    "generators",
    "mlp_as_activation",
    "only_in",
    "paper_variant",
    "placement_of",
    "redrawn",
    "stack",
    "stages",
    "variant",
    "with_branch_scale",
    "with_deepnorm",
    "with_layerscale",
    "with_mask",
    "with_placement",
    "with_qk_norm",
    "with_skip_scale",
    "with_skips",
    "with_temperature",
    "with_unit_gains",
    "without",
    "without_attention_skip",
    "without_biases",
]
