"""Claims about the bound for several heads, about when it shrinks, and about its constant."""

import math

import torch
from torch import Tensor

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS, Theorem
from rankscope.measures import matrix_norm, residual_norm
from rankscope.network import Attention, Network, Skip, Softmax, Values
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    above,
    at_most,
    claim,
    dong,
    holds,
    is_false,
    not_checkable,
    rounding,
)
from rankscope.papers.claims.single_head import dong_log_bound, family_ratio
from rankscope.split import log_residual, split_states


def _two_heads(dim: int, logit: float) -> Attention:
    """Two heads of width one: ``W_QK = k e_1 e_1^T`` in both, ``W_1 = D^(-1/2) e_1 1^T``, ``W_2 = e_1 e_1^T``.

    Kept as factors, so that a million dimensions take a few million numbers.
    """
    first = torch.zeros(dim, 1, dtype=torch.float64)
    first[0] = 1.0
    out = torch.cat([torch.full((1, dim), dim**-0.5, dtype=torch.float64), first.mT])
    both = first.expand(dim, 2)
    mixer = Softmax(logit**0.5 * both, logit**0.5 * both, heads=2)
    return Attention(mixer, Values(both.clone(), out, heads=2))


def _value_sizes(part: Attention) -> Tensor:
    """``|W_h|_{1,inf}`` of every head from its two factors: columns and rows of ``v o`` add up to products."""
    values, outs = part.values.head_values().abs(), part.values.head_outs().abs()
    columns = values.sum(dim=-2) * outs.amax(dim=-1)
    rows = values.amax(dim=-2) * outs.sum(dim=-1)
    return (columns * rows).sqrt().squeeze(-1)


def _two_tokens(dim: int) -> Tensor:
    x = torch.zeros(2, dim, dtype=torch.float64)
    x[0, 0], x[1, 0] = 0.5, -0.5
    return x


def _several_heads_ratio(dim: int, logit: float = 1e-3) -> float:
    """Left over right side of the bound for two heads; with two tokens the mean is the best row in both norms."""
    part, x = _two_heads(dim, logit), _two_tokens(dim)
    left = log_residual(split_states(Network([part]), x)[1], norm="composite", center="mean")
    base = 4 * logit * float(_value_sizes(part).max()) * 2  # |W_QK|_1 = k, d_qk = 1, H = 2
    start = residual_norm(x, norm="composite", center="mean").log()
    return float((left - dong_log_bound(math.log(base), start, 1)).exp())


@claim(
    "several-heads-bound",
    title="with several heads, the residual norm after attention is at most the printed constant times the cube of "
    "that before",
    statement="H heads, |W_QK,h|_1 |W_h|_{1,inf} <= beta: |res(SAN(X))|_{1,inf} <= "
    "(4 gamma beta H / sqrt(d_qk))^((3^L - 1)/2) |res(X)|_{1,inf}^(3^L) with gamma = 1, for any logits however small.",
    expected="false",
    source=dong("Theorem 2.3"),
)
def several_heads() -> ClaimOutcome:
    part, x = _two_heads(256, 1e-3), _two_tokens(256)
    off = _excess(Network([part]), x, THEOREMS["dong-2.3"]) / _several_heads_ratio(256) - 1
    return is_false(
        "Two tokens +-e_1/2 in D dimensions, two heads, W_QK = 0.001 e_1 e_1^T, W_1 = D^(-1/2) e_1 1^T, W_2 = "
        "e_1 e_1^T, so that |W_h|_{1,inf} = 1: one head has a long row, the other a large entry, and the "
        "composite norm of their sum is not the sum. The quotient grows like D^(1/4) / 16.",
        above("left over right side, one layer, D = 10^6", _several_heads_ratio(10**6), 1.0),
        rounding(
            "distance from the bound of the library at D = 256, whose norms are rounded up", abs(off), 1e-7
        ),
        details=[("D = 65536", _several_heads_ratio(65536)), ("D = 10000", _several_heads_ratio(10_000))],
    )


@claim(
    "composite-over-heads",
    title="composite bounds of heads may be added",
    statement="r_{1,inf}(sum_h P_h X W_h) <= sum_h r_{1,inf}(P_h) |W_h|_{1,inf} r_{1,inf}(X).",
    expected="false",
    source=dong("appendix, proof of Theorem 2.3"),
)
def composite_over_heads() -> ClaimOutcome:
    part, x = _two_heads(256, 1e-3), _two_tokens(256)
    trace = Network([part]).trace(x, maps=True)
    maps = residual_norm(trace.maps[1, "attention"], norm="composite", center="mean")
    left = residual_norm(trace.states[1], norm="composite", center="mean")
    right = (maps * _value_sizes(part)).sum() * residual_norm(x, norm="composite", center="mean")
    return is_false(
        "The two heads of the bound for several heads, 256 dimensions. It is true of l1 and linf each by itself: "
        "sqrt of (sum_h a_h)(sum_h b_h) with the two norms of every head, the same row subtracted in both.",
        above("left over right side", float(left / right), 1.0),
        details=[
            ("|W_h|_{1,inf}", f"{float(_value_sizes(part)[0]):.6g}, {float(_value_sizes(part)[1]):.6g}")
        ],
    )


