"""What a layer makes of equal and of nearly equal tokens: consensus, the two orders of collapse, kinks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from rankscope.errors import ConfigError, ModelError
from rankscope.findings.atlas import Consensus
from rankscope.layers.layer import Layer, noise

DRAWS = 3

LARGEST, SMALLEST, PER_DECADE = 0.1, 1e-8, 2
"""Scales of the residual that are tried."""

RESOLVED = 100.0
"""A value counts where it is this many times its floor."""

AGREE = 0.01
"""Two slopes agree if they differ by at most this, times the order where that is above one."""

STEEPEST = 12.0
"""A steeper fall at the edge of what is resolved is no power law: below a kink all tokens are equal."""

HALVINGS = 14
"""Bisections of the place of a kink."""

UNCHANGED = 1e-9
"""Equal tokens that are changed by this share of themselves are the same to every layer but one of rounding."""

LATEST = 5
"""Bisections over which differences tell a kink: those before may be wider than what bends there."""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """A common row x, a perturbation R, and the rounding of every token of the layer's output near them."""

    x: Tensor
    r: Tensor
    noise: Tensor
    outputs: dict[float, Tensor] = field(default_factory=dict)

    def output(self, layer: Layer, scale: float) -> Tensor:
        """f(1 x + s R), computed once."""
        if scale not in self.outputs:
            self.outputs[scale] = layer.at(self.near(scale))
        return self.outputs[scale]

    def near(self, scale: float) -> Tensor:
        """1 x + s R."""
        return self.x + scale * self.r

    @property
    def equal(self) -> Tensor:
        """1 x."""
        return self.x.expand_as(self.r).clone()


