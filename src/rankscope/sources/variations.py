"""Other batches of the same call: shorter, longer, of another number of texts, padded.

Which axes of which inputs count tokens is a matter of cause and effect: all axes that must be cut together so that the
model still runs and its blocks see as many tokens less. Names and shapes alone are not asked. A batch that is longer
than the user's repeats tokens of the user's; a mask between tokens is continued only where it goes on in one way.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from rankscope.errors import RankscopeError
from rankscope.sources.batch import Batch
from rankscope.sources.family import Stack
from rankscope.sources.plain_run import first_state, plain_run

TRIES = 48
"""So many sets of axes are tried at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenAxes:
    """Which axes of the inputs count the tokens of a stack.

    Args:
        axes: by input.
        size: entries along each of these axes in the batch where it was found, ``rows`` the tokens that the blocks
            saw then: a model may put tokens of its own before those of the input.
    """

    axes: Mapping[str, tuple[int, ...]]
    size: int
    rows: int

    def entries(self, rows: int) -> int:
        """Entries of the inputs for so many tokens of the blocks."""
        return rows - self.rows + self.size

    def is_square(self, name: str) -> bool:
        """Whether an input says something about every pair of tokens."""
        return len(self.axes.get(name, ())) == 2


def token_axes(model: nn.Module, stack: Stack, batch: Batch) -> TokenAxes | None:
    """The axes that count the tokens of a stack; None where no set of axes can be cut.

    The batch must know where its texts lie.
    """
    rows = first_state(model, stack, batch).shape[1]
    texts = batch.text_axes or {}
    places: dict[int, list[tuple[str, int]]] = {}
    for name, value in batch.inputs.items():
        for axis, size in enumerate(value.shape):
            if size > 1 and axis != texts.get(name):
                places.setdefault(size, []).append((name, axis))
    for size in sorted(places, key=lambda size: abs(size - rows)):
        for chosen in _sets(places[size]):
            axes: dict[str, tuple[int, ...]] = {}
            for name, axis in chosen:
                axes[name] = (*axes.get(name, ()), axis)
            found = TokenAxes(axes=axes, size=size, rows=rows)
            if rows > 1 and _is_cut(model, stack, batch, found):
                return found
    return None


def _sets(places: list[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], ...]]:
    """All sets of places, large ones first: what is not cut although it counts tokens may go unnoticed for a while."""
    tried = 0
    for count in range(len(places), 0, -1):
        for chosen in combinations(places, count):
            tried += 1
            if tried > TRIES:
                return
            yield chosen


def _is_cut(model: nn.Module, stack: Stack, batch: Batch, found: TokenAxes) -> bool:
    """Whether the model runs on one token less, to the end of the stack, and on two less as well."""
    rows = found.rows - 1
    try:
        cut = shortened(batch, found, rows)
        if first_state(model, stack, cut).shape[1] != rows:
            return False
        if rows > 1 and first_state(model, stack, shortened(batch, found, rows - 1)).shape[1] != rows - 1:
            return False
        states = plain_run(model, stack, cut, with_ending=False).states
    except RankscopeError:
        return False
    return all(state.shape[1] == rows for state in states)


def shortened(batch: Batch, counted: TokenAxes, rows: int) -> Batch:
    """The batch with the first tokens alone, ``rows`` as the blocks see them."""
    entries = counted.entries(rows)

    def cut(name: str, value: Tensor) -> Tensor:
        for axis in counted.axes.get(name, ()):
            value = value.narrow(axis, 0, entries)
        return value

    inputs = {name: cut(name, value) for name, value in batch.inputs.items()}
    is_token = batch.is_token
    if is_token is not None:
        # as many columns as the blocks see, or as the inputs have
        keep = {counted.rows: rows, counted.size: entries}.get(is_token.shape[1], is_token.shape[1])
        is_token = is_token[:, :keep]
    return replace(batch, inputs=inputs, is_token=is_token)


def lengthened(batch: Batch, counted: TokenAxes, rows: int, *, seed: int = 0) -> Batch | None:
    """The batch with more tokens, drawn from among its own; None where an input cannot be continued."""
    more = rows - counted.rows
    drawn = torch.randint(counted.size, (more,), generator=torch.Generator().manual_seed(seed))
    inputs = dict(batch.inputs)
    for name, axes in counted.axes.items():
        value = inputs[name]
        found = (
            _continued(value, axes, more)
            if counted.is_square(name)
            else _with_drawn(value, axes[0], drawn)
            if len(axes) == 1
            else None
        )
        if found is None:
            return None
        inputs[name] = found
    return replace(batch, inputs=inputs, is_token=None)


def _with_drawn(value: Tensor, axis: int, drawn: Tensor) -> Tensor:
    """A row that counts goes on counting; of anything else some entries follow once more."""
    if _counts(value, axis):
        first, last = value.diff(dim=axis).flatten()[0], value.narrow(axis, value.shape[axis] - 1, 1)
        shape = [-1 if place == axis else 1 for place in range(value.ndim)]
        count = torch.arange(1, len(drawn) + 1, device=value.device, dtype=value.dtype).reshape(shape)
        return torch.cat([value, last + first * count], dim=axis)
    return torch.cat([value, value.index_select(axis, drawn.to(value.device))], dim=axis)


