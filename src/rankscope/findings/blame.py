"""Blame: what each kind of part does to the residual ratio, block by block, and who does most for and against collapse.

A part is named only where that is decided: its change must exceed its own floor, and be further from zero than that of
every other part by more than both floors. Where massive tokens or one channel make up most of a state, the residual
ratio follows them and not the other tokens, so nobody is named either.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import FiniteFloat, model_validator

from rankscope.charts import Line, Panel, Point
from rankscope.core.words import NOTHING, count, number, percent, sentence
from rankscope.document import Cell, Column, Tabular
from rankscope.findings.base import Number, Value
from rankscope.findings.blocks import ROUNDING_ALONE
from rankscope.findings.subject import variant_name

RATIO = "residual_ratio[frobenius,mean]"
DEFINITION = f"blame[{RATIO}]"
MEANING = f"change of ln {RATIO} by one step of a block, below zero towards collapse: ln(after) - ln(before)"

ROUNDING = 1e-12
"""Changes of a logarithm below this are the rounding of the logarithm itself."""

Sign = Literal[-1, 1]
"""Towards collapse (-1) or against it (+1)."""

NAME = "residual ratio (Frobenius norm)"
"""What ``RATIO`` is called in sentences."""

PLAIN = {"skip": "adding the skip", "mlp": "the MLP", "norm": "normalisation", "scale": "the scale"}
"""Kinds of parts as the subject of a sentence; all others by their name."""

COLORS = {"attention": 1, "mlp": 0, "skip": 2, "norm": 3, "scale": 4}
"""One color per kind of part in every picture; other kinds take what is left."""


class Dominance(Value):
    """Massive tokens, or one channel, that hold most of the energy of a state in half of the texts or more.

    The residual ratio is then theirs: a branch that lacks that channel moves the ratio a lot whatever it does to the
    tokens, and the skip that puts the channel back is credited with everything.
    """

    layer: int
    """Blocks that were passed."""

    kind: Literal["channel", "token"]
    """One channel, or massive tokens."""

    share: FiniteFloat
    """Their share of the energy, mean over the texts in which it is large."""

    texts: int
    """In how many texts it is large."""

    @property
    def words(self) -> str:
        """What dominates, and what follows."""
        holder, those = {
            "channel": ("one channel holds", "that channel"),
            "token": ("massive tokens hold", "those tokens"),
        }[self.kind]
        return (
            f"{holder} {percent(self.share)} of the sum of squares at layer {self.layer}, so the residual ratio shows "
            f"{those} and not the others"
        )


class Sums(Value):
    """Changes summed by kind of part, mean over the texts in which every step is above its floor."""

    texts: int
    """How many texts these are."""

    total: Number
    """The sum over all kinds; null without such a text."""

    kinds: dict[str, FiniteFloat] | None
    """The sum of each kind of part; together they are the total."""

    floors: dict[str, FiniteFloat] | None
    """What rounding may add to or take from each of them; null where it was not estimated."""

    most_for: str | None
    """The kind that does most for collapse; null where that is not decided, or where nothing works for it."""

    most_against: str | None
    """The kind that does most against it."""

    decided_for: bool
    """Whether the numbers decide who does most for collapse, or that nothing does."""

    decided_against: bool
    """Whether they decide who does most against it, or that nothing does."""

    is_dominated: bool
    """Whether massive tokens or one channel make up most of a state before or after."""

    @model_validator(mode="after")
    def _names_are_kinds(self) -> Self:
        kinds = self.kinds or {}
        if {self.most_for, self.most_against} - {None, *kinds}:
            raise ValueError("most_for and most_against name kinds of parts that kinds lacks")
        if self.floors is not None and set(self.floors) != set(kinds):
            raise ValueError("kinds and floors are of different parts")
        return self

    def named(self, sign: Sign) -> str | None:
        """The kind that does most in that direction."""
        return self.most_for if sign < 0 else self.most_against

    def is_decided(self, sign: Sign) -> bool:
        """Whether that is known."""
        return self.decided_for if sign < 0 else self.decided_against


class BlamedBlock(Sums, title="Block"):
    """The same of one block."""

    block: int
    """Its number, from 1."""


def blocks_words(text: str) -> str:
    """Numbers of blocks as words.

    >>> blocks_words("3"), blocks_words("3,5-7")
    ('block 3', 'blocks 3,5-7')
    """
    return f"block{'s' if ',' in text or '-' in text else ''} {text}"


class Headline(Value):
    """The network that blame and what-ifs are about."""

    variant: str
    """Which parts it has."""

    mask: str
    """The mask rules of its attention."""

    norm: str
    """The norms it still has."""

    skip_scale: Number
    """Factor on the input of its skips; null: as the model has it."""

    blocks: str
    """The blocks that are changed."""

    asked_mask: str | None
    """The mask that was asked for; null: the model's own."""

    without_norms: bool
    """Whether its norms were taken out."""

    @property
    def name(self) -> str:
        """The network in a few words."""
        extra = [] if self.asked_mask is None else [f"mask {self.asked_mask}"]
        extra += [] if self.skip_scale is None else [f"skip scale {number(self.skip_scale)}"]
        extra += ["without norms"] if self.without_norms else []
        extra += [] if self.blocks == "all" else [f"changed in {blocks_words(self.blocks)}"]
        return ", ".join([variant_name(self.variant), *extra])

    @classmethod
    def unchanged(cls) -> Self:
        """A network as it is, of which no more is known."""
        return cls(
            variant="transformer",
            mask="own",
            norm="own",
            skip_scale=None,
            blocks="all",
            asked_mask=None,
            without_norms=False,
        )


