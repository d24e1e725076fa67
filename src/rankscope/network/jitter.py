"""The same network with a little noise between its blocks: what it makes of rounding, seen rather than assumed.

Floors allow for ``32 u sqrt(layers)``, which holds as long as blocks pass errors on about as large as they receive
them. Large queries and keys make attention switch between tokens, and blocks then enlarge whatever enters them: a run
and the same run off by a few units of round-off part by a factor in every layer. A second run shows it. Noise is added
before every block, not only at the input, because a network may forget its input first and amplify later.

One such run is a sample: what it shows is an estimate of the error, no bound.
"""

import torch
from torch import Tensor

from rankscope.core.numerics import unit_roundoff
from rankscope.network.context import Context
from rankscope.network.parts import Chain, Part
from rankscope.network.tree import Network

UNITS = 8.0
"""Length of the noise of a token, in units of round-off of its length: some times what one block leaves on it."""


class Jitter(Part):
    """``x_i`` plus a vector of random direction and ``UNITS`` round-off units of its length, always the same one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: Tensor, context: Context) -> Tensor:
        drawn = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(x.shape, generator=drawn, dtype=torch.float64).to(x.device)
        lengths: Tensor = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
        drawn_lengths: Tensor = torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
        moved: Tensor = x.double() + UNITS * unit_roundoff(x.dtype) * lengths / drawn_lengths * noise
        return moved.to(x.dtype)


def jittered(network: Network, *, seed: int = 0) -> Network:
    """The network with noise before every block; it shares all weights."""
    return network.with_blocks(
        Chain([Jitter(seed + layer), block]) for layer, block in enumerate(network.blocks)
    )
