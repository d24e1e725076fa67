"""A self-contained HTML page: figures, summary, definitions, provenance. No network, no JavaScript."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import polars as pl

from rankscope.plots import Chart, description, svg
from rankscope.report.common import definitions_of, entries_of, origin_of, provenance_text, rendered
from rankscope.results import MEANS, UNRESOLVED_MARK, Table, pivot


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A picture as a data address, and what it shows in words.

    In an ``img`` element an SVG can run no script, whatever its text says.
    """

    source: str
    words: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """The mean per layer of one definition: names of the line, layers, cells as text."""

    definition: str
    names: list[str]
    layers: list[str]
    lines: list[dict[str, str | None]]


def page(table: Table, charts: Sequence[Chart], *, title: str, command: str) -> str:
    """The page as HTML text: what was run, the charts as pictures, the mean per layer, definitions, provenance.

    Meanings of definitions are taken from the table's section ``definitions`` (id to text), if it has one.
    Everything that comes from outside is escaped.
    """
    ids = table.frame["definition"].drop_nulls().unique(maintain_order=True).to_list()
    return rendered(
        "page.html",
        title=title,
        command=command,
        facts=_facts(table),
        figures=[figure_of(chart) for chart in charts],
        summaries=_summaries(table),
        mark=UNRESOLVED_MARK,
        means=MEANS,
        definitions=definitions_of(table, ids),
        config=entries_of(table.provenance.get("config", {})),
        origin=origin_of(table),
        provenance=provenance_text(table),
    )


def figure_of(chart: Chart) -> Figure:
    drawn = svg(chart)
    root = ElementTree.fromstring(drawn)  # noqa: S314 - drawn here, not received from outside
    return Figure(
        source="data:image/svg+xml;base64," + b64encode(drawn.encode()).decode("ascii"),
        words=description(chart),
        width=round(float(root.attrib["width"])),
        height=round(float(root.attrib["height"])),
    )


def _facts(table: Table) -> list[str]:
    """One line each for what there is more or less of: rows, models, variants, masks, seeds."""
    frame = table.frame
    unresolved = int((~frame["resolved"]).sum())
    facts = [f"{frame.height:,} numbers, {unresolved:,} of them not above their rounding floor"]
    for name in ("model", "variant", "mask", "norm"):
        found = frame[name].drop_nulls().unique(maintain_order=True).to_list()
        facts += [f"{name}: {', '.join(found)}"] if found else []
    for name in ("seed", "sample"):
        count = frame[name].drop_nulls().n_unique()
        facts += [f"{count} {name}s"] if count > 1 else []
    return facts


def _summaries(table: Table) -> list[Summary]:
    wide = pivot(table)
    layers = [name for name in wide.columns if name.isdecimal()]
    names = [name for name in wide.columns if name not in layers and name != "definition"]
    shown = [name for name in names if wide[name].null_count() < wide.height]
    return [
        Summary(definition=str(definition), names=shown, layers=layers, lines=lines.to_dicts())
        for (definition,), lines in wide.with_columns(pl.col(shown).cast(pl.String)).group_by(
            "definition", maintain_order=True
        )
    ]
