"""Several runs of one model side by side, block by block: each waits at a block until that block is in memory.

Every run is the model's own forward pass in a thread of its own, so that a block is called with exactly what the model
calls it with: masks, positions, what earlier blocks have handed over. But one thread runs at a time, and only it has
its hooks on the model; the others wait where a block begins. So every part of the model sees the runs in their order,
as if they came one after the other.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from rankscope.sources.roles import every_module

T = TypeVar("T")

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
"""Where a module keeps the hooks of its calls."""


Hook = tuple[dict[int, Any], int, Any]
"""What holds the hooks of a module, and the key and the hook in it."""


class _Abandoned(BaseException):
    """Raised where a run waits that is not to go on; it is no error of the model."""


class Run(Generic[T]):
    """One task in a thread of its own, which runs only while it has its turn."""

    def __init__(self, task: Callable[["Run[T]"], T], model: nn.Module) -> None:
        self.wanted: int | None = None
        """The block that it waits for."""

        self.is_in_model = False
        """Whether the model's own code runs."""

        self.depth = 0
        """How many blocks it is inside of."""

        self.is_done = False
        self.is_running = False
        self.is_abandoned = False
        self._task, self._model = task, model
        self._result: T | None = None
        self._error: BaseException | None = None
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        self._hooks: list[Hook] = []
        self._before: set[tuple[int, int]] = set()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._threads = torch.get_num_threads()

    def go(self) -> None:
        """Let it run until it waits for a block or ends; what it raised is raised here."""
        if self._thread.ident is None:
            self._thread.start()
        self.is_running = True
        self._mine.release()
        self._stopped()
        if self._error is not None and not self.is_abandoned:
            raise self._error

    def _stopped(self) -> None:
        """It waits or is over."""
        self._others.acquire()
        self.is_running = False

    @property
    def result(self) -> T:
        """What its task has returned."""
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Let it end where it is: its hooks and settings are undone."""
        self.is_abandoned = True
        if self.is_running:  # what lets it run was interrupted
            self._stopped()
        while self._thread.ident is not None and not self.is_done:
            self.go()

    def wait(self, block: int) -> None:
        """Called by its task: let others run until this block is there."""
        self.wanted = block
        for held, key, _ in self._hooks:
            held.pop(key, None)
        self._others.release()
        self._mine.acquire()
        for held, key, hook in self._hooks:
            held[key] = hook
        self.wanted = None
        self.check()

    def check(self) -> None:
        """Called by its task: end here if it is not to go on."""
        if self.is_abandoned:
            raise _Abandoned

    def hold_hooks(self) -> None:
        """Called by its task: the hooks that it has put on the model so far are its own, and go when it waits."""
        self._hooks = [one for one in _hooks_on(self._model) if (id(one[0]), one[1]) not in self._before]

    def _run(self) -> None:
        self._mine.acquire()
        try:
            if not self.is_abandoned:
                torch.set_num_threads(self._threads)
                self._before = {(id(held), key) for held, key, _ in _hooks_on(self._model)}
                self._result = self._task(self)
        except BaseException as error:  # of the thread that lets it run
            self._error = error
        finally:
            self.is_done = True
            self._hooks = []
            self._others.release()


def _hooks_on(model: nn.Module) -> Iterator[Hook]:
    for module in every_module(model):
        for name in _HOOKS:
            held = getattr(module, name)
            for key, hook in held.items():
                yield held, key, hook


def side_by_side(
    tasks: Sequence[Callable[[Run[T]], T]],
    model: nn.Module,
    units: Sequence[Sequence[str]],
    *,
    moved: Callable[[int], None],
    turned: Callable[[Run[T]], None],
) -> list[T]:
    """What the tasks return, each of which runs the model once, all of them block by block.

    ``units`` are the paths of modules that are in memory together. ``moved`` is called before the runs go on from one
    unit to the next, with the number of units that are behind them; ``turned`` when a run has its turn, and when it
    enters or leaves a module of a unit.
    """
    runs = [Run(task, model) for task in tasks]
    current: list[Run[T]] = []
    here: list[int] = []

    def go(run: Run[T]) -> None:
        current[:] = [run]
        turned(run)
        run.go()

    def entered(unit: int) -> None:
        (run,) = current
        run.check()
        if here != [unit]:
            run.wait(unit)
        run.depth += 1
        turned(run)

    def left() -> None:
        (run,) = current
        run.depth -= 1
        turned(run)

    with _stopping(model, units, entered, left):
        try:
            for run in runs:
                go(run)
            done = 0
            while waiting := [run for run in runs if not run.is_done]:
                unit = waiting[0].wanted
                moved(done)
                here[:] = [unit] if unit is not None else []
                for run in waiting:
                    if run.wanted == unit:
                        go(run)
                done += 1
        finally:
            for run in sorted(runs, key=lambda one: not one.is_running):
                current[:] = [run]
                run.abandon()
    return [run.result for run in runs]


@contextmanager
def _stopping(
    model: nn.Module,
    units: Sequence[Sequence[str]],
    entered: Callable[[int], None],
    left: Callable[[], None],
) -> Iterator[None]:
    """Modules of units stop where they begin."""

    def stopping(forward: Callable[..., Any], unit: int) -> Callable[..., Any]:
        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            entered(unit)
            try:
                return forward(*args, **kwargs)
            finally:
                left()

        return run

    changed = [(model.get_submodule(path), unit) for unit, paths in enumerate(units) for path in paths]
    before = [(module, module.__dict__.get("forward")) for module, _ in changed]
    try:
        for module, unit in changed:
            module.__dict__["forward"] = stopping(module.forward, unit)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = forward
