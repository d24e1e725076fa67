"""What the figures ask of a mask rule, and the words they put under it."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rankscope.errors import ConfigError


@runtime_checkable
class Graph(Protocol):
    """A mask as a graph, as ``rankscope.masks.MaskGraph`` is one."""

    def centers(self) -> NDArray[np.int64]:
        """The tokens that reach every token."""

    def radius(self) -> int | None:
        """Layers until one token has reached all; None if none ever does."""


@runtime_checkable
class Rule(Protocol):
    """A mask rule, as ``rankscope.masks.parse_mask`` gives one."""

    @property
    def text(self) -> str:
        """The rule in words of the mask grammar."""

    def matrix(self, tokens: int) -> NDArray[np.bool_]:
        """True where the query (row) may read the key (column)."""

    def graph(self, tokens: int) -> Graph:
        """The same as a graph, edge key -> query."""


def reach_in_words(graph: Graph) -> str:
    """Radius and number of centers, or that there is none."""
    count, radius = len(graph.centers()), graph.radius()
    if radius is None:
        return "no center: no token reaches all"
    return f"radius {radius} · {plural(count, 'center')}"


def plural(count: int, noun: str) -> str:
    """The count with its noun.

    >>> plural(1, "token"), plural(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def check_size(tokens: int, most: int, what: str) -> None:
    """An error if a picture of so many tokens could not be read."""
    if not 1 <= tokens <= most:
        raise ConfigError(f"{what} was asked for {tokens} tokens; it can be read from 1 to {most} tokens")
