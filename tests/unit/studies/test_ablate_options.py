"""What an ablation says in words, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch

from kit.checkpoint_folders import bert, bert_config, save, word_tokenizer
from kit.read_once import read_once
from rankscope.core.words import number
from rankscope.errors import ConfigError, FileError, NumericalError, RankscopeError
from rankscope.findings.ablate import AblateConfig, AblateFinding, block_text, parse_blocks
from rankscope.findings.pivot import pivot
from rankscope.findings.subject import Subject
from rankscope.network import Spec, build, generators
from rankscope.results import Table
from rankscope.sources import load_model
from rankscope.sources.initial import initial_model
from rankscope.split import split_states
from rankscope.studies.ablate import ablate, fates_of

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


def told(curves, floor=1e-6, **more):
    """The finding of curves that are made up."""
    about = {"family": "random", "kind": "random", "weights": "random", "parameters": 0, "dtype": "float64"}
    about |= {"inputs": "Gaussian tokens", "read": "tokens"}
    subject = Subject(model="random", seeds=1, texts=1, tokens=4.0, proof=None, **about)
    table = curve_table(curves, floor)
    definition, cuts = fates_of(table)
    given = {"semantics": "clean", "only_blocks": None, "definitions": {RATIO: "a ratio"}} | more
    return AblateFinding(subject=subject, definition=definition, cuts=cuts, table=table, **given)


@pytest.mark.parametrize(
    ("texts", "floor", "words"),
    [
        ([[0.9, 0.5, 0.4]], 1e-6, "does not collapse: its residual ratio (composite norm) is 0.4 at layer 2"),
        (
            [[0.9, 0.5, 0.01]],
            1e-6,
            "collapses: its residual ratio (composite norm) is 0.01 at layer 2.",
        ),
        (
            [[0.98, 0.65, 0.5, 0.39, 0.23, 0.17, 0.11]],
            1e-6,
            "is collapsing: its residual ratio (composite norm) is 0.11 at layer 6. At the pace of its last blocks a "
            "deeper network would reach 0.0088 at layer 12.",
        ),
        (
            [[0.9, 0.02, 0.5, 0.8]],
            1e-6,
            "On the way it falls to 0.02 at layer 1 and has recovered by layer 3.",
        ),
        (
            [[0.9, 0.05, 1e-7]],
            1e-6,
            "collapses: its residual ratio (composite norm) is 0.05 at layer 1; from layer 2 on "
            "rounding hides it, and the rule (below) reads 1e-6 at the last layer.",
        ),
        (
            [[0.9, 0.8, 1e-7]],
            1e-6,
            "its residual ratio (composite norm) is 0.8 at layer 1; from layer 2 on rounding hides it",
        ),
        (
            [[0.9, 0.05, 1e-7], [0.9, 0.05, 1e-2]],
            1e-6,
            "0.05 at layer 1 (geometric mean over 2 texts); from layer 2 on rounding hides it in at least one text",
        ),
        (
            [[0.9, 0.8, 0.2]],
            0.3,
            "cannot be judged because of rounding: its residual ratio (composite norm) is 0.8 at layer 1",
        ),
        ([[0.09, 0.08, 0.05]], 1e-6, "does not collapse"),
        ([[1e-7, 1e-7]], 1e-6, "has equal tokens at every layer, as far as rounding shows"),
        (
            [[0.2, 0.2]],
            0.3,
            "gives no residual ratio (composite norm) above its rounding floor. Run it in float32 to decide.",
        ),
    ],
)
def test_the_finding_rests_on_resolved_numbers(texts, floor, words):
    said = told({"san": texts}, floor).words[1]
    assert said.startswith("Attention alone (san) ")
    assert words in said


def test_the_finding_has_the_facts_behind_its_words():
    curve = [0.98, 0.65, 0.50, 0.39, 0.23, 0.17, 0.11]
    cut = told({"san": [curve]}).cuts[0]
    assert (cut.verdict, cut.collapses, cut.starts, cut.layer) == ("collapsing", True, 1, 6)
    assert cut.value == pytest.approx(0.11)
    assert cut.rate == pytest.approx((0.11 / 0.98) ** (1 / 6))
    assert cut.pace == pytest.approx((0.11 / 0.39) ** (1 / 3))
    assert cut.leads_to.layer == 12
    assert cut.leads_to.value == pytest.approx(0.11 * (0.11 / 0.39) ** 2)
    lost = told({"san": [[0.9, 0.8, 0.2]]}, 0.3).cuts[0]
    assert (lost.verdict, lost.collapses, lost.would_decide) == ("undecided", None, "float32")
    blank = told({"san": [[0.9, 0.8, float("nan")]]}).cuts[0]
    assert (blank.verdict, blank.collapses, blank.no_number_from) == ("no numbers", None, 2)


ON_ITS_WAY = [0.98, 0.65, 0.50, 0.39, 0.23, 0.17, 0.11]
FALLS, STAYS, LOST = [0.9, 0.5, 0.01], [0.9, 0.5, 0.4], [0.9, 0.8, float("nan")]


@pytest.mark.parametrize(
    ("curves", "words", "tone"),
    [
        (
            {"san": [FALLS], "san+mlp": [FALLS], "san+skip": [STAYS], "transformer": [STAYS]},
            "Attention alone (san) and attention with MLPs (san+mlp) collapse; attention with skips (san+skip) and the "
            "full model (transformer) do not.",
            "good",
        ),
        ({"san": [STAYS]}, "Attention alone (san) does not collapse.", "good"),
        ({"transformer": [FALLS]}, "The full model (transformer) collapses.", "bad"),
        (
            {"san": [FALLS], "transformer": [LOST]},
            "Attention alone (san) collapses; nothing is known of the full model (transformer).",
            "unknown",
        ),
        ({"san": [FALLS], "san+skip": [STAYS]}, None, "look"),
        (
            {"san": [ON_ITS_WAY], "transformer": [STAYS]},
            "Attention alone (san) is collapsing; the full model (transformer) does not collapse.",
            "good",
        ),
        ({"san-norm": [LOST]}, "Nothing is known of san-norm.", "unknown"),
    ],
)
def test_the_conclusion_says_which_cuts_collapse(curves, words, tone):
    found = told(curves)
    assert words in (None, found.words[0])
    assert found.tone == tone
    assert found.words[0] in str(found)


def test_falls_over_different_layers_are_not_given_as_factors():
    """The slower one is followed further, into layers where it falls faster: its mean factor is the smaller one."""
    found = told({"san": [[0.97, 0.71, 0.39, 0.043, 1e-7]], "san+mlp": [[0.97, 0.66, 0.46, 0.062, 2.6e-4]]})
    first, second = found.cuts
    assert first.value < 0.062
    assert first.rate > second.rate, "and yet it is ahead at every layer"
    assert not any("multiplies" in one or "factor" in one for one in found.words)


def test_the_pace_of_a_fall_that_may_go_on_is_told():
    found = told({"transformer": [[0.98, 0.93, 0.88, 0.83]]})
    assert "Each of its last blocks lowers it, multiplying it by 0.946 on average." in found.words[1]


def test_many_cuts_are_a_table_and_not_a_wall_of_sentences():
    spec = Spec(layers=1, heads=1, dim=4)
    found = ablate(spec, tokens=3, masks=["own", "causal", "window:1"], skip_scales=["own", 0.5])
    assert len(found.cuts) == 18
    assert len(found.words) == 5  # the conclusion, and the four variants of the first mask
    text = str(found)
    cuts = text[text.index("\nCuts\n") : text.index("\nBy layer\n")]
    assert cuts.count("window:1") == 6
    assert {one.mask for one in found.first_cuts} == {"full"}
    assert {one.skip_scale for one in found.first_cuts} == {None}
    scaled = ablate(spec, tokens=3, skip_scales=[0.5, 2.0], measures=[RATIO])
    assert [(one.variant, one.skip_scale) for one in scaled.first_cuts] == [
        *[("san", None), ("san+mlp", None), ("san+skip", 0.5), ("transformer", 0.5)]
    ]
    lines = [line.split("  ")[0] for line in str(scaled).splitlines()]
    assert {"san+skip, skip 0.5", "san+skip, skip 2"} <= set(lines)


def test_both_passes_print_the_same_mean_under_its_name():
    spec = Spec(layers=3, heads=2, dim=16)
    options = {"tokens": 8, "seeds": (0, 1, 2, 3), "variants": ("san",), "masks": ("causal",)}
    plain, split = (ablate(spec, **options, split=split) for split in (False, True))
    frame = plain.table.frame
    values = frame.filter((frame["definition"] == RATIO) & (frame["layer"] == 3))["value"]
    geometric = values.log().mean()
    for found in (plain, split):
        cut = found.cuts[0]
        assert math.log(cut.value) == pytest.approx(geometric, abs=1e-9)
        assert f"{cut.value:.2g} at layer 3 (geometric mean over 4 texts)" in found.words[1]
        assert pivot(found.table.where(definition=RATIO))["3"].to_list() == [number(math.exp(geometric), 2)]
        assert "Numbers are geometric means over all seeds." in str(found)


def test_the_finding_without_a_ratio_is_empty():
    found = ablate(Spec(layers=1, heads=1, dim=4), tokens=3, measures=["diameter[l2]"])
    assert (found.definition, found.cuts, found.tone) == (None, (), "unknown")
    assert found.words == ("No residual ratio of the blocks was measured, so nothing is said of collapse.",)
    assert "<svg" in found.to_html()


# options


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"only_blocks": "0"}, "only_blocks='0': '0' is not a block or a range"),
        ({"only_blocks": "5-3"}, "'5-3' is not a block or a range"),
        ({"only_blocks": "1,,2"}, "'' is not a block"),
        ({"only_blocks": "9" * 30}, "is not a block or a range"),
        ({"blocks": "3,5-7"}, "expected module paths .* ask for only_blocks='3,5-7'"),
        ({"blocks": ("3", "5")}, "ask for only_blocks='3,5'"),
        ({"blocks": "2"}, "ask for only_blocks='2'"),
        ({"skip_scales": ["x"]}, "skip_scales='x': expected a finite number"),
        ({"skip_scales": ["nan"]}, "finite number"),
        ({"sites": ["blok"]}, "did you mean 'block'"),
        ({"seeds": []}, "seeds"),
        ({"semantics": "papr"}, "did you mean 'paper'"),
        ({"weigths": "initial"}, "did you mean 'weights'"),
        ({"variants": ()}, r"variants=\(\): an empty list was given"),
    ],
)
def test_wrong_options_are_clear(options, match):
    with pytest.raises(RankscopeError, match=match):
        AblateConfig.of(**options)


def test_paths_of_blocks_are_no_numbers():
    for blocks in ("model.layers", ("blocks.0", "blocks.1"), "h"):
        assert AblateConfig(blocks=blocks).blocks == blocks


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"variants": ["sann"]}, "did you mean 'san'"),
        ({"masks": ["window"]}, "expected 1"),
        ({"measures": ["dobrushin"]}, "measures attention maps"),
        ({"split": True, "sites": ["attention"]}, "split pass measures the site block alone"),
        ({"split": True, "measures": ["cosine"]}, "cannot be read off a split state"),
        ({"no_error": True}, "no_error= leaves out the perturbed run of the split pass"),
        ({"sites": ["mlp"], "variants": ["san", "san+skip"]}, "has an MLP to measure"),
        ({"skip_scales": [0.5], "variants": ["san"]}, "has a skip to scale"),
        ({"only_blocks": "4"}, "block 4 does not exist: the model has blocks 1 to 3"),
        ({"dtype": "float64"}, "is in float32, but float64 was asked for"),
        ({"tokens": 5}, "tokens= belongs to a random network"),
        ({"norm": "layer"}, "norm='layer' is of random networks"),
        ({"weights": "initial"}, "drawn for a name or a folder"),
        ({"stack": "decoder"}, "no stack 'decoder'"),
        (
            {"semantics": "paper", "norm": "none"},
            "the paper's code always keeps the norms, so norm='none' has no",
        ),
        ({"semantics": "paper", "variants": ["san-norm"]}, "the paper's code always keeps the norms"),
        ({"norm": "none", "variants": ["san", "san-norm"]}, "are the same network"),
    ],
)
def test_options_that_contradict_the_model_are_clear(tiny, options, match):
    with pytest.raises(RankscopeError, match=match):
        ablate(tiny, TEXTS, **options)


def test_blocks_are_written_as_they_are_read():
    assert parse_blocks(" 7, 1-3,2") == (1, 2, 3, 7)
    assert block_text(parse_blocks("7,1-3,2")) == "1-3,7"
    assert AblateConfig(only_blocks="7,1-3,2").only_blocks == "1-3,7"


def test_weights_that_are_not_there_are_told(bare, tmp_path):
    with pytest.raises(
        FileError, match=r"has a config\.json but no weights; draw them at random: weights='initial'"
    ):
        ablate(bare)
    with pytest.raises(
        ConfigError, match=r"'bert-base' is listed with initial weights only .*use weights='initial'"
    ):
        ablate("bert-base", weights="trained")
    with pytest.raises(ConfigError, match="use random_tokens="):
        ablate(bare, weights="initial")
    folder = save(bert(), tmp_path / "whole", tokenizer=word_tokenizer())
    assert ablate(folder, TEXTS, variants=["san"]).table.frame.height == 2 * 3 * 2


def test_random_networks_refuse_what_belongs_to_models():
    spec = Spec(layers=1, heads=1, dim=4)
    for options, match in (
        ({"texts": ["a"]}, "texts= belongs to a model"),
        ({"random_tokens": "2x4"}, "random_tokens= belongs to a model"),
        ({"weights": "initial"}, "leave out weights="),
        ({"layers": 3}, "layers= belongs to a random network, but a model was named"),
    ):
        with pytest.raises(ConfigError, match=match):
            ablate(spec, **options)


# what is known of the weights


def test_only_a_listed_checkpoint_is_called_trained(tmp_path):
    """A module that was just built is not trained, and a folder does not say whether its weights were."""
    model = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1
    ).eval()
    found = ablate(model, inputs=torch.randn(2, 4, 8), variants=["transformer"])
    assert found.subject.weights == "given"
    assert "trained" not in str(found)
    folder = save(bert(seed=1, num_hidden_layers=1), tmp_path / "stored")
    assert load_model(folder).weights == "stored"
    assert initial_model(folder).weights == "initial"
    assert load_model(model).weights == "given"


@pytest.mark.slow
def test_a_cut_that_overflows_leaves_the_others_their_numbers() -> None:
    asked = {"layers": 60, "dim": 8, "heads": 1, "tokens": 3, "split": True, "norm": "none"}
    asked |= {"measures": ("residual_ratio[frobenius,mean]",), "skip_scales": (3.0,)}
    alone = ablate(variants=("san", "san+skip"), **asked)
    found = ablate(variants=("san", "san+skip", "transformer"), **asked)
    kept = found.table.frame.filter(found.table.frame["variant"] != "transformer").drop("run")
    assert kept.equals(alone.table.frame.drop("run"))
    lost = next(one for one in found.cuts if one.variant == "transformer")
    assert lost.no_number_from is not None
    assert 1 < lost.no_number_from < 60
    values = found.table.frame.filter(found.table.frame["variant"] == "transformer").sort("layer")["value"]
    assert values.null_count() > 0
    assert values.head(2).null_count() == 0  # what came before is kept
    said = next(one for one in found.words if one.startswith("The full model (transformer)"))
    assert f"(overflow or 0/0) from layer {lost.no_number_from} on" in said


def test_a_text_that_overflows_leaves_the_others_of_its_batch_their_numbers() -> None:
    network = build(Spec(layers=6, heads=1, dim=8, variant="san+skip"), generators(0)[0])
    x = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    large = x.clone()
    large[1] *= 1e300
    for layer, (one, other) in enumerate(
        zip(split_states(network, x), split_states(network, large, may_overflow=True), strict=True)
    ):
        torch.testing.assert_close(one.log_scale[[0, 2]], other.log_scale[[0, 2]], rtol=1e-9, atol=1e-9)
        assert bool(other.log_scale[1].isnan()) == (layer > 0)
    with pytest.raises(NumericalError, match="beyond the range"):
        split_states(network, large)
