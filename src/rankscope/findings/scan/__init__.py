"""``rankscope scan``: whether the tokens of a live model become equal, layer by layer, and what else they do."""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    FiniteFloat,
    computed_field,
    field_validator,
    model_validator,
)

from rankscope.charts import Chart
from rankscope.core.words import NOTHING, clipped, count, listed, number, percent, sentence
from rankscope.document import (
    Beside,
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Figure,
    Lines,
    Notes,
    Section,
    Strip,
    StripPiece,
    Tabular,
    Tone,
    some,
)
from rankscope.document import Verdict as Headline
from rankscope.errors import ConfigError, Option, options
from rankscope.findings.asked import A, KeepingConfig, Limits, ModelInputs, SharedWork, option
from rankscope.findings.base import Finding, Number, Quoted, Value
from rankscope.findings.blocks import how_to_read, text_lengths
from rankscope.findings.embeddings import Pooling
from rankscope.findings.reading import TokensRead, source_words
from rankscope.findings.scan.entries import (
    ABOVE_FLOOR,
    FINAL,
    NOT_RESOLVED,
    SHORT,
    STAR,
    Entry,
    full_label,
    head_maps,
    headline,
    maps,
    of_stack,
    site_panels,
    stacks_of,
)
from rankscope.findings.subject import RESIDUAL_WORDS
from rankscope.findings.tree import BLANKS, TreeValue
from rankscope.findings.verdict import (
    RATIO,
    RAW,
    UNIT,
    Name,
    StackVerdict,
    Thresholds,
    Verdict,
    Weight,
    judged_name,
    rule_words,
)

if TYPE_CHECKING:
    from rankscope.results import Table
    from rankscope.results.statistics import Decision, Outcome

TONES: dict[Name, Tone] = {
    **{"healthy": "good", "collapsing": "bad", "collapsed": "bad", "ill": "bad"},
    **{"undecided": "unknown", "no numbers": "unknown"},
}
"""How a verdict is colored; a name that is not here is a confounder: look closer."""

FALLEN = ("collapsing", "collapsed")
"""Verdicts that say that tokens become equal, or are."""

COLUMNS = (
    RAW,
    UNIT,
    *("cosine[off_diagonal]", "token_share[largest]", "channel_share[largest]"),
    *("effective_rank[entropy]", "effective_rank[entropy,centered]"),
)
"""What a terminal shows of every block; everything else is in the other formats."""

MEANINGS = {
    RAW: "the Frobenius norm (root of the sum of squares) of the residual, divided by that of the tokens. Tokens are "
    "not scaled here, so long ones count more.",
    UNIT: "as explained above.",
    "cosine[off_diagonal]": "mean cosine over all pairs of tokens; 1: all point the same way.",
    "token_share[largest]": "share of the sum of squares of all entries that is due to the longest token; 1/n if all n "
    "tokens are equally long, near 1 if one is far longer than all others.",
    "channel_share[largest]": "share of that sum that is due to the largest channel (one coordinate of all tokens).",
    "effective_rank[entropy]": "about how many directions the tokens use: exp of the entropy of the singular values of "
    "the token matrix, scaled to sum one; {most}.",
    "effective_rank[entropy,centered]": "the same of the residual. It may be larger: the direction that all tokens "
    "share is gone, and the others weigh more evenly.",
}
"""What stands in these columns."""

NEXT = (
    "Next: 'rankscope ablate MODEL --blame --suggest' tells which parts of the model keep tokens apart and which pull "
    "them together."
)
"""What a reader may want to ask after a scan."""

NUMBERS_SHOWN = 8
"""Numbers of the deciding layer that stand beside its curve."""

LONGEST_WORDS = 1000
"""Letters of a value that a page shows; a name may be of any length."""


# ---------------------------------------------------------------------------------------------------- what is asked


def _pairs(given: Any) -> Any:
    """Thresholds typed as ``name=value,...``, by their names."""
    if not isinstance(given, str):
        return given
    pairs = [one.partition("=") for one in given.split(",") if one.strip()]
    for name, sign, value in pairs:
        if not sign or not value.strip():
            raise ConfigError(
                f"threshold {name!r}: expected name=value, as in collapsed=0.05 (rankscope list thresholds)"
            )
    return {name.strip(): value.strip() for name, _, value in pairs}


RESULT, PAGE = "scan.json", "scan.html"
"""What stands in a folder beside the ledger."""

SHARD = 256
"""Texts of a shard: seconds of work, so that little is lost with a worker, and a part of some kilobytes."""


