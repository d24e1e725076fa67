"""Training of a task: one plain loop, deterministic for a configuration; after a kill it goes on with the same bits."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.errors import NumericalError
from rankscope.network import Attention, Mixer, Mlp
from rankscope.papers.tasks.checkpoint import Epoch, Trained, initial_model, measured_score, why_stop
from rankscope.papers.tasks.objectives import OBJECTIVES
from rankscope.papers.tasks.run_folder import RunFolder
from rankscope.papers.tasks.task import TASKS, Batch, Task, TaskConfig

Tell = Callable[[Epoch], object]


def train_task(
    task: Task[Any] | str,
    config: TaskConfig | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    tell: Tell | None = None,
) -> Trained:
    """The model of a task after training; ``tell`` hears of every epoch as it ends, of earlier ones first.

    Without a configuration it has the sizes of the paper and settings that train well; others are
    ``TASKS[name].configured("fast")`` or ``("official", epochs=3)``.

    With a folder, training that was interrupted there goes on, and what was done there is returned as it is; the
    result is the same to the last bit as without interruption. Examples and their order depend on the configuration
    alone, the number of threads is part of it, and random choices of a step follow from its number.
    """
    task = TASKS[task] if isinstance(task, str) else task
    config = task.configured() if config is None else config
    with ExitStack() as stack:
        place = None if folder is None else RunFolder(folder, task, config)
        if place is not None:
            stack.enter_context(place.locked())
            if (known := place.finished()) is not None:
                return _report_known(known, tell)
        stack.enter_context(_threads(config.threads))
        model = initial_model(task, config, dtype=torch.float32).requires_grad_().train()
        optimizer = _optimizer(config, model)
        curve = [] if place is None else place.resume(model, optimizer)
        for one in curve:
            _tell(tell, one)
        done = len(curve)
        for number, batches in enumerate(task.batches(config), start=1):
            if number <= done:
                continue  # drawn nevertheless: later epochs follow in the same stream of random numbers
            if why_stop(config, curve) is not None:
                break
            curve.append(_epoch(task, config, model, optimizer, batches, number))
            if place is not None:
                place.keep(curve, model, optimizer)
            _tell(tell, curve[-1])
        trained = Trained(
            task=task,
            config=config,
            model=model.requires_grad_(requires_grad=False).eval(),
            curve=tuple(curve),
        )
        if place is not None:
            place.finish(trained)
        return trained


def learning_rate(config: TaskConfig, step: int) -> float:
    """Rate of a step, counted from 0: linear up to the full rate, times the decay.

    ``rate * min((step + 1) / warmup, 1) * decay(step)`` with ``(1 + cos(pi step / steps)) / 2`` for ``cosine``, and
    ``factor`` to the power of the milestones passed for ``steps``.

    >>> from rankscope.papers.tasks import SortConfig
    >>> learning_rate(SortConfig(warmup=10, decay="none"), 4)
    0.0005
    """
    rising = min((step + 1) / config.warmup, 1.0) if config.warmup else 1.0
    falling = 1.0
    if config.decay == "cosine":
        falling = (1 + math.cos(math.pi * step / max(config.steps, 1))) / 2
    elif config.decay == "steps":
        epoch = step // config.steps_per_epoch
        falling = config.factor ** sum(epoch >= milestone for milestone in config.milestones)
    return config.learning_rate * rising * falling


def _epoch(
    task: Task[Any],
    config: TaskConfig,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    number: int,
) -> Epoch:
    """One pass over the batches, while the model learns from them."""
    minimize = OBJECTIVES[config.objective].minimize
    losses, scores, counts = [], [], []
    first = (number - 1) * config.steps_per_epoch
    for step, (inputs, targets) in enumerate(batches, start=first):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        chance = _chance(config, step)
        with dropout(model, config.dropout, chance):
            loss, outputs = minimize(model, inputs, targets, task.loss, config.strength, chance)
        if not math.isfinite(loss.item()):
            raise NumericalError(
                f"the loss is {loss.item()} in epoch {number} at learning_rate={config.learning_rate}, "
                f"initial_std={config.initial_std}, strength={config.strength}; choose smaller ones"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        scores.append(task.score(outputs.detach(), targets))
        counts.append(len(inputs))
    return Epoch(
        epoch=number,
        learning_rate=float(optimizer.param_groups[0]["lr"]),
        loss=_mean(losses, counts),
        train_score=_mean(scores, counts),
        test_score=measured_score(task, config, model),
    )


def _optimizer(config: TaskConfig, model: nn.Module) -> torch.optim.Optimizer:
    kinds: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[config.optimizer](
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )


def _chance(config: TaskConfig, step: int) -> torch.Generator:
    """The source of random choices of one step: it depends on seed and step alone, so nothing of it is to be saved."""
    digest = hashlib.sha256(f"{config.seed} {step}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tell(tell: Tell | None, found: Epoch) -> None:
    if tell is not None:
        tell(found)


def _report_known(known: Trained, tell: Tell | None) -> Trained:
    for one in known.curve:
        _tell(tell, one)
    return known


def _mean(values: Sequence[float], counts: Sequence[int]) -> float:
    return math.fsum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)


@contextmanager
def dropout(model: nn.Module, chance: float, generator: torch.Generator) -> Iterator[None]:
    """Inside the block, entries that pass from part to part are zero with that probability, the others scaled up.

    Dropped are entries of what the reader gives, of attention maps, and of what attentions and MLPs give, as BERT does
    it. The parts themselves know nothing of it: a trained network has no dropout.
    """

    def thin(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        kept = torch.rand(output.shape, generator=generator) >= chance
        return output * (kept.to(output.dtype) / (1 - chance))

    with ExitStack() as stack:
        if chance:
            reader = getattr(model, "reader", None)
            for part in model.modules():
                if part is reader or isinstance(part, Attention | Mixer | Mlp):
                    stack.callback(part.register_forward_hook(thin).remove)
        yield
