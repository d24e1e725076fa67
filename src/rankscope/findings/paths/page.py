"""The values of a decomposition as tables of a page, and as pictures."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rankscope.charts import Grid, Line, Panel, Point
from rankscope.charts import GridCell as Square
from rankscope.core.words import NOTHING, count, listed, number, percent, whole
from rankscope.document import Cell, Column, Section, Tabular, text_of
from rankscope.findings.blocks import ROUNDING_ALONE
from rankscope.findings.paths.values import (
    HeadPlace,
    HeadTerm,
    Length,
    LengthAndMlps,
    Pair,
    PruningValue,
    Sampled,
    SiteValue,
    SourceTerm,
    Term,
    TopPath,
    part_of,
    row_name,
)

MARK = "*"
"""Stands behind a number that is not above its floor."""


def marks(sections: Iterable[Section]) -> list[str]:
    """What a star and a dash mean, those that stand in some table."""
    tables = [block for one in sections for block in one.blocks if isinstance(block, Tabular)]
    cells = [text_of(cell) for one in tables for row in one.shown().rows for cell in row]
    said = [f"{MARK}: {ROUNDING_ALONE}."]
    said = said if any(cell.endswith(MARK) for cell in cells) else []
    return [*said, *([f"{NOTHING}: not defined, or not computed."] if NOTHING in cells else [])]


MOST_LENGTHS, MOST_HEADS, MOST_SOURCES = 26, 12, 12
"""Rows of tables. The strongest are shown, and how many others there are is said; the JSON holds all of them."""

MOST_MLPS = 16
"""Columns of the table of lengths and MLPs."""

MOST_CELLS, MOST_COLUMNS = 3072, 128
"""Cells and columns of a grid of heads. With more, the attention parts and the heads with the largest shares are
drawn."""

A = TypeVar("A")
Rows = list[list[Cell | str]]


def signed(share: float | None, *, is_real: bool = True) -> Cell:
    """A share with its sign; faint and marked where it is not above its floor."""
    if share is None:
        return Cell(NOTHING)
    sign = "+" if share > 0 else ""
    return Cell(f"{sign}{percent(share, 3)}{'' if is_real else MARK}", faint=not is_real)


def sized(value: float | None, *, is_real: bool = True) -> Cell:
    """A size; faint and marked where it is not above its floor."""
    return (
        Cell(NOTHING)
        if value is None
        else Cell(f"{number(value)}{'' if is_real else MARK}", faint=not is_real)
    )


def strongest(entries: Sequence[A], most: int, share: Callable[[A], float | None]) -> tuple[list[A], str]:
    """The entries with the largest shares of either sign, and a note on how many are left out."""
    shown = sorted(entries, key=lambda one: -abs(share(one) or 0.0))[:most]
    if len(entries) <= most:
        return shown, ""
    if not any(map(share, entries)):
        return shown, f"The first {most} of {len(entries)}; the JSON output holds all."
    return (
        shown,
        f"The {most} of {len(entries)} with the largest shares of either sign; the JSON output holds all.",
    )


def _norm_is_real(term: Term) -> bool:
    return term.norm is None or term.norm > (term.floor or 0.0)


# -------------------------------------------------------------------------------------------------------- lengths


def lengths_table(spectrum: Sequence[Length]) -> Tabular:
    """One row per length that some path has."""
    known = [one for one in spectrum if one.paths or one.norm]
    shown, note = strongest(known, MOST_LENGTHS, lambda one: one.share)
    names = (
        "length",
        "paths",
        "share",
        "norm",
        "residual",
        "token cosine",
        "cosine to output",
        "cancellation",
    )
    rows: Rows = [
        [
            str(one.length),
            whole(one.paths),
            signed(one.share, is_real=one.has_share),
            sized(one.norm, is_real=_norm_is_real(one)),
            sized(one.residual, is_real=one.resolved),
            number(one.cosine),
            sized(one.cosine_to_output, is_real=one.resolved),
            number(one.cancellation_ratio),
        ]
        for one in sorted(shown, key=lambda one: one.length)
    ]
    return Tabular(columns=[Column(name) for name in names], rows=rows, note=note)


def mlps_table(entries: Sequence[LengthAndMlps]) -> Tabular:
    """Shares by length and number of MLPs."""
    known = [one for one in entries if one.paths or one.norm]
    counts = sorted({one.mlps for one in known})
    lengths = sorted({one.length for one in known})
    shares = {(one.length, one.mlps): signed(one.share, is_real=one.has_share) for one in known}
    kept = counts[:MOST_MLPS]
    rows: Rows = [
        [str(length), *(shares.get((length, mlps), "") for mlps in kept)] for length in lengths[:MOST_LENGTHS]
    ]
    is_cut = len(kept) < len(counts) or len(rows) < len(lengths)
    note = (
        f"Lengths below {MOST_LENGTHS} and fewer than {MOST_MLPS} MLPs; the JSON output holds all."
        if is_cut
        else ""
    )
    columns = [Column("length", "name"), *(Column(str(mlps)) for mlps in kept)]
    return Tabular(
        columns=columns, rows=rows, title="Shares by length and number of MLPs on the path", note=note
    )


def share_panel(spectrum: Sequence[Length]) -> Panel:
    """The share of every length, and in gray how many of all paths have that length."""
    total = sum(one.paths for one in spectrum)
    shares = [
        Point(one.length, one.share, _length_tip(one), hollow=not one.has_share)
        for one in spectrum
        if one.paths or one.norm
    ]
    parts = [
        Point(
            one.length,
            one.paths / total,
            f"{whole(one.paths)} paths, {part_of(one.paths, total)} of all",
            faint=True,
        )
        for one in spectrum
        if total
    ]
    lines = [
        Line(name="of all paths", points=parts, style="dashed", color=-1),
        Line(name="of the output", points=shares),
    ]
    return Panel(
        title="Share of the output by path length",
        lines=lines,
        value="share",
        across="path length",
        scale="linear",
        inside=_ends([0.0, *(point.y for line in lines for point in line.points)]),
        notes=["Shares of the residual of the output sum to one; a negative one points against the output."]
        + (["Hollow: not above the rounding floor."] if any(point.hollow for point in shares) else []),
    )


def _length_tip(one: Length) -> str:
    return f"{signed(one.share, is_real=one.has_share).text} of the output"


def size_panel(spectrum: Sequence[Length]) -> Panel:
    """Norm and residual of every length."""
    known = [one for one in spectrum if one.norm]
    norms = [
        Point(one.length, _log10(one.norm), f"norm {number(one.norm)}", hollow=not _norm_is_real(one))
        for one in known
    ]
    residuals = [
        Point(
            one.length,
            _log10(one.residual),
            f"residual {sized(one.residual, is_real=one.resolved).text}",
            hollow=not one.resolved,
        )
        for one in known
    ]
    return Panel(
        title="Size by path length",
        lines=[Line(name="norm", points=norms), Line(name="residual", points=residuals)],
        value="Frobenius norm",
        across="path length",
        notes=["Norm of what all paths of a length add, as it is and minus its mean token (residual)."]
        + (["Hollow: not above the rounding floor."] if any(point.hollow for point in residuals) else []),
    )


# ---------------------------------------------------------------------------------------------------------- heads


def heads_table(heads: Sequence[HeadTerm]) -> Tabular:
    """The heads whose paths carry the largest shares."""
    shown, note = strongest(heads, MOST_HEADS, lambda one: one.share)
    columns = [
        *(Column("block", "name"), Column("head", "name"), Column("share")),
        *(Column(name, optional=True) for name in ("norm", "residual", "cosine to output")),
    ]
    rows: Rows = [
        [
            row_name(one.layer, one.site),
            str(one.head),
            signed(one.share, is_real=one.has_share),
            sized(one.norm, is_real=_norm_is_real(one)),
            sized(one.residual, is_real=one.resolved),
            sized(one.cosine_to_output, is_real=one.resolved),
        ]
        for one in shown
    ]
    return Tabular(columns=columns, rows=rows, note=note)


def heads_grid(heads: Sequence[HeadTerm], sites: Sequence[SiteValue]) -> Grid:
    """One cell per head; of very many, the attention parts and heads with the largest shares, and a note on it."""
    shares = {(one.layer, one.site, one.head): one for one in heads}
    widest = max((site.heads for site in sites), default=0)
    of_column, of_row = dict[int, float](), dict[tuple[int, str], float]()
    for one in heads:
        size, row = abs(one.share or 0.0), (one.layer, one.site)
        of_column[one.head] = max(of_column.get(one.head, 0.0), size)
        of_row[row] = max(of_row.get(row, 0.0), size)
    columns = _choice([of_column.get(head, 0.0) for head in range(widest)], MOST_COLUMNS)
    most = max(1, MOST_CELLS // max(len(columns), 1))
    places = _choice([of_row.get((site.layer, site.site), 0.0) for site in sites], most)
    largest = max((abs(one.share or 0.0) for one in heads if one.has_share), default=0.0)
    has_negative = any(one.has_share and (one.share or 0.0) < 0 for one in heads)
    cells = [
        [
            _head_cell(shares.get((sites[at].layer, sites[at].site, head)), largest, has_negative)
            for head in columns
        ]
        for at in places
    ]
    top = percent(largest)
    notes = ["Share of the output, in percent, of all paths through each head; colors go by the square root."]
    if len(places) < len(sites):
        notes.append(
            f"Of {count(len(sites), 'attention part')}, the {len(places)} with the largest shares are drawn."
        )
    if len(columns) < widest:
        notes.append(f"Of {count(widest, 'head')}, the {len(columns)} with the largest shares are drawn.")
    if any(not one.has_share for one in heads):
        notes.append("Without color: not above the rounding floor.")
    return Grid(
        title="Share of the output through each head",
        rows=[row_name(sites[at].layer, sites[at].site) for at in places],
        columns=[str(head) for head in columns],
        cells=cells,
        down="block",
        across="head",
        ends=("", "") if not largest else (f"-{top}", f"+{top}") if has_negative else ("0%", top),
        notes=notes,
    )


def _choice(sizes: Sequence[float], most: int) -> list[int]:
    """At most that many places, those with the largest sizes, in their order.

    >>> _choice([0.1, 0.9, 0.5], 2)
    [1, 2]
    """
    return sorted(sorted(range(len(sizes)), key=lambda place: -sizes[place])[:most])


def _head_cell(one: HeadTerm | None, largest: float, has_negative: bool) -> Square:
    if one is None:
        return Square(None, "", "there is no such head")
    if one.share is None:
        return Square(None, "", "not defined: the tokens of the output are equal up to rounding")
    tip = f"{signed(one.share, is_real=one.has_share).text} of the output"
    if one.norm is not None:
        tip += f", norm {number(one.norm)}, residual {sized(one.residual, is_real=one.resolved).text}"
    return _square(one.share, one.has_share, largest, has_negative, tip)


def _square(share: float, is_real: bool, largest: float, has_negative: bool, tip: str) -> Square:
    """A cell; a share that is not above its floor has no color."""
    color = _shade(share, largest, has_negative) if is_real else None
    return Square(color, f"{number(100 * share, 2)}{'' if is_real else MARK}", tip, faint=not is_real)


def _shade(share: float, largest: float, has_negative: bool) -> float:
    """Where a share stands between the darkest and the brightest color; by the square root, so that small ones show.

    With shares of both signs the middle is zero, dark works against the output, and bright adds to it.
    """
    part = math.copysign(math.sqrt(abs(share) / largest), share) if largest else 0.0
    return 0.5 + part / 2 if has_negative else max(part, 0.0)


# --------------------------------------------------------------------------------------------------- single paths


RANKED = "Ranked by {}; --score chooses another ranking. Columns are as above."
"""Why single paths are ranked by another number than heads."""


def top_table(paths: Sequence[TopPath], sites: Sequence[SiteValue]) -> Tabular:
    """One row per path of the list."""
    rows: Rows = [
        [
            str(one.rank) if one.ranked else NOTHING,
            str(one.length),
            sized(one.norm, is_real=one.norm > one.norm_floor),
            sized(one.residual, is_real=one.resolved),
            signed(one.share, is_real=one.has_share),
            one.route(sites),
        ]
        for one in paths
    ]
    columns = [
        *(Column(name) for name in ("rank", "length", "norm", "residual", "share")),
        Column("goes through", "words"),
    ]
    return Tabular(columns=columns, rows=rows)


def samples_table(samples: Sequence[Sampled], gaps: Sequence[Sampled]) -> Tabular:
    """Residual ratios of single paths by length and sense, and how far re-run ones are from their terms."""
    beside = {(one.length, one.mode): one for one in gaps}
    names = ("length", "sense", "residual ratio (95%)", "gap to frozen (95%)", "paths looked at")
    rows: Rows = []
    for one in samples:
        gap = beside.get((one.length, one.mode))
        ratio = Cell(one.words) if one.resolved else Cell(f"at most {number(one.mean)}{MARK}", faint=True)
        apart = (
            Cell(NOTHING)
            if gap is None
            else Cell(gap.words + ("" if gap.resolved else MARK), faint=not gap.resolved)
        )
        rows.append([str(one.length), one.mode, ratio, apart, f"{one.count}{' (all)' if one.exact else ''}"])
    columns = [Column(names[0], "name"), Column(names[1], "name"), *(Column(name) for name in names[2:])]
    return Tabular(columns=columns, rows=rows, title="Residual ratio of a single path, geometric means")


def samples_panel(samples: Sequence[Sampled]) -> Panel:
    """The residual ratio by length, one line per sense, with its interval."""
    lines = []
    for mode in dict.fromkeys(one.mode for one in samples):
        points = [
            Point(
                one.length,
                _log10(one.mean),
                f"{mode}: {one.words if one.resolved else f'at most {number(one.mean)}'}",
                low=_log10(one.low),
                high=_log10(one.high),
                hollow=not one.resolved,
            )
            for one in samples
            if one.mode == mode
        ]
        lines.append(Line(name=mode, points=points))
    return Panel(
        title="Residual ratio of a single path by its length",
        lines=lines,
        value="residual ratio",
        across="path length",
        notes=[
            "Geometric means over paths drawn at random, with intervals of 95%. Hollow: some path is below the floor."
        ],
    )


# -------------------------------------------------------------------------------------------- pairs, sources, pruning


def pairs_table(pairs: Sequence[Pair]) -> Tabular:
    """The pairs of heads whose paths carry the largest shares."""
    rows: Rows = [
        [one.first.name, one.second.name, signed(one.share, is_real=one.has_share)] for one in pairs
    ]
    columns = [Column("first", "name"), Column("second", "name"), Column("share")]
    return Tabular(columns=columns, rows=rows, title="What all paths through two heads add")


def pairs_grid(pairs: Sequence[Pair]) -> Grid:
    """The same: the earlier head down, the later one across; pairs that are not on the list stay empty."""
    firsts, seconds = _ordered(one.first for one in pairs), _ordered(one.second for one in pairs)
    largest = max((abs(one.share or 0.0) for one in pairs if one.has_share), default=0.0)
    has_negative = any(one.has_share and (one.share or 0.0) < 0 for one in pairs)
    known = {(one.first, one.second): one for one in pairs}

    def cell(first: HeadPlace, second: HeadPlace) -> Square:
        one = known.get((first, second))
        if one is None or one.share is None:
            return Square(None, "", "not among the strongest pairs" if one is None else "not defined")
        tip = f"{signed(one.share, is_real=one.has_share).text} of the output"
        return _square(one.share, one.has_share, largest, has_negative, tip)

    top = percent(largest)
    return Grid(
        title="Share of the output through pairs of heads",
        rows=[one.name for one in firsts],
        columns=[one.name for one in seconds],
        cells=[[cell(first, second) for second in seconds] for first in firsts],
        down="first",
        across="second",
        ends=("", "") if not largest else (f"-{top}", f"+{top}") if has_negative else ("0%", top),
        notes=["In percent; the strongest pairs only."],
    )


def _ordered(heads: Iterable[HeadPlace]) -> list[HeadPlace]:
    """Heads, each once, first layer first."""
    return sorted(dict.fromkeys(heads), key=lambda one: (one.layer, one.site, one.head))


def sources_table(sources: Sequence[SourceTerm]) -> Tabular:
    """The places where paths start; biases that are zero are left out."""
    known = [one for one in sources if one.share != 0 or one.norm]
    shown, note = strongest(known, MOST_SOURCES, lambda one: one.share)
    columns = [
        *(Column("source", "name"), Column("block", "name", optional=True), Column("share")),
        *(Column("norm", optional=True), Column("residual", optional=True)),
    ]
    rows: Rows = [
        [
            one.source,
            (NOTHING if len(known) == 1 else "") if one.layer is None else str(one.layer),
            signed(one.share, is_real=one.has_share),
            sized(one.norm, is_real=_norm_is_real(one)),
            sized(one.residual, is_real=one.resolved),
        ]
        for one in shown
    ]
    return Tabular(columns=columns, rows=rows, title="One by one", note=note)


def source_sums(sources: Sequence[SourceTerm]) -> Tabular:
    """Shares of every kind of source, summed over blocks, the largest first."""
    kinds = dict[str, list[SourceTerm]]()
    for one in sources:
        if one.share is not None:
            kinds.setdefault(one.source, []).append(one)
    sums = {
        kind: (
            len(terms),
            sum(one.share or 0.0 for one in terms),
            sum(one.share_floor or 0.0 for one in terms),
        )
        for kind, terms in kinds.items()
    }
    rows: Rows = [
        [kind, str(places), signed(share, is_real=abs(share) > floor)]
        for kind, (places, share, floor) in sorted(sums.items(), key=lambda item: -abs(item[1][1]))
    ]
    columns = [Column("kind", "name"), Column("sources"), Column("share")]
    return Tabular(columns=columns, rows=rows, title="Summed over blocks")


def pruning_table(pruning: PruningValue) -> Tabular:
    """What is lost at every number of removed heads, by each order."""
    removed = pruning.curves[0].removed if pruning.curves else ()
    rows: Rows = [
        [curve.method, *(number(lost) for lost in curve.lost), number(curve.area)] for curve in pruning.curves
    ]
    columns = [Column("order", "name"), *(Column(str(heads)) for heads in removed), Column("mean")]
    least = listed([one.name for one in pruning.scores[:MOST_HEADS]])
    return Tabular(
        columns=columns,
        rows=rows,
        title=f"{pruning.of.capitalize()} when this many heads are removed and the network is run again",
        note=f"Needed least: {least}.",
    )


def pruning_panel(pruning: PruningValue) -> Panel:
    """The same as curves; random orders with one standard deviation to each side."""
    lines = [
        Line(
            name=curve.method,
            points=[
                Point(
                    heads,
                    lost,
                    f"{curve.method}: {number(lost)}",
                    low=max(lost - spread, 0.0),
                    high=lost + spread,
                )
                if spread
                else Point(heads, lost, f"{curve.method}: {number(lost)}")
                for heads, lost, spread in zip(curve.removed, curve.lost, curve.spread, strict=True)
            ],
        )
        for curve in pruning.curves
    ]
    return Panel(
        title=f"{pruning.of.capitalize()} without heads",
        lines=lines,
        value=pruning.of,
        across="heads removed",
        scale="linear",
        notes=["The network is run again without them. Random orders: mean and standard deviation."],
    )


def _log10(value: float | None) -> float | None:
    return math.log10(value) if value is not None and value > 0 else None


def _ends(values: Iterable[float | None]) -> tuple[float, ...]:
    known = [one for one in values if one is not None and math.isfinite(one)]
    return (min(known), max(known)) if len(known) > 1 else ()