class ScanConfig(KeepingConfig, SharedWork, ModelInputs):
    """Measure a live model layer by layer and say in plain words whether its tokens are collapsing.

    Hooks reduce every state to numbers where it appears: after attention, after the MLP, after the block and after the
    final norm. Padding and special tokens are left out. Numbers that are not above their rounding floor are marked. In
    place of a model a .npy or .safetensors file of hidden states may be named; --axes layers,tokens,dim then says what
    its axes are, where that is not clear. With --across inputs not the tokens of a text are compared but inputs, one
    row each: pooled tokens of every layer, or the rows of a file of embeddings. Of many texts, --workers or --cluster
    share them shard by shard, and --output FOLDER keeps what is done, so that the same command goes on.
    """

    group = "What is measured"
    spectra: bool = option(True, "Effective ranks, once per block.")
    full: bool = option(False, "One of every other measure too: singular values, best centers.")
    attention: bool = option(False, "Entropy, Dobrushin, gap and sink share of every head.")
    exact: bool = option(False, "With --attention: eigenvalues and all pairs of rows, no brackets; slow.")
    gradients: bool = option(False, "Gradients of query, key and value weights.")
    loss: str | None = option(None, "module:function of model and batch, for --gradients.")
    tree: bool = option(False, "The model as a tree of parts, and how much of its weights that covers.")
    measures: tuple[str, ...] = option(
        (), "More measures per block, see 'rankscope list measures'.", old=("measure",)
    )
    thresholds: Annotated[Thresholds, BeforeValidator(_pairs)] = option(
        Thresholds(),
        "Of the verdict: name=value, comma list, see 'rankscope list thresholds'.",
        shown="those of the list",
        old=("threshold",),
    )
    across: Literal["tokens", "inputs"] = option(
        "tokens", "What is compared: the tokens of every input, or inputs, one row each."
    )
    pooling: Pooling | None = option(
        None,
        "Across inputs: how the tokens of an input become one row, mean, cls (first), last or max.",
        shown="what the model declares, else mean",
    )
    shard_size: int | None = option(
        None, "Texts of a shard, which one process measures and keeps.", ge=1, shown=f"{SHARD}, with workers"
    )
    stream: bool = option(
        False, "Read the weights of a folder block by block: the model may be larger than memory."
    )
    seed: int = option(0, "Of initial weights, random tokens and sample inputs.", ge=0, lt=2**63)

    of_inputs: ClassVar = ("pooling",)
    """Options that are about rows of inputs alone."""

    of_tokens: ClassVar = (
        *("spectra", "full", "attention", "gradients", "loss", "tree", "measures", "thresholds"),
        *("cluster", "shard_size"),
    )
    """Options that are about the tokens of one input alone."""

    of_whole: ClassVar = (
        *("gradients", "loss", "tree", "blocks", "inputs", "call", "loader", "weights", "allow_pickle"),
    )
    """Options that need a model that is in memory whole."""

    of_states: ClassVar = ("model", "axes", "spectra", "full", "measures", "thresholds")
    """Options that hidden states from outside can use; all others need a live model."""

    of_shards: ClassVar = ("workers", "cluster", "shard_size")
    """Options that cut texts into shards."""

    whole: ClassVar = ("gradients", "loss", "tree", "max_texts")
    """Options that are about the first texts of all, which one shard alone does not know."""

    @classmethod
    def default_text(cls, name: str) -> str:
        """Where other commands take the first run of blocks, a scan looks at all."""
        return "all" if name == "stack" else super().default_text(name)

    @field_validator("measures")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names))

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into a folder, beside the ledger."""
        return (RESULT, PAGE)

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*super().reads, self.loss)

    def check_across(self, *, is_file: bool) -> None:
        """Raise if an option was given that has no effect on what is compared."""
        wrong = self.of_tokens if self.across == "inputs" else self.of_inputs
        names = sorted(self.explicit & set(wrong))
        if names:
            other = "tokens" if self.across == "inputs" else "inputs"
            raise ConfigError(
                *options(names), " has no effect here; leave it out, or compare ", Option("across", other)
            )
        if self.across == "inputs" and not is_file and "workers" in self.explicit:
            raise ConfigError(
                Option("workers"),
                " has no effect on a live model: it is about reading a file of rows; leave it out",
            )
        names = (
            sorted(self.explicit - {"model", "across", "workers"})
            if is_file and self.across == "inputs"
            else []
        )
        if names:
            raise ConfigError(*options(names), " needs a live model; a file of rows is measured as it is")

    def check_stream(self, *, is_kept: bool) -> None:
        """Raise if an option was given that needs the whole model, where it is read block by block.

        ``is_kept``: whether what is done is to be kept in a folder, shard by shard.
        """
        if not self.stream:
            return
        names = sorted(self.explicit & {*self.of_whole, *self.of_shards})
        names += ["across"] if self.across == "inputs" else []
        names += ["output"] if is_kept and not names else []
        if names:
            raise ConfigError(
                *options(names),
                " cannot be used beside ",
                Option("stream", True),
                ", where all texts go through the model together and a block at a time is in memory; leave one of them "
                "out",
            )
        if self.device != "cpu":
            raise ConfigError(
                Option("device", self.device),
                ": a model is read block by block to the cpu; leave this out, or ",
                Option("stream", True),
            )

    def check_states(self) -> None:
        """Raise if an option was given that hidden states alone cannot use."""
        names = sorted(self.explicit - set(self.of_states))
        if names:
            raise ConfigError(
                *options(names), " needs a live model; a file of hidden states is measured as it is"
            )


_FORM = re.compile(r"\s*(?P<measure>[a-z0-9_]+(?:\[[^\]]*\])?)\s*(?P<operator><=|>=|<|>)\s*(?P<limit>\S+)\s*")


class Condition(Value):
    """A measure on one side of a limit, in any block after the first layer's input."""

    measure: str
    """As it was named; a bare name means the default definition."""

    operator: Literal["<=", ">=", "<", ">"]
    """How it is compared."""

    limit: FiniteFloat
    """With what."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """The condition that a text means.

        >>> Condition.parse("residual_ratio < 0.01").limit
        0.01
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"condition {text!r}: expected a measure, one of < <= > >=, and a number, as in 'residual_ratio<0.01'"
            )
        try:
            limit = float(found["limit"])
        except ValueError:
            raise ConfigError(f"condition {text!r}: {found['limit']!r} is not a number") from None
        if not math.isfinite(limit):
            raise ConfigError(f"condition {text!r}: the limit must be a finite number")
        return cls.model_validate(found.groupdict() | {"limit": limit})

    def text(self, definition: str) -> str:
        """The condition with the whole definition."""
        return f"{definition}{self.operator}{number(self.limit)}"


