"""``rankscope ablate`` as a person meets it: tables, files, pictures, wrong input."""

import json
import re

import pytest
from click.testing import CliRunner

from kit.checkpoint_folders import bert, bert_config, save, word_tokenizer, write_gguf
from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.errors import FileError
from rankscope.results import Table


def run(*arguments):
    return CliRunner().invoke(app, ["ablate", *map(str, arguments)])


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
    """A tiny BERT with weights in a folder, and a tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny-bert"
    return save(bert(seed=1, initializer_range=0.4), path, tokenizer=word_tokenizer())


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "bare"
    bert_config().save_pretrained(path)
    return path


def test_the_table_says_what_was_cut_and_found(folder):
    lines = good(folder, "--text", "the cat sat on a mat", "--text", "it was small").stdout.splitlines()
    assert re.fullmatch(
        r"tiny-bert: stored weights, clean semantics, float32; the tree equals the model to \de-\d\d",
        lines[0],
    )
    assert (
        lines[1]
        == "2 texts of 4 tokens on average; padding and special tokens are left out, texts are cut to 40 tokens"
    )
    assert [line.partition(")")[0] for line in lines[3:7]] == [
        "attention alone (san",
        "attention with MLPs (san+mlp",
        "attention with skips (san+skip",
        "the full model (transformer",
    ]
    table = lines[lines.index("residual_ratio[composite,mean]") :]
    assert table[1].split() == ["variant", "mask", "0", "1", "2"]
    assert [line.split()[:2] for line in table[3:7]] == [
        [variant, "full"] for variant in ("san", "san+mlp", "san+skip", "transformer")
    ]


def test_untrained_weights_need_a_config_only(bare):
    options = ("--weights", "initial", "--random-tokens", "2x8", "--seeds", 2, "--semantics", "paper")
    result = good(bare, *options)
    assert result.stdout.startswith(
        "bare: initial weights, paper semantics, float32; the tree equals the model"
    )
    assert (
        "2 texts of 8 tokens on average, 2 seeds; random tokens, of which nothing is left out"
        in result.stdout
    )
    assert good(bare, *options).stdout == result.stdout


def test_json_is_one_object_with_sections(folder, tmp_path):
    target = tmp_path / "ablate.json"
    result = good(folder, "--text", "the cat sat", "--blame", "--suggest", "--output", target)
    found = json.loads(target.read_text())
    assert (found["schema"], found["command"]) == ("rankscope/1", "ablate")
    assert {"rows", "provenance", "ablate", "finding", "blame", "suggest", "definitions"} <= set(found)
    assert found["finding"]["cuts"][0]["words"] in result.stderr
    assert Table.load(target).frame.height == len(found["rows"])
    assert {"skip_scale", "blocks", "tokens"} <= set(found["rows"][0])


@pytest.mark.parametrize("ending", ["csv", "html", "parquet", "txt"])
def test_other_formats_are_written(folder, tmp_path, ending):
    good(folder, "--text", "the cat sat", "--output", tmp_path / f"out.{ending}")
    assert (tmp_path / f"out.{ending}").stat().st_size > 500


@pytest.mark.parametrize(
    "more", [(), ("--blame",), ("--split",), ("--split", "--blame"), ("--skip-scale", "own,0.5")]
)
def test_a_picture_is_drawn(folder, tmp_path, more):
    good(folder, "--text", "the cat sat", "--plot", tmp_path / "out.json", *more)
    chart = (tmp_path / "out.json").read_text()
    assert ("change of ln residual_ratio" in chart) == ("--blame" in more)
    assert ("split pass" in chart) == ("--split" in more)
    assert ("transformer, skip 0.5" in chart) == ("own,0.5" in more)


def test_the_page_shows_blame_and_suggestions(folder, tmp_path):
    good(folder, "--text", "the cat sat", "--blame", "--suggest", "--output", tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "attention alone (san)" in text
    assert "does most for collapse" in text or "nothing works for collapse" in text
    assert '<th scope="col">what if</th>' in text
    assert "<script" not in text
    assert Reader(text).handlers == []


def test_blame_and_suggestions_stand_below_the_table(folder):
    text = good(folder, "--text", "the cat sat", "--blame", "--suggest", "--measure", "residual_ratio").stdout
    full = "the full model (transformer)"
    assert text.index(f"\nblame of {full}\n") < text.index(f"\nwhat would help {full}\n")
    assert re.search(r"^block +attention +skip +norm +mlp +sum$", text, flags=re.MULTILINE)
    assert re.search(r"^skip-scale 0.5 ", text, flags=re.MULTILINE)


def test_blame_and_suggestions_name_the_network_they_are_about(folder, tmp_path):
    options = (folder, "--text", "the cat sat", "--blame", "--suggest", "--blocks", "2", "--mask", "causal")
    text = good(*options).stdout
    named = "the full model (transformer), mask causal, changed in block 2"
    assert f"\nblame of {named}\n" in text
    assert f"\nwhat would help {named}\n" in text
    good(*options, "--output", tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert f"<h3>Blame of {named}</h3>" in page
    assert f"<h3>What would help {named}</h3>" in page


def test_random_networks_in_place_of_a_model():
    text = good("--layers", 3, "--norm", "layer", "--mask", "own,causal", "--sites", "block,final").stdout
    assert text.startswith("random: random weights, clean semantics, float64\n")
    assert "(san), mask causal, " in text
    assert re.search(r"^variant +mask +site +0 +1 +2 +3$", text, flags=re.MULTILINE)


def test_deep_models_show_some_layers(tmp_path):
    text = good(
        "--layers", 40, "--dim", 16, "--heads", 2, "--tokens", 4, "--measure", "residual_ratio"
    ).stdout
    header = next(line for line in text.splitlines() if line.startswith("variant"))
    assert header.split()[2:] == [*(str(layer) for layer in range(0, 40, 3)), "40"]
    assert "some layers; " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("bert-base", "--weights", "trained"), "use --weights initial"),
        (("{folder}", "--layers", "3"), "--layers belongs to a random network"),
        (("{folder}", "--texts", "a.txt", "--text", "b"), "not both"),
        (("{folder}", "--blocks", "99"), "block 99 does not exist: the model has blocks 1 to 2"),
        (("{folder}", "--skip-scale", "x"), "skip scale 'x'"),
        (("{folder}", "--random-tokens", "8"), "expected TxN"),
        (("{folder}", "--norm", "layer"), "unknown norm 'layer'"),
        (("{folder}", "--weights", "initail"), "did you mean 'initial'"),
        (("{folder}", "--seeds", "2", "--seed", "1"), "not both"),
        (("{folder}", "--mask", "window:x"), "must be a whole number"),
        (("{folder}", "--semantics", "paper", "--norm", "none"), "the paper's code always keeps the norms"),
        (("{bare}", "--weights", "initial"), "use --random-tokens"),
        (("{bare}", "--weights", "initial", "--random-tokens", "2x99"), "positions for 40 tokens"),
        (("{gguf}", "--weights", "initial"), "drawn from a config.json"),
        (("--layers", "2", "--semantics", "paper"), "no other model, got 'random'"),
        (("--layers", "2", "--heads", "5"), "does not divide"),
        (("--layers", "2", "--output", "/no/such/folder/x.json"), "cannot write"),
    ],
)
def test_wrong_input_is_one_line(arguments, words, folder, bare, tmp_path):
    names = {"{folder}": folder, "{bare}": bare, "{gguf}": tmp_path / "model.gguf"}
    if "{gguf}" in arguments:
        write_gguf(tmp_path / "model.gguf")
    assert words in failed(*(names.get(argument, argument) for argument in arguments))


def test_an_unknown_architecture_is_run_as_it_is_and_said_so(tmp_path):
    import transformers

    save(
        transformers.FunnelModel(
            transformers.FunnelConfig(
                block_sizes=[1], d_model=8, n_head=2, d_head=4, d_inner=8, vocab_size=30
            )
        ),
        tmp_path,
    )
    assert "what is run as it is: modeling_funnel.py:" in good(tmp_path, "--random-tokens", "1x6").stdout


def test_results_are_not_lost_when_they_cannot_be_written(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise FileError("the disk is full")

    monkeypatch.setattr("rankscope.results.write_atomically", broken)
    words = failed("--layers", "2", "--output", tmp_path / "a.json")
    kept = re.search(r"the disk is full; the results are in (\S+)", words)
    assert Table.load(kept[1]).command == "ablate"


def test_untrained_names_are_listed():
    listed = CliRunner().invoke(app, ["list", "models", "--format", "json"]).stdout
    names = {row["name"]: row["weights"] for row in json.loads(listed)["rows"]}
    assert names["bert-base"] == names["llama-small"] == "initial"
    assert names["minilm"] == "trained"
