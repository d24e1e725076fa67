"""Contraction coefficients and windows of blocks, by loops over exact rational numbers. Imports nothing of ours."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

Matrix = list[list[Fraction]]


def exact(matrix: Sequence[Sequence[float]]) -> Matrix:
    """The stored floats, exactly."""
    return [[Fraction(entry) for entry in row] for row in matrix]


def dobrushin(matrix: Matrix) -> Fraction:
    """Half the largest l1 distance between two rows."""
    largest = Fraction(0)
    for place, first in enumerate(matrix):
        for second in matrix[:place]:
            largest = max(largest, sum((abs(a - b) for a, b in zip(first, second, strict=True)), Fraction(0)))
    return largest / 2


def doeblin(matrix: Matrix) -> Fraction:
    """The largest row sum less the sum of the smallest entries of the columns."""
    shared = sum((min(column) for column in zip(*matrix, strict=True)), Fraction(0))
    return max(sum(row, Fraction(0)) for row in matrix) - shared


def times(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [
        [sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in left
    ]


def path_factor(blocks: Sequence[Sequence[tuple[Matrix, Fraction]]]) -> Fraction:
    """``sum tau(P_path) w_path`` over every choice of one (map, norm) per block, first block first."""
    total = Fraction(0)
    for path in product(*blocks):
        together, weight = path[0]
        for matrix, norm in path[1:]:
            together, weight = times(matrix, together), weight * norm
        total += dobrushin(together) * weight
    return total


def minimum_factor(blocks: Sequence[Sequence[tuple[Matrix, Fraction]]]) -> Fraction:
    """``prod_l sum_k w_lk`` times one minus what the product of entrywise minima over terms shares in all rows."""
    weight, together = Fraction(1), None
    for block in blocks:
        weight *= sum((norm for _, norm in block), Fraction(0))
        maps = [matrix for matrix, _ in block]
        least = [[min(entries) for entries in zip(*rows, strict=True)] for rows in zip(*maps, strict=True)]
        together = least if together is None else times(least, together)
    assert together is not None
    return weight * (1 - sum((min(column) for column in zip(*together, strict=True)), Fraction(0)))


def anchored_factor(blocks: Sequence[Sequence[tuple[Matrix, Fraction]]], anchor: int) -> Fraction:
    """The two largest distances from the anchor, added: ``d_i' = sum_k w_k sum_j |P_ij - P_aj| d_j``, from ones."""
    tokens = len(blocks[0][0][0])
    far = [Fraction(int(token != anchor)) for token in range(tokens)]
    for block in blocks:
        moved = [Fraction(0)] * tokens
        for matrix, norm in block:
            for token in range(tokens):
                for key in range(tokens):
                    moved[token] += norm * abs(matrix[token][key] - matrix[anchor][key]) * far[key]
        far = moved
    return sum(sorted(far)[-2:], Fraction(0))
