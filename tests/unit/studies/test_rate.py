"""Rates that are known, and rates that are predicted, against rates that are measured."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import flint
import numpy as np
import pytest
import torch

from rankscope.findings.rate import DEFINITION, FitValue, RateConfig, RateFinding
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Attention, Network, Softmax, Spec, Values, build, gaussian_tokens, generators
from rankscope.split import Prediction, fit_logs, log_measure, predict_rate, split_states
from rankscope.split.fit import Fit
from rankscope.studies.rate import fit_run, rate

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))


def fit(**fields: object) -> Any:
    return rate(**fields).fit


def said(found: RateFinding) -> str:
    return " ".join(found.words)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"mask": "causal", "tokens": 30, "heads": 4}, 0.5),
        ({"mask": "window:1", "tokens": 10}, 0.96261),
        ({"mask": "prefix:2+causal", "tokens": 12}, 1 / 3),
        ({"mask": "causal-window:1", "tokens": 12, "layers": 200}, 0.5),
        ({"mask": "causal", "position": "alibi:0.5", "tokens": 12, "layers": 200}, 0.62246),
        ({"mask": "causal", "values": "gaussian", "tokens": 12}, 0.5),
        *(
            [
                ({"mask": "causal", "tokens": 5}, 0.5),
                ({"mask": "causal", "tokens": 12}, 0.5),
                ({"mask": "window:2", "tokens": 10}, 0.87857),
                ({"mask": "window:1", "tokens": 12}, 0.974559),
                ({"mask": "causal-window:3", "tokens": 12}, 0.5),
            ]
            if SOAK
            else []
        ),
    ],
)
def test_rates_with_one_map_for_all_heads(fields: dict[str, object], expected: float) -> None:
    found = fit(**{"layers": 120} | fields)
    assert found.method == "slem"
    assert (found.regime, found.predicted_order) == ("linear", 1.0)
    assert found.predicted_rate == pytest.approx(expected, rel=2e-5)
    assert found.rate == pytest.approx(expected, rel=5e-4)
    assert found.order == pytest.approx(1.0, abs=2e-3)


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
        ({"heads": 2, "norm": "layer", "variant": "transformer", "mask": "full", "layers": 300}, "followed"),
    ],
)
def test_rates_that_are_followed(fields: dict[str, object], method: str) -> None:
    found = fit(**{"layers": 120 if SOAK else 70} | fields)
    assert found.method == method
    assert found.regime == "linear"
    # the two runs see the same weights but not the same residual: four standard errors of either
    allowed = 4 * max(found.uncertainty, found.predicted_uncertainty) + 1e-5
    assert abs(found.rate - found.predicted_rate) < allowed


def test_unmasked_position_free_attention_is_cubic() -> None:
    found = fit(mask="full", heads=2, layers=20)
    assert (found.regime, found.predicted_order, found.rate, found.predicted_rate) == (
        "cubic",
        3.0,
        None,
        None,
    )
    assert found.order == pytest.approx(3.0, abs=1e-6)
    assert found.declined == ("cubic",)


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
    assert found.regime == "sublinear"
    assert found.rate is None
    assert found.exponent < -0.2


def test_components_that_do_not_meet_keep_apart() -> None:
    found = rate(mask="blocks:2", layers=100)
    assert found.fit.regime == "none"
    assert found.fit.predicted_rate == 1.0
    assert "keeps several groups of tokens apart" in said(found)


def test_absolute_rate_is_rate_times_value_growth() -> None:
    table = rate(RateConfig(values="gaussian", layers=200))
    found, logs = table.fit, table.table.frame["log10_value"].to_numpy()
    absolute = 10 ** ((logs[-1] - logs[80]) / 120)
    assert found.rate * found.value_growth == pytest.approx(absolute, rel=1e-3)


def test_seeds_are_averaged_and_kept() -> None:
    table = rate(RateConfig(seeds=(0, 1, 2), heads=2, position="rotary", layers=60))
    assert [one.seed for one in table.runs] == [0, 1, 2]
    rates = [one.measured.rate for one in table.runs]
    assert min(rates) <= table.fit.rate <= max(rates)
    assert len(table.table) == 3 * 61


def test_rows_go_on_where_floats_end() -> None:
    frame = rate(
        RateConfig(mask="full", layers=12, tokens=16, dim=32, heads=2, init="paper", values="gaussian")
    ).table.frame
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
    assert (found.declined, found.from_layer) == ("plateau", 0)
    then_falls = np.where(layers < 60, -1e-4 * layers, -0.5 * (layers - 60))
    found = fit_logs(then_falls, np.zeros(201))
    assert found.rate == pytest.approx(np.exp(-0.5), rel=1e-3)
    assert [(plateau.first, plateau.last) for plateau in found.plateaus] == [(0, pytest.approx(60, abs=4))]


def test_a_jordan_block_is_told_from_a_slower_rate() -> None:
    layers = np.arange(1, 302, dtype=float)
    found = fit_logs(np.log(0.5) * layers + 8 * np.log(layers), np.zeros(301))
    assert found.rate == pytest.approx(0.5, rel=1e-4)
    assert found.exponent == pytest.approx(8, rel=0.02)


def test_a_model_that_was_cut_is_never_said_to_collapse_as_it_is() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    x = torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cut, whole = rate(model, inputs=x), rate(model, inputs=x, variant="transformer")
    assert (cut.variant, whole.variant) == ("san", "transformer")
    assert cut.headline.startswith("Attention alone: ")
    assert "attention alone" in cut.words[0]
    assert any("not the model as it is" in note for note in cut.notes)
    assert not any("left out" in note for note in whole.notes)
    assert "attention alone" not in str(whole)


def test_too_few_layers_say_so() -> None:
    found = rate(layers=10)
    assert found.fit.rate is None
    assert "A rate cannot be fitted to 10 layers; ask for at least 16." in said(found)
    assert found.fit.predicted_rate == 0.5


def test_a_drifting_rate_is_not_reported() -> None:
    layers = np.arange(301, dtype=float)
    found = fit_logs(-1e-3 * layers**2, np.zeros(301))
    assert found.rate is None
    assert found.declined == "unsettled"
    assert found.between[0] < found.between[1]


def test_tokens_that_grow_keep_their_logits_apart_and_nothing_is_predicted() -> None:
    found = rate(variant="san+skip", layers=200)
    assert found.fit.predicted_rate is None
    assert "logits do not vanish" in said(found)


def test_noise_is_not_taken_for_plateaus() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 400)
    found = fit_logs(np.cumsum(-0.25 + noise), np.zeros(400))
    assert found.regime == "linear"
    assert not found.plateaus


# ------------------------------------------------------------------------------- one honest standard error

MASKS = (
    *("causal", "window:1", "window:2", "causal-window:1", "causal-window:2", "prefix:2+causal"),
    *("prefix:3", "longformer:1:1", "strided:3", "bigbird:1:0:1", "window:1+causal-window:3", "full"),
)
SLOPES = (0.0, 0.1, 0.5, 2.0)


def exact_slem(mask: str, slope: float, tokens: int) -> float:
    """The second largest eigenvalue modulus of the map at consensus, in 200 digits, from its definition alone."""
    allowed = parse_mask(mask).matrix(tokens)
    with flint.ctx.workdps(200):
        rows = []
        for i in range(tokens):
            weights = [
                (-flint.arb(slope) * abs(i - j)).exp() if allowed[i, j] else flint.arb(0)
                for j in range(tokens)
            ]
            rows.append([weight / sum(weights) for weight in weights])
        if not np.triu(allowed, 1).any():
            return sorted(float(rows[i][i]) for i in range(tokens))[-2]
        values = flint.acb_mat(rows).eig(algorithm="approx", multiple=True)
        return sorted(float(abs(value).mid()) for value in values)[-2]


def sweep(count: int, seed: int) -> list[tuple[float, FitValue, FitValue]]:
    """True rates of random settings, the fit of a run, and the fit without knowledge of what was predicted.

    Masks that keep parts apart are left out.
    """
    drawn, found = np.random.default_rng(seed), []
    while len(found) < count:
        mask, slope = str(drawn.choice(MASKS)), float(drawn.choice(SLOPES))
        tokens = int(drawn.choice([4, 6, 8, 12, 16, 24]))
        layers = int(drawn.choice([40, 80, 160, 250] if SOAK else [40, 80]))
        if mask == "full" and slope == 0.0:
            continue
        truth = exact_slem(mask, slope, tokens)
        if not 1e-6 < truth < 1 - 1e-9:
            continue
        fields: dict[str, Any] = {"mask": mask, "tokens": tokens, "layers": layers, "dim": 8}
        fields |= {"position": f"alibi:{slope}" if slope else "none"}
        fields |= {"values": str(drawn.choice(["orthogonal", "gaussian", "identity"]))}
        config = RateConfig.of(**fields, seeds=(int(drawn.integers(1000)),))
        weights, of_tokens = generators(config.seeds[0])
        network = build(Spec.of(**config.spec()), weights)
        x = gaussian_tokens(tokens, 8, generator=of_tokens)
        with torch.no_grad():
            prediction = predict_rate(network, x.mean(dim=0), tokens=tokens, generator=of_tokens)
            if prediction.rate is None:  # tokens grow: their logits do not vanish, and the map is another one
                continue
            # sums of 24 floats are behind the entries of the map
            assert prediction.rate == pytest.approx(truth, abs=prediction.uncertainty + 1e-12)
            states = split_states(network, x)
        unknown = Prediction(order=None, rate=None, method=None)
        sizes = [log_measure(find_measure(DEFINITION), state) for state in states]
        found.append((truth, fit_run(states, prediction, sizes), fit_run(states, unknown, sizes)))
    return found


def check_errors(fits: Sequence[tuple[float, Fit | FitValue]], *, least: float) -> None:
    """Raise unless the truth lies within two standard errors in 90% of the rates, within four in 99% of them.

    ``least`` is the share of runs that must have a rate at all.
    """
    given = [(truth, fit) for truth, fit in fits if fit.rate is not None]
    away = np.array([abs(fit.rate - truth) / (fit.uncertainty + 1e-12) for truth, fit in given])
    counts = (
        f"{len(given)} rates of {len(fits)} runs, {(away <= 2).sum()} within 2, {(away <= 4).sum()} within 4"
    )
    assert all(fit.declined is None for _, fit in given)
    assert all(fit.declined and fit.uncertainty is None for _, fit in fits if fit.rate is None)
    assert len(given) > least * len(fits), counts
    assert (away <= 2).mean() >= 0.9, counts
    assert (away <= 4).mean() >= 0.99, counts


@pytest.mark.slow
def test_the_truth_lies_within_two_and_four_standard_errors() -> None:
    """The prediction is the truth here, and may take a rate away. So the same is asked of fits that do not know it."""
    found = sweep(320 if SOAK else 10, seed=12)
    for fits in ([(truth, fit) for truth, fit, _ in found], [(truth, blind) for truth, _, blind in found]):
        check_errors(
            fits, least=0.6 if SOAK else 0.4
        )  # few layers of the short sweep leave more of them open
        assert all(fit.why(0) for _, fit in fits if fit.rate is None)


def steps_of_one_map(mask: str, slope: float, tokens: int, layers: int, seed: int) -> tuple[Any, Any]:
    """Logs of residual and common row of random tokens that one map is applied to again and again, in plain numpy.

    ``P (1 c + r) = 1 c + P r``: the residual is followed by itself, at size one, and never lost in the common row.
    """
    place = np.arange(tokens)
    weights = np.where(parse_mask(mask).matrix(tokens), np.exp(-slope * np.abs(place[:, None] - place)), 0.0)
    step = weights / weights.sum(axis=1, keepdims=True)
    x = np.random.default_rng(seed).normal(size=(tokens, 8))
    common, size, residuals, commons = x.mean(axis=0), 0.0, [], []
    x = x - common
    for _ in range(layers + 1):
        length = np.linalg.norm(x)
        x, size = x / length, size + np.log(length)
        residuals.append(size)
        commons.append(np.log(np.linalg.norm(common)))
        x = step @ x
        mean = x.mean(axis=0)
        x, common = x - mean, common + np.exp(size) * mean
    return np.array(residuals), np.array(commons)


@pytest.mark.slow
def test_standard_errors_of_fits_alone_hold_in_hundreds_of_runs() -> None:
    """Without networks there are enough runs to tell an error that is five times too small: two in a hundred do it."""
    fits = []
    for number, (mask, slope, tokens) in enumerate(product(MASKS, SLOPES, (4, 6, 8, 12))):
        truth = 0.0 if mask == "full" and slope == 0.0 else exact_slem(mask, slope, tokens)
        if 1e-6 < truth < 1 - 1e-9:
            for layers in (40, 80, 160, 250) if SOAK else (40, 160):
                fits.append((truth, fit_logs(*steps_of_one_map(mask, slope, tokens, layers, seed=number))))
    assert len(fits) > 300
    check_errors(fits, least=0.6)
    with pytest.raises(AssertionError, match="within 4"):
        check_errors([(truth, _surer(fit, 0.2)) for truth, fit in fits], least=0.6)


def _surer(fit: Fit, factor: float) -> Fit:
    return fit if fit.uncertainty is None else replace(fit, uncertainty=factor * fit.uncertainty)


@pytest.mark.parametrize("tokens", [4, 8])
def test_a_nearly_defective_spectrum_is_modelled_or_declined(tokens: int) -> None:
    """Causal with ALiBi of slope 2: eigenvalues 0.8808, 0.8668, 0.8650, .. look like a Jordan block for 100 layers."""
    for layers in (60, 120, 200, 300) if SOAK else (60, 200):
        config = RateConfig.of(mask="causal", position="alibi:2", tokens=tokens, layers=layers, seeds=(1,))
        found = rate(config).fit
        if found.rate is not None:
            assert abs(found.rate - 1 / (1 + np.exp(-2.0))) <= 3 * found.uncertainty
        else:
            assert set(found.declined) <= {"unsettled", "hidden mode", "plateau", "sublinear", "rounding"}


def test_a_mean_over_noise_has_the_error_of_a_mean() -> None:
    """Independent steps of deviation 0.1: the error is 0.1 / sqrt(120) of the log, up to its own scatter."""
    drawn, errors, away = np.random.default_rng(5), [], []
    for _ in range(100):
        steps = drawn.normal(-0.4, 0.1, 200)
        found = fit_logs(np.concatenate([[0.0], np.cumsum(steps)]), np.zeros(201))
        errors.append(found.uncertainty / found.rate)
        away.append(abs(found.rate - np.exp(-0.4)) / found.uncertainty)
    assert (
        0.7 < np.median(errors) / (0.1 / np.sqrt(120)) < 2.0
    )  # fading weights cost a factor 1.2, drift adds
    assert np.mean(np.array(away) <= 2) >= 0.9


def test_a_complex_pair_swings_and_is_still_one_rate() -> None:
    layers = np.arange(201, dtype=float)
    logs = -0.3 * layers + 0.5 * np.log(1.3 + np.cos(0.7 * layers + 1.0))
    found = fit_logs(logs, np.zeros(201))
    assert abs(found.rate - np.exp(-0.3)) <= 2 * found.uncertainty


def test_a_slow_mode_that_has_not_shown_itself_takes_the_rate_away() -> None:
    """0.9^l + 1e-30 0.99^l looks like 0.9 for 700 layers; who knows of 0.99 does not call that the rate."""
    layers = np.arange(201, dtype=float)
    logs = np.logaddexp(np.log(0.9) * layers, np.log(0.99) * layers - 69)
    assert fit_logs(logs, np.zeros(201)).rate == pytest.approx(0.9, abs=1e-6)
    found = fit_logs(logs, np.zeros(201), expected=0.99)
    assert (found.rate, found.declined) == (None, "hidden mode")
    assert found.between == pytest.approx((0.9, 0.99), abs=1e-6)


def biased_network(layers: int, scale: float, bias: float) -> tuple[Network, torch.Tensor]:
    """Causal attention of one head with small logits, values of that norm and a bias."""
    drawn, dim = torch.Generator().manual_seed(3), 6
    eye = torch.eye(dim, dtype=torch.float64)

    def gaussian(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn, dtype=torch.float64)

    added, rule = bias * gaussian(dim), parse_mask("causal")
    blocks = [
        Attention(
            Softmax(0.1 * gaussian(dim, dim), eye, heads=1, rule=rule),
            Values(scale * torch.linalg.qr(gaussian(dim, dim)).Q, eye, heads=1, out_bias=added),
        )
        for _ in range(layers)
    ]
    return Network(blocks), gaussian(10, dim)


@pytest.mark.parametrize("scale", [0.5, 0.8])
def test_with_an_output_bias_the_eigenvalue_is_not_the_rate(scale: float) -> None:
    """The bias keeps the common row at its size while the residual falls by 1/2 times the norm of the values."""
    network, x = biased_network(120, scale, bias=1.0)
    drawn = torch.Generator().manual_seed(0)
    prediction = predict_rate(network, x.mean(dim=0), tokens=10, generator=drawn)
    assert prediction.method == "followed"
    found = fit_run(split_states(network, x), prediction)
    for rate_, error in ((prediction.rate, prediction.uncertainty), (found.rate, found.uncertainty)):
        assert error > 0
        assert abs(rate_ - scale / 2) <= 2 * error
    without, x = biased_network(120, scale, bias=0.0)
    prediction = predict_rate(without, x.mean(dim=0), tokens=10, generator=drawn)
    assert (prediction.method, prediction.rate, prediction.uncertainty) == ("slem", 0.5, 0.0)
