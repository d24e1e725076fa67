"""What a mask rule is: a small value that says, for any number of tokens, which keys a query may read."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import numpy as np

from rankscope.core.registry import Registry
from rankscope.errors import MaskError, RankscopeError
from rankscope.masks.graph import MaskGraph
from rankscope.masks.patterns import MaskArray, SparseMask, require_keys

if TYPE_CHECKING:
    from rankscope.charts import Chart

SHOWN_TOKENS = 16
"""Tokens on which a rule shows itself where none are named."""


class MaskRule(ABC):
    """Which keys a query may read, for any number of tokens. Frozen, hashable, comparable.

    ``a + b`` and ``a | b`` allow what either allows. A row with nothing to attend to is an error.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The rule in the mask grammar; ``parse_mask`` gives the rule back."""

    @property
    @abstractmethod
    def hereditary(self) -> bool:
        """Whether ``matrix(m)`` is the leading m x m corner of ``matrix(n)`` for every m < n."""

    @abstractmethod
    def _pattern(self, tokens: int) -> SparseMask:
        """The allowed entries; ``tokens`` is checked, empty rows are not."""

    def _array(self, tokens: int) -> MaskArray:
        """The same as a dense array; rules that are dense anyway build it directly."""
        return self._pattern(tokens).toarray()

    @final
    def matrix(self, tokens: int) -> MaskArray:
        """Boolean ``tokens x tokens``: True where the query (row) may read the key (column)."""
        array = self._array(_at_least_one(tokens, self))
        require_keys(array.sum(axis=1), self.text)
        return array

    @final
    def sparse(self, tokens: int) -> SparseMask:
        """The matrix as boolean CSR, columns sorted; sparse rules never build the dense one."""
        pattern = self._pattern(_at_least_one(tokens, self))
        require_keys(np.diff(pattern.indptr), self.text)
        return pattern

    @final
    def graph(self, tokens: int) -> MaskGraph:
        """The mask as a graph on tokens, edge key -> query."""
        return MaskGraph(mask=self.sparse(tokens))

    @property
    def only_tokens(self) -> int | None:
        """The one number of tokens that the rule exists for; None if it exists for others too."""
        return None

    @final
    def chart(self, tokens: int | None = None) -> "Chart":
        """The mask as a picture, on ``only_tokens`` or 16 tokens if none are named."""
        from rankscope.masks.picture import mask_chart

        usual = SHOWN_TOKENS if self.only_tokens is None else self.only_tokens
        return mask_chart(self, usual if tokens is None else tokens)

    def _repr_svg_(self) -> str | None:
        """How a notebook shows the rule; one that has no picture is shown as text."""
        try:
            return str(self.chart().svg())
        except RankscopeError:
            return None

    def __add__(self, other: "MaskRule") -> "MaskRule":
        return union(self, other)

    def __or__(self, other: "MaskRule") -> "MaskRule":
        return union(self, other)

    def __str__(self) -> str:
        return self.text


def _at_least_one(tokens: int, rule: MaskRule) -> int:
    if tokens < 1:
        raise MaskError(
            f"the mask {rule.text} was asked for {tokens} tokens; a mask needs at least one token"
        )
    return tokens


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class MaskUnion(MaskRule):
    """What any of the parts allows. Made by ``union``, which flattens and drops repeats."""

    parts: tuple[MaskRule, ...]

    @property
    def text(self) -> str:
        return "+".join(part.text for part in self.parts)

    @property
    def hereditary(self) -> bool:
        return all(part.hereditary for part in self.parts)

    @property
    def only_tokens(self) -> int | None:
        return next((part.only_tokens for part in self.parts if part.only_tokens is not None), None)

    def _pattern(self, tokens: int) -> SparseMask:
        first, *others = (part._pattern(tokens) for part in self.parts)
        return sum(others, start=first)

    def _array(self, tokens: int) -> MaskArray:
        first, *others = (part._array(tokens) for part in self.parts)
        for other in others:
            first |= other
        return first


def union(*rules: MaskRule) -> MaskRule:
    """The rule that allows what any of ``rules`` allows; order is kept, repeats are dropped."""
    parts: dict[MaskRule, None] = {}
    for rule in rules:
        parts.update(dict.fromkeys(rule.parts if isinstance(rule, MaskUnion) else (rule,)))
    if not parts:
        raise MaskError("a union of masks needs at least one rule, got none; 'full' allows everything")
    return MaskUnion(parts=tuple(parts)) if len(parts) > 1 else next(iter(parts))


class NamedRule(MaskRule):
    """A rule of the grammar: a name and whole numbers, each a field that declares its least value."""

    __slots__ = ()
    grammar: ClassVar[str]
    definition: ClassVar[str]

    def __post_init__(self) -> None:
        for letter, field in zip(letters(self.grammar), numbers(type(self)), strict=True):
            value, least = getattr(self, field.name), field.metadata["least"]
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise MaskError(
                    f"mask {self.grammar}: {letter} must be a whole number of at least {least}, got {value!r}"
                )

    @property
    def text(self) -> str:
        shown = [field for field in numbers(type(self)) if getattr(self, field.name) != field.default]
        return ":".join([name_of(self.grammar), *(str(getattr(self, field.name)) for field in shown)])


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskKind:
    """One entry of the mask grammar. ``parse`` takes what follows the name and its colon, or None."""

    name: str
    grammar: str
    definition: str
    parse: Callable[[str | None], MaskRule]


_MOST_DIGITS = 19  # what fits in 64 bits

MASKS: Registry[MaskKind] = Registry("mask")

R = TypeVar("R", bound=NamedRule)


def register(cls: type[R]) -> type[R]:
    """Enter a rule into the grammar, its numbers in the order of its fields."""

    def parse(rest: str | None) -> MaskRule:
        return cls(**_read_numbers(cls, rest))

    name = name_of(cls.grammar)
    MASKS.register(name, MaskKind(name=name, grammar=cls.grammar, definition=cls.definition, parse=parse))
    return cls


def name_of(grammar: str) -> str:
    """The rule's name: what stands before the first colon."""
    return grammar.partition(":")[0]


