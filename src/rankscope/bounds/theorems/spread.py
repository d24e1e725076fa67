"""Theorem A: how fast the spread of tokens falls under attention, from weights and the spread alone.

For heads without mask and positions, a row norm N and ``D_l`` the largest distance of two tokens of layer l,

``D_{l+1} <= D_l sum_h w_h tanh(s_h D_l^2 / 4) <= K_l D_l^3``,  ``K_l = sum_h s_h w_h / 4``

with ``s_h`` the largest value of ``scale u W_QK v`` over ``N(u), N(v) <= 1`` and ``w_h`` what ``W_h`` enlarges N by at
most. Rows of a map are softmaxes whose logits differ by at most ``s_h D^2`` over the keys, so their total variation is
at most ``tanh(s_h D^2 / 4)``, and averaging shrinks every diameter by that.
Attained by two tokens in one dimension: ``a' = a tanh(k a^2 / 4)``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rankscope.bounds.theorems.recursions import Log, chosen, cubed, shifted
from rankscope.core.numerics import broadcast
from rankscope.errors import ShapeError

MOST_LAYERS = 10_000
"""Layers after which a spread that has not fallen counts as one that does not."""


def spread_step(log_spread: Log, s: Tensor, w: Tensor) -> Log:
    """``log(D sum_h w_h tanh(s_h D^2 / 4))``, to rounding for any D; ``s`` and ``w`` are ``*batch heads``.

    Small arguments are tripled logs plus ``log sum_h (w_h s_h / 4) tanh(y_h) / y_h``, which is of order one; large
    ones are the log plus that of the sum itself.
    """
    squared = 2 * log_spread.high + 2 * log_spread.low
    log_s, log_w = (s.double() / 4).log(), w.double().log()
    log_y = torch.where(log_s == -torch.inf, -torch.inf, log_s + squared.unsqueeze(-1))
    y = log_y.exp()
    safe = torch.where(y > 0, y.clamp(max=1.0), 1.0)
    ratio = torch.where(y > 0, torch.tanh(safe) / safe, 1.0).log()
    small = torch.logsumexp(log_w + log_s + ratio, dim=-1)
    large = torch.logsumexp(log_w + torch.tanh(y).log(), dim=-1)
    is_small = y.amax(dim=-1) <= 1
    return chosen(is_small, cubed(log_spread, small), shifted(log_spread, large))


def log_spreads(log_start: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Logs of the recursion of Theorem A for layers 0 .. L, from ``(s, w)`` of every layer: ``layers+1 *batch``.

    Right to 1e-14 relative at any depth; below the range of floats the smallest float stands for the log.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> logs = log_spreads(torch.tensor(1.3, dtype=torch.float64).log(), [(0.7 * one, one)] * 3)
    >>> [f"{value:.9e}" for value in logs.exp().tolist()]
    ['1.300000000e+00', '3.736440273e-01', '9.126952341e-03', '1.330501587e-07']
    """
    found = [Log.of(log_start.double())]
    for s, w in layers:
        found.append(spread_step(found[-1], s, w))
    return torch.stack(torch.broadcast_tensors(*(log.high for log in found)))


def cubic_constant(s: Tensor, w: Tensor) -> Tensor:
    """``K = sum_h s_h w_h / 4``: a layer maps a small spread D to at most ``K D^3``."""
    return (s * w).sum(dim=-1) / 4


def critical_spread(s: Tensor, w: Tensor) -> Tensor:
    """The spread below which the recursion of one layer falls: ``sum_h w_h tanh(s_h D^2 / 4) = 1``, from below.

    Infinite where the sum stays below one. With one head it is ``sqrt(4 atanh(1 / w) / s)``.

    >>> round(critical_spread(torch.tensor([1.0]), torch.tensor([2.0])).item(), 12)  # sqrt(4 atanh(1/2))
    1.482303807368
    """
    s, w = torch.broadcast_tensors(s.double(), w.double())
    log_s = (s / 4).log().unsqueeze(0)
    low, high = (
        torch.full(s.shape[:-1], end, dtype=torch.float64, device=s.device) for end in (-400.0, 400.0)
    )

    def total(log_spread: Tensor) -> Tensor:
        return (w * torch.tanh((log_s + 2 * log_spread.unsqueeze(-1)).exp())).sum(dim=-1)[0]

    for _ in range(100):
        middle = (low + high) / 2
        falls = total(middle) < 1
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    never = torch.where(s > 0, w, 0.0).sum(dim=-1) <= 1
    return torch.where(never, torch.inf, low.exp())


def layers_until(
    log_start: Tensor, s: Tensor, w: Tensor, log_target: float | Tensor, *, most: int = MOST_LAYERS
) -> Tensor:
    """Layers of the same ``(s, w)`` after which the recursion is at most the target, ``*batch``.

    Infinite where it does not fall, or not within ``most`` layers.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> layers_until(torch.tensor(1.3).log(), 0.7 * one, one, torch.tensor(1e-20).log()).item()
    4.0
    """
    if most < 1:
        raise ShapeError(f"layers_until was asked to follow {most} layers; give at least one")
    batch = broadcast(log_start.shape, s.shape[:-1], w.shape[:-1])
    log = Log.of(log_start.double().expand(batch))
    target = torch.as_tensor(log_target, dtype=torch.float64)
    count = torch.where(log.high <= target, 0.0, torch.inf)
    for layer in range(1, most + 1):
        after = spread_step(log, s, w)
        count = torch.where((after.high <= target) & (count == torch.inf), float(layer), count)
        if not bool(((count == torch.inf) & (after.high < log.high)).any()):
            break
        log = after
    return count
