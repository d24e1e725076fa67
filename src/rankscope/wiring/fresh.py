"""Whether a model is freshly drawn: training moves every gain of a norm away from the number that it starts at."""

import torch
from torch import nn

from rankscope.sources.roles import is_norm


def is_fresh(model: nn.Module) -> bool:
    """Whether all gains of norms are one number, and all their biases zero; without norms, whether all biases are zero.

    >>> is_fresh(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    True
    """
    gains: list[torch.Tensor] = []
    shifts: list[torch.Tensor] = []
    for path, part in model.named_modules():
        if not is_norm(path.rpartition(".")[2], part):
            continue
        for name, value in part.named_parameters(recurse=False):
            (shifts if "bias" in name or "shift" in name or "beta" in name else gains).append(value.detach())
    if gains:
        return all(_is_constant(one) for one in gains) and not any(bool((one != 0).any()) for one in shifts)
    biases = [one for name, one in model.named_parameters() if one.ndim == 1 and name.endswith("bias")]
    return bool(biases) and not any(bool((one != 0).any()) for one in biases)


def _is_constant(value: torch.Tensor) -> bool:
    return bool((value == value.flatten()[0]).all()) and float(value.flatten()[0]) in (0.0, 1.0)
