"""Tokens read what they may read: causality, and that everything reaches the output."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Graph, Line, Node, Region
from rankscope.sources.operations.region import SAME_CHANNELS
from rankscope.wiring.culprits import (
    MAKING,
    first_leak,
    is_lower,
    is_own_code,
    is_triangle,
    mask_line,
    mask_of,
    node_line,
    on_the_logits,
)
from rankscope.wiring.law import law, result
from rankscope.wiring.losses import loss_of
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.slopes import slopes_of
from rankscope.wiring.subject import Ran, Subject, differs
from rankscope.wiring.texts import last_moved, site_of

_CAUSAL_NAMES = re.compile(r"GPT|CausalLM|LanguageModel|LMHead|autoregressive", re.IGNORECASE)
_LM = re.compile(r"LM(?![a-z])")
_FILLS_GAPS = re.compile(r"mask|mlm|bert|diffusion|prefix", re.IGNORECASE)
"""Language models that read in both directions."""

ASYMMETRIC = 2.0
"""Blocks that read so many times as much of the past as of the future, and three times as far back as ahead, are meant
to be causal: those that read in both directions read as much of either, a convolution of even width one token more."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one block reads of past and future, as shares of the pairs of tokens that were tried."""

    piece: Piece
    readers: dict[int, Tensor]

    @property
    def future(self) -> list[tuple[int, int]]:
        """Pairs of a token and a later one that moves it."""
        return [(p, t) for t, rows in self.readers.items() for p in range(t) if bool(rows[p])]

    def share(self, *, future: bool) -> float:
        """Share of the pairs that were tried."""
        tokens = len(next(iter(self.readers.values())))
        tried = sum(t if future else tokens - 1 - t for t in self.readers)
        read = (
            len(self.future) if future else sum(int(rows[t + 1 :].sum()) for t, rows in self.readers.items())
        )
        return read / tried if tried else 0.0

    @property
    def kind(self) -> str:
        """``still``: tokens do not mix; ``causal``; ``nearly``: much more past than future; ``reversed``; ``both``."""
        past, future = self.share(future=False), self.share(future=True)
        if future == 0:
            return "causal" if past else "still"
        if past == 0 and all(bool(rows[t - 1]) for t, rows in self.readers.items() if t):
            return "reversed"
        is_near = 3 * max(t - p for p, t in self.future) <= max(
            (p - t for t, rows in self.readers.items() for p in range(t + 1, len(rows)) if bool(rows[p])),
            default=0,
        )
        return "nearly" if past >= ASYMMETRIC * future and (is_near or self.is_prefix) else "both"

    @property
    def is_prefix(self) -> bool:
        """Whether exactly the first tokens are read by all before them."""
        heads = [t for t, rows in self.readers.items() if t and bool(rows[:t].any())]
        if not heads or max(heads) < 2:
            return False
        last = max(heads)
        return all(bool(rows[:t].all()) for t, rows in self.readers.items() if 0 < t <= last)


@law("causality")
def causality(subject: Subject) -> LawResult:
    """No row of a block moves if a later token does; looked at where something says so (``_is_causal``)."""
    if not subject.base.is_finite:
        return result("causality", "not checked", "output not finite")
    if not subject.stacks:
        return result("causality", "not checked", "no blocks")
    is_claimed, looked, short = False, False, False
    for stack in subject.stacks:
        axis = subject.text_axes[stack.name]
        readings = []
        for piece in subject.stack_of(stack.name):
            if not piece.is_usable or piece.root_shape is None or piece.mixes(axis):
                continue
            if piece.state.shape[1 - axis] < 3:
                short = True
                continue
            readings.append(_Reading(piece, piece.readers(axis)))
        readings = [one for one in readings if one.readers and one.kind != "still"]
        looked = looked or bool(readings)
        if not readings or not _is_causal(subject, stack.name, readings):
            continue
        is_claimed = True
        for one in readings:
            if one.future:
                if one.is_prefix and one.kind == "nearly":
                    return result("causality", "meant", "prefix", block=one.piece.place.block_of(None))
                return _leak(subject, one, axis)
    if is_claimed:
        return _outside(subject)
    if looked:
        return result("causality", "not checked", "both directions")
    return result("causality", "not checked", "one token" if short else "no softmax")


