"""Rules and words by which residual curves of ``dong-*`` are compared with what is said of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rankscope.papers.figures.dong_curves import Subject, Trained
from rankscope.papers.figures.figure import decided
from rankscope.papers.figures.statistics import first_below

Values = np.ndarray
"""One mean over texts per seed and layer: ``seeds layers``. Of trained weights one value per text and layer."""

FEWEST = 3
"""Fewer draws, or texts, do not tell whether something holds for all of them."""

SOON = 0.02
"""Published BERT is below it after one layer of attention."""

GONE = 0.01
ORDER_ONE = (0.3, 1.0)
"""Between these the published curves of untrained BERT with skips stay."""

APART = 0.1
"""A level of ours, where none is published: tokens of a ratio above it are apart."""

NEAR, FAR = 1.25, 2.0
"""Largest quotient of ours and theirs. Untrained: each published curve is one draw, single draws scatter by up to 8% in
a layer, and three times that is about a fourth. Trained: the weights are the same, the texts are not, and where the
ratio falls the published spread over texts is as large as the mean."""

ORDER = (2.9, 3.1)
EVEN = 1.25
"""Decades per layer count as even if those of the last layers and of the ones before differ by no more than this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeated:
    """The first layers on texts whose tokens repeat with a given ``R``.

    Args:
        repeats: ``R`` that was asked for, see ``repetition``.
        drawn: mean over texts of what was drawn.
        official: by variant ``seeds layers``, as in ``Found``, layers 0 to ``FIRST``.
    """

    repeats: float
    drawn: float
    official: Mapping[str, Values]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Curves of one model by variant.

    Args:
        official: means over texts of the ratio, computed in float32 as in the published code.
        floor: of float32, per layer.
        log10: mean over texts of log10 by the split pass, of the falling variants, as far as it was run.
        trained: the same as ``official`` for the trained weights at hand, a row per text.
        repeated: the first layers of untrained weights on texts whose tokens repeat otherwise, fewer repeats first;
            ``official`` is one of them.
    """

    subject: Subject
    official: Mapping[str, Values]
    floor: Sequence[float]
    log10: Mapping[str, Values]
    source: Trained | None
    trained: Mapping[str, Values]
    repeated: Sequence[Repeated]


Kind = Literal["value", "rounding"]
"""Of a published value: compared with ours; not above rounding."""


def kind(value: float, floor: float) -> Kind:
    """What a published value of untrained BERT is good for."""
    return "value" if value > floor else "rounding"


def quotients(ours: Values, theirs: Sequence[float]) -> list[float]:
    """Per layer the mean over seeds over the published value."""
    return [float(value) for value in ours.mean(axis=0) / np.asarray(theirs)]


def gone_at(curve: Values) -> int | None:
    return first_below([float(value) for value in curve], GONE)


def rounding_at(curve: Values, floor: Sequence[float]) -> int | None:
    return first_below([float(value / least) for value, least in zip(curve, floor, strict=True)], 1.0)


def no_later(alone: int | None, with_mlp: int | None) -> bool | None:
    """At most one layer later: a layer more or less is a matter of the draw. None if neither comes down."""
    if alone is None and with_mlp is None:
        return None
    return with_mlp is not None and (alone is None or with_mlp <= alone + 1)


def unanimous(checks: Sequence[bool | None]) -> bool | None:
    """``decided``, of three draws or texts and more."""
    return decided(checks) if len(checks) >= FEWEST else None


def both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both hold; one that fails is enough to fail."""
    if one is False or other is False:
        return False
    return True if one and other else None


def draws(values: Sequence[object] | Values) -> str:
    return f"{len(values)} draw{'s' * (len(values) > 1)}"


def texts(values: Sequence[object] | Values) -> str:
    return f"{len(values)} text{'s' * (len(values) > 1)}"


def ends_text(ends: Mapping[str, Sequence[int | None]]) -> str:
    return "; ".join(f"{name} {layers_text(at)}" for name, at in ends.items())


def layers_text(found: Sequence[int | None]) -> str:
    """``2``, ``1 to 2`` or ``never``."""
    seen = sorted({at for at in found if at is not None})
    if not seen:
        return "never"
    text = f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
    return text if None not in found else f"{text}, or never"


def listed(values: Sequence[float], floor: Sequence[float] | None = None) -> str:
    """Values at some layers; those below a floor are called rounding."""
    places = [layer for layer in (0, 1, 2, 6, 12) if layer < len(values)]
    return ", ".join(
        "rounding"
        if floor is not None and values[layer] < floor[layer]
        else f"{values[layer]:.3f}"
        if values[layer] >= 0.1
        else f"{values[layer]:.2g}"
        for layer in places
    )
