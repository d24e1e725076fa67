"""Claims about attention with every token brought back to the unit sphere."""

import math

import torch
from torch import Tensor

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.masks import parse_mask
from rankscope.measures import diameter, find_measure, residual_ratio
from rankscope.network import Attention, Chain, Context, Fixed, Network, Softmax, Sphere, Values
from rankscope.split import log_measure, split_states
from rankscope.studies.claims.claim import (
    Finding,
    above,
    at_most,
    below,
    claim,
    equals,
    holds,
    holds_if,
    rounding,
    wu,
)
from rankscope.studies.claims.draws import gaussian, largest, random_maps, random_orthogonal, source


@claim(
    "orthogonal-values-collapse",
    title="orthogonal values collapse in spite of LayerNorm",
    statement="Tokens on the unit sphere, orthogonal W_V, one step x_i' = normalized(sum_k A_ik x_k W_V): if "
    "the smallest inner product c of two tokens is not negative, 1 - c' <= (1 - c)(1 - min_ij <A_i, A_j>).",
    expected="holds under an assumption",
    source=wu(
        "Theorem 2", differs="one step, with constants; the theorem itself speaks of strongly connected masks"
    ),
)
def orthogonal_values(seed: int) -> Finding:
    generator, worst, theorem = source(seed), -torch.inf, THEOREMS["sphere-orthogonal"]
    for n, d in ((2, 2), (4, 3), (8, 5)):
        x = Sphere()(gaussian(generator, 600, n, d).abs() * gaussian(generator, 600, n, 1).exp())
        values, eye = random_orthogonal(generator, d), torch.eye(d, dtype=torch.float64)
        mixers = [Fixed(random_maps(generator, 600, n, 1)) for _ in range(3)]
        network = Network(
            [Chain([Attention(mixer, Values(values, eye, heads=1)), Sphere()]) for mixer in mixers]
        )
        bound = theorem.log_bound(facts_of(network, x, brackets=False))
        for right, state in zip(bound[1:], network.states(x)[1:], strict=True):
            worst = max(worst, largest(torch.log(diameter(state, norm="l2") - 1e-13) - right))
    collapsed = {mask: _collapsed(seed, mask) for mask in ("full", "causal")}
    return holds_if(
        "c >= 0, that is all tokens within a right angle of each other (1800 random draws of 3 layers). Random "
        "starts outside it collapse as well: 100 of each mask, orthogonal W_V, 400 layers.",
        at_most("largest sqrt(2 (1 - c)) over its bound, 3 layers", math.exp(worst)),
        details=[(f"starts of 100 that collapse, {mask} mask", count) for mask, count in collapsed.items()],
    )


def _collapsed(seed: int, mask: str) -> int:
    """How many of 100 random starts on the sphere end with a residual ratio below 1e-6."""
    generator, n, d = source(seed), 6, 4
    maps = [gaussian(generator, 100, d, d) * d**-0.5 for _ in range(2)]
    values = torch.linalg.qr(gaussian(generator, 100, d, d)).Q
    eye = torch.eye(d, dtype=torch.float64)
    part = Attention(Softmax(*maps, heads=1, rule=parse_mask(mask)), Values(values, eye, heads=1))
    block, x = Chain([part, Sphere()]), Sphere()(gaussian(generator, 100, n, d))
    for _ in range(400):
        x = block(x, Context())
    return int((residual_ratio(x, norm="frobenius", center="mean") < 1e-6).sum())


ALPHA, SHEAR = 0.5, 3.0


def _two_token_block() -> Chain:
    """Token 1 reads itself, token 2 puts ``ALPHA`` on token 1; ``W_V = [[1, w], [0, 1]]``; then the unit sphere."""
    maps = torch.tensor([[[1.0, 0.0], [ALPHA, 1 - ALPHA]]], dtype=torch.float64)
    values = torch.tensor([[1.0, SHEAR], [0.0, 1.0]], dtype=torch.float64)
    return Chain([Attention(Fixed(maps), Values(values, torch.eye(2).double(), heads=1)), Sphere()])


@claim(
    "two-token-equilibrium",
    title="two tokens that LayerNorm keeps apart",
    statement="Causal mask, token 2 with weight alpha on token 1, W_V = [[1, w], [0, 1]], tokens on the unit "
    "circle. With x_1 = (0, 1) and w >= alpha / (1 - alpha) there is an equilibrium B = (p, q), p = -alpha / "
    "((1 - alpha) w), q = -sqrt(1 - p^2), at which the map of the circle has the multiplier 1 + q alpha / (1 "
    "- alpha): it attracts, and the two tokens have rank 2.",
    expected="holds",
    source=wu("counter-example with two tokens"),
)
def two_tokens(seed: int) -> Finding:
    odds = ALPHA / (1 - ALPHA)
    p = -odds / SHEAR
    q = -math.sqrt(1 - p * p)
    block = _two_token_block()
    x = torch.tensor([[0.0, 1.0], [p, q]], dtype=torch.float64)
    moved = float((block(x, Context()) - x).abs().max())
    slope = _slope_on_circle(block, x)
    sizes = torch.linalg.svdvals(x)
    return holds(
        "alpha = 1/2, w = 3: B = (-1/3, -0.942809). Both tokens started at random (400 starts, 1000 layers), some end "
        "there; without the norm the same weights collapse.",
        equals("multiplier at B, by differences, against 1 + q alpha / (1 - alpha)", slope, 1 + odds * q),
        below("its size", abs(slope), 1.0),
        rounding("how far one layer moves the tokens", moved),
        above("smaller singular value of the two tokens", float(sizes[1]), 0.1),
        details=[
            ("multiplier at the mirror image (p, -q)", 1 - odds * q),
            ("share of random starts that end with rank 2", _share_of_rank_two(seed)),
            ("log10 of the relative residual after 100 layers without the norm", _without_norm()),
        ],
    )


