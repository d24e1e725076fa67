"""Attention maps of the exact network: the computed ones, and how far each row may be from the exact row.

If the logits of a row are known up to ``delta``, every entry of its softmax is known up to the factor
``exp(2 delta)``: the distance is relative, entry by entry, whatever the size of the entry.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.enclosure import TINY, Enclosed, U, gamma, known, rounding
from rankscope.bounds.norm_rules import through_norm
from rankscope.core.operator_norms import product_bound, spectral_bound
from rankscope.errors import NumericalError
from rankscope.network import (
    Alibi,
    Context,
    Fixed,
    Gaussian,
    Mixer,
    NoPosition,
    QueryKey,
    RelativeBias,
    Rotary,
    Softmax,
    Uniform,
)
from rankscope.network.heads import repeat_groups, split_heads
from rankscope.network.known import interpreter
from rankscope.network.masking import allowed_keys
from rankscope.network.norms import Norm
from rankscope.network.parts import affine
from rankscope.network.positions import (
    HeadFactors,
    Position,
    SeenBias,
    SeenOffsets,
    Segments,
    Several,
    TransformerXL,
)
from rankscope.network.positions.base import distances
from rankscope.network.positions.transformer_xl import shifted, sinusoid


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Maps:
    """Row-stochastic maps, each entry known up to ``radius`` times itself, or times the smallest normal float.

    Args:
        maps: ``*batch heads tokens tokens`` as computed.
        radius: ``*batch heads tokens``, one for all entries of a row; infinity once nothing is known.
        bilinear: ``*batch heads``, the norm of ``scale Q K^T`` if differences of logits are ``(x_i - x_j) scale Q K^T
            (x_k - x_l)`` and all rows read the same keys: then maps tend to equal rows as tokens do. None otherwise.
    """

    maps: Tensor
    radius: Tensor
    bilinear: Tensor | None = None


CERTIFY = interpreter("certify")


@CERTIFY.rules
def enclosed_maps(mixer: Mixer, state: Enclosed, context: Context) -> Maps:  # type: ignore[empty-body]
    """The maps that ``mixer`` makes of the tokens."""


@enclosed_maps.register
def _uniform(mixer: Uniform, state: Enclosed, context: Context) -> Maps:
    maps = mixer(state.x, context)
    return Maps(maps=maps, radius=maps.new_full(maps.shape[:-1], 2 * U))


@enclosed_maps.register
def _fixed(mixer: Fixed, state: Enclosed, context: Context) -> Maps:
    """The stored maps, divided by the sums of their rows: stored rows sum to one up to rounding only."""
    maps = mixer(state.x, context)
    maps = maps / maps.sum(dim=-1, keepdim=True)
    return Maps(maps=maps, radius=maps.new_full(maps.shape[:-1], 2 * gamma(maps.shape[-1])))


@enclosed_maps.register
def _softmax(mixer: Softmax, state: Enclosed, context: Context) -> Maps:
    query, key = mixer.queries_and_keys(state.x, context)
    rotated, turned, (off_query, off_key) = _turned(
        mixer.position, query, key, _projected(mixer, state), context
    )
    logits = (rotated * mixer.scale) @ turned.transpose(-1, -2)
    lengths = [torch.linalg.vector_norm(one, dim=-1) for one in (rotated, turned)]
    size = lengths[0].unsqueeze(-1) * lengths[1].unsqueeze(-2)
    error = lengths[0].unsqueeze(-1) * off_key.unsqueeze(-2)
    error = (
        error + off_query.unsqueeze(-1) * (lengths[1] + off_key).unsqueeze(-2) + gamma(mixer.head_dim) * size
    )
    error = abs(mixer.scale) * error + TINY
    bias = mixer.position.bias(query, context, mixer.scale)
    if bias is not None:
        moved = _bias_error(mixer.position, query, off_query, context, mixer.scale)
        logits = logits + bias
        error = error + moved + 8 * U * (bias.abs() + logits.abs())
    if mixer.softcap is not None:
        logits = mixer.softcap * torch.tanh(logits / mixer.softcap)
        error = error + 16 * U * abs(mixer.softcap)
    return _softmax_of(mixer, logits, error, state, context)


@enclosed_maps.register
def _gaussian(mixer: Gaussian, state: Enclosed, context: Context) -> Maps:
    """The softmax of ``c (q_i . k_j - |k_j|^2 / 2)``.

    With queries and keys known up to ``a_i`` and ``b_j``, products are known up to ``|q_i| b_j + a_i (|k_j| + b_j)``,
    and squared lengths up to ``b_j (2 |k_j| + b_j)``. Differences of two logits of a query, less those of another, are
    ``c (q_i - q_l) . (k_j - k_m)``, as those of softmax: lengths of keys are the same for all queries.
    """
    query, key = mixer.queries_and_keys(state.x, context)
    off_query, off_key = _projected(mixer, state)
    logits = mixer.logits(state.x, context)
    asked, offered = (torch.linalg.vector_norm(one, dim=-1) for one in (query, key))
    size = asked.unsqueeze(-1) * offered.unsqueeze(-2) + (offered.square() / 2).unsqueeze(-2)
    error = asked.unsqueeze(-1) * off_key.unsqueeze(-2) + off_query.unsqueeze(-1) * (
        offered + off_key
    ).unsqueeze(-2)
    error = error + (off_key * (offered + off_key / 2)).unsqueeze(-2) + gamma(mixer.head_dim + 4) * size
    return _softmax_of(mixer, logits, abs(mixer.scale) * error + TINY + 8 * U * logits.abs(), state, context)


def _softmax_of(
    mixer: Softmax | Gaussian, logits: Tensor, error: Tensor, state: Enclosed, context: Context
) -> Maps:
    """The softmax of logits known up to ``error``, under the mask of the mixer."""
    if not bool(torch.isfinite(logits).all()):
        raise NumericalError(
            "attention logits are beyond the range of float64, so no map is known; scale the input or the weights down"
        )
    allowed = allowed_keys(mixer.rule, state.x.shape[-2], context, state.x.device)
    if allowed is not None:
        logits, error = logits.masked_fill(~allowed, -torch.inf), error.masked_fill(~allowed, 0.0)
    maps = torch.softmax(logits, dim=-1)
    return Maps(maps=maps, radius=_row_radius(logits, known(error)), bilinear=_bilinear(mixer, allowed))


def _row_radius(logits: Tensor, error: Tensor) -> Tensor:
    """Relative distance of the entries of a softmax from the exact ones, ``*batch heads tokens``.

    Besides the error of the logits: subtracting the largest rounds relative to the difference (below 746, or the entry
    is zero), the exponential and the division round, and so does the sum.
    """
    tokens = logits.shape[-1]
    moved = 2 * error.amax(dim=-1) + 2 * (tokens + 800) * U
    return known(torch.expm1(moved)) + TINY


def _projected(mixer: QueryKey, state: Enclosed) -> tuple[Tensor, Tensor]:
    """How far queries and keys may be from the exact ones, ``*batch heads tokens`` each."""
    off = []
    for name, heads, norm in (
        ("query", mixer.heads, mixer.query_norm),
        ("key", mixer.key_heads, mixer.key_norm),
    ):
        matrix, bias = getattr(mixer, name), getattr(mixer, f"{name}_bias")
        flat = affine(state.x, matrix, bias)
        if norm is not None and mixer.normed == "all":
            error = _of_norm(norm, flat, _flat_error(state, matrix, bias), heads=False).unsqueeze(-2)
            off.append(error.expand(*error.shape[:-2], mixer.heads, error.shape[-1]))
            continue
        error = _head_errors(state, matrix, bias, heads)
        if norm is not None:
            error = _of_norm(norm, split_heads(flat, heads), error, heads=True)
        off.append(repeat_groups(error.unsqueeze(-1), mixer.heads).squeeze(-1))
    return off[0], off[1]


def _flat_error(state: Enclosed, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return state.error * spectral_bound(matrix).unsqueeze(-1) + rounding(state.lengths, matrix, bias)


def _head_errors(state: Enclosed, matrix: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """The same for each head of a projection by itself, ``*batch heads tokens``."""
    split = split_heads(matrix, heads)
    size: Tensor = torch.linalg.matrix_norm(split).unsqueeze(-1) * state.lengths.unsqueeze(-2)
    if bias is not None:
        own = bias.reshape(*bias.shape[:-1], heads, -1)
        size = size + torch.linalg.vector_norm(own, dim=-1).unsqueeze(-1)
    carried = spectral_bound(split).unsqueeze(-1) * state.error.unsqueeze(-2)
    return carried + gamma(matrix.shape[-2]) * size + TINY


def _of_norm(norm: Norm, x: Tensor, error: Tensor, *, heads: bool) -> Tensor:
    """How far normed queries or keys may be, given how far they were before."""
    y = norm.per_head(x) if heads else norm(x)
    return through_norm(norm, Enclosed(x=x, error=error), y, heads=heads).error


def _bilinear(mixer: QueryKey, allowed: Tensor | None) -> Tensor | None:
    """``|scale Q_h K_h^T|_2``, where nothing but content enters the logits and all keys are read."""
    plain = mixer.query_norm is None and mixer.key_norm is None and mixer.softcap is None
    if not plain or allowed is not None or not isinstance(mixer.position, NoPosition):
        return None
    query, key = split_heads(mixer.query, mixer.heads), split_heads(mixer.key, mixer.key_heads)
    norm: Tensor = product_bound(query, repeat_groups(key, mixer.heads).mT) * abs(mixer.scale)
    return norm


def _turned(
    position: Position, query: Tensor, key: Tensor, off: tuple[Tensor, Tensor], context: Context
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Queries and keys behind the position rules, one after the other, and how far they may be from the exact ones."""
    for rule in position.rules if isinstance(position, Several) else (position,):
        query, key = rule.rotate(query, key, context)
        extra = _table_error(rule, query.shape[-2], context, query)
        lengths = (torch.linalg.vector_norm(one, dim=-1) for one in (query, key))
        gains = _gains(rule)
        off_query, off_key = (
            one * gain + length * extra for one, gain, length in zip(off, gains, lengths, strict=True)
        )
        off = off_query, off_key
    return query, key, off


