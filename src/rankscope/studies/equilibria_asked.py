"""The equilibrium of a rank that was asked for, from a construction that proves it."""

from dataclasses import replace

import torch

from rankscope.dynamics.equilibrium import Equilibrium, judged
from rankscope.dynamics.staircase import every_rank
from rankscope.dynamics.system import System
from rankscope.dynamics.two_tokens import TwoTokens
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.studies.equilibria_config import EquilibriaConfig, number

EPSILON = torch.finfo(torch.float64).eps
"""How far entries that come from a formula are from the exact ones, relative to each: their rounding."""

SEARCH = "or leave the rank out to search from random starts"


def constructed(config: EquilibriaConfig, system: System, rank: int) -> Equilibrium:
    """The equilibrium of exactly that rank; refused where no construction covers the system."""
    _check(config, rank)
    shear = number(config.values, config.value_kind()[1])
    if config.attention_kind()[0] == "weight":
        return _of_two_tokens(config, system, shear, rank)
    found = every_rank(parse_mask(config.mask), config.tokens, config.dim, rank, shear=shear)
    equilibrium = judged(
        system,
        found.tokens,
        rank=found.rank,
        rank_proof=found.proof,
        singular_values=found.singular_values,
        rank_threshold=found.rank_threshold,
        digits=found.digits,
        equation_residual=found.equation_residual,
        uncertainty=EPSILON * found.tokens.abs(),
        trials=config.pushes,
        seed=config.seed,
    )
    return replace(equilibrium, found_by="construction")


def _check(config: EquilibriaConfig, rank: int) -> None:
    asked = f"rank {rank} is constructed for"
    if config.value_kind()[0] != "shear":
        raise ConfigError(f"{asked} value maps shear:W, got {config.values}; use --values shear:10, {SEARCH}")
    if config.norm != "sphere":
        raise ConfigError(f"{asked} the norm sphere, got {config.norm}; use --norm sphere, {SEARCH}")
    if config.attention_kind()[0] not in ("uniform", "weight"):
        raise ConfigError(
            f"{asked} attention that does not depend on the tokens, got {config.attention}; use --attention uniform, "
            f"{SEARCH}"
        )


def _of_two_tokens(config: EquilibriaConfig, system: System, shear: float, rank: int) -> Equilibrium:
    """Token 1 at (0, 1), and token 2 there too (rank 1) or at the point B of the closed form (rank 2)."""
    if config.dim != 2:
        raise ConfigError(
            f"attention {config.attention} has a closed form in dim 2, got dim {config.dim}; use --dim 2"
        )
    two = TwoTokens(alpha=number(config.attention, config.attention_kind()[1]), shear=shear)
    wanted = ("same",) if rank == 1 else ("B", "A=B")
    places = {one.name: one for one in two.equilibria()}
    place = next((places[name] for name in wanted if name in places), None)
    if place is None:
        raise ConfigError(
            f"{config.attention} with {config.values} has no equilibrium of rank 2: one exists from shear "
            f"alpha / (1 - alpha) = {two.least_shear:.6g} on; use --values shear:{two.least_shear * 2:.3g}"
        )
    p, q = place.token
    proof = (
        "both tokens are (0, 1)"
        if rank == 1
        else f"token 0 is (0, 1), token 1 is ({p:.6g}, {q:.6g}) with first entry -alpha / ((1 - alpha) w), not zero"
    )
    tokens = place.tokens()
    largest = float(torch.linalg.matrix_norm(tokens, 2))
    equilibrium = judged(
        system,
        tokens,
        rank=rank,
        rank_proof=proof,
        rank_threshold=2 * EPSILON * largest,
        uncertainty=EPSILON * tokens.abs(),
        trials=config.pushes,
        seed=config.seed,
    )
    return replace(equilibrium, found_by="closed form")
