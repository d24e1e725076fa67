"""``rankscope compare``: what changed between scans, beyond chance and beyond rounding."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.words import NOTHING, clipped, count, listed, number, ranges
from rankscope.document import Column, Document, Figure, Notes, Section, Tabular, Tone, Verdict, some
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import Inputs, KeepingConfig, Limits, ModelLoading, option
from rankscope.findings.base import Finding, Number, Value
from rankscope.findings.scan import Condition

if TYPE_CHECKING:
    import polars as pl

    from rankscope.results import Decision

SITES = {
    "block": "after the block",
    "attention": "at the attention output",
    "mlp": "at the MLP output",
    "final": "after the final norm",
}
"""Where a number was measured, in words."""

MAIN = ("residual_ratio[composite,mean]", "residual_ratio[composite,mean,unit]")
"""Definitions whose worst layers are named in a sentence where the depths differ."""

MOST_LINES = 8
"""Groups of changes, and series, that get a sentence each; the fields hold all."""

LAST_SHOWN = (
    ("effective_rank[entropy]",),
    (
        "residual_ratio[frobenius,mean,unit]",
        "residual_ratio[composite,mean,unit]",
        "residual_ratio[composite,mean]",
    ),
    ("cosine[off_diagonal]",),
)
"""What is shown after the last block of every scan: of each group the first definition that was measured."""

LEAD_NAMES = {
    "effective rank": "Rank",
    "residual ratio": "Residual ratio",
    "cosine": "Mean cosine of tokens",
}
LAST_COLUMNS = {"effective rank": "rank", "residual ratio": "residual", "cosine": "cosine"}

MOST_LEADS = 2
"""Stacks that get a first sentence, and pictures of the last block over a series."""

LONGEST_CELL = 24
"""Letters of a scan's name in the table of all scans."""

STAR = "*"

RESULT, PAGE = "compare.json", "compare.html"
"""What stands in a folder beside the ledger."""

LARGEST = 10
"""Rows of the table of the largest changes; the table of the finding holds all."""

MOST_PANELS, MOST_CURVES = 4, 6
"""Pictures, and scans in one of them."""

LONGEST = 60
"""Letters of a scan's name in the title of the page."""

STEADY = 0.999
"""Kendall's coefficient beyond which every move has one direction, although few scans cannot exclude chance."""

CORRECTION = (
    "Student's t for every number, adjusted after Benjamini and Hochberg over all numbers of the comparison: of those "
    "called significant, an expected share of at most alpha is chance."
)


class CompareConfig(KeepingConfig, ModelLoading, Inputs):
    """Compare two or more models, or saved scans: checkpoints of a run, before and after a fix, two dtypes.

    Models are scanned with the same inputs. One folder of checkpoints, or of saved scans, is a series. A change counts
    if it is beyond chance over the texts, after correction for the many numbers compared, and beyond what rounding in
    either scan can make. Three or more scans also show the trend over the series. The record of a training run is a
    series too.
    """

    group = "What is compared"
    scans: tuple[str, ...] = option(
        (),
        "Models as scan takes them, or saved scans (.json, .parquet, .csv); the first is the baseline.",
        positional=True,
        many=True,
    )
    measures: tuple[str, ...] = option(
        (), "Only these definitions, see 'rankscope list measures'.", shown="all", old=("measure",)
    )
    sites: tuple[str, ...] = option(
        (), "Only these sites: block, attention, mlp, final.", shown="all", old=("site",)
    )
    alpha: float = option(0.05, "Share of false calls allowed among the changes called.", gt=0, lt=1)

    every: int | None = option(None, "Of a folder of checkpoints, every so many, and the last.", ge=1)
    follow: bool = option(False, "Go on as new checkpoints appear; needs a folder as --output.")
    idle: float | None = option(
        None,
        "Following ends when nothing new appears for this many seconds.",
        gt=0,
        allow_inf_nan=False,
        shown="never",
    )
    fail_if: tuple[str, ...] = option(
        (), "Exit with 1 if this holds of a block of any model: 'residual_ratio<0.01'; comma list."
    )

    seed: int = option(0, "Of initial weights, random tokens and sample inputs.", ge=0, lt=2**63)

    @classmethod
    def default_text(cls, name: str) -> str:
        """As a scan, a comparison looks at all runs of blocks."""
        return "all" if name == "stack" else super().default_text(name)

    @field_validator("fail_if")
    @classmethod
    def _conditions(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for one in given:
            Condition.parse(one)
        return given

    @model_validator(mode="after")
    def _idle_is_about_following(self) -> Self:
        if self.idle is not None and not self.follow:
            raise ConfigError(
                Option("idle", self.idle), " says when following ends; add ", Option("follow", True)
            )
        return self

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What must not hold of any model."""
        return tuple(Condition.parse(one) for one in self.fail_if)

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into a folder, beside the ledger."""
        return (RESULT, PAGE)

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*self.scans, *self.read_files)


class CompareView(Limits):
    """What makes the program fail."""

    limits: ClassVar = ("fail_if_changed",)
    fail_if_changed: bool = option(False, "Exit with 1 if anything changed significantly.")

    def decisions(self, finding: "CompareFinding") -> "Sequence[Decision]":
        """Whether anything changed, where that was asked."""
        return [finding.decision] if self.fail_if_changed else []


class LimitOutcome(Value):
    """What became of a limit in one of the models."""

    scan: str
    """The model."""

    condition: str
    """The limit."""

    outcome: Literal["crossed", "undecided"]
    """Whether it is crossed, or could not be decided; models that keep it are not listed."""

    @property
    def words(self) -> str:
        """One sentence, without a full stop."""
        return f"{self.condition} {'holds' if self.outcome == 'crossed' else 'is undecided'} in {self.scan}"


