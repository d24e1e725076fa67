"""What stands on padding moves no real token, where a model is told which tokens are padding.

The ends of the texts are marked as padding, by the mask that the model takes, by lengths, or by the id that its table
keeps for padding. Then in every block by itself the states on padding are moved, and real tokens must stay. Blocks
after the first are given what the model gives them, with its masks.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.errors import ModelError
from rankscope.findings.laws import LawResult
from rankscope.sources import Batch
from rankscope.sources.loaded import inputs_of
from rankscope.sources.operations import Node
from rankscope.wiring.culprits import first_leak, is_own_code
from rankscope.wiring.law import law, result
from rankscope.wiring.piece import Piece
from rankscope.wiring.subject import Subject, differs
from rankscope.wiring.texts import site_of
from rankscope.wiring.tokens import line_of_argument, mixing_line

_TAKEN = {"attention_mask": 1, "src_key_padding_mask": 0, "key_padding_mask": 0, "padding_mask": 0}
"""Masks of padding by their usual names, and what stands in them on tokens."""


@dataclass(frozen=True, slots=True)
class _Marks:
    """A way to tell a model which tokens are padding.

    Args:
        is_clear: whether it can mean nothing else, so that a model that does not heed it is at fault.
        is_content: whether the tokens themselves tell, so that they cannot be changed.
        is_compared: whether the model was seen to compare its tokens with the id of padding.
    """

    name: str
    batch: Batch
    is_clear: bool
    is_content: bool = False
    is_compared: bool = False


@law("padding")
def padding(subject: Subject) -> LawResult:
    """Moves states on padding in every block alone, then contents of padding in the inputs."""
    if not subject.stacks:
        return result("padding", "not checked", "no blocks")
    stack = subject.stacks[0]
    root = subject.root_of(stack.name)
    axis = subject.text_axes[stack.name]
    if root is None or root.ndim != 3 or root.shape[1 - axis] < 3 or not subject.token_inputs:
        return result("padding", "not checked", "one token" if subject.token_inputs else "no mask")
    tokens = subject.batch.inputs[subject.token_inputs[0]].shape[1 - subject.input_axis]
    count = max(tokens // 4, 1)
    front = root.shape[1 - axis] - tokens
    if front < 0:
        return result("padding", "not checked", "no mask")
    last: LawResult | None = None
    for side in ("right", "left"):
        places = range(tokens - count, tokens) if side == "right" else range(count)
        for marks in _ways(subject, list(places), tokens):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of masks that nobody has given
                found = _tried(subject, marks, [front + one for one in places], list(places), axis, side)
            if found is not None and found.state == "broken":
                return found
            last = last or found
            if found is not None:
                break
    return last or result("padding", "not checked", "no mask")


def _tried(
    subject: Subject, marks: _Marks, rows: list[int], places: list[int], axis: int, side: str
) -> LawResult | None:
    """What one way of marking shows; None where the model does not run on it, or does not heed it."""
    try:
        ran, pieces = subject.pieces_of(marks.batch)
    except ModelError:
        return None
    if not ran.is_finite:
        return None
    stack = subject.stacks[0].name
    pieces = tuple(one for one in pieces if one.place.stack == stack)
    leaks: list[tuple[Piece, Tensor, Tensor, float]] = []
    sound = 0
    for piece in pieces:
        if not piece.is_usable or piece.root_shape is None:
            continue
        shape = piece.state.shape
        is_padding = torch.zeros(shape[1 - axis], dtype=torch.bool)
        is_padding[rows] = True
        where = (is_padding.unsqueeze(0) if axis == 0 else is_padding.unsqueeze(1)).unsqueeze(-1)
        after = piece.run(piece.noise(where))
        if after is None or piece.base is None or after.shape != piece.base.shape:
            continue
        forbidden = (~is_padding).expand(shape[axis], shape[1 - axis])
        gap = (after.double() - piece.base.double()).norm(dim=-1)
        gap = (gap if axis == 0 else gap.mT) * forbidden
        share = float(gap.amax() / piece.base.double().norm(dim=-1).amax().clamp_min(1e-300))
        if share > (1e-10 if piece.region is not None else subject.clearly):
            leaks.append((piece, where, forbidden, share))
        elif piece.mixes(1 - axis):
            sound += 1
    if leaks:
        is_clear = marks.is_clear and is_own_code(subject.model)
        is_clear = is_clear and (len(subject.stacks) == 1 or marks.is_compared)
        if not sound and not (is_clear and side == "right"):
            return None
        piece, where, forbidden, share = leaks[0]
        node = first_leak(piece, where, forbidden)
        return result(
            "padding",
            "broken",
            "padding read",
            block=piece.place.block_of(node),
            site=site_of(piece, None if node is None else node.path),
            line=line_of_argument(subject, piece, node, pieces) or mixing_line(subject, piece, node),
            number=share,
            floor=0.0,
            what=marks.name,
        )
    if not sound:
        return None
    return None if side == "left" else _outside(subject, marks, ran.outputs, places)


def _outside(subject: Subject, marks: _Marks, before: tuple[Tensor, ...], places: list[int]) -> LawResult:
    """Other contents on padding, in the inputs: what is returned for real tokens, and for whole texts, stays."""
    holds = result("padding", "holds", number=0.0, floor=subject.clearly, what=marks.name)
    if len(subject.stacks) > 1:
        return holds
    if marks.is_content:
        return _longer(subject, marks, before, places) or holds
    inputs = dict(marks.batch.inputs)
    drawn = torch.Generator().manual_seed(3)
    tokens = 0
    for name in subject.token_inputs:
        value = inputs[name].clone()
        by_token = value.movedim(1 - subject.input_axis, 0)
        tokens = len(by_token)
        order = torch.randperm(len(by_token), generator=drawn)
        if value.is_floating_point():
            noise = torch.randn(by_token[places].shape, generator=drawn, dtype=torch.float64)
            by_token[places] = by_token[places] + noise.to(value)
        else:
            by_token[places] = by_token[order[places]].roll(1, 1 if by_token.ndim > 1 else 0)
        inputs[name] = value
    try:
        ran = subject.run(replace(marks.batch, inputs=inputs))
    except ModelError:
        return holds
    real = [one for one in range(tokens) if one not in places]
    for one, two in zip(before, ran.outputs, strict=False):
        if one.shape != two.shape or one.ndim < 2:
            continue
        moved = differs(one, two, subject.clearly)
        axis = 1 - subject.input_axis
        if one.ndim == 3 and one.shape[axis] == tokens:
            moved = moved.index_select(axis, torch.tensor(real))
        elif one.ndim != 2:
            continue
        if bool(moved.any()) and is_own_code(subject.model) and bool(one.isfinite().all()):
            share = float((one - two).abs().amax() / one.abs().amax())
            return result(
                "padding", "broken", "padding read", number=share, floor=subject.clearly, what=marks.name
            )
    return holds


def _longer(
    subject: Subject, marks: _Marks, before: tuple[Tensor, ...], places: list[int]
) -> LawResult | None:
    """More padding behind the texts, where the tokens themselves say what is padding."""
    inputs, axis = dict(marks.batch.inputs), 1 - subject.input_axis
    if set(inputs) != set(subject.token_inputs) or len(inputs) != 1 or not is_own_code(subject.model):
        return None
    name, value = next(iter(inputs.items()))
    tokens = value.shape[axis]
    more = value.narrow(axis, tokens - 1, 1)
    longer = torch.cat([value, *[more] * len(places)], axis)
    try:
        ran = subject.run(replace(marks.batch, inputs={name: longer}))
    except ModelError:
        return None
    real = tokens - len(places)
    for pair in zip(before, ran.outputs, strict=False):
        one, two = pair
        if one.ndim == 3 and one.shape[axis] == tokens and two.shape[axis] == longer.shape[axis]:
            one, two = (part.narrow(axis, 0, real) for part in pair)
        elif one.ndim != 2:
            continue
        if one.shape == two.shape and bool(differs(one, two, 10 * subject.clearly).any()):
            share = float((one - two).abs().amax() / one.abs().amax())
            return result(
                "padding", "broken", "padding read", number=share, floor=10 * subject.clearly, what=marks.name
            )
    return None


def _ways(subject: Subject, places: list[int], tokens: int) -> Iterator[_Marks]:
    """Ways to tell the model that some places are padding in every text, those that are sure first."""
    inputs, axis = subject.batch.inputs, subject.input_axis
    texts = subject.texts
    shape = (texts, tokens) if axis == 0 else (tokens, texts)

    def marked(value: Tensor, token_axis: int, off: float) -> Tensor:
        found = value.clone()
        found.movedim(token_axis, 0)[places] = torch.as_tensor(off).to(found)
        return found

    for name, value in inputs.items():
        is_mask = name not in subject.token_inputs and value.ndim == 2
        if not is_mask or tuple(value.shape) not in (shape, shape[::-1]):
            continue
        polarity = _polarity(value)
        if polarity is not None:
            # torch's own masks have texts first even where states have tokens first
            where = 1 - axis if tuple(value.shape) == shape and texts != tokens else 1
            # a memory is masked by the same marks as the texts that it is made from
            alike = [
                one
                for one, other in inputs.items()
                if other.shape == value.shape and torch.equal(other, value)
            ]
            if name != alike[0]:
                continue
            marks = dict.fromkeys(alike, marked(value, where, polarity))
            changed = replace(subject.batch, inputs=inputs | marks)
            is_other = any(word in one.lower() for one in alike for word in _OTHERS)
            is_clear = any("pad" in one or one in _TAKEN for one in alike) or (
                not is_other
                and _ends_in_padding(
                    value if tuple(value.shape) == shape and axis == 0 else value.mT, polarity
                )
            )
            yield _Marks(" and ".join(alike), changed, is_clear)
    for name, value in inputs.items():
        if (
            value.ndim == 1
            and "len" in name.lower()
            and not value.is_floating_point()
            and places[-1] == tokens - 1
        ):
            less = value.clamp(max=tokens - len(places))
            yield _Marks(name, replace(subject.batch, inputs=inputs | {name: less}), True)
    takes = inputs_of(subject.model)
    for name, on in _TAKEN.items():
        if name in takes and name not in inputs:
            value = (
                torch.ones(texts, tokens, dtype=torch.long)
                if on
                else torch.zeros(texts, tokens, dtype=torch.bool)
            )
            changed = replace(subject.batch, inputs=inputs | {name: marked(value, 1, 1 - on)})
            yield _Marks(name, changed, False)
    yield from _by_id(subject, places)


def _by_id(subject: Subject, places: list[int]) -> Iterator[_Marks]:
    tables = [one for one in subject.model.modules() if isinstance(one, nn.Embedding)]
    kept = dict.fromkeys(one.padding_idx for one in tables if one.padding_idx is not None)
    yield from _by_comparison(subject, places, set(kept))
    for off in kept:
        inputs = dict(subject.batch.inputs)
        changed = False
        for name in subject.token_inputs:
            if not inputs[name].is_floating_point():
                value = inputs[name].clone()
                value.movedim(1 - subject.input_axis, 0)[places] = off
                inputs[name], changed = value, True
        if changed:
            yield _Marks(
                "padding_idx",
                replace(subject.batch, inputs=inputs),
                _pads_with(subject, off) and not any(one in inputs_of(subject.model) for one in _TAKEN),
                is_content=True,
            )


def _by_comparison(subject: Subject, places: list[int], known: set[int]) -> Iterator[_Marks]:
    """Ids that the model compares its tokens with, as in ``ids != 0``, in a batch whose texts end with that id."""
    graph = subject.whole_graph if is_own_code(subject.model) else None
    for node in () if graph is None else graph.nodes:
        off = node.args[1] if node.kind in ("eq", "ne") and len(node.args) > 1 else None
        if not isinstance(off, int) or off in known or not isinstance(node.args[0], Node):
            continue
        compared = node.args[0].value
        name = next(
            (one for one in subject.token_inputs if _is_equal(subject.batch.inputs[one], compared)), None
        )
        if name is None or not _pads_with(subject, off, name):
            continue
        known.add(off)
        value = subject.batch.inputs[name].clone()
        value.movedim(1 - subject.input_axis, 0)[places] = off
        is_clear = not any(one in inputs_of(subject.model) for one in _TAKEN)
        marked = replace(subject.batch, inputs=subject.batch.inputs | {name: value})
        yield _Marks("padding_idx", marked, is_clear, is_content=True, is_compared=True)


def _is_equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.to(two), two)


def _pads_with(subject: Subject, off: int, only: str | None = None) -> bool:
    """Whether texts of the batch end with an id, some earlier than others, and have it nowhere else."""
    for name in subject.token_inputs if only is None else (only,):
        value = subject.batch.inputs[name]
        if value.is_floating_point() or value.ndim != 2:
            continue
        is_off = (value if subject.input_axis == 0 else value.mT) == off
        ends = is_off.flip(1).cumprod(1).sum(1)
        if 0 < int(is_off.sum()) == int(ends.sum()) and int(ends.max()) < is_off.shape[1]:
            return True
    return False


_OTHERS = (
    "type",
    "segment",
    "label",
    "index",
    "position",
    "observ",
    "target",
    "loss",
    "weight",
    "role",
    "side",
)
"""Marks of tokens by these names say something else than padding, also where they end as that does."""


def _ends_in_padding(value: Tensor, off: float) -> bool:
    """Whether a mask, texts first, leaves out the ends of some texts, and nothing of another one."""
    is_off = value.double() == off
    ends = is_off.flip(1).long().cumprod(1).sum(1)
    many = is_off.sum(1)
    return bool((many == ends).all()) and bool((many == 0).any()) and 0 < int(many.amax()) < value.shape[1]


def _polarity(value: Tensor) -> float | None:
    """What stands on padding in a mask: the rarer of its two values; None for what is no mask."""
    values = set(value.double().unique().tolist())
    if value.is_floating_point() and all(one == 0 or one <= -1e4 for one in values) and 0.0 in values:
        return min((one for one in values if one), default=-torch.inf)
    if not values <= {0.0, 1.0}:
        return None
    return 0.0 if float(value.double().mean()) >= 0.5 else 1.0
