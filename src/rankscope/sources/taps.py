"""Hooks on a live model that hand over every state as it appears, and say so when one did not appear."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import NotTapped, Option, RankscopeError, ShapeError
from rankscope.sources.family import Layout, Stack
from rankscope.sources.program import Operation, Program, Steps
from rankscope.sources.roles import block_width, every_module

Receive = Callable[[str, int, str, Tensor], None]
"""Called with stack, layer, site and the state ``(texts, tokens, dim)``; what it does not keep is gone."""


class Ambiguous(RankscopeError):  # noqa: N818 - reads as a sentence
    """As many texts as tokens, in a stack of which it is not known yet which axis of its states holds which."""


@dataclass(frozen=True, slots=True)
class Channels:
    """The numbers of channels that the convolutions of a block read, and those that its other maps and norms do."""

    convolved: frozenset[int]
    others: frozenset[int]

    @classmethod
    def of(cls, block: nn.Module) -> "Channels":
        parts = every_module(block)
        convolutions = [part for part in parts if isinstance(part, nn.Conv1d)]
        others = {
            size
            for part in parts
            if not isinstance(part, nn.Conv1d)
            for held in part._parameters.values()
            if held is not None and held.ndim > 1
            for size in held.shape
        }
        # some norms write their width as a number
        shapes = [getattr(part, "normalized_shape", ()) for part in parts]
        norms = {shape if isinstance(shape, int) else shape[-1] for shape in shapes if shape}
        return cls(frozenset(part.in_channels for part in convolutions), frozenset(others | norms))

    def come_first(self, state: Tensor) -> bool:
        """Whether a state of three axes is ``texts channels tokens``: convolutions read its second axis, and nothing
        reads its last."""
        return state.shape[1] in self.convolved and state.shape[2] not in self.others


@dataclass(slots=True)
class _Progress:
    """How far a forward pass has come in one stack."""

    stack: Stack
    channels: Channels
    calls: int = 0
    shape: tuple[int, int] = (1, -1)  # texts and tokens of the state that entered the first block
    is_turned: bool = False  # whether that state had tokens before texts
    fired: Counter[str] = field(default_factory=Counter)


@contextmanager
def tapped(
    model: nn.Module, layout: Layout, receive: Receive, *, texts: int | None
) -> Iterator[Callable[[], list[str]]]:
    """Hooks in place; yields the function to call after every forward pass.

    ``texts`` is the number of texts of each pass: the axis of a state that counts them is its first when it is handed
    over. With None every state is handed over as it is.

    The function raises ``NotTapped`` unless every expected state has come by, and makes ready for the next pass. Of
    several stacks some may not run at all (the vision half of a model that is given texts): it returns their names.
    Layers are counted by block calls, so a block that is shared between layers is seen once per layer. The fused path
    of ``torch.nn.TransformerEncoder`` and compiled code are switched off inside: they call no hooks.
    """
    progress = [
        _Progress(stack, Channels.of(model.get_submodule(stack.blocks[0]))) for stack in layout.stacks
    ]
    with ExitStack() as undo:
        undo.enter_context(plain_code(model))
        for one in progress:
            for handle in _hooks(model, one, receive, texts):
                undo.callback(handle.remove)

        def finished() -> list[str]:
            silent = [one.stack.name for one in progress if not one.fired]
            try:
                for one in progress:
                    if one.fired or len(silent) == len(progress):
                        _check_fired(one)
                return silent
            finally:
                for one in progress:
                    one.calls, one.fired = 0, Counter()

        yield finished


def _hooks(model: nn.Module, progress: _Progress, receive: Receive, texts: int | None) -> Iterator[Any]:
    stack = progress.stack
    width = block_width(model.get_submodule(stack.blocks[0]))

    def hand_over(site: str, layer: int, value: object) -> None:
        found = first_tensor(value)
        if found is None:
            return
        progress.fired[site if layer else "input"] += 1
        state = found.detach()
        if texts is not None:
            state = _by_text(state, progress, site if layer else "input", texts, width)
        receive(stack.name, layer, site, state)

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if progress.calls == 0:
            progress.shape, progress.is_turned = (1, -1), False
            hand_over("block", 0, entering(args, kwargs, width))
        progress.calls += 1

    def leave(site: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            # Parts may also run outside of block calls, a norm also on a pooled token.
            if progress.calls and not (site == "final" and progress.fired[site]):
                hand_over(site, progress.calls, output)

        return hook

    def is_due(layer: int) -> bool:
        return progress.calls == layer if layer < stack.calls else progress.fired["block"] == layer - 1

    def enters(layers: list[int]) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            layer = next(filter(is_due, layers), None)
            if layer is None:
                return  # a module that runs elsewhere too
            if layer == 0:
                progress.shape, progress.is_turned = (1, -1), False
            hand_over("block", layer, entering(args, kwargs, width))
            progress.calls = min(layer + 1, stack.calls)

        return hook

    if stack.program is not None:
        yield from _program_hooks(model, stack.program, hand_over, progress)
        return
    if stack.enters:
        for path in dict.fromkeys(stack.enters):
            if path:
                layers = [layer for layer, one in enumerate(stack.enters) if one == path]
                yield model.get_submodule(path).register_forward_pre_hook(enters(layers), with_kwargs=True)
            else:
                yield model.get_submodule(stack.holder).register_forward_hook(leave("block"))
    for path in () if stack.enters else stack.blocks:
        block = model.get_submodule(path)
        yield block.register_forward_pre_hook(enter, with_kwargs=True)
        yield block.register_forward_hook(leave("block"))
    for site, paths in (("attention", stack.attention), ("mlp", stack.mlp)):
        for path in filter(None, paths):
            yield model.get_submodule(path).register_forward_hook(leave(site))
    if stack.final_norm is not None:
        yield model.get_submodule(stack.final_norm).register_forward_hook(leave("final"))


def _program_hooks(
    model: nn.Module, program: Program, hand_over: Callable[[str, int, object], None], progress: _Progress
) -> Iterator[Any]:
    """The states among the operations of a model, which are watched as long as it runs."""

    def step(ran: Operation) -> Tensor:
        layer = program.layer(ran)
        if layer is not None:
            hand_over("block", layer, ran.first)
        return ran.first

    running: list[Steps] = []

    def enter(*_: object) -> None:
        progress.shape, progress.is_turned = (1, -1), False
        running.append(Steps(step))
        running[-1].start()

    def leave(*_: object) -> None:
        running.pop().stop()

    yield model.register_forward_pre_hook(enter)
    yield model.register_forward_hook(leave, always_call=True)


def _check_fired(progress: _Progress) -> None:
    stack = progress.stack
    share = {
        site: sum(map(bool, paths)) / len(stack.blocks)
        for site, paths in (("attention", stack.attention), ("mlp", stack.mlp))
    }
    expected = {"input": 1, "block": stack.calls} | {
        site: round(part * stack.calls) for site, part in share.items()
    }
    expected["final"] = int(stack.final_norm is not None)
    missing = [
        f"{site} {progress.fired[site]} of {count}"
        for site, count in expected.items()
        if progress.fired[site] != count
    ]
    if missing:
        raise NotTapped(
            f"the hooks on stack {stack.name!r} ({stack.blocks[0]} ... {stack.blocks[-1]}) did not fire as often as "
            f"its blocks should run: {', '.join(missing)}; the model runs fused, compiled or scripted code there, "
            "skips layers, or its blocks are not these: name them with ",
            Option("blocks", "path.to.layers"),
        )


def entering(args: tuple[Any, ...], kwargs: dict[str, Any], width: int | None) -> Tensor | None:
    """The state among the arguments of a block: under a usual name, else the first tensor of the block's width."""
    named = [kwargs[name] for name in ("hidden_states", "x", "src", "tgt") if name in kwargs]
    candidates = [
        found for found in map(first_tensor, (*args, *named, *kwargs.values())) if found is not None
    ]
    fitting = [found for found in candidates if width in (found.shape[-1], found.shape[1])]
    return next(iter(fitting or candidates), None)


