"""Attention maps split into a row that all queries share and what is left, the latter with its scale as a logarithm.

One formula serves all masks. Let S be the keys that every query may read, and write the logits, up to a constant per
query, as ``u_j + v_ij`` with ``u`` shared by all queries. With ``q = softmax(u)`` over S,
``m_i = sum_S q_j expm1(v_ij)``, and ``t_i`` what query i gives to keys outside S, in units of what the shared row gives
to S:

    P_ij - q_j = q_j expm1(v_ij - log(1 + m_i + t_i))      for j in S,
    P_ij = exp(u_j + v_ij - log sum_S exp(u)) / (1 + m_i + t_i)      elsewhere.

In position-free attention without a mask ``t = 0`` and ``v`` is of second order in the residual, and so is the rest of
the map: that is the whole reason why the residual is cubed. Under a mask the same formula keeps rows apart that agree
up to e^-50, because all of them read the same few keys (sinks).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Context, Fixed, Gaussian, Mixer, Softmax, Uniform
from rankscope.network.known import interpreter
from rankscope.network.masking import allowed_keys
from rankscope.split.logits import SplitLogits, head_groups, row_at, split_logits
from rankscope.split.quotients import expm1_ratio, log1p_ratio
from rankscope.split.state import Split, aligned, power

HELD = 0.5
"""The shared row is subtracted where every query gives more than this to keys that all may read."""

DEEP = -300.0
"""Where all keys but one get less than the exponential of this, the rest is held relative to the next key."""

NEGLIGIBLE = 2.0**-55
"""Below this ``expm1(v) = v`` to the last digit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A factor per head and query, ``row + exp(log_scale) change``.

    Args:
        row: ``*batch heads 1 1``.
        change: ``*batch heads tokens 1``.
        log_scale: ``*batch heads``; minus infinity where all queries have the same factor.
    """

    row: Tensor
    change: Tensor
    log_scale: Tensor

    def times(self, other: "Gate") -> "Gate":
        """``(a + s b) (c + t d) = a c + s b (c + t d) + t a d``, brought to the larger scale."""
        log_scale, weights = aligned(torch.stack([self.log_scale, other.log_scale]), dim=0)
        own, others = (one[..., None, None] for one in weights)
        change = own * self.change * other.factors() + others * self.row * other.change
        return Gate(row=self.row * other.row, change=change, log_scale=log_scale)

    def factors(self) -> Tensor:
        """The factors themselves, ``*batch heads tokens 1``."""
        return self.row + power(self.log_scale)[..., None, None] * self.change


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitMaps:
    """``P = 1 shared + exp(log_scale) rest`` for some heads.

    Rows of the rest sum to zero, so its entry at one key follows from the others and is not kept: what it is multiplied
    with is subtracted from what all others are. Where all queries attend to one key, that entry would be a difference
    of two numbers near one, and the others are small numbers that are known to all their digits.

    Args:
        shared: ``*batch heads 1 tokens``.
        rest: ``*batch heads tokens tokens``, of order one; arbitrary at ``peak``.
        log_scale: ``*batch heads``.
        peak: ``*batch heads 1 1``, the key whose entries follow from the others.
        total: ``*seeds heads 1 1``, what every row sums to, the shared one too; None for one.
        gate: what the rows of each query are multiplied with, which then sum to it times the total; None for one.
    """

    shared: Tensor
    rest: Tensor
    log_scale: Tensor
    peak: Tensor
    total: Tensor | None = None
    gate: Gate | None = None

    def apply(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """``shared @ values`` and ``rest @ values``, for values ``*batch heads tokens width``."""
        return self.shared @ values, self.rest @ (values - row_at(values, self.peak.squeeze(-1)))


SPLIT = interpreter("split")


@SPLIT.rules
def split_maps(mixer: Mixer, state: Split, context: Context) -> Iterator[SplitMaps]:  # type: ignore[empty-body]
    """The maps of ``mixer`` on a split token matrix, group of heads by group of heads (``head_groups``)."""


@split_maps.register
def _fixed(mixer: Fixed, state: Split, context: Context) -> Iterator[SplitMaps]:
    maps = mixer(state.tokens(), context).to(state.residual.dtype)
    for heads in head_groups(state, mixer.heads):
        own = maps[..., heads, :, :]
        yield _with_scale(own[..., :1, :], own - own[..., :1, :])


@split_maps.register
def _uniform(mixer: Uniform, state: Split, context: Context) -> Iterator[SplitMaps]:
    maps = mixer(state.tokens(), context)[..., :1, :, :].to(state.residual.dtype)
    keys, same = _first_keys(mixer, state, context)
    uniform = keys.to(maps.dtype) / keys.sum(dim=-1, keepdim=True)
    first = torch.zeros_like(uniform)
    first[..., 0] = 1.0  # rows that differ are taken relative to one of the keys
    shared = torch.where(same, uniform, first).expand(*maps.shape[:-2], 1, maps.shape[-1])
    one = _with_scale(shared, torch.where(same, 0.0, maps))
    for heads in head_groups(state, mixer.heads):
        count = heads.stop - heads.start
        yield SplitMaps(
            shared=one.shared.expand(*one.shared.shape[:-3], count, -1, -1),
            rest=one.rest.expand(*one.rest.shape[:-3], count, -1, -1),
            log_scale=one.log_scale.expand(*one.log_scale.shape[:-1], count),
            peak=one.peak.expand(*one.peak.shape[:-3], count, -1, -1),
        )


@split_maps.register(Softmax, Gaussian)
def _softmax(mixer: Softmax | Gaussian, state: Split, context: Context) -> Iterator[SplitMaps]:
    read = readable(mixer, state, context)
    for logits in split_logits(mixer, state, context, read.keys, read.allowed):
        yield from_logits(logits, read)


@dataclass(frozen=True, kw_only=True, slots=True)
class Readable:
    """Which keys queries may read; None stands for all, and for nothing in ``others``.

    Args:
        keys: ``*batch 1 1 tokens``, those that every query may read.
        others: ``*batch 1 tokens tokens``, what single queries may read besides.
        allowed: both together; a query that is padding reads itself.
        is_query: ``*batch 1 tokens``, False on padding.
    """

    keys: Tensor | None = None
    others: Tensor | None = None
    allowed: Tensor | None = None
    is_query: Tensor | None = None


def readable(mixer: Mixer, state: Split, context: Context) -> Readable:
    """Which keys the queries of a mixer may read, all of them and each by itself."""
    allowed = allowed_keys(mixer.rule, state.residual.shape[-2], context, state.residual.device)
    if allowed is None:
        return Readable()
    is_token = state.is_token
    read = allowed if is_token is None else allowed | ~is_token[..., None, :, None]
    keys = read.all(dim=-2, keepdim=True)
    if is_token is not None:
        keys = keys & is_token[..., None, None, :]
    keys = keys if keys.ndim > 2 else keys.unsqueeze(0)
    others = allowed & ~keys
    if is_token is not None:
        others = others & is_token[..., None, :, None]
    return Readable(
        keys=keys,
        others=others if bool(others.any()) else None,
        allowed=allowed,
        is_query=None if is_token is None else is_token.unsqueeze(-2),
    )


def from_logits(logits: SplitLogits, read: Readable) -> SplitMaps:
    """The formula of this file's head, every term divided by the largest scale that occurs."""
    logits = _at_peak(logits, read.keys)
    size = power(logits.log_scale)[..., None, None]
    keys, allowed = read.keys, read.allowed
    if read.others is None or keys is None or allowed is None:  # every query may read the same keys
        return _shared(logits.shared, logits.rest, size, logits.log_scale, keys, None)
    plain = (logits.shared + size * logits.rest).masked_fill(~allowed, -torch.inf)
    apart = torch.softmax(plain, dim=-1)
    share = apart.masked_fill(~keys, 0.0).sum(dim=-1)
    share = share if read.is_query is None else share.masked_fill(~read.is_query, 1.0)
    held = (share.amin(dim=-1) > HELD) & keys.any(dim=-1).squeeze(-1)
    peak = _peak(logits.shared, keys)
    nothing = SplitMaps(
        shared=torch.zeros_like(apart[..., :1, :]).scatter_(-1, peak.expand(*apart.shape[:-2], 1, 1), 1.0),
        rest=apart,
        log_scale=torch.zeros_like(logits.log_scale),
        peak=peak,
    )
    if not bool(held.any()):
        return nothing
    some = keys | ~keys.any(dim=-1, keepdim=True)
    log_sum = torch.logsumexp(logits.shared.masked_fill(~some, -torch.inf), dim=-1, keepdim=True)
    leak = (plain - log_sum).masked_fill(
        ~read.others, -torch.inf
    )  # log of what goes to others, by query and key
    seen = logits.rest.masked_fill(~some, 0.0).abs().amax(dim=(-2, -1)).log()
    largest = torch.maximum(logits.log_scale + seen, torch.logsumexp(leak, dim=-1).amax(dim=-1))
    reference = torch.where(largest > -torch.inf, largest, 0.0).clamp(max=0.0)
    rest = logits.rest * (logits.log_scale - reference).clamp(max=700.0).exp()[..., None, None]
    found = _shared(logits.shared, rest, power(reference)[..., None, None], reference, some, leak)
    here = held[..., None, None]
    return SplitMaps(
        shared=torch.where(here, found.shared, nothing.shared),
        rest=torch.where(here, found.rest, nothing.rest),
        log_scale=torch.where(held, found.log_scale, nothing.log_scale),
        peak=torch.where(here, found.peak, nothing.peak),
    )


