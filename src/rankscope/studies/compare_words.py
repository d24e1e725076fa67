"""A comparison in plain words: what changed most, what cannot be compared, what rounding hides."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import polars as pl

from rankscope.studies.compare_findings import counted, listed, merged, number, stack_prefix
from rankscope.studies.compare_sides import Side

CORRECTION = (
    "Student's t for every number, adjusted after Benjamini and Hochberg over all numbers of the comparison: "
    "of those called significant, an expected share of at most alpha is chance"
)

MOST_LINES = 8
"""Groups of changes, and trends, that are told in words; the sections hold all."""


def told(
    sides: Sequence[Side],
    judged: pl.DataFrame,
    *,
    findings: Sequence[dict[str, Any]],
    ends: Sequence[dict[str, Any]],
    trends: dict[str, Any] | None,
    alpha: float,
) -> list[str]:
    """All sentences, what matters most first; of a series, the last scan against the first, then the trend."""
    base, last = sides[0], sides[-1]
    now = judged.filter(pl.col("scan") == last.name)
    mine = [finding for finding in findings if finding["scan"] == last.name]
    lines = merged(mine)
    rest, others = len(lines) - MOST_LINES, sides[1:][-MOST_LINES:]
    return [
        *_verdicts(sides),
        *_counts(base, last, now, alpha),
        *lines[:MOST_LINES],
        *([f"and {counted(rest, 'more group')} of smaller changes"] if rest > 0 else []),
        *_depths(base, last, ends),
        *(line for side in others for line in _only(base, side)),
        *(line for side in others for line in _precision(base, side, judged)),
        *_texts(base, last, now),
        *_trends(trends),
    ]


def _verdicts(sides: Sequence[Side]) -> Iterator[str]:
    known = [(side.name, side.verdict.get("verdict")) for side in sides]
    missing = [name for name, verdict in known if verdict is None]
    runs = [
        (verdict, [name for name, _ in run])
        for verdict, run in groupby((pair for pair in known if pair[1] is not None), key=lambda pair: pair[1])
    ]
    if len(runs) == 1:
        yield f"verdict: {runs[0][0]} in {'all scans' if not missing else listed(runs[0][1])}"
    elif len(runs) > MOST_LINES:
        ends = f"{runs[0][0]} in {runs[0][1][0]}, {runs[-1][0]} in {runs[-1][1][-1]}"
        yield f"verdict: {ends}, with {len(runs) - 1} changes on the way"
    elif runs:
        yield "verdict: " + ", then ".join(f"{verdict} in {_span(names)}" for verdict, names in runs)
    if missing and runs:
        yield f"no verdict was saved with {listed(missing)}"
    for stack, verdicts in _stack_verdicts(sides).items():
        if len({verdict for _, verdict in verdicts}) > 1:
            first, last = verdicts[0], verdicts[-1]
            yield f"verdict of the stack {stack}: {first[1]} in {first[0]}, {last[1]} in {last[0]}"


def _stack_verdicts(sides: Sequence[Side]) -> dict[str, list[tuple[str, str]]]:
    """Stack to scan and verdict, for models of several stacks; ``starts`` is told where it is known."""
    found: dict[str, list[tuple[str, str]]] = {}
    for side in sides:
        stacks = side.verdict.get("stacks") or []
        for one in stacks if len(stacks) > 1 else []:
            starts = one.get("starts")
            words = f"{one.get('verdict')}" + ("" if starts is None else f" from layer {starts}")
            found.setdefault(str(one.get("stack")), []).append((side.name, words))
    return found


def _counts(base: Side, last: Side, now: pl.DataFrame, alpha: float) -> Iterator[str]:
    who = f"{last.name} against {base.name}"
    beyond = int(now["change"].abs().gt(now["floor"]).fill_null(value=False).sum())
    within = int(now["change"].abs().le(now["floor"]).fill_null(value=False).sum())
    if now["spread"].null_count() == now.height:
        yield (
            f"{who}: {beyond} of {counted(now.height, 'difference')} are beyond rounding; with one text there is no "
            "spread, so none can be called more than chance"
        )
        return
    changed = int(now["significant"].fill_null(value=False).sum())
    yield (
        f"{who}: {changed} of {counted(now.height, 'number')} changed beyond chance (adjusted p at most {alpha:g}) "
        f"and beyond rounding; {counted(within, 'difference')} within rounding"
    )
    untested = now.filter(pl.col("significant").is_null())
    if untested.height:
        names = listed(untested["definition"].unique(maintain_order=True))
        yield f"{counted(untested.height, 'number')} without a spread over texts could not be tested: {names}"


def _depths(base: Side, last: Side, ends: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Where depths differ: which layers were compared, and the worst layer of each in the main definitions."""
    for stack in base.stacks:
        if stack not in last.stacks or base.depth(stack) == last.depth(stack):
            continue
        a, b = base.depth(stack), last.depth(stack)
        yield (
            f"{stack_prefix(stack)}{a} blocks in {base.name}, {b} in {last.name}: layers 0 to {min(a, b)} are compared "
            "one by one, and the last blocks with each other"
        )
        for end in ends:
            is_main = end["definition"] in (
                "residual_ratio[composite,mean]",
                "residual_ratio[composite,mean,unit]",
            )
            if end["scan"] == last.name and end["stack"] == stack and end["at"] == "worst layer" and is_main:
                yield (
                    f"{stack_prefix(stack)}{end['definition']} at the worst layer: {number(end['before'])} before "
                    f"(layer {end['before_layer']}), {number(end['after'])} after (layer {end['after_layer']})"
                )


