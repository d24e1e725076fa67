"""The verdict on known models and planted confounders, and the arithmetic it rests on."""

import math
from dataclasses import replace

import pytest
import torch

from kit.verdict_builders import BUILDERS, gaussian_states, network_states, planted, scan_for, scan_of_states
from kit.verdict_cases import CASES
from rankscope.errors import ConfigError
from rankscope.measures import MASSIVE
from rankscope.probe import Panel, Tally, measure_states, tally_table
from rankscope.results import Table
from rankscope.verdict import VERDICTS, Thresholds, judge


@pytest.mark.parametrize("name", BUILDERS)
def test_known_states_get_the_verdict_written_down_for_them(name):
    found = judge(scan_for(name))
    assert found["verdict"] == CASES[name].verdict, found["words"]


@pytest.mark.parametrize("name", BUILDERS)
def test_every_layer_has_a_name_words_and_numbers(name):
    found = judge(scan_for(name))
    for layer in found["stacks"][0]["layers"]:
        assert layer["verdict"] in VERDICTS
        assert layer["words"]
        assert layer["numbers"]
    assert found["verdict"] in VERDICTS
    assert found["words"].endswith(".")


def test_a_collapse_says_where_it_starts_and_how_fast():
    found = judge(
        scan_of_states(
            [torch.full((1, 1, 4), 1.0) + 0.5**k * gaussian_states(0)[0][..., :4] for k in range(12)]
        )
    )
    stack = found["stacks"][0]
    assert found["verdict"] == "collapsing"
    assert 1 <= stack["starts"] <= 4
    assert stack["rate"] == pytest.approx(0.55, abs=0.05)
    assert f"layer {stack['starts']} on" in found["words"]


def test_a_fall_that_has_not_arrived_is_told_apart_from_a_steady_cone():
    found = judge(scan_of_states(network_states(layers=9)))
    assert found["verdict"] in ("cone", "collapsing")
    assert "come closer with every layer" in found["words"] or "become equal" in found["words"]
    assert "come closer" not in judge(scan_for("cone"))["words"]
    assert judge(scan_of_states(network_states(layers=11)))["verdict"] == "collapsing"


def test_scaling_turning_or_reordering_tokens_changes_no_verdict():
    turn = torch.linalg.qr(
        torch.randn(64, 64, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    )[0]
    for states in (network_states(layers=16), gaussian_states(), network_states(layers=4, placement="pre")):
        verdicts = {
            judge(scan_of_states([change(x) for x in states]))["verdict"]
            for change in (lambda x: x, lambda x: 1e6 * x, lambda x: x @ turn, lambda x: x.flip(1))
        }
        assert len(verdicts) == 1


def others_alone(x):
    """The residual ratio of these tokens at unit length, in three lines."""
    unit = x / x.norm(dim=-1, keepdim=True)
    residual = unit - unit.mean(dim=-2, keepdim=True)
    return float((residual.square().sum(dim=(-2, -1)) / unit.shape[-2]).sqrt().mean())


@pytest.mark.parametrize(("massive", "tokens"), [(1, 40), (21, 1500), (2, 8), (3, 7)])
def test_massive_tokens_are_counted_and_the_others_measured(massive, tokens):
    generator = torch.Generator().manual_seed(tokens)
    states = torch.randn(4, 2, tokens, 32, generator=generator, dtype=torch.float64)
    states[:, :, 1 : massive + 1] *= 30.0
    found = judge(scan_of_states(list(states)))
    assert found["verdict"] == "massive token"
    numbers = found["stacks"][0]["layers"][-1]["numbers"]
    assert numbers["massive_tokens[5x_others]"] == massive
    energy = states[-1].square().sum(dim=-1)
    share = (energy[:, 1 : massive + 1].sum(dim=-1) / energy.sum(dim=-1)).mean()
    assert numbers["token_share[massive]"] == pytest.approx(float(share), rel=1e-9)
    rest = torch.cat([states[-1, :, :1], states[-1, :, massive + 1 :]], dim=1)
    assert numbers["residual_ratio[frobenius,mean,unit,others]"] == pytest.approx(
        others_alone(rest), rel=1e-9
    )
    words = "one token is" if massive == 1 else f"{massive} of {tokens} tokens are"
    assert words in found["words"]


@pytest.mark.parametrize(("massive", "tokens"), [(1, 40), (21, 1500), (2, 8), (3, 7), (1, 3)])
def test_a_collapse_behind_massive_tokens_is_seen(massive, tokens):
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 32, generator=generator, dtype=torch.float64)
    row = torch.randn(32, generator=generator, dtype=torch.float64)
    states = torch.stack([0.5**k * x + (1 - 0.5**k) * row for k in range(9)])[:, None]
    states[:, :, :massive] = 1000 * x[:massive]
    stack = judge(scan_of_states(list(states)))["stacks"][0]
    assert stack["verdict"] == "collapsing", stack["words"]
    assert stack["last_value"] == pytest.approx(others_alone(states[-1, :, massive:]), rel=1e-9)
    assert "times as long as the others" in stack["words"]


