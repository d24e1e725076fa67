"""Copies of a live model to train on, made so that nothing of the user's is touched."""

import copy
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.errors import RankscopeError, is_out_of_memory
from rankscope.sources.operations.raised import is_torchs

COPIES = 4
"""Sizes of the weights that training a copy takes: the copy, its gradients, and two averages of AdamW."""

ROOM = 0.9
"""Share of the free memory that a copy may take."""

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


class NoCopy(RankscopeError):  # noqa: N818 - reads as a sentence
    """A model that cannot be copied."""


def copy_of(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, without gradients and without hooks other than torch's own.

    The hooks of others may write into what they hold, which a copy shares with the model; those of torch (weight norm)
    are part of what a module computes.
    """
    try:
        with torch.inference_mode(False), torch.no_grad():
            twin = copy.deepcopy(model)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise NoCopy(
            f"{type(model).__name__} cannot be copied: {type(error).__name__}; a model without tensors that were "
            "computed from others among its attributes can be"
        ) from error
    for module in twin.modules():
        module.training = False
        for name in _HOOKS:
            held = module.__dict__.get(name) or {}
            for key in [key for key, hook in held.items() if not is_torchs(hook)]:
                del held[key]
    for weight in twin.parameters():
        weight.grad = None
    return twin


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The weights that ask for gradients; all of them where none does, as in a model that was loaded to be run."""
    floats = [weight for weight in model.parameters() if weight.is_floating_point()]
    return [weight for weight in floats if weight.requires_grad] or floats


def training_bytes(weights: Sequence[Tensor]) -> int:
    """Memory that training a copy with these weights takes at least; what the pass itself holds comes on top."""
    return COPIES * sum(weight.numel() * weight.element_size() for weight in weights)


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free where the weights lie; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    found = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = next(line for line in lines if line.startswith("MemAvailable"))
        found.append(1024 * int(told.split()[1]))
    with suppress(OSError, ValueError):  # of a container, what it was given
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        found.append(max(most - int((group / "memory.current").read_text()), 0))
    return min(found, default=None)


def fits(model: nn.Module, copies: int = 1) -> bool:
    """Whether so many copies can be trained in the memory that is free; True where that is not known."""
    weights = list(model.parameters())
    free = free_bytes(weights[0].device if weights else torch.device("cpu"))
    return free is None or copies * training_bytes(weights) <= ROOM * free


@contextmanager
def random_states_kept() -> Iterator[None]:
    """The random states of torch, numpy and Python as before afterwards: code of models draws from the global ones."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