def _only(base: Side, side: Side) -> Iterator[str]:
    """What one of the two has and the other lacks, coarsest first."""
    for one, other in ((base, side), (side, base)):
        stacks = [stack for stack in one.stacks if stack not in other.stacks]
        if stacks:
            yield f"only in {one.name}: {'stacks' if len(stacks) > 1 else 'stack'} {listed(stacks)}"
        for stack in (stack for stack in one.stacks if stack in other.stacks):
            yield from _only_in_stack(one, other, stack)


def _only_in_stack(one: Side, other: Side, stack: str) -> Iterator[str]:
    mine, theirs = (side.cells.filter(pl.col("stack") == stack) for side in (one, other))
    for column, word in (
        ("layer", "layer"),
        ("site", "site"),
        ("definition", "definition"),
        ("head", "head"),
    ):
        names = set(theirs[column].drop_nulls())
        extra = [name for name in mine[column].drop_nulls().unique(maintain_order=True) if name not in names]
        if extra:
            many = "s" if len(extra) > 1 else ""
            shown = _ranges(extra) if column in ("layer", "head") else listed(extra)
            yield f"only in {one.name}: {stack_prefix(stack)}{word}{many} {shown}"


def _precision(base: Side, side: Side, judged: pl.DataFrame) -> Iterator[str]:
    rows = judged.filter(pl.col("scan") == side.name)
    below = int(rows["change"].abs().le(rows["floor"]).fill_null(value=False).sum())
    if base.dtype is not None and side.dtype is not None and base.dtype != side.dtype:
        ratios = rows.filter(pl.col("measure") == "residual_ratio")
        floors = [*(ratios["floor"] - ratios["floor_after"]), *ratios["floor_after"]]
        known = [floor for floor in floors if floor is not None]
        shown = f" (floor of a residual ratio up to {number(max(known))})" if known else ""
        yield (
            f"{base.name} ran in {base.dtype} and {side.name} in {side.dtype}{shown}: "
            f"{below} of {counted(rows.height, 'difference')} are within rounding and say nothing"
        )
    nulls = rows["change"].null_count()
    if nulls:
        yield f"{counted(nulls, 'number')} could not be compared in {side.name}: 0/0 or overflow on one side"


def _texts(base: Side, last: Side, now: pl.DataFrame) -> Iterator[str]:
    tested = now.filter(pl.col("spread").is_not_null())
    if (tested if tested.height else now)["paired"].all():
        yield f"differences are taken text by text ({counted(base.texts, 'text')})"
        return
    tokens = [side.about.get("tokens") for side in (base, last)]
    shown = f", {number(tokens[0])} and {number(tokens[1])} tokens on average" if None not in tokens else ""
    yield (
        f"not paired text by text ({base.texts} and {last.texts} texts{shown}): the texts differ, or rows of single "
        "texts were not kept; then a difference may also come from the texts"
    )


def _trends(trends: dict[str, Any] | None) -> Iterator[str]:
    if trends is None:
        return
    lines = [line for line in trends["lines"] if line["resolved"]]
    steady = [line for line in lines if line["significant"] or abs(line["tau"]) > 0.999]
    yield f"trend over {len(trends['x'])} scans, {trends['order']}: {len(steady)} of {len(lines)} lines move steadily"
    for line in sorted(steady, key=lambda line: (not line["significant"], -_reach(line)))[:MOST_LINES]:
        values = [value for value in line["values"] if value == value]
        direction = "rose" if line["slope"] > 0 else "fell"
        test = f"Kendall {line['tau']:.2f}, adjusted p {line['p_adjusted']:.2g}"
        few = f"{len(values)} scans are too few to exclude chance"
        yield (
            f"{stack_prefix(line['stack'])}{line['definition']} at the {line['at']} {direction} from "
            f"{number(values[0])} to {number(values[-1])}, in {line['agreeing']} of {line['moves']} moves "
            f"({test if line['significant'] else few})"
        )


def _reach(line: dict[str, Any]) -> float:
    values: list[float] = [value for value in line["values"] if value == value]
    return (max(values) - min(values)) / (max(map(abs, values)) or 1.0)


def _span(names: Sequence[str]) -> str:
    return listed(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


def _ranges(numbers: Iterable[int]) -> str:
    """``0 to 3, 7``: numbers with neighbors joined."""
    ordered, parts = sorted(numbers), []
    for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        inside = [found for _, found in run]
        parts.append(str(inside[0]) if len(inside) == 1 else f"{inside[0]} to {inside[-1]}")
    return ", ".join(parts)