def _is_causal(subject: Subject, stack: str, readings: list[_Reading]) -> bool:
    """Whether a stack is meant to be causal: by what most blocks read, by a mask that it has, whether used or not, by
    its name, by a loss that asks for the next token, or as a decoder that reads ids beside those of its encoder."""
    if 2 * sum(one.kind != "both" for one in readings) >= len(readings):
        return True
    if 2 * sum(_has_causal_mask(subject, one.piece, subject.text_axes[stack]) for one in readings) >= len(
        readings
    ):
        return True
    if len(subject.stacks) > 1:
        return _is_decoder(subject, readings)
    name = type(subject.model).__name__
    is_named = bool(_CAUSAL_NAMES.search(name) or _LM.search(name)) and not _FILLS_GAPS.search(name)
    return is_named or (subject.loss is not None and loss_of(subject).asks_next)


def _has_causal_mask(subject: Subject, piece: Piece, text_axis: int) -> bool:
    """Whether a block, or what holds it, holds, is given or makes a table that says that every token reads itself and
    those before."""
    tokens = piece.state.shape[1 - text_axis]
    values = [one for one in (*piece.args, *piece.kwargs.values()) if isinstance(one, Tensor)]
    values += list(piece.module.buffers())
    parts = piece.place.path.split(".")
    for end in range(
        len(subject.stacks) > 1, len(parts)
    ):  # the model itself holds what any of several stacks reads
        values += subject.model.get_submodule(".".join(parts[:end])).buffers(recurse=False)
    if piece.region is not None:
        masks = [mask_of(piece.region, node) for node in piece.region.order if node.kind in SOFTMAX]
        values += [one[1].value for one in masks if one is not None]
    return any(
        one.ndim >= 2 and min(one.shape[-2:]) >= tokens and is_lower(one, tokens)
        for one in values
        if one.numel()
    )


def _is_decoder(subject: Subject, readings: list[_Reading]) -> bool:
    """Whether blocks are given a second state, in a model that reads two runs of ids and puts out a vocabulary."""
    ids = [one for one in subject.token_inputs if not subject.batch.inputs[one].is_floating_point()]
    rows = {one.num_embeddings for one in subject.model.modules() if isinstance(one, nn.Embedding)}
    lengths = {one.shape[:2] for one in subject.base.outputs if one.ndim == 3 and one.shape[-1] in rows}

    def has_memory(piece: Piece) -> bool:
        width = piece.state.shape[-1]
        values = [one for one in (*piece.args, *piece.kwargs.values()) if isinstance(one, Tensor)]
        return (
            sum(one.is_floating_point() and one.ndim == 3 and one.shape[-1] == width for one in values) > 1
            and piece.state.shape[:2] in lengths
        )

    return len(ids) > 1 and all(has_memory(one.piece) for one in readings) and is_own_code(subject.model)


def _leak(subject: Subject, reading: _Reading, axis: int) -> LawResult:
    piece = reading.piece
    token = min(t for _, t in reading.future)
    where = piece.slice_at(1 - axis, token)
    texts, tokens = piece.state.shape[axis], piece.state.shape[1 - axis]
    forbidden = (torch.arange(tokens) < token).expand(texts, tokens)
    node = first_leak(piece, where, forbidden)
    return result(
        "causality",
        "broken",
        "future read",
        block=piece.place.block_of(node),
        site=site_of(piece, None if node is None else node.path),
        line=mixing_line(subject, piece, node),
        number=_effect(piece, where, forbidden, axis),
        floor=0.0,
    )


def mixing_line(subject: Subject, piece: Piece, node: Node | None) -> Line | None:
    """The line of an operation that lets tokens be read; of a softmax the one of its mask, or where it is missing."""
    if node is not None and node.kind in ("matmul", "bmm") and piece.region is not None:
        map_, masks = next(_maps_read_by(piece, node), (None, None))
        if map_ is not None and masks is not None and masks[0].kind == "mul":
            return _line_of_mask(subject, piece, masks)
    if node is not None and node.kind in SOFTMAX and piece.region is not None:
        if _misses_argument(subject, piece):
            return piece.place.line or node.line
        line = _call_without(subject, piece, node)
        if line is not None:
            return line
        masks = mask_of(piece.region, node)
        if masks is not None:
            return _line_of_mask(subject, piece, masks)
        line = _masked_behind(piece.region, node) or _not_handed_on(piece, node)
        if line is not None:
            return line
        line = _mask_elsewhere(subject, piece, node)
        if line is not None:
            return line
    return node_line(piece, node)


