"""The page about own models: every script on it runs, and prints what stands below it."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "your_model.md").read_text()
SCRIPTS = {
    name: (f"# {name}.py\n{code}", said)
    for name, code, said in re.findall(
        r"```python\n# (\w+)\.py\n(.*?)```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL
    )
}
NUMBER = re.compile(r"(?<![\w.])\d*\.\d+(e[-+]?\d+)?|(?<![\w.])\d+e[-+]?\d+")


def lines_of(text: str) -> list[str]:
    """Lines of trees as they are; elsewhere without measured numbers, whose last digits depend on the processor."""
    return [line if line.startswith("  ") else NUMBER.sub("#", line) for line in text.strip().splitlines()]


def test_the_page_has_ten_ways_and_a_limit() -> None:
    assert len(SCRIPTS) == PAGE.count("```python") == 11
    assert re.findall(r"^## (\d+)\.", PAGE, flags=re.MULTILINE) == [str(number) for number in range(1, 11)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_the_page_says(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = SCRIPTS[name]
    (folder / f"{name}.py").write_text(code)
    exec(compile(code, str(folder / f"{name}.py"), "exec"), {"__name__": "__main__"})  # noqa: S102 - our own page
    assert lines_of(capsys.readouterr().out) == lines_of(said)


def test_the_command_prints_what_the_page_says(folder: Path) -> None:
    ((command, said),) = re.findall(
        r"```sh\nrankscope (.*?)\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL
    )
    (folder / "nano.py").write_text(SCRIPTS["nano"][0])
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    assert lines_of(result.stdout) == lines_of(said)
