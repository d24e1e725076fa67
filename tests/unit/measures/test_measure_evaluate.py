"""Values with their floors: bad matrices beside good ones, 0/0, brackets, padding."""

import pytest
import torch

from rankscope.core.numerics import relative_floor
from rankscope.errors import ShapeError
from rankscope.measures import MEASURES, Bracket, evaluate, evaluate_many, evaluate_padded, find_measure

DOUBLE = {"layer": 1, "dtype": torch.float64}
SOME = [
    "residual_ratio[composite,mean]",
    "residual[linf,best]",
    "residual_ratio[composite,best,unit]",
    "diameter[l1]",
    "cosine[off_diagonal]",
    "effective_rank[entropy,centered,unit]",
    "smallest_singular_value[ratio,centered]",
    "token_share[largest]",
    "outlier_tokens[10x_median]",
]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_equal(found, expected):
    for field in ("value", "low", "high", "floor", "resolved"):
        torch.testing.assert_close(
            getattr(found, field), getattr(expected, field), rtol=1e-12, atol=1e-14, equal_nan=True
        )


@pytest.mark.parametrize("definition", SOME)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_matrix_is_null_and_the_others_are_measured(definition, bad):
    x = normal(2, 3, 5, 4)
    x[1, 0, 2, 3] = bad
    measure = MEASURES[definition]
    found = evaluate(measure, x, **DOUBLE)
    assert found.value.shape == (2, 3)
    good = torch.ones(2, 3, dtype=torch.bool)
    good[1, 0] = False
    assert not found.resolved[1, 0]
    for field in (found.value, found.low, found.high, found.floor):
        assert torch.equal(torch.isfinite(field), good)
    value = measure(x[good])
    torch.testing.assert_close(found.value[good], value.high if isinstance(value, Bracket) else value)


@pytest.mark.parametrize("definition", SOME)
def test_a_batch_of_bad_matrices_is_all_null(definition):
    found = evaluate(MEASURES[definition], torch.full((3, 4, 2), torch.nan), **DOUBLE)
    assert found.value.isnan().all()
    assert not found.resolved.any()


def test_no_matrices_at_all():
    found = evaluate(find_measure("residual"), torch.ones(0, 4, 2), **DOUBLE)
    assert found.value.shape == (0,)


@pytest.mark.parametrize("definition", [d for d, m in MEASURES.items() if m.name == "residual_ratio"])
def test_zero_over_zero_is_null_and_unresolved(definition):
    found = evaluate(MEASURES[definition], torch.zeros(2, 4, 3), **DOUBLE)
    assert found.value.isnan().all()
    assert not found.resolved.any()


@pytest.mark.parametrize("definition", [d for d, m in MEASURES.items() if m.name in ("residual", "diameter")])
def test_consensus_is_zero_and_unresolved(definition):
    row = torch.tensor([1.7, -0.1, 3e5], dtype=torch.float64)
    for tokens in (
        6,
        41,
    ):  # the mean of 41 equal numbers is rounded, and 41 tokens take another path in cdist
        found = evaluate(MEASURES[definition], row.expand(tokens, 3), **DOUBLE)
        assert found.value.item() == 0.0
        assert found.floor > 0
        assert not found.resolved


@pytest.mark.parametrize("definition", [d for d in MEASURES if d.endswith("unit]")])
def test_a_zero_token_has_no_direction(definition):
    x = normal(2, 5, 3)
    x[1, 2] = 0
    found = evaluate(MEASURES[definition], x, **DOUBLE)
    assert found.value.isnan().tolist() == [False, True]
    assert found.resolved.tolist() == [bool(found.value[0].abs() > found.floor[0]), False]


def test_resolved_means_above_the_floor_of_the_dtype_that_ran():
    row = torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64)
    x = row + 1e-5 * normal(6, 3)
    measure = find_measure("residual_ratio[frobenius,mean]")
    for dtype, layer, resolved in [
        (torch.float64, 12, True),
        (torch.float32, 1, True),
        (torch.bfloat16, 1, False),
    ]:
        found = evaluate(measure, x, layer=layer, dtype=dtype)
        assert found.floor.item() == relative_floor(layer, dtype)
        assert found.resolved.item() is resolved


def test_a_bracket_reports_both_ends_and_its_high_end_as_value():
    x = normal(3, 6, 4)
    found = evaluate(find_measure("residual[linf,best]"), x, **DOUBLE)
    low, high = find_measure("residual[linf,best]")(x)
    assert torch.equal(found.low, low)
    assert torch.equal(found.high, high)
    assert torch.equal(found.value, high)
    plain = evaluate(find_measure("residual"), x, **DOUBLE)
    assert torch.equal(plain.low, plain.value)
    assert torch.equal(plain.high, plain.value)


def test_overflow_of_a_sum_is_null_not_infinite():
    found = evaluate(
        find_measure("residual[linf,mean]"),
        torch.tensor([[1e308, 1e308], [-1e308, -1e308]]).double(),
        **DOUBLE,
    )
    assert found.value.isnan()
    assert not found.resolved