class ScanView(Limits):
    """Conditions on a scan, and whether an unfinished one goes on."""

    limits: ClassVar = ("fail_if",)
    fail_if: tuple[str, ...] | None = option(
        None, "Exit with 1 if this holds of a block: 'residual_ratio<0.01'; comma list."
    )
    resume: bool = option(False, "Go on with an interrupted scan.")

    @property
    def conditions(self) -> list[Condition]:
        """The conditions, parsed."""
        return [Condition.parse(one) for one in self.fail_if or ()]

    def asking(self, config: A) -> A:
        """With the measures that conditions name."""
        if self.fail_if is not None and not self.conditions:
            raise ConfigError(
                Option("fail_if"), " names no condition; expected one such as 'residual_ratio<0.01'"
            )
        if self.fail_if is not None and getattr(config, "across", "tokens") == "inputs":
            raise ConfigError(
                Option("fail_if"),
                " reads layers of tokens; leave it out, or compare ",
                Option("across", "tokens"),
            )
        more = [one.measure for one in self.conditions]
        known = getattr(config, "measures", ())
        return (
            config
            if not more
            else config.model_copy(update={"measures": tuple(dict.fromkeys((*known, *more)))})
        )

    def decisions(self, finding: "ScanFinding") -> "Sequence[Decision]":
        """What became of every condition."""
        return [finding.decided(one) for one in self.conditions]

    def document(self, finding: "ScanFinding") -> Document:
        """The page, with what conditions read and what became of them."""
        page = finding.document()
        if not self.conditions:
            return page
        return replace(page, blocks=[*page.blocks, Section("Limits", [finding.limits(self.conditions)])])

    def notes(self, finding: "ScanFinding") -> Sequence[str]:
        """The verdict, where the page itself goes to a file."""
        if not isinstance(finding, ScanFinding):
            return super().notes(finding)
        return [f"{finding.scan.model}: {finding.verdict.words}"]


# --------------------------------------------------------------------------------------------------- what was found


class MeasureValue(Value, title="Measured"):
    """A measure that was asked for by name: what the name means, and the values that it can take."""

    asked: str
    """The name."""

    definition: str
    """The full id that it means."""

    least: Number
    """No value is below; null where there is no such end."""

    most: Number
    """No value is above."""


class StackValue(Value, title="Stack"):
    """A run of blocks."""

    tokens: FiniteFloat
    """Mean number of tokens of a text."""

    dim: int
    """Width of a token."""


