"""What the staircase can be built for: refusals with their reasons."""

import numpy as np
from numpy.typing import NDArray

from rankscope.dynamics.climb import chain_levels
from rankscope.dynamics.extended import FLOAT_DIGITS
from rankscope.errors import ConfigError, MaskError, Option
from rankscope.masks import MaskRule

MOST_SHEAR = 1e100
"""Squares of larger ones leave the range of float64."""


def check_numbers(tokens: int, dim: int, rank: int, shear: float, digits: int | None) -> None:
    """Refuse numbers that are impossible whatever the mask."""
    if tokens < 1 or dim < 1:
        raise ConfigError(
            f"an equilibrium has at least one token and one channel, got tokens={tokens} and dim={dim}"
        )
    if not 1 <= rank <= min(tokens, dim):
        raise ConfigError(
            f"rank {rank} is impossible for {tokens} tokens in dim {dim}: ranks go from 1 to {min(tokens, dim)}"
        )
    if not 0 < shear <= MOST_SHEAR:
        raise ConfigError(
            f"the shear w of the value map is above 0 and at most {MOST_SHEAR:.0e}, got {shear}"
        )
    if digits is not None and digits < FLOAT_DIGITS:
        raise ConfigError(f"digits must be {FLOAT_DIGITS} (float64) or more, got {digits}")


def order_of(rule: MaskRule, tokens: int) -> list[int]:
    """All tokens, each behind those that it reads; refuses masks for which the construction has no order."""
    graph = rule.graph(tokens)
    components = graph.components()
    loop = next((one for one in components if len(one) > 1), None)
    if loop is not None:
        matrix = rule.matrix(tokens)
        why = (
            "uniform attention makes all tokens equal in one step there, so only rank 1 exists"
            if (matrix == matrix[0]).all()
            else "the construction puts every token behind those that it reads, so only rank 1 is built there"
        )
        raise MaskError(
            f"under the mask {rule} the tokens {int(loop[0])} and {int(loop[1])} read each other, directly or through "
            f"others; {why}; take a causal mask, or search for an equilibrium without ",
            Option("rank"),
        )
    if not graph.self_loops:
        token = int(np.flatnonzero(~graph.mask.diagonal())[0])
        raise MaskError(
            f"under the mask {rule} token {token} does not read itself; above rank 1 the construction needs that of "
            "every token, as in causal"
        )
    return [int(one[0]) for one in components]


def check_chain(rule: MaskRule, mask: NDArray[np.bool_], order: list[int], rank: int) -> None:
    """Refuse a rank above the longest chain of tokens."""
    longest = max(chain_levels(mask, order))
    if rank > longest:
        raise ConfigError(
            f"rank {rank} is impossible under the mask {rule}: a token fills at most one channel more than what it "
            f"reads, and the longest chain of tokens, each reading the one before, has {longest} of {len(mask)}; ranks "
            f"go from 1 to {longest}"
        )
