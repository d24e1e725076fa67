"""A model in training, looked at without leaving a trace."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

REGISTERS = frozenset(vars(nn.Module()))
"""Attributes that every module has: its parts, weights, buffers and hooks."""

PLAIN = (bool, int, float, complex, str, tuple, frozenset, type(None), Tensor)
"""Kinds of values that are put back by their names."""


def is_first_process() -> bool:
    """Whether this process is the one that scans; without distributed training it always is."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside: evaluation mode, no gradients, no autocast. Afterwards, also after an error, everything as before.

    Put back are the mode of every module, all buffers, what modules of others keep in attributes (a count of their
    calls, a list of losses), and the random states of torch (CPU, CUDA, MPS), numpy and Python. Modes are set one
    module at a time: ``model.eval()`` may be overridden to do more, such as merging adapters into the weights, and
    ``model.train()`` would wake modules that were put to sleep on purpose.
    """
    modes = [(module, module.training) for module in model.modules()]
    with ExitStack() as undo:
        undo.callback(_restore_modes, modes)
        for restore in (*_random_states(), *_buffers(model), *_attributes(model)):
            undo.callback(restore)
        for kind in sorted({"cpu", *(parameter.device.type for parameter in model.parameters())}):
            if torch.is_autocast_enabled(kind):
                undo.enter_context(torch.autocast(kind, enabled=False))
        undo.enter_context(torch.no_grad())
        for module, _ in modes:
            module.training = False
        yield


def _restore_modes(modes: list[tuple[nn.Module, bool]]) -> None:
    for module, mode in modes:
        module.training = mode


def _random_states() -> Iterator[Callable[[], object]]:
    yield partial(torch.set_rng_state, torch.get_rng_state())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield partial(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        yield partial(torch.mps.set_rng_state, torch.mps.get_rng_state())
    # Model code draws from the global generators, so these are the ones to put back.
    yield partial(np.random.set_state, np.random.get_state())
    yield partial(random.setstate, random.getstate())


def _buffers(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What puts every buffer back; some modules count or cache in them in evaluation mode too."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_inference():
                yield partial(_restore_buffer, module, name, buffer, buffer._version, buffer.detach().clone())


def _restore_buffer(module: nn.Module, name: str, buffer: Tensor, version: int, content: Tensor) -> None:
    if module._buffers.get(name) is not buffer:
        module._buffers[name] = buffer
    if buffer._version != version:  # torch counts the writes to every tensor
        with torch.no_grad():
            buffer.copy_(content)


def _attributes(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What puts back the plain values that code of others keeps in a module; modules of torch keep none."""
    for module in model.modules():
        if type(module).__module__.startswith("torch."):
            continue
        own = {name: value for name, value in vars(module).items() if name not in REGISTERS}
        plain = {name: value for name, value in own.items() if isinstance(value, PLAIN)}
        if plain:
            yield partial(vars(module).update, plain)
        for value in own.values():
            if type(value) is list:
                yield partial(value.__setitem__, slice(None), value.copy())
            elif type(value) in (dict, set):
                yield partial(_refill, value, value.copy())


class _Filled(Protocol):
    """A dictionary or a set."""

    def clear(self) -> None: ...

    def update(self, before: Any, /) -> None: ...


def _refill(kept: _Filled, before: _Filled) -> None:
    """The same things in a dictionary or a set as before."""
    kept.clear()
    kept.update(before)
