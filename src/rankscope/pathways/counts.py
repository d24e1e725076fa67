"""How many paths a network has, exactly, and how long they are.

A path picks one head, or none, at every attention part. With skips around ``L`` layers of ``H`` heads there are
``C(L, k) H^k`` paths of length ``k`` and ``(1 + H)^L`` in all (Dong, Cordonnier, Loukas 2021, on skip connections), so
the length of a path taken at random is binomial with mean ``L H / (H + 1)``: by number, paths are long.

For any tree the numbers are the coefficients of a polynomial in ``z``, one power for each head on the path: ``H z`` for
an attention, ``1`` for a part without heads, products along chains, sums over branches, and ``1`` added by a skip.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import add
from typing import Literal, TypeVar, overload

from rankscope.core.registry import Registry
from rankscope.errors import ConfigError
from rankscope.network import (
    Attention,
    Chain,
    CrossAttention,
    GatedAttention,
    Mlp,
    Network,
    Opaque,
    Part,
    Scale,
    SequenceMap,
    Skip,
    Sum,
    TokenMap,
    ValueResidual,
)
from rankscope.network.known import NORMS, check_tree
from rankscope.pathways.path import PATHS

T = TypeVar("T")

Counts = Mapping[tuple[int, int], int]
"""How many choices take so many heads and pass so many MLPs; what is not listed is zero."""

EMPTY = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What can be chosen below a part: how many attention parts it has, and how many choices there are."""

    sites: int
    counts: Counts


@dataclass(frozen=True, slots=True, eq=False)
class Pass(Choices):
    """Nothing to choose."""


@dataclass(frozen=True, slots=True, eq=False)
class Pick(Choices):
    """One of the heads of an attention, or the one way through an MLP."""


@dataclass(frozen=True, slots=True, eq=False)
class Both(Choices):
    """A choice in the first and one in the second."""

    first: Choices
    second: Choices


@dataclass(frozen=True, slots=True, eq=False)
class Either(Choices):
    """A choice in one of the two and nothing in the other; nothing at all is one choice, however it comes about."""

    first: Choices
    second: Choices


@dataclass(frozen=True, slots=True, eq=False)
class Maybe(Choices):
    """A choice inside, or nothing at all."""

    inner: Choices


ONE_WAY = Pass(0, {EMPTY: 1})
NO_WAY = Pass(0, {})


def choices_of(part: Part | Network, *, mlps: bool = False) -> Choices:
    """What a path can choose in a part or network; with ``mlps`` also which MLPs it passes."""
    check_tree(PATHS, part)
    if not isinstance(part, Network):
        return _choices(part, mlps)
    blocks = {block: _choices(block, mlps) for block in part.blocks}  # a block used twice is looked at once
    return _joined(_both, [blocks[block] for block in part.blocks], ONE_WAY)


@PATHS.rules
def _choices(part: Part, mlps: bool) -> Choices: ...  # type: ignore[empty-body]


@_choices.register
def _chain(part: Chain, mlps: bool) -> Choices:
    return _joined(_both, [_choices(child, mlps) for child in part.parts], ONE_WAY)


@_choices.register
def _sum(part: Sum, mlps: bool) -> Choices:
    return _joined(_either, [_choices(child, mlps) for child in part.parts], NO_WAY)


@_choices.register
def _skip(part: Skip, mlps: bool) -> Choices:
    inner = _choices(part.inner, mlps)
    if isinstance(part.scale, float) and part.scale == 0.0:
        return inner
    return Maybe(inner.sites, dict(sorted({**inner.counts, EMPTY: 1}.items())), inner)


@_choices.register
def _attention(part: Attention, mlps: bool) -> Choices:
    return Pick(1, {(1, 0): part.values.heads})


@_choices.register(Mlp, TokenMap)
def _mlp(part: Mlp | TokenMap, mlps: bool) -> Choices:
    return Pick(0, {(0, 1): 1}) if mlps else ONE_WAY


