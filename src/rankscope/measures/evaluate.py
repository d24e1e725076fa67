"""A measure together with its floor: what a study writes into its table."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.core.types import PerMatrix
from rankscope.errors import ShapeError
from rankscope.measures.brackets import Bracket
from rankscope.measures.laws import Covers
from rankscope.measures.measure import Measure
from rankscope.measures.norms import NORMS, row_lengths
from rankscope.measures.sharing import sharing


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Values of a batch with what is needed to trust them; all tensors have the leading axes of the batch.

    ``low`` and ``high`` are the ends of a certified bracket and equal ``value`` otherwise; of a bracket ``value``
    is the high end, which an actual center attains. ``resolved`` is False where a value is not above its floor,
    is 0/0, or comes from a matrix with NaN or infinity; in the last two cases the value is NaN.
    """

    value: PerMatrix
    low: PerMatrix
    high: PerMatrix
    floor: PerMatrix
    resolved: Tensor


def evaluate(
    measure: Measure, x: Tensor, *, layer: int, dtype: torch.dtype, again: Tensor | None = None
) -> Evaluation:
    """The measure of every matrix of ``x``, with the floor that ``layer`` blocks run in ``dtype`` leave on it.

    ``again`` are the same states of a second run that was off by a few units of round-off (``jittered``). Where both
    have parted by more than floors allow for, the floor is wider by as much.
    """
    return evaluate_many([measure], x, layer=layer, dtype=dtype, again=again)[0]


