"""How far a residual moves when the state is off by rounding: Lipschitz constants of every norm about every center.

The error E of the state X is measured in the norm N of the residual: ``|E|`` and ``|E - 1 mean(E)|`` are at most
``delta = relative |X|``; in the composite norm both of its factors are, the largest column sum and the largest row sum.
What the tokens have in common moves the mean and no residual about it, which is why the second condition is there: of
errors that are independent from token to token it says nothing new.

- Own center: ``r(X) = min_c |X - 1c|`` moves by at most delta, because every center is as good for X + E up to ``|E|``.
- Mean: R moves by ``E - 1 mean(E)``, so its norm by delta.
- Median and midrange in another norm: entry j of the center moves by at most ``max_i |E_ij|`` (order statistics are
  monotone, and move with a shift). So R moves by E and by a constant row t with that size at most:
  ``|1t|_max <= |E|_max``, ``|1t|_1 = n max t <= n |E|_1``, ``|1t|_inf = sum t <= min(n, d) |E|_inf``,
  ``|1t|_F = sqrt(n) |t|_2 <= sqrt(n) |E|_F`` and ``|1t|_2 <= sqrt(n) |E|_F <= sqrt(n min(n, d)) |E|_2``.
- linf center in another norm: minimizers are not unique, and the one that is found may jump to any other. What can be
  said is the interval of values at all of them (``_at_any_center``).

The composite norm is the root of a product f g of two norms, and moves with both factors (``product_change``).
"""

import math

import torch
from torch import Tensor

from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.measures.brackets import TOLERANCE, Bracket
from rankscope.measures.centers import BEST_ROWS, ROWS, offsets_from, spread
from rankscope.measures.norms import NORMS, l1_norm, linf_norm
from rankscope.measures.residuals import is_own_center, residual_norm_of, solved


def residual_floor(x: TokenMatrix, relative: float | Tensor, norm: str, center: str) -> PerMatrix:
    """Largest change of the residual about ``center`` when the state is off by ``relative`` in the same norm."""
    if center == "linf" and norm != "linf":
        return _at_any_center(x, relative, norm)
    if norm == "composite":
        return _composite_floor(x, relative, center)
    moved = relative * NORMS[norm](x)
    return moved * _stretch(norm, center, *x.shape[-2:])


def ratio_floor(x: TokenMatrix, relative: float | Tensor, norm: str, center: str) -> PerMatrix:
    """The same of the residual over the norm ``s`` of the state, which moves by ``relative s`` at most as well.

    With ``delta`` the floor of the residual r, ``r/s - (r - delta) / (s + relative s)`` is
    ``(delta/s + (r/s) relative) / (1 + relative)``: that far the ratio may be above the truth, and it exceeds the ratio
    exactly if ``delta`` exceeds r. It may be below the truth by ``(1 + relative) / (1 - relative)`` times as much.

    In the Frobenius norm about the mean the ratio is the sine of the angle between X and the states at consensus. X
    turns by at most ``asin(relative)``, and ``sin(a + b) - sin(a) <= sin(b)``: the floor is ``relative`` itself.
    """
    if norm == "frobenius" and is_own_center(norm, center):
        return torch.as_tensor(relative, dtype=torch.float64, device=x.device).expand(x.shape[:-2])
    size = NORMS[norm](x)
    delta = residual_floor(x, relative, norm, center) / size
    value = residual_norm_of(x, norm, center)
    return ratio_change(delta, (value.high if isinstance(value, Bracket) else value) / size, relative)


def ratio_change(delta: Tensor, value: Tensor, relative: float | Tensor) -> Tensor:
    """The floor of a ratio from that of its numerator, over the denominator: see ``ratio_floor``."""
    return (delta + value * relative) / (1 + relative)


def product_change(
    f: Tensor, g: Tensor, moved_f: Tensor, moved_g: Tensor, tokens: int | Tensor, dim: int | Tensor
) -> PerMatrix:
    """Largest change of ``sqrt(f g)`` when the column sum f and the row sum g of a matrix move by so much at most.

    Neither can vanish alone: the largest row sum is at least the mean one, ``f / tokens``, and ``f >= g / dim``. Square
    roots are taken before products, which could overflow.
    """
    least_f, least_g = (f - moved_f).clamp(min=0), (g - moved_g).clamp(min=0)
    low_f, low_g = torch.maximum(least_f, least_g / dim), torch.maximum(least_g, least_f / tokens)
    value = f.sqrt() * g.sqrt()
    above = (f + moved_f).sqrt() * (g + moved_g).sqrt() - value
    return torch.maximum(above, value - low_f.sqrt() * low_g.sqrt())


