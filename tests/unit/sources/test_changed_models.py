"""A tree is refused by a model that differs in one step of its attention, in every kind that can be translated.

A scale, a mask, an eps or heads that differ are planted in trees by the laws of translations.
"""

import os
from contextlib import AbstractContextManager

import pytest
import torch

from kit.changed_attention import attention_changed, dropped
from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from rankscope.errors import NotTranslated
from rankscope.sources.translation import Translation

CASES = ENCODERS | DECODERS
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))


def changes() -> dict[str, AbstractContextManager[None]]:
    return {
        "logits clamped": attention_changed(lambda scores: scores.clamp(max=0.1)),
        "another scale beyond six tokens": attention_changed(
            lambda scores: scores * (1.01 if scores.shape[-1] > 6 else 1.0)
        ),
        "dropout left on": attention_changed(maps=dropped),
    }


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(name, change, id=f"{name}, {change}")
        for place, name in enumerate(CASES)
        # every kind changed in one way, and the ways in turn; the soak has all
        for change in (list(changes()) if SOAK else [list(changes())[place % len(changes())]])
    ],
)
def test_the_tree_of_a_model_is_refused_by_the_model_changed(name: str, change: str) -> None:
    found: Translation = CASES[name].translation(torch.float64)
    with changes()[change], pytest.raises(NotTranslated):
        found.proven_on(CASES[name].batch(torch.float64))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "vit", "torch-post"])
def test_the_same_attention_in_other_words_is_not_refused(name: str) -> None:
    """So that it is the change that is refused, and not how it is planted."""
    with attention_changed():
        CASES[name].translation(torch.float64).proven_on(CASES[name].batch(torch.float64))
