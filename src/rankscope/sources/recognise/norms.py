"""Norms, native or written by hand: fitted to what the operations do, not matched by how they are spelled.

A norm is ``gain * unit(x) + bias`` with ``unit`` odd, the same for every multiple of x but for eps, and one row at a
time. So bias is the even part, the gain is what huge states show, and eps what tiny states show. What was fitted is
compared at many sizes, with rows of very different size side by side, and only operations of a short list may stand
between: a bend that no probe meets would be one of another kind.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import LayerNorm, Norm, RMSNorm, Sphere
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.region import Known, Note, Region, Unread
from rankscope.sources.recognise.linear import channel_vector, is_close

_NATIVE = frozenset({"layer_norm", "rms_norm", "native_layer_norm", "_fused_rms_norm"})
_SMOOTH = frozenset(
    {"add", "sub", "rsub", "mul", "div", "neg", "pow", "square", "mean", "sum", "sqrt", "rsqrt", "reciprocal"}
    | {"std", "var", "var_mean", "std_mean", "linalg_vector_norm", "norm", "abs"}
    | {
        "expand",
        "unsqueeze",
        "squeeze",
        "view",
        "_unsafe_view",
        "reshape",
        "alias",
        "clone",
        "detach",
        "ones_like",
    }
)
_KINDS: tuple[type[Norm], ...] = (RMSNorm, LayerNorm, Sphere)
_KINDS_OF: dict[str, tuple[type[Norm], ...]] = {
    "layer_norm": (LayerNorm,),
    "native_layer_norm": (LayerNorm,),
    "rms_norm": (RMSNorm,),
    "_fused_rms_norm": (RMSNorm,),
}
_FLOORS = frozenset({"clamp_min", "clamp", "maximum"})
"""Operations that may only keep the length of a row away from zero."""

_TINY_FLOOR = 1e-7
_NEVER_ZERO = 1e-30
"""Eps of a norm that divides by the length as it is: too small to be seen, and zero rows stay zero."""

_SIZES = (1e-6, 1e-4, 3e-3, 0.1, 1.0, 30.0, 1e4)
_HUGE = 1e8
_LONGEST = 60
"""So many operations a norm may be written in."""


@torch.no_grad()
def find_norms(region: Region) -> None:
    """Add the norms of a region to ``region.known``, each over the last axis of its input."""
    inside = set[Node]()
    for node in region.order:
        if node in region.roots or node in inside or node in region.known:
            continue
        if node.kind in _NATIVE:
            if node.item in (None, 0) and region.depends(node.args[0]):
                _take(region, [node.args[0]], node, inside)
        elif (
            node.kind in ("mul", "div")
            and node.value.ndim
            and node.shape[-1] > 1
            and _has_length(region, node)
        ):
            _take(region, _bases(region, node), node, inside)


def _has_length(region: Region, node: Node) -> bool:
    """Whether one factor is a single number per row that depends on the stream."""
    return any(
        isinstance(one, Node) and region.depends(one) and _one_per_row(region, one) for one in node.args[:2]
    )


def _one_per_row(region: Region, node: Node) -> bool:
    while node.kind in ("expand", "alias") and region.depends(node.args[0]):
        node = node.args[0]
    return node.value.ndim > 0 and node.shape[-1] == 1


def _bases(region: Region, node: Node) -> list[Node]:
    """The states that a norm ending here may be of, nearest first: everything it is made from passes through them."""
    for root in region.roots:
        try:
            waist = region.waist(root, node)
        except Unread:
            continue
        near = [one for one in waist[:-1] if one.shape == node.shape and one.shape[-1] > 1]
        found = [one for one in near[::-1][:4] if _only_reads(region, one, node)]
        if found:
            return found
    return []


def _between(region: Region, start: Node, end: Node) -> list[Node]:
    """The operations from ``start`` to ``end``, ``end`` first; those that do not depend on ``start`` left out."""
    found, waiting = dict[Node, None](), [end]
    while waiting:
        node = waiting.pop()
        if node is start or node in found or not region.depends(node):
            continue
        found[node] = None
        if node not in region.roots:
            waiting += node.inputs()
        if len(found) > _LONGEST:
            break
    return list(found)


def _only_reads(region: Region, start: Node, end: Node) -> bool:
    between = _between(region, start, end)
    is_whole = not any(node in region.roots for node in between)
    return (
        is_whole
        and len(between) <= _LONGEST
        and not any(node in region.known for node in between)
        and all(node.kind in _SMOOTH or (node.kind in _FLOORS and _is_floor(node)) for node in between)
    )


def _is_floor(node: Node) -> bool:
    """``clamp(min=tiny)`` of one number per row."""
    if node.shape[-1:] != (1,) or node.kind == "maximum":
        return False
    least = node.args[1] if len(node.args) > 1 else node.kwargs.get("min")
    most = node.args[2] if len(node.args) > 2 else node.kwargs.get("max")
    return isinstance(least, int | float) and 0 <= least <= _TINY_FLOOR and most is None


def _take(region: Region, bases: list[Node], end: Node, inside: set[Node]) -> None:
    """Fit a norm from one of the bases to ``end``, or to a gain and a bias after it, and keep the best.

    The farthest base that fits is the state: centred states are a step on the way of a LayerNorm.
    """
    for base in bases[::-1]:
        best: tuple[Node, Fitted] | None = None
        for last in _endings(region, base, end):
            constants = _constants(region, base, last)
            fitted = _native(region, base, last, constants) or _fit(
                lambda v, last=last, base=base: region.replay(last, {base: v}),  # type: ignore[misc]
                base,
                constants,
                _KINDS_OF.get(end.kind, _KINDS),
            )
            # A number that is no weight of the norm (a scale of attention) is not its gain.
            if fitted is not None and (
                best is None or fitted.is_held or (not best[1].is_held and _adds_vector(region, last))
            ):
                best = (last, fitted)
        if best is not None:
            inside.update(_between(region, base, best[0]))
            source = region.stripped(base) if base.kind == "alias" else base
            region.known[best[0]] = Known(
                source if source.shape == base.shape else base, best[0], best[1].part
            )
            return
        if _has_eps_outside(lambda v, base=base: region.replay(end, {base: v}), base):  # type: ignore[misc]
            what = "a norm with eps added to the deviation, outside of the root, is none that a tree has"
            region.notes.append(Note(what, end.path, end.line))
            return


def _native(region: Region, base: Node, node: Node, constants: "Constants") -> "Fitted | None":
    """A norm of torch with its own gain and bias, also where these are zeros or ones and show nothing.

    A gain that is computed from a weight, such as one more than it, is kept as that weight.
    """
    (kind, *_) = _KINDS_OF.get(node.kind, (None,))
    if kind is None or len(node.args[1]) != 1:
        return None
    held = {one.name: one.default_value for one in node.op._schema.arguments} if node.op is not None else {}
    held |= dict(zip(held, node.args, strict=False)) | node.kwargs
    gain, bias, eps = held.get("weight"), held.get("bias"), held.get("eps")
    if any(one is not None and region.depends(one) for one in (gain, bias)):
        return None
    own, offset = (None, 0.0) if gain is None else (gain.value.detach(), 0.0)
    if own is not None and constants.is_computed(own):
        own, offset = constants.held(own) or (own, 0.0)
    part = kind(
        own,
        None if bias is None else bias.value.detach(),
        eps=torch.finfo(torch.float64).eps if eps is None else float(eps),
        offset=offset,
    )
    return Fitted(part, True) if _agrees(part, lambda v: region.replay(node, {base: v}), base) else None


def _endings(region: Region, base: Node, end: Node) -> list[Node]:
    """``end``, and what follows it as long as that only multiplies or adds a constant per channel."""
    found = [end]
    while len(found) < 6:
        users = region.users.get(found[-1], [])
        if len(users) != 1 or users[0].shape != base.shape or users[0] is region.roots[0]:
            break
        node = users[0]
        others = [leaf for leaf in node.args[:2] if leaf is not found[-1]]
        is_shift = node.kind in ("mul", "add", "div") and len(others) == 1
        if node.kind != "alias" and not (
            is_shift and all(_per_channel(region, one, node) for one in others) and not node.kwargs
        ):
            break
        found.append(node)
    return found


def _per_channel(region: Region, value: object, node: Node) -> bool:
    if not isinstance(value, Node):
        return isinstance(value, int | float)
    return not region.depends(value) and (
        value.value.numel() == 1 or channel_vector(value.value, node) is not None
    )


def _adds_vector(region: Region, node: Node) -> bool:
    return any(leaf.value.numel() > 1 for leaf in node.inputs() if not region.depends(leaf))


def _constants(region: Region, base: Node, end: Node) -> "Constants":
    """The vectors and numbers that stand between, weights before what is computed from them."""
    found, numbers = dict[Node, None](), list[float]()
    for node in _between(region, base, end):
        schema = () if node.op is None else node.op._schema.arguments[len(node.args) :]
        defaults = [one.default_value for one in schema if one.name not in node.kwargs]
        written = (*node.args, *node.kwargs.values(), *defaults)
        numbers += [float(one) for one in written if type(one) in (int, float)]
        waiting = [leaf for leaf in node.inputs() if not region.depends(leaf)]
        while waiting:
            leaf = waiting.pop()
            if leaf not in found:
                found[leaf] = None
                waiting += leaf.inputs()
    real = [leaf for leaf in found if leaf.value.is_floating_point()]
    memory = {leaf.value.untyped_storage().data_ptr() for leaf in real if leaf.name}
    numbers += [float(leaf.value) for leaf in real if leaf.value.numel() == 1]
    weights, computed = list[Tensor](), list[Tensor]()
    for leaf in real:
        is_weight = leaf.value.untyped_storage().data_ptr() in memory
        if leaf.value.numel() == base.shape[-1] == leaf.shape[-1:].numel():
            (weights if is_weight else computed).append(leaf.value.detach().reshape(-1))
        elif leaf.value.numel() == 1 and is_weight:
            weights.append(leaf.value.detach().reshape(1).expand(base.shape[-1]))
    return Constants(weights, computed, sorted({abs(one) for one in numbers if 0 < abs(one) < 1}))


@dataclass(frozen=True, slots=True)
class Constants:
    """What a gain or a bias may be, and the small numbers that eps may be, as they stand in the graph."""

    weights: list[Tensor]
    computed: list[Tensor]
    numbers: list[float]

    def is_computed(self, vector: Tensor) -> bool:
        """Whether a vector that stands in the graph is no weight of the model."""
        return any(one.data_ptr() == vector.data_ptr() for one in self.computed)

    def held(self, vector: Tensor) -> tuple[Tensor, float] | None:
        """The constant that a vector is, and what has to be added to it: some keep gain - 1."""
        tried = [(one, 0.0) for one in self.weights], [(one, 1.0) for one in self.weights]
        return next(
            (
                (one, offset)
                for one, offset in (*tried[0], *tried[1], *((one, 0.0) for one in self.computed))
                if is_close(one.double() + offset, vector, 1e-10)
            ),
            None,
        )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A norm, and whether its gain and bias are weights of the model (or absent)."""

    part: Norm
    is_held: bool


