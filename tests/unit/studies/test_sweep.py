"""Sweeps: every configuration once, in the order of the spec, whoever computes it and whatever dies."""

import os
from pathlib import Path

import polars as pl
import pytest

import rankscope as rs
from kit import swept
from rankscope.errors import ConfigError, FileError, RankscopeError
from rankscope.findings.sweep import SweepFinding, SweepShowConfig
from rankscope.findings.sweep.finding import TABLE
from rankscope.studies import sweep as study
from rankscope.studies.sweep import show
from rankscope.work import Done, Ledger, WorkerUnfit

SMALL = {"layers": 2, "heads": 2, "dim": 8, "tokens": 4}


def spec(**product) -> dict[str, object]:
    return {
        "command": "collapse",
        "fixed": SMALL,
        "product": product or {"mask": ["full", "causal"], "seed": [0, 1, 2]},
    }


def test_every_configuration_has_the_rows_that_its_command_gives_alone():
    found = rs.sweep(spec(norm=["none", "layer"], seed=[0, 5]))
    assert (found.configurations, found.finished, found.failures) == (4, 4, ())
    place = 0
    for norm in ("none", "layer"):
        for seed in (0, 5):
            own = found.table.frame.filter(pl.col("configuration") == place)
            alone = rs.collapse(**SMALL, norms=(norm,), seed=seed).table.frame
            assert own.select(alone.columns).equals(alone)
            place += 1
    assert "time" not in found.to_json()


def test_fields_that_no_column_has_get_one():
    fixed = {"layers": 2, "heads": 2, "tokens": 4}
    found = rs.sweep(
        {
            "command": "collapse",
            "fixed": fixed,
            "product": {"dim": [4, 8], "values": ["gaussian", "identity"]},
        }
    )
    first = found.table.frame.group_by("configuration", maintain_order=True).first()
    assert first["dim"].to_list() == [4, 4, 8, 8]
    assert first["values"].to_list() == ["gaussian", "identity"] * 2


def test_a_failure_is_a_row_with_its_reason_and_can_be_tried_again(tmp_path, monkeypatch):
    real = study.compute

    def broken(asked):
        if asked.values["seed"] == 1:
            raise RankscopeError("no such weather")
        return real(asked)

    monkeypatch.setattr(study, "compute", broken)
    found = rs.sweep(spec(), folder=tmp_path / "out")
    assert (found.finished, found.failed) == (6, 2)
    assert (found.failures[0].reason, found.failures[0].configurations, found.failures[0].first) == (
        "no such weather",
        2,
        1,
    )
    assert "not all configurations have this number" in found.words[-1]
    failed = found.table.frame.filter(pl.col("failure").is_not_null())
    assert show(folder=str(tmp_path / "out"), where=("failure!=",)).table.frame.equals(failed)
    assert failed.select("configuration", "mask", "seed", "value").rows() == [
        (1, "full", 1, None),
        (4, "causal", 1, None),
    ]
    assert found.shares == ()
    assert "2 failed" in found.words[0]
    monkeypatch.setattr(study, "compute", real)
    assert rs.sweep(spec(), folder=tmp_path / "out").failed == 2  # what is recorded is recorded
    mended = rs.sweep(spec(), folder=tmp_path / "out", retry=True)
    assert mended.failed == 0
    assert mended.table.frame.equals(rs.sweep(spec()).table.frame)


def test_shares_of_a_product_and_none_of_rows():
    found = rs.sweep(spec(mask=["full", "causal"], seed={"range": [0, 6]}))
    assert found.shares[0].option in ("mask", "seed")
    assert sum(one.share for one in found.shares) == pytest.approx(1)
    values = study.outcomes(found.table.frame, found.outcome, ())["y"].to_numpy().reshape(2, 6)
    between = 6 * ((values.mean(axis=1) - values.mean()) ** 2).sum() / ((values - values.mean()) ** 2).sum()
    assert next(one.share for one in found.shares if one.option == "mask") == pytest.approx(between)
    rows = rs.sweep(
        {"command": "collapse", "fixed": SMALL, "rows": [{"mask": "full"}, {"mask": "causal", "seed": 3}]}
    )
    assert rows.shares == ()
    assert rows.table.frame["seed"].unique().sort().to_list() == [0, 3]


