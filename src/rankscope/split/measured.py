"""Some tokens of a split alone: what they share and what is left, and how far the others' rounding reaches into it."""

from dataclasses import replace

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.split.state import Split, normalized

LOST = 0.1
"""A residual of which rounding may be a larger share than this is no number."""


def of_measured(split: Split, keep: Tensor | None, layer: int) -> tuple[Split, Tensor]:
    """The split of the tokens that ``keep`` names (None: all), and the share of its residual that rounding may be.

    The mean and the residual of the other tokens do not enter. Entries of the residual of all tokens are rounded
    relative to the largest of them, so tokens closer to each other than that are lost: they have a number only where
    the share, ``exp(log_scale of all - log_scale of these)`` times the floor of ``layer`` blocks, is below ``LOST``.
    It is zero where nothing is left out, and where all tokens are equal.
    """
    none = torch.zeros_like(split.log_scale)
    if keep is None or _is_all(keep, split):
        return split, none
    own = normalized(replace(split, is_token=keep))
    twins = tuple(normalized(replace(twin, is_token=keep)) for twin in split.twins)
    own = replace(own, twins=twins)
    share = (split.log_scale - own.log_scale).exp() * relative_floor(layer, torch.float64)
    return own, torch.where(split.log_scale == -torch.inf, none, share)


def _is_all(keep: Tensor, split: Split) -> bool:
    if split.is_token is None:
        return bool(keep.all())
    shape = split.residual.shape[:-1]
    return torch.equal(keep.expand(shape), split.is_token.expand(shape))
