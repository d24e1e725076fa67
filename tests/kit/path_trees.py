"""Trees of the network package as the nested tuples of the reference, and small networks with heads to choose."""

from collections.abc import Sequence

import torch

from rankscope.network import Attention, Chain, Network, Part, Skip, Sum, Uniform, Values
from rankscope.network.surgery import is_mlp

Described = tuple[object, ...]


def described(network: Network) -> tuple[Described, list[str]]:
    """The network as nested tuples, and the names of its attention parts in order of execution."""
    names: list[str] = []
    mlps: list[str] = []

    def visit(part: Part) -> Described:
        if isinstance(part, Chain | Sum):
            return (type(part).__name__.lower(), [visit(child) for child in part.parts])
        if isinstance(part, Skip):
            is_open = not (isinstance(part.scale, float) and part.scale == 0.0)
            return ("skip", visit(part.inner), is_open)
        if isinstance(part, Attention):
            names.append(f"attention {len(names)}")
            return ("heads", names[-1], part.values.heads)
        if is_mlp(part):
            mlps.append(f"mlp {len(mlps)}")
            return ("mlp", mlps[-1])
        return ("leaf",)

    return ("chain", [visit(block) for block in network.blocks]), names


def heads(count: int) -> Attention:
    """An attention with so many heads, which averages all tokens."""
    eye = torch.eye(count, dtype=torch.float64)
    return Attention(Uniform(heads=count), Values(eye, eye, heads=count))


def layered(counts: Sequence[int]) -> Network:
    """One attention with a skip per layer."""
    return Network([Skip(heads(count)) for count in counts])
