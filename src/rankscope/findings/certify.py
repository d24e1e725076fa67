"""``rankscope certify``: proven bounds of the residual of every layer, from below and from above."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, field_validator, model_validator

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.charts.axes import DEEP, deep
from rankscope.core.registry import unknown_name
from rankscope.core.words import NOTHING, clipped, count, number, power, ranges, sentence, span
from rankscope.document import (
    Cell,
    Column,
    Document,
    Figure,
    Notes,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
    text_of,
)
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import Limits, ModelOrRandom, option
from rankscope.findings.base import Finding, LogSize, Lower, Number, Upper, Value, Words
from rankscope.findings.blocks import LN10, ROUNDING_ALONE, how_to_read, legend
from rankscope.findings.subject import RESIDUAL_WORDS, Apart, CutSubject

if TYPE_CHECKING:
    from rankscope.results.statistics import Decision

FROBENIUS, COMPOSITE = "residual[frobenius,mean]", "residual[composite,mean]"

Definition = Literal[
    "residual[frobenius,mean]",
    "residual[composite,mean]",
    "diameter[l1]",
    "diameter[l2]",
    "diameter[linf]",
    "residual[l1,mean]",
]
"""What a certificate can speak of."""

NAMES: dict[Definition, str] = {
    "residual[frobenius,mean]": "residual (Frobenius norm)",
    "residual[composite,mean]": "residual (composite norm)",
    "residual[l1,mean]": "residual (largest column sum)",
    "diameter[l1]": "largest distance between two tokens (l1 norm)",
    "diameter[l2]": "largest distance between two tokens (l2 norm)",
    "diameter[linf]": "largest distance between two tokens (linf norm)",
}

SHORT: dict[str, Definition] = {
    "frobenius": "residual[frobenius,mean]",
    "residual": "residual[frobenius,mean]",
    "composite": "residual[composite,mean]",
    "columns": "residual[l1,mean]",
    "diameter": "diameter[l2]",
    "l1": "diameter[l1]",
    "l2": "diameter[l2]",
    "linf": "diameter[linf]",
}
"""Short names of definitions; those of row norms are diameters."""

KNOWN: dict[str, Definition] = SHORT | {name: name for name in NAMES}

COLLAPSED = 0.01
"""A state is proven to have collapsed where its residual is proven to be at most this part of its size."""

CLOSE = 0.01
"""What was measured counts as proven where the bounds of its rounding are no farther apart than this part of it."""

MOST_TEXTS = 400
"""Texts that the page lists; the JSON holds all of them."""

Extended = Annotated[float, Words(infinite=math.inf, minus_infinite=-math.inf)]
"""A number that decides an assumption; in JSON a number or a word."""

Factor = Annotated[float, Words(unbounded=math.inf)]
"""A factor by which something grows at most; in JSON a number or "unbounded"."""


class CertifyConfig(ModelOrRandom):
    """Prove bounds of the residual of every layer: it is at least this and at most that, on these inputs.

    Bounds speak of the network computed with real numbers from the stored weights, so that no rounding can make them
    wrong; they use the attention maps of one forward pass. Beside them stand what was measured and the bound that
    the papers print. Every text is certified alone. --require-lower and --require-upper speak of the first definition.
    """

    group = "Certificate"
    definitions: tuple[str, ...] = option(
        ("residual[frobenius,mean]", "diameter[l2]", "residual[composite,mean]"),
        "What is bounded: frobenius, composite, columns; diameters l1, l2, linf.",
        min_length=1,
        shown="frobenius,l2,composite",
        old=("definition",),
    )
    gamma: float = option(
        1.0, "The factor gamma of Dong's bounds; 1 as first printed.", gt=0, allow_inf_nan=False
    )
    joint_side: int = option(
        512,
        "Certify blocks jointly, the sharpest way, up to (tokens - 1) * dim of this size; the cost grows with its "
        "cube.",
        ge=0,
    )
    batch_size: int = option(
        1, "Texts that are embedded together; more are padded, which may move last digits.", ge=1
    )

    @field_validator("definitions", mode="before")
    @classmethod
    def _are_certified(cls, names: Any) -> Any:
        names = (names,) if isinstance(names, str) else names
        if not isinstance(names, list | tuple):
            return names
        for name in names:
            if name not in KNOWN:
                raise unknown_name("definition", str(name), KNOWN)
        return tuple(dict.fromkeys(KNOWN[name] for name in names))

    @property
    def certified(self) -> tuple[Definition, ...]:
        """The definitions, in the order in which they were named."""
        return tuple(KNOWN[name] for name in self.definitions)


class CertifyView(Limits):
    """What is printed of a certificate, and what is required of it."""

    group = "Certificate"
    limits: ClassVar = ("require_lower", "require_upper")
    explain: bool = option(
        False,
        "Print what printed bounds are made of, and which assumption fails first.",
        formats=("table",),  # pages and JSON always have it
    )
    require_lower: float | None = option(
        None,
        "Exit with 1 unless the last layer keeps this part of the input's residual, proven.",
        gt=0,
        allow_inf_nan=False,
    )
    require_upper: float | None = option(
        None,
        "Exit with 1 unless the last layer has at most this part of it, proven.",
        gt=0,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _can_both_hold(self) -> Self:
        lower, upper = self.require_lower, self.require_upper
        if lower is not None and upper is not None and lower > upper:
            raise ConfigError(
                Option("require_lower", lower),
                " and ",
                Option("require_upper", upper),
                " cannot both hold; the lower one must be the smaller",
            )
        return self

    def document(self, finding: Any) -> Document:
        """The page, with the constants of printed bounds where they were asked for."""
        found: Document = finding.document(explain=self.explain)
        return found

    def decisions(self, finding: Any) -> "tuple[Decision, ...]":
        """Whether the first definition is proven to meet what was required.

        Nothing proven does not meet a requirement. A bound whose number was lost is undecided.
        """
        first: Standing = finding.first
        asked = (("lower", self.require_lower, first.lower), ("upper", self.require_upper, first.upper))
        return tuple(
            _decision(side, limit, bound, first) for side, limit, bound in asked if limit is not None
        )


def _decision(side: str, limit: float, bound: float | None, standing: "Standing") -> "Decision":
    from rankscope.results.statistics import Decision, Outcome, Span, judge_span

    known = math.nan if bound is None else bound
    sign, toward = ("<", -1) if side == "lower" else (">", 1)
    # Bounds are rounded outward already: they have no floor.
    outcome = judge_span(Span(low=known, high=known), sign, math.log(limit))
    if outcome is Outcome.CLEAR:
        return Decision(outcome=outcome)
    found = (
        "has no number, because the input's own may be zero"
        if bound is None
        else f"is {_bound_text(known, toward)}"
    )
    says = "undecided" if outcome is Outcome.UNDECIDED else "not proven"
    return Decision(
        outcome=outcome,
        words=f"--require-{side} {limit:g} is {says}: the {side} bound of {standing.definition} over the input's "
        f"{found} at layer {standing.layers}, limit {limit:g}, rounding included",
    )


class Failed(Value):
    """An assumption that does not hold."""

    of: str
    """Whose it is: certificate, or the name of a theorem in print."""

    name: str
    """What was assumed, in a few words."""

    found: Extended | None = None
    """The number that was found; null where there is none."""

    limit: Extended | None = None
    """What it was compared with."""

    relation: Literal["<=", "<", ">="] = "<="
    """How the number had to stand to its limit."""

    paper: str | None = None
    """Who printed the theorem, and where in their paper; null of our own bounds."""

    @property
    def words(self) -> str:
        """Its name, with the number that was found and its limit.

        >>> Failed(of="dong-2.3", name="logits below 1.256", found=3.25, limit=1.256).words
        'logits below 1.256 (found 3.25, limit 1.256)'
        """
        if self.found is None:
            return self.name
        if self.limit is None:
            return f"{self.name} (found {self.found:.4g})"
        found, most = told_apart(self.found, self.limit)
        needs = {"<=": "limit", "<": "limit" if found != most else "must be below", ">=": "must be at least"}
        return f"{self.name} (found {found}, {needs[self.relation]} {most})"

    @property
    def fact(self) -> str:
        """What is the case instead, as a clause.

        >>> Failed(of="wu-masked", name="no skip connections").fact
        'the network has skips'
        >>> Failed(of="certificate", name="the block contracts", found=1516.0, limit=1.0).fact
        'all parts together may multiply the residual by up to 1516 (Frobenius norm), and what follows from this is \
larger than the size of the state (explained below)'
        """
        known = self.found is not None and self.limit is not None and math.isfinite(self.found)
        if known and self.name in WITH_NUMBERS:
            found, limit = told_apart(self.found or 0.0, self.limit or 0.0)
            return WITH_NUMBERS[self.name].format(found=found, limit=limit)
        if self.name in INSTEAD:
            return INSTEAD[self.name]
        if self.name.startswith("blocks built as "):
            return f"not every block is built as {self.name.removeprefix('blocks built as ')}"
        return f"this is needed and not shown to hold: {self.words}"

    @property
    def side(self) -> str:
        """Which bound it is about."""
        if self.of != OURS:
            return f"upper ({self.paper}: {self.of})" if self.paper else f"theorem {self.of}"
        return (
            "upper"
            if self.name in ("the block contracts", "upper bound below the size of the state")
            else "lower"
        )


INSTEAD = {
    "attention weaker than its skip": "what attention adds to the residual may be as large as what its skip carries, "
    "so the two may cancel",
    "branch weaker than its skip": "what a branch adds to the residual may be as large as what its skip carries, so "
    "the two may cancel",
    "attention has a skip around it": "attention has no skip around it, so it may make different tokens equal",
    "MLP keeps tokens apart": "the MLP with its skip may map two different tokens to the same one",
    "norm keeps tokens apart": "as far as bounds tell, tokens may differ only in what normalisation removes, such as "
    "their length, so that it makes them equal",
    "norm weights away from zero": "a weight of a normalisation may be zero, which removes a channel",
    "arithmetic fine enough": "rounding, at its worst and added up over layers, may have moved tokens so far that "
    "attention maps and norm scales are unknown",
    "the block contracts": "the parts of the block may enlarge the residual so much that the size of the state is the "
    "smaller bound",
    "upper bound below the size of the state": "the bound that follows from the blocks before is no smaller than the "
    "size of the state",
    "no skip connections": "the network has skips",
    "no norms": "the network has norms",
    "no MLPs": "the network has MLPs",
    "no scales": "what branches add is scaled",
    "no parallel branches": "the network has parallel branches",
    "no token maps": "the network has modules of which nothing is known",
    "one head": "an attention has several heads",
    "softmax attention": "an attention is not a softmax of query-key products",
    "no mask": "an attention has a mask",
    "no positions in the logits": "positions change the attention logits",
    "no norms of queries and keys": "queries and keys are normalised",
    "no soft-cap": "attention logits are soft-capped",
    "MLPs with a Lipschitz factor": "an MLP has no known Lipschitz factor",
    "logits below 1.256": "attention logits differ too much within a row",
    "gamma large enough": "the factor gamma in the theorem is too small",
    "self-loops": "some token may not read itself",
    "a token that reaches all": "no token reaches all others through the mask",
    "the same mask in every layer": "masks differ between layers",
    "tokens of length one": "tokens do not have length one",
    "orthogonal values": "value maps are not orthogonal",
    "no two tokens at an obtuse angle": "two tokens may be at an obtuse angle",
    "norms are projections to the sphere": "norms do not just scale tokens to length one",
    "skips of scale one": "a skip has another scale than one",
}
"""What is the case where an assumption does not hold, by its name."""

WITH_NUMBERS = {
    "attention weaker than its skip": "what attention adds may have up to {found} times the residual of its input "
    "(Frobenius norm), and what the skip carries has at least {limit} times that of the input; the two may cancel, "
    "unless the first factor is the smaller one",
    "branch weaker than its skip": "what a branch adds may have up to {found} times the residual of its input "
    "(Frobenius norm), and what the skip carries has at least {limit} times that of the input; the two may cancel, "
    "unless the first factor is the smaller one",
    "the block contracts": "all parts together may multiply the residual by up to {found} (Frobenius norm), and what "
    "follows from this is larger than the size of the state (explained below)",
    "upper bound below the size of the state": "the bound that follows from the blocks before is {found} times the "
    "size of the state",
    "gamma large enough": "the factor gamma in the theorem would have to be {found} or more, and {limit} was used",
    "logits below 1.256": "attention logits, without their mean, differ within a row by up to {found}; the theorem "
    "needs at most {limit}",
}
"""The same with the number that was found and its limit, where these are known."""


def told_apart(value: float, limit: float) -> tuple[str, str]:
    """Two numbers in as few digits as show which is the larger; in the same digits only if they are equal.

    >>> told_apart(3.25, 1.256), told_apart(1.0000000021, 1.0), told_apart(1.0, 1.0)
    (('3.25', '1.256'), ('1.000000002', '1'), ('1', '1'))
    """
    digits = next((n for n in range(4, 18) if f"{value:.{n}g}" != f"{limit:.{n}g}"), 4)
    return f"{value:.{digits}g}", f"{limit:.{digits}g}"


class Printed(Value):
    """A theorem in print that is about such networks."""

    name: str
    """Its name here, as 'rankscope list theorems' has it."""

    authors: str
    """Who printed it."""

    where: str
    """Where in their paper."""

    gamma: Number = None
    """The factor gamma, of theorems that have one."""

    @property
    def words(self) -> str:
        """Where it is stated, and with which gamma."""
        gamma = "" if self.gamma is None else f", gamma = {self.gamma:g}"
        return f"{self.name}: {self.authors}, {self.where}{gamma}"


class Bounds(Value):
    """One layer in one definition, over all texts: what holds of every one. Numbers are natural logarithms."""

    definition: Definition
    """What is bounded."""

    layer: int
    """Blocks that were passed; 0 is the input of the first one."""

    lower: Lower
    """The least lower bound of a text."""

    measured: LogSize | None
    """What the split pass finds, its mean over texts; null where it is no number."""

    measured_low: LogSize | None
    """The smallest of a text."""

    measured_high: LogSize | None
    """The largest of a text."""

    resolved: bool
    """Whether it is above its floor in every text; the floor is estimated from a perturbed run."""

    upper: Upper
    """The largest upper bound of a text."""

    trivial: LogSize
    """What the size of the state alone says; an upper bound that is not below it is vacuous."""

    bound: Upper | None
    """The bound as a paper prints it; null where none speaks of such networks, and of the input."""

    bound_name: str | None
    """Which theorem that is."""

    bound_proven: bool
    """Whether all of its assumptions hold, in every text."""

    bound_vacuous: bool
    """Whether it is not below the size of the state, in some text."""

    lower_vacuous: bool
    """Whether no positive lower bound is proven."""

    upper_vacuous: bool
    """Whether the upper bound is not below the size of the state, in some text."""

    vacuous: bool
    """Whether both are vacuous, in some text."""

    lower_by: str | None
    """How the lower bound of the block was found."""

    upper_by: str | None
    """How the upper bound of the block was found."""

    lacking: tuple[Failed, ...]
    """What fails in some text: of the printed bound, then what kept the certificate from saying more."""


class Standing(Value):
    """What is proven of the whole network in one definition; logarithms relative to the input's own residual."""

    definition: Definition
    """What is bounded."""

    layers: int
    """Blocks of the network."""

    lower: Lower | None
    """At least, at the last layer; null where the number was lost (0/0, or beyond the range of floats)."""

    measured: LogSize | None
    """What was measured there; null where it is no number."""

    resolved: bool
    """Whether what was measured is above its floor, there and at the input."""

    upper: Upper | None
    """At most, at the last layer; null where the number was lost."""

    upper_vacuous: bool
    """Whether the size of the last state says as much."""

    collapse_layer: int | None
    """The first layer from which on every state is proven to have collapsed."""

    lower_until: int
    """The last layer up to which every layer has a lower bound."""

    lower_there: Lower | None
    """The lower bound at that layer."""

    upper_until: int
    """The last layer with an upper bound below the size of the state."""

    upper_there: Upper | None
    """The upper bound at that layer."""

    proven_until: int
    """The last layer of which anything beyond the size of the state is proven."""

    enclosed_until: int
    """The last layer up to which what was measured is above its floor and itself proven, to one percent."""

    why_lower: Failed | None = None
    """What the lower bound lacked in the block after ``lower_until``."""

    why_upper: Failed | None = None
    """What the upper bound lacked in the block after ``upper_until``."""

    @property
    def at_last(self) -> list[str]:
        """What is proven of the last layer, from above and from below."""
        name, last = NAMES[self.definition], self.layers
        if self.upper == -math.inf:
            return [f"Proven: at layer {last} all tokens are equal: the {name} is zero."]
        said = []
        if self.collapse_layer is not None:
            said.append(
                f"Proven: from layer {self.collapse_layer} on the {name} is at most {COLLAPSED:.0%} of the size of the "
                f"state of the same layer; at layer {last} it is {_times(self.upper, 1)}."
            )
        elif not self.upper_vacuous:
            said.append(f"Proven: at layer {last} the {name} is {_times(self.upper, 1)}.")
        if self.keeps_apart:
            said.append(f"Proven: at layer {last} the {name} is {_times(self.lower, -1)}.")
        return said

    @property
    def on_the_way(self) -> list[str]:
        """What is proven of layers before the last only."""
        name, said = NAMES[self.definition], []
        if self.upper_vacuous and self.upper_until and self.upper_there != math.inf:
            said.append(
                f"Proven: at layer {self.upper_until}, the last layer with a useful upper bound, the {name} is "
                f"{_times(self.upper_there, 1)}."
            )
        if not self.keeps_apart and self.lower_until and self.lower_there != -math.inf:
            said.append(
                f"Proven: up to layer {self.lower_until} tokens are not all equal; at layer {self.lower_until} the "
                f"{name} is {_times(self.lower_there, -1)}."
            )
        return said

    @property
    def keeps_apart(self) -> bool:
        """Whether tokens are proven to be apart at the last layer."""
        return self.lower_until == self.layers and self.lower != -math.inf

    @property
    def ends(self) -> dict[str, tuple[int, Failed | None]]:
        """Which side is not proven to the last layer: the layer where it ends, and what failed after that.

        That an upper bound is missing is said only where nothing else is proven either.
        """
        if self.upper == -math.inf or self.lower_until == self.layers:
            return {}
        found = {"lower bound": (self.lower_until, self.why_lower)}
        if self.proven_until < self.layers:
            found["useful upper bound"] = (self.upper_until, self.why_upper)
        return found


