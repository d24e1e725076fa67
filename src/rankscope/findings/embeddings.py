"""Rows of inputs, one per text or image: whether they collapsed, and how, beside Gaussian rows of the same size.

The finding of ``rs.scan_embeddings``, of ``rankscope scan embeddings.npy --across inputs`` and of ``rankscope scan
MODEL --across inputs``, where every layer of a model gives one row per input.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import FiniteFloat

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.words import NOTHING, clipped, count, listed, number, percent
from rankscope.document import (
    Block,
    Cell,
    Column,
    Document,
    Figure,
    Notes,
    Section,
    Tabular,
    Tone,
    Verdict,
    some,
)
from rankscope.findings.base import Finding, Number, Quoted, Value
from rankscope.findings.inputs import InputsName, InputsVerdict

Pooling = Literal["mean", "cls", "last", "max"]

TONES: dict[InputsName, Tone] = {
    **{"healthy": "good", "too few": "unknown"},
    **{"collapsed": "bad", "dimensional": "bad", "clusters": "bad"},
}
"""How a verdict is colored; other names mean: look closer."""

DEFINITIONS = {
    "rankme": (
        "rankme[paper]",
        "RankMe",
        "exp of the entropy of p = sigma / sum(sigma) + 1e-7, rows as they are",
    ),
    "effective_rank": (
        "effective_rank[entropy]",
        "effective rank",
        "exp of the entropy of the singular values of the rows, scaled to sum one",
    ),
    "effective_rank_centered": (
        "effective_rank[entropy,centered]",
        "effective rank, centered",
        "the same of the rows minus their mean",
    ),
    "residual_ratio": (
        "residual_ratio[frobenius,mean]",
        "residual ratio",
        "Frobenius norm of the rows minus their mean over that of the rows; 0 if all rows are equal",
    ),
    "cosine": ("cosine[off_diagonal]", "mean cosine", "mean cosine of two different rows"),
    "spread": (
        "spread[unit]",
        "spread of unit rows",
        "standard deviation of a channel of the rows at length one, mean over channels; 1/sqrt(d) if spread evenly",
    ),
    "uniformity": (
        "uniformity[t=2]",
        "uniformity",
        "log of the mean of exp(-2 |u - v|^2) over pairs of rows at length one; 0 if all are equal, near -4 if spread",
    ),
    "exponent": (
        "exponent[spectrum]",
        "exponent of the spectrum",
        "a, where the variance in the i-th direction falls as i^-a; fitted from the 3rd to the 100th or the middle one",
    ),
    "largest_channel": (
        "channel_share[largest,unit]",
        "largest channel",
        "share of the sum of squares of the rows at length one that one channel holds",
    ),
    "near_duplicates": (
        "near_duplicates[0.01]",
        "near-duplicates",
        "share of rows with another one nearer than a hundredth of the median distance of two rows",
    ),
    "alignment": (
        "alignment[groups]",
        "alignment",
        "mean squared distance of two rows of one group, at length one; 0 if groups are points",
    ),
    "lidar": (
        "lidar[groups]",
        "LiDAR",
        "effective rank of the covariance of group means, in units of the covariance inside groups",
    ),
    "gap": (
        "gap[labels]",
        "gap between labels",
        "distance of the means of two labels, of rows at length one; the largest of all pairs",
    ),
    "between_labels": (
        "between[labels]",
        "variance between labels",
        "share of the variance of rows at length one that lies between the means of labels",
    ),
}
"""Of every number: its id in the table, what it is called, and what it is."""

TELLING = 0.05
"""A change of the mean cosine by less is not worth a sentence; it is in the table."""

SHARES = ("near_duplicates", "largest_channel", "between_labels")
"""Numbers that are written as percentages."""

TRY: dict[InputsName, str] = {
    "collapsed": "Look at the loss and at what reaches the embedding: a missing stop-gradient, predictor or negatives, "
    "a learning rate that is too high, a pooled token that nothing trains, or inputs that are all the same.",
    "dimensional": "Look at a projection that is too narrow, strong augmentation, or weight decay on the last map; a "
    "loss that decorrelates channels (VICReg, Barlow Twins) or whitening acts on this directly.",
    "clusters": "Differences inside clusters are small beside those between them; this is the end state of a "
    "classification loss, and a fault where inputs of one cluster should be told apart.",
    "shared mean": "Subtract the mean of many rows before taking cosines; no direction is lost.",
    "cone": "Scale rows to length one, then subtract their mean, before taking cosines.",
    "massive channel": "Standardize the channels, or drop the massive ones, before taking cosines or distances.",
    "too few": "Give more rows.",
}
"""What to do about each."""


class InputNumbers(Value):
    """Numbers of some rows; null where a number does not exist or was not asked for."""

    rankme: Number = None
    """RankMe as its paper defines it."""

    effective_rank: Number = None
    """Effective rank of the rows as they are."""

    effective_rank_centered: Number = None
    """Effective rank of the rows minus their mean."""

    residual_ratio: Number = None
    """Norm of the rows minus their mean over that of the rows."""

    cosine: Number = None
    """Mean cosine of two different rows."""

    spread: Number = None
    """Standard deviation of a channel of unit rows, mean over channels."""

    uniformity: Number = None
    """Uniformity of Wang and Isola, t = 2."""

    exponent: Number = None
    """Exponent of the spectrum."""

    largest_channel: Number = None
    """Share of the squares of unit rows that one channel holds."""

    near_duplicates: Number = None
    """Share of rows that have a near-duplicate."""

    alignment: Number = None
    """Alignment of Wang and Isola, squared distances inside groups; with groups alone."""

    lidar: Number = None
    """LiDAR; with groups alone."""

    gap: Number = None
    """Distance of the means of two labels, of unit rows, the largest; with labels alone."""

    between_labels: Number = None
    """Share of the variance of unit rows between labels; with labels alone."""


class ChangedRows(Value):
    """What some numbers would be after a change of the rows."""

    cosine: Number
    """Mean cosine of two different rows."""

    uniformity: Number
    """Uniformity."""

    effective_rank: Number
    """Effective rank."""

    spread: Number
    """Spread of unit rows."""


class SpectrumPoint(Value):
    """One direction of the spectrum."""

    place: int
    """Which direction, from 1 on, the one with most variance first."""

    share: FiniteFloat
    """Share of the variance that it holds."""

    expected: FiniteFloat
    """The same of Gaussian rows."""


class InputsState(Value):
    """One set of rows: a whole array, or a layer of a model."""

    stack: str | None = None
    """Run of blocks; null where rows come from no model."""

    layer: int | None = None
    """Layer, 0 is the input of the first block; null where rows come from no layer."""

    site: str
    """What the rows are: rows, block, final, own."""

    rows: int
    """How many."""

    dim: int
    """Their width."""

    sampled: int | None = None
    """Rows that stand for all where pairs of rows are compared, if these are fewer; the verdict is that of these."""

    measured: InputNumbers
    """Numbers of the rows."""

    expected: InputNumbers
    """The same numbers of Gaussian rows of the same number and width."""

    floors: InputNumbers
    """How far rounding can move each number, to first order; null where that is not known."""

    centered: ChangedRows | None = None
    """What subtracting the mean would change."""

    whitened: ChangedRows | None = None
    """What whitening would change: every direction scaled to the same variance; null of too few rows for that."""

    spectrum: tuple[SpectrumPoint, ...] = ()
    """Some directions of the centered rows; of the judged rows alone."""

    verdict: InputsVerdict
    """What the rows amount to."""

    @property
    def visible(self) -> int:
        """How many directions this many rows can show after centering."""
        return min(self.rows - 1, self.dim)

    @property
    def where(self) -> str:
        """The rows in a word."""
        if self.site == "own":
            return "own embedding"
        return (
            "rows" if self.layer is None else "final state" if self.site == "final" else f"layer {self.layer}"
        )

    @property
    def short(self) -> str:
        """The same below an axis."""
        return {"own": "own", "final": "final"}.get(self.site, self.where)


class OwnEmbedding(Value):
    """The one vector that a model itself makes of an input."""

    kind: Literal["declared", "returned"]
    """Declared by the files of a sentence encoder (modules.json), or returned by the model."""

    name: str
    """The folder of the pooling that is declared, or the name of what is returned."""

    pooling: Pooling | None = None
    """How tokens are pooled, where that is declared."""

    normalized: bool = False
    """Whether the vector is scaled to length one."""


class InputsSubject(Value):
    """What was looked at."""

    name: str
    """Name of the array, file or model."""

    source: Literal["rows", "model"]
    """Rows that were given, or those of a model."""

    dtype: str
    """What the rows were computed in."""

    inputs: str | None = None
    """What a model read."""

    pooling: Pooling | None = None
    """How the tokens of an input became one row."""

    own: tuple[OwnEmbedding, ...] = ()
    """The model's own embeddings; two of a model of two modalities."""

    labels: int | None = None
    """How many labels there are."""

    groups: int | None = None
    """How many groups there are."""

    reported: tuple[Quoted, ...] = ()
    """What loading the model and reading its inputs reported."""


