"""The second largest eigenvalue modulus of long attention maps as a bracket, by products with a few vectors.

Write W for the weighted map without its eigenvalue 1, as in ``gaps``, and rho for its spectral radius, the modulus
sought. A product of two maps takes n^3, a product with some vectors n^2 each. What such products say:

A subspace. Let V have q orthonormal columns and Q = 1 - V V'. With T = V' W V, S = V' W Q, R = Q W V and N = Q W Q,
W is similar to [[T, S], [R, N]] but for q eigenvalues 0, so that outside of the spectrum of N, by the complement of
Schur,

    det (z - W) = 0    exactly where    det (z - T - S (z - N)^-1 R) = 0.

Write T = Y L / Y with eigenvalues l_i, columns y_i of Y and rows x_i of its inverse, and let |(z - N)^-1| <= K on the
circle |z| = s. There the entries of Y^-1 S (z - N)^-1 R Y are at most K |x_i S| |R y_j|, a matrix of rank one, and

    h(s)  =  K sum_i |x_i S| |R y_i| / | s - |l_i| |  <  1

rules out a zero on the circle: a vector v in the null space would have |v_i| <= K |x_i S| c / | s - |l_i| | with c =
sum |R y_j| |v_j|, whence c <= h(s) c, and with c = 0 only the zero vector is left. It does so too for S multiplied by
any number up to 1, so that as many zeros lie outside of the circle as for S = 0, which are the l_i with |l_i| > s
(argument principle; at infinity the determinant is as z^q, and N has no eigenvalue there as K is finite). Hence

    rho > s   if h(s) < 1 and some |l_i| > s;      rho <= s   if h(s) < 1 and no |l_i| > s,

the latter since K and each | s - |l_i| |^-1 fall as s grows. Nothing is asked of V: a bad one makes h large. It spans
the leading directions of a block Krylov space, so that the first R y_i are tiny.

Errors. Whatever W is off by, E with |E| <= e, adds e to S and R, e |x_i| |y_j| to the entries, and makes K / (1 - K e)
of K. The matrix of entries has rank two then, and its largest eigenvalue, that of two by two sums, replaces h. E holds
both the error of the map, in the weights of W, and the rounding of the products behind T, S and R.

The rest N. |N^t| is bounded by products with a block H of m Gaussian columns, which V knows nothing of: if
u' C = |C| v' for a matrix C and unit u and v, then |C H| >= |u' C H| = |C| |v' H|, and |v' H| is the root of a sum of
m squares of normal numbers, which falls below x with a probability of at most (x^2/2)^(m/2) / Gamma(m/2 + 1). With x
for a probability of ``FAILURE``, |N^t| <= |N^t H| / x =: c_t. This is the only place where chance enters; all else is
proven. Then

    K  <=  sum_(t < k) c_t s^(-t-1) / (1 - c_k s^-k)        wherever c_k < s^k.

Rounding. A product is computed in float32: entries of the computed A X are off by at most g A |X|, with g the bound
n u / (1 - n u) of a sum of n numbers in any order and some u for rounding A and X. A does not enlarge much: no entry is
negative and rows sum to one, so that by Jensen, with weights d of the rows,

    sum_i d_i^2 (sum_j A_ij x_j)^2  <=  sum_j (d^2 A)_j x_j^2  <=  a^2 sum_j d_j^2 x_j^2

with a^2 = max_j (d^2 A)_j / d_j^2.

So a weighted product is off by f = a g of |X|_F. Computed powers N_t = fl(N N_(t-1)) are off by the sum of all
|N^(t-j)| f |N_(j-1)|_F, where |N^(t-j)| <= c_(t-j): one bound after the other.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from rankscope.core.numerics import unit_roundoff
from rankscope.core.types import TokenMatrix

BLOCK = 4
"""Vectors of the Krylov space that grow together: a complex pair and two more."""

LEADING = 8
"""Directions that are taken apart from the rest."""

TESTED = 16
"""Gaussian columns that bound the powers of the rest."""

FAILURE = 1e-12
"""The probability that the bound of one power of one map is wrong. At most 54 are taken of a map (``gaps``)."""

SEED = 0
"""Of the start of the Krylov space and of the Gaussian columns: the same for every map, so that a map has one bracket
wherever it is measured."""

SMALLEST_WEIGHT = 3e-3
"""Squared weights are at least this share of the largest: an error of the map counts for more by its root."""

ROUNDED = 1e-6
"""How far a root of an eigenvalue of a Gram matrix may be off, as a share of the largest."""

SMALLEST = 1e-280
"""What is smaller counts as this."""

TINY = 1e-12
"""More than all rounding in float64 of numbers around one, a few thousand terms each."""

HALFWAY = 1e-3
"""A direction is found if what it exchanges with the rest, there and back, is a smaller share of the largest
eigenvalue, squared."""

SURE = 1e-3
"""An inverse that is off by more is none."""

ROUNDS = 3
"""How many times the leading directions are multiplied by a power of T."""


class Subspace(NamedTuple):
    """What is known of W besides its own error; one row per map."""

    moduli: Tensor  # |l_i|
    left: Tensor  # |x_i S|
    right: Tensor  # |R y_i|
    rows: Tensor  # |x_i|; |y_i| is one
    powers: Tensor  # c_0 to c_k
    rounding: Tensor  # of T, S and R
    spread: Tensor  # the largest weight over the smallest


class Weighted(NamedTuple):
    """W as its pieces: D (A - 1 w) / D; rows of n numbers per map.

    Vectors are rows too, since a few rows times a matrix are several times faster than a matrix times a few columns.
    """

    maps: Tensor  # in the dtype of products
    root: Tensor  # the diagonal of D
    row: Tensor  # w / D
    off: Tensor  # f: what a product is off by, relative to the norm of its factor
    size: Tensor  # a bound of |W|

    def times(self, x: Tensor) -> Tensor:
        """W x, with the columns of x as rows, as those of the product are."""
        product = (x / self.root).to(self.maps.dtype) @ self.maps.mT
        return (product - x @ self.row.mT).mul_(self.root)

    def left_times(self, x: Tensor) -> Tensor:
        """x W."""
        product = (x * self.root).to(self.maps.dtype) @ self.maps
        return product / self.root - (x @ self.root.mT) * self.row

    def only(self, places: Tensor) -> "Weighted":
        """Some of the maps."""
        if len(places) == len(self.maps):
            return self
        return Weighted(*(part[places] for part in self))


def subspaces(weighted: Weighted, *, steps: int, powers: int, seed: int = SEED) -> Subspace:
    """The leading directions of every map, and bounds of the rest.

    ``steps`` is how often the Krylov space grows, none if no direction is taken apart; ``powers`` is how many powers of
    the rest are bounded.
    """
    start, tests = (part.to(weighted.maps.device) for part in _gaussian(weighted.maps.shape[-1], seed))
    if not steps:
        none = torch.zeros_like(weighted.root)
        return _apart(weighted, none, none, none, tests, powers)
    v = _leading(weighted, start, steps)
    image, back = weighted.times(v), weighted.left_times(v)
    chosen = _found(v, image, back)
    return _apart(weighted, chosen @ v, chosen @ image, chosen @ back, tests, powers)


def _apart(
    weighted: Weighted, v: Tensor, image: Tensor, back: Tensor, tests: Tensor, powers: int
) -> Subspace:
    """What is known with these directions taken apart, of which the products with W are ``image`` and ``back``."""
    t = v @ image.mT
    right, left = image - t.mT @ v, back - t @ v
    values, vectors, inverse, off = _eigen(t)
    missed = _norm(t.to(vectors.dtype) @ vectors - vectors * values[:, None])
    return Subspace(
        moduli=values.abs(),
        left=_lengths(inverse @ left.to(inverse.dtype), -1) + off[:, None] * _norm(left)[:, None],
        right=_lengths(vectors.mT @ right.to(vectors.dtype), -1),
        rows=_lengths(inverse, -1) + off[:, None],
        powers=_rest(weighted, v, tests, powers),
        rounding=math.sqrt(t.shape[-1]) * weighted.off + missed + TINY,
        spread=(weighted.root.amax(dim=-1) / weighted.root.amin(dim=-1))[:, 0],
    )


def _eigen(t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Eigenvalues and vectors of small matrices, the inverse of these, and how far it may be off; infinite if it is
    none."""
    values, vectors = torch.linalg.eig(t)
    inverse, failed = torch.linalg.inv_ex(vectors)
    missed = inverse @ vectors - torch.eye(t.shape[-1], dtype=vectors.dtype, device=t.device)
    off = 2 * _norm(missed) + TINY * (1 + _norm(inverse))
    return (
        values,
        vectors,
        inverse,
        torch.where((failed == 0) & (off < SURE), off * _norm(inverse), torch.inf),
    )


