"""A few numbers of a scan for loggers."""

from typing import Any

from rankscope.monitor.headlines import headlines

RATIO = "residual_ratio[composite,mean]"


def entry(layer: int, definition: str, mean: float | None, **about: Any) -> dict[str, Any]:
    place = {"stack": "blocks", "layer": layer, "site": "block", "head": None, "floor": 1e-3}
    return place | {"measure": definition.partition("[")[0], "definition": definition, "mean": mean} | about


def test_last_block_and_worst_layer_are_of_states_after_a_block() -> None:
    summary = [entry(layer, RATIO, value) for layer, value in enumerate((0.1, 0.5, 0.2, 0.4))]
    summary.append(entry(2, RATIO, 0.05, site="mlp"))
    found = headlines(summary, {"verdict": "collapsing"})
    assert found == {
        "rankscope/residual_ratio/last_block": 0.4,
        "rankscope/residual_ratio/worst_layer": 0.2,
        "rankscope/collapsing": 1.0,
    }


def test_every_stack_has_its_own_depth() -> None:
    summary = [entry(layer, RATIO, 0.1 * layer, stack="encoder") for layer in range(3)]
    summary += [entry(layer, RATIO, 0.3 * layer, stack="decoder") for layer in range(2)]
    found = headlines(summary, {"verdict": "healthy"})
    assert found["rankscope/encoder/residual_ratio/last_block"] == 0.2
    assert found["rankscope/decoder/residual_ratio/last_block"] == 0.3
    assert found["rankscope/collapsing"] == 0.0


def test_a_residual_ratio_below_its_floor_is_given_as_the_floor() -> None:
    summary = [
        entry(1, RATIO, 1e-9),
        entry(1, "cosine[off_diagonal]", 1e-9),
        entry(1, "token_share[largest]", None),
    ]
    found = headlines(summary, {})
    assert found["rankscope/residual_ratio/last_block"] == 1e-3
    assert found["rankscope/cosine/last_block"] == 1e-9
    assert "rankscope/token_share/last_block" not in found
    assert "rankscope/collapsing" not in found


def test_collapsed_counts_as_collapse_and_undecided_as_nothing() -> None:
    summary = [entry(1, RATIO, 0.5)]
    assert headlines(summary, {"verdict": "collapsed"})["rankscope/collapsing"] == 1.0
    assert "rankscope/collapsing" not in headlines(summary, {"verdict": "undecided"})
