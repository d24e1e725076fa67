"""The figures of path effectiveness: what their rules say of true and of false curves, and the figure as a whole."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from kit.reloaded import assert_same_when_loaded
from rankscope.papers.figures import FIGURES
from rankscope.papers.figures import paths_effectiveness as figures
from rankscope.papers.figures.figure import Job, Statement
from rankscope.papers.figures.paths_effectiveness import PathsEffectivenessConfig, PathsFound, falls, points
from rankscope.papers.tasks import SortConfig
from rankscope.papers.tasks.effectiveness import (
    EffectivenessConfig,
    FullModel,
    KeptPaths,
    LengthIdentity,
    LengthShare,
    PathRow,
    PathScores,
    Refit,
    Sense,
    Weights,
    over_seeds,
)
from rankscope.results import Table
from rankscope.results.store import Store

RATIO = "residual_ratio[composite,mean]"
PAPER = [0.25, 0.8, 0.5, 0.3, 0.15, 0.11, 0.1]
LINES = {"naive": 0.1, "without letters": 0.3}
EMPTY = Table.from_columns({"measure": ["a"], "definition": ["a"], "value": [0.0], "floor": [0.0]})

Number = Callable[[str, str, int], float]
"""Of weights, mode and length."""


def by_length(curve: list[float]) -> Number:
    return lambda weights, mode, length: curve[length] if weights == "trained" else 0.1


AS_PUBLISHED = by_length(PAPER)


def decaying(weights: str, mode: str, length: int) -> float:
    return (0.5 if weights == "trained" else 0.01) ** length


def found_of(
    *,
    accuracy: Number = AS_PUBLISHED,
    refit: Number = lambda weights, mode, length: 0.8,
    common: Number = lambda weights, mode, length: 0.3,
    ratio: Number = decaying,
    floor: float = 1e-14,
    full: float = 0.99,
    seeds: int = 3,
    noise: float = 0.004,
    is_paper_size: bool = True,
) -> PathsFound:
    """What the figure found, with a spread between seeds of the size of ``noise``."""
    rows, models = list[PathRow](), list[FullModel]()
    for seed in range(seeds):
        off = noise * (seed - (seeds - 1) / 2)
        for weights in get_args(Weights):
            whole = full if weights == "trained" else 0.1
            models.append(FullModel(model="sort", seed=seed, weights=weights, accuracy=whole + off))
            for mode in get_args(Sense):
                for length in range(7):
                    own = ratio(weights, mode, length) * (1 + off)
                    numbers = {
                        "token_accuracy": accuracy(weights, mode, length) + off,
                        "refit_accuracy": refit(weights, mode, length) + off,
                        "refit_common": common(weights, mode, length) - off,
                        "refit_chance": 0.1 + off,
                        RATIO: own,
                    }
                    about = KeptPaths(
                        model="sort",
                        seed=seed,
                        weights=weights,
                        mode=mode,
                        length=length,
                        paths="all",
                        summed=9,
                    )
                    for name, value in numbers.items():
                        row = PathRow(
                            **dict(about), measure=name, definition=name, value=value, floor=floor,
                            resolved=own > floor,
                        )  # fmt: skip
                        rows.append(row)
                        if mode != "frozen" and "refit" not in name:
                            drawn = row.model_copy(update={"paths": "drawn", "summed": 20})
                            few = {"summed": 5, "value": 0.0}
                            rows += [drawn, drawn.model_copy(update=few)]
    return PathsFound(
        task="sort",
        models=tuple(models),
        over_seeds=over_seeds(rows),
        identity=LengthIdentity(relative_error=1e-15, dtype="float64"),
        refit=Refit(examples=100, in_sample=False),
        examples=200,
        baselines=LINES,
        published={"full model": 0.98, "naive": 0.10},
        lengths=tuple(LengthShare(length=length, paths=9, share=1 / 7) for length in range(7)),
        is_paper_size=is_paper_size,
        drawn=20,
        repeats=5,
    )


def judged(**changes: Any) -> dict[str, Statement]:
    """The verdict by statement."""
    return {point.statement: point for point in points(found_of(**changes))}


def agrees(start: str, end: str = "", **changes: Any) -> bool | None:
    (found,) = (p for s, p in judged(**changes).items() if s.startswith(start) and s.endswith(end))
    return found.agrees


def test_a_curve_as_published_agrees_everywhere() -> None:
    found = judged()
    assert len(found) == 16
    assert {statement: point.agrees for statement, point in found.items() if not point.agrees} == {}
    assert [point.source for point in found.values()].count("reported") == 7


@pytest.mark.parametrize("mode", ["official", "isolated", "frozen"])
def test_short_paths_are_judged_by_the_interval_over_seeds(mode: str) -> None:
    start, end = "Paths of length 1 are clearly above", f"in the sense {mode}."

    def level(value: float) -> Number:
        return lambda weights, own, length: value if own == mode and length == 1 else 0.1

    assert agrees(start, end, accuracy=level(0.2)) is True
    assert agrees(start, end, accuracy=level(0.2), noise=0.05) is None  # 4.3 * 0.05 / sqrt(3) = 0.12
    assert agrees(start, end, accuracy=level(0.05)) is False
    assert agrees(start, end, accuracy=level(0.2), seeds=1) is None


@pytest.mark.parametrize("mode", ["official", "isolated", "frozen"])
def test_long_paths_are_near_within_a_tenth_of_the_way_to_the_full_model(mode: str) -> None:
    start, end = "Paths of length 6 are near", f"in the sense {mode}."

    def level(value: float) -> Number:
        return lambda weights, own, length: value if own == mode and length == 6 else 0.5

    for value, expected in (
        (0.17, True),
        (0.03, True),
        (0.22, False),
        (0.18, None),
        (0.02, None),
        (0.0, False),
    ):
        assert agrees(start, end, accuracy=level(value)) is expected, value
    assert agrees(start, end, accuracy=level(0.17), noise=0.05) is None
    below = next(p for s, p in judged(accuracy=level(0.0)).items() if s.startswith(start) and s.endswith(end))
    assert "It lies below that." in below.measured
    # a full model that is little better than guessing leaves little room
    assert agrees(start, end, accuracy=level(0.17), full=0.3) is False


def test_decay_reads_the_whole_curve() -> None:
    start = "From length 1 on"
    assert agrees(start, accuracy=by_length([0.2, 0.8, 0.3, 0.5, 0.2, 0.1, 0.1])) is None  # a step rises
    assert agrees(start, accuracy=by_length([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])) is False
    assert agrees(start, accuracy=by_length([0.2, 0.8, 0.09, 0.1, 0.12, 0.1, 0.11])) is True  # around naive
    assert agrees(start, accuracy=by_length([0.2, 0.8, 0.0, 0.18, 0.12, 0.1, 0.11])) is None  # from far below
    assert agrees(start, accuracy=by_length([0.2] * 7)) is None
    assert agrees(start, seeds=1) is None


def test_no_heads_against_one() -> None:
    start = "Without any head"
    assert agrees(start, accuracy=by_length([0.9, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1])) is False
    assert agrees(start, accuracy=by_length([0.8, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1])) is None


def test_published_numbers_are_judged_at_the_published_size_only() -> None:
    assert agrees("The full model", full=0.9) is False
    assert agrees("The full model", full=0.977, noise=0.0005) is True  # rounds to 0.98
    assert agrees("The full model", full=0.977) is None  # 4.3 * 0.004 / sqrt(3) = 0.01
    assert agrees("The full model", full=0.97, noise=0.01) is None
    assert agrees("The full model", full=0.983, noise=0.475) is None  # .508, .983, 1.458: a mean says nothing
    assert agrees("The full model", full=0.99, seeds=1) is None
    more, same = (
        next(p for s, p in judged(full=full, noise=0.0005).items() if s.startswith("The full model"))
        for full in (0.999, 0.98)
    )
    assert "at least 0.98" in more.statement
    assert "more than the published network has" in more.measured
    assert "more than" not in same.measured
    assert (
        agrees("Paths of length 1 exceed", accuracy=by_length([0.2, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1])) is False
    )
    assert agrees("Paths of length 1 exceed", accuracy=by_length([0.2, 0.6, 0.4, 0.3, 0.2, 0.1, 0.1])) is None
    small = judged(is_paper_size=False)
    assert [point.agrees for point in small.values()][:3] == [None, None, None]
    assert all(point.agrees for point in list(small.values())[3:])


def test_fresh_classifiers_must_beat_what_tokens_have_in_common() -> None:
    start, end = "Paths of length 6 hold", "in the sense isolated."
    assert agrees(start, end) is True
    assert agrees(start, end, refit=lambda *about: 0.3) is None
    assert agrees(start, end, refit=lambda *about: 0.2) is False
    assert agrees(start, end, refit=lambda *about: 0.1, common=lambda *about: 0.05) is None  # chance
    rounding = judged(floor=0.1)  # 0.5^6 is below it
    hidden = next(p for s, p in rounding.items() if s.startswith(start) and s.endswith(end))
    assert hidden.agrees is False
    assert "not above rounding with 3 of 3 seeds" in hidden.measured


def test_residuals_before_and_after_training() -> None:
    start, end = "Training makes", "in the sense isolated."
    assert agrees(start, end) is True
    assert agrees(start, end, ratio=lambda weights, mode, length: 0.5**length) is None
    less = {"trained": 0.01, "initial": 0.5}
    assert agrees(start, end, ratio=lambda weights, mode, length: less[weights] ** length) is False
    told = judged(floor=1e-5)  # before training lengths 3 to 6 are below it
    (point,) = (p for s, p in told.items() if s.startswith(start) and s.endswith(end))
    assert point.agrees is True
    assert "initial 1, 0.01, 1e-4, rounding, rounding" in point.measured


def test_falling_by_hand() -> None:
    assert falls([[0.9, 0.9], [0.1, 0.1]], 0.1, 0.1) is True
    assert falls([[0.1, 0.1], [0.9, 0.9]], 0.1, 0.1) is False
    from_below = [[0.9, 0.9], [0.2, 0.2], [0.5, 0.5], [0.1, 0.1]]
    assert falls(from_below, 0.5, 0.1) is None  # up to the line from far below it


def test_a_seed_whose_residual_is_rounding_leaves_reading_open() -> None:
    own = found_of()
    entries = tuple(
        one.model_copy(update={"resolved": False, "resolved_seeds": 2})
        if (one.definition, one.length) == ("refit_accuracy", 6)
        else one
        for one in own.over_seeds
    )
    said = points(own.model_copy(update={"over_seeds": entries}))
    readable = [point for point in said if point.statement.startswith("Paths of length 6 hold")]
    assert [point.agrees for point in readable] == [None] * 3
    assert "not above rounding with 1 of 3 seeds" in readable[0].measured


def test_the_title_of_the_picture_says_no_more_than_the_statements() -> None:
    def title(**changes: Any) -> str:
        found = found_of(**changes)
        return figures.chart(found, EMPTY).title

    assert title() == "Sorting: paths of one head beat a naive answer, the longest do not"
    long = [0.25, 0.8, 0.5, 0.3, 0.15, 0.5, 0.6]
    assert title(accuracy=by_length(long)) == "Sorting: paths of one head beat a naive answer"
    for unclear in ({"accuracy": by_length([0.1] * 7)}, {"seeds": 1}):
        assert title(**unclear) == "Sorting: what paths of each length achieve"


def test_residuals_of_zero_have_no_place_on_a_logarithmic_axis() -> None:
    found = found_of(ratio=lambda weights, mode, length: 0.0 if length == 6 else 0.5**length, noise=0.0)
    chart = figures.chart(found, EMPTY)
    lines = [line for panel in chart.pictures[4:] for line in panel.lines]  # type: ignore[union-attr]
    assert all(line.points[6].y is None for line in lines)
    assert all(line.points[5].y is not None for line in lines)
    assert "Rings: not above the rounding floor" in chart.notes
    chart.svg()


# The figure as a whole


TINY = SortConfig.of(alphabet=4, length=3, layers=2, dim=8, train=40, test=10, epochs=3, batch=20)
SMALL = PathsEffectivenessConfig(
    figure="paths-sort",
    size="fast",
    task="sort",
    training=TINY,
    paths=EffectivenessConfig(draws=(2,), repeats=2, refit=10),
    seeds=(0, 1, 2),
)


def test_a_figure_goes_on_after_a_kill_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    table, found = figures.compute(SMALL, Job(advance=lambda *step: told.append(step)))
    assert told == sorted(told)
    assert told[-1] == (3 * (3 + 6), 3 * (3 + 6))
    assert [one.seed for one in found.models] == [0, 0, 1, 1, 2, 2]
    job = Job(store=Store(tmp_path / "store"))
    real = figures.score_paths

    def killed(trained: Any, *more: Any) -> PathScores:
        if trained.config.seed == 2:
            raise KeyboardInterrupt
        return real(trained, *more)

    monkeypatch.setattr(figures, "score_paths", killed)
    with pytest.raises(KeyboardInterrupt):
        figures.compute(SMALL, job)
    again = []
    monkeypatch.setattr(figures, "score_paths", lambda one, *more: again.append(one) or real(one, *more))
    resumed, same = figures.compute(SMALL, job)
    assert [one.config.seed for one in again] == [2]
    assert resumed.frame.equals(table.frame)
    assert same == found
    drawn = assert_same_when_loaded(FIGURES["paths-sort"], table, found, tmp_path / "one.json")
    assert "After training: residual" in drawn
    assert figures.effectiveness_chart(_as_section(table, found)).pictures


def _as_section(table: Table, found: PathsFound) -> Table:
    return replace(table, sections=found.model_dump(mode="json"))


@pytest.mark.parametrize("name", figures.TASKS_OF)
def test_sizes_are_those_of_the_paper_but_for_fast(name: figures.Name) -> None:
    task, sizes = figures.TASKS_OF[name], FIGURES[f"paths-{name}"].sizes
    assert task.name == name
    assert [config.size for config in sizes.values()] == ["fast", "usual", "full"]
    assert not sizes["fast"].is_paper_size
    for size in ("usual", "full"):
        config = sizes[size]
        assert config.is_paper_size == (config.training == task.configured("paper"))
        assert config.is_paper_size or (name, size) == ("memorize", "usual")
        assert config.training.layers == 6
    # what is not a field of every task is in the provenance, too
    fields = sizes["fast"].model_dump(mode="json")["training"]
    assert fields == task.configured("fast").model_dump(mode="json")
