"""Remedies as recipes: what to write, what it does to the tokens, what it costs, and whether it trains.

A remedy is a change to this model. Its number is the unit residual ratio after the last block: predicted from one pass
(linear response), measured by running the changed tree, or both. Remedies that leave the ratio at 0.1 or below, that
give back less than a quarter of the fall, or that are stuck after three steps of training are kept apart with the
reason. The rest is ranked by the share of the input that is left, in powers of ten: inside one power nothing that was
tried predicts how well a model trains, so these are ties. Entropy and the gradients of queries and keys are shown and
never used to rank, because they did not predict training.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Self

from pydantic import FiniteFloat, model_serializer, model_validator

from rankscope.core.words import NOTHING, count, listed, number, percent
from rankscope.document import Block, Cell, Column, Lines, Section, Tabular
from rankscope.findings.base import Number, Quoted, Value
from rankscope.findings.suggest import RANKED_BY, UNIT_RATIO
from rankscope.findings.tree import SourceLine

LEAST_RATIO = 0.1
"""A remedy that leaves the unit residual ratio of the last layer here or below is none; a start is stuck there."""

LEAST_RECOVERY = 0.25
"""Share of the fall that a remedy has to give back: the same convention that makes a share of the fall a cause."""

DOUBT = 4.0
"""What is below that limit by no more than this factor after three steps may still train."""

KEPT = 0.5
"""Share of that ratio which is left after ten steps where the fall has ended; a model that is stuck falls on."""

FEW_STEPS = 3
"""Steps of the probe."""

FALL = 3.0
"""A fall by this factor is one worth telling, as in the verdict of scan."""

SHOWN_REMEDIES = 2
"""Remedies that a terminal shows with what to write: with all that is said it is to fit on one screen."""

TERMINAL = 80
"""Columns of a terminal."""

Kind = Literal[
    "placement",
    "branch-scale",
    "skip-scale",
    "skip",
    "deepnorm",
    "layerscale",
    "redraw",
    "bias",
    "gain",
    "temperature",
    "qk-norm",
    "mask",
    "several",
]

KINDS: dict[Kind, str] = {
    "placement": "each norm reads the stream before its sublayer, not the sum after it",
    "branch-scale": "what attention and MLP add to their skip is multiplied by a number below 1",
    "skip-scale": "what the skip carries is multiplied by a number above 1",
    "skip": "the input of each sublayer is added to its output",
    "deepnorm": "skips carry more and the maps of branches start smaller (DeepNorm)",
    "layerscale": "each branch is multiplied by a trained vector that starts near zero",
    "redraw": "each layer gets weights of its own, not a copy of those of the first",
    "bias": "the biases that write the same row into every token are left out",
    "gain": "the norms of the blocks multiply by 1",
    "temperature": "query-key products are divided by a number below 1 before the softmax",
    "qk-norm": "queries and keys are normed before they are multiplied",
    "mask": "each token reads only tokens nearby",
    "several": "several changes at once, because none of them is enough alone",
}
"""What each kind of remedy does, as a clause."""

PREFERRED: tuple[Kind, ...] = tuple(KINDS)
"""Order of remedies that are tied: the usual ones first."""

DropReason = Literal[
    "still collapsed",
    "little change",
    "another cause",
    "stuck",
    "refused",
    "not finite",
    "equal tokens",
    "no number",
]
"""Why a remedy is not advised."""

LossKind = Literal["given", "own", "next token", "next decoder token", "masked tokens", "random projection"]
"""Which loss is trained: a function that was given, the model's own for labels that were given, the task of the model,
or a fixed random projection of what it puts out."""

LOSSES: dict[LossKind, str] = {
    "given": "the loss that was given",
    "own": "the model's own loss for the labels given",
    "next token": "the next token",
    "next decoder token": "the next token of the decoder",
    "masked tokens": "masked tokens",
    "random projection": "a fixed random projection of the output",
}

NotProbedReason = Literal[
    "no loss",
    "trained weights",
    "memory",
    "no copy",
    "no states",
    "failed",
    "not finite",
    "loss ignores model",
]

NOT_PROBED: dict[NotProbedReason, str] = {
    "no loss": "the model puts out nothing that a loss could be taken of; give a loss",
    "trained weights": "the weights are trained, and a probe asks how a start behaves; ask for it to run it",
    "memory": "a copy of the model with its gradients and the state of the optimizer does not fit in memory",
    "no copy": "the model cannot be copied",
    "no states": "the states of the blocks could not be read",
    "failed": "the model or the loss failed",
    "not finite": "the loss or a gradient is not finite",
    "loss ignores model": "the loss does not depend on the weights of the model that it is given",
}

PROMISE = (
    "A remedy says whether a model can start to train, not how well it will do; weights that were trained before the "
    "change have to be trained again."
)


# -------------------------------------------------------------------------------------------------------------- probe


class Probe(Value):
    """A few steps of training on a copy: whether the tokens of the last layer stay apart."""

    steps: int
    """Steps of the optimizer, AdamW with its usual settings and gradients clipped to length 1."""

    lr: FiniteFloat
    """Learning rate."""

    loss: LossKind
    """What was trained."""

    before: FiniteFloat
    """Unit residual ratio after the last block before the first step, geometric mean over texts."""

    after: FiniteFloat
    """The same after the last step."""

    ratios: tuple[FiniteFloat, ...]
    """The same before the first step and after every step."""

    losses: tuple[FiniteFloat, ...]
    """The loss at every step, before the weights move."""

    floor: FiniteFloat
    """Rounding alone may leave so much of the ratio."""

    coherence: Number = None
    """Length of the sum of what the first step adds to the common row of every sublayer, each reading what it read
    before, over the sum of the lengths: 1 where all of them are pushed the same way. Null where that is not known."""

    chance: Number = None
    """What it would be for directions that have nothing to do with each other: one over the root of their number."""

    sublayers: int = 0
    """Sublayers that it was read from."""

    gradient_ratio: Number = None
    """Gradient of query and key weights over that of value weights at the start, mean of the blocks. It is shown and
    never used: it did not predict training. Null where it was not read."""

    @model_serializer(mode="wrap")
    def _with_sentence(self, plain: Any) -> Any:
        return {**plain(self), "sentence": self.sentence}

    @model_validator(mode="before")
    @classmethod
    def _without_sentence(cls, found: Any) -> Any:
        return {k: v for k, v in found.items() if k != "sentence"} if isinstance(found, dict) else found

    @model_validator(mode="after")
    def _ends_fit(self) -> Self:
        if len(self.ratios) != self.steps + 1 or (self.before, self.after) != (
            self.ratios[0],
            self.ratios[-1],
        ):
            raise ValueError("the ratios of a probe are one more than its steps, from before to after")
        return self

    @property
    def stuck(self) -> bool:
        """Whether the tokens are nearly equal after the steps."""
        return self.after <= LEAST_RATIO

    @property
    def holds(self) -> bool:
        """Whether the ratio, not far below the limit after three steps, has ended its fall some steps later."""
        first = self.ratios[min(FEW_STEPS, self.steps)]
        return self.steps > FEW_STEPS and self.after > LEAST_RATIO / DOUBT and self.after >= KEPT * first

    @property
    def sentence(self) -> str:
        """What the first steps do."""
        steps = f"after {count(self.steps, 'step')} at the learning rate {number(self.lr)}"
        before, after = self._shown(self.before), self._shown(self.after)
        if not self.stuck:
            if self.after <= self.floor:
                return (
                    f"Whether the first steps collapse it is not known: rounding hides unit residual ratios up to "
                    f"{number(self.floor)}, and {steps} it is not above."
                )
            if self.before <= LEAST_RATIO:
                return f"The start is collapsed ({before}), but {steps} the unit residual ratio is {after}."
            if self.before >= FALL * self.after or min(self.ratios) <= LEAST_RATIO:
                lowest = (
                    f", {self._shown(min(self.ratios))} at the lowest"
                    if min(self.ratios) < self.after
                    else ""
                )
                return (
                    f"The start is sound ({before}), but {steps} the unit residual ratio is {after}{lowest}: close to "
                    f"the {number(LEAST_RATIO)} at which a model is stuck{self._pushed('; ')}."
                )
            return (
                f"The first steps do not collapse it: the unit residual ratio is {before} at the start and {after} "
                f"{steps}."
            )
        if self.before <= LEAST_RATIO:
            return (
                f"The start is collapsed (unit residual ratio {before}) and stays so: {steps} it is {after}."
            )
        return f"The start is sound ({before}), but {steps} the unit residual ratio is {after}{self._pushed(': ')}."

    def _shown(self, ratio: float) -> str:
        return number(ratio) if ratio > self.floor else f"at most {number(self.floor)}, the rounding floor"

    def _pushed(self, link: str) -> str:
        """That sublayers are pushed the same way, where they are: at least twice as much as by chance."""
        if self.coherence is None or self.chance is None or self.coherence < 2 * self.chance:
            return ""
        return (
            f"{link}all {self.sublayers} sublayers are pushed the same way ({number(self.coherence, 2)} coherent; "
            f"chance {number(self.chance, 2)})"
        )


class NotProbed(Value):
    """Why there is no probe."""

    declined: NotProbedReason
    """What stood in the way."""

    obstacle: Quoted = ""
    """The error, or the name of the part that did."""

    @property
    def sentence(self) -> str:
        """The reason as a sentence."""
        name = f" ({self.obstacle})" if self.obstacle else ""
        return f"The probe was not run: {NOT_PROBED[self.declined]}{name}."


# -------------------------------------------------------------------------------------------------------------- trial


class TrialRun(Value):
    """The model, with a remedy or as it was given, trained from several seeds."""

    remedy: str | None
    """Name of the remedy; null: as given."""

    losses: tuple[Number, ...]
    """The last loss of each seed: the mean over the last tenth of the steps. Null where it is not finite."""

    mean: Number
    """Their mean; null where a seed has none."""

    low: Number = None
    """Lower end of the 95% interval of the mean (Student); null for fewer than two seeds."""

    high: Number = None
    """Upper end."""

    ratios: tuple[Number, ...] = ()
    """Unit residual ratio after the last block at the end, by seed."""

    seconds: Number = None
    """How long all seeds took."""


class NotTried(Value):
    """A remedy that could not be trained."""

    remedy: str
    """Its name."""

    obstacle: str
    """What stood in the way, by name."""


class Trial(Value):
    """The model trained as given and with remedies, always on copies."""

    steps: int
    """Steps of each run, AdamW with gradients clipped to length 1, without dropout."""

    lr: FiniteFloat
    """Learning rate."""

    seeds: int
    """Runs of each. A seed decides the order of the batches and, of fresh weights, another start of the same kind."""

    loss: LossKind
    """What was trained."""

    first: Number
    """Mean loss before the first step, as given."""

    given: TrialRun
    """The model as it was given."""

    runs: tuple[TrialRun, ...]
    """With each remedy, in the order of the remedies."""

    not_tried: tuple[NotTried, ...] = ()
    """Remedies that could not be trained."""

    @property
    def helped(self) -> tuple[TrialRun, ...]:
        """The remedies whose interval lies below that of the model as given."""
        least = self.given.low
        return tuple(
            one for one in self.runs if one.high is not None and least is not None and one.high < least
        )

    @property
    def sentence(self) -> str:
        """What training showed."""
        told = f"after {self.steps} steps ({count(self.seeds, 'seed')}, {LOSSES[self.loss]})"
        best = min(
            (one for one in self.runs if one.mean is not None), key=lambda one: one.mean or 0.0, default=None
        )
        if self.given.mean is None or best is None:
            return f"Training {told} gave no loss that could be compared."
        helped = self.helped
        if not helped:
            return (
                f"No remedy is told from the model as given {told}: its loss is {_interval(self.given)}, the lowest is "
                f"{_interval(best)} with {best.remedy}."
            )
        names = [f"{one.remedy} ({_interval(one)})" for one in helped]
        return f"The loss {told} is {_interval(self.given)} as given and lower with {listed(names)}."

    def tabular(self) -> Tabular:
        """One line per run."""
        heads = [Column("run", "name"), Column("loss"), Column("95% interval"), Column("ratio at the end")]
        rows = [
            [
                one.remedy or "as given",
                number(one.mean),
                NOTHING
                if one.low is None or one.high is None
                else f"{number(one.low)} .. {number(one.high)}",
                number(_geometric(one.ratios)),
            ]
            for one in (self.given, *self.runs)
        ]
        return Tabular(columns=heads, rows=rows)


def _interval(run: TrialRun) -> str:
    if run.low is None or run.high is None:
        return number(run.mean)
    return f"{number(run.mean)}, 95% interval {number(run.low)} to {number(run.high)}"


def _geometric(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    return math.exp(sum(map(math.log, known)) / len(known)) if known and len(known) == len(values) else None


# ----------------------------------------------------------------------------------------------------------- remedies


class Price(Value):
    """What can no longer be seen under another mask."""

    farthest: int
    """The largest distance at which a token is still read directly."""

    reach: int
    """The largest distance over all blocks, one after the other."""

    lost: FiniteFloat
    """Share of the pairs of tokens that were read before and are not any more, on the longest text."""

    @property
    def sentence(self) -> str:
        """The price in words."""
        return (
            f"Its price: tokens more than {self.farthest} places away are no longer read directly "
            f"({percent(self.lost)} of the pairs), and more than {self.reach} places away not at all."
        )


class Remedy(Value):
    """One change to the model, as a recipe."""

    name: str
    """Kind and dose, such as ``placement:pre``, ``branch-scale:1/sqrt(2L)`` or ``mask:window:16``."""

    kind: Kind
    """What is changed."""

    code: Quoted = ""
    """What to write, with the names of the model's own code where its line could be rewritten safely."""

    code_before: Quoted = ""
    """The line as it stands now; empty where nothing stands there."""

    line: SourceLine | None = None
    """Where that line stands."""

    is_general: bool = True
    """Whether ``code`` is the general form, to be brought into the model's code by hand."""

    keeps_function: bool = False
    """Whether the network computes the same with the weights that it has; where not, it has to be trained again."""

    factor: Number = None
    """The dose as a number, where the name gives a formula: the factor on the branches or the skips."""

    sites: tuple[str, ...] = ()
    """Of biases, where they stand: attention, mlp, norm."""

    before: Number = None
    """Unit residual ratio after the last block as the model is, geometric mean over texts."""

    predicted: Number = None
    """The ratio that linear response predicts from one pass of the unchanged model; null where it has no rule."""

    measured: Number = None
    """The ratio of the changed tree, run on the same texts; null where there is no tree or it cannot be changed so."""

    floor: Number = None
    """Rounding alone may leave so much of the measured ratio."""

    recovery: Number = None
    """Share of the fall of ln(ratio) from the first state to the last that the change gives back."""

    order: Number = None
    """What theory says of tokens that are nearly equal: each block raises their differences to this power, 1 or 3.
    Null where nothing is known of a part."""

    rate: Number = None
    """Of order 1: the factor by which a block then multiplies the differences, relative to the common row, geometric
    mean over the blocks."""

    input_share: Number = None
    """Product over all sums of the share of the sum that the skip brings: what is left of the input."""

    entropy: Number = None
    """Entropy of attention over the logarithm of the keys allowed, mean. Shown, never used to rank."""

    price: Price | None = None
    """What it costs, of masks."""

    probe: Probe | NotProbed | None = None
    """Three steps of training of a changed copy; null where none was asked for."""

    rank: int | None = None
    """Its place among those advised, from 1; equal places are ties. Null for those that are not."""

    dropped: DropReason | None = None
    """Why it is not advised."""

    obstacle: str = ""
    """The name of the error that stood in the way, where one did."""

    trained: TrialRun | None = None
    """What training showed, where it was tried."""

    @property
    def ratio(self) -> float | None:
        """The number that counts: measured where there is one, else predicted."""
        return self.measured if self.measured is not None else self.predicted

    @property
    def stuck(self) -> bool:
        """Whether the first steps of training end with nearly equal tokens, and do not bring them apart again."""
        return isinstance(self.probe, Probe) and self.probe.stuck and not self.probe.holds

    @property
    def why(self) -> str:
        """Why it is not advised, without a full stop; empty where it is."""
        ratio = number(self.ratio)
        after = number(self.probe.after) if isinstance(self.probe, Probe) else NOTHING
        return {
            None: "",
            "still collapsed": f"the ratio stays at {ratio}, not above {number(LEAST_RATIO)}",
            "little change": f"it gives back {percent(max(self.recovery or 0.0, 0.0))} of the fall, less than "
            f"{percent(LEAST_RECOVERY)}",
            "another cause": "what attention reads is not what made tokens equal",
            "stuck": f"after the steps of the probe the ratio is {after}: the model would be stuck",
            "refused": f"the network cannot be changed like this ({self.obstacle})",
            "not finite": "the changed network overflows, or ends with a token of length zero",
            "equal tokens": "the tokens of the changed network are equal up to rounding",
            "no number": "it can be neither run nor predicted here",
        }[self.dropped]

    @property
    def sentence(self) -> str:
        """What it does, and how that is known."""
        if self.dropped is not None:
            return f"{self.name} is not advised: {self.why}."
        known = "run" if self.measured is not None else "predicted, not run"
        said = [f"{self.name}: {KINDS[self.kind]}. The ratio goes from {number(self.before)} to "]
        said[0] += f"{number(self.ratio)} ({known})."
        if self.order is not None:
            said.append(f"Near equal tokens {order_words(self.order, self.rate)}.")
        if self.input_share is not None:
            said.append(f"{percent(self.input_share)} of the input is left.")
        if isinstance(self.probe, Probe):
            said.append(self.probe.sentence)
        if self.price is not None:
            said.append(self.price.sentence)
        said.append(
            "The weights keep their function."
            if self.keeps_function
            else "The model has to be trained after it."
        )
        return " ".join(said)


