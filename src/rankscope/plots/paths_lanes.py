"""Where routes run: columns are attention parts, lanes are heads, the lowest lane passes by.

Every path keeps its own track within a lane, so that paths with a common piece run side by side there and come apart
where they part. At the right end they fan out into a list by rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.plots.paths_sections import Place, TopPath

ALL_LANES_UP_TO = 16
"""With more heads than this, lanes that no path uses are left out."""

WIDEST, THINNEST = 7.0, 1.3
LANE_ROOM, TRACK_ROOM = 7.0, 1.4
LEAST_LANE, TALLEST_LANE, LEAST_HEIGHT = 13.0, 34.0, 170.0
"""Lanes are at least so high; if there are few of them, as high as fills the least height, but not more than that."""

HIGHEST = 640.0
LIST_LINE = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A horizontal band. ``head`` is None for the lane that passes by; ``top`` and ``height`` are pixels downward."""

    head: int | None
    top: float
    height: float

    @property
    def middle(self) -> float:
        """Half way down the lane."""
        return self.top + self.height / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A path with its width and its height in pixels at every column; column 0 is the input, the last the output."""

    path: TopPath
    width: float
    heights: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """All lanes and routes of a picture; ``place`` is the rank of a route, 0 for the first and 1 for the last."""

    lanes: list[Lane]
    routes: list[Route]
    columns: int
    height: float

    def place(self, route: Route) -> float:
        """How far down the list a route stands, from 0 to 1."""
        return self.routes.index(route) / max(1, len(self.routes) - 1)


def plan_routes(paths: Sequence[TopPath], places: Sequence[Place], *, score: str = "norm") -> Plan:
    """Lanes and routes for those paths, widths in proportion to the score (``norm`` or ``residual``)."""
    used = {head for path in paths for head in path.heads if head is not None}
    most = max((place.heads for place in places), default=0)
    heads: list[int | None] = [*(range(most) if most <= ALL_LANES_UP_TO else sorted(used)), None]
    tracks = {head: _tracks(paths, head) for head in heads}
    unit = _unit_widths(paths, score)
    scale = _scale(tracks, unit)
    widths = [max(THINNEST, scale * width) for width in unit]
    lanes, tops = _stacked(heads, tracks, widths)
    columns = len(places) + 2
    listed = LIST_LINE * len(paths)
    whole = lanes[-1].top + lanes[-1].height
    height = max(whole, listed)
    # Lanes shorter than the list stand in its middle, so that no line has far to go.
    lanes = [Lane(head=lane.head, top=lane.top + (height - whole) / 2, height=lane.height) for lane in lanes]
    found = []
    for at, path in enumerate(paths):
        own = [tops[head][at] + (height - whole) / 2 for head in path.heads]
        end = (height - listed) / 2 + (at + 0.5) * LIST_LINE
        found.append(Route(path=path, width=widths[at], heights=(lanes[-1].middle, *own, end)))
    return Plan(lanes=lanes, routes=found, columns=columns, height=height)


def _tracks(paths: Sequence[TopPath], head: int | None) -> dict[int, int]:
    """The track of every path that uses the lane: the first that no better path occupies at the same columns."""
    taken: list[set[int]] = []
    found = {}
    for at, path in enumerate(paths):
        columns = {place for place, own in enumerate(path.heads) if own == head}
        if not columns:
            continue
        track = next((n for n, busy in enumerate(taken) if not busy & columns), len(taken))
        taken += [set()] if track == len(taken) else []
        taken[track] |= columns
        found[at] = track
    return found


def _unit_widths(paths: Sequence[TopPath], score: str) -> list[float]:
    scores = [getattr(path, score) or 0.0 for path in paths]
    most = max(scores, default=0.0) or 1.0
    return [max(0.0, one) / most for one in scores]


def _scale(tracks: dict[int | None, dict[int, int]], unit: list[float]) -> float:
    """The width of the best path: as wide as the height of the whole picture allows."""
    total, count = 0.0, 0
    for own in tracks.values():
        for track in set(own.values()):
            total += max(unit[at] for at, one in own.items() if one == track)
            count += 1
    free = HIGHEST - LANE_ROOM * len(tracks) - TRACK_ROOM * count
    return min(WIDEST, max(THINNEST, free / total)) if total else WIDEST


def _stacked(
    heads: Sequence[int | None], tracks: dict[int | None, dict[int, int]], widths: list[float]
) -> tuple[list[Lane], dict[int | None, dict[int, float]]]:
    """Lanes one below the other, and the height of every path in every lane it uses."""
    lanes, tops = [], {}
    at, least = 0.0, min(TALLEST_LANE, max(LEAST_LANE, LEAST_HEIGHT / len(heads)))
    for head in heads:
        own = tracks[head]
        sizes = [
            max(widths[path] for path, one in own.items() if one == track)
            for track in range(1 + max(own.values(), default=-1))
        ]
        need = sum(sizes) + TRACK_ROOM * max(0, len(sizes) - 1)
        height = max(least, need + LANE_ROOM)
        start = at + (height - need) / 2
        middles = [
            start + sum(sizes[:track]) + TRACK_ROOM * track + size / 2 for track, size in enumerate(sizes)
        ]
        lanes.append(Lane(head=head, top=at, height=height))
        tops[head] = {path: middles[track] for path, track in own.items()}
        at += height
    return lanes, tops
