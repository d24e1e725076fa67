"""How a model runs when it trains: its autocast and its attention kernels, seen once and set again for a look."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from rankscope.probe import unwrapped
from rankscope.probe.look import Autocast

KERNELS: tuple[tuple[Callable[[], bool], Callable[[bool], object]], ...] = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
"""Switches of the kernels of attention, as ``torch.nn.attention.sdpa_kernel`` sets them, on every kind of device."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The autocast and the kernels of a call."""

    autocast: Autocast | None = None
    kernels: tuple[bool, ...] | None = None


def setting_now() -> Setting:
    """What is set here and now."""
    kinds = ("cuda", "cpu", "mps", "xpu")
    cast = next((kind for kind in kinds if torch.is_autocast_enabled(kind)), None)
    return Setting(
        None if cast is None else (cast, torch.get_autocast_dtype(cast)),
        tuple(is_enabled() for is_enabled, _ in KERNELS),
    )


def listen(model: nn.Module, heard: Callable[[Setting], None]) -> None:
    """Hear once, at the first call that trains, how the model runs.

    accelerate replaces ``forward`` by one that enters its autocast inside of it: the parts of the model show that. Code
    that is compiled with the model hears nothing, so that it stays the code that it was.
    """
    inner = unwrapped(model)

    def hook(*_: object) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        handle.remove()
        heard(setting_now())
        if _is_replaced(model) or _is_replaced(inner):
            _listen_inside(inner, heard)

    handle = model.register_forward_pre_hook(hook)


def _listen_inside(inner: nn.Module, heard: Callable[[Setting], None]) -> None:
    def hook(*_: object) -> None:
        if torch.compiler.is_compiling():
            return
        heard(setting_now())
        for handle in handles:
            handle.remove()

    handles = [part.register_forward_pre_hook(hook) for part in _called_parts(inner)]


def _called_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The largest parts that are called; a list of modules is not."""
    for part in module.children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _called_parts(part)
        else:
            yield part


def _is_replaced(model: nn.Module) -> bool:
    return "_original_forward" in vars(model) and "forward" in vars(model)


@contextmanager
def set_as(setting: Setting) -> Iterator[None]:
    """Inside, attention has the kernels of training; autocast is for the look to enter."""
    before = [is_enabled() for is_enabled, _ in KERNELS]
    for (_, enable), is_on in zip(KERNELS, setting.kernels or before, strict=True):
        enable(is_on)
    try:
        yield
    finally:
        for (_, enable), is_on in zip(KERNELS, before, strict=True):
            enable(is_on)


@contextmanager
def own_forward(model: nn.Module) -> Iterator[None]:
    """Inside, a model runs its own ``forward``, without the autocast that accelerate has put around it."""
    if not _is_replaced(model):
        yield
        return
    replaced = vars(model)["forward"]
    vars(model)["forward"] = vars(model)["_original_forward"]
    try:
        yield
    finally:
        vars(model)["forward"] = replaced
