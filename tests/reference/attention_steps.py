"""X <- norm(A X W) one token at a time, in plain loops. Imports nothing of ours."""

import math

import numpy as np


def attention_row(x, i, mask, query, key):
    """Weights of token i over all tokens: softmax of its logits over the keys it may read; uniform without maps."""
    n = len(x)
    logits = [0.0] * n
    if query is not None:
        for j in range(n):
            logits[j] = float((x[i] @ query) @ (x[j] @ key)) / math.sqrt(query.shape[1])
    top = max(logits[j] for j in range(n) if mask[i][j])
    weights = [math.exp(logits[j] - top) if mask[i][j] else 0.0 for j in range(n)]
    return [weight / sum(weights) for weight in weights]


def normed(token, norm):
    if norm == "none":
        return token
    if norm == "sphere":
        return token / math.sqrt(float(token @ token))
    if norm == "rms":
        return token / math.sqrt(float(token @ token) / len(token) + 1e-6)
    middle = token - token.mean()
    return middle / math.sqrt(float(middle @ middle) / len(token) + 1e-5)


def one_step(x, mask, value, norm, query=None, key=None, rows=None):
    """The tokens after one step; ``rows`` are attention weights that are kept, if given."""
    after = np.zeros_like(x)
    for i in range(len(x)):
        weights = attention_row(x, i, mask, query, key) if rows is None else rows[i]
        mixed = sum(weight * token for weight, token in zip(weights, x, strict=True))
        after[i] = normed(mixed @ value, norm)
    return after
