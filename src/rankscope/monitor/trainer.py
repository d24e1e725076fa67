"""The monitor as a callback of the transformers ``Trainer``."""

from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from rankscope.errors import ConfigError, MissingExtraError, RunStopped
from rankscope.monitor.parallel import CHECKPOINTS
from rankscope.monitor.recorder import Monitor

if TYPE_CHECKING:
    from rankscope.monitor.collapse_monitor import CollapseMonitor


def trainer_callback(monitor: "CollapseMonitor") -> Any:
    """A ``TrainerCallback`` that scans at step 0 and every ``monitor.every`` optimizer steps.

    What a scan finds is added once to the next ``logs``, and to the entry that the trainer made of them in
    ``trainer.state.log_history``; scans that no ``logs`` followed before the next one get an entry of their own there.
    Callbacks run in order, and those of the user come after the reporters (TensorBoard, Weights & Biases), which would
    have written ``logs`` by then: put the callback in place with ``trainer_callback(monitor).attach(trainer)`` rather
    than with ``Trainer(callbacks=[...])``.
    """
    return _callback_class()(monitor)


@cache
def _callback_class() -> type[Any]:
    """The class, made on first use: its base comes from transformers."""
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "a Trainer callback needs: pip install 'rankscope[hub]' accelerate"
        ) from error

    class CollapseCallback(TrainerCallback):
        """Scans between optimizer steps and hands the numbers to the loggers."""

        def __init__(self, monitor: "CollapseMonitor") -> None:
            self.monitor = monitor
            self._news: list[dict[str, float]] = []

        def attach(self, trainer: Any) -> "CollapseCallback":
            """This callback, now the first of the trainer; one of the same monitor that was there is replaced."""
            callbacks = trainer.callback_handler.callbacks
            others = [
                one for one in callbacks if not (type(one) is type(self) and one.monitor is self.monitor)
            ]
            for one in others:
                if type(one) is type(self) and one.monitor.prefix == self.monitor.prefix:
                    raise ConfigError(
                        f"the trainer has a monitor already whose numbers are called {self.monitor.prefix}/...; give "
                        "each a name of its own: CollapseMonitor(..., name='validation')"
                    )
            callbacks[:] = [self, *others]
            return self

        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            self._scan(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            self._scan(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
            """The trainer has copied ``logs`` into its history by now, so the numbers go into both."""
            if not self._news or logs is None:
                return
            history, told = state.log_history, [self.monitor.named(numbers, logs) for numbers in self._news]
            logs |= told[-1]
            at = len(history)
            if history and history[-1].get("step") == state.global_step:
                at -= 1
                history[at] |= told.pop()
            history[at:at] = [self._entry(one) for one in told]
            self._news = []

        def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            state.log_history += [self._entry(self.monitor.named(numbers, {})) for numbers in self._news]
            self._news = []

        def _entry(self, told: dict[str, float]) -> dict[str, float]:
            return told | {"step": told[f"{self.monitor.prefix}/step"]}

        def _scan(self, step: int) -> None:
            if self.monitor.step(step) is not None:
                self._news.append(self.monitor.numbers)

    return CollapseCallback


def watched_trainer(trainer: Any, probes: Any, *, every: int, **options: Any) -> Monitor:
    """The monitor of a transformers ``Trainer``, with its callback in place before the reporters."""
    arguments = trainer.args
    _refuse_spread(trainer)
    known: Any = {"tokenizer": getattr(trainer, "processing_class", None)}
    if arguments.max_steps > 0:
        known["steps"] = arguments.max_steps
    if not arguments.warmup_steps:
        known["lr"] = arguments.learning_rate
    dtype = torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None
    if dtype is not None:
        known["autocast"] = (arguments.device.type, dtype)
    monitor = Monitor(trainer.model, probes, every=every, **(known | options))
    callbacks = trainer.callback_handler.callbacks
    for one in callbacks:
        if type(one).__name__ == "WatchCallback" and one.monitor.prefix == monitor.prefix:
            raise ConfigError(
                f"the trainer has a monitor already whose numbers are called {monitor.prefix}/...; give each a name: "
                "rs.watch(..., name='validation')"
            )
    callbacks.insert(0, _watch_class()(monitor))
    return monitor


def _refuse_spread(trainer: Any) -> None:
    """What the trainer is about to do to the model, where a monitor cannot follow: ZeRO-3 and FSDP 1."""
    settings = getattr(getattr(trainer.accelerator, "state", None), "deepspeed_plugin", None)
    if getattr(settings, "zero_stage", None) == 3:
        raise ConfigError(
            "this trainer spreads the weights by DeepSpeed ZeRO-3, which was never tested with a monitor; "
            f"{CHECKPOINTS}"
        )
    sharded = getattr(getattr(trainer.accelerator, "state", None), "fsdp_plugin", None)
    if getattr(sharded, "fsdp_version", 2) == 1:
        raise ConfigError(
            "this trainer shards the model by FSDP 1; set fsdp_version to 2, which can be watched, or "
            f"{CHECKPOINTS}"
        )


LIVE: "WeakValueDictionary[str, Monitor]" = WeakValueDictionary()
"""Monitors of trainers of this process by their prefix."""


@cache
def _watch_class() -> type[Any]:
    """The class, made on first use: its bases come from transformers."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class WatchCallback(TrainerCallback, ExportableState):
        """Calls the monitor after optimizer steps; its state rides in ``trainer_state.json``."""

        def __init__(self, monitor: Monitor | None = None, *, prefix: str = "") -> None:
            """Of a prefix alone, as transformers makes it again from a checkpoint: with the monitor that has it."""
            self.monitor = LIVE[prefix] if monitor is None else monitor
            LIVE[self.monitor.prefix] = self.monitor
            self._news: list[dict[str, float]] = []

        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> Any:
            record = self.monitor.record_
            if state.max_steps > 0:
                warmup = record.header.warmup
                warmup = args.get_warmup_steps(state.max_steps) if warmup is None else warmup
                record.header = record.header.model_copy(
                    update={"steps": state.max_steps, "warmup": warmup or None}
                )
            kept = (state.stateful_callbacks or {}).get(type(self).__name__)
            for one in kept if isinstance(kept, list) else [kept]:
                attributes = one.get("attributes", {}) if isinstance(one, dict) else {}
                if state.global_step and attributes.get("prefix") == self.monitor.prefix:
                    self.monitor.load_state_dict(attributes["watched"])
            return self._step(state.global_step, None, control)

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> Any:
            return self._step(state.global_step, None, control)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
            """The trainer has copied ``logs`` into its history by now, so the numbers go into both."""
            if logs is None or not state.is_world_process_zero:
                return
            if isinstance(logs.get("loss"), float):
                self.monitor.lose(state.global_step, logs["loss"])
            if not self._news:
                return
            history = state.log_history
            logs |= self._news[-1]
            for numbers in self._news[:-1]:
                history.append(numbers | {"step": numbers[f"{self.monitor.prefix}/step"]})
            if history and history[-1].get("step") == state.global_step and len(self._news) == 1:
                history[-1] |= self._news[-1]
            else:
                history.append(self._news[-1] | {"step": state.global_step})
            self._news = []

        def on_train_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            for numbers in self._news:
                state.log_history.append(numbers | {"step": numbers[f"{self.monitor.prefix}/step"]})
            self._news = []

        def _step(self, step: int, loss: float | None, control: Any) -> Any:
            before = len(self.monitor.record_.readings)
            try:
                self.monitor.step(step, loss=loss)
            except RunStopped:
                control.should_training_stop = True
            if len(self.monitor.record_.readings) != before and self.monitor.numbers:
                self._news.append(self.monitor.numbers)
            return control

        def state(self) -> Any:
            watched = dict(self.monitor.state_dict())
            prefix = self.monitor.prefix
            return {"args": {"prefix": prefix}, "attributes": {"prefix": prefix, "watched": watched}}

    return WatchCallback
