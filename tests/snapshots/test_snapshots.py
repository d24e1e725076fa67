"""What commands print is what was approved; their numbers are what they were."""

import json

import pytest

from snapshots.lines import LINES
from snapshots.taking import NUMBERS, TEXTS, differences, masked, prepare, rows_of, run, text_diff, text_of

BY_NAME = {one.name: one for one in LINES}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("snapshots")
    prepare(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for one in LINES:
            if one.makes:
                run(one.args)
        yield home


@pytest.mark.parametrize("name", [one.name for one in LINES if one.has_rows])
def test_numbers_are_those_of_the_snapshot(name: str) -> None:
    wanted = json.loads((NUMBERS / f"{name}.json").read_text())
    found = list(differences(wanted, rows_of(BY_NAME[name])))
    assert not found, "\n".join(found[:10])


@pytest.mark.parametrize("name", BY_NAME)
def test_texts_are_those_that_were_approved(name: str) -> None:
    wanted, found = (TEXTS / f"{name}.txt").read_text(), text_of(BY_NAME[name])
    assert found == wanted, f"{text_diff(name, wanted, found)}\nif this is meant: make snapshots"


def test_every_snapshot_belongs_to_a_command_line() -> None:
    assert {path.stem for path in TEXTS.iterdir()} == set(BY_NAME)
    assert {path.stem for path in NUMBERS.iterdir()} == {one.name for one in LINES if one.has_rows}


def row(value: float, floor: float = 1e-15, **more) -> dict:
    return {"layer": 1, "value": value, "log10_value": None, "floor": floor, "resolved": value > floor} | more


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (row(0.5), row(0.5 + 1e-16), False),
        (row(0.5), row(0.5 + 1e-8), True),
        (row(1e-8, 1e-9), row(1.5e-9 + 1e-8, 1e-9), True),
        (row(1e-8, 1e-9), row(0.5e-9 + 1e-8, 1e-9), False),
        (row(1e-17), row(3e-16), False),  # neither is above its floor
        (row(1e-17), row(0.5), True),  # one is now
        (row(0.5, 1e-15), row(0.5, 1.3e-15), False),
        (row(0.5, 1e-15), row(0.5, 1e-14), True),
        (row(0.5, definition="a"), row(0.5, definition="b"), True),
        (row(0.5, extra=1.0), row(0.5), True),
        (row(0.5), row(0.5, extra=1.0), False),
        (row(1.0, log10_value=0.0), row(1.0, log10_value=9.6e-17), False),
        (
            row(0.5, 1e-3, log10_value=-0.301),
            row(0.5, 1e-3, log10_value=-0.3016),
            False,
        ),  # the floor allows 9e-4
        (row(0.5, 1e-3, log10_value=-0.301), row(0.5, 1e-3, log10_value=-0.303), True),
        (row(0.5, floor_after=1e-15), row(0.5, floor_after=1.1e-15), False),
        (row(0.5, floor_after=1e-15), row(0.5, floor_after=1e-14), True),
    ],
)
def test_numbers_differ_where_floors_do_not_explain_it(old: dict, new: dict, differs: bool) -> None:
    assert bool(list(differences([old], [new]))) == differs


def test_digits_of_the_processor_are_masked_and_counts_are_not() -> None:
    assert (
        masked("12 layers fall by .5 to -1.2e-16, 3e-05 and 0.75 (x 2)")
        == "12 layers fall by # to #, # and # (x 2)\n"
    )