def letters(grammar: str) -> list[str]:
    """The names of the numbers in a grammar string; optional ones stand in brackets.

    >>> letters("bigbird:w:g:r[:seed]")
    ['w', 'g', 'r', 'seed']
    """
    return grammar.translate(str.maketrans("", "", "[]")).split(":")[1:]


def numbers(cls: type[NamedRule]) -> tuple[Field[Any], ...]:
    """The dataclass fields of a rule."""
    return fields(cls)  # type: ignore[arg-type]  # every final rule is a dataclass, the base is not


def _read_numbers(cls: type[NamedRule], rest: str | None) -> dict[str, int]:
    given = [] if rest is None else rest.split(":")
    wanted = numbers(cls)
    needed = sum(field.default is MISSING for field in wanted)
    asked = ":".join([name_of(cls.grammar), *given])
    if not needed <= len(given) <= len(wanted):
        count = str(needed) if needed == len(wanted) else f"{needed} to {len(wanted)}"
        raise MaskError(
            f"mask {asked!r} has {len(given)} numbers after the name, expected {count}: {cls.grammar}"
        )
    return {
        field.name: _whole_number(value, letter, asked, cls.grammar)
        for field, value, letter in zip(wanted, given, letters(cls.grammar), strict=False)
    }


def _whole_number(value: str, letter: str, asked: str, grammar: str) -> int:
    digits = value.strip()
    if not (digits.removeprefix("-").isdecimal() and digits.isascii() and len(digits) < _MOST_DIGITS):
        raise MaskError(f"mask {asked!r}: {letter} must be a whole number, got {value!r}; write {grammar}")
    return int(digits)
