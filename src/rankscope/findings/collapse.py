"""``rankscope collapse``: how fast the tokens of random networks become equal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, get_args

from pydantic import field_validator, model_validator

from rankscope.charts import Chart, Panel
from rankscope.charts.specs import WIDTH
from rankscope.core.words import count, listed, power, ranges
from rankscope.document import Document, Figure, Notes, Section, Tone, Verdict, some
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import RandomOnly, option
from rankscope.findings.base import BRACKET_COLUMNS, SPLIT_COLUMNS, Finding, Number, Value
from rankscope.findings.blocks import (
    LN10,
    ROUNDING_ALONE,
    curves,
    how_to_read,
    in_words,
    mean_by_layer,
    on_one_axis,
    split_curves,
)
from rankscope.findings.subject import LACKS, RESIDUAL_WORDS, Apart

Site = Literal["attention", "mlp", "block", "final"]
SITES: tuple[Site, ...] = get_args(Site)

DEFAULT_MEASURES = ("residual_ratio[composite,mean]", "residual[frobenius,mean]")

FALLEN = 1e-3
"""A residual that has lost this much of its first value has collapsed for all purposes of a sentence."""

LOG10_2 = 0.301
"""What halves or more is said to fall."""

MOST_LINES = 6
"""Lines of one panel."""

MOST_NAMED = 6
"""Networks that one sentence names."""

MOST_SENTENCES = 4
"""Networks that get a sentence each; of more, one sentence speaks for all that behave alike."""


class CollapseConfig(RandomOnly):
    """Run random networks and show how fast their tokens become equal.

    Networks of one seed share weights across variants, masks and norms, so that differences between rows are
    differences between architectures. Numbers that are not above their rounding floor are marked. With --split the
    residual itself is carried, far below the rounding of the tokens.
    """

    group = "Networks to compare"
    network: ClassVar = RandomOnly.network
    variants: tuple[str, ...] = option(
        ("san",), "san, san+mlp, san+skip, transformer; -norm drops norms.", min_length=1, old=("variant",)
    )
    masks: tuple[str, ...] = option(
        ("full",), "Mask rules, see 'rankscope list masks'.", min_length=1, old=("mask",)
    )
    norms: tuple[str, ...] = option(("none",), "none, layer, rms, sphere.", min_length=1, old=("norm",))
    dims: tuple[int, ...] = option((), "Widths to compare, in place of --dim.")
    measures: tuple[str, ...] = option(
        DEFAULT_MEASURES, "See 'rankscope list measures'.", min_length=1, old=("measure",)
    )
    sites: tuple[Site, ...] = option(
        ("block",), "Where to measure: block, attention, mlp, final.", min_length=1
    )
    split: bool = option(False, "Carry the residual itself, far below rounding.")
    no_error: bool = option(False, "With --split: leave out the perturbed run that estimates floors; faster.")

    @field_validator("variants", "masks", "norms", "dims", "measures", "sites")
    @classmethod
    def _each_once(cls, items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(items))

    @field_validator("dims", mode="before")
    @classmethod
    def _as_numbers(cls, given: Any) -> Any:
        """A comma list of the command line."""
        return tuple(given.split(",")) if isinstance(given, str) else given

    @field_validator("dims")
    @classmethod
    def _widths_make_sense(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if any(dim < 1 for dim in dims):
            raise ValueError(f"a network is at least 1 wide, got {min(dims)}")
        return dims

    @model_validator(mode="after")
    def _one_way_to_say_the_width(self) -> Self:
        if self.dims and self.dim is not None and "dim" in self.explicit:
            raise ConfigError(
                Option("dims", self.dims),
                " and ",
                Option("dim", self.dim),
                ": name one width, or several, not both",
            )
        return self

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths of the networks."""
        return self.dims or (int(self.choice("dim")),)

    @property
    def reads(self) -> tuple[str, ...]:
        """Files that masks are read from."""
        return tuple(mask.removeprefix("file:") for mask in self.masks if mask.startswith("file:"))


