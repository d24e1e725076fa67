"""Ablation: against the scan of the same model, a hand-cut forward, the study of random networks, and itself."""

from dataclasses import replace

import polars as pl
import pytest
import torch

from checkpoint_folders import bert, bert_config, save, word_tokenizer
from models import MODELS
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.measures import MEASURES
from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.results import Table
from rankscope.sources import BUILTINS, load_model, translate
from rankscope.studies import AblateConfig, CollapseConfig, ablate, collapse, scan
from rankscope.studies.ablate_config import block_text, parse_blocks
from rankscope.studies.ablate_words import finding

RATIO, RESIDUAL = "residual_ratio[composite,mean]", "residual[frobenius,mean]"
TEXTS = ["the cat sat on the mat", "a dog", "it was very small indeed and every day the cat sat on a dog"]


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


def values(table, **where):
    return table.where(**where).frame.sort("definition", "sample", "layer", "site")["value"].to_list()


# the same numbers by other ways


@pytest.mark.parametrize("special", ["drop", "keep"])
def test_the_uncut_model_is_what_a_scan_sees(tiny, special):
    """Padded texts of different lengths, with and without the tokens around them."""
    found = ablate(tiny, TEXTS, variants=["transformer"], special=special, measures=[RATIO, "cosine"])
    expected = scan(tiny, TEXTS, special=special).table.where(site="block")
    for definition in (RATIO, "cosine[off_diagonal]"):
        theirs = values(expected, definition=definition)
        assert len(theirs) == 12
        # tree and model round differently in float32
        assert values(found, definition=definition) == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert (
        found.frame["tokens"].unique().sort().to_list() == expected.frame["tokens"].unique().sort().to_list()
    )


@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_sites_are_those_of_a_scan(name):
    model = MODELS[name].model()
    options = {"random_tokens": "2x7", "special": "keep"}
    sites = ["attention", "mlp", "block"] + (["final"] if name != "bert" else [])
    found = ablate(model, variants=["transformer"], sites=sites, measures=[RATIO], **options)
    expected = scan(model, **options).table.where(definition=RATIO)
    for site in sites:
        theirs = values(expected, site=site)
        assert theirs
        assert values(found, site=site) == pytest.approx(theirs, rel=1e-4), site


def by_hand(model, ids, mask, variant):
    """States of a BERT without its skips or MLPs, from the live modules themselves."""
    skip, mlp = "skip" in variant or variant == "transformer", "mlp" in variant or variant == "transformer"
    hidden = model.embeddings(input_ids=ids)
    states = [hidden]
    for layer in model.encoder.layer:
        mixed = layer.attention.output.dense(layer.attention.self(hidden, mask)[0])
        hidden = layer.attention.output.LayerNorm(mixed + hidden if skip else mixed)
        if mlp:
            changed = layer.output.dense(layer.intermediate(hidden))
            hidden = layer.output.LayerNorm(changed + hidden if skip else changed)
        states.append(hidden)
    return states