@_choices.register(Scale, CrossAttention, Opaque, *NORMS)
@_choices.register(GatedAttention, ValueResidual, SequenceMap)
def _leaf(part: Part, mlps: bool) -> Choices:
    return ONE_WAY


def _both(first: Choices, second: Choices) -> Choices:
    if first is ONE_WAY or second is ONE_WAY:
        return second if first is ONE_WAY else first
    return Both(first.sites + second.sites, _product(first.counts, second.counts), first, second)


def _either(first: Choices, second: Choices) -> Choices:
    counts = dict(first.counts)
    for degree, count in second.counts.items():
        counts[degree] = 1 if degree == EMPTY else counts.get(degree, 0) + count
    return Either(first.sites + second.sites, dict(sorted(counts.items())), first, second)


def _joined(join: Callable[[T, T], T], items: Iterable[T], empty: T) -> T:
    """All items joined two by two, so that the tree of joins is low; the same two are joined only once."""
    left = list(items)
    while len(left) > 1:
        done: dict[tuple[int, int], T] = {}
        for first, second in zip(left[::2], left[1::2], strict=False):
            if (id(first), id(second)) not in done:
                done[id(first), id(second)] = join(first, second)
        joined = [done[id(first), id(second)] for first, second in zip(left[::2], left[1::2], strict=False)]
        left = [*joined, *left[len(left) // 2 * 2 :]]
    return left[0] if left else empty


def _product(a: Counts, b: Counts) -> Counts:
    """The product of two polynomials as one product of two long integers, which Python does fast.

    Each is written as a number whose digits are its coefficients, in a base so large that no sum carries over.
    """
    if not a or not b:
        return {}
    columns = 1 + max(m for _, m in a) + max(m for _, m in b)
    digit = (sum(a.values()) * sum(b.values())).bit_length() // 8 + 1
    product = _packed(a, columns, digit) * _packed(b, columns, digit)
    laid = product.to_bytes(product.bit_length() // 8 + 1, "little")
    found = (
        (divmod(start // digit, columns), int.from_bytes(laid[start : start + digit], "little"))
        for start in range(0, len(laid), digit)
    )
    return {degree: count for degree, count in found if count}


def _packed(counts: Counts, columns: int, digit: int) -> int:
    laid = bytearray((1 + max(k for k, _ in counts)) * columns * digit)
    for (k, m), count in counts.items():
        start = (k * columns + m) * digit
        laid[start : start + digit] = count.to_bytes(digit, "little")
    return int.from_bytes(laid, "little")


def path_counts(heads: Sequence[int], *, skip: bool | Sequence[bool] = True) -> tuple[int, ...]:
    """How many paths of length 0, 1, ... there are through layers of so many heads each.

    With skips everywhere these are the elementary symmetric polynomials of ``heads``; a layer without a skip is on
    every path. ``skip`` is one answer for all layers or one for each.

    >>> path_counts([2, 3])
    (1, 5, 6)
    >>> path_counts([2, 3], skip=[True, False])
    (0, 3, 6)
    >>> sum(path_counts([12] * 12))  # BERT-base
    23298085122481
    """
    skips = [skip] * len(heads) if isinstance(skip, bool) else list(skip)
    if len(skips) != len(heads):
        raise ConfigError(
            f"{len(skips)} answers about skips were given for {len(heads)} layers; give one for each, or one for all"
        )
    for layer, count in enumerate(heads, start=1):
        if type(count) is not int or count < 1:
            raise ConfigError(f"layer {layer} has {count!r} heads; give a whole number of at least 1")
    counts = [1]
    for own, passes in zip(heads, skips, strict=True):
        through = [0, *(own * count for count in counts)]
        counts = list(map(add, through, [*counts, 0])) if passes else through
    return tuple(counts)


@overload
def counts_of(part: Part | Network, *, mlps: Literal[False] = False) -> tuple[int, ...]: ...
@overload
def counts_of(part: Part | Network, *, mlps: Literal[True]) -> dict[tuple[int, int], int]: ...
def counts_of(part: Part | Network, *, mlps: bool = False) -> tuple[int, ...] | dict[tuple[int, int], int]:
    """How many paths of length 0, 1, ... a part or network has; with ``mlps`` by number of heads and of MLPs.

    MLPs, norms and scales are no choices by default, so nothing chosen is one path wherever it is possible, also where
    several branches allow it. With ``mlps`` a path also says which MLPs and token maps it passes, and the numbers that
    are not zero are listed under ``(heads, mlps)``.

    >>> from rankscope.network import Attention, Skip, Uniform, Values
    >>> import torch
    >>> eye = torch.eye(4)
    >>> counts_of(Skip(Attention(Uniform(heads=2), Values(eye, eye, heads=2))))
    (1, 2)
    """
    counts = choices_of(part, mlps=mlps).counts
    return dict(counts) if mlps else by_length(counts)


def by_length(counts: Counts) -> tuple[int, ...]:
    """Numbers of choices by the number of heads, from none up to the most there are; MLPs are not told apart."""
    lengths = [0] * (1 + max((heads for heads, _ in counts), default=0))
    for (heads, _), count in counts.items():
        lengths[heads] += count
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """How long a path taken at random is; every number is rounded once, from exact integers.

    >>> bert = length_distribution(path_counts([12] * 12))
    >>> round(bert.mean, 4), round(bert.std, 4), f"{bert.at_most(3):.1e}"
    (11.0769, 0.9231, '1.7e-08')
    """

    counts: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of paths."""
        return sum(self.counts)

    @property
    def fractions(self) -> tuple[Fraction, ...]:
        """The share of each length, exactly."""
        total = self.total
        return tuple(Fraction(count, total) for count in self.counts)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each length."""
        total = self.total
        return tuple(count / total for count in self.counts)

    @property
    def mean(self) -> float:
        return self._moment(1) / self.total

    @property
    def std(self) -> float:
        total = self.total
        return math.sqrt((total * self._moment(2) - self._moment(1) ** 2) / total**2)

    def at_most(self, length: int) -> float:
        """The share of paths that are no longer than ``length``."""
        return sum(self.counts[: max(length + 1, 0)]) / self.total

    def _moment(self, power: int) -> int:
        return sum(length**power * count for length, count in enumerate(self.counts))


def length_distribution(counts: Sequence[int]) -> LengthDistribution:
    """The distribution of lengths of which there are ``counts`` paths of length 0, 1, ..."""
    wrong = [count for count in counts if type(count) is not int or count < 0]
    if wrong or not sum(counts):
        raise ConfigError(
            f"expected the exact numbers of paths of length 0, 1, ..., at least one of them above zero, got "
            f"{wrong[0] if wrong else tuple(counts)!r}; path_counts and counts_of give such numbers"
        )
    return LengthDistribution(tuple(counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """A model family as far as its paths are concerned: how many heads in each of how many layers."""

    heads: int
    layers: int

    def lengths(self) -> LengthDistribution:
        """How long its paths are, with a skip around every attention."""
        return length_distribution(path_counts([self.heads] * self.layers))


ARCHITECTURES: Registry[Architecture] = Registry("architecture")
"""The nine of the figure of path lengths in Dong, Cordonnier, Loukas (2021)."""

for _name, _heads, _layers in (
    ("DistilBert", 12, 6),
    ("MobileBert", 4, 12),
    ("BERT-base/ViT-B", 12, 12),
    ("BERT-large/ViT-L", 16, 24),
    ("ViT-H", 16, 32),
    ("T5-3B", 32, 24),
    ("T5-11B", 128, 24),
    ("GPT-3", 96, 96),
    ("DeiT-T", 3, 12),
):
    ARCHITECTURES.register(_name, Architecture(heads=_heads, layers=_layers))
