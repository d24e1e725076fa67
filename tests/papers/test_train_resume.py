"""A training that is killed at any moment goes on to the same bytes."""

import errno
import multiprocessing
import os
import random
import re
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankscope.errors import FileError, NotSaved, NumericalError
from rankscope.papers.tasks import TASKS, train_task
from rankscope.papers.tasks import checkpoint as checkpoint_module
from rankscope.papers.tasks import run_folder as run_folder_module
from rankscope.papers.tasks.checkpoint import STATE_FORMAT, load_trained, told_by

SORT = TASKS["sort"]
FIELDS = {
    **{"alphabet": 3, "length": 3, "train": 24, "test": 8, "layers": 1, "heads": 1, "dim": 4},
    **{"epochs": 3, "batch": 12, "warmup": 2, "fresh": True},
}
TINY = SORT.configured(**FIELDS)
SHORT = SORT.configured(**FIELDS | {"epochs": 2})
"""Writes a state where none is, a state over another, and the model: all that a longer training does again."""

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def _every_epoch(monkeypatch):
    monkeypatch.setattr(run_folder_module, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of a training that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    train_task(SORT, TINY, folder=folder)
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def in_child(work) -> int:
    """Exit code of the work in a process of its own; minus the signal if one killed it."""
    child = FORK.Process(target=work)
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


CALLS = ("open", "replace", "fsync", "unlink", "mkdir", "close")


def killed_before(folder: Path, count: int) -> int:
    """Train in a process that kills itself before its ``count``-th call that touches the file system."""

    def work():
        left = [count]

        def deadly(call):
            def counted(*arguments, **options):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return counted

        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        train_task(SORT, SHORT, folder=folder)

    return in_child(work)


def test_killed_before_every_call_that_touches_the_disk(tmp_path):
    train_task(SORT, SHORT, folder=tmp_path / "whole")
    whole = files(tmp_path / "whole")
    count, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        count += 1
        folder = tmp_path / str(count)
        code = killed_before(folder, count)
        train_task(SORT, SHORT, folder=folder)
        assert files(folder) == whole, count
    assert code == 0
    assert count > 20  # each of two epochs writes two files, each in five calls


def test_killed_at_random_moments_again_and_again(tmp_path, whole):
    chance, kills = random.Random(7), 0  # noqa: S311 - not a secret
    for attempt in range(40):
        child = FORK.Process(target=lambda: train_task(SORT, TINY, folder=tmp_path))
        child.start()
        child.join(chance.uniform(0.0, 0.02 * (attempt + 1)))
        if child.exitcode == 0:
            break
        child.kill()
        child.join()
        kills += 1
    train_task(SORT, TINY, folder=tmp_path)
    assert files(tmp_path) == whole
    assert kills


def test_earlier_epochs_are_told_again(tmp_path):
    """Whoever listens hears the whole curve, so that logs of a run that goes on are whole."""
    heard = []

    def stop_after_two(one):
        heard.append(one)
        if one.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_task(SORT, TINY, folder=tmp_path, tell=stop_after_two)
    assert len(told_by(tmp_path / "state.safetensors", STATE_FORMAT)[2]) == 2
    again = []
    trained = train_task(SORT, TINY, folder=tmp_path, tell=again.append)
    assert tuple(again) == trained.curve
    assert again[:2] == heard
    done = []
    assert train_task(SORT, TINY, folder=tmp_path, tell=done.append).curve == trained.curve
    assert done == again


def test_an_early_stop_is_the_same_after_a_kill(tmp_path):
    config = SORT.configured(**FIELDS, stop_at=0.0)

    def die(_):
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(lambda: train_task(SORT, config, folder=tmp_path, tell=die)) == -signal.SIGKILL
    trained = train_task(SORT, config, folder=tmp_path)
    assert len(trained.curve) == 1
    assert trained.stopped == train_task(SORT, config).stopped is not None


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_another_configuration_is_refused_and_left_alone(tmp_path, finished):
    def interrupt(_):
        raise KeyboardInterrupt

    if finished:
        train_task(SORT, TINY, folder=tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            train_task(SORT, TINY, folder=tmp_path, tell=interrupt)
    before = files(tmp_path)
    with pytest.raises(
        FileError, match=r"holds another model of the task 'sort': dim 4 there, 8 asked; seed 0"
    ):
        train_task(SORT, SORT.configured(**FIELDS | {"dim": 8, "seed": 3}), folder=tmp_path)
    assert files(tmp_path) == before


def test_files_of_others_are_not_replaced(tmp_path):
    for name in ("log.csv", "result.json"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(FileError, match="is there without a model that it belongs to"):
            train_task(SORT, TINY, folder=tmp_path)
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_a_state_of_other_versions_is_refused(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_task(SORT, TINY, folder=tmp_path, tell=interrupt)
    monkeypatch.setattr(checkpoint_module, "versions", lambda: {"torch": "1.0"})
    with pytest.raises(FileError, match=r"going on would not give the same bits"):
        train_task(SORT, TINY, folder=tmp_path)


def test_what_is_there_is_checked_under_the_lock(tmp_path, monkeypatch):
    """Another process may finish between a look and the lock; its model must not be taken for ours."""
    other = SORT.configured(**FIELDS | {"seed": 7})
    real = run_folder_module.lock_folder

    @contextmanager
    def late(folder):
        monkeypatch.setattr(run_folder_module, "lock_folder", real)
        train_task(SORT, other, folder=folder)
        with real(folder):
            yield

    monkeypatch.setattr(run_folder_module, "lock_folder", late)
    with pytest.raises(FileError, match="seed 7 there, 0 asked"):
        train_task(SORT, TINY, folder=tmp_path)


def test_a_lock_that_cannot_be_made(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(FileError, match="cannot write in the folder"):
        train_task(SORT, TINY, folder=tmp_path)


def test_a_damaged_state_is_refused_and_left_alone(tmp_path):
    state = tmp_path / "state.safetensors"
    state.write_bytes(b"garbage")
    with pytest.raises(FileError, match="damaged"):
        train_task(SORT, TINY, folder=tmp_path)
    assert state.read_bytes() == b"garbage"


def test_a_file_in_place_of_the_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "deeper"):
        with pytest.raises(FileError, match="name"):
            train_task(SORT, TINY, folder=place)
    assert file.read_text() == "mine"


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    def second(_):
        with pytest.raises(FileError, match="another process works in"):
            train_task(SORT, TINY, folder=tmp_path)

    assert in_child(lambda: train_task(SORT, TINY, folder=tmp_path, tell=second)) == 0


def test_a_full_disk_keeps_the_last_state(tmp_path, whole, monkeypatch):
    fsync, left = os.fsync, [7]

    def full(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    nowhere = "No space left on device; any earlier file is unchanged.*nor could the model be kept"
    with pytest.warns(NotSaved, match="the state of the training"), pytest.raises(FileError, match=nowhere):
        train_task(SORT, TINY, folder=tmp_path)
    monkeypatch.undo()
    assert 0 < len(told_by(tmp_path / "state.safetensors", STATE_FORMAT)[2]) < TINY.epochs
    train_task(SORT, TINY, folder=tmp_path)
    assert files(tmp_path) == whole


def test_states_that_cannot_be_saved_cost_nothing_but_themselves(tmp_path, whole, monkeypatch):
    """The disk has room again for the model: training went on, to the same bits."""
    monkeypatch.setattr(run_folder_module, "save_state", refused)
    with pytest.warns(NotSaved, match="the state of the training is not saved"):
        train_task(SORT, TINY, folder=tmp_path)
    assert files(tmp_path) == whole


def test_a_model_that_cannot_be_saved_is_kept_aside(tmp_path, monkeypatch):
    save = run_folder_module.save_trained
    place = tmp_path / "run"

    def save_elsewhere(trained, path):
        return refused() if path.parent == place else save(trained, path)

    monkeypatch.setattr(run_folder_module, "save_trained", save_elsewhere)
    with pytest.raises(FileError, match="the trained model is in") as told:
        train_task(SORT, TINY, folder=place)
    kept = re.search(r"the trained model is in (\S+)", str(told.value))[1]
    assert len(load_trained(kept).curve) == TINY.epochs


def refused(*_):
    raise FileError("the disk is full")


def test_a_folder_without_permission(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileError, match="permission"):
            train_task(SORT, TINY, folder=tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_diverging_run_keeps_its_last_state(tmp_path):
    with pytest.raises(NumericalError):
        train_task(SORT, SORT.configured(**FIELDS | {"learning_rate": 1e30, "warmup": 0}), folder=tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
