"""Every registered definition against an obvious loop that shares no code with it."""

import pytest
import torch

from rankscope.measures import MEASURES, Bracket, center_row
from rankscope.measures.norms import unit_tokens
from reference import measure_loops as loops

# Rounding of a few hundred additions and of an SVD; the values are of order 0.01 to 100.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}
SHAPES = [(2, 1), (6, 4), (4, 7)]


def sample(kind, tokens, dim):
    g = torch.Generator().manual_seed(1000 * tokens + dim)
    if kind == "map":
        return torch.softmax(2 * torch.randn(tokens, tokens, generator=g, dtype=torch.float64), dim=-1)
    x = torch.randn(tokens, dim, generator=g, dtype=torch.float64)
    return x * torch.logspace(0, 1.5, tokens, dtype=torch.float64)[:, None] + 0.3


@pytest.mark.parametrize("definition", [d for d in MEASURES if "composite,best" not in d])
def test_equals_the_loop(definition):
    for shape in SHAPES:
        compare_with_loop(definition, shape)


def compare_with_loop(definition, shape):
    measure = MEASURES[definition]
    x = sample(measure.kind, *shape)
    row = None
    if ",linf" in definition:
        row = center_row(unit_tokens(x) if definition.endswith("unit]") else x, center="linf").tolist()
    expected = torch.tensor(float(loops.value(definition, x.tolist(), row)), dtype=torch.float64)
    found = measure(x)
    if isinstance(found, Bracket):
        slack = 1e-7 * expected  # HiGHS stops at 1e-7
        assert found.low <= expected + slack
        assert found.high >= expected - slack
        assert found.high <= 1.01 * found.low
    else:
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("definition", [d for d in MEASURES if "composite,best" in d])
@pytest.mark.parametrize("seed", range(6))
def test_composite_bracket_against_a_grid(definition, seed):
    g = torch.Generator().manual_seed(seed)
    tokens, dim = 2 + seed, 1 + seed % 2
    x = torch.randn(tokens, dim, generator=g, dtype=torch.float64) ** 3
    plain = loops.unit(x.tolist()) if "unit" in definition else x.tolist()
    steps = 120 if dim == 2 else 4000
    smallest = loops.composite_grid(plain, steps)
    if "ratio" in definition:
        smallest /= loops.norm(plain, "composite")
    low, high = MEASURES[definition](x)
    assert low <= smallest * (1 + 1e-12)
    # The grid misses the minimum by at most half a step in every column.
    assert smallest <= high * (1 + 4 * tokens / steps)
    assert high <= 1.01 * low