class Text(Value):
    """What is proven of one text."""

    text: int
    """Place of the text among the texts, from zero on."""

    seed: int
    """Seed of the network, or of what was drawn for the model."""

    tokens: int
    """Its tokens."""

    definitions: dict[Definition, Standing]
    """What is proven of the whole network, by definition."""


class CertifiedBlock(Value, title="Block"):
    """What printed bounds are made of in one block, on the first text.

    ``beta = max_h |W_QK|_1 |W_h|_{1,inf}`` and ``K = 4 gamma beta H lambda / sqrt(d_qk)`` as Dong, Cordonnier and
    Loukas (2021) define them, with ``lambda`` the Lipschitz factor of the block's MLPs: ``rho' <= K rho^3`` shrinks
    residuals below ``K^{-1/2}``.
    """

    layer: int
    """The block, from 1."""

    heads: int
    """Its heads."""

    d_qk: int | None = None
    """Width of a query."""

    beta: Factor | None = None
    """The largest product of norms of a head's maps."""

    gamma: Number = None
    """The factor gamma that was asked for."""

    K: Upper | None = None
    """Natural logarithm of the constant of the cubic bound."""

    critical_radius: Extended | None = None
    """Natural logarithm of ``K^{-1/2}``."""

    residual: LogSize | None
    """Natural logarithm of the composite residual that enters the block, as measured."""

    residual_resolved: bool
    """Whether that is above its floor."""

    cubic: LogSize | None = None
    """Natural logarithm of the K with which the cubic bound would be an equality."""

    cubic_resolved: bool = False
    """Whether both residuals that it is made of are above their floors."""

    value_norms: tuple[Factor, ...] = ()
    """Spectral norms of the value maps of the heads."""

    query_key_norms: tuple[Factor, ...] = ()
    """Spectral norms of the query-key maps of the heads."""

    mlp: tuple[Factor, ...] = ()
    """Lipschitz factors of its MLPs."""

    norm: tuple[Factor, ...] = ()
    """Lipschitz factors of its norms, on the tokens that enter them."""

    theorem_a: LogSize | None = None
    """Natural logarithm of the constant of Theorem A, where that speaks of the block."""

    shape: str
    """What the block is made of."""

    first_failing: Failed | None = None
    """The first assumption that fails in the block."""


