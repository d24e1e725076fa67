"""Files of texts, scanned shard by shard: numbers of a plain scan, the same bytes whoever computes, nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import rankscope as rs
from kit import scanned
from rankscope.cli.app import app
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.findings.scan import PAGE, RESULT, ScanFinding
from rankscope.studies import corpus
from rankscope.work import Ledger, WorkerUnfit
from rankscope.work import ledger as ledger_file


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(scanned.write_model(tmp_path_factory.mktemp("model") / "bert"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> str:
    return str(scanned.write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.jsonl", 100))


@pytest.fixture(scope="module")
def whole(model, texts, tmp_path_factory) -> tuple[Path, ScanFinding]:
    """The folder of a scan in shards, and what it found."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    return folder, rs.scan(model, texts, shard_size=24, folder=folder)


def test_shards_have_the_numbers_of_a_plain_scan(model, texts, whole):
    """Rows, counts and ends to the bit, also where texts are left out before the first 64; means to rounding."""
    found, plain = whole[1], rs.scan(model, texts)
    assert found.table.frame.drop("run").equals(plain.table.frame.drop("run"))
    assert found.table.frame["sample"].n_unique() == 64
    for one, other in zip(found.summary, plain.summary, strict=True):
        for name in ("mean", "std", "floor"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9)
        exact = {"mean", "std", "floor"}
        assert one.model_dump(exclude=exact) == other.model_dump(exclude=exact)
    assert found.scan == plain.scan
    assert found.words == plain.words
    assert any("left out of 100 texts: text 2" in note for note in found.scan.reported)


def test_the_folder_holds_the_result_and_answers_again_at_once(model, texts, whole, tmp_path, monkeypatch):
    folder, found = Path(shutil.copytree(whole[0], tmp_path / "out")), whole[1]
    assert {one.name for one in folder.iterdir()} >= {"ledger.sqlite", RESULT, PAGE}
    assert ScanFinding.load(folder / RESULT) == found
    monkeypatch.setattr(corpus, "measure", None)  # nobody is asked
    before = (folder / RESULT).read_bytes()
    assert rs.scan(model, texts, shard_size=24, workers=1, folder=folder) == found
    assert (folder / RESULT).read_bytes() == before
    assert "time" not in found.provenance
    known = rs.scan(model, texts, shard_size=24, folder=folder, measures=("residual_ratio",))
    assert known.summary == found.summary  # it is measured anyway
    judged = rs.scan(model, texts, shard_size=24, folder=folder, thresholds={"collapsed": 0.9})
    assert judged.verdict != found.verdict


def test_a_scan_that_was_broken_off_goes_on_where_it_was(model, texts, whole, tmp_path, monkeypatch):
    real, asked = corpus.measure, list[int]()

    def breaks(shard):
        if len(asked) == 2:
            raise MemoryError
        asked.append(shard.before)
        return real(shard)

    monkeypatch.setattr(corpus, "measure", breaks)
    with pytest.raises(RankscopeError, match="texts 49 to 72: not enough memory"):
        rs.scan(model, texts, shard_size=24, folder=tmp_path / "out")
    assert not (tmp_path / "out" / RESULT).exists()

    def stops(done, total):
        assert total == 100
        if done >= 72:
            raise KeyboardInterrupt

    asked.clear()
    monkeypatch.setattr(corpus, "measure", lambda shard: asked.append(shard.before) or real(shard))
    with pytest.raises(KeyboardInterrupt, match="72 of 100 texts are measured, and the same command goes on"):
        rs.scan(model, texts, shard_size=24, folder=tmp_path / "out", advance=stops)
    rs.scan(model, texts, shard_size=24, folder=tmp_path / "out")
    assert set(asked) == {48, 72, 96}
    assert (tmp_path / "out" / RESULT).read_bytes() == (whole[0] / RESULT).read_bytes()


