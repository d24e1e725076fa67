"""Tasks to whoever computes them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

from pydantic import JsonValue

from rankscope.errors import ConfigError, Option
from rankscope.work.engines import Pool, Serial
from rankscope.work.scheduler import RETRIES, Done, Engine, Task, schedule

A = TypeVar("A")
R = TypeVar("R")

MOST_WORKERS = 1_024


def run(
    work: Callable[[A], R],
    tasks: Iterable[Task[A]],
    *,
    workers: int | None = None,
    cluster: str | None = None,
    retries: int = RETRIES,
) -> Iterator[Done[R]]:
    """Every task as it is done, in any order; each is computed alone, with one thread.

    Args:
        work: a function of a module: processes elsewhere import it. It takes the argument of a task.
        tasks: read as they are given out.
        workers: processes of this machine; 1 and None are this process itself. Of a cluster, the most processors that
            are used; None uses all.
        cluster: ``"ray"`` (the cluster that this machine belongs to), ``"ray://HOST:10001"`` or ``"HOST:6379"``.
        retries: so often a task is tried again whose worker died while it was alone with it.

    Stop early by closing the generator; what is still computed is thrown away then.
    """
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(Option("workers", workers), f": need at least one and at most {MOST_WORKERS}")
    total = len(tasks) if isinstance(tasks, Sized) else None
    engine = _engine(work, workers, cluster)
    try:
        yield from schedule(engine, tasks, total=total, retries=retries)
    finally:
        engine.close()


def _engine(work: Callable[[A], R], workers: int | None, cluster: str | None) -> Engine[A, R]:
    if cluster is not None:
        from rankscope.work.cluster import Cluster

        return Cluster(work, cluster, workers)
    return Serial(work) if workers in (None, 1) else Pool(work, workers)


def task_key(asked: Mapping[str, JsonValue] | Any) -> str:
    """The name of a task: a hash of what it is asked.

    >>> task_key({"seed": 0, "mask": "full"}) == task_key({"mask": "full", "seed": 0})
    True
    """
    text = json.dumps(asked, sort_keys=True, allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
