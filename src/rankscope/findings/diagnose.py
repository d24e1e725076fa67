"""``rankscope diagnose``: from a symptom to its cause, the line of code and the remedy.

A model is scanned, tried against the wiring laws, taken apart into what made its tokens equal, and, where it is fresh,
trained for three steps on a copy. What was found is typed; the causes are computed from it, strongest first: laws whose
breach makes outputs wrong, then what made tokens equal by its share of the fall, then laws about a bad start.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import field_validator

from rankscope.charts import Chart, Line, Panel, Picture, Point
from rankscope.core.words import count, listed, number, sentence
from rankscope.document import (
    Document,
    Figure,
    Notes,
    Prose,
    Section,
    Tone,
    Verdict,
    some,
)
from rankscope.findings.asked import Limits, ModelInputs, option
from rankscope.findings.base import Finding, Number, Quoted, Value
from rankscope.findings.laws import LawResult, Laws
from rankscope.findings.mechanism import Cause, Mechanism
from rankscope.findings.remedies import (
    LEAST_RATIO,
    TERMINAL,
    NotProbed,
    Probe,
    Remedies,
    Remedy,
    recipe_sections,
)
from rankscope.findings.scan.entries import Entry
from rankscope.findings.stuck import Fit
from rankscope.findings.subject import RESIDUAL_WORDS
from rankscope.findings.verdict import UNIT, StackVerdict
from rankscope.findings.verdict import Verdict as ScanVerdict

if TYPE_CHECKING:
    from rankscope.results.statistics import Decision

Part = Literal["scan", "laws", "mechanism", "probe"]
"""What a diagnosis is made of; remedies follow from the mechanism."""

PARTS: tuple[Part, ...] = ("scan", "laws", "mechanism", "probe")

SOFT = ("clones", "epsilon", "logits", "precision", "start-loss")
"""Laws about how a model starts; a breach of any other one makes outputs or gradients wrong."""

TELLS = {
    "gradient": "a part of the model cannot learn",
    "reach": "a part of the model has no effect",
    "batch": "what is computed for a text depends on the texts beside it",
    "causality": "the model sees what it is asked to predict",
    "padding": "what is computed for a text depends on how far it is padded",
    "order": "the model cannot tell one order of tokens from another",
    "rows": "attention is no average of values",
    "deterministic": "the same input gives different outputs",
}
"""What follows from a broken law, as a clause."""

TOLD = ("not finite", "changed in place")
"""Reasons that say themselves what follows."""


# ---------------------------------------------------------------------------------------------------- what is asked


class DiagnoseConfig(ModelInputs):
    """Say what is wrong with a model, where, and what to change; or that the cause lies elsewhere.

    The model is scanned, tried against the wiring laws (does a text read another one, does a token read a later one,
    does every parameter get a gradient), and rewritten as a tree of parts, in which the fall of the residual ratio is
    taken apart into causes that add up. A fresh model is also trained for three steps on a copy. The model itself, its
    mode, gradients, hooks and random states stay as they are.
    """

    group = "What is looked at"
    only: tuple[Part, ...] = option(
        PARTS, "Parts of the diagnosis: scan, laws, mechanism, probe; comma list.", min_length=1, shown="all"
    )
    loss: str | None = option(
        None,
        "file.py:function of model and batch.",
        shown="the next token, or a fixed projection of the output",
    )
    lr: float = option(1e-3, "Learning rate of the three steps and of --try (AdamW).", gt=0, le=10)
    probe: bool = option(False, "Train three steps on a copy, also of a model whose weights are trained.")
    try_: bool = option(False, "Train copies, as given and with the best remedies, and compare losses.")
    steps: int = option(300, "Steps of --try.", ge=1)
    tries: int = option(3, "Seeds of --try.", ge=2, le=20)
    seed: int = option(0, "Of initial weights, random tokens and everything that is drawn.", ge=0, lt=2**63)

    @field_validator("only")
    @classmethod
    def _each_once(cls, only: tuple[Part, ...]) -> tuple[Part, ...]:
        return tuple(one for one in PARTS if one in only)

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*super().reads, self.loss)


class DiagnoseView(Limits):
    """Whether a model with a fault makes the program fail."""

    limits: ClassVar = ("fail_if_ill",)
    fail_if_ill: bool = option(False, "Exit with 1 if a cause is found, with 3 if that cannot be decided.")

    def decisions(self, finding: "DiagnoseFinding") -> "Sequence[Decision]":
        """Whether the model is ill, where that was asked."""
        from rankscope.results.statistics import Decision, Outcome

        if not self.fail_if_ill:
            return ()
        if finding.healthy is None:
            return (
                Decision(outcome=Outcome.UNDECIDED, words=f"whether {finding.model} is ill is not known"),
            )
        if finding.healthy:
            return (Decision(outcome=Outcome.CLEAR),)
        names = listed(list(dict.fromkeys(one.name for one in finding.causes)))
        return (Decision(outcome=Outcome.CROSSED, words=f"{finding.model} is ill: {names}"),)


# --------------------------------------------------------------------------------------------------- what was found


class Start(Value):
    """The same configuration with weights drawn at random, on the same texts: is it the design, or the training?"""

    ratio: Number
    """Unit residual ratio after the last block, mean over texts; null where it is no number."""

    collapsed: bool | None
    """Whether that start has collapsed; null where that cannot be told."""


class FoundCause(Value, title="Cause"):
    """One thing that is wrong, from whatever found it."""

    name: str
    """Of the mechanism or of the law."""

    block: int | None
    """The block, from 1; null for the whole model."""

    site: str | None
    """Where in the block: attention, mlp, norm, block, or the path of a module."""

    line: str | None
    """The line of the model's own code, as file:line."""

    share: Number
    """Its part of the fall of the residual ratio; null of what is no part of a fall."""

    kind: Literal["law", "mechanism", "note", "verdict"]
    """What found it."""

    sentence: Quoted
    """What is wrong, in words."""


