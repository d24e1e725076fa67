"""Second largest eigenvalue modulus: published numbers, exact fractions, theorems, and large masks."""

import itertools
import tracemalloc
from math import exp

import flint
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import ArpackNoConvergence

from rankscope.errors import ShapeError
from rankscope.masks import ExplicitMask, describe, eigen, parse_mask, spectrum
from rankscope.masks.spectrum import slem_of
from reference import mask_loops

TRIPLE_QUARTER = [[1, 0, 1, 1, 1], [0, 1, 1, 1, 1], [1, 0, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 1, 0, 1]]
FOUR_OF_ONE_SIZE = [[1, 0, 1, 1, 0], [1, 1, 0, 0, 1], [0, 1, 1, 1, 0], [1, 1, 0, 1, 0], [0, 1, 0, 1, 1]]


def slem(text, tokens):
    return parse_mask(text).graph(tokens).slem()


@pytest.mark.parametrize(
    ("text", "tokens", "published"),
    [
        ("window:1", 10, 0.96261),
        ("window:2", 10, 0.87857),
        ("window:1", 12, 0.9746),
    ],
)
def test_published_rates(text, tokens, published):
    assert slem(text, tokens) == pytest.approx(
        published, abs=5e-5 if published == 0.9746 else 5e-6
    )  # printed digits


@pytest.mark.parametrize("tokens", [2, 3, 7, 64, 300])
def test_causal_masks_merge_tokens_at_one_half_exactly(tokens):
    assert slem("causal", tokens) == 0.5
    for width in (1, 2, 5):
        assert slem(f"causal-window:{width}", tokens) == 0.5


@pytest.mark.parametrize("tokens", [3, 4, 12, 50])
def test_a_prefix_takes_the_second_token_out_of_the_causal_rate(tokens):
    assert slem("prefix:2+causal", tokens) == 1 / 3
    assert slem("prefix:3+causal", tokens) == (1 / 4 if tokens > 3 else 0.0)
    assert slem("prefix:2", tokens) == 1 / 3


@pytest.mark.parametrize("tokens", [1, 2, 9, 200])
def test_the_full_mask_forgets_at_once(tokens):
    assert slem("full", tokens) == 0.0


def test_alibi_at_consensus():
    """Causal attention with bias -0.5 |i - j|: the second row, softmax(-0.5, 0), holds the rate, .62246."""
    tokens = 12
    distance = np.subtract.outer(np.arange(tokens), np.arange(tokens))
    weights = np.where(distance >= 0, np.exp(-0.5 * distance), 0.0)
    attention = weights / weights.sum(axis=1, keepdims=True)
    assert slem_of(attention) == pytest.approx(1 / (1 + exp(-0.5)), abs=1e-15)
    assert slem_of(attention) == pytest.approx(0.62246, abs=5e-6)  # printed digits


@pytest.mark.parametrize("tokens", [2, 5, 30])
def test_separate_blocks_never_merge(tokens):
    assert slem("blocks:2", tokens) == 1.0
    assert slem("window:0", tokens) == 1.0


@pytest.mark.parametrize("tokens", [2, 3, 6, 51])
def test_periodic_maps_never_merge(tokens):
    cycle = np.roll(np.eye(tokens, dtype=bool), 1, axis=1)
    assert ExplicitMask(cycle).graph(tokens).slem() == 1.0
    bipartite = np.add.outer(np.arange(tokens), np.arange(tokens)) % 2 == 1
    assert ExplicitMask(bipartite).graph(tokens).slem() == 1.0
    waits = cycle.copy()
    waits[0, 0] = True  # one self-loop breaks the period
    assert ExplicitMask(waits).graph(tokens).slem() < 1.0


@st.composite
def random_masks(draw, largest=7):
    tokens = draw(st.integers(1, largest))
    most = draw(st.integers(1, tokens))
    rows = [draw(st.sets(st.integers(0, tokens - 1), min_size=1, max_size=most)) for _ in range(tokens)]
    matrix = np.array([[j in row for j in range(tokens)] for row in rows])
    if draw(st.booleans()):
        matrix |= matrix.T
    return matrix | np.eye(tokens, dtype=bool) if draw(st.booleans()) else matrix


