"""A model on one batch, run as it is and with something moved; what its blocks were given, and where that is written.

Every run is in evaluation mode with the same random numbers, so that what differs between two runs is what was moved.
The model, its mode, buffers, gradients, hooks and all random states are afterwards as they were.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map

from rankscope.errors import ConfigError, ModelError, RankscopeError, is_out_of_memory
from rankscope.sources import Batch, Seen
from rankscope.sources.arguments import tensors_in
from rankscope.sources.calls import given_calls
from rankscope.sources.family import Layout, Stack
from rankscope.sources.given import checked_module, inside
from rankscope.sources.layout import layout_of
from rankscope.sources.live import copied_inputs, run_batch
from rankscope.sources.loaded import dtype_of
from rankscope.sources.named_axes import holds_tokens
from rankscope.sources.operations import Graph, Line, Node, captured
from rankscope.sources.operations.lines import line_now
from rankscope.sources.operations.watch import leaf_name
from rankscope.sources.plain_run import as_model_errors
from rankscope.sources.roles import block_width
from rankscope.sources.safety import first_line
from rankscope.sources.streams import in_one_stream
from rankscope.sources.taps import entering, first_tensor, tapped
from rankscope.sources.writes import check_inputs_stay
from rankscope.wiring.piece import Piece, Place
from rankscope.wiring.rest import at_rest

MOST_FORWARDS, MOST_BACKWARDS = 40, 4
"""Passes that all laws together may take; parts of a pass count as parts."""

CLEARLY = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}
"""Relative change of a state that is not rounding. Nothing that is computed from the same numbers in the same order
differs at all; other shapes or another routing of experts change the order of sums, by some units of rounding."""

WHOLE = Stack(name="model", blocks=("",), calls=1, attention=("",), mlp=("",), final_norm=None)
"""Stands for a model in which no blocks are found."""

LossFn = Callable[[nn.Module, Any], Tensor]
"""A scalar from a model and what it was given."""


class NoRoom(RankscopeError):  # noqa: N818 - reads as a sentence
    """The passes that all laws may take together are used up."""


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """One run of a model.

    Args:
        roots: what entered the first block of each stack.
        states: what left each call of a block, by its place among the pieces.
        outputs: the floating-point tensors that the model returned.
    """

    roots: Mapping[str, Tensor]
    states: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]

    @property
    def is_finite(self) -> bool:
        """Whether everything that it returned is a number."""
        return all(bool(one.isfinite().all()) for one in self.outputs)


@dataclass(slots=True, eq=False)
class _Call:
    stack: Stack
    number: int
    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stream: str
    line: Line | None


@dataclass(eq=False)
class Subject:
    """A model and one call of it, as the laws see it."""

    model: nn.Module
    batch: Batch
    given: Any
    """The batch as the caller gave it, which is what a loss is called with."""

    loss: LossFn | None = None
    was_training: bool = False
    _calls: list[_Call] = field(default_factory=list)
    _whole: int = 0
    _parts: float = 0.0
    backwards: int = 0

    @property
    def forwards(self) -> int:
        """Passes so far, with parts of passes summed up."""
        return self._whole + ceil(self._parts - 1e-9)

    @property
    def clearly(self) -> float:
        """A relative change that is no rounding of the model's own numbers."""
        coarse = dtype_of(self.model) if self.batch.autocast is None else self.batch.autocast[1]
        return CLEARLY.get(coarse, 0.1)

    def count_part(self, share: float) -> None:
        """Count a part of a pass; an error where there is no room for it."""
        if self._whole + self._parts + share > MOST_FORWARDS:
            raise NoRoom(f"{MOST_FORWARDS} passes of the model are used up")
        self._parts += share

    # runs

    @cached_property
    def base(self) -> Ran:
        """The run on the batch as it is; the calls of the blocks are kept."""
        return self._run(self.batch, keep=True)

    def run(self, batch: Batch, *, seed: int = 0) -> Ran:
        """The run on another batch, or with other random numbers."""
        _ = self.base
        self._check_room()
        return self._run(batch, seed=seed)

    def _check_room(self) -> None:
        if self._whole + self._parts + 1 > MOST_FORWARDS:
            raise NoRoom(f"{MOST_FORWARDS} passes of the model are used up")

    def _run(self, batch: Batch, *, seed: int = 0, keep: bool = False) -> Ran:
        roots: dict[str, Tensor] = {}
        states: list[Tensor | None] = []
        calls: list[_Call] = []
        counts = dict.fromkeys((stack.name for stack in self.stacks), 0)

        def enter(stack: Stack, path: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                state = entering(args, kwargs, block_width(module))
                if state is not None and stack.name not in roots:
                    roots[stack.name] = state.detach().clone()
                counts[stack.name] += 1
                states.append(None)
                places.append(len(states) - 1)
                if keep:
                    line = line_now(run_batch.__code__, skip=1)
                    calls.append(_kept(stack, counts[stack.name], path, module, args, kwargs, state, line))

            return hook

        def leave(_: nn.Module, __: object, output: object) -> None:
            found = first_tensor(output)
            states[places.pop()] = None if found is None else found.detach().clone()

        places: list[int] = []
        with ExitStack() as undo:
            for stack in self.stacks:
                for path in dict.fromkeys(stack.called):
                    module = self.model.get_submodule(path)
                    undo.callback(
                        module.register_forward_pre_hook(enter(stack, path), with_kwargs=True).remove
                    )
                    undo.callback(module.register_forward_hook(leave).remove)
            undo.enter_context(at_rest(self.model, seed=seed))
            copies = copied_inputs(self.model, batch)
            with as_model_errors():
                output = run_batch(self.model, batch, copies)
        if keep:
            check_inputs_stay(self.model, batch, copies)
            self._calls = calls
        outputs = tuple(one.detach().clone() for one in _floating(output))
        return Ran(roots, tuple(states), outputs)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts every call of the model, whoever makes it."""

        def count(*_: object) -> None:
            self._whole += 1

        handle = self.model.register_forward_pre_hook(count)
        try:
            yield
        finally:
            handle.remove()

    # blocks

    @cached_property
    def layout(self) -> Layout | None:
        """Where the blocks are; None where none are found."""
        try:
            with at_rest(self.model):
                found = layout_of(self.model, batch=self.batch)
                return in_one_stream(self.model, found, self.batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The runs of blocks; where none are found, the model itself, which then has no number."""
        return (WHOLE,) if self.layout is None else self.layout.stacks

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The calls of the blocks, to be run again by themselves."""
        _ = self.base
        return self._pieces(self._calls, self.batch)

    def pieces_of(self, batch: Batch) -> tuple[Ran, tuple[Piece, ...]]:
        """The run on another batch, and the calls of the blocks in it."""
        _ = self.base
        self._check_room()
        kept = self._calls
        try:
            ran = self._run(batch, keep=True)
            return ran, self._pieces(self._calls, batch)
        finally:
            self._calls = kept

    def _pieces(self, calls: list[_Call], batch: Batch) -> tuple[Piece, ...]:
        share = 1.0 / max(len(calls), 1)
        found = [
            Piece(
                module=call.module,
                args=call.args,
                kwargs=call.kwargs,
                stream=call.stream,
                place=Place(
                    call.stack.name,
                    0 if call.stack is WHOLE else call.number,
                    call.path,
                    call.line,
                    _inner(call.stack),
                    order,
                ),
                count=lambda many: self.count_part(many * share),
                clearly=self.clearly,
            )
            for order, call in enumerate(calls)
            if call.stream and call.stack.program is None and not call.stack.enters
        ]
        for order, call in enumerate(calls):
            if call.stack.program is not None or call.stack.enters:
                found += self._cut_out(call, order, batch)
        return tuple(found)

    def _cut_out(self, call: _Call, order: int, batch: Batch) -> list[Piece]:
        """Blocks for which no module stands, as parts of the operations of the module that runs them.

        Their states are known from a run; the operations that make them are found by their numbers.
        """
        states: list[Tensor] = []

        def receive(_: str, __: int, site: str, state: Tensor) -> None:
            if site == "block":
                states.append(state.clone())

        self._check_room()
        layout = Layout(family="", stacks=(call.stack,))
        try:
            with at_rest(self.model), tapped(self.model, layout, receive, texts=None):
                run_batch(self.model, batch)
            self.count_part(1.0)
            with at_rest(self.model):
                taken = captured(call.module, call.args, call.kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return []
        nodes = _made(taken.graph.nodes, states)
        if nodes is None:
            return []
        many = max(len(nodes) - 1, 1)
        return [
            Piece(
                module=call.module,
                args=call.args,
                kwargs=call.kwargs,
                stream=call.stream,
                place=Place(call.stack.name, number, call.path, two.line, (), order),
                count=lambda parts: self.count_part(parts / many),
                clearly=self.clearly,
                shared=(taken, one, two),
            )
            for number, (one, two) in enumerate(pairwise(nodes), 1)
        ]

    def state_of(self, ran: Ran, piece: Piece) -> Tensor | None:
        """What left a block in a run; None where no module stands for the block."""
        return None if piece.shared is not None else ran.states[piece.place.order]

    def root_of(self, stack: str) -> Tensor | None:
        """What entered a stack in the run on the batch as it is."""
        has_modules = any(one.name == stack and one.program is None for one in self.stacks)
        if has_modules and stack in self.base.roots:
            return self.base.roots[stack]
        first = next(iter(self.stack_of(stack)), None)
        return None if first is None else first.state

    def stack_of(self, name: str) -> tuple[Piece, ...]:
        """The pieces of one stack in order."""
        return tuple(one for one in self.pieces if one.place.stack == name)

    @cached_property
    def whole_graph(self) -> Graph | None:
        """The operations of the whole model; None where they cannot be written down."""
        try:
            self.count_part(1.0)
            with at_rest(self.model):
                return captured(self.model, *self.batch.arguments()).graph
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return None

    # axes

    @cached_property
    def token_inputs(self) -> tuple[str, ...]:
        """The inputs that hold tokens: ids, or vectors."""
        return tuple(name for name, value in self.batch.inputs.items() if holds_tokens(name, value))

    @cached_property
    def text_axes(self) -> Mapping[str, int]:
        """Along which axis of what enters each stack texts lie.

        Three things tell: blocks mix tokens, positions make equal tokens different, and what is returned per text has
        as many rows as there are texts. What most of them say is so, and the one that contradicts is a fault: blocks
        that mix texts, or positions that count them. Where two contradict each other, or nothing tells, texts lie where
        the first axis of the inputs goes, as usual.
        """
        found = {}
        for stack in self.stacks:
            pieces = [
                one for one in self.stack_of(stack.name) if one.is_usable and one.root_shape is not None
            ]
            votes = [sum(one.mixes(axis) for one in pieces) for axis in (0, 1)]
            positions = self.token_axis_by_positions(stack.name)
            mixed = None if votes[0] == votes[1] else int(votes[1] > votes[0])
            if not self.token_inputs and stack.name in self.moved_slices:
                found[stack.name] = self.moved_slices[stack.name]  # pictures come one by one
                continue
            told = [one for one in (positions, mixed, self._pooled(stack.name)) if one is not None]
            most = next((axis for axis in (0, 1) if 2 * told.count(axis) > len(told)), None)
            found[stack.name] = self.moved_slices.get(stack.name, 0) if most is None else 1 - most
        return found

    def _pooled(self, stack: str) -> int | None:
        """The axis of tokens of a model that returns one row per text; None where it does not, or both are as many."""
        main = next((self.batch.inputs[name] for name in self.token_inputs), None)
        if main is None or main.ndim < 2 or main.shape[0] == main.shape[1]:
            return None
        rows = {len(one) for one in self.base.outputs if one.ndim == 2}
        first = self.moved_slices.get(stack)
        if first is None or len(rows & set(main.shape[:2])) != 1:
            return None
        return 1 - first if main.shape[0] in rows else first

    def token_axis_by_positions(self, stack: str) -> int | None:
        """The axis along which equal tokens become different; None where none or both are."""
        root = self.equal_root(stack)
        if root is None or root.ndim != 3 or min(root.shape[:2]) < 2:
            return None
        size = float(root.abs().amax()) or 1.0
        varies = [bool((root - root.narrow(axis, 0, 1)).abs().amax() > 1e-3 * size) for axis in (0, 1)]
        return varies.index(True) if sum(varies) == 1 else None

    def equal_root(self, stack: str) -> Tensor | None:
        """What enters a stack where all tokens are equal; None where the inputs hold no tokens, or it is not seen."""
        ran = self.equal_tokens
        if ran is None or stack in ran.roots or all(one.program is None for one in self.stacks):
            return None if ran is None else ran.roots.get(stack)
        return self._program_roots.get(stack)

    @cached_property
    def _program_roots(self) -> Mapping[str, Tensor]:
        """The same of stacks whose blocks no module stands for: the state that enters their first block."""
        inputs = self._equal_inputs()
        try:
            _, pieces = self.pieces_of(replace(self.batch, inputs=inputs))
        except (ModelError, NoRoom):
            return {}
        return {one.place.stack: one.state for one in reversed(pieces)}

    @cached_property
    def equal_tokens(self) -> Ran | None:
        """The run on equal tokens in all places of all texts; None where the inputs hold none."""
        if not self.token_inputs:
            return None
        try:
            return self.run(replace(self.batch, inputs=self._equal_inputs()))
        except ModelError:
            return None

    def _equal_inputs(self) -> dict[str, Tensor]:
        inputs = dict(self.batch.inputs)
        for name in self.token_inputs:
            value = inputs[name]
            first = value[(slice(0, 1), slice(0, 1))] if value.ndim > 1 else value[:1]
            inputs[name] = first.expand_as(value).clone()
        return inputs

    @cached_property
    def input_axis(self) -> int:
        """The axis of texts in the inputs that hold tokens."""
        for stack in self.stacks:
            moved = self.moved_slices.get(stack.name)
            if moved is not None:
                # the first slice of the inputs' first axis is the first slice of this axis of the state
                return 0 if self.text_axes[stack.name] == moved else 1
        return 0

    @cached_property
    def moved_slices(self) -> Mapping[str, int]:
        """Along which axis of what enters each stack the first axis of the inputs lies.

        Not known where no module stands for a block: what is seen to enter is the input there, and not yet the state.
        """
        ran = self.with_moved_slice(0, 0)
        found = {}
        seen = {stack.name for stack in self.stacks if stack.program is None}
        for name, before in self.base.roots.items():
            if name not in seen:
                continue
            after = None if ran is None else ran.roots.get(name)
            if after is None or after.shape != before.shape or before.ndim != 3:
                continue
            moved = differs(before, after, self.clearly).any(-1)
            others = [bool(moved.narrow(axis, 1, moved.shape[axis] - 1).any()) for axis in (0, 1)]
            if bool(moved.any()) and others.count(False) == 1:
                found[name] = others.index(False)
        return found

    @cached_property
    def _slices(self) -> dict[tuple[int, int], Ran | None]:
        return {}

    def with_moved_slice(self, axis: int, place: int) -> Ran | None:
        """The run with other tokens in one slice of the inputs; None where there are none to move, or it fails."""
        if (axis, place) not in self._slices:
            names = [name for name in self.movable if self.batch.inputs[name].ndim > axis]
            ran = None
            if names and all(self.batch.inputs[name].shape[axis] > 1 for name in names):
                inputs = dict(self.batch.inputs)
                for name in names:
                    inputs[name] = other_slice(inputs[name], axis, place)
                try:
                    ran = self.run(replace(self.batch, inputs=inputs))
                except ModelError:
                    ran = None
            self._slices[axis, place] = ran
        return self._slices[axis, place]

    @cached_property
    def movable(self) -> tuple[str, ...]:
        """Inputs that can be given other contents: tokens, or pictures and sound."""
        given = [
            (name, one) for name, one in self.batch.inputs.items() if one.is_floating_point() and one.ndim > 1
        ]
        most = max((one.ndim for _, one in given), default=0)
        return self.token_inputs or tuple(name for name, one in given if one.ndim > 2 or most == 2)

    @property
    def texts(self) -> int:
        """How many texts there are."""
        for name in self.movable:
            axis = self.input_axis if name in self.token_inputs else 0
            if self.batch.inputs[name].ndim > 1:
                return self.batch.inputs[name].shape[axis]
        return 1


def differs(before: Tensor, after: Tensor, clearly: float) -> Tensor:
    """The elements that differ by more than rounding, relative to the size of their row; NaN twice is the same."""
    if before.shape != after.shape:
        return torch.ones(before.shape, dtype=torch.bool, device=before.device)
    a, b = before.double(), after.double()
    is_same = (a == b) | (a.isnan() & b.isnan())
    size = torch.maximum(a.abs(), b.abs()).nan_to_num(0.0, posinf=0.0, neginf=0.0)
    size = size.amax(-1, keepdim=True) if size.ndim else size
    return ~is_same & ~((a - b).abs() <= clearly * size)


def other_slice(value: Tensor, axis: int, place: int) -> Tensor:
    """A tensor with other contents in one slice: ids from among the ids, numbers of like size."""
    drawn = torch.Generator().manual_seed(1)
    found = value.clone()
    slot = found.select(axis, place)
    if value.is_floating_point():
        known = value.detach().double().cpu()
        spread = float(known.std(correction=0)) or abs(float(known.mean())) or 1.0
        noise = torch.randn(slot.shape, generator=drawn, dtype=torch.float64)
        slot.copy_((known.mean() + spread * noise).to(slot))
        return found
    ids, places = value.cpu().unique(return_inverse=True)
    if len(ids) == 1:
        ids = torch.stack([ids[0], (ids[0] == 0).to(ids)])
    steps = torch.randint(1, len(ids), places.shape, generator=drawn)
    slot.copy_(ids[(places + steps) % len(ids)].to(value).select(axis, place))
    return found


def subject_of(model: nn.Module | Seen, batch: Any = None, loss: LossFn | None = None) -> Subject:
    """A subject from what a caller gives: a model and a batch in any form, or a recording."""
    if isinstance(model, Seen):
        if batch is not None:
            raise ConfigError("a recording holds its own batches; leave out the batch, or give the model")
        seen = model.closed()
        first = seen.batches[0]
        module, given = seen.model, first
    else:
        module, _ = inside(checked_module(model))
        if isinstance(batch, Seen):
            if batch.closed().model is not module:
                raise ConfigError("the recording is of another model; pass the recording alone")
            first = given = batch.batches[0]
        else:
            if batch is None:
                raise ConfigError("give the model a batch: rs.check(model, batch), or a recording alone")
            with at_rest(module):
                ready = next(iter(given_calls(module, batch).calls), None)
            if ready is None:
                raise ConfigError("an empty collection of inputs was given; give at least one batch")
            first, given = _as_it_is(module, ready.batch, batch), batch
    if any(value.numel() == 0 for value in first.inputs.values()):
        raise ConfigError("the batch holds no tokens; give two texts of three tokens or more")
    short = shortened(module, first, *_most(module))
    subject = Subject(model=module, batch=short, given=given, loss=loss, was_training=module.training)
    subject._whole = int(short is not first)  # it was tried whether the model runs on a part
    return subject


def _as_it_is(model: nn.Module, ready: Batch, given: Any) -> Batch:
    """A matrix of numbers is one text; where the model does not take that, its rows are texts of features."""
    if not isinstance(given, Tensor) or given.ndim != 2 or not given.is_floating_point():
        return ready
    raw = replace(ready, inputs=dict.fromkeys(ready.inputs, given), is_token=None, labels=())
    for batch in (ready, raw):
        try:
            with at_rest(model):
                run_batch(model, batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue
        return batch
    return ready


MOST_TEXTS, MOST_TOKENS = 4, 48
"""So much of a batch is looked at: a law that is broken is broken there, and all values of operations are kept."""


MOST_WORK = 5e9
"""Tokens times parameters of a pass: of a large model fewer tokens are looked at, ``LEAST_TEXTS`` texts of
``LEAST_TOKENS`` at the least. All passes together take about as long then as those of 25 million parameters."""

LEAST_TEXTS, LEAST_TOKENS = 3, 12


def _most(model: nn.Module) -> tuple[int, int]:
    """So many texts, and tokens of each, are looked at."""
    room = MOST_WORK / max(sum(one.numel() for one in model.parameters()), 1)
    if room >= MOST_TEXTS * MOST_TOKENS:
        return MOST_TEXTS, MOST_TOKENS
    return LEAST_TEXTS, min(max(int(room / LEAST_TEXTS), LEAST_TOKENS), MOST_TOKENS)


def shortened(model: nn.Module, batch: Batch, most_texts: int, most_tokens: int) -> Batch:
    """The first texts and tokens of a long batch; the whole one where its axes are not clear, or the part fails."""
    main = next((one for name, one in batch.inputs.items() if holds_tokens(name, one)), None)
    if main is None or main.ndim < 2:
        return batch
    texts, tokens = main.shape[:2]
    if texts == tokens or (texts <= most_texts and tokens <= most_tokens) or texts > tokens:
        return batch
    sizes = {texts: min(texts, most_texts), tokens: min(tokens, most_tokens)}

    def cut(name: str, value: Tensor) -> Tensor:
        axes = range(min(value.ndim, 2)) if holds_tokens(name, value) else range(value.ndim)
        for axis in axes:
            value = value.narrow(axis, 0, sizes.get(value.shape[axis], value.shape[axis]))
        return value

    short = replace(
        batch,
        inputs={name: cut(name, value) for name, value in batch.inputs.items()},
        is_token=None,
        labels=(),
    )
    try:
        with at_rest(model):
            run_batch(model, short)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return batch
    return short


def checked_base(subject: Subject) -> None:
    """Raise one clear error where the model cannot be run, or returns nothing that can be looked at."""
    try:
        ran = subject.base
    except RankscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the model failed: {type(error).__name__}: {first_line(error)}") from error
    if not ran.outputs:
        raise ConfigError(
            f"{type(subject.model).__name__} returned no floating-point tensor; the laws look at what it computes: "
            "return a tensor, or a tuple, dict or dataclass with one"
        )


def _made(nodes: list[Node], states: list[Tensor]) -> list[Node] | None:
    """The operations that return some states, in order; None where one is not found."""
    found: list[Node] = []
    waiting = iter(nodes)
    for state in states:
        size = float(state.double().norm()) or 1.0
        for node in waiting:
            is_alike = node.value.shape == state.shape and node.value.is_floating_point()
            if is_alike and float((node.value.double() - state.double()).norm()) <= 1e-3 * size:
                found.append(node)
                break
        else:
            return None
    return found if len(found) > 1 else None


def _inner(stack: Stack) -> tuple[str, ...]:
    """The paths by which operations of a holder are told apart; empty where each call is one block."""
    return stack.blocks if stack.enters else ()


def _floating(output: object) -> list[Tensor]:
    return [one for one in tensors_in(output) if one.is_floating_point() and one.numel() > 0]


def _kept(
    stack: Stack,
    number: int,
    path: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    state: Tensor | None,
    line: Line | None,
) -> _Call:
    """Copies of what a block is called with; a tensor that stands in several places is one tensor in the copy too."""
    leaves, _ = tree_flatten_with_path((args, dict(kwargs)))
    stream = "" if state is None else next((leaf_name(where) for where, leaf in leaves if leaf is state), "")
    known: dict[int, Any] = {}

    def kept(leaf: Any) -> Any:
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().clone() if isinstance(leaf, Tensor) else _copied(leaf)
        return known[id(leaf)]

    args, kwargs = tree_map(kept, (args, dict(kwargs)))
    return _Call(stack, number, path, module, args, kwargs, stream, line)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied (a lock, a generator) is passed on as it is
        return value
