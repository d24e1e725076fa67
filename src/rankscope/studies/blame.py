"""Which part brings tokens together and which keeps them apart: the change of the log residual ratio, step by step.

Every block is walked in order of execution. Each norm, attention, skip, MLP and scale is blamed for the change of
``ln residual_ratio[frobenius,mean]`` from the state before it to the state after it, so all changes add up to the
change from the first layer to the last. Branches of a sum run side by side: they share the change of the sum by
their Shapley values, with ``v(S)`` the log ratio of the sum over the branches in S alone and ``v({})`` that of the
state that enters the sum, so that their shares add up to ``v(all) - v({})``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from rankscope.core.numerics import checked
from rankscope.errors import ConfigError, ShapeError
from rankscope.findings import blame as blame_values
from rankscope.findings.blame import DEFINITION, RATIO, Headline, strongest
from rankscope.measures import evaluate, evaluate_many, evaluate_padded, find_measure
from rankscope.network import Context, Network, Part
from rankscope.network.parts import children
from rankscope.network.stages import added_up, branch_label, kind_of, stage_name, stages
from rankscope.results.table import Columns
from rankscope.split import LOST, Split, log_measure, of_measured, split_tokens
from rankscope.split.run import in_float64
from rankscope.split.stages import split_stages
from rankscope.split.state import added
from rankscope.split.twin import paired, parted
from rankscope.verdict import Thresholds

MOST_BRANCHES = 10
"""A sum of n branches is measured 2^n times."""


S = TypeVar("S")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRatios:
    """Log ratio of every text, how far rounding may have moved it, and whether it is above its floor.

    An error of NaN was not estimated.
    """

    log: Tensor
    error: Tensor
    resolved: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockStep(Generic[S]):
    part: Part
    state: S
    branches: tuple[S, ...]


class PassKind(Protocol[S]):
    """One way to run the network: ordinary states or split ones."""

    def start(self) -> S: ...

    def steps(self, block: Part, state: S) -> list[BlockStep[S]]: ...

    def together(self, outputs: tuple[S, ...]) -> S: ...

    def read(self, state: S, layer: int) -> LogRatios: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatPass:
    x: Tensor
    context: Context
    measured: Tensor | None

    def start(self) -> Tensor:
        return self.x

    def steps(self, block: Part, state: Tensor) -> list[BlockStep[Tensor]]:
        walked = stages(block, state, self.context)
        return [BlockStep(part=stage.part, state=stage.state, branches=stage.branches) for stage in walked]

    def together(self, outputs: tuple[Tensor, ...]) -> Tensor:
        return added_up(outputs)

    def read(self, state: Tensor, layer: int) -> LogRatios:
        measure, state, dtype = find_measure(RATIO), state.cpu(), self.x.dtype
        if self.measured is None:
            ratio = evaluate(measure, state, layer=layer, dtype=dtype)
        else:
            ratio = evaluate_padded(measure, state, self.measured.cpu(), layer=layer, dtype=dtype)
        value = ratio.value.reshape(-1)
        error = log_error(ratio.floor.reshape(-1) / value)
        return LogRatios(log=value.log(), error=error, resolved=ratio.resolved.reshape(-1))


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitPass:
    x: Tensor
    context: Context
    measured: Tensor | None
    error: bool = True

    def start(self) -> Split:
        state = split_tokens(checked(self.x, tokens=1), self.context.is_token)
        return parted(paired(state)) if self.error else state

    def steps(self, block: Part, state: Split) -> list[BlockStep[Split]]:
        walked = split_stages(in_float64(block), state, self.context)
        return [BlockStep(part=stage.part, state=stage.state, branches=stage.branches) for stage in walked]

    def together(self, outputs: tuple[Split, ...]) -> Split:
        return added(outputs)

    def read(self, state: Split, layer: int) -> LogRatios:
        """Some tokens alone may be closer to each other than the rounding of the residual of all of them."""
        own, share = of_measured(state, self.measured, layer)
        ratio = log_measure(find_measure(RATIO), own)
        if ratio.log_floor is not None:
            off = (ratio.log_floor - ratio.log).exp()
            share = torch.maximum(share, torch.where(torch.isnan(off), torch.inf, off))
        log, share = ratio.log.reshape(-1).cpu(), share.reshape(-1).cpu()
        error = log_error(share) if self.error else torch.full_like(share, torch.nan)
        return LogRatios(log=log, error=error, resolved=torch.isfinite(log) & (share < LOST))


def log_error(share: Tensor) -> Tensor:
    """How far a logarithm may be off if rounding is up to ``share`` of the number: ``-ln(1 - share)``, downwards.

    Upwards it is ``ln(1 + share)``, which is less. Infinite where all of the number may be rounding.

    >>> log_error(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [0.0, 0.6931471824645996, inf]
    """
    return torch.where(share < 1, -torch.log1p(-share), torch.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepChange:
    """What one step of one block does to the log residual ratio of every text; below zero is towards collapse.

    Args:
        block: number of the block, from 1.
        stage: number of the step in its block, from 1.
        name: name of the step; a second one of the same name in a block is called ``name.2``.
        kind: attention, mlp, norm, skip or scale; of a branch of a sum, what it holds.
        values: change of the natural logarithm per text, None where the residual or the state is exactly zero.
        floors: what rounding may add to or take from it; None without a value, and where it was not estimated.
        known: whether the residual is above its floor on both sides of the step. Sums are over known changes, also
            those smaller than their floor; the floor of a sum is the sum of the floors.
    """

    block: int
    stage: int
    name: str
    kind: str
    values: tuple[float | None, ...]
    floors: tuple[float | None, ...]
    known: tuple[bool, ...]

    @property
    def resolved(self) -> tuple[bool, ...]:
        """Whether the change of a text by itself says something: it is known, and above its floor or exactly zero."""
        return tuple(map(_is_resolved, self.values, self.floors, self.known))


@dataclass(frozen=True, kw_only=True, slots=True)
class TextDominance:
    """What one channel, or the massive tokens, hold of the energy of a layer in every text; None where it is little."""

    layer: int
    kind: Literal["channel", "token"]
    shares: tuple[float | None, ...]

    @property
    def is_usual(self) -> bool:
        """Whether it holds in half of the texts or more."""
        return 2 * sum(share is not None for share in self.shares) >= len(self.shares)


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """All changes in order of execution; ``totals`` is the whole change of each text, None where it has none."""

    changes: tuple[StepChange, ...]
    totals: tuple[float | None, ...]
    blocks: int
    texts: int
    split: bool = False
    dominance: tuple[TextDominance, ...] = ()

    def of(self, block: int | None) -> list[StepChange]:
        """The changes of one block, or of all."""
        if block is not None and not 1 <= block <= self.blocks:
            raise ConfigError(f"block {block} was asked for; the network has blocks 1 to {self.blocks}")
        return [change for change in self.changes if block in (None, change.block)]

    def dominated(self, block: int | None) -> bool:
        """Whether something dominates the state before or after that block, or any state."""
        layers = range(self.blocks + 1) if block is None else (block - 1, block)
        return any(one.is_usual and one.layer in layers for one in self.dominance)


def blame(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    split: bool = False,
    error: bool = True,
) -> Changes:
    """What every step of every block does to the residual ratio of each text (leading axes of ``x``, flattened).

    ``is_token`` says which tokens are measured; by default all but the padding of ``context``. With ``split`` the
    residual is carried by itself, so that changes far below the rounding of the states can be told; with ``error`` a
    perturbed run goes along and says how well.
    """
    context = network.checked(x, context)
    measured = measured_tokens(x, context, is_token)
    with torch.no_grad():
        if split:
            walked = _walk(
                network, SplitPass(x=x, context=context, measured=measured, error=error), split=True
            )
        else:
            walked = _walk(network, FloatPass(x=x, context=context, measured=measured), split=False)
        return replace(walked, dominance=_dominance(Network(network.blocks), x, context, measured))


def _dominance(
    network: Network, x: Tensor, context: Context, measured: Tensor | None
) -> tuple[TextDominance, ...]:
    """Per layer what one channel and what massive tokens hold of the energy, where that is most of it."""
    limits, dominance = Thresholds(), list[TextDominance]()
    kinds: tuple[Literal["channel", "token"], ...] = ("channel", "token")
    measures = [find_measure(name) for name in ("channel_share[largest]", "token_share[massive]")]
    for layer, state in enumerate(network.states(x, context)):
        flat = state.detach().cpu().reshape(-1, *state.shape[-2:])
        keep = None if measured is None else measured.cpu().reshape(-1, state.shape[-2])
        texts = [text if keep is None else text[keep[place]] for place, text in enumerate(flat)]
        each = [evaluate_many(measures, text, layer=layer, dtype=state.dtype) for text in texts]
        for place, kind in enumerate(kinds):
            shares = [float(one[place].value) if bool(one[place].resolved) else 0.0 for one in each]
            is_large = [
                share >= limits.massive_share
                and (
                    kind == "token" or share * (state.shape[-1] - 1) >= limits.massive_length**2 * (1 - share)
                )
                for share in shares
            ]
            dominance.append(
                TextDominance(
                    layer=layer,
                    kind=kind,
                    shares=tuple(share if ok else None for share, ok in zip(shares, is_large, strict=True)),
                )
            )
    return tuple(dominance)


def shapley(value: Callable[[tuple[int, ...]], Tensor], count: int) -> list[Tensor]:
    """Shapley values of ``count`` players: the mean, over all orders, of what each adds to those before it.

    ``phi_i = sum over S without i of |S|! (n - |S| - 1)! / n! (v(S + i) - v(S))``.

    >>> [share.item() for share in shapley(lambda team: torch.tensor(float(len(team) ** 2)), 2)]
    [2.0, 2.0]
    """
    return [
        sum(
            (w * (value(joined) - value(team)) for w, team, joined in _teams(count, player)),
            torch.zeros((), dtype=torch.float64),
        )
        for player in range(count)
    ]


def _teams(count: int, player: int) -> Iterator[tuple[float, tuple[int, ...], tuple[int, ...]]]:
    """Weight, team without the player, and team with the player, for every team of the others."""
    others = [other for other in range(count) if other != player]
    for size in range(count):
        weight = 1 / (count * math.comb(count - 1, size))
        for team in combinations(others, size):
            yield weight, team, tuple(sorted((*team, player)))


def _walk(network: Network, run: PassKind[S], *, split: bool) -> Changes:
    changes: list[StepChange] = []
    state = run.start()
    first = before = run.read(state, 0)
    for number, block in enumerate(network.blocks, start=1):
        names: Counter[str] = Counter()
        for step in run.steps(block, state):
            after = run.read(step.state, number)
            for name, kind, share in _shares(run, step, before, after, number):
                names[name] += 1
                unique = name if names[name] == 1 else f"{name}.{names[name]}"
                changes.append(_change(share, block=number, stage=names.total(), name=unique, kind=kind))
            before, state = after, step.state
    whole = _change(_difference(before, first), block=0, stage=0, name="all", kind="all")
    return Changes(
        changes=tuple(changes),
        totals=whole.values,
        blocks=len(network.blocks),
        texts=len(whole.values),
        split=split,
    )


def _shares(
    run: PassKind[S], step: BlockStep[S], before: LogRatios, after: LogRatios, layer: int
) -> list[tuple[str, str, LogRatios]]:
    """Name, kind and change of a step, or of each branch of a sum."""
    parts, count = children(step.part), len(step.branches)
    if not count:
        return [(stage_name(step.part), kind_of(step.part), _difference(after, before))]
    if count > MOST_BRANCHES:
        raise ConfigError(
            f"block {layer} has a sum of {count} branches, which takes 2^{count} measurements to share out; "
            f"blame shares out up to {MOST_BRANCHES}"
        )
    known: dict[tuple[int, ...], LogRatios] = {(): before, tuple(range(count)): after}
    for size in range(1, count):
        for team in combinations(range(count), size):
            known[team] = run.read(run.together(tuple(step.branches[i] for i in team)), layer)
    logs = shapley(lambda team: known[team].log, count)
    resolved = torch.stack([one.resolved for one in known.values()]).all(dim=0)
    shares = []
    for player, (part, log) in enumerate(zip(parts, logs, strict=True)):
        errors = [w * (known[team].error + known[joined].error) for w, team, joined in _teams(count, player)]
        share = LogRatios(log=log, error=torch.stack(errors).sum(dim=0), resolved=resolved)
        shares.append((branch_label(part, stage_name), branch_label(part, kind_of), share))
    return shares


def _difference(after: LogRatios, before: LogRatios) -> LogRatios:
    return LogRatios(
        log=after.log - before.log,
        error=after.error + before.error,
        resolved=after.resolved & before.resolved,
    )


def _change(share: LogRatios, *, block: int, stage: int, name: str, kind: str) -> StepChange:
    """The change with nulls in place of what is no number; where no floor was estimated, the floor is null."""
    is_number = torch.isfinite(share.log) & ~torch.isinf(share.error)
    return StepChange(
        block=block,
        stage=stage,
        name=name,
        kind=kind,
        values=_known_values(share.log, torch.isfinite(share.log)),
        floors=_known_values(share.error, is_number & torch.isfinite(share.error)),
        known=tuple((share.resolved & is_number).tolist()),
    )


def _known_values(values: Tensor, is_number: Tensor) -> tuple[float | None, ...]:
    return tuple(v if ok else None for v, ok in zip(values.tolist(), is_number.tolist(), strict=True))


def measured_tokens(x: Tensor, context: Context, is_token: Tensor | None) -> Tensor | None:
    """The tokens to measure as booleans of ``x.shape[:-1]``, or None for all."""
    if is_token is None:
        return None if context.is_token is None else context.is_token.expand(x.shape[:-1])
    Context(is_token=is_token).check(x)
    if context.is_token is not None and bool((is_token & ~context.is_token).any()):
        raise ShapeError(
            "is_token asks for padding to be measured; it must be False wherever the padding of the context is"
        )
    return is_token.expand(x.shape[:-1])


# ------------------------------------------------------------------------------------------------ what it amounts to


def sum_changes(changes: Changes, network: Headline) -> blame_values.Blame:
    """Sums by kind of part over all blocks and in every block, and who is to blame."""
    blocks = tuple(
        blame_values.BlamedBlock(block=number, **dict(_sums(changes, number)))
        for number in range(1, changes.blocks + 1)
    )
    whole = _sums(changes, None)
    return blame_values.Blame(
        **dict(whole),
        network=network,
        definition=DEFINITION,
        all_texts=changes.texts,
        unresolved=sum(not ok for change in changes.changes for ok in change.resolved),
        split=changes.split,
        block_for=_place(whole, blocks, -1),
        block_against=_place(whole, blocks, 1),
        dominated=tuple(_dominance_value(one) for one in changes.dominance if one.is_usual),
        blocks=blocks,
    )


def _sums(changes: Changes, block: int | None) -> blame_values.Sums:
    """Averaged are the texts in which all of these steps are known, so that the kinds add up to the mean change."""
    own = changes.of(block)
    texts = [text for text in range(changes.texts) if all(change.known[text] for change in own)]
    is_dominated = changes.dominated(block)
    kinds = _means(own, texts, lambda change: change.values) if texts else None
    floors = _means(own, texts, lambda change: change.floors) if texts else None
    sides: list[tuple[str | None, bool]] = [(None, False)] * 2
    if kinds is not None and not is_dominated:
        sides = [strongest(kinds, floors, -1), strongest(kinds, floors, 1)]
    (down, knows_down), (up, knows_up) = sides
    return blame_values.Sums(
        texts=len(texts),
        total=None if kinds is None else math.fsum(kinds.values()),
        kinds=kinds,
        floors=floors,
        most_for=down,
        most_against=up,
        decided_for=knows_down,
        decided_against=knows_up,
        is_dominated=is_dominated,
    )


def _means(
    changes: Sequence[StepChange],
    texts: Sequence[int],
    entries: Callable[[StepChange], Sequence[float | None]],
) -> dict[str, float] | None:
    """Entries of the named texts, summed by kind of part, over the number of texts; None if one of them is."""
    sums: dict[str, list[float]] = {}
    for change in changes:
        numbers = [entries(change)[text] for text in texts]
        if None in numbers:
            return None
        sums.setdefault(change.kind, []).extend(number for number in numbers if number is not None)
    return {kind: math.fsum(numbers) / len(texts) for kind, numbers in sums.items()}


def _place(
    whole: blame_values.Sums, blocks: Sequence[blame_values.BlamedBlock], sign: blame_values.Sign
) -> int | None:
    """The block in which the named kind does most, if rounding leaves no doubt and all are means over the same texts.

    Blocks that lack this kind do nothing with it.
    """
    kind = whole.named(sign)
    if kind is None or any(one.texts != whole.texts for one in blocks):
        return None
    changes = {str(one.block): (one.kinds or {}).get(kind, 0.0) for one in blocks}
    floors = {str(one.block): (one.floors or {}).get(kind, 0.0) for one in blocks}
    name, _ = strongest(changes, floors, sign)
    return None if name is None else int(name)


def _dominance_value(one: TextDominance) -> blame_values.Dominance:
    shares = [share for share in one.shares if share is not None]
    mean = math.fsum(shares) / max(len(shares), 1)
    return blame_values.Dominance(layer=one.layer, kind=one.kind, share=mean, texts=len(shares))


def join_batches(parts: Sequence[Changes]) -> Changes:
    """The changes of several batches of one network, or of networks of one shape, as those of all their texts."""
    changes = [
        replace(
            same[0],
            values=tuple(value for change in same for value in change.values),
            floors=tuple(floor for change in same for floor in change.floors),
            known=tuple(ok for change in same for ok in change.known),
        )
        for same in zip(*(one.changes for one in parts), strict=True)
    ]
    return Changes(
        changes=tuple(changes),
        totals=tuple(total for one in parts for total in one.totals),
        blocks=parts[0].blocks,
        texts=sum(one.texts for one in parts),
        split=parts[0].split,
        dominance=tuple(
            replace(same[0], shares=tuple(share for one in same for share in one.shares))
            for same in zip(*(one.dominance for one in parts), strict=True)
        ),
    )


def blame_rows(changes: Changes, about: Columns) -> Iterator[Columns]:
    """Columns of table rows, one block of rows (one per text) for each change, to be added with ``Rows.add``.

    ``layer`` is the block, ``site`` where the step is (``attention``, ``mlp``, or ``block`` for skips, norms and
    scales), ``value`` the change of the natural logarithm and ``floor`` what rounding may add to or take from it, null
    if one end of the step is below its own floor. Added columns are ``part``, the name of the step, and ``stage``, its
    number in the block. A row is resolved if both ends of the step are above their floors, and the value is above its
    own or exactly zero.
    ``about`` fills further columns and may name the samples.
    """
    for change in changes.changes:
        yield {
            "sample": list(range(changes.texts)),
            **about,
            "layer": change.block,
            "site": change.kind if change.kind in ("attention", "mlp") else "block",
            "part": change.name,
            "measure": "blame",
            "definition": DEFINITION,
            "value": list(change.values),
            "floor": list(change.floors),
            "resolved": list(change.resolved),
            "stage": change.stage,
        }


def _is_resolved(value: float | None, floor: float | None, is_known: bool) -> bool:
    return is_known and value is not None and floor is not None and (floor < abs(value) or value == 0)
