"""What a decomposition into paths is asked, and what it found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from rankscope.charts import Chart, Picture
from rankscope.core.words import clipped, count, number, percent, whole
from rankscope.document import Block, Document, Facts, Figure, Notes, Section, Tabular, Tone, Verdict, some
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import ModelOrRandom, option
from rankscope.findings.base import Finding
from rankscope.findings.blocks import how_to_read, legend
from rankscope.findings.paths import page
from rankscope.findings.paths.values import (
    Dtype,
    Elsewhere,
    HeadTerm,
    Identity,
    Length,
    LengthAndMlps,
    Mlps,
    Pair,
    PruningValue,
    Sampled,
    Score,
    SearchValue,
    SiteValue,
    SourceTerm,
    TopPath,
    UncrossedValue,
    elsewhere,
    heads_words,
    part_of,
    uncrossed_words,
)
from rankscope.findings.subject import CutSubject
from rankscope.findings.ways import refuse_idle

DEFAULT_TOP = 20

ENOUGH = 0.9
"""The shortest paths that together carry this share of the output are named."""

MANY = 10**15
"""From this many paths on, how many some of them are is said in percent."""

MORE_ALIKE = 0.1
"""From this difference of mean cosines on, words say that long paths add what is alike for all tokens."""

CANCELS = 2.0
"""From this ratio of the sum of norms to the norm of the sum on, words speak of cancellation."""

DEFINITIONS = {
    "norm[frobenius]": "size of a term Z: its Frobenius norm",
    "residual[frobenius,mean]": "how far the tokens of a term are from their mean: |J Z|_F",
    "cosine[off_diagonal]": "mean cosine between two tokens of a term",
    "share[residual]": "signed part of the residual of the output Y: <J Z, J Y> / |J Y|^2; over all lengths, and over "
    "all sources, shares add up to one",
    "cosine_to_output[residual]": "cosine of the angle between J Z and J Y",
}


class PathsConfig(ModelOrRandom):
    """Take the output of a model apart into paths: by length, by head, by where they start, and one by one.

    Attention maps, scales of norms and gates of MLPs are held at their values on the input. With these held fixed the
    network is affine, and its output is the sum over all sequences of heads, exactly. Sums over lengths, heads and
    sources cost a few passes, however many sequences there are. Single paths are searched best first; the list says
    whether it is proven complete.
    """

    group = "Paths"
    top: int | None = option(None, "How many single paths; 0 for none.", ge=0, shown="20, or all")
    score: Score = option("norm", "Rank single paths by norm or residual.")
    seconds: float = option(
        3.0, "Time for proving the list of single paths complete.", ge=0, allow_inf_nan=False
    )
    pairs: bool = option(False, "Also all paths through every two heads.")
    count_mlps: bool = option(False, "Also tell lengths apart by the number of MLPs.")
    sample: int = option(
        0, "Single paths drawn per length, in the decomposition and run again alone; 0 for none.", ge=0
    )
    prune: bool = option(False, "Rank heads by what the output loses without their paths, and remove them.")
    vectors: bool | None = option(
        None,
        "Also the norm (not only the share) of all paths through each head.",
        shown="where that takes about a minute at most",
    )
    mlps: Mlps = option(
        "through", "through: paths cross MLPs, their gates held; source: paths begin at them."
    )
    before_final_norm: bool = option(False, "Decompose the last state before the final norm.")
    batch_size: int = option(1, "Texts that are embedded together; paths are those of each text alone.", ge=1)
    dtype: Dtype = option("float64", "Compute paths in this dtype; a model is loaded in its own.")

    @field_validator("dtype", mode="before")
    @classmethod
    def _dtype_is_wide(cls, name: object) -> object:
        if name in ("bfloat16", "float16"):
            raise ConfigError(
                f"paths are computed in float64 or float32, not in {name}; a model in {name} is brought to float64 "
                "block by block: leave out ",
                Option("dtype"),
            )
        return name

    @property
    def draws(self) -> bool:
        """Paths that are sampled, and heads that are removed at random for comparison, are drawn."""
        return bool(self.sample) or self.prune

    @model_validator(mode="after")
    def _single_paths_are_wanted(self) -> Self:
        if self.top == 0:
            refuse_idle(self, ["score", "seconds"], "beside ", Option("top", 0))
        return self

    @field_validator("sample")
    @classmethod
    def _sample_has_an_interval(cls, paths: int) -> int:
        if paths == 1:
            raise ConfigError(
                Option("sample", 1),
                ": an interval needs at least two paths; ask for 2 or more, or 0 for none",
            )
        return paths


class PathsFinding(Finding):
    """What every path length, head, source and single path adds to the output of a network.

    Values of lengths, heads, sources and pairs are means over texts and seeds; the table has a row for each text.
    Single paths, samples and pruning are those of the first text.
    """

    command: ClassVar[str] = "paths"
    shown: ClassVar[tuple[str, ...]] = ("words", "definitions", "elsewhere")
    columns: ClassVar[Mapping[str, str]] = {
        "tokens": "Tokens of the text that are measured.",
        "kind": "Which paths the number is of: length, length and mlps, head, source or path.",
        "length": "Heads on the path.",
        "mlps": "MLPs on the path.",
        "paths": "How many such paths lead from the input to the output, as text: they exceed any integer column.",
        "source": "Where the paths start.",
        "path": "A single path: one head, or -, for every attention part.",
    }

    subject: CutSubject
    """What was decomposed."""

    identity: Identity
    """Whether the paths add up, and to what."""

    spectrum: tuple[Length, ...]
    """All paths of every length, the shortest first."""

    heads: tuple[HeadTerm, ...]
    """All paths through every head, the first layer first."""

    sources: tuple[SourceTerm, ...]
    """All paths from every place where paths start."""

    sites: tuple[SiteValue, ...]
    """The attention parts that a path passes, in order."""

    uncrossed: tuple[UncrossedValue, ...] = ()
    """Parts that no path crosses."""

    mlps: tuple[LengthAndMlps, ...] = ()
    """Lengths told apart by the number of MLPs, where that was asked for."""

    top: tuple[TopPath, ...] = ()
    """The strongest single paths."""

    search: SearchValue | None = None
    """How these were found; null if none were asked for."""

    pairs: tuple[Pair, ...] | None = None
    """The strongest pairs of heads; null if none were asked for."""

    samples: tuple[Sampled, ...] = ()
    """Residual ratios of single paths drawn at random, where that was asked for."""

    gaps: tuple[Sampled, ...] = ()
    """How far paths that are run again are from their terms, relative to these."""

    pruning: PruningValue | None = None
    """What is lost without heads, where that was asked for."""

    @property
    def definitions(self) -> dict[str, str]:
        """What each number is, as a formula."""
        return DEFINITIONS

    @property
    def elsewhere(self) -> Elsewhere | None:
        """What paths carry that do not start at the input; null where that is nothing above rounding."""
        return elsewhere(self.sources)

    @property
    def words(self) -> tuple[str, ...]:
        """Which lengths carry the output, whether paths add up, which heads, sources and single paths matter."""
        other = self.elsewhere
        said = [
            self._conclusion(),
            self._alike(),
            self.identity.words if self.identity.holds else "",
            self.identity.end_words,
            uncrossed_words(self.uncrossed),
            heads_words(self.heads) if self.identity.holds else "",
            other.words(self._later) if other and self.identity.holds else "",
            self._cancellation(),
            self._strongest(),
        ]
        return tuple(dict.fromkeys(one for one in said if one))

    def _conclusion(self) -> str:
        """Which lengths carry the output, or why that cannot be said."""
        identity, having = self.identity, [one for one in self.spectrum if one.paths]
        if not identity.holds:
            return (
                f"The paths do not add up: their sum differs from {identity.name} by "
                f"{identity.error}, more than the {number(identity.allowed, 1)} that rounding "
                "alone could cause, so no share can be trusted."
            )
        if not having:
            return identity.words
        if all(one.share is None for one in self.spectrum):
            return "The tokens of the output are equal up to rounding: it has no residual, and no path a share of it."
        if len(having) == 1:
            only = having[0]
            if not self.sites:
                return "The network has no heads, so its paths all have length 0."
            reason = ": no skip leads around an attention" if only.length == len(self.sites) else ""
            number_of = (
                "The only path has" if identity.paths == 1 else f"All {whole(identity.paths)} paths have"
            )
            return f"{number_of} length {only.length}{reason}."
        known = [one for one in having if one.has_share]
        if not known:
            return "No length carries a share of the output that is above rounding."
        largest = max(known, key=lambda one: abs(one.share or 0.0))
        sign = "" if (largest.share or 0.0) >= 0 else " of either sign"
        biases = f", and those from {self._later} through {_heads(largest.length)}" if self._later else ""
        said = (
            f"Paths through {_heads(largest.length)} carry the largest share{sign} of the output's residual: "
            f"{percent(largest.share)} ({self._part(largest.paths)} from the input{biases})"
        )
        alike = f", and those from {self._later}" if self._later else ""
        reached, paths = 0.0, 0
        for one in known:
            reached, paths = reached + (one.share or 0.0), paths + one.paths
            if reached >= ENOUGH:
                if one.length in (largest.length, known[-1].length):
                    break
                upto = f"Paths through at most {_heads(one.length)} carry {percent(reached)}"
                return f"{said}. {upto} ({self._part(paths)} from the input{alike})."
        return f"{said}."

    def _alike(self) -> str:
        """Whether the tokens of what long paths add are more alike than those of short ones; empty if they are not."""
        known = [one for one in self.spectrum if one.paths and one.cosine is not None and one.resolved]
        if len(known) < 2 or not self.identity.holds:
            return ""
        first, last = known[0], known[-1]
        if (last.cosine or 0.0) - (first.cosine or 0.0) < MORE_ALIKE:
            return ""
        return (
            "What long paths add is more alike for all tokens: its mean cosine over pairs of tokens is "
            f"{number(first.cosine)} for paths through {_heads(first.length)} and {number(last.cosine)} for paths "
            f"through {_heads(last.length)}."
        )

    def _part(self, paths: int) -> str:
        """How many of all paths some are, in numbers that can be read."""
        total = self.identity.paths
        few = whole(paths) if total < MANY else part_of(paths, total)
        return f"{few} of {whole(total)} paths"

    def _cancellation(self) -> str:
        ratio = self.spectrum[-1].cancellation_ratio if self.spectrum else None
        if ratio is None or ratio < CANCELS or not self.identity.holds:
            return ""
        sums = f"{number(ratio, 2)} times the norm of the output"
        return f"Lengths cancel each other: the norms of what each of them adds sum to {sums}."

    def _strongest(self) -> str:
        """The strongest single path, and how sure the list is."""
        if self.search is None or not self.top:
            return ""
        where = "" if self.identity.texts == 1 else " in the first text"
        if not self.search.ranked:
            return (
                f"No single path from the input is the strongest{where}: the {self.search.score}s of all "
                f"{len(self.top)} that were found are rounding, which has no order."
            )
        best = self.top[0]
        route = f"goes through {best.route(self.sites)}"
        share = f" and carries {percent(best.share)} of the output's residual" if best.has_share else ""
        listed = f"The list of {count(len(self.top), 'path')} below is {self.search.sure(len(self.top))}"
        among = "all single paths from the input" if self.search.exact else "the single paths that were found"
        return (
            f"Of {among}{where}, the one with the largest {self.search.score} {route}{share}. "
            f"{listed}. {self.search.more}"
        ).rstrip()

    @property
    def tone(self) -> Tone:
        """Green where paths add up to the output, red where they do not."""
        if not self.identity.holds:
            return "bad"
        return "good" if any(one.has_share for one in self.spectrum) else "unknown"

    @property
    def title(self) -> str:
        """What was checked first of all."""
        if self.tone == "unknown":
            if not self.identity.paths:
                return "No path"
            is_equal = all(one.share is None for one in self.spectrum)
            return "The tokens of the output are equal" if is_equal else "No share is above rounding"
        return f"The paths {'do not ' * (self.tone == 'bad')}add up to {self.identity.name}"

    def document(self) -> Document:
        """The conclusion, then lengths, heads, single paths, pairs, sources, samples, pruning."""
        heads = (
            f"{count(len(self.heads), 'head')} in {count(len({site.layer for site in self.sites}), 'block')}"
        )
        messages = self.subject.reported
        meanings = how_to_read(self._meanings())
        sections = list(self._sections())
        return Document(
            title=f"Paths through {clipped(self.subject.name, 160)}",
            command=self.command,
            facts=[
                *self.subject.facts(self.table, self.identity.dtype),
                self.subject.rule,
                heads,
            ],
            blocks=some(
                Verdict(self.title, self.words, self.tone),
                *meanings,
                Facts(self._facts()),
                bool(messages) and Notes(messages),
                *sections,
                bool(marks := page.marks(sections)) and Notes(marks),
            ),
            definitions=list(self.definitions.items()),
            origin=self.provenance,
        )

    @property
    def _later(self) -> str:
        """Where paths start that do not start at the input; empty if there are none."""
        names = [one.source for one in self.sources if one.source != "input" and (one.share or one.norm)]
        only = all(one.endswith("bias") for one in names)
        return ("biases" if only else "other sources") if names else ""

    @property
    def _has_later(self) -> bool:
        """Whether paths start elsewhere than at the input."""
        return bool(self._later)

    def _meanings(self) -> list[str]:
        """What a path, its length and a share are, and what the sum over paths rests on."""
        through = self.identity.mlps != "source"
        scales = "attention maps, norm scales (what normalisation divides tokens by)"
        gates = "MLP gates (for every hidden unit, the output of its activation divided by its input)"
        held = f"{scales} and {gates} are held"
        if not through:
            held = f"{scales.replace(', norm', ' and norm')} are held"
        one_way = " Ways through an MLP and around it count as one path." if through else ""
        begin = "" if through else " Paths also begin at what MLPs put out."
        later = (
            "Paths may also start at a bias. Their length counts the heads from there on, the head of a value bias "
            "included. All numbers of a length but that of its paths include them. A bias is the same for "
            f"all tokens, but norm scales{' and gates' if through else ''} differ between tokens, so what becomes of "
            "it has a residual."
        )
        return [
            "Path: one way from its start to the output. It starts at the input (what enters the first block)"
            f"{' or, see below, at a bias' if self._has_later and through else ''}. In every block it goes through one "
            "attention head, or around attention where there is a skip. Its length is the number of heads on it."
            f"{one_way}",
            "Residual of the output: its tokens minus their mean token (not the residual connection, which is called "
            "skip here). It is zero if all tokens are equal.",
            "Share of some paths: the inner product of the residual of what they add with the residual of the output, "
            "divided by the squared Frobenius norm of the latter. Shares of all lengths sum to 100%. A negative share "
            "means that what these paths add points against the residual of the output.",
            f"To tell paths apart, {held} at their values on the text. The network is then linear up to biases, so its "
            f"output is the sum of what all paths add.{begin}",
            *([later] if self._has_later and through else []),
            *(
                ["Numbers are arithmetic means over texts, unless they are said to be of the first text."]
                if self.identity.texts > 1
                else []
            ),
            *(
                f"{one.name} is head {one.head} of block {one.layer}; blocks count from 1, heads from 0."
                for one in self.heads[-1:]
            ),
        ]

    def _sections(self) -> Iterator[Section]:
        first = "" if self.identity.texts == 1 else " Numbers are those of the first text."
        by_mlps = [page.mlps_table(self.mlps)] if self.mlps else []
        yield _section(
            "By length",
            "The sum of what all paths of one length add.",
            self._length_pictures(),
            [legend(LENGTHS), page.lengths_table(self.spectrum), *by_mlps],
        )
        if self.heads:
            yield _section("By head", HEADS, self._head_pictures(), [page.heads_table(self.heads)])
        if self.search is not None and self.top:
            sure = f"The list is {self.search.sure(len(self.top))}.{first} {page.RANKED.format(self.search.score)}"
            title = f"Single paths from the input, largest {self.search.score} first"
            yield _section(title, sure, [], [page.top_table(self.top, self.sites)])
        if self.pairs:
            yield _section("Pairs of heads", PAIRS, self._pair_pictures(), [page.pairs_table(self.pairs)])
        elif self.pairs is not None:
            yield _section("Pairs of heads", PAIRS, [], [Notes(["No head comes after another."])])
        yield _section("By source", self._source_note(), [], self._source_tables())
        if self.samples:
            table = page.samples_table(self.samples, self.gaps)
            yield _section("Sampled paths", SAMPLES + first, [page.samples_panel(self.samples)], [table])
        if self.pruning is not None:
            curves = [page.pruning_panel(self.pruning)]
            yield _section("Pruning", PRUNING + first, curves, [page.pruning_table(self.pruning)])

    def chart(self) -> Chart:
        """Shares and sizes by length, heads, and what else was asked for."""
        return Chart(
            [
                *self._length_pictures(),
                *self._head_pictures(),
                *self._pair_pictures(),
                *([page.samples_panel(self.samples)] if self.samples else []),
                *([page.pruning_panel(self.pruning)] if self.pruning is not None else []),
            ],
            title=self.picture_title,
        )

    def _length_pictures(self) -> list[Picture]:
        return [page.share_panel(self.spectrum), page.size_panel(self.spectrum)]

    def _head_pictures(self) -> list[Picture]:
        return [page.heads_grid(self.heads, self.sites)] if self.heads else []

    def _pair_pictures(self) -> list[Picture]:
        return [page.pairs_grid(self.pairs)] if self.pairs else []

    def _source_note(self) -> str:
        """Where paths start, and what the names of these places mean."""
        if not self._has_later:
            return ONE_SOURCE
        known = [BIASES[one] for one in dict.fromkeys(one.source for one in self.sources) if one in BIASES]
        places = "a bias" if self._later == "biases" else "a bias or another part, as named"
        return f"{SOURCES.format(places=places)} {' '.join(known)}".rstrip()

    def _source_tables(self) -> list[Tabular]:
        kinds = len({one.source for one in self.sources})
        return [
            *([page.source_sums(self.sources)] if 1 < kinds < len(self.sources) else []),
            page.sources_table(self.sources),
        ]

    def _facts(self) -> list[tuple[str, str]]:
        identity = self.identity
        carried = [one.length * one.share for one in self.spectrum if one.share is not None and one.has_share]
        longest = max((one.length for one in self.spectrum if one.paths), default=0)
        return [
            ("paths from the input", whole(identity.paths)),
            ("mean length of these paths", f"{number(identity.mean_length)} of at most {longest}"),
            ("sum of length times share, over all lengths", number(sum(carried) if carried else None)),
        ]


LENGTHS = (
    "paths: how many paths from the input have this length.",
    "share: of the residual of the output, as explained above.",
    "norm: Frobenius norm (root of the sum of squares) of what these paths add. residual: the same after its mean "
    "token is subtracted.",
    "token cosine: mean cosine over pairs of tokens of what these paths add; 1: all point the same way.",
    "cosine to output: subtract the mean token from what these paths add, and from the output, and read each matrix as "
    "one long vector; this is the cosine of the two.",
    "cancellation: the sum of the norms of this and all shorter lengths, divided by the norm of what they add "
    "together. It is 1 or more, and larger the more they cancel.",
)
HEADS = (
    "The sum of what all paths through a head add. It is not what removing the head would change, because attention "
    "maps, norm scales and gates after it would then change too. A path through several heads counts for each, "
    "so shares do not sum to 100%. Columns are as above."
)
PAIRS = (
    "What all paths through both heads of a pair add, for the pairs with the largest shares of either sign."
)
SOURCES = (
    "Where paths start: at the input, or later at {places}. Shares of all sources sum to 100%. Biases of one kind in "
    "one block are one source. norm, residual: of what all paths from there add."
)
BIASES = {
    "value bias": "value bias: biases of the values of all heads.",
    "output bias": "output bias: bias of the projection after the heads.",
    "mlp bias": "mlp bias: biases of both matrices of the MLP.",
    "norm bias": "norm bias: biases of all normalisation of the block.",
}
"""What the names of sources mean."""

ONE_SOURCE = "All paths start at the input. norm, residual: of what all of them add."
SAMPLES = (
    "Single paths drawn at random. frozen: what the path adds, as above; isolated: the network run again with nothing "
    "but the path; official: the same as the code published with the paper does it."
)
PRUNING = "Heads are removed in the order in which each method takes them to matter least."


def _heads(many: int) -> str:
    """How many heads a path goes through, in words.

    >>> _heads(0), _heads(1), _heads(3)
    ('no head', 'one head', '3 heads')
    """
    return {0: "no head", 1: "one head"}.get(many, f"{many} heads")


def _section(title: str, note: str, pictures: Sequence[Picture], tables: Sequence[Block]) -> Section:
    return Section(title, [*map(Figure, pictures), *tables], note)
