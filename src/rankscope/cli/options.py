"""Options that several commands share, and how their texts are read."""

from enum import StrEnum
from pathlib import Path

FORMATS = {".json": "json", ".csv": "csv", ".html": "html", ".parquet": "parquet", ".txt": "table"}
"""Output format by file ending, where --format does not say."""


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    PARQUET = "parquet"  # to a file only


def listed(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list; commas inside square brackets belong to the item.

    >>> listed("residual[frobenius,mean], cosine")
    ('residual[frobenius,mean]', 'cosine')
    """
    items, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    items.append(text[start:])
    return tuple(stripped for item in items if (stripped := item.strip()))


def chosen_format(format_: Format | None, output: Path | None) -> Format:
    """The format asked for, or the one the output's ending names, or a table for reading."""
    if format_ is not None:
        return format_
    ending = "" if output is None else output.suffix.lower()
    return Format(FORMATS.get(ending, "table"))
