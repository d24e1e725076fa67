"""One path through a small transformer, layer by layer, with one head at a time: plain arrays, nothing shared.

A layer is a dict: ``query``, ``key``, ``value`` and ``out`` with their biases, ``heads`` and ``groups``, the norms
``norm1`` and ``norm2`` as (gain, bias, eps), and ``up``, ``up_bias``, ``down``, ``down_bias`` of a ReLU MLP.
"""

import numpy as np

from reference.network_loops import attention, layer_norm, mlp


def one_head(x, layer, head):
    """The output of one head on ``x``, as an attention that has no other."""
    width = layer["query"].shape[1] // layer["heads"]
    group = head * layer["groups"] // layer["heads"]
    own, shared = slice(head * width, (head + 1) * width), slice(group * width, (group + 1) * width)
    return attention(
        x,
        query=layer["query"][:, own],
        key=layer["key"][:, shared],
        value=layer["value"][:, shared],
        out=layer["out"][own],
        heads=1,
        groups=1,
        allowed=np.ones((len(x), len(x)), dtype=bool),
        query_bias=layer["query_bias"][own],
        key_bias=layer["key_bias"][shared],
        value_bias=layer["value_bias"][shared],
        out_bias=layer["out_bias"],
    )


def normed(x, norm):
    gain, bias, eps = norm
    return np.stack([layer_norm(token, gain, bias, eps) for token in x])


def bare(x):
    """LayerNorm without gain and bias."""
    return normed(x, (1.0, 0.0, 1e-12))


def feed_forward(x, layer):
    names = ("up", "down", "up_bias", "down_bias")
    return np.stack([mlp(t, **{name: layer[name] for name in names}, name="relu", gates=None) for t in x])


def isolated_pre(x, layers, path, final):
    """Pre-norm: ``x + head(norm1(x))``, then ``x + mlp(norm2(x))``; the skip around a chosen head is gone."""
    for layer, head in zip(layers, path, strict=True):
        x = x if head is None else one_head(normed(x, layer["norm1"]), layer, head)
        x = x + feed_forward(normed(x, layer["norm2"]), layer)
    return normed(x, final)


def isolated_post(x, layers, path):
    """Post-norm: ``norm1(x + head(x))``, then ``norm2(x + mlp(x))``."""
    for layer, head in zip(layers, path, strict=True):
        x = normed(x if head is None else one_head(x, layer, head), layer["norm1"])
        x = normed(x + feed_forward(x, layer), layer["norm2"])
    return x


def official(x, layers, path, feed=None):
    """Layers without a head are dropped; ``feed`` is what follows a head, if anything does."""
    for layer, head in zip(layers, path, strict=True):
        if head is not None:
            x = bare(one_head(x, layer, head))
            x = x if feed is None else feed(x, layer)
    return x


def feed_pre(x, layer):
    return x + feed_forward(normed(x, layer["norm2"]), layer)


def feed_post(x, layer):
    return normed(x + feed_forward(x, layer), layer["norm2"])
