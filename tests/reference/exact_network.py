"""The forward pass of a network with as many decimal digits as the caller asks for, in plain loops.

A network is a list of blocks, each a nest of plain tuples, dictionaries, lists and floats; every float is taken
as the exact number it stands for. ``None`` stands for what is absent.

Parts:
    ("chain", [part, ...]), ("sum", [part, ...]), ("skip", part, scale), ("scale", scale): a scale is a number, or
        a list of one number or of one per channel.
    ("norm", {"kind": "layer" | "rms" | "sphere", "weight", "bias", "eps", "offset"}).
    ("mlp", {"up", "up_bias", "gate", "gate_bias", "activation", "down", "down_bias"}).
    ("attention", {"mixer", "heads", "value", "value_heads", "value_bias", "out", "out_bias"}).
Mixers:
    ("softmax", {"query", "query_bias", "key", "key_bias", "key_heads", "scale", "softcap", "allowed", "position",
        "query_norm", "key_norm", "normed": "head" | "all"}): "allowed"[i][j] is true where i may read j.
    ("uniform", allowed).
    ("fixed", maps per head): rows are divided by their sum, since floats rarely sum to one exactly.
Position rules of softmax (or None):
    ("rotary", {"cos", "sin", "interleaved"}): the tables are taken as given, one row per token.
    ("rotary", {"frequencies", "gain", "positions", "interleaved"}): exact cosines of position * frequency.
    ("bias", table): heads x tokens x tokens, added to the logits.
    ("alibi", {"slopes", "positions"}).
    ("transformer_xl", {"shift", "content", "positions", "keys"}): keys per head and distance, smallest distance first.
    ("transformer_xl", {"shift", "content", "positions", "projection"}): keys are projections of exact sinusoids.
    ("segments", {"inner", "table", "shift", "content", "segments"}): added to what the inner rule adds.
"""

from collections.abc import Sequence
from math import inf
from typing import Any

from mpmath import mp

Number = Any  # mpmath has no types of its own
Vector = list[Number]
Matrix = list[list[Number]]
Part = tuple[Any, ...]

KEPT = 50
"""Digits of a residual, of its norm and of its error; the states behind them carry as many as were asked for."""


def states(network: Sequence[Part], x: Sequence[Sequence[float]], digits: int) -> list[Matrix]:
    """Token matrices of layers 0 .. L, computed with ``digits`` decimal digits."""
    result = [_entered(x, digits)]
    for block in network:
        result.append(_left(block, result[-1], digits))
    return result


def residuals(
    network: Sequence[Part],
    x: Sequence[Sequence[float]],
    digits: int,
    *,
    down_to: float = -inf,
    certain: int = 20,
) -> list[Matrix]:
    """Residuals of layers 0 .. L, or up to the first layer whose log10 norm is below ``down_to``.

    A residual is what cancellation leaves of the digits, so the pass runs a second time with ten digits more. Where
    the two do not share ``certain`` digits, or both see equal tokens, what is left may be noise: this raises.
    """
    rough, fine = _entered(x, digits), _entered(x, digits + 10)
    result = [residual(fine)]
    for layer, block in enumerate(network, start=1):
        rough, fine = _left(block, rough, digits), _left(block, fine, digits + 10)
        result.append(residual(fine))
        size = log10_norm(result[-1])
        if not log10_norm(_subtracted(residual(rough), result[-1])) < size - certain:
            raise ArithmeticError(
                f"{digits} digits do not leave {certain} in the residual of layer {layer} (log10 norm {size:.0f}); "
                "ask for more digits or fewer layers"
            )
        if size < down_to:
            break
    return result


def residual(state: Matrix) -> Matrix:
    """The state minus the mean of its tokens: subtracted without any rounding, then kept to ``KEPT`` digits."""
    tokens = len(state)
    totals = []
    for column in zip(*state, strict=True):
        total = mp.zero
        for entry in column:
            total = mp.fadd(total, entry, exact=True)
        totals.append(total)
    with mp.workdps(KEPT):
        return [
            [
                mp.fsub(mp.fmul(tokens, entry, exact=True), total, exact=True) / tokens
                for entry, total in zip(token, totals, strict=True)
            ]
            for token in state
        ]


