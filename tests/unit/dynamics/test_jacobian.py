"""Derivatives of one step against finite differences of a step written in plain numpy."""

import math

import numpy as np
import pytest
import torch

from rankscope.dynamics import Drawn, attention_system, repeat
from rankscope.dynamics.jacobian import (
    components_of,
    dense_jacobian,
    product,
    tangent_basis,
    transposed_product,
)
from rankscope.dynamics.multipliers import multipliers
from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.network import Chain, LayerNorm, RMSNorm, Skip, Softmax, Sphere, Uniform

F64 = torch.float64
NORMS = {"none": None, "sphere": Sphere(), "layernorm": LayerNorm(eps=1e-5), "rms": RMSNorm(eps=1e-6)}


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def softmax_system(seed, dim, *, mask="full", norm="sphere"):
    query, key, value = draw(seed, 3, dim, dim)
    mixer = Softmax(query, key, heads=1, rule=parse_mask(mask), scale=0.7)
    return attention_system(mixer, value, NORMS[norm]), (query.numpy(), key.numpy(), value.numpy())


def numpy_step(x, weights, *, causal, norm):
    """One step, token by token."""
    query, key, value = weights
    rows = []
    for i in range(len(x)):
        keys = range(i + 1) if causal else range(len(x))
        logits = np.array([0.7 * (x[i] @ query) @ (x[j] @ key) for j in keys])
        map_ = np.exp(logits - logits.max())
        map_ /= map_.sum()
        y = sum(weight * x[j] for weight, j in zip(map_, keys, strict=True)) @ value
        if norm == "sphere":
            y = y / math.sqrt(y @ y)
        elif norm == "layernorm":
            y = (y - y.mean()) / math.sqrt(y.var() + 1e-5)
        elif norm == "rms":
            y = y / math.sqrt((y @ y) / len(y) + 1e-6)
        rows.append(y)
    return np.array(rows)


def differences(step, x, h=1e-6):
    """Central differences: error of order h^2 and eps/h, both below 1e-9 here."""
    columns = []
    for index in np.ndindex(*x.shape):
        bump = np.zeros_like(x)
        bump[index] = h
        columns.append(((step(x + bump) - step(x - bump)) / (2 * h)).ravel())
    return np.array(columns).T


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("causal", [True, False])
def test_products_are_those_of_finite_differences(norm, causal):
    system, weights = softmax_system(3, 3, mask="causal" if causal else "full", norm=norm)
    x, v = draw(4, 4, 3), draw(5, 4, 3)
    wanted = differences(lambda y: numpy_step(y, weights, causal=causal, norm=norm), x.numpy())
    scale = np.abs(wanted).max()
    moved, pulled = product(system, x, v).numpy().ravel(), transposed_product(system, x, v).numpy().ravel()
    np.testing.assert_allclose(
        moved, wanted @ v.numpy().ravel(), atol=1e-7 * scale
    )  # differences lose half the digits
    np.testing.assert_allclose(pulled, wanted.T @ v.numpy().ravel(), atol=1e-7 * scale)


def test_a_batch_is_a_loop():
    system, _ = softmax_system(1, 3, mask="causal")
    x = torch.nn.functional.normalize(draw(2, 5, 4, 3), dim=-1)
    together = dense_jacobian(system, x)
    apart = torch.stack([dense_jacobian(system, one) for one in x])
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-13)  # the same sums in another order


def test_weights_that_belong_to_starts_are_differentiated_start_by_start():
    values, x = draw(7, 3, 2, 2), draw(8, 3, 4, 2)
    mixer = Uniform(heads=1, rule=parse_mask("causal"))
    together = dense_jacobian(attention_system(mixer, values, RMSNorm(eps=1e-6)), x)
    for value, one, found in zip(values, x, together, strict=True):
        single = dense_jacobian(attention_system(mixer, value, RMSNorm(eps=1e-6)), one)
        torch.testing.assert_close(found, single, rtol=0, atol=1e-13)  # the same sums in another order


