"""How long the paths of architectures are: one ridge each, the shallowest at the top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rankscope.charts.colors import viridis
from rankscope.errors import ConfigError
from rankscope.plots.backend import Chart, alt
from rankscope.plots.paths_marks import LENGTH_TITLE, Row, finished, rows_chart
from rankscope.plots.paths_words import percent
from rankscope.plots.scan_entries import clipped
from rankscope.plots.style import GRAY, INK

WIDTH, LINE, OVERLAP = 760, 46, 1.0
MOST_TICKS = 12
Side = Literal["left", "right"]
SIDES: tuple[Side, ...] = ("left", "right")
DARKEST, BRIGHTEST = 0.1, 0.7
"""Part of the colors used: the brightest ones are faint on paper."""

ROOM = 0.7
"""A ridge that ends before this part of the axis has its label behind it, another one before it."""

SEEN = 0.002
"""Share of paths that a bar can be seen from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ridge:
    """One architecture: which share of its paths has which length."""

    name: str
    shares: dict[int, float]

    @property
    def mean(self) -> float:
        """The length of a path on average."""
        return sum(length * share for length, share in self.shares.items()) / sum(self.shares.values())


def length_distribution_chart(rows: Sequence[Mapping[str, Any]], *, title: str | None = None) -> Chart:
    """A ridge per architecture from rows with ``name``, ``length`` and ``share``, sorted by mean length.

    All ridges have one scale, so their areas are equal. Each ends at the number of layers; a triangle marks the mean.
    """
    ridges = _ridges(rows)
    longest = max(max(ridge.shares) for ridge in ridges)
    tallest = max(max(ridge.shares.values()) for ridge in ridges)
    bars, named = _rows(ridges, OVERLAP / tallest, longest)
    scale = alt.Scale(domain=[-OVERLAP, len(ridges) - 0.4], reverse=True, nice=False, zero=False)
    base, top, below = (alt.Y(f"{name}:Q", axis=None, scale=scale) for name in ("base", "top", "below"))
    color = alt.Color("color:N", scale=None)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("name", "length", "share")]
    bar = rows_chart(bars).mark_rect(stroke="white", strokeWidth=0.5, opacity=0.88)
    lines, x = rows_chart(named), _x(longest)
    triangle = lines.mark_point(shape="triangle-up", filled=True, color=INK, size=34, opacity=1)
    layers = [
        bar.encode(x=x, x2="end:Q", y=top, y2="base:Q", color=color, tooltip=tooltip),
        lines.mark_rule(color="#aab2bc", strokeWidth=1).encode(x="left:Q", x2="right:Q", y=base),
        triangle.encode(x="mean:Q", y=below),
        *(mark for side in SIDES for mark in _labels(lines, base, color, side)),
    ]
    words = [
        "share of all paths by the number of heads on them; a line ends at the number of layers, a triangle is the mean"
    ]
    whole = alt.layer(*layers).properties(
        width=WIDTH, height=LINE * (len(ridges) + OVERLAP - 0.4), view=alt.ViewConfig(stroke=None),
        title=alt.TitleParams(title or "How many paths have which length", subtitle=words),
        description=_in_words(ridges),
    )  # fmt: skip
    return finished(whole)


def _labels(lines: Any, y: Any, color: Any, side: Side) -> list[Any]:
    """Name and mean beside a ridge, on the side where there is room: ``side`` is where they are aligned."""
    sign = 1 if side == "left" else -1
    own = lines.transform_filter(f"datum.align == '{side}'").encode(x="label:Q", y=y)
    bold = own.mark_text(align=side, fontSize=12, fontWeight="bold", dx=8 * sign, dy=-20)
    return [
        bold.encode(text="name:N", color=color),
        own.mark_text(align=side, fontSize=11, color=GRAY, dx=8 * sign, dy=-6).encode(text="words:N"),
    ]


def _ridges(rows: Sequence[Mapping[str, Any]]) -> list[Ridge]:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        missing = [name for name in ("name", "length", "share") if row.get(name) is None]
        if missing:
            raise ConfigError(
                f"a row of the path lengths needs name, length and share, and {dict(row)!r} has no {missing[0]}"
            )
        found.setdefault(str(row["name"]), {})[int(row["length"])] = float(row["share"])
    ridges = [Ridge(name=name, shares=shares) for name, shares in found.items() if any(shares.values())]
    if not ridges:
        raise ConfigError("nothing to draw: no rows with name, length and share were given")
    return sorted(ridges, key=lambda ridge: ridge.mean)


def _rows(ridges: list[Ridge], scale: float, longest: int) -> tuple[list[Row], list[Row]]:
    """The bars of all ridges, and for each ridge its line, mean and label."""
    bars: list[Row] = []
    lines: list[Row] = []
    for base, ridge in enumerate(ridges):
        color = viridis(DARKEST + (BRIGHTEST - DARKEST) * base / max(1, len(ridges) - 1))
        about = {"name": clipped(ridge.name, 40), "color": color, "base": base}
        bars += [
            {
                **about, "length": length, "share": percent(share, 3), "start": length - 0.5, "end": length + 0.5,
                "top": base - scale * share,
            }
            for length, share in ridge.shares.items()
        ]  # fmt: skip
        end = max(ridge.shares)
        seen = min(length for length, share in ridge.shares.items() if share >= SEEN)
        is_free = end <= ROOM * longest
        lines.append(
            {
                **about, "left": -0.5, "right": end + 0.5, "below": base + 0.12, "mean": ridge.mean,
                "words": f"mean {ridge.mean:.2f} of {end}", "align": "left" if is_free else "right",
                "label": end + 0.5 if is_free else seen - 0.5,
            }
        )  # fmt: skip
    return bars, lines


def _x(longest: int) -> Any:
    least = longest / MOST_TICKS
    step = next(
        step for power in range(9) for factor in (1, 2, 4, 5) if (step := factor * 10**power) >= least
    )
    ticks = list(range(0, longest + 1, step))
    axis = alt.Axis(title=LENGTH_TITLE, values=ticks, grid=True, gridColor="#eceff2", format="d")
    scale = alt.Scale(domain=[-0.5, longest + 0.5], nice=False, zero=False)
    return alt.X("start:Q", axis=axis, scale=scale)


def _in_words(ridges: list[Ridge]) -> str:
    listed = ", ".join(f"{ridge.name} {ridge.mean:.4g} of {max(ridge.shares)}" for ridge in ridges)
    return f"Distribution of path lengths of {len(ridges)} architectures. Mean lengths: {listed}."
