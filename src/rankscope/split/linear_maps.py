"""Linear attention split: rows ``f(q_i) . f(k_j)`` divided by their sums, where all queries read the same keys.

Write ``f(q_i) = f + s a_i`` and ``f(k_j) = g + s b_j`` with s the scale of the state, ``B = sum_j b_j``, n the number
of keys and ``G = n g + s B`` the sum of their features. The row of the common query is
``q_j = f . (g + s b_j) / f . G`` and with ``f_i = f + s a_i``

    P_ij - q_j = [(f_i . g_j) (f . G) - (f . g_j) (f_i . G)] / ((f_i . G) (f . G)).

In the bracket f cancels from ``f_i``, and of what is left ``n (a_i . g) (f . g)`` cancels as well:

    s^2 [(a_i . g) (f . B) - (f . g) (a_i . B) + (a_i . b_j) (f . G) - (f . b_j) (a_i . G)].

So the rest of the map is of second order in the residual, as that of softmax, and no large numbers are subtracted.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from rankscope.network import Context, Linear
from rankscope.network.heads import repeat_groups
from rankscope.split.logits import head_groups, projected
from rankscope.split.maps import SplitMaps, readable, split_maps
from rankscope.split.quotients import expm1_ratio
from rankscope.split.state import Split


@split_maps.register
def _linear(mixer: Linear, state: Split, context: Context) -> Iterator[SplitMaps]:
    read = readable(mixer, state, context)
    if read.others is not None:
        yield from _apart(mixer, state, context)
        return
    scale = state.scale.unsqueeze(-3)
    f, a = _features(
        *projected(mixer.query, mixer.query_bias, mixer.heads, mixer.query_norm, mixer.normed, state), scale
    )
    g, b = _features(
        *projected(mixer.key, mixer.key_bias, mixer.key_heads, mixer.key_norm, mixer.normed, state), scale
    )
    g, b = (repeat_groups(one, mixer.heads) for one in (g, b))
    for numbers in (f, a, g, b):
        state.disturb(numbers)
    is_key = torch.ones_like(b[..., :1]) if read.keys is None else read.keys.mT.to(b.dtype)
    b = b * is_key
    count = is_key.sum(dim=-2, keepdim=True)
    for heads in head_groups(state, mixer.heads):
        own = [one[..., heads, :, :] for one in (f, a, g, b)]
        yield _near(own[0], own[1], own[2], own[3], scale, is_key, count, state)


def _near(
    f: Tensor, a: Tensor, g: Tensor, b: Tensor, scale: Tensor, is_key: Tensor, count: Tensor, state: Split
) -> SplitMaps:
    """The formula of this file's head."""
    more = b.sum(dim=-2, keepdim=True)
    sums = count * g + scale * more
    whole = f @ sums.mT  # 1 1, as all that follows ``*batch heads``
    by_key = f @ b.mT  # 1 j
    level = f @ g.mT
    shared = (level + scale * by_key) * is_key.mT / whole
    bracket = (a @ g.mT) * (f @ more.mT) - level * (a @ more.mT)  # i 1
    bracket = bracket + (a @ b.mT) * whole - by_key * (a @ sums.mT)
    rest = bracket * is_key.mT / (((f + scale * a) @ sums.mT) * whole)
    log_scale = (2 * state.log_scale).unsqueeze(-1).expand(rest.shape[:-2])
    return SplitMaps(shared=shared, rest=rest, log_scale=log_scale, peak=shared.argmax(dim=-1, keepdim=True))


def _features(row: Tensor, change: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """``elu + 1`` of the row, and ``(f(row + s change) - f(row)) / s``.

    The function is ``1 + v`` above zero and ``exp(v)`` below, both one at zero. On one side of zero its difference is
    ``s change``, or ``exp(row) expm1(s change)``; across it is that of ``v`` or ``expm1(v)`` on either side.
    """
    after = row + scale * change
    above, below = row.clamp(min=0.0), torch.expm1(row.clamp(max=0.0))
    value = 1 + above + below
    within = torch.where(row > 0, change, row.clamp(max=0.0).exp() * change * expm1_ratio(scale * change))
    across = after.clamp(min=0.0) + torch.expm1(after.clamp(max=0.0)) - (above + below)
    is_across = (row > 0) != (after > 0)
    return value, torch.where(is_across, across / torch.where(scale > 0, scale, 1.0), within)


def _apart(mixer: Linear, state: Split, context: Context) -> Iterator[SplitMaps]:
    """Where queries read different keys, rows differ at order one: the map itself beside the row of one key."""
    maps = mixer(state.tokens(), context)
    state.disturb(maps)
    for heads in head_groups(state, mixer.heads):
        own = maps[..., heads, :, :]
        shared = torch.zeros_like(own[..., :1, :])
        shared[..., 0] = 1.0
        nothing = torch.zeros_like(own[..., 0, 0])
        peak = torch.zeros_like(nothing, dtype=torch.long)[..., None, None]
        yield SplitMaps(shared=shared, rest=own, log_scale=nothing, peak=peak)