def test_tangent_directions_are_orthonormal_and_at_right_angles_to_the_token():
    system, _ = softmax_system(1, 4)
    x = torch.nn.functional.normalize(draw(2, 6, 4), dim=-1)
    x[0] = torch.tensor([0.0, 0.0, -1.0, 0.0])
    basis = tangent_basis(system, x)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(3, dtype=F64).expand(6, 3, 3), rtol=0, atol=1e-14)
    assert float((basis.mT @ x.unsqueeze(-1)).abs().max()) < 1e-14
    assert set(basis[0].flatten().tolist()) == {0.0, 1.0}  # the other axes themselves


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("mask", ["causal", "blocks:2", "causal-window:1"])
@pytest.mark.parametrize("seed", range(3))
def test_multipliers_by_component_are_those_of_the_whole_jacobian(norm, mask, seed):
    system, _ = softmax_system(seed, 3, mask=mask, norm=norm)
    x = torch.nn.functional.normalize(draw(seed + 50, 4, 3), dim=-1)
    found = np.sort_complex(np.round(multipliers(system, x).values, 9))
    whole = np.sort_complex(np.round(np.linalg.eigvals(dense_jacobian(system, x).numpy()), 9))
    # rounding may order nearly equal numbers differently, so compare as sets: coefficients of the polynomial
    scale = max(1.0, float(np.abs(whole).max())) ** len(whole)
    np.testing.assert_allclose(np.poly(found), np.poly(whole), atol=1e-6 * scale)
    assert len(found) == 4 * (2 if norm == "sphere" else 3)


def test_arnoldi_finds_the_largest_of_the_dense_ones():
    system, _ = softmax_system(5, 6)
    x = torch.nn.functional.normalize(draw(6, 8, 6), dim=-1)
    dense = multipliers(system, x)
    sparse = multipliers(system, x, count=4, largest_dense=8)
    assert dense.is_complete
    assert not sparse.is_complete
    np.testing.assert_allclose(np.abs(sparse.values), np.abs(dense.values[:4]), rtol=1e-10)
    again = multipliers(system, x, count=4, largest_dense=8)
    assert np.array_equal(sparse.values, again.values)


def test_the_largest_multipliers_of_a_large_state_need_no_matrix():
    """Consensus at the fixed token of W: multipliers are those of W, 1, 1/2, ..., divided by the largest, once each."""
    dim, tokens = 32, 64
    values = torch.diag(1.0 / torch.arange(1, dim + 1, dtype=F64))
    system = attention_system(Uniform(heads=1), values, Sphere())
    x = torch.zeros(tokens, dim, dtype=F64)
    x[:, 0] = 1
    found = multipliers(system, x, count=4)
    np.testing.assert_allclose(found.values, [1 / 2, 1 / 3, 1 / 4, 1 / 5], atol=1e-12)
    assert float(found.errors.max()) < 1e-10


@pytest.mark.parametrize("q", [-1, 1])
def test_the_two_token_equilibria_have_the_multipliers_of_the_closed_form(q):
    """1 + alpha/(1 - alpha) q with alpha = 1/2, q = -+sqrt(8)/3: 0.0572 at B and 1.9428 at A; token 0 is neutral."""
    shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=F64)
    system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), shear, Sphere())
    x = torch.tensor([[0, 1], [-1 / 3, q * math.sqrt(8) / 3]], dtype=F64)
    first, second = multipliers(system, x).groups
    assert (first.tokens, second.tokens) == ((0,), (1,))
    assert list(first.is_neutral) == [True]
    assert second.largest == pytest.approx(1 + q * math.sqrt(8) / 3, abs=1e-14)


def test_errors_cover_a_jordan_block_in_any_coordinates():
    """Token 0 of W = 1 + 10 S has one multiplier 1 in a block of three: eigenvalues scatter by the cube root of eps."""
    shift = torch.eye(4, dtype=F64) + 10 * torch.diag(torch.ones(3, dtype=F64), 1)
    turn = torch.linalg.qr(draw(0, 4, 4))[0]
    x = torch.zeros(2, 4, dtype=F64)
    x[:, -1] = 1
    for way in (torch.eye(4, dtype=F64), turn):
        system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), way.mT @ shift @ way, Sphere())
        first, second = multipliers(system, x @ way).groups
        for group, wanted in ((first, 1.0), (second, 0.5)):
            assert (np.abs(group.values - wanted) <= group.errors).all()
            assert float(group.errors.max()) < 1e-3  # and they do not claim to know nothing
        assert all(first.is_neutral)
        assert not any(second.is_neutral)


