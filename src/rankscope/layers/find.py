"""Every layer that is known, and layers by name: those that have a row, any mask, any graph layer on any graph."""

from typing import get_args

from rankscope.layers import graph_layers, mixers
from rankscope.layers.graphs import find_graph
from rankscope.layers.kinds import LAYERS, Group, LayerKind
from rankscope.layers.mixers.masks import PREFIX, mask_layer

__all__ = ["all_layers", "find_layer", "graph_layers", "mixers"]


def all_layers() -> tuple[LayerKind, ...]:
    """Every row, those of a group together, groups in the order in which they are declared."""
    groups: tuple[Group, ...] = get_args(Group)
    return tuple(sorted(LAYERS.values(), key=lambda kind: groups.index(kind.group)))


def find_layer(name: str) -> LayerKind:
    """The layer of that name: a row, ``mask:`` and a mask in the grammar of masks, or a graph layer ``@`` a graph.

    >>> find_layer("mask:prefix:3+causal").group, find_layer("gat@cycle:7").tokens
    ('masks', 7)
    """
    wanted = name.strip()
    if wanted in LAYERS:
        return LAYERS[wanted]
    if wanted.startswith(PREFIX):
        return mask_layer(wanted.removeprefix(PREFIX))
    mixer, at, graph = wanted.partition(graph_layers.AT)
    return graph_layers.graph_layer(mixer, find_graph(graph)) if at else LAYERS[wanted]