def _fit(
    run: Callable[[Tensor], Tensor], base: Node, constants: Constants, kinds: tuple[type[Norm], ...]
) -> Fitted | None:
    dim = base.shape[-1]
    generator = torch.Generator().manual_seed(5)
    v = torch.randn(base.shape, generator=generator, dtype=torch.float64) + 0.3
    high, low = run(v * _HUGE), run(-v * _HUGE)
    if high.shape != v.shape or not bool(high.isfinite().all()) or not bool(low.isfinite().all()):
        return None
    bias = _one_row((high + low) / 2, high.abs().max())
    if bias is None:
        return None
    found = list[Fitted]()
    for kind in kinds:
        centred = v - v.mean(-1, keepdim=True) if kind is LayerNorm else v
        square = centred.square().sum(-1) / (1 if kind is Sphere else dim)
        unit = centred / square.sqrt().unsqueeze(-1)
        gain = _gain((high - low) / 2, unit)
        if gain is None:
            continue
        for eps in _epsilons(run, v, square, unit * gain, constants, dim):
            fitted = _norm(kind, gain, bias, eps, constants)
            if _agrees(fitted.part, run, base):
                if fitted.is_held:
                    return fitted
                found.append(fitted)
                break
    return found[0] if found else None


def _has_eps_outside(run: Callable[[Tensor], Tensor], base: Node) -> bool:
    """Whether this is ``gain (x - mean) / (deviation + eps) + bias``, also without the mean.

    ``f(s v) = gain unit / (1 + eps / (s d))``: the same eps shows at every size ``s`` and in every row.
    """
    generator = torch.Generator().manual_seed(7)
    v = torch.randn(base.shape, generator=generator, dtype=torch.float64) + 0.3
    odd = (run(v * _HUGE) - run(-v * _HUGE)) / 2
    if odd.shape != v.shape or not bool(odd.isfinite().all()):
        return False
    for centred in (v - v.mean(-1, keepdim=True), v):
        length = centred.square().mean(-1).sqrt()
        unit = centred / length.unsqueeze(-1)
        gain = _gain(odd, unit)
        if gain is None or not bool(gain.any()):
            continue
        scaled, shown = unit * gain, list[Tensor]()
        for size in (1e-6, 1e-5):
            small = (run(v * size) - run(-v * size)) / 2
            shrink = (small * scaled).sum(-1) / scaled.square().sum(-1)
            shown.append(size * length * (1 / shrink - 1))
        eps = torch.stack(shown)
        if bool((eps > 1e-14).all()) and is_close(eps, eps.mean().expand(eps.shape), 1e-3):
            return True
    return False


