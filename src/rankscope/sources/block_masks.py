"""Padding as the blocks themselves are told of it: a mask among their arguments, whatever the model made it of.

A model may be given lengths, a mask between tokens for every text, or nothing but ids. What its blocks get is one
tensor that says which key a query may read; which tokens are padding follows from that by the same rules as for a mask
that is read from the logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.sources.block_calls import BlockCall
from rankscope.sources.recognise.logits import LOW
from rankscope.sources.recognise.mask_rules import read_mask

MOST = 2**22
"""Entries of the largest mask that is read: texts times tokens times tokens."""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """An argument of the blocks that says which keys are read.

    Args:
        name: of the argument, as in ``Graph.inputs``.
        on: the truth of an entry whose key is read; None for numbers that are added to the logits.
    """

    name: str
    on: bool | None

    def is_token(self, call: BlockCall) -> Tensor | None:
        """True on tokens, ``texts tokens``; None where the call has no such mask, or all its entries are read."""
        held = call.tensors().get(self.name)
        texts, tokens = call.state().shape[:2]
        if held is None or texts * tokens * tokens > MOST:
            return None
        pattern = _between(held, texts, tokens)
        if pattern is None:
            return None
        allowed = pattern > LOW if self.on is None else (pattern != 0) == self.on
        found = None if bool(allowed.all()) else read_mask(allowed.cpu())
        return None if found is None or bool(found.is_token.all()) else found.is_token


def block_masks(call: BlockCall) -> list[BlockMask]:
    """The readings of a block's arguments under which some tokens are padding; that with more tokens first."""
    if not call.stream or call.state().ndim != 3:
        return []
    found = list[tuple[int, BlockMask]]()
    for name, value in call.tensors().items():
        if name == call.stream or value.is_complex():
            continue
        is_added = value.is_floating_point() and bool((value <= LOW).any())
        for on in (None,) if is_added else (True, False) if _is_truth(value) else ():
            is_token = BlockMask(name, on).is_token(call)
            if is_token is not None and bool(is_token.any(1).all()):
                found.append((int(is_token.sum()), BlockMask(name, on)))
    return [mask for _, mask in sorted(found, key=lambda one: -one[0])]


def may_be_told(call: BlockCall) -> bool:
    """Whether a block is given anything that has the shape of a mask, with padding or without."""
    if not call.stream or call.state().ndim != 3:
        return False
    texts, tokens = call.state().shape[:2]
    others = (value for name, value in call.tensors().items() if name != call.stream)
    return any(_between(value, texts, tokens) is not None for value in others)


def _is_truth(value: Tensor) -> bool:
    return value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())


def _between(value: Tensor, texts: int, tokens: int) -> Tensor | None:
    """A mask as ``texts tokens tokens``: one row of keys for every text, or one for every query, the same in all heads.

    Texts share no mask that tells padding: it has to have as many rows as there are texts.
    """
    if value.ndim < 2 or value.shape[0] != texts or value.shape[-1] != tokens:
        return None
    inner = value.shape[1:-1]
    if any(size not in (1, tokens) for size in inner[-1:]) or any(size != 1 for size in inner[:-1]):
        return None
    rows = value.reshape(texts, inner[-1] if inner else 1, tokens)
    return rows.expand(texts, tokens, tokens)
