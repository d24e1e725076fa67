"""What a figure keeps of its work: the same question is answered once, every other one anew; and what figures ask."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.errors import FileError, NotSaved
from rankscope.papers.figures import circle, paths_effectiveness
from rankscope.papers.figures.circle_orbits import StepRecord
from rankscope.papers.figures.figure import Job
from rankscope.papers.tasks.circle import CircleConfig
from rankscope.papers.tasks.effectiveness import EffectivenessConfig, FullModel, PathScores
from rankscope.papers.tasks.sort import SORT, SortConfig
from rankscope.results import store
from rankscope.results.store import Store

ASKED: dict[str, Any] = {"seed": 1, "sizes": [4, 8]}


class Work:
    """Something to be kept: it counts how often it was done."""

    def __init__(self, found: Any = None) -> None:
        self.found, self.times = found, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.times if self.found is None else self.found


def test_the_same_question_is_answered_once(tmp_path: Path) -> None:
    work = Work()
    assert Store(tmp_path).remember("piece", ASKED, work) == 1
    assert Store(tmp_path).remember("piece", ASKED, work) == 1
    assert Store(tmp_path).remember("piece", dict(reversed(ASKED.items())), work) == 1
    assert work.times == 1


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2, "sizes": [4, 8]},
        {"seed": 1},
        {"seed": 1, "sizes": [8, 4]},
        {"seed": 1, "sizes": [4, 8], "a": 0},
    ],
)
def test_another_question_is_answered_anew(tmp_path: Path, other: dict[str, Any]) -> None:
    work = Work()
    assert Store(tmp_path).remember("piece", ASKED, work) == 1
    assert Store(tmp_path).remember("piece", other, work) == 2
    assert Store(tmp_path).remember("piece", ASKED, work) in (1, 3)  # never the answer to the other one


def test_another_key_is_another_piece(tmp_path: Path) -> None:
    work = Work()
    assert [Store(tmp_path).remember(key, ASKED, work) for key in ("a", "b", "a", "b")] == [1, 2, 1, 2]


@pytest.mark.parametrize(("name", "found"), [("rankscope_version", "0.0.0"), ("versions", {"torch": "0.0"})])
def test_what_other_versions_found_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: Any
) -> None:
    work = Work()
    Store(tmp_path).remember("piece", ASKED, work)
    before = Store(tmp_path).folder("training", ASKED)
    monkeypatch.setattr(store, name, lambda: found)
    assert Store(tmp_path).remember("piece", ASKED, work) == 2
    assert Store(tmp_path).folder("training", ASKED) != before


@pytest.mark.parametrize(
    "damage", [lambda whole: b"", lambda whole: whole[:-3], lambda whole: b"[1]", lambda whole: b"\xff"]
)
def test_a_damaged_piece_is_made_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    work = Work()
    Store(tmp_path).remember("piece", ASKED, work)
    (file,) = (path for path in tmp_path.rglob("*.json"))
    file.write_bytes(damage(file.read_bytes()))
    assert Store(tmp_path).remember("piece", ASKED, work) == 2
    assert Store(tmp_path).remember("piece", ASKED, work) == 2  # and kept again


FOUND = {"pair": (1, 2), "tenth": 0.1 + 0.2, "tiny": 5e-324, "none": None, 3: "key", "far": math.inf}


@pytest.mark.parametrize("kept", [False, True])
def test_what_was_just_made_is_what_will_be_read(tmp_path: Path, kept: bool) -> None:
    """Tuples become lists and keys texts at once, not only after a kill; numbers keep every bit."""
    place = Store(tmp_path if kept else None)
    made = place.remember("piece", ASKED, Work(FOUND))
    assert made == json.loads(json.dumps(FOUND))
    assert (made["pair"], made["3"], made["tenth"]) == ([1, 2], "key", 0.1 + 0.2)
    assert place.remember("piece", ASKED, Work(FOUND)) == made


def test_work_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fails() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).remember("piece", ASKED, fails)
    assert Store(tmp_path).remember("piece", ASKED, Work("done")) == "done"


def test_work_inside_a_piece_that_is_done_is_cleared_with_it(tmp_path: Path) -> None:
    """Killed after the piece was kept: the next run reads it and never asks for the folder of its training."""

    def figure(place: Store) -> Any:
        def make() -> str:
            folder = place.folder("piece-training", ASKED | {"epochs": 3})
            assert folder is not None
            (folder / "state").write_text("half")
            return "done"

        return place.remember("piece", ASKED, make)

    place = tmp_path / ".figure.unfinished"
    assert figure(Store(place)) == "done"
    assert len(list(place.iterdir())) == 2
    again = Store(place)
    assert figure(again) == "done"
    again.clear()
    assert not place.exists()


def test_what_other_versions_left_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ".figure.unfinished"
    with monkeypatch.context() as older:
        older.setattr(store, "rankscope_version", lambda: "0.0.0")
        Store(place).remember("piece", ASKED, Work())
    now = Store(place)
    now.remember("piece", ASKED, Work())
    now.clear()
    assert not place.exists()


def test_a_piece_that_cannot_be_kept_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise FileError("the disk is full")

    work = Work()
    monkeypatch.setattr(store, "write_atomically", full)
    with pytest.warns(NotSaved, match="a finished piece is not kept: the disk is full"):
        assert Store(tmp_path).remember("piece", ASKED, work) == 1
    monkeypatch.setattr(store, "make_folder", full)
    with pytest.warns(NotSaved, match="the disk is full"):
        assert Store(tmp_path).folder("training", ASKED) is None


def test_a_forged_piece_names_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    place = Store(tmp_path / "store")
    place.remember("piece", ASKED, Work())
    (file,) = tmp_path.rglob("result.json")
    file.write_text(json.dumps({"found": 1, "inner": ["../precious", "..", "/", 3]}))
    again = Store(tmp_path / "store")
    again.remember("piece", ASKED, Work())
    again.clear()
    assert (tmp_path / "precious").is_dir()


def test_without_a_folder_nothing_is_kept() -> None:
    work = Work()
    place = Store()
    assert [place.remember("piece", ASKED, work) for _ in range(2)] == [1, 2]
    assert place.folder("training", ASKED) is None
    place.clear()


def test_every_question_has_its_own_folder(tmp_path: Path) -> None:
    first, again, other, elsewhere = (
        Store(tmp_path).folder(key, asked)
        for key, asked in (("a", ASKED), ("a", ASKED), ("a", ASKED | {"seed": 2}), ("b", ASKED))
    )
    assert first is not None
    assert first.is_dir()
    assert first == again
    assert len({first, other, elsewhere}) == 3
    assert tmp_path in first.parents


def test_a_figure_that_is_done_takes_its_pieces_away(tmp_path: Path) -> None:
    work, place = Work(), Store(tmp_path / "kept")
    place.remember("piece", ASKED, work)
    place.clear()
    assert not list(tmp_path.rglob("*.json"))
    assert Store(tmp_path / "kept").remember("piece", ASKED, work) == 2


@pytest.mark.parametrize("key", ["", "../up", "a b", "A", ".hidden"])
def test_a_key_is_a_plain_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="key of a store"):
        Store(tmp_path).remember(key, ASKED, Work())


ONE = FullModel(model="sort", seed=3, weights="trained", accuracy=0.1 + 0.2)


def test_a_typed_piece_is_the_same_whether_it_was_made_or_read(tmp_path: Path) -> None:
    work = Work(ONE)
    for place in (Store(), Store(tmp_path), Store(tmp_path)):
        found = place.keep(FullModel, "piece", ASKED, work)
        assert isinstance(found, FullModel)
        assert found == ONE
    assert work.times == 2


@pytest.mark.parametrize("found", [{"model": "sort"}, [1], None, {**ONE.model_dump(), "accuracy": "high"}])
def test_a_piece_of_another_kind_is_made_again(tmp_path: Path, found: Any) -> None:
    Store(tmp_path).keep(FullModel, "piece", ASKED, Work(ONE))
    (file,) = tmp_path.rglob("result.json")
    file.write_text(json.dumps({"found": found, "inner": []}))
    work = Work(ONE)
    assert Store(tmp_path).keep(FullModel, "piece", ASKED, work) == ONE
    assert Store(tmp_path).keep(FullModel, "piece", ASKED, work) == ONE
    assert work.times == 1


# What figures ask


SMALL: dict[str, Any] = {
    "layers": 2,
    "dim": 8,
    "alphabet": 4,
    "length": 3,
    "train": 20,
    "test": 10,
    "epochs": 1,
}
OTHER_SORT: list[dict[str, Any]] = [
    {"epochs": 2}, {"learning_rate": 0.01}, {"dim": 4}, {"train": 21}, {"test": 11}, {"fresh": True}, {"seed": 1},
    {"objective": "path-dropout", "strength": 0.5},
]  # fmt: skip
OTHER_PATHS: list[dict[str, Any]] = [
    {"draws": (7,)}, {"repeats": 3}, {"modes": ("official",)}, {"most_paths": 2}, {"singles": False}, {"examples": 3},
    {"refit": 5}, {"seed": 1},
]  # fmt: skip


PIECE = PathScores(rows=(), models=(), identity=0.0, examples=1, refit=None, seed=0)


@pytest.fixture
def paths_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """What the figure says of a model and a measurement; both are told by their configurations, nothing is trained."""

    def told(task: Any, config: Any, **more: Any) -> Any:
        return SimpleNamespace(config=config)

    monkeypatch.setattr(paths_effectiveness, "train_task", told)
    made: list[tuple[Any, Any]] = []

    def answer(one: Any, paths: Any, tell: Any) -> PathScores:
        made.append((one.config, paths))
        return PIECE.model_copy(update={"seed": len(made) - 1})

    monkeypatch.setattr(paths_effectiveness, "score_paths", answer)

    def ask(training: dict[str, Any], paths: dict[str, Any]) -> Any:
        job = Job(store=Store(tmp_path))
        configs = SortConfig.of(**SMALL | training), EffectivenessConfig.of(**paths)
        found = paths_effectiveness._one(job, SORT, *configs, lambda done: None)
        assert made[found.seed] == configs  # not what was found for another
        return found

    return ask


def test_the_figure_of_paths_asks_anew_when_anything_changes(paths_asked: Callable[..., Any]) -> None:
    asked = [({}, {}), *(({}, one) for one in OTHER_PATHS), *((one, {}) for one in OTHER_SORT)]
    assert {name for one in OTHER_PATHS for name in one} == set(EffectivenessConfig.model_fields)
    for training, paths in asked + asked:
        paths_asked(training, paths)


def test_a_new_measurement_needs_no_new_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Any] = []

    def told(task: Any, config: Any, *, folder: Any, **more: Any) -> Any:
        folders.append(folder)
        return SimpleNamespace(config=config)

    monkeypatch.setattr(paths_effectiveness, "train_task", told)
    monkeypatch.setattr(paths_effectiveness, "score_paths", lambda *one: PIECE)
    for training, paths in (({}, {}), ({}, {"seed": 1}), *((one, {}) for one in OTHER_SORT)):
        configs = SortConfig.of(**SMALL | training), EffectivenessConfig.of(**paths)
        paths_effectiveness._one(Job(store=Store(tmp_path)), SORT, *configs, lambda done: None)
    assert folders[0] == folders[1]
    assert len(set(folders)) == 1 + len(OTHER_SORT)


def test_the_circle_asks_again_when_anything_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Any] = []

    def told(task: Any, config: Any, *, folder: Any, **more: Any) -> Any:
        folders.append(folder)
        return SimpleNamespace(config=config, model=SimpleNamespace(double=lambda: None))

    monkeypatch.setattr(circle, "train_task", told)

    def walk(config: CircleConfig, steps: int) -> StepRecord:
        """A walk whose way names the question."""
        way = (float(config.seed), float(config.points), float(config.epochs), config.noise)
        numbers = dict.fromkeys(
            ("error_over_zero", "error_over_staying", "turned", "growth", "mean_growth"), 1.0
        )
        return StepRecord(
            **numbers, path=(way,), distance=(float(config.dim),), mean=(float(steps),), floor=(0.0,), merged_at=None,
            left_at=None, ending="apart", difference_growth=float(len(config.variant)),
        )  # fmt: skip

    monkeypatch.setattr(circle, "record_step", lambda model, config, steps: walk(config, steps))
    others: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"points": 50}, {"epochs": 2}, {"noise": 0.1}, {"dim": 8}, {"variant": "san+skip"}
    ]  # fmt: skip
    asked = [(CircleConfig.of(**one), steps) for one in others for steps in (5, 6)]
    for config, steps in asked + asked:
        assert circle.walk_of(config, steps, Job(store=Store(tmp_path)), "one") == walk(config, steps)
    assert len(folders) == len(asked)  # the second time all is known
    assert len(set(folders)) >= len(others)
