"""A run and its perturbed twin, joined to go through a network as two texts of one batch, and taken apart again."""

from dataclasses import replace

import torch
from torch import Tensor

from rankscope.split.noise import Noise
from rankscope.split.state import Split


def paired(state: Split, noise: Noise | None = None) -> Split:
    """Run and twin stacked along the first axis; a state without a twin begins one, disturbed as after any part."""
    noise = Noise() if noise is None else noise
    twin = state if state.twin is None else state.twin
    pair = Split(
        common=torch.stack([state.common, twin.common]),
        residual=torch.stack([state.residual, twin.residual]),
        log_scale=torch.stack([state.log_scale, twin.log_scale]),
        is_token=state.is_token,
        direct=None
        if state.direct is None and twin.direct is None
        else torch.stack([state.tokens(), twin.tokens()]),
        lost=_stacked(state.lost, twin.lost, state.log_scale),
        noise=noise,
    )
    return pair.disturbed() if state.twin is None else pair


def _stacked(one: Tensor | None, other: Tensor | None, like: Tensor) -> Tensor | None:
    if one is None and other is None:
        return None
    none = torch.zeros_like(like, dtype=torch.bool)
    return torch.stack([none if one is None else one, none if other is None else other])


def parted(pair: Split) -> Split:
    """The run of a pair, with its twin; any other state as it is."""
    if pair.noise is None:
        return pair
    run, twin = (
        Split(
            common=pair.common[at],
            residual=pair.residual[at],
            log_scale=pair.log_scale[at],
            is_token=pair.is_token,
            direct=None if pair.direct is None else pair.direct[at],
            lost=None if pair.lost is None else pair.lost[at],
        )
        for at in (0, 1)
    )
    return replace(run, twin=twin)
