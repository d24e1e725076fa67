"""A cluster that is simulated: the real loop gives out tasks, and time, work and deaths are numbers.

It answers how long a run takes on machines that one does not have, and how much work their deaths cost.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.work.scheduler import RETRIES, Answers, Done, Task, schedule

HOUR = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """A cluster. Nodes die at random, independently, and come back after a while.

    Args:
        nodes: how many.
        processors: of each.
        hours_between_deaths: of one node, on average; None: none dies.
        repair_minutes: until a node that died is back.
        give_out_seconds: what the driver spends on a chunk: sending it, reading its answers, writing them down.
    """

    nodes: int
    processors: int
    hours_between_deaths: float | None = None
    repair_minutes: float = 10.0
    give_out_seconds: float = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What became of a run."""

    finished: int
    """Tasks with a value."""

    failed: int
    """Tasks that were given up, because their workers died too often."""

    hours: float
    """From the first task to the last."""

    ideal_hours: float
    """The work divided by the number of processors: nobody can be faster."""

    lost: float
    """Processor time that died with its node, as a share of all that was spent."""

    deaths: int
    """Nodes that died."""


class SimulatedCluster:
    """An engine whose time is a number. A chunk is lost if its node dies before it ends."""

    aim = 1.0

    def __init__(self, machines: Machines, draw: random.Random) -> None:
        self._machines, self._draw = machines, draw
        self.now, self.spent, self.lost, self.deaths = 0.0, 0.0, 0.0, 0
        self._idle = [node for node in range(machines.nodes) for _ in range(machines.processors)]
        self._running = dict[int, tuple[int, float, Sequence[Task[float]]]]()
        self._events = list[tuple[float, int, str, int]]()
        self._count = 0
        for node in range(machines.nodes):
            self._let_die(node)

    def slots(self) -> int:
        """All processors, also those that are down: they come back."""
        return self._machines.nodes * self._machines.processors

    def room(self) -> int:
        """Processors that are up and have nothing to do."""
        return len(self._idle)

    def submit(self, chunk: Sequence[Task[float]]) -> None:
        """Start a chunk; the driver gives out one after the other."""
        self.now += self._machines.give_out_seconds
        node = self._idle.pop()
        self._count += 1
        self._running[self._count] = (node, self.now, chunk)
        self._happens(self.now + sum(task.argument for task in chunk), "ends", self._count)

    def wait(self) -> Sequence[tuple[Sequence[Task[float]], Answers[None] | None]]:
        """What happens next: a chunk ends, a node dies with all its chunks, or one comes back."""
        at, _, kind, which = heapq.heappop(self._events)
        self.now = max(self.now, at)
        if kind == "ends":
            if which not in self._running:
                return []  # it died with its node
            node, since, chunk = self._running.pop(which)
            self.spent += at - since
            self._idle.append(node)
            return [(chunk, Answers(tuple(Done(task.key, None, None, task.argument) for task in chunk)))]
        if kind == "back":
            self._idle += [which] * self._machines.processors
            self._let_die(which)
            return []
        self.deaths += 1
        self._idle = [node for node in self._idle if node != which]
        gone = [number for number, (node, _, _) in self._running.items() if node == which]
        found = list[tuple[Sequence[Task[float]], Answers[None] | None]]()
        for number in gone:
            _, since, chunk = self._running.pop(number)
            self.spent += at - since
            self.lost += at - since
            found.append((chunk, None))
        self._happens(at + 60.0 * self._machines.repair_minutes, "back", which)
        return found

    def close(self) -> None:
        """Nothing was started."""

    def _let_die(self, node: int) -> None:
        between = self._machines.hours_between_deaths
        if between is not None:
            self._happens(self.now + self._draw.expovariate(1 / (HOUR * between)), "dies", node)

    def _happens(self, at: float, kind: str, which: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, kind, which))


def simulate(
    machines: Machines, seconds: Sequence[float], *, seed: int = 0, retries: int = RETRIES
) -> Simulated:
    """A run of tasks that take so many seconds each.

    >>> found = simulate(Machines(nodes=2, processors=2, give_out_seconds=0.0), [1.0] * 8)
    >>> found.finished, found.hours * 3600, found.lost
    (8, 2.0, 0.0)
    """
    engine = SimulatedCluster(machines, random.Random(seed))  # noqa: S311 - a simulation
    tasks = [Task(str(place), float(one)) for place, one in enumerate(seconds)]
    failures = [
        done.failure is not None for done in schedule(engine, tasks, total=len(tasks), retries=retries)
    ]
    return Simulated(
        finished=failures.count(False),
        failed=failures.count(True),
        hours=engine.now / HOUR,
        ideal_hours=sum(seconds) / (machines.nodes * machines.processors) / HOUR,
        lost=engine.lost / engine.spent if engine.spent else 0.0,
        deaths=engine.deaths,
    )
