"""A measure: a pure function from token matrices or attention maps to numbers, with its name, laws and floor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.core.refs import Ref
from rankscope.core.types import PerMatrix
from rankscope.core.words import article
from rankscope.errors import RegistrationError
from rankscope.measures.brackets import Bracket
from rankscope.measures.laws import Covers, Law
from rankscope.measures.maps import checked_map

Kind = Literal["tokens", "map"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One definition of one measure, called on ``(*batch, tokens, dim)``, or ``(*batch, tokens, keys)`` for a map.

    The answer is one float64 number per matrix, or a certified ``Bracket`` where no closed form exists; NaN where
    the definition is 0/0.
    """

    name: str  # "residual_ratio"
    definition: str  # "residual_ratio[composite,mean]"
    formula: str
    meaning: str
    laws: frozenset[Law]
    kind: Kind
    value_fn: Callable[[Tensor], Tensor | Bracket]
    floor_fn: Callable[[Tensor, float | Tensor], Tensor]
    covers: Covers
    rises: bool = False  # grows as tokens become equal or one of them takes over; all others fall
    norm: str | None = None  # of a residual: the norm it is measured in, and its error
    tokens: int = 2  # fewest rows the question makes sense for
    is_bracket: bool = False  # the answer is a certified Bracket
    is_square: bool = False  # maps only: queries and keys must be the same tokens
    ref: Ref | None = None

    def checked(self, x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
        """``x`` in float64, or an error saying why it cannot be measured."""
        if self.kind == "map":
            return checked_map(x, dtype=dtype, tokens=self.tokens, square=self.is_square)
        return checked(x, tokens=self.tokens)

    def __call__(self, x: Tensor) -> PerMatrix | Bracket:
        """The measure of every matrix."""
        return self.values(self.checked(x))

    def floor(self, x: Tensor, relative: float) -> PerMatrix:
        """How far the measure of ``x`` may be off if rounding left ``relative`` on the state; below it it says nothing.

        ``covers`` says which errors are meant. No such error moves the measure by more; only a ratio may move up by
        ``(1 + relative) / (1 - relative)`` times as much, see ``ratio_floor``.
        """
        return self.floors(self.checked(x), relative)

    def values(self, x: Tensor) -> PerMatrix | Bracket:
        """The measure of matrices that are ``checked``; an answer of another shape or type is an error."""
        with self._right_call("value_fn"):
            found = self.value_fn(x)
        if self.is_bracket and not isinstance(found, Bracket):
            gave = article(type(found).__name__)
            raise RegistrationError(
                f"measure {self}: value_fn gave {gave}, expected a Bracket: is_bracket is True"
            )
        for numbers in (*found,) if self.is_bracket else (found,):
            self._require_one_each(x, numbers, "value_fn")
        return found

    def floors(self, x: Tensor, relative: float | Tensor) -> PerMatrix:
        """The floor of matrices that are ``checked``; an answer of another shape or type is an error."""
        with self._right_call("floor_fn"):
            found = self.floor_fn(x, relative)
        self._require_one_each(x, found, "floor_fn")
        return found

    @contextmanager
    def _right_call(self, source: str) -> Iterator[None]:
        """A function that takes other arguments, or cannot work on tensors, is an error that names the measure."""
        try:
            yield
        except TypeError as error:
            raise RegistrationError(
                f"measure {self}: {source} fails: {error}; mend what it takes and does"
            ) from error

    def _require_one_each(self, x: Tensor, found: object, source: str) -> None:
        wanted = tuple(x.shape[:-2])
        if isinstance(found, Tensor) and tuple(found.shape) == wanted and found.dtype == torch.float64:
            return
        gave = article(type(found).__name__)
        if isinstance(found, Tensor):
            gave = f"{str(found.dtype).removeprefix('torch.')} of shape {tuple(found.shape)}"
        raise RegistrationError(
            f"measure {self}: {source} gave {gave} for a batch of shape {tuple(x.shape)}, expected one float64 "
            f"number per matrix, a tensor of shape {wanted}"
        )

    def __str__(self) -> str:
        return self.definition
