"""Clusters of tokens and how long they stand still: angles and counts over time, lives by inverse temperature."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.charts.colors import viridis
from rankscope.charts.svg import thinned
from rankscope.errors import ConfigError
from rankscope.plots.axes import log_axis, log_ticks
from rankscope.plots.backend import Chart, alt
from rankscope.plots.dynamics_lives import HIGH, WIDE, firsts_part, lives_part, small_title
from rankscope.plots.paths_marks import Row, finished, rows_chart
from rankscope.plots.style import LETTER_WIDTH
from rankscope.results import Table

Array = NDArray[np.float64]

BRIGHTEST = 0.88
"""The end of viridis is too faint for a line on paper."""

CLOSE = 1e-3
"""Angle in radians up to which neighbors on the circle are in one cluster, as in the study."""

PANELS = 4
APART: dict[str, Any] = {"color": "independent", "shape": "independent"}
TIME_WIDE, TIME_HIGH = 225, 230
FINE = 0.002
"""A point nearer than this part of the panel to the line between its neighbors is left out."""

PLATEAU_FIELDS = (
    "dim", "beta", "starts", "first_clusters", "first_low", "first_high", "first_log10_life", "total_log10_life",
    "total_low", "total_high",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Way:
    """One start on the circle: ``log10(1 + step)`` of every look and the angles ``looks tokens`` in radians."""

    beta: float
    places: Array
    angles: Array


def clusters_chart(table: Table, *, title: str | None = None) -> Chart:
    """Above: angles of all tokens over time for up to four inverse temperatures; clusters that wait are level lines.

    Below: clusters over time, steps to consensus and steps of the first plateau by inverse temperature, and how many
    clusters the first plateau has, with the least and the most over starts.
    """
    ways, cells = ways_of(table), cells_of(table)
    lower = [*([_counts(ways)] if ways else []), lives_part(cells), firsts_part(cells)]
    rows = [alt.hconcat(*lower, spacing=30).resolve_scale(**APART)]
    if ways:
        panels = [_space_time(way) for way in spread(ways, PANELS)]
        rows = [alt.hconcat(*panels, spacing=18), *rows]
    whole: Any = alt.concat(*rows, columns=1, align="none", spacing=30)
    whole = whole.resolve_scale(**APART)
    notes = _notes(table, cells, bool(ways))
    head = heading(title or "Clusters and how long they last", notes, 1000)
    return finished(whole.properties(title=head, description=cluster_words(cells, ways)))


def cluster_words(cells: list[Row], ways: list[Way]) -> str:
    """Alternative text: clusters on the first plateau and steps to consensus for every dim and inverse temperature."""
    told = [
        f"dim {one['dim']}, inverse temperature {one['beta']:g}: {one['first_clusters']:.3g} clusters at first, "
        f"1e{one['total_log10_life']:.1f} steps to consensus"
        for one in cells
    ]
    drawn = ", ".join(f"{way.beta:g}" for way in spread(ways, PANELS))
    paths = f" Angles over time are drawn for inverse temperatures {drawn}." if drawn else ""
    return "Clusters of tokens. " + "; ".join(told) + "." + paths


def ways_of(table: Table) -> list[Way]:
    """Starts on the circle by growing inverse temperature, from the section ``trajectories``."""
    found = table.sections.get("trajectories") or {}
    try:
        ways = [
            Way(
                beta=float(beta),
                places=np.asarray(one["log10_steps"], dtype=np.float64),
                angles=np.asarray(one["angles"], dtype=np.float64),
            )
            for beta, one in found.items()
        ]
        if any(way.angles.ndim != 2 or len(way.angles) != len(way.places) for way in ways):
            raise ValueError("angles are [look][token], with one look per step")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the section 'trajectories' cannot be read ({type(error).__name__}: {error}); the figure clusters needs "
            "log10_steps and angles for every inverse temperature"
        ) from error
    return sorted(ways, key=lambda way: way.beta)


def cells_of(table: Table) -> list[Row]:
    """What the section ``plateaus`` says for every dim and inverse temperature."""
    found = table.sections.get("plateaus")
    if not isinstance(found, list) or not found:
        raise ConfigError(
            "clusters are drawn from the section 'plateaus' of their table, and this table has none; give the table "
            "that 'rankscope reproduce clusters' made"
        )
    missing = [name for name in PLATEAU_FIELDS if any(name not in one for one in found)]
    if missing:
        raise ConfigError(f"entries of the section 'plateaus' lack {', '.join(missing)}")
    return [dict(one) for one in found]


def spread(ways: list[Way], most: int) -> list[Way]:
    """At most so many of them, evenly spaced with the last among them; the warmest, without plateaus, goes first."""
    if len(ways) <= most:
        return ways
    return [ways[round(at)] for at in np.linspace(1, len(ways) - 1, most)]


def to_meeting(angles: Array) -> Array:
    """Angles in degrees from the place where tokens meet, without jumps, equal within a cluster.

    Every path is moved by whole turns so that it ends within half a turn of that place. Tokens of one cluster go the
    same way from then on, so that their paths lie on each other.
    """
    end = angles[-1]
    middle = math.atan2(np.sin(end).mean(), np.cos(end).mean())
    last = np.remainder(end - middle + np.pi, 2 * np.pi) - np.pi
    found: Array = np.degrees(angles - end + last)
    return found


def count_on_circle(angles: Array, close: float = CLOSE) -> int:
    """How many groups there are if neighbors on the circle at most ``close`` radians apart belong together.

    >>> count_on_circle(np.array([3.1415, -3.1415, 0.0, 0.0005, 1.0]))
    3
    """
    around = np.sort(np.remainder(angles, 2 * np.pi))
    gaps = np.diff(np.append(around, around[0] + 2 * np.pi))
    return max(int((gaps > close).sum()), 1)


def _space_time(way: Way) -> Any:
    degrees, last = to_meeting(way.angles), max(float(way.places[-1]), 0.3)
    order = np.argsort(np.argsort(np.remainder(way.angles[0] - way.angles[-1].mean(), 2 * np.pi)))
    reach = max(180.0, float(np.abs(degrees).max()))
    scaled = np.stack(
        [np.broadcast_to((way.places / last)[:, None], degrees.shape), degrees / reach / 2], axis=2
    )
    rows = [
        {
            "x": round(float(way.places[at]), 4),
            "y": round(float(degrees[at, token]), 2),
            "order": int(order[token]),
        }
        for token in range(degrees.shape[1])
        for at in thinned(scaled[:, token].tolist(), FINE)
    ]
    ramp = alt.Scale(
        domain=[0, max(degrees.shape[1] - 1, 1)],
        scheme=alt.SchemeParams(name="viridis", extent=[0, BRIGHTEST]),
    )
    turns = [turn for turn in range(-360, 361, 90) if abs(turn) <= reach]
    y_axis = alt.Axis(
        title="angle to where tokens meet",
        values=turns,
        labelExpr="datum.label + '°'",
        format="d",
        domain=False,
    )
    mark = rows_chart(rows).mark_line(strokeWidth=1.3, opacity=0.9, clip=True)
    return mark.encode(
        x=_steps(last),
        y=alt.Y("y:Q", axis=y_axis, scale=alt.Scale(domain=[-1.04 * reach, 1.04 * reach], nice=False)),
        color=alt.Color("order:Q", scale=ramp, legend=None),
        detail="order:N",
    ).properties(width=TIME_WIDE, height=TIME_HIGH, title=small_title(f"inverse temperature {way.beta:g}"))


def _counts(ways: list[Way]) -> Any:
    rows = [row for way in ways for row in _count_rows(way)]
    names = [f"{way.beta:g}" for way in ways]
    colors = [viridis(BRIGHTEST * at / max(len(ways) - 1, 1)) for at in range(len(ways))]
    most = max(row["clusters"] for row in rows)
    top = math.log10(most) + 0.06
    ticks = log_ticks(-0.06, max(top, 0.5))
    y = alt.Y(
        "y:Q",
        axis=log_axis(ticks, title="clusters (log scale)", domain=False),
        scale=alt.Scale(domain=[-0.06, max(top, 0.5)], nice=False, zero=False),
    )
    legend = alt.Legend(
        title="inverse temperature", orient="bottom", direction="horizontal",
        columns=len(ways) if len(ways) < 7 else math.ceil(len(ways) / 2), symbolType="stroke",
        symbolStrokeWidth=2.5, columnPadding=10, titleAnchor="start",
    )  # fmt: skip
    line = rows_chart(rows).mark_line(strokeWidth=1.8, interpolate="step-after").encode(
        x=_steps(max(float(way.places[-1]) for way in ways)), y=y,
        color=alt.Color("beta:N", scale=alt.Scale(domain=names, range=colors), legend=legend),
        tooltip=[alt.Tooltip("beta:N", title="inverse temperature"), alt.Tooltip("clusters:Q")],
    )  # fmt: skip
    return line.properties(
        width=WIDE, height=HIGH, title=small_title("clusters over time, first start on the circle")
    )


def _count_rows(way: Way) -> list[Row]:
    """A row where the number of clusters changes, and the last look."""
    counts = [count_on_circle(state) for state in way.angles]
    kept = [at for at in range(len(counts)) if at in (0, len(counts) - 1) or counts[at] != counts[at - 1]]
    return [
        {
            "x": round(float(way.places[at]), 4),
            "y": math.log10(counts[at]),
            "clusters": counts[at],
            "beta": f"{way.beta:g}",
        }
        for at in kept
    ]


def _steps(last: float) -> Any:
    # A little beyond the last step, so that what happens there does not lie on the frame.
    top = 1.03 * max(last, 0.3)
    axis = log_axis(log_ticks(0.0, top), title="step (log scale)", grid=False, labelFlush=False)
    return alt.X("x:Q", axis=axis, scale=alt.Scale(domain=[0, top], nice=False, zero=False))


def _notes(table: Table, cells: list[Row], has_ways: bool) -> list[str]:
    config = table.provenance.get("config")
    tokens = config.get("tokens") if isinstance(config, dict) else None
    notes = [f"{tokens} tokens"] if isinstance(tokens, int) else []
    starts = sorted({int(one["starts"]) for one in cells})
    notes += [f"{starts[0]} starts for every inverse temperature"] if len(starts) == 1 else []
    notes += ["softmax(beta X X^T), identity values, unit sphere"]
    if has_ways:
        notes += [
            "above: one start on the circle, a line per token, colored by the order of their first angles"
        ]
    return notes


def heading(title: str, notes: Sequence[str], width: int) -> Any:
    """A title over notes that fill lines of that many pixels."""
    return alt.TitleParams(title, subtitle=filled_lines(notes, width))


def filled_lines(notes: Sequence[str], width: int) -> list[str]:
    """The notes with dots between them, broken between words into lines of that many pixels.

    >>> filled_lines(["6 tokens", "dim 4", "mask causal"], 100)
    ['6 tokens · dim 4', 'mask causal']
    """
    # A note is kept whole where it fits into a line: spaces that do not break hold it together.
    letters = max(int(width / LETTER_WIDTH), 16)
    joined = [note.replace(" ", "\u00a0") if len(note) <= letters else note for note in notes if note]
    lines = textwrap.wrap(" · ".join(joined), letters, break_on_hyphens=False)
    return [line.replace("\u00a0", " ").strip("· ") for line in lines]
