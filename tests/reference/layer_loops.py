"""Layers of the atlas by plain loops over tokens, states and thresholds, from the formulas of their papers."""

import math

import torch
from torch import Tensor


def delta_rule(query: Tensor, key: Tensor, value: Tensor, steps: Tensor) -> Tensor:
    """The state is corrected towards the value of every key, then read."""
    state, out = torch.zeros(key.shape[1], value.shape[1], dtype=value.dtype), []
    for q, k, v, step in zip(query, key, value, steps, strict=True):
        state = state + step * torch.outer(k, v - k @ state)
        out.append(q @ state)
    return torch.stack(out)


def gated_linear(query: Tensor, key: Tensor, value: Tensor, gates: Tensor) -> Tensor:
    """The rows of the state decay by their gates, then a product is added."""
    state, out = torch.zeros(key.shape[1], value.shape[1], dtype=value.dtype), []
    for q, k, v, gate in zip(query, key, value, gates, strict=True):
        state = gate[:, None] * state + torch.outer(k, v)
        out.append(q @ state)
    return torch.stack(out)


def decaying_mean(key: Tensor, value: Tensor, decay: Tensor, bonus: Tensor) -> Tensor:
    """Numerator and denominator of RWKV as running sums."""
    above, below, out = torch.zeros_like(decay), torch.zeros_like(decay), []
    for k, v in zip(key, value, strict=True):
        now = (bonus + k).exp()
        out.append((above + now * v) / (below + now))
        above, below = ((-decay).exp() * old + k.exp() * new for old, new in ((above, v), (below, 1.0)))
    return torch.stack(out)


def selective_scan(x: Tensor, steps: Tensor, into: Tensor, read: Tensor) -> Tensor:
    """Every state of every channel by itself."""
    tokens, channels = x.shape
    out = torch.zeros_like(x)
    for c in range(channels):
        for n in range(into.shape[1]):
            state = 0.0
            for t in range(tokens):
                step = float(steps[t, c])
                state = math.exp(-(n + 1) * step) * state + step * float(into[t, n]) * float(x[t, c])
                out[t, c] += float(read[t, n]) * state
    return out


def waves(x: Tensor, rates: Tensor, steps: Tensor, read: Tensor) -> Tensor:
    """Complex states that decay and turn over a step while the token is held."""
    out = torch.zeros_like(x)
    for c in range(x.shape[1]):
        for n in range(len(rates)):
            turn = torch.exp(steps[c, 0] * rates[n])
            state = torch.zeros((), dtype=torch.complex128)
            for t in range(len(x)):
                state = turn * state + (turn - 1) / rates[n] * x[t, c]
                out[t, c] += 2 * (read[c, n] * state).real
    return out


def thresholded(logits: list[float], power: float) -> list[float]:
    """``max(0, c l - t)^power`` with t by bisection so that it sums to one: sparsemax (1), 1.5-entmax (2)."""
    scaled = [one / power for one in logits]
    low, high = min(scaled) - 1, max(scaled)
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(0.0, one - middle) ** power for one in scaled)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [max(0.0, one - low) ** power for one in scaled]


def nystrom(query: Tensor, key: Tensor, segments: list[list[int]]) -> Tensor:
    """Landmarks are means of segments; the inverse is the exact one."""
    few_q, few_k = (torch.stack([one[part].mean(dim=0) for part in segments]) for one in (query, key))
    scale = query.shape[1] ** 0.5
    onto, between, out = (
        torch.softmax(a @ b.T / scale, dim=-1) for a, b in ((query, few_k), (few_q, few_k), (few_q, key))
    )
    return onto @ torch.linalg.inv(between) @ out


def slope_between(ratio_at, high: float, low: float) -> float:
    """The exponent of a residual ratio between two scales."""
    return math.log(ratio_at(high) / ratio_at(low)) / math.log(high / low)


def residual_ratio(x: Tensor, *, unit: bool = False) -> float:
    """Distance from the mean token over the norm; of tokens at unit length."""
    rows = [row / row.norm() for row in x] if unit else list(x)
    mean = sum(rows) / len(rows)
    above, below = (
        sum(float(((row - mean) ** 2).sum()) for row in rows),
        sum(float((row**2).sum()) for row in rows),
    )
    return math.sqrt(above / below)
