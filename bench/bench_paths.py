"""What the spectrum of paths costs over plain forward passes, next to what enumeration would cost."""

import torch

from bench.live_memory import LiveMemory
from bench.timing import best_times
from rankscope.network import Spec, build, gaussian_tokens
from rankscope.pathways import attribute, every_path, path_term, spectrum

TOKENS = 128
THREADS = 2
BERT_BASE = Spec(layers=12, heads=12, dim=768, variant="transformer", norm="layer", activation="gelu")


def run() -> dict[str, float]:
    """Ratios to one plain forward pass of a network of the size of BERT-base on 128 tokens, in the same run."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        return {
            key: value for dtype in (torch.float64, torch.float32) for key, value in _ratios(dtype).items()
        }
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def _ratios(dtype: torch.dtype) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    network = build(BERT_BASE, generator).to(dtype)
    x = gaussian_tokens(TOKENS, BERT_BASE.dim, generator=generator).to(dtype)
    one_path = next(every_path(network, 12))
    forward, whole, heads, single = best_times(
        lambda: network(x),
        lambda: spectrum(network, x, dtype=dtype),
        lambda: attribute(network, x, dtype=dtype),
        lambda: path_term(network, x, one_path, dtype=dtype),
        repeats=3,
    )
    found = spectrum(network, x, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    return {
        f"spectrum_over_forward_{name}": whole / forward,
        f"heads_by_one_sweep_over_forward_{name}": heads / forward,
        f"one_single_path_over_forward_{name}": single / forward,
        f"enumeration_over_forward_{name}": sum(found.counts) * single / forward,  # type: ignore[arg-type]
        f"peak_states_{name}": _peak(network, x, dtype),
    }


def _peak(network: torch.nn.Module, x: torch.Tensor, dtype: torch.dtype) -> float:
    """Tensors alive at once, in token matrices; the aim is 2 (L + 1) + 12 = 38."""
    with LiveMemory([*network.parameters(), x]) as memory:
        spectrum(network, x, dtype=dtype)
    return memory.peak / (x.numel() * x.element_size())
