"""The monitor as a callback of the transformers ``Trainer``."""

from functools import cache
from typing import TYPE_CHECKING, Any

from rankscope.errors import MissingExtraError

if TYPE_CHECKING:
    from rankscope.monitor.recorder import CollapseMonitor


def trainer_callback(monitor: "CollapseMonitor") -> Any:
    """A ``TrainerCallback`` that scans at step 0 and every ``monitor.every`` optimizer steps.

    What a scan finds is added once to the next ``logs``. Callbacks run in order, and those of the user come after
    the reporters (TensorBoard, Weights & Biases), which would have written ``logs`` by then: put the callback in place
    with ``trainer_callback(monitor).attach(trainer)`` rather than with ``Trainer(callbacks=[...])``.
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
            self._is_news = False

        def attach(self, trainer: Any) -> "CollapseCallback":
            """This callback, now the first of the trainer."""
            callbacks = trainer.callback_handler.callbacks
            callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
            return self

        def on_train_begin(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            self._scan(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **about: Any) -> None:
            self._scan(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **about: Any) -> None:
            if self._is_news and logs is not None:
                self.monitor.record(logs)
                self._is_news = False

        def _scan(self, step: int) -> None:
            self._is_news |= self.monitor.step(step) is not None

    return CollapseCallback