class ScanSubject(TokensRead):
    """What is known of a scan before its numbers: the model, what it read, and which tokens are measured."""

    model_config = BLANKS

    family: str
    """How blocks were found: the name of a family, by structure, by the user."""

    dtype: str
    """What the model computes in."""

    stored_dtype: str | None = None
    """What hidden states from outside are stored as."""

    parameters: int | None = None
    """Number of parameters of the model."""

    reported: tuple[Quoted, ...] = Field(
        (), validation_alias=AliasChoices("warnings", "reported"), serialization_alias="warnings"
    )
    """What loading the model and reading its inputs reported, in the words of those who did it."""

    not_finite: tuple[Weight, ...] = ()
    """Weights that are no numbers."""

    @computed_field(alias="special rule")  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def special_rule(self) -> str:
        """Which tokens are measured, in words."""
        return self.rule

    @model_validator(mode="before")
    @classmethod
    def _without_words(cls, given: Any) -> Any:
        """JSON repeats the words for readers that are not Python; they are computed again on loading."""
        return {k: v for k, v in given.items() if k != "special rule"} if isinstance(given, dict) else given


class ScannedModel(ScanSubject, title="Scanned"):
    """What was scanned."""

    model: str
    """Name of the model, or of the file of states."""

    texts: int
    """How many were read."""

    tokens: FiniteFloat
    """Mean number of tokens of a text."""

    dims: dict[str, int]
    """Width of a token, by run of blocks."""

    stacks: dict[str, StackValue]
    """Tokens and width, by run of blocks."""

    def facts(self, table: "Table") -> list[str]:
        """In a few words each: family, dtype, size, texts; the rows tell whether texts are of one length."""
        ways = self.family.split(" + ")
        names = [one for one in ways if not one.startswith(("found by", "named by"))]
        other = [one for one in ways if one not in names]
        by_name = f"found by module names of the famil{'y' if len(names) == 1 else 'ies'} {listed(names)}"
        blocks = listed([*([by_name] if names else []), *other])
        is_states = self.read == "hidden states" and bool(names)
        found = [
            clipped(self.family) if is_states else f"its blocks were {clipped(blocks, LONGEST_WORDS)}",
            f"the model runs in {self.dtype}",
        ]
        if self.parameters is not None:
            found.append(f"{in_thousands(self.parameters)} parameters")
        texts = f"{text_lengths(table, self.texts, self.tokens)}{source_words(self.inputs)}"
        return [*found, texts, self.rule]


class GradientsOf(Value):
    """Of what gradients were taken."""

    loss: str
    """Which loss."""

    texts: int
    """On how many texts."""


