"""I5: the fall of the residual ratio as a sum over what made it, measured against a stream that nobody shrinks.

The *free stream* starts as the real one and adds every branch to an unscaled skip, without norms on the way:
``X~_0 = X_0``, ``X~_l = X~_(l-1) + F~_l``. F~ is the recorded branch with its pieces brought to what it would have
read: biases stay, what answers to the common row and what answers to the differences follow the common part and the
differences of the free stream (relative to the whole where the branch reads normed tokens). With ``L(X)`` the log
residual ratio of unit tokens,

    L(X_L) - L(X_0) = sum over sums    L(X~_l) - L(X~_(l-1))                                          branches
                    + sum over sums    [L(Y_l) - L(X_l)] - [L(X~_l) - L(X~_(l-1))]                    the design
                    + sum over norms and scales on the stream    L(after) - L(before)                 norm-direct.

The first two lines add up to what the sums do and the third is the rest, so this is exact for *any* F~; the choice
decides only how causal it is. The first line goes to the pieces by I2 and I4; ``same-direction`` is what pieces do to
the common row because they point where it points, ``branch-size`` what they do to it by their size, and to the
differences. On unit tokens every sum is measured with the weights of its output, and the change of weights,
``L(W' X~) - L(W X~)``, is the term ``lengths``.

The second line is what becomes of the skip. It is shared by what has shrunk the stream up to there, each with the block
it stands in: a norm that divides by the length of skip and branch (``norm-rescale``; the part of that length that a
bias made goes to the bias, by I4 on ``ln |Y|^2 / |sX|^2``), gains below one (``norm-gain``), skips that carry less than
their input (``skip-scale``), and a missing skip (``no-skip``), which takes all of its own sum.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from rankscope.core.numerics import relative_floor
from rankscope.findings.mechanism import Group
from rankscope.mechanism.identities import growth, odds_to_ratio, response
from rankscope.mechanism.pieces import FOLLOWS, Piece
from rankscope.mechanism.states import (
    by_channel,
    inverse_lengths,
    log_energies,
    log_energy,
    log_odds,
    negative,
    plain_log_ratio,
    plus,
    times,
    unit_log_ratio,
    weighed,
)
from rankscope.mechanism.trace import Added, Move, Normed, Scaled
from rankscope.network import Norm
from rankscope.split.state import Split, aligned

Key = tuple[Group, int, str]
"""What did it, in which block, at which site."""

CANCELLED = 2 * 18.0
"""A sum e^18 times smaller than its terms has lost half of its digits."""

STEEP = 60.0
"""Most that a response enlarges a piece, as a logarithm of the common part."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumNumbers:
    """What a person understands of one sum, per text; NaN where there is no number."""

    block: int
    site: str
    has_skip: bool
    skip: Tensor
    """Factor of the skip, |sX| / |X|."""
    share: Tensor
    """|sX| / |Y|."""
    beta: Tensor
    """|F| / |X|."""
    written: Tensor
    """|F| / |X_0|."""
    common: Tensor
    residual: Tensor
    cosine: Tensor
    bias: Tensor
    """Size of the biases over that of the stream."""
    price: Tensor
    averaging: Tensor
    value_gain: Tensor
    entropy: Tensor
    logit_std: Tensor
    logit_gain: Tensor
    itself: Tensor
    reads_normed: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class NormNumbers:
    """A norm on the stream, per text."""

    block: int
    gain: Tensor
    bias: Tensor


T = TypeVar("T", "SumNumbers", "NormNumbers", "Decomposition")


