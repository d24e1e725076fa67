"""What a decomposition into paths found, in sentences."""

import math
from decimal import Decimal
from typing import Any

from rankscope.results.tree_lines import sum_name, sum_words

ENOUGH = 0.9
"""The shortest paths that together carry this share of the output are told."""


def words(sections: dict[str, Any]) -> list[str]:
    """A few sentences: how many paths, which lengths carry the output, which heads, what biases add, what cancels."""
    told = [_counted(sections["identity"]), sum_words(sections["identity"])]
    told.append(_uncrossed(sections.get("uncrossed", [])))
    told += [_lengths(sections["spectrum"]), _heads(sections["heads"])]
    if all(entry["share"] is None for entry in sections["spectrum"]):
        told.append(
            "The tokens of the output are equal up to rounding, so that nothing has a share in what differs."
        )
    told += [_sources(sections["sources"]), _cancelled(sections["spectrum"])]
    if "search" in sections:
        told.append(
            _top(sections["search"], sections["top"], sections["sites"], sections["identity"]["texts"])
        )
    return [sentence for sentence in told if sentence]


def _uncrossed(parts: list[dict[str, Any]]) -> str:
    """Where paths begin because none crosses, each place once with the layers it stands in.

    >>> part = {"site": "ssm", "what": "a running sum", "where": "zoo.py:31, `x.cumsum(1)`"}
    >>> _uncrossed([part | {"layer": 1}, part | {"layer": 2}])
    'No path crosses a running sum at zoo.py:31, `x.cumsum(1)` (layers 1, 2); paths begin at what it puts out.'
    """
    places: dict[str, list[str]] = {}
    for part in parts:
        where = f"the site {part['site']}" if part["where"] is None else part["where"]
        places.setdefault(f"{part['what']} at {where}", []).append(str(part["layer"]))
    if not places:
        return ""
    named = [
        f"{place} (layer{'s' * (len(layers) > 1)} {', '.join(layers)})" for place, layers in places.items()
    ]
    puts = "it puts" if len(named) == 1 else "they put"
    return f"No path crosses {', nor '.join(named)}; paths begin at what {puts} out."


def _counted(identity: dict[str, Any]) -> str:
    if not identity["paths"]:
        return f"No path leads from the input to {sum_name(identity)}."
    many = f"{identity['paths']:,}" if identity["paths"] < 10**15 else f"{float_text(identity['paths'])}"
    holds = "" if identity["holds"] else f", more than the {identity['allowed']:.0e} that rounding explains"
    passes = f"{identity['block_passes']} pass{'es' if identity['block_passes'] != 1 else ''} through a block"
    return (
        f"{many} path{'s' if identity['paths'] != 1 else ''}, of mean length {identity['mean_length']:.2f}; their sum "
        f"over lengths is {sum_name(identity)} to {identity['relative_error']:.0e}{holds}, in {passes} in place of "
        f"{float_text(identity['block_passes_by_enumeration'])}."
    )


def float_text(count: int) -> str:
    """A count of any size in a few digits.

    >>> float_text(13**12), float_text(97**96), float_text(512)
    ('2.3e13', '5.4e190', '512')
    """
    return str(count) if count < 10**6 else f"{Decimal(count):.1e}".replace("e+", "e")


def _lengths(spectrum: list[dict[str, Any]]) -> str:
    known = [entry for entry in spectrum if entry["share"] is not None and entry["paths"]]
    if not known:
        return ""
    if len(known) == 1:
        return f"All paths have length {known[0]['length']}: without skips every path takes a head of every layer."
    total = sum(entry["paths"] for entry in spectrum)
    largest = max(known, key=lambda entry: abs(entry["share"]))
    sign = "" if largest["share"] >= 0 else " of either sign"
    sentence = (
        f"Length {largest['length']} carries the largest share{sign} of the output's residual, "
        f"{percent(largest['share'])}, "
        f"with {percent(largest['paths'] / total)} of all paths"
    )
    reached, count, part = 0.0, 0, None
    for entry in known:
        reached, count = reached + entry["share"], count + entry["paths"]
        if reached >= ENOUGH:
            part = (entry["length"], reached, count / total)
            break
    if part is None or part[0] in (largest["length"], known[-1]["length"]):
        return f"{sentence}."
    return f"{sentence}; lengths up to {part[0]} carry {percent(part[1])} and are {percent(part[2])} of the paths."


def percent(share: float) -> str:
    """A share for reading.

    >>> percent(0.5), percent(-0.031), percent(1.7e-8), percent(0.0004)
    ('50%', '-3.1%', '2e-06%', '0.04%')
    """
    value = 100 * share
    if value == 0:
        return "0%"
    if abs(value) < 0.001:
        return f"{value:.0e}%"
    return f"{value:.0f}%" if abs(value) >= 10 else f"{value:.2g}%"