def draws(layer: Layer, seed: int, given: Tensor | None = None) -> tuple[Draw, ...]:
    """Three draws of x and R with Gaussian entries; the first x may be given."""
    if given is not None and (tuple(given.shape) != (layer.dim,) or not bool(given.isfinite().all())):
        raise ConfigError(f"x is a row of {layer.dim} finite numbers; found the shape {tuple(given.shape)}")
    generator = torch.Generator().manual_seed(seed)
    found = list[Draw]()
    for place in range(DRAWS):
        x = torch.randn(layer.dim, dtype=torch.float64, generator=generator)
        x = x if given is None or place else given.detach().double()
        r = torch.randn(layer.tokens, layer.dim, dtype=torch.float64, generator=generator)
        found.append(Draw(x, r, noise(layer, x + LARGEST * r, r)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Size:
    """A number and the floor below which it says nothing."""

    value: float
    floor: float

    @property
    def is_known(self) -> bool:
        return self.value > RESOLVED * self.floor

    @property
    def known(self) -> float:
        """The number, or zero where it is nothing but rounding."""
        return self.value if self.is_known else 0.0


def residual_ratio(y: Tensor, off: Tensor) -> Size:
    """Distance from the mean row over the norm; ``off`` is the rounding of every token. All-zero tokens are equal."""
    size, floor = float(y.norm()), float(off.norm())
    if size <= RESOLVED * floor:  # nothing but rounding
        return Size(0.0, 1.0 if size else 0.0)
    return Size(float((y - y.mean(dim=0)).norm()) / size, floor / size)


def unit_residual_ratio(y: Tensor, off: Tensor) -> Size | None:
    """The same of tokens at unit length; None where a token has length zero, and so no direction."""
    lengths = y.norm(dim=-1)
    if bool((lengths <= RESOLVED * off).any()):
        return None
    return residual_ratio(y / lengths[:, None], off / lengths)


@dataclass(frozen=True, slots=True)
class Gap:
    """What one draw of equal tokens becomes."""

    raw: Size
    unit: Size | None

    @property
    def consensus(self) -> Consensus:
        """Whether tokens, or their directions, are equal up to rounding. Zero tokens are equal."""
        if not self.raw.is_known:
            return "kept"
        return "directions" if self.unit is not None and not self.unit.is_known else "none"


def gap_of(layer: Layer, draw: Draw, from_token: int = 0) -> Gap:
    """What equal tokens become, from some token on."""
    y, off = layer.at(draw.equal)[from_token:], draw.noise[from_token:]
    return Gap(residual_ratio(y, off), unit_residual_ratio(y, off))


def check_equal_tokens(layer: Layer, drawn: Sequence[Draw]) -> None:
    """An error where the output at equal tokens is rounding alone, as that of a norm over tokens without an epsilon."""
    nearly = 1 + max(UNCHANGED, 16 * layer.roundoff)
    for draw in drawn:
        first = layer.at(draw.equal)
        if float((layer.at(nearly * draw.equal) - first).norm()) <= 1e-3 * float(first.norm()):
            return
    raise ModelError(
        f"{layer.name} gives nothing but rounding for equal tokens: their last digits decide what it gives; where it "
        "divides by differences between tokens, add a small number below"
    )


def state_starts_at_zero(layer: Layer, draw: Draw, gap: Gap) -> bool:
    """Whether the layer reads earlier tokens alone and brings equal tokens nearer to each other from left to right.

    That is what a recurrent layer does: its state starts at zero and tends to what equal tokens sustain.
    """
    half = layer.tokens // 2
    if layer.tokens < 4 or gap_of(layer, draw, half).raw.value >= gap.raw.value:
        return False
    before, changed = layer.at(draw.equal), draw.equal
    changed[0] += draw.r[0]
    moved = (layer.at(changed) - before)[1:].norm()
    if float(moved) <= RESOLVED * float(draw.noise[1:].norm()):
        return False  # tokens are not mixed: there is no state
    for first in {1, half, layer.tokens - 1}:
        changed = draw.equal
        changed[first:] += draw.r[first:]
        moved = (layer.at(changed) - before)[:first].norm()
        if float(moved) > RESOLVED * float(draw.noise[:first].norm()):
            return False
    return True


Sizes = Callable[[float], Size | None]
"""Some residual ratio at a signed scale; None where there is none."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The order of one draw, and the scales at which it was read."""

    order: float | None
    low: float = math.nan
    high: float = math.nan


def scales_down(largest: float = LARGEST, per_decade: int = PER_DECADE) -> list[float]:
    """Scales from the largest to the smallest."""
    steps = round(per_decade * math.log10(largest / SMALLEST))
    return [largest * 10 ** (-step / per_decade) for step in range(steps + 1)]


def read_order(sizes: Sizes, kink: float | None) -> Reading:
    """The exponent of a residual ratio as its scale falls, from the smallest scales that are resolved.

    Both signs of the scale are taken and their geometric mean is read: next to the leading term c s^p stands a term
    of relative size s whose sign follows that of s, so that it cancels and slopes are off by s^2 alone.
    """
    symmetric = _symmetric(sizes)
    found_sizes = [(scale, symmetric(scale)) for scale in scales_down()]
    if any(size is None for _, size in found_sizes):
        return Reading(None)
    known, lost = _resolved([(scale, size) for scale, size in found_sizes if size is not None])
    if not known:
        return Reading(math.inf)
    below = [pair for pair in known if kink is None or pair[0] < kink]
    if found := _last_agreement(below) or _last_agreement(known):
        if lost is None or not _is_dead(found, known, lost, symmetric(lost)):
            return found
        return Reading(math.inf, 0.0, _bisected(symmetric, lost, known[-1][0])[1])
    if lost is None:
        return Reading(None)
    # The value leaves what is resolved within a few scales: a high order, or a kink or jump below which it is zero.
    below_edge, edge = _bisected(symmetric, lost, known[-1][0])
    if _jumps(symmetric(below_edge), symmetric(edge)):
        return Reading(math.inf, 0.0, edge)
    top = max(known[0][0], 3 * edge)
    fine = [edge * (top / edge) ** (step / 12) for step in range(12, -1, -1)]
    pairs = [(at, size.value) for at in fine if (size := symmetric(at)) is not None and size.value > 0]
    steep = [slope for _, _, slope in _slopes(pairs)][-1:]
    if steep and steep[0] > STEEPEST:
        return Reading(math.inf, 0.0, edge)
    return _last_agreement(pairs, 5 * AGREE) or Reading(None)


def _resolved(sizes: list[tuple[float, Size]]) -> tuple[list[tuple[float, float]], float | None]:
    """Scales with their values, the largest first, before the first that is not resolved, and that scale if any.

    A sharp softmax makes tokens equal up to rounding at large scales, where it picks one token, and not at small ones:
    where slopes agree at smaller scales again, those count.
    """
    runs = list[list[tuple[float, float]]]([[]])
    for scale, size in sizes:
        if size.is_known:
            runs[-1].append((scale, size.value))
        else:
            runs.append([])
    ends = [scale for scale, size in sizes if not size.is_known]
    for place in range(len(runs) - 1, 0, -1):
        if len(runs[place]) > 2 and _last_agreement(runs[place]) is not None:
            return runs[place], (ends[place] if place < len(ends) else None)
    return runs[0], (ends[0] if ends else None)


def _is_dead(found: Reading, known: list[tuple[float, float]], lost: float, size: Size | None) -> bool:
    """Whether tokens are equal at the scale ``lost``, where the order that was read above it says they are not.

    The law value ~ s^p is continued from the scales at which it was read. Where it would still be well resolved at the
    scale at which nothing is left, a kink below which all tokens are equal stands between the two.
    """
    if found.order is None or size is None:
        return False
    value = next(value for scale, value in known if scale == found.low)
    continued: float = value * (lost / found.low) ** found.order
    return continued > 10 * RESOLVED * size.floor


def _jumps(below: Size | None, above: Size | None) -> bool:
    """Whether a value falls by half or more between two scales that are all but equal."""
    return below is not None and above is not None and below.value < above.value / 2


def _symmetric(sizes: Sizes) -> Sizes:
    """The geometric mean of both signs; the larger alone where a kink at equal tokens leaves nothing of the other."""

    def mean(scale: float) -> Size | None:
        one, other = sizes(scale), sizes(-scale)
        if one is None or other is None:
            return None
        less, more = sorted((one, other), key=lambda size: size.value)
        if more.is_known and not less.is_known and less.value < more.value / 10:
            return more
        return Size(math.sqrt(less.value * more.value), max(less.floor, more.floor))

    return mean


def _slopes(pairs: list[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """Smaller scale, larger scale and the slope between them, for neighbours."""
    return [
        (below, above, math.log(high / low) / math.log(above / below))
        for (above, high), (below, low) in pairwise(pairs)
    ]


def _last_agreement(pairs: list[tuple[float, float]], within: float = AGREE) -> Reading | None:
    """The slope at the smallest scales where two neighbouring slopes agree."""
    slopes = _slopes(pairs)
    for upper, lower in reversed(list(pairwise(slopes))):
        if abs(upper[2] - lower[2]) <= within * max(1.0, abs(lower[2])):
            return Reading(lower[2], lower[0], upper[1])
    return None


def _bisected(sizes: Sizes, lost: float, known: float) -> tuple[float, float]:
    """The smallest scale at which the value is still resolved, after one just below it at which it is not."""
    for _ in range(30):
        middle = math.sqrt(lost * known)
        size = sizes(middle)
        lost, known = (lost, middle) if size is not None and size.is_known else (middle, known)
    return lost, known


def kink_of(layer: Layer, draw: Draw) -> float | None:
    """The smallest scale in (0, 0.1] at which the layer has a kink or a jump on the way s -> f(1 x + s R), if any.

    Second differences over an interval fall by 4 whenever it is halved where the layer is smooth, by 2 at a kink and
    not at all at a jump. So the half with the larger one is taken again and again; a kink is there if the differences
    fell by less than 3 per halving in the end. Then the same is done below it.
    """
    found, top = None, LARGEST
    for _ in range(8):
        place = _kink_in(layer, draw, 0.0, top)
        if place is None or place <= SMALLEST:
            break
        found, top = place, place * (1 - 2.0 ** (1 - HALVINGS))
    return found


def _kink_in(layer: Layer, draw: Draw, low: float, high: float) -> float | None:
    floor = 8 * RESOLVED * float(draw.noise.norm())
    left, middle, right = (layer.at(draw.near(s)) for s in (low, (low + high) / 2, high))
    bends = [float((left - 2 * middle + right).norm())]
    for _ in range(HALVINGS):
        centre, quarter = (low + high) / 2, (high - low) / 4
        lower, upper = layer.at(draw.near(centre - quarter)), layer.at(draw.near(centre + quarter))
        of_lower = float((left - 2 * lower + middle).norm())
        of_upper = float((middle - 2 * upper + right).norm())
        if of_lower >= of_upper:
            high, right, middle = centre, middle, lower
        else:
            low, left, middle = centre, middle, upper
        bends.append(max(of_lower, of_upper))
        smooth = len(bends) > LATEST and bends[-1] <= bends[-1 - LATEST] * 3.0**-LATEST / 3
        if bends[-1] <= floor or (smooth and bends[-1] < bends[0] / 3):
            return None
    return low if bends[-1] > bends[-1 - LATEST] * 3.0**-LATEST else None
