"""The strongest pairs of heads: a span from the earlier to the later one, and what runs through both."""

import json
import math
from typing import Any

from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.curve_marks import lines_of
from rankscope.plots.paths_colors import ADDS, TAKES
from rankscope.plots.paths_marks import finished, rows_chart
from rankscope.plots.paths_sections import PairValue, Place, name_of, pairs_of, places_of
from rankscope.plots.paths_words import head_words, percent
from rankscope.plots.scan_entries import clipped
from rankscope.plots.style import GRAY, INK
from rankscope.results import Table

MOST_PAIRS = 40
STEP, NARROWEST, WIDEST, BESIDE = 46, 280, 640, 190
LINE = 19
MOST_NAMES = 32


def pairs_chart(table: Table, *, title: str | None = None) -> Chart:
    """A row per pair, strongest first: where its two heads stand among the layers, and the share through both.

    Numbers in the dots are heads. Blue adds to the output, vermilion works against it. At most 40 pairs are drawn.
    """
    return finished(pairs_part(table, title=title))


def pairs_part(table: Table, *, title: str | None = None) -> Any:
    """The same without settings, to be put beside other charts."""
    found = pairs_of(table)
    if not found:
        raise ConfigError(
            "nothing to draw: the table has no section 'pairs'; run 'rankscope paths' with --pairs"
        )
    places, pairs = places_of(table), found[:MOST_PAIRS]
    rows = [_row(rank, pair, places) for rank, pair in enumerate(pairs, start=1)]
    width = min(max(STEP * len(places), NARROWEST), WIDEST)
    whole: Any = alt.hconcat(_spans(rows, places, width), _bars(rows), spacing=8)
    name = clipped(name_of(table))
    left_out = f"the strongest {len(pairs)} of {len(found)}" if len(found) > len(pairs) else ""
    notes = [name, "numbers are heads", "all paths through both", left_out]
    return whole.properties(
        title=alt.TitleParams(
            title or "What runs through two heads",
            subtitle=lines_of([note for note in notes if note], width + BESIDE),
        ),
        description=pairs_in_words(pairs, places),
    )


def pairs_in_words(pairs: list[PairValue], places: list[Place]) -> str:
    """Alternative text: the first pairs with their share."""
    first = "; ".join(f"{pair_words(pair, places)} {percent(pair.share)}" for pair in pairs[:5])
    return f"Shares of the output through the {len(pairs)} strongest pairs of heads. {first}."


def pair_words(pair: PairValue, places: list[Place]) -> str:
    """Both heads in a few letters."""
    ends = [head_words(places[at], head) for at, head in (pair.first, pair.second)]
    return " › ".join(ends)  # noqa: RUF001 - an arrow of paths


def _row(rank: int, pair: PairValue, places: list[Place]) -> dict[str, Any]:
    share = pair.share or 0.0
    return {
        "rank": rank,
        "first": pair.first[0],
        "second": pair.second[0],
        "first_head": str(pair.first[1]),
        "second_head": str(pair.second[1]),
        "share": pair.share,
        "text": percent(pair.share, sign=True),
        "color": TAKES if share < 0 else ADDS,
        "is_left": share < 0,
        "words": pair_words(pair, places),
    }


def _ranks(rows: list[dict[str, Any]], *, labels: bool) -> Any:
    axis = alt.Axis(title=None, labels=labels, ticks=False, domain=False, grid=False, labelOverlap=False)
    return alt.Y("rank:O", axis=axis, scale=alt.Scale(domain=[row["rank"] for row in rows]))


def _tips() -> list[Any]:
    return [alt.Tooltip("words:N", title="heads"), alt.Tooltip("text:N", title="share of the output")]


def _spans(rows: list[dict[str, Any]], places: list[Place], width: int) -> Any:
    names = [clipped(place.label, 18) for place in places]
    shown = list(range(0, len(places), math.ceil(len(places) / MOST_NAMES)))
    is_long = any(len(name) > 4 for name in names)
    axis = alt.Axis(
        title="layer", values=shown, labelExpr=f"{json.dumps(names)}[datum.value]", ticks=False, domain=False,
        gridColor="#e3e7ec", labelAngle=-40 if is_long else 0, labelAlign="right" if is_long else "center",
        labelOverlap=False, labelLimit=120,
    )  # fmt: skip
    scale = alt.Scale(domain=[-0.5, len(places) - 0.5], nice=False, zero=False)
    base = rows_chart(rows).encode(y=_ranks(rows, labels=True), tooltip=_tips())
    color = alt.Color("color:N", scale=None)
    x = {end: alt.X(f"{end}:Q", axis=axis, scale=scale) for end in ("first", "second")}
    span = base.mark_rule(strokeWidth=2.4, opacity=0.75).encode(x=x["first"], x2="second:Q", color=color)
    marks: list[Any] = [span]
    for end in ("first", "second"):
        dot = base.mark_point(filled=True, fill="white", strokeWidth=1.5, size=230, opacity=1)
        text = base.mark_text(fontSize=9.5, color=INK).encode(x=x[end], text=f"{end}_head:N")
        marks += [dot.encode(x=x[end], stroke=alt.Stroke("color:N", scale=None)), text]
    return alt.layer(*marks).properties(
        width=width, height=LINE * len(rows), view=alt.ViewConfig(stroke=None)
    )


def _bars(rows: list[dict[str, Any]]) -> Any:
    shares = [row["share"] or 0.0 for row in rows]
    low, high = min(0.0, *shares), max(0.0, *shares)
    room = 0.42 * ((high - low) or 1.0)
    scale = alt.Scale(domain=[low - (room if low < 0 else 0.0), high + room], nice=False)
    x = alt.X("share:Q", scale=scale, axis=None)
    base = rows_chart(rows).encode(y=_ranks(rows, labels=False), tooltip=_tips())
    marks: list[Any] = [
        base.mark_bar(size=10).encode(x=x, color=alt.Color("color:N", scale=None)),
        alt.Chart().mark_rule(color=GRAY, strokeWidth=0.8).encode(x=alt.XDatum(0, scale=scale, axis=None)),
    ]
    for side, align, dx in (("!datum.is_left", "left", 4), ("datum.is_left", "right", -4)):
        text = base.transform_filter(side).mark_text(align=align, dx=dx, fontSize=10.5, color=INK)
        marks.append(text.encode(x=x, text="text:N"))
    return alt.layer(*marks).properties(
        width=BESIDE, height=LINE * len(rows), view=alt.ViewConfig(stroke=None),
        title=alt.TitleParams("share of the output", fontSize=11, fontWeight="normal", anchor="middle", offset=4),
    )  # fmt: skip
