"""A-priori bounds and forecasts as plain loops in numpy: one head, one layer, one pair at a time."""

import math

import numpy as np


def spread(x: np.ndarray) -> float:
    """The largest Euclidean distance between two rows."""
    return max(float(np.linalg.norm(a - b)) for a in x for b in x)


def theorem_a(heads: list[tuple[np.ndarray, np.ndarray]], d: float) -> float:
    """``d sum_h |W_h|_2 tanh(|S_h|_2 d^2 / 4)`` for pairs of a bilinear form of logits S and a value map W."""
    total = 0.0
    for logits, values in heads:
        total += np.linalg.norm(values, 2) * math.tanh(np.linalg.norm(logits, 2) * d * d / 4)
    return d * total


def post_norm_cosines(layers: int, tokens: int, gain: float) -> list[float]:
    """Uniform attention, a skip, then a norm: ``c <- (c + a s) / (1 + a s)``, ``s = (1 + (n - 1) c) / n``."""
    found = [0.0]
    for _ in range(layers):
        c = found[-1]
        s = (1 + (tokens - 1) * c) / tokens
        found.append((c + gain * s) / (1 + gain * s))
    return found


def pre_norm_cosines(layers: int, tokens: int, gain: float) -> list[float]:
    """The same with the norm inside the skip: the stream grows, branches do not."""
    variance, covariance, found = 1.0, 0.0, [0.0]
    for _ in range(layers):
        s = (1 + (tokens - 1) * covariance / variance) / tokens
        variance, covariance = variance + gain * s, covariance + gain * s
        found.append(covariance / variance)
    return found


def masked_cosines(base: np.ndarray, layers: int, gain: float) -> list[float]:
    """Post-norm with any fixed map, entry by entry."""
    n = len(base)
    c = np.eye(n)
    found = [0.0]
    for _ in range(layers):
        new = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                mixed = sum(base[i, k] * base[j, m] * c[k, m] for k in range(n) for m in range(n))
                new[i, j] = c[i, j] + gain * mixed
        size = np.sqrt(np.diag(new))
        c = new / np.outer(size, size)
        found.append(float(np.mean([c[i, j] for i in range(n) for j in range(n) if i != j])))
    return found


def tilted_average(c: np.ndarray, base: np.ndarray, strength: float) -> np.ndarray:
    """``sum_kl b_ik b_jl e^{s C_ij C_kl} C_kl`` over the same sum without the last factor, four loops."""
    n = len(c)
    found = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            above = below = 0.0
            for k in range(n):
                for m in range(n):
                    weight = base[i, k] * base[j, m] * math.exp(strength * c[i, j] * c[k, m])
                    above += weight * c[k, m]
                    below += weight
            found[i, j] = above / below
    return found


def gaussian_product(fn, first: float, second: float, rho: float) -> float:
    """``E f(a) f(b)`` for normal a, b of these variances and correlation, on a grid of two normal variables."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    total = 0.0
    for u, p in zip(nodes, weights, strict=True):
        a = math.sqrt(first) * u
        b = math.sqrt(second) * (rho * u + math.sqrt(1 - rho**2) * nodes)
        total += p * float(fn(np.array([a]))[0]) * float(np.dot(weights, fn(b)))
    return total / (2 * math.pi)
