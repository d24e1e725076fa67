"""What is said and shown of a training run."""

import math

from kit.findings import watch, watch_alarms
from rankscope.document.blocks import Tabular
from rankscope.findings.watch import Reading
from rankscope.findings.watch.finding import WatchFinding
from rankscope.findings.watch.log import LogHeader, RunLog
from rankscope.studies.watch import finding_of


def test_a_curve_shows_the_worst_place_of_every_stack() -> None:
    """The smallest ratio and entropy, the largest logit; stacks apart."""
    record = RunLog()
    places = {"a/1/0": 0.4, "a/2/1": 0.9, "b/1/0": 0.7}
    for step in (10, 20):
        signals = dict.fromkeys(("entropy", "largest_logit"), places) | {"ratio": {"a": 0.5, "b": 0.3}}
        record.take(Reading(step=step, signals=signals))
    curves = finding_of(record, source="x", origin="rankscope").curves()
    assert {name: points[-1] for name, points in curves.items()} == {
        **{"ratio [a]": (20, 0.5), "ratio [b]": (20, 0.3)},
        **{"entropy [a]": (20, 0.4), "entropy [b]": (20, 0.7)},
        **{"largest_logit [a]": (20, 0.9), "largest_logit [b]": (20, 0.7)},
    }


def test_the_time_left_is_that_of_the_steps_left() -> None:
    record = RunLog(header=LogHeader(steps=100), times=[(20, 5.0), (40, 15.0), (60, 25.0)])
    found = finding_of(record, source="x", origin="rankscope")
    assert found.seconds_left is not None
    assert math.isclose(found.seconds_left, 20.0)
    record.times.append((120, 55.0))  # the run is past the steps that were announced
    assert finding_of(record, source="x", origin="rankscope").seconds_left == 0.0


def test_alarms_that_ended_are_told_apart_from_those_that_ring() -> None:
    whole = watch_alarms()
    first, *others = whole.rang
    assert whole.words[0].startswith(f"Since step {first.since}: ")
    quiet = whole.model_copy(update={"ringing": (), "rang": (first, *others[:1])})
    assert quiet.words == (
        f"No alarm rings at step 59 of 100; earlier: {first.name} at step 30, {others[0].name} at step 30.",
    )
    assert watch().model_copy(update={"ringing": (), "rang": ()}).words == (
        "No alarm up to step 59 of 100, from 6 scans.",
    )


def test_the_table_of_alarms_gives_its_width_to_what_to_try() -> None:
    (table,) = (one for one in watch_alarms().document().blocks if isinstance(one, Tabular))
    assert {one.name: one.kind for one in table.columns} == {
        **{"alarm": "name", "where": "name", "since step": "number", "rang at": "number"},
        "what to try": "words",
    }


def test_alarms_are_marked_where_they_begin() -> None:
    found: WatchFinding = watch_alarms()
    panel = found.chart().pictures[0]
    assert [(place, words) for place, words in panel.marks][:2] == [
        (10.0, found.rang[0].name),
        (10.0, found.rang[1].name),
    ]
