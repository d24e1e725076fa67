"""The fixed texts of a monitor, in whatever form they were given."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from rankscope.errors import ConfigError
from rankscope.sources import POSITIONAL, Batch, text_batches, tokens_per_text
from rankscope.sources.loaded import inputs_of, position_limit

Probes = Batch | Mapping[str, Any] | Tensor | Iterable[Any]


def fixed_batches(probes: Probes, model: nn.Module, tokenizer: Any | None = None) -> tuple[Batch, ...]:
    """Batches of their own memory, kept for the whole run; which axis of tensors holds texts is for the model to show.

    Taken are batches, mappings of input tensors (what a tokenizer returns), single tensors passed by position, any
    finite collection of these, and with a tokenizer a collection of texts.
    """
    if isinstance(probes, Batch | Mapping | Tensor):
        return (_batch(probes),)
    if isinstance(probes, str) or not isinstance(probes, Iterable):
        raise _not_understood(probes)
    found = list(probes)
    if not found:
        raise ConfigError("a monitor needs at least one text to look at, got an empty collection")
    if tokenizer is not None and all(isinstance(one, str) for one in found):
        longest = tokens_per_text(None, position_limit(model, tokenizer))
        return tuple(text_batches(found, tokenizer, max_tokens=longest, takes=inputs_of(model)))
    return tuple(_batch(one) for one in found)


def _batch(probe: object) -> Batch:
    if isinstance(probe, Batch):
        inputs = {name: value.clone() for name, value in probe.inputs.items()}
        is_token = None if probe.is_token is None else probe.is_token.clone()
        return Batch(inputs=inputs, is_token=is_token, labels=probe.labels, text_axes=probe.text_axes)
    if isinstance(probe, Tensor):
        return Batch(inputs={POSITIONAL: probe.detach().clone()}, is_token=None, labels=())
    if isinstance(probe, Mapping):
        return _named(probe)
    raise _not_understood(probe)


def _named(probe: Mapping[str, Any]) -> Batch:
    """Inputs by name. Measured are tokens of ``attention_mask``, without those of ``special_tokens_mask``."""
    odd = [name for name, value in probe.items() if not isinstance(value, Tensor)]
    if odd or not probe:
        what = f"{odd[0]} is {type(probe[odd[0]]).__name__}" if odd else "there are none"
        raise ConfigError(
            f"inputs must be tensors, {what}; use tokenizer(texts, return_tensors='pt', padding=True)"
        )
    inputs = {str(name): value.detach().clone() for name, value in probe.items()}
    special = inputs.pop("special_tokens_mask", None)
    mask = inputs.get("attention_mask")
    is_token = mask.bool() if mask is not None and mask.ndim == 2 else None
    if special is not None:
        is_token = ~special.bool() if is_token is None else is_token & ~special.bool()
    return Batch(inputs=inputs, is_token=is_token, labels=())


def _not_understood(probe: object) -> ConfigError:
    return ConfigError(
        f"a monitor looks at batches, mappings of tensors or tensors, got {type(probe).__name__}; "
        "for texts pass a list of them with tokenizer=..."
    )
