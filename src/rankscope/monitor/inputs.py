"""The fixed texts of a monitor, in whatever form they were given."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.sources import Batch, Seen, text_batches, tokens_per_text
from rankscope.sources.calls import given_calls
from rankscope.sources.loaded import inputs_of, position_limit
from rankscope.sources.seen import Call
from rankscope.sources.tensor_files import SUFFIXES
from rankscope.sources.tensors import Ready

Probes = Batch | Seen | Mapping[str, Any] | Tensor | Iterable[Any]


def fixed_calls(
    probes: Probes | None, model: nn.Module, tokenizer: Any | None = None, *, call: Call | None = None
) -> tuple[Ready, ...]:
    """Calls of their own memory, kept for the whole run; which axis of tensors holds texts is for the model to show.

    Taken is what every study takes as ``inputs`` or ``call``, and with a tokenizer a collection of texts.
    """
    if tokenizer is not None and not isinstance(probes, Batch | Seen | Mapping | Tensor | str | None):
        probes = list(probes)
    words = probes if isinstance(probes, list | tuple) else [probes]
    if any(isinstance(one, str) and not one.endswith(SUFFIXES) for one in words):
        if tokenizer is None or isinstance(probes, str):
            raise ConfigError(
                "a monitor reads texts with their tokenizer: pass a list of them and tokenizer=..."
            )
        longest = tokens_per_text(None, position_limit(model, tokenizer))
        texts = text_batches(map(str, words), tokenizer, max_tokens=longest, takes=inputs_of(model))
        return tuple(Ready(batch=batch) for batch in texts)
    if probes is None and call is None:
        raise ConfigError("a monitor needs texts to look at: give probes, or a call of the model")
    found = tuple(_copy_call(ready) for ready in given_calls(model, probes, call=call).calls)
    if not found:
        raise ConfigError("a monitor needs at least one text to look at, got an empty collection")
    return found


def _copy_call(ready: Ready) -> Ready:
    """The same call in memory that nobody else writes to."""
    batch = ready.batch
    inputs = {name: value.detach().clone() for name, value in batch.inputs.items()}
    is_token = None if batch.is_token is None else batch.is_token.clone()
    return replace(ready, batch=replace(batch, inputs=inputs, is_token=is_token))
