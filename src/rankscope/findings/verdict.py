"""The verdict on a run of layers as typed values, and what is said of it.

``rankscope.verdict`` decides: it reads numbers and fills in these values. Nothing here decides anything. Every sentence
is computed from the fields, so that it can be said again from a saved result, and no later code has to read a number or
a layer out of prose.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import Field, computed_field, model_validator

from rankscope.core.config import Config
from rankscope.core.words import number, percent, ranges, sentence
from rankscope.findings.base import Number, Value

RAW = "residual_ratio[frobenius,mean]"
UNIT = "residual_ratio[frobenius,mean,unit]"
COSINE = "cosine[off_diagonal]"
TOKEN = "token_share[largest]"  # noqa: S105 - a share, not a secret
MASSIVE_TOKENS = "massive_tokens[5x_others]"
MASSIVE_SHARE = "token_share[massive]"
OTHERS = "residual_ratio[frobenius,mean,unit,others]"
MASSIVE_CHANNELS = "massive_channels[5x_others,unit]"
MASSIVE_CHANNEL_SHARE = "channel_share[massive,unit]"
OTHER_CHANNELS = "residual_ratio[frobenius,mean,unit,other_channels]"
CHANNEL = "channel_share[largest]"
UNIT_CHANNEL = "channel_share[largest,unit]"
RANK = "effective_rank[entropy]"
CENTERED_RANK = "effective_rank[entropy,centered]"

Name = Literal[
    "ill",
    "collapsing",
    "collapsed",
    "undecided",
    "massive token",
    "massive channel",
    "shared mean",
    "clusters",
    "cone",
    "dead directions",
    "healthy",
    "no numbers",
]
NAMES: tuple[Name, ...] = get_args(Name)

RATIO = "unit residual ratio"
"""What ``UNIT`` is called in sentences: the residual ratio after every token is scaled to length one."""

EQUAL = "0: all tokens point the same way"
"""The scale of that ratio."""

STEPS = 3
"""The pace at the end of a curve of ratios is taken over so many of its last blocks."""

STILL = 0.97
"""A step that keeps more of the ratio than this is not a fall: the random pre-norm network keeps .98 at layer 8."""

SHARED_DIRECTION = ("cone", "shared mean")
"""Verdicts of tokens that share a direction; they may come closer with every layer and collapse later."""


class Thresholds(Config):
    """Where one word ends and the next begins. ``docs/verdict.md`` shows the models they were held against."""

    collapsed: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="tokens are equal when the residual ratio of unit tokens is at most this (mean cosine 0.99); "
        "trained models that work stay well above, a random post-norm network passes it within 16 layers",
    )
    fall: float = Field(
        default=3.0,
        gt=1,
        description="collapse is a fall with depth: the ratio must have been so many times larger in an earlier layer",
    )
    massive_share: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="massive tokens name a layer if they hold at least this share of the energy together",
    )
    massive_length: float = Field(
        default=5.0,
        gt=1,
        description="and are so many times longer than the others (root mean square); less than 5 changes nothing, "
        "since only tokens five times longer are counted",
    )
    massive_channel: float = Field(
        default=0.5,
        gt=0,
        lt=1,
        description="massive channels, one or several together, hold this share of the energy of unit tokens",
    )
    distinct: float = Field(
        default=0.3,
        gt=0,
        lt=1,
        description="tokens are distinct without massive channels if their ratio is then at least this",
    )
    offset_cosine: float = Field(
        default=0.97,
        gt=0,
        lt=1,
        description="from this mean cosine on one shared row outweighs all differences",
    )
    cone_cosine: float = Field(
        default=0.75,
        gt=0,
        lt=1,
        description="from this mean cosine on tokens share a direction; 8 random pre-norm layers stay below",
    )
    low_rank: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="few directions: the effective rank is below this share of what tokens and width allow",
    )
    grouped: float = Field(
        default=0.4,
        gt=0,
        description="few directions are clusters if mean cosine times effective rank exceeds this: k groups have a "
        "cosine of 1/k and rank k, distinct tokens in few directions have a cosine near 0",
    )
    lost_by_centering: float = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="and if centering costs at least this much effective rank: exact groups lose one, a trained "
        "character model whose letters fall into soft groups loses less",
    )
    coverage: float = Field(
        default=0.2, gt=0, le=1, description="share of layers a confounder must hold to name the whole stack"
    )


def rule_words(limits: Thresholds, ratio: str, low: str) -> str:
    """The rule for the word collapse, which scans and ablations share; ``low`` is where tokens count as equal."""
    few = f"{number(limits.collapsed)} or less"
    return (
        f"(1) at the last layer {ratio} is at most 1/{number(limits.fall)} of its value at some earlier layer, and (2) "
        f"at the last layer it is {low}, or it fell by at least {1 - STILL:.0%} in each of the last {STEPS} blocks, so "
        f"fast that a network twice as deep would end at {few} if each further block multiplied it by the same factor "
        "as these did on average."
    )


class Keyed(Value):
    """A value whose fields are found under the keys of its JSON object too: ``stack["starts"]`` is ``stack.starts``."""

    def __getitem__(self, key: str) -> Any:
        if key != "words" and key not in type(self).model_fields:
            raise KeyError(key)
        return getattr(self, key)


class Said(Keyed):
    """A value with words. JSON repeats them for readers that are not Python; they are computed again on loading."""

    @model_validator(mode="before")
    @classmethod
    def _without_words(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if k != "words"} if isinstance(given, dict) else given


class Weight(Value):
    """A parameter or buffer that holds numbers no computation can use, and how many of them."""

    name: str
    """The path in the model, the first one where several share it."""

    nans: int
    """Entries that are NaN."""

    infinities: int
    """Entries that are infinite. Of a parameter only: buffers may hold infinities, as masks do."""

    entries: int
    """All entries."""

    @property
    def words(self) -> str:
        """The finding as a sentence without its end.

        >>> Weight(name="layers.1.weight", nans=3, infinities=0, entries=12).words
        "'layers.1.weight' holds NaN in 3 of 12 numbers"
        """
        found = [("NaN", self.nans)] if self.nans else []
        found += [("infinity", self.infinities)] if self.infinities else []
        return f"{self.name!r} holds " + " and ".join(
            f"{what} in {many} of {self.entries} numbers" for what, many in found
        )


def weights_words(found: Sequence[Weight]) -> str:
    """The first weight that is not finite, and how many more there are."""
    more = f" (and {len(found) - 1} more weights are not finite)" if len(found) > 1 else ""
    return f"the weight {found[0].words}{more}"


class LayerVerdict(Said):
    """What one layer shows, and the numbers that say so."""

    layer: int
    """The layer; 0 is the input of the first block."""

    verdict: Name
    """Its name."""

    untold: tuple[Name, ...] = ()
    """Names that its numbers can neither give nor deny."""

    numbers: dict[str, Number] = Field(default_factory=dict)
    """What the name rests on, by definition; null where a number is not above its floor in most texts."""

    at_most: dict[str, Number] = Field(default_factory=dict)
    """Of the numbers that are null, what they are at most."""

    tokens: Number = None
    """Mean number of tokens of a text."""

    dim: int | None = None
    """Width of a token."""

    ratio: Number = None
    """The residual ratio that was judged: of tokens at unit length, with massive tokens or channels taken out where
    they distort it. Null where it is not above its floor."""

    ratio_at_most: Number = None
    """The same, or what it is at most; null where nothing is known of it."""

    has_zero_token: bool = False
    """Some token is exactly zero and has no direction, while the others are numbers."""

    dtype: str | None = None
    """The arithmetic whose rounding the floors are, if that can be seen."""

    would_decide: str | None = None
    """Of an undecided layer, the dtype whose floors would be low enough."""

    def number(self, definition: str) -> str:
        """A number of this layer as text."""
        return _text(self.numbers.get(definition))

    @property
    def cosine(self) -> float | None:
        """The mean cosine, from the ratio of unit tokens where it is not above its own floor.

        Of n unit tokens the squared length of the mean is ``1 - r^2 = (1 + (n - 1) cosine) / n``.
        """
        value, ratio = self.numbers.get(COSINE), self.numbers.get(UNIT)
        if value is not None or ratio is None or self.tokens is None or self.tokens <= 1:
            return value
        return (self.tokens * (1 - min(ratio, 1.0) ** 2) - 1) / (self.tokens - 1)

    @property
    def most_rank(self) -> float | None:
        """The largest effective rank that this many tokens of this width can have after centering."""
        return None if self.tokens is None or self.dim is None else min(self.tokens - 1, float(self.dim))

    @property
    def massive(self) -> "Massive":
        """Massive tokens: how many, and how much longer than the others."""
        some, share = self.numbers.get(MASSIVE_TOKENS, 1.0), self.massive_share
        return Massive.of_share(some, share, self.tokens)

    @property
    def massive_share(self) -> float | None:
        """What massive tokens hold of the energy; the largest share where nothing else was measured."""
        return self.numbers.get(MASSIVE_SHARE if MASSIVE_SHARE in self.numbers else TOKEN)

    @property
    def arithmetic(self) -> str:
        """The dtype in words."""
        return self.dtype or "this arithmetic"

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def words(self) -> str:
        """What the layer shows, without a capital and a full stop; only numbers above their floor are named."""
        ratio, cosine, allowed = self.number(UNIT), _text(self.cosine), _text(self.most_rank)
        spans = self.numbers.get(CENTERED_RANK)
        match self.verdict:
            case "collapsing" | "collapsed" if self.numbers.get(UNIT) is None:
                return f"all tokens are equal to the precision of {self.arithmetic}"
            case "collapsing" | "collapsed" | "healthy":
                return f"the {RATIO} is {ratio} (mean cosine {cosine})"
            case "undecided":
                most = min(self.at_most.get(UNIT) or 1.0, 1.0)
                advice = (
                    f"; run the model in {self.would_decide} to decide"
                    if self.would_decide is not None
                    else ""
                )
                return f"rounding in {self.arithmetic} hides the {RATIO}, which is between 0 and {_text(most)}{advice}"
            case "massive token":
                return self._massive_token()
            case "massive channel":
                return self._massive_channel()
            case "shared mean":
                kept = "" if spans is None else f"; these still span {_text(spans)} of {allowed} directions"
                return (
                    f"one vector that all tokens share outweighs their differences (mean cosine {cosine}, {RATIO} "
                    f"{ratio}){kept}"
                )
            case "clusters":
                groups = round(self.numbers.get(RANK) or 0.0)
                return (
                    f"tokens form about {groups} groups of nearly equal tokens: effective rank {self.number(RANK)}, "
                    f"without their mean {_text(spans)} of at most {allowed}, mean cosine {cosine}"
                )
            case "cone":
                return f"tokens point nearly the same way (mean cosine {cosine}) but are not equal ({RATIO} {ratio})"
            case "dead directions":
                use = f"use only {_text(spans)} of {allowed} directions (effective rank)"
                unused = "leave most directions unused" if spans is None else use
                return f"tokens are distinct (mean cosine {cosine}) but {unused}"
            case "ill":
                return "not judged: weights of the model are no numbers"
        if self.has_zero_token:
            return "some token is exactly zero and has no direction"
        return "the states hold NaN, infinity or only zeros"

    def _massive_token(self) -> str:
        single = self.massive.is_single
        rank = "" if self.numbers.get(RANK) is None else f" and the effective rank ({self.number(RANK)})"
        if OTHERS not in self.numbers:
            others = "; that of the other tokens alone is not in this table"
        elif self.numbers[OTHERS] is None:
            others = f", that of the other tokens alone at most {_text(self.at_most.get(OTHERS))}"
        else:
            others = f", that of the other tokens alone {self.number(OTHERS)}"
        return (
            f"{self.massive.words} and {'holds' if single else 'hold'} {percent(self.massive_share, 3)} of the sum of "
            f"squares. The residual ratio of tokens as they are ({self.number(RAW)}){rank} mostly "
            f"show{'' if rank else 's'} {'that token' if single else 'those tokens'}. The {RATIO} is "
            f"{self.number(UNIT)}{others}"
        )

    def _massive_channel(self) -> str:
        rest = f"the {RATIO} is {self.number(OTHER_CHANNELS)}"
        several = self.numbers.get(MASSIVE_CHANNELS) or 0.0
        share = percent(self.numbers.get(MASSIVE_CHANNEL_SHARE if several >= 1.5 else UNIT_CHANNEL), 3)
        cosine = _text(self.cosine)
        if several >= 1.5:
            return (
                f"{round(several)} of {self.dim} channels hold {share} of the sum of squares of unit tokens, so the "
                f"mean cosine is {cosine}; without them {rest}"
            )
        return (
            f"one channel holds {share} of the sum of squares of unit tokens, so the mean cosine is {cosine}; without "
            f"it {rest}"
        )


class Massive(Keyed):
    """Tokens that are far longer than the others."""

    tokens: Number
    """How many; null where that is not above its floor."""

    of: Number
    """Of how many."""

    times: Number
    """Length over that of the others, both as root mean squares; null where the others are zero."""

    @classmethod
    def of_share(cls, tokens: float | None, share: float | None, of: float | None) -> "Massive":
        """From the share of the energy that they hold: the energy of a token is its squared length."""
        times = None
        if tokens is not None and share is not None and of is not None and share < 1:
            few = max(tokens, 1.0)
            times = math.sqrt(share / few * (of - few) / (1 - share))
        return cls(tokens=tokens, of=of, times=times)

    @property
    def is_single(self) -> bool:
        """Whether it is one token alone."""
        return round(self.tokens or 1.0) <= 1

    @property
    def words(self) -> str:
        """How many tokens are how much longer than the others."""
        times = (
            f"{'infinitely many' if self.times is None else _text(self.times)} times as long as the others"
        )
        if self.is_single:
            return f"one token is {times}"
        return f"{round(self.tokens or 0.0)} of {round(self.of or 0.0)} tokens are {times}"


class Dip(Keyed):
    """A ratio that falls and comes back."""

    layer: int
    """The lowest layer."""

    value: Number
    """The ratio there; null where it is not above its floor."""

    at_most: Number
    """What it is at most."""

    recovered: int
    """The layer at which the ratio is back."""


class LeadsTo(Keyed):
    """Where the pace of the last layers leads, after as many layers again."""

    layer: int
    """That layer."""

    value: Number
    """The ratio there."""

    log10_value: Number
    """Its logarithm to base ten."""


class Votes(Keyed):
    """What texts say one by one."""

    judged: int
    """How many were judged alone."""

    collapse: int
    """How many of them collapse."""

    without_numbers: int
    """How many end in NaN, infinity or zeros."""


class NotFinite(Keyed):
    """Layers whose states hold NaN or infinity."""

    layers: tuple[int, ...]
    """Which ones."""

    texts: int
    """In how many texts, where that is most."""

    of: int
    """Of how many."""

    @property
    def words(self) -> str:
        """The finding without its end.

        >>> NotFinite(layers=(2, 3), texts=1, of=4).words
        'layers 2-3 hold NaN or infinity in 1 of 4 texts'
        """
        some = "" if self.texts == self.of else f" in {self.texts} of {self.of} texts"
        where = (
            f"layer {self.layers[0]} holds" if len(self.layers) == 1 else f"layers {ranges(self.layers)} hold"
        )
        return f"{where} NaN or infinity{some}"


class Hidden(Keyed):
    """A collapse that the residual ratio of the tokens as they are does not show."""

    ratio: Number
    """That ratio, at the last layer."""

    massive: Massive | None
    """The massive tokens that make it, if there are any."""


class StackVerdict(Said):
    """A name for a run of layers and for each layer of it, and what the curve of its ratios amounts to."""

    stack: str
    """Name of the run of blocks."""

    verdict: Name
    """The name."""

    decides: int | None = None
    """The layer whose numbers name the stack: where collapse starts, the deepest layer of a dip, the lowest ratio of a
    healthy stack, the worst layer of a confounder."""

    starts: int | None = None
    """The first layer of a collapse."""

    rate: Number = None
    """Factor per layer of its ratio."""

    rate_is_bound: bool | None = None
    """The factor is at most that, because no layer of the fall is above its floor."""

    last_resolved: int | None = None
    """The last layer that is above its floor."""

    last_value: Number = None
    """Its ratio."""

    equal_from: int | None = None
    """From here on all tokens are equal to the precision of the arithmetic."""

    pace: Number = None
    """Factor per layer of the last layers, if every one of them falls."""

    leads_to: LeadsTo | None = None
    """Where that pace leads."""

    dip: Dip | None = None
    """The deepest dip of a curve that comes back."""

    hidden: Hidden | None = None
    """Why the ratio of the tokens as they are does not show a collapse, if it does not."""

    dtype: str | None = None
    """The arithmetic whose rounding the floors are, if that can be seen."""

    would_decide: str | None = None
    """Of an undecided stack, the dtype whose floors would be low enough."""

    texts: Votes | None = None
    """What texts say one by one, where there are several."""

    not_finite: NotFinite | None = None
    """Layers whose states hold NaN or infinity, if there are any."""

    layers: tuple[LayerVerdict, ...] = ()
    """The verdict on every layer."""

    @property
    def named(self) -> list[LayerVerdict]:
        """The layers that have the verdict of the stack."""
        return [one for one in self.layers if one.verdict == self.verdict]

    @property
    def deciding(self) -> LayerVerdict | None:
        """The layer whose numbers name the stack."""
        return next((one for one in self.layers if one.layer == self.decides), None)

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def words(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the layers amount to; then what single texts say, where they do not agree."""
        if not self.layers:
            return (f"{_title(self.verdict)}: no layer was measured.",)
        match self.verdict:
            case "collapsing":
                said = self._collapsing()
            case "collapsed":
                said = self._collapsed()
            case "healthy":
                said = self._healthy()
            case "ill":
                return ("Ill: weights of the model are no numbers.",)
            case "no numbers" if self.not_finite is not None:
                return (f"No numbers: {self.not_finite.words}.", *self._end(), *self._texts())
            case _:
                said = self._confounded()
        broken = [] if self.not_finite is None else [sentence(self.not_finite.words)]
        return (*broken, *said, *self._texts())

    def _end(self) -> list[str]:
        """What the last layer shows, where it has numbers."""
        last = self.layers[-1]
        return [] if last.verdict == "no numbers" else [f"At the last layer, {last.words}."]

    def _collapsing(self) -> list[str]:
        last = self.layers[-1]
        before = next(
            (one for one in reversed(self.layers) if one.layer < (self.starts or 0)), self.layers[0]
        )
        said = [f"Collapsing: from layer {self.starts} on tokens become equal."]
        from_to = (
            f"The {judged_name(before, last)} ({EQUAL}) is {_text(before.ratio)} at layer {before.layer}"
        )
        if last.ratio is None:
            known, until = "", ""
            if not self.rate_is_bound and self.last_resolved is not None:
                known = f", {_text(self.last_value)} at layer {self.last_resolved}"
                until = f" up to layer {self.last_resolved}"
            end = (
                f"{known} and at most {_text(last.ratio_at_most)} at the last layer, where rounding hides it"
            )
        else:
            until, end = (
                "",
                f" and {_text(last.ratio)} at the last layer (mean cosine {_text(last.cosine)})",
            )
        pace = f"{_text(self.rate)}{' or less' if self.rate_is_bound else ''} per layer"
        said.append(f"{from_to}{end}: a factor {pace}{until} (geometric mean).")
        if last.ratio is None and self.equal_from is not None:
            said.append(
                f"From layer {self.equal_from} on all tokens are equal to the precision of {last.arithmetic}."
            )
        if last.ratio is not None and self.leads_to is not None:
            said.append(
                "Extrapolated at the pace of its last layers, a network with more layers would reach "
                f"{_text(self.leads_to.value)} at layer {self.leads_to.layer}."
            )
        if self.hidden is not None:
            why = self.hidden.massive
            said.append(
                f"The residual ratio of tokens that are not scaled to length one ({_text(self.hidden.ratio)}) hides "
                f"this, because {'their lengths differ' if why is None else why.words}."
            )
        return said

    def _collapsed(self) -> list[str]:
        """Equal tokens whose fall is not in the states."""
        unseen = "these states do not show where and how fast they became equal."
        last, where = self.layers[-1], _layers(self.named)
        if last.numbers.get(UNIT) is None:
            votes = self.texts
            some = (
                "All tokens"
                if votes is None or votes.collapse == votes.judged
                else f"In {votes.collapse} of {votes.judged} texts all tokens"
            )
            return [f"{some} are equal to the precision of {last.arithmetic} at {where}; {unseen}"]
        said = [
            f"Collapsed: tokens are nearly equal at {where}; {unseen}",
            f"At the last layer the {RATIO} is {last.number(UNIT)} ({EQUAL}).",
        ]
        if len(self.layers) == 1:
            said.append(
                "One state alone cannot tell collapse from one large vector that is added to all tokens; scan more "
                "layers to be sure."
            )
        return said

    def _healthy(self) -> list[str]:
        last, deciding = self.layers[-1], self.deciding
        said = [f"Healthy: at the last layer the {RATIO} is {last.number(UNIT)} ({EQUAL})."]
        if self.dip is not None:
            depth = (
                f"to {_text(self.dip.value)}" if self.dip.value is not None else "below its rounding floor"
            )
            lowest = [one for one in self.layers if one.layer == self.dip.layer]
            said.append(
                f"On the way the {judged_name(*lowest)} falls {depth} at layer {self.dip.layer} and has recovered by "
                f"layer {self.dip.recovered}."
            )
        elif deciding is not None and deciding.layer != last.layer:
            said.append(
                f"The {judged_name(deciding)} is smallest at layer {deciding.layer}: {_text(deciding.ratio)}."
            )
        return said

    def _confounded(self) -> list[str]:
        narrows = self.verdict in SHARED_DIRECTION and self.leads_to is not None
        deciding = self.deciding or self.layers[-1]
        where = f" ({_layers(self.named)})" if self.named else ""
        said = [f"{_title(self.verdict, narrows=narrows)}{where}."]
        said.append(f"At layer {deciding.layer}, {deciding.words}.")
        if narrows and self.leads_to is not None:
            said.append(
                f"The {judged_name(self.layers[-1])} ({EQUAL}) falls in each of the last layers, by a factor "
                f"{_text(self.pace)} on average. "
                f"Extrapolated at this pace, a network with more layers would reach {_text(self.leads_to.value)} at "
                f"layer {self.leads_to.layer}."
            )
        return said

    def _texts(self) -> list[str]:
        """What the texts say one by one, where they do not agree."""
        said, votes = list[str](), self.texts
        if votes is None:
            return said
        if 0 < votes.collapse < votes.judged:
            one = votes.collapse == 1
            said.append(
                f"Of {votes.judged} texts, {votes.collapse} collapse{'s' if one else ''} and the others do not."
            )
        if votes.without_numbers:
            one = votes.without_numbers == 1
            said.append(
                f"Of {votes.judged} texts, {votes.without_numbers} end{'s' if one else ''} in NaN, infinity or zeros."
            )
        return said


