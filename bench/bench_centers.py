"""Certified brackets of the best center against the whole linear program. Ratios only: times differ between machines.

``python bench/bench_centers.py`` prints one JSON object.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from scipy.optimize import linprog
from scipy.sparse import coo_matrix, hstack, identity, kron, vstack

from rankscope.measures import Bracket, residual_bracket

LARGE, LP, SMALL = (128, 768), (64, 32), (32, 16)
REPEATS = 3


def states(tokens: int, dim: int) -> dict[str, torch.Tensor]:
    """Token matrices of different character, the same at every call."""
    random = np.random.default_rng(0)
    x = random.standard_normal((tokens, dim))
    first = np.arange(tokens)[:, None] == 0
    made = {
        "gaussian": x,
        "heavy": random.standard_t(1.5, (tokens, dim)),
        "massive_token": np.where(first, 1000.0, 1.0) * x,
        "clusters": random.standard_normal((4, dim))[random.integers(0, 4, tokens)] + 0.1 * x,
    }
    return {name: torch.from_numpy(one) for name, one in made.items()}


def linear_program(x: torch.Tensor) -> float:
    """The best linf residual as one sparse program over (c, e, t): |x - c| <= e entry by entry, rows of e at most t."""
    offsets = (x - x.mean(dim=0)).numpy()
    scale = float(np.abs(offsets).max())  # the solver's tolerances are absolute
    y = offsets / scale
    tokens, dim = y.shape
    entries = tokens * dim
    repeat = kron(np.ones((tokens, 1)), identity(dim))
    no_t = coo_matrix((entries, 1))
    below = hstack([-repeat, -identity(entries), no_t])
    above = hstack([repeat, -identity(entries), no_t])
    rows = hstack(
        [coo_matrix((tokens, dim)), kron(identity(tokens), np.ones((1, dim))), -np.ones((tokens, 1))]
    )
    result = linprog(
        np.append(np.zeros(dim + entries), 1.0),
        A_ub=vstack([below, above, rows]).tocsr(),
        b_ub=np.concatenate([-y.ravel(), y.ravel(), np.zeros(tokens)]),
        bounds=[(None, None)] * dim + [(0, None)] * (entries + 1),
        method="highs",
    )
    return float(result.fun) * scale


def seconds(work: Callable[[], object]) -> float:
    """Median time of a few runs."""
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return median(taken)


def slowest(norm: str, shape: tuple[int, int]) -> float:
    """Longest time of a bracket over all states of that shape."""
    return max(seconds(partial(residual_bracket, x, norm=norm)) for x in states(*shape).values())


def widest(norm: str, shape: tuple[int, int]) -> float:
    """Largest high/low over all states of that shape."""
    brackets: list[Bracket] = [residual_bracket(x, norm=norm) for x in states(*shape).values()]
    return max(float(bracket.high / bracket.low) for bracket in brackets)


def run() -> dict[str, float]:
    """Ratios by name; shapes are tokens x dim, every bracket is the worst over four kinds of states."""
    small = states(*LP)["gaussian"]
    residual_bracket(small, norm="linf")  # imports the solver outside the clock
    lp, exact = seconds(lambda: linear_program(small)), linear_program(small)
    at_lp = residual_bracket(small, norm="linf")
    return {
        "linf_high_over_low_128x768": widest("linf", LARGE),
        "linf_time_128x768_over_lp_time_64x32": slowest("linf", LARGE) / lp,
        "linf_time_64x32_over_lp_time_64x32": slowest("linf", LP) / lp,
        "linf_low_over_lp_64x32": float(at_lp.low) / exact,
        "linf_high_over_lp_64x32": float(at_lp.high) / exact,
        "composite_high_over_low_128x768": widest("composite", LARGE),
        "composite_time_128x768_over_lp_time_64x32": slowest("composite", LARGE) / lp,
        "composite_high_over_low_32x16": widest("composite", SMALL),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(run(), indent=2))
