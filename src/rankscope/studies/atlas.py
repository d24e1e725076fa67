"""The atlas: the facts of every layer that has a name, each computed once and kept."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import torch
from pydantic import JsonValue

import rankscope.layers
from rankscope.core.numerics import dtype_named, threads_for
from rankscope.errors import MissingExtraError
from rankscope.findings.atlas import (
    NEAR_ORDER,
    Around,
    AtlasConfig,
    AtlasFinding,
    AtlasView,
    LayerFacts,
    MixerFacts,
)
from rankscope.layers.facts import layer_facts
from rankscope.layers.find import all_layers, find_layer
from rankscope.layers.kinds import LayerKind
from rankscope.results import Table, provenance
from rankscope.results.store import Store
from rankscope.studies.rows import run_id
from rankscope.work.run import run
from rankscope.work.scheduler import Task

Advance = Callable[[int, int, str], None]
"""Called before every layer: how many of how many are done, and the name of the next."""

CACHE = "RANKSCOPE_CACHE"
"""Environment variable that names the folder in which finished rows are kept; empty: nowhere."""

ROWS_OF_A_PROCESS = 8
"""A process is started for so many missing rows: it takes seconds until it computes."""

FACTS = ("residual_order", "direction_order", "rate", "rate_normed", "consensus_gap")
"""Facts that have a row in the table."""


def atlas(
    config: AtlasConfig | None = None,
    *,
    advance: Advance | None = None,
    fresh: bool = False,
    workers: int = 1,
    **fields: Any,
) -> AtlasFinding:
    """The facts of every layer, with everything that stands around it: consensus, two orders, rate, fall over depth.

    Give an ``AtlasConfig``, or its fields: ``rs.atlas(only=("softmax", "sigmoid"), around=("bare",))``. Finished rows
    are kept in ``cache_folder()``; ``fresh`` computes them again. Many missing rows are shared among ``workers``
    processes.
    """
    config = AtlasConfig.from_call(config, **fields)
    kinds, store = chosen(config.only), Store(cache_folder())
    found, left_out, total = list[MixerFacts](), list[str](), len(kinds) * len(config.around)
    ready = _shared(kinds, config, store, fresh=fresh, workers=workers, advance=advance)
    for place, kind in enumerate(kinds):
        for step, around in enumerate(config.around):
            if (known := ready.get((kind.name, around))) is not None:
                found.append(known)
                continue
            if advance is not None:
                advance(place * len(config.around) + step, total, f"{kind.name} ({around})")
            try:
                found.append(mixer_of(kind, around, config, store, fresh=fresh))
            except MissingExtraError:
                if config.only:
                    raise
                left_out.append(kind.name)
                break
    return AtlasFinding(mixers=tuple(found), left_out=tuple(left_out), table=table_of(config, found))


@dataclass(frozen=True, slots=True)
class Row:
    """One row that a process is asked for."""

    name: str
    around: Around
    config: AtlasConfig
    fresh: bool


def compute_row(row: Row) -> MixerFacts:
    """The facts of a row, computed or as they were kept, in whichever process this is."""
    return mixer_of(find_layer(row.name), row.around, row.config, Store(cache_folder()), fresh=row.fresh)


def _shared(
    kinds: Sequence[LayerKind],
    config: AtlasConfig,
    store: Store,
    *,
    fresh: bool,
    workers: int,
    advance: Advance | None,
) -> dict[tuple[str, Around], MixerFacts]:
    """Rows that several processes have computed; none where few are missing. One that failed is left to the caller."""
    missing = [
        Row(kind.name, around, config, fresh)
        for kind in kinds
        for around in config.around
        if fresh or not _is_kept(kind, around, config, store)
    ]
    workers = min(workers, len(missing) // ROWS_OF_A_PROCESS)
    if workers < 2:
        return {}
    tasks = {f"{row.name} ({row.around})": row for row in missing}
    found = dict[tuple[str, Around], MixerFacts]()
    for done in run(compute_row, [Task(key, row) for key, row in tasks.items()], workers=workers):
        if done.value is not None:
            found[tasks[done.key].name, tasks[done.key].around] = done.value
        if advance is not None:
            advance(len(found), len(kinds) * len(config.around), done.key)
    return found


def _processors() -> int:
    """Processors that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


class AtlasExtras(TypedDict):
    """What the command line gives the study besides its configuration."""

    fresh: bool
    workers: int


