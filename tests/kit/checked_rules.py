"""Every rule of ``certify`` held against the exact tokens while it runs: the first that is wrong is named.

Rules are given tokens that carry their exact numbers (``coarse.Shadow``). Whatever a rule says of the exact network is
then looked at where it is said: tokens and maps within their distance, linear maps and matrices on residuals within
their radius, sizes of residuals within their gains. What the exact network is, comes from running its parts on the
exact tokens in float64, outside of all rules.
"""

import importlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from kit.coarse import Coarse, Shadow, plain, shadow, true, unit_of
from rankscope.bounds import dense, enclosure, map_rules, mlp_rules, norm_rules, rules, secants
from rankscope.bounds.certificate import Certificate
from rankscope.bounds.gains import METHODS
from rankscope.bounds.rules import At, Passed
from rankscope.bounds.sizes import SIZES, F, Interval
from rankscope.bounds.terms import Terms
from rankscope.network import Context, Network, Part

certify_file = importlib.import_module("rankscope.bounds.certify")  # its name is that of the function in it

EXACT = 1e-12
"""What the exact numbers are off themselves, relative to the tokens: they are computed in float64."""


SMALLEST = torch.finfo(torch.float64).tiny
"""Entries of maps below it have lost their digits, or are zero."""


def sizes_of(x: Tensor) -> Tensor:
    """The five sizes that are followed, from their definitions, ``sizes *batch``."""
    residual = x - x.mean(dim=-2, keepdim=True)
    pairs = x.unsqueeze(-2) - x.unsqueeze(-3)
    found = [
        residual.square().sum(dim=(-2, -1)).sqrt(),
        pairs.abs().sum(dim=-1).amax(dim=(-2, -1)),
        pairs.square().sum(dim=-1).sqrt().amax(dim=(-2, -1)),
        pairs.abs().amax(dim=(-3, -2, -1)),
        residual.abs().sum(dim=-2).amax(dim=-1),
    ]
    return torch.stack(found)


class WrongBoundError(AssertionError):
    """A rule said something of the exact network that is not so."""


def hold(rule: str, what: str, found: Tensor, allowed: Tensor, room: Tensor | float = 0.0) -> None:
    """Raise with the name of the rule unless ``found <= allowed + room`` everywhere; NaN is allowed nothing."""
    found, allowed, room = torch.broadcast_tensors(
        *(torch.as_tensor(plain(one)) for one in (found, allowed, room))
    )
    wrong = ~(found <= allowed + room)
    if bool(wrong.any()):
        place = tuple(int(one) for one in wrong.nonzero()[0])
        raise WrongBoundError(
            f"{rule}: {what} is {float(found[place])} where at most {float(allowed[place])} was said, "
            f"at {int(wrong.sum())} of {wrong.numel()} places, first {place}"
        )


def near(x: Tensor) -> Tensor:
    """How far exact tokens may be off by their own rounding."""
    return EXACT * (1 + plain(x).abs().amax(dim=-1))