@given(random_masks())
def test_any_mask_against_exact_fractions(matrix):
    exact = mask_loops.slem(mask_loops.uniform_map(matrix.tolist()))
    # 1e-11: the mean of a multiple eigenvalue is right to rounding times the condition of all of them together
    assert ExplicitMask(matrix).graph(len(matrix)).slem() == pytest.approx(exact, abs=1e-11)


@given(random_masks())
def test_a_symmetric_mask_against_exact_fractions(matrix):
    symmetric = matrix | matrix.T
    exact = mask_loops.slem(mask_loops.uniform_map(symmetric.tolist()))
    # a few units of rounding per row, whatever the multiplicities
    rounding = 4 * len(matrix) * np.finfo(np.float64).eps
    assert ExplicitMask(symmetric).graph(len(matrix)).slem() == pytest.approx(exact, abs=rounding)


@pytest.mark.parametrize(
    ("matrix", "exact"),
    [(TRIPLE_QUARTER, 0.25), (FOUR_OF_ONE_SIZE, 1 / 3)],
    ids=["triple", "four of one modulus"],
)
def test_multiple_eigenvalues_are_taken_as_one(matrix, exact):
    """A plain solver scatters the triple eigenvalue 1/4 by 1e-6; the mean of the three is right to rounding.

    Another order of the tokens rounds differently, as another processor does.
    """
    for order in itertools.permutations(range(5)):
        permuted = np.array(matrix)[order, :][:, order]
        assert ExplicitMask(permuted).graph(5).slem() == pytest.approx(exact, abs=1e-13)
    assert mask_loops.slem(mask_loops.uniform_map(matrix)) == pytest.approx(exact, abs=1e-15)


def test_the_error_is_no_larger_than_its_estimate():
    """Of simple and multiple eigenvalues alike, held against those of the same fractions in 60 digits."""
    drawn = np.random.default_rng(1)
    for number in range(60):
        size = 3 + number % 9
        matrix = drawn.random((size, size)) < drawn.uniform(0.1, 0.8)
        matrix[np.arange(size), np.arange(size) - 1] = True  # a ring: one irreducible block
        with flint.ctx.workdps(60):
            rows = flint.acb_mat(
                [[flint.arb(int(entry)) / int(row.sum()) for entry in row] for row in matrix]
            )
            values = sorted(
                rows.eig(algorithm="approx", multiple=True), key=lambda value: float(abs(value - 1))
            )
            exact = max(abs(value).mid() for value in values[1:])
            plain = matrix / matrix.sum(axis=1, keepdims=True)
            found, estimate = eigen.general_modulus(csr_array(plain), closed=True)
            assert abs(found - exact) <= estimate


@pytest.mark.parametrize("length", [2, 4, 7])
def test_a_shift_register_forgets_completely(length):
    """The de Bruijn graph: nilpotent but for the eigenvalue 1, where a plain solver gives eps^(1/length)."""
    tokens = 2**length
    matrix = np.zeros((tokens, tokens), dtype=bool)
    for token in range(tokens):
        matrix[token, [2 * token % tokens, (2 * token + 1) % tokens]] = True
    assert ExplicitMask(matrix).graph(tokens).slem() == 0.0
    assert ExplicitMask(matrix.T).graph(tokens).slem() == 0.0


def random_map(tokens, seed, *, reversible=False):
    weights = np.exp(2 * np.random.default_rng(seed).standard_normal((tokens, tokens)))
    if reversible:
        weights = weights + weights.T
    return weights / weights.sum(axis=1, keepdims=True)


@given(st.integers(2, 12), st.integers(0, 2**16), st.booleans())
def test_a_random_map_against_numpy(tokens, seed, reversible):
    attention = random_map(tokens, seed, reversible=reversible)
    expected = np.sort(np.abs(np.linalg.eigvals(attention)))[-2]
    assert slem_of(attention) == pytest.approx(expected, abs=1e-10)  # simple eigenvalues, condition below 1e5
    assert slem_of(csr_array(attention)) == slem_of(coo_array(attention)) == slem_of(attention)


