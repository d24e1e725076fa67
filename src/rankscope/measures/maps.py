"""Numbers of attention maps: matrices whose rows (queries) are non-negative and sum to one."""

import math

import torch
from torch import Tensor

from rankscope.core.numerics import checked, relative_floor
from rankscope.core.registry import unknown_name
from rankscope.core.types import PerMatrix, TokenMatrix
from rankscope.errors import ShapeError
from rankscope.measures.entropies import entropy, entropy_change
from rankscope.measures.norms import frobenius_norm
from rankscope.measures.sharing import shared


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
    return entropy(maps.clamp(min=0)).mean(dim=-1)


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
    """As ``spectral_gap``, of checked input; the eigenvalues of a triangular map are its diagonal."""
    if bool(_is_triangular(maps).all()):
        moduli = maps.diagonal(dim1=-2, dim2=-1).abs()
    else:
        moduli = _eigen(maps)[0].abs()
    return 1 - moduli.sort(dim=-1).values[..., -2]


def sink_share_of(maps: TokenMatrix) -> PerMatrix:
    """As ``sink_share``, of checked input."""
    return maps.mean(dim=-2).amax(dim=-1)


def entropy_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the mean entropy when ``|E|_F <= relative |A|_F`` and rows stay probabilities.

    A row moves by ``T_i <= sqrt(keys) |e_i| / 2`` in total variation, which changes its entropy by at most
    ``T log(keys - 1) + h(T)``; that is concave in T, so the mean is bounded at the mean T.
    """
    queries, keys = maps.shape[-2:]
    moved = math.sqrt(keys / queries) / 2 * relative * frobenius_norm(maps)
    return entropy_change(moved, keys)


def normalized_entropy_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the mean entropy over log(keys)."""
    return entropy_floor(maps, relative) / torch.tensor(maps.shape[-1]).double().log()


def dobrushin_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Half the l1 distance of two rows of E is at most ``sqrt(keys / 2) |E|_F``."""
    return (math.sqrt(maps.shape[-1] / 2) * relative * frobenius_norm(maps)).clamp(max=1.0)


def doeblin_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """A column minimum moves by at most the largest |entry| of that column of E: together ``sqrt(keys) |E|_F``."""
    return (math.sqrt(maps.shape[-1]) * relative * frobenius_norm(maps)).clamp(max=1.0)


def sink_share_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """The mean of a column of E is at most ``|E|_F / sqrt(queries)``."""
    return (relative * frobenius_norm(maps) / math.sqrt(maps.shape[-2])).clamp(max=1.0)


def spectral_gap_floor(maps: TokenMatrix, relative: float | PerMatrix) -> PerMatrix:
    """Error bound of the gap when ``|E|_F <= relative |A|_F`` and masked entries stay zero.

    Eigenvalues of a map that is not symmetric can be very sensitive. Bauer and Fike: each one of A + E lies
    within ``cond(V) |E|`` of one of A (V its eigenvectors); following them in chains of overlapping discs, the
    sorted moduli move by at most ``2 n - 1`` times that. A triangular map (causal mask) has its diagonal as
    eigenvalues, which move by at most ``|E|``.
    """
    moved = relative * frobenius_norm(maps)
    is_triangular = _is_triangular(maps)
    if bool(is_triangular.all()):
        return moved.clamp(max=1.0)
    vectors = _eigen(maps)[1]
    inverse = torch.linalg.inv_ex(vectors).inverse
    # Columns of V have length one; Frobenius norms bound the spectral ones. Infinite if they do not span.
    condition = (math.sqrt(maps.shape[-1]) * inverse.abs().square().sum(dim=(-2, -1)).sqrt()).nan_to_num(
        nan=math.inf
    )
    general = (2 * maps.shape[-1] - 1) * condition * moved
    return torch.where(is_triangular, moved, general).nan_to_num(nan=1.0).clamp(max=1.0)


@shared
def _eigen(maps: Tensor) -> tuple[Tensor, Tensor]:
    found = torch.linalg.eig(maps)
    return found.eigenvalues, found.eigenvectors


def _is_triangular(maps: Tensor) -> Tensor:
    return (maps.triu(1) == 0).all(dim=-1).all(dim=-1)
