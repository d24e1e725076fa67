"""Attention that never writes all products of queries and keys: features, fewer keys, landmarks."""

import torch
from torch import Tensor
from torch.nn.functional import elu

from rankscope.core.refs import Ref
from rankscope.layers.kinds import register
from rankscope.layers.mixers.logits import products, queries_and_keys
from rankscope.layers.mixers.weights import Maps, MapsFor, gaussian, map_kind, normal, orthogonal, uniform

LANDMARKS = 8
INVERSE_ROUNDS = 6
"""Rounds of the iteration that replaces the inverse of the map between landmarks, as published."""


def _linear(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    weights = _linear_unnormalised(tokens, dim, generator)
    return lambda x: _rows_to_one(weights(x))


def _linear_unnormalised(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    return lambda x: (elu(query(x)) + 1) @ (elu(key(x)) + 1).mT / (tokens * dim)


def _performer(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    """Positive random features ``exp(w.q - |q|^2 / 2)`` of q / dim^(1/4), with orthogonal w as long as normal ones."""
    query, key = queries_and_keys(generator, dim)
    lengths = normal(generator, dim, dim).norm(dim=-1, keepdim=True)
    directions = lengths * orthogonal(generator, dim)

    def features(projected: Tensor) -> Tensor:
        scaled = projected * dim**-0.25
        exponents: Tensor = scaled @ directions.mT - scaled.square().sum(dim=-1, keepdim=True) / 2
        return exponents.exp()

    return lambda x: _rows_to_one(features(query(x)) @ features(key(x)).mT)


def _rows_to_one(weights: Tensor) -> Tensor:
    return weights / weights.sum(dim=-1, keepdim=True)


def _linformer(average: bool) -> MapsFor:
    """Keys and values are projected to a quarter of the tokens before they are read."""

    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        query, key = queries_and_keys(generator, dim)
        fewer = max(2, tokens // 4)
        if average:
            keys, values = (_rows_to_one(uniform(generator, 0, 1, fewer, tokens)) for _ in range(2))
        else:
            keys, values = (gaussian(generator, tokens, fewer).mT for _ in range(2))
        return lambda x: products(query(x), keys @ key(x)).softmax(dim=-1) @ values

    return maps_for


def nystrom_map(query: Tensor, key: Tensor, means: Tensor) -> Tensor:
    """Queries to landmarks, an inverse of the map between landmarks, landmarks to keys.

    ``means`` are the weights of the tokens in every landmark.
    """
    few_queries, few_keys = means @ query, means @ key
    pairs = ((query, few_keys), (few_queries, few_keys), (few_queries, key))
    onto, between, out = (products(*pair).softmax(dim=-1) for pair in pairs)
    return onto @ near_inverse(between) @ out


def near_inverse(matrix: Tensor) -> Tensor:
    """Six rounds of an iteration towards the pseudo-inverse; smooth in the matrix, as the pseudo-inverse is not."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    found = matrix.mT / (matrix.abs().sum(dim=-2).amax() * matrix.abs().sum(dim=-1).amax())
    for _ in range(INVERSE_ROUNDS):
        near = matrix @ found
        found = found @ (13 * eye - near @ (15 * eye - near @ (7 * eye - near))) / 4
    return found


def _nystrom(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    landmarks = min(LANDMARKS, tokens)
    segment = torch.arange(tokens) * landmarks // tokens
    means = _rows_to_one((segment == torch.arange(landmarks)[:, None]).double())
    return lambda x: nystrom_map(query(x), key(x), means)


_KATHAROPOULOS = "Katharopoulos et al. Transformers are RNNs. ICML 2020, arXiv:2006.16236"
_WANG = "Wang et al. Linformer. 2020, arXiv:2006.04768"

for _kind in (
    map_kind(
        "linear",
        "efficient attention",
        "Weights are products of positive features elu + 1 of queries and keys, divided by their sum.",
        _linear,
        ref=Ref(key=_KATHAROPOULOS, where="Section 3.2"),
    ),
    map_kind(
        "linear-unnormalised",
        "efficient attention",
        "Weights are products of positive features elu + 1 of queries and keys; rows do not sum to one.",
        _linear_unnormalised,
        ref=Ref(key=_KATHAROPOULOS, where="Section 3.2", differs="without the sum below"),
    ),
    map_kind(
        "performer",
        "efficient attention",
        "Random positive features of queries and keys, whose products are softmax weights on average.",
        _performer,
        ref=Ref(
            key="Choromanski et al. Rethinking attention with Performers. ICLR 2021, arXiv:2009.14794",
            where="Lemma 1",
        ),
    ),
    map_kind(
        "linformer",
        "efficient attention",
        "Softmax attention to a quarter as many keys and values, random sums of all of them.",
        _linformer(average=False),
        ref=Ref(key=_WANG, where="Section 4"),
    ),
    map_kind(
        "linformer-means",
        "efficient attention",
        "Softmax attention to a quarter as many keys and values, random means of all of them.",
        _linformer(average=True),
        ref=Ref(key=_WANG, where="Section 4", differs="projections are positive and their rows sum to one"),
    ),
    map_kind(
        "nystrom",
        "efficient attention",
        "Softmax attention through eight landmarks, means of segments of the tokens.",
        _nystrom,
        ref=Ref(
            key="Xiong et al. Nystromformer. AAAI 2021, arXiv:2102.03902",
            where="Section 3",
            differs="without the convolution around it",
        ),
    ),
):
    register(_kind)
