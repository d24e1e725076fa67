"""Claims about the bound for one head: its proof, where it holds, and where it does not."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rankscope.bounds.facts import Facts, facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.bounds.theorems.recursions import Log, cubed
from rankscope.errors import NumericalError
from rankscope.measures import diameter, matrix_norm, residual, residual_bracket, residual_norm
from rankscope.network import Attention, Context, Network, Softmax, Values
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    above,
    at_most,
    claim,
    dong,
    holds_if,
    is_false,
)
from rankscope.papers.claims.draws import gaussian, largest, softmax_attention, source
from rankscope.split import log_residual, split_states

OSCILLATION = 1.2564
"""Where ``e^x <= 1 + 2x`` ends, rounded down."""


def dong_log_bound(log_base: Tensor | float, log_start: Tensor, layers: int) -> Tensor:
    """``log(K^((3^L - 1)/2) rho^(3^L))``: what ``rho' <= K rho^3`` leaves after L layers."""
    log, base = Log.of(log_start), torch.as_tensor(log_base, dtype=torch.float64)
    for _ in range(layers):
        log = cubed(log, base)
    return log.high


@claim(
    "softmax-sandwich",
    title="softmax of nearly equal rows is nearly a common row",
    statement="With A = E + 1 r, q = softmax(r) and delta_i = max_j E_ij - min_j E_ij <= 1.256, entrywise "
    "(1 - delta_i) q_j <= softmax(A)_ij <= (1 + 2 delta_i) q_j.",
    expected="holds under an assumption",
    source=dong("appendix, lemma on softmax"),
)
def sandwich(seed: int) -> ClaimOutcome:
    generator, low, high = source(seed), torch.inf, 0.0
    for n in (2, 4, 9):
        e = gaussian(generator, 2000, n, n)
        wanted = OSCILLATION * torch.rand(2000, 1, 1, generator=generator, dtype=torch.float64)
        e = e * wanted / _oscillation(e).amax(dim=-1)[..., None, None]
        quotient, delta = _over_common(e, gaussian(generator, 2000, 1, n) * 4)
        low = min(low, float((quotient / (1 - delta).clamp(min=0)).min()))
        high = max(high, largest(quotient / (1 + 2 * delta)))
    far, delta = _over_common(torch.tensor([[1.3, 0.0]]).double(), torch.tensor([[-12.0, 0.0]]).double())
    return holds_if(
        "delta_i <= 1.256, the solution of e^x = 1 + 2x. At delta = 1.3 the upper side fails: E = (1.3, 0), r "
        "= (-12, 0).",
        at_most("largest P_ij over its upper bound, 6000 random draws", high),
        at_most("largest lower bound over P_ij", 1 / low),
        beyond=[above("P_ij over its upper bound at delta = 1.3", largest(far / (1 + 2 * delta)), 1.0)],
    )


def _oscillation(e: Tensor) -> Tensor:
    return e.amax(dim=-1) - e.amin(dim=-1)


