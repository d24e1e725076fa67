"""``rankscope ablate`` as a person meets it: tables, files, pictures, wrong input."""

import json
import re

import pytest
from click.testing import CliRunner

from kit.checkpoint_folders import bert, bert_config, save, word_tokenizer, write_gguf
from kit.html_reader import Reader
from rankscope.cli import app
from rankscope.errors import FileError
from rankscope.findings.ablate import AblateFinding


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


PARTS = "What each part does to the residual ratio (Frobenius norm) of"


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "bare"
    bert_config().save_pretrained(path)
    return path


def test_the_page_says_what_was_cut_and_found(folder):
    lines = good(folder, "--text", "the cat sat on a mat", "--text", "it was small").stdout.splitlines()
    assert lines[:3] == [
        "Ablation of tiny-bert",
        "stored weights, computed in float32",
        "no attention mask: every token reads all tokens; normalisation: LayerNorm",
    ]
    assert re.fullmatch(
        r"what is run is a copy of the model .* on the first batch .* by at most \de-\d of their length",
        lines[3],
    )
    assert lines[4:7] == [
        "2 texts of 4.5 tokens on average",
        "not measured or counted: padding, and special tokens such as [CLS], which attention does read; texts are cut "
        "to 40 tokens, special ones included",
        "",
    ]
    first = 7
    assert "How to read this" in lines[first:]
    assert lines[first].endswith(("do not.", "does not.", "collapse.", "collapses."))  # the conclusion
    assert [line.partition(")")[0] for line in lines[first + 1 : first + 5]] == [
        "Attention alone (san",
        "Attention with MLPs (san+mlp",
        "Attention with skips (san+skip",
        "The full model (transformer",
    ]
    table = lines[lines.index("Residual ratio (composite norm): residual_ratio[composite,mean]") :]
    assert table[1].split() == ["variant", "0", "1", "2"]
    assert [line.split()[0] for line in table[3:7]] == ["san", "san+mlp", "san+skip", "transformer"]


def test_untrained_weights_need_a_config_only(bare):
    options = ("--weights", "initial", "--random-tokens", "2x8", "--seeds", 2, "--semantics", "paper")
    result = good(bare, *options)
    assert result.stdout.startswith(
        "Ablation of bare\ninitial weights, computed in float32\n"
        "parts are left out as the code of Dong et al. does (semantics paper)\n"
    )
    assert (
        "2 texts of 8 tokens, 2 seeds, from random tokens 2x8\nrandom tokens, all of them measured"
        in result.stdout
    )
    assert good(bare, *options).stdout == result.stdout


def test_json_is_one_object_that_loads_again(folder, tmp_path):
    target = tmp_path / "ablate.json"
    good(folder, "--text", "the cat sat", "--blame", "--suggest", "--output", target)
    found = json.loads(target.read_text())
    assert (found["schema"], found["command"]) == ("rankscope/2", "ablate")
    assert {"rows", "provenance", "subject", "cuts", "blame", "suggest", "definitions", "words"} <= set(found)
    assert {"skip_scale", "blocks", "tokens"} <= set(found["rows"][0])
    again = AblateFinding.load(target)
    assert list(again.words) == found["words"]
    assert len(again.table.frame) == len(found["rows"])
    assert {one["kind"] for one in found["suggest"]["what_ifs"]} >= {"mask", "skip-scale"}
    assert found["blame"]["most_for"] in (*found["blame"]["kinds"], None)
    assert (found["subject"]["inputs"], found["subject"]["read"]) == ("a list", "texts")


@pytest.mark.parametrize("ending", ["csv", "html", "parquet", "txt"])
def test_other_formats_are_written(folder, tmp_path, ending):
    good(folder, "--text", "the cat sat", "--output", tmp_path / f"out.{ending}")
    assert (tmp_path / f"out.{ending}").stat().st_size > 500


@pytest.mark.parametrize(
    "more",
    [(), ("--blame",), ("--split",), ("--split", "--blame", "--suggest"), ("--skip-scales", "own,0.5")],
)
def test_a_picture_is_drawn(folder, tmp_path, more):
    good(folder, "--text", "the cat sat", "--plot", tmp_path / "out.svg", *more)
    chart = (tmp_path / "out.svg").read_text()
    assert ("change of ln residual ratio" in chart) == ("--blame" in more)
    assert ("ordinary arithmetic" in chart) == ("--split" in more)
    assert ("transformer, skip 0.5" in chart) == ("own,0.5" in more)
    assert ("further apart" in chart) == ("--suggest" in more)


