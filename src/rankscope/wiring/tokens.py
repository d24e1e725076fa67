"""Tokens read what they may read: causality, the order of tokens, and that everything reaches the output."""

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.errors import ModelError
from rankscope.findings.laws import LawResult
from rankscope.sources.operations import Line, Node
from rankscope.wiring.culprits import MAKING, declared_line, first_leak, mask_line, mask_of, node_line
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import SOFTMAX, Piece
from rankscope.wiring.slopes import slopes_of
from rankscope.wiring.subject import Subject, differs
from rankscope.wiring.texts import site_of

_CAUSAL_NAMES = re.compile(r"GPT|CausalLM|LanguageModel|LMHead", re.IGNORECASE)
_POSITIONS = re.compile(r"(^|[._])(pos|places?|wpe|pe$|rope|rotary|alibi)|position|relative", re.IGNORECASE)

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
        """``still``: tokens do not mix; ``causal``; ``nearly``: much more past than future; ``both``."""
        past, future = self.share(future=False), self.share(future=True)
        if future == 0:
            return "causal" if past else "still"
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
    """No row of a block moves if a later token does; looked at where most blocks, or the name of the model, say so."""
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
        causal = sum(one.kind != "both" for one in readings)
        named = len(subject.stacks) == 1 and bool(_CAUSAL_NAMES.search(type(subject.model).__name__))
        if not readings or not (named or 2 * causal >= len(readings)):
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


def _leak(subject: Subject, reading: _Reading, axis: int) -> LawResult:
    piece = reading.piece
    token = min(t for _, t in reading.future)
    where = piece.slice_at(1 - axis, token)
    texts, tokens = piece.state.shape[axis], piece.state.shape[1 - axis]
    forbidden = (torch.arange(tokens) < token).expand(texts, tokens)
    node = first_leak(piece, where, forbidden, axis)
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
    if node is not None and node.kind in SOFTMAX and piece.region is not None:
        if _misses_argument(subject, piece):
            return piece.place.line or node.line
        masks = mask_of(piece.region, node)
        if masks is not None:
            return _line_of_mask(subject, piece, masks)
    return node_line(piece, node)


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
    if given is not None and whole is not None:
        calls = [call for call in whole.calls if call.path == piece.place.path]
        for node in calls[0].inputs if calls else ():
            if node.shape == given.shape and torch.equal(node.value.double(), given.value.double()):
                made = [one for one in whole.above((node,)) if one.kind in MAKING and one.line is not None]
                if made:
                    return min(made, key=lambda one: one.id).line
                if node.line is not None:
                    return node.line
    return mask_line(piece, masks)


def _misses_argument(subject: Subject, piece: Piece) -> bool:
    """Whether other blocks of the stack are given more tensors than this one."""
    many = [_tensors(one) for one in subject.stack_of(piece.place.stack)]
    return _tensors(piece) < max(many)


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


@law("order")
def order(subject: Subject) -> LawResult:
    """Tokens in the opposite order, or equal tokens, where the model has something that tells positions."""
    if not subject.base.is_finite:
        return result("order", "not checked", "output not finite")
    if not subject.stacks or not subject.token_inputs:
        return result("order", "not checked", "no blocks" if not subject.stacks else "no positions")
    stack = subject.stacks[0]
    root = subject.root_of(stack.name)
    positions = _positions(subject.model)
    if root is None or root.ndim != 3 or root.shape[1 - subject.text_axes[stack.name]] < 3:
        return result("order", "not checked", "one token")
    axis = subject.text_axes[stack.name]
    counts_texts = subject.token_axis_by_positions(stack.name) == axis
    if counts_texts and positions:
        return _order_lost(subject, positions)
    if any(one for one in subject.batch.inputs if "position" in one):
        return result("order", "holds")
    flipped = dict(subject.batch.inputs)
    for name in subject.token_inputs:
        flipped[name] = flipped[name].flip(1 - subject.input_axis)
    try:
        ran = subject.run(replace(subject.batch, inputs=flipped))
    except ModelError as error:
        return result("order", "not checked", "failed", what=str(error))
    last = [(one, two) for one, two in zip(subject.base.states, ran.states, strict=False)]
    before, after = last[-1] if last else (None, None)
    if before is None or after is None or before.shape != after.shape or before.ndim != 3:
        return result("order", "not checked", "one token")
    # a function of a set takes its results along, so that sums over tokens, and of their squares, stay
    sums = [
        torch.cat([one.double().sum(1 - axis), one.double().square().sum(1 - axis)])
        for one in (before, after)
    ]
    gap = float((sums[0] - sums[1]).abs().amax() / sums[0].abs().amax().clamp_min(1e-30))
    tokens = float(before.double().std(dim=1 - axis).amax())
    if gap > 10 * subject.clearly or tokens == 0.0:
        return result("order", "holds", number=gap, floor=10 * subject.clearly)
    return _order_lost(subject, positions) if positions else result("order", "meant", "set function")


def _order_lost(subject: Subject, positions: list[str]) -> LawResult:
    return result(
        "order",
        "broken",
        "order lost",
        site=positions[0],
        line=declared_line(subject.model, positions[0]),
        what=positions[0],
        number=0.0,
    )


def _positions(model: nn.Module) -> list[str]:
    """Tables of positions that hold something, by name."""
    held = [*model.named_parameters(), *model.named_buffers()]
    return [
        name
        for name, value in held
        if _POSITIONS.search(name)
        and value.is_floating_point()
        and value.numel() > 1
        and bool((value != 0).any())
    ]


@law("reach")
def reach(subject: Subject) -> LawResult:
    """Heads by what their maps move in the block; tokens and channels by what they move in the output."""
    if not subject.base.is_finite:
        return result("reach", "not checked", "output not finite")
    heads = _dead_head(subject)
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
            if dead:
                found.append((piece, node, dead, len(slopes)))
    if not found or not alive:
        return None  # a design that starts with branches of zero writes nothing anywhere
    piece, node, dead, many = found[0]
    if len(dead) == many and sum(len(one[2]) == one[3] for one in found) * 2 >= len(subject.pieces):
        return None  # whole branches are zero in most blocks: so they start
    behind = _projection(piece, node)
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
