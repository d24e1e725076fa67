"""Wiring laws of a model: what every sound network obeys, where it is broken, and what was not looked at."""

from collections.abc import Iterator
from typing import Literal

from rankscope.core.words import NOTHING, count, listed, number
from rankscope.document import Column, Tabular
from rankscope.findings.base import Number, Value

State = Literal["holds", "broken", "meant", "not checked"]

LAWS = {
    "batch": "Texts of a batch do not read each other.",
    "causality": "No token reads a later one, in a model that is causal.",
    "padding": "Padding, where the model is told of it, changes nothing.",
    "order": "The order of the tokens matters, in a model that has positions.",
    "reach": "Every token, head and channel reaches the output.",
    "gradient": "Every parameter gets a gradient.",
    "deterministic": "The same input gives the same output, in evaluation mode.",
    "rows": "Rows of attention maps sum to one over the keys; none is fully masked or not finite.",
    "clones": "No layer is a copy of another one.",
    "alike": "Blocks with the same parts compute the same, apart from their weights.",
    "epsilon": "Norms divide by the size of their input, not by their epsilon.",
    "logits": "At the start attention is not yet saturated.",
    "precision": "Numbers of bfloat16 suffice for what float32 computes.",
    "start-loss": "At the start the loss is the logarithm of the number of classes.",
}
"""What each law says."""

Reason = Literal[
    # of a broken law
    "texts meet",
    "texts exchanged",
    "future read",
    "padding read",
    "mask ignored",
    "order lost",
    "texts counted",
    "token unread",
    "text unread",
    "head unread",
    "channel unread",
    "no gradient",
    "never runs",
    "zero gradient",
    "not registered",
    "changed in place",
    "random",
    "wrong axis",
    "softmax missing",
    "torn heads",
    "joined heads",
    "over heads",
    "mask after softmax",
    "fully masked",
    "not finite",
    "equal layers",
    "one layer",
    "one part",
    "two names",
    "equal models",
    "no skip",
    "odd block",
    "odd wiring",
    "odd weight",
    "large epsilon",
    "small input",
    "saturated",
    "outlier",
    "weak",
    "scaled up",
    "scaled down",
    "rounding",
    "drowned",
    "start loss",
    "own token",
    # of one that is meant not to hold
    "batch norm",
    "expert capacity",
    "shared layers",
    "moving average",
    "set function",
    "prefix",
    "other calls",
    "other block",
    "pruned heads",
    # of one that was not checked
    "not asked",
    "one text",
    "one token",
    "no mask",
    "both directions",
    "no softmax",
    "no norms",
    "one block",
    "few blocks",
    "too coarse",
    "experts choose",
    "no blocks",
    "no loss",
    "no classes",
    "no parameters",
    "loss failed",
    "loss not finite",
    "output not finite",
    "not fresh",
    "not cross-entropy",
    "no positions",
    "not captured",
    "no room",
    "failed",
]

