"""The facts of layers whose facts are known on paper, of hostile ones, and of what is no layer."""

import json
import math

import pytest
import torch
from torch import Tensor, nn

from rankscope.errors import RankscopeError
from rankscope.findings.atlas import LayerFacts
from rankscope.findings.atlas import said_of as said_of_a_row
from rankscope.findings.layers import said_of
from rankscope.layers import depth, rates
from rankscope.layers.facts import layer_facts
from rankscope.layers.layer import checked_layer
from rankscope.layers.orders import draws

TOKENS, DIM = 6, 4


def facts(layer, tokens: int = TOKENS, dim: int = DIM, **more) -> LayerFacts:
    return layer_facts(layer, tokens=tokens, dim=dim, **more)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows(matrix: Tensor) -> Tensor:
    return matrix / matrix.sum(dim=-1, keepdim=True)


def mixing(p: Tensor, w: Tensor | None = None):
    return (lambda x: p @ x) if w is None else (lambda x: p @ x @ w)


W = normal(DIM, DIM, seed=7) / 2
CAUSAL = rows(torch.ones(TOKENS, TOKENS, dtype=torch.float64).tril())


# rates


def window(reach: int) -> Tensor:
    return rows(torch.ones(TOKENS, TOKENS, dtype=torch.float64).tril().triu(-reach))


SHIFT = torch.eye(TOKENS, dtype=torch.float64).roll(-1, 1)

RATES = {
    "causal": (CAUSAL, 0.5),
    "causal with decay": (rows(CAUSAL * 0.9 ** torch.arange(TOKENS).flip(0)), None),
    "window, whose eigenvalues coincide": (window(1), 0.5),
    "reads the token before: nilpotent": (SHIFT.T - SHIFT.T[:, -1:] * SHIFT.T[:1] * 0, 1.0),
    "rotates tokens": (SHIFT, 1.0),
    "two groups": (torch.kron(torch.eye(2), torch.full((3, 3), 1 / 3)).double(), 1.0),
    "cycle": (
        rows(torch.eye(TOKENS).double() + SHIFT + SHIFT.T),
        (1 + 2 * math.cos(2 * math.pi / TOKENS)) / 3,
    ),
}


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("values", [None, W], ids=["values 1", "values W"])
def test_the_rate_of_a_linear_layer_is_the_second_eigenvalue_of_its_map(
    name: str, values: Tensor | None
) -> None:
    p, expected = RATES[name]
    if expected is None:
        expected = float(torch.linalg.eigvals(p).abs().sort().values[-2])
    found = facts(mixing(p, values), depth=False)
    assert (found.consensus, found.consensus_gap) == ("kept", 0.0)
    assert found.residual_order == pytest.approx(1, abs=1e-3)
    assert found.rate == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 32])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_too_few_eigenvectors_make_a_rate_uncertain_and_the_uncertainty_says_so(size: int, dim: int) -> None:
    tokens = 12
    basis = torch.linalg.qr(torch.cat([torch.ones(tokens, 1).double(), normal(tokens, tokens - 1)], dim=1))[0]
    jordan = torch.diag(torch.tensor([1.0] + [0.5] * size + [0.25] * (tokens - 1 - size)).double())
    jordan += torch.diag(torch.tensor([0.0] + [1.0] * (size - 1) + [0.0] * (tokens - 1 - size)).double(), 1)
    found = facts(mixing(basis @ jordan @ basis.mT), tokens=tokens, dim=dim, depth=False)
    assert found.rate is not None
    assert found.rate_uncertainty is not None
    assert abs(found.rate - 0.5) <= found.rate_uncertainty + 1e-15
    assert found.rate_uncertainty < {1: 1e-9, 2: 1e-5}.get(size, 0.2)


def test_a_nilpotent_map_has_the_rate_zero_exactly() -> None:
    p = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
    p[0, 0] = 1
    p[range(1, TOKENS), range(TOKENS - 1)] = 1
    found = facts(mixing(p, W))
    assert (found.rate, found.fall, found.collapses) == (0.0, 0.0, True)


def turned_by_its_row(x: Tensor) -> Tensor:
    """Differences times c(m), m the mean, and all turned: at 1 m the rate is c(m), and no row comes to rest."""
    mean = x.mean(dim=0)
    share = 0.1 + 0.8 * mean[0].square() / mean.square().sum()
    return (mean + share * (x - mean)) @ torch.linalg.matrix_exp(normal(DIM, DIM) - normal(DIM, DIM).mT)


