"""The exact second modulus and its certified bracket, held against the characteristic polynomial in fractions."""

import os
from functools import cache

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.masks import (
    ExplicitMask,
    bracket,
    describe,
    eigen,
    parse_mask,
    slem_words,
    spectrum,
)
from rankscope.masks.exact import exact_modulus
from rankscope.masks.spectrum import slem_bracket_of, slem_of
from reference import mask_loops

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))


def random_mask(drawn, largest):
    size = int(drawn.integers(2, largest + 1))
    mask = drawn.random((size, size)) < drawn.uniform(0.1, 0.8)
    mask[np.arange(size), drawn.integers(0, size, size)] = True
    if drawn.random() < 0.3:
        mask |= mask.T
    return mask | np.eye(size, dtype=bool) if drawn.random() < 0.5 else mask


def exact_of(mask):
    return mask_loops.slem(mask_loops.uniform_map(mask.tolist()))


@cache
def pool(count, largest, symmetric):
    """Random masks with their exact second modulus: the reference takes a while, so it is asked once."""
    drawn, found = np.random.default_rng(1), []
    for _ in range(count):
        mask = random_mask(drawn, largest)
        mask = mask | mask.T if symmetric else mask
        found.append((mask, exact_of(mask)))
    return found


NILPOTENT = [[1, 1, 1, 0, 1], [0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 1, 0, 1, 1]]


@pytest.mark.slow
def test_every_small_mask_is_exact_whatever_its_multiple_eigenvalues():
    """A float solver misses multiple eigenvalues by 1e-6 and more, and refuses the last of these masks."""
    for mask, exact in [
        *pool(2000 if SOAK else 60, 7, symmetric=False),
        (np.array(NILPOTENT, dtype=bool), 0.0),
    ]:
        graph = ExplicitMask(mask).graph(len(mask))
        low, high = graph.slem_bracket()
        assert graph.slem() == pytest.approx(exact, abs=1e-15)
        assert low <= exact <= high
        assert high - low < 1e-15
    assert exact_of(np.array(NILPOTENT)) == 0.0


@pytest.mark.parametrize("tokens", [16, 20])
def test_a_jordan_block_of_that_size_is_exact(tokens):
    """A ring in which token i reads i and i + 1, but the last reads all: nearly one Jordan block. QR in 80 digits."""
    mask = np.eye(tokens, dtype=bool) | np.roll(np.eye(tokens, dtype=bool), 1, axis=1)
    mask[-1] = True
    with mpmath.workdps(80):
        rows = [[mpmath.mpf(int(one)) / int(row.sum()) for one in row] for row in mask]
        exact = float(sorted(abs(value) for value in mpmath.eig(mpmath.matrix(rows), right=False))[-2])
    assert ExplicitMask(mask).graph(tokens).slem() == pytest.approx(exact, abs=1e-14)


@given(st.lists(st.fractions(-1, 1, max_denominator=9), min_size=1, max_size=7))
def test_the_largest_of_known_roots(roots):
    """A companion matrix has the roots one puts into it, each as often as one likes."""
    polynomial = [1]
    for root in roots:
        polynomial = [a - root * b for a, b in zip([*polynomial, 0], [0, *polynomial], strict=True)]
    size = len(roots)
    companion = [
        [-polynomial[j + 1] if i == 0 else 0 * roots[0] + (i == j + 1) for j in range(size)]
        for i in range(size)
    ]
    found = exact_modulus(companion, closed=False)
    assert found.value == float(max(map(abs, roots)))
    assert found.low <= max(map(abs, roots)) <= found.high


@pytest.fixture
def without_fractions(monkeypatch):
    """Every method for large masks, tried on small ones whose exact value is known."""
    monkeypatch.setattr(spectrum, "EXACT_TOKENS", 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["discs", "squaring", "inertia", "overlap"])
