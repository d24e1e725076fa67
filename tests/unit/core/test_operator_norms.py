"""Largest eigenvalues that are found by iteration and proven: never too small, hardly too large."""

import pytest
import torch
from torch import Tensor

from rankscope.core import operator_norms
from rankscope.core.operator_norms import (
    PROVEN_SIDE,
    UNDERFLOW,
    eigenvalue_bound,
    product_bound,
    spectral_bound,
)

SIDE = PROVEN_SIDE + 9


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_eigenvalues(values: Tensor) -> Tensor:
    basis = torch.linalg.qr(draws(len(values), len(values))).Q
    return basis @ torch.diag(values) @ basis.mT


SPECTRA = {
    "random": torch.linspace(0, 1, SIDE).double() ** 3,
    "clustered": torch.cat([torch.ones(50), torch.linspace(0, 1 - 1e-9, SIDE - 50)]).double(),
    "one large": torch.cat([torch.tensor([1e6]), torch.rand(SIDE - 1)]).double(),
    "rank one": torch.cat([torch.tensor([2.0]), torch.zeros(SIDE - 1)]).double(),
    "zero": torch.zeros(SIDE, dtype=torch.float64),
    "negative": -1 - torch.linspace(0, 1, SIDE).double(),
}


@pytest.mark.parametrize("name", list(SPECTRA))
def test_the_largest_eigenvalue_of_a_large_matrix_is_not_missed(name: str) -> None:
    values = SPECTRA[name]
    matrix = with_eigenvalues(values)
    found, exact = float(eigenvalue_bound((matrix + matrix.mT) / 2)), float(values.max())
    rounding = 1e-12 * float(values.abs().max())
    assert exact - rounding <= found <= exact + 2e-4 * abs(exact) + rounding


def test_an_iteration_that_stops_too_low_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import linalg

    monkeypatch.setattr(linalg, "eigsh", lambda *_, **__: [0.9])
    matrix = with_eigenvalues(SPECTRA["random"])
    torch.testing.assert_close(
        eigenvalue_bound((matrix + matrix.mT) / 2), torch.tensor(1.0).double(), rtol=1e-12, atol=0
    )


def test_batches_are_bounded_one_by_one() -> None:
    matrices = draws(2, 3, SIDE, SIDE + 20, seed=1)
    found, exact = spectral_bound(matrices), torch.linalg.matrix_norm(matrices, 2)
    assert bool((found >= exact).all())
    assert bool(
        (found <= exact * (1 + 1e-4)).all()
    )  # twice what the second attempt adds to an eigenvalue's root


def test_products_that_underflow_are_not_zero() -> None:
    tiny = 1e-200 * draws(4, 4)
    assert float(product_bound(tiny, tiny)) >= UNDERFLOW
    assert float(product_bound(tiny, 0 * tiny)) == 0.0
    assert operator_norms.product_underflow(tiny, tiny).dtype == torch.float64
