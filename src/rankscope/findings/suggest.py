"""What would keep tokens apart: what-ifs that were computed by surgery on the weights as they are, ranked."""

from typing import Literal, Self

from pydantic import model_validator

from rankscope.charts import Bar, Bars
from rankscope.core.words import NOTHING, count, listed, number
from rankscope.document import Column, Tabular
from rankscope.findings.base import Number, Value
from rankscope.findings.blame import Headline, signed

RANKED_BY = "residual_ratio[frobenius,mean,unit]"
"""On tokens of length one: a massive token can hide collapse, or fake its absence, in the plain ratio."""

UNIT_RATIO = "unit residual ratio"
"""What that is called in sentences."""

MOST_LEVEL = 3
"""What-ifs that a sentence names besides the best one, where rounding does not tell them apart."""

Kind = Literal["skip-scale", "mask", "placement", "temperature", "branch-scale"]

CHANGES: dict[Kind, str] = {
    "branch-scale": "what attention and MLP add to their skip is multiplied by {}",
    "skip-scale": "what skips carry around attention and MLP is multiplied by {}",
    "mask": "every token reads only some tokens",
    "temperature": "query-key products are divided by {} before the softmax",
    "placement": "normalisation is moved, with its weights",
}
"""What each kind of change does, as a clause."""

SETTINGS: dict[Kind, str] = {
    "branch-scale": "L is the number of blocks, l the number of the block.",
    "skip-scale": "",
    "mask": "causal: itself and earlier ones; window:w: those at most w places away.",
    "temperature": "Above 1 attention is flatter.",
    "placement": "pre: before attention and MLP; post: after the skip is added; sandwich: before and after attention "
    "and MLP. A norm at the end of the network stays.",
}
"""What its settings mean."""

PLACEMENTS = ("pre", "post", "sandwich")

UNTRAINED = (
    "The weights are not trained again after a change, so nothing is said about accuracy or about networks that are "
    "trained this way."
)

Declined = Literal[
    "no skips",
    "no attention",
    "no softmax",
    "no norms",
    "norms elsewhere",
    "unknown mixing",
    "no other mask",
    "refused",
    "some networks",
    "network overflows",
    "overflow",
    "equal tokens",
]
"""Why a what-if has no gain."""


class MeasuredReading(Value, title="Reading"):
    """A measure of the last layer, mean over texts (geometric of residuals, ratios and diameters)."""

    value: Number
    """The mean; a text that is not above its floor counts with the larger of value and floor. Null: not finite."""

    resolved: bool
    """Whether every text is above its floor; otherwise the measure is at most the value."""


class Suggestion(Value):
    """One what-if beside the unchanged network."""

    kind: Kind
    """What is changed."""

    setting: str | None
    """What it is set to; null for a kind that this network has nothing for."""

    gain: Number
    """Mean over texts of ln(after / before) of the measure that ranks; above zero the tokens stay further apart."""

    floor: Number = None
    """What rounding may add to or take from the gain."""

    is_bound: bool = False
    """Whether the network itself is collapsed to its rounding floor in some text, so that the gain is at least this.

    It is less than the truth by the same amount for every what-if, which leaves their order as it is."""

    before: dict[str, MeasuredReading]
    """Of the unchanged network, by definition."""

    after: dict[str, MeasuredReading]
    """Of the changed one, over the same texts; empty if it could not be made."""

    declined: Declined | None = None
    """Why there is no gain."""

    failed_texts: int = 0
    """In how many texts the changed network overflows, or has equal tokens, where that is why."""

    block: int | None = None
    """The first block that stands in the way, where one does."""

    obstacle: str = ""
    """The part, the line of the model's code or the kind of error that stands in the way, by its name."""

    @property
    def name(self) -> str:
        """Kind and setting, such as ``skip-scale:0.5``, as remedies are called."""
        return self.kind if self.setting is None else f"{self.kind}:{self.setting}"

    @property
    def meaning(self) -> str:
        """What is changed, as a clause."""
        said = CHANGES[self.kind].format(self.setting)
        return f"{said}; L is the number of blocks" if "L" in (self.setting or "") else said

    def why(self, texts: int, longest: int) -> str:
        """Why there is no gain, without a full stop; empty if there is one."""
        lost = f"in {self.failed_texts} of {count(texts, 'text')}"
        return {
            None: "",
            "no skips": "the network has no skips",
            "no attention": "the network has no attention",
            "no softmax": "the network has no softmax attention",
            "no norms": "the blocks of the network have no norms to move",
            "norms elsewhere": f"the norms of block {self.block} cannot be moved: they stand neither at the ends of "
            "what a skip goes around nor directly after a skip",
            "unknown mixing": f"tokens mix in a way that is not known: {self.obstacle}",
            "no other mask": f"no other mask fits {count(longest, 'token')}",
            "refused": f"the network cannot be changed like this ({self.obstacle})",
            "some networks": "only some of the networks can be changed like this",
            "network overflows": "the unchanged network overflows, or ends with a token of length zero",
            "overflow": f"{lost} the last state overflows, or holds a token of length zero",
            "equal tokens": f"{lost} the tokens are equal up to rounding",
        }[self.declined]


