"""What a measure must declare to be registered, so that a wrong one is refused by name before anything is measured."""

import re
from typing import get_args

from rankscope.core.refs import Ref
from rankscope.core.registry import Declared, check_fields, is_text, wrongly_declared
from rankscope.measures.laws import Covers, Law
from rankscope.measures.measure import Kind, Measure
from rankscope.measures.norms import NORMS

ID = re.compile(r"[a-z0-9_]+\[[a-z0-9_]+(,[a-z0-9_]+)*\]")
"""What ids look like: a name, and tags in brackets."""

COVERS = ", ".join(f"Covers.{one.name}" for one in Covers)
FLAGS = ("rises", "is_bracket", "is_square")

FIELDS: tuple[Declared, ...] = (
    ("definition", lambda one: is_text(one) and ID.fullmatch(one), "an id such as 'spread[l2]'"),
    ("formula", is_text, "the formula in one line"),
    ("meaning", is_text, "a few words on what the number says"),
    (
        "laws",
        lambda one: isinstance(one, frozenset) and all(isinstance(law, Law) for law in one),
        "a frozenset of Law, such as frozenset({Law.BATCH})",
    ),
    ("kind", lambda one: one in get_args(Kind), "'tokens' or 'map'"),
    ("value_fn", callable, "a function of a batch of matrices"),
    ("floor_fn", callable, "a function of a batch of matrices and of the relative rounding"),
    ("covers", lambda one: isinstance(one, Covers), f"one of {COVERS}"),
    ("norm", lambda one: one in (None, *NORMS), f"None or one of {', '.join(NORMS)}"),
    ("tokens", lambda one: type(one) is int and one >= 1, "a whole number of at least 1"),
    ("ref", lambda one: isinstance(one, Ref | None), "a Ref or None"),
    *((flag, lambda one: type(one) is bool, "True or False") for flag in FLAGS),
)


def check_measure(name: str, measure: object) -> None:
    """Raise a ``RegistrationError`` if the measure is not declared as others are, or is not registered by its id."""
    what = f"measure {name!r}"
    if not isinstance(measure, Measure):
        raise wrongly_declared(what, "it", measure, "a Measure")
    check_fields(what, measure, FIELDS)
    if measure.definition != name:
        raise wrongly_declared(what, "definition", measure.definition, f"what it is registered by, {name!r}")
    if measure.name != (before := name.partition("[")[0]):
        raise wrongly_declared(what, "name", measure.name, f"what stands before the bracket, {before!r}")
    if (measure.covers is Covers.MAP) != (measure.kind == "map"):
        raise wrongly_declared(what, "covers", measure.covers, "Covers.MAP of maps, and another of tokens")