def _found(v: Tensor, image: Tensor, back: Tensor) -> Tensor:
    """What those directions among ``v`` that W leaves nearly alone are made of, zero rows in place of the others.

    What is taken apart from the rest halfway counts for much in h: the last of two equal moduli, and what the space
    was too small for. From the first such eigenvalue on all are left to the rest.
    """
    t = v @ image.mT
    values, vectors, inverse, _ = _eigen(t)
    moduli = values.abs()
    left = _lengths(inverse @ (back - t @ v).to(inverse.dtype), -1)
    right = _lengths(vectors.mT @ (image - t.mT @ v).to(vectors.dtype), -1)
    is_halfway = ~(left * right < HALFWAY * moduli.amax(dim=-1, keepdim=True) ** 2)
    worst = torch.where(is_halfway, moduli, 0.0).amax(dim=-1, keepdim=True)
    is_found = moduli > worst * (1 + 1e-6)  # both of a complex pair, or none
    kept = torch.where(is_found[:, None], vectors, 0.0).nan_to_num(nan=0.0)
    u: Tensor = torch.linalg.svd(torch.cat([kept.real, kept.imag], dim=-1), full_matrices=False).U
    is_row = torch.arange(u.shape[-1], device=u.device) < is_found.sum(dim=-1, keepdim=True)
    return torch.where(is_row[..., None], u.mT, 0.0)


