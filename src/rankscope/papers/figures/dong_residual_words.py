"""The verdict of the residual figures of Dong et al. (2021): point by point where values are known, else by shape."""

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.papers.figures.dong_curves import FALLING, FIRST, REPEATS, TOKENS, VARIANTS
from rankscope.papers.figures.dong_rules import (
    APART,
    EVEN,
    FAR,
    FEWEST,
    GONE,
    NEAR,
    ORDER,
    ORDER_ONE,
    SOON,
    Found,
    Values,
    both,
    draws,
    ends_text,
    gone_at,
    kind,
    layers_text,
    listed,
    no_later,
    quotients,
    rounding_at,
    texts,
    unanimous,
)
from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.interval_rules import all_within, side, within
from rankscope.papers.figures.statistics import mean_of


def verdict(
    found: Found, published: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
) -> list[Point]:
    """All points of one model; ``published`` is empty where no values are known."""
    points = [
        published_point(name, found.official[name], published["init"][name]["mean"], found.floor)
        for name in VARIANTS
        if published
    ]
    points += [soon_point(found), mlp_point(found), skip_point(found)]
    points += [repeats_point(found, published["init"]["san"]["mean"] if published else None)]
    points += [order_point(found)] if found.log10 else []
    if found.source is not None:
        if found.source.is_true and published:
            points += [
                _trained_published(name, found, published["pretrained"][name]["mean"]) for name in VARIANTS
            ]
        points += [later_point(found), trained_mlp_point(found), trained_skip_point(found)]
    return points


def published_point(variant: str, ours: Values, theirs: Sequence[float], floor: Sequence[float]) -> Point:
    """Agrees if values that count are within ``NEAR`` by intervals, and every draw is at rounding where theirs is.

    Disagrees if a value is outside, by intervals that hold for all layers at once, or no draw comes down to rounding.
    """
    kinds = [kind(*one) for one in zip(theirs, floor, strict=True)]
    judged = [layer for layer, one in enumerate(kinds) if one == "value"]
    below = [layer for layer, one in enumerate(kinds) if one == "rounding"]
    logs = np.log(ours / np.asarray(theirs))
    at = max(judged, key=lambda layer: abs(logs[:, layer].mean()))
    values = all_within(
        [logs[:, layer].tolist() for layer in judged], [(-np.log(NEAR), np.log(NEAR))] * len(judged)
    )
    down = [bool((curve[below] < np.asarray(floor)[below]).all()) for curve in ours]
    measured = [
        f"{listed(ours.mean(axis=0).tolist(), floor)}, mean of {len(ours)} draw{'s' * (len(ours) > 1)}.",
        f"Largest quotient: {_quotient(logs[:, at])} at layer {at} (allowed {NEAR:g}, as theirs is one draw).",
    ]
    if below:
        measured.append(
            f"Layers {below[0]} to {below[-1]} are below the floor of float32 there, a plateau and no numbers to "
            f"compare; they are here too in {sum(down)} of {draws(down)}."
        )
    return Point(
        source="reported",
        statement=f"BERT, untrained, {variant}: {listed(theirs)} at layers 0, 1, 2, 6 and 12 (read from the figure).",
        measured=" ".join(measured),
        agrees=both(values, unanimous(down) if below else True),
    )


def _quotient(logs: Values) -> str:
    found = mean_of(logs.tolist())
    if found.low is None or found.high is None:
        return f"{np.exp(found.mean):.2f}"
    return f"{np.exp(found.mean):.2f} (95% interval {np.exp(found.low):.2f} to {np.exp(found.high):.2f})"


def soon_point(found: Found) -> Point:
    """By the interval over draws."""
    after = found.official["san"][:, 1]
    is_known = found.subject.figure == "dong-bert"
    return Point(
        source="reported" if is_known else "ours",
        statement=f"{found.subject.label}, untrained: attention alone is below {SOON} after one layer"
        + ("." if is_known else ", as is reported of BERT."),
        measured=f"{mean_of(after.tolist()).text()} after layer 1, from {found.official['san'][:, 0].mean():.3g}; "
        f"below {SOON} in {int((after < SOON).sum())} of {draws(after)}.",
        agrees=within(mean_of(after.tolist()), -np.inf, SOON),
    )


