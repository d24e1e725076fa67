"""Results that could not be written where they should go are kept aside, not lost."""

from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.errors import RankscopeError

if TYPE_CHECKING:
    from rankscope.results import Table


def kept_aside(table: "Table", name: str) -> str:
    """In words where the table is now: a file in the folder for temporary files, if that can be written."""
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="rankscope-")) / f"{name}.json"
    try:
        table.save(place)
    except (RankscopeError, OSError):
        return "nor could the results be kept in the folder for temporary files"
    return f"the results are in {place}"
