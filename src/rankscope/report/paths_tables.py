"""The tables of a report about paths: lengths, single paths, sources, and whatever else the study measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.plots.markup import Fragment, tag
from rankscope.plots.paths_colors import largest
from rankscope.plots.paths_hover_pairs import share_bar
from rankscope.plots.paths_sections import Length, Place, SourceValue, TopPath
from rankscope.plots.paths_words import count_words, percent, route_words
from rankscope.plots.scan_entries import clipped, number
from rankscope.report.common import text_of
from rankscope.results import UNRESOLVED_MARK

MOST_ROWS = 400
"""Rows of a table that a page shows; the JSON holds all of them."""

OTHERS = {
    "mlps": ("Heads and MLPs", "Lengths told apart by the number of MLPs that a path passes too."),
    "samples": (
        "Single paths",
        "Mean residual ratio of single paths drawn at random, by length and sense of a path.",
    ),
    "gaps": (
        "Frozen against re-run",
        "How far a re-run path is from the frozen one, relative to it, by length.",
    ),
}
"""Sections that are shown as they are, if the table has them: heading and what the rows are."""

Cells = Sequence[str]


def spectrum_table(lengths: list[Length]) -> Fragment:
    """A row per length."""
    names = (
        "length", "paths", "of all paths", "share of the output", "norm", "residual", "token cosine",
        "cosine to the output", "cancellation",
    )  # fmt: skip
    rows = [
        (
            str(one.length), count_words(one.paths), percent(one.path_share, 3),
            percent(one.share, 3) + _mark(one.resolved), number(one.norm), number(one.residual) + _mark(one.resolved),
            number(one.cosine), number(one.cosine_to_output), number(one.cancellation_ratio),
        )
        for one in lengths
    ]  # fmt: skip
    return table_of(names, rows, "all lengths")


def top_table(paths: list[TopPath], places: list[Place]) -> Fragment:
    """A row per path of the list, with all its heads."""
    names = ("rank", "length", "norm", "residual", "share of the output", "heads on the path")
    rows = [
        (
            str(path.rank), str(path.length), number(path.norm), number(path.residual), percent(path.share, 3),
            route_words(path, places, most=len(places)),
        )
        for path in paths
    ]  # fmt: skip
    return table_of(names, rows, "the largest paths", texts=1)


def source_sums(sources: list[SourceValue]) -> Fragment:
    """A row per kind of source, its shares summed over layers, largest first."""
    sums: dict[str, list[float]] = {}
    for one in sources:
        sums.setdefault(one.source, []).append(one.share or 0.0)
    ordered = sorted(sums.items(), key=lambda item: -abs(sum(item[1])))
    most = largest(sum(shares) for shares in sums.values())
    rows = [
        tag(
            "tr", tag("th", clipped(name, 60), scope="row"), tag("td", str(len(shares)), class_="number"),
            tag("td", share_bar(sum(shares), most), class_="share"),
        )
        for name, shares in ordered
    ]  # fmt: skip
    head = [
        tag("th", "source", scope="col"), tag("th", "places", scope="col", class_="number"),
        tag("th", "share of the output", scope="col", class_="share"),
    ]  # fmt: skip
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="listed")


def source_table(sources: list[SourceValue]) -> Fragment:
    """A row per source and layer; nothing if there is one source alone."""
    if len(sources) < 2:
        return Fragment()
    rows = [
        (
            clipped(one.source, 60), "" if one.layer is None else str(one.layer), percent(one.share, 3),
            number(one.norm), number(one.residual),
        )
        for one in sources
    ]  # fmt: skip
    return table_of(("source", "layer", "share of the output", "norm", "residual"), rows, "sources by layer")


def other_tables(sections: Mapping[str, Any]) -> list[tuple[str, str, Fragment]]:
    """Heading, meaning and table of every section of ``OTHERS`` that is a list of objects."""
    found = []
    for section, (name, words) in OTHERS.items():
        rows = sections.get(section)
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            found.append((name, words, _objects(rows, name)))
    pruned = pruning_table(sections.get("pruning"))
    return [*found, ("Pruning", _pruning_words(sections["pruning"]), pruned)] if pruned else found


def pruning_table(pruning: Any) -> Fragment:
    """A row per number of heads removed: what is lost in the order of each method, with its spread over draws."""
    curves = pruning.get("curves") if isinstance(pruning, Mapping) else None
    known = [one for one in curves if isinstance(one, Mapping)] if isinstance(curves, list) else []
    lost = {
        clipped(str(one.get("method")), 40): dict(
            zip(
                one.get("removed", []),
                zip(one.get("lost", []), one.get("spread", []), strict=False),
                strict=False,
            )
        )
        for one in known
    }
    counts = sorted({count for own in lost.values() for count in own})
    rows = [[str(count), *(_spread(own.get(count)) for own in lost.values())] for count in counts]
    return table_of(("heads removed", *lost), rows, "what is lost without heads") if rows else Fragment()


def _pruning_words(pruning: Mapping[str, Any]) -> str:
    of = clipped(str(pruning.get("of", "")), 80)
    return f"What is lost ({of}) when heads are removed, those first that each method takes to matter least."


def _spread(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return ""
    lost, spread = ends
    return number(lost) + (f" ± {number(spread, 2)}" if spread else "")


def _objects(rows: list[dict[str, Any]], words: str) -> Fragment:
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_text(row.get(name)) for name in names] for row in rows]
    return table_of([clipped(name.replace("_", " "), 40) for name in names], cells, words)


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return count_words(value)
    return number(value) if isinstance(value, float) else clipped(text_of(value), 120)


def table_of(names: Cells, rows: Sequence[Cells], words: str, *, texts: int = 0) -> Fragment:
    """A table whose first column names the row; the last ``texts`` columns are aligned left."""
    numbers = len(names) - texts
    head = [tag("th", name, scope="col", class_=_look(at, numbers)) for at, name in enumerate(names)]
    body = [
        tag(
            "tr", tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=_look(at, numbers)) for at, cell in enumerate(row[1:], start=1)),
        )
        for row in rows[:MOST_ROWS]
    ]  # fmt: skip
    left_out = len(rows) - len(body)
    more = tag("p", f"{left_out} more rows are in the JSON.", class_="note") if left_out else Fragment()
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_="listed")
    return tag("div", table, more, class_="wide", tabindex=0, role="region", aria_label=words)


def _look(column: int, numbers: int) -> str | None:
    return "number" if 0 < column < numbers else None


def _mark(resolved: bool) -> str:
    return "" if resolved else UNRESOLVED_MARK
