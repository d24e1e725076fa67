"""The mechanism of a fall: what made tokens equal, block by block, in shares that add up, and what undoes it.

The residual ratio of unit tokens falls because of what the design does to the skips, or because of what branches write.
Each is a *group*; their contributions to the change of ln of the ratio add up to the whole change. A group is called a
cause only where the network has collapsed, and where it makes at least a quarter of the fall. A share is not a recovery
where causes multiply, so beside the share stands the ratio that the network ends at when the cause is undone.
"""

import math
from collections.abc import Callable
from typing import Literal, Self, get_args

from pydantic import Field, FiniteFloat, model_validator

from rankscope.charts import Line, Panel, Point
from rankscope.core.words import NOTHING, count, listed, number, percent, power, ranges, sentence
from rankscope.document import Column, Tabular
from rankscope.findings.base import Number, Value
from rankscope.findings.blame import Headline

RATIO = "residual_ratio[frobenius,mean,unit]"
"""What falls."""

RATIO_WORDS = "unit residual ratio"
"""What that is called in sentences."""

Group = Literal[
    "no-skip",
    "norm-rescale",
    "norm-gain",
    "norm-direct",
    "skip-scale",
    "attention-bias",
    "mlp-bias",
    "same-direction",
    "branch-size",
    "lengths",
]
"""What may make a ratio fall; contributions of all of them add up."""

GROUPS: tuple[Group, ...] = get_args(Group)

MEANINGS: dict[Group, str] = {
    "no-skip": "a part without a skip passes on only what it makes of its input",
    "norm-rescale": "a norm on the stream divides what the skip brings by the length of skip and branch together",
    "norm-gain": "a norm on the stream multiplies by less than 1, so the next branch outweighs the skip",
    "norm-direct": "what a norm itself does to the tokens: its bias, its gains per channel, its centring",
    "skip-scale": "skips carry their input times another number than 1",
    "attention-bias": "biases of attention are the same row for every token",
    "mlp-bias": "what MLPs make of zero is the same row for every token",
    "same-direction": "branches write the row that all tokens share already",
    "branch-size": "branches write more of a shared row than of differences",
    "lengths": "tokens change their lengths, and count by direction alone",
}
"""What each group is."""

CauseName = Literal[Group, "averaging"]
NoteName = Literal["fall", "no-skip", "saturated", "groups", "massive", "uniform", "dead"]
Site = Literal["attention", "mlp", "block", "norm"]

CAUSE_SITES: dict[str, Literal["attention", "mlp", "norm"]] = {
    "attention-bias": "attention",
    "mlp-bias": "mlp",
    "norm-direct": "norm",
}
"""Causes that biases make, and where these stand."""

CureName = Literal[
    "placement:pre",
    "skips",
    "redraw",
    "no-bias",
    "branch-scale",
    "gain:1",
    "no-norm-bias",
    "skip-scale:1",
    "temperature",
]
"""What undoes a cause, by surgery on the tree."""

CURES: dict[CureName, str] = {
    "placement:pre": "with the norms moved before attention and MLP",
    "skips": "with skips added",
    "redraw": "with weights drawn for each block, not copied",
    "no-bias": "without these biases",
    "branch-scale": "with branches multiplied by {}",
    "gain:1": "with gains of 1",
    "no-norm-bias": "without the biases of the norms",
    "skip-scale:1": "with skips that carry all of their input",
    "temperature": "with the temperature {}",
}

Declined = Literal["no surgery", "refused", "not resolved"]
"""Why a cure has no number: nothing is known that undoes the cause, this tree cannot be changed so, or rounding."""

Unresolved = Literal["rounding", "no split rule", "overflow", "own dtype"]
"""Why there is no decomposition of a text: its tokens differ by less than rounding, and the split pass has no rule for
a part, or lost it as well; its numbers leave the floats; or some code of the model cannot be run in float64."""

SHARE = 0.25
"""A group is a cause from this share of the fall on."""

COLLAPSED, FALL = 0.1, 3.0
"""The network has collapsed where the last ratio is at most the first number, and the second times smaller than the
first ratio; these are the limits of the verdict."""

NOTED = 0.3
"""A ratio up to this, after such a fall, is worth a note."""


