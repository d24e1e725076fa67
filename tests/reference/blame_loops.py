"""Blame by hand: the four kinds of block written out step by step in numpy, and Shapley values by all orders."""

import math
from collections.abc import Callable
from itertools import permutations

import numpy as np

Matrix = np.ndarray
Map = Callable[[Matrix], Matrix]
Step = tuple[str, float]


def log_ratio(x: Matrix) -> float:
    """ln of the distance of the rows from their mean, over the size of the matrix."""
    tokens, dim = x.shape
    mean = [math.fsum(x[i, d] for i in range(tokens)) / tokens for d in range(dim)]
    apart = math.fsum((x[i, d] - mean[d]) ** 2 for i in range(tokens) for d in range(dim))
    size = math.fsum(x[i, d] ** 2 for i in range(tokens) for d in range(dim))
    return 0.5 * (math.log(apart) - math.log(size))


def shapley(value: Callable[[frozenset[int]], float], count: int) -> list[float]:
    """The mean over all orders of what each player adds to those who came before."""
    shares = [0.0] * count
    orders = list(permutations(range(count)))
    for order in orders:
        for place, player in enumerate(order):
            team = frozenset(order[:place])
            shares[player] += (value(team | {player}) - value(team)) / len(orders)
    return shares


def pre(x: Matrix, norms: list[Map], attention: Map, mlp: Map) -> tuple[list[Step], Matrix]:
    a = norms[0](x)
    b = attention(a)
    c = x + b
    d = norms[1](c)
    e = mlp(d)
    f = c + e
    names = ["norm", "attention", "skip", "norm.2", "mlp", "skip.2"]
    return changes(names, [x, a, b, c, d, e, f]), f


def post(x: Matrix, norms: list[Map], attention: Map, mlp: Map) -> tuple[list[Step], Matrix]:
    a = attention(x)
    b = x + a
    c = norms[0](b)
    d = mlp(c)
    e = c + d
    f = norms[1](e)
    names = ["attention", "skip", "norm", "mlp", "skip.2", "norm.2"]
    return changes(names, [x, a, b, c, d, e, f]), f


def sandwich(x: Matrix, norms: list[Map], attention: Map, mlp: Map) -> tuple[list[Step], Matrix]:
    a = norms[0](x)
    b = attention(a)
    c = norms[1](b)
    d = x + c
    e = norms[2](d)
    f = mlp(e)
    g = norms[3](f)
    h = d + g
    names = ["norm", "attention", "norm.2", "skip", "norm.3", "mlp", "norm.4", "skip.2"]
    return changes(names, [x, a, b, c, d, e, f, g, h]), h


def parallel(x: Matrix, norms: list[Map], attention: Map, mlp: Map) -> tuple[list[Step], Matrix]:
    a, m = attention(norms[0](x)), mlp(norms[1](x))
    before, only_a, only_m, both = log_ratio(x), log_ratio(a), log_ratio(m), log_ratio(a + m)
    share_a = ((only_a - before) + (both - only_m)) / 2
    share_m = ((only_m - before) + (both - only_a)) / 2
    out = x + a + m
    return [("attention", share_a), ("mlp", share_m), ("skip", log_ratio(out) - both)], out


def changes(names: list[str], states: list[Matrix]) -> list[Step]:
    logs = [log_ratio(state) for state in states]
    return [(name, logs[i + 1] - logs[i]) for i, name in enumerate(names)]
