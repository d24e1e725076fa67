"""Running times for ratios: interleaved, and the best of many, so that a busy machine does not decide."""

from collections.abc import Callable
from time import perf_counter


def best_times(*functions: Callable[[], object], repeats: int = 15) -> list[float]:
    """The shortest time of each function over ``repeats`` rounds in which they take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for place, function in enumerate(functions):
            start = perf_counter()
            function()
            best[place] = min(best[place], perf_counter() - start)
    return best