def _heads(heads: list[dict[str, Any]]) -> str:
    known = [entry for entry in heads if entry["share"] is not None and entry["resolved"]]
    if not known:
        return ""
    largest = sorted(known, key=lambda entry: -abs(entry["share"]))[:3]
    named = [f"{entry['layer']}.{entry['head']} ({percent(entry['share'])})" for entry in largest]
    if len(named) == 1:
        return f"The only head, {named[0]}, is told as layer.head."
    sign = "" if all(entry["share"] >= 0 for entry in largest) else " of either sign"
    return (
        f"The heads whose paths carry the largest shares{sign}, as layer.head: {', '.join(named)}; "
        "a path passes several heads."
    )


def elsewhere(sources: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What paths carry that do not start at the input: in all, and the largest single source of either sign.

    Shares have signs, so that the largest need not be most of the sum: it may have the other sign, or exceed the sum
    because others cancel it. ``is_most`` where it is a part of the sum, and more than half of it.
    None where shares are not defined, or nothing starts elsewhere.
    """
    biases = [entry for entry in sources if entry["source"] != "input" and entry["share"] is not None]
    largest = max(biases, key=lambda entry: abs(entry["share"]), default=None)
    own = next((entry["share"] for entry in sources if entry["source"] == "input"), None)
    if own is None or largest is None or not largest["share"]:
        return None
    share = sum(entry["share"] for entry in biases)
    return {
        "input": own,
        "share": share,
        "largest": {name: largest[name] for name in ("source", "layer", "share")},
        "is_most": share != 0 and 0.5 < largest["share"] / share <= 1,
    }


def _sources(sources: list[dict[str, Any]]) -> str:
    found = elsewhere(sources)
    if found is None:
        return ""
    one = found["largest"]
    much = "most of it" if found["is_most"] else "the largest single share"
    return (
        f"Paths from the input carry {percent(found['input'])}, those that start elsewhere {percent(found['share'])}, "
        f"{much} at the {one['source']} of layer {one['layer']} ({percent(one['share'])})."
    )


def _cancelled(spectrum: list[dict[str, Any]]) -> str:
    ratio = spectrum[-1]["cancellation_ratio"] if spectrum else None
    if ratio is None or ratio < 2:
        return ""
    return f"Lengths cancel each other: the norms of what they add sum to {ratio:.2g} times the norm of the output."


def _top(search: dict[str, Any], top: list[dict[str, Any]], sites: list[dict[str, Any]], texts: int) -> str:
    if not top:
        return ""
    where = "" if texts == 1 else " (of the first text)"
    if not search["ranked"]:
        return (
            f"No single path from the input is the strongest by {search['score']}{where}: the scores of all {len(top)} "
            "that were found are rounding, which has no order."
        )
    best = top[0]
    passed = [
        f"L{site['layer']} h{head}"
        for site, head in zip(sites, best["heads"], strict=True)
        if head is not None
    ]
    route = f"that through {' > '.join(passed)}" if passed else "the one that passes by every head"
    share = "" if best["share"] is None else f", with {percent(best['share'])} of the output"
    sentence = f"The strongest single path from the input by {search['score']} is {route}{share}{where}"
    if search["exact"]:
        return f"{sentence}; the list of {len(top)} is proven complete."
    if search["ranked"] < len(top):
        known = f"is not proven complete: from place {search['ranked'] + 1} on scores are rounding, which has no order"
    elif not search["tells"]:
        known = "is the best that was found, nothing is proven of the others"
    else:
        known = f"is not proven complete: a path left out could score up to {1 + search['gap']:.2g} times the last one"
    return f"{sentence}; the list of {len(top)} {known}. {more_words(search)}".rstrip()


def more_words(search: dict[str, Any]) -> str:
    """What a proof of the list would cost, at least.

    >>> more_words({"seconds": 3.0, "waiting": 1200, "seconds_more": 6.4})
    'After 3 s 1,200 prefixes wait, and one more step for each takes about 7 s: a proof needs --seconds 10 at least.'
    """
    if not search["waiting"]:
        return ""
    waits = f"{search['waiting']:,} prefix{'es wait' if search['waiting'] != 1 else ' waits'}"
    if search["seconds_more"] is None:
        return f"{waits}; --seconds N gives the proof N seconds."
    needed = max(math.ceil(search["seconds"] + search["seconds_more"]), math.ceil(search["seconds"]) + 1)
    return (
        f"After {search['seconds']:g} s {waits}, and one more step for each takes about "
        f"{math.ceil(search['seconds_more'])} s: a proof needs --seconds {needed} at least."
    )
