"""What users give as inputs of a model, as calls of it: one contract for every verb.

In this order:

- a recording (``Seen``) or a ``Batch`` is used as it is;
- a function is called without arguments, and what it returns is taken;
- a file (.npy, .npz, .safetensors, .pt) stands for what it holds;
- a tensor or an array is the first input;
- a mapping holds keyword arguments if the model takes its names, and is itself the one argument otherwise;
- a tuple holds the arguments of one call;
- a list holds one call per entry, unless the model cannot be called so and can with the entries as its arguments;
- anything else that can be iterated over (a DataLoader) yields one call after the other, lists among them like tuples.

Entries behind the last argument that the model takes, such as the labels of a DataLoader, are no inputs, unless a model
of one argument can only be called with all of them; nor are labels by name that it does not take. What was decided is
told in ``Calls.notes``.
"""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass, replace
from itertools import chain
from math import inf
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.words import article
from rankscope.errors import ConfigError, ModelError, RankscopeError
from rankscope.findings.reading import TextAxes
from rankscope.sources.arguments import positional_names, taken_apart, tensors_in
from rankscope.sources.batch import Batch
from rankscope.sources.block_calls import BlockCall
from rankscope.sources.block_masks import BlockMask, may_be_told
from rankscope.sources.family import Layout
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.loaded import inputs_of
from rankscope.sources.named_axes import StatedAxes, stated_axes
from rankscope.sources.padding import Padding, find_padding, find_told_padding, masks_of_tokens
from rankscope.sources.plain_run import first_call
from rankscope.sources.safety import first_line
from rankscope.sources.seen import Call, Seen, called, check_alike
from rankscope.sources.taps import unwrapped
from rankscope.sources.tensor_files import read_inputs
from rankscope.sources.tensors import Ready, as_computed, not_an_input, ready_inputs, takes_anything

LABELS = ("labels", "label", "label_ids", "targets", "target")
"""Names of what a loss compares with, which many models do not take."""

SPECIAL = "special_tokens_mask"
"""What a tokenizer returns under this name says which tokens not to measure; models do not take it."""


