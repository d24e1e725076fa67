"""What is known about the paths of a network, as typed values, and what each of them says in words.

A path takes one head, or none, at every attention part; its length is the number of heads on it. A *term* Z is what a
set of paths puts out together. Its *share* is the signed part of the residual of the output Y that it is,
``<J Z, J Y> / |J Y|^2`` with ``J Z`` the tokens of Z minus their mean; shares of all lengths add up to one.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import FiniteFloat, model_validator

from rankscope.core.words import clipped, listed, number, percent, power, ranges
from rankscope.findings.base import Number, Value

Dtype = Literal["float64", "float32"]
Score = Literal["norm", "residual"]
Mlps = Literal["through", "source"]
Mode = Literal["frozen", "isolated", "official"]
"""A path as a term of the decomposition, run again alone, or run again as the code published with the paper does it."""

End = Literal["output", "before the final norm", "after the final norm", "after the last block"]
"""Which state the sum over all paths is."""

LAST_DIGIT: dict[Dtype, float] = {"float64": 2.0**-52, "float32": 2.0**-23}
"""Distance from one to the next number."""

USELESS = 1000.0
"""A bound that allows a path left out to be this many times stronger than the last one of the list says nothing."""

STEPS_SHOWN = 8
"""Heads of a path that a line names; the others are counted."""


LONGEST_SITE = 24
"""Letters of the name of an attention part."""


class Term(Value):
    """What a set of paths puts out together: means over texts. Null where it is not defined, or was not computed."""

    norm: Number
    """Frobenius norm of the term Z."""

    residual: Number
    """Frobenius norm of J Z, the term minus its mean token."""

    cosine: Number
    """Mean cosine between two tokens of the term."""

    share: Number
    """Signed part of the residual of the output; null where the tokens of the output are equal up to rounding."""

    cosine_to_output: Number
    """Cosine of the angle between J Z and J Y."""

    floor: Number
    """What rounding may have left of the norm and of the residual."""

    share_floor: Number
    """What rounding may have left of the share."""

    resolved: bool
    """Whether the residual is above its floor in every text; where it was not computed, whether the share is."""

    @property
    def has_share(self) -> bool:
        """Whether the share is above its floor, so that words may speak of it."""
        return self.share is not None and abs(self.share) > (self.share_floor or 0.0)


class Length(Term):
    """All paths with the same number of heads."""

    length: int
    """Heads on the path."""

    paths: int
    """How many such paths lead from the input to the output. Terms hold those that start at biases too."""

    cancellation_ratio: Number
    """Sum of the norms of all lengths up to this one, over the norm of their sum."""


class LengthAndMlps(Term):
    """All paths with the same numbers of heads and of MLPs."""

    length: int
    """Heads on the path."""

    mlps: int
    """MLPs on the path."""

    paths: int
    """How many there are, from the input."""


class HeadPlace(Value):
    """One head."""

    layer: int
    """Of its block, from 1."""

    site: str
    """Name of its attention part in the block."""

    head: int
    """From 0."""

    @property
    def name(self) -> str:
        """In a few letters, with the attention part where it has another name than usual.

        >>> HeadPlace(layer=3, site="attention", head=0).name, HeadPlace(layer=3, site="cross", head=0).name
        ('L3 h0', 'L3 cross h0')
        """
        return f"L{row_name(self.layer, self.site)} h{self.head}"


class HeadTerm(HeadPlace, Term):
    """All paths through one head."""


class SourceTerm(Term):
    """All paths from one place where paths start."""

    source: str
    """The input, or the kind of bias."""

    layer: int | None
    """Of the block with the bias; null for the input."""


class SiteValue(Value, title="Site"):
    """One attention part, in order of execution."""

    layer: int
    """Of its block, from 1."""

    site: str
    """Its name there."""

    heads: int
    """How many it has."""


class UncrossedValue(Value, title="Uncrossed"):
    """A part that no path crosses: its whole output is a source."""

    layer: int
    """Of its block."""

    site: str
    """Its name there."""

    what: str
    """What stands there."""

    where: str | None
    """File and line of the model's code; null for a part that is known."""


