"""Claims about skips, norms and MLPs."""

import torch
from torch import Tensor

from rankscope.bounds.facts_weights import mlp_facts
from rankscope.bounds.map_gains import map_gains, value_norms
from rankscope.bounds.map_rules import Maps
from rankscope.bounds.slopes import lipschitz
from rankscope.bounds.theorems import map_coefficient, value_coefficient
from rankscope.measures import Bracket, find_measure, matrix_norm, residual, residual_norm, residual_ratio
from rankscope.network import (
    Attention,
    Context,
    Fixed,
    LayerNorm,
    Mlp,
    Network,
    RMSNorm,
    Skip,
    Values,
)
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    ComparedNumber,
    above,
    at_most,
    claim,
    dong,
    holds,
    holds_if,
    is_false,
)
from rankscope.papers.claims.draws import gaussian, largest, quotient, random_maps, source

ACTIVATED = ("relu", "gelu", "silu", "tanh")


@claim(
    "mlp-lipschitz",
    title="an MLP enlarges the residual by at most its Lipschitz constant",
    statement="r(f(Z)) <= lambda r(Z) for every map f of single tokens, because equal tokens stay equal; for "
    "two linear maps around an activation lambda = L |W_1| |W_2| in 1, inf, max and Frobenius, and "
    "sqrt(lambda_1 lambda_inf) in {1,inf}. So the base of the cubic bound is multiplied by lambda.",
    expected="holds under an assumption",
    source=dong("Corollary 3.2"),
)
def mlp_lipschitz(seed: int) -> ClaimOutcome:
    generator, worst, n, d, width = source(seed), 0.0, 6, 4, 9
    for name in ACTIVATED:
        up, down = gaussian(generator, 300, d, width), gaussian(generator, 300, width, d)
        inner, outer = gaussian(generator, 300, width), gaussian(generator, 300, d)
        mlp = Mlp(up, down, activation=name, up_bias=inner, down_bias=outer)
        x = gaussian(generator, 300, n, d) * 2
        before, facts = residual(x, center="mean"), mlp_facts(mlp)
        row = (x - before)[..., :1, :]
        after = mlp(x, Context()) - mlp(row, Context())  # equal tokens stay equal, so this is a residual too
        factors = {"l1": facts.l1, "max": facts.l1, "linf": facts.linf, "frobenius": facts.l2}
        for norm, factor in {**factors, "composite": facts.composite}.items():
            right = factor.exp() * matrix_norm(before, norm=norm)
            worst = max(worst, largest(quotient(matrix_norm(after, norm=norm), right)))
    return holds_if(
        "lambda is taken norm by norm with the same row subtracted, since the composite norm is none: "
        "lambda_{1,inf} = sqrt(lambda_1 lambda_inf). SwiGLU has no global lambda. 1200 random MLPs with four "
        "activations.",
        at_most("largest residual behind an MLP over lambda times the one before", worst),
        details=[(f"largest slope of {name}", lipschitz(name)) for name in ACTIVATED],
    )


@claim(
    "skip-keeps-residual",
    title="with skips there are networks that never collapse",
    statement="With a skip around attention there are infinitely many parametrizations with |res(X_L)| >= |res(X)| for "
    "every depth, however small the weights: W_V = 0, or any with <J X, J F> >= 0 for what the heads add, since "
    "r_F(X + F)^2 = r_F(X)^2 + 2 <J X, J F> + r_F(F)^2.",
    expected="holds",
    source=dong("Claim 3.1"),
)
def skip_keeps(seed: int) -> ClaimOutcome:
    generator, n, d = source(seed), 8, 4
    x, eye = gaussian(generator, n, d), torch.eye(d, dtype=torch.float64)
    symmetric = torch.eye(n, dtype=torch.float64) / 2 + 1 / (2 * n)
    ratios = []
    for gain in (0.0, 1e-4, 0.01):
        part = Skip(Attention(Fixed(symmetric.unsqueeze(0)), Values(gain * eye, eye, heads=1)))
        after = residual_norm(Network([part] * 200)(x), norm="frobenius", center="mean")
        ratios.append(float(after / residual_norm(x, norm="frobenius", center="mean")))
    return holds(
        "200 layers on 8 tokens: W_V = 0, and a symmetric map (I + 1 1^T / n) / 2 with W_V = 0.0001 I and 0.01 I.",
        ComparedNumber(
            means="residual after 200 layers over the first, W_V = 0",
            value=ratios[0],
            relation=">=",
            limit=1.0,
        ),
        ComparedNumber(means="the same for W_V = 0.0001 I", value=ratios[1], relation=">=", limit=1.0),
        ComparedNumber(means="the same for W_V = 0.01 I", value=ratios[2], relation=">=", limit=1.0),
    )