class ComparedStack(Value, title="StackVerdict"):
    """What a scan says of one stack of a model that has several."""

    stack: str
    """Name of the stack."""

    verdict: str | None
    """Its verdict."""

    starts: int | None = None
    """The layer from which on it holds, where the scan knows one."""


class ComparedScan(Value, title="Scanned"):
    """One of the scans."""

    name: str
    """The stem of its file or the name of its model; names differ."""

    model: str | None
    """The model that was scanned."""

    dtype: str | None
    """The arithmetic in which the model ran."""

    texts: int
    """How many texts were read."""

    tokens: Number
    """Tokens of a text, on average."""

    layers: dict[str, int]
    """Blocks of every stack."""

    verdict: str | None
    """The verdict that was saved with the scan."""

    stacks: tuple[ComparedStack, ...] = ()
    """Verdicts of single stacks, where the model has several."""

    step: int | None = None
    """The training step, of a scan that a monitor made."""


class Change(Value):
    """Significant changes of one definition at neighbouring layers that moved the same way, one group.

    The numbers ``before`` to ``size`` are those of the largest change of the group.
    """

    scan: str
    """The later scan."""

    stack: str
    """The stack of blocks."""

    site: str
    """Where it was measured."""

    definition: str
    """What was measured."""

    at: Literal["layer", "last block"]
    """Whether the same layers are compared, or the last block of each where the depths differ."""

    direction: Literal["rose", "fell"]
    """The sign of the change."""

    layers: tuple[int | None, int | None]
    """First and last layer of the group; null for the last block."""

    numbers: int
    """How many numbers are in the group."""

    layer: int | None
    """The layer of the largest change."""

    head: int | None
    """Its head, where heads were measured one by one."""

    before: float
    """The mean over texts in the baseline."""

    after: float
    """The mean over texts in the later scan."""

    change: float
    """After minus before."""

    spread: Number
    """Standard error of the change."""

    z: Number
    """Change over spread; null where there is no spread at all."""

    size: float
    """Change relative to the larger of before and after; of a cosine, the change itself."""

    before_resolved: bool = True
    """Whether before is above its floor."""

    after_resolved: bool = True
    """Whether after is above its floor."""

    @property
    def words(self) -> str:
        """What moved, where, by how much; without a full stop."""
        first, last = self.layers
        what = f"{_of(self.stack)}{self.definition} {SITES.get(self.site, self.site)}"
        if self.at == "last block":
            where, most = " at the last block of each", ""
        elif first == last:
            where, most = f" at layer {first}", ""
        else:
            where, most = f" at layers {first} to {last}", f", most at layer {self.layer}"
        if self.head is not None:
            where = f"{where} in {count(self.numbers, 'head')}"
            most = (
                f", most in head {self.head} of layer {self.layer}"
                if self.numbers > 1
                else f" (head {self.head})"
            )
        z = "no spread" if self.z is None else f"{abs(self.z):.1f} standard errors"
        before = _above_floor(number(self.before), is_resolved=self.before_resolved)
        after = _above_floor(number(self.after), is_resolved=self.after_resolved)
        return f"{what} {self.direction}{where}{most}: {before} before, {after} after ({z})"


class Against(Value):
    """One later scan against the baseline, counted."""

    scan: str
    """The later scan."""

    numbers: int
    """Numbers that both scans have."""

    changed: int
    """Those that changed significantly."""

    beyond_rounding: int
    """Those whose change is larger than both floors together."""

    within_rounding: int
    """Those whose change is not."""

    without_number: int
    """Those that have no number on one side: 0/0 or overflow."""

    without_spread: int
    """Those that could not be tested, because nothing is known of their spread over texts."""

    untested: tuple[str, ...] = ()
    """The definitions of the latter."""

    is_tested: bool
    """Whether any number has a spread."""

    is_paired: bool
    """Whether differences are taken text by text."""

    ratio_floor: Number = None
    """The largest floor of a residual ratio in either scan."""


class LastNumber(Value, title="LastBlock"):
    """One number after the last block of one scan, and its change against the baseline."""

    scan: str
    """The scan."""

    stack: str
    """The stack of blocks."""

    layer: int
    """The last block."""

    definition: str
    """What was measured."""

    value: Number
    """The mean over texts; null where there is none."""

    error: Number = None
    """Standard error of that mean over texts; null where nothing is known of it."""

    resolved: bool
    """Whether the value is above its floor."""

    change: Number = None
    """The value minus that of the baseline; null of the baseline itself."""

    beyond_rounding: bool | None = None
    """Whether the change is larger than both floors together."""

    significant: bool | None = None
    """Whether it is also beyond the spread over texts, tested among the numbers of the last block alone; null where
    that is not tested."""

    @property
    def against(self) -> str:
        """What became of the change, in a word or two."""
        if self.change is None:
            return NOTHING
        if self.significant:
            return "rose" if self.change > 0 else "fell"
        if not self.beyond_rounding:
            return "within rounding"
        return "not tested" if self.significant is None else "within spread"


class Only(Value):
    """What one scan has and the other one of the comparison lacks."""

    scan: str
    """The scan that has it."""

    lacks: str
    """The scan that lacks it."""

    kind: Literal["stack", "layer", "site", "definition", "head"]
    """What it is."""

    stack: str | None
    """The stack in which it is found; null for a whole stack."""

    names: tuple[int | str, ...]
    """Numbers of layers or heads, or names."""

    @property
    def words(self) -> str:
        """One sentence."""
        whole = [one for one in self.names if isinstance(one, int)]
        shown = ranges(whole) if whole else ", ".join(map(str, self.names))
        many = "s" if len(self.names) > 1 else ""
        return f"Only in {self.scan}: {_of(self.stack or 'blocks')}{self.kind}{many} {shown}."


