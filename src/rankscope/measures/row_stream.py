"""Any number of rows in constant memory: moments that can be merged, and a sample of rows.

What needs the spectrum of all rows is read off ``d x d`` moments; what needs pairs of rows is read off the sample.
"""

from dataclasses import dataclass

import numpy as np

from rankscope.measures.embeddings import unit_rows

SAMPLE = 2048
"""Rows that are kept. Up to so many nothing is estimated."""

MOST_DIM = 8192
"""Moments of wider rows would need gigabytes: of these, everything is said of the sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSummary:
    """What is known of some rows."""

    count: int
    dim: int
    sample: np.ndarray
    """Rows in their order, all of them if there are at most ``SAMPLE``."""

    places: np.ndarray
    """Which rows these are."""

    values: np.ndarray
    """Singular values of the rows."""

    centered: np.ndarray
    """Singular values of the rows minus their mean, without those that centering makes zero."""

    measured: int
    """How many rows the singular values are those of."""

    cosine: float
    """Mean cosine of two different rows; NaN where fewer than two rows have a direction."""

    spread: float
    """Standard deviation of a channel of unit rows, the mean over channels."""

    channel: float
    """Share of the sum of squares of unit rows that the largest channel holds."""

    @property
    def ratio(self) -> float:
        """Norm of the rows minus their mean over that of the rows; 0 where all rows are zero."""
        size = float(np.linalg.norm(self.values))
        return float(np.linalg.norm(self.centered)) / size if size > 0 else 0.0


class RowStream:
    """Rows that come piece by piece. Pieces may come in any order, and streams of pieces can be merged.

    A row enters the sample by a number that is a hash of its place alone, and the smallest numbers stay: so the sample
    does not depend on how rows were cut into pieces, nor on who read which.
    """

    def __init__(self, dim: int, *, sample: int = SAMPLE) -> None:
        self.dim, self.most = dim, sample
        self.count = 0
        self.mean = np.zeros(dim)
        self._scatter: np.ndarray | None = None  # none is needed as long as all rows are kept
        self.units = 0  # rows that are not zero
        self.unit_mean, self.unit_squares = (
            np.zeros(dim),
            np.zeros(dim),
        )  # squares around the mean, by channel
        self._keys = np.zeros(0, dtype=np.uint64)
        self._places = np.zeros(0, dtype=np.int64)
        self._rows = np.zeros((0, dim))

    def add(self, rows: np.ndarray, start: int) -> None:
        """Rows whose places begin at ``start``."""
        if not len(rows):
            return
        piece = RowStream(self.dim, sample=0)
        piece.count = len(rows)
        piece.mean = rows.mean(axis=0)
        units = unit_rows(rows)
        units = units[np.abs(units).max(axis=1) > 0]
        piece.units = len(units)
        if piece.units:
            piece.unit_mean = units.mean(axis=0)
            piece.unit_squares = ((units - piece.unit_mean) ** 2).sum(axis=0)
        piece._places = np.arange(start, start + len(rows))
        piece._keys, piece._rows = _hash(piece._places), rows
        self.merge(piece)

    def merge(self, other: "RowStream") -> None:
        """The rows of another stream (Chan, Golub and LeVeque: nothing is lost to cancellation)."""
        both = self.count + other.count
        if not both:
            return
        step = other.mean - self.mean
        if both > self.most and self.dim <= MOST_DIM:
            apart_rows = np.outer(step, step) * (self.count * other.count / both)
            self._scatter = self._offsets() + other._offsets() + apart_rows
        self.mean = self.mean + step * (other.count / both)
        self.count = both
        units, apart = self.units + other.units, other.unit_mean - self.unit_mean
        if units:
            between = apart**2 * (self.units * other.units / units)
            self.unit_squares = self.unit_squares + other.unit_squares + between
            self.unit_mean = self.unit_mean + apart * (other.units / units)
            self.units = units
        keys = np.concatenate([self._keys, other._keys])
        kept = np.argsort(keys, kind="stable")[: self.most]
        self._keys = keys[kept]
        self._places = np.concatenate([self._places, other._places])[kept]
        self._rows = np.concatenate([self._rows, other._rows])[kept]

    def _offsets(self) -> np.ndarray:
        """Sum of the outer products of the rows minus their mean; from the rows themselves while all are kept."""
        if self._scatter is not None:
            return self._scatter
        offsets = self._rows - self.mean
        found: np.ndarray = offsets.T @ offsets
        return found

    def summary(self) -> RowSummary:
        """What is known of the rows so far; of few rows, and of very wide ones, from the sample itself."""
        order = np.argsort(self._places)
        sample, places = self._rows[order], self._places[order]
        exact = self._scatter is None
        if exact:
            values = np.linalg.svd(sample, compute_uv=False)
            centered = np.linalg.svd(sample - sample.mean(axis=0), compute_uv=False)
        else:
            whole = self._offsets() + self.count * np.outer(self.mean, self.mean)
            values, centered = (_roots(part) for part in (whole, self._offsets()))
        measured = len(sample) if exact else self.count
        return RowSummary(
            count=self.count,
            dim=self.dim,
            sample=sample,
            places=places,
            values=values[: min(measured, self.dim)],
            centered=centered[: min(measured - 1, self.dim)],
            measured=measured,
            cosine=self._cosine(),
            spread=float(np.sqrt(self.unit_squares / self.units).mean()) if self.units else float("nan"),
            channel=float((self.unit_squares / self.units + self.unit_mean**2).max())
            if self.units
            else float("nan"),
        )

    def _cosine(self) -> float:
        if self.units < 2:
            return float("nan")
        return float((self.units * (self.unit_mean**2).sum() - 1) / (self.units - 1))


def _roots(moments: np.ndarray) -> np.ndarray:
    """Singular values of rows from the sum of their outer products, in falling order."""
    eigenvalues = np.linalg.eigvalsh(moments)
    found: np.ndarray = np.sqrt(np.maximum(eigenvalues[::-1], 0.0))
    return found


def _hash(places: np.ndarray) -> np.ndarray:
    """A number per place that looks drawn at random (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = places.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: np.ndarray = mixed ^ (mixed >> np.uint64(31))
    return found