def _flattened(numbers: T) -> T:
    """The same with every tensor as one axis."""
    made: Callable[..., T] = type(numbers)
    held = {one.name: getattr(numbers, one.name) for one in fields(numbers)}
    return made(**{name: v.reshape(-1) if isinstance(v, Tensor) else v for name, v in held.items()})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Decomposition:
    """Everything about one batch of texts; numbers have one entry per text.

    Args:
        rows: contributions to ``ln rho``.
        first, last: ``ln rho`` of what enters the first block and of what leaves the last.
        free: that of the free stream at the end.
        lowest: the smallest over all states on the way.
        floor: what rounding may add to or take from a contribution.
        error: by how much the rows miss the change.
        cancelled: whether some sum is next to nothing beside its terms, so that its tokens are rounding.
        layers: ``ln rho`` of layers 0 .. L.
        sums, norms: the numbers behind it.
    """

    rows: dict[Key, Tensor]
    first: Tensor
    last: Tensor
    free: Tensor
    lowest: Tensor
    floor: Tensor
    error: Tensor
    cancelled: Tensor
    layers: tuple[Tensor, ...]
    sums: tuple[SumNumbers, ...]
    norms: tuple[NormNumbers, ...]
    is_split: bool = False

    def flattened(self) -> "Decomposition":
        """The same with all texts along one axis."""
        found = _flattened(self)
        return replace(
            found,
            rows={key: value.reshape(-1) for key, value in self.rows.items()},
            layers=tuple(one.reshape(-1) for one in self.layers),
            sums=tuple(map(_flattened, self.sums)),
            norms=tuple(map(_flattened, self.norms)),
        )

    def group(self, name: Group) -> Tensor:
        """The contribution of one group."""
        none = torch.zeros_like(self.first)
        return sum((value for (group, _, _), value in self.rows.items() if group == name), none)


class _Shrunk:
    """By how much each cause has shrunk the stream so far, and what it has been given of the design; stacked."""

    def __init__(self) -> None:
        self.places: dict[Key, int] = {}
        self.by: Tensor | None = None
        self.given: Tensor | None = None

    def add(self, key: Key, by: Tensor) -> None:
        if self.by is None or self.given is None:
            self.by, self.given = by.new_zeros(0, *by.shape), by.new_zeros(0, *by.shape)
        if key not in self.places:
            self.places[key] = len(self.places)
            self.by = torch.cat([self.by, by.unsqueeze(0)])
            self.given = torch.cat([self.given, torch.zeros_like(by).unsqueeze(0)])
        else:
            self.by[self.places[key]] += by

    def share_out(self, value: Tensor) -> Tensor:
        """A value shared by what has shrunk the stream; returned is what is left where nothing has."""
        if self.by is None or self.given is None:
            return value
        total = self.by.sum(dim=0)
        some = total > 1e-12
        self.given += torch.where(some, value / torch.where(some, total, 1.0), 0.0) * self.by
        return torch.where(some, 0.0, value)

    def rows(self) -> dict[Key, Tensor]:
        return {} if self.given is None else {key: self.given[place] for key, place in self.places.items()}


@dataclass(kw_only=True)
class _Books:
    """What is kept while the stream is followed."""

    rows: dict[Key, Tensor] = field(default_factory=dict)
    shrunk: _Shrunk = field(default_factory=_Shrunk)
    sums: list[SumNumbers] = field(default_factory=list)
    norms: list[NormNumbers] = field(default_factory=list)
    seen: list[Tensor] = field(default_factory=list)
    cancelled: list[Tensor] = field(default_factory=list)

    def enter(self, group: Group, block: int, site: str, value: Tensor) -> None:
        key = (group, block, site)
        self.rows[key] = self.rows[key] + value if key in self.rows else value

    def shrink(self, group: Group, block: int, site: str, by: Tensor) -> None:
        """By how much the stream is shorter than the free one, as a logarithm; what enlarges it does not count."""
        self.shrunk.add((group, block, site), by.clamp(min=0.0))


