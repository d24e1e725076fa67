"""The numbers of a scan equal those of the states that each model reports itself, on tiny models of many kinds."""

from operator import attrgetter

import polars as pl
import pytest
import torch

from kit.models import MODELS
from rankscope.measures import MASSIVE, MEASURES, PANEL, RANKS
from rankscope.probe import probe
from rankscope.sources import Batch

PAIRS = [
    pytest.param(case, stack, id=f"{case.name}-{stack}") for case in MODELS.values() for stack in case.stacks
]


def reference_states(case, stack):
    """By layer: what ``output_hidden_states`` holds, or a loop over blocks; never through our hooks.

    The last one that a language model with a final norm reports is after that norm, so it belongs to the site
    ``final``; vision and speech models report it before. What the model returns as its last state tells which.
    """
    model, known, inputs = case.model(), case.stacks[stack], case.inputs()
    with torch.no_grad():
        if known.states:
            output = model(**inputs, output_hidden_states=True)
            states = list(attrgetter(known.states)(output))
            is_final = known.final_norm is not None and is_returned(states[-1], output, known.states)
            last = states.pop() if is_final else None
            return dict(enumerate(states)), last
        if case.name.startswith("timm"):
            _, inner = model.forward_intermediates(
                inputs["x"], norm=False, output_fmt="NLC", return_prefix_tokens=True, indices=None
            )
            return {
                k: torch.cat([prefix, patches], dim=1) for k, (patches, prefix) in enumerate(inner, 1)
            }, None
        if stack == "blocks":
            return looped(model.layers, inputs["src"]), None  # the fast path of torch stays on
        memory = looped(model.encoder.layers, inputs["src"])
        if stack == "encoder":
            return memory, None
        return looped(model.decoder.layers, inputs["tgt"], model.encoder.norm(memory[len(memory) - 1])), None


def is_returned(state, output, name):
    """Whether a model returns ``state`` as its last; models with a head return none, and report as those without."""
    name = name.replace("decoder_hidden_states", "last_hidden_state").replace(
        "hidden_states", "last_hidden_state"
    )
    try:
        return torch.equal(state, attrgetter(name)(output))
    except AttributeError:
        return True


def looped(blocks, x, *memory):
    states = {0: x}
    for k, block in enumerate(blocks, 1):
        states[k] = block(states[k - 1], *memory)
    return states


@pytest.mark.parametrize(("case", "stack"), PAIRS)
def test_numbers_equal_those_of_the_reported_states(case, stack):
    inputs = case.inputs()
    texts = len(next(iter(inputs.values())))
    batch = Batch(inputs=inputs, is_token=None, labels=tuple(map(str, range(texts))))
    table = probe(case.model(), [batch], name=case.name)
    found = {}
    for row in table.frame.filter(pl.col("stack") == stack).sort("sample").iter_rows(named=True):
        found.setdefault((row["layer"], row["site"], row["definition"]), []).append(row["value"])
    states, final = reference_states(case, stack)
    places = [(layer, "block", x) for layer, x in states.items()]
    if final is not None:
        places.append((case.stacks[stack].layers, "final", final))
    assert max(layer for layer, _, _ in found) == case.stacks[stack].layers
    for layer, site, x in places:
        for definition in PANEL + (MASSIVE + RANKS if site == "block" else ()):
            expected = MEASURES[definition](x).tolist()
            assert found[layer, site, definition] == pytest.approx(expected, abs=1e-6), (
                layer,
                site,
                definition,
            )
