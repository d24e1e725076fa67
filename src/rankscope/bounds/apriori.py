"""What weights alone say about every input: how much each block keeps or enlarges the spread of tokens.

The spread is the largest distance between two tokens, ``max_ij |x_i - x_j|_2``: row-stochastic maps never enlarge it,
whatever the number of tokens, so nothing here depends on the text. Rules of the parts, D the spread that enters:

* attention: ``D' <= D sum_h w_h`` with ``w_h = |V_h O_h|_2``; unmasked and without positions
  ``D' <= D sum_h w_h tanh(s_h D^2 / 4)`` with ``s_h = |Q_h K_h^T|_2 / sqrt(d_qk)``, because the maps of two rows differ
  by at most ``tanh(s_h D^2 / 4)`` in total variation. No lower bound: averages may coincide.
* skip of scale s around a branch of gain k: ``(|s| - k) D <= D' <= (|s| + k) D``.
* MLP: ``D' <= L |U|_2 |D|_2 D`` with L the largest slope of the activation (Dong, Cordonnier, Loukas 2021, Corollary
  3.2); with a gate no such number exists unless tokens are bounded.
* norms: ``D' <= D max|gain| / sqrt(eps)``, and at most ``2 max|gain| sqrt(dim)`` whatever D. No lower bound: tokens
  that differ in length alone become equal.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankscope.bounds.apriori_norms import Norms
from rankscope.bounds.assumption import Assumption
from rankscope.bounds.contraction import dobrushin_bound
from rankscope.bounds.logs import log_difference, log_sum, log_tanh, lowered, raised
from rankscope.bounds.slopes import lipschitz
from rankscope.core.numerics import broadcast
from rankscope.errors import NotUnderstood
from rankscope.masks import Full
from rankscope.network import (
    Attention,
    Chain,
    Fixed,
    Mlp,
    NoPosition,
    Norm,
    Part,
    Scale,
    Skip,
    Softmax,
    Sphere,
    Sum,
    Uniform,
)
from rankscope.network.known import NORMS, interpreter

NAME = "the a-priori bounds"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Region:
    """A set of token matrices; every number is a natural logarithm ``*seeds``.

    Args:
        low: the spread is at least this; minus infinity if nothing is known.
        high: the spread is at most this.
        size: no token is longer than this.
    """

    low: Tensor
    high: Tensor
    size: Tensor

    @classmethod
    def of(cls, spread: float | Tensor | None = None, size: float | Tensor | None = None) -> "Region":
        """All tokens, those of one spread, those that are not longer than ``size``, or both."""
        low, high = (0.0, math.inf) if spread is None else (spread, spread)
        longest = math.inf if size is None else size
        logs = [torch.as_tensor(value, dtype=torch.float64).log() for value in (low, high, longest)]
        return cls(low=logs[0], high=logs[1], size=logs[2]).tight()

    def tight(self) -> "Region":
        """The same, its spread at most twice its size."""
        return replace(self, high=torch.minimum(self.high, raised(self.size + math.log(2))))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Effect:
    """What a part does to every token matrix of a region; gains are natural logarithms ``*seeds``.

    Args:
        lower: the spread that leaves is at least so many times the one that enters.
        upper: the same, at most.
        after: what is known of the tokens that leave.
        no_lower: why nothing is proven from below, if so: the first part to blame first.
        no_upper: why nothing, or no contraction, is proven from above.
    """

    lower: Tensor
    upper: Tensor
    after: Region
    no_lower: tuple[Assumption, ...] = ()
    no_upper: tuple[Assumption, ...] = ()


APRIORI = interpreter(NAME, "remove it, or write it as Chain, Sum, Skip, Scale, Attention, Mlp and norms")


@APRIORI.rules
def effect(part: Part, region: Region, norms: Norms) -> Effect:  # type: ignore[empty-body]
    """What ``part`` does to every token matrix of ``region``."""


@effect.register
def _chain(part: Chain, region: Region, norms: Norms) -> Effect:
    zero = torch.zeros_like(region.high)
    whole = Effect(lower=zero, upper=zero, after=region)
    for child in part.parts:
        own = effect(child, whole.after, norms)
        whole = Effect(
            lower=product_down(whole.lower, own.lower),
            upper=product_up(whole.upper, own.upper),
            after=own.after,
            no_lower=whole.no_lower + own.no_lower,
            no_upper=whole.no_upper + own.no_upper,
        )
    return whole


@effect.register
def _sum(part: Sum, region: Region, norms: Norms) -> Effect:
    nothing = torch.full_like(region.high, -torch.inf)
    if not len(part.parts):
        return Effect(lower=nothing, upper=nothing, after=Region(low=nothing, high=nothing, size=nothing))
    found = [effect(child, region, norms) for child in part.parts]
    uppers, highs = [one.upper for one in found], [one.after.high for one in found]
    lower = _best_difference([one.lower for one in found], uppers)
    low = torch.maximum(
        _best_difference([one.after.low for one in found], highs), product_down(lower, region.low)
    )
    upper = log_sum(*uppers)
    after = Region(
        low=low,
        high=torch.minimum(log_sum(*highs), product_up(upper, region.high)),
        size=log_sum(*(one.after.size for one in found)),
    )
    reason = Assumption.of(
        "branch that outweighs the others of its sum", torch.isfinite(lower), says="branches may cancel"
    )
    return Effect(
        lower=lower,
        upper=upper,
        after=after.tight(),
        no_lower=_failing(reason),
        no_upper=tuple(why for one in found for why in one.no_upper),
    )


@effect.register
def _skip(part: Skip, region: Region, norms: Norms) -> Effect:
    inner = effect(part.inner, region, norms)
    least, most = norms.factors(part)
    lower = torch.maximum(log_difference(least, inner.upper), log_difference(inner.lower, most))
    kept = log_difference(product_down(least, region.low), inner.after.high)
    upper = log_sum(most, inner.upper)
    high = log_sum(product_up(most, region.high), inner.after.high)
    after = Region(
        low=torch.maximum(kept, product_down(lower, region.low)),
        high=torch.minimum(high, product_up(upper, region.high)),
        size=log_sum(product_up(most, region.size), inner.after.size),
    )
    reason = Assumption.below(
        f"{_about(part)} branch smaller than its skip",
        inner.upper.exp(),
        lowered(least).exp(),
        says="a branch that can be as large as the skip can cancel it; scale the branch down or the skip up",
    )
    return Effect(
        lower=lower,
        upper=upper,
        after=after.tight(),
        no_lower=() if bool(torch.isfinite(lower).all()) else (reason,),
        no_upper=inner.no_upper,
    )


@effect.register
def _scale(part: Scale, region: Region, norms: Norms) -> Effect:
    least, most = norms.factors(part)
    after = Region(
        low=product_down(least, region.low),
        high=product_up(most, region.high),
        size=product_up(most, region.size),
    )
    reason = Assumption.of(
        "scale without a zero channel",
        torch.isfinite(least),
        says="tokens that differ in that channel become equal",
    )
    return Effect(
        lower=least.expand_as(after.low),
        upper=most.expand_as(after.high),
        after=after,
        no_lower=_failing(reason),
    )


@effect.register
def _attention(part: Attention, region: Region, norms: Norms) -> Effect:
    held = norms.heads(part)
    mixing, reason = _mixing(part, region, held.logits)
    upper = log_sum(*product_up(held.values, mixing).unbind(dim=-1))
    size = log_sum(product_up(log_sum(*held.values.unbind(dim=-1)), region.size), held.bias)
    after = Region(low=torch.full_like(upper, -torch.inf), high=product_up(upper, region.high), size=size)
    alone = Assumption.of(
        f"skip around {part.site}", False, says="attention averages tokens; its averages may all be equal"
    )
    return Effect(
        lower=after.low, upper=upper, after=after.tight(), no_lower=(alone,), no_upper=_failing(reason)
    )


@effect.register
def _mlp(part: Mlp, region: Region, norms: Norms) -> Effect:
    if math.isinf(lipschitz(part.activation)):
        raise NotUnderstood(
            part,
            NAME,
            f"its activation {part.activation.name} has no largest slope; certify bounds it on tokens",
        )
    held = norms.mlp(part)
    upper = held.lipschitz
    if held.gate is not None:
        entries = [_largest(*pair, region.size) for pair in zip(held.columns, held.biases, strict=True)]
        # |f(a) b - f(a') b'| <= |f(a)|_inf |b - b'| + |b'|_inf |f(a) - f(a')|, and |f(a)| <= |a| for all activations
        linear, curved = product_up(entries[1], held.up), product_up(entries[0], held.gate + held.slope)
        upper = product_up(held.down, log_sum(linear, curved))
    upper = raised(upper.expand(broadcast(upper.shape, region.size.shape)))
    size = log_sum(product_up(upper, region.size), held.at_zero)
    after = Region(low=torch.full_like(upper, -torch.inf), high=product_up(upper, region.high), size=size)
    bounded = Assumption.of(
        f"bounded tokens before the gated {part.site}",
        torch.isfinite(upper),
        says="a product of two maps has no largest slope; give the size of tokens, or put a norm before it",
    )
    alone = Assumption.of(f"skip around {part.site}", False, says="an MLP may map different tokens to one")
    return Effect(
        lower=after.low, upper=upper, after=after.tight(), no_lower=(alone,), no_upper=_failing(bounded)
    )


@effect.register(*NORMS)
def _norm(part: Norm, region: Region, norms: Norms) -> Effect:
    gain, bias = norms.gains(part)
    side = 1 if isinstance(part, Sphere) else norms.dim
    longest = gain + (math.log(side) / 2 if side else math.inf)
    steepest = raised(gain - (math.log(part.eps) / 2 if part.eps > 0 else -math.inf))
    upper = steepest.expand_as(region.high + steepest)
    high = torch.minimum(product_up(upper, region.high), raised(longest + math.log(2)))
    after = Region(
        low=torch.full_like(high, -torch.inf),
        high=high,
        size=log_sum(torch.minimum(product_up(upper, region.size), longest), bias).expand_as(high),
    )
    kind = type(part).__name__
    sizes = Assumption.of(
        f"stream free of {kind}", False, says="tokens that differ in length alone become equal"
    )
    steep = Assumption.of(
        f"eps above zero in {kind}", part.eps > 0, says="near zero a norm without eps is infinitely steep"
    )
    return Effect(
        lower=after.low, upper=upper, after=after.tight(), no_lower=(sizes,), no_upper=_failing(steep)
    )


def _mixing(part: Attention, region: Region, logits: Tensor | None) -> tuple[Tensor, Assumption]:
    """Logarithm of how much the map of each head contracts at least, ``*seeds heads``; why not more."""
    mixer, name = part.mixer, f"unmasked {part.site} of content alone"
    one = torch.zeros((*region.high.shape, mixer.heads), dtype=torch.float64)
    if isinstance(mixer, Fixed):
        maps = mixer.maps.double()
        rounding = 4 * maps.shape[-1] * torch.finfo(torch.float64).eps
        tau = (dobrushin_bound(maps / maps.sum(dim=-1, keepdim=True)) + rounding).clamp(max=1.0)
        return tau.log(), Assumption.of(name, True)
    if not isinstance(mixer, Softmax | Uniform):
        raise NotUnderstood(mixer, NAME)  # known to rules of a user, which alone can say what it does
    found = _not_content(mixer)
    if found is not None:
        return one, Assumption.of(
            name,
            False,
            says=f"{found}: the bound by content alone does not apply",
        )
    if isinstance(mixer, Uniform) or logits is None:
        return torch.full_like(one, -torch.inf), Assumption.of(name, True)
    exponent = product_up(logits, raised(2 * region.high).unsqueeze(-1))
    return raised(log_tanh(raised(exponent - math.log(4)))), Assumption.of(name, True)


def _largest(columns: Tensor, bias: Tensor, log_size: Tensor) -> Tensor:
    """Logarithm of the largest entry of ``x M + bias`` for tokens no longer than ``exp(log_size)``, ``*seeds``."""
    entries = columns * log_size.exp().unsqueeze(-1) + bias
    return raised(torch.where(entries.isnan(), torch.inf, entries).amax(dim=-1).log())


def _not_content(mixer: Softmax | Uniform) -> str | None:
    """What besides the differences of tokens tells rows of the map apart, or None."""
    if mixer.rule != Full():
        return f"it has the mask {mixer.rule}"
    if isinstance(mixer, Uniform):
        return None
    if not isinstance(mixer.position, NoPosition):
        return f"positions enter its logits ({type(mixer.position).__name__})"
    if mixer.softcap is not None:
        return f"its logits have a soft-cap of {mixer.softcap:g}"
    if mixer.query_norm is not None or mixer.key_norm is not None:
        return "its queries or keys are normed"
    return None


def product_up(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Logarithm of a product of upper bounds, rounded up; zero times anything is zero, also times infinity."""
    return raised(_product(log_a, log_b))


def product_down(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Logarithm of a product of lower bounds, rounded down; zero times anything is zero."""
    return lowered(_product(log_a, log_b))


def _product(log_a: Tensor, log_b: Tensor) -> Tensor:
    zero = torch.isneginf(log_a) | torch.isneginf(log_b)
    return torch.where(zero, -torch.inf, log_a + log_b)


def _best_difference(wholes: list[Tensor], others: list[Tensor]) -> Tensor:
    """The largest of ``wholes[i] - sum of the others[j], j != i``, as logarithms."""
    if len(wholes) == 1:
        return wholes[0]
    rests = [log_sum(*others[:k], *others[k + 1 :]) for k in range(len(others))]
    return torch.stack([log_difference(a, b) for a, b in zip(wholes, rests, strict=True)]).amax(dim=0)


def _failing(assumption: Assumption) -> tuple[Assumption, ...]:
    return () if bool(assumption.holds.all()) else (assumption,)


def _about(part: Skip) -> str:
    """The sites inside a skip, as words."""
    sites = [str(inner.site) for inner in part.modules() if isinstance(inner, Attention | Mlp)]
    return " and ".join(dict.fromkeys(sites)) or type(part.inner).__name__
