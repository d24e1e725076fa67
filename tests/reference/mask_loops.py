"""Masks and their graphs by plain loops: lists of lists of bools, exact fractions, nothing of rankscope."""

from fractions import Fraction

import mpmath

Mask = list[list[bool]]
Polynomial = list[Fraction]  # highest power first


def mask_from(tokens, reads) -> Mask:
    """The mask in which query i reads key j where ``reads(i, j)``."""
    return [[bool(reads(i, j)) for j in range(tokens)] for i in range(tokens)]


def block_of(token, tokens, blocks):
    """Number of the block that holds ``token``, dealing out blocks one after the other."""
    start = 0
    for block in range(blocks):
        size = tokens // blocks + (1 if block < tokens % blocks else 0)
        if token < start + size:
            return block
        start += size
    raise AssertionError("token behind the last block")


def hops_from(mask: Mask, start: int) -> list[int | None]:
    """Breadth-first search along edges key -> query, one layer at a time."""
    hops: list[int | None] = [None] * len(mask)
    hops[start] = 0
    frontier, layer = [start], 0
    while frontier:
        layer += 1
        found = []
        for key in frontier:
            for query in range(len(mask)):
                if mask[query][key] and hops[query] is None:
                    hops[query] = layer
                    found.append(query)
        frontier = found
    return hops


def centers_and_radius(mask: Mask) -> tuple[list[int], int | None]:
    """Search from every token."""
    eccentricity = {}
    for token in range(len(mask)):
        hops = hops_from(mask, token)
        if None not in hops:
            eccentricity[token] = max(hops)
    return sorted(eccentricity), min(eccentricity.values(), default=None)


def components(mask: Mask) -> set[frozenset[int]]:
    """Tokens that reach each other."""
    tokens = range(len(mask))
    reached = [hops_from(mask, token) for token in tokens]
    return {
        frozenset(b for b in tokens if reached[a][b] is not None and reached[b][a] is not None)
        for a in tokens
    }


def reach(mask: Mask, layers: int) -> Mask:
    """Walks of exactly ``layers`` steps, one layer after the other."""
    tokens = range(len(mask))
    current = mask_from(len(mask), lambda i, j: i == j)
    for _ in range(layers):
        current = [[any(mask[i][k] and current[k][j] for k in tokens) for j in tokens] for i in tokens]
    return current


def uniform_map(mask: Mask) -> list[list[Fraction]]:
    """Equal weight on every allowed key."""
    return [[Fraction(int(allowed), sum(row)) for allowed in row] for row in mask]


def slem(matrix: list[list[Fraction]]) -> float:
    """Second largest eigenvalue modulus of a row-stochastic matrix of fractions.

    The characteristic polynomial, one factor (x - 1) and all repeated factors taken out, is exact; only the simple
    roots that remain are computed, with 50 digits.
    """
    rest, remainder = _divide(_characteristic(matrix), [Fraction(1), Fraction(-1)])
    assert not remainder, "rows do not sum to one"
    if len(rest) == 1:
        return 0.0
    degree = len(rest) - 1
    derivative = [c * (degree - k) for k, c in enumerate(rest[:-1])]
    simple, remainder = _divide(rest, _common_divisor(rest, derivative))
    assert not remainder
    with mpmath.workdps(50):
        coefficients = [mpmath.mpf(c.numerator) / c.denominator for c in simple]
        roots = mpmath.polyroots(coefficients, maxsteps=500, extraprec=400)
        return float(max(abs(root) for root in roots))


def _characteristic(matrix: list[list[Fraction]]) -> Polynomial:
    """Faddeev and LeVerrier's recursion."""
    size = range(len(matrix))
    polynomial = [Fraction(1)]
    current = [[Fraction(0) for _ in size] for _ in size]
    for k in range(1, len(matrix) + 1):
        current = _product(matrix, current)
        for i in size:
            current[i][i] += polynomial[-1]
        polynomial.append(-sum(_product(matrix, current)[i][i] for i in size) / k)
    return polynomial


def _product(a, b):
    size = range(len(a))
    return [[sum((a[i][k] * b[k][j] for k in size), Fraction(0)) for j in size] for i in size]


def _divide(p: Polynomial, q: Polynomial) -> tuple[Polynomial, Polynomial]:
    remainder, quotient = list(p), []
    while len(remainder) >= len(q):
        factor = remainder[0] / q[0]
        quotient.append(factor)
        for k, c in enumerate(q):
            remainder[k] -= factor * c
        remainder.pop(0)
    while remainder and remainder[0] == 0:
        remainder.pop(0)
    return quotient, remainder


def _common_divisor(p: Polynomial, q: Polynomial) -> Polynomial:
    while q:
        p, q = q, _divide(p, q)[1]
    return [c / p[0] for c in p]
