"""A model at rest: in evaluation mode, with known random numbers, and afterwards as it was."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from rankscope.sources.live import untouched
from rankscope.sources.taps import plain_code


@contextmanager
def at_rest(model: nn.Module, *, seed: int = 0) -> Iterator[None]:
    """Evaluation mode without gradients and with known random numbers; everything as before afterwards."""
    held = [(one, one.detach().clone()) for one in model.buffers() if not one.is_inference()]
    slopes = [(one, one.grad) for one in model.parameters()]
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with untouched(model), plain_code(model):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        with torch.no_grad():
            for one, before in held:
                if not torch.equal(one, before):  # running statistics of a norm that is kept in training
                    one.copy_(before)
        for parameter, slope in slopes:
            parameter.grad = slope
