"""Texts as they enter the first block: the first of a batch, and each alone."""

import pytest
import torch

from rankscope.network import Context
from rankscope.studies.subjects import EmbeddedTexts

TOKENS, DIM, MEMORY = 4, 3, 5


def fed(texts: int, *, shared: bool) -> EmbeddedTexts:
    """A batch whose context has entries per text, or (all but padding) one for all texts."""
    lead = () if shared else (texts,)
    x = torch.arange(float(texts * TOKENS * DIM)).reshape(texts, TOKENS, DIM)
    is_token = torch.ones(texts, TOKENS, dtype=torch.bool)
    is_token[0, -1] = False
    context = Context(
        is_token=is_token,
        positions=torch.arange(TOKENS).expand(*lead, TOKENS),
        segments=torch.zeros(*lead, TOKENS, dtype=torch.long),
        memory=torch.randn(*lead, MEMORY, DIM, generator=torch.Generator().manual_seed(0)),
        memory_is_token=torch.ones(*lead, MEMORY, dtype=torch.bool),
    )
    return EmbeddedTexts(x=x, context=context, keep=is_token, first=7)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_texts_of_a_batch(count, shared):
    """They are the same texts, one by one, as those of the whole batch; what all texts share stays whole."""
    whole = fed(3, shared=shared)
    head = whole.head(count)
    assert len(head.x) == count
    assert head.tokens == whole.tokens[:count]
    head.context.check(head.x)
    pairs = list(zip(head.each(), whole.each(), strict=False))
    assert len(pairs) == count
    for (number, x, context), (expected_number, expected, known) in pairs:
        assert number == expected_number
        torch.testing.assert_close(x, expected, rtol=0, atol=0)
        for name in ("positions", "segments", "memory"):
            torch.testing.assert_close(getattr(context, name), getattr(known, name), rtol=0, atol=0)


def test_a_batch_that_is_not_longer_stays():
    whole = fed(2, shared=False)
    assert whole.head(2) is whole
    assert whole.head(9) is whole
