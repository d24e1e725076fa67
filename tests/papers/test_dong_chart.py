"""The chart of ``dong-*``: made of synthetic tables, checked by what it holds."""

import json
import math

import pytest

from rankscope.plots import svg
from rankscope.plots.dong_chart import DEEPEST, chart_rows, dong_chart, repeats_rows
from rankscope.results import Table

NAMES = ("san", "transformer")


def made(*, trained="minilm", is_paper=False, published=True):
    """Two draws of two variants and three layers; attention alone leaves the axis by the split pass."""
    columns = {
        name: []
        for name in ("weights", "variant", "seed", "layer", "arithmetic", "value", "floor", "log10_value")
    }
    for weights in ("initial", "trained") if trained else ("initial",):
        for variant in NAMES:
            for layer in range(3):
                for arithmetic in ("float32", "split") if variant == "san" else ("float32",):
                    log = -(30.0**layer) if arithmetic == "split" else None
                    row = (
                        weights,
                        variant,
                        0 if weights == "initial" else None,
                        layer,
                        arithmetic,
                        0.5,
                        1e-6,
                        log,
                    )
                    for name, value in zip(columns, row, strict=True):
                        columns[name].append(value)
    curves = [
        {
            "weights": weights,
            "variant": variant,
            "layers": [{"mean": 0.5, "low": -0.1, "high": 1.1, "count": 2}] * 3,
        }
        for weights in ("initial", "trained")
        for variant in NAMES
    ]
    rows = [
        {
            "weights": weights,
            "variant": "san",
            "layer": layer,
            "published": 0.25,
            "ours": 0.5 if weights == "initial" or is_paper else None,
        }
        for weights in ("initial", "trained")
        for layer in range(3)
    ]
    setting = {"label": "BERT", "tokens": 128, "trained": trained, "is_paper": is_paper}
    columns |= {"measure": "residual_ratio", "definition": "residual_ratio[composite,mean]"}
    repeats = [
        {
            "repeats": r,
            "variant": variant,
            "layers": [{"mean": mean * fall, "low": None, "high": None} for fall in falls],
        }
        for r, mean in ((1.55, 0.4), (3.1, 0.5), (6.2, 0.45))
        for variant, falls in zip(NAMES, ((1, 0.1, 1e-7), (1, 0.9, 0.8)), strict=True)
    ]
    sections = {
        "setting": setting,
        "curves": curves,
        "published": rows if published else [],
        "repeats": repeats,
    }
    return Table.from_columns(columns, provenance={}, command="reproduce", sections=sections)


def of(rows, kind, series="san"):
    return [row for row in rows if row["kind"] == kind and row["series"] == series]


def test_rows_hold_ours_the_published_and_the_split_pass():
    rows = chart_rows(made(), "initial")
    ours = of(rows, "ours")
    assert [row["layer"] for row in ours] == [0, 1, 2]
    assert ours[0]["low"] == 0.0
    assert ours[0]["high"] == 1.0
    assert ours[0]["log"] == pytest.approx(math.log10(0.5))
    assert ours[0]["log_low"] == pytest.approx(math.log10(0.05))
    assert ours[0]["floor"] == pytest.approx(-6.0)
    assert [row["value"] for row in of(rows, "published")] == [0.25] * 3
    assert not of(rows, "published", "transformer")
    split = of(rows, "split")
    assert [row["layer"] for row in split] == [0, 1]  # the line ends at the first point below the axis
    assert split[1]["log"] == -30.0 < DEEPEST


def test_falling_variants_are_shown_against_how_often_tokens_repeat():
    """In layer 1 attention alone has fallen, in layer 2 it is rounding; the other variant has not fallen."""
    rows = repeats_rows(made())
    assert list(rows) == [1]
    assert [(row["series"], row["repeats"], row["value"]) for row in rows[1]] == [
        ("san", 1.55, pytest.approx(0.04)),
        ("san", 3.1, pytest.approx(0.05)),
        ("san", 6.2, pytest.approx(0.045)),
    ]
    assert rows[1][0]["published"] == 0.25
    assert rows[1][1]["low"] == rows[1][1]["high"] == rows[1][1]["value"]
    assert repeats_rows(made(published=False))[1][0]["published"] is None
    text = svg(dong_chart(made()))
    assert "R, how often tokens repeat" in text
    assert "the same at layer 1" in text
    assert "at layer 2" not in text


def test_published_curves_stand_beside_the_same_trained_model_alone():
    assert not of(chart_rows(made(), "trained"), "published")
    assert len(of(chart_rows(made(is_paper=True), "trained"), "published")) == 3


def test_pictures():
    both = json.dumps(dong_chart(made()).to_dict())
    assert "trained weights of another model: minilm" in both
    assert '"published"' in both
    assert "trained weights: bert" in json.dumps(dong_chart(made(trained="bert", is_paper=True)).to_dict())
    alone = dong_chart(made(trained=None, published=False))
    text = json.dumps(alone.to_dict())
    assert "untrained weights" in text
    assert "minilm" not in text
    assert "published" not in svg(alone)
    assert "split pass" in svg(alone)