def _at_peak(logits: SplitLogits, keys: Tensor | None) -> SplitLogits:
    """The rest with zero at the key that the shared row reads most: a constant per query."""
    column = logits.rest.gather(-1, _peak(logits.shared, keys).expand(*logits.rest.shape[:-1], 1))
    if not bool((column != 0).any()):
        return logits
    return SplitLogits(shared=logits.shared, rest=logits.rest - column, log_scale=logits.log_scale)


def _peak(shared: Tensor, keys: Tensor | None) -> Tensor:
    """The key that the shared row reads most, among those that all may read."""
    return (shared if keys is None else shared.masked_fill(~keys, -torch.inf)).argmax(dim=-1, keepdim=True)


def _shared(
    u: Tensor, v_hat: Tensor, size: Tensor, log_size: Tensor, keys: Tensor | None, leak: Tensor | None
) -> SplitMaps:
    """Maps that share ``softmax(u)`` over ``keys``; hats mark what is divided by ``size``, leak is a logarithm."""
    log_q = torch.log_softmax(u if keys is None else u.masked_fill(~keys, -torch.inf), dim=-1)
    q = log_q.exp()
    v_hat = v_hat if keys is None else v_hat.masked_fill(~keys, 0.0)
    v = size * v_hat
    m_hat = tilted(q, log_q, v_hat, v, size).sum(dim=-1, keepdim=True)
    log_t = None if leak is None else torch.logsumexp(leak, dim=-1, keepdim=True)
    if log_t is not None:
        m_hat = m_hat + (log_t - log_size[..., None, None]).exp()
    m = size * m_hat
    c_hat = m_hat * log1p_ratio(m.clamp(min=-0.5, max=1.0))
    # Rows that read other keys than the shared one: log(1 + m) from the sum itself, since m has lost its digits.
    far = (m <= -0.5) | (m >= 1.0)
    any_far = bool(far.any())
    if any_far:
        total = torch.logsumexp(log_q + v, dim=-1, keepdim=True)
        total = total if log_t is None else torch.logaddexp(total, log_t)
        c_hat = torch.where(far, total / _positive(size), c_hat)
    w_hat = v_hat - c_hat if keys is None else (v_hat - c_hat).masked_fill(~keys, 0.0)
    w, peak = size * w_hat, log_q.argmax(dim=-1, keepdim=True)
    shift = _deep_shift(log_q, w, size * c_hat, log_size, peak, keys, leak, far)
    log_scale = log_size
    if shift is None:
        rest = tilted(q, log_q, w_hat, w, size)
    else:
        log_scale = log_size + shift[..., 0, 0]
        # In these units the entry at the peak, which is not needed, would be beyond the floats.
        raised = (log_q - shift).scatter(-1, peak, -torch.inf)
        rest = tilted(raised.exp(), raised, w_hat, w, size)
    if leak is not None:
        exponent = leak - size * c_hat - log_size[..., None, None]
        rest = rest + (exponent if shift is None else exponent - shift).exp()
    if any_far:  # plain differences, which are of order one there
        full = log_q + v
        full = full if leak is None else torch.where(leak > -torch.inf, leak, full)
        plain = (torch.softmax(full, dim=-1) - q) / _positive(size)
        rest = torch.where(far, plain, rest)  # heads with such rows are not shifted
    return SplitMaps(shared=q, rest=rest, log_scale=log_scale, peak=peak)


