"""What a branch writes, taken apart exactly: biases, the answer to the common row, each token's own value, averaging.

I3, attention. With the input ``H = 1 m' + R``, maps P, values V, outputs O and biases v and b, one head:

    P (H V + 1 v) O + 1 b = 1 (v O + b)            bias
                          + 1 m V O                answer to the common row
                          + R V O                  each token's own value
                          + (P - I) R V O          averaging
                          + (P 1 - 1) (m V + v) O  row sums, zero where rows of P sum to one.

Multiply out: ``P 1 = 1 + (P 1 - 1)``. Several heads are added. I3, MLP and every other map f of single tokens:

    f(H) = f(0) + [f(1 m) - f(0)] + [f(H) - f(1 m)].

A norm before the core that adds its bias B to every token makes ``m = m' + B``, and the answer to B alone is a piece of
its own: ``B V O``, or ``f(B) - f(0)``. A scale after the core is linear. So is a norm once the divisor of every token
is held: its pieces are those before it over that divisor, times its gain, and its bias is one more.

A region that is run as it is has what it makes of zero as a bias, and the rest is one piece.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from rankscope.errors import ModelError, ShapeError
from rankscope.mechanism.looks import AttentionLook, look_at
from rankscope.mechanism.states import (
    Weights,
    apart,
    by_channel,
    centred,
    constant,
    inverse_lengths,
    negative,
    of_tokens,
    plus,
    weighed,
)
from rankscope.network import (
    Attention,
    Chain,
    Context,
    CrossAttention,
    GatedAttention,
    LayerNorm,
    Mlp,
    Norm,
    Opaque,
    Part,
    Scale,
    SequenceMap,
    Skip,
    Sphere,
    Sum,
    TokenMap,
    ValueResidual,
    Values,
)
from rankscope.network.heads import join_heads, repeat_groups, split_heads
from rankscope.network.known import HELD_MAPS, NORMS, interpreter
from rankscope.network.parts import affine, row
from rankscope.network.surgery import is_attention, is_mlp
from rankscope.split.rules import split_part
from rankscope.split.state import Split, power

MECHANISM = interpreter("mechanism")
MECHANISM.admit(*HELD_MAPS)

Name = Literal[
    "bias", "norm-bias", "common", "own", "averaging", "row-sums", "answer", "memory", "whole", "carried"
]
"""What a piece is."""

NOISE = 2.0**-46
"""Of a common row that is a difference of larger ones, what is below this share of them is rounding."""

Follows = Literal["nothing", "common", "residual", "both"]
"""Which part of the stream a piece would follow if the branch read another one."""

FOLLOWS: dict[Name, Follows] = {
    **{"bias": "nothing", "norm-bias": "nothing", "memory": "nothing"},
    **{"common": "common", "row-sums": "common"},
    **{"own": "residual", "averaging": "residual", "answer": "residual"},
    **{"whole": "both", "carried": "both"},
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """One term of what a branch writes.

    Args:
        name: what it is.
        site: attention, mlp, or block for what is neither.
        state: the term as a token matrix.
    """

    name: Name
    site: str
    state: Split

    def through(self, state: Split) -> "Piece":
        """The same piece after something linear."""
        return replace(self, state=state)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Flow:
    """What goes through a branch.

    Args:
        state: the tokens.
        pieces: their terms once a core has written them; None before.
        is_normed: whether a norm stands before the first core.
        norm_bias: what such a norm adds to every token, ``*batch dim``.
        looks: what every attention looked like.
    """

    state: Split
    pieces: tuple[Piece, ...] | None = None
    is_normed: bool = False
    norm_bias: Tensor | None = None
    looks: tuple[AttentionLook, ...] = ()

    def terms(self) -> tuple[Piece, ...]:
        """The pieces; of what no core has touched, the bias of its norm and the rest."""
        if self.pieces is not None:
            return self.pieces
        if self.norm_bias is None:
            return (Piece(name="carried", site="block", state=self.state),)
        bias = constant(self.norm_bias, self.state)
        rest = plus([self.state, negative(bias)])
        return (
            Piece(name="norm-bias", site="block", state=bias),
            Piece(name="carried", site="block", state=rest),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Walker:
    """How parts are run, and what they know besides the tokens."""

    context: Context
    is_split: bool
    looks: bool = field(default=True)

    def run(self, part: Part, state: Split) -> Split:
        """The state behind a part."""
        if self.is_split:
            return split_part(part, state, self.context)
        return of_tokens(part(state.tokens(), self.context), self.context.is_token)


@MECHANISM.rules
def branch(part: Part, flow: Flow, walker: Walker) -> Flow:  # type: ignore[empty-body]
    """What leaves a part of a branch, with its pieces."""


@branch.register
def _chain(part: Chain, flow: Flow, walker: Walker) -> Flow:
    for child in part.parts:
        flow = branch(child, flow, walker)
    return flow


@branch.register
def _sum(part: Sum, flow: Flow, walker: Walker) -> Flow:
    """Branches side by side; what stands before them belongs to the input of each."""
    if not len(part.parts):
        nothing = by_channel(flow.state, 0.0)
        return replace(flow, state=nothing, pieces=())
    return _together([branch(child, replace(flow, looks=()), walker) for child in part.parts], flow)


@branch.register
def _skip(part: Skip, flow: Flow, walker: Walker) -> Flow:
    around = replace(
        flow,
        state=by_channel(flow.state, part.scale),
        pieces=tuple(one.through(by_channel(one.state, part.scale)) for one in flow.terms()),
        looks=(),
    )
    return _together([around, branch(part.inner, replace(flow, looks=()), walker)], flow)


def _together(flows: list[Flow], before: Flow) -> Flow:
    states = [one.state for one in flows]
    total, tokens = plus(states), [one.direct for one in states if one.direct is not None]
    if len(tokens) == len(states):
        total = replace(total, direct=torch.stack(tokens).sum(dim=0))
    return Flow(
        state=total,
        pieces=tuple(piece for one in flows for piece in one.terms()),
        is_normed=all(one.is_normed for one in flows),
        looks=(*before.looks, *(look for one in flows for look in one.looks)),
    )


@branch.register
def _scale(part: Scale, flow: Flow, walker: Walker) -> Flow:
    state = walker.run(part, flow.state)
    bias = None if flow.norm_bias is None else flow.norm_bias * part.value.to(flow.norm_bias.dtype)
    pieces = flow.pieces and tuple(one.through(by_channel(one.state, part.value)) for one in flow.pieces)
    return replace(flow, state=state, pieces=pieces, norm_bias=bias)


@branch.register(*NORMS)
def _norm(part: Norm, flow: Flow, walker: Walker) -> Flow:
    state = walker.run(part, flow.state)
    if flow.pieces is None:
        return replace(flow, state=state, is_normed=True, norm_bias=part.bias)
    return replace(flow, state=state, pieces=_through_norm(part, flow))


def _through_norm(part: Norm, flow: Flow) -> tuple[Piece, ...]:
    """The pieces over the divisor that the norm has for their sum, token by token, and its bias."""
    divisors = norm_weights(part, flow.state)
    found = []
    for one in flow.pieces or ():
        state = centred(one.state) if isinstance(part, LayerNorm) else one.state
        state = weighed(state, divisors)
        found.append(one.through(state if part.gain is None else by_channel(state, part.gain)))
    if part.bias is not None:
        found.append(Piece(name="norm-bias", site="block", state=constant(part.bias, flow.state)))
    return tuple(found)


def norm_weights(part: Norm, state: Split) -> Weights:
    """One over the divisor of every token."""
    own = centred(state) if isinstance(part, LayerNorm) else state
    width = 1.0 if isinstance(part, Sphere) else float(state.common.shape[-1])
    return inverse_lengths(own, width=width, eps=part.eps)


# ------------------------------------------------------------------------------------------------------------- cores


def _core(flow: Flow, state: Split, pieces: list[Piece], looks: tuple[AttentionLook, ...] = ()) -> Flow:
    return Flow(state=state, pieces=tuple(pieces), is_normed=flow.is_normed, looks=(*flow.looks, *looks))


@branch.register
def _attention(part: Attention, flow: Flow, walker: Walker) -> Flow:
    state = walker.run(part, flow.state)
    pieces = _linear_pieces(part.values, flow)
    if not part.mixer.rows_sum_to_one and not walker.is_split:
        pieces.append(_row_sums(part, flow, walker))
    rest = _rest("averaging", "attention", state, pieces, walker, part.mixer.rows_sum_to_one)
    if walker.is_split and part.mixer.rows_sum_to_one:
        rest = rest.through(replace(rest.state, common=_mean_mixed(part, flow.state, walker)))
    pieces.append(rest)
    look = (look_at(part, flow.state, walker.context, pieces),) if walker.looks else ()
    return _core(flow, state, pieces, look)


def _linear_pieces(values: Values, flow: Flow) -> list[Piece]:
    """Bias, answers to the norm's bias and to the rest of the common row, and own values."""
    state = flow.state
    m, bias = state.common, values.bias()
    none = torch.zeros_like(m)
    pieces = [Piece(name="bias", site="attention", state=constant(none if bias is None else bias, state))]
    if flow.norm_bias is not None and flow.pieces is None:
        at = flow.norm_bias.expand(m.shape)
        pieces.append(Piece(name="norm-bias", site="attention", state=constant(_row_out(values, at), state)))
        m = m - at
    pieces.append(Piece(name="common", site="attention", state=constant(_row_out(values, m), state)))
    own = apart(value_out(values, state.residual), state)
    pieces.append(Piece(name="own", site="attention", state=own))
    return pieces


