"""Rounding is never read: states whose tokens are equal but for the last digits, in every dtype."""

import math
import os

import numpy as np
import pytest
import torch

import rankscope as rs
from rankscope.core.numerics import computed_in
from rankscope.errors import ShapeError
from rankscope.findings.verdict import (
    CENTERED_RANK,
    CHANNEL,
    COSINE,
    MASSIVE_CHANNEL_SHARE,
    MASSIVE_CHANNELS,
    MASSIVE_SHARE,
    MASSIVE_TOKENS,
    OTHER_CHANNELS,
    OTHERS,
    RANK,
    UNIT,
    UNIT_CHANNEL,
    Thresholds,
    Votes,
)
from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.verdict.facts import PanelFacts, PanelNumber
from rankscope.verdict.rules import confounder, judge_stack

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))
DTYPES = {
    torch.float64: "collapsed",
    torch.float32: "collapsed",
    torch.float16: "collapsed",
    torch.bfloat16: "undecided",
}


def noisy(*, dtype, layers, tokens, dim, size, seed, units):
    """Tokens that are one row each layer, moved by ``units`` round-offs of the dtype at random, then rounded to it."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(layers, 2, 1, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(layers, 2, tokens, dim, generator=generator, dtype=torch.float64)
    return (size * rows * (1 + units * torch.finfo(dtype).eps * noise)).to(dtype)


NOISES = [((6, 16, 64), 1.0), ((1, 16, 64), 0.3), ((3, 2, 5), 3.0), ((2, 40, 8), 0.0)]
"""Layers, tokens and channels, and how many round-offs they are moved by."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("seed", "size"), [(0, 0.03), (1, 1.0), (2, 900.0)])
def test_noise_around_equal_tokens_is_no_verdict_on_the_network(dtype, seed, size):
    # two of the four in turn: every dtype meets each of them, and so does every size; the soak has all
    for (layers, tokens, dim), units in (
        NOISES if SOAK else NOISES[(list(DTYPES).index(dtype) + seed) % 2 :: 2]
    ):
        states = noisy(dtype=dtype, layers=layers, tokens=tokens, dim=dim, size=size, seed=seed, units=units)
        found = rs.scan_states(states).verdict
        assert found == DTYPES[dtype], found.words
        stack, name = found.stacks[0], str(dtype).removeprefix("torch.")
        assert stack["dtype"] == name
        assert stack["starts"] is stack["rate"] is stack["leads_to"] is None
        assert all(layer["numbers"][UNIT] is None for layer in stack["layers"])
        if found == "collapsed":
            where = "layer 0" if layers == 1 else f"layers 0-{layers - 1}"
            assert found.words == (
                f"All tokens are equal to the precision of {name} at {where}; these states do not show "
                "where and how fast they became equal."
            )
            assert stack["would_decide"] is None
        else:
            assert stack["would_decide"] == "float32"
            assert "float32" in found.words


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_last_layers_of_a_collapsed_network(dtype):
    for seed in range(3 if SOAK else 1):
        for_weights, for_tokens = generators(seed)
        network = build(Spec.of(layers=20, heads=4, dim=64, variant="san", norm="none"), for_weights).to(
            dtype
        )
        x = gaussian_tokens(16, 64, generator=for_tokens).to(dtype)
        with torch.no_grad():
            states = torch.stack(network.states(x))[:, None]
        assert rs.scan_states(states[-6:]).verdict == DTYPES[dtype]
        whole = rs.scan_states(states).verdict
        if dtype == torch.bfloat16:
            assert whole == "undecided"
            continue
        assert whole == "collapsing"
        stack = whole.stacks[0]
        # what is above the floor, by three lines of torch: the pace is taken of these layers alone
        unit = torch.nn.functional.normalize(states.double(), dim=-1)
        ratios = (1 - unit.mean(dim=-2).square().sum(dim=-1)).clamp(min=0).sqrt()[:, 0]
        last = stack["last_resolved"]
        assert ratios[last] > 16 * torch.finfo(dtype).eps
        assert stack["last_value"] == pytest.approx(float(ratios[last]), rel=0.05)
        assert stack["rate"] == pytest.approx(float(ratios[last] / ratios[0]) ** (1 / last), rel=0.05)
        assert not stack["rate_is_bound"]
        assert stack["equal_from"] == last + 1
        assert stack["starts"] == 1