def _one_row(values: Tensor, size: Tensor) -> Tensor | None:
    """The row that all rows are, None where they differ; zero where they are only rounding."""
    rows = values.reshape(-1, values.shape[-1])
    first = rows[0]
    if not bool(((rows - first).abs() <= 1e-11 * size).all()):
        return None
    return torch.zeros_like(first) if bool((first.abs() <= 1e-13 * size).all()) else first.clone()


def _gain(odd: Tensor, unit: Tensor) -> Tensor | None:
    """The factor per channel between a unit and what is put out, None where it differs by row."""
    rows, units = (one.reshape(-1, one.shape[-1]) for one in (odd, unit))
    gain = (rows * units).sum(0) / units.square().sum(0)
    return gain if is_close(units * gain, rows, 1e-10) else None


def _epsilons(
    run: Callable[[Tensor], Tensor], v: Tensor, square: Tensor, scaled: Tensor, constants: Constants, dim: int
) -> list[float]:
    """What eps may be, likeliest first: numbers of the code that are near what tiny states show, then that itself.

    ``f(s v) = gain unit / sqrt(1 + eps / (s^2 m))``: the shrinking shows eps where ``s^2 m`` is about as large.
    """

    def shown(size: float) -> float | None:
        odd = (run(v * size) - run(-v * size)) / 2
        if not bool(odd.isfinite().all()):
            return None
        shrink = (odd * scaled).sum(-1) / scaled.square().sum(-1)
        if bool((shrink <= 0).any()):
            return None
        return float((square * size**2 * (shrink.pow(-2) - 1)).median())

    if not bool(scaled.any()):  # a gain of zeros shows nothing of eps
        return constants.numbers[:1] or [_NEVER_ZERO]
    size = 1e-3
    found = 0.0
    for _ in range(4):
        at = shown(size)
        if at is None:
            return []
        found = at
        if found <= size**2 * 1e-9:
            if size <= 1e-6:
                break
            size = max(size * 1e-2, 1e-6)
            continue
        size = math.sqrt(found / float(square.median()))
    if found <= 1e-18:
        return [_NEVER_ZERO]
    near = [one * factor for one in constants.numbers for factor in (1.0, dim, 1 / dim)]
    near = [one for one in near if abs(one - found) <= 1e-5 * found]
    return [*sorted(near, key=lambda one: abs(one - found)), found]


