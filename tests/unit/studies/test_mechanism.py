"""Planted faults are named first and in their block, healthy twins are never accused, and cures are run."""

import json
import math
import os

import pytest
import torch
from torch import nn

from kit.checkpoints import checkpoints, first_texts, translated
from kit.planted import (
    Fault,
    Start,
    attention_bias,
    large_logits,
    large_values,
    layerscale,
    mlp_bias,
    norm_bias,
    norm_gain,
    skip_scale,
    without_skips,
)
from rankscope.errors import ConfigError
from rankscope.findings.blame import Headline
from rankscope.findings.mechanism import GROUPS, Mechanism
from rankscope.masks import parse_mask
from rankscope.network import (
    Chain,
    Context,
    Fixed,
    Network,
    Opaque,
    Skip,
    TokenMap,
    with_mask,
)
from rankscope.sources.translate import translate
from rankscope.studies.mechanism import Run, _cured, explain, mechanism, take_apart

SOAK = bool(os.environ.get("RANKSCOPE_SOAK"))

PLANTED: dict[str, tuple[str, int | None, Start, Fault]] = {
    "no skips, pre": ("no-skip", None, Start(layers=8, norm="rms"), without_skips),
    "no skips, full": (
        "no-skip",
        None,
        Start(placement="post", layers=4, mask="full", seed=1),
        without_skips,
    ),
    "one block without skips": ("no-skip", 5, Start(mask="full", layers=9, seed=2), without_skips),
    "attention bias, pre": (
        "attention-bias",
        None,
        Start(dim=48, heads=2, layers=8, seed=4),
        attention_bias(6.0),
    ),
    "attention bias, post": (
        "attention-bias",
        None,
        Start(placement="post", norm="rms", layers=6, seed=5),
        attention_bias(5.0),
    ),
    "attention bias in one block": (
        "attention-bias",
        4,
        Start(activation="gelu", layers=8, seed=6),
        attention_bias(30.0),
    ),
    "MLP bias, gated": (
        "mlp-bias",
        None,
        Start(gated=True, activation="silu", norm="rms", groups=2, layers=8, seed=7),
        mlp_bias(10.0),
    ),
    "MLP bias in one block": ("mlp-bias", 5, Start(mask="window:4", layers=8, seed=8), mlp_bias(40.0)),
    "MLP bias in one block, post": ("mlp-bias", 2, Start(placement="post", layers=6, seed=9), mlp_bias(40.0)),
    "MLP bias, parallel": ("mlp-bias", 3, Start(placement="parallel", layers=6, seed=9), mlp_bias(40.0)),
    "gain": ("norm-gain", None, Start(placement="post", layers=6, seed=10), norm_gain(0.01)),
    "gain of one block": ("norm-gain", 3, Start(placement="post", layers=8, seed=10), norm_gain(0.001)),
    "norm bias": ("norm-direct", None, Start(placement="post", layers=6, seed=11), norm_bias(5.0)),
    "norm bias in one block": (
        "norm-direct",
        4,
        Start(placement="post", layers=6, norm="rms", seed=11),
        norm_bias(50.0),
    ),
    "norm bias, pre": ("norm-direct", None, Start(layers=6, seed=11), norm_bias(20.0)),
    "skip x 0.2": ("skip-scale", None, Start(placement="post", layers=9, seed=12), skip_scale(0.2)),
    "skip x 0.1, pre": ("skip-scale", None, Start(layers=8, seed=12), skip_scale(0.1)),
    "large values": ("branch-size", None, Start(mask="full", seed=13), large_values(15.0)),
    "large values, no norm": (
        "branch-size",
        None,
        Start(placement="none", mask="full", layers=6, seed=13),
        large_values(12.0),
    ),
    "deep post-norm": (
        "norm-rescale",
        None,
        Start(placement="post", layers=18, mask="full", seed=15),
        large_values(3.0),
    ),
}
RECOVERED = ("one block without skips", "attention bias, pre", "gain of one block", "large values")
"""Of these the cures are run by default; of all in a soak."""

LATER = (
    *("no skips, full", "MLP bias in one block, post", "norm bias in one block"),
    *("skip x 0.1, pre", "large values, no norm", "gain", "MLP bias in one block"),
)
"""Variations that only a soak runs."""


