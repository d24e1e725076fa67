"""Heat maps as HTML tables: numbers in the cells where there is room, on hover and touch everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.plots.heat_colors import Shade, step_of
from rankscope.plots.markup import Fragment, joined, tag
from rankscope.plots.scan_entries import FINAL, Entry, marked, number

NUMBERS_UP_TO = 16
"""With more columns than this, cells are too narrow for numbers at any width."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column: group and name of its head, its colors, and its entry by row, where there is one."""

    group: str
    name: str
    words: str
    shade: Shade
    entries: dict[str, Entry]


def hover_heat(
    columns: Sequence[Column], rows: Sequence[str], *, words: str, corner: str = "layer"
) -> Fragment:
    """A table with a row per layer: colors from the shade of each column, stars and hatching where unresolved.

    The foot says which value is darkest and which brightest, per column.
    """
    body = [
        tag("tr", tag("th", row, scope="row"), *(_cell(column, row) for column in columns)) for row in rows
    ]
    return tag(
        "table",
        tag("caption", words, class_="unseen"),
        tag("thead", *_head(columns, corner)),
        tag("tbody", *body),
        tag("tfoot", *(_foot(columns, end) for end in ("dark", "bright"))),
        class_="heat measures" + (" numbers" if len(columns) <= NUMBERS_UP_TO else ""),
        style=f"--n:{len(columns)}",
    )


def head_heat(entries: Sequence[Entry], shade: Shade, *, words: str) -> Fragment:
    """A table with a row per layer and a column per head of one map measure, and a bar that explains the colors.

    The note of a cell holds its number alone; layer and head come from counters of the style sheet, because a deep
    model has thousands of cells.
    """
    heads = range(1 + max((entry.head for entry in entries if entry.head is not None), default=0))
    layers = sorted({entry.layer for entry in entries})
    found = {(entry.layer, entry.head): entry for entry in entries}
    has_numbers = len(heads) <= NUMBERS_UP_TO
    body = [
        tag(
            "tr",
            tag("th", str(layer), scope="row"),
            *(_head_cell(found.get((layer, head)), shade, has_numbers) for head in heads),
            style=f"counter-reset:layer {layer} head -1",
        )
        for layer in layers
    ]
    every = -(-len(heads) // NUMBERS_UP_TO)
    names = [tag("th", str(head) if head % every == 0 else "") for head in heads]
    table = tag(
        "table",
        tag("caption", words, class_="unseen"),
        tag("thead", tag("tr", tag("th", tag("span", "layer"), class_="corner"), *names)),
        tag("tbody", *body),
        class_="heat heads" + (" numbers" if has_numbers else ""),
        style=f"--n:{len(heads)}",
    )
    return joined(table, color_bar(shade))


def color_bar(shade: Shade) -> Fragment:
    """The colors from dark to bright, with the value at either end."""
    return tag(
        "p",
        tag("span", number(shade.dark)),
        tag("i", class_="bar"),
        tag("span", number(shade.bright) + (" (log)" if shade.is_log else "")),
        class_="colors",
    )


def row_names(entries: Sequence[Entry]) -> list[str]:
    """Layers in order, then the final norm if it was measured."""
    layers = sorted({entry.layer for entry in entries if entry.site != FINAL})
    return [*map(str, layers), *([FINAL] if any(entry.site == FINAL for entry in entries) else [])]


def row_name(entry: Entry) -> str:
    """The row of an entry: its layer, or the final norm."""
    return FINAL if entry.site == FINAL else str(entry.layer)


def _head(columns: Sequence[Column], corner: str) -> list[Fragment]:
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    over = [tag("th", tag("span", name), colspan=span, scope="colgroup") for name, span in groups]
    under = [tag("th", tag("span", column.name), scope="col") for column in columns]
    return [
        tag("tr", tag("th", tag("span", corner), rowspan=2, class_="corner"), *over, class_="groups"),
        tag("tr", *under),
    ]


def _foot(columns: Sequence[Column], end: str) -> Fragment:
    ends = [column.shade.dark if end == "dark" else column.shade.bright for column in columns]
    return tag("tr", tag("th", end, scope="row"), *(tag("td", number(value, 2)) for value in ends))


def _cell(column: Column, row: str) -> Fragment:
    return _colored(
        column.entries.get(row),
        column.shade,
        f"{'final norm' if row == FINAL else f'layer {row}'}, {column.words}",
    )


def _head_cell(entry: Entry | None, shade: Shade, has_number: bool) -> Fragment:
    if entry is None or entry.mean is None:
        return tag("td", tag("b", number(None)), class_="none")
    text = marked(entry, 2) if has_number else ""
    return tag("td", text, tag("b", marked(entry)), class_=_color(entry, entry.mean, shade))


def _colored(entry: Entry | None, shade: Shade, words: str) -> Fragment:
    if entry is None:
        return tag("td")
    if entry.mean is None:
        return tag("td", number(None), tag("b", f"{words}: no number"), class_="none")
    note = f"{words}: {marked(entry)}" + ("" if entry.is_resolved else ", not resolved in every text")
    return tag("td", marked(entry, 2), tag("b", note), class_=_color(entry, entry.mean, shade))


def _color(entry: Entry, mean: float, shade: Shade) -> str:
    step = f"c{step_of(shade.share(mean))}"
    return step if entry.is_resolved else f"{step} low"