class Walk:
    """Where rules are watched, with the unit that operations round to; zero for exact operations."""

    def __init__(self, unit: float = 0.0) -> None:
        self.mode = Coarse(unit)
        self.rules_met: set[str] = set()

    @contextmanager
    def watching(self) -> Iterator["Walk"]:
        """Rules are watched inside."""
        with ExitStack() as stack:
            if self.mode.unit:
                stack.enter_context(unit_of(self.mode.unit))
            enclosed, maps = _watched_enclosed(self), _watched_maps(self)
            for module in (enclosure, rules, map_rules, mlp_rules, norm_rules, secants, certify_file):
                for name, watched in (("Enclosed", enclosed), ("Maps", maps)):
                    if name in vars(module):
                        stack.enter_context(patch.object(module, name, watched))
            for module, name, watch in (
                (norm_rules, "view", self._view),
                (mlp_rules, "activated_error", self._activated),
                (secants, "activated_error", self._activated),
                (secants, "view", self._view),
                (secants, "_secants", self._secants),
                (secants, "_branches", self._branches),
            ):
                stack.enter_context(patch.object(module, name, watch(getattr(module, name))))
            watched_part = self._part(rules.pass_part)
            stack.enter_context(patch.object(rules, "pass_part", watched_part))
            stack.enter_context(patch.object(certify_file, "pass_part", watched_part))
            stack.enter_context(torch.no_grad())
            stack.enter_context(self.mode)
            yield self

    def run(
        self, part: Part, x: Tensor, error: Tensor, exact: Tensor, context: Context | None = None
    ) -> Passed:
        """One part on tokens ``x`` of which ``exact`` are the exact ones, no farther than ``error``."""
        sizes = sizes_of(exact).log()
        start = Interval(lower=sizes - 1e-9, upper=sizes + 1e-9)
        state = enclosure.Enclosed(x=shadow(x, exact), error=error)
        at = At(state=state, context=Context() if context is None else context, interval=lambda: start)
        return rules.pass_part(part, at)

    def certified(self, network: Network, exact: Tensor, x: Tensor, error: Tensor) -> Certificate:
        """The certificate of ``exact`` tokens, of which ``x`` are computed, no farther than ``error``.

        What certificates measure, and the sizes they begin with, are those of the exact tokens.
        """

        def start(entered: Tensor) -> enclosure.Enclosed:
            return enclosure.Enclosed(x=shadow(x, entered), error=error)

        with ExitStack() as stack:
            original = certify_file.stream
            stack.enter_context(patch.object(certify_file, "exactly", start))
            stack.enter_context(
                patch.object(certify_file, "stream", lambda *a: _listed(self.mode, original, a))
            )
            found: Certificate = certify_file.certify(network, exact)
        with self.mode.paused():
            hold_certificate(found, network, exact)
        return found

    def _part(self, original: Any) -> Callable[[Part, At], Passed]:
        def watched(part: Part, at: At) -> Passed:
            found, name = original(part, at), f"rule of {type(part).__name__}"
            self.rules_met.add(type(part).__name__)
            entering = true(at.state.x)
            with self.mode.paused():
                context = Context(positions=at.context.positions, segments=at.context.segments)
                leaving = part(entering, context)
            off = (leaving - plain(found.state.x)).square().sum(dim=-1).sqrt()
            with self.mode.paused():
                hold(name, "the distance of a token", off, found.state.error, near(leaving))
                within(f"{name}, before it", at.interval(), entering)
            self._gains(name, found, at, entering, leaving)
            if found.terms is not None:
                with self.mode.paused():
                    _linear(name, found.terms, entering, leaving)
            matrix = found.matrix()
            if matrix is not None:
                with self.mode.paused():
                    _dense(name, matrix, entering, leaving)
            return found

        return watched

    def _gains(self, name: str, found: Passed, at: At, entering: Tensor, leaving: Tensor) -> None:
        gains = found.gains()
        with self.mode.paused():
            before, after = sizes_of(entering), sizes_of(leaving)
            room = _room(before, entering) + _room(after, leaving)
            ratio = after.log() - before.log()
            alive = (before > 0) & (
                room < 0.1
            )  # tokens that are equal have no gain, nor has what rounding hides
            for place, size in enumerate(SIZES):
                by = sorted({METHODS[int(one)] for one in plain(gains.upper_by[place]).reshape(-1)})
                hold(
                    name,
                    f"the logarithm of the gain of {size} (by {by})",
                    torch.where(alive, ratio, -torch.inf)[place],
                    gains.upper[place],
                    torch.nan_to_num(room[place]),
                )
                by = sorted({METHODS[int(one)] for one in plain(gains.lower_by[place]).reshape(-1)})
                hold(
                    name,
                    f"minus the logarithm of the gain of {size} (by {by})",
                    torch.where(alive, -ratio, -torch.inf)[place],
                    -plain(gains.lower[place]),
                    torch.nan_to_num(room[place]),
                )

    def _view(self, original: Any) -> Any:
        def watched(norm: Any, state: Any, **kwargs: Any) -> Any:
            found = original(norm, state, **kwargs)
            exact = true(state.x)
            with self.mode.paused():
                mean = exact.mean(dim=-1) * (type(norm).__name__ == "LayerNorm")
                length = (exact - mean.unsqueeze(-1)).square().sum(dim=-1)
                size = (length / found.parts + norm.eps).sqrt()
                room = near(exact)
                hold(
                    "view", "the size a norm divides by", (size - plain(found.size)).abs(), found.error, room
                )
                hold("view", "a mean over channels", (mean - plain(found.means)).abs(), found.error, room)
            return found

        return watched

    def _activated(self, original: Any) -> Any:
        def watched(activation: Any, found: Any) -> Tensor:
            error = original(activation, found)
            with self.mode.paused():
                exact = activation(true(found.x))
            off = (exact - plain(activation(found.x))).square().sum(dim=-1).sqrt()
            with self.mode.paused():
                hold("activated_error", f"the distance after {activation.name}", off, error, near(exact))
            return error

        return watched

    def _secants(self, original: Any) -> Any:
        def watched(activation: Any, found: Any, middle: Any) -> Any:
            slopes, loose = original(activation, found, middle)
            with self.mode.paused():
                a, b = torch.broadcast_tensors(true(found.x), true(middle.x))
                apart = a - b
                secant = (activation(a) - activation(b)) / torch.where(apart == 0, 1.0, apart)
                room = EXACT * (1 + a.abs() + b.abs()) / apart.abs()
                off = torch.where(apart.abs() > 1e-9, (secant - plain(slopes)).abs(), 0.0)
                hold("_secants", f"a secant slope of {activation.name}", off, loose, torch.nan_to_num(room))
            return slopes, loose

        return watched

    def _branches(self, original: Any) -> Any:
        """Factors of an MLP with a gate: activations, and secant slopes times what the gate multiplies."""

        def watched(mlp: Any, found: Any, middle: Any) -> Any:
            branches = original(mlp, found, middle)
            if mlp.gate is None:
                return branches
            with self.mode.paused():
                ends = [[true(one.x) for one in (side.gate, side.up)] for side in (found, middle)]
                (a, up), (b, common) = ends
                active, apart = [mlp.activation(one) for one in (a, b)], a - b
                slopes = (active[0] - active[1]) / torch.where(apart == 0, 1.0, apart)
                sure = apart.abs() > 1e-6 * (a.abs() + b.abs())
                exact = [(active[0] + active[1]) / 2, slopes * (up + common) / 2]
                for (_, factor, unknown), own in zip(branches, exact, strict=True):
                    room = (8 * self.mode.unit + 1e-9) * plain(factor).abs() + near(own).unsqueeze(-1)
                    off = torch.where(sure, (own - plain(factor)).abs(), 0.0)
                    hold("_branches", f"a factor of {mlp.activation.name} with a gate", off, unknown, room)
            return branches

        return watched


