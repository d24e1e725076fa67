"""Equilibria of every rank against a step written with numpy and mpmath, chains counted by hand, and autograd."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.dynamics.climb import own_roots
from rankscope.dynamics.extended import context, extended_spectrum
from rankscope.dynamics.staircase import Construction, every_rank, greatest_rank
from rankscope.errors import ConfigError, MaskError
from rankscope.masks import Causal, ExplicitMask, Full, parse_mask

STEP = 1e-12  # the bound; a step of these sizes loses some 1e-15


def moved(x: np.ndarray, mask: np.ndarray, shear: float) -> float:
    """How far one step moves an entry, from the definition."""
    tokens, dim = x.shape
    worst = 0.0
    for i in range(tokens):
        y = np.zeros(dim)
        for j in range(tokens):
            if mask[i, j]:
                for channel in range(dim):
                    y[channel] += x[j, channel]
                    if channel + 1 < dim:
                        y[channel + 1] += shear * x[j, channel]
        worst = max(worst, float(np.abs(y / np.linalg.norm(y) - x[i]).max()))
    return worst


def longest_chain(mask: np.ndarray) -> int:
    """Tokens on the longest chain: the first power of the map without its diagonal that is zero."""
    links = mask.astype(np.int64) - np.eye(len(mask), dtype=np.int64)
    return next(k for k in itertools.count(1) if not np.linalg.matrix_power(links, k).any())


@st.composite
def acyclic_masks(draw: st.DrawFn, most: int = 7) -> np.ndarray:
    """Self-loops, and links from later to earlier tokens of an order that is not the order of the numbers."""
    tokens = draw(st.integers(1, most))
    flat = draw(st.lists(st.booleans(), min_size=tokens**2, max_size=tokens**2))
    mask = np.tril(np.array(flat).reshape(tokens, tokens), -1) | np.eye(tokens, dtype=bool)
    order = draw(st.permutations(range(tokens)))
    return mask[np.ix_(order, order)]


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_four_ranks_of_one_value_map(rank: int) -> None:
    found = every_rank(Causal(), 6, 4, rank, shear=10.0)
    x = found.tokens.numpy()
    assert moved(x, np.tri(6, dtype=bool), 10.0) < STEP
    assert found.equation_residual < STEP
    assert found.float_equation_residual < STEP
    assert np.linalg.matrix_rank(x) == found.svd_rank == found.rank == rank
    assert found.digits == 15
    np.testing.assert_allclose(found.singular_values, np.linalg.svd(x)[1], rtol=1e-12, atol=1e-15)
    assert found.rank_threshold == pytest.approx(6 * 2**-52 * np.linalg.norm(x, 2))
    torch.testing.assert_close(found.system().step(found.tokens), found.tokens, rtol=0, atol=STEP)
    np.testing.assert_array_equal(found.value_map, np.eye(4) + 10 * np.eye(4, k=1))
    assert f"rank exactly {rank}" in found.proof or rank == 1


@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.floats(1.0, 100.0),
    st.sampled_from(["stable", "positive"]),
    st.data(),
)
def test_causal_climbing_tokens_in_closed_form(
    tokens: int, dim: int, shear: float, signs: str, data: st.DataObject
) -> None:
    """Token i has (-1/w)^m q_(i-m) in channel d - m, q_0 = 1 and q_i = +-sqrt(1 - 1/w^2); pivots (-1/w)^m exactly."""
    rank = data.draw(st.integers(1, min(tokens, dim)))
    found = every_rank(Causal(), tokens, dim, rank, shear=shear, signs=signs)  # type: ignore[arg-type]
    q = [1.0, *(sign * math.sqrt(1 - 1 / shear**2) for sign in found.signs[1:rank])]
    for i, m in itertools.product(range(rank), range(dim)):
        expected = (-1 / shear) ** m * q[i - m] if m <= i else 0.0
        # sqrt(1 - 1/w^2) near w = 1 is a square root of rounding
        assert float(found.tokens[i, dim - 1 - m]) == pytest.approx(
            expected, rel=1e-9, abs=1e-7 if shear < 1.01 else 1e-14
        )
    assert found.pivots == pytest.approx([(-1 / shear) ** m for m in range(rank)], rel=1e-13)
    assert all(sign == 1 for sign in found.signs[:rank]) or signs == "stable"
    assert moved(found.tokens.numpy(), np.tri(tokens, dtype=bool), shear) < STEP


def test_at_shear_one_causal_tokens_are_orthogonal() -> None:
    found = every_rank(Causal(), 5, 5, 5, shear=1.0)
    np.testing.assert_array_equal(found.tokens @ found.tokens.T, np.eye(5))
    assert moved(found.tokens.numpy(), np.tri(5, dtype=bool), 1.0) == 0.0


@settings(max_examples=60, deadline=None)
@given(acyclic_masks(), st.integers(1, 6), st.sampled_from(["stable", "positive"]), st.data())
def test_any_acyclic_mask_has_every_rank_up_to_its_longest_chain(
    mask: np.ndarray, dim: int, signs: str, data: st.DataObject
) -> None:
    rule, greatest = ExplicitMask(mask), min(longest_chain(mask), dim)
    assert greatest_rank(rule, len(mask), dim) == greatest
    rank = data.draw(st.integers(1, greatest))
    found = every_rank(rule, len(mask), dim, rank, shear=50.0, signs=signs)  # type: ignore[arg-type]
    x = found.tokens.numpy()
    assert moved(x, mask, 50.0) < STEP
    assert not x[:, : dim - rank].any()
    assert found.svd_rank == rank
    links = mask.astype(np.int64) - np.eye(len(mask), dtype=np.int64)
    for m, pivot in enumerate(found.pivots):  # as many chains of m + 1 tokens as end there, times (-1/w)^m
        (ends,) = np.nonzero(np.isclose(x[:, dim - 1 - m], pivot, rtol=1e-12, atol=0))
        chains = np.linalg.matrix_power(links, m).sum(axis=1)
        assert any(math.isclose(pivot, chains[token] * (-1 / 50.0) ** m, rel_tol=1e-12) for token in ends)


def test_the_rank_in_many_digits() -> None:
    found = every_rank(Causal(), 12, 10, 10)
    assert found.digits > 15
    assert found.svd_rank == found.rank == 10
    assert found.float_equation_residual < STEP
    with mpmath.workdps(60):
        x = mpmath.matrix([[mpmath.mpf(entry) for entry in row] for row in found.exact_tokens])
        value = mpmath.matrix((np.eye(10) + 10 * np.eye(10, k=1)).tolist())
        y = mpmath.matrix(np.tri(12).tolist()) * x * value
        worst = max(abs(y[i, k] / mpmath.norm(y[i, :].T, 2) - x[i, k]) for i in range(12) for k in range(10))
        # the strings carry that many digits, and the step multiplies them by at most n (1 + w)
        assert worst < 150 * mpmath.mpf(10) ** -found.digits
        sizes = mpmath.svd_r(x, compute_uv=False)
        logs = [float(mpmath.log10(one)) for one in sizes]
    np.testing.assert_allclose(found.log10_singular_values, logs, rtol=0, atol=1e-9)
    assert found.log10_singular_values[9] > found.log10_rank_threshold + 5
    np.testing.assert_allclose(found.tokens, np.array(found.exact_tokens, dtype=float), rtol=1e-15)
    assert found.log10_pivots == pytest.approx(list(range(0, -10, -1)))


def test_float64_cannot_see_a_rank_that_more_digits_can() -> None:
    blind = every_rank(Causal(), 20, 18, 18, digits=15)
    assert (blind.rank, blind.digits) == (18, 15)
    assert blind.svd_rank < 18
    assert blind.equation_residual < STEP
    seen, better = (every_rank(Causal(), 20, 18, 18, digits=digits) for digits in (30, 80))
    assert seen.svd_rank == 18
    # relative error of a singular value near 1e-17 with 30 digits: some 1e-12
    np.testing.assert_allclose(seen.log10_singular_values, better.log10_singular_values, rtol=0, atol=1e-10)


def test_singular_values_of_a_matrix_that_is_not_graded() -> None:
    """Hilbert's matrix: its smallest singular value, 2.6e-17, has a square far below the last of 25 digits."""
    with mpmath.workdps(60):
        expected = [float(mpmath.log10(one)) for one in mpmath.svd_r(mpmath.hilbert(12), compute_uv=False)]
    hilbert = context(25).hilbert(12)
    found = extended_spectrum(np.array(hilbert.tolist(), dtype=object), 25, dim=14)
    # entries rounded to 25 digits change a value of 1e-17 by 1e-8 of itself
    np.testing.assert_allclose(found.log10_values, expected, rtol=0, atol=1e-6)
    assert found.rank == 12
    assert found.log10_threshold == pytest.approx(expected[0] + math.log10(14) - 25, abs=1.0)


