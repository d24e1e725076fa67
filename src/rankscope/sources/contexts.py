"""What the blocks of a model know besides the tokens, read off the inputs of a batch: padding, positions, segments."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rankscope.errors import NotTranslated
from rankscope.network import Context
from rankscope.sources.batch import Batch

CAUSAL_INPUTS = ("mask", "src_mask")
"""Inputs of torch's own transformers that say which token reads which."""

UNREAD = (
    "perm_mask",
    "mems",
    "target_mapping",
    "head_mask",
    "past_key_values",
    "encoder_hidden_states",
    "attn_mask",
)
"""Inputs that change what blocks compute and that no tree reads."""

NEVER = -1e4
"""A number so low, added to a logit, leaves its key out."""


def context_of(batch: Batch, x: Tensor, stack: str = "blocks") -> Context:
    """Padding, positions and segments of a batch whose first state is ``x``, as its inputs tell them.

    Positions count all columns of the batch, padding too, as live models do unless they are told otherwise.
    """
    shape = x.shape[:-1]
    # Masks and positions of a model that reads texts and pictures are those of its texts.
    inputs: Mapping[str, Tensor] = {} if stack == "vision" else batch.inputs
    for name in UNREAD:
        if name in inputs:
            raise NotTranslated(
                f"the input {name!r} changes what the blocks compute, and a tree does not read it"
            )
    is_token = _padding(batch, shape) if inputs else None
    positions = batch.by_text("position_ids") if inputs else None
    if positions is None or positions.shape[-1] != shape[-1]:
        positions = torch.arange(shape[-1])
    segments = batch.by_text("token_type_ids") if inputs else None
    return Context(
        is_token=None if is_token is None or bool(is_token.all()) else is_token.to(x.device),
        positions=positions.to(x.device),
        segments=segments.to(x.device) if segments is not None and segments.shape == shape else None,
    )


def _padding(batch: Batch, shape: torch.Size) -> Tensor | None:
    """True on tokens that keys are read from; None where no input says so."""
    for name in ("attention_mask", "src_key_padding_mask", "input_mask"):
        mask = batch.by_text(name)
        if mask is None:
            continue
        is_token = mask.bool() if name == "attention_mask" else _read_keys(mask, name)
        if name == "attention_mask" and not bool(((mask == 0) | (mask == 1)).all()):
            raise NotTranslated(
                "the input 'attention_mask' holds other numbers than 0 and 1; give 1 on tokens and 0 on padding"
            )
        if mask.shape == shape:
            return is_token
        if not bool(is_token.all()):
            raise NotTranslated(
                f"the input {name!r} of shape {tuple(mask.shape)} leaves something out, but the blocks see "
                f"{shape[0]} texts of {shape[1]} tokens: a tree reads a mask with one entry per token; "
                "give inputs of one length without it"
            )
    return None


def _read_keys(padding: Tensor, name: str) -> Tensor:
    """Keys that are read, from a mask that is true on padding; numbers are minus infinity there, XLNet's are one."""
    if not padding.is_floating_point():
        return ~padding.bool()
    is_read = padding == 0
    if not bool((is_read | (padding == 1 if name == "input_mask" else padding <= NEVER)).all()):
        raise NotTranslated(
            f"the input {name!r} adds other numbers to the logits than 0 and minus infinity, which a tree does not "
            "read; give a boolean mask"
        )
    return is_read


def is_causal_input(batch: Batch) -> bool:
    """Whether a causal mask is among the inputs; an error if another mask between tokens is.

    >>> later = torch.ones(3, 3, dtype=torch.bool).triu(1)
    >>> is_causal_input(Batch(inputs={"mask": later}, is_token=None, labels=()))
    True
    """
    for name in CAUSAL_INPUTS:
        mask = batch.inputs.get(name)
        if mask is None or mask.ndim != 2 or mask.shape[0] != mask.shape[1]:
            if mask is not None:
                raise NotTranslated(
                    f"the input {name!r} of shape {tuple(mask.shape)} is not one mask for all texts"
                )
            continue
        is_read = _read_keys(mask, name)
        if torch.equal(is_read, torch.ones_like(is_read).tril()):
            return True
        if not bool(is_read.all()):
            raise NotTranslated(
                f"the input {name!r} is neither causal nor empty; translate the model without it and lay the mask on "
                "the tree: rankscope.with_mask(network, rule)"
            )
    return False


def has_own_positions(batch: Batch) -> bool:
    """Whether positions are given and are not those of the columns; some models ignore what they are given."""
    positions = batch.inputs.get("position_ids")
    return positions is not None and not bool((positions == torch.arange(positions.shape[-1])).all())