class MechanismBlock(Value, title="Sum"):
    """One sum of a skip with a branch, mean over texts: what a person reads off it."""

    block: int
    """Number of the block, from 1."""

    site: Site
    """What the branch holds: attention, mlp, or block for both or neither."""

    has_skip: bool
    """Whether the input goes around the branch."""

    skip: FiniteFloat
    """Size of what the skip carries over that of its input; 1 for an ordinary skip, 0 without one."""

    share: FiniteFloat
    """Skip share: size of what the skip carries over that of the sum."""

    common: Number
    """Size of the common row that the branch writes over that of the stream."""

    residual: Number
    """Size of the differences that the branch writes over that of the stream."""

    cosine: Number
    """Cosine of the common row that the branch writes with that of the stream; by chance it is near 0."""

    bias: Number
    """Size of the biases of the branch over that of the stream."""

    averaging: Number
    """Size of the differences that attention leaves over that of the values it mixes."""

    entropy: Number
    """Entropy of the rows of attention over that of reading all allowed keys alike."""

    logit_std: Number
    """How far the logits of a row differ (root mean square)."""

    logit_gain: Number
    """That over the residual ratio of what attention reads."""

    value_gain: Number
    """Size of the differences of the values over that of what attention reads."""

    price: Number
    """Change of ln of the ratio if tokens read themselves alone here."""

    ratio: Number
    """Unit residual ratio after the block."""


class BlockShare(Value, title="Contribution"):
    """What one group does in one block."""

    block: int
    """Number of the block, from 1."""

    group: Group
    """What does it."""

    value: FiniteFloat
    """Change of ln of the ratio, mean over texts; below zero towards collapse."""


class CauseNumbers(Value):
    """The numbers that the sentence of a cause needs; null where they do not apply."""

    start: FiniteFloat
    """Unit residual ratio of what enters the first block, geometric mean over texts."""

    log_end: FiniteFloat
    """Natural logarithm of that of the last block."""

    log_free: Number
    """The same of a stream that adds every branch to an unscaled skip, without norms on the way: a prediction."""

    blocks: int
    """How many blocks the network has."""

    kept: Number = None
    """Share of the skip that one block keeps, geometric mean over blocks."""

    log_left: Number = None
    """Natural logarithm of the share of the input that is left after all blocks."""

    common: Number = None
    """Size of the common row that branches write over that of the stream, in the named block or mean over all."""

    residual: Number = None
    """The same of differences."""

    cosine: Number = None
    """Cosine of the common rows of branch and stream, mean."""

    averaging: Number = None
    """What attention leaves of the differences of its values."""

    entropy: Number = None
    """How evenly attention reads its keys; 1 is all alike."""

    bias: Number = None
    """Size of the biases over that of the stream."""

    gain: Number = None
    """Gain of the norm."""

    beta: Number = None
    """Size of the branch that follows the norm over that of what the skip brings."""

    norm_bias: Number = None
    """Bias of the norm over its gain."""

    skip: Number = None
    """What skips carry of their input."""

    logit_std: Number = None
    """How far the logits of a row differ."""

    equal_layers: bool = False
    """Whether all blocks have the same weights."""

    post_norm: bool = False
    """Whether norms stand on the stream."""