def _stretch(norm: str, center: str, tokens: int, dim: int) -> float:
    """How many times ``|E|`` the residual about a center can move: one for the mean and for the norm's own center."""
    if center == "mean" or is_own_center(norm, center):
        return 1.0
    shift = {
        "max": 1.0,
        "l1": float(tokens),
        "linf": float(min(tokens, dim)),
        "frobenius": math.sqrt(tokens),
        "spectral": math.sqrt(tokens * min(tokens, dim)),
    }
    return 1.0 + shift[norm]


def _composite_floor(x: TokenMatrix, relative: float | Tensor, center: str) -> PerMatrix:
    moved_f, moved_g = relative * l1_norm(x), relative * linf_norm(x)
    if center == "best":
        return _best_composite_floor(x, moved_f, moved_g)
    y, (tokens, dim) = _at(x, center), x.shape[-2:]
    stretch_f, stretch_g = (_stretch(norm, center, tokens, dim) for norm in ("l1", "linf"))
    return product_change(l1_norm(y), linf_norm(y), stretch_f * moved_f, stretch_g * moved_g, tokens, dim)


def _best_composite_floor(x: TokenMatrix, moved_f: Tensor, moved_g: Tensor) -> PerMatrix:
    """Of the smallest ``h = sqrt(f g)`` over all centers, where f and g depend on which center is the best one.

    Up: the center of before has ``f + moved_f`` and ``g + moved_g`` at most. Down: at the center of afterwards f' is at
    least F, the smallest column sum of all centers less ``moved_f``, and g' at least G likewise. So
    ``h^2 <= (f' + moved_f) (g' + moved_g) <= h'^2 (1 + moved_f / F + moved_g / G) + moved_f moved_g``, because
    ``g' = h'^2 / f' <= h'^2 / F``. The row sum about the mean is at most twice the smallest one.
    """
    found, both = solved(x, "composite"), moved_f.sqrt() * moved_g.sqrt()
    f, g, high = l1_norm(found.residual), linf_norm(found.residual), found.high
    least_f = (l1_norm(_at(x, "median")) - moved_f).clamp(min=0)
    least_g = (linf_norm(_at(x, "mean")) / 2 - moved_g).clamp(min=0)
    above = (f + moved_f).sqrt() * (g + moved_g).sqrt() - high
    grown = 1 + moved_f / least_f + moved_g / least_g
    left = (high - both).clamp(min=0).sqrt() * (high + both).sqrt() / grown.sqrt()
    below = high - torch.where(torch.isfinite(grown), left, 0.0)
    return torch.maximum(torch.maximum(above, below), both)


def _at_any_center(x: TokenMatrix, relative: float | Tensor, norm: str) -> PerMatrix:
    """How far the value at the linf center may be from that at any other near-best center, of X or of X + E.

    Every such center is within ``rho = (1 + tolerance) (r + |E|_inf)`` of every token in l1, r the smallest possible.
    So rows of what is left have an l1 norm of rho at most, which bounds all norms from above; from below the best
    center of the norm does. ``|E|_inf`` is at most d times the largest entry and the largest column sum, and sqrt(d)
    times the Frobenius and the spectral norm of E.
    """
    tokens, dim = x.shape[-2:]
    moved = relative * linf_norm(x) if norm == "composite" else relative * NORMS[norm](x)
    in_rows = {"max": dim, "l1": dim, "composite": 1.0}.get(norm, math.sqrt(dim)) * moved
    found = solved(x, "linf")
    # Twice the tolerance: a search that runs out of rounds ends a little above it.
    rho = (1 + 2 * TOLERANCE) * (found.high + in_rows)
    high = {"max": 1.0, "l1": float(tokens)}.get(norm, math.sqrt(tokens)) * rho
    if (
        norm == "composite"
    ):  # both factors are at least their smallest values, as in ``_best_composite_floor``
        least_f = (l1_norm(_at(x, "median")) - relative * l1_norm(x)).clamp(min=0)
        least_g = (linf_norm(_at(x, "mean")) / 2 - moved).clamp(min=0)
        low = least_f.sqrt() * least_g.sqrt()
    else:
        low = (NORMS[norm](offsets_from(x, BEST_ROWS[norm])) * spread(x).scale - moved).clamp(min=0)
    value = NORMS[norm](found.residual)
    return torch.maximum(high - value, value - low)


def _at(x: TokenMatrix, name: str) -> TokenMatrix:
    """What is left of the tokens at the center of that name."""
    return offsets_from(x, ROWS[name]) * spread(x).scale[..., None, None]
