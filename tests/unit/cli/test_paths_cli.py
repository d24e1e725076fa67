"""``rankscope paths`` as a person meets it: tables, files, pictures, wrong input."""

import json
import re

import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit.checkpoint_folders import bert, save, word_tokenizer
from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.errors import ConfigError, FileError
from rankscope.findings.base import Finding
from rankscope.findings.paths import PathsFinding
from rankscope.network import Spec, build, gaussian_tokens, generators
from rankscope.pathways import spectrum

RANDOM = ("--layers", 3, "--heads", 2, "--dim", 8, "--tokens", 6)


def run(*arguments):
    return CliRunner().invoke(app, ["paths", *map(str, arguments)])


def good(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def failed(*arguments):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny-bert"
    return save(bert(seed=1, initializer_range=0.4), path, tokenizer=word_tokenizer())


def test_the_numbers_of_a_random_network_are_those_of_the_library():
    told = json.loads(good(*RANDOM, "--variant", "san+skip", "--seed", 3, "--format", "json").stdout)
    weights, for_tokens = generators(3)
    whole = build(Spec(layers=3, heads=2, dim=8, variant="san+skip"), weights)
    found = spectrum(whole, gaussian_tokens(6, 8, generator=for_tokens))
    reading = found.read()
    assert told["schema"] == "rankscope/2"
    assert told["command"] == "paths"
    assert told["identity"]["relative_error"] < 1e-14
    assert told["identity"]["paths"] == 27
    assert told["identity"]["mean_length"] == 2.0
    assert [entry["paths"] for entry in told["spectrum"]] == [1, 6, 12, 8]
    for entry in told["spectrum"]:
        for name in ("norm", "residual", "share", "cosine", "cosine_to_output"):
            assert entry[name] == pytest.approx(float(getattr(reading, name)[entry["length"]]), rel=1e-9)
    assert sum(entry["share"] for entry in told["spectrum"]) == pytest.approx(1, rel=1e-12)
    assert sum(entry["share"] for entry in told["sources"]) == pytest.approx(1, rel=1e-12)
    assert len(told["heads"]) == 6
    assert told["search"]["exact"]
    assert len(told["top"]) == 20
    assert sorted((entry["norm"] for entry in told["top"]), reverse=True) == [e["norm"] for e in told["top"]]


def test_scores_that_are_rounding_have_no_rank_and_prove_nothing():
    asked = (
        "--layers",
        5,
        "--heads",
        2,
        "--dim",
        8,
        "--tokens",
        6,
        "--variant",
        "san",
        "--score",
        "residual",
        "--top",
        4,
    )
    told = json.loads(good(*asked, "--format", "json").stdout)
    assert not told["search"]["exact"]
    assert (told["search"]["gap"], told["search"]["ranked"], told["search"]["waiting"]) == (None, 0, 0)
    assert [(entry["rank"], entry["ranked"], entry["resolved"]) for entry in told["top"]] == [
        (place, False, False) for place in (1, 2, 3, 4)
    ]
    text = good(*asked).stdout
    assert "the residuals of all 4 that were found are rounding, which has no order" in text
    assert "The list is not proven complete: the residuals are rounding, which has no order." in text
    assert "is proven complete" not in text


def test_a_model_on_a_text_with_everything_asked_for(folder):
    asked = (
        "--text",
        "the cat sat on a mat",
        "--pairs",
        "--sample",
        3,
        "--prune",
        "--count-mlps",
        "--top",
        5,
    )
    told = json.loads(good(folder, *asked, "--seconds", 5, "--format", "json").stdout)
    assert told["identity"]["relative_error"] < 1e-12
    assert told["identity"]["dtype"] == "float64"
    assert {entry["source"] for entry in told["sources"]} > {"input", "value bias", "norm bias", "mlp bias"}
    assert {entry["mode"] for entry in told["samples"]} == {"frozen", "isolated", "official"}
    assert {entry["mode"] for entry in told["gaps"]} == {"isolated", "official"}
    assert {curve["method"] for curve in told["pruning"]["curves"]} == {"paths", "magnitude", "random"}
    assert sum(entry["share"] for entry in told["mlps"]) == pytest.approx(1, rel=1e-12)
    assert len(told["top"]) == 5
    assert told["pairs"][0]["first"]["layer"] <= told["pairs"][0]["second"]["layer"]
    text = good(folder, *asked, "--seconds", 5).stdout
    for heading in (
        "The sum of what all paths of one length add.",
        "Shares by length and number of MLPs",
        "The sum of what all paths through a head add.",
        "Single paths from the input, largest norm first",
        "What all paths through two heads add",
        "By source",
        "Residual ratio of a single path",
        "Change of the output when this many heads are removed",
    ):
        assert heading in text
        text = text[text.index(heading) :]  # in this order


def test_several_texts_are_averaged_and_keep_rows_of_their_own(folder):
    both = ("--text", "the cat sat on a mat", "--text", "it was small")
    told = json.loads(good(folder, *both, "--top", 0, "--format", "json").stdout)
    alone = [json.loads(good(folder, "--text", t, "--top", 0, "--format", "json").stdout) for t in both[1::2]]
    for entry, first, second in zip(told["spectrum"], *(one["spectrum"] for one in alone), strict=True):
        assert entry["share"] == pytest.approx((first["share"] + second["share"]) / 2, rel=1e-9)
    assert {row["sample"] for row in told["rows"]} == {0, 1}
    assert told["top"] == []
    share = {
        (row["sample"], row["length"]): row["value"]
        for row in told["rows"]
        if row["kind"] == "length" and row["definition"] == "share[residual]"
    }
    for text, one in enumerate(alone):
        for entry in one["spectrum"]:
            assert share[text, entry["length"]] == pytest.approx(entry["share"], rel=1e-9)


def test_files_pictures_and_a_report(folder, tmp_path):
    asked = (folder, "--text", "the cat sat", "--seconds", 5, "--pairs")
    good(*asked, "--output", tmp_path / "a.json", "--plot", tmp_path / "a.png")
    found = PathsFinding.load(tmp_path / "a.json")
    assert found.identity.holds
    assert found.table.command == "paths"
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    page = good(*asked, "--format", "html").stdout
    Reader(page)  # well-formed
    assert "<script" not in page
    assert "tiny-bert" in page


def test_a_network_without_skips_has_one_length():
    text = good(*RANDOM).stdout
    assert "All 8 paths have length 3: no skip leads around an attention." in text


def test_float32_is_allowed_its_rounding(folder):
    asked = ("--random-tokens", "1x6", "--dtype", "float32", "--top", 0, "--format", "json")
    told = json.loads(good(folder, *asked).stdout)
    assert told["identity"]["dtype"] == "float32"
    assert 1e-12 < told["identity"]["relative_error"] < 1e-4
    assert told["identity"]["allowed"] == 1e-4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("--layers", 2, "--top", 500, "--heads", 2), "the network has 4"),
        ((*RANDOM, "--dtype", "bfloat16"), "float64 or float32, not in bfloat16"),
        ((*RANDOM, "--score", "loudness"), "unknown score 'loudness'"),
        ((*RANDOM, "--mlps", "around"), "unknown mlps 'around'"),
        ((*RANDOM, "--variant", "sam"), "unknown variant 'sam'"),
        ((*RANDOM, "--mask", "windw:2"), "windw"),
        ((*RANDOM, "--sample", 1), "--sample 1: an interval needs at least two paths"),
        ((*RANDOM, "--seconds", -1), "--seconds -1"),
        ((*RANDOM, "--text", "a"), "belongs to a model"),
        ((*RANDOM, "--top", -1), "--top -1"),
        (("no-such-folder/x", "--text", "a", "--layers", 3), "belongs to a random network"),
    ],
    ids=str,
)
def test_wrong_input_is_one_line(arguments, words):
    assert words in failed(*arguments)


