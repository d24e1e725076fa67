"""Claims about one map: by how much averaging shrinks the residual in which norm."""

import torch
from torch import Tensor

from rankscope.bounds.theorems.quotient import (
    logit_oscillation,
    map_coefficient,
    sharp_ratio,
    value_coefficient,
    variation_bound,
)
from rankscope.measures import Bracket, diameter, dobrushin, find_measure, residual_bracket
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    above,
    at_most,
    claim,
    equals,
    holds,
    is_false,
    rounding,
)
from rankscope.papers.claims.draws import gaussian, largest, quotient, random_maps, source

RESIDUALS = (
    "residual[l1,median]",
    "residual[linf,best]",
    "residual[composite,best]",
    "residual[frobenius,mean]",
    "residual[spectral,mean]",
)

SPREADS = ("diameter[l1]", "diameter[l2]", "diameter[linf]", "residual[max,midrange]")

SHAPES = ((2, 1), (3, 2), (5, 5), (8, 3))


@claim(
    "quotient-lemma",
    title="a map shrinks the residual by its own residual",
    statement="If the rows of P sum to one then r(P X W + 1 b) <= r(P) |W| r(X) in the norms 1, inf, {1,inf}, "
    "Frobenius (with |J P|_2 and |W|_2) and spectral: biases do not matter, and only the part of P that "
    "differs between rows does.",
    expected="holds",
)
def quotient_lemma(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), dict.fromkeys(RESIDUALS, 0.0)
    for n, d in SHAPES:
        for quantity in RESIDUALS:
            draws = 4 if "best" in quantity else 1000
            p, x = random_maps(generator, draws, n), gaussian(generator, draws, n, d)
            w, b = gaussian(generator, draws, d, d), gaussian(generator, draws, 1, d)
            found = largest(_shrunk(quantity, p, x, w, b))
            worst[quantity] = max(worst[quantity], found)
    return holds(
        "Random maps from nearly uniform to nearly deterministic, Gaussian tokens, values and biases, four shapes.",
        at_most("largest quotient of the two sides over all norms", max(worst.values())),
        details=[(f"largest quotient, {quantity}", value) for quantity, value in worst.items()],
    )