def _deep_shift(
    log_q: Tensor,
    w: Tensor,
    c: Tensor,
    log_size: Tensor,
    peak: Tensor,
    keys: Tensor | None,
    leak: Tensor | None,
    far: Tensor,
) -> Tensor | None:
    """The largest exponent of what goes to keys other than the one at ``peak``, where all of it is next to nothing.

    ``*batch heads 1 1``, zero for heads where there is no need to factor it out, because some row reads another key;
    None if that is all of them.
    """
    if log_q.shape[-1] < 2:
        return None
    second = log_q.scatter(-1, peak, -torch.inf).amax(dim=(-2, -1))
    if not bool((second < DEEP).any()):
        return None
    reach = (log_q + w.clamp(min=0.0)).scatter(-1, peak.expand(*w.shape[:-1], 1), -torch.inf)
    reach = reach if keys is None else reach.masked_fill(~keys, -torch.inf)
    reach = reach.amax(dim=(-2, -1))
    if leak is not None:
        reach = torch.maximum(reach, (leak - c).amax(dim=(-2, -1)) - log_size)
    deep = (second < DEEP) & (reach < DEEP) & (reach > -torch.inf) & ~far.any(dim=-2).squeeze(-1)
    return torch.where(deep, reach, 0.0)[..., None, None]