@given(st.integers(2, 10), st.integers(0, 2**16))
def test_no_eigenvalue_but_one_exceeds_the_contraction_coefficient(tokens, seed):
    attention = random_map(tokens, seed)
    dobrushin = max(np.abs(a - b).sum() / 2 for a in attention for b in attention)
    assert slem_of(attention) <= dobrushin + 1e-12  # rounding


@given(st.integers(2, 10), st.integers(0, 2**16))
def test_the_names_of_tokens_do_not_matter(tokens, seed):
    attention = random_map(tokens, seed)
    order = np.random.default_rng(seed).permutation(tokens)
    assert slem_of(attention[order][:, order]) == pytest.approx(slem_of(attention), abs=1e-12)  # rounding


# ------------------------------------------------------------------------------------------ large masks


@pytest.fixture
def iterate_beyond_60_tokens(monkeypatch):
    monkeypatch.setattr(eigen, "DENSE_TOKENS", 60)


LARGE = [
    "window:1",
    "window:7",
    "longformer:2:2",
    "dilated:3:3+window:1",
    "strided:9",
    "bigbird:2:1:2",
    "bigbird:1:0:3",
]


@pytest.mark.parametrize("text", LARGE)
def test_iteration_finds_what_the_dense_solver_finds(text, iterate_beyond_60_tokens):
    uniform = parse_mask(text).graph(250).uniform_map().toarray()
    expected = np.sort(np.abs(np.linalg.eigvals(uniform)))[-2]
    assert slem(text, 250) == pytest.approx(expected, abs=1e-12)  # numpy's own rounding


@pytest.mark.parametrize("text", [text for text in LARGE if "bigbird" not in text])
def test_the_shifted_solver_finds_it_where_plain_iteration_gives_up(
    text, monkeypatch, iterate_beyond_60_tokens
):
    dense = slem_of(parse_mask(text).graph(250).uniform_map())
    monkeypatch.setattr(eigen, "_PLAIN_RESTARTS", 1)
    assert slem(text, 250) == pytest.approx(dense, abs=1e-13)  # rounding of two different methods


def test_the_lower_end_is_not_overlooked(monkeypatch, iterate_beyond_60_tokens):
    """A path that ends in a triangle is nearly bipartite: its second modulus belongs to an eigenvalue near -1."""
    tokens = 201
    path = np.abs(np.subtract.outer(np.arange(tokens), np.arange(tokens))) == 1
    path[0, 2] = path[2, 0] = True
    values = np.linalg.eigvals(path / path.sum(axis=1, keepdims=True)).real
    assert abs(values.min()) > np.sort(values)[-2]
    for restarts in (30, 1):
        monkeypatch.setattr(eigen, "_PLAIN_RESTARTS", restarts)
        assert ExplicitMask(path).graph(tokens).slem() == pytest.approx(
            -values.min(), abs=1e-12
        )  # numpy's rounding


@pytest.mark.parametrize("inner", ["window:2", "bigbird:1:0:2"])
@pytest.mark.parametrize("size", [12, 150])
def test_open_blocks_count_too(inner, size, iterate_beyond_60_tokens):
    """Tokens that also read a first token: their block leaks, and its own spectral radius is the rate."""
    matrix = np.zeros((size + 1, size + 1), dtype=bool)
    matrix[1:, 1:] = parse_mask(inner).matrix(size)
    matrix[:, 0] = True
    uniform = matrix / matrix.sum(axis=1, keepdims=True)
    expected = np.abs(np.linalg.eigvals(uniform[1:, 1:])).max()
    assert ExplicitMask(matrix).graph(size + 1).slem() == pytest.approx(
        expected, abs=1e-12
    )  # numpy's rounding


@pytest.mark.parametrize("text", ["window:7", "longformer:2:2", "strided:9"])
def test_the_shift_moves_up_until_no_eigenvalue_is_above_it(text, monkeypatch):
    uniform = parse_mask(text).graph(250).uniform_map()
    exact = slem_of(uniform)

    def far_too_low(form, top, *, which, tol, maxiter):
        if which == "LM":
            raise ArpackNoConvergence("no", np.array([]), np.array([]))
        return exact - 0.2

    monkeypatch.setattr(eigen, "DENSE_TOKENS", 60)
    monkeypatch.setattr(eigen, "_lanczos", far_too_low)
    assert slem_of(uniform) == pytest.approx(exact, abs=1e-13)  # rounding of two different methods


