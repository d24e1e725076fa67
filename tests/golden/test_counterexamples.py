"""Statements about rank collapse that are in print or in circulation and false: each fails on its counter-example.

Numbers are those of the closed forms in the comments. Where a network is small enough it is run, by the split pass.
"""

import math

import pytest
import torch

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import THEOREMS
from rankscope.bounds.theorems.dong import needed_gamma, proven_constants_of_both
from rankscope.bounds.theorems.quotient import mean_ratio
from rankscope.measures import dobrushin, find_measure, matrix_norm, residual, residual_bracket, residual_norm
from rankscope.network import Attention, LayerNorm, Network, Skip, Softmax, Spec, Values, build, generators
from rankscope.split import log_measure, split_states


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def measured(net, x, definition="residual[composite,mean]"):
    """Natural logs by layer."""
    return torch.stack([log_measure(find_measure(definition), one).log for one in split_states(net, x)])


def excess(name, net, x):
    """Measured over printed bound after the last layer, and the assumptions that fail."""
    facts, theorem = facts_of(net, x), THEOREMS[name]
    assert theorem.covers(facts)
    failing = [one.name for one in theorem.assumptions(facts) if not bool(one.holds)]
    return (measured(net, x, theorem.quantity)[-1] - theorem.log_bound(facts)[-1]).exp().item(), failing


# --- 1. |res(PX)| <= 2 |D 1 q^T R|: an entrywise bound on P times a residual that changes its sign


def test_an_entrywise_bound_on_the_map_says_nothing_of_what_it_averages():
    r = double(1, -1).unsqueeze(-1)
    logits = 0.3 * r @ r.T
    maps, q = torch.softmax(logits, dim=-1), double(0.5, 0.5)
    delta = logits.amax(dim=-1) - logits.amin(dim=-1)
    assert float(delta.max()) < 1.256
    claimed = 2 * (delta[:, None] * (q @ r)).abs().max()
    assert claimed == 0
    # P R = tanh(0.3) R
    torch.testing.assert_close(maps @ r, math.tanh(0.3) * r)
    # what the lemma before it says is true: (1 - delta) q <= P <= (1 + 2 delta) q
    assert bool(((1 - delta[:, None]) * q <= maps).all() & (maps <= (1 + 2 * delta[:, None]) * q).all())


# --- 2. Theorem 2.2 with gamma = 1 and no condition on the logits


class Sink:
    """A sink with key bias ``log(2 m s)``, m tokens with private features (``W_QK = log(2 m u)`` there), m zero tokens.

    Rows of P X: private token i has ``a`` on its own feature, ``b`` on the others', ``p`` on the sink's; every other
    token has ``c`` and ``q``. With the center zero ``|X|_1 = |X|_inf = 1``.
    """

    def __init__(self, m, s, u):
        self.m, self.s, self.u = m, s, u
        private, other = 2 * m * (s + u + 1) - 1, 2 * m * (s + 1)
        self.a, self.b, self.p = 2 * m * u / private, 1 / private, 2 * m * s / private
        self.c, self.q = 1 / other, 2 * m * s / other

    @property
    def bound(self):
        """``4 |W_QK|_1 |W_V|_{1,inf} |res(X)|^3`` at most."""
        return 4 * math.log(2 * self.m * self.u)

    @property
    def ratio(self):
        """At least: ``sqrt(r_1 r_inf)`` for the best center, r_1 of the sink's column, r_inf of two private tokens."""
        return math.sqrt(self.m * (self.q - self.p) * (self.a - self.b)) / self.bound

    @property
    def ratio_of_the_mean(self):
        m, n = self.m, 2 * self.m + 1
        sink, own = (m * self.p + (m + 1) * self.q) / n, (self.a + (m - 1) * self.b + (m + 1) * self.c) / n
        column = m * abs(self.p - sink) + (m + 1) * abs(self.q - sink)
        row = abs(self.p - sink) + abs(self.a - own) + (m - 1) * abs(self.b - own)
        before = math.sqrt((2 - 2 / n) * (1 - 1 / n + m / n))
        return math.sqrt(column * row) / (self.bound * before**3)

    def network(self):
        m = self.m
        gain = torch.full((m + 1,), math.log(2 * m * self.u), dtype=torch.float64)
        gain[0] = 0
        bias = torch.zeros(m + 1, dtype=torch.float64)
        bias[0] = math.log(2 * m * self.s)
        eye = torch.eye(m + 1, dtype=torch.float64)
        mixer = Softmax(gain.diag(), eye, heads=1, query_bias=bias, scale=1.0)
        return Network([Attention(mixer, Values(eye, eye, heads=1))]), torch.cat([eye, torch.zeros(m, m + 1)])


