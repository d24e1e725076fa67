"""The typed values of what was found of a system, each with what is said of it."""

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import FiniteFloat, model_validator

from rankscope.core.words import clipped, count, number, percent, power, ranges
from rankscope.findings.asked import NormName
from rankscope.findings.base import LogSize, Number, Value
from rankscope.findings.blocks import LN10
from rankscope.findings.subject import Apart

EndingName = Literal["equilibrium", "consensus", "cycle", "shape", "plateau", "range", "unresolved"]
FoundBy = Literal["run", "newton", "construction", "closed form", "given"]
Attraction = Literal["stable", "unstable", "neutral", "not decided"]

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


class SystemValue(Value, title="System"):
    """What was iterated, ``X <- norm(A X W)``."""

    tokens: int
    """How many tokens a state has."""

    dim: int
    """Width of a token."""

    mask: str
    """The mask rule."""

    norm: NormName
    """What ends a step."""

    values: str
    """The value map, as it was asked for."""

    attention: str
    """The attention, as it was asked for."""

    frozen: bool
    """Whether the attention maps of each start are kept."""

    seed: int
    """Of random maps and starts."""

    values_digest: str | None = None
    """Digest of a value map from a file, because files change."""

    apart: Apart | None = None
    """Groups of tokens that read only themselves in the end, and so need not agree; null if there are none."""

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
    """The token, from zero on."""

    channel: int
    """The channel of its first entry that is not zero, from zero on."""

    sign: Literal[-1, 1]
    """Sign of that entry."""

    log10_size: FiniteFloat
    """Logarithm of its size to base ten, which goes on where floats end."""


class RankProof(Value, title="Proof"):
    """Why the rank is exact: as many tokens as the rank have their first entry that is not zero in different channels.

    So they are linearly independent: written below each other by channel they are a triangle. And since every token
    is zero before the first of these channels, there are no more than that many independent ones.
    """

    pivots: tuple[Pivot, ...]
    """One token per channel, the last channel first."""

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


class ComponentValue(Value, title="Component"):
    """Tokens that influence each other both ways, and their largest multiplier."""

    tokens: tuple[int, ...]
    """The tokens, from zero on."""

    largest_multiplier: Number
    """Largest length of their multipliers, given that the tokens they read are at rest."""


class EquilibriumValue(Value, title="Equilibrium"):
    """A state that one step maps to itself."""

    rank: int
    """Number of singular values above the threshold, unless a proof says why it is exact."""

    rank_proof: RankProof | None
    """Why the rank is exact; null where it is counted."""

    rank_range: tuple[int, int]
    """Least and greatest rank that are possible: they differ where a singular value is near the threshold, or the
    place of the tokens is known badly."""

    rank_threshold: FiniteFloat
    """What rounding, and the unsure place of the tokens, may do to a singular value."""

    singular_values: tuple[FiniteFloat, ...]
    """Of the tokens, falling."""

    digits: int
    """Decimal digits of the arithmetic that found it."""

    equation_residual: FiniteFloat
    """Largest entry of ``|step(x) - x|``."""

    largest_multiplier: Number
    """Largest length of a multiplier."""

    largest_other_multiplier: Number
    """Largest length among those that are not one within their error."""

    neutral_tokens: tuple[int, ...]
    """Tokens of components that have a multiplier of length one within a small error."""

    undecided_tokens: tuple[int, ...]
    """Tokens of components with a multiplier that may be one, known to no better than 1e-3."""

    multipliers: tuple[tuple[Number, Number], ...]
    """Eigenvalues of the Jacobian of one step, real and imaginary part, largest length first."""

    multiplier_error: Number
    """Estimated error of the largest."""

    stable: bool | None
    """True if all lengths are below one by more than their errors, false if one is above, null if neither is known."""

    returns: Number
    """Share of random pushes that come back; null for members of a continuum, and where none was tried."""

    returns_mirrored: Number
    """Share that goes to the mirror image ``-x``; null where the system is not odd."""

    push_size: FiniteFloat
    """Length of the pushes, relative to the Frobenius norm."""

    push_steps: int
    """Steps that they are given to come back."""

    mean_abs_cosine: Number
    """Mean absolute cosine of pairs of different tokens; null where a token is zero."""

    tokens: tuple[tuple[FiniteFloat, ...], ...]
    """The state, one list per token."""

    components: tuple[ComponentValue, ...]
    """Groups of tokens that influence each other both ways."""

    share: Number
    """Share of the random starts that ended here; null where starts have their own maps, or none was run."""

    found_by: FoundBy
    """How it was found."""

    mirrored: bool
    """Whether ``-x`` was found too and is counted with it."""

    states: int
    """Distinct states with the same inner products that this one stands for."""

    start: int | None = None
    """Number of the start whose map it belongs to, where every start has its own."""

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
    """Starts that ended alike."""

    equilibrium: int | None
    """Place in the list of the equilibrium that they reach, from zero on; null where they reach none of it."""

    ending: EndingName
    """How they ended."""

    rank: int | None
    """Rank of the tokens there; null where it is not known."""

    count: int
    """How many starts."""


class Basins(Value):
    """Where random starts ended."""

    starts: int
    """How many were run."""

    steps: int
    """The most steps that a start was given."""

    shares: tuple[Share, ...]
    """Starts that ended alike, most frequent first."""

    start_angles: tuple[tuple[FiniteFloat, FiniteFloat], ...] | None = None
    """Of two tokens in the plane, for every start, in radians; null for other systems."""

    limit: tuple[int | None, ...] | None = None
    """For every such start the place of its equilibrium in the list; null where it has none."""


class Trajectories(Value):
    """States of a few starts on their way."""

    steps: tuple[int, ...]
    """Numbers of the recorded steps."""

    starts: tuple[tuple[tuple[tuple[Number, ...], ...], ...], ...]
    """The states, as ``[start][step][token][channel]``; null where an entry left the range of numbers."""

    numbers: tuple[int, ...]
    """Numbers of these starts."""

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
    """The same weights without the norm, by the split pass."""

    origin: Literal["equilibrium", "start"]
    """Where they start: the tokens of the equilibrium, or the first random start."""

    steps: int
    """How many were run before the tokens themselves left the range of floats."""

    log_ratio: LogSize | None
    """Natural logarithm of ``residual_ratio[frobenius,mean]`` after them; null where nothing is known."""

    log_floor: Number
    """Natural logarithm of its floor; null where nothing is known."""

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


def _multipliers(components: Sequence[ComponentValue]) -> str:
    """The largest multiplier of every group of tokens that read each other, neighbors with the same one together."""
    runs: list[tuple[list[int], str]] = []
    for part in components:
        shown = number(part.largest_multiplier, 4)
        if runs and runs[-1][1] == shown:
            runs[-1][0].extend(part.tokens)
        else:
            runs.append((list(part.tokens), shown))
    parts = [f"{shown} ({_token_names(tokens)})" for tokens, shown in runs[:MOST_CHANNELS]]
    return ", ".join(parts) + (", ..." if len(runs) > MOST_CHANNELS else "")


def _token_names(tokens: Sequence[int]) -> str:
    return f"token {tokens[0]}" if len(tokens) == 1 else f"tokens {clipped(ranges(tokens), 40)}"


def _having(tokens: Sequence[int]) -> str:
    return f"{_token_names(tokens)} {'has' if len(tokens) == 1 else 'have'}"