COLUMNS = {
    "log10_floor": "Logarithm of the floor to base ten, which goes on where floats end.",
    "tokens": "Tokens of the text.",
    "bound": "Natural logarithm of the bound as printed in a paper.",
    "bound_name": "Which theorem that is.",
    "bound_proven": "Whether its assumptions hold on the computed states.",
    "bound_vacuous": "Whether it is not below the same norm of the state itself.",
    "lower": "Natural logarithm of what is proven of the real-number network from below; null where nothing is.",
    "measured": "Natural logarithm of what the split pass finds; its floor is estimated from a perturbed run.",
    "upper": "Natural logarithm of what is proven from above; null where nothing is, and where it is zero.",
    "upper_is_zero": "Whether the upper bound is zero: all tokens are proven to be equal.",
    "trivial": "Natural logarithm of what the size of the state alone says.",
    "vacuous": "Whether neither bound says more than the size of the state does.",
    "lower_vacuous": "Whether no positive lower bound is proven.",
    "upper_vacuous": "Whether the upper bound is not below the same norm of the state itself.",
    "assumptions": "What fails, first of the printed bound; empty where nothing does.",
    "lower_by": "How the lower bound of the block was found.",
    "upper_by": "How the upper bound of the block was found.",
    "gain_lower": "Natural logarithm of what one block does to the residual, at least.",
    "gain_upper": "The same, at most; null where nothing is proven, and where it is zero.",
    "gain_upper_is_zero": "Whether that is zero: the block makes all tokens equal. Null where no gain is computed.",
    "enclosed_lower": "Of the state as it was computed, minus what rounding may have moved it by: proven of this input "
    "by running the network, and no explanation.",
    "enclosed_upper": "The same, plus; null where nothing is known, and where it is zero.",
    "enclosed_upper_is_zero": "Whether that is zero. Null where the state is not enclosed.",
    "error": "No computed token is further from the exact one.",
}
"""Columns that a certificate adds to every row."""