def _maps_read_by(piece: Piece, node: Node) -> Iterator[tuple[Node, tuple[Node, Node] | None]]:
    """The softmax whose map a product reads, with what masks it."""
    region, waiting, seen = piece.region, list(node.inputs()), set[Node]()
    while waiting and region is not None:
        one = waiting.pop(0)
        if one in seen or not region.depends(one):
            continue
        seen.add(one)
        if one.kind in SOFTMAX:
            yield one, mask_of(region, one)
        elif one.kind in SAME_CHANNELS | {"dropout", "native_dropout", "_to_copy"}:
            waiting += one.inputs()


def _masked_behind(region: Region, node: Node) -> Line | None:
    """The line that masks a map behind its softmax, which is too late."""
    waiting, seen = [node], set[Node]()
    while waiting:
        one = waiting.pop(0)
        for user in region.users.get(one, []):
            if user in seen or user.shape != node.shape:
                continue
            seen.add(user)
            tables = [leaf for leaf in user.inputs() if not region.depends(leaf)]
            if user.kind in ("mul", "masked_fill", "where") and any(
                is_triangle(leaf.value) for leaf in tables
            ):
                return user.line
            waiting.append(user)
    return None


def _not_handed_on(piece: Piece, node: Node) -> Line | None:
    """The line that calls a part which holds a softmax without the mask that the block was given for it, and that
    nothing in the block reads; None where there is no such mask, or the part was given it."""
    graph, region = piece.graph, piece.region
    if graph is None or region is None or piece.shared is not None or not node.path:
        return None
    above = graph.above((region.target,))
    idle = [
        one
        for name, one in graph.inputs.items()
        if name != piece.stream
        and one not in above
        and one.value.ndim >= 2
        and one.shape[-1] == node.shape[-1]
    ]
    parts = node.path.split(".")
    for end in range(1, len(parts) + 1):
        call = next(graph.calls_of(".".join(parts[:end])), None)
        if call is not None and idle and not any(one in call.inputs for one in idle):
            return call.line
    return None


def _mask_elsewhere(subject: Subject, piece: Piece, node: Node) -> Line | None:
    """The line at which other blocks that run the same code mask what this one does not; of a part whose code masks in
    another place of the same block the line that calls it."""
    for one in subject.stack_of(piece.place.stack):
        if (
            type(one.module) is not type(piece.module)
            or "forward" in vars(piece.module)
            or one.region is None
        ):
            continue
        for other in one.region.order:
            if other.kind in SOFTMAX and other.line == node.line:
                masks = mask_of(one.region, other)
                if masks is None or masks[0].line is None:
                    continue
                call = None if piece.graph is None else next(piece.graph.calls_of(node.path), None)
                if other.path != node.path and call is not None and call.line is not None:
                    return call.line
                return masks[0].line
    return None


def _line_of_mask(subject: Subject, piece: Piece, masks: tuple[Node, Node]) -> Line | None:
    """Where a mask is made: in the block, or in the model that hands it to its blocks."""
    graph = piece.graph
    given = None
    if graph is not None and piece.shared is None:
        above = graph.above((masks[1],))
        given = next(
            (node for name, node in graph.inputs.items() if node in above and name != piece.stream), None
        )
    whole = None if given is None else subject.whole_graph
    if given is not None and is_padding_input(subject, given):
        return masks[0].line or piece.place.line
    if given is not None and whole is not None:
        calls = [call for call in whole.calls if call.path == piece.place.path]
        alike = [node for node in (calls[0].inputs if calls else ()) if node.shape == given.shape]
        for node in alike:
            is_it = len(alike) == 1 or torch.equal(node.value.double(), given.value.double())
            if is_it and node.op is not None:
                spoiled = _spoiled(whole, node)
                if spoiled is not None:
                    return spoiled.line
                made = [one for one in whole.above((node,)) if one.kind in MAKING and one.line is not None]
                if made:
                    return min(made, key=lambda one: one.id).line
                if node.line is not None:
                    return node.line
    return mask_line(subject.model, piece, masks)


def _spoiled(graph: Graph, mask: Node) -> Node | None:
    """The operation that makes a wrong mask out of a right one, on the way to a mask; None where none does."""
    way = sorted((one for one in graph.above((mask,)) if one.op is not None), key=lambda one: one.id)
    right = [one for one in way if one.value.ndim > 1 and is_triangle(one.value)]
    if not right or is_triangle(mask.value):
        return None
    behind = (one for one in way if one.id > right[-1].id and one.line is not None)
    return next((one for one in behind if right[-1] in graph.above((one,))), None)


