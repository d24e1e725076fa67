"""Effective ranks from integrals over determinants, against singular values and against 50 digits."""

import mpmath
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from rankscope.measures import RANKS, effective_rank, rank_integrals, read_panel
from rankscope.measures import panel as panels

SHAPES = [(2, 1), (2, 2), (2, 7), (5, 1), (7, 3), (12, 40), (40, 12), (33, 33), (128, 160)]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alone(x, factor):
    y = x.clone()
    y[0] *= factor
    return y


SPECTRA = {
    "plain": lambda x: x,
    "shared mean": lambda x: x + 1,
    "massive token": lambda x: alone(x, 1e3),
    "massive channel": lambda x: x + 100 * torch.eye(x.shape[1], dtype=x.dtype)[0],
    "steep": lambda x: x * torch.logspace(0, -5, x.shape[1], dtype=x.dtype),
    "very steep": lambda x: x * torch.logspace(0, -14, x.shape[1], dtype=x.dtype),
    "rank one": lambda x: torch.outer(x[:, 0], x[0]),
    "half the rank": lambda x: torch.cat([x[: (len(x) + 1) // 2], x[: len(x) // 2]]),
    "equal tokens": torch.ones_like,
    "mean zero": lambda x: x - x.mean(dim=0),
    **{f"ratio {size}": lambda x, size=size: 1 + size * x for size in (1e-1, 1e-2, 1e-3, 1e-6, 1e-12)},
    "tiny": lambda x: x * 1e-150,
    "huge": lambda x: x * 1e150,
    "zero tokens": lambda x: alone(x, 0.0),
}


@pytest.fixture(autouse=True)
def no_catalog(monkeypatch):
    """What the Gram matrix cannot give is no number here, where the panel asks the catalog for it."""
    monkeypatch.setattr(
        panels, "evaluate_many", lambda measures, *args, **options: [Nothing() for _ in measures]
    )


class Nothing:
    value = floor = torch.nan


def ranks(*texts):
    """Of tokens and of centered tokens, one row per text."""
    found = read_panel(texts, layer=1, dtype=torch.float64, sites=False, massive=False)
    assert found.definitions == RANKS
    return found.values


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", SPECTRA)
def test_ranks_are_those_of_singular_values_or_are_not_given(kind, shape):
    x = SPECTRA[kind](normal(*shape))
    for centered, found in zip((False, True), ranks(x)[0], strict=True):
        if not torch.isnan(found):
            exact = effective_rank(x, of="entropy", centered=centered)
            torch.testing.assert_close(found, exact, rtol=2e-8, atol=0)


@pytest.mark.parametrize("shape", [(9, 12), (12, 9), (30, 64)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "shared mean", "massive channel", "ratio 0.1"])
def test_ordinary_spectra_are_given_to_ten_digits(kind, shape):
    x = SPECTRA[kind](normal(*shape))
    for centered, found in zip((False, True), ranks(x)[0], strict=True):
        exact = effective_rank(x, of="entropy", centered=centered)
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=0)


def test_a_spectrum_that_is_known_in_fifty_digits():
    values = [1.0, 0.5, 0.1, 0.02, 3e-3]
    first, _ = torch.linalg.qr(normal(9, 5))
    second, _ = torch.linalg.qr(normal(5, 5, seed=1))
    x = first @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ second
    with mpmath.workdps(50):
        shares = [mpmath.mpf(value) / mpmath.fsum(values) for value in values]
        exact = float(mpmath.exp(-mpmath.fsum(p * mpmath.log(p) for p in shares)))
    for one in (x, x.mT.contiguous()):
        assert ranks(one)[0, 0].item() == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("kind", ["rank one", "equal tokens", "ratio 1e-06", "ratio 1e-12"])
def test_spent_spectra_are_not_given(kind):
    assert torch.isnan(ranks(SPECTRA[kind](normal(12, 40)))[0, 1])


def test_texts_do_not_read_each_other():
    texts = [normal(6, 9, seed=k) * 10.0**k for k in range(4)]
    texts[1][0, 0] = torch.nan
    together = ranks(*texts)
    assert torch.isnan(together[1]).all()
    for place in (0, 2, 3):
        torch.testing.assert_close(together[place], ranks(texts[place])[0], rtol=1e-14, atol=0)


def test_small_decompositions_run_on_one_thread(monkeypatch):
    threads, seen = rank_integrals._tridiagonal, []

    def watched(x):
        seen.extend(one["num_threads"] for one in threadpool_info() if one["internal_api"] == "openblas")
        return threads(x)

    monkeypatch.setattr(rank_integrals, "_tridiagonal", watched)
    with threadpool_limits(limits=2):
        ranks(normal(128, 160))
        assert 1 in seen
        after = [one["num_threads"] for one in threadpool_info() if one["internal_api"] == "openblas"]
    assert set(seen) == {1}
    assert set(after) != {1}


LESS = {
    "channels of a layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "a token twice": lambda x: torch.cat([x[:-1], x[:1]]),
}


@pytest.mark.parametrize("kind", LESS)
@pytest.mark.parametrize("shape", [(160, 128), (128, 160), (300, 64)], ids=str)
def test_states_of_no_full_rank_are_given_far_below_the_floor_of_a_float32_network(kind, shape):
    """Else every post-norm model on more tokens than channels would be decomposed."""
    x = LESS[kind](normal(*shape))
    found = read_panel([x.float()], layer=1, dtype=torch.float32, sites=False, massive=False)
    for centered, value, floor in zip((False, True), found.values[0], found.floors[0], strict=True):
        exact = effective_rank(x.float(), of="entropy", centered=centered)
        assert (value - exact).abs() < 0.02 * floor
