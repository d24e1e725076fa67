"""A statement about collapse as an object: what it bounds, what it needs, and what it says of a network."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.facts import Facts
from rankscope.core.refs import Ref
from rankscope.core.registry import Registry


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Theorem:
    """An upper bound on one definition, layer by layer.

    Args:
        name: short, as on the command line.
        title: one line.
        ref: the statement it stands for.
        quantity: definition of what it bounds.
        verdict: whether the statement is true, and where not, how it fails.
        structure: conditions on how the network is built; where one fails there is no bound.
        conditions: all further conditions, among them numbers of one forward pass.
        evaluate: the formula, for networks of that structure: natural logs, ``layers+1 *batch``.
        says_nothing: of facts and the evaluated formula, ``*batch``: whether the bound is above the trivial value.
        gamma: factor of the printed bounds that stands for the size of attention entries; None elsewhere.
    """

    name: str
    title: str
    ref: Ref
    quantity: str
    verdict: str
    structure: Callable[[Facts], tuple[Assumption, ...]]
    conditions: Callable[[Facts], tuple[Assumption, ...]]
    evaluate: Callable[[Facts], Tensor]
    says_nothing: Callable[[Facts, Tensor], Tensor]
    gamma: float | None = None

    def assumptions(self, facts: Facts) -> tuple[Assumption, ...]:
        """Everything the statement needs, structure first; the numbers are looked at only where the structure fits."""
        structure = self.structure(facts)
        return (*structure, *self.conditions(facts)) if fits(structure) else structure

    def covers(self, facts: Facts) -> bool:
        """Whether the network is built as the statement wants it."""
        return fits(self.structure(facts))

    def holds(self, facts: Facts) -> Tensor:
        """Whether all assumptions hold, ``*batch``."""
        every = torch.ones(facts.batch, dtype=torch.bool, device=facts.tokens.device)
        for one in self.assumptions(facts):
            every = every & one.holds
        return every

    def log_bound(self, facts: Facts) -> Tensor:
        """Natural logs of the bound on layers 0 .. L, ``layers+1 *batch``; infinite for another structure.

        Where a condition fails it is the value of the formula, which may then be exceeded.
        """
        if not self.covers(facts):
            shape = (len(facts.layers) + 1, *facts.batch)
            return torch.full(shape, torch.inf, dtype=torch.float64, device=facts.tokens.device)
        return self.evaluate(facts).expand(len(facts.layers) + 1, *facts.batch)

    def is_vacuous(self, facts: Facts) -> Tensor:
        """Whether the bound says nothing of the last layer, ``*batch``: it is not below what is true of any state."""
        if not self.covers(facts):
            return torch.ones(facts.batch, dtype=torch.bool, device=facts.tokens.device)
        return self.says_nothing(facts, self.log_bound(facts)).expand(facts.batch)


def fits(structure: Iterable[Assumption]) -> bool:
    """Whether all conditions hold for every element of the batch."""
    return all(bool(one.holds.all()) for one in structure)


def above_trivial(definition: str) -> Callable[[Facts, Tensor], Tensor]:
    """The common notion of a bound that says nothing: in the last layer it is not below ``facts.trivial``."""

    def says_nothing(facts: Facts, log_bound: Tensor) -> Tensor:
        return torch.ge(log_bound[-1], facts.trivial[definition][-1])

    return says_nothing


THEOREMS: Registry[Theorem] = Registry("theorem")
"""All statements by name, the printed ones with ``gamma = 1``; filled by ``rankscope.bounds.theorems``."""
