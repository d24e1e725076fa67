"""``rs.watch``: tell a trainer from a model and put a monitor in place."""

import os
from typing import Any

from torch import nn

from rankscope.core.words import article
from rankscope.errors import ConfigError
from rankscope.monitor.collapse_monitor import Probes
from rankscope.monitor.recorder import Monitor


def watch(
    trainer_or_model: Any, texts_or_batch_or_seen: Probes | None = None, *, every: int = 200, **options: Any
) -> Any:
    """The monitor of a transformers ``Trainer``, a Lightning ``Trainer`` or a module; of a log, what it shows.

    A trainer gets a callback and calls the monitor itself; with a module call ``monitor.step(step, loss=loss)`` in the
    training loop. ``options`` are those of ``Monitor``. For a Lightning trainer the monitor exists once it fits:
    what is returned is the callback, whose ``monitor`` it then is.
    """
    probes = texts_or_batch_or_seen
    if isinstance(trainer_or_model, str | os.PathLike):
        from rankscope.studies.watch import watch as watch_log

        return watch_log(os.fspath(trainer_or_model), **options)
    if isinstance(trainer_or_model, nn.Module):
        return Monitor(trainer_or_model, probes, every=every, **options)
    names = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(trainer_or_model).__mro__}
    if "transformers.Trainer" in names:
        from rankscope.monitor.trainer import watched_trainer

        return watched_trainer(trainer_or_model, probes, every=every, **options)
    if names & {"lightning.Trainer", "pytorch_lightning.Trainer"}:
        from rankscope.monitor.lightning_callback import lightning

        callback = lightning(probes, every=every, **options)
        trainer_or_model.callbacks.insert(0, callback)
        return callback
    if any(
        "pipelin" in kind.__module__ or "Pipeline" in kind.__name__ for kind in type(trainer_or_model).__mro__
    ):
        raise ConfigError(
            f"{type(trainer_or_model).__name__} is pipeline parallel, where no process runs the whole model; save "
            "checkpoints and compare their scans: rankscope compare RUN_DIR"
        )
    raise ConfigError(
        f"{article(type(trainer_or_model).__name__)} cannot be watched; expected a module, a transformers Trainer or a "
        "Lightning Trainer"
    )
