"""What is asked of a dynamical system, and what was found of it: equilibria, where random starts ended, the page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from rankscope.charts import Chart, Picture
from rankscope.core.registry import unknown_name
from rankscope.core.words import NOTHING, count, listed, number, percent, ranges
from rankscope.document import (
    Cell,
    Column,
    Document,
    Facts,
    Figure,
    Notes,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
)
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import CommandConfig, NormName, files_of_masks, option
from rankscope.findings.base import SPLIT_COLUMNS, Finding
from rankscope.findings.equilibria.values import (
    MOST_CHANNELS,
    MOST_TOKENS,
    Bare,
    Basins,
    EndingName,
    EquilibriumValue,
    Share,
    SystemValue,
    Trajectories,
)
from rankscope.findings.ways import refuse_idle

VALUES: Mapping[str, str | None] = {
    "shear": "shear:10",
    "identity": None,
    "orthogonal": None,
    "gaussian": None,
    "file": "file:values.npy",
}
"""Kinds of value maps, each with an example where it needs a number or a path after the colon."""

ATTENTION: Mapping[str, str | None] = {
    "uniform": None,
    "softmax": "softmax:4",
    "gaussian": None,
    "weight": "weight:0.5",
}
"""Kinds of attention, likewise."""

MOST_NUMBERS = 2**26
"""Entries of the largest array of a run, half a gigabyte in float64: the tokens of all starts, or all their maps."""

MOST_SIDE = 4096
"""Tokens times dim up to which the Jacobian of a step, a square matrix of that side, is looked at."""

MOST_SHEAR = 1e6
"""Beyond it a step of the value map loses most digits of float64."""


class SystemOptions(CommandConfig):
    group = "System"
    tokens: int = option(6, "Tokens of a state.")
    dim: int = option(4, "Width of a token.")
    mask: str = option("causal", "Mask rule, see 'rankscope list masks'.")
    norm: NormName = option("sphere", "What ends a step.")
    values: str = option(
        "shear:10",
        "Value map: shear:W (ones on the diagonal, W above it), identity, orthogonal, gaussian, file:PATH (.npy, .csv, "
        ".safetensors).",
    )
    attention: str = option(
        "uniform",
        "uniform, softmax:BETA (logits BETA x_i.x_j), gaussian (random query and key maps), weight:ALPHA (of 2 tokens: "
        "what the second puts on the first).",
    )
    frozen: bool = option(False, "Keep the attention maps of each start.")


class SearchOptions(CommandConfig):
    group = "Search"
    starts: int = option(200, "Random starts to run; 0 for the construction alone.", ge=0, le=1_000_000)
    steps: int = option(2000, "Steps per start, at most.", ge=1, le=10_000_000)
    newton: int = option(50, "Newton searches from further random states.", ge=0, le=100_000)
    pushes: int = option(64, "Small random pushes at every equilibrium: how many come back.", ge=0, le=10_000)
    trajectories: int = option(3, "Starts whose path is recorded.", ge=0, le=100)
    seed: int = option(0, "Of random maps and starts.", ge=0, lt=2**63, shown="0")


class EquilibriaConfig(SystemOptions, SearchOptions):
    """Find where X <- norm(A X W) comes to rest: equilibria, their rank and stability, and which starts reach them.

    A is the attention map of the tokens X under the mask, W the value map; the norm brings every token to length one.
    With --rank an equilibrium of exactly that rank is constructed, and random starts of the same system show how many
    reach it. The same weights without the norm are run for comparison.
    """

    group = "Rank"
    rank: int | None = option(
        None, "Construct an equilibrium of exactly this rank (value map shear:W).", shown="search"
    )

    @field_validator("values")
    @classmethod
    def _values_are_known(cls, text: str) -> str:
        kind, argument = split_kind("values", text, VALUES, "value map")
        if kind == "shear" and abs(finite("values", text, argument)) > MOST_SHEAR:
            raise ConfigError(
                Option("values", text),
                f": a shear is at most {MOST_SHEAR:.0e}, such as shear:10",
            )
        return text.strip()

    @field_validator("attention")
    @classmethod
    def _attention_is_known(cls, text: str) -> str:
        kind, argument = split_kind("attention", text, ATTENTION, "attention")
        if kind == "softmax" and not finite("attention", text, argument) >= 0:
            raise ConfigError(
                Option("attention", text),
                ": an inverse temperature is 0 or more, such as softmax:4",
            )
        if kind == "weight" and not 0 < finite("attention", text, argument) < 1:
            raise ConfigError(
                Option("attention", text),
                ": the weight of the first token is between 0 and 1, such as weight:0.5",
            )
        return text.strip()

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        tokens, dim, rank = self.tokens, self.dim, self.rank
        if tokens < 2:
            raise ConfigError(
                Option("tokens", tokens),
                ": a system needs at least 2 tokens, one alone has nothing to mix with",
            )
        if dim < 1:
            raise ConfigError(
                Option("dim", dim),
                ": a token needs at least 1 number",
            )
        _check_memory(self)
        if rank is not None and not 1 <= rank <= min(tokens, dim):
            raise ConfigError(
                Option("rank", rank),
                f" is impossible: {tokens} tokens of dim {dim} have rank 1 to {min(tokens, dim)}",
            )
        if rank is None and self.starts == 0:
            raise ConfigError(
                Option("starts", 0),
                " without a rank leaves nothing to do; give a rank, or starts to run",
            )
        if self.starts == 0 < self.trajectories:
            refuse_idle(self, ["trajectories"], "beside ", Option("starts", 0))
        if self.attention_kind()[0] == "weight" and (tokens != 2 or self.mask.strip() != "causal"):
            raise ConfigError(
                Option("attention", self.attention),
                f" is of 2 tokens under the causal mask, got {tokens} tokens and mask {self.mask}; use ",
                Option("tokens", 2),
                " and ",
                Option("mask", "causal"),
                ", or ",
                Option("attention", "uniform"),
            )
        return self

    @property
    def has_own_maps(self) -> bool:
        """Whether every start has its own map: maps are kept, and depend on the tokens."""
        return self.frozen and self.attention_kind()[0] in ("softmax", "gaussian")

    @property
    def reads(self) -> tuple[str, ...]:
        """Files that the mask and the value map are read from."""
        kind, path = self.value_kind()
        return (*files_of_masks([self.mask]), *([path] if kind == "file" and path else []))

    def value_kind(self) -> tuple[str, str | None]:
        """Kind of the value map, and what stands after the colon."""
        return split_kind("values", self.values, VALUES, "value map")

    def attention_kind(self) -> tuple[str, str | None]:
        """Kind of attention, and what stands after the colon."""
        return split_kind("attention", self.attention, ATTENTION, "attention")

    def shear(self) -> float:
        """The number of a value map ``shear:W``."""
        return finite("values", self.values, self.value_kind()[1])

    def attention_number(self) -> float:
        """The number of attention ``softmax:BETA`` or ``weight:ALPHA``."""
        return finite("attention", self.attention, self.attention_kind()[1])


def split_kind(field: str, text: str, known: Mapping[str, str | None], what: str) -> tuple[str, str | None]:
    """The name and what follows its colon, which some names need and others refuse.

    >>> split_kind("values", "shear:10", VALUES, "value map")
    ('shear', '10')
    """
    name, colon, rest = text.strip().partition(":")
    if name not in known:
        raise unknown_name(what, name, known)
    example = known[name]
    if example is None and colon:
        raise ConfigError(Option(field, text), f": {name} takes nothing after a colon; write {name}")
    if example is not None and not rest.strip():
        raise ConfigError(Option(field, text), f": {name} needs something after a colon, such as {example}")
    return name, rest.strip() if colon else None


def finite(field: str, text: str, argument: str | None) -> float:
    """What stands after the colon as a finite number."""
    try:
        found = float(argument or "")
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ConfigError(Option(field, text), f": expected a number after the colon, got {argument!r}")
    return found


def _check_memory(config: EquilibriaConfig) -> None:
    tokens, dim = config.tokens, config.dim
    if tokens * dim > MOST_SIDE:
        raise ConfigError(
            Option("tokens", tokens),
            " and ",
            Option("dim", dim),
            f" make a state of {tokens * dim:,} numbers, and its Jacobian has the square of that; at most "
            f"{MOST_SIDE:,} fit: lower one of them",
        )
    most = MOST_NUMBERS // (tokens * max(tokens, dim))
    for field, many in (("starts", config.starts), ("newton", config.newton)):
        if many > most:
            raise ConfigError(
                Option(field, many),
                f": that many states of {tokens} tokens and dim {dim} do not fit in memory at once; at most "
                f"{most:,} do",
            )


ENDED: dict[EndingName, str] = {
    "consensus": "all tokens equal",
    "shape": "shape at rest",
    "cycle": "in a cycle",
    "plateau": "on a plateau",
    "range": "beyond the range of numbers",
    "unresolved": "not at rest (unresolved)",
}
"""Where starts end that do not reach an equilibrium."""

Fate = Literal["equal", "zero", "differ", "at rest", "cycle", "shape", "plateau", "range", "unresolved"]

FATES: dict[Fate, tuple[str, str]] = {
    "equal": ("ends with all tokens equal", "end with all tokens equal"),
    "zero": ("ends with all tokens zero", "end with all tokens zero"),
    "differ": ("ends at an equilibrium with tokens that differ", "end at equilibria with tokens that differ"),
    "at rest": ("is at rest", "are at rest"),
    "cycle": ("ends in a cycle", "end in cycles"),
    "shape": ("ends with its shape at rest", "end with their shape at rest"),
    "plateau": ("is on a plateau", "are on a plateau"),
    "range": ("leaves the range of numbers", "leave the range of numbers"),
    "unresolved": ("still moves", "still move"),
}
"""What becomes of the tokens of a start, in a sentence about one and about several."""

MEANT: dict[EndingName, str] = {
    "unresolved": "Unresolved: the start still moves when the steps run out, or it is in a cycle of more than 64 "
    "steps, which is not recognized. More steps may show where it goes.",
    "plateau": "On a plateau: the state hardly moves for hundreds of steps, but no equilibrium is near. Plateaus "
    "usually end later, at a low temperature only after astronomically many steps (rankscope reproduce clusters).",
    "consensus": "All tokens equal: this is collapse, but no equilibrium as long as the token that all share still "
    "moves. For instance, an orthogonal value map may keep turning it, and a shear moves it ever more slowly.",
    "shape": "Shape at rest: the angles between tokens no longer change, while all tokens turn or grow together.",
}
"""What these endings mean, a note each."""

NEUTRAL = (
    "Attention depends on the tokens, and an equilibrium with a multiplier of one looks the same as a plateau that "
    "moves less than float64 can see: tokens far apart may still attract each other (rankscope reproduce clusters)."
)

LIST_NOTE = (
    "starts: share of random starts that end there; multiplier: the largest; last sv: the smallest singular value that "
    "counts in the rank."
)

MOST_LISTED = 40
"""Equilibria that the page lists."""


class EquilibriaFinding(Finding):
    """Equilibria of a system, and where random starts ended."""

    command: ClassVar[str] = "equilibria"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes", "equilibrium")
    columns: ClassVar = {
        "kind": "Whose tokens were measured: equilibrium, trajectory, or without norm.",
        "step": "Steps from the start; null for an equilibrium.",
        "log10_floor": SPLIT_COLUMNS["log10_floor"],
    }

    rank: int | None
    """The rank that was asked for; null for a search."""

    system: SystemValue
    """What was iterated."""

    place: int | None
    """Place in the list of the equilibrium that is shown: the one asked for, otherwise the one that most starts reach;
    null if none was found."""

    equilibria: tuple[EquilibriumValue, ...]
    """All that were found, most frequent first."""

    is_full: bool = False
    """Whether the search found as many equilibria as it judges at most."""

    basins: Basins
    """Where random starts ended."""

    trajectories: Trajectories | None
    """States of a few starts on their way; null if none was recorded."""

    without_norm: Bare | None
    """The same weights without the norm; null where the system has none."""

    definitions: dict[str, str]
    """What each measure is, by its id."""

    @model_validator(mode="after")
    def _places_exist(self) -> Self:
        basins, many = self.basins, len(self.equilibria)
        named = [self.place, *(share.equilibrium for share in basins.shares), *(basins.limit or ())]
        if not all(place is None or 0 <= place < many for place in named):
            raise ValueError(
                f"places of equilibria are 0 to {many - 1}, got {max(one or 0 for one in named)}"
            )
        if sum(share.count for share in basins.shares) not in (0, basins.starts):
            raise ValueError(f"the counts of shares do not add up to {basins.starts} starts")
        shape = (self.system.tokens, self.system.dim)
        shapes = [(len(one.tokens), len(one.tokens[0])) for one in self.equilibria]
        if self.trajectories is not None:
            shapes += [(len(start[0]), len(start[0][0])) for start in self.trajectories.starts]
        if any(one != shape for one in shapes):
            raise ValueError(f"states have {shape[0]} tokens of dim {shape[1]}, others were given")
        return self

    @property
    def equilibrium(self) -> EquilibriumValue | None:
        """The one that is shown."""
        return None if self.place is None else self.equilibria[self.place]

    @property
    def has_own_maps(self) -> bool:
        """Whether every start has its own map, and so its own equilibria."""
        return self.system.frozen and self.system.depends_on_tokens

    def name(self, place: int) -> str:
        """How tables and pictures call an equilibrium; counted from 1."""
        return f"equilibrium {place + 1}, rank {self.equilibria[place].rank}"

    def ended(self, share: Share) -> str:
        """Where the starts of one line ended, in a few words."""
        if share.equilibrium is not None:
            return f"equilibrium {share.equilibrium + 1}"
        own = "an equilibrium under its own map" if self.has_own_maps else "an equilibrium that is not listed"
        return ENDED.get(share.ending, own)

    def fate(self, share: Share) -> Fate:
        """What became of the tokens of the starts of one line."""
        if share.equilibrium is not None:
            one = self.equilibria[share.equilibrium]
            return "zero" if one.is_zero else "equal" if one.is_consensus else "differ"
        match share.ending:
            case "consensus":
                return "equal"
            case "equilibrium":
                return "at rest"
        return share.ending

    @property
    def fates(self) -> dict[Fate, int]:
        """Starts by what became of their tokens; collapse first."""
        found: dict[Fate, int] = {}
        for share in self.basins.shares:
            found[self.fate(share)] = found.get(self.fate(share), 0) + share.count
        return {fate: found[fate] for fate in FATES if fate in found}

    @property
    def words(self) -> tuple[str, ...]:
        """The rank that was asked for, or where the starts end; then the rest."""
        one, starts = self.equilibrium, self._start_words()
        said = []
        if one is not None and self.rank is not None:
            said.append(f"There is an equilibrium of rank {one.rank}, proven: one step moves {one.moved}.")
            said += [f"It is {one.stability}.", *self._reached(one)]
        said += starts
        if one is not None and self.rank is None:
            said.append(f"{self.title_of(one)}, has rank {one.rank} and is {one.stability}.")
        elif one is None:
            said.append("No equilibrium was found.")
        return (*said, *([self.without_norm.words] if self.without_norm else []))

    def title_of(self, one: EquilibriumValue) -> str:
        """Which equilibrium is shown."""
        if self.rank is not None:
            return f"The equilibrium of rank {self.rank}"
        if one.start is not None:
            return f"The equilibrium of start {one.start}, under the map of that start"
        reached = (
            f"reached by {percent(one.share, 4)} of the starts" if one.share else "which no start reaches"
        )
        return f"Equilibrium {(self.place or 0) + 1}, {reached}"

    def _start_words(self) -> list[str]:
        many, fates = self.basins.starts, self.fates
        steps = f" after {count(self.basins.steps, 'step')}"
        parts = []
        for fate, some_ in fates.items():
            words = FATES[fate][0 if some_ == 1 else 1]
            parts.append(f"{some_:,} {words}{steps if fate == 'unresolved' else ''}")
        if len(parts) > 1:
            return [f"Of {many:,} random starts, {listed(parts)}."]
        who = "The one random start" if many == 1 else f"All {many:,} random starts"
        collapse = "" if "equal" not in fates else ": it collapses" if many == 1 else ": they collapse"
        return [f"{who} {part.partition(' ')[2]}{collapse}." for part in parts]

    def _reached(self, one: EquilibriumValue) -> list[str]:
        if one.share is None or not self.basins.starts:
            return []
        many = sum(share.count for share in self.basins.shares if share.equilibrium == self.place)
        if many == 0:
            return [f"None of the {self.basins.starts:,} random starts ends there."]
        return [f"{many:,} of the {self.basins.starts:,} random starts end{'s' * (many == 1)} there."]

    @property
    def tone(self) -> Tone:
        """Red where all starts collapse, green where none does and all are known to stay apart."""
        collapsed = self.fates.get("equal", 0)
        if not self.basins.starts:
            return "look"
        if collapsed:
            return "bad" if collapsed == self.basins.starts else "look"
        return "unknown" if {"zero", "plateau", "range", "unresolved"} & set(self.fates) else "good"

    @property
    def title(self) -> str:
        """The heading of the verdict."""
        rank = [] if self.rank is None else [f"An equilibrium of rank {self.rank}"]
        if not self.basins.starts:
            return rank[0] if rank else "No start was run"
        if self.tone == "unknown":
            starts = "tokens shrink to zero" if "zero" in self.fates else "not all starts are at rest"
            starts = "no start is at rest" if set(self.fates) <= {"plateau", "unresolved"} else starts
        else:
            starts = {"bad": "all starts collapse", "look": "some starts collapse"}.get(
                self.tone, "no start collapses"
            )
        said = "; ".join([*rank, starts])
        return said[0].upper() + said[1:]

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to know to read the numbers."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        if self.system.apart is not None:
            yield self.system.apart.words
        families = [one for one in self.equilibria if one.states > 1]
        if families:
            together = sum(one.states for one in families)
            continuum = any(one.neutral_tokens or one.undecided_tokens for one in families)
            yield (
                f"{together} distinct states are alike up to turning, mirroring or scaling all tokens together or "
                f"changing their order; they are listed as {count(len(families), 'equilibrium', 'equilibria')}."
                + (
                    " Where a multiplier is one, they belong to a continuum of equilibria."
                    if continuum
                    else ""
                )
            )
        if any(one.mirrored for one in self.equilibria):
            yield "The system is odd: with X, -X is an equilibrium too, and both are counted as one."
        if self.is_full:
            many = count(len(self.equilibria), "equilibrium", "equilibria")
            yield f"The list of {many} is as long as the search allows; it may have found more."
        neutral = any(one.stable is None and one.rank > 1 for one in self.equilibria)
        if neutral and self.system.depends_on_tokens and not self.system.frozen:
            yield NEUTRAL
        for ending in dict.fromkeys(one.ending for one in self.basins.shares):
            if ending in MEANT:
                yield MEANT[ending]
        if self.system.frozen and not self.has_own_maps:
            kind = self.system.attention.partition(":")[0]
            yield f"Attention {kind} does not depend on the tokens: keeping the maps of a start changes nothing."
        if self.has_own_maps:
            starts = [one.start for one in self.equilibria if one.start is not None]
            said = (
                f"those of {'start' if len(starts) == 1 else 'starts'} {ranges(starts)} are listed"
                if starts
                else "none was reached"
            )
            yield (
                "The attention maps of each start are kept, so every start has its own map and its own equilibria; "
                f"{said}, and no equilibrium has a share of the starts."
            )

    def document(self) -> Document:
        """The conclusion, the equilibrium, where starts ended, all equilibria."""
        from rankscope.findings.equilibria import pictures

        one, basins = self.equilibrium, self.basins
        return Document(
            title="Equilibria of X <- norm(A X W)",
            command=self.command,
            facts=[self.system.words],
            blocks=some(
                Verdict(self.title, self.words, self.tone),
                Notes(self.notes) if self.notes else None,
                one is not None
                and Section(
                    self.title_of(one),
                    [Facts(one.facts()), _tokens(one), *_figures(pictures.paths(self))],
                ),
                bool(basins.shares)
                and Section(
                    "Where random starts end",
                    [
                        self._endings(),
                        *_figures([pictures.endings(self)]),
                        *_figures(pictures.basins(self)),
                        *(_figures(pictures.paths(self)) if one is None else ()),
                    ],
                    note=f"Where {count(basins.starts, 'random start')} {'is' if basins.starts == 1 else 'are'} after "
                    f"at most {count(basins.steps, 'step')}.",
                ),
                len(self.equilibria) > 1 and Section("All equilibria", [self._listed()], note=LIST_NOTE),
                bool(self.equilibria)
                and Section(
                    "Multipliers and singular values",
                    _figures([pictures.multipliers(self), pictures.singular_values(self)]),
                    only="html",
                ),
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    def chart(self) -> Chart:
        """Paths of tokens, multipliers, singular values, where starts end."""
        from rankscope.findings.equilibria import pictures

        return Chart(pictures.all_of(self), title=self.picture_title)

    def _endings(self) -> Tabular:
        from rankscope.results.statistics import wilson

        many = self.basins.starts
        return Tabular(
            columns=[
                Column("starts"),
                Column("share"),
                Column("95% interval"),
                Column("ended", "name"),
                Column("rank"),
            ],
            rows=[
                [
                    f"{one.count:,}",
                    percent(one.count / many, 4),
                    " to ".join(percent(end) for end in wilson(one.count, many)),
                    self.ended(one),
                    NOTHING if one.rank is None else str(one.rank),
                ]
                for one in self.basins.shares
            ],
        )

    def _listed(self) -> Tabular:
        shown = [place for place in range(len(self.equilibria)) if place < MOST_LISTED or place == self.place]
        columns = [
            *(Column("no."), Column("rank"), Column("starts", optional=True), Column("multiplier")),
            *(
                Column("stability", "name"),
                Column("mean |cos|"),
                Column("last sv"),
                Column("found by", "name"),
            ),
        ]
        left = len(self.equilibria) - len(shown)
        return Tabular(
            columns=columns,
            rows=[[str(place + 1), *_line(self.equilibria[place])] for place in shown]
            + ([[f"{left} more", *[""] * (len(columns) - 1)]] if left else []),
        )


def _line(one: EquilibriumValue) -> list[Cell | str]:
    return [
        str(one.rank),
        percent(one.share, 4),
        number(one.largest_multiplier, 4),
        one.attraction,
        number(one.mean_abs_cosine, 4),
        number(one.singular_values[one.rank - 1], 2) if one.rank else NOTHING,
        one.found_by,
    ]


def _figures(pictures: Sequence[Picture | None]) -> list[Figure]:
    return [Figure(one) for one in pictures if one is not None]


def _tokens(one: EquilibriumValue) -> Tabular:
    """The tokens as a table, cut where it is large."""
    width = len(one.tokens[0])
    channels = [str(at) for at in range(min(width, MOST_CHANNELS))] + ["..."] * (width > MOST_CHANNELS)
    rows = [
        [str(place), *map(_entry, token[:MOST_CHANNELS]), *(["..."] * (width > MOST_CHANNELS))]
        for place, token in enumerate(one.tokens[:MOST_TOKENS])
    ]
    if len(one.tokens) > MOST_TOKENS:
        rows.append(["...", *[""] * len(channels)])
    return Tabular(
        columns=[Column("token", "name"), *map(Column, channels)], rows=rows, title="Its tokens, by channel"
    )


def _entry(value: float) -> str:
    """Six decimals, or the power of ten of what they would show as zero."""
    return f"{value + 0.0:.6f}" if value == 0 or abs(value) >= 5e-7 else number(value, 2)
