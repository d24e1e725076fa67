"""``rankscope ablate``: what keeps the tokens of a model apart, its skips, its MLPs, its norms or its mask."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import FiniteFloat, field_validator

from rankscope.charts import Chart, Panel, Picture
from rankscope.core.words import NOTHING, listed, number, power, ranges, sentence
from rankscope.document import (
    Column,
    Document,
    Figure,
    Notes,
    Prose,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
    text_of,
)
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import OWN, ModelOrNetwork, files_of_masks, option
from rankscope.findings.base import BRACKET_COLUMNS, SPLIT_COLUMNS, Finding, Number, Value
from rankscope.findings.blame import Blame, blocks_words
from rankscope.findings.blocks import (
    LN10,
    ROUNDING_ALONE,
    curves,
    how_to_read,
    legend,
    mean_by_layer,
    on_one_axis,
    split_curves,
)
from rankscope.findings.collapse import DEFAULT_MEASURES, Site
from rankscope.findings.mechanism import RATIO_WORDS, Mechanism
from rankscope.findings.remedies import Remedies, recipe_sections
from rankscope.findings.subject import LACKS, RESIDUAL_WORDS, Subject, variant_name
from rankscope.findings.suggest import Suggestions
from rankscope.findings.verdict import Thresholds, rule_words

if TYPE_CHECKING:
    from rankscope.results import Table

DEFAULT_VARIANTS = ("san", "san+mlp", "san+skip", "transformer")

COMPOSITE = "residual_ratio[composite,mean]"

NORMS = {
    COMPOSITE: (
        "composite norm",
        "Composite norm of a matrix: the geometric mean of its largest row sum and its largest column sum of absolute "
        "entries. Verdicts use it because the theorem on attention alone (Dong, Cordonnier, Loukas, "
        "arXiv:2103.03404) is stated in it.",
    ),
    "residual_ratio[frobenius,mean]": (
        "Frobenius norm",
        "Frobenius norm of a matrix: the root of the sum of squares of its entries.",
    ),
}
"""The norm of the ratio that verdicts rest on: its name, and what it is."""

PLAIN = {
    "mask": {"full": "no attention mask: every token reads all tokens", "causal": "causal attention mask"},
    "norm": {
        "layer": "normalisation: LayerNorm",
        "rms": "normalisation: RMSNorm",
        "none": "no normalisation",
        "sphere": "normalisation: tokens are scaled to length one",
    },
}
"""Masks and norms in words; all others by their name."""

RESIDUAL = "residual[frobenius,mean]"

MOST_SENTENCES = 8
"""Cuts that get a sentence each; of more, only those of the first mask and skip scale."""

OTHER_CHANGES = (
    "Doses and kinds of change that are not among the remedies above, by the distance of tokens alone, which does not "
    "say whether a model trains: a mask that hides most keys keeps tokens apart and cures nothing."
)
"""What the list of what-ifs is beside remedies."""

MOST_LINES = 6
"""Lines of one panel; of more, every mask has one."""

RANGE = re.compile(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*")

Fall = Literal["collapsing", "collapsed", "not collapsing", "undecided", "no numbers"]
"""The verdict of a scan on a curve of residual ratios: falling, equal from the start, neither, or not known."""

FALLS: tuple[Fall, ...] = get_args(Fall)


class AblateConfig(ModelOrNetwork):
    """Cut a model and see what keeps its tokens apart: its skips, its MLPs, its norms or its mask.

    The model is rewritten as a tree of parts, which is compared with the model itself before anything is cut. All cuts
    share their weights and read the same texts. Measured are the same tokens as in a scan; numbers that are not above
    their rounding floor are marked. With --split the residual itself is carried, far below the rounding of the states.
    """

    group = "What is cut"
    variants: tuple[str, ...] = option(
        DEFAULT_VARIANTS,
        "san, san+mlp, san+skip, transformer; -norm drops norms.",
        min_length=1,
        old=("variant",),
    )
    masks: tuple[str, ...] = option(
        (OWN,), "own, or mask rules, see 'rankscope list masks'.", min_length=1, old=("mask",)
    )
    skip_scales: tuple[float | Literal["own"], ...] = option(
        (OWN,),
        "Factors on the input of skips: own (unchanged), or numbers such as 0.5,1.",
        min_length=1,
        old=("skip-scale",),
    )
    norm: Literal["own", "none", "layer", "rms", "sphere"] | None = option(
        None, "Of a model: own or none. Of a random network: none, layer, rms, sphere."
    )
    only_blocks: str | None = option(None, "Change these blocks only, counted from 1: 3,5-7.", shown="all")
    semantics: Literal["clean", "paper"] = option(
        "clean", "clean, or paper: what the code of Dong et al. does (BERT, ALBERT, XLNet)."
    )
    measures: tuple[str, ...] = option(
        DEFAULT_MEASURES, "See 'rankscope list measures'.", min_length=1, old=("measure",)
    )
    sites: tuple[Site, ...] = option(
        ("block",), "Where to measure: block, attention, mlp, final.", min_length=1
    )
    split: bool = option(False, "Carry the residual itself, far below rounding.")
    no_error: bool = option(False, "With --split: leave out the perturbed run that estimates floors; faster.")
    blame: bool = option(
        False, "Say why the model collapses: causes by name and block, and what each part does."
    )
    suggest: bool = option(False, "Compute changes that would keep tokens further apart, best first.")

    @field_validator("variants", "masks", "measures", "sites")
    @classmethod
    def _each_once(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(items))

    @field_validator("skip_scales", mode="before")
    @classmethod
    def _scales_are_numbers(cls, scales: Any) -> Any:
        return tuple(dict.fromkeys(map(_scale, scales))) if isinstance(scales, list | tuple) else scales

    @field_validator("only_blocks")
    @classmethod
    def _blocks_parse(cls, text: str | None) -> str | None:
        return None if text is None else block_text(parse_blocks(text))

    @field_validator("blocks")
    @classmethod
    def _blocks_are_paths(cls, blocks: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        """Former versions took numbers here."""
        pieces = [blocks] if isinstance(blocks, str) else blocks or ()
        if pieces and all(RANGE.fullmatch(one) for piece in pieces for one in piece.split(",")):
            asked = ",".join(pieces)
            raise ConfigError(
                Option("blocks", asked),
                ": expected module paths such as model.layers; to change these blocks only, ask for ",
                Option("only_blocks", asked),
            )
        return blocks

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What is read, so that no result is written over it."""
        return (*super().reads, *files_of_masks(self.masks))


