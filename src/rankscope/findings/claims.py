"""``rankscope claims``: statements of the papers, run, with a verdict and the number that shows it."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, FiniteFloat, computed_field, field_validator, model_validator

from rankscope.charts import Chart, Grid, GridCell
from rankscope.core.words import count, listed, number
from rankscope.document import Block, Column, Document, Prose, Section, Tabular, Tone, some
from rankscope.document import Verdict as Judged
from rankscope.findings.asked import CommandConfig, option
from rankscope.findings.base import Finding, Number, Quoted, Value

if TYPE_CHECKING:
    from rankscope.results.statistics import Decision

Verdict = Literal["holds", "holds under an assumption", "false", "not checkable", "undecided"]
"""``undecided``: the numbers show neither what was expected nor its opposite."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

Relation = Literal["<", "<=", ">", ">=", "="]

SAID: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds under an assumption": ("holds under an assumption", "hold under an assumption"),
    "false": ("is false", "are false"),
    "not checkable": ("cannot be checked", "cannot be checked"),
    "undecided": ("is undecided", "are undecided"),
}
"""A verdict as the end of a sentence about one claim, and about several."""

MOST_NAMED = 6
"""Claims that one sentence names."""


class ClaimsConfig(CommandConfig):
    """Run statements of the papers, and of rankscope, and say which hold and which are false.

    A verdict follows from computed numbers. One claim alone is printed whole: statement, source, the assumption or the
    counter-example with its entries, and all numbers. Exit code 1 if a verdict is not the expected one.
    """

    group = "Claims"
    claims: tuple[str, ...] = option(
        (),
        "Claims to run, see 'rankscope list claims'; all if none is named.",
        positional=True,
        many=True,
    )
    seed: int = option(0, "Of the random draws.", ge=0, lt=2**53, shown="0")

    @field_validator("claims", mode="before")
    @classmethod
    def _several(cls, claims: Any) -> Any:
        """One name is a list of one."""
        return (claims,) if isinstance(claims, str) else claims


class _WithComputed(Value):
    """A value whose JSON repeats what is computed from it; that is dropped again on loading."""

    @model_validator(mode="before")
    @classmethod
    def _without_computed(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name not in cls.model_computed_fields}


class ComparedValue(_WithComputed, title="Compared"):
    """A figure and what it is compared with."""

    means: str
    """What the figure is."""

    value: Number
    """The figure, computed; null where it is not finite."""

    relation: Relation
    """How it should stand to the limit for the verdict."""

    limit: Number
    """A constant of the statement, or another computed figure."""

    is_rounding: bool = False
    """Whether it is a difference that would be zero without rounding: it says something by its order alone."""

    is_so: bool
    """Whether the relation is true."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The comparison to three digits; of rounding only that it is below its limit."""
        if self.is_rounding and self.is_so:
            return f"below {number(self.limit)}"
        shown = f"{number(self.value)} {self.relation} {number(self.limit)}"
        return shown if self.is_so else f"{shown} fails"


class Detail(_WithComputed):
    """What else is worth knowing about a claim: an entry of a counter-example, a count, a network."""

    label: str
    """What it is."""

    value: int | FiniteFloat | str | None
    """A number, or several in a text; null where it is not finite."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """The value as a person reads it: floats to four digits."""
        return str(self.value) if isinstance(self.value, int | str) else number(self.value, 4)


class CheckedClaim(_WithComputed, title="Checked"):
    """A claim that was run."""

    id: str
    """Its name."""

    title: Quoted
    """What it says, in a few words."""

    statement: Quoted
    """The whole of it, in words and as a formula."""

    source: str
    """Where it comes from, with the paper written out."""

    ref: str
    """The same in short."""

    expected: Verdict
    """The verdict that a proof or a counter-example gives it."""

    verdict: Verdict
    """What follows from the numbers."""

    words: Quoted
    """The argument that the claim declares: the assumption, or the counter-example with its entries."""

    numbers: tuple[ComparedValue, ...] = Field(min_length=1)
    """All figures the verdict rests on; the first one shows it."""

    details: tuple[Detail, ...] = ()
    """What else is worth knowing."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.verdict == self.expected

    @computed_field  # type: ignore[prop-decorator]
    @property
    def number(self) -> ComparedValue:
        """The figure that shows the verdict."""
        return self.numbers[0]

    @property
    def judged(self) -> str:
        """The verdict, and what was expected where that is something else."""
        return self.verdict if self.as_expected else f"{self.verdict} (expected: {self.expected})"

    @property
    def blocks(self) -> list[Block]:
        """All that there is to say: statement, source, verdict, argument, numbers."""
        rows = [[one.text, one.means] for one in self.numbers]
        rows += [[one.text, one.label] for one in self.details]
        said = [self.statement, f"Source: {self.source}", f"Verdict: {self.judged}", self.words]
        return [
            Prose(said),
            Tabular(columns=[Column("number", "words"), Column("what it is", "words")], rows=rows),
        ]


