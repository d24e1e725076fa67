"""Orthogonal values on the sphere: the one-step bound, its edges, and starts that collapse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.dynamics.orthogonal import (
    Draw,
    Rounding,
    bound_ratio,
    complete_overlap,
    cosine_defect,
    defect_bound,
    follow,
    in_hemisphere,
    least_overlap,
)
from rankscope.errors import ShapeError
from rankscope.masks import parse_mask
from rankscope.network import Fixed, Softmax
from rankscope.network.initial import haar_orthogonal


def step(x: np.ndarray, maps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The step by loops."""
    rows = []
    for weights in maps:
        row = sum(weight * token for weight, token in zip(weights, x, strict=True)) @ values
        rows.append(row / math.sqrt(float(row @ row)))
    return np.array(rows)


def sides(x: np.ndarray, maps: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    """Both sides of the bound, by loops and subtraction."""
    after, pairs = step(x, maps, values), [(i, j) for i in range(len(x)) for j in range(i)]
    c, c_after = (min(float(y[i] @ y[j]) for i, j in pairs) for y in (x, after))
    m = min(float(maps[i] @ maps[j]) for i, j in pairs)
    return 1 - c_after, (1 - c) * (1 - m)


def ratio(x: np.ndarray, maps: np.ndarray, values: np.ndarray) -> float:
    """The library's ratio for one step."""
    tokens, weights, turn = (torch.tensor(each, dtype=torch.float64) for each in (x, maps, values))
    after = torch.tensor(step(x, maps, values))
    found = bound_ratio(
        cosine_defect(tokens), least_overlap(weights), cosine_defect(after), Rounding.of(len(x), turn)
    )
    return float(found)


def units(generator: np.random.Generator, n: int, d: int, spread: float) -> np.ndarray:
    """Unit tokens within a right angle: positive entries, drawn together by a small spread."""
    x = np.abs(generator.normal(size=(1, d))) + spread * np.abs(generator.normal(size=(n, d)))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def orthogonal(generator: np.random.Generator, d: int) -> np.ndarray:
    return np.asarray(np.linalg.qr(generator.normal(size=(d, d)))[0])


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 7),
    d=st.integers(2, 6),
    log_spread=st.floats(-9, 2),
    log_gain=st.floats(-2, 2.5),
    kind=st.sampled_from(["softmax", "causal", "sparse", "same"]),
    turn=st.sampled_from(["haar", "minus", "permutation"]),
)
def test_no_map_and_no_turn_breaks_the_bound(
    seed: int, n: int, d: int, log_spread: float, log_gain: float, kind: str, turn: str
) -> None:
    generator = np.random.default_rng(seed)
    x = units(generator, n, d, 10**log_spread)
    logits = generator.normal(size=(n, n)) * 10**log_gain
    if kind == "causal":
        logits = np.where(np.tril(np.ones((n, n))) > 0, logits, -np.inf)
    if kind == "sparse":
        logits = np.where((generator.random((n, n)) < 0.4) | (np.eye(n) > 0), logits, -np.inf)
    if kind == "same":
        logits = np.broadcast_to(logits[:1], (n, n))
    maps = np.exp(logits - logits.max(axis=1, keepdims=True))
    maps = maps / maps.sum(axis=1, keepdims=True)
    values = {"haar": orthogonal(generator, d), "minus": -np.eye(d), "permutation": np.eye(d)[::-1].copy()}[
        turn
    ]
    assert ratio(x, maps, values) <= 1


def test_permutations_and_disjoint_rows_of_orthogonal_tokens_are_equalities() -> None:
    generator = np.random.default_rng(1)
    x = units(generator, 5, 3, 1.0)
    left, right = sides(x, np.eye(5)[[2, 0, 1, 4, 3]], orthogonal(generator, 3))
    assert left == pytest.approx(right, rel=1e-12)  # rounding of products of length 5
    halves = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    left, right = sides(np.eye(4), halves, orthogonal(generator, 4))
    assert (left, right) == (pytest.approx(1.0, abs=1e-14), 1.0)


def test_with_overlapping_rows_the_bound_is_strict_but_tends_to_equality() -> None:
    def two(m: float) -> float:
        left, right = sides(np.eye(2), np.array([[1.0, 0.0], [m, 1 - m]]), np.eye(2))
        return left / right

    assert [two(m) for m in (0.5, 0.1, 0.01, 0.001)] == pytest.approx(
        [(1 - m / math.hypot(m, 1 - m)) / (1 - m) for m in (0.5, 0.1, 0.01, 0.001)], rel=1e-12
    )
    assert two(0.5) < two(0.1) < two(0.01) < two(0.001) < 1


