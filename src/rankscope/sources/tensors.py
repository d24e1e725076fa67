"""Ready tensors as inputs of a model."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, RankscopeError, ShapeError
from rankscope.findings.reading import TextAxes
from rankscope.sources.axes import find_axes, located
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.entries import Entry, Source, entries_of_source
from rankscope.sources.family import Layout
from rankscope.sources.layout import layout_of
from rankscope.sources.loaded import dtype_of, inputs_of, kind_of
from rankscope.sources.named_axes import StatedAxes, may_hold_tokens
from rankscope.sources.taps import unwrapped
from rankscope.sources.texts import with_decoder


@final
class TensorBatches(Iterator[Batch]):
    """Ready inputs in batches; ``axes`` tells along which axes texts lie."""

    def __init__(self, whole: Batch, axes: TextAxes, batch_size: int) -> None:
        self.axes = axes
        self._parts = (whole.part(n, n + batch_size) for n in range(0, len(whole), batch_size))

    def __next__(self) -> Batch:
        return next(self._parts)


def tensor_batches(
    source: Source, model: nn.Module, *, batch_size: int = 8, layout: Layout | None = None
) -> TensorBatches:
    """Ready inputs of a model as batches, cut along the axis that holds texts.

    Whole numbers are token ids, (tokens) or (texts, tokens); floating-point numbers are token embeddings,
    (tokens, dim) or (texts, tokens, dim), cast to the model's dtype, or whatever a model of images or sound
    reads. A model that reads tokens before texts is given them so; which of the two axes holds texts is found on the
    model, whose blocks ``layout`` names. Several named tensors are passed under their names; where a mask of padding
    is among them, the tokens it leaves out are not measured.
    """
    if batch_size < 1:
        raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
    ready = ready_inputs(source, model)
    model = unwrapped(model)
    if layout is None:
        with suppress(RankscopeError):  # a module without blocks has no states to look at
            layout = layout_of(model)
    whole, axes = ready.located(model, layout)
    return TensorBatches(whole, axes, batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """The inputs of one call, of which it is not known yet where texts lie."""

    batch: Batch
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """What each input was read from, where it was a tensor by itself."""

    stated: StatedAxes | None = None
    """What the giver says of the axes of the tokens' own inputs."""

    def located(
        self, model: nn.Module, layout: Layout | None, known: TextAxes | None = None
    ) -> tuple[Batch, TextAxes]:
        """The batch with its axes, found on the model or known from another batch of the same inputs."""
        inputs = dict(self.batch.inputs)
        if self.batch.text_axes is not None:
            return located(model, layout, self.batch)
        fits = known is not None and set(known.inputs) == set(inputs)
        stated = self._stated_now()
        axes = (
            known
            if known is not None and fits
            else find_axes(model, layout, inputs, self.batch.form, stated=stated)
        )
        for key, entry in self.entries.items():
            if axes.axis == 1 and len(entry.shape) < inputs[key].ndim:
                inputs[key] = inputs[key].movedim(0, 1)  # one text: its axis goes where the model wants it
            _check_tokens(entry, key, inputs[key], axes.inputs[key], stated)
        whole, axes = located(model, layout, replace(self.batch, inputs=inputs), axes)
        if not self.batch.labels:
            whole = replace(whole, labels=tuple(f"input {number + 1}" for number in range(len(whole))))
        if whole.is_token is None:
            whole = replace(whole, is_token=_measured(whole, stated))
        return whole, axes

    def tokens(self, batch: Batch) -> int | None:
        """How many tokens the first input with texts has, in a batch that knows where its texts lie."""
        axes = batch.text_axes or {}
        found = (
            value.shape[place]
            for name, value in batch.inputs.items()
            if (axis := axes.get(name)) is not None
            and (place := _token_axis(name, value, axis, self.stated)) is not None
        )
        return next(found, None)

    def _stated_now(self) -> StatedAxes | None:
        """What is stated of the axes as they are now.

        Nothing of a single text that was stated without an axis of texts and has got one since: where that one lies
        is found on the model.
        """
        stated = self.stated
        if stated is None:
            return None
        shapes = {name: tuple(value.shape) for name, value in self.batch.inputs.items()}
        shapes |= {name: tuple(entry.shape) for name, entry in self.entries.items()}
        if not any(
            may_hold_tokens(name, value) and len(shapes[name]) == len(stated.names)
            for name, value in self.batch.inputs.items()
        ):
            raise stated.fits_none(shapes)
        has_more = any(
            len(entry.shape) == len(stated.names) < self.batch.inputs[name].ndim
            for name, entry in self.entries.items()
        )
        return None if stated.texts is None and has_more else stated


def ready_inputs(source: Source, model: nn.Module, stated: StatedAxes | None = None) -> Ready:
    """Tensors under the names by which the model takes them; a single one is its first input, whatever it is called."""
    entries = entries_of_source(source)
    takes = inputs_of(model)
    found = {entry.name: entry for entry in entries}
    if len(entries) == 1 and entries[0].name not in takes:
        found = {_input_name(entries[0], model, takes): entries[0]}
    unknown = [key for key in found if key != POSITIONAL and key not in takes]
    if unknown and not takes_anything(model):
        raise not_an_input(unknown[0], model)
    inputs = {key: _with_texts(entry, key, model, stated) for key, entry in found.items()}
    inputs = with_decoder(inputs, takes)
    return Ready(batch=Batch(inputs=inputs, is_token=None, labels=()), entries=found, stated=stated)


