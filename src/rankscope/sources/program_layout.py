"""Blocks found in the operations of one run, where no module stands for a block.

The stream is the chain of operations that every way from the first state to the answer goes through and that return a
state of one shape. Between two neighbours of the chain tokens meet or they do not: that is seen by moving one token of
the first and looking at the others of the second. A block is a step in which tokens meet with all that follows until
the next such step; the last one ends as those before it end.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from rankscope.errors import RankscopeError
from rankscope.sources.batch import Batch
from rankscope.sources.family import Stack
from rankscope.sources.live import run_batch, untouched
from rankscope.sources.program import Operation, Program, Step, Steps, tensors_of
from rankscope.sources.taps import plain_code

_ADDS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_ATTENDS = {"softmax", "scaled_dot_product_attention", "multi_head_attention_forward"}
_INPUT = -1
_MOVED = 1e-9
"""Tokens that move by less than this, relative to the largest number, are those of the run before."""


@dataclass(frozen=True, slots=True, eq=False)
class _Op:
    name: str
    reads: frozenset[int]
    result: Tensor

    @property
    def is_state(self) -> bool:
        return self.result.ndim == 3 and self.result.is_floating_point()


@dataclass(slots=True, eq=False)
class _Flow:
    """What reads what in one run; tensors are kept, so that no other one takes an id."""

    ops: list[_Op] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)  # by id of a tensor
    written: dict[int, int] = field(
        default_factory=dict
    )  # by place in memory: the last operation that wrote there
    versions: dict[int, int] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)

    def step(self, ran: Operation) -> Tensor:
        if any(one.is_inference() for one in (*ran.reads, *ran.results)):
            raise ValueError("inference tensors do not tell when they are written into")
        reads = frozenset(number for leaf in ran.reads for number in self._sources(leaf))
        for one in (*ran.reads, *ran.results):
            place = one.untyped_storage().data_ptr()
            if self.versions.get(place, 0) != one._version:
                self.written[place] = ran.number
                self.versions[place] = one._version
        for one in ran.results:
            self.made[id(one)] = ran.number
        self.kept += [*ran.reads, *ran.results]
        self.ops.append(_Op(ran.name, reads, ran.first.detach().clone()))
        return ran.first

    def _sources(self, leaf: Tensor) -> list[int]:
        found = [self.made[id(leaf)]] if id(leaf) in self.made else []
        writer = self.written.get(leaf.untyped_storage().data_ptr())
        return found if writer is None or writer in found else [*found, writer]


def stack_by_program(model: nn.Module, batch: Batch, *, attends: bool = False) -> Stack | None:
    """The blocks of a model that has no modules for them; None where the run shows none, or none that attends."""
    flow = _Flow()
    answer = _ran(model, batch, flow.step)
    if answer is None:
        return None
    sink = max((flow.made.get(id(leaf), _INPUT) for leaf in answer), default=_INPUT)
    chain = _chain(flow.ops, sink)
    if len(chain) < 2:
        return None
    meets = _meetings(model, batch, flow.ops, chain)
    if meets is None:
        return None
    places = _states([flow.ops[place].name for place in chain], meets)
    if places is None:
        return None
    states = tuple(chain[place] for place in places)
    names = tuple(op.name for op in flow.ops[: states[-1] + 1])
    if (attends or len(states) == 2) and not _ATTENDS & set(names[states[0] :]):
        return None  # tokens meet once, and not by attention: a pooling, a recurrent layer
    return _of_program(names, states)


def stack_of_states(model: nn.Module, batch: Batch, states: Sequence[Tensor]) -> Stack | None:
    """The blocks between states that are known from another run of the same batch; None where one is not found.

    Blocks need not be alike then: one of them may lack a skip.
    """
    flow, places = _Flow(), list[int]()
    if _ran(model, batch, flow.step) is None:
        return None
    for state in states:
        start = places[-1] + 1 if places else 0
        found = (
            number
            for number, op in enumerate(flow.ops[start:], start)
            if op.result.shape == state.shape and torch.equal(op.result, state)
        )
        place = next(found, None)
        if place is None:
            return None
        places.append(place)
    return _of_program(tuple(op.name for op in flow.ops[: places[-1] + 1]), tuple(places))


def _of_program(names: tuple[str, ...], states: tuple[int, ...]) -> Stack:
    return Stack(
        name="blocks",
        blocks=("",),
        calls=len(states) - 1,
        attention=("",),
        mlp=("",),
        final_norm=None,
        program=Program(names, states),
    )


def _ran(model: nn.Module, batch: Batch, step: Step) -> list[Tensor] | None:
    """The tensors of a model's answer, with every operation handed over; None where it does not run."""
    with plain_code(model), untouched(model):
        steps = Steps(step)
        enter = model.register_forward_pre_hook(lambda *_: steps.start())
        leave = model.register_forward_hook(lambda *_: steps.stop(), always_call=True)
        try:
            answer = run_batch(model, batch)
        except RankscopeError:
            raise
        except Exception:  # its own words come when it runs in earnest
            return None
        finally:
            enter.remove()
            leave.remove()
    return list(tensors_of(answer))