def _over_common(e: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """``softmax(E + 1 r)_ij / softmax(r)_j`` and ``delta_i``."""
    return torch.softmax(e + r, dim=-1) / torch.softmax(r, dim=-1), _oscillation(e).unsqueeze(-1)


@claim(
    "proof-step",
    title="the step that follows in the proof",
    statement="From the sandwich of P: |res(P X)| <= 2 |D 1 q R| with D = diag(delta) and R = res(X).",
    expected="false",
    source=dong("appendix, proof of Theorem 2.2", differs="as quoted by public notes on version 2"),
)
def proof_step() -> ClaimOutcome:
    r = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    e = 0.3 * r @ r.mT
    left = float(residual_norm(torch.softmax(e, dim=-1) @ r, norm="composite", center="mean"))
    common = torch.full((1, 2), 0.5, dtype=torch.float64)  # softmax of r = 0
    right = 2 * float(matrix_norm(_oscillation(e).unsqueeze(-1) * (common @ r), norm="composite"))
    return is_false(
        "R = (1, -1), E = 0.3 R R^T, r = 0: q = (1/2, 1/2) and q R = 0, but P R = (0.2913, -0.2913). A bound on every "
        "entry of P cannot be multiplied by a matrix whose entries change sign.",
        above("left side, against the right side", left, right),
        details=[("P R", float((torch.softmax(e, dim=-1) @ r)[0, 0]))],
    )


@claim(
    "one-head-bound",
    title="the cubic bound for one head, logits below 1.256",
    statement="Single head, |W_QK|_1 |W_V|_{1,inf} <= beta in every layer and max_i osc_j(E_ij) <= 1.256 in "
    "every layer: |res(SAN(X))|_{1,inf} <= (4 gamma beta / sqrt(d_qk))^((3^L - 1)/2) |res(X)|_{1,inf}^(3^L) "
    "with gamma = 1.",
    expected="holds under an assumption",
    source=dong("Theorem 2.2"),
)
def one_head(seed: int) -> ClaimOutcome:
    generator, worst, used = source(seed), -torch.inf, 0
    for n, d in ((2, 1), (3, 2), (6, 4)):
        network, x = _draw_networks(generator, n, d, draws=800, layers=3)
        facts = facts_of(network, x, brackets=False)
        low = torch.log(residual_norm(x, norm="l1", center="median") * diameter(x, norm="l1") / 2) / 2
        right = THEOREMS["dong-2.2"].log_bound(replace(facts, start=replace(facts.start, composite=low)))
        fits = torch.ones(800, dtype=torch.bool)
        for layer, state in enumerate(split_states(network, x)[1:], start=1):
            fits &= _oscillations(facts)[layer - 1] <= OSCILLATION
            excess = log_residual(state, norm="composite", center="mean") - right[layer]
            worst, used = max(worst, largest(excess[fits])), used + int(fits.sum())
    return holds_if(
        "Logits that differ by at most 1.256 within a row once the part common to all rows is taken off. "
        "Random networks of 1 to 3 layers, followed by the split pass. The right side takes "
        "sqrt(r_1 diam_1 / 2), which is below the residual it speaks of.",
        at_most("largest quotient of the two sides", math.exp(worst)),
        details=[("networks looked at", used)],
    )


def _oscillations(facts: Facts) -> Tensor:
    """The largest oscillation of a row of logits without what all rows share, ``layers draws``."""
    found = [part.oscillation for layer in facts.layers for part in layer.attentions]
    return torch.stack([one.amax(dim=-1) for one in found if one is not None])


def _draw_networks(
    generator: torch.Generator, n: int, d: int, *, draws: int, layers: int
) -> tuple[Network, Tensor]:
    """Random networks of one head with biases, and tokens whose first logits differ by between 0.001 and 1.256."""
    network = Network(
        [softmax_attention(generator, d, draws=(draws,), with_biases=True) for _ in range(layers)]
    )
    x = gaussian(generator, draws, n, d)
    wanted = OSCILLATION * 10 ** (-3 * torch.rand(draws, generator=generator, dtype=torch.float64))
    shrink = (0.999 * wanted / _oscillations(facts_of(network, x, brackets=False))[0]).sqrt()
    common = gaussian(generator, draws, 1, d)
    return network, residual(x, center="mean") * shrink[..., None, None] + common


@claim(
    "one-head-bound-any-logits",
    title="the cubic bound for one head, any logits",
    statement="The bound of Theorem 2.2 with gamma = 1 and no condition on the logits: one layer, "
    "|res(SAN(X))|_{1,inf} <= 4 |W_QK|_1 |W_V|_{1,inf} / sqrt(d_qk) |res(X)|_{1,inf}^3.",
    expected="false",
    source=dong("Theorem 2.2"),
)
def one_head_any_logits() -> ClaimOutcome:
    exact, closed = _family_by_softmax(400), family_ratio(400)
    large = family_ratio(8000)
    return is_false(
        "n = 2 m + 1 tokens: one sink with feature 0, m unit vectors e_1 .. e_m, m zero tokens. The query "
        "bias gives the sink the logit log(2 m s), W_QK = log(2 m u) diag(0, 1, .., 1) / its scale, W_V = I, "
        "s = 5, u = 50. Each unit token keeps a part of itself, and a column of residuals adds up over m "
        "tokens; |res(X)| = 1.",
        above("left over right side at n = 16001, from below", large, 1.0),
        at_most(
            "distance of the closed form from a softmax network at n = 801, relative",
            abs(exact / closed - 1),
            1e-2,
        ),
        details=[
            ("the same at n = 801", closed),
            ("n = 801, softmax network, lower end", exact),
            ("n = 8001", family_ratio(4000)),
            ("n = 200001", family_ratio(100_000)),
        ],
    )


S, U = 5.0, 50.0


def family_ratio(m: int, s: float = S, u: float = U) -> float:
    """A lower bound of left over right side for the family, from ``r_{1,inf} >= sqrt(r_1 r_inf)``, in closed form.

    Output of a unit token: ``s/z`` in feature 0, ``p = u/z`` in its own, ``e = 1/(2 m z)`` in the others, with
    ``z = s + u + 1 - 1/(2m)``; of the sink and the zero tokens ``s/y`` and ``f = 1/(2 m y)`` with ``y = s + 1``.
    """
    z, y = s + u + 1 - 1 / (2 * m), s + 1
    own, other, shared = u / z, 1 / (2 * m * z), 1 / (2 * m * y)
    sink, common = s / z, s / y
    # medians: m unit tokens against m + 1 others in feature 0, one against the rest in every other feature
    column = max(m * (common - sink), own - shared + (m - 1) * (shared - other))
    return math.sqrt(column * _row_radius(m, (sink, own, other), (common, shared))) / (
        4 * math.log(2 * m * u)
    )


def _row_radius(m: int, unit: tuple[float, float, float], rest: tuple[float, float]) -> float:
    """``r_inf`` of the output; by symmetry the best row is ``(c_0, c, .., c)``: a linear program in c_0, c, radius."""
    (sink, own, other), (common, shared) = unit, rest
    rows, bounds = [], []
    for one in (1.0, -1.0):
        for two in (1.0, -1.0):
            rows.append([one, two * m, -1.0])  # |c_0 - common| + m |c - shared| <= radius
            bounds.append(one * common + two * m * shared)
            for three in (1.0, -1.0):
                rows.append([one, two + three * (m - 1), -1.0])
                bounds.append(one * sink + two * own + three * (m - 1) * other)
    from scipy.optimize import linprog  # here, not above: it is slow to import

    scaled = np.array(rows) / np.array([1.0, m, 1.0])  # the unknown is m c
    solved = linprog([0.0, 0.0, 1.0], A_ub=scaled, b_ub=bounds, bounds=[(None, None)] * 3)
    if solved.fun is None:
        raise NumericalError(f"the linear program for the best row has no solution: {solved.message}")
    return float(solved.fun)


def _family_by_softmax(m: int, s: float = S, u: float = U) -> float:
    """The same lower bound from the library's own attention on 2 m + 1 tokens."""
    dim = m + 1
    eye, gain = torch.eye(dim, dtype=torch.float64), math.log(2 * m * u) * math.sqrt(dim)
    query = gain * eye
    query[0, 0] = 0.0
    bias = torch.zeros(dim, dtype=torch.float64)
    bias[0] = math.log(2 * m * s) * math.sqrt(dim)
    part = Attention(Softmax(query, eye, heads=1, query_bias=bias), Values(eye, eye, heads=1))
    x = torch.cat([eye, torch.zeros(m, dim, dtype=torch.float64)])
    y = part(x, Context())
    low = residual_norm(y, norm="l1", center="median") * residual_bracket(y, norm="linf").low
    right = 4 * gain / math.sqrt(dim) * residual_bracket(x, norm="composite").high ** 3
    return float(low.sqrt() / right)
