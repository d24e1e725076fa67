"""The split pass against the ordinary float64 pass, and with its error against without: time and memory."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from bench.timing import best_times
from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.split import split_states


def run() -> list[dict[str, object]]:
    return [
        split_ratio(variant="san", mask="full"),
        split_ratio(variant="san", mask="causal"),
        split_ratio(variant="san", mask="causal", position="rotary"),
        split_ratio(variant="transformer", mask="full", norm="layer"),
        split_ratio(variant="transformer", mask="full", norm="layer", activation="gelu"),
    ]


@torch.no_grad()
def split_ratio(
    *, dim: int = 512, tokens: int = 128, heads: int = 8, layers: int = 12, **fields: str
) -> dict[str, object]:
    """The split pass over ``states``, and with its error over without, all three timed in turns on one thread.

    Aims: without an error at most 1.6 times the ordinary pass, 1.9 with rotary positions and with GELU; with it at most
    2.0 times the split pass without. Peak memory of the pass without an error over that of ``states``: at most 3.
    """
    for_weights, for_tokens = generators(0)
    network = build(Spec.of(layers=layers, heads=heads, dim=dim, **fields), for_weights)
    x = gaussian_tokens(tokens, dim, generator=for_tokens)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with_error, split, forward = best_times(
            lambda: split_states(network, x),
            lambda: split_states(network, x, error=False),
            lambda: network.states(x),
            repeats=5,
        )
    finally:
        torch.set_num_threads(threads)
    memory = _peak(lambda: split_states(network, x, error=False)) / _peak(lambda: network.states(x))
    return {
        **{"dim": dim, "tokens": tokens, "heads": heads, "layers": layers, **fields},
        "split_over_forward": round(split / forward, 2),
        "error_over_split": round(with_error / split, 2),
        "peak_memory_over_forward": round(memory, 2),
    }


def _peak(function: Callable[[], object]) -> float:
    """Most bytes that the tensors made by ``function`` held at one time, from the allocations the profiler saw."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = function()
    del result
    held = most = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]  # present after the run
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return float(most)