class Comparison(Value):
    """What was compared, and what was found."""

    baseline: str
    """The scan that the others are held against."""

    scans: tuple[ComparedScan, ...]
    """All scans, the baseline first."""

    alpha: float
    """Expected share of false calls among the changes that are called significant, at most."""

    findings: tuple[Change, ...]
    """Groups of significant changes, largest first."""

    against: tuple[Against, ...]
    """Every later scan against the baseline, in counts."""

    only: tuple[Only, ...] = ()
    """What cannot be compared, because one of two scans lacks it."""


class End(Value):
    """The last block, or the worst layer, of a later scan against that of the baseline; the states after a block.

    There is no test against chance: a worst layer is chosen by its value, so its change is more extreme than that of
    a layer that was chosen beforehand.
    """

    scan: str
    """The later scan."""

    stack: str
    """The stack of blocks."""

    definition: str
    """What was measured."""

    at: Literal["last block", "worst layer"]
    """Which layer is meant."""

    before: float
    """The mean over texts in the baseline."""

    before_layer: int
    """Its layer."""

    after: float
    """The mean over texts in the later scan."""

    after_layer: int
    """Its layer."""

    change: float
    """After minus before."""

    resolved: bool
    """Whether the change is larger than both floors together."""


class TrendLine(Value):
    """One definition at the last block or the worst layer, followed over all scans."""

    stack: str
    """The stack of blocks."""

    definition: str
    """What was measured."""

    at: Literal["last block", "worst layer"]
    """Which layer is meant."""

    values: tuple[Number, ...]
    """The mean over texts in every scan; null where there is none."""

    layers: tuple[int | None, ...]
    """The layer in every scan."""

    tau: float
    """Kendall's coefficient of values and places."""

    p: float
    """Its p-value; exact for short series without ties."""

    p_adjusted: float
    """The same, adjusted after Benjamini and Hochberg over all lines."""

    slope: float
    """Median of the slopes between all pairs of scans (Theil and Sen)."""

    agreeing: int
    """Moves from one scan to the next that have the sign of the slope."""

    moves: int
    """Moves from one scan to the next."""

    resolved: bool
    """Whether the extremes are further apart than their floors together."""

    significant: bool
    """Whether the adjusted p is at most alpha, and the line resolved."""

    @property
    def known(self) -> list[float]:
        """The values that exist."""
        return [one for one in self.values if one is not None]

    @property
    def reach(self) -> float:
        """Distance of the extremes, relative to the larger of them."""
        return (max(self.known) - min(self.known)) / (max(map(abs, self.known)) or 1.0)

    @property
    def is_steady(self) -> bool:
        """Whether it moves beyond chance, or always the same way."""
        return self.resolved and (self.significant or abs(self.tau) > STEADY)

    @property
    def words(self) -> str:
        """One sentence."""
        direction = "rose" if self.slope > 0 else "fell"
        why = f"Kendall {self.tau:.2f}, adjusted p {number(self.p_adjusted, 2)}"
        if not self.significant:
            why = f"{len(self.known)} scans are too few to exclude chance"
        return (
            f"{_of(self.stack)}{self.definition} at the {self.at} {direction} from {number(self.known[0])} to "
            f"{number(self.known[-1])}, in {self.agreeing} of {count(self.moves, 'move')} ({why})."
        )


