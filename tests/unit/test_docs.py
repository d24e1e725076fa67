"""README and docs: code runs, outputs are those of the commands beside them, every picture has its command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import making
import pytest

PAGES = {page.name: page for page in making.pages()}
OWN_TESTS = {"your_model.md", "adding_things.md", "add_a_family.md", "watch.md"}
"""Pages of whole programs: ``test_your_model.py``, ``test_recipes.py`` and ``test_adapters.py`` run them."""

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


@pytest.mark.slow
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


NOT_MADE = {
    # the curves of Dong et al. for BERT, the rounding of float32, and how far trees may be from models
    "ablate.md": """0.612 0.0176 7.0e-7 1.9e-7 2.0e-7 0.597 0.0174 8.8e-7 0.607 0.565 0.559 0.529 0.487 0.449 0.563
        0.535 0.493 0.414 0.345 2e-7 1e-9 2e-6 2e-4 0.1""",
    "README.md": "0.1 0.173 3% 0.9 0.97 8.3178",  # limits in the code, a loss as one may type it
    "adding_things.md": "1e-170",  # what laws scale states by
    "diagnose.md": "0.1",  # a limit in the code
    "certify.md": "1e-30000 1.256",  # an example; the limit of a theorem
    "collapse.md": "1e-100000",  # an example
    "compare.md": "0.05",  # a default
    "design.md": "1e6 1e-8 2e-4 1% 2e-6 1e-9 1.8",  # limits in the code, a constant of a proof
    "dynamics.md": "1e-12 1e-6 1e100",  # limits in the code
    "embeddings.md": "0.75 0.5 95% 1e-7 1.000 2,048 8,192",  # limits in the code, the constant of RankMe, equal rows
    "equilibria.md": "1% 1,000 1e-16 1e-3 4,096",  # defaults, limits in the code, rounding
    "floors.md": "6e-8 6e-5 1e-12 5.4e-11 0.1",  # of float16; limits in the code
    "watch.md": "0.96",  # a limit in the code
    "scale.md": "10,000 5,000 1.5",  # a limit in the code, sizes of tests
    "parts.md": "0.01",  # a default of torch
    "paths.md": "1e-15 11.08 95%",  # rounding, L H / (H + 1), a kind of interval
    "stuck.md": "0.02 0.05 0.693147 0.6932",  # limits in the code, ln 2, a loss as one may type it
    "predict.md": "0.06",  # what test_forecast.py allows
    # constants of proofs and counter-examples, which the claims compute
    "proofs.md": "14.14 1.256 0.385 0.999 1.34 4.0 1.004 1.98 1.128904 1.099839 1.128993 1.8 1.12 0.0007",
    "scan.md": "1% 0.3",  # limits in the code
    # the published plateau, rounding, limits in the code, and what tests of rates and floors allow
    "split.md": "2e-7 1e-15 0.15 0.1 90% 99% 65,536 6,000 0.1% 1.5% 1e-291 1e-10 4,096 1e-11 1e-100 10%",
    "train.md": "0.98 0.90 0.85 0.54",  # published
    "verdict.md": "0.6 3%",  # an example
}
"""Numbers that look measured and are not: published ones, examples, limits and constants."""


@pytest.mark.parametrize("name", sorted(set(PAGES) - set(making.GENERATED)))
def test_every_measured_number_is_made(name: str) -> None:
    found = set(making.unmade(PAGES[name].read_text()))
    assert found <= set(NOT_MADE.get(name, "").split()), "mark it (docs/making.py), or say above what it is"


def test_every_block_of_output_is_made() -> None:
    """It has a marker, or stands below the code that prints it."""
    for name, page in PAGES.items():
        text = page.read_text()
        made = {one.end() for one in [*making.MARKER.finditer(text), *making.CODE.finditer(text)]}
        for block in re.finditer(rf"^```text\n({making.BODY})```$", text, re.M):
            assert block.end() in made or name in OWN_TESTS, f"{name}: {block[1][:80]}"


def test_slow_outputs_are_what_was_recorded_when_they_were_made() -> None:
    slow = [one for one in QUOTES if one.when == "docs"]
    known = making.recorded()
    assert {(one.page.name, one.key) for one in slow} == {
        (page, key) for page in known for key in known[page]
    }
    drifted = [one.key for one in slow if known[one.page.name][one.key] != one.old]
    assert not drifted, f"{drifted}\nrun: python docs/making.py write docs"


@pytest.mark.parametrize("name", sorted(set(PAGES) - set(making.GENERATED)))
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


def test_a_slow_output_that_was_changed_by_hand_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "DOCS", tmp_path)
    monkeypatch.setattr(making, "MADE", tmp_path / "made.json")
    text = '<!-- made by: rankscope list masks | from "full" to "full" | docs -->\n```text\n```\n'
    page = page_of(tmp_path, text)
    assert making.write(page, ["docs"])
    (quote,) = making.quotes(page)
    assert making.recorded() == {"page.md": {quote.key: quote.old}}
    page.write_text(page.read_text().replace(quote.old, "by hand\n"))
    (changed,) = making.quotes(page)
    assert making.recorded()["page.md"][changed.key] != changed.old


def test_what_is_kept_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "KEPT", tmp_path / "kept")
    command = "rankscope collapse --layers 1 --heads 1 --dim 4 --tokens 3 --seed 77"
    first = making.json_of(command)
    making.json_of.cache_clear()
    monkeypatch.setattr(making, "run", None)
    assert making.json_of(command) == first
    making.json_of.cache_clear()


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


@pytest.mark.parametrize(("words", "code"), [("", 0), ("it has drifted", "it has drifted")])
def test_a_check_reads_the_pages_that_are_named_and_fails_where_one_drifted(
    words: str, code: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Asked:
        when = "test"

        def drift(self) -> str:
            return words

    def quotes(page: Path) -> list[Asked]:
        seen.append(page.name)
        return [Asked()]

    monkeypatch.setattr(making, "quotes", quotes)
    with pytest.raises(SystemExit) as end:
        making.main(["check", "test", "atlas.md"])
    assert end.value.code == code
    assert seen == ["atlas.md"]
