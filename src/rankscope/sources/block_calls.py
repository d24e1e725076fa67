"""What a block was called with, copied before the block could write into it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map

from rankscope.sources.family import Stack
from rankscope.sources.operations.watch import leaf_name
from rankscope.sources.roles import block_width
from rankscope.sources.taps import entering, has_tokens_first, unwrapped

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BlockCall:
    """One call of a block.

    Args:
        args: its positional arguments, ``kwargs`` those by keyword; tensors and caches are copies.
        stream: the name of the argument that holds the tokens, as in ``Graph.inputs``; empty where none does.
        tokens_first: whether that argument has tokens before texts.
    """

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stream: str
    tokens_first: bool

    def tensors(self) -> dict[str, Tensor]:
        """The tensors among the arguments by name."""
        leaves, _ = tree_flatten_with_path((self.args, self.kwargs))
        return {leaf_name(path): leaf for path, leaf in leaves if isinstance(leaf, Tensor)}

    def state(self) -> Tensor:
        """The tokens that entered, ``texts tokens dim``."""
        held = self.tensors()[self.stream]
        return held.transpose(0, 1) if self.tokens_first else held


@contextmanager
def entered_by_others(model: nn.Module, stack: Stack, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Lets other tokens enter the first block of a stack; whatever else the blocks are given stays as it is."""
    first = unwrapped(model).get_submodule(stack.called[0])

    def changed(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = entering(args, kwargs, block_width(block))
        if state is None:
            return None
        other = change(state)
        return tree_map(lambda leaf: other if leaf is state else leaf, (args, dict(kwargs)))

    handle = first.register_forward_pre_hook(changed, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def kept_call(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], stack: Stack, *, texts: int | None
) -> BlockCall:
    """A copy of what a block is called with; a tensor that stands in several places is one tensor in the copy too.

    ``texts`` is the number of texts; None where the first argument is the state and has texts before tokens.
    """
    state = args[0] if texts is None else entering(args, kwargs, block_width(block))
    leaves, _ = tree_flatten_with_path((args, kwargs))
    stream = (
        next((leaf_name(path) for path, leaf in leaves if leaf is state), "") if state is not None else ""
    )
    is_turned = (
        texts is not None
        and state is not None
        and state.ndim == 3
        and has_tokens_first(state, stack, "input", texts)
    )
    known: dict[int, Any] = {}

    def kept(leaf: Any) -> Any:
        if isinstance(leaf, _PLAIN):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().clone() if isinstance(leaf, Tensor) else _copied(leaf)
        return known[id(leaf)]

    args, kwargs = tree_map(kept, (args, dict(kwargs)))
    return BlockCall(block=block, args=args, kwargs=kwargs, stream=stream, tokens_first=is_turned)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied (a lock, a generator) is passed on as it is
        return value
