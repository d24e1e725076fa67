"""A model that does something besides what a tree can say is refused, or its tree is right wherever it says anything.

``model_faults`` has what models do, ``own_models`` the three kinds that do it. The captured call is never among those
that a tree is tried on: these have other texts, fewer and more of them, shorter and longer, padded, large and small.
"""

import os
from functools import cache

import pytest
import torch

import rankscope as rs
from kit.model_faults import FAULTS
from kit.own_models import KINDS, TEXTS, TOKENS, Given, Model, built, given, states_by_hand, tried
from rankscope.errors import RankscopeError

CLOSE = {torch.float64: 1e-8, torch.float32: 2e-4}
"""How far a tree may be from the model, relative to the token: several times what rounding makes of two blocks."""


def captured(kind: str, fault: type | None = None, dtype: torch.dtype = torch.float64) -> Given:
    """The call that a tree is read from; that of the kind with a mask has padding."""
    texts, tokens = getattr(fault, "captured", (TEXTS, TOKENS))
    padded = "right" if kind == "llama" else ""
    return given(kind, texts, tokens, seed=1, padded=padded, dtype=dtype)


def off(ours: torch.Tensor, theirs: torch.Tensor, keep: torch.Tensor) -> float:
    """The largest distance of a token that is no padding, relative to its length."""
    distance = (ours - theirs).norm(dim=-1)
    return float(torch.where(distance == 0, 0.0, distance / theirs.norm(dim=-1))[keep].max())


def check(model: Model, found: "rs.Translation", name: str, call: Given, dtype: torch.dtype) -> bool:
    """Whether the tree says anything of a call; what it says must be right."""
    theirs = states_by_hand(model, call)
    try:
        with rs.record(model) as other:
            call.call(model)
        ours = found.network.states(*found.embed(other.batches[0]))
    except RankscopeError:
        return False
    assert len(ours) == len(theirs), name
    for layer, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        assert off(one, two, call.keep) <= CLOSE[dtype], f"{name}: layer {layer}"
    return True


@cache
def plain(kind: str) -> "rs.Translation":
    model = built(kind)
    with rs.record(model) as seen:
        captured(kind).call(model)
    return rs.translate(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_models_themselves_are_read(kind: str) -> None:
    """So that a refusal of the others says something."""
    found = plain(kind)
    said = [name for name, call in tried(kind) if check(found.model, found, name, call, torch.float64)]
    assert said == [name for name, _ in tried(kind)]


def cases() -> list[tuple[str, str]]:
    """Every fault in one kind, in turn; in every kind where there is time (``make soak``)."""
    kinds, is_soak = tuple(KINDS), bool(os.environ.get("RANKSCOPE_SOAK"))
    return [
        (name, kind)
        for number, name in enumerate(FAULTS)
        for kind in (kinds if is_soak else (kinds[number % len(kinds)],))
    ]


@pytest.mark.parametrize(("name", "kind"), cases())
def test_no_wrong_tree(name: str, kind: str) -> None:
    fault = FAULTS[name]
    dtype = getattr(fault, "dtype", torch.float64)
    # what one block does, one block shows
    layers = 2 if getattr(fault, "of_the_model", False) else getattr(fault, "layers", 1)
    model = built(kind, fault, dtype=dtype, layers=layers)
    try:
        with rs.record(model) as seen:
            captured(kind, fault, dtype).call(model)
        found = rs.translate(seen)
    except RankscopeError:
        return
    for inputs, call in tried(kind, dtype):
        check(model, found, inputs, call, dtype)