def _chain(ops: list[_Op], sink: int) -> list[int]:
    """The operations of one shape that all ways from the first of them to the answer go through."""
    if sink == _INPUT:
        return []
    before = {sink}
    for number in range(sink, -1, -1):
        if number in before:
            before |= ops[number].reads
    best: list[int] = []
    behind = set[int]()  # what starts behind another start sees a part of the ways only
    for root in sorted(before):
        if ops[root].reads & behind:
            behind.add(root)
        if root in behind or not ops[root].is_state:
            continue
        behind.add(root)
        waist = _waist(ops, root, before)
        shapes = Counter(ops[number].result.shape for number in waist if ops[number].is_state)
        shape = max(shapes, key=lambda one: shapes[one])
        found = [number for number in waist if ops[number].is_state and ops[number].result.shape == shape]
        best = max(best, found, key=len)
    return best


def _waist(ops: list[_Op], root: int, before: set[int]) -> list[int]:
    """Where every way from an operation to the answer goes through, in order."""
    reached, last = {root}, dict[int, int]()
    for number in sorted(before):
        sources = ops[number].reads & reached
        if number > root and sources:
            reached.add(number)
            last |= dict.fromkeys(sources, number)
    found, furthest = list[int](), root
    for number in sorted(reached):
        if furthest <= number:
            found.append(number)
        furthest = max(furthest, last.get(number, number))
    return found


def _meetings(model: nn.Module, batch: Batch, ops: list[_Op], chain: list[int]) -> list[bool] | None:
    """Between which neighbours of the chain a token reaches others; None where the run is not the same again."""
    first = _moved(model, batch, ops, chain, lambda x: x[0, 0])
    last = _moved(model, batch, ops, chain, lambda x: x[-1, -1])
    if first is None or last is None:
        return None
    return [one or other for one, other in zip(first, last, strict=True)]


def _moved(
    model: nn.Module, batch: Batch, ops: list[_Op], chain: list[int], row: Callable[[Tensor], Tensor]
) -> list[bool] | None:
    found = list[bool]()
    is_same = True
    generator = torch.Generator().manual_seed(17)
    places = set(chain)

    def step(ran: Operation) -> Tensor:
        nonlocal is_same
        number, result = ran.number, ran.first
        if number > chain[-1]:
            return result
        if number >= len(ops) or ops[number].name != ran.name or ops[number].result.shape != result.shape:
            is_same = False
        if not is_same or number not in places:
            return result
        known = ops[number].result
        if number != chain[0]:
            off = (result - known).abs()
            row(off).zero_()
            found.append(bool(off.max() > _MOVED * known.abs().max()))
        other = known.clone()
        noise = torch.randn(known.shape[-1], generator=generator, dtype=torch.float64).to(known)
        row(other).add_(noise * known.std())
        if ran.writes:  # what else holds it must see it too
            return result.copy_(other)
        return other

    if _ran(model, batch, step) is None or not is_same or len(found) != len(chain) - 1:
        return None
    return found


def _states(names: list[str], meets: list[bool]) -> list[int] | None:
    """Where in a chain the states before, between and after blocks stand.

    >>> _states(["embedding", "add", "add", "add", "add", "layer_norm"], [True, False, True, False, False])
    [0, 2, 4]
    >>> _states(["embedding", "add", "layer_norm", "add", "layer_norm"], [True, False, False, False])
    [0, 4]
    >>> _states(["add", "layer_norm", "linear", "layer_norm", "linear"], [False, True, False, True])
    [0, 2, 4]
    """
    starts = [place for place, meets_here in enumerate(meets) if meets_here]
    if not starts:
        return None
    blocks = [names[start + 1 : end + 1] for start, end in pairwise(starts)]
    rest = names[starts[-1] + 1 :]
    if not blocks:
        return [*starts, starts[0] + _length(rest)]
    fitting = [len(block) for block in reversed(blocks) if rest[: len(block)] == block]
    if fitting:
        return [*starts, starts[-1] + fitting[0]]
    # without skips what is done before tokens meet, such as a norm, is part of the chain too, and begins the block
    lead = blocks[-1][len(rest) :]
    first = starts[0] - len(lead)
    if first < 0 or any(block != rest + lead for block in blocks) or names[first + 1 : starts[0] + 1] != lead:
        return None
    return [*(start - len(lead) for start in starts), len(names) - 1]


def _length(names: list[str]) -> int:
    """How many of the steps behind a lone meeting of tokens are its block's: what follows the last sum is a norm
    before the head, unless the same follows the sums before it."""
    sums = [place for place, name in enumerate(names) if name in _ADDS]
    if not sums:
        return len(names)
    tail = names[sums[-1] + 1 :]
    is_usual = len(sums) > 1 and names[sums[-2] + 1 : sums[-1]] == tail
    return len(names) if is_usual else sums[-1] + 1
