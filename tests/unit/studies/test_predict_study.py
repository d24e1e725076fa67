"""Predictions: forecasts of configs against live models, equal weights, statements of weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankscope.bounds.apriori_layers import apriori
from rankscope.bounds.forecast import forecast
from rankscope.errors import ConfigError, FileError, UnknownNameError
from rankscope.findings.predict import PredictConfig
from rankscope.measures import find_measure
from rankscope.network import Network, Skip, Spec, build, generators
from rankscope.studies.plans import KINDS, NAMED, SpecPlan, equal_parameters, model_plan, read_plan
from rankscope.studies.predict import predict

SMALL = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
TEXT = {**SMALL, "vocab_size": 500}
GPT = {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 500}
LIVE = {
    "bert": TEXT,
    "roberta": TEXT,
    "electra": {**TEXT, "embedding_size": 128},
    "distilbert": {"dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 512, "vocab_size": 500},
    "xlnet": {"d_model": 128, "n_layer": 4, "n_head": 4, "d_inner": 512, "vocab_size": 500},
    "gpt2": GPT,
    "gpt_neo": {"hidden_size": 128, "num_layers": 4, "num_heads": 4, "vocab_size": 500}
    | {"attention_types": [[["global"], 4]]},
    "gpt_neox": TEXT,
    "gptj": {**GPT, "rotary_dim": 16},
    "phi": TEXT,
    "opt": {**TEXT, "ffn_dim": 512, "word_embed_proj_dim": 128},
    "llama": {**TEXT, "num_key_value_heads": 2},
    "gemma": {**TEXT, "num_key_value_heads": 2, "head_dim": 32},
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(LIVE))
def test_untrained_models_do_what_was_forecast(kind: str) -> None:
    """States of layers 0 to 3: the last one of some models is after the final norm."""
    transformers = pytest.importorskip("transformers")
    settings = LIVE[kind]
    config = transformers.CONFIG_MAPPING[kind](**settings)
    measure, found = find_measure("cosine[off_diagonal]"), []
    for seed in range(5):
        torch.manual_seed(seed)
        model = transformers.AutoModel.from_config(config).eval()
        ids = torch.randperm(400)[None, :32] + 50
        with torch.no_grad():
            states = model(input_ids=ids, output_hidden_states=True).hidden_states
        found.append([float(measure(state.reshape(32, -1).double())) for state in states[:4]])
    expected = forecast(model_plan(kind, kind, settings).outline(32)).cosines[:4]
    # five draws of width 128: chance moves a cosine by a few hundredths
    np.testing.assert_allclose(np.mean(found, axis=0), expected, rtol=0, atol=0.06)


@pytest.mark.parametrize("name", ["bert-base", "albert-base", "xlnet-base", "gpt2", "llama-small", *NAMED])
def test_every_named_architecture_has_a_forecast(name: str) -> None:
    plan = read_plan(name)
    found = forecast(plan.sized(layers=2).outline(8))
    assert len(found.cosines) == 3
    assert all(0 <= cosine <= 1 for cosine in found.cosines)


def test_shapes_of_named_architectures() -> None:
    assert read_plan("bert-base").parameters == 84_934_656
    assert round(read_plan("GPT-3").parameters / 1e9) == 174
    assert read_plan("gpt2").outline(4).attention_gain == pytest.approx((4e-4 * 768) ** 2 / 24)
    assert read_plan("T5-3B").outline(4).logit_variance == 1.0


@pytest.mark.parametrize("layers", [1, 3, 6, 24, 48])
@pytest.mark.parametrize("name", ["bert-base", "llama-small", "T5-3B"])
def test_another_depth_keeps_the_weights(name: str, layers: int) -> None:
    plan = read_plan(name)
    other = equal_parameters(plan, layers)
    # widths are whole numbers of heads, of which the narrowest network here has four
    assert other.parameters == pytest.approx(plan.parameters, rel=0.3)
    assert other.layers == layers


def test_a_random_network_keeps_its_weights_too() -> None:
    plan = SpecPlan(spec=Spec(layers=16, heads=8, dim=64, key_heads=4, mlp_width=100, variant="transformer"))
    other = equal_parameters(plan, 4)
    assert (other.layers, other.dim) == (4, 128)
    assert other.parameters == pytest.approx(plan.parameters, rel=0.2)
    assert plan.sized(layers=3).dim == 64


def test_a_config_at_several_depths() -> None:
    found = predict("bert-base", PredictConfig(layers=(4, 12, 4), tokens=16, cosine=0.4))
    assert found.forecast is not None
    assert [(one.layers, one.sizing) for one in found.forecast.depths] == [
        (4, "own width"),
        (4, "equal parameters"),
        (12, "own width"),
    ]
    frame = found.table.frame
    rows = frame.filter(frame["layers"] == 12)
    assert rows["value"].to_list() == list(forecast(read_plan("bert-base").outline(16)).cosines)
    assert rows["resolved"].all()
    assert set(frame["variant"]) == {"transformer"}
    passed = next(layer for layer, value in enumerate(rows["value"]) if value > 0.4)
    assert found.forecast.depths[2].passes == passed
    assert found.definitions.keys() == {"cosine[off_diagonal]"}
    assert found.apriori is None


def test_a_random_network_at_one_depth_has_statements() -> None:
    spec = Spec(layers=3, heads=2, dim=8, variant="san+mlp")
    found = predict(spec, seed=5, spread=0.2, target=1e-6, tokens=8)
    own = apriori(build(spec, generators(5)[0]), spread=0.2)
    frame = found.table.frame
    rows = frame.filter(frame["statement"] == "a-priori")
    assert rows["upper"].to_list() == [float(one.upper) for one in own.layers]
    assert rows["lower"].to_list() == [None] * 3
    assert rows["upper_is_zero"].to_list() == [False] * 3
    assert rows["seed"].to_list() == [5] * 3
    assert set(frame["variant"]) == {"san+mlp"}
    told = found.apriori
    assert told is not None
    assert told.layers_until == own.layers_until(1e-6)
    assert told.critical_spread == pytest.approx(float(own.critical.exp()))
    assert not told.keeps_apart
    assert [one.layer for one in found.mlps] == [1, 2, 3]
    whole = json.loads(found.to_json())
    assert [one["lower"] for one in whole["apriori"]["layers"]] == ["nothing"] * 3
    assert whole["provenance"]["network"]["variant"] == "san+mlp"
    assert predict(spec, layers=(2, 3), tokens=8).apriori is None


def test_options_describe_the_same_network_as_a_spec() -> None:
    options = predict(layers=3, heads=2, dim=8, variant="san+mlp", seed=5, tokens=8)
    spec = predict(Spec(layers=3, heads=2, dim=8, variant="san+mlp"), seed=5, tokens=8)
    assert options.table.frame.drop("run").equals(spec.table.frame.drop("run"))
    assert options.words == spec.words


def test_networks_that_keep_every_input_apart() -> None:
    rezero = predict(Spec(layers=2, heads=2, dim=8, variant="transformer", init="rezero"), tokens=4)
    assert rezero.apriori is not None
    assert rezero.apriori.keeps_apart
    assert rezero.headline == ("No input collapses", "good")
    (block,) = build(Spec(layers=1, heads=2, dim=8), generators(0)[0]).blocks
    large = predict(Network([Skip(block)])).apriori
    assert large is not None
    reason = large.layers[0].no_lower[0]
    assert reason.name == "attention branch smaller than its skip"
    assert reason.found > reason.limit
    assert "scale the branch down or the skip up" in reason.meaning


def test_zero_always_and_nothing_are_told_apart() -> None:
    """Values that are zero make all tokens equal: the upper bound is zero, and every spread shrinks."""
    network = build(Spec(layers=1, heads=1, dim=4), generators(0)[0])
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name.endswith("value"):
                weight.zero_()
    found = predict(network, spread=1.0)
    row = found.table.to_json()["rows"][0]
    for name in ("upper", "gain_upper", "total_upper"):
        assert (row[name], row[f"{name}_is_zero"]) == (None, True)
    assert (row["critical"], row["shrinks_always"]) == (None, True)
    (layer,) = json.loads(found.to_json())["apriori"]["layers"]
    assert (layer["upper"], layer["critical"]) == ("zero", "every")
    assert (layer["gain_upper"], layer["total_upper"]) == ("zero", "zero")
    assert found.words[0] == "Proven: every input collapses, every block shrinks every spread."
    assert "always" in str(found)
    (block,) = build(Spec(layers=1, heads=2, dim=8), generators(0)[0]).blocks
    (grows,) = json.loads(predict(Network([Skip(block)]), spread=1.0).to_json())["apriori"]["layers"]
    assert grows["critical"] == "none"
    row = predict(Network([Skip(block)]), spread=1.0).table.to_json()["rows"][0]
    assert (row["critical"], row["shrinks_always"], row["upper_is_zero"]) == (None, False, False)


def test_weights_of_a_model() -> None:
    found = predict("sapiens", weights="trained", spread=1.0, size=2.0)
    assert found.forecast is None
    assert found.table.frame["upper"].is_not_null().all()
    assert found.apriori is not None
    assert any("LayerNorm" in reason.name for reason in found.apriori.layers[0].no_lower)
    again = predict("sapiens", weights="trained", blocks="encoder.layer", spread=1.0, size=2.0)
    assert again.table.frame["upper"].to_list() == found.table.frame["upper"].to_list()


def test_configs_from_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **SMALL}))
    assert read_plan(str(tmp_path)).layers == 4
    assert read_plan(str(tmp_path / "config.json"), placement="pre").outline(4).placement == "pre"
    own = tmp_path / "mine.yaml"
    own.write_text("layers: 3\nheads: 2\ndim: 8\nnorm: layer\n")
    assert read_plan(str(own)).outline(4).has_mlp
    assert read_plan(str(own), placement="pre").outline(4).placement == "pre"


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        ("{", FileError, "cannot read"),
        ("[1]", FileError, "holds a list"),
        ('{"a": 1}', ConfigError, "neither a model_type nor layers"),
        ('{"layers": 2, "headz": 3}', UnknownNameError, "headz"),
        ('{"model_type": "mamba"}', ConfigError, "no forecast for the model type 'mamba'"),
        ('{"model_type": "bert", "hidden_act": "wave"}', UnknownNameError, "wave"),
        ('{"model_type": "bert", "auto_map": {"AutoModel": "x.Y"}}', ConfigError, "code of its own"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str, error: type[Exception], words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(error, match=words):
        read_plan(str(file))


@pytest.mark.parametrize(
    ("source", "config", "words"),
    [
        ("", {}, "no config was named"),
        ("gtp2", {}, "did you mean 'gpt2'"),
        ("./nothing", {}, "no folder or file"),
        ("MobileBert", {}, "bottlenecks"),
        ("gpt2", {"placement": "left"}, "unknown placement"),
        ("gpt2", {"spread": 1.0}, "need weights"),
        ("gpt2", {"weights": "trained"}, "listed with initial weights only"),
        ("gpt2", {"weights": "initial", "layers": (2,)}, "belong to a forecast"),
        ("gpt2", {"dtype": "float32"}, "says how weights are loaded, and none are"),
        ("gpt2", {"heads": 2}, "heads= belongs to a random network, but 'gpt2' was named"),
        ("gpt2", {"target": 0.1}, "such as spread=0.3"),
        (Spec(layers=1, heads=1, dim=4), {"weights": "initial"}, "belongs to a model, but none was named"),
        (
            Spec(layers=1, heads=1, dim=4),
            {"dim": 4},
            "dim= belongs to a random network, but a Spec was named",
        ),
        (Spec(layers=1, heads=1, dim=4), {"layers": (2, 3), "spread": 1.0}, "need weights"),
        (None, {"layers": 2, "device": "cpu"}, "device= says how weights are loaded"),
        (3, {}, "expected the name of a config, a Spec or a tree of parts, got int"),
        (None, {}, "no config was named"),
    ],
)
def test_bad_questions_are_refused(source: Any, config: dict[str, object], words: str) -> None:
    with pytest.raises((ConfigError, FileError, UnknownNameError), match=words):
        predict(source, **config)


def test_numbers_out_of_range_are_refused() -> None:
    for wrong in (
        {"layers": (0,)},
        {"tokens": 1},
        {"cosine": 1.5},
        {"layers": "4,x"},
        {"spread": -1.0},
        {"size": float("inf")},
    ):
        with pytest.raises(ConfigError):
            PredictConfig.of(**wrong)
    with pytest.raises(ConfigError, match="at least one block"):
        equal_parameters(read_plan("gpt2"), 0)


def test_kinds_are_model_types() -> None:
    transformers = pytest.importorskip("transformers")
    assert set(KINDS) <= set(transformers.CONFIG_MAPPING)
