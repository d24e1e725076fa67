"""The term of every path through any small tree, by its definition. Plain torch, imports nothing of ours.

A tree is nested tuples: ``("attention", weights)``, ``("norm", kind, gain, bias, eps)``, ``("mlp", weights)``,
``("scale", value)``, ``("chain", [...])``, ``("sum", [...])``, ``("skip", inner, scale)``. Weights are dicts of plain
tensors. One text at a time, without padding.
"""

import math
from itertools import count, product

import torch


def hold(tree, x, numbers=None):
    """The tree with maps, scales and gates at their values on ``x``, and what it puts out.

    Held parts are ``("heads", number, maps, matrices)``, ``("rows", function)`` and chains, sums and skips of them.
    """
    numbers = count() if numbers is None else numbers
    kind = tree[0]
    if kind == "chain":
        held = []
        for child in tree[1]:
            one, x = hold(child, x, numbers)
            held.append(one)
        return ("chain", held), x
    if kind == "sum":
        both = [hold(child, x, numbers) for child in tree[1]]
        return ("sum", [one for one, _ in both]), sum((y for _, y in both), torch.zeros_like(x))
    if kind == "skip":
        inner, y = hold(tree[1], x, numbers)
        return ("skip", inner, tree[2]), y + tree[2] * x
    if kind == "attention":
        return _hold_attention(tree[1], x, next(numbers))
    if kind == "norm":
        return _hold_norm(tree, x)
    if kind == "mlp":
        return _hold_mlp(tree[1], x)
    return ("rows", lambda z: z * tree[1]), x * tree[1]


def _hold_attention(w, x, number):
    heads, groups = w["heads"], w["groups"]
    width, read = w["out"].shape[0] // heads, w["query"].shape[1] // heads
    maps, matrices, y = [], [], w["out_bias"].expand_as(x).clone()
    for head in range(heads):
        group = head // (heads // groups)
        q = (
            x @ w["query"][:, head * read : (head + 1) * read]
            + w["query_bias"][head * read : (head + 1) * read]
        )
        k = (
            x @ w["key"][:, group * read : (group + 1) * read]
            + w["key_bias"][group * read : (group + 1) * read]
        )
        scores = q @ k.T / math.sqrt(read)
        scores = scores.masked_fill(~w["allowed"], -math.inf)
        powers = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
        maps.append(powers / powers.sum(dim=1, keepdim=True))
        value = slice(group * width, (group + 1) * width)
        out = w["out"][head * width : (head + 1) * width]
        matrices.append(w["value"][:, value] @ out)
        y = y + maps[-1] @ (x @ w["value"][:, value] + w["value_bias"][value]) @ out
    return ("heads", number, maps, matrices), y


def _hold_norm(tree, x):
    _, kind, gain, bias, eps = tree
    middle = x.mean(dim=1, keepdim=True) if kind == "layer" else torch.zeros(len(x), 1, dtype=x.dtype)
    size = ((x - middle) ** 2).sum(dim=1, keepdim=True) / (1 if kind == "sphere" else x.shape[1])
    scale = torch.sqrt(size + eps)

    def linear(z):
        return (z - z.mean(dim=1, keepdim=True) if kind == "layer" else z) / scale * gain

    return ("rows", linear), linear(x) + bias


def _hold_mlp(w, x):
    hidden = x @ w["up"] + w["up_bias"]
    if "gate" in w:
        gate = x @ w["gate"] + w["gate_bias"]
        held = gate * torch.sigmoid(gate)  # SiLU
    else:
        held = (hidden > 0).to(x.dtype)  # ReLU

    def linear(z):
        return ((z @ w["up"]) * held) @ w["down"]

    return ("rows", linear), (hidden * held) @ w["down"] + w["down_bias"]


def sites(held):
    """How many heads each attention part has, in order of execution."""
    if held[0] == "heads":
        return [len(held[2])]
    if held[0] in ("chain", "sum"):
        return [heads for child in held[1] for heads in sites(child)]
    return sites(held[1]) if held[0] == "skip" else []


def takes(held, heads):
    """Whether a head is taken somewhere inside."""
    if held[0] == "heads":
        return heads[held[1]] is not None
    if held[0] in ("chain", "sum"):
        return any(takes(child, heads) for child in held[1])
    return takes(held[1], heads) if held[0] == "skip" else False


def term(held, z, heads):
    """The sum of all routes that use exactly these heads, one entry per attention part; None if there is no route."""
    kind = held[0]
    if kind == "heads":
        head = heads[held[1]]
        return None if head is None else held[2][head] @ z @ held[3][head]
    if kind == "rows":
        return held[1](z)
    if kind == "chain":
        for child in held[1]:
            z = None if z is None else term(child, z, heads)
        return z
    if kind == "skip":
        inner = term(held[1], z, heads)
        if takes(held[1], heads) or (isinstance(held[2], float) and held[2] == 0.0):
            return inner
        return held[2] * z if inner is None else held[2] * z + inner
    wanted = [child for child in held[1] if takes(child, heads)]
    if len(wanted) > 1:
        return None
    routes = [term(child, z, heads) for child in wanted or held[1]]
    routes = [route for route in routes if route is not None]
    return sum(routes[1:], routes[0]) if routes else None


def every_term(held, x):
    """All paths and their terms, as a dict from heads to matrix."""
    choices = product(*([None, *range(heads)] for heads in sites(held)))
    found = {heads: term(held, x, heads) for heads in choices}
    return {heads: z for heads, z in found.items() if z is not None}


def norm(z):
    return math.sqrt(sum(float(entry) ** 2 for row in z for entry in row))


def residual(z):
    return norm(z - z.mean(dim=0, keepdim=True))
