"""Where attention with a norm comes to rest: an equilibrium of the asked rank, and where random starts end."""

import hashlib
import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.dynamics import System, run
from rankscope.errors import NumericalError
from rankscope.measures import find_measure
from rankscope.measures.evaluate import evaluate_many
from rankscope.network import Network
from rankscope.results import Table
from rankscope.split import log_measure
from rankscope.split.run import stream
from rankscope.studies.equilibria_asked import constructed
from rankscope.studies.equilibria_config import EquilibriaConfig
from rankscope.studies.equilibria_found import Search, recorded_starts, recorded_steps, searched, with_asked
from rankscope.studies.equilibria_system import Built, built, random_starts
from rankscope.studies.equilibria_words import bare_note, ending_notes, frozen_note
from rankscope.studies.rows import Rows, definitions

RATIO = "residual_ratio[frobenius,mean]"
MEASURES = (
    RATIO,
    "cosine[absolute]",
    "smallest_singular_value[absolute]",
    "numerical_rank[relative]",
)
BARE_STEPS = 500
"""Steps that the same weights run without the norm: enough to fall below 1e-100 where tokens halve their distance."""

Progress = Callable[[int, int, str], None]
"""Told before every stage how many are done, of how many, and what is next."""


def equilibria(
    config: EquilibriaConfig | None = None, *, progress: Progress | None = None, **options: Any
) -> Table:
    """Equilibria of ``X <- norm(A X W)``: one of the rank that is asked for, and those that random starts reach.

    ``options`` are fields of ``EquilibriaConfig``. Sections: ``system``, ``equilibrium`` (the one asked for, otherwise
    the most frequent, null if none was found), ``equilibria`` (all, most frequent first), ``basins`` (how many starts
    ended where), ``trajectories`` (states of a few starts) and ``notes``.

    Rows, by ``variant``: ``equilibrium``, measures of its tokens, ``sample`` its place in the list; ``trajectory``, the
    same of recorded starts, ``layer`` the step and ``sample`` the start; ``without norm``, the residual ratio of the
    same weights without the norm, from the split pass.
    """
    config = EquilibriaConfig.of(**options) if config is None else config
    tell = progress or (lambda done, total, doing: None)
    rows, notes = Rows(), list[str]()
    with torch.no_grad(), threads_for(config.tokens * max(config.tokens, config.dim)):
        made = built(config)
        tell(0, 4, "construction")
        asked = None if config.rank is None else constructed(config, made.system, config.rank)
        tell(1, 4, "random starts")
        starts = random_starts(config, config.starts)
        found = searched(config, made.system, starts) if config.starts else Search()
        found, place = (found, 0) if asked is None else with_asked(found, asked)
        tell(2, 4, "trajectories")
        chosen = _recorded(config, starts, found)
        trajectories = _trajectories(config, made.system, chosen, rows)
        tell(3, 4, "without the norm")
        if config.norm != "none":
            is_apart = asked is not None and asked.rank > 1  # at rank one all tokens are equal already
            begin = found.equilibria[place].tokens if is_apart else random_starts(config, 1)[0]
            notes += _without_norm(config, made.bare, begin, rows, is_asked=is_apart)
        _measure_equilibria(config, found, rows)
    told = [one.as_json() for one in found.equilibria]
    told = (
        [one | {"start": number} for one, number in zip(told, found.origins, strict=True)]
        if found.origins
        else told
    )
    system = _system(config, made)
    apart = [one for one in found.notes if one != system["note"]]
    notes = [*apart, *ending_notes(found.shares), *notes]
    if config.frozen:
        notes.append(frozen_note(config, found.origins))
    return rows.table(
        config,
        command="equilibria",
        seeds=(config.seed,),
        system=system,
        equilibrium=told[place] if told else None,
        equilibria=told,
        basins=_basins(config, found, starts),
        trajectories=trajectories,
        notes=notes,
        definitions=definitions(MEASURES),
    )


def _system(config: EquilibriaConfig, made: Built) -> dict[str, Any]:
    """What was iterated; of values from a file also a digest, since files change."""
    named = ("tokens", "dim", "mask", "norm", "values", "attention", "frozen", "seed")
    told = {name: getattr(config, name) for name in named} | {"note": made.system.note(config.tokens)}
    if config.value_kind()[0] == "file":
        told["values_digest"] = hashlib.sha256(made.values.contiguous().numpy().tobytes()).hexdigest()[:12]
    return told


