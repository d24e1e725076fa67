"""Labels and numbers of the older pages."""

from rankscope.findings.scan import entries

SMALL = 1e-3
"""Numbers below are written with an exponent: 4.5e-4 is shorter than 0.00045."""

LONGEST = 80
"""Letters of a name that a figure shows; the list of definitions holds the whole."""


def label(base: str) -> str:
    """A definition in words, without the tags of the default panel.

    >>> label("residual_ratio[composite,mean]")
    'residual ratio, composite'
    """
    return entries.label(base).replace("Frobenius", "frobenius")


def full_label(definition: str) -> str:
    """The label with what was done to the tokens before measuring."""
    return entries.full_label(definition).replace("Frobenius", "frobenius")


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