_SAID: dict[Reason, str] = {
    "texts meet": "one text of a batch changes what is computed for another",
    "texts exchanged": "what is computed for one text of a batch is given out for another",
    "future read": "a token reads one that comes after it",
    "padding read": "what stands on padding changes what is computed for real tokens",
    "mask ignored": "the mask of padding changes nothing",
    "texts counted": "equal tokens are told apart by the place of their text in the batch, not by their own",
    "order lost": "the model has positions ({what}), but tokens in another order give the same result",
    "token unread": "{what} does not reach the output",
    "text unread": "{what} of the batch changes nothing of what is returned",
    "head unread": "{what} does not reach the output of the block",
    "channel unread": "{what} of the last state do not reach the output",
    "never runs": "{what} never runs, although the other blocks of its list do",
    "no gradient": "{what} gets no gradient",
    "zero gradient": "the gradient of {what} is zero",
    "not registered": "{what} holds weights that the model does not list, so that they are not trained",
    "changed in place": "the backward pass fails, because a tensor that it needs is changed in place, so that "
    "the model cannot be trained: write x = x + y where it has x += y",
    "random": "two runs on the same input differ, in evaluation mode",
    "wrong axis": "the softmax does not run over the keys: rows of the map do not sum to one",
    "softmax missing": "attention has no softmax, which every other block has",
    "torn heads": "the split into heads mixes tokens: one head holds pieces of one token at several places",
    "joined heads": "what the heads read for several tokens is written into one token",
    "over heads": "the maps run over heads and not over tokens: tokens do not read each other",
    "mask after softmax": "a mask is applied after the softmax: rows of the map do not sum to one",
    "fully masked": "a row of the attention map has every key masked",
    "not finite": "numbers that are not finite appear",
    "equal layers": "its weights are those of block {what}, number for number",
    "one layer": "it is the same module as block {what}, listed again",
    "two names": "{what} are one module, which runs twice in the block",
    "one part": "{what} is one module in all blocks, which are not meant to share",
    "no skip": "the state is added again less often than the {what} times of the other blocks: a skip is missing",
    "odd block": "it does other operations than all other blocks, which have the same parts (`{what}`)",
    "odd wiring": "it does the operations of all other blocks, but on another value (`{what}`)",
    "odd weight": "a weight of an untrained block is not of the size that it has in all other blocks ({what})",
    "equal models": "{what} have equal weights",
    "large epsilon": "the epsilon of a norm is larger than the variance that it divides by",
    "small input": "the input of a norm is so small that its epsilon decides",
    "saturated": "attention is saturated before any training",
    "outlier": "the attention logits are far larger than in every other block",
    "weak": "the attention logits are far smaller than in every other block",
    "scaled up": "attention logits are multiplied by {what}, where the width of a head divides",
    "scaled down": "attention logits are multiplied by {what}, so little that all keys are read alike",
    "rounding": "rounding to bfloat16 changes the result",
    "drowned": "tokens differ by less than bfloat16 rounds: something that is the same for all drowns them",
    "start loss": "the loss of the untrained model is not the logarithm of the number of classes ({what})",
    "own token": "the loss asks a causal model for the token that it has just read",
    "batch norm": "batch norms read all texts of a batch in training",
    "expert capacity": "texts compete for the capacity of experts",
    "shared layers": "the architecture shares its layers",
    "moving average": "{what} start with equal weights, as a moving average does",
    "set function": "the model has no positions: it is a function of a set of tokens",
    "prefix": "the first tokens read each other in both directions",
    "other calls": "{what} is for other calls of the model",
    "other block": "one block does other operations than the others",
    "pruned heads": "heads are switched off by a mask of the model",
    "not asked": "it was not asked for",
    "one text": "there is one text; give two or more",
    "one token": "there are too few tokens; give three or more",
    "no mask": "the model takes no mask of padding",
    "both directions": "tokens read in both directions in most blocks",
    "no softmax": "no softmax that makes an attention map was seen",
    "no norms": "no norm with an epsilon was seen",
    "one block": "there is one block",
    "few blocks": "there are fewer than three blocks with the same parts",
    "experts choose": "rounding changes which experts are chosen",
    "too coarse": "its numbers have too few digits to tell",
    "no blocks": "no blocks were found",
    "no loss": "no loss was given",
    "no classes": "the loss has {what}, too few classes to compare with",
    "no parameters": "no parameter asks for a gradient",
    "loss failed": "the loss failed: {what}",
    "loss not finite": "the loss is not finite",
    "output not finite": "the model returns numbers that are not finite",
    "not fresh": "the model is not freshly drawn",
    "not cross-entropy": "the loss was not seen to be a cross-entropy",
    "no positions": "the model has nothing that tells positions",
    "not captured": "the operations of the blocks cannot be read: {what}",
    "no room": "passes of the model are used up",
    "failed": "the trial failed: {what}",
}

MOST_CODE = 60
"""Characters of a line of code in a sentence; a longer one is cut, because a terminal has 80 columns."""

MARKS: dict[State, str] = {
    "holds": "holds",
    "broken": "BROKEN",
    "meant": "meant",
    "not checked": "not checked",
}


UNITS = {
    "batch": "it changes by {} of its size",
    "causality": "it changes by {} of its size",
    "padding": "it changes by {} of its size",
    "deterministic": "they differ by {} of their size",
    "clones": "{} in all",
    "epsilon": "its share is {}",
    "logits": "their spread is {}",
    "precision": "by {} of its size",
    "start-loss": "it is {}",
}
"""What the number of a broken law is, in a sentence; laws that are not here have none worth saying."""

_REASON_UNITS: dict[Reason, str] = {
    "wrong axis": "sums of rows are off by up to {}",
    "mask after softmax": "sums of rows are off by up to {}",
    "fully masked": "a share of {} of them",
    "not finite": "a share of {} of all",
    "torn heads": "one token stands in {} rows of a head",
    "joined heads": "one query is written into {} rows",
    "over heads": "one token stands in {} rows of a head",
}
"""The same of laws whose number means something else by what is wrong."""


def _cut(code: str) -> str:
    """A line of code, without its end where it is long.

    >>> _cut("x = x + y"), len(_cut("x" * 99))
    ('x = x + y', 60)
    """
    return code if len(code) <= MOST_CODE else f"{code[: MOST_CODE - 4]} ..."