class Suggestions(Value):
    """Every what-if, the largest gain first; those without a gain last."""

    network: Headline
    """The network this is about."""

    ranked_by: str
    """The measure of the last layer that ranks."""

    texts: int
    """Texts that are compared: those that have a number in the unchanged network."""

    left_out: int
    """Texts that are not, because it overflows on them or ends with a token of length zero."""

    longest: int
    """Tokens of the longest text."""

    what_ifs: tuple[Suggestion, ...]
    """What was tried, best first."""

    @model_validator(mode="after")
    def _gains_have_readings(self) -> Self:
        for one in self.what_ifs:
            if one.gain is not None and not (self.ranked_by in one.before and self.ranked_by in one.after):
                raise ValueError(f"{one.name} has a gain, but no {self.ranked_by} before and after")
        return self

    @property
    def best(self) -> Suggestion | None:
        """The what-if with the largest gain; none where no gain is known."""
        return next((one for one in self.what_ifs if one.gain is not None), None)

    @property
    def words(self) -> str:
        """One sentence on the best what-if, and on what it does not say."""
        best = self.best
        if best is None or best.gain is None:
            return "No change could be compared with the network as it is; the reasons are listed."
        if best.gain <= (best.floor or 0.0):
            return (
                "No change that was tried keeps the tokens of the last layer further apart than the network as it is, "
                f"beyond rounding{self._mean_of}."
            )
        before, after = best.before[self.ranked_by].value, best.after[self.ranked_by].value
        near = [one.name for one in self._level(best)]
        level = f" and {listed(near[:MOST_LEVEL])}, which rounding does not tell from it," if near else ""
        known, tried = len(self._known), len(self.what_ifs)
        which = "with a number" if known < tried else "that was tried" if known == 1 else "that were tried"
        return (
            f"Of {count(known, 'change')} {which}, {best.name} ({best.meaning}){level} keep{'' if near else 's'} "
            "tokens furthest "
            f"apart: the {self.name} of the last layer goes from {'at most ' if best.is_bound else ''}{number(before)} "
            f"to {number(after)}{self._mean_of}. {UNTRAINED}"
        )

    @property
    def name(self) -> str:
        """The measure that ranks, as sentences call it."""
        return UNIT_RATIO if self.ranked_by == RANKED_BY else self.ranked_by

    @property
    def _known(self) -> list[Suggestion]:
        return [one for one in self.what_ifs if one.gain is not None]

    @property
    def legend(self) -> list[str]:
        """What the columns are."""
        several = ", mean over texts" if self.texts > 1 else ""
        known = self._known
        said = [
            f"before, after: the {self.name} of the last layer without and with the change.",
            f"gain: ln(after / before){several}; +0.1 means that tokens end about 10% further apart relative to their "
            "size, below zero they end closer together.",
        ]
        if any(not one.after[self.ranked_by].resolved or one.is_bound for one in known):
            said.append("<= and >=: rounding hides the number, which is at most or at least this.")
        if len(known) < len(self.what_ifs):
            said.append(f"{NOTHING}: no number, or no reason needed.")
        return said

    @property
    def meanings(self) -> list[str]:
        """What each kind of change does, those that were tried."""
        kinds = dict.fromkeys(one.kind for one in self.what_ifs)
        said = {
            kind: f"{kind}: {CHANGES[kind].format('the number given')}. {SETTINGS[kind]}".rstrip()
            for kind in kinds
        }
        if self.placement is not None:
            said["placement"] += f" The network has {self.placement}."
        return list(said.values())

    @property
    def placement(self) -> str | None:
        """Where the norms of the network stand: the one placement that is no change to it; None where not known."""
        tried = {one.setting for one in self.what_ifs if one.kind == "placement"}
        left = [one for one in PLACEMENTS if one not in tried]
        return left[0] if len(left) == 1 else None

    def _level(self, best: Suggestion) -> list[Suggestion]:
        """Other what-ifs whose gain may be as large as the best one."""
        least = (best.gain or 0.0) - (best.floor or 0.0)
        known = [one for one in self.what_ifs if one is not best and one.gain is not None]
        return [one for one in known if (one.gain or 0.0) + (one.floor or 0.0) >= least]

    @property
    def _mean_of(self) -> str:
        """How many texts, if there are several."""
        together = self.texts + self.left_out
        if together == 1:
            return ""
        if not self.left_out:
            return f" (geometric mean of {self.texts} texts)"
        return (
            f" (geometric mean of {self.texts} of {together} texts; on the others the network overflows, or ends with "
            "a token of length zero)"
        )

    def tabular(self) -> Tabular:
        """One line per what-if: the ratio of the last layer before and after, the gain, or why there is none."""
        heads = ("change", "before", "after", "gain", "why there is no gain")
        kinds = {"change": "name", "why there is no gain": "words"}
        columns = [
            Column(head, kinds.get(head, "number"), optional=head == heads[-1])  # type: ignore[arg-type]
            for head in heads
        ]
        rows = [
            [
                one.name,
                _read(one.before.get(self.ranked_by)),
                _read(one.after.get(self.ranked_by)),
                NOTHING if one.gain is None else f"{'>= ' if one.is_bound else ''}{one.gain:+.3f}",
                one.why(self.texts, self.longest) or NOTHING,
            ]
            for one in self.what_ifs
        ]
        return Tabular(columns=columns, rows=rows)

    def bars(self) -> Bars:
        """The gain of every what-if that has one."""
        known = [one for one in self.what_ifs if one.gain is not None]
        return Bars(
            title="Which changes keep tokens further apart",
            bars=[
                Bar(
                    one.name,
                    one.gain,
                    f"{'at least ' if one.is_bound else ''}{signed(one.gain or 0.0)}",
                    faint=(one.gain or 0.0) <= 0,
                )
                for one in known
            ],
            value=f"mean of ln(after / before) of the {self.name}",
            notes=[
                f"The {self.name} of the last layer is {self.ranked_by}.",
                UNTRAINED,
            ],
        )


def _read(reading: MeasuredReading | None) -> str:
    if reading is None or reading.value is None:
        return NOTHING
    return f"{'' if reading.resolved else '<= '}{number(reading.value)}"
