"""The public surface: what is promised exists, is documented, and costs nothing until used."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankscope

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/split.md",
    "docs/compare.md",
    "docs/ablate.md",
    "docs/paths.md",
    "docs/certify.md",
    "docs/equilibria.md",
    "docs/dynamics.md",
    "docs/figures.md",
    "docs/train.md",
    "docs/predict.md",
    "docs/parts.md",
)


def test_every_public_name_resolves_and_is_documented() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(rankscope.__all__)
    for name in rankscope.__all__:
        assert getattr(rankscope, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = rankscope.absent


CODE = {  # the page and the least number of its blocks
    "README.md": 4,
    "docs/split.md": 1,
    "docs/scan.md": 2,
    "docs/compare.md": 1,
    "docs/ablate.md": 1,
    "docs/paths.md": 2,
    "docs/equilibria.md": 1,
    "docs/dynamics.md": 2,
    "docs/train.md": 1,
    "docs/add_a_family.md": 4,
}
DRIVER = """
import contextlib, io, json, os, sys, tempfile, traceback
told = {}
for page, code in json.load(sys.stdin).items():
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        os.chdir(folder)
        try:
            exec(compile(code, page, "exec"), {"__name__": "__main__"})
            error = ""
        except BaseException:
            error = traceback.format_exc()
        os.chdir("/")
    told[page] = [out.getvalue(), error]
print(json.dumps(told))
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def told_by_the_pages() -> dict[str, tuple[str, str]]:
    """What the code of each page prints and the error it ends with, with names and a folder of its own."""
    code = json.dumps({page: "\n".join(blocks(page)) for page in CODE})
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DRIVER], input=code, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[str, str]] = json.loads(done.stdout)
    return found


def test_code_in_the_pages_runs() -> None:
    """One test, so that one process starts for all pages whatever the workers take from each other."""
    assert {page for page, least in CODE.items() if len(blocks(page)) < least} == set()
    told = told_by_the_pages()
    assert told.keys() == CODE.keys()
    for page, (printed, error) in told.items():
        assert not error, f"{page}: {error}"
        assert printed.strip(), page


def test_commands_in_the_readme_are_known() -> None:
    from click.testing import CliRunner

    from rankscope.cli import app

    text = "".join((ROOT / page).read_text() for page in PAGES).replace("\\\n", " ")
    commands = set(re.findall(r"^rankscope (\w+)", text, flags=re.MULTILINE))
    assert commands >= {"collapse", "list", "rate"}
    for command in commands:
        options = CliRunner().invoke(app, [command, "--help"]).output
        used = set(re.findall(rf"rankscope {command}[^\n#]*", text))
        for option in {word for line in used for word in re.findall(r"--[a-z]+", line)} - {"--help"}:
            assert option in options, f"{command} has no {option}"


def test_versions_agree() -> None:
    assert f'version = "{rankscope.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {rankscope.__version__}" in (ROOT / "CITATION.cff").read_text()