@pytest.mark.parametrize("name", [name for name in PLANTED if SOAK or name not in LATER])
def test_the_planted_cause_is_first_and_in_its_block(name: str) -> None:
    cause, block, one, fault = PLANTED[name]
    network = fault(one.network(), None if block is None else (block,))
    recover = SOAK or name in RECOVERED
    found = mechanism(network, one.tokens(16), recover=recover)
    assert found.collapsed
    assert found.error is not None
    assert found.error < 1e-10
    first = found.causes[0]
    assert first.name == cause
    if recover or block is not None:
        assert first.block == block
    if recover:
        # the fault was planted in a sound network, so undoing it gives most of the fall back
        assert first.recovered is not None
        assert first.recovered > 0.6
    assert math.fsum(found.groups.values()) == pytest.approx(found.log_end - found.log_start, abs=1e-10)


HEALTHY = {
    "pre": Start(),
    "pre, full": Start(mask="full", norm="rms", gated=True, activation="silu", groups=1, seed=21),
    "post, shallow": Start(placement="post", layers=4, seed=22),
    "sandwich": Start(placement="sandwich", seed=23),
    "parallel": Start(placement="parallel", activation="gelu", seed=24),
    "no norm": Start(placement="none", layers=8, seed=25),
    "clones, pre": Start(clones=True, layers=8, seed=26),
    "window": Start(mask="causal-window:4", seed=27),
}


@pytest.mark.parametrize("name", list(HEALTHY))
def test_a_healthy_network_is_not_accused(name: str) -> None:
    one = HEALTHY[name]
    found = mechanism(one.network(), one.tokens(16))
    assert not found.causes
    assert found.collapsed is False
    assert "no cause is named" in found.words[0]


@pytest.mark.parametrize(
    ("fault", "note"),
    [(large_logits(60.0), "saturated"), (large_logits(1e-3), "uniform"), (large_values(1e-4), "dead")],
)
def test_odd_attention_is_noted_and_is_no_cause(fault: Fault, note: str) -> None:
    one = Start(layers=6, seed=31)
    found = mechanism(fault(one.network(), None), one.tokens(16))
    assert not found.causes
    assert note in {one.name for one in found.observations}
    assert note not in {
        one.name for one in mechanism(Start(layers=6, seed=31).network(), one.tokens(16)).observations
    }


def test_attention_that_reads_itself_is_not_called_saturated() -> None:
    one = Start(layers=4, seed=32)
    found = mechanism(
        with_mask(large_logits(60.0)(one.network(), None), parse_mask("window:0")), one.tokens(8)
    )
    assert not found.observations


def test_layerscale_is_at_most_dead() -> None:
    one = Start(placement="pre", layers=6)
    found = mechanism(layerscale(one.network(), 1e-5), one.tokens(12))
    assert not found.causes
    assert {note.name for note in found.observations} <= {"dead"}


def test_tokens_that_are_equal_in_groups_are_told() -> None:
    one = Start(layers=6, mask="blocks:4", seed=33)
    found = mechanism(without_skips(one.network(), None), one.tokens(16))
    groups = next(note for note in found.observations if note.name == "groups")
    assert groups.count == 4
    assert groups.is_ill
    assert "4 groups" in groups.sentence


def test_a_massive_token_hides_no_bias() -> None:
    one = Start(layers=8, seed=34)
    x = one.tokens(16)
    x[:, 0] *= 400.0
    found = mechanism(attention_bias(8.0)(one.network(), None), x, recover=False)
    assert found.causes[0].name == "attention-bias"
    assert next(note for note in found.observations if note.name == "massive").count == 1


def test_averaging_stands_behind_another_cause() -> None:
    one = Start(layers=6, mask="causal", seed=35)
    found = mechanism(without_skips(large_logits(1e-3)(one.network(), None), None), one.tokens(16))
    names = [cause.name for cause in found.causes]
    assert names[0] == "no-skip"
    assert "averaging" in names[1:]


def test_two_faults_are_found_at_once_or_by_peeling() -> None:
    one = Start(layers=8, seed=36)
    network = attention_bias(30.0)(without_skips(one.network(), (3, 4, 5, 6)), (8,))
    found = mechanism(network, one.tokens(16))
    assert {"attention-bias", "no-skip"} <= {cause.name for cause in found.causes}


