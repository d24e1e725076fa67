"""What an ablation says in words, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch

from kit.checkpoint_folders import bert, bert_config, save, word_tokenizer
from kit.read_once import read_once
from rankscope.cli.ablate_text import ablate_text
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.network import Spec
from rankscope.results import Table, pivot
from rankscope.sources import load_model
from rankscope.sources.initial import initial_model
from rankscope.studies import AblateConfig, ablate
from rankscope.studies.ablate_config import block_text, parse_blocks
from rankscope.studies.ablate_words import finding

RATIO = "residual_ratio[composite,mean]"
TEXTS = ["the cat sat on the mat", "a dog"]


@pytest.fixture(autouse=True)
def trees_are_read_once(monkeypatch):
    monkeypatch.setattr("rankscope.studies.subjects.translate", read_once)


@pytest.fixture(scope="module")
def tiny():
    """A tiny BERT with a tokenizer."""
    return replace(load_model(bert(seed=1, num_hidden_layers=3)), tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "bare"
    bert_config().save_pretrained(folder)
    return folder


# words


def curve_table(curves, floor=1e-6):
    rows = [
        {
            "variant": variant,
            "mask": "full",
            "layer": layer,
            "value": value,
            "sample": sample,
            "skip_scale": None,
        }
        for variant, texts in curves.items()
        for sample, text in enumerate(texts)
        for layer, value in enumerate(text)
    ]
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return Table.from_columns(
        {**columns, "site": "block", "measure": "residual_ratio", "definition": RATIO, "floor": floor}
    )


@pytest.mark.parametrize(
    ("texts", "floor", "words"),
    [
        ([[0.9, 0.5, 0.4]], 1e-6, "does not collapse: residual ratio 0.4 at layer 2"),
        ([[0.9, 0.5, 0.01]], 1e-6, "collapses: residual ratio 0.01 at layer 2, by a factor 0.11 per layer"),
        (
            [[0.98, 0.65, 0.5, 0.39, 0.23, 0.17, 0.11]],
            1e-6,
            "is collapsing: residual ratio 0.11 at layer 6, by",
        ),
        ([[0.9, 0.02, 0.5, 0.8]], 1e-6, "it dips to 0.02 at layer 1 and is back at layer 3"),
        (
            [[0.9, 0.05, 1e-7]],
            1e-6,
            "collapses: residual ratio 0.05 at layer 1, below the rounding floor from layer 2 on",
        ),
        ([[0.9, 0.8, 1e-7]], 1e-6, "collapses: residual ratio 0.8 at layer 1, below the rounding floor from"),
        (
            [[0.9, 0.05, 1e-7], [0.9, 0.05, 1e-2]],
            1e-6,
            "0.05 at layer 1 (geometric mean of 2), in some texts below the rounding floor from",
        ),
        ([[0.9, 0.8, 0.2]], 0.3, "is lost in rounding: residual ratio 0.8 at layer 1"),
        ([[0.09, 0.08, 0.05]], 1e-6, "does not collapse"),
        ([[1e-7, 1e-7]], 1e-6, "has equal tokens at every layer, up to the rounding floor"),
        ([[0.2, 0.2]], 0.3, "gives no number above the rounding floor; run it in float32 to decide"),
    ],
)
def test_the_finding_rests_on_resolved_numbers(texts, floor, words):
    found = finding(curve_table({"san": texts}, floor))
    assert found["words"].startswith("attention alone (san) ")
    assert words in found["words"]


def test_the_finding_has_the_facts_behind_its_words():
    curve = [0.98, 0.65, 0.50, 0.39, 0.23, 0.17, 0.11]
    cut = finding(curve_table({"san": [curve]}))["cuts"][0]
    assert (cut["verdict"], cut["collapses"], cut["starts"], cut["layer"]) == ("collapsing", True, 1, 6)
    assert cut["value"] == pytest.approx(0.11)
    assert cut["rate"] == pytest.approx((0.11 / 0.98) ** (1 / 6))
    assert cut["pace"] == pytest.approx((0.11 / 0.39) ** (1 / 3))
    assert cut["leads_to"]["layer"] == 12
    assert cut["leads_to"]["value"] == pytest.approx(0.11 * (0.11 / 0.39) ** 2)
    lost = finding(curve_table({"san": [[0.9, 0.8, 0.2]]}, 0.3))["cuts"][0]
    assert (lost["verdict"], lost["collapses"], lost["would_decide"]) == ("undecided", None, "float32")
    blank = finding(curve_table({"san": [[0.9, 0.8, float("nan")]]}))["cuts"][0]
    assert (blank["verdict"], blank["collapses"], blank["no_number_from"]) == ("no numbers", None, 2)


def test_both_passes_print_the_same_mean_under_its_name():
    spec = Spec(layers=3, heads=2, dim=16)
    options = {"tokens": 8, "seeds": (0, 1, 2, 3), "variants": ("san",), "masks": ("causal",)}
    plain, split = (ablate(spec, **options, split=split) for split in (False, True))
    values = plain.frame.filter((plain.frame["definition"] == RATIO) & (plain.frame["layer"] == 3))["value"]
    geometric = values.log().mean()
    for table in (plain, split):
        cut = table.sections["finding"]["cuts"][0]
        assert table.sections["finding"]["mean"] == "geometric"
        assert math.log(cut["value"]) == pytest.approx(geometric, abs=1e-9)
        assert f"{cut['value']:.2g} at layer 3 (geometric mean of 4)" in cut["words"]
        assert pivot(table.where(definition=RATIO))["3"].to_list() == [f"{math.exp(geometric):.1e}"]
        assert "geometric mean of residuals, ratios and diameters" in ablate_text(table)


def test_the_finding_without_a_ratio_is_empty():
    table = ablate(Spec(layers=1, heads=1, dim=4), tokens=3, measures=["diameter[l2]"])
    assert table.sections["finding"] == {"words": "", "definition": None, "cuts": []}


# options


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"blocks": "0"}, "'0' is not a block or a range"),
        ({"blocks": "5-3"}, "'5-3' is not a block or a range"),
        ({"blocks": "1,,2"}, "'' is not a block"),
        ({"skip_scales": ["x"]}, "skip scale 'x': expected a number"),
        ({"skip_scales": ["nan"]}, "finite number"),
        ({"variants": ["sann"]}, "did you mean 'san'"),
        ({"masks": ["window"]}, "expected 1"),
        ({"measures": ["dobrushin"]}, "measures attention maps"),
        ({"sites": ["blok"]}, "did you mean 'block'"),
        ({"seeds": [-1]}, "seeds are integers"),
        ({"semantics": "papr"}, "did you mean 'paper'"),
        ({"weigths": "initial"}, "did you mean 'weights'"),
    ],
)
def test_wrong_options_are_clear(options, match):
    with pytest.raises(RankscopeError, match=match):
        AblateConfig.of(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"split": True, "sites": ["attention"]}, "split pass measures the site block alone"),
        ({"split": True, "measures": ["cosine"]}, "cannot be read off a split state"),
        ({"sites": ["mlp"], "variants": ["san", "san+skip"]}, "has an MLP to measure"),
        ({"blocks": "4"}, "block 4 does not exist: the model has blocks 1 to 3"),
        ({"dtype": "float64"}, "is in float32, but float64 was asked for"),
        ({"tokens": 5}, "belongs to random networks"),
        ({"weights": "initial"}, "drawn for a name or a folder"),
        ({"stack": "decoder"}, "no stack 'decoder'"),
        (
            {"semantics": "paper", "norm": "none"},
            "the paper's code always keeps the norms, so norm none has no",
        ),
        ({"semantics": "paper", "variants": ["san-norm"]}, "the paper's code always keeps the norms"),
    ],
)
def test_options_that_contradict_the_model_are_clear(tiny, options, match):
    with pytest.raises(RankscopeError, match=match):
        ablate(tiny, TEXTS, **options)


def test_blocks_are_written_as_they_are_read():
    assert parse_blocks(" 7, 1-3,2") == (1, 2, 3, 7)
    assert block_text(parse_blocks("7,1-3,2")) == "1-3,7"
    assert AblateConfig(blocks="7,1-3,2").blocks == "1-3,7"


def test_weights_that_are_not_there_are_told(bare, tmp_path):
    with pytest.raises(
        FileError, match=r"has a config\.json but no weights; draw them at random: --weights initial"
    ):
        ablate(bare)
    with pytest.raises(
        ConfigError, match=r"'bert-base' is listed with initial weights only .*use --weights initial"
    ):
        ablate("bert-base", weights="trained")
    with pytest.raises(ConfigError, match="use --random-tokens"):
        ablate(bare, weights="initial")
    folder = save(bert(), tmp_path / "whole", tokenizer=word_tokenizer())
    assert ablate(folder, TEXTS, variants=["san"]).frame.height == 2 * 3 * 2


def test_random_networks_refuse_what_belongs_to_models():
    spec = Spec(layers=1, heads=1, dim=4)
    for options, match in (
        ({"texts": ["a"]}, "texts belongs to a model"),
        ({"random_tokens": "2x4"}, "random_tokens belongs to a model"),
        ({"weights": "initial"}, "leave out --weights"),
    ):
        with pytest.raises(ConfigError, match=match):
            ablate(spec, **options)


# what is known of the weights


def test_only_a_listed_checkpoint_is_called_trained(tmp_path):
    """A module that was just built is not trained, and a folder does not say whether its weights were."""
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1
    ).eval()
    table = ablate(model, inputs=torch.randn(2, 4, 8), variants=["transformer"])
    assert table.sections["ablate"]["weights"] == "given"
    assert "trained" not in ablate_text(table)
    folder = save(bert(seed=1, num_hidden_layers=1), tmp_path / "stored")
    assert load_model(folder).weights == "stored"
    assert initial_model(folder).weights == "initial"
    assert load_model(model).weights == "given"
