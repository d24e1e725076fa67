"""Claims about layers beyond attention: graph networks, state spaces, hardmax, several residual streams."""

import math

import torch
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.layers.facts import layer_facts
from rankscope.layers.find import find_layer
from rankscope.layers.graph_layers import GRAPH_MIXERS, random_walk, symmetric
from rankscope.layers.graphs import Graph, find_graph
from rankscope.layers.mixers.decaying import decays
from rankscope.layers.mixers.normalisations import hardmax
from rankscope.measures import residual_ratio
from rankscope.papers.claims.claim import (
    ClaimOutcome,
    above,
    at_most,
    below,
    claim,
    equals,
    holds,
    holds_if,
    is_false,
    rounding,
)
from rankscope.papers.claims.draws import gaussian, largest, quotient, random_orthogonal, source

OONO = "Oono, Suzuki. Graph neural networks exponentially lose expressive power for node classification. ICLR 2020, "
OONO += "arXiv:1905.10947"
WU_2023 = "Wu, Ajorlou, Wu, Jadbabaie. Demystifying oversmoothing in attention-based graph neural networks. NeurIPS "
WU_2023 += "2023, arXiv:2305.16102"
JOSEPH = "Joseph, Sieber, Zeilinger, Amo Alonso. Lambda-skip connections: the architectural component that prevents "
JOSEPH += "rank collapse. 2024, arXiv:2410.10609"
ALCALDE = (
    "Alcalde, Fantuzzi, Zuazua. Clustering in pure-attention hardmax transformers and its role in sentiment "
)
ALCALDE += "analysis. 2024, arXiv:2407.01602"
ZHU = "Zhu et al. Hyper-connections. ICLR 2025, arXiv:2409.19606"

GRAPHS = ("karate", "path:20", "star:10", "barbell:5", "petersen")