@pytest.mark.parametrize("definition", SOME)
@pytest.mark.parametrize("fill", [0.0, 1e6, float("nan")])
def test_a_padded_batch_equals_its_texts_one_by_one(definition, fill):
    measure = MEASURES[definition]
    x, lengths = normal(4, 7, 3, seed=3), [7, 4, 2, 4]
    is_token = torch.zeros(4, 7, dtype=torch.bool)
    for text, length in enumerate(lengths):
        is_token[text, 7 - length :] = True  # padding on the left
    padded = torch.where(is_token[..., None], x, fill)
    found = evaluate_padded(measure, padded, is_token, **DOUBLE)
    for text in range(4):
        alone = evaluate(measure, x[text][is_token[text]], **DOUBLE)
        for field in ("value", "low", "high", "floor", "resolved"):
            torch.testing.assert_close(
                getattr(found, field)[text], getattr(alone, field), rtol=1e-12, atol=1e-14, equal_nan=True
            )


def test_padding_broadcasts_over_seeds():
    x = normal(2, 3, 5, 4)
    is_token = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0], [0, 1, 1, 1, 1]]).bool()
    measure = find_measure("residual")
    whole = evaluate_padded(measure, x, is_token, **DOUBLE)
    assert whole.value.shape == (2, 3)
    for seed in range(2):
        one = evaluate_padded(measure, x[seed], is_token, **DOUBLE)
        assert torch.equal(whole.value[seed], one.value)


def test_padding_of_a_map_drops_queries_and_keys():
    is_token = torch.tensor([[True, False, True, True], [True, True, True, True]])
    logits = normal(2, 3, 4, 4).masked_fill(~is_token[:, None, None, :], -torch.inf)
    maps = torch.softmax(logits, dim=-1)
    for definition in [d for d, m in MEASURES.items() if m.kind == "map"]:
        measure = MEASURES[definition]
        found = evaluate_padded(measure, maps, is_token[:, None, :], **DOUBLE)
        keep = torch.tensor([0, 2, 3])
        assert_equal_part = evaluate(measure, maps[0][:, keep][:, :, keep], **DOUBLE)
        torch.testing.assert_close(found.value[0], assert_equal_part.value)
        torch.testing.assert_close(found.value[1], evaluate(measure, maps[1], **DOUBLE).value)


def test_a_map_of_a_low_precision_model_is_checked_at_its_own_precision():
    maps = torch.softmax(normal(4, 4), dim=-1).to(torch.bfloat16)
    measure = find_measure("dobrushin")
    assert evaluate(measure, maps, layer=1, dtype=torch.bfloat16).value.isfinite()
    assert evaluate(measure, maps.double(), layer=1, dtype=torch.bfloat16).value.isfinite()
    with pytest.raises(ShapeError, match="rows miss 1 by up to"):
        evaluate(measure, maps.double(), layer=1, dtype=torch.float64)


def test_bad_shapes_are_errors_not_nulls():
    measure = find_measure("residual")
    with pytest.raises(ShapeError, match="at least two tokens, got shape"):
        evaluate(measure, torch.ones(3, 1, 4), **DOUBLE)
    with pytest.raises(ShapeError, match="expected token matrices"):
        evaluate(measure, torch.ones(4), **DOUBLE)
    with pytest.raises(ShapeError, match="got dtype int64"):
        evaluate(measure, torch.ones(3, 4, dtype=torch.int64), **DOUBLE)


def test_bad_padding_is_refused():
    measure, x = find_measure("residual"), normal(2, 4, 3)
    with pytest.raises(
        ShapeError, match=r"needs at least 2 tokens, but text 1 of the batch has 1 once padding"
    ):
        evaluate_padded(measure, x, torch.tensor([[True] * 4, [True, False, False, False]]), **DOUBLE)
    with pytest.raises(ShapeError, match="is_token must be boolean, got int64"):
        evaluate_padded(measure, x, torch.ones(2, 4, dtype=torch.int64), **DOUBLE)
    with pytest.raises(
        ShapeError, match=r"is_token has shape \(2, 5\), which does not broadcast to \(2, 4\)"
    ):
        evaluate_padded(measure, x, torch.ones(2, 5, dtype=torch.bool), **DOUBLE)
    with pytest.raises(ShapeError, match="queries and keys to be the same tokens"):
        evaluate_padded(
            find_measure("dobrushin"), torch.full((2, 3, 4), 0.25), torch.ones(2, 3).bool(), **DOUBLE
        )
    with pytest.raises(ShapeError, match="expected token matrices"):
        evaluate_padded(measure, torch.ones(4), torch.ones(4).bool(), **DOUBLE)


def test_many_measures_together_equal_each_alone(generator):
    x = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64)
    x[1, 2, 3] = torch.nan
    measures = [measure for measure in MEASURES.values() if measure.kind == "tokens"]
    for measure, found in zip(
        measures, evaluate_many(measures, x, layer=2, dtype=torch.float32), strict=True
    ):
        alone = evaluate(measure, x, layer=2, dtype=torch.float32)
        for field in ("value", "low", "high", "floor"):
            assert torch.equal(
                getattr(found, field).nan_to_num(nan=-7.0), getattr(alone, field).nan_to_num(nan=-7.0)
            ), (measure.definition, field)
