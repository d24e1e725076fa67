"""Weights that are no numbers are found by name, whatever their dtype, and nothing else is."""

from math import inf, nan

import pytest
import torch
from torch import Tensor, nn

from rankscope.findings.verdict import Weight
from rankscope.sources.weights import not_finite


def _model(dtype: torch.dtype = torch.float32) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 4, bias=False)).to(dtype)
    model.register_buffer("mask", torch.full((5, 5), -inf, dtype=dtype).triu(1))
    model.register_buffer("steps", torch.arange(3))
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_is_not_finite_is_named_and_counted(dtype: torch.dtype) -> None:
    model = _model(dtype)
    assert not_finite(model) == ()
    with torch.no_grad():
        model[0].weight[1, 2] = nan
        model[2].weight[0, 0] = inf
        model[2].weight[0, 1] = -inf
        model.mask[0, 0] = nan
    assert not_finite(model) == (
        Weight(name="0.weight", nans=1, infinities=0, entries=12),
        Weight(name="2.weight", nans=0, infinities=2, entries=12),
        Weight(name="mask", nans=1, infinities=0, entries=25),
    )


def test_finite_weights_whose_sum_overflows_are_finite() -> None:
    model = nn.Linear(4, 4).half()
    nn.init.constant_(model.weight, 6e4)
    assert not_finite(model) == ()


def test_a_tied_weight_is_named_once_and_infinities_of_both_signs_in_a_mask_are_no_flaw() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 4), "head": nn.Linear(4, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    nn.init.constant_(model["head"].weight, nan)
    model.register_buffer("bounds", torch.tensor([-inf, inf]))
    assert [one.name for one in not_finite(model)] == ["embed.weight"]


class _Packed(Tensor):
    """A stand-in for quantised weights: it says it is floating point and has no sum."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is Tensor.sum:
            raise NotImplementedError("packed")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_weights_that_cannot_be_read_are_left_alone() -> None:
    with torch.device("meta"):
        assert not_finite(nn.Linear(2, 2)) == ()
    assert not_finite(nn.LazyLinear(2)) == ()
    model = nn.Module()
    model.register_buffer("codes", torch.full((2,), nan).as_subclass(_Packed))
    model.register_buffer("small", torch.ones(2).to(torch.float8_e4m3fn))
    assert not_finite(model) == ()
