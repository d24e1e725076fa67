"""What is proven of one text, as plain numbers: one line per layer and definition, the printed bound beside it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankscope.bounds.certificate import COMPOSITE, Certificate, LayerBounds
from rankscope.bounds.sizes import SIZES, Interval, composite, ratios, stacked, tightened
from rankscope.studies.certify_printed import Printed, assumption_text, holds

NEARLY = 1e-6
"""A bound must be below the trivial one by more than what rounding of both explains."""

NO_METHOD = "nothing"

STATE = "size of the state"

OTHERS = "other sizes"
"""Sizes of a residual bound each other, and the composite one is made of two others."""

NOTHING = Printed(name="", log_bounds=(), failing=(), words="")
"""Stands in where no theorem in print speaks of a definition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One layer in one definition. Bounds are natural logarithms, infinite where nothing is proven.

    Args:
        trivial: what the size of the state alone says; an upper bound that is not below it is vacuous.
        bound: the bound as printed; None where there is none, which also holds of the input.
        bound_proven: whether all of its assumptions hold.
        measured_floor: of ``measured``, estimated from a perturbed run; infinite where nothing is known of it.
        enclosed_lower: of the computed state, minus what rounding may have moved it by: true of this input, and no
            explanation.
        enclosed_upper: the same, plus.
        lacking: what fails, first that of the printed bound, then what kept the certificate from saying more.
        no_lower: what kept the lower bound of the certificate from saying more.
        no_upper: the same of the upper bound.
    """

    layer: int
    definition: str
    lower: float
    measured: float
    upper: float
    trivial: float
    bound: float | None = None
    bound_name: str | None = None
    bound_proven: bool = False
    lower_by: str | None = None
    upper_by: str | None = None
    gain_lower: float | None = None
    gain_upper: float | None = None
    enclosed_lower: float | None = None
    enclosed_upper: float | None = None
    lacking: tuple[str, ...] = ()
    no_lower: tuple[str, ...] = ()
    no_upper: tuple[str, ...] = ()
    error: float | None = None
    measured_floor: float = math.inf

    @property
    def lower_vacuous(self) -> bool:
        """Whether no positive lower bound is proven."""
        return self.lower == -math.inf

    @property
    def upper_vacuous(self) -> bool:
        """Whether the upper bound says no more than the size of the state does."""
        return not self.upper < self.trivial - NEARLY

    @property
    def vacuous(self) -> bool:
        """Whether nothing beyond the trivial is proven."""
        return self.lower_vacuous and self.upper_vacuous

    @property
    def bound_vacuous(self) -> bool:
        """Whether the printed bound, true or not, says no more than the size of the state does."""
        return self.bound is not None and not self.bound < self.trivial - NEARLY


def lines_of(
    certificate: Certificate,
    printed: dict[str, Printed],
    definitions: Sequence[str],
    shape: tuple[int, int],
) -> list[Line]:
    """The lines of one text, whose certificate has no batch axes: layer by layer, in the order of ``definitions``.

    ``shape`` is that of its tokens, number by width.
    """
    found = []
    for layer in certificate.layers:
        trivial = trivial_of(layer, shape)
        found += [_line(layer, name, printed.get(name, NOTHING), trivial[name]) for name in definitions]
    return found


def trivial_of(layer: LayerBounds, shape: tuple[int, int]) -> dict[str, float]:
    """What the sizes of the tokens alone say: a size in one norm bounds the residual in every other one too."""
    most = stacked(layer.trivial)
    interval = tightened(Interval(lower=torch.full_like(most, -torch.inf), upper=most), ratios(*shape))
    both = composite(interval, shape[0])[1]
    found = dict(zip(SIZES, interval.upper.tolist(), strict=True))
    return found | {COMPOSITE: min(float(layer.trivial[COMPOSITE]), float(both))}


def _line(layer: LayerBounds, definition: str, printed: Printed, trivial: float) -> Line:
    no_lower, no_upper = (
        tuple(assumption_text(one) for one in failed if not holds(one))
        for failed in (layer.no_lower, layer.no_upper)
    )
    has_bound = 0 < layer.layer < len(printed.log_bounds)
    failing = printed.failing[layer.layer] if 0 < layer.layer < len(printed.failing) else ()
    return Line(
        layer=layer.layer,
        definition=definition,
        lower=float(layer.lower[definition]),
        measured=float(layer.measured[definition]),
        upper=float(layer.upper[definition]),
        trivial=trivial,
        bound=printed.log_bounds[layer.layer] if has_bound else None,
        bound_name=printed.name if has_bound else None,
        bound_proven=has_bound and not failing,
        lower_by=_method(layer, layer.lower_by.get(definition), float(layer.lower[definition])),
        upper_by=_upper_method(layer, definition, trivial),
        gain_lower=_number(layer.gain_lower.get(definition)),
        gain_upper=_number(layer.gain_upper.get(definition)),
        enclosed_lower=_number(layer.enclosed_lower.get(definition)),
        enclosed_upper=_number(layer.enclosed_upper.get(definition)),
        lacking=(
            *(f"{printed.name}: {one}" for one in failing),
            *(f"certificate: {one}" for one in (*no_lower, *no_upper)),
        ),
        no_lower=no_lower,
        no_upper=no_upper,
        error=_number(layer.error),
        measured_floor=float(layer.measured_floor.get(definition, math.inf)),
    )


def _upper_method(layer: LayerBounds, definition: str, trivial: float) -> str | None:
    """As ``_method``; a bound that is no better than the size of the state is that size."""
    bound = float(layer.upper[definition])
    found = _method(layer, layer.upper_by.get(definition), bound)
    return found if found is None or bound < trivial - NEARLY else STATE


def _method(layer: LayerBounds, place: Tensor | None, bound: float) -> str | None:
    """The name that the index points to; where the block's own rule gives nothing, a bound comes from other sizes."""
    name = NO_METHOD if place is None else layer.methods[int(place)]
    if layer.layer == 0 or math.isinf(bound):
        return None
    return OTHERS if name == NO_METHOD else name


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)
