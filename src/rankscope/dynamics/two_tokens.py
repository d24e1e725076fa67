"""Two tokens that the unit sphere keeps apart, in closed form.

The counter-example of Wu et al. 2024 (arXiv:2405.18781), Section 4, rebuilt from its figure: causal mask, token 1 reads
itself, token 2 puts the weight ``alpha`` on token 1, ``W_V = [[1, w], [0, 1]]``.
"""

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.dynamics.system import System, attention_system
from rankscope.errors import ConfigError
from rankscope.network import Fixed, Sphere

_CLOSE = 8 * sys.float_info.epsilon


@dataclass(frozen=True, kw_only=True, slots=True)
class CircleEquilibrium:
    """A place of token 2 that a step does not change while token 1 sits at (0, 1).

    Args:
        name: ``same`` (0, 1), ``opposite`` (0, -1), ``A`` (above), ``B`` (below), or ``A=B`` where these two merge.
        token: token 2 as (p, q).
        multiplier: derivative of the circle map there.
        stable: whether its modulus is below 1; None where it is 1 to rounding.
    """

    name: str
    token: tuple[float, float]
    multiplier: float
    stable: bool | None

    def tokens(self) -> Tensor:
        """Both tokens, ``2 2``: (0, 1) and this one."""
        return torch.tensor([(0.0, 1.0), self.token], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoTokens:
    """Two tokens on the circle, token 2 led by token 1.

    Token 1 goes to (0, 1) or (0, -1), like 1 / (w steps). With it at (0, 1), and o for the odds alpha / (1 - alpha), a
    step takes token 2 at (p, q) to the direction of ``(p, w p + q + o)``. For (0, -1) all signs are the other way.

    Args:
        alpha: weight of token 2 on token 1, between 0 and 1.
        shear: the ``w`` of the value map, above 0.

    >>> found = {one.name: one for one in TwoTokens(alpha=0.5, shear=3.0).equilibria()}
    >>> [f"{number:.6f}" for number in (*found["B"].token, found["B"].multiplier, found["A"].multiplier)]
    ['-0.333333', '-0.942809', '0.057191', '1.942809']
    """

    alpha: float
    shear: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha is the weight of token 2 on token 1, between 0 and 1, got {self.alpha}")
        if not (self.shear > 0 and math.isfinite(self.shear)):
            raise ConfigError(f"the shear w of the value map must be above 0 and finite, got {self.shear}")

    def system(self, *, sphere: bool = True) -> System:
        """Both tokens as a system; ``sphere=False`` leaves the norm out, and the same weights collapse."""
        maps = torch.tensor([[[1.0, 0.0], [self.alpha, 1 - self.alpha]]], dtype=torch.float64)
        values = torch.tensor([[1.0, self.shear], [0.0, 1.0]], dtype=torch.float64)
        return attention_system(Fixed(maps), values, Sphere() if sphere else None)

    @property
    def least_shear(self) -> float:
        """``o = alpha / (1 - alpha)``: A and B exist from this shear on; at it they are one point, (-1, 0)."""
        return self.alpha / (1 - self.alpha)

    @property
    def greatest_stable_shear(self) -> float:
        """``o^2 / sqrt(o^2 - 4)`` for alpha > 2/3, otherwise infinite: B attracts below it, from ``least_shear`` on.

        There its multiplier is -1. Above it token 2 goes to and fro between two places near B, then four and so on,
        and for yet larger shears it may leave for (0, 1).
        """
        odds = self.least_shear
        return odds * odds / math.sqrt(odds * odds - 4) if odds > 2 * (1 + _CLOSE) else math.inf

    @property
    def exists(self) -> bool:
        """Whether there is an equilibrium of rank 2 at all."""
        return self.shear >= self.least_shear * (1 - _CLOSE)

    def equilibria(self) -> tuple[CircleEquilibrium, ...]:
        """All places where token 2 can rest: B and A first, where they exist.

        ``p = -o / w``, ``q = -sqrt(1 - p^2)`` at B and its opposite at A, multiplier ``1 + o q`` at both; ``1 - alpha``
        at (0, 1), which always attracts; ``(1 - alpha) / (1 - 2 alpha)`` at (0, -1), which never does and rests only
        for alpha < 1/2. At alpha = 1/2 a step sends (0, -1) to zero, beyond it to (0, 1).
        """
        found = [*self._apart(), _equilibrium("same", (0.0, 1.0), 1 - self.alpha)]
        if self.alpha < 0.5:
            found.append(_equilibrium("opposite", (0.0, -1.0), (1 - self.alpha) / (1 - 2 * self.alpha)))
        return tuple(found)

    def _apart(self) -> list[CircleEquilibrium]:
        odds = self.least_shear
        if not self.exists:
            return []
        if self.shear <= odds * (1 + _CLOSE):
            return [_equilibrium("A=B", (-1.0, 0.0), 1.0)]
        p = -odds / self.shear
        q = math.sqrt((1 - p) * (1 + p))
        return [_equilibrium(name, (p, y), 1 + odds * y) for name, y in (("B", -q), ("A", q))]

    def circle_map(self, angles: Tensor) -> Tensor:
        """Angle of token 2 after a step, in (-pi, pi], for its angle before it, with token 1 at (0, 1).

        Its derivative is ``(1 + o sin) / (cos^2 + (w cos + sin + o)^2)`` of the angle before.
        """
        across, up = angles.cos(), angles.sin()
        return torch.atan2(self.shear * across + up + self.least_shear, across)


def _equilibrium(name: str, token: tuple[float, float], multiplier: float) -> CircleEquilibrium:
    size = abs(multiplier)
    stable = None if abs(size - 1) <= 1e-12 else size < 1
    return CircleEquilibrium(name=name, token=token, multiplier=multiplier, stable=stable)
