"""Attention maps of a live model, handed over as they appear and never kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.numerics import threads_for, unit_roundoff
from rankscope.errors import NotTapped
from rankscope.measures import QUICK, Evaluation, evaluate_many, evaluate_many_padded, find_measure
from rankscope.probe.attention_calls import BlockCall, Function, listed, watched
from rankscope.probe.attention_functions import map_of, map_sizes, texts_of
from rankscope.sources.family import Layout

MAP_DEFINITIONS = ("attention_entropy[mean]", "dobrushin[map]", "spectral_gap[map]", "sink_share[map]")
"""What is measured of every map."""

ReceiveMap = Callable[[str, int, Tensor], None]
"""Called with stack, layer and maps ``(texts, heads, queries, keys)``; what it does not keep is gone."""


@contextmanager
def attention_maps(model: nn.Module, layout: Layout, receive: ReceiveMap) -> Iterator[None]:
    """Every self-attention of the forward passes run inside is handed to ``receive``, layer by layer.

    A map holds the probabilities as they leave softmax, before dropout, for all tokens: rows and columns of padding
    are for the caller to drop. The first map of a block call from the block's tokens to the same tokens is its
    self-attention; what follows in that call (cross-attention, routers of experts) is not reported. Layers count
    block calls, so a block that is shared between layers is seen once per layer.

    The model computes what it always computes, with the attention it was loaded with: softmax is looked at, and
    where attention runs in one piece (``scaled_dot_product_attention``) the map is computed beside it from the same
    queries, keys and mask. Exceptions are kernels outside torch (flash, flex), for which eager attention stands in,
    and the fused path of ``torch.nn.TransformerEncoder``, which is switched off: there states agree to rounding.

    Raises ``NotTapped`` after the pass in which a block made no such map, and names the blocks: attention over
    windows or hashes, blocks without attention, and learned sinks, where a row keeps part of its mass for a key that
    is no token, so that what is left of it does not sum to one.
    """
    maps = _Maps(type(model).__name__, receive)
    with watched(model, layout, maps):
        yield
    maps.finished()


def map_panel(
    maps: Tensor, is_real: Tensor | None, layer: int, dtype: torch.dtype, *, exact: bool = False
) -> dict[str, Evaluation]:
    """Entropy, Dobrushin coefficient, spectral gap and sink share of every map, as ``(texts, heads)`` per definition.

    ``maps`` are ``(texts, heads, tokens, tokens)``, ``dtype`` is what the model computes in. ``is_real`` (boolean,
    ``(texts, tokens)``, None if nothing is padded) is False on padding alone. Special tokens stay, as queries and as
    keys: they take part in attention, often most of it, and without their columns the rows would not sum to one.
    The coefficient and the gap are the middle of a bracket, whose half is part of their floor, unless ``exact``.

    >>> import torch
    >>> found = map_panel(torch.full((1, 2, 4, 4), 0.25), None, 1, torch.float32)
    >>> found["sink_share[map]"].value
    tensor([[0.2500, 0.2500]], dtype=torch.float64)
    """
    coarsest = max(dtype, maps.dtype, key=unit_roundoff)
    measures = [
        find_measure(name) if exact else QUICK.get(name, find_measure(name)) for name in MAP_DEFINITIONS
    ]
    with threads_for(maps.shape[-2] * maps.shape[-1]):
        if is_real is None or bool(is_real.all()):
            found = evaluate_many(measures, maps, layer=layer, dtype=coarsest)
        else:
            kept = is_real.to(maps.device)[:, None, :]
            found = evaluate_many_padded(measures, maps, kept, layer=layer, dtype=coarsest)
    return dict(zip(MAP_DEFINITIONS, found, strict=True))


class _Maps:
    """Hands over the first fitting map of every block call and remembers the calls that had none."""

    def __init__(self, model: str, receive: ReceiveMap) -> None:
        self.model, self.receive = model, receive
        self.waiting: dict[BlockCall, set[tuple[int, ...]]] = {}
        self.missing: dict[str, list[str]] = {}  # blocks by what was seen in place of a map
        self.calls = 0

    def opened(self, call: BlockCall, state: Tensor) -> None:
        self.calls += 1
        self.waiting[call] = set()

    def called(
        self, call: BlockCall, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = function(*args, **kwargs)
        if call not in self.waiting:
            return output
        sizes = map_sizes(function, args, kwargs)
        if sizes is None:
            return output
        texts = texts_of(sizes, call)
        if texts is None:
            self.waiting[call].add(sizes)
            return output
        del self.waiting[call]
        maps = map_of(function, args, kwargs, output).detach()
        self.receive(call.stack.name, call.layer, maps.reshape(texts, -1, *maps.shape[-2:]))
        return output

    def closed(self, call: BlockCall, output: object) -> None:
        if call in self.waiting:
            self.missing.setdefault(_instead(call, self.waiting.pop(call)), []).append(str(call))

    def passed(self) -> None:
        """Complain as soon as a whole pass is over: later passes would miss the same blocks."""
        self.waiting.clear()
        if not self.missing:
            return
        raise NotTapped(
            f"no attention map of {self.model} was seen: "
            + "; ".join(f"{listed(blocks)} {instead}" for instead, blocks in self.missing.items())
            + ". Maps are read where torch computes softmax or scaled_dot_product_attention over all tokens of a text:"
            " load the model with eager attention, or measure it without attention maps"
        )

    def finished(self) -> None:
        self.passed()
        if not self.calls:
            raise NotTapped(
                f"no block of {self.model} ran while its attention maps were awaited; run the model inside"
            )


def _instead(call: BlockCall, sizes: set[tuple[int, ...]]) -> str:
    """What was seen in place of a map, in words."""
    if not sizes:
        return "called no such function"
    counts = {tokens for _, tokens in call.texts_and_tokens}
    if any(size[-1] - 1 in counts and size[-2] == size[-1] - 1 for size in sizes if len(size) > 1):
        return "let tokens attend to one key more than there are tokens (a learned sink)"
    shapes = ", ".join(str(size) for size in sorted(sizes))
    return f"made probabilities of shape {shapes} from tokens of shape {call.sizes}"
