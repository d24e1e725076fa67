"""Results that were saved before findings had typed fields: they are printed and compared, not drawn."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rankscope.core.words import NOTHING, count, number
from rankscope.document import Column, Document, Section, Tabular, Verdict
from rankscope.errors import ConfigError
from rankscope.findings.base import OLD_SCHEMA, Finding

if TYPE_CHECKING:
    from rankscope.charts import Chart

MOST_ROWS = 20
"""Rows that are printed; the table holds all."""


class OldFinding(Finding):
    """A result of the schema rankscope/1: its rows, and the sentences that were saved with them.

    The table has everything that the file holds beside the rows as ``table.sections``.
    """

    @property
    def words(self) -> tuple[str, ...]:
        """The sentences that the sections hold; where there are none, what the file is."""
        return tuple(dict.fromkeys(self._saved())) or (
            f"{count(len(self.table), 'row')} of rankscope {self.table.command}, without sentences.",
        )

    def _saved(self) -> Iterator[str]:
        for section in self.table.sections.values():
            found = section.get("words") if isinstance(section, dict) else None
            for one in found if isinstance(found, list) else [found]:
                if isinstance(one, str) and one:
                    yield one

    def to_json(self) -> str:
        """The JSON object as it was read, of the same schema."""
        return self.table.to_json_text()

    def document(self) -> Document:
        """The sentences, and the first rows."""
        frame = self.table.frame
        told = [name for name in frame.columns if name != "run" and frame[name].n_unique() > 1]
        shown = [name for name in frame.columns if name in {"definition", "value", "floor", *told}]
        rows = [[_cell(row[name]) for name in shown] for row in frame.head(MOST_ROWS).iter_rows(named=True)]
        columns = [Column(name, "number" if frame[name].dtype.is_numeric() else "name") for name in shown]
        more = f"the first {MOST_ROWS} of {len(self.table)}" if len(self.table) > MOST_ROWS else ""
        return Document(
            title=f"Result of rankscope {self.table.command}",
            command=self.table.command,
            facts=[count(len(self.table), "row"), f"schema {OLD_SCHEMA}"],
            blocks=[
                Verdict("Saved by an earlier version", self.words),
                Section("Rows", [Tabular(columns=columns, rows=rows)], note=more),
            ],
            origin=self.provenance,
        )

    def chart(self) -> "Chart":
        """Nothing: what could be drawn is not typed."""
        raise ConfigError(
            f"a result of {OLD_SCHEMA} is printed and compared, not drawn; run rankscope {self.table.command} again"
        )


def _cell(value: object) -> str:
    if value is None:
        return NOTHING
    return number(value) if isinstance(value, float) else str(value)
