"""Shapes that are declared are checked while tests run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation

from kit.shape_checks import checked
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures import evaluate, find_measure
from rankscope.measures.norms import unit_scale


def test_a_wrong_shape_is_refused() -> None:
    assert unit_scale(torch.ones(2, 3, 4))[1].shape == (2,)
    with pytest.raises(BeartypeCallHintViolation):
        unit_scale(torch.ones(3))


def test_fields_share_their_axes() -> None:
    found = evaluate(find_measure("diameter[l2]"), torch.eye(3).expand(2, 3, 3), layer=1, dtype=torch.float32)
    with pytest.raises(BeartypeCallHintViolation):
        dataclasses.replace(found, floor=torch.ones(5, dtype=torch.float64))


def test_arguments_and_answer_share_their_axes() -> None:
    def stretched(x: TokenMatrix, y: TokenMatrix) -> PerMatrix:
        return (x @ y.mT).sum(dim=(-2, -1)).repeat(2)

    check = checked(typechecker=beartype)(stretched)
    with pytest.raises(BeartypeCallHintViolation, match="return"):
        check(torch.ones(3, 2, 4), torch.ones(3, 2, 4))
    with pytest.raises(BeartypeCallHintViolation, match="parameter"):
        check(torch.ones(3, 2, 4), torch.ones(3, 2, 5))


def test_a_call_within_a_call_has_axes_of_its_own() -> None:
    @checked(typechecker=beartype)
    def sizes(x: TokenMatrix) -> PerMatrix:
        return x.square().sum(dim=(-2, -1)) if x.shape[0] == 1 else sizes(x[:1, :1, :1]).repeat(len(x))

    assert sizes(torch.ones(3, 2, 4)).tolist() == [1.0, 1.0, 1.0]


def test_what_was_found_right_once_is_computed_but_not_checked_again() -> None:
    checks = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        whole = beartype(function)

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            checks.append(args)
            return whole(*args, **kwargs)

        return counted

    @checked(typechecker=counting)
    def sizes(x: TokenMatrix) -> PerMatrix:
        return x.square().sum(dim=(-2, -1))

    assert [sizes(n * torch.ones(1, 2, 2)).item() for n in (1, 2, 3)] == [4.0, 16.0, 36.0]
    assert len(checks) == 1
    sizes(torch.ones(1, 2, 3))
    assert len(checks) == 2


def test_an_answer_of_another_shape_is_refused_whenever_it_comes() -> None:
    @checked(typechecker=beartype)
    def sizes(x: TokenMatrix) -> PerMatrix:
        found = x.sum(dim=(-2, -1))
        return found if found.sum() < 5 else found.repeat(2)

    for _ in range(2):
        assert sizes(torch.ones(1, 2, 2)).tolist() == [4.0]
    for _ in range(2):
        with pytest.raises(BeartypeCallHintViolation, match="return"):
            sizes(2 * torch.ones(1, 2, 2))


@pytest.mark.parametrize("other", [torch.ones(1, 2), torch.ones(1, 2, 2, dtype=torch.int64), "tokens", None])
def test_other_arguments_are_checked_however_often_the_right_ones_were(other: object) -> None:
    @checked(typechecker=beartype)
    def sizes(x: TokenMatrix, rows: TokenMatrix) -> PerMatrix:
        return (x @ rows.mT).sum(dim=(-2, -1))

    for _ in range(3):
        sizes(torch.ones(1, 2, 2), rows=torch.ones(1, 2, 2))
    for _ in range(2):
        with pytest.raises(BeartypeCallHintViolation, match="parameter rows"):
            sizes(torch.ones(1, 2, 2), rows=other)


def test_an_answer_is_computed_once() -> None:
    drawn = []

    @checked(typechecker=beartype)
    def next_or_all(x: TokenMatrix) -> TokenMatrix | dict[int, TokenMatrix]:
        drawn.append(x)
        return x if len(drawn) < 3 else {len(drawn): x}

    for _ in range(5):
        next_or_all(torch.ones(2, 2))
    assert len(drawn) == 5


def test_collections_are_checked_every_time() -> None:
    @checked(typechecker=beartype)
    def count(x: dict[str, TokenMatrix]) -> int:
        return len(x)

    count({"a": torch.ones(2, 2)})
    for _ in range(2):
        with pytest.raises(BeartypeCallHintViolation):
            count({"a": torch.ones(2)})
