"""Numbers and tables of equilibria brought to text, for the terminal and the page alike. No torch here."""

import math
from collections.abc import Sequence
from typing import Any

MOST_TOKENS = 12
MOST_CHANNELS = 8
"""A table of tokens larger than this is cut; the JSON holds all."""

BASIN_HEADER = ("starts", "share", "ended", "rank")
LIST_HEADER = ("no.", "rank", "starts", "multiplier", "stable", "mean |cos|", "last sv", "found by")
LIST_LEGEND = (
    "starts: share of random starts that end there; multiplier: the largest; last sv: the smallest singular value that "
    "counts in the rank"
)


def power_of_ten(log10: float) -> str:
    """A number from its decimal logarithm, also far below the smallest float.

    >>> power_of_ten(-601.5), power_of_ten(-1.0), power_of_ten(-1e40)
    ('3.16e-602', '0.1', '10^-1e+40')
    """
    if log10 < -1e6:
        return f"10^{log10:.3g}"
    if log10 > -4:
        return f"{10**log10:.3g}"
    whole = math.floor(log10)
    digits = f"{10 ** (log10 - whole):.2f}"
    return f"1.00e{whole + 1}" if digits == "10.00" else f"{digits}e{whole}"


def headline(system: dict[str, Any]) -> str:
    """What the system is, in one line."""
    frozen = ", maps of each start kept" if system.get("frozen") else ""
    norm = "no norm" if system["norm"] == "none" else f"norm {system['norm']}"
    return (
        f"{system['tokens']} tokens of dim {system['dim']}, mask {system['mask']}, {system['attention']} attention"
        f"{frozen}, values {system['values']}, {norm}"
    )


def which_words(one: dict[str, Any], rank: int | None) -> str:
    """Which equilibrium is shown."""
    if rank is not None:
        return f"the equilibrium of rank {rank}"
    if "start" in one:
        return f"the equilibrium of start {one['start']}, under the map of that start"
    if not one["share"]:
        return "an equilibrium that no start reaches"
    return f"the equilibrium that more starts reach than any other ({100 * one['share']:.4g}%)"


def fact_lines(one: dict[str, Any]) -> list[tuple[str, str]]:
    """What is known of one equilibrium: names and words."""
    facts = [("rank", rank_words(one))]
    facts += [("proof", str(one["rank_proof"]))] if one["rank_proof"] else []
    facts.append(("singular values", ", ".join(f"{value:.3g}" for value in one["singular_values"])))
    digits = "" if one["digits"] <= 15 else f" (in arithmetic of {one['digits']} digits)"
    facts.append(("a step moves it by", f"{one['equation_residual']:.1e} at most{digits}"))
    if one["mean_abs_cosine"] is not None:
        facts.append(("mean |cos|", f"{one['mean_abs_cosine']:.6f} between two tokens"))
    facts.append(("multipliers", multiplier_words(one)))
    if one.get("rank_note"):
        facts.append(("doubt", str(one["rank_note"])))
    facts.append(("stability", str(one["stability"])))
    if one["returns"] is not None:
        facts.append(("comes back", returns_words(one)))
    if one["share"] is not None:
        facts.append(("reached by", f"{100 * one['share']:.4g}% of the random starts"))
    return facts


def returns_words(one: dict[str, Any]) -> str:
    """How many random pushes come back, and how many go to the mirror image."""
    size = f"{100 * one['push_size']:.4g}%"
    said = f"within {one['push_steps']:,} steps: {100 * one['returns']:.4g}% of random pushes of {size}"
    mirrored = one.get("returns_mirrored")
    return said if not mirrored else f"{said}, {100 * mirrored:.4g}% more to the mirror image"


def rank_words(one: dict[str, Any]) -> str:
    """The rank, how it is known, and what the singular values say."""
    above = sum(value > one["rank_threshold"] for value in one["singular_values"])
    seen = f"{above} singular value{'s' * (above != 1)} above the threshold {one['rank_threshold']:.1e}"
    return f"{one['rank']}, proven; {seen}" if one["rank_proof"] else f"{one['rank']}, from {seen}"


