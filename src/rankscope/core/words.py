"""One way to write a number, a count or a range: every sentence, table and label uses these functions.

A number that does not exist is a dash. Numbers have a digit before the point (0.98) and an ASCII minus sign, so that
what is copied from a terminal or a page can be read by other programs.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal

NOTHING = "-"
"""Stands where there is no number."""

PLAIN = (-3, 4)
"""Exponents of ten between which a number is written without one."""

MOST_DECADES = 1e9
"""Beyond this many decades only their number is written: the logarithm has no digits left for a mantissa."""

SLACK = 4e-15
"""Relative error of a mantissa per decade, because the logarithm itself is rounded to sixteen digits."""


def number(value: float | None, digits: int = 3) -> str:
    """A number with that many digits; a dash for none, and for what is not a number.

    >>> number(0.98123), number(-2.5e-7), number(12345.6), number(None), number(float("inf"))
    ('0.981', '-2.5e-7', '12346', '-', 'inf')
    >>> number(99.56, 2), number(999.7)
    ('100', '1000')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value) or value == 0:
        return "0" if value == 0 else "inf" if value > 0 else "-inf"
    # Whole digits are never replaced by zeros: 12346, not 1.23e+04; and 99.56 to two digits is 100, not 1e+02.
    rounded = abs(float(f"{value:.{digits}g}"))
    is_whole = rounded >= 10**digits and abs(value) < 10 ** (PLAIN[1] + 1)
    text = f"{value:.0f}" if is_whole else f"{value:.{digits}g}"
    if "e" not in text and abs(value) < 10.0 ** PLAIN[0]:
        text = f"{value:.{digits - 1}e}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    short = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{short}e{int(exponent)}"


def power(log: float | None, *, digits: int = 3, toward: int = 0) -> str:
    """The number with that natural logarithm, whatever its size; a dash for none.

    ``toward=1`` rounds up and ``toward=-1`` down, so that a bound stays true as it is printed.

    >>> power(math.log(0.3121)), power(math.log(0.3121), toward=1), power(-11513.0)
    ('0.312', '0.313', '9.28e-5001')
    >>> power(-math.inf), power(-1e11)
    ('0', '10^-4.34e10')
    """
    if log is None or math.isnan(log):
        return NOTHING
    if math.isinf(log):
        return "inf" if log > 0 else "0"
    decades = log / math.log(10)
    if abs(decades) >= MOST_DECADES:
        sign = 1 if decades > 0 else -1
        size = power(math.log(abs(decades)), digits=digits, toward=sign * toward)
        return f"10^{'-' if sign < 0 else ''}{size}"
    exponent, least = math.floor(decades), 10 ** (digits - 1)
    slack = toward * SLACK * max(1.0, abs(decades))
    scaled = 10 ** (decades - exponent) * (1 + slack) * least
    whole = round(scaled) if toward == 0 else math.ceil(scaled) if toward > 0 else math.floor(scaled)
    if whole < least:  # rounding down has crossed a power of ten
        exponent, whole = exponent - 1, 10 * least - 1
    if whole >= 10 * least:  # rounding up has
        exponent, whole = exponent + 1, least
    if PLAIN[0] <= exponent <= PLAIN[1]:
        return f"{Decimal(whole).scaleb(exponent - digits + 1).normalize():f}"
    shown = str(whole).rstrip("0")
    return f"{shown[0]}{'.' if shown[1:] else ''}{shown[1:]}e{exponent}"


def percent(share: float | None, digits: int = 2) -> str:
    """A share as a percentage.

    >>> percent(0.1234), percent(1.0), percent(None), percent(0.00012)
    ('12%', '100%', '-', '0.012%')
    """
    if share is None or math.isnan(share):
        return NOTHING
    return f"{number(100 * share, digits)}%"


def count(many: int, what: str, plural: str | None = None) -> str:
    """A number of things.

    >>> count(1, "text"), count(1200, "seed"), count(2, "entry", "entries")
    ('1 text', '1,200 seeds', '2 entries')
    """
    return f"{many:,} {what if many == 1 else plural or what + 's'}"


def article(name: str) -> str:
    """A name behind its indefinite article.

    >>> article("int"), article("list"), article("HTTPError"), article("NoneType")
    ('an int', 'a list', 'an HTTPError', 'a NoneType')
    """
    spelled = len(name) > 1 and name[:2].isupper()  # read letter by letter: aitch, el, em
    return f"{'an' if name[:1] in ('AEFHILMNORSX' if spelled else 'AEIOaeiou') else 'a'} {name}"


def whole(many: int) -> str:
    """A whole number of any size: in full, or as a power of ten where it has too many digits to be read.

    >>> whole(23298085122481), whole(97**96)
    ('23,298,085,122,481', '5.4e190')
    """
    return f"{many:,}" if abs(many) < 10**15 else f"{Decimal(many):.1e}".replace("e+", "e")


def span(values: Sequence[float], digits: int = 3) -> str:
    """The smallest and the largest of some numbers.

    >>> span([0.5, 0.25]), span([2.0, 2.0])
    ('0.25 to 0.5', '2')
    """
    low, high = number(min(values), digits), number(max(values), digits)
    return low if low == high else f"{low} to {high}"


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as a list, with runs of neighbours joined.

    >>> ranges([3, 1, 2, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and runs[-1][1] == one - 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def duration(seconds: float) -> str:
    """A time in words, to two digits.

    >>> duration(0.4), duration(75.0), duration(1e4), duration(1e6)
    ('0.4 s', '75 s', '2.8 h', '12 days')
    """
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{number(seconds / size, 2)} {unit}"
    return f"{number(seconds / 86_400, 2)} days"


def listed(names: Sequence[str], *, word: str = "and") -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], word="or")
    ('a', 'a and b', 'a, b or c')
    """
    return " and ".join(names) if len(names) < 2 else f"{', '.join(names[:-1])} {word} {names[-1]}"


def sentence(words: str) -> str:
    """The words with a capital and a full stop.

    >>> sentence("nothing was measured")
    'Nothing was measured.'
    """
    return f"{words[:1].upper()}{words[1:]}{'' if words.endswith(('.', '!', '?')) else '.'}"


def clipped(text: str, longest: int = 80) -> str:
    """Text on one line, cut where it is too long.

    >>> clipped("a\\nname of many letters", 12)
    'a name of m…'
    """
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def printable(text: str) -> str:
    """Text without control characters, which could move the cursor or color the terminal.

    >>> printable("a\\x1b[2Jb\\n")
    'a?[2Jb\\n'
    """
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
