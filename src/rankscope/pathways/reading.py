"""What is read off the terms of a decomposition: their sizes, and what part of the output they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.types import IsToken
from rankscope.measures import evaluate, evaluate_padded, find_measure

COSINE = "cosine[off_diagonal]"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reading:
    """One number per term and text, ``*terms *batch``.

    Args:
        norm: Frobenius norm of the term Z.
        residual: Frobenius norm of ``J Z``, what is left when the mean token is taken away.
        cosine: mean cosine between two tokens of the term; NaN where a token is zero.
        share: ``<J Z, J Y> / |J Y|^2``, the signed part of the output's residual; shares of all terms add up to one.
            NaN where the tokens of the output are equal up to rounding: there is nothing to have a share in.
        cosine_to_output: cosine of the angle between ``J Z`` and ``J Y``; NaN there too.
        floor: what rounding may have left of the term, an absolute error of its norm and its residual.
        share_floor: the same for its share.
    """

    norm: Tensor
    residual: Tensor
    cosine: Tensor
    share: Tensor
    cosine_to_output: Tensor
    floor: Tensor
    share_floor: Tensor

    @property
    def resolved(self) -> Tensor:
        """Whether the residual is above its floor."""
        return self.residual > self.floor


def read(terms: Tensor, output: Tensor, *, is_token: IsToken | None, floor: float) -> Reading:
    """The reading of ``*terms *batch tokens dim`` against the output ``*batch tokens dim``.

    ``floor`` is the rounding that a term may carry relative to its norm. Padding is left out.
    """
    terms, output = kept_rows(terms.double(), is_token), kept_rows(output.double(), is_token)
    norm = torch.linalg.matrix_norm(terms)
    own, whole = centered(terms, is_token), centered(output, is_token)
    residual, size = torch.linalg.matrix_norm(own), residual_size(output, is_token, floor)
    along = (own * whole).sum(dim=(-2, -1))
    return Reading(
        norm=norm,
        residual=residual,
        cosine=_cosine(terms, is_token),
        share=along / size.square(),
        cosine_to_output=along / (residual * size),
        floor=floor * norm,
        share_floor=floor * norm / size,
    )


def residual_size(output: Tensor, is_token: IsToken | None, floor: float) -> Tensor:
    """``|J Y|`` of the output, or NaN where it is not above what rounding leaves, ``floor |Y|``."""
    whole = kept_rows(output, is_token)
    size, norm = torch.linalg.matrix_norm(centered(whole, is_token)), torch.linalg.matrix_norm(whole)
    return torch.where(size > floor * norm, size, torch.nan)


def kept_rows(x: Tensor, is_token: IsToken | None) -> Tensor:
    """``x`` with rows of padding set to zero."""
    return x if is_token is None else torch.where(is_token.unsqueeze(-1), x, 0.0)


def centered(x: Tensor, is_token: IsToken | None) -> Tensor:
    """``J x``: every token minus the mean of the real tokens; rows of padding, which must be zero, stay zero."""
    if is_token is None:
        return x - x.mean(dim=-2, keepdim=True)
    mean = x.sum(dim=-2, keepdim=True) / is_token.sum(dim=-1)[..., None, None]
    return kept_rows(x - mean, is_token)


def relative_error(found: Tensor, wanted: Tensor, is_token: IsToken | None) -> Tensor:
    """``|found - wanted| / |wanted|`` in the Frobenius norm over real tokens, one number per text."""
    off, size = (torch.linalg.matrix_norm(kept_rows(m, is_token)) for m in (found - wanted, wanted))
    return torch.where(off == 0, 0.0, off / size)


def _cosine(terms: Tensor, is_token: IsToken | None) -> Tensor:
    """Mean cosine between tokens; NaN for fewer than two tokens."""
    count = terms.shape[-2] if is_token is None else int(is_token.sum(dim=-1).min())
    if count < 2:
        return torch.full(terms.shape[:-2], torch.nan, dtype=torch.float64)
    measure = find_measure(COSINE)
    if is_token is None:
        found = evaluate(measure, terms, layer=1, dtype=torch.float64)
    else:
        found = evaluate_padded(measure, terms, is_token, layer=1, dtype=torch.float64)
    return found.value