class CertifyFinding(Finding):
    """What is proven of one network on some texts."""

    command: ClassVar[str] = "certify"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = COLUMNS

    subject: CutSubject
    """What was certified."""

    gamma: FiniteFloat
    """The factor gamma of printed bounds."""

    standings: dict[Definition, Standing] = Field(min_length=1)
    """What is proven of every text, by definition."""

    certificate: tuple[Text, ...] = Field(min_length=1)
    """What is proven of each text."""

    bounds: tuple[Bounds, ...]
    """The bounds of every layer and definition, over all texts."""

    printed: dict[Definition, Printed]
    """The theorem in print that speaks of a definition, of such networks."""

    explain: tuple[CertifiedBlock, ...] = ()
    """What printed bounds are made of, block by block, on the first text."""

    left_out: int = 0
    """Special tokens that take part here and that a scan would leave out."""

    apart: tuple[Apart, ...] = ()
    """Masks under which tokens need not become equal."""

    definitions: dict[str, str]
    """What each measure is, by its id."""

    @property
    def first(self) -> Standing:
        """What is proven in the definition that was named first."""
        return next(iter(self.standings.values()))

    @property
    def words(self) -> tuple[str, ...]:
        """What is proven of every text, how far, and what failed after that."""
        return sentences(list(self.standings.values()), several=self._several)

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to know besides: what loading said, tokens that take part, masks that keep tokens apart."""
        said = list(self.subject.reported)
        said += [one.words for one in self.apart]
        if self.left_out:
            said.append(
                "The measures below are over all tokens that attention reads. Among these, over all texts together, "
                f"are {count(self.left_out, 'special token')} that scan and ablate leave out, so do not compare these "
                "numbers with those of scan and ablate."
            )
        return tuple(said)

    @property
    def headline(self) -> tuple[str, Tone]:
        """The verdict in a few words."""
        one = self.first
        if one.collapse_layer is not None:
            return "Collapse is proven", "bad"
        if one.keeps_apart:
            return "Tokens are proven to stay apart", "good"
        if not one.upper_vacuous:
            return "An upper bound is proven", "look"
        if one.proven_until:
            return f"Bounds are proven up to layer {one.proven_until}", "unknown"
        return "No useful bound was found", "unknown"

    def document(self, *, explain: bool = False) -> Document:
        """The conclusion, the picture, the bounds of every layer, what failed, what printed bounds are made of.

        On a terminal the last is left out unless ``explain`` asks for it.
        """
        title, tone = self.headline
        failed = self._failed()
        picture = (
            "The residual of the network run without rounding lies in the band. Gray parts are true but not useful: "
            "the size of the state alone says as much. The green line is what was measured."
        )
        meanings = how_to_read(self._meanings())
        return Document(
            title=f"Proven bounds on how far apart tokens are: {clipped(self.subject.name, 150)}",
            command=self.command,
            facts=self._facts(),
            blocks=some(
                Verdict(title, self.words, tone),
                *meanings,
                Notes(self.notes) if self.notes else None,
                Section("Picture", [Figure(one) for one in self.chart().pictures], note=picture, only="html"),
                Section("Layer by layer", [legend(self._legend()), *map(self._bounds, self.standings)]),
                Section(
                    "Why not more is proven",
                    [Tabular(columns=REASONS, rows=failed)],
                    self._why_note(),
                )
                if failed
                else None,
                self._explained(only=None if explain else "html"),
                Section("Texts", [self._texts()], only="html") if len(self.certificate) > 1 else None,
            ),
            definitions=[*self.definitions.items(), *MEANINGS],
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """A panel per definition: the proven band, what was measured, the printed bound dashed, vacuous pieces gray."""
        panels = [_panel(name, self._of(name), self._several) for name in self.standings]
        return Chart(panels, title=self.picture_title)

    @property
    def _several(self) -> bool:
        return len(self.certificate) > 1

    def _of(self, definition: str) -> list[Bounds]:
        return [one for one in self.bounds if one.definition == definition]

    def _facts(self) -> list[str]:
        rule = [] if self.subject.text_axes is None else [self.subject.rule]
        return [*self.subject.facts(self.table, "float64"), *rule]

    def _legend(self) -> list[str]:
        shown = [text_of(cell) for one in self.bounds for cell in _cells(one, [])[1:5]]
        has_printed = any(one.bound is not None for one in self.bounds)
        texts = f"{len(self.certificate)} texts"
        said = [
            f"lower, upper: the smallest lower bound and the largest upper bound of the {texts}, rounded down and up."
            if self._several
            else "lower is rounded down, upper is rounded up."
        ]
        said.append(
            f"measured: what the run gave{f', as the geometric mean over the {texts}' if self._several else ''}. The "
            "run carries the mean token and the residual as two separate matrices, so that a small residual is not "
            "lost in rounding."
        )
        if any(text.startswith("(") for text in shown):
            said.append("In brackets: proven, but not useful.")
        if any(one.lower == -math.inf or one.upper == math.inf for one in self.bounds):
            said.append(f"{NOTHING}: no bound was found{' in at least one text' if self._several else ''}.")
        if has_printed:
            said.append("printed bound: what the formula of a paper gives.")
        if any(one.bound is not None and not one.bound_proven for one in self.bounds):
            said.append("?: a condition of the paper is not met here, so this number is not proven.")
        if not all(one.resolved for one in self.bounds):
            said.append(f"*: {ROUNDING_ALONE} (estimated from a perturbed run).")
        lower, upper = {_lower_by(one) for one in self.bounds}, {one.upper_by for one in self.bounds}
        used = (lower | upper) - {None}
        if used:
            columns = [name for name, found in (("lower by", lower), ("upper by", upper)) if found - {None}]
            said.append(f"{', '.join(columns)}: what gives the bound.")
            said += [f"{name}: {meaning}." for name, meaning in METHODS.items() if name in used]
        if len(self.standings) > 1:
            said.append(
                "Each table bounds a different measure of how far apart tokens are; --definitions chooses them."
            )
        return said

    def _meanings(self) -> list[str]:
        """What is bounded, what bounds are made of, and when one is useful."""
        residual = any(one.startswith("residual") for one in self.standings)
        diameter = any(one.startswith("diameter") for one in self.standings)
        said = ["Layer 0 is what enters the first block; layer l is what leaves block l."]
        if residual:
            said.append(RESIDUAL_WORDS)
        kinds = ["a norm of the residual (as one matrix)"] * residual
        kinds += ["the largest distance between two tokens"] * diameter
        if kinds:
            said.append(
                f"What is bounded: {' or '.join(kinds)}. A value of 0 means that all tokens are equal."
            )
        texts = "these texts" if self._several else "this text"
        return [
            *said,
            "lower, upper: what is bounded would lie between these two if the network, with these weights, ran on "
            f"{texts} in exact arithmetic. They follow from the weights and from what was seen on {texts}, with the "
            "worst case of its rounding allowed for: attention maps, norm scales (what normalisation divides each "
            "token by), MLP slopes (how steep activations are between the values seen) and sizes of tokens.",
            "Size of the state: an upper bound from the sizes of a layer's tokens alone, wherever they point. It "
            "includes the worst case of rounding, which may be most of it in later layers.",
            "A lower bound is useful if it is above zero, an upper bound if it is below the size of the state.",
        ]

    def _why_note(self) -> str:
        """What the table of reasons shows."""
        said = (
            "What keeps a bound of these layers from being proven or useful. Each row is enough to block the bound "
            "that it names; a theorem in brackets is another way to a bound."
        )
        sides = {one.side for line in self.bounds for one in line.lacking}
        if "lower" in sides:
            said += " Lower bounds reach more layers where attention and MLPs add little to what their skips carry."
        if "upper" in sides and self.subject.variant != "san":
            said += " Attention alone (--variant san) often has useful upper bounds of more layers."
        named = any(one.of != OURS for line in self.bounds for one in line.lacking)
        theorems = (
            " A theorem of a paper gives no bound if one of its assumptions fails: the table then says what breaks the "
            "assumption. 'rankscope list theorems' prints these theorems."
        )
        papers = [f" {one.words}." for one in dict.fromkeys(self.printed.values())]
        return said + theorems * named + "".join(papers) * named

    def _bounds(self, name: Definition) -> Tabular:
        lines, printed = self._of(name), self.printed.get(name)
        has_bound = printed is not None and any(one.bound is not None for one in lines)
        meaning = sentence(self.definitions[name].partition(": ")[0]) if name in self.definitions else ""
        return Tabular(
            title=f"{_capital(NAMES[name])}: {name}",
            note=f"{meaning} Printed bound: {printed.words}."
            if printed is not None and has_bound
            else meaning,
            columns=SHOWN,
            rows=[_cells(one, lines) for one in lines],
        )

    def _failed(self) -> list[list[str]]:
        """What stands in the way and at which layers, over all definitions: of our bounds, then of theorems.

        The numbers differ from layer to layer, and are left out.
        """
        found: dict[tuple[bool, str, str], set[int]] = {}
        for line in sorted(self.bounds, key=lambda one: one.layer):
            for failed in line.lacking:
                bare = failed.model_copy(update={"found": None, "limit": None})
                found.setdefault((failed.of != OURS, bare.side, bare.fact), set()).add(line.layer)
        ordered = sorted(found.items(), key=lambda one: one[0][:2])
        return [[ranges(layers), side, fact] for (_, side, fact), layers in ordered]

    def _explained(self, only: Literal["html"] | None) -> Section | None:
        if not self.explain:
            return None
        first = next((one for one in self.explain if one.first_failing is not None), None)
        fails = (
            f"Not met first: {first.first_failing.words}, in block {first.layer}."
            if first is not None and first.first_failing is not None
            else ""
        )
        where = "Block by block, on the first text." if self._several else "Block by block."
        return Section(
            "What printed bounds are made of",
            some(_made_of(self.explain), Notes([fails]) if fails else None),
            where,
            only,
        )

    def _texts(self) -> Tabular:
        seeds = len({one.seed for one in self.certificate}) > 1
        name = self.first.definition
        rows = [
            [
                f"{one.text}, seed {one.seed}" if seeds else str(one.text),
                str(one.tokens),
                *_reach(one.definitions[name]),
            ]
            for one in self.certificate[:MOST_TEXTS]
        ]
        more = len(self.certificate) - MOST_TEXTS
        note = f"The {NAMES[name]} of each text, divided by that of layer 0."
        return Tabular(
            columns=(
                *(Column("text", "name"), Column("tokens")),
                *(Column("lower bound up to layer"), Column("there at least")),
                *(Column("useful upper bound up to layer"), Column("there at most")),
            ),
            rows=rows,
            note=f"{note} And {more} more texts, which the JSON holds." if more > 0 else note,
        )


MEANINGS = (
    (
        "lower, upper",
        "proven for the network with these weights, run on these inputs without rounding",
    ),
    ("measured", "what was computed; its rounding floor is estimated from a perturbed run"),
    (
        "printed bound",
        "what the formula of a paper gives; proven only where all conditions of the paper are met",
    ),
    (
        "not useful (vacuous)",
        "an upper bound that is not below the same norm of the state itself, or no lower bound",
    ),
)
"""What the columns of the tables mean."""

OURS = "certificate"
"""Whose assumptions are not those of a paper."""


def sentences(standings: Sequence[Standing], *, several: bool = False) -> tuple[str, ...]:
    """What is proven of the whole network in each definition, then where it ends and why; of several texts or one."""
    of_all = " that holds for all texts" if several else ""
    said = [words for one in standings for words in one.at_last]
    said += [words for one in standings for words in one.on_the_way]
    if not said:
        said.append(f"No useful bound{of_all} was found after layer 0, which is what enters the first block.")
    ends: dict[tuple[str, int, str], list[str]] = {}
    for one in standings:
        for what, (layer, why) in one.ends.items():
            because = _because(why, layer + 1, several=several)
            ends.setdefault((what, layer, because), []).append(NAMES[one.definition])
    for (what, layer, because), names in ends.items():
        of = "" if len(names) == len(standings) else f" for the {' and the '.join(names)}"
        said.append(f"No {what}{of}{of_all} was found after layer {layer}{because}.")
    known = min((one.enclosed_until for one in standings), default=0)
    if known and ends:
        where = "at every layer" if known == standings[0].layers else f"up to layer {known}"
        texts = " of every text" if several else ""
        said.append(
            f"Rounding in this run is bounded too: {where} the values measured{texts} are within {CLOSE:.0%} of those "
            "without rounding. The columns lower and upper do not rest on these values."
        )
    return tuple(said)


def _because(why: Failed | None, block: int, *, several: bool) -> str:
    """What failed, with the numbers of one of the texts."""
    where = f"block {block} of one text (others may fail too)" if several else f"block {block}"
    return "" if why is None else f": in {where}, {why.fact}"


def _times(log: float | None, toward: int) -> str:
    """A bound relative to the input's residual."""
    side = "at most" if toward > 0 else "at least"
    if log is None:
        return "bounded, but not relative to that of layer 0, which may be zero"
    return f"{side} {power(log, toward=toward)} times that of layer 0"