class Cause(Value):
    """One reason for the fall, with what undoing it gives."""

    name: CauseName
    """What it is."""

    block: int | None
    """The block that makes more than half of it, from 1; null: every block."""

    site: Site
    """Where in the block: attention, mlp, norm, or block for several."""

    share: FiniteFloat
    """Its part of the fall; parts of causes that others work against may exceed 1."""

    round: int = 1
    """1: of the network as it is; 2 or 3: found after the causes of the rounds before were undone, as a share of the
    fall that was left."""

    cure: CureName | None
    """What undoes it."""

    dose: Number = None
    """The number that the cure uses."""

    log_after: Number = None
    """Natural logarithm of the ratio of the last block with the cure alone, run."""

    recovered: Number = None
    """Part of the fall that the cure, run, gives back."""

    declined: Declined | None = None
    """Why the cure has no number."""

    line: str | None = None
    """The line of the user's code, file:line, where it is known."""

    numbers: CauseNumbers
    """What the sentence is made of."""

    @property
    def sentence(self) -> str:
        """What happens, how much of the fall it is, and what undoing it gives."""
        return " ".join(
            [sentence(self._what()), *(sentence(one) for one in (self._rest(), self._extra()) if one)]
        )

    @property
    def place(self) -> str:
        """The block in words."""
        return "every block" if self.block is None else f"block {self.block}"

    def _what(self) -> str:
        n, where = self.numbers, self.place
        inside = "" if self.block is None else f" in block {self.block}"
        match self.name:
            case "norm-rescale":
                return (
                    f"the norms behind the skips{inside} shrink what skips carry: each block keeps {number(n.kept, 2)} "
                    f"of it, and after {count(n.blocks, 'block')} {_left(n.log_left)} of the input is left"
                )
            case "same-direction":
                return (
                    f"{where} writes the same row, the one that all tokens share already (cosine {number(n.cosine, 2)} "
                    "with it; chance 0)"
                )
            case "no-skip":
                part = "" if self.site == "block" else f" around its {_site(self.site)}"
                kept = (
                    f"only what attention passes on is left ({number(n.averaging, 2)} of the differences)"
                    if n.averaging is not None and self.site != "mlp"
                    else "only what it makes of its input is left"
                )
                return f"{where} has no skip{part}: {kept}"
            case "branch-size":
                even = (
                    f", and attention reads almost evenly (entropy {number(n.entropy, 2)} of at most 1)"
                    if n.entropy is not None and n.entropy > 0.9
                    else ""
                )
                many = "branches write" if self.block is None else f"the branch of block {self.block} writes"
                per = " per block" if self.block is None else ""
                return (
                    f"{many} {number(n.common, 2)} times the common row of the stream{per} and {number(n.residual, 2)} "
                    f"times its differences{even}"
                )
            case "attention-bias" | "mlp-bias":
                of = "attention" if self.name == "attention-bias" else "the MLP"
                norms = ", and each norm behind it divides the rest by it" if n.post_norm else ""
                return (
                    f"what the biases of {of} add in {where} is {number(n.bias, 2)} times the stream: the same row for "
                    f"every token{norms}"
                )
            case "norm-gain":
                by = f"{number(n.beta, 2)} times what the skip brings"
                then = "" if n.beta is None else f", so the next branch is {by}"
                return f"the norm behind the skip in {where} multiplies by {number(n.gain, 2)}{then}"
            case "norm-direct":
                if n.norm_bias:
                    size = f"{number(n.norm_bias, 2)} times its gain"
                    return f"the bias of the norm in {where} is {size}: it adds one row to all tokens"
                return f"the norm in {where} brings tokens closer by itself: by its gains per channel, or by centring"
            case "skip-scale":
                return (
                    f"the skips of {where} carry {number(n.skip, 2)} of their input; after {count(n.blocks, 'block')} "
                    f"{_left(n.log_left)} of it is left"
                )
            case "averaging":
                return f"logits differ by only {number(n.logit_std, 2)}, so attention is the mean of what it reads"
            case "lengths":
                return f"tokens change their lengths in {where}, and those that grow are alike"

    def _rest(self) -> str:
        n = self.numbers
        if self.name == "averaging":
            said = f"reading themselves alone, tokens would keep {percent(self.share)} of the fall"
        else:
            after = f"once {'that is' if self.round == 2 else 'those are'} undone, " if self.round > 1 else ""
            change = f"from {number(n.start, 2)} to {power(n.log_end, digits=2)}"
            said = f"{after}this is {percent(self.share)} of the fall {change}"
        if self.name == "norm-rescale" and n.log_free is not None:
            said += f"; without it the ratio would end at {power(n.log_free, digits=2)} (predicted)"
        if self.cure is not None and self.log_after is not None:
            cure = CURES[self.cure].format(number(self.dose, 2))
            said += f"; {cure} it ends at {power(self.log_after, digits=2)} (run)"
        return said

    def _extra(self) -> str:
        n = self.numbers
        if self.name == "same-direction" and n.equal_layers:
            return f"the {n.blocks} blocks are copies of one layer, as nn.TransformerEncoder makes them"
        return ""


def _left(log: float | None) -> str:
    return NOTHING if log is None else f"{power(log + math.log(100), digits=2)}%"


