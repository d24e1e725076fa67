"""Statistics of single paths, which do not add up: estimated from paths drawn at random, with a confidence interval.

The sum of all terms of one length is known exactly without listing them, but the mean of their residuals, or of any
other number that is not linear, is not. The mean over paths drawn with equal probability estimates it without bias.
The mean of a norm over paths says nothing about the norm of their sum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.errors import ConfigError, NumericalError, ShapeError
from rankscope.measures import Measure, evaluate, evaluate_padded, find_measure
from rankscope.network import Network
from rankscope.pathways.counts import choices_of
from rankscope.pathways.drawing import draw_paths, every_path, paths_of
from rankscope.pathways.path import Path

Term = Callable[[Path], Tensor]
"""What a path contributes, ``*batch tokens dim``: frozen, isolated, official, or anything else."""

Statistic = str | Measure | Callable[[Tensor], Tensor | float]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Estimate:
    """The mean of a statistic over all paths of one length; tensors have one float64 number per text.

    Args:
        mean: over the paths looked at; without bias for the mean over all paths.
        low: lower end of the interval that covers the mean over all paths with the stated confidence.
        high: its upper end; both are the mean itself if all paths were looked at.
        std: standard deviation over paths, that of the population if all were looked at.
        count: how many paths were looked at, repeated ones included.
        paths: how many paths of that length there are.
        is_exact: every path was looked at once.
        resolved: share of the looked-at values that are above the floor of rounding; None for a function of the user.
    """

    mean: Tensor
    low: Tensor
    high: Tensor
    std: Tensor
    count: int
    paths: int
    is_exact: bool
    resolved: Tensor | None = None


class SumEstimate(NamedTuple):
    """A statistic summed over all paths of one length, with the ends of its interval."""

    value: Tensor
    low: Tensor
    high: Tensor


def sample_statistic(
    network: Network,
    length: int,
    term: Term,
    statistic: Statistic,
    *,
    count: int,
    generator: torch.Generator,
    confidence: float = 0.95,
    is_token: Tensor | None = None,
) -> Estimate:
    """The mean of a statistic of single paths over all paths of one length, with a confidence interval.

    Paths are drawn independently and with equal probability; the interval is ``mean +- t std / sqrt(count)`` with the
    quantile ``t`` of Student's distribution, which is close to its stated confidence for a few dozen paths unless a few
    rare ones dominate: where the statistic spans many orders of magnitude, take its logarithm. If there are no more
    than ``count`` paths, all are looked at and the answer is exact.

    Args:
        network: where the paths run.
        length: how many heads are on a path.
        term: what a path contributes.
        statistic: definition of a measure of token matrices (``"residual_ratio"``), or a function from the term to
            a number, or to one per text; with ``is_token`` it is given each text by itself, its padding cut out.
        count: how many paths to look at, at least two.
        generator: random source.
        confidence: of the interval, between 0 and 1.
        is_token: False on padding, which is left out.

    >>> from functools import partial
    >>> from rankscope.network import Spec, build, gaussian_tokens, generators
    >>> from rankscope.pathways.isolated import run_path
    >>> weights, tokens = generators(0)
    >>> network = build(Spec(layers=6, heads=4, dim=16, variant="san+skip"), weights)
    >>> term = partial(run_path, network, gaussian_tokens(8, 16, generator=tokens), mode="official")
    >>> for length in (1, 3):
    ...     found = sample_statistic(network, length, term, "residual_ratio", count=50, generator=tokens)
    ...     print(f"{length}: {found.mean:.2f}, {found.low:.2f} to {found.high:.2f}, of {found.paths} paths")
    1: 0.78, 0.78 to 0.78, of 24 paths
    3: 0.06, 0.01 to 0.12, of 1280 paths
    """
    _check(count, confidence)
    paths = paths_of(choices_of(network), length)
    is_exact = paths <= count
    if not is_exact and count < 2:
        raise ConfigError("an interval needs at least two paths; ask for count=2 or more")
    measured = _statistic(statistic, is_token, len(network.blocks))
    if is_exact:
        looked_at = list(every_path(network, length))
    else:
        looked_at = draw_paths(network, length, count, generator=generator)
    known = {path: _value(measured, term, path) for path in dict.fromkeys(looked_at)}
    values = torch.stack([known[path][0] for path in looked_at])
    above = [flag for path in looked_at if (flag := known[path][1]) is not None]
    mean, std = values.mean(dim=0), values.std(dim=0, correction=0 if is_exact else 1)
    reach = torch.zeros_like(std) if is_exact else std * (_student(confidence, count - 1) / count**0.5)
    return Estimate(
        mean=mean,
        low=mean - reach,
        high=mean + reach,
        std=std,
        count=len(looked_at),
        paths=paths,
        is_exact=is_exact,
        resolved=torch.stack(above).double().mean(dim=0) if above else None,
    )


def estimate_sum(estimate: Estimate) -> SumEstimate:
    """The statistic summed over all paths of its length: mean and interval times the number of paths."""
    try:
        paths = float(estimate.paths)
    except OverflowError:
        raise NumericalError(
            "there are more paths than a floating-point number can say, and so is the sum over them; use the mean"
        ) from None
    return SumEstimate(estimate.mean * paths, estimate.low * paths, estimate.high * paths)


Measured = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""The statistic of a term, and where it is above the floor of rounding."""


