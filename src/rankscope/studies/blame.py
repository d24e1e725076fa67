"""Which part brings tokens together and which keeps them apart: the change of the log residual ratio, step by step.

Every block is walked in order of execution. Each norm, attention, skip, MLP and scale is blamed for the change of
``ln residual_ratio[frobenius,mean]`` from the state before it to the state after it, so all changes add up to the
change from the first layer to the last. Branches of a sum run side by side: they share the change of the sum by
their Shapley values, with ``v(S)`` the log ratio of the sum over the branches in S alone and ``v({})`` that of the
state that enters the sum, so that their shares add up to ``v(all) - v({})``.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from rankscope.errors import ConfigError, ShapeError
from rankscope.measures import evaluate_many, find_measure
from rankscope.network import Context, Network
from rankscope.network.parts import children
from rankscope.network.stages import branch_label, kind_of, stage_name
from rankscope.studies.blame_found import Blame, Change, Dominance, blame_rows
from rankscope.studies.blame_passes import FloatPass, Log, Pass, S, SplitPass, Step
from rankscope.verdict import Thresholds

__all__ = ["Blame", "Change", "blame", "blame_rows", "shapley"]

MOST_BRANCHES = 10
"""A sum of n branches is measured 2^n times."""


def blame(
    network: Network,
    x: Tensor,
    context: Context | None = None,
    *,
    is_token: Tensor | None = None,
    split: bool = False,
    error: bool = True,
) -> Blame:
    """What every step of every block does to the residual ratio of each text (leading axes of ``x``, flattened).

    ``is_token`` says which tokens are measured; by default all but the padding of ``context``. With ``split`` the
    residual is carried by itself, so that changes far below the rounding of the states can be told; with ``error`` a
    perturbed run goes along and says how well.
    """
    context = network.checked(x, context)
    measured = measured_tokens(x, context, is_token)
    with torch.no_grad():
        if split:
            found = _blamed(
                network, SplitPass(x=x, context=context, measured=measured, error=error), split=True
            )
        else:
            found = _blamed(network, FloatPass(x=x, context=context, measured=measured), split=False)
        return replace(found, dominance=_dominance(Network(network.blocks), x, context, measured))


def _dominance(
    network: Network, x: Tensor, context: Context, measured: Tensor | None
) -> tuple[Dominance, ...]:
    """Per layer what one channel and what massive tokens hold of the energy, where that is most of it."""
    limits, found = Thresholds(), []
    measures = [find_measure(name) for name in ("channel_share[largest]", "token_share[massive]")]
    for layer, state in enumerate(network.states(x, context)):
        flat = state.detach().cpu().reshape(-1, *state.shape[-2:])
        keep = None if measured is None else measured.cpu().reshape(-1, state.shape[-2])
        texts = [text if keep is None else text[keep[place]] for place, text in enumerate(flat)]
        each = [evaluate_many(measures, text, layer=layer, dtype=state.dtype) for text in texts]
        for place, kind in enumerate(("channel", "token")):
            shares = [float(one[place].value) if bool(one[place].resolved) else 0.0 for one in each]
            is_large = [
                share >= limits.massive_share
                and (
                    kind == "token" or share * (state.shape[-1] - 1) >= limits.massive_length**2 * (1 - share)
                )
                for share in shares
            ]
            found.append(
                Dominance(
                    layer=layer,
                    kind=kind,
                    shares=tuple(share if ok else None for share, ok in zip(shares, is_large, strict=True)),
                )
            )
    return tuple(found)


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


def _blamed(network: Network, run: Pass[S], *, split: bool) -> Blame:
    changes: list[Change] = []
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
    return Blame(
        changes=tuple(changes),
        totals=whole.values,
        blocks=len(network.blocks),
        texts=len(whole.values),
        split=split,
    )


def _shares(run: Pass[S], step: Step[S], before: Log, after: Log, layer: int) -> list[tuple[str, str, Log]]:
    """Name, kind and change of a step, or of each branch of a sum."""
    parts, count = children(step.part), len(step.branches)
    if not count:
        return [(stage_name(step.part), kind_of(step.part), _difference(after, before))]
    if count > MOST_BRANCHES:
        raise ConfigError(
            f"block {layer} has a sum of {count} branches, which takes 2^{count} measurements to share out; "
            f"blame shares out up to {MOST_BRANCHES}"
        )
    known: dict[tuple[int, ...], Log] = {(): before, tuple(range(count)): after}
    for size in range(1, count):
        for team in combinations(range(count), size):
            known[team] = run.read(run.together(tuple(step.branches[i] for i in team)), layer)
    logs = shapley(lambda team: known[team].log, count)
    resolved = torch.stack([one.resolved for one in known.values()]).all(dim=0)
    shares = []
    for player, (part, log) in enumerate(zip(parts, logs, strict=True)):
        errors = [w * (known[team].error + known[joined].error) for w, team, joined in _teams(count, player)]
        share = Log(log=log, error=torch.stack(errors).sum(dim=0), resolved=resolved)
        shares.append((branch_label(part, stage_name), branch_label(part, kind_of), share))
    return shares


def _difference(after: Log, before: Log) -> Log:
    return Log(
        log=after.log - before.log,
        error=after.error + before.error,
        resolved=after.resolved & before.resolved,
    )


def _change(share: Log, *, block: int, stage: int, name: str, kind: str) -> Change:
    """The change with nulls in place of what is no number."""
    is_number = torch.isfinite(share.log) & torch.isfinite(share.error)
    return Change(
        block=block,
        stage=stage,
        name=name,
        kind=kind,
        values=_nulled(share.log, torch.isfinite(share.log)),
        floors=_nulled(share.error, is_number),
        known=tuple((share.resolved & is_number).tolist()),
    )


def _nulled(values: Tensor, is_number: Tensor) -> tuple[float | None, ...]:
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
