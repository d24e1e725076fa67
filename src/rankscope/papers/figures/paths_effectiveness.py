"""``paths-memorize``, ``paths-sort``, ``paths-hull``: what paths of each length achieve on a task, over seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.paths_effectiveness_curves import Curves
from rankscope.papers.figures.paths_effectiveness_words import notes, verdict
from rankscope.papers.tasks.effectiveness import EffectivenessConfig, measured, table_of
from rankscope.papers.tasks.hull import HULL
from rankscope.papers.tasks.memorize import MEMORIZE
from rankscope.papers.tasks.sort import SORT
from rankscope.papers.tasks.task import Task, TaskConfig
from rankscope.papers.tasks.training import train_task
from rankscope.results import Table

Name = Literal["memorize", "sort", "hull"]
TASKS_OF: dict[Name, Task[Any]] = {"memorize": MEMORIZE, "sort": SORT, "hull": HULL}


class PathsEffectivenessConfig(Config):
    """A task as it is trained, and how its paths are measured; ``training`` is the same for all seeds but the seed."""

    figure: str
    size: Size
    task: Name
    training: dict[str, Any]
    paths: EffectivenessConfig
    seeds: tuple[int, ...]


SEEDS: dict[Size, range] = {"fast": range(3), "usual": range(3), "full": range(6)}

PATHS: dict[Name, dict[Size, dict[str, Any]]] = {
    "sort": {
        "fast": {"examples": 60, "refit": 100, "repeats": 3},
        "usual": {},
        "full": {"repeats": 20, "refit": 500},
    },
    "hull": {
        "fast": {"examples": 40, "refit": 100, "repeats": 3},
        "usual": {"examples": 100, "refit": 100, "singles": False},
        "full": {"repeats": 20, "refit": 300},
    },
    "memorize": {
        "fast": {"examples": 20, "refit": 40, "repeats": 3, "singles": False},
        "usual": {"examples": 20, "refit": 88, "singles": False},
        # all paths of a length would take hours with 250 channels and 128 tokens
        "full": {"examples": 16, "refit": 88, "most_paths": 0},
    },
}
"""How paths are measured, where it differs from the defaults; smaller numbers of examples save time."""


SMALLER: dict[tuple[str, str], dict[str, Any]] = {
    ("memorize", "usual"): {"dim": 96, "length": 64, "sequences": 100, "epochs": 60},
}
"""Sizes that are not those of the paper, for tasks that take too long to train there."""


def make(job: Job, *, name: Name) -> Table:
    """The table of a figure: models of all seeds, trained and measured."""
    task = TASKS_OF[name]
    seeds = tuple(job.seeds or SEEDS[job.size])
    paths = EffectivenessConfig.of(**PATHS[name][job.size])
    first = _training(task, job.size, seeds[0])
    config = PathsEffectivenessConfig(
        figure=f"paths-{name}",
        size=job.size,
        task=name,
        training=first.model_dump(mode="json", exclude={"seed"}),
        paths=paths,
        seeds=seeds,
    )
    per_seed = first.epochs + paths.pieces
    found = []
    for place, seed in enumerate(seeds):
        tell = partial(_advance, job, place * per_seed, per_seed * len(seeds))
        found.append(_one(job, task, _training(task, job.size, seed), paths, tell))
        tell(per_seed)
    curves = Curves.of(found, lines=task.lines(first), is_paper_size=_is_paper_size(name, job.size))
    return table_of(
        found,
        config,
        task,
        first,
        command="reproduce",
        verdict=verdict(curves, task),
        notes=notes(curves, task, paths, found[0]),
    )


def _training(task: Task[Any], size: Size, seed: int) -> TaskConfig:
    fields = SMALLER.get((task.name, size), {})
    config: TaskConfig = task.configured("fast" if size == "fast" else "paper", **fields, seed=seed)
    return config


def _is_paper_size(name: Name, size: Size) -> bool:
    return size != "fast" and (name, size) not in SMALLER


def _one(
    job: Job, task: Task[Any], config: TaskConfig, paths: EffectivenessConfig, tell: Callable[[int], None]
) -> dict[str, Any]:
    """What ``measured`` says of one model; it is trained first, unless that is known already."""
    asked = {"task": task.name, "config": config.model_dump(mode="json")}

    def work() -> dict[str, Any]:
        folder = job.store.folder(f"seed{config.seed}", asked)
        trained = train_task(task, config, folder=folder, tell=lambda epoch: tell(epoch.epoch))
        done = iter(range(config.epochs + 1, config.epochs + paths.pieces + 1))
        return measured(trained, paths, lambda: tell(next(done)))

    found: dict[str, Any] = job.store.remember(
        f"measured{config.seed}", {**asked, "paths": paths.model_dump(mode="json")}, work
    )
    return found


def _advance(job: Job, before: int, total: int, done: int) -> None:
    job.tell(before + done, total)


def _chart(table: Table) -> Any:
    from rankscope.plots import effectiveness_chart

    name = table.frame["model"][0]
    return effectiveness_chart(table, title=f"What paths of each length achieve: the task {name}")


DURATIONS: dict[Name, dict[Size, str]] = {
    "memorize": {
        "fast": "about 1 minute",
        "usual": "about 5 minutes (extrapolated)",
        "full": "hours (extrapolated)",
    },
    "sort": {
        "fast": "about 20 seconds",
        "usual": "about 3 minutes",
        "full": "about 10 minutes (extrapolated)",
    },
    "hull": {
        "fast": "about 30 seconds",
        "usual": "about 10 minutes (extrapolated)",
        "full": "about 1 hour (extrapolated)",
    },
}

for _name, _task in TASKS_OF.items():
    register(
        OldFigure(
            name=f"paths-{_name}",
            title=f"accuracy of paths by their length, task {_name}",
            source=Ref(
                key="dong2021",
                where=f"Section 4.2, path effectiveness, {_task.source.where.rpartition(', ')[2]}",
                differs="three senses of a path beside each other, intervals over seeds, "
                "fresh classifiers; " + _task.source.differs,
            ),
            question="Do short paths alone solve the task, and are long ones collapsed, or only not read?",
            durations=DURATIONS[_name],
            make=partial(make, name=_name),
            chart=_chart,
        )
    )