def value_out(values: Values, x: Tensor) -> Tensor:
    """``sum_h x V_h O_h``, without biases."""
    heads = repeat_groups(split_heads(affine(x, values.value, None), values.value_heads), values.heads)
    return affine(join_heads(heads), values.out, None)


def _row_out(values: Values, rows: Tensor) -> Tensor:
    return value_out(values, row(rows)).squeeze(-2)


def _row_sums(part: Attention, flow: Flow, walker: Walker) -> Piece:
    """``(P 1 - 1) (m V + v) O``."""
    held, state = part.values, flow.state
    sums = part.mixer(state.tokens(), walker.context).sum(dim=-1, keepdim=True) - 1
    mean = held.project(row(state.common))
    written = affine(join_heads(sums * mean), held.out, None)
    return Piece(name="row-sums", site="attention", state=of_tokens(written, walker.context.is_token))


def _rest(
    name: Name, site: str, state: Split, pieces: list[Piece], walker: Walker, stochastic: bool = True
) -> Piece:
    """What the other pieces leave of the output; where row sums are not kept apart, it follows all of the stream.

    In the split pass the residual of what is left has all its digits, but its common row is a difference of larger
    ones: what is below their rounding is no number, and would be enlarged as if it were one.
    """
    name = name if stochastic or not walker.is_split else "whole"
    left = plus([state, *(negative(one.state) for one in pieces)])
    if walker.is_split:
        terms = torch.stack([state.common, *(one.state.common for one in pieces)])
        noise = NOISE * torch.linalg.vector_norm(terms, dim=-1).amax(dim=0)
        is_real = torch.linalg.vector_norm(left.common, dim=-1) > noise
        left = replace(left, common=torch.where(is_real[..., None], left.common, 0.0))
    return Piece(name=name, site=site, state=left)