def test_every_method_for_large_masks_holds_what_it_certifies(method, monkeypatch, without_fractions):
    if method == "squaring":
        monkeypatch.setattr(bracket, "_by_discs", lambda block, error: (0.0, 1.0))
    if method == "overlap":
        monkeypatch.setattr(eigen, "DENSE_TOKENS", 1)
        monkeypatch.setattr(spectrum, "reversible_ends", lambda *given, **options: (0.0, 1.0))
    if method == "inertia":
        monkeypatch.setattr(bracket, "_SYMMETRIC_TOKENS", 1)
    widths = []
    for mask, exact in pool(2000 if SOAK else 60, 7, symmetric=method == "inertia"):
        low, high = ExplicitMask(mask).graph(len(mask)).slem_bracket()
        assert low - 1e-16 <= exact <= high + 1e-16  # the fraction 1/3 is between two floats
        widths.append(high - low)
    assert np.median(widths) < {"discs": 1e-11, "squaring": 1e-4, "inertia": 1e-9, "overlap": 0.9}[method]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "tokens"), [("window:2", 27), ("bigbird:1:0:2", 26), ("longformer:1:2", 28), ("strided:5", 26)]
)
def test_larger_masks_against_forty_digits(text, tokens):
    uniform = parse_mask(text).matrix(tokens)
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(int(one)) / int(row.sum()) for one in row] for row in uniform]
        exact = float(sorted(abs(value) for value in mpmath.eig(mpmath.matrix(rows), right=False))[-2])
    graph = parse_mask(text).graph(tokens)
    low, high = graph.slem_bracket()
    assert low <= exact <= high
    assert high - low < 1e-9
    assert low <= graph.slem() <= high


def test_a_float_map_stands_for_all_maps_around_it():
    """A multiple eigenvalue of a float map moves by more than its rounding: the bracket says so, and holds them."""
    mask = np.array([[1, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 1, 0, 1]])
    weights = mask * np.array([1.0, 1.0, 1.0, 1.0, 1.0 + 1e-9])  # no longer equal weights
    attention = weights / weights.sum(axis=1, keepdims=True)
    low, high = slem_bracket_of(attention, error=1e-8)
    assert 1e-6 < high - low < 0.1
    drawn = np.random.default_rng(0)
    for _ in range(50):
        near = attention * (1 + 1e-8 * drawn.uniform(-0.4, 0.4, attention.shape))
        near /= near.sum(axis=1, keepdims=True)
        assert low <= np.sort(np.abs(np.linalg.eigvals(near)))[-2] <= high
    tight = slem_bracket_of(attention)
    assert low <= tight.low <= slem_of(attention) <= tight.high <= high


def test_one_is_certain_where_parts_stay_apart_and_zero_where_all_read_the_same():
    assert parse_mask("blocks:2").graph(40).slem_bracket() == (1.0, 1.0)
    assert parse_mask("full").graph(200).slem_bracket() == (0.0, 0.0)
    assert parse_mask("causal").graph(500).slem_bracket() == (0.5, 0.5)
    ring = np.roll(np.eye(30, dtype=bool), 1, axis=1)
    assert ExplicitMask(ring).graph(30).slem_bracket() == (1.0, 1.0)


@pytest.mark.slow
def test_a_number_too_uncertain_to_give_still_has_a_bracket():
    rule = parse_mask("window:3+causal-window:64")
    low, high = rule.graph(400).slem_bracket()
    assert 0.3 < low < high < 0.7
    assert describe(rule, 400)["slem"] is None
    assert slem_words(rule.graph(400)) == f"between {low:.4f} and {high:.4f}"


def test_only_what_is_certain_is_shown():
    assert slem_words(parse_mask("window:1").graph(12), digits=6) == "0.974559"
    assert slem_words(parse_mask("causal").graph(9)) == "0.5000"


def test_large_sparse_masks_have_a_bracket_too():
    """The path with loops, whose second eigenvalue is known by hand: see the tests of the number itself."""
    tokens = 4000
    low, high = parse_mask("window:1").graph(tokens).slem_bracket()
    with mpmath.workdps(40):
        middle = mpmath.mpf(tokens - 1) / 2

        def boundary(t):
            first, second = mpmath.sin(-t * middle), mpmath.sin(t * (1 - middle))
            return (first + second) / 2 - (1 + 2 * mpmath.cos(t)) / 3 * first

        exact = (1 + 2 * mpmath.cos(mpmath.findroot(boundary, mpmath.pi / tokens))) / 3
        assert low <= exact <= high
    assert high - low < 1e-11
    assert high < 1.0
