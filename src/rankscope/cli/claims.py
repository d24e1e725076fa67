"""``rankscope claims``: statements about collapse, run, with a verdict and the number that shows it."""

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import seed_list
from rankscope.cli.output import command_line, note, prepared, progress, text_table, write_table

if TYPE_CHECKING:
    from rankscope.results import Table

WIDTH = 110


def claims(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="[ID]...",
            help="Claims to run, see 'rankscope list claims'; all if none is named.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, Option(help="Of the random draws.", show_default="0")] = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> None:
    """Run statements of the papers, and of rankscope, and say which hold and which are false.

    A verdict follows from computed numbers. One claim alone is printed whole: statement, source, the assumption or the
    counter-example with its entries, and all numbers. Exit code 1 if a verdict is not the expected one.
    """
    wanted = prepared(format_, output)
    from rankscope.papers.claims import CLAIMS, check_claims

    for name in names or ():
        _ = CLAIMS[name]  # a wrong name stops before any work
    with progress("claims") as told:
        table = check_claims(names or (), seed=seed_list(None, seed)[0], progress=told)
    write_table(table, "Claims about rank collapse", wanted, output, None, text=_text, page=_page)
    wrong = [one for one in table.sections["claims"] if not one["as_expected"]]
    if wrong:
        for one in wrong:
            note(f"{one['id']}: expected {one['expected']!r}, found {one['verdict']!r}")
        raise typer.Exit(1)


def _text(table: "Table") -> str:
    found = table.sections["claims"]
    if len(found) == 1:
        return _whole(found[0])
    rows = [[one["id"], one["verdict"], one["number"]["text"], one["number"]["means"]] for one in found]
    return text_table(["claim", "verdict", "number", "what it is"], rows)


def _whole(one: Mapping[str, Any]) -> str:
    from rankscope.report.claims_page import told_verdict

    told = [[number["text"], number["means"]] for number in one["numbers"]]
    told += [[entry["text"], entry["label"]] for entry in one["details"]]
    paragraphs = [
        f"{one['id']}: {one['title']}",
        one["statement"],
        f"Source: {one['source']}",
        f"Verdict: {told_verdict(one)}",
        one["words"],
    ]
    return "\n\n".join(
        [*(fill(text, WIDTH) for text in paragraphs), text_table(["number", "what it is"], told)]
    )


def _page(table: "Table", title: str) -> str:
    from rankscope.report.claims_page import claims_page

    return claims_page(table, title=title, command=command_line())
