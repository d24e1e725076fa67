"""The page and the picture of predictions: a line per depth, proven bounds on a logarithmic axis."""

import math
import re
from typing import Any

import pytest

from kit.html_reader import Reader
from rankscope.findings.predict import (
    AprioriValue,
    BlockStatement,
    Depth,
    ForecastValue,
    Passing,
    PredictFinding,
    PredictView,
    Reason,
)
from rankscope.results import Table
from rankscope.results.statistics import Outcome

TEN = math.log(10)
HOSTILE = "<script>alert(1)</script>\x1b[31m" + "model" * 50


def depth(layers: int, dim: int = 8, *, passes: int | None = None, **more: Any) -> Depth:
    fields = {
        "sizing": "own width",
        "parameters": 100,
        "cosine": 0.5,
        "logit_variance": 0.1,
        "is_rough": False,
    }
    return Depth(layers=layers, dim=dim, passes=passes, **fields | more)


def forecast_of(*depths: Depth, **more: Any) -> ForecastValue:
    fields = {"model": "m", "tokens": 8, "threshold": 0.9, "small_logits": 1.0}
    return ForecastValue(depths=depths, **fields | more)


def statement(layer: int, **logs: float | None) -> BlockStatement:
    known: dict[str, Any] = {
        **dict.fromkeys(("gain_lower", "total_lower", "critical"), -math.inf),
        **dict.fromkeys(("gain_upper", "total_upper", "upper"), math.inf),
        "lower": None,
    }
    return BlockStatement(layer=layer, **known | logs)


def proven(*layers: BlockStatement, **more: Any) -> AprioriValue:
    fields = {"model": "m", "spread": None, "size": None, "target": None, "layers_until": None}
    return AprioriValue(layers=layers, **fields | {"critical_spread": 0.0, "keeps_apart": False} | more)


def found_of(
    forecast: ForecastValue | None = None, apriori: AprioriValue | None = None, model: str = "m"
) -> PredictFinding:
    rows: list[dict[str, Any]] = [
        {
            "layers": one.layers,
            "sizing": one.sizing,
            "layer": layer,
            "value": layer / 400,
            "statement": "forecast",
        }
        | {"measure": "cosine", "definition": "cosine[off_diagonal]", "floor": 0.0}
        for one in (forecast.depths if forecast else ())
        for layer in range(one.layers + 1)
    ] or [
        {
            "statement": "a-priori",
            "measure": "diameter",
            "definition": "diameter[l2]",
            "value": None,
            "floor": 0.0,
        }
    ]
    for row in rows:
        row.setdefault("layers", None)
        row.setdefault("sizing", None)
        row.setdefault("layer", 1)
    table = Table.from_columns({name: [row[name] for row in rows] for name in rows[0]})
    return PredictFinding(model=model, forecast=forecast, apriori=apriori, definitions={}, table=table)


def test_a_line_for_every_depth_and_width() -> None:
    fair = depth(3, 4, sizing="equal parameters")
    (panel,) = found_of(forecast_of(depth(2), depth(3), fair)).chart().pictures
    lines = {line.name: line for line in panel.lines if line.name}
    assert {name: (line.style, line.color) for name, line in lines.items()} == {
        "2 layers": ("solid", 0),
        "3 layers": ("solid", 1),
        "3 layers, dim 4": ("dashed", 1),
    }
    assert [(point.x, point.y) for point in lines["2 layers"].points] == [
        (0, 0.0),
        (1, 1 / 400),
        (2, 2 / 400),
    ]
    (limit,) = [line for line in panel.lines if not line.name]
    assert [(point.x, point.y) for point in limit.points] == [(0, 0.9), (3, 0.9)]


def test_a_very_deep_forecast_is_drawn_by_an_even_choice() -> None:
    (panel,) = found_of(forecast_of(depth(5000))).chart().pictures
    points = panel.lines[0].points
    assert len(points) == 200
    assert (points[0].x, points[-1].x) == (0, 5000)


def test_bounds_stand_at_their_logarithms_and_what_is_unproven_is_left_out() -> None:
    layers = [statement(layer, upper=-1000.0, critical=0.25, lower=-math.inf) for layer in (1, 2)]
    (panel,) = found_of(apriori=proven(*layers, spread=0.5, critical_spread=1.2)).chart().pictures
    lines = {line.name: line.points for line in panel.lines}
    assert set(lines) == {"at most", "critical spread"}
    assert [(point.x, point.y) for point in lines["at most"]] == [
        (0, pytest.approx(math.log10(0.5))),
        (1, pytest.approx(-1000 / TEN)),
        (2, pytest.approx(-1000 / TEN)),
    ]