def _check(count: int, confidence: float) -> None:
    if count < 1:
        raise ConfigError(f"{count} paths were asked for; ask for at least two")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence={confidence} is not between 0 and 1; 0.95 is usual")


def _student(confidence: float, freedom: int) -> float:
    from scipy.special import stdtrit  # here, not above: nothing else in this package needs scipy

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _statistic(statistic: Statistic, is_token: Tensor | None, layers: int) -> Measured:
    if isinstance(statistic, str):
        statistic = find_measure(statistic)
    if isinstance(statistic, Measure):
        return _of_measure(statistic, is_token, layers)
    return _of_function(statistic, is_token)


def _of_measure(measure: Measure, is_token: Tensor | None, layers: int) -> Measured:
    if measure.kind != "tokens":
        raise ConfigError(
            f"{measure.definition} is a measure of attention maps, but the term of a path is a token matrix; "
            "use a measure of tokens, such as residual_ratio"
        )

    def measured(x: Tensor) -> tuple[Tensor, Tensor | None]:
        if is_token is None:
            found = evaluate(measure, x, layer=layers, dtype=x.dtype)
        else:
            found = evaluate_padded(measure, x, is_token, layer=layers, dtype=x.dtype)
        return found.value, found.resolved

    return measured


def _of_function(function: Callable[[Tensor], Tensor | float], is_token: Tensor | None) -> Measured:
    def measured(x: Tensor) -> tuple[Tensor, Tensor | None]:
        if is_token is None:
            return torch.as_tensor(function(x), dtype=torch.float64), None
        keep = is_token.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
        texts = zip(x.reshape(-1, *x.shape[-2:]), keep, strict=True)
        values = [torch.as_tensor(function(text[kept]), dtype=torch.float64) for text, kept in texts]
        return torch.stack(values).reshape((*x.shape[:-2], *values[0].shape)), None

    return measured


def _value(measured: Measured, term: Term, path: Path) -> tuple[Tensor, Tensor | None]:
    found = term(path)
    if not isinstance(found, Tensor):
        raise ShapeError(f"the term of a path must be a tensor, got {type(found).__name__}")
    if found.ndim < 2:
        raise ShapeError(
            f"the term of a path must be a token matrix (*batch, tokens, dim), got shape {tuple(found.shape)}"
        )
    value, resolved = measured(found)
    if not bool(torch.isfinite(value).all()):
        raise NumericalError(
            f"the statistic of path {path} is not a finite number, so neither is its mean; a ratio of a term that is "
            "zero is 0/0: choose a statistic that is defined for every path"
        )
    return value, resolved
