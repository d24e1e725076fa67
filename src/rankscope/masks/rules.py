"""The rules of the mask grammar, one final dataclass each. i is the query, j the key, both from 0."""

from dataclasses import dataclass, field
from typing import final

import numpy as np
from scipy.sparse import csr_array

from rankscope.errors import MaskError
from rankscope.masks import patterns
from rankscope.masks.patterns import MaskArray, SparseMask
from rankscope.masks.rule import NamedRule, register

_FROM_0 = {"least": 0}
_FROM_1 = {"least": 1}


class HereditaryRule(NamedRule):
    """A rule in which whether i reads j never depends on the number of tokens."""

    __slots__ = ()

    @property
    def hereditary(self) -> bool:
        return True


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Full(HereditaryRule):
    grammar = "full"
    definition = "every query reads every key"

    def _array(self, tokens: int) -> MaskArray:
        return np.ones((tokens, tokens), dtype=np.bool_)

    def _pattern(self, tokens: int) -> SparseMask:
        return csr_array(self._array(tokens))


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Causal(HereditaryRule):
    grammar = "causal"
    definition = "query i reads the keys j <= i"

    def _array(self, tokens: int) -> MaskArray:
        return np.tri(tokens, dtype=np.bool_)

    def _pattern(self, tokens: int) -> SparseMask:
        return csr_array(self._array(tokens))


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Window(HereditaryRule):
    grammar = "window:w"
    definition = "query i reads the keys j with |i - j| <= w"

    width: int = field(metadata=_FROM_0)

    def _pattern(self, tokens: int) -> SparseMask:
        return patterns.window(tokens, self.width)


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CausalWindow(HereditaryRule):
    grammar = "causal-window:w"
    definition = "query i reads the keys j with 0 <= i - j <= w"

    width: int = field(metadata=_FROM_0)

    def _pattern(self, tokens: int) -> SparseMask:
        return patterns.band(tokens, np.arange(min(self.width, tokens - 1) + 1))


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Dilated(HereditaryRule):
    grammar = "dilated:w:step"
    definition = "query i reads the keys j with |i - j| <= w * step and i - j a multiple of step"

    width: int = field(metadata=_FROM_0)
    step: int = field(metadata=_FROM_1)

    def _pattern(self, tokens: int) -> SparseMask:
        step = min(
            self.step, tokens
        )  # a longer step reaches nobody but the query itself, and fits in 64 bits
        reach = min(self.width, (tokens - 1) // step)
        return patterns.band(tokens, step * np.arange(-reach, reach + 1))


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Strided(HereditaryRule):
    grammar = "strided:s"
    definition = (
        "query i reads the keys j with |i - j| < s or i - j a multiple of s "
        "(the strided pattern of sparse transformers, both ways)"
    )

    stride: int = field(metadata=_FROM_1)

    def _pattern(self, tokens: int) -> SparseMask:
        distance = np.arange(1 - tokens, tokens)
        stride = min(self.stride, tokens)
        return patterns.band(tokens, distance[(np.abs(distance) < stride) | (distance % stride == 0)])


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix(HereditaryRule):
    grammar = "prefix:K"
    definition = "query i reads the keys j < K, and itself"

    keys: int = field(metadata=_FROM_1)

    def _pattern(self, tokens: int) -> SparseMask:
        return patterns.first_keys(tokens, self.keys) + patterns.window(tokens, 0)


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Longformer(HereditaryRule):
    grammar = "longformer:w:g"
    definition = (
        "|i - j| <= w, or i < g, or j < g: a window, and g global tokens that read all and are read by all"
    )

    width: int = field(metadata=_FROM_0)
    global_tokens: int = field(metadata=_FROM_0)

    def _pattern(self, tokens: int) -> SparseMask:
        return patterns.window_and_globals(tokens, self.width, self.global_tokens)


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class BigBird(NamedRule):
    grammar = "bigbird:w:g:r[:seed]"
    definition = (
        "longformer:w:g, and for every query r random keys more (all if fewer are left), "
        "drawn from the seed (0 unless given) and the number of tokens"
    )

    width: int = field(metadata=_FROM_0)
    global_tokens: int = field(metadata=_FROM_0)
    random_keys: int = field(metadata=_FROM_0)
    seed: int = field(default=0, metadata=_FROM_0)

    @property
    def hereditary(self) -> bool:
        return False

    def _pattern(self, tokens: int) -> SparseMask:
        width, global_tokens = min(self.width, tokens), min(self.global_tokens, tokens)
        return patterns.window_and_globals(tokens, width, global_tokens) + patterns.random_other_keys(
            tokens, width, global_tokens, min(self.random_keys, tokens), self.seed
        )


@register
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks(NamedRule):
    grammar = "blocks:k"
    definition = (
        "k contiguous blocks, complete inside, no edge between; of n >= k tokens the first n mod k blocks hold "
        "floor(n / k) + 1, the others floor(n / k)"
    )

    count: int = field(metadata=_FROM_1)

    @property
    def hereditary(self) -> bool:
        return False

    def _pattern(self, tokens: int) -> SparseMask:
        if tokens < self.count:
            raise MaskError(
                f"the mask {self.text} was asked for {tokens} tokens; "
                f"{self.count} blocks need at least {self.count} tokens"
            )
        return patterns.diagonal_blocks(tokens, self.count)