@pytest.mark.parametrize("c", [-0.5, -0.1, -1e-3, -1e-6])
def test_every_negative_cosine_breaks_the_bound(c: float) -> None:
    gram = np.full((4, 4), c)
    gram[0, 1] = gram[1, 0] = gram[2, 3] = gram[3, 2] = 0.0
    np.fill_diagonal(gram, 1.0)
    sizes, vectors = np.linalg.eigh(gram)
    x = vectors * np.sqrt(np.clip(sizes, 0, None))
    halves = np.array([[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    left, right = sides(x, halves, np.eye(4))
    assert (left, right) == (pytest.approx(1 - 2 * c, abs=1e-14), pytest.approx(1 - c, abs=1e-14))
    assert left > right


def test_two_tokens_at_an_obtuse_angle_break_it_and_nothing_is_claimed_of_them() -> None:
    half = math.radians(85)
    x = np.array([[math.sin(half), math.cos(half)], [-math.sin(half), math.cos(half)]])
    maps = np.array([[0.9, 0.1], [0.1, 0.9]])
    left, right = sides(x, maps, np.eye(2))
    assert left > 1.2 * right
    defect = cosine_defect(torch.tensor(x))
    assert math.isnan(float(defect_bound(defect, torch.tensor(0.18))))
    assert math.isnan(ratio(x, maps, np.eye(2)))


def test_a_broken_bound_would_be_seen() -> None:
    """The allowance for rounding hides no more than rounding."""
    defect, overlap = torch.tensor(1e-6).double(), torch.tensor(0.25).double()
    allowed = Rounding.of(8, torch.eye(4).double())
    assert float(bound_ratio(defect, overlap, defect * 0.75 * (1 + 1e-6), allowed)) > 1
    assert float(bound_ratio(defect, overlap, defect * 0.75, allowed)) == pytest.approx(1, abs=1e-9)
    assert float(allowed.after) < 1e-13


def test_the_defect_is_exact_near_consensus() -> None:
    turn = 1e-11
    x = torch.tensor([[1.0, 0.0], [math.cos(turn), math.sin(turn)]], dtype=torch.float64)
    assert float(cosine_defect(x)) == pytest.approx(turn**2 / 2, rel=1e-12)


def test_overlaps_against_loops() -> None:
    generator = torch.Generator().manual_seed(3)
    maps = torch.softmax(torch.randn(3, 5, 5, generator=generator, dtype=torch.float64), dim=-1)
    for found, eps, rows in zip(least_overlap(maps), complete_overlap(maps), maps.numpy(), strict=True):
        products = [float(rows[i] @ rows[j]) for i in range(5) for j in range(5) if i != j]
        assert float(found) == pytest.approx(min(products), rel=1e-14)
        assert float(eps) == pytest.approx(5 * rows.min() ** 2, rel=1e-14)
        assert float(eps) <= float(found)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_200_of_200_starts_collapse_and_no_step_breaks_the_bound(mask: str) -> None:
    draw = Draw.of(parse_mask(mask), starts=200, tokens=12, dim=4, generator=torch.Generator().manual_seed(0))
    assert in_hemisphere(draw.x).count(False) == 179
    found = follow(draw.mixer, draw.values, draw.x, steps=400, looks=64)
    assert found.collapsed == 200
    assert int((~found.ratios.isnan()).sum()) > 10_000
    assert found.worst <= 1
    known = ~found.bounds.isnan()
    floor = 2 * found.rounding.after.max() ** 2
    assert bool((found.defects <= found.bounds * (1 + 1e-9) + floor)[known].all())
    assert bool((found.complete <= found.overlaps + 1e-15).all())


def test_blocks_keep_limits_of_their_own() -> None:
    draw = Draw.of(
        parse_mask("blocks:2"), starts=5, tokens=6, dim=3, generator=torch.Generator().manual_seed(0)
    )
    found = follow(draw.mixer, draw.values, draw.x, steps=300, looks=5)
    assert found.collapsed == 0
    assert found.run.note is not None


def test_states_followed_are_those_of_the_loop() -> None:
    generator = torch.Generator().manual_seed(5)
    query, key, draw = (torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3))
    values = haar_orthogonal(draw).numpy()
    state = units(np.random.default_rng(0), 4, 3, 2.0)
    found = follow(
        Softmax(query, key, heads=1), torch.tensor(values), torch.tensor(state).unsqueeze(0), steps=2
    )
    for number in range(2):
        logits = (state @ query.numpy()) @ (state @ key.numpy()).T / math.sqrt(3)
        maps = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        left, right = sides(state, maps, values)
        state = step(state, maps, values)
        assert float(found.defects[number + 1, 0]) == pytest.approx(left, rel=1e-9, abs=1e-15)
        # the loop subtracts cosines from one: that costs digits, and the library takes rounding off
        assert float(found.ratios[number, 0]) == pytest.approx(left / right, rel=1e-6)


def test_hemispheres_by_hand() -> None:
    cross = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]], dtype=torch.float64)
    third = math.sqrt(3) / 2
    triangle = torch.tensor([[1.0, 0], [-0.5, third], [-0.5, -third], [1.0, 0]], dtype=torch.float64)
    near = torch.tensor([[1.0, 0], [0, 1], [-0.9, 0.1], [0.1, 1]], dtype=torch.float64)
    assert in_hemisphere(torch.stack([cross, triangle, near])) == [False, False, True]


def test_values_that_are_not_orthogonal_are_refused() -> None:
    x: Tensor = torch.eye(2, dtype=torch.float64)
    with pytest.raises(ShapeError, match="must be orthogonal"):
        follow(Fixed(torch.eye(2, dtype=torch.float64).unsqueeze(0)), 2 * x, x, steps=1)
