"""Every block of a model as a function of its tokens alone, without any code for the model.

A block is called again with what it was called with in a run of the model (masks, positions, other arguments), and with
other tokens in place of those that entered it.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_unflatten

from rankscope.errors import ModelError, RankscopeError, is_out_of_memory
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall, kept_call
from rankscope.sources.family import Stack
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.operations.raised import one_by_one
from rankscope.sources.operations.watch import leaf_name
from rankscope.sources.taps import first_tensor, plain_code


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlackBox:
    """One call of a block as a function of tokens, ``tokens dim``, in float64.

    Args:
        number: of the call, from 1.
        path: of the module.
    """

    number: int
    path: str
    call: BlockCall
    tokens: int
    dim: int

    def __call__(self, x: Tensor) -> Tensor:
        """What the block makes of these tokens."""
        state = self.call.tensors()[self.call.stream]
        given = x.reshape(state.shape)

        def renewed(path: Any, leaf: Any) -> Any:
            if leaf_name(path) == self.call.stream or leaf is state:
                return given
            # States and caches are written to by every call: each gets what the first call was given.
            return (
                leaf.clone() if isinstance(leaf, Tensor) else leaf if _is_plain(leaf) else copy.deepcopy(leaf)
            )

        flat, spec = tree_flatten_with_path((self.call.args, self.call.kwargs))
        args, kwargs = tree_unflatten([renewed(path, leaf) for path, leaf in flat], spec)
        with in_double():
            out = first_tensor(self.call.block(*args, **kwargs))
        if out is None:
            raise ModelError(f"block {self.number} ({self.path}) gives no tokens")
        return out.reshape(x.shape) if out.numel() == x.numel() else out


def black_boxes(model: nn.Module, stack: Stack, batch: Batch) -> list[BlackBox]:
    """The blocks of a stack in the order in which they run on the first text of a batch; the model is not changed."""
    name = type(model).__name__
    if stack.program is not None or stack.enters:
        raise ModelError(
            f"the blocks of {name} are no modules that are called with tokens; a black box needs such modules"
        )
    whole = copy.deepcopy(model).double()
    one_by_one(whole, model.modules())
    calls, outputs = list[tuple[str, BlockCall]](), list[Any]()
    handles = list[Any]()
    for path in stack.blocks:
        block = whole.get_submodule(path)

        def enter(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = path) -> None:
            calls.append((path, kept_call(block, args, kwargs, stack, texts=1)))

        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(block.register_forward_hook(lambda _, __, out: outputs.append(out)))
    try:
        with quiet(whole), plain_code(whole), in_double():
            run_batch(whole, _in_double(batch.part(0, 1)))
    except RankscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = (str(error).strip().splitlines() or ["no message"])[0]
        raise ModelError(
            f"{name} failed on the text {batch.labels[0]!r} in float64 with {type(error).__name__}: {said}; check that "
            "the inputs fit the model"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise ModelError(f"no block of {name} was called; name them with blocks=")
    for module in whole.modules():
        module.training = False
    found = list[BlackBox]()
    for number, ((path, call), out) in enumerate(zip(calls, outputs, strict=True), start=1):
        found.append(_box(number, path, call, out, name))
    return found


def _in_double(batch: Batch) -> Batch:
    numbers = {name: one.double() if one.is_floating_point() else one for name, one in batch.inputs.items()}
    return replace(batch, inputs=numbers)


def _box(number: int, path: str, call: BlockCall, out: Any, name: str) -> BlackBox:
    if not call.stream:
        raise ModelError(
            f"block {number} of {name} ({path}) is called without tokens; it is no map of tokens to tokens"
        )
    state = call.tensors()[call.stream]
    if state.ndim < 2 or state.shape[:-1].numel() < 2:
        raise ModelError(f"block {number} of {name} ({path}) was given one token; give a longer text")
    streams = [one for one in call.tensors().values() if one.shape == state.shape and one.is_floating_point()]
    given_on = [
        one
        for one in tree_leaves(_plain_output(out))
        if isinstance(one, Tensor) and one.shape == state.shape and one.is_floating_point()
    ]
    if len(streams) > 1 and len(given_on) > 1:
        raise ModelError(
            f"blocks of {name} pass on two streams of tokens ({path} takes and gives two of shape "
            f"{' x '.join(map(str, state.shape))}): such a block is no map of tokens to tokens"
        )
    after = first_tensor(out)
    if after is None or after.numel() != state.numel():
        shape = "nothing" if after is None else " x ".join(map(str, after.shape))
        raise ModelError(
            f"block {number} of {name} ({path}) maps tokens of shape {' x '.join(map(str, state.shape))} to {shape}: a "
            "layer gives as many tokens as it takes"
        )
    return BlackBox(number=number, path=path, call=call, tokens=state.shape[:-1].numel(), dim=state.shape[-1])


def _plain_output(out: Any) -> Any:
    """Output objects as what they hold."""
    if isinstance(out, dict):
        return list(out.values())
    return list(vars(out).values()) if is_dataclass(out) else out


def _is_plain(leaf: Any) -> bool:
    return isinstance(
        leaf, bool | int | float | complex | str | bytes | type(None) | torch.dtype | torch.device | type
    )


class _Doubled(TorchFunctionMode):
    """Steps that ask for float32 by name are done in float64: norms of many models do so whatever they are given."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def doubled(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(doubled, args), **{name: doubled(one) for name, one in (kwargs or {}).items()})


@contextmanager
def in_double() -> Iterator[None]:
    """Everything inside computes in float64, also what asks for float32."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Doubled():
            yield
    finally:
        torch.set_default_dtype(before)
