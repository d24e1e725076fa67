"""The exact reference itself: against the float64 tree, against a closed form, and against its own digits."""

import subprocess
import sys
from math import log, log10
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp
from torch import Tensor
from torch.testing import assert_close

from kit.exact_specs import Tables, describe, plain
from kit.trees import DIM, HEADS, POSITIONS, RULES, Draws, attention, in_range, mlp, networks, norm, values
from rankscope.network import (
    ACTIVATIONS,
    Alibi,
    Attention,
    Chain,
    ClippedBuckets,
    Fixed,
    LayerNorm,
    Network,
    Norm,
    Part,
    Position,
    RelativeBias,
    RMSNorm,
    Rotary,
    Scale,
    SeenBias,
    Segments,
    Skip,
    Softmax,
    Sphere,
    Sum,
    TokenMap,
    TransformerXL,
    Values,
)
from rankscope.network.context import Context
from reference import exact_network as exact

TOKENS, WIDTH = 5, DIM // HEADS
CLOSED_FORM = (0.3736440273, 0.0091269523, 1.33050159e-7, 4.1217746e-22)


def agree(network: Network, x: Tensor, *, tables: Tables = "float", **knows: Tensor | None) -> None:
    """Every state of the float64 tree is the exact one, to the rounding that a few parts can pile up."""
    found = network.states(x, Context(**knows))
    expected = exact.states(describe(network, len(x), tables=tables, **knows), plain(x), digits=30)
    assert len(found) == len(expected) == len(network.blocks) + 1
    for state, reference in zip(found, expected, strict=True):
        wanted = torch.tensor(exact.floats(reference), dtype=torch.float64)
        size = max(1.0, float(wanted.abs().max()))
        assert_close(state, wanted, rtol=0, atol=1e-12 * size)  # about 5000 units of rounding


@settings(max_examples=25)
@given(networks(), st.integers(2, 6), st.integers(0, 2**16))
def test_random_trees_have_the_exact_states(network: Network, tokens: int, seed: int) -> None:
    x = Draws(seed)(tokens, DIM)
    assume(in_range(network, x))
    agree(network, x)


@pytest.mark.parametrize("tables", ["float", "exact"])
@pytest.mark.parametrize("place", POSITIONS)
def test_every_position_rule(place: str, tables: Tables) -> None:
    draw = Draws(1)
    network = Network([attention(draw, place=place, groups=groups) for groups in (1, HEADS)])
    agree(network, draw(TOKENS, DIM), tables=tables)


@pytest.mark.parametrize("tables", ["float", "exact"])
@pytest.mark.parametrize("place", POSITIONS)
def test_positions_may_start_anywhere_and_leave_gaps(place: str, tables: Tables) -> None:
    draw = Draws(2)
    network = Network([attention(draw, place=place, rule="causal")])
    agree(network, draw(TOKENS, DIM), tables=tables, positions=torch.tensor([3, 4, 7, 11, 12]))


def softmax(draw: Draws, heads: int = HEADS, head_dim: int = WIDTH, **rules: object) -> Attention:
    query, key = (draw(DIM, heads * head_dim) * DIM**-0.5 for _ in range(2))
    mixer = Softmax(query, key, heads=heads, **rules)
    return Attention(mixer, Values(draw(DIM, heads * 3), draw(heads * 3, DIM), heads=heads))


def moved_keys(draw: Draws) -> TransformerXL:
    return TransformerXL(draw(DIM, DIM) * DIM**-0.5, draw(HEADS, WIDTH), content=draw(HEADS, WIDTH))


def segment_tables(draw: Draws) -> dict[str, Tensor]:
    return {
        "table": draw(2, HEADS, WIDTH),
        "shift": draw(HEADS, WIDTH),
        "content": draw(HEADS, WIDTH),
    }


@pytest.mark.parametrize("tables", ["float", "exact"])
@pytest.mark.parametrize(
    "position",
    [
        Rotary(torch.tensor([0.7], dtype=torch.float64), gain=1.3),
        Rotary(torch.tensor([0.7, 0.1], dtype=torch.float64), interleaved=True, gain=1.3),
        Alibi(torch.tensor([0.3, 1.1], dtype=torch.float64)),
        RelativeBias(Draws(3)(5, HEADS), ClippedBuckets(max_distance=2)),
        SeenBias(Draws(13)(HEADS, TOKENS, TOKENS)),
        moved_keys(Draws(14)),
        Segments(moved_keys(Draws(15)), *(Draws(16)(2, HEADS, WIDTH), Draws(17)(HEADS, WIDTH))),
        Segments(Alibi(torch.tensor([0.3, 1.1], dtype=torch.float64)), **segment_tables(Draws(18))),
    ],
    ids=[
        *("rotary-gain-fraction", "rotary-gain-interleaved", "alibi", "clipped", "seen"),
        *("transformer-xl-content", "segments", "segments-content"),
    ],
)
def test_settings_of_position_rules(position: Position, tables: Tables) -> None:
    draw = Draws(4)
    network, x = Network([softmax(draw, position=position)]), draw(TOKENS, DIM)
    agree(network, x, tables=tables)
    if isinstance(position, Segments):
        agree(network, x, tables=tables, segments=torch.tensor([0, 1, 1, 0, 2]))


