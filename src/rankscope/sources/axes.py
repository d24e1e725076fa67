"""Which axis holds texts, by cause and effect: texts do not read each other, tokens do.

All slices but one along an axis of the inputs are given other values. If the states of the slice that was held stay
as they were, slices along that axis are texts; if they move, slices are tokens. Sizes, names and the word of the
module are not asked: a model may be written for ``(texts, tokens)``, ``(tokens, texts)`` or turn one into the other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, product
from math import inf, isnan, nan, prod, sqrt

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rankscope.core.numerics import relative_floor
from rankscope.errors import ShapeError
from rankscope.findings.reading import TextAxes
from rankscope.sources.arguments import Form
from rankscope.sources.batch import POSITIONAL, Batch
from rankscope.sources.family import Layout
from rankscope.sources.given import quantised
from rankscope.sources.live import run_batch, untouched
from rankscope.sources.loaded import dtype_of
from rankscope.sources.named_axes import StatedAxes, holds_tokens
from rankscope.sources.taps import Receive, tapped

"""Found by moving slices; stated by whoever gives the inputs; pictures and sound, which lie one after the other; taken
for granted."""

CORNER = 4
"""So many slices along either axis take part in the trial, unless the model cannot read so few or shows nothing.

Along the second axis one more: a model may turn texts and tokens around where there are as many of both.
"""

MOST = 2**14
"""Tokens of the largest trial."""

MOST_CHOICES = 16
"""So many ways of cutting masks and the like are tried."""

CONTRAST = 30.0
"""Where tokens read each other, the held token moves so many times as much as rounding moves the held text."""

CLEARLY = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}
"""A held slice that moves by more, relative to its tokens, was not moved by rounding."""


def find_axes(
    model: nn.Module,
    layout: Layout | None,
    inputs: Mapping[str, Tensor],
    form: Form | None = None,
    *,
    stated: StatedAxes | None = None,
) -> TextAxes:
    """Where texts lie in the inputs of a model, found on a small part of them; an error if both axes mix.

    ``form`` is that of the call which the inputs belong to, where they are not simply passed under their names.
    ``stated`` is what somebody says of the axes: an error if moving shows another one, and what counts where it shows
    nothing.
    """
    if stated is not None:
        return _as_stated(model, layout, inputs, form, stated)
    moved = [name for name, value in inputs.items() if holds_tokens(name, value)]
    if layout is None:
        return TextAxes(inputs=_axes(inputs, 0, moved), how="assumed")
    if not moved:
        if _is_lone(model, layout, inputs, form):
            return TextAxes(inputs=dict.fromkeys(inputs), how="one by one")
        return TextAxes(inputs=_axes(inputs, 0, ()), how="one by one")
    for trial in _trials(model, layout, moved, form):
        axis = trial.found(inputs)
        if axis is not None:
            return TextAxes(inputs=trial.settled(inputs, _axes(inputs, axis, moved)), how="moved")
    return TextAxes(inputs=_axes(inputs, _declared(model, layout), moved), how="assumed")


def _as_stated(
    model: nn.Module,
    layout: Layout | None,
    inputs: Mapping[str, Tensor],
    form: Form | None,
    stated: StatedAxes,
) -> TextAxes:
    """The axes that somebody states, unless moving slices shows texts along another one."""
    moved = stated.meant(inputs)
    if stated.texts is None:
        _check_lone(model, layout, inputs, form, stated)
        return TextAxes(inputs=dict.fromkeys(inputs), how="stated")
    axes = _axes(inputs, stated.texts, moved, stated.pair)
    for trial in () if layout is None else _trials(model, layout, moved, form, stated):
        axis = trial.found(inputs)
        if axis is None:
            continue
        if axis != stated.texts:
            raise ShapeError(
                f"axes '{stated}' say that texts are axis {stated.texts} of the inputs, but they are axis {axis}: what "
                "the model computes for one slice along it stays as it is where all others are moved; say axes "
                f"'{stated.exchanged}', or leave the axes out"
            )
        return TextAxes(inputs=trial.settled(inputs, axes), how="stated")
    return TextAxes(inputs=axes, how="stated")


def _check_lone(
    model: nn.Module,
    layout: Layout | None,
    inputs: Mapping[str, Tensor],
    form: Form | None,
    stated: StatedAxes,
) -> None:
    """Raise if one text alone is stated, and the blocks see several."""
    shape = None if layout is None else _entering(model, layout, inputs, form)
    if shape is None or len(shape) == 2 or 1 in shape[: 2 if len(shape) == 3 else 1]:
        return
    raise ShapeError(
        f"axes '{stated}' name no texts, so that the inputs are one text, but the blocks see a state of shape "
        f"{tuple(shape)}, with no axis of one text; say which axis of the inputs holds texts, or leave the axes out"
    )


def _is_lone(model: nn.Module, layout: Layout, inputs: Mapping[str, Tensor], form: Form | None) -> bool:
    """Whether inputs are a lone text: the blocks see its tokens without an axis of texts, or, of inputs of one axis,
    with one of a single text that the model has put there. The nodes of a graph are such a text, with its edges."""
    sizes = {value.ndim for value in inputs.values() if value.ndim}
    if not sizes or max(sizes) > 2:
        return False
    shape = _entering(model, layout, inputs, form)
    if shape is None:
        return False
    if max(sizes) == 2:
        return len(shape) == 2 and any(value.shape[:1] == shape[:1] for value in inputs.values())
    is_alone = len(shape) == 3 and 1 in shape[:2] and max(shape[:2]) > 1
    return len(shape) == 2 or is_alone


def _entering(
    model: nn.Module, layout: Layout, inputs: Mapping[str, Tensor], form: Form | None
) -> torch.Size | None:
    """The shape of the state that enters the blocks, as the model has it; None where none was seen."""
    shapes: list[torch.Size] = []

    def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
        shapes.append(state.shape)

    with suppress(Exception), untouched(model), tapped(model, layout, receive, texts=None):
        run_batch(model, Batch(inputs=dict(inputs), is_token=None, labels=(), form=form))
    return next(iter(shapes), None)


def located(
    model: nn.Module, layout: Layout | None, batch: Batch, known: TextAxes | None = None
) -> tuple[Batch, TextAxes]:
    """A batch that knows where its texts lie, and how that is known; an error if it names another number of them.

    ``known`` is what another batch of the same inputs has shown. A batch without labels gets as many as it has texts.
    """
    if batch.text_axes is not None:
        return batch, TextAxes(inputs=dict(batch.text_axes), how="stated")
    fits = known is not None and set(known.inputs) == set(batch.inputs)
    found = known if known is not None and fits else find_axes(model, layout, batch.inputs, batch.form)
    if found.how == "assumed" and len(batch):  # then the number of labels tells, where only one axis has it
        moved = [name for name, value in batch.inputs.items() if holds_tokens(name, value)]
        stated = [axis for axis in (0, 1) if batch.inputs[moved[0]].shape[axis] == len(batch)]
        if stated and found.axis not in stated:
            found = TextAxes(inputs=_axes(batch.inputs, stated[0], moved), how="stated")
    texts = _texts(batch.inputs, found.inputs)
    if batch.labels and len(batch) != texts:
        raise ShapeError(
            f"a batch names {len(batch)} texts, but {found.words}, which has {texts}; give one label per text"
        )
    is_token, mask_axis = batch.is_token, found.inputs.get("attention_mask")
    if not batch.labels and is_token is not None and mask_axis:
        is_token = is_token.movedim(mask_axis, 0)
    labels = batch.labels or tuple(f"text {number + 1}" for number in range(texts))
    return replace(batch, is_token=is_token, labels=labels, text_axes=found.inputs), found


def as_read(model: nn.Module, layout: Layout, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Batches of ids that were made with texts along the first axis, turned around for a model that reads them so."""
    waiting = iter(batches)
    first = next(waiting, None)
    if first is None:
        return
    axes = find_axes(model, layout, first.inputs, first.form)
    for batch in chain([first], waiting):
        yield _turned(batch) if axes.axis == 1 else batch


