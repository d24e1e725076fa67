"""The monitor in a real transformers ``Trainer``."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from kit.tiny_training import assert_same_weights, tiny_gpt2, tokens
from rankscope.errors import ConfigError, NotFiniteWarning, RankscopeWarning
from rankscope.monitor import CollapseMonitor, trainer_callback

# A few steps at a high rate bring the tokens of the tiny model together; what is said of that has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore::rankscope.errors.CollapseWarning")

UNIT = "rankscope/residual_ratio_unit/last_block"


class Reporter(TrainerCallback):
    """Writes down what it is given, when it is given it, as TensorBoard's callback does."""

    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        self.modes: list[bool] = []

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **about: Any) -> None:
        self.modes.append(all(module.training for module in model.modules()))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
        self.written.append((state.global_step, dict(logs)))


def trainer(folder: Path, **options: Any) -> tuple[Trainer, Reporter]:
    """A GPT-2 with dropout, twelve texts, batches of two, two batches per optimizer step: three steps an epoch."""
    ids = tokens(12, 9, seed=5)["input_ids"]
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        dataloader_pin_memory=False,
        **{"logging_steps": 2, "save_strategy": "no", "report_to": [], **options},
    )
    reporter = Reporter()
    made = Trainer(
        model=tiny_gpt2(),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[reporter],
    )
    return made, reporter


def watched(folder: Path, every: int, **options: Any) -> tuple[Trainer, Reporter, CollapseMonitor]:
    made, reporter = trainer(folder, **options)
    monitor = CollapseMonitor(made.model, tokens(), every=every)
    monitor.attach(made)
    made.train()
    return made, reporter, monitor


def test_the_metrics_reach_the_reporter_at_the_step_they_were_taken(tmp_path: Path) -> None:
    _, reporter, monitor = watched(tmp_path, every=4)
    assert monitor.table.sections["monitor"]["steps"] == [0, 4, 8, 12]
    told = {step: logs for step, logs in reporter.written if UNIT in logs}
    assert {step: logs["rankscope/step"] for step, logs in told.items()} == {2: 0, 4: 4, 8: 8, 12: 12}
    means = monitor.table.where(
        step=12, sample=None, site="block", layer=3, definition="residual_ratio[composite,mean,unit]"
    )
    assert told[12][UNIT] == means.frame["value"].item()
    assert "loss" in told[12]


def numbers_in(history: list[dict[str, Any]]) -> dict[int, float]:
    """Step of the scan to the number of the entry, of all entries that have one."""
    return {entry["rankscope/step"]: entry[UNIT] for entry in history if UNIT in entry}


def means_of(monitor: CollapseMonitor) -> dict[int, float]:
    """The same from the rows of the monitor."""
    about = {"sample": None, "site": "block", "layer": 3, "definition": "residual_ratio[composite,mean,unit]"}
    rows = monitor.table.where(**about).frame
    return dict(zip(rows["step"].to_list(), rows["value"].to_list(), strict=True))


@pytest.mark.parametrize(
    ("every", "logged"), [(4, 2), (2, 5), (3, 100)], ids=["often logged", "seldom", "at the end"]
)
def test_every_scan_is_in_the_history_of_the_trainer(every: int, logged: int, tmp_path: Path) -> None:
    made, _, monitor = watched(tmp_path, every=every, logging_steps=logged)
    history = made.state.log_history
    assert numbers_in(history) == means_of(monitor)
    assert len(means_of(monitor)) == 12 // every + 1
    steps = [entry["step"] for entry in history]
    assert steps == sorted(steps)
    assert all(entry["step"] >= entry["rankscope/step"] for entry in history if UNIT in entry)


def test_a_callback_that_was_given_to_the_trainer_reaches_its_history_too(tmp_path: Path) -> None:
    made, reporter = trainer(tmp_path)
    monitor = CollapseMonitor(made.model, tokens(), every=6)
    made.add_callback(trainer_callback(monitor))
    made.train()
    assert numbers_in(made.state.log_history) == means_of(monitor)
    assert not any(UNIT in logs for _, logs in reporter.written)


def test_numbers_reach_tensorboard_and_the_saved_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    made, _, monitor = watched(
        tmp_path, every=6, report_to=["tensorboard"], save_strategy="steps", save_steps=12
    )
    board = event_accumulator.EventAccumulator(str(tmp_path / "board")).Reload()
    (tag,) = (tag for tag in board.Tags()["scalars"] if tag.endswith(UNIT))
    written = {event.step: event.value for event in board.Scalars(tag)}
    assert written == {
        entry["step"]: pytest.approx(entry[UNIT], rel=1e-6)
        for entry in made.state.log_history
        if UNIT in entry
    }
    assert set(means_of(monitor)) == {0, 6, 12}
    saved = json.loads((tmp_path / "checkpoint-12/trainer_state.json").read_text())["log_history"]
    assert numbers_in(saved) == means_of(monitor)