def _site(site: Site) -> str:
    return {"attention": "attention", "mlp": "MLP", "norm": "norm", "block": "branches"}[site]


class Note(Value):
    """Something that is named beside the causes: it is not, or need not be, what made tokens equal."""

    name: NoteName
    """What it is."""

    group: Group | None = None
    """Of a fall that is no collapse yet: the largest contribution."""

    share: Number = None
    """Of a fall: its part. Of groups: the residual ratio inside them. Of massive tokens: how many times longer."""

    count: int = 0
    """Groups of tokens, massive tokens per text, or blocks that it is true of."""

    value: Number = None
    """Entropy of attention, the gain of its logits, the size of its branch over that of the stream, or the ratio."""

    logit_std: Number = None
    """Of saturated attention: how far its logits differ."""

    block: int | None = None
    """Of a skip that is missing: the first block without it, from 1."""

    site: Site | None = None
    """What it is missing around."""

    line: str | None = None
    """Where it would be written, as file:line; null where that is not known."""

    @property
    def is_ill(self) -> bool:
        """Whether it is a fault of its own: a skip that other blocks have and this one has not, attention that reads
        one key, or tokens that are equal inside groups."""
        return self.name in ("no-skip", "saturated", "groups")

    @property
    def sentence(self) -> str:
        """What is noted."""
        match self.name:
            case "fall":
                most = "" if self.group is None else f", most of it ({percent(self.share)}) by {self.group}"
                return f"The ratio falls to {number(self.value, 2)}, which is no collapse yet{most}."
            case "no-skip":
                part = {"attention": "attention", "mlp": "MLP"}.get(self.site or "", "branch")
                more = f", and {count(self.count - 1, 'other block')} too" if self.count > 1 else ""
                place = "" if self.line is None else f" ({self.line})"
                return f"Block {self.block} has no skip around its {part}{place}{more}; the other blocks have one."
            case "saturated":
                return (
                    f"Attention reads one key in {count(self.count, 'block')}: its entropy is {number(self.value, 2)} "
                    f"of at most 1, and its logits differ by {number(self.logit_std, 2)}."
                )
            case "groups":
                inside = f"ratio {number(self.share, 2)} inside them"
                return f"Tokens are equal inside {self.count} groups that the mask never joins ({inside})."
            case "massive":
                many, them = (
                    ("One token is", "it") if self.count == 1 else (f"{self.count} tokens are", "them")
                )
                return (
                    f"{many} {number(self.share, 2)} times longer than the others; measured without {them}."
                )
            case "uniform":
                return (
                    f"Attention reads its keys almost alike in {count(self.count, 'block')} (its logits differ by "
                    f"{number(self.value, 2)} of what its input does); that need not harm training."
                )
            case "dead":
                return (
                    f"Attention adds next to nothing in {count(self.count, 'block')} ({number(self.value, 2)} of the "
                    "stream); that need not harm training."
                )


