"""The atlas: the facts of every layer that has a name, each computed once and kept."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

Advance = Callable[[int, int, str], None]
"""Called before every layer: how many of how many are done, and the name of the next."""

CACHE = "RANKSCOPE_CACHE"
"""Environment variable that names the folder in which finished rows are kept; empty: nowhere."""

FACTS = ("residual_order", "direction_order", "rate", "rate_normed", "consensus_gap")
"""Facts that have a row in the table."""


def atlas(
    config: AtlasConfig | None = None,
    *,
    advance: Advance | None = None,
    fresh: bool = False,
    **fields: Any,
) -> AtlasFinding:
    """The facts of every layer, with everything that stands around it: consensus, two orders, rate, fall over depth.

    Give an ``AtlasConfig``, or its fields: ``rs.atlas(only=("softmax", "sigmoid"), around=("bare",))``. Finished rows
    are kept in ``cache_folder()``; ``fresh`` computes them again.
    """
    config = AtlasConfig.from_call(config, **fields)
    kinds, store = chosen(config.only), Store(cache_folder())
    found, left_out, total = list[MixerFacts](), list[str](), len(kinds) * len(config.around)
    for place, kind in enumerate(kinds):
        for step, around in enumerate(config.around):
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


class AtlasExtras(TypedDict):
    """What the command line gives the study besides its configuration."""

    fresh: bool


@contextmanager
def atlas_extras(config: AtlasConfig, view: AtlasView, output: Path | None) -> Iterator[AtlasExtras]:
    """Whether kept rows are used."""
    yield {"fresh": view.fresh}


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
    asked: dict[str, JsonValue] = {
        **{"name": kind.name, "around": around, "tokens": tokens, "dim": config.dim, "seed": config.seed},
        "source": source_digest(),
    }

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
