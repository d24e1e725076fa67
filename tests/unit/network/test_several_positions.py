"""Rules that add to queries and keys, multiply them head by head, and several rules at once, against loops."""

import math

import pytest
import torch
from torch import Tensor

from kit.trees import Draws
from rankscope.bounds import certify
from rankscope.bounds.enclosure import Enclosed
from rankscope.bounds.map_rules import enclosed_maps
from rankscope.errors import ConfigError, ShapeError
from rankscope.network import (
    Alibi,
    Attention,
    Context,
    HeadFactors,
    Network,
    Position,
    Rotary,
    SeenOffsets,
    Several,
    Softmax,
    TransformerXL,
    Values,
)

DIM, HEADS, WIDTH, TOKENS = 8, 2, 4, 5
DRAW = Draws(0)
QUERY, KEY = DRAW(DIM, DIM), DRAW(DIM, DIM)
ASKED, OFFERED = DRAW(HEADS, TOKENS, WIDTH), DRAW(HEADS, TOKENS, WIDTH)
FACTORS, SLOPES, FREQUENCIES = DRAW(HEADS).abs() + 0.5, DRAW(HEADS).abs(), torch.tensor([0.7, 0.2]).double()


def mixer(position: object, **more: object) -> Softmax:
    return Softmax(QUERY, KEY, heads=HEADS, position=position, **more)  # type: ignore[arg-type]


def turned(v: Tensor, angle: Tensor) -> Tensor:
    a, b = v[:2], v[2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def by_hand(x: Tensor) -> Tensor:
    """Maps head by head and token by token: a factor, a table, a turn and a slope."""
    maps = torch.zeros(HEADS, TOKENS, TOKENS).double()
    for h in range(HEADS):
        own = slice(h * WIDTH, (h + 1) * WIDTH)
        for i in range(TOKENS):
            q = turned(FACTORS[h] * (x[i] @ QUERY[:, own]) + ASKED[h, i], i * FREQUENCIES)
            logits = []
            for j in range(TOKENS):
                k = turned(x[j] @ KEY[:, own] + OFFERED[h, j], j * FREQUENCIES)
                logits.append(float(q @ k) / math.sqrt(WIDTH) - float(SLOPES[h]) * abs(i - j))
            weights = [math.exp(one - max(logits)) for one in logits]
            maps[h, i] = torch.tensor([one / sum(weights) for one in weights], dtype=torch.float64)
    return maps


def every_rule() -> Several:
    return Several([HeadFactors(FACTORS), SeenOffsets(ASKED, OFFERED), Rotary(FREQUENCIES), Alibi(SLOPES)])


def test_rules_act_one_after_the_other() -> None:
    x = DRAW(TOKENS, DIM)
    torch.testing.assert_close(mixer(every_rule())(x, Context()), by_hand(x), rtol=0, atol=1e-12)


def test_factors_without_a_norm_are_weights() -> None:
    x, wide = DRAW(TOKENS, DIM), FACTORS.repeat_interleave(WIDTH)
    folded = Softmax(QUERY * wide, KEY, heads=HEADS)
    torch.testing.assert_close(mixer(HeadFactors(FACTORS))(x, Context()), folded(x, Context()))


def test_equal_rows_are_biases() -> None:
    x = DRAW(TOKENS, DIM)
    rows = [one[:, :1].expand(-1, TOKENS, -1) for one in (ASKED, OFFERED)]
    told = Softmax(
        QUERY, KEY, heads=HEADS, query_bias=rows[0][:, 0].flatten(), key_bias=rows[1][:, 0].flatten()
    )
    torch.testing.assert_close(mixer(SeenOffsets(*rows))(x, Context()), told(x, Context()))


def test_no_more_rows_than_were_seen() -> None:
    x = DRAW(TOKENS, DIM)
    rule = mixer(SeenOffsets(ASKED, OFFERED))
    cut = mixer(SeenOffsets(ASKED[:, :3], OFFERED[:, :3]))
    torch.testing.assert_close(rule(x[:3], Context()), cut(x[:3], Context()))
    with pytest.raises(ShapeError, match="at most 5 tokens, got 6"):
        rule(DRAW(TOKENS + 1, DIM), Context())
    with pytest.raises(ShapeError, match="was seen for 5 tokens, got 3"):
        mixer(SeenOffsets(ASKED, OFFERED, is_exact=True))(x[:3], Context())


def test_a_rule_that_reads_queries_is_not_one_of_several() -> None:
    with pytest.raises(ConfigError, match="TransformerXL cannot be one of several rules"):
        Several([Rotary(FREQUENCIES), TransformerXL(DRAW(DIM, DIM), DRAW(HEADS, WIDTH))])


def test_tables_of_two_shapes() -> None:
    with pytest.raises(ConfigError, match="heads tokens width"):
        SeenOffsets(ASKED, OFFERED[:, :3])


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_what_is_certified_is_true(size: float) -> None:
    values = Values(DRAW(DIM, DIM) / 4, DRAW(DIM, DIM) / 4, heads=HEADS)
    network = Network([Attention(mixer(every_rule()), values) for _ in range(2)])
    x, name = size * DRAW(TOKENS, DIM), "residual[frobenius,mean]"
    for state, bounds in zip(network.states(x), certify(network, x).layers, strict=True):
        residual = torch.linalg.matrix_norm(state - state.mean(dim=0)).log()
        assert bounds.lower[name] <= residual <= bounds.upper[name]


@pytest.mark.parametrize(
    "rule",
    [HeadFactors(40 * FACTORS), SeenOffsets(ASKED, OFFERED), every_rule()],
    ids=lambda one: type(one).__name__,
)
def test_an_error_of_the_tokens_is_carried_through_the_rules(rule: Position) -> None:
    """Maps of a first token that is moved by at most the error lie within the radius; it is no wild guess either.

    That token is next to nothing, so that what moves is its query: keys of others, which are exact, are long.
    """
    x, attention = 0.1 * DRAW(TOKENS, DIM), mixer(rule)
    x[0] *= 1e-3
    error = torch.zeros(TOKENS, dtype=torch.float64)
    error[0] = 1e-7
    found = enclosed_maps(attention, Enclosed(x=x, error=error), Context())
    assert bool(found.maps.all())
    worst = 0.0
    for _ in range(50):
        moved = x.clone()
        moved[0] += error[0] * torch.nn.functional.normalize(DRAW(DIM), dim=0)
        share = ((attention(moved, Context()) - found.maps).abs() / found.maps).amax(dim=-1) / found.radius
        worst = max(worst, float(share[:, 0].max()))
    assert 0.05 < worst <= 1.0
