"""Searches for a network that breaks its certificate: ascent on how close the bounds are, and inputs made by hand."""

import copy
import dataclasses
import os
from functools import partial

import pytest
import torch
from torch import Tensor

from kit.certify_networks import Batch, Recipe, batch, broken, recipe, refuted, truth
from kit.trees import Draws
from rankscope.bounds.certificate import CERTIFIED, Certificate
from rankscope.bounds.certify import certify
from rankscope.errors import NumericalError
from rankscope.network import (
    Attention,
    Chain,
    Fixed,
    LayerNorm,
    Mlp,
    Network,
    Part,
    RMSNorm,
    Scale,
    Skip,
    Softmax,
    Sphere,
    Sum,
    Values,
)

SLACK = 1e-9
"""What the split pass may be off, as a logarithm."""

STEPS, PAIRS = (100, 4) if os.environ.get("RANKSCOPE_SOAK") else (5, 2)

FAR = -50.0
"""Score of a bound that says nothing."""

GOALS = [(name, side) for side in ("upper", "lower") for name in CERTIFIED]


def base(seed: int, **settings: object) -> Recipe:
    plain = {
        "layers": 1,
        "tokens": 3,
        "dim": 2,
        "heads": 1,
        "groups": 1,
        "width": 2,
        "variant": "san",
        "norm": "none",
        "placement": "pre",
        "mixer": "softmax",
        "mask": "full",
        "position": "none",
        "activation": "relu",
        "gated": False,
        "qk_norm": False,
        "softcap": None,
        "skip": "one",
        "shared": False,
        "padded": False,
    }
    return dataclasses.replace(recipe(seed, 2 * len(GOALS)), **(plain | settings))


ATTACKED = {
    "attention": {},
    "two heads": {"heads": 2, "groups": 2},
    "causal": {"mask": "causal"},
    "skip": {"variant": "san+skip"},
    "skip, two heads": {"variant": "san+skip", "heads": 2, "groups": 2},
    "two layers": {"layers": 2, "variant": "san+skip", "skip": "vector"},
    "layer norm": {"norm": "layer", "dim": 3},
    "post norm": {"norm": "layer", "dim": 3, "variant": "san+skip", "placement": "post"},
    "sphere": {"norm": "sphere", "placement": "post"},
    "mlp": {"variant": "san+mlp"},
    "gelu": {"variant": "transformer", "activation": "gelu"},
    "gated": {"variant": "transformer", "activation": "silu", "gated": True},
    "parallel": {"variant": "transformer", "norm": "rms", "placement": "parallel"},
}


