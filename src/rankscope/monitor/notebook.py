"""A picture in a notebook that is drawn again as a run goes on."""

import time
from importlib import import_module
from typing import Any

PAUSE = 2.0
"""Seconds between two drawings, so that a run of short steps is not spent on them."""


class LiveView:
    """A place in the output of a cell. It is made when a notebook shows the monitor, and only then."""

    def __init__(self, html: str) -> None:
        shown = import_module("IPython.display")
        self._html: Any = shown.HTML
        self._place: Any = shown.display(shown.HTML(html), display_id=True)
        self._drawn = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last drawing is old enough."""
        return self._place is not None and time.monotonic() - self._drawn >= PAUSE

    def draw(self, html: str) -> None:
        """The picture of now in the same place."""
        if self._place is not None:
            self._drawn = time.monotonic()
            self._place.update(self._html(html))