def _listed(mode: Coarse, stream: Callable[..., Iterator[Any]], args: tuple[Any, ...]) -> Iterator[Any]:
    """The split pass of all layers, in ordinary arithmetic."""
    with mode.paused():
        return iter(list(stream(*args)))


def hold_certificate(found: Certificate, network: Network, x: Tensor) -> None:
    """Every layer's bounds hold for the states of the network, computed in float64."""
    for layer, state in zip(found.layers, network.states(x), strict=True):
        name, sizes = f"certify, layer {layer.layer}", sizes_of(state)
        room = torch.nan_to_num(_room(sizes, state))
        for side, (lower, upper) in {
            "proven": (layer.lower, layer.upper),
            "enclosed": (layer.enclosed_lower, layer.enclosed_upper),
        }.items():
            low, high = (torch.stack([plain(one[size]) for size in SIZES]) for one in (lower, upper))
            within(f"{name}, {side}", Interval(lower=low, upper=high), state)
        for place, size in enumerate(SIZES):
            logs = torch.where(room[place] < 0.1, sizes[place].log(), -torch.inf)
            hold(name, f"the logarithm of {size} beside the trivial", logs, layer.trivial[size], room[place])


def _watched_enclosed(walk: Walk) -> type:
    class Watched(enclosure.Enclosed):
        """Tokens that are looked at as soon as a rule makes them."""

        __slots__ = ()

        def __init__(self, *, x: Tensor, error: Tensor) -> None:
            super().__init__(x=x, error=plain(error))
            if isinstance(self.x, Shadow):
                rule = sys._getframe(1).f_code.co_name
                walk.rules_met.add(rule)
                with walk.mode.paused():
                    off = (self.x.true - plain(self.x)).square().sum(dim=-1).sqrt()
                    hold(rule, "the distance of a token", off, self.error, near(self.x.true))

    return Watched


def _watched_maps(walk: Walk) -> type:
    class Watched(map_rules.Maps):
        """Maps that are looked at as soon as a rule makes them."""

        __slots__ = ()

        def __init__(self, *, maps: Tensor, radius: Tensor, bilinear: Tensor | None = None) -> None:
            super().__init__(maps=maps, radius=plain(radius), bilinear=plain(bilinear))
            if isinstance(self.maps, Shadow):
                rule = f"maps by {sys._getframe(1).f_code.co_name}"
                walk.rules_met.add(rule)
                with walk.mode.paused():
                    computed, exact = plain(self.maps), self.maps.true
                    allowed = self.radius.unsqueeze(-1) * computed.clamp(min=SMALLEST)
                    off, room = (exact - computed).abs(), EXACT * computed + SMALLEST
                    hold(rule, "the distance of an entry of a map", off, allowed, room)

    return Watched


def _room(sizes: Tensor, x: Tensor) -> Tensor:
    """What the logarithm of an exact size is off by its own rounding."""
    return 1e-10 + EXACT * x.abs().amax(dim=(-2, -1)) * x.shape[-2] / sizes


