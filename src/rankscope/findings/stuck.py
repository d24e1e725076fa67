"""``rankscope stuck``: which trivial output has the loss at which training stands still."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from textwrap import wrap
from typing import Any, ClassVar, Self

from pydantic import FiniteFloat, field_validator, model_validator

from rankscope.charts import Bar, Bars, Chart
from rankscope.core.words import clipped, count, listed, number, printable
from rankscope.document import (
    Beside,
    Block,
    Column,
    Document,
    Figure,
    Lines,
    Notes,
    Prose,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
)
from rankscope.errors import ConfigError, Option, options
from rankscope.findings.asked import CommandConfig, option
from rankscope.findings.base import Finding, Quoted, Value
from rankscope.findings.trivial import CONSTANT, GIVEN, RARE, Candidate, Sizes, candidates

NEAR = 0.02
"""A value that is no further away is named where none fits."""

ROUNDING = 1e-6
"""Relative error of a loss that was computed in float32 and averaged; digits beyond it say nothing."""

LEAST_DECIMALS = {GIVEN: 2, CONSTANT: 3}
"""Decimals from which on a fit is an answer, by rank; sizes that are searched need ``SEARCHED_DECIMALS``."""

SEARCHED_DECIMALS = 4

COARSE = 0.02
"""A fit is an answer only if the digits of the loss say more than this part of it: 0.06 says little about 0.0625."""

AROUND = 1.0
"""Values up to this far from the loss say how densely values lie there."""

MOST_NEAR, MOST_ROWS, MOST_BARS = 3, 20, 8
"""Values named as near, rows of the table, bars of the picture."""

TERMINAL = 80
"""Letters of a line in a terminal."""

MOST_READINGS = 8
"""Fits that are shown with all that is said of them; the JSON has all."""

LARGEST = 10**12
"""More of anything than a loss was ever taken over."""

READY = ("characters", "bytes", "words")
"""Ways to cut texts that need no file."""

NEVER_NEGATIVE = (
    *("classes", "batch", "vocab", "margin", "negatives", "width", "smoothing", "gamma", "scale", "beta"),
    *("frames", "labels", "prior", "texts"),
)
"""Options of losses that cannot be negative."""


class StuckConfig(CommandConfig):
    """Say what a loss is that stands still: the value that some trivial output has.

    The loss is compared with a table of values that losses have when the network says nothing about its input: the
    same probability for every class, one point for all embeddings, the mean of the targets. Sizes that are not given
    are looked for among usual ones. Write the loss with all the digits that you have: few digits fit by chance.
    """

    group = "Loss"
    loss: str = option("", "The loss as it was printed, such as 8.3178.", positional=True, signed=True)
    classes: int | None = option(None, "Classes, prototypes or codes.", ge=2, le=LARGEST)
    batch: int | None = option(
        None, "Batch size of a contrastive loss, per device or gathered.", ge=2, le=LARGEST
    )
    vocab: int | None = option(None, "Entries of the vocabulary.", ge=2, le=LARGEST)
    margin: float | None = option(None, "Margin of the loss.", gt=0, allow_inf_nan=False)
    negatives: int | None = option(None, "Negatives in a queue.", ge=1, le=LARGEST)
    width: int | None = option(None, "Entries of an embedding, or pixels of an image.", ge=1, le=LARGEST)
    prior: tuple[float, ...] = option((), "Shares of the classes; one share p means p and 1 - p.")
    smoothing: float | None = option(None, "Label smoothing.", gt=0, lt=1)
    gamma: float | None = option(None, "Exponent of focal loss.", ge=0, allow_inf_nan=False, shown="2")
    scale: float | None = option(None, "Scale of ArcFace or CosFace.", gt=0, allow_inf_nan=False, shown="64")
    beta: float | None = option(
        None, "Strength of a preference loss.", gt=0, allow_inf_nan=False, shown="0.1"
    )
    frames: int | None = option(None, "Frames that CTC reads.", ge=1, le=LARGEST)
    labels: int | None = option(None, "Labels of a CTC target.", ge=1, le=LARGEST)
    variance: float | None = option(None, "Variance of the targets.", gt=0, allow_inf_nan=False)
    targets: str | None = option(None, "File with one target number per line: variance, median, Huber.")
    texts: str | None = option(
        None,
        "File with one text per line, .jsonl or .parquet, each also .gz or .zst; - for stdin: unigram entropy.",
    )
    tokenizer: str = option(
        "characters", "How texts are cut: characters, bytes, words (at spaces), or a tokenizer.json."
    )

    @field_validator("loss", mode="before")
    @classmethod
    def _as_text(cls, loss: Any) -> Any:
        """A number has the digits that Python writes; of a tensor with one entry, those of its number."""
        if isinstance(loss, bool):
            return loss
        if hasattr(loss, "item") and callable(loss.item):
            loss = loss.item()
        return repr(loss) if isinstance(loss, float | int) else loss

    @field_validator("loss")
    @classmethod
    def _is_a_number(cls, loss: str) -> str:
        if loss.strip():  # the study says that none was given
            read_loss(loss)
        return loss.strip()

    @field_validator("prior", mode="before")
    @classmethod
    def _as_numbers(cls, given: Any) -> Any:
        if isinstance(given, str):
            given = tuple(one.strip() for one in given.split(","))
        return (given,) if isinstance(given, float | int) else given

    @field_validator("prior")
    @classmethod
    def _shares_add_up(cls, prior: tuple[float, ...]) -> tuple[float, ...]:
        if not all(0 < one < 1 for one in prior):  # NaN is refused too
            raise ValueError("every share must lie between 0 and 1")
        whole = (prior[0], 1 - prior[0]) if len(prior) == 1 else prior
        if whole and abs(math.fsum(whole) - 1) > 0.01:
            raise ValueError(f"the shares add up to {number(math.fsum(whole))}, expected 1")
        total = math.fsum(whole)
        return tuple(one / total for one in whole)

    @model_validator(mode="after")
    def _options_agree(self) -> Self:
        given = [name for name in NEVER_NEGATIVE if name in self.explicit]
        if self.loss and given and read_loss(self.loss).number < 0:
            raise ConfigError(
                f"the loss {self.loss} is negative, but no loss with ",
                *options(given),
                " can be; check its sign, or leave the option out",
            )
        if "tokenizer" in self.explicit and self.texts is None:
            raise ConfigError(
                Option("tokenizer", self.tokenizer),
                " has no effect: it says how texts are cut; leave it out, or give ",
                Option("texts"),
            )
        if self.targets is not None and self.variance is not None:
            raise ConfigError(
                Option("variance", self.variance), " and ", Option("targets"), ": give one of them, not both"
            )
        if self.frames is not None and self.labels is not None and self.frames < self.labels:
            raise ConfigError(
                Option("frames", self.frames),
                " is less than ",
                Option("labels", self.labels),
                ": CTC needs at least one frame per label",
            )
        self._read_by_some()
        return self

    def _read_by_some(self) -> None:
        """Raise if an option was given that is read only beside another one, which is missing."""
        beside = {"smoothing": ("classes",), "scale": ("classes",), "frames": ("labels", "classes")}
        for name, others in {**beside, "labels": ("frames", "classes")}.items():
            missing = [one for one in others if getattr(self, one) is None]
            if name in self.explicit and missing:
                raise ConfigError(Option(name), " has no effect without ", *options(missing), "; give it too")

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (self.targets, self.texts, self.tokenizer if self.tokenizer not in READY else None)

    @property
    def sizes(self) -> Sizes:
        """What the options alone say of the loss."""
        names = ("classes", "batch", "vocab", "margin", "negatives", "width", "smoothing", "gamma", "scale")
        return Sizes(
            **{name: getattr(self, name) for name in (*names, "beta", "frames", "labels", "variance")},
            prior=self.prior or None,
        )


class StuckLoss(Value, title="Loss"):
    """The loss as it was written."""

    text: str
    """As it was given."""

    number: FiniteFloat
    """The same as a number."""

    decimals: int
    """Digits after the point."""

    @property
    def unit(self) -> float:
        """One unit of the last digit."""
        return 10.0**-self.decimals

    @property
    def rounding(self) -> float:
        """What float32 leaves unknown of the number."""
        return ROUNDING * max(1.0, abs(self.number))

    def reach(self, rank: int) -> float:
        """How far a value may be away to equal the loss.

        Half a unit of the last digit is what writing it down does. A constant or a given size may be off by one in the
        last of four digits or more: what stands still still trembles, and 0.6932 is reported for ln 2 = 0.693147.
        """
        trembles = rank <= CONSTANT and self.decimals >= SEARCHED_DECIMALS
        return max(self.unit if trembles else self.unit / 2, self.rounding) * (1 + 1e-9)


def read_loss(text: str) -> StuckLoss:
    """The number and its digits; what is no number is an error that says what was found.

    >>> read_loss("8.3178").decimals, read_loss("-1").decimals, read_loss("2.5e-3").decimals
    (4, 0, 4)
    """
    written = text.strip()
    if not written:
        raise ConfigError("no loss was given; write it with its digits, such as: rankscope stuck 8.3178")
    try:
        exact = Decimal(written)
    except InvalidOperation:
        hint = "; write the decimal point as a point" if "," in written else ""
        raise ConfigError(
            f"the loss {written!r} is not a number; expected one such as 8.3178{hint}"
        ) from None
    if not exact.is_finite():
        raise ConfigError(
            f"the loss is {written}, which is no value of a loss: a step has divided by zero or overflowed; look "
            "for the first step that gives it"
        )
    value, exponent = float(exact), exact.as_tuple().exponent
    if not math.isfinite(value):
        raise ConfigError(
            f"the loss {written} is larger than any number of a computer; expected one such as 8.3178"
        )
    return StuckLoss(text=written, number=value + 0.0, decimals=max(0, -int(exponent)))


class Fit(Value, title="TrivialFit"):
    """A trivial value, and how far the loss is from it."""

    name: str
    """The row of the table of trivial values."""

    loss: Quoted
    """The losses that have this value."""

    formula: str
    """The value as a formula with numbers, such as ln 4096."""

    value: FiniteFloat
    """The value."""

    above: FiniteFloat
    """The loss minus the value."""

    sizes: dict[str, float]
    """The sizes in the formula, by the names of the options."""

    given: bool
    """Whether the sizes are those of the options; false for constants and for sizes that were searched."""

    chance: FiniteFloat
    """Share of arbitrary losses near this one, with as many digits, that would equal such a value or a likelier one."""

    outputs: Quoted
    """What the network then outputs."""

    why: Quoted
    """How the value comes about."""

    look: Quoted
    """What to look at."""

    source: Quoted | None = None
    """Where it is written; null where ``why`` is the whole derivation."""

    @property
    def equation(self) -> str:
        """Formula and number, written once where they are the same."""
        shown = number(self.value, 6)
        return self.formula if self.formula == shown else f"{self.formula} = {shown}"

    @property
    def nearness(self) -> str:
        """How far the loss is away: 0.0145 above."""
        if self.above == 0:
            return "equal"
        size = abs(self.above)
        shown = f"{size:.4f}" if size >= 5e-5 else number(size, 2)
        return f"{shown} {'above' if self.above > 0 else 'below'}"


class StuckFinding(Finding):
    """A loss that stands still, and the trivial values that equal it."""

    command: ClassVar[str] = "stuck"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = {
        "formula": "The value as a formula with numbers.",
        "above": "The loss minus the value.",
        "fits": "Whether the value equals the loss to its digits.",
        "given": "Whether its sizes are those of the options.",
    }

    loss: StuckLoss
    """The loss."""

    fits: tuple[Fit, ...]
    """Values that equal it to the digits given; given sizes first, then the most common ones."""

    perhaps: tuple[Fit, ...] = ()
    """Values that equal it too, but by its few digits chance explains that as well."""

    near: tuple[Fit, ...] = ()
    """Where nothing fits: values within 0.02, the nearest first."""

    nearest: tuple[Fit, ...]
    """The values around the loss, the nearest first, whether they fit or not."""

    searched: int
    """How many values the loss was compared with."""

    by_chance: FiniteFloat
    """Share of arbitrary losses near this one, with as many digits, that would get an answer."""

    unigram_tokens: int | None = None
    """Tokens that the unigram entropy was counted over, where texts were given."""

    tokenizer: str | None = None
    """How the texts were cut into tokens."""

    targets: int | None = None
    """Target numbers that were read."""

    @property
    def words(self) -> tuple[str, ...]:
        """What the loss is, what the network then outputs, why, and what to look at; or that no value fits."""
        if self.fits:
            first = self.fits[0]
            what = "a trivial value" if first.formula == self.loss.text else first.equation
            return (f"{self.loss.text} is {what}: {first.name}.", *_details(first), *self._also(self.fits))
        none = f"No trivial value fits {self.loss.text}"
        if self.perhaps:
            first = self.perhaps[0]
            few = "no decimals" if not self.loss.decimals else count(self.loss.decimals, "decimal")
            what = first.name if first.formula == self.loss.text else first.formula
            return (
                f"{none} for certain; it may be {what}.",
                f"It equals {first.equation} to its digits ({first.name}), but with {few} {_odds(first.chance)} would "
                f"equal some value that is as likely: give more digits{_missing(first)}.",
                *_details(first),
            )
        if self.near:
            nearest, *more = (f"near {one.formula}: {one.nearness}" for one in self.near)
            return (f"{none}; {nearest}.", *(f"Also {one}." for one in more))
        closest = self.nearest[0]
        return (
            f"{none}.",
            f"The nearest of {self.searched} values is {closest.equation} ({closest.nearness}). The loss says nothing "
            "about what the network outputs.",
        )

    @staticmethod
    def _also(fits: "Sequence[Fit]") -> tuple[str, ...]:
        """The other readings of a fit by their names."""
        others = [one for one in dict.fromkeys(fit.name for fit in fits) if one != fits[0].name]
        same = "The same value belongs to" if _is_one_value(fits) else "To these digits it may also be"
        return (f"{same}: {'; '.join(others)}.",) if others else ()

    @property
    def notes(self) -> tuple[str, ...]:
        """How it was compared."""
        many = f"Compared with {count(self.searched, 'value')}"
        within = [number(self.loss.reach(rank), 2) for rank in (GIVEN, CONSTANT + 1)]
        if self.loss.decimals < LEAST_DECIMALS[GIVEN]:
            said = [
                f"{many}, which must be exactly {self.loss.text}, because the loss has fewer than two decimals."
            ]
        else:
            said = [
                f"{many}. Equal means: within {within[0]} of a constant or of a given size, within {within[1]} of a "
                "size that was searched."
            ]
        if self.by_chance:
            said.append(
                f"With so many digits, {_odds(self.by_chance)} near this one would get an answer by chance."
            )
        if self.unigram_tokens is not None:
            said.append(
                f"The unigram entropy counts {count(self.unigram_tokens, 'token')}; texts were cut into "
                f"{self.tokenizer}."
            )
        if self.targets is not None:
            said.append(f"Variance, median and Huber loss are those of {count(self.targets, 'target')}.")
        return tuple(said)

    def document(self) -> Document:
        """The answer, other readings of it, and the values around the loss. Lines of a terminal have 80 letters."""
        tone: Tone = "look" if self.fits else "unknown"
        title = "A trivial value" if self.fits else "No trivial value fits"
        others = (self.fits or self.perhaps)[1:MOST_READINGS]
        first, *rest = self.words
        shown = [f"{one.formula}: {one.name} ({one.loss})" for one in others]
        return Document(
            title=f"What a loss of {self.loss.text} is",
            command=self.command,
            blocks=some(
                Verdict(title, [first], tone, only="text"),
                Beside(_wrapped(rest), [], only="text"),
                Verdict(title, self.words, tone, only="html"),
                Section("Other readings", _wrapped(shown), only="text") if others else None,
                Section("Other readings", [_readings(others)], only="html") if others else None,
                Section("Values around it", [_around(_distinct(self.nearest)[:MOST_BARS])]),
                Section("Picture", [Figure(one) for one in self.chart().pictures], only="html"),
                Section("What is said of the other readings", _said(others), only="html") if others else None,
                Beside(_wrapped(self.notes), [], only="text"),
                Notes(self.notes, only="html"),
            ),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """How far the values around the loss are away from it."""
        own = sorted(_distinct(self.nearest)[:MOST_BARS], key=lambda one: one.value)
        bars = [
            Bar(
                one.formula,
                one.value,
                f"{number(one.value, 6)} ({_turned(one)})",
                tip=one.name,
                faint=one not in self.fits,
            )
            for one in own
        ]
        spot = Bar("your loss", self.loss.number, self.loss.text, tip="the loss that was given")
        place = next((at for at, one in enumerate(own) if one.value >= self.loss.number), len(own))
        return Chart(
            [
                Bars(
                    title=f"Trivial values around {self.loss.text}", bars=[*bars[:place], spot, *bars[place:]]
                )
            ],
            title=self.picture_title,
        )


def _details(fit: Fit) -> tuple[str, ...]:
    return (f"Loss: {fit.loss}.", f"Output: {fit.outputs}", f"Why: {fit.why}", f"Look: {fit.look}")


def _missing(fit: Fit) -> str:
    """The options that would decide a fit."""
    names = list(fit.sizes) if not fit.given else []
    return f", or the size that you have ({listed(names)})" if names else ""


def _wrapped(sentences: Sequence[str]) -> list[Block]:
    """Sentences in lines that fit a terminal."""
    lines = [line for one in sentences for line in wrap(printable(one), TERMINAL, subsequent_indent="  ")]
    return [Lines(lines)] if lines else []


def _turned(fit: Fit) -> str:
    """How far the value is from the loss, seen from the loss."""
    if fit.above == 0:
        return "equal"
    return (
        fit.nearness.replace("above", "lower") if fit.above > 0 else fit.nearness.replace("below", "higher")
    )


def _is_one_value(fits: Sequence[Fit]) -> bool:
    return max(one.value for one in fits) - min(one.value for one in fits) <= ROUNDING


def _odds(share: float) -> str:
    """A share of all losses as one in so many.

    >>> _odds(0.0021), _odds(0.3), _odds(0.0), _odds(1.7)
    ('1 in 476 arbitrary losses', '30% of arbitrary losses', 'no arbitrary loss', 'every arbitrary loss')
    """
    if share >= 1:
        return "every arbitrary loss"
    if share >= 0.1:
        return f"{100 * share:.0f}% of arbitrary losses"
    return f"1 in {round(1 / share):,} arbitrary losses" if share > 0 else "no arbitrary loss"


def _distinct(fits: Iterable[Fit]) -> list[Fit]:
    """The first of those with one value."""
    return list({round(one.value, 9): one for one in reversed(list(fits))}.values())[::-1]


def _readings(fits: Sequence[Fit]) -> Tabular:
    return Tabular(
        columns=[Column("value", "words"), Column("what", "words"), Column("loss", "words")],
        rows=[[one.formula, one.name, one.loss] for one in fits],
    )


def _around(fits: Sequence[Fit]) -> Tabular:
    return Tabular(
        columns=[
            Column("value", "words"),
            Column("number"),
            Column("the loss is", "words"),
            Column("what", "words"),
        ],
        rows=[
            [clipped(one.formula, 26), number(one.value, 6), one.nearness, clipped(one.name, 30)]
            for one in fits
        ],
    )


def _said(fits: Sequence[Fit]) -> list[Block]:
    said: list[Block] = []
    for one in fits:
        source = [f"Source: {one.source}."] if one.source else []
        lines = [f"Output: {one.outputs}", f"Why: {one.why}", f"Look: {one.look}", *source]
        said.append(Prose(lines, title=f"{one.equation}: {one.name}"))
    return said


# The search.


def trivial(loss: str | float, sizes: Sizes | None = None) -> tuple[Fit, ...]:
    """The trivial values that a loss equals to its digits, the likeliest first; empty where none fits for certain.

    ``loss`` is best given as the text that was printed, because its digits count.

    >>> [fit.formula for fit in trivial("8.3178", Sizes(classes=4096))][:1]
    ['ln 4096']
    >>> trivial("8.1234")
    ()
    """
    return search(read_loss(loss if isinstance(loss, str) else repr(loss)), sizes or Sizes()).fits


def fit_of(one: Candidate, loss: float) -> Fit:
    """A trivial value as the fit of a loss that is known to stand at it."""
    return _Fits(read_loss(repr(loss)), (one,))(one)


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """What a search for trivial values found, by the fields of ``StuckFinding``."""

    fits: tuple[Fit, ...]
    perhaps: tuple[Fit, ...]
    near: tuple[Fit, ...]
    nearest: tuple[Fit, ...]
    searched: int
    by_chance: float


def search(loss: StuckLoss, sizes: Sizes) -> Search:
    """Every value of the table against a loss."""
    every = candidates(sizes)
    equal = [one for one in every if abs(one.value - loss.number) <= loss.reach(one.rank)]
    certain = [one for one in equal if _is_certain(one, loss)]
    others = [
        one
        for one in equal
        if one not in certain and (loss.decimals >= LEAST_DECIMALS[GIVEN] or _is_exact(one, loss))
    ]
    by_distance = sorted(every, key=lambda one: (abs(one.value - loss.number), one.rank, one.place))
    near = [] if certain or others else [one for one in by_distance if abs(one.value - loss.number) <= NEAR]
    fit = _Fits(loss, every)
    return Search(
        fits=tuple(map(fit, certain)),
        perhaps=tuple(map(fit, others)),
        near=tuple(_distinct(map(fit, near))[:MOST_NEAR]),
        nearest=tuple(map(fit, by_distance[:MOST_ROWS])),
        searched=len({round(one.value, 9) for one in every}),
        by_chance=fit.answered,
    )


def _is_certain(one: Candidate, loss: StuckLoss) -> bool:
    """Whether a fit is an answer: enough digits for its rank, or a value that is exactly the short number given.

    "-1" or "50257" are how exact values are printed; ln 2 would not be printed as 0.7 by a program. A value that is
    seldom met, such as a margin that was not given, needs its digits all the same.
    """
    enough = loss.decimals >= LEAST_DECIMALS.get(one.rank, SEARCHED_DECIMALS)
    fine = loss.reach(one.rank) <= COARSE * abs(one.value) or _is_exact(one, loss)
    return (enough and fine) or (one.rank < RARE and _is_exact(one, loss))


def _is_exact(one: Candidate, loss: StuckLoss) -> bool:
    return abs(one.value - loss.number) <= 1e-9 * max(1.0, abs(one.value))


class _Fits:
    """Makes fits of candidates, with the chance of each."""

    def __init__(self, loss: StuckLoss, every: Sequence[Candidate]) -> None:
        self.loss, self.every = loss, every
        self.chances = {
            rank: self._chance([one for one in every if one.rank <= rank])
            for rank in {one.rank for one in every}
        }

    def __call__(self, one: Candidate) -> Fit:
        row = one.row
        return Fit(
            name=row.name,
            loss=row.loss,
            formula=one.formula,
            value=one.value,
            above=self.loss.number - one.value,
            sizes={name: float(size) for name, size in one.sizes if not isinstance(size, tuple)},
            given=one.rank == GIVEN,
            chance=self.chances[one.rank],
            outputs=row.outputs,
            why=row.why,
            look=row.look,
            source=row.source or None,
        )

    @property
    def answered(self) -> float:
        """The share of arbitrary losses nearby, with as many digits, that would get an answer."""
        enough = [
            one for one in self.every if self.loss.decimals >= LEAST_DECIMALS.get(one.rank, SEARCHED_DECIMALS)
        ]
        return self._chance(enough)

    def _chance(self, others: Sequence[Candidate]) -> float:
        """Share of the losses within ``AROUND`` of this one that equal some of these values.

        Every value claims the stretch of losses that would equal it; of values that coincide, the widest.
        """
        widest = dict[float, float]()
        for one in others:
            if abs(one.value - self.loss.number) <= AROUND:
                key = round(one.value, 9)
                widest[key] = max(widest.get(key, 0.0), 2 * self.loss.reach(one.rank))
        return math.fsum(widest.values()) / (2 * AROUND)
