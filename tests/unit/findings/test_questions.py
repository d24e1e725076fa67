"""The questions: one list, from which both the page and the listing come."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankscope.cli import app
from rankscope.findings.questions import BLOCK, QUESTIONS, Question, questions_page

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "questions.md"


def test_there_are_enough_and_each_is_asked_once() -> None:
    assert len(QUESTIONS) >= 22
    assert len({one.name for one in QUESTIONS}) == len(QUESTIONS)
    assert len({one.question for one in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: one.name)
def test_every_question_is_answered_in_two_sentences_without_made_numbers(one: Question) -> None:
    assert one.question.endswith("?")
    assert len(re.findall(r"[.!](?= |$)", one.answer)) == 2
    assert not re.search(r"\d+\.\d|\d%|e-\d", one.answer), (
        "a number is made by a command, or it is not quoted"
    )
    assert one.proven.endswith((".", ")."))
    assert one.measured.endswith(".")
    for page in one.pages:
        assert (DOCS / page).exists()
    assert (DOCS / one.picture[0]).exists()


def test_the_page_is_made_from_the_list_and_every_command_was_run() -> None:
    text = PAGE.read_text("utf-8")
    assert text == questions_page(text)
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(QUESTIONS)
    assert not [one["asked"] for one in blocks if not one["text"].strip()]


def test_outputs_of_the_old_page_are_kept_and_others_are_empty() -> None:
    fresh = questions_page()
    first = BLOCK.search(fresh)
    assert first is not None
    assert first["text"] == ""
    filled = fresh[: first.end("text")] + "made before\n" + fresh[first.end("text") :]
    assert questions_page(filled) == filled
    assert "made before" not in questions_page(filled.replace(first["asked"], "rankscope list masks"))


def test_a_picture_of_a_question_alone_is_drawn_by_its_own_command_and_is_small() -> None:
    drawn = tomllib.loads((DOCS / "pictures.toml").read_text("utf-8"))
    own = {one.picture[0]: one for one in QUESTIONS if drawn[one.picture[0]]["page"] == "questions.md"}
    assert len(own) >= 9
    for file, one in own.items():
        assert drawn[file]["command"] == f"{one.command} --plot {file}"
        assert drawn[file]["title"] == one.picture[1]
        assert (DOCS / file).stat().st_size <= 40_000, file


def test_the_listing_says_the_same() -> None:
    found = CliRunner().invoke(app, ["list", "questions", "--format", "csv"])
    assert found.exit_code == 0
    for one in QUESTIONS:
        assert one.question in found.stdout