def _reach(one: Standing) -> list[str]:
    """Up to which layer each side is proven, and the bound there relative to the input; dashes where it is nowhere."""
    sides = ((one.lower_until, one.lower_there, -1), (one.upper_until, one.upper_there, 1))
    return [
        text
        for until, there, toward in sides
        for text in (
            (NOTHING, NOTHING) if not until or there is None else (str(until), _bound_text(there, toward))
        )
    ]


def _bound_text(log: float, toward: int) -> str:
    """A bound, rounded so that it stays true; a dash where nothing is proven."""
    return NOTHING if log == toward * math.inf else power(log, toward=toward)


# ----------------------------------------------------------------------------------------------------------- tables

SHOWN = (
    Column("layer", "name"),
    Column("lower"),
    Column("measured"),
    Column("upper"),
    Column("printed bound", optional=True),
    Column("lower by", "name", optional=True),
    Column("upper by", "name", optional=True),
)

REASONS = (
    Column("layers", "name"),
    Column("bound", "name"),
    Column("why it is not proven or not useful", "words"),
)

METHODS = {
    "size of the state": "as explained above",
    "other sizes": "it follows from the bounds of the other norms",
    "every token alike": "the same map acts on every token",
    "sum over heads": "heads are bounded one by one and added",
    "stacked heads": "the maps of all heads side by side are bounded as one matrix",
    "joint operator": "the block as one matrix on residuals, by its singular values",
    "numerical range": "whether a branch can point against its skip",
    "skip against branch": "what the skip carries minus, or plus, what the branch can add",
    "Lipschitz factor": "the largest slope of the MLP",
    "mean slope": "the MLP as a matrix, up to how much its slopes differ between tokens",
    "sizes of tokens": "what the norm divides each token by",
    "part by part": "the bounds of the parts of the block multiplied",
    "size to size": "it follows from a bound in another norm",
}
"""How a bound was found, by the names in the columns; docs/certify.md has the theorems."""

