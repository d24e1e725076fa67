"""The algebra of a fall: what adding a branch to a stream does to the residual ratio, shared out among its pieces.

A token matrix of n tokens is ``X = 1 m' + R`` with m the mean token and R what is left. With ``M = n |m|^2`` and
``r = |R|_F`` the residual ratio is ``rho^2 = r^2 / (M + r^2)``, and its log-odds are ``t = ln(r^2 / M)``:

    rho^2 = 1 / (1 + exp(-t)).

Everything here is a function of squared sizes and inner products, one number per text. Five statements are used:

I1  ``rho(sX + F) = rho(X) * (|sX| / |Y|) * (|sR + R_F| / |sR|)`` for ``Y = sX + F`` and a number s: the share of the
    skip times the growth of the differences. Multiply out: ``rho(X) = |R| / |X|``, and ``|sR + R_F|`` is the residual
    of Y.
I2  ``t(Y) - t(X) = D - G`` with ``D = ln(|sR + R_F|^2 / |sR|^2)`` and ``G = ln(|s m + m_F|^2 / |s m|^2)``: the ratio
    falls where the common part grows faster than the differences. Subtract the two log-odds.
I3  attention and MLPs are sums of pieces (``rankscope.mechanism.pieces``).
I4  the logarithm of a sum has exact shares (``growth``).
I5  a stream that nobody shrinks stands beside the real one (``rankscope.mechanism.decompose``).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FEW = 0.1
"""Below this relative size of what is added, both integrals are taken by quadrature: their closed forms cancel."""

PARALLEL = 1e-10
"""Where the squared sine of the angle between two rows is below this and they cancel, no direction is left to tell."""

TINY = 1e-200
"""What is exactly zero has no logarithm; it counts as this share of what is added to it."""

_NODES = (
    (0.06943184420297371, 0.17392742256872692),
    (0.33000947820757187, 0.32607257743127307),
    (0.6699905217924281, 0.32607257743127307),
    (0.9305681557970263, 0.17392742256872692),
)
"""Gauss-Legendre nodes and weights on [0, 1]."""

PIECES = 8
"""Equal parts of [0, 1] that are integrated one by one. With four nodes each, and poles at least three lengths of the
whole way off, the error is that of rounding."""


def log_ratio(log_odds: Tensor) -> Tensor:
    """``ln rho`` from the log-odds t: ``rho^2 = 1 / (1 + exp(-t))``.

    >>> round(float(log_ratio(torch.tensor(0.0, dtype=torch.float64)).exp() ** 2), 12)
    0.5
    """
    return 0.5 * torch.nn.functional.logsigmoid(log_odds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """``ln(|a + v|^2 / |a|^2)`` and the two integrals that share it out among the pieces of v.

    The share of a piece ``v_k`` is ``<a, v_k> along + <v, v_k> size``.
    """

    total: Tensor
    along: Tensor
    size: Tensor


def growth(own: Tensor, between: Tensor, added: Tensor) -> Growth:
    """How ``ln |a|^2`` grows when v is added, from ``own = |a|^2``, ``between = <a, v>`` and ``added = |v|^2``.

    Along the straight way ``a + u v`` the derivative ``d/du ln |a + u v|^2 = 2 (<a, v> + u |v|^2) / |a + u v|^2`` is
    linear in v, so every piece has its own part of it (Aumann and Shapley): with A, B, C the three arguments and
    ``q(u) = A + 2 B u + C u^2``

        ln(|a + v|^2 / A) = sum_k <a, v_k> J0 + <v, v_k> J1,    J0 = int 2 / q du,    J1 = int 2 u / q du,

    both over [0, 1]. ``J1`` is what a branch of that size adds whatever its direction, ``J0`` what it adds because it
    points where a points: zero for orthogonal rows. Neither an order of the pieces nor 2^n subsets are needed.

    Closed forms: with ``h = sqrt(AC - B^2)``, ``J0 = (2 / h) [atan((C + B) / h) - atan(B / h)]``. The difference of two
    angles is the angle of ``h (C + B - B)`` over ``h^2 + B (C + B) = C (A + B)``, so ``J0 = (2 / h) atan2(h, A + B)``:
    nothing cancels, and for ``h -> 0`` it is ``2 / (A + B)``. ``J1 = (ln(q(1) / A) - B J0) / C`` follows from
    ``int (2B + 2Cu) / q = ln(q(1) / A)``. It cancels where v is small; there both are integrated numerically.

    Where ``a + u v`` passes through zero the integrals diverge although the total does not; the pieces then share the
    total by ``<v, v_k> / C`` alone, which adds up as well.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> float(growth(one, 0 * one, 3 * one).total.exp().round())
    4.0
    """
    a = torch.maximum(own, TINY * added)
    a = torch.where(a > 0, a, 1.0)
    b, c = between / a, added / a
    end = 1 + 2 * b + c
    height2 = (c - b * b).clamp(min=0.0)
    flat = height2 <= PARALLEL * c
    crossing = flat & (1 + b < PARALLEL**0.5 * (1 + c).sqrt())
    height = height2.sqrt()
    angle = torch.atan2(height, 1 + b)
    level = torch.where(1 + b > 0, 1 + b, 1.0)
    slim = height <= 1e-5 * level  # atan(x) / x = 1 - x^2 / 3 to all digits
    ratio = torch.where(
        slim, (1 - (height / level).square() / 3) / level, angle / torch.where(height > 0, height, 1.0)
    )
    j0 = 2 * ratio
    log_end = torch.where(
        (2 * b + c).abs() < 0.5, torch.log1p((2 * b + c).clamp(min=-0.9)), end.clamp(min=TINY).log()
    )
    j1 = (log_end - b * j0) / torch.where(c > 0, c, 1.0)
    few = 2 * b.abs() + c < FEW
    if bool(few.any()):
        small0, small1 = _integrals(torch.where(few, b, 0.0), torch.where(few, c, 0.0))
        j0, j1 = torch.where(few, small0, j0), torch.where(few, small1, j1)
    j0 = torch.where(crossing, 0.0, j0)
    j1 = torch.where(crossing, log_end / torch.where(c > 0, c, 1.0), j1)
    return Growth(total=log_end, along=j0 / a, size=j1 / a)


def _integrals(b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    u = torch.tensor([(part + node) / PIECES for part in range(PIECES) for node, _ in _NODES], dtype=b.dtype)
    weights = torch.tensor([weight / PIECES for _ in range(PIECES) for _, weight in _NODES], dtype=b.dtype)
    u, weights = u.to(b.device), weights.to(b.device)
    values = 2 * weights / (1 + 2 * b[..., None] * u + c[..., None] * u * u)
    return values.sum(dim=-1), (u * values).sum(dim=-1)


def odds_to_ratio(before: Tensor, after: Tensor) -> Tensor:
    """The factor w in (0, 1/2) with ``ln rho' - ln rho = w (t' - t)``: shares of log-odds times w are shares of ln rho.

    ``ln rho`` has the slope ``(1 - rho^2) / 2 = 1 / (2 (1 + e^t))`` in t, so w is a mean of slopes: positive, and signs
    survive. Where the step is too small to be divided by, it is the slope in the middle of the step.
    """
    step = after - before
    slope = 0.5 * torch.sigmoid(-0.5 * (before + after))
    wide = step.abs() > 1e-5
    quotient = (log_ratio(after) - log_ratio(before)) / torch.where(wide, step, 1.0)
    return torch.where(wide, quotient, slope)


def share_and_diversity(own: Tensor, whole: Tensor, kept: Tensor, grown: Tensor) -> tuple[Tensor, Tensor]:
    """The two factors of I1: ``|sX| / |Y|`` and ``|sR + R_F| / |sR|``, from natural logarithms of the four norms."""
    return (own - whole).exp(), (grown - kept).exp()


def response(
    read: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], *, reads_norm: bool
) -> tuple[Tensor, Tensor]:
    """Logarithms of what the answers of a branch grow by if it reads another stream: to the common part, and to the
    differences. Both streams are ``(ln M, ln r^2)``.

    To first order an answer grows as what it answers to, by the root of ``M'/M`` and by ``r'/r``. A norm divides by the
    length, so that behind one the same holds of the shares ``M / (M + r^2)`` and ``r^2 / (M + r^2)``. Where there is
    nothing to answer to, nothing grows.
    """
    (m, r), (m_other, r_other) = read, other
    if reads_norm:
        wholes = (torch.logaddexp(m, r), torch.logaddexp(m_other, r_other))
        whole, whole_other = (
            torch.where(one > -torch.inf, one, 0.0) for one in wholes
        )  # nothing stays nothing
        m, r, m_other, r_other = m - whole, r - whole, m_other - whole_other, r_other - whole_other
    common = torch.where(m > -torch.inf, 0.5 * (m_other - m), 0.0)
    return common, torch.where(r > -torch.inf, 0.5 * (r_other - r), 0.0)