def _mean_mixed(part: Attention, state: Split, walker: Walker) -> Tensor:
    """The common row of ``(P - I) R V O``, which is that of ``P R V O``: known relative to R, however small R is."""
    held = part.values
    heads = repeat_groups(split_heads(affine(state.residual, held.value, None), held.value_heads), held.heads)
    maps = part.mixer(state.tokens(), walker.context)
    mixed = affine(join_heads(maps @ heads), held.out, None)
    return power(state.log_scale)[..., None] * state.kept(mixed).sum(dim=-2) / state.count()


@branch.register
def _value_residual(part: ValueResidual, flow: Flow, walker: Walker) -> Flow:
    """The values of the memory are one piece, mixed by the same maps; the rest is attention."""
    state, held = walker.run(part, flow.state), part.values
    maps = part.mixer(flow.state.tokens(), walker.context)
    early = affine(part._memory(flow.state.tokens(), walker.context), part.first, None)
    early = repeat_groups(split_heads(early, held.value_heads), held.heads)
    memory = of_tokens(affine(join_heads(maps @ early), held.out, None), walker.context.is_token)
    pieces = [*_linear_pieces(held, flow), Piece(name="memory", site="attention", state=memory)]
    if not part.mixer.rows_sum_to_one:
        plain = Attention(part.mixer, held)
        pieces.append(_row_sums(plain, flow, walker))
    pieces.append(_rest("averaging", "attention", state, pieces, walker))
    look = (look_at(part, flow.state, walker.context, pieces),) if walker.looks else ()
    return _core(flow, state, pieces, look)


