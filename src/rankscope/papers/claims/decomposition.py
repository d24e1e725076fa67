"""Claims about paths: what they add up to, how many there are, how long they are."""

from collections import Counter
from itertools import combinations
from math import comb

import torch
from scipy.special import chdtri
from torch import Tensor

from rankscope.network import Attention, Network, Spec, build, gaussian_tokens, generators
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    ComparedNumber,
    above,
    at_most,
    below,
    claim,
    dong,
    equals,
    holds,
    is_false,
    rounding,
)
from rankscope.papers.claims.draws import gaussian, softmax_network, source
from rankscope.pathways import (
    ARCHITECTURES,
    Head,
    Path,
    counts_of,
    draw_paths,
    every_path,
    freeze,
    marginals,
    mixing,
    pair_shares,
    path_term,
    spectrum,
    top_paths,
)


@claim(
    "path-sum",
    title="attention alone is the sum of its paths",
    statement="Without skips and MLPs a network of L layers of H heads is the sum over all H^L sequences of heads of "
    "P_L ... P_1 X W_1 ... W_L, plus one constant row b that does not depend on the input; every product of maps has "
    "rows that sum to one. SAN(X) = sum_path P_path X W_path + 1 b.",
    expected="holds",
    source=dong("Theorem 2.1"),
)
def path_sum(seed: int) -> ClaimOutcome:
    network, x = softmax_network(source(seed), 3, 8, 2), gaussian(source(seed + 1), 6, 8)
    frozen = freeze(network, x)
    paths = list(every_path(network))
    total = torch.stack([path_term(frozen, None, path) for path in paths]).sum(dim=0) + _bias(network)
    off = torch.stack([mixing(frozen, path).sum(dim=-1) - 1 for path in paths]).abs().max()
    return holds(
        "3 layers, 2 heads, 6 tokens of width 8, all biases; b from b <- b sum_h W_h + c_l.",
        rounding("distance of the sum of all paths from the output, relative", _relative(total, network(x))),
        rounding("how far row sums of path maps are from one", float(off)),
        details=[("paths", len(paths))],
    )


def _bias(network: Network) -> Tensor:
    """The constant row that biases leave at the end."""
    row = torch.zeros(8, dtype=torch.float64)
    for block in network.blocks:
        if isinstance(block, Attention) and (own := block.values.bias()) is not None:
            row = row @ block.values.value_out().sum(dim=-3) + own
    return row


def _relative(found: Tensor, wanted: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted))


@claim(
    "path-count",
    title="numbers of paths are binomial",
    statement="With skips around L layers of H heads there are C(L, k) H^k paths of length k and (1 + H)^L in all, so "
    "the length of a path taken at random is binomial with mean L H / (H + 1).",
    expected="holds",
    source=dong("on skip connections"),
)
def path_count(seed: int) -> ClaimOutcome:
    network = build(Spec(layers=4, heads=2, dim=4, variant="san+skip"), generators(seed)[0])
    listed = Counter(path.length for path in every_path(network))
    wrong = sum(not comb(4, k) * 2**k == listed[k] == count for k, count in enumerate(counts_of(network)))
    bert = ARCHITECTURES["BERT-base/ViT-B"].lengths()
    return holds(
        "4 layers of 2 heads, all paths listed; BERT-base from the exact counts.",
        equals("mean length of a path of BERT-base, against L H / (H + 1)", bert.mean, 12 * 12 / 13),
        at_most("lengths whose number of paths is not C(L, k) H^k", wrong, 0),
        details=[("4 layers of 2 heads", ", ".join(str(listed[k]) for k in range(5)))],
    )


@claim(
    "short-paths-by-count",
    title="most paths are short",
    statement="In a network with skips most paths are short: more than half of them pass at most half of the layers.",
    expected="false",
    source=dong(
        "on skip connections, as often summarized", differs="the paper speaks of usefulness, not of numbers"
    ),
)
def short_paths() -> ClaimOutcome:
    bert = ARCHITECTURES["BERT-base/ViT-B"].lengths()
    return is_false(
        "12 layers of 12 heads, as BERT-base: nearly all paths pass 10 to 12 heads.",
        below("share of the paths that pass 6 heads or fewer", bert.at_most(6), 0.5),
        details=[
            ("share of the paths that pass 3 heads or fewer", bert.at_most(3)),
            ("mean length", bert.mean),
        ],
    )


TREES = (
    {"variant": "san+skip"},
    {"variant": "transformer", "norm": "layer", "placement": "pre"},
    {"variant": "transformer", "norm": "layer", "activation": "gelu"},
    {"variant": "transformer", "norm": "rms", "placement": "pre", "gated": True, "activation": "silu"},
    {"variant": "transformer", "norm": "rms", "placement": "parallel", "position": "rotary"},
    {"variant": "transformer", "norm": "layer", "mask": "causal", "key_heads": 1},
)


