"""What ``rankscope paths`` found, read from the sections of its table: lengths, heads, top paths, pairs, sites."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rankscope.errors import ConfigError
from rankscope.results import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """All paths of one length together. ``path_share`` is how many of all paths have it, between 0 and 1."""

    length: int
    paths: int
    path_share: float
    share: float | None
    norm: float | None
    residual: float | None
    cosine: float | None
    cosine_to_output: float | None
    cancellation_ratio: float | None
    floor: float | None
    resolved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """One attention part. ``label`` is its block, with the name of the part where a block has several."""

    layer: int
    site: str
    heads: int
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadValue:
    """All paths through one head; ``place`` counts the attention parts from 0."""

    place: int
    head: int
    share: float | None
    norm: float | None
    residual: float | None
    cosine_to_output: float | None
    resolved: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TopPath:
    """One path of the list of the largest: a head, or None where it passes by, for every attention part."""

    rank: int
    heads: tuple[int | None, ...]
    norm: float | None
    residual: float | None
    share: float | None

    @property
    def length(self) -> int:
        """How many heads are on the path."""
        return sum(head is not None for head in self.heads)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairValue:
    """All paths through two heads, the earlier one first; both as attention part from 0 and head."""

    first: tuple[int, int]
    second: tuple[int, int]
    share: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceValue:
    """All paths that start at the input, or at one kind of bias in one block."""

    source: str
    layer: int | None
    share: float | None
    norm: float | None
    residual: float | None


def lengths_of(table: Table) -> list[Length]:
    """The section ``spectrum``, by length."""
    entries = _entries(table, "spectrum")
    counts = [_whole(entry, "spectrum", "paths") for entry in entries]
    # Counts such as 97**96 exceed every float, their quotient does not.
    total = sum(counts) or 1
    found = [
        Length(
            length=_whole(entry, "spectrum", "length"),
            paths=count,
            path_share=count / total,
            floor=_number(entry, "floor"),
            resolved=entry.get("resolved") is not False,
            **{name: _number(entry, name) for name in _LENGTH_NUMBERS},
        )
        for entry, count in zip(entries, counts, strict=True)
    ]
    return sorted(found, key=lambda one: one.length)


def places_of(table: Table) -> list[Place]:
    """The section ``sites``: all attention parts in order of execution."""
    read = [
        (
            _whole(entry, "sites", "layer"),
            str(entry.get("site", "attention")),
            _whole(entry, "sites", "heads"),
        )
        for entry in _entries(table, "sites")
    ]
    layers = [layer for layer, _, _ in read]
    return [
        Place(
            layer=layer,
            site=site,
            heads=heads,
            label=str(layer) if layers.count(layer) == 1 else f"{layer} {site}",
        )
        for layer, site, heads in read
    ]


def heads_of(table: Table) -> list[HeadValue]:
    """The section ``heads``."""
    places = places_of(table)
    found = []
    for entry in _entries(table, "heads"):
        place, head = _head(entry, places, "heads")
        numbers = {name: _number(entry, name) for name in ("share", "norm", "residual", "cosine_to_output")}
        found.append(
            HeadValue(place=place, head=head, resolved=entry.get("resolved") is not False, **numbers)
        )
    return found


def top_of(table: Table) -> list[TopPath]:
    """The section ``top``, best path first."""
    places = places_of(table)
    found = []
    for entry in _entries(table, "top"):
        heads = entry.get("heads")
        if not isinstance(heads, list) or len(heads) != len(places):
            raise ConfigError(
                f"a path of the section 'top' needs a head or null for each of {len(places)} attention parts, "
                f"got {heads!r}"
            )
        for place, head in zip(places, heads, strict=True):
            _check_head(place, head, "top")
        found.append(
            TopPath(
                rank=_whole(entry, "top", "rank"),
                heads=tuple(heads),
                **{name: _number(entry, name) for name in ("norm", "residual", "share")},
            )
        )
    return sorted(found, key=lambda path: path.rank)


def pairs_of(table: Table) -> list[PairValue]:
    """The section ``pairs``, strongest first; none if the table has no such section."""
    if "pairs" not in table.sections:
        return []
    places = places_of(table)
    found = []
    for entry in _entries(table, "pairs"):
        ends = [_head(entry.get(name), places, "pairs") for name in ("first", "second")]
        found.append(PairValue(first=ends[0], second=ends[1], share=_number(entry, "share")))
    return sorted(found, key=lambda pair: -abs(pair.share or 0.0))


def sources_of(table: Table) -> list[SourceValue]:
    """The section ``sources``, in its order."""
    return [
        SourceValue(
            source=str(entry.get("source", "")),
            layer=None if entry.get("layer") is None else _whole(entry, "sources", "layer"),
            **{name: _number(entry, name) for name in ("share", "norm", "residual")},
        )
        for entry in _entries(table, "sources")
    ]


def score_of(table: Table) -> str:
    """What the top paths are ranked by: ``norm`` or ``residual``."""
    search = table.sections.get("search")
    return "residual" if isinstance(search, Mapping) and search.get("score") == "residual" else "norm"


def name_of(table: Table) -> str:
    """The model that the rows speak of, or nothing."""
    names = table.frame["model"].drop_nulls()
    return str(names[0]) if len(names) else ""


_LENGTH_NUMBERS = ("share", "norm", "residual", "cosine", "cosine_to_output", "cancellation_ratio")


def _entries(table: Table, section: str) -> list[dict[str, Any]]:
    found = table.sections.get(section)
    if not isinstance(found, list):
        raise ConfigError(
            f"paths are drawn from the section {section!r} of their table, and this table has none; give the table "
            "that 'rankscope paths' made, or one saved as .json or .parquet (.csv keeps the rows alone)"
        )
    if not found:
        raise ConfigError(f"nothing to draw: the section {section!r} is empty")
    if not all(isinstance(entry, dict) for entry in found):
        raise ConfigError(f"the section {section!r} needs a list of objects, got {found[0]!r}")
    return found


def _whole(entry: Mapping[str, Any], section: str, name: str) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"an entry of the section {section!r} needs a whole number {name!r}, got {value!r}")
    return value


def _number(entry: Mapping[str, Any], name: str) -> float | None:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if isfinite(value) else None


def _head(entry: Any, places: list[Place], section: str) -> tuple[int, int]:
    """The attention part, counted from 0, and the head that the entry speaks of."""
    if not isinstance(entry, dict):
        raise ConfigError(f"a head of the section {section!r} needs layer, site and head, got {entry!r}")
    where = (_whole(entry, section, "layer"), str(entry.get("site", "attention")))
    known = [(place.layer, place.site) for place in places]
    if where not in known:
        raise ConfigError(
            f"the section {section!r} speaks of layer {where[0]} {where[1]}, which is not among the sites: "
            + ", ".join(f"layer {layer} {site}" for layer, site in known)
        )
    at, head = known.index(where), _whole(entry, section, "head")
    _check_head(places[at], head, section)
    return at, head


def _check_head(place: Place, head: Any, section: str) -> None:
    is_head = isinstance(head, int) and not isinstance(head, bool) and 0 <= head < place.heads
    if head is not None and not is_head:
        raise ConfigError(
            f"the section {section!r} speaks of head {head!r} of layer {place.layer} {place.site}, "
            f"which has heads 0 to {place.heads - 1}"
        )