class ScanFinding(Finding):
    """What a scan found: numbers per layer, site and text, their means, and the verdict."""

    command: ClassVar[str] = "scan"
    sections: ClassVar[tuple[str, ...]] = ("scan", "summary", "definitions", "verdict", "gradients", "tree")
    """Fields that stand beside the rows of the table too: comparisons and Parquet files read them there."""

    columns: ClassVar[Mapping[str, str]] = {
        "stack": "Name of the run of blocks.",
        "tokens": "Number of tokens of the text that were measured.",
    }

    scan: ScannedModel
    """What was scanned."""

    summary: tuple[Entry, ...]
    """Means over all texts, per place and definition."""

    definitions: dict[str, str]
    """What was measured, as formulas."""

    verdict: Verdict
    """The verdict on the model, its runs of blocks and every layer."""

    measured: tuple[MeasureValue, ...] = ()
    """Measures that were asked for by name."""

    gradients: GradientsOf | None = None
    """Of what gradients were taken, if they were asked for."""

    tree: TreeValue | None = None
    """The model as a tree of parts, if it was asked for."""

    @model_validator(mode="after")
    def _with_sections(self) -> Self:
        fields = self.model_dump(mode="json", include=set(self.sections), exclude_none=False)
        held = {name: fields[name] for name in self.sections if fields[name] is not None}
        held["scan"] = {
            name: value for name, value in held["scan"].items() if value is not None or name not in _IF_KNOWN
        }
        object.__setattr__(self, "table", replace(self.table, sections=self.table.sections | held))
        return self

    def save_into(self, folder: str | os.PathLike[str], made_by: str = "") -> tuple[str, ...]:
        """Write the result and the page into a folder; their names."""
        from rankscope.results.files import write_atomically

        self.save(Path(folder) / RESULT)
        write_atomically(Path(folder) / PAGE, self.to_html(made_by).encode())
        return (RESULT, PAGE)

    @property
    def words(self) -> tuple[str, ...]:
        """The verdict in sentences; the first is the conclusion."""
        return self.verdict.sentences

    @property
    def tone(self) -> Tone:
        """The color of the verdict."""
        return tone_of(self.verdict.verdict)

    def __repr__(self) -> str:
        return f"ScanFinding({self.scan.model!r}: {self.verdict})"

    # ----------------------------------------------------------------------------------------------- conditions

    def definition_of(self, measure: str) -> str:
        """The definition that a name means in this scan; the name itself where it was not asked for."""
        return next((one.definition for one in self.measured if one.asked == measure), measure)

    def decided(self, condition: Condition) -> "Decision":
        """Whether the condition holds of the mean over texts of any block's state, with the first layer where it does.

        What enters the first block counts only in a stack that has nothing else. A number that rounding or NaN leaves
        open is undecided unless everything it may be lies on one side of the limit; so is a condition with nothing to
        read.
        """
        from rankscope.results.statistics import Decision, Outcome, worst

        text = condition.text(self.definition_of(condition.measure))
        if self.scan.not_finite:
            name = self.scan.not_finite[0].name
            return Decision(
                outcome=Outcome.UNDECIDED,
                words=f"{text} is undecided: the weight {name!r} holds NaN or infinity",
            )
        places = list(self._places(condition))
        outcome = worst(one for one, _ in places) if places else Outcome.UNDECIDED
        if outcome is Outcome.CLEAR:
            return Decision(outcome=outcome)
        says = f"{text} {'holds' if outcome is Outcome.CROSSED else 'is undecided'}"
        found = [words for one, words in places if one is outcome]
        if not found:
            return Decision(outcome=outcome, words=f"{says}: no block of this scan has that number")
        more = f"; so at {len(found) - 1} more" if len(found) > 1 else ""
        return Decision(outcome=outcome, words=f"{says} at {found[0]}{more}")

    def _places(self, condition: Condition) -> "Iterator[tuple[Outcome, str]]":
        """Every layer that the condition reads: what it says there, and the numbers it says it from."""
        from rankscope.results.statistics import VANISHING, Outcome, judge_span, span_of

        known = next((one for one in self.measured if one.asked == condition.measure), None)
        least = -math.inf if known is None or known.least is None else known.least
        most = math.inf if known is None or known.most is None else known.most
        definition = self.definition_of(condition.measure)
        entries = [one for one in self.summary if (one.definition, one.site) == (definition, "block")]
        deep = {entry.stack for entry in entries if entry.layer}
        for entry in entries:
            if not entry.layer and entry.stack in deep:
                continue
            place = f"layer {entry.layer} of {entry.stack}"
            numbers = (0 if entry.mean is None else entry.texts) if entry.numbers is None else entry.numbers
            if entry.texts - numbers:
                lost = (
                    f"{entry.texts - numbers} of {entry.texts} texts have no number (NaN, infinity or zeros)"
                )
                yield Outcome.UNDECIDED, f"{place}, {lost}, limit {number(condition.limit)}"
                continue
            vanishes = entry.measure in VANISHING
            span = span_of(entry.mean, entry.floor, vanishes=vanishes, resolved=entry.resolved)
            outcome = judge_span(span.within(least, most), condition.operator, condition.limit)
            yield (
                outcome,
                f"{place}, value {number(entry.mean)}, rounding floor {number(entry.floor)}, limit "
                f"{number(condition.limit)}",
            )

    def limits(self, conditions: Sequence[Condition]) -> Tabular:
        """What each condition reads, by its whole definition, and what became of it."""
        rows = []
        for one in conditions:
            found = self.decided(one)
            rows.append(
                [one.text(self.definition_of(one.measure)), str(found.outcome), found.words or NOTHING]
            )
        columns = [
            Column("condition", "name"),
            Column("outcome", "name"),
            Column("where", "words", optional=True),
        ]
        return Tabular(columns=columns, rows=rows)

    # ------------------------------------------------------------------------------------------------- page

    def document(self) -> Document:
        """The verdict, then curves, maps, the verdict on every layer, what was scanned and by which thresholds."""
        stacks = stacks_of(self.summary)
        views = {one: _View(self, one, is_single=len(stacks) == 1) for one in stacks}
        texts = max((entry.texts for entry in self.summary), default=0)
        band = ", band from the smallest to the largest" if texts > 1 else ""
        heads = [block for one in views.values() for block in one.heads()]
        has_final = any(entry.site == FINAL for entry in self.summary)
        meanings = how_to_read(self._meanings())
        return Document(
            title=f"Scan of {clipped(self.scan.model, 160)}",
            command=self.command,
            facts=self.scan.facts(self.table),
            blocks=some(
                Headline(_title(self.verdict.verdict), self.words, self.tone),
                *meanings,
                Notes([sentence(one) for one in self.scan.reported]) if self.scan.reported else None,
                *(one.verdict() for one in views.values()),
                Section(
                    "Curves by layer",
                    [block for one in views.values() for block in one.curves()],
                    note=f"Mean over {count(texts, 'text')}{band}. Layer 0 is what enters the first block. The line "
                    "block is the state after each block, attention and mlp are what those parts add"
                    f"{', final is the state after the final norm' if has_final else ''}. Hover, tap, or use the tab "
                    "key to read values.",
                    only="html",
                ),
                Section(
                    "Layers by measures",
                    [block for one in views.values() for block in one.maps()],
                    note="Dark is where to look: tokens are alike (ratio near 0, cosine near 1, rank near 1), or one "
                    "token or channel holds everything (share near 1). The last two lines of a map give the values of "
                    f"its darkest and brightest color. Hatched, with {STAR}: {NOT_RESOLVED}.",
                    only="html",
                ),
                bool(heads)
                and Section(
                    "Attention maps",
                    heads,
                    note="One cell per head, layers downward, mean over texts. A map whose rows are all alike "
                    "(Dobrushin coefficient 0, spectral gap 1) makes all tokens equal in one step.",
                    only="html",
                ),
                Section("Verdict by layer", [b for one in views.values() for b in one.layers()], only="html"),
                Section(
                    "By layer",
                    [
                        Notes(self._columns(texts)),
                        *(block for one in views.values() for block in one.means()),
                        *([] if self.scan.read == "hidden states" else [Notes([NEXT])]),
                    ],
                    only="text",
                ),
                self.tree is not None
                and Section(
                    "The model as a tree of parts",
                    [Lines([clipped_line(one) for one in self.tree.lines])],
                    note="Read from a run of the model and compared with it. What is indented stands inside the part "
                    "above it.",
                ),
                Section("What was scanned", self._about(), only="html"),
            ),
            definitions=[(name, words) for name, words in self.definitions.items()],
            origin=self.provenance,
        )

    def _meanings(self) -> list[str]:
        """The ratio that the verdict is about, and from where on tokens count as equal."""
        limits, stacks = self.verdict.thresholds, self.verdict.stacks
        few = f"{number(limits.collapsed)} or less"
        low, cosine = self._low
        rule = rule_words(limits, "this ratio", f"{number(low)} or less{cosine}")
        if any(judged_name(*one.layers) != RATIO for one in stacks):
            rule += (
                " The rule leaves out massive tokens, and massive channels if the ratio is larger without them, before "
                "it scales tokens; the table does not."
            )
        ends = [(one, one.layers[-1].ratio) for one in stacks if one.layers]
        if any(ratio is not None and ratio <= low and one.verdict not in FALLEN for one, ratio in ends):
            rule += (
                " A ratio that drops once and then stays is not collapse if half of the centered rank is kept: one "
                "vector may be added to all tokens."
            )
        several = max((entry.texts for entry in self.summary), default=0) > 1
        votes = " Both rules read means over texts; that they hold in half of the texts, each by itself, is enough too."
        return [
            RESIDUAL_WORDS,
            "Unit residual ratio: scale every token to length one, subtract the mean of these, and take the root mean "
            "square length of what is left. It is 0 if all tokens point the same way, whatever their lengths, and 1 if "
            "the scaled tokens have mean zero.",
            f"Collapsing: {rule}",
            f"Collapsed: at the last layer the ratio is {few}, no layer has {number(limits.fall)} times as much or "
            "more (so the fall is not in these layers), and the centered rank (below) is less than half of the largest "
            f"possible one.{votes if several else ''}",
            "Healthy: neither of these, and no other verdict is that of the last layer, or of at least "
            f"{percent(limits.coverage)} of all layers. A layer gets the first of these that fits: massive token or "
            "channel (one or a few tokens or channels hold most of the sum of squares of all entries), shared mean "
            f"(mean cosine {number(limits.offset_cosine)} or more), clusters (a few groups of nearly equal tokens), "
            f"cone (mean cosine {number(limits.cone_cosine)} or more), dead directions (a centered rank, "
            f"below, of at most {percent(limits.low_rank)} of the largest possible, and tokens not alike). "
            "'rankscope list thresholds' prints all limits.",
        ]

    @property
    def _low(self) -> tuple[float, str]:
        """From which ratio on tokens count as equal after a fall, and which mean cosine that is."""
        limits = self.verdict.thresholds
        tokens = {one.tokens for one in self.scan.stacks.values()}
        several = len(tokens) != 1
        # Of n unit tokens ratio^2 = (1 - mean cosine) (n - 1) / n.
        share = 1.0 if several else 1 - 1 / min(tokens)
        low = math.sqrt((1 - limits.offset_cosine) * share)
        if low <= limits.collapsed:
            return limits.collapsed, ""
        length = "many" if several else number(min(tokens))
        return low, f" (a mean cosine of {number(limits.offset_cosine)}, in texts of {length} tokens)"

    def _columns(self, texts: int) -> list[str]:
        """What the columns and marks of the table in a terminal mean, those that it has."""
        here = [
            one
            for one in self.summary
            if one.site == "block" and one.head is None and one.definition in COLUMNS
        ]
        shown = {one.definition for one in here}
        ranks = {min(one.tokens, float(one.dim)) for one in self.scan.stacks.values()}
        most = (
            f"at most {number(ranks.pop())} here"
            if len(ranks) == 1 and texts == 1
            else "at most the number of tokens or the width, whichever is smaller"
        )
        said = ["layer: 0 is what enters the first block; l is what leaves block l."]
        said += [f"{SHORT[one]}: {MEANINGS[one].format(most=most)}" for one in COLUMNS if one in shown]
        said.append(f"verdict: {self._layer_verdicts}.")
        means = f"Numbers are arithmetic means over {count(texts, 'text')}. " if texts > 1 else ""
        hidden = any(not one.is_resolved and one.mean is not None for one in here)
        above = (
            f"In every text all of them are {ABOVE_FLOOR}."
            if texts > 1
            else f"All of them are {ABOVE_FLOOR}."
        )
        floors = f"{STAR}: {NOT_RESOLVED}." if hidden else above
        said.append(f"{means}{floors}")
        if any(one.mean is None for one in here):
            said.append(f"{NOTHING}: no number (NaN, infinity or 0/0).")
        return said

    @property
    def _layer_verdicts(self) -> str:
        """On what the verdict of a single layer depends, for the verdicts that there are."""
        names = {one.verdict for one in self.verdict.stacks}
        said = []
        if "collapsing" in names:
            said.append(
                "in a collapsing network all layers after the last one whose unit residual ratio is at least 90% of "
                "the largest are called collapsing"
            )
        if "collapsed" in names:
            few = number(self.verdict.thresholds.collapsed)
            said.append(
                f"in a collapsed network all layers with a ratio of {few} or less are called collapsed"
            )
        which = "all other verdicts depend" if said else "it depends"
        alone = (
            "" if said else "; no layer alone is called collapsing or collapsed, even if its tokens are equal"
        )
        said.append(f"{which} on that layer alone, also on numbers that are not shown here{alone}")
        return "; ".join(said)

    def chart(self) -> Chart:
        """The residual ratio of every stack by layer, as it is and on unit tokens."""
        stacks = stacks_of(self.summary)
        panels = [_View(self, one, is_single=len(stacks) == 1).headline(width=620) for one in stacks]
        return Chart([replace(one, title=f"{clipped(self.scan.model)}: {one.title}") for one in panels])

    def _about(self) -> list[Block]:
        scanned = self.scan.model_dump(mode="json", exclude={"reported"}, exclude_none=True)
        pairs = [(name, _shown(value)) for name, value in scanned.items() if value not in ([], {})]
        if self.gradients is not None:
            pairs += [
                ("gradients, loss", self.gradients.loss),
                ("gradients, texts", str(self.gradients.texts)),
            ]
        limits = [(name, number(value, 6)) for name, value in self.verdict.thresholds.model_dump().items()]
        return [Facts(pairs), Facts(limits, "Thresholds of the verdict")]


