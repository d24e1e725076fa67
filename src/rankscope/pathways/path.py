"""Names for paths through the heads of a network, for the sites they pass and for single heads."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.errors import ConfigError
from rankscope.network import (
    Attention,
    CrossAttention,
    GatedAttention,
    Network,
    Opaque,
    Part,
    SequenceMap,
    ValueResidual,
)
from rankscope.network.known import HELD_MAPS, check_tree, interpreter
from rankscope.network.parts import leaves

PATHS = interpreter("paths")
PATHS.admit(*HELD_MAPS)  # held maps are all that paths ask of a mixer, whatever their rows sum to

SKIP = None
"""A path passes by the heads of a site."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One attention part: its block, counted from 1, its name there and its number of heads."""

    layer: int
    name: str
    heads: int


@dataclass(frozen=True, slots=True)
class Head:
    """One head, counted from 0, of the attention part called ``site`` in block ``layer``.

    >>> str(Head(3, 0))
    'layer 3, head 0'
    """

    layer: int
    head: int
    site: str = "attention"

    def __str__(self) -> str:
        named = "" if self.site == "attention" else f" of {self.site}"
        return f"layer {self.layer}, head {self.head}{named}"


@dataclass(frozen=True, slots=True)
class Path:
    """One head, or SKIP, at every site, in order of execution.

    >>> Path((None, 3, 0)).length
    2
    >>> str(Path((None, 3, 0)))
    '-.3.0'
    """

    heads: tuple[int | None, ...]

    @property
    def length(self) -> int:
        """How many heads are on the path."""
        return sum(head is not SKIP for head in self.heads)

    def __str__(self) -> str:
        return ".".join("-" if head is SKIP else str(head) for head in self.heads)


def sites(network: Network) -> tuple[Site, ...]:
    """All attention parts in order of execution; a second one of the same name in a block is ``name.2``."""
    return tuple(
        Site(layer=layer, name=name, heads=part.values.heads)
        for layer, block in enumerate(network.blocks, start=1)
        for name, part in named_attention(block)
    )


def named_attention(block: Part) -> list[tuple[str, Attention]]:
    """The attention parts of a block in order of execution, with their names."""
    check_tree(PATHS, block)
    met: Counter[str] = Counter()
    found = []
    for leaf in leaves(block):
        if isinstance(leaf, Attention):
            met[leaf.site] += 1
            found.append((leaf.site if met[leaf.site] == 1 else f"{leaf.site}.{met[leaf.site]}", leaf))
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncrossed:
    """A part that no path crosses whatever is asked for MLPs: its whole output is a source.

    Args:
        layer: of the block it stands in.
        site: its name.
        what: what stands there, in words.
        where: the user's own line and the module; None where the part is known and reads something else.
    """

    layer: int
    site: str
    what: str
    where: str | None


def uncrossed(network: Network) -> list[Uncrossed]:
    """Regions run as they are, attention to a memory and gated attention, in order of execution."""
    found = []
    for layer, block in enumerate(network.blocks, start=1):
        for leaf in leaves(block):
            if isinstance(leaf, Opaque | SequenceMap):
                found.append(Uncrossed(layer=layer, site=leaf.site, what=leaf.what, where=leaf.where or None))
            elif isinstance(leaf, CrossAttention):
                found.append(Uncrossed(layer=layer, site=leaf.site, what="attention to a memory", where=None))
            elif isinstance(leaf, GatedAttention):
                found.append(Uncrossed(layer=layer, site=leaf.site, what="gated attention", where=None))
            elif isinstance(leaf, ValueResidual):
                what = "attention with values of the first layer"
                found.append(Uncrossed(layer=layer, site=leaf.site, what=what, where=None))
    return found


def site_index(places: tuple[Site, ...], head: Head) -> int:
    """Which of the sites ``head`` belongs to; raises if there is no such head."""
    for index, place in enumerate(places):
        if (place.layer, place.name) == (head.layer, head.site):
            if 0 <= head.head < place.heads:
                return index
            raise ConfigError(
                f"{head}: there is no such head; {place.name} of layer {place.layer} has heads 0 to {place.heads - 1}"
            )
    layers = sorted({place.layer for place in places})
    names = sorted({place.name for place in places})
    known = (
        f"layers {layers[0]} to {layers[-1]} have {', '.join(names)}"
        if places
        else "the network has no heads"
    )
    raise ConfigError(f"{head}: there is no such head; {known}")


def check_path(places: tuple[Site, ...], path: Path) -> None:
    """Raise unless ``path`` has one entry per site and every head on it exists."""
    if not isinstance(path, Path):
        raise ConfigError(f"expected a path, such as Path((None, 3, 0)), got {path!r}")
    if len(path.heads) != len(places):
        raise ConfigError(
            f"the path {path} has {len(path.heads)} steps, but the network has {len(places)} attention parts; "
            "give a head or None for each"
        )
    for place, head in zip(places, path.heads, strict=True):
        if head is not SKIP:
            site_index((place,), Head(place.layer, head, place.name))


def as_heads(given: Iterable[Head | tuple[int, int]]) -> tuple[Head, ...]:
    """Heads as given, or as pairs of layer and head."""
    found = []
    for head in given:
        pair: object = (head.layer, head.head) if isinstance(head, Head) else head
        if not isinstance(pair, tuple | list) or [type(number) for number in pair] != [int, int]:
            raise ConfigError(f"expected heads as pairs of layer and head, such as [(2, 1)], got {head!r}")
        found.append(head if isinstance(head, Head) else Head(*pair))
    return tuple(found)
