"""Running a live model as it is: in evaluation mode, without gradients, where its weights are."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from rankscope.core.processor import safe_products
from rankscope.sources.batch import Batch
from rankscope.sources.roles import every_module


def run_batch(model: nn.Module, batch: Batch, copies: dict[str, Tensor] | None = None) -> object:
    """The model's own answer to one batch, moved to where the model is.

    It is given copies: some models write into their inputs. A batch of a call under autocast runs under the same one.
    Whoever looks at the copies afterwards makes them (``copied_inputs``) and hands them in.
    """
    inputs = copied_inputs(model, batch) if copies is None else copies
    args, kwargs = replace(batch, inputs=inputs).arguments()
    with ExitStack() as undo:
        undo.enter_context(safe_products(model))
        if batch.autocast is not None:
            undo.enter_context(safe_products(torch.empty(0, dtype=batch.autocast[1])))
            undo.enter_context(torch.autocast(batch.autocast[0], dtype=batch.autocast[1]))
        return model(*args, **kwargs)


def copied_inputs(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Copies of the inputs of a batch, where the model is."""
    devices = (parameter.device for parameter in model.parameters())
    device = next(
        (found for found in devices if found.type != "meta"), torch.device("cpu")
    )  # meta: offloaded
    return {name: value.to(device, copy=True) for name, value in batch.inputs.items()}


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the training mode of every module as before afterwards."""
    modes = [(module, module.training) for module in every_module(model)]
    for module, mode in modes:  # not model.eval(): some models do more there than set a flag
        if mode:
            module.training = False
    try:
        with torch.no_grad(), safe_products(model), ExitStack() as undo:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):  # numbers are those of the model's own dtype
                    undo.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        for module, mode in modes:
            if module.training is not mode:
                module.training = mode


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """For a trial that is none of the model's real runs: quiet, and nothing of it is left in the model afterwards.

    Some models change themselves by what they read: they build a table as long as the text, or put in another
    attention for good once a text is short. Random numbers that are drawn at rest are put back too.
    """
    undo = [_as_now(module) for module in every_module(model)]
    try:
        with torch.random.fork_rng(devices=()), quiet(model):
            yield
    finally:
        for step in undo:
            step()


def _as_now(module: nn.Module) -> Callable[[], None]:
    """What gives a module the attributes, parts, parameters and buffers that it has now."""
    kind, names = type(module), ("_modules", "_parameters", "_buffers")
    held = [vars(module), *(vars(module)[name] for name in names if type(vars(module).get(name)) is dict)]
    before = [dict(one) for one in held]

    def restore() -> None:
        if type(module) is not kind:  # lazy modules become others as they first run
            return
        for one, was in zip(held, before, strict=True):
            if list(one) != list(was) or any(value is not was[name] for name, value in one.items()):
                one.clear()
                one.update(was)

    return restore