@final
class Calls(Iterator[Batch]):
    """The calls of a model one after the other, each with its axes; ``notes`` tell how they were read, so far."""

    def __init__(self, model: nn.Module, layout: Layout | None, given: "Given", batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"a batch of {batch_size} texts cannot be made; expected 1 or more")
        self._given, self._parts = given, self._located(model, layout, batch_size)
        self.axes: TextAxes | None = None
        self._padding: Padding | None = None
        self._told: BlockMask | None = None
        self._is_never_told = False
        self.total = given.total
        """How many calls there are, where that is known."""

        first = next(self._parts, None)
        if first is None:
            raise ConfigError("an empty collection of inputs was given; give at least one batch")
        self.is_call = first.form is not None
        """Whether these are calls as somebody made them, not tensors under the names of inputs."""

        self._parts = chain([first], self._parts)

    @property
    def is_whole(self) -> bool:
        """Whether whole tensors were given, which are cut into batches; calls stay as they were made."""
        return self._given.is_whole

    @property
    def notes(self) -> tuple[str, ...]:
        """Which reading was chosen, what was left out; complete once all calls are through."""
        return tuple(self._given.notes)

    def __next__(self) -> Batch:
        return next(self._parts)

    def _without_padding(self, model: nn.Module, layout: Layout, batch: Batch) -> Batch:
        """The batch with its padding left out; names are believed of models of libraries, others are tried out."""
        is_own = getattr(model, "config", None) is None and "src_key_padding_mask" not in batch.inputs
        masks = masks_of_tokens(batch) if is_own else []
        if masks and self._padding is None:
            self._padding = find_padding(model, layout, batch)
        if masks and self._padding is not None:
            self._given.tell("padding", self._padding.words)
            is_token = self._padding.is_token(batch)
            return batch if is_token is None else replace(batch, is_token=is_token)
        given = batch.inputs.get("attention_mask")
        is_open = batch.is_token is None or bool(batch.is_token.all())
        asks = is_open and (is_own or (given is not None and given.ndim > 2))
        told = self._told_padding(model, layout, batch) if asks else None
        if told is not None:
            return replace(batch, is_token=told)
        unclear = [name for name in masks if "mask" in name or "pad" in name]
        if unclear and batch.is_token is None:
            self._given.tell(
                "padding", f"the input {unclear[0]!r} was not seen to leave out tokens: all are measured"
            )
        return batch

    def _told_padding(self, model: nn.Module, layout: Layout, batch: Batch) -> Tensor | None:
        """Which tokens the blocks' own arguments leave, where a model makes its mask of something else than a mask."""
        if self._is_never_told:
            return None
        call: BlockCall | None = None
        with suppress(Exception):  # its own words come when it runs in earnest
            _, call = first_call(model, layout.stacks[0], batch)
        if call is None or not may_be_told(call):
            self._is_never_told = True
            return None
        self._told = self._told or find_told_padding(model, layout, batch)
        if self._told is None:
            return None
        self._given.tell(
            "padding",
            f"padding is what the argument {self._told.name!r} of the blocks leaves out (found by moving it)",
        )
        return self._told.is_token(call)

    def _located(self, model: nn.Module, layout: Layout | None, batch_size: int) -> Iterator[Batch]:
        first: Batch | None = None
        done = skipped = 0
        for number, ready in enumerate(self._given.calls, start=1):
            if first is not None:
                check_alike(first, ready.batch, number, model)
            batch, axes = ready.located(model, layout, self.axes)
            if first is None:
                first, self.axes = batch, axes
            elif self._given.total is not None and ready.tokens(batch) == 1 < (ready.tokens(first) or 0):
                skipped += 1
                self._given.tell(
                    "steps", f"{skipped} calls on one token go on from earlier ones; the full passes are used"
                )
                continue
            if layout is not None and ready.batch.is_token is None:
                batch = self._without_padding(model, layout, batch)
            if ready.batch.labels == ():
                batch = replace(batch, labels=tuple(f"input {done + n + 1}" for n in range(len(batch))))
            done += len(batch)
            if self._given.is_whole:
                yield from (batch.part(n, n + batch_size) for n in range(0, len(batch), batch_size))
            else:
                yield batch


@final
class Given:
    """What was given, as calls of which it is not known yet where texts lie."""

    def __init__(self, calls: Iterable[Ready], *, is_whole: bool = False, total: int | None = None) -> None:
        self.calls, self.is_whole, self.total = calls, is_whole, total
        self._notes: dict[str, str] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes.values())

    def tell(self, what: str, words: str) -> None:
        """Keep one line about one matter; a later one on the same matter takes its place."""
        self._notes[what] = words


def batches_of_call(
    model: nn.Module,
    inputs: Any = None,
    *,
    call: Call | None = None,
    layout: Layout | None = None,
    batch_size: int = 8,
    axes: str | Sequence[str] | None = None,
) -> Calls:
    """Batches from whatever a user gives: ``inputs`` in any of the forms above, or a function ``call`` of the model.

    Tensors that were given whole are cut into batches of ``batch_size`` texts; calls stay as they were made. ``axes``
    states what the axes of the tensors with tokens are, such as ``tokens,texts`` for ids or ``tokens,texts,dim`` for
    vectors. It is compared with what moving texts shows, an error where that is something else, and decides where that
    shows nothing; of masks and the like it says nothing.
    """
    return Calls(unwrapped(model), layout, given_calls(model, inputs, call=call, axes=axes), batch_size)


def given_calls(
    model: nn.Module,
    inputs: Any = None,
    *,
    call: Call | None = None,
    axes: str | Sequence[str] | None = None,
) -> Given:
    """The calls themselves, in the order of the contract, without looking for the axis of texts; each knows what was
    stated of its ``axes``."""
    if (inputs is None) == (call is None):
        raise ConfigError(
            "give the model's inputs, or a call of it: inputs=tokens, or call=lambda m: m(tokens)"
        )
    stated = None if axes is None else stated_axes(axes)
    if call is not None:
        return _of_seen(called(model, call), unwrapped(model), stated)
    return _Reader(unwrapped(model), stated).read(inputs)