def _gains(position: Position) -> tuple[Tensor | float, Tensor | float]:
    """By how much a position rule lengthens queries and keys at most, ``heads 1`` or one number."""
    if isinstance(position, HeadFactors):
        return position.factors.double().abs().unsqueeze(-1) * (1 + 2 * U), 1.0
    both = max(1.0, abs(position.gain)) if isinstance(position, Rotary) else 1.0
    return both, both


def _table_error(position: Position, tokens: int, context: Context, x: Tensor) -> float:
    """Relative error of what a rule makes: angles are rounded relative to their size, sines and cosines to one.

    A product with a factor and a sum with a row of a table are rounded once, relative to what comes out.
    """
    if isinstance(position, HeadFactors | SeenOffsets):
        return 2 * U
    if not isinstance(position, Rotary):
        return 0.0
    farthest = float(context.token_positions(tokens, x.device).abs().amax())
    fastest = float(position.frequencies.abs().amax())
    return (4 * farthest * fastest + 16) * U


@CERTIFY.rules
def _bias_error(  # type: ignore[empty-body]
    position: Position, query: Tensor, off: Tensor, context: Context, scale: float
) -> Tensor:
    """What an error ``off`` of the queries, and rounding, do to the bias of the logits."""


@_bias_error.register(NoPosition, Rotary, Alibi, RelativeBias, SeenBias, SeenOffsets, HeadFactors)
def _constant(position: Position, query: Tensor, off: Tensor, context: Context, scale: float) -> Tensor:
    return off.new_zeros(())


