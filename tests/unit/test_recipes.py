"""The recipes for adding things: every block runs in order, and what is registered does what it promises."""

import json
import os
import re
import subprocess
import sys

import making
import pytest

PAGES = [making.DOCS / name for name in ("adding_things.md", "add_a_family.md")]
WORDS = ("measure", "mask", "mixer", "part", "family", "bound", "study", "figure", "chart", "option")
DRIVER = """
import json, sys, tempfile, traceback, torch, making
from pathlib import Path
found = []
for page in map(Path, sys.argv[1:]):
    try:
        found += [one.drift() for one in making.printed(page)]
    except BaseException:
        found.append(traceback.format_exc())
# The measure and the mask of the page keep what they declare, by the checks that all others pass.
from laws.test_measure_laws import CHECKS, SHAPES, normal
from rankscope.masks import parse_mask
from rankscope.measures import MEASURES
measure = MEASURES["length_range[l2]"]
for shape in SHAPES:
    x = normal(5, *shape, generator=torch.Generator().manual_seed(0))
    for law in measure.laws:
        CHECKS[law](measure, x, measure(x), torch.Generator().manual_seed(1))
    for size in (1e-12, 1e-3):
        error = size * x.norm(dim=(-2, -1), keepdim=True) * torch.nn.functional.normalize(x.flip(-1), dim=(-2, -1))
        assert ((measure(x + error) - measure(x)).abs() <= measure.floor(x, size) * (1 + 1e-9) + 1e-15).all()
for tokens in (1, 2, 7):
    matrix = parse_mask("ahead:3").matrix(tokens)
    assert all(matrix[i, j] == (0 <= j - i <= 3) for i in range(tokens) for j in range(tokens))
# The figure passes what is asked of every figure.
from kit.reloaded import assert_same_when_loaded
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures.figure import Job
figure = FIGURES["halving"]
table, value = figure.make(Job(size="fast"))
assert set(table.frame["definition"]) <= set(table.sections["definitions"])
assert table.provenance["config"]["figure"] == figure.name
with tempfile.TemporaryDirectory() as folder:
    assert_same_when_loaded(figure, table, value, Path(folder) / "halving.json")
print(json.dumps(found))
"""


@pytest.mark.slow
def test_recipes_run_and_keep_their_promises() -> None:
    """A process of its own, because registries are for good."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DRIVER, *map(str, PAGES)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    drifted = [words for words in json.loads(done.stdout.splitlines()[-1]) if words]
    assert not drifted, "\n".join(drifted)


@pytest.mark.parametrize("word", WORDS)
def test_every_recipe_has_a_heading_and_is_short(word: str) -> None:
    sections = re.split(r"^## ", PAGES[0].read_text(), flags=re.MULTILINE)[1:]
    (own,) = [section for section in sections if word in section.splitlines()[0]]
    # The recipe of a study is whole: config, finding, sentences, page, chart, command. Others are half a page of code.
    assert len(own.splitlines()) <= (150 if word == "study" else 85)