def _after(one: Remedy) -> str:
    """The ratio after the steps of the probe, where there was one."""
    if isinstance(one.probe, Probe) and one.probe.stuck and one.probe.holds:
        return f"{number(one.probe.after)}, no longer falling after {one.probe.steps} steps"
    return number(one.probe.after if isinstance(one.probe, Probe) else one.ratio)


def order_words(order: float, rate: float | None) -> str:
    """A law near equal tokens as a clause."""
    if order != 1:
        return "each block cubes the differences"
    return f"each block multiplies the differences by {number(rate)} on average"


def _law(order: float | None, rate: float | None) -> str:
    return NOTHING if order is None else "cubes" if order != 1 else number(rate)


class Remedies(Value):
    """Remedies that fit this model, best first, and those that do not help, apart."""

    before: Number
    """Unit residual ratio after the last block as the model is, geometric mean over texts."""

    start: Number
    """The same of what enters the first block."""

    order: Number = None
    """What theory says of the model as it is, near equal tokens: see ``order`` of a remedy."""

    rate: Number = None
    """Of order 1: the factor per block."""

    measure: str = RANKED_BY
    """Which ratio."""

    is_run: bool
    """Whether changes were run in the tree; else they are predicted by linear response."""

    probed: bool = False
    """Whether the probe of three steps took part in the ranking."""

    advised: tuple[Remedy, ...]
    """Best first; equal ranks are ties, in no order of merit."""

    dropped: tuple[Remedy, ...]
    """What does not help, with the reason."""

    trial: Trial | None = None
    """What training showed, where it was tried."""

    @model_validator(mode="after")
    def _ranks_fit(self) -> Self:
        ranks = [one.rank for one in self.advised]
        if None in ranks or ranks != sorted(ranks, key=lambda rank: rank or 0):
            raise ValueError("remedies that are advised have ranks, in order")
        if any(one.dropped is not None for one in self.advised) or any(
            one.dropped is None for one in self.dropped
        ):
            raise ValueError("a remedy is advised or dropped for a reason, not both")
        return self

    @property
    def first(self) -> tuple[Remedy, ...]:
        """The remedies that share the first place."""
        return tuple(one for one in self.advised if one.rank == 1)

    @property
    def words(self) -> str:
        """Which remedies help most, what does not, and what that does not promise."""
        if not self.advised:
            if self.before is not None and self.before > LEAST_RATIO:
                return (
                    f"The {UNIT_RATIO} of the last layer is {number(self.before)}, above {number(LEAST_RATIO)}, and no "
                    "remedy that was tried lifts it much: none is needed."
                )
            kinds = listed([one.name for one in self.dropped]) if self.dropped else "nothing"
            return f"No remedy that was tried keeps the tokens apart; tried: {kinds}."
        how = "run in the tree" if self.is_run else "predicted from one pass, not run"
        is_sound = self.before is not None and self.before > LEAST_RATIO
        names = [f"{one.name} ({number(one.ratio)})" for one in self.first]
        if (
            is_sound and self.probed
        ):  # what a probe is for: it is not the start that has to change, but the first steps
            names = [f"{one.name} ({_after(one)})" for one in self.first]
        tie = ", which nothing that was measured tells apart" if len(names) > 1 else ""
        others = [one.name for one in self.advised if one.rank != 1 and not one.stuck]
        beside = f" Then {listed(others)}." if others else ""
        stuck = [one.name for one in self.advised if one.stuck and one.rank != 1]
        if stuck:
            beside += (
                f" Beside another remedy also {listed(stuck)}: alone, three steps of training leave it stuck."
            )
        no = [one.name for one in self.dropped if one.dropped != "refused"]
        not_advised = f" Not advised: {listed(no)}." if no else ""
        told = f"The {UNIT_RATIO} of the last layer is {number(self.before)}"
        if is_sound and self.probed:
            if all(one.stuck for one in self.first):
                return f"Three steps of training make tokens nearly equal with every remedy that was tried. {PROMISE}"
            told = f"After three steps of training the {UNIT_RATIO} stays above {number(LEAST_RATIO)} with "
            if any(one.probe.stuck for one in self.first if isinstance(one.probe, Probe)):
                told = "The first steps of training do not make tokens equal with "
            how = "run in the tree and trained"
        elif is_sound:
            told += f", above {number(LEAST_RATIO)}, so this start needs no remedy; changes that lift it: "
        else:
            told += "; best with "
        return f"{told}{listed(names)}{tie} ({how}).{beside}{not_advised} {PROMISE}"

    def tabular(self) -> Tabular:
        """One line per remedy, those that are not advised below."""
        heads = [
            Column("remedy", "name"),
            Column("ratio"),
            Column("predicted", optional=True),
            Column("per block", optional=True),
            Column("input left", optional=True),
            Column("after 3 steps", optional=True),
            Column("rank"),
            Column("why not", "words", optional=True),
        ]
        rows: list[list[Cell | str]] = []
        for one in (*self.advised, *self.dropped):
            after = number(one.probe.after) if isinstance(one.probe, Probe) else NOTHING
            rows.append(
                [
                    one.name,
                    number(one.ratio),
                    number(one.predicted) if one.measured is not None else NOTHING,
                    _law(one.order, one.rate),
                    NOTHING if one.input_share is None else percent(one.input_share),
                    after,
                    NOTHING if one.rank is None else str(one.rank),
                    one.why or NOTHING,
                ]
            )
        return Tabular(columns=heads, rows=rows)

    @property
    def legend(self) -> list[str]:
        """What the columns are."""
        return [
            f"ratio: the {UNIT_RATIO} after the last block with the change; {number(self.before)} without.",
            *(
                [
                    "per block: factor by which a block multiplies differences of tokens that are nearly equal, "
                    f"relative to their common row (predicted); {_law(self.order, self.rate)} without."
                ]
                if any(one.order is not None for one in self.advised)
                else []
            ),
            "input left: what the skips still bring of the input, the product over all sums.",
            *(
                [
                    "after 3 steps: the ratio of a changed copy after three steps of training; ten where three do not "
                    "tell."
                ]
                if self.probed
                else []
            ),
            "rank: 1 is best; equal ranks are ties.",
        ]


