"""Real checkpoints as trees: replayed on texts of their own domain."""

import copy
import os
from functools import cache

import pytest
import torch

from kit import checkpoints as kept
from kit.checkpoints import checkpoints, first_texts, loaded, shortened
from kit.translation_casts import CastsRemoved
from rankscope.network import variant
from rankscope.sources import Translation, translate
from rankscope.split import split_states

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
KINDS = {
    "minilm": ("bert", 6),
    "rxnmapper": ("albert", 12),
    "sapiens": ("roberta", 4),
    "ruaccent": ("Transformer", 4),
    "smollm2": ("llama", 30 if SOAK else 6),  # all its blocks take ten seconds to read
}


@cache
def translated(name: str) -> Translation:
    if SOAK or name != "smollm2":
        return kept.translated(name)
    return translate(shortened(loaded(name).model, KINDS[name][1]), first_texts(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints(*KINDS))
def test_float32(name: str) -> None:
    translation = translated(name)
    assert (translation.kind, len(translation.network.blocks)) == KINDS[name]
    assert translation.proof.worst < 2e-4


LARGE = set() if SOAK else {"smollm2"}


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints(*(name for name in KINDS if name not in LARGE)))
def test_float64(name: str) -> None:
    batch, model = first_texts(name), copy.deepcopy(loaded(name).model).double()
    translation = translate(model, batch)
    assert max(translation.proof.blocks) < (2e-6 if translation.casts else 1e-9)
    if translation.casts:
        with CastsRemoved():
            proof = translate(model, batch).proof
        assert proof.worst < 1e-9
    else:
        assert translation.proof.worst < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints(*(name for name in KINDS if name not in LARGE)))
def test_attention_alone_collapses_and_the_model_does_not(name: str) -> None:
    """The paper's figure for trained models, to infinite precision: the residual of every text by the split pass."""
    translation = translated(name)
    x, context = translation.embed(first_texts(name))
    alone, whole = (
        split_states(variant(translation.network, which), x, context)[-1] for which in ("san", "transformer")
    )
    for text in range(len(x)):
        ratios = [
            float(state.log_scale[text].exp() / torch.linalg.matrix_norm(state.kept(state.tokens())[text]))
            for state in (alone, whole)
        ]
        assert ratios[0] < 1e-3 < 0.1 < ratios[1]
