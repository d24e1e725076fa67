"""MLPs: linear maps around an activation, plain or gated, in whatever order and spelling."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import ACTIVATIONS, Mlp
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Known, Linear, Region
from rankscope.sources.recognise.layout import MOVES, Layout, is_pointwise
from rankscope.sources.recognise.linear import constant_multiple, last_map

_A_FEW = 512

_CLOSE = 1e-8
"""Libraries write the constants of an activation with eight digits or more (0.79788456 for sqrt(2 / pi))."""


def read_mlp(layout: Layout, start: Node, end: Node) -> Mlp | None:
    """The MLP between two states of the stream, None where it is none; compared with the graph before it is given."""
    region = layout.region
    if end not in region.linears or not layout.is_state(start) or not layout.is_state(end):
        return None
    found = _one_map(region, start, end) or _around_activation(layout, start, end)
    if found is None or not layout.agrees(Known(start, end, found)):
        return None
    return found


def _one_map(region: Region, start: Node, end: Node) -> Mlp | None:
    """One or two linear maps with nothing between them."""
    whole, down = region.linears[end], last_map(region, end)
    if whole.input is not start:
        return None
    up = None if down is None else region.linears.get(down.input)
    if down is not None and up is not None and up.input is start:
        return _mlp(up, down, "identity")
    same = torch.eye(whole.matrix.shape[-1], dtype=whole.matrix.dtype)
    return Mlp(whole.matrix, same, activation="identity", up_bias=whole.bias)


def _around_activation(layout: Layout, start: Node, end: Node) -> Mlp | None:
    region = layout.region
    down = last_map(region, end)
    if down is None or not layout.is_state(down.input):
        return None
    hidden = down.input
    hidden, factor = _without_factors(region, hidden)
    down = _folded(down, factor)
    sources = _sources(region, hidden)
    if sources is None or any(region.linears[one].input is not start for one in sources):
        return None
    if len(sources) == 1:
        (up,) = sources
        name = _activation(layout, up, hidden)
        if name is not None:
            return _mlp(region.linears[up], down, name)
    sides = _sides(layout, hidden)
    if sides is None:
        return None
    gate, up_ = sides
    return _mlp(up_.map, _folded(_folded(down, gate.factor), up_.factor), gate.activation, gate.map)


def _without_factors(region: Region, node: Node) -> tuple[Node, float | Tensor]:
    """What a node is a multiple of, by a number or by one per channel, and that multiple."""
    total: float | Tensor = 1.0
    while (multiple := constant_multiple(region, node)) is not None:
        node, factor = multiple
        total = total * factor
    return node, total


def _folded(down: Linear, factor: float | Tensor) -> Linear:
    """The map of a multiple: its rows take the factors."""
    if isinstance(factor, float) and factor == 1.0:
        return down
    column = factor.reshape(-1, 1) if isinstance(factor, Tensor) else factor
    return Linear(down.input, down.output, down.matrix * column, down.bias)


def _mlp(up: Linear, down: Linear, activation: str, gate: Linear | None = None) -> Mlp:
    return Mlp(
        up.matrix,
        down.matrix,
        activation=activation,
        gate=None if gate is None else gate.matrix,
        up_bias=up.bias,
        down_bias=down.bias,
        gate_bias=None if gate is None else gate.bias,
    )


def _sources(region: Region, node: Node) -> set[Node] | None:
    """The linear maps that a node is made from element by element; None where anything else stands between."""
    found, seen, waiting = set[Node](), set[Node](), [node]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if at in region.linears:
            found.add(at)
        elif (
            at in region.roots
            or at in region.known
            or not (at.kind in MOVES or is_pointwise(at))
            or len(seen) > 60
        ):
            return None
        else:
            waiting += [leaf for leaf in at.inputs() if region.depends(leaf)]
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """One factor of a gated MLP: some columns of a linear map, and what is done to them."""

    map: Linear
    activation: str
    factor: float | Tensor


def _sides(layout: Layout, hidden: Node) -> tuple[_Side, _Side] | None:
    """The gate and the rest of a product of two factors."""
    region = layout.region
    while hidden.kind == "alias":
        hidden = hidden.args[0]
    if hidden.kind != "mul" or not all(
        isinstance(one, Node) and region.depends(one) for one in hidden.args[:2]
    ):
        return None
    sides = [_side(layout, one, hidden) for one in hidden.args[:2]]
    if sides[0] is None or sides[1] is None:
        return None
    one, other = sides[0], sides[1]
    if other.activation == "identity":
        return one, other
    return (other, one) if one.activation == "identity" else None


def _side(layout: Layout, node: Node, hidden: Node) -> _Side | None:
    region = layout.region
    node, factor = _without_factors(region, node)
    sources = _sources(region, node)
    places = layout.of(node)
    if sources is None or len(sources) != 1 or places is None or node.shape != hidden.shape:
        return None
    (source,) = sources
    name = _activation(layout, source, node)
    axis = places.axis
    if name is None or axis is None:
        return None
    rows = places.channels.movedim(axis, -1).reshape(-1, places.channels.shape[axis])
    if not bool((rows == rows[:1]).all()):
        return None
    return _Side(columns(region.linears[source], rows[0]), name, factor)


def columns(of: Linear, which: Tensor) -> Linear:
    """Some columns of a linear map, as a view where they lie evenly."""

    def cut(value: Tensor) -> Tensor:
        if torch.equal(which, torch.arange(value.shape[-1])):
            return value
        step = int(which[1] - which[0]) if len(which) > 1 else 1
        first = int(which[0])
        if step > 0 and torch.equal(which, first + step * torch.arange(len(which))):
            return value[..., first : int(which[-1]) + 1 : step]
        return value[..., which]

    return Linear(of.input, of.output, cut(of.matrix), None if of.bias is None else cut(of.bias))


def is_activation(layout: Layout, node: Node) -> bool:
    """Whether a node is a linear map with one of the activations that a tree knows."""
    sources = _sources(layout.region, node)
    if sources is None or len(sources) != 1:
        return False
    (source,) = sources
    return source is not node and _activation(layout, source, node) not in (None, "identity")


def _activation(layout: Layout, source: Node, node: Node) -> str | None:
    """The activation that turns a linear map into ``node`` element by element, whichever element it takes.

    Every channel is asked at many points, near zero and far out; only operations of a list stand between, so there
    are no bends farther out.
    """
    places = layout.of(node)
    if places is None or not layout.is_state(source) or bool((places.channels < 0).any()):
        return None
    if not node.value.is_floating_point():  # a comparison, on the way to one
        return None
    grid = _grid()
    width, rows = source.shape[-1], layout.texts * layout.tokens
    names = list(ACTIVATIONS)
    generator = torch.Generator().manual_seed(23)
    for _ in range(max(3, -(-3 * len(grid) // (rows * width)))):
        values = grid[torch.randint(len(grid), (rows, width), generator=generator)]
        state = values.reshape(layout.texts, layout.tokens, width)
        found = layout.region.replay(node, {source: layout.laid(source, state)})
        asked = values[places.rows, places.channels]
        # Most of them differ on a few numbers already; those that do not are compared on all.
        few = (found.reshape(-1)[:_A_FEW], asked.reshape(-1)[:_A_FEW])
        names = [name for name in names if _gives(name, *few)]
        names = [name for name in names if _gives(name, found, asked)]
        if not names:
            return None
    return names[0]


def _gives(name: str, found: Tensor, asked: Tensor) -> bool:
    """Whether an activation gives these values; they may be off in proportion to its own, or to what is asked."""
    ours = ACTIVATIONS[name](asked)
    allowed = _CLOSE * torch.maximum(ours.abs(), asked.abs()).clamp(min=1.0)
    return bool(((found - ours).abs() <= allowed).all())


def _grid() -> Tensor:
    """Dense where activations bend, and far out, where some are clipped."""
    far = torch.logspace(0.8, 4.5, 40, dtype=torch.float64)
    return torch.cat([-far, torch.linspace(-6.0, 6.0, 121, dtype=torch.float64), far])