def _of_seen(seen: Seen, model: nn.Module, stated: StatedAxes | None) -> Given:
    if seen.closed().model is not model:
        raise ConfigError(
            f"{article(type(seen.model).__name__)} was recorded, but another model ({type(model).__name__}) is asked "
            "for; pass what was recorded alone"
        )
    given = Given((Ready(batch=batch, stated=stated) for batch in seen.batches), total=len(seen.batches))
    for number, words in enumerate(seen.notes):
        given.tell(f"recorded {number}", words)
    return given


class _Reader:
    """Turns what was given into calls of one model, by what its ``forward`` takes."""

    def __init__(self, model: nn.Module, stated: StatedAxes | None) -> None:
        self.model, self.name = model, type(model).__name__
        self.stated = stated
        self.given = Given(())
        self.takes = inputs_of(model)
        self.required, self.most = _positional_counts(model)
        self.names = positional_names(model)
        self.whole: dict[tuple[str, ...], bool] = {}  # whether a dict with these names is one argument
        self.is_unpacking: bool | None = None

    def read(self, value: Any) -> Given:
        value = _returned(value)
        if isinstance(value, Seen):
            return _of_seen(value, self.model, self.stated)
        if isinstance(value, str | os.PathLike):
            value = read_inputs(value)
        if isinstance(value, Batch | Tensor | np.ndarray | Mapping | tuple):
            self.given.is_whole = not isinstance(value, Batch | tuple)
            self.given.calls = [self._call(value)]
        elif isinstance(value, list):
            self.given.calls = self._of_list(value)
        elif isinstance(value, Iterable):
            self.given.calls = self._each(value)
        else:
            raise self._not_understood(value)
        return self.given

    def _each(self, values: Iterable[Any]) -> Iterator[Ready]:
        waiting = iter(values)
        while True:
            try:
                value = next(waiting)
            except StopIteration:
                return
            except RankscopeError:
                raise
            except Exception as error:
                raise ModelError(
                    f"the {type(values).__name__} of inputs failed with {type(error).__name__}: {first_line(error)}; "
                    "expected one batch after the other"
                ) from error
            yield self._call(value)

    def _of_list(self, values: list[Any]) -> Iterable[Ready]:
        """One call per entry, or one call with all of them: what the model accepts, in this order."""
        if not values:
            raise ConfigError("an empty collection of inputs was given; give at least one batch")
        if all(isinstance(one, str) for one in values):
            raise ConfigError("inputs are tensors, and these are texts; give them as texts=[...]")
        if any(isinstance(one, Batch | Mapping | tuple | list) for one in values):
            return self._each(values)
        can_each = self.required <= 1 and all(isinstance(one, Tensor | np.ndarray) for one in values)
        can_all = self.required <= len(values) <= self.most
        if can_each and can_all and len(values) > 1:
            # Both fit the signature, so the model itself decides; of equal shapes one entry speaks for all.
            kinds = {(_shape(one), str(one.dtype)): one for one in values}
            failed = next((error for one in kinds.values() if (error := self._fails(self._call(one)))), None)
            can_each = failed is None
            if failed is not None and (error := self._fails(self._call(tuple(values)))):
                raise ModelError(
                    f"{self.name} fails on the entries of the list one by one ({failed}) and on all of them as its "
                    f"arguments ({error}); give a tuple of arguments, a dict by name, or call=lambda m: m(...)"
                )
        if can_each:
            if len(values) > 1:
                self.given.tell("list", f"the list was read as {len(values)} batches of one input each")
            return self._each(values)
        if not can_all:
            raise self._wrong_count(len(values))
        ready = self._call(tuple(values))
        words = f"the list was read as the arguments of one call: {self._listed(len(values))}"
        self.given.tell("arguments", words)
        return [ready]

    def _fails(self, ready: Ready) -> str:
        """What the model says to a call; empty if it answers."""
        try:
            with torch.random.fork_rng(devices=()), quiet(self.model):
                run_batch(self.model, ready.batch)
        except Exception as error:
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

    def _call(self, value: Any) -> Ready:
        """One call from one entry."""
        if isinstance(value, Batch):
            if self.stated is not None and value.text_axes is not None:
                raise ConfigError(
                    f"a batch says itself where its texts lie (text_axes); leave out the axes '{self.stated}'"
                )
            return Ready(batch=value, stated=self.stated)
        if isinstance(value, Tensor | np.ndarray):
            if self.required > 1:
                raise self._wrong_count(1)
            return ready_inputs(value, self.model, self.stated)
        if isinstance(value, Mapping):
            return self._named(value)
        if isinstance(value, tuple | list):
            return self._positional(value)
        if is_dataclass(value) and not isinstance(value, type):
            return self._built((value,), {})
        raise self._not_understood(value)

    def _named(self, values: Mapping[str, Any]) -> Ready:
        """Keyword arguments where the model takes the names; else the mapping is its one argument."""
        values = dict(values) if type(values) is dict else values
        entries = dict(values)
        special = entries.pop(SPECIAL, None) if SPECIAL not in self.takes else None
        unknown = [name for name in entries if name not in self.takes and not takes_anything(self.model)]
        left_out = [name for name in unknown if name in LABELS and len(unknown) < len(entries)]
        for name in left_out:
            del entries[name]
            self.given.tell(name, f"{name!r} is no input of {self.name}: left out")
        unknown = [name for name in unknown if name not in left_out]
        if not entries:
            raise ConfigError(
                f"the inputs of {self.name} are an empty dict; its inputs are {', '.join(self.takes)}"
            )
        if unknown and self.required <= 1 <= self.most and tensors_in(list(entries.values())):
            whole = self._built((values,), {})
            names = tuple(sorted(map(str, entries)))
            if names not in self.whole:
                self.whole[names] = not self._fails(whole)
            if self.whole[names]:
                self.given.tell("mapping", f"the dict was passed as the one argument of {self.name}")
                return whole
            if len(entries) > 1:
                raise not_an_input(str(unknown[0]), self.model)
        if all(isinstance(one, Tensor | np.ndarray) for one in entries.values()):
            ready = ready_inputs(entries, self.model, self.stated)
        elif unknown:
            raise not_an_input(str(unknown[0]), self.model)
        else:
            ready = self._built((), entries)
        return ready if special is None else _without_special(ready, special)

    def _positional(self, given: tuple[Any, ...] | list[Any]) -> Ready:
        values = tuple(given)
        if not values:
            raise ConfigError(
                f"an empty call of {self.name} was given; it takes {self._listed(len(self.names))}"
            )
        if isinstance(values[0], Mapping) and set(map(str, values[0])) & set(self.takes):
            if len(values) > 1:
                self.given.tell(
                    "rest", f"what stands behind the dict of inputs is no input of {self.name}: left out"
                )
            return self._named(values[0])
        if len(values) < self.required:
            raise self._wrong_count(len(values))
        used = values if len(values) <= self.most else values[: int(self.most)]
        if len(used) < len(values) and self._unpacks(given, used):
            self.given.tell("tuple", f"every batch was passed whole, as the one argument of {self.name}")
            return self._built((given,), {})
        rows = [getattr(one, "shape", ()) for one in values]
        if len(used) < len(values) and len(rows[0]) == 1 and any(len(one) > 1 for one in rows[len(used) :]):
            raise ConfigError(
                f"{self.name} takes {self._listed(len(used))}, and entry 1 of a batch ({_described(values[0])}) looks "
                "like the labels of a later one; give a dict by name, or call=lambda m: m(...)"
            )
        if len(used) < len(values):
            rest = ", ".join(_described(one) for one in values[len(used) :])
            self.given.tell(
                "rest",
                f"{self.name} takes {self._listed(len(used))}: what follows in a batch ({rest}) is no input, left out",
            )
        elif len(used) > 1:
            self.given.tell("arguments", f"every batch was passed as {self._listed(len(used))}")
        for place in range(self.required, len(used)):
            name = self.names[place] if place < len(self.names) else ""
            if "mask" in name and getattr(used[place], "ndim", 0) == 1 and not _is_boolean(used[place]):
                raise ConfigError(
                    f"entry {place + 1} of a batch ({_described(used[place])}) would be passed as {name!r} and looks "
                    "like labels; give a dict by name, or call=lambda m: m(...)"
                )
        if len(used) == 1 and isinstance(used[0], Tensor | np.ndarray):
            return ready_inputs(used[0], self.model, self.stated)
        return self._built(used, {})

    def _unpacks(self, whole: tuple[Any, ...] | list[Any], used: tuple[Any, ...]) -> bool:
        """Whether a model of one argument takes batches apart itself: it fails on the first entry alone."""
        if self.most == 1 and self.is_unpacking is None:
            alone = self._fails(self._built(used, {}))
            self.is_unpacking = bool(alone) and not self._fails(self._built((whole,), {}))
        return bool(self.is_unpacking)

    def _built(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ready:
        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
                made = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
                value = made.long() if value.dtype.kind in "iu" else made
            return as_computed(value.detach(), self.model) if isinstance(value, Tensor) else value

        form, tensors = taken_apart(args, kwargs, self.names, change=plain)
        if not tensors:
            raise ConfigError(
                f"no tensor is among the inputs of {self.name} ({', '.join(map(_described, (*args, *kwargs.values())))}"
                "); give tensors, as tokenizer(texts, return_tensors='pt', padding=True) does, or call=lambda m: m(...)"
            )
        return Ready(batch=Batch(inputs=tensors, is_token=None, labels=(), form=form), stated=self.stated)

    def _listed(self, count: int) -> str:
        names = [*self.names[:count], *(f"argument {place + 1}" for place in range(len(self.names), count))]
        return f"({', '.join(names)})"

    def _wrong_count(self, count: int) -> ConfigError:
        needed = self._listed(self.required)
        return ConfigError(
            f"{self.name} needs {self.required} arguments, {needed}, and {count} were given; give a tuple of them, "
            "a dict by name, or call=lambda m: m(...)"
        )

    def _not_understood(self, value: object) -> ConfigError:
        return ConfigError(
            f"{article(type(value).__name__)} is no input of {self.name}; expected a tensor, a dict, a tuple of "
            "arguments, a DataLoader or another iterable of these, a file, or call=lambda m: m(...)"
        )


def _returned(value: Any) -> Any:
    """What a function without arguments returns; anything else as it is."""
    is_function = callable(value) and not isinstance(value, nn.Module | Mapping | Tensor | type)
    if not is_function or isinstance(value, Iterable):
        return value
    name = getattr(value, "__name__", type(value).__name__)
    try:
        return value()
    except RankscopeError:
        raise
    except Exception as error:
        raise ModelError(
            f"the function {name} of the inputs failed with {type(error).__name__}: {first_line(error)}; it is called "
            "without arguments and returns inputs; a function of the model goes to call="
        ) from error


def _positional_counts(model: nn.Module) -> tuple[int, float]:
    """How many positional arguments ``forward`` needs, and how many it takes at most."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (ValueError, TypeError):
        return 0, inf
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    positional = [one for one in parameters if one.kind in kinds]
    is_open = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return sum(one.default is inspect.Parameter.empty for one in positional), inf if is_open else len(
        positional
    )


def _without_special(ready: Ready, special: Any) -> Ready:
    """The same call; tokens that a tokenizer calls special are not measured."""
    is_token = ~torch.as_tensor(special).bool()
    mask = ready.batch.inputs.get("attention_mask")
    if mask is not None and mask.shape == is_token.shape:
        is_token &= mask.bool()
    return replace(ready, batch=replace(ready.batch, is_token=is_token))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape)


def _is_boolean(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in ("torch.bool", "bool")


def _described(value: Any) -> str:
    """A few words about an entry.

    >>> _described(torch.zeros(2, 3)), _described("a")
    ('float32 of shape 2 x 3', 'str')
    """
    if not isinstance(value, Tensor | np.ndarray):
        return type(value).__name__
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype} of shape {' x '.join(map(str, value.shape)) or '()'}"
