"""The faults that are planted in models are faults: they show."""

from functools import cache

import pytest
import torch
from torch import Tensor

from kit.model_faults import FAULTS
from kit.own_models import KINDS, Given, built, states_by_hand, tried

SHOWS = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Relative to a token; ten times what a tree may be off."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_shows_somewhere(name: str) -> None:
    """Each is one: in some kind, on some call, the model puts out something else than without it."""
    fault = FAULTS[name]
    dtype = getattr(fault, "dtype", torch.float64)
    models = {kind: built(kind, fault, dtype=dtype) for kind in KINDS}
    shows = any(
        ((states_by_hand(model, call)[-1] - states).norm(dim=-1) / states.norm(dim=-1))[call.keep].max()
        > SHOWS[dtype]
        for kind, model in models.items()
        for call, states in _last_states(kind, dtype)
    )
    assert shows != getattr(fault, "is_spelling", False)


@cache
def _last_states(kind: str, dtype: torch.dtype) -> list[tuple[Given, Tensor]]:
    model = built(kind, dtype=dtype)
    return [(call, states_by_hand(model, call)[-1]) for _, call in tried(kind, dtype)]
