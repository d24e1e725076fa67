"""Graphs by name or from a file of edges: undirected, unweighted, in one piece."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from rankscope.core.registry import unknown_name
from rankscope.core.words import count
from rankscope.errors import ConfigError, FileError, MissingExtraError, Option

Edge = tuple[int, int]

MOST_NODES = 4096
"""Maps are written out in full, so that larger graphs would fill the memory."""

# Zachary, An information flow model for conflict and fission in small groups (1977): who met whom outside the club.
# Members from 0; the club of member 0 and that of member 33 parted.
_KARATE = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Nodes ``0 .. nodes - 1`` and undirected edges between different ones, each once with the smaller node first.

    A node that nothing reaches and a graph in several pieces are errors: tokens of different pieces never meet.
    """

    name: str
    nodes: int
    edges: tuple[Edge, ...]
    labels: tuple[str, ...] = ()
    """What nodes are called in messages; their numbers where there are no names."""

    def __post_init__(self) -> None:
        if self.nodes < 2:
            raise ConfigError(
                f"the graph {self.name} has {count(self.nodes, 'node')}; tokens become equal from two nodes on"
            )
        if self.nodes > MOST_NODES:
            raise ConfigError(
                f"the graph {self.name} has {self.nodes} nodes; maps are written out up to {MOST_NODES}"
            )
        rows, columns = np.array(self.edges, dtype=np.int64).reshape(-1, 2).T
        alone = sorted(set(range(self.nodes)) - set(rows.tolist()) - set(columns.tolist()))
        if alone:
            raise ConfigError(
                f"the graph {self.name} has {count(len(alone), 'node')} without an edge, the first is "
                f"{self._label(alone[0])}; leave such nodes out, or connect them"
            )
        joined = coo_array(
            (np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(self.nodes, self.nodes)
        )
        pieces, piece = connected_components(joined, directed=False)
        if pieces > 1:
            other = int(np.flatnonzero(piece != piece[0])[0])
            raise ConfigError(
                f"the graph {self.name} has {pieces} components, and no path joins the nodes {self._label(0)} and "
                f"{self._label(other)}: tokens of different components never become equal; give one component at a time"
            )

    def _label(self, node: int) -> str:
        return self.labels[node] if self.labels else str(node)

    @cached_property
    def with_loops(self) -> Tensor:
        """The adjacency matrix with every node its own neighbour, A + I, as zeros and ones."""
        matrix = torch.eye(self.nodes, dtype=torch.float64)
        for one, other in self.edges:
            matrix[one, other] = matrix[other, one] = 1.0
        return matrix

    @property
    def adjacency(self) -> Tensor:
        """The adjacency matrix A as zeros and ones, no node being its own neighbour."""
        return self.with_loops - torch.eye(self.nodes, dtype=torch.float64)

    @property
    def edge_index(self) -> Tensor:
        """Sources and targets, ``2 x edges``, every edge both ways: how torch_geometric takes a graph."""
        return self.adjacency.nonzero().T.contiguous()


def cycle(nodes: int) -> Iterable[Edge]:
    """Every node next to the one after it, the last next to the first."""
    return ((node, (node + 1) % nodes) for node in range(nodes))


def path(nodes: int) -> Iterable[Edge]:
    """Every node next to the one after it."""
    return ((node, node + 1) for node in range(nodes - 1))


def complete(nodes: int) -> Iterable[Edge]:
    """Every node next to every other one."""
    return combinations(range(nodes), 2)


def star(nodes: int) -> Iterable[Edge]:
    """Node 0 next to all others; so many nodes in all."""
    return ((0, node) for node in range(1, nodes))


def barbell(half: int) -> Iterable[Edge]:
    """Two complete graphs of so many nodes each and one edge between them."""
    yield from combinations(range(half), 2)
    yield half - 1, half
    yield from combinations(range(half, 2 * half), 2)


def hypercube(dimensions: int) -> Iterable[Edge]:
    """Words of so many bits, next to each other where they differ in one bit."""
    for node in range(2**dimensions):
        yield from ((node, node ^ 2**bit) for bit in range(dimensions) if not node & 2**bit)


def petersen() -> Iterable[Edge]:
    """Pairs of five things, next to each other where they have none in common."""
    pairs = list(combinations(range(5), 2))
    return ((a, b) for a, b in combinations(range(10), 2) if not set(pairs[a]) & set(pairs[b]))


def karate() -> Iterable[Edge]:
    """Zachary's karate club: 34 members and 78 friendships."""
    return ((one, other) for one, friends in _KARATE.items() for other in friends)


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphKind:
    """Graphs of one name, with the number that picks one of them."""

    edges: Callable[[int], Iterable[Edge]]
    nodes: Callable[[int], int] = lambda number: number
    least: int = 2
    most: int = MOST_NODES


NAMED: dict[str, Callable[[], Iterable[Edge]]] = {"karate": karate, "petersen": petersen}
"""Graphs of which there is one."""

SIZED: dict[str, GraphKind] = {
    "cycle": GraphKind(edges=cycle, least=3),
    "path": GraphKind(edges=path),
    "complete": GraphKind(edges=complete),
    "star": GraphKind(edges=star),
    "barbell": GraphKind(edges=barbell, nodes=lambda half: 2 * half, most=MOST_NODES // 2),
    "hypercube": GraphKind(edges=hypercube, nodes=lambda bits: 2**bits, least=1, most=12),
}
"""Graphs of which there is one of every number; ``cycle:20``."""

GRAMMAR = (*NAMED, *(f"{name}:N" for name in SIZED), "networkx:NAME", "a file of edges")
"""What a graph may be asked for by."""


def find_graph(text: str) -> Graph:
    """The graph of that name, or the one whose edges are in that file.

    >>> find_graph("karate").nodes, len(find_graph("karate").edges)
    (34, 78)
    >>> find_graph("star:10").edges[:3]
    ((0, 1), (0, 2), (0, 3))
    """
    name, colon, number = text.strip().partition(":")
    if name in NAMED and not colon:
        return _graph(name, NAMED[name]())
    if name in SIZED:
        return _sized(name, number)
    if name == "networkx" and colon:
        return _of_networkx(number)
    if Path(text).is_file():
        return read_graph(Path(text))
    if "/" in text or "." in text:
        raise FileError(f"there is no file {text}; a graph is {', '.join(GRAMMAR)}")
    raise unknown_name("graph", text, GRAMMAR)


def _graph(name: str, edges: Iterable[Edge], nodes: int | None = None, labels: tuple[str, ...] = ()) -> Graph:
    """The graph of edges in any order and direction, loops and repetitions left out."""
    once = sorted({(min(edge), max(edge)) for edge in edges if edge[0] != edge[1]})
    size = 1 + max(map(max, once)) if nodes is None else nodes
    return Graph(name=name, nodes=size, edges=tuple(once), labels=labels)


def _sized(name: str, number: str) -> Graph:
    kind = SIZED[name]
    if not number.isascii() or not number.isdigit() or not kind.least <= int(number) <= kind.most:
        raise ConfigError(
            Option("graph", f"{name}:{number}" if number else name),
            f": {name} needs a whole number from {kind.least} to {kind.most} after a colon, as ",
            Option("graph", f"{name}:{max(kind.least, 4)}"),
        )
    return _graph(f"{name}:{int(number)}", kind.edges(int(number)), kind.nodes(int(number)))


def read_graph(file: Path) -> Graph:
    """The graph in a text file: two names of nodes per line, separated by spaces, tabs or a comma; # starts a comment.

    Nodes are numbered in the order of their names, whole numbers before words. Edges are undirected: each is there
    once, or all are there both ways. A line with one name is a node without an edge.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file} cannot be read as a text of edges: {error}") from error
    pairs, names = list[tuple[str, str]](), set[str]()
    for place, line in enumerate(lines, start=1):
        words = line.partition("#")[0].replace(",", " ").split()
        if "->" in words or "<-" in words:
            raise ConfigError(f"line {place} of {file} has an arrow: {_UNDIRECTED}")
        if len(words) > 2:
            raise ConfigError(
                f"line {place} of {file} has {len(words)} entries; an edge is two names of nodes, without a weight"
            )
        names.update(words)
        pairs += [(words[0], words[1])] if len(words) == 2 else []
    if not names:
        raise ConfigError(f"{file} has no edges; write two names of nodes on every line")
    both, one_way = _directions(pairs)
    if both and one_way:
        raise ConfigError(
            f"{file} lists the edge {' '.join(both[0])} both ways and {' '.join(one_way[0])} one way: {_UNDIRECTED}"
        )
    number = {name: place for place, name in enumerate(sorted(names, key=_by_number))}
    return _graph(file.name, ((number[a], number[b]) for a, b in pairs), len(number), tuple(number))


_UNDIRECTED = "directed graphs are not taken; list every edge once, or all of them both ways"


def _directions(pairs: list[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The edges that are listed both ways, and those that are listed one way."""
    listed = {pair for pair in pairs if pair[0] != pair[1]}
    both = [pair for pair in pairs if pair in listed and pair[::-1] in listed]
    return both, [pair for pair in pairs if pair in listed and pair[::-1] not in listed]


def _by_number(name: str) -> tuple[bool, int, str]:
    whole = name.isascii() and name.isdigit()
    return not whole, int(name) if whole else 0, name


def _of_networkx(name: str) -> Graph:
    """A graph that networkx makes without arguments, such as ``florentine_families``."""
    try:
        networkx = import_module("networkx")
    except ModuleNotFoundError as error:
        raise MissingExtraError("graphs of networkx need: pip install 'rankscope[graphs]'") from error
    try:
        found = getattr(networkx, f"{name}_graph")()
    except (AttributeError, TypeError) as error:
        raise ConfigError(
            Option("graph", f"networkx:{name}"),
            f": networkx has no {name}_graph() that needs no arguments; as ",
            Option("graph", "networkx:florentine_families"),
        ) from error
    if found.is_directed():
        raise ConfigError(f"networkx:{name} is directed: {_UNDIRECTED}")
    number = {node: place for place, node in enumerate(found.nodes)}
    edges = ((number[a], number[b]) for a, b in found.edges())
    return _graph(f"networkx:{name}", edges, len(number), tuple(map(str, number)))