@pytest.mark.parametrize("variant", ["san", "san+mlp", "san+skip", "transformer"])
def test_every_variant_is_the_model_cut_by_hand(tiny, variant):
    found = ablate(tiny, TEXTS[:1], variants=[variant], measures=[RESIDUAL])
    ids = torch.tensor([tiny.tokenizer(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        states = by_hand(tiny.model, ids, None, variant)
    expected = [MEASURES[RESIDUAL](state[0, 1:-1].double()).item() for state in states]
    assert values(found) == pytest.approx(expected, rel=1e-4)


def test_random_networks_are_those_of_collapse():
    """The same seeds, weights and tokens; batched there, one by one here."""
    shape = {"layers": 4, "heads": 2, "dim": 16}
    for norm in ("none", "layer"):
        found = ablate(Spec(**shape, norm=norm), tokens=8, seeds=range(3), masks=["own", "causal"])
        options = {"variants": found.frame["variant"].unique(maintain_order=True).to_list(), "norms": [norm]}
        expected = collapse(
            CollapseConfig(**shape, tokens=8, seeds=range(3), masks=["full", "causal"], **options)
        )
        keys = ["variant", "mask", "seed", "layer", "definition"]
        ours, theirs = found.frame.sort(keys), expected.frame.sort(keys)
        assert ours.select(keys).equals(theirs.select(keys))
        resolved = theirs["resolved"]
        assert ours.filter(resolved)["value"].to_list() == pytest.approx(
            theirs.filter(resolved)["value"].to_list(), rel=1e-9
        )


def test_a_tree_runs_on_the_tokens_given():
    weights, tokens = generators(0)
    network = build(Spec(layers=2, heads=2, dim=8, variant="transformer"), weights)
    x = gaussian_tokens(5, 8, generator=tokens)
    found = ablate(network, inputs=x, variants=["transformer"], measures=[RESIDUAL])
    assert values(found) == pytest.approx([MEASURES[RESIDUAL](state).item() for state in network.states(x)])
    with pytest.raises(ConfigError, match="give inputs=x"):
        ablate(network)


def test_a_translation_is_taken_as_it_is(tiny):
    translation = translate(tiny.model)
    found = ablate(translation, TEXTS, tokenizer=tiny.tokenizer, variants=["san"])
    expected = ablate(tiny, TEXTS, variants=["san"])
    assert values(found) == values(expected)


# the product


def test_all_cuts_stand_side_by_side(tiny):
    found = ablate(tiny, TEXTS[:2], masks=["own", "causal"], skip_scales=["own", 0.5], measures=[RATIO])
    cells = found.frame.select("variant", "mask", "skip_scale").unique(maintain_order=True).rows()
    each = [("san", None), ("san+mlp", None), ("san+skip", None), ("san+skip", 0.5)]
    each += [("transformer", None), ("transformer", 0.5)]
    assert cells == [(variant, mask, scale) for mask in ("full", "causal") for variant, scale in each]
    assert found.frame.height == 12 * 4 * 2
    row = found.frame.row(0, named=True)
    assert (row["model"], row["semantics"], row["norm"], row["blocks"]) == (
        "BertModel",
        "clean",
        "layer",
        "all",
    )
    assert (row["seed"], row["sample"], row["layer"], row["site"], row["tokens"]) == (0, 0, 0, "block", 6)


def test_a_skip_scale_of_zero_is_no_skip(tiny):
    found = ablate(tiny, TEXTS, variants=["san+mlp", "transformer"], skip_scales=[0, 1])
    none, zero = values(found, variant="san+mlp"), values(found, variant="transformer", skip_scale=0.0)
    assert zero == pytest.approx(none, rel=1e-5)
    own = values(ablate(tiny, TEXTS, variants=["transformer"]))
    assert values(found, variant="transformer", skip_scale=1.0) == own


def test_only_the_named_blocks_are_changed(tiny):
    whole = ablate(tiny, TEXTS, variants=["transformer"], measures=[RATIO]).frame
    cut = ablate(tiny, TEXTS, variants=["san"], blocks="2", measures=[RATIO]).frame
    for layer, same in ((0, True), (1, True), (2, False), (3, False)):
        pair = [frame.filter(layer=layer)["value"].to_list() for frame in (whole, cut)]
        assert (pair[0] == pair[1]) == same, layer
    assert cut["blocks"].unique().to_list() == ["2"]
    everything = ablate(tiny, TEXTS, variants=["san"], blocks="1-3", measures=[RATIO]).frame
    assert everything["value"].equals(ablate(tiny, TEXTS, variants=["san"], measures=[RATIO]).frame["value"])


def test_norms_can_be_taken_out(tiny):
    none = ablate(tiny, TEXTS, variants=["san"], norm="none", measures=[RATIO])
    minus = ablate(tiny, TEXTS, variants=["san-norm"], measures=[RATIO])
    assert values(none) == values(minus)
    assert none.frame["norm"].unique().to_list() == ["none"]
    assert values(minus) != values(ablate(tiny, TEXTS, variants=["san"], measures=[RATIO]))


def test_paper_semantics_keep_the_skip_of_the_mlp(tiny):
    clean, paper = (ablate(tiny, TEXTS, semantics=one, measures=[RATIO]) for one in ("clean", "paper"))
    for variant in ("san", "san+skip", "transformer"):
        assert values(clean, variant=variant) == values(paper, variant=variant)
    assert values(clean, variant="san+mlp") != values(paper, variant="san+mlp")
    with pytest.raises(ConfigError, match="got 'llama'"):
        ablate(MODELS["llama"].model(), semantics="paper", random_tokens="1x5")


# seeds and weights


def test_every_seed_draws_a_model_and_tokens(bare):
    options = {"weights": "initial", "random_tokens": "2x6", "variants": ["transformer"], "measures": [RATIO]}
    found, again = (ablate(bare, seeds=[0, 3], **options) for _ in range(2))
    assert found.frame.equals(again.frame)
    assert values(found, seed=0) != values(found, seed=3)
    assert values(found, seed=3) == values(ablate(bare, seeds=[3], **options))
    about = found.sections["ablate"]
    assert (about["weights"], about["dtype"], about["seeds"], about["texts"]) == ("initial", "float32", 2, 2)
    assert found.provenance["config"]["model"] == "bare"


def test_trained_weights_with_seeds_draw_tokens_only(tiny):
    found = ablate(tiny, random_tokens="1x6", seeds=[0, 1], variants=["transformer"])
    assert values(found, seed=0) != values(found, seed=1)
    with pytest.raises(ConfigError, match="2 seeds of trained weights on the same inputs"):
        ablate(tiny, TEXTS, seeds=[0, 1])


def test_batches_do_not_matter(tiny):
    one, two = (ablate(tiny, TEXTS, batch_size=size, variants=["san"]) for size in (1, 2))
    assert values(one) == pytest.approx(values(two), rel=1e-4, abs=1e-6)
    assert two.frame["sample"].unique().sort().to_list() == [0, 1, 2]


def test_progress_is_told(tiny):
    told = []
    ablate(
        tiny, TEXTS, batch_size=2, variants=["san", "transformer"], progress=lambda *step: told.append(step)
    )
    assert told == [(2, 6), (4, 6), (5, 6), (6, 6)]


# the split pass


@pytest.mark.parametrize("special", ["drop", "keep"])
def test_the_split_pass_goes_on_where_float_stops(tiny, special):
    found = ablate(tiny, TEXTS, split=True, special=special)
    ordinary = found.frame.filter(pl.col("float_value") > 10 * pl.col("float_floor"))
    assert ordinary.height > 60
    quotient = (ordinary["value"] / ordinary["float_value"]).to_list()
    # ten times the floor leaves a rounding error of at most a tenth
    assert quotient == pytest.approx([1.0] * len(quotient), rel=0.1)
    assert found.provenance["config"]["dtype"] == "float32"
    assert (found.frame["floor"] == 0).all()


def test_measured_tokens_that_are_lost_in_the_others_have_no_number():
    """Two measured tokens that differ by 1e-18 of what a third one holds: no digit of them is right."""
    from rankscope.split.state import Split
    from rankscope.studies.ablate_study import _of_measured

    residual = torch.tensor([[[1.0, 0.0], [-0.5, 1e-18], [-0.5, -1e-18]]], dtype=torch.float64)
    split = Split(
        common=torch.ones(1, 2, dtype=torch.float64),
        residual=residual,
        log_scale=torch.zeros(1, dtype=torch.float64),
    )
    last_two, all_three = torch.tensor([[False, True, True]]), torch.tensor([[True, True, True]])
    assert bool(_of_measured(split, last_two, 1).log_scale.isnan().all())
    assert bool(_of_measured(split, all_three, 1).log_scale.isfinite().all())


# explanations


def test_blame_adds_up_to_the_change_of_the_model(tiny):
    found = ablate(
        tiny, TEXTS, variants=["transformer"], measures=["residual_ratio[frobenius,mean]"], blame=True
    )
    total = (
        found.where(measure="blame").frame.group_by("sample", maintain_order=True).agg(pl.col("value").sum())
    )
    states = found.where(measure="residual_ratio").frame
    for sample, change in total.rows():
        curve = states.filter(sample=sample).sort("layer")["value"].log().to_list()
        assert change == pytest.approx(curve[-1] - curve[0], abs=1e-5)  # both are read off float32 states
    section = found.sections["blame"]
    assert section["sentence"].startswith("Over 3 blocks (mean of 3 texts)")
    assert sum(section["kinds"].values()) == pytest.approx(total["value"].mean(), abs=1e-5)
    assert "blame[residual_ratio[frobenius,mean]]" in found.sections["definitions"]


def test_suggestions_start_from_the_model_as_it_is(tiny):
    found = ablate(tiny, TEXTS, variants=["san"], suggest=True, batch_size=2)
    section = found.sections["suggest"]
    assert section["texts"] == 2
    gains = [one["gain"] for one in section["what_ifs"] if one["gain"] is not None]
    assert gains == sorted(gains, reverse=True)
    name = "residual_ratio[frobenius,mean]"
    whole = ablate(tiny, TEXTS[:2], variants=["transformer"], measures=[name]).frame.filter(layer=3)["value"]
    assert section["what_ifs"][0][f"before {name}"] == pytest.approx(whole.mean(), rel=1e-5)


def test_proof_and_rule_are_told(tiny):
    about = ablate(tiny, TEXTS, variants=["san"]).sections["ablate"]
    assert 0 < about["proof"]["end to end"] < about["proof"]["allowed"] == 2e-4
    assert about["special rule"].startswith("padding and special tokens are left out")
    assert (about["family"], about["kind"], about["parameters"]) == ("bert-like", "bert", tiny.parameters)


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
        ([[0.9, 0.5, 0.01]], 1e-6, "collapses: residual ratio 0.01 at layer 2"),
        (
            [[0.9, 0.05, 1e-7]],
            1e-6,
            "collapses: residual ratio 0.05 at layer 1, below the rounding floor from layer 2 on",
        ),
        ([[0.9, 0.8, 1e-7]], 1e-6, "collapses: residual ratio 0.8 at layer 1, below the rounding floor from"),
        (
            [[0.9, 0.05, 1e-7], [0.9, 0.05, 1e-2]],
            1e-6,
            "0.05 at layer 1, in some texts below the rounding floor from",
        ),
        ([[0.9, 0.8, 0.2]], 0.3, "is lost in rounding: residual ratio 0.8 at layer 1"),
        ([[0.09, 0.08, 0.05]], 1e-6, "does not collapse"),
        ([[1e-7, 1e-7]], 1e-6, "gives no number above the rounding floor"),
    ],
)
def test_the_finding_rests_on_resolved_numbers(texts, floor, words):
    found = finding(curve_table({"san": texts}, floor))
    assert found["words"].startswith("attention alone (san) ")
    assert words in found["words"]


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
    with pytest.raises(ConfigError, match="'bert-base' is an architecture without trained weights"):
        ablate("bert-base")
    with pytest.raises(ConfigError, match="use --random-tokens"):
        ablate(bare, weights="initial")
    folder = save(bert(), tmp_path / "whole", tokenizer=word_tokenizer())
    assert ablate(folder, TEXTS, variants=["san"]).frame.height == 3 * 3 * 2


def test_random_networks_refuse_what_belongs_to_models():
    spec = Spec(layers=1, heads=1, dim=4)
    for options, match in (
        ({"texts": ["a"]}, "texts belongs to a model"),
        ({"random_tokens": "2x4"}, "random_tokens belongs to a model"),
        ({"weights": "initial"}, "leave out --weights"),
    ):
        with pytest.raises(ConfigError, match=match):
            ablate(spec, **options)


@pytest.mark.checkpoint
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            one.name, marks=pytest.mark.skipif(not one.installed, reason=f"not installed: {one.pip}")
        )
        for one in BUILTINS.values()
        if one.name != "smollm2"  # half a minute to read; the proof of its translation is elsewhere
    ],
)
def test_real_models_collapse_without_skips_and_not_as_they_are(name):
    found = ablate(name, max_texts=4, max_tokens=64, split=True, variants=["san", "transformer"])
    cuts = {cut["variant"]: cut for cut in found.sections["finding"]["cuts"]}
    assert cuts["san"]["collapses"], cuts["san"]["words"]
    assert not cuts["transformer"]["collapses"], cuts["transformer"]["words"]
