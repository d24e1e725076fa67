"""A few numbers of a scan for loggers."""

import math
from typing import Any

from rankscope.findings.scan.entries import Entry
from rankscope.monitor.headlines import headlines

RATIO = "residual_ratio[composite,mean]"


def entry(layer: int, definition: str, mean: float | None, **about: Any) -> Entry:
    place: dict[str, Any] = {"stack": "blocks", "layer": layer, "site": "block", "head": None, "floor": 1e-3}
    place |= {
        "texts": 4,
        "numbers": 0 if mean is None else 4,
        "std": None,
        "min": None,
        "max": None,
        "resolved": 1.0,
    }
    place |= {"measure": definition.partition("[")[0], "definition": definition, "mean": mean}
    return Entry.model_validate(place | about)


def test_last_block_and_worst_layer_are_of_states_after_a_block() -> None:
    summary = [entry(layer, RATIO, value) for layer, value in enumerate((0.1, 0.5, 0.2, 0.4))]
    summary.append(entry(2, RATIO, 0.05, site="mlp"))
    found = headlines(summary, "collapsing")
    assert found == {
        "residual_ratio/last_block": 0.4,
        "residual_ratio/worst_layer": 0.2,
        "collapsing": 1.0,
        "not_finite": 0.0,
    }


def test_every_stack_has_its_own_depth() -> None:
    summary = [entry(layer, RATIO, 0.1 * layer, stack="encoder") for layer in range(3)]
    summary += [entry(layer, RATIO, 0.3 * layer, stack="decoder") for layer in range(2)]
    found = headlines(summary, "healthy")
    assert found["encoder/residual_ratio/last_block"] == 0.2
    assert found["decoder/residual_ratio/last_block"] == 0.3
    assert found["collapsing"] == 0.0


def test_a_residual_ratio_below_its_floor_is_given_as_the_floor() -> None:
    summary = [
        entry(1, RATIO, 1e-9),
        entry(1, "cosine[off_diagonal]", 1e-9),
        entry(1, "token_share[largest]", None),
    ]
    found = headlines(summary, None)
    assert found["residual_ratio/last_block"] == 1e-3
    assert found["cosine/last_block"] == 1e-9
    # what is no number is told as such: left out, a logger would go on with the last one
    assert math.isnan(found["token_share/last_block"])
    assert math.isnan(found["token_share/worst_layer"])
    assert math.isnan(found["collapsing"])


def test_collapsed_counts_as_collapse_and_undecided_as_nothing() -> None:
    summary = [entry(1, RATIO, 0.5)]
    assert headlines(summary, "collapsed")["collapsing"] == 1.0
    assert math.isnan(headlines(summary, "undecided")["collapsing"])


def test_a_layer_without_numbers_is_the_worst() -> None:
    found = headlines([entry(1, RATIO, 0.5), entry(2, RATIO, None), entry(3, RATIO, 0.25)], "healthy")
    assert math.isnan(found["residual_ratio/worst_layer"])
    assert found["residual_ratio/last_block"] == 0.25
    assert found["not_finite"] == 0.0


def test_the_share_of_texts_without_numbers_is_told() -> None:
    found = headlines([entry(1, RATIO, 0.5), entry(2, RATIO, 0.5, numbers=3)], "healthy")
    assert found["not_finite"] == 0.25
    assert found["residual_ratio/last_block"] == 0.5
    assert found["collapsing"] == 0.0


def test_weights_that_are_not_finite_leave_nothing_to_judge() -> None:
    found = headlines([entry(1, RATIO, 0.5)], "healthy", not_finite=True)
    assert found["not_finite"] == 1.0
    assert math.isnan(found["collapsing"])
