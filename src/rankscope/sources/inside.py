"""The blocks of a model that has no modules for them, as one module that can be called and captured."""

from typing import Any

from torch import Tensor, nn

from rankscope.errors import NotTapped
from rankscope.sources.family import Stack
from rankscope.sources.program import INSTEAD, Operation, Steps
from rankscope.sources.taps import has_tokens_first


class Inside(nn.Module):
    """The blocks of a model that has no modules for them, as one module.

    It is called with the state that enters the first block, ``texts tokens dim``, and with the arguments of the model,
    and returns the state after the last one. The model itself runs; the state takes the place of what it has computed
    until there.
    """

    def __init__(self, model: nn.Module, stack: Stack) -> None:
        super().__init__()
        self.model, self.stack = model, stack

    def forward(self, state: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        program, last = self.stack.program, list[Tensor]()
        if program is None:
            raise NotTapped(f"stack {self.stack.name!r} has modules of its own")
        is_turned = False

        def step(ran: Operation) -> Tensor:
            layer, result = program.layer(ran), ran.first
            nonlocal is_turned
            if layer == 0:
                is_turned = has_tokens_first(result, self.stack, "input", len(state))
                own = state.transpose(0, 1) if is_turned else state
                if result.shape != own.shape:
                    raise NotTapped(f"a state {tuple(own.shape)} in place of {tuple(result.shape)}")
                if ran.writes:
                    raise NotTapped(f"the state before the first block is written in place; {INSTEAD}")
                return own
            if layer == len(program.places) - 1:
                last.append(result.clone())  # what follows may write into it
            return result

        with Steps(step):
            self.model(*args, **kwargs)
        if not last:
            raise NotTapped(f"the state after the last block did not come; {INSTEAD}")
        return last[0].transpose(0, 1) if is_turned else last[0]