def multiplier_words(one: dict[str, Any]) -> str:
    """The largest multiplier of every group of tokens that read each other, neighbors with the same one together."""
    runs: list[tuple[list[int], str]] = []
    for part in one["components"]:
        shown = number_text(part["largest_multiplier"])
        if runs and runs[-1][1] == shown:
            runs[-1][0].extend(part["tokens"])
        else:
            runs.append((list(part["tokens"]), shown))
    listed = [
        f"{shown} (token{'s' if len(tokens) > 1 else ''} {_span(tokens)})" for tokens, shown in runs[:8]
    ]
    return ", ".join(listed) + (", ..." if len(runs) > 8 else "")


def token_lines(one: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The tokens as a table, cut where it is large."""
    tokens: list[list[float]] = one["tokens"]
    width = len(tokens[0])
    cut = width > MOST_CHANNELS
    header = ["token", *map(str, range(min(width, MOST_CHANNELS))), *(["..."] if cut else [])]
    rows = [
        [str(place), *(_entry(entry) for entry in token[:MOST_CHANNELS]), *(["..."] if cut else [])]
        for place, token in enumerate(tokens[:MOST_TOKENS])
    ]
    return header, rows + ([["..."] + [""] * (len(header) - 1)] if len(tokens) > MOST_TOKENS else [])


def basin_lines(basins: dict[str, Any]) -> list[list[str]]:
    """How many starts ended where, a line each."""
    starts = max(int(basins["starts"]), 1)
    return [
        [
            str(one["count"]),
            f"{100 * one['count'] / starts:.4g}%",
            ended_words(one),
            "-" if one["rank"] is None else str(one["rank"]),
        ]
        for one in basins["shares"]
    ]


def ended_words(one: dict[str, Any]) -> str:
    """Where the starts of one line ended."""
    words = {"consensus": "all tokens equal", "shape": "shape at rest", "cycle": "in a cycle"}
    words["plateau"] = "on a plateau"
    words |= {
        "equilibrium": "an equilibrium of its own",
        "range": "beyond the range of numbers",
        "unresolved": "not at rest (unresolved)",
    }
    if one["equilibrium"] is not None:
        return f"equilibrium {one['equilibrium'] + 1}"
    return words.get(one["ending"], str(one["ending"]))


def list_lines(
    equilibria: Sequence[dict[str, Any]], asked: dict[str, Any] | None = None, most: int = 12
) -> list[list[str]]:
    """The first equilibria, a line each, numbered from 1; ``asked`` is shown even where it comes later."""
    shown = [(place, one) for place, one in enumerate(equilibria, start=1) if place <= most or one == asked]
    lines = [
        [
            str(place),
            str(one["rank"]),
            "-" if one["share"] is None else f"{100 * one['share']:.4g}%",
            number_text(one["largest_multiplier"]),
            stable_word(one["stable"], one.get("undecided_tokens")),
            "-" if one["mean_abs_cosine"] is None else f"{one['mean_abs_cosine']:.4f}",
            f"{one['singular_values'][one['rank'] - 1]:.1e}" if one["rank"] else "-",
            str(one.get("found_by", "")),
        ]
        for place, one in shown
    ]
    left = len(equilibria) - len(shown)
    return [*lines, [f"{left} more", *[""] * (len(LIST_HEADER) - 1)]] if left else lines


def stable_word(stable: bool | None, undecided: Sequence[int] | None = None) -> str:
    """Yes, no, neutral, or not decided."""
    return (
        "not decided" if stable is None and undecided else {True: "yes", False: "no", None: "neutral"}[stable]
    )


def number_text(value: float | None) -> str:
    """Four digits, or a dash where there is no number."""
    return "-" if value is None else f"{value:.4g}"


def _entry(value: float) -> str:
    """Six decimals, or the power of ten of what they would show as zero."""
    return f"{value + 0.0:.6f}" if value == 0 or abs(value) >= 5e-7 else f"{value:.1e}"


def _span(tokens: Sequence[int]) -> str:
    if len(tokens) > 2 and list(tokens) == list(range(tokens[0], tokens[-1] + 1)):
        return f"{tokens[0]}-{tokens[-1]}"
    return ", ".join(map(str, tokens[:8])) + (", ..." if len(tokens) > 8 else "")