def test_the_page_shows_blame_and_suggestions(folder, tmp_path):
    good(folder, "--text", "the cat sat", "--blame", "--suggest", "--output", tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert "Attention alone (san)" in text
    assert "lowers it most" in text
    assert "What if: other changes to" in text
    assert "<script" not in text
    assert Reader(text).handlers == []


def test_blame_and_suggestions_stand_below_the_table(folder):
    text = good(
        folder, "--text", "the cat sat", "--blame", "--suggest", "--measures", "residual_ratio"
    ).stdout
    full = "the full model (transformer)"
    assert text.index(f"\n{PARTS} {full}\n") < text.index(
        f"\nWhat if: other changes to {full}, the largest gain first\n"
    )
    assert re.search(r"^block +attention +skip +norm +mlp +sum$", text, flags=re.MULTILINE)
    assert re.search(r"^skip-scale:0.5 ", text, flags=re.MULTILINE)
    assert len(re.findall(r"^skip-scale:2 ", text, flags=re.MULTILINE)) == 1  # a remedy, and listed once
    assert "keeps tokens furthest apart" not in text  # the ranking of remedies is the only one


def test_blame_and_suggestions_name_the_network_they_are_about(folder, tmp_path):
    options = (folder, "--text", "the cat sat", "--blame", "--suggest")
    options += ("--only-blocks", "2", "--masks", "causal")
    text = good(*options).stdout
    named = "the full model (transformer), mask causal, changed in block 2"
    assert f"\n{PARTS} {named}\n" in text
    assert f"\nWhat if: other changes to {named}, the largest gain first\n" in text
    good(*options, "--output", tmp_path / "out.html")
    assert f"{PARTS} {named}" in (tmp_path / "out.html").read_text()


def test_random_networks_in_place_of_a_model():
    text = good("--layers", 3, "--norm", "layer", "--masks", "own,causal", "--sites", "block,final").stdout
    assert text.startswith("Ablation of a random network\nrandom weights, computed in float64\n")
    assert "(san) with mask causal " in text
    assert re.search(r"^variant +mask +site +0 +1 +2 +3$", text, flags=re.MULTILINE)


def test_former_names_of_options_still_work():
    small = ("--layers", 2, "--dim", 8, "--heads", 2, "--tokens", 4)
    old = ("--variant", "san+skip", "--mask", "causal", "--skip-scale", "0.5", "--measure", "residual_ratio")
    new = (
        "--variants",
        "san+skip",
        "--masks",
        "causal",
        "--skip-scales",
        "0.5",
        "--measures",
        "residual_ratio",
    )
    assert good(*small, *old).stdout == good(*small, *new).stdout
    shown = run("--help").stdout
    assert "--variants" in shown
    assert "--variant " not in shown


def test_deep_models_show_some_layers():
    text = good(
        "--layers", 40, "--dim", 16, "--heads", 2, "--tokens", 4, "--measures", "residual_ratio"
    ).stdout
    header = next(line for line in text.splitlines() if line.startswith("variant"))
    layers = [int(one) for one in header.split()[1:]]
    assert (layers[0], layers[-1]) == (0, 40)
    assert len(layers) < 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no model was named"),
        (("bert-base", "--weights", "trained"), "use --weights initial"),
        (("{folder}", "--layers", "3"), "--layers belongs to a random network"),
        (("{folder}", "--texts", "a.txt", "--text", "b"), "not both"),
        (("{folder}", "--only-blocks", "99"), "block 99 does not exist: the model has blocks 1 to 2"),
        (("{folder}", "--blocks", "1,2"), "to change these blocks only, ask for --only-blocks 1,2"),
        (("{folder}", "--skip-scales", "x"), "--skip-scales x: expected a finite number"),
        (("{folder}", "--random-tokens", "8"), "expected TxN"),
        (("{folder}", "--norm", "layer"), "--norm layer is of random networks"),
        (("{folder}", "--weights", "initail"), "did you mean 'initial'"),
        (("{folder}", "--seeds", "2", "--seed", "1"), "not both"),
        (("{folder}", "--masks", "window:x"), "must be a whole number"),
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
    assert "what is run as it is (modeling_funnel.py:" in good(tmp_path, "--random-tokens", "1x6").stdout


def test_results_are_not_lost_when_they_cannot_be_written(monkeypatch, tmp_path):
    def broken(*_, **__):
        raise FileError("the disk is full")

    monkeypatch.setattr("rankscope.results.write_atomically", broken)
    words = failed("--layers", "2", "--output", tmp_path / "a.json")
    kept = re.search(r"the disk is full; the results are in (\S+)", words)
    assert AblateFinding.load(kept[1]).command == "ablate"


def test_untrained_names_are_listed():
    listed = CliRunner().invoke(app, ["list", "models", "--format", "json"]).stdout
    names = {row["name"]: row["weights"] for row in json.loads(listed)["rows"]}
    assert names["bert-base"] == names["llama-small"] == "initial"
    assert names["minilm"] == "trained"
