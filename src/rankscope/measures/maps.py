"""Numbers of attention maps: matrices whose rows (queries) are non-negative and sum to one."""

import math

import numpy as np
import torch
from torch import Tensor

from rankscope.core.numerics import checked, relative_floor
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.errors import ShapeError
from rankscope.measures.brackets import Bracket
from rankscope.measures.entropies import entropy, entropy_change
from rankscope.measures.gaps import second_modulus
from rankscope.measures.norms import frobenius_norm
from rankscope.measures.row_distances import distance_bracket
from rankscope.measures.sharing import shared

EXACT_TOKENS = 32
"""Maps of up to so many tokens have their eigenvalues computed: faster than a bracket."""


def checked_map(
    attention: Tensor, *, dtype: torch.dtype | None = None, tokens: int = 1, square: bool = False
) -> Tensor:
    """``attention`` in float64, or an error if its rows are not probabilities to the precision of ``dtype``.

    ``dtype`` is what the map was computed in; left out, it is the dtype of the tensor.
    """
    if attention.ndim >= 2 and square and attention.shape[-1] != attention.shape[-2]:
        raise ShapeError(f"expected square maps (*batch, tokens, tokens), got shape {tuple(attention.shape)}")
    maps = checked(attention, tokens=tokens)
    allowed = relative_floor(1, attention.dtype if dtype is None else dtype)
    off = (maps.sum(dim=-1) - 1).abs()
    worst, least = (off.max().item(), maps.min().item()) if maps.numel() else (0.0, 0.0)
    if worst > allowed or least < -allowed:
        found = f"rows miss 1 by up to {worst:.1e}" if worst > allowed else f"an entry is {least:.1e}"
        raise ShapeError(
            f"expected attention maps whose rows are non-negative and sum to one, but {found} "
            f"(allowed {allowed:.0e}); pass the map after softmax, without dropout, in the dtype it was computed in"
        )
    return maps


def attention_entropy(attention: Tensor, *, unit: str) -> PerMatrix:
    """Mean over queries of the entropy of their attention.

    In nats for ``unit="mean"``, divided by log(keys) for ``unit="normalized"``.

    >>> import torch
    >>> attention_entropy(torch.full((4, 4), 0.25), unit="normalized").item()
    1.0
    """
    if unit not in ("mean", "normalized"):
        raise unknown_name("unit of entropy", unit, ("mean", "normalized"))
    return (entropy_of if unit == "mean" else normalized_entropy_of)(checked_map(attention))


def dobrushin(attention: Tensor) -> PerMatrix:
    """Half the largest l1 distance between two rows: 0 if all queries attend alike, 1 if two share no key.

    The contraction coefficient: averaging with the map multiplies every token diameter by at most this.

    >>> import torch
    >>> dobrushin(torch.eye(3)).item()
    1.0
    """
    return dobrushin_of(checked_map(attention, tokens=2))


def doeblin(attention: Tensor) -> PerMatrix:
    """One minus the attention that all queries share, ``1 - sum_k min_i A_ik``: above ``dobrushin`` and cheaper.

    >>> import torch
    >>> doeblin(torch.tensor([[0.5, 0.5], [0.25, 0.75]])).item()
    0.25
    """
    return doeblin_of(checked_map(attention, tokens=2))


def spectral_gap(attention: Tensor) -> PerMatrix:
    """One minus the second largest eigenvalue modulus of a square map: 1 if one step reaches consensus.

    >>> import torch
    >>> round(spectral_gap(torch.tensor([[0.75, 0.25], [0.25, 0.75]])).item(), 12)
    0.5
    """
    return spectral_gap_of(checked_map(attention, tokens=2, square=True))


def sink_share(attention: Tensor) -> PerMatrix:
    """Largest share of all attention that one key receives: ``max_k mean_i A_ik``.

    >>> import torch
    >>> sink_share(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).item()
    0.75
    """
    return sink_share_of(checked_map(attention))


def entropy_of(maps: TokenMatrix) -> PerMatrix:
    """As ``attention_entropy`` in nats, of checked input."""
    return entropy(maps).mean(dim=-1)


