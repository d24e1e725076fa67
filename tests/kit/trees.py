"""Random trees of parts for property tests: any nesting, with biases, and with parts used more than once."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from rankscope.masks import parse_mask
from rankscope.network import (
    Alibi,
    Attention,
    Chain,
    CrossAttention,
    Differential,
    Entmax,
    GatedAttention,
    Gaussian,
    HeadFactors,
    HeadGate,
    LayerNorm,
    Linear,
    LinearSums,
    Linformer,
    LogBuckets,
    Mixer,
    Mlp,
    Network,
    Norm,
    Observed,
    Opaque,
    Part,
    Position,
    RelativeBias,
    Retention,
    RMSNorm,
    Rotary,
    Scale,
    SeenBias,
    SeenOffsets,
    SequenceMap,
    Several,
    Sigmoid,
    SinkSoftmax,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TransformerXL,
    Uniform,
    ValueResidual,
    Values,
    cosine,
)

DIM, HEADS = 8, 2
RULES = ("full", "causal", "window:1", "causal-window:2", "prefix:1+causal", "bigbird:1:1:1", "blocks:2")
POSITIONS = ("none", "rotary", "interleaved", "alibi", "relative", "transformer-xl")


class Draws:
    """Standard normal draws from one fixed source."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)


def position(name: str, draw: Draws, heads: int = HEADS, dim: int = DIM) -> Position | None:
    width = dim // heads
    match name:
        case "rotary":
            return Rotary.from_base(width, base=100.0, fraction=0.5 if width % 4 == 0 else 1.0)
        case "interleaved":
            return Rotary.from_base(width, interleaved=True)
        case "alibi":
            return Alibi(draw(heads).abs())
        case "relative":
            return RelativeBias(draw(8, heads), LogBuckets(count=8, max_distance=6))
        case "seen":
            return SeenBias(draw(heads, 5, 5))
        case "offsets":
            return SeenOffsets(draw(heads, 9, width), draw(heads, 9, width))
        case "factors":
            return HeadFactors(1 + draw(heads).abs())
        case "several":
            turn = position("rotary", draw, heads, dim)
            return Several([HeadFactors(1 + draw(heads).abs()), turn, Alibi(draw(heads).abs())])
        case "transformer-xl":
            return TransformerXL(draw(dim, dim) * dim**-0.5, draw(heads, width))
    return None


def norm(kind: str, draw: Draws, dim: int = DIM) -> Norm:
    gain, bias = 1 + 0.3 * draw(dim), 0.3 * draw(dim)
    return {
        "layer": LayerNorm(gain, bias, eps=1e-5),
        "rms": RMSNorm(gain - 1, eps=1e-6, offset=1.0),
        "sphere": Sphere(),
    }[kind]


def attention(
    draw: Draws,
    *,
    rule: str = "full",
    place: str = "none",
    groups: int = HEADS,
    qk_norm: bool = False,
    softcap: float | None = None,
    heads: int = HEADS,
    dim: int = DIM,
) -> Attention:
    width = dim // heads
    mixer = Softmax(
        draw(dim, dim) * dim**-0.5,
        draw(dim, groups * width) * dim**-0.5,
        heads=heads,
        key_heads=groups,
        query_bias=0.3 * draw(dim),
        key_bias=0.3 * draw(groups * width),
        rule=parse_mask(rule),
        position=position(place, draw, heads, dim),
        query_norm=norm("rms", draw, width) if qk_norm else None,
        key_norm=norm("layer", draw, width) if qk_norm else None,
        softcap=softcap,
    )
    return Attention(mixer, values(draw, groups=groups, heads=heads, dim=dim))


MIXERS = (
    *("off-by-one", "sinks", "sigmoid", "cosine", "gaussian", "sparsemax", "entmax"),
    *("differential", "linear", "linear-sums", "retention", "head-gate"),
)
"""Mixers that take any mask; Linformer takes none."""
SPLIT_MIXERS = ("off-by-one", "sinks", "gaussian", "differential", "linear", "head-gate")
"""Those that the split pass has a rule for."""