class Identity(Value):
    """Whether the sum over all paths is what the network puts out, and what it is the sum of."""

    relative_error: Number
    """Largest over texts of |sum over lengths - forward pass| / |forward pass|, in the Frobenius norm."""

    allowed: FiniteFloat
    """What rounding explains in this dtype."""

    holds: bool
    """Whether the error is at most that."""

    dtype: Dtype
    """What paths were computed in."""

    paths: int
    """Paths from the input to the output."""

    mean_length: Number
    """Their mean length; null where there is none."""

    lengths: int
    """Different lengths, those without paths included."""

    layers: int
    """Blocks."""

    texts: int
    """Texts, of all seeds together."""

    tokens: FiniteFloat
    """Tokens of a text that are measured, on average."""

    mlps: Mlps
    """Whether paths cross MLPs or begin at what they put out."""

    final_norm: bool
    """Whether the final norm belongs to the sum."""

    block_passes: int
    """Passes through one block that the sums took."""

    block_passes_by_enumeration: int
    """Passes that one path after the other would take."""

    end: End
    """Which state the sum is."""

    after: tuple[str, ...]
    """What the model applies to its tokens after that, where it is not the output."""

    @property
    def name(self) -> str:
        """What the sum over all paths is."""
        return "the output" if self.end == "output" else f"the state {self.end}"

    @property
    def words(self) -> str:
        """How far the sum is from the network."""
        if not self.paths:
            return f"No path leads from the input to {self.name}."
        return (
            f"All paths together add up to {self.name}, with a relative error of at most {self.error} (Frobenius "
            f"norm); rounding alone could cause {number(self.allowed, 1)}."
        )

    @property
    def error(self) -> str:
        """The relative error; an agreement closer than the last digit of the dtype is none that could be known."""
        return number(
            None if self.relative_error is None else max(self.relative_error, LAST_DIGIT[self.dtype]), 1
        )

    @property
    def end_words(self) -> str:
        """A sentence about a sum that is not the output of the model; empty where it is."""
        if self.end == "output":
            return ""
        if self.end == "before the final norm":
            rest = "The final norm was left out"
        elif self.after:
            rest = f"The model then applies {', then '.join(self.after)}, which the copy leaves out"
        else:
            rest = "Whether the model does more to its tokens after that could not be seen"
        return f"{rest}: below, output means {self.name}."


class TopPath(Value):
    """One of the strongest single paths from the input."""

    rank: int
    """Its place in the list."""

    ranked: bool
    """Whether the place is a rank: scores that are rounding have no order."""

    path: str
    """One head, or -, for every attention part."""

    heads: tuple[int | None, ...]
    """The same as numbers."""

    length: int
    """Heads on it."""

    norm: FiniteFloat
    """Frobenius norm of its term Z."""

    residual: FiniteFloat
    """Frobenius norm of J Z."""

    share: Number
    """Signed part of the residual of the output."""

    floor: FiniteFloat
    """What rounding may have left of the residual."""

    share_floor: Number
    """The same for the share."""

    norm_floor: FiniteFloat
    """The same for the norm."""

    resolved: bool
    """Whether the residual is above its floor."""

    @property
    def has_share(self) -> bool:
        """Whether the share is above its floor."""
        return self.share is not None and abs(self.share) > (self.share_floor or 0.0)

    def route(self, sites: Sequence[SiteValue], most: int = STEPS_SHOWN) -> str:
        """The heads on the path in order, those beyond ``most`` counted."""
        passed = [
            HeadPlace(layer=site.layer, site=site.site, head=head).name
            for site, head in zip(sites, self.heads, strict=True)
            if head is not None
        ]
        if not passed:
            return "no head"
        more = len(passed) - most
        return " > ".join([*passed[:most], *([f"{more} more"] if more > 0 else [])])


