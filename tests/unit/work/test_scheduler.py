"""The loop that gives out tasks, on an engine that dies as the test says."""

import random

import pytest

from rankscope.work.scheduler import LARGEST_CHUNK, Answers, Done, Task, schedule


class Dying:
    """An engine whose chunks come back in random order, some of them lost; it notes what it was given."""

    def __init__(self, slots: int, aim: float, seconds: float, lost, seed: int) -> None:
        self.aim, self._slots, self._seconds, self._lost = aim, slots, seconds, lost
        self._random = random.Random(seed)  # noqa: S311 - a fixed choice of what dies
        self.given, self.computed, self._out = [], [], []

    def slots(self):
        return self._slots

    def room(self):
        return self._slots - len(self._out)

    def submit(self, chunk):
        self.given.append([task.key for task in chunk])
        self._out.append(chunk)

    def wait(self):
        self._random.shuffle(self._out)
        back = [self._out.pop() for _ in range(self._random.randint(1, len(self._out)))]
        return [(chunk, self._answers(chunk)) for chunk in back]

    def _answers(self, chunk):
        if self._lost([task.key for task in chunk], self._random):
            return None
        self.computed += [task.key for task in chunk]
        return Answers(tuple(Done(task.key, task.argument, None, self._seconds) for task in chunk))

    def close(self):
        pass


def tasks(count: int) -> list[Task]:
    return [Task(str(number), number) for number in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_dies_every_task_comes_back_once_and_none_is_computed_twice(seed):
    engine = Dying(5, 1.0, 0.1, lambda keys, draw: draw.random() < 0.3, seed)
    found = list(schedule(engine, tasks(200), total=200, retries=1000))
    assert sorted(int(done.key) for done in found) == list(range(200))
    assert all(done.value == int(done.key) for done in found)
    assert sorted(map(int, engine.computed)) == list(range(200))


def test_a_task_that_kills_is_found_among_those_of_its_chunk_and_only_it_fails():
    engine = Dying(3, 1.0, 0.05, lambda keys, _: "123" in keys, 0)
    found = {done.key: done for done in schedule(engine, tasks(300), total=300, retries=2)}
    assert len(found) == 300
    assert found.pop("123").failure == "its worker died 3 times while computing it"
    assert all(done.failure is None for done in found.values())
    with_it = [chunk for chunk in engine.given if "123" in chunk]
    assert len(with_it[0]) > 1
    assert with_it[1:] == [["123"]] * 3


def test_chunks_grow_to_the_aim_and_shrink_towards_the_end():
    engine = Dying(4, 1.0, 0.01, lambda keys, _: False, 0)
    assert len(list(schedule(engine, tasks(5000), total=5000))) == 5000
    sizes = [len(chunk) for chunk in engine.given]
    assert sizes[0] == 1
    assert max(sizes) == 100  # 1 s of 0.01 s each
    assert sizes[-1] == 1
    assert len(sizes) < 200
    fast = Dying(1, 1.0, 0.0, lambda keys, _: False, 0)
    list(schedule(fast, tasks(50_000)))
    assert max(len(chunk) for chunk in fast.given) == LARGEST_CHUNK


def test_tasks_are_read_as_they_are_given_out():
    read = []

    def endless():
        for task in tasks(10**6):
            read.append(task.key)
            yield task

    found = schedule(Dying(2, 0.0, 1.0, lambda keys, _: False, 0), endless())
    next(found)
    assert len(read) <= 4
