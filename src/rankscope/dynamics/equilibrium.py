"""One equilibrium: where its tokens stand, their rank, and whether it attracts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.dynamics.multipliers import Multipliers, multipliers
from rankscope.dynamics.newton import SETTLED, polish
from rankscope.dynamics.returning import returning_share
from rankscope.dynamics.system import System
from rankscope.errors import NumericalError, ShapeError
from rankscope.measures import cosine

_SAFETY = 8  # times the rounding that a singular value decomposition may leave
_NEAR = 10.0  # a singular value within this factor of the threshold makes the rank doubtful
_SHOWN = 6  # tokens that a sentence lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """Tokens that influence each other both ways, and their own largest multiplier."""

    tokens: tuple[int, ...]
    largest_multiplier: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Equilibrium:
    """A state that one step maps to itself. ``as_json`` gives the fields by these names.

    Args:
        rank: number of singular values above ``rank_threshold``, unless ``rank_proof`` says why it is exact.
        rank_note: one sentence where a singular value is so near the threshold that the rank is doubtful.
        digits: decimal digits of the arithmetic that found it.
        equation_residual: largest entry of ``|step(x) - x|``.
        multipliers: eigenvalues of the Jacobian of one step, largest modulus first; see ``multipliers``.
        multiplier_error: estimated error of the largest.
        largest_other_multiplier: largest modulus among those that are not one within their error.
        neutral_tokens: tokens of components that have a multiplier of modulus one within its error.
        stable: True if all moduli are below one by more than their errors, False if one is above, otherwise None.
        returns: share of small random perturbations that come back, see ``returning_share``.
        mean_abs_cosine: over pairs of different tokens; None for one token, or where a token is zero.
        share: share of the starts of a search that ended here.
        found_by: ``run``, ``newton`` or ``given``.
        mirrored: whether ``-x`` was found too and is counted with it.
        states: distinct states with the same inner products that this one stands for.
    """

    rank: int
    rank_proof: str | None
    rank_note: str | None
    rank_threshold: float
    singular_values: tuple[float, ...]
    digits: int
    equation_residual: float
    largest_multiplier: float
    largest_other_multiplier: float | None
    neutral_tokens: tuple[int, ...]
    multipliers: tuple[complex, ...]
    multiplier_error: float
    stable: bool | None
    stability: str
    returns: float | None
    mean_abs_cosine: float | None
    tokens: Tensor
    components: tuple[Component, ...]
    share: float | None = None
    found_by: str = "given"
    mirrored: bool = False
    states: int = 1

    def as_json(self) -> dict[str, Any]:
        """All fields as numbers, strings and lists; a multiplier is ``[real, imaginary]``."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {
            "singular_values": list(self.singular_values),
            "neutral_tokens": list(self.neutral_tokens),
            "multipliers": [[value.real, value.imag] for value in self.multipliers],
            "tokens": self.tokens.tolist(),
            "components": [
                {"tokens": list(one.tokens), "largest_multiplier": one.largest_multiplier}
                for one in self.components
            ],
        }


def judged(
    system: System,
    tokens: Tensor,
    *,
    rank: int | None = None,
    rank_proof: str | None = None,
    singular_values: tuple[float, ...] | None = None,
    rank_threshold: float | None = None,
    digits: int = 15,
    equation_residual: float | None = None,
    uncertainty: float | None = None,
    count: int | None = None,
    trials: int = 64,
    seed: int = 0,
) -> Equilibrium:
    """The equilibrium at ``tokens`` (tokens, dim); refused if a step moves it by more than rounding.

    What a construction knows better (rank with its proof, singular values and their threshold, the residual in more
    digits) is taken from it; the rest is measured. ``uncertainty`` is how far the true equilibrium may be, by default
    what Newton's method would still correct. ``count`` limits the multipliers of each component. ``trials``
    perturbations are run to see how many come back; 0 leaves ``returns`` out.

    >>> from rankscope.dynamics import attention_system
    >>> from rankscope.network import Sphere, Uniform
    >>> from rankscope.masks import parse_mask
    >>> shear = torch.tensor([[1.0, 3.0], [0.0, 1.0]], dtype=torch.float64)
    >>> system = attention_system(Uniform(heads=1, rule=parse_mask("causal")), shear, Sphere())
    >>> found = judged(system, torch.tensor([[0, 1], [-1 / 3, -(8**0.5) / 3]], dtype=torch.float64))
    >>> found.rank, round(found.largest_other_multiplier, 4), found.stability
    (2, 0.0572, 'neutral to first order: token 0 has a multiplier of modulus one; all others are at most 0.05719')
    """
    residual = _checked_residual(system, tokens)
    if uncertainty is None:
        uncertainty = float(polish(system, tokens, iterations=0).uncertainty)
    spectrum = singular_values or tuple(torch.linalg.svdvals(tokens).tolist())
    if rank_threshold is None:
        rank_threshold = _threshold(tokens, spectrum[0], uncertainty)
    found = multipliers(system, tokens, count=count, uncertainty=uncertainty)
    neutral = tuple(sorted(t for group in found.groups if any(group.is_neutral) for t in group.tokens))
    stable = _stable(found)
    return Equilibrium(
        rank=sum(value > rank_threshold for value in spectrum) if rank is None else rank,
        rank_proof=rank_proof,
        rank_note=_doubt(spectrum, rank_threshold) if rank_proof is None else None,
        rank_threshold=rank_threshold,
        singular_values=spectrum,
        digits=digits,
        equation_residual=residual if equation_residual is None else equation_residual,
        largest_multiplier=max(group.largest for group in found.groups),
        largest_other_multiplier=_largest_other(found),
        neutral_tokens=neutral,
        multipliers=tuple(complex(value) for value in found.values),
        multiplier_error=float(found.errors[0]) if len(found.errors) else 0.0,
        stable=stable,
        stability=_sentence(found, stable, neutral),
        returns=_returns(system, tokens, trials, seed),
        mean_abs_cosine=_mean_cosine(tokens),
        tokens=tokens,
        components=tuple(
            Component(tokens=group.tokens, largest_multiplier=group.largest) for group in found.groups
        ),
    )