class Ascent:
    """Adam on the weights and inputs of a batch of networks, along differences of a score in random directions.

    A certificate has no derivative where a branch or a maximum turns, so the slope is taken from pairs of networks a
    little to both sides, all of them certified in one batch.
    """

    def __init__(self, start: Batch, *, pairs: int = PAIRS, step: float = 0.03, seed: int = 0) -> None:
        self.start, self.pairs, self.step = start, pairs, step
        self.shapes = [p.shape[1:] for p in start.network.parameters()] + [start.x.shape[1:]]
        held = [p.detach() for p in start.network.parameters()] + [start.x]
        self.theta = torch.cat([value.flatten(1) for value in held], dim=1)
        self.draw = Draws(seed)
        self.moments = torch.zeros_like(self.theta), torch.zeros_like(self.theta)
        self.best = torch.full((len(self.theta),), FAR, dtype=torch.float64)

    def built(self, theta: Tensor) -> tuple[Network, Tensor]:
        """Networks and inputs from flat rows of numbers."""
        pieces = theta.split([shape.numel() for shape in self.shapes], dim=1)
        *weights, x = [piece.reshape(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return rebuilt(self.start.network, weights), x

    def scores(self, theta: Tensor) -> Tensor:
        """How close each network is to a violation of its own goal: zero is one. Checks them all on the way."""
        network, x = self.built(theta)
        certificate = certify(network, x)
        found, _ = broken(certificate, dataclasses.replace(self.start, network=network, x=x), slack=SLACK)
        assert not found, f"{found[:5]} of {self.start.recipe}"
        return tightness(certificate, len(theta) // len(self.theta))

    def climb(self, steps: int) -> Tensor:
        """The best score of every restart after so many steps."""
        for count in range(1, steps + 1):
            away = self.draw(self.pairs, *self.theta.shape)
            nudge = 1e-3 * away * self.theta.abs().clamp(min=1e-3)
            sides = torch.cat([self.theta + nudge, self.theta - nudge]).flatten(0, 1)
            scores = self.scores(sides).reshape(2, self.pairs, -1)
            self.best = torch.maximum(self.best, scores.flatten(0, 1).amax(dim=0))
            slope = ((scores[0] - scores[1])[..., None] * away).mean(dim=0)
            self.theta = self.theta + self._adam(slope, count) * self.theta.abs().clamp(min=1e-2)
        return self.best

    def _adam(self, slope: Tensor, count: int) -> Tensor:
        mean, square = self.moments
        self.moments = 0.8 * mean + 0.2 * slope, 0.95 * square + 0.05 * slope.square()
        unbiased = self.moments[0] / (1 - 0.8**count), self.moments[1] / (1 - 0.95**count)
        return self.step * unbiased[0] / (unbiased[1].sqrt() + 1e-12)


def rebuilt(network: Network, weights: list[Tensor]) -> Network:
    """The network with other numbers in place of its parameters."""
    held = {
        id(old): torch.nn.Parameter(new, requires_grad=False)
        for old, new in zip(network.parameters(), weights, strict=True)
    }
    return copy.deepcopy(network, held)


def tightness(certificate: Certificate, repeats: int) -> Tensor:
    """``measured - upper`` or ``lower - measured`` of the last layer, as the goal of each network asks."""
    last = certificate.layers[-1]
    count = len(last.upper[CERTIFIED[0]]) // repeats
    goals = [GOALS[index % len(GOALS)] for index in range(count)] * repeats
    rows = []
    for index, (name, side) in enumerate(goals):
        value = last.measured[name][index]
        rows.append(value - last.upper[name][index] if side == "upper" else last.lower[name][index] - value)
    scores = torch.stack(rows)
    return torch.where(torch.isnan(scores), FAR, scores.clamp(min=FAR))  # NaN: zero between zero and zero


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ATTACKED))
def test_ascent_never_crosses_a_bound(name: str) -> None:
    ascent = Ascent(batch(base(1, **ATTACKED[name])))
    best = ascent.climb(STEPS)
    for (goal, side), score in zip(GOALS, best.reshape(-1, len(GOALS)).amax(dim=0).tolist(), strict=True):
        assert score <= SLACK, f"{name}: {goal} {side}"


def eye(width: int) -> Tensor:
    return torch.eye(width, dtype=torch.float64)


def softmax(query: Tensor, key: Tensor, **settings: object) -> Softmax:
    return Softmax(query, key, **({"heads": 1, "scale": 1.0} | settings))


def carrying(mixer: Softmax | Fixed, value: Tensor, out: Tensor | None = None, **biases: Tensor) -> Attention:
    """Attention of which the value maps are those given, side by side for several heads."""
    heads = mixer.heads
    return Attention(
        mixer, Values(value, eye(value.shape[-1]) if out is None else out, heads=heads, **biases)
    )


def two_points() -> tuple[Network, Tensor]:
    one = torch.ones(1, 1, dtype=torch.float64)
    part = carrying(softmax(0.7 * one, one), one)
    return Network([part] * 6), torch.tensor([[-0.65], [0.65]], dtype=torch.float64)


def permutation() -> tuple[Network, Tensor]:
    """Queries turned by a permutation find one key each: the map is that permutation, and nothing contracts."""
    turn = eye(4)[[1, 2, 3, 0]]
    return Network([carrying(softmax(300 * turn, eye(4)), eye(4))] * 3), eye(4)


def rank_one_values() -> tuple[Network, Tensor]:
    draw = Draws(1)
    parts = [carrying(softmax(draw(4, 4), draw(4, 4)), draw(4, 1) * draw(1, 4)) for _ in range(3)]
    return Network([Skip(part) for part in parts]), draw(5, 4)


def opposite_heads(off: float) -> tuple[Network, Tensor]:
    """Two heads of the same map whose values cancel, up to ``off``."""
    draw = Draws(2)
    query, key = draw(4, 2), draw(4, 2)
    mixer = softmax(torch.cat([query, query], 1), torch.cat([key, key], 1), heads=2)
    value = draw(4, 3)
    out = draw(3, 4)
    part = carrying(mixer, torch.cat([value, -value * (1 + off)], 1), torch.cat([out, out], 0))
    return Network([part, part]), draw(5, 4)


def skip_cancels(near: float) -> tuple[Network, Tensor]:
    """``x - P x`` with maps that are nearly the identity: what is left is ``near``, of which rounding is a part."""
    maps = (1 - near) * eye(4) + near / 4
    maps = maps / maps.sum(dim=-1, keepdim=True)
    return Network([Skip(carrying(Fixed(maps[None]), -eye(3)))]), Draws(3)(4, 3)


def softmax_cancels(size: float) -> tuple[Network, Tensor]:
    """The same with a softmax that finds the query itself."""
    return Network([Skip(carrying(softmax(size * eye(4), eye(4)), -eye(4)))] * 2), eye(4) + 0.01 * Draws(4)(
        4, 4
    )


def mlp_cancels() -> tuple[Network, Tensor]:
    draw = Draws(5)
    x = draw(4, 3)
    inverse = torch.linalg.inv(draw(3, 3))
    part = Mlp(inverse, -torch.linalg.inv(inverse), activation="identity", up_bias=draw(3))
    return Network([Skip(part), Skip(Mlp(eye(3), -eye(3), activation="relu"))]), x


def same_direction(kind: type[LayerNorm | RMSNorm | Sphere], eps: float) -> tuple[Network, Tensor]:
    """Tokens that differ in their length alone: without eps, norms make them equal."""
    lengths = torch.tensor([[0.3], [1.0], [7.0], [1e3]], dtype=torch.float64)
    return Network([kind(eps=eps), Scale(2.0)]), lengths * Draws(6)(1, 5)


def length_by_eps() -> tuple[Network, Tensor]:
    """Tokens far shorter than eps: the norm is a multiplication."""
    return Network([LayerNorm(eps=1.0), RMSNorm(eps=1e-5)]), 1e-6 * Draws(7)(4, 5)


def norm_of_the_nearly_constant() -> tuple[Network, Tensor]:
    """The channels of every token are nearly equal: LayerNorm enlarges what is left of them a thousandfold."""
    return Network([LayerNorm(eps=1e-12)]), 1 + 1e-6 * Draws(8)(4, 2)


def cross_polytope() -> tuple[Network, Tensor]:
    """Vertices +-3 e_k, mixed three by three: in l1 the radius does not contract as the diameter does."""
    rows = []
    for signs in ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1), (1, 1, 1), (1, -1, -1)):
        row = torch.zeros(6, dtype=torch.float64)
        for k, sign in enumerate(signs):
            row[k if sign > 0 else k + 3] = 1 / 3
        rows.append(row)
    maps = torch.stack(rows)
    maps = maps / maps.sum(dim=-1, keepdim=True)
    return Network([carrying(Fixed(maps[None]), eye(3))] * 2), torch.cat([3 * eye(3), -3 * eye(3)])


