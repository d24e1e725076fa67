"""The public surface: what is promised exists and is documented."""

import re
from pathlib import Path

import pytest

import rankscope

ROOT = Path(__file__).parents[2]


def test_every_public_name_resolves_and_is_documented() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(rankscope.__all__)
    for name in rankscope.__all__:
        assert getattr(rankscope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = rankscope.absent


def test_versions_agree() -> None:
    assert f'version = "{rankscope.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {rankscope.__version__}" in (ROOT / "CITATION.cff").read_text()
