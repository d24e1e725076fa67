"""What was found of a system, as text for the terminal."""

from itertools import chain
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rankscope.cli.output import printable, text_table
from rankscope.results.equilibria_lines import (
    BASIN_HEADER,
    LIST_HEADER,
    LIST_LEGEND,
    basin_lines,
    fact_lines,
    headline,
    list_lines,
    token_lines,
    which_words,
)

if TYPE_CHECKING:
    from rankscope.results import Table

WIDTH = 120


def equilibria_text(table: "Table") -> str:
    """The system, the equilibrium, where starts ended, all equilibria, notes."""
    told = table.sections
    config = table.provenance.get("config", {})
    lines = [f"X <- norm(A X W): {headline(told['system'])}"]
    lines += _note(told["system"]["note"]) if told["system"]["note"] else []
    lines += ["", *_equilibrium(told["equilibrium"], config.get("rank"))]
    if told["basins"]["shares"]:
        starts, steps = told["basins"]["starts"], told["basins"]["steps"]
        lines += ["", f"where {starts:,} random starts are after at most {steps:,} steps"]
        lines += [text_table(BASIN_HEADER, basin_lines(told["basins"]))]
    if len(told["equilibria"]) > 1:
        listed = list_lines(told["equilibria"], told["equilibrium"])
        lines += ["", "equilibria", text_table(LIST_HEADER, listed), *wrap(LIST_LEGEND, WIDTH)]
    lines += [""] if told["notes"] else []
    lines += chain.from_iterable(_note(one) for one in told["notes"])
    return printable("\n".join(lines))


def _note(words: str) -> list[str]:
    return wrap(words, WIDTH, initial_indent="note: ", subsequent_indent="  ")


def _equilibrium(one: dict[str, Any] | None, rank: int | None) -> list[str]:
    if one is None:
        return ["no equilibrium was found; how the starts ended is below"]
    facts = fact_lines(one)
    width = max(len(name) for name, _ in facts)
    lines = [
        wrap(words, WIDTH, initial_indent=f"  {name:<{width}}  ", subsequent_indent=" " * (width + 4))
        for name, words in facts
    ]
    return [which_words(one, rank), *chain.from_iterable(lines), text_table(*token_lines(one))]
