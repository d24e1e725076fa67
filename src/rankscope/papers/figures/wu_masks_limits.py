"""The verdict of ``wu-masks`` in words, continued: where float32 stops, isometries, and states that stay apart."""

from rankscope.masks import parse_mask, slem_words
from rankscope.papers.figures.figure import Point, decided
from rankscope.papers.figures.kept import DIM, SHEAR, STEADY, TOKENS, Pushed, RandomStarts
from rankscope.papers.figures.stacks import Shape
from rankscope.papers.figures.statistics import share_text
from rankscope.papers.figures.wording import geometric, listed, rate
from rankscope.papers.figures.wu_masks_found import Found, Key

AT_REST = 1e-12
"""Largest entry of ``|step(x) - x|`` of a built state, in float64."""

UNMOVED = 1e-6
"""Decades by which the ratio of a built state may change within the steady layers; rounding grows to 1e-12 there."""


def float32_point(found: Found, shape: Shape) -> Point:
    full, causal, _, one_sided = shape.masks
    keys: list[Key] = [
        ("gaussian", norm, mask) for norm in ("sphere", "layer") for mask in (causal, one_sided)
    ]
    plain: list[Key] = [("gaussian", "none", mask) for mask in (causal, one_sided)]
    levels = [found.ended[key].is_level() for key in keys]
    complete = found.ended["gaussian", "sphere", full]
    seeds = complete.float32.shape[1]
    judged = False if False in levels else decided(levels)
    start = {
        True: "They do, at rounding",
        False: "Not all of them do",
        None: f"Not all are at rounding over the last quarter of recorded layers, {shape.layers} in all",
    }[judged]
    stops = [mask for _, _, mask in plain if found.ended["gaussian", "none", mask].is_level()]
    cause = (
        f": {' and '.join(stops)} stop as well, so that the plateau is rounding, not the norm"
        if stops
        else ""
    )
    large, small = (found.ended[kind, "none", causal].size for kind in ("gaussian", "small"))
    sizes = [geometric([float(value) for part in parts for value in part]) for parts in (small, large)]
    return Point(
        source="ours",
        statement="Drawn from a float32 run, curves of mu/||X||_F with a norm level off at rounding while the residual "
        "itself goes on falling.",
        measured=f"{start}: in float32 at layer {shape.layers}, geometric mean over seeds, "
        f"{'; '.join(_single(found, key) for key in keys)}; the floor is {complete.floor:.1e}. Without a norm: "
        f"{'; '.join(_single(found, key) for key in plain)}{cause}. The "
        f"complete mask on the sphere is exactly 0 in {complete.zeros} of {seeds} seeds. With value maps as small as "
        f"BERT's and no norm mu itself goes on down ({sizes[0]} against {sizes[1]} with N(0, 1/dim), causal), because "
        "X shrinks: that is scale, not collapse.",
        agrees=judged,
    )


def _single(found: Found, key: Key) -> str:
    one = found.ended[key]
    kind = {True: "level", False: "still moving", None: "not at rounding for long"}[one.is_level()]
    split = float(one.log10[-1].mean())
    zeros = f", exactly 0 in {one.zeros} of {one.float32.shape[1]} seeds" if one.zeros else ""
    return (
        f"{key[1]}, {key[2]} {geometric(one.float32[-1].tolist())} ({kind}{zeros}; split pass 1e{split:.0f})"
    )


def isometry_point(found: Found, shape: Shape) -> Point:
    """Agrees if every strongly connected mask falls on the sphere, by intervals, for both kinds of maps."""
    full, causal, window, one_sided = shape.masks
    kinds = ("orthogonal", "identity")
    falls = [found.falls((values, "sphere", mask)) for values in kinds for mask in (full, window)]
    slem = slem_words(parse_mask(window).graph(shape.tokens))

    def told(norm: str) -> str:
        return "; ".join(
            f"{values}: {full} order {found.order((values, norm, full)).text()}, {window} "
            f"{rate(found.slope((values, norm, window)))}"
            for values in kinds
        )

    quasi = "; ".join(
        f"{values}: {causal} {rate(found.slope((values, 'sphere', causal)))}, {one_sided} "
        f"{rate(found.slope((values, 'sphere', one_sided)))}"
        for values in kinds
    )
    return Point(
        source="reported",
        statement="Orthogonal value maps with LayerNorm: exponential collapse for every strongly connected mask.",
        measured=f"On the sphere, the paper's LayerNorm: factor per layer over the last half, geometric mean with its "
        f"95% interval, for the complete mask the order. {told('sphere')}; the SLEM of {window} is {slem}. Masks "
        f"that are only quasi-strongly connected: {quasi}; their SLEM is 1/2. With mean removal, with which orthogonal "
        f"maps do not commute: {told('layer')}.",
        agrees=decided(falls),
    )


def kept_point(found: Found) -> Point:
    """Agrees if the built states rest and the same weights collapse without the norm: existence, not attraction."""
    curves = found.kept["sphere"]
    last = min(STEADY, len(curves) - 1)
    rests = max(one.equation_residual for one in found.pushed) < AT_REST
    stays = bool((abs(curves[last] - curves[0]) < UNMOVED).all() and (curves[last] > -1).all())
    falls = found.kept["none"][-1]
    return Point(
        source="paper",
        statement="With suitable value maps LayerNorm has equilibria of every rank, so that it can prevent collapse.",
        measured=f"Existence, not attraction. W = I + {SHEAR:g} S, {TOKENS} tokens in {DIM} dimensions, causal, unit "
        f"sphere, built states of rank 2, 3, 4: one step moves them by at most "
        f"{max(one.equation_residual for one in found.pushed):.0e}, and a stack started exactly there keeps "
        f"mu/||X||_F at {listed(curves[last].tolist())} over {last} layers; the same weights and starts without the "
        f"norm end at {listed(falls.tolist())}. They do not attract: {_pushes(found.pushed)}. {_random(found.starts)}",
        agrees=rests and stays and bool((falls < -6).all()),
    )


def _pushes(found: list[Pushed]) -> str:
    first = found[0]
    each = "; ".join(
        f"rank {one.rank} {share_text(one.collapsed, one.pushes)}, sigma_2/sigma_1 from {one.second:.2g} to at most "
        f"{one.second_high:.0e}"
        for one in found
    )
    return f"pushed by {first.size:.0e} in every entry, within {first.steps} steps collapse {each}"


def _random(starts: RandomStarts | None) -> str:
    if starts is None:
        return "No random starts were run."
    kept = starts.rank_two
    sizes = (
        ""
        if starts.second_low is None or starts.second_high is None
        else f", with sigma_2/sigma_1 from {starts.second_low:.2g} to {starts.second_high:.2g}"
    )
    higher = (
        "none reaches rank 3 or 4" if not starts.higher else f"{starts.higher} have a third singular value"
    )
    lines = f"; {starts.opposite} more are equal up to sign" if starts.opposite else ""
    return (
        f"Random starts that keep rank 2 after {starts.steps} steps: {share_text(kept, starts.starts)}{sizes}; "
        f"{higher}{lines}."
    )