class Verdict(Said):
    """The verdict on a model: the most urgent one of its stacks. It equals its name: ``verdict == "healthy"``."""

    verdict: Name
    """The name."""

    stacks: tuple[StackVerdict, ...]
    """The verdict on every run of blocks."""

    thresholds: Thresholds = Thresholds()
    """The limits it was judged by."""

    not_finite: tuple[Weight, ...] = ()
    """Weights that are no numbers, which make the model ill."""

    random_tokens: str | None = None
    """The shape TxN of random tokens, if that is what was read."""

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def words(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the stacks say, each under its name where there are several."""
        if self.not_finite:
            return (
                f"Ill: {weights_words(self.not_finite)}.",
                "Nothing that the model computes with such weights means anything, also where its states look like "
                "numbers.",
            )
        said = list[str]()
        for one in self.stacks:
            first, *rest = one.sentences
            said += [first if len(self.stacks) == 1 else f"{one.stack}: {first}", *rest]
        if self.random_tokens is not None:
            said.append(
                f"This is a verdict on random tokens ({self.random_tokens}): on texts, or on random tokens of another "
                "length, it may be another one."
            )
        return tuple(said)

    def __eq__(self, other: object) -> bool:
        return self.verdict == other if isinstance(other, str) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.verdict)

    def __str__(self) -> str:
        return self.verdict

    def __format__(self, how: str) -> str:
        return format(self.verdict, how)


def _title(verdict: Name, *, narrows: bool = False) -> str:
    if verdict in ("undecided", "no numbers"):
        return verdict.capitalize()
    return f"Not {'collapsed yet' if narrows else 'collapsing'}: {verdict}"


def judged_name(*layers: LayerVerdict) -> str:
    """What the ratio is called that was judged: of all tokens, or without massive ones where they distort it."""
    is_plain = all(one.ratio is None or one.ratio == one.numbers.get(UNIT) for one in layers)
    return RATIO if is_plain else f"{RATIO} without massive tokens and channels"


def _layers(where: Sequence[LayerVerdict]) -> str:
    """``layers 3-7, 9`` of these."""
    return f"layer{'s' if len(where) != 1 else ''} {ranges(one.layer for one in where)}"


def _text(value: float | None) -> str:
    """A number of three digits in a sentence, in which a dash would not be understood, nor a 1 that is none.

    >>> _text(0.98123), _text(0.9999), _text(1.0), _text(None)
    ('0.981', 'nearly 1', '1', 'unknown')
    """
    if value is None or math.isnan(value):
        return "unknown"
    text = number(value)
    return "nearly 1" if text == "1" and value != 1 else text