def line_of_argument(
    subject: Subject, piece: Piece, node: Node | None, pieces: Sequence[Piece]
) -> Line | None:
    """Where an argument of the block goes wrong that reaches the logits and was made from the marks of padding.

    It is the call of the block, if most other ``pieces`` of the same run are given something else; else the line that
    made the argument. None where the block is given no such argument, or the marks as they are.
    """
    region, graph = piece.region, piece.graph
    if region is None or graph is None or node is None or piece.shared is not None:
        return None
    reads = [node] if node.kind in SOFTMAX else [one for one, _ in _maps_read_by(piece, node)]
    above = graph.above(leaf for softmax in reads[:1] for leaf in _constants_on(region, softmax))
    usual = next((one.graph for one in subject.pieces if one.place == piece.place), None)
    name = next(
        (
            name
            for name, one in graph.inputs.items()
            if one in above and name != piece.stream and not _is_given_anyway(usual, name, one)
        ),
        None,
    )
    if name is None or is_padding_input(subject, graph.inputs[name]):
        return None
    given = graph.inputs[name].value
    others = [
        one.graph.inputs[name].value
        for one in pieces
        if one is not piece and one.graph is not None and name in one.graph.inputs
    ]
    differ = [one for one in others if one.shape != given.shape or not torch.equal(one, given)]
    if others and 2 * len(differ) > len(others):
        return piece.place.line
    whole = subject.whole_graph
    calls = [] if whole is None else [call for call in whole.calls if call.path == piece.place.path]
    made = [
        one for call in calls[:1] for one in call.inputs if one.shape == given.shape and one.op is not None
    ]
    return made[0].line if len(made) == 1 else None


def _is_given_anyway(usual: Graph | None, name: str, node: Node) -> bool:
    """Whether a block is given the same where nothing is marked as padding, so that it does not tell of it."""
    other = None if usual is None else usual.inputs.get(name)
    return other is not None and other.shape == node.shape and torch.equal(other.value, node.value)


def _constants_on(region: Region, softmax: Node) -> Iterator[Node]:
    """What does not depend on the state and enters the logits of a softmax behind the product of queries and keys."""
    for node in on_the_logits(region, softmax):
        if node.kind in ("add", "sub", "mul", "where", "masked_fill"):
            yield from (one for one in node.inputs() if not region.depends(one) and one.value.ndim > 1)


def is_padding_input(subject: Subject, given: Node) -> bool:
    """Whether a block is given marks of padding just as the model was, so that only their use can be at fault."""
    value = given.value.squeeze()
    if given.value.is_floating_point():
        return False
    marks = [
        one
        for name, one in subject.batch.inputs.items()
        if one.ndim == 2 and one.shape == value.shape and name not in subject.token_inputs
    ]
    return bool(marks) and set(value.double().unique().tolist()) <= {0.0, 1.0}


def _misses_argument(subject: Subject, piece: Piece) -> bool:
    """Whether other blocks of the stack are given more tensors than this one."""
    many = [_tensors(one) for one in subject.stack_of(piece.place.stack)]
    return _tensors(piece) < max(many)


def _call_without(subject: Subject, piece: Piece, node: Node) -> Line | None:
    """The line that calls a part of the block with fewer tensors than the same part of other blocks is called with."""
    graph = piece.graph
    if graph is None or piece.shared is not None or not node.path:
        return None
    parts = node.path.split(".")
    for end in range(len(parts), 0, -1):
        path = ".".join(parts[:end])
        own = next(iter(graph.calls_of(path)), None)
        others = [
            call
            for one in subject.stack_of(piece.place.stack)
            if one is not piece and one.graph is not None
            for call in one.graph.calls_of(path)
        ]
        if own is not None and others and len(own.inputs) < max(len(one.inputs) for one in others):
            return own.line
    return None


def _tensors(piece: Piece) -> int:
    values = (*piece.args, *piece.kwargs.values())
    return sum(isinstance(one, Tensor) for one in values)


def _effect(piece: Piece, where: Tensor, forbidden: Tensor, axis: int) -> float | None:
    """How far rows move that must not, relative to the largest row."""
    after = piece.run(piece.noise(where))
    if after is None or piece.base is None or after.shape != piece.base.shape:
        return None
    rows = (piece.base.double() - after.double()).norm(dim=-1)
    size = piece.base.double().norm(dim=-1).amax()
    rows = rows if axis == 0 else rows.mT
    return float((rows * forbidden.to(rows)).amax() / size) if size else None