def _basins(config: EquilibriaConfig, found: Search, starts: Tensor) -> dict[str, Any]:
    basins: dict[str, Any] = {"starts": config.starts, "steps": config.steps, "shares": list(found.shares)}
    if config.tokens == config.dim == 2 and config.starts:
        angles = torch.atan2(starts[..., 1], starts[..., 0])
        basins |= {"start_angles": angles.tolist(), "limit": list(found.limits)}
    return basins


def _recorded(config: EquilibriaConfig, starts: Tensor, found: Search) -> list[tuple[int, Tensor]]:
    """Numbers and tokens of the starts whose way is recorded; drawn for that alone where no others are run."""
    if not config.starts:
        return list(enumerate(random_starts(config, config.trajectories)))
    return [(place, starts[place]) for place in recorded_starts(found.limits, config.trajectories)]


def _trajectories(
    config: EquilibriaConfig, system: System, chosen: list[tuple[int, Tensor]], rows: Rows
) -> dict[str, Any] | None:
    if not chosen:
        return None
    x = torch.stack([start for _, start in chosen])
    way = run(
        system.frozen(x) if config.has_own_maps else system,
        x,
        config.steps,
        slowness=None,
        record=recorded_steps(config.steps),
    )
    last = int(way.steps.max())
    steps = [step for step in way.recorded if step <= last] or [0]
    for step in steps:
        _measure(config, rows, way.recorded[step], "trajectory", [number for number, _ in chosen], step)
    states = torch.stack([way.recorded[step] for step in steps], dim=1)
    return {"steps": steps, "starts": states.tolist(), "numbers": [number for number, _ in chosen]}


def _measure_equilibria(config: EquilibriaConfig, found: Search, rows: Rows) -> None:
    if found.equilibria:
        x = torch.stack([one.tokens for one in found.equilibria])
        _measure(config, rows, x, "equilibrium", list(range(len(x))), None)


def _measure(
    config: EquilibriaConfig, rows: Rows, x: Tensor, variant: str, samples: list[int], step: int | None
) -> None:
    about = _about(config, variant) | {"sample": samples, "layer": step}
    measures = [find_measure(name) for name in MEASURES]
    for measure, found in zip(
        measures, evaluate_many(measures, x, layer=step or 1, dtype=torch.float64), strict=True
    ):
        rows.add_measured(measure, found, about)


def _about(config: EquilibriaConfig, variant: str) -> dict[str, object]:
    norm = "none" if variant == "without norm" else config.norm
    names = {"model": "dynamics", "variant": variant, "mask": config.mask, "norm": norm}
    return names | {"seed": config.seed, "site": "block"}


def _without_norm(
    config: EquilibriaConfig, bare: System, start: Tensor, rows: Rows, *, is_asked: bool
) -> list[str]:
    """Rows and a sentence: the residual ratio of the weights alone, by the split pass, as far as float64 reaches."""
    measure, steps = find_measure(RATIO), min(config.steps, BARE_STEPS)
    system = bare.frozen(start) if config.has_own_maps else bare
    states = stream(Network([system.block(0)] * steps), start)
    logs, floors = list[float](), list[float]()
    try:
        for state in islice(states, steps + 1):
            found = log_measure(measure, state)
            logs.append(float(found.log10))
            floors.append(math.inf if found.log10_floor is None else float(found.log10_floor))
    except NumericalError:  # the tokens themselves left the range of floats
        pass
    wanted = [step for step in recorded_steps(steps) if step < len(logs)]
    rows.add(
        len(wanted),
        _about(config, "without norm")
        | {
            "measure": measure.name,
            "definition": measure.definition,
            "sample": 0,
            "layer": wanted,
            "floor": [10.0 ** floors[step] if floors[step] < 300 else None for step in wanted],
            "log10_floor": [floors[step] if math.isfinite(floors[step]) else None for step in wanted],
        }
        | {
            "value": [10.0 ** logs[step] for step in wanted],
            "log10_value": [logs[step] if math.isfinite(logs[step]) else None for step in wanted],
            "resolved": [logs[step] > floors[step] for step in wanted],
        },
    )
    # No more is said than what is above its floor, or that nothing is.
    last = logs[-1] if logs[-1] > floors[-1] or logs[-1] == -math.inf else floors[-1]
    origin = "the tokens of the equilibrium" if is_asked else "the first random start"
    return [bare_note(origin, len(logs) - 1, last)]