@claim(
    "one-head-bound-row-sums",
    title="the bound for one head with row sums of the value map",
    statement="Theorem 2.2 with |W_V|_inf in place of |W_V|_{1,inf}, as some notes have it, gamma = 1 and logits as "
    "small as one likes.",
    expected="false",
    source=dong("Theorem 2.2", differs="not the authors' text"),
)
def row_sums() -> ClaimOutcome:
    dim, theorem = 256, THEOREMS["dong-2.2-winf"]
    ones, first = torch.ones(dim, 1, dtype=torch.float64), torch.zeros(1, dim, dtype=torch.float64)
    first[0, 0] = 1.0
    small = 1e-3 / dim
    mixer = Softmax(small * torch.eye(dim, dtype=torch.float64), torch.eye(dim).double(), heads=1, scale=1.0)
    network = Network([Attention(mixer, Values(ones, first, heads=1))])
    x = torch.stack([ones[:, 0] / 2, -ones[:, 0] / 2])
    return is_false(
        "Two tokens +-(1, .., 1)/2 in 256 dimensions, W_QK a small multiple of the identity, W_V adds all channels "
        "into the first one: |W_V|_inf = 1, |W_V|_1 = 256. The quotient is sqrt(d) / 8.",
        above("left over right side, one layer", _excess(network, x, theorem), 1.0),
    )


@claim(
    "skip-upper-bound",
    title="the upper bound with skips, as reported",
    statement="As reported: with skips, |res(X_L)|_{1,inf} <= max_l (8 gamma beta H / sqrt(d_qk))^((3^l - 1)/2) "
    "(2 H)^(3^l (L - l)) |res(X)|_{1,inf}^(3^l) with gamma = 1, for logits as small as one likes.",
    expected="false",
    source=dong("appendix, skip connections", differs="as reported, not checked against the authors' text"),
)
def skip_upper() -> ClaimOutcome:
    dim, theorem = 1024, THEOREMS["dong-skip"]
    first = torch.zeros(dim, 1, dtype=torch.float64)
    first[0] = 1.0
    mixer = Softmax(1e-3 * first, first, heads=1, scale=1.0)
    out = torch.full((1, dim), 500 * dim**-0.5, dtype=torch.float64)
    network = Network([Skip(Attention(mixer, Values(first, out, heads=1)))])
    return is_false(
        "Two tokens +-e_1/2 in 1024 dimensions, W_QK = 0.001 e_1 e_1^T, one head that spreads the first channel over "
        "all of them, W_V = 500 D^(-1/2) e_1 1^T. The quotient is sqrt(1 + sqrt(D) / 8) / 2.",
        above("left over right side, one layer", _excess(network, _two_tokens(dim), theorem), 1.0),
    )


def _excess(network: Network, x: Tensor, theorem: Theorem) -> float:
    """What the last layer has over what the theorem allows it."""
    bound = theorem.log_bound(facts_of(network, x, brackets=False))[-1]
    return float((log_residual(split_states(network, x)[-1], norm="composite", center="mean") - bound).exp())


@claim(
    "gamma-of-version-2",
    title="the bounds with the factor gamma of the second version",
    statement="Theorems 2.2 and 2.3 with the base 4 gamma beta H / sqrt(d_qk), where gamma depends on the "
    "attention maps.",
    expected="not checkable",
    source=dong("Theorems 2.2 and 2.3, second arXiv version"),
)
def gamma_of_version_2() -> ClaimOutcome:
    needed = {2 * m + 1: family_ratio(m) for m in (400, 8000, 100_000)}
    return not_checkable(
        "The formula of gamma is not known to us; gamma is a parameter wherever the bound is computed. "
        "Whatever it is, it must be above the quotient of the two sides with gamma = 1, which grows with the "
        "number of tokens.",
        above(
            "least gamma that 200001 tokens need over what 16001 need", needed[200_001] / needed[16_001], 1.0
        ),
        details=[(f"least gamma at {tokens} tokens", value) for tokens, value in needed.items()],
    )


@claim(
    "right-side-shrinks",
    title="when the cubic bound shrinks",
    statement="K^((3^L - 1)/2) rho^(3^L) decreases with L if and only if rho < K^(-1/2), whether K is below "
    "one or not.",
    expected="holds",
    source=dong("after Theorem 2.3"),
)
def right_side_shrinks() -> ClaimOutcome:
    log_base = torch.linspace(-5, 5, 41, dtype=torch.float64)[:, None]
    log_start = torch.linspace(-4.03, 4.03, 63, dtype=torch.float64)[None, :]
    curve = torch.stack([dong_log_bound(log_base, log_start + 0 * log_base, layer) for layer in range(6)])
    falls = (curve.diff(dim=0) < 0).all(dim=0)
    wrong = int((falls != (log_start < -log_base / 2)).sum())
    return holds(
        f"{falls.numel()} pairs of K and rho from e^-5 to e^5, 5 layers, in logarithms.",
        at_most("pairs for which it is otherwise", wrong, 0),
        details=[("pairs for which it decreases", int(falls.sum())), ("pairs", falls.numel())],
    )


@claim(
    "small-base-suffices",
    title="a base below one is enough for collapse",
    statement="If 4 gamma beta H < sqrt(d_qk) the residual tends to zero.",
    expected="false",
    source=dong("after Theorem 2.3", differs="the text adds that residuals must be small"),
)
def small_base() -> ClaimOutcome:
    eye = torch.eye(64, dtype=torch.float64)
    part = Attention(Softmax(eye, eye, heads=1), Values(eye, eye, heads=1))
    base = 4 * float(matrix_norm(eye, norm="l1") * matrix_norm(eye, norm="composite")) / 8
    x = 100 * eye
    after = residual_norm(Network([part] * 12)(x), norm="composite", center="mean")
    kept = float(after / residual_norm(x, norm="composite", center="mean"))
    return is_false(
        "X = 100 I with 64 tokens, W_QK = W_V = I, d_qk = 64: K = 0.5, but every token attends to itself alone.",
        above("residual after 12 layers over the first", kept, 0.99),
        at_most("4 beta / sqrt(d_qk)", base, 0.5),
    )