def test_one_configuration_has_a_page_and_groups_by_any_column(tmp_path):
    found = rs.sweep(spec(seed=[3]), folder=tmp_path / "out")
    assert (found.group_by, found.groups[0].configurations, found.groups[0].values) == ((), 1, ())
    assert "<svg" in (tmp_path / "out" / "sweep.html").read_text()
    by_layer = show(folder=str(tmp_path / "out"), group_by=("layer", "configuration"))
    assert [one.values for one in by_layer.groups] == [("2", "0")]
    assert by_layer.chart().pictures
    with pytest.raises(ConfigError, match="group by what rows are of"):
        show(folder=str(tmp_path / "out"), group_by="value")


def test_groups_by_what_varies_inside_a_configuration_are_of_its_own_rows(tmp_path):
    asked = {"command": "ablate", "fixed": SMALL, "product": {"seed": [0, 1]}}
    rs.sweep(asked, folder=tmp_path / "out")
    found = show(folder=str(tmp_path / "out"), group_by="variant")
    frame = found.table.frame.filter(
        (pl.col("definition") == found.outcome.definition) & (pl.col("layer") == 2)
    )
    assert len(found.groups) > 1
    for group in found.groups:
        own = frame.filter(pl.col("variant") == group.values[0])["log10_value"]
        assert (group.configurations, group.mean) == (2, pytest.approx(own.mean()))


def test_rows_are_the_same_however_many_are_put_together_at_once(monkeypatch):
    asked = {
        "command": "collapse",
        "fixed": {name: value for name, value in SMALL.items() if name not in ("dim", "layers")},
        "rows": [{"layers": 2, "dim": 8}, {"dim": 4, "norm": "layer"}, {"layers": 1, "dim": 8, "seeds": 2}],
    }
    expected = rs.sweep(asked).table.frame
    monkeypatch.setattr(study, "AT_ONCE", 1)
    assert rs.sweep(asked).table.frame.equals(expected)
    assert expected["layers"].unique().sort().to_list() == [1, 2, 12]


def test_differences_of_rounding_are_not_explained():
    def swept(command, fixed, **product):
        return rs.sweep({"command": command, "fixed": fixed, "product": product})

    fixed = {"tokens": 8, "dim": 8, "heads": 2}  # one predicted cosine, whatever the seed
    alike = swept("predict", fixed | {"layers": 2}, seed=[0, 1])
    assert alike.shares == ()
    assert "do not differ by more than their rounding" in alike.words[1]
    seeds = swept("predict", fixed, layers=[2, 4], seed=[0, 1])
    by_name = {one.option: one for one in seeds.shares}
    assert by_name["layers"].resolved
    assert not by_name["seed"].resolved
    assert "seed under 0.01%" in seeds.words[2]


def test_a_number_below_its_floor_is_not_compared():
    found = rs.sweep(
        {"command": "collapse", "fixed": SMALL | {"layers": 8}, "product": {"seed": {"range": [0, 4]}}}
    )
    at = found.table.frame.filter(pl.col("definition") == found.outcome.definition)
    assert not at.filter(pl.col("layer") == 8)["resolved"].all()
    assert at.filter(pl.col("layer") == found.outcome.layer)["resolved"].all()
    assert not at.filter(pl.col("layer") == found.outcome.layer + 1)["resolved"].all()


