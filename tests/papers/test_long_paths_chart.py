"""Charts of ``long-paths`` and ``width-depth``: made of synthetic tables, checked by what they hold."""

import json
from functools import cache

import pytest

from rankscope.plots import svg
from rankscope.plots.long_paths_chart import DEEPEST, long_paths_chart
from rankscope.plots.width_depth_chart import width_depth_chart
from rankscope.results import Table

ACCURACY, RATIO = "token_accuracy", "residual_ratio[frobenius,mean,unit]"
NUMBER = {"measure": ACCURACY, "definition": ACCURACY, "floor": 0.0}


def entry(variant, mode, length, mean, *, reach=0.05, definition=ACCURACY, resolved=True):
    about = {
        "variant": variant,
        "mode": mode,
        "length": length,
        "definition": definition,
        "resolved": resolved,
    }
    low, high = (None, None) if reach is None else (mean - reach, mean + reach)
    return {**about, "mean": mean, "low": low, "high": high, "count": 3, "is_log10": definition == RATIO}


def paths_table(*, reach=0.05, resolved=True):
    entries = []
    for place, variant in enumerate(("baseline", "path dropout 0.5")):
        entries += [entry(variant, "full", None, 0.98 - place / 2, reach=reach)]
        entries += [entry(variant, "without skips", 2, 0.1 + place / 2, reach=reach)]
        for mode in ("frozen", "isolated"):
            for length in range(3):
                entries.append(entry(variant, mode, length, 0.9 - 0.4 * length, reach=reach))
                deep = -20.0 if length == 2 else -1.0 * length
                entries.append(
                    entry(variant, mode, length, deep, reach=reach, definition=RATIO, resolved=resolved)
                )
    sections = {
        "over_seeds": entries,
        "setting": {"layers": 2, "heads": 2, "dim": 4, "variants": ["baseline", "path dropout 0.5"]},
        "lines": {"naive": 0.1, "own letter alone": 0.4},
    }
    return Table.from_columns({**NUMBER, "value": [0.0]}, sections=sections)


@cache
def paths_spec(**options):
    """The chart as Vega-Lite, made once: altair checks every part of it again each time."""
    return long_paths_chart(paths_table(**options)).to_dict()


@cache
def width_spec(**options):
    return width_depth_chart(width_table(**options)).to_dict()


def lists_of(spec):
    """Every list of rows in a chart."""
    return [json.loads(rows) for rows in spec["datasets"].values()]


def text_of(spec):
    """All but the data, as text."""
    return json.dumps({name: part for name, part in spec.items() if name != "datasets"})


def rows_with(spec, *fields):
    seen = {
        json.dumps(row, sort_keys=True): row
        for rows in lists_of(spec)
        for row in rows
        if set(fields) <= set(row)
    }
    return list(seen.values())


def test_whole_networks_are_shown_with_and_without_skips():
    whole = rows_with(paths_spec(), "kind")
    assert {(row["variant"], row["kind"]): row["at"] for row in whole} == {
        ("baseline", "whole network"): 0.98,
        ("baseline", "its skips taken out"): 0.1,
        ("path dropout 0.5", "whole network"): 0.48,
        ("path dropout 0.5", "its skips taken out"): 0.6,
    }
    ends = {row["at"]: (row["low"], row["high"]) for row in whole}
    assert ends[0.98] == pytest.approx((0.93, 1.0)), "an accuracy does not go beyond 1"


def test_lines_stand_apart_and_numbers_stay_on_the_axes():
    points = rows_with(paths_spec(), "length", "hollow")
    places = {row["x"] for row in points if row["length"] == 1}
    assert len(places) == 2
    assert all(abs(row["x"] - row["length"]) < 0.5 for row in points)
    assert min(row["at"] for row in points) == DEEPEST


def test_numbers_below_their_floor_are_hollow():
    assert not any(row["hollow"] for row in rows_with(paths_spec(), "hollow"))
    chart = paths_spec(reach=None, resolved=False)
    hollow = [row for row in rows_with(chart, "hollow") if row["hollow"]]
    assert hollow
    assert all(row["at"] <= 0 for row in hollow), "ratios alone"
    assert "rounding floor" in text_of(chart)


def test_the_dashed_line_is_the_highest_of_the_simple_answers():
    levels = [row for rows in lists_of(paths_spec()) for row in rows if set(row) == {"at"}]
    assert levels
    assert {row["at"] for row in levels} == {0.4}


def test_a_single_seed_has_no_bars():
    whole = rows_with(paths_spec(reach=None, resolved=False), "kind")
    assert all(row["low"] == row["at"] == row["high"] for row in whole)


def width_table(*, least=0.9, variants=("with skips",)):
    shapes = [
        {"layers": layers, "dim": dim, "heads": 2, "parameters": 100 + dim}
        for layers, dim in ((1, 40), (4, 20))
    ]
    entries = [
        {"variant": variant, "layers": one["layers"], "dim": one["dim"], "mean": mean, "low": mean - 0.02}
        | {"high": mean + 0.02, "count": 3}
        for variant in variants
        for one, mean in zip(shapes, (0.995, least), strict=True)
    ]
    columns = {
        **NUMBER,
        "variant": [one["variant"] for one in entries],
        "layers": [one["layers"] for one in entries],
        "value": [one["mean"] for one in entries],
    }
    sections = {
        "over_seeds": entries,
        "shapes": shapes,
        "setting": {"heads": 2, "parameters": 120},
        "lines": {"naive": 0.1},
    }
    return Table.from_columns(columns, sections=sections)


def test_depths_are_labeled_with_their_widths():
    chart = width_spec()
    drawn = text_of(chart)
    assert "x 40" in drawn
    assert "x 20" in drawn
    assert "120 to 140 weights" in drawn
    points = rows_with(chart, "layers", "at")
    assert {(row["layers"], row["x"]) for row in points} == {(1, 0.0), (4, 2.0)}
    assert max(row["high"] for row in points) == 1.0


def test_the_axis_starts_near_the_worst_network_and_shows_naive_answers_if_they_are_on_it():
    def levels(**options):
        return [row["words"] for row in rows_with(width_spec(**options), "words")]

    assert levels() == []
    assert levels(least=0.3) == ["naive"]


def test_two_variants_have_a_legend():
    one, two = (
        width_spec(variants=names)["layer"][0]["encoding"]["color"]["legend"]
        for names in (("with skips",), ("with skips", "without skips"))
    )
    assert one is None
    assert two is not None


def test_it_can_be_drawn():
    assert "token accuracy" in svg(width_depth_chart(width_table()))
