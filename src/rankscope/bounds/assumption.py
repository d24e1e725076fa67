"""What a statement needs to be true, as a condition that can be looked at."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ARITHMETIC = "arithmetic fine enough"

Relation = Literal["<=", "<", ">="]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Assumption:
    """A condition with the number that decides it.

    Args:
        name: short, as in a table: ``logits below 1.256``.
        says: one sentence on what it means and what would make it hold.
        holds: ``*batch``, boolean.
        value: ``*batch``, the number found; NaN where there is none.
        limit: what it was compared with; NaN where there is none.
        relation: how the number has to stand to its limit.
    """

    name: str
    says: str
    holds: Tensor
    value: Tensor
    limit: Tensor
    relation: Relation = "<="

    @classmethod
    def at_most(
        cls, name: str, value: Tensor | float, limit: Tensor | float, *, says: str = ""
    ) -> "Assumption":
        """The condition ``value <= limit``; it fails for NaN."""
        found, most = (torch.as_tensor(one, dtype=torch.float64) for one in (value, limit))
        return cls(name=name, says=says, holds=torch.le(found, most), value=found, limit=most)

    @classmethod
    def below(
        cls, name: str, value: Tensor | float, limit: Tensor | float, *, says: str = ""
    ) -> "Assumption":
        """The condition ``value < limit``; it fails for NaN, and where the two are equal."""
        found, least = (torch.as_tensor(one, dtype=torch.float64) for one in (value, limit))
        return cls(name=name, says=says, holds=torch.lt(found, least), value=found, limit=least, relation="<")

    @classmethod
    def at_least(
        cls, name: str, value: Tensor | float, limit: Tensor | float, *, says: str = ""
    ) -> "Assumption":
        """The condition ``value >= limit``; it fails for NaN."""
        found, least = (torch.as_tensor(one, dtype=torch.float64) for one in (value, limit))
        return cls(
            name=name, says=says, holds=torch.ge(found, least), value=found, limit=least, relation=">="
        )

    @classmethod
    def of(cls, name: str, holds: Tensor | bool, *, says: str = "") -> "Assumption":
        """A condition without a number."""
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        return cls(name=name, says=says, holds=torch.as_tensor(holds), value=nothing, limit=nothing)

    @classmethod
    def arithmetic(cls, error: Tensor, limit: float) -> "Assumption":
        """That rounding has not hidden what a part depends on."""
        return cls.at_most(
            ARITHMETIC,
            error,
            limit,
            says="rounding, followed through all layers before, may have moved tokens so far that maps and norms are "
            "no longer known",
        )

    def at(self, index: tuple[int, ...]) -> "Assumption":
        """The same for one element of the batch."""

        def cut(value: Tensor) -> Tensor:
            return value[index[len(index) - value.ndim :]] if value.ndim else value

        return Assumption(
            name=self.name,
            says=self.says,
            holds=cut(self.holds),
            value=cut(self.value),
            limit=cut(self.limit),
            relation=self.relation,
        )
