"""The verdict on a scan: a name and plain words for every layer, every stack and the model."""

import math
from dataclasses import replace
from typing import Any

from rankscope.errors import ConfigError
from rankscope.results import Table
from rankscope.verdict.facts import UNIT, Facts, facts_by_stack, facts_by_text
from rankscope.verdict.rules import COLLAPSING, NO_STATES, VERDICTS, StackVerdict, judge_stack
from rankscope.verdict.thresholds import Thresholds
from rankscope.verdict.words import EVIDENCE, of_layer, of_stack, of_texts


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
    return {
        "verdict": worst["verdict"],
        "words": words,
        "stacks": stacks,
        "thresholds": limits.model_dump(),
    }


def _judgeable(facts: list[Facts]) -> bool:
    return any(UNIT in one.values for one in facts)


def _stack(name: str, facts: list[Facts], texts: list[list[Facts]], limits: Thresholds) -> dict[str, Any]:
    """The verdict on the means, unless the texts by themselves say otherwise."""
    found = judge_stack(facts, limits)
    if len(texts) > 1:
        alone = [judge_stack(text, limits).verdict for text in texts]
        lost = sum(math.isnan(text[-1][UNIT]) for text in texts)
        collapsed = [place for place, verdict in enumerate(alone) if verdict == COLLAPSING]
        if lost >= len(texts) / 2 and found.verdict != COLLAPSING:
            found = replace(found, verdict=NO_STATES, layers=(*found.layers[:-1], NO_STATES))
        elif len(collapsed) >= len(texts) / 2 and found.verdict != COLLAPSING:
            one = judge_stack(texts[collapsed[0]], limits)
            found, facts = one, texts[collapsed[0]]
        return _told(name, found, facts) | {
            "words": of_stack(found, facts) + of_texts(len(collapsed), lost, len(texts))
        }
    return _told(name, found, facts)


def _told(name: str, found: StackVerdict, facts: list[Facts]) -> dict[str, Any]:
    layers = [
        {
            "layer": one.layer,
            "verdict": verdict,
            "words": of_layer(verdict, one),
            "numbers": {
                definition: one.values[definition]
                for definition in EVIDENCE[verdict]
                if definition in one.values
            },
        }
        for one, verdict in zip(facts, found.layers, strict=True)
    ]
    return {
        "stack": name,
        "verdict": found.verdict,
        "words": of_stack(found, facts),
        "starts": found.starts,
        "rate": found.rate,
        "layers": layers,
    }
