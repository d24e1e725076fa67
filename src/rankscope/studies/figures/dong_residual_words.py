"""The verdict of the residual figures of Dong et al. (2021): point by point where values are known, else by shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.studies.figures.dong_curves import FALLING, VARIANTS, Subject, Trained
from rankscope.studies.figures.figure import Point, decided
from rankscope.studies.figures.statistics import first_below, mean_of

Values = np.ndarray
"""One mean over texts per seed and layer: ``seeds layers``."""

SOON = 0.02
"""Published BERT is below it after one layer of attention."""

GONE = 0.01
APART = 0.1
"""A ratio that stays above it is of order one."""

NEAR, FAR, ROUNDING = 1.25, 2.0, 3.0
"""Largest quotient of ours and theirs: where nothing collapses (each published curve is one draw on other texts, and
draws differ by 4% in layer 0), where the ratio falls, and where both are float32 rounding."""

ORDER = (2.9, 3.1)
EVEN = 1.25
"""Decades per layer count as even if those of the last layers and of the ones before differ by no more than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Curves of one model by variant.

    Args:
        official: means over texts of the ratio, computed in float32 as in the published code.
        floor: of float32, per layer.
        log10: mean over texts of log10 by the split pass, of the falling variants, as far as it was run.
        trained: the same as ``official`` for the trained weights at hand, a single row.
    """

    subject: Subject
    official: Mapping[str, Values]
    floor: Sequence[float]
    log10: Mapping[str, Values]
    source: Trained | None
    trained: Mapping[str, Values]


def allowed(variant: str, layer: int) -> float:
    """The largest quotient of an untrained value and the published one that counts as the same."""
    if variant not in FALLING or layer == 0:
        return NEAR
    return FAR if layer <= 2 else ROUNDING


def verdict(
    found: Found, published: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
) -> list[Point]:
    """All points of one model; ``published`` is empty where no values are known."""
    points = [
        published_point(name, found.official[name], published["init"][name]["mean"])
        for name in VARIANTS
        if published
    ]
    points += [soon_point(found), mlp_point(found), skip_point(found)]
    points += [order_point(found)] if found.log10 else []
    if found.source is not None:
        if found.source.is_true and published:
            points += [
                _trained_published(name, found, published["pretrained"][name]["mean"]) for name in VARIANTS
            ]
        points += [later_point(found), trained_mlp_point(found), trained_skip_point(found)]
    return points


def quotients(ours: Values, theirs: Sequence[float]) -> list[float]:
    """Per layer the mean over seeds over the published value."""
    return [float(value) for value in ours.mean(axis=0) / np.asarray(theirs)]


def published_point(variant: str, ours: Values, theirs: Sequence[float]) -> Point:
    """Agrees if no layer is further off than ``allowed``."""
    ratios = quotients(ours, theirs)
    fits = [1 / allowed(variant, layer) <= one <= allowed(variant, layer) for layer, one in enumerate(ratios)]
    return Point(
        source="reported",
        statement=f"BERT, untrained, {variant}: {_listed(theirs)} at layers 0, 1, 2, 6 and 12 (read from the figure).",
        measured=f"{_listed(ours.mean(axis=0).tolist())}, mean of {len(ours)} draw{'s' * (len(ours) > 1)}. "
        + _furthest(variant, ratios),
        agrees=all(fits),
    )


def _furthest(variant: str, ratios: Sequence[float]) -> str:
    parts = []
    layers = [*range(len(ratios))]
    spans = (
        [("", layers)]
        if variant not in FALLING
        else [(" to layer 2", layers[:3]), (" in rounding", layers[3:])]
    )
    for words, span in spans:
        if span:
            at = max(span, key=lambda layer: abs(np.log(ratios[layer])))
            parts.append(
                f"Largest quotient{words}: {ratios[at]:.2f} at layer {at} (allowed {allowed(variant, at):g})."
            )
    return " ".join(parts)


def soon_point(found: Found) -> Point:
    """Agrees if every draw is below the level, disagrees if none is."""
    after = found.official["san"][:, 1]
    return Point(
        source="reported",
        statement=f"{found.subject.label}, untrained: attention alone is below {SOON} after one layer.",
        measured=f"{mean_of(after.tolist()).text()} after layer 1, from {found.official['san'][:, 0].mean():.3g}; "
        f"below {SOON} in {int((after < SOON).sum())} of {len(after)} draws.",
        agrees=decided([bool(value < SOON) for value in after]),
    )


def mlp_point(found: Found) -> Point:
    """Agrees if in every draw the ratio with MLPs reaches the floor of float32, at most a layer later than without."""
    ends = {name: [_at_floor(curve, found.floor) for curve in found.official[name]] for name in FALLING}
    checks = [_no_later(*pair) for pair in zip(*ends.values(), strict=True)]
    return Point(
        source="reported",
        statement=f"{found.subject.label}, untrained: an MLP without attention skips does not help.",
        measured=f"First layer below the floor of float32: {_ends(ends)}.",
        agrees=decided(checks),
    )


def skip_point(found: Found) -> Point:
    """Agrees if no layer of any draw is below the level."""
    least = {name: found.official[name].min(axis=1) for name in ("san+skip", "transformer")}
    return Point(
        source="reported",
        statement=f"{found.subject.label}, untrained: with skips the ratio stays of order one.",
        measured="Least value of any layer, mean over draws: "
        + "; ".join(f"{name} {one.mean():.3g}" for name, one in least.items())
        + f" (of order one: above {APART}).",
        agrees=decided([bool(value > APART) for one in least.values() for value in one]),
    )


def order_point(found: Found) -> Point:
    """BERT and ALBERT add positions to the tokens, XLNet adds them to the logits, which tells equal tokens apart."""
    curve = found.log10["san"]
    orders = (curve[:, -1] / curve[:, -2]).tolist()
    if found.subject.figure != "dong-xlnet":
        return Point(
            source="paper",
            statement="Attention alone loses rank doubly exponentially: a layer cubes the residual (Theorem 2.3).",
            measured=f"By the split pass, log r of the last layer over the one before: {mean_of(orders).text()}; the "
            f"last ratio is 1e{curve[:, -1].mean():.0f}. Float32 shows none of this beyond layer 2.",
            agrees=decided([ORDER[0] <= order <= ORDER[1] for order in orders]),
        )
    falls = np.diff(curve, axis=1)
    half = falls.shape[1] // 2
    late, early = falls[:, half:].mean(axis=1), falls[:, 1:half].mean(axis=1)
    return Point(
        source="ours",
        statement="XLNet's attention alone falls by a steady factor per layer, not doubly exponentially: its logits "
        "depend on relative positions, so that attention tells tokens apart even where they are equal.",
        measured=f"By the split pass, factor per layer over the last half {mean_of((10**late).tolist()).text()}, over "
        f"the layers before {mean_of((10**early).tolist()).text()}; order of the last layer {mean_of(orders).text()}.",
        agrees=decided([bool(1 / EVEN <= one <= EVEN) for one in late / early]),
    )


def later_point(found: Found) -> Point:
    """Agrees if trained attention falls below the level and stays there, but after every untrained draw."""
    at, drawn = _below(found.trained["san"][0]), [_below(curve) for curve in found.official["san"]]
    later = at is not None and all(one is not None and one < at for one in drawn)
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: attention alone collapses, some layers later than untrained.",
        measured=f"First layer below {GONE} for good: trained {_layers([at])}, untrained {_layers(drawn)}.",
        agrees=later,
    )


def trained_mlp_point(found: Found) -> Point:
    ends = {name: _below(found.trained[name][0]) for name in FALLING}
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: an MLP without attention skips does not help.",
        measured=f"First layer below {GONE} for good: {_ends({name: [at] for name, at in ends.items()})}.",
        agrees=_no_later(*ends.values()),
    )


def trained_skip_point(found: Found) -> Point:
    whole, cut = (found.trained[name][0] for name in ("transformer", "san+skip"))
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: the whole model keeps its tokens apart.",
        measured=f"Least value of any layer: transformer {whole.min():.3g}; san+skip {cut.min():.3g}, at the "
        f"end {cut[-1]:.3g} (published for BERT: 0.074).",
        agrees=bool(whole.min() > APART),
    )


def _trained_published(variant: str, found: Found, theirs: Sequence[float]) -> Point:
    """Agrees if no published value above ``GONE`` is off by more than a factor of two, and the others are small too."""
    ours = found.trained[variant][0]
    ratios = quotients(found.trained[variant], theirs)
    seen = [layer for layer, value in enumerate(theirs) if value > GONE]
    at = max(seen, key=lambda layer: abs(np.log(ratios[layer])))
    small = [float(ours[layer]) for layer in range(len(theirs)) if layer not in seen]
    return Point(
        source="reported",
        statement=f"BERT, trained, {variant}: {_listed(theirs)} at layers 0, 1, 2, 6 and 12 (read from the figure).",
        measured=f"{_listed(ours.tolist())} on other texts. Largest quotient where theirs is above {GONE}: "
        f"{ratios[at]:.2f} at layer {at} (allowed {FAR:g}).",
        agrees=1 / FAR <= ratios[at] <= FAR and all(value < FAR * GONE for value in small),
    )


def _trained_name(found: Found) -> str:
    source = found.source
    if source is None:
        return found.subject.label
    return f"{found.subject.label}, trained" + (
        "" if source.is_true else f" (shape alone, on another model: {source.name})"
    )


def _below(curve: Values) -> int | None:
    return first_below([float(value) for value in curve], GONE)


def _at_floor(curve: Values, floor: Sequence[float]) -> int | None:
    return first_below([float(value / least) for value, least in zip(curve, floor, strict=True)], 1.0)


def _no_later(alone: int | None, with_mlp: int | None) -> bool:
    """At most one layer later: a layer more or less is a matter of the draw."""
    return with_mlp is not None and (alone is None or with_mlp <= alone + 1)


def _ends(ends: Mapping[str, Sequence[int | None]]) -> str:
    return "; ".join(f"{name} {_layers(at)}" for name, at in ends.items())


def _layers(found: Sequence[int | None]) -> str:
    """``2``, ``1 to 2`` or ``never``."""
    seen = sorted({at for at in found if at is not None})
    if not seen:
        return "never"
    text = f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
    return text if None not in found else f"{text}, or never"


def _listed(values: Sequence[float]) -> str:
    places = [layer for layer in (0, 1, 2, 6, 12) if layer < len(values)]
    return ", ".join(
        f"{values[layer]:.3f}" if values[layer] >= 0.1 else f"{values[layer]:.2g}" for layer in places
    )
