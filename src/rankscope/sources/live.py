"""Running a live model as it is: in evaluation mode, without gradients, where its weights are."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from rankscope.core.processor import safe_products
from rankscope.sources.batch import Batch


def run_batch(model: nn.Module, batch: Batch) -> object:
    """The model's own answer to one batch, moved to where the model is."""
    devices = (parameter.device for parameter in model.parameters())
    device = next(
        (found for found in devices if found.type != "meta"), torch.device("cpu")
    )  # meta: offloaded
    inputs = {name: value.to(device) for name, value in batch.inputs.items()}
    positional = inputs.pop("", None)
    with safe_products(model):
        return model(**inputs) if positional is None else model(positional, **inputs)


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the training mode of every module as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:  # not model.eval(): some models do more there than set a flag
        module.training = False
    try:
        with torch.no_grad(), safe_products(model), ExitStack() as undo:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):  # numbers are those of the model's own dtype
                    undo.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        for module, mode in modes:
            module.training = mode