class LawResult(Value, title="Law"):
    """One law and whether a model obeys it."""

    name: str
    """Of the law."""

    state: State
    """Whether it holds; ``meant``: it does not hold, and the architecture means that."""

    block: int | None = None
    """The first block that breaks it, from 1; null where it is no matter of a block."""

    site: str | None = None
    """The path of the module in which it is broken."""

    line: str | None = None
    """The line of the model's own code as ``file:line``."""

    code: str = ""
    """What stands on that line."""

    number: Number = None
    """What was measured: how far it is broken, in the unit of the law; of a law that holds the largest seen."""

    floor: Number = None
    """The largest number that still holds: rounding, or the limit of the law."""

    reason: Reason | None = None
    """Why it is broken, meant or not checked."""

    what: str = ""
    """The parameter, module, token or error that the reason is about, by its name."""

    @property
    def place(self) -> str:
        """Where it is broken, in words; empty where nothing is known."""
        parts = []
        if self.block is not None:
            parts.append(f"block {self.block}")
        if self.line is not None:
            parts.append(self.line + (f", `{_cut(self.code)}`" if self.code else ""))
        elif self.site:
            parts.append(self.site)
        return ", ".join(parts)

    @property
    def why(self) -> str:
        """The reason as a clause; empty for a law that holds."""
        return "" if self.reason is None else _SAID[self.reason].format(what=self.what or "a part of it")

    @property
    def sentence(self) -> str:
        """One sentence that says what was found.

        >>> LawResult(name="batch", state="broken", block=2, line="gpt.py:31", reason="texts meet", number=0.5).sentence
        'Law batch is broken in block 2, gpt.py:31: one text of a batch changes what is computed for another (it \
changes by 0.5 of its size).'
        >>> LawResult(name="padding", state="not checked", reason="no mask").sentence
        'Law padding is not checked: the model takes no mask of padding.'
        """
        said = {"holds": "holds", "broken": "is broken", "meant": "is not meant to hold"}.get(
            self.state, "is not checked"
        )
        where = f" in {self.place}" if self.place and self.state != "not checked" else ""
        why = f": {self.why}" if self.why else ""
        unit = (
            UNITS.get(self.name, "")
            if self.reason is None
            else _REASON_UNITS.get(self.reason, UNITS.get(self.name, ""))
        )
        is_shown = self.number is not None and self.state == "broken" and bool(unit)
        measured = f" ({unit.format(number(self.number))})" if is_shown else ""
        return f"Law {self.name} {said}{where}{why}{measured}."


class Laws(Value):
    """All laws of one model, in a fixed order."""

    results: tuple[LawResult, ...]
    """One per law."""

    loss: str | None = None
    """The loss whose gradients were looked at, in words; null where none was taken."""

    forwards: int = 0
    """Passes of the model, parts of passes summed up."""

    backwards: int = 0
    """Backward passes."""

    @property
    def broken(self) -> tuple[LawResult, ...]:
        """The laws that are broken."""
        return tuple(one for one in self.results if one.state == "broken")

    @property
    def not_checked(self) -> tuple[LawResult, ...]:
        """The laws that were not checked."""
        return tuple(one for one in self.results if one.state == "not checked")

    def __getitem__(self, name: str) -> LawResult:
        """A law by its name."""
        found = next((one for one in self.results if one.name == name), None)
        if found is None:
            raise KeyError(f"{name!r} is no law that was asked for; there are {', '.join(self.names)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Of the laws, in order."""
        return tuple(one.name for one in self.results)

    @property
    def words(self) -> tuple[str, ...]:
        """What is broken first, then what holds, is meant or was not checked."""
        return tuple(self._words())

    def _words(self) -> Iterator[str]:
        yield from (one.sentence for one in self.broken)
        held = [one.name for one in self.results if one.state == "holds"]
        if held:
            none = "" if self.broken else ", and none is broken"
            yield f"{count(len(held), 'law')} hold{'s' * (len(held) == 1)}: {listed(held)}{none}."
        yield from (one.sentence for one in self.results if one.state == "meant")
        yield from (one.sentence for one in self.not_checked)

    def tabular(self) -> Tabular:
        """One line per law: its state, where it breaks, and why."""
        rows = [
            [
                one.name,
                MARKS[one.state],
                NOTHING if one.block is None else str(one.block),
                one.line or NOTHING,
                NOTHING if one.number is None else number(one.number),
                one.why or NOTHING,
            ]
            for one in self.results
        ]
        columns = [
            Column("law", "name"),
            Column("state", "name"),
            Column("block", optional=True),
            Column("line", "name", optional=True),
            Column("number", optional=True),
            Column("why", "words", optional=True),
        ]
        return Tabular(columns=columns, rows=rows, title="Wiring laws")
