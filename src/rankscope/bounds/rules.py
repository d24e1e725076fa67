"""One rule for every part: where its output lies, and by how much it enlarges the sizes of a residual."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from rankscope.bounds import dense
from rankscope.bounds.assumption import ARITHMETIC, Assumption
from rankscope.bounds.enclosure import TINY, Enclosed, added, exactly, gamma, known, lengths_of, rounding
from rankscope.bounds.gains import (
    SIZE,
    SKIP,
    TOKENS,
    Gains,
    gains_of,
    in_a_row,
    passed,
    per_size,
)
from rankscope.bounds.logs import log_difference, log_sum, lowered, raised
from rankscope.bounds.map_rules import CERTIFY, enclosed_maps
from rankscope.bounds.mlp_rules import inner, mlp_terms, through_mlp
from rankscope.bounds.norm_rules import lower_gains, through_norm, upper_gain, view
from rankscope.bounds.secants import mlp_matrix, norm_matrix
from rankscope.bounds.sizes import COUNT, D2, SIZES, F, Interval, enclosed, ratios, tightened
from rankscope.bounds.terms import Terms, alike_gains, dense_terms, heads_of, joint_gains, term_gains
from rankscope.core.operator_norms import spectral_bound
from rankscope.network import Attention, Chain, Context, Mlp, Part, Scale, Skip, Sum
from rankscope.network.heads import join_heads
from rankscope.network.known import NORMS
from rankscope.network.norms import Norm
from rankscope.network.parts import affine, scaled


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class At:
    """What is known of the tokens that enter a part.

    Args:
        state: where they are.
        context: of the batch; it names no padding.
        interval: between what their sizes lie; asked for by parts that need it.
        joint_side: of matrices on residuals, at most.
    """

    state: Enclosed
    context: Context
    interval: Callable[[], Interval]
    joint_side: int = dense.JOINT_SIDE

    @property
    def tokens(self) -> int:
        return self.state.x.shape[-2]

    @property
    def dim(self) -> int:
        return self.state.x.shape[-1]

    @property
    def batch(self) -> torch.Size:
        return self.state.x.shape[:-2]

    def diameter(self) -> Tensor:
        """Logarithm of the l2 diameter, at most, ``*batch``."""
        return self.interval().upper[D2]

    def fits(self) -> bool:
        """Whether residuals are small enough for matrices on them to be written out."""
        return 0 < (self.tokens - 1) * self.dim <= self.joint_side


MOST_SCALES = 4
"""Scales in a row that are multiplied with the part before them."""

Matrix = Callable[[], dense.Dense | None]
"""A part as one matrix on residuals, made when it is asked for; None where that would be too large."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Passed:
    """What is known behind a part.

    Args:
        state: where the tokens are.
        gains: by how much the sizes grew, asked for when they are needed.
        terms: the part as a linear map of residuals, where it is one.
        matrix: the same as one matrix, where that is small; asked for when needed.
    """

    state: Enclosed
    gains: Callable[[], Gains]
    terms: Terms | None = None
    matrix: Matrix


@CERTIFY.rules
def pass_part(part: Part, at: At) -> Passed:  # type: ignore[empty-body]
    """Everything known behind ``part``."""


@pass_part.register
def _chain(part: Chain, at: At) -> Passed:
    if not part.parts:
        return _through(at, at.state, Terms(scale=at.state.x.new_ones(1)))
    steps: list[Passed] = []
    here = at
    for inner_part in part.parts:
        steps.append(pass_part(inner_part, here))
        here = _after(here, steps[-1])
    return Passed(
        state=here.state,
        gains=cache(lambda: _chain_gains(steps)),
        terms=_chain_terms(steps, part),
        matrix=cache(lambda: _chain_matrix(steps)),
    )


def _after(at: At, step: Passed) -> At:
    """What enters the part behind ``step``."""

    @cache
    def interval() -> Interval:
        return tightened(passed(at.interval(), step.gains()), ratios(at.tokens, at.dim))

    return replace(at, state=step.state, interval=interval)


