"""The monitor as a callback of the transformers ``Trainer``."""

from functools import cache
from typing import TYPE_CHECKING, Any

from rankscope.errors import ConfigError, MissingExtraError

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
