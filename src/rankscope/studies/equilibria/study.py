"""Where attention with a norm comes to rest: an equilibrium of the asked rank, and where random starts end."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.dynamics import Ending, System, run
from rankscope.dynamics.equilibrium import Equilibrium
from rankscope.dynamics.search import find_equilibria
from rankscope.errors import NumericalError
from rankscope.findings.blocks import LN10
from rankscope.findings.equilibria import EquilibriaConfig, EquilibriaFinding, values
from rankscope.findings.equilibria.values import EndingName as Ended
from rankscope.findings.equilibria.values import Share
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.measures.evaluate import evaluate_many
from rankscope.network import Network
from rankscope.results.table import Columns, Row
from rankscope.split import log_measure
from rankscope.split.run import stream
from rankscope.studies.collapse import apart_under
from rankscope.studies.equilibria.construction import construct
from rankscope.studies.equilibria.system import SystemPair, build_systems, random_starts
from rankscope.studies.rows import RowBuilder, definitions

RATIO = "residual_ratio[frobenius,mean]"
MEASURES = (
    RATIO,
    "cosine[absolute]",
    "smallest_singular_value[absolute]",
    "numerical_rank[relative]",
)
BARE_STEPS = 500
"""Steps that the same weights run without the norm: enough to fall below 1e-100 where tokens halve their distance."""

NEAR = 10.0
"""A singular value within this factor of the threshold of the rank makes the rank doubtful."""

SAME = 1e-6
"""Largest difference of an entry, relative to the largest entry, up to which two equilibria are one."""

MOST = 32
"""Equilibria of a search that are judged."""

FROZEN_JUDGED = 4
"""Starts whose own equilibrium is judged where every start has its own maps."""

Advance = Callable[[int, int, str], None]
"""Called before every stage with how many are done, of how many, and what is next."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StartSearch:
    """Equilibria, how many starts ended where, and for every start the place of its equilibrium in the list.

    ``origins`` are the starts that equilibria belong to, where each start has its own map; otherwise empty.
    ``is_full`` says that as many equilibria were found as are judged at most.
    """

    equilibria: tuple[Equilibrium, ...] = ()
    shares: tuple[Share, ...] = ()
    limits: tuple[int | None, ...] = ()
    origins: tuple[int, ...] = ()
    is_full: bool = False


def equilibria(
    config: EquilibriaConfig | None = None, *, advance: Advance | None = None, **fields: Any
) -> EquilibriaFinding:
    """Equilibria of ``X <- norm(A X W)``: one of the rank that is asked for, and those that random starts reach.

    Give an ``EquilibriaConfig``, or its fields: ``rs.equilibria(tokens=6, dim=4, rank=3)``.

    Rows, by ``kind``: ``equilibrium``, measures of its tokens, ``sample`` its place in the list; ``trajectory``, the
    same of recorded starts after ``step`` steps, ``sample`` the number of the start; ``without norm``, the residual
    ratio of the same weights without the norm, from the split pass.
    """
    config = _check_config(EquilibriaConfig.from_call(config, **fields))
    say = advance or (lambda done, total, doing: None)
    rows, proof = RowBuilder(), None
    with torch.no_grad(), threads_for(config.tokens * max(config.tokens, config.dim)):
        made = build_systems(config)
        say(0, 4, "construction")
        asked = None
        if config.rank is not None:
            asked, proof = construct(config, made.system, config.rank)
        say(1, 4, "random starts")
        starts = random_starts(config, config.starts)
        found = search(config, made.system, starts) if config.starts else StartSearch()
        found, place = (found, 0) if asked is None else with_asked(found, asked)
        say(2, 4, "trajectories")
        trajectories = _trajectories(config, made.system, _followed_starts(config, starts, found), rows)
        say(3, 4, "without the norm")
        bare = None
        if config.norm != "none":
            is_apart = asked is not None and asked.rank > 1  # at rank one all tokens are equal already
            begin = found.equilibria[place].tokens if is_apart else random_starts(config, 1)[0]
            bare = _without_norm(config, made.bare, begin, rows, is_asked=is_apart)
        _measure_equilibria(config, found, rows)
    return EquilibriaFinding(
        rank=config.rank,
        system=_system(config, made),
        place=place if found.equilibria else None,
        equilibria=tuple(
            value_of(one, proof if asked is not None and at == place else None, start)
            for at, (one, start) in enumerate(
                zip(found.equilibria, found.origins or [None] * len(found.equilibria), strict=True)
            )
        ),
        is_full=found.is_full,
        basins=_basins(config, found, starts),
        trajectories=trajectories,
        without_norm=bare,
        definitions=definitions(MEASURES),
        table=rows.table(config, command="equilibria", seeds=(config.seed,)),
    )


