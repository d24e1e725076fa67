"""Numbers made of formulas: the same on every machine, no model needed."""

import math


def wave(*numbers):
    """A number between -1 and 1 that looks random and is not."""
    mixed = sum((12.9898 + 65.3 * place) * number for place, number in enumerate(numbers, start=1))
    return 2 * (math.sin(mixed) * 43758.5453 % 1.0) - 1


def counts_of(heads):
    """How many paths have each length: the elementary symmetric sums of the numbers of heads."""
    found = [1]
    for count in heads:
        found = [
            (found[k] if k < len(found) else 0) + (count * found[k - 1] if k else 0)
            for k in range(len(found) + 1)
        ]
    return found