def _checked_residual(system: System, x: Tensor) -> float:
    checked(x)
    if x.ndim != 2:
        raise ShapeError(f"one equilibrium is (tokens, dim), got shape {tuple(x.shape)}")
    if x.dtype != torch.float64:
        raise ShapeError(f"an equilibrium is judged in float64, got {x.dtype}; use x.double()")
    with torch.no_grad():
        moved = float((system.step(x) - x).abs().max())
    size = float(x.abs().max())
    if not moved <= SETTLED * size:
        raise NumericalError(
            f"this state is no equilibrium to rounding: one step moves an entry by {moved:.1e}, and only "
            f"{SETTLED * size:.0e} would pass; polish(system, x) finds the nearest one"
        )
    return moved


def _threshold(x: Tensor, largest: float, uncertainty: float) -> float:
    """``8 max(n, d) eps`` of the largest singular value, plus what moving every token by the uncertainty could do."""
    tokens, dim = x.shape
    rounding = _SAFETY * max(tokens, dim) * torch.finfo(x.dtype).eps * largest
    return float(rounding + tokens**0.5 * uncertainty)


def _doubt(spectrum: tuple[float, ...], threshold: float) -> str | None:
    near = [value for value in spectrum if threshold / _NEAR < value < threshold * _NEAR]
    if not near:
        return None
    above = sum(value >= threshold * _NEAR for value in spectrum)
    return (
        f"singular value {near[0]:.1e} is near the threshold {threshold:.1e}: the rank is between {above} and "
        f"{above + len(near)}"
    )


def _stable(found: Multipliers) -> bool | None:
    size, errors = np.abs(found.values), found.errors
    if (size - errors > 1).any():
        return False
    return True if (size + errors < 1).all() else None


def _largest_other(found: Multipliers) -> float | None:
    size = np.abs(found.values)
    others = size[np.abs(size - 1) > found.errors]
    return float(others.max()) if len(others) else None


def _sentence(found: Multipliers, stable: bool | None, neutral: tuple[int, ...]) -> str:
    largest = max(found.groups, key=lambda group: group.largest)
    if stable is False:
        return f"unstable: {_named(largest.tokens)} a multiplier of {largest.largest:.4g}, so small changes of it grow"
    if stable:
        return f"stable: small changes shrink, in the end by a factor of {largest.largest:.4g} per step"
    other = _largest_other(found)
    rest = "" if other is None else f"; all others are at most {other:.4g}"
    return f"neutral to first order: {_named(neutral)} a multiplier of modulus one{rest}"


def _named(tokens: tuple[int, ...]) -> str:
    if len(tokens) == 1:
        return f"token {tokens[0]} has"
    shown = ", ".join(str(token) for token in tokens[:_SHOWN])
    return f"tokens {shown}{', ...' if len(tokens) > _SHOWN else ''} have"


def _returns(system: System, x: Tensor, trials: int, seed: int) -> float | None:
    return None if trials == 0 else float(returning_share(system, x, trials=trials, seed=seed))


def _mean_cosine(x: Tensor) -> float | None:
    if len(x) < 2 or bool((x == 0).all(dim=-1).any()):
        return None
    return float(cosine(x, pairs="absolute"))