def test_texts_that_were_added_or_changed_are_measured_and_no_others(model, tmp_path, monkeypatch):
    file = scanned.write_corpus(tmp_path / "corpus.jsonl", 30, seed=3)
    rs.scan(model, str(file), shard_size=10, folder=tmp_path / "out")
    real, asked = corpus.measure, list[int]()
    monkeypatch.setattr(corpus, "measure", lambda shard: asked.append(shard.before) or real(shard))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:25], '{"text": "the small cat"}', *lines[26:], lines[0], lines[2]]))
    found = rs.scan(model, str(file), shard_size=10, folder=tmp_path / "out")
    assert sorted(set(asked)) == [20, 30]
    assert found == rs.scan(model, str(file), shard_size=10)


def damage(folder: Path, how: str) -> None:
    base = ledger_file.sqlite3.connect(folder / ledger_file.NAME)
    with base:
        base.execute(f"UPDATE tasks SET part = {how} WHERE key = (SELECT min(key) FROM tasks)")  # noqa: S608
    base.close()


@pytest.mark.parametrize("how", ["x'00'", "NULL"], ids=["corrupt", "missing"])
def test_a_part_that_is_corrupt_or_missing_is_measured_again(model, texts, whole, tmp_path, how, monkeypatch):
    folder = Path(shutil.copytree(whole[0], tmp_path / "out"))
    damage(folder, how)
    real, asked = corpus.measure, list[int]()
    monkeypatch.setattr(corpus, "measure", lambda shard: asked.append(shard.before) or real(shard))
    rs.scan(model, texts, shard_size=24, folder=folder)
    assert len(asked) == 1
    assert (folder / RESULT).read_bytes() == (whole[0] / RESULT).read_bytes()


def test_folders_of_another_scan_and_models_that_changed_are_refused(
    model, texts, whole, tmp_path, monkeypatch
):
    for other in ({"shard_size": 25}, {"shard_size": 24, "spectra": False}):
        with pytest.raises(
            FileError, match=r"of another scan: config\.\w+ is .* there and .* here; name another"
        ):
            rs.scan(model, texts, folder=whole[0], **other)
    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "rankscope_version", lambda: "9.9.9")
        with pytest.raises(FileError, match=r"made by rankscope .*, this is 9\.9\.9"):
            rs.scan(model, texts, shard_size=24, folder=whole[0])
    own = shutil.copytree(model, tmp_path / "bert")
    config = rs.ScanConfig(model=str(own), shard_size=24)
    before = corpus._Work(config, config, texts).asked
    scanned.write_model(Path(own), seed=1)
    assert corpus._Work(config, config, texts).asked != before


def test_workers_with_different_weights_under_one_name_are_told(model, texts, tmp_path, monkeypatch):
    real = corpus.measure

    def other(shard):
        part = json.loads(real(shard))
        return json.dumps(part | {"weights": "other"} if shard.before == 50 else part).encode()

    monkeypatch.setattr(corpus, "measure", other)
    with pytest.raises(FileError, match="texts 51 to 100 were measured with other weights"):
        rs.scan(model, texts, shard_size=50)


