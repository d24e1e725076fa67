"""The monitor in a real transformers ``Trainer``."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from rankscope.monitor import CollapseMonitor, trainer_callback
from tiny_training import assert_same_weights, tiny_gpt2, tokens

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
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        dataloader_pin_memory=False,
        **{"logging_steps": 2, **options},
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


def test_importing_the_monitor_imports_no_transformers() -> None:
    code = "import sys, rankscope.monitor; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603
