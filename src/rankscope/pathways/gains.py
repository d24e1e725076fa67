"""How much a frozen part can enlarge what passes it, at most: true upper bounds of operator norms.

Most of a frozen network acts as ``Y -> A Y B`` with one matrix A for the tokens and one matrix B for the channels: a
head (``A = P``, ``B = V O``), a norm (``A = diag(1/s)``, ``B = C diag(gain)``), a scale, a skip. Such an ``Operator``
is kept as the pair, through as many parts as possible, because the norm of a product is often far below the product
of the norms. MLPs treat tokens differently, ``y_i -> y_i M_i``; there the pair is closed, and begins anew with
``diag(|M_i|_2)``.

Two sizes of a token matrix are followed side by side, because each bounds what the other exaggerates:

* its Frobenius norm, which A enlarges by at most ``|A|_2``: up to the root of the number of tokens where all of them
  read the same one;
* its longest token, which A enlarges by at most its largest absolute row sum: never, for an attention map.

Both are enlarged by at most ``|B|_2`` by the channels. If consensus is kept (no norms, no MLPs) the same holds of what
is left without the mean token: there ``|J A|_2`` and, for the largest distance between two tokens, the Dobrushin
coefficient ``1/2 max_ij sum_k |A_ik - A_jk|``. All gains are natural logarithms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.core.operator_norms import spectral_bound
from rankscope.network.parts import row, scaled
from rankscope.pathways.frozen import (
    Frozen,
    FrozenAttention,
    FrozenChain,
    FrozenNorm,
    FrozenScale,
    FrozenSkip,
    FrozenSum,
    Leaf,
    Spring,
)
from rankscope.pathways.row_gains import Frame, longest

Chosen = Mapping[int, int]
"""The head that is taken at each site where one is."""

EXACT_TOKENS = 256
"""Up to so many tokens the norms of maps are computed, of which there is one for every head; beyond, bounded."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operator:
    """``Y -> A Y B``, behind parts whose gain is known only as a number.

    Args:
        frame: what gains speak of.
        closed: gains of what comes before the pair, ``2 *batch``: of the Frobenius norm and of the longest token.
        is_whole: whether the pair is all there is.
        weights: A if it is diagonal, ``*batch tokens``; None for the identity.
        maps: A if it mixes tokens, ``*batch tokens tokens``.
        into: B is ``into @ out``; ``*seeds dim width``, or None for the identity.
        out: rows that are orthonormal where ``into`` is given, ``*seeds width dim``; None for the identity.
    """

    frame: Frame
    closed: Tensor
    is_whole: bool = True
    weights: Tensor | None = None
    maps: Tensor | None = None
    into: Tensor | None = None
    out: Tensor | None = None

    def gains(self) -> Tensor:
        """By how much the Frobenius norm and the longest token can grow at most, ``2 *batch``."""
        return self.closed + self.token_gains() + self.channel_gain()

    def token_gains(self) -> Tensor:
        """The same for A alone."""
        if self.maps is not None:
            return _map_gains(self.maps, self.frame)
        if self.weights is not None:
            size = torch.where(self.frame.rows, self.weights.abs(), 0.0).amax(dim=-1)
            return torch.stack([size, size]).log()
        return torch.zeros_like(self.closed)

    def channel_gain(self) -> Tensor:
        """The same for B alone, ``*seeds``."""
        factor = self.out if self.into is None else self.into  # rows of the other one are orthonormal
        return self.closed.new_zeros(()) if factor is None else spectral_bound(factor).log()

    def close(self) -> "Operator":
        """The same gains with the identity as the pair."""
        return Operator(frame=self.frame, closed=self.gains(), is_whole=False)


def identity(frame: Frame) -> Operator:
    """The operator that changes nothing."""
    zero = torch.zeros(2, *frame.rows.shape[:-1], dtype=torch.float64, device=frame.rows.device)
    return Operator(frame=frame, closed=zero)