def _spectrum(graph: Graph) -> tuple[Tensor, Tensor]:
    """Eigenvalues of the symmetric GCN by falling modulus, and their eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(symmetric(graph.with_loops))
    order = values.abs().argsort(descending=True)
    return values[order], vectors[:, order]


def _unit_ratio(x: Tensor) -> Tensor:
    """Residual ratio of tokens at unit length."""
    return _ratio(_normed(x))


def _ratio(x: Tensor) -> Tensor:
    return residual_ratio(x, norm="frobenius", center="mean")


@claim(
    "gcn-distance",
    title="a GCN layer shrinks the distance to one line by the second eigenvalue",
    statement="For a connected graph with every node its own neighbour, S = D^(-1/2) (A + I) D^(-1/2) and M the "
    "matrices whose columns are multiples of the first eigenvector of S: d_M(relu(S X W)) <= s lambda d_M(X), with "
    "lambda the second largest eigenvalue modulus of S and s the spectral norm of W. With s lambda < 1 all layers "
    "together lose everything but that one vector, exponentially fast.",
    source=Ref(key=OONO, where="the bound for GCNs"),
    expected="holds",
)
def gcn_distance(seed: int) -> ClaimOutcome:
    generator, worst, attained = source(seed), 0.0, 1.0
    for name in GRAPHS:
        graph = find_graph(name)
        values, vectors = _spectrum(graph)
        step, second, first = symmetric(graph.with_loops), values[1].abs(), vectors[:, :1]

        def far(x: Tensor, first: Tensor = first) -> Tensor:
            found: Tensor = torch.linalg.matrix_norm(x - first @ (first.mT @ x))
            return found

        x, w = gaussian(generator, 400, graph.nodes, 4), gaussian(generator, 400, 4, 4)
        after = far((step @ x @ w).clamp(min=0))
        right = torch.linalg.matrix_norm(w, ord=2) * second * far(x)
        worst = max(worst, largest(quotient(after, right, torch.linalg.matrix_norm(x))))
        slow = vectors[:, 1:2]  # without activation the bound is attained by the second eigenvector
        attained = min(attained, float(far(step @ slow) / (second * far(slow))))
    return holds(
        "2000 random node matrices and weights on five graphs (karate club, a path, a star, two cliques and an edge, "
        "Petersen); the second eigenvector itself, without the activation.",
        at_most("largest d_M(relu(S X W)) / (s lambda d_M(X))", worst),
        equals("the same of the second eigenvector, without the activation", attained, 1.0),
    )


@claim(
    "gcn-equal",
    title="deep GCNs make all nodes equal",
    statement="Repeated layers X -> S X W of a symmetric GCN, W orthogonal, make the features of all nodes equal.",
    source=Ref(key="folklore", where="over-smoothing"),
    expected="false",
)
def gcn_equal(seed: int) -> ClaimOutcome:
    graph, generator = find_graph("karate"), source(seed)
    step, x = symmetric(graph.with_loops), gaussian(generator, graph.nodes, 8)
    values = random_orthogonal(generator, 8)
    for _ in range(400):
        x = step @ x @ values
        x = x / x.norm()
    lengths, degrees = x.norm(dim=-1), graph.with_loops.sum(dim=-1)
    expected = degrees.sqrt() / degrees.sqrt().norm()
    return is_false(
        "The karate club after 400 layers: all nodes point in one direction, but their lengths are in the proportion "
        "of sqrt(degree + 1). With rows divided by their sum, D^(-1) (A + I), the nodes do become equal.",
        above("residual ratio of the nodes", float(_ratio(x)), 0.1),
        below("residual ratio of nodes at unit length", float(_unit_ratio(x)), 1e-12),
        rounding(
            "how far lengths are from sqrt(degree + 1), relative", float((lengths - expected).norm()), 1e-9
        ),
    )


def _gat_course(graph: Graph, seed: int, layers: int) -> list[float]:
    """Logarithms of |X - 1 mean| by layer, of one graph attention with an orthogonal value map.

    Differences below 1e-6 are brought back to that size after every layer, and the logarithms of the factors add up:
    graph attention is linear in such small differences, and nothing meets the rounding of the tokens.
    """
    generator = source(seed)
    maps = GRAPH_MIXERS["gat"].maps_on(graph.with_loops, 8, generator)
    values = random_orthogonal(generator, 8)
    x, log = gaussian(generator, graph.nodes, 8), 0.0
    course = list[float]()
    for _ in range(layers):
        x = maps(x)[0] @ (x @ values)
        mean = x.mean(dim=0, keepdim=True)
        size = float((x - mean).norm())
        course.append(log + math.log(size))
        if size < 1e-6:  # the differences at their old size around the same common row
            x = mean + (x - mean) * (1e-6 / size)
            log += math.log(size / 1e-6)
    return course


@claim(
    "gat-exponential",
    title="graph attention loses all differences exponentially, not faster",
    statement="On a connected graph with self-loops, graph attention with continuous scores, an activation with 0 <= "
    "sigma(x)/x <= 1 and products of weights that stay bounded has |X_t - 1 mean|_F <= C q^t with q < 1. Attention "
    "does not prevent over-smoothing, whatever it learns.",
    source=Ref(key=WU_2023, where="main theorem", differs="run without activation, one orthogonal weight"),
    expected="holds under an assumption",
)
def gat_exponential(seed: int) -> ClaimOutcome:
    found, off = list[float](), 0.0
    for name in GRAPHS:
        graph = find_graph(name)
        course = _gat_course(graph, seed, 400)
        rate = math.exp((course[399] - course[299]) / 100)
        walk = torch.linalg.eigvals(random_walk(graph.with_loops)).abs().sort(descending=True).values
        found.append(rate)
        off = max(off, abs(rate - float(walk[1])))
    small = random_walk(find_graph("petersen").with_loops)
    x = gaussian(source(seed), 10, 4)
    for _ in range(40):  # scores are zero, weights 2.5 times the identity
        before, x = x, 2.5 * small @ x
    growth = float(_apart(x) / _apart(before))
    return holds_if(
        "Five graphs, 400 layers each with an orthogonal weight: the factor per layer is the second eigenvalue of "
        "D^(-1) (A + I), to which graph attention tends near consensus. The assumption on weights is needed: with all "
        "scores zero and 2.5 times the identity as weight, differences grow on the Petersen graph (second eigenvalue "
        "1/2).",
        below("largest factor per layer over five graphs", max(found), 1.0),
        below("how far factors are from the second eigenvalue", off, 1e-3),
        beyond=[above("factor per layer with unbounded weights", growth)],
        details=[(f"factor per layer, {name}", rate) for name, rate in zip(GRAPHS, found, strict=True)],
    )


def _normed(x: Tensor) -> Tensor:
    """Every token divided by its length."""
    found: Tensor = x / x.norm(dim=-1, keepdim=True)
    return found


@claim(
    "lambda-skip",
    title="a strong enough skip keeps tokens of state-space layers apart",
    statement="Layers Y = D(lambda X + f(X)), f a state-space layer and D the division of every token by its length. "
    "Without the skip tokens become equal; with |lambda| large enough they do not, at any given depth. In our form: "
    "where |f(X)_i| <= c for unit tokens, the angle of two tokens falls by at most 2 arcsin(c / |lambda|) per layer, "
    "so |lambda| > c / sin(theta / (2 L)) keeps two tokens of angle theta apart through L layers.",
    source=Ref(
        key=JOSEPH,
        where="the sufficient condition",
        differs="our condition on lambda, which is proven by the angles",
    ),
    expected="holds under an assumption",
)
def lambda_skip(seed: int) -> ClaimOutcome:
    layers, tokens, dim, forget = 12, 16, 8, 0.5
    generator = source(seed)
    values = random_orthogonal(generator, dim)
    start = _normed(gaussian(generator, tokens, dim))
    # s_t = forget s_(t-1) + x_t, read by an orthogonal map: |f(X)_i| <= 1 + forget + forget^2 + ... for unit tokens
    linear, most = decays(tokens, forget), 1 / (1 - forget)
    selective = find_layer("selective-state-space").make(tokens, dim, generator)
    theta = float(_angles(start).min())
    strong, worst, x = most / math.sin(theta / (2 * layers)), 0.0, start
    for _ in range(layers):
        fresh = _normed(strong * x + linear @ x @ values)
        worst = max(worst, float((_angles(x) - _angles(fresh)).max()) / (2 * math.asin(most / strong)))
        x = fresh
    kept = float(_angles(x).min())
    x = start
    for _ in range(layers):  # the inequality alone, with the largest |f(X)_i| that is seen
        added = selective(x)
        size = float(added.norm(dim=-1).max())
        fresh = _normed(3 * size * x + added)
        worst = max(worst, float((_angles(x) - _angles(fresh)).max()) / (2 * math.asin(1 / 3)))
        x = fresh
    x = start
    for _ in range(100):
        x = _normed(linear @ x @ values)
    return holds_if(
        "Sixteen random unit tokens through twelve layers of a linear state space that forgets half per token, and of "
        "a selective one. Without the skip a hundred layers of the first make all tokens equal.",
        at_most("largest fall of an angle over 2 arcsin(c / lambda)", worst),
        above("smallest angle after twelve layers, at that lambda", kept, 0.0),
        beyond=[
            below("unit residual ratio after a hundred layers without a skip", float(_unit_ratio(x)), 1e-6)
        ],
        details=[("lambda", strong), ("smallest angle at the start", theta)],
    )


def _angles(x: Tensor) -> Tensor:
    """The angle of every two tokens; 2 atan2(|a - b|, |a + b|) of unit tokens keeps the digits of small angles."""
    one, other = torch.triu_indices(len(x), len(x), 1)
    found: Tensor = 2 * torch.atan2((x[one] - x[other]).norm(dim=-1), (x[one] + x[other]).norm(dim=-1))
    return found


ORDERS = {
    "softmax": (3, 3),
    "linear": (3, 3),
    "value-residual": (2, 2),
    "mask:causal": (1, 1),
    "off-by-one": (1, 3),
    "sigmoid": (1, 3),
    "linformer": (1, 2),
}
"""Orders of the residual and of directions that the theorem gives."""


@claim(
    "two-orders",
    title="a layer has two orders of collapse, of the residual and of the directions",
    statement="Where a smooth layer keeps equal tokens equal, tokens 1 x + s R get a residual ratio ~ s^p, and ~ s^q "
    "at unit length, with q >= p; q > p exactly where tokens differ in length alone to leading order. Averaging by "
    "weights that sum to one and depend on the query has p = q = 3; the same weights without the division have p = 1 "
    "and q = 3; a fixed map whose rows differ has p = q = 1.",
    expected="holds",
)
def two_orders(seed: int) -> ClaimOutcome:
    off, least, details = 0.0, math.inf, list[tuple[str, str]]()
    for name, expected in ORDERS.items():
        layer = find_layer(name).make(12, 8, source(seed))
        facts = layer_facts(layer, tokens=12, dim=8, seed=seed, depth=False, name=name)
        found = (facts.residual_order, facts.direction_order)
        whole, turned = (math.nan if one is None else one for one in found)
        off = max(off, abs(whole - expected[0]), abs(turned - expected[1]))
        least = min(least, turned - whole)
        details.append((f"orders of {name}", f"{whole:.3g} and {turned:.3g}"))
    return holds(
        "Seven layers of 12 tokens and width 8 at random weights, slopes between neighbouring scales s.",
        below("how far orders are from those of the theorem", off, 0.02),
        above("smallest direction order less residual order", least, -0.02),
        details=details,
    )


@claim(
    "hardmax-leaders",
    title="hardmax attention ends in clusters around leaders",
    statement="z_i <- z_i + alpha / (1 + alpha) (mean of the z_j that maximise <A z_i, z_j> - z_i), A symmetric "
    "positive definite. A token that is its own only maximiser (a leader) never moves again and stays a leader. Tokens "
    "converge; where there are several leaders they do not become equal.",
    source=Ref(key=ALCALDE, where="the theorem on clustering"),
    expected="holds",
)
def hardmax_leaders(seed: int) -> ClaimOutcome:
    generator, alpha, tokens = source(seed), 1.0, 48
    moved, lost, last, fewest = 0.0, 0, 0.0, tokens
    for _ in range(20):
        root = gaussian(generator, 2, 2)
        matrix = root @ root.mT + 0.5 * torch.eye(2, dtype=torch.float64)
        z, leaders = gaussian(generator, tokens, 2), torch.zeros(tokens, dtype=torch.bool)
        for _ in range(120):
            maps = hardmax(z @ matrix @ z.mT)
            # followers come so near their leader that floats cannot tell them apart: those count as the leader itself
            apart = (z[:, None] - z).norm(dim=-1)
            strangers = (maps > 0) & (apart > 1e-9)
            is_leader = ~strangers.any(dim=-1)
            if not leaders.any():
                leaders = is_leader & (maps.diagonal() == 1.0)
            lost += int((leaders & ~is_leader).sum())
            fresh = z + alpha / (1 + alpha) * (maps @ z - z)
            moved = max(moved, float((fresh - z)[leaders].abs().max()) if leaders.any() else 0.0)
            z, before = fresh, z
        last = max(last, float((z - before).abs().max()))
        fewest = min(fewest, int(leaders.sum()))
    return holds(
        "20 draws of 48 tokens in the plane and of A, 120 steps with alpha = 1.",
        above("fewest leaders of a draw", float(fewest), 1.0),
        rounding("largest move of a leader", moved),
        at_most("leaders that stopped being one", float(lost), 0.0),
        below("largest move of any token in the last step", last, 1e-9),
    )


@claim(
    "residual-streams",
    title="mixing residual streams by doubly stochastic maps keeps their mean and makes them equal",
    statement="n residual streams H are mixed by doubly stochastic maps B between layers, H -> B H. The mean over "
    "streams is kept exactly, so that no token difference in it is lost, and the products of B stay doubly stochastic; "
    "but differences between streams fall by the second singular value of every B, so that many mixings leave one "
    "stream.",
    source=Ref(key=ZHU, where="the width connections", differs="doubly stochastic, and what follows is ours"),
    expected="holds",
)
def residual_streams(seed: int) -> ClaimOutcome:
    generator, streams, mixings = source(seed), 4, 20
    worst, off, left = 0.0, 0.0, 0.0
    start = gaussian(generator, 50, streams, 24)
    h = start
    for _ in range(mixings):
        maps = _doubly_stochastic(gaussian(generator, 50, streams, streams))
        before, h = _apart(h), maps @ h
        second = torch.linalg.svdvals(maps)[:, 1]
        worst = max(worst, largest(quotient(_apart(h), second * before, torch.linalg.matrix_norm(h))))
    off = largest((h.mean(dim=1) - start.mean(dim=1)).norm(dim=-1) / start.mean(dim=1).norm(dim=-1))
    left = largest(_apart(h) / _apart(start))
    return holds(
        f"50 draws of four streams, mixed {mixings} times each by maps whose rows and columns sum to one.",
        at_most("largest factor of the differences between streams over the second singular value", worst),
        rounding("how far the mean of the streams moved, relative", off),
        below(f"largest share of the differences between streams that {mixings} mixings leave", left, 1e-3),
    )


def _apart(streams: Tensor) -> Tensor:
    """Frobenius norm of the streams minus their mean."""
    found: Tensor = torch.linalg.matrix_norm(streams - streams.mean(dim=-2, keepdim=True))
    return found


def _doubly_stochastic(logits: Tensor) -> Tensor:
    """Rows and columns of exp(logits) divided by their sums in turn until both sum to one."""
    for _ in range(200):
        logits = logits.log_softmax(dim=-2).log_softmax(dim=-1)
    return logits.exp()
