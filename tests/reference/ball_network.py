"""The forward pass of a network in ball arithmetic: every number is a midpoint with a radius that encloses the truth.

A network is a list of blocks as in ``exact_network``: nested tuples, dictionaries, lists and floats. Every float is
taken as the exact number it stands for, so the balls enclose the network computed with real numbers from the stored
weights. More bits make smaller balls; they never make a wrong one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from typing import Any

from flint import arb, arb_mat, ctx

Ball = Any  # python-flint has no types of its own
Vector = list[Ball]
Matrix = list[list[Ball]]
Part = tuple[Any, ...]

FROBENIUS, COLUMNS, COMPOSITE = "residual[frobenius,mean]", "residual[l1,mean]", "residual[composite,mean]"
L1, L2, LINF = "diameter[l1]", "diameter[l2]", "diameter[linf]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Enclosed:
    """What is known of one layer: balls that hold its tokens, its residuals by name, and the maps of its block."""

    state: Matrix
    residuals: dict[str, Ball]
    maps: list[list[Matrix]]


def enclosed(network: Sequence[Part], x: Sequence[Sequence[float]], *, bits: int) -> list[Enclosed]:
    """Layers 0 .. L, computed with balls of ``bits`` bits; maps are listed per attention part, then per head."""
    with ctx.workprec(bits):
        return [
            Enclosed(state=state, residuals=residuals(state), maps=maps)
            for state, maps in _layers(network, x)
        ]


def states(network: Sequence[Part], x: Sequence[Sequence[float]], *, bits: int) -> Iterator[Matrix]:
    """The token matrices alone, one layer at a time; who stops asking pays for no further layer."""
    with ctx.workprec(bits):
        following = _layers(network, x)
    while True:
        with ctx.workprec(bits):  # whoever reads a layer may work with other bits in between
            layer = next(following, None)
        if layer is None:
            return
        yield layer[0]


def _layers(
    network: Sequence[Part], x: Sequence[Sequence[float]]
) -> Iterator[tuple[Matrix, list[list[Matrix]]]]:
    state = [_exact(token) for token in x]
    yield state, []
    for block in network:
        maps: list[list[Matrix]] = []
        state = _apply(block, state, maps)
        yield state, maps


def sharp(
    network: Sequence[Part],
    x: Sequence[Sequence[float]],
    *,
    digits: int = 12,
    bits: int = 200,
    most: int = 12_800,
) -> list[Enclosed]:
    """The same with as many bits as give every residual of every layer so many decimal digits.

    A residual that is exactly zero has none: bits are doubled no further than ``most``, and what is left is a ball
    around zero.
    """
    while True:
        found = enclosed(network, x, bits=bits)
        accurate = min(ball.rel_accuracy_bits() for layer in found for ball in layer.residuals.values())
        if accurate > 3.33 * digits or 2 * bits > most:
            return found
        bits *= 2


def residuals(state: Matrix) -> dict[str, Ball]:
    """Balls that hold the residuals from the mean and the diameters of a token matrix."""
    tokens = len(state)
    means = [_sum(column) / tokens for column in zip(*state, strict=True)]
    rest = [[entry - mean for entry, mean in zip(token, means, strict=True)] for token in state]
    columns = _largest([_sum(abs(entry) for entry in column) for column in zip(*rest, strict=True)])
    rows = _largest([_sum(abs(entry) for entry in token) for token in rest])
    apart = [
        [a - b for a, b in zip(one, other, strict=True)] for i, one in enumerate(state) for other in state[:i]
    ] or [[arb(0)]]
    return {
        FROBENIUS: _root(_sum(_square(entry) for token in rest for entry in token)),
        COLUMNS: columns,
        COMPOSITE: _root(columns * rows),
        L1: _largest([_sum(abs(entry) for entry in pair) for pair in apart]),
        L2: _root(_largest([_sum(_square(entry) for entry in pair) for pair in apart])),
        LINF: _largest([_largest([abs(entry) for entry in pair]) for pair in apart]),
    }


def log_ends(ball: Ball) -> tuple[float, float]:
    """Natural logarithms of both ends, the lower one rounded down and the upper one up; minus infinity for zero."""
    with ctx.workprec(120):
        low, high = ball.abs_lower(), ball.abs_upper()
        return (
            _down(low.log().lower()) if low > 0 else -inf,
            _up(high.log().upper()) if high > 0 else -inf,
        )


def distance(state: Matrix, floats: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Both ends of the largest Euclidean distance between a token in floats and the enclosed one."""
    with ctx.workprec(300):
        far = [
            _root(_sum(_square(entry - arb(number)) for entry, number in zip(token, row, strict=True)))
            for token, row in zip(state, floats, strict=True)
        ]
        return max(_down(ball.abs_lower()) for ball in far), max(_up(ball.abs_upper()) for ball in far)