def _first_keys(mixer: Mixer, state: Split, context: Context) -> tuple[Tensor, Tensor]:
    """Keys that the first query may read (``*batch 1 1 tokens``), and whether every query may read just those."""
    tokens, device = state.residual.shape[-2], state.residual.device
    allowed = allowed_keys(mixer.rule, tokens, context, device)
    if allowed is None:
        every = torch.ones(1, 1, tokens, dtype=torch.bool, device=device)
        return every, every[..., :1]
    if state.is_token is None:
        first = allowed[..., :1, :]
        return first.unsqueeze(0), (allowed == first).all(dim=(-2, -1), keepdim=True).unsqueeze(0)
    is_token = state.is_token[..., None, :, None]
    place = state.is_token.long().argmax(dim=-1)[..., None, None, None]
    allowed = allowed.expand(*state.is_token.shape[:-1], 1, tokens, tokens)
    first = allowed.gather(-2, place.expand(*place.shape[:-1], tokens))
    return first, ((allowed == first) | ~is_token).all(dim=-2, keepdim=True).all(dim=-1, keepdim=True)


def tilted(q: Tensor, log_q: Tensor, v_hat: Tensor, v: Tensor, size: Tensor) -> Tensor:
    """``q expm1(v) / size``; where v exceeds one the two terms are far apart, and apart they cannot overflow."""
    least, most = v.aminmax()
    if max(-float(least), float(most)) < NEGLIGIBLE:
        return q * v_hat
    if not float(most) > 1.0:
        return expm1_ratio(v).mul_(v_hat).mul_(q)
    near = expm1_ratio(v.clamp(max=1.0)).mul_(v_hat).mul_(q)
    return torch.where(v > 1.0, ((log_q + v).exp() - q) / _positive(size), near)


def _positive(size: Tensor) -> Tensor:
    return torch.where(size > 0, size, 1.0)


def _with_scale(shared: Tensor, rest: Tensor) -> SplitMaps:
    """``rest`` divided by its largest entry; minus infinity where nothing is left."""
    largest = rest.abs().amax(dim=(-2, -1))
    return SplitMaps(
        shared=shared,
        rest=rest / _positive(largest)[..., None, None],
        log_scale=largest.log(),
        peak=torch.zeros_like(largest, dtype=torch.long)[..., None, None],
    )
