"""The split pass against arithmetic with hundreds of digits, down to residuals of 1e-100."""

import itertools
import os
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from kit.exact_specs import describe, plain
from kit.trees import Draws, attention, mlp
from rankscope.network import (
    Attention,
    Chain,
    Context,
    LayerNorm,
    Mlp,
    Network,
    Norm,
    Part,
    RMSNorm,
    Skip,
    Softmax,
    Sphere,
)
from rankscope.split import split_states
from reference.exact_network import Matrix, log10_norm, relative_error, residuals

DIM, TOKENS = 6, 4
PLACES = {"full": ("full", "none"), "causal": ("causal", "none"), "window": ("window:1", "none")}
PLACES |= {"rotary": ("full", "rotary"), "alibi": ("full", "alibi")}
MLPS = {"none": None, "relu": ("relu", False), "gelu": ("gelu", False), "swiglu": ("silu", True)}

GRID = list(
    itertools.product([1, 3], ["none", "pre", "post", "rms"], [0.0, 1.0, 0.3], list(MLPS), list(PLACES))
)
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
MOST = 60 if SOAK else 20
CASES = GRID if SOAK else GRID[::23]  # 23 is coprime to the size of every factor, so every setting is met


def norm(kind: str, draw: Draws) -> Norm | None:
    gain, bias = 1 + 0.3 * draw(DIM), 0.3 * draw(DIM)
    if kind == "none":
        return None
    return RMSNorm(gain, eps=1e-6) if kind == "rms" else LayerNorm(gain, bias, eps=1e-5)


def sublayer(part: Part, kind: str, skip: float, draw: Draws) -> list[Part]:
    """One sublayer; RMS stands before the part, like ``pre``."""
    stands = norm(kind, draw)
    inner = part if stands is None or kind == "post" else Chain([stands, part])
    around = inner if skip == 0.0 else Skip(inner, skip)
    return [around, stands] if stands is not None and kind == "post" else [around]


def network(
    heads: int, kind: str, skip: float, feed: str, place: str, layers: int = MOST, seed: int = 0
) -> Network:
    draw = Draws(seed)
    rule, position = PLACES[place]
    blocks = []
    for _ in range(layers):
        parts = sublayer(
            attention(draw, rule=rule, place=position, heads=heads, groups=1, dim=DIM), kind, skip, draw
        )
        if (settings := MLPS[feed]) is not None:
            parts += sublayer(mlp(draw, activation=settings[0], gated=settings[1], dim=DIM), kind, skip, draw)
        blocks.append(Chain(parts))
    return Network(blocks)


def sensitivity(net: Network, x: Tensor, layer: int) -> float:
    """Relative change of the residual after ``layer`` blocks, per relative change of the input."""
    step = 1e-9
    moved = x + step * x.norm() * torch.nn.functional.normalize(Draws(99)(*x.shape), dim=(0, 1))
    one, other = (split_states(Network(list(net.blocks)[:layer]), tokens)[-1] for tokens in (x, moved))
    change = one.residual - (other.log_scale - one.log_scale).exp() * other.residual
    return float(change.norm()) / step


FEW = 160
"""Digits that are enough for most networks, at a fraction of the price of all."""


def exact_residuals(net: Network, x: Tensor, digits: int) -> list[Matrix]:
    """Residuals down to 1e-100, with more digits where the reference finds that few do not certify them."""
    described = describe(net, len(x)), plain(x)
    if digits > FEW:
        with suppress(ArithmeticError):
            return residuals(*described, FEW, down_to=-100.0)
    return residuals(*described, digits, down_to=-100.0)


def compare(net: Network, x: Tensor, *, digits: int = 400, bound: float = 1e-11) -> float:
    """Smallest log10 residual that was compared; every layer down to 1e-100 must be right to ``bound``.

    A network that grows amplifies rounding: there the split pass must be as good as twice the ordinary one. One that
    amplifies its input must be as good as ten units of round-off per layer on that input.
    """
    exact = exact_residuals(net, x, digits)
    smallest = 0.0
    for layer, (split, state, true) in enumerate(
        zip(split_states(net, x), net.states(x), exact, strict=False)
    ):
        error = relative_error(plain(split.residual), float(split.log_scale), true)
        smallest = float(log10_norm(true))
        ordinary = relative_error(plain(state - state.mean(dim=0)), 0.0, true)
        allowed = max(bound, 2 * ordinary) if smallest > -1 else bound
        if error >= allowed:  # a few networks amplify any change of their input by a hundred thousand
            allowed = max(allowed, 10 * layer * 2.0**-53 * sensitivity(net, x, layer))
        assert error < allowed, f"layer {layer}: {error:.1e} off at a residual of 1e{smallest:.0f}"
        if smallest < -100:
            break
    return smallest


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_layer_down_to_1e_100(case: tuple[int, str, float, str, str]) -> None:
    explodes = (
        case[1] == "none" and case[3] == "swiglu"
    )  # products of tokens without a norm: 1e1000 in ten layers
    net = network(*case, layers=6 if explodes else MOST)
    x = Draws(1)(TOKENS, DIM)
    compare(net, x)


