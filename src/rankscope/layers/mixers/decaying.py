"""Linear attention with a state that decays or is corrected along the tokens, written as maps."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from rankscope.core.refs import Ref
from rankscope.layers.kinds import register
from rankscope.layers.mixers.logits import order, queries_and_keys
from rankscope.layers.mixers.weights import Maps, gaussian, map_kind, normal

DECAY = 1 - 2**-5
"""Of retention, per token: that of the head that forgets fastest."""
GATE_TEMPERATURE = 16
"""The root that is taken of the gates of gated linear attention, so that they start near one."""


def decays(tokens: int, factor: float) -> Tensor:
    """``factor^(i - j)`` for keys j up to the query i, zero beyond."""
    return (factor ** order(tokens).clamp(min=0)).tril()


def _retention_unnormalised(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    factors = decays(tokens, DECAY)
    return lambda x: query(x) @ key(x).mT / dim**0.5 * factors


def _retention(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    weights = _retention_unnormalised(tokens, dim, generator)

    def maps(x: Tensor) -> Tensor:
        found = weights(x)
        return found / found.sum(dim=-1, keepdim=True)

    return maps


def gated_map(query: Tensor, key: Tensor, log_gates: Tensor) -> Tensor:
    """``sum_c q_ic k_jc prod_(j < t <= i) g_tc``: a state ``S_t = diag(g_t) S_(t-1) + k_t v_t`` that q_t reads."""
    since = log_gates.cumsum(dim=0)
    since = (
        since - since[len(since) // 2]
    )  # products of gates are quotients; from the middle on none overflows
    return ((query * since.exp()) @ (key * (-since).exp()).mT).tril()


def delta_map(query: Tensor, key: Tensor, steps: Tensor) -> Tensor:
    """A state ``S_t = S_(t-1) + b_t k_t (v_t - k_t S_(t-1))`` that q_t reads, as a map of the values.

    What is written at t is ``u_t = b_t (v_t - sum_(j < t) (k_t . k_j) u_j)``, so ``(I + B tril(K K', -1)) U = B V``;
    what is read is ``tril(Q K') U``.
    """
    eye = torch.eye(len(query), dtype=query.dtype)
    overlaps = (steps[:, None] * (key @ key.mT)).tril(-1)
    written: Tensor = torch.linalg.solve_triangular(eye + overlaps, steps.diag(), upper=False)
    return (query @ key.mT).tril() @ written


def _gated_linear(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    gate = gaussian(generator, dim, dim)

    def maps(x: Tensor) -> Tensor:
        log_gates = logsigmoid(x @ gate) / GATE_TEMPERATURE
        return gated_map(query(x)[0] / dim**0.5, key(x)[0], log_gates)[None]

    return maps


def _delta_rule(tokens: int, dim: int, generator: torch.Generator) -> Maps:
    query, key = queries_and_keys(generator, dim)
    step = normal(generator, dim)

    def maps(x: Tensor) -> Tensor:
        q, k = (normalize(one(x)[0], dim=-1) for one in (query, key))
        return delta_map(q, k, (x @ step / dim**0.5).sigmoid())[None]

    return maps


_SUN = "Sun et al. Retentive network. 2023, arXiv:2307.08621"

for _kind in (
    map_kind(
        "retention",
        "efficient attention",
        "Products of queries and keys that decay with the distance backwards, rows divided by their sum.",
        _retention,
        ref=Ref(key=_SUN, where="Section 2.1", differs="without rotation; divided by the sum itself"),
    ),
    map_kind(
        "retention-unnormalised",
        "efficient attention",
        "Products of queries and keys that decay with the distance backwards.",
        _retention_unnormalised,
        ref=Ref(key=_SUN, where="Section 2.1", differs="without rotation"),
    ),
    map_kind(
        "gated-linear",
        "efficient attention",
        "Linear attention whose state is multiplied, channel by channel, by gates that depend on the token.",
        _gated_linear,
        ref=Ref(
            key="Yang et al. Gated linear attention transformers. ICML 2024, arXiv:2312.06635",
            where="Section 4",
        ),
    ),
    map_kind(
        "delta-rule",
        "efficient attention",
        "Linear attention whose state is corrected towards the value of every key instead of added to.",
        _delta_rule,
        ref=Ref(
            key="Schlag, Irie, Schmidhuber. Linear transformers are secretly fast weight programmers. ICML 2021, "
            "arXiv:2102.11174",
            where="delta rule",
            differs="keys and queries have unit length",
        ),
    ),
):
    register(_kind)