_IF_KNOWN = ("stored dtype", "random tokens", "decoder inputs", "axes")
"""Keys of the section ``scan`` that are there only where they say something."""


class _View:
    """What a page shows of one stack."""

    def __init__(self, finding: ScanFinding, stack: str, *, is_single: bool) -> None:
        self.name, self.is_single = stack, is_single
        self.all = [entry for entry in finding.summary if entry.stack == stack]
        self.entries = of_stack(self.all, stack)
        self.judged: StackVerdict | None = next(
            (one for one in finding.verdict.stacks if one.stack == stack), None
        )
        known = finding.scan.stacks.get(stack)
        self.most = None if known is None else min(known.tokens, float(known.dim))

    def _under(self, blocks: Sequence[Block]) -> list[Block]:
        """The blocks, under the name of the stack where there are several."""
        return list(blocks) if self.is_single else [Section(clipped(self.name), blocks)]

    def headline(self, **how: Any) -> Any:
        start = None if self.judged is None else self.judged.starts
        panel = headline(self.entries, start=start, **how)
        if self.is_single:
            return panel
        return replace(panel, title=f"{clipped(self.name)}: {panel.title}")

    def verdict(self) -> Block:
        """What the verdict rests on, beside the curve of the residual ratio."""
        found, left = self.judged, list[Block]()
        if found is not None:
            key = [] if self.is_single else [(clipped(self.name), _title(found.verdict))]
            if found.starts is not None:
                key.append(("starts at", f"layer {found.starts}"))
            if found.rate is not None:
                bound = " or less" if found.rate_is_bound else ""
                key.append((f"{full_label(UNIT)}, per layer", f"× {number(found.rate)}{bound}"))  # noqa: RUF001 - times
            deciding = found.deciding
            numbers = [] if deciding is None else list(deciding.numbers.items())[:NUMBERS_SHOWN]
            left += some(
                Facts(key, kind="key") if key else None,
                Strip("Verdict by layer", _stretches(found)) if found.layers else None,
                Facts(
                    [(full_label(name), number(value)) for name, value in numbers],
                    f"The numbers that say so, layer {found.decides}",
                    "figures",
                )
                if numbers
                else None,
            )
        return Beside(left, [Figure(self.headline())], only="html")

    def curves(self) -> list[Block]:
        return self._under([Figure(panel) for panel in site_panels(self.entries)])

    def maps(self) -> list[Block]:
        sites = [site for site in dict.fromkeys(entry.site for entry in self.entries) if site != "final"]
        blocks = list[Block]()
        for place, site in enumerate(sorted(sites, key=lambda one: one != "block")):
            drawn = [Figure(one) for one in maps(self.entries, site=site, most=self.most)]
            blocks += [Section(f"The same at site {clipped(site)}", drawn, folded=True)] if place else drawn
        return self._under(blocks)

    def heads(self) -> list[Block]:
        found = [entry for entry in self.all if entry.head is not None]
        return self._under([Figure(one) for one in head_maps(found)]) if found else []

    def layers(self) -> list[Block]:
        """The verdict on every layer, with its numbers and the reason."""
        if self.judged is None:
            return []
        names = list(dict.fromkeys(name for one in self.judged.layers for name in one.numbers))
        rows: list[list[Cell | str]] = [
            [
                str(one.layer),
                Cell(_title(one.verdict), tone=tone_of(one.verdict)),
                *(number(one.numbers[name]) if name in one.numbers else "" for name in names),
                sentence(one.words),
            ]
            for one in self.judged.layers
        ]
        columns = [
            *(Column("layer", "name"), Column("verdict", "name")),
            *(Column(full_label(name)) for name in names),
            Column("why", "words"),
        ]
        return [Tabular(columns=columns, rows=rows, title="" if self.is_single else clipped(self.name))]

    def means(self) -> list[Block]:
        """What a terminal shows: one line per block."""
        entries = {(one.layer, one.definition): one for one in self.entries if one.site == "block"}
        shown = [name for name in COLUMNS if any(key[1] == name for key in entries)]
        judged = {} if self.judged is None else {one.layer: one.verdict for one in self.judged.layers}
        layers = sorted({layer for layer, _ in entries})
        rows = [
            [
                str(layer),
                *(entries[layer, name].text() if (layer, name) in entries else NOTHING for name in shown),
                judged.get(layer, NOTHING),
            ]
            for layer in layers
        ]
        columns = [
            Column("layer", "name"),
            *(Column(SHORT[name]) for name in shown),
            Column("verdict", "name"),
        ]
        return [Tabular(columns=columns, rows=rows, title="" if self.is_single else clipped(self.name))]


