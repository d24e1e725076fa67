"""Engines of one machine: this process, and a pool of others."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from rankscope.work.worker import THREAD_VARIABLES, Answers, Task, begin_process, compute, version_here

A = TypeVar("A")
R = TypeVar("R")


class Serial(Generic[A, R]):
    """Everything in this process, task by task."""

    aim = 0.0

    def __init__(self, work: Callable[[A], R]) -> None:
        self._work, self._given = work, list[Sequence[Task[A]]]()

    def slots(self) -> int:
        """One."""
        return 1

    def room(self) -> int:
        """One, if nothing is given out."""
        return 1 - len(self._given)

    def submit(self, chunk: Sequence[Task[A]]) -> None:
        """Keep it until somebody waits for it."""
        self._given.append(chunk)

    def wait(self) -> Sequence[tuple[Sequence[Task[A]], Answers[R] | None]]:
        """Compute what was given out."""
        chunk = self._given.pop()
        return [(chunk, compute(self._work, chunk, version_here()))]

    def close(self) -> None:
        """Nothing was started."""


class Pool(Generic[A, R]):
    """Processes of this machine, by joblib's loky.

    Every process is an executor of its own: where one dies, only its own chunk is lost, and a new one takes its place.
    """

    aim = 0.2

    def __init__(self, work: Callable[[A], R], workers: int) -> None:
        self._work = work
        self._idle: list[Any] = [None] * workers
        self._busy = dict[Future[Answers[R]], tuple[Any, Sequence[Task[A]]]]()
        self._workers = workers

    def slots(self) -> int:
        """The processes."""
        return self._workers

    def room(self) -> int:
        """The processes that have nothing to do."""
        return len(self._idle)

    def submit(self, chunk: Sequence[Task[A]]) -> None:
        """Give it to an idle process, which is started if there is none yet."""
        executor = self._idle.pop() or _process()
        with _without_interrupts():
            future = executor.submit(compute, self._work, chunk, version_here())
        self._busy[future] = (executor, chunk)

    def wait(self) -> Sequence[tuple[Sequence[Task[A]], Answers[R] | None]]:
        """What is done by now."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        found = list[tuple[Sequence[Task[A]], Answers[R] | None]]()
        for future in wait(self._busy, return_when=FIRST_COMPLETED).done:
            executor, chunk = self._busy.pop(future)
            try:
                answers: Answers[R] | None = future.result()
            except BrokenProcessPool:
                answers = None
                executor.shutdown(wait=False, kill_workers=True)
                executor = None
            self._idle.append(executor)
            found.append((chunk, answers))
        return found

    def close(self) -> None:
        """End the processes, also those that compute."""
        for executor in [one for one, _ in self._busy.values()] + [
            one for one in self._idle if one is not None
        ]:
            with suppress(OSError):
                executor.shutdown(wait=True, kill_workers=True)
        self._busy.clear()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes and threads that are started inside the block never see Ctrl-C; this thread sees it after the block.

    A terminal sends it to all of them, and a process that is still importing would answer with its traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # as on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process() -> Any:
    """A new process with one thread."""
    from joblib.externals.loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        max_workers=1,
        initializer=begin_process,
        initargs=(os.getpid(),),
        env=dict.fromkeys(THREAD_VARIABLES, "1"),
    )