@pytest.mark.parametrize("normed", ["head", "all"])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, Sphere])
def test_query_and_key_norms(kind: type[Norm], normed: str) -> None:
    draw = Draws(5)
    width = WIDTH if normed == "head" else DIM
    query_norm, key_norm = (kind(draw(width), draw(width), eps=1e-3, offset=0.5) for _ in range(2))
    part = softmax(draw, query_norm=query_norm, key_norm=key_norm, normed=normed)
    agree(Network([part]), draw(TOKENS, DIM))


@pytest.mark.parametrize("rules", [{"scale": 3.0}, {"scale": 3.0, "softcap": 1.5}], ids=["scale", "softcap"])
@pytest.mark.parametrize("heads", [1, 3])
def test_logit_scale_softcap_and_heads_that_do_not_divide_the_dimension(
    heads: int, rules: dict[str, float]
) -> None:
    draw = Draws(6)
    agree(Network([softmax(draw, heads=heads, head_dim=3, **rules)]), draw(TOKENS, DIM))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_consecutive_heads_share_keys_and_values(groups: int) -> None:
    draw = Draws(12)
    agree(Network([attention(draw, heads=4, groups=groups, place="rotary")]), draw(TOKENS, DIM))


@pytest.mark.parametrize("rule", RULES)
def test_every_mask(rule: str) -> None:
    draw = Draws(7)
    agree(Network([attention(draw, rule=rule)]), draw(TOKENS, DIM))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_every_activation(name: str, gated: bool) -> None:
    draw = Draws(8)
    agree(Network([mlp(draw, activation=name, gated=gated)]), 3 * draw(TOKENS, DIM))


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm, Sphere])
def test_every_norm(kind: type[Norm], eps: float) -> None:
    draw = Draws(9)
    x = draw(TOKENS, DIM)
    if kind is Sphere:
        x[0] = 0.0  # has no direction and stays where it is
    agree(Network([kind(eps=eps), kind(draw(DIM), draw(DIM), eps=eps, offset=1.0)]), x)


def test_inner_nodes_and_fixed_maps() -> None:
    draw = Draws(10)
    maps = Fixed(torch.softmax(draw(HEADS, TOKENS, TOKENS), dim=-1))
    branches: list[Part] = [Attention(maps, values(draw)), Scale(draw(DIM)), Scale(-0.3), Chain([])]
    agree(Network([Skip(Sum(branches), draw(DIM)), Skip(Sum([]), 0.3), Sum([])]), draw(TOKENS, DIM))


def two_tokens(layers: int) -> list[exact.Part]:
    """Two tokens +-a/2 on a line with query times key 0.7: the spread becomes a tanh(0.7 a^2 / 4)."""
    one = torch.ones(1, 1, dtype=torch.float64)
    block = Attention(Softmax(0.7 * one, one, heads=1, scale=1.0), Values(one, one, heads=1))
    return describe(Network([block] * layers), 2)


def test_two_tokens_on_a_line_follow_the_closed_form() -> None:
    spreads = [b[0] - a[0] for a, b in exact.residuals(two_tokens(4), [[-0.65], [0.65]], digits=60)]
    assert [float(spread) for spread in spreads[1:]] == pytest.approx(CLOSED_FORM, rel=1e-8)  # digits printed


def test_the_closed_form_holds_far_below_the_smallest_float() -> None:
    found = exact.residuals(two_tokens(7), [[-0.65], [0.65]], digits=700)
    with mp.workdps(700):
        spread, k = mp.mpf(0.65) * 2, mp.mpf(0.7)
        for _ in range(7):
            spread *= mp.tanh(k * spread**2 / 4)
        assert exact.log10_norm(found[-1]) == pytest.approx(float(mp.log10(spread / mp.sqrt(2))), rel=1e-14)
        assert exact.log10_norm(found[-1]) < -580
        assert abs((found[-1][1][0] - found[-1][0][0]) / spread - 1) < mp.mpf(10) ** -45