MADE_OF = {
    "heads": "heads",
    "d_qk": "d_qk",
    "beta": "beta",
    "gamma": "gamma",
    "K": "K",
    "critical_radius": "K^-1/2",
    "residual": "residual",
    "cubic": "measured K",
    "value_norms": "|W| of heads",
    "query_key_norms": "|W_QK| of heads",
    "mlp": "Lipschitz of MLPs",
    "norm": "Lipschitz of norms",
    "theorem_a": "K of Theorem A",
}
"""Columns of the explanation, by field of a block."""

LOGARITHMS = frozenset({"K", "critical_radius", "residual", "cubic", "theorem_a"})


def _cells(line: Bounds, table: Sequence[Bounds]) -> list[Cell | str]:
    """One line of a table. A vacuous number stands in brackets; a printed bound that is not proven ends in ``?``."""

    def by(method: str | None, others: Iterable[str | None]) -> str:
        return "the input" if line.layer == 0 and any(others) else method or NOTHING

    bound = NOTHING
    if line.bound is not None:
        bound = power(line.bound) + ("" if line.bound_proven else "?")
    cells = [
        _bound_text(line.lower, -1),
        _starred(power(line.measured), line.resolved),
        _bracketed(_bound_text(line.upper, 1), line.upper_vacuous),
        _bracketed(bound, line.bound_vacuous),
        by(_lower_by(line), map(_lower_by, table)),
        by(line.upper_by, (one.upper_by for one in table)),
    ]
    return [
        str(line.layer),
        *(Cell(text, faint=line.vacuous or text.startswith("(")) for text in cells),
    ]


