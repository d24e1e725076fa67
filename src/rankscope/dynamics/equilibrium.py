"""One equilibrium: where its tokens stand, their rank, and whether it attracts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.dynamics.multipliers import Multipliers, multipliers
from rankscope.dynamics.newton import polish
from rankscope.dynamics.resting import UNITS, rounding_of
from rankscope.dynamics.returning import PUSH, PUSH_STEPS, returning
from rankscope.dynamics.symmetries import is_odd
from rankscope.dynamics.system import System
from rankscope.errors import NumericalError, ShapeError
from rankscope.measures import cosine

_SAFETY = 8  # times the rounding that a singular value decomposition may leave
_NEAR = 10.0  # a singular value within this factor of the threshold makes the rank doubtful
_VAGUE = 1e-6  # a threshold above this share of the largest singular value makes the rank doubtful
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
        rank_note: one sentence where the rank is doubtful: a singular value is near the threshold, or the place of
            the tokens is known badly.
        digits: decimal digits of the arithmetic that found it.
        equation_residual: largest entry of ``|step(x) - x|``.
        multipliers: eigenvalues of the Jacobian of one step, largest modulus first; see ``multipliers``.
        multiplier_error: estimated error of the largest.
        largest_other_multiplier: largest modulus among those that are not one within their error.
        neutral_tokens: tokens of components that have a multiplier of modulus one within an error of at most ``SURE``.
        undecided_tokens: tokens of components that have one which may be one, known to no better than ``SURE``.
        stable: True if all moduli are below one by more than their errors, False if one is above, otherwise None.
        returns: share of random pushes that come back to it, see ``returning``; None for members of a continuum.
        returns_mirrored: share that goes to ``-x`` instead; None where the system is not odd.
        push_size: length of the pushes, relative to the Frobenius norm.
        push_steps: steps that they are given to come back.
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
    undecided_tokens: tuple[int, ...]
    multipliers: tuple[complex, ...]
    multiplier_error: float
    stable: bool | None
    stability: str
    returns: float | None
    mean_abs_cosine: float | None
    tokens: Tensor
    components: tuple[Component, ...]
    returns_mirrored: float | None = None
    push_size: float = PUSH
    push_steps: int = PUSH_STEPS
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
            "undecided_tokens": list(self.undecided_tokens),
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
    uncertainty: Tensor | float | None = None,
    count: int | None = None,
    trials: int = 64,
    seed: int = 0,
) -> Equilibrium:
    """The equilibrium at ``tokens`` (tokens, dim); refused if a step moves it by more than rounding.

    What a construction knows better (rank with its proof, singular values and their threshold, the residual in more
    digits) is taken from it; the rest is measured. ``uncertainty`` is how far the true equilibrium may be, one
    number or one for every entry, by default what Newton's method would still correct. ``count`` limits the
    multipliers of each component. ``trials`` pushes are run to see how many come back; 0 leaves ``returns`` out.

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
        uncertainty = polish(system, tokens, iterations=0).uncertainty
    unsure = torch.as_tensor(uncertainty, dtype=tokens.dtype, device=tokens.device).expand_as(tokens)
    spectrum = singular_values or tuple(torch.linalg.svdvals(tokens).tolist())
    if rank_threshold is None:
        rank_threshold = _threshold(tokens, spectrum[0], unsure)
    found = multipliers(system, tokens, count=count, uncertainty=unsure)
    neutral = tuple(sorted(t for group in found.groups if any(group.is_neutral) for t in group.tokens))
    undecided = tuple(sorted(t for group in found.groups if any(group.is_undecided) for t in group.tokens))
    stable = _stable(found)
    returns, mirrored = _returns(system, tokens, trials, seed)
    return Equilibrium(
        rank=sum(value > rank_threshold for value in spectrum) if rank is None else rank,
        rank_proof=rank_proof,
        rank_note=_doubt(tokens, spectrum, rank_threshold, unsure) if rank_proof is None else None,
        rank_threshold=rank_threshold,
        singular_values=spectrum,
        digits=digits,
        equation_residual=residual if equation_residual is None else equation_residual,
        largest_multiplier=max(group.largest for group in found.groups),
        largest_other_multiplier=_largest_other(found),
        neutral_tokens=neutral,
        undecided_tokens=undecided,
        multipliers=tuple(complex(value) for value in found.values),
        multiplier_error=float(found.errors[0]) if len(found.errors) else 0.0,
        stable=stable,
        stability=_sentence(found, stable, neutral, undecided),
        returns=returns,
        returns_mirrored=mirrored,
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
        moved, most = float((system.step(x) - x).abs().max()), UNITS * float(rounding_of(system, x))
    if not moved <= most:
        raise NumericalError(
            f"this state is no equilibrium to rounding: one step moves an entry by {moved:.1e}, and only {most:.0e}, "
            f"{UNITS} times the rounding of a step, would pass; polish(system, x) finds the nearest one"
        )
    return moved


def _threshold(x: Tensor, largest: float, unsure: Tensor) -> float:
    """``8 max(n, d) eps`` of the largest singular value, plus what moving every entry by its uncertainty could do.

    Tokens that are all equal stay so: they move together, and that changes no rank.
    """
    rounding = _rounding(x, largest)
    return rounding if _is_consensus(x) else rounding + float(torch.linalg.matrix_norm(unsure))


def _rounding(x: Tensor, largest: float) -> float:
    return _SAFETY * max(x.shape) * torch.finfo(x.dtype).eps * largest


def _is_consensus(x: Tensor) -> bool:
    return bool((x == x[:1]).all())


def _doubt(x: Tensor, spectrum: tuple[float, ...], threshold: float, unsure: Tensor) -> str | None:
    place = 0.0 if _is_consensus(x) else float(torch.linalg.matrix_norm(unsure))
    if place > _VAGUE * spectrum[0]:
        least = sum(value > threshold for value in spectrum)
        most = max(least, min(len(x), int(((x != 0) | (unsure > 0)).any(dim=0).sum())))
        told = f"is {least} all the same" if least == most else f"is between {least} and {most}"
        return f"the place is known only to {float(unsure.max()):.1e}: the rank {told}"
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


def _sentence(
    found: Multipliers, stable: bool | None, neutral: tuple[int, ...], undecided: tuple[int, ...]
) -> str:
    if stable is False:
        tokens, size = _worst(found)
        return f"unstable: {_named(tokens)} a multiplier of {size:.4g}, so small changes of it grow"
    if stable:
        largest = max(group.largest for group in found.groups)
        return f"stable: small changes shrink, in the end by a factor of {largest:.4g} per step"
    if undecided:
        error = max(
            float(group.errors[group.is_undecided].max()) for group in found.groups if any(group.is_undecided)
        )
        return (
            f"not decided: {_named(undecided)} multipliers that may be one, known only to +- {error:.1g}: too little "
            "to say whether small changes grow, stay or shrink"
        )
    other = _largest_other(found)
    rest = "" if other is None else f"; all others are at most {other:.4g}"
    return f"neutral to first order: {_named(neutral)} a multiplier of modulus one{rest}"


def _worst(found: Multipliers) -> tuple[tuple[int, ...], float]:
    """The component with the largest multiplier that is surely above one, and that multiplier."""
    sure = [
        (float(size), group.tokens)
        for group in found.groups
        for size, error in zip(np.abs(group.values), group.errors, strict=True)
        if size - error > 1
    ]
    size, tokens = max(sure)
    return tokens, size


def _named(tokens: tuple[int, ...]) -> str:
    if len(tokens) == 1:
        return f"token {tokens[0]} has"
    shown = ", ".join(str(token) for token in tokens[:_SHOWN])
    return f"tokens {shown}{', ...' if len(tokens) > _SHOWN else ''} have"


def _returns(system: System, x: Tensor, trials: int, seed: int) -> tuple[float | None, float | None]:
    if trials == 0:
        return None, None
    found = returning(system, x, trials=trials, seed=seed)
    return float(found.back), float(found.mirrored) if is_odd(system, x[None]) else None


def _mean_cosine(x: Tensor) -> float | None:
    if len(x) < 2 or bool((x == 0).all(dim=-1).any()):
        return None
    return float(cosine(x, pairs="absolute"))
