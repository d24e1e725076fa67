"""``rankscope reproduce``: a figure of a paper, made again, with what is said of it and what was found."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from rankscope.charts import Chart
from rankscope.core.words import count, listed
from rankscope.document import Column, Document, Figure, Prose, Section, Tabular, Tone, Verdict, some
from rankscope.errors import ConfigError
from rankscope.findings.asked import FolderConfig, SeedOptions, option
from rankscope.findings.base import SPLIT_COLUMNS, Finding, Value

Size = Literal["fast", "usual", "full"]
"""Seconds, a few minutes, or the sizes of the paper."""

Source = Literal["paper", "reported", "ours"]
"""Where a statement comes from: text or theorem of the paper; second-hand, not checked word by word; this tool."""

LABELS: dict[Source, str] = {"paper": "published", "reported": "reported", "ours": "stated here"}

JUDGED: dict[bool | None, str] = {True: "agrees", False: "does not agree", None: "in part, or not decided"}
"""Of statements of others; one of our own holds or does not."""

OURS: dict[bool | None, str] = {True: "holds", False: "does not hold", None: "in part, or not decided"}

ENDINGS = (".json", ".csv", ".png", ".html")
"""Of the files in the folder, all named after the figure."""


class ReproduceConfig(FolderConfig, SeedOptions):
    """Make a figure of a paper again and say point by point whether the paper's reading holds.

    Networks are random; the verdict follows from their numbers. Every statement says where it comes from: published,
    reported (known second-hand), or stated here. A disagreement with the paper is a result, not an error: the exit
    code is 0.
    """

    group = "Figure"
    figure: str = option("", "Which figure, see 'rankscope list figures'.", positional=True)
    size: Size = option("usual", "fast takes seconds, full has the sizes of the paper.")
    fast: bool = option(False, "The same as --size fast.")
    full: bool = option(False, "The same as --size full.")
    seeds: tuple[int, ...] = option((), "How many networks: seeds 0 to N-1.", shown="the figure's own")
    seed: int | None = option(None, "One network, of this seed.", ge=0, lt=2**63, shown="the figure's own")

    @model_validator(mode="before")
    @classmethod
    def _one_size(cls, given: Any) -> Any:
        """``fast`` and ``full`` are sizes; two different ones at once are an error."""
        if not isinstance(given, dict):
            return given
        short = [name for name in ("fast", "full") if given.get(name) in (True, "true")]
        sizes = list(dict.fromkeys([*short, *([given["size"]] if given.get("size") else [])]))
        if len(sizes) > 1:
            raise ConfigError(
                f"sizes {' and '.join(map(str, sizes))}: choose one; without any the usual size runs"
            )
        return given | {"size": sizes[0]} if sizes else given

    @field_validator("figure")
    @classmethod
    def _named(cls, figure: str) -> str:
        if not figure.strip():
            raise ConfigError("no figure was named; give one, such as wu-masks: see 'rankscope list figures'")
        return figure

    @property
    def files(self) -> tuple[str, ...]:
        """What is written into the folder."""
        return tuple(f"{self.figure}{ending}" for ending in ENDINGS)


class Statement(Value):
    """What is said, and what was found. It is computed from what the figure found, and never stored."""

    source: Source
    """Who says it: the paper, somebody second-hand, or this tool."""

    statement: str
    """What is said."""

    measured: str
    """What was found."""

    agrees: bool | None
    """Whether both agree; null where they do in part, or where the seeds are too few to tell."""

    @property
    def label(self) -> str:
        """Where the statement comes from, in a word or two."""
        return LABELS[self.source]

    @property
    def judged(self) -> str:
        """Whether it agrees with what was measured."""
        return (OURS if self.source == "ours" else JUDGED)[self.agrees]


class FigureName(Value):
    """A figure of a paper, by its name."""

    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    """Its name."""

    title: str
    """What it shows."""

    source: str
    """Its place in the paper."""

    size: Size
    """How large it was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureDeclaration:
    """What the declaration of a figure says about one finding."""

    question: str
    verdict: tuple[Statement, ...]
    notes: tuple[str, ...]
    chart: Callable[[], Chart]


