"""What is said of the tree of a live model: its parts block by block, the weights they cover, and how far it holds."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from rankscope.core.words import number as in_digits
from rankscope.errors import RankscopeError
from rankscope.findings.tree import Branch, TreeBlock, TreeLimits, TreeValue
from rankscope.masks import Full
from rankscope.network import (
    Chain,
    CrossAttention,
    Mlp,
    NoPosition,
    Norm,
    Observed,
    Opaque,
    Part,
    Position,
    Scale,
    SelfAttention,
    SequenceMap,
    Several,
    SinkSoftmax,
    Skip,
    Softmax,
    Sum,
    TokenMap,
)
from rankscope.sources.batch import Batch
from rankscope.sources.recognise.tokenmaps import Called, RowByRow
from rankscope.sources.recognition import Recognition
from rankscope.sources.seen import Seen
from rankscope.sources.structure import Blocks
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation


def tree_report(
    model: nn.Module | Seen,
    batch: Batch | None = None,
    *,
    stack: str | None = None,
    blocks: Blocks | None = None,
) -> TreeValue:
    """The tree of a model, or what refused it; ``stack`` and ``blocks`` are those of ``translate``."""
    try:
        return told(translate(model, batch, stack=stack, blocks=blocks))
    except RankscopeError as error:
        return TreeValue(refused=str(error), refused_by=type(error).__name__)


def told(found: Translation) -> TreeValue:
    """What a finding keeps of a tree: equal blocks one after the other are told once."""
    recognition = found.recognition
    blocks: list[TreeBlock] = []
    for number, part in enumerate(found.network.blocks, start=1):
        entry = _block(recognition, number, part)
        if blocks and blocks[-1].model_copy(update={"blocks": entry.blocks}) == entry:
            blocks[-1] = entry.model_copy(update={"blocks": (blocks[-1].blocks[0], number)})
        else:
            blocks.append(entry)
    final = found.network.final_norm
    return TreeValue(
        family=found.family,
        blocks=tuple(blocks),
        final_norm=None if final is None else part_words(final),
        deviation=found.proof.worst,
        limits=_limits(recognition),
    )


def _block(recognition: Recognition, number: int, part: Part) -> TreeBlock:
    alone = TreeBlock(blocks=(number, number), tree=tuple(part_lines(part)))
    if len(recognition.blocks) < number:
        return alone
    read = recognition.blocks[number - 1]
    return TreeBlock(
        blocks=alone.blocks,
        tree=alone.tree,
        covered=read.covered,
        unread=tuple(note.told for note in read.notes),
        branches=tuple(
            Branch(
                what=guard.what,
                gave=None if isinstance(guard.result, float) else repr(guard.result),
                line=None if guard.line is None else guard.line.told,
            )
            for guard in read.guards
        ),
    )


def _limits(recognition: Recognition) -> TreeLimits:
    return TreeLimits(
        longest=recognition.network.longest,
        fails_at=recognition.fails_at,
        shape=recognition.shape,
        one_length=not recognition.can_vary,
        hooked=tuple(recognition.hooked),
        fixed=tuple(one.word for one in recognition.fixed),
    )


def part_lines(part: Part, depth: int = 0) -> Iterator[str]:
    """A tree with one line per part, what is inside of another part further in."""
    if type(part) is Chain:
        for one in part.parts:
            yield from part_lines(one, depth)
        return
    yield "  " * depth + part_words(part)
    if type(part) is Sum:
        for one in part.parts:
            yield from part_lines(one, depth + 1)
    elif type(part) is Skip:
        yield from part_lines(part.inner, depth + 1)


def part_words(part: Part) -> str:
    """One part in a few words.

    >>> part_words(Chain(()))
    'the identity'
    """
    match part:
        case Chain() if not part.parts:
            return "the identity"
        case Skip():
            return "Skip" if isinstance(part.scale, float) and part.scale == 1.0 else "Skip, scaled"
        case Sum():
            return "Sum"
        case Norm():
            return f"{type(part).__name__}, eps {in_digits(part.eps)}"
        case SelfAttention():
            return f"{type(part).__name__}: {_mixer_words(part.mixer)}"
        case CrossAttention():
            return f"CrossAttention: {_mixer_words(part.mixer)}"
        case Mlp():
            gate = "" if part.gate is None else ", gated"
            return f"Mlp: {part.activation.name}{gate}, width {part.up.shape[-1]}"
        case Scale():
            per = "a number" if part.value.shape[-1] == 1 else "per channel"
            return f"Scale: {per}"
        case TokenMap():
            if isinstance(part.module, RowByRow):
                return f"TokenMap: {part.what} at {part.where}, each token by itself"
            inner = part.module.module if isinstance(part.module, Called) else part.module
            return f"TokenMap: {type(inner).__name__}, each token by itself"
        case Opaque() | SequenceMap():
            return f"{type(part).__name__}: {part.words}"
    return type(part).__name__


def _position_words(position: Position) -> list[str]:
    if isinstance(position, Several):
        return [word for rule in position.rules for word in _position_words(rule)]
    return [] if isinstance(position, NoPosition) else [type(position).__name__]


def _mixer_words(mixer: Any) -> str:
    if isinstance(mixer, Observed):
        return f"maps as they ran, rule unknown: {mixer.words}"
    if not isinstance(mixer, Softmax | SinkSoftmax):
        return f"{type(mixer).__name__}, {mixer.heads} heads"
    keys = "" if mixer.key_heads == mixer.heads else f" ({mixer.key_heads} of keys)"
    words = [f"{mixer.heads} head{'s' * (mixer.heads > 1)}{keys}"]
    words += [] if mixer.rule == Full() else [str(mixer.rule)]
    words += _position_words(mixer.position)
    words += [] if mixer.query_norm is None else ["query and key norms"]
    words += ["a learned sink"] if isinstance(mixer, SinkSoftmax) else []
    words += [] if mixer.softcap is None else [f"soft-cap {in_digits(mixer.softcap)}"]
    return ", ".join([*words, f"scale {in_digits(mixer.scale, 4)}"])
