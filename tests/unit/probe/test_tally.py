"""Means and spreads without keeping the values: equal to numpy on all of them, also when saved in between."""

import json

import numpy as np
import pytest

from rankscope.probe import KEPT_TEXTS, Tally
from rankscope.probe.tally import Place, Seen

NAMES = ("residual_ratio[frobenius,mean]", "cosine[off_diagonal]")
PLACE = Place("blocks", 0, "block")


def seen(values, floors=None):
    floors = np.full_like(values, 1e-6) if floors is None else floors
    return Seen(
        place=PLACE, definitions=NAMES, values=values, floors=floors, tokens=(4,) * len(values), dim=8
    )


def filled(batches):
    tally = Tally()
    for values in batches:
        tally.add([seen(values)], [4] * len(values))
    return tally


def joined(pieces):
    """One tally of each piece, joined in order."""
    whole = Tally()
    for piece in pieces:
        whole.join(filled([piece]))
    return whole


@pytest.fixture
def batches():
    random = np.random.default_rng(0)
    return [1e3 + random.normal(size=(size, 2)) for size in (8, 8, 3, 1, 80)]


def test_the_summary_is_that_of_all_texts(batches):
    values = np.concatenate(batches)
    for k, entry in enumerate(filled(batches).summary()):
        assert entry["texts"] == len(values)
        for name, expected in (
            ("mean", values[:, k].mean()),
            ("std", values[:, k].std(ddof=1)),
            ("min", values[:, k].min()),
            ("max", values[:, k].max()),
        ):
            assert entry[name] == pytest.approx(expected, rel=1e-12)
        assert entry["resolved"] == 1.0


def test_texts_without_a_number_are_counted_and_left_out_of_the_mean():
    values = np.array([[1.0, np.nan], [3.0, 5.0]])
    first, second = filled([values]).summary()
    assert (first["mean"], first["resolved"]) == (2.0, 1.0)
    assert (second["mean"], second["std"], second["resolved"]) == (5.0, None, 0.5)


def test_numbers_at_their_floor_are_not_resolved():
    tally = Tally()
    tally.add([seen(np.array([[1e-7, 0.5]]))], [4])
    assert [entry["resolved"] for entry in tally.summary()] == [0.0, 1.0]


def test_only_the_first_texts_keep_rows(batches):
    tally = filled(batches)
    assert sorted(set(tally.rows["sample"])) == list(range(KEPT_TEXTS))
    assert tally.texts == 100


def test_what_is_kept_does_not_grow_with_the_number_of_texts(batches):
    tally = filled(batches)
    before = len(json.dumps(tally.state()))
    for _ in range(50):
        tally.add([seen(batches[0])], [4] * 8)
    assert len(json.dumps(tally.state())) < before * 1.01


def test_a_tally_goes_on_from_its_saved_state(batches):
    whole = filled(batches)
    half = filled(batches[:3])
    half = Tally.from_state(json.loads(json.dumps(half.state())))
    for values in batches[3:]:
        half.add([seen(values)], [4] * len(values))
    assert half.summary() == whole.summary()
    assert half.rows == whole.rows
    assert half.stacks == whole.stacks


def test_joined_tallies_are_one_tally_of_all_texts(batches):
    whole, parts = filled(batches), joined(batches)
    assert (parts.texts, parts.tokens, parts.stacks, parts.rows) == (
        whole.texts,
        whole.tokens,
        whole.stacks,
        whole.rows,
    )
    for one, other in zip(parts.summary(), whole.summary(), strict=True):
        for name in ("mean", "std", "floor"):
            assert one.pop(name) == pytest.approx(other.pop(name), rel=1e-12)
        assert one == other
    again = Tally()
    for piece in batches:
        again.join(Tally.from_state(json.loads(json.dumps(filled([piece]).state()))))
    assert json.dumps(again.state()) == json.dumps(parts.state())


def test_a_tally_without_numbers_or_texts_changes_nothing_where_it_is_joined():
    first = np.array([[1.0, np.nan], [3.0, np.nan]])
    second = np.array([[np.nan, 1e200], [np.nan, 1e200]])
    parts = joined([first, second])
    assert parts.summary() == filled([first, second]).summary()
    before = json.dumps(parts.state())
    parts.join(Tally())
    assert json.dumps(parts.state()) == before
    empty = Tally()
    empty.join(parts)
    assert json.dumps(empty.state()) == before


def test_joined_tallies_keep_the_rows_of_the_first_texts_alone():
    values = np.arange(2.0 * 90).reshape(90, 2)
    parts = joined([values[:30], values[30:50], values[50:]])
    assert parts.rows == filled([values]).rows
    assert max(parts.rows["sample"]) == KEPT_TEXTS - 1