def log10_norm(matrix: Matrix) -> float:
    """Decimal logarithm of the Frobenius norm; ``-inf`` for a zero matrix."""
    with mp.workdps(KEPT):
        norm = _frobenius(matrix)
        return float(mp.log10(norm)) if norm else -inf


def relative_error(measured: Sequence[Sequence[float]], log_scale: float, exact: Matrix) -> float:
    """``|e^s M - E| / |E|`` in the Frobenius norm, with s the natural logarithm of the scale of M."""
    with mp.workdps(KEPT):
        size = _frobenius(exact)
        if not size:
            raise ZeroDivisionError(
                "the exact residual is zero: all tokens are equal, no error is relative to it"
            )
        scale = mp.exp(log_scale)
        found = [[scale * mp.mpf(entry) for entry in token] for token in measured]
        return float(_frobenius(_subtracted(found, exact)) / size)


def floats(matrix: Matrix) -> list[list[float]]:
    """Every entry rounded to the nearest float."""
    return [[float(entry) for entry in token] for token in matrix]


def _entered(x: Sequence[Sequence[float]], digits: int) -> Matrix:
    if digits < 20:
        raise ValueError(f"{digits} digits cannot hold every float exactly; ask for at least 20")
    with mp.workdps(digits):
        return [_exact(token) for token in x]


def _left(block: Part, state: Matrix, digits: int) -> Matrix:
    with mp.workdps(digits):
        return _apply(block, state)


def _frobenius(matrix: Matrix) -> Number:
    return mp.sqrt(mp.fsum((entry for token in matrix for entry in token), squared=True))


def _exact(numbers: Sequence[float]) -> Vector:
    return [mp.mpf(number) for number in numbers]


def _affine(x: Matrix, matrix: Sequence[Sequence[float]], bias: Sequence[float] | None) -> Matrix:
    columns = [_exact(column) for column in zip(*matrix, strict=True)]
    shift = [mp.zero] * len(columns) if bias is None else _exact(bias)
    return [[mp.fdot(token, column) + b for column, b in zip(columns, shift, strict=True)] for token in x]


def _scaled(x: Matrix, scale: float | Sequence[float]) -> Matrix:
    factors = _exact(scale if isinstance(scale, list | tuple) else [scale])
    factors = factors * len(x[0]) if len(factors) == 1 else factors
    return [[f * entry for f, entry in zip(factors, token, strict=True)] for token in x]


def _added(a: Matrix, b: Matrix) -> Matrix:
    return [[p + q for p, q in zip(one, other, strict=True)] for one, other in zip(a, b, strict=True)]


def _subtracted(a: Matrix, b: Matrix) -> Matrix:
    with mp.workdps(KEPT):
        return [[p - q for p, q in zip(one, other, strict=True)] for one, other in zip(a, b, strict=True)]


def _apply(part: Part, x: Matrix) -> Matrix:
    match part:
        case ("chain", parts):
            for inner in parts:
                x = _apply(inner, x)
            return x
        case ("sum", parts):
            total = [[mp.zero] * len(token) for token in x]
            for inner in parts:
                total = _added(total, _apply(inner, x))
            return total
        case ("skip", inner, scale):
            return _added(_scaled(x, scale), _apply(inner, x))
        case ("scale", scale):
            return _scaled(x, scale)
        case ("norm", data):
            return [_norm(token, **data) for token in x]
        case ("mlp", data):
            return _mlp(x, **data)
        case ("attention", data):
            return _attention(x, **data)
    raise ValueError(f"no exact rule for the part {part[0]!r}")


