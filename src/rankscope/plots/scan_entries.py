"""What a scan says over all its texts, read from the section ``summary`` of its table."""

from dataclasses import dataclass
from typing import Any

from rankscope.errors import ConfigError
from rankscope.results import UNRESOLVED_MARK, Table

VARIANTS = ("centered", "unit")
"""Tags that say what was done to the tokens before measuring; they stand last in a definition."""

USUAL = frozenset({"mean", "off_diagonal", "largest", "entropy", "map"})
"""Tags of the default panel that a short label need not repeat."""

VARIANT_WORDS = {"": "raw", "unit": "unit tokens", "centered": "centered", "centered,unit": "centered, unit"}

FINAL = "final"

SMALL = 1e-3
"""Numbers below are written with an exponent: 4.5e-4 is shorter than 0.00045."""

LONGEST = 80
"""Letters of a name that a figure shows; the list of definitions holds the whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One definition at one layer and site of one stack, over all texts; ``head`` for attention maps alone.

    ``mean`` is None where no text gave a number; ``resolved`` is the share of texts above their floor.
    """

    stack: str
    layer: int
    site: str
    head: int | None
    measure: str
    definition: str
    texts: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    floor: float | None
    resolved: float

    @property
    def is_resolved(self) -> bool:
        """Whether every text is above its rounding floor."""
        return self.mean is not None and self.resolved >= 1


def scan_entries(table: Table) -> list[Entry]:
    """All entries of the section ``summary``, in its order."""
    found = table.sections.get("summary")
    if not isinstance(found, list):
        raise ConfigError(
            "a scan is drawn from the section 'summary' of its table, and this table has none; give the table "
            "that a scan returned, or one saved as .json or .parquet (.csv keeps the rows alone)"
        )
    try:
        return [_entry(one) for one in found]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"an entry of the section 'summary' cannot be read ({type(error).__name__}: {error}); it needs "
            "stack, layer, site, head, measure, definition, texts, mean, std, min, max, floor and resolved"
        ) from error


def _entry(found: Any) -> Entry:
    head = found["head"]
    return Entry(
        stack=str(found["stack"]),
        layer=int(found["layer"]),
        site=str(found["site"]),
        head=None if head is None else int(head),
        measure=str(found["measure"]),
        definition=str(found["definition"]),
        texts=int(found["texts"]),
        resolved=float(found["resolved"]),
        **{
            name: None if found[key] is None else float(found[key])
            for name, key in (
                *(("mean", "mean"), ("std", "std"), ("low", "min"), ("high", "max")),
                ("floor", "floor"),
            )
        },
    )


def stacks_of(entries: list[Entry]) -> list[str]:
    """Names of the stacks, in the order of the scan."""
    return list(dict.fromkeys(entry.stack for entry in entries))


def of_stack(entries: list[Entry], stack: str) -> list[Entry]:
    """Entries of that stack that belong to no head: token states, not attention maps."""
    return [entry for entry in entries if entry.stack == stack and entry.head is None]


def parted(definition: str) -> tuple[str, str]:
    """The definition on the tokens as they are, and what was done to them before.

    >>> parted("residual_ratio[composite,mean,unit]")
    ('residual_ratio[composite,mean]', 'unit')
    """
    name, bracket, rest = definition.partition("[")
    if not bracket or not rest.endswith("]"):
        return definition, ""
    tags = rest[:-1].split(",")
    kept = [one for one in tags if one not in VARIANTS]
    return f"{name}[{','.join(kept)}]", ",".join(one for one in tags if one in VARIANTS)


def label(base: str) -> str:
    """A definition in words, without the tags of the default panel.

    >>> label("residual_ratio[composite,mean]"), label("cosine[absolute]")
    ('residual ratio, composite', 'cosine, absolute')
    """
    name, bracket, rest = base.partition("[")
    if not bracket or not rest.endswith("]"):
        return clipped(base)
    tags = [one.replace("_", " ") for one in rest[:-1].split(",") if one not in USUAL]
    return clipped(", ".join([name.replace("_", " "), *tags]))


def full_label(definition: str) -> str:
    """The label with what was done to the tokens before measuring.

    >>> full_label("residual_ratio[composite,mean,unit]")
    'residual ratio, composite, unit tokens'
    """
    base, variant = parted(definition)
    return label(base) + (f", {VARIANT_WORDS.get(variant, variant)}" if variant else "")


def clipped(text: str, longest: int = LONGEST) -> str:
    """The text, cut after so many letters.

    >>> clipped("abcdef", 4)
    'abc…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: float | None, digits: int = 3) -> str:
    """A number in a few digits, without the leading zeros of an exponent; a dash for none.

    >>> number(0.12345), number(0.00045), number(None)
    ('0.123', '4.5e-4', '–')
    """
    if value is None:
        return "–"  # noqa: RUF001 - a dash, not a minus
    is_small = 0 < abs(value) < SMALL
    text = f"{value:.{digits - 1}e}" if is_small else f"{value:.{digits}g}"
    mantissa, has_exponent, exponent = text.partition("e")
    if not has_exponent:
        return text
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"


def marked(entry: Entry, digits: int = 3) -> str:
    """The mean as text, with a star if some text is not above its rounding floor."""
    return number(entry.mean, digits) + ("" if entry.is_resolved or entry.mean is None else UNRESOLVED_MARK)
