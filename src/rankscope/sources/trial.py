"""Random inputs for any model, to compare its tree with: token ids with padding, pictures, sound, or states."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, RankscopeError
from rankscope.sources.audio import audio_batches, sample_audio
from rankscope.sources.axes import find_axes
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.family import Layout, Stack
from rankscope.sources.images import image_batches, sample_images
from rankscope.sources.loaded import dtype_of, inputs_of, kind_of, position_limit, text_config
from rankscope.sources.plain_run import first_state
from rankscope.sources.random_tokens import random_token_batches
from rankscope.sources.roles import block_width

TEXTS, TOKENS = 3, 32
SECONDS = 0.64
"""As many tokens as a text has, where a speech model makes one of 20 milliseconds."""
WIDEST = 512
"""Windows up to here are tried on texts that are longer than they are."""


def trial_batch(model: nn.Module, stack: Stack, *, seed: int = 0, padded: bool = True) -> Batch:
    """One batch of random inputs that the model can read.

    Where it reads a mask, the second text ends in padding and the third begins with it, unless ``padded`` is false.
    """
    match kind_of(model):
        case "text":
            texts = _first(_texts(model, seed))
            return _with_pictures(_padded(texts) if padded else texts, model, seed)
        case "image":
            return _first(image_batches(sample_images(TEXTS, seed=seed), model, batch_size=TEXTS))
        case "audio":
            return _sound(model, stack, seed)
    return _states(model, stack, seed, padded=padded)


def _sound(model: nn.Module, stack: Stack, seed: int) -> Batch:
    """Sound of about as many tokens as a text has; models that make more tokens of a second hear less of it."""

    def of(seconds: float) -> Batch:
        waves = sample_audio(TEXTS, seed=seed, seconds=seconds)
        return _first(audio_batches(waves, model, batch_size=TEXTS))

    batch = of(SECONDS)
    try:
        tokens = first_state(model, stack, batch).shape[1]
        if tokens <= 2 * TOKENS:
            return batch
        shorter = of(SECONDS * TOKENS / tokens)
        first_state(model, stack, shorter)
    except RankscopeError:  # a model of one length
        return batch
    return shorter


def _texts(model: nn.Module, seed: int) -> Iterator[Batch]:
    window = getattr(text_config(model), "sliding_window", None)
    wanted = window + TOKENS if isinstance(window, int) and window <= WIDEST else TOKENS
    tokens = min(wanted, position_limit(model) or wanted)
    return random_token_batches(model, f"{TEXTS}x{tokens}", seed=seed, batch_size=TEXTS)


def _padded(batch: Batch) -> Batch:
    """The batch with padding, where the model reads a mask."""
    mask = batch.inputs.get("attention_mask")
    if mask is None:
        return batch
    is_token = _is_token(mask.shape[1])
    inputs = batch.inputs | {"attention_mask": is_token.to(mask.dtype)}
    return replace(batch, inputs=inputs, is_token=is_token)


def _is_token(tokens: int) -> Tensor:
    """A whole text, one that ends in a quarter of padding, and one that begins with it."""
    quarter = max(tokens // 4, 1)
    is_token = torch.ones(TEXTS, tokens, dtype=torch.bool)
    is_token[1, tokens - quarter :] = False
    is_token[2, :quarter] = False
    return is_token


def _with_pictures(batch: Batch, model: nn.Module, seed: int) -> Batch:
    """The batch with one picture per text, for models that read both."""
    if "pixel_values" not in inputs_of(model):
        return batch
    pictures = _first(image_batches(sample_images(TEXTS, seed=seed), model, batch_size=TEXTS))
    return batch.joined(pictures)


def _states(model: nn.Module, stack: Stack, seed: int, *, padded: bool) -> Batch:
    """Normal tokens of the width of the blocks, by position; padding under torch's name for it, if that is read."""
    block = model.get_submodule(stack.blocks[0])
    width, takes = block_width(block), inputs_of(model)
    if width is None:
        raise ConfigError(
            f"{type(model).__name__} reads neither texts nor images nor sound as far as its inputs tell; "
            "give a batch of its inputs to compare the tree on"
        )
    drawn = torch.randn(TEXTS, TOKENS, width, generator=torch.Generator().manual_seed(seed))
    names = [POSITIONAL, "tgt"] if "tgt" in takes else [POSITIONAL]
    inputs: dict[str, Tensor] = dict.fromkeys(names, drawn.to(dtype_of(model)))
    axis = find_axes(model, Layout(family="", stacks=(stack,)), inputs).axis
    inputs = {name: value.movedim(0, axis) for name, value in inputs.items()}
    axes = dict.fromkeys(inputs, axis)
    is_token = torch.ones(TEXTS, TOKENS, dtype=torch.bool)
    if "src_key_padding_mask" in takes and padded:
        is_token = _is_token(TOKENS)
        inputs["src_key_padding_mask"], axes["src_key_padding_mask"] = ~is_token, 0
    labels = tuple(f"{n + 1}: random states" for n in range(TEXTS))
    return Batch(inputs=inputs, is_token=is_token, labels=labels, text_axes=axes)


def _first(batches: Iterator[Batch]) -> Batch:
    return next(iter(batches))
