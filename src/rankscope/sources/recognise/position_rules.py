"""Position rules from numbers: the turn of queries and keys, and what is added to the logits.

Axis letters: h head, i query, j key, t token, c channel as the product sees it, a b channels as the linear map gives.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.network import Alibi, NoPosition, Position, RelativeBias, Rotary, SeenBias, SeenDistances
from rankscope.sources.operations.region import Unread
from rankscope.sources.recognise.combinations import EXACT

SINGLE = 2.0**-22
"""Rounding of a table that was made in float32: of the angle and of the sine, with room for a product."""

FEWEST = 3
"""Tokens that a rule of positions is read from: two of them agree with any rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """How queries and keys turn: the rule, the order of channels that it wants, and what is left as factors.

    Args:
        query_order: for every channel of the rule, which channel of the query it is; ``key_order`` likewise.
        factor: what every channel is multiplied with.
        is_single: whether the angles come from a table in float32.
    """

    rotary: Rotary
    query_order: Tensor
    key_order: Tensor
    factor: float
    is_single: bool


def fit_turn(query: Tensor, key: Tensor) -> Turn:
    """The rotary rule of ``query`` and ``key`` (t c a and t c b: what the product sees of what the map gives)."""
    if query.shape != key.shape or query.shape[-1] != query.shape[-2]:
        raise Unread("queries and keys turn with their position and differ in width")
    if len(query) < FEWEST:
        raise Unread(f"queries and keys turn with the position, and {len(query)} tokens do not tell how")
    try:
        return _fitted_turn(query, key, EXACT, is_single=False)
    except Unread:
        return _fitted_turn(query, key, SINGLE * len(query), is_single=True)


def _fitted_turn(query: Tensor, key: Tensor, near: float, *, is_single: bool) -> Turn:
    seen = torch.einsum("ca,tcb->tab", query[0], key)  # logits of query 0 with the key t, by channels
    start = seen[0]
    partner = start.abs().argmax(1)
    gain = start.gather(1, partner[:, None]).squeeze(1)
    rest = start.clone().scatter_(1, partner[:, None], 0.0)
    size = float(gain.abs().max())
    if (
        float(rest.abs().max()) > near * size
        or len(partner.unique()) != len(partner)
        or float(gain.min()) <= 0
    ):
        raise Unread("queries and keys are changed by more than a turn with the position")
    turn = seen[:, :, partner] / gain[:, None]
    width, first, second, interleaved, order = _pairs(turn, near)
    angle = torch.atan2(turn[:, second, first], turn[:, first, first])
    length = torch.hypot(turn[:, second, first], turn[:, first, first])
    if float((length - 1).abs().max()) > near:
        raise Unread("queries and keys change in size with the position")
    frequency = _frequency(angle)
    frequency = _geometric(frequency, len(turn), width) if is_single else frequency
    tokens = torch.arange(len(turn), dtype=torch.float64)
    made = _turned(tokens[:, None] * frequency, first, second, turn.shape[-1])
    if float((made - turn).abs().max()) > 4 * near:
        raise Unread("queries and keys turn by no angle that grows with the position")
    gain, ratio = gain[order], 1.0
    turned, still = gain[:width], gain[width:]
    factor = float(still[0]) if len(still) else float(turned[0])
    if len(still) and abs(float(turned[0]) / factor - 1) > near:
        ratio = math.sqrt(float(turned[0]) / factor)
    if any(float((one / one[0] - 1).abs().max()) > near for one in (turned, still) if len(one)):
        raise Unread("queries and keys turn with a factor of their own for every channel")
    if abs(factor - 1) < near:
        factor = 1.0 if is_single else factor
    return Turn(
        Rotary(frequency, interleaved=interleaved, gain=ratio), order, partner[order], factor, is_single
    )


