"""Scripts of people who have read the README and nothing else.

Every other file of this folder is one: about ten lines that call public functions and compare what comes back with
numbers computed beside them in plain torch. They share no code with each other.
"""

import runpy
import warnings
from pathlib import Path

import pytest

from kit.standins import NEEDED

SCRIPTS = sorted(
    path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith(("test_", "conftest"))
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = script.read_text(encoding="utf-8")
    for library, import_first in NEEDED.items():
        if f"from {library}" in text:
            import_first()
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="enable_nested_tensor is True"
        )  # torch, of its own default layout
        runpy.run_path(str(script), run_name="__main__")


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 60
