"""The verdict on a scan: a name for every layer, every stack and the model, as typed values that say themselves."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from rankscope.errors import ConfigError
from rankscope.findings.verdict import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    MASSIVE_CHANNEL_SHARE,
    MASSIVE_CHANNELS,
    MASSIVE_SHARE,
    MASSIVE_TOKENS,
    OTHER_CHANNELS,
    OTHERS,
    RANK,
    RAW,
    TOKEN,
    UNIT,
    UNIT_CHANNEL,
    Hidden,
    LayerVerdict,
    Massive,
    Name,
    NotFinite,
    StackVerdict,
    Thresholds,
    Verdict,
    Votes,
)
from rankscope.results import Table
from rankscope.verdict.facts import PanelFacts, Precision, facts_by_stack, facts_by_text, precision_of
from rankscope.verdict.falls import COLLAPSED, COLLAPSING, EQUAL, NO_STATES, UNDECIDED, number_of
from rankscope.verdict.rules import HEALTHY, ILL, VERDICTS, Layer, StackJudgement, judge_stack

EVIDENCE = {
    COLLAPSING: (UNIT, RAW, COSINE, RANK, CENTERED_RANK),
    COLLAPSED: (UNIT, RAW, COSINE, CENTERED_RANK),
    HEALTHY: (UNIT, RAW, COSINE, RANK),
    UNDECIDED: (UNIT, RAW, COSINE),
    NO_STATES: (),
    ILL: (),
    "massive token": (MASSIVE_TOKENS, MASSIVE_SHARE, OTHERS, TOKEN, RAW, UNIT, RANK, COSINE),
    "massive channel": (
        *(MASSIVE_CHANNELS, MASSIVE_CHANNEL_SHARE, CHANNEL, UNIT_CHANNEL),
        *(OTHER_CHANNELS, COSINE, UNIT, CENTERED_RANK),
    ),
    "shared mean": (COSINE, UNIT, CENTERED_RANK, RANK),
    "clusters": (RANK, CENTERED_RANK, COSINE, UNIT),
    "cone": (COSINE, UNIT, CENTERED_RANK),
    "dead directions": (RANK, CENTERED_RANK, COSINE, UNIT),
}
"""The numbers that each name rests on."""

HIDES = 3.0
"""A ratio of the tokens as they are that is so many times the judged one does not show the collapse."""


def judge(table: Table, thresholds: Thresholds | None = None) -> dict[str, Any]:
    """The section ``verdict`` of a scan as JSON values: for the model, its stacks and their layers, with the words."""
    return judge_table(table, thresholds).model_dump(mode="json")


def judge_table(table: Table, thresholds: Thresholds | None = None) -> Verdict:
    """The verdict on a scan.

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
    worst = min(stacks, key=_urgency)
    ill = scan.get("not finite") or ()
    return Verdict(
        verdict=cast("Name", ILL) if ill else worst.verdict,
        stacks=tuple(map(_of_ill, stacks)) if ill else tuple(stacks),
        thresholds=limits,
        not_finite=tuple(ill),
        random_tokens=scan.get("random tokens"),
    )


def _urgency(stack: StackVerdict) -> float:
    """Less is more urgent. States with NaN or infinity come after collapse; those of zeros are the least."""
    if stack.verdict == NO_STATES:
        return VERDICTS.index(COLLAPSED) + 0.5 if stack.not_finite is not None else len(VERDICTS)
    return VERDICTS.index(stack.verdict)


def _of_ill(stack: StackVerdict) -> StackVerdict:
    """A stack of a model whose weights are no numbers: none of its layers is judged by what it shows."""
    ill = cast("Name", ILL)
    layers = tuple(LayerVerdict(layer=one.layer, verdict=ill) for one in stack.layers)
    return StackVerdict(stack=stack.stack, verdict=ill, dtype=stack.dtype, texts=stack.texts, layers=layers)


def _judgeable(facts: list[PanelFacts]) -> bool:
    return any(UNIT in one.numbers for one in facts)