def mixer(draw: Draws, name: str, *, rule: str = "full", groups: int = HEADS, place: str = "none") -> Mixer:
    """A mixer by its name, with biases; ``place`` is a position rule for those that take one."""
    width = DIM // HEADS

    def asked() -> dict[str, Any]:
        return {
            "query": draw(DIM, DIM) * DIM**-0.5,
            "key": draw(DIM, groups * width) * DIM**-0.5,
            "heads": HEADS,
            "key_heads": groups,
            "query_bias": 0.3 * draw(DIM),
            "key_bias": 0.3 * draw(groups * width),
            "rule": parse_mask(rule),
        }

    match name:
        case "off-by-one":
            return SinkSoftmax(**asked(), position=position(place, draw))
        case "sinks":
            return SinkSoftmax(**asked(), position=position(place, draw), sinks=draw(HEADS))
        case "sigmoid":
            return Sigmoid(**asked(), position=position(place, draw))
        case "cosine":
            return cosine(**asked(), position=position(place, draw), temperature=0.5)
        case "gaussian":
            return Gaussian(**asked())
        case "sparsemax":
            return Entmax(**asked(), position=position(place, draw))
        case "entmax":
            return Entmax(**asked(), position=position(place, draw), alpha=1.5)
        case "differential":
            return Differential(Softmax(**asked()), Softmax(**asked()), 0.5 * draw(HEADS))
        case "linear":
            return Linear(**asked())
        case "linear-sums":
            return LinearSums(**asked(), scale=0.05)
        case "retention":
            decay = torch.rand(HEADS, generator=draw.generator, dtype=torch.float64)
            return Retention(**asked(), decay=1 - 0.9 * decay, position=position(place, draw))
        case "head-gate":
            return HeadGate(Softmax(**asked()), draw(DIM, HEADS) * DIM**-0.5, 0.3 * draw(HEADS))
        case "linformer":
            press = draw(2, 9), draw(2, 9)
            return Linformer(**asked(), press_keys=press[0], press_values=press[1] / 3)
    raise ValueError(name)


def gated(draw: Draws, *, place: Any = "before", rule: str = "full") -> GatedAttention:
    """Attention with a gate for every channel, heads narrower than usual: the two places want different widths."""
    held = Values(draw(DIM, 4) * DIM**-0.5, draw(4, DIM) / 2, heads=HEADS, out_bias=0.3 * draw(DIM))
    width = 4 if place == "before" else DIM
    gate, bias = draw(DIM, width) * DIM**-0.5, 0.3 * draw(width)
    return GatedAttention(attention(draw, rule=rule).mixer, held, gate, gate_bias=bias, place=place)


