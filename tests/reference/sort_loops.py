"""The sorting task and its network in plain loops; weights come as a dict of arrays. Imports nothing of ours."""

import itertools
import math
from collections import Counter

import numpy as np


def norm(token, gain, bias, eps):
    mean = sum(token) / len(token)
    variance = sum((entry - mean) ** 2 for entry in token) / len(token)
    return np.array([(entry - mean) / math.sqrt(variance + eps) for entry in token]) * gain + bias


def bare(x):
    return np.stack([norm(token, 1.0, 0.0, 1e-12) for token in x])


def embedded(weights, letters):
    rows = [
        weights["reader.token_vectors"][a] + weights["reader.position_vectors"][i]
        for i, a in enumerate(letters)
    ]
    return np.stack([norm(r, weights["reader.norm.weight"], weights["reader.norm.bias"], 1e-5) for r in rows])


def head_output(x, weights, block, head, heads):
    """One head of one block: softmax of its own logits, its values, its rows of the output projection."""
    part = {
        name: weights[f"network.blocks.{block}.parts.0.inner.{name}"]
        for name in (
            "mixer.query", "mixer.key", "mixer.query_bias", "mixer.key_bias",
            "values.value", "values.value_bias", "values.out",
        )
    }  # fmt: skip
    width = x.shape[1] // heads
    own = slice(head * width, (head + 1) * width)
    query = x @ part["mixer.query"][:, own] + part["mixer.query_bias"][own]
    key = x @ part["mixer.key"][:, own] + part["mixer.key_bias"][own]
    value = x @ part["values.value"][:, own] + part["values.value_bias"][own]
    mixed = np.zeros_like(value)
    for i in range(len(x)):
        sizes = [math.exp(query[i] @ key[j] / math.sqrt(width)) for j in range(len(x))]
        mixed[i] = sum(size * value[j] for j, size in enumerate(sizes)) / sum(sizes)
    return mixed @ part["values.out"][own]


def out_bias(weights, block):
    return weights[f"network.blocks.{block}.parts.0.inner.values.out_bias"]


def block_norm(x, weights, block, place):
    gain, bias = (weights[f"network.blocks.{block}.parts.{place}.{name}"] for name in ("weight", "bias"))
    return np.stack([norm(token, gain, bias, 1e-5) for token in x])


def states(x, weights, layers, heads, *, mlps=False):
    """The last state of the full network."""
    for block in range(layers):
        added = sum(head_output(x, weights, block, head, heads) for head in range(heads))
        x = block_norm(x + added + out_bias(weights, block), weights, block, 1)
        if mlps:
            name = f"network.blocks.{block}.parts.2.inner"
            inner = x @ weights[f"{name}.up"] + weights[f"{name}.up_bias"]
            inner = inner * np.vectorize(lambda h: (1 + math.erf(h / math.sqrt(2))) / 2)(inner)
            x = block_norm(
                x + inner @ weights[f"{name}.down"] + weights[f"{name}.down_bias"], weights, block, 3
            )
    return x


def run(x, weights, path, heads, mode):
    """The attention-only network along one path: everything else is taken out."""
    for block, head in enumerate(path):
        if head is not None:
            x = head_output(x, weights, block, head, heads) + out_bias(weights, block)
        if mode == "isolated":
            x = block_norm(x, weights, block, 1)
        elif head is not None:
            x = bare(x)
    return x


def paths(layers, heads, length):
    every = itertools.product([None, *range(heads)], repeat=layers)
    return [path for path in every if sum(head is not None for head in path) == length]


def logits(x, weights):
    return x @ weights["classifier"] + weights["classifier_bias"]


def accuracy(outputs, letters):
    """Share of positions with the right letter first, over sequences of logits."""
    hits = [
        int(np.argmax(output[i]) == letter)
        for output, sequence in zip(outputs, letters, strict=True)
        for i, letter in enumerate(sorted(sequence))
    ]
    return sum(hits) / len(hits)


def best_accuracy(alphabet, length, known):
    """Accuracy of the best guess at each position from ``known(position, sequence)``, over all sequences."""
    seen = {}
    for sequence in itertools.product(range(alphabet), repeat=length):
        for i, letter in enumerate(sorted(sequence)):
            seen.setdefault((i, known(i, sequence)), Counter())[letter] += 1
    return sum(max(counts.values()) for counts in seen.values()) / (length * alphabet**length)