def test_a_worker_without_the_model_and_a_model_that_is_none_end_the_scan(model, texts, tmp_path):
    work = corpus._Work(*[rs.ScanConfig(model=model, shard_size=50)] * 2, texts)
    (task, _) = work.tasks({0, 1})
    lacks = corpus.replace(task.argument, needs=(str(tmp_path / "bert"),))
    with pytest.raises(WorkerUnfit, match=r"a worker does not have .*bert'.*put it where every worker"):
        corpus.measure(lacks)
    with pytest.raises(RankscopeError, match="there is no folder or file 'nowhere/at/all'") as caught:
        rs.scan("nowhere/at/all", texts, shard_size=50)
    assert "texts 1" not in str(caught.value)  # no text is to blame
    with pytest.raises(RankscopeError, match=r"^seed= has no effect"):
        rs.scan(model, texts, shard_size=50, seed=1)
    with pytest.raises(RankscopeError, match=r"^text 3 is empty; leave it out"):
        rs.scan(model, ["the cat", "a cat", " "], shard_size=2)


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(model, texts, whole, tmp_path, monkeypatch):
    record, many = Ledger.record, list[int]()

    def fills(ledger, entries):
        many.append(1)
        if len(many) == 3:
            pages = ledger._base.execute("PRAGMA page_count").fetchone()[0]
            ledger._base.execute(f"PRAGMA max_page_count={pages}")
        record(ledger, entries)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "record", fills)
        with pytest.raises(FileError, match="full; what was recorded before is unchanged; make room"):
            rs.scan(model, texts, shard_size=24, folder=tmp_path / "out")
    assert scanned.recorded(tmp_path / "out") >= 2
    rs.scan(model, texts, shard_size=24, folder=tmp_path / "out")
    assert (tmp_path / "out" / RESULT).read_bytes() == (whole[0] / RESULT).read_bytes()


def test_texts_that_are_all_too_short_and_files_that_change_while_they_are_read(model, tmp_path):
    (tmp_path / "short.txt").write_text("one\n" * 9)
    with pytest.raises(
        ConfigError, match=r"text 1 \('one'\) has one measured token; at least two are needed"
    ):
        rs.scan(model, str(tmp_path / "short.txt"), shard_size=4)
    file = tmp_path / "texts.txt"
    file.write_text("the cat sat\n" * 9)
    work = corpus._Work(*[rs.ScanConfig(model=model, shard_size=4)] * 2, str(file))
    assert [task.argument.before for task in work.tasks({0, 2})] == [0, 8]
    for other in ("the cat\n" * 9, "the cat sat\n" * 8, "the cat sat\n" * 13):
        file.write_text(other)
        with pytest.raises(FileError, match="changed while they were read"):
            list(work.tasks({0, 2}))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gradients": True}, "workers=2 cuts texts into shards .*, which gradients= cannot be"),
        ({"tree": True}, "which tree= cannot be"),
        ({"max_texts": 5}, "which max_texts= cannot be"),
        ({"random_tokens": "2x8", "texts": None}, "which random_tokens= cannot be"),
        ({"inputs": torch.zeros(2, 4), "texts": None}, "which inputs= cannot be"),
        ({"call": lambda m: m, "texts": None}, "which call= cannot be"),
        ({"loader": "train.py:batches", "texts": None}, "which inputs= cannot be|no file"),
        ({"tokenizer": object()}, "which tokenizer= cannot be"),
        ({"texts": None}, "workers=2 shares a file of texts; name one: texts='corpus.jsonl'"),
        ({"texts": "-"}, "reads texts twice, and '-' can be read once; name a file"),
        ({"texts": iter(["a b", "c d"])}, "an iterator can be read once; give a list, or a file"),
        (
            {"across": "inputs", "folder": "out", "workers": None},
            "keeps shards of texts, not what is compared across='inputs'",
        ),
        ({"measures": ("lenght",)}, "unknown measure 'lenght'"),
        ({"cluster": "rye"}, "names no cluster|needs ray"),
    ],
)
def test_what_cannot_be_cut_into_shards_is_refused_by_name(model, texts, tmp_path, monkeypatch, asked, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RankscopeError, match=said) as caught:
        rs.scan(model, **({"texts": texts, "workers": 2} | asked))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_models_that_are_objects_and_hidden_states_are_refused(texts, tmp_path):
    with pytest.raises(ConfigError, match="processes that load the model by its name"):
        rs.scan(torch.nn.Linear(2, 2), texts, workers=2)
    torch.save({}, tmp_path / "x.pt")
    import numpy as np

    np.save(tmp_path / "states.npy", np.zeros((3, 4)))
    with pytest.raises(ConfigError, match=r"states\.npy' is measured at once"):
        rs.scan(str(tmp_path / "states.npy"), folder=tmp_path / "out")