def test_errors_cover_what_an_uncertain_place_does_to_a_jordan_block():
    """Token 0 off the last axis by 1e-4, as a multiple root leaves it: its multipliers, all 1 there, move by w t."""
    t, shift = 1e-4, torch.eye(3, dtype=F64) + 10 * torch.diag(torch.ones(2, dtype=F64), 1)
    system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), shift, Sphere())
    x = torch.nn.functional.normalize(torch.tensor([[t**2, t, 1.0]] * 2, dtype=F64), dim=-1)
    blind, owned = multipliers(system, x), multipliers(system, x, uncertainty=t)
    off = np.abs(owned.groups[0].values - 1)
    assert off.max() > 5e-4  # w t is 1e-3
    assert (off <= owned.groups[0].errors).all()
    assert (off > 10 * blind.groups[0].errors).any()


def test_an_uncertain_token_blurs_those_that_read_it_and_no_others():
    values = torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=F64)) + 0.1 * draw(3, 3, 3)
    system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), values, Sphere())
    x = torch.nn.functional.normalize(draw(4, 3, 3), dim=-1)
    unsure = torch.zeros(3, 3, dtype=F64)
    unsure[1] = 1e-3
    first, second, third = multipliers(system, x, uncertainty=unsure).groups
    assert float(first.errors.max()) < 1e-12
    assert float(second.errors.max()) > 1e-5
    assert float(third.errors.max()) > 1e-5


def test_the_regular_polygon_on_the_circle_repels():
    """softmax(3 x.x) with identity values: rotations are neutral, something else grows; against finite differences."""
    n, eye = 5, torch.eye(2, dtype=F64)
    system = attention_system(Softmax(3 * eye, eye, heads=1, scale=1.0), eye, Sphere())
    angles = 2 * math.pi * np.arange(n) / n

    def turn(phi):
        points = np.stack([np.cos(phi), np.sin(phi)], axis=-1)
        weights = np.exp(3 * points @ points.T)
        after = (weights / weights.sum(axis=1, keepdims=True)) @ points
        return np.arctan2(after[:, 1], after[:, 0])

    h = 1e-6
    columns = [
        (turn(angles + h * e) - turn(angles - h * e) + math.pi) % (2 * math.pi) - math.pi for e in np.eye(n)
    ]
    wanted = np.linalg.eigvals(np.array(columns).T / (2 * h))
    found = multipliers(system, torch.tensor(np.stack([np.cos(angles), np.sin(angles)], axis=-1)))
    np.testing.assert_allclose(
        np.sort(found.values.real), np.sort(wanted.real), atol=1e-8
    )  # central differences
    assert found.values[0].real > 1.5
    assert sum(found.groups[0].is_neutral) == 1


def test_components_follow_the_masks_of_all_attention_parts():
    causal = softmax_system(1, 2, mask="causal", norm="none")[0].block(0)
    back = softmax_system(2, 2, mask="blocks:2", norm="none")[0].block(0)
    both = repeat(Chain([Skip(causal), Skip(back)]))
    assert [one.tolist() for one in components_of(both, 4)] == [[0, 1], [2, 3]]
    assert [one.tolist() for one in components_of(repeat(Skip(causal)), 3)] == [[0], [1], [2]]
    assert [one.tolist() for one in components_of(softmax_system(1, 2)[0], 3)] == [[0, 1, 2]]


def test_questions_without_an_answer_are_refused():
    system, _ = softmax_system(1, 3)
    x = draw(2, 4, 3)
    with pytest.raises(ShapeError, match=r"one state \(tokens, dim\), got shape \(1, 4, 3\)"):
        multipliers(system, x[None])
    with pytest.raises(ConfigError, match="count=0"):
        multipliers(system, x, count=0)
    with pytest.raises(ConfigError, match="anew"):
        multipliers(attention_system(Uniform(heads=1), Drawn(kind="gaussian", dim=3, seed=0)), x)
    with pytest.raises(NumericalError, match="not finite"):
        multipliers(attention_system(Uniform(heads=1), torch.eye(3, dtype=F64), RMSNorm(eps=0.0)), 0 * x)