def normalized_entropy_of(maps: TokenMatrix) -> PerMatrix:
    """As ``attention_entropy`` over log(keys), of checked input; NaN for a single key, where it is 0/0."""
    return entropy_of(maps) / torch.tensor(maps.shape[-1]).double().log()


def dobrushin_of(maps: TokenMatrix) -> PerMatrix:
    """As ``dobrushin``, of checked input."""
    return torch.cdist(maps, maps, p=1.0).amax(dim=(-2, -1)) / 2


def doeblin_of(maps: TokenMatrix) -> PerMatrix:
    """As ``doeblin``, of checked input; what a row holds above the shared part, so that equal rows give zero."""
    shared = maps.amin(dim=-2, keepdim=True)
    return (maps - shared).sum(dim=-1).amin(dim=-1)


def spectral_gap_of(maps: TokenMatrix) -> PerMatrix:
    """As ``spectral_gap``, of checked input, whose rows are made to sum to one in float64.

    The eigenvalues of a triangular map are its diagonal.
    """
    if bool(_is_triangular(maps).all()):
        moduli = _in_one(maps).diagonal(dim1=-2, dim2=-1).abs()
    else:
        moduli = _eigen(maps)[0].abs()
    return 1 - moduli.sort(dim=-1).values[..., -2]


@shared
def quick_spectral_gap_of(maps: TokenMatrix) -> PerMatrix:
    """The middle of the bracket of the gap; of small and of triangular maps the gap."""
    if _is_easy(maps):
        return spectral_gap_of(maps)
    low, high = second_modulus(_in_one(maps))
    high = torch.minimum(
        high, _distances(maps).high / 2
    )  # no other eigenvalue is above the Dobrushin coefficient
    return 1 - (torch.minimum(low, high) + high) / 2


def quick_dobrushin_of(maps: TokenMatrix) -> PerMatrix:
    """The middle of the bracket of the Dobrushin coefficient, whose ends are equal unless many rows are rivals."""
    low, high = _distances(maps)
    return (low + high) / 4


@shared
def _norm(maps: TokenMatrix) -> PerMatrix:
    """In the Frobenius norm, which all floors count in."""
    return frobenius_norm(maps)


def _is_easy(maps: TokenMatrix) -> bool:
    return maps.shape[-1] <= EXACT_TOKENS or bool(_is_triangular(maps).all())


@shared
def _distances(maps: TokenMatrix) -> Bracket:
    low, high = distance_bracket(maps)
    return Bracket(low, torch.minimum(high, 2 * maps.sum(dim=-1).amax(dim=-1)))


@shared
def _in_one(maps: TokenMatrix) -> TokenMatrix:
    return maps / maps.sum(dim=-1, keepdim=True)


def sink_share_of(maps: TokenMatrix) -> PerMatrix:
    """As ``sink_share``, of checked input."""
    return maps.mean(dim=-2).amax(dim=-1)


def entropy_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the mean entropy when ``|E|_F <= relative |A|_F`` and rows stay probabilities.

    A row moves by ``T_i <= sqrt(keys) |e_i| / 2`` in total variation, which changes its entropy by at most
    ``T log(keys - 1) + h(T)``; that is concave in T, so the mean is bounded at the mean T.
    """
    queries, keys = maps.shape[-2:]
    moved = math.sqrt(keys / queries) / 2 * relative * _norm(maps)
    return entropy_change(moved, keys)


def normalized_entropy_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the mean entropy over log(keys)."""
    return entropy_floor(maps, relative) / torch.tensor(maps.shape[-1]).double().log()


def dobrushin_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Half the l1 distance of two rows of E is at most ``sqrt(keys / 2) |E|_F``."""
    return (math.sqrt(maps.shape[-1] / 2) * relative * _norm(maps)).clamp(max=1.0)


def doeblin_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """A column minimum moves by at most the largest |entry| of that column of E: together ``sqrt(keys) |E|_F``."""
    return (math.sqrt(maps.shape[-1]) * relative * _norm(maps)).clamp(max=1.0)


def sink_share_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """The mean of a column of E is at most ``|E|_F / sqrt(queries)``."""
    return (relative * _norm(maps) / math.sqrt(maps.shape[-2])).clamp(max=1.0)


def quick_dobrushin_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Half the bracket beside the floor of the coefficient."""
    low, high = _distances(maps)
    return (dobrushin_floor(maps, relative) + (high - low) / 4).clamp(max=1.0)