def repeats_point(found: Found, theirs: Sequence[float] | None) -> Point:
    """Holds if by intervals over draws half and double R move attention alone after layer 1 as they should.

    That is by ``power`` of the subject, up to a factor ``NEAR``. ``theirs`` are the published values of attention
    alone, if known.
    """
    own = next(one for one in found.repeated if one.repeats == REPEATS)
    others = [one for one in found.repeated if one is not own]
    after = [np.log(one.official["san"][:, 1] / own.official["san"][:, 1]) for one in others]
    moved = "; ".join(
        f"R = {one.repeats:g}: {mean_of(one.official['san'][:, 1].tolist()).text()}" for one in found.repeated
    )
    quotients_text = ", ".join(
        f"{_quotient(logs)} at R = {one.repeats:g}" for one, logs in zip(others, after, strict=True)
    )
    power = found.subject.power
    if power:
        statement = (
            "how often tokens repeat matters: nothing but the mean token sets the scale. Attention alone after "
            f"layer 1 goes as R^{power:g}: with half and with double the R of English it is that, within a factor of "
            f"{NEAR:g}."
        )
    else:
        statement = (
            "how often tokens repeat matters little. With half and with double the R of English, attention alone after "
            f"layer 1 is within a factor of {NEAR:g} of what it is there."
        )
    expected = [power * np.log(one.repeats / own.repeats) for one in others]
    return Point(
        source="ours",
        statement=f"{found.subject.label}, untrained: {statement}",
        measured=f"{moved}. Quotients: {quotients_text}."
        + ("" if theirs is None else f" Published, on texts of an R that is not known: {theirs[1]:.3g}."),
        agrees=all_within(
            [logs.tolist() for logs in after], [(one - np.log(NEAR), one + np.log(NEAR)) for one in expected]
        ),
    )


def repeats_note(found: Found) -> str:
    """How the texts were drawn, and the first layers at every R."""
    own = next(one for one in found.repeated if one.repeats == REPEATS)
    first = "; ".join(
        f"R = {one.repeats:g} "
        + ", ".join(
            f"{name} {', '.join(f'{value:.3g}' for value in values.mean(axis=0)[1:])}"
            for name, values in one.official.items()
        )
        for one in found.repeated
    )
    return (
        "Texts: what the first layers of an untrained model see of a text is R, the sum of the squared counts of "
        f"its tokens over their number. Ids are drawn with R = {REPEATS:g} on average (drawn: {own.drawn:.3g}), which "
        f"is that of the bundled English sample in runs of {TOKENS} word pieces of MiniLM; it was measured on text and "
        "chosen by no curve. The paper's biographies are not at hand; their R is not known. Layers 1 to "
        f"{FIRST} at other R, mean over draws: {first}."
    )


def mlp_point(found: Found) -> Point:
    """Agrees if in every draw the ratio with MLPs reaches the floor of float32, at most a layer later than without."""
    ends = {name: [rounding_at(curve, found.floor) for curve in found.official[name]] for name in FALLING}
    checks = [no_later(*pair) for pair in zip(*ends.values(), strict=True)]
    return Point(
        source="reported",
        statement=f"{found.subject.label}, untrained: an MLP without attention skips does not help.",
        measured=f"First layer below the floor of float32: {ends_text(ends)}, {draws(checks)}.",
        agrees=unanimous(checks),
    )


def skip_point(found: Found) -> Point:
    """By intervals over draws of the least and of the greatest value of any layer."""
    is_known = found.subject.figure == "dong-bert"
    low, high = ORDER_ONE if is_known else (APART, np.inf)
    told, checks = [], list[bool | None]()
    for name in ("san+skip", "transformer"):
        curves = found.official[name]
        least, most = mean_of(curves.min(axis=1).tolist()), mean_of(curves.max(axis=1).tolist())
        checks.append(both(within(least, low, high), within(most, low, high)))
        told.append(f"{name} {least.text()} and {most.text()}")
    between = f"between {low:g} and {high:g}" if is_known else f"above {low:g}, a level of ours"
    return Point(
        source="reported" if is_known else "ours",
        statement=f"{found.subject.label}, untrained: with skips the ratio stays {between}.",
        measured=f"Least and greatest value of any layer, mean over {draws(found.official['transformer'])} (95% "
        f"interval): {'; '.join(told)}.",
        agrees=decided(checks),
    )