class Unchecked(Value):
    """Something that was not looked at."""

    name: str
    """Of the law, or of the part of the diagnosis."""

    sentence: Quoted
    """Why, in words."""


class DiagnoseFinding(Finding):
    """What is wrong with a model, where, and what to change."""

    command: ClassVar[str] = "diagnose"
    shown: ClassVar[tuple[str, ...]] = ("healthy", "causes", "not_checked", "words")
    columns: ClassVar[Mapping[str, str]] = {
        "stack": "Name of the run of blocks.",
        "tokens": "Number of tokens of the text that were measured.",
    }

    model: str
    """What was looked at."""

    fresh: bool
    """Whether its weights look freshly drawn: gains of norms are one number, and their biases zero."""

    texts: int
    """Texts that were read; 0 where they cannot be told apart, so that only the laws were tried."""

    verdict: ScanVerdict | None
    """What a scan says of its tokens; null where it was not asked for."""

    ratios: tuple[Entry, ...] = ()
    """Unit residual ratio of every layer, mean over texts."""

    laws: tuple[LawResult, ...] = ()
    """Every wiring law and whether it holds."""

    copies_of_torch: bool = False
    """Whether equal layers are those that nn.TransformerEncoder or nn.TransformerDecoder makes: it copies one layer."""

    translated: bool = False
    """Whether the model could be read as a tree of parts, which mechanism and remedies need."""

    obstacle: Quoted = ""
    """What stood in the way of that."""

    mechanism: Mechanism | None = None
    """Why the residual ratio falls; null without a tree."""

    start: Start | None = None
    """The same configuration freshly drawn; null where the model is fresh itself, sound, or has no configuration."""

    probe: Probe | None = None
    """Three steps of training on a copy."""

    no_probe: NotProbed | None = None
    """Why there is none."""

    losses: tuple[Fit, ...] = ()
    """Trivial values that the loss which was given has, as ``rankscope stuck`` finds them; of trained weights alone."""

    remedies: tuple[Remedy, ...] = ()
    """What would change it, best first; equal ranks are ties."""

    treatment: Remedies | None = None
    """The same with what does not help, and what training showed."""

    asked: tuple[Part, ...] = PARTS
    """What was looked at."""

    # ------------------------------------------------------------------------------------------------ what is wrong

    @property
    def causes(self) -> tuple[FoundCause, ...]:
        """Everything that is wrong, strongest first."""
        return tuple(self._causes())

    def _causes(self) -> Iterator[FoundCause]:
        broken = [one for one in self.laws if one.state == "broken"]
        fallen = self.mechanism is not None and bool(self.mechanism.causes)
        yield from (self._law(one) for one in broken if one.name not in SOFT)
        if self.verdict is not None and self.verdict.not_finite:
            yield self._said("not-finite", self.verdict)
        elif not any(one.reason == "not finite" for one in broken):
            yield from self._no_numbers()
        if self.mechanism is not None:
            yield from (self._mechanism(one) for one in self.mechanism.causes)
        equal = None if fallen else self._equal
        if equal is not None:
            yield self._said(equal.verdict, equal)
        for one in broken:
            # A copy is a fault where somebody wrote it. What PyTorch's own class does is named, and blamed only where
            # it makes tokens equal.
            if one.name in SOFT and (one.name != "clones" or fallen or not self.copies_of_torch):
                yield self._law(one)
        has_logits = any(one.name == "logits" for one in broken)
        for note in self.mechanism.observations if self.mechanism is not None else ():
            if note.is_ill and not (note.name == "saturated" and has_logits):
                yield FoundCause(
                    name=note.name,
                    block=note.block,
                    site=note.site or "attention",
                    line=note.line,
                    share=None,
                    kind="note",
                    sentence=note.sentence,
                )

    def _no_numbers(self) -> Iterator[FoundCause]:
        """Of every run of blocks whose states are no numbers; a block is that of the first run."""
        stacks = () if self.verdict is None else self.verdict.stacks
        for one in stacks:
            if one.not_finite is None:
                continue
            first, where = one.not_finite.layers[0], f"{one.stack}: " if len(stacks) > 1 else ""
            since = f"block {first} is the first after which they do" if first else "before the first block"
            yield FoundCause(
                name="not-finite",
                block=first or None if one is stacks[0] else None,
                site=None,
                line=None,
                share=None,
                kind="verdict",
                sentence=sentence(f"{where}{one.not_finite.words}; {since}"),
            )

    def _law(self, one: LawResult) -> FoundCause:
        told = None if one.reason in TOLD else TELLS.get(one.name)
        said = one.sentence if told is None else f"{one.sentence.removesuffix('.')}; {told}."
        return FoundCause(
            name=one.name,
            block=one.block,
            site=one.site,
            line=one.line,
            share=None,
            kind="law",
            sentence=said,
        )

    def _mechanism(self, one: Cause) -> FoundCause:
        return FoundCause(
            name=one.name,
            block=one.block,
            site=one.site,
            line=one.line,
            share=one.share,
            kind="mechanism",
            sentence=one.sentence,
        )

    @property
    def _falling(self) -> tuple[StackVerdict, ...]:
        """The runs of blocks that a scan calls collapsing."""
        stacks = () if self.verdict is None else self.verdict.stacks
        return tuple(one for one in stacks if one.verdict in ("collapsing", "collapsed"))

    @property
    def _equal(self) -> StackVerdict | None:
        """The first of them in which tokens are equal at the end, and not only on their way."""
        limit = None if self.verdict is None else self.verdict.thresholds.collapsed
        for one in self._falling:
            if one.equal_from is not None or one.last_value is None or one.last_value <= (limit or 0.0):
                return one
        return None

    def _said(self, name: str, verdict: ScanVerdict | StackVerdict) -> FoundCause:
        return FoundCause(
            name=name,
            block=None,
            site=None,
            line=None,
            share=None,
            kind="verdict",
            sentence=verdict.sentences[0],
        )

    @property
    def healthy(self) -> bool | None:
        """Whether nothing is wrong with the model as it was given; null where that cannot be told."""
        if self.causes:
            return False
        if self.verdict is not None and self.verdict.verdict in ("undecided", "no numbers"):
            return None
        if self.verdict is None and not self._is_told:
            return None
        return True

    @property
    def _is_told(self) -> bool:
        """Whether the parts without the scan tell whether the model is ill as it was given."""
        if self.mechanism is not None:
            return self.mechanism.collapsed is not None
        starts_apart = self.probe is None or self.probe.before > LEAST_RATIO
        return bool(self.laws) and starts_apart

    @property
    def not_checked(self) -> tuple[Unchecked, ...]:
        """What was not looked at, each with the reason."""
        said = [
            Unchecked(name=one.name, sentence=one.sentence) for one in self.laws if one.state == "not checked"
        ]
        if "mechanism" in self.asked and not self.translated:
            why = sentence(f"the model could not be read as a tree of parts: {self.obstacle}")
            said.append(Unchecked(name="mechanism", sentence=why))
        if "mechanism" in self.asked and self.translated and self.mechanism is None:
            said.append(Unchecked(name="mechanism", sentence=sentence(self.obstacle)))
        if self.no_probe is not None:
            said.append(Unchecked(name="probe", sentence=self.no_probe.sentence))
        return tuple(said)

    # ------------------------------------------------------------------------------------------------ what is said

    @property
    def headline(self) -> str:
        """The conclusion in a few words."""
        found = self.causes
        if not found:
            if self.healthy is None:
                return "Not decided"
            if self.probe is not None and self.probe.stuck:
                return "Sound at the start, but not after three steps"
            return "Nothing wrong yet: tokens come closer" if self._falling else "Nothing wrong was found"
        names = list(dict.fromkeys(one.name for one in found))
        return f"{count(len(names), 'cause')}: {listed(names)}"

    @property
    def tone(self) -> Tone:
        """The color of the conclusion."""
        if self.healthy is None:
            return "unknown"
        if not self.healthy:
            return "bad"
        is_stuck = self.probe is not None and self.probe.stuck
        return "look" if is_stuck or self._falling else "good"

    @property
    def words(self) -> tuple[str, ...]:
        """Causes first, then whether it is the design, what three steps do, what would change it, what to do next."""
        return tuple(self._words())

    def _words(self) -> Iterator[str]:
        found = self.causes
        if found:
            yield from (one.sentence for one in found)
        elif self.healthy is None:
            yield from self._undecided_words()
        else:
            yield from self._healthy_words()
            yield from (self._narrowing(one) for one in self._falling)
        if self.start is not None:
            yield self._start_words(self.start)
        if self.probe is not None:
            yield self.probe.sentence
        if self.losses:
            first = self.losses[0]
            yield f"The loss is {first.formula}, as if the output were trivial ({first.name}). {first.look}"
        if self.copies_of_torch and not any(one.name in ("clones", "same-direction") for one in found):
            effect = (
                "here that does not make tokens equal"
                if self.ratios
                else "whether that makes tokens equal was not measured"
            )
            yield f"All layers start as copies of one, as nn.TransformerEncoder makes them; {effect}."
        if self.treatment is not None:
            yield self.treatment.words
            if self.treatment.trial is not None:
                yield self.treatment.trial.sentence
        yield from (one.sentence for one in self.not_checked if one.name == "mechanism")
        if self.no_probe is not None and self.no_probe.declined != "trained weights":
            yield self.no_probe.sentence
        yield self._next()

    def _undecided_words(self) -> Iterator[str]:
        cannot = "Whether something is wrong with the model as it was given cannot be told"
        if self.verdict is not None:
            first, *rest = self.verdict.sentences
            yield f"{cannot}: {first[0].lower()}{first[1:]}"
            yield from rest
        elif self.mechanism is not None:
            yield f"{cannot}: rounding hides the unit residual ratio after the last block."
        else:
            looked = " and ".join("three steps of training" if one == "probe" else one for one in self.asked)
            yield f"{cannot}: only {looked} {'was' if len(self.asked) == 1 and self.laws else 'were'} looked at."

    def _healthy_words(self) -> Iterator[str]:
        held = [one.name for one in self.laws if one.state == "holds"]
        ratio = self.last_ratio
        parts = [f"{count(len(held), 'wiring law')} hold{'s' * (len(held) == 1)}"] if held else []
        if ratio is not None:
            said = "tokens stay apart" if ratio > LEAST_RATIO else "no collapse was found"
            parts.append(f"{said} (unit residual ratio {number(ratio)} after the last block)")
        yield sentence(
            f"nothing wrong was found with {self.model} as it was given: {' and '.join(parts)}"
            if parts
            else f"nothing wrong was found with {self.model} as it was given"
        )

    def _narrowing(self, one: StackVerdict) -> str:
        ratio = number(one.last_value)
        return (
            f"Tokens come closer with depth, which is no collapse yet: the unit residual ratio is {ratio} after layer "
            f"{one.last_resolved}; more layers of the same kind would make them equal."
        )

    def _start_words(self, start: Start) -> str:
        ratio = number(start.ratio)
        if start.collapsed is None:
            return (
                f"Whether it is the design is not known: freshly drawn, the same configuration has {ratio}."
            )
        if start.collapsed:
            return f"It is the design: freshly drawn, the same configuration has the unit residual ratio {ratio} too."
        return f"It is the training, not the design: freshly drawn, the same configuration has {ratio}."

    def _next(self) -> str:
        if self.causes and self.remedies:
            tried = None if self.treatment is None else self.treatment.trial
            if tried is not None and not tried.helped:
                return "Next: mend the first cause, then run this again, because one fault may hide another."
            if tried is not None:
                return "Next: write the remedy that training favours, then run this again."
            return "Next: write the first remedy, then run this again; --try trains copies with the best of them."
        if self.causes:
            return "Next: mend the first cause, then run this again, because one fault may hide another."
        if self.healthy is None:
            return self._to_decide()
        if self.probe is not None and self.probe.stuck:
            return "Next: warm up the learning rate, lower it (--lr), or take a remedy; then run this again."
        return (
            "Next: look elsewhere, at the data, the loss and the learning rate; 'rankscope stuck LOSS' says what a "
            "loss that stands still means."
        )

    def _to_decide(self) -> str:
        """What tells whether a model is ill of which that is not known."""
        stacks = () if self.verdict is None else self.verdict.stacks
        finer = next((one.would_decide for one in stacks if one.would_decide is not None), None)
        if finer is not None:
            return f"Next: run this again in {finer} (--dtype {finer})."
        if self.verdict is None:
            return "Next: ask for the scan, the laws and the mechanism too (--only scan,laws,mechanism)."
        return "Next: run this again with other texts, or in more digits (--dtype float64)."

    @property
    def last_ratio(self) -> float | None:
        """Unit residual ratio after the last block, where it is above its rounding floor."""
        known = [one for one in self.ratios if one.mean is not None]
        return known[-1].mean if known else None

    # ------------------------------------------------------------------------------------------------ the page

    @property
    def _reading(self) -> str:
        return "read as a tree of parts" if self.translated else "not read as a tree of parts"

    def document(self) -> Document:
        """One page: the conclusion, what to write, then everything that says so; in a terminal one screen."""
        treated, why = self.treatment, self.mechanism
        return Document(
            title=f"Diagnosis of {self.model}",
            command="diagnose",
            facts=[
                ", ".join(
                    [
                        "freshly drawn weights" if self.fresh else "trained weights",
                        *([count(self.texts, "text")] if self.texts else []),
                        *([self._reading] if "mechanism" in self.asked else []),
                    ]
                )
            ],
            blocks=some(
                Verdict(self.headline, self.words, self.tone),
                *recipe_sections(self.remedies),
                bool(self.laws) and Section("Wiring laws", [Notes(list(self._law_lines()))], only="text"),
                bool(self._meanings())
                and Section("How to read this", [Prose(self._meanings())], only="html"),
                bool(self.pictures())
                and Section("Pictures", [Figure(one) for one in self.pictures()], only="html"),
                treated is not None
                and Section("Remedies", [Notes(treated.legend), treated.tabular()], only="html"),
                treated is not None
                and treated.trial is not None
                and Section("Trained with remedies", [treated.trial.tabular()]),
                bool(self.laws)
                and Section(
                    "Wiring laws", [replace(Laws(results=self.laws).tabular(), title="")], only="html"
                ),
                why is not None
                and bool(why.groups)
                and Section("What makes the ratio fall", [Notes(why.legend), why.tabular()], only="html"),
                why is not None
                and bool(why.sums)
                and Section(
                    "Every sum of a skip and a branch",
                    [Notes(why.sums_legend), why.sums_tabular()],
                    only="html",
                ),
                bool(self.not_checked)
                and Section("Not checked", [Notes([one.sentence for one in self.not_checked])], only="html"),
            ),
            origin=self.provenance,
            width=TERMINAL,
        )

    def _law_lines(self) -> Iterator[str]:
        """The laws by their state, in a few lines."""
        for state, said in (("broken", "broken"), ("holds", "hold"), ("meant", "not meant to hold")):
            names = [one.name for one in self.laws if one.state == state]
            if names:
                yield f"{said}: {', '.join(names)}"
        left = [f"{one.name} ({one.why})" for one in self.laws if one.state == "not checked"]
        if left:
            yield f"not checked: {', '.join(left)}"

    def _meanings(self) -> list[str]:
        """What the words mean that were used."""
        if self.mechanism is None and self.verdict is None:
            return []
        said = [
            RESIDUAL_WORDS,
            "Unit residual ratio: scale every token to length one, then take the distance of each from their mean "
            "(root mean square over tokens). It is 0 if all tokens are equal and 1 if their mean is zero.",
        ]
        if self.mechanism is not None and self.mechanism.causes:
            said.append(
                "Share of the fall: ln of the ratio at the input minus ln of that after the last block is split into "
                "causes that add up. A share is not what undoing a cause gives back; that stands beside it, where it "
                "was run."
            )
        return said

    def pictures(self) -> list[Picture]:
        """The ratio by layer, and what makes it fall."""
        shown: list[Picture] = []
        if self.ratios:
            points = [
                Point(
                    one.layer,
                    one.mean,
                    f"layer {one.layer}: {number(one.mean)}",
                    hollow=one.mean is None or one.resolved < 1,
                )
                for one in self.ratios
            ]
            shown.append(
                Panel(
                    title="Unit residual ratio by layer",
                    lines=[Line(name="", points=points)],
                    value="unit residual ratio",
                    across="layer",
                    scale="linear" if (self.last_ratio or 1.0) > 0.02 else "log",
                    notes=[f"{UNIT}; 0: all tokens are equal"],
                )
            )
        if (
            self.mechanism is not None
            and self.mechanism.groups
            and (self.mechanism.fall or 0.0) > math.log(3)
        ):
            shown.append(self.mechanism.panel())
        return shown

    def chart(self) -> Chart:
        """The ratio by layer, and what makes it fall; where neither is known, a picture that says so."""
        none = Panel(title="Unit residual ratio by layer", lines=(), notes=["No ratio was measured."])
        return Chart(self.pictures() or [none], title=f"{self.model}: {self.headline}")
