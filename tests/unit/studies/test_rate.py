"""Rates that are known, and rates that are predicted, against rates that are measured."""

import os

import numpy as np
import pytest

from rankscope.split import fit_logs
from rankscope.studies import RateConfig, rate


def fit(**fields: object) -> dict[str, object]:
    return rate(RateConfig.of(**fields)).sections["fit"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mask": "causal", "tokens": 12}, 0.5),
        ({"mask": "causal", "tokens": 5}, 0.5),
        ({"mask": "causal", "tokens": 30, "heads": 4}, 0.5),
        ({"mask": "window:1", "tokens": 12}, 0.974559),
        ({"mask": "window:1", "tokens": 10}, 0.96261),
        ({"mask": "window:2", "tokens": 10}, 0.87857),
        ({"mask": "prefix:2+causal", "tokens": 12}, 1 / 3),
        ({"mask": "causal-window:1", "tokens": 12, "layers": 200}, 0.5),
        ({"mask": "causal-window:3", "tokens": 12}, 0.5),
        ({"mask": "causal", "position": "alibi:0.5", "tokens": 12, "layers": 200}, 0.62246),
        ({"mask": "causal", "values": "gaussian", "tokens": 12}, 0.5),
    ],
)
def test_rates_with_one_map_for_all_heads(fields: dict[str, object], expected: float) -> None:
    found = fit(**{"layers": 120} | fields)
    assert found["method"] == "slem"
    assert (found["regime"], found["predicted_order"]) == ("linear", 1.0)
    assert found["predicted_rate"] == pytest.approx(expected, rel=2e-5)
    assert found["rate"] == pytest.approx(expected, rel=5e-4)
    assert found["order"] == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"heads": 2, "position": "alibi"}, "joint"),
        ({"heads": 4, "position": "alibi", "mask": "full"}, "joint"),
        ({"heads": 2, "position": "rotary"}, "followed"),
        ({"heads": 2, "position": "rotary", "mask": "full"}, "followed"),
        ({"heads": 2, "position": "relative", "mask": "full"}, "joint"),
        ({"heads": 2, "position": "transformer-xl", "mask": "full"}, "followed"),
        ({"heads": 2, "norm": "layer", "values": "gaussian"}, "followed"),
        ({"heads": 2, "norm": "layer", "variant": "transformer", "mask": "full"}, "followed"),
    ],
)
def test_rates_that_are_followed(fields: dict[str, object], method: str) -> None:
    found = fit(layers=120, **fields)
    assert found["method"] == method
    assert found["regime"] == "linear", found["reason"]
    # the two runs see the same weights but not the same residual: four standard errors of either
    allowed = 4 * max(found["uncertainty"], found["predicted_uncertainty"]) + 1e-5
    assert abs(found["rate"] - found["predicted_rate"]) < allowed


def test_unmasked_position_free_attention_is_cubic() -> None:
    found = fit(mask="full", heads=2, layers=20)
    assert (found["regime"], found["predicted_order"], found["rate"], found["predicted_rate"]) == (
        "cubic",
        3.0,
        None,
        None,
    )
    assert found["order"] == pytest.approx(3.0, abs=1e-6)
    assert "cubed" in found["reason"]


def test_pre_norm_with_skips_is_sublinear() -> None:
    found = fit(
        mask="full",
        heads=2,
        norm="layer",
        placement="pre",
        variant="san+skip",
        values="gaussian",
        init="paper",
        layers=120,
    )
    assert found["regime"] == "sublinear"
    assert found["rate"] is None
    assert found["exponent"] < -0.2


def test_components_that_do_not_meet_keep_apart() -> None:
    found = fit(mask="blocks:2", layers=100)
    assert found["regime"] == "none"
    assert found["predicted_rate"] == 1.0
    assert "components" in found["reason"]


def test_absolute_rate_is_rate_times_value_growth() -> None:
    table = rate(RateConfig(values="gaussian", layers=200))
    found, logs = table.sections["fit"], table.frame["log10_value"].to_numpy()
    absolute = 10 ** ((logs[-1] - logs[80]) / 120)
    assert found["rate"] * found["value_growth"] == pytest.approx(absolute, rel=1e-3)


def test_seeds_are_averaged_and_kept() -> None:
    table = rate(RateConfig(seeds=(0, 1, 2), heads=2, position="rotary", layers=60))
    assert [one["seed"] for one in table.sections["fits"]] == [0, 1, 2]
    rates = [one["rate"] for one in table.sections["fits"]]
    assert min(rates) <= table.sections["fit"]["rate"] <= max(rates)
    assert len(table) == 3 * 61


def test_rows_go_on_where_floats_end() -> None:
    frame = rate(
        RateConfig(mask="full", layers=12, tokens=16, dim=32, heads=2, init="paper", values="gaussian")
    ).frame
    last = frame.row(-1, named=True)
    assert last["value"] == 0.0
    assert last["log10_value"] < -50_000
    assert last["resolved"]
    assert last["float_value"] < last["float_floor"]


def test_large_weights_end_on_a_plateau_and_it_is_named() -> None:
    layers = np.arange(201, dtype=float)
    flat = -1e-4 * layers
    found = fit_logs(flat, np.zeros(201), expected=0.62)
    assert found.regime == "none"
    assert "plateau" in found.reason
    then_falls = np.where(layers < 60, -1e-4 * layers, -0.5 * (layers - 60))
    found = fit_logs(then_falls, np.zeros(201))
    assert found.rate == pytest.approx(np.exp(-0.5), rel=1e-3)
    assert [(plateau.first, plateau.last) for plateau in found.plateaus] == [(0, pytest.approx(60, abs=4))]


def test_a_jordan_block_is_told_from_a_slower_rate() -> None:
    layers = np.arange(1, 302, dtype=float)
    found = fit_logs(np.log(0.5) * layers + 8 * np.log(layers), np.zeros(301))
    assert found.rate == pytest.approx(0.5, rel=1e-4)
    assert found.exponent == pytest.approx(8, rel=0.02)


def test_too_few_layers_say_so() -> None:
    found = fit(layers=10)
    assert found["rate"] is None
    assert "too few" in found["reason"]
    assert found["predicted_rate"] == 0.5


def test_a_drifting_rate_is_not_reported() -> None:
    layers = np.arange(301, dtype=float)
    found = fit_logs(-1e-3 * layers**2, np.zeros(301))
    assert found.rate is None
    assert "drifts" in found.reason


def test_tokens_that_grow_keep_their_logits_apart_and_nothing_is_predicted() -> None:
    found = fit(variant="san+skip", layers=60)
    assert found["predicted_rate"] is None
    assert "logits do not vanish" in found["reason"]


def test_noise_is_not_taken_for_plateaus() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 400)
    found = fit_logs(np.cumsum(-0.25 + noise), np.zeros(400))
    assert found.regime == "linear"
    assert not found.plateaus


@pytest.mark.parametrize("layers", [20, 50, 100] if os.environ.get("RANKSCOPE_SOAK") else [20, 50])
def test_the_uncertainty_covers_what_a_short_run_cannot_know(layers: int) -> None:
    for tokens in (3, 12):
        found = rate(RateConfig(layers=layers, tokens=tokens, seeds=tuple(range(4)))).sections["fits"]
        for one in found:
            if one["rate"] is not None:
                assert abs(one["rate"] - 0.5) < 4 * one["uncertainty"] + 1e-6