def through(part: Frozen, operator: Operator, chosen: Chosen) -> Operator | None:
    """What ``operator`` becomes behind ``part`` if exactly the chosen heads are taken; None if nothing gets through."""
    if isinstance(part, FrozenChain):
        return _through_chain(part.parts, operator, chosen)
    if not takes(part, chosen):
        return _through_rows([part], operator)
    if isinstance(part, FrozenSkip):
        return through(part.inner, operator, chosen)
    if isinstance(part, FrozenSum):
        wanted = [inner for inner in part.parts if takes(inner, chosen)]
        return through(wanted[0], operator, chosen) if len(wanted) == 1 else None
    if isinstance(part, FrozenAttention):
        return _through_head(part, operator, chosen[part.site])
    raise TypeError(f"{type(part).__name__} has no heads")


def takes(part: Frozen, chosen: Chosen) -> bool:
    """Whether one of the chosen heads is inside ``part``; if not, it treats each token by itself."""
    if isinstance(part, FrozenAttention):
        return part.site in chosen
    if isinstance(part, FrozenSkip):
        return takes(part.inner, chosen)
    return not isinstance(part, Leaf) and any(takes(inner, chosen) for inner in part.parts)


def orthonormal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """``rows = left @ basis`` with orthonormal rows of ``basis``."""
    q, r = torch.linalg.qr(rows.mT)
    return r.mT, q.mT


def _through_chain(parts: Sequence[Frozen], operator: Operator, chosen: Chosen) -> Operator | None:
    """Neighbors that treat each token by itself are taken together: a product is smaller than its factors let it be."""
    found: Operator | None = operator
    run: list[Frozen] = []
    for part in parts:
        if not takes(part, chosen):
            run.append(part)
            continue
        found = _through_rows(run, operator)
        found = None if found is None else through(part, found, chosen)
        if found is None:
            return None
        operator, run = found, []
    return _through_rows(run, operator)


def _through_head(part: FrozenAttention, operator: Operator, head: int) -> Operator:
    """``A -> P_h A`` and ``B -> B V_h O_h``, with ``O_h`` split so that its rows are orthonormal."""
    own = part.maps[..., head, :, :].double()
    if operator.maps is not None:
        own = own @ operator.maps
    elif operator.weights is not None:
        own = own * operator.weights.unsqueeze(-2)
    width = part.value.shape[-1] // part.value_heads
    group = head // (part.heads // part.value_heads)
    into = part.value[..., group * width : (group + 1) * width].double()
    left, out = orthonormal(part.out_of(head).double())
    into = into @ left
    for before in (operator.out, operator.into):
        into = into if before is None else before @ into
    return replace(operator, maps=own, weights=None, into=into, out=out)


def _through_rows(parts: Sequence[Frozen], operator: Operator) -> Operator | None:
    """Parts that treat each token by itself, one after the other."""
    kinds = [_is_pair(part) for part in parts]
    if None in kinds:
        return None
    if all(kinds):
        for part in parts:
            operator = _paired(part, operator)
        return operator
    sizes = longest(parts, operator.frame)
    operator = operator.close()
    if not operator.frame.is_centered:
        return replace(operator, weights=sizes)
    # Every token is treated alike here, or consensus would not be kept.
    return replace(operator, closed=operator.closed + sizes.amax(dim=-1).log())


def _is_pair(part: Frozen) -> bool | None:
    """Whether a part that takes no head is of the form ``A Y B`` with a diagonal A; None if nothing gets through."""
    if isinstance(part, FrozenAttention | Spring):
        return None
    if isinstance(part, Leaf):
        return isinstance(part, FrozenNorm | FrozenScale)
    if isinstance(part, FrozenSkip):
        inner = _is_pair(part.inner)
        return inner if not part.is_open else inner is None
    kinds = [_is_pair(inner) for inner in part.parts]
    if isinstance(part, FrozenChain):
        return None if None in kinds else all(kinds)
    open_ones = [kind for kind in kinds if kind is not None]
    return None if not open_ones else len(open_ones) == 1 and open_ones[0]