class Course(Value):
    """What became of one measure in one kind of network, over all its seeds; sizes are logarithms to base ten."""

    variant: str
    """Which parts the network has."""

    mask: str
    """Its mask rule."""

    norm: str
    """Its normalization part."""

    site: str
    """Where it was measured."""

    definition: str
    """What was measured."""

    dim: int | None = None
    """Its width, where several are compared."""

    layers: int
    """Blocks of the network."""

    start: Number
    """Geometric mean at layer 0; null where there is no number."""

    end: Number
    """The same at ``layer``."""

    layer: int | None
    """The last layer at which every seed is above its floor; null where there is none."""

    floor: Number
    """The largest floor at the last layer."""

    @property
    def name(self) -> str:
        """The network in a few words."""
        parts = [
            self.mask,
            "" if self.norm == "none" else f"{self.norm} norm",
            "" if self.site == "block" else self.site,
            "" if self.dim is None else f"dim {self.dim}",
        ]
        return f"{self.variant} ({', '.join(filter(None, parts))})"

    @property
    def sinks(self) -> bool:
        """Whether some seed is not above its floor at the end, although the start was."""
        return self.layer is not None and self.layer < self.layers

    @property
    def has_collapsed(self) -> bool:
        """Whether the last number that is known is a small share of the first one, or not even known any more."""
        if self.start is None or self.end is None:
            return False
        return self.sinks or 10.0 ** (self.end - self.start) < FALLEN

    @property
    def words(self) -> str:
        """One sentence."""
        if self.start is None or self.end is None or self.layer is None:
            return f"{self.name}: the {in_words(self.definition)} cannot be told from rounding at any layer."
        first, last = power(self.start * LN10), power(self.end * LN10)
        if self.layer == 0:
            return f"{self.name}: the {in_words(self.definition)} is {first} at layer 0{_lost(1)}."
        way = "falls" if self.end < self.start - LOG10_2 else "goes"
        then = _lost(self.layer + 1) if self.sinks else ""
        what = f"{self.name}: the {in_words(self.definition)}"
        return f"{what} {way} from {first} at layer 0 to {last} at layer {self.layer}{then}."


