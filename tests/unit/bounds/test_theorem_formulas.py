"""Formulas of the theorems against many-digit arithmetic and loops that share no code with them."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.bounds.facts import facts_of
from rankscope.bounds.theorems import (
    THEOREMS,
    critical_spread,
    cubic_constant,
    layers_until,
    log_spreads,
    with_gamma,
)
from rankscope.bounds.theorems.dong import LOGIT_LIMIT, needed_gamma, printed_constant, proven_constants
from rankscope.bounds.theorems.recursions import LOWEST, Log, cubed, shifted
from rankscope.errors import ConfigError, ShapeError, UnknownNameError
from rankscope.masks import parse_mask
from rankscope.measures import find_measure
from rankscope.network import Attention, Network, Softmax, Spec, Values, build, gaussian_tokens, generators
from rankscope.split import log_measure, split_states
from reference import theorem_formulas as plain

MARGINS = 3e-8  # a dozen norms and starts, each raised by one billionth


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def network(seed=0, tokens=5, **spec):
    for_weights, for_tokens = generators(seed)
    net = build(Spec(**({"layers": 3, "heads": 2, "dim": 6} | spec)), for_weights)
    return net, 0.3 * gaussian_tokens(tokens, 6, generator=for_tokens)


def heads_of(block, heads):
    part = block.parts[0] if hasattr(block, "parts") else getattr(block, "inner", block)
    mixer, held = part.mixer, part.values
    scale = (6 / heads) ** -0.5
    return [
        (
            plain.query_key(mixer.query.numpy(), mixer.key.numpy(), head, heads, scale),
            plain.value_out(held.value.numpy(), held.out.numpy(), head, heads),
        )
        for head in range(heads)
    ]


def is_just_above(found, expected, share=MARGINS, layers=1):
    """A log that is above the exact one, by no more than the margins, tripled with every layer."""
    found, expected = float(found), float(expected)
    assert expected <= found <= expected + share * 3**layers, (found, expected)


# ---------------------------------------------------------------- Theorem A, the recursion itself


def test_two_tokens_in_one_dimension_at_every_depth():
    with mpmath.workdps(60):
        exact = plain.log_spreads(mpmath.mpf(1.3), [([0.7], [1.0])] * 200)
    found = log_spreads(double(1.3).log(), [(double(0.7), double(1.0))] * 200)[:, 0]
    for log, expected in zip(found.tolist(), exact, strict=True):
        assert abs(log - expected) <= 1e-14 * abs(expected)
        if expected > math.log(1e-100):
            assert abs(mpmath.expm1(log - expected)) <= 1e-13
    shown = [f"{value:.9e}" for value in found[1:5].exp().tolist()]
    assert shown == ["3.736440273e-01", "9.126952341e-03", "1.330501587e-07", "4.121774608e-22"]


def test_the_network_of_two_tokens_attains_the_recursion():
    one = torch.ones(1, 1, dtype=torch.float64)
    block = Attention(Softmax(0.7 * one, one, heads=1, scale=1.0), Values(one, one, heads=1))
    net, x = Network([block] * 12), double(0.65, -0.65).unsqueeze(-1)
    measured = torch.stack(
        [log_measure(find_measure("diameter[l2]"), one).log for one in split_states(net, x)]
    )
    exact = log_spreads(double(1.3).log(), [(double(0.7), double(1.0))] * 12)[:, 0]
    torch.testing.assert_close(measured, exact, rtol=1e-14, atol=1e-15)  # one ulp at the logs of order one
    bound = THEOREMS["theorem-a[l2]"].log_bound(facts_of(net, x))
    for layer in range(13):
        is_just_above(bound[layer], measured[layer], share=6e-9, layers=layer)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e2)), min_size=1, max_size=4),
    st.floats(1e-12, 1e6),
    st.integers(1, 20),
)
def test_the_recursion_is_exact_to_rounding(heads, start, layers):
    s, w = (list(column) for column in zip(*heads, strict=True))
    exact = plain.log_spreads(mpmath.mpf(start), [(s, w)] * layers, digits=80)
    found = log_spreads(double(start).log(), [(double(*s), double(*w))] * layers)[:, 0]
    # The recursion triples an error at most, and so it does the log once it is small: an error of one rounding of
    # the largest log before that is what remains, relative to where it has come to.
    largest = max(1.0, abs(float(exact[0])), *(abs(math.log(v)) for v in (*s, *w)))
    for layer, expected in enumerate(exact):
        assert abs(found[layer].item() - expected) <= 1e-14 * max(
            abs(expected), largest * 3.0 ** min(layer, 40) / 9
        )


def test_beyond_the_range_of_floats_the_smallest_one_stands_for_the_log():
    found = log_spreads(double(0.5).log(), [(double(1.0), double(1.0))] * 700)
    assert bool((found[1:] <= found[:-1]).all())
    assert found[-1].item() == LOWEST
    grown = log_spreads(double(1e6).log(), [(double(1.0), double(3.0))] * 700)
    torch.testing.assert_close(grown[-1, 0].item(), math.log(1e6) + 700 * math.log(3), rtol=1e-14, atol=0)


def test_nothing_stays_nothing_and_no_head_leaves_nothing():
    start = torch.tensor([-torch.inf, 0.0, torch.inf], dtype=torch.float64)
    found = log_spreads(start, [(double(1.0), double(1.0)), (double(0.0), double(5.0))])
    assert found[1].tolist()[0] == -torch.inf
    assert found[1].tolist()[2] == torch.inf
    assert found[2].tolist()[:2] == [-torch.inf, -torch.inf]
    assert not bool(found.isnan().any())


@given(st.floats(-1e300, 1e300), st.floats(-700, 700))
def test_logs_in_two_floats_are_cubed_and_shifted_exactly(log, constant):
    with mpmath.workdps(60):
        for found, expected in (
            (cubed(Log.of(double(log)), double(constant)), 3 * mpmath.mpf(log) + mpmath.mpf(constant)),
            (shifted(Log.of(double(log)), double(constant)), mpmath.mpf(log) + mpmath.mpf(constant)),
        ):
            total = mpmath.mpf(found.high.item()) + mpmath.mpf(found.low.item())
            assert abs(total - expected) <= 1e-31 * max(abs(mpmath.mpf(log)), abs(mpmath.mpf(constant)), 1)


@settings(max_examples=20)
@given(st.floats(1e-3, 1e3), st.floats(1.01, 50))
def test_the_critical_spread_of_one_head_in_closed_form(s, w):
    exact = math.sqrt(4 * math.atanh(1 / w) / s)
    found = critical_spread(double(s), double(w)).item()
    # tanh is flat where w is near one: an error of one rounding there is 1 / (w - 1) of them in the spread
    assert found == pytest.approx(exact, rel=1e-13 / (w - 1) + 1e-14)
    below, above = (
        log_spreads(double(found * c).log(), [(double(s), double(w))])[:, 0] for c in (0.99, 1.01)
    )
    assert below[1] < below[0]
    assert above[1] > above[0]


def test_the_critical_spread_of_weak_heads_is_infinite():
    found = critical_spread(double(1.0, 2.0).expand(2, 2), torch.stack([double(0.4, 0.6), double(0.4, 0.7)]))
    assert found[0].item() == torch.inf
    total = (double(0.4, 0.7) * torch.tanh(double(1.0, 2.0) * found[1].square() / 4)).sum()
    assert total.item() == pytest.approx(1, rel=1e-14)
    assert cubic_constant(double(1.0, 2.0), double(0.4, 0.6)).item() == pytest.approx(0.4, rel=1e-15)


def test_layers_until_a_target():
    start, s, w = double(1.3, 1.3).log(), double(0.7).expand(2, 1), torch.tensor([[1.0], [9.0]]).double()
    assert layers_until(start, s, w, math.log(1e-20)).tolist() == [4, math.inf]
    assert layers_until(start, s, w, math.log(1e-30)).tolist() == [5, math.inf]
    assert layers_until(start, s, w, 1.0).tolist() == [0, 0]
    with pytest.raises(ShapeError, match="asked to follow 0 layers; give at least one"):
        layers_until(start, s, w, 0.0, most=0)


# ---------------------------------------------------------------- all statements, from a network


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_printed_bounds_are_the_powers_of_their_formula(heads):
    net, x = network(heads=heads)
    facts = facts_of(net, x)
    blocks = [heads_of(block, heads) for block in net.blocks]
    beta = max(plain.column_sum(a) * plain.composite(b) for block in blocks for a, b in block)
    start = plain.composite_residual(x.numpy())
    for gamma in (1.0, 2.5):
        found = with_gamma(THEOREMS["dong-2.3"], gamma).log_bound(facts)
        for layer in range(4):
            expected = plain.cubic_log_bound(4 * gamma * beta * heads, start, layer)
            is_just_above(found[layer], expected, layers=layer)
    if heads == 1:
        torch.testing.assert_close(
            THEOREMS["dong-2.2"].log_bound(facts), THEOREMS["dong-2.3"].log_bound(facts)
        )
        rows = max(plain.column_sum(a) * plain.row_sum(b) for block in blocks for a, b in block)
        for layer in range(4):
            expected = plain.cubic_log_bound(4 * rows, start, layer)
            is_just_above(THEOREMS["dong-2.2-winf"].log_bound(facts)[layer], expected, layers=layer)
    assert bool(THEOREMS["dong-2.3"].is_vacuous(facts)) == (4 * beta * heads * start**2 >= 1)


def test_the_mlp_corollary_multiplies_by_the_lipschitz_factor():
    net, x = network(variant="san+mlp")
    facts = facts_of(net, x)
    constants = []
    for block in net.blocks:
        mlp = block.parts[1]
        factors = [plain.composite(one.numpy()) for one in (mlp.up, mlp.down)]
        beta = max(plain.column_sum(a) * plain.composite(b) for a, b in heads_of(block, 2))
        constants.append(8 * beta * factors[0] * factors[1])
    found = THEOREMS["dong-3.2-mlp"].log_bound(facts)
    for layer in range(4):
        expected = plain.cubic_log_bound(max(constants), plain.composite_residual(x.numpy()), layer)
        is_just_above(found[layer], expected, layers=layer)


def test_the_skip_bound_is_the_largest_of_its_terms():
    net, x = network(variant="san+skip")
    beta = max(
        plain.column_sum(a) * plain.composite(b) for block in net.blocks for a, b in heads_of(block, 2)
    )
    found = THEOREMS["dong-skip"].log_bound(facts_of(net, x))
    for layer in range(4):
        expected = plain.skip_log_bound(8 * beta, 2, plain.composite_residual(x.numpy()), layer)
        is_just_above(found[layer], expected, layers=layer)


@pytest.mark.parametrize("heads", [1, 3])
def test_theorem_b_has_the_constants_of_its_proof(heads):
    net, x = network(heads=heads)
    facts, states, constants = facts_of(net, x), net.states(x), []
    for block, state in zip(net.blocks, states, strict=False):
        mixer, pairs = block.mixer, heads_of(block, heads)
        logits = []
        for head, (w_qk, _) in enumerate(pairs):
            common = state.mean(dim=0).numpy() @ w_qk
            logits.append(plain.split_logits(state.numpy(), w_qk, common))
            assert head < mixer.heads
        constants.append(plain.theorem_b_constant(pairs, logits, tokens=5))
    torch.testing.assert_close(
        proven_constants(facts).exp().tolist(), [float(k) for k in constants], rtol=1e-7, atol=0
    )
    log, found = mpmath.log(plain.composite_residual(x.numpy())), THEOREMS["theorem-b"].log_bound(facts)
    for layer, constant in enumerate(constants, start=1):
        log = 3 * log + mpmath.log(constant)
        is_just_above(found[layer], log, layers=layer)
    needed = needed_gamma(facts).item()
    assert needed == pytest.approx(float(max(constants)) / printed_constant(facts).exp().item(), rel=1e-7)


def test_the_logit_limit_is_the_root_of_its_equation():
    assert math.expm1(LOGIT_LIMIT) == pytest.approx(2 * LOGIT_LIMIT, rel=1e-15)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_theorem_a_of_a_network(norm):
    net, x = network(heads=2, variant="san+mlp")
    p = {"l1": 1.0, "l2": 2.0, "linf": torch.inf}[norm]
    layers = []
    for block in net.blocks:
        mlp = block.parts[1]
        pairs = heads_of(block, 2)
        if norm == "l1":
            s, w = [abs(a).max() for a, _ in pairs], [plain.row_sum(b) for _, b in pairs]
            factor = plain.row_sum(mlp.up.numpy()) * plain.row_sum(mlp.down.numpy())
        elif norm == "linf":
            s, w = [abs(a).sum() for a, _ in pairs], [plain.column_sum(b) for _, b in pairs]
            factor = plain.column_sum(mlp.up.numpy()) * plain.column_sum(mlp.down.numpy())
        else:
            s, w = ([torch.linalg.svdvals(torch.tensor(m[k]))[0].item() for m in pairs] for k in (0, 1))
            factor = math.prod(torch.linalg.svdvals(one)[0].item() for one in (mlp.up, mlp.down))
        layers.append(([float(v) for v in s], [float(v) * factor for v in w]))
    start = torch.cdist(x, x, p=p).max().item()
    found = THEOREMS[f"theorem-a[{norm}]"].log_bound(facts_of(net, x))
    for layer, expected in enumerate(plain.log_spreads(mpmath.mpf(start), layers)):
        is_just_above(found[layer], expected, layers=layer)


@pytest.mark.parametrize(
    ("mask", "radius"), [("full", 1), ("causal", 1), ("window:1", 2), ("causal-window:1", 4)]
)
def test_the_masked_rate_with_its_constants_written_out(mask, radius):
    net, x = network(heads=1, mask=mask, layers=5)
    trace = net.trace(x, maps=True)
    maps = [trace.maps[layer, "attention"][0].numpy() for layer in range(1, 6)]
    values = [heads_of(block, 1)[0][1] for block in net.blocks]
    diameter = torch.cdist(x, x).max().item()
    found = THEOREMS["wu-masked"].log_bound(facts_of(net, x))
    allowed = parse_mask(mask).matrix(5)
    for layer in range(6):
        expected = plain.masked_log_bound(values, maps, allowed, radius, diameter, layer)
        is_just_above(found[layer], expected, share=1e-6, layers=0)


def test_the_sphere_multiplies_by_what_two_rows_do_not_share():
    net, x = network(heads=1, norm="sphere", values="orthogonal", mask="causal")
    x = x.abs() / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    trace = net.trace(x, maps=True)
    theorem, facts = THEOREMS["sphere-orthogonal"], facts_of(net, x)
    assert bool(theorem.holds(facts))
    left, found = 1 - float((x @ x.T).min()), theorem.log_bound(facts)
    for layer in range(4):
        is_just_above(found[layer], math.log(2 * left) / 2, layers=1)
        if layer < 3:
            left *= 1 - plain.smallest_overlap(trace.maps[layer + 1, "attention"][0].numpy())


def test_unknown_names_and_impossible_gammas_are_refused():
    with pytest.raises(UnknownNameError, match=r"unknown theorem .dong-2\.1.; did you mean"):
        THEOREMS["dong-2.1"]
    with pytest.raises(ConfigError, match=r"gamma=-1\.0 is no factor of a bound; give a positive number"):
        with_gamma(THEOREMS["dong-2.2"], -1.0)
    assert with_gamma(THEOREMS["theorem-b"], 3.0) is THEOREMS["theorem-b"]