def test_show_filters_and_groups_what_is_in_the_folder(tmp_path):
    whole = rs.sweep(spec(), folder=tmp_path / "out")
    assert show(folder=str(tmp_path / "out")).to_json() == whole.to_json()
    turned = {"command": "collapse", "fixed": SMALL, "product": {"seed": [0, 1], "mask": ["full", "causal"]}}
    assert rs.sweep(turned, folder=tmp_path / "turned").table.frame["seed"][-1] == 1
    assert show(folder=str(tmp_path / "turned")).options == ("seed", "mask")
    causal = show(folder=str(tmp_path / "out"), where=("mask=causal", "seed>=1"), group_by="seed")
    assert (causal.configurations, [one.values for one in causal.groups]) == (2, [("1",), ("2",)])
    assert set(causal.table.frame["mask"]) == {"causal"}
    assert (causal.shares, causal.no_shares) == ((), None)
    assert show(folder=str(tmp_path / "out"), where=("mask==causal", "failure=")).configurations == 3
    at_one = show(folder=str(tmp_path / "out"), where=("layer=1",))
    assert at_one.shares  # every configuration has rows there
    assert at_one.shares != whole.shares
    other = show(folder=str(tmp_path / "out"), measure="residual")
    assert other.outcome.definition == "residual[frobenius,mean]"
    for wrong, said in (
        ({"where": ("mask",)}, "write COLUMN=VALUE"),
        ({"where": ("masc=full",)}, "did you mean 'mask'"),
        ({"where": ("seed=a",)}, "holds numbers"),
        ({"where": ("seed=77",)}, "no row meets"),
        ({"group_by": ("colour",)}, "unknown column"),
        ({"measure": "length"}, "these rows have"),
    ):
        with pytest.raises(RankscopeError, match=said):
            show(folder=str(tmp_path / "out"), **wrong)
    with pytest.raises(FileError, match="holds no ledger"):
        show(folder=str(tmp_path))
    with pytest.raises(ConfigError, match="no folder was named"):
        SweepShowConfig()


def test_names_are_checked_before_the_first_configuration_runs(tmp_path):
    for product, said in (
        ({"mask": ["full", "windw:2"]}, r"configuration 1 \(mask=windw:2\): unknown mask"),
        ({"measure": ["residual[frobenius,mean]", "lenght"]}, "unknown measure"),
        ({"variant": ["san", "sam"]}, "sam"),
        ({"dim": [8, 9]}, "does not divide dim=9"),
    ):
        fixed = {name: value for name, value in SMALL.items() if name not in product}
        with pytest.raises(RankscopeError, match=said):
            rs.sweep({"command": "collapse", "fixed": fixed, "product": product}, folder=tmp_path / "out")
        assert not (tmp_path / "out").exists()
    for command, fixed, said in (
        ("scan", {"texts": "nowhere.txt", "model": "minilm"}, "does not exist"),
        ("scan", {"texts": "-", "model": "minilm"}, "reads it many times"),
        ("scan", {}, "no model was named"),
        ("train", {"task": "sort", "set": ["nothing=1"]}, "nothing"),
        ("atlas", {"only": ["softmx"]}, "softmx"),
        ("certify", {"layers": 2, "heads": 3, "dim": 8}, "does not divide"),
    ):
        with pytest.raises(RankscopeError, match=said):
            rs.sweep({"command": command, "fixed": fixed, "rows": [{}]})


def test_many_configurations_are_asked_about_and_counted_first():
    with pytest.raises(ConfigError, match=r"has 10,000,000 configurations; add yes=True"):
        rs.sweep(spec(seed={"range": [0, 10_000_000]}))
    found = rs.sweep(spec(seed={"range": [0, 500]}), dry_run=True)
    assert (found.configurations, found.finished, found.table.frame.height) == (500, 0, 0)
    assert found.seconds > 0
    assert "500 configurations of collapse, and all are valid" in found.words[0]
    assert isinstance(SweepFinding.load(_saved(found)), SweepFinding)


def _saved(found) -> Path:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "found.json"
    found.save(path)
    return path


def test_ledgers_of_other_specs_and_damaged_parts(tmp_path):
    rs.sweep(spec(), folder=tmp_path / "out")
    with pytest.raises(FileError, match="the ledger of another sweep"):
        rs.sweep(spec(seed=[0]), folder=tmp_path / "out")
    before = (tmp_path / "out" / TABLE).read_bytes()
    with (
        Ledger.open(tmp_path / "out", kind="sweep", asked=study.read_spec(spec()).asked) as ledger,
        ledger._base,
    ):
        ledger._base.execute("UPDATE tasks SET part = x'00' WHERE key = (SELECT min(key) FROM tasks)")
    with pytest.raises(FileError, match="not what was written"):
        show(folder=str(tmp_path / "out"))
    said = []
    rs.sweep(spec(), folder=tmp_path / "out", say=said.append)
    assert said[0] == "5 of 6 configurations are done already"
    assert (tmp_path / "out" / TABLE).read_bytes() == before


