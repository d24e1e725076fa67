"""The forecast against the scalar formula, four nested loops, quadrature, and random networks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rankscope.bounds.forecast import Forecast, Outline, forecast
from rankscope.bounds.forecast_spec import outline_of
from rankscope.bounds.forecast_tokens import Tokens, activated, mixed
from rankscope.errors import ConfigError
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import ACTIVATIONS, Spec, build, gaussian_tokens, generators
from reference import apriori_loops as loops

BARE = Outline(
    layers=16, dim=64, tokens=64, attention_gain=1.0, logit_variance=0.0, has_mlp=False, norm="layer"
)


def changed(**fields: object) -> Outline:
    return Outline(**{name: getattr(BARE, name) for name in BARE.__dataclass_fields__} | fields)


@given(st.integers(2, 200), st.floats(0.01, 3))
def test_post_norm_is_the_scalar_formula(tokens: int, gain: float) -> None:
    found = forecast(changed(tokens=tokens, attention_gain=gain))
    np.testing.assert_allclose(found.cosines, loops.post_norm_cosines(16, tokens, gain), rtol=0, atol=1e-12)


@given(st.integers(2, 200), st.floats(0.01, 3))
def test_pre_norm_is_the_scalar_formula(tokens: int, gain: float) -> None:
    found = forecast(changed(tokens=tokens, attention_gain=gain, placement="pre"))
    np.testing.assert_allclose(found.cosines, loops.pre_norm_cosines(16, tokens, gain), rtol=0, atol=1e-12)


def test_published_values_of_uniform_attention() -> None:
    post, pre = forecast(BARE).cosines, forecast(changed(layers=32, placement="pre")).cosines
    assert [round(post[layer], 3) for layer in (4, 8, 16)] == [0.190, 0.799, 0.999]
    assert [round(pre[layer], 3) for layer in (8, 16, 32)] == [0.625, 0.888, 0.958]


@pytest.mark.parametrize("strength", [0.0, 0.7])
@pytest.mark.parametrize("placement", ["post", "pre", "sandwich", "parallel"])
def test_the_matrix_form_of_a_full_map_is_the_scalar_form(placement: str, strength: float) -> None:
    common = {"tokens": 9, "layers": 5, "placement": placement, "logit_variance": strength, "has_mlp": True}
    alike, each = forecast(changed(**common)), forecast(changed(**common, mask="full+window:1"))
    # strengths of tilt are interpolated in the matrix form
    np.testing.assert_allclose(each.cosines, alike.cosines, rtol=0, atol=1e-12 if strength == 0 else 1e-3)


@pytest.mark.parametrize("mask", ["causal", "window:2", "prefix:1"])
def test_masks_follow_the_loops(mask: str) -> None:
    allowed = np.asarray(parse_mask(mask).matrix(7), dtype=float)
    base = allowed / allowed.sum(axis=1, keepdims=True)
    found = forecast(changed(tokens=7, layers=4, mask=mask, attention_gain=0.8))
    np.testing.assert_allclose(found.cosines, loops.masked_cosines(base, 4, 0.8), rtol=0, atol=1e-12)


def test_a_penalty_on_distance_follows_the_loops() -> None:
    distance = np.abs(np.arange(6)[:, None] - np.arange(6))
    base = np.exp(-0.5 * distance)
    base /= base.sum(axis=1, keepdims=True)
    found = forecast(changed(tokens=6, layers=3, slope=0.5))
    np.testing.assert_allclose(found.cosines, loops.masked_cosines(base, 3, 1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_logits_tilt_averages_as_four_loops_say(strength: float) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 20)) / math.sqrt(20) + 0.1
    c = x @ x.T
    base = np.tril(np.ones((6, 6)))
    base /= base.sum(axis=1, keepdims=True)
    tokens = Tokens(same=torch.tensor(np.diag(c).copy()), pairs=torch.tensor(c), count=6)
    found = mixed(tokens, torch.tensor(base), strength)
    expected = loops.tilted_average(c, base, strength)
    # averages are interpolated between 24 strengths
    np.testing.assert_allclose(found.pairs.numpy(), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("rho", [-0.6, 0.0, 0.5, 0.99])
def test_activations_of_normal_pairs_follow_quadrature(name: str, rho: float) -> None:
    v = torch.tensor([0.7, 1.6], dtype=torch.float64)
    cross = rho * float((v[0] * v[1]).sqrt())
    pairs = torch.tensor([[0.7, cross], [cross, 1.6]], dtype=torch.float64)
    found = activated(Tokens(same=v, pairs=pairs, count=2), name)

    def fn(values: np.ndarray) -> np.ndarray:
        return ACTIVATIONS[name].fn(torch.from_numpy(values)).numpy()

    # a corner is resolved by a grid of 80 points to three digits, one in the slope to five, smooth functions far better
    loose = {"relu": 4e-3, "leaky_relu": 4e-3, "relu2": 5e-5}.get(name, 1e-6)
    assert float(found.pairs[0, 1]) == pytest.approx(loops.gaussian_product(fn, 0.7, 1.6, rho), abs=loose)
    assert float(found.same[0]) == pytest.approx(loops.gaussian_product(fn, 0.7, 0.7, 1 - 1e-15), abs=loose)


def test_equal_tokens_stay_equal() -> None:
    same = torch.full((1,), 1.3, dtype=torch.float64)
    for name in ACTIVATIONS:
        found = activated(Tokens(same=same, pairs=same.reshape(1, 1), count=4), name)
        torch.testing.assert_close(found.pairs[0, 0], found.same[0], rtol=1e-9, atol=1e-12)
    found = forecast(changed(start_cosine=1.0, has_mlp=True, activation="gelu"))
    np.testing.assert_allclose(found.cosines, 1.0, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("settings", "worst"),
    [
        ({"variant": "san", "norm": "layer", "layers": 3}, 0.05),
        ({"variant": "san+skip", "norm": "layer", "layers": 8}, 0.06),
        ({"variant": "san+skip", "norm": "layer", "layers": 8, "placement": "pre"}, 0.06),
        ({"variant": "san+skip", "norm": "layer", "layers": 8, "mask": "causal"}, 0.06),
        ({"variant": "transformer", "norm": "rms", "layers": 6, "activation": "gelu"}, 0.05),
        ({"variant": "transformer", "norm": "layer", "layers": 6, "placement": "sandwich"}, 0.05),
        (
            {"variant": "transformer", "norm": "rms", "layers": 6, "placement": "parallel", "gated": True},
            0.04,
        ),
        ({"variant": "transformer", "norm": "layer", "layers": 8, "init": "deepnorm"}, 0.01),
        ({"variant": "transformer", "norm": "none", "layers": 8, "init": "scaled"}, 0.02),
        ({"variant": "san+skip", "norm": "layer", "layers": 6, "values": "identity"}, 0.04),
        ({"variant": "san+skip", "norm": "sphere", "layers": 6}, 0.06),
    ],
)
def test_random_networks_do_what_was_forecast(settings: dict[str, object], worst: float) -> None:
    """The mean over four draws of width 128; one draw differs by more, since chance in the first layers grows."""
    spec = Spec.of(**{"heads": 4, "dim": 128} | settings)
    measure = find_measure("cosine[off_diagonal]")
    found = []
    for seed in range(4):
        for_weights, for_tokens = generators(seed)
        network, x = build(spec, for_weights), gaussian_tokens(48, 128, generator=for_tokens)
        with torch.no_grad():
            found.append([float(measure(state)) for state in network.states(x)])
    outline, _ = outline_of(spec, tokens=48)
    np.testing.assert_allclose(np.mean(found, axis=0), forecast(outline).cosines, rtol=0, atol=worst)


def test_large_logits_are_told() -> None:
    assert forecast(changed(logit_variance=0.5)).notes == ()
    assert "variance of up to 9" in forecast(changed(logit_variance=9.0)).notes[0]


def test_the_first_layer_above_a_threshold() -> None:
    found = Forecast(cosines=(0.1, 0.4, 0.8), logits=0.0)
    assert (found.passes(0.3), found.passes(0.8), found.passes(0.05)) == (1, None, 0)


def test_what_cannot_be_forecast_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least two tokens"):
        changed(tokens=1)
    with pytest.raises(ConfigError, match="range of floats at layer"):
        forecast(changed(norm="none", attention_gain=1e200))
    with pytest.raises(ConfigError, match="starts branches at zero"):
        outline_of(Spec(layers=2, heads=1, dim=4, init="rezero"), tokens=4)


def test_positions_that_are_left_out_are_named() -> None:
    assert outline_of(Spec(layers=1, heads=1, dim=4, position="rotary"), tokens=4)[1] == (
        "positions in the logits (rotary) are left out",
    )
    outline, notes = outline_of(Spec(layers=1, heads=1, dim=4, position="alibi:0.5"), tokens=4)
    assert (outline.slope, notes) == (0.5, ())
