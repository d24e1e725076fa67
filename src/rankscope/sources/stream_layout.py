"""Blocks found by running a call: modules that hand a state of one shape on to each other, or entries of a list.

Names and classes are not asked. A chain of modules in which what leaves one is, number for number, what enters the
next are blocks, whether they stand in a list, in a dict, in stages, or are attributes, and one that is called again
counts again. Where the entries of a list are bare lists of sublayers, no module returns the state after a block: there
the state is what enters the first sublayer of the next one. Entries of which only some mix tokens are sublayers of
blocks: a mixer with what follows it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import RankscopeError
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.live import run_batch, untouched
from rankscope.sources.paths import is_inside, lists_of
from rankscope.sources.roles import children, is_attention, is_callable, is_norm, leaf, matrices
from rankscope.sources.runs import holds_attention
from rankscope.sources.structure import part_in
from rankscope.sources.sublayers import attention_of, mlp_of
from rankscope.sources.taps import first_tensor, plain_code

BY_RUN = "found by running it"
_SAMPLE = 4096
_MOST = 0.5
"""A chain of several blocks is preferred to one module around them if it holds this share of its weights."""


@dataclass(frozen=True, slots=True, eq=False)
class _Print:
    """Enough of a tensor to tell it from another one."""

    shape: torch.Size
    total: float
    sample: Tensor

    @classmethod
    def of(cls, value: object, axes: int = 3) -> "_Print | None":
        found = first_tensor(value)
        if found is None or found.ndim < axes:
            return None
        flat = found.detach().reshape(-1)
        return cls(found.shape, float(flat.double().sum()), flat[:: max(len(flat) // _SAMPLE, 1)].clone())

    def equals(self, other: "_Print | None") -> bool:
        return (
            other is not None
            and self.shape == other.shape
            and self.total == other.total
            and torch.equal(self.sample, other.sample)
        )


@dataclass(slots=True, eq=False)
class _Event:
    """One call of a module: inside which other call it was made, and the states that entered and left it."""

    path: str
    module: nn.Module
    owner: "_Event | None"
    entered: _Print | None
    left: _Print | None = None


def layout_by_run(model: nn.Module, batch: Batch) -> Layout | None:
    """The blocks of a model that one call of it shows; None where it shows none."""
    events = _events(model, batch)
    chain, bare = _best_chain(events), _bare(model, events)
    if chain is not None and not _is_in_one_entry(chain, bare):
        return Layout(family=BY_RUN, stacks=(_of_chain(model, chain, events),))
    found = bare or _of_sublayers(events)
    return None if found is None else Layout(family=BY_RUN, stacks=(found,))


def running_sites(model: nn.Module, layout: Layout, batch: Batch | None) -> Layout:
    """The layout without sublayers that do not put out every token once per call of their block, such as those that a
    block calls for one text at a time: what they put out is no state of the batch. A final norm that the model has and
    does not call, although it calls the blocks, is none."""
    if batch is None:
        return layout
    sizes: dict[str, list[int]] = {}

    def leave(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            found = first_tensor(output)
            sizes.setdefault(path, []).append(0 if found is None else found[..., 0].numel())

        return hook

    wanted = {
        path: module
        for stack in layout.stacks
        for path in (*stack.blocks, *stack.attention, *stack.mlp, stack.final_norm)
        if path and isinstance(module := model.get_submodule(path), nn.Module)
    }
    if not _ran(model, batch, [(module, None, leave(path)) for path, module in wanted.items()]):
        return layout

    def runs(block: str, path: str) -> bool:
        return not path or block not in sizes or sizes.get(path) == sizes[block]

    def kept(stack: Stack, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            path if runs(block, path) else "" for block, path in zip(stack.blocks, paths, strict=True)
        )

    def called_norm(stack: Stack) -> str | None:
        is_idle = stack.blocks[-1] in sizes and stack.final_norm not in sizes
        return None if is_idle else stack.final_norm

    stacks = tuple(
        replace(
            stack,
            attention=kept(stack, stack.attention),
            mlp=kept(stack, stack.mlp),
            final_norm=called_norm(stack),
        )
        for stack in layout.stacks
    )
    return replace(layout, stacks=stacks)


def without_idle(model: nn.Module, layout: Layout, batch: Batch) -> Layout:
    """The layout without blocks that never run where others of their stack do."""
    ran: set[str] = set()

    def left(path: str) -> Callable[..., None]:
        return lambda *_: ran.add(path)

    listed = [one for one in layout.stacks if one.program is None and not one.enters]
    wanted = dict.fromkeys(path for stack in listed for path in stack.blocks)
    if not _ran(model, batch, [(model.get_submodule(path), None, left(path)) for path in wanted]):
        return layout

    def running(stack: Stack) -> Stack:
        kept = [place for place, path in enumerate(stack.blocks) if path in ran]
        if stack not in listed or stack.calls != len(stack.blocks) or len(kept) in (0, len(stack.blocks)):
            return stack
        blocks, attention, mlp = (
            tuple(paths[place] for place in kept) for paths in (stack.blocks, stack.attention, stack.mlp)
        )
        return replace(stack, blocks=blocks, calls=len(kept), attention=attention, mlp=mlp)

    return replace(layout, stacks=tuple(map(running, layout.stacks)))


def _events(model: nn.Module, batch: Batch, axes: int = 3) -> list[_Event]:
    """Every call of a module; ``axes`` is the least number of axes of a state."""
    events: list[_Event] = []
    stack: list[_Event] = []

    def enter(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            event = _Event(path, module, stack[-1] if stack else None, _Print.of((args, kwargs), axes))
            events.append(event)
            stack.append(event)

        return hook

    def leave(_: nn.Module, __: object, output: object) -> None:
        stack.pop().left = _Print.of(output, axes)

    hooks = [
        (module, enter(path), leave)
        for path, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    return events if _ran(model, batch, hooks) else []


def _ran(model: nn.Module, batch: Batch, hooks: list[tuple[nn.Module, Any, Any]]) -> bool:
    """Whether a model ran on a batch, with a hook before and one after each of these modules."""
    with ExitStack() as undo:
        for module, before, after in hooks:
            if before is not None:
                undo.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            undo.callback(module.register_forward_hook(after).remove)
        undo.enter_context(plain_code(model))
        undo.enter_context(untouched(model))
        try:
            run_batch(model, batch)
        except RankscopeError:
            raise
        except Exception:  # its own words come when it runs in earnest
            return False
    return True


def _best_chain(events: list[_Event]) -> list[_Event] | None:
    owners = dict.fromkeys(event.owner for event in events)  # in order: of two alike the first is taken
    chains = [chain for owner in owners for chain in _chains(events, owner)]
    if not chains:
        return None
    most = max(map(_weight, chains))
    several = [chain for chain in chains if len(chain) > 1 and _weight(chain) >= _MOST * most]
    if several:
        return max(several, key=lambda chain: (_weight(chain), len(chain)))
    alone = [
        chain
        for chain in chains
        if _weight(chain) >= _MOST * most
        and attention_of(chain[0].module)
        and not _is_added(chain[0], events)
    ]
    return min(alone, key=_weight, default=None)


def _is_in_one_entry(chain: list[_Event], bare: Stack | None) -> bool:
    """Whether a chain is the sublayers of one of several bare entries: one that lacks the skips which others have."""
    entries = () if bare is None or bare.calls < 2 else bare.blocks
    return any(all(is_inside(event.path, entry) for event in chain) for entry in entries)


def _is_added(event: _Event, events: list[_Event]) -> bool:
    """Whether what a module leaves is added to another state outside of it: it is a sublayer, and no block."""
    if event.entered is None or event.left is None:
        return True
    known = _by_start(events)
    states = [state for other in events for state in (other.entered, other.left) if state is not None]
    return any(_has_sum(known, state, event.left) for state in states)


def _by_start(events: list[_Event]) -> dict[tuple[float, ...], list[Tensor]]:
    """All states that were seen, by their first numbers."""
    found: dict[tuple[float, ...], list[Tensor]] = {}
    for event in events:
        for state in (event.entered, event.left):
            if state is not None:
                found.setdefault(_start(state.sample), []).append(state.sample)
    return found


def _start(sample: Tensor) -> tuple[float, ...]:
    return tuple(sample[:16].tolist())


def _has_sum(known: dict[tuple[float, ...], list[Tensor]], one: _Print, other: _Print) -> bool:
    """Whether the sum of two states is one that was seen."""
    if one.shape != other.shape or not (bool(one.sample.any()) and bool(other.sample.any())):
        return False
    both = one.sample + other.sample
    return any(torch.equal(both, whole) for whole in known.get(_start(both), ()))


def _chains(events: list[_Event], owner: _Event | None) -> Iterator[list[_Event]]:
    """Calls made one after the other inside one call, of which each reads what the one before has left."""
    chain: list[_Event] = []
    for event in events:
        if event.owner is not owner or not _is_block(event):
            continue
        if chain and not (chain[-1].left is not None and chain[-1].left.equals(event.entered)):
            yield chain
            chain = []
        chain.append(event)
    if chain:
        yield chain


def _is_block(event: _Event) -> bool:
    if event.entered is None or event.left is None or event.entered.shape != event.left.shape:
        return False
    return matrices(event.module) >= 2 and not is_norm(leaf(event.path), event.module)


def _weight(chain: list[_Event]) -> int:
    return sum(p.numel() for module in {event.module for event in chain} for p in module.parameters())


def _of_chain(model: nn.Module, chain: list[_Event], events: list[_Event]) -> Stack:
    blocks = list(dict.fromkeys(event.path for event in chain))
    return Stack(
        name="blocks",
        blocks=tuple(blocks),
        calls=len(chain),
        attention=tuple(part_in(path, attention_of(model.get_submodule(path))) for path in blocks),
        mlp=tuple(part_in(path, mlp_of(model.get_submodule(path))) for path in blocks),
        final_norm=_norm_after(chain[-1], events),
    )


def _norm_after(last: _Event, events: list[_Event]) -> str | None:
    """The norm that reads the last state."""
    after = events[events.index(last) + 1 :]
    for event in after:
        if (
            is_norm(leaf(event.path), event.module)
            and last.left is not None
            and last.left.equals(event.entered)
        ):
            return event.path
    return None


def _bare(model: nn.Module, events: list[_Event]) -> Stack | None:
    """The stack of a list whose entries are never called themselves."""
    found: list[Stack] = []
    for at, holder in lists_of(model):
        entries = [(name, child) for name, child in children(holder) if not is_callable(child)]
        if len(entries) < 1 or len(entries) != len(list(children(holder))):
            continue
        stack = _of_entries(model, [f"{at}.{name}" for name, _ in entries], events)
        if stack is not None:
            found.append(stack)
    return max(
        found, key=lambda stack: sum(map(matrices, map(model.get_submodule, stack.blocks))), default=None
    )


def _of_entries(model: nn.Module, entries: list[str], events: list[_Event]) -> Stack | None:
    """The stack of bare entries: every state is what enters the first module that runs in an entry."""
    modules = [list(model.get_submodule(entry).modules()) for entry in entries]
    first, before = list[_Event](), -1
    for entry, own in zip(entries, modules, strict=True):
        inside = [place for place, event in enumerate(events) if is_inside(event.path, entry)]
        if not inside:
            return None
        start = _with_shared(events, inside[0], before, own)
        if events[start].entered is None:
            return None
        first.append(events[start])
        before = start
    owners = {event.owner for event in first}
    states = [event.entered for event in first]
    owner = next(iter(owners))
    if len(owners) != 1 or owner is None or len({state.shape for state in states if state is not None}) != 1:
        return None
    shape = states[0].shape if states[0] is not None else None
    last = max(place for place, event in enumerate(events) if event.module in modules[-1])
    after = (
        event
        for event in events[last + 1 :]
        if event.owner is owner and event.entered is not None and event.entered.shape == shape
    )
    end = next(after, None)
    if end is None and (owner.left is None or owner.left.shape != shape):
        return None
    is_final = end is not None and is_norm(leaf(end.path), end.module)
    starts = block_starts([holds_attention(model.get_submodule(entry)) for entry in entries])
    return Stack(
        name="blocks",
        blocks=tuple(entries[start] for start in starts),
        calls=len(starts),
        attention=("",) * len(starts),
        mlp=("",) * len(starts),
        final_norm=end.path if end is not None and is_final else None,
        enters=(*(first[start].path for start in starts), "" if end is None else end.path),
        holder=owner.path,
    )


def _with_shared(events: list[_Event], place: int, before: int, own: list[nn.Module]) -> int:
    """Where an entry begins: modules that it shares with another one have the path of that, and may run first."""
    while (
        place - 1 > before
        and events[place - 1].module in own
        and own.index(events[place - 1].module) < own.index(events[place].module)
    ):
        place -= 1
    return place


def _of_sublayers(events: list[_Event]) -> Stack | None:
    """The stack of blocks whose sublayers are called one by one, such as out of a list per kind of sublayer.

    A block begins where the state enters: at its mixer, or at the norm that the mixer reads. Every block must call as
    many modules as the others, so that the end of the last one is known.
    """
    known = _by_start(events)
    for owner in dict.fromkeys(event.owner for event in events):
        calls = [event for event in events if event.owner is owner and event.entered is not None]
        starts = [_entry(calls, place, known) for place, event in enumerate(calls) if _mixes(event)]
        steps = {second - first for first, second in pairwise(starts)}
        if owner is None or len(steps) != 1 or min(steps) < 2:
            continue
        after = starts[-1] + steps.pop()
        end = calls[after] if after < len(calls) else None
        last = owner.left if end is None else end.entered
        paths = tuple(calls[start].path for start in starts)
        shapes = {state.shape for start in starts if (state := calls[start].entered) is not None}
        if after > len(calls) or len(set(paths)) < len(paths) or last is None or shapes != {last.shape}:
            continue
        return Stack(
            name="blocks",
            blocks=paths,
            calls=len(paths),
            attention=("",) * len(paths),
            mlp=("",) * len(paths),
            final_norm=end.path if end is not None and is_norm(leaf(end.path), end.module) else None,
            enters=(*paths, "" if end is None else end.path),
            holder=owner.path,
        )
    return None


def stack_of_like_layers(model: nn.Module, batch: Batch) -> Stack | None:
    """The stack of layers of one class that one module calls in turn and that each mix tokens.

    A state may have two axes: nodes of one graph and their features. Layers with a skip around them are no blocks: what
    they leave is not the state.
    """
    events, calls = _events(model, batch, axes=2), dict[tuple[int, type], list[_Event]]()
    for event in events:
        if _keeps_shape(event):
            calls.setdefault((id(event.owner), type(event.module)), []).append(event)
    several = [found for found in calls.values() if len({event.path for event in found}) > 1]
    for chain in sorted(several, key=_weight, reverse=True):
        if any(_is_added(event, events) for event in chain):
            continue
        modules = {event.path: event.module for event in chain}
        if all(found := _which_mix(model, batch, modules).values()) and len(found) == len(modules):
            blocks = tuple(modules)
            return Stack(
                name="blocks",
                blocks=blocks,
                calls=len(chain),
                attention=("",) * len(blocks),
                mlp=("",) * len(blocks),
                final_norm=_norm_after(chain[-1], events),
            )
    return None


def _keeps_shape(event: _Event) -> bool:
    """Whether a layer of the width of its state was called, which is no convolution over a grid and no norm."""
    state, module = event.entered, event.module
    if (
        state is None
        or event.left is None
        or state.shape != event.left.shape
        or is_norm(leaf(event.path), module)
    ):
        return False
    if any(isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d) for part in module.modules()):
        return False
    return any(weight.ndim == 2 and state.shape[-1] in weight.shape for weight in module.parameters())


def _which_mix(model: nn.Module, batch: Batch, modules: dict[str, nn.Module]) -> dict[str, bool]:
    """Of every layer that ran, whether the second half of its tokens depends on the first half."""
    found = dict[str, bool]()

    def leave(path: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given = first_tensor((args, kwargs))
            if given is None or path in found:
                return
            half = given.shape[-2] // 2
            moved = given.detach().clone()
            moved[..., :half, :] += 1.0
            again = [
                first_tensor(module.forward(*_with(args, given, one), **_with(kwargs, given, one)))
                for one in (given, moved)
            ]
            ends = [one[..., half:, :] for one in again if one is not None]
            found[path] = len(ends) == 2 and half > 0 and not torch.equal(*ends)

        return hook

    with ExitStack() as undo:
        for path, module in modules.items():
            undo.callback(module.register_forward_hook(leave(path), with_kwargs=True).remove)
        undo.enter_context(torch.no_grad())
        _ran(model, batch, [])
    return found


def _with(arguments: Any, old: Tensor, new: Tensor) -> Any:
    """Arguments of a call with one tensor in the place of another."""
    if isinstance(arguments, dict):
        return {name: new if one is old else one for name, one in arguments.items()}
    return tuple(new if one is old else one for one in arguments)


def _mixes(event: _Event) -> bool:
    return is_attention(leaf(event.path), event.module) or holds_attention(event.module)


def _entry(calls: list[_Event], place: int, known: dict[tuple[float, ...], list[Tensor]]) -> int:
    """Where the state enters that a mixer reads: a norm before it belongs to it, unless what it leaves is the state,
    to which the mixer's output is added."""
    mixer = calls[place].left
    while place and mixer is not None:
        norm, here = calls[place - 1], calls[place].entered
        if here is None or _has_sum(known, here, mixer):
            break
        if not (is_norm(leaf(norm.path), norm.module) and norm.left is not None and norm.left.equals(here)):
            break
        place -= 1
    return place


def block_starts(mixes: list[bool]) -> list[int]:
    """Where blocks begin in a list of sublayers, of which some mix tokens and the others follow one that does.

    What comes again and again is a block; where nothing does, a block is a mixer with all that follows until the next.

    >>> block_starts([True, False, True, False]), block_starts([False, True, False] * 2)
    ([0, 2], [0, 3])
    >>> block_starts([True, True, True, False]), block_starts([True, True]), block_starts([False, False])
    ([0, 1, 2], [0, 1], [0, 1])
    """
    count = len(mixes)
    if all(mixes) or not any(mixes):
        return list(range(count))
    period = next(size for size in range(2, count + 1) if mixes == (mixes[:size] * count)[:count])
    if period < count and count % period == 0:
        return list(range(0, count, period))
    return [0, *[place for place, one in enumerate(mixes) if one][1:]]
