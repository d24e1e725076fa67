"""One look at a model in training: a forward pass of the probe, and a few numbers of every state and attention call.

The states are those that training computes, in its precision: rounding is part of what is watched, so these numbers
need no floor of the model's dtype. They are measured in float64.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rankscope.errors import RankscopeError
from rankscope.findings.embeddings import Pooling
from rankscope.findings.watch.alarms import (
    CHANCE,
    COHERENCE,
    ENTROPY,
    INPUT_RATIO,
    INPUTS,
    INPUTS_RANK,
    LARGEST,
    LENGTH,
    LOGIT,
    LOGIT_RANGE,
    OUTPUT,
    PLAIN_RATIO,
    RATIO,
    SHARE,
)
from rankscope.findings.watch.history import Reading
from rankscope.probe.attention_calls import BlockCall, Function, watched
from rankscope.probe.attention_functions import WHOLE, logits_of, map_sizes, texts_of
from rankscope.probe.pooled import counted_tokens, pooled
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.taps import first_tensor, tapped

DEAD = 1e-6
"""Lengths below this share of their root mean square are nothing. Not of their median, which is 0 where most are."""

WIDEST_ROW = 256
"""Common rows of more channels are projected to so many."""

PRODUCTS: frozenset[Function] = frozenset(
    {torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__}
)

Autocast = tuple[str, torch.dtype]


@dataclass(slots=True)
class Seen:
    """What one pass over all batches of the probe has shown, by signal and place."""

    sums: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    rows: dict[str, list[Tensor]] = field(default_factory=dict)  # common rows of sublayers, by stack
    lost: set[str] = field(default_factory=set)
    embedded: dict[str, list[Tensor]] = field(default_factory=dict)  # rows of inputs, by place

    def put(self, signal: str, place: str, value: float) -> None:
        if math.isfinite(value):
            self.sums.setdefault((signal, place), []).append(value)

    def embed(self, place: str, rows: Tensor) -> None:
        """Rows of inputs, one each."""
        if bool(torch.isfinite(rows).all()):
            self.embedded.setdefault(place, []).append(rows)
        else:
            self.lost.add("the output" if place == OUTPUT else f"states of {place}")


class Looker:
    """Looks at one model with one probe. ``last_rows`` are the common rows of the scan before."""

    def __init__(
        self,
        layout: Layout | None,
        batches: Sequence[Batch],
        *,
        maps: bool = True,
        pooling: Pooling | None = None,
    ) -> None:
        self.layout, self.batches, self.maps, self.pooling = layout, tuple(batches), maps, pooling
        self.last_rows: dict[str, Tensor] = {}
        self.last_embedded: dict[str, Tensor] = {}

    def look(
        self, model: nn.Module, step: int, *, autocast: Autocast | None = None, twin: nn.Module | None = None
    ) -> Reading:
        """The reading of a step. ``twin`` is run in float32 beside it, where both precisions are asked for."""
        seen = self._pass(model, autocast, whole=True)
        signals: dict[str, dict[str, float]] = {}
        for (signal, place), values in seen.sums.items():
            most = signal in (SHARE, LARGEST, LOGIT)
            signals.setdefault(signal, {})[place] = max(values) if most else sum(values) / len(values)
        self._coherence(seen, signals)
        self.last_embedded = {place: torch.cat(rows) for place, rows in seen.embedded.items()}
        for place, rows in self.last_embedded.items():
            _across_inputs(rows, place, signals)
        if twin is not None:
            plain = self._pass(twin, None, whole=False)
            for (signal, place), values in plain.sums.items():
                if signal == RATIO:
                    signals.setdefault(PLAIN_RATIO, {})[place] = sum(values) / len(values)
        dtype = autocast[1] if autocast is not None else _dtype(model)
        return Reading(
            step=step,
            signals=signals,
            not_finite=tuple(sorted(seen.lost)),
            dtype=str(dtype).removeprefix("torch."),
        )

    def _pass(self, model: nn.Module, autocast: Autocast | None, *, whole: bool) -> Seen:
        seen = Seen()
        for batch in self.batches:
            given = batch if autocast is None else replace(batch, autocast=autocast)
            with quiet(model), ExitStack() as undo:
                finished = None
                if self.layout is not None:
                    states = _States(seen, self.layout, batch, whole=whole, pooling=self.pooling)
                    finished = undo.enter_context(tapped(model, self.layout, states.state, texts=len(batch)))
                    if whole and self.maps:
                        undo.enter_context(watched(model, self.layout, _Heads(seen)))
                output = run_batch(model, given)
                if finished is not None:
                    finished()
                    states.embed()
            if whole:
                _embedding(output, _inputs_of(batch), seen)
        return seen

    def _coherence(self, seen: Seen, signals: dict[str, dict[str, float]]) -> None:
        """How far all sublayers of a stack moved the same way since the scan before."""
        for stack, rows in seen.rows.items():
            now = torch.stack(rows)
            before = self.last_rows.get(stack)
            if before is not None and before.shape == now.shape and len(now) > 2:
                moved = now - before
                lengths = float(moved.norm(dim=-1).sum())
                if lengths > 0 and math.isfinite(lengths):
                    signals.setdefault(COHERENCE, {})[stack] = float(moved.sum(dim=0).norm()) / lengths
                    signals.setdefault(CHANCE, {})[stack] = len(now) ** -0.5
            self.last_rows[stack] = now


class _States:
    """Numbers of the states of one batch."""

    def __init__(
        self, seen: Seen, layout: Layout, batch: Batch, *, whole: bool, pooling: Pooling | None = None
    ) -> None:
        self.seen, self.whole, self.batch = seen, whole, batch
        self.pooling = pooling if whole else None
        self.last = {stack.name: stack.calls for stack in layout.stacks}
        self.keep = batch.is_token
        self.pooled: dict[str, Tensor] = {}

    def state(self, stack: str, layer: int, site: str, state: Tensor) -> None:
        if site in ("attention", "mlp"):
            if self.whole and state.ndim == 3:
                self._row(stack, state)
            return
        is_end = layer in (0, self.last[stack])
        if self.pooling is not None and layer and is_end and site in ("block", "final"):
            keep = counted_tokens(self.batch, stack, state, with_special=True)
            self.pooled[stack] = pooled(
                state.detach(), keep, self.pooling
            ).cpu()  # the final state comes last
        if site != "block" or not (self.whole or is_end):
            return
        x = state.detach()
        if self.whole:
            largest = float(x.abs().max())
            if not math.isfinite(largest):
                self.seen.lost.add(f"states of {stack}")
                return
            self.seen.put(LARGEST, stack, largest)
        x = x.double()
        keep = self._kept(x)
        squares = (x * x).sum(dim=-1) * keep
        many = keep.sum(dim=-1)
        if self.whole:
            total = squares.sum(dim=-1)
            share = squares.amax(dim=-1) / total.clamp(min=1e-300)
            self.seen.put(SHARE, stack, float(share.mean()))
        if not is_end:
            return
        lengths = squares.sqrt()
        unit = x / lengths.clamp(min=1e-300)[..., None] * keep[..., None]
        middle = unit.sum(dim=1, keepdim=True) / many[:, None, None]
        off = ((unit - middle) * keep[..., None]).square().sum(dim=(1, 2))
        ratio = (off / unit.square().sum(dim=(1, 2)).clamp(min=1e-300)).sqrt().mean()
        self.seen.put(RATIO if layer else INPUT_RATIO, stack, float(ratio))
        if layer and self.whole:
            self._ends(stack, x, lengths, keep, many)

    def embed(self) -> None:
        """The embeddings of the inputs of the batch, after its pass."""
        for stack, rows in self.pooled.items():
            self.seen.embed(stack, rows)

    def _ends(self, stack: str, x: Tensor, lengths: Tensor, keep: Tensor, many: Tensor) -> None:
        rms = (lengths.square().sum() / many.sum()).sqrt()
        self.seen.put(LENGTH, stack, float(rms))
        self.seen.put("dead_tokens", stack, _dead_share(lengths[keep.bool()]))
        if int(keep.sum()) > 1:
            self.seen.put("dead_channels", stack, _dead_share(x[keep.bool()].std(dim=0)))

    def _row(self, stack: str, state: Tensor) -> None:
        """The common row of a sublayer's output, of the first texts alone."""
        keep = self._kept(state)
        row = (state.float() * keep[..., None]).sum(dim=(0, 1)) / keep.sum()
        self.seen.rows.setdefault(stack, []).append(_narrow(row).cpu())

    def _kept(self, x: Tensor) -> Tensor:
        if self.keep is not None and self.keep.shape == x.shape[:2]:
            return self.keep.to(device=x.device, dtype=x.dtype)
        return torch.ones(x.shape[:2], dtype=x.dtype, device=x.device)