def _turned(batch: Batch) -> Batch:
    turns = {name: value.ndim == 2 for name, value in batch.inputs.items()}
    inputs = {name: value.mT if turns[name] else value for name, value in batch.inputs.items()}
    return replace(batch, inputs=inputs, text_axes={name: int(turn) for name, turn in turns.items()})


def oriented(model: nn.Module, layout: Layout, batch: Batch) -> Layout:
    """The layout with the sites whose states have tokens before texts, seen on one text: its axis has one entry."""
    found: dict[str, set[str]] = {stack.name: set() for stack in layout.stacks}

    def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
        if state.ndim == 3 and state.shape[1] == 1 != state.shape[0]:
            found[stack].add(site if layer else "input")

    with untouched(model), tapped(model, layout, receive, texts=None):
        run_batch(model, batch.part(0, 1))
    stacks = (replace(stack, tokens_first=frozenset(found[stack.name])) for stack in layout.stacks)
    return replace(layout, stacks=tuple(stacks))


@dataclass(frozen=True, slots=True)
class _Seen:
    """The outermost slices of one state, by axis and end (-1 or 0)."""

    stack: str
    layer: int
    sizes: tuple[int, ...]
    slices: dict[tuple[int, int], Tensor]


def _trials(
    model: nn.Module,
    layout: Layout,
    moved: list[str],
    form: Form | None,
    stated: StatedAxes | None = None,
) -> Iterator["_Trial"]:
    """Trials of what blocks and sublayers put out, then of what goes on inside them too: an attention that starts at
    zero shows only there that it mixes."""
    for inside in (False, True):
        yield _Trial(model, layout, moved, form, inside=inside, stated=stated)