def _outside(subject: Subject) -> LawResult:
    """What happens before, between and after the blocks: the last token is changed in the inputs."""
    holds = result("causality", "holds", number=0.0, floor=subject.clearly)
    if len(subject.stacks) != 1 or len(subject.token_inputs) != 1:  # a memory may be read whole
        return holds
    stack = subject.stacks[0]
    axis = subject.text_axes[stack.name]
    ran = subject.with_moved_slice(1 - subject.input_axis, -1)
    if ran is None:
        return holds
    base, clearly = subject.base, subject.clearly
    steps: list[tuple[int | None, Tensor | None, Tensor | None]] = [
        (None, base.roots.get(stack.name), ran.roots.get(stack.name))
    ]
    steps += [(number, *pair) for number, pair in enumerate(zip(base.states, ran.states, strict=False), 1)]
    tokens = None if steps[0][1] is None else steps[0][1].shape[1 - axis]
    steps += [(None, *pair) for pair in zip(base.outputs, ran.outputs, strict=False)]
    for number, before, after in steps:
        if before is None or after is None or before.shape != after.shape or before.ndim != 3:
            continue
        if before.shape[1 - axis] != tokens or tokens < 2:
            continue
        moved = differs(before, after, clearly).any(-1)
        if bool(moved.narrow(1 - axis, 0, tokens - 1).any()):
            gap = (before - after).double().norm(dim=-1).narrow(1 - axis, 0, tokens - 1).amax()
            share = float(gap / before.double().norm(dim=-1).amax())
            return result(
                "causality", "broken", "future read", block=number, number=share, floor=clearly, site=None
            )
    return holds


@law("reach")
def reach(subject: Subject) -> LawResult:
    """Heads by what their maps move in the block; tokens and channels by what they move in the output."""
    if not subject.base.is_finite:
        return result("reach", "not checked", "output not finite")
    heads = _dead_head(subject) or _unread_text(subject)
    if heads is not None:
        return heads
    slopes = slopes_of(subject)
    if slopes is None:
        return result("reach", "holds") if subject.pieces else result("reach", "not checked", "no blocks")
    for stack in subject.stacks:
        axis = subject.text_axes[stack.name]
        entered = slopes.roots.get(stack.name)
        if entered is None or entered.ndim != 3 or not bool((entered != 0).any()):
            continue
        by_token = entered.abs().amax(-1).amax(axis)
        unread = (by_token == 0).nonzero().flatten().tolist()
        # what a mask leaves out, or what stands behind the end of a text, need not be read; most tokens must
        if 2 * len(unread) > len(by_token) > 2 and not _has_window(subject, stack.name):
            first = unread[0]
            return result(
                "reach", "broken", "token unread", what=f"token {first + 1}", number=float(len(unread))
            )
        left = slopes.last.get(stack.name)
        if left is not None and left.ndim == 3 and bool((left != 0).any()):
            dead = (left.abs().flatten(0, -2).amax(0) == 0).nonzero().flatten().tolist()
            if dead:
                return result(
                    "reach",
                    "broken",
                    "channel unread",
                    what=f"{len(dead)} of {left.shape[-1]} channels",
                    number=float(len(dead)),
                )
    return result("reach", "holds")


def _unread_text(subject: Subject) -> LawResult | None:
    """A text whose tokens change nothing of what is returned, where those of the first one do."""
    if subject.texts < 2 or not subject.base.outputs or not is_own_code(subject.model):
        return None
    axis = subject.input_axis if subject.token_inputs else 0
    first, second = (subject.with_moved_slice(axis, place) for place in (0, 1))
    if first is None or second is None or not _is_moved(subject, first) or _is_moved(subject, second):
        return None
    if all(torch.equal(one, second.roots[name]) for name, one in subject.base.roots.items()):
        return None  # it never enters the blocks: another place of a memory, say
    node = last_moved(subject, axis, 1)
    return result(
        "reach",
        "broken",
        "text unread",
        site=None if node is None else node.path,
        line=None if node is None else node.line,
        what="text 2",
        number=1.0,
    )


def _is_moved(subject: Subject, ran: Ran) -> bool:
    pairs = zip(subject.base.outputs, ran.outputs, strict=False)
    return any(one.shape != two.shape or not torch.equal(one, two) for one, two in pairs)


