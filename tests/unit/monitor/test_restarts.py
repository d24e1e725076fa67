"""A record that is gone on with: by a run that was started again, whole or from an earlier step."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from kit.tiny_training import states, tiny_encoder, tiny_gpt2, tokens
from rankscope.errors import FileError, RankscopeWarning
from rankscope.monitor import CollapseMonitor
from rankscope.monitor.history import History
from rankscope.results import Table

ENDINGS = ("parquet", "json")


def monitored(path: Path, model: nn.Module | None = None, **options: object) -> CollapseMonitor:
    model = tiny_encoder(layers=2) if model is None else model
    return CollapseMonitor(model, states(2), every=10, output=path, spectra=False, **options)


def run(path: Path, *steps: int, **options: object) -> CollapseMonitor:
    monitor = monitored(path, **options)
    for step in steps:
        monitor.step(step)
    return monitor


def steps(monitor: CollapseMonitor) -> list[int]:
    found: list[int] = monitor.table.sections["monitor"]["steps"]
    assert sorted(set(monitor.table.frame["step"])) == sorted(found)
    return found


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_record_is_read_back_as_it_was(ending: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    monitor = run(path, *range(0, 10 * count, 10))
    told = monitor.table
    again = History.of(Table.load(path))
    about = {name: told.sections["monitor"][name] for name in ("every", "probes", "restarts")}
    assert again.table(**about) == told
    assert again.latest is not None
    columns = monitor.latest.frame.columns
    assert again.latest.frame.select(columns).equals(monitor.latest.frame)
    assert set(again.latest.frame.columns) == set(columns)
    assert again.latest.sections == monitor.latest.sections


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_is_started_again_goes_on(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    first = run(path, 0, 10, 20).table
    again = monitored(path)
    assert again.table.sections["monitor"]["steps"] == [0, 10, 20]
    again.step(30)
    assert steps(again) == [0, 10, 20, 30]
    before = first.where(sample=None).frame
    after = again.table.where(sample=None).frame
    assert after.filter(after["step"] < 30)["value"].to_list() == before["value"].to_list()
    assert again.table.sections["monitor"]["restarts"] == [{"step": 30, "dropped": [], "kept": None}]
    assert Table.load(path) == again.table
    assert os.listdir(tmp_path) == [path.name]


def test_the_step_that_was_reached_is_not_scanned_twice(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run(path, 0, 10)
    again = monitored(path)
    assert again.step(10) is None
    again.step(20)
    assert steps(again) == [0, 10, 20]


@pytest.mark.parametrize("back", [20, 10, 0])
def test_from_an_earlier_step_later_rows_are_replaced_and_kept_aside(back: int, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    told = run(path, 0, 10, 20, 30).table
    again = monitored(path, model=tiny_encoder(seed=1, layers=2))
    with pytest.warns(RankscopeWarning, match=f"goes up to step 30, and this run goes on at step {back}: "):
        again.step(back)
    again.step(back + 10)
    assert steps(again) == [*range(0, back, 10), back, back + 10]
    kept = str(tmp_path / "run.1.parquet")
    assert Table.load(kept) == told
    dropped = list(range(back, 40, 10))
    assert again.table.sections["monitor"]["restarts"] == [{"step": back, "dropped": dropped, "kept": kept}]
    old = told.where(sample=None, step=back).frame["value"].to_list()
    assert again.table.where(sample=None, step=back).frame["value"].to_list() != old


def test_every_copy_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankscopeWarning)
            run(path, 0, 10)
    assert sorted(os.listdir(tmp_path)) == ["run.1.json", "run.2.json", "run.json"]


def test_going_back_within_a_run_copies_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    monitor = run(path, 0, 10, 20)
    with pytest.warns(RankscopeWarning, match="training went from step 20 back to 10"):
        monitor.step(10)
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_copy_that_cannot_be_made_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    run(path, 0, 10)
    again = monitored(path)

    def full(*_: object) -> None:
        raise FileError("no space left")

    monkeypatch.setattr("rankscope.monitor.collapse_monitor.write_atomically", full)
    with pytest.warns(RankscopeWarning) as told:
        again.step(0)
    assert "the earlier record could not be copied: no space left" in [str(one.message) for one in told]
    assert steps(again) == [0]


# files of something else


def test_a_file_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "scan.json"
    Table.from_columns(
        {"measure": "m", "definition": "m", "value": [1.0], "floor": 0.0}, command="scan"
    ).save(path)
    before = path.read_bytes()
    with pytest.raises(FileError, match="is no record of a monitor; name another output, or remove the file"):
        monitored(path)
    (tmp_path / "notes.json").write_text("{}")
    with pytest.raises(FileError):
        monitored(tmp_path / "notes.json")
    assert path.read_bytes() == before


def test_the_record_of_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run(path, 0)
    with pytest.raises(FileError, match="the record of another run, on other texts"):
        CollapseMonitor(tiny_encoder(layers=2), states(2, seed=5), output=path)
    with pytest.raises(FileError, match="of 'TransformerEncoder', not of 'student'"):
        monitored(path, name="student")


def test_other_processes_read_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    run(path, 0)
    monkeypatch.setattr("rankscope.monitor.collapse_monitor.is_first_process", lambda: False)
    assert len(monitored(path).table) == 0


def test_ids_and_masks_tell_texts_apart() -> None:
    found = {
        CollapseMonitor(tiny_encoder(), probes)._probes
        for probes in (states(), states(seed=3), states().bfloat16(), states(2))
    } | {CollapseMonitor(tiny_gpt2(), tokens())._probes}
    assert len(found) == 5
    assert CollapseMonitor(tiny_encoder(), states())._probes in found
    assert torch.equal(states(), states())