@_bias_error.register
def _several(position: Several, query: Tensor, off: Tensor, context: Context, scale: float) -> Tensor:
    """None of them asks for queries; each is rounded relative to its size, and their sum may be smaller than they."""
    added = (rule.bias(query, context, scale) for rule in position.rules)
    found = off.new_zeros(())
    for bias in added:
        found = found if bias is None else found + 8 * U * bias.double().abs()
    return found


@_bias_error.register
def _xl(position: TransformerXL, query: Tensor, off: Tensor, context: Context, scale: float) -> Tensor:
    """The bias is ``scale (q_i + shift) . key``, with a key for every distance."""
    farthest = int(distances(query, context).abs().max())
    width = position.projection.shape[-2]
    near = torch.arange(-farthest, farthest + 1, device=query.device)
    keys = split_heads(sinusoid(near, width) @ position.projection.double(), query.shape[-3])
    longest = torch.linalg.vector_norm(keys, dim=-1).amax(dim=-1)
    asked = shifted(query, position.shift, position.content)
    size = torch.linalg.vector_norm(asked, dim=-1)
    table = torch.linalg.matrix_norm(split_heads(position.projection, query.shape[-3])) * width**0.5
    loose = gamma(width + query.shape[-1]) * (longest + table) + (4 * farthest + 16) * U * table
    moved: Tensor = off * longest.unsqueeze(-1) + (size + off) * loose.unsqueeze(-1)
    return (abs(scale) * moved).unsqueeze(-1)


@_bias_error.register
def _segments(position: Segments, query: Tensor, off: Tensor, context: Context, scale: float) -> Tensor:
    inner = _bias_error(position.inner, query, off, context, scale)
    if context.segments is None:
        return inner
    longest = torch.linalg.vector_norm(position.table, dim=-1).amax(dim=0)
    size = torch.linalg.vector_norm(shifted(query, position.shift, position.content), dim=-1)
    moved: Tensor = off * longest.unsqueeze(-1) + gamma(query.shape[-1]) * size * longest.unsqueeze(-1)
    return inner + (abs(scale) * moved).unsqueeze(-1)
