"""Batches of random networks and inputs that try to break a certificate, and the check that none did.

Every parameter has a leading axis over the networks of a batch: one pass certifies hundreds of them.
"""

import copy
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kit.exact_specs import describe, plain
from rankscope.bounds.certificate import CERTIFIED, Certificate
from rankscope.masks import parse_mask
from rankscope.network import (
    Alibi,
    Attention,
    Chain,
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
    Skip,
    Softmax,
    Sphere,
    Sum,
    TransformerXL,
    Uniform,
    Values,
)
from reference import ball_network as balls

INPUTS = ("gaussian", "clusters", "massive", "near", "huge", "integer", "twins", "zeros", "pair", "line")
SMALLEST, LARGEST = 1e-3, 30.0
"""Weights are so many times those of a usual start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What all networks of a batch share; their weights, sizes of weights and inputs differ."""

    seed: int
    count: int
    layers: int
    tokens: int
    dim: int
    heads: int
    groups: int
    width: int
    variant: str
    norm: str
    placement: str
    mixer: str
    mask: str
    position: str
    activation: str
    gated: bool
    qk_norm: bool
    softcap: float | None
    skip: str
    shared: bool
    padded: bool


def recipe(seed: int, count: int) -> Recipe:
    """A random recipe of that seed."""
    pick = random.Random(seed)  # noqa: S311 - a fixed choice of test cases
    heads = pick.choice([1, 1, 2, 3, 4])
    position = pick.choice(["none"] * 4 + ["rotary", "alibi", "relative", "transformer-xl"])
    mixer = pick.choice(["softmax"] * 6 + ["uniform", "fixed"])
    dim, width = pick.randint(1, 16), pick.choice([1, 2, 3, 4])
    padded = mixer != "fixed" and pick.random() < 0.05
    return Recipe(
        seed=seed,
        count=min(count, 8) if padded else count,  # texts with padding are certified one by one
        layers=pick.choice([1, 1, 2, 2, 3, 5]),
        tokens=pick.choice([2, 2, 3, 4, 5, 8, 12]),
        dim=dim + dim % 2 if position == "transformer-xl" else dim,
        heads=heads,
        groups=pick.choice([g for g in range(1, heads + 1) if heads % g == 0]),
        width=width + width % 2 if position == "rotary" else width,
        variant=pick.choice(["san", "san+skip", "san+mlp", "transformer", "transformer"]),
        norm=pick.choice(["none", "none", "layer", "rms", "sphere"]),
        placement=pick.choice(["post", "pre", "sandwich", "parallel"]),
        mixer=mixer,
        mask=pick.choice(["full"] * 3 + ["causal", "causal", "window:1", "causal-window:2", "blocks:2"]),
        position=position,
        activation=pick.choice(["relu", "gelu", "gelu_tanh", "silu", "quick_gelu", "tanh", "identity"]),
        gated=pick.random() < 0.3,
        qk_norm=pick.random() < 0.15,
        softcap=pick.choice([None] * 6 + [2.0, 30.0]),
        skip=pick.choice(["one", "one", "number", "scalar", "vector", "minus", "zero"]),
        shared=padded or pick.random() < 0.15,
        padded=padded,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Networks and inputs of one recipe, or ``shared`` one network with many texts, which may be padded."""

    recipe: Recipe
    network: Network
    x: Tensor
    is_token: Tensor | None

    def context(self) -> Context:
        return Context(is_token=self.is_token)

    def one(self, index: int) -> tuple[Network, Tensor]:
        """One network by itself with its text, padding cut out."""
        network = self.network if self.recipe.shared else one_of(self.network, index)
        x = self.x[index]
        return network, x if self.is_token is None else x[self.is_token[index]]


def one_of(network: Network, index: int) -> Network:
    """One network of those that parameters with a leading axis stand for."""
    cut: dict[int, object] = {
        id(p): nn.Parameter(p.detach()[index], requires_grad=False) for p in network.parameters()
    }
    return copy.deepcopy(network, cut)


def batches(first: int, networks: int, *, count: int) -> Iterator[Batch]:
    """Batches of ``count`` networks, fewer with padding, one seed each from ``first`` on, so many networks in all."""
    for seed in itertools.count(first):
        made = batch(recipe(seed, min(count, networks)))
        yield made
        networks -= made.recipe.count
        if not networks:
            return


def batch(of: Recipe) -> Batch:
    """The networks and inputs of a recipe."""
    draw = Rows(of)
    network, x = Network([block_of(of, draw) for _ in range(of.layers)]), inputs(of, draw)
    if of.shared:
        network = one_of(network, 0)
    is_token = None
    if of.padded:
        is_token = draw.uniform(of.tokens) < 0.7
        is_token[:, :2] = True
    return Batch(recipe=of, network=network, x=x, is_token=is_token)


class Rows:
    """Normal draws with a leading axis over the networks of a batch, and sizes of weights for each of them."""

    def __init__(self, of: Recipe) -> None:
        self.count = of.count
        self.generator = torch.Generator().manual_seed(of.seed)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(self.count, *shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(self.count, *shape, generator=self.generator, dtype=torch.float64)

    def sizes(self, low: float = SMALLEST, high: float = LARGEST) -> Tensor:
        """One size per network, even on a logarithmic scale, ready to multiply a vector."""
        return low * (high / low) ** self.uniform(1)

    def matrix(self, rows: int, columns: int, size: Tensor | None = None) -> Tensor:
        """A start N(0, 1/rows), times a size; a fifth of the networks have a matrix of rank one."""
        flat = self(rows, 1) * self(1, columns)
        full = torch.where(self.uniform(1, 1) < 0.2, flat, self(rows, columns)) * rows**-0.5
        return full if size is None else full * size[..., None]

    def vector(self, width: int) -> Tensor:
        """A bias; a third of the networks have none."""
        return self(width) * 0.5 * (self.uniform(1) > 0.3)


def block_of(of: Recipe, draw: Rows) -> Part:
    has_mlp, has_skip = of.variant in ("san+mlp", "transformer"), of.variant in ("san+skip", "transformer")
    branches: list[Part] = [attention_of(of, draw)] + ([mlp_of(of, draw)] if has_mlp else [])

    def skipped(inner: Part) -> Part:
        return Skip(inner, skip_scale(of, draw)) if has_skip else inner

    if of.placement == "parallel":
        return skipped(Sum([_chain(norm_of(of.norm, of.dim, draw), part) for part in branches]))
    chained: list[Part] = []
    for part in branches:
        before, after = (norm_of(of.norm, of.dim, draw) for _ in range(2))
        match of.placement:
            case "post":
                chained += [_chain(skipped(part), after)]
            case "pre":
                chained += [skipped(_chain(before, part))]
            case "sandwich":
                chained += [skipped(_chain(before, part, after))]
    return _chain(*chained)


def _chain(*parts: Part | None) -> Part:
    kept = [part for part in parts if part is not None]
    return kept[0] if len(kept) == 1 else Chain(kept)


def skip_scale(of: Recipe, draw: Rows) -> float | Tensor:
    match of.skip:
        case "number":
            return 0.3
        case "minus":
            return -1.0
        case "zero":
            return 0.0
        case "scalar":
            return draw(1)
        case "vector":
            return draw(of.dim)
    return 1.0


def norm_of(kind: str, width: int, draw: Rows) -> Norm | None:
    gain, bias = 1 + 0.5 * draw(width), draw.vector(width)
    match kind:
        case "layer":
            return LayerNorm(gain, bias, eps=1e-5)
        case "rms":
            return RMSNorm(gain - 1, eps=1e-6, offset=1.0)
        case "sphere":
            return Sphere(gain)
    return None


def attention_of(of: Recipe, draw: Rows) -> Part:
    narrow = of.groups * of.width
    held = Values(
        draw.matrix(of.dim, narrow, draw.sizes()),
        draw.matrix(of.heads * of.width, of.dim),
        heads=of.heads,
        value_heads=of.groups,
        value_bias=draw.vector(narrow),
        out_bias=draw.vector(of.dim),
    )
    part = Attention(_mixer(of, draw), held)
    return Chain([part, Scale(draw.sizes(0.01, 1.0))]) if of.seed % 7 == 0 else part


def _mixer(of: Recipe, draw: Rows) -> Mixer:
    rule = parse_mask(of.mask)
    if of.mixer == "uniform":
        return Uniform(heads=of.heads, rule=rule)
    if of.mixer == "fixed":
        sharp = draw.sizes(0.01, 100.0)[..., None, None]
        return Fixed(torch.softmax(sharp * draw(of.heads, of.tokens, of.tokens), dim=-1))
    narrow = of.groups * of.width
    return Softmax(
        draw.matrix(of.dim, of.heads * of.width, draw.sizes()),
        draw.matrix(of.dim, narrow),
        heads=of.heads,
        key_heads=of.groups,
        query_bias=draw.vector(of.heads * of.width),
        key_bias=draw.vector(narrow),
        rule=rule,
        position=_position(of, draw),
        query_norm=norm_of("rms", of.width, draw) if of.qk_norm else None,
        key_norm=norm_of("layer", of.width, draw) if of.qk_norm else None,
        softcap=of.softcap,
    )


def _position(of: Recipe, draw: Rows) -> Position | None:
    match of.position:
        case "rotary":
            return Rotary.from_base(of.width, base=100.0, interleaved=of.seed % 2 == 0)
        case "alibi":
            return Alibi(draw(of.heads).abs())
        case "relative":
            return RelativeBias(draw(8, of.heads), LogBuckets(count=8, max_distance=6))
        case "transformer-xl":
            projection = draw(of.dim, of.heads * of.width) * of.dim**-0.5
            return TransformerXL(projection, draw(of.heads, of.width))
    return None


def mlp_of(of: Recipe, draw: Rows) -> Mlp:
    width = 1 + of.seed % (2 * of.dim)
    return Mlp(
        draw.matrix(of.dim, width, draw.sizes()),
        draw.matrix(width, of.dim),
        activation=of.activation,
        gate=draw.matrix(of.dim, width) if of.gated else None,
        up_bias=draw.vector(width),
        down_bias=draw.vector(of.dim),
        gate_bias=draw.vector(width) if of.gated else None,
    )


def inputs(of: Recipe, draw: Rows) -> Tensor:
    """One input per network, kinds in turn."""
    plain = draw(of.tokens, of.dim)
    kinds = [_input(kind, plain, draw) for kind in INPUTS]
    turn = torch.arange(of.count) % len(INPUTS)
    return torch.stack(kinds)[turn, torch.arange(of.count)]


def _input(kind: str, plain: Tensor, draw: Rows) -> Tensor:
    tokens = torch.arange(plain.shape[-2])
    match kind:
        case "clusters":
            return plain[:, tokens % 2] + 1e-3 * draw(*plain.shape[1:])
        case "massive":
            return torch.where(tokens[:, None] == 0, 1e3 * plain, plain)
        case "near":
            return plain[:, :1] + 1e-8 * draw(*plain.shape[1:])
        case "huge":
            return 1e6 * plain
        case "integer":
            return (3 * plain).round()
        case "twins":
            return plain[:, (tokens + 1) // 2]
        case "zeros":
            return torch.where(tokens[:, None] % 2 == 0, 0.0, plain)
        case "pair":
            return torch.where(tokens[:, None] % 2 == 0, 1.0, -1.0) * plain[:, :1]
        case "line":  # tokens that differ by their length alone
            return (0.1 + tokens[:, None]) * plain[:, :1]
    return plain


def violations(certificate: Certificate, *, slack: float) -> dict[int, list[str]]:
    """What the split pass contradicts by more than ``slack``, by place in the flat batch; nothing if all is well."""
    found: dict[int, list[str]] = {}
    for layer in certificate.layers:
        for name in CERTIFIED:
            low, value, high = _flat(layer.lower[name], layer.measured[name], layer.upper[name])
            where = f"layer {layer.layer} {name}"
            _note(found, f"{where} {NO_NUMBER}", torch.isnan(low) | torch.isnan(value) | torch.isnan(high))
            _note(found, f"{where} {CROSSED}", low > high + slack)
            _note(found, f"{where} measured below lower", low > value + slack)
            _note(found, f"{where} measured above upper", value > high + slack)
    for before, after in itertools.pairwise(certificate.layers):
        for name in after.gain_lower:
            start, end = before.measured[name], after.measured[name]
            gain = torch.where(start > -torch.inf, end - start, torch.nan)  # NaN is outside of nothing
            low, gain, high = _flat(after.gain_lower[name], gain, after.gain_upper[name])
            where = f"layer {after.layer} gain of {name}"
            _note(found, f"{where} {NO_NUMBER}", torch.isnan(low) | torch.isnan(high))
            _note(found, f"{where} outside", (low > gain + slack) | (gain > high + slack))
    return found


NO_NUMBER, CROSSED = "is not a number", "crosses its other bound"


def _flat(*values: Tensor) -> list[Tensor]:
    return [value.reshape(-1) for value in torch.broadcast_tensors(*values)]


def _note(found: dict[int, list[str]], what: str, wrong: Tensor) -> None:
    for place in wrong.nonzero().flatten().tolist():
        found.setdefault(place, []).append(what)


def truth(network: Network, x: Tensor) -> list[balls.Enclosed]:
    """Balls that hold every layer of one network on one text."""
    return balls.sharp(describe(network, len(x), tables="exact"), plain(x))


def refuted(certificate: Certificate, exact: list[balls.Enclosed], index: tuple[int, ...] = ()) -> list[str]:
    """What balls prove wrong in a certificate, of which ``index`` is the network and text they enclose."""
    ends = [{name: balls.log_ends(ball) for name, ball in layer.residuals.items()} for layer in exact]
    found = []
    for layer, sizes in zip(certificate.layers, ends, strict=True):
        pairs = [(layer.lower, layer.upper), (layer.enclosed_lower, layer.enclosed_upper)]
        for name, (low, high) in sizes.items():
            for lowers, uppers in pairs:
                lower, upper = float(lowers[name][index]), float(uppers[name][index])
                if not (lower <= high and low <= upper):
                    found.append(f"layer {layer.layer} {name}: [{low}, {high}] outside [{lower}, {upper}]")
            if not low <= float(layer.trivial[name][index]):
                found.append(
                    f"layer {layer.layer} {name}: trivial {float(layer.trivial[name][index])} below {low}"
                )
    for (before, after), layer in zip(itertools.pairwise(ends), certificate.layers[1:], strict=True):
        for name in layer.gain_lower:
            if before[name][0] == -math.inf:  # balls cannot tell a residual from zero: it has no gain
                continue
            low, high = after[name][0] - before[name][1], after[name][1] - before[name][0]
            lower, upper = float(layer.gain_lower[name][index]), float(layer.gain_upper[name][index])
            if not (lower <= high and low <= upper):
                found.append(
                    f"layer {layer.layer} gain of {name}: [{low}, {high}] outside [{lower}, {upper}]"
                )
    return found


def broken(certificate: Certificate, of: Batch, *, slack: float) -> tuple[list[str], int]:
    """What is wrong in the certificate of a batch, and how often the split pass alone was.

    Where the split pass and a bound disagree one of them is wrong: ball arithmetic decides.
    """
    found, lost = [], 0
    for place, what in violations(certificate, slack=slack).items():
        proven = refuted(certificate, truth(*of.one(place)), (place,))
        proven += [one for one in what if NO_NUMBER in one or CROSSED in one]
        found += [f"network {place}: {one}" for one in proven]
        lost += not proven
    return found, lost
