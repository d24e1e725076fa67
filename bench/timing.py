"""Running times for ratios: interleaved, and the best or the median of many: a busy machine does not decide."""

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time


def best_times(*functions: Callable[[], object], repeats: int = 15) -> list[float]:
    """The shortest time of each function over ``repeats`` rounds in which they take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for place, function in enumerate(functions):
            start = perf_counter()
            function()
            best[place] = min(best[place], perf_counter() - start)
    return best


def median_times(*functions: Callable[[], object], repeats: int = 5) -> list[float]:
    """The median CPU time of each function over ``repeats`` rounds in which they take turns, after one round more.

    CPU time does not count the moments in which somebody else has the processor. With more than one thread it counts
    every thread, so that waiting for each other shows too.
    """
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, own in zip(functions, times, strict=True):
            start = process_time()
            function()
            own.append(process_time() - start)
    return [median(own) for own in times]