def test_float64_is_left_where_a_large_shear_hides_the_rank() -> None:
    found = every_rank(Causal(), 6, 6, 6, shear=1e4)
    assert found.digits > 15
    assert found.svd_rank == 6


def test_values_below_the_range_of_floats() -> None:
    found = every_rank(Causal(), 5, 5, 5, shear=1e90)
    assert found.singular_values[-1] == 0.0
    assert found.pivots[-1] == 0.0
    assert found.log10_pivots == pytest.approx([0, -90, -180, -270, -360])
    assert found.svd_rank == 5
    assert -361 < found.log10_singular_values[-1] < -359
    assert found.exact_tokens[4][0].startswith("1.00000000")
    assert found.exact_tokens[4][0].endswith("e-360")


def own_block(found: Construction, token: int) -> np.ndarray:
    """Eigenvalues, largest first, of the derivative of a token's step by the token itself."""
    step = found.system().step
    jacobian = torch.autograd.functional.jacobian(step, found.tokens)[token, :, token, :]
    return np.sort(np.abs(np.linalg.eigvals(jacobian.numpy())))[::-1]


@pytest.mark.parametrize("text", ["causal", "causal-window:2"])
def test_multipliers_of_a_climbing_token_against_autograd(text: str) -> None:
    found = every_rank(parse_mask(text), 4, 4, 4, shear=6.0)
    weights = 6.0 ** (-2.0 * np.arange(4))
    for token in range(1, 4):
        graded = found.tokens[token].numpy()[::-1] * 6.0 ** np.arange(4)
        roots = own_roots(graded[: token + 1], weights[: token + 1])
        # channels before the token's first are neutral, and along the token itself the derivative is zero
        closed = np.sort([*np.abs(1 + roots), *[1.0] * (3 - token), 0.0])[::-1]
        np.testing.assert_allclose(own_block(found, token), closed, atol=1e-6)


