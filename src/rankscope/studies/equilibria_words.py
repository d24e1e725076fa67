"""What the study of a system says in sentences."""

import math
from collections.abc import Sequence
from typing import Any

from rankscope.dynamics.equilibrium import Equilibrium
from rankscope.results.equilibria_lines import power_of_ten
from rankscope.studies.equilibria_config import EquilibriaConfig

FROZEN = (
    "attention maps of each start are kept: every start has a map, and so equilibria, of its own; {listed}, and no "
    "equilibrium has a share of the starts"
)
FROZEN_SAME = (
    "{attention} attention does not depend on the tokens: keeping the maps of a start changes nothing"
)
UNRESOLVED = (
    "unresolved: still moving when the steps ran out, or in a cycle of more than 64 steps, which is not recognized; "
    "more --steps may tell where these starts go"
)
PLATEAU = (
    "on a plateau: the state hardly moves for hundreds of steps, but no equilibrium is near; plateaus usually end "
    "later, at a low temperature only after astronomically many steps (rankscope reproduce clusters)"
)
CONSENSUS = (
    "all tokens equal: this is collapse, but no equilibrium as long as the token that all share still moves: for "
    "instance, an orthogonal value map may turn it on and on, and a shear moves it ever more slowly"
)
NEUTRAL = (
    "attention depends on the tokens, and an equilibrium with a multiplier of one looks the same as a plateau that "
    "moves less than float64 can see: tokens far apart may still attract each other (rankscope reproduce clusters)"
)
SHAPE = "shape at rest: the angles between tokens no longer change, while all tokens turn or grow together"
COLLAPSED = 1e-6
"""Residual ratio below which the sentence about the bare weights calls it collapse."""


def ending_notes(shares: Sequence[dict[str, Any]]) -> list[str]:
    """What those endings mean that are not equilibria, each once."""
    words = {"unresolved": UNRESOLVED, "consensus": CONSENSUS, "shape": SHAPE, "plateau": PLATEAU}
    return [words[name] for name in dict.fromkeys(one["ending"] for one in shares) if name in words]


def neutral_notes(config: EquilibriaConfig, equilibria: Sequence[Equilibrium]) -> list[str]:
    """A warning where rest to rounding need not be rest."""
    depends = config.attention_kind()[0] in ("softmax", "gaussian") and not config.frozen
    return [NEUTRAL] if depends and any(one.stable is None and one.rank > 1 for one in equilibria) else []


def bare_note(start: str, step: int, log10: float) -> str:
    """What the same weights do without the norm; the logarithm of 0 is minus infinity, that of 0/0 is NaN."""
    said = f"the same weights without the norm, from {start}: after {step:,} steps "
    if log10 == -math.inf:
        return f"{said}all tokens are exactly equal"
    if not math.isfinite(log10):
        return f"{said}whether tokens differ cannot be told: their size is zero or beyond the range of floats"
    size = power_of_ten(log10)
    if 10.0**log10 < COLLAPSED:
        return (
            f"{said}tokens differ by {size} of their size (split pass; plain float64 cannot see below 1e-16): "
            "without the norm they collapse"
        )
    return f"{said}tokens still differ by {size} of their size"


def frozen_note(config: EquilibriaConfig, origins: Sequence[int]) -> str:
    """What equilibria mean where maps are kept."""
    if config.has_own_maps:
        listed = (
            f"those of start {', '.join(map(str, origins))} are listed" if origins else "none was reached"
        )
        return FROZEN.format(listed=listed)
    return FROZEN_SAME.format(attention=config.attention_kind()[0])