def within(name: str, interval: Interval, x: Tensor) -> None:
    """The sizes of exact tokens lie in the interval that was said."""
    sizes = sizes_of(x)
    room = torch.nan_to_num(_room(sizes, x))
    logs = torch.where(room < 0.1, sizes.log(), torch.nan)
    for place, size in enumerate(SIZES):
        low, high = plain(interval.lower[place]), plain(interval.upper[place])
        hold(name, f"the logarithm of {size}", logs[place].nan_to_num(nan=-torch.inf), high, room[place])
        hold(
            name, f"minus the logarithm of {size}", -logs[place].nan_to_num(nan=torch.inf), -low, room[place]
        )


def _linear(name: str, terms: Terms, entering: Tensor, leaving: Tensor) -> None:
    """``R -> R (scale + channels) + sum P R V O`` up to the radius, in every size."""
    residual = entering - entering.mean(dim=-2, keepdim=True)
    said = torch.zeros_like(residual)
    if terms.scale is not None:
        said = said + residual * plain(terms.scale).unsqueeze(-2)
    if terms.channels is not None:
        said = said + residual @ plain(terms.channels)
    for one in terms.heads:
        mixed = true(one.maps.maps) @ (residual.unsqueeze(-3) @ plain(one.values)) @ plain(one.outs)
        said = said + mixed.sum(dim=-3)
    before, off = sizes_of(residual), sizes_of(leaving - said)
    loose = torch.zeros_like(before) if terms.radius is None else plain(terms.radius)
    loose = loose if terms.loose is None else loose + plain(terms.loose)
    room = EXACT * (1 + leaving.abs().amax(dim=(-2, -1)) + said.abs().amax(dim=(-2, -1))) * leaving.shape[-2]
    for place, size in enumerate(SIZES):
        what = f"the distance of its linear map in {size}"
        hold(name, what, off[place], loose[place] * before[place], room * math.sqrt(leaving.shape[-1]))


def _dense(name: str, found: dense.Dense, entering: Tensor, leaving: Tensor) -> None:
    """The matrix maps the residual that enters to the one that leaves, up to its radius."""
    inside = dense.basis(entering.shape[-2], entering)
    before, after = ((inside.mT @ one).flatten(-2) for one in (entering, leaving))
    matrix, scale = plain(found.matrix), plain(found.log_scale).exp()
    said = (matrix @ before.unsqueeze(-1)).squeeze(-1)
    scale = scale.expand(said.shape[:-1])
    off = torch.linalg.vector_norm(after / scale.unsqueeze(-1) - said, dim=-1)
    allowed = plain(found.radius) * torch.linalg.vector_norm(before, dim=-1)
    room = EXACT * (1 + leaving.abs().amax(dim=(-2, -1))) * entering.shape[-2] / scale
    room = room + EXACT * torch.linalg.matrix_norm(matrix) * torch.linalg.vector_norm(before, dim=-1)
    says = torch.isfinite(scale) & (scale > 0) & torch.isfinite(matrix).all(dim=-1).all(dim=-1)
    says = says & ~torch.isnan(allowed)  # what is not a number says nothing, and no gains come from it
    hold(name, "the distance of its matrix on residuals", off[says], allowed[says], room[says])


def worst(
    part: Callable[[Tensor], Tensor],
    x: Tensor,
    error: Tensor,
    aim: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
) -> Tensor:
    """Tokens within ``error`` of ``x`` at which ``aim`` of tokens and what the part makes of them is large, ``*batch``.

    Full steps along the gradient, as in power iteration: what is sought lies on the edge.
    """
    generator = torch.Generator().manual_seed(0)
    way = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    for step in range(steps + 1):
        moved = x + _edge(way, error)
        if step == steps:
            return moved
        moved.requires_grad_()
        with torch.enable_grad():
            total = aim(moved, part(moved)).sum()
        slope = torch.autograd.grad(total, moved)[0]
        length = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
        way = torch.where(torch.isfinite(length) & (length > 0), slope, way)
    raise AssertionError("unreachable")


def _edge(way: Tensor, error: Tensor) -> Tensor:
    """A step of all of the error in that direction; a little less, so that rounding does not leave the ball."""
    length = torch.linalg.vector_norm(way, dim=-1, keepdim=True)
    return way / torch.where(length > 0, length, 1.0) * error.unsqueeze(-1) * (1 - 1e-12)


AIMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "all tokens": lambda x, y, middle: (y - middle).square().sum(dim=(-2, -1)),
    "one token": lambda x, y, middle: (y - middle)[..., -1, :].square().sum(dim=-1),
    "grow": lambda x, y, middle: (sizes_of(y)[F] / sizes_of(x)[F]).log(),
    "shrink": lambda x, y, middle: -(sizes_of(y)[F] / sizes_of(x)[F]).log(),
    "wide": lambda x, y, middle: (sizes_of(y) / sizes_of(x)).log().sum(dim=0),
    "narrow": lambda x, y, middle: -(sizes_of(y) / sizes_of(x)).log().sum(dim=0),
}
