"""The equilibrium of a rank that was asked for, from a construction that proves it."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from rankscope.dynamics.buildable import order_of
from rankscope.dynamics.equilibrium import Equilibrium, judged
from rankscope.dynamics.staircase import Construction, every_rank
from rankscope.dynamics.system import System
from rankscope.dynamics.two_tokens import TwoTokens
from rankscope.errors import ConfigError, Option
from rankscope.findings.equilibria import EquilibriaConfig
from rankscope.findings.equilibria.values import Pivot, RankProof
from rankscope.masks import parse_mask

EPSILON = torch.finfo(torch.float64).eps
"""How far entries that come from a formula are from the exact ones, relative to each: their rounding."""

SEARCH = "or leave the rank out to search from random starts"


def construct(config: EquilibriaConfig, system: System, rank: int) -> tuple[Equilibrium, RankProof]:
    """The equilibrium of exactly that rank, and why it has it; refused where no construction covers the system."""
    _check(config, rank)
    if config.attention_kind()[0] == "weight":
        return _of_two_tokens(config, system, rank)
    found = every_rank(parse_mask(config.mask), config.tokens, config.dim, rank, shear=config.shear())
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
    return replace(equilibrium, found_by="construction"), _staircase(found)


def _staircase(found: Construction) -> RankProof:
    """One token per level: level m fills the last m channels, so its first entry that is not zero is in ``d - m``."""
    tokens, dim = found.tokens.shape
    if found.rank == 1:
        return _proof(dim, range(1), (1.0,), (0.0,), all_equal=True)
    order = order_of(found.rule, tokens)
    first = [
        next(token for token in order if found.levels[token] == level) for level in range(1, found.rank + 1)
    ]
    return _proof(dim, first, found.pivots, found.log10_pivots)


def _proof(
    dim: int,
    tokens: Sequence[int],
    entries: Sequence[float],
    logs: Sequence[float],
    *,
    all_equal: bool = False,
) -> RankProof:
    """From one token per channel, the last channel first; an entry below the range of floats keeps its sign."""
    pivots = [
        Pivot(
            token=token,
            channel=dim - 1 - place,
            sign=-1 if math.copysign(1.0, entry) < 0 else 1,
            log10_size=log,
        )
        for place, (token, entry, log) in enumerate(zip(tokens, entries, logs, strict=True))
    ]
    return RankProof(pivots=tuple(pivots), all_equal=all_equal)


def _check(config: EquilibriaConfig, rank: int) -> None:
    asked = (Option("rank", rank), " is constructed for")
    if config.value_kind()[0] != "shear":
        raise ConfigError(
            *asked,
            f" value maps shear:W, got {config.values}; use ",
            Option("values", "shear:10"),
            f", {SEARCH}",
        )
    if config.norm != "sphere":
        raise ConfigError(
            *asked,
            f" the norm sphere, got {config.norm}; use ",
            Option("norm", "sphere"),
            f", {SEARCH}",
        )
    if config.attention_kind()[0] not in ("uniform", "weight"):
        raise ConfigError(
            *asked,
            f" attention that does not depend on the tokens, got {config.attention}; use ",
            Option("attention", "uniform"),
            f", {SEARCH}",
        )


def _of_two_tokens(config: EquilibriaConfig, system: System, rank: int) -> tuple[Equilibrium, RankProof]:
    """Token 0 at (0, 1), and token 1 there too (rank 1) or at the point B of the closed form (rank 2)."""
    if config.dim != 2:
        raise ConfigError(
            f"attention {config.attention} has a closed form in dim 2, got dim {config.dim}; use ",
            Option("dim", 2),
        )
    two = TwoTokens(alpha=config.attention_number(), shear=config.shear())
    wanted = ("same",) if rank == 1 else ("B", "A=B")
    places = {one.name: one for one in two.equilibria()}
    place = next((places[name] for name in wanted if name in places), None)
    if place is None:
        raise ConfigError(
            f"{config.attention} with {config.values} has no equilibrium of rank 2: one exists from shear "
            f"alpha / (1 - alpha) = {two.least_shear:.6g} on; use ",
            Option("values", f"shear:{two.least_shear * 2:.3g}"),
        )
    # The first entry of B is -alpha / ((1 - alpha) w), which is not zero.
    entries = (1.0,) if rank == 1 else (1.0, place.token[0])
    logs = [math.log10(abs(entry)) for entry in entries]
    proof = _proof(2, range(rank), entries, logs, all_equal=rank == 1)
    tokens = place.tokens()
    largest = float(torch.linalg.matrix_norm(tokens, 2))
    equilibrium = judged(
        system,
        tokens,
        rank=rank,
        rank_proof=proof.words,
        rank_threshold=2 * EPSILON * largest,
        uncertainty=EPSILON * tokens.abs(),
        trials=config.pushes,
        seed=config.seed,
    )
    return replace(equilibrium, found_by="closed form"), proof