def _norm(kind: type[Norm], gain: Tensor, bias: Tensor, eps: float, constants: Constants) -> Fitted:
    """The norm with the model's own weights where they are its gain and bias."""
    is_held = True
    own_gain, offset = constants.held(gain) or (None, 0.0)
    if own_gain is None and bool((gain - 1).abs().max() > 1e-12):
        own_gain, is_held = gain, False
    own_bias: Tensor | None = None
    if bool((bias != 0).any()):
        own_bias, more = constants.held(bias) or (None, 1.0)
        if own_bias is None or more != 0.0:
            own_bias, is_held = bias, False
    if eps == _NEVER_ZERO and kind is Sphere:
        eps = 0.0  # a zero row stays zero there
    return Fitted(kind(own_gain, own_bias, eps=eps, offset=offset), is_held)


def _agrees(part: Norm, run: Callable[[Tensor], Tensor], base: Node) -> bool:
    """Whether a norm gives what the operations give at every size, and with rows of many sizes side by side."""
    generator = torch.Generator().manual_seed(6)
    shape = base.shape
    per_row = torch.logspace(-3, 3, max(shape[:-1].numel(), 1), dtype=torch.float64).reshape(*shape[:-1], 1)
    for size in (*_SIZES, per_row):
        v = size * (torch.randn(shape, generator=generator, dtype=torch.float64) - 0.2)
        theirs, ours = run(v), part.per_head(v) if len(shape) > 3 else part(v)
        if theirs.shape != ours.shape or not bool(theirs.isfinite().all()):
            return False
        shift = 0.0 if part.bias is None else part.bias.double()
        # rounding of the bias is no error of the rest, which may be far smaller
        allowed = 1e-10 * (theirs - shift).abs().amax(-1, keepdim=True) + 1e-14 * theirs.abs().max()
        if not bool(((ours - theirs).abs() <= allowed).all()):
            return False
    return True