class SearchValue(Value, title="Search"):
    """How the strongest single paths were found, and how sure their list is."""

    score: Score
    """What they are sorted by."""

    exact: bool
    """Whether no other path can have a larger score than the last one, its floor taken off."""

    gap: Number
    """No other path scores above (1 + gap) times the last one; null if that score may be all rounding, or if no finite
    bound is known."""

    bound: Number
    """No other path scores above this, whatever rounding took away; null if no finite bound is known."""

    tells: bool
    """Whether the gap says anything."""

    ranked: int
    """How many of the list have a rank."""

    expanded: int
    """Prefixes of paths that were carried one step further."""

    seconds: FiniteFloat
    """Time that was allowed."""

    waiting: int
    """Prefixes that might still lead to a better path; 0 if the search has ended."""

    seconds_more: Number
    """About how long one more step for each of these takes; a proof takes at least that."""

    text: int
    """The text that was searched."""

    seed: int
    """The seed that was searched."""

    def sure(self, listed: int) -> str:
        """How sure a list of that many is, as the end of a sentence."""
        if self.exact:
            return f"proven complete: no other path has a larger {self.score} than the last one"
        if self.ranked < listed:
            start = "" if not self.ranked else f" from place {self.ranked + 1} on"
            return f"not proven complete: the {self.score}s{start} are rounding, which has no order"
        if not self.tells or self.gap is None:
            return f"what the search found; paths that it missed may have a larger {self.score}"
        return (
            f"not proven complete: a path that is not on it has at most {number(1 + self.gap)} times the "
            f"{self.score} of the last one"
        )

    @property
    def more(self) -> str:
        """What a proof of the list would cost at least; empty where more time does not help.

        >>> SearchValue.model_construct(seconds=3.0, waiting=1200, seconds_more=6.4).more
        'The search stopped after 3 seconds; a proof that no path is missing takes about 10 seconds or more \
(--seconds).'
        """
        if not self.waiting:
            return ""
        stopped = f"The search stopped after {count_seconds(self.seconds)}"
        if self.seconds_more is None:
            return f"{stopped}; a proof that no path is missing takes more (--seconds)."
        needed = max(math.ceil(self.seconds + self.seconds_more), math.ceil(self.seconds) + 1)
        return f"{stopped}; a proof that no path is missing takes about {count_seconds(needed)} or more (--seconds)."


class Pair(Value):
    """All paths through two heads."""

    first: HeadPlace
    """The earlier one."""

    second: HeadPlace
    """The later one."""

    share: Number
    """Signed part of the residual of the output."""

    share_floor: Number
    """What rounding may have left of the share of a term as large as the output."""

    @property
    def has_share(self) -> bool:
        """Whether the share is above its floor."""
        return self.share is not None and abs(self.share) > (self.share_floor or 0.0)


class Sampled(Value):
    """A geometric mean over single paths of one length, with its interval of 95%."""

    length: int
    """Heads on the paths."""

    mode: Mode
    """In which sense a path is taken."""

    definition: str
    """What is averaged."""

    text: int
    """The text."""

    seed: int
    """The seed."""

    floor: FiniteFloat
    """Values are not taken below this: rounding leaves as much."""

    mean: FiniteFloat
    """The geometric mean."""

    low: FiniteFloat
    """Lower end of the interval."""

    high: FiniteFloat
    """Upper end of it."""

    count: int
    """Paths that were looked at."""

    paths: int
    """Paths of that length."""

    exact: bool
    """Whether these are all of them."""

    resolved: bool
    """Of residual ratios, whether every one is above the floor; of gaps, whether the interval is."""

    @property
    def words(self) -> str:
        """The mean and its interval."""
        return f"{number(self.mean)} ({number(self.low)} to {number(self.high)})"


class HeadScore(HeadPlace):
    """What is lost without all paths through one head, everything else held."""

    score: FiniteFloat
    """Change of the output, relative to it."""


class PruningCurveValue(Value, title="PruningCurve"):
    """What is lost when heads are removed in one order and the network is run again."""

    method: Literal["paths", "magnitude", "random"]
    """By what the order was made."""

    removed: tuple[int, ...]
    """How many heads are removed."""

    lost: tuple[FiniteFloat, ...]
    """The change of the output, relative to it; of random orders the mean."""

    spread: tuple[FiniteFloat, ...]
    """Standard deviation over random orders."""

    area: FiniteFloat
    """Mean over all numbers of removed heads: less is a better order."""

    @model_validator(mode="after")
    def _is_one_curve(self) -> Self:
        if not len(self.removed) == len(self.lost) == len(self.spread):
            raise ValueError("removed, lost and spread need one entry per point")
        return self


class PruningValue(Value, title="Pruning"):
    """Heads ranked by what the output loses without them, and what happens when they go."""

    of: str
    """What is lost."""

    scores: tuple[HeadScore, ...]
    """The least first."""

    curves: tuple[PruningCurveValue, ...]
    """One per order."""

    text: int
    """The text."""

    seed: int
    """The seed."""


class Largest(Value):
    """The source with the largest share."""

    source: str
    """The kind of bias."""

    layer: int | None
    """Its block."""

    share: FiniteFloat
    """Its share."""


