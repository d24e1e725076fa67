"""What is said and shown of a sweep."""

import polars as pl
import pytest

from kit.findings import sweep, sweep_failed
from rankscope.findings.sweep.finding import FailureReason
from rankscope.studies.sweep import _reasons


def failing(*many: int, finished: int = 8) -> dict[str, object]:
    reasons = tuple(
        FailureReason(reason=f"r{at}", configurations=one, first=at) for at, one in enumerate(many)
    )
    return {"failures": reasons, "finished": finished, "seconds": None}


@pytest.mark.parametrize(
    ("changes", "said", "tone"),
    [
        (failing(), "8 configurations of collapse: all have run, none failed.", "good"),
        (failing(2, 1), "8 configurations of collapse: all have run, 3 failed.", "look"),
        (failing(2, finished=5), "8 configurations of collapse: 3 still to run, 2 failed.", "look"),
        (failing(finished=5), "8 configurations of collapse: 3 still to run, none failed.", "look"),
        (failing(5, 3), "8 configurations of collapse: all have run, 8 failed.", "bad"),
        (failing(finished=0), "8 configurations of collapse: 8 still to run, none failed.", "look"),
    ],
)
def test_what_ran_and_what_failed_is_counted(changes: dict[str, object], said: str, tone: str) -> None:
    found = sweep().model_copy(update=changes)
    assert found.words[0] == said
    assert found.tone == tone


def test_what_only_checks_a_spec_says_how_long_it_would_take() -> None:
    assert sweep_failed().words == (
        "The spec has 8 configurations of collapse, and all are valid; on one processor they take about 28 s.",
    )


def test_a_picture_of_nothing_says_so() -> None:
    none = sweep().model_copy(update={"outcome": None, "groups": (), "shares": ()})
    assert "No configuration gave a number." in str(none.chart().svg())
    none.document()


def test_the_most_frequent_reason_comes_first() -> None:
    frame = pl.DataFrame(
        {"configuration": [0, 1, 2, 3, 4], "failure": [None, "rare", "often", None, "often"]}
    )
    assert [(one.reason, one.configurations, one.first) for one in _reasons(frame)] == [
        ("often", 2, 2),
        ("rare", 1, 1),
    ]