def _continued(value: Tensor, axes: tuple[int, ...], more: int) -> Tensor | None:
    """A mask between tokens with more of them, where it depends on distance alone and no longer changes far away."""
    first, second = axes
    mask = value.movedim((first, second), (-2, -1))
    size = mask.shape[-1]
    columns = mask[..., :1, :].flip(-1), mask[..., :, :1].mT[..., 1:]
    by_distance = torch.cat(columns, dim=-1).squeeze(-2)  # from -(size - 1) to size - 1
    distance = torch.arange(size, device=mask.device)
    distance = distance.unsqueeze(1) - distance
    if not torch.equal(by_distance[..., distance + size - 1], mask):
        return None
    far = max(size // 2, 1)
    ends = by_distance[..., :far], by_distance[..., -far:]
    if not all(bool((end == end[..., :1]).all()) for end in ends):
        return None
    wanted = torch.arange(size + more, device=mask.device)
    wanted = (wanted.unsqueeze(1) - wanted).clamp(-(size - 1), size - 1) + size - 1
    return by_distance[..., wanted].movedim((-2, -1), (first, second))


def with_texts(batch: Batch, counted: TokenAxes | None, count: int, *, seed: int = 0) -> Batch | None:
    """The batch with another number of texts, drawn from its own with their tokens in another order; None where texts
    lie along no axis."""
    if batch.text_axes is None or not any(axis is not None for axis in batch.text_axes.values()):
        return None
    found = replace(batch, is_token=None).taken(torch.arange(count) % len(batch))
    if counted is None or count <= len(batch):
        return found
    drawn = torch.Generator().manual_seed(seed)
    order = torch.randperm(counted.size, generator=drawn)
    inputs = dict(found.inputs)
    for name, axes in counted.axes.items():
        value, axis = inputs[name], (found.text_axes or {}).get(name)
        if len(axes) == 1 and axis is not None and not _counts(value, axes[0]):
            new = value.index_select(axes[0], order.to(value.device)).narrow(
                axis, len(batch), count - len(batch)
            )
            inputs[name] = torch.cat([value.narrow(axis, 0, len(batch)), new], dim=axis)
    return replace(found, inputs=inputs, is_token=None)


def _counts(value: Tensor, axis: int) -> bool:
    """Whether an input counts up along an axis, as positions do."""
    if value.dtype == torch.bool or value.is_complex() or value.shape[axis] < 2:
        return False
    step = value.diff(dim=axis)
    return bool((step == step.flatten()[0]).all()) and bool(step.flatten()[0] != 0)


@dataclass(frozen=True, slots=True)
class Marks:
    """An input that tells tokens that are read from padding by a value, if it tells padding at all.

    Args:
        name: of the input.
        on_tokens: its value on tokens that are read, ``off`` on padding; None for every other value, as ids have.
    """

    name: str
    on_tokens: float | None
    off: float

    def is_token(self, batch: Batch) -> Tensor | None:
        """True on tokens, ``texts tokens``; None where the batch has no such input."""
        value = batch.by_text(self.name)
        if value is None:
            return None
        return value.double() != self.off if self.on_tokens is None else value.double() == self.on_tokens

    def on(self, value: Tensor) -> Tensor:
        """An input with every token marked as one; ids of padding become the first other id."""
        if self.on_tokens is not None:
            return torch.full_like(value, self.on_tokens)
        others = value[value.double() != self.off]
        return torch.where(value.double() == self.off, others[0], value) if len(others) else value.clone()


def marks_of(batch: Batch, counted: TokenAxes) -> list[Marks]:
    """The inputs that may mark padding: two values at most, one entry per token of every text; both ways round.

    The way round that leaves more tokens comes first.
    """
    found = []
    for name, axes in counted.axes.items():
        texts = None if batch.text_axes is None else batch.text_axes.get(name)
        if batch.inputs[name].ndim == 2 and len(axes) == 1 and texts not in (None, axes[0]):
            found += _ways(name, batch.inputs[name])
    return found


def marks_by_id(model: nn.Module, batch: Batch, counted: TokenAxes) -> list[Marks]:
    """Ids that may be padding: 0, the one that a table of embeddings keeps for it, and those that end a text twice.

    Models that are given nothing else make their mask of them.
    """
    tables = (module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding))
    kept = {0.0} | {float(one) for one in tables if one is not None}
    found = []
    for name, axes in counted.axes.items():
        value = batch.by_text(name)
        is_ids = value is not None and value.ndim == 2 and value.dtype in (torch.int64, torch.int32)
        if value is None or not is_ids or len(axes) != 1:
            continue
        ends = {
            float(one)
            for side in (value[:, :2], value[:, -2:])
            for a, b in side.tolist()
            for one in {a} & {b}
        }
        found += [Marks(name, None, off) for off in sorted(kept | ends)]
    return found


