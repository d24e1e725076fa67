"""Pairs of heads as an HTML table: a span from the earlier to the later head, and a bar for what runs through both."""

from rankscope.plots.markup import Fragment, tag
from rankscope.plots.paths_colors import largest
from rankscope.plots.paths_pairs import MOST_PAIRS, pair_words
from rankscope.plots.paths_sections import PairValue, Place
from rankscope.plots.paths_words import percent
from rankscope.plots.scan_entries import clipped


def hover_pairs(pairs: list[PairValue], places: list[Place]) -> Fragment:
    """A row per pair, strongest first, at most 40."""
    shown = pairs[:MOST_PAIRS]
    most = largest(pair.share for pair in shown)
    first, last = clipped(places[0].label, 12), clipped(places[-1].label, 12)
    ends = tag("span", tag("span", f"layer {first}"), tag("span", last), class_="fromto")
    head = tag(
        "tr", tag("th", "", scope="col"), tag("th", "heads", scope="col"), tag("th", ends, scope="col", class_="span"),
        tag("th", "share of the output", scope="col", class_="share"),
    )  # fmt: skip
    rows = [_row(rank, pair, places, most) for rank, pair in enumerate(shown, start=1)]
    return tag("table", tag("thead", head), tag("tbody", *rows), class_="listed pairlist")


def _row(rank: int, pair: PairValue, places: list[Place], most: float) -> Fragment:
    side = "takes" if (pair.share or 0.0) < 0 else "adds"
    start, end = ((at + 0.5) / len(places) for at, _ in (pair.first, pair.second))
    left, wide = 100 * min(start, end), 100 * abs(end - start)
    span = tag("i", class_=f"pairspan {side}", style=f"left:{left:.4g}%;width:{wide:.4g}%")
    return tag(
        "tr", tag("td", str(rank), class_="number"), tag("th", pair_words(pair, places), scope="row"),
        tag("td", tag("span", span, class_="track"), class_="span"),
        tag("td", share_bar(pair.share, most), class_="share"),
    )  # fmt: skip


def share_bar(share: float | None, most: float) -> Fragment:
    """A share as a number with a bar as long as its size relative to ``most``."""
    side = "takes" if (share or 0.0) < 0 else "adds"
    length = 100 * abs(share or 0.0) / most
    bar = tag("span", tag("i", class_=f"key fill {side}", style=f"width:{length:.3g}%"), class_="track")
    return tag("span", tag("span", percent(share, sign=True)), bar, class_="sharebar")