class Series(Value):
    """Three scans or more as a series."""

    order: Literal["by training step", "in the order the scans were given"]
    """How the scans are ordered."""

    x: tuple[int, ...]
    """Training steps, or places from zero on."""

    scans: tuple[str, ...]
    """Names of the scans in that order."""

    lines: tuple[TrendLine, ...]
    """What is followed."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if any(len(one) != len(self.x) for one in (self.scans, *(line.values for line in self.lines))):
            raise ValueError(
                f"a series of {len(self.x)} scans needs a name and a value of every line for each of them"
            )
        return self

    @property
    def steady(self) -> list[TrendLine]:
        """The lines that move steadily, significant ones first, then by their reach."""
        found = [line for line in self.lines if line.is_steady]
        return sorted(found, key=lambda line: (not line.significant, -line.reach))

    @property
    def words(self) -> tuple[str, ...]:
        """What moves steadily."""
        resolved = sum(line.resolved for line in self.lines)
        many = count(
            resolved,
            "definition at the last block or the worst layer",
            "definitions at the last block or the worst layer",
        )
        first = f"Over {len(self.x)} scans, {self.order}, {len(self.steady)} of {many} move steadily."
        alike = dict[tuple[str, str, str, bool], list[TrendLine]]()
        for line in self.steady:
            alike.setdefault((line.stack, _measure(line.definition), line.at, line.slope > 0), []).append(
                line
            )
        told = [f"{lines[0].words[:-1]}{_so_did(lines[1:])}." for lines in list(alike.values())[:MOST_LINES]]
        return (first, *told)


class CompareFinding(Finding):
    """Scans, and what changed between them."""

    command: ClassVar[str] = "compare"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = {
        "stack": "The stack of blocks.",
        "scan": "Name of the later scan.",
        "at": "layer, or last block where the depths differ; layer is null then.",
        "before": "Mean over texts in the baseline.",
        "after": "Mean over texts in the later scan.",
        "change": "After minus before; the same as value.",
        "ratio": "After over before; null unless both are above their floors.",
        "spread": "Standard error of the change over texts; null where nothing is known of it.",
        "z": "Change over spread.",
        "paired": "Whether the spread is that of differences text by text.",
        "texts": "Texts of the baseline that have a number.",
        "floor_after": "Floor of the later scan; floor is the sum of both.",
        "p_adjusted": "Student's p, adjusted after Benjamini and Hochberg over the whole table.",
        "significant": "Whether p_adjusted is at most alpha and the change beyond both floors; null if not tested.",
        "outcome": "crossed if significant, undecided where that cannot be said, else not crossed.",
    }

    compare: Comparison
    """What was compared, and what changed."""

    ends: tuple[End, ...]
    """The last block and the worst layer of every later scan against those of the baseline."""

    lasts: tuple[LastNumber, ...] = ()
    """Rank, residual ratio and cosine after the last block, of every scan."""

    trend: Series | None = None
    """The series, where there are three scans or more."""

    limits: tuple[LimitOutcome, ...] = ()
    """Limits that are crossed or undecided, in the order of the models."""

    definitions: dict[str, str]
    """What each measure is, by its id."""

    def decisions(self) -> "tuple[Decision, ...]":
        """What became of the limits; the first model that crosses one is named first."""
        from rankscope.results.statistics import Decision, Outcome

        return tuple(Decision(outcome=Outcome(one.outcome), words=one.words) for one in self.limits)

    def save_into(self, folder: str | os.PathLike[str], made_by: str = "") -> tuple[str, ...]:
        """Write the result and the page into a folder; their names."""
        from rankscope.results.files import write_atomically

        self.save(Path(folder) / RESULT)
        write_atomically(Path(folder) / PAGE, self.to_html(made_by).encode())
        return (RESULT, PAGE)

    @model_validator(mode="after")
    def _names_agree(self) -> Self:
        """Scans that are spoken of are among the scans, and the table has the columns that are shown."""
        known = {side.name for side in self.compare.scans}
        named = {self.compare.baseline, *(one.scan for one in self.compare.against)}
        if not self.compare.against or not named <= known:
            raise ValueError(
                f"compares {', '.join(sorted(named))}, but the scans are {', '.join(sorted(known))}"
            )
        missing = [name for name in self.columns if name not in self.table.frame.columns]
        if missing:
            raise ValueError(f"the rows have no column {', '.join(missing)}")
        return self

    @property
    def last(self) -> Against:
        """The scan that sentences are about: the later one of two, the last one of a series."""
        return self.compare.against[-1]

    @property
    def tone(self) -> Tone:
        """Look where something changed, green where nothing did."""
        if (
            self.last.changed
            or self._has_moved(self.last.scan)
            or self.is_verdict_changed
            or (not self.last.is_tested and self.last.beyond_rounding)
        ):
            return "look"
        return "good" if self.last.is_tested else "unknown"

    @property
    def is_verdict_changed(self) -> bool:
        """Whether the last scan has another verdict than the baseline."""
        before, after = self._side(self.compare.baseline).verdict, self._side(self.last.scan).verdict
        return before is not None and after is not None and before != after

    @property
    def heading(self) -> str:
        """The conclusion in a few words."""
        if self.last.changed:
            return "Changed"
        if self.last.without_number == self.last.numbers:
            return "Nothing could be compared"
        if self.is_verdict_changed:
            moved = self._has_moved(self.last.scan)
            return "The last block changed" if moved else "The verdict changed, no single number did"
        if self._has_moved(self.last.scan):
            return "The last block changed"
        if not self.last.beyond_rounding:
            return "Nothing changed beyond rounding"
        is_tested = self.last.is_tested
        return "No change beyond the spread over texts" if is_tested else "Changed, perhaps by chance"

    @property
    def words(self) -> tuple[str, ...]:
        """The conclusion, the verdicts, what changed most, and the trend of a series."""
        trend = () if self.trend is None else self.trend.words
        return (*self.leads, self.conclusion, *self.verdicts, *self.changes, *trend)

    @property
    def leads(self) -> tuple[str, ...]:
        """What became of the last block, from the baseline to the last scan: a sentence for each of its stacks."""
        stacks = dict.fromkeys(one.stack for one in self.lasts)
        return tuple(said for stack in [*stacks][:MOST_LEADS] if (said := self._lead(stack)))

    def _lead(self, stack: str) -> str:
        """Of rank, residual ratio and cosine the first that changed beyond chance, else the first that both have."""
        known = list[tuple[LastNumber, LastNumber]]()
        for definition in dict.fromkeys(one.definition for one in self.lasts):
            own = {one.scan: one for one in self.lasts if (one.stack, one.definition) == (stack, definition)}
            before, after = own.get(self.compare.baseline), own.get(self.last.scan)
            if (
                before is not None
                and after is not None
                and before.value is not None
                and after.value is not None
            ):
                known.append((before, after))
        if not known:
            return ""
        first, after = next((pair for pair in known if pair[1].significant), known[0])
        where = "the last block" if stack == "blocks" else f"the last block of {stack}"
        many = f" over {len(self.compare.scans)} scans" if len(self.compare.scans) > 2 else ""
        return f"{_lead_name(after.definition)} after {where} {_moved(first, after, many)}."

    @property
    def conclusion(self) -> str:
        """How many numbers changed."""
        one, base = self.last, self.compare.baseline
        many, way = count(one.numbers, "number"), f"from {base} to {one.scan}"
        if not one.numbers:
            return f"{base} and {one.scan} have no stack, layer, site and definition in common."
        if one.without_number == one.numbers:
            return f"None of {many} could be compared {way}: 0/0 or overflow on one side."
        if not one.is_tested:
            alone = "with one text" if self._side(one.scan).texts == 1 else "without rows of single texts"
            return (
                f"{one.beyond_rounding or 'None'} of {many} changed {way} beyond rounding; {alone} there is no spread "
                "over texts, so nothing tells a change from chance."
            )
        how = f"beyond chance (adjusted p at most {self.compare.alpha:g}) and beyond rounding"
        together = "Tested all together, " if not one.changed and self._has_moved(one.scan) else ""
        none = "none" if together else "None"
        return f"{together}{one.changed or none} of {many} changed {way}, {how}."

    def _has_moved(self, scan: str) -> bool:
        """Whether a number of the last block of a scan changed, beyond the spread over texts."""
        return any(one.significant for one in self.lasts if one.scan == scan)

    @property
    def verdicts(self) -> tuple[str, ...]:
        """How the verdict moves over the scans."""
        known = [(side.name, side.verdict) for side in self.compare.scans]
        missing = [name for name, verdict in known if verdict is None]
        found = [(name, verdict) for name, verdict in known if verdict is not None]
        runs = [
            (verdict, [name for name, _ in run]) for verdict, run in groupby(found, key=lambda pair: pair[1])
        ]
        said = []
        if len(runs) == 1:
            all_ = "both scans" if len(known) == 2 else "all scans"
            said.append(f"The verdict is {runs[0][0]} in {listed(runs[0][1]) if missing else all_}.")
        elif len(runs) > MOST_LINES:
            said.append(
                f"The verdict is {runs[0][0]} in {runs[0][1][0]} and {runs[-1][0]} in {runs[-1][1][-1]}, with "
                f"{len(runs) - 1} changes on the way."
            )
        elif runs:
            said.append(
                f"The verdict is {', then '.join(f'{verdict} in {_span(names)}' for verdict, names in runs)}."
            )
        if missing and runs:
            said.append(f"No verdict was saved with {listed(missing)}.")
        return (*said, *self._stack_verdicts())

    def _stack_verdicts(self) -> Iterator[str]:
        """Stacks whose verdict moves, of models that have several."""
        found = dict[str, list[tuple[str, str]]]()
        for side in self.compare.scans:
            for one in side.stacks if len(side.stacks) > 1 else ():
                starts = "" if one.starts is None else f" from layer {one.starts}"
                found.setdefault(one.stack, []).append((side.name, f"{one.verdict}{starts}"))
        for stack, verdicts in found.items():
            if len({verdict for _, verdict in verdicts}) > 1:
                (first, before), (last, after) = verdicts[0], verdicts[-1]
                yield f"The verdict of the stack {stack} is {before} in {first} and {after} in {last}."

    @property
    def changes(self) -> tuple[str, ...]:
        """The largest changes of the last scan, one sentence for all definitions of a measure that moved alike."""
        groups = dict[tuple[object, ...], list[Change]]()
        for one in self.compare.findings:
            if one.scan == self.last.scan:
                measure = one.definition.partition("[")[0]
                key = (one.stack, one.site, measure, one.at, one.direction, *one.layers)
                groups.setdefault(key, []).append(one)
        said = [f"{first.words}{_so_did(rest)}." for first, *rest in list(groups.values())[:MOST_LINES]]
        rest = len(groups) - MOST_LINES
        if rest > 0:
            said.append(
                f"There {'is' if rest == 1 else 'are'} {count(rest, 'more group')} of smaller changes."
            )
        return tuple(said)

    @property
    def notes(self) -> tuple[str, ...]:
        """What limits the comparison: tests that could not be made, depths, what is missing, rounding, pairs."""
        one, base = self.last, self._side(self.compare.baseline)
        said = list[str]()
        if one.is_tested and one.within_rounding:
            said.append(
                f"{count(one.within_rounding, 'difference')} of {one.scan} {_are(one.within_rounding)} within rounding."
            )
        if one.is_tested and one.without_spread:
            said.append(
                f"{count(one.without_spread, 'number')} without a spread over texts could not be tested: "
                f"{listed(one.untested)}."
            )
        said += self._depths()
        named = {side.scan for side in self.compare.against[-MOST_LINES:]}
        said += [only.words for only in self.compare.only if {only.scan, only.lacks} & named]
        said += [
            line for side in self.compare.against if side.scan in named for line in self._precision(side)
        ]
        if one.is_paired and one.numbers:
            said.append(f"Differences are taken text by text ({count(base.texts, 'text')}).")
        elif one.numbers:
            after = self._side(one.scan)
            known = base.tokens is not None and after.tokens is not None
            tokens = f", {number(base.tokens)} and {number(after.tokens)} tokens on average" if known else ""
            said.append(
                f"Not paired text by text ({base.texts} and {after.texts} texts{tokens}): the texts differ, or rows of "
                "single texts were not kept; then a difference may also come from the texts."
            )
        return tuple(said)

    def _depths(self) -> Iterator[str]:
        """Where depths differ: which layers were compared, and the worst layers in the main definitions."""
        base, after = self._side(self.compare.baseline), self._side(self.last.scan)
        for stack, a in base.layers.items():
            b = after.layers.get(stack, a)
            if a == b:
                continue
            yield (
                f"{_of(stack)}{a} blocks in {base.name}, {b} in {after.name}: layers 0 to {min(a, b)} are compared one "
                "by one, and the last blocks with each other."
            )
            for end in self.ends:
                is_here = (end.scan, end.stack, end.at) == (after.name, stack, "worst layer")
                if is_here and end.definition in MAIN:
                    yield (
                        f"{_of(stack)}{end.definition} at the worst layer: {number(end.before)} before (layer "
                        f"{end.before_layer}), {number(end.after)} after (layer {end.after_layer})."
                    )

    def _precision(self, one: Against) -> Iterator[str]:
        base, side = self._side(self.compare.baseline), self._side(one.scan)
        if base.dtype is not None and side.dtype is not None and base.dtype != side.dtype:
            floor = (
                ""
                if one.ratio_floor is None
                else f" (floor of a residual ratio up to {number(one.ratio_floor)})"
            )
            yield (
                f"{base.name} ran in {base.dtype} and {side.name} in {side.dtype}{floor}: {one.within_rounding} of "
                f"{count(one.numbers, 'difference')} are within rounding and say nothing."
            )
        if one.without_number:
            yield (
                f"{count(one.without_number, 'number')} could not be compared in {side.name}: 0/0 or overflow on one "
                "side."
            )

    def _side(self, name: str) -> ComparedScan:
        return next(side for side in self.compare.scans if side.name == name)

    @property
    def decision(self) -> "Decision":
        """Whether anything changed, with the largest number that decides it."""
        import polars as pl

        from rankscope.results.statistics import Decision, Outcome, worst

        outcome = worst(map(Outcome, self.table.frame["outcome"].unique()))
        if outcome is Outcome.CLEAR:
            return Decision(outcome=outcome)
        rows = by_size(self.table.frame.filter(pl.col("outcome") == outcome))
        row = rows.row(0, named=True)
        head = "" if row["head"] is None else f", head {row['head']}"
        layer = "the last block" if row["layer"] is None else f"layer {row['layer']}"
        words = (
            f"{row['definition']} at {layer}{head} of {row['stack']}, {row['site']}, in {row['scan']}: value "
            f"{number(row['before'])} before, {number(row['after'])} after, rounding floor {number(row['floor'])}, "
            f"p {number(row['p_adjusted'])} against the limit {self.compare.alpha:g}"
        )
        more = f"; so for {rows.height - 1} more" if rows.height > 1 else ""
        if outcome is Outcome.CROSSED:
            return Decision(outcome=outcome, words=f"changed: {words}{more}")
        if row["change"] is None:
            why = "a text or both have no number there (NaN, infinity or zeros)"
        elif row["p_adjusted"] is None:
            why = "one text has no spread to tell change from chance; scan two texts or more"
        elif abs(row["change"]) <= (row["floor"] or math.inf):
            why = "more than chance, and no more than rounding can make; scan in a wider dtype"
        else:
            why = "some texts have no number there (NaN, infinity or zeros)"
        return Decision(outcome=outcome, words=f"whether anything changed is undecided: {words}: {why}{more}")

    def document(self) -> Document:
        """The conclusion, what changed, curves, the largest changes number by number, and the scans."""
        trend = () if self.trend is None else self.trend.words
        return Document(
            title=f"{clipped(self.last.scan, LONGEST)} against {clipped(self.compare.baseline, LONGEST)}",
            command=self.command,
            facts=[count(len(self.compare.scans), "scan"), count(self.last.numbers, "number")],
            blocks=some(
                Verdict(self.heading, [*self.leads, self.conclusion, *self.verdicts], self.tone),
                self._checkpoints(),
                Section("Curves", [Figure(picture) for picture in self.chart().pictures], only="html"),
                Section("What changed", [Notes(self.changes)]) if self.changes else None,
                Section("Trend", [Notes(trend)]) if trend else None,
                self._largest(),
                Section("Scans", [self._scans()]),
                Section("What limits the comparison", [Notes(self.notes)]) if self.notes else None,
            ),
            definitions=[*self.definitions.items(), ("significant", CORRECTION)],
            origin=self.provenance,
        )

    def _checkpoints(self) -> Section | None:
        """One row per scan: what is left after its last block."""
        stacks = list(dict.fromkeys(one.stack for one in self.lasts))
        definitions = list(dict.fromkeys(one.definition for one in self.lasts))
        if not definitions:
            return None
        found = {(one.scan, one.stack, one.definition): one for one in self.lasts}
        columns = [
            Column("scan", "name"),
            *([Column("stack", "name")] if len(stacks) > 1 else []),
            Column("step", optional=True),
            Column("block"),
            *(Column(LAST_COLUMNS.get(_measure(one), _measure(one))) for one in definitions),
            Column(f"{LAST_COLUMNS.get(_measure(definitions[0]), 'it')} is", "name"),
            Column("verdict", "name", optional=True),
        ]
        rows = []
        for side in self.compare.scans:
            for stack in (one for one in stacks if one in side.layers):
                own = [found.get((side.name, stack, definition)) for definition in definitions]
                first = own[0]
                rows.append(
                    [
                        clipped(side.name, LONGEST_CELL),
                        *([stack] if len(stacks) > 1 else []),
                        NOTHING if side.step is None else str(side.step),
                        str(side.layers[stack]),
                        *(
                            NOTHING if one is None else f"{number(one.value)}{'' if one.resolved else STAR}"
                            for one in own
                        ),
                        "baseline"
                        if side.name == self.compare.baseline
                        else NOTHING
                        if first is None
                        else first.against,
                        side.verdict or NOTHING,
                    ]
                )
        legend = "Means over texts. Rank: how many directions tokens use. *: not above its rounding floor."
        return Section("After the last block", [Tabular(columns=columns, rows=rows)], note=legend)

    def _largest(self) -> Section | None:
        """The ten largest changes of the last scan, number by number."""
        frame = self.table.frame.filter(self.table.frame["scan"] == self.last.scan)
        # Without a spread nothing is significant; then what is beyond rounding is all there is to show.
        shown = by_size(frame.filter(frame["significant" if self.last.is_tested else "resolved"])).head(
            LARGEST
        )
        if not shown.height:
            return None
        names = [name for name in ("stack", "head") if frame[name].n_unique() > 1]
        names += ["definition", "site", "layer"]
        numbers = ["before", "after", "change", "ratio", "spread", "z"]
        rows = [
            [
                *(NOTHING if row[name] is None else str(row[name]) for name in names),
                *(
                    number(row[name]) + ("" if row.get(f"{name}_resolved", True) else STAR)
                    for name in numbers
                ),
            ]
            for row in with_resolved(shown).iter_rows(named=True)
        ]
        what = (
            "Largest significant changes"
            if self.last.is_tested
            else "Largest changes beyond rounding, not tested"
        )
        columns = [
            *(Column(name, "number" if name in ("layer", "head") else "name") for name in names),
            *map(Column, numbers),
        ]
        note = "spread: standard error over texts; layer -: the last block of each"
        if any(cell.endswith(STAR) for row in rows for cell in row):
            note += "; *: not above its rounding floor"
        return Section(what, [Tabular(columns=columns, rows=rows)], note=note)

    def _scans(self) -> Tabular:
        columns = [
            *(
                Column("scan", "name"),
                Column("model", "name", optional=True),
                Column("dtype", "name", optional=True),
            ),
            *(
                Column("texts"),
                Column("tokens", optional=True),
                Column("layers"),
                Column("step", optional=True),
            ),
        ]
        rows = [
            [
                *(
                    side.name,
                    side.model or NOTHING,
                    side.dtype or NOTHING,
                    str(side.texts),
                    number(side.tokens),
                ),
                " + ".join(map(str, side.layers.values())),
                NOTHING if side.step is None else str(side.step),
            ]
            for side in self.compare.scans
        ]
        return Tabular(columns=columns, rows=rows)

    def chart(self) -> Chart:
        """Before and after over layers, for what changed most; of a series also its course over the scans."""
        import polars as pl

        from rankscope.results.table import read_rows

        key = ["stack", "site", "head", "definition"]
        frame = by_size(self.table.frame.filter(pl.col("at") == "layer"))
        # What changed most first; what is within rounding, or has no number, comes last.
        rank = (
            pl.when(pl.col("significant").fill_null(value=False) & pl.col("resolved"))
            .then(2.0)
            .otherwise(0.0)
        )
        order = (
            frame.with_columns((rank + pl.col("size").fill_null(-1.0)).alias("rank"))
            .group_by(key, maintain_order=True)
            .agg(pl.col("rank").max())
            .sort("rank", descending=True, maintain_order=True)
        )
        found = read_rows(order, _PanelSubject)
        # One panel per measure and place before a second definition, or a second head, of the same one.
        firsts = dict[tuple[str, str, str], _PanelSubject]()
        for one in found:
            firsts.setdefault((one.stack, one.site, _measure(one.definition)), one)
        chosen = [*firsts.values(), *(one for one in found if one not in firsts.values())]
        panels = [self._panel(one, frame) for one in chosen[:MOST_PANELS]]
        if not panels:
            why = "no layer was measured in both: only the last blocks are compared, see the table"
            panels = [Panel(title="Before and after", lines=[], notes=[why])]
        return Chart([*self._series_of_lasts(), *panels, *self._courses()], title=self.picture_title)

    def _series_of_lasts(self) -> list[Panel]:
        """Of a series, the last block over the scans."""
        if self.trend is None or not self.lasts:
            return []
        place = dict(zip(self.trend.scans, self.trend.x, strict=True))
        is_by_step = self.trend.order == "by training step"
        names = (
            []
            if is_by_step or len(place) > MOST_LINES
            else [(x, clipped(one, 12)) for one, x in place.items()]
        )
        panels = []
        for definition in list(dict.fromkeys(one.definition for one in self.lasts))[:MOST_LEADS]:
            own = [one for one in self.lasts if one.definition == definition and one.scan in place]
            lines = [
                Line(
                    name=_measure(definition) if stack == "blocks" else stack,
                    points=[_last_point(one, place[one.scan]) for one in own if one.stack == stack],
                )
                for stack in dict.fromkeys(one.stack for one in own)
            ]
            panels.append(
                Panel(
                    title=f"{_lead_name(definition)} after the last block",
                    lines=lines,
                    value=_measure(definition),
                    across="training step" if is_by_step else "scan",
                    scale="linear",
                    places=names,
                    notes=[definition, "means over texts; a band is one standard error of the mean"],
                )
            )
        return panels

    def _panel(self, what: "_PanelSubject", frame: "pl.DataFrame") -> Panel:
        import polars as pl

        from rankscope.results.table import read_rows

        own = frame.filter(
            pl.all_horizontal(pl.col(name).eq_missing(pl.lit(value)) for name, value in asdict(what).items())
        )
        later = [one.scan for one in self.compare.against]
        if len(later) >= MOST_CURVES:  # an even choice that ends with the last one
            later = [
                later[-1 - at * len(later) // (MOST_CURVES - 1)] for at in reversed(range(MOST_CURVES - 1))
            ]
        is_log = own["measure"][0] in ("residual_ratio", "residual", "diameter") and all(
            value is not None and value > 0 for name in ("before", "after") for value in own[name]
        )
        base = read_rows(own.unique("layer", keep="first", maintain_order=True).sort("layer"), _Layer)
        first = [_point(row, self.compare.baseline, is_log, before=True) for row in base]
        lines = [Line(name=self.compare.baseline, points=first, color=-1)]
        for scan in later:
            rows = read_rows(own.filter(pl.col("scan") == scan).sort("layer"), _Layer)
            if rows:
                lines.append(Line(name=scan, points=[_point(row, scan, is_log) for row in rows]))
        head = "" if what.head is None else f", head {what.head}"
        title = _title(what.stack, what.definition)
        return Panel(
            title=f"{title} {SITES.get(what.site, what.site)}{head}",
            lines=lines,
            value=_measure(what.definition),
            scale="log" if is_log else "linear",
            notes=[what.definition, "means over texts; a band is one standard error of the change"],
        )

    def _courses(self) -> list[Panel]:
        """The series, for the definitions that move most steadily."""
        if self.trend is None:
            return []
        first = list(dict.fromkeys(one.definition for one in self.lasts))[:MOST_LEADS]
        drawn = {_measure(one) for one in first}
        ranked = [
            line for line in [*self.trend.steady, *self.trend.lines] if _measure(line.definition) not in drawn
        ]
        firsts = {(line.stack, _measure(line.definition)): line.definition for line in reversed(ranked)}
        chosen = [(stack, firsts[stack, measure]) for stack, measure in reversed(firsts)]
        return [
            Panel(
                title=f"{_title(stack, definition)} over the scans",
                lines=[
                    Line(
                        name=line.at,
                        points=[
                            Point(x, y, f"{scan}, {line.at}: {number(y)}")
                            for x, y, scan in zip(self.trend.x, line.values, self.trend.scans, strict=True)
                        ],
                    )
                    for line in self.trend.lines
                    if (line.stack, line.definition) == (stack, definition)
                ],
                value=_measure(definition),
                across="training step" if self.trend.order == "by training step" else "scan",
                scale="linear",
                notes=[definition],
            )
            for stack, definition in chosen[: MOST_PANELS // 2]
        ]


def by_size(frame: "pl.DataFrame") -> "pl.DataFrame":
    """The rows, largest changes first, with their ``size``: change relative to the larger of before and after.

    Cosines have a scale of their own and may be zero, so their size is the change itself.
    """
    import polars as pl

    larger = pl.max_horizontal(pl.col("before").abs(), pl.col("after").abs())
    scale = pl.when(pl.col("measure") == "cosine").then(1.0).otherwise(larger)
    size = pl.when(scale > 0).then(pl.col("change").abs() / scale).otherwise(0.0)
    return frame.with_columns(size.alias("size")).sort("size", descending=True, maintain_order=True)


def with_resolved(frame: "pl.DataFrame") -> "pl.DataFrame":
    """The rows with whether ``before`` and ``after`` are above their own floors, of which ``floor`` is the sum."""
    import polars as pl

    floors = {"before": pl.col("floor") - pl.col("floor_after"), "after": pl.col("floor_after")}
    above = {
        f"{side}_resolved": ((pl.col(side).abs() > floor) | (floor <= 0)).fill_null(value=True)
        for side, floor in floors.items()
    }
    return frame.with_columns(**above)


@dataclass(frozen=True, kw_only=True, slots=True)
class _PanelSubject:
    """What one panel shows."""

    stack: str
    site: str
    head: int | None
    definition: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """What a point is drawn from: columns of a row."""

    layer: int
    before: float | None
    after: float | None
    change: float | None
    spread: float | None
    floor: float | None
    floor_after: float | None
    significant: bool | None


def _point(row: _Layer, name: str, is_log: bool, *, before: bool = False) -> Point:
    """The mean of one layer; hollow where it is not above its own floor."""
    value = row.before if before else row.after
    after, both = row.floor_after, row.floor
    floor = math.inf if after is None or both is None else both - after if before else after

    def scaled(one: float | None) -> float | None:
        return one if one is None or not is_log else math.log10(one) if one > 0 else None

    tip = f"{name}: {number(value)}"
    low = high = None
    if not before and row.change is not None:
        tip += f", change {number(row.change)}"
        if row.spread is not None and value is not None:
            low, high = value - row.spread, value + row.spread
            tip += f" (standard error {number(row.spread)})"
        tip += {True: ", significant", False: ", not significant", None: ", not tested"}[row.significant]
    band = (scaled(low), scaled(high))
    if None in band:
        band = (None, None)
    is_hollow = value is None or abs(value) <= floor
    return Point(row.layer, scaled(value), tip, low=band[0], high=band[1], hollow=is_hollow)


def _lead_name(definition: str) -> str:
    return LEAD_NAMES.get(_measure(definition), _title("blocks", definition))


def _last_point(one: LastNumber, x: int) -> Point:
    band = (
        (None, None)
        if one.value is None or one.error is None
        else (one.value - one.error, one.value + one.error)
    )
    tip = f"{one.scan}: {number(one.value)}"
    return Point(x, one.value, tip, low=band[0], high=band[1], hollow=not one.resolved)


def _above_floor(text: str, *, is_resolved: bool) -> str:
    """A number, or what is known of one that rounding hides."""
    return text if is_resolved else "0 up to rounding"


def _moved(first_of_all: LastNumber, after: LastNumber, many: str) -> str:
    """From where to where, and what explains it."""
    before = first_of_all.value or 0.0
    value = before if after.value is None else after.value
    digits = next((one for one in range(3, 9) if number(before, one) != number(value, one)), 3)
    first = _above_floor(number(before, digits), is_resolved=first_of_all.resolved)
    last = _above_floor(number(value, digits), is_resolved=after.resolved)
    if not after.beyond_rounding:
        return f"stayed at {number(before)}{many}, up to rounding"
    way = "fell" if value < before else "rose"
    if after.significant:
        return f"{way} from {first} to {last}{many}, beyond the spread over texts"
    if after.significant is None:
        return f"{way} from {first} to {last}{many}; without a spread over texts, that may be chance"
    return f"went from {first} to {last}{many}, within the spread over texts"


def _of(stack: str) -> str:
    """What names a stack at the start of a sentence; nothing for the only one."""
    return "" if stack == "blocks" else f"{stack}: "


def _measure(definition: str) -> str:
    return definition.partition("[")[0].replace("_", " ")


def _title(stack: str, definition: str) -> str:
    name = f"{_of(stack)}{_measure(definition)}"
    return f"{name[:1].upper()}{name[1:]}"


def _are(many: int) -> str:
    return "is" if many == 1 else "are"


def _so_did(rest: Sequence[Change | TrendLine]) -> str:
    return f"; so did {', '.join(one.definition for one in rest)}" if rest else ""


def _span(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"
