"""A table as a small static piece of HTML for notebooks: no JavaScript, everything escaped."""

from html import escape
from typing import Any

import polars as pl

from rankscope.results.plain import json_of

ROWS_SHOWN = 10


def table_html(frame: pl.DataFrame, *, command: str, provenance: dict[str, Any]) -> str:
    """Shape, the first rows (columns that are null throughout left out), command and provenance."""
    empty = [name for name in frame.columns if frame.height and frame[name].null_count() == frame.height]
    shown = frame.head(ROWS_SHOWN).drop(empty)
    head = "".join(f"<th>{escape(name)}</th>" for name in shown.columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown.rows())
    more = f", first {ROWS_SHOWN} shown" if frame.height > ROWS_SHOWN else ""
    without = f", all null: {escape(', '.join(empty))}" if empty else ""
    command_line = f"<p><code>{escape(command)}</code></p>" if command else ""
    origin = escape(json_of(provenance, indent=2))
    return (
        f"<div><p>rankscope table: {frame.height} rows, {frame.width} columns{more}{without}</p>"
        f"{command_line}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<details><summary>provenance</summary><pre>{origin}</pre></details></div>"
    )


def _cell(entry: object) -> str:
    if entry is None:
        return "<td></td>"
    return f"<td>{escape(f'{entry:.4g}' if isinstance(entry, float) else str(entry))}</td>"
