"""``rankscope compare``: what changed between scans, beyond chance and beyond rounding."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from rankscope.cli import options
from rankscope.cli.options import Format, listed
from rankscope.cli.output import exit_code, prepared, text_table, write_table
from rankscope.errors import ConfigError

if TYPE_CHECKING:
    from rankscope.results import Table

LARGEST = 10
"""Rows of the table under the words; the other formats hold all."""


def compare(
    scans: Annotated[
        list[Path],
        Argument(help="Saved scans (.json, .parquet, .csv), the first is the baseline.", show_default=False),
    ],
    measure: Annotated[
        str | None, Option(help="Only these definitions, see 'rankscope list measures'; comma list.")
    ] = None,
    site: Annotated[
        str | None, Option(help="Only these sites: block, attention, mlp, final; comma list.")
    ] = None,
    alpha: Annotated[float, Option(help="Share of false calls allowed among the changes called.")] = 0.05,
    fail_if_changed: Annotated[
        bool, Option("--fail-if-changed", help="Exit with code 1 if anything changed significantly.")
    ] = False,
    undecided: options.Undecided = None,
    format_: options.AsFormat = None,
    output: options.Output = None,
) -> int:
    """Compare two or more scans: checkpoints of a run, before and after a fix, two dtypes.

    A change counts if it is beyond chance over the texts, after correction for the many numbers compared, and beyond
    what rounding in either scan can make. Three or more scans also show the trend over the series; a record of
    training is a series by itself.
    """
    wanted = prepared(format_, output, reads=scans)
    if wanted is Format.HTML:
        raise ConfigError("compare has no format html; use table, json, csv or parquet")
    from rankscope.studies.compare_study import compare as run
    from rankscope.studies.compare_study import has_changed

    table = run(*scans, measures=listed(measure or ""), sites=listed(site or ""), alpha=alpha)
    write_table(table, "", wanted, output, None, text=compared_text)
    return exit_code([has_changed(table)] if fail_if_changed else [], undecided)


def compared_text(table: "Table") -> str:
    """The findings in words, then the ten largest changes; of a series, those of the last scan."""
    from rankscope.studies.compare_findings import by_size, number

    told = "\n".join(table.sections["compare"]["words"])
    last = table.sections["compare"]["scans"][-1]["name"]
    frame = table.frame.filter(table.frame["scan"] == last)
    is_tested = frame["spread"].null_count() < frame.height
    # Without a spread nothing is significant; then what is beyond rounding is all there is to show.
    shown = by_size(frame.filter(frame["significant"] if is_tested else frame["resolved"])).head(LARGEST)
    if not shown.height:
        return f"{told}\n"
    names = [name for name in ("stack", "head") if frame[name].n_unique() > 1]
    names += ["definition", "site", "layer"]
    numbers = ["before", "after", "change", "ratio", "spread", "z"]
    rows = [
        [*(_word(row[name]) for name in names), *(number(row[name]) for name in numbers)]
        for row in shown.to_dicts()
    ]
    what = "significant changes" if is_tested else "changes beyond rounding (no spread: not tested)"
    what = f"{what} of {last}" if len(table.sections["compare"]["scans"]) > 2 else what
    legend = "spread: standard error over texts; layer -: the last block of each"
    return f"{told}\n\nlargest {what}\n{text_table([*names, *numbers], rows)}\n{legend}\n"


def _word(value: object) -> str:
    return "-" if value is None else str(value)