def decompose(
    steps: Iterable[Move], entering: Split, blocks: int, *, is_split: bool = False
) -> Decomposition:
    """The decomposition of what the steps do to ``entering``, the measured tokens that go in."""
    books, free, before = _Books(), entering, None
    first = last = unit_log_ratio(entering)
    start = log_energy(entering)
    level, floor = first, torch.zeros_like(first)
    layers = [first] * (blocks + 1)
    previous: Added | None = None
    for move in steps:
        before, last = last, unit_log_ratio(move.y)
        layers[move.block :] = [last] * (blocks + 1 - move.block)
        books.seen.append(last)
        floor = floor + 2 * relative_floor(move.block, torch.float64) / last.exp().clamp(min=1e-300)
        match move:
            case Added():
                free, level = _added(books, move, free, level, last - before, start)
                previous = move
            case Normed():
                _normed(books, move, previous, last - before)
            case Scaled():
                books.enter("skip-scale", move.block, "block", last - before)
                by = 0.5 * (log_energy(move.x) - log_energy(move.y))
                books.shrink("skip-scale", move.block, "block", by)
    for (group, number, site), value in books.shrunk.rows().items():
        books.enter(group, number, site, value)
    total = sum(books.rows.values(), torch.zeros_like(first))
    seen = torch.stack([first, *books.seen])
    none = torch.zeros_like(first, dtype=torch.bool)
    return Decomposition(
        rows=books.rows,
        first=first,
        last=last,
        free=level,
        lowest=seen.amin(dim=0),
        floor=floor,
        error=(last - first - total).abs(),
        cancelled=torch.stack([none, *books.cancelled]).any(dim=0),
        layers=tuple(layers),
        sums=tuple(books.sums),
        norms=tuple(books.norms),
        is_split=is_split,
    )


def _added(
    books: _Books, move: Added, free: Split, level: Tensor, change: Tensor, start: Tensor
) -> tuple[Split, Tensor]:
    """The free stream after a sum, its log ratio, and everything that is entered on the way."""
    pieces = _responding(move, free)
    new = plus([free, *(one.state for one in pieces)])
    books.cancelled.append(_cancels(new, [free, *(one.state for one in pieces)]))
    books.cancelled.append(
        _cancels(move.y, [*([move.own] if move.own else []), *(p.state for p in move.pieces)])
    )
    weights = inverse_lengths(new)
    base = weighed(free, weights)
    now, reached = plain_log_ratio(base), unit_log_ratio(new)
    books.enter("lengths", move.block, move.site, now - level)
    for one, (size, along) in zip(
        pieces, _shares(base, [weighed(one.state, weights) for one in pieces]), strict=True
    ):
        books.enter(group_of(one), move.block, _site(one, move), size)
        books.enter("same-direction", move.block, _site(one, move), along)
    design = change - (reached - level)
    if move.own is None:
        books.enter("no-skip", move.block, move.site, design)
        written = log_energy(plus([one.state for one in pieces])) if pieces else None
        lost = torch.zeros_like(level) if written is None else 0.5 * (log_energy(new) - written)
        books.shrink("no-skip", move.block, move.site, torch.nan_to_num(lost, posinf=STEEP))
    else:
        scale = 0.5 * (log_energy(move.own) - log_energy(move.x))
        books.shrink("skip-scale", move.block, move.site, -scale)
        _share_out(books, move, design, scale)
    books.sums.append(_numbers(move, start))
    return new, reached


def _cancels(total: Split, terms: list[Split]) -> Tensor:
    """Whether a sum is so small beside its terms that half of its digits are rounding."""
    if not terms:
        return torch.zeros_like(total.log_scale, dtype=torch.bool)
    largest = torch.stack([log_energy(one) for one in terms]).amax(dim=0)
    return ~(log_energy(total) > largest - CANCELLED)


def _share_out(books: _Books, move: Added, design: Tensor, scale: Tensor) -> None:
    """What becomes of the skip, by what has shrunk the stream up to here."""
    left = books.shrunk.share_out(design)
    wide = scale.abs() > 1e-12  # a skip that carries more than its input
    books.enter("skip-scale", move.block, move.site, torch.where(wide, left, 0.0))
    books.enter("norm-rescale", move.block, move.site, torch.where(wide, 0.0, left))


