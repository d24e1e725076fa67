"""A document as text, for a terminal or a file: aligned columns of any width, faint cells dimmed on a terminal.

Control characters of names and files never reach the terminal.
"""

from collections.abc import Iterable, Sequence
from functools import singledispatch
from textwrap import fill

from rankscope.core.words import printable
from rankscope.document.blocks import (
    Beside,
    Block,
    Cell,
    Document,
    Facts,
    Figure,
    Lines,
    Notes,
    Prose,
    Section,
    Strip,
    Tabular,
    Verdict,
    for_reader,
    text_of,
)

DIM = "\x1b[2m{}\x1b[0m"

STAR = "*"
"""Follows a number that is not above its rounding floor."""

LONGEST_LINE = 110
"""Letters of a line of running text."""


def to_text(document: Document, *, dims: bool = False) -> str:
    """The document as text; ``dims`` marks faint cells by codes that a terminal understands."""
    head = "\n".join(map(printable, [document.title, *document.facts]))
    text = "\n\n".join([head, *_all(document.blocks, dims)]) + "\n"
    return (
        text
        if document.width is None
        else "\n".join(_narrow(line, document.width) for line in text.split("\n"))
    )


def _narrow(line: str, width: int) -> str:
    """A sentence broken at a width; rows of tables, code and lists, which have wider gaps, stay as they are.

    >>> _narrow("a sentence that is too long", 12)
    'a sentence\\nthat is too\\nlong'
    """
    is_prose = len(line) > width and "  " not in line
    return fill(line, width, break_long_words=False, break_on_hyphens=False) if is_prose else line


def align(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Columns of equal width, one line per row, with a rule below the head; numbers stand to the right.

    A star behind some numbers of a column stands to the right of all of them.

    >>> align(["layer", "value"], [["1", "0.5"], ["12", "0.25"]], [False, True])
    ['layer  value', '-----  -----', '1        0.5', '12      0.25']
    >>> align(["layer", "value"], [["1", "0.5"], ["12", "0.25*"]], [False, True])
    ['layer  value', '-----  -----', '1       0.5', '12     0.25*']
    """
    starred = [
        is_right and any(row[place].endswith(STAR) for row in rows) for place, is_right in enumerate(right)
    ]
    rows = [
        [
            f"{cell} " if has_star and cell and not cell.endswith(STAR) else cell
            for cell, has_star in zip(row, starred, strict=True)
        ]
        for row in rows
    ]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(head), "  ".join("-" * width for width in widths), *map(line, rows)]


def _all(blocks: Iterable[Block], dims: bool) -> list[str]:
    return [text for block in for_reader(blocks, "text") if (text := _text(block, dims))]


@singledispatch
def _text(block: Block, dims: bool) -> str:
    raise TypeError(f"no writer knows the block {type(block).__name__}")


@_text.register
def _(block: Verdict, dims: bool) -> str:
    return printable("\n".join(block.sentences))


@_text.register
def _(block: Notes, dims: bool) -> str:
    return printable("\n".join(block.lines))


@_text.register
def _(block: Prose, dims: bool) -> str:
    """With a title, paragraphs are indented below it, one after the other; without, blank lines part them."""
    first, later = ("   ", "     ") if block.title else ("", "")
    wrapped = [
        fill(_one_line(one), LONGEST_LINE, initial_indent=first, subsequent_indent=later)
        for one in block.paragraphs
    ]
    return "\n".join([_one_line(block.title), *wrapped]) if block.title else "\n\n".join(wrapped)


@_text.register
def _(block: Facts, dims: bool) -> str:
    if not block.pairs:
        return ""
    width = max(len(name) for name, _ in block.pairs)
    lines = [f"{name.ljust(width)}  {value}" for name, value in block.pairs]
    return printable("\n".join([*([block.title] if block.title else []), *lines]))


@_text.register
def _(block: Tabular, dims: bool) -> str:
    shown = block.shown()
    rows = [[_one_line(text_of(cell)) for cell in row] for row in shown.rows]
    right = [column.kind == "number" for column in shown.columns]
    lines = align([_one_line(column.name) for column in shown.columns], rows, right)
    if dims:
        faint = [
            all(isinstance(cell, Cell) and cell.faint for cell in row[1:]) and len(row) > 1
            for row in shown.rows
        ]
        lines[2:] = [
            DIM.format(line) if is_faint else line for line, is_faint in zip(lines[2:], faint, strict=True)
        ]
    over = [printable(one) for one in (block.title, block.note) if one]
    return "\n".join([*over, *lines])


@_text.register
def _(block: Figure, dims: bool) -> str:
    return ""


@_text.register
def _(block: Strip, dims: bool) -> str:
    said = ", ".join(f"{one.where}: {one.words}" for one in block.stretches)
    return printable(f"{block.title}: {said}") if said else ""


@_text.register
def _(block: Lines, dims: bool) -> str:
    return printable("\n".join(block.lines))


@_text.register
def _(block: Beside, dims: bool) -> str:
    return "\n\n".join(_all([*block.left, *block.right], dims))


@_text.register
def _(block: Section, dims: bool) -> str:
    inside = _all(block.blocks, dims)
    if not inside:
        return ""
    head = printable("\n".join(filter(None, [block.title, block.note])))
    return "\n".join([head, "\n\n".join(inside)])


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
