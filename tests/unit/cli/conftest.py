"""Commands run in this process, and read the same tiny models over and over: each is loaded and translated once."""

import pytest

from kit.read_once import loaded_once, read_once


@pytest.fixture(autouse=True)
def models_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.studies.subjects.load_drawn", loaded_once)
    monkeypatch.setattr("rankscope.studies.subjects.translate", read_once)