def _lower_by(line: Bounds) -> str | None:
    return None if line.lower_vacuous else line.lower_by


def _bracketed(text: str, is_vacuous: bool) -> str:
    return f"({text})" if is_vacuous and text != NOTHING else text


def _starred(text: str, resolved: bool) -> str:
    from rankscope.results import UNRESOLVED_MARK

    return text if resolved or text == NOTHING else text + UNRESOLVED_MARK


def _made_of(blocks: Sequence[CertifiedBlock]) -> Tabular:
    columns = [Column("layer", "name"), *(Column(name, optional=True) for name in MADE_OF.values())]
    return Tabular(
        columns=columns, rows=[[str(one.layer), *(_made(one, name) for name in MADE_OF)] for one in blocks]
    )


def _made(block: CertifiedBlock, name: str) -> str:
    value = getattr(block, name)
    if value is None or value == ():
        return NOTHING
    if isinstance(value, tuple):
        return span(value)
    if name in LOGARITHMS:
        return _starred(power(value), getattr(block, f"{name}_resolved", True))
    return number(value, 4) if isinstance(value, float) else str(value)


# ---------------------------------------------------------------------------------------------------------- picture

PROVEN, PRINTED, MEASURED = 0, 1, 2
"""Colors of a panel."""

BELOW, ABOVE = 0.6, 0.35
"""How far lower bounds may reach below, and printed ones above, what was measured: parts of its own range."""