def test_exactly_equal_tokens_and_zeros():
    equal = torch.full((4, 2, 8, 16), 0.7)
    assert rs.scan_states(equal).verdict == "collapsed"
    assert rs.scan_states(equal[:1]).verdict == "collapsed"
    nothing = rs.scan_states(torch.zeros(3, 2, 8, 16)).verdict
    assert nothing == "no numbers"
    assert "only zeros" in nothing.words
    one_zero = torch.randn(3, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    one_zero[:, :, 0] = 0
    found = rs.scan_states(one_zero).verdict
    assert found == "no numbers"
    assert "some token is exactly zero" in found.words
    one_lost = torch.randn(3, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    one_lost[-1, 1] = torch.nan
    found = rs.scan_states(one_lost).verdict
    assert found == "no numbers"
    assert "NaN" in found.words
    assert "exactly zero" not in found.words
    with pytest.raises(ShapeError, match="one token per text"):
        rs.scan_states(torch.randn(3, 2, 1, 16))


def test_a_collapse_into_rounding_within_one_layer_bounds_its_factor():
    states = torch.randn(2, 1, 8, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states[1] = states[1, :, :1]
    stack = rs.scan_states(states).verdict.stacks[0]
    assert stack["verdict"] == "collapsing"
    assert stack["rate_is_bound"]
    assert stack["rate"] < 1e-13
    assert "or less per layer" in stack["words"]


def test_half_of_the_texts_in_rounding():
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 8, 12, 16, generator=generator, dtype=torch.float64)
    states[:, :6] = states[:, :6, :1]
    found = rs.scan_states(states).verdict
    assert found == "collapsed"
    assert found.words.startswith("In 6 of 8 texts all tokens are equal")
    assert found.stacks[0].texts == Votes(judged=8, collapse=6, without_numbers=0)
    states = torch.randn(5, 8, 12, 16, generator=generator, dtype=torch.float64)
    states[:, :1] = states[:, :1, :1]
    assert rs.scan_states(states).verdict == "healthy"


def panel(**numbers):
    """Facts of one layer; a number that is given as a pair is (value, floor), else it is resolved."""
    usual = {
        UNIT: 0.9,
        COSINE: 0.1,
        MASSIVE_TOKENS: 0.0,
        MASSIVE_SHARE: 0.0,
        OTHERS: 0.9,
        MASSIVE_CHANNELS: 0.0,
        MASSIVE_CHANNEL_SHARE: 0.0,
        OTHER_CHANNELS: 0.9,
        CHANNEL: 0.05,
        UNIT_CHANNEL: 0.05,
        RANK: 30.0,
        CENTERED_RANK: 29.0,
    }
    names = {
        "unit": UNIT,
        "cosine": COSINE,
        "massive": MASSIVE_TOKENS,
        "token": MASSIVE_SHARE,
        "channel": CHANNEL,
        "unit_channel": UNIT_CHANNEL,
        "channels": MASSIVE_CHANNELS,
        "channels_hold": MASSIVE_CHANNEL_SHARE,
        "rest": OTHER_CHANNELS,
        "rank": RANK,
        "centered": CENTERED_RANK,
    }
    values = usual | {names[name]: value for name, value in numbers.items()}
    pairs = {key: value if isinstance(value, tuple) else (value, 0.0) for key, value in values.items()}
    found = {
        key: PanelNumber(value=value, floor=floor, resolved=float(value > floor))
        for key, (value, floor) in pairs.items()
    }
    return PanelFacts(layer=1, tokens=64.0, dim=64, numbers=found)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"token": 0.99, "massive": 2.0}, "massive token"),
        ({"channel": 0.9, "unit_channel": 0.9, "rest": 0.9, "cosine": 0.9}, "massive channel"),
        ({"channels": 2.0, "channels_hold": 0.9, "rest": 0.9, "cosine": 0.9}, "massive channel"),
        ({"cosine": 0.98}, "shared mean"),
        ({"cosine": 0.8}, "cone"),
        ({"rank": 4.0, "centered": 3.0, "cosine": 0.25}, "clusters"),
        ({"rank": 4.0, "centered": 4.0, "cosine": 0.02}, "dead directions"),
    ],
)
def test_no_rule_reads_a_number_that_is_not_above_its_floor(numbers, name):
    """Every number that gives a name stops to give it when its floor covers it, and the name is then untold."""
    limits = Thresholds()
    assert confounder(panel(**numbers), limits).name == name
    for key, value in numbers.items():
        if key == "cosine":  # the ratio of unit tokens is the same number in another form
            continue
        found = confounder(panel(**(numbers | {key: (value, 100.0)})), limits)
        assert found.name in ("healthy", "cone"), (key, found)
        assert name in found.untold
    hidden = panel(**numbers, unit=(0.9, 0.95))
    assert confounder(hidden, limits).name == "undecided"
    # equal with what is massive, but known to differ without it
    equal = "undecided" if name.startswith("massive") else "collapsed"
    assert confounder(panel(**numbers, unit=(0.01, 0.05)), limits).name == equal


