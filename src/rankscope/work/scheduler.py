"""Who computes what next. The same loop serves one process, a pool, a cluster, and a cluster that is simulated."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

from rankscope.errors import RankscopeError
from rankscope.work.worker import Answers as Answers
from rankscope.work.worker import Done as Done
from rankscope.work.worker import Task as Task
from rankscope.work.worker import WorkerUnfit

A = TypeVar("A")
R = TypeVar("R")

RETRIES = 3
"""A task whose worker dies is tried so often again before it counts as failed."""

LARGEST_CHUNK = 1_000
SHARE_OF_THE_REST = 4
"""A chunk is at most one part in so many of what is left for each slot, so that all slots end together."""

RECENT = 0.2
"""Weight of the newest chunk in the estimate of how long a task takes."""


class Engine(Protocol[A, R]):
    """Where chunks of tasks are computed.

    Attributes:
        aim: seconds of work in a chunk: long beside the time it takes to give one out, short beside a run.
    """

    aim: float

    def slots(self) -> int:
        """How many chunks are computed at the same time."""

    def room(self) -> int:
        """How many more chunks may be given out now."""

    def submit(self, chunk: Sequence[Task[A]]) -> None:
        """Give out a chunk."""

    def wait(self) -> Sequence[tuple[Sequence[Task[A]], Answers[R] | None]]:
        """Chunks that were given out, with their answers; None if a worker died. None at all if only room was made."""

    def close(self) -> None:
        """Stop what is still computed, and end what was started."""


class ClusterLost(RankscopeError):  # noqa: N818 - reads as a sentence
    """There is nobody left to compute anything."""


class _Queue(Generic[A]):
    """Tasks that nobody computes: new ones, and those that a worker took with it when it died, one by one."""

    def __init__(self, tasks: Iterable[Task[A]], total: int | None) -> None:
        self.new, self.lost, self.left = iter(tasks), deque[Task[A]](), total

    def next_chunk(self, most: int) -> list[Task[A]]:
        """What is given out next. A lost task goes alone, so that it is known which one kills its worker."""
        if self.lost:
            return [self.lost.popleft()]
        chunk = list(islice(self.new, most))
        if self.left is not None:
            self.left -= len(chunk)
        return chunk


def schedule(
    engine: Engine[A, R], tasks: Iterable[Task[A]], *, total: int | None = None, retries: int = RETRIES
) -> Iterator[Done[R]]:
    """Every task once, as it is done.

    Args:
        engine: who computes.
        tasks: read as they are given out, not before.
        total: how many there are, if that is known.
        retries: so often a task is tried again that was alone with a worker that died.
    """
    queue, deaths = _Queue(tasks, total), Counter[str]()
    in_flight, typical = 0, None
    while True:
        is_empty = False
        while not is_empty and engine.room() > 0:
            chunk = queue.next_chunk(_chunk_size(engine, typical, queue.left))
            is_empty = not chunk
            if chunk:
                engine.submit(chunk)
                in_flight += 1
        if is_empty and in_flight == 0:
            return  # without room there may be tasks left, though nothing is computed: the engine waits for a node
        for given, answers in engine.wait():
            in_flight -= 1
            if answers is None:
                alone = len(given) == 1
                for task in given:
                    deaths[task.key] += alone
                    if deaths[task.key] > retries:
                        yield Done(
                            task.key, None, f"its worker died {deaths[task.key]} times while computing it"
                        )
                    else:
                        queue.lost.append(task)
                continue
            yield from answers.done
            if answers.lacks is not None:
                raise WorkerUnfit(answers.lacks)
            if answers.done:
                mean = sum(done.seconds for done in answers.done) / len(answers.done)
                typical = mean if typical is None else (1 - RECENT) * typical + RECENT * mean


def _chunk_size(engine: Engine[A, R], typical: float | None, left: int | None) -> int:
    """As many tasks as fill the engine's aim; one while nothing is known."""
    if typical is None:
        return 1
    wanted = LARGEST_CHUNK if typical <= engine.aim / LARGEST_CHUNK else int(engine.aim / typical)
    if left is not None:
        wanted = min(wanted, left // (SHARE_OF_THE_REST * max(1, engine.slots())))
    return max(1, min(wanted, LARGEST_CHUNK))
