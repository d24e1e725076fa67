"""The sizes of a residual that certificates follow side by side, as natural logarithms.

Five seminorms of a token matrix X, all of them zero exactly if all tokens are equal. R is X without its mean token.

| size | formula | a map P enlarges it by | a matrix W of channels by |
|---|---|---|---|
| Frobenius | |R|_F | |JP|_2 | |W|_2 |
| diameter l1 | max_ij |x_i - x_j|_1 | Dobrushin tau(P) | largest row sum of |W| |
| diameter l2 | max_ij |x_i - x_j|_2 | tau(P) | |W|_2 |
| diameter linf | max_ij |x_i - x_j|_inf | tau(P) | largest column sum of |W| |
| columns | max_k sum_i |R_ik| | half the largest l1 distance of two columns of JP | largest column sum of |W| |

They are stacked along the first axis, ``sizes *batch``, in this order.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.certificate import COLUMNS, COMPOSITE, DIAMETERS, FROBENIUS
from rankscope.bounds.enclosure import TINY, U, lengths_of
from rankscope.core.operator_norms import MARGIN
from rankscope.measures import find_measure
from rankscope.split import LogValue, Split, log_measure, split_tokens

SIZES = (FROBENIUS, *DIAMETERS, COLUMNS)
F, D1, D2, DINF, COL = range(5)
COUNT = len(SIZES)

LOG_MARGIN = math.log1p(MARGIN)
"""Added to logarithms that were computed from others, so that their rounding stays on the safe side."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Interval:
    """Logarithms between which every size lies, ``sizes *batch``."""

    lower: Tensor
    upper: Tensor


def stacked(values: Mapping[str, Tensor]) -> Tensor:
    """Logarithms by definition as one tensor ``sizes *batch``."""
    return torch.stack([values[name] for name in SIZES])


def measured(split: Split) -> dict[str, Tensor]:
    """Natural logarithms of all sizes and of the composite residual of a split state."""
    return {name: found.log for name, found in read(split).items()}


def read(split: Split) -> dict[str, LogValue]:
    """The same with their floors, where the state has a twin."""
    return {name: log_measure(find_measure(name), split) for name in (*SIZES, COMPOSITE)}


def known(split: Split) -> Interval:
    """The sizes of tokens that are stored as floats: relative rounding of their differences, and no more."""
    logs = stacked(measured(split))
    return Interval(lower=logs - LOG_MARGIN, upper=logs + LOG_MARGIN)


def trivial(x: Tensor, error: Tensor) -> dict[str, Tensor]:
    """Logarithms of what the sizes of tokens no farther than ``error`` (l2, each token) from ``x`` cannot exceed.

    The same norm of the tokens themselves; for diameters twice the longest token.
    """
    dim = x.shape[-1]
    size = x.abs()
    l2 = lengths_of(x) + error
    l1 = (size.sum(dim=-1) + math.sqrt(dim) * error).amax(dim=-1)
    linf = (size.amax(dim=-1) + error).amax(dim=-1)
    columns = size.sum(dim=-2).amax(dim=-1) + error.sum(dim=-1)
    norms = {
        FROBENIUS: lengths_of(l2),
        **dict(zip(DIAMETERS, (2 * l1, 2 * l2.amax(dim=-1), 2 * linf), strict=True)),
        COLUMNS: 2 * columns,
    }
    logs = {name: (norm + TINY).log() + LOG_MARGIN for name, norm in norms.items()}
    # Its center is the mean, which may double either factor.
    return logs | {COMPOSITE: (logs[COLUMNS] + logs[DIAMETERS[0]]) / 2}


