"""How far neighbours are apart: the measures of graph networks, Dirichlet energy and mean average distance.

Tokens are nodes. ``complete``: every token is the neighbour of every other; ``path``: tokens are neighbours of those
before and after them. The functions take any other graph as its edges.
"""

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.errors import ShapeError
from rankscope.measures.centers import mean_row, spread
from rankscope.measures.cosines import cosine_floor
from rankscope.measures.norms import frobenius_norm, unit_tokens

GRAPHS = ("complete", "path")
"""Graphs that every number of tokens has."""


def dirichlet_energy(x: Tensor, *, edges: Tensor | str = "complete") -> PerMatrix:
    """``(1/n) sum_i sum_(j next to i) |x_i - x_j|^2``: 0 where all tokens are equal.

    Args:
        x: tokens.
        edges: pairs of neighbours ``2 x edges``, each pair once; or "complete" or "path".

    >>> import torch
    >>> dirichlet_energy(torch.tensor([[0.0], [1.0], [3.0]]), edges=torch.tensor([[0, 1], [1, 2]])).item()
    3.3333333333333335
    """
    x = checked(x, tokens=2)
    return energy_of(x, edges) if isinstance(edges, str) else energy_on(x, checked_edges(edges, x.shape[-2]))


def mean_average_distance(x: Tensor, *, edges: Tensor | str = "complete") -> PerMatrix:
    """The mean over tokens of the mean cosine distance ``1 - cos(x_i, x_j)`` to neighbours; NaN if a token is zero.

    Tokens without a neighbour do not count. ``edges`` are as in ``dirichlet_energy``.

    >>> import torch
    >>> mean_average_distance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]]), edges="path").item()
    0.5
    """
    x = checked(x, tokens=2)
    return (
        distance_of(x, edges) if isinstance(edges, str) else distance_on(x, checked_edges(edges, x.shape[-2]))
    )


def checked_edges(edges: Tensor, tokens: int) -> Tensor:
    """Edges that join different tokens, or an error."""
    if edges.ndim != 2 or len(edges) != 2 or not edges.shape[1] or edges.is_floating_point():
        raise ShapeError(
            f"expected edges (2, edges) of whole numbers, at least one, got {tuple(edges.shape)} of {edges.dtype}"
        )
    if int(edges.min()) < 0 or int(edges.max()) >= tokens or bool((edges[0] == edges[1]).any()):
        raise ShapeError(f"an edge joins two different ones of {tokens} tokens, which are counted from 0")
    if edges.sort(dim=0).values.unique(dim=1).shape[1] < edges.shape[1]:
        raise ShapeError("an edge is given twice; give every pair of neighbours once")
    return edges


def _is_path(graph: str) -> bool:
    """Whether the graph is the path; otherwise it is complete, or an error."""
    if graph not in GRAPHS:
        raise unknown_name("graph of tokens", graph, GRAPHS)
    return graph == "path"


def path_edges(x: TokenMatrix) -> Tensor:
    """Every token and the one after it."""
    place = torch.arange(x.shape[-2] - 1, device=x.device)
    return torch.stack([place, place + 1])


def squared_distances(x: TokenMatrix, edges: Tensor) -> Tensor:
    """``|x_i - x_j|^2`` of every edge."""
    return (x[..., edges[0], :] - x[..., edges[1], :]).square().sum(dim=-1)


def residual_of(x: TokenMatrix) -> PerMatrix:
    """The Frobenius norm of the tokens minus the mean token."""
    parts = spread(x)
    return frobenius_norm(parts.offsets - mean_row(parts.offsets)[..., None, :]) * parts.scale


def energy_on(x: TokenMatrix, edges: Tensor) -> PerMatrix:
    """Dirichlet energy on edges: every pair counts for both of its tokens."""
    return 2 * squared_distances(x, edges).sum(dim=-1) / x.shape[-2]


def energy_of(x: TokenMatrix, graph: str) -> PerMatrix:
    """Dirichlet energy on a graph of that name.

    On the complete graph ``sum_ij |x_i - x_j|^2 = 2 n sum_i |x_i - mean|^2``: twice the squared residual.
    """
    if _is_path(graph):
        return energy_on(x, path_edges(x))
    return 2 * residual_of(x).square()


def energy_floor(x: TokenMatrix, relative: float | PerMatrix, graph: str) -> PerMatrix:
    """Largest change of the energy when ``|E|_F <= relative |X|_F``.

    The root of the energy is a seminorm: the Frobenius norm of ``B X`` with ``B'B = (2/n)`` times the Laplacian, whose
    largest eigenvalue is n on the complete graph and below 4 on a path. So the root moves by at most
    ``m = |B| |E|``, and the energy by at most ``2 sqrt(energy) m + m^2``.
    """
    largest = 2.0 if graph == "complete" else 8.0 / x.shape[-2]
    moved = largest**0.5 * relative * frobenius_norm(x)
    change: Tensor = 2 * energy_of(x, graph).sqrt() * moved + moved**2
    return change


def distance_on(x: TokenMatrix, edges: Tensor) -> PerMatrix:
    """Mean cosine distance of neighbours on edges; ``1 - cos = |u - v|^2 / 2`` of unit tokens, without cancelling."""
    apart = squared_distances(unit_tokens(x), edges) / 2
    ends = torch.cat([edges[0], edges[1]]).to(x.device)
    sums = x.new_zeros(x.shape[:-1]).index_add(-1, ends, torch.cat([apart, apart], dim=-1))
    neighbours = torch.bincount(ends, minlength=x.shape[-2])
    has_some = neighbours > 0
    mean = torch.where(has_some, sums / neighbours.clamp(min=1), 0.0).sum(dim=-1) / has_some.sum()
    return torch.where((x == 0).all(dim=-1).any(dim=-1), torch.nan, mean)


def distance_of(x: TokenMatrix, graph: str) -> PerMatrix:
    """Mean cosine distance of neighbours on a graph of that name.

    On the complete graph the mean over n (n - 1) pairs of ``|u_i - u_j|^2 / 2`` is the squared residual of the unit
    tokens over n - 1.
    """
    if _is_path(graph):
        return distance_on(x, path_edges(x))
    mean = residual_of(unit_tokens(x)).square() / (x.shape[-2] - 1)
    return torch.where((x == 0).all(dim=-1).any(dim=-1), torch.nan, mean)


def distance_floor(x: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Largest change of a mean cosine distance when every token moves by at most ``relative`` of its own length."""
    return cosine_floor(x, relative)
