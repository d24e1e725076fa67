"""The verdict of ``wu-masks`` in words."""

from collections.abc import Sequence

from rankscope.studies.figures.figure import Point, decided
from rankscope.studies.figures.kept import DIM, DRIFT, SHEAR, TOKENS
from rankscope.studies.figures.stacks import Shape
from rankscope.studies.figures.statistics import Mean, mean_of
from rankscope.studies.figures.wu_masks_found import Found, Key

SAME_RATE = 0.05
"""Rates that differ by less than this share count as the same."""

FALLING = 0.9
"""A factor per layer below this, over the last half of the depth, is a residual on its way to zero."""


def verdict_and_notes(found: Found, shape: Shape) -> tuple[list[Point], list[str]]:
    """Points for the section ``verdict``, sentences for the section ``notes``."""
    points = [
        _pure(found, shape),
        _order(found, shape),
        _norm_alone(found, shape),
        _float32(found, shape),
        _isometries(found, shape),
        _kept(found),
    ]
    return points, _notes(found, shape)


def _pure(found: Found, shape: Shape) -> Point:
    falls = {mask: _fall(found, ("gaussian", "none", mask)) for mask in shape.masks}
    told = "; ".join(f"{mask} {_power(fall)}" for mask, fall in falls.items())
    return Point(
        published="Attention alone: mu(X) falls with depth for every mask (quasi-strongly connected graph).",
        measured=f"mu/||X||_F after {shape.layers} layers over its start, without a norm: {told}.",
        agrees=all(fall.mean < 0 and (fall.high is None or fall.high < 0) for fall in falls.values()),
    )


def _order(found: Found, shape: Shape) -> Point:
    counts = {norm: found.in_order(norm, shape) for norm in ("none", "sphere", "layer")}
    seeds = len(found.last(("gaussian", "none", "full")))
    depths = "; ".join(f"{mask} {_depth(found, ('gaussian', 'none', mask))}" for mask in shape.masks)
    told = ", ".join(f"{count} of {seeds} (norm {norm})" for norm, count in counts.items())
    return Point(
        published="Order of masks: complete collapses fastest, then causal, the windows slowest.",
        measured=f"Seeds with this order, both in layers to 1e-3 and at layer {shape.layers}: {told}. Layers to 1e-3 "
        f"without a norm: {depths}.",
        agrees=decided([count == seeds for count in counts.values()]),
    )


def _norm_alone(found: Found, shape: Shape) -> Point:
    """Refuted where the residual goes on falling with the norm: causal by a factor per layer, complete by an order."""
    told, falls, same = [], [], []
    plain = mean_of([10**slope for slope in found.slopes(("gaussian", "none", "causal"))])
    for norm in ("sphere", "layer"):
        change = found.slope_change(norm, "causal")
        rate = mean_of([10**slope for slope in found.slopes(("gaussian", norm, "causal"))])
        order = mean_of(found.orders(("gaussian", norm, "full")))
        falls.append(rate.mean < FALLING and order.mean > 2)
        same.append(abs(rate.mean - plain.mean) < SAME_RATE * plain.mean)
        told.append(
            f"with {norm} the causal mask has rate {rate.text()} per layer (without: {plain.text()}; difference "
            f"{change.text(2)} decades per layer) and the complete one order {order.text()}"
        )
    how = "at the same rate" if all(same) else "at a like rate"
    return Point(
        published="LayerNorm alone keeps mu(X) from going to 0 at random value maps.",
        measured=f"Not in exact arithmetic: mu/||X||_F falls {how} with and without the norm. By the split pass, "
        f"{'; '.join(told)}. The norm keeps the scale of the tokens, not their differences."
        if all(falls)
        else f"By the split pass, {'; '.join(told)}.",
        agrees=False if all(falls) else None,
    )


def _float32(found: Found, shape: Shape) -> Point:
    lines = []
    for norm in ("sphere", "layer"):
        for mask in shape.masks[:2]:
            one = found.ended["gaussian", norm, mask]
            seen = [value for value in one.float32_ratio if value is not None]
            zeros = len(one.float32_ratio) - len(seen)
            told = [f"{10 ** mean_of(seen).mean:.1e}"] if seen else []
            told += [f"exactly 0 in {zeros} of {zeros + len(seen)} seeds"] if zeros else []
            lines.append(f"{norm}, {mask}: {' and '.join(told)}")
    floor = found.ended["gaussian", "sphere", "full"].float32_floor[0] or 0.0
    plain, small = (found.ended[kind, "none", "causal"] for kind in ("gaussian", "small"))
    return Point(
        published="Drawn from a float32 run, the curves with LayerNorm level off.",
        measured=f"They do, at rounding: mu/||X||_F at layer {shape.layers} is {'; '.join(lines)}, below the "
        f"floor {10**floor:.1e} of float32. Without a norm and with value maps as small as BERT's the same curve of "
        f"mu goes on down ({_size(small.float32_size)} against {_size(plain.float32_size)} with N(0, 1/dim), causal), "
        "because X itself shrinks: that is scale, not collapse.",
        agrees=all(
            (found.ended["gaussian", norm, "causal"].float32_ratio[0] or floor) <= floor
            for norm in ("sphere", "layer")
        ),
    )


