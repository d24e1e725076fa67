"""The same block in other words is read: what it is called, or how it is cut, does not matter."""

import os

import pytest
import torch

import rankscope as rs
from kit.model_spellings import SPELLINGS
from kit.own_models import KINDS, TEXTS, TOKENS, built, given, states_by_hand, tried
from rankscope.errors import ShapeError

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-4}
REFUSED = {
    ("Queries and keys of unit length, with a scale that is learned", "llama"),
    ("Branches added in place to a copy, through views", "llama"),
}
"""A norm behind the turn of queries and keys, which no part says yet; writes through rows that are counted, which are
run as they ran, with the padding of that run."""


def cases() -> list[tuple[str, str]]:
    """Every spelling in one kind, in turn."""
    found = []
    for number, (name, made) in enumerate(SPELLINGS.items()):
        kinds = [kind for kind in getattr(made, "kinds", tuple(KINDS)) if (name, kind) not in REFUSED]
        found.append((name, kinds[number % len(kinds)]))
    return found


@pytest.mark.parametrize(("name", "kind"), cases())
def test_a_spelling_is_read(name: str, kind: str) -> None:
    made = SPELLINGS[name]
    dtype = getattr(made, "dtype", torch.float64)
    model = built(kind, made, dtype=dtype, layers=1)
    padded = "right" if kind == "llama" else ""
    with rs.record(model) as seen:
        given(kind, TEXTS, TOKENS, seed=1, padded=padded, dtype=dtype).call(model)
    found = rs.translate(seen)
    calls, said = list(tried(kind, dtype)), 0
    # every other call, those between for the next spelling; the soak has all
    calls = calls if SOAK else calls[list(SPELLINGS).index(name) % 2 :: 2]
    for inputs, call in calls:
        theirs = states_by_hand(model, call)
        with rs.record(model) as other:
            call.call(model)
        try:
            ours = found.network.states(*found.embed(other.batches[0]))
        except ShapeError:  # longer than it was seen to hold
            continue
        said += 1
        for one, two in zip(ours, theirs, strict=True):
            distance = (one - two).norm(dim=-1)
            off = torch.where(distance == 0, 0.0, distance / two.norm(dim=-1))
            assert float(off[call.keep].max()) <= CLOSE[dtype], inputs
    assert said >= getattr(made, "said", 8) // (1 if SOAK else 2)