def first_tensor(value: object) -> Tensor | None:
    """The first floating-point tensor with tokens and channels in a block's input or output."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.ndim >= 2 else None
    if isinstance(value, dict):
        value = tuple(value.values())
    elif is_dataclass(value):
        value = tuple(getattr(value, field.name) for field in fields(value))
    if isinstance(value, tuple | list):
        return next((found for found in map(first_tensor, value) if found is not None), None)
    return None


def _by_text(state: Tensor, progress: _Progress, site: str, texts: int, width: int | None) -> Tensor:
    """The state as ``(texts, tokens, dim)``: rows without an axis of texts get one, a grid is laid out in a row.

    ``width`` is that of the block, and tells whether the channels of a grid come last or before height and width.
    """
    if state.ndim == 2:  # a lone text, or a part that runs over all tokens of all texts at once
        if site == "input" and texts > 1:
            raise ShapeError(
                f"the blocks see {len(state)} rows without an axis of texts, where {texts} texts were given: whose "
                "rows are whose cannot be told; give one text at a time (",
                Option("batch_size", 1),
                ")",
            )
        sizes = reversed(progress.shape) if progress.is_turned else progress.shape
        rows = state.reshape(*sizes, state.shape[-1])
        state = rows.transpose(0, 1) if progress.is_turned else rows
    else:
        is_turned = state.ndim == 3 and has_tokens_first(state, progress.stack, site, texts)
        state = state.transpose(0, 1) if is_turned else state
        if site == "input":
            progress.is_turned = is_turned
        state = state.mT if state.ndim == 3 and progress.channels.come_first(state) else state
    state = state if state.ndim == 3 else _in_a_row(state, width)
    if site == "input":
        progress.shape = (state.shape[0], state.shape[1])
    return state


def has_tokens_first(state: Tensor, stack: Stack, site: str, texts: int) -> bool:
    """Whether a state has tokens before texts: the axis of texts has as many entries as there are texts."""
    is_first, is_second = (size == texts for size in state.shape[:2])
    if is_first and is_second:
        if stack.tokens_first is None:
            raise Ambiguous(f"{texts} texts of {texts} tokens in stack {stack.name!r}")
        return site in stack.tokens_first
    return is_second


def _in_a_row(state: Tensor, width: int | None) -> Tensor:
    if state.shape[1] == width != state.shape[-1]:
        return state.flatten(2).mT
    if width in (None, state.shape[-1]):
        return state.reshape(state.shape[0], -1, state.shape[-1])
    raise ShapeError(
        f"a block's state has shape {tuple(state.shape)}, and neither its second nor its last axis is the block's "
        f"width {width}, so tokens and channels cannot be told apart"
    )


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside wrappers that compile, spread or adapt it: hooks on the wrapper would see nothing."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in (
            "DataParallel",
            "DistributedDataParallel",
            "AveragedModel",
        ):
            inner = model.module
        if inner is None and hasattr(model, "peft_config"):  # adapters are inside of the model that it wraps
            base = getattr(model, "get_base_model", None)
            inner = base() if callable(base) else None
        if not isinstance(inner, nn.Module) or inner is model:
            return model
        model = inner


@contextmanager
def plain_code(model: nn.Module) -> Iterator[None]:
    """Fused and compiled shortcuts off, as before afterwards."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        if any(map(_is_compiled, every_module(model))):
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _is_compiled(module: nn.Module) -> bool:
    held = vars(module)  # asked of the module itself it takes long where it is not there
    is_wrapper = "_orig_mod" in held or "_orig_mod" in held["_modules"]
    return is_wrapper or held.get("_compiled_call_impl") is not None