class ClaimsFinding(Finding):
    """Claims that were run, and what became of each."""

    command: ClassVar[str] = "claims"

    columns: ClassVar[Mapping[str, str]] = {
        "claim": "Name of the claim.",
        "relation": "How the value should stand to the limit.",
        "limit": "What the value is compared with.",
        "means": "What the value is.",
        "verdict": "What follows from the numbers.",
        "expected": "The verdict that a proof or a counter-example gives.",
        "as_expected": "Whether both are the same.",
        "title": "What the claim says, in a few words.",
        "source": "Where it comes from.",
    }

    claims: tuple[CheckedClaim, ...]
    """Every claim, in the order in which they were asked for."""

    @property
    def unexpected(self) -> tuple[CheckedClaim, ...]:
        """Those whose verdict is not the expected one."""
        return tuple(one for one in self.claims if not one.as_expected)

    @property
    def words(self) -> tuple[str, ...]:
        """Whether every verdict is the expected one, and how many there are of each kind."""
        if not self.claims:
            return ("No claim was run.",)
        if len(self.claims) == 1:
            one = self.claims[0]
            rather = "as rankscope expects" if one.as_expected else f"but was expected to be: {one.expected}"
            return (f"{one.id} ({one.title}) {SAID[one.verdict][0]}, {rather}.",)
        found = Counter(one.verdict for one in self.claims)
        kinds = [f"{found[kind]} {SAID[kind][found[kind] > 1]}" for kind in VERDICTS if found[kind]]
        many = count(len(self.claims), "claim")
        if not self.unexpected:
            every = "Both claims" if len(self.claims) == 2 else f"All {many}"
            same = f"{'both' if len(self.claims) == 2 else 'all'} {SAID[self.claims[0].verdict][1]}"
            return (f"{every} have the expected verdict: {same if len(found) == 1 else listed(kinds)}.",)
        named = [f"{one.id}: {one.judged}" for one in self.unexpected[:MOST_NAMED]]
        more = len(self.unexpected) - len(named)
        have = "have" if len(self.unexpected) > 1 else "has"
        return (
            f"{len(self.unexpected)} of {many} {have} another verdict than the expected one: {listed(named)}"
            f"{f' and {more} more' if more else ''}.",
            f"Of all claims {listed(kinds)}.",
        )

    @property
    def tone(self) -> Tone:
        """Green where every verdict is the expected one."""
        return "unknown" if not self.claims else "bad" if self.unexpected else "good"

    def decisions(self) -> "tuple[Decision, ...]":
        """Verdicts that were not expected."""
        from rankscope.results.statistics import Decision, Outcome

        return tuple(
            Decision(
                outcome=Outcome.CROSSED, words=f"{one.id}: expected {one.expected!r}, found {one.verdict!r}"
            )
            for one in self.unexpected
        )

    def document(self) -> Document:
        """One claim whole; of several a table of verdicts, and on a page below it every claim whole."""
        title = {"bad": "Not as expected", "good": "As expected"}.get(self.tone, "Nothing was run")
        wide = ("claim", "verdict", "number", "what it is", "says")
        rows = [[one.id, one.judged, one.number.text, one.number.means, one.title] for one in self.claims]
        alone = [Section(f"{one.id}: {one.title}", one.blocks) for one in self.claims]
        several = [
            Section("Verdicts", [_table(wide, rows)], only="html"),
            Section("Verdicts", [_table(wide[:-1], [row[:-1] for row in rows])], only="text"),
            Section("Every claim", alone, only="html"),
        ]
        return Document(
            title="Claims about rank collapse",
            command=self.command,
            facts=[count(len(self.claims), "claim")],
            blocks=some(Judged(title, self.words, self.tone), *(alone if len(self.claims) == 1 else several)),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """Claims against verdicts: where each claim ended; a bright cell is a verdict that was not expected."""
        cells = [[_cell(one, verdict) for verdict in VERDICTS] for one in self.claims]
        grid = Grid(
            title="Claims about rank collapse",
            rows=[one.id for one in self.claims],
            columns=[verdict.replace("holds under an assumption", "with assumption") for verdict in VERDICTS],
            cells=cells,
            down="claim",
            across="verdict",
            notes=self.words[:1],
        )
        return Chart([grid])


def _table(head: tuple[str, ...], rows: list[list[str]]) -> Tabular:
    kinds: dict[str, Literal["name", "words"]] = {"what it is": "words", "says": "words"}
    return Tabular(columns=[Column(name, kinds.get(name, "name")) for name in head], rows=rows)


def _cell(one: CheckedClaim, verdict: Verdict) -> GridCell:
    if one.verdict != verdict:
        return GridCell(None)
    tip = f"{one.id}: {one.judged}; {one.number.means}: {one.number.text}"
    return GridCell(0.4 if one.as_expected else 1.0, text=one.number.text, tip=tip)
