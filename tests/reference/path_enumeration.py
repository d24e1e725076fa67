"""A small transformer written out in loops, every path through it enumerated one by one. Imports nothing of ours.

A layer is a dict of plain tensors: q, k, v, o with biases qb, kb, vb, ob (dim x dim, heads side by side), g1, b1, g2,
b2 (gains and biases of its two norms), up, upb, down, downb. ``placement`` is "post" or "pre".
"""

import math

import torch


def _norm(x, gain, bias):
    mean = x.mean(-1, keepdim=True)
    scale = ((x - mean) ** 2).mean(-1, keepdim=True).add(1e-5).sqrt()
    return (x - mean) / scale * gain + bias, scale


def _maps(x, layer, heads):
    width = x.shape[-1] // heads
    q, k = x @ layer["q"] + layer["qb"], x @ layer["k"] + layer["kb"]
    cut = [slice(h * width, (h + 1) * width) for h in range(heads)]
    return [torch.softmax(q[:, c] @ k[:, c].T / math.sqrt(width), -1) for c in cut], cut


def record(x, layers, heads, placement):
    """Output of the network, and what each layer had on the way: maps, scales of its norms, gates of its MLP."""
    held = []
    for layer in layers:
        inside, scale1 = _norm(x, layer["g1"], layer["b1"]) if placement == "pre" else (x, None)
        maps, cut = _maps(inside, layer, heads)
        value = inside @ layer["v"] + layer["vb"]
        mixed = torch.cat([p @ value[:, c] for p, c in zip(maps, cut, strict=True)], -1)
        x = x + mixed @ layer["o"] + layer["ob"]
        if placement == "post":
            x, scale1 = _norm(x, layer["g1"], layer["b1"])
        inside, scale2 = _norm(x, layer["g2"], layer["b2"]) if placement == "pre" else (x, None)
        hidden = inside @ layer["up"] + layer["upb"]
        gate = 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + (hidden * gate) @ layer["down"] + layer["downb"]
        if placement == "post":
            x, scale2 = _norm(x, layer["g2"], layer["b2"])
        held.append({"maps": maps, "cut": cut, "scale1": scale1, "scale2": scale2, "gate": gate})
    return x, held


def _frozen_norm(z, scale, gain):
    return (z - z.mean(-1, keepdim=True)) / scale * gain


def every_term(x, layers, heads, placement):
    """All terms of the output as (source, heads passed as (layer, head), number of MLPs passed, matrix)."""
    _, held = record(x, layers, heads, placement)
    ones = torch.ones(len(x), 1, dtype=x.dtype)
    terms = [("input", (), 0, x)]
    for number, (layer, kept) in enumerate(zip(layers, held, strict=True), start=1):
        terms = _attention(terms, number, layer, kept, placement, ones)
        terms = _mlp(terms, number, layer, kept, placement, ones)
    return terms


def _attention(terms, number, layer, kept, placement, ones):
    entering = list(terms)
    if placement == "pre":
        entering = [(s, p, m, _frozen_norm(z, kept["scale1"], layer["g1"])) for s, p, m, z in terms]
        entering.append((f"norm bias {number}", (), 0, ones * layer["b1"]))
    passed = []
    for head, (p_map, cut) in enumerate(zip(kept["maps"], kept["cut"], strict=True)):
        for source, path, mlps, z in entering:
            passed.append(
                (source, (*path, (number, head)), mlps, p_map @ z @ layer["v"][:, cut] @ layer["o"][cut])
            )
        carried = p_map @ (ones * layer["vb"][cut]) @ layer["o"][cut]
        passed.append((f"value bias {number}", ((number, head),), 0, carried))
    after = [*terms, *passed, (f"output bias {number}", (), 0, ones * layer["ob"])]
    if placement == "post":
        after = [(s, p, m, _frozen_norm(z, kept["scale1"], layer["g1"])) for s, p, m, z in after]
        after.append((f"norm bias {number}", (), 0, ones * layer["b1"]))
    return after


def _mlp(terms, number, layer, kept, placement, ones):
    entering = list(terms)
    if placement == "pre":
        entering = [(s, p, m, _frozen_norm(z, kept["scale2"], layer["g2"])) for s, p, m, z in terms]
        entering.append((f"norm bias {number}", (), 0, ones * layer["b2"]))
    gate = kept["gate"]
    passed = [(s, p, m + 1, ((z @ layer["up"]) * gate) @ layer["down"]) for s, p, m, z in entering]
    passed.append((f"mlp bias {number}", (), 1, (layer["upb"] * gate) @ layer["down"] + layer["downb"]))
    after = [*terms, *passed]
    if placement == "post":
        after = [(s, p, m, _frozen_norm(z, kept["scale2"], layer["g2"])) for s, p, m, z in after]
        after.append((f"norm bias {number}", (), 0, ones * layer["b2"]))
    return after


def by_roots_of_unity(x, layers, heads, placement):
    """The sum of all paths of each length, from passes in which every head is multiplied by a root of unity."""
    _, held = record(x, layers, heads, placement)
    count = len(layers) + 1
    passes = []
    for power in range(count):
        z = torch.exp(torch.tensor(2j * math.pi * power / count, dtype=torch.complex128))
        passes.append(_pass(x.to(torch.complex128), layers, held, placement, z))
    stacked = torch.stack(passes)
    turns = torch.arange(count, dtype=torch.float64)
    dft = torch.exp(-2j * math.pi * turns[:, None] * turns[None, :] / count) / count
    return torch.einsum("kp,pij->kij", dft, stacked)


def _pass(y, layers, held, placement, z):
    for layer, kept in zip(layers, held, strict=True):
        w = {name: value.to(torch.complex128) for name, value in layer.items()}
        inside = _frozen_norm(y, kept["scale1"], w["g1"]) + w["b1"] if placement == "pre" else y
        for p_map, cut in zip(kept["maps"], kept["cut"], strict=True):
            value = inside @ w["v"][:, cut] + w["vb"][cut]
            y = y + z * (p_map.to(torch.complex128) @ value @ w["o"][cut])
        y = y + w["ob"]
        if placement == "post":
            y = _frozen_norm(y, kept["scale1"], w["g1"]) + w["b1"]
        inside = _frozen_norm(y, kept["scale2"], w["g2"]) + w["b2"] if placement == "pre" else y
        y = y + ((inside @ w["up"] + w["upb"]) * kept["gate"]) @ w["down"] + w["downb"]
        if placement == "post":
            y = _frozen_norm(y, kept["scale2"], w["g2"]) + w["b2"]
    return y
