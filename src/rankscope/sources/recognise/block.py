"""A captured block as a tree of parts, compared with the block itself before it is given."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from rankscope.network import Attention, Observed, Opaque, Part, TokenMap
from rankscope.sources.operations.captured import Captured
from rankscope.sources.operations.graph import Guard, Node
from rankscope.sources.operations.influence import are_texts_alike
from rankscope.sources.operations.region import Note, Region, Unread
from rankscope.sources.recognise.attention import as_held, find_attention
from rankscope.sources.recognise.layout import Layout, Padding
from rankscope.sources.recognise.linear import find_linears
from rankscope.sources.recognise.norms import find_norms
from rankscope.sources.recognise.stream import Stream, between
from rankscope.sources.recognise.tokenmaps import find_token_maps
from rankscope.sources.recognise.twins import Place, places_of, with_weights

FAR = (1e-4, 1e3, 1e6)
"""Sizes of states that a block with branches is tried on besides: another branch may be right for them."""

COUNTS = (1, 10, 100, 1000, 1_000_000)
"""So many calls later a block that counts its calls is tried."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Recognised:
    """The tree of one block.

    Args:
        part: a map of ``texts tokens dim``; its weights are views of the model's own.
        notes: why a piece of it is opaque.
        guards: the branches of the user's code that the tree holds for.
        covered: the share of the block's weights, in numbers, that stand in recognised parts.
        memory: the name of the argument that cross-attention reads, as in ``graph.inputs``; None without any.
        slack: how far attention is off because of a table with few digits.
        places: where the weights of the tree lie in those of the block; None where some are computed.
    """

    part: Part
    notes: tuple[Note, ...]
    guards: tuple[Guard, ...]
    covered: float
    memory: str | None
    slack: float = 0.0
    places: tuple[Place | Tensor, ...] | None = None


@torch.no_grad()
def recognised(
    captured: Captured, *, stream: str, tokens_first: bool = False, padding: Padding | None = None
) -> Recognised:
    """The tree of a captured block, or ``Unread`` where there is none that gives what the block gives.

    Args:
        stream: the argument that is the state of the stream, as in ``captured.graph.inputs``.
        tokens_first: whether that state is ``tokens texts dim``.
        padding: which tokens of the captured call are none.
    """
    for node in captured.graph.random():
        raise Unread(f"{node.kind} draws random numbers, so every pass is another one", node)
    _check_steady(captured)
    root, target = _ends(captured, stream)
    memories = states = _memories(captured, root, target)
    region, layout = _read(captured, (root, *memories), target, tokens_first, padding)
    used = tuple(node for node in memories if any(one.memory is node for one in region.known.values()))
    if used != memories:  # tables of positions are read by linear maps too
        memories = used
        region, layout = _read(captured, (root, *memories), target, tokens_first, padding)
    names = {node: name for name, node in captured.graph.inputs.items()}
    memory = names[memories[0]] if memories else None
    others = {
        node for node in states if node not in memories and layout.texts in (1, node.shape[tokens_first])
    }
    layout.declare(target, root)
    guards = _guards(region)
    try:
        try:
            part, opaque = _built(captured, layout, stream, memory, others, is_strict=False)
        except Unread:
            part, opaque = _built(captured, layout, stream, memory, others, is_strict=True)
        covered = _covered(captured, region, opaque)
    except Unread as error:
        region.notes.append(Note.of(error))
        if (
            memories or others
        ):  # whatever is run as it is reads the stream alone, and would keep these for ever
            raise
        part, covered, guards = _whole(captured, layout, stream, target, error), 0.0, ()
        _compare(captured, layout, part, stream, memory)
    places = None if region.notes else places_of(part, captured)
    lower(part, captured)
    return Recognised(
        part=part,
        notes=tuple(dict.fromkeys(region.notes)),
        guards=guards,
        covered=covered,
        memory=memory,
        slack=layout.slack,
        places=places,
    )


def _check_steady(captured: Captured) -> None:
    """Raise if what the block gives depends on something that its calls change: how many there were, or what came."""
    plain = captured.again(captured.args, captured.kwargs) if captured.changed else None
    for name, value in captured.changed.items():
        for other in _other_values(value):
            try:
                found = captured.again(captured.args, captured.kwargs, held={name: other})
                is_same = all(map(_is_equal, tree_leaves(found), tree_leaves(plain)))
            except Exception:  # whatever the block does then, it is something else
                is_same = False
            if not is_same:
                raise Unread(
                    f"the block changes its own {name!r} in every call, and what it gives depends on it, so every "
                    "pass is another one"
                )


def _other_values(value: float | Tensor) -> list[float | Tensor]:
    """Values that a number or tensor may have after other calls."""
    if isinstance(value, bool):
        return [not value]
    if not isinstance(value, Tensor):
        return [0, *(value + more for more in COUNTS)]
    if value.dtype == torch.bool:
        return [~value]
    if not value.is_floating_point():
        return [value + more for more in COUNTS]
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(43), dtype=value.dtype)
    return [value + noise.to(value.device)]


