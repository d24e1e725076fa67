"""What is proven of a network, as text for the terminal."""

from typing import TYPE_CHECKING, Any

from rankscope.cli.output import printable, text_table
from rankscope.results.certify_lines import (
    LINE_HEADER,
    NOTHING,
    bound_lines,
    explain_lines,
    lacking_lines,
    subject,
)

if TYPE_CHECKING:
    from rankscope.results import Table

DIM = "\x1b[2m{}\x1b[0m"
LEGEND = (
    "(...) = vacuous: true, but no better than the size of the state, rounding counted in; - = nothing; "
    "bounds are rounded outward"
)
UNRESOLVED = "* = measured, but not above its floor, which is estimated from a perturbed run"
UNPROVEN = "? = printed in a paper, but an assumption fails here, so that it is not proven"


def certify_text(table: "Table", *, explain: bool = False, is_terminal: bool = False) -> str:
    """What was certified, the bounds of every layer by definition, the verdict, what failed.

    On a terminal lines of which nothing beyond the trivial is proven are dimmed.
    """
    told = table.sections
    names = list(dict.fromkeys(entry["definition"] for entry in told["bounds"]))
    lines = _head(told["certify"])
    for name in names:
        entries = [entry for entry in told["bounds"] if entry["definition"] == name]
        lines += ["", *_bounds(name, entries, told["printed"].get(name), is_terminal=is_terminal)]
    is_unproven = any(entry["bound"] is not None and not entry["bound_proven"] for entry in told["bounds"])
    is_unresolved = any(not entry["resolved"] for entry in told["bounds"])
    lines += ["", LEGEND, *([UNPROVEN] if is_unproven else []), *([UNRESOLVED] if is_unresolved else [])]
    lines += ["", *map(printable, told["finding"]["words"])]
    failed = lacking_lines(told["bounds"])
    if failed:
        lines += [
            "",
            "what failed",
            text_table(["layers", "what"], [list(map(printable, one)) for one in failed]),
        ]
    if explain:
        lines += ["", *_explained(told)]
    lines += [f"note: {printable(one)}" for one in told["notes"]]
    return "\n".join(lines)


def _head(about: dict[str, Any]) -> list[str]:
    texts = f"{about['texts']} text" + ("s" if about["texts"] != 1 else "")
    seeds = f", {about['seeds']} seeds" if about["seeds"] > 1 else ""
    several = about["texts"] * about["seeds"] > 1
    head = [
        f"{subject(about)}: {about['variant']}, {about['weights']} weights",
        f"{texts} of {about['tokens']:.0f} tokens{' on average' if several else ''}{seeds}; {about['inputs']}",
        *([about["special rule"]] if about.get("text axes") else []),
        *(["bounds hold of every text, measured is the geometric mean"] if several else []),
        *(f"note: {warning}" for warning in about["warnings"]),
    ]
    return [printable(line) for line in head]


def _bounds(name: str, entries: list[dict[str, Any]], printed: str | None, *, is_terminal: bool) -> list[str]:
    rows = bound_lines(entries)
    kept = [
        place for place in range(len(LINE_HEADER)) if place < 4 or any(row[place] != NOTHING for row in rows)
    ]
    header = [LINE_HEADER[place] for place in kept]
    drawn = text_table(header, [[row[place] for place in kept] for row in rows]).split("\n")
    if is_terminal:
        drawn[2:] = [
            DIM.format(line) if entry["vacuous"] else line
            for line, entry in zip(drawn[2:], entries, strict=True)
        ]
    bound = f"; printed bound: {printed}" if printed and any(e["bound"] is not None for e in entries) else ""
    return [printable(f"{name}{bound}"), *drawn]


def _explained(told: dict[str, Any]) -> list[str]:
    if not told["explain"]:
        return ["nothing to explain: no printed bound speaks of this network"]
    texts = len(told["certificate"])
    first = ", of the first text" if texts > 1 else ""
    lines = [
        f"what printed bounds are made of, block by block{first}",
        text_table(*explain_lines(told["explain"])),
    ]
    for entry in told["explain"]:
        if entry.get("first_failing"):
            lines.append(printable(f"fails first: {entry['first_failing']}, in block {entry['layer']}"))
            break
    return lines