# ------------------------------------------------------------------------------------------------------- what to write


def recipe_sections(remedies: Sequence[Remedy]) -> Iterator[Section]:
    """What to write for the best remedies: all of them on a page, the first in a terminal."""
    known = [one for one in remedies if one.code]
    title = "What to write, best first (equal ranks are ties)"
    for reader, shown in (("text", known[:SHOWN_REMEDIES]), ("html", known)):
        blocks: list[Block] = [Lines(_written(one, is_narrow=reader == "text")) for one in shown]
        if blocks:
            yield Section(title, blocks, only="text" if reader == "text" else "html")


def _written(one: Remedy, *, is_narrow: bool) -> list[str]:
    """A remedy with the lines before and after."""
    place = "" if one.line is None else f" ({one.line.file}:{one.line.number})"
    lines = [f"{one.rank}. {one.name}: {number(one.before)} -> {number(one.ratio)}{place}"]
    for code, mark in ((one.code_before, "-"), (one.code, "+")):
        lines += [f"  {mark} {part}" for line in code.splitlines() for part in _cut(line, is_narrow)]
    return lines


def _cut(line: str, is_narrow: bool) -> list[str]:
    """A line of code as it is, or for a terminal in lines that fit, cut behind commas inside brackets.

    >>> _cut("y = f(" + ", ".join(["argument"] * 9) + ")  # all of them", True)[1:]
    ['y = f(argument, argument, argument, argument, argument, argument, argument,', '      argument, argument)']
    """
    most = TERMINAL - len("  + ")
    if not is_narrow or len(line) <= most:
        return [line]
    code, mark, said = line.partition("  # ")
    own = line[: len(line) - len(line.lstrip())]
    found = [f"{own}# {said}"] if mark else []
    while len(code) > most:
        places = [at for at in range(len(own) + 1, most) if code[at - 1] == "," and _is_open(code[:at])]
        if not places:
            break
        head, code = code[: places[-1]], code[places[-1] :].lstrip()
        found.append(head)
        code = f"{own}      {code}"
    return [*found, code]


def _is_open(code: str) -> bool:
    """Whether a bracket is open at the end of some code."""
    return sum(map(code.count, "([{")) > sum(map(code.count, ")]}"))