def _check_config(config: EquilibriaConfig) -> EquilibriaConfig:
    """The configuration with the mask as its rule writes it; an error unless the mask fits the tokens."""
    rule = parse_mask(config.mask)
    rule.matrix(config.tokens)
    return config.model_copy(update={"mask": rule.text})


def value_of(
    one: Equilibrium, proof: values.RankProof | None, start: int | None = None
) -> values.EquilibriumValue:
    """An equilibrium of the engine as a typed value without tensors and sentences."""
    return values.EquilibriumValue(
        rank=one.rank,
        rank_proof=proof,
        rank_range=(one.rank, one.rank) if proof is not None else rank_range(one),
        rank_threshold=one.rank_threshold,
        singular_values=one.singular_values,
        digits=one.digits,
        equation_residual=one.equation_residual,
        largest_multiplier=_finite(one.largest_multiplier),
        largest_other_multiplier=_finite(one.largest_other_multiplier),
        neutral_tokens=one.neutral_tokens,
        undecided_tokens=one.undecided_tokens,
        multipliers=tuple((_finite(value.real), _finite(value.imag)) for value in one.multipliers),
        multiplier_error=_finite(one.multiplier_error),
        stable=one.stable,
        returns=one.returns,
        returns_mirrored=one.returns_mirrored,
        push_size=one.push_size,
        push_steps=one.push_steps,
        mean_abs_cosine=_finite(one.mean_abs_cosine),
        tokens=_as_lists(one.tokens),
        components=tuple(
            values.ComponentValue(tokens=part.tokens, largest_multiplier=_finite(part.largest_multiplier))
            for part in one.components
        ),
        share=one.share,
        found_by=cast(values.FoundBy, one.found_by),
        mirrored=one.mirrored,
        states=one.states,
        start=start,
    )


def rank_range(one: Equilibrium) -> tuple[int, int]:
    """The ranks that are possible.

    The engine doubts a rank for two reasons. A singular value lies near the threshold: then those that are clearly
    above it count for sure, and the near ones perhaps. Or the place of the tokens is known so badly that the threshold
    is large: then values above it count for sure, and any below it may be real.
    """
    if one.rank_note is None:
        return one.rank, one.rank
    threshold, found = one.rank_threshold, one.singular_values
    if threshold > values.VAGUE * found[0]:
        return sum(value > threshold for value in found), min(one.tokens.shape)
    least = sum(value >= NEAR * threshold for value in found)
    return least, sum(value > threshold / NEAR for value in found)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _system(config: EquilibriaConfig, made: SystemPair) -> values.SystemValue:
    """What was iterated; of values from a file also a digest, since files change."""
    digest = None
    if config.value_kind()[0] == "file":
        digest = hashlib.sha256(made.values.contiguous().numpy().tobytes()).hexdigest()[:12]
    # Attention with a weight is a fixed map under which the first token reaches the second.
    is_ruled = config.attention_kind()[0] != "weight"
    return values.SystemValue(
        tokens=config.tokens,
        dim=config.dim,
        mask=config.mask,
        norm=config.norm,
        values=config.values,
        attention=config.attention,
        frozen=config.frozen,
        seed=config.seed,
        values_digest=digest,
        apart=apart_under(config.mask, config.tokens) if is_ruled else None,
    )