def enclosed(x: Tensor, error: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Logarithms between which the sizes of all tokens no farther than ``error`` from ``x`` lie.

    A seminorm moves by at most its value on what was moved; rounding of the measure itself is relative to the tokens.
    """
    values = measured(split_tokens(x))
    own = error + 8 * (x.shape[-1] + x.shape[-2]) * U * lengths_of(x) + TINY
    root, longest = math.sqrt(x.shape[-1]), own.amax(dim=-1)
    moved = {
        FROBENIUS: lengths_of(own),
        **dict(zip(DIAMETERS, (2 * root * longest, 2 * longest, 2 * longest), strict=True)),
        COLUMNS: 2 * own.sum(dim=-1),
    }
    sizes = {name: values[name].exp() for name in (*SIZES, COMPOSITE)}
    low = {name: (sizes[name] - size).clamp(min=0.0) for name, size in moved.items()}
    high = {name: sizes[name] + size for name, size in moved.items()}
    rows = (2 * values[COMPOSITE] - values[COLUMNS]).exp()  # NaN where all tokens are equal
    rows, off = torch.where(torch.isnan(rows), 0.0, rows), 2 * root * longest
    lower, upper = ({name: value.log() for name, value in side.items()} for side in (low, high))
    lower[COMPOSITE] = (lower[COLUMNS] + (rows - off).clamp(min=0.0).log()) / 2
    upper[COMPOSITE] = (upper[COLUMNS] + (rows + off).log()) / 2
    return (
        {name: value - LOG_MARGIN for name, value in lower.items()},
        {
            name: torch.where(torch.isnan(value), torch.inf, value) + LOG_MARGIN
            for name, value in upper.items()
        },
    )


def ratios(tokens: int, dim: int) -> Tensor:
    """``log K`` with ``size_a <= K[a, b] size_b`` for all token matrices, ``sizes sizes``.

    From ``|R|_F^2 = 1/n sum_{i<j} |x_i - x_j|^2``, the inequalities between l1, l2 and linf, and for a column r of sum
    zero ``max |r| <= sum |r| / 2``. Chains of two are included.
    """
    n, d = float(tokens), float(dim)
    most = torch.full((COUNT, COUNT), math.inf, dtype=torch.float64)
    most.fill_diagonal_(1.0)
    most[F, D2], most[D2, F] = math.sqrt(max(n - 1, 0) / 2), math.sqrt(2)
    most[D2, D1], most[D1, D2] = 1.0, math.sqrt(d)
    most[DINF, D2], most[D2, DINF] = 1.0, math.sqrt(d)
    most[DINF, D1], most[D1, DINF] = 1.0, d
    most[COL, F], most[F, COL] = math.sqrt(n), math.sqrt(d / 2)
    most[COL, DINF], most[DINF, COL] = n / 2, 1.0
    logs = most.log()
    for _ in range(2):
        logs = (logs.unsqueeze(2) + logs.unsqueeze(0)).amin(dim=1)
    return logs


def tightened(interval: Interval, logs: Tensor) -> Interval:
    """The interval after every size has learned from every other one; ``logs`` as given by ``ratios``."""
    spread = logs.reshape(COUNT, COUNT, *[1] * (interval.upper.ndim - 1)) + LOG_MARGIN
    spread = torch.where(_same(spread), 0.0, spread)
    upper = (spread + interval.upper.unsqueeze(0)).amin(dim=1)
    lower = (interval.lower.unsqueeze(1) - spread).amax(dim=0)
    return Interval(lower=lower, upper=upper)


def _same(spread: Tensor) -> Tensor:
    eye = torch.eye(COUNT, dtype=torch.bool, device=spread.device)
    return eye.reshape(COUNT, COUNT, *[1] * (spread.ndim - 2))


def composite(interval: Interval, tokens: int) -> tuple[Tensor, Tensor]:
    """Lower and upper logarithm of ``residual[composite,mean]``, the root of column sums times row sums of |R|.

    A row of R is at most ``1 - 1/n`` times the l1 diameter long, the longest at least half of it.
    """
    rows = (
        interval.lower[D1] - math.log(2),
        interval.upper[D1] + math.log1p(-1 / tokens) if tokens > 1 else -math.inf,
    )
    lower, upper = (interval.lower[COL] + rows[0]) / 2, (interval.upper[COL] + rows[1]) / 2
    return lower - LOG_MARGIN, upper + LOG_MARGIN


def by_norm(spectral: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The three norms of a matrix of channels, in the order of the sizes they act on."""
    return torch.stack(torch.broadcast_tensors(spectral, rows, spectral, columns, columns))
