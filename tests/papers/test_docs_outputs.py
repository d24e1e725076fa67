"""Outputs of README and docs that take up to a minute each: real checkpoints, many starts. ``make docs`` mends them."""

import making
import pytest

from rankscope.sources import BUILTINS

QUOTES = [one for page in making.pages() for one in making.quotes(page) if one.when == "papers"]


def needs(quote: making.Quote) -> list[pytest.MarkDecorator]:
    """A mark that skips the test where the checkpoint that the command names is not installed."""
    names = [word for word in quote.asked.args if word in BUILTINS] if quote.asked else []
    absent = [BUILTINS[name].pip for name in names if not BUILTINS[name].installed]
    marks = [pytest.mark.checkpoint] if names else []
    return [*marks, pytest.mark.skipif(bool(absent), reason=f"the checkpoint is not installed: {absent}")]


@pytest.mark.timeout(1200)  # some answers take minutes on a busy machine
@pytest.mark.parametrize(
    "quote", [pytest.param(one, id=f"{one.page.stem}-{one.start}", marks=needs(one)) for one in QUOTES]
)
def test_quoted_output_is_what_the_command_prints(quote: making.Quote) -> None:
    drift = quote.drift()
    assert not drift, f"{drift}\nif this is meant: make docs"


def test_there_are_such_outputs() -> None:
    assert {one.page.name for one in QUOTES} >= {"README.md", "ablate.md", "paths.md", "equilibria.md"}
