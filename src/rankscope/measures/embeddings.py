"""Numbers of N rows of width d, one row per input: how many directions they use, and how far apart they are.

Rows are inputs here (texts, images), where the other files of this folder measure the tokens of one text. Everything
is float64 numpy, and a function takes either the rows, ``(N, d)``, or their singular values.
"""

import numpy as np

RANKME_EPSILON = 1e-7
"""What RankMe adds to every share of its spectrum."""

LIDAR_DELTA, LIDAR_EPSILON = 1e-4, 1e-8
"""What LiDAR adds to the spread inside groups, and to every share of its spectrum."""

NEAR = 0.01
"""Rows nearer than this part of the median distance of two rows are near-duplicates."""

FIRST, LAST = 3, 100
"""The exponent of a spectrum is fitted between these places, the last at most at half of the spectrum."""


def effective_rank(singular_values: np.ndarray) -> float:
    """Exponential of the entropy of the singular values as shares of their sum; NaN if all are zero.

    >>> effective_rank(np.array([2.0, 2.0, 0.0]))
    2.0
    """
    total = singular_values.sum()
    if not total > 0:
        return float("nan")
    shares = singular_values[singular_values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def rankme(singular_values: np.ndarray) -> float:
    """RankMe as its paper has it: ``exp(-sum p log p)`` with ``p = sigma / sum(sigma) + 1e-7``, rows as they are.

    The small constant stands in every share, so that equal rows read ``1 + 1.6e-6 (min(N, d) - 1)``, not 1 exactly
    (Garrido, Balestriero, Najman and LeCun, RankMe, 2023, equations 1 and 2).

    >>> round(rankme(np.array([5.0, 0.0, 0.0])), 5)
    1.0
    """
    total = singular_values.sum()
    if not total > 0:
        return float("nan")
    shares = singular_values / total + RANKME_EPSILON
    return float(np.exp(-(shares * np.log(shares)).sum()))


def exponent(singular_values: np.ndarray) -> float:
    """The exponent a for which the variance in the i-th direction falls as ``i^-a``; NaN of fewer than five places.

    A line through ``log(sigma_i^2)`` against ``log i`` by least squares, from the third direction, because the first
    ones are often apart, to the hundredth or the middle of the spectrum, because the small half is the sampling of rows
    (Agrawal et al., alpha-ReQ, 2022, fit the same line).

    >>> round(exponent(1 / np.arange(1, 101)), 6)
    2.0
    """
    used = singular_values[: min(LAST, len(singular_values) // 2)]
    places = np.arange(1, len(used) + 1)[FIRST - 1 :]
    values = used[FIRST - 1 :]
    if len(values) < 5 or not values[-1] > 1e-12 * singular_values[0]:
        return float("nan")
    return float(-2.0 * np.polyfit(np.log(places), np.log(values), 1)[0])


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows scaled to length one; rows of zeros stay."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = rows / np.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    found: np.ndarray = scaled / np.where(lengths > 0, lengths, 1.0)
    return found


def uniformity(rows: np.ndarray) -> float:
    """``log mean exp(-2 |u_i - u_j|^2)`` over pairs of different unit rows; 0 if all are equal, near -4 if spread.

    Wang and Isola, Understanding contrastive representation learning through alignment and uniformity, 2020, t = 2.
    """
    from scipy.spatial.distance import pdist  # here, not above: slow to import

    squares = np.maximum(pdist(unit_rows(rows), "sqeuclidean"), 0.0)
    return float(np.log(np.exp(-2.0 * squares).mean())) if len(squares) else float("nan")


def alignment(rows: np.ndarray, groups: np.ndarray) -> float:
    """Mean squared distance of two unit rows of one group, over all such pairs; NaN if no group has two rows.

    In a group of q unit rows with sum s, the squared distances of the ordered pairs add up to ``2 q^2 - 2 |s|^2``.
    """
    units, (_, place) = unit_rows(rows), np.unique(groups, return_inverse=True)
    counts = np.bincount(place)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, place, units)
    lengths = np.bincount(place, weights=(units**2).sum(axis=1))  # 1 for every row that is not zero
    pairs = counts * (counts - 1)
    if not pairs.sum():
        return float("nan")
    return float((2 * counts * lengths - 2 * (sums**2).sum(axis=1)).sum() / pairs.sum())


def lidar(rows: np.ndarray, groups: np.ndarray) -> float:
    """LiDAR: effective rank of the spread between groups after that inside groups is made the same in all directions.

    ``W^(-1/2) B W^(-1/2)`` with B the covariance of the group means and W the mean covariance inside groups plus
    ``1e-4 I``; then the exponential of the entropy of its eigenvalues as shares. NaN if no group has two rows, or there
    is one group (Thilak et al., LiDAR: sensing linear probing performance in joint embedding SSL architectures, 2023).
    """
    _, place = np.unique(groups, return_inverse=True)
    counts = np.bincount(place)
    if len(counts) < 2 or counts.max() < 2:
        return float("nan")
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, place, rows)
    means = sums / counts[:, None]
    inside = rows - means[place]
    within = inside.T @ inside / len(rows) + LIDAR_DELTA * np.eye(rows.shape[1])
    between = means - means.mean(axis=0)
    # W = L L^T: the eigenvalues of W^(-1/2) B W^(-1/2) are the squared singular values of B^(1/2) L^(-T).
    whitened = np.linalg.solve(np.linalg.cholesky(within), between.T / np.sqrt(len(counts)))
    eigenvalues = np.linalg.svd(whitened, compute_uv=False) ** 2
    if not eigenvalues.sum() > 0:
        return float("nan")
    shares = eigenvalues / eigenvalues.sum() + LIDAR_EPSILON
    return float(np.exp(-(shares * np.log(shares)).sum()))


def label_gap(rows: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Of unit rows with labels: distance of the two means that are farthest apart, the same of Gaussian rows with these
    labels, and the share of the variance of unit rows that lies between labels.

    Of two modalities the first is their gap (Liang et al., Mind the gap, 2022). The mean of n random directions has a
    length of about ``1 / sqrt(n)``.
    """
    from scipy.spatial.distance import pdist  # here, not above: slow to import

    units, (_, place) = unit_rows(rows), np.unique(labels, return_inverse=True)
    counts = np.bincount(place)
    sums = np.zeros((len(counts), rows.shape[1]))
    np.add.at(sums, place, units)
    means = sums / counts[:, None]
    if len(counts) < 2:
        return float("nan"), float("nan"), float("nan")
    apart = pdist(means)
    fewest = np.sort(counts)[:2]
    center = units.mean(axis=0)
    total = ((units - center) ** 2).sum()
    between = (counts[:, None] * (means - center) ** 2).sum()
    share = float(between / total) if total > 0 else float("nan")
    return float(apart.max()), float(np.sqrt((1 / fewest).sum())), share


def spatial_median(rows: np.ndarray, *, steps: int = 64) -> np.ndarray:
    """The point whose distances to all rows have the smallest sum (Weiszfeld's iteration, started at the median).

    A few rows that are very long move the mean as far as they like, and this point hardly.
    """
    center: np.ndarray = np.median(rows, axis=0)
    size = np.abs(rows).max() or 1.0
    for _ in range(steps):
        distances = np.linalg.norm((rows - center) / size, axis=1)
        weights = 1.0 / np.maximum(distances, 1e-12)
        moved = (weights[:, None] * rows).sum(axis=0) / weights.sum()
        step = np.abs(moved - center).max()
        center = moved
        if step <= 1e-10 * size:
            break
    return center


def clipped_rows(rows: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Rows minus a center, with the longer half of them cut to the median length.

    No row counts for more than the median one, however long it is, and short ones, which may be rounding alone, are not
    blown up to a length that they do not have.
    """
    offsets = rows - center
    lengths = np.linalg.norm(offsets, axis=1, keepdims=True)
    middle = np.median(lengths)
    found: np.ndarray = offsets / np.maximum(lengths, middle) if middle > 0 else offsets
    return found