def _pairs(turn: Tensor, near: float) -> tuple[int, Tensor, Tensor, bool, Tensor]:
    """Which channels turn together: how many, first and second of every pair, whether neighbours, the order wanted."""
    count = turn.shape[-1]
    moved = (turn.abs().amax(0) > near).fill_diagonal_(False)
    moved = moved | moved.T
    if int(moved.sum(1).max()) > 1:
        raise Unread("queries and keys are changed by more than a turn with the position")
    one, other = moved.triu().nonzero(as_tuple=True)
    if not len(one):
        raise Unread("queries and keys change in size with the position")
    gaps, every = other - one, torch.arange(count)
    half = int(gaps[0])
    if bool((gaps == half).all()) and int(one.max()) < half and 2 * half <= count:
        return 2 * half, torch.arange(half), torch.arange(half, 2 * half), False, every
    width = int(other.max()) + 1
    if bool((gaps == 1).all()) and bool((one % 2 == 0).all()):
        return width, torch.arange(0, width, 2), torch.arange(1, width, 2), True, every
    still = torch.tensor([k for k in range(count) if not bool(moved[k].any())], dtype=torch.long)
    return 2 * len(one), one, other, True, torch.cat([torch.stack([one, other], 1).flatten(), still])


def _frequency(angle: Tensor) -> Tensor:
    """Angle per position (t p -> p): of the first step, then refined on ever longer ones."""
    frequency, step = angle[1], 1
    while step < len(angle) - 1:
        step = min(2 * step, len(angle) - 1)
        turns = torch.round((frequency * step - angle[step]) / (2 * math.pi))
        frequency = (angle[step] + 2 * math.pi * turns) / step
    return frequency


def _geometric(frequency: Tensor, tokens: int, width: int) -> Tensor:
    """A table in float32 gives frequencies to seven digits; where powers of a round base agree, these are meant.

    The usual formula is tried as models run it, in float32, and as it is meant.
    """
    base = float(frequency[1] / frequency[0]) ** (-width / 2) if len(frequency) > 1 and frequency[0] else 0.0
    if not 1 < base < 1e12 or float(frequency.min()) <= 0:
        return frequency
    room = SINGLE * (1 / (tokens - 1) + frequency)  # digits of a sine, and digits of the angle
    for digits in (1, 2, 3):
        rounded = round(base, digits - len(str(int(base))))
        for dtype in (torch.float32, torch.float64):
            exponent = torch.arange(0, 2 * len(frequency), 2, dtype=dtype) / width
            made = (1.0 / rounded**exponent).double()
            if bool(((made - frequency).abs() <= room).all()):
                return made
    return frequency


def _turned(angle: Tensor, first: Tensor, second: Tensor, count: int) -> Tensor:
    made = torch.eye(count, dtype=torch.float64).repeat(len(angle), 1, 1)
    made[:, first, first] = made[:, second, second] = angle.cos()
    made[:, first, second], made[:, second, first] = -angle.sin(), angle.sin()
    return made


def fit_bias(bias: Tensor, allowed: Tensor) -> Position:
    """The rule of ``bias`` (h i j) at the keys that ``allowed`` (i j) lets through; softmax sees no sum of a row."""
    bias = torch.where(allowed, bias, 0.0)
    if float(bias.abs().max()) == 0.0:
        return NoPosition()
    queries, keys = allowed.shape
    size = float(bias.abs().max())
    distance = torch.arange(queries)[:, None] - torch.arange(keys)
    target, shape = (_centred(one, allowed) for one in (bias, -distance.abs().double().expand_as(bias)))
    if float(target.abs().max()) <= EXACT * size:
        return NoPosition()
    slope = (target * shape).sum((-1, -2)) / shape.square().sum((-1, -2)).clamp(min=1e-300)
    is_linear = float((target - slope[:, None, None] * shape).abs().max()) <= EXACT * size
    if is_linear and keys >= FEWEST:
        return Alibi(slope)
    most = max(queries, keys) - 1
    table = torch.zeros(2 * most + 1, len(bias), dtype=bias.dtype)
    row = distance + most
    table[row[allowed]] = bias[:, allowed].T
    by_distance = torch.where(allowed, table[row].permute(2, 0, 1), 0.0)
    if torch.equal(by_distance, bias) or float((by_distance - bias).abs().max()) <= EXACT * size:
        return RelativeBias(table, SeenDistances(most))
    return SeenBias(bias)


def _centred(value: Tensor, allowed: Tensor) -> Tensor:
    kept = torch.where(allowed, value, 0.0)
    mean = kept.sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(allowed, kept - mean, 0.0)
