"""The table: tidy rows of numbers with their provenance, and the files they are kept in. No torch."""

from rankscope.results.files import check_output as check_output
from rankscope.results.files import write_atomically as write_atomically
from rankscope.results.formats import TABLE_FORMATS as TABLE_FORMATS
from rankscope.results.statistics import FACTORS as FACTORS
from rankscope.results.statistics import MEANS as MEANS
from rankscope.results.statistics import UNRESOLVED_MARK as UNRESOLVED_MARK
from rankscope.results.statistics import Decision as Decision
from rankscope.results.statistics import Outcome as Outcome
from rankscope.results.statistics import is_split as is_split
from rankscope.results.statistics import layer_summary as layer_summary
from rankscope.results.table import COLUMNS as COLUMNS
from rankscope.results.table import Record as Record
from rankscope.results.table import Table as Table
from rankscope.results.table import provenance as provenance

__all__ = [
    "COLUMNS",
    "FACTORS",
    "MEANS",
    "TABLE_FORMATS",
    "UNRESOLVED_MARK",
    "Decision",
    "Outcome",
    "Record",
    "Table",
    "check_output",
    "is_split",
    "layer_summary",
    "provenance",
    "write_atomically",
]
