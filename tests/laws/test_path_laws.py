"""Laws of the decomposition into paths for every translated family and every real checkpoint."""

import os

import pytest
import torch

from kit.checkpoints import checkpoints, translated
from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from kit.translations import IN_FLOAT32, some
from rankscope.network import TokenMap
from rankscope.pathways import attribute, spectrum
from rankscope.sources.random_tokens import random_token_batches
from rankscope.sources.translation import Translation

CASES = ENCODERS | DECODERS
ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4}
SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
EVERY = [(name, torch.float64) for name in some([*CASES], soak=SOAK)] + [
    (name, torch.float32) for name in IN_FLOAT32
]


def options(translation: Translation) -> dict[str, str]:
    """What is known of a token map is its output alone, so that paths begin there."""
    has_maps = any(isinstance(part, TokenMap) for part in translation.network.modules())
    return {"mlps": "source"} if has_maps else {}


@pytest.mark.parametrize(("name", "dtype"), EVERY, ids=str)
def test_the_sum_over_lengths_is_the_forward_of_every_family(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    translation = case.translation(dtype)
    with torch.no_grad():
        x, context = translation.embed(case.batch(dtype))
        output = translation.network(x, context)
    found = spectrum(translation.network, x, context, dtype=dtype, **options(translation))
    keep = slice(None) if context.is_token is None else context.is_token
    off = (found.total - output)[keep].norm() / output[keep].norm()
    assert float(off) < ALLOWED[dtype]
    assert float(found.relative_error.max()) < ALLOWED[dtype]
    if dtype == torch.float64:
        shares = attribute(translation.network, x, context, **options(translation)).sources
        total = torch.stack(list(shares.values())).sum(dim=0)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-9, atol=0)


LARGE = ("minilm", "rxnmapper", "smollm2") if SOAK else ()


@pytest.mark.parametrize("name", checkpoints("sapiens", "ruaccent", *LARGE))
def test_the_sum_over_lengths_is_the_forward_of_real_checkpoints(name: str) -> None:
    translation = translated(name)
    (batch,) = random_token_batches(translation.model, "1x6", seed=0)
    x, context = translation.embed(batch)
    found = spectrum(translation.network, x, context, **options(translation))
    assert found.output.dtype == torch.float64
    assert float(found.relative_error.max()) < 1e-10
    single = spectrum(translation.network, x, context, dtype=torch.float32, **options(translation))
    with torch.no_grad():
        output = translation.network(x, context)
    assert float((single.total - output).norm() / output.norm()) < 1e-4
