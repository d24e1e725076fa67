"""Softmax attention: its heads, masks, positions and kernels, and what stands around its map."""

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.kinds import LayerKind, register
from rankscope.layers.layer import Mixer
from rankscope.layers.mixers.logits import draw_logits, masked, may_read, order, products, queries_and_keys
from rankscope.layers.mixers.weights import (
    MapLayer,
    Maps,
    MapsFor,
    gaussian,
    head_count,
    map_kind,
    normal,
    orthogonal,
    value_maps,
)
from rankscope.masks import MaskRule, Window, parse_mask
from rankscope.network.context import Context
from rankscope.network.positions import Alibi, Rotary

VASWANI = "Vaswani et al. Attention is all you need. NeurIPS 2017, arXiv:1706.03762"
OWN_SHARE = 0.5
"""How much of the values is a layer's own where the rest is that of the first layer."""


def softmax(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    """Softmax of scaled products, one head."""
    logits = draw_logits(generator, dim)
    return lambda x: logits(x).softmax(dim=-1)


def _softmax_heads(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    logits = draw_logits(generator, dim, head_count(dim))
    return lambda x: logits(x).softmax(dim=-1)


def _under(rule: MaskRule) -> MapsFor:
    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        logits, allowed = draw_logits(generator, dim), may_read(rule, tokens)
        return lambda x: masked(logits(x), allowed).softmax(dim=-1)

    return maps_for


def _alibi(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    heads = head_count(dim)
    logits = draw_logits(generator, dim, heads)
    bias = -Alibi.geometric(heads).slopes.detach()[:, None, None] * order(tokens).abs()
    return lambda x: (logits(x) + bias).softmax(dim=-1)


def _rotary(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    pairs = dim // 2
    turns = Rotary(10_000.0 ** -(torch.arange(pairs, dtype=torch.float64) / max(pairs, 1)))
    return lambda x: products(*turns.rotate(query(x), key(x), Context())).softmax(dim=-1)


def _cosine(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)

    def maps(x: Tensor) -> Tensor:
        q, k = (torch.nn.functional.normalize(one(x), dim=-1) for one in (query, key))
        return (10 * q @ k.mT).softmax(dim=-1)

    return maps


def _gaussian(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    distances = _draw_distances(generator, dim)
    return lambda x: (-distances(x)).softmax(dim=-1)


def _gaussian_unnormalised(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    distances = _draw_distances(generator, dim)
    return lambda x: (-distances(x)).exp() / tokens


def _draw_distances(generator: torch.Generator, dim: int) -> Maps:
    """A rule of tokens to ``|q_i - k_j|^2 / (2 sqrt(dim))``, as exact for close as for distant pairs."""
    query, key = queries_and_keys(generator, dim)

    def distances(x: Tensor) -> Tensor:
        apart = query(x)[:, :, None] - key(x)[:, None]
        found: Tensor = apart.square().sum(dim=-1) / (2 * dim**0.5)
        return found

    return distances


def _gated_output(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    mixed = MapLayer(maps=softmax(tokens, dim, generator), values=value_maps(generator, dim, 1))
    gate = gaussian(generator, dim, dim)
    return lambda x: mixed(x) * (x @ gate).sigmoid()


def _value_residual(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    maps, value = softmax(tokens, dim, generator), orthogonal(generator, dim)
    first = normal(generator, tokens, dim) @ orthogonal(generator, dim)
    return lambda x: (maps(x) @ (OWN_SHARE * x @ value + (1 - OWN_SHARE) * first))[0]


def _cross(tokens: int, dim: int, generator: torch.Generator) -> Mixer:
    query, key = queries_and_keys(generator, dim)
    memory = normal(generator, max(2, tokens // 2), dim)
    value = memory @ orthogonal(generator, dim)
    keys = key(memory)
    return lambda x: (products(query(x), keys).softmax(dim=-1) @ value)[0]


for _kind in (
    map_kind(
        "softmax",
        "attention",
        "Softmax attention with one head: every token becomes a mean of all tokens, weighted by products.",
        softmax,
        ref=Ref(key=VASWANI, where="equation 1"),
    ),
    map_kind(
        "softmax-heads",
        "attention",
        "Softmax attention with four heads, added up.",
        _softmax_heads,
        heads=head_count,
        ref=Ref(key=VASWANI, where="Section 3.2.2"),
    ),
    map_kind(
        "causal",
        "attention",
        "Softmax attention in which a token reads itself and those before it.",
        _under(parse_mask("causal")),
        ref=Ref(key=VASWANI, where="Section 3.2.3"),
    ),
    map_kind(
        "window",
        "attention",
        "Softmax attention in which a token reads those at most four places away.",
        _under(Window(width=4)),
        ref=Ref(key="Beltagy, Peters, Cohan. Longformer. 2020, arXiv:2004.05150", where="Section 3.1"),
    ),
    map_kind(
        "alibi",
        "attention",
        "Softmax attention with four heads whose logits fall linearly with the distance, both ways.",
        _alibi,
        heads=head_count,
        ref=Ref(
            key="Press, Smith, Lewis. Train short, test long. ICLR 2022, arXiv:2108.12409",
            where="Section 3",
            differs="without the causal mask",
        ),
    ),
    map_kind(
        "rotary",
        "attention",
        "Softmax attention whose queries and keys turn by angles that grow with the position.",
        _rotary,
        ref=Ref(key="Su et al. RoFormer. 2021, arXiv:2104.09864", where="Section 3.2"),
    ),
    map_kind(
        "cosine",
        "attention",
        "Softmax attention whose logits are ten times the cosine of query and key.",
        _cosine,
        ref=Ref(
            key="Liu et al. Swin Transformer V2. CVPR 2022, arXiv:2111.09883",
            where="scaled cosine attention",
            differs="the factor is fixed",
        ),
    ),
    map_kind(
        "gaussian-kernel",
        "attention",
        "Attention with weights exp(-|q - k|^2 / 2 sqrt(dim)), divided by their sum over the keys.",
        _gaussian,
        ref=Ref(key="Tsai et al. Transformer dissection. EMNLP 2019, arXiv:1908.11775", where="RBF kernel"),
    ),
    map_kind(
        "gaussian-unnormalised",
        "attention",
        "Attention with weights exp(-|q - k|^2 / 2 sqrt(dim)) over the number of tokens: rows do not sum to one.",
        _gaussian_unnormalised,
        ref=Ref(
            key="Lu et al. SOFT: softmax-free transformer. NeurIPS 2021, arXiv:2110.11945",
            where="softmax-free self-attention",
            differs="queries and keys are two projections; divided by the number of tokens",
        ),
    ),
    LayerKind(
        name="gated-output",
        group="attention",
        sentence="Softmax attention whose output is multiplied, entry by entry, by a sigmoid of the token itself.",
        make=_gated_output,
        maps=softmax,
        ref=Ref(
            key="Qiu et al. Gated attention for large language models. NeurIPS 2025, arXiv:2505.06708",
            where="gates after attention",
            differs="after the output map",
        ),
    ),
    LayerKind(
        name="value-residual",
        group="attention",
        sentence="Softmax attention whose values are half its own and half those of the first layer, which are fixed.",
        make=_value_residual,
        maps=softmax,
        ref=Ref(key="Zhou et al. Value residual learning. ACL 2025, arXiv:2410.17897", where="ResFormer"),
    ),
    LayerKind(
        name="cross-attention",
        group="attention",
        sentence="Softmax attention of every token to a fixed memory, so that tokens do not see each other.",
        make=_cross,
        ref=Ref(key=VASWANI, where="Section 3.2.3"),
    ),
):
    register(_kind)
