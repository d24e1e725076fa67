"""The deviations that ``rankscope list families`` prints are those of the families there are."""

import re
from pathlib import Path

import torch

from kit.translation_decoders import CASES as DECODERS
from kit.translations import CASES as ENCODERS
from rankscope.sources import FAMILIES
from rankscope.sources.measured import measured_kinds, measured_versions
from rankscope.sources.translate import kinds_of, translated_kinds

ROOT = Path(__file__).parents[3]


def test_every_kind_was_measured_and_nothing_else() -> None:
    assert set(measured_kinds()) == translated_kinds()
    assert set(measured_versions()) == {"transformers", "timm", "torch"}
    for kind, found in measured_kinds().items():
        assert kind in kinds_of(FAMILIES[found.family])
        assert 0 < found.float32 < 2e-4
        # Tables of angles in float32 are off by the position, of up to 128 tokens, times their round-off.
        assert 0 < found.float64 < (max(2e-6, 128 * 2.0**-22) if found.casts else 1e-9)


def test_what_was_measured_is_what_is_measured_now() -> None:
    """On another machine rounding differs, but not by two orders of magnitude."""
    for name in ("bert", "xlnet", "t5", "llama", "gpt2"):
        translation = (ENCODERS | DECODERS)[name].translation(torch.float64)
        known = measured_kinds()[translation.kind]
        assert translation.proof is not None
        assert translation.casts == known.casts
        assert translation.proof.worst < 100 * known.float64


def test_the_page_counts_them() -> None:
    counted = re.search(
        r"(\d+) kinds of transformers, timm and torch", (ROOT / "docs" / "ablate.md").read_text()
    )
    assert counted is not None
    assert int(counted[1]) == len(measured_kinds())
