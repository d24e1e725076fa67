"""``circle``: one layer, applied again and again to two points on opposite sides of a circle."""

from collections.abc import Iterator
from typing import Any, Literal

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.circle_cases import CASES, Case
from rankscope.papers.figures.circle_runs import found_of
from rankscope.papers.figures.circle_words import verdict_and_notes
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.tasks.circle import CIRCLE, CircleConfig
from rankscope.results import Table
from rankscope.studies.rows import Rows

DISTANCE, MEAN = "distance[start]", "mean[radius]"
DEFINITIONS = {
    DISTANCE: "distance of the two points over that at the start",
    MEAN: "length of the mean of the two points over the radius of the circle",
}


class CircleFigureConfig(Config):
    """Sizes of the figure: which hidden sizes and seeds, how many steps are followed, and how training differs."""

    figure: Literal["circle"] = "circle"
    size: Size
    hidden: tuple[int, ...]
    seeds: tuple[int, ...]
    steps: int = 300
    points: int = 1000
    epochs: int = 70
    around_epochs: int = 190

    def task(self, case: Case, hidden: int, seed: int) -> CircleConfig:
        """The configuration of one network."""
        epochs = self.around_epochs if case.name == "around" else self.epochs
        fields = {"points": self.points, "epochs": epochs, "dim": hidden, "seed": seed}
        config: CircleConfig = CIRCLE.configured(
            case.setting, **fields | {"variant": case.variant} | dict(case.fields)
        )
        return config


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {
        "hidden": (32,),
        "seeds": range(1),
        "points": 200,
        "steps": 100,
        "epochs": 70,
        "around_epochs": 400,
    },
    "usual": {"hidden": (32, 64, 128), "seeds": range(3)},
    "full": {"hidden": (32, 64, 128), "seeds": range(10)},
}


def make(job: Job) -> Table:
    """The table of the figure: distance and mean at every step of every network."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = CircleFigureConfig.of(size=job.size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, networks = Rows(), []
    work = list(_work(config))
    for done, (case, hidden, seed) in enumerate(work):
        job.tell(done, len(work))
        key = f"{case.name}-{hidden}-{seed}"
        found = found_of(config.task(case, hidden, seed), config.steps, job, key)
        networks.append({"case": case.name, "variant": case.variant, "hidden": hidden, "seed": seed, **found})
        _add(rows, networks[-1], config.task(case, hidden, seed).radius)
    job.tell(len(work), len(work))
    points, notes = verdict_and_notes(networks, config.steps, config.points)
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=DEFINITIONS,
        cases={case.name: case.title for case in CASES},
        networks=networks,
        training={
            case.name: config.task(case, config.hidden[0], 0).model_dump(mode="json") for case in CASES
        },
        verdict=points,
        notes=notes,
    )


def _work(config: CircleFigureConfig) -> Iterator[tuple[Case, int, int]]:
    for case in CASES:
        for hidden in config.hidden:
            for seed in config.seeds:
                yield case, hidden, seed


def _add(rows: Rows, network: dict[str, Any], radius: float) -> None:
    start, count = network["distance"][0], len(network["distance"])
    about = {name: network[name] for name in ("case", "variant", "hidden", "seed")}
    about |= {"model": "circle", "step": list(range(count))}
    for definition, name, unit in ((DISTANCE, "distance", start), (MEAN, "mean", radius)):
        rows.add(
            count,
            {
                **about,
                "measure": name,
                "definition": definition,
                "value": [one / unit for one in network[name]],
                "floor": [one / unit for one in network["floor"]],
            },
        )


def _chart(table: Table) -> Any:
    from rankscope.plots.recurrent_circle import circle_chart

    return circle_chart(table)


register(
    OldFigure(
        name="circle",
        title="one layer applied again and again to two points of a circle",
        source=Ref(
            key="dong2021",
            where="Section 4.3, recurrent attention on two points",
            differs="attention without the skip and norm that the published layer has inside, beside that layer; "
            "settings that train, beside the published ones",
        ),
        question="Do two tokens merge when one layer is repeated, and what keeps them apart?",
        durations={
            "fast": "about 15 seconds",
            "usual": "about 3 minutes",
            "full": "about 10 minutes (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