class _Trial:
    """A model that is run on a part of its inputs, as they are and with all slices but one moved.

    One of two axes of the inputs holds texts and the other one tokens: the first two, unless somebody has stated which.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        moved: list[str],
        form: Form | None,
        *,
        inside: bool,
        stated: StatedAxes | None,
    ) -> None:
        self.model, self.layout, self.moved, self.form, self.inside = model, layout, moved, form, inside
        self.pair = (0, 1) if stated is None else stated.pair
        self.doubt = (
            "which axis of the inputs holds texts cannot be told"
            if stated is None
            else f"axes '{stated}' are not what the model shows"
        )
        self.dtype = dtype_of(model)
        self.clear, self.contrast = CLEARLY.get(self.dtype, 0.1), CONTRAST
        if quantised(model):  # steps of activations may be those of the largest number of all texts
            self.clear, self.contrast = 0.1, 3.0

    def found(self, inputs: Mapping[str, Tensor]) -> int | None:
        """The axis of texts, found on a part of the inputs that shows it; None if no part does."""
        for part in _parts(inputs, self.moved, self.pair):
            axis = self._axis(part)
            if axis is not None:
                self._check_alone(part, axis)
                return axis
        return None

    def _axis(self, inputs: dict[str, Tensor]) -> int | None:
        """The axis of texts; None if the model does not run on these inputs, or neither axis mixes."""
        try:
            before = self._run(inputs)
            mixing = [[0.0] * len(before)] * 2
            # a causal token reads those before it, so the last one is held first; backwards it is the first
            for end in (-1, 0):
                moves = self._moves(inputs, before, end)
                mixing = [list(map(max, *pair)) for pair in zip(mixing, moves, strict=True)]
                found = self._decided(before, *mixing)
                if found is not None:
                    return self.pair[found]
        except ShapeError:
            raise
        except (
            Exception
        ):  # so few tokens may be what it cannot read; its own words come when it runs in earnest
            return None
        return None

    def settled(self, inputs: Mapping[str, Tensor], axes: dict[str, int | None]) -> dict[str, int | None]:
        """The same axes, those of masks and the like changed where the first text alone is not what it is among others.

        Sizes alone do not tell whether a mask of 4 x 4 belongs to 4 texts of 4 tokens one by one or to all of them.
        """
        if _texts(inputs, axes) == 1 or not self._open(inputs, axes):
            return axes
        if prod(self._sizes(inputs)) > MOST:
            return axes
        return next((tried for tried, is_same in self._alone(inputs, axes) if is_same), axes)

    def _sizes(self, inputs: Mapping[str, Tensor]) -> tuple[int, int]:
        main = inputs[self.moved[0]]
        return main.shape[self.pair[0]], main.shape[self.pair[1]]

    def _check_alone(self, inputs: dict[str, Tensor], axis: int) -> None:
        """Raise if there are as many slices along both axes, and the first along ``axis`` is not itself when alone.

        What a model makes of a square may be no word about other shapes; on one slice it sees a square no longer.
        A model that does not run on one text says nothing.
        """
        rows, columns = self._sizes(inputs)
        if rows != columns or rows == 1:
            return
        axes = _axes(inputs, axis, self.moved, self.pair)
        found = [is_same for _, is_same in self._alone(inputs, axes)]
        if found and not any(found):
            raise ShapeError(
                f"{self.doubt}: in a square of {rows} x {columns} it is axis "
                f"{axis}, but the first text along it alone has other states than among the others; give another "
                "number of texts than of tokens"
            )

    def _open(
        self, inputs: Mapping[str, Tensor], axes: Mapping[str, int | None]
    ) -> dict[str, list[int | None]]:
        """The axes along which masks and the like may have their texts, the likely one first."""
        texts = _texts(inputs, axes)
        return {
            name: [
                one
                for one in dict.fromkeys((axes[name], 0, 1, None))
                if one is None or value.shape[one : one + 1] == (texts,)
            ]
            for name, value in inputs.items()
            if name not in self.moved and name not in _FOR_EACH and texts in value.shape[:2]
        }

    def _alone(
        self, inputs: Mapping[str, Tensor], axes: dict[str, int | None]
    ) -> Iterator[tuple[dict[str, int | None], bool]]:
        """The model run on the first text alone, with masks and the like cut along each axis they may lie on.

        Gives the axes of each run, and whether its states are those of the first text among others.
        """
        open_, texts = self._open(inputs, axes), _texts(inputs, axes)
        try:
            among = self._run(dict(inputs))
        except Exception:  # its own words come when it runs in earnest
            return
        for choice in islice(product(*open_.values()), MOST_CHOICES):
            tried = axes | dict(zip(open_, choice, strict=True))
            alone = {
                name: value if tried[name] is None else value.narrow(tried[name] or 0, 0, 1)
                for name, value in inputs.items()
            }
            is_same = None
            with suppress(Exception):
                is_same = self._is_same(among, self._run(alone), texts)
            if is_same is not None:
                yield tried, is_same

    def _is_same(self, among: list[_Seen], alone: list[_Seen], texts: int) -> bool:
        """Whether the first text of a run of all has the states of a run of it alone, along the axis of texts."""
        for one, other in zip(among, alone, strict=True):
            held = [place for place, end in one.slices if end == 0 and one.sizes[place] == texts]
            moves = [
                distance(one.slices[place, 0], other.slices[place, 0])
                for place in held
                if other.sizes[place] == 1
            ]
            if held and not min(moves, default=inf) <= self.clear:
                return False
        return True

    def _run(self, inputs: dict[str, Tensor]) -> list[_Seen]:
        seen: list[_Seen] = []

        def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
            if state.ndim < 3:
                return
            slices = {
                (axis, end): state.select(axis, end).clone()  # some models add to a state in place
                for axis in ((0, 1) if state.ndim == 3 else (0,))
                for end in (-1, 0)
            }
            seen.append(_Seen(stack, layer, tuple(state.shape[:2]), slices))

        with ExitStack() as undo:
            undo.enter_context(untouched(self.model))
            undo.enter_context(tapped(self.model, self.layout, receive, texts=None))
            for handle in _entered(self.model, self.layout, receive) if self.inside else ():
                undo.callback(handle.remove)
            run_batch(self.model, Batch(inputs=inputs, is_token=None, labels=(), form=self.form))
        return seen

    def _moves(self, inputs: dict[str, Tensor], before: list[_Seen], end: int) -> list[list[float]]:
        """Per axis of the pair: how far each state of its slice at one end moves, relative to its tokens.

        One run shows both: everything is moved but the slice at that end of the first axis and that of the second.
        Of texts along the first axis the one that was held reads nothing else and stays; the held token of every
        other text reads tokens that were moved. Where both axes have as many slices, a state does not tell one from
        the other, and each is held in a run of its own. Of an axis with one slice alone zero is said: there is
        nothing that it could be held against.
        """
        sizes = [{inputs[name].shape[axis] for name in self.moved} for axis in self.pair]
        held = [place for place in (0, 1) if sizes[place] != {1}]
        found = [[0.0] * len(before) for _ in self.pair]
        for places in [held] if sizes[0].isdisjoint(sizes[1]) else [[place] for place in held]:
            axes = [self.pair[place] for place in places]
            after = self._run(inputs | {name: _moved(inputs[name], axes, end) for name in self.moved})
            for place in places:
                found[place] = [
                    _least_move(one, other, sizes[place], end)
                    for one, other in zip(before, after, strict=True)
                ]
        return found

    def _decided(self, before: list[_Seen], first: list[float], second: list[float]) -> int | None:
        """Which axis of the pair is that of texts, from how far held slices of the first and the second one move, state
        by state.

        The first state in which one axis moves and the other does not decides; rounding grows later.
        """
        clear = self.clear
        entered = {one.stack: sorted(one.sizes) for one in reversed(before)}
        texts = None
        for one, moves in zip(before, zip(first, second, strict=True), strict=True):
            small, big = sorted(moves)
            # Windows and heads may share the axis of texts inside a block: such states tell nothing about it.
            if isnan(small + big) or small == inf or sorted(one.sizes) != entered[one.stack]:
                continue
            if texts is None and big > relative_floor(one.layer, self.dtype) and big >= self.contrast * small:
                texts = moves.index(small)
            elif small > clear if texts is None else moves[texts] > sqrt(clear):
                raise ShapeError(
                    f"{self.doubt}: at layer {one.layer} every slice reads the others along axis {self.pair[0]} and "
                    f"along axis {self.pair[1]}, so that texts are not independent; give one text at a time"
                )
        return texts


def _entered(model: nn.Module, layout: Layout, receive: Receive) -> Iterator[RemovableHandle]:
    """Hooks that hand over what enters every module inside the blocks."""
    for stack in layout.stacks:
        for block in map(model.get_submodule, stack.blocks):

            def enter(_: nn.Module, args: tuple[object, ...], name: str = stack.name) -> None:
                for value in args:
                    if isinstance(value, Tensor) and value.is_floating_point():
                        receive(name, 1, "inside", value.detach())

            for module in block.modules():
                if module is not block:
                    yield module.register_forward_pre_hook(enter)


def distance(before: Tensor, after: Tensor) -> float:
    """The largest distance of a token from where it was, relative to its length; NaN if they are not finite."""
    a, b = (value.double().reshape(-1, value.shape[-1]) for value in (before, after))
    lengths = torch.maximum(a.norm(dim=-1), b.norm(dim=-1))
    largest = float(lengths.max())
    if largest - largest != 0:
        return nan
    return float(((a - b).norm(dim=-1) / lengths.clamp_min(1e-3 * largest)).max()) if largest else 0.0


def _least_move(before: _Seen, after: _Seen, sizes: set[int], end: int) -> float:
    """How far the outermost slice of a state moves along the axis, of as many slices, where it moves least."""
    ends = [key for key in before.slices if key[1] == end and before.sizes[key[0]] in sizes]
    return min((distance(before.slices[key], after.slices[key]) for key in ends), default=inf)


def _moved(value: Tensor, held: Sequence[int], end: int) -> Tensor:
    """Other values everywhere but in the slices at one end of some axes: ids from among the ids, numbers of like
    size."""
    drawn = torch.Generator().manual_seed(0)
    if value.is_floating_point():
        known = value.detach().double().cpu()
        spread = float(known.std(correction=0)) or abs(float(known.mean())) or 1.0
        other = known.mean() + spread * torch.randn(known.shape, generator=drawn, dtype=known.dtype)
    else:
        ids, places = value.cpu().unique(return_inverse=True)
        if len(ids) == 1:
            ids = torch.stack([ids[0], (ids[0] == 0).to(ids)])
        other = ids[(places + torch.randint(1, len(ids), places.shape, generator=drawn)) % len(ids)]
    other = other.to(value)
    for axis in held:
        other.select(axis, end).copy_(value.select(axis, end))
    return other


def _parts(
    inputs: Mapping[str, Tensor], moved: list[str], pair: tuple[int, int]
) -> Iterator[dict[str, Tensor]]:
    """Parts of the inputs to try, small ones first; where an axis has one slice, then with that slice twice."""
    main = inputs[moved[0]]
    rows, columns = main.shape[pair[0]], main.shape[pair[1]]
    small = (CORNER, CORNER + 1) if columns > CORNER else (CORNER - 1, CORNER)
    sizes = [small, (CORNER, CORNER), (CORNER, columns), (rows, CORNER), (rows, columns)]
    within = dict.fromkeys((min(first, rows), min(second, columns)) for first, second in sizes)

    def cut(name: str, value: Tensor, wanted: tuple[int, int]) -> Tensor:
        if name not in moved:
            return _cut(value, (rows, columns), wanted)
        return _cut(value.movedim(pair, (0, 1)), (rows, columns), wanted).movedim((0, 1), pair)

    for wanted in within:
        if prod(wanted) <= MOST:
            yield {name: cut(name, value, wanted) for name, value in inputs.items()}
    if 1 in (rows, columns) and len(inputs) == 1:
        yield {moved[0]: main.repeat_interleave(2, dim=pair[0] if rows == 1 else pair[1])}


def _cut(value: Tensor, sizes: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """The first slices of an input, along each axis that counts what an axis of the tokens counts."""
    if value.ndim == 1:
        return value[: wanted[sizes.index(len(value))]] if len(value) in sizes else value
    if tuple(value.shape[:2]) == sizes[::-1] != sizes:
        return value[: wanted[1], : wanted[0]]
    for axis, size in enumerate(value.shape[:2]):
        if size == sizes[axis]:
            value = value.narrow(axis, 0, wanted[axis])
        elif size in sizes:  # a mask between tokens
            value = value.narrow(axis, 0, wanted[sizes.index(size)])
    return value


def _axes(
    inputs: Mapping[str, Tensor], axis: int, moved: Sequence[str], pair: tuple[int, int] = (0, 1)
) -> dict[str, int | None]:
    """Along which axis of every input texts lie, from the axis of those that hold tokens, which is one of a pair.

    A mask of as many texts as tokens is taken to have them in the order in which they lie in the tokens' own input.
    """
    main = inputs[moved[0]] if moved else max(inputs.values(), key=lambda value: value.ndim > 1, default=None)
    if main is None or not main.ndim:
        return dict.fromkeys(inputs)
    if not moved and main.ndim == 2 and POSITIONAL in inputs:  # a lone text, (tokens, dim)
        return dict.fromkeys(inputs)
    texts = main.shape[axis]
    found = {
        name: axis if name in moved else _axis(name, value, texts, pair.index(axis))
        for name, value in inputs.items()
    }
    wrong = {
        name: tuple(inputs[name].shape)
        for name, one in found.items()
        if one is not None and inputs[name].shape[one] != texts
    }
    if wrong:
        raise ShapeError(
            f"the inputs hold different numbers of texts: {texts} along axis {axis}, but {wrong}; expected the same "
            "texts in every input"
        )
    return found


def _axis(name: str, value: Tensor, texts: int, axis: int) -> int | None:
    fitting = [place for place, size in enumerate(value.shape[:2]) if size == texts]
    if (name in _BETWEEN and value.ndim == 2) or not value.ndim:
        return None
    if len(fitting) == 2:
        return 0 if value.ndim > 2 or "padding" in name else axis
    if fitting == [1] and len(value) == 1:  # one row that all texts share
        return None
    # What belongs to tokens by its name must have as many texts; anything else without them is shared.
    is_for_each = name in _FOR_EACH and value.ndim == 2 and 1 != value.shape[0] != value.shape[1]
    return fitting[0] if fitting else 0 if is_for_each else None


_FOR_EACH = (
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "decoder_attention_mask",
    "src_key_padding_mask",
)
"""Inputs that say something about every token of every text."""

_BETWEEN = ("mask", "src_mask", "tgt_mask", "memory_mask", "attn_mask")
"""Inputs that say which token reads which, in all texts."""


def _texts(inputs: Mapping[str, Tensor], axes: Mapping[str, int | None]) -> int:
    return next((inputs[name].shape[axis] for name, axis in axes.items() if axis is not None), 1)


def _declared(model: nn.Module, layout: Layout) -> int:
    """What torch's own attention says about the order of its axes, where it is used; else texts come first."""
    block = model.get_submodule(layout.stacks[0].blocks[0])
    attentions = (part for part in block.modules() if isinstance(part, nn.MultiheadAttention))
    return next((int(not one.batch_first) for one in attentions), 0)
