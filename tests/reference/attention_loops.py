"""Attention maps and gradients of one head, one query, one key at a time, as defined on paper."""

import math

import numpy as np

Matrix = np.ndarray


def maps(
    x: Matrix,
    *,
    query: Matrix,
    key: Matrix,
    query_bias: Matrix,
    key_bias: Matrix,
    heads: int,
    allowed: Matrix,
) -> Matrix:
    """Maps (heads, tokens, tokens) of one text; weights are (out, in), ``allowed[i, j]`` lets token i read token j."""
    tokens, width = len(x), len(query) // heads
    found = np.zeros((heads, tokens, tokens))
    for head in range(heads):
        rows = slice(head * width, (head + 1) * width)
        for i in range(tokens):
            q = query[rows] @ x[i] + query_bias[rows]
            logits = [
                float(q @ (key[rows] @ x[j] + key_bias[rows])) / math.sqrt(width)
                if allowed[i, j]
                else -math.inf
                for j in range(tokens)
            ]
            top = max(logits)
            weights = [math.exp(logit - top) for logit in logits]
            found[head, i] = np.array(weights) / math.fsum(weights)
    return found


def dobrushin(attention: Matrix) -> float:
    """Half the largest l1 distance between two rows."""
    return max(float(np.abs(a - b).sum()) / 2 for a in attention for b in attention)


def entropy(attention: Matrix) -> float:
    """Mean entropy of the rows in nats."""
    return -sum(p * math.log(p) for row in attention for p in row if p > 0) / len(attention)


def sink_share(attention: Matrix) -> float:
    """Largest mean of a column."""
    return max(float(column.mean()) for column in attention.T)


def spectral_gap(attention: Matrix) -> float:
    """One minus the second largest modulus of an eigenvalue."""
    return 1 - sorted(abs(np.linalg.eigvals(attention)))[-2]
