"""The split pass through mixers beyond softmax, against the same layers in a hundred digits; and their two orders."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from kit.trees import DIM, HEADS, RULES, SPLIT_MIXERS, Draws, mixer, norm, paddings, values
from rankscope.measures import find_measure
from rankscope.network import (
    Attention,
    Chain,
    Context,
    Differential,
    Gaussian,
    HeadGate,
    Linear,
    Network,
    QueryKey,
    SinkSoftmax,
    Skip,
    Sphere,
    Values,
    stack,
)
from rankscope.split import log_measure, predict_rate, split_states, split_tokens
from rankscope.split.linear_maps import _features
from rankscope.split.run import stream_near
from rankscope.split.state import Split

KNOWN = SPLIT_MIXERS
RATIO = find_measure("residual_ratio[frobenius,mean]")
RESIDUAL = find_measure("residual[frobenius,mean]")


def network(name: str, rule: str = "full", place: str = "none", seed: int = 31) -> Network:
    """Two attentions in a row, the second one with a skip, and a norm between them."""
    draw = Draws(seed)

    def one() -> Attention:
        return Attention(mixer(draw, name, rule=rule, place=place), values(draw))

    return Network([Chain([one(), norm("rms", draw)]), Skip(one(), 0.3)])


@pytest.mark.parametrize("place", ["none", "rotary", "alibi"])
@pytest.mark.parametrize("rule", ["full", "causal", "prefix:1+causal"])
@pytest.mark.parametrize("name", KNOWN)
def test_tokens_of_the_split_are_those_of_the_network(name: str, rule: str, place: str) -> None:
    net, draw = network(name, rule, place), Draws(32)
    x = draw(2, 5, DIM)
    for spread in (1.0, 1e-3, 30.0):
        near = x[:, :1] + spread * (x - x[:, :1])
        for found, state in zip(split_states(net, near), net.states(near), strict=True):
            assert_close(found.tokens(), state, rtol=1e-11, atol=1e-11)


@settings(max_examples=12)
@given(paddings(), st.sampled_from(KNOWN), st.sampled_from(RULES), st.integers(0, 2**10))
def test_a_padded_batch_is_split_as_its_texts(is_token: Tensor, name: str, rule: str, seed: int) -> None:
    net, x = network(name, rule, seed=seed), Draws(seed)(3, 6, DIM)
    x = x[:, :1] + 1e-3 * x
    batch = split_states(net, x, Context(is_token=is_token))
    for text, keep in enumerate(is_token):
        for ours, own in zip(batch, split_states(net, x[text][keep]), strict=True):
            assert_close(ours.tokens()[text][keep], own.tokens(), rtol=1e-10, atol=1e-11)
            assert_close(ours.log_scale[text], own.log_scale, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", KNOWN)
def test_seeds_are_split_as_single_networks(name: str) -> None:
    nets = [network(name, seed=seed) for seed in range(3)]
    x = Draws(9)(3, 5, DIM)
    batch = split_states(stack(nets), x)
    for seed, net in enumerate(nets):
        for ours, own in zip(batch, split_states(net, x[seed]), strict=True):
            assert_close(ours.log_scale[seed], own.log_scale, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------- a hundred digits

Row = list[mpmath.mpf]


def numbers(values_: Tensor) -> list[Row]:
    return [[mpmath.mpf(float(entry)) for entry in row] for row in values_.detach()]


def product(x: list[Row], matrix: list[Row], bias: Row | None = None) -> list[Row]:
    found = [[mpmath.fdot(row, column) for column in zip(*matrix, strict=True)] for row in x]
    return found if bias is None else [[a + b for a, b in zip(row, bias, strict=True)] for row in found]


def projected(one: QueryKey, x: list[Row], head: int, which: str) -> list[Row]:
    width = DIM // HEADS
    own = slice(head * width, (head + 1) * width)
    matrix, bias = getattr(one, which)[:, own], getattr(one, f"{which}_bias")[own]
    return product(x, numbers(matrix), numbers(bias[None])[0])


def row_weights(one: object, x: list[Row], head: int) -> list[Row]:
    """The map of one head by its definition."""
    if isinstance(one, Differential):
        first, second = (row_weights(half, x, head) for half in (one.first, one.second))
        factor = mpmath.mpf(float(one.factor[head]))
        return [
            [a - factor * b for a, b in zip(*rows, strict=True)] for rows in zip(first, second, strict=True)
        ]
    if isinstance(one, HeadGate):
        bias = mpmath.mpf(float(one.bias[head]))
        opened = [row[0] + bias for row in product(x, numbers(one.gate[:, head : head + 1]))]
        inner = row_weights(one.inner, x, head)
        return [[a / (1 + mpmath.exp(-z)) for a in row] for row, z in zip(inner, opened, strict=True)]
    assert isinstance(one, QueryKey)
    query, key = projected(one, x, head, "query"), projected(one, x, head, "key")
    scale = mpmath.mpf(one.scale)

    def weight(q: Row, k: Row) -> mpmath.mpf:
        if isinstance(one, Gaussian):
            return mpmath.exp(-scale / 2 * mpmath.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True)))
        if isinstance(one, Linear):
            both = ([1 + a if a > 0 else mpmath.exp(a) for a in v] for v in (q, k))
            return mpmath.fdot(*both)
        return mpmath.exp(scale * mpmath.fdot(q, k))

    rows = [[weight(q, k) for k in key] for q in query]
    more = mpmath.exp(mpmath.mpf(float(one.sinks[head]))) if isinstance(one, SinkSoftmax) else 0
    return [[a / (mpmath.fsum(row) + more) for a in row] for row in rows]


def exact_attention(part: Attention, x: list[Row]) -> list[Row]:
    width, held = DIM // HEADS, part.values
    mixed: list[Row] = [[] for _ in x]
    for head in range(HEADS):
        own = slice(head * width, (head + 1) * width)
        carried = product(x, numbers(held.value[:, own]), numbers(held.value_bias[own][None])[0])
        new = product(row_weights(part.mixer, x, head), carried)
        mixed = [[*row, *more] for row, more in zip(mixed, new, strict=True)]
    return product(mixed, numbers(held.out), numbers(held.out_bias[None])[0])


def log_residual(x: list[Row]) -> float:
    means = [mpmath.fsum(column) / len(x) for column in zip(*x, strict=True)]
    return float(
        mpmath.log(mpmath.fsum((a - m) ** 2 for row in x for a, m in zip(row, means, strict=True))) / 2
    )


@pytest.mark.parametrize("exponent", [-2, -9, -15])
@pytest.mark.parametrize("name", KNOWN)
def test_residuals_far_below_rounding_are_right(name: str, exponent: int) -> None:
    """Two layers from tokens that differ by 10^exponent, where a float64 of the tokens holds no difference at all."""
    draw = Draws(33)
    parts = [Attention(mixer(draw, name), values(draw)) for _ in range(2)]
    common, residual = draw(DIM), draw(4, DIM)
    residual = residual - residual.mean(dim=-2, keepdim=True)
    size = float(residual.norm())
    start = Split(
        common=common,
        residual=residual / size,
        log_scale=torch.tensor(math.log(size) + exponent * math.log(10.0), dtype=torch.float64),
    )
    with mpmath.workdps(200):
        scale = mpmath.mpf(size) * mpmath.mpf(10) ** exponent
        (row,) = numbers(common[None])
        x = [[c + scale * r for c, r in zip(row, own, strict=True)] for own in numbers(residual / size)]
        for part, found in zip(parts, list(stream_near(Network(parts), start, Context()))[1:], strict=True):
            x = exact_attention(part, x)
            assert float(found.log_scale) == pytest.approx(log_residual(x), abs=1e-9)


ORDERS = {
    "off-by-one": 1,
    "sinks": 1,
    "head-gate": 1,
    "gaussian": 3,
    "differential": 3,
    "linear": 3,
}


@pytest.mark.parametrize("name", KNOWN)
def test_residual_orders(name: str) -> None:
    """Residual of one layer against that of its tokens: row sums that depend on the query are of order one."""
    draw = Draws(34)
    net = Network([Attention(mixer(draw, name), values(draw))])
    common, residual = draw(DIM), split_tokens(draw(5, DIM)).residual
    logs = []
    for log_scale in (-20.0, -40.0):
        scale = torch.tensor(log_scale, dtype=torch.float64)
        *_, last = stream_near(net, Split(common=common, residual=residual, log_scale=scale), Context())
        logs.append(float(last.log_scale))
    assert (logs[0] - logs[1]) / 20 == pytest.approx(ORDERS[name], abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_sink_keeps_lengths_apart_and_not_directions(heads: int) -> None:
    """One head without biases: behind the sphere the order is three again. The factors of two heads turn their sum."""
    draw = Draws(35)
    asked = {"query": draw(DIM, DIM) / 3, "key": draw(DIM, DIM) / 3, "heads": heads, "sinks": draw(heads)}
    part = Attention(SinkSoftmax(**asked), Values(draw(DIM, DIM), draw(DIM, DIM), heads=heads))
    common, residual = draw(DIM), split_tokens(draw(5, DIM)).residual
    sizes = []
    for log_scale in (-4.0, -6.0):
        x = common + math.exp(log_scale) * residual
        value = log_measure(RESIDUAL, split_states(Network([Chain([part, Sphere()])]), x, error=True)[-1])
        assert bool(value.resolved), "the floor does not hide what is there"
        sizes.append(float(value.log))
    assert (sizes[0] - sizes[1]) / 2 == pytest.approx(3 if heads == 1 else 1, abs=0.1)


def test_floors_of_what_a_sink_leaves_are_far_below_it() -> None:
    draw = Draws(36)
    net = Network([Chain([Attention(mixer(draw, "sinks"), values(draw)), norm("layer", draw)])])
    x = draw(DIM) + 1e-9 * draw(5, DIM)
    found = split_states(net, x, error=True)[-1]
    plain = log_measure(RATIO, found)
    assert bool(plain.resolved), "lengths of tokens differ at first order, and LayerNorm has a bias"
    assert float(plain.log_floor) < float(plain.log) - 5


@pytest.mark.parametrize("name", KNOWN)
def test_rates_are_predicted_or_declined(name: str) -> None:
    draw = Draws(37)
    net = Network([Chain([Attention(mixer(draw, name), values(draw)), norm("rms", draw)]) for _ in range(12)])
    found = predict_rate(net, draw(DIM), tokens=4, generator=torch.Generator().manual_seed(0))
    assert found.declined != "not known"


@given(st.floats(-3, 3), st.floats(-3, 3), st.sampled_from([1.0, 1e-5, 1e-300, 0.0]))
def test_features_differ_by_their_quotient(at: float, change: float, scale: float) -> None:
    row, step, size = (torch.tensor([[one]], dtype=torch.float64) for one in (at, change, scale))
    value, quotient = _features(row, step, size)
    assert_close(value, torch.nn.functional.elu(row) + 1)
    with mpmath.workdps(700):

        def f(v: mpmath.mpf) -> mpmath.mpf:
            return 1 + v if v > 0 else mpmath.exp(v)

        a, d, s = mpmath.mpf(at), mpmath.mpf(change), mpmath.mpf(scale)
        wanted = (f(a + s * d) - f(a)) / s if scale else (d if at > 0 else mpmath.exp(a) * d)
    assert float(quotient) == pytest.approx(float(wanted), rel=1e-12, abs=1e-300)
