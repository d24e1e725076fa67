"""Largest eigenvalue modulus of a small matrix of fractions, to the last digit of a float, multiple or not.

Nothing here is a float until the end. The characteristic polynomial is computed in whole numbers. Its largest root
modulus then follows from Graeffe's root squaring in fixed-point arithmetic whose rounding is carried along: multiple
and nearly multiple roots, which cost an eigenvalue solver half its digits or more, are no special case.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import comb, lcm, nextafter
from typing import NamedTuple

import mpmath  # type: ignore[import-untyped]  # has no types
import numpy as np

Rows = Sequence[Sequence[Fraction]]

EXACT_TOKENS = 24
"""Blocks up to this size are solved exactly, in about a tenth of a second."""

_SQUARINGS = 64
"""Roots are raised to the power 2^64: what is unknown of their size, at most a factor 2n, becomes 3e-19 of it."""

_BITS = 512  # behind the binary point; doubled until the result is certain


class Modulus(NamedTuple):
    """A modulus and the floats it certainly lies between."""

    value: float
    low: float
    high: float


def exact_modulus(matrix: Rows, *, closed: bool) -> Modulus:
    """The largest eigenvalue modulus; of a closed block, whose rows sum to one, one eigenvalue 1 is left out.

    >>> exact_modulus([[Fraction(1, 2), Fraction(1, 2)], [Fraction(1, 3), Fraction(2, 3)]], closed=True).value
    0.16666666666666666
    """
    scale = lcm(*(entry.denominator for row in matrix for entry in row))
    polynomial = _characteristic([[int(scale * entry) for entry in row] for row in matrix])
    if closed:
        polynomial = _without_root(polynomial, scale)
    if not any(polynomial[1:]):
        return Modulus(0.0, 0.0, 0.0)
    bits = _BITS
    while True:
        found = _largest_root(polynomial, scale, bits)
        if found is not None:
            return found
        bits *= 2


def _characteristic(matrix: list[list[int]]) -> list[int]:
    """Coefficients of ``det(x - M)``, highest power first, by Faddeev and LeVerrier.

    With M_1 = M and c_k = -trace(M_k) / k, M_{k+1} = M (M_k + c_k). The divisions leave no remainder.
    """
    m = np.array(matrix, dtype=object)
    diagonal = np.arange(len(matrix))
    power, coefficients = m.copy(), [1]
    for k in range(1, len(matrix) + 1):
        if k > 1:
            power[diagonal, diagonal] += coefficients[-1]
            power = m @ power
        coefficients.append(-int(power[diagonal, diagonal].sum()) // k)
    return coefficients


def _without_root(polynomial: list[int], root: int) -> list[int]:
    """The polynomial divided by ``x - root``, by Horner's rule; what remains would be its value there, zero."""
    quotient = [polynomial[0]]
    for coefficient in polynomial[1:]:
        quotient.append(coefficient + root * quotient[-1])
    if quotient.pop():
        raise ValueError("the rows of a closed block sum to one, so 1 is an eigenvalue of it")
    return quotient


def _largest_root(polynomial: list[int], scale: int, bits: int) -> Modulus | None:
    """Largest root modulus over ``scale``, or None where so many bits leave too much of it open.

    Roots z_i of a monic polynomial of degree n with coefficients a_i have a largest modulus r with

        max_i (|a_i| / C(n, i))^(1/i)  <=  r  <=  2 max_i |a_i|^(1/i):

    on the left, because |a_i| is at most the sum of C(n, i) products of i roots; on the right (Fujiwara) because
    |z| > 2 max |a_i|^(1/i) makes |a_i z^(n-i)| < |z|^n 2^-i, so that the rest cannot cancel z^n. The two sides
    differ by a factor 2n at most. Graeffe's step replaces the roots by their squares:

        b_i = (-1)^i (a_i^2 + 2 sum_{j >= 1} (-1)^j a_{i-j} a_{i+j}).

    After s steps the roots are k-th powers, k = 2^s, and that factor shrinks to its k-th root. Coefficients are whole
    numbers over 2^bits, each with a radius of what rounding may have done to it. After each step x is divided by a
    power of two, so that r stays at least 1 (no radius is ever scaled up) and at most about 4n; ``exponent`` counts
    these.
    """
    degree = len(polynomial) - 1
    binomials = [comb(degree, i) for i in range(degree + 1)]
    # In the beginning the roots, over ``scale``, are scaled up such that r is at least 1.
    sure = _floor_log([one << bits for one in polynomial], [0] * (degree + 1), binomials, bits)
    exponent = min(0, (0 if sure is None else sure) - scale.bit_length())
    middle = [(one << bits - exponent * i) // scale**i for i, one in enumerate(polynomial)]
    radius = [0] + [1] * degree
    for _ in range(_SQUARINGS):
        middle, radius = _squared(middle, radius, bits)
        exponent *= 2
        sure = _floor_log(middle, radius, binomials, bits)
        if sure is None:
            return None
        down = max(sure, 0)  # r is at least 1 whatever this bound says
        middle = [one >> down * i for i, one in enumerate(middle)]
        radius = [0] + [(one >> down * i) + 2 for i, one in enumerate(radius) if i]
        exponent += down
    low = _floor_log(middle, radius, binomials, bits)
    high = 1 + max(
        -(-((abs(a) + e).bit_length() - bits) // i)
        for i, (a, e) in enumerate(zip(middle, radius, strict=True))
        if i
    )
    if low is None or high - low > degree.bit_length() + 8:  # a factor 2n, and each end rounded
        return None
    with mpmath.workprec(160):
        ends = [mpmath.mpf(2) ** (mpmath.mpf(exponent + end) / 2**_SQUARINGS) for end in (low, high)]
        value = float(sum(ends) / 2)
        return Modulus(value, nextafter(float(ends[0]), 0.0), nextafter(float(ends[1]), 2.0))


def _squared(middle: list[int], radius: list[int], bits: int) -> tuple[list[int], list[int]]:
    """One step of Graeffe on balls: ``|xy - ab| <= |a| e_y + |b| e_x + e_x e_y``, and one unit for the shift."""
    degree = len(middle) - 1
    squares, radii = [], []
    for i in range(degree + 1):
        total, spread = middle[i] ** 2, radius[i] * (2 * abs(middle[i]) + radius[i])
        for j in range(1, min(i, degree - i) + 1):
            a, b, e, f = middle[i - j], middle[i + j], radius[i - j], radius[i + j]
            total += (-2 if j % 2 else 2) * a * b
            spread += 2 * (abs(a) * f + abs(b) * e + e * f)
        squares.append((-total if i % 2 else total) >> bits)
        radii.append((spread >> bits) + 2 if i else 0)
    return squares, radii


def _floor_log(middle: list[int], radius: list[int], binomials: list[int], bits: int) -> int | None:
    """A whole number at most log2 of the lower bound of r; None if the radii leave nothing of it."""
    found = [
        (((abs(a) - e) // binomial).bit_length() - 1 - bits) // i
        for i, (a, e, binomial) in enumerate(zip(middle, radius, binomials, strict=True))
        if i and abs(a) - e >= binomial
    ]
    return max(found, default=None)