def _slope_on_circle(block: Chain, x: Tensor, step: float = 1e-4) -> float:
    """The derivative of token 2's angle behind the block by its angle before it, by a central difference of order 4."""
    angle = math.atan2(float(x[1, 1]), float(x[1, 0]))

    def turned(by: float) -> float:
        token = torch.tensor([math.cos(angle + by), math.sin(angle + by)], dtype=torch.float64)
        after = block(torch.stack([x[0], token]), Context())[1]
        found = math.atan2(float(after[1]), float(after[0])) - angle
        return math.remainder(found, 2 * math.pi)

    return (8 * (turned(step) - turned(-step)) - (turned(2 * step) - turned(-2 * step))) / (12 * step)


def _share_of_rank_two(seed: int) -> float:
    block, x = _two_token_block(), Sphere()(gaussian(source(seed), 400, 2, 2))
    for _ in range(1000):
        x = block(x, Context())
    return float((torch.linalg.svdvals(x)[..., 1] > 0.1).double().mean())


def _without_norm(layers: int = 100) -> float:
    """log10 of the residual ratio of the same weights without the norm."""
    network = Network([next(iter(_two_token_block().parts))] * layers)
    x = torch.tensor([[0.6, 0.8], [-1 / 3, -0.9]], dtype=torch.float64)
    ratio = find_measure("residual_ratio[frobenius,mean]")
    return float(log_measure(ratio, split_states(network, x)[-1]).log10)


@claim(
    "equilibria-of-every-rank",
    title="equilibria of every rank for one value map",
    statement="Uniform causal attention, tokens on the unit sphere, W_V = I + w S with S the shift to the "
    "next channel and w large: for every k up to min(n, d) there is a state of rank exactly k that a layer "
    "does not change.",
    expected="holds",
)
def equilibria(seed: int) -> Finding:
    n, d, w = 6, 4, 10.0
    values = torch.eye(d, dtype=torch.float64) + w * torch.diag(torch.ones(d - 1, dtype=torch.float64), 1)
    maps = torch.tril(torch.ones(n, n, dtype=torch.float64))
    maps = (maps / maps.sum(dim=-1, keepdim=True)).unsqueeze(0)
    block = Chain([Attention(Fixed(maps), Values(values, torch.eye(d).double(), heads=1)), Sphere()])
    states = [_equilibrium(values, w, n, rank) for rank in range(1, d + 1)]
    moved = max(float((block(x, Context()) - x).abs().max()) for x in states)
    ranks = [_rank(x) for x in states]
    cosines = [float((x @ x.mT).abs().mean()) for x in states]
    return holds(
        "n = 6, d = 4, w = 10. From x_1 = e_d: k - 1 tokens that reach one channel further each, then tokens "
        "that stay in the span, solving x_i (lambda I - W_V) = (sum_{j<i} x_j) W_V.",
        equals("ranks found that are 1, 2, 3, 4", sum(rank == k for k, rank in enumerate(ranks, start=1)), d),
        rounding("how far one layer moves a token", moved),
        details=[
            ("ranks", ", ".join(map(str, ranks))),
            ("smallest mean |cosine|", min(cosines)),
        ],
    )


def _equilibrium(values: Tensor, w: float, n: int, rank: int) -> Tensor:
    """Tokens that uniform causal attention with these values and the unit sphere leave where they are."""
    d = len(values)
    tokens = [torch.eye(d, dtype=torch.float64)[d - 1]]
    while len(tokens) < n:
        known = torch.stack(tokens).sum(dim=0) @ values
        if len(tokens) < rank:
            token = torch.cat([-known[1:] / w, torch.zeros(1, dtype=torch.float64)])
            token[-1] = (1 - token.square().sum()).sqrt()
        else:
            token = _staying(values, known)
        tokens.append(token)
    return torch.stack(tokens)


def _staying(values: Tensor, known: Tensor) -> Tensor:
    """``known (lambda I - W_V)^-1`` of length one: the length falls from infinity to zero for lambda above one."""
    eye = torch.eye(len(values), dtype=torch.float64)

    def solved(offset: float) -> Tensor:
        found: Tensor = torch.linalg.solve_triangular(
            ((1 + offset) * eye - values).mT, known.unsqueeze(-1), upper=False
        )
        return found.squeeze(-1)

    low, high = 1e-3, 1e6
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(solved(middle).norm()) > 1 else (low, middle)
    return solved(low)


def _rank(x: Tensor) -> int:
    """Rows that are independent, from exact zeros of their first entries: singular values may be as small as 1e-6."""
    sizes = torch.linalg.svdvals(x)
    return int((sizes > 1e-10 * sizes[0]).sum())
