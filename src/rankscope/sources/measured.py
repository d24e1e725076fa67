"""How far trees were from their models when that was last measured, on tiny random models of every kind."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The largest deviation of one kind of model, relative to the token, in both precisions."""

    family: str
    casts: bool
    float32: float
    float64: float


@cache
def measured_kinds() -> dict[str, Measured]:
    """Every kind of model that was measured."""
    return {kind: Measured(**entry) for kind, entry in _report()["kinds"].items()}


def measured_versions() -> dict[str, str]:
    """The versions of the libraries it was measured with."""
    return dict(_report()["versions"])


@cache
def _report() -> dict[str, dict[str, Any]]:
    text = files("rankscope").joinpath("sources", "measured.json").read_text(encoding="utf-8")
    report: dict[str, dict[str, Any]] = json.loads(text)
    return report