def test_the_stable_sign_is_the_calmer_one() -> None:
    calm, upper = (every_rank(Causal(), 3, 3, 3, shear=3.0, signs=signs) for signs in ("stable", "positive"))
    assert (calm.signs, upper.signs) == ((1, -1, 1), (1, 1, 1))
    assert own_block(calm, 2)[0] < 1 < own_block(upper, 2)[0]
    pair = every_rank(Causal(), 2, 2, 2, shear=3.0)
    np.testing.assert_allclose(pair.tokens, [[0, 1], [-1 / 3, -math.sqrt(8) / 3]], atol=1e-15)
    assert own_block(pair, 1)[0] == pytest.approx(1 - math.sqrt(8) / 3, abs=1e-12)


def test_small_ones() -> None:
    assert every_rank(Causal(), 1, 1, 1).tokens.tolist() == [[1.0]]
    assert every_rank(Causal(), 1, 3, 1, shear=0.1).tokens.tolist() == [[0.0, 0.0, 1.0]]
    assert every_rank(Full(), 3, 2, 1).tokens.tolist() == [[0.0, 1.0]] * 3
    assert every_rank(Full(), 3, 2, 1).float_equation_residual == 0.0
    assert every_rank(Causal(), 4, 1, 1).svd_rank == 1


@pytest.mark.parametrize(
    ("rank", "tokens", "dim", "words"),
    [
        (0, 3, 3, "from 1 to 3"),
        (4, 3, 5, "from 1 to 3"),
        (4, 5, 3, "from 1 to 3"),
        (1, 0, 3, "at least one token"),
    ],
)
def test_impossible_numbers(rank: int, tokens: int, dim: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        every_rank(Causal(), tokens, dim, rank)


def test_impossible_masks() -> None:
    with pytest.raises(ConfigError, match=r"longest chain .* has 2 of 5; ranks go from 1 to 2"):
        every_rank(parse_mask("prefix:1"), 5, 5, 3)
    with pytest.raises(MaskError, match=r"equal in one step there, so only rank 1 exists.*without rank="):
        every_rank(Full(), 5, 5, 3)
    with pytest.raises(MaskError, match="tokens 0 and 1 read each other"):
        every_rank(parse_mask("window:1"), 5, 5, 3)
    with pytest.raises(MaskError, match="token 1 does not read itself"):
        every_rank(ExplicitMask([[1, 0], [1, 0]]), 2, 2, 2)


@pytest.mark.parametrize(("text", "shear", "rank"), [("causal", 0.7, 3), ("causal-window:1", 5.0, 12)])
def test_too_small_a_shear_is_refused_with_one_that_works(text: str, shear: float, rank: int) -> None:
    rule = parse_mask(text)
    with pytest.raises(ConfigError, match="is too small to build rank") as refused:
        every_rank(rule, 14, 14, rank, shear=shear)
    works = float(str(refused.value).split("; shear ")[1].removesuffix(" works"))
    assert every_rank(rule, 14, 14, rank, shear=works).rank == rank
    with pytest.raises(ConfigError, match="too small"):
        every_rank(rule, 14, 14, rank, shear=0.98 * works)


@pytest.mark.parametrize("shear", [0.0, -2.0, 1e101, math.inf, math.nan])
def test_the_shear_is_a_positive_number(shear: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most"):
        every_rank(Causal(), 3, 3, 2, shear=shear)


def test_a_large_shear_has_staying_tokens_too() -> None:
    found = every_rank(Causal(), 6, 4, 3, shear=1e90)
    assert found.equation_residual < 10.0 ** (5 - found.digits)


def test_too_few_digits() -> None:
    with pytest.raises(ConfigError, match="digits must be 15"):
        every_rank(Causal(), 3, 3, 2, digits=9)
