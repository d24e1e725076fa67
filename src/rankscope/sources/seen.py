"""The user's own calls of a model, kept: what it was called with, not what it computed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from rankscope.errors import ConfigError, ModelError, RankscopeError, is_out_of_memory
from rankscope.sources.arguments import places, positional_names, taken_apart, tensors_in
from rankscope.sources.batch import Batch
from rankscope.sources.given import check_filled, checked_module, inside
from rankscope.sources.safety import NO_GPU, first_line, needs_gpu

if TYPE_CHECKING:
    from rankscope.sources.translation import Translation

Call = Callable[[nn.Module], object]
"""A function that runs a model: ``lambda model: model(tokens, mask=mask)``."""

MOST = 256
"""So many calls are kept of one recording."""

_CACHES = ("past", "cache", "mems")
"""Words in the names of arguments that carry what earlier calls have computed."""


@final
@dataclass(kw_only=True, slots=True, eq=False, repr=False)
class Seen:
    """A model and the arguments of its calls, as ``with rs.record(model) as seen`` leaves them.

    Verbs take it in place of a model, and run the model again on these arguments.
    """

    model: nn.Module
    """The module that was called; of a wrapper (torch.compile, DataParallel, PEFT) the one inside."""

    batches: tuple[Batch, ...] = ()
    """One per call, in order."""

    notes: tuple[str, ...] = ()
    """What there is to say about them: a wrapper that was looked through, calls that were left out."""

    is_open: bool = True

    trees: "dict[tuple[str | None, tuple[str, ...] | None], tuple[object, Translation]]" = field(
        default_factory=dict
    )
    """What ``translate`` has read, and what the model was like then, by what was asked for: the name of a stack, and
    the paths of its blocks."""

    def __len__(self) -> int:
        return len(self.batches)

    def __repr__(self) -> str:
        told = "".join(f"; {note}" for note in self.notes)
        return f"Seen({type(self.model).__name__}: {len(self)} call{'s' * (len(self) != 1)}{told})"

    def closed(self) -> "Seen":
        """The same; an error inside the ``with`` block, where running the model would be recorded too."""
        if self.is_open:
            raise ConfigError(
                "the model is still being recorded; leave the block 'with rs.record(model) as seen' first, then "
                "pass seen"
            )
        if not self.batches:
            raise ConfigError(
                "nothing was recorded: the block 'with rs.record(model) as seen' ended in an error"
            )
        return self


@contextmanager
def record(model: nn.Module, *, most: int = MOST) -> Iterator[Seen]:
    """Keep the arguments of every call of a model inside the block, however it is called.

    Each call is a batch, of any size and length. Arguments are copied before the model can write into them; the run
    itself is the user's own, with its gradients, its random numbers and its mode. Of calls that go on from a cache,
    such as those of ``generate``, the first full pass is kept. Of more than ``most`` calls the first ones are kept.
    Where the model itself is not called, but a part that holds most of it is (``training_step`` of a module around a
    network), that part is recorded, and a note says so.

        with rs.record(model) as seen:
            model(tokens, mask=mask)
        rs.scan(seen)
    """
    if most < 1:
        raise ConfigError(f"most={most}: keep 1 call or more")
    inner, words = inside(checked_module(model))
    check_filled(inner, "the model you passed")
    seen, tape = Seen(model=inner), _Tape(inner, most)
    parts = {path: _Tape(part, most) for path, part in _holding_most(inner)}
    try:
        with ExitStack() as undo:
            if "torch._dynamo" in sys.modules:  # compiled code calls no hooks, or keeps those that it met
                undo.enter_context(torch.compiler.set_stance("force_eager"))
            for one in (tape, *parts.values()):
                undo.enter_context(one.running())
            yield seen
        path = "" if tape.calls else next((path for path, one in parts.items() if one.calls), "")
        if path:  # a step of training that calls the network inside, and not the module around it
            tape = parts[path]
            words = (
                *words,
                f"{type(inner).__name__} itself was not called; its part {path!r} was, and is recorded",
            )
        seen.model, seen.batches, seen.notes = tape.model, tape.batches(), (*words, *tape.notes())
    finally:
        seen.is_open = False


def _holding_most(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of a model that hold more than half of its weights, from the outside in, with their paths."""
    whole = sum(weight.numel() for weight in model.parameters())
    for path, part in model.named_modules():
        if part is not model and 2 * sum(weight.numel() for weight in part.parameters()) > whole:
            if isinstance(part, nn.ModuleList | nn.ModuleDict):
                continue  # it holds the blocks, and is never called
            yield path, part


