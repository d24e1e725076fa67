"""From many dimensions to a picture of a sphere: three directions, a view of them, near side and far side."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankscope.plots.dynamics_sections import Array

TILTS = (15, 30, 45, -15, -30)
"""Degrees above the equator from which the sphere may be seen; earlier ones are taken where several show as much."""

TURNS = 36
"""Directions around the axis that are tried."""

MOVES = 0.02
"""A token that moves farther within a recorded step is under way."""

SPREAD = 0.5
"""How much a wide spread in the picture counts against paths on the near side when a view is chosen."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class View:
    """An orthographic view: ``basis`` (``3 dim``) has the directions right, up and towards the reader as rows.

    ``share`` is the part of the squared length of what is drawn that lies in these three directions; ``axes`` (``3 3``)
    are the three directions before they were turned, seen in this view, one per row.
    """

    basis: Array
    axes: Array
    share: float

    def seen(self, points: Array) -> Array:
        """Right, up and depth of every point ``... dim``; depth is positive on the near side."""
        found: Array = points @ self.basis.T
        return found


def view_of(points: Array, shown: Array) -> View:
    """The view of unit vectors ``points dim``: coordinates in three dimensions, principal directions in more.

    Principal directions are taken about zero, not about the mean, because the sphere has its center there. The view is
    the one of a fixed list that has most of ``shown`` on the near side and far apart.
    """
    dim = points.shape[1]
    basis = np.eye(3) if dim == 3 else principal(points)
    kept = points @ basis.T
    size = float(np.sum(points**2))
    turn = max(_views(), key=lambda view: round(_shown(shown @ basis.T @ view.T), 3))
    return View(
        basis=turn @ basis, axes=turn.T.copy(), share=float(np.sum(kept**2)) / size if size > 0 else 1.0
    )


def moving(states: Array) -> Array:
    """Of paths ``starts steps tokens dim`` the points that count for the view: starts, ends, and where they move."""
    apart = np.linalg.norm(np.diff(states, axis=1), axis=-1) > MOVES
    first = np.ones_like(states[:, :1, :, 0], dtype=bool)
    kept = np.concatenate([first, apart[:, :-1], first], axis=1) if states.shape[1] > 1 else first
    found: Array = states[kept]
    return found


def principal(points: Array) -> Array:
    """Three orthonormal rows that hold most of the squared length of the points; signs make their sums positive."""
    _, columns = np.linalg.eigh(points.T @ points)
    first: Array = columns[:, :-4:-1].T
    return first * np.where((points @ first.T).sum(axis=0) < 0, -1.0, 1.0)[:, None]


def rotation(turn: float, tilt: float) -> Array:
    """Rows right, up and near of a view from the longitude ``turn`` and the latitude ``tilt``, in radians."""
    near = [math.cos(tilt) * math.cos(turn), math.cos(tilt) * math.sin(turn), math.sin(tilt)]
    right = [-math.sin(turn), math.cos(turn), 0.0]
    up = np.cross(near, right)
    return np.array([right, up, near])


def graticule(view: View) -> list[Array]:
    """Meridians and parallels, 30 degrees apart, as lines ``points 3`` in the view."""
    around, along = np.linspace(0, 2 * np.pi, 61), np.linspace(-np.pi / 2, np.pi / 2, 31)
    parallels = [
        _on_sphere(around, np.full_like(around, math.radians(latitude))) for latitude in range(-60, 61, 30)
    ]
    meridians = [
        _on_sphere(np.full_like(along, math.radians(longitude)), along) for longitude in range(0, 360, 30)
    ]
    return [line @ view.axes for line in [*parallels, *meridians]]


def sides(depth: Array) -> list[tuple[bool, slice]]:
    """Runs of points on one side, near or far; each but the last also holds the first point of the next one.

    >>> [(near, piece.start, piece.stop) for near, piece in sides(np.array([0.2, 0.1, -0.3, -0.1, 0.4]))]
    [(True, 0, 3), (False, 2, 5), (True, 4, 5)]
    """
    is_near = depth >= 0
    cuts = [0, *(np.flatnonzero(np.diff(is_near)) + 1).tolist(), len(depth)]
    return [(bool(is_near[first]), slice(first, min(last + 1, len(depth)))) for first, last in pairwise(cuts)]


def _views() -> list[Array]:
    turns = [2 * math.pi * turn / TURNS for turn in range(TURNS)]
    return [rotation(turn, math.radians(tilt)) for tilt in TILTS for turn in turns]


def _shown(seen: Array) -> float:
    near = float(np.mean(np.clip(seen[:, 2], -0.3, 0.3))) / 0.3
    return near + SPREAD * math.sqrt(float(np.var(seen[:, :2], axis=0).sum()))


def _on_sphere(longitude: Array, latitude: Array) -> Array:
    level = np.cos(latitude)
    found: Array = np.stack([level * np.cos(longitude), level * np.sin(longitude), np.sin(latitude)], axis=1)
    return found
