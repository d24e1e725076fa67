"""The map of the house, ``docs/house.svg``, drawn from the import rule in pyproject.toml: ``python docs/house.py``.

Rows are the layers of the rule, the topmost first. A box is a package with the first sentence of its docstring.
"""

import ast
import re
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE = ROOT / "docs" / "house.svg"

WIDTH, ROW, GAP, TOP, LETTER = 960, 54, 8, 64, 6.4
"""Of the drawing, of a row, between boxes, above the first row, and of a letter of the small print, in dots."""


def rows() -> list[list[str]]:
    """Packages by row, the topmost first."""
    rule = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in rule if one["type"] == "layers"]
    return [[name.strip().removeprefix("rankscope.") for name in row.split("|")] for row in layers]


def sentence(package: str) -> str:
    """The first sentence of its docstring, without markup."""
    place = ROOT / "src" / "rankscope" / package
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0].replace("`", "")


def drawn() -> str:
    """The map as SVG. Letters are black on white, so it can be read on any page."""
    every = rows()
    height = TOP + len(every) * (ROW + GAP) + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" role="img" aria-label="Packages of rankscope by row of imports">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{GAP}" y="26" font-size="18" font-weight="bold" fill="#1b1f24">A package imports only from rows '
        "below its own</text>",
        f'<text x="{GAP}" y="48" font-size="13" fill="#57606a">Packages in one row do not import each other. The '
        "command line is at the top, errors are at the bottom.</text>",
    ]
    for number, names in enumerate(every):
        y, width = TOP + number * (ROW + GAP), (WIDTH - GAP * (len(names) + 1)) / len(names)
        for place, name in enumerate(names):
            x = GAP + place * (width + GAP)
            out.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{ROW}" rx="6" fill="#eef4fb" stroke="#9fb8d3"/>'
                f'<text x="{x + 10:g}" y="{y + 20}" font-size="14" font-weight="bold" fill="#0b4f8a">{name}</text>'
            )
            lines = textwrap.wrap(sentence(name), int((width - 20) / LETTER), max_lines=2, placeholder=" ...")
            for line, words in enumerate(lines):
                at = f'x="{x + 10:g}" y="{y + 34 + 13 * line}"'
                out.append(f'<text {at} font-size="11.5" fill="#1b1f24">{escape(words)}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    fresh = FILE.with_name(".house.svg.new")
    fresh.write_text(drawn(), "utf-8")
    fresh.replace(FILE)
    sys.stdout.write(f"wrote {FILE.name}\n")
