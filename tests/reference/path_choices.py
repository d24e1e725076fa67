"""Every set of heads that some route through a tree uses, by walking all routes; trees are nested tuples.

``("leaf",)`` | ``("heads", name, count)`` | ``("mlp", name)`` | ``("chain", [...])`` | ``("sum", [...])`` |
``("skip", inner, is_open)``. Names differ from each other, so a set of (name, head) says which heads are used where.
"""

from itertools import product


class TooManyError(Exception):
    """More choices than are worth listing."""


def choices(tree, *, mlps=False, most=4000):
    """The sets of (name, head) over all routes from the input to the output of the tree."""
    kind = tree[0]
    if kind == "heads":
        found = {frozenset([(tree[1], head)]) for head in range(tree[2])}
    elif kind == "mlp":
        found = {frozenset([(tree[1], "mlp")] if mlps else [])}
    elif kind == "leaf":
        found = {frozenset()}
    elif kind == "chain":
        found = {frozenset()}
        for child in tree[1]:
            inner = choices(child, mlps=mlps, most=most)
            if len(found) * len(inner) > most:
                raise TooManyError
            found = {one | other for one, other in product(found, inner)}
    elif kind == "sum":
        found = set()
        for child in tree[1]:
            found |= choices(child, mlps=mlps, most=most)
    else:
        found = set(choices(tree[1], mlps=mlps, most=most))
        if tree[2]:
            found.add(frozenset())
    return found


def tally(found):
    """How many sets have so many heads and so many MLPs."""
    counts = {}
    for one in found:
        mlps = sum(head == "mlp" for _, head in one)
        key = (len(one) - mlps, mlps)
        counts[key] = counts.get(key, 0) + 1
    return counts


def as_paths(found, names):
    """The sets as tuples over ``names``, None where nothing is chosen, in lexicographic order with None first."""
    rows = []
    for one in found:
        chosen = dict(one)
        rows.append(tuple(chosen.get(name) for name in names))
    return sorted(rows, key=lambda row: [-1 if head is None else head for head in row])