def test_gains_are_drawn_where_no_spread_is_given() -> None:
    layers = [statement(layer, gain_lower=-0.5, gain_upper=0.5) for layer in (1, 2)]
    (panel,) = found_of(apriori=proven(*layers, keeps_apart=True)).chart().pictures
    assert {line.name: line.points[0].y for line in panel.lines} == {
        "at most": pytest.approx(0.5 / TEN),
        "at least": pytest.approx(-0.5 / TEN),
    }
    assert panel.notes[0] == "Proven: no input collapses, every block keeps a share of the spread."


def test_nothing_proven_is_a_picture_and_a_page_that_say_so() -> None:
    reason = Reason(of="weights", name="skip around attention", meaning="its averages may all be equal")
    layers = [statement(1, no_lower=(reason,)), statement(2, no_lower=(reason,))]
    found = found_of(apriori=proven(*layers))
    assert "There is no number to draw." in str(found.chart().svg())
    assert found.headline == ("Nothing is proven of all inputs", "unknown")
    assert re.search(r"^1-2 +below +skip around attention; its averages may all be equal$", str(found), re.M)
    assert Reader(found.to_html()).open == []


@pytest.mark.parametrize(
    ("depths", "words"),
    [
        ([depth(4, cosine=0.3)], "forecast to be 0.3 after layer 4; it does not pass 0.9."),
        ([depth(4, passes=3, cosine=0.95)], "forecast to pass 0.9 at layer 3, and to be 0.95 after layer 4."),
        ([depth(4), depth(8)], "forecast not to pass 0.9 at any of the depths 4 and 8."),
        (
            [depth(4), depth(8), depth(32, passes=20)],
            "pass 0.9 with 32 layers (at layer 20), but not with 4 or 8 layers.",
        ),
    ],
)
def test_the_conclusion_of_a_forecast(depths: list[Depth], words: str) -> None:
    assert found_of(forecast_of(*depths)).words[0].endswith(words)


def test_bounds_are_printed_on_their_safe_side() -> None:
    layer = statement(
        1,
        gain_lower=math.log(0.123456),
        gain_upper=math.log(7.654321),
        upper=-math.inf,
        lower=math.log(2.34567),
    )
    text = str(found_of(apriori=proven(layer, spread=1.0, critical_spread=0.67529)))
    assert re.search(r"^1 +0\.1234 +7\.655 +2\.345 +0 +-$", text, re.M)
    assert "a spread below 0.6752 shrink" in text


def test_what_is_left_out_and_rough_is_told() -> None:
    rough = depth(2, is_rough=True, logit_variance=4.0)
    found = found_of(forecast_of(rough, left_out=("rotary positions in the logits",)))
    assert found.notes == (
        "The forecast leaves out: rotary positions in the logits.",
        "Logits have a variance of up to 4, above 1: attention is far from uniform, and the forecast is rough.",
    )


def test_a_limit_is_crossed_before_it_is_undecided() -> None:
    crossed = Passing(layers=4, layer=3, cosine=0.95, floor=1e-15)
    unsure = Passing(layers=4, layer=2, cosine=None, floor=1e-15)
    view = PredictView(fail_if_passed=True)
    for more, outcome, words in (
        (
            {"crossed": crossed, "unsure": unsure},
            Outcome.CROSSED,
            "passed: mean cosine after layer 3 of 4 layers",
        ),
        ({"unsure": unsure}, Outcome.UNDECIDED, "after layer 2 of 4 layers: no number (NaN or infinity)"),
        ({}, Outcome.CLEAR, ""),
    ):
        (one,) = view.decisions(found_of(forecast_of(depth(4), **more)))
        assert one.outcome is outcome
        assert words in one.words
        assert PredictView().decisions(found_of(forecast_of(depth(4), **more))) == ()


def test_names_from_outside_stay_text() -> None:
    found = found_of(forecast_of(depth(2), model=HOSTILE), model=HOSTILE)
    for text in (found.to_html(made_by=HOSTILE), str(found.chart().svg())):
        assert "<script" not in text
    assert "\x1b" not in str(found)