class CollapseFinding(Finding):
    """Random networks, and what became of their tokens."""

    command: ClassVar[str] = "collapse"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes")
    columns: ClassVar[Mapping[str, str]] = {
        **BRACKET_COLUMNS,
        **SPLIT_COLUMNS,
        "dim": "Width of the network, where several are compared.",
    }

    networks: int
    """How many were run."""

    courses: tuple[Course, ...]
    """What became of every measure in every kind of network."""

    apart: tuple[Apart, ...] = ()
    """The masks under which tokens need not become equal."""

    definitions: dict[str, str]
    """What each measure is, by its id."""

    split: bool = False
    """Whether the split pass carried the residual itself."""

    has_error: bool = True
    """With the split pass: whether floors were estimated from a perturbed run."""

    amx: Literal["traps", "silent"] | None = None
    """Where the processor announces AMX: how it failed when it was tried; None where nothing failed."""

    @property
    def words(self) -> tuple[str, ...]:
        """One sentence per network, or one per kind of behaviour where there are many."""
        first = next(iter(self.definitions), "")
        own = [one for one in self.courses if one.definition == first]
        if len(own) <= MOST_SENTENCES:
            return tuple(one.words for one in own)
        fallen = [one for one in own if one.has_collapsed]
        kept = [one for one in own if one not in fallen]
        said = []
        if fallen:
            layers = ranges(one.layer for one in fallen if one.layer is not None)
            many = count(len(own), "kind of network", "kinds of network")
            said.append(
                f"In {len(fallen)} of {many} the {in_words(first)} falls to a thousandth or less, or so low that it "
                f"cannot be told from rounding, after layer {layers}: "
                f"{listed([one.name for one in fallen[:MOST_NAMED]])}{_more(fallen)}."
            )
        last = [one.end for one in kept if one.end is not None]
        if last:
            low, high = (power(one * LN10) for one in (min(last), max(last)))
            said.append(
                f"In the other {len(kept)} it is between {low} and {high} at the last layer that is known: "
                f"{listed([one.name for one in kept[:MOST_NAMED]])}{_more(kept)}."
            )
        return tuple(said)

    @property
    def tone(self) -> Tone:
        """Red where all collapse, green where none does."""
        fallen = [one.has_collapsed for one in self.courses]
        return "unknown" if not fallen else "bad" if all(fallen) else "look" if any(fallen) else "good"

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to know besides: masks under which tokens need not become equal, where floors come from."""
        said = [one.words for one in self.apart]
        if self.split:
            said.append(
                "Rounding floors are estimated from a perturbed run; they are not proven bounds."
                if self.has_error
                else "Run without an error estimate: no number of the split pass has a floor or counts as resolved."
            )
        if self.amx is not None:
            found = (
                "stops programs that use it" if self.amx == "traps" else "gave no answer when it was tried"
            )
            said.append(
                f"This processor advertises AMX, which {found}: products ran without it, which is slower."
            )
        return tuple(said)

    def document(self) -> Document:
        """The conclusion, the curves, the means of every layer."""
        title = {"bad": "All collapse", "look": "Some collapse", "good": "None collapses"}
        means = [mean_by_layer(self.table, definition) for definition in self.definitions]
        legend = (
            "Columns are layers. Numbers are means over seeds, geometric for residuals, ratios and diameters. *: in "
            f"some seed {ROUNDING_ALONE}. -: no number."
        )
        return Document(
            title="Collapse of random networks",
            command=self.command,
            facts=[count(self.networks, "network")],
            blocks=some(
                Verdict(title.get(self.tone, "Nothing was measured"), self.words, self.tone),
                *how_to_read(self._meanings()),
                Notes(self.notes) if self.notes else None,
                Section("Curves", [Figure(picture) for picture in self.chart().pictures], only="html"),
                Section("By layer", means, note=legend),
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def _meanings(self) -> list[str]:
        """What a residual and its ratio are, and which parts networks have."""
        kinds = dict.fromkeys(one.variant.removesuffix("-norm") for one in self.courses)
        lacks = [f"{kind} {LACKS[kind]}" for kind in kinds if kind in LACKS]
        return [
            "Layer 0 is the random input; layer l is what leaves block l.",
            f"{RESIDUAL_WORDS} Residual ratio: norm of the residual divided by that of the tokens. Both are 0 if all "
            "tokens are equal.",
            *(
                [f"Networks: {listed(lacks)}. In brackets stand the mask (full: none) and the norm."]
                if lacks
                else []
            ),
        ]

    def chart(self) -> Chart:
        """The course of every measure over layers; panels by mask and norm where one would hold too many lines."""
        draw = split_curves if self.split else curves
        pictures: list[Panel] = []
        for definition in self.definitions:
            own = [one for one in self.courses if one.definition == definition]
            if len(own) <= MOST_LINES:
                pictures.append(draw(self.table, definition, title=_title(definition)))
                continue
            kinds = dict.fromkeys((one.mask, one.norm) for one in own)
            panels = [
                draw(
                    self.table.where(mask=mask, norm=norm),
                    definition,
                    title=f"Mask {mask}, {'no norm' if norm == 'none' else f'{norm} norm'}",
                )
                for mask, norm in kinds
            ]
            # One row per norm where there are three masks.
            width = WIDTH * 2 // 3 if len({mask for mask, _ in kinds}) == 3 else WIDTH
            pictures += [replace(panel, width=width) for panel in on_one_axis(panels)]
        return Chart(pictures, title=self.picture_title)

    @property
    def picture_title(self) -> str:
        """Which kinds of network collapse, as the title of a picture."""
        own = [one for one in self.courses if one.definition == next(iter(self.definitions), "")]
        fallen = [one.name for one in own if one.has_collapsed]
        if not fallen or len(fallen) == len(own):
            return f"{'All networks' if fallen else 'No network'} collapse{'' if fallen else 's'}"
        named = f"{listed(fallen[:MOST_NAMED])}{_more(fallen)}"
        others = "the other does not" if len(own) - len(fallen) == 1 else "the others do not"
        return f"{named} {'collapses' if len(fallen) == 1 else 'collapse'}; {others}"


def _lost(layer: int) -> str:
    return f" and cannot be told from rounding at layer {layer}"


def _more(courses: Sequence[object]) -> str:
    return "" if len(courses) <= MOST_NAMED else f" and {len(courses) - MOST_NAMED} more"


def _title(definition: str) -> str:
    return f"{definition.partition('[')[0].replace('_', ' ').capitalize()} over layers"
