"""AdamW written out, and the unit residual ratio by loops; imports nothing of ours."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def adamw_steps(
    model: nn.Module, losses: list[Callable[[], Tensor]], lr: float, seen: Callable[[], None]
) -> list[float]:
    """Steps of AdamW (betas 0.9 and 0.999, eps 1e-8, weight decay 0.01) on gradients clipped to length 1."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    first = [torch.zeros_like(weight) for weight in weights]
    second = [torch.zeros_like(weight) for weight in weights]
    found = []
    for step, loss_of in enumerate(losses, start=1):
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        found.append(loss.item())
        length = math.sqrt(
            sum(float((weight.grad**2).sum()) for weight in weights if weight.grad is not None)
        )
        factor = min(1.0, 1.0 / (length + 1e-6))
        with torch.no_grad():
            for weight, m, v in zip(weights, first, second, strict=True):
                if weight.grad is None:
                    continue
                gradient = weight.grad * factor
                weight.mul_(1 - lr * 0.01)
                m.copy_(0.9 * m + 0.1 * gradient)
                v.copy_(0.999 * v + 0.001 * gradient**2)
                mean, square = m / (1 - 0.9**step), v / (1 - 0.999**step)
                weight.sub_(lr * mean / (square.sqrt() + 1e-8))
        seen()
    return found


def unit_ratio(states: Tensor) -> float:
    """Geometric mean over texts of |X - mean| / |X| with tokens of length one."""
    logs = []
    for text in states:
        rows = [[float(entry) for entry in token] for token in text]
        rows = [[entry / math.sqrt(sum(e * e for e in row)) for entry in row] for row in rows]
        mean = [sum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]
        apart = sum((row[k] - mean[k]) ** 2 for row in rows for k in range(len(mean)))
        logs.append(0.5 * math.log(apart / len(rows)))
    return math.exp(sum(logs) / len(logs))