def _paired(part: Frozen, operator: Operator) -> Operator:
    """A part that takes no head and is of the form ``A Y B``, as such."""
    if isinstance(part, FrozenChain | FrozenSum):
        for inner in part.parts:
            operator = operator if _is_pair(inner) is None else _paired(inner, operator)
        return operator
    if isinstance(part, FrozenSkip):
        return _scaled(part.scale, operator) if part.is_open else _paired(part.inner, operator)
    if isinstance(part, FrozenScale):
        return _scaled(part.value, operator)
    if not isinstance(part, FrozenNorm):
        raise TypeError(f"{type(part).__name__} is not of the form A Y B")
    operator = _on_channels(operator, lambda rows: _normed(part, rows))
    # Nothing is known of padding, which may have been divided by zero.
    inverse = torch.where(operator.frame.rows, part.inverse.squeeze(-1).double(), 0.0)
    if operator.maps is not None:
        return replace(operator, maps=operator.maps * inverse.unsqueeze(-1))
    return replace(operator, weights=inverse if operator.weights is None else operator.weights * inverse)


def _normed(norm: FrozenNorm, rows: Tensor) -> Tensor:
    """``rows C diag(gain)``: what a norm does besides dividing each token."""
    rows = rows - rows.mean(dim=-1, keepdim=True) if norm.is_centered else rows
    return rows if norm.gain is None else rows * row(norm.gain.double())


def _scaled(scale: float | Tensor, operator: Operator) -> Operator:
    if isinstance(scale, float):
        factor = abs(scale)
        return replace(operator, closed=operator.closed + (math.log(factor) if factor else -math.inf))
    if scale.shape[-1] == 1:
        return replace(operator, closed=operator.closed + scale.double().abs().log().squeeze(-1))
    return _on_channels(operator, lambda rows: scaled(rows, scale))


def _on_channels(operator: Operator, apply: Callable[[Tensor], Tensor]) -> Operator:
    """``B -> apply(B)`` where ``apply`` multiplies each row by the same matrix."""
    if operator.out is None:
        eye = torch.eye(operator.frame.dim, dtype=torch.float64, device=operator.closed.device)
        return replace(operator, out=apply(eye))
    if operator.into is None:
        return replace(operator, out=apply(operator.out))
    left, out = orthonormal(apply(operator.out))
    return replace(operator, into=operator.into @ left, out=out)


def _map_gains(maps: Tensor, frame: Frame) -> Tensor:
    """Gains of ``A`` over the real tokens; a real token reads no padding, so its columns need not be cut out."""
    rows = frame.rows.unsqueeze(-1)
    maps = torch.where(rows, maps, 0.0)
    if frame.is_centered:
        mean = maps.sum(dim=-2, keepdim=True) / rows.sum(dim=-2, keepdim=True)
        centered = torch.where(rows, maps - mean, 0.0)
        # Rows that are nearly equal leave a difference of the size of their rounding, which goes by the entries
        # themselves: a row sums to one, so an L1 distance of two rows is off by at most two units.
        unit = relative_floor(1, frame.dtype)
        whole = spectral_bound(centered, exact=EXACT_TOKENS) + unit * torch.linalg.matrix_norm(maps)
        token = _dobrushin(maps, frame.rows) + unit * maps.abs().sum(dim=-1).amax(dim=-1)
    else:
        whole, token = spectral_bound(maps, exact=EXACT_TOKENS), maps.abs().sum(dim=-1).amax(dim=-1)
    return torch.stack([whole, token]).log()


def _dobrushin(maps: Tensor, rows: Tensor) -> Tensor:
    """Half the largest L1 distance between two rows of real tokens, or for many tokens Doeblin's bound of it."""
    if maps.shape[-1] <= EXACT_TOKENS:
        both = rows.unsqueeze(-1) & rows.unsqueeze(-2)
        return torch.where(both, torch.cdist(maps, maps, p=1.0), 0.0).amax(dim=(-2, -1)) / 2
    shared = torch.where(rows.unsqueeze(-1), maps, torch.inf).amin(dim=-2).sum(dim=-1)
    return (1 - shared).clamp(min=0.0)
