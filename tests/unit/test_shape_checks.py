"""Shapes that are declared are checked while tests run."""

import dataclasses

import pytest
import torch
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation

from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures import evaluate, find_measure
from rankscope.measures.norms import unit_scale
from shape_checks import checked


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