def _chain_gains(steps: list[Passed]) -> Gains:
    product = in_a_row([step.gains() for step in steps])
    if len(steps) == 1:
        return product
    found = _chain_matrix(steps)
    return product if found is None else better(product, joint_gains(found))


def _chain_matrix(steps: list[Passed]) -> dense.Dense | None:
    total: dense.Dense | None = None
    for step in steps:
        own = step.matrix()
        if own is None:
            return None
        total = own if total is None else total.then(own)
    return total


def _chain_terms(steps: list[Passed], part: Chain) -> Terms | None:
    """One part followed by a few scales is as linear as the part; of many the product may leave the range of floats."""
    terms = steps[0].terms if len(part.parts) <= MOST_SCALES + 1 else None
    for inner_part in list(part.parts)[1:]:
        if terms is None or not isinstance(inner_part, Scale) or not _is_moderate(inner_part.value):
            return None
        terms = terms.scaled(inner_part.value.double())
    return terms


def _is_moderate(value: Tensor) -> bool:
    """Whether products with these factors stay in the range of floats."""
    size = value.double().abs()
    return bool(((size < 1e50) & ((size > 1e-50) | (size == 0))).all())


@pass_part.register
def _skip(part: Skip, at: At) -> Passed:
    branch = pass_part(part.inner, at)
    scale = part.scale if isinstance(part.scale, Tensor) else at.state.x.new_tensor([part.scale])
    carried = _scaled(at.state, scale)
    state = added([branch.state, carried])
    own = Terms(scale=scale.double())
    matrix = cache(lambda: _with(own, branch, at))
    if branch.terms is not None:
        return _through(at, state, branch.terms.plus(own), matrix)
    return Passed(state=state, gains=cache(lambda: _beside(own, branch, at)), matrix=matrix)


def _with(own: Terms, branch: Passed, at: At) -> dense.Dense | None:
    inside = branch.matrix()
    return None if inside is None else inside.plus(dense_terms(own, at.diameter(), at.tokens, at.dim))


def _beside(own: Terms, branch: Passed, at: At) -> Gains:
    """A skip around a branch of which only the gains are known.

    The residual is linear, so that with R that of the input, S R what the skip carries and B what the branch makes of
    it, every size obeys the triangle inequality, ``| |S R| - |B| | <= |S R + B| <= |S R| + |B|``. Divided by ``|R|``:
    the gains add up at most, and at least the weaker one's upper gain is taken from the stronger one's lower gain.
    """
    gains, alone = branch.gains(), alike_gains(own, at.diameter())
    upper = log_sum(alone.upper, gains.upper)
    lower = torch.maximum(log_difference(alone.lower, gains.upper), log_difference(gains.lower, alone.upper))
    failed = (
        *(one for one in gains.failed if one.name == ARITHMETIC),
        Assumption.below(
            "branch weaker than its skip",
            gains.upper[F].exp(),
            alone.lower[F].exp(),
            says="what the branch can add to the residual is no smaller than what the skip carries, so the two may "
            "cancel; scale the branch down",
        ),
    )
    found, matrix = gains_of([(SKIP, lower)], [(SKIP, upper)], failed), _with(own, branch, at)
    return found if matrix is None else better(found, joint_gains(matrix))


@pass_part.register
def _sum(part: Sum, at: At) -> Passed:
    if not part.parts:
        zero = exactly(torch.zeros_like(at.state.x))
        return _through(at, zero, Terms(scale=at.state.x.new_zeros(1)))
    branches = [pass_part(one, at) for one in part.parts]
    state = added([one.state for one in branches])
    terms = branches[0].terms
    for one in branches[1:]:
        terms = None if terms is None or one.terms is None else terms.plus(one.terms)
    matrix = cache(lambda: _added_matrices([one.matrix() for one in branches]))
    if terms is not None:
        return _through(at, state, terms, matrix)

    @cache
    def gains() -> Gains:
        found, own = _side_by_side([one.gains() for one in branches]), matrix()
        return found if own is None else better(found, joint_gains(own))

    return Passed(state=state, gains=gains, matrix=matrix)


def _added_matrices(matrices: list[dense.Dense | None]) -> dense.Dense | None:
    total = matrices[0]
    for one in matrices[1:]:
        total = None if total is None or one is None else total.plus(one)
    return total


