"""Attention maps from the calls of the two torch functions that make one: softmax, and attention in one piece."""

import math
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rankscope.core.numerics import broadcast
from rankscope.probe.attention_calls import BlockCall, Function

SOFTMAXES: frozenset[Function] = frozenset({torch.softmax, torch.special.softmax, Tensor.softmax, F.softmax})
WHOLE: Function = F.scaled_dot_product_attention


def map_sizes(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...] | None:
    """Shape of the probabilities that a call makes, keys last; None for any other function."""
    if function in SOFTMAXES:
        logits = args[0] if args else kwargs["input"]
        axis = _softmax_axis(args, kwargs) % max(logits.ndim, 1)
        return (*logits.shape[:axis], *logits.shape[axis + 1 :], logits.shape[axis])
    if function is WHOLE:
        query, key = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("query", "key")))
        return (*query.shape[:-1], key.shape[-2])
    return None


def texts_of(sizes: tuple[int, ...], call: BlockCall) -> int | None:
    """How many texts the probabilities are for, if they can be from each token of the block to each; None otherwise.

    Heads may have an axis, several (groups) or none, or share the leading axis with the texts.
    """
    for texts, tokens in call.texts_and_tokens:
        if len(sizes) < 2 or sizes[-2:] != (tokens, tokens):
            continue
        if sizes[0] == texts if len(sizes) > 3 else math.prod(sizes[:-2]) % texts == 0:
            return texts
    return None


def map_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor:
    """Probabilities of a call whose result is ``output``, keys last, without dropout."""
    if function is WHOLE:
        return whole_maps(*args, **kwargs)
    probabilities: Tensor = output
    return probabilities.movedim(_softmax_axis(args, kwargs), -1)


def logits_of(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The logits of a call, keys last, in at least float32; masked ones are -inf."""
    if function is WHOLE:
        return whole_logits(*args, **kwargs)
    given: Tensor = args[0] if args else kwargs["input"]
    return _at_least_float32(given.movedim(_softmax_axis(args, kwargs), -1))


LONG = 2**16
"""Entries of a map from which on its logits are made one head at a time: those of all heads leave the processor."""


def whole_maps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The softmax of ``whole_logits``, of the same arguments."""
    tokens, keys = query.shape[-2], key.shape[-2]
    needs_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    if needs_gradient or tokens * keys <= LONG:
        logits = whole_logits(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return logits.softmax(dim=-1)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    if is_causal:
        attn_mask = torch.ones(tokens, keys, dtype=torch.bool, device=query.device).tril()
    batch = broadcast(query.shape[:-2], key.shape[:-2], () if attn_mask is None else attn_mask.shape[:-2])
    queries, all_keys = (part.expand(*batch, -1, -1) for part in (query, key))
    masks = None if attn_mask is None else attn_mask.expand(*batch, tokens, keys)
    maps = query.new_empty(*batch, tokens, keys, dtype=_at_least_float32(query[..., :0, :0]).dtype)
    for place in product(*map(range, batch)):
        mask = None if masks is None else masks[place]
        logits = whole_logits(queries[place], all_keys[place], value, mask, scale=scale)
        maps[place] = logits.softmax(dim=-1)
    return maps


def whole_logits(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The logits whose softmax ``scaled_dot_product_attention`` applies to the values, without dropout.

    ``scale Q K^T + mask`` in at least float32; the arguments are those of torch's function.

    >>> import torch
    >>> x = torch.eye(2).reshape(1, 1, 2, 2)
    >>> whole_logits(x, x, x, is_causal=True, scale=0.0).softmax(dim=-1)
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    query, key = _at_least_float32(query), _at_least_float32(key)
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    with torch.autocast(query.device.type, enabled=False):
        logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        return logits.masked_fill(~attn_mask, -math.inf)
    return logits if attn_mask is None else logits + attn_mask


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if torch.finfo(x.dtype).bits < 32 else x


def _softmax_axis(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    return -1 if axis is None else int(axis)