LEAST, LEAST_BELOW = 1.5, 3.0
"""That range counts as this many decades at least; lower bounds may reach this many below it."""


def _panel(name: Definition, lines: Sequence[Bounds], several: bool) -> Panel:
    ends = _ends(lines)
    last = lines[-1] if lines else None
    notes = ["band: the exact value lies in it; dotted: size of the state"]
    if several:
        notes.append("bounds hold for every text, the measured line is the geometric mean")
    if any(one.upper_vacuous or one.bound_vacuous for one in lines):
        notes.append("gray: true but not useful, not below the size of the state")
    if any(one.bound is not None for one in lines):
        notes.append("dashed: what the formula of a paper gives")
    zero = [one.layer for one in lines if one.upper == -math.inf]
    if zero:
        notes.append(f"zero, which has no place on this axis: the upper bound of layers {ranges(zero)}")
    if not all(one.resolved for one in lines):
        notes.append("rings: measured, but not above its floor")
    drawn = [
        *(
            Line(name="", points=piece, style="none", color=PROVEN, dots=False)
            for piece in _band(lines, ends)
        ),
        Line(name="", points=_curve(lines, "trivial"), style="dotted", color=-1, dots=False),
    ]
    if last is not None:
        drawn += [
            Line(name=_end_name(lines, "upper", "at most"), points=_curve(lines, "upper"), color=PROVEN),
            Line(name=_end_name(lines, "lower", "at least"), points=_curve(lines, "lower"), color=PROVEN),
            Line(
                name=f"{last.bound_name}{'' if last.bound_proven else ' (not proven)'}",
                points=_curve(lines, "bound"),
                style="dashed",
                color=PRINTED,
            ),
            Line(
                name=f"measured {_starred(power(last.measured), last.resolved)}",
                points=_curve(lines, "measured"),
                color=MEASURED,
            ),
        ]
    return Panel(
        title=_capital(NAMES[name]),
        lines=drawn,
        value=name.partition("[")[0],
        inside=ends,
        notes=notes,
    )


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _ends(lines: Sequence[Bounds]) -> tuple[float, ...]:
    """The powers of ten that the axis holds. Bounds far from what was measured stand at its ends as triangles."""
    core = [one for line in lines for one in (line.measured_low, line.measured_high, line.trivial)]
    core += [line.upper for line in lines if not line.upper_vacuous]
    known = list(_decades(core))
    if not known:
        return ()
    lowest = min([*known, *_decades(line.lower for line in lines)])
    highest = max([*known, *_decades(one for line in lines for one in (line.upper, line.bound))])
    if (
        min(known) < -DEEP
    ):  # distances are those on a deep axis, where ticks are factors of ten in the exponent
        low, high = deep(min(known)), deep(max(known))
        below, above = BELOW * (high - low), ABOVE * (high - low)
        return max(lowest, _shallow(low - below)), min(highest, _shallow(high + above))
    low, high = min(known), max(known)
    reach = max(high - low, LEAST)
    return max(lowest, low - max(BELOW * reach, LEAST_BELOW)), min(highest, high + ABOVE * reach)


def _shallow(place: float) -> float:
    """The power of ten at a place of a deep axis."""
    return math.copysign(10.0 ** abs(place) - 1, place)


def _decades(logs: Iterable[float | None]) -> Iterable[float]:
    return (log / LN10 for log in logs if log is not None and math.isfinite(log))


def _curve(lines: Sequence[Bounds], name: str) -> list[Point]:
    toward = {"lower": -1, "upper": 1}.get(name, 0)
    words = {
        "lower": "at least",
        "upper": "at most",
        "bound": "printed bound",
        "trivial": "size of the state",
    }
    found = []
    for line in lines:
        log = getattr(line, name)
        place = next(iter(_decades([log])), None)
        by = getattr(line, f"{name}_by", None) or (line.bound_name if name == "bound" else None)
        faint = bool(getattr(line, f"{name}_vacuous", False))
        unknown = name == "measured" and not line.resolved
        tip = [
            f"{words.get(name, name)} {power(log, toward=toward)}",
            by or "",
            "not useful" if faint and place is not None else "",
            "not proven" if name == "bound" and not line.bound_proven else "",
            "not above its floor" if unknown else "",
        ]
        found.append(Point(line.layer, place, ", ".join(filter(None, tip)), faint=faint, hollow=unknown))
    return found


def _band(lines: Sequence[Bounds], ends: tuple[float, ...]) -> list[list[Point]]:
    """The proven band in pieces, gray where nothing beyond the size of the state is proven.

    Where the upper bound is vacuous the band ends at the size of the state, which is as true. A piece begins at the
    layer before its first, so that pieces touch.
    """
    if not ends:
        return []

    def place(log: float) -> float:
        return min(max(log / LN10, ends[0]), ends[1]) if math.isfinite(log) else ends[0 if log < 0 else 1]

    def point(line: Bounds, faint: bool) -> Point:
        high = place(line.trivial if line.upper_vacuous else line.upper)
        return Point(line.layer, high, low=place(line.lower), high=high, faint=faint)

    if len(lines) < 2:
        return [[point(one, one.vacuous) for one in lines]]
    pieces = []
    for faint, run in groupby(pairwise(lines), key=lambda pair: pair[1].vacuous):
        pairs = list(run)
        pieces.append([point(one, faint) for one in (pairs[0][0], *(after for _, after in pairs))])
    return pieces


def _end_name(lines: Sequence[Bounds], side: Literal["lower", "upper"], words: str) -> str:
    """What stands at the end of the line of a bound."""
    toward = -1 if side == "lower" else 1
    last = getattr(lines[-1], side)
    if math.isfinite(last):
        return f"{words} {power(last, toward=toward)}"
    until = max((one.layer for one in lines if math.isfinite(getattr(one, side))), default=0)
    return f"{side} bound, to layer {until}"