def test_a_worker_without_the_model_ends_the_sweep_and_keeps_what_is_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("one text\n")
    tasks = study._tasks(
        study.read_spec(
            {"command": "scan", "fixed": {"texts": "texts.txt"}, "product": {"model": ["a", "b"]}}
        ),
        ["0", "1"],
        range(2),
    )
    assert tasks[0].argument.needs == (str(tmp_path / "texts.txt"),)
    (tmp_path / "texts.txt").unlink()
    with pytest.raises(WorkerUnfit, match="a worker does not have"):
        list(study.run(study.compute, tasks))


def test_what_took_long_is_written_down_before_the_next_is_waited_for(tmp_path, monkeypatch):
    known = list[int]()

    def slow(work, tasks, **_):
        for task in tasks:
            known.append(swept.count_recorded(tmp_path / "out"))
            yield Done(task.key, study.compute(task.argument), seconds=60.0)

    monkeypatch.setattr(study, "run", slow)
    rs.sweep(spec(), folder=tmp_path / "out")
    assert known == [0, 1, 2, 3, 4, 5]


def test_the_time_is_estimated_by_those_that_imported_nothing(monkeypatch):
    def timed(work, tasks, **_):
        for place, task in enumerate(tasks):
            is_first = place in (0, 2)
            yield Done(task.key, study.compute(task.argument), None, 50.0 if is_first else 2.0, is_first)

    monkeypatch.setattr(study, "run", timed)
    said = []
    rs.sweep(spec(seed={"range": [0, 10]}), say=said.append, workers=2)
    assert said == ["10 configurations to run with 2 workers", "one takes about 2 s, what is left about 5 s"]


def test_an_interruption_says_what_is_done_and_loses_nothing(tmp_path, monkeypatch):
    real = Ledger.record

    def interrupted(self, entries):
        """Ctrl-C when the third is just in the table."""
        real(self, entries)
        if entries and len(self) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(study, "WRITTEN_EVERY", 0.0)
    monkeypatch.setattr(Ledger, "record", interrupted)
    with pytest.raises(
        KeyboardInterrupt, match="interrupted; 3 of 6 configurations are done, and the same command"
    ):
        rs.sweep(spec(), folder=tmp_path / "out")
    monkeypatch.setattr(Ledger, "record", real)
    said = []
    assert rs.sweep(spec(), folder=tmp_path / "out", say=said.append).table.frame.equals(
        rs.sweep(spec()).table.frame
    )
    assert said[0] == "3 of 6 configurations are done already"


def write_spec(path: Path, seeds: int, layers: int = 2) -> Path:
    path.write_text(
        f"command: collapse\nfixed: {{layers: {layers}, heads: 2, dim: 8, tokens: 4}}\n"
        f"product: {{mask: [full, causal], seed: {{range: [0, {seeds}]}}}}\n"
    )
    return path


@pytest.mark.slow
def test_a_driver_and_a_worker_are_killed_and_the_table_is_that_of_one_process(tmp_path):
    asked = write_spec(tmp_path / "spec.yaml", 40)
    study.sweep(asked, folder=tmp_path / "serial")
    extra = swept.swept_with_kills(asked, tmp_path / "pool", drivers=1, workers_killed=1)
    assert (tmp_path / "pool" / TABLE).read_bytes() == (tmp_path / "serial" / TABLE).read_bytes()
    assert extra >= 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get("RANKSCOPE_SOAK"), reason="1,200 configurations: make soak")
def test_1200_configurations_with_three_drivers_and_two_workers_killed(tmp_path):
    asked = write_spec(tmp_path / "spec.yaml", 600)
    study.sweep(asked, folder=tmp_path / "serial")
    swept.swept_with_kills(asked, tmp_path / "pool", drivers=3, workers_killed=2)
    assert (tmp_path / "pool" / TABLE).read_bytes() == (tmp_path / "serial" / TABLE).read_bytes()
    assert pl.read_parquet(tmp_path / "pool" / TABLE)["configuration"].n_unique() == 1200
