"""A run and its perturbed twins, joined to go through a network as texts of one batch, and taken apart again."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rankscope.split.noise import Noise
from rankscope.split.state import Split

SMALL = 2**16
"""Up to this many products per map, tokens times channels times their sum, a state has a second twin.

Where one number decides, such as the residual of two tokens of one channel, or the direction that all layers enlarge,
what a twin is off by is one draw, and may be near zero by chance: of 400 draws one is below 1/400 of the usual, which
is about how far the noise of a twin, with the factor of safety, is above rounding. Two are hardly ever both so small.
In small states, where calling a function costs more than what it computes, a second twin is nearly free. In large ones
it would cost as much as the first, and there is just one.
"""


def paired(state: Split, noise: Noise | None = None) -> Split:
    """Run and twins stacked along the first axis; a state without twins begins some, disturbed as after any part."""
    twins = state.twins or (state,) * twins_of(state)
    pair = replace(stacked([state, *twins]), noise=Noise() if noise is None else noise)
    return pair if state.twins else pair.disturbed()


def stacked(runs: Sequence[Split]) -> Split:
    """Runs of the same tokens as one state, along a new first axis."""
    return Split(
        common=torch.stack([run.common for run in runs]),
        residual=torch.stack([run.residual for run in runs]),
        log_scale=torch.stack([run.log_scale for run in runs]),
        is_token=runs[0].is_token,
        direct=None
        if all(run.direct is None for run in runs)
        else torch.stack([run.tokens() for run in runs]),
        lost=None if all(run.lost is None for run in runs) else torch.stack([_lost(run) for run in runs]),
    )


def twins_of(state: Split) -> int:
    """How many perturbed runs go along with a state."""
    tokens, dim = state.residual.shape[-2:]
    return 2 if state.residual.numel() * (tokens + dim) <= SMALL else 1


def _lost(run: Split) -> Tensor:
    return torch.zeros_like(run.log_scale, dtype=torch.bool) if run.lost is None else run.lost


def parted(pair: Split) -> Split:
    """The run of a pair, with its twins; any other state as it is."""
    if pair.noise is None:
        return pair
    run, *twins = (
        Split(
            common=pair.common[at],
            residual=pair.residual[at],
            log_scale=pair.log_scale[at],
            is_token=pair.is_token,
            direct=None if pair.direct is None else pair.direct[at],
            lost=None if pair.lost is None else pair.lost[at],
        )
        for at in range(len(pair.common))
    )
    return replace(run, twins=tuple(twins))