class Elsewhere(Value):
    """What paths carry that do not start at the input."""

    input: FiniteFloat
    """Share of those that do."""

    share: FiniteFloat
    """Share of all others together."""

    floor: FiniteFloat
    """What rounding may have left of it."""

    largest: Largest
    """The largest single share of either sign."""

    is_most: bool
    """Whether that is part of the sum and more than half of it: shares have signs, and others may cancel it."""

    def words(self, others: str) -> str:
        """The three shares in a sentence; what is rounding is called that. ``others``: all other sources, in words."""
        one, cancels = self.largest, abs(self.share) <= self.floor
        rest = (
            f"those that start at {others} cancel each other up to rounding"
            if cancels
            else f"those that start at {others} together {percent(self.share)}"
        )
        against = (
            ", as positive and negative ones among them partly cancel"
            if not cancels and abs(one.share) > abs(self.share)
            else ""
        )
        sign = "" if one.share > 0 else " of either sign"
        return (
            f"Paths that start at the input carry {percent(self.input, 4)} of the output's residual, {rest}{against}. "
            f"Of {others}, grouped by kind and block, the {one.source} of block {one.layer} has the largest "
            f"share{sign}: {percent(one.share)}."
        )


def elsewhere(sources: Sequence[SourceTerm]) -> Elsewhere | None:
    """What starts elsewhere; None where shares are not defined, or where no single one is above its floor."""
    own = next((one.share for one in sources if one.source == "input"), None)
    biases = [one for one in sources if one.source != "input" and one.share is not None]
    largest = max(
        (one for one in biases if one.has_share), key=lambda one: abs(one.share or 0.0), default=None
    )
    if own is None or largest is None or largest.share is None:
        return None
    share = sum(one.share for one in biases if one.share is not None)
    return Elsewhere(
        input=own,
        share=share,
        floor=sum(one.share_floor or 0.0 for one in biases),
        largest=Largest(source=largest.source, layer=largest.layer, share=largest.share),
        is_most=share != 0 and 0.5 < largest.share / share <= 1,
    )


def uncrossed_words(parts: Sequence[UncrossedValue]) -> str:
    """Where paths begin because none crosses, each place once with the layers it stands in; empty if there is none.

    >>> part = {"site": "ssm", "what": "a running sum", "where": "zoo.py:31, `x.cumsum(1)`"}
    >>> uncrossed_words([UncrossedValue(layer=1, **part), UncrossedValue(layer=2, **part)])
    'No path leads through a running sum at zoo.py:31, `x.cumsum(1)` (blocks 1-2); paths begin at what it puts out.'
    """
    places = dict[str, list[int]]()
    for part in parts:
        where = f"the site {part.site}" if part.where is None else part.where
        places.setdefault(f"{part.what} at {where}", []).append(part.layer)
    if not places:
        return ""
    named = [
        f"{place} (block{'s' * (len(set(layers)) > 1)} {ranges(layers)})" for place, layers in places.items()
    ]
    puts = "it puts" if len(named) == 1 else "they put"
    return f"No path leads through {', nor '.join(named)}; paths begin at what {puts} out."


def heads_words(heads: Sequence[HeadTerm]) -> str:
    """The heads with the largest shares; empty where no share is above its floor."""
    known = [one for one in heads if one.has_share]
    if not known:
        return ""
    if len(heads) == 1:
        return f"All paths through the only head together carry {percent(known[0].share)} of the output's residual."
    largest = sorted(known, key=lambda one: -abs(one.share or 0.0))[:3]
    sign = "" if all((one.share or 0.0) >= 0 for one in largest) else " (of either sign)"
    named = listed([f"{one.name} ({percent(one.share)})" for one in largest])
    if len(largest) == 1:
        return f"The only head whose paths carry a share above rounding is {named}."
    return (
        f"If all paths through a head are added up, the heads with the largest shares{sign} are {named}. A path "
        "through several heads counts for each of them."
    )


def row_name(layer: int, site: str) -> str:
    """A layer, with the attention part where it has another name than usual."""
    return str(layer) if site == "attention" else f"{layer} {clipped(site, LONGEST_SITE)}"


def part_of(paths: int, total: int) -> str:
    """Which part of all paths these are, in percent; counts of deep networks exceed any float.

    >>> part_of(3, 12), part_of(18000, 61**300)
    ('25%', '4.5e-530%')
    """
    if not paths or paths / total:
        return percent(paths / total)
    return f"{power(math.log(100) + math.log(paths) - math.log(total), digits=2)}%"


def count_seconds(seconds: float) -> str:
    """A time in words.

    >>> count_seconds(3.0), count_seconds(0.5), count_seconds(1)
    ('3 seconds', '0.5 seconds', '1 second')
    """
    return f"{number(float(seconds))} second{'s' * (seconds != 1)}"
