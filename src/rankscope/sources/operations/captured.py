"""One call of a block as a graph: a copy of the block in float64 runs, never the user's own."""

import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_unflatten

from rankscope.sources.operations.caches import caches_kept
from rankscope.sources.operations.graph import Graph, NotCaptured
from rankscope.sources.operations.raised import Copies, Memory, OwnEps, Walk
from rankscope.sources.operations.watch import Exact, leaf_name, watched


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """The graph of one call of a block, and the way back to the block's own weights.

    Args:
        module: the copy of the block in float64; it has not run itself, so that its buffers are those of the model.
        dtype: of the block's own weights.
        hooked: paths of modules inside whose hooks of others did not run in the copy.
        args: what the block was called with; ``kwargs`` likewise.
        changed: plain numbers of modules inside that the call has changed (``attn.calls``), and tensors that it has
            read and changed, by path, as they were before.
    """

    graph: Graph
    module: nn.Module
    dtype: torch.dtype
    hooked: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    _memories: tuple[Memory, Memory]
    changed: Mapping[str, float | Tensor]
    _walk: Walk

    def own(self, tensor: Tensor) -> Tensor:
        """The same numbers as a view of the model's own memory; a copy in the model's dtype where there is none."""
        found = self.view(tensor)
        if found is None:
            return tensor.detach().to(_lowered(tensor.dtype, self.dtype), copy=True)
        return found

    def view(self, tensor: Tensor) -> Tensor | None:
        """The same numbers as a view of the model's own memory; None where there is none."""
        first, second = self._memories
        with torch.inference_mode(False), torch.no_grad():
            between = second.own(tensor)  # of a buffer, which was copied once more for the run
            return first.own(tensor if between is None else between)

    def with_states(self, states: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call with other tensors under the names of ``graph.inputs``."""
        leaves, form = tree_flatten_with_path((self.args, dict(self.kwargs)))
        changed: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(
            [states.get(leaf_name(path), leaf) for path, leaf in leaves], form
        )
        return changed

    def again(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        exact: bool = True,
        held: Mapping[str, float | Tensor] | None = None,
    ) -> Any:
        """What a fresh copy in float64 returns for other arguments: an ordinary call, without anything watching.

        Args:
            exact: undo the block's own casts to fewer digits; otherwise they cost about 1e-7.
            held: other values of numbers and tensors that modules inside hold, by path.
        """
        copies = Copies(self._walk, shared=True)
        for name, value in (held or {}).items():
            path, _, last = name.rpartition(".")
            setattr(copies.module.get_submodule(path), last, value)
        with left_as_found(), caches_kept(self.module):
            given, named = copies.copied((args, dict(kwargs)))
            with OwnEps(self.dtype), Exact() if exact else nullcontext():
                return copies.module(*given, **named)


def captured(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
    """The operations of one call of a block, in float64.

    Arguments are copied and raised to float64 too, so that a block that writes into them leaves the caller's alone.
    """
    tensors = (one for one in (*module.parameters(), *tree_leaves((args, kwargs))) if isinstance(one, Tensor))
    dtype = next((one.dtype for one in tensors if one.is_floating_point()), torch.get_default_dtype())
    with torch.inference_mode(False), torch.no_grad():
        copies = Copies(module)
        walk = Walk(copies.module)
        running = Copies(walk, shared=True)  # a call may change buffers; those of the first copy stay
        with left_as_found(), caches_kept(module):
            given, named = running.copied(copies.copied((args, dict(kwargs))))
            held = held_tensors(running.module)
            with _alone(module), OwnEps(dtype):
                graph = watched(running.module, given, named)
        changed = _changed(graph, copies.module, running.module, held)
    return Captured(
        graph,
        copies.module,
        dtype,
        tuple(copies.hooked),
        args,
        kwargs,
        (copies.memory, running.memory),
        changed,
        walk,
    )


def held_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors that modules hold as buffers or plain attributes, by path."""
    return {
        f"{path}.{name}" if path else name: value
        for path, one in module.named_modules()
        for name, value in (*one._buffers.items(), *vars(one).items())
        if isinstance(value, Tensor)
    }


def _changed(
    graph: Graph, before: nn.Module, after: nn.Module, held: Mapping[str, Tensor]
) -> dict[str, float | Tensor]:
    """What a call has changed in a module that was equal to ``before``; ``held`` are the tensors that it began with.

    Tensors that it only writes, such as maps kept for a plot, are not meant.
    """
    outside = [node for node in graph.above(graph.outputs) if node.op is None]
    names, values = {node.name for node in outside}, {id(node.value) for node in outside}
    found: dict[str, float | Tensor] = {}
    now = held_tensors(after)
    for name, was in held_tensors(before).items():
        is_same = name in now and now[name].shape == was.shape and torch.equal(now[name], was)
        if not is_same and (name in names or id(held[name]) in values):
            found[name] = was
    for path, module in after.named_modules():
        numbers = vars(before.get_submodule(path))
        for name, value in vars(module).items():
            if type(value) in (bool, int, float) and numbers.get(name, value) != value:
                found[f"{path}.{name}" if path else name] = numbers[name]
    return found


@contextmanager
def _alone(module: nn.Module) -> Iterator[None]:
    """An error if a module of the model itself is called: a copy that still leads to it stands for nothing."""
    own = {id(one) for one in module.modules()}

    def hook(called: nn.Module, _: Any) -> None:
        if id(called) in own:
            raise NotCaptured(f"a copy of the block still calls the model's own {type(called).__name__}")

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _lowered(dtype: torch.dtype, model: torch.dtype) -> torch.dtype:
    """The dtype in which a number of the copy stands in the model."""
    if dtype == torch.float64:
        return model
    return model.to_complex() if dtype == torch.complex128 else dtype


@contextmanager
def left_as_found() -> Iterator[None]:
    """No gradients, float64 where code names no dtype; all switches and random states afterwards as before."""
    dtype, python, numbers = torch.get_default_dtype(), random.getstate(), np.random.get_state()
    with (
        torch.random.fork_rng(devices=()),
        torch.inference_mode(False),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of the model's own code, which has run before
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(python)
            np.random.set_state(numbers)
