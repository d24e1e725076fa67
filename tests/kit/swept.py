"""A driver of sweeps that can be killed, and workers that say what they compute. Processes import it by name."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankscope.studies import sweep as study
from rankscope.studies.sweep import Configured
from rankscope.studies.sweep import compute as computed
from rankscope.work import Ledger, task_key

LOG = "RANKSCOPE_TEST_SWEEP_LOG"
TESTS = Path(__file__).parents[1]


def logged(asked: Configured) -> bytes:
    """What ``compute`` gives, after a line in the log: which configuration, and who computes it."""
    line = f"{task_key(dict(asked.values))} {os.getpid()}\n"
    handle = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)
    return computed(asked)


def main() -> None:
    """A sweep whose workers say what they compute: SPEC FOLDER WORKERS CLUSTER."""
    spec, folder, workers, cluster = sys.argv[1:]
    study.compute = logged
    study.sweep(spec, folder=folder, workers=int(workers) or None, cluster=cluster or None)


def environment(log: Path) -> dict[str, str]:
    """What a driver needs to find the tests and the log, and its workers too."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {LOG: str(log), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def entries(log: Path) -> list[tuple[str, int]]:
    """Which configuration was computed by which process, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(key, int(pid)) for key, pid in (line.split() for line in lines)]


def recorded(folder: Path) -> set[str]:
    """The configurations that the ledger holds, by the names of the log."""
    with Ledger.look(folder, kind="sweep") as ledger:
        plan = study.read_spec(ledger.asked)
        return {
            task_key({**plan.fixed, **plan.varied(place)})
            for place in range(len(plan))
            if study._key(plan.command, plan.config(place)) in ledger
        }


def count_recorded(folder: Path) -> int:
    """How many configurations the ledger holds, also while another writes it."""
    with Ledger.look(folder, kind="sweep") as ledger:
        return len(ledger)


def swept_with_kills(
    spec: Path,
    folder: Path,
    *,
    drivers: int,
    workers_killed: int,
    workers: int = 2,
    cluster: str = "",
    seed: int = 0,
) -> int:
    """Run a sweep to its end, its driver killed so often and workers so often; how often one was computed in vain.

    Asserts that nothing runs again that was recorded when a driver died.
    """
    draw = random.Random(seed)  # noqa: S311 - when something dies
    log = folder.parent / f"{folder.name}.log"
    total = len(study.read_spec(spec))
    alive = workers_killed
    for round_ in range(drivers + 1):
        is_last = round_ == drivers
        known = recorded(folder) if (folder / "ledger.sqlite").exists() else set()
        begun = len(entries(log))
        command = [sys.executable, "-c", "from kit.swept import main; main()"]
        driver = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, str(spec), str(folder), str(workers), cluster],
            env=environment(log),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        stop_at = begun + draw.randint(total // 12 + 4, total // (drivers + 2) + 4)
        while driver.poll() is None:
            found = entries(log)
            if alive and len(found) > begun + 4 and found[-1][1] != driver.pid:
                alive -= 1
                try:
                    os.kill(found[-1][1], signal.SIGKILL)
                except ProcessLookupError:
                    alive += 1  # it had ended by itself
            if not is_last and len(found) >= stop_at:
                driver.kill()
            time.sleep(0.02)
        said = driver.communicate()[1]
        assert driver.returncode == (0 if is_last else -signal.SIGKILL), said
        again = {key for key, _ in entries(log)[begun:]} & known
        assert not again, f"{len(again)} configurations ran again that were recorded"
    assert alive == 0
    return len(entries(log)) - total


if __name__ == "__main__":
    main()