def _side_by_side(gains: list[Gains]) -> Gains:
    """Branches that are added: the longest minus the others at least, all of them at most.

    The triangle inequality again, ``|B_k| - sum_{j != k} |B_j| <= |sum_j B_j| <= sum_j |B_j|`` for every k.
    """
    upper = log_sum(*(one.upper for one in gains))
    lower = []
    for index, one in enumerate(gains):
        others = [other.upper for place, other in enumerate(gains) if place != index]
        lower.append((SKIP, log_difference(one.lower, log_sum(*others)) if others else one.lower))
    strongest = max(range(len(gains)), key=lambda place: float(gains[place].lower[F].max()))
    others = [one.upper[F] for place, one in enumerate(gains) if place != strongest]
    failed = (
        *(one for each in gains for one in each.failed if one.name == ARITHMETIC),
        Assumption.below(
            "branches do not cancel",
            log_sum(*others).exp() if others else torch.zeros_like(upper[F]),
            gains[strongest].lower[F].exp(),
            says="branches that are added may cancel, unless one of them keeps more apart than the others can add",
        ),
    )
    return gains_of(lower, [(SKIP, upper)], failed)


@pass_part.register
def _scale(part: Scale, at: At) -> Passed:
    return _through(at, _scaled(at.state, part.value), Terms(scale=part.value.double()))


def _scaled(state: Enclosed, scale: Tensor) -> Enclosed:
    """Tokens times a number or a number for each channel.

    The distance from the true tokens grows by the largest factor at most; each product is rounded once.
    """
    largest = scale.double().abs().amax(dim=-1, keepdim=True)
    y = scaled(state.x, scale)
    return Enclosed(x=y, error=known(largest * state.error) + gamma(1) * lengths_of(y) + TINY)


@pass_part.register
def _attention(part: Attention, at: At) -> Passed:
    state, values = at.state, part.values
    maps = enclosed_maps(part.mixer, state, at.context)
    projected = values.project(state.x)
    mixed = maps.maps @ projected
    y = affine(join_heads(mixed), values.out, values.out_bias)
    lengths = torch.linalg.vector_norm(projected, dim=-1)  # *batch heads tokens
    center = projected.mean(dim=-2, keepdim=True)
    apart = torch.linalg.vector_norm(projected - center, dim=-1)
    tokens = at.tokens
    head_values = values.head_values()
    # How far a projected token can be from the true one, |v'_j - v_j| <= off_j: the error of the token times the
    # largest factor of the value map, and the rounding of the projection.
    off = spectral_bound(head_values).unsqueeze(-1) * state.error.unsqueeze(-2)
    off = off + gamma(at.dim) * (
        torch.linalg.matrix_norm(head_values).unsqueeze(-1) * state.lengths.unsqueeze(-2) + lengths
    )

    def mean(per_key: Tensor) -> Tensor:
        return (maps.maps @ per_key.unsqueeze(-1)).squeeze(-1)

    # With primes for true values, per head and query i,
    #     (A' v' - A v)_i = ((A' - A) v)_i + (A' (v' - v))_i.
    # Rows of A and of A' sum to one, so any row c may be subtracted from v in the first term. Entries of A' - A are at
    # most radius_i A_ij, and their sizes add up to two at most:
    #     |((A' - A) (v - 1 c))_i| <= min(radius_i sum_j A_ij |v_j - c|, 2 max_j |v_j - c|).
    # In the second, A'_ij <= (1 + radius_i) A_ij, and a row of A' is a mean:
    #     |(A' (v' - v))_i| <= min((1 + radius_i) sum_j A_ij off_j, max_j off_j).
    bounded = torch.minimum(maps.radius * mean(apart), 2 * apart.amax(dim=-1, keepdim=True))
    moved = bounded + torch.minimum((1 + maps.radius) * mean(off), off.amax(dim=-1, keepdim=True))
    # Rounding of the sums above and of A v itself: each is a sum over the keys of products of these sizes.
    moved = known(moved) + 4 * gamma(tokens) * (mean(lengths) + torch.linalg.vector_norm(center, dim=-1))
    # Heads side by side make one vector, whose length the output map enlarges by its largest singular value.
    error = torch.linalg.vector_norm(moved, dim=-2) * spectral_bound(values.out).unsqueeze(-1)
    error = error + rounding(torch.linalg.vector_norm(mixed, dim=(-3, -1)), values.out, values.out_bias)
    heads = heads_of(maps, head_values.double(), values.head_outs().double())
    return _through(at, Enclosed(x=y, error=known(error)), Terms(heads=(heads,)))