class EmbeddingsFinding(Finding):
    """What rows of inputs amount to, and the numbers beside those of Gaussian rows."""

    command: ClassVar[str] = "embeddings"
    shown: ClassVar[tuple[str, ...]] = ("words", "verdict", "directions", "clusters", "measured", "expected")
    columns: ClassVar[Mapping[str, str]] = {
        "stack": "Name of the run of blocks.",
        "expected": "The same number of Gaussian rows of the same number and width.",
    }

    subject: InputsSubject
    """What was looked at."""

    states: tuple[InputsState, ...]
    """Every set of rows, in order; the last one is judged."""

    gap: Number = None
    """Of a model of two modalities: distance of the means of its two own embeddings, at length one."""

    expected_gap: Number = None
    """The same of Gaussian rows."""

    @property
    def last(self) -> InputsState:
        """The rows that are judged: the model's own embedding, else its final state, else the last layer."""
        return self.states[-1]

    @property
    def verdict(self) -> InputsName:
        """The name of what the rows amount to."""
        return self.last.verdict.name

    @property
    def directions(self) -> int | None:
        """How many directions the rows use, where they are few."""
        return self.last.verdict.directions

    @property
    def clusters(self) -> int | None:
        """How many clusters the rows form, where they do."""
        return self.last.verdict.clusters

    @property
    def measured(self) -> InputNumbers:
        """Numbers of the judged rows."""
        return self.last.measured

    @property
    def expected(self) -> InputNumbers:
        """The same of Gaussian rows of the same number and width."""
        return self.last.expected

    @property
    def words(self) -> tuple[str, ...]:
        """What was found: the verdict, how far it can be seen, what else holds, what would change it, what to do."""
        return (conclusion(self.last), *self._beside(), *self._model())

    def _beside(self) -> Iterator[str]:
        last, found = self.last, self.last.verdict
        if last.rows - 1 < last.dim:
            yield (
                f"{count(last.rows, 'row')} can show at most {last.visible} of {last.dim} directions: read every "
                "number beside that of Gaussian rows of the same number and width."
            )
        yield from (_also(name, last) for name in found.also)
        if found.long_rows:
            yield (
                f"{count(found.long_rows, 'row')} {'is' if found.long_rows == 1 else 'are'} more than ten times "
                "farther from the center than 95% of the rows; the verdict leaves them out, the numbers do not."
            )
        if (found.near_duplicates or 0.0) > 0.05 + (
            last.expected.near_duplicates or 0.0
        ) and found.name != "clusters":
            yield f"{percent(found.near_duplicates)} of the rows have a near-duplicate among the others."
        yield from self._changes()
        yield from self._marked()
        if last.sampled is not None:
            yield (
                f"Ranks and cosines are those of all {count(last.rows, 'row')}; pairs of rows are compared, and the "
                f"verdict is made, on {last.sampled:,} of them."
            )
        if found.name in TRY:
            yield TRY[found.name]

    def _changes(self) -> Iterator[str]:
        last = self.last
        if last.verdict.name in ("collapsed", "too few") or last.centered is None:
            return
        before, after = last.measured, last.centered
        if abs((after.cosine or 0.0) - (before.cosine or 0.0)) < TELLING:
            return
        yield (
            f"Subtracting the mean would change the mean cosine from {number(before.cosine)} to "
            f"{number(after.cosine)}, the effective rank from {number(before.effective_rank)} to "
            f"{number(after.effective_rank)} and the uniformity from {number(before.uniformity)} to "
            f"{number(after.uniformity)}."
        )
        if last.whitened is not None:
            yield (
                f"Whitening would change effective rank and uniformity to {number(last.whitened.effective_rank)} and "
                f"{number(last.whitened.uniformity)}."
            )

    def _marked(self) -> Iterator[str]:
        measured, expected = self.measured, self.expected
        if measured.alignment is not None:
            yield (
                f"Rows of one group are {number(measured.alignment)} apart (alignment: mean squared distance at length "
                f"one), where rows without groups would be {number(expected.alignment)}; LiDAR is "
                f"{number(measured.lidar)}, of Gaussian rows {number(expected.lidar)}."
            )
        if measured.gap is not None:
            yield (
                f"The means of {'the two' if self.subject.labels == 2 else 'two'} labels are up to "
                f"{number(measured.gap)} apart (rows at length one), where chance makes {number(expected.gap)}; "
                f"{percent(measured.between_labels)} of the variance lies between labels."
            )
        if self.gap is not None:
            names = listed([one.name for one in self.subject.own])
            yield (
                f"The means of {names} are {number(self.gap)} apart (rows at length one), where chance makes "
                f"{number(self.expected_gap)}: the gap between the modalities."
            )

    def _model(self) -> Iterator[str]:
        subject = self.subject
        if subject.source != "model":
            return
        for own in subject.own:
            if own.kind == "declared":
                unit = ", scaled to length one" if own.normalized else ""
                yield (
                    f"The model's own embedding is the {POOLED[own.pooling or 'mean']} of its final state{unit}, as "
                    f"its files declare ({own.name})."
                )
            else:
                yield f"The model's own embedding is what it returns as {own.name}."
        if not subject.own:
            yield (
                "The model declares and returns no vector for a whole input; the last rows are its final state, pooled "
                f"({subject.pooling})."
            )
        before = self.states[:-1]
        ill = [one for one in before if one.verdict.name not in ("healthy", "too few")]
        if ill:
            named = listed(list(dict.fromkeys(one.verdict.name for one in ill)))
            yield f"On the way there, {len(ill)} of {count(len(before), 'state')} have another name: {named}."

    def document(self) -> Document:
        """The page: verdict, numbers beside those of Gaussian rows, layers, pictures."""
        name, subject, last = self.verdict, self.subject, self.last
        by_layer = subject.source == "model"
        facts = [
            f"{count(last.rows, 'input' if by_layer else 'row')} of width {last.dim}",
            f"computed in {subject.dtype}",
        ]
        if by_layer:
            facts += [f"pooled by {subject.pooling}", clipped(subject.inputs or "")]
        pictures: list[Block] = [Figure(one) for one in self.chart().pictures]
        return Document(
            title=f"Across inputs: {clipped(subject.name)}",
            command=self.command,
            facts=[one for one in facts if one],
            blocks=some(
                Verdict(name[:1].upper() + name[1:], self.words, TONES.get(name, "look")),
                Section(f"Numbers ({last.where})", [self._numbers()]),
                Section("Layer by layer", [self._layers()]) if by_layer else None,
                Section("Picture", pictures, only="html") if pictures else None,
                Notes([*subject.reported]) if subject.reported else None,
            ),
            definitions=[
                (DEFINITIONS[one][0], DEFINITIONS[one][2])
                for one in DEFINITIONS
                if getattr(self.measured, one) is not None
            ],
            origin=self.provenance,
        )

    def _numbers(self) -> Tabular:
        last = self.last
        rows = list[list[Cell | str]]()
        for name, (_, called, _) in DEFINITIONS.items():
            value, expected = getattr(last.measured, name), getattr(last.expected, name)
            if value is None and expected is None:
                continue
            form = percent if name in SHARES else number
            after = [
                NOTHING if change is None else form(getattr(change, name, None))
                for change in (last.centered, last.whitened)
            ]
            rows.append([called, form(value), form(expected), *after])
        return Tabular(
            columns=[
                Column("", "name"),
                Column("measured"),
                Column("Gaussian rows"),
                Column("if centered", optional=True),
                Column("if whitened", optional=True),
            ],
            rows=rows,
        )

    def _layers(self) -> Tabular:
        several = len({one.stack for one in self.states if one.site != "own"}) > 1
        rows: list[list[Cell | str]] = [
            [
                one.stack or NOTHING if several else NOTHING,
                one.where,
                Cell(one.verdict.name, tone=TONES.get(one.verdict.name, "look")),
                number(one.measured.effective_rank_centered),
                number(one.expected.effective_rank_centered),
                number(one.measured.rankme),
                number(one.measured.cosine),
                number(one.measured.residual_ratio),
                number(one.measured.uniformity),
            ]
            for one in self.states
        ]
        names = (
            "effective rank, centered",
            "Gaussian rows",
            "RankMe",
            "mean cosine",
            "residual ratio",
            "uniformity",
        )
        return Tabular(
            columns=[
                Column("stack", "name", optional=True),
                Column("rows", "name"),
                Column("verdict", "words"),
                *map(Column, names),
            ],
            rows=rows,
        )

    def chart(self) -> Chart:
        """The spectrum of the judged rows; of a model, rank and cosine by layer besides."""
        pictures = [self._spectrum()] if self.last.spectrum else []
        if self.subject.source == "model":
            pictures = [*self._curves(), *pictures]
        if not pictures:  # rows without a spectrum: all are equal
            pictures = [self._bars()]
        return Chart(pictures, title=self.picture_title if len(pictures) > 1 else "")

    def _spectrum(self) -> Panel:
        points = self.last.spectrum
        lines = [
            Line(name="these rows", points=[_point(one.place, one.share) for one in points]),
            Line(
                name="Gaussian rows",
                points=[_point(one.place, one.expected) for one in points],
                style="dashed",
                color=-1,
                dots=False,
            ),
        ]
        return Panel(
            title=self.picture_title if self.subject.source == "rows" else "Variance by direction, last rows",
            lines=lines,
            value="share of the variance",
            across="direction, the one with most variance first",
            along="log",
        )

    def _bars(self) -> Panel:
        ratio = self.measured.residual_ratio or 0.0
        line = Line(name="residual ratio", points=[Point(0, ratio, number(ratio))])
        return Panel(
            title=self.picture_title, lines=[line], value="residual ratio", scale="linear", inside=(0.0, 1.0)
        )

    def _curves(self) -> list[Panel]:
        stacks = dict.fromkeys(one.stack for one in self.states if one.site != "own")
        places = [(float(at), one.short) for at, one in enumerate(self.states) if one.site != "block"]
        ranks, gaussian, cosines = list[Line](), list[Line](), list[Line]()
        for stack in stacks:
            of_stack = (stack, None) if len(stacks) == 1 else (stack,)
            own = [(at, one) for at, one in enumerate(self.states) if one.stack in of_stack]
            said = f" ({stack})" if len(stacks) > 1 else ""
            ranks.append(_curve(f"measured{said}", own, "effective_rank_centered"))
            gaussian.append(_curve(f"Gaussian{said}", own, "effective_rank_centered", expected=True))
            cosines.append(_curve(f"measured{said}", own, "cosine"))
        high = max(point.y or 0.0 for line in (*ranks, *gaussian) for point in line.points)
        return [
            Panel(
                title="Directions that inputs use (effective rank, centered)",
                lines=[*ranks, *gaussian],
                value="effective rank",
                inside=(0.0, max(high, 1.0)),
                places=places,
                scale="linear",
            ),
            Panel(
                title="How alike inputs are (mean cosine)",
                lines=cosines,
                value="cosine",
                inside=(min(0.0, *(one.measured.cosine or 0.0 for one in self.states)), 1.0),
                places=places,
                scale="linear",
            ),
        ]