def _dead_share(sizes: Tensor) -> float:
    """How many of these are nothing beside the others; NaN, which is no number, where all are zero."""
    usual = sizes.square().mean().sqrt()
    return float((sizes < DEAD * usual).double().mean()) if float(usual) > 0 else math.nan


def _narrow(row: Tensor) -> Tensor:
    if len(row) <= WIDEST_ROW:
        return row
    g = torch.Generator().manual_seed(0)
    drawn = torch.randn(len(row), WIDEST_ROW, generator=g).to(row.device)
    found: Tensor = torch.matmul(row, drawn) / WIDEST_ROW**0.5
    return found


class _Heads:
    """Entropy, largest logit and range of every head, seen where torch computes attention; never an error."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.waiting: set[BlockCall] = set()
        self.maps: dict[int, tuple[BlockCall, int]] = {}  # probabilities whose product with values is awaited
        self.sizes: dict[str, list[float]] = {}

    def opened(self, call: BlockCall, state: Tensor) -> None:
        self.waiting.add(call)

    def called(
        self, call: BlockCall, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        output = function(*args, **kwargs)
        if function in PRODUCTS and self.maps and isinstance(args[0], Tensor):
            mine = self.maps.pop(args[0].data_ptr(), None)
            if mine is not None:
                self._output(mine[0], output, mine[1])
        if call not in self.waiting:
            return output
        sizes = map_sizes(function, args, kwargs)
        texts = None if sizes is None else texts_of(sizes, call)
        if texts is None:
            return output
        self.waiting.discard(call)
        logits = logits_of(function, args, kwargs)
        self._read(call, logits.detach().reshape(texts, -1, *logits.shape[-2:]))
        if function is WHOLE:
            self._output(call, output, texts)
        else:
            self.maps[output.data_ptr()] = (call, texts)
        return output

    def _read(self, call: BlockCall, logits: Tensor) -> None:
        allowed = ~(logits <= -1e4)  # what is NaN is no key that is masked
        many = allowed.sum(dim=-1)
        maps = logits.softmax(dim=-1)
        entropy = -(maps * maps.clamp(min=1e-30).log()).sum(dim=-1)
        rows = (many > 1).float()
        counted = rows.sum(dim=(0, 2)).clamp(min=1)
        share = (entropy / many.clamp(min=2).float().log() * rows).sum(dim=(0, 2)) / counted
        low = logits.masked_fill(~allowed, math.inf).amin(dim=-1)
        high = logits.masked_fill(~allowed, -math.inf).amax(dim=-1)
        span = (high - low).masked_fill(rows == 0, 0.0).sum(dim=(0, 2)) / counted
        largest = logits.masked_fill(~allowed, 0.0).abs().amax(dim=(0, 2, 3))
        for signal, values in ((ENTROPY, share), (LOGIT, largest), (LOGIT_RANGE, span)):
            for head, value in enumerate(values.tolist()):
                self.seen.put(signal, f"{call.stack.name}/{call.layer}/{head}", value)

    def _output(self, call: BlockCall, output: Tensor, texts: int) -> None:
        if output.ndim < 3:
            return
        heads = output.detach().float().reshape(texts, -1, *output.shape[-2:])
        self.sizes.setdefault(call.stack.name, []).extend(heads.square().mean(dim=(0, 2, 3)).sqrt().tolist())

    def closed(self, call: BlockCall, output: object) -> None:
        self.waiting.discard(call)
        self.maps.clear()

    def passed(self) -> None:
        for stack, sizes in self.sizes.items():
            self.seen.put("dead_heads", stack, _dead_share(torch.tensor(sizes, dtype=torch.float64)))
        self.sizes.clear()


def _embedding(output: object, texts: int, seen: Seen) -> None:
    """One row per input, where the model puts out such a matrix: its own embedding."""
    for name in ("pooler_output", "text_embeds", "image_embeds", "sentence_embedding"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor) and found.ndim == 2 and len(found) == texts:
            break
    else:
        found = first_tensor(output)
    if found is not None and found.ndim == 2 and len(found) == texts and found.shape[1] > 1:
        seen.embed(OUTPUT, found.detach().double().cpu())


def _inputs_of(batch: Batch) -> int:
    """How many inputs a batch holds; of one whose axes are not known, the first axis of its first tensor."""
    first = next(iter(batch.inputs.values()), None)
    return len(batch) or (0 if first is None or not first.ndim else len(first))


LEAST_INPUTS = 4
"""Rows that a statement across inputs takes."""


def _across_inputs(rows: Tensor, place: str, signals: dict[str, dict[str, float]]) -> None:
    if len(rows) < LEAST_INPUTS:
        return
    unit = F.normalize(rows, dim=-1, eps=1e-300)
    off = unit - unit.mean(dim=0)
    signals.setdefault(INPUTS, {})[place] = float(off.norm() / unit.norm().clamp(min=1e-300))
    rank = _effective_rank(rows - rows.mean(dim=0))
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = _effective_rank(drawn - drawn.mean(dim=0))
    signals.setdefault(INPUTS_RANK, {})[place] = rank / expected


def _effective_rank(rows: Tensor) -> float:
    """exp of the entropy of the singular values (Roy and Vetterli 2007)."""
    sizes = torch.linalg.svdvals(rows)
    shares = sizes / sizes.sum().clamp(min=1e-300)
    return float((-(shares * shares.clamp(min=1e-300).log()).sum()).exp())


def _dtype(model: nn.Module) -> torch.dtype:
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)


def weights_of(model: nn.Module) -> tuple[float | None, tuple[str, ...]]:
    """The norm of all weights, and the names of those that hold NaN or infinity, from their norms: one call for all.

    The first is None where it is no number.
    """
    named = [(name, local_part(one)) for name, one in model.named_parameters() if one.is_floating_point()]
    named = [(name, one) for name, one in named if one.numel()]
    if not named:
        return None, ()
    try:
        norms = torch._foreach_norm([one.detach() for _, one in named])
        values = torch.stack([one.float() for one in norms]).tolist()
    except RuntimeError as error:  # several devices
        if isinstance(error, RankscopeError):
            raise
        values = [float(one.detach().norm()) for _, one in named]
    lost = tuple(
        f"weight {name}"
        for (name, one), value in zip(named, values, strict=True)
        if not _is_finite(value, one)
    )
    size = math.hypot(*values)
    return size if math.isfinite(size) else None, lost


def _is_finite(norm: float, weight: Tensor) -> bool:
    """A norm may overflow where no entry does."""
    return math.isfinite(norm) or bool(torch.isfinite(weight.detach()).all())


def local_part(weight: Tensor) -> Tensor:
    """The part of a sharded weight that this process holds; the weight itself otherwise."""
    local = getattr(weight, "to_local", None)
    found: Tensor = local() if callable(local) else weight
    return found