@pass_part.register
def _mlp(part: Mlp, at: At) -> Passed:
    found = inner(part, at.state)
    matrix = cache(lambda: mlp_matrix(part, at.state) if at.fits() else None)
    return _through(at, through_mlp(part, found), mlp_terms(part, found), matrix)


@pass_part.register(*NORMS)
def _norm(part: Norm, at: At) -> Passed:
    state = through_norm(part, at.state, part(at.state.x, at.context))
    return Passed(
        state=state,
        gains=cache(lambda: _norm_gains(part, at)),
        matrix=cache(lambda: norm_matrix(part, at.state) if at.fits() else None),
    )


def _norm_gains(part: Norm, at: At) -> Gains:
    found, (lowest, _) = view(part, at.state), enclosed(at.state.x, at.state.error)
    own = upper_gain(found)
    frobenius, diameter, share = lower_gains(found, lowest[SIZES[F]], lowest[SIZES[D2]])
    spread = ratios(at.tokens, at.dim).reshape(COUNT, COUNT, *[1] * own.ndim)
    # A norm has a gain g of one size s alone. With size_a <= K[a, b] size_b, and K = exp(spread), for any other size k
    #     size_k(out) <= K[k, s] size_s(out) <= K[k, s] g size_s(in) <= K[k, s] g K[s, k] size_k(in),
    # and from below, with the lower gain g, size_k(out) >= g size_k(in) / (K[s, k] K[k, s]).
    through = [raised(spread[:, size] + own + spread[size]) for size in (F, D2)]
    upper = [(TOKENS, per_size(f=own, d2=own)), *((SIZE, one) for one in through)]
    back = [lowered(-spread[size] + one - spread[:, size]) for size, one in ((F, frobenius), (D2, diameter))]
    lower = [(TOKENS, per_size(f=frobenius, d2=diameter)), *((SIZE, one) for one in back)]
    failed = (
        Assumption.arithmetic(found.error.amax(dim=-1) / found.size.amin(dim=-1), 0.5),
        Assumption.below(
            "norm keeps tokens apart",
            share,
            1.0,
            says="tokens that differ in length or mean alone are the same behind a norm: this share of the squared "
            "residual may be lost",
        ),
        Assumption.at_least(
            "norm weights away from zero",
            found.weight[0],
            torch.finfo(torch.float64).tiny,
            says="a channel whose norm weight is zero is removed",
        ),
    )
    return gains_of(lower, upper, failed)


def _through(at: At, state: Enclosed, terms: Terms, matrix: Matrix | None = None) -> Passed:
    """A part that is a linear map of residuals; as a matrix it is that of its terms, unless one is given."""
    own = cache(lambda: dense_terms(terms, at.diameter(), at.tokens, at.dim) if at.fits() else None)
    joint = own if matrix is None else matrix

    @cache
    def gains() -> Gains:
        found = term_gains(terms, at.diameter())
        whole = joint() if terms.heads or terms.channels is not None else None
        return found if whole is None else better(found, joint_gains(whole))

    return Passed(state=state, gains=gains, terms=terms, matrix=joint)


def better(first: Gains, second: Gains) -> Gains:
    """The sharper of two bounds, size by size; what failed is told by the first."""
    lower = torch.gt(second.lower, first.lower)
    upper = torch.lt(second.upper, first.upper)
    return Gains(
        lower=torch.where(lower, second.lower, first.lower),
        upper=torch.where(upper, second.upper, first.upper),
        lower_by=torch.where(lower, second.lower_by, first.lower_by),
        upper_by=torch.where(upper, second.upper_by, first.upper_by),
        failed=first.failed,
    )
