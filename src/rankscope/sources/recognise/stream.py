"""The stream of a block as a tree: what every way from the first state to the last passes is a chain of states.

Between two states of the chain stands one part: something recognised before, a sum of ways that begin at the first of
the two, a multiple, an MLP. What is none of these is one opaque part, as large as it has to be to begin and end with a
state.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankscope.network import Chain, Mlp, Norm, Opaque, Part, Scale, Skip, Sum, TokenMap
from rankscope.sources.operations.captured import Captured
from rankscope.sources.operations.graph import Node
from rankscope.sources.operations.influence import are_texts_alike
from rankscope.sources.operations.region import Known, Note, Region, Unread, run_again
from rankscope.sources.recognise.layout import MOVES, Layout, is_pointwise
from rankscope.sources.recognise.linear import constant_factor
from rankscope.sources.recognise.mlps import is_activation, read_mlp
from rankscope.sources.recognise.tokenmaps import RowByRow, as_module, is_alike_everywhere, is_tokenwise

_WIDEST_MLP = 24
"""So many states a chain may pass inside one MLP."""


@dataclass(frozen=True, slots=True)
class _Term:
    """One of the things that are added: a multiple of the state itself (``part`` is None), or of a part of it."""

    part: Part | None
    factor: float | Tensor


@dataclass(frozen=True, slots=True)
class _Step:
    """The parts between two states of a chain, given by their numbers; None where nothing is recognised.

    A single linear map or shift ``is_weak``: beside something that is not recognised it belongs to that.
    """

    first: int
    last: int
    parts: list[Part] | None
    is_weak: bool = False


def joined(steps: list[_Step]) -> list[_Step]:
    """Neighbours that are not recognised as one, with the weak ones and empty ones among and beside them."""
    found, run = list[_Step](), list[_Step]()

    def close() -> None:
        if any(step.parts is None for step in run):
            # moves at either end are no part of it
            inner = [at for at, step in enumerate(run) if step.parts != []]
            first, last = run[inner[0]], run[inner[-1]]
            found.append(_Step(first.first, last.last, None))
        else:
            found.extend(run)
        run.clear()

    for step in steps:
        if step.parts is None or step.is_weak or not step.parts:
            run.append(step)
        else:
            close()
            found.append(step)
    close()
    return found


@dataclass(eq=False)
class Stream:
    """Builds the tree of one region."""

    region: Region
    layout: Layout
    captured: Captured
    is_strict: bool
    """Whether every sum and multiple is compared with the graph by itself, to find the one that is read wrongly."""

    opaque: set[Node] = field(default_factory=set)
    """Nodes inside of what is not recognised; their weights are not covered."""

    _numbers: dict[Part, float] = field(default_factory=dict)
    """Multiples by a number that stands in the code, not in a weight."""

    def build(self, start: Node, end: Node) -> Part:
        """The part from one state to another."""
        return simple(self._chain(start, end))

    def _chain(self, start: Node, end: Node) -> list[Part]:
        waist = self.region.waist(start, end)
        if not self.layout.is_state(start):
            raise Unread("the tokens do not stay in their places", start)
        for node in waist:
            self.layout.declare(node, start)
        steps, at = list[_Step](), 0
        while at < len(waist) - 1:
            found = self._step(waist, at)
            if found is None:
                last = at + 1
                while last < len(waist) - 1 and not self._is_stream(waist[last]):
                    last += 1
                found = _Step(at, last, None)
            steps.append(found)
            at = found.last
        return [
            part
            for step in joined(steps)
            for part in (
                [self._opaque(waist[step.first], waist[step.last])] if step.parts is None else step.parts
            )
        ]

    def _is_stream(self, node: Node) -> bool:
        return node.shape[-1:] == (self.layout.dim,) and self.layout.is_state(node)

    def _step(self, waist: list[Node], at: int) -> "_Step | None":
        """What leads from one state of a chain to a later one; None where nothing is recognised."""
        start, next_ = waist[at], waist[at + 1]
        if not self._is_stream(start):
            return None
        part = self._of_one(start, next_)
        if part is not None:
            return _Step(at, at + 1, list(part.parts) if type(part) is Chain else [part])
        moved = at + 1
        while moved < len(waist) and self._is_move(waist[moved - 1], waist[moved]):
            if self._is_stream(waist[moved]):
                return _Step(at, moved, [])
            moved += 1
        shift = self._checked(start, next_, self._shift(start, next_))
        if shift is not None:
            return _Step(at, at + 1, [shift], is_weak=True)
        for last in range(at + 1, min(at + _WIDEST_MLP, len(waist))):
            if waist[last] in self.region.linears and self._is_stream(waist[last]):
                mlp = read_mlp(self.layout, start, waist[last])
                if mlp is not None:
                    is_weak = self.region.linears[waist[last]].input is start
                    return _Step(at, last, [mlp], is_weak=is_weak)
        return None

    def _is_move(self, start: Node, end: Node) -> bool:
        return end.kind in MOVES and end not in self.region.known and end.inputs() == [start]

    def _of_one(self, start: Node, end: Node) -> Part | None:
        """The part between neighbours of a chain."""
        if not self._is_stream(end):
            return None
        known = self.region.known.get(end)
        if known is not None:
            return known.part if known.input is start else None
        if end.kind not in ("add", "sub", "mul", "div", "neg") or end in self.region.linears:
            return None
        if self._is_sum(end):
            return self._checked(start, end, self._sum(start, end))
        if [leaf for leaf in end.inputs() if self.region.depends(leaf)] != [start]:
            return None
        factor = self._factor(start, end)
        if factor is not None:
            scale = Scale(factor)
            if isinstance(factor, float):
                self._numbers[scale] = factor
            return self._checked(start, end, scale)
        return None

    def _is_sum(self, node: Node) -> bool:
        """Whether both terms of a sum depend on the stream."""
        terms = [one for one in node.args[:2] if isinstance(one, Node) and self.region.depends(one)]
        return node.kind in ("add", "sub") and len(terms) == 2

    def _checked(self, start: Node, end: Node, part: Part | None) -> Part | None:
        """The part, if it gives what the graph gives; in a first try that is asked of the block as a whole only."""
        if not self.is_strict:
            return part
        memory = self.region.roots[1] if len(self.region.roots) > 1 else None
        if part is None or self.layout.off(Known(start, end, part, memory), 1.0) <= self.layout.room:
            return part
        self.region.notes.append(Note("was read as something that gives other numbers", end.path, end.line))
        return None

    def _factor(self, start: Node, end: Node) -> float | Tensor | None:
        """The number or vector of channels that a state is multiplied with."""
        if end.kind == "neg":
            return -1.0
        if end.kind not in ("mul", "div") or (end.kind == "div" and end.args[0] is not start):
            return None
        if end.args[0] is end.args[1] or end.kwargs.get("rounding_mode") is not None:
            return None
        other = end.args[1] if end.args[0] is start else end.args[0]
        factor = constant_factor(self.region, other, end)
        return None if factor is None else factor if end.kind == "mul" else 1 / factor

    def _shift(self, start: Node, end: Node) -> Part | None:
        """A state plus a constant vector: a linear map whose matrix is the identity."""
        reads = [leaf for leaf in end.inputs() if self.region.depends(leaf)]
        if end.kind not in ("add", "sub") or end.kwargs or reads != [start] or not self._is_stream(end):
            return None
        other = end.args[1] if end.args[0] is start else end.args[0]
        shift = constant_factor(self.region, other, end)
        if shift is None or (end.kind == "sub" and end.args[0] is not start):
            return None
        one = torch.eye(self.layout.dim, dtype=torch.float64)
        vector = torch.ones(self.layout.dim, dtype=torch.float64) * (shift if end.kind == "add" else -shift)
        return Mlp(one, one.clone(), activation="identity", up_bias=vector)

    def _sum(self, start: Node, end: Node) -> Part | None:
        terms = list[_Term]()
        place = {node: number for number, node in enumerate(self.region.order)}
        for node, sign in sorted(self._added(start, end), key=lambda one: place[one[0]]):  # as they ran
            self.layout.declare(node, end)
            try:
                if not self.layout.is_same(node, end):
                    raise Unread("tokens are added that stand in other places", end)
                terms += self._terms(start, node, sign)
            except Unread as error:
                self.region.notes.append(Note.of(error))
                return None
        return added(terms)

    def _added(self, start: Node, end: Node) -> list[tuple[Node, float]]:
        """What is added up between two states, with its factor; sums inside sums of the same state are opened."""
        alpha = float(end.kwargs.get("alpha", 1)) * (-1.0 if end.kind == "sub" else 1.0)
        found = list[tuple[Node, float]]()
        for node, factor in ((end.args[0], 1.0), (end.args[1], alpha)):
            inner = node
            while inner.kind == "alias" and inner not in self.region.known:
                inner = inner.args[0]
            both = (
                inner is not start
                and self._is_sum(inner)
                and inner not in self.region.known
                and inner not in self.region.linears
                and inner.shape == end.shape
            )
            if both and self.region.waist(start, inner) == [start, inner]:
                found += [(one, factor * size) for one, size in self._added(start, inner)]
            else:
                found.append((node, factor))
        return found

    def _terms(self, start: Node, node: Node, sign: float) -> list[_Term]:
        if not self._is_stream(node):
            raise Unread("what is added to the stream is not one state of each token", node)
        parts = [] if node is start else self._chain(start, node)
        factor: float | Tensor = sign
        if all(type(part) is Scale for part in parts):
            for part in parts:
                factor = _product(factor, self._numbers.get(part, part.value))  # type: ignore[arg-type]  # a Scale
            return [_Term(None, factor)]
        return [_Term(simple(parts), factor)]

    def _opaque(self, start: Node, end: Node) -> Part:
        """What is not recognised between two states, run as it is."""
        if not self._is_stream(start) or not self._is_stream(end):
            raise Unread("the tokens do not stay in their places", end)
        inside = between(self.region, start, end)
        if any(node in self.region.roots for node in inside):
            raise Unread("a region that is not recognised reads more than the stream", end)
        self.opaque |= inside
        why = self._why(inside, end)
        if why not in self.region.notes:
            self.region.notes.append(why)
        what = why.what
        module = as_module(self.region, self.layout, self.captured, start, end)
        where = " ".join([str(one) for one in (why.line, why.path and f"({why.path})") if one])
        if module is not None:
            if is_tokenwise(module, self.layout, self.layout.dim):
                return TokenMap(module, what=what, where=where)
            return Opaque(module, site="attention", where=where, what=what)
        self._check_ways(inside)
        run = Replayed(self.region, self.layout, self.captured, start, end)
        tokenwise = is_tokenwise(run, self.layout, self.layout.dim)
        everywhere = tokenwise and is_alike_everywhere(run, self.layout, self.layout.dim)
        shape = (self.layout.texts, self.layout.tokens)
        if everywhere:
            return TokenMap(RowByRow(run, *shape), what=what, where=where)
        return Opaque(
            run,
            site="mlp" if tokenwise else "attention",
            where=where,
            what=what,
            shape=shape,
            alike=are_texts_alike(run, (*shape, self.layout.dim)),
            tokenwise=tokenwise,
            dtype=torch.float64,
        )

    def _check_ways(self, inside: set[Node]) -> None:
        """Raise if operations ran on tokens that others among them chose: what ran for some tokens is wrong for others.

        How many tokens are sent somewhere is then a shape of the run, and a replay has the shapes of that run.
        """
        for guard in self.region.guards():
            if isinstance(guard.result, tuple) and guard.node in inside:
                raise Unread(
                    "tokens are sent to different weights outside of any module, and what ran for some does not run "
                    "for others; put it into a module of its own",
                    guard.node,
                )

    def _why(self, inside: set[Node], end: Node) -> Note:
        """What stands in the way: something already said of these operations, else the first that no rule covers."""
        region = self.region
        places = {(node.path, node.line) for node in inside}
        for note in region.notes:
            if (note.path, note.line) in places:
                return note
        # Operations inside of a part that is recognised are not what stands in the way.
        read = set[Node]()
        for known in region.known.values():
            if known.output in inside and known.input is not known.output:
                read |= between(region, known.input, known.output)
        steps = [node for node in region.order if node in inside and node not in read]
        for node in steps:
            if node not in region.linears and node.kind not in MOVES and not is_pointwise(node):
                return Note(f"{node.kind} is not part of anything recognised", node.path, node.line)
        bent = [node for node in steps if node not in region.linears and node.kind not in MOVES]
        odd = self._odd(bent)
        if odd is not None:
            return Note(f"{odd.kind} stands where no part of a tree has it", odd.path, odd.line)
        return Note(f"{end.kind} is not part of anything recognised", end.path, end.line)

    def _odd(self, nodes: list[Node]) -> Node | None:
        """Of operations element by element the first that is no activation, behind the last one that still is."""
        known = [number for number, node in enumerate(nodes) if is_activation(self.layout, node)]
        rest = nodes[known[-1] + 1 :] if known else nodes
        plain = ("add", "sub", "mul", "div")
        return next((node for node in rest if node.kind not in plain or known), next(iter(rest), None))


class Replayed:
    """A piece of a graph as a function of ``texts tokens dim``: the operations of one run, with its shapes.

    Weights are the model's own; what the model computed from them is kept as it was.
    """

    def __init__(self, region: Region, layout: Layout, captured: Captured, start: Node, end: Node) -> None:
        inside = between(region, start, end)
        self.nodes = [node for node in region.order if node in inside]
        self.start, self.end = start, end
        self.shapes = start.shape, end.shape
        self.lay = layout.laid
        self.unlay = layout.state
        held = dict.fromkeys(leaf for node in self.nodes for leaf in node.inputs() if leaf not in inside)
        self.constants: dict[Node, Tensor] = {}
        for leaf in held:
            if leaf is not start:
                own = captured.view(leaf.value)
                self.constants[leaf] = leaf.value if own is None else own

    def __call__(self, x: Tensor) -> Tensor:
        values = {
            leaf: one.double() if one.is_floating_point() else one for leaf, one in self.constants.items()
        }
        values[self.start] = self.lay(self.start, x)
        for node in self.nodes:
            values[node] = run_again(node, values)
        return self.unlay(self.end, values[self.end])


def between(region: Region, start: Node, end: Node) -> set[Node]:
    """The nodes from ``start`` to ``end``, without the first."""
    found, waiting = set[Node](), [end]
    while waiting:
        node = waiting.pop()
        if node in found or node is start or not region.depends(node):
            continue
        found.add(node)
        waiting += () if node in region.roots else node.inputs()
    return found


def simple(parts: list[Part]) -> Part:
    """A chain, or the only part in it."""
    return parts[0] if len(parts) == 1 else Chain(parts)


def added(terms: list[_Term]) -> Part:
    """The sum of multiples of a state and of its parts; a skip where the state itself is among them."""
    parts, own = list[Part](), list[float | Tensor]()
    for term in terms:
        part, factor = term.part, term.factor
        if part is None:
            own.append(factor)
            continue
        if type(part) is Skip and _is_one(factor):
            own.append(part.scale.detach() if isinstance(part.scale, Tensor) else part.scale)
            part = part.inner
        if not _is_one(factor):
            part = Chain([*(part.parts if type(part) is Chain else [part]), Scale(factor)])
        parts += _branches(part)
    if not own:
        return Sum(parts)
    scale = own[0]
    for other in own[1:]:
        scale = scale + other
    if not parts:
        return Scale(scale)
    return Skip(parts[0] if len(parts) == 1 else Sum(parts), scale)


def _branches(part: Part) -> list[Part]:
    """What a part adds up; a norm before a sum stands before each of its terms, so that each is a branch of its own."""
    if type(part) is Sum:
        return list(part.parts)
    if type(part) is Chain and len(part.parts) > 1:
        *before, last = part.parts
        if type(last) is Sum and all(isinstance(one, Norm) for one in before):
            return [
                Chain([*before, *(one.parts if type(one) is Chain else [one])]) for one in _branches(last)
            ]
    return [part]


def _is_one(factor: float | Tensor) -> bool:
    return isinstance(factor, float) and factor == 1.0


def _product(one: float | Tensor, other: float | Tensor) -> float | Tensor:
    """A product of factors; a weight that is multiplied with one stays itself."""
    value = other.detach() if isinstance(other, Tensor) else other
    return value if _is_one(one) else one * value
