"""Certificates as text, for the terminal and for the page: numbers beyond the range of floats, lines of a table."""

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from rankscope.results.summary import UNRESOLVED_MARK

PLAIN = (-3, 4)
"""Exponents between which a number is written without one."""

MOST_DECADES = 1e9
"""Beyond this many decades only their number is written: the logarithm has no digits left for a mantissa."""

SLACK = 4e-15
"""Relative error of a mantissa per decade: the logarithm is rounded to sixteen digits."""

NOTHING = "-"

LINE_HEADER = ("layer", "lower", "measured", "upper", "printed bound", "lower by", "upper by")

EXPLAIN_NAMES = {
    "heads": "heads",
    "d_qk": "d_qk",
    "beta": "beta",
    "gamma": "gamma",
    "K": "K",
    "critical_radius": "K^-1/2",
    "residual": "residual",
    "cubic": "measured K",
    "value_norms": "|W| of heads",
    "query_key_norms": "|W_QK| of heads",
    "mlp": "Lipschitz of MLPs",
    "norm": "Lipschitz of norms",
    "theorem_a": "K of Theorem A",
}
"""Columns of the explanation, by key of an entry."""


def subject(about: dict[str, Any]) -> str:
    """What was certified, as a title names it.

    >>> subject({"model": "random"})
    'a random network'
    """
    name = str(about.get("model", "a network"))
    return {"random": "a random network", "tree": "a tree of parts"}.get(name, " ".join(name.split()))


def power_text(log: float | None, *, digits: int = 3, toward: int = 0) -> str:
    """The number with that natural logarithm in a few digits, whatever its size; a dash for none.

    ``toward=1`` rounds up, ``toward=-1`` down: a bound stays true as it is printed.

    >>> power_text(math.log(0.3121)), power_text(math.log(0.3121), toward=1), power_text(-11513.0)
    ('0.312', '0.313', '9.28e-5001')
    """
    if log is None or math.isnan(log):
        return NOTHING
    if math.isinf(log):
        return "inf" if log > 0 else "0"
    decades = log / math.log(10)
    if abs(decades) >= MOST_DECADES:
        sign = 1 if decades > 0 else -1
        return f"10^{'-' if sign < 0 else ''}{power_text(math.log(abs(decades)), toward=sign * toward)}"
    exponent, least = math.floor(decades), 10 ** (digits - 1)
    slack = toward * SLACK * max(1.0, abs(decades))
    whole = _rounded(10 ** (decades - exponent) * (1 + slack) * least, toward)
    if whole < least:
        exponent, whole = exponent - 1, 10 * least - 1
    if whole >= 10 * least:
        exponent, whole = exponent + 1, least
    shown = str(whole).rstrip("0") or "0"
    if PLAIN[0] <= exponent <= PLAIN[1]:
        return f"{Decimal(whole).scaleb(exponent - digits + 1).normalize():f}"
    return f"{shown[0]}{'.' if shown[1:] else ''}{shown[1:]}e{exponent}"


def _rounded(value: float, toward: int) -> int:
    return round(value) if toward == 0 else math.ceil(value) if toward > 0 else math.floor(value)


def bound_lines(entries: list[dict[str, Any]]) -> list[list[str]]:
    """One line per layer of one definition, in the order of ``LINE_HEADER``; a vacuous number stands in brackets.

    A printed bound of which an assumption fails is not proven and ends in a question mark.
    """
    return [
        [
            str(entry["layer"]),
            power_text(entry["lower"], toward=-1),
            _measured(entry),
            _upper(entry),
            _printed(entry),
            NOTHING if entry["lower_vacuous"] else entry["lower_by"] or NOTHING,
            entry["upper_by"] or NOTHING,
        ]
        for entry in entries
    ]


def _measured(entry: dict[str, Any]) -> str:
    """What the split pass finds, with a mark where it is not above its floor in every text."""
    text = "0" if entry["measured"] is None else power_text(entry["measured"])
    return text if entry.get("resolved", True) else text + UNRESOLVED_MARK


def explain_lines(section: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and one line per block of what the printed bound is made of; columns without a number are left out."""
    used = [key for key in EXPLAIN_NAMES if any(entry.get(key) not in (None, [], "") for entry in section)]
    rows = [[str(entry["layer"]), *(_cell(key, entry.get(key)) for key in used)] for entry in section]
    return ["layer", *(EXPLAIN_NAMES[key] for key in used)], rows


def lacking_lines(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What failed, and at which layers, over all definitions: of the certificate, then of printed bounds."""
    found: dict[str, set[int]] = {}
    for entry in sorted(entries, key=lambda entry: int(entry["layer"])):
        for words in entry["lacking"]:
            found.setdefault(_without_numbers(words), set()).add(entry["layer"])
    own = sorted(found.items(), key=lambda one: not one[0].startswith("certificate: "))
    return [(ranges(layers), words) for words, layers in own]


def ranges(layers: Iterable[int]) -> str:
    """Numbers as a list with ranges.

    >>> ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][1] == layer - 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _without_numbers(words: str) -> str:
    """The name of an assumption: numbers found differ from layer to layer and would be told many times."""
    return words.partition(" (found ")[0]


def _upper(entry: dict[str, Any]) -> str:
    """An upper bound that is no number and not vacuous is zero: all tokens are equal."""
    if entry["upper"] is None and not entry["upper_vacuous"]:
        return "0"
    return _bracketed(power_text(entry["upper"], toward=1), entry["upper_vacuous"])


def _printed(entry: dict[str, Any]) -> str:
    if entry["bound"] is None:
        return NOTHING
    text = power_text(entry["bound"]) + ("" if entry["bound_proven"] else "?")
    return _bracketed(text, entry["bound_vacuous"])


def _bracketed(text: str, is_vacuous: bool) -> str:
    return f"({text})" if is_vacuous and text != NOTHING else text


def _cell(key: str, value: Any) -> str:
    if value is None or value == []:
        return NOTHING
    if isinstance(value, list):
        low, high = min(value), max(value)
        return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
    if key in LOGARITHMS:
        return power_text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


LOGARITHMS = frozenset({"K", "critical_radius", "residual", "cubic", "theorem_a"})
"""Entries of an explanation that are natural logarithms."""
