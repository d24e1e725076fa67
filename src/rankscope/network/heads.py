"""Reshaping between one wide matrix for all heads and one matrix per head."""

from torch import Tensor


def split_heads(flat: Tensor, heads: int) -> Tensor:
    """``*batch tokens (heads width)`` as ``*batch heads tokens width``."""
    return flat.reshape(*flat.shape[:-1], heads, flat.shape[-1] // heads).transpose(-3, -2)


def join_heads(split: Tensor) -> Tensor:
    """``*batch heads tokens width`` as ``*batch tokens (heads width)``."""
    return split.transpose(-3, -2).flatten(-2)


def repeat_groups(split: Tensor, heads: int) -> Tensor:
    """Each of the ``g`` heads of ``*batch g ...`` repeated for the ``heads / g`` consecutive heads sharing it."""
    groups = split.shape[-3]
    return split if groups == heads else split.repeat_interleave(heads // groups, dim=-3)


def join_maps(maps: Tensor) -> Tensor:
    """One matrix per head, ``*seeds heads dim width``, side by side: ``*seeds dim (heads width)``.

    A copy, unless the heads lie next to each other in memory: some models keep query, key and value of a head
    together, so that no view of their weights has all queries in one matrix.
    """
    return maps.transpose(-3, -2).flatten(-2)
