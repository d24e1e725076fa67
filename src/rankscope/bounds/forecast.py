"""Mean token cosine by layer at initialisation, from the shape of a network and the size of its weights alone."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.bounds.forecast_tokens import Tokens, activated, fresh_tokens, mixed, normed, reread
from rankscope.errors import ConfigError
from rankscope.masks import Full, parse_mask

Placement = Literal["post", "pre", "sandwich", "parallel"]

SMALL_LOGITS = 0.5
"""The rule for attention is of first order; it holds while the variance of logits is below this times log tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outline:
    """A network as far as the covariance of its tokens is concerned.

    Args:
        layers: blocks.
        dim: channels of a token.
        tokens: how many.
        attention_gain: what a branch makes of the variance of the tokens that attention averages: for value and output
            maps with entries of variance ``s`` and ``t`` and ``w`` inner channels ``s dim t w``, times the square of
            a scale on the branch.
        logit_variance: variance of a logit between two tokens of variance one.
        up_gain: variance inside the MLP for tokens of variance one.
        gate_gain: the same of its gate; None without one.
        down_gain: variance that the MLP puts out for inner entries of mean square one.
        activation: name of the function inside the MLP.
        placement: where norms stand.
        norm: which norm; ``sphere`` gives tokens the length one instead of ``sqrt(dim)``.
        eps: of the norm.
        has_skip: whether branches have skips.
        has_mlp: whether there are MLPs.
        skip_scale: factor of every skip.
        same_channels: value maps are the identity, so that what attention adds is not independent of the stream.
        mask: mask rule.
        slope: of a penalty on logits, ``-slope |i - j|``.
        start_variance: of the tokens that enter the first block.
        start_cosine: between any two of them.
    """

    layers: int
    dim: int
    tokens: int
    attention_gain: float
    logit_variance: float
    up_gain: float = 1.0
    gate_gain: float | None = None
    down_gain: float = 1.0
    activation: str = "relu"
    placement: Placement = "post"
    norm: Literal["none", "layer", "rms", "sphere"] = "none"
    eps: float = 0.0
    has_skip: bool = True
    has_mlp: bool = True
    skip_scale: float = 1.0
    same_channels: bool = False
    mask: str = "full"
    slope: float = 0.0
    start_variance: float = 1.0
    start_cosine: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 2 or self.layers < 1:
            raise ConfigError(
                f"a forecast needs at least two tokens and one layer, got tokens={self.tokens}, layers={self.layers}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Expected mean cosine of two different tokens after layers 0 .. L, and what the forecast leaves out.

    Args:
        cosines: one for each layer.
        logits: largest variance of logits met.
        notes: where the assumptions are stretched.
    """

    cosines: tuple[float, ...]
    logits: float
    notes: tuple[str, ...] = ()

    def passes(self, threshold: float) -> int | None:
        """The first layer whose cosine is above ``threshold``, or None.

        >>> Forecast(cosines=(0.0, 0.5, 0.95), logits=0.0).passes(0.9)
        2
        """
        return next((layer for layer, cosine in enumerate(self.cosines) if cosine > threshold), None)


def forecast(outline: Outline) -> Forecast:
    """The expected mean token cosine of every layer of a network with random weights.

    >>> found = forecast(Outline(layers=4, dim=64, tokens=64, attention_gain=1.0, logit_variance=0.0, has_mlp=False,
    ...                          norm="layer"))
    >>> [round(cosine, 3) for cosine in found.cosines]
    [0.0, 0.015, 0.045, 0.099, 0.19]
    """
    rule = parse_mask(outline.mask)
    base = None if rule == Full() and not outline.slope else _base(outline)
    tokens = fresh_tokens(
        outline.tokens, variance=outline.start_variance, cosine=outline.start_cosine, alike=base is None
    )
    walk = _Walk(outline=outline, base=base)
    cosines = [tokens.cosine()]
    for _ in range(outline.layers):
        tokens = walk.block(tokens)
        if not bool(torch.isfinite(tokens.same).all()) or not bool((tokens.same > 0).all()):
            raise ConfigError(
                f"the variance of tokens leaves the range of floats at layer {len(cosines)} of {outline.layers}; "
                "without norms a forecast needs branches that keep sizes"
            )
        cosines.append(tokens.cosine())
    limit = SMALL_LOGITS * math.log(outline.tokens)
    note = (
        f"logits have a variance of up to {walk.logits:.2g}, above {limit:.2g}: attention is far from uniform, and the "
        "forecast is rough"
    )
    return Forecast(cosines=tuple(cosines), logits=walk.logits, notes=(note,) if walk.logits > limit else ())


def _base(outline: Outline) -> Tensor:
    """The map of tokens that are all equal, ``tokens tokens``."""
    allowed = torch.as_tensor(parse_mask(outline.mask).matrix(outline.tokens))
    place = torch.arange(outline.tokens, dtype=torch.float64)
    penalty = -outline.slope * (place.unsqueeze(-1) - place).abs()
    return torch.softmax(penalty.masked_fill(~allowed, -torch.inf), dim=-1)


class _Walk:
    """One pass of covariances through the blocks."""

    def __init__(self, *, outline: Outline, base: Tensor | None) -> None:
        self.outline, self.base, self.logits = outline, base, 0.0

    def block(self, tokens: Tokens) -> Tokens:
        """What a block makes of the covariances."""
        o = self.outline
        if o.placement == "parallel":
            read = self._normed(tokens)
            total = self._attention(tokens, read)
            if o.has_mlp:
                total = total.plus(self._mlp(read))
            return tokens.times(o.skip_scale**2).plus(total) if o.has_skip else total
        branches = [self._attention, *([self._with_mlp] if o.has_mlp else [])]
        for branch in branches:
            read = tokens if o.placement == "post" else self._normed(tokens)
            added = branch(tokens, read)
            if o.placement == "sandwich":
                added = self._normed(added)
            tokens = tokens.times(o.skip_scale**2).plus(added) if o.has_skip else added
            if o.placement == "post":
                tokens = self._normed(tokens)
        return tokens

    def _attention(self, stream: Tokens, read: Tokens) -> Tokens:
        """What attention adds to the covariances of the stream."""
        o = self.outline
        self.logits = max(self.logits, float(o.logit_variance * read.same.max().square()))
        out = mixed(read, self.base, o.logit_variance).times(o.attention_gain)
        if not (o.same_channels and o.has_skip) or o.placement == "sandwich":
            return out
        scale = (read.same / stream.same).sqrt()
        cross = reread(stream, self.base, scale)
        return out.plus(cross.times(2 * o.skip_scale * math.sqrt(o.attention_gain)))

    def _with_mlp(self, stream: Tokens, read: Tokens) -> Tokens:
        return self._mlp(read)

    def _mlp(self, read: Tokens) -> Tokens:
        o = self.outline
        inner, gate = read.times(o.up_gain), o.gate_gain
        passed = activated(inner if gate is None else read.times(gate), o.activation)
        if gate is not None:
            passed = Tokens(same=passed.same * inner.same, pairs=passed.pairs * inner.pairs, count=read.count)
        return passed.times(o.down_gain)

    def _normed(self, tokens: Tokens) -> Tokens:
        o = self.outline
        if o.norm == "none":
            return tokens
        if o.norm == "sphere":
            return normed(tokens, eps=o.eps / o.dim, size=1 / o.dim)
        return normed(tokens, eps=o.eps, size=1.0)
