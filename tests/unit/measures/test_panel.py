"""The panel of a scan equals the catalog, definition by definition, also where its quick formulas would fail."""

import pytest
import torch

from rankscope.errors import ShapeError
from rankscope.measures import MASSIVE, PANEL, RANKS, evaluate, evaluate_many, find_measure, panel, read_panel

SHAPES = [(2, 5), (7, 3), (5, 40), (40, 5), (33, 33)]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def massive_token(x):
    y = x.clone()
    y[0] *= 1e5
    return y


def two_massive_tokens(x):
    y = x.clone()
    y[:2] *= torch.tensor([[300.0], [40.0]], dtype=x.dtype)
    return y


def equal_behind_massive(x):
    y = 1 + 1e-9 * x
    y[:2] *= 300
    return y


def massive_channel(x):
    y = x.clone()
    y[:, 1] += 300
    return y


def two_massive_channels(x):
    y = x.clone()
    y[:, :2] += torch.tensor([300.0, 40.0], dtype=x.dtype)
    return y


def zero_token(x):
    y = x.clone()
    y[0] = 0
    return y


STATES = {
    "plain": lambda x: x,
    "shared mean": lambda x: x + 300,
    "near consensus": lambda x: 1 + 1e-9 * x,
    "consensus": torch.ones_like,
    "massive token": massive_token,
    "two massive tokens": two_massive_tokens,
    "massive channel": massive_channel,
    "two massive channels": two_massive_channels,
    "equal behind massive tokens": equal_behind_massive,
    "zero token": zero_token,
    "all zero": torch.zeros_like,
    "tiny": lambda x: x * 1e-200,
    "huge": lambda x: x * 1e200,
    "steep": lambda x: x * torch.logspace(0, -14, x.shape[1], dtype=x.dtype),
    "rank one": lambda x: torch.outer(x[:, 0], x[0]),
}


def assert_equals_catalog(x, *, layer=3, dtype=torch.float32, tolerance=1e-11):
    found = read_panel([x], layer=layer, dtype=dtype)
    assert found.definitions == PANEL + MASSIVE + RANKS
    for place, definition in enumerate(found.definitions):
        expected = evaluate(find_measure(definition), x, layer=layer, dtype=dtype)
        for part in ("value", "floor"):
            torch.testing.assert_close(
                getattr(found, part + "s")[0, place],
                getattr(expected, part),
                # ranks may come from a Gram matrix, whose rounding is held below 1e-8 of the rank
                rtol=1e-8 if definition in RANKS else tolerance,
                atol=1e-14,
                equal_nan=True,
                msg=lambda text, d=definition, p=part: f"{d} {p}: {text}",
            )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("state", STATES)
def test_equals_the_catalog(state, shape):
    assert_equals_catalog(STATES[state](normal(*shape)))


COARSE = {
    "plain": STATES["plain"],
    "shared mean": lambda x: x + 3,
    "a large shared mean": lambda x: x + 300,
    "ratio 1e-3": lambda x: 1 + 1e-3 * x,
    "massive token": massive_token,
    "two massive tokens": two_massive_tokens,
    "massive channel": massive_channel,
    "zero token": zero_token,
    "small": lambda x: x * 1e-18,
    "large": lambda x: x * 1e18,
    "beyond squares": lambda x: x * 1e-30,
    "above squares": lambda x: x * 1e30,
    "steep": lambda x: x * torch.logspace(0, -6, x.shape[1], dtype=x.dtype),
    "first token a million times the others": lambda x: x * torch.tensor([[1e6]] + [[1.0]] * (len(x) - 1)),
    "just too small to be added one by one": lambda x: torch.cat([x[:1] * 0 + 2**24, x[1:] * 0 + 0.9]) + x,
}


@pytest.mark.parametrize("shape", [(2, 5), (9, 12), (16, 40), (130, 64), (300, 24)], ids=str)
@pytest.mark.parametrize("state", COARSE)
def test_float32_states_are_within_half_a_floor_of_the_catalog(state, shape):
    x = COARSE[state](normal(*shape)).float()
    found = read_panel([x], layer=1, dtype=torch.float32)
    for place, definition in enumerate(found.definitions):
        exact = evaluate(find_measure(definition), x.double(), layer=1, dtype=torch.float32)
        value, floor = found.values[0, place], found.floors[0, place]
        if torch.isnan(exact.value):
            assert torch.isnan(value)
            continue
        assert abs(value - exact.value) <= max(0.5 * exact.floor, 1e-8 * exact.value), definition
        torch.testing.assert_close(floor, exact.floor, rtol=1e-3, atol=1e-12, msg=definition)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_coarser_states_are_measured_as_float32_states(dtype):
    x = normal(9, 12).to(dtype)
    half, single = (read_panel([one], layer=3, dtype=dtype) for one in (x, x.float()))
    assert torch.equal(half.values, single.values)
    assert torch.equal(half.floors, single.floors)


def test_float64_states_are_measured_in_float64():
    assert_equals_catalog(normal(9, 12), dtype=torch.float64)


def test_products_of_another_precision_are_not_used(monkeypatch):
    """Where float32 products may run in bfloat16, all sums run in float64."""
    x = normal(9, 12).float()
    torch.set_float32_matmul_precision("medium")
    try:
        found = read_panel([x], layer=1, dtype=torch.float32)
    finally:
        torch.set_float32_matmul_precision("highest")
    wanted = read_panel([x.double()], layer=1, dtype=torch.float32)
    assert torch.equal(found.values, wanted.values)


def test_texts_of_different_lengths_are_independent():
    texts = [normal(tokens, 16, seed=tokens) for tokens in (2, 5, 30)]
    together = read_panel(texts, layer=1, dtype=torch.float64)
    for place, text in enumerate(texts):
        alone = read_panel([text], layer=1, dtype=torch.float64)
        assert torch.equal(together.values[place], alone.values[0])
        assert torch.equal(together.floors[place], alone.floors[0])


def test_a_state_with_nan_has_no_numbers_and_harms_no_other():
    bad = normal(4, 6)
    bad[1, 2] = torch.nan
    found = read_panel([normal(4, 6), bad], layer=1, dtype=torch.float32)
    assert torch.isfinite(found.values[0]).all()
    assert torch.isnan(found.values[1]).all()
    assert not found.resolved[1].any()


def test_one_token_is_refused():
    with pytest.raises(ShapeError, match="two tokens"):
        read_panel([normal(1, 6)], layer=1, dtype=torch.float32)


def test_gram_matrices_are_used_only_where_they_keep_the_digits(monkeypatch):
    asked = []

    def remember(measures, *args, **options):
        asked.extend(measure.definition for measure in measures)
        return evaluate_many(measures, *args, **options)

    monkeypatch.setattr(panel, "evaluate_many", remember)
    read_panel([normal(20, 30)], layer=1, dtype=torch.float32)
    assert asked == []
    read_panel([STATES["steep"](normal(20, 30))], layer=1, dtype=torch.float32, sites=False, massive=False)
    assert asked == list(RANKS)


def test_several_threads_give_the_same_numbers():
    texts = [normal(6, 8, seed=k) for k in range(5)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = read_panel(texts, layer=1, dtype=torch.float32)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(two.values, read_panel(texts, layer=1, dtype=torch.float32).values)


def test_states_with_strides_are_measured_too():
    assert_equals_catalog(normal(9, 7).T)