def test_numbers_that_are_none_are_in_the_history(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, max_steps=2, logging_steps=1)
    monitor = CollapseMonitor(made.model, tokens(), every=1)
    monitor.attach(made)

    class Spoil(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            if state.global_step == 1:
                with torch.no_grad():
                    made.model.transformer.h[1].ln_1.weight[0] = torch.nan

    made.add_callback(Spoil())
    with pytest.warns(NotFiniteWarning, match="step 2: "):
        made.train()
    found = numbers_in(made.state.log_history)
    assert not math.isnan(found[1])
    assert math.isnan(found[2])


def test_two_monitors_of_one_trainer_need_names(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, max_steps=1, logging_steps=1)
    first = CollapseMonitor(made.model, tokens(), every=1)
    callback = first.attach(made)
    with pytest.raises(
        ConfigError, match=r"numbers are called rankscope/\.\.\.; give each a name of its own"
    ):
        CollapseMonitor(made.model, tokens(seed=3)).attach(made)
    again = first.attach(made)
    callbacks = made.callback_handler.callbacks
    assert callback not in callbacks
    assert callbacks[0] is again
    CollapseMonitor(made.model, tokens(seed=3), every=1, name="other").attach(made)
    made.train()
    told = {name: [] for name in ("rankscope/step", "rankscope/other/step")}
    for entry in made.state.log_history:
        for name in told:
            told[name] += [entry[name]] if name in entry else []
    assert told == {"rankscope/step": [0, 1], "rankscope/other/step": [0, 1]}
    (logged,) = (entry for entry in made.state.log_history if "loss" in entry)
    assert (logged["rankscope/step"], logged["rankscope/other/step"]) == (1, 1)


def test_two_callbacks_without_names_stay_apart(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, max_steps=1, logging_steps=1)
    for seed in (3, 4):
        made.add_callback(trainer_callback(CollapseMonitor(made.model, tokens(seed=seed), every=1)))
    with pytest.warns(RankscopeWarning, match="two monitors give numbers called rankscope/"):
        made.train()
    entry = next(entry for entry in made.state.log_history if "loss" in entry)
    assert entry[UNIT] != entry[UNIT.replace("rankscope", "rankscope/2")]


def test_what_was_found_is_told_once(tmp_path: Path) -> None:
    _, reporter, _ = watched(tmp_path, every=100, logging_steps=1)
    assert sum(UNIT in logs for _, logs in reporter.written) == 1


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Reporter]:
    made, reporter = trainer(tmp_path_factory.mktemp("unwatched"))
    made.train()
    return made, reporter


@pytest.mark.parametrize("every", [2, 5])
def test_training_with_a_monitor_gives_the_same_weights_bit_for_bit(
    every: int, unwatched: tuple[Trainer, Reporter], tmp_path: Path
) -> None:
    alone, plain = unwatched
    with_monitor, reporter, monitor = watched(tmp_path, every=every)
    assert reporter.modes == plain.modes == [True] * 12
    assert_same_weights(alone.model, with_monitor.model)
    losses = [[logs["loss"] for _, logs in one.written if "loss" in logs] for one in (plain, reporter)]
    assert losses[0] == losses[1]
    assert monitor.latest.frame["step"].max() == 12 // every * every


def test_the_weights_would_show_that_dropout_is_at_work(
    unwatched: tuple[Trainer, Reporter], tmp_path: Path
) -> None:
    other, _ = trainer(tmp_path)
    other.model.transformer.drop.p = 0.0
    other.train()
    with pytest.raises(AssertionError):
        assert_same_weights(unwatched[0].model, other.model)


def test_a_callback_of_the_user_comes_after_the_reporters_unless_it_is_attached(tmp_path: Path) -> None:
    made, reporter = trainer(tmp_path)
    callback = trainer_callback(CollapseMonitor(made.model, tokens()))
    made.add_callback(callback)
    callbacks = made.callback_handler.callbacks
    assert callbacks.index(callback) > callbacks.index(reporter)
    assert callback.attach(made) is callback
    assert callbacks[0] is callback
    assert callbacks.count(callback) == 1
    assert reporter in callbacks


def test_training_again_starts_the_record_again(tmp_path: Path) -> None:
    made, _, monitor = watched(tmp_path, every=6)
    with pytest.warns(UserWarning, match="from step 12 back to 0"):
        made.train()
    assert monitor.table.sections["monitor"]["steps"] == [0, 6, 12]
