"""Linear maps that one module of a live model keeps side by side."""

from collections.abc import Callable

from rankscope.network import Part
from rankscope.sources.trees.maps import Linear, Projections, ReadMaps, linear
from rankscope.sources.trees.mlps import known_activation, mlp
from rankscope.sources.trees.place import Builder, Find, Place


def cut(fused: Linear, *widths: int) -> list[Linear]:
    """Maps of these widths that lie side by side in one."""
    matrices = fused.matrix.split(widths, dim=-1)
    biases = [None] * len(widths) if fused.bias is None else fused.bias.split(widths)
    return [Linear(matrix=m, bias=b) for m, b in zip(matrices, biases, strict=True)]


def stacked(fused: str, out: str, *, key_heads: Callable[[Place], int]) -> ReadMaps:
    """One module whose outputs are all queries, then the fewer keys, then as many values."""

    def read(place: Place, heads: int) -> Projections:
        held, groups = linear(place.part(fused), fused), key_heads(place)
        width = held.matrix.shape[-1] // (heads + 2 * groups)
        query, key, value = cut(held, heads * width, groups * width, groups * width)
        return Projections(query=query, key=key, value=value, out=linear(place.part(out), out))

    return read


def gated_halves(fused: str, down: str, *, activation: Find) -> Builder:
    """A gated MLP: one module puts out the gate in its first half and what it multiplies in its second."""

    def build(place: Place) -> Part:
        held = linear(place.part(fused), fused)
        gate, up = cut(held, *[held.matrix.shape[-1] // 2] * 2)
        return mlp(up, linear(place.part(down), down), gate, activation=known_activation(place, activation))

    return build
