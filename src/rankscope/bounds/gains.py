"""By how much a part enlarges the sizes of what enters it, at least and at most, and how that was found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.logs import lowered, raised
from rankscope.bounds.sizes import F, Interval

METHODS = (
    "nothing",
    "every token alike",
    "sum over heads",
    "stacked heads",
    "joint operator",
    "numerical range",
    "skip against branch",
    "Lipschitz factor",
    "mean slope",
    "sizes of tokens",
    "part by part",
    "size to size",
)
"""How a gain was found; ``Gains`` point here."""

NOTHING, ALIKE, SUM, STACKED, JOINT, RANGE, SKIP, LIPSCHITZ, SLOPE, TOKENS, PARTS, SIZE = range(len(METHODS))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Gains:
    """Natural logarithms ``sizes *batch`` with ``exp(lower) <= size after / size before <= exp(upper)``.

    Args:
        lower: minus infinity where nothing is proven.
        upper: infinity where nothing is proven.
        lower_by: index of the method, ``sizes *batch``.
        upper_by: the same.
        failed: what kept them from saying more.
    """

    lower: Tensor
    upper: Tensor
    lower_by: Tensor
    upper_by: Tensor
    failed: tuple[Assumption, ...] = ()


def gains_of(
    lower: Sequence[tuple[int, Tensor]],
    upper: Sequence[tuple[int, Tensor]],
    failed: tuple[Assumption, ...] = (),
) -> Gains:
    """The best of several bounds, each ``sizes *batch`` with the index of its method."""
    low, low_by = _best(lower, largest=True)
    high, high_by = _best(upper, largest=False)
    low, high, low_by, high_by = torch.broadcast_tensors(low, high, low_by, high_by)
    return Gains(lower=low, upper=high, lower_by=low_by, upper_by=high_by, failed=failed)


def _best(options: Sequence[tuple[int, Tensor]], *, largest: bool) -> tuple[Tensor, Tensor]:
    """The largest or smallest of the options; one that is not a number says nothing."""
    nothing = -torch.inf if largest else torch.inf
    stack = torch.stack(torch.broadcast_tensors(*(value for _, value in options)))
    stack = torch.where(torch.isnan(stack), nothing, stack)
    best, which = stack.max(dim=0) if largest else stack.min(dim=0)
    methods = torch.tensor([method for method, _ in options], device=stack.device)[which]
    return best, torch.where(best == nothing, NOTHING, methods)


def per_size(**known: Tensor) -> Tensor:
    """Logarithms of some sizes, by the names ``f d1 d2 dinf col``, as ``sizes *batch``; NaN for the others."""
    names = ("f", "d1", "d2", "dinf", "col")
    filler = torch.full_like(next(iter(known.values())), torch.nan)
    rows = torch.broadcast_tensors(*(known.get(name, filler) for name in names))
    return torch.stack(rows)


def passed(entering: Interval, gains: Gains) -> Interval:
    """Between what the sizes lie behind a part."""
    lower, upper = lowered(entering.lower + gains.lower), raised(entering.upper + gains.upper)
    # Zero times infinity: tokens that are all equal stay so behind every part.
    equal = entering.upper == -torch.inf
    lower = torch.where(torch.isnan(lower) | (entering.lower == -torch.inf), -torch.inf, lower)
    return Interval(lower=lower, upper=torch.where(equal, -torch.inf, upper))


def in_a_row(gains: Sequence[Gains]) -> Gains:
    """One part after the other."""
    if len(gains) == 1:
        return gains[0]
    lower, upper = gains[0].lower, gains[0].upper
    for one in gains[1:]:
        lower, upper = lowered(lower + one.lower), raised(upper + one.upper)
    failed = tuple(assumption for one in gains for assumption in blamed(one))
    return gains_of([(PARTS, lower)], [(PARTS, upper)], failed)


def blamed(gains: Gains) -> tuple[Assumption, ...]:
    """What failed, where the lower bound of the Frobenius residual was lost; elsewhere it is taken to hold."""
    kept = gains.lower[F] > -torch.inf
    found = (replace(one, holds=one.holds | kept) for one in gains.failed)
    return tuple(one for one in found if not bool(one.holds.all()))