def middle(matrix: Matrix) -> list[list[float]]:
    """Every midpoint rounded to a float."""
    return [[float(entry.mid()) for entry in row] for row in matrix]


def widest(matrix: Matrix) -> float:
    """The largest radius."""
    return max(float(entry.rad()) for row in matrix for entry in row)


def _down(end: Ball) -> float:
    """A float at or below an exact end of a ball."""
    near = float(end)
    return near if arb(near) <= end else nextafter(near, -inf)


def _up(end: Ball) -> float:
    near = float(end)
    return near if arb(near) >= end else nextafter(near, inf)


def _exact(numbers: Iterable[float]) -> Vector:
    return [arb(number) for number in numbers]


def _sum(balls: Iterable[Ball]) -> Ball:
    total = arb(0)
    for ball in balls:
        total += ball
    return total


def _square(ball: Ball) -> Ball:
    return ball * ball  # the power of a ball around zero is no ball


def _root(ball: Ball) -> Ball:
    """The square root of what is not negative, whatever the rounding of the ball below zero."""
    return ball.nonnegative_part().sqrt()


def _largest(balls: Sequence[Ball]) -> Ball:
    top = balls[0]
    for ball in balls[1:]:
        top = top.max(ball)
    return top


def _apply(part: Part, x: Matrix, maps: list[list[Matrix]]) -> Matrix:
    match part:
        case ("chain", parts):
            for inner in parts:
                x = _apply(inner, x, maps)
            return x
        case ("sum", parts):
            total = [[arb(0)] * len(x[0]) for _ in x]
            for inner in parts:
                total = _added(total, _apply(inner, x, maps))
            return total
        case ("skip", inner, scale):
            return _added(_scaled(x, scale), _apply(inner, x, maps))
        case ("scale", scale):
            return _scaled(x, scale)
        case ("norm", data):
            return [_normed(token, **data) for token in x]
        case ("mlp", data):
            return _mlp(x, **data)
        case ("attention", data):
            return _attention(x, maps, **data)
    raise ValueError(f"no rule in balls for the part {part[0]!r}")


