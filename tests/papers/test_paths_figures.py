"""The figures of path effectiveness: what their rules say of true and of false curves, and the figure as a whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rankscope.papers.figures.paths_effectiveness_curves import Curves, above, falls, near
from rankscope.papers.figures.paths_effectiveness_words import verdict

from rankscope.papers.figures import paths_effectiveness as figures
from rankscope.papers.figures.figure import Job, Point
from rankscope.papers.figures.statistics import mean_of
from rankscope.papers.figures.store import Store
from rankscope.papers.tasks import SortConfig
from rankscope.papers.tasks.effectiveness import EffectivenessConfig
from rankscope.papers.tasks.sort import SORT
from rankscope.results import Table

RATIO = "residual_ratio[composite,mean]"
PAPER = [0.25, 0.8, 0.5, 0.3, 0.15, 0.11, 0.1]
LINES = {"naive": 0.1, "without letters": 0.3}

Number = Callable[[str, str, int], float]
"""Of weights, mode and length."""


def by_length(curve: list[float]) -> Number:
    return lambda weights, mode, length: curve[length] if weights == "trained" else 0.1


AS_PUBLISHED = by_length(PAPER)


def decaying(weights: str, mode: str, length: int) -> float:
    return (0.5 if weights == "trained" else 0.01) ** length


def measured(
    *,
    accuracy: Number = AS_PUBLISHED,
    refit: Number = lambda weights, mode, length: 0.8,
    common: Number = lambda weights, mode, length: 0.3,
    ratio: Number = decaying,
    floor: float = 1e-14,
    full: float = 0.99,
    seeds: int = 3,
    noise: float = 0.004,
) -> list[dict[str, Any]]:
    """What the study says of every seed, with a spread between seeds of the size of ``noise``."""
    found = []
    for seed in range(seeds):
        off = noise * (seed - (seeds - 1) / 2)
        rows = []
        for weights in ("trained", "initial"):
            for mode in ("frozen", "isolated", "official"):
                for length in range(7):
                    here = {"weights": weights, "mode": mode, "length": length}
                    own = ratio(weights, mode, length) * (1 + off)
                    numbers = {
                        "token_accuracy": accuracy(weights, mode, length) + off,
                        "refit_accuracy": refit(weights, mode, length) + off,
                        "refit_common": common(weights, mode, length) - off,
                        "refit_chance": 0.1 + off,
                        RATIO: own,
                    }
                    for name, value in numbers.items():
                        row = {**here, "definition": name, "value": value, "resolved": own > floor}
                        rows.append({**row, "paths": "all", "summed": 9})
                        if mode != "frozen" and "refit" not in name:
                            rows.append({**row, "paths": "drawn", "summed": 20})
                            rows.append({**row, "paths": "drawn", "summed": 5, "value": 0.0})
        models = [
            {"weights": "trained", "accuracy": full + off},
            {"weights": "initial", "accuracy": 0.1 + off},
        ]
        found.append({"rows": rows, "models": models, "identity": 1e-15, "examples": 200, "refit": None})
    return found


def points(*, is_paper_size: bool = True, **changes: Any) -> dict[str, Point]:
    """The verdict by statement."""
    curves = Curves.of(measured(**changes), lines=LINES, is_paper_size=is_paper_size)
    return {point["statement"]: point for point in verdict(curves, SORT)}


def agrees(start: str, end: str = "", **changes: Any) -> bool | None:
    (found,) = (p for s, p in points(**changes).items() if s.startswith(start) and s.endswith(end))
    return found["agrees"]


def test_a_curve_as_published_agrees_everywhere() -> None:
    found = points()
    assert len(found) == 16
    assert {statement: point["agrees"] for statement, point in found.items() if not point["agrees"]} == {}
    assert [point["source"] for point in found.values()].count("reported") == 7


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
    below = next(p for s, p in points(accuracy=level(0.0)).items() if s.startswith(start) and s.endswith(end))
    assert "It lies below that." in below["measured"]
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
        next(p for s, p in points(full=full, noise=0.0005).items() if s.startswith("The full model"))
        for full in (0.999, 0.98)
    )
    assert "at least 0.98" in more["statement"]
    assert "more than the published network has" in more["measured"]
    assert "more than" not in same["measured"]
    assert (
        agrees("Paths of length 1 exceed", accuracy=by_length([0.2, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1])) is False
    )
    assert agrees("Paths of length 1 exceed", accuracy=by_length([0.2, 0.6, 0.4, 0.3, 0.2, 0.1, 0.1])) is None
    small = points(is_paper_size=False)
    assert [point["agrees"] for point in small.values()][:3] == [None, None, None]
    assert all(point["agrees"] for point in list(small.values())[3:])


def test_fresh_classifiers_must_beat_what_tokens_have_in_common() -> None:
    start, end = "Paths of length 6 hold", "in the sense isolated."
    assert agrees(start, end) is True
    assert agrees(start, end, refit=lambda *about: 0.3) is None
    assert agrees(start, end, refit=lambda *about: 0.2) is False
    assert agrees(start, end, refit=lambda *about: 0.1, common=lambda *about: 0.05) is None  # chance
    rounding = points(floor=0.1)  # 0.5^6 is below it
    hidden = next(p for s, p in rounding.items() if s.startswith(start) and s.endswith(end))
    assert hidden["agrees"] is False
    assert "not above rounding with 3 of 3 seeds" in hidden["measured"]


def test_residuals_before_and_after_training() -> None:
    start, end = "Training makes", "in the sense isolated."
    assert agrees(start, end) is True
    assert agrees(start, end, ratio=lambda weights, mode, length: 0.5**length) is None
    less = {"trained": 0.01, "initial": 0.5}
    assert agrees(start, end, ratio=lambda weights, mode, length: less[weights] ** length) is False
    told = points(floor=1e-5)  # before training lengths 3 to 6 are below it
    (point,) = (p for s, p in told.items() if s.startswith(start) and s.endswith(end))
    assert point["agrees"] is True
    assert "initial 1.0e+00, 1.0e-02, 1.0e-04, rounding, rounding" in point["measured"]


def test_rules_by_hand() -> None:
    wide, one = mean_of([0.0, 0.5, 1.0]), mean_of([0.5])
    assert above(wide, 0.2) is None
    assert above(mean_of([0.3, 0.3, 0.3]), 0.2) is True
    assert above(one, 0.2) is near(one, 0.5, 0.1) is None
    assert near(mean_of([0.40, 0.41, 0.405]), 0.596, 0.03) is False  # far below is not near
    assert near(mean_of([0.55, 0.57, 0.56]), 0.596, 0.03) is None
    assert falls([[0.9, 0.9], [0.1, 0.1]], 0.1, 0.1) is True
    assert falls([[0.1, 0.1], [0.9, 0.9]], 0.1, 0.1) is False
    from_below = [[0.9, 0.9], [0.2, 0.2], [0.5, 0.5], [0.1, 0.1]]
    assert falls(from_below, 0.5, 0.1) is None  # up to the line from far below it


# The figure as a whole


TINY = {"alphabet": 4, "length": 3, "layers": 2, "dim": 8, "train": 40, "test": 10, "epochs": 3, "batch": 20}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_training", lambda task, size, seed: SortConfig.of(**TINY, seed=seed))
    few = EffectivenessConfig(draws=(2,), repeats=2, refit=10).model_dump()
    monkeypatch.setitem(figures.PATHS["sort"], "fast", few)


@pytest.mark.usefixtures("small")
def test_a_figure_goes_on_after_a_kill_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    whole = figures.make(Job(size="fast", advance=lambda *step: told.append(step)), name="sort")
    assert told == sorted(told)
    assert told[-1] == (3 * (3 + 6), 3 * (3 + 6))
    assert [one["seed"] for one in whole.sections["models"]] == [0, 0, 1, 1, 2, 2]
    job = Job(size="fast", seeds=(0, 1, 2), store=Store(tmp_path))
    real = figures.measured

    def killed(trained: Any, *more: Any) -> dict[str, Any]:
        if trained.config.seed == 2:
            raise KeyboardInterrupt
        return real(trained, *more)

    monkeypatch.setattr(figures, "measured", killed)
    with pytest.raises(KeyboardInterrupt):
        figures.make(job, name="sort")
    trained_again = []
    monkeypatch.setattr(figures, "measured", lambda one, *more: trained_again.append(one) or real(one, *more))
    resumed = figures.make(job, name="sort")
    assert [one.config.seed for one in trained_again] == [2]
    assert resumed.frame.equals(whole.frame)
    assert resumed.sections == whole.sections
    draw(resumed)


def draw(table: Table) -> None:
    chart: Any = figures._chart(table)
    assert "the task sort" in str(chart.to_dict()["title"]["text"])


def test_sizes_are_those_of_the_paper_but_for_fast() -> None:
    for name, task in figures.TASKS_OF.items():
        assert task.name == name
        for size in ("usual", "full"):
            config = figures._training(task, size, 5)  # type: ignore[arg-type]
            is_paper = config == task.configured("paper", seed=5)
            assert is_paper == figures._is_paper_size(name, size)  # type: ignore[arg-type]
            assert is_paper or (name, size) == ("memorize", "usual")
            assert config.layers == 6
        for fields in figures.PATHS[name].values():
            EffectivenessConfig.of(**fields)
