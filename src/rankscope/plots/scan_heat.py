"""Layers by measures of a scan: as columns of a table that shows on hover, and as a chart."""

from collections.abc import Sequence
from typing import Any

from rankscope.errors import ConfigError, UnknownNameError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.heat_colors import VIRIDIS, ink_on, shade_toward_collapse, viridis
from rankscope.plots.hover_heat import Column, row_name, row_names
from rankscope.plots.scan_axes import means
from rankscope.plots.scan_entries import (
    FINAL,
    VARIANT_WORDS,
    Entry,
    clipped,
    full_label,
    label,
    marked,
    number,
    of_stack,
    parted,
    scan_entries,
    stacks_of,
)
from rankscope.plots.scan_panels import bases_of
from rankscope.plots.style import INK, configured
from rankscope.results import Table

CELL = 33
NARROW_CELL = 15
NUMBERS_UP_TO = 26
"""Charts of more layers have narrow cells without numbers."""


def scan_heat(table: Table, *, stack: str | None = None, site: str = "block") -> Chart:
    """A row per measure, a column per layer, dark where tokens are alike or one of them holds everything.

    Stacks stand below each other unless ``stack`` names one. A star marks a number that is not above its rounding
    floor in every text.
    """
    entries = scan_entries(table)
    stacks = stacks_of(entries)
    if stack is not None and stack not in stacks:
        raise UnknownNameError(f"the scan has no stack {stack!r}; it has: {', '.join(stacks) or 'none'}")
    wanted = stacks if stack is None else [stack]
    charts = []
    for name in wanted:
        columns = heat_columns(of_stack(entries, name), site=site, most=largest_rank(table, name))
        if columns:
            charts.append(_figure(columns, clipped(name) if len(stacks) > 1 else "", site, table))
    if not charts:
        known = ", ".join(dict.fromkeys(entry.site for entry in entries if entry.head is None))
        raise ConfigError(
            f"nothing to draw: the scan has no number at site {site!r}; it has: {known or 'none'}"
        )
    whole: Any = charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=30)
    names = ", ".join(map(clipped, wanted))
    words = f"Heat map of layers by measures at site {site} of {names}. Dark: tokens are alike."
    return configured(whole.properties(description=words))


def heat_columns(entries: Sequence[Entry], *, site: str, most: float | None) -> list[Column]:
    """The definitions measured at ``site`` of one stack; at the site block with the final norm as last row."""
    sites = ("block", FINAL) if site == "block" else (site,)
    here = [entry for entry in entries if entry.site in sites]
    groups: dict[str, dict[str, None]] = {base: {} for base in bases_of(here)}
    for entry in here:
        groups[parted(entry.definition)[0]][entry.definition] = None
    return [
        _column(definition, here, most, has_variants=len(definitions) > 1)
        for definitions in groups.values()
        for definition in definitions
    ]


def largest_rank(table: Table, stack: str) -> float | None:
    """The smaller of mean tokens and dim, if the section ``scan`` knows both."""
    scan = table.sections.get("scan")
    scan = scan if isinstance(scan, dict) else {}
    dims = scan.get("dims")
    found = [scan.get("tokens"), dims.get(stack) if isinstance(dims, dict) else None]
    known = [float(one) for one in found if isinstance(one, int | float)]
    return min(known) if len(known) == len(found) else None


def _column(definition: str, here: Sequence[Entry], most: float | None, *, has_variants: bool) -> Column:
    own = [entry for entry in here if entry.definition == definition]
    base, variant = parted(definition)
    return Column(
        group=label(base),
        name=VARIANT_WORDS.get(variant, variant) if has_variants else "",
        words=full_label(definition),
        shade=shade_toward_collapse(own[0].measure, means(own), most=most),
        entries={row_name(entry): entry for entry in own},
    )


def _figure(columns: list[Column], stack: str, site: str, table: Table) -> Any:
    rows = row_names([entry for column in columns for entry in column.entries.values()])
    cells = [_cell(column, row, entry) for column in columns for row, entry in column.entries.items()]
    width = CELL if len(rows) <= NUMBERS_UP_TO else NARROW_CELL
    step = 1 if len(rows) <= NUMBERS_UP_TO else 4
    layers = [row for row in rows if row != FINAL]
    # Of narrow cells the last number would run into the word beside it.
    free = len(layers) - (2 if step > 1 and FINAL in rows else 0)
    shown = [*layers[:free:step], *([FINAL] if FINAL in rows else [])]
    x = alt.X("row:N", sort=rows, axis=alt.Axis(title="layer", values=shown, labelAngle=0, orient="bottom"))
    y = alt.Y(
        "column:N", sort=[column.words for column in columns], axis=alt.Axis(title=None, labelLimit=320)
    )
    base = alt.Chart(alt.InlineData(values=cells)).encode(x=x, y=y)
    color = alt.Color(
        "share:Q",
        scale=alt.Scale(domain=[0, 1], range=list(VIRIDIS)),
        legend=alt.Legend(
            orient="bottom", title=None, gradientLength=220, values=[0, 1],
            labelExpr="datum.value == 0 ? 'alike' : 'different'",
        ),
    )  # fmt: skip
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("column", "row", "text")]
    marks = [base.mark_rect(stroke="white", strokeWidth=0.6).encode(color=color, tooltip=tooltip)]
    if len(rows) <= NUMBERS_UP_TO:
        ink = alt.when("datum.is_dark").then(alt.value("white")).otherwise(alt.value("black"))
        marks.append(base.mark_text(fontSize=9).encode(text="text:N", color=ink))
    else:
        star = alt.Chart(alt.InlineData(values=[cell for cell in cells if cell["low"]]))
        marks.append(star.mark_text(fontSize=9, color=INK, text="*").encode(x=x, y=y))
    names = [clipped(str(table.frame["model"][0]))] if len(table) and table.frame["model"][0] else []
    heading = alt.TitleParams(
        " · ".join([*names, *([stack] if stack else [])]) or "scan",
        subtitle=[
            f"after every {site}, mean over texts · dark: tokens alike, or one token or channel holds everything",
            f"{_ends(columns)} · *: not above the rounding floor",
        ],
        limit=900,
    )
    return alt.layer(*marks).properties(width=width * len(rows), height=22 * len(columns), title=heading)


def _ends(columns: list[Column]) -> str:
    """Values at the ends of the colors, for the measures that have ends of their own choice."""
    ratio = next((column.shade for column in columns if column.shade.is_log and column.shade.dark < 1), None)
    ratios = (
        f"ratios from {number(ratio.dark)} to 1 (log), shares from 0 to 1"
        if ratio
        else "ratios and shares from 0 to 1"
    )
    return f"{ratios}, ranks from 1 to the largest (log)"


def _cell(column: Column, row: str, entry: Entry) -> dict[str, Any]:
    share = None if entry.mean is None else column.shade.share(entry.mean)
    return {
        "column": column.words,
        "row": row,
        "share": share,
        "text": marked(entry, 2),
        "is_dark": share is not None and ink_on(viridis(share)) == "#fff",
        "low": entry.mean is not None and not entry.is_resolved,
    }