def marks_of_others(batch: Batch, counted: TokenAxes) -> list[Marks]:
    """The same of inputs that count something else than the tokens of the stack, such as those of a memory."""
    return [
        marks
        for name, value in batch.inputs.items()
        if name not in counted.axes and value.ndim == 2 and (batch.text_axes or {}).get(name) is not None
        for marks in _ways(name, value)
    ]


def marks_by_shape(batch: Batch, shape: torch.Size) -> list[Marks]:
    """The same of inputs with an entry per token, by their shape ``texts tokens`` alone."""
    by_text = {name: batch.by_text(name) for name in batch.inputs}
    return [
        marks
        for name, value in by_text.items()
        if value is not None and value.shape == shape
        for marks in _ways(name, value)
    ]


def _ways(name: str, value: Tensor) -> list[Marks]:
    if value.is_complex():
        return []
    values = set(value.double().unique().tolist())
    if value.is_floating_point() and all(one == 0 or one <= -1e4 for one in values):
        return [Marks(name, 0.0, min((one for one in values if one), default=-torch.inf))]
    if not values <= {0.0, 1.0}:
        return []
    share = float((value != 0).double().mean())
    return [Marks(name, on, 1.0 - on) for on in ((1.0, 0.0) if share >= 0.5 else (0.0, 1.0))]


def unpadded(batch: Batch, marks: Marks) -> Batch:
    """The batch with every token marked as one."""
    value = marks.on(batch.inputs[marks.name])
    return replace(batch, inputs=batch.inputs | {marks.name: value}, is_token=None)


def padded(batch: Batch, marks: Marks) -> Batch:
    """The batch with padding: the first text ends with some, the second begins with some.

    A single text is taken twice: after the end of a text, causal attention leaves out anything, and padding or not
    cannot be told.
    """
    if len(batch) == 1:
        batch = batch.taken(torch.tensor([0, 0]))
    axis = (batch.text_axes or {}).get(marks.name) or 0
    value = marks.on(batch.inputs[marks.name]).movedim(axis, 0)
    part = max(value.shape[1] // 4, 1)
    value[0, -part:] = marks.off
    if len(value) > 1:
        value[1, :part] = marks.off
    return replace(batch, inputs=batch.inputs | {marks.name: value.movedim(0, axis)}, is_token=None)


def counting_inputs(batch: Batch, counted: TokenAxes) -> list[str]:
    """Inputs that count along their tokens, as positions do."""
    return [
        name
        for name, axes in counted.axes.items()
        if len(axes) == 1
        and not batch.inputs[name].is_floating_point()
        and _counts(batch.inputs[name], axes[0])
    ]


def position_inputs(batch: Batch, counted: TokenAxes) -> list[str]:
    """Inputs that by their name hold one position per token, whatever these are."""
    return [
        name
        for name, axes in counted.axes.items()
        if len(axes) == 1 and "position" in name and not batch.inputs[name].is_floating_point()
    ]


def counted_anew(batch: Batch, counted: TokenAxes, name: str) -> Batch:
    """The batch with one input that counts its tokens from 0."""
    (axis,), held = counted.axes[name], batch.inputs[name]
    shape = [-1 if one == axis % held.ndim else 1 for one in range(held.ndim)]
    counts = torch.arange(held.shape[axis]).to(held).reshape(shape).expand_as(held).clone()
    return replace(batch, inputs=batch.inputs | {name: counts})


def reversed_positions(batch: Batch, counted: TokenAxes, name: str) -> Batch:
    """The batch with one input turned around along its tokens."""
    (axis,) = counted.axes[name]
    return replace(batch, inputs=batch.inputs | {name: batch.inputs[name].flip(axis)})


def with_other_contents(batch: Batch, counted: TokenAxes | None) -> Batch | None:
    """The batch with other numbers of the same kind in all inputs; None where there are none that can be changed.

    Marks, masks and positions stay: what they say is tried by other means.
    """
    changed = {}
    for name, value in batch.inputs.items():
        axes = () if counted is None else counted.axes.get(name, ())
        is_mask = value.dtype == torch.bool or len(axes) > 1 or bool(_ways(name, value))
        if is_mask or value.is_complex() or any(_counts(value, axis) for axis in axes) or not value.numel():
            continue
        other = _others_of_kind(value)
        if not torch.equal(other, value):
            changed[name] = other
    return replace(batch, inputs=batch.inputs | changed) if changed else None


def _others_of_kind(value: Tensor) -> Tensor:
    """The entries in another order; floating ones a little smaller; whole numbers that are all the same, one less."""
    order = torch.randperm(value.numel(), generator=torch.Generator().manual_seed(5)).to(value.device)
    found = value.flatten()[order].reshape(value.shape)
    if value.is_floating_point():
        return found * 0.875
    return (value - 1).clamp(min=0) if torch.equal(found, value) else found
