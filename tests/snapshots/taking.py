"""Snapshots of what commands print: numbers that stay, texts that are approved when they change on purpose.

Numbers are the rows of a command, without the name of the run (a hash of the configuration, which changes with every
new field). A number agrees with its snapshot if it is within its floor: that is what the floor says another processor
may make of it. A number that is not above its floor is only compared as such. On one machine two commits are
compared bit for bit:

    python tests/snapshots/taking.py bits before.json     (then again after the change, and cmp the two files)

Texts are what a terminal shows, with numbers that have a point or an exponent replaced by ``#``, because their digits
belong to the snapshots of numbers and may end differently on another processor.

    make snapshots                                         (approves the texts as they are)
"""

import contextlib
import difflib
import io
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent
sys.path.insert(0, str(HOME))

from lines import LINES, Asked  # noqa: E402

NUMBERS, TEXTS = HOME / "numbers", HOME / "texts"

FLOORS = {"value": "floor", "float_value": "float_floor"}
"""Columns that have a floor of their own; other numbers are compared relative to their size."""

FLOOR_FACTOR = 4
"""Floors that come from a perturbed run: its noise has a seed, but is as small as the rounding that each processor adds
in its own way. The size of one difference is then a sample: two of them are seldom more than four times apart."""

RELATIVE = 1e-9
"""What other BLAS kernels change in sums of a few hundred float64 products, with room for a condition of a thousand."""

DECIMAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?|\binf\b|\bnan\b")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one command line did."""

    code: int
    out: str
    err: str


def run(args: tuple[str, ...]) -> Taken:
    """A command line in this process and this folder."""
    from rankscope.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    before, sys.argv = sys.argv, ["rankscope", *args]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = before
    return Taken(code, out.getvalue(), err.getvalue())


def prepare(folder: Path) -> None:
    """The files that command lines read."""
    for name in ("small_model.py", "small_run.jsonl", "small_run.csv"):
        shutil.copy(HOME / name, folder)


def text_of(asked: Asked) -> str:
    """What a person sees: exit code, results and notes, numbers masked and runs of blanks joined."""
    found = run(asked.args)
    parts = [f"$ rankscope {' '.join(asked.args)}", f"exit {found.code}", found.out]
    return masked("\n".join([*parts, "-- stderr", found.err]))


def masked(text: str) -> str:
    """Text without digits that depend on the processor, and without the widths of columns that follow from them.

    >>> masked("layer  value\\n-----  ----\\n1      1.5e-07*")
    'layer value\\n1 #*\\n'
    """
    lines = [" ".join(DECIMAL.sub("#", line).split()) for line in text.splitlines()]
    kept = [line for line in lines if line and not set(line) <= set("- ")]
    return "\n".join(kept) + "\n"


def rows_of(asked: Asked) -> list[dict[str, Any]]:
    """The rows of a command, without the name of the run."""
    if asked.makes:
        run(asked.args)
        found = json.loads(Path(asked.makes).read_text())
    else:
        found = json.loads(run((*asked.args, "--format", "json")).out)
    return [{name: value for name, value in row.items() if name != "run"} for row in found["rows"]]


def differences(wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> Iterator[str]:
    """What differs between two lists of rows, beyond what another processor may change, a line each."""
    if len(wanted) != len(found):
        yield f"{len(wanted)} rows in the snapshot, {len(found)} now"
        return
    for place, (old, new) in enumerate(zip(wanted, found, strict=True)):
        if set(old) - set(new):
            yield f"row {place}: columns are gone: {', '.join(sorted(set(old) - set(new)))}"
            continue
        is_real = old.get("resolved") is not False
        allowed = _allowed(old)
        for name, value in old.items():
            if not is_real and name in ("value", "log10_value", "low", "high"):
                continue
            if not _agree(name, value, new[name], allowed.get(name)):
                yield f"row {place}, {name}: {value!r} in the snapshot, {new[name]!r} now ({_about(old)})"


def _allowed(row: dict[str, Any]) -> dict[str, float]:
    """What the floors of a row allow its numbers to differ by, relative rounding aside."""
    found = {name: row.get(floor) or 0.0 for name, floor in FLOORS.items()}
    value = abs(row.get("value") or 0.0)
    if value:  # log10(v + f) - log10(v)
        found["log10_value"] = math.log1p(found["value"] / value) / math.log(10)
    return found


def _agree(name: str, old: Any, new: Any, allowed: float | None) -> bool:
    if not isinstance(old, float) or not isinstance(new, float):
        return bool(old == new)
    if name == "log10_floor":
        return abs(old - new) <= math.log10(FLOOR_FACTOR)
    if "floor" in name.split("_"):
        return min(old, new) * FLOOR_FACTOR >= max(old, new)
    relative = RELATIVE * max(abs(old), abs(new))
    if name.startswith("log10"):  # a relative error of a number is an absolute one of its logarithm
        relative += RELATIVE / math.log(10)
    return abs(old - new) <= (allowed or 0.0) + relative


def _about(row: dict[str, Any]) -> str:
    named = ("variant", "mask", "norm", "seed", "sample", "layer", "site", "head", "definition")
    return ", ".join(f"{name} {row[name]}" for name in named if row.get(name) is not None)


def text_diff(name: str, old: str, new: str) -> str:
    """What a person would approve, as a diff."""
    return "\n".join(
        difflib.unified_diff(old.splitlines(), new.splitlines(), f"{name}, approved", "now", lineterm="")
    )


def _main(args: list[str]) -> None:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    prepare(folder)
    target = Path(args[1]).resolve() if len(args) > 1 else None
    os.chdir(folder)
    for one in LINES:
        if one.makes:
            run(one.args)
    match args[:1]:
        case ["texts"]:
            for one in LINES:
                (TEXTS / f"{one.name}.txt").write_text(text_of(one))
        case ["numbers"]:
            for one in LINES:
                if one.has_rows:
                    text = ",\n".join(json.dumps(row) for row in rows_of(one))
                    (NUMBERS / f"{one.name}.json").write_text(f"[\n{text}\n]\n")
        case ["bits"] if target is not None:
            whole = {one.name: rows_of(one) for one in LINES if one.has_rows}
            target.write_text(json.dumps(whole, indent=0))
        case _:
            sys.exit("expected: texts, numbers, or bits FILE")


if __name__ == "__main__":
    _main(sys.argv[1:])
