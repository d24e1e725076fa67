"""A corpus, a small model, and a driver of scans that can be killed, whose workers say what they measure."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankscope.studies import corpus
from rankscope.studies.corpus import Shard
from rankscope.studies.corpus import measure as measured

LOG = "RANKSCOPE_TEST_SCAN_LOG"
TESTS = Path(__file__).parents[1]


def write_corpus(file: Path, texts: int, seed: int = 0) -> Path:
    """Texts of one to sixty words of the small tokenizer; of the first twelve, every other one is too short."""
    from kit.checkpoint_folders import WORDS

    draw = random.Random(seed)  # noqa: S311 - words
    lengths = [1 if place < 12 and place % 2 else draw.choice([1, 5, 9, 14, 30]) for place in range(texts)]
    words = [*WORDS, "unheard"]
    rows = [{"text": " ".join(draw.choice(words) for _ in range(many))} for many in lengths]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_model(folder: Path, seed: int = 0) -> Path:
    """A BERT of two small blocks with a tokenizer of a few words."""
    from kit.checkpoint_folders import bert, save, word_tokenizer

    return save(bert(seed=seed), folder, tokenizer=word_tokenizer())


def logged(asked: Shard) -> bytes:
    """What ``measure`` gives, after a line in the log: which shard, and who measures it."""
    line = f"{asked.before}/{asked.kept} {os.getpid()}\n"
    handle = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)
    return measured(asked)


def counted(asked: Shard) -> bytes:
    """A part without a model, for what is about the driver alone."""
    counts = {"measured": len(asked.texts)}
    about = {"read": "texts", "family": "none", "dtype": "float32"}
    part = {"name": "none", "weights": "", "about": about, "counts": counts, "tally": corpus.Tally().state()}
    return json.dumps(part).encode()


def main() -> None:
    """A scan whose workers say what they measure: MODEL TEXTS FOLDER SHARD WORKERS CLUSTER."""
    model, texts, folder, size, workers, cluster = sys.argv[1:]
    corpus.measure = logged
    from rankscope.studies.scan import scan

    many = int(workers) or None
    scan(model, texts=texts, folder=folder, shard_size=int(size), workers=many, cluster=cluster or None)


def environment(log: Path) -> dict[str, str]:
    """What a driver needs to find the tests and the log, and its workers too."""
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {LOG: str(log), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def entries(log: Path) -> list[tuple[str, int]]:
    """Which shard was measured by which process, in order."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [(key, int(pid)) for key, pid in (line.split() for line in lines)]


def recorded(folder: Path) -> int:
    """How many parts the ledger holds."""
    if not (folder / "ledger.sqlite").exists():
        return 0
    with corpus.Ledger.look(folder, kind="scan") as ledger:
        return len(ledger)


def scanned_with_kills(
    model: Path,
    texts: Path,
    folder: Path,
    *,
    size: int,
    drivers: int,
    workers_killed: int,
    workers: int = 2,
    cluster: str = "",
) -> None:
    """Scan to the end, the driver killed so often and workers so often.

    Asserts that no shard runs again that was recorded: all that ran and was not lost with its process is in the ledger.
    """
    log, alive = folder.parent / f"{folder.name}.log", workers_killed
    for round_ in range(drivers + 1):
        is_last, known, begun = round_ == drivers, recorded(folder), len(entries(log))
        command = [sys.executable, "-c", "from kit.scanned import main; main()"]
        driver = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*command, str(model), str(texts), str(folder), str(size), str(workers), cluster],
            env=environment(log),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while driver.poll() is None:
            found = entries(log)
            if alive and len(found) > begun and found[-1][1] != driver.pid:
                alive -= 1
                try:
                    os.kill(found[-1][1], signal.SIGKILL)
                except ProcessLookupError:
                    alive += 1  # it had ended by itself
            if not is_last and recorded(folder) >= known + 3:
                driver.kill()
            time.sleep(0.1)
        said = driver.communicate()[1]
        assert driver.returncode == (0 if is_last else -signal.SIGKILL), said
    assert alive == 0