class Blame(Sums):
    """Who is to blame over all blocks, and in every one of them."""

    network: Headline
    """The network this is about."""

    definition: str
    """What is blamed for."""

    all_texts: int
    """Texts that were run; those with a step below its floor are left out of the sums."""

    unresolved: int
    """Changes, counted over texts, that are not above their own floor."""

    split: bool
    """Whether the split pass was used, which carries the residual below the rounding of the states."""

    block_for: int | None
    """The block in which the kind that does most for collapse does most; null where that is not decided."""

    block_against: int | None
    """The same against it."""

    dominated: tuple[Dominance, ...]
    """Layers at which massive tokens or one channel make up most of a state."""

    blocks: tuple[BlamedBlock, ...]
    """Every block by itself."""

    @model_validator(mode="after")
    def _blocks_are_numbered(self) -> Self:
        numbers = [one.block for one in self.blocks]
        if numbers != list(range(1, len(numbers) + 1)):
            raise ValueError(f"expected blocks 1 to {len(numbers)} in order, got {numbers}")
        for sign, place in ((-1, self.block_for), (1, self.block_against)):
            kind = self.most_for if sign < 0 else self.most_against
            if place is not None and (
                place not in numbers or kind not in (self.blocks[place - 1].kinds or {})
            ):
                raise ValueError(f"block {place} is named, which has no such part")
        return self

    @property
    def words(self) -> str:
        """What all blocks together do to the ratio, which part lowers it most and which raises it most."""
        blocks = "only block" if len(self.blocks) == 1 else count(len(self.blocks), "block")
        where = f"the {blocks} of {self.network.name}"
        return self._sentence(where, self, self.dominated, {-1: self.block_for, 1: self.block_against})

    def words_of(self, block: int) -> str:
        """The same of one block."""
        near = [one for one in self.dominated if one.layer in (block - 1, block)]
        return self._sentence(f"block {block}", self.blocks[block - 1], near, {})

    def _sentence(
        self, place: str, sums: Sums, dominated: Sequence[Dominance], at: Mapping[int, int | None]
    ) -> str:
        if sums.kinds is None:
            return f"In {place} no part is named: in every text some step cannot be told from rounding{self._hint}."
        if sums.is_dominated:
            why = (
                dominated[0].words
                if dominated
                else "massive tokens or one channel hold most of the sum of squares"
            )
            return f"In {place} no part is named: {why}."
        if sums.floors is None:
            return f"In {place} no part is named: no rounding floor was estimated."
        first, second = self._side(sums, -1, at.get(-1)), self._side(sums, 1, at.get(1))
        multiply = "multiply" if sums is self and len(self.blocks) > 1 else "multiplies"
        total = math.fsum((sums.kinds or {}).values()) if sums.total is None else sums.total
        whole = f"{place} {multiply} the {NAME} by {number(math.exp(total))}{self._mean_of(sums.texts)}"
        return f"{sentence(whole)} {sentence(f'{first}; {second}')}"

    def _side(self, sums: Sums, sign: Sign, block: int | None) -> str:
        does, kind = "lowers" if sign < 0 else "raises", sums.named(sign)
        if kind is None:
            lost = f"which part {does} it most cannot be told from rounding"
            return f"no part {does} it" if sums.is_decided(sign) else lost
        value = f"by a factor of {number(math.exp((sums.kinds or {})[kind]))}"
        if block is not None and len(self.blocks) > 1:
            own = number(math.exp((self.blocks[block - 1].kinds or {})[kind]))
            value += f" in all and of {own} in block {block} alone"
        return f"{PLAIN.get(kind, kind)} {does} it most, {value}"

    def _mean_of(self, texts: int) -> str:
        if self.all_texts == 1:
            return ""
        if texts == self.all_texts:
            return f" (geometric mean over {texts} texts)"
        return (
            f" (geometric mean over {texts} of {self.all_texts} texts; in the others some step cannot be told from "
            f"rounding{self._hint})"
        )

    @property
    def _hint(self) -> str:
        return "" if self.split else "; --split carries the residual below it"

    def tabular(self) -> Tabular:
        """One line per block and one for all: the change by every kind of part, and their sum."""
        lines: list[tuple[str, Sums]] = [*((str(one.block), one) for one in self.blocks), ("all", self)]
        kinds = self.kind_names
        is_whole = all(line.texts == self.all_texts for _, line in lines)
        rows: list[list[Cell | str]] = [
            [
                name,
                *(_cell(line, kind) for kind in kinds),
                _change(line.total if line.kinds else None),
                *([] if is_whole else [str(line.texts)]),
            ]
            for name, line in lines
        ]
        heads = ["block", *kinds, "sum", *([] if is_whole else ["texts"])]
        columns = [Column(head, "name" if head == "block" else "number") for head in heads]
        return Tabular(columns=columns, rows=rows)

    @property
    def legend(self) -> list[str]:
        """What the numbers of the table are."""
        lines = (*self.blocks, self)
        is_starred = any(not _is_real(line, kind) for line in lines for kind in line.kinds or ())
        said = [
            f"Each number is the change of ln of the ratio, ln(after) - ln(before), by one kind of part in one block: "
            f"-0.7 halves the ratio, +0.7 doubles it. The ratio is {RATIO}.",
            "Below zero tokens come closer to their mean relative to their size, which is towards collapse.",
        ]
        kinds = self.kind_names
        if "attention" in kinds or "mlp" in kinds:
            beside = "; the skip is not yet added" if "skip" in kinds else ""
            said.append(f"attention, mlp: from what enters the part to what it puts out{beside}.")
        if "skip" in kinds:
            said.append(
                "skip: from what the part puts out to its sum with what goes around it. norm: normalisation. A block "
                "may have several of a kind; their changes are added."
            )
        said.append(
            "sum: over the parts of the block. all: over the blocks, from the input to the last layer."
        )
        if any(line.texts != self.all_texts for line in lines):
            said.append("texts: how many have every step above its rounding floor; only these are averaged.")
        if is_starred:
            said.append(f"*: {ROUNDING_ALONE}.")
        return said

    @property
    def kind_names(self) -> list[str]:
        """All kinds of parts, in order of execution."""
        return list(dict.fromkeys(kind for one in (*self.blocks, self) for kind in one.kinds or ()))

    def panel(self) -> Panel:
        """What each kind of part does in every block, with its floor as a band; hollow where it is not above it."""
        lines = [
            Line(
                name=kind,
                points=[_point(one, kind) for one in self.blocks],
                color=COLORS.get(kind),
            )
            for kind in self.kind_names
        ]
        whole = [Point(one.block, one.total, f"together: {_change(one.total)}") for one in self.blocks]
        zero = [Point(one.block, 0.0) for one in self.blocks]
        return Panel(
            title="What each part does to the residual ratio, block by block",
            lines=[
                Line(name="", points=zero, style="dotted", color=-1, dots=False),
                *lines,
                Line(name="together", points=whole, style="dashed", color=-1),
            ]
            if lines
            else [],
            value=f"change of ln {RATIO.partition('[')[0].replace('_', ' ')}",
            across="block",
            scale="linear",
            notes=[
                DEFINITION,
                "Below zero tokens come closer to their mean relative to their size (towards collapse).",
            ],
        )