def quick_spectral_gap_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """How far the gap of any map with ``|E|_F <= relative |A|_F`` may be from the middle of the bracket; proven."""
    if _is_easy(maps):
        return spectral_gap_floor(maps, relative)
    moved = _moved(maps, relative)
    low, high = second_modulus(_in_one(maps), moved)
    high = torch.minimum(high, _distances(maps).high / 2 + math.sqrt(maps.shape[-1] / 2) * moved)
    middle = 1 - quick_spectral_gap_of(maps)
    return torch.maximum(high - middle, middle - low)


def spectral_gap_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the gap when ``|E|_F <= relative |A|_F`` and masked entries stay zero.

    Eigenvalues of a map that is not symmetric can be very sensitive. Bauer and Fike: each one of A + E lies
    within ``R = cond(V) |E|`` of one of A (V its eigenvectors). So the moduli of A + E lie in the intervals of
    radius R around those of A, and by continuity as many in each set of overlapping intervals as it has moduli of A:
    the second largest stays in its own set. A triangular map (causal mask) has its diagonal as eigenvalues, which
    move by at most ``|E|``.
    """
    moved = _moved(maps, relative)
    is_triangular = _is_triangular(maps)
    if bool(is_triangular.all()):
        return moved.clamp(max=1.0)
    values, vectors = _eigen(maps)
    inverse = torch.linalg.inv_ex(vectors).inverse
    # Columns of V have length one; Frobenius norms bound the spectral ones. Infinite if they do not span.
    condition = (math.sqrt(maps.shape[-1]) * inverse.abs().square().sum(dim=(-2, -1)).sqrt()).nan_to_num(
        nan=math.inf
    )
    radius = (condition * moved)[..., None]
    moduli = values.abs().sort(dim=-1, descending=True).values
    is_joined = moduli[..., :-1] - moduli[..., 1:] <= 2 * radius
    # the set of the second modulus reaches down as long as each is joined to the next, and up to the first if joined
    below = is_joined[..., 1:].long().cumprod(dim=-1).sum(dim=-1, keepdim=True)
    down = moduli[..., 1:2] - moduli.gather(-1, 1 + below)
    up = torch.where(is_joined[..., :1], moduli[..., :1] - moduli[..., 1:2], 0.0)
    general = (torch.maximum(up, down) + radius)[..., 0]
    return torch.where(is_triangular, moved, general).nan_to_num(nan=1.0).clamp(max=1.0)


def _moved(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """|E|_F, with what making the rows sum to one has moved."""
    off = (maps.sum(dim=-1) - 1).abs().amax(dim=-1)
    return (relative + off) * _norm(maps)


@shared
def _eigen(maps: Tensor) -> tuple[Tensor, Tensor]:
    try:
        found = torch.linalg.eig(_in_one(maps))
    except RuntimeError:  # of one of them: even the uniform map can be too much for torch
        flat = _in_one(maps).reshape(-1, *maps.shape[-2:])
        values, vectors = (torch.stack(parts) for parts in zip(*map(_eigen_by_numpy, flat), strict=True))
        return values.reshape(maps.shape[:-1]).to(maps.device), vectors.reshape(maps.shape).to(maps.device)
    return found.eigenvalues, found.eigenvectors


def _eigen_by_numpy(one: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of one map by another library, NaN if they are not found there either."""
    try:
        values, vectors = np.linalg.eig(one.cpu().numpy())
    except np.linalg.LinAlgError:
        unknown = torch.full(one.shape, torch.nan, dtype=torch.complex128)
        return unknown[0], unknown
    return torch.from_numpy(values).to(torch.complex128), torch.from_numpy(vectors).to(torch.complex128)


@shared
def _is_triangular(maps: Tensor) -> Tensor:
    corners = maps[..., 0, 1:] == 0
    if not bool(corners.all(dim=-1).any()):
        return corners.all(dim=-1)
    return (maps.triu(1) == 0).all(dim=-1).all(dim=-1)
