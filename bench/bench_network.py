"""Many seeds as one batch against a loop over seeds; the tree against the same products written by hand."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.timing import best_times
from rankscope.network import Attention, Network, Softmax, Spec, build, gaussian_tokens, generators
from rankscope.network.seeds import Seeds, batches, seeds_per_chunk


def run() -> dict[str, object]:
    return {
        "seeds_batched_over_loop": [
            seeds_ratio(dim=32, tokens=16, heads=2, variant="san"),
            seeds_ratio(dim=32, tokens=16, heads=2, variant="transformer"),
            seeds_ratio(dim=64, tokens=32, heads=2, variant="san"),
            seeds_ratio(dim=64, tokens=32, heads=4, variant="transformer"),
        ],
        "states_over_hand_written": [
            tree_ratio(dim=64, tokens=32, heads=4),
            tree_ratio(dim=256, tokens=64, heads=8),
            tree_ratio(dim=512, tokens=128, heads=8),
        ],
    }


@torch.no_grad()
def seeds_ratio(*, dim: int, tokens: int, heads: int, variant: str, count: int = 64) -> dict[str, object]:
    """Time of a loop over seeds divided by the time of the chunked batches (larger is better)."""
    spec = Spec(layers=6, heads=heads, dim=dim, variant=variant)
    chunks = list(batches(spec, tokens=tokens, seeds=range(count)))
    singles = [_single(spec, tokens, seed) for seed in range(count)]

    def batched() -> None:
        for chunk in chunks:
            chunk.network.states(chunk.x)

    def loop() -> None:
        for network, x in singles:
            network.states(x)

    fast, slow = best_times(batched, loop)
    return {
        **{"dim": dim, "tokens": tokens, "heads": heads, "variant": variant, "seeds": count},
        **{"seeds_per_chunk": seeds_per_chunk(spec, tokens), "loop_over_batched": round(slow / fast, 2)},
    }


def _single(spec: Spec, tokens: int, seed: int) -> tuple[Network, Tensor]:
    for_weights, for_tokens = generators(seed)
    return build(spec, for_weights), gaussian_tokens(tokens, spec.dim, generator=for_tokens)


@torch.no_grad()
def tree_ratio(*, dim: int, tokens: int, heads: int, layers: int = 12) -> dict[str, object]:
    """Time of ``states()`` divided by the time of the same products without a tree (aim: at most 1.2)."""
    spec = Spec(layers=layers, heads=heads, dim=dim)
    (batch,) = batches(spec, tokens=tokens, seeds=[0])
    by_hand = _by_hand(batch)
    network, x = batch.network, batch.x
    torch.testing.assert_close(network.states(x)[1], by_hand()[1])
    tree, hand = best_times(lambda: network.states(x), by_hand, repeats=31)
    return {
        "dim": dim,
        "tokens": tokens,
        "heads": heads,
        "layers": layers,
        "tree_over_hand": round(tree / hand, 3),
    }


def _by_hand(batch: Seeds) -> Callable[[], list[Tensor]]:
    weights = []
    for block in batch.network.blocks:
        part = next(module for module in block.modules() if isinstance(module, Attention))
        assert isinstance(part.mixer, Softmax)
        weights.append(
            (part.mixer.query, part.mixer.key, part.values.value, part.values.out, part.mixer.heads)
        )

    def run() -> list[Tensor]:
        states = [batch.x]
        for query, key, value, out, heads in weights:
            x = states[-1]
            shape = (*x.shape[:-1], heads, x.shape[-1] // heads)
            q, k, v = (((x @ w).view(shape)).transpose(-3, -2) for w in (query, key, value))
            attention = torch.softmax((q * shape[-1] ** -0.5) @ k.transpose(-1, -2), dim=-1)
            states.append((attention @ v).transpose(-3, -2).flatten(-2) @ out)
        return states

    return run
