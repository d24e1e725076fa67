"""Mixers by name, for random networks: ``softmax``, ``off-by-one``, ``sigmoid``, ..."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.core.registry import Registry
from rankscope.masks import Full
from rankscope.network.mixers.base import Mixer
from rankscope.network.mixers.cosine import cosine
from rankscope.network.mixers.differential import Differential
from rankscope.network.mixers.entmax import Entmax
from rankscope.network.mixers.gated import HeadGate
from rankscope.network.mixers.gaussian import Gaussian
from rankscope.network.mixers.linear import Linear, LinearSums
from rankscope.network.mixers.query_key import Asked
from rankscope.network.mixers.retention import Retention
from rankscope.network.mixers.sigmoid import Sigmoid
from rankscope.network.mixers.sinks import SinkSoftmax
from rankscope.network.mixers.softmax import Softmax
from rankscope.network.mixers.uniform import Uniform

Draw = Callable[..., Tensor]
"""Standard normal draws of a given shape."""

Make = Callable[[Tensor, Tensor, Asked, Draw], Mixer]
"""From drawn queries and keys, as large as the initialisation wants them, and a source of more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixerKind:
    """A named mixer, in one line, and how it is drawn."""

    name: str
    definition: str
    make: Make


def _sinks(query: Tensor, key: Tensor, asked: Asked, draw: Draw) -> Mixer:
    return SinkSoftmax(query, key, **asked, sinks=draw(asked["heads"]))


def _differential(query: Tensor, key: Tensor, asked: Asked, draw: Draw) -> Mixer:
    """The second pair of queries and keys is as large as the first; the factor is that which the paper starts with."""
    others = (draw(*one.shape) * one.square().mean().sqrt() for one in (query, key))
    factor = torch.full((asked["heads"],), 0.8, dtype=query.dtype)
    return Differential(Softmax(query, key, **asked), Softmax(*others, **asked), factor)


def _retention(query: Tensor, key: Tensor, asked: Asked, draw: Draw) -> Mixer:
    heads = torch.arange(asked["heads"], dtype=query.dtype)
    return Retention(query, key, **asked, decay=1 - 2.0 ** (-5 - heads))


def _head_gate(query: Tensor, key: Tensor, asked: Asked, draw: Draw) -> Mixer:
    dim = query.shape[-2]
    return HeadGate(Softmax(query, key, **asked), draw(dim, asked["heads"]) * dim**-0.5)


def _uniform(query: Tensor, key: Tensor, asked: Asked, draw: Draw) -> Mixer:
    return Uniform(heads=asked["heads"], rule=asked.get("rule") or Full())


MIXERS: Registry[MixerKind] = Registry("mixer")
for _name, _definition, _make in (
    ("softmax", "softmax of query-key products", lambda q, k, asked, _: Softmax(q, k, **asked)),
    ("uniform", "every query averages the keys it may read", _uniform),
    (
        "off-by-one",
        "softmax with one more in the denominator",
        lambda q, k, asked, _: SinkSoftmax(q, k, **asked),
    ),
    ("sinks", "softmax with a sink of N(0, 1) beside the keys of every head", _sinks),
    ("sigmoid", "sigmoid of products less log n", lambda q, k, asked, _: Sigmoid(q, k, **asked)),
    ("cosine", "softmax of cosines over 0.1", lambda q, k, asked, _: cosine(q, k, **asked)),
    ("gaussian", "Gaussian kernel of queries and keys", lambda q, k, asked, _: Gaussian(q, k, **asked)),
    ("sparsemax", "the nearest point of the simplex", lambda q, k, asked, _: Entmax(q, k, **asked)),
    ("entmax", "entmax with alpha = 1.5", lambda q, k, asked, _: Entmax(q, k, **asked, alpha=1.5)),
    ("differential", "one softmax map less 0.8 times another", _differential),
    ("linear", "features elu + 1, rows divided by their sums", lambda q, k, asked, _: Linear(q, k, **asked)),
    ("linear-sums", "features elu + 1, not divided", lambda q, k, asked, _: LinearSums(q, k, **asked)),
    ("retention", "products times (1 - 2^(-5-h))^|i-j|", _retention),
    ("head-gate", "softmax, rows times a random sigmoid of the query", _head_gate),
):
    MIXERS.register(_name, MixerKind(name=_name, definition=_definition, make=_make))
