"""An ablation below the rounding floor, its blame and its suggestions: over all texts, batches and seeds."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from kit.checkpoint_folders import bert, bert_config, word_tokenizer
from kit.read_once import read_once
from rankscope.findings.ablate import AblateConfig
from rankscope.network import Context, Network, Scale, Spec, build, gaussian_tokens, generators
from rankscope.sources import load_model
from rankscope.studies.ablate import _measure_split, ablate
from rankscope.studies.blame import blame
from rankscope.studies.cuts import Cut
from rankscope.studies.rows import RowBuilder
from rankscope.studies.subjects import EmbeddedTexts

TEXTS = ["the cat sat on the mat", "a dog", "it was very small indeed and every day the cat sat on a dog"]


@pytest.fixture(autouse=True)
def trees_are_read_once(monkeypatch):
    monkeypatch.setattr("rankscope.studies.subjects.translate", read_once)


@pytest.fixture(scope="module")
def tiny():
    """A tiny BERT with a tokenizer that puts a token before and after every text; weights large enough to attend."""
    model = bert(seed=1, num_hidden_layers=3, initializer_range=0.4)
    return replace(load_model(model), tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bare"
    bert_config().save_pretrained(folder)
    return folder


# the split pass


@pytest.mark.parametrize("special", ["drop", "keep"])
def test_the_split_pass_goes_on_where_float_stops(tiny, special):
    found = ablate(tiny, TEXTS, split=True, special=special)
    frame = found.table.frame
    ordinary = frame.filter(pl.col("float_value") > 10 * pl.col("float_floor"))
    assert ordinary.height > 60
    quotient = (ordinary["value"] / ordinary["float_value"]).to_list()
    # ten times the floor leaves a rounding error of at most a tenth
    assert quotient == pytest.approx([1.0] * len(quotient), rel=0.1)
    assert found.provenance["config"]["dtype"] == "float32"
    known = frame.filter(pl.col("floor").is_not_null())
    assert known.height > 90
    assert (known["floor"] > 0).all()
    assert (known["resolved"] == (known["log10_value"] > known["log10_floor"])).all()
    # float64 resolves what float32 does not
    assert (known["floor"] < 1e-3 * known["float_floor"]).all()


def test_measured_tokens_that_are_lost_in_the_others_have_no_number():
    """Two measured tokens that differ by 1e-14 of what a third one holds: a third of it may be rounding."""
    x = torch.tensor([[[1.0, 0.0], [-0.5, 1e-14], [-0.5, -1e-14]]], dtype=torch.float64)
    fed = EmbeddedTexts(x=x, context=Context(), keep=torch.tensor([[False, True, True]]), first=0)
    network = Network([Scale(0.5)])
    cut = Cut(network=network, variant="san", mask="none", norm="none", skip_scale=None)
    config = AblateConfig(split=True, measures=["residual_ratio[frobenius,mean]"])
    for keep, is_lost in ((fed.keep, True), (None, False)):
        rows = RowBuilder()
        _measure_split(rows, config, {}, cut, replace(fed, keep=keep))
        found = rows.table(config, command="ablate", seeds=[0]).frame
        assert found["resolved"].to_list() == [not is_lost] * 2
        assert found["log10_value"].is_null().to_list() == [is_lost] * 2
        # blame reads the same tokens by the same rule
        blamed = blame(network, x, is_token=keep, split=True)
        assert blamed.changes[0].known == (not is_lost,)


# explanations


def test_blame_adds_up_to_the_change_of_the_model(tiny):
    found = ablate(
        tiny, TEXTS, variants=["transformer"], measures=["residual_ratio[frobenius,mean]"], blame=True
    )
    total = (
        found.table.where(measure="blame")
        .frame.group_by("sample", maintain_order=True)
        .agg(pl.col("value").sum())
    )
    states = found.table.where(measure="residual_ratio").frame
    for sample, change in total.rows():
        curve = states.filter(sample=sample).sort("layer")["value"].log().to_list()
        assert change == pytest.approx(curve[-1] - curve[0], abs=1e-5)  # both are read off float32 states
    assert found.blame.words.startswith("The 3 blocks of ")
    assert found.blame.words in found.words
    assert sum(found.blame.kinds.values()) == pytest.approx(total["value"].mean(), abs=1e-5)
    assert "blame[residual_ratio[frobenius,mean]]" in found.definitions


def test_suggestions_start_from_the_model_as_it_is_on_all_texts(tiny):
    found = ablate(tiny, TEXTS, variants=["san", "transformer"], suggest=True, batch_size=2)
    section = found.suggest
    assert (section.texts, section.left_out) == (3, 0)
    assert section.network.name == "the full model (transformer)"
    assert "(geometric mean of 3 texts)" in section.words
    gains = [one.gain for one in section.what_ifs if one.gain is not None]
    assert gains == sorted(gains, reverse=True)
    name = "residual_ratio[frobenius,mean]"
    options = {"variants": ["transformer"], "measures": [name], "blame": False}
    whole = ablate(tiny, TEXTS, **options).table.frame.filter(layer=3)["value"]
    assert section.what_ifs[0].before[name].value == pytest.approx(
        math.prod(whole.to_list()) ** (1 / 3), rel=1e-5
    )
    scaled = ablate(tiny, TEXTS, skip_scales=[2.0], **options).table.frame.filter(layer=3)["value"]
    entry = next(one for one in section.what_ifs if one.name == "skip-scale:2")
    assert entry.after[name].value == pytest.approx(math.prod(scaled.to_list()) ** (1 / 3), rel=1e-5)


def test_suggestions_are_over_all_seeds(bare):
    options = {"weights": "initial", "random_tokens": "2x6", "variants": ["transformer"], "suggest": True}
    both, *each = (ablate(bare, seeds=seeds, **options).suggest for seeds in ([0, 1], [0], [1]))
    assert both.texts == 4
    gains = [{one.name: one.gain for one in section.what_ifs} for section in (both, *each)]
    for name, gain in gains[0].items():
        assert gain == pytest.approx((gains[1][name] + gains[2][name]) / 2, abs=1e-12)


def test_blame_leaves_texts_out_that_are_not_known_throughout():
    """One text of two is collapsed from the start: the sums are of the other, and add up to its change."""
    network = build(Spec(layers=2, heads=2, dim=8, variant="transformer"), generators(0)[0])
    x = torch.stack([gaussian_tokens(5, 8, generator=generators(0)[1])] * 2)
    x[1] = 1.0 + 1e-15 * x[1]
    name = "residual_ratio[frobenius,mean]"
    found = ablate(network, inputs=x, variants=["transformer"], measures=[name], blame=True)
    section = found.blame
    assert (section.texts, section.all_texts) == (1, 2)
    assert section.network.name == "the full model (transformer)"
    curve = found.table.where(measure="residual_ratio").frame.filter(sample=0).sort("layer")["value"].log()
    assert section.total == pytest.approx(curve[-1] - curve[0], abs=1e-12)
    assert math.fsum(section.kinds.values()) == section.total
    assert "geometric mean over 1 of 2 texts" in section.words


def change_of(found):
    """ln of last over first residual ratio of every cut, mean over texts, from the rows alone."""
    states = found.table.where(measure="residual_ratio", definition="residual_ratio[frobenius,mean]").frame
    ends = states.filter(pl.col("layer").is_in([0, states["layer"].max()])).sort("layer")
    logs = ends.group_by("variant", "mask", "sample", maintain_order=True).agg(pl.col("value").log())
    changes = logs.with_columns(pl.col("value").list.last() - pl.col("value").list.first())
    return {
        (variant, mask): value
        for variant, mask, value in changes.group_by("variant", "mask").agg(pl.col("value").mean()).rows()
    }


@pytest.mark.parametrize(
    ("options", "named", "key"),
    [
        ({"masks": ["causal"]}, ", mask causal", ("transformer", "causal")),
        ({"masks": ["causal", "own"]}, ", mask causal", ("transformer", "causal")),
        ({"masks": ["own", "causal"]}, "", ("transformer", "full")),
        ({"skip_scales": [0.5]}, ", skip scale 0.5", ("transformer", "full")),
        ({"norm": "none"}, ", without norms", ("transformer", "full")),
        ({"variants": ["san"], "masks": ["causal"]}, ", mask causal", ("san", "causal")),
    ],
)
def test_blame_and_what_ifs_are_of_the_network_of_the_headline(tiny, options, named, key):
    asked = {"variants": ["san", "transformer"]} | options
    ratios = ["residual_ratio[frobenius,mean]", "residual_ratio[frobenius,mean,unit]"]
    found = ablate(tiny, TEXTS, measures=ratios, blame=True, suggest=True, **asked)
    name = {"san": "attention alone (san)", "transformer": "the full model (transformer)"}[key[0]]
    for network in (found.blame.network, found.suggest.network):
        assert network.name == name + named
        assert (network.variant, network.mask) == key
    assert found.blame.total == pytest.approx(change_of(found)[key], abs=1e-5)
    what_ifs = {one.name: one for one in found.suggest.what_ifs}
    assert ("mask:causal" in what_ifs) == (key[1] != "causal")
    last = found.table.frame.filter((pl.col("definition") == ratios[1]) & (pl.col("layer") == 3))
    own = last.filter((pl.col("variant") == key[0]) & (pl.col("mask") == key[1]))["value"]
    before = next(iter(what_ifs.values())).before[ratios[1]].value
    assert before == pytest.approx(math.exp(own.log().mean()), rel=1e-5)
    blamed = found.table.where(measure="blame").frame
    assert set(blamed.select("variant", "mask").rows()) == {key}


def test_a_random_network_has_its_own_mask():
    spec = Spec(layers=3, heads=2, dim=16, variant="transformer")
    found = ablate(spec, tokens=8, variants=["transformer"], masks=["causal"], blame=True, suggest=True)
    assert found.blame.network.name == "the full model (transformer), mask causal"
    masked = ablate(
        spec,
        tokens=8,
        variants=["transformer"],
        masks=["causal"],
        measures=["residual_ratio[frobenius,mean]"],
    )
    assert found.blame.total == pytest.approx(change_of(masked)["transformer", "causal"], abs=1e-9)
    assert "mask:causal" not in [one.name for one in found.suggest.what_ifs]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("kind", "layer"), [("channel", 0), ("token", 0), (None, None)])
def test_nothing_is_ranked_where_a_channel_or_massive_tokens_make_the_norm(kind, layer, split):
    spec = Spec(layers=2, heads=2, dim=32, placement="pre", norm="layer", variant="transformer")
    network = build(spec, generators(0)[0])
    x = torch.stack([gaussian_tokens(12, 32, generator=generators(seed)[1]) for seed in range(3)])
    if kind == "channel":
        x[..., 5] += 300
    elif kind == "token":
        x[:, :2] *= 300
    found = ablate(network, inputs=x, variants=["transformer"], blame=True, split=split)
    section = found.blame
    if kind is None:
        assert section.dominated == ()
        assert section.most_for is not None
        return
    assert {one.kind for one in section.dominated} == {kind}
    first = section.dominated[0]
    energy = x.square()
    share = (
        energy.sum(dim=1)[:, 5] / energy.sum(dim=(1, 2))
        if kind == "channel"
        else energy[:, :2].sum(dim=(1, 2)) / energy.sum(dim=(1, 2))
    )
    assert (first.layer, first.texts) == (layer, 3)
    assert first.share == pytest.approx(float(share.mean()), rel=1e-9)
    assert section.most_for is section.most_against is section.block_for is section.block_against is None
    assert not section.decided_for
    assert not section.decided_against
    assert section.is_dominated
    assert "no part is named" in section.words
    assert section.total is not None  # the changes themselves stay


def test_without_an_error_estimate_nobody_is_named():
    """The split pass gives the changes, but says nothing of their floors: no row is resolved, no part is blamed."""
    spec = Spec(layers=3, heads=2, dim=16, variant="transformer")
    asked = {"tokens": 8, "variants": ["transformer"], "blame": True, "split": True}
    sure, unsure = ablate(spec, **asked), ablate(spec, **asked, no_error=True)
    assert unsure.blame.kinds == pytest.approx(sure.blame.kinds, rel=1e-9)
    assert (sure.blame.decided_for, unsure.blame.decided_for, unsure.blame.decided_against) == (
        True,
        False,
        False,
    )
    assert unsure.blame.floors is unsure.blame.most_for is unsure.blame.most_against is None
    assert unsure.blame.words.endswith("no part is named: no rounding floor was estimated.")
    rows = unsure.table.where(measure="blame").frame
    assert not rows["resolved"].any()
    assert rows["floor"].is_null().all()
    assert rows["value"].is_not_null().all()
