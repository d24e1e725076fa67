"""Every measure by plain loops over lists of lists; linear programs where the minimum has no formula."""

import math

import numpy as np
from scipy.optimize import linprog

Matrix = list[list[float]]


def columns_of(x: Matrix) -> Matrix:
    return [[row[j] for row in x] for j in range(len(x[0]))]


def norm(x: Matrix, name: str) -> float:
    column_sums = [sum(abs(v) for v in column) for column in columns_of(x)]
    row_sums = [sum(abs(v) for v in row) for row in x]
    if name == "l1":
        return max(column_sums)
    if name == "linf":
        return max(row_sums)
    if name == "composite":
        return math.sqrt(max(column_sums) * max(row_sums))
    if name == "frobenius":
        return math.sqrt(sum(v * v for row in x for v in row))
    if name == "spectral":
        return singular_values(x)[0]
    return max(abs(v) for row in x for v in row)


def center(x: Matrix, name: str) -> list[float]:
    """Mean, median or midrange of every column."""
    row = []
    for column in columns_of(x):
        ordered, n = sorted(column), len(column)
        if name == "mean":
            row.append(math.fsum(column) / n)
        elif name == "median":
            row.append((ordered[(n - 1) // 2] + ordered[n // 2]) / 2)
        else:
            row.append((ordered[0] + ordered[-1]) / 2)
    return row


BEST = {"l1": "median", "frobenius": "mean", "spectral": "mean", "max": "midrange"}


def minus(x: Matrix, row: list[float]) -> Matrix:
    return [[v - c for v, c in zip(token, row, strict=True)] for token in x]


def linf_best(x: Matrix) -> float:
    """min_c max_i sum_j |x_ij - c_j| as one linear program over (c, e, t): e_ij >= |x_ij - c_j|, sum_j e_ij <= t."""
    n, d = len(x), len(x[0])
    variables = d + n * d + 1
    rows, right = [], []
    for i in range(n):
        for j in range(d):
            for sign in (1.0, -1.0):
                row = [0.0] * variables
                row[j], row[d + i * d + j] = -sign, -1.0
                rows.append(row)
                right.append(-sign * x[i][j])
        row = [0.0] * variables
        for j in range(d):
            row[d + i * d + j] = 1.0
        row[-1] = -1.0
        rows.append(row)
        right.append(0.0)
    goal = [0.0] * (variables - 1) + [1.0]
    bounds = [(None, None)] * d + [(0, None)] * (n * d + 1)
    result = linprog(goal, A_ub=np.array(rows), b_ub=right, bounds=bounds, method="highs")
    assert result.status == 0
    return float(result.fun)


def composite_grid(x: Matrix, steps: int) -> float:
    """The smallest composite residual over a grid of centers inside the range of one or two columns."""
    axes = []
    for column in columns_of(x):
        low, high = min(column), max(column)
        axes.append([low + (high - low) * k / steps for k in range(steps + 1)])
    points = [[a] for a in axes[0]] if len(axes) == 1 else [[a, b] for a in axes[0] for b in axes[1]]
    return min(norm(minus(x, point), "composite") for point in points)


def singular_values(x: Matrix) -> list[float]:
    """One-sided Jacobi: turn pairs of columns until all are orthogonal; their lengths are the singular values."""
    columns = columns_of(x) if len(x) >= len(x[0]) else [list(row) for row in x]
    for _ in range(60):
        worst = 0.0
        for p in range(len(columns)):
            for q in range(p + 1, len(columns)):
                a, b = columns[p], columns[q]
                aa, bb = sum(v * v for v in a), sum(v * v for v in b)
                ab = sum(v * w for v, w in zip(a, b, strict=True))
                if aa * bb == 0 or abs(ab) <= 1e-17 * math.sqrt(aa * bb):
                    continue
                worst = max(worst, abs(ab) / math.sqrt(aa * bb))
                tau = (bb - aa) / (2 * ab)
                t = math.copysign(1.0, tau) / (abs(tau) + math.sqrt(1 + tau * tau))
                c = 1 / math.sqrt(1 + t * t)
                s = c * t
                columns[p] = [c * v - s * w for v, w in zip(a, b, strict=True)]
                columns[q] = [s * v + c * w for v, w in zip(a, b, strict=True)]
        if worst < 1e-15:
            break
    return sorted((math.sqrt(sum(v * v for v in column)) for column in columns), reverse=True)


def unit(x: Matrix) -> Matrix:
    return [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in x]


def diameter(x: Matrix, name: str) -> float:
    widest = 0.0
    for a in x:
        for b in x:
            gaps = [abs(v - w) for v, w in zip(a, b, strict=True)]
            if name == "l1":
                widest = max(widest, sum(gaps))
            elif name == "l2":
                widest = max(widest, math.sqrt(sum(gap * gap for gap in gaps)))
            else:
                widest = max(widest, *gaps)
    return widest


def cosine(x: Matrix, name: str) -> float:
    total, pairs = 0.0, 0
    for i, a in enumerate(x):
        for j, b in enumerate(x):
            if i == j and name != "with_diagonal":
                continue
            dot = sum(v * w for v, w in zip(a, b, strict=True))
            value = dot / math.sqrt(sum(v * v for v in a)) / math.sqrt(sum(w * w for w in b))
            total += abs(value) if name == "absolute" else value
            pairs += 1
    return total / pairs


def neighbours(x: Matrix, name: str, graph: str) -> float:
    """A mean over tokens: of the sum of squared distances, or of the mean cosine distance, to neighbours."""
    total = 0.0
    for i, a in enumerate(x):
        beside = [b for j, b in enumerate(x) if (i != j if graph == "complete" else abs(i - j) == 1)]
        if name == "dirichlet_energy":
            total += sum((v - w) ** 2 for b in beside for v, w in zip(a, b, strict=True))
        else:
            total += sum(1 - cosine([a, b], "off_diagonal") for b in beside) / len(beside)
    return total / len(x)


def exp_entropy(weights: list[float]) -> float:
    total = sum(weights)
    return math.exp(-sum(w / total * math.log(w / total) for w in weights if w > 0))


def spectral(name: str, tag: str, s: list[float]) -> float:
    energy = [v * v for v in s]
    rest = math.sqrt(sum(energy[1:]))
    return {
        ("effective_rank", "entropy"): lambda: exp_entropy(s),
        ("effective_rank", "eigenvalues"): lambda: exp_entropy(energy),
        ("stable_rank", "frobenius"): lambda: sum(energy) / energy[0],
        ("participation_ratio", "eigenvalues"): lambda: sum(energy) ** 2 / sum(e * e for e in energy),
        ("numerical_rank", "relative"): lambda: sum(1 for v in s if v > 0.001 * s[0]),
        ("numerical_rank", "absolute"): lambda: sum(1 for v in s if v > 0.5),
        ("smallest_singular_value", "absolute"): lambda: s[-1],
        ("smallest_singular_value", "ratio"): lambda: s[-1] / s[0],
        ("distance_to_rank_one", "frobenius"): lambda: rest,
        ("distance_to_rank_one", "ratio"): lambda: rest / math.sqrt(sum(energy)),
    }[name, tag]()


def share(x: Matrix, name: str) -> float:
    lengths = [math.sqrt(sum(v * v for v in row)) for row in x]
    total = sum(v * v for row in x for v in row)
    if name == "token_share":
        return max(length * length for length in lengths) / total
    if name == "channel_share":
        return max(sum(v * v for v in column) for column in columns_of(x)) / total
    ordered, n = sorted(lengths), len(lengths)
    usual = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return sum(1 for length in lengths if length > 10 * usual)


def massive(x: Matrix) -> list[int]:
    """Places of the massive tokens, tried from the largest number of them down."""
    order = sorted(range(len(x)), key=lambda i: -sum(v * v for v in x[i]))
    energy = [sum(v * v for v in x[i]) for i in order]
    for k in range((len(x) - 1) // 2, 0, -1):
        rest = sum(energy[k:]) / (len(x) - k)
        if energy[k - 1] > 0 and math.sqrt(energy[k - 1]) >= 5 * math.sqrt(rest):
            return order[:k]
    return []


def massive_channels(x: Matrix) -> list[int]:
    """Places of the massive channels of unit tokens: channels as tokens, without those that are zero throughout."""
    columns = columns_of(unit(x))
    used = [j for j, column in enumerate(columns) if any(column)]
    found = [used[place] for place in massive([columns[j] for j in used])]
    energy = [sum(v * v for v in column) for column in columns]
    if not found and len(used) > 1 and max(energy) >= sum(energy) / 2:
        found = [energy.index(max(energy))]
    return found


def of_map(a: Matrix, name: str, tag: str) -> float:
    n, keys = len(a), len(a[0])
    if name == "attention_entropy":
        mean = sum(-v * math.log(v) for row in a for v in row if v > 0) / n
        return mean if tag == "mean" else mean / math.log(keys)
    if name == "dobrushin":
        return max(sum(abs(v - w) for v, w in zip(p, q, strict=True)) for p in a for q in a) / 2
    if name == "doeblin":
        return 1 - sum(min(column) for column in columns_of(a))
    if name == "spectral_gap":
        return 1 - sorted(abs(np.linalg.eigvals(np.array(a))))[-2]
    return max(sum(column) / n for column in columns_of(a))


def value(definition: str, x: Matrix, linf_center: list[float] | None = None) -> float:
    """The measure of that id. ``linf_center`` is the row that ids with center linf subtract (it is not unique)."""
    name, _, inside = definition.rstrip("]").partition("[")
    tags = inside.split(",")
    if name == "massive_tokens":
        return len(massive(x))
    if name == "massive_channels":
        return len(massive_channels(x))
    if definition == "channel_share[massive,unit]":
        energy = [sum(v * v for v in column) for column in columns_of(unit(x))]
        return sum(energy[j] for j in massive_channels(x)) / sum(energy)
    if tags == ["massive"]:
        total = sum(v * v for row in x for v in row)
        return sum(v * v for i in massive(x) for v in x[i]) / total
    if tags[-1] == "other_channels":
        tags, gone = tags[:-1], massive_channels(x)
        x = [[0.0 if j in gone else v for j, v in enumerate(row)] for row in x]
    if tags[-1] == "others":
        x, tags = [row for i, row in enumerate(x) if i not in massive(x)], tags[:-1]
    if tags[-1] == "unit":
        x, tags = unit(x), tags[:-1]
    if name in ("residual", "residual_ratio"):
        size, rule = tags
        if (size, rule) in (("linf", "best"), ("linf", "linf")):
            top = linf_best(x)
        elif rule == "linf":
            top = norm(minus(x, linf_center), size)
        else:
            top = norm(minus(x, center(x, BEST[size] if rule == "best" else rule)), size)
        return top if name == "residual" else top / norm(x, size)
    if name == "diameter":
        return diameter(x, tags[0])
    if name == "cosine":
        return cosine(x, tags[0])
    if name in ("dirichlet_energy", "mad"):
        return neighbours(x, name, tags[0])
    if name in ("token_share", "channel_share", "outlier_tokens"):
        return share(x, name)
    if name in ("attention_entropy", "dobrushin", "doeblin", "spectral_gap", "sink_share"):
        return of_map(x, name, tags[0])
    centered = tags[-1] == "centered"
    s = singular_values(minus(x, center(x, "mean")) if centered else x)
    return spectral(name, tags[0], s[: min(len(x) - 1, len(x[0]))] if centered else s)