def test_the_command_line_writes_a_folder_or_a_file(model, texts, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["scan", model, *args])
        return found.exit_code, found.stderr

    shutil.copytree(whole[0], "out")
    Path("out", RESULT).unlink()
    code, err = run("--texts", texts, "--shard-size", "24", "--output", "out")
    assert (code, "wrote scan.json and scan.html in out" in err) == (0, True)
    assert (tmp_path / "out" / RESULT).read_bytes() == (whole[0] / RESULT).read_bytes()
    code, err = run("--text", "the cat sat", "--text", "a big cat", "--workers", "1", "--output", "one.json")
    assert (code, ScanFinding.load("one.json").scan.texts) == (0, 2)
    for args, said in (
        (("--texts", texts, "--workers", "2", "--tree"), "--workers 2 cuts texts into shards"),
        (("--texts", texts, "--output", "out", "--resume"), "goes on by itself"),
        (("--output", "fresh"), "a folder as output shares a file of texts; name one: --texts corpus.jsonl"),
        (("--texts", texts, "--shard-size", "0"), "greater than or equal to 1"),
        (("--texts", "nowhere.txt.gz", "--workers", "2"), "No such file"),
    ):
        code, err = run(*args)
        assert code == 2
        assert said in err
        assert err.count("\n") == 1
    assert {one.name for one in tmp_path.iterdir()} == {"out", "one.json"}


MEMORY = """
import resource, sys
from kit import scanned
from rankscope.studies import corpus, scan
corpus.measure = scanned.counted

def all_joined(*_):
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    sys.exit()

corpus.scan_table = all_joined
scan.scan("model", texts=sys.argv[1], shard_size=100)
"""


@pytest.mark.slow
def test_the_memory_of_the_driver_does_not_grow_with_the_texts(tmp_path):
    """Texts of 20 kB: 10 and 60 MB of them."""
    peaks = []
    for many in (500, 3000):
        file = tmp_path / f"{many}.txt"
        with file.open("w") as target:
            for number in range(many):
                target.write(f"{number} word" * 2000 + "\n")
        found = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", MEMORY, str(file)],
            env=scanned.environment(tmp_path / "log"),
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(found.stdout) / 1024)
    assert peaks[1] < peaks[0] + 15, peaks


@pytest.mark.slow
def test_a_pool_whose_driver_and_worker_are_killed_gives_the_bytes_of_one_process(
    model, texts, whole, tmp_path
):
    scanned.scanned_with_kills(
        Path(model), Path(texts), tmp_path / "pool", size=24, drivers=0, workers_killed=1
    )
    assert (tmp_path / "pool" / RESULT).read_bytes() == (whole[0] / RESULT).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.skipif(not os.environ.get("RANKSCOPE_SOAK"), reason="5,000 texts: make soak")
def test_5000_texts_in_16_shards_by_a_pool_with_three_drivers_and_two_workers_killed(model, tmp_path):
    texts = scanned.write_corpus(tmp_path / "corpus.jsonl", 5000)
    rs.scan(model, str(texts), shard_size=313, folder=tmp_path / "serial")
    scanned.scanned_with_kills(Path(model), texts, tmp_path / "pool", size=313, drivers=3, workers_killed=2)
    assert (tmp_path / "pool" / RESULT).read_bytes() == (tmp_path / "serial" / RESULT).read_bytes()
    plain = rs.scan(model, str(texts))
    found = ScanFinding.load(tmp_path / "pool" / RESULT)
    assert (found.scan.texts, found.scan.reported) == (plain.scan.texts, plain.scan.reported)
    for one, other in zip(found.summary, plain.summary, strict=True):
        # batches at the ends of shards are other ones, so that padding moves numbers by rounding
        assert one.mean == pytest.approx(other.mean, rel=1e-6, abs=other.floor or 0)
