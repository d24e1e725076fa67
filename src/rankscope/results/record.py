"""One number with everything that says what it is a number of."""

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypeVar

import polars as pl

from rankscope.errors import ConfigError
from rankscope.results.schema import COLUMNS, Cell, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One row of a table. ``log10_value`` and ``resolved`` follow from ``value`` and ``floor`` unless given.

    >>> Record(measure="diameter", definition="diameter[l2]", value=0.5, floor=1e-15, layer=3).row()["layer"]
    3
    """

    measure: str
    definition: str
    value: float | None
    floor: float | None
    run: str | None = None
    model: str | None = None
    variant: str | None = None
    semantics: str | None = None
    mask: str | None = None
    norm: str | None = None
    seed: int | None = None
    sample: int | None = None
    layer: int | None = None
    site: str | None = None
    head: int | None = None
    log10_value: float | None = None
    resolved: bool | None = None
    extra: Row = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        clash = sorted(set(self.extra) & set(COLUMNS))
        if clash:
            raise ConfigError(
                f"added columns must have names of their own; {', '.join(clash)} is a fixed column: "
                f"pass it as Record({clash[0]}=...)"
            )

    def row(self) -> dict[str, Cell]:
        """Column name to entry: the fixed columns in order, then the added ones."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: own[name] for name in COLUMNS} | dict(self.extra)


T = TypeVar("T")


def read_rows(frame: pl.DataFrame, kind: type[T]) -> list[T]:
    """The rows of a frame as values of a dataclass, whose fields are the columns that are read.

    >>> from rankscope.results.summary import LayerMean
    >>> read_rows(pl.DataFrame([], schema=[one.name for one in fields(LayerMean)]), LayerMean)
    []
    """
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # a dataclass, as the text above says
    return [kind(**dict(zip(names, row, strict=True))) for row in frame.select(names).iter_rows()]
