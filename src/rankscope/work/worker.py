"""What runs where the work is done: tasks one after the other, with one thread, failures as words."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rankscope.errors import RankscopeError, is_out_of_memory
from rankscope.results.table import rankscope_version

A = TypeVar("A")
R = TypeVar("R")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What libraries of linear algebra read when they are loaded."""


class WorkerUnfit(RankscopeError):  # noqa: N818 - reads as a sentence
    """The machine that should do the work lacks something: the model, a package. No task is to blame."""


@dataclass(frozen=True, slots=True)
class Task(Generic[A]):
    """One piece of work: the name that it is known by, and what its function is given."""

    key: str
    argument: A


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """A task that was computed: its value, or why it has none.

    ``seconds`` are for estimates alone; those of the first task of a process hold the import of what it needs.
    """

    key: str
    value: R | None
    failure: str | None = None
    seconds: float = 0.0
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class Answers(Generic[R]):
    """What a worker sends back: its finished tasks, and what it lacks, which ends the run."""

    done: tuple[Done[R], ...]
    lacks: str | None = None


_COMPUTED = set[Callable[..., object]]()
"""The functions that this process has computed tasks with: what they need is imported."""


def compute(work: Callable[[A], R], tasks: Sequence[Task[A]], version: str) -> Answers[R]:
    """The tasks one after the other. ``version`` is the rankscope of who asks; another one here is refused."""
    if version_here() != version:
        lacks = f"a worker has rankscope {version_here()}, this is {version}; install one version everywhere"
        return Answers((), lacks=lacks)
    found = list[Done[R]]()
    with one_thread():
        for task in tasks:
            is_first, started = work not in _COMPUTED, time.perf_counter()
            _COMPUTED.add(work)
            try:
                value, failure = work(task.argument), None
            except WorkerUnfit as error:
                return Answers(tuple(found), lacks=str(error))
            except Exception as error:
                value, failure = None, failure_words(error)
            found.append(Done(task.key, value, failure, time.perf_counter() - started, is_first))
    return Answers(tuple(found))


def version_here() -> str:
    """The version of rankscope that computes here."""
    return str(rankscope_version())


def failure_words(error: Exception) -> str:
    """Why a task has no value, on one line.

    >>> failure_words(ZeroDivisionError("division by zero"))
    'unexpected ZeroDivisionError: division by zero'
    """
    if is_out_of_memory(error):
        return "not enough memory"
    said = " ".join(str(error).split())
    return said if isinstance(error, RankscopeError) else f"unexpected {type(error).__name__}: {said}"


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside the block, in torch and in the linear algebra of numpy and scipy, as every worker has it."""
    from threadpoolctl import threadpool_limits

    torch = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with threadpool_limits(1):
        if torch is not None:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            # where the block itself imported torch there is nothing to put back: it took one thread from the limits
            if torch is not None:
                torch.set_num_threads(before)


def begin_process(parent: int) -> None:
    """Prepare a process of the pool: Ctrl-C is the driver's business, and without a driver there is nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