class ReproduceFinding(Finding):
    """A figure, made again. Every figure adds other columns to its rows; those below are of width-depth and wu-*."""

    command: ClassVar[str] = "reproduce"

    shown: ClassVar[tuple[str, ...]] = ("words", "verdict", "notes")

    columns: ClassVar[Mapping[str, str]] = {
        "layers": "Number of blocks.",
        "dim": "Width of a token.",
        "heads": "Heads of every attention.",
        "parameters": "Weights of the network.",
        "learning_rate": "Largest rate of the optimizer.",
        "train_loss": "Loss of the last epoch.",
        "train_accuracy": "Accuracy in the last epoch of training.",
        "values": "Value maps of the stack: gaussian, small, orthogonal, identity, or a matrix.",
        "temperature": "The temperature term d_QK: logits are divided by its square root.",
        "rank": "Rank of the built state that a stack starts from.",
        "arithmetic": "How a state was computed: float64, or split (the split pass).",
        "alpha": "Weight of token 2 on token 1.",
        "shear": "Shear w of the value map.",
        "defect_median": "One minus the smallest cosine of two tokens, median over starts.",
        "defect_low": "The same, the least.",
        "defect_high": "The same, the greatest.",
        "defect_floor": "Size below which it is rounding.",
        "covered": "Starts without two tokens at an obtuse angle, which the bound covers.",
        "bound_median": "Accumulated bound of the defect, median over starts; null unless it covers more than half.",
        "bound_high": "The same, the greatest; null unless it covers all.",
        "ratio": "Largest defect over its bound after the last step; null where no start was covered.",
        **SPLIT_COLUMNS,
    }

    figure: FigureName
    """Which figure."""

    definitions: dict[str, str] = Field(default_factory=dict)
    """What every measure is, by its id."""

    data: dict[str, JsonValue] = Field(default_factory=dict)
    """What the figure found, by name: settings, summaries over seeds, published numbers."""

    @cached_property
    def _declared(self) -> "FigureDeclaration":
        # Figures stand above this row: they need torch. Hence the name of a module in place of an import.
        declared: FigureDeclaration = import_module("rankscope.papers.figures.run").declaration_of(self)
        return declared

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, perhaps with other fields: what is said is computed again."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("_declared", None)
        return copy

    @property
    def question(self) -> str:
        """What a reader learns from the figure."""
        return self._declared.question

    @property
    def verdict(self) -> tuple[Statement, ...]:
        """What is said of the figure, and what was found."""
        return self._declared.verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """For the reader of the figure."""
        return self._declared.notes

    @property
    def words(self) -> tuple[str, ...]:
        """How many statements agree with what was measured: first those of others, then our own."""
        others = [one.agrees for one in self.verdict if one.source != "ours"]
        ours = [one.agrees for one in self.verdict if one.source == "ours"]
        said = [
            _tally(others, "published or reported {}", ("agrees", "agree"), " with what was measured"),
            _tally(ours, "{} of rankscope", ("holds", "hold")),
        ]
        return tuple(filter(None, said)) or ("The figure makes no statement.",)

    @property
    def tone(self) -> Tone:
        """Green where every statement agrees."""
        found = [one.agrees for one in self.verdict]
        return "unknown" if not found else "good" if all(found) else "look"

    def document(self) -> Document:
        """What is said and what was measured, the picture, notes."""
        about, chart = self.figure, self.chart()
        unclear = [one for one in self.verdict if not one.agrees]
        title = (
            "Agrees"
            if not unclear
            else "Does not agree"
            if len(unclear) == len(self.verdict)
            else "Agrees in part"
        )
        if unclear and all(one.agrees is None for one in unclear):
            title = "Not decided" if len(unclear) == len(self.verdict) else "Agrees, as far as it is decided"
        columns = [Column("verdict", "name"), Column("statement", "words"), Column("measured", "words")]
        rows = [[one.judged, f"{one.label}: {one.statement}", one.measured] for one in self.verdict]
        points = [
            Prose(
                [f"{one.label}: {one.statement}", f"measured: {one.measured}"], title=f"{place}. {one.judged}"
            )
            for place, one in enumerate(self.verdict, start=1)
        ]
        return Document(
            title=f"{about.name}: {about.title}",
            command=self.command,
            facts=[f"{about.size} size", count(self.table.frame.height, "number")],
            blocks=some(
                Verdict(title if self.verdict else "No statement", self.words, self.tone),
                Prose([self.question, f"Source: {about.source}"]),
                Section("Statements", [Tabular(columns=columns, rows=rows)], only="html") if rows else None,
                Section("Statements", points, only="text") if points else None,
                Section(
                    chart.title or "Figure",
                    some(Prose(chart.notes) if chart.notes else None, *map(Figure, chart.pictures)),
                    only="html",
                ),
                Section("Notes", [Prose(self.notes)]) if self.notes else None,
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """The figure."""
        return self._declared.chart()

    def save_into(self, folder: str | os.PathLike[str], made_by: str = "") -> tuple[str, ...]:
        """Write the finding, its rows, the picture and the page into the folder; the names of the files."""
        from rankscope.results import write_atomically
        from rankscope.results.files import make_folder

        place, names = Path(folder), [f"{self.figure.name}{ending}" for ending in ENDINGS]
        picture, page = self.chart().png(), self.to_html(made_by)  # before anything is written
        make_folder(place)
        self.save(place / names[0])
        self.save(place / names[1])
        write_atomically(place / names[2], picture)
        write_atomically(place / names[3], page.encode())
        return tuple(names)


def _tally(found: Sequence[bool | None], what: str, verbs: tuple[str, str], more: str = "") -> str:
    """How many statements hold, do not, or are not decided, as one sentence; nothing if there are none."""
    if not found:
        return ""
    yes, no, undecided = (sum(one is agrees for one in found) for agrees in (True, False, None))
    if yes == len(found):
        every = (
            f"The one {what.format('statement')}" if yes == 1 else f"All {yes} {what.format('statements')}"
        )
        return f"{every} {verbs[yes > 1]}{more}."
    parts = [f"{yes} {verbs[yes != 1]}{more}" if yes else f"none {verbs[0]}{more}"]
    if no:
        parts.append(f"{no} {'does' if no == 1 else 'do'} not")
    if undecided:
        one = undecided == 1
        parts.append(
            f"{undecided} {'holds' if one else 'hold'} in part or {'is' if one else 'are'} not decided"
        )
    statements = "statement" if len(found) == 1 else "statements"
    return f"Of {len(found)} {what.format(statements)} {listed(parts)}."