# ------------------------------------------------------------------------------------------- as PyTorch starts layers


@pytest.mark.parametrize("seed", [0, 1, 2] if SOAK else [0])
def test_both_causes_of_the_start_of_nn_transformer_encoder_are_named(seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False).double().eval()
    network = with_mask(translate(model).network, parse_mask("causal"))
    x = torch.randn(1, 32, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = mechanism(network, x)
    assert found.equal_layers
    assert {cause.name for cause in found.causes[:2]} == {"norm-rescale", "same-direction"}
    assert all(cause.recovered is not None and cause.recovered > 0.4 for cause in found.causes[:2])
    # the free stream predicts what pre-norm gives; with branches that do not answer to it, it is off by 0.4
    rescale = next(cause for cause in found.causes if cause.name == "norm-rescale")
    assert found.log_free == pytest.approx(rescale.log_after, abs=0.15)
    assert "norm-rescale" in found.words[0]
    assert "same-direction" in found.words[0]
    assert any("copies of one layer" in said for said in found.words)


def test_the_same_layers_drawn_one_by_one_do_not_collapse() -> None:
    one = Start(placement="post", layers=16, dim=48, seed=3)
    assert not mechanism(one.network(), one.tokens(24), recover=False).causes


# ----------------------------------------------------------------------------------------------------- not resolved


def test_below_rounding_a_part_without_a_split_rule_leaves_it_open() -> None:
    one = Start(placement="post", mask="full", layers=7, seed=41)
    blocks = [Chain([block, TokenMap(nn.Tanh())]) for block in without_skips(one.network(), None).blocks]
    found = mechanism(Network(blocks), one.tokens(8))
    assert found.collapsed is None
    assert (found.unresolved, found.obstacle) == ("no split rule", "TokenMap")
    assert not found.causes
    assert not found.groups
    assert "the split pass has no rule for TokenMap" in found.words[0]


def test_code_that_runs_in_its_own_dtype_alone_leaves_it_open() -> None:
    weights = torch.eye(8, dtype=torch.float32)
    region = Opaque(lambda x: x @ weights, site="mlp", where="here", what="a product")
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    found = mechanism(Network([Skip(region)]), x)
    assert (found.collapsed, found.unresolved) == (None, "own dtype")
    assert "cannot be run in float64" in found.words[0]


def test_below_rounding_the_split_pass_decides() -> None:
    one = Start(placement="post", mask="full", layers=5, seed=42)
    found = mechanism(without_skips(one.network(), None), one.tokens(8))
    assert found.split
    assert found.log_end < math.log(1e-30)
    assert (found.causes[0].name, found.causes[0].block) == ("no-skip", None)
    assert found.causes[0].recovered == pytest.approx(1.0, abs=0.05)


def test_several_batches_are_one_mean() -> None:
    one = Start(placement="post", layers=6, seed=5, norm="rms")
    network, x = attention_bias(5.0)(one.network(), None), one.tokens(12, texts=4)
    runs = [Run(network=network, x=part, context=Context()) for part in (x[:1], x[1:])]
    parts = explain([take_apart(run) for run in runs], runs[:1], Headline.unchanged(), recover=False)
    whole = mechanism(network, x, recover=False)
    for group in GROUPS:
        assert parts.groups[group] == pytest.approx(whole.groups[group], abs=1e-10)
    assert parts.texts == 4
    with pytest.raises(ConfigError, match="no batch of texts was taken apart"):
        explain([], [], Headline.unchanged())


def test_the_network_is_left_as_it_was() -> None:
    one = Start(placement="post", layers=6, seed=5)
    network = attention_bias(5.0)(one.network(), None)
    network.blocks[0].parts[0].inner.values.out.requires_grad_(True)
    before = [parameter.clone() for parameter in network.parameters()]
    state = torch.random.get_rng_state()
    mechanism(network, one.tokens(12))
    assert all(torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in network.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)


# ------------------------------------------------------------------------------------------------------------ cures


def test_one_layer_that_is_called_again_is_cured_by_weights_for_each_call() -> None:
    """Layers that share their weights on purpose write the same every time, as copies do."""
    one = Start(placement="post", layers=1, seed=3)
    found = mechanism(Network(list(one.network().blocks) * 16), one.tokens(12, texts=1))
    assert found.equal_layers
    same = next(cause for cause in found.causes if cause.name == "same-direction")
    assert same.cure == "redraw"
    assert same.recovered is not None
    assert same.recovered > 0.4


def test_a_cure_changes_the_block_of_its_cause_alone() -> None:
    *_, one, fault = PLANTED["attention bias in one block"]
    network = fault(one.network(), (4,))
    cause = mechanism(network, one.tokens(8, texts=1), recover=False).causes[0]
    assert cause.block == 4
    cured = _cured(network, cause, 0)
    assert [new is old for new, old in zip(cured.blocks, network.blocks, strict=True)] == [
        number != 4 for number in range(1, 9)
    ]
    everywhere = _cured(network, cause.model_copy(update={"block": None}), 0)
    assert not any(new is old for new, old in zip(everywhere.blocks, network.blocks, strict=True))


def test_a_bias_that_nothing_can_take_out_is_refused_and_not_called_useless() -> None:
    """The MLP is foreign code that adds a row; without a bias to take out there is no cure to run."""
    one = Start(layers=4, seed=6, dim=16)
    shift = 40.0 * Start(dim=16).tokens(1, texts=1)[0]
    shifted = Opaque(lambda y: y + shift, site="mlp", where="here", what="a shift", tokenwise=True)
    blocks = [Chain([block.parts[0], Skip(shifted)]) for block in one.network().blocks]
    found = mechanism(Network(blocks), one.tokens(12))
    first = found.causes[0]
    assert (first.name, first.declined, first.recovered) == ("mlp-bias", "refused", None)


# ------------------------------------------------------------------------------------------------- sentences, tables


def test_a_mechanism_survives_json_and_every_cause_has_its_sentence() -> None:
    for name in ("no skips, pre", "MLP bias, parallel", "gain", "norm bias"):
        *_, one, fault = PLANTED[name]
        found = mechanism(fault(one.network(), None), one.tokens(8, texts=1), recover=False)
        again = Mechanism(**json.loads(found.model_dump_json()))
        assert again == found
        assert again.words == found.words
        said = found.causes[0].sentence
        assert said[0].isupper()
        assert said.endswith(".")
        assert "of the fall from" in said
        assert " ." not in said
        assert "None" not in said
        assert len(found.tabular().rows) >= 2
        assert len(found.sums_tabular().rows) == len(found.sums)
        assert found.panel().lines


def test_a_fall_that_is_no_collapse_is_a_note() -> None:
    one = Start(placement="post", layers=14, mask="full", seed=15, dim=48)
    found = mechanism(large_values(2.0)(one.network(), None), one.tokens(16), recover=False)
    assert 0.1 < math.exp(found.log_end) <= 0.3
    assert not found.causes
    note = next(one for one in found.observations if one.name == "fall")
    assert note.group == "norm-rescale"
    assert "no collapse yet" in note.sentence


def test_a_fixed_map_that_makes_tokens_equal_at_once_is_not_guessed() -> None:
    """Tokens that are exactly equal have no ratio; nothing is said of why."""
    one = Start(layers=1, dim=8, heads=2)
    held = one.network().blocks[0].parts[0].inner.parts[1]
    held.mixer = Fixed(torch.full((2, 6, 6), 1 / 6, dtype=torch.float64))
    found = mechanism(Network([held]), one.tokens(6))
    assert found.collapsed is None
    assert not found.causes


TRAINED = ("minilm", "rxnmapper", "sapiens", "ruaccent", "smollm2") if SOAK else ("minilm", "sapiens")


@pytest.mark.slow
@pytest.mark.parametrize("name", checkpoints(*TRAINED))
def test_no_checkpoint_is_accused(name: str) -> None:
    tree = translated(name)
    x, context = tree.embed(first_texts(name))
    with torch.no_grad():
        found = mechanism(tree.network, x, context)
    assert found.collapsed is False
    assert not found.causes
    assert not any(note.is_ill for note in found.observations)
    assert found.error is not None
    assert found.error < 1e-10