def strongest(
    kinds: Mapping[str, float], floors: Mapping[str, float] | None, sign: Sign
) -> tuple[str | None, bool]:
    """The kind that does most for collapse (-1) or against it (+1), if any, and whether that is decided.

    With x the change towards ``sign`` and e its floor, a kind is named if ``x - e`` is above the rounding of a
    logarithm and above ``x + e`` of every other kind. That nothing works in that direction is decided if ``x + e`` of
    every kind is within that rounding.

    >>> strongest({"attention": -1.5, "mlp": -1.4}, {"attention": 0.2, "mlp": 0.2}, -1)
    (None, False)
    >>> strongest({"attention": -1.5, "mlp": -1.4}, {"attention": 0.02, "mlp": 0.02}, -1)
    ('attention', True)
    >>> strongest({"attention": -1.5}, {"attention": 0.02}, +1)
    (None, True)
    """
    if floors is None:
        return None, False
    if all(sign * change + floors[kind] <= ROUNDING for kind, change in kinds.items()):
        return None, True
    first = max(kinds, key=lambda kind: sign * kinds[kind])
    least = sign * kinds[first] - floors[first]
    others = [sign * change + floors[kind] for kind, change in kinds.items() if kind != first]
    is_first = least > ROUNDING and all(least > other for other in others)
    return (first, True) if is_first else (None, False)


def signed(change: float) -> str:
    """A change with its sign.

    >>> signed(0.5), signed(-0.25)
    ('+0.5', '-0.25')
    """
    return f"{'+' if change >= 0 else ''}{number(change)}"


def _change(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.3f}"


def _is_real(sums: Sums, kind: str) -> bool:
    change, floor = (sums.kinds or {})[kind], (sums.floors or {}).get(kind)
    return floor is not None and (abs(change) > floor or change == 0)


def _cell(sums: Sums, kind: str) -> Cell | str:
    if kind not in (sums.kinds or {}):
        return NOTHING
    text, real = _change((sums.kinds or {})[kind]), _is_real(sums, kind)
    return text if real else Cell(f"{text}*", faint=True)


def _point(one: BlamedBlock, kind: str) -> Point:
    change, floor = (one.kinds or {}).get(kind), (one.floors or {}).get(kind)
    if change is None:
        return Point(one.block, None)
    real = _is_real(one, kind)
    tip = f"{kind}: {_change(change)}{'' if real else ', not above its floor'}"
    ends = (None, None) if floor is None else (change - floor, change + floor)
    return Point(one.block, change, tip, low=ends[0], high=ends[1], hollow=not real)
