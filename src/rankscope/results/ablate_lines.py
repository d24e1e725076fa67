"""Blame and suggestions of an ablation as lines of text, for the terminal and for the page."""

from typing import Any

Lines = tuple[list[str], list[list[str]]]
"""A header and its rows."""


def blame_lines(section: dict[str, Any]) -> Lines:
    """One line per block and one for all: the change of the log ratio by every kind of part, and their sum."""
    kinds = list(section["kinds"])
    lines = [*section["blocks"], {"block": "all", "kinds": section["kinds"]}]
    rows = [
        [
            str(line["block"]),
            *(f"{line['kinds'][kind]:+.3f}" if kind in line["kinds"] else "-" for kind in kinds),
            f"{sum(line['kinds'].values()):+.3f}" if line["kinds"] else "-",
        ]
        for line in lines
    ]
    return ["block", *kinds, "sum"], rows


def suggest_lines(section: dict[str, Any]) -> Lines:
    """One line per what-if, best first: the ratio of the last layer before and after, and the log of their quotient."""
    name = section["ranked by"]
    rows = [
        [
            one["what_if"],
            *(_number(one[f"{when} {name}"]) for when in ("before", "after")),
            "-" if one["gain"] is None else f"{'>= ' if one['at least'] else ''}{one['gain']:+.3f}",
            one["reason"] or "",
        ]
        for one in section["what_ifs"]
    ]
    return ["what if", "before", "after", "gain", "note"], rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