def halves() -> tuple[Network, Tensor]:
    """Half of the tokens read one, half another one: Frobenius and column residuals double."""
    maps = torch.zeros(8, 8, dtype=torch.float64)
    maps[:4, 0], maps[4:, 1] = 1.0, 1.0
    x = torch.zeros(8, 1, dtype=torch.float64)
    x[0], x[1] = 1.0, -1.0
    return Network([carrying(Fixed(maps[None]), eye(1))]), x


def sink(strength: float) -> tuple[Network, Tensor]:
    """All queries read one key: rows differ by ``exp(-strength)``, which may be no float any more."""
    draw = Draws(9)
    query = torch.zeros(3, 2, dtype=torch.float64)
    query[1:, 1] = 1.0
    key = torch.zeros(3, 2, dtype=torch.float64)
    key[0, 0], key[1, 1] = 1.0, 0.5
    bias = torch.tensor([strength, 0.0], dtype=torch.float64)
    x = draw(4, 3)
    x[:, 0] = 0.0
    x[2, 0] = 1.0
    return Network([carrying(softmax(query, key, query_bias=bias), draw(3, 3))] * 2), x


def logits_cancel() -> tuple[Network, Tensor]:
    """Queries and keys that are orthogonal but for rounding: the logits are what is left."""
    query = torch.tensor([[1.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    key = torch.tensor([[0.7, -0.7 + 1e-13], [0.3, -0.3 + 3e-14]], dtype=torch.float64)
    return Network([carrying(softmax(query, key), eye(2))] * 2), Draws(10)(4, 2)


def values_cancel() -> tuple[Network, Tensor]:
    """Values and outputs that are orthogonal but for rounding."""
    draw = Draws(11)
    value = torch.tensor([[1.0, 1.0], [3.0, 3.0]], dtype=torch.float64)
    out = torch.tensor([[0.7, 0.3], [-0.7 + 1e-13, -0.3 + 3e-14]], dtype=torch.float64)
    return Network([carrying(softmax(draw(2, 2), draw(2, 2)), value, out)]), draw(4, 2)


def on_the_kink() -> tuple[Network, Tensor]:
    """Integers that hit the kink of ReLU exactly."""
    up = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    x = torch.tensor([[1.0, -1.0], [2.0, -2.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return Network([Skip(Mlp(up, eye(2), activation="relu")), Mlp(up, eye(2), activation="relu")]), x


def tiny(size: float) -> tuple[Network, Tensor]:
    draw = Draws(12)
    part = Skip(carrying(softmax(draw(3, 3), draw(3, 3)), draw(3, 3)))
    return Network([part, Chain([part, Mlp(draw(3, 4), draw(4, 3), activation="gelu")])]), size * draw(4, 3)


def offset(size: float) -> tuple[Network, Tensor]:
    """Biases that drown what tokens differ by."""
    draw = Draws(13)
    part = carrying(softmax(draw(3, 3), draw(3, 3)), draw(3, 3), out_bias=size * draw(3), value_bias=draw(3))
    return Network([part, Skip(part), Chain([LayerNorm(eps=1e-5), part])]), draw(4, 3)


def nothing_left() -> tuple[Network, Tensor]:
    """Parts that make all tokens equal, and parts that take one channel away."""
    draw = Draws(14)
    gone = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    blocks: list[Part] = [Skip(Sum([]), gone), Skip(Chain([]), -1.0), Sum([Scale(gone), Scale(-gone)])]
    return Network([*blocks, Skip(Mlp(draw(3, 3), draw(3, 3), activation="tanh"))]), draw(4, 3)


def scales_cancel(*scales: float) -> tuple[Network, Tensor]:
    """Branches whose scales add up to something far smaller than each, part of which floats lose."""
    return Network([Sum([Scale(scale) for scale in scales]), Skip(Scale(-1.0), 1.0 + 2.0**-52)]), Draws(16)(
        4, 3
    )


def unread_mountain(strength: float) -> tuple[Network, Tensor]:
    """A token as large as floats go, read with a weight that is below the smallest of them."""
    draw = Draws(17)
    query = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    key = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    bias = torch.tensor([0.0, -strength], dtype=torch.float64)
    x = draw(4, 3)
    x[:, 0] = 0.0
    x[:, 2] *= 1e-178
    x[3] = torch.tensor([1.0, 0.0, 1e140], dtype=torch.float64)
    last = torch.diag(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    return Network([carrying(softmax(query, key, query_bias=bias), last)]), x


def absolute(activation: str) -> tuple[Network, Tensor]:
    """``|x|``, nearly, of tokens that are zero but for two: the sum of distances to the mean doubles."""
    x = torch.zeros(20, 1, dtype=torch.float64)
    x[0], x[1] = 9.0, -9.0
    up = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    part = Mlp(up, torch.ones(2, 1, dtype=torch.float64), activation=activation)
    return Network([part, Skip(part, 0.1)]), x


def one_line(*, row: bool, attention: bool) -> tuple[Network, Tensor]:
    """A matrix with ones in one row or column alone: what it does to l1 and to linf differs by the dimension."""
    matrix = torch.zeros(6, 6, dtype=torch.float64)
    matrix[0] = 1.0
    matrix = matrix if row else matrix.T.contiguous()
    x = torch.zeros(4, 6, dtype=torch.float64)
    x[1, 0], x[2], x[3] = 1.0, 1.0, -1.0
    still = Fixed(eye(4)[None])
    part = carrying(still, matrix) if attention else Mlp(eye(6), matrix, activation="identity")
    return Network([part, Skip(part)]), x[:2].repeat(2, 1) if row else x


def steepest(activation: str, at: float) -> tuple[Network, Tensor]:
    """Tokens where an activation is steeper than one."""
    part = Mlp(eye(2), eye(2), activation=activation)
    return Network([part, Chain([part, part])]), at + 0.01 * Draws(18)(4, 2)


def one_channel() -> tuple[Network, Tensor]:
    """LayerNorm of a single channel is its bias."""
    one = torch.ones(1, dtype=torch.float64)
    return Network([Skip(LayerNorm(one, one, eps=1e-5)), LayerNorm(one, one, eps=1e-5)]), Draws(15)(4, 1)


MADE = {
    "two points": two_points,
    "permutation": permutation,
    "rank-one values": rank_one_values,
    "opposite heads": lambda: opposite_heads(0.0),
    "nearly opposite heads": lambda: opposite_heads(1e-12),
    "mlp cancels": mlp_cancels,
    "tokens below eps": length_by_eps,
    "nearly constant channels": norm_of_the_nearly_constant,
    "cross-polytope": cross_polytope,
    "halves": halves,
    "logits cancel": logits_cancel,
    "values cancel": values_cancel,
    "on the kink": on_the_kink,
    "nothing left": nothing_left,
    "one channel": one_channel,
    **{
        f"steepest {name}": partial(steepest, name, at)
        for name, at in (("gelu", 1.4142), ("gelu_tanh", 1.4185), ("silu", 2.3994), ("quick_gelu", 1.4097))
    },
    **{
        f"one {'row' if row else 'column'} of {'values' if attention else 'an mlp'}": partial(
            one_line, row=row, attention=attention
        )
        for row in (True, False)
        for attention in (True, False)
    },
    "absolute value": lambda: absolute("relu"),
    "smooth absolute value": lambda: absolute("gelu"),
    "scales cancel": lambda: scales_cancel(0.1, 0.2, -0.3),
    "scales drown": lambda: scales_cancel(1e16, 1.0, -1e16),
    **{f"mountain {size}": lambda size=size: unread_mountain(size) for size in (700.0, 740.0, 746.0)},
    **{
        f"skip cancels {near}": lambda near=near: skip_cancels(near)
        for near in (0.0, 1e-16, 1e-14, 1e-9, 0.1)
    },
    **{
        f"softmax cancels {size}": lambda size=size: softmax_cancels(size)
        for size in (3.0, 20.0, 36.0, 50.0, 900.0)
    },
    **{
        f"sink {size}": lambda size=size: sink(size)
        for size in (10.0, 40.0, 300.0, 720.0, 743.0, 760.0, 2000.0)
    },
    **{
        f"size {size}": lambda size=size: tiny(size)
        for size in (5e-324, 1e-310, 1e-200, 1e-160, 1e-20, 1e5, 1e100)
    },
    **{f"offset {size}": lambda size=size: offset(size) for size in (1e3, 1e8, 1e17)},
    **{
        f"same direction {kind.__name__} {eps}": lambda kind=kind, eps=eps: same_direction(kind, eps)
        for kind in (LayerNorm, RMSNorm, Sphere)
        for eps in (0.0, 1e-12, 1e-2)
    },
}


@pytest.mark.parametrize("name", list(MADE))
def test_networks_made_to_break_certificates(name: str) -> None:
    network, x = MADE[name]()
    assert not refuted(certify(network, x), truth(network, x))


@pytest.mark.parametrize("size", [1e160, 1e300])
def test_states_beyond_the_range_of_floats_are_refused(size: float) -> None:
    with pytest.raises(NumericalError, match="beyond the range of float64"):
        certify(*tiny(size))