def slem_of_window_1(tokens):
    """By hand: v_i = sin(t (i - (n-1)/2)) solves all interior rows, the boundary row fixes t near pi / n."""
    with mpmath.workdps(40):
        middle = mpmath.mpf(tokens - 1) / 2

        def boundary(t):
            first, second = mpmath.sin(-t * middle), mpmath.sin(t * (1 - middle))
            return (first + second) / 2 - (1 + 2 * mpmath.cos(t)) / 3 * first

        t = mpmath.findroot(boundary, mpmath.pi / tokens)
        return (1 + 2 * mpmath.cos(t)) / 3


def test_8192_tokens_need_no_dense_matrix():
    """The gap to 1 is 5e-8 here and still has six digits; memory stays below one byte per pair of tokens."""
    tokens = 8192
    tracemalloc.start()
    try:
        graph = parse_mask("window:1").graph(tokens)
        assert graph.radius() == 4096
        assert len(graph.centers()) == tokens
        assert graph.is_strongly_connected
        assert graph.uniform_map().nnz == 3 * tokens - 2
        gap = 1 - graph.slem()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert gap == pytest.approx(float(1 - slem_of_window_1(tokens)), rel=1e-6)  # 2e-9 of it is one unit of 1
    assert peak < 64e6


def test_a_wide_window_on_8192_tokens_stays_small():
    tracemalloc.start()
    try:
        rate = parse_mask("window:64").graph(8192).slem()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.999 < rate < 1
    assert peak < 300e6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "radius"),
    [
        ("window:64", 64),
        ("causal-window:8", 1024),
        ("dilated:4:8+window:1", 132),  # 128 strides of 32 and 4 single steps to a distance of 4092
        ("longformer:4:2", 1),
        ("bigbird:2:1:3", 1),
        ("strided:90", 2),
    ],
)
def test_sparse_rules_on_8192_tokens(text, radius):
    graph = parse_mask(text).graph(8192)
    assert graph.radius() == radius
    assert 0 < graph.slem() < 1


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)) / 3, r"square map, tokens x tokens, got shape \(2, 3\)"),
        (np.zeros((0, 0)), r"got shape \(0, 0\)"),
        (np.ones((1, 1, 1)), r"got shape \(1, 1, 1\)"),
        (np.ones(1), r"got shape \(1,\)"),
        (np.array([[0.5, 0.5], [0.5, 0.4]]), r"row 1 sums to 0\.9"),
        (np.array([[1.0, 0.0], [np.nan, 1.0]]), r"row 1 sums to nan"),
        (np.array([[1.5, -0.5], [0.0, 1.0]]), r"the least entry is -0\.5"),
    ],
)
def test_only_row_stochastic_maps_have_a_slem(matrix, message):
    with pytest.raises(ShapeError, match=message):
        slem_of(matrix)


@pytest.mark.slow
def test_an_eigenvalue_lost_to_rounding_is_refused():
    """Reading far back and a little ahead: eigenvalues of this map move by more than 1e-4 under rounding."""
    with pytest.raises(
        ShapeError,
        match=r"too sensitive to rounding: found modulus .*, certain only to .* \(allowed 0\.0001\)",
    ):
        slem("window:3+causal-window:64", 400)
    assert describe(parse_mask("window:3+causal-window:64"), 400)["slem"] is None


def test_iteration_that_does_not_end_is_refused(monkeypatch, iterate_beyond_60_tokens):
    monkeypatch.setattr(eigen, "_ARNOLDI_RESTARTS", 1)
    with pytest.raises(
        ShapeError, match=r"300-token map was not found by iteration; up to 60 tokens it is computed"
    ):
        slem("bigbird:1:0:2", 300)


def test_a_doubtful_small_modulus_does_not_hide_a_certain_large_one():
    assert spectrum._largest([(0.5, 0.0), (0.001, 0.01)]) == 0.5
    with pytest.raises(ShapeError, match=r"certain only to 0\.2"):
        spectrum._largest([(0.5, 0.0), (0.4, 0.3)])
    with pytest.raises(ShapeError, match=r"certain only to 0\.1"):
        spectrum._largest([(0.3, 0.0), (0.4, 0.1)])