def called(model: nn.Module, call: Call) -> Seen:
    """What a function of a model calls it with; the model is at rest meanwhile, and its gradients stay as they were."""
    if isinstance(call, nn.Module) or not callable(call):
        raise ConfigError(
            f"call={type(call).__name__}: expected a function of the model, such as call=lambda m: m(tokens, mask=mask)"
        )
    name = getattr(call, "__name__", type(call).__name__)
    with record(model) as seen, _at_rest(seen.model):
        try:
            call(model)
        except RankscopeError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            advice = "expected one that runs it, such as call=lambda m: m(tokens, mask=mask)"
            raise ModelError(
                f"{name}, the function that was given to run the model, failed with {type(error).__name__}: "
                f"{first_line(error)}; {NO_GPU if needs_gpu(error) else advice}"
            ) from error
    return seen


@dataclass(slots=True)
class _Call:
    """One call: what it was given, and what became of it."""

    batch: Batch
    versions: dict[
        str, tuple[Tensor, int]
    ]  # the caller's own tensors, and how often they had been written to
    goes_on: str  # the cache that it goes on from
    gave: str = ""  # what it returned, if there was no tensor in it
    error: BaseException | None = None


class _Tape:
    """Hooks on a model that keep the arguments of its calls."""

    def __init__(self, model: nn.Module, most: int) -> None:
        self.model, self.most = model, most
        self.names = positional_names(model)
        self.calls: list[_Call] = []
        self.written: set[str] = set()
        self.inside: dict[str, None] = {}  # submodules that were called outside of a call of the model
        self.depth = self.total = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as undo:
            handles = [
                self.model.register_forward_pre_hook(self._enter, with_kwargs=True),
                self.model.register_forward_hook(self._leave, always_call=True),
            ]
            self.parts = [
                part.register_forward_pre_hook(self._meet(path))
                for path, part in self.model.named_modules()
                if part is not self.model
            ]
            undo.callback(lambda: [handle.remove() for handle in (*handles, *self.parts)])
            yield

    def _meet(self, path: str) -> Callable[[nn.Module, Any], None]:
        def hook(_: nn.Module, __: object) -> None:
            if not self.depth:
                self.inside.setdefault(path)

        return hook

    def _enter(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.depth += 1
        while self.parts:  # now that the model itself is called, nothing else has to be watched
            self.parts.pop().remove()
        if self.depth > 1:
            return
        self.total += 1
        if len(self.calls) < self.most:
            self.calls.append(self._kept(args, kwargs))

    def _kept(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        args, kwargs, goes_on = _without_caches(args, kwargs, self.names)
        form, tensors = taken_apart(args, kwargs, self.names)
        versions = {
            name: (value, value._version) for name, value in tensors.items() if not value.is_inference()
        }
        with torch.inference_mode(False), torch.no_grad():
            inputs = {name: value.detach().clone() for name, value in tensors.items()}
        batch = Batch(inputs=inputs, is_token=None, labels=(), form=form, autocast=_autocast(self.model))
        return _Call(batch, versions, goes_on)

    def _leave(self, _: nn.Module, __: object, output: object) -> None:
        self.depth -= 1
        if self.depth or self.total > self.most:
            return
        call = self.calls[-1]
        call.error = sys.exc_info()[1] if output is None else None
        call.gave = "" if call.error is not None or tensors_in(output) else type(output).__name__
        self.written |= {
            name for name, (value, version) in call.versions.items() if value._version != version
        }
        call.versions = {}  # the caller's own tensors are not kept alive

    def batches(self) -> tuple[Batch, ...]:
        """The calls as batches; an error if there are none that a model can be run on again."""
        name = type(self.model).__name__
        if not self.calls and self.inside:
            first = next(iter(self.inside))
            raise ConfigError(
                f"{name} itself was not called while it was recorded, but its part {first!r} was, directly or by a "
                "method such as forward; call the model, model(...), or record that part: "
                f"rs.record(model.get_submodule({first!r}))"
            )
        if not self.calls:
            raise ConfigError(
                f"{name} was never called while it was recorded; call it inside the block, as in 'with "
                "rs.record(model) as seen: model(tokens)', and record the same object that is called"
            )
        failed = next((call.error for call in self.calls if call.error is not None), None)
        if failed is not None:
            raise ModelError(
                f"{name} failed while it was recorded with {type(failed).__name__}: {first_line(failed)}; record calls "
                "that the model can answer"
            )
        full = [call for call in self.calls if not call.goes_on]
        if not full:
            raise ConfigError(
                f"every call of {name} goes on from a cache ({self.calls[0].goes_on}), so that no full pass was seen; "
                "record the first call too, or call the model without a cache"
            )
        without = next((call.gave for call in full if call.gave), None)
        if without is not None:
            raise ConfigError(
                f"{name} returned a {without} without any tensor; record a call that returns what the model computes"
            )
        batches = tuple(call.batch for call in full)
        for number, batch in enumerate(batches[1:], start=2):
            check_alike(batches[0], batch, number, self.model)
        return batches

    def notes(self) -> Iterator[str]:
        on = [call for call in self.calls if call.goes_on]
        if on:
            full = len(self.calls) - len(on)
            passes = "the first full pass is used" if full == 1 else f"the {full} full passes are used"
            yield f"{len(on)} of {len(self.calls)} calls go on from a cache ({on[0].goes_on}); {passes}"
        if self.total > self.most:
            yield f"the first {self.most} of {self.total} calls are used"
        if self.written:
            which = ", ".join(sorted(name or "first" for name in self.written))
            yield f"the model writes into its input ({which}); it is run on copies of what it was given"
        kinds = {call.batch.autocast for call in self.calls if call.batch.autocast is not None}
        for _, dtype in sorted(kinds, key=str):
            short = str(dtype).removeprefix("torch.")
            yield f"recorded under autocast to {short}: a scan runs under it too, a tree is compared without it"


def _without_caches(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any], str]:
    """Arguments without empty caches, and the name of a cache that holds something; else an empty name."""
    goes_on = ""
    known = [names[place] if place < len(names) else "" for place in range(len(args))]

    def kept(name: str, value: Any) -> Any:
        nonlocal goes_on
        if not _is_cache(name, value):
            return value
        if _is_filled(value):
            goes_on = goes_on or name or type(value).__name__
            return value
        return None if name == "past_key_values" else value

    args = tuple(kept(name, value) for name, value in zip(known, args, strict=True))
    changed = {name: kept(name, value) for name, value in kwargs.items()}
    if kwargs.get("past_key_values") is not None and changed["past_key_values"] is None:
        changed |= {"use_cache": False} if "use_cache" in changed else {}
    return args, changed, goes_on


def _is_cache(name: str, value: object) -> bool:
    if value is None or isinstance(value, bool | int | float | str):
        return False
    is_named = any(word in name.lower() for word in _CACHES) and "position" not in name
    return is_named or "Cache" in type(value).__name__


def _is_filled(cache: Any) -> bool:
    length = getattr(cache, "get_seq_length", None)
    if callable(length):
        return bool(int(length()) > 0)
    return any(value.numel() for value in tensors_in(cache))


def _autocast(model: nn.Module) -> tuple[str, torch.dtype] | None:
    kinds = {"cpu", *(parameter.device.type for parameter in model.parameters())} - {"meta"}
    on = sorted(kind for kind in kinds if torch.is_autocast_enabled(kind))
    return (on[-1], torch.get_autocast_dtype(on[-1])) if on else None


def check_alike(first: Batch, batch: Batch, number: int, model: nn.Module) -> None:
    """An error unless two calls have tensors in the same places of their arguments, with the same numbers of axes."""
    told = [_axes_words(one, model) for one in (first, batch)]
    if told[0] != told[1]:
        raise ConfigError(
            f"{type(model).__name__} is called with ({told[0]}) and in call {number} with ({told[1]}); give calls with "
            "the same arguments and axes, and those of another kind by themselves"
        )


def _axes_words(batch: Batch, model: nn.Module) -> str:
    stand = dict.fromkeys(batch.inputs) if batch.form is None else places(batch.form, positional_names(model))
    first = next(iter(positional_names(model)), "the first")
    axes = {name or first: batch.inputs[name if leaf is None else leaf].ndim for name, leaf in stand.items()}
    return ", ".join(f"{name}: {count} axes" for name, count in sorted(axes.items()))


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; modes, gradients and the random state are as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    slopes = [(parameter, parameter.grad) for parameter in model.parameters()]
    for module, _ in modes:
        module.training = False
    for parameter, _ in slopes:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, slope in slopes:
            parameter.grad = slope