def _added(a: Matrix, b: Matrix) -> Matrix:
    return [[p + q for p, q in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def _scaled(x: Matrix, scale: float | Sequence[float]) -> Matrix:
    factors = _exact([scale] if isinstance(scale, float) else scale)
    factors = factors * len(x[0]) if len(factors) == 1 else factors
    return [[factor * entry for factor, entry in zip(factors, token, strict=True)] for token in x]


def _affine(x: Matrix, matrix: Sequence[Sequence[float]], bias: Sequence[float] | None) -> Matrix:
    product = (arb_mat(x) * arb_mat([_exact(row) for row in matrix])).tolist()
    return (
        product if bias is None else [[a + arb(b) for a, b in zip(row, bias, strict=True)] for row in product]
    )


def _normed(
    token: Vector,
    *,
    kind: str,
    weight: Sequence[float] | None,
    bias: Sequence[float] | None,
    eps: float,
    offset: float,
) -> Vector:
    width = len(token)
    if kind == "layer":
        mean = _sum(token) / width
        token = [entry - mean for entry in token]
    size = _sum(_square(entry) for entry in token) / (1 if kind == "sphere" else width) + arb(eps)
    if kind == "sphere" and all(entry.is_zero() for entry in token) and eps == 0.0:
        unit = token  # a zero token has no direction and stays where it is
    else:
        unit = [entry / _root(size) for entry in token]
    if weight is not None:
        unit = [entry * (arb(w) + arb(offset)) for entry, w in zip(unit, weight, strict=True)]
    return unit if bias is None else [entry + arb(b) for entry, b in zip(unit, bias, strict=True)]


def _mlp(
    x: Matrix,
    *,
    up: Matrix,
    up_bias: Vector | None,
    gate: Matrix | None,
    gate_bias: Vector | None,
    activation: str,
    down: Matrix,
    down_bias: Vector | None,
) -> Matrix:
    inner = _affine(x, up, up_bias)
    if gate is None:
        inner = [[_activated(activation, h) for h in token] for token in inner]
    else:
        gates = _affine(x, gate, gate_bias)
        inner = [
            [_activated(activation, g) * h for g, h in zip(*tokens, strict=True)]
            for tokens in zip(gates, inner, strict=True)
        ]
    return _affine(inner, down, down_bias)


def _activated(name: str, h: Ball) -> Ball:
    match name:
        case "relu":
            return h.max(arb(0))
        case "leaky_relu":  # the slope is the float that stands in the definition
            return h.max(arb(0)) - arb(0.01) * (-h).max(arb(0))
        case "relu2":
            return h.max(arb(0)) * h.max(arb(0))
        case "gelu":
            return h * (-h / arb(2).sqrt()).erfc() / 2
        case "gelu_tanh":  # the constant is the float that stands in the definition
            return h * _sigmoid(2 * (2 / arb.pi()).sqrt() * (h + arb(0.044715) * h * h * h))
        case "quick_gelu":
            return h * _sigmoid(arb(1.702) * h)
        case "silu":
            return h * _sigmoid(h)
        case "tanh":
            return h.tanh()
        case "identity":
            return h
    raise ValueError(f"no rule in balls for the activation {name!r}")


def _sigmoid(h: Ball) -> Ball:
    if h.mid() < 0:  # the exponential of a number as large as floats go has no ball
        return h.exp() / (1 + h.exp())
    return 1 / (1 + (-h).exp())


def _attention(
    x: Matrix,
    maps: list[list[Matrix]],
    *,
    mixer: Part,
    heads: int,
    value: Matrix,
    value_heads: int,
    value_bias: Vector | None,
    out: Matrix,
    out_bias: Vector | None,
) -> Matrix:
    mixing = _maps(mixer, x, heads)
    maps.append(mixing)
    values = _by_head(_affine(x, value, value_bias), value_heads, heads)
    joined: Matrix = [[] for _ in x]
    for attention, carried in zip(mixing, values, strict=True):
        for row, mixed in zip(joined, (arb_mat(attention) * arb_mat(carried)).tolist(), strict=True):
            row.extend(mixed)
    return _affine(joined, out, out_bias)


def _by_head(flat: Matrix, groups: int, heads: int) -> list[Matrix]:
    width = len(flat[0]) // groups
    slices = [[token[g * width : (g + 1) * width] for token in flat] for g in range(groups)]
    return [slices[head * groups // heads] for head in range(heads)]


def _maps(mixer: Part, x: Matrix, heads: int) -> list[Matrix]:
    match mixer:
        case ("uniform", allowed):
            return [[[arb(bool(may)) / sum(map(bool, row)) for may in row] for row in allowed]] * heads
        case ("fixed", given):
            return [[_shares(_exact(row)) for row in attention] for attention in given]
        case ("softmax", data):
            return _softmax_maps(x, heads, **data)
    raise ValueError(f"no rule in balls for the mixer {mixer[0]!r}")


def _softmax_maps(
    x: Matrix,
    heads: int,
    *,
    query: Matrix,
    query_bias: Vector | None,
    key: Matrix,
    key_bias: Vector | None,
    key_heads: int,
    scale: float,
    softcap: float | None,
    allowed: Sequence[Sequence[bool]],
    position: Part | None,
    query_norm: Part | None,
    key_norm: Part | None,
    normed: str,
) -> list[Matrix]:
    flat_queries, flat_keys = _affine(x, query, query_bias), _affine(x, key, key_bias)
    queries = _by_head(_slices_normed(flat_queries, query_norm, normed, heads), heads, heads)
    keys = _by_head(_slices_normed(flat_keys, key_norm, normed, key_heads), key_heads, heads)
    bias = _position_bias(queries, position, scale)
    maps = []
    for head, (asked, offered) in enumerate(
        zip(_turned(queries, position), _turned(keys, position), strict=True)
    ):
        products = (arb_mat(asked) * arb_mat(offered).transpose()).tolist()
        logits = [
            [arb(scale) * product + more for product, more in zip(*rows, strict=True)]
            for rows in zip(products, bias[head], strict=True)
        ]
        if softcap is not None:
            logits = [[arb(softcap) * (logit / arb(softcap)).tanh() for logit in row] for row in logits]
        maps.append([_softmax(row, may) for row, may in zip(logits, allowed, strict=True)])
    return maps


def _softmax(logits: Vector, allowed: Sequence[bool]) -> Vector:
    top = max((logit.mid() for logit, may in zip(logits, allowed, strict=True) if may), key=float)
    weights = [(logit - top).exp() if may else arb(0) for logit, may in zip(logits, allowed, strict=True)]
    return _shares(weights)


def _shares(weights: Vector) -> Vector:
    total = _sum(weights)
    return [weight / total for weight in weights]


def _slices_normed(flat: Matrix, norm: Part | None, normed: str, groups: int) -> Matrix:
    if norm is None:
        return flat
    slices = 1 if normed == "all" else groups
    parts = [[_normed(token, **norm[1]) for token in one] for one in _by_head(flat, slices, slices)]
    return [[entry for part in parts for entry in part[i]] for i in range(len(flat))]


def _turned(by_head: list[Matrix], position: Part | None) -> list[Matrix]:
    """Queries or keys after the rotation of their first channels; as they are without rotary positions."""
    if position is None or position[0] != "rotary":
        return by_head
    data = position[1]
    gain, frequencies = arb(data["gain"]), _exact(data["frequencies"])
    turns = [[(place * one).sin_cos() for one in frequencies] for place in data["positions"]]
    return [
        [_turn(token, row, gain, data["interleaved"]) for token, row in zip(tokens, turns, strict=True)]
        for tokens in by_head
    ]


def _turn(token: Vector, turns: list[tuple[Ball, Ball]], gain: Ball, interleaved: bool) -> Vector:
    turned = list(token)
    for p, (sin, cos) in enumerate(turns):
        a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + len(turns))
        turned[a] = gain * (token[a] * cos - token[b] * sin)
        turned[b] = gain * (token[a] * sin + token[b] * cos)
    return turned


def _position_bias(queries: list[Matrix], position: Part | None, scale: float) -> list[Matrix]:
    """What the position rule adds to the logits, heads x tokens x tokens."""
    tokens = range(len(queries[0]))
    match position:
        case None | ("rotary", _):
            return [[[arb(0)] * len(tokens)] * len(tokens)] * len(queries)
        case ("bias", table):
            return [[_exact(row) for row in of_head] for of_head in table]
        case ("alibi", {"slopes": slopes, "positions": places}):
            return [
                [[-slope * abs(places[i] - places[j]) for j in tokens] for i in tokens]
                for slope in _exact(slopes)
            ]
        case ("transformer_xl", data):
            return _transformer_xl_bias(queries, data, scale)
        case ("segments", data):
            return _segment_bias(queries, data, scale)
    raise ValueError(f"no rule in balls for the position rule {position[0]!r}")


def _transformer_xl_bias(queries: list[Matrix], data: dict[str, Any], scale: float) -> list[Matrix]:
    places, width = data["positions"], len(data["projection"])
    bias = []
    for head, moved in enumerate(_shifted(queries, data)):
        rows = []
        for place, token in zip(places, moved, strict=True):
            waves = [_sinusoid(place - other, width) for other in places]
            keys = [
                _by_head([far], len(queries), len(queries))[head][0]
                for far in _affine(waves, data["projection"], None)
            ]
            rows.append([arb(scale) * _sum(q * k for q, k in zip(token, key, strict=True)) for key in keys])
        bias.append(rows)
    return bias


def _segment_bias(queries: list[Matrix], data: dict[str, Any], scale: float) -> list[Matrix]:
    bias, segments = _position_bias(queries, data["inner"], scale), data["segments"]
    if segments is None:
        return bias
    for head, moved in enumerate(_shifted(queries, data)):
        same, other = (
            [
                arb(scale) * _sum(q * arb(k) for q, k in zip(token, of_heads[head], strict=True))
                for token in moved
            ]
            for of_heads in data["table"]
        )
        bias[head] = [
            [
                more + (same[i] if segments[i] == segments[j] else other[i])
                for j, more in enumerate(bias[head][i])
            ]
            for i in range(len(segments))
        ]
    return bias


def _shifted(queries: list[Matrix], data: dict[str, Any]) -> list[Matrix]:
    """Queries of every head with ``shift`` added and, where it is given, ``content`` taken away."""
    content = data["content"] or [[0.0] * len(row) for row in data["shift"]]
    return [
        [
            [entry + arb(more) - arb(less) for entry, more, less in zip(token, *rows, strict=True)]
            for token in asked
        ]
        for asked, rows in zip(queries, zip(data["shift"], content, strict=True), strict=True)
    ]


def _sinusoid(apart: int, width: int) -> Vector:
    turns = [(apart * arb(10_000) ** (-arb(2 * p) / width)).sin_cos() for p in range(width // 2)]
    return [sin for sin, _ in turns] + [cos for _, cos in turns]
