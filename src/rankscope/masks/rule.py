"""What a mask rule is: a small value that says, for any number of tokens, which keys a query may read."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import numpy as np
from scipy.sparse import csr_array

from rankscope.core.registry import Declared, Registry, check_fields, is_text, wrongly_declared
from rankscope.core.words import article
from rankscope.errors import MaskError, RankscopeError, RegistrationError
from rankscope.masks.graph import MaskGraph
from rankscope.masks.patterns import MaskArray, SparseMask, require_keys

if TYPE_CHECKING:
    from rankscope.charts import Chart

T = TypeVar("T")

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
        return self._checked_pattern(tokens).toarray()

    @final
    def _checked_pattern(self, tokens: int) -> SparseMask:
        """What ``_pattern`` gives, or an error if that is no boolean CSR matrix of so many tokens."""
        return _required(self, "_pattern", self._pattern(tokens), csr_array, tokens)

    @final
    def _checked_array(self, tokens: int) -> MaskArray:
        """What ``_array`` gives, or an error if that is no boolean array of so many tokens."""
        return _required(self, "_array", self._array(tokens), np.ndarray, tokens)

    @final
    def matrix(self, tokens: int) -> MaskArray:
        """Boolean ``tokens x tokens``: True where the query (row) may read the key (column)."""
        array = self._checked_array(_at_least_one(tokens, self))
        require_keys(array.sum(axis=1), self.text)
        return array

    @final
    def sparse(self, tokens: int) -> SparseMask:
        """The matrix as boolean CSR, columns sorted; sparse rules never build the dense one."""
        pattern = self._checked_pattern(_at_least_one(tokens, self))
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


def _required(rule: MaskRule, source: str, found: T, kind: type, tokens: int) -> T:
    shape, dtype = getattr(found, "shape", None), getattr(found, "dtype", None)
    if isinstance(found, kind) and shape == (tokens, tokens) and dtype == np.bool_:
        return found
    gave = article(type(found).__name__) + ("" if dtype is None else f" of {dtype}, shape {shape}")
    expected = f"a boolean {kind.__name__} of shape {(tokens, tokens)}, True where query i may read key j"
    raise RegistrationError(
        f"mask {rule.text}: {source} gave {gave} for {tokens} tokens, expected {expected}"
    )


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
        first, *others = (part._checked_pattern(tokens) for part in self.parts)
        return sum(others, start=first)

    def _array(self, tokens: int) -> MaskArray:
        first, *others = (part._checked_array(tokens) for part in self.parts)
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

    _check_declared(cls)
    name = name_of(cls.grammar)
    MASKS.register(name, MaskKind(name=name, grammar=cls.grammar, definition=cls.definition, parse=parse))
    return cls


_GRAMMAR = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(:[A-Za-z]+)*(\[:[A-Za-z]+\])*")
_OF_RULES: tuple[Declared, ...] = (
    (
        "grammar",
        lambda one: is_text(one) and _GRAMMAR.fullmatch(one),
        "a name and the letters of its numbers, such as 'window:w' or 'near:w[:seed]'",
    ),
    ("definition", is_text, "one line, such as 'query i reads the keys j <= i'"),
    (
        "__dataclass_params__",
        lambda one: getattr(one, "frozen", False),
        "those of @dataclass(frozen=True, kw_only=True, slots=True), between @register and the class",
    ),
    ("__abstractmethods__", lambda one: not one, "none; define what is named"),
)
_OF_NUMBERS: tuple[Declared, ...] = (
    ("type", lambda one: one in (int, "int"), "int"),
    ("metadata", lambda one: type(one.get("least")) is int, "{'least': 0}, the smallest that makes sense"),
)


def _check_declared(cls: object) -> None:
    """Raise a ``RegistrationError`` unless a rule has a grammar, a definition, and a field for each of its numbers."""
    if not (isinstance(cls, type) and issubclass(cls, NamedRule)):
        raise wrongly_declared(
            f"mask {getattr(cls, '__name__', cls)}", "it", cls, "a HereditaryRule or NamedRule"
        )
    check_fields(f"mask {cls.__name__}", cls, _OF_RULES)
    what, own, needed = f"mask {cls.grammar!r}", numbers(cls), cls.grammar.partition("[")[0].count(":")
    if len(own) != len(letters(cls.grammar)):
        named = [field.name for field in own]
        raise wrongly_declared(
            what, "the list of its fields", named, f"one for each of {letters(cls.grammar)}"
        )
    for place, field in enumerate(own):
        check_fields(f"{what}, field {field.name}", field, _OF_NUMBERS)
        has_default = type(field.default) is int
        if has_default != (place >= needed):
            found = None if field.default is MISSING else field.default
            like = "a whole number, as its letter stands in brackets" if place >= needed else "none"
            raise wrongly_declared(f"{what}, field {field.name}", "default", found, like)


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
