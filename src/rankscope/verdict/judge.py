"""The verdict on a scan: a name and plain words for every layer, every stack and the model."""

from dataclasses import replace
from typing import Any

from rankscope.errors import ConfigError
from rankscope.results import Table
from rankscope.verdict.facts import UNIT, Facts, Precision, facts_by_stack, facts_by_text, precision_of
from rankscope.verdict.falls import EQUAL, NO_STATES, UNDECIDED, Fall
from rankscope.verdict.rules import ILL, VERDICTS, Layer, StackVerdict, judge_stack
from rankscope.verdict.thresholds import Thresholds
from rankscope.verdict.words import EVIDENCE, of_layer, of_stack, of_texts, of_weights


def judge(table: Table, thresholds: Thresholds | None = None) -> dict[str, Any]:
    """The section ``verdict`` of a scan: for the model, its stacks and their layers, with the numbers.

    The panel must be there in full; tables without the effective ranks are judged without clusters and dead
    directions.
    """
    limits = thresholds or Thresholds()
    summary, scan = table.sections.get("summary"), table.sections.get("scan")
    if not isinstance(summary, list) or not isinstance(scan, dict):
        raise ConfigError("only the table of a scan can be judged: this one has no section 'summary'")
    texts = facts_by_text(table, scan)
    stacks = [
        _stack(name, facts, texts.get(name, []), limits)
        for name, facts in facts_by_stack(summary, scan).items()
        if _judgeable(facts)
    ]
    if not stacks:
        raise ConfigError(f"the scan holds no {UNIT} of any block, which the verdict is about")
    order = (*VERDICTS, NO_STATES)
    worst = min(stacks, key=lambda one: order.index(one["verdict"]))
    words = " ".join(
        one["words"] if len(stacks) == 1 else f"{one['stack']}: {one['words']}" for one in stacks
    )
    if scan.get("not finite"):
        return {
            "verdict": ILL,
            "words": of_weights(scan["not finite"]),
            "stacks": [_of_ill(one, of_weights(scan["not finite"])) for one in stacks],
            "thresholds": limits.model_dump(),
        }
    drawn = scan.get("random tokens")
    if drawn is not None:
        words += (
            f" This is a verdict on random tokens ({drawn}): on texts, or on random tokens of another length, it may "
            "be another one."
        )
    return {
        "verdict": worst["verdict"],
        "words": words,
        "stacks": stacks,
        "thresholds": limits.model_dump(),
    }


def _of_ill(stack: dict[str, Any], words: str) -> dict[str, Any]:
    """A stack of a model whose weights are no numbers: none of its layers is judged by what it shows."""
    layers = [
        layer
        | {
            "verdict": ILL,
            "words": "not judged: weights of the model are no numbers",
            "untold": [],
            "numbers": {},
        }
        for layer in stack["layers"]
    ]
    unknown = dict.fromkeys(Fall(verdict=ILL).facts())
    return stack | unknown | {"verdict": ILL, "words": words, "would_decide": None, "layers": layers}


def _judgeable(facts: list[Facts]) -> bool:
    return any(UNIT in one.numbers for one in facts)


def _stack(name: str, facts: list[Facts], texts: list[list[Facts]], limits: Thresholds) -> dict[str, Any]:
    """The verdict on the means, unless the texts by themselves say otherwise."""
    found = judge_stack(facts, limits)
    precision = precision_of(facts, limits.collapsed)
    if len(texts) < 2:
        return _told(name, found, facts, precision)
    alone = [judge_stack(text, limits) for text in texts]
    lost = [text[-1] for text in texts if not text[-1].is_number(UNIT)]
    collapsed = [place for place, one in enumerate(alone) if one.verdict in EQUAL]
    if len(lost) >= len(texts) / 2 and found.verdict not in EQUAL:
        layers = (*found.layers[:-1], Layer(name=NO_STATES))
        found, facts = replace(found, verdict=NO_STATES, layers=layers), [*facts[:-1], lost[0]]
    elif len(collapsed) >= len(texts) / 2 and found.verdict not in EQUAL:
        found, facts = alone[collapsed[0]], texts[collapsed[0]]
    some = "" if len(collapsed) == len(texts) else f"{len(collapsed)} of {len(texts)} texts"
    words = of_stack(found, facts, precision, texts=some)
    words += of_texts(len(collapsed), len(lost), len(texts))
    votes = {"judged": len(texts), "collapse": len(collapsed), "without_numbers": len(lost)}
    return _told(name, found, facts, precision) | {"words": words, "texts": votes}


def _told(name: str, found: StackVerdict, facts: list[Facts], precision: Precision) -> dict[str, Any]:
    layers = [
        {
            "layer": one.layer,
            "verdict": layer.name,
            "words": of_layer(layer.name, one, precision),
            "untold": list(layer.untold),
            "numbers": {
                definition: one[definition]
                for definition in EVIDENCE[layer.name]
                if definition in one.numbers
            },
        }
        for one, layer in zip(facts, found.layers, strict=True)
    ]
    return {
        "stack": name,
        "verdict": found.verdict,
        "words": of_stack(found, facts, precision),
        **found.fall.facts(),
        "dtype": precision.dtype,
        "would_decide": precision.would_decide if found.verdict == UNDECIDED else None,
        "layers": layers,
    }