class Mechanism(Value):
    """The fall of the unit residual ratio taken apart: groups that add up, causes, notes, and every sum in numbers."""

    network: Headline
    """The network this is about."""

    definition: str = RATIO
    """What falls."""

    texts: int
    """Texts that the means are over."""

    left_out: int = 0
    """Texts that have no decomposition."""

    unresolved: Unresolved | None = None
    """Why these have none."""

    obstacle: str = ""
    """The part that the split pass has no rule for, by its name."""

    split: bool = False
    """Whether the split pass was used, which carries the residual below the rounding of the states."""

    log_start: Number
    """Natural logarithm of the ratio of what enters the first block, mean over texts."""

    log_end: Number
    """The same of the last block."""

    log_free: Number
    """The same of a stream that adds every branch to an unscaled skip, without norms on the way."""

    collapsed: bool | None
    """Whether the network has collapsed: a ratio of at most 0.1 that has fallen to a third or less. Null: not known."""

    groups: dict[Group, FiniteFloat] = Field(default_factory=dict)
    """Change of ln of the ratio by each group, mean over texts; together they are ``log_end - log_start``."""

    floor: Number = None
    """What rounding may add to or take from each of them."""

    error: Number = None
    """By how much the groups of any text miss the change of its ratio."""

    equal_layers: bool = False
    """Whether all blocks have the same weights, and there are several."""

    causes: tuple[Cause, ...] = ()
    """Why it fell, strongest first, then what was found after these were undone."""

    observations: tuple[Note, ...] = ()
    """What is named beside the causes."""

    sums: tuple[MechanismBlock, ...] = ()
    """Every sum of a skip with a branch, in order of execution."""

    contributions: tuple[BlockShare, ...] = ()
    """What each group does in every block; of a group, the block whose part it is that does it."""

    price: Number = None
    """What ln of the ratio would gain if tokens read themselves alone, sum over attentions; no part of the sum."""

    log_left: Number = None
    """Natural logarithm of the product of all skip shares."""

    @model_validator(mode="after")
    def _groups_add_up(self) -> Self:
        if self.groups and self.log_start is not None and self.log_end is not None:
            off = abs(math.fsum(self.groups.values()) - (self.log_end - self.log_start))
            if off > 1e-6 * (1 + abs(self.log_end - self.log_start)):
                raise ValueError(f"contributions miss the change of the ratio by {off:.1e}")
        return self

    @property
    def fall(self) -> float | None:
        """``ln(first / last)`` of the ratio."""
        return None if self.log_start is None or self.log_end is None else self.log_start - self.log_end

    def share(self, group: Group) -> float | None:
        """The part of the fall that a group makes; none where the ratio does not fall."""
        fall = self.fall
        return None if not fall or fall <= 0 or group not in self.groups else -self.groups[group] / fall

    @property
    def words(self) -> tuple[str, ...]:
        """Whether it collapses, why, and what else is to be said."""
        said = [
            self.conclusion,
            *(one.sentence for one in self.causes),
            *(one.sentence for one in self.observations),
        ]
        return tuple(said)

    @property
    def conclusion(self) -> str:
        """What becomes of the ratio, and the causes by name."""
        name = self.network.name
        if self.log_start is None or self.log_end is None:
            why = {
                "rounding": "its tokens differ by less than rounding",
                "no split rule": f"its tokens differ by less than rounding, and the split pass has no rule for "
                f"{self.obstacle}",
                "overflow": "its numbers leave the range of floats",
                "own dtype": "some code of the model cannot be run in float64",
                None: "no text was measured",
            }[self.unresolved]
            return sentence(f"why the ratio of {name} falls is not known: {why}")
        change = f"from {power(self.log_start, digits=2)} to {power(self.log_end, digits=2)}{self._mean_of}"
        first = [one for one in self.causes if one.round == 1]
        if first:
            each = [f"{one.name} in {one.place} ({percent(one.share)} of the fall)" for one in first]
            return sentence(f"the {RATIO_WORDS} of {name} falls {change} because of {listed(each)}")
        if self.collapsed:
            return sentence(
                f"the {RATIO_WORDS} of {name} falls {change}; no single mechanism makes a quarter of that"
            )
        return sentence(
            f"the {RATIO_WORDS} of {name} goes {change}, which is no collapse, so no cause is named"
        )

    @property
    def _mean_of(self) -> str:
        if self.texts + self.left_out == 1:
            return ""
        if not self.left_out:
            return f" (geometric mean over {self.texts} texts)"
        return f" (geometric mean over {self.texts} of {self.texts + self.left_out} texts)"

    # ---------------------------------------------------------------------------------------------- table and picture

    def tabular(self) -> Tabular:
        """One line per group: what it does, its part of the fall, and where it does most."""
        rows = []
        for group in sorted(self._present, key=lambda one: self.groups[one]):
            share = self.share(group)
            rows.append(
                [
                    group,
                    f"{self.groups[group]:+.3f}",
                    NOTHING if share is None else percent(share),
                    self._most(group),
                ]
            )
        total = math.fsum(self.groups.values())
        rows.append(["together", f"{total:+.3f}", "100%" if (self.fall or 0) > 0 else NOTHING, NOTHING])
        heads = ("mechanism", "change of ln", "of the fall", "most in block")
        return Tabular(
            columns=[Column(head, "name" if head == "mechanism" else "number") for head in heads], rows=rows
        )

    @property
    def _present(self) -> list[Group]:
        """Groups that do something that is seen in the table."""
        return [group for group in GROUPS if abs(self.groups.get(group, 0.0)) >= 5e-4]

    def _most(self, group: Group) -> str:
        """The blocks that do most of it: as few as make half."""
        own = sorted((one for one in self.contributions if one.group == group), key=lambda one: one.value)
        lowest = [one for one in own if one.value < 0]
        half, found, held = sum(one.value for one in lowest) / 2, list[int](), 0.0
        for one in lowest:
            if held > half:
                found.append(one.block)
                held += one.value
        return ranges(found) if found and abs(2 * half) > 5e-4 else NOTHING

    def sums_tabular(self) -> Tabular:
        """One line per sum: what the skip keeps, what the branch writes, and how attention reads."""
        heads: dict[str, Callable[[MechanismBlock], str]] = {
            "block": lambda one: str(one.block),
            "part": lambda one: one.site,
            "skip share": lambda one: number(one.share, 2) if one.has_skip else "no skip",
            "common": lambda one: number(one.common, 2),
            "differences": lambda one: number(one.residual, 2),
            "cosine": lambda one: number(one.cosine, 2),
            "averaging": lambda one: number(one.averaging, 2),
            "entropy": lambda one: number(one.entropy, 2),
            "logit gain": lambda one: number(one.logit_gain, 2),
            "value gain": lambda one: number(one.value_gain, 2),
            "ratio": lambda one: number(one.ratio, 2),
        }
        rows = [[read(one) for read in heads.values()] for one in self.sums]
        columns = [
            Column(head, "name" if head in ("block", "part") else "number", optional=head in OPTIONAL)
            for head in heads
        ]
        return Tabular(columns=columns, rows=rows)

    @property
    def legend(self) -> list[str]:
        """What the columns of the first table are."""
        present = self._present
        said = [
            f"Each number is the change of ln of the {RATIO_WORDS} by one mechanism, from the input to the last block: "
            "-0.7 halves the ratio. They add up to the whole change.",
            *(f"{group}: {MEANINGS[group]}." for group in present),
            "most in block: the fewest blocks that make half of it.",
        ]
        if self.floor is not None and self.floor > 5e-4:
            said.append(f"Rounding may change each number by {number(self.floor, 1)}.")
        return said

    @property
    def sums_legend(self) -> list[str]:
        """What the columns of the second table are."""
        return [
            "skip share: size of what the skip carries over that of its sum with the branch"
            + (
                ""
                if self.log_left is None
                else f"; all of them together leave {_left(self.log_left)} of the input"
            )
            + ".",
            "common, differences: size of the common row, and of the differences, that the branch writes over that of "
            "the stream. cosine: of the two common rows; by chance 0.",
            "averaging: what attention leaves of the differences of its values. entropy: how evenly it reads its keys, "
            "at most 1. logit gain: how far its logits differ over the ratio of what it reads. value gain: differences "
            "of its values over those of what it reads.",
            "ratio: unit residual ratio after the block.",
        ]

    def panel(self) -> Panel:
        """What each group does in every block; groups that do next to nothing are left out."""
        blocks = sorted({one.block for one in self.contributions})
        most = max((abs(value) for value in self.groups.values()), default=0.0)
        drawn = [group for group in GROUPS if abs(self.groups.get(group, 0.0)) > 0.03 * most]
        held = {(one.group, one.block): one.value for one in self.contributions}
        lines = [
            Line(
                name=group,
                points=[
                    Point(
                        block, held.get((group, block), 0.0), f"{group}: {held.get((group, block), 0.0):+.3f}"
                    )
                    for block in blocks
                ],
                color=place,
            )
            for place, group in enumerate(drawn)
        ]
        zero = Line(
            name="", points=[Point(block, 0.0) for block in blocks], style="dotted", color=-1, dots=False
        )
        return Panel(
            title="What makes the ratio fall, block by block",
            lines=[zero, *lines] if lines else [],
            value="change of ln(ratio)",
            across="block",
            scale="linear",
            notes=[f"The {RATIO_WORDS} is {RATIO}.", "Below zero tokens come closer to each other."],
        )


OPTIONAL = ("value gain", "logit gain", "ratio")
"""Columns that a narrow terminal leaves out."""
