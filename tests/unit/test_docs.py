"""README and docs: code runs, outputs are those of the commands beside them, every picture has its command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import making
import pytest

PAGES = {page.name: page for page in making.pages()}
OWN_TESTS = {"your_model.md", "adding_things.md", "add_a_family.md"}
"""Pages of whole programs: ``test_your_model.py`` and ``test_recipes.py`` run them."""

WITH_CODE = sorted(name for name, page in PAGES.items() if name not in OWN_TESTS and making.code_of(page))
QUOTES = [one for page in making.pages() for one in making.quotes(page)]
DRIVER = """
import json, sys, traceback, making
from pathlib import Path
found = {}
for page in map(Path, sys.argv[1:]):
    try:
        found[page.name] = [one.drift() for one in making.printed(page)]
    except BaseException:
        found[page.name] = [traceback.format_exc()]
print(json.dumps(found))
"""


def test_code_in_the_pages_runs_and_prints_what_stands_below_it() -> None:
    """One process for all pages: a page may register parts, and starting one costs seconds."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", DRIVER, *(str(PAGES[name]) for name in WITH_CODE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=making.DOCS,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == WITH_CODE
    assert len(WITH_CODE) >= 12
    drifted = [words for page in found.values() for words in page if words]
    assert not drifted, "\n".join(drifted) + "\nif this is meant: make docs"


@pytest.mark.parametrize(
    "quote",
    [pytest.param(one, id=f"{one.page.stem}-{one.start}") for one in QUOTES if one.when == "test"],
)
def test_quoted_output_is_what_the_command_prints(quote: making.Quote) -> None:
    drift = quote.drift()
    assert not drift, f"{drift}\nif this is meant: make docs"


def test_every_command_on_the_pages_is_read_by_the_program() -> None:
    """Options, names and values; nothing is run."""
    every = [(name, one) for name, page in PAGES.items() for one in making.commands(page.read_text())]
    every += [(one.page.name, one.asked.command) for one in QUOTES if one.asked is not None]
    every += [("pictures.toml", one.command) for one in making.pictures()]
    assert len(every) > 60
    wrong = []
    for name, command in every:
        try:
            making.parse(command)
        except Exception as error:  # all of them at once, with their pages
            wrong.append(f"{name}: {command}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_picture_has_a_command_and_every_command_its_picture() -> None:
    known = {one.file: one for one in making.pictures()}
    files = {path.name for path in making.DOCS.iterdir() if path.suffix in (".png", ".svg")} - {"house.svg"}
    assert files == set(known)
    shown = {
        (page, Path(target).name)
        for page, path in PAGES.items()
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    }
    for one in known.values():
        assert (one.page, one.file) in shown, f"{one.page} does not show {one.file}"
        assert one.option in one.command, one
    assert {file for _, file in shown} - {"house.svg"} <= set(known)


def test_links_lead_somewhere() -> None:
    missing = []
    for name, page in PAGES.items():
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                missing.append(f"{name}: {target}")
    assert not missing, missing


NOT_WRAPPED = {"claims.md", "results.md"}
"""Made by generators, mostly tables."""


@pytest.mark.parametrize("name", sorted(set(PAGES) - NOT_WRAPPED))
def test_prose_is_at_most_120_characters_wide(name: str) -> None:
    text = PAGES[name].read_text()
    assert making.wrapped(text) == text, f"run: python docs/making.py wrap {name}"


def test_wrapping_keeps_every_word_and_is_done_at_once() -> None:
    for page in PAGES.values():
        text = page.read_text()
        once = making.wrapped(text)
        assert once.split() == text.split()
        assert making.wrapped(once) == once


def test_a_page_begins_with_what_it_is_for() -> None:
    """A heading, then a sentence; then one example before the second heading."""
    for name, page in PAGES.items():
        title, _, rest = page.read_text().partition("\n\n")
        assert re.fullmatch(r"# .+", title), name
        assert re.match(r"[*`A-Za-z]", rest), name


# ------------------------------------------------------------------------------------------------ of the maker itself


def page_of(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_examples_in_the_maker_and_the_site_hold() -> None:
    import doctest

    import build_site
    import house
    import notebooks

    assert [doctest.testmod(one).failed for one in (making, build_site, house, notebooks)] == [0, 0, 0, 0]


def test_a_planted_drift_is_found_and_mended(tmp_path: Path) -> None:
    good = '<!-- made by: rankscope list masks | from "full" to "full" -->\n```text\nfull  nonsense\n```\n'
    page = page_of(tmp_path, good)
    (quote,) = making.quotes(page)
    assert "nonsense" in quote.drift()
    assert making.write(page)
    (quote,) = making.quotes(page)
    assert quote.drift() == ""
    assert not making.write(page)


def test_numbers_in_sentences_are_made(tmp_path: Path) -> None:
    text = (
        "<!-- result one: rankscope collapse --layers 1 --heads 1 --dim 4 --tokens 3 -->\n\n"
        "It is <!-- = one.rows.0.layer count -->7<!-- = --> here.\n"
    )
    page = page_of(tmp_path, text)
    assert making.write(page)
    assert "count -->0<!-- = --> here" in page.read_text()


def test_code_prints_below_itself(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```python\nx = 2\n```\n\n```python\nprint(x + 1)\n```\n\n```text\n4\n```\n")
    (quote,) = making.printed(page)
    assert quote.drift()
    assert making.write(page)
    assert "```text\n3\n```" in page.read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("rankscope scna minilm", "scan"),
        ("rankscope scan minilm --attnetion", "attnetion"),
        ("rankscope collapse --layers 0", "layers"),
    ],
)
def test_wrong_commands_are_found_without_running_them(command: str, words: str) -> None:
    with pytest.raises(Exception, match=words):
        making.parse(command)


def test_the_map_of_the_house_is_that_of_the_import_rule() -> None:
    import house

    assert house.FILE.read_text("utf-8") == house.drawn(), "run: python docs/house.py"
    named = {name for row in house.rows() for name in row}
    packages = (
        path.stem for path in (making.ROOT / "src" / "rankscope").iterdir() if not path.name.startswith("_")
    )
    assert named == set(packages) - {"py"}


def test_the_site_has_every_page_in_its_navigation() -> None:
    import build_site

    def named(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        values = entry.values() if isinstance(entry, dict) else entry
        return [page for value in values for page in named(value)]

    made = {"pages.md", "contributing.md", "gallery.md", "signatures.md", "notebooks.md"}
    assert sorted(named(build_site.NAVIGATION)) == sorted(
        {page.name for page in making.DOCS.glob("*.md")} | made
    )
    assert all(f"({one.file})" in build_site.gallery() for one in making.pictures())
