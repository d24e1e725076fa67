"""Many seeds of one spec as a few batched networks, each small enough to stay in the processor's cache."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.numerics import broadcast
from rankscope.errors import ConfigError
from rankscope.network.attention import SelfAttention
from rankscope.network.factory import build, gaussian_tokens, generators, stack
from rankscope.network.mixers import Fixed, QueryKey
from rankscope.network.mlp import Mlp
from rankscope.network.norms import Norm
from rankscope.network.parts import Scale, Skip
from rankscope.network.spec import Spec
from rankscope.network.tree import Network

CACHE_BYTES = 2**20
"""Room for the states, maps and MLP activations of one chunk. Past the cache a batch is slower than a loop."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeds:
    """Networks of several seeds as one: parameters and tokens carry a leading axis over ``seeds``."""

    seeds: tuple[int, ...]
    network: Network
    x: Tensor


def batches(
    spec: Spec,
    *,
    tokens: int,
    seeds: Sequence[int],
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Iterator[Seeds]:
    """Networks and Gaussian tokens of every seed, in chunks that fit the cache.

    Each seed is drawn by itself in float64 and then rounded to ``dtype``, so the slice of a seed does not depend
    on the others, and the same seed in another dtype is the same network up to rounding.
    """
    if not seeds:
        raise ConfigError("no seeds were given; give at least one")

    def draw(seed: int) -> tuple[Network, Tensor]:
        for_weights, for_tokens = generators(seed)
        return build(spec, for_weights), gaussian_tokens(tokens, spec.dim, generator=for_tokens)

    for batch in chunked(seeds, seeds_per_chunk(spec, tokens), draw):
        yield replace(batch, network=batch.network.to(device, dtype), x=batch.x.to(device, dtype))


def chunked(
    seeds: Sequence[int], size: int, draw: Callable[[int], tuple[Network, Tensor]]
) -> Iterator[Seeds]:
    """What ``draw`` gives for every seed, ``size`` seeds at a time as one network."""
    for start in range(0, len(seeds), size):
        chunk = tuple(seeds[start : start + size])
        drawn = [draw(seed) for seed in chunk]
        network, x = stack([network for network, _ in drawn]), torch.stack([x for _, x in drawn])
        del drawn  # copied into the stack; at width 768 these are gigabytes
        yield Seeds(seeds=chunk, network=network, x=x)


def seeds_per_chunk(spec: Spec, tokens: int) -> int:
    """How many seeds run at once: as many as have their widest layer's activations in ``CACHE_BYTES``."""
    widest = max(4 * spec.dim, spec.heads * tokens, spec.mlp_width or 4 * spec.dim)
    return max(1, CACHE_BYTES // (8 * tokens * widest))


def weight_axes(network: Network) -> torch.Size:
    """The axes that weights carry before those of one network."""
    shapes = [torch.Size()]
    for part in network.modules():
        if isinstance(part, SelfAttention):
            shapes += [part.values.value.shape[:-2], part.values.out.shape[:-2]]
        elif isinstance(part, QueryKey):
            shapes += [part.query.shape[:-2], part.key.shape[:-2]]
        elif isinstance(part, Mlp):
            shapes += [part.up.shape[:-2], part.down.shape[:-2]]
        elif isinstance(part, Fixed):
            shapes.append(part.maps.shape[:-3])
        elif isinstance(part, Norm | Scale | Skip):
            held = (getattr(part, name, None) for name in ("weight", "bias", "value", "scale"))
            shapes += [one.shape[:-1] for one in held if isinstance(one, Tensor)]
    return broadcast(*shapes)