POOLED: dict[Pooling, str] = {
    "mean": "mean over tokens",
    "max": "maximum over tokens",
    "cls": "first token",
    "last": "last token",
}


def _point(place: int, share: float) -> Point:
    return Point(place, math.log10(share) if share > 0 else None, percent(share))


def _curve(
    name: str, states: Sequence[tuple[int, InputsState]], field: str, *, expected: bool = False
) -> Line:
    points = []
    for at, state in states:
        value = getattr(state.expected if expected else state.measured, field)
        points.append(Point(at, value, f"{state.where}: {number(value)}"))
    return Line(
        name=name, points=points, style="dashed" if expected else "solid", color=-1 if expected else None
    )


def conclusion(state: InputsState) -> str:
    """The first sentence about some rows.

    Every number in it is one of the finding's.
    """
    found, measured, expected = state.verdict, state.measured, state.expected
    cosine = number(measured.cosine)
    ranks = f"{number(measured.effective_rank_centered)}, of Gaussian rows {number(expected.effective_rank_centered)}"
    match found.name:
        case "collapsed":
            if found.equal_rows is not None and found.rank is None:
                return (
                    f"Collapsed: {percent(found.equal_rows)} of the {state.rows:,} rows are one and the same."
                )
            ratio, floor = number(found.ratio), state.floors.residual_ratio or 0.0
            if (found.ratio or 0.0) <= floor:  # rounding alone could have made it
                ratio = f"at most {number(floor)}"
            few = f"all {state.rows:,} rows" if not found.long_rows else f"all rows but {found.long_rows}"
            return (
                f"Collapsed: {few} are about equal (residual ratio {ratio}, mean cosine "
                f"{number(found.cosine)})."
            )
        case "dimensional":
            return (
                f"Dimensional collapse: the rows use about {found.directions} of {state.dim} directions (centered "
                f"effective rank {ranks})."
            )
        case "clusters":
            return (
                f"Clusters: the {state.rows:,} rows fall into {found.clusters} tight groups; rows of one group are far "
                "nearer to each other than to those of the next one."
            )
        case "shared mean":
            return (
                f"Shared mean: one vector that all rows share outweighs their differences (mean cosine {cosine}); "
                f"without it they are a full cloud (centered effective rank {ranks})."
            )
        case "cone":
            if (measured.cosine or 0.0) < 0.5:
                return f"Cone: rows point along one line, both ways (mean cosine {cosine}), and hardly beside it."
            return (
                f"Cone: rows point nearly the same way (mean cosine {cosine}), and how far they are from that line "
                "depends on their length along it."
            )
        case "massive channel":
            return (
                f"Massive channel: {_channels(found.channels)} most of the sum of squares; in the other channels the "
                "rows are " + ("nearly equal." if found.rank is None else "spread out.")
            )
        case "too few":
            return f"Too few: {state.rows} rows cannot show whether inputs use few directions or many."
    return f"Healthy: the rows are spread out (centered effective rank {ranks}; mean cosine {cosine})."


def _also(name: InputsName, state: InputsState) -> str:
    found = state.verdict
    said = {
        "dimensional": f"The rows also use about {found.directions} of {state.dim} directions only.",
        "shared mean": f"They also share a mean that outweighs their differences (mean cosine {number(found.cosine)}).",
        "cone": f"They also point nearly the same way (mean cosine {number(found.cosine)}).",
        "massive channel": f"Besides, {_channels(found.channels)} most of the sum of squares; the verdict leaves "
        "it out.",
        "collapsed": "They are also nearly equal.",
    }
    return said.get(name, f"Besides: {name}.")


def _channels(channels: Sequence[int]) -> str:
    names = listed([str(one) for one in channels[:5]]) + (" and more" if len(channels) > 5 else "")
    return f"channel {names} holds" if len(channels) == 1 else f"channels {names} hold"
