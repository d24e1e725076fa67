"""Bounds as the papers print them, next to a certificate: which one fits a definition, and what it needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import COMPOSITE, FROBENIUS
from rankscope.bounds.facts import Facts
from rankscope.bounds.theorem import Theorem
from rankscope.bounds.theorems import PRINTED, THEOREMS

FITTING = {COMPOSITE: ("dong-2.2", "dong-2.3", "dong-3.2-mlp", "dong-skip"), FROBENIUS: ("wu-masked",)}
"""Theorems in print by the definition they bound; the first that is about such networks is taken."""

AUTHORS = {"dong2021": "Dong, Cordonnier, Loukas (2021)", "wu2024": "Wu et al. (2024)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """One theorem on one text.

    Args:
        name: of the theorem, such as ``dong-2.3``.
        log_bounds: natural logarithms by layer, that of layer 0 is not used; empty if it is not about such networks.
        failing: by layer, the assumptions that fail up to there, the first one first; only that one if it is not
            about such networks.
        words: where it is stated; empty if it is not about such networks.
    """

    name: str
    log_bounds: tuple[float, ...]
    failing: tuple[tuple[str, ...], ...]
    words: str


def printed_bounds(facts: Facts, definitions: Sequence[str], gamma: float) -> dict[str, Printed]:
    """The printed bound of each definition that has one. Facts are those of one text, without batch axes.

    Where no theorem is about such networks, the one that comes nearest says what it lacks.
    """
    found = {}
    for definition in definitions:
        names = FITTING.get(definition, ())
        theorems = [PRINTED[name](gamma) if name in PRINTED else THEOREMS[name] for name in names]
        if theorems:
            nearest = min(theorems, key=lambda one: len(_failing(one.structure(facts))))
            found[definition] = _printed(nearest, facts)
    return found


def _printed(theorem: Theorem, facts: Facts) -> Printed:
    layers = range(1, len(facts.layers) + 1)
    covers = theorem.covers(facts)
    if not covers:
        first = _failing(theorem.structure(facts))[:1]
        return Printed(name=theorem.name, log_bounds=(), failing=((), *(first for _ in layers)), words="")
    return Printed(
        name=theorem.name,
        log_bounds=tuple(float(log) for log in theorem.log_bound(facts)),
        failing=((), *(_failing(theorem.assumptions(_up_to(facts, layer))) for layer in layers)),
        words=_words(theorem),
    )


def _words(theorem: Theorem) -> str:
    """Where it is stated, and with which gamma."""
    gamma = "" if theorem.gamma is None else f", gamma = {theorem.gamma:g}"
    return f"{theorem.name}: {AUTHORS.get(theorem.ref.key, theorem.ref.key)}, {theorem.ref.where}{gamma}"


def _up_to(facts: Facts, layer: int) -> Facts:
    """The same of the first blocks only, so that an assumption fails at the layer where it first does."""
    return replace(
        facts,
        layers=facts.layers[:layer],
        log_value_products=facts.log_value_products[: layer + 1],
        trivial={name: values[: layer + 1] for name, values in facts.trivial.items()},
    )


def _failing(assumptions: Sequence[Assumption]) -> tuple[str, ...]:
    return tuple(assumption_text(one) for one in assumptions if not holds(one))


def holds(one: Assumption) -> bool:
    """Whether an assumption holds, everywhere if it is about several."""
    return bool(torch.as_tensor(one.holds).all())


def assumption_text(one: Assumption) -> str:
    """The name of an assumption with the number that was found and its limit, where there are any.

    >>> assumption_text(Assumption.at_most("logits below 1.256", 3.25, 1.256))
    'logits below 1.256 (found 3.25, limit 1.256)'
    """
    value, limit = float(one.value), float(one.limit)
    if math.isnan(value):
        return one.name
    if math.isnan(limit):
        return f"{one.name} (found {value:.4g})"
    found, most = told_apart(value, limit)
    needs = {"<=": "limit", "<": "limit" if found != most else "must be below", ">=": "must be at least"}
    return f"{one.name} (found {found}, {needs[one.relation]} {most})"


def told_apart(value: float, limit: float) -> tuple[str, str]:
    """Two numbers in as few digits as show which is the larger; in the same digits only if they are equal.

    >>> told_apart(3.25, 1.256), told_apart(1.0000000021, 1.0), told_apart(1.0, 1.0)
    (('3.25', '1.256'), ('1.000000002', '1'), ('1', '1'))
    """
    digits = next((n for n in range(4, 18) if f"{value:.{n}g}" != f"{limit:.{n}g}"), 4)
    return f"{value:.{digits}g}", f"{limit:.{digits}g}"