def _has_window(subject: Subject, stack: str) -> bool:
    """Whether some block reads a part of the past alone, so that far tokens are out of reach by design."""
    axis = subject.text_axes[stack]
    for piece in subject.stack_of(stack):
        if piece.is_usable and piece.root_shape is not None:
            readers = piece.readers(axis)
            if readers and 0 < _Reading(piece, readers).share(future=False) < 1:
                return True
    return False


def _dead_head(subject: Subject) -> LawResult | None:
    """The first head that nothing behind it reads, in a model where others are read."""
    found: list[tuple[Piece, Node, list[int], int]] = []
    alive = 0
    for piece in subject.pieces:
        if piece.region is None or not piece.is_usable or piece.root_shape is None:
            continue
        axis = subject.text_axes[piece.place.stack]
        for node in piece.region.order:
            if node.kind not in SOFTMAX:
                continue
            slopes = _slopes_of_map(piece, node, piece.state.shape[axis])
            if slopes is None:
                continue
            largest = float(slopes.amax())
            dead = (
                (slopes <= 1e-12 * largest).nonzero().flatten().tolist()
                if largest
                else list(range(len(slopes)))
            )
            alive += len(slopes) - len(dead)
            if len(dead) == len(slopes) and not _has_tokens(piece.state):
                continue  # all values are equal, so that it does not matter which of them are read
            if dead:
                found.append((piece, node, dead, len(slopes)))
    if not found or not alive:
        return None  # a design that starts with branches of zero writes nothing anywhere
    piece, node, dead, many = found[0]
    if len(dead) == many and sum(len(one[2]) == one[3] for one in found) * 2 >= len(subject.pieces):
        return None  # whole branches are zero in most blocks: so they start
    behind = _projection(piece, node)
    if _is_pruned(piece, node, behind):
        return result("reach", "meant", "pruned heads", block=piece.place.block_of(node))
    name = f"head {dead[0] + 1} of {many}"
    return result(
        "reach",
        "broken",
        "head unread",
        block=piece.place.block_of(node),
        site=site_of(piece, behind.path),
        line=node_line(piece, behind),
        what=name,
        number=float(len(dead)),
    )


def _slopes_of_map(piece: Piece, node: Node, texts: int) -> Tensor | None:
    """How much what leaves the block depends on the map of every head; None for what is no map of heads."""
    region, shape = piece.region, node.shape
    if region is None or len(shape) not in (3, 4) or shape[0] % texts:
        return None
    heads = shape[1] if len(shape) == 4 else shape[0] // texts
    if heads < 2 or (len(shape) == 4 and shape[0] != texts):
        return None
    with torch.enable_grad():
        leaf = node.value.detach().clone().requires_grad_()
        out = region.replay(region.target, {node: leaf})
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        if not out.requires_grad:
            return None
        (slope,) = torch.autograd.grad((out * weights.to(out)).sum(), leaf)
    by_head = slope.abs().reshape(texts, heads, -1)
    return by_head.amax(-1).amax(0)


def _has_tokens(state: Tensor) -> bool:
    rows = state.flatten(0, -2)
    return bool((rows != rows[:1]).any())


def _is_pruned(piece: Piece, node: Node, behind: Node) -> bool:
    """Whether a table of zeros and ones that the block holds switches heads off, or a mask is kept beside a weight."""
    region, graph = piece.region, piece.graph
    if region is None or graph is None:
        return False
    held = {
        name
        for name, one in piece.module.named_buffers()
        if set(one.double().unique().tolist()) == {0.0, 1.0}
    }
    between = [one for one in region.order if node.id < one.id <= behind.id]
    constants = {leaf for one in between for leaf in one.inputs() if not region.depends(leaf)}
    return any(one.name in held for one in graph.above(constants))


def _projection(piece: Piece, node: Node) -> Node:
    """The linear map behind a map of attention; the map itself where there is none."""
    region = piece.region
    waiting, seen = [node], set[Node]()
    while waiting and region is not None:
        one = waiting.pop(0)
        for user in region.users.get(one, []):
            if user in seen:
                continue
            seen.add(user)
            is_map = user.kind in ("linear", "addmm", "mm", "matmul", "bmm")
            if is_map and not all(region.depends(leaf) for leaf in user.inputs()):
                return user
            waiting.append(user)
    return node
