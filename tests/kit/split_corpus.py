"""Trees that are hard for the split pass, by kind and seed: small, deterministic, every kind with one difficulty.

A kind is a function from random draws to a network and its tokens. All numbers of a tree are floats that count as
exact. Maps of fixed mixers are multiples of 1/64, so that their rows sum to one exactly.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.masks import ExplicitMask, parse_mask
from rankscope.network import (
    ACTIVATIONS,
    Alibi,
    Attention,
    Chain,
    ClippedBuckets,
    Context,
    Fixed,
    LayerNorm,
    LogBuckets,
    Mixer,
    Mlp,
    Network,
    Norm,
    Part,
    Position,
    RelativeBias,
    RMSNorm,
    Rotary,
    Scale,
    SeenBias,
    Segments,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TransformerXL,
    Uniform,
    Values,
)

MASKS = (
    *(
        "full",
        "full",
        "full",
        "causal",
        "causal",
        "window:1",
        "causal-window:2",
        "prefix:1+causal",
        "prefix:2",
    ),
    *("strided:2", "dilated:1:2", "longformer:1:1", "bigbird:1:1:1", "blocks:2", "prefix:2+window:1"),
)
PLACES = ("none", "none", "none", "rotary", "interleaved", "alibi", "relative", "clipped", "transformer-xl")
SMOOTH = ("gelu", "gelu_tanh", "silu", "quick_gelu", "tanh")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """A network with a batch of texts, and where it comes from."""

    kind: str
    seed: int
    network: Network
    x: Tensor
    context: Context = field(default_factory=Context)

    def text(self, row: int) -> tuple[Tensor, Context]:
        """One text without its padding."""
        keep = self.context.is_token
        return self.x[row] if keep is None else self.x[row][keep[row]], self.context.of_text(row)


class Draws:
    """Everything random about one tree."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)  # noqa: S311
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def pick(self, *options: Any) -> Any:
        return self.choices.choice(options)

    def chance(self, share: float) -> bool:
        return self.choices.random() < share

    def between(self, low: int, high: int) -> int:
        return self.choices.randint(low, high)

    def power(self, low: float, high: float) -> float:
        """Ten to a uniform power."""
        return float(10.0 ** self.choices.uniform(low, high))

    def real(self, low: float, high: float) -> float:
        return self.choices.uniform(low, high)

    def matrix(self, rows: int, columns: int) -> Tensor:
        return self(rows, columns) * rows**-0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What a tree is made of. ``None`` leaves a choice to chance, once per part."""

    layers: int | None = None
    tokens: int | None = None
    width: int | None = None
    heads: int | None = None
    mask: str | None = None
    place: str | None = None
    bias: float | None = None
    logit: float = 1.0
    softcap: float | None = 0.0  # zero: a cap in one part of eight; None: never
    qk_norm: bool | None = None
    norm: str | None = None
    eps: float | None = None
    order: str | None = None
    skip: float | Tensor | None = None
    mlp: bool | None = None
    activation: str | None = None
    gated: bool | None = None
    mixer: str | None = None


class Builder:
    """Parts of one tree, with dimensions that fit each other."""

    def __init__(self, draw: Draws, of: Recipe) -> None:
        self.draw, self.of = draw, of
        self.heads = of.heads or draw.pick(1, 1, 2, 3)
        self.width = of.width or (draw.between(1, 4) if self.heads == 1 else draw.pick(1, 2, 2))
        if of.place in ("rotary", "interleaved", "transformer-xl") and self.width % 2:
            self.width += 1
        self.dim = self.heads * self.width
        self.tokens = of.tokens or draw.between(2, 6)
        self.layers = of.layers or draw.between(1, 4)
        self.mask = of.mask or draw.pick(*MASKS)
        self.order = of.order or draw.pick("none", "none", "pre", "pre", "post", "sandwich", "parallel")
        self.size = 1.0 if of.bias is None else of.bias
        self.biased = (draw.chance(0.5) if of.bias is None else of.bias != 0.0) and self.size != 0.0

    def bias(self, width: int, share: float = 0.3) -> Tensor | None:
        return share * self.size * self.draw(width) if self.biased and self.draw.chance(0.7) else None

    def norm(self, dim: int | None = None) -> Norm:
        draw, dim = self.draw, self.dim if dim is None else dim
        kind = self.of.norm or draw.pick("layer", "layer", "rms", "rms", "sphere")
        gain = 1 + 0.3 * draw(dim) if draw.chance(0.5) else None
        eps = draw.pick(1e-5, 1e-6, 1e-12, 1e-2) if self.of.eps is None else self.of.eps
        if kind == "layer":
            return LayerNorm(gain, self.bias(dim), eps=eps)
        if kind == "rms" and gain is not None and draw.chance(0.3):
            return RMSNorm(gain - 1, self.bias(dim), eps=eps, offset=1.0)
        return (RMSNorm if kind == "rms" else Sphere)(gain, self.bias(dim), eps=eps)

    def position(self) -> Position | None:
        draw, heads, width = self.draw, self.heads, self.width
        place = self.of.place or draw.pick(*PLACES)
        if place in ("rotary", "interleaved", "transformer-xl") and width % 2:
            place = "alibi"
        match place:
            case "rotary":
                return Rotary.from_base(width, base=draw.pick(10.0, 1e4), stretch=draw.pick(1.0, 8.0))
            case "interleaved":
                frequencies = draw(width // 2).abs()
                return Rotary(frequencies, interleaved=True, gain=draw.pick(1.0, 1.3))
            case "alibi":
                return Alibi(draw(heads).abs() * draw.pick(1.0, 0.1, 5.0))
            case "relative":
                return RelativeBias(draw(8, heads), LogBuckets(count=8, max_distance=6))
            case "clipped":
                return RelativeBias(draw(5, heads), ClippedBuckets(max_distance=2))
            case "seen":
                return SeenBias(draw(heads, self.tokens, self.tokens))
            case "transformer-xl":
                content = draw(heads, width) if draw.chance(0.5) else None
                return TransformerXL(draw.matrix(self.dim, self.dim), draw(heads, width), content=content)
            case "segments":
                inner = draw.pick(None, Alibi(draw(heads).abs()))
                inner = (
                    TransformerXL(draw.matrix(2, self.dim), draw(heads, width)) if inner is None else inner
                )
                return Segments(inner, draw(2, heads, width), draw(heads, width))
        return None

    def values(self) -> Values:
        draw, dim = self.draw, self.dim
        groups = draw.pick(self.heads, 1)
        return Values(
            draw.matrix(dim, groups * self.width),
            draw.matrix(dim, dim),
            heads=self.heads,
            value_heads=groups,
            value_bias=self.bias(groups * self.width),
            out_bias=self.bias(dim),
        )

    def attention(self, **given: Any) -> Attention:
        return Attention(self.mixer(**given), self.values())

    def mixer(self, **given: Any) -> Mixer:
        draw, dim, heads, width = self.draw, self.dim, self.heads, self.width
        kind = self.of.mixer or draw.pick(*["softmax"] * 12, "uniform", "fixed")
        rule = parse_mask(self.mask)
        if kind == "uniform":
            return Uniform(heads=heads, rule=rule)
        if kind == "fixed":
            return Fixed(self.shares())
        groups = draw.pick(heads, 1)
        cap = self.of.softcap
        if cap == 0.0:
            cap = draw.pick(0.5, 2.0, 20.0) if draw.chance(0.125) else None
        normed = draw.chance(0.15) if self.of.qk_norm is None else self.of.qk_norm
        over = draw.pick("head", "all")
        widths = (width, width) if over == "head" else (dim, groups * width)
        settings = {
            "heads": heads,
            "key_heads": groups,
            "query_bias": self.bias(dim),
            "key_bias": self.bias(groups * width),
            "rule": rule,
            "position": self.position(),
            "query_norm": self.norm(widths[0]) if normed else None,
            "key_norm": self.norm(widths[1]) if normed else None,
            "normed": over,
            "softcap": cap,
        }
        query = draw.matrix(dim, dim) * self.of.logit
        return Softmax(query, draw.matrix(dim, groups * width), **(settings | given))

    def shares(self) -> Tensor:
        """Maps in multiples of 1/64, one-hot ones among them."""
        draw, tokens = self.draw, self.tokens
        maps = torch.zeros(self.heads, tokens, tokens, dtype=torch.float64)
        hot = draw.chance(0.3)
        for head in range(self.heads):
            for row in range(tokens):
                for _ in range(1 if hot else 64):
                    maps[head, row, draw.between(0, tokens - 1)] += 1.0 if hot else 1 / 64
        return maps

    def mlp(self, **given: Any) -> Mlp:
        draw, dim = self.draw, self.dim
        width = draw.between(1, 2 * dim)
        name = self.of.activation or draw.pick(*ACTIVATIONS)
        gated = draw.chance(0.25) if self.of.gated is None else self.of.gated
        settings = {
            "activation": name,
            "gate": draw.matrix(dim, width) if gated else None,
            "up_bias": self.bias(width),
            "down_bias": self.bias(dim),
            "gate_bias": self.bias(width) if gated else None,
        }
        return Mlp(draw.matrix(dim, width), draw.matrix(width, dim), **(settings | given))

    def skip(self, inner: Part) -> Part:
        scale = self.of.skip
        if scale is None:
            scale = self.draw.pick(None, None, 1.0, 1.0, 1.0, 0.3, -0.5, "channels")
        if scale is None or (isinstance(scale, float) and scale == 0.0 and self.draw.chance(0.5)):
            return inner
        return Skip(inner, self.draw(self.dim) if isinstance(scale, str) else scale)

    def sublayer(self, part: Part) -> list[Part]:
        match self.order:
            case "pre":
                return [self.skip(Chain([self.norm(), part]))]
            case "post":
                return [self.skip(part), self.norm()]
            case "sandwich":
                return [self.skip(Chain([self.norm(), part, self.norm()]))]
        return [self.skip(part)]

    def block(self) -> Part:
        draw = self.draw
        feeds = draw.chance(0.5) if self.of.mlp is None else self.of.mlp
        if self.order == "parallel":
            branches: list[Part] = [self.attention(), *([self.mlp()] if feeds else [])]
            if draw.chance(0.3):
                branches.append(Scale(draw.pick(0.5, -1.0)))
            return self.skip(Chain([self.norm(), Sum(branches)]))
        parts = self.sublayer(self.attention())
        if feeds:
            parts += self.sublayer(self.mlp())
        if draw.chance(0.05):
            parts.append(Scale(draw(self.dim)))
        return Chain(parts)

    def network(self) -> Network:
        blocks = [self.block() for _ in range(self.layers)]
        return Network([blocks[0]] * self.layers if self.draw.chance(0.1) else blocks)

    def x(self) -> Tensor:
        return self.draw(self.tokens, self.dim)


Made = tuple[Network, Tensor] | tuple[Network, Tensor, Context]
Kind = Callable[[Draws], Made]
KINDS: dict[str, Kind] = {}


def kind(make: Kind) -> Kind:
    KINDS[make.__name__.strip("_").replace("_", "-")] = make
    return make


def case(name: str, seed: int) -> Case:
    """The tree of that kind and seed."""
    # Seeds of different kinds are kept apart, or they would share their first draws.
    made = KINDS[name](Draws(1_000_003 * seed + sum(ord(c) * 31**i for i, c in enumerate(name)) % 1_000_003))
    network, x = made[0], made[1]
    context = made[2] if len(made) == 3 else Context()
    return Case(kind=name, seed=seed, network=network, x=x if x.ndim == 3 else x[None], context=context)


def _plain(draw: Draws, **choices: Any) -> Made:
    builder = Builder(draw, Recipe(**choices))
    return builder.network(), builder.x()


@kind
def base(draw: Draws) -> Made:
    """Anything."""
    return _plain(draw)


@kind
def clean(draw: Draws) -> Made:
    """No biases, no positions: near consensus every full map cubes."""
    return _plain(draw, bias=0.0, place="none", mask=draw.pick("full", "full", "causal", "window:1"))


@kind
def tiny_logits(draw: Draws) -> Made:
    return _plain(draw, logit=draw.power(-9, -2), layers=draw.between(1, 3))


@kind
def huge_logits(draw: Draws) -> Made:
    return _plain(draw, logit=draw.power(1, 3))


@kind
def clean_huge(draw: Draws) -> Made:
    return _plain(draw, logit=draw.power(0.5, 2.5), bias=0.0, place="none")


@kind
def tiny(draw: Draws) -> Made:
    """Tokens far below one."""
    network, x = _plain(draw)[:2]
    return network, x * draw.power(-150, -3)


@kind
def huge(draw: Draws) -> Made:
    """Tokens far above one, between norms."""
    network, x = _plain(draw, order=draw.pick("pre", "post", "sandwich"))[:2]
    return network, x * draw.power(3, 150)


@kind
def common(draw: Draws) -> Made:
    """A common row that dwarfs the differences of tokens."""
    network, x = _plain(draw)[:2]
    return network, x + draw.power(3, 6) * draw(x.shape[-1])


@kind
def near(draw: Draws) -> Made:
    """Tokens that are nearly equal to begin with."""
    network, x = _plain(draw)[:2]
    return network, draw.power(-14, -1) * x + draw.power(-1, 2) * draw(x.shape[-1])


@kind
def deep(draw: Draws) -> Made:
    """Twenty or forty layers."""
    mask = draw.pick("causal", "window:1", "prefix:1+causal", "blocks:2", "longformer:1:1")
    order = draw.pick("pre", "post", "sandwich", "parallel")
    return _plain(draw, layers=draw.pick(20, 40), mask=mask, order=order, tokens=draw.between(2, 4))


@kind
def deep_bare(draw: Draws) -> Made:
    """Twenty layers of causal attention without skips: logarithms of hundreds."""
    return _plain(draw, layers=20, order="none", skip=0.0, mlp=False, mask=draw.pick("causal", "window:1"))


@kind
def soft_cap(draw: Draws) -> Made:
    cap = draw.pick(0.1, 0.5, 1.0, 5.0, 30.0, 50.0)
    return _plain(draw, softcap=cap, logit=draw.power(-2, 3), layers=draw.between(1, 3))


@kind
def slow(draw: Draws) -> Made:
    """Positions that hardly matter: slow rotary angles, small slopes, with and without a cap."""
    builder = Builder(draw, Recipe(width=draw.pick(2, 4), heads=draw.pick(1, 2), layers=draw.between(1, 3)))
    size = draw.power(-13, -2)

    def place() -> Position:
        if draw.chance(0.6):
            return Rotary(size * draw(builder.width // 2).abs(), interleaved=draw.chance(0.5))
        return Alibi(size * draw(builder.heads).abs())

    cap = draw.pick(None, None, 0.5, 5.0)
    blocks = [
        Chain(builder.sublayer(builder.attention(position=place(), softcap=cap)))
        for _ in range(builder.layers)
    ]
    return Network(blocks), builder.x() * draw.power(-3, 1)


@kind
def positions(draw: Draws) -> Made:
    """Every position rule with large weights; tokens that are near each other or not."""
    place = draw.pick("rotary", "interleaved", "alibi", "relative", "clipped", "transformer-xl", "seen")
    network, x = _plain(draw, place=place, width=2, logit=draw.power(-1, 1.5))[:2]
    return network, x * draw.power(-6, 1) + draw.pick(0.0, 1.0) * draw(x.shape[-1])


@kind
def transformer_xl(draw: Draws) -> Made:
    place = draw.pick("transformer-xl", "segments")
    network, x = _plain(draw, place=place, width=2)[:2]
    tokens = len(x)
    given = torch.tensor(sorted(draw.choices.sample(range(3 * tokens), tokens)))
    segments = torch.tensor([draw.between(0, 1) for _ in range(tokens)])
    context = Context(
        positions=given if draw.chance(0.5) else None, segments=segments if draw.chance(0.7) else None
    )
    return network, x, context


@kind
def sinks(draw: Draws) -> Made:
    """One or several tokens that all queries read; where there are several they are equal."""
    builder = Builder(
        draw, Recipe(mixer="softmax", qk_norm=False, place=draw.pick("none", "alibi"), heads=1, width=4)
    )
    builder.tokens = max(builder.tokens, 3)
    dim = builder.dim
    several = draw.between(1, 2)
    first = draw.pick(0, builder.tokens - several) if builder.mask == "full" else 0

    def part() -> Attention:
        query, key = 0.02 * draw.matrix(dim, dim), 0.02 * draw.matrix(dim, dim)
        key[:, 0] = 0.0
        key[0, 0] = 1.0
        lift = torch.zeros(dim, dtype=torch.float64)
        lift[0] = draw.real(5, 70) * dim**0.5
        rule, position = parse_mask(builder.mask), builder.position()
        mixer = Softmax(query, key, heads=1, query_bias=lift, rule=rule, position=position)
        return Attention(mixer, builder.values())

    x = builder.x()
    x[:, 0] = 0.0
    x[first : first + several] = x[first]
    x[first : first + several, 0] = 1.0
    return Network([Chain(builder.sublayer(part())) for _ in range(draw.between(1, 2))]), x


@kind
def tails(draw: Draws) -> Made:
    """Activations far to the left, where they are next to nothing."""
    builder = Builder(draw, Recipe(layers=draw.between(1, 4)))
    far = draw.real(4, 40)

    def feed() -> Mlp:
        width = draw.between(1, 6)
        lift = -far * (1 + 0.2 * draw(width))
        gated = draw.chance(0.3)
        return Mlp(
            draw.matrix(builder.dim, width),
            draw.matrix(width, builder.dim),
            activation=draw.pick(*SMOOTH),
            up_bias=lift if not gated else builder.bias(width),
            gate=draw.matrix(builder.dim, width) if gated else None,
            gate_bias=lift if gated else None,
            down_bias=builder.bias(builder.dim),
        )

    blocks = []
    for _ in range(builder.layers):
        parts = builder.sublayer(builder.attention()) if draw.chance(0.7) else []
        blocks.append(Chain([*parts, *builder.sublayer(feed())]))
    return Network(blocks), builder.x()


@kind
def zero_rows(draw: Draws) -> Made:
    """ReLU that leaves some tokens exactly zero, then norms and attention."""
    name = draw.pick("relu", "relu", "relu2")
    eps = draw.pick(None, None, 1e-12, 1e-20)
    kind_of_norm = draw.pick("rms", "layer", "sphere")
    builder = Builder(draw, Recipe(bias=0.0, order="none", skip=0.0, norm=kind_of_norm, eps=eps))
    builder.tokens = max(builder.tokens, 3)
    blocks: list[Part] = []
    for _ in range(draw.between(2, 5)):
        width = draw.between(1, 3)
        feed = Mlp(
            draw.matrix(builder.dim, width),
            draw.matrix(width, builder.dim),
            activation=name,
            gate=draw.matrix(builder.dim, width) if draw.chance(0.2) else None,
        )
        parts: list[Part] = [feed]
        if draw.chance(0.6):
            parts.append(builder.norm())
        if draw.chance(0.6):
            parts.append(builder.skip(builder.attention()))
        if draw.chance(0.3):
            parts.append(builder.norm())
        blocks.append(Chain(parts))
    return Network(blocks), builder.x()


@kind
def sphere_zeros(draw: Draws) -> Made:
    """Zero tokens from the start; on the sphere with eps = 0 they stay where they are."""
    builder = Builder(
        draw, Recipe(norm="sphere", eps=0.0, order=draw.pick("pre", "post"), bias=0.0, qk_norm=False)
    )
    x = builder.x()
    for row in range(builder.tokens - 1):
        if draw.chance(0.4):
            x[row] = 0.0
    return builder.network(), x


@kind
def rank_one(draw: Draws) -> Made:
    """Multiples of one row, to rounding or exactly, into norms: what tokens then differ by is what eps leaves."""
    eps = draw.pick(1e-5, 1e-12, 1e-20, 1e-2)
    order = draw.pick("pre", "post", "sandwich")
    builder = Builder(draw, Recipe(order=order, layers=draw.between(1, 3), eps=eps))
    shares = draw(builder.tokens, 1)
    if draw.chance(0.5):
        shares = shares.abs()
    if draw.chance(0.3):
        shares = shares.sign() * 2.0 ** shares.round()
    x = shares * draw(builder.dim)
    if draw.chance(0.3):
        x = x + draw.power(-18, -3) * builder.x()
    network = builder.network()
    return Network([builder.norm(), *network.blocks]) if draw.chance(0.4) else network, x


@kind
def clusters(draw: Draws) -> Made:
    """Tokens much nearer to each other than their two groups are; a projection may take the groups away."""
    mask = draw.pick("full", "causal", "blocks:2", "window:1")
    builder = Builder(draw, Recipe(mask=mask, tokens=draw.between(4, 6), bias=draw.pick(None, 0.0)))
    centers = draw(2, builder.dim)
    inner = draw.power(-22, -3)
    x = torch.stack([centers[min(2 * row // builder.tokens, 1)] for row in range(builder.tokens)])
    x = x + inner * builder.x()
    network = builder.network()
    if draw.chance(0.3) and builder.dim > 1:
        apart = centers[0] - centers[1]
        without = torch.eye(builder.dim, dtype=torch.float64) - apart[:, None] * apart / apart.dot(apart)
        away = Mlp(torch.eye(builder.dim, dtype=torch.float64), without, activation="identity")
        network = Network([away, *network.blocks])
    return network, x


@kind
def merging(draw: Draws) -> Made:
    """Clusters that attention itself makes: queries times fifty read one of a few tokens each."""
    return _plain(
        draw, logit=draw.power(1, 2.5), mask="full", place="none", tokens=draw.between(4, 6), order="pre"
    )


@kind
def duplicates(draw: Draws) -> Made:
    """Some tokens are equal."""
    network, x = _plain(draw, tokens=draw.between(3, 6))[:2]
    for row in range(1, len(x)):
        if draw.chance(0.5):
            x[row] = x[draw.between(0, row - 1)]
    return network, x


@kind
def padding(draw: Draws) -> Made:
    """Texts of several lengths, padded on either side or between."""
    place = draw.pick(
        "none", "none", "rotary", "interleaved", "alibi", "relative", "clipped", "transformer-xl"
    )
    mixer = draw.pick("softmax", "softmax", "softmax", "uniform")
    builder = Builder(draw, Recipe(place=place, mixer=mixer, tokens=draw.between(4, 6)))
    texts, tokens = draw.between(2, 3), builder.tokens
    keep = torch.ones(texts, tokens, dtype=torch.bool)
    for row in range(texts):
        cut = draw.between(0, tokens - 2)
        match draw.pick("left", "right", "both", "anywhere"):
            case "left":
                keep[row, :cut] = False
            case "right":
                keep[row, tokens - cut :] = False
            case "both":
                keep[row, : cut // 2] = False
                keep[row, tokens - (cut - cut // 2) :] = False
            case _:
                keep[row, draw.choices.sample(range(tokens), cut)] = False
    x = draw(texts, tokens, builder.dim) * draw.power(-2, 1) + draw.pick(0.0, 1.0) * draw(builder.dim)
    return builder.network(), x, Context(is_token=keep)


@kind
def one_hot(draw: Draws) -> Made:
    """Maps that are one-hot to the last bit."""
    if draw.chance(0.5):
        return _plain(draw, mixer="fixed")
    return _plain(draw, logit=draw.power(3, 5), layers=draw.between(1, 2))


@kind
def one_token(draw: Draws) -> Made:
    return _plain(draw, tokens=1, mask=draw.pick("full", "causal", "window:1"))


@kind
def two_tokens(draw: Draws) -> Made:
    return _plain(draw, tokens=2, layers=draw.between(2, 5))


@kind
def one_channel(draw: Draws) -> Made:
    return _plain(draw, heads=1, width=1, norm=draw.pick("rms", "sphere", "layer"))


@kind
def two_channels(draw: Draws) -> Made:
    return _plain(
        draw, heads=draw.pick(1, 2), width=draw.pick(1, 2), norm=draw.pick("rms", "sphere", "layer")
    )


@kind
def many_tokens(draw: Draws) -> Made:
    """More tokens than the other kinds have."""
    return _plain(draw, tokens=draw.between(8, 16), heads=1, width=draw.between(1, 3), layers=2)


@kind
def activations(draw: Draws) -> Made:
    """Every activation, gated or not, without attention in between now and then."""
    builder = Builder(draw, Recipe(activation=draw.pick(*ACTIVATIONS), gated=draw.chance(0.5), mlp=True))
    if draw.chance(0.5):
        return builder.network(), builder.x() * draw.power(-3, 1.3)
    blocks = [Chain(builder.sublayer(builder.mlp())) for _ in range(builder.layers)]
    return Network(blocks), builder.x() * draw.power(-3, 1.3)


@kind
def kinks(draw: Draws) -> Made:
    """Piecewise linear activations, nearly equal tokens on either side of a kink."""
    builder = Builder(draw, Recipe(activation=draw.pick("relu", "leaky_relu", "relu2"), mlp=True, bias=0.0))
    return builder.network(), draw.power(-12, 0) * builder.x() + draw.power(-12, 0) * draw(builder.dim)


@kind
def epsilons(draw: Draws) -> Made:
    """Norms whose eps is far above, near or far below the size of the tokens, or zero."""
    eps = draw.pick(0.0, 1e-300, 1e-30, 1e-12, 1e-5, 1.0, 1e6)
    network, x = _plain(draw, order=draw.pick("pre", "post", "sandwich"), eps=eps, mlp=False)[:2]
    return network, (x + draw.pick(0.0, 1.0, 100.0) * draw(x.shape[-1])) * draw.power(-8, 4)


@kind
def query_norms(draw: Draws) -> Made:
    return _plain(
        draw, qk_norm=True, mixer="softmax", eps=draw.pick(1e-5, 1e-6, 1e-12), logit=draw.power(-1, 1)
    )


@kind
def skips(draw: Draws) -> Made:
    """Skips with scale zero, negative, tiny, large or per channel."""
    scale = draw.pick(0.0, -1.0, 1e-8, -1e-3, 30.0, 1e-150, "channels")
    return _plain(draw, skip=scale)


@kind
def scales(draw: Draws) -> Made:
    """Scales of 1e-150 and 1e150, that norms take back."""
    builder = Builder(draw, Recipe(order=draw.pick("pre", "post", "sandwich")))
    size = draw.pick(1e-150, 1e150, 1e-100, 1e100, 1e-30, 1e30)
    blocks = [Chain([builder.block(), Scale(size)]) for _ in range(builder.layers)]
    blocks = [block if draw.chance(0.6) else Chain([Scale(1 / size), block]) for block in blocks]
    return Network(blocks), builder.x()


@kind
def biases(draw: Draws) -> Made:
    """Biases that dwarf the tokens."""
    return _plain(draw, bias=draw.power(1, 5))


@kind
def nested(draw: Draws) -> Made:
    """Sums in skips in chains, of anything."""
    builder = Builder(draw, Recipe(order="none"))

    def part(depth: int) -> Part:
        name = draw.pick("leaf", "chain", "sum", "skip") if depth else "leaf"
        if name == "leaf":
            return draw.pick(builder.attention, builder.mlp, builder.norm, lambda: Scale(draw(builder.dim)))()
        if name == "skip":
            return Skip(part(depth - 1), draw.pick(1.0, 0.0, -0.7, draw(builder.dim)))
        inner = [part(depth - 1) for _ in range(draw.between(1, 3))]
        return Chain(inner) if name == "chain" else Sum(inner)

    return Network([part(3) for _ in range(builder.layers)]), builder.x()


@kind
def cancelling(draw: Draws) -> Made:
    """Branches that take back most of what the skip carries."""
    builder = Builder(draw, Recipe(order="none", skip=0.0))
    blocks = []
    for _ in range(draw.between(1, 3)):
        back = Scale(-1.0 + draw.pick(0.0, draw.power(-14, -2)))
        blocks.append(Skip(Sum([back, Chain([Scale(draw.power(-12, 0)), builder.block()])]), 1.0))
    return Network(blocks), builder.x()


@kind
def masks(draw: Draws) -> Made:
    """Any mask: every token reads itself or another one, and each of the others with a chance of its own."""
    builder = Builder(draw, Recipe(mixer="softmax", tokens=draw.between(3, 6)))
    often, tokens = draw.pick(0.2, 0.5, 0.8), builder.tokens
    may = [[draw.chance(often) for _ in range(tokens)] for _ in range(tokens)]
    for row in may:
        row[draw.between(0, tokens - 1)] = True
    rule = ExplicitMask(np.array(may))
    blocks = [Chain(builder.sublayer(builder.attention(rule=rule))) for _ in range(builder.layers)]
    return Network(blocks), builder.x() * draw.power(-4, 1) + draw.pick(0.0, 1.0) * draw(builder.dim)


@kind
def far_positions(draw: Draws) -> Made:
    """Tokens that stand far from the start of their text, and far from each other."""
    place = draw.pick("rotary", "interleaved", "alibi", "relative", "transformer-xl")
    network, x = _plain(draw, place=place, width=2, layers=draw.between(1, 3))[:2]
    tokens, reach = len(x), draw.pick(20, 300) if place == "transformer-xl" else draw.pick(50, 100_000)
    places = [draw.between(0, 5_000) + place for place in sorted(draw.choices.sample(range(reach), tokens))]
    return network, x, Context(positions=torch.tensor(sorted(places)))


@kind
def single(draw: Draws) -> Made:
    """Weights in float32, which are exact numbers all the same."""
    network, x = _plain(draw)[:2]
    return network.float(), x


@kind
def integers(draw: Draws) -> Made:
    """Weights and tokens that are small integers: ties, exact zeros and kinks met exactly."""
    network, x = _plain(draw, order=draw.pick("none", "pre", "post"), layers=draw.between(1, 3))[:2]
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if not name.endswith("maps"):  # whose rows sum to one
                weight.copy_((1.5 * weight).round())
    return network, (1.5 * x).round()


@kind
def offsets(draw: Draws) -> Made:
    """All channels share a large number, which LayerNorm takes away."""
    network, x = _plain(draw, norm="layer", order=draw.pick("pre", "post", "sandwich"))[:2]
    return network, x * draw.power(-4, 0) + draw.power(2, 9)


@kind
def saturated(draw: Draws) -> Made:
    """Activations, soft-caps and softmax far beyond where they saturate, on both sides of zero."""
    order, cap = draw.pick("none", "none", "pre"), draw.pick(None, None, 1.0, 30.0)
    network, x = _plain(draw, order=order, mlp=True, activation=draw.pick(*SMOOTH), softcap=cap)[:2]
    return network, x * draw.power(1, 6)


@kind
def capped_positions(draw: Draws) -> Made:
    """Small soft-caps over position rules of every size: logits that saturate on both sides, and side by side."""
    place = draw.pick("alibi", "alibi", "relative", "clipped", "seen", "transformer-xl")
    cap, logit = draw.power(-1, 2), draw.power(-2, 2)
    builder = Builder(
        draw,
        Recipe(place=place, width=2, softcap=cap, mixer="softmax", logit=logit, layers=draw.between(1, 3)),
    )
    network = builder.network()
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, Alibi):
                part.slopes.mul_(draw.power(-3, 2) * draw.pick(1.0, -1.0))
            if isinstance(part, RelativeBias | SeenBias):
                part.table.mul_(draw.power(-3, 3))
    reach = draw.pick(20, 1_000, 100_000)
    places = torch.tensor(sorted(draw.choices.sample(range(reach), builder.tokens)))
    x = builder.x() * draw.power(-4, 1) + draw.pick(0.0, 1.0) * draw(builder.dim)
    return network, x, Context(positions=None if place in ("seen", "transformer-xl") else places)


@kind
def linear_tables(draw: Draws) -> Made:
    """Biases by distance that are linear but for rounding, or for a little: the rows of a map nearly agree."""
    mask, logit = draw.pick("full", "full", "causal", "prefix:1"), draw.power(-6, 0)
    builder = Builder(draw, Recipe(mask=mask, place="none", mixer="softmax", qk_norm=False, logit=logit))
    steps = torch.arange(-builder.tokens, builder.tokens + 1, dtype=torch.float64)[:, None]

    def part() -> Attention:
        table = draw(1, builder.heads) * steps * draw.pick(1.0, 0.1, 7.3) + draw(1, builder.heads)
        table = table + draw.pick(0.0, draw.power(-16, -2)) * draw(*table.shape)
        return builder.attention(position=RelativeBias(table, ClippedBuckets(max_distance=builder.tokens)))

    blocks = [Chain(builder.sublayer(part())) for _ in range(builder.layers)]
    return Network(blocks), builder.x() * draw.power(-8, 0) + draw.pick(0.0, 1.0) * draw(builder.dim)


@kind
def hidden_columns(draw: Draws) -> Made:
    """Biases that agree from query to query but for a little, and for a key that nobody reads."""
    mask, logit = draw.pick("full", "full", "prefix:2"), draw.power(-6, 0)
    recipe = Recipe(
        mask=mask, place="none", mixer="softmax", qk_norm=False, logit=logit, tokens=draw.between(3, 5)
    )
    builder = Builder(draw, recipe)
    heads, tokens = builder.heads, builder.tokens

    def part() -> Attention:
        table = draw(heads, 1, tokens) + 3 * draw(heads, tokens, 1)
        table = table + draw.pick(0.0, draw.power(-16, -2)) * draw(heads, tokens, tokens)
        table[..., draw.pick(0, 0, 1)] = -draw.power(2, 3.5) + draw(heads, tokens)
        return builder.attention(position=SeenBias(table))

    blocks = [Chain(builder.sublayer(part())) for _ in range(builder.layers)]
    return Network(blocks), builder.x() * draw.power(-8, 0) + draw.pick(0.0, 1.0) * draw(builder.dim)


@kind
def opposite(draw: Draws) -> Made:
    """Two branches that are the same but for the sign and a little."""
    builder = Builder(draw, Recipe(order="none"))
    blocks = []
    for _ in range(builder.layers):
        one = builder.attention()
        other, little = copy.deepcopy(one), draw.pick(0.0, draw.power(-14, -1))
        with torch.no_grad():
            other.values.out.mul_(-1.0).add_(little * draw(*other.values.out.shape))
            if other.values.out_bias is not None:
                other.values.out_bias.mul_(-1.0)
        beside = [Scale(draw.pick(1.0, 1e-8))] if draw.chance(0.6) else []
        blocks.append(Sum([one, other, *beside]))
    return Network(blocks), builder.x()


@kind
def antipodal(draw: Draws) -> Made:
    """Tokens whose mean is zero, exactly or nearly."""
    network, x = _plain(draw, tokens=2 * draw.between(1, 3), bias=draw.pick(0.0, None))[:2]
    half = len(x) // 2
    x[half:] = -x[:half]
    return network, (x + draw.pick(0.0, draw.power(-18, -2)) * draw(x.shape[-1])) * draw.power(-3, 2)


@kind
def last_digits(draw: Draws) -> Made:
    """Tokens that differ in their last digits."""
    network, x = _plain(draw)[:2]
    row = draw(x.shape[-1]) * draw.power(-1, 1)
    steps = torch.tensor([[draw.between(-3, 3) for _ in range(x.shape[-1])] for _ in range(len(x))])
    return network, row * (1 + steps * 2.0**-52)


@kind
def low_rank(draw: Draws) -> Made:
    """Values of rank one or without a diagonal, and units that all read the same."""
    network, x = _plain(draw)[:2]
    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, Values):
                if draw.chance(0.5):
                    part.value.copy_(draw(part.value.shape[0], 1) * draw(part.value.shape[1]))
                else:
                    part.out.copy_(torch.triu(part.out, 1))
            if isinstance(part, Mlp) and draw.chance(0.5):
                part.up.copy_(draw(part.up.shape[0], 1) * draw(part.up.shape[1]))
    return network, x


@kind
def uneven(draw: Draws) -> Made:
    """Channels of very different size, and gains that differ as much."""
    builder = Builder(draw, Recipe(order=draw.pick("pre", "post", "sandwich")))
    network = builder.network()

    def powers(low: float, high: float, count: int) -> Tensor:
        return torch.tensor([draw.power(low, high) for _ in range(count)], dtype=torch.float64)

    with torch.no_grad():
        for part in network.modules():
            if isinstance(part, Norm) and part.weight is not None:
                part.weight.mul_(powers(-8, 3, part.weight.numel()))
    blocks = [
        Chain([Scale(powers(-10, 4, builder.dim)), block]) if draw.chance(0.5) else block
        for block in network.blocks
    ]
    return Network(blocks), builder.x() * powers(-6, 6, builder.dim)


def corpus(first: int, count: int, kinds: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Kind and seed of ``count`` trees, the kinds in turn."""
    names = kinds or tuple(KINDS)
    return [(names[i % len(names)], first + i // len(names)) for i in range(count)]