def _isometries(found: Found, shape: Shape) -> Point:
    keys: list[Key] = [
        (values, norm, mask)
        for values in ("orthogonal", "identity")
        for norm in ("sphere", "layer")
        for mask in shape.masks
    ]
    falls = {key: _fall(found, key) for key in keys}
    told = "; ".join(
        f"{values}, {mask} {_power(falls[values, 'sphere', mask])}"
        for values in ("orthogonal", "identity")
        for mask in shape.masks
    )
    return Point(
        published="Orthogonal value maps with LayerNorm: exponential collapse for every strongly connected mask.",
        measured=f"mu/||X||_F after {shape.layers} layers over its start, sphere: {told}.",
        agrees=all(fall.mean < 0 for fall in falls.values()),
    )


def _kept(found: Found) -> Point:
    stays, falls = (found.kept[norm][-1] for norm in ("sphere", "none"))
    starts = found.starts
    share = (
        ""
        if starts is None
        else f" Of {starts.starts} random starts {starts.apart} keep tokens apart after {starts.steps} steps "
        f"({starts.opposite} of these with rank 1, tokens equal up to sign)."
    )
    return Point(
        published="With suitable value maps LayerNorm prevents collapse: equilibria of every rank exist.",
        measured=f"Yes: W = I + {SHEAR:g} S, {TOKENS} tokens in {DIM} dimensions, causal, from constructed starts of "
        f"rank 2, 3, 4: with the sphere mu/||X||_F is {_listed(stays)} in the end, the same weights and starts without "
        f"it end at {_listed(falls)}.{share}",
        agrees=bool((stays > -1).all() and (falls < -6).all()),
    )


def _notes(found: Found, shape: Shape) -> list[str]:
    one_sided = shape.masks[3]
    return [
        f"Stacks of {shape.layers} layers X <- D A X W with one head, dim {shape.dim}, {shape.tokens} Gaussian "
        f"tokens; all weights N(0, 1/dim) unless named; windows reach {shape.window} tokens to a side. The weights of "
        "a seed are the same for all masks and norms.",
        "Split pass: the residual is carried by itself, with its scale as a logarithm, so there is no floor. Float32: "
        "an ordinary run; below its floor (32 u sqrt(layer)) a number says nothing.",
        "Known rates: the complete mask cubes the residual in every layer (order 3); the causal mask halves it (second "
        f"largest eigenvalue modulus 1/2); {one_sided} has the same asymptotic rate 1/2 after a long transient, so "
        f"its curve is parallel to the causal one in the end; {shape.masks[2]} is slowest "
        f"({_rates(found, shape, shape.masks[2])} per layer over the last half).",
        DRIFT,
        "LayerNorm does stop collapse under W = I + w S from some starts, see the last point; "
        "'rankscope reproduce wu-counterexample' shows for which weights and how many starts.",
    ]


def _rates(found: Found, shape: Shape, mask: str) -> str:
    return mean_of([10**slope for slope in found.slopes(("gaussian", "none", mask))]).text()


def _fall(found: Found, key: Key) -> Mean:
    curves = found.ended[key].log10
    return mean_of([float(last - first) for first, last in zip(curves[0], curves[-1], strict=True)])


def _depth(found: Found, key: Key) -> str:
    depths = found.depths(key)
    reached = [depth for depth in depths if depth is not None]
    if not reached:
        return "not reached"
    partly = "" if len(reached) == len(depths) else f" in {len(reached)} of {len(depths)} seeds"
    return mean_of(reached).text() + partly


def _power(log: Mean) -> str:
    """``1e-37 (1e-38 to 1e-36)``, as exponents go far below floats."""
    if log.mean < -1e6:
        return "below 1e-1000000"
    if log.low is None or log.high is None:
        return f"1e{_exponent(log.mean)}"
    return f"1e{_exponent(log.mean)} (1e{_exponent(log.low)} to 1e{_exponent(log.high)})"


def _exponent(log: float) -> str:
    return f"{log:.0f}" if abs(log) >= 10 else f"{log:.2g}"


def _size(logs: Sequence[float | None]) -> str:
    seen = [value for value in logs if value is not None]
    return f"{10 ** mean_of(seen).mean:.1e}" if seen else "0"


def _listed(logs: Sequence[float]) -> str:
    return ", ".join(f"{10**value:.3g}" if value > -3 else f"1e{_exponent(value)}" for value in logs)