def parse_blocks(text: str) -> tuple[int, ...]:
    """The numbers of blocks that a list with ranges names, sorted, each once.

    >>> parse_blocks("5-7, 3")
    (3, 5, 6, 7)
    """
    found: set[int] = set()
    for piece in text.split(","):
        match = RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last < first + 1_000_000:
            raise ConfigError(
                Option("only_blocks", text),
                f": {piece.strip()!r} is not a block or a range; write 3,5-7, counted from 1",
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def block_text(blocks: Sequence[int]) -> str:
    """The shortest list with ranges.

    >>> block_text((3, 5, 6, 7))
    '3,5-7'
    """
    return ranges(blocks).replace(", ", ",")


def _scale(value: Any) -> float | str:
    if value == OWN:
        return OWN
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = math.nan
    if not math.isfinite(scale):
        raise ConfigError(
            Option("skip_scales", value),
            ": expected a finite number such as 0.5, or own",
        )
    return scale


class Leads(Value):
    """Where the pace of the last layers leads."""

    layer: int
    """After as many layers again."""

    value: FiniteFloat
    """The ratio there; zero below the smallest float."""

    log10_value: FiniteFloat
    """Its logarithm."""


class CutDip(Value, title="Dip"):
    """A ratio that falls and comes back."""

    layer: int
    """The lowest layer."""

    value: Number
    """The ratio there; null where it is not above its floor."""

    log10_value: Number
    """Its logarithm."""

    at_most: FiniteFloat
    """What it is at most."""

    recovered: int
    """The layer at which it is back."""


class Fate(Value):
    """What becomes of the tokens of one cut: the verdict of a scan on its residual ratios, and what that rests on.

    Ratios are geometric means over texts and seeds. Where some text is below its rounding floor, the number is not
    used; the last layer at which all texts are above it stands in its place.
    """

    variant: str
    """Which parts the network has."""

    mask: str
    """The mask rule."""

    skip_scale: Number
    """Factor on the input of skips; null: as the model has it, or no skip."""

    verdict: Fall
    """What the curve amounts to."""

    collapses: bool | None
    """Whether tokens become equal, or are; null where that is not known."""

    has_arrived: bool
    """Whether the last number that is known is low enough to call tokens equal, or is followed by the floor."""

    start: Number
    """The ratio of what enters the first block."""

    layer: int | None
    """The last layer at which every text is above its floor."""

    value: Number
    """The ratio there; zero below the smallest float."""

    log10_value: Number
    """Its logarithm."""

    floor_from: int | None
    """From which layer on some text is not above its floor."""

    all_texts: bool
    """Whether none is from there on."""

    no_number_from: int | None
    """From which layer on some text has no number (overflow, 0/0)."""

    at_most: Number
    """What the ratio of the last layer is at most, where it is not above its floor."""

    texts: int
    """Texts, over all seeds, that the means are over."""

    starts: int | None
    """First layer of the fall."""

    rate: Number
    """Mean factor per layer of the fall."""

    log10_rate: Number
    """Its logarithm."""

    rate_is_bound: bool
    """Whether no layer of the fall is above its floor, so that the factor is at most this."""

    equal_from: int | None
    """First layer of those at the end that are below a floor low enough to call their tokens equal."""

    pace: Number
    """Factor per layer of the last steps, if all of them fall."""

    log10_pace: Number
    """Its logarithm."""

    leads_to: Leads | None
    """Where that pace leads."""

    dip: CutDip | None
    """The deepest dip of a curve that comes back."""

    would_decide: str | None
    """The dtype that would decide, where the verdict is undecided."""

    def words(self, name: str, ratio: str = "residual ratio") -> str:
        """What becomes of the network of that name, in a few sentences; ``ratio`` is what the ratio is called."""
        if self.verdict == "collapsed":
            said = "has equal tokens at every layer, as far as rounding shows; where they became equal is not seen"
        elif self.log10_value is None:
            said = f"gives no {ratio} above its rounding floor"
            if self.no_number_from is not None:
                said += f", and none at all (overflow or 0/0) from layer {self.no_number_from} on"
        else:
            said = f"{self._verb}: {self._value(ratio)}"
        finer = [] if self.would_decide is None else [f"run it in {self.would_decide} to decide"]
        course = [] if self.log10_value is None or self.verdict == "collapsed" else self._course
        return " ".join(map(sentence, [f"{name} {said}", *course, *finer]))

    @property
    def _verb(self) -> str:
        if self.verdict == "collapsing":
            return "collapses" if self.has_arrived else "is collapsing"
        return (
            "does not collapse"
            if self.verdict == "not collapsing"
            else "cannot be judged because of rounding"
        )

    def _value(self, ratio: str) -> str:
        said = f"its {ratio} is {_size(self.log10_value)} at layer {self.layer}"
        if self.texts > 1:
            said += f" (geometric mean over {self.texts} texts)"
        some_ = "" if self.texts == 1 else " in at least one text"
        if self.no_number_from is not None:
            said += f"; from layer {self.no_number_from} on there is no number (overflow or 0/0){some_}"
        elif self.floor_from is not None:
            said += f"; from layer {self.floor_from} on rounding hides it{some_}"
            if self.at_most and self.verdict == "collapsing":
                said += f", and the rule (below) reads {number(self.at_most, 2)} at the last layer"
        return said

    @property
    def _course(self) -> list[str]:
        """How the curve got to the last number that is resolved: its pace, where it leads, a dip.

        The factor of a whole fall is not said: falls of different networks are over different layers, so that their
        factors cannot be compared.
        """
        said = []
        if self.verdict == "not collapsing" and self.log10_pace is not None:
            said.append(
                f"each of its last blocks lowers it, multiplying it by {_factor(self.log10_pace)} on average"
            )
        if self.leads_to is not None and not self.has_arrived:
            to = _size(self.leads_to.log10_value)
            said.append(
                f"at the pace of its last blocks a deeper network would reach {to} at layer "
                f"{self.leads_to.layer}"
            )
        if self.dip is not None:
            known = self.dip.log10_value is not None
            depth = (
                f"to {_size(self.dip.log10_value)}"
                if known
                else "so low that it cannot be told from rounding"
            )
            said.append(
                f"on the way it falls {depth} at layer {self.dip.layer} and has recovered by layer "
                f"{self.dip.recovered}"
            )
        return said


class AblateFinding(Finding):
    """Cuts of one model side by side, and what becomes of their tokens."""

    command: ClassVar[str] = "ablate"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar = {
        "skip_scale": "Factor on the input of skips; null: as the model has it.",
        "blocks": "Numbers of the blocks that are changed.",
        "tokens": "Tokens of the text that are measured.",
        "part": "Of rows of the measure blame: the step of the block, which the column layer numbers.",
        "stage": "Of rows of the measure blame: number of the step in its block.",
        **BRACKET_COLUMNS,
        **SPLIT_COLUMNS,
    }

    subject: Subject
    """What was cut, and what it read."""

    semantics: Literal["clean", "paper"]
    """What a cut means: the same for every model, or what the code of Dong et al. does."""

    only_blocks: str | None
    """The blocks that are changed; null: all."""

    definition: str | None
    """The residual ratio that verdicts rest on; null where none was measured."""

    cuts: tuple[Fate, ...]
    """What becomes of every cut, in the order of masks, variants and skip scales."""

    definitions: dict[str, str]
    """What was measured, as a formula."""

    split: bool = False
    """Whether the residual itself was carried."""

    has_error: bool = True
    """With the split pass: whether floors were estimated from a perturbed run."""

    blame: Blame | None = None
    """What each kind of part does for and against collapse, where it was asked for."""

    mechanism: Mechanism | None = None
    """Why the ratio falls, by mechanism, where blame was asked for."""

    suggest: Suggestions | None = None
    """What would keep tokens further apart, where it was asked for."""

    remedies: Remedies | None = None
    """Changes that are meant as remedies, ranked by what was seen to predict training, where suggestions were asked
    for. The probe of three steps takes no part here."""

    # ------------------------------------------------------------------------------------------------ sentences

    @property
    def words(self) -> tuple[str, ...]:
        """Which cuts collapse, a sentence on each, who is to blame, and what would help."""
        said = [self.conclusion]
        shown = self.cuts if len(self.cuts) <= MOST_SENTENCES else self.first_cuts[:MOST_SENTENCES]
        said += [one.words(self.name_of(one), self._ratio) for one in shown]
        if self.mechanism is not None:
            said += self.mechanism.words
        if self.blame is not None:
            said.append(self.blame.words)
        if self.remedies is not None:  # the one ranking; what-ifs beside it are listed without a winner
            said.append(self.remedies.words)
        elif self.suggest is not None:
            fates = {one.collapses for one in self.first_cuts if one.variant == self.suggest.network.variant}
            needless = f" {sentence(f'{self.suggest.network.name} does not collapse, so it needs none')}"
            said.append(self.suggest.words + (needless if fates == {False} else ""))
        return tuple(said)

    @property
    def _ratio(self) -> str:
        """What the ratio is called that verdicts rest on."""
        norm = NORMS.get(self.definition or "")
        return "residual ratio" if norm is None else f"residual ratio ({norm[0]})"

    @property
    def first_cuts(self) -> tuple[Fate, ...]:
        """The cuts of the first mask and, where it has skips, the first skip scale."""
        scales = [one.skip_scale for one in self.cuts if self._has_skips(one)]
        first = scales[0] if scales else None
        return tuple(
            one
            for one in self.cuts
            if one.mask == self.cuts[0].mask and (one.skip_scale == first or not self._has_skips(one))
        )

    @staticmethod
    def _has_skips(one: Fate) -> bool:
        return one.variant.removesuffix("-norm") in ("san+skip", "transformer")

    @property
    def conclusion(self) -> str:
        """Which cuts collapse and which do not."""
        if self.definition is None or not self.cuts:
            return "No residual ratio of the blocks was measured, so nothing is said of collapse."
        kinds: dict[str, list[str]] = {"down": [], "falling": [], "apart": [], "lost": []}
        for one in self.first_cuts:
            if one.collapses:
                kind = "falling" if one.verdict == "collapsing" and not one.has_arrived else "down"
            else:
                kind = "lost" if one.collapses is None else "apart"
            kinds[kind].append(self.name_of(one))
        collapse = " collapse" if not kinds["down"] else ""  # said once
        verbs = {
            "down": ("collapses", "collapse"),
            "falling": ("is collapsing", "are collapsing"),
            "apart": (f"does not{collapse}", f"do not{collapse}"),
        }
        said = [
            f"{listed(kinds[kind])} {one if len(kinds[kind]) == 1 else many}"
            for kind, (one, many) in verbs.items()
            if kinds[kind]
        ]
        said += [f"nothing is known of {listed(kinds['lost'])}"] if kinds["lost"] else []
        return sentence("; ".join(said))

    def name_of(self, one: Fate) -> str:
        """A cut in a few words: its parts, and the mask and skip scale where these differ."""
        name = variant_name(one.variant)
        if self.subject.as_it_is and name.startswith("attention"):
            rest = name.removeprefix("attention alone").removeprefix("attention")
            name = f"attention{rest} and what is run as it is ({self.subject.pieces})"
        if self.only_blocks is not None:
            name = f"the model with {blocks_words(self.only_blocks)} as {one.variant}"
        extra = [] if len({cut.mask for cut in self.cuts}) == 1 else [f"mask {one.mask}"]
        if len({cut.skip_scale for cut in self.cuts if self._has_skips(cut)}) > 1 and self._has_skips(one):
            own = one.skip_scale is None
            extra.append("its own skips" if own else f"skip scale {number(one.skip_scale)}")
        return f"{name} with {listed(extra)}" if extra else name

    @property
    def notes(self) -> tuple[str, ...]:
        """What the loader and the readers said, and where floors come from."""
        said = [sentence(one) for one in self.subject.reported]
        if self.split:
            said.append(
                "Rounding floors are estimated from a perturbed run; they are not proven bounds."
                if self.has_error
                else "Run without an error estimate: no number of the split pass has a floor or counts as resolved."
            )
        return tuple(said)

    # --------------------------------------------------------------------------------------------------- page

    @property
    def tone(self) -> Tone:
        """What becomes of the full model; without it, whether anything collapses."""
        full = [one for one in self.first_cuts if one.variant == "transformer"] if self.cuts else []
        fates = [one.collapses for one in full or self.cuts]
        if not fates or None in fates:
            return "unknown"
        return "good" if not any(fates) else "bad" if full else "look"

    def document(self) -> Document:
        """The conclusion, the curves, the means of every layer, who is to blame and what would help."""
        title = {"good": "Tokens stay apart", "bad": "Tokens become equal", "look": "Some cuts collapse"}
        subject = "a random network" if self.subject.model == "random" else self.subject.model
        table = self.measured()
        notes = {name: self._meaning(name) for name in self._measured_names}
        if self.definition in NORMS:
            notes[self.definition] = ""
        if RESIDUAL in notes:
            notes[RESIDUAL] += " It also changes when all tokens grow or shrink, so verdicts use a ratio."
        means = [mean_by_layer(table, name, note=note) for name, note in notes.items()]
        meanings = how_to_read(self._meanings())
        first, *rest = self.subject.facts(self.table)
        shared = {name: table.frame[name].unique().to_list() for name in ("mask", "norm")}
        rest = [
            "; ".join(
                PLAIN[name].get(one[0], f"{name} {one[0]}") for name, one in shared.items() if len(one) == 1
            ),
            *rest,
        ]
        paper = self.semantics == "paper"
        return Document(
            title=f"Ablation of {subject}",
            command=self.command,
            facts=[
                first,
                *(["parts are left out as the code of Dong et al. does (semantics paper)"] if paper else []),
                *filter(None, rest),
                self.subject.rule,
            ],
            blocks=some(
                Verdict(title.get(self.tone, "Not decided"), self.words, self.tone),
                *meanings,
                Notes(self.notes) if self.notes else None,
                Section("Curves", [Figure(one) for one in self.panels()], only="html"),
                len(self.cuts) > MOST_SENTENCES and Section("Cuts", [self._cuts()]),
                Section("By layer", means, note=self._legend(means)),
                self.mechanism is not None
                and bool(self.mechanism.groups)
                and self._mechanism(self.mechanism),
                self.blame is not None and self._blame(self.blame),
                self.remedies is not None
                and Section("Remedies, best first", [legend(self.remedies.legend), self.remedies.tabular()]),
                *(() if self.remedies is None else recipe_sections(self.remedies.advised)),
                self.suggest is not None
                and bool(self._other_changes(self.suggest).what_ifs)
                and self._suggest(self._other_changes(self.suggest)),
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def _meanings(self) -> list[str]:
        """What a residual ratio is, when a network collapses, and what the names of the networks mean."""
        limits = Thresholds()
        said = ["Layer 0 is what enters the first block; layer l is what leaves block l."]
        kinds = {one.variant.removesuffix("-norm"): one.variant for one in self.cuts}
        lacks = [f"{shown} {LACKS[kind]}" for kind, shown in kinds.items() if kind in LACKS]
        if lacks:
            where = "" if self.only_blocks is None else f" in {blocks_words(self.only_blocks)}"
            said.append(f"Variants have the weights of the model: {listed(lacks)}{where}.{self._norms}")
        said.append(RESIDUAL_WORDS)
        if self.definition is not None:
            equal = "0 means that all tokens are equal"
            meaning = f"{self._meaning(self.definition)} {sentence(equal)}"
            if self.definition in NORMS:
                meaning = f"norm of the residual divided by that of the tokens; {equal}. {NORMS[self.definition][1]}"
            few = f"{number(limits.collapsed)} or less"
            said.append(f"Residual ratio: {meaning}")
            said.append(
                f"Collapse: {rule_words(limits, 'the ratio', few)}{self._unresolved} The verdict of scan may differ: "
                "it scales tokens to length one, leaves out tokens and channels far larger than all others, takes the "
                f"Frobenius norm (root of the sum of squares), and has {self._in_scan} for the first "
                f"{number(limits.collapsed)}."
            )
        if self.blame is not None and self.definition != "residual_ratio[frobenius,mean]":
            said.append("The effect of each part is that on the residual ratio in the Frobenius norm.")
        if self.suggest is not None:
            said.append(
                "Unit residual ratio: the residual ratio in the Frobenius norm after every token is scaled to length "
                "one, as in scan. Changes are ranked by it."
            )
        return said

    @property
    def _unresolved(self) -> str:
        """What the rule reads where rounding hides the last layer, as a sentence; empty where it hides none."""
        if not any(one.at_most is not None for one in self.cuts):
            return ""
        where = "In texts where" if self.subject.texts * self.subject.seeds > 1 else "Where"
        return (
            f" {where} rounding hides the ratio of the last layer, the rule reads the rounding floor, what rounding "
            "alone could produce."
        )

    @property
    def _in_scan(self) -> str:
        """The limit of a scan where ablations have ``collapsed``."""
        limits = Thresholds()
        return f"{number(math.sqrt(1 - limits.offset_cosine))} (less in short texts)"

    @property
    def _norms(self) -> str:
        """What becomes of norms when parts are left out, as a sentence; empty where there are none."""
        if any(one.variant.endswith("-norm") for one in self.cuts):
            return " -norm has no normalisation in its blocks either."
        if self.semantics == "paper" or set(self.table.frame["norm"]) == {"none"}:
            return ""
        return " An MLP is left out together with its own normalisation; all other normalisation stays."

    def _meaning(self, definition: str) -> str:
        """What a table of that measure shows."""
        return sentence(self.definitions.get(definition, definition).partition(": ")[0])

    def _legend(self, tables: Sequence[Tabular]) -> str:
        """What columns and marks mean, those that occur."""
        from rankscope.results.statistics import FACTORS

        cells = [text_of(cell) for one in tables for row in one.rows for cell in row]
        several = self.subject.texts * self.subject.seeds > 1
        said = ["Columns are layers."]
        if several:
            many = {"texts": self.subject.texts, "seeds": self.subject.seeds}
            over = listed([name for name, number_of in many.items() if number_of > 1])
            is_mixed = any(one.partition("[")[0] not in FACTORS for one in self._measured_names)
            means = f"means over all {over}, geometric ones of residuals, ratios and diameters"
            said.append(f"Numbers are {means if is_mixed else f'geometric means over all {over}'}.")
        if any(cell.endswith("*") for cell in cells):
            said.append(f"*: {'in at least one text, ' if several else ''}{ROUNDING_ALONE}.")
        said.append(
            "After a colon: the name of the measure, for --measures; 'mean' in its brackets: the mean token is "
            "subtracted."
        )
        if NOTHING in cells:
            said.append("-: no number (0/0 or overflow).")
        return " ".join(said)

    def _mechanism(self, found: Mechanism) -> Section:
        return Section(
            f"Why the {RATIO_WORDS} of {found.network.name} changes",
            [
                legend(found.legend),
                found.tabular(),
                Figure(found.panel()),
                legend(found.sums_legend),
                found.sums_tabular(),
            ],
        )

    def _blame(self, blame: Blame) -> Section:
        name = blame.network.name
        return Section(
            f"What each part does to the residual ratio (Frobenius norm) of {name}",
            [legend(blame.legend), blame.tabular(), Figure(blame.panel())],
        )

    def _other_changes(self, suggest: Suggestions) -> Suggestions:
        """The changes that are not listed as remedies already, advised or dropped."""
        if self.remedies is None:
            return suggest
        told = {one.name for one in (*self.remedies.advised, *self.remedies.dropped)}
        told |= {name.replace("mask:window", "mask:causal-window") for name in told}
        return suggest.model_copy(
            update={"what_ifs": tuple(one for one in suggest.what_ifs if one.name not in told)}
        )

    def _suggest(self, suggest: Suggestions) -> Section:
        name = suggest.network.name
        if self.remedies is None:
            title = f"What if: changes to {name}, the largest gain first"
            apart = list[Notes]()
        else:
            title = f"What if: other changes to {name}, the largest gain first"
            apart = [Notes([OTHER_CHANGES])]
        return Section(
            title,
            [
                *apart,
                Prose(suggest.meanings, "What is changed"),
                legend(suggest.legend),
                suggest.tabular(),
                Figure(suggest.bars()),
            ],
        )

    def _cuts(self) -> Tabular:
        heads = (
            "variant",
            "mask",
            "skip scale",
            "verdict",
            "residual ratio",
            "at layer",
            "mean factor per layer of its fall",
        )
        kinds: dict[str, Literal["name", "words"]] = {"variant": "name", "mask": "name", "verdict": "words"}
        rows = [
            [
                one.variant,
                one.mask,
                OWN if one.skip_scale is None else number(one.skip_scale),
                one.verdict,
                _size(one.log10_value),
                NOTHING if one.layer is None else str(one.layer),
                NOTHING if one.log10_rate is None else _factor(one.log10_rate),
            ]
            for one in self.cuts
        ]
        return Tabular(columns=[Column(head, kinds.get(head, "number")) for head in heads], rows=rows)

    @property
    def _measured_names(self) -> list[str]:
        return [name for name in self.definitions if self.blame is None or name != self.blame.definition]

    def measured(self) -> "Table":
        """The rows of measured states, with the skip scale as part of the variant's name wherever scales differ.

        Whoever groups rows by the fixed columns then keeps cuts apart that differ in the scale alone.
        """
        import polars as pl

        frame = self.table.frame.filter(pl.col("definition").is_in(self._measured_names))
        if frame["skip_scale"].n_unique() > 1:
            scale = pl.col("skip_scale").map_elements(lambda value: f"{value:g}", return_dtype=pl.String)
            named = pl.format("{}, skip {}", "variant", scale).fill_null(pl.col("variant"))
            frame = frame.with_columns(named.alias("variant"))
        return replace(self.table, frame=frame)

    def panels(self) -> list[Panel]:
        """The course of every measure over layers; a panel for each mask where one would hold too many lines."""
        draw, table = split_curves if self.split else curves, self.measured()
        found: list[Panel] = []
        for definition in self._measured_names:
            own = table.where(definition=definition)
            title = f"{definition.partition('[')[0].replace('_', ' ').capitalize()} over layers"
            lines = own.frame.select("variant", "mask", "site").unique().height
            masks = own.frame["mask"].unique(maintain_order=True).to_list()
            if lines <= MOST_LINES or len(masks) == 1:
                found.append(draw(own, definition, title=title))
                continue
            each = [draw(own.where(mask=mask), definition, title=f"{title}: {mask}") for mask in masks]
            found += on_one_axis(each)
        return found

    def chart(self) -> Chart:
        """The curves; below them what each part is to blame for, and what would help, where these were asked for."""
        pictures: list[Picture] = list(self.panels())
        pictures += [] if self.mechanism is None or not self.mechanism.groups else [self.mechanism.panel()]
        pictures += [] if self.blame is None else [self.blame.panel()]
        pictures += [] if self.suggest is None else [self.suggest.bars()]
        return Chart(pictures, title=self.picture_title)


def _size(log10: float | None) -> str:
    """The number of that logarithm with two digits, also far below the smallest float."""
    return power(None if log10 is None else log10 * LN10, digits=2)


def _factor(log10: float) -> str:
    """A factor per layer with digits enough to tell it from one.

    >>> _factor(math.log10(0.5)), _factor(math.log10(0.9987))
    ('0.5', '0.9987')
    """
    below = -math.expm1(min(log10 * LN10, 0.0))  # one minus the factor, without cancellation
    digits = 2 if below == 0 or below > 0.1 else 1 - math.floor(math.log10(below))
    return power(log10 * LN10, digits=digits)