def _shrunk(quantity: str, p: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """``q(P X W + 1 b) / (k(P) |W| q(X))``; of brackets the ends that make it smallest."""
    y, measure = p @ x @ w + b, find_measure(quantity)
    after, before = measure(y), measure(x)
    low = after.low if isinstance(after, Bracket) else after
    high = before.high if isinstance(before, Bracket) else before
    right = map_coefficient(p, quantity) * value_coefficient(w, quantity) * high
    return quotient(low, right, y.abs().sum(dim=(-2, -1)))


@claim(
    "dobrushin-diameter",
    title="the Dobrushin coefficient contracts diameters",
    statement="diam(P X W) <= tau(P) |W| diam(X) for the diameters in l1, l2 and linf (with |W|_inf, |W|_2, |W|_1) and "
    "for r_max, with tau(P) = max_ij |P_i - P_j|_1 / 2 and the constant 1, which is attained.",
    expected="holds",
)
def dobrushin_diameter(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), 0.0
    for n, d in SHAPES:
        p, x = random_maps(generator, 1000, n), gaussian(generator, 1000, n, d)
        w, b = gaussian(generator, 1000, d, d), gaussian(generator, 1000, 1, d)
        for quantity in SPREADS:
            worst = max(worst, largest(_shrunk(quantity, p, x, w, b)))
    return holds(
        "4000 random maps, tokens and value maps; attained by one column that is +1 or -1 by the sign of the "
        "difference of two rows.",
        at_most("largest quotient of the two sides", worst),
        equals("quotient for the column of signs", _of_signs(random_maps(generator, 1, 6)[0]), 1.0),
    )


def _of_signs(p: Tensor) -> float:
    """The quotient for the one column on which the two rows that differ most differ most."""
    far = torch.cdist(p, p, p=1.0)
    one, two = divmod(int(far.argmax()), p.shape[-1])
    x = torch.sign(p[one] - p[two]).unsqueeze(-1)
    return float(diameter(p @ x, norm="l2") / (dobrushin(p) * diameter(x, norm="l2")))


@claim(
    "dobrushin-linf",
    title="the Dobrushin coefficient contracts the linf residual",
    statement="r_inf(P X) <= tau(P) r_inf(X), with r_inf the residual in the largest row sum.",
    expected="false",
)
def dobrushin_linf() -> ClaimOutcome:
    eye = torch.eye(3, dtype=torch.float64)
    x = 3 * torch.cat([eye, -eye])
    signs = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    p = torch.cat([(signs > 0), (signs < 0)], dim=1).double() / 3
    p = torch.cat([p, p[:2]])  # as many queries as keys
    before, after = (residual_bracket(matrix, norm="linf", tolerance=1e-6) for matrix in (x, p @ x))
    ratio = float(after.low / (dobrushin(p) * before.high))
    return is_false(
        "Six tokens 3 e_k and -3 e_k in three dimensions; rows of P uniform on the three of signs +++, +--, -+-, --+ "
        "(the first two rows twice). tau = 2/3, and both residuals are 3.",
        above("r_inf(P X) / (tau r_inf(X)), certified from below", ratio, 1.0),
        details=[
            ("tau", float(dobrushin(p))),
            (
                "sharp constant 2 (1 - 1/min(n, d + 1)) in three dimensions",
                sharp_ratio("residual[linf,best]", 6, 3),
            ),
        ],
    )


def _two_columns(n: int, t: float) -> Tensor:
    """Half of the rows lean by t to the first key, half to the second; no other key is read."""
    p = torch.zeros(n, n, dtype=torch.float64)
    p[: n // 2, 0] = p[n // 2 :, 1] = (1 + t) / 2
    p[: n // 2, 1] = p[n // 2 :, 0] = (1 - t) / 2
    return p


def _stretch(norm: str, n: int = 8, t: float = 0.25) -> tuple[float, float]:
    """``r(P X) / (tau r(X))`` for tokens 1, -1, 0, ..., 0, and tau."""
    p, x = _two_columns(n, t), torch.zeros(n, 1, dtype=torch.float64)
    x[0], x[1] = 1.0, -1.0
    after, before = (residual_bracket(matrix, norm=norm).low for matrix in (p @ x, x))
    return float(after / (dobrushin(p) * before)), float(dobrushin(p))


@claim(
    "dobrushin-l1",
    title="the Dobrushin coefficient contracts the l1 residual",
    statement="r_1(P X) <= tau(P) r_1(X), with r_1 the residual in the largest column sum.",
    expected="false",
)
def dobrushin_l1() -> ClaimOutcome:
    ratio, tau = _stretch("l1")
    return is_false(
        "Eight tokens 1, -1, 0, ..., 0; half of the rows of P are (5/8, 3/8, 0, ...), half (3/8, 5/8, 0, ...): four "
        "times tau, the sharp constant floor(n/2).",
        above("r_1(P X) / (tau r_1(X))", ratio, 1.0),
        details=[("tau", tau), ("sharp constant floor(n/2)", sharp_ratio("residual[l1,median]", 8, 1))],
    )


@claim(
    "dobrushin-frobenius",
    title="the Dobrushin coefficient contracts the Frobenius residual",
    statement="r_F(P X) <= tau(P) r_F(X).",
    expected="false",
)
def dobrushin_frobenius() -> ClaimOutcome:
    ratio, tau = _stretch("frobenius")
    return is_false(
        "Eight tokens 1, -1, 0, ..., 0; half of the rows of P are (5/8, 3/8, 0, ...), half (3/8, 5/8, 0, ...): twice "
        "tau, the sharp constant sqrt(2 floor(n/2) ceil(n/2) / n).",
        above("r_F(P X) / (tau r_F(X))", ratio, 1.0),
        details=[
            ("tau", tau),
            (
                "sharp constant sqrt(2 floor(n/2) ceil(n/2) / n)",
                sharp_ratio("residual[frobenius,mean]", 8, 1),
            ),
        ],
    )


@claim(
    "tanh-bound",
    title="close logits make close rows",
    statement="If all rows of softmax(A) have the same support, tau <= tanh(Delta / 4) with "
    "Delta = max_ij osc_k(A_ik - A_jk); with two tokens this is an equality where the rows are opposite.",
    expected="holds",
)
def tanh_bound(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), 0.0
    for n in (2, 3, 6, 10):
        for scale in (1e-3, 0.1, 1.0, 10.0):
            logits = gaussian(generator, 250, n, n) * scale + gaussian(generator, 250, 1, n) * 3
            worst = max(worst, largest(quotient(dobrushin(torch.softmax(logits, dim=-1)), _tanh(logits))))
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64) * 0.35
    equal = float(dobrushin(torch.softmax(opposite, dim=-1)) / _tanh(opposite))
    return holds(
        "4000 random logits of four scales on 2 to 10 tokens; two tokens with logits 0.35 and -0.35.",
        at_most("largest tau / tanh(Delta / 4)", worst),
        rounding("how far the two tokens are from equality", abs(equal - 1)),
    )


def _tanh(logits: Tensor) -> Tensor:
    """``tanh(Delta / 4)``."""
    return variation_bound(logit_oscillation(logits))
