"""Paths of a given length, drawn with equal probability or listed one by one, for any tree.

All paths of one length are numbered without gaps. A number is drawn below their exact count, however large that is, and
turned into its path by walking down the tree of choices: at every join the number says how many heads each side takes
and which of its own choices. So every path has exactly the same probability, also where layers differ in their heads or
branches are added, and nothing is ever rejected but numbers beyond the count.
"""

from collections.abc import Iterator

import torch

from rankscope.errors import ConfigError
from rankscope.network import Network
from rankscope.pathways.counts import (
    EMPTY,
    Both,
    Choices,
    Either,
    Maybe,
    Pick,
    by_length,
    choices_of,
    counts_of,
)
from rankscope.pathways.path import SKIP, Path, check_path, sites

Heads = tuple[int | None, ...]

WORD = 32  # bits that are drawn at a time


def draw_paths(network: Network, length: int, count: int, *, generator: torch.Generator) -> list[Path]:
    """``count`` paths of that length, independent of each other, each with equal probability; the same one may repeat.

    >>> from rankscope.network import Spec, build, generators
    >>> network = build(Spec(layers=12, heads=4, dim=8, variant="san+skip"), generators(0)[0])
    >>> for path in draw_paths(network, 3, 2, generator=generators(0)[1]):
    ...     print(path)
    -.-.-.-.-.1.0.2.-.-.-.-
    1.-.3.-.-.-.0.-.-.-.-.-
    """
    if count < 1:
        raise ConfigError(f"{count} paths were asked for; ask for at least one")
    choices = choices_of(network)
    total = paths_of(choices, length)
    return [Path(_unranked(choices, length, _uniform(total, generator))) for _ in range(count)]


def every_path(network: Network, length: int | None = None) -> Iterator[Path]:
    """All paths, or those of one length, in lexicographic order; passing by comes before head 0.

    >>> from rankscope.network import Spec, build, generators
    >>> network = build(Spec(layers=2, heads=2, dim=8, variant="san+skip"), generators(0)[0])
    >>> " ".join(map(str, every_path(network)))
    '-.- -.0 -.1 0.- 0.0 0.1 1.- 1.0 1.1'
    >>> " ".join(map(str, every_path(network, 1)))
    '-.0 -.1 0.- 1.-'
    """
    choices = choices_of(network)
    if length is not None:
        paths_of(choices, length)
    wanted = range(choices.sites + 1) if length is None else (length,)
    return (Path(heads) for heads in _every(choices, frozenset(wanted)))


def paths_of(choices: Choices, length: int) -> int:
    """How many paths of that length there are; raises if there is none."""
    found = choices.counts.get((length, 0), 0)
    if not found:
        raise ConfigError(f"no path has length {length}; {_known_lengths(by_length(choices.counts))}")
    return found


def require_path(network: Network, path: Path) -> None:
    """Raise unless the network has that path: the heads exist, and a route through the tree takes them and no others.

    Without a skip around it, an attention cannot be passed by; of branches that are added, a path takes one.
    """
    check_path(sites(network), path)
    start = 0
    for layer, block in enumerate(network.blocks, start=1):
        choices = choices_of(block)
        heads = path.heads[start : start + choices.sites]
        start += choices.sites
        if not _has(choices, heads):
            raise no_route(network, path, layer, heads)


def no_route(network: Network, path: Path, layer: int, heads: Heads) -> ConfigError:
    """The error for a path that takes ``heads`` in a layer where no route does."""
    return ConfigError(
        f"the network has no path {path}: no route through layer {layer} takes {Path(heads)} there. A head must be "
        "chosen where no skip leads past an attention, and in one at most of several branches that are added; "
        f"{_known_lengths(counts_of(network))}"
    )


def _known_lengths(counts: tuple[int, ...]) -> str:
    known = [length for length, count in enumerate(counts) if count]
    if len(known) < 2:
        return f"all its paths have length {known[0]}" if known else "the network has no paths at all"
    if known == list(range(known[0], known[-1] + 1)):
        return f"its paths have length {known[0]} to {known[-1]}"
    return f"its paths have length {', '.join(map(str, known[:-1]))} or {known[-1]}"


def _uniform(total: int, generator: torch.Generator) -> int:
    """A whole number below ``total``, each with equal probability: random bits, drawn again if they are too many."""
    bits = (total - 1).bit_length()
    words = -(-bits // WORD)
    while True:
        drawn = torch.randint(2**WORD, (words,), generator=generator, device=generator.device)
        number: int = sum(word << (WORD * place) for place, word in enumerate(drawn.tolist()))
        number >>= WORD * words - bits
        if number < total:
            return number


def _unranked(choices: Choices, length: int, rank: int) -> Heads:
    """The choice of that length with number ``rank``, below the count of that length."""
    match choices:
        case Pick():
            return (rank,)
        case Both(first=first, second=second):
            for own in range(length + 1):
                rest = second.counts.get((length - own, 0), 0)
                here = first.counts.get((own, 0), 0) * rest
                if rank < here:
                    one, other = divmod(rank, rest)
                    return _unranked(first, own, one) + _unranked(second, length - own, other)
                rank -= here
        case Either(first=first, second=second) if length:
            here = first.counts.get((length, 0), 0)
            if rank < here:
                return _unranked(first, length, rank) + _nothing(second)
            return _nothing(first) + _unranked(second, length, rank - here)
        case Maybe(inner=inner) if length:
            return _unranked(inner, length, rank)
    return _nothing(choices)


def _every(choices: Choices, lengths: frozenset[int]) -> Iterator[Heads]:
    """All choices of these lengths in lexicographic order; nothing comes before head 0."""
    lengths = frozenset(length for length in lengths if (length, 0) in choices.counts)
    if 0 in lengths:
        yield _nothing(choices)
    some = lengths - {0}
    if not some:
        return
    match choices:
        case Pick():
            yield from ((head,) for head in range(choices.counts[1, 0]))
        case Both(first=first, second=second):
            for heads in _every(first, _beside(first, second, some)):
                taken = Path(heads).length
                rest = _every(second, frozenset(length - taken for length in some))
                yield from (heads + more for more in rest)
        case Either(first=first, second=second):
            yield from (_nothing(first) + heads for heads in _every(second, some))
            yield from (heads + _nothing(second) for heads in _every(first, some))
        case Maybe(inner=inner):
            yield from _every(inner, some)


def _beside(first: Choices, second: Choices, lengths: frozenset[int]) -> frozenset[int]:
    """Lengths of ``first`` that a choice in ``second`` can bring to one of ``lengths``."""
    return frozenset(
        own for own, _ in first.counts if any((length - own, 0) in second.counts for length in lengths)
    )


def _has(choices: Choices, heads: Heads) -> bool:
    """Whether exactly these heads can be chosen."""
    match choices:
        case Both(first=first, second=second):
            return _has(first, heads[: first.sites]) and _has(second, heads[first.sites :])
        case Either(first=first, second=second):
            one, other = heads[: first.sites], heads[first.sites :]
            if _is_empty(one) and _is_empty(other):
                return EMPTY in choices.counts
            return (_is_empty(other) and _has(first, one)) or (_is_empty(one) and _has(second, other))
        case Maybe(inner=inner):
            return _is_empty(heads) or _has(inner, heads)
    return not _is_empty(heads) if choices.sites else EMPTY in choices.counts


def _nothing(choices: Choices) -> Heads:
    return (SKIP,) * choices.sites


def _is_empty(heads: Heads) -> bool:
    return all(head is SKIP for head in heads)
