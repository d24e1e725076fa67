"""What a mask means for information flow, in one dictionary."""

from typing import TypedDict

from rankscope.errors import ShapeError
from rankscope.masks.graph import MaskGraph
from rankscope.masks.rule import MaskRule


class MaskSummary(TypedDict):
    """The answers of ``describe``.

    ``radius`` is None where no token reaches all others, ``slem`` where rounding leaves it open; ``slem_bracket``
    holds the two numbers between which it certainly lies.
    """

    mask: str
    tokens: int
    edges: int
    density: float
    self_loops: bool
    centers: list[int]
    radius: int | None
    quasi_strongly_connected: bool
    strongly_connected: bool
    slem: float | None
    slem_bracket: tuple[float, float]


def describe(rule: MaskRule, tokens: int) -> MaskSummary:
    """Edges, centers, radius, connectivity and rate of the mask on that many tokens; tokens count from 0.

    >>> from rankscope.masks import parse_mask
    >>> summary = describe(parse_mask("causal"), 5)
    >>> summary["centers"], summary["radius"], summary["slem"], summary["density"]
    ([0], 1, 0.5, 0.6)
    >>> summary["slem_bracket"]
    (0.5, 0.5)
    """
    graph = rule.graph(tokens)
    return {
        "mask": rule.text,
        "tokens": tokens,
        "edges": graph.edges,
        "density": graph.edges / tokens**2,
        "self_loops": graph.self_loops,
        "centers": graph.centers().tolist(),
        "radius": graph.radius(),
        "quasi_strongly_connected": graph.is_quasi_strongly_connected,
        "strongly_connected": graph.is_strongly_connected,
        "slem": _slem_or_none(graph),
        "slem_bracket": _ends(graph),
    }


def slem_words(graph: MaskGraph, digits: int = 4) -> str:
    """``slem`` to that many digits behind the point, or the bracket where it leaves one of them open.

    >>> from rankscope.masks import parse_mask
    >>> slem_words(parse_mask("window:1").graph(10))
    '0.9626'
    """
    low, high = graph.slem_bracket()
    if f"{low:.{digits}f}" == f"{high:.{digits}f}":
        return f"{low:.{digits}f}"
    if high - low <= 10.0**-digits:  # a tie of rounding: one more digit would not say more
        return f"{(low + high) / 2:.{digits}f}"
    return f"between {low:.{digits}f} and {high:.{digits}f}"


def _ends(graph: MaskGraph) -> tuple[float, float]:
    low, high = graph.slem_bracket()
    return low, high


def _slem_or_none(graph: MaskGraph) -> float | None:
    try:
        return graph.slem()
    except ShapeError:
        return None
