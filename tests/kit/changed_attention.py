"""Attention of whole libraries changed from outside: torch's softmax and fused attention with one step more."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Change = Callable[[Tensor], Tensor]
"""What is done to logits of shape ``... tokens tokens`` before, or to maps after, the softmax."""


def _same(x: Tensor) -> Tensor:
    return x


@contextmanager
def attention_changed(logits: Change = _same, maps: Change = _same) -> Iterator[None]:
    """Inside, every softmax over square matrices in three or four axes, fused or not, has these steps besides.

    A column more than rows is a sink, a logit that is no key's.
    """
    before = F.softmax, F.scaled_dot_product_attention

    def is_attention(x: Tensor) -> bool:
        return x.ndim in (3, 4) and x.shape[-1] - x.shape[-2] in (0, 1)

    # by the method: the function, called under a mode of torch, looks itself up by its name, which is ours now
    def softmax(x: Tensor, dim: int = -1, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
        if not is_attention(x):
            return x.softmax(dim, dtype)
        return maps(logits(x).softmax(dim, dtype))

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if enable_gqa:
            k, v = (part.repeat_interleave(q.shape[-3] // part.shape[-3], dim=-3) for part in (k, v))
        scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        scores = logits(scores) if is_attention(scores) else scores
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(~attn_mask, -torch.inf)
        scores = scores if attn_mask is None else scores + attn_mask
        # torch gives zeros to a query that may read nothing
        found = scores.softmax(-1).nan_to_num(0.0)
        return (maps(found) if is_attention(found) else found) @ v

    F.softmax, F.scaled_dot_product_attention = softmax, attention
    try:
        yield
    finally:
        F.softmax, F.scaled_dot_product_attention = before


@contextmanager
def eps_changed(model: nn.Module, factor: float) -> Iterator[None]:
    """Inside, every norm of a model has another eps."""
    held = [
        (module, name, getattr(module, name))
        for module in model.modules()
        for name in ("eps", "variance_epsilon")
        if isinstance(getattr(module, name, None), float)
    ]
    for module, name, value in held:
        setattr(module, name, value * factor)
    try:
        yield
    finally:
        for module, name, value in held:
            setattr(module, name, value)


def _first_key_hidden(scores: Tensor) -> Tensor:
    """Nobody but the first token reads the first token."""
    return torch.cat([scores[..., :1, :], scores[..., 1:, :].index_fill(-1, torch.tensor([0]), -1e9)], dim=-2)


def _heads_swapped(scores: Tensor) -> Tensor:
    heads = scores.shape[-3]
    return scores[..., [1, 0, *range(2, heads)], :, :] if heads > 1 else scores


LOGITS: dict[str, Change] = {
    "scale 1% larger": lambda scores: 1.01 * scores,
    "another mask": _first_key_hidden,
    "rows of two heads swapped": _heads_swapped,
    "logits clamped": lambda scores: scores.clamp(max=0.1),
    "another scale beyond six tokens": lambda scores: scores * (1.02 if scores.shape[-1] > 6 else 1.0),
}


def dropped(maps: Tensor) -> Tensor:
    """Dropout that is left on."""
    return F.dropout(maps, 0.1, training=True)