def test_a_full_disk_loses_nothing(folder, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise FileError("no space left")

    monkeypatch.setattr("rankscope.results.write_atomically", full)
    words = failed(folder, "--text", "the cat sat", "--top", 0, "--output", tmp_path / "a.json")
    place = re.search(r"the results are in (\S+)", words).group(1)
    assert Finding.load(place).command == "paths"


def tree(**spec):
    network = build(Spec(layers=2, heads=2, dim=8, **spec), torch.Generator().manual_seed(0))
    return network, gaussian_tokens(5, 8, generator=torch.Generator().manual_seed(1))


def test_a_tree_that_the_user_passes():
    network, x = tree(variant="transformer")
    found = rs.paths(network, inputs=x, top=3, score="residual")
    assert found.identity.paths == 9
    assert found.search.score == "residual"
    assert found.subject.model == "tree"
    with pytest.raises(ConfigError, match="layers= belongs to a random network, but a model was named"):
        rs.paths(network, inputs=x, layers=3)


def test_the_verb_takes_fields_a_configuration_or_a_spec():
    fields = {
        "layers": 2,
        "heads": 2,
        "dim": 8,
        "tokens": 5,
        "variant": "san+skip",
        "mask": "causal",
        "top": 0,
    }
    first = rs.paths(**fields)
    again = rs.paths(rs.PathsConfig(**fields))
    spec = rs.paths(Spec(layers=2, heads=2, dim=8, variant="san+skip", mask="causal"), tokens=5, top=0)
    values = [one.table.frame["value"].to_list() for one in (first, again, spec)]
    assert values[0] == values[1] == values[2]
    assert [one.subject.variant for one in (first, again, spec)] == ["san+skip"] * 3
    assert [one.subject.mask for one in (first, again, spec)] == ["causal"] * 3
    assert spec.provenance["config"]["heads"] == first.provenance["config"]["heads"] == 2
    with pytest.raises(ConfigError, match="top= was given beside a configuration"):
        rs.paths(rs.PathsConfig(**fields), top=1)


def test_the_former_name_warns_and_knows_its_former_options():
    network, x = tree(variant="transformer", norm="layer", placement="pre")
    with pytest.warns(DeprecationWarning, match=r"rs\.decompose is now called rs\.paths"):
        found = rs.decompose(network, inputs=x, top=0, final_norm=False, load={"trust_remote_code": False})
    assert found.identity.end == "before the final norm"
    assert found.top == ()


def test_what_is_being_computed_is_said_with_the_number_of_texts():
    network, x = tree()
    steps = []
    rs.paths(
        network,
        inputs=torch.stack([x, x]),
        pairs=True,
        prune=True,
        sample=2,
        advance=lambda *a: steps.append(a),
    )
    assert steps[:6] == [
        (0, 2, what) for what in ("lengths", "heads", "pairs", "top paths", "pruning", "samples")
    ]
    assert steps[6:] == [(1, 2, what) for what in ("lengths", "heads", "pairs")]


def test_norms_of_heads_can_be_left_out():
    asked = (*RANDOM, "--top", 0, "--format", "json")
    bare = json.loads(good(*asked, "--no-vectors").stdout)
    full = json.loads(good(*asked, "--vectors").stdout)
    assert {entry["norm"] for entry in bare["heads"]} == {None}
    assert None not in {entry["norm"] for entry in full["heads"]}
    assert [entry["share"] for entry in bare["heads"]] == [entry["share"] for entry in full["heads"]]
    assert all(entry["share_floor"] > 0 for entry in bare["heads"])


def test_a_mixture_of_experts_needs_its_outputs_as_sources(tmp_path):
    from transformers import MixtralConfig

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_local_experts": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    MixtralConfig(vocab_size=50, max_position_embeddings=32, **sizes, **heads).save_pretrained(tmp_path)
    asked = (tmp_path, "--weights", "initial", "--random-tokens", "1x6")
    assert "mlps='source'" in failed(*asked)
    told = json.loads(good(*asked, "--mlps", "source", "--format", "json").stdout)
    assert told["identity"]["relative_error"] < 1e-10
    assert "mlp" in {entry["source"] for entry in told["sources"]}