def test_equal_tokens_are_not_distinct_because_one_channel_varies():
    """The channel scales what is left of a unit token, so that formulas on the ratio alone see a difference."""
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(5, 2, 1, 32, generator=generator, dtype=torch.float64).repeat(1, 1, 40, 1)
    states[..., 7] = 100 + 200 * torch.rand(5, 2, 40, generator=generator, dtype=torch.float64)
    found = judge(scan_of_states(list(states)))
    assert found["verdict"] != "massive channel", found["words"]
    distinct = torch.randn(5, 2, 40, 32, generator=generator, dtype=torch.float64)
    distinct[..., 7] = states[..., 7]
    named = judge(scan_of_states(list(distinct)))
    assert named["verdict"] == "massive channel"
    rest = torch.cat([distinct[-1, ..., :7], distinct[-1, ..., 8:]], dim=-1)
    numbers = named["stacks"][0]["layers"][-1]["numbers"]
    assert numbers["residual_ratio[frobenius,mean,unit,other_channels]"] == pytest.approx(
        others_alone(rest), rel=1e-9
    )


@pytest.mark.parametrize("channels", [(3,), (3, 7), (3, 7, 11, 40, 63)], ids=len)
@pytest.mark.parametrize("grows", [True, False])
def test_massive_channels_are_counted_and_the_others_measured(channels, grows):
    """Channels that grow with depth make all cosines 1, while the tokens stay as distinct as they are without them."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 2, 40, 64, generator=generator, dtype=torch.float64)
    sizes = torch.tensor([0.0, 30.0, 100.0, 300.0, 1000.0] if grows else [300.0] * 5, dtype=torch.float64)
    states[..., list(channels)] += sizes[:, None, None, None]
    found = judge(scan_of_states(list(states)))
    assert found["verdict"] == "massive channel", found["words"]
    numbers = found["stacks"][0]["layers"][-1]["numbers"]
    assert numbers["massive_channels[5x_others,unit]"] == len(channels)
    unit = states[-1] / states[-1].norm(dim=-1, keepdim=True)
    share = unit[..., list(channels)].square().sum(dim=-1).mean()
    assert numbers["channel_share[massive,unit]"] == pytest.approx(float(share), rel=1e-9)
    rest = states[-1][..., [k for k in range(64) if k not in channels]]
    assert numbers["residual_ratio[frobenius,mean,unit,other_channels]"] == pytest.approx(
        others_alone(rest), rel=1e-9
    )
    words = "one channel holds" if len(channels) == 1 else f"{len(channels)} of 64 channels hold"
    assert words in found["words"]


@pytest.mark.parametrize("channels", [(3,), (3, 7), (3, 7, 11, 40, 63)], ids=len)
def test_a_collapse_behind_massive_channels_is_seen(channels):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 64, generator=generator, dtype=torch.float64)
    row = torch.randn(64, generator=generator, dtype=torch.float64)
    states = torch.stack([0.5**k * x + (1 - 0.5**k) * row for k in range(9)])[:, None]
    states[..., list(channels)] += 300.0
    stack = judge(scan_of_states(list(states)))["stacks"][0]
    assert stack["verdict"] == "collapsing", stack["words"]
    rest = states[-1][..., [k for k in range(64) if k not in channels]]
    assert stack["last_value"] == pytest.approx(others_alone(rest), rel=1e-9)


def test_a_table_without_the_massive_tokens_says_that_the_others_are_not_in_it():
    table = planted(lambda x: torch.cat([300 * x[:, :1], x[:, 1:]], dim=1))()
    summary = [one for one in table.sections["summary"] if one["definition"] not in MASSIVE]
    found = judge(replace(table, sections=table.sections | {"summary": summary}, frame=table.frame.clear()))
    assert found["verdict"] == "massive token"
    assert "one token is" in found["words"]
    assert "that of the other tokens alone is not in this table" in found["words"]


def test_an_offset_that_appears_once_and_stays_is_not_collapse():
    shift = torch.randn(64, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    states = [x + (14.0 * shift if k >= 3 else 0.0) for k, x in enumerate(gaussian_states(8))]
    assert judge(scan_of_states(states))["verdict"] == "shared mean"


def test_exactly_dead_directions_are_named_when_singular_values_are_measured():
    """The rows of a LayerNorm's output are at right angles to 1/weight: a kernel, not a collapse."""
    weight = torch.rand(16, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    states = [torch.nn.functional.layer_norm(x[..., :16], (16,), weight=weight) for x in gaussian_states(3)]
    assert judge(scan_of_states(states))["verdict"] == "healthy"
    assert judge(scan_of_states(states, full=True))["verdict"] == "dead directions"


def test_thresholds_move_the_verdict():
    table = planted(lambda x: x + 2.4)()
    assert judge(table)["verdict"] == "cone"
    assert judge(table, Thresholds(cone_cosine=0.9))["verdict"] == "healthy"
    assert judge(table, Thresholds(cone_cosine=0.9))["thresholds"]["cone_cosine"] == 0.9


def test_texts_that_collapse_are_not_averaged_away():
    fresh, shared = gaussian_states(12), torch.ones(1, 1, 64, dtype=torch.float64)
    for count, verdict, words in ((6, "collapsing", "6 collapse"), (1, "healthy", "1 collapses")):
        states = [
            torch.cat([shared + 0.5**k * x[:1].repeat(count, 1, 1), x[:1].repeat(8 - count, 1, 1)])
            for k, x in enumerate(fresh)
        ]
        found = judge(scan_of_states(states))
        assert found["verdict"] == verdict
        assert f"Of 8 texts, {words}" in found["words"]


def test_texts_that_end_in_nan_are_told():
    states = [x.repeat(4, 1, 1).clone() for x in gaussian_states(4)]
    states[-1][1:] = math.nan
    found = judge(scan_of_states(states))
    assert found["verdict"] == "no numbers"
    assert "7 end in NaN" in found["words"]


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_few_tokens_behind_a_massive_one_are_not_called_equal(tokens):
    states = [x[:, :tokens].clone() for x in gaussian_states(8)]
    for x in states[2:]:
        x[:, 0] *= 300
    assert judge(scan_of_states(states))["verdict"] != "collapsing"


def test_an_offset_is_one_with_or_without_spectra():
    shift = torch.randn(64, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    states = [x + (14.0 * shift if k >= 3 else 0.0) for k, x in enumerate(gaussian_states(8))]
    tally = Tally()
    measure_states(tally, states, panel=Panel(spectra=False))
    assert judge(tally_table(tally, name="s", about={}))["verdict"] == "shared mean"


def test_states_without_numbers_are_said_to_have_none():
    states = [torch.full((1, 4, 4), math.nan, dtype=torch.float64) for _ in range(3)]
    assert judge(scan_of_states(states))["verdict"] == "no numbers"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_layer_that_is_not_finite_is_said_first(bad):
    states = [x[:1].clone() for x in gaussian_states(6)]
    states[3][0, 1, 2] = bad
    found = judge(scan_of_states(states))
    assert found["verdict"] == "no numbers"
    assert found["stacks"][0]["decides"] == 3
    assert found["words"].startswith(
        "No numbers: layer 3 holds NaN or infinity. At the last layer, the unit residual ratio is"
    )
    assert [one["verdict"] for one in found["stacks"][0]["layers"]].count("healthy") == 6


def test_a_layer_of_zeros_is_not_said_to_hold_nan():
    states = gaussian_states(6)
    states[3][:] = 0
    found = judge(scan_of_states(states))
    assert found["stacks"][0]["not_finite"] is None
    assert "infinity" not in found["words"]


def test_a_few_texts_that_are_not_finite_keep_a_stack_from_being_healthy():
    states = [x[:1].repeat(4, 1, 1) for x in gaussian_states(6)]
    for x in states[2:4]:
        x[0] = math.nan
    found = judge(scan_of_states(states))
    assert found["verdict"] == "no numbers"
    assert found["words"].startswith("No numbers: layers 2-3 hold NaN or infinity in 1 of 4 texts.")
    for layer, x in enumerate(states):  # what the other texts show is worse
        x[1:] = x[1:, :1] + x[1:] / 4**layer
    found = judge(scan_of_states(states))
    assert found["verdict"] == "collapsing"
    assert found["words"].startswith("Layers 2-3 hold NaN or infinity in 1 of 4 texts. Collapsing")


def test_the_stack_that_is_not_finite_names_the_model():
    table = scan_of_states(gaussian_states(6))
    ill = [x * math.nan if k == 3 else x for k, x in enumerate(gaussian_states(6))]
    other = scan_of_states(ill)
    both = replace(
        table,
        sections=table.sections
        | {
            "summary": [
                *table.sections["summary"],
                *(one | {"stack": "other"} for one in other.sections["summary"]),
            ],
            "scan": table.sections["scan"]
            | {"stacks": table.sections["scan"]["stacks"] | {"other": {"tokens": 8, "dim": 8}}},
        },
    )
    assert judge(table)["verdict"] == "healthy"
    assert judge(both)["verdict"] == "no numbers"


def test_a_table_that_is_no_scan_is_refused():
    with pytest.raises(ConfigError, match="only the table of a scan"):
        judge(Table.from_columns({"measure": "m", "definition": "m", "value": [1.0], "floor": 0.0}))