def _norm(
    token: Vector,
    *,
    kind: str,
    weight: Sequence[float] | None,
    bias: Sequence[float] | None,
    eps: float,
    offset: float,
) -> Vector:
    if kind == "layer":
        mean = mp.fsum(token) / len(token)
        token = [entry - mean for entry in token]
    size = mp.fsum(token, squared=True)
    length = mp.sqrt((size if kind == "sphere" else size / len(token)) + mp.mpf(eps))
    if not (kind == "sphere" and length == 0):  # a zero token has no direction and stays zero
        token = [entry / length for entry in token]
    if weight is not None:
        token = [entry * (w + mp.mpf(offset)) for entry, w in zip(token, _exact(weight), strict=True)]
    if bias is not None:
        token = [entry + b for entry, b in zip(token, _exact(bias), strict=True)]
    return token


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
            [_activated(activation, g) * h for g, h in zip(*rows, strict=True)]
            for rows in zip(gates, inner, strict=True)
        ]
    return _affine(inner, down, down_bias)


def _activated(name: str, h: Number) -> Number:
    match name:
        case "relu":
            return h if h > 0 else mp.zero
        case "leaky_relu":  # the slope is the float that stands in the definition
            return h if h > 0 else mp.mpf(0.01) * h
        case "relu2":
            return h * h if h > 0 else mp.zero
        case "gelu":
            return h * mp.ncdf(h)
        case "gelu_tanh":  # the constant is the float that stands in the definition
            return h / 2 * (1 + mp.tanh(mp.sqrt(2 / mp.pi) * (h + mp.mpf(0.044715) * h**3)))
        case "quick_gelu":
            return h / (1 + mp.exp(-mp.mpf(1.702) * h))
        case "silu":
            return h / (1 + mp.exp(-h))
        case "tanh":
            return mp.tanh(h)
        case "identity":
            return h
    raise ValueError(f"no exact rule for the activation {name!r}")


def _attention(
    x: Matrix,
    *,
    mixer: Part,
    heads: int,
    value: Matrix,
    value_heads: int,
    value_bias: Vector | None,
    out: Matrix,
    out_bias: Vector | None,
) -> Matrix:
    maps = _maps(mixer, x, heads)
    values = _by_head(_affine(x, value, value_bias), value_heads, heads)
    joined: Matrix = [[] for _ in x]
    for attention, carried in zip(maps, values, strict=True):
        columns = list(zip(*carried, strict=True))
        for i, row in enumerate(attention):
            joined[i] += [mp.fdot(row, column) for column in columns]
    return _affine(joined, out, out_bias)


