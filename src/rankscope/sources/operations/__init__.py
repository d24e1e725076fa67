"""What a module really computes: the graph of its ATen operations on one call, and pieces of it run again."""

from rankscope.sources.operations.graph import Graph, Guard, Line, ModuleCall, Node
from rankscope.sources.operations.region import Known, Linear, Note, Region, Unread
from rankscope.sources.operations.watch import watched

__all__ = [
    "Graph",
    "Guard",
    "Known",
    "Line",
    "Linear",
    "ModuleCall",
    "Node",
    "Note",
    "Region",
    "Unread",
    "watched",
]