def _normed(books: _Books, move: Normed, previous: Added | None, change: Tensor) -> None:
    books.enter("norm-direct", move.block, "norm", change)
    gain = norm_gain(move.part, change)
    bias = _bias_size(move.part, change)
    books.norms.append(NormNumbers(block=move.block, gain=gain, bias=bias / gain.clamp(min=1e-300)))
    books.shrink("norm-gain", move.block, "norm", -gain.clamp(min=1e-30).log())
    # The norm divides by the length of what enters it; of a sum, what made that longer than the skip shrinks the skip.
    by = (gain.clamp(min=1e-30).log() - 0.5 * (log_energy(move.bare) - log_energy(move.x))).clamp(min=0.0)
    if previous is None or previous.own is None:
        books.shrink("norm-rescale", move.block, "norm", by)
        return
    shares = _length_shares(previous.own, [one.state for one in previous.pieces])
    longer = [share.clamp(min=0.0) for share in shares]
    total = sum(longer, torch.zeros_like(by))
    for one, share in zip(previous.pieces, longer, strict=True):
        group = group_of(one)
        blamed: Group = group if group.endswith("-bias") or group == "norm-direct" else "norm-rescale"
        site = "norm" if blamed == "norm-rescale" else _site(one, previous)
        books.shrink(blamed, move.block, site, by * share / torch.where(total > 0, total, 1.0))


def norm_gain(part: Norm, like: Tensor) -> Tensor:
    """The root mean square of the gain, per text."""
    gain = part.gain
    return (
        torch.ones_like(like) if gain is None else gain.double().square().mean(dim=-1).sqrt().expand_as(like)
    )


def _bias_size(part: Norm, like: Tensor) -> Tensor:
    bias = part.bias
    return (
        torch.zeros_like(like) if bias is None else bias.double().square().mean(dim=-1).sqrt().expand_as(like)
    )


def group_of(piece: Piece) -> Group:
    """What a piece is called in the sum."""
    if piece.name == "norm-bias":
        return "norm-direct"
    if piece.name == "bias" and piece.site in ("attention", "mlp"):
        return "attention-bias" if piece.site == "attention" else "mlp-bias"
    return "branch-size"


def _site(piece: Piece, move: Added) -> str:
    return piece.site if piece.site != "block" else move.site


def _responding(move: Added, free: Split) -> list[Piece]:
    """The pieces as they would be if the branch read the free stream: to first order in what it reads.

    The common part of its input grows by a factor and the differences by another (``response``); where it reads normed
    tokens these are ``sqrt((1 - rho~^2) / (1 - rho^2))`` and ``rho~ / rho``.
    """
    read, other = log_energies(move.x), log_energies(free)
    common, residual = response(read, other, reads_norm=move.reads_normed)
    common = common.clamp(min=-STEEP, max=STEEP)
    none = torch.zeros_like(common)
    found = []
    for one in move.pieces:
        match FOLLOWS[one.name]:
            case "nothing":
                found.append(one)
            case "common":
                found.append(one.through(times(one.state, common.exp(), common)))
            case "residual":
                found.append(one.through(_grown(one.state, residual)))
            case "both":
                found.append(one.through(times(one.state, common.exp(), residual + none)))
    return found


def _grown(state: Split, by: Tensor) -> Split:
    """The whole state times ``exp(by)``; a common part that would leave the floats is next to nothing, and stays."""
    return times(state, by.clamp(max=600.0).exp(), by)