def _by_head(flat: Matrix, groups: int, heads: int) -> list[Matrix]:
    """One matrix per head, from flat rows of ``groups`` slices that each serve ``heads / groups`` heads in a row."""
    width = len(flat[0]) // groups
    slices = [[token[g * width : (g + 1) * width] for token in flat] for g in range(groups)]
    return [slices[head * groups // heads] for head in range(heads)]


def _maps(mixer: Part, x: Matrix, heads: int) -> list[Matrix]:
    match mixer:
        case ("uniform", allowed):
            return [[_shares([mp.mpf(bool(may)) for may in row]) for row in allowed]] * heads
        case ("fixed", maps):
            return [[_shares(_exact(row)) for row in attention] for attention in maps]
        case ("softmax", data):
            return _softmax_maps(x, heads, **data)
    raise ValueError(f"no exact rule for the mixer {mixer[0]!r}")


def _shares(row: Vector) -> Vector:
    total = mp.fsum(row)
    return [entry / total for entry in row]


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
    queries = _by_head(_normed(_affine(x, query, query_bias), query_norm, normed, heads), heads, heads)
    keys = _by_head(_normed(_affine(x, key, key_bias), key_norm, normed, key_heads), key_heads, heads)
    turned_queries, turned_keys = _turned(queries, position), _turned(keys, position)
    bias = _position_bias(queries, position, mp.mpf(scale))
    maps = []
    for head in range(heads):
        rows = []
        for i, q in enumerate(turned_queries[head]):
            may_read = [j for j, may in enumerate(allowed[i]) if may]
            logits = {
                j: mp.mpf(scale) * mp.fdot(q, turned_keys[head][j]) + bias[head][i][j] for j in may_read
            }
            if softcap is not None:
                logits = {j: softcap * mp.tanh(logit / softcap) for j, logit in logits.items()}
            top = max(logits.values())
            rows.append(_shares([mp.exp(logits[j] - top) if j in logits else mp.zero for j in range(len(x))]))
        maps.append(rows)
    return maps


def _normed(flat: Matrix, norm: Part | None, normed: str, groups: int) -> Matrix:
    if norm is None:
        return flat
    slices = 1 if normed == "all" else groups
    parts = [_apply(norm, part) for part in _by_head(flat, slices, slices)]
    return [[entry for part in parts for entry in part[i]] for i in range(len(flat))]


def _turned(by_head: list[Matrix], position: Part | None) -> list[Matrix]:
    """Queries or keys after the rotation of their first channels; as they are without rotary positions."""
    if position is None or position[0] != "rotary":
        return by_head
    data = position[1]
    if "cos" in data:
        cosines, sines = ([_exact(row) for row in data[name]] for name in ("cos", "sin"))
    else:
        frequencies, gain = _exact(data["frequencies"]), mp.mpf(data["gain"])
        cosines = [[gain * mp.cos(p * f) for f in frequencies] for p in _exact(data["positions"])]
        sines = [[gain * mp.sin(p * f) for f in frequencies] for p in _exact(data["positions"])]
    return [
        [_turn(*rows, data["interleaved"]) for rows in zip(vectors, cosines, sines, strict=True)]
        for vectors in by_head
    ]


def _turn(vector: Vector, cosines: Vector, sines: Vector, interleaved: bool) -> Vector:
    turned, pairs = list(vector), len(cosines)
    for p, (cos, sin) in enumerate(zip(cosines, sines, strict=True)):
        a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + pairs)
        turned[a] = vector[a] * cos - vector[b] * sin
        turned[b] = vector[a] * sin + vector[b] * cos
    return turned


def _position_bias(queries: list[Matrix], position: Part | None, scale: Number) -> list[Matrix]:
    """What the position rule adds to the logits, heads x tokens x tokens."""
    tokens = range(len(queries[0]))
    match position:
        case None | ("rotary", _):
            return [[[mp.zero] * len(tokens)] * len(tokens)] * len(queries)
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
    raise ValueError(f"no exact rule for the position rule {position[0]!r}")


def _transformer_xl_bias(queries: list[Matrix], data: dict[str, Any], scale: Number) -> list[Matrix]:
    places = data["positions"]
    farthest = max(places) - min(places)
    if "keys" in data:
        keys = [[_exact(key) for key in of_head] for of_head in data["keys"]]
    else:
        width = len(data["projection"])
        waves = [_sinusoid(distance, width) for distance in range(-farthest, farthest + 1)]
        keys = _by_head(_affine(waves, data["projection"], None), len(queries), len(queries))
    bias = []
    for shifted, of_head in zip(_shifted(queries, data), keys, strict=True):
        bias.append(
            [
                [scale * mp.fdot(q, of_head[places[i] - place + farthest]) for place in places]
                for i, q in enumerate(shifted)
            ]
        )
    return bias


def _segment_bias(queries: list[Matrix], data: dict[str, Any], scale: Number) -> list[Matrix]:
    bias, segments = _position_bias(queries, data["inner"], scale), data["segments"]
    if segments is None:
        return bias
    found = []
    for head, shifted in enumerate(_shifted(queries, data)):
        tables = [_exact(of_heads[head]) for of_heads in data["table"]]
        found.append(
            [
                [
                    bias[head][i][j] + scale * mp.fdot(q, tables[segments[i] != segments[j]])
                    for j in range(len(segments))
                ]
                for i, q in enumerate(shifted)
            ]
        )
    return found


def _shifted(queries: list[Matrix], data: dict[str, Any]) -> list[Matrix]:
    """Queries of every head with ``shift`` added and, where it is given, ``content`` taken away."""
    shifts = [_exact(row) for row in data["shift"]]
    if data["content"] is not None:
        shifts = _added(shifts, [_exact([-entry for entry in row]) for row in data["content"]])
    return [_added(vectors, [shift] * len(vectors)) for vectors, shift in zip(queries, shifts, strict=True)]


def _sinusoid(distance: int, width: int) -> Vector:
    angles = [distance * mp.mpf(10_000) ** (-mp.mpf(2 * p) / width) for p in range(width // 2)]
    return [mp.sin(angle) for angle in angles] + [mp.cos(angle) for angle in angles]
