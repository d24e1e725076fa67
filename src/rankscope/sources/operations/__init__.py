"""What a module really computes: the graph of its ATen operations on one call, and pieces of it run again."""

from rankscope.sources.operations.captured import Captured, captured, held_tensors
from rankscope.sources.operations.graph import Graph, Guard, Line, ModuleCall, Node, NotCaptured
from rankscope.sources.operations.region import Known, Linear, Note, Region, Unread
from rankscope.sources.operations.watch import watched

__all__ = [
    "Captured",
    "Graph",
    "Guard",
    "Known",
    "Line",
    "Linear",
    "ModuleCall",
    "Node",
    "NotCaptured",
    "Note",
    "Region",
    "Unread",
    "captured",
    "held_tensors",
    "watched",
]
