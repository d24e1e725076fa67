"""Blame and suggestions of an ablation as lines of text, for the terminal and for the page."""

from collections.abc import Mapping
from typing import Any

Lines = tuple[list[str], list[list[str]]]
"""A header and its rows."""


def headings(sections: Mapping[str, Any]) -> dict[str, str]:
    """What stands above each section: whom it is about.

    >>> headings({"blame": {"of": "the full model (transformer), mask causal"}})["blame"]
    'blame of the full model (transformer), mask causal'
    """
    starts = {"blame": "blame of", "suggest": "what would help"}
    return {
        name: f"{start} {sections[name].get('of', 'the whole model')}"
        for name, start in starts.items()
        if name in sections
    }


def blame_lines(section: dict[str, Any]) -> Lines:
    """One line per block and one for all: the change of the log ratio by every kind of part, and their sum.

    Where some text is left out of a line, a column says over how many each of them is the mean.
    """
    lines = [*section["blocks"], section | {"block": "all"}]
    kinds = list(dict.fromkeys(kind for line in lines for kind in line["kinds"] or ()))
    is_whole = all(line["texts"] == section["all texts"] for line in lines)
    rows = [
        [
            str(line["block"]),
            *(_change((line["kinds"] or {}).get(kind)) for kind in kinds),
            _change(line["total"] if line["kinds"] else None),
            *([] if is_whole else [str(line["texts"])]),
        ]
        for line in lines
    ]
    return ["block", *kinds, "sum", *([] if is_whole else ["texts"])], rows


def suggest_lines(section: dict[str, Any]) -> Lines:
    """One line per what-if, best first: the ratio of the last layer before and after, mean log of their quotient.

    A ratio that is not above the rounding floor in every text is at most what stands there.
    """
    name = section["ranked by"]
    rows = [
        [
            one["what_if"],
            *(_number(one[f"{when} {name}"], one[f"{when} at most"]) for when in ("before", "after")),
            f"{'>= ' if one['at least'] else ''}{_change(one['gain'])}",
            one["reason"] or "",
        ]
        for one in section["what_ifs"]
    ]
    return ["what if", "before", "after", "gain", "note"], rows


def _change(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _number(value: float | None, is_bound: bool) -> str:
    return "-" if value is None else f"{'<= ' if is_bound else ''}{value:.3g}"