def test_more_digits_give_the_same_residual() -> None:
    draw = Draws(11)
    gelu = [Chain([attention(draw), norm("layer", draw), mlp(draw, activation="gelu")]) for _ in range(4)]
    data, x = describe(Network(gelu), TOKENS), plain(draw(TOKENS, DIM))
    few, many = (exact.states(data, x, digits) for digits in (60, 200))
    for a, b in zip(few, many, strict=True):
        rough, fine = exact.residual(a), exact.residual(b)
        apart = [[p - q for p, q in zip(*rows, strict=True)] for rows in zip(rough, fine, strict=True)]
        assert exact.log10_norm(apart) < exact.log10_norm(b) - 58
    assert exact.log10_norm(fine) < -30


def test_a_residual_does_not_depend_on_the_precision_around_it() -> None:
    tiny = mp.mpf(10) ** -400
    with mp.workdps(500):
        state = [[1 + tiny], [mp.mpf(1)], [1 - tiny]]
    row, same, other = exact.residual(state)
    with mp.workdps(30):
        assert abs(row[0] / tiny - 1) < mp.mpf(10) ** -15  # tiny itself was rounded to a float's digits
        assert (same[0], row[0] + other[0]) == (0, 0)


def test_residuals_refuse_what_the_digits_cannot_hold() -> None:
    x = [[-0.65], [0.65]]
    with pytest.raises(ArithmeticError, match="30 digits do not leave 20 in the residual of layer 4"):
        exact.residuals(two_tokens(5), x, digits=30)
    with pytest.raises(
        ArithmeticError, match="layer 5"
    ):  # 66 orders small, of which 45 cancel within the block
        exact.residuals(two_tokens(6), x, digits=60)
    assert len(exact.residuals(two_tokens(5), x, digits=70)) == 6
    with pytest.raises(ArithmeticError, match="layer 1"):  # equal tokens have no digits at all
        exact.residuals([("sum", [])], x, digits=30)
    with pytest.raises(ValueError, match="at least 20"):
        exact.states(two_tokens(1), x, digits=15)


def test_residuals_end_where_the_caller_has_seen_enough() -> None:
    found = exact.residuals(two_tokens(50), [[-0.65], [0.65]], digits=120, down_to=-60)
    sizes = [exact.log10_norm(matrix) for matrix in found]
    assert sizes[-1] < -60 < sizes[-2]


def test_relative_error_of_a_scaled_matrix() -> None:
    with mp.workdps(50):
        scale = mp.exp(-1e5)
        matrix = [[3 * scale, mp.zero], [mp.zero, -4 * scale]]
    assert exact.log10_norm(matrix) == pytest.approx(-1e5 / log(10) + log10(5), rel=1e-15)
    assert (
        exact.relative_error([[0.6, 0.0], [0.0, -0.8]], -1e5 + log(5), matrix) < 1e-10
    )  # -1e5 has ulp 1.5e-11
    assert exact.relative_error([[3.0, 0.0], [0.0, -4.0]], -1e5, matrix) < 1e-45
    assert exact.relative_error([[3.0, 1e-9], [0.0, -4.0]], -1e5, matrix) == pytest.approx(2e-10, rel=1e-12)
    assert exact.relative_error([[0.0, 0.0], [0.0, 0.0]], -1e5, matrix) == 1.0


def test_no_error_is_relative_to_consensus() -> None:
    equal = exact.residual([[mp.mpf(2), mp.mpf(1)]] * 3)
    assert exact.log10_norm(equal) == float("-inf")
    with pytest.raises(ZeroDivisionError, match="all tokens are equal"):
        exact.relative_error([[0.0, 0.0]] * 3, 0.0, equal)


def test_what_has_no_exact_rule_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="TokenMap"):
        describe(Network([TokenMap(torch.nn.Identity())]), TOKENS)
    with pytest.raises(ValueError, match=r"got shape \(2, 8\).*one network at a time"):
        describe(Network([Scale(torch.ones(2, DIM, dtype=torch.float64))]), TOKENS)
    with pytest.raises(ValueError, match="no exact rule for the part 'dropout'"):
        exact.states([("dropout", 0.1)], [[1.0]], digits=30)


def test_the_reference_imports_neither_torch_nor_rankscope() -> None:
    code = "import sys, reference.exact_network; assert not {'torch', 'rankscope'} & set(sys.modules)"
    tests = Path(exact.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], cwd=tests, check=True)  # noqa: S603 - our own interpreter
