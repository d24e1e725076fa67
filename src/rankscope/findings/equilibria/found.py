"""What was found of a system: its equilibria, where random starts ended, the same weights without the norm."""

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

from pydantic import FiniteFloat, model_validator

from rankscope.charts import Chart, Picture
from rankscope.core.words import NOTHING, clipped, count, listed, number, percent, power, ranges
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
from rankscope.findings.base import Finding, LogSize, Number, Value
from rankscope.findings.blocks import LN10
from rankscope.findings.collapse import Apart

Ending = Literal["equilibrium", "consensus", "cycle", "shape", "plateau", "range", "unresolved"]
FoundBy = Literal["run", "newton", "construction", "closed form", "given"]
Attraction = Literal["stable", "unstable", "neutral", "not decided"]

ENDED: dict[Ending, str] = {
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

MEANT: dict[Ending, str] = {
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
FLOAT_DIGITS = 15
"""Decimal digits of float64."""

STEP_ROUNDING = 1e-15
"""What rounding may leave of a step in float64: a smaller change cannot be seen."""

SURE = 1e-3
"""Error up to which a multiplier that may have length one is called neutral; beyond it nothing is decided."""

ROUNDING = 1e-12
"""A multiplier below this cannot be distinguished from zero: rounding alone leaves as much."""

VAGUE = 1e-6
"""A threshold of the rank above this share of the largest singular value comes from an unsure place of the tokens."""

COLLAPSED = 1e-6
"""Residual ratio below which the weights without the norm are said to collapse."""

MOST_TOKENS, MOST_CHANNELS = 12, 8
"""A table of tokens larger than this is cut; the JSON holds all."""

MOST_LISTED = 40
"""Equilibria that the page lists."""


class System(Value):
    """What was iterated, ``X <- norm(A X W)``.

    Args:
        frozen: the attention maps of each start are kept.
        values_digest: of a value map from a file, because files change.
        apart: groups of tokens that read only themselves in the end, which so need not agree.
    """

    tokens: int
    dim: int
    mask: str
    norm: str
    values: str
    attention: str
    frozen: bool
    seed: int
    values_digest: str | None = None
    apart: Apart | None = None

    @property
    def depends_on_tokens(self) -> bool:
        """Whether attention does."""
        return self.attention.partition(":")[0] in ("softmax", "gaussian")

    @property
    def words(self) -> str:
        """The system in one line."""
        kept = ", maps of each start kept" if self.frozen else ""
        norm = "no norm" if self.norm == "none" else f"norm {self.norm}"
        return (
            f"{self.tokens} tokens of dim {self.dim}, mask {clipped(self.mask)}, {self.attention} attention{kept}, "
            f"values {clipped(self.values)}, {norm}"
        )


class Pivot(Value):
    """The first entry of a token that is not zero: its channel, its sign, and log10 of its size."""

    token: int
    channel: int
    sign: Literal[-1, 1]
    log10_size: FiniteFloat


class Proof(Value):
    """Why the rank is exact: as many tokens as the rank have their first entry that is not zero in different channels.

    So they are linearly independent: written below each other by channel they are a triangle. And since every token
    is zero before the first of these channels, there are no more than that many independent ones.
    """

    pivots: tuple[Pivot, ...]
    all_equal: bool = False
    """Whether all tokens are one and the same vector: the case of rank one."""

    @property
    def words(self) -> str:
        """One sentence."""
        if self.all_equal:
            return f"Every token is the unit vector of channel {self.pivots[0].channel}: rank 1."
        shown = [
            f"token {one.token}: {'-' if one.sign < 0 else ''}{power(one.log10_size * LN10)} in channel {one.channel}"
            for one in self.pivots
        ]
        shown = [*shown[:3], "and so on", shown[-1]] if len(shown) > 4 else shown
        rank = len(self.pivots)
        return (
            f"{rank} tokens have their first entry that is not zero in {rank} different channels ({', '.join(shown)}), "
            f"so they are independent; all tokens are zero before channel {min(one.channel for one in self.pivots)}: "
            f"rank exactly {rank}."
        )


class Component(Value):
    """Tokens that influence each other both ways, and their largest multiplier."""

    tokens: tuple[int, ...]
    largest_multiplier: Number


class Equilibrium(Value):
    """A state that one step maps to itself.

    Args:
        rank: number of singular values above ``rank_threshold``, unless ``rank_proof`` says why it is exact.
        rank_range: ranks that are possible: they differ where a singular value is near the threshold, or the place of
            the tokens is known badly.
        digits: decimal digits of the arithmetic that found it.
        equation_residual: largest entry of ``|step(x) - x|``.
        multipliers: eigenvalues of the Jacobian of one step, real and imaginary part, largest length first.
        multiplier_error: estimated error of the largest.
        largest_other_multiplier: largest length among those that are not one within their error.
        neutral_tokens: tokens of components that have a multiplier of length one within a small error.
        undecided_tokens: tokens of components with a multiplier that may be one, known to no better than ``SURE``.
        stable: True if all lengths are below one by more than their errors, False if one is above, otherwise None.
        returns: share of random pushes that come back; None for members of a continuum, and where none was tried.
        returns_mirrored: share that goes to ``-x`` instead; None where the system is not odd.
        push_size: length of the pushes, relative to the Frobenius norm.
        mean_abs_cosine: over pairs of different tokens; None where a token is zero.
        share: share of the random starts that ended here; None where starts have their own maps, or none was run.
        mirrored: whether ``-x`` was found too and is counted with it.
        states: distinct states with the same inner products that this one stands for.
        start: number of the start whose map it belongs to, where every start has its own.
    """

    rank: int
    rank_proof: Proof | None
    rank_range: tuple[int, int]
    rank_threshold: FiniteFloat
    singular_values: tuple[FiniteFloat, ...]
    digits: int
    equation_residual: FiniteFloat
    largest_multiplier: Number
    largest_other_multiplier: Number
    neutral_tokens: tuple[int, ...]
    undecided_tokens: tuple[int, ...]
    multipliers: tuple[tuple[Number, Number], ...]
    multiplier_error: Number
    stable: bool | None
    returns: Number
    returns_mirrored: Number
    push_size: FiniteFloat
    push_steps: int
    mean_abs_cosine: Number
    tokens: tuple[tuple[FiniteFloat, ...], ...]
    components: tuple[Component, ...]
    share: Number
    found_by: FoundBy
    mirrored: bool
    states: int
    start: int | None = None

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if not self.tokens or len({len(token) for token in self.tokens}) != 1:
            raise ValueError("tokens are as many lists of equal length as there are tokens, at least one")
        many = len(self.singular_values)
        if (
            not 0 <= self.rank_range[0] <= self.rank_range[1] <= many
            or not 0 <= self.rank <= many
            or not many
        ):
            raise ValueError(
                f"rank {self.rank} and rank_range {self.rank_range} do not fit {many} singular values"
            )
        return self

    @property
    def is_zero(self) -> bool:
        """Whether all tokens are zero."""
        return not any(entry for token in self.tokens for entry in token)

    @property
    def is_consensus(self) -> bool:
        """Whether all tokens are equal, as far as rounding lets one see."""
        return all(
            abs(entry - first) <= self.rank_threshold
            for token in self.tokens
            for entry, first in zip(token, self.tokens[0], strict=True)
        )

    @property
    def attraction(self) -> Attraction:
        """Whether small changes shrink, in a word."""
        if self.stable is None:
            return "not decided" if self.undecided_tokens else "neutral"
        return "stable" if self.stable else "unstable"

    @property
    def stability(self) -> str:
        """The same with its reason, as what could stand after "It is"."""
        largest = self.largest_multiplier
        match self.attraction:
            case "unstable":
                worst = max(self.components, key=lambda one: one.largest_multiplier or 0.0)
                return (
                    f"unstable: {_having(worst.tokens)} the largest multiplier, {number(largest, 4)}, so small changes "
                    "grow"
                )
            case "stable":
                # A factor that rounds to one would say that nothing shrinks.
                near_one = largest is not None and 1 - largest < 1e-3
                by = percent(1 - (largest or 0.0)) if near_one else f"a factor of {number(largest, 4)}"
                return f"stable: small changes shrink, in the end by {by} per step"
            case "not decided":
                return (
                    f"not decided: {_having(self.undecided_tokens)} multipliers that may be one and are known to no "
                    f"better than {number(SURE)}, too little to say whether small changes grow, stay or shrink"
                )
        other = self.largest_other_multiplier
        rest = "" if other is None else f"; all others are at most {number(other, 4)}"
        rest = "; all others are zero to rounding" if other is not None and other < ROUNDING else rest
        return f"neutral to first order: {_having(self.neutral_tokens)} a multiplier of length one{rest}"

    @property
    def doubt(self) -> str | None:
        """One sentence where the rank is doubtful."""
        low, high = self.rank_range
        if low == high:
            return None
        if self.rank_threshold > VAGUE * self.singular_values[0]:
            return (
                f"The place of the tokens is known only to about {number(self.rank_threshold, 2)}: the rank is between "
                f"{low} and {high}."
            )
        near = self.singular_values[low]
        return (
            f"The singular value {number(near, 2)} is near the threshold {number(self.rank_threshold, 2)}: the rank is "
            f"between {low} and {high}."
        )

    @property
    def moved(self) -> str:
        """How much one step changes it, as what could stand after "one step moves"."""
        is_float = self.digits <= FLOAT_DIGITS
        most = max(self.equation_residual, STEP_ROUNDING) if is_float else self.equation_residual
        digits = "" if is_float else f", in arithmetic of {self.digits} digits"
        return f"no entry of its tokens by more than {number(most, 2)}{digits}"

    @property
    def came_back(self) -> str | None:
        """How many random pushes come back, and how many go to the mirror image."""
        if self.returns is None:
            return None
        within = f"within {count(self.push_steps, 'step')}"
        said = f"{percent(self.returns, 4)} of random pushes of {percent(self.push_size)} {within}"
        other = self.returns_mirrored
        return said if not other else f"{said}, {percent(other, 4)} more to the mirror image"

    def facts(self) -> list[tuple[str, str]]:
        """What is known of it: names and words."""
        above = sum(value > self.rank_threshold for value in self.singular_values)
        seen = f"{count(above, 'singular value')} above the threshold {number(self.rank_threshold, 2)}"
        how = "proven; " if self.rank_proof else "from "
        values = ", ".join(number(value) for value in self.singular_values[: min(above, MOST_TOKENS)])
        values += ", ..." if above > MOST_TOKENS else ""
        below = len(self.singular_values) - above
        rest = f"{below} not above the threshold" if below else ""
        cosine, share = self.mean_abs_cosine, self.share
        pairs = [
            ("rank", f"{self.rank}, {how}{seen}"),
            ("proof", self.rank_proof.words if self.rank_proof else None),
            ("doubt", self.doubt),
            ("singular values", ", and ".join(filter(None, [values, rest]))),
            ("one step moves", self.moved),
            ("mean |cos|", None if cosine is None else f"{number(cosine, 6)} between two tokens"),
            ("multipliers", _multipliers(self.components)),
            ("stability", self.stability),
            ("comes back", self.came_back),
            ("reached by", None if share is None else f"{percent(share, 4)} of the random starts"),
        ]
        return [(name, words) for name, words in pairs if words]


class Share(Value):
    """How many starts ended alike; ``equilibrium`` is a place in the list, counted from 0, where they reach one."""

    equilibrium: int | None
    ending: Ending
    rank: int | None
    count: int


class Basins(Value):
    """Where random starts ended.

    Args:
        steps: the most that a start was given.
        start_angles: of two tokens in the plane, for every start, in radians; None for other systems.
        limit: for every such start the place of its equilibrium in the list.
    """

    starts: int
    steps: int
    shares: tuple[Share, ...]
    start_angles: tuple[tuple[FiniteFloat, FiniteFloat], ...] | None = None
    limit: tuple[int | None, ...] | None = None


class Trajectories(Value):
    """States of a few starts after the recorded ``steps``: ``starts[start][step][token][channel]``.

    ``numbers`` are the numbers of these starts. An entry is None where it left the range of numbers.
    """

    steps: tuple[int, ...]
    starts: tuple[tuple[tuple[tuple[Number, ...], ...], ...], ...]
    numbers: tuple[int, ...]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        shapes = {
            (len(start), len(state), len(token))
            for start in self.starts
            for state in start
            for token in state
        }
        if (
            len(self.starts) != len(self.numbers)
            or len(shapes) != 1
            or next(iter(shapes))[0] != len(self.steps)
        ):
            raise ValueError(
                f"starts are [start][step][token][channel] for {len(self.numbers)} starts and {len(self.steps)} steps"
            )
        return self


class Bare(Value):
    """The same weights without the norm, by the split pass.

    Args:
        origin: where they start: the tokens of the equilibrium, or the first random start.
        steps: how many were run before the tokens themselves left the range of floats.
        log_ratio: natural logarithm of the residual ratio ``residual_ratio[frobenius,mean]`` after them; None where
            tokens have size zero, or nothing is known.
        log_floor: that of its floor; None where nothing is known.
    """

    origin: Literal["equilibrium", "start"]
    steps: int
    log_ratio: LogSize | None
    log_floor: Number

    @property
    def words(self) -> str:
        """One sentence. Of a number that is not above its floor, only the floor is said."""
        begin = "the tokens of the equilibrium" if self.origin == "equilibrium" else "the first random start"
        said = f"The same weights without the norm, from {begin}: after {count(self.steps, 'step')} "
        if self.log_ratio == -math.inf:
            return f"{said}all tokens are exactly equal."
        if self.log_ratio is None or self.log_floor is None:
            return f"{said}it cannot be said whether tokens differ: their size is zero or beyond the range of floats."
        is_known = self.log_ratio > self.log_floor
        size = power(self.log_ratio if is_known else self.log_floor)
        if max(self.log_ratio, self.log_floor) >= math.log(COLLAPSED):
            if is_known:
                return f"{said}tokens still differ by {size} of their size."
            return f"{said}tokens differ by {size} of their size or less; more is not known."
        return (
            f"{said}tokens differ by {size} of their size{'' if is_known else ' or less'} (from the split pass; plain "
            "float64 cannot see below 1e-16): without the norm they collapse."
        )


class EquilibriaFinding(Finding):
    """Equilibria of a system, and where random starts ended.

    Args:
        rank: the rank that was asked for; None for a search.
        place: the equilibrium that is shown, as its place in the list: the one asked for, otherwise the one that most
            starts reach; None if none was found.
        equilibria: most frequent first.
        is_full: whether the search found as many equilibria as it judges at most.
    """

    command: ClassVar[str] = "equilibria"
    shown: ClassVar[tuple[str, ...]] = ("words", "notes", "equilibrium")

    rank: int | None
    system: System
    place: int | None
    equilibria: tuple[Equilibrium, ...]
    is_full: bool = False
    basins: Basins
    trajectories: Trajectories | None
    without_norm: Bare | None
    definitions: dict[str, str]

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
    def equilibrium(self) -> Equilibrium | None:
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

    def title_of(self, one: Equilibrium) -> str:
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

    def _reached(self, one: Equilibrium) -> list[str]:
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
        from rankscope.findings.equilibria.paths import paths

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
                    [Facts(one.facts()), _tokens(one), *_figures(paths(self))],
                ),
                bool(basins.shares)
                and Section(
                    "Where random starts end",
                    [
                        self._endings(),
                        *_figures([pictures.endings(self)]),
                        *_figures(pictures.basins(self)),
                        *(_figures(paths(self)) if one is None else ()),
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

        return Chart(pictures.all_of(self))

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


LIST_NOTE = (
    "starts: share of random starts that end there; multiplier: the largest; last sv: the smallest singular value that "
    "counts in the rank."
)


def _line(one: Equilibrium) -> list[Cell | str]:
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


def _tokens(one: Equilibrium) -> Tabular:
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


def _multipliers(components: Sequence[Component]) -> str:
    """The largest multiplier of every group of tokens that read each other, neighbors with the same one together."""
    runs: list[tuple[list[int], str]] = []
    for part in components:
        shown = number(part.largest_multiplier, 4)
        if runs and runs[-1][1] == shown:
            runs[-1][0].extend(part.tokens)
        else:
            runs.append((list(part.tokens), shown))
    parts = [f"{shown} ({_named(tokens)})" for tokens, shown in runs[:MOST_CHANNELS]]
    return ", ".join(parts) + (", ..." if len(runs) > MOST_CHANNELS else "")


def _named(tokens: Sequence[int]) -> str:
    return f"token {tokens[0]}" if len(tokens) == 1 else f"tokens {clipped(ranges(tokens), 40)}"


def _having(tokens: Sequence[int]) -> str:
    return f"{_named(tokens)} {'has' if len(tokens) == 1 else 'have'}"
