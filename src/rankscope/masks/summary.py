"""What a mask means for information flow, in one dictionary."""

from typing import TypedDict

from rankscope.errors import ShapeError
from rankscope.masks.graph import MaskGraph
from rankscope.masks.rule import MaskRule


class MaskSummary(TypedDict):
    """The answers of ``describe``.

    ``radius`` is None where no token reaches all others, ``slem`` where rounding leaves it open.
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


def describe(rule: MaskRule, tokens: int) -> MaskSummary:
    """Edges, centers, radius, connectivity and rate of the mask on that many tokens; tokens count from 0.

    >>> from rankscope.masks import parse_mask
    >>> summary = describe(parse_mask("causal"), 5)
    >>> summary["centers"], summary["radius"], summary["slem"], summary["density"]
    ([0], 1, 0.5, 0.6)
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
    }


def _slem_or_none(graph: MaskGraph) -> float | None:
    try:
        return graph.slem()
    except ShapeError:
        return None