def order_point(found: Found) -> Point:
    """BERT and ALBERT add positions to the tokens, XLNet adds them to the logits, which tells equal tokens apart."""
    curve = found.log10["san"]
    orders = mean_of((curve[:, -1] / curve[:, -2]).tolist())
    if found.subject.figure != "dong-xlnet":
        return Point(
            source="ours",
            statement="Attention alone loses rank doubly exponentially: a layer cubes the residual. Theorem 2.3 of the "
            "paper, to which this is compared, is an upper bound that cubes it; it does not say that it is reached.",
            measured=f"By the split pass, log r of the last layer over the one before: {orders.text()}; the "
            f"last ratio is 1e{curve[:, -1].mean():.0f}. Float32 shows none of this beyond layer 2.",
            agrees=within(orders, *ORDER),
        )
    falls = np.diff(curve, axis=1)
    half = falls.shape[1] // 2
    late, early = falls[:, half:].mean(axis=1), falls[:, 1:half].mean(axis=1)
    return Point(
        source="ours",
        statement="XLNet's attention alone falls by a steady factor per layer, not doubly exponentially: its logits "
        "depend on relative positions, so that attention tells tokens apart even where they are equal.",
        measured=f"By the split pass, factor per layer over the last half {mean_of((10**late).tolist()).text()}, over "
        f"the layers before {mean_of((10**early).tolist()).text()}; order of the last layer {orders.text()}.",
        agrees=within(mean_of((late / early).tolist()), 1 / EVEN, EVEN),
    )


def later_point(found: Found) -> Point:
    """Agrees if on every text trained attention falls below the level for good, but after every untrained draw."""
    ends, drawn = ([gone_at(curve) for curve in curves["san"]] for curves in (found.trained, found.official))
    later = [at is not None and all(one is not None and one < at for one in drawn) for at in ends]
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: attention alone collapses, some layers later than untrained.",
        measured=f"First layer below {GONE} for good: trained {layers_text(ends)}, {texts(ends)}; untrained "
        f"{layers_text(drawn)}, {draws(drawn)}.",
        agrees=unanimous(later) if len(drawn) >= FEWEST else None,
    )


def trained_mlp_point(found: Found) -> Point:
    """The rule of ``mlp_point``, text by text and down to the level."""
    ends = {name: [gone_at(curve) for curve in found.trained[name]] for name in FALLING}
    checks = [no_later(*pair) for pair in zip(*ends.values(), strict=True)]
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: an MLP without attention skips does not help.",
        measured=f"First layer below {GONE} for good: {ends_text(ends)}, {texts(checks)}.",
        agrees=unanimous(checks),
    )


def trained_skip_point(found: Found) -> Point:
    """By the interval over texts of the least value."""
    least = {name: mean_of(found.trained[name].min(axis=1).tolist()) for name in ("transformer", "san+skip")}
    return Point(
        source="reported",
        statement=f"{_trained_name(found)}: the whole model keeps its tokens apart.",
        measured=f"Least value of any layer, {texts(found.trained['transformer'])} (apart: above {APART}, a level of "
        f"ours): transformer {least['transformer'].text()}; san+skip {least['san+skip'].text()}, at the end "
        f"{found.trained['san+skip'][:, -1].mean():.3g} (published for san+skip of BERT: 0.074).",
        agrees=side(least["transformer"], APART),
    )


def _trained_published(variant: str, found: Found, theirs: Sequence[float]) -> Point:
    """Agrees if by intervals over texts no value above ``GONE`` is off by more than ``FAR``, and the others are small.

    Disagrees if one of them is, by intervals that hold for all layers at once.
    """
    ours = found.trained[variant]
    ratios = quotients(ours, theirs)
    seen = [layer for layer, value in enumerate(theirs) if value > GONE]
    at = max(seen, key=lambda layer: abs(np.log(ratios[layer])))
    limits = [
        (value / FAR, FAR * value) if layer in seen else (-np.inf, FAR * GONE)
        for layer, value in enumerate(theirs)
    ]
    return Point(
        source="reported",
        statement=f"BERT, trained, {variant}: {listed(theirs)} at layers 0, 1, 2, 6 and 12 (read from the figure).",
        measured=f"{listed(ours.mean(axis=0).tolist(), found.floor)}, mean over {texts(ours)}, which are others. "
        f"Largest quotient where theirs is above {GONE}: {ratios[at]:.2f} at layer {at} (allowed {FAR:g}).",
        agrees=all_within(ours.T.tolist(), limits),
    )


def _trained_name(found: Found) -> str:
    source = found.source
    if source is None:
        return found.subject.label
    return f"{found.subject.label}, trained" + (
        "" if source.is_true else f" (shape alone, on another model: {source.name})"
    )