def evaluate_many(
    measures: Sequence[Measure],
    x: Tensor,
    *,
    layer: int,
    dtype: torch.dtype,
    again: Tensor | None = None,
) -> list[Evaluation]:
    """As ``evaluate`` of each measure; singular values and the like are computed once for all of them."""
    if x.ndim < 2 or not x.is_floating_point():
        measures[0].checked(x)  # says what is wrong with it
    flat = x.reshape(-1, *x.shape[-2:])
    entries = max(1, flat[:1].numel())
    some = max(1, (TOGETHER if 2 * entries <= TOGETHER else LONG_TOGETHER) // entries)
    if len(flat) > some:
        others = [None] * len(flat) if again is None else again.reshape(flat.shape).split(some)
        parts = [
            evaluate_many(measures, part, layer=layer, dtype=dtype, again=other)
            for part, other in zip(flat.split(some), others, strict=False)
        ]
        return [_joined(each, x.shape[:-2]) for each in zip(*parts, strict=True)]
    is_finite = torch.isfinite(flat.sum(dim=(-2, -1)))
    if not bool(is_finite.all()):  # a sum may also be infinite where no entry is
        is_finite = torch.isfinite(flat).all(dim=-1).all(dim=-1)
    finite = (
        flat if bool(is_finite.all()) else flat[is_finite]
    ).double()  # one tensor for all, so that its pieces can be shared
    apart = None if again is None else again.reshape(flat.shape)[is_finite].double() - finite
    rounding, found = relative_floor(layer, dtype), []
    checked: dict[str, Tensor] = {}
    with sharing():
        for measure in measures:
            if measure.kind not in checked or not _fits(measure, finite):
                checked[measure.kind] = measure.checked(finite, dtype=dtype)
            usable = checked[measure.kind]
            low = high = floor = usable.new_zeros(0)
            if usable.shape[0]:
                value = measure.values(usable)
                low, high = value if isinstance(value, Bracket) else (value, value)
                relative = rounding * (1 + _below_normal(measure, usable, dtype))
                if apart is not None:
                    seen = PARTED * _parted(measure, usable, apart)
                    relative = torch.where(seen > ENLARGED * relative, seen, relative)
                floor = measure.floors(usable, relative)
            found.append(_assembled(x.shape[:-2], is_finite, low, high, floor))
    return found


def _fits(measure: Measure, x: Tensor) -> bool:
    """Whether matrices that another measure of this kind takes have a shape that this one takes too."""
    tokens, keys = x.shape[-2:]
    return tokens >= measure.tokens and (tokens == keys or not measure.is_square)


TOGETHER = 2**17
"""Entries that are measured together: one megabyte, which stays in the processor's cache from pass to pass."""

LONG_TOGETHER = 2**20
"""The same of matrices that need more than half of that each: they do not stay there, and fewer calls are faster."""


def _joined(parts: Sequence[Evaluation], batch: torch.Size) -> Evaluation:
    """The evaluations of parts of a batch as one."""
    return Evaluation(
        **{
            name: torch.cat([getattr(part, name) for part in parts]).reshape(batch)
            for name in ("value", "low", "high", "floor", "resolved")
        }
    )


OF_TOKENS = frozenset({Covers.TOKENS, Covers.SAME_CHANNELS, Covers.UNIT_NORM})
"""Errors that are counted relative to each token, not to the state."""

COARSE = 0.01
"""Where the spacing of numbers below the smallest normal one adds less than this to a floor, it is left out."""


def _below_normal(measure: Measure, x: Tensor, dtype: torch.dtype) -> Tensor:
    """What the fixed spacing of subnormal numbers adds to the rounding of a state, relative to its usual rounding.

    A number below the smallest normal one, t, is rounded by up to ``u t`` whatever its size, u the unit round-off. So
    every entry is off by ``u (|entry| + t)`` at most, and a state by ``u (|X| + t |1|)`` in any norm, where 1 has ones
    everywhere: ``t |1| / |X|`` more than usual. Of single tokens the shortest one decides. In float16, t is 6e-5.
    """
    smallest = torch.finfo(dtype).smallest_normal
    if measure.covers in OF_TOKENS:
        lengths = row_lengths(x)
        size = torch.where(lengths > 0, lengths, torch.inf).amin(dim=-1)
        ones = x.new_tensor(float(x.shape[-1])).sqrt()
    else:
        norm = NORMS[measure.norm or "frobenius"]
        size = norm(x)
        if bool((smallest * x[0].numel() < COARSE * size).all()):
            return torch.zeros_like(size)  # no norm of ones everywhere is above their number
        ones = norm(torch.ones_like(x[:1]))[0]
    more = torch.where(size > 0, smallest * ones / size, 0.0)
    return torch.where(more < COARSE, 0.0, more)


PARTED = 4.0
"""How many times the distance of two runs, one of them with noise of eight units a layer, an error may be. Blocks that
enlarge nothing leave both so far apart that this is the usual floor."""

ENLARGED = 2.0
"""Floors are wider than usual only where two runs say that by this factor: one draw is no better known."""


def _parted(measure: Measure, x: Tensor, apart: Tensor) -> Tensor:
    """How far a second run is off, relative to the state, as ``measure.covers`` counts errors; huge if it is lost."""
    if measure.covers in OF_TOKENS:
        lengths, off = row_lengths(x), row_lengths(apart)
        share = torch.where(lengths > 0, off / lengths, 0.0).amax(dim=-1)
    else:
        names = ("l1", "linf") if measure.norm == "composite" else (measure.norm or "frobenius",)
        about = apart - apart.mean(dim=-2, keepdim=True)
        share = torch.zeros_like(apart[:, 0, 0])
        for norm in (NORMS[name] for name in names):
            size = norm(x)
            off = torch.maximum(norm(apart), norm(about)) / size
            share = torch.maximum(share, torch.where(size > 0, off, 0.0))
    return share.nan_to_num(nan=1e100, posinf=1e100)


def _assembled(batch: torch.Size, is_finite: Tensor, low: Tensor, high: Tensor, floor: Tensor) -> Evaluation:
    """Results of the usable matrices put back in their places, NaN elsewhere."""
    is_number = torch.isfinite(low) & torch.isfinite(high)

    def placed(values: Tensor) -> Tensor:
        whole = values.new_full((is_finite.shape[0],), torch.nan)
        whole[is_finite] = values
        return whole.reshape(batch)

    value = placed(torch.where(is_number, high, torch.nan))
    floors = placed(floor)
    return Evaluation(
        value=value,
        low=placed(torch.where(is_number, low, torch.nan)),
        high=value,
        floor=floors,
        resolved=value.abs() > floors,
    )


def evaluate_padded(
    measure: Measure, x: Tensor, is_token: Tensor, *, layer: int, dtype: torch.dtype
) -> Evaluation:
    """As ``evaluate`` on every text without its padding: padded rows are dropped before anything is measured.

    ``is_token`` is True on real tokens and broadcasts to ``x.shape[:-1]``; of a map, padded queries and keys are
    both dropped, and a map with heads takes ``is_token[..., None, :]``.
    """
    return evaluate_many_padded([measure], x, is_token, layer=layer, dtype=dtype)[0]


def evaluate_many_padded(
    measures: Sequence[Measure], x: Tensor, is_token: Tensor, *, layer: int, dtype: torch.dtype
) -> list[Evaluation]:
    """As ``evaluate_padded`` of each measure; all of tokens, or all of maps."""
    keep = _kept(measures[0], x, is_token)
    flat, keep = x.reshape(-1, *x.shape[-2:]), keep.reshape(-1, x.shape[-2])
    counts = keep.sum(dim=-1)
    columns = [
        {name: x.new_zeros(flat.shape[0], dtype=torch.float64) for name in ("value", "low", "high", "floor")}
        | {"resolved": torch.zeros(flat.shape[0], dtype=torch.bool, device=x.device)}
        for _ in measures
    ]
    for count in counts.unique().tolist():
        texts = (counts == count).nonzero()[:, 0]
        short = next((one for one in measures if count < one.tokens), None)
        if short is not None:
            raise ShapeError(
                f"{short.definition} needs at least {short.tokens} tokens, but text {int(texts[0])} of the batch "
                f"has {count} once padding is dropped; leave that text out"
            )
        kept = _without_padding(measures[0], flat[texts], keep[texts], count)
        for place, part in enumerate(evaluate_many(measures, kept, layer=layer, dtype=dtype)):
            for name, column in columns[place].items():
                column[texts] = getattr(part, name)
    return [
        Evaluation(**{name: column.reshape(x.shape[:-2]) for name, column in one.items()}) for one in columns
    ]


def _kept(measure: Measure, x: Tensor, is_token: Tensor) -> Tensor:
    """``is_token`` as booleans of the shape ``x.shape[:-1]``."""
    if x.ndim < 2:
        measure.checked(x)
    if is_token.dtype != torch.bool:
        raise ShapeError(
            f"is_token must be boolean, got {str(is_token.dtype).removeprefix('torch.')}; use is_token.bool()"
        )
    if measure.kind == "map" and x.shape[-1] != x.shape[-2]:
        raise ShapeError(
            f"dropping padding from a map needs queries and keys to be the same tokens, got {tuple(x.shape)}"
        )
    try:
        return is_token.broadcast_to(x.shape[:-1])
    except RuntimeError as error:
        raise ShapeError(
            f"is_token has shape {tuple(is_token.shape)}, which does not broadcast to {tuple(x.shape[:-1])}, "
            "one entry per token"
        ) from error


def _without_padding(measure: Measure, texts: Tensor, keep: Tensor, count: int) -> Tensor:
    """The kept rows of texts that all keep ``count`` (of maps: rows and columns)."""
    rows = texts[keep].reshape(texts.shape[0], count, texts.shape[-1])
    if measure.kind != "map":
        return rows
    return rows.transpose(-1, -2)[keep].reshape(texts.shape[0], count, count).transpose(-1, -2)