def test_single_head_bound_without_the_logit_condition():
    found = {n: Sink((n - 1) // 2, 5.0, 50.0).ratio for n in (801, 8001, 16001, 200001)}
    rounded = {n: round(value, 3) for n, value in found.items()}
    assert rounded == {801: 0.385, 8001: 0.999, 16001: 1.341, 200001: 3.998}
    assert Sink(4000, 6.75, 97.0).ratio > 1.007
    # centered by the mean the same family needs longer texts
    assert Sink(8000, 8.0, 121.0).ratio_of_the_mean == pytest.approx(0.366, abs=5e-4)
    assert Sink(100_000, 9.75, 176.0).ratio_of_the_mean > 1.1


def test_the_family_is_an_actual_network():
    sink = Sink(400, 5.0, 50.0)
    net, x = sink.network()
    after = net.states(x)[1]
    assert (len(x), after.shape[1]) == (801, 401)
    expected = torch.full_like(after, sink.c)
    expected[:, 0] = sink.q
    expected[1:401, 1:] = sink.b
    expected[1:401, 0] = sink.p
    expected[torch.arange(1, 401), torch.arange(1, 401)] = sink.a
    torch.testing.assert_close(after, expected, rtol=1e-12, atol=0)  # logits near 10 lose a digit
    column = residual_norm(after, norm="l1", center="median")
    torch.testing.assert_close(column.item(), sink.m * (sink.q - sink.p), rtol=1e-12, atol=0)
    failing = [
        one.name
        for one in THEOREMS["dong-2.2"].assumptions(facts_of(net, x, brackets=False))
        if not bool(one.holds)
    ]
    assert failing == ["logits below 1.256", "gamma large enough"]


def test_the_variant_with_row_sums_of_the_values():
    # Two tokens +-a/2 (1 .. 1), W_QK = k e_1 1^T, W_V = 1 e_1^T: logits are d k a^2 / 4, ratio sqrt(d) / 8.
    for dim, violated in ((49, False), (100, True), (1024, True)):
        ones, first = torch.ones(dim, 1, dtype=torch.float64), torch.eye(dim, 1, dtype=torch.float64)
        part = Attention(
            Softmax(first, ones, heads=1, scale=1.0), Values(ones, first.T.contiguous(), heads=1)
        )
        x = double(0.5, -0.5).unsqueeze(-1) * 1e-3 * ones.T
        found, failing = excess("dong-2.2-winf", Network([part]), x)
        assert found == pytest.approx(math.sqrt(dim) / 8, rel=1e-3)  # tanh, and the margins
        assert (found > 1) is violated
        assert failing == (["gamma large enough"] if violated else failing)
        assert excess("dong-2.2", Network([part]), x)[0] == pytest.approx(1 / 8, rel=1e-3)


# --- 3. Theorem 2.3 with gamma = 1, tiny logits


@pytest.mark.parametrize(("dim", "expected"), [(4096, 0.508), (65_536, 1.004), (1_000_000, 1.978)])
def test_multi_head_bound_with_a_head_that_spreads_one_channel(dim, expected):
    # X = +-A/2 e_1, W_QK = k e_1 e_1^T, W_1 = D^(-1/2) e_1 1^T, W_2 = e_1 e_1^T: D^(1/4) (1 + D^(-1/2)) / 16
    first = torch.zeros(dim, 2, dtype=torch.float64)
    first[0] = 1
    out = torch.zeros(2, dim, dtype=torch.float64)
    out[0], out[1, 0] = dim**-0.5, 1
    part = Attention(Softmax(first, first, heads=2, scale=1.0), Values(first, out, heads=2))
    x = torch.zeros(2, dim, dtype=torch.float64)
    x[:, 0] = double(0.5e-3, -0.5e-3)
    assert dim**0.25 * (1 + dim**-0.5) / 16 == pytest.approx(expected, abs=5e-4)
    net = Network([part])
    facts, theorem = facts_of(net, x, brackets=False), THEOREMS["dong-2.3"]
    ratio = (measured(net, x)[1] - theorem.log_bound(facts)[1]).exp().item()
    assert ratio == pytest.approx(expected, abs=5e-4)
    *_, logits, gamma = theorem.assumptions(facts)
    assert bool(logits.holds)
    assert needed_gamma(facts).item() >= ratio
    assert bool(gamma.holds) is (needed_gamma(facts).item() <= 1)
    assert THEOREMS["theorem-b"].log_bound(facts)[1] >= measured(net, x)[1]


def test_the_appendix_bound_with_skips():
    # One head W = c D^(-1/2) e_1 1^T with c tanh(k A^2 / 4) = b just below 1/8: sqrt(1 + b sqrt(D)) against 2.
    for dim, violated in ((400, False), (1024, True)):
        first = torch.eye(dim, 1, dtype=torch.float64)
        b, c = 0.12, 12.5
        out = torch.full((1, dim), c * dim**-0.5, dtype=torch.float64)
        k = 4 * math.atanh(b / c)
        part = Skip(Attention(Softmax(k * first, first, heads=1, scale=1.0), Values(first, out, heads=1)))
        x = double(0.5, -0.5).unsqueeze(-1) * first.T
        found, failing = excess("dong-skip", Network([part]), x)
        # the first channel holds b D^(-1/2) more
        exact = math.sqrt((1 + b * dim**-0.5) * (1 + b * math.sqrt(dim))) / 2
        assert found == pytest.approx(exact, rel=1e-8)
        assert (found > 1) is violated
        assert "logits below 1.256" not in failing
        if violated:
            assert failing == ["gamma large enough"]
            assert needed_gamma(facts_of(Network([part]), x), constants=proven_constants_of_both).item() > 1


# --- 4. "LayerNorm is a right multiplication and plays no role"


def test_layer_norm_divides_each_token_by_its_own_size():
    x = double([1, 1.001], [1, 0.999])
    norm = LayerNorm(eps=1e-12)
    before, after = (residual_norm(one, norm="frobenius", center="mean") / one.norm() for one in (x, norm(x)))
    assert before.item() == pytest.approx(7.07e-4, rel=1e-2)
    assert after.item() == pytest.approx(1.0, rel=1e-5)
    # tokens on a line, whose residual has rank one; multiplied from the right it would keep it
    line = double(1, 2, 4, 8) + double(0, 1, 2, 3).unsqueeze(-1) * double(1, -1, 2, 0)
    ranks = [
        int(torch.linalg.matrix_rank(residual(one, center="mean"), rtol=1e-9)) for one in (line, norm(line))
    ]
    assert ranks == [1, 2]


# --- 5. "tau contracts residuals in every norm"


def test_dobrushin_does_not_contract_sums_and_squares():
    maps = torch.zeros(8, 8, dtype=torch.float64)
    maps[:4, :2], maps[4:, :2] = double(0.75, 0.25), double(0.25, 0.75)
    tau = dobrushin(maps)
    assert tau.item() == 0.5
    eye = torch.eye(8, dtype=torch.float64)
    x = eye[:, :1] - eye[:, 1:2]
    column = residual_norm(maps, norm="l1", center="median") / residual_norm(eye, norm="l1", center="median")
    square = residual_norm(maps @ x, norm="frobenius", center="mean") / residual_norm(
        x, norm="frobenius", center="mean"
    )
    assert ((column / tau).item(), (square / tau).item()) == pytest.approx((4, 2), rel=1e-14)


def test_dobrushin_does_not_contract_row_sums():
    signs = torch.tensor([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    x = 3 * torch.cat([torch.eye(3), -torch.eye(3)]).double()
    maps = torch.cat([signs > 0, signs < 0], dim=1).double() / 3
    before, after = (residual_bracket(one, norm="linf", tolerance=1e-9) for one in (x, maps @ x))
    assert (after.low / (dobrushin(maps) * before.high)).item() == pytest.approx(1.5, rel=4e-9)  # brackets


# --- 6. The composite is no norm


def test_the_composite_has_no_triangle_inequality():
    a = torch.zeros(50, 50, dtype=torch.float64)
    a[:, 0] = 1
    apart = matrix_norm(a, norm="composite") + matrix_norm(a.T, norm="composite")
    both = a + a.T
    both[0, 0] = 2
    together = matrix_norm(both, norm="composite")
    assert (together.item(), apart.item()) == pytest.approx((51, 2 * math.sqrt(50)), rel=1e-14)


# --- 7. "The mean is a 2-approximation in any norm"


def test_the_mean_is_no_two_approximation_in_a_norm_that_weighs_tokens():
    x, weights = double(0, 1), double(100, 1)
    mean, best = (float((weights * (x - center).abs()).sum()) for center in (x.mean(), x[0]))
    assert (mean, best) == (50.5, 1.0)
    assert mean > 2 * best
    e = torch.eye(5, 1, dtype=torch.float64)
    ratio = residual_norm(e, norm="l1", center="mean") / residual_norm(e, norm="l1", center="median")
    assert ratio.item() == pytest.approx(mean_ratio(5), rel=1e-15)  # the constant that is right there


# --- 8. "Networks with skips are dominated by short paths", by count


def test_paths_are_long():
    layers = heads = 12
    counts = [math.comb(layers, k) * heads**k for k in range(layers + 1)]
    total = sum(counts)
    assert total == (1 + heads) ** layers
    assert sum(k * count for k, count in enumerate(counts)) / total == pytest.approx(11.077, abs=5e-4)
    assert sum(counts[:4]) / total == pytest.approx(1.7e-8, rel=0.02)


# --- 9. "Collapse is doubly exponential" under a mask


def test_a_causal_mask_makes_collapse_exponential():
    logs = {}
    for mask in ("full", "causal"):
        net = build(
            Spec(layers=40, heads=1, dim=4, mask=mask, values="identity", init="small"), generators(0)[0]
        )
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        logs[mask] = measured(net, x, "residual[frobenius,mean]")
    rates = (logs["causal"][1:] - logs["causal"][:-1]).exp()[-10:]
    torch.testing.assert_close(rates, torch.full_like(rates, 0.5), rtol=1e-3, atol=0)  # still tending to it
    tripled = logs["full"][12] / logs["full"][11]
    torch.testing.assert_close(tripled.item(), 3.0, rtol=1e-3, atol=0)
    assert logs["full"][8] < 100 * logs["causal"][40]


# --- 10. "4 gamma beta H < sqrt(d_qk) suffices"


def test_a_small_constant_alone_does_not_make_tokens_collapse():
    eye = torch.eye(64, dtype=torch.float64)
    part = Attention(Softmax(eye, eye, heads=1), Values(eye, eye, heads=1))
    net, x = Network([part] * 6), 100 * eye
    facts, theorem = facts_of(net, x, brackets=False), THEOREMS["dong-2.2"]
    assert facts.layers[0].attentions[0].beta.item() * 4 == pytest.approx(0.5, rel=1e-8)
    logs = measured(net, x)
    torch.testing.assert_close(logs, logs[:1].expand(7), rtol=0, atol=1e-12)
    assert bool(theorem.is_vacuous(facts))
    assert bool((theorem.log_bound(facts) >= logs).all())
