"""The verdict of a scan as a reader meets it: what it is, where, how fast, and the numbers that say so."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rankscope.plots.scan_entries import clipped, full_label, number
from rankscope.report.common import mapping, text_of
from rankscope.results import Table

GOOD, BAD, LOOK, UNKNOWN = "good", "bad", "look", "unknown"

KINDS = {"healthy": GOOD, "collapsing": BAD, "collapsed": BAD, "ill": BAD}
"""How a verdict is colored and which sign it gets; a name that is not here is a confounder: look closer."""

UNKNOWN_WORDS = (
    *("undecided", "no numbers", "no verdict", "unresolved", "unknown", "no states"),
    "low precision",  # what tables of earlier versions call undecided
)

NUMBERS_SHOWN = 8

WIDE = 0.15

LONGEST_WORDS = 1000
"""Letters of a sentence or value that a page shows; nobody reads on, and a name may be of any length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Consecutive layers with one verdict."""

    kind: str
    name: str
    layers: str
    count: int
    is_wide: bool
    """Whether a bar of that share of all layers has room for words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerVerdict:
    """One layer: its verdict, the sentence, and one cell of text per definition of the stack."""

    layer: str
    kind: str
    name: str
    words: str
    cells: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StackVerdict:
    """One stack: its verdict, where it starts, the factor per layer, numbers of the layer that decides."""

    stack: str
    kind: str
    name: str
    words: str
    starts: int | None
    rate: str
    decides: str
    numbers: list[tuple[str, str]]
    heads: list[tuple[str, str]]
    layers: list[LayerVerdict]
    runs: list[Run]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVerdict:
    """The verdict on the whole model and on each of its stacks, and the thresholds it used."""

    kind: str
    name: str
    words: str
    stacks: list[StackVerdict]
    repeats_stacks: bool
    """Whether the words are those of the stacks, one after the other."""
    thresholds: list[tuple[str, str]]


def model_verdict(table: Table) -> ModelVerdict:
    """The section ``verdict``; whatever it lacks is left empty."""
    found = mapping(table.sections.get("verdict"))
    name = str(found.get("verdict") or "no verdict")
    listed = found.get("stacks")
    stacks = [mapping(one) for one in (listed if isinstance(listed, list) else [])]
    words = str(found.get("words") or "")
    return ModelVerdict(
        kind=kind_of(name),
        name=shown(name),
        words=sentences(words, name),
        stacks=[stack_verdict(one) for one in stacks],
        repeats_stacks=len(stacks) > 1
        and all(one.get("words") and str(one["words"]) in words for one in stacks),
        thresholds=[
            (
                clipped(key),
                number(float(value), 6)
                if isinstance(value, int | float)
                else clipped(text_of(value), LONGEST_WORDS),
            )
            for key, value in mapping(found.get("thresholds")).items()
        ],
    )


def stack_verdict(found: dict[str, Any]) -> StackVerdict:
    """One entry of the verdict's ``stacks``."""
    listed = found.get("layers")
    layers = [mapping(one) for one in (listed if isinstance(listed, list) else [])]
    definitions = list(dict.fromkeys(key for one in layers for key in mapping(one.get("numbers"))))
    name, starts, rate = str(found.get("verdict") or "no verdict"), found.get("starts"), found.get("rate")
    deciding = _deciding(layers, name, starts, str(found.get("words") or ""))
    known = mapping(deciding.get("numbers")).items()
    verdicts = [_layer(one, definitions) for one in layers]
    return StackVerdict(
        stack=str(found.get("stack") or ""),
        kind=kind_of(name),
        name=shown(name),
        words=sentences(found.get("words"), name),
        starts=starts if isinstance(starts, int) else None,
        rate=number(float(rate)) if isinstance(rate, int | float) else "",
        decides=f"layer {deciding['layer']}" if "layer" in deciding else "",
        numbers=[(full_label(key), _number(value)) for key, value in known][:NUMBERS_SHOWN],
        heads=[(full_label(key), key) for key in definitions],
        layers=verdicts,
        runs=_runs(verdicts),
    )


def kind_of(verdict: str) -> str:
    """Healthy, collapsing, worth a closer look, or not known.

    >>> kind_of("healthy"), kind_of("massive_token"), kind_of("unresolved")
    ('good', 'look', 'unknown')
    """
    if any(word in verdict.lower().replace("_", " ") for word in UNKNOWN_WORDS):
        return UNKNOWN
    return KINDS.get(verdict.lower(), LOOK)


def shown(verdict: str) -> str:
    """The name of a verdict as a headline.

    >>> shown("massive_token")
    'Massive token'
    """
    text = clipped(verdict.replace("_", " "))
    return text[:1].upper() + text[1:]


def sentences(words: Any, name: str) -> str:
    """The words without the name of the verdict in front of them, since a headline says it already.

    >>> sentences("Healthy: tokens stay distinct.", "healthy")
    'Tokens stay distinct.'
    """
    text = str(words or "")
    if text.lower().startswith(f"{name.lower()}: "):
        text = text[len(name) + 2 :]
        text = text[:1].upper() + text[1:]
    return clipped(text, LONGEST_WORDS)


def _layer(found: dict[str, Any], definitions: list[str]) -> LayerVerdict:
    name = str(found.get("verdict") or "no verdict")
    numbers = mapping(found.get("numbers"))
    return LayerVerdict(
        layer=str(found.get("layer", "")),
        kind=kind_of(name),
        name=shown(name),
        words=sentences(found.get("words"), name),
        cells=[_number(numbers[key]) if key in numbers else "" for key in definitions],
    )


def _deciding(layers: list[dict[str, Any]], verdict: str, starts: Any, words: str) -> dict[str, Any]:
    """The layer where it starts, or that the words name, or the last one with the verdict of the stack."""
    named = [int(text) for text in re.findall(r"\bat layer (\d+)", words, re.IGNORECASE)]
    same = [one for one in layers if one.get("verdict") == verdict] or layers
    wanted = [one for layer in (starts, *named) for one in layers if one.get("layer") == layer]
    return next(iter([*wanted, *same[-1:]]), {})


def _number(value: Any) -> str:
    if isinstance(value, int | float):
        return number(float(value))
    return number(None) if value is None else text_of(value)


def _runs(layers: Sequence[LayerVerdict]) -> list[Run]:
    runs = []
    for (kind, name), group in groupby(layers, key=lambda one: (one.kind, one.name)):
        members = list(group)
        first, last = members[0].layer, members[-1].layer
        text = first if first == last else f"{first}–{last}"  # noqa: RUF001 - a range
        share = len(members) / len(layers)
        runs.append(Run(kind=kind, name=name, layers=text, count=len(members), is_wide=share >= WIDE))
    return runs