def _basins(config: EquilibriaConfig, found: StartSearch, starts: Tensor) -> values.Basins:
    angles = None
    if config.tokens == config.dim == 2 and config.starts:
        angles = _as_lists(torch.atan2(starts[..., 1], starts[..., 0]))
    return values.Basins(
        starts=config.starts,
        steps=config.steps,
        shares=found.shares,
        start_angles=angles,
        limit=None if angles is None else found.limits,
    )


def _followed_starts(
    config: EquilibriaConfig, starts: Tensor, found: StartSearch
) -> list[tuple[int, Tensor]]:
    """Numbers and tokens of the starts whose path is recorded; drawn for that alone where no others are run."""
    if not config.starts:
        return list(enumerate(random_starts(config, config.trajectories)))
    return [(place, starts[place]) for place in recorded_starts(found.limits, config.trajectories)]


def _trajectories(
    config: EquilibriaConfig, system: System, chosen: list[tuple[int, Tensor]], rows: RowBuilder
) -> values.Trajectories | None:
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
    last, numbers = int(way.steps.max()), [number for number, _ in chosen]
    steps = [step for step in way.recorded if step <= last] or [0]
    for step in steps:
        _measure(config, rows, way.recorded[step], "trajectory", numbers, step)
    states = torch.stack([way.recorded[step] for step in steps], dim=1)
    return values.Trajectories(steps=tuple(steps), starts=_as_lists(states), numbers=tuple(numbers))


def _as_lists(x: Tensor) -> Any:
    """The entries as nested lists, None where one is not finite; the value that takes them checks their shape."""

    def known(found: Any) -> Any:
        return [known(one) for one in found] if isinstance(found, list) else _finite(found)

    return x.tolist() if bool(torch.isfinite(x).all()) else known(x.tolist())


def _measure_equilibria(config: EquilibriaConfig, found: StartSearch, rows: RowBuilder) -> None:
    if found.equilibria:
        x = torch.stack([one.tokens for one in found.equilibria])
        _measure(config, rows, x, "equilibrium", list(range(len(x))), None)


def _measure(
    config: EquilibriaConfig, rows: RowBuilder, x: Tensor, kind: str, samples: list[int], step: int | None
) -> None:
    about: Columns = {**_about(config, kind), "sample": samples, "step": step}
    measures = [find_measure(name) for name in MEASURES]
    for measure, found in zip(
        measures, evaluate_many(measures, x, layer=step or 1, dtype=torch.float64), strict=True
    ):
        rows.add_measured(measure, found, about)


def _about(config: EquilibriaConfig, kind: str) -> Row:
    norm = "none" if kind == "without norm" else config.norm
    return {
        **{"model": "dynamics", "kind": kind, "mask": config.mask, "norm": norm},
        **{"seed": config.seed, "site": "block"},
    }


def _without_norm(
    config: EquilibriaConfig, bare: System, start: Tensor, rows: RowBuilder, *, is_asked: bool
) -> values.Bare:
    """Rows, and where they end: the residual ratio of the weights alone, by the split pass."""
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
        {
            **_about(config, "without norm"),
            "measure": measure.name,
            "definition": measure.definition,
            "sample": 0,
            "step": wanted,
            "floor": [10.0 ** floors[step] if floors[step] < 300 else None for step in wanted],
            "log10_floor": [floors[step] if math.isfinite(floors[step]) else None for step in wanted],
            "value": [10.0 ** logs[step] for step in wanted],
            "log10_value": [logs[step] if math.isfinite(logs[step]) else None for step in wanted],
            "resolved": [logs[step] > floors[step] for step in wanted],
        },
    )
    log, floor = logs[-1] * LN10, floors[-1] * LN10
    return values.Bare(
        origin="equilibrium" if is_asked else "start",
        steps=len(logs) - 1,
        log_ratio=log if log == -math.inf else _finite(log),
        log_floor=_finite(floor),
    )


