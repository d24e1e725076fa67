"""The verdict of ``wu-masks`` in words: collapse without a norm, the order of masks, and with a norm alone."""

from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.kept import DRIFT
from rankscope.papers.figures.stacks import Shape
from rankscope.papers.figures.statistics import Mean, mean_of, share_text
from rankscope.papers.figures.wording import power, rate
from rankscope.papers.figures.wu_masks_found import Found, Key, forecast_rate
from rankscope.papers.figures.wu_masks_limits import float32_point, isometry_point, kept_point
from rankscope.results.statistics import wilson

NORMS = ("sphere", "layer")


def verdict_and_notes(found: Found, shape: Shape) -> tuple[list[Point], list[str]]:
    """Points for the section ``verdict``, sentences for the section ``notes``."""
    points = [
        pure_point(found, shape),
        order_point(found, shape),
        norm_point(found, shape),
        float32_point(found, shape),
        isometry_point(found, shape),
        kept_point(found),
    ]
    return points, _notes(found, shape)


def pure_point(found: Found, shape: Shape) -> Point:
    keys = [("gaussian", "none", mask) for mask in shape.masks]
    falls = {key: _fall(found, key) for key in keys}
    told = "; ".join(f"{key[2]} {power(fall)}" for key, fall in falls.items())
    return Point(
        source="paper",
        statement="Attention alone: mu(X) falls with depth for every mask whose graph is quasi-strongly connected.",
        measured=f"mu/||X||_F after {shape.layers} layers over its start, without a norm, geometric mean over seeds "
        f"with its 95% interval: {told}.",
        agrees=decided([_is_below(fall) for fall in falls.values()]),
    )


def order_point(found: Found, shape: Shape) -> Point:
    """Agrees if all seeds keep the order and their number makes more than half of all networks likely."""
    counts = {norm: found.in_order(norm, shape) for norm in ("none", *NORMS)}
    seeds = len(found.last(("gaussian", "none", "full")))
    depths = "; ".join(f"{mask} {_depth(found, ('gaussian', 'none', mask))}" for mask in shape.masks)
    told = "; ".join(f"norm {norm} {share_text(count, seeds)}" for norm, count in counts.items())
    return Point(
        source="reported",
        statement="Order of masks: complete collapses fastest, then causal, the windows slowest.",
        measured=f"Seeds with this order, both in layers to 1e-3 and at layer {shape.layers}: {told}. Layers to 1e-3 "
        f"without a norm, mean over seeds: {depths}.",
        agrees=decided([_keeps(count, seeds) for count in counts.values()]),
    )


def norm_point(found: Found, shape: Shape) -> Point:
    """Refuted where the ratio goes on falling for every mask with either norm, by intervals over seeds."""
    falls = [found.falls(("gaussian", norm, mask)) for norm in NORMS for mask in shape.masks]
    told = [_rates(found, norm, shape) for norm in ("none", *NORMS)]
    setup = (
        f"one head, Gaussian tokens and weights, no skips, no MLPs, {shape.layers} layers of dim {shape.dim}"
    )
    start = {
        True: f"Not here ({setup}): mu/||X||_F goes on falling with either norm and every mask.",
        False: f"So it is here ({setup}): with either norm mu/||X||_F falls for no mask.",
        None: f"Not decided for every mask ({setup}).",
    }[decided(falls)]
    return Point(
        source="reported",
        statement="LayerNorm alone keeps mu(X) from going to 0 at random value maps.",
        measured=f"{start} By the split pass, factor per layer over the last half, geometric mean with its 95% "
        f"interval, for the complete mask the order: {'; '.join(told)}. Forecast: the SLEM of the mask "
        "without a norm. On the sphere the residual is projected off the common token at every layer, so that it falls "
        "slightly faster, by exp((digamma((d - 1)/2) - digamma(d/2))/2); d is one less for LayerNorm. "
        "The norm keeps the scale of the tokens, "
        "not their differences.",
        agrees=None if (holds := decided(falls)) is None else not holds,
    )


def _rates(found: Found, norm: str, shape: Shape) -> str:
    full, causal, window, one_sided = shape.masks
    parts = [f"{full} order {found.order(('gaussian', norm, full)).text()}"]
    for mask in (causal, window):
        forecast = forecast_rate(mask, norm, shape)
        parts.append(f"{mask} {rate(found.slope(('gaussian', norm, mask)))}, forecast {forecast:.4f}")
    parts.append(f"{one_sided} {rate(found.slope(('gaussian', norm, one_sided)))}")
    return f"norm {norm}: {', '.join(parts)}"


def _keeps(count: int, seeds: int) -> bool | None:
    low, high = wilson(count, seeds)
    if count == seeds and low > 0.5:
        return True
    return False if high < 0.5 else None


def _is_below(fall: Mean) -> bool | None:
    if fall.low is None or fall.high is None:
        return None
    return True if fall.high < 0 else False if fall.low >= 0 else None


def _notes(found: Found, shape: Shape) -> list[str]:
    one_sided, slowest = shape.masks[3], ("gaussian", "none", shape.masks[2])
    return [
        f"Stacks of {shape.layers} layers X <- D A X W with one head, dim {shape.dim}, {shape.tokens} Gaussian "
        f"tokens; all weights N(0, 1/dim) unless named; windows reach {shape.window} tokens to a side. The weights of "
        "a seed are the same for all masks and norms.",
        "Split pass: the residual is carried by itself, with its scale as a logarithm; floors are estimated from a "
        "perturbed run. Float32: "
        "an ordinary run; below its floor (32 u sqrt(layer)) a number says nothing.",
        "Known rates: the complete mask cubes the residual in every layer (order 3); the causal mask halves it (second "
        f"largest eigenvalue modulus 1/2, SLEM); {one_sided} has the same asymptotic rate 1/2 after a long transient, "
        f"so that its curve is parallel to the causal one in the end; {shape.masks[2]} is slowest "
        f"({rate(found.slope(slowest))} per layer over the last half).",
        DRIFT,
        "'rankscope reproduce wu-counterexample' shows for two tokens for which weights and how many random starts the "
        "norm does stop collapse.",
    ]


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