@contextmanager
def atlas_extras(config: AtlasConfig, view: AtlasView, output: Path | None) -> Iterator[AtlasExtras]:
    """Whether kept rows are used, and how many processes compute the others."""
    yield {"fresh": view.fresh, "workers": view.workers or _processors()}


def chosen(only: Sequence[str]) -> list[LayerKind]:
    """The layers of these names or groups, each once; all rows where none is named.

    A name may also be any mask, ``mask:prefix:3+causal``, or a graph layer on any graph, ``gat@cycle:7``.
    """
    every = all_layers()
    if not only:
        return list(every)
    found = dict[str, LayerKind]()
    for name in only:
        kinds = [kind for kind in every if kind.group == name] or [find_layer(name)]
        found |= {kind.name: kind for kind in kinds}
    return list(found.values())


def mixer_of(
    kind: LayerKind, around: Around, config: AtlasConfig, store: Store, *, fresh: bool = False
) -> MixerFacts:
    """The facts of one layer, computed or as they were kept."""
    tokens = kind.tokens or config.tokens
    asked = _asked(kind, around, config)

    def compute() -> LayerFacts:
        with threads_for(tokens * config.dim):
            return layer_facts(
                kind.make(tokens, config.dim, torch.Generator().manual_seed(config.seed)),
                tokens=tokens,
                dim=config.dim,
                around=around,
                seed=config.seed,
                name=kind.name,
                maps=None
                if kind.maps is None
                else kind.maps(tokens, config.dim, torch.Generator().manual_seed(config.seed)),
            )

    if fresh:
        store.forget("atlas", asked)
    facts = store.keep(LayerFacts, "atlas", asked, compute)
    return MixerFacts(
        **facts.model_dump(),
        name=kind.name,
        group=kind.group,
        computes=kind.sentence,
        source=None if kind.ref is None else str(kind.ref),
    )


def _asked(kind: LayerKind, around: Around, config: AtlasConfig) -> dict[str, JsonValue]:
    """What a kept row is known by."""
    tokens = kind.tokens or config.tokens
    return {
        **{"name": kind.name, "around": around, "tokens": tokens, "dim": config.dim, "seed": config.seed},
        "source": source_digest(),
    }


def _is_kept(kind: LayerKind, around: Around, config: AtlasConfig, store: Store) -> bool:
    place = store.folder("atlas", _asked(kind, around, config))
    return place is not None and (place / "result.json").exists()


def cache_folder() -> Path | None:
    """Where finished rows are kept: $RANKSCOPE_CACHE, or the user's cache; None where nothing can be written there."""
    named = os.environ.get(CACHE)
    if named == "":
        return None
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope"
    folder = (Path(named) if named else base) / "atlas"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@cache
def source_digest() -> str:
    """A digest of the code that computes facts: rows of other code are computed again."""
    digest = hashlib.sha256()
    for path in sorted(Path(rankscope.layers.__path__[0]).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def table_of(config: AtlasConfig, found: Sequence[MixerFacts]) -> Table:
    """One row per layer, what stands around it, and fact; an order that is exact has no number."""
    cells = [(one, fact, getattr(one, fact)) for one in found for fact in FACTS]
    known = [None if value is None or math.isinf(value) else float(value) for _, _, value in cells]
    floors = [_floor(one, fact) for one, fact, _ in cells]
    return Table.from_columns(
        {
            "run": run_id(config),
            "seed": config.seed,
            "measure": [fact for _, fact, _ in cells],
            "definition": [fact for _, fact, _ in cells],
            "value": known,
            "floor": floors,
            "resolved": [
                value is not None and value > floor for value, floor in zip(known, floors, strict=True)
            ],
            "mixer": [one.name for one, _, _ in cells],
            "group": [one.group for one, _, _ in cells],
            "around": [one.around for one, _, _ in cells],
        },
        provenance=provenance(config.model_dump(mode="json"), seeds=[config.seed]),
        command="atlas",
    )


def _floor(one: MixerFacts, fact: str) -> float:
    """What is not known of a fact: of an order how far it may be from a whole number, of a rate its uncertainty."""
    if fact.endswith("order"):
        return NEAR_ORDER
    eps = float(torch.finfo(dtype_named(one.precision)).eps)
    # What an eigenvalue is off by is read from errors drawn at random: near rounding only its order is known.
    off = {"rate": one.rate_uncertainty, "rate_normed": one.rate_normed_uncertainty}
    return max(off[fact] or 0.0, 4096 * eps) if fact in off else 64 * eps
