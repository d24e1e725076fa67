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
