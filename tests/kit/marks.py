"""Which of many cases run where."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], *, often: Iterable[Any]) -> list[Any]:
    """All cases; ``make test`` runs those that are often wanted, ``make slow`` the others."""
    chosen = list(often)
    return [one if one in chosen else pytest.param(one, marks=pytest.mark.slow) for one in cases]
