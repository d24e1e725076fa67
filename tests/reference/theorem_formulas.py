"""Bounds of both papers, Theorem A and Theorem B, one head, one row and one column at a time, in many digits."""

import math

import mpmath
import numpy as np

Matrix = np.ndarray


def column_sum(m: Matrix) -> float:
    """Largest absolute column sum."""
    return max(sum(abs(float(m[i, j])) for i in range(m.shape[0])) for j in range(m.shape[1]))


def row_sum(m: Matrix) -> float:
    """Largest absolute row sum."""
    return column_sum(m.T)


def composite(m: Matrix) -> float:
    """Root of the product of both."""
    return math.sqrt(column_sum(m) * row_sum(m))


def composite_residual(x: Matrix) -> float:
    """The same of the tokens without their mean."""
    return composite(x - x.mean(axis=0))


def query_key(query: Matrix, key: Matrix, head: int, heads: int, scale: float) -> Matrix:
    """``scale W_Q W_K^T`` of one head; weights are (dim, heads * width)."""
    width = query.shape[1] // heads
    here = slice(head * width, (head + 1) * width)
    return scale * query[:, here] @ key[:, here].T


def value_out(value: Matrix, out: Matrix, head: int, heads: int) -> Matrix:
    """``V_h O_h`` of one head."""
    width = value.shape[1] // heads
    here = slice(head * width, (head + 1) * width)
    return value[:, here] @ out[here]


def split_logits(x: Matrix, w_qk: Matrix, shared: Matrix) -> tuple[float, float]:
    """Largest oscillation of a row of ``E = R W R^T``, and the largest entry of ``softmax(R shared)``."""
    rest = x - x.mean(axis=0)
    logits = rest @ w_qk @ rest.T
    oscillation = max(float(row.max() - row.min()) for row in logits)
    weights = [math.exp(float(one)) for one in rest @ shared]
    return oscillation, max(weights) / math.fsum(weights)


def theorem_b_constant(
    heads: list[tuple[Matrix, Matrix]], logits: list[tuple[float, float]], tokens: int
) -> mpmath.mpf:
    """``K`` from ``(W_QK, W_h)`` and ``(oscillation, q_max)`` of every head."""

    def g(x: float) -> mpmath.mpf:
        return mpmath.expm1(x) / x if x else mpmath.mpf(1)

    columns = rows = mpmath.mpf(0)
    for (w_qk, w), (delta, q) in zip(heads, logits, strict=True):
        t = column_sum(w_qk)
        columns += t * q * (g(delta) + g(2 * delta)) * column_sum(w)
        rows += t * row_sum(w)
    return (2 - mpmath.mpf(2) / tokens) * mpmath.sqrt(columns * rows)


def cubic_log_bound(constant: float, start: float, layers: int) -> mpmath.mpf:
    """``log(K^((3^L - 1) / 2) rho^(3^L))`` with whole numbers in the exponents."""
    power = 3**layers
    return (power - 1) // 2 * mpmath.log(constant) + power * mpmath.log(start)


def skip_log_bound(constant: float, heads: int, start: float, layers: int) -> mpmath.mpf:
    """``max_l log((2 K)^((3^l - 1)/2) (2H)^(3^l (L - l)) rho^(3^l))`` with ``K = 4 gamma beta H``."""
    return max(
        (3**cubes - 1) // 2 * mpmath.log(2 * constant)
        + 3**cubes * (layers - cubes) * mpmath.log(2 * heads)
        + 3**cubes * mpmath.log(start)
        for cubes in range(layers + 1)
    )


def log_spreads(
    start: mpmath.mpf, layers: list[tuple[list[float], list[float]]], digits: int = 60
) -> list[mpmath.mpf]:
    """Logs of ``D' = D sum_h w_h tanh(s_h D^2 / 4)`` from ``(s, w)`` of every layer."""
    with mpmath.workdps(digits):
        spread = mpmath.mpf(start)
        found = [mpmath.log(spread)]
        for s, w in layers:
            square = spread**2 / 4
            spread *= mpmath.fsum(
                mpmath.mpf(b) * mpmath.tanh(mpmath.mpf(a) * square) for a, b in zip(s, w, strict=True)
            )
            found.append(mpmath.log(spread))
        return found


def masked_log_bound(
    values: list[Matrix], maps: list[Matrix], allowed: Matrix, radius: int, diameter: float, layers: int
) -> float:
    """``sqrt((n-1)/2) |W_1 .. W_t|_2 diam (1 - eps^r)^floor(t/r)`` after ``layers`` of them."""
    tokens = len(allowed)
    eps = min(float(m[i, j]) for m in maps for i in range(tokens) for j in range(tokens) if allowed[i, j])
    product = np.eye(values[0].shape[0])
    for value in values[:layers]:
        product = product @ value
    size = float(np.linalg.svd(product, compute_uv=False)[0])
    return math.log(math.sqrt((tokens - 1) / 2) * size * diameter * (1 - eps**radius) ** (layers // radius))


def smallest_overlap(attention: Matrix) -> float:
    """Smallest inner product of two rows."""
    return min(float(a @ b) for a in attention for b in attention)
