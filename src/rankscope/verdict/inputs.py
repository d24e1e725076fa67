"""What the rows of inputs amount to: collapsed, few directions, clusters, a shared mean, a cone, or none of these.

One function, ``judge_inputs``, takes N rows of width d, one row per input, and names what they show. It draws nothing
at random but the yardstick, keeps nothing, and takes milliseconds for a probe batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.cluster.vq import kmeans2
from scipy.spatial.distance import pdist, squareform

from rankscope.findings.inputs import InputsName, InputsVerdict, InputThresholds
from rankscope.measures.embeddings import (
    NEAR,
    clipped_rows,
    effective_rank,
    spatial_median,
    unit_rows,
)
from rankscope.measures.gaussian_rows import SEED, gaussian_spectra, gaussian_squares

APART = 1.5
"""Groups are apart if the way to the nearest other one is so many times a long step inside."""

SAME = 1e-4
"""Rows nearer than this part of the median distance of two rows are copies; they count once among directions."""

MOST_CLUSTERED = 1024
"""Rows whose pairs are looked at for clusters and near-duplicates; of more rows, this many, evenly taken."""


def judge_inputs(rows: np.ndarray, limits: InputThresholds | None = None) -> InputsVerdict:
    """The verdict on finite rows ``(N, d)``, at least two of them.

    The order of the questions: are rows equal; does a channel hold everything; are rows clusters; do they share a
    direction; do they use few directions. A name that holds besides the first one stands in ``also``.
    """
    limits = InputThresholds() if limits is None else limits
    rows = np.asarray(rows, dtype=np.float64)
    rows = rows / (np.abs(rows).max() or 1.0)
    channels = massive_channels(rows, limits)
    found = _judge(rows, limits)
    is_spread = found.name in ("healthy", "too few", "dimensional")
    if not channels or (is_spread and not _stand_out(rows, channels, limits)):
        return found
    rest = _judge(np.delete(rows, channels, axis=1), limits)
    if found.name == rest.name == "collapsed":
        return found
    others = rest.name in ("healthy", "too few", "collapsed")
    also = rest.also if others else (*rest.also, "massive channel")
    return rest.model_copy(
        update={
            "name": "massive channel" if others else rest.name,
            "also": tuple(also),
            "channels": channels,
            "ratio": found.ratio,
            "cosine": found.cosine,
        }
    )


def _judge(rows: np.ndarray, limits: InputThresholds) -> InputsVerdict:
    """The same without looking at single channels."""
    many, dim = rows.shape
    center = spatial_median(rows)
    distances = np.linalg.norm(rows - center, axis=1)
    is_long = distances > limits.long_row * np.quantile(distances, 0.95)
    kept = rows[~is_long]
    ratio, units = residual_ratio(kept), unit_rows(kept)
    cosine = mean_cosine(units)
    told = InputsVerdict(
        name="collapsed",
        ratio=ratio,
        cosine=None if np.isnan(cosine) else cosine,
        long_rows=int(is_long.sum()),
    )
    if ratio <= limits.equal:
        return told
    sample = kept[_evenly(len(kept), MOST_CLUSTERED)]
    pairs = pdist(sample)
    equal = _equal_share(pairs, len(sample))
    clusters = count_clusters(sample, pairs, limits)
    if equal >= limits.equal_rows and len(sample) > 3 and not clusters:
        return told.model_copy(update={"equal_rows": equal, "near_duplicates": equal})
    middle = np.median(pairs)
    twins = float(squareform(pairs <= NEAR * middle).any(axis=1).mean())
    distinct = kept[_first_of_each(kept, sample, squareform(pairs <= SAME * middle))]
    used = directions_used(distinct, spatial_median(distinct), limits)
    is_shared = cosine >= limits.cone_cosine and _is_decided(many, dim, limits)
    is_cone = is_shared and is_bound_to_axis(kept, units, limits)
    is_few = used.is_few
    if is_cone and is_few:  # lengths that differ make the axis the only direction of rows as they are
        directions = unit_rows(distinct)
        is_few = directions_used(directions, spatial_median(directions), limits).is_few
    names = list[InputsName]()
    if clusters:
        names.append("clusters")
    if ratio <= limits.nearly_equal and is_few and not clusters:
        names.append("collapsed")
    if is_few:
        names.append("dimensional")
    if is_shared:
        # What rows share is said first where they lack some directions only.
        is_first = names == ["dimensional"] and used.count > min(many - 1, dim) / 2
        names.insert(0 if is_first else len(names), "cone" if is_cone else "shared mean")
    elif not is_few and not clusters and points_along_one_line(units, limits):
        names.append("cone")
    name: InputsName = "too few" if many < limits.least_rows else "healthy"
    return told.model_copy(
        update={
            "name": names[0] if names else name,
            "also": tuple(names[1:]),
            "directions": used.count if is_few else None,
            "clusters": clusters or None,
            "rank": used.rank,
            "expected_rank": used.expected,
            "near_duplicates": twins,
            "equal_rows": equal,
        }
    )


def _equal_share(pairs: np.ndarray, many: int) -> float:
    """Share of the rows that equal the row with most copies."""
    apart = pairs[pairs > 0]
    if not len(apart):
        return 1.0
    same = squareform(pairs <= SAME * np.median(apart))
    return float(same.sum(axis=1).max() + 1) / many if same.any() else 1.0 / many


def residual_ratio(rows: np.ndarray) -> float:
    """``|X - 1 m|_F / |X|_F`` with m the mean row; 0 where all rows are zero."""
    size = float(np.linalg.norm(rows))
    return float(np.linalg.norm(rows - rows.mean(axis=0))) / size if size > 0 else 0.0


def mean_cosine(units: np.ndarray) -> float:
    """Mean cosine of two different rows; rows of zeros have no direction and are left out."""
    known = units[np.abs(units).max(axis=1) > 0]
    many = len(known)
    if many < 2:
        return float("nan")
    return float(((known.sum(axis=0) ** 2).sum() - many) / (many * (many - 1)))


def points_along_one_line(units: np.ndarray, limits: InputThresholds) -> bool:
    """Whether unit rows point along one line, perhaps both ways: one direction holds most of their squares.

    It must not do so of Gaussian rows, as it does in one dimension or of two rows.
    """
    if gaussian_squares(*units.shape)[0] > limits.cone_cosine / 2:
        return False
    squares = _singular_values(units) ** 2
    return bool(squares[0] >= limits.cone_cosine * squares.sum())


def _is_decided(many: int, dim: int, limits: InputThresholds) -> bool:
    """Whether Gaussian rows of this number and width are far from the limit of a cone.

    Their mean cosine is 0 with a standard deviation of ``sqrt(2 / (N (N - 1) d))``; six of these must fit below.
    """
    return many >= 4 and 6 * (2 / (many * (many - 1) * dim)) ** 0.5 <= limits.cone_cosine


def is_bound_to_axis(rows: np.ndarray, units: np.ndarray, limits: InputThresholds) -> bool:
    """Whether rows that share a direction form a cone, not a cloud around a shared mean.

    Each row is a part along the mean direction and a part across it. Around a shared mean the two are independent: the
    same cloud would lie around zero. In a cone the part across grows with the part along (rows of different lengths),
    or falls with it (rows of one length). So the rank correlation of the two tells them apart.
    """
    axis = units.mean(axis=0)
    axis = axis / np.linalg.norm(axis)
    along = rows @ axis
    across = np.linalg.norm(rows - along[:, None] * axis, axis=1)
    if len(rows) < limits.least_rows or np.ptp(along) == 0 or np.ptp(across) == 0:
        return False
    ranks = [np.argsort(np.argsort(part)).astype(float) for part in (along, across)]
    return bool(abs(np.corrcoef(ranks)[0, 1]) >= limits.bound)


def massive_channels(rows: np.ndarray, limits: InputThresholds) -> tuple[int, ...]:
    """Channels that together hold most of the squares, of rows as they are and of unit rows; few, and far above others.

    They are found by their mean square: the fewest that hold ``massive_channel`` of it, at most one in fifty, each
    ``massive_length`` times (root mean square) larger than the others.
    """
    dim = rows.shape[1]
    if dim < 4:
        return ()
    raw, unit = ((part**2).mean(axis=0) for part in (rows, unit_rows(rows)))
    if not raw.sum() > 0:
        return ()
    order = np.argsort(-unit)
    held = np.cumsum(unit[order]) / unit.sum()
    some = int(np.searchsorted(held, limits.massive_channel)) + 1
    if some > max(1, dim // 50):
        return ()
    # All that are as far above the rest belong to them, also where fewer hold enough.
    rest = unit[order[max(1, dim // 50) :]].mean()
    high = [int(one) for one in order[: max(1, dim // 50)] if unit[one] >= limits.massive_length**2 * rest]
    is_held = len(high) >= some and raw[high].sum() >= limits.massive_channel * raw.sum()
    return tuple(sorted(high)) if is_held else ()


def _stand_out(rows: np.ndarray, channels: tuple[int, ...], limits: InputThresholds) -> bool:
    """Whether a step separates massive channels from the others, which a power law in the channels does not have.

    Coordinates along principal axes, in their order, hold less and less without a step; such rows are no worse than the
    same rows turned, whose channels are all alike.
    """
    lengths = np.sort((unit_rows(rows) ** 2).mean(axis=0) ** 0.5)[::-1][: len(channels) + 1]
    return bool((lengths[:-1] >= limits.cliff * lengths[1:]).any())


# ------------------------------------------------------------------------------------------------------- directions


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectionsUsed:
    """How many directions rows use, and how many Gaussian rows would."""

    is_few: bool
    count: int
    rank: float
    """Effective rank of the rows around their center, long ones cut to the median length."""

    expected: float
    """The same of Gaussian rows."""


def directions_used(rows: np.ndarray, center: np.ndarray, limits: InputThresholds) -> DirectionsUsed:
    """Whether rows use few directions: a cliff in their spectrum, or an effective rank far below the Gaussian one.

    Rows enter with their lengths from the center cut at the median, so that a few long rows do not make the spectrum.
    """
    many, dim = rows.shape
    visible = min(many - 1, dim)
    if visible < 1:
        return DirectionsUsed(is_few=False, count=visible, rank=1.0, expected=1.0)
    values = _singular_values(clipped_rows(rows, center))[:visible]
    rank = effective_rank(values)
    expected = float(np.mean([effective_rank(one) for one in gaussian_spectra(many - 1, dim)]))
    cliff = _cliff(values, many - 1, dim, limits)
    is_low = rank <= limits.low_rank * expected
    count = cliff if cliff is not None else max(1, round(rank))
    return DirectionsUsed(is_few=cliff is not None or is_low, count=count, rank=rank, expected=expected)


def _cliff(values: np.ndarray, many: int, dim: int, limits: InputThresholds) -> int | None:
    """After how many directions the spectrum falls off a cliff, if it does.

    After k directions it does if (1) the rest hold at most ``rest`` of what they hold of Gaussian rows, (2) the step
    from k to k + 1 is ``cliff`` times that of Gaussian rows, (3) at least a tenth of the directions that can be seen
    are lost, and two of five or more, since a norm always costs one, and (4) Gaussian rows show such a rest less than
    once in a million times. For (4): the sum of the t smallest squared singular values, relative to its mean, is below
    r with a chance of about ``r^(t (t + |N - d|) / 2)``, the volume of small matrices of t columns.
    """
    visible = len(values)
    squares = values**2 / (values**2).sum()
    gaussian = gaussian_squares(many, dim)
    places = np.arange(1, visible)
    rest = squares[::-1].cumsum()[::-1][1:]
    ratio = rest / gaussian[::-1].cumsum()[::-1][1:]
    tiny = np.finfo(np.float64).tiny
    step = np.log(np.maximum(squares[:-1], tiny)) - np.log(np.maximum(squares[1:], tiny))
    step -= np.log(gaussian[:-1]) - np.log(gaussian[1:])
    left = (visible - places).astype(float)
    chance = 10.0 ** (-12.0 / (left * (left + abs(many - dim))))
    allowed = (
        (ratio <= np.minimum(limits.rest, chance))
        & (step >= 2 * np.log(limits.cliff))
        & (places <= max(min(0.9 * visible, visible - 2), visible / 2))
    )
    if not allowed.any():
        return None
    return int(places[allowed][np.argmax(step[allowed])])


def _singular_values(rows: np.ndarray) -> np.ndarray:
    """Singular values in falling order."""
    return np.linalg.svd(rows, compute_uv=False)


# --------------------------------------------------------------------------------------------------------- clusters


def _evenly(many: int, most: int) -> np.ndarray:
    """The numbers of at most so many of the rows, evenly taken."""
    return np.arange(many) if many <= most else np.linspace(0, many - 1, most).round().astype(int)


def _first_of_each(kept: np.ndarray, sample: np.ndarray, twin: np.ndarray) -> np.ndarray:
    """Which rows to keep so that near-duplicates count once; all, where too many rows were given to compare them."""
    if len(sample) < len(kept):
        return np.arange(len(kept))
    earlier = np.tril(twin, -1).any(axis=1)
    return np.flatnonzero(~earlier)


def count_clusters(rows: np.ndarray, pairs: np.ndarray, limits: InputThresholds) -> int:
    """The number of tight groups that the rows fall into, or 0.

    Groups are those of average linkage, cut where its heights make the largest steps. They count if (1) hardly a row
    is outside of them, (2) the mean silhouette is ``silhouette`` or more, where 0.5 is the usual limit of a reasonable
    structure (Kaufman and Rousseeuw, 1990), (3) the way from one group to the next is longer than the steps inside, and
    (4) what is left inside groups is ``tight`` of what it is for as many groups of Gaussian rows with the same
    covariance, because any cloud of one or two dimensions can be cut into neat pieces.
    """
    many = len(rows)
    if many < 8 or not pairs.max() > 0:
        return 0
    tree = linkage(pairs, "average")
    heights = np.maximum(tree[:, 2], 1e-12 * pairs.max())
    numbers = np.arange(2, many // 4 + 1)
    if not len(numbers):
        return 0
    steps = heights[many - numbers] / heights[many - numbers - 1]
    square = squareform(pairs)
    best, found, more = 0.0, 0, 0
    for cut in numbers[np.argsort(-steps)[:5]]:
        labels = fcluster(tree, int(cut), "maxclust")
        sizes = np.bincount(labels)
        large = np.flatnonzero(sizes >= max(3, many / cut / 10))
        inside = np.isin(labels, large)
        if len(large) < 2 or inside.mean() < 0.95:
            continue
        distances, own = square[np.ix_(inside, inside)], np.unique(labels[inside], return_inverse=True)[1]
        score = _silhouette(distances, own)
        if score > best and score >= limits.silhouette and _are_apart(distances, own):
            best, found = score, len(large)
            more = _small_groups(square, labels, large)
            kept, groups = rows[inside], own
    if not found:
        return 0
    left = _within(kept, groups) / max(_within(kept, np.zeros(len(kept), dtype=int)), 1e-300)
    return found + more if left <= limits.tight * _gaussian_within(kept, found) else 0


def _small_groups(distances: np.ndarray, labels: np.ndarray, large: np.ndarray) -> int:
    """Groups of three rows and more that are small beside the others, and as far from all other rows as those are.

    They do not decide whether there are clusters, since any cloud has some rows on its edge.
    """
    steps = _steps(distances, [labels == group for group in large])
    small = [group for group in np.flatnonzero(np.bincount(labels) >= 3) if group not in large]
    return sum(
        int(distances[np.ix_(labels == group, labels != group)].min() >= APART * np.quantile(steps, 0.98))
        for group in small
    )


def _steps(distances: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
    """The steps inside groups: edges of the shortest tree that joins the rows of each (single linkage)."""
    inside = [squareform(distances[np.ix_(own, own)], checks=False) for own in groups]
    return np.concatenate([linkage(one, "single")[:, 2] for one in inside])


def _silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    """Mean over rows of (b - a) / max(a, b): a the mean distance to the own group, b to the nearest other one."""
    members = np.eye(labels.max() + 1)[labels]
    counts = members.sum(axis=0)
    sums = distances @ members
    own = sums[np.arange(len(labels)), labels] / np.maximum(counts[labels] - 1, 1)
    others = sums / counts
    others[np.arange(len(labels)), labels] = np.inf
    nearest = others.min(axis=1)
    return float(((nearest - own) / np.maximum(np.maximum(nearest, own), 1e-300)).mean())


def _are_apart(distances: np.ndarray, labels: np.ndarray) -> bool:
    """Whether groups are apart: the way from one to the nearest other is longer than steps inside of it.

    A curve or a plane that was cut into pieces has no such gap: one can walk from piece to piece in the same small
    steps.
    """
    groups = [labels == group for group in range(labels.max() + 1)]
    gaps = [distances[np.ix_(own, ~own)].min() for own in groups]
    return bool(np.median(gaps) >= APART * np.quantile(_steps(distances, groups), 0.98))


def _within(rows: np.ndarray, labels: np.ndarray) -> float:
    """Sum of squared distances to the mean of the own group."""
    counts = np.bincount(labels)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, labels, rows)
    return float(((rows - (sums / counts[:, None])[labels]) ** 2).sum())


def _gaussian_within(rows: np.ndarray, groups: int) -> float:
    """Share of the sum of squares that is left inside the groups that k-means makes of Gaussian rows with the same
    covariance."""
    values = _singular_values(rows - rows.mean(axis=0))
    generator = np.random.default_rng([SEED, *rows.shape, groups])
    drawn = generator.standard_normal((len(rows), len(values))) * values / len(rows) ** 0.5
    _, labels = kmeans2(drawn, groups, iter=10, minit="++", rng=generator, missing="warn")
    labels = np.unique(labels, return_inverse=True)[1]
    return _within(drawn, labels) / max(_within(drawn, np.zeros(len(drawn), dtype=int)), 1e-300)
