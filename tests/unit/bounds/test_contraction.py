"""Dobrushin and Doeblin coefficients as bounds: exact, above the truth, and unmoved by padding or by shortcuts."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rankscope.bounds import contraction
from rankscope.bounds.contraction import dobrushin_bound, doeblin_bound
from rankscope.cli.list import EXAMPLES
from rankscope.core.operator_norms import MARGIN
from rankscope.errors import NumericalError, ShapeError
from rankscope.masks import parse_mask
from rankscope.measures import row_distances
from reference.contraction_loops import dobrushin, doeblin, exact

MASKS = ("full", "causal", "window:2", "causal-window:2", "dilated:1:2", "strided:3", "prefix:2")
MORE_MASKS = (*EXAMPLES, "causal+window:1")

seeds = st.integers(0, 2**16)
scales = st.sampled_from([1e-8, 1e-2, 1.0, 8.0, 100.0])


def masked_map(
    seed: int, tokens: int, *, scale: float = 1.0, mask: str = "full", batch: tuple[int, ...] = ()
) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*batch, tokens, tokens, generator=g, dtype=torch.float64)
    return logits.masked_fill(~torch.from_numpy(parse_mask(mask).matrix(tokens)), -torch.inf).softmax(dim=-1)


def assert_tight(bound: Tensor, truth: list[float]) -> None:
    """Not below, and not above by more than twice the margin; 1e-12 where the coefficient itself is near rounding."""
    expected = torch.tensor(truth, dtype=torch.float64)
    assert bool((bound >= expected).all())
    torch.testing.assert_close(bound, expected, rtol=2 * MARGIN, atol=1e-12)


@given(st.integers(2, 7), seeds, scales, st.sampled_from(MASKS + MORE_MASKS))
def test_both_are_just_above_the_exact_coefficient_of_the_stored_numbers(tokens, seed, scale, mask):
    maps = masked_map(seed, tokens, scale=scale, mask=mask, batch=(2,))
    rows = [exact(one.tolist()) for one in maps]
    assert_tight(dobrushin_bound(maps), [float(dobrushin(one)) for one in rows])
    assert_tight(doeblin_bound(maps), [float(doeblin(one)) for one in rows])


@pytest.mark.parametrize(
    ("mask", "scale"), [("full", 1e-9), ("full", 1.0), ("causal", 0.1), ("prefix:2", 3.0)]
)
def test_long_maps_are_compared_one_by_one_and_as_exactly(mask, scale):
    maps = masked_map(3, 33, scale=scale, mask=mask, batch=(2, 1))
    truth = [exact(one.tolist()) for one in maps.flatten(0, -3)]
    assert_tight(dobrushin_bound(maps).flatten(), [float(dobrushin(one)) for one in truth])
    assert_tight(doeblin_bound(maps).flatten(), [float(doeblin(one)) for one in truth])
    assert dobrushin_bound(maps).shape == doeblin_bound(maps).shape == (2, 1)


@pytest.mark.parametrize("block", [2, 4, 7, 10])
def test_rows_that_do_not_fit_one_call_are_compared_in_blocks_that_miss_no_pair(monkeypatch, block):
    everything = torch.zeros((), dtype=torch.float64), torch.ones(10, dtype=torch.float64)
    monkeypatch.setattr(contraction, "BATCHED_ROWS", 1)
    monkeypatch.setattr(row_distances, "BLOCK_ROWS", block)
    monkeypatch.setattr(row_distances, "_reach", lambda rows: everything)
    for pair in combinations(range(10), 2):
        maps = torch.full((10, 10), 0.1, dtype=torch.float64)
        maps[pair, :] = torch.eye(10, dtype=torch.float64)[list(pair)]
        assert dobrushin_bound(maps).item() == pytest.approx(1.0, abs=2 * MARGIN)


@given(
    seeds,
    st.integers(34, 60),
    st.sampled_from(["outlier", "pair", "clusters", "line", "disjoint", "few", "flat"]),
)
def test_leaving_rows_out_early_never_loses_the_farthest_pair(seed, tokens, shape):
    g = torch.Generator().manual_seed(seed)
    base = torch.softmax(torch.randn(tokens, generator=g, dtype=torch.float64), dim=-1)
    near = torch.softmax(
        base.log() + 0.01 * torch.randn(tokens, tokens, generator=g, dtype=torch.float64), dim=-1
    )
    where = torch.randint(tokens, (3,), generator=g)
    wild = torch.randn(tokens, tokens, generator=g, dtype=torch.float64)
    steps = torch.linspace(0, 1, tokens, dtype=torch.float64)[:, None]
    maps = {
        "outlier": near.index_fill(0, where[:1], 1 / tokens),
        "pair": near.index_copy(0, where[:2], torch.eye(tokens, dtype=torch.float64)[where[:2]]),
        "clusters": near[torch.randint(3, (tokens,), generator=g)],
        "line": (1 - steps) * near[:1] + steps * near[1:2],
        "disjoint": torch.eye(tokens, dtype=torch.float64)[torch.randperm(tokens, generator=g)],
        # few ways to differ: the row farthest from the mean is often not one of the farthest two
        "few": torch.softmax(2 * wild[:, :4], dim=-1),
        "flat": torch.softmax(wild[:, :2] @ wild[:2], dim=-1),
    }[shape]
    plain = max((row - maps).abs().sum(dim=-1).max().item() for row in maps) / 2
    torch.testing.assert_close(dobrushin_bound(maps).item(), plain * (1 + MARGIN), rtol=1e-12, atol=1e-300)


def test_one_comparison_is_enough_once_two_rows_share_no_key(monkeypatch):
    monkeypatch.setattr(row_distances, "pdist", None)  # never called
    assert dobrushin_bound(masked_map(0, 64, mask="window:3")).item() == pytest.approx(1.0, abs=2 * MARGIN)


@pytest.mark.parametrize("tokens", [6, 40])
@pytest.mark.parametrize("bound", [dobrushin_bound, doeblin_bound])
def test_rows_that_are_padding_are_left_out(bound, tokens):
    maps = masked_map(1, tokens, batch=(3, 2))
    rows = torch.ones(3, 1, tokens, dtype=torch.bool)
    rows[0, 0, :2], rows[1, 0, 3:] = False, False
    found = bound(maps, rows)
    for text in range(3):
        cut = maps[text][:, rows[text, 0]]
        torch.testing.assert_close(found[text], bound(cut), rtol=1e-14, atol=0)


@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.parametrize("bound", [dobrushin_bound, doeblin_bound])
def test_equal_rows_and_single_rows_contract_to_exactly_zero(bound, tokens):
    equal = masked_map(2, tokens)[:1].expand(tokens, tokens)
    assert bound(equal).item() == 0.0
    assert bound(equal[:1]).item() == 0.0
    moved = equal.clone()
    moved[1, 0] += 5e-324  # lost beside an entry of order one, so the same row
    assert bound(moved).item() == 0.0
    moved = torch.zeros(tokens, tokens, dtype=torch.float64)
    moved[1, 0] = 5e-324
    assert 5e-324 <= bound(moved).item() < 1e-300


@pytest.mark.parametrize("tokens", [4, 40])
@pytest.mark.parametrize("bound", [dobrushin_bound, doeblin_bound])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_maps_that_are_no_numbers_are_refused(bound, tokens, value):
    maps = masked_map(2, tokens)
    maps[1, 2] = value
    with pytest.raises(NumericalError, match="NaN or infinity"):
        bound(maps)


def test_maps_without_rows_are_refused():
    with pytest.raises(ShapeError, match="floating-point maps"):
        dobrushin_bound(torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ShapeError, match="shape \\(0, 3\\)"):
        doeblin_bound(torch.ones(0, 3))
    with pytest.raises(ShapeError, match="no row that is a token"):
        dobrushin_bound(torch.ones(2, 2, 2), torch.tensor([[True, False], [False, False]]))
    assert dobrushin_bound(torch.ones(0, 40, 40)).shape == doeblin_bound(torch.ones(0, 40, 40)).shape == (0,)


@given(st.sampled_from([3, 8, 36]), seeds, scales, st.sampled_from(MASKS + MORE_MASKS))
def test_products_contract_at_least_as_much_as_their_factors_together(tokens, seed, scale, mask):
    a, b = (masked_map(seed + shift, tokens, scale=scale, mask=mask) for shift in (0, 1))
    # rounding of the product: n units of each entry, so n units in all
    assert dobrushin_bound(a @ b) <= dobrushin_bound(a) * dobrushin_bound(b) + 2 * tokens * 1.2e-16
    assert dobrushin_bound(a) <= doeblin_bound(a) * (1 + 1e-15) + 1e-16


@given(st.sampled_from([3, 8, 36]), seeds, scales, st.sampled_from(MASKS + MORE_MASKS))
def test_no_diameter_grows_by_more_than_the_coefficient(tokens, seed, scale, mask):
    maps = masked_map(seed, tokens, scale=scale, mask=mask)
    x = torch.randn(tokens, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for p in (1.0, 2.0, torch.inf):
        before, after = (
            torch.cdist(y, y, p=p, compute_mode="donot_use_mm_for_euclid_dist").max() for y in (x, maps @ x)
        )
        # rounding of the averages, relative to the tokens
        assert after <= dobrushin_bound(maps) * before + 1e-14 * tokens * x.abs().max()


def test_the_coefficient_is_attained():
    t = 0.3
    maps = torch.tensor([[(1 + t) / 2, (1 - t) / 2], [(1 - t) / 2, (1 + t) / 2]], dtype=torch.float64)
    assert dobrushin_bound(maps).item() == pytest.approx(t, rel=2 * MARGIN)
    assert doeblin_bound(maps).item() == pytest.approx(t, rel=2 * MARGIN)