@claim(
    "layernorm-plays-no-role",
    title="LayerNorm plays no role",
    statement="LayerNorm is a shift and a scaling of columns, LN(Y) = (Y - 1 b) D^-1, which cannot raise the "
    "rank of the residual or undo collapse.",
    expected="false",
    source=dong("Section 3.3"),
)
def layernorm_role() -> ClaimOutcome:
    e = 1e-3
    x = torch.tensor([[1.0, 1.0 + e], [1.0, 1.0 - e]], dtype=torch.float64)
    before, after = (
        float(residual_ratio(y, norm="frobenius", center="mean")) for y in (x, LayerNorm(None, eps=0.0)(x))
    )
    line = torch.tensor([[1.0, 0.0, -1.0, 0.0]]).double() + torch.arange(4.0).double()[
        :, None
    ] * torch.tensor([[0.0, 1.0, 0.0, -1.0]])
    ranks = [_residual_rank(y) for y in (line, LayerNorm(None, eps=0.0)(line))]
    return is_false(
        "X = [[1, 1 + e], [1, 1 - e]] with e = 0.001: LayerNorm divides every row (token) by a number of its own. Four "
        "tokens (1, k, -1, -k), k = 0 .. 3, lie on a line; behind LayerNorm they lie on an arc.",
        above("relative residual behind LayerNorm, against before it", after, 100 * before),
        above("rank of the residual of four tokens behind LayerNorm, against before it", ranks[1], ranks[0]),
        details=[("relative residual before", before), ("relative residual behind", after)],
    )


def _residual_rank(x: Tensor) -> int:
    sizes = torch.linalg.svdvals(residual(x, center="mean"))
    return int((sizes > 1e-9 * sizes[0]).sum())


@claim(
    "layernorm-lipschitz",
    title="how far apart LayerNorm can move two tokens",
    statement="|LN(x) - LN(y)| <= max|gain| |C (x - y)| / sqrt(s_x s_y) with C the centering of channels and "
    "s^2 = mean((C x)^2) + eps; RMSNorm the same without C.",
    expected="holds",
)
def layernorm_lipschitz(seed: int) -> ClaimOutcome:
    generator, worst = source(seed), 0.0
    for eps in (1e-12, 1e-5, 0.1):
        for near in (1.0, 1e-2, 1e-5):
            x = gaussian(generator, 1000, 1, 6) * gaussian(generator, 1000, 1, 1).exp()
            y = x + near * gaussian(generator, 1000, 1, 6)
            gain = gaussian(generator, 6)
            for norm in (LayerNorm(gain, eps=eps), RMSNorm(gain, eps=eps)):
                centered = isinstance(norm, LayerNorm)
                worst = max(worst, largest(_norm_quotient(norm(x), norm(y), x, y, eps, gain, centered)))
    return holds(
        "18000 random pairs of tokens, near and far, eps from 1e-12 to 0.1.",
        at_most("largest distance behind the norm over its bound", worst),
    )


def _norm_quotient(
    left: Tensor, right: Tensor, x: Tensor, y: Tensor, eps: float, gain: Tensor, centered: bool
) -> Tensor:
    x, y = (one - one.mean(dim=-1, keepdim=True) if centered else one for one in (x, y))
    sizes = [(one.square().mean(dim=-1) + eps).sqrt() for one in (x, y)]
    bound = gain.abs().max() * torch.linalg.vector_norm(x - y, dim=-1) / (sizes[0] * sizes[1]).sqrt()
    return quotient(
        torch.linalg.vector_norm(left - right, dim=-1), bound, torch.linalg.vector_norm(left, dim=-1)
    )


