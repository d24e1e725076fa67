"""Tasks given to this process and to a pool: the same answers, each once, whoever dies on the way."""

import os
import socket
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from pathlib import Path

import pytest
import torch

from kit import worked
from rankscope.errors import ConfigError, MissingExtraError, RankscopeError
from rankscope.work import Done, Task, WorkerUnfit, cluster, one_thread, run, task_key


def tasks_of(numbers) -> list[Task]:
    return [Task(str(number), number) for number in numbers]


def answers(found) -> dict[str, tuple[object, str | None]]:
    listed = list(found)
    counted = Counter(done.key for done in listed)
    assert set(counted.values()) <= {1}
    return {done.key: (done.value, done.failure) for done in listed}


def test_failures_are_words_and_the_rest_goes_on():
    found = answers(run(worked.squared, tasks_of(range(20))))
    assert found["7"] == (None, "seven has no square here")
    assert found["13"] == (None, "unexpected ValueError: thirteen is odd")
    assert {key: pair for key, pair in found.items() if key not in ("7", "13")} == {
        str(n): (n * n, None) for n in range(20) if n not in (7, 13)
    }


def test_a_pool_answers_as_one_process_does_and_every_process_has_one_thread():
    numbers = tasks_of(range(60))
    assert answers(run(worked.squared, numbers, workers=2)) == answers(run(worked.squared, numbers))
    assert answers(run(worked.threads, tasks_of([0, 1]), workers=2)) == {
        "0": ((1, 1), None),
        "1": ((1, 1), None),
    }


def test_processes_of_a_pool_never_see_an_interrupt_of_the_terminal():
    numbers = tasks_of(range(2))
    assert answers(run(worked.blocks_interrupts, numbers, workers=2)) == {
        "0": (True, None),
        "1": (True, None),
    }
    assert not worked.blocks_interrupts(0)


def test_one_thread_holds_in_this_process_and_ends_with_the_block():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert answers(run(worked.threads, tasks_of([0])))["0"] == ((1, 1), None)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_worker_that_dies_costs_a_retry(tmp_path):
    mark = tmp_path / "died"
    found = answers(run(worked.killed_once, [Task(str(n), (n, str(mark))) for n in range(12)], workers=2))
    assert mark.exists()
    assert found == {str(n): (n, None) for n in range(12)}


def test_a_task_that_kills_every_worker_fails_alone():
    found = answers(run(worked.killed_always, tasks_of(range(9)), workers=2, retries=1))
    assert found.pop("5") == (None, "its worker died 2 times while computing it")
    assert found == {str(n): (n, None) for n in range(9) if n != 5}


def test_a_worker_that_lacks_something_ends_the_run_after_what_is_done():
    found, keys = run(worked.lacks_a_model, tasks_of(range(9))), []
    with pytest.raises(WorkerUnfit, match="the folder 'model' is not here"):
        keys.extend(done.key for done in found)
    assert keys == ["0", "1", "2", "3", "4"]


def test_processes_end_with_the_driver_however_it_ends(tmp_path):
    code = (
        "import os, sys; from kit import worked; from rankscope.work import Task, run\n"
        "found = run(worked.slow, [Task(str(n), (n, sys.argv[1])) for n in range(10_000)], workers=2)\n"
        "next(found); print(os.getpid(), flush=True)\n"
        "for _ in found: pass\n"
    )
    paths = os.pathsep.join(
        [str(Path(worked.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = os.environ | {"PYTHONPATH": paths}
    driver = subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", code, str(tmp_path)], env=environment, stdout=subprocess.PIPE
    )
    driver.stdout.readline()
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 60
    while True:  # nothing is computed any more once the number of marks stands still for two seconds
        before = len(list(tmp_path.iterdir()))
        time.sleep(2)
        if len(list(tmp_path.iterdir())) == before:
            break
        assert time.monotonic() < deadline, "workers outlive their driver"
    assert before < 10_000


def test_stopping_early_ends_the_pool():
    found = run(worked.squared, tasks_of(range(1000)), workers=2)
    assert isinstance(next(found), Done)
    found.close()


def test_wrong_numbers_of_workers_are_refused():
    for wrong in (0, -1, 5000):
        with pytest.raises(ConfigError, match=f"workers={wrong}: need at least one"):
            next(run(worked.squared, tasks_of([1]), workers=wrong))


def test_a_cluster_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankscope\[cluster\]'"):
        next(run(worked.squared, tasks_of([1]), cluster="ray"))


def test_an_address_that_is_none_and_one_where_nobody_listens_are_one_line(monkeypatch):
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    for wrong in ("rye", "ray://", "ray://host", "http://host:1", "host:port"):
        with pytest.raises(ConfigError, match="names no cluster; use 'ray', ray://HOST:10001 or HOST:6379"):
            next(run(worked.squared, tasks_of([1]), cluster=wrong))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        for address in (f"ray://127.0.0.1:{port}", f"127.0.0.1:{port}"):
            with pytest.raises(RankscopeError, match="cannot be reached"):
                next(run(worked.squared, tasks_of([1]), cluster=address))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        with pytest.raises(RankscopeError, match="cannot be reached"):
            next(run(worked.squared, tasks_of([1]), cluster="ray"))


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_listens_and_is_no_head_is_one_line(monkeypatch, answer):
    """Ray itself would ask it again and again, for minutes."""
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setattr(cluster, "REACHED_WITHIN", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            line, _ = server.accept()
            with line:
                line.recv(64)
                time.sleep(0.5) if answer is None else line.sendall(answer)

        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(
            RankscopeError, match=r"cannot be reached: (timed out|what answers there is no head)"
        ):
            cluster.check_cluster(f"ray://127.0.0.1:{server.getsockname()[1]}")
        speaker.join()


def test_a_key_is_a_hash_of_the_question():
    assert task_key({"a": 1, "b": [2]}) == task_key({"b": [2], "a": 1}) != task_key({"a": 1, "b": [3]})
    with pytest.raises(ValueError, match="JSON"):
        task_key({"a": float("nan")})
