"""Runs the notebooks of ``examples/`` from top to bottom, as Jupyter does, without Jupyter.

    python docs/notebooks.py write [NAME ...]    run them and keep their outputs
    python docs/notebooks.py check [NAME ...]    run them and say where an output has drifted

A notebook is a list of cells that share their names. What a cell prints is one output, and its last expression, if it
has one, is another: a picture or a page if the value can show itself so (``_repr_svg_``, ``_repr_html_``), else its
text.
"""

import ast
import contextlib
import html
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from making import ROOT, agree, replace_file

FOLDER = ROOT / "examples"

SHOWN = {"_repr_svg_": "image/svg+xml", "_repr_html_": "text/html"}
"""Ways in which a value shows itself, the preferred one first."""

Output = dict[str, Any]


def notebooks() -> list[Path]:
    return sorted(FOLDER.glob("*.ipynb"))


def executed(notebook: dict[str, Any], name: str) -> list[list[Output]]:
    """The outputs of every code cell."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [
        _outputs("".join(cell["source"]), names, f"{name}, cell {n}") for n, cell in enumerate(cells, start=1)
    ]


def _outputs(source: str, names: dict[str, Any], file: str) -> list[Output]:
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, file, "exec"), names)  # noqa: S102 - our own notebooks
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)  # noqa: S307
    found: list[Output] = []
    if printed := out.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(printed)})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        for method, kind in SHOWN.items():
            if hasattr(value, method):
                data = {kind: _lines(getattr(value, method)()), "text/plain": ["<shown above>"]}
                break
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def drifts(path: Path) -> list[str]:
    """What the notebook says and what it says now, of every cell where these differ; pictures only have to be there."""
    notebook = json.loads(path.read_text("utf-8"))
    kept = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    found = []
    for number, (old, new) in enumerate(zip(kept, executed(notebook, path.name), strict=True), start=1):
        if not agree(_said(old), _said(new)):
            found.append(f"{path.name}, cell {number}\nkept:\n{_said(old)}\nnow:\n{_said(new)}")
    return found


def _said(outputs: Sequence[Output]) -> str:
    parts = []
    for one in outputs:
        data = one.get("data", {})
        picture = next((kind for kind in SHOWN.values() if kind in data), None)
        parts.append(picture or "".join(one.get("text") or data["text/plain"]))
    return html.unescape("\n".join(parts))


def write(path: Path) -> None:
    """Run a notebook and keep its outputs, unless nothing but last digits changed."""
    notebook = json.loads(path.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell, outputs in zip(cells, executed(notebook, path.name), strict=True):
        if not agree(_said(cell["outputs"]), _said(outputs)):
            cell["outputs"] = outputs
    replace_file(path, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def main(args: Sequence[str]) -> None:
    """See the text above."""
    task, *names = args or ["help"]
    chosen = [path for path in notebooks() if not names or path.stem in names]
    match task:
        case "write":
            for path in chosen:
                write(path)
                print("ran", path.name, flush=True)
        case "check":
            sys.exit("\n\n".join(words for path in chosen for words in drifts(path)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
