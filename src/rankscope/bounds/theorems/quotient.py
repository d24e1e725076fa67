"""The quotient lemma: by how much a map and a value matrix enlarge a residual, in every norm, with sharp constants.

For ``P 1 = 1`` and any row c, ``P X - 1 c' = (P - 1 c) R`` with ``R = X - 1 x``. So in every submultiplicative norm
``r(P X W + 1 b) <= r(P) |W| r(X)``: biases vanish, and the coefficient of the map is its own residual. Row diameters,
and the largest entry from the midrange, shrink by the Dobrushin coefficient ``tau(P)`` itself; other residuals do not,
and the last column is the least factor on ``tau`` that is right for all maps.

| quantity | coefficient of P | norm of W | least factor on tau |
|---|---|---|---|
| diameter[l1] | tau | largest row sum | 1 |
| diameter[l2] | tau | spectral | 1 |
| diameter[linf] | tau | largest column sum | 1 |
| residual[max,midrange] | tau | largest column sum | 1 |
| residual[frobenius,mean] | |JP|_2 | spectral | sqrt(2 floor(n / 2) ceil(n / 2) / n) |
| residual[spectral,mean] | |JP|_2 | spectral | sqrt(2 floor(n / 2) ceil(n / 2) / n) |
| residual[l1,median] | residual[l1,median] of P | largest column sum | floor(n / 2) |
| residual[linf,best] | residual[linf,best] of P | largest row sum | 2 - 2 / min(n, d + 1), 1 if d = 2 |
| residual[composite,best] | residual[composite,best] of P | composite | none |

Squares: ``P`` narrows the range of a column x to ``osc(P x) <= tau osc(x)``, and ``osc(x) <= sqrt(2) |J x|`` with
equality for ``x = e_1 - e_2``. Of n numbers within a range D, ``|J y|`` is largest with half of them at either end,
where it is ``D sqrt(floor(n/2) ceil(n/2) / n)``: a sum of squared distances to the mean is convex in every number, so
ends are best, and k of n numbers at one end give ``D^2 k (n - k) / n``. Together the factor of the table, ``sqrt(n /
2)`` for even n.

Row sums: a set of diameter D lies in a ball of radius ``D (1 - 1/m)``, m = min(n, d + 1) (Bohnenblust 1938), so
``r(P X) <= (2 - 2/m) diam(P X) / 2 <= (2 - 2/m) tau diam(X) / 2 <= (2 - 2/m) tau r(X)``. The plane with l1 is the plane
with linf turned by 45 degrees, where balls are boxes and the radius is half the diameter: factor 1. The identity
attains ``2 - 2/n`` as a coefficient of a map (d = n), six tokens in three dimensions attain 3/2 as a ratio of
residuals; where neither case applies the number is a bound, and may not be the least.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.bounds.contraction import dobrushin_bound
from rankscope.core.operator_norms import MARGIN, column_sum_bound, row_sum_bound, spectral_bound
from rankscope.core.registry import unknown_name
from rankscope.measures import checked_map, residual, residual_bracket


def _dobrushin(maps: Tensor) -> Tensor:
    return dobrushin_bound(maps).clamp(max=1.0)


def _centered_spectral(maps: Tensor) -> Tensor:
    return spectral_bound(residual(maps, center="mean"))


def _own_residual(norm: str) -> Callable[[Tensor], Tensor]:
    return lambda maps: residual_bracket(maps, norm=norm).high * (1 + MARGIN)


def _composite(matrix: Tensor) -> Tensor:
    return (row_sum_bound(matrix) * column_sum_bound(matrix)).sqrt() * (1 + MARGIN)


COEFFICIENTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "diameter[l1]": (_dobrushin, row_sum_bound),
    "diameter[l2]": (_dobrushin, spectral_bound),
    "diameter[linf]": (_dobrushin, column_sum_bound),
    "residual[max,midrange]": (_dobrushin, column_sum_bound),
    "residual[frobenius,mean]": (_centered_spectral, spectral_bound),
    "residual[spectral,mean]": (_centered_spectral, spectral_bound),
    "residual[l1,median]": (_own_residual("l1"), column_sum_bound),
    "residual[linf,best]": (_own_residual("linf"), row_sum_bound),
    "residual[composite,best]": (_own_residual("composite"), _composite),
}
"""By definition: the coefficient of the map, and the norm of the value matrix."""


def map_coefficient(maps: Tensor, quantity: str) -> Tensor:
    """``k(P)`` in ``q(P X W) <= k(P) |W| q(X)``, rounded up, for maps ``*batch tokens tokens``: ``*batch``.

    >>> map_coefficient(torch.eye(4, dtype=torch.float64), "diameter[l2]").item()
    1.0
    """
    return _known(quantity)[0](checked_map(maps, tokens=2))


def value_coefficient(matrix: Tensor, quantity: str) -> Tensor:
    """``|W|`` in ``q(P X W) <= k(P) |W| q(X)``, rounded up, for ``*batch dim dim``: ``*batch``."""
    return _known(quantity)[1](matrix)


def sharp_ratio(quantity: str, tokens: int, dim: int) -> float:
    """The least ``c`` with ``q(P X) <= c tau(P) q(X)`` for all maps of so many tokens; infinite where none is known.

    With ``dim=tokens`` it is the least one with ``k(P) <= c tau(P)``. The module has the derivations, and says for
    which numbers of tokens the factor of row sums is known to be the least.

    >>> sharp_ratio("residual[l1,median]", tokens=9, dim=4)
    4.0
    >>> round(sharp_ratio("residual[frobenius,mean]", tokens=3, dim=1), 4)
    1.1547
    """
    _known(quantity)
    match quantity:
        case "residual[frobenius,mean]" | "residual[spectral,mean]":
            return math.sqrt(2 * (tokens // 2) * ((tokens + 1) // 2) / tokens)
        case "residual[l1,median]":
            return float(tokens // 2)
        case "residual[linf,best]":
            return 1.0 if dim == 2 else 2 - 2 / min(tokens, dim + 1)
        case "residual[composite,best]":
            return math.inf
    return 1.0


def variation_bound(oscillation: Tensor) -> Tensor:
    """``tanh(Delta / 4)``: what the Dobrushin coefficient of softmax rows over the same keys is at most.

    ``Delta = max_ij osc_k(a_ik - a_jk)`` of the logits: if ``p`` is proportional to ``q e^a`` their total variation is
    at most ``tanh(osc(a) / 4)``, attained by two keys.

    >>> variation_bound(torch.tensor(0.0)).item()
    0.0
    """
    return torch.tanh(oscillation.double() / 4)


def logit_oscillation(logits: Tensor) -> Tensor:
    """``max_ij osc_k(a_ik - a_jk)`` of logits ``*batch tokens keys``: ``*batch``.

    For every pair of keys the range over queries of the difference of their logits; the largest of these.
    """
    found = torch.zeros(logits.shape[:-2], dtype=torch.float64, device=logits.device)
    for key in range(logits.shape[-1]):
        against = logits.double() - logits[..., key : key + 1].double()
        found = torch.maximum(found, (against.amax(dim=-2) - against.amin(dim=-2)).amax(dim=-1))
    return found


def mean_ratio(tokens: int) -> float:
    """``2 - 2/n``: the residual from the mean over the best one, at most, in l1, linf, max and the composite norm.

    The mean is the best center for the Frobenius and spectral norms; in a norm that weighs tokens differently the
    ratio can be anything.
    """
    return 2 - 2 / tokens


def _known(quantity: str) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    if quantity not in COEFFICIENTS:
        raise unknown_name("quantity that attention shrinks", quantity, COEFFICIENTS)
    return COEFFICIENTS[quantity]
