"""How large a prefix of a path can still become: bounds over all ways on from where it stands.

What a head puts out lies in the rows of its output projection, a subspace as wide as one head. A later head reads
that subspace, so the gain from one head to the next is ``|Q V O|_2`` with Q an orthonormal basis of it, which is
usually far below ``|V O|_2``. So a prefix remembers the last head it took, its *mark* (mark 0 is none), and the bound
is the best sequence of such gains, found from the last step back to the first. Where something in between treats
tokens differently (an MLP), the subspace is lost and the mark is 0 again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from rankscope.core.operator_norms import spectral_bound
from rankscope.pathways.gains import Operator, identity, orthonormal, through
from rankscope.pathways.row_gains import Frame
from rankscope.pathways.steps import Step

MOST_WORK = 3e11
"""Floating-point operations that gains from head to head may take, some tens of seconds; if it were more, marks are not
used. Twelve layers of twelve heads of width 64 take half of it."""

Moves = tuple[tuple[int, ...], ...]
"""The mark behind a step, by choice and by mark before it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Futures:
    """Bounds of what is still to come.

    Args:
        gains: for every depth, ``2 marks *batch``: by how much a prefix with that mark can grow until the end, in its
            Frobenius norm and in its longest token, as natural logarithms.
        moves: for every step, the mark behind it.
        sums: for every step and choice, by how much the sums that it takes can exceed what enters it: their rounding
            goes by their own size, not by that of what is left of them without the mean token.
        errors: for every step and choice, by how much an error of any direction can grow: that of mark 0.
    """

    gains: tuple[Tensor, ...]
    moves: tuple[Moves, ...]
    sums: tuple[tuple[float, ...], ...]
    errors: tuple[tuple[float, ...], ...]

    def bounds(self, depth: int, marks: Sequence[int], sizes: Tensor) -> Tensor:
        """What prefixes of that depth can reach at most over all texts, as natural logarithms, one per prefix.

        ``sizes`` are ``2 prefixes *batch``, of which the smaller bound counts for each text.
        """
        return over_texts((sizes + self.gains[depth][:, list(marks)]).amin(dim=0))

    def of_error(self, depth: int, error: Tensor) -> Tensor:
        """What becomes of errors of that Frobenius norm over all texts at most, as natural logarithms.

        An error lies in no subspace that a mark knows, so it grows as what has mark 0.
        """
        return error + self.gains[depth][0, 0].max()


def futures_of(steps: Sequence[Step], frame: Frame, *, with_marks: bool | None = None) -> Futures:
    """The bounds for all depths; with marks if they are affordable, unless it is said."""
    marked = _work(steps, frame.dim) <= MOST_WORK if with_marks is None else with_marks
    bases: Tensor | None = None
    tables, moves = list[list[Tensor]](), list[Moves]()
    for step in steps:
        table, after, bases = _stage(step, frame, bases)
        if not marked:
            after, bases = tuple((0,) for _ in step.choices), None
        tables.append(table)
        moves.append(after)
    marks = 1 + (0 if bases is None else len(bases))
    gains = [identity(frame).closed.unsqueeze(1).expand(-1, marks, *frame.rows.shape[:-1])]
    for table, after in zip(reversed(tables), reversed(moves), strict=True):
        ways = [own + gains[-1][:, list(behind)] for own, behind in zip(table, after, strict=True)]
        gains.append(torch.stack(ways).amax(dim=0))
    errors = tuple(tuple(float(own[0, 0].max()) for own in table) for table in tables)
    return Futures(gains=tuple(reversed(gains)), moves=tuple(moves), sums=_sums(steps, frame), errors=errors)


def _sums(steps: Sequence[Step], frame: Frame) -> tuple[tuple[float, ...], ...]:
    """By how much whole terms can grow in each step, the mean token included."""
    whole = replace(frame, is_centered=False, known={})
    leads = [through(step.lead, identity(whole), {}) for step in steps]
    behind = [
        [
            None if lead is None else through(step.part, lead, step.chosen(way))
            for way in range(len(step.choices))
        ]
        for step, lead in zip(steps, leads, strict=True)
    ]
    return tuple(
        tuple(-math.inf if one is None else float(one.gains()[0].max()) for one in ways) for ways in behind
    )


def over_texts(logs: Tensor) -> Tensor:
    """The root of the sum of squares over all but the first axis; in and out are natural logarithms."""
    return logs if logs.ndim == 1 else torch.logsumexp(2 * logs.flatten(1), dim=1) / 2