def test_noise_in_the_panel_changes_no_verdict():
    """Whatever stands in numbers below their floors, the verdict is the same."""
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        floors = {
            UNIT: 1e-6,
            COSINE: 2.0,
            MASSIVE_TOKENS: 30.0,
            MASSIVE_SHARE: 1.0,
            OTHERS: 1e-6,
            CHANNEL: 1.0,
            UNIT_CHANNEL: 1.0,
            MASSIVE_CHANNELS: 31.0,
            MASSIVE_CHANNEL_SHARE: 1.0,
            RANK: 64.0,
            CENTERED_RANK: 64.0,
        }
        facts = [
            PanelFacts(
                layer=layer,
                tokens=64.0,
                dim=64,
                numbers={
                    name: PanelNumber(value=float(generator.uniform(0, floor)), floor=floor, resolved=0.0)
                    for name, floor in floors.items()
                },
            )
            for layer in range(5)
        ]
        found = judge_stack(facts, Thresholds())
        seen.add((found.verdict, found.names, found.fall.verdict))
    assert seen == {("collapsed", ("collapsed",) * 5, "collapsed")}


def test_states_are_judged_by_the_dtype_they_were_computed_in():
    states = noisy(dtype=torch.float32, layers=4, tokens=12, dim=32, size=1.0, seed=0, units=1.0)
    found = rs.scan_states(states.double().numpy())
    assert found.verdict == "collapsed"
    assert "precision of float32" in found.verdict.words
    about = found.table.sections["scan"]
    assert (about["dtype"], about["stored dtype"]) == ("float32", "float64")
    assert any("computed in float32" in note for note in about["warnings"])
    coarse = noisy(dtype=torch.bfloat16, layers=4, tokens=12, dim=32, size=1.0, seed=0, units=1.0)
    assert rs.scan_states(coarse.float()).verdict == "undecided"


@pytest.mark.parametrize("stored", [torch.float64, torch.float32])
@pytest.mark.parametrize("ran", DTYPES, ids=str)
def test_the_dtype_of_a_computation_shows_in_its_digits(stored, ran):
    generator = torch.Generator().manual_seed(1)
    states = [
        torch.randn(2, 8, 16, generator=generator, dtype=torch.float64).to(ran).to(stored) for _ in range(3)
    ]
    coarser = max(stored, ran, key=lambda dtype: torch.finfo(dtype).eps)
    assert computed_in(states, stored) == coarser
    assert computed_in([torch.zeros(2, 3, 4), torch.ones(2, 3, 4)], stored) == stored
    assert computed_in([torch.full((1, 2, 3), math.nan)], stored) == stored
    mixed = [*states, torch.randn(2, 8, 16, generator=generator, dtype=torch.float64).to(stored)]
    assert computed_in(mixed, stored) == stored  # the finest layer decides


def test_whole_numbers_are_no_sign_of_a_coarse_dtype():
    """Pixels need eight binary digits, which is what bfloat16 has, and nothing rounded them."""
    drawn = np.random.default_rng(0).integers(0, 256, size=(2, 3, 16, 32)).astype(np.float64)
    assert computed_in([torch.from_numpy(state) for state in drawn], torch.float64) == torch.float64
    equal = np.repeat(np.repeat(drawn[:1, :1, :1], 12, axis=2), 3, axis=0)
    assert rs.scan_states(equal).verdict == "collapsed"


def test_the_dtype_is_told_from_all_channels():
    """With 2^24 entries one of 1024 is read: not always the same channel, which may be constant."""
    states = torch.randn(64, 256, 1024, generator=torch.Generator().manual_seed(0))
    states[..., 0] = 1.0
    assert computed_in([states.double()], torch.float64) == torch.float32


def test_a_mean_of_which_some_texts_are_open_may_be_above_its_value():
    """Two of five texts at .17, three below a floor of .05 and read as .02: the mean is .08, in truth up to .098."""
    number = PanelNumber(value=0.08, floor=0.05, resolved=0.4)
    one = PanelFacts(layer=1, tokens=8.0, dim=16, numbers={UNIT: number})
    assert one.most() >= (2 * 0.17 + 3 * 0.05) / 5
    assert one.at_least(UNIT, 0.09) is None
    assert one.at_least(UNIT, 0.14) is False


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_massive_channels_hide_in_coarse_numbers_is_undecided(channels: int, dtype: torch.dtype) -> None:
    """Distinct tokens behind channels that grow with depth: the ratio is below its floor, and says nothing of them."""
    states = torch.randn(5, 2, 40, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for layer, size in enumerate((0.0, 30.0, 100.0, 300.0, 1000.0)):
        states[layer, :, :, 3 : 3 + channels] += size
    found = rs.scan_states(states.to(dtype)).verdict
    assert found == "undecided", found.words
    assert found.stacks[0]["would_decide"] == "float32"