def share_at(row: Tensor) -> float:
    return float(0.1 + 0.8 * row[0].square() / row.square().sum())


def test_a_rate_that_depends_on_the_row_is_that_of_the_given_one_with_the_ends_of_the_draws() -> None:
    generator, rows_drawn = torch.Generator().manual_seed(0), list[Tensor]()
    for _ in range(3):
        rows_drawn.append(torch.randn(DIM, dtype=torch.float64, generator=generator))
        torch.randn(TOKENS, DIM, dtype=torch.float64, generator=generator)
    given = torch.tensor([3.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    for x in (None, given):
        found = facts(turned_by_its_row, depth=False, x=x)
        expected = [share_at(rows_drawn[0] if x is None else x), *map(share_at, rows_drawn[1:])]
        assert found.rate_at == "given"
        assert (found.rate_low, found.rate, found.rate_high) == pytest.approx(
            (min(expected), expected[0], max(expected)), abs=1e-9
        )
        assert found.rate is not None
        apart = max(max(expected) - found.rate, found.rate - min(expected))
        assert found.rate_uncertainty == pytest.approx(apart, abs=1e-9)
        assert found.rate_normed_uncertainty is not None
        assert found.rate_normed_uncertainty > 0.01


def test_the_given_row_is_a_row() -> None:
    with pytest.raises(RankscopeError, match="a row of 4 finite numbers"):
        facts(lambda x: x, x=torch.ones(3))


def test_a_rate_that_does_not_depend_on_the_row_has_no_ends() -> None:
    turn = torch.linalg.matrix_exp(normal(DIM, DIM) - normal(DIM, DIM).mT)
    found = facts(mixing(CAUSAL, turn), depth=False)
    assert (found.rate_at, found.rate_low, found.rate_high) == ("given", None, None)
    assert found.rate_uncertainty is not None
    assert found.rate_uncertainty < 1e-9


@pytest.mark.parametrize("leave", ["torch in float32", "numpy"])
def test_a_map_that_is_known_coarsely_has_no_eigenvalue_and_no_rank_of_rounding(leave: str) -> None:
    def single(x: Tensor) -> Tensor:
        return (x.float() @ W.float() @ x.float().mT).softmax(dim=-1) @ x.float()

    def outside(x: Tensor) -> Tensor:
        return torch.from_numpy((x @ W @ x.mT).softmax(dim=-1).detach().numpy() @ x.detach().numpy())

    found = facts(single if leave == "torch in float32" else outside, depth=False)
    assert (found.slem, found.rank_cap) == (0.0, 1)


def test_rounding_beside_large_logits_is_no_eigenvalue_and_no_rank() -> None:
    query, key = normal(DIM, DIM, seed=1), normal(DIM, DIM, seed=2)
    found = facts(lambda x: (30 * (x @ query) @ (x @ key).mT).softmax(dim=-1) @ x @ W, depth=False)
    assert (found.slem, found.rank_cap) == (0.0, 1)


def test_slopes_that_depend_on_the_step_are_those_of_no_map() -> None:
    """The derivative of |r|^1.5 is zero at equal tokens, that of r ln |r| is none: no step of differences shows it."""

    def to_a_power(x: Tensor) -> Tensor:
        off = x - x.mean(dim=0)
        return x.mean(dim=0) + off.abs() ** 1.5 * off.sign()

    def times_its_logarithm(x: Tensor) -> Tensor:
        off = x - x.mean(dim=0)
        return x.mean(dim=0) + off * off.abs().clamp(min=1e-300).log()

    found = facts(to_a_power, depth=False)
    assert found.residual_order == pytest.approx(1.5, abs=0.02)
    assert (found.slem, found.rank_cap) == (0.0, 1)
    assert facts(times_its_logarithm, depth=False).slem is None


def test_a_map_whose_rows_sum_to_zero_has_no_second_eigenvalue() -> None:
    means = rows(normal(TOKENS, TOKENS).abs())
    found = facts(lambda x: means @ x - x, depth=False)
    assert (found.consensus, found.slem, found.rank_cap) == ("kept", None, None)


def test_rows_that_read_one_token_have_no_entropy() -> None:
    found = facts(lambda x: SHIFT @ x, depth=False)
    assert found.entropy == 0.0


def test_a_steep_layer_keeps_all_digits_of_its_rate() -> None:
    """A norm over tokens divides by the root of 1e-5: differences are off by a hundred thousandth, derivatives not."""

    def steep(x: Tensor) -> Tensor:
        off = x - x.mean(dim=0)
        return x.mean(dim=0) + off / (x.var(dim=0, unbiased=False) + 1e-5).sqrt()

    assert facts(steep, depth=False).rate == pytest.approx(math.sqrt(1e5), abs=1e-9)
    outside = facts(lambda x: torch.from_numpy(steep(x).detach().numpy()), depth=False)
    assert outside.rate is not None
    assert outside.rate_uncertainty is not None
    assert 1e-6 < abs(outside.rate - math.sqrt(1e5)) <= outside.rate_uncertainty < 3


@pytest.mark.parametrize("slow", [0.5, 8.0])
def test_a_fixed_row_is_as_near_as_the_uncertainty_of_its_rate(slow: float) -> None:
    """tanh(P X V) + c X bends, so that its rate changes with the row; of a large c the row is neared in small steps."""
    values = torch.eye(DIM, dtype=torch.float64) + 0.3 * normal(DIM, DIM, seed=5)
    row = normal(DIM)
    size = row.norm()
    for _ in range(3000):
        row = torch.tanh(row @ values) + slow * row
        row = row / row.norm() * size
    slopes = values * (1 - torch.tanh(row @ values) ** 2)
    sizes = [
        float(torch.linalg.eigvals(slopes / share + slow * torch.eye(DIM)).abs().max())
        for share in range(1, TOKENS + 1)
    ]
    found = facts(lambda x: torch.tanh(CAUSAL @ x @ values) + slow * x, depth=False)
    assert found.rate_at == "fixed point"
    assert found.rate is not None
    assert found.rate_uncertainty is not None
    assert abs(found.rate - max(sizes[1:]) / sizes[0]) <= found.rate_uncertainty + 1e-14


def test_the_measured_fall_is_the_rate() -> None:
    found = facts(mixing(CAUSAL, W))
    assert found.fall == pytest.approx(0.5, abs=1e-3)
    assert found.collapses is True
    assert (found.slem, found.rank_cap) == (pytest.approx(0.5, abs=1e-9), TOKENS)
    assert found.entropy == pytest.approx(sum(math.log(i) for i in range(1, TOKENS + 1)) / TOKENS)
    assert found.dobrushin == pytest.approx(1 - 1 / TOKENS)


def test_a_symmetric_star_keeps_directions_alone_and_has_two_rates() -> None:
    """Star with 9 leaves: D^-1/2 A D^-1/2 has the eigenvalues 1, 1/2, ..., -2/5; its rows divided by their sums have
    a second eigenvalue of their own, found here from the matrix."""
    a = torch.eye(10, dtype=torch.float64)
    a[0], a[:, 0] = 1, 1
    half = a.sum(dim=1).rsqrt()
    p = half[:, None] * a * half
    found = facts(mixing(p, W), tokens=10)
    assert (found.consensus, found.residual_order) == ("directions", None)
    assert found.direction_order == pytest.approx(1, abs=1e-3)
    assert found.rate == pytest.approx(0.5, abs=1e-9)
    expected = float(torch.linalg.eigvals(rows(p)).abs().sort().values[-2])
    assert found.rate_normed == pytest.approx(expected, abs=1e-9)
    assert found.fall == pytest.approx(0.5, abs=1e-3)
    assert found.consensus_gap > 0.1
    assert found.consensus_gap_unit == 0.0
    assert said_of("it", found)[-1] == "Over depth the directions of tokens become equal."


@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_the_size_of_a_layer_does_not_matter(size: float) -> None:
    found = facts(mixing(size * CAUSAL, W), depth=False)
    assert (found.consensus, found.rate) == ("kept", pytest.approx(0.5, abs=1e-9))


@pytest.mark.parametrize(("tokens", "dim"), [(2, 1), (9, 1), (2, 8)])
def test_narrow_and_short_token_matrices(tokens: int, dim: int) -> None:
    p = rows(torch.ones(tokens, tokens, dtype=torch.float64).tril())
    found = facts(mixing(p), tokens=tokens, dim=dim)
    assert found.rate == pytest.approx(0.5, abs=1e-9)
    assert found.direction_order == (math.inf if dim == 1 else pytest.approx(1, abs=1e-2))


def test_around() -> None:
    """With a skip, eigenvalues m of P become (1 + m) over 2; a norm changes no direction."""
    skip = facts(mixing(CAUSAL), around="skip")
    assert skip.rate == pytest.approx(0.75, abs=1e-9)
    assert facts(mixing(CAUSAL), around="norm", depth=False).consensus == "kept"
    ends = {
        around: facts(mixing(torch.eye(TOKENS).double()), around=around).collapses
        for around in ("bare", "skip")
    }
    assert ends == {"bare": False, "skip": False}


# orders


def test_orders_of_layers_that_are_equal_after_one_layer_or_never() -> None:
    mean = facts(lambda x: x.mean(dim=0).expand_as(x) @ W)
    assert (mean.residual_order, mean.direction_order, mean.rate) == (math.inf, math.inf, None)
    assert mean.collapses is True
    assert json.loads(mean.model_dump_json())["residual_order"] == "exact"
    zero = facts(lambda x: 0 * x)
    assert (zero.consensus, zero.residual_order, zero.direction_order) == ("kept", math.inf, None)
    same = facts(lambda x: x)
    assert (same.rate, same.collapses, same.rate_at) == (pytest.approx(1), False, "fixed point")
    fixed = facts(lambda x: normal(TOKENS, DIM, seed=3) + 0 * x)
    assert (fixed.consensus, fixed.residual_order, fixed.rate) == ("none", None, None)
    apart = facts(lambda x: x - x.mean(dim=0))
    assert apart.residual_order == pytest.approx(0, abs=1e-6)
    assert apart.collapses is False


@pytest.mark.parametrize("power", [2, 5, 9])
def test_high_orders_are_no_kinks(power: int) -> None:
    found = facts(lambda x: x.mean(dim=0) @ W + (x - x.mean(dim=0)) ** power, depth=False)
    assert found.residual_order == pytest.approx(power, abs=0.02)


def test_same_direction_includes_the_sign_and_a_zero_token_has_none() -> None:
    signs = torch.ones(TOKENS, 1, dtype=torch.float64)
    signs[1] = -1
    assert facts(lambda x: signs * x, depth=False).consensus == "none"
    signs[1] = 0
    found = facts(lambda x: signs * x, depth=False)
    assert (found.consensus, found.consensus_gap_unit) == ("none", None)


def test_a_layer_that_is_equal_within_one_linear_piece_has_its_kink_found() -> None:
    """GAT on a complete graph: one linear piece of LeakyReLU makes all rows of the map equal."""
    a, b = normal(DIM, seed=1), normal(DIM, seed=2)

    def gat(x: Tensor) -> Tensor:
        scores = nn.functional.leaky_relu((x @ a)[:, None] + (x @ b)[None], 0.2)
        return scores.softmax(dim=-1) @ x

    found = facts(gat)
    assert (found.residual_order, found.direction_order) == (math.inf, math.inf)

    def kinked(x: Tensor) -> Tensor:  # the same piece ends at a residual of 0.01 of the first entry
        far = (x[:, :1] - x[:, :1].mean(dim=0)).abs()
        return x.mean(dim=0) + torch.relu(far - 0.01)

    found = facts(kinked)
    assert found.residual_order == math.inf
    assert found.kink is not None
    assert 0.001 < found.kink < 0.1


def hardmax(x: Tensor) -> Tensor:
    return nn.functional.one_hot((x @ normal(8, 8) @ x.mT).argmax(dim=-1), len(x)).double() @ x


def test_a_fall_that_is_one_of_rounding_is_not_told() -> None:
    band = rows(torch.ones(64, 64, dtype=torch.float64).tril().triu(-2))
    found = facts(mixing(band), tokens=64, dim=2)
    assert (found.rate, found.collapses) == (pytest.approx(0.5, abs=1e-9), True)
    assert found.fall is None


@pytest.mark.parametrize("read", [2, 8])
def test_a_fall_is_measured_with_larger_perturbations_where_rounding_is_in_small_ones(read: int) -> None:
    """Means of the past and of the first tokens: eigenvalues 1 / k for k > read, and rounding handed on and on."""
    allowed = torch.ones(64, 64, dtype=torch.float64).tril()
    allowed[:, :read] = 1
    found = facts(mixing(rows(allowed)), tokens=64, dim=4)
    assert found.rate == pytest.approx(1 / (read + 1), abs=1e-9)
    assert found.fall == pytest.approx(1 / (read + 1), abs=1e-3)


def test_copies_of_a_layer_alone_decide_whether_tokens_become_equal() -> None:
    """X Q + P X K: eigenvalues of Q + m K for those m of P; a turn behind every copy makes other matrices of them."""
    own, read = normal(DIM, DIM, seed=2), normal(DIM, DIM, seed=1002)
    sizes = [
        float(torch.linalg.eigvals(own + m * read).abs().max())
        for m in (1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6)
    ]
    found = facts(lambda x: x @ own + CAUSAL @ x @ read)
    assert found.rate == pytest.approx(max(sizes[1:]) / sizes[0], abs=1e-9)
    assert found.rate < 0.7
    assert found.fall is not None
    assert found.fall > 1.2
    assert found.collapses is True


def test_differences_that_come_to_rest_slowly_do_not_vanish() -> None:
    """Two groups that never meet: beside the common row their difference falls until both point the same way."""
    basis = normal(DIM, DIM, seed=3)
    values = torch.linalg.inv(basis) @ torch.diag(torch.tensor([1, 0.993, 0.5, 0.25]).double()) @ basis
    groups = torch.kron(torch.eye(2), torch.full((3, 3), 1 / 3)).double()
    layer = checked_layer(lambda x: groups @ x @ values, tokens=TOKENS, dim=DIM)
    ends = [
        depth._by_small_perturbations(layer, draws(layer, 2)[0], "kept", 0.4, patient=patient).collapses
        for patient in (False, True)
    ]
    assert ends == [True, False]


@pytest.mark.parametrize("ends", [1.5, 16.0])
def test_tokens_that_never_meet_do_not_become_equal_where_one_outgrows_the_others(ends: float) -> None:
    lengths = torch.linspace(1, ends, TOKENS, dtype=torch.float64)[:, None]
    found = facts(lambda x: lengths * x)
    assert (found.consensus, found.rate, found.rate_missing) == ("directions", None, "tokens vanish")
    assert found.rate_normed == pytest.approx(1, abs=1e-9)
    assert found.collapses is False


@pytest.mark.parametrize(
    "jump", [torch.round, torch.sign, hardmax, lambda x: ((x.mean(dim=0) + 0.1 * x) * 50).round()]
)
@pytest.mark.parametrize("around", ["bare", "norm"])
def test_below_a_jump_all_tokens_are_equal(jump, around) -> None:
    found = facts(jump, tokens=24, dim=8, around=around)
    assert (found.consensus, found.residual_order, found.direction_order) == ("kept", math.inf, math.inf)
    assert found.kink is not None
    assert 0 < found.kink < 0.2


@pytest.mark.parametrize("shrink", [nn.functional.softshrink, nn.functional.hardshrink])
def test_below_a_dead_zone_all_tokens_are_equal_though_above_it_the_order_is_one(shrink) -> None:
    found = facts(lambda x: x.mean(dim=0) + shrink(x - x.mean(dim=0), 1e-4))
    assert (found.residual_order, found.direction_order) == (math.inf, math.inf)
    assert found.kink is not None
    assert 1e-5 < found.kink < 1e-3
    assert found.rate is None


def test_a_kink_at_equal_tokens_may_leave_nothing_on_one_side() -> None:
    noise = normal(TOKENS, DIM, seed=3)
    found = facts(lambda x: x.mean(dim=0) + torch.relu((x[0] - x[1]).sum()) * noise)
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert found.direction_order == pytest.approx(1, abs=0.02)


def test_no_derivative_at_consensus_means_no_rate() -> None:
    found = facts(lambda x: 0.5 * x + 0.5 * x.amax(dim=0))
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert found.rate is None
    assert found.collapses is True


# what layers are like


def test_a_layer_in_float32_has_the_floors_of_float32() -> None:
    weights = W.float()

    def single(x: Tensor) -> Tensor:
        return CAUSAL.float() @ x.float() @ weights

    found = facts(single)
    assert (found.precision, found.consensus, found.consensus_gap) == ("float32", "kept", 0.0)
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert found.rate == pytest.approx(0.5, abs=1e-5)
    hidden = facts(lambda x: single(x).double(), depth=False)
    assert (hidden.precision, hidden.consensus) == ("float32", "kept")


def test_a_layer_that_leaves_torch_is_differentiated_by_differences() -> None:
    found = facts(lambda x: torch.from_numpy(CAUSAL.numpy() @ x.detach().numpy()), depth=False)
    assert found.rate == pytest.approx(0.5, abs=1e-6)


def attention_in(dtype: torch.dtype):
    """Causal means whose numbers pass through a dtype on the way; the output is float64, and fills it."""
    return lambda x: ((CAUSAL.to(dtype) @ x.to(dtype)).double() * 1.1) @ W


def by_numpy(x: Tensor) -> Tensor:
    mixed = CAUSAL.numpy().astype("float32") @ x.detach().numpy().astype("float32")
    return torch.from_numpy(mixed.astype("float64") * 1.1 @ W.numpy())


IN_SINGLE = {
    "steps": attention_in(torch.float32),
    "numpy": by_numpy,
    "output alone": lambda x: (CAUSAL @ x @ W).float(),
}


@pytest.mark.parametrize("name", IN_SINGLE)
def test_float32_inside_a_layer_is_seen(name: str) -> None:
    found = facts(IN_SINGLE[name], depth=False)
    assert (found.precision, found.consensus) == ("float32", "kept")
    assert found.rate is not None
    assert found.rate_uncertainty is not None
    assert abs(found.rate - 0.5) <= found.rate_uncertainty < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("then", [torch.Tensor.double, torch.Tensor.float])
def test_few_digits_inside_a_layer_are_refused_whatever_it_gives(dtype, then) -> None:
    with pytest.raises(RankscopeError, match=f"computes in {str(dtype).removeprefix('torch.')}"):
        checked_layer(lambda x: then(x.to(dtype).double() * 1.1) * 0.7 + 1, tokens=TOKENS, dim=DIM)


def test_few_digits_that_do_not_reach_the_output_are_no_matter() -> None:
    def watched(x: Tensor) -> Tensor:
        x.bfloat16().mean()
        keys = (x.bfloat16() > 0).double()
        return CAUSAL @ x @ W + 0 * keys

    assert checked_layer(watched, tokens=TOKENS, dim=DIM).dtype == torch.float64


def writes_into_its_input(x: Tensor) -> Tensor:
    x[:] = CAUSAL @ x
    return x


def test_a_layer_may_write_into_what_it_is_given_and_give_one_tensor_again_and_again() -> None:
    held = torch.zeros(TOKENS, DIM, dtype=torch.float64)

    def into_one(x: Tensor) -> Tensor:
        return held.copy_(CAUSAL @ x.detach())

    for layer in (writes_into_its_input, into_one):
        for around, rate in (("bare", 0.5), ("skip", 0.75)):
            found = facts(layer, around=around, depth=False)
            assert found.rate == pytest.approx(rate, abs=1e-6)


def test_attention_of_torch_has_a_derivative() -> None:
    attention = nn.MultiheadAttention(DIM, 2).double().eval()
    hidden = torch.full((TOKENS, TOKENS), -math.inf, dtype=torch.float64).triu(1)
    found = facts(lambda x: attention(x, x, x, attn_mask=hidden, need_weights=False)[0], depth=False)
    assert found.rate == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("sharp", [100, 10_000])
def test_a_sharp_softmax_has_the_order_three_at_small_scales_and_no_kink(sharp: float) -> None:
    """Where it is far from equal tokens it picks one token, and all outputs are equal up to rounding."""
    query, key = normal(DIM, DIM, seed=21) / 2, normal(DIM, DIM, seed=22) / 2
    found = facts(lambda x: (sharp * x @ query @ key.mT @ x.mT).softmax(dim=-1) @ x @ W, tokens=8)
    assert (found.residual_order, found.direction_order) == pytest.approx((3, 3), abs=0.02)
    assert found.kink is None


def test_a_kink_is_found_beside_a_bend_that_is_ten_times_larger() -> None:
    def bent(x: Tensor) -> Tensor:
        off = x[:, :1] - x[:, :1].mean(dim=0)
        return x + 10 * (x - x.mean(dim=0)).square() + 0.2 * torch.relu(off - 0.01)

    found = facts(bent, depth=False)
    assert found.kink is not None
    assert 0.001 < found.kink < 0.1
    assert found.residual_order == pytest.approx(1, abs=0.02)


def test_what_bends_sharply_is_no_kink() -> None:
    def over_tokens(x: Tensor) -> Tensor:
        return 1 + nn.functional.batch_norm(x, None, None, training=True, eps=1e-5)

    found = facts(over_tokens, depth=False)
    assert found.kink is None
    assert found.residual_order == pytest.approx(1, abs=0.02)
    assert found.rate_missing == "nothing common"


def test_a_recurrent_layer_is_read_from_the_middle_on() -> None:
    decays = torch.linspace(0.2, 0.6, DIM, dtype=torch.float64)

    def recurrent(x: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[0]), []
        for token in x:
            state = decays * state + token
            out.append(state)
        return torch.stack(out)

    found = facts(recurrent, tokens=12)
    assert (found.consensus, found.from_token) == ("none", 6)
    assert found.consensus_gap > 0.05
    assert found.residual_order == pytest.approx(1, abs=0.02)
    # Each entry passes itself on with 1, equal tokens with about 1 / (1 - decay): the largest is 1 over 1 / 0.4.
    assert found.rate == pytest.approx(0.4, abs=0.01)


def test_modules_come_as_they_are() -> None:
    torch.manual_seed(0)
    found = facts(nn.Sequential(nn.Linear(DIM, DIM), nn.Dropout(0.5)), depth=False)
    assert (found.precision, found.rate) == ("float64", pytest.approx(1, abs=1e-9))
    assert facts(nn.GRU(DIM, DIM), depth=False).from_token == TOKENS // 2

    def batched(x: Tensor) -> Tensor:
        texts, _, _ = x.shape
        return CAUSAL.expand(texts, -1, -1) @ x

    assert facts(batched, depth=False).rate == pytest.approx(0.5, abs=1e-9)


# what is no layer

counter = [0]


def counting(x: Tensor) -> Tensor:
    counter[0] += 1
    return x * counter[0]


class RemembersTheFirst(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.first = getattr(self, "first", x.clone())
        return x + self.first


class CannotBeCopied(nn.Linear):
    def __deepcopy__(self, memo: object) -> nn.Module:
        raise TypeError("a lock\ncannot be copied")


class TokensFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        _, texts, _ = x.shape
        return self.mix(x, x, x)[0] * texts


own_noise = torch.Generator().manual_seed(0)

NO_LAYERS = {
    "is made for other sizes": (
        nn.Linear(DIM + 1, DIM + 1),
        "made for other sizes, name them: tokens=, dim=",
    ),
    "takes tokens first": (TokensFirst(), "lambda x: layer(x[:, None])[:, 0]"),
    "needs a mask before": (lambda mask, x: mask * x, "lambda x: layer(mask, x)"),
    "is attention of torch": (nn.MultiheadAttention(DIM, 2), "lambda x: layer(x, key, value)"),
    "drops tokens": (lambda x: x[::2], "6 x 4 becomes 3 x 4"),
    "keeps the first": (lambda x: x[:4], "6 x 4 becomes 4 x 4"),
    "remembers the first": (RemembersTheFirst(), "keeps a state"),
    "cannot be copied": (CannotBeCopied(DIM, DIM), "cannot be copied to float64 (TypeError: a lock)"),
    "is a class": (nn.LayerNorm, "is a class"),
    "is a little random": (
        lambda x: x + 1e-9 * torch.randn(x.shape, generator=own_noise, dtype=torch.float64),
        "random numbers of its own",
    ),
    "pools": (lambda x: x.mean(dim=0), "6 x 4 becomes 4"),
    "is random": (lambda x: x + torch.randn_like(x), "is random"),
    "keeps state": (counting, "keeps a state"),
    "gives NaN": (lambda x: x * math.nan, "NaN"),
    "needs a memory": (lambda x, memory: x + memory, "needs 2 arguments (x, memory)"),
    "takes nothing": (lambda: 0, "takes no tokens"),
    "is a text": (lambda x: "text", "a str"),
    "is complex": (torch.fft.fft, "complex"),
    "is a number": (3, "no layer"),
    "is too large": (lambda x: 1e200 * x, "numbers of the size"),
    "is too small": (lambda x: 1e-200 * x, "numbers of the size"),
    "reads ids": (nn.Embedding(5, DIM), "no map"),
    "computes in bfloat16": (lambda x: (CAUSAL.bfloat16() @ x.bfloat16()).double(), "computes in bfloat16"),
    "computes in float16": (lambda x: CAUSAL.half() @ x.half(), "computes in float16"),
}


@pytest.mark.parametrize("name", NO_LAYERS)
def test_what_is_no_layer_is_told_in_one_line(name: str) -> None:
    layer, words = NO_LAYERS[name]
    with pytest.raises(RankscopeError) as raised:
        checked_layer(layer, tokens=TOKENS, dim=DIM)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_layer_that_changes_after_many_calls_keeps_a_state() -> None:
    calls = [0]

    def warms_up(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * (1 if calls[0] < 120 else 2)

    with pytest.raises(RankscopeError, match="after many calls it gives something else"):
        facts(warms_up, depth=False)


def test_an_order_that_depends_on_the_row_is_said_to() -> None:
    """A ReLU that is dead at two rows of three: there nothing is left of differences, at the third they stay."""
    drawn = [draw.x for draw in draws(checked_layer(lambda x: x, tokens=TOKENS, dim=DIM), 0)]
    towards = torch.linalg.lstsq(torch.stack(drawn), torch.tensor([-1.0, -1, 1]).double()).solution
    found = facts(
        lambda x: x.mean(dim=0) + torch.relu(x @ towards)[:, None] * normal(DIM, seed=4), depth=False
    )
    assert (found.residual_order_low, found.residual_order) == (pytest.approx(1, abs=0.02), math.inf)
    said = said_of("it", found)
    assert any("depends on the tokens (1 to exact at three random ones)" in one for one in said)
    assert not any("up to rounding" in one for one in said)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (lambda x: torch.linspace(1, 2, TOKENS).double()[:, None] * x, "leave some tokens without a length"),
        (lambda x: 0.5 * x + 0.5 * x.amax(dim=0), "the layer has no derivative at equal tokens"),
    ],
)
def test_why_there_is_no_rate_is_said(layer, why: str) -> None:
    (said,) = [one for one in said_of("it", facts(layer)) if one.startswith("There is no rate")]
    assert why in said


def outgrown(x: Tensor) -> Tensor:
    """At rows m of length 2 changes of the row grow by up to 12, differences by 6, and the row itself by 4."""
    mean = x.mean(dim=0)
    return mean * mean.square().sum() + 6 * (x - mean)


def at_rest(x: Tensor) -> Tensor:
    """The row comes to rest, so that its changes vanish faster than differences, which halve in every layer."""
    mean = x.mean(dim=0)
    return 1 + torch.tanh(0.2 * mean) + (x - mean) / 2


@pytest.mark.parametrize(
    ("layer", "low", "high", "collapses", "ends"),
    [
        (outgrown, 0.5, 0.5, False, "they grow, by a factor 1.5 per layer"),
        (at_rest, 1.01, 10, True, "they vanish, by"),
    ],
)
def test_a_rate_that_depth_does_not_show_is_said_to_be_relative(layer, low, high, collapses, ends) -> None:
    found = facts(layer, x=torch.ones(DIM, dtype=torch.float64))
    assert found.rate is not None
    assert low - 1e-9 <= found.rate <= high + 1e-9
    assert found.collapses is collapses
    for said in (" ".join(said_of("it", found)), said_of_a_row(found)):
        assert "relative to changes of the common token" in said
    assert ends in said_of_a_row(found)


def test_what_divides_by_differences_between_tokens_is_refused() -> None:
    """At equal tokens it is 0 / 0, or one rounding over another."""

    def norm_over_tokens(x: Tensor) -> Tensor:
        y = CAUSAL @ x @ W
        apart = y - y.mean(dim=0)
        return apart / apart.norm()

    with pytest.raises(RankscopeError, match="nothing but rounding for equal tokens"):
        facts(norm_over_tokens)


def test_later_tokens_that_vanish_beside_earlier_ones_are_not_told_to_be_equal() -> None:
    """A causal layer of degree three: of two tokens the longer one wins, and here it is among the first."""
    ahead = torch.linspace(2, 1, TOKENS, dtype=torch.float64)[:, None]
    back = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)
    falls = torch.linspace(0.1, 0.7, DIM, dtype=torch.float64)[:, None, None] ** back.clamp(min=0) * (
        back >= 0
    )
    found = facts(lambda x: ahead * x * torch.einsum("cij,jc->ic", falls, x.square()))
    assert found.consensus == "none"
    assert found.collapses is not True


def test_one_token_is_refused() -> None:
    with pytest.raises(RankscopeError, match="tokens=1"):
        facts(lambda x: x, tokens=1)


def test_a_fixed_row_that_repels_is_not_what_iteration_finds() -> None:
    """On a circle the angle a becomes a + 0.3 sin(2 a): rows along the first entry repel, the others attract."""

    def mapped(row: Tensor) -> Tensor:
        angle = torch.atan2(row[1], row[0])
        angle = angle + 0.3 * torch.sin(2 * angle)
        return torch.stack([torch.cos(angle), torch.sin(angle)])

    first, second = torch.eye(2, dtype=torch.float64)
    assert not rates._attracts(mapped, first, first + 0.1 * second)
    assert rates._attracts(mapped, second, second + 0.1 * first)
