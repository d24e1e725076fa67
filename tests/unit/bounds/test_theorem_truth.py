"""Thousands of random networks try to break every statement that is called true.

Measured by the split pass, which has no rounding floor. Weights and tokens of all networks of one shape carry a leading
axis, with sizes from tiny to large.
"""

import pytest
import torch

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import PRINTED, THEOREMS, with_gamma
from rankscope.bounds.theorems.dong import needed_gamma, proven_constants_of_both
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Alibi, Attention, Chain, Mlp, Network, Skip, Softmax, Sphere, Values
from rankscope.split import log_measure, split_states

ROUNDING = (
    1e-9  # of the measured logs, relative; bounds are raised by at least as much where they are attained
)

SHAPES = [(1, 2, 2), (1, 3, 4), (2, 4, 5), (3, 6, 7), (2, 8, 3), (1, 6, 8), (4, 4, 2)]
"""Heads, dim, tokens."""

SEEDS = 100


class Draw:
    """Random parts for ``SEEDS`` networks at once."""

    def __init__(self, seed, dim, heads):
        self.generator, self.dim, self.heads = torch.Generator().manual_seed(seed), dim, heads

    def normal(self, *shape):
        return torch.randn(SEEDS, *shape, generator=self.generator, dtype=torch.float64)

    def square(self, low=-1.5, high=0.7):
        """Matrices of sizes ``10^low`` to ``10^high``, every fourth with a few large entries."""
        size = torch.rand(SEEDS, generator=self.generator, dtype=torch.float64) * (high - low) + low
        entries = self.normal(self.dim, self.dim) / self.dim**0.5
        entries[::4] = entries[::4].pow(3)
        return entries * (10**size)[:, None, None]

    def attention(self, *, orthogonal=False, mask="full", **rest):
        mixer = Softmax(
            self.square(),
            self.square(),
            heads=self.heads,
            query_bias=self.normal(self.dim),
            rule=parse_mask(mask),
            **rest,
        )
        value, out = self.square(-1, 0.5), self.square(-1, 0.5)
        if orthogonal:
            value, out = torch.linalg.qr(value).Q, torch.linalg.qr(out).Q
        return Attention(mixer, Values(value, out, heads=self.heads))

    def mlp(self):
        return Mlp(self.square(-1, 0.5), self.square(-1, 0.5), activation="gelu")

    def tokens(self, count):
        return (self.normal(count, self.dim).pow(3) + self.normal(1, self.dim)) * 10 ** self.normal(1, 1)


def cases(make, *, heads=None, layers=3):
    """Facts and split states of the networks with blocks ``make(draw)``, shape by shape."""
    for place, (many, dim, tokens) in enumerate(SHAPES):
        draw = Draw(place, dim, many if heads is None else heads)
        x, net = draw.tokens(tokens), Network([make(draw) for _ in range(layers)])
        yield facts_of(net, x, brackets=False), split_states(net, x)


def gaps(theorem, facts, states):
    """Log bound minus log measured, ``layers+1 *batch``."""
    measured = torch.stack([log_measure(find_measure(theorem.quantity), state).log for state in states])
    bound = theorem.log_bound(facts)
    assert not bool(bound.isnan().any())
    gap = bound - measured + ROUNDING * (1 + measured.abs())
    return torch.where((measured == -torch.inf) | (bound == torch.inf), torch.inf, gap)


def check(names, drawn, *, least):
    """No bound below the measured residual where all assumptions hold, and these hold often enough to say something."""
    tried = dict.fromkeys(names, 0)
    for facts, states in drawn:
        for name in names:
            theorem = THEOREMS[name]
            if not theorem.covers(facts):
                continue
            holds, gap = theorem.holds(facts), gaps(theorem, facts, states)
            assert bool((gap[:, holds] >= 0).all()), (name, gap.min())
            tried[name] += int(holds.sum())
            if name in PRINTED:
                check_computed_gamma(name, facts, states)
    assert min(tried.values()) >= least, tried


def check_computed_gamma(name, facts, states):
    """With the gamma that is computed the printed bound holds, whatever the logits."""
    both = {"constants": proven_constants_of_both} if name == "dong-skip" else {}
    needed = needed_gamma(facts, norm="linf" if name == "dong-2.2-winf" else "composite", **both)
    order = needed.clamp(min=1e-6, max=1e300).sort().values
    for gamma in (order[len(order) // 2].item(), order[-10].item()):
        gap = gaps(with_gamma(THEOREMS[name], gamma), facts, states)
        assert bool((gap[:, needed <= gamma] >= 0).all()), (name, gamma)


SPREADS = ("theorem-a[l1]", "theorem-a[l2]", "theorem-a[linf]")


def test_attention_alone():
    names = (*SPREADS, "theorem-b", "dong-2.2", "dong-2.2-winf", "dong-2.3")
    check(names, cases(lambda draw: draw.attention()), least=80)


def test_attention_and_mlps():
    blocks = cases(lambda draw: Chain([draw.attention(), draw.mlp()]))
    check((*SPREADS, "theorem-b", "dong-3.2-mlp"), blocks, least=150)


def test_attention_and_skips():
    check(("dong-skip",), cases(lambda draw: Skip(draw.attention())), least=150)


@pytest.mark.parametrize("mask", ["full", "causal", "window:1", "causal-window:1", "prefix:1"])
def test_the_masked_rate(mask):
    drawn = cases(lambda draw: draw.attention(mask=mask), heads=1, layers=5)
    check(("wu-masked",), drawn, least=SEEDS * len(SHAPES))


def test_positions_leave_the_masked_rate_true():
    position = Alibi(torch.tensor([0.5], dtype=torch.float64))
    drawn = cases(lambda draw: draw.attention(mask="causal", position=position), heads=1, layers=5)
    check(("wu-masked",), drawn, least=SEEDS * len(SHAPES))


def test_without_a_center_averaging_alone_bounds_the_residual():
    # Blocks never meet, so the statement is not claimed; what is left of its bound is still true.
    for facts, states in cases(lambda draw: draw.attention(mask="blocks:2"), heads=1, layers=5):
        assert bool((gaps(THEOREMS["wu-masked"], facts, states) >= 0).all())
        assert not bool(THEOREMS["wu-masked"].holds(facts).any())


@pytest.mark.parametrize("mask", ["full", "causal", "window:1"])
def test_tokens_on_the_sphere_draw_together(mask):
    def unit(x):
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)

    tried = 0
    for place, (_, dim, tokens) in enumerate(SHAPES):
        draw = Draw(place, dim, 1)
        net = Network([Chain([draw.attention(orthogonal=True, mask=mask), Sphere()]) for _ in range(5)])
        x = unit(unit(draw.tokens(tokens)).abs() + draw.normal(1, 1).abs())
        facts, theorem = facts_of(net, x, brackets=False), THEOREMS["sphere-orthogonal"]
        holds = theorem.holds(facts)
        assert bool((gaps(theorem, facts, split_states(net, x))[:, holds] >= 0).all())
        tried += int(holds.sum())
    assert tried >= SEEDS * len(SHAPES) - 10  # all, but for tokens exactly at a right angle
