"""The monitor as a callback of Lightning, which is imported only when it is asked for."""

import os
from functools import cache
from typing import Any

from rankscope.errors import ConfigError, MissingExtraError, RunStopped
from rankscope.findings.watch.alarms import Alarm
from rankscope.monitor.collapse_monitor import Probes
from rankscope.monitor.recorder import Monitor


def lightning(probes: Probes | None = None, *, part: str = "", every: int = 200, **options: Any) -> Any:
    """A Lightning ``Callback`` that watches the module of a run: ``Trainer(callbacks=[rs.lightning(batch)])``.

    ``part`` is the path of the module inside the LightningModule that takes the probe; left out, the LightningModule
    itself. Its state rides in Lightning's checkpoints, and its numbers go to the trainer's loggers.
    """
    return _callback_class()(probes, part, dict(options, every=every))


@cache
def _callback_class() -> type[Any]:
    """The class, made on first use: its base comes from Lightning."""
    try:
        from lightning.pytorch import Callback
    except ModuleNotFoundError as error:
        raise MissingExtraError("a Lightning callback needs: pip install lightning") from error

    class WatchCallback(Callback):
        """Looks after optimizer steps, hands numbers to the loggers, ends the run where that was asked for."""

        def __init__(self, probes: Any, part: str, options: Any) -> None:
            self.probes, self.part, self.options = probes, part, options
            self.monitor: Monitor | None = None
            self._state: Any = None
            self._logged = -1
            self._step_before = 0
            self._losses: list[Any] = []  # of the batches whose gradients are added up

        @property
        def state_key(self) -> str:
            """Two monitors of one trainer are kept apart by their names."""
            return f"rankscope.WatchCallback[{self.options.get('name') or ''}]"

        @property
        def alarm(self) -> Alarm | None:
            """The most urgent alarm that rings now."""
            return None if self.monitor is None else self.monitor.alarm

        @property
        def alarms(self) -> tuple[Alarm, ...]:
            """All alarms that ring now."""
            return () if self.monitor is None else self.monitor.alarms

        @property
        def rang(self) -> tuple[Alarm, ...]:
            """Every alarm that began to ring so far."""
            return () if self.monitor is None else self.monitor.rang

        def report(self, path: str | os.PathLike[str]) -> None:
            """Write the page of the run so far."""
            self._made().report(path)

        def chart(self) -> Any:
            """The picture of the run so far."""
            return self._made().chart()

        def _made(self) -> Monitor:
            if self.monitor is None:
                raise ConfigError("the monitor of a Lightning trainer exists once it fits; call fit first")
            return self.monitor

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            model = pl_module.get_submodule(self.part) if self.part else pl_module
            steps = getattr(trainer, "estimated_stepping_batches", None)
            known = {"steps": int(steps)} if steps not in (None, float("inf")) and steps > 0 else {}
            if self.monitor is None:
                self.monitor = Monitor(model, self.probes, **(known | _autocast(trainer) | self.options))
            if self._state is not None:
                self.monitor.load_state_dict(self._state)
                self._state = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._step_before = trainer.global_step
            if trainer.global_step == 0:
                self._step(trainer, None)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            if (
                loss is not None
            ):  # Lightning gives the loss divided by the number of batches that are added up
                is_divided = getattr(pl_module, "automatic_optimization", False)
                self._losses.append(loss * (trainer.accumulate_grad_batches if is_divided else 1))
            if trainer.global_step == self._step_before:
                return
            losses, self._losses = self._losses, []
            self._step_before = trainer.global_step
            self._step(trainer, sum(losses) / len(losses) if losses else None)
            self._log(trainer, pl_module)

        def _log(self, trainer: Any, pl_module: Any) -> None:
            """A scan's numbers for callbacks and for every logger, at once and not at its next turn."""
            monitor = self.monitor
            if monitor is None or not monitor.numbers or monitor.readings[-1].step == self._logged:
                return
            self._logged = monitor.readings[-1].step
            pl_module.log_dict(
                monitor.numbers, on_step=True, on_epoch=False, logger=False, rank_zero_only=True
            )
            for logger in trainer.loggers:
                try:
                    logger.log_metrics(monitor.numbers, step=self._logged)
                except Exception as error:
                    monitor.tell(
                        "logger",
                        f"{type(logger).__name__} raised {type(error).__name__} at the numbers of the monitor, which "
                        f"are left out there: {error}",
                    )

        def _step(self, trainer: Any, loss: Any) -> None:
            try:
                if self.monitor is not None:
                    self.monitor.step(trainer.global_step, loss=loss)
            except RunStopped:
                trainer.should_stop = True

        def state_dict(self) -> Any:
            return {} if self.monitor is None else dict(self.monitor.state_dict())

        def load_state_dict(self, state_dict: Any) -> None:
            if not state_dict:
                return
            if self.monitor is None:
                self._state = state_dict
            else:
                self.monitor.load_state_dict(state_dict)

    return WatchCallback


def _autocast(trainer: Any) -> Any:
    """The autocast of the trainer's precision, as an option of the monitor."""
    import torch

    name = str(getattr(trainer, "precision", ""))
    dtype = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(name)
    kind = getattr(getattr(trainer.strategy, "root_device", None), "type", "cpu")
    return {} if dtype is None else {"autocast": (kind, dtype)}