@claim(
    "polynomial",
    title="path lengths in polynomial time",
    statement="With attention maps, scales of norms and gates of MLPs held at their values, the output is a polynomial "
    "in z, one power per head: its value at z = 1 is the output, its coefficient of z^k the sum of all paths of length "
    "k. L layers cost about L^2 / 2 passes instead of (1 + H)^L paths.",
    expected="holds",
)
def polynomial(seed: int) -> ClaimOutcome:
    sums, terms = [], []
    for tree in TREES:
        weights, tokens = generators(seed)
        network = build(Spec.of(layers=3, heads=2, dim=8, **tree), weights)
        frozen = freeze(network, gaussian_tokens(5, 8, generator=tokens))
        found = spectrum(frozen)
        sums.append(float(found.relative_error))
        for length, term in enumerate(found.terms):
            listed = torch.stack([path_term(frozen, None, path) for path in every_path(network, length)])
            terms.append(_relative(listed.sum(dim=0), term))
    return holds(
        f"{len(TREES)} networks of 3 layers of 2 heads: skips alone, pre-, post-norm and parallel, LayerNorm and "
        "RMSNorm, ReLU, GELU and gated MLPs, rotary positions, causal mask, shared keys.",
        rounding("distance of the polynomial at 1 from the output, relative", max(sums)),
        rounding("distance of a coefficient from the sum of its paths, listed one by one", max(terms)),
    )


@claim(
    "path-questions",
    title="heads, pairs, largest paths and drawn paths",
    statement="All paths through a head, all through two heads, the K largest paths, and paths of one length "
    "drawn with equal probability are found without listing the paths, and agree with the list; what starts "
    "at the input and at the biases adds up to the output.",
    expected="holds",
)
def path_questions(seed: int) -> ClaimOutcome:
    weights, tokens = generators(seed)
    network = build(Spec(layers=4, heads=2, dim=8, variant="san+skip"), weights)
    frozen = freeze(network, gaussian_tokens(5, 8, generator=tokens))
    terms = {path: path_term(frozen, None, path) for path in every_path(network)}
    found = marginals(frozen)
    through = [
        _relative(matrix, _sum_through(terms, head))
        for head, matrix in zip(found.heads, found.through, strict=True)
    ]
    toward = gaussian(tokens, 5, 8)
    pairs = pair_shares(frozen, toward=toward)
    size = max(float(value.abs()) for value in pairs.values())
    paired = [
        abs(float(pairs[one, two] - (toward * _sum_through(terms, one, two)).sum())) / size
        for one, two in combinations(found.heads, 2)
        if one.layer != two.layer
    ]
    by_norm = sorted((float(torch.linalg.matrix_norm(term)) for term in terms.values()), reverse=True)
    ranked = [one.norm for one in top_paths(frozen, count=10).paths]
    return holds(
        "4 layers of 2 heads with skips, 5 tokens of width 8: 81 paths, listed one by one.",
        rounding("distance of the paths through a head from those listed, relative", max(through)),
        rounding("the same for pairs of heads", max(paired)),
        rounding(
            "distance of all that starts from the output", _relative(found.started.sum(dim=0), frozen.output)
        ),
        rounding(
            "distance of the ten largest norms from those listed",
            max(abs(a - b) / b for a, b in zip(ranked, by_norm, strict=False)),
        ),
        *_evenness(network, tokens),
        details=[("paths", len(terms))],
    )


def _sum_through(terms: dict[Path, Tensor], *heads: Head) -> Tensor:
    """All listed paths that take those heads; layers count from 1."""
    chosen = [
        term for path, term in terms.items() if all(path.heads[head.layer - 1] == head.head for head in heads)
    ]
    return torch.stack(chosen).sum(dim=0)


DRAWN, RARE = 24_000, 1e-5


def _evenness(network: Network, generator: torch.Generator) -> tuple[ComparedNumber, ComparedNumber]:
    """How unevenly drawn paths of length 2 fall on the 24 there are: chi-square per degree of freedom.

    Independent draws with equal probability are above the upper limit, or below the lower one, with probability
    ``RARE`` each. If half of the paths are drawn 10% too often and half 10% too seldom, that adds
    ``24000 * 0.1^2 / 23``, about 10; paths that are dealt out in turn leave nearly 0.
    """
    paths = list(every_path(network, 2))
    drawn, free = Counter(draw_paths(network, 2, DRAWN, generator=generator)), len(paths) - 1
    expected = DRAWN / len(paths)
    found = sum((drawn[path] - expected) ** 2 / expected for path in paths) / free
    means = f"chi-square per degree of freedom of {DRAWN} drawn paths"
    return (
        below(means, found, float(chdtri(free, RARE)) / free),
        above(f"{means}, which must not be too even", found, float(chdtri(free, 1 - RARE)) / free),
    )