def not_an_input(name: str, model: nn.Module) -> ConfigError:
    """What is said about a tensor under a name that the model does not know."""
    return ConfigError(
        f"the tensor {name!r} is not an input of {type(model).__name__}; its inputs are {', '.join(inputs_of(model))}"
    )


def takes_anything(model: nn.Module) -> bool:
    """Whether ``forward`` names none of its inputs and takes keyword arguments of any name.

    Models of transformers name theirs, and pass what else they are given on to nothing.
    """
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (ValueError, TypeError):
        return False
    is_open = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return is_open and not inputs_of(model)


def _measured(batch: Batch, stated: StatedAxes | None) -> Tensor | None:
    """Which tokens are measured, ``(texts, tokens)``, as the inputs tell; None if they do not."""
    mask = batch.by_text("attention_mask")
    if mask is not None and mask.ndim == 2:
        is_added = mask.is_floating_point() and bool((mask < 0).any())  # to logits: minus infinity on padding
        return mask == 0 if is_added else mask != 0
    padding = batch.by_text("src_key_padding_mask")
    if padding is not None:
        return padding == 0  # true, or minus infinity, on padding
    for key in ("input_ids", "inputs_embeds"):
        value = batch.by_text(key)
        if value is not None:
            if stated is not None and stated.fits(key, value) and stated.has_dim_first:
                return None  # the blocks show how many tokens there are
            return torch.ones(value.shape[:2], dtype=torch.bool)
    return None


def _token_axis(name: str, value: Tensor, axis: int, stated: StatedAxes | None) -> int | None:
    """The axis of tokens in an input whose texts lie along ``axis``: the other one of the first two, unless stated."""
    if stated is not None and stated.texts == axis and stated.fits(name, value):
        return stated.tokens
    return 1 - axis if value.ndim > 1 and axis < 2 else None


def _input_name(entry: Entry, model: nn.Module, takes: tuple[str, ...]) -> str:
    """Under which name a single tensor is passed, from its dtype and what the model reads."""
    by_kind = {"image": ("pixel_values",), "audio": ("input_values", "input_features")}
    wanted = ("input_ids",) if entry.dtype is None else by_kind.get(kind_of(model), ("inputs_embeds",))
    return next((name for name in wanted if name in takes), POSITIONAL)


def _with_texts(entry: Entry, key: str, model: nn.Module, stated: StatedAxes | None) -> Tensor:
    """The tensor with an axis of texts, its numbers of the type that the model reads."""
    value = entry.read(())
    is_stated = stated is not None and stated.texts is not None and stated.fits(key, value)
    axes = value.ndim if is_stated else _axes_of(entry, key, model)
    if axes is not None and value.ndim == axes - 1:
        value = value[None]
    if axes is not None and (value.ndim != axes or not value.numel()):
        raise _wrong_shape(entry, axes)
    if entry.dtype is None:
        return value if value.dtype == torch.bool else value.long()
    if "mask" not in key and not bool(value.isfinite().all()):
        lost = int((~value.isfinite()).sum())
        raise ShapeError(
            f"the input {entry.name!r} holds NaN or infinity in {lost} of {value.numel()} numbers; "
            "expected finite numbers"
        )
    return as_computed(value, model)


def as_computed(value: Tensor, model: nn.Module) -> Tensor:
    """Floating-point numbers in the dtype of the model; without weights it computes in what it is given."""
    has_dtype = any(parameter.is_floating_point() for parameter in model.parameters())
    return value.to(dtype_of(model)) if has_dtype and value.is_floating_point() else value


def _axes_of(entry: Entry, key: str, model: nn.Module) -> int | None:
    """How many axes an input has with that of texts; None where any number is taken."""
    if key == POSITIONAL and kind_of(model) == "tensor":
        return 2 if entry.dtype is None else 3 if len(entry.shape) <= 3 else None  # pictures go as they are
    return {"input_ids": 2, "attention_mask": 2, "inputs_embeds": 3}.get(key)


def _check_tokens(entry: Entry, key: str, value: Tensor, axis: int | None, stated: StatedAxes | None) -> None:
    if axis is None or (place := _token_axis(key, value, axis, stated)) is None:
        return
    names = stated.names if stated is not None and stated.fits(key, value) else ()
    is_tokens = names or key in ("input_ids", "inputs_embeds") or (key == POSITIONAL and value.ndim <= 3)
    if is_tokens and value.shape[place] < 2:
        raise _wrong_shape(entry, value.ndim, axis, names)


def _wrong_shape(entry: Entry, axes: int, axis: int = 0, stated: tuple[str, ...] = ()) -> ShapeError:
    names = stated or (("texts", "tokens", "dim") if axis == 0 else ("tokens", "texts", "dim"))
    expected = f"({', '.join(names[:axes])}) with at least two tokens"
    return ShapeError(f"the input {entry.name!r} has shape {entry.shape}; expected {expected}")