def _stretches(found: StackVerdict) -> list[StripPiece]:
    stretches = []
    for name, group in groupby(found.layers, key=lambda one: one.verdict):
        own = [one.layer for one in group]
        where = f"layer {own[0]}" if len(own) == 1 else f"layers {own[0]}-{own[-1]}"
        stretches.append(StripPiece(len(own), where, name, tone_of(name)))
    return stretches


def tone_of(verdict: Name) -> Tone:
    """The color of a verdict.

    >>> tone_of("healthy"), tone_of("massive token")
    ('good', 'look')
    """
    return TONES.get(verdict, "look")


def _title(name: str) -> str:
    return name[:1].upper() + name[1:]


def in_thousands(many: int) -> str:
    """A large count in a few letters.

    >>> in_thousands(124_439_808), in_thousands(7_000_000_000), in_thousands(512)
    ('124M', '7B', '512')
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if many >= size:
            return f"{number(many / size)}{letter}"
    return str(many)


def clipped_line(line: str) -> str:
    """A line that keeps its indent, cut where it is too long."""
    return line if len(line) <= LONGEST_WORDS else f"{line[: LONGEST_WORDS - 1]}…"


def _shown(value: Any) -> str:
    """A value as a person reads it: text as it is, names with their values, lists with commas."""
    if isinstance(value, Mapping):
        return clipped(", ".join(f"{name}: {_shown(one)}" for name, one in value.items()), LONGEST_WORDS)
    if isinstance(value, list | tuple):
        return clipped(", ".join(map(_shown, value)), LONGEST_WORDS)
    return clipped(number(value, 4) if isinstance(value, float) else str(value), LONGEST_WORDS)