def _stack(
    name: str, facts: list[PanelFacts], texts: list[list[PanelFacts]], limits: Thresholds
) -> StackVerdict:
    """The verdict on the means, unless the texts by themselves say otherwise."""
    found = judge_stack(facts, limits)
    precision, broken = precision_of(facts, limits.collapsed), _not_finite(facts)
    if len(texts) < 2:
        return _verdict_value(name, _of_broken(found, broken), facts, precision, None, broken)
    alone = [judge_stack(text, limits) for text in texts]
    lost = [text[-1] for text in texts if not text[-1].is_number(UNIT)]
    collapsed = [place for place, one in enumerate(alone) if one.verdict in EQUAL]
    if len(lost) >= len(texts) / 2 and found.verdict not in EQUAL:
        layers = (*found.layers[:-1], Layer(name=NO_STATES))
        found, facts = replace(found, verdict=NO_STATES, layers=layers), [*facts[:-1], lost[0]]
    elif len(collapsed) >= len(texts) / 2 and found.verdict not in EQUAL:
        found, facts = alone[collapsed[0]], texts[collapsed[0]]
    votes = Votes(judged=len(texts), collapse=len(collapsed), without_numbers=len(lost))
    return _verdict_value(name, _of_broken(found, broken), facts, precision, votes, broken)


def _not_finite(facts: Sequence[PanelFacts]) -> NotFinite | None:
    """Where states hold NaN or infinity, if they do."""
    where = [one for one in facts if one.broken]
    if not where:
        return None
    most = max(where, key=lambda one: one.broken)
    return NotFinite(layers=tuple(one.layer for one in where), texts=most.broken, of=most.texts)


def _of_broken(found: StackJudgement, broken: NotFinite | None) -> StackJudgement:
    """The same; a stack with states that are no numbers is not healthy, and has no name if half the texts have them."""
    if broken is None or found.verdict in EQUAL:
        return found
    is_said = found.verdict == HEALTHY or 2 * broken.texts >= broken.of
    return replace(found, verdict=NO_STATES) if is_said else found


def _verdict_value(
    name: str,
    found: StackJudgement,
    facts: Sequence[PanelFacts],
    precision: Precision,
    votes: Votes | None,
    broken: NotFinite | None,
) -> StackVerdict:
    layers = tuple(
        LayerVerdict(
            layer=one.layer,
            verdict=cast("Name", layer.name),
            untold=cast("tuple[Name, ...]", layer.untold),
            numbers={key: _finite(one[key]) for key in EVIDENCE[layer.name] if key in one.numbers},
            at_most={
                key: _finite(one.most(key))
                for key in EVIDENCE[layer.name]
                if key in one.numbers and one[key] is None
            },
            tokens=_finite(one.tokens),
            dim=one.dim,
            ratio=_finite(number_of(point.log10)),
            ratio_at_most=_finite(number_of(point.log10_most)),
            has_zero_token=layer.name == NO_STATES and one.is_number(RAW),
            dtype=precision.dtype,
            would_decide=precision.would_decide if layer.name == UNDECIDED else None,
        )
        for one, layer, point in zip(facts, found.layers, found.points, strict=True)
    )
    return StackVerdict(
        stack=name,
        verdict=cast("Name", found.verdict),
        decides=broken.layers[0] if broken and found.verdict == NO_STATES else _decides(found, facts),
        **found.fall.facts(),
        hidden=_hidden(found, facts[-1]) if found.verdict == COLLAPSING else None,
        dtype=precision.dtype,
        would_decide=precision.would_decide if found.verdict == UNDECIDED else None,
        texts=votes,
        not_finite=broken,
        layers=layers,
    )


def _decides(found: StackJudgement, facts: Sequence[PanelFacts]) -> int:
    """The layer whose numbers name the stack."""
    fall, where = (
        found.fall,
        [one for name, one in zip(found.names, facts, strict=True) if name == found.verdict],
    )
    if found.verdict == COLLAPSING and fall.starts is not None:
        return fall.starts
    if found.verdict == HEALTHY and fall.dip is not None:
        return fall.dip.layer
    if found.verdict == HEALTHY:
        known = [(one.log10, one.layer) for one in found.points if one.log10 is not None]
        return min(known)[1] if known else facts[-1].layer
    if found.verdict == "massive token" and where:
        return max(where, key=lambda one: one.massive_share or 0.0).layer
    return where[-1].layer if where else facts[-1].layer


def _hidden(found: StackJudgement, last: PanelFacts) -> Hidden | None:
    """Whether the ratio of the tokens as they are does not show the collapse, and because of which tokens."""
    raw = last[RAW]
    if raw is None or raw <= HIDES * max(number_of(found.points[-1].log10_most) or 0.0, 1e-300):
        return None
    massive = None
    if last.at_least(MASSIVE_TOKENS, 0.5):
        massive = Massive.of_share(last.massive_tokens, last.massive_share, last.tokens)
    return Hidden(ratio=_finite(raw), massive=massive)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