def _shares(base: Split, pieces: list[Split]) -> list[tuple[Tensor, Tensor]]:
    """Contributions of pieces to ``ln rho`` of ``base`` plus all of them: by size and to differences, and by direction.

    I2 and I4: ``t' - t = D - G``, and D and G are shared out; one factor turns log-odds into ``ln rho``.
    """
    if not pieces:
        return []
    added = plus(pieces)
    common = growth(*_common_products(base, added))
    _, scales = aligned(torch.stack([base.log_scale, *(one.log_scale for one in pieces)]), dim=0)
    own = scales[0][..., None, None] * base.residual
    rests = [scale[..., None, None] * one.residual for scale, one in zip(scales[1:], pieces, strict=True)]
    total = sum(rests, torch.zeros_like(own))
    residual = growth(_dot(own, own), _dot(own, total), _dot(total, total))
    # An exact zero has no log-odds; the end of the step that has more of a common part is sure to have some.
    before, after, step = log_odds(base), log_odds(plus([base, added])), residual.total - common.total
    falls = after <= before
    factor = odds_to_ratio(torch.where(falls, after - step, before), torch.where(falls, after, before + step))
    found = []
    for piece, rest in zip(pieces, rests, strict=True):
        size = (added.common * piece.common).sum(dim=-1) * common.size
        along = (base.common * piece.common).sum(dim=-1) * common.along
        apart = _dot(own, rest) * residual.along + _dot(total, rest) * residual.size
        found.append((factor * (apart - size), -factor * along))
    return found


def _common_products(base: Split, added: Split) -> tuple[Tensor, Tensor, Tensor]:
    a, v = base.common, added.common
    return (a * a).sum(dim=-1), (a * v).sum(dim=-1), (v * v).sum(dim=-1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(-2, -1))


def _length_shares(own: Split, pieces: list[Split]) -> list[Tensor]:
    """Shares of ``ln(|own + pieces|^2 / |own|^2)``, common part and differences together."""
    if not pieces:
        return []
    count = own.count()
    many = count.squeeze(-1).double() if isinstance(count, Tensor) else float(count)
    added = plus(pieces)

    def product(a: Split, b: Split) -> Tensor:
        scale = (a.log_scale + b.log_scale).clamp(max=600.0).exp()
        return many * (a.common * b.common).sum(dim=-1) + torch.where(
            scale > 0, scale * _dot(a.residual, b.residual), 0.0
        )

    found = growth(product(own, own), product(own, added), product(added, added))
    return [product(own, one) * found.along + product(added, one) * found.size for one in pieces]


def _numbers(move: Added, start: Tensor) -> SumNumbers:
    x, y, f = (
        move.x,
        move.y,
        plus([one.state for one in move.pieces]) if move.pieces else by_channel(move.x, 0.0),
    )
    whole, m, r = log_energy(x), *log_energies(x)
    m_f, r_f = log_energies(f)
    none = torch.full_like(whole, torch.nan)
    biases = [one.state for one in move.pieces if one.name == "bias"]
    bias = log_energy(plus(biases)) if biases else torch.full_like(whole, -torch.inf)
    own = torch.full_like(whole, -torch.inf) if move.own is None else log_energy(move.own)
    sizes = [torch.linalg.vector_norm(one.common, dim=-1) for one in (x, f)]
    length = sizes[0] * sizes[1]
    cosine = (x.common * f.common).sum(dim=-1) / torch.where(length > 0, length, 1.0)
    mixing = [one.state for one in move.pieces if one.name == "averaging"]
    price = none
    if mixing:
        price = unit_log_ratio(plus([y, *map(negative, mixing)])) - unit_log_ratio(y)
    looks = {
        name: torch.stack([getattr(look, name) for look in move.looks]).mean(dim=0) if move.looks else none
        for name in ("averaging", "value_gain", "entropy", "logit_std", "logit_gain", "itself")
    }
    return SumNumbers(
        block=move.block,
        site=move.site,
        has_skip=move.own is not None,
        skip=(0.5 * (own - whole)).exp(),
        share=(0.5 * (own - log_energy(y))).exp(),
        beta=(0.5 * (log_energy(f) - whole)).exp(),
        written=(0.5 * (log_energy(f) - start)).exp(),
        common=(0.5 * (m_f - m)).exp(),
        residual=(0.5 * (r_f - r)).exp(),
        cosine=cosine,
        bias=(0.5 * (bias - whole)).exp(),
        price=price,
        reads_normed=move.reads_normed,
        **looks,
    )
