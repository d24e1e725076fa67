"""The theorem of the two orders, term by term, against arithmetic with sixty digits and plain formulas."""

import math

import mpmath
import numpy as np
import pytest
import torch

from rankscope.layers.facts import layer_facts

TOKENS, DIM = 4, 3


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def softmax_attention(
    x: list[list[mpmath.mpf]], logits: mpmath.matrix, values: mpmath.matrix
) -> mpmath.matrix:
    """Softmax attention with loops; ``logits`` is W_QK with its scale."""
    tokens = mpmath.matrix(x)
    scores = tokens * logits * tokens.T
    out = mpmath.matrix(tokens.rows, values.cols)
    for i in range(tokens.rows):
        weights = [mpmath.exp(scores[i, j]) for j in range(tokens.rows)]
        total = mpmath.fsum(weights)
        for a in range(values.cols):
            mixed = [weights[j] / total * (tokens[j, :] * values)[a] for j in range(tokens.rows)]
            out[i, a] = mpmath.fsum(mixed)
    return out


def centred(y: np.ndarray) -> np.ndarray:
    return y - y.mean(axis=0)


def test_softmax_attention_has_the_third_order_term_of_the_theorem() -> None:
    """T_1 = T_2 = 0 and T_3(R) = J R M C W: at s = 1e-15 with sixty digits the residual over s^3 is that term."""
    x, r = drawn(DIM, seed=0), drawn(TOKENS, DIM, seed=1)
    m, w = drawn(DIM, DIM, seed=2), drawn(DIM, DIM, seed=3)
    with mpmath.workdps(60):
        s = mpmath.mpf(10) ** -15
        near = [[mpmath.mpf(x[a]) + s * mpmath.mpf(r[i, a]) for a in range(DIM)] for i in range(TOKENS)]
        out = softmax_attention(near, mpmath.matrix(m), mpmath.matrix(w))
        means = [mpmath.fsum(out[i, a] for i in range(TOKENS)) / TOKENS for a in range(DIM)]
        found = [[float((out[i, a] - means[a]) / s**3) for a in range(DIM)] for i in range(TOKENS)]
    covariance = r.T @ centred(r) / TOKENS
    np.testing.assert_allclose(found, centred(r) @ m @ covariance @ w, rtol=1e-9, atol=1e-12)


TOTALS = {
    "off-by-one": lambda total: 1 / (1 + total),
    "not divided": torch.ones_like,
    "its root": lambda total: total.rsqrt(),
    "the sum itself": lambda total: 1 / total,
}
"""Factors c of a query, as functions of what its weights e^l sum to."""


@pytest.mark.parametrize("name", TOTALS)
def test_the_first_order_term_is_the_change_of_what_weights_sum_to(name: str) -> None:
    """T_1(R)_i = (d_1 r . (R_i - mean)) y / r with r = c sum_j e^l: zero for softmax alone, where r is one."""
    x, r = torch.from_numpy(drawn(DIM, seed=6)), torch.from_numpy(drawn(TOKENS, DIM, seed=7))
    m, w = (torch.from_numpy(drawn(DIM, DIM, seed=seed)) / 2 for seed in (8, 9))

    def sums(queries: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        total = (queries @ m @ tokens.T).exp().sum(dim=-1)
        return TOTALS[name](total) * total

    def layer(tokens: torch.Tensor) -> torch.Tensor:
        weights = (tokens @ m @ tokens.T).exp()
        return TOTALS[name](weights.sum(dim=-1, keepdim=True)) * weights @ tokens @ w

    equal, step = x.expand(TOKENS, DIM), 1e-5
    slope = (layer(equal + step * r) - layer(equal - step * r)) / (2 * step)
    change = torch.func.grad(lambda query: sums(query, equal))(x)
    expected = torch.outer((r - r.mean(dim=0)) @ change, x @ w * sums(x, equal)) / sums(x, equal)
    np.testing.assert_allclose(slope - slope.mean(dim=0), expected, rtol=1e-7, atol=1e-8)
    assert (float(expected.norm()) > 1e-3) == (name != "the sum itself")


def test_a_map_of_rows_that_differ_has_its_own_first_order_term() -> None:
    """T_1(R) = J P R W for causal softmax, however its weights change with the tokens; P is the causal mean."""
    x, r = torch.from_numpy(drawn(DIM, seed=10)), torch.from_numpy(drawn(TOKENS, DIM, seed=11))
    m, w = (torch.from_numpy(drawn(DIM, DIM, seed=seed)) for seed in (12, 13))
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)

    def layer(tokens: torch.Tensor) -> torch.Tensor:
        return (tokens @ m @ tokens.T).masked_fill(later, -math.inf).softmax(dim=-1) @ tokens @ w

    step = 1e-5
    slope = (layer(x + step * r) - layer(x - step * r)) / (2 * step)
    means = r.cumsum(dim=0) / torch.arange(1, TOKENS + 1)[:, None]
    np.testing.assert_allclose(slope - slope.mean(dim=0), centred((means @ w).numpy()), rtol=1e-7, atol=1e-8)


WEIGHTS = {
    "off-by-one": lambda scores: scores.exp() / (1 + scores.exp().sum(dim=-1, keepdim=True)),
    "sigmoid": lambda scores: torch.sigmoid(scores - math.log(len(scores))),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_not_normalised_keep_lengths_apart_and_not_directions(name: str) -> None:
    """Orders 1 and 3; divided by their sums the same weights have 3 and 3."""
    m, w = (torch.from_numpy(drawn(DIM, DIM, seed=seed)) for seed in (4, 5))

    def bare(x: torch.Tensor) -> torch.Tensor:
        return WEIGHTS[name](x @ m @ x.T) @ x @ w

    def divided(x: torch.Tensor) -> torch.Tensor:
        weights = WEIGHTS[name](x @ m @ x.T)
        return weights / weights.sum(dim=-1, keepdim=True) @ x @ w

    for layer, orders in ((bare, (1, 3)), (divided, (3, 3))):
        found = layer_facts(layer, tokens=TOKENS, dim=DIM, depth=False)
        assert found.consensus == "kept"
        assert (found.residual_order, found.direction_order) == pytest.approx(orders, abs=0.02)


def test_directions_have_a_higher_order_only_where_the_leading_term_is_parallel() -> None:
    """Tokens (1 + s a_i) y + s^2 b_i have orders 1 and 2; a first order across y makes both 1."""
    y = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)

    def along(x: torch.Tensor) -> torch.Tensor:
        r = x - x.mean(dim=0)
        return (1 + r[:, :1]) * y + r.square()

    def across(x: torch.Tensor) -> torch.Tensor:
        return y + x - x.mean(dim=0)

    for layer, orders in ((along, (1, 2)), (across, (1, 1))):
        found = layer_facts(layer, tokens=TOKENS, dim=DIM, depth=False)
        assert (found.residual_order, found.direction_order) == pytest.approx(orders, abs=0.02)