def _is_equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    return not isinstance(one, Tensor) and not isinstance(other, Tensor)


@torch.no_grad()
def recognised_as(
    known: Recognised, captured: Captured, *, stream: str, tokens_first: bool = False
) -> Recognised | None:
    """The tree of a block whose graph is that of a block which is known; None where the block gives something else.

    It is compared with plain calls of the block as any tree is, on states of as many sizes.
    """
    part = None if known.places is None else with_weights(known.part, known.places, captured)
    if part is None:
        return None
    root, target = _ends(captured, stream)
    memories = () if known.memory is None else (captured.graph.inputs[known.memory],)
    layout = Layout(Region(captured.graph, (root, *memories), target), tokens_first=tokens_first)
    layout.slack = known.slack
    try:
        _compare(captured, layout, part, stream, known.memory)
    except Unread:
        return None
    lower(part, captured)
    return replace(known, part=part)


def _built(
    captured: Captured, layout: Layout, stream: str, memory: str | None, others: set[Node], *, is_strict: bool
) -> tuple[Part, set[Node]]:
    """The tree, equal to the block, and the nodes inside of what it does not recognise; nothing stays of a failure."""
    region = layout.region
    said = list(region.notes)
    builder = Stream(region, layout, captured, is_strict)
    try:
        if not layout.is_same(region.roots[0], region.target):
            raise Unread("the tokens leave the block in other places", region.target)
        part = builder.build(region.roots[0], region.target)
        _check_reads(region, _run_as_it_is(region, builder.opaque), others)
        _compare(captured, layout, part, stream, memory)
    except Unread:
        region.notes[:] = said
        raise
    return part, builder.opaque


def _read(
    captured: Captured, roots: tuple[Node, ...], target: Node, tokens_first: bool, padding: Padding | None
) -> tuple[Region, Layout]:
    """All that is recognised by itself."""
    region = Region(captured.graph, roots, target)
    find_linears(region)
    find_norms(region)
    find_attention(region, tokens_first=tokens_first, own=as_held)
    layout = Layout(region, tokens_first=tokens_first, padding=padding)
    find_token_maps(region, layout, captured)
    return region, layout


def _ends(captured: Captured, stream: str) -> tuple[Node, Node]:
    """The state that enters and the first output of its shape that depends on it."""
    graph = captured.graph
    if stream not in graph.inputs:
        raise Unread(f"the block was called without {stream!r}; its arguments are {', '.join(graph.inputs)}")
    root = graph.inputs[stream]
    if root.value.ndim != 3 or not root.value.is_floating_point():
        raise Unread(f"the state has shape {tuple(root.shape)}, not texts, tokens and channels", root)
    reached = {root}
    for node in graph.nodes:
        if any(leaf in reached for leaf in node.inputs()):
            reached.add(node)
    for output in graph.outputs:
        if output in reached and output.shape == root.shape:
            return root, output
    raise Unread("no output of the block has the shape of its state and depends on it", root)


def _memories(captured: Captured, root: Node, target: Node) -> tuple[Node, ...]:
    """Arguments that are states themselves: tensors of three axes whose channels a linear map reads."""
    graph = captured.graph
    others = [
        node
        for node in dict.fromkeys(graph.inputs.values())
        if node is not root and node.value.ndim == 3 and node.value.is_floating_point()
    ]
    if not others:
        return ()
    region = Region(graph, (root, *others), target)
    find_linears(region)
    own = Region(graph, (root,), target)
    if all(own.depends(linear.input) for linear in region.linears.values()):
        return ()  # all that linear maps read has to do with the stream: these are tables of positions
    find_norms(region)
    read = set[Node]()
    for linear in region.linears.values():
        source = linear.input
        while source in region.known:
            source = region.stripped(region.known[source].input)
        read.add(source)
    return tuple(node for node in others if node in read and node in region.inside)


def _compare(captured: Captured, layout: Layout, part: Part, stream: str, memory: str | None) -> None:
    """Raise unless the tree gives what a plain call of the block gives, on fresh states of several sizes."""
    generator = torch.Generator().manual_seed(41)
    target = layout.region.target
    for size in (*layout.sizes, *(FAR if _guards(layout.region) else ())):
        names = [stream] if memory is None else [stream, memory]
        states = {
            name: size
            * torch.randn(captured.graph.inputs[name].shape, generator=generator, dtype=torch.float64)
            for name in names
        }
        args, kwargs = captured.with_states(states)
        try:
            result = captured.again(args, kwargs)
        except Exception as error:
            raise Unread(f"the block fails on other states of the same shape: {error}", target) from error
        theirs = _output(captured, result, target)
        turned = {name: one.transpose(0, 1) if layout.tokens_first else one for name, one in states.items()}
        try:
            ours = layout.ran(part, turned[stream], None if memory is None else turned[memory])
        except Exception as error:
            raise Unread(f"the tree fails on other states: {error}", target) from error
        off = layout.difference(ours, theirs.transpose(0, 1) if layout.tokens_first else theirs)
        if off > layout.room:
            guard = next((one for one in _guards(layout.region) if one.node is not None), None)
            taken = "" if guard is None else ": another branch than that of the run is taken there"
            raise Unread(
                f"the tree differs from the block by {off:.0e} on states of size {size:g}{taken}",
                target if guard is None else guard.node,
            )