@claim(
    "skip-bounds",
    title="bounds of a layer with a skip, from both sides",
    statement="(1 - k) r(X) <= r(X + SA(X)) <= (1 + k) r(X) with k = sum_h |J P_h|_2 |W_h|_2 for the "
    "Frobenius residual and k = sum_h tau(P_h) |W_h|_2 for the l2 diameter; for the former also sigma_min(I + "
    "S) <= r(X + SA(X)) / r(X) <= sigma_max(I + S) with S(R) = sum_h J P_h R W_h on matrices whose columns "
    "sum to zero.",
    expected="holds",
)
def skip_bounds(seed: int) -> ClaimOutcome:
    generator, low, high, exact = source(seed), 0.0, 0.0, 0.0
    for n, d, heads in ((3, 2, 1), (4, 3, 2), (6, 2, 3)):
        p = random_maps(generator, 300, n, heads)
        w = gaussian(generator, 300, heads, d, d) * (0.3 / (heads * d**0.5))
        x = gaussian(generator, 300, n, d)
        y = x + torch.einsum("shij,sjd,shde->sie", p, x, w)
        for quantity in ("residual[frobenius,mean]", "diameter[l2]"):
            gain = (map_coefficient(p, quantity) * value_coefficient(w, quantity)).sum(dim=-1)
            ratio = _size(quantity, y) / _size(quantity, x)
            high, low = max(high, largest(ratio / (1 + gain))), max(low, largest((1 - gain) / ratio))
        spectrum = torch.linalg.svdvals(_operator(p, w))
        ratio = _size("residual[frobenius,mean]", y) / _size("residual[frobenius,mean]", x)
        exact = max(exact, largest(ratio / spectrum[..., 0]), largest(spectrum[..., -1] / ratio))
    return holds(
        "900 random layers of 1 to 3 heads on 3 to 6 tokens; I + S written out as a matrix.",
        at_most("largest ratio over 1 + k", high),
        at_most("largest 1 - k over the ratio", low),
        at_most("largest excess over the singular values of I + S", exact),
    )


def _size(quantity: str, x: Tensor) -> Tensor:
    found = find_measure(quantity)(x)
    if isinstance(found, Bracket):
        raise TypeError(f"{quantity} is a bracket")
    return found


def _operator(p: Tensor, w: Tensor, *, with_skip: bool = True) -> Tensor:
    """``I + S`` as a matrix on ``n - 1`` coordinates of mean-zero columns times d: ``sum_h (B^T P_h B) x W_h^T``."""
    n, d = p.shape[-1], w.shape[-1]
    basis = torch.linalg.svd(torch.eye(n, dtype=torch.float64) - 1 / n).U[:, : n - 1]
    inner = basis.mT @ p @ basis
    joint = torch.einsum("shij,shde->siejd", inner, w).flatten(-2).flatten(-3, -2)
    return joint + torch.eye((n - 1) * d, dtype=torch.float64) if with_skip else joint


@claim(
    "stacked-bound",
    title="heads side by side bound their sum",
    statement="r_F(sum_h P_h X W_h) <= |[J P_1 .. J P_H]|_2 |[W_1 .. W_H]|_2 r_F(X), maps and value maps both "
    "side by side (or both below each other); often far below sum_h |J P_h|_2 |W_h|_2.",
    expected="holds",
)
def stacked_bound(seed: int) -> ClaimOutcome:
    generator, worst, gain = source(seed), 0.0, 0.0
    for n, d, heads in ((3, 2, 2), (4, 3, 4), (5, 4, 8)):
        p, w = random_maps(generator, 300, n, heads), gaussian(generator, 300, heads, d, d)
        sigma = torch.linalg.svdvals(_operator(p, w, with_skip=False))[..., 0]
        exact = Maps(maps=p, radius=torch.zeros(p.shape[:-1], dtype=torch.float64))
        gains = map_gains(exact, torch.full((300,), torch.inf))
        values = value_norms(w, torch.eye(d, dtype=torch.float64).expand_as(w))
        beside, below = gains.side_by_side + values.side_by_side, gains.below + values.below
        both = torch.minimum(beside, below).exp()
        worst = max(worst, largest(quotient(sigma, both, matrix_norm(w, norm="spectral").sum(dim=-1))))
        gain = max(gain, largest((gains.kappa + values.spectral).exp().sum(dim=-1) / both))
    return holds(
        "900 random layers of 2 to 8 heads; sigma_max of the joint operator from its matrix.",
        at_most("largest sigma_max over the stacked bound", worst),
        details=[("largest sum over heads over the stacked bound", gain)],
    )
