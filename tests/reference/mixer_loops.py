"""Maps of one head, one query, one key at a time, as each mixer is defined on paper. Nothing here is shared with it."""

import math
from collections.abc import Callable

import numpy as np

Matrix = np.ndarray
Row = list[float]


def maps(
    x: Matrix,
    *,
    query: Matrix,
    key: Matrix,
    query_bias: Matrix,
    key_bias: Matrix,
    heads: int,
    groups: int,
    allowed: Matrix,
    row: Callable[[int, int, list[int], Matrix, dict[int, Matrix]], dict[int, float]],
) -> Matrix:
    """Maps ``heads tokens tokens``; ``row(head, i, readable, q, keys)`` gives the weights of one query by key."""
    tokens, width = len(x), query.shape[1] // heads
    found = np.zeros((heads, tokens, tokens))
    for head in range(heads):
        group = head * groups // heads
        own, shared = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
        for i in range(tokens):
            readable = [j for j in range(tokens) if allowed[i, j]]
            keys = {j: x[j] @ key[:, shared] + key_bias[shared] for j in range(tokens)}
            for j, weight in row(head, i, readable, x[i] @ query[:, own] + query_bias[own], keys).items():
                found[head, i, j] = weight
    return found


def sink(logits: dict[int, float], level: float) -> dict[int, float]:
    total = math.exp(level) + math.fsum(math.exp(a) for a in logits.values())
    return {j: math.exp(a) / total for j, a in logits.items()}


def sigmoid(logits: dict[int, float], tokens: int) -> dict[int, float]:
    """``1 / (1 + n e^-a)``: the bias is minus the logarithm of the number of tokens."""
    return {j: 1 / (1 + tokens * math.exp(-a)) for j, a in logits.items()}


def softmax(logits: dict[int, float]) -> dict[int, float]:
    total = math.fsum(math.exp(a) for a in logits.values())
    return {j: math.exp(a) / total for j, a in logits.items()}


def sparsemax(logits: dict[int, float]) -> dict[int, float]:
    """The nearest point of the simplex: for every possible support, the one whose threshold fits it."""
    order = sorted(logits.values(), reverse=True)
    for count in range(len(order), 0, -1):
        threshold = (sum(order[:count]) - 1) / count
        if order[count - 1] > threshold:
            return {j: max(a - threshold, 0.0) for j, a in logits.items()}
    raise ValueError("no support fits")


def entmax15(logits: dict[int, float]) -> dict[int, float]:
    """Entmax at 1.5 in closed form (Peters, Niculae, Martins 2019, Algorithm 2): a quadratic for every support."""
    half = sorted((a / 2 for a in logits.values()), reverse=True)
    for count in range(len(half), 0, -1):
        mean = sum(half[:count]) / count
        spread = sum((a - mean) ** 2 for a in half[:count])
        if spread > 1:
            continue
        threshold = mean - math.sqrt((1 - spread) / count)
        if half[count - 1] > threshold:
            return {j: max(a / 2 - threshold, 0.0) ** 2 for j, a in logits.items()}
    raise ValueError("no support fits")


def features(v: Matrix) -> Matrix:
    return np.array([a + 1 if a > 0 else math.exp(a) for a in v])


def distance(a: Matrix, b: Matrix) -> float:
    return math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def pressed(q: Matrix, keys: dict[int, Matrix], into: Matrix, out: Matrix, scale: float) -> dict[int, float]:
    """Weights of the pressed keys, spread over the tokens that the pressed values are made of."""
    rows = [sum(into[r, j] * keys[j] for j in keys) for r in range(len(into))]
    weights = softmax({r: scale * float(q @ one) for r, one in enumerate(rows)})
    return {j: sum(weights[r] * out[r, j] for r in weights) for j in keys}
