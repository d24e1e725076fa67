"""Rows in constant memory: the same numbers as of all rows at once, however they were cut."""

from itertools import pairwise

import numpy as np
import pytest

from rankscope.measures import row_stream
from rankscope.measures.row_stream import RowStream


def rows(many=500, dim=7, shift=0.0):
    return np.random.default_rng(1).standard_normal((many, dim)) * np.arange(1, dim + 1) + shift


def streamed(x, cuts, sample):
    stream = RowStream(x.shape[1], sample=sample)
    edges = [0, *cuts, len(x)]
    for start, stop in pairwise(edges):
        stream.add(x[start:stop], start)
    return stream


@pytest.mark.parametrize("sample", [32, 600])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_numbers_are_those_of_all_rows(sample, shift):
    x = rows(shift=shift)
    found = streamed(x, [1, 40, 333], sample).summary()
    unit = x / np.linalg.norm(x, axis=1)[:, None]
    cosines = unit @ unit.T
    assert found.count == 500
    assert found.values == pytest.approx(np.linalg.svd(x, compute_uv=False), rel=1e-6 if shift else 1e-9)
    centered = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    assert found.centered == pytest.approx(centered, rel=1e-9)
    assert found.cosine == pytest.approx((cosines.sum() - 500) / (500 * 499))
    assert found.spread == pytest.approx(unit.std(axis=0).mean(), rel=1e-6)
    assert found.channel == pytest.approx((unit**2).mean(axis=0).max())
    assert found.ratio == pytest.approx(np.linalg.norm(x - x.mean(axis=0)) / np.linalg.norm(x), rel=1e-6)


def test_the_sample_does_not_depend_on_how_rows_were_cut_or_who_read_them():
    x = rows()
    whole = streamed(x, [], 50).summary()
    cut = streamed(x, [3, 200, 201, 499], 50).summary()
    first, second = RowStream(7, sample=50), RowStream(7, sample=50)
    second.add(x[250:], 250)
    first.add(x[:250], 0)
    second.merge(first)
    for other in (cut, second.summary()):
        assert np.array_equal(whole.places, other.places)
        assert np.array_equal(whole.sample, other.sample)
        assert other.centered == pytest.approx(whole.centered)
    assert np.array_equal(whole.sample, x[whole.places])
    assert 150 < whole.places.mean() < 350  # from all parts


def test_wide_rows_are_measured_on_the_sample(monkeypatch):
    monkeypatch.setattr(row_stream, "MOST_DIM", 3)
    found = streamed(rows(), [100], 50).summary()
    assert (found.count, found.measured, len(found.values)) == (500, 50, 7)


def test_equal_and_zero_rows():
    equal = streamed(np.full((20, 3), 0.1), [5], 10).summary()
    assert equal.ratio < 1e-7
    assert equal.spread < 1e-15
    nothing = streamed(np.zeros((4, 3)), [], 10).summary()
    assert nothing.ratio == 0.0
    assert np.isnan(nothing.cosine)