def shrinks(weighted: Weighted) -> Tensor:
    """By how much W shrinks a vector that it was applied to twice: a guess of the modulus, and cheap."""
    x = _gaussian(weighted.maps.shape[-1], SEED)[0][:1].to(weighted.maps.device)
    sizes = []
    for _ in range(3):
        x = weighted.times(x)
        sizes.append(_norm(x))
    return sizes[2] / sizes[1].clamp(min=SMALLEST)


def ends(found: Subspace, moved: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the bracket for all maps within ``moved`` of these in the Frobenius norm."""
    largest = found.moduli.amax(dim=-1, keepdim=True)
    shares = torch.logspace(-6, -0.02, 48, dtype=torch.float64, device=largest.device)
    leading = found.moduli.topk(min(4, found.moduli.shape[-1]), dim=-1).values
    below = (leading[..., None] * (1 - shares[::2])).flatten(1)
    sizes = torch.logspace(-5, 0, 128, dtype=torch.float64, device=largest.device)
    above = torch.cat([largest * (1 + shares), largest + sizes], dim=-1)
    off = (found.rounding + moved * found.spread)[:, None]
    low = torch.where(_is_free(found, below, off) & (below < largest), below, 0.0).amax(dim=-1)
    high = torch.where(_is_free(found, above, off) & (above > largest), above, torch.inf).amin(dim=-1)
    return low, high


def _is_free(found: Subspace, s: Tensor, off: Tensor) -> Tensor:
    """Whether no matrix within ``off`` has an eigenvalue of modulus ``s``; axes are maps x moduli tried."""
    k = found.powers.shape[-1] - 1
    times = torch.arange(1, k + 1, dtype=s.dtype, device=s.device)
    share = found.powers[:, -1:] * s**-k
    terms = (found.powers[:, None, :-1] * s[..., None] ** -times).sum(dim=-1)
    resolvent = torch.where(share < 1, terms / (1 - share), torch.inf)
    resolvent = torch.where(resolvent * off < 1, resolvent / (1 - resolvent * off), torch.inf)
    away = (s[..., None] - found.moduli[:, None]).abs().reciprocal()
    a = found.left + found.rows * off
    r = found.right + off
    # the entries are off |x_i| 1 + K a_i r_j: the sums of two by two that have the same eigenvalues
    ones, of_left = off * (found.rows[:, None] * away).sum(dim=-1), (a[:, None] * away).sum(dim=-1)
    of_right = off * ((r * found.rows)[:, None] * away).sum(dim=-1)
    both = resolvent * ((r * a)[:, None] * away).sum(dim=-1)
    root = ((ones - both) ** 2 + 4 * resolvent * of_left * of_right).sqrt()
    largest = (ones + both + root) / 2
    # infinite numbers and their differences compare as false
    return (largest * (1 + TINY) < 1) & torch.isfinite(resolvent)


def weighted_maps(maps: TokenMatrix) -> Weighted:
    """W of maps ``(maps, n, n)`` whose rows sum to one, and how much its products round."""
    n = maps.shape[-1]
    kind = torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float64
    of_product = maps.to(kind)

    def before(row: Tensor) -> Tensor:
        return (row.to(kind) @ of_product).double()

    row = before(maps.new_full((len(maps), 1, n), 1 / n))
    for _ in range(2):
        row = before(row)
    row = row / row.sum(dim=-1, keepdim=True)
    squares = torch.maximum(row, SMALLEST_WEIGHT * row.amax(dim=-1, keepdim=True))
    squares = squares / squares.sum(dim=-1, keepdim=True)
    root = squares.sqrt()
    unit = unit_roundoff(kind)
    per_sum = (n + 4) * unit / (1 - (n + 4) * unit)
    # entries that rounding made negative: |A| is at most A and twice the largest of them everywhere
    below = 2 * of_product.amin(dim=(-2, -1)).double().clamp(max=0.0).neg()[:, None]
    largest = ((before(squares)[:, 0] + below) / squares[:, 0]).amax(dim=-1)
    enlarged = (largest * (1 + n * below[:, 0]) * (1 + 2 * per_sum)).sqrt()
    # W is (1 - 1 w) A in weights, but for 1 (w A - w), and the projection 1 - 1 w is as large as 1 w
    left_over = _norm((before(row) - row) / root) + 2 * per_sum * enlarged * _norm(row / root)
    size = _norm(root) * (_norm(row / root) * enlarged + left_over)
    return Weighted(of_product, root, row / root, per_sum * enlarged + TINY, size * (1 + TINY))


@lru_cache(maxsize=4)
def _gaussian(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """The start of the Krylov space, and the vectors of the test, which know nothing of each other."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(BLOCK, n, dtype=torch.float64, generator=generator)
    return start, torch.randn(TESTED, n, dtype=torch.float64, generator=generator)


def _leading(weighted: Weighted, start: Tensor, steps: int) -> Tensor:
    """Orthonormal rows near the leading directions of W: of a block Krylov space, those that grow fastest."""
    count, n = weighted.maps.shape[:2]
    steps = min(steps, max(1, n // (2 * BLOCK)))
    basis = start.new_empty(count, steps * BLOCK, n)
    images = torch.empty_like(basis)
    basis[:, :BLOCK] = _orthonormal(weighted.times(start.expand(count, -1, -1)))
    for step in range(steps):
        here, so_far = slice(step * BLOCK, (step + 1) * BLOCK), (step + 1) * BLOCK
        images[:, here] = x = weighted.times(basis[:, here])
        if step + 1 < steps:
            known = basis[:, :so_far]
            for _ in range(2):
                x = x - (x @ known.mT) @ known
            basis[:, so_far : so_far + BLOCK] = _orthonormal(x)
    small = basis @ images.mT
    power = small
    for _ in range(5):
        power = power / _norm(power).clamp(min=1e-200)[:, None, None]
        power = power @ power
    columns = power[..., :LEADING]
    for _ in range(ROUNDS):
        columns = torch.linalg.qr(power @ columns).Q
    return _orthonormal(columns.mT @ basis)


def _orthonormal(rows: Tensor) -> Tensor:
    found: Tensor = torch.linalg.qr(rows.mT).Q.mT
    return found


def _rest(weighted: Weighted, v: Tensor, tests: Tensor, powers: int) -> Tensor:
    """c_0 to c_k, one row per map."""

    def without(x: Tensor) -> Tensor:
        return x - (x @ v.mT) @ v

    x = without(tests.expand(len(v), -1, -1))
    sizes, grams = [_norm(x)], list[Tensor]()
    for _ in range(powers):
        # products of length one: numbers of float32 have no room for the twelfth power of a small modulus
        x = without(weighted.times(x / _norm(x).clamp(min=SMALLEST)[:, None, None]))
        sizes.append(sizes[-1] * _norm(x))
        grams.append(x @ x.mT)
    shares = torch.linalg.eigvalsh(torch.stack(grams)).amax(dim=-1).clamp(min=0.0).sqrt()
    bounds = [torch.ones_like(weighted.size)]
    for step in range(1, powers + 1):
        off = sum(bounds[step - j] * sizes[j - 1] for j in range(1, step + 1)) * (weighted.off + TINY)
        length = shares[step - 1] * sizes[step - 1] + ROUNDED * sizes[step]
        bounds.append(
            torch.minimum((length + off) / least_length(FAILURE) + SMALLEST, weighted.size * bounds[-1])
        )
    return torch.stack(bounds, dim=-1)


def least_length(failure: float) -> float:
    """A length that ``TESTED`` normal numbers together fall below with a probability of ``failure`` at most."""
    half = TESTED / 2
    return math.sqrt(2 * math.exp((math.log(failure) + math.lgamma(half + 1)) / half))


def _norm(x: Tensor) -> Tensor:
    """The Frobenius norm of every matrix."""
    return _lengths(x.flatten(1), -1)


def _lengths(x: Tensor, axis: int) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=axis)
    return found
