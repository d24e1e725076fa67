"""What is given as a model: a module, or something near it that is named with what to give instead."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.words import article
from rankscope.errors import ConfigError, NotTapped
from rankscope.sources.taps import unwrapped


def checked_module(model: object) -> nn.Module:
    """The module that was given; an error that says what to give instead, where it is none or cannot run."""
    if not isinstance(model, nn.Module):
        raise not_a_model(model)
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise NotTapped(
            f"{type(model).__name__} is TorchScript, whose parts call no hooks; give the module it was made from"
        )
    refuse_sharded(model)
    return model


def not_a_model(value: object) -> ConfigError:
    """Why something is no model, in words that say what to give."""
    name = getattr(value, "__name__", "")
    if isinstance(value, type):
        return ConfigError(f"{name} is a class, not a model; make one and pass it: {name}(...)")
    if isinstance(value, Mapping) and value and all(isinstance(one, Tensor) for one in value.values()):
        return ConfigError(
            "a state dict holds weights and not the model that computes with them; build the model, call "
            "model.load_state_dict(...) and pass the model"
        )
    if isinstance(value, Tensor | np.ndarray | list | tuple):
        return ConfigError(
            f"{article(type(value).__name__)} is no model; expected a module, a folder or a name; hidden states go to "
            "scan_states"
        )
    if callable(value):
        return ConfigError(
            f"the function {name or type(value).__name__} is no model; pass the module itself, and what the function "
            "does with it as call=lambda model: ...; if the function makes the model, pass what it returns"
        )
    return ConfigError(
        f"{article(type(value).__name__)} is no model; expected a module, a folder or a name; hidden states go to "
        "scan_states"
    )


def inside(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module inside of wrappers that compile, spread or adapt it, and words that say so.

    >>> inside(nn.DataParallel(nn.Linear(2, 2)))
    (Linear(in_features=2, out_features=2, bias=True), ('the Linear inside of DataParallel is used',))
    """
    inner = unwrapped(model)
    if inner is model:
        return model, ()
    return inner, (f"the {type(inner).__name__} inside of {type(model).__name__} is used",)


def refuse_sharded(model: nn.Module) -> None:
    """Nothing, or an error if no single process holds the weights."""
    is_wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    is_split = any(
        type(parameter).__name__ == "DTensor" or hasattr(parameter, "ds_shape")
        for parameter in model.parameters()
    )
    if is_wrapped or is_split:
        raise ConfigError(
            f"the weights of {type(model).__name__} are sharded over processes (FSDP, ZeRO-3), so no single one can "
            "scan it while it trains; save checkpoints and compare their scans: rankscope compare A B ..."
        )


def check_filled(model: nn.Module, words: str) -> None:
    """A model on the device meta has shapes and no numbers, unless hooks of accelerate fetch what it put away."""
    empty = next((name for name, weight in model.named_parameters() if weight.is_meta), None)
    if empty is not None and not any(hasattr(module, "_hf_hook") for module in model.modules()):
        raise ConfigError(
            f"{words} holds no numbers in {empty!r}: it is on the device meta; call model.to_empty(device='cpu') and "
            "load its weights first"
        )


def quantised(model: nn.Module) -> str:
    """The path of a part whose weights are whole numbers of few bits, and its kind; empty if there is none.

    >>> quantised(nn.Linear(2, 2))
    ''
    """
    for path, part in model.named_modules():
        packed = hasattr(part, "_packed_params") or ".quantized" in type(part).__module__
        coarse = any(
            not weight.is_floating_point() or torch.finfo(weight.dtype).bits < 16
            for weight in part.parameters(recurse=False)
            if not weight.is_complex()
        )
        if packed or coarse:
            return f"{path or 'all'} ({type(part).__name__})"
    return ""
