"""Bounds of Dong, Cordonnier and Loukas (2021) as printed, with what is known of their truth, and the repaired one.

All speak of the composite residual ``rho``, the root of the largest column sum times the largest row sum of |R|, with R
the tokens without their mean. One layer is ``rho' <= K rho^3``, so ``rho_L <= K^((3^L - 1) / 2) rho_0^(3^L)``.

What is proven (Theorem B). With ``E = scale R W_QK R^T``, ``q`` the softmax of the logits that all queries share,
``delta`` the oscillation of the rows of E, ``t = |scale W_QK|_1`` and ``g(x) = (e^x - 1) / x``:
``|P - 1 q|_inf <= t rho^2`` and ``|P - 1 q|_1 <= q_max (g(delta) + g(2 delta)) t rho^2``; both factors of the composite
add over heads, each by itself, and centering by the mean costs ``2 - 2/n``:

``K = (2 - 2/n) sqrt( sum_h t_h q_h (g(delta_h) + g(2 delta_h)) |W_h|_1  *  sum_h t_h |W_h|_inf )``.

A printed bound with constant ``4 gamma beta H`` is therefore true wherever ``gamma`` is at least K over ``4 beta H``:
that number is computed, and is the condition by which the bound stands or falls here.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.facts import Facts, LayerFacts
from rankscope.bounds.facts_attention import AttentionFacts
from rankscope.bounds.sizes import LOG_MARGIN
from rankscope.bounds.theorems.recursions import Log, cubed

LOGIT_LIMIT = 1.2564312086261697
"""Positive root of ``e^x = 1 + 2 x``: rows of E may oscillate by so much in the proof of the printed bounds."""

Constants = Callable[[Facts], Tensor]
"""Logarithms of the constants ``K`` of all layers, ``layers *batch``."""


def proven_constants(facts: Facts) -> Tensor:
    """Logs of the constants of Theorem B, MLPs after the attention included, ``layers *batch``."""
    return _by_layer(facts, lambda part, tokens: _proven(part, tokens, both=False))


def proven_constants_of_both(facts: Facts) -> Tensor:
    """The same with the larger of the two factors in place of their geometric mean, as a skip needs it."""
    return _by_layer(facts, lambda part, tokens: _proven(part, tokens, both=True))


def printed_constant(facts: Facts, norm: str = "composite") -> Tensor:
    """Log of ``4 beta H`` with the largest ``beta H`` (times the MLP's Lipschitz factor) of all layers, ``*batch``."""

    def printed(part: AttentionFacts, tokens: Tensor) -> Tensor:
        beta = part.beta_with(norm)
        if beta is None:
            return torch.full_like(tokens, torch.inf, dtype=torch.float64)
        return (4 * part.heads * beta).log()

    found = _by_layer(facts, printed)
    return found.amax(dim=0) if len(found) else torch.full_like(facts.start.composite, -torch.inf)


def _by_layer(facts: Facts, constant: Callable[[AttentionFacts, Tensor], Tensor]) -> Tensor:
    found = []
    for number, layer in enumerate(facts.layers, start=1):
        part = facts.attention(number)
        if part is None:
            found.append(torch.full_like(facts.start.composite, torch.inf))
        else:
            found.append((constant(part, facts.tokens) + _mlp(layer)).expand(facts.batch))
    return torch.stack(found) if found else facts.start.composite.new_zeros(0, *facts.batch)


def _mlp(layer: LayerFacts) -> Tensor:
    """Log of the Lipschitz factors of the block's MLPs in the composite norm."""
    return sum((mlp.composite for mlp in layer.mlps), start=torch.zeros((), dtype=torch.float64))


def _proven(part: AttentionFacts, tokens: Tensor, *, both: bool) -> Tensor:
    if part.query_key is None or part.oscillation is None or part.most_shared is None:
        return torch.full_like(tokens, torch.inf, dtype=torch.float64)
    log_t = part.query_key["l1"].log()
    delta = part.oscillation
    growth = part.most_shared.log() + torch.logaddexp(_log_g(delta), _log_g(2 * delta))
    columns = torch.logsumexp(log_t + growth + part.value["l1"].log(), dim=-1)
    rows = torch.logsumexp(log_t + part.value["linf"].log(), dim=-1)
    factor = torch.maximum(columns, rows) if both else (columns + rows) / 2
    factor = torch.where((columns == -torch.inf) | (rows == -torch.inf), -torch.inf, factor)
    return factor + torch.log(2 - 2 / tokens.double()) + LOG_MARGIN


def _log_g(delta: Tensor) -> Tensor:
    """``log((e^x - 1) / x)`` for ``x >= 0``, also where e^x is beyond all floats."""
    safe = torch.where(delta > 0, delta, 1.0)
    return torch.where(delta > 0, safe + torch.log(-torch.expm1(-safe)) - safe.log(), 0.0)


def needed_gamma(facts: Facts, *, norm: str = "composite", constants: Constants = proven_constants) -> Tensor:
    """The smallest gamma for which the printed bound is proven on this input, ``*batch``."""
    if not facts.layers:
        return torch.zeros_like(facts.start.composite)
    most, printed = constants(facts).amax(dim=0), printed_constant(facts, norm)
    return torch.where(most == -torch.inf, 0.0, (most - printed).exp())


def logits_below_limit(facts: Facts) -> Assumption:
    """That no row of E oscillates by more than the limit, in any head of any layer."""
    largest = torch.zeros_like(facts.start.composite)
    for number in range(1, len(facts.layers) + 1):
        part = facts.attention(number)
        if part is not None and part.oscillation is not None:
            largest = torch.maximum(largest, part.oscillation.amax(dim=-1))
    return Assumption.at_most(
        "logits below 1.256",
        largest,
        LOGIT_LIMIT,
        says="what is left of the logits without their mean may differ by 1.256431 within a row; gamma = 1 is "
        "justified by this condition only. Smaller weights or tokens closer together would make it hold",
    )


def gamma_suffices(facts: Facts, gamma: float, needed: Tensor) -> Assumption:
    """That ``gamma`` is at least the value for which the bound is proven on this input."""
    return Assumption.at_most(
        "gamma large enough",
        needed,
        gamma,
        says=f"the printed bound is proven with a gamma of at least this number; it was evaluated with {gamma:g}",
    )


def cubic_logs(facts: Facts, log_constants: Tensor) -> Tensor:
    """Logs of ``rho_{l+1} = K_l rho_l^3`` from the starting residual, ``layers+1 *batch``."""
    found = [Log.of(facts.start.composite)]
    for log_constant in log_constants:
        found.append(cubed(found[-1], log_constant))
    return torch.stack([log.high for log in found])


def skip_logs(facts: Facts, gamma: float) -> Tensor:
    """``max_l (8 gamma beta H)^((3^l - 1)/2) (2H)^(3^l (L - l)) rho_0^(3^l)`` for every number of layers L, as logs.

    The last factor goes inside: ``((2H)^(L-l) rho_0)``, cubed l times.
    """
    log_constant = printed_constant(facts) + math.log(2 * gamma)
    heads = max((part.heads for layer in facts.layers for part in layer.attentions), default=1)
    depth = len(facts.layers)
    found = [torch.full_like(facts.start.composite, -torch.inf)] * (depth + 1)
    for doublings in range(depth + 1):
        log = Log.of(facts.start.composite + doublings * math.log(2 * heads))
        for layers in range(doublings, depth + 1):
            found[layers] = torch.maximum(found[layers], log.high)
            log = cubed(log, log_constant)
    return torch.stack(found)


def above_critical(facts: Facts, log_constant: Tensor) -> Tensor:
    """Whether ``K rho_0^2 >= 1``: then the bound grows with depth and says nothing."""
    return torch.ge(log_constant + 2 * facts.start.composite, 0.0)
