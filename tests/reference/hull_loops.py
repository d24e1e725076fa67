"""Convex hulls in plain loops of rational numbers, from the definition. Imports nothing of ours."""

import itertools
from fractions import Fraction


def vertices(points):
    """Whether each point is no mixture of points that differ from it, by looking at all segments and triangles."""
    exact = [tuple(Fraction(number) for number in point) for point in points]
    return [not is_mixture(p, sorted(set(exact) - {p})) for p in exact]


def is_mixture(p, others):
    """Caratheodory: a mixture of points of the plane is one of at most three of them."""
    return any(in_segment(p, a, b) for a, b in itertools.combinations(others, 2)) or any(
        in_triangle(p, a, b, c) for a, b, c in itertools.combinations(others, 3)
    )


def area(a, b, c):
    """Twice the signed area of a triangle, by the shoelace formula."""
    return a[0] * b[1] - b[0] * a[1] + b[0] * c[1] - c[0] * b[1] + c[0] * a[1] - a[0] * c[1]


def in_segment(p, a, b):
    if area(p, a, b) != 0:
        return False
    return min(a[0], b[0]) <= p[0] <= max(a[0], b[0]) and min(a[1], b[1]) <= p[1] <= max(a[1], b[1])


def in_triangle(p, a, b, c):
    """Inside or on the boundary of a triangle that is not flat."""
    whole = area(a, b, c)
    if whole == 0:
        return False
    weights = [area(p, b, c) / whole, area(a, p, c) / whole, area(a, b, p) / whole]
    return all(weight >= 0 for weight in weights)


def hull_area(points):
    """Area of the convex hull by gift wrapping over distinct points that are not all on one line."""
    exact = [tuple(Fraction(number) for number in point) for point in points]
    corners = sorted({p for p, is_one in zip(exact, vertices(points), strict=True) if is_one})
    start = corners[0]
    total = Fraction(0)
    here = start
    while True:
        there = next(q for q in corners if q != here and all(area(here, q, r) >= 0 for r in corners))
        total += here[0] * there[1] - there[0] * here[1]
        here = there
        if here == start:
            return total / 2
