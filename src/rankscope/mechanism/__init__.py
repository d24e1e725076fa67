"""Why the residual ratio falls: what the design does to skips and what branches write, in shares that add up."""

from rankscope.mechanism.decompose import Decomposition, decompose
from rankscope.mechanism.pieces import MECHANISM
from rankscope.mechanism.trace import moves, start

__all__ = ["MECHANISM", "Decomposition", "decompose", "moves", "start"]
