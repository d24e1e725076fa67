"""What the blocks of a live model know besides the tokens, read off one call by what was seen to matter."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankscope.network import Context, Segments
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall
from rankscope.sources.block_masks import BlockMask
from rankscope.sources.variations import Marks

SEGMENTS = "token_type_ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knowledge:
    """Which inputs of a model and which arguments of its blocks tell padding, positions and memory.

    Args:
        padding: the input that marks padding; None where none was seen to.
        positions: the input that holds the positions of tokens; None where columns are counted.
        mask: the argument of the blocks that tells padding, where no input marks it.
        memory: the argument of the blocks that holds the states which cross-attention reads.
        memory_padding: the input that marks padding of the memory.
        segments: the input that holds the segments of tokens, for blocks whose attention reads them.
        ignored: inputs that look like marks of padding, and that the blocks were seen not to ask.
    """

    padding: Marks | None = None
    mask: BlockMask | None = None
    positions: str | None = None
    memory: str | None = None
    memory_padding: Marks | None = None
    segments: str | None = None
    ignored: tuple[str, ...] = ()

    def context(self, batch: Batch, x: Tensor, call: BlockCall | None) -> Context:
        """What is known of a batch whose first state is ``x`` and whose first block was called so."""
        texts, tokens = x.shape[:2]
        is_token = None if self.padding is None else self.padding.is_token(batch)
        if self.padding is None and self.mask is not None and call is not None:
            is_token = self.mask.is_token(call)
        positions = None if self.positions is None else batch.by_text(self.positions)
        if positions is None or positions.shape[-1] != tokens:
            positions = torch.arange(tokens)
        segments = None if self.segments is None else batch.by_text(self.segments)
        memory = _memory(call, self.memory)
        memory_is_token = None
        if memory is not None and self.memory_padding is not None:
            memory_is_token = self.memory_padding.is_token(batch)
            if memory_is_token is not None and memory_is_token.shape != memory.shape[:2]:
                memory_is_token = None
        return Context(
            is_token=_told(is_token, (texts, tokens), x),
            positions=positions.to(x.device),
            segments=segments.to(x.device)
            if segments is not None and segments.shape == (texts, tokens)
            else None,
            memory=memory,
            memory_is_token=None
            if memory_is_token is None
            else _told(memory_is_token, memory_is_token.shape, x),
        )

    def without_padding(self) -> "Knowledge":
        return replace(self, padding=None, mask=None, memory_padding=None)

    @property
    def asks_calls(self) -> bool:
        """Whether it is read off what the blocks are called with."""
        return self.memory is not None or self.mask is not None


def segments_of(tree: nn.Module) -> str | None:
    """The input that a tree reads segments from; None where no attention of it asks for them."""
    return SEGMENTS if any(isinstance(one, Segments) for one in tree.modules()) else None


def _told(is_token: Tensor | None, shape: tuple[int, ...] | torch.Size, x: Tensor) -> Tensor | None:
    if is_token is None or is_token.shape != shape or bool(is_token.all()):
        return None
    return is_token.to(x.device)


def _memory(call: BlockCall | None, name: str | None) -> Tensor | None:
    if call is None or name is None:
        return None
    found = call.tensors().get(name)
    return found.transpose(0, 1) if found is not None and call.tokens_first else found
