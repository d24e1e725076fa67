"""Dropout of the published code, while a model learns: of what enters the blocks, of attention maps, of attention."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.network import Attention, Mixer, Mlp


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
