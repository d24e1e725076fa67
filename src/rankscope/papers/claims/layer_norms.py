"""Claims about attention with every token brought back to the unit sphere."""

import math

import torch

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.dynamics.orthogonal import Draw, Followed, cosine_defect, follow, least_overlap
from rankscope.dynamics.run import run
from rankscope.dynamics.staircase import every_rank
from rankscope.dynamics.two_tokens import CircleEquilibrium, TwoTokens
from rankscope.masks import Causal, parse_mask
from rankscope.measures import diameter, find_measure
from rankscope.network import Attention, Chain, Fixed, Network, Sphere, Values
from rankscope.papers.claims.claim import (
    ClaimOutcome,
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
from rankscope.papers.claims.draws import gaussian, largest, random_maps, random_orthogonal, source
from rankscope.split import log_measure, split_states


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
def orthogonal_values(seed: int) -> ClaimOutcome:
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
    followed = {mask: _follow(seed, mask) for mask in ("full", "causal")}
    return holds_if(
        "c >= 0, that is all tokens within a right angle of each other (1800 random draws of 3 layers, and the steps "
        "of random starts). Random starts outside it collapse as well: 200 of each mask, each with weights of its own. "
        "Four tokens with c = -0.1 show that the bound needs c >= 0.",
        at_most("largest sqrt(2 (1 - c)) over its bound, 3 layers", math.exp(worst)),
        at_most(
            "largest 1 - c' over its bound, all steps of the starts",
            max(one.worst for one in followed.values()),
        ),
        beyond=[above("1 - c' over its bound at c = -0.1", _with_negative_cosine())],
        details=[
            (f"starts of 200 that collapse, {mask} mask", one.collapsed) for mask, one in followed.items()
        ],
    )


def _follow(seed: int, mask: str) -> Followed:
    draw = Draw.of(parse_mask(mask), starts=200, tokens=12, dim=4, generator=source(seed))
    return follow(draw.mixer, draw.values, draw.x, steps=400, looks=64)


def _with_negative_cosine(c: float = -0.1) -> float:
    """Left side over right side for tokens 1 and 2 at right angles, 3 and 4 too, all other products c; pairs merge."""
    across = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    gram = torch.eye(4, dtype=torch.float64) + c * torch.kron(across, torch.ones(2, 2, dtype=torch.float64))
    x, pairs = torch.linalg.cholesky(gram), torch.kron(torch.eye(2), torch.full((2, 2), 0.5)).double()
    after = Sphere()(pairs @ x)
    return float(cosine_defect(after) / (cosine_defect(x) * (1 - least_overlap(pairs))))


PAIR = TwoTokens(alpha=0.5, shear=3.0)
UNSTABLE_PAIR = TwoTokens(alpha=0.75, shear=4.5)


@claim(
    "two-token-equilibrium",
    title="two tokens that LayerNorm keeps apart",
    statement="Causal mask, token 2 with weight alpha on token 1, W_V = [[1, w], [0, 1]], tokens on the unit "
    "circle. With x_1 = (0, 1) and w >= o = alpha / (1 - alpha) there is an equilibrium B = (p, q), p = -o / w, "
    "q = -sqrt(1 - p^2), at which the map of the circle has the multiplier 1 + o q. For w > o it attracts if "
    "-o q < 2, which alpha <= 2/3 implies; the two tokens have rank 2.",
    expected="holds",
    source=wu(
        "counter-example with two tokens", differs="where B attracts is worked out for every alpha and w"
    ),
)
def two_tokens(seed: int) -> ClaimOutcome:
    place, mirror, _ = PAIR.equilibria()
    beyond = UNSTABLE_PAIR.equilibria()[0]
    x = place.tokens()
    moved = float((PAIR.system().step(x) - x).abs().max())
    slope = _slope_on_circle(PAIR, place)
    return holds(
        "alpha = 1/2, w = 3: B = (-1/3, -0.942809). Both tokens started at random (400 starts, 1000 layers), some "
        "end there; without the norm the same weights collapse. alpha = 3/4, w = 4.5, beyond the boundary "
        "o^2 / sqrt(o^2 - 4) = 4.02: B repels, and token 2 goes to and fro between two places near it.",
        equals("multiplier at B, by differences, against 1 + o q", slope, place.multiplier),
        below("its size", abs(slope), 1.0),
        rounding("how far one layer moves the tokens", moved),
        above("smaller singular value of the two tokens", float(torch.linalg.svdvals(x)[1]), 0.1),
        below("multiplier at B, by differences, alpha = 3/4", _slope_on_circle(UNSTABLE_PAIR, beyond), -1.0),
        details=[
            ("multiplier at the mirror image (p, -q)", mirror.multiplier),
            ("share of random starts that end with rank 2", _share_of_rank_two(seed)),
            ("log10 of the relative residual after 100 layers without the norm", _without_norm()),
        ],
    )


def _slope_on_circle(pair: TwoTokens, place: CircleEquilibrium, step: float = 1e-4) -> float:
    """The derivative of token 2's angle behind a layer by its angle before it, by a central difference of order 4."""
    angle, system = math.atan2(place.token[1], place.token[0]), pair.system()

    def turned(by: float) -> float:
        token = torch.tensor([math.cos(angle + by), math.sin(angle + by)], dtype=torch.float64)
        after = system.step(torch.stack([place.tokens()[0], token]))[1]
        return math.remainder(math.atan2(float(after[1]), float(after[0])) - angle, 2 * math.pi)

    return (8 * (turned(step) - turned(-step)) - (turned(2 * step) - turned(-2 * step))) / (12 * step)


def _share_of_rank_two(seed: int) -> float:
    starts = Sphere()(gaussian(source(seed), 400, 2, 2))
    ended = run(PAIR.system(), starts, 1000, slowness=None).final
    return float((torch.linalg.svdvals(ended)[..., 1] > 0.1).double().mean())


def _without_norm(layers: int = 100) -> float:
    """log10 of the residual ratio of the same weights without the norm."""
    network = Network([PAIR.system(sphere=False).block(0)] * layers)
    x = torch.tensor([[0.6, 0.8], [-1 / 3, -0.9]], dtype=torch.float64)
    ratio = find_measure("residual_ratio[frobenius,mean]")
    return float(log_measure(ratio, split_states(network, x)[-1]).log10)


@claim(
    "equilibria-of-every-rank",
    title="equilibria of every rank for one value map",
    statement="Uniform causal attention, tokens on the unit sphere, W_V = I + w S with S the shift to the "
    "next channel and w >= 1: for every k up to min(n, d) there is a state of rank exactly k that a layer "
    "does not change.",
    expected="holds",
)
def equilibria() -> ClaimOutcome:
    n, d, w = 6, 4, 10.0
    found = [every_rank(Causal(), n, d, rank, shear=w) for rank in range(1, d + 1)]
    moved = max(float((one.system().step(one.tokens) - one.tokens).abs().max()) for one in found)
    ranks = [one.svd_rank for one in found]
    cosines = [float((one.tokens @ one.tokens.mT).abs().mean()) for one in found]
    upright = every_rank(Causal(), d, d, d, shear=1.0)
    return holds(
        "n = 6, d = 4, w = 10. From x_1 = e_d: k - 1 tokens that reach one channel further each, then tokens that "
        "stay in the span, solving x_i (lambda I - W_V) = (sum_{j<i} x_j) W_V. At w = 1 and n = d = k the tokens are "
        "orthogonal.",
        equals("ranks found that are 1, 2, 3, 4", sum(rank == k for k, rank in enumerate(ranks, start=1)), d),
        rounding("how far one layer moves a token", moved),
        rounding("how far the w = 1 state moves", upright.float_equation_residual),
        details=[
            ("ranks", ", ".join(map(str, ranks))),
            ("smallest mean |cosine|", min(cosines)),
            ("smallest singular value at w = 1", upright.singular_values[-1]),
        ],
    )