def sizes_of(terms: Tensor, frame: Frame, read: Tensor) -> Tensor:
    """Two sizes of ``prefixes *batch tokens dim`` that bound the score as they are: ``2 prefixes *batch``, logarithms.

    The Frobenius norm, and the longest token (of centered terms, the largest distance of two tokens) times what makes
    it a bound of the Frobenius norm of so many tokens as are ``read`` of each text. Padding must be zero.
    """
    terms = terms.double()
    whole = torch.linalg.matrix_norm(terms)
    if not frame.is_centered:
        token = torch.linalg.vector_norm(terms, dim=-1).amax(dim=-1) * read.sqrt()
        return torch.stack([whole, token]).log()
    # Centered tokens surround zero, so none is longer than the largest distance: rows of padding do not count, and
    # squares are not so large beside it that their difference would lose its digits.
    square = terms.square().sum(dim=-1)
    distance = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * (terms @ terms.mT)
    largest = distance.amax(dim=(-2, -1)).clamp(min=0.0).sqrt()
    return torch.stack([whole, largest * ((read - 1) / 2).sqrt()]).log()


def _stage(step: Step, frame: Frame, bases: Tensor | None) -> tuple[list[Tensor], Moves, Tensor | None]:
    """Gains of one step, ``2 marks *batch`` for every choice, the marks behind it and the subspaces of those.

    ``bases`` are the subspaces of the marks before it, from 1 up, ``marks *batch width dim``.
    """
    marks = 1 + (0 if bases is None else len(bases))
    lead = through(step.lead, identity(frame), {})
    if lead is None or not lead.is_whole:
        bases = None
    passed = None if bases is None else _passed(step, frame, bases)
    table, moves = list[Tensor](), list[tuple[int, ...]]()
    kept = [] if passed is None else list(passed.bases)
    for choice in range(len(step.choices)):
        chosen = step.chosen(choice)
        operator = None if lead is None else through(step.part, lead, chosen)
        behind = (0,) * marks
        if operator is None:
            gains = torch.full_like(identity(frame).closed, -torch.inf).unsqueeze(1)
        elif not chosen and passed is not None:
            gains, behind = _by_mark(operator, passed.gains), tuple(range(marks))
        else:
            gains = _by_mark(operator, None if bases is None else _read(operator, bases))
            if operator.into is not None and operator.out is not None:
                kept.append(operator.out)
                behind = (len(kept),) * marks
        table.append(gains.expand(-1, marks, *gains.shape[2:]))
        moves.append(behind)
    return table, tuple(moves), _stacked(kept, frame)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Passed:
    """What becomes of marks where no head is taken: gains ``2 marks *batch``, and their subspaces."""

    gains: Tensor
    bases: Tensor


def _passed(step: Step, frame: Frame, bases: Tensor) -> _Passed | None:
    """The marks behind a step in which no head is taken; None if their subspaces are lost, or a head must be taken."""
    plain = _behind(step, identity(frame))
    if plain is None or not plain.is_whole:
        return None
    moved = _behind(step, replace(identity(frame), out=bases))
    if moved is None or moved.out is None:
        return None
    tokens = (moved.closed + moved.token_gains()).unsqueeze(1)
    if moved.out is bases:
        return _Passed(gains=tokens.expand(-1, len(bases), *tokens.shape[2:]), bases=bases)
    return _Passed(gains=tokens + moved.channel_gain(), bases=orthonormal(moved.out)[1])


def _behind(step: Step, operator: Operator) -> Operator | None:
    """The operator behind a step in which no head is taken."""
    lead = through(step.lead, operator, {})
    return None if lead is None else through(step.part, lead, {})


def _read(operator: Operator, bases: Tensor) -> Tensor | None:
    """Gains ``2 marks *batch`` for what lies in the subspaces; None if nothing better is known of them."""
    if operator.into is None or not operator.is_whole:
        return None
    tokens = (operator.closed + operator.token_gains()).unsqueeze(1)
    return tokens + spectral_bound(bases @ operator.into).log()


def _by_mark(operator: Operator, marked: Tensor | None) -> Tensor:
    """Gains for mark 0 and those known for the other marks, none of which is above it."""
    own = operator.gains().unsqueeze(1)
    return own if marked is None else torch.cat([own, torch.minimum(marked, own)], dim=1)


def _stacked(bases: Sequence[Tensor], frame: Frame) -> Tensor | None:
    """Subspaces of any width, and of any seeds, as one tensor ``marks *batch width dim``."""
    if not bases:
        return None
    width = max(basis.shape[-2] for basis in bases)
    lead = frame.rows.ndim - 1
    wide = [F.pad(basis, (0, 0, 0, width - basis.shape[-2])) for basis in bases]
    return torch.stack(
        torch.broadcast_tensors(*(one.reshape(*[1] * (lead + 2 - one.ndim), *one.shape) for one in wide))
    )


def _work(steps: Sequence[Step], dim: int) -> float:
    """About how many operations the gains from head to head take."""
    total, marks = 0.0, 0
    for step in steps:
        heads = sum(bool(step.chosen(choice)) for choice in range(len(step.choices)))
        width = max((part.value.shape[-1] // part.value_heads for part in step.attention), default=0)
        seeds = max((prod(part.value.shape[:-2]) for part in step.attention), default=1)
        total += float(marks) * heads * seeds * (2 * width**2 * dim + 20 * width**3)
        marks = heads + (marks if heads < len(step.choices) else 0)
    return total
