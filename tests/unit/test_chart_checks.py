"""Charts are copied and checked as altair does, and faults in them are found."""

from typing import Any

import altair as alt
import pytest
from altair.utils.schemapi import SchemaBase, SchemaValidationError

from kit.chart_checks import copied
from rankscope.plots.style import configured


def chart() -> Any:
    rows = alt.InlineData(values=[{"layer": 1, "value": 2.0}, {"layer": 2, "value": None}])
    base = alt.Chart(rows).encode(x=alt.X("layer:Q", axis=alt.Axis(values=[1, 2])), color=alt.value("red"))
    picked = alt.selection_point(fields=["layer"], name="picked")
    line = base.mark_line(strokeDash=[2, 1]).encode(y="value:Q")
    panel = alt.layer(line, base.mark_rule().encode(y=alt.datum(0))).properties(width=100)
    return configured(alt.vconcat(panel, line.add_params(picked).properties(title="again")))


def parts_of(part: Any, place: str = "") -> dict[str, Any]:
    """Every part of a chart that is no plain value, by its place."""
    if isinstance(part, SchemaBase):
        inside = {**dict(enumerate(part._args)), **part._kwds}
    elif isinstance(part, list | dict):
        inside = dict(enumerate(part)) if isinstance(part, list) else part
    else:
        return {}
    below = [parts_of(one, f"{place}/{name}") for name, one in inside.items()]
    return {place: part} | {name: one for each in below for name, one in each.items()}


def test_a_copy_is_equal_and_shares_nothing() -> None:
    whole = chart()
    ours = copied(whole, set())
    before, after = parts_of(whole), parts_of(ours)
    assert len(before) > 40
    assert list(before) == list(after)
    shared = {name for name in before if before[name] is after[name]}
    assert all("params" in name for name in shared)  # altair keeps a parameter and its name one thing too
    assert all(type(before[name]) is type(after[name]) for name in before)
    assert ours.to_dict() == whole.to_dict()


def test_named_fields_are_kept_and_not_copied() -> None:
    base = chart()
    assert copied(base, {"config"}).config is base.config
    assert copied(base, set()).config is not base.config


@pytest.mark.parametrize("times", [1, 2])
def test_what_the_schema_does_not_know_is_refused_every_time(times: int) -> None:
    for _ in range(times):
        with pytest.raises(SchemaValidationError, match="steep"):
            alt.Axis(labelAlign="steep")
        assert alt.Axis(labelAlign="left").to_dict() == {"labelAlign": "left"}


def test_what_was_right_elsewhere_is_not_right_here() -> None:
    assert alt.Axis(titleFontSize=12).to_dict() == {"titleFontSize": 12}
    with pytest.raises(SchemaValidationError):
        alt.Scale(titleFontSize=12)


def test_a_part_that_is_changed_after_it_was_right_is_refused() -> None:
    axis = alt.Axis(values=[1, 2])
    axis.to_dict()
    axis.values = {"not": "a list"}
    with pytest.raises(SchemaValidationError):
        axis.to_dict()