def _output(captured: Captured, result: object, target: Node) -> Tensor:
    """The tensor among what a block returned that a node of its graph is."""
    found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    return found[captured.graph.outputs.index(target)]


def _covered(captured: Captured, region: Region, opaque: set[Node]) -> float:
    """The share of the weights that ran which no opaque part reads."""
    total = _weights(captured, region, region.order)
    missed = _weights(captured, region, _run_as_it_is(region, opaque))
    for known in region.known.values():
        if isinstance(known.part, Attention) and isinstance(
            known.part.mixer, Observed
        ):  # of its maps no rule is known
            held = {one.untyped_storage().data_ptr() for one in known.part.values.parameters()}
            read = _weights(captured, region, between(region, known.input, known.output))
            missed |= {leaf for leaf in read if leaf.value.untyped_storage().data_ptr() not in held}
    count = sum(leaf.value.numel() for leaf in total)
    return 1.0 if not count else 1 - sum(leaf.value.numel() for leaf in missed) / count


def _run_as_it_is(region: Region, opaque: set[Node]) -> set[Node]:
    """The nodes of all regions that are not recognised inside."""
    found = set(opaque)
    for known in region.known.values():
        if type(known.part) in (TokenMap, Opaque):
            found |= between(region, known.input, known.output)
    return found


def _check_reads(region: Region, nodes: set[Node], states: set[Node]) -> None:
    """Raise if nodes of a region that is run as it is are computed from states other than the stream's."""
    for node in region.order:
        waiting, seen = list(node.inputs()) if node in nodes and states else [], set[Node]()
        while waiting:
            leaf = waiting.pop()
            if leaf in states:
                raise Unread(
                    "a region that is not recognised reads other states than those of the stream", node
                )
            if leaf not in seen and not region.depends(leaf):
                seen.add(leaf)
                waiting += leaf.inputs()


def _weights(captured: Captured, region: Region, nodes: Iterable[Node]) -> set[Node]:
    """The weights that nodes read, also through what is computed from weights alone."""
    arguments = set(captured.graph.inputs.values())
    found, seen = set[Node](), set[Node]()
    waiting = [leaf for node in nodes if node not in region.roots for leaf in node.inputs()]
    while waiting:
        leaf = waiting.pop()
        if leaf in seen or region.depends(leaf):
            continue
        seen.add(leaf)
        waiting += leaf.inputs()
        if leaf.op is None and leaf.name and leaf not in arguments:
            found.add(leaf)
    return found


def _whole(captured: Captured, layout: Layout, stream: str, target: Node, error: Unread) -> Part:
    """The block as one opaque part, run as a plain call."""

    def run(x: Tensor) -> Tensor:
        args, kwargs = captured.with_states({stream: x.transpose(0, 1) if layout.tokens_first else x})
        found = _output(captured, captured.again(args, kwargs), target)
        return found.transpose(0, 1) if layout.tokens_first else found

    node = error.node
    lines = [] if node is None or node.line is None else [str(node.line)]
    where = " ".join([*lines, *([f"({node.path})"] if node is not None and node.path else [])])
    others = [name for name in captured.graph.inputs if name != stream]
    shape = (layout.texts, layout.tokens) if others else None
    return Opaque(
        run,
        site="attention",
        where=where,
        what=error.what,
        shape=shape,
        alike=shape is not None and are_texts_alike(run, (*shape, layout.dim)),
        dtype=torch.float64,
    )


def _guards(region: Region) -> tuple[Guard, ...]:
    """Branches that depend on the states; those of other numbers are the same in every pass."""
    unknown = (guard for guard in region.graph.guards if guard.node is None)
    return (*region.guards(), *unknown)


def lower(part: Part, captured: Captured) -> None:
    """Put the model's own weights in place of the copy's, in every module of a tree."""
    known = dict[int, nn.Parameter]()
    for module in part.modules():
        for name, held in module._parameters.items():
            if held is not None and id(held) not in known:
                known[id(held)] = nn.Parameter(captured.own(held.detach()), requires_grad=False)
            if held is not None:
                module._parameters[name] = known[id(held)]
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = captured.own(value)
        for name, value in vars(module).items():
            if isinstance(value, Tensor):  # angles and slopes: no dtype of a model rounds them
                found = captured.view(value)
                vars(module)[name] = value.clone() if found is None else found.double()