@branch.register
def _cross(part: CrossAttention, flow: Flow, walker: Walker) -> Flow:
    """Rows of its maps sum to one over the memory: the bias is that of its values, the rest is read from the memory."""
    state, bias = walker.run(part, flow.state), part.values.bias()
    row_ = torch.zeros_like(state.common) if bias is None else bias
    pieces = [Piece(name="bias", site="attention", state=constant(row_, state))]
    pieces.append(_rest("memory", "attention", state, pieces, walker))
    return _core(flow, state, pieces)


@branch.register(Mlp, GatedAttention)
def _equal_rows(part: Mlp | GatedAttention, flow: Flow, walker: Walker) -> Flow:
    """Maps that make equal tokens of equal tokens: their answer to one row is known by running them on it."""
    site = "mlp" if isinstance(part, Mlp) else "attention"
    at = [torch.zeros_like(flow.state.common)]
    if flow.norm_bias is not None and flow.pieces is None:
        at.append(flow.norm_bias.expand(flow.state.common.shape))
    at.append(flow.state.common)
    return _answers(part, site, flow, walker, [_answer(part, one, flow, walker) for one in at])


def _answer(part: Part, at: Tensor, flow: Flow, walker: Walker) -> Tensor:
    """What a part makes of equal tokens; one is enough for an MLP, an attention may know how many there are."""
    if isinstance(part, Mlp):
        return part(row(at), walker.context).squeeze(-2)
    wide = row(at).expand(flow.state.residual.shape)
    written = of_tokens(part(wide, walker.context), walker.context.is_token)
    return written.common


def _answers(part: Part, site: str, flow: Flow, walker: Walker, rows: list[Tensor]) -> Flow:
    state = walker.run(part, flow.state)
    names: list[Name] = ["bias", "common"] if len(rows) == 2 else ["bias", "norm-bias", "common"]
    steps = [rows[0], *(after - before for before, after in pairwise(rows))]
    pieces = [
        Piece(name=name, site=site, state=constant(step, state))
        for name, step in zip(names, steps, strict=True)
    ]
    pieces.append(_rest("answer", site, state, pieces, walker))
    return _core(flow, state, pieces)


@branch.register(TokenMap, Opaque, SequenceMap)
def _region(part: TokenMap | Opaque | SequenceMap, flow: Flow, walker: Walker) -> Flow:
    site = "mlp" if is_mlp(part) else "attention" if is_attention(part) else "block"
    state = walker.run(part, flow.state)
    pieces = []
    zero = _of_zero(part, flow, walker)
    if zero is not None:
        pieces.append(Piece(name="bias", site=site, state=zero))
    pieces.append(_rest("whole", site, state, pieces, walker))
    return _core(flow, state, pieces)


def _of_zero(part: Part, flow: Flow, walker: Walker) -> Split | None:
    """What a region makes of zeros; None where it cannot be run on them, or makes no numbers of them."""
    try:
        written = part(torch.zeros_like(flow.state.residual), walker.context)
    except (ModelError, ShapeError):
        return None
    return of_tokens(written, walker.context.is_token) if bool(torch.isfinite(written).all()) else None