def spread(net: Network, x: Tensor) -> float:
    """Largest difference between two logits of one query in the first layer."""
    mixer = next(part for part in net.blocks[0].modules() if isinstance(part, Softmax))
    logits = mixer.logits(x, Context())
    return float((logits.amax(dim=-1) - logits.amin(dim=-1)).max())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["full", "causal"])
@pytest.mark.parametrize(
    "settings", [{"softcap": 1.5}, {"qk_norm": True}, {"softcap": 3.0, "qk_norm": True}], ids=str
)
def test_soft_cap_and_query_key_norm(settings: dict[str, object], rule: str) -> None:
    draw = Draws(2)
    net = Network([attention(draw, rule=rule, heads=3, groups=3, dim=12, **settings) for _ in range(12)])
    smallest = compare(net, draw(TOKENS, 12))
    assert smallest < (-100 if rule == "full" else -2)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["full", "causal", "window:1"])
@pytest.mark.parametrize("place", ["none", "alibi", "relative", "transformer-xl"])
def test_logits_that_spread_to_fifty(rule: str, place: str) -> None:
    """Large tokens that are not near consensus, and large biases near it."""
    draw = Draws(3)
    net = Network([attention(draw, rule=rule, place=place, heads=3, groups=1, dim=DIM) for _ in range(8)])
    x = draw(TOKENS, DIM)
    size = next(size for size in range(2, 40) if spread(net, size * x) > 45)
    assert spread(net, size * x) < 80
    compare(net, size * x)
    far = 30 * draw(DIM) + 1e-3 * x  # near consensus, with a common row that makes the shared logits large
    compare(net, far)


@pytest.mark.slow
def test_tables_of_positions_do_not_matter_for_the_comparison() -> None:
    """With exact cosines in the reference the pass is right to the rounding of its own cosines."""
    draw = Draws(4)
    net, x = (
        Network([attention(draw, place="rotary", heads=3, groups=3, dim=12) for _ in range(4)]),
        draw(TOKENS, 12),
    )
    exact = residuals(describe(net, TOKENS, tables="exact"), plain(x), 120)
    for split, true in zip(split_states(net, x), exact, strict=True):
        assert relative_error(plain(split.residual), float(split.log_scale), true) < 1e-11


SINKS = [("causal", "none", 0), ("prefix:3+window:1", "none", 0), ("prefix:3+window:1", "none", 2)]
SINKS += [("full", place, sink) for place in ("none", "alibi", "rotary") for sink in (0, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("strength", [10.0, 30.0, 50.0])
@pytest.mark.parametrize(("rule", "place", "sink"), SINKS)
def test_a_sink_that_all_queries_attend_to(rule: str, place: str, sink: int, strength: float) -> None:
    """Every row of the map is nearly the same unit vector: what is left is e^-strength, and right to its digits."""
    draw, width = Draws(5), 8
    part = attention(draw, rule=rule, place=place, heads=1, groups=1, dim=width)
    bias = torch.zeros(width, dtype=torch.float64)
    bias[0] = strength * width**0.5
    key = 0.02 * part.mixer.key.detach()
    key[:, 0] = 0.0
    key[0, 0] = 1.0
    mixer = Softmax(
        *(0.02 * part.mixer.query.detach(), key),
        **{"heads": 1, "query_bias": bias, "rule": part.mixer.rule, "position": part.mixer.position},
    )
    x = draw(TOKENS, width)
    x[:, 0] = 0.0
    x[sink, 0] = 1.0
    net = Network([Attention(mixer, part.values)])
    compare(net, x, digits=150)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cap", "size"), [(50.0, 30.0), (0.5, 3.0), (5.0, 10.0), (1.0, 3.0), (30.0, 100.0), (2.0, 1e-3)]
)
def test_a_soft_cap_that_saturates(cap: float, size: float) -> None:
    draw = Draws(6)
    net = Network([attention(draw, heads=3, groups=3, dim=12, softcap=cap)])
    compare(net, size * draw(TOKENS, 12), digits=200)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-160, 1e-110, 1.0, 1e110, 1e150])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, Sphere])
def test_norms_of_tokens_of_any_size(kind: type[Norm], size: float) -> None:
    draw = Draws(7)
    net = Network([kind(eps=0.0)])
    compare(net, size * (0.3 * draw(TOKENS, DIM) + draw(DIM)), digits=400)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("gated", [False, True])
def test_activations_where_they_are_next_to_nothing(name: str, gated: bool) -> None:
    one = torch.eye(DIM, dtype=torch.float64)
    net = Network([Mlp(one, one, activation=name, gate=one if gated else None)])
    compare(net, 0.5 * Draws(8)(TOKENS, DIM) - 8, digits=120)
