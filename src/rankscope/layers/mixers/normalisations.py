"""Attention whose logits become weights in other ways than by softmax."""

import math

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.kinds import register
from rankscope.layers.mixers.logits import draw_logits, masked, may_read
from rankscope.layers.mixers.weights import Maps, MapsFor, head_count, map_kind, normal
from rankscope.masks import Causal

SINKHORN_ROUNDS = 5
DIFFERENTIAL_SHARE = 0.8
"""The factor on the second map: its first value in the last layers of the paper."""
READ_KEYS = 4
"""Keys that a query reads in top-k attention."""


def off_by_one(logits: Tensor, sink: Tensor | float = 0.0) -> Tensor:
    """``exp(l_ij) / (exp(sink) + sum_j exp(l_ij))``: softmax with one more key, whose value is zero."""
    more = torch.as_tensor(sink, dtype=logits.dtype).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, more], dim=-1).softmax(dim=-1)[..., :-1]


def sparsemax(logits: Tensor) -> Tensor:
    """The point of the simplex nearest to the logits: ``max(0, l - t)`` with t such that the row sums to one.

    >>> sparsemax(torch.tensor([0.0, 0.5, 3.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    down = logits.sort(dim=-1, descending=True).values
    places = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    thresholds = (down.cumsum(dim=-1) - 1) / places
    support = (thresholds < down).sum(dim=-1, keepdim=True)
    return (logits - thresholds.gather(-1, support - 1)).clamp(min=0)


def entmax(logits: Tensor) -> Tensor:
    """``max(0, l / 2 - t)^2`` with t such that the row sums to one: 1.5-entmax, between softmax and sparsemax.

    With z = l / 2 sorted downwards, mean m and sum of squares S about it over the first k entries, the threshold of a
    support of k is ``t = m - sqrt((1 - S) / k)``; the support is the largest k with ``t <= z_k``.

    >>> entmax(torch.tensor([0.0, 0.5, 5.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    half = (logits - logits.amax(dim=-1, keepdim=True)) / 2
    down = half.sort(dim=-1, descending=True).values
    places = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    mean = down.cumsum(dim=-1) / places
    # The sum of squares about the mean, from step to step, so that close logits lose no digits.
    before = torch.cat([mean[..., :1], mean[..., :-1]], dim=-1)
    spread = ((down - before) * (down - mean)).cumsum(dim=-1)
    left = (1 - spread) / places
    known = left > 0
    thresholds = torch.where(known, mean - torch.where(known, left, 1.0).sqrt(), torch.inf)
    support = (thresholds <= down).sum(dim=-1, keepdim=True)
    return (half - thresholds.gather(-1, support - 1)).clamp(min=0).square()


def hardmax(logits: Tensor) -> Tensor:
    """All weight on the largest logit of a row, in equal shares where several are equally large."""
    best = (logits == logits.amax(dim=-1, keepdim=True)).to(logits.dtype)
    return best / best.sum(dim=-1, keepdim=True)


def top_k(logits: Tensor) -> Tensor:
    """Softmax over the largest logits of a row; all others get no weight."""
    least = logits.topk(min(READ_KEYS, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -torch.inf).softmax(dim=-1)


def sinkhorn(logits: Tensor) -> Tensor:
    """Rows and columns divided by their sums in turn, rows last, so that both nearly sum to one."""
    for _ in range(SINKHORN_ROUNDS):
        logits = logits.log_softmax(dim=-2)
        logits = logits.log_softmax(dim=-1)
    return logits.exp()


def _of_logits(weigh: Maps) -> MapsFor:
    def maps_for(tokens: int, dim: int, generator: torch.Generator) -> Maps:
        logits = draw_logits(generator, dim)
        return lambda x: weigh(logits(x))

    return maps_for


def _off_by_one_heads(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    logits = draw_logits(generator, dim, head_count(dim))
    return lambda x: off_by_one(logits(x))


def _off_by_one_causal(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    logits, allowed = draw_logits(generator, dim), may_read(Causal(), tokens)
    return lambda x: off_by_one(masked(logits(x), allowed))


def _sinks(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    logits, sink = draw_logits(generator, dim), normal(generator, 1, 1, 1)
    return lambda x: off_by_one(logits(x), sink)


def _sigmoid(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    logits = draw_logits(generator, dim)
    return lambda x: (logits(x) - math.log(tokens)).sigmoid()


def _differential(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    one, two = draw_logits(generator, dim), draw_logits(generator, dim)
    return lambda x: one(x).softmax(dim=-1) - DIFFERENTIAL_SHARE * two(x).softmax(dim=-1)


_MILLER = Ref(
    key="Miller. Attention is off by one. 2023, evanmiller.org/attention-is-off-by-one.html", where="Softmax1"
)

for _kind in (
    map_kind(
        "off-by-one",
        "attention",
        "Softmax with one added to the sum below, so that a token may read nothing.",
        _of_logits(off_by_one),
        ref=_MILLER,
    ),
    map_kind(
        "off-by-one-heads",
        "attention",
        "Softmax with one added to the sum below, with four heads, added up.",
        _off_by_one_heads,
        heads=head_count,
        ref=_MILLER,
    ),
    map_kind(
        "off-by-one-causal",
        "attention",
        "Softmax with one added to the sum below, over a token and those before it.",
        _off_by_one_causal,
        ref=_MILLER,
    ),
    map_kind(
        "sinks",
        "attention",
        "Softmax with one more key of a learned logit, whose value is zero.",
        _sinks,
        ref=Ref(
            key="OpenAI. gpt-oss-120b and gpt-oss-20b model card. 2025, arXiv:2508.10925",
            where="learned bias below the softmax",
        ),
    ),
    map_kind(
        "sigmoid",
        "attention",
        "A sigmoid of every logit less log(tokens), instead of a softmax of the row.",
        _sigmoid,
        ref=Ref(
            key="Ramapuram et al. Sigmoid self-attention. ICLR 2025, arXiv:2409.04431",
            where="SigmoidAttn with bias -log(n)",
        ),
    ),
    map_kind(
        "sparsemax",
        "attention",
        "The probabilities nearest to the logits, many of which are zero once logits differ.",
        _of_logits(sparsemax),
        ref=Ref(
            key="Martins, Astudillo. From softmax to sparsemax. ICML 2016, arXiv:1602.02068",
            where="Algorithm 1",
        ),
    ),
    map_kind(
        "entmax",
        "attention",
        "1.5-entmax, half-way between softmax and sparsemax.",
        _of_logits(entmax),
        ref=Ref(
            key="Peters, Niculae, Martins. Sparse sequence-to-sequence models. ACL 2019, arXiv:1905.05702",
            where="1.5-entmax",
        ),
    ),
    map_kind(
        "hardmax",
        "attention",
        "All weight on the key with the largest logit, shared where several are largest.",
        _of_logits(hardmax),
        ref=Ref(
            key="Alcalde, Fantuzzi, Zuazua. Clustering in pure-attention hardmax transformers. 2024, arXiv:2407.01602",
            where="hardmax self-attention",
        ),
    ),
    map_kind(
        "top-k",
        "attention",
        "Softmax over the four largest logits of a row.",
        _of_logits(top_k),
        ref=Ref(
            key="Gupta et al. Memory-efficient transformers via top-k attention. 2021, arXiv:2106.06899",
            where="top-k attention",
        ),
    ),
    map_kind(
        "sinkhorn",
        "attention",
        "Weights whose rows and columns both nearly sum to one.",
        _of_logits(sinkhorn),
        ref=Ref(key="Sander et al. Sinkformers. AISTATS 2022, arXiv:2110.11773", where="Sinkhorn attention"),
    ),
    map_kind(
        "differential",
        "attention",
        "One softmax map less 0.8 times another.",
        _differential,
        ref=Ref(
            key="Ye et al. Differential transformer. ICLR 2025, arXiv:2410.05258",
            where="equation 1",
            differs="without the norm of every head",
        ),
    ),
):
    register(_kind)