def search(config: EquilibriaConfig, system: System, starts: Tensor) -> StartSearch:
    """Limits of the starts, polished and judged; Newton's method adds equilibria that no start reaches."""
    if config.has_own_maps:
        return _searched_frozen(config, system, starts)
    found = find_equilibria(
        system,
        starts,
        steps=config.steps,
        newton=config.newton,
        trials=config.pushes,
        most=MOST,
        seed=config.seed,
    )
    return StartSearch(
        equilibria=found.equilibria,
        shares=tuple(
            Share(equilibrium=one.equilibrium, ending=cast(Ended, one.ending), rank=one.rank, count=one.count)
            for one in found.basins
        ),
        limits=tuple(None if place < 0 else place for place in found.limits.tolist()),
        is_full=len(found.equilibria) >= MOST,
    )


def _searched_frozen(config: EquilibriaConfig, system: System, starts: Tensor) -> StartSearch:
    """Every start has its own system: endings are counted, and the first few starts' equilibria judged."""
    ended = run(system.frozen(starts), starts, config.steps)
    counts = Counter(_ending_of(ending, end) for ending, end in zip(ended.endings, ended.final, strict=True))
    equilibria, origins = list[Equilibrium](), list[int]()
    for number, start in enumerate(starts[:FROZEN_JUDGED]):
        own = find_equilibria(
            system.frozen(start), start[None], steps=config.steps, trials=config.pushes, seed=config.seed
        )
        equilibria += [replace(one, share=None) for one in own.equilibria[:1]]
        origins += [number] * len(own.equilibria[:1])
    shares = [
        Share(equilibrium=None, ending=name, rank=rank, count=count)
        for (name, rank), count in counts.most_common()
    ]
    return StartSearch(
        equilibria=tuple(equilibria),
        shares=tuple(shares),
        limits=(None,) * len(starts),
        origins=tuple(origins),
    )


def _ending_of(ending: Ending, tokens: Tensor) -> tuple[Ended, int | None]:
    """How one start ended, and the rank it has there if it is at rest."""
    if ending == Ending.RUNNING:
        return "unresolved", None
    rank = None if ending == Ending.RANGE else int(torch.linalg.matrix_rank(tokens, rtol=SAME))
    return cast(Ended, ending.name.lower()), rank


def with_asked(found: StartSearch, asked: Equilibrium) -> tuple[StartSearch, int]:
    """The same with the equilibrium that was asked for in the list, and its place there.

    Where random starts found it too, it takes the place of what they found; otherwise it comes last.
    """
    for place, one in enumerate(found.equilibria):
        if is_same(one, asked):
            joined = replace(asked, share=one.share, mirrored=one.mirrored, states=one.states)
            listed = (*found.equilibria[:place], joined, *found.equilibria[place + 1 :])
            return replace(found, equilibria=listed), place
    unreached = replace(asked, share=0.0 if found.limits else None)
    return replace(found, equilibria=(*found.equilibria, unreached)), len(found.equilibria)


def is_same(one: Equilibrium, other: Equilibrium) -> bool:
    """Whether two equilibria agree, or are each other's mirror image where both signs are at rest."""
    size = float(one.tokens.abs().max())
    gaps = [float((one.tokens - sign * other.tokens).abs().max()) for sign in (1.0, -1.0)]
    return gaps[0] <= SAME * size or (one.mirrored and gaps[1] <= SAME * size)


def recorded_starts(limits: tuple[int | None, ...], count: int) -> list[int]:
    """Numbers of that many starts: the first of each limit, most frequent limits first, then the first others."""
    order = sorted(set(limits), key=lambda limit: (-limits.count(limit), limits.index(limit)))
    chosen = [limits.index(limit) for limit in order]
    chosen += [place for place in range(len(limits)) if place not in set(chosen)]
    return chosen[:count]


def recorded_steps(steps: int, most: int = 120) -> list[int]:
    """Numbers of steps to record: all of the first, then ever further apart, and the last.

    >>> recorded_steps(5)
    [0, 1, 2, 3, 4, 5]
    """
    spaced = torch.logspace(0, 1, most, base=float(steps)).round().long().tolist()
    return sorted({0, steps, *spaced})
