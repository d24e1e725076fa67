"""Shapes, spelled once. Leading axes are always batch: texts, and seeds where parameters carry them too."""

from jaxtyping import Bool, Float
from torch import Tensor

TokenMatrix = Float[Tensor, "*batch tokens dim"]
PerMatrix = Float[Tensor, "*batch"]
PerToken = Float[Tensor, "*batch tokens"]
CenterRow = Float[Tensor, "*batch dim"]
AttentionMap = Float[Tensor, "*batch heads tokens keys"]  # rows are queries and sum to one
SquareMap = Float[Tensor, "*batch tokens tokens"]  # one head's attention map
MaskMatrix = Bool[Tensor, "*batch tokens tokens"]  # True where query (row) may read key (column)
IsToken = Bool[Tensor, "*batch tokens"]  # False on padding
IsMemoryToken = Bool[
    Tensor, "*memories memory_tokens"
]  # the same of a memory, which is another batch of states

__all__ = [
    "AttentionMap",
    "CenterRow",
    "IsMemoryToken",
    "IsToken",
    "MaskMatrix",
    "PerMatrix",
    "PerToken",
    "SquareMap",
    "TokenMatrix",
]
