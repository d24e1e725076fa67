"""Models in place of saved scans: scanned alike, in order, and refused by name where they do not belong together."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import rankscope as rs
from kit.checkpoint_folders import bert, word_tokenizer
from kit.compare_tables import random_scan
from rankscope.cli import app
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.findings.compare import LAST_SHOWN
from rankscope.studies import compare, compared_models
from rankscope.studies.compared_models import natural, series_of

TEXTS = [
    "the cat sat on the mat",
    "a dog was very small indeed",
    "every day it sat and sat",
    "it was the dog",
]
RANK = "effective_rank[entropy]"


def save(folder: Path, *, seed: int = 0, collapse: float = 0.0, **changes) -> Path:
    """A checkpoint whose tokens become the more equal, the larger ``collapse`` is: one vector is added to all."""
    model = bert(seed=seed, **changes)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.output.LayerNorm.bias.add_(collapse)
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """Checkpoints of a run, named as trainers name them, beside files that are none."""
    home = tmp_path_factory.mktemp("run")
    for step in (90, 500, 1000):
        save(home / f"checkpoint-{step}", collapse=step / 200)
    (home / "logs").mkdir()
    (home / "trainer_state.json").write_text("{}")
    return home


@pytest.fixture(scope="module")
def texts_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "dev.txt"
    path.write_text("\n".join(TEXTS))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def failed(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def test_two_models_are_what_their_scans_are(run_folder: Path, texts_file: Path, tmp_path: Path) -> None:
    """The same rows as comparing two saved scans of the same texts."""
    names = [str(run_folder / "checkpoint-90"), str(run_folder / "checkpoint-1000")]
    found = rs.compare(*names, texts=TEXTS)
    for place, name in enumerate(names):
        rs.scan(name, texts=TEXTS).save(tmp_path / f"{place}.json")
    saved = rs.compare(tmp_path / "0.json", tmp_path / "1.json")
    assert found.table.frame.drop("run", "scan").equals(saved.table.frame.drop("run", "scan"))
    assert [one.name for one in found.compare.scans] == ["checkpoint-90", "checkpoint-1000"]
    by_command = json.loads(run(*names, "--texts", texts_file, "--format", "json").stdout)
    assert [row["value"] for row in by_command["rows"]] == found.table.frame["value"].to_list()
    assert found.last.is_paired


def test_the_first_sentence_is_about_the_last_block(run_folder: Path) -> None:
    found = rs.compare(str(run_folder / "checkpoint-90"), str(run_folder / "checkpoint-1000"), texts=TEXTS)
    last = {one.scan: one for one in found.lasts if one.definition == RANK}
    before, after = (last[f"checkpoint-{step}"] for step in (90, 1000))
    assert after.value < before.value
    assert after.significant
    assert found.words[0].startswith(
        f"Rank after the last block fell from {before.value:.3g} to {after.value:.3g}"
    )
    assert found.words[0].endswith(", beyond the spread over texts.")
    row = found.table.where(definition=RANK, site="block", layer=2).frame.row(0, named=True)
    assert (row["before"], row["after"], row["change"]) == (before.value, after.value, after.change)
    back = rs.compare(str(run_folder / "checkpoint-1000"), str(run_folder / "checkpoint-90"), texts=TEXTS)
    assert "rose from" in back.words[0]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"change": lambda d, layer, s: -0.4 if d == RANK else 0.0}, "fell from 21."),
        ({"change": lambda d, layer, s: 0.4 if d == RANK else 0.0}, "rose from 21."),
        ({}, "went from 21."),
        ({"seed": 0}, "stayed at 21.2, up to rounding."),
        ({"tokens": (9,)}, "without a spread over texts, that may be chance."),
    ],
)
def test_a_change_of_the_last_block_is_told_from_chance_and_rounding(after, said: str) -> None:
    base = {"tokens": after["tokens"]} if "tokens" in after else {}
    found = rs.compare(random_scan("a", **base), random_scan("b", **({"seed": 1} | after)))
    assert found.words[0].startswith("Rank after the last block ")
    assert said in found.words[0]


def test_where_ranks_stay_the_residual_ratio_leads() -> None:
    ratio = LAST_SHOWN[1][1]
    found = rs.compare(
        random_scan("a"), random_scan("b", seed=1, change=lambda d, *_: -0.4 if d == ratio else 0.0)
    )
    assert found.words[0].startswith("Residual ratio after the last block fell from 0.7")


def test_depths_that_differ_compare_last_block_with_last_block() -> None:
    found = rs.compare(
        random_scan("a", layers=3),
        random_scan("b", layers=5, seed=1, change=lambda d, *_: -0.3 if d == RANK else 0.0),
    )
    assert "Rank after the last block fell" in found.words[0]
    assert [one.layer for one in found.lasts if one.definition == RANK] == [3, 5]


def test_every_stack_has_its_sentence_and_row() -> None:
    found = rs.compare(
        random_scan("a", stacks=("encoder", "decoder")),
        random_scan(
            "b", stacks=("encoder", "decoder"), seed=1, change=lambda d, *_: -0.3 if d == RANK else 0.0
        ),
    )
    assert [one.split(" fell")[0] for one in found.words[:2]] == [
        "Rank after the last block of encoder",
        "Rank after the last block of decoder",
    ]
    table = str(found).partition("After the last block\n")[2].partition("\n\n")[0]
    assert table.count("decoder") == 2


# series


def test_a_folder_of_checkpoints_is_a_series_by_step(
    run_folder: Path, texts_file: Path, tmp_path: Path
) -> None:
    result = run(
        run_folder, "--texts", texts_file, "--plot", tmp_path / "x.svg", "--output", tmp_path / "x.html"
    )
    assert result.exit_code == 0, result.output
    found = rs.compare(run_folder, texts=TEXTS)
    assert [one.name for one in found.compare.scans] == ["checkpoint-90", "checkpoint-500", "checkpoint-1000"]
    assert found.trend.order == "by training step"
    assert found.trend.x == (90, 500, 1000)
    assert "over 3 scans" in found.words[0]
    ranks = [one.value for one in found.lasts if one.definition == RANK]
    assert ranks == sorted(ranks, reverse=True)
    panel = found.chart().pictures[0]
    assert [point.x for point in panel.lines[0].points] == [90, 500, 1000]
    assert [point.y for point in panel.lines[0].points] == ranks
    assert "Rank after the last block" in (tmp_path / "x.html").read_text()
    assert "training step" in (tmp_path / "x.svg").read_text()
    rows = str(found).partition("After the last block\n")[2].partition("\n\n")[0].splitlines()[-3:]
    assert [row.split()[1] for row in rows] == ["90", "500", "1000"]


def snapshot(folder: Path) -> dict[str, int]:
    return {str(one): one.stat().st_mtime_ns for one in folder.rglob("*")}


def test_scans_of_a_run_are_kept_in_a_folder_and_not_made_again(
    run_folder: Path, texts_file: Path, tmp_path: Path, monkeypatch
) -> None:
    before, audit = snapshot(run_folder), tmp_path / "audit"
    result = run(run_folder, "--texts", texts_file, "--output", audit)
    assert result.exit_code == 0, result.output
    assert sorted(one.name for one in audit.iterdir() if one.is_file()) == [
        *(".lock", "compare.html", "compare.json", "ledger.sqlite"),
    ]
    plain = rs.compare(run_folder, texts=str(texts_file)).table.frame.drop("run")
    assert rs.CompareFinding.load(audit / "compare.json").table.frame.drop("run").equals(plain)
    monkeypatch.setattr(compared_models, "scan", lambda *_, **__: pytest.fail("scanned again"))
    again = rs.compare(run_folder, texts=str(texts_file), folder=audit)
    assert again.table.frame.drop("run").equals(plain)
    crossed = run(run_folder, "--texts", texts_file, "--output", audit, "--fail-if", "residual_ratio>0")
    assert crossed.exit_code == 1  # a limit on what was measured anyway reads the scans that are there
    monkeypatch.undo()
    assert (
        run(run_folder, "--texts", texts_file, "--output", audit, "--fail-if", "diameter[l1]<0").exit_code
        == 0
    )
    assert snapshot(run_folder) == before
    assert "in the run itself" in failed(run_folder, "--texts", texts_file, "--output", run_folder / "audit")
    assert "another compare" in failed(
        run_folder, "--texts", texts_file, "--max-tokens", 3, "--output", audit
    )
    texts_file.with_name("other.txt").write_text("other texts\nthe dog sat\n")
    assert "another compare" in failed(
        run_folder, "--texts", texts_file.with_name("other.txt"), "--output", audit
    )


def test_every_so_many_and_the_last_and_limits_for_a_pipeline(run_folder: Path, texts_file: Path) -> None:
    every = rs.compare(run_folder, texts=TEXTS, every=2)
    assert [one.name for one in every.compare.scans] == ["checkpoint-90", "checkpoint-1000"]
    asked = (run_folder, "--texts", texts_file)
    assert run(*asked, "--fail-if", "residual_ratio<1e-9").exit_code == 0
    whole = rs.compare(run_folder, texts=TEXTS)
    first, *_, last = [one.value for one in whole.lasts if one.definition == "cosine[off_diagonal]"]
    crossed = run(*asked, "--fail-if", f"cosine>{(first + last) / 2}")
    assert crossed.exit_code == 1
    assert "holds in checkpoint-1000" in crossed.stderr
    assert "checkpoint-90" not in crossed.stderr
    assert "--idle" in failed(*asked, "--idle", 3)
    assert "--follow" in failed(*asked, "--follow")
    assert "rankscope" in failed(*asked, "--fail-if", "nonsense<>3")


def test_following_a_run_takes_new_checkpoints_and_stops_at_a_limit(
    texts_file: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(compared_models, "SETTLED", -1.0)
    monkeypatch.setattr(compare, "LOOKED_AGAIN", 0.01)
    home, seen = tmp_path / "run", list[list[str]]()
    for step in (1, 2):
        save(home / f"checkpoint-{step}")

    def keep(found) -> None:
        seen.append([one.name for one in found.compare.scans])
        save(home / f"checkpoint-{len(seen) + 2}", collapse=9.0 if len(seen) == 2 else 0.0)

    ends = rs.compare(save(tmp_path / "plain"), save(tmp_path / "fallen", collapse=9.0), texts=TEXTS).lasts
    limit = sum(one.value for one in ends if one.definition == "cosine[off_diagonal]") / 2
    asked = {"texts": str(texts_file), "follow": True, "folder": tmp_path / "audit"}
    asked["fail_if"] = (f"cosine>{limit}",)
    found = rs.compare(home, save=keep, **asked)
    assert seen == [[f"checkpoint-{step}" for step in range(1, last + 1)] for last in (2, 3, 4)]
    assert [(one.scan, one.outcome) for one in found.limits] == [("checkpoint-4", "crossed")]
    still = rs.compare(home, idle=0.05, **asked | {"fail_if": ("cosine>2",)}, save=lambda _: None)
    assert still.limits == ()
    with pytest.raises(FileError, match="there is no folder"):
        rs.compare(tmp_path / "none", **asked)


def test_a_model_that_holds_checkpoints_is_a_series_alone_and_a_model_beside_others(
    run_folder: Path, tmp_path: Path
) -> None:
    home = save(tmp_path / "out", collapse=9.0)
    for step in (10, 9):
        save(home / f"checkpoint-{step}", collapse=step / 10)
    assert [one.name for one in rs.compare(home, texts=TEXTS).compare.scans] == [
        "checkpoint-9",
        "checkpoint-10",
    ]
    both = rs.compare(home, run_folder / "checkpoint-90", texts=TEXTS)
    assert [one.name for one in both.compare.scans] == ["out", "checkpoint-90"]


def test_a_folder_of_saved_scans_is_a_series(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        random_scan("m", seed=step).save(tmp_path / f"step{step}.json")
    found = rs.compare(tmp_path)
    assert found.trend.scans == ("step3", "step20", "step100")
    assert found.trend.x == (3, 20, 100)


def test_names_without_numbers_are_in_their_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        random_scan("m", seed=ord(name)).save(tmp_path / f"{name}.json")
    found = rs.compare(tmp_path)
    assert found.trend.scans == ("a", "b", "c")
    assert found.trend.order == "in the order the scans were given"
    assert [one.name for one in series_of(tmp_path)] == ["a", "b", "c"]
    assert sorted(["v10b2", "v9", "v10b10", "x"], key=natural) == ["v9", "v10b2", "v10b10", "x"]


# what models read


def test_texts_are_cut_alike_where_one_model_has_fewer_positions(tmp_path: Path) -> None:
    save(tmp_path / "short", max_position_embeddings=8)
    save(tmp_path / "long")
    for order in (("short", "long"), ("long", "short")):
        found = rs.compare(
            *(tmp_path / name for name in order), texts=["the cat sat on the mat and it was small"] * 3
        )
        assert len({one.tokens for one in found.compare.scans}) == 1
        assert found.last.is_paired


def test_live_models_read_the_same_tensors_and_stay_as_they_are() -> None:
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
        models.append(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train())
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    state = torch.random.get_rng_state()
    found = rs.compare(*models, inputs=x)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(model.training and not model._forward_hooks for model in models)
    assert [one.name for one in found.compare.scans] == ["TransformerEncoder #1", "TransformerEncoder #2"]
    with pytest.raises(ConfigError, match="inputs= is an iterator, which can be read once"):
        rs.compare(*models, inputs=iter([x]))
    with pytest.raises(ConfigError, match="the same model was given twice"):
        rs.compare(models[0], models[0], inputs=x)
    with pytest.raises(ConfigError, match="needs two models or more, got one"):
        rs.compare(models[0], inputs=x)


def test_texts_that_can_be_read_once_are_read_by_every_model(run_folder: Path) -> None:
    names = [run_folder / "checkpoint-90", run_folder / "checkpoint-500"]
    wanted = rs.compare(*names, texts=TEXTS).table.frame["value"]
    assert rs.compare(*names, texts=iter(TEXTS)).table.frame["value"].equals(wanted)
    piped = CliRunner().invoke(
        app, ["compare", *map(str, names), "--texts", "-", "--format", "json"], input="\n".join(TEXTS)
    )
    assert [row["value"] for row in json.loads(piped.stdout)["rows"]] == wanted.to_list()


def test_options_of_loading_and_inputs_reach_the_scans(run_folder: Path) -> None:
    names = [str(run_folder / f"checkpoint-{step}") for step in (90, 500)]
    found = rs.compare(*names, random_tokens="2x5", dtype="float64", seed=3, measures=["diameter"])
    assert {one.dtype for one in found.compare.scans} == {"float64"}
    assert {(one.texts, one.tokens) for one in found.compare.scans} == {(2, 5.0)}
    assert set(found.table.frame["measure"]) == {"diameter"}
    fresh = rs.compare(*names, weights="initial", random_tokens="2x5")
    assert fresh.last.changed == 0


# wrong use


def test_models_and_saved_scans_do_not_mix(run_folder: Path, tmp_path: Path) -> None:
    random_scan("m").save(tmp_path / "a.json")
    said = failed(tmp_path / "a.json", run_folder / "checkpoint-90")
    assert "a.json' is a saved scan and" in said
    assert "checkpoint-90' a model" in said
    with pytest.raises(ConfigError, match="Table is a saved scan and Linear a model"):
        rs.compare(random_scan("m"), nn.Linear(2, 2))


@pytest.mark.parametrize(
    "option", [("--texts", "x.txt"), ("--dtype", "float64"), ("--seed", "3"), ("--offline",)]
)
def test_options_of_models_are_refused_beside_saved_scans(option: tuple[str, ...], tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        random_scan("m", seed=seed).save(tmp_path / f"{name}.json")
    said = failed(tmp_path / "a.json", tmp_path / "b.json", *option)
    assert f"{option[0]} has no effect on saved scans" in said


def test_folders_that_are_no_series_are_named(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"is no model .* and holds no checkpoints"):
        rs.compare(tmp_path / "empty")
    (tmp_path / "one").mkdir()
    save(tmp_path / "one" / "checkpoint-1")
    with pytest.raises(FileError, match=r"holds one checkpoint \(checkpoint-1\)"):
        rs.compare(tmp_path / "one")
    with pytest.raises(ConfigError, match=r"needs two models or more, got .* alone"):
        rs.compare(run_folder / "checkpoint-90")
    with pytest.raises(ConfigError, match="the same model was given twice"):
        rs.compare(run_folder / "checkpoint-90", f"{run_folder}/logs/../checkpoint-90")
    with pytest.raises(RankscopeError, match="there is no folder or file"):
        rs.compare(run_folder / "checkpoint-90", "./absent")
    assert "while scanning" in failed(
        run_folder / "checkpoint-90", run_folder / "checkpoint-500", "--stack", "absent"
    )


def test_a_result_never_replaces_a_model(run_folder: Path, texts_file: Path) -> None:
    names = [run_folder / "checkpoint-90", run_folder / "checkpoint-500"]
    assert "to be read" in failed(*names, "--texts", texts_file, "--output", texts_file)
