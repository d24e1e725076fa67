"""One token, one head, one key at a time, in plain Python numbers: attention, norms and MLPs as defined on paper."""

import math
from collections.abc import Callable, Sequence

import numpy as np

Vector = np.ndarray
Matrix = np.ndarray


def attention(
    x: Matrix,
    *,
    query: Matrix,
    key: Matrix,
    value: Matrix,
    out: Matrix,
    heads: int,
    groups: int,
    allowed: Matrix,
    query_bias: Vector,
    key_bias: Vector,
    value_bias: Vector,
    out_bias: Vector,
    norm_query: Callable[[Vector], Vector] = lambda v: v,
    norm_key: Callable[[Vector], Vector] = lambda v: v,
    turn: Callable[[Vector, int], Vector] = lambda v, position: v,
    bias: Callable[[int, int, int, Vector], float] = lambda head, i, j, q: 0.0,
    softcap: float | None = None,
    memory: Matrix | None = None,
) -> Matrix:
    """Sum over heads of map times values times that head's rows of ``out``, plus the output bias."""
    tokens, read = len(x), x if memory is None else memory
    width = query.shape[1] // heads
    result = np.zeros((tokens, out.shape[1]))
    for head in range(heads):
        group = head * groups // heads
        own, shared = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
        for i in range(tokens):
            q = norm_query(x[i] @ query[:, own] + query_bias[own])
            logits = []
            for j in range(len(read)):
                k = norm_key(read[j] @ key[:, shared] + key_bias[shared])
                logit = float(turn(q, i) @ turn(k, j)) / math.sqrt(width) + bias(head, i, j, q)
                logit = logit if softcap is None else softcap * math.tanh(logit / softcap)
                logits.append(logit if allowed[i, j] else -math.inf)
            top = max(logits)
            powers = [math.exp(logit - top) for logit in logits]
            for j in range(len(read)):
                carried = read[j] @ value[:, shared] + value_bias[shared]
                result[i] += powers[j] / sum(powers) * (carried @ out[own])
    return result + out_bias


def rotary(vector: Vector, position: int, *, base: float, fraction: float, interleaved: bool) -> Vector:
    """Pairs of channels turned by position * base^(-2p / width)."""
    width = int(len(vector) * fraction)
    turned = vector.copy()
    for p in range(width // 2):
        a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + width // 2)
        angle = position * base ** (-2 * p / width)
        turned[a] = vector[a] * math.cos(angle) - vector[b] * math.sin(angle)
        turned[b] = vector[a] * math.sin(angle) + vector[b] * math.cos(angle)
    return turned


def t5_bucket(i: int, j: int, *, count: int, max_distance: int) -> int:
    """Bidirectional: keys after the query take the upper half; near distances exact, far ones by logarithm."""
    half = count // 2
    start = half if j > i else 0
    distance, exact = abs(i - j), half // 2
    if distance < exact:
        return start + distance
    far = exact + int(math.log(distance / exact) / math.log(max_distance / exact) * (half - exact))
    return start + min(far, half - 1)


def sinusoid(distance: int, width: int) -> Vector:
    angles = [distance * 10_000.0 ** (-2 * p / width) for p in range(width // 2)]
    return np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])


def layer_norm(v: Vector, gain: Vector, bias: Vector, eps: float) -> Vector:
    mean = sum(v) / len(v)
    spread = sum((entry - mean) ** 2 for entry in v) / len(v)
    return np.array([(entry - mean) / math.sqrt(spread + eps) for entry in v]) * gain + bias


def rms_norm(v: Vector, gain: Vector, eps: float) -> Vector:
    size = sum(entry**2 for entry in v) / len(v)
    return np.array([entry / math.sqrt(size + eps) for entry in v]) * gain


def activation(name: str, h: float) -> float:
    match name:
        case "relu":
            return max(h, 0.0)
        case "leaky_relu":
            return h if h > 0 else 0.01 * h
        case "relu2":
            return max(h, 0.0) ** 2
        case "gelu":
            return h * 0.5 * (1 + math.erf(h / math.sqrt(2)))
        case "gelu_tanh":
            return 0.5 * h * (1 + math.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        case "quick_gelu":
            return h / (1 + math.exp(-1.702 * h))
        case "silu":
            return h / (1 + math.exp(-h))
        case "tanh":
            return math.tanh(h)
        case "identity":
            return h
    raise ValueError(name)


def mlp(
    v: Vector,
    *,
    up: Matrix,
    down: Matrix,
    up_bias: Vector,
    down_bias: Vector,
    name: str,
    gates: Sequence[float] | None,
) -> Vector:
    hidden = v @ up + up_bias
    if gates is None:
        inner = [activation(name, entry) for entry in hidden]
    else:
        inner = [activation(name, gate) * entry for gate, entry in zip(gates, hidden, strict=True)]
    return np.array(inner) @ down + down_bias
