"""Findings about equilibria made by hand, for what is said of them and how they are drawn."""

import math
from typing import Any

import numpy as np

from rankscope.findings.equilibria import EquilibriaFinding
from rankscope.findings.equilibria.values import (
    Basins,
    ComponentValue,
    EquilibriumValue,
    Share,
    SystemValue,
    Trajectories,
)
from rankscope.results import Table

STEPS = (0, 1, 2, 5, 10, 30, 100, 300, 1000)


def rest(tokens: Any, **changed: Any) -> EquilibriumValue:
    """A neutral equilibrium at those tokens."""
    state = np.asarray(tokens, dtype=float)
    values = np.linalg.svd(state, compute_uv=False)
    rank = int((values > 1e-12).sum())
    fields: dict[str, Any] = {
        "rank": rank,
        "rank_proof": None,
        "rank_range": (rank, rank),
        "rank_threshold": 1e-12,
        "singular_values": values.tolist(),
        "digits": 15,
        "equation_residual": 1e-16,
        "largest_multiplier": 1.0,
        "largest_other_multiplier": 0.0572,
        "neutral_tokens": (0,),
        "undecided_tokens": (),
        "multipliers": ((1.0, 0.0), (0.0572, 0.0), (0.0, 0.0), (0.0, 0.0)),
        "multiplier_error": 1e-12,
        "stable": None,
        "returns": None,
        "returns_mirrored": None,
        "push_size": 0.01,
        "push_steps": 1000,
        "mean_abs_cosine": 0.9,
        "tokens": state.tolist(),
        "components": (
            ComponentValue(tokens=(0,), largest_multiplier=1.0),
            ComponentValue(tokens=(1,), largest_multiplier=0.0572),
        ),
        "share": 0.5,
        "found_by": "run",
        "mirrored": False,
        "states": 1,
    }
    return EquilibriumValue(**(fields | changed))


def paths(starts: int, tokens: int, dim: int, *, unit: bool = True) -> Trajectories:
    """Tokens that walk towards a common one: weight step / (step + 3) on it."""
    draw = np.random.default_rng(0).normal(size=(starts, tokens + 1, dim))
    share = np.array(STEPS) / (np.array(STEPS) + 3.0)
    states = (1 - share)[:, None, None] * draw[:, None, :-1] + share[:, None, None] * draw[:, None, -1:]
    if unit:
        states = states / np.linalg.norm(states, axis=-1, keepdims=True)
    return recorded(states, STEPS)


def recorded(states: Any, steps: Any = None) -> Trajectories:
    """States ``starts steps tokens dim`` as they are."""
    states = np.asarray(states, dtype=float).tolist()
    count = len(states[0])
    return Trajectories(
        steps=tuple(range(count)) if steps is None else steps,
        starts=states,
        numbers=tuple(range(len(states))),
    )


def system(tokens: int, dim: int, **changed: Any) -> SystemValue:
    """A causal system on the sphere."""
    fields: dict[str, Any] = {"mask": "causal", "norm": "sphere", "values": "shear:3", "attention": "uniform"}
    return SystemValue(**({"tokens": tokens, "dim": dim, "frozen": False, "seed": 0} | fields | changed))


def share(
    count: int, equilibrium: int | None = None, ending: Any = "equilibrium", rank: int | None = None
) -> Share:
    """How some starts ended."""
    return Share(equilibrium=equilibrium, ending=ending, rank=rank, count=count)


def finding(tokens: int = 2, dim: int = 2, **changed: Any) -> EquilibriaFinding:
    """No equilibrium, everything collapses."""
    columns = {"measure": ["m"], "definition": ["m"], "value": [1.0], "floor": [0.0], "kind": ["trajectory"]}
    fields: dict[str, Any] = {
        "rank": None,
        "system": system(tokens, dim),
        "place": None,
        "equilibria": (),
        "basins": Basins(starts=3, steps=1000, shares=(share(3, ending="consensus", rank=1),)),
        "trajectories": paths(3, tokens, dim),
        "without_norm": None,
        "definitions": {},
        "table": Table.from_columns(columns, provenance={}, command="equilibria"),
    }
    return EquilibriaFinding(**(fields | changed))


def two_tokens(**changed: Any) -> EquilibriaFinding:
    """The counter-example of Wu et al. 2024 at alpha = 1/2, w = 3, with its mirror image and its unstable partner."""
    low = math.sqrt(8) / 3
    grows = (
        ComponentValue(tokens=(0,), largest_multiplier=1.0),
        ComponentValue(tokens=(1,), largest_multiplier=1.9428),
    )
    found = (
        rest([[0, 1], [0, 1]], mirrored=True, share=35 / 40),
        rest([[0, 1], [-1 / 3, -low]], mirrored=True, share=4 / 40),
        rest(
            [[0, 1], [-1 / 3, low]],
            stable=False,
            multipliers=((1.9428, 0.0), (1.0, 0.0), (0.3, 0.4)),
            largest_multiplier=1.9428,
            components=grows,
            share=0.0,
            found_by="newton",
        ),
    )
    angles = np.random.default_rng(1).uniform(-np.pi, np.pi, size=(40, 2))
    basins = Basins(
        starts=40,
        steps=1000,
        shares=(share(35, 0, rank=1), share(4, 1, rank=2), share(1, ending="unresolved")),
        start_angles=angles.tolist(),
        limit=(*[1] * 4, *[0] * 35, None),
    )
    fields = {"equilibria": found, "place": 1, "rank": 2, "basins": basins, "trajectories": paths(4, 2, 2)}
    return finding(2, 2, **(fields | changed))