def value_residual(draw: Draws, *, rule: str = "full", groups: int = HEADS) -> ValueResidual:
    """Attention that also mixes values of a memory of ``MEMORY_DIM`` channels, one for each token."""
    part = attention(draw, rule=rule, groups=groups)
    first = draw(MEMORY_DIM, groups * DIM // HEADS) * MEMORY_DIM**-0.5
    return ValueResidual(part.mixer, part.values, first)


def sequence(site: str = "mixer") -> SequenceMap:
    """A map of tokens to tokens that nobody looks into."""
    return SequenceMap(running_mean, site=site)


MEMORY_DIM = 6
WHERE = "zoo.py:31, `a.clamp(max=0.5)` (blocks.3.attn)"


def running_mean(x: Tensor) -> Tensor:
    """Every token becomes the mean of all up to it: tokens mix, in a way that no part here does."""
    count = torch.arange(1, x.shape[-2] + 1, dtype=x.dtype)
    return x.cumsum(dim=-2) / count.unsqueeze(-1)


def opaque(site: str = "ssm", **told: Any) -> Opaque:
    """A region run as it is, which mixes tokens."""
    return Opaque(running_mean, **{"site": site, "where": WHERE, "what": "a running mean", **told})


def observed(draw: Draws, **told: Any) -> Attention:
    """Attention whose maps come from clamped products, which no rule here describes."""
    form = draw(HEADS, DIM, DIM) * DIM**-0.5

    def run(x: Tensor) -> Tensor:
        logits = x.unsqueeze(-3) @ form.to(x.dtype) @ x.unsqueeze(-3).mT
        return torch.softmax(logits.clamp(max=0.5), dim=-1)

    return Attention(Observed(run, HEADS, **{"where": WHERE, "what": "a clamp", **told}), values(draw))


def cross(draw: Draws, *, place: str = "none", groups: int = HEADS, normed: bool = False) -> CrossAttention:
    """Cross-attention to a memory of ``MEMORY_DIM`` channels."""
    width = DIM // HEADS
    mixer = Softmax(
        draw(DIM, DIM) * DIM**-0.5,
        draw(MEMORY_DIM, groups * width) * MEMORY_DIM**-0.5,
        heads=HEADS,
        key_heads=groups,
        query_bias=0.3 * draw(DIM),
        key_bias=0.3 * draw(groups * width),
        position=position(place, draw),
    )
    reads = norm("layer", draw, MEMORY_DIM) if normed else None
    return CrossAttention(mixer, values(draw, groups=groups, reads=MEMORY_DIM), memory_norm=reads)


def values(
    draw: Draws, *, groups: int = HEADS, heads: int = HEADS, dim: int = DIM, reads: int | None = None
) -> Values:
    narrow, reads = groups * (dim // heads), dim if reads is None else reads
    return Values(
        draw(reads, narrow) * reads**-0.5,
        draw(dim, dim) * dim**-0.5,
        heads=heads,
        value_heads=groups,
        value_bias=0.3 * draw(narrow),
        out_bias=0.3 * draw(dim),
    )


def mlp(draw: Draws, *, activation: str = "relu", gated: bool = False, dim: int = DIM) -> Mlp:
    width = 2 * dim
    return Mlp(
        draw(dim, width) * dim**-0.5,
        draw(width, dim) * width**-0.5,
        activation=activation,
        gate=draw(dim, width) * dim**-0.5 if gated else None,
        up_bias=0.3 * draw(width),
        down_bias=0.3 * draw(dim),
        gate_bias=0.3 * draw(width) if gated else None,
    )


@st.composite
def leaves(choose: st.DrawFn, draw: Draws, also: tuple[str, ...] = ()) -> Part:
    kind = choose(st.sampled_from(["softmax", "uniform", "mlp", "norm", "scale", *also]))
    match kind:
        case "opaque":
            return opaque(choose(st.sampled_from(["ssm", "mlp", "attention"])))
        case "tokenwise":
            site = choose(st.sampled_from(["router", "mlp"]))
            return Opaque(torch.tanh, site=site, where=WHERE, what="a table", tokenwise=True)
        case "observed":
            return observed(draw)
        case "gaussian":
            return Attention(mixer(draw, "gaussian", rule=choose(st.sampled_from(RULES))), values(draw))
        case "mixer" | "split-mixer":
            names = MIXERS if kind == "mixer" else SPLIT_MIXERS
            name, rule = choose(st.sampled_from(names)), choose(st.sampled_from(RULES))
            place = choose(st.sampled_from(["none", "rotary", "alibi"]))
            groups = choose(st.sampled_from([1, HEADS]))
            return Attention(mixer(draw, name, rule=rule, groups=groups, place=place), values(draw))
        case "linformer":
            return Attention(mixer(draw, "linformer"), values(draw))
        case "gated":
            place = choose(st.sampled_from(["before", "behind"]))
            return gated(draw, place=place, rule=choose(st.sampled_from(RULES)))
        case "sequence":
            return sequence(choose(st.sampled_from(["mixer", "mlp", "attention"])))
        case "cross":
            place = choose(st.sampled_from(["none", "alibi", "relative"]))
            return cross(draw, place=place, normed=choose(st.booleans()))
        case "softmax":
            return attention(
                draw,
                rule=choose(st.sampled_from(RULES)),
                place=choose(st.sampled_from(POSITIONS)),
                groups=choose(st.sampled_from([1, HEADS])),
                qk_norm=choose(st.booleans()),
                softcap=choose(st.sampled_from([None, 2.0])),
            )
        case "uniform":
            rule = parse_mask(choose(st.sampled_from(RULES)))
            return Attention(Uniform(heads=HEADS, rule=rule), values(draw))
        case "mlp":
            activation = choose(st.sampled_from(["relu", "leaky_relu", "relu2", "gelu", "gelu_tanh", "silu"]))
            return mlp(draw, activation=activation, gated=choose(st.booleans()))
        case "norm":
            return norm(choose(st.sampled_from(["layer", "rms", "sphere"])), draw)
    return Scale(choose(st.sampled_from([0.5, -1.0, draw(DIM)])))


@st.composite
def parts(
    choose: st.DrawFn, draw: Draws, pool: list[Part], depth: int = 3, also: tuple[str, ...] = ()
) -> Part:
    """A random subtree; now and then one that already stands elsewhere in the tree."""
    if pool and choose(st.integers(0, 4)) == 0:
        return choose(st.sampled_from(pool))
    kind = choose(st.sampled_from(["leaf", "chain", "sum", "skip"])) if depth else "leaf"
    if kind == "leaf":
        part = choose(leaves(draw, also))
    elif kind == "skip":
        scale = choose(st.sampled_from([1.0, 0.0, 0.3, draw(DIM)]))
        part = Skip(choose(parts(draw, pool, depth - 1, also)), scale)
    else:
        inner = [choose(parts(draw, pool, depth - 1, also)) for _ in range(choose(st.integers(0, 3)))]
        part = Chain(inner) if kind == "chain" else Sum(inner)
    pool.append(part)
    return part


@st.composite
def networks(choose: st.DrawFn, most: int = 3, also: tuple[str, ...] = ()) -> Network:
    """A random network of one to ``most`` blocks; blocks may be shared.

    ``also`` are kinds of leaves of which not every law is true: ``opaque`` and ``observed``, which know nothing of
    padding, ``tokenwise``, which is opaque too, and ``cross``, which needs a memory of ``MEMORY_DIM`` channels; and
    ``mixer``, ``split-mixer``, ``gaussian``, ``linformer``, ``gated`` and ``sequence``, which not every question knows.
    """
    draw = Draws(choose(st.integers(0, 2**16)))
    pool: list[Part] = []
    blocks = [choose(parts(draw, pool, also=also)) for _ in range(choose(st.integers(1, most)))]
    if choose(st.booleans()):
        blocks.append(blocks[0])
    return Network(blocks, norm("layer", draw) if choose(st.booleans()) else None)


def in_range(net: Network, x: Tensor) -> bool:
    """Whether all states stay far from the ends of the floats, where no law about them holds.

    Squares and gates multiply the degree of a tree: one such MLP that stands in it five times without a norm in
    between raises its tokens to the 32nd power, and to the 243rd with both.
    """
    return all(bool((state.abs() < 1e100).all()) for state in net.states(x))


@st.composite
def paddings(choose: st.DrawFn) -> Tensor:
    """Padding anywhere: left, right, between; every text keeps at least two tokens."""
    masks = []
    for _ in range(3):
        keep = choose(st.lists(st.booleans(), min_size=6, max_size=6).filter(lambda row: sum(row) >= 2))
        masks.append(keep)
    return torch.tensor(masks)
