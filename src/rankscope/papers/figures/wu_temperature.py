"""``wu-temperature``: how the temperature term of the logits moves the curves, mask by mask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.figure import Figure, Job, Point, Size, decided, register
from rankscope.papers.figures.stacks import (
    CURVE_MEASURES,
    Shape,
    add_curve,
    cells,
    follow,
    stacks,
    tempered,
)
from rankscope.papers.figures.statistics import FEWEST, Median, depths, median_of
from rankscope.papers.figures.wording import decades_text
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions

TERMS: dict[str, float] = {"1/64": 1 / 64, "1": 1.0, "64": 64.0}
"""d_QK of the published figure, by the text that names it."""

NORMS = ("none", "sphere")
HALF = -0.3
"""Log10 of one half: the first layer below it is when collapse sets in."""


class WuTemperatureConfig(Config):
    """Sizes of the stacks."""

    figure: Literal["wu-temperature"] = "wu-temperature"
    size: Size
    layers: int
    dim: int
    tokens: int
    seeds: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        return Shape(layers=self.layers, dim=self.dim, tokens=self.tokens)


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {"layers": 24, "dim": 12, "tokens": 12, "seeds": range(6)},
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20)},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3)},
}

Curves = dict[tuple[str, str, str], np.ndarray]
"""Log10 of the ratio, ``layers seeds``, by norm, mask and temperature term."""


def make(job: Job) -> Table:
    """The table of the figure: column ``temperature`` holds d_QK, logits are divided by its square root."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = WuTemperatureConfig.of(size=job.size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, done = Rows(), 0
    parts: dict[tuple[str, str, str], list[np.ndarray]] = {}
    total = len(config.seeds) * len(NORMS) * len(TERMS) * len(config.shape.masks)
    for batch in stacks(config.shape, config.seeds, "gaussian"):
        work = [
            tempered(cell, (term / config.dim) ** 0.5, temperature=name)
            for cell in cells(batch, masks=config.shape.masks, norms=NORMS, values="gaussian")
            for name, term in TERMS.items()
        ]
        for curve in follow(work, config.layers):
            add_curve(rows, curve)
            about = curve.cell.about
            key = (str(about["norm"]), str(about["mask"]), str(about["temperature"]))
            parts.setdefault(key, []).append(np.asarray(curve.log10_ratio))
            done += len(batch.seeds)
            job.tell(done, total)
    curves = {key: np.concatenate(each, axis=1) for key, each in parts.items()}
    slowing = {norm: {mask: Slowing.of(curves, norm, mask) for mask in config.shape.masks} for norm in NORMS}
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions(CURVE_MEASURES),
        setting={
            "layers": config.layers,
            "dim": config.dim,
            "tokens": config.tokens,
            "window": config.shape.window,
            "masks": list(config.shape.masks),
            "temperatures": list(TERMS),
        },
        networks=[_network(key, log10) for key, log10 in curves.items()],
        slowing={
            norm: {mask: one.section() for mask, one in found.items()} for norm, found in slowing.items()
        },
        verdict=verdict(slowing, config.shape),
        notes=_notes(config),
    )


def _network(key: tuple[str, str, str], log10: np.ndarray) -> dict[str, Any]:
    reached = [depth for depth in depths(log10, HALF) if depth is not None]
    return {
        "norm": key[0],
        "mask": key[1],
        "temperature": key[2],
        "layers_to_half": median_of(reached).section() if reached else None,
        "reached_half": len(reached),
        "log10_ratio_at_last_layer": median_of(log10[-1].tolist()).section(),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowing:
    """Decades that the ratio at d_QK = 1/64 lies above that at 64, paired by seed, at layers 1, 2, ...

    No layer is singled out: the sign is told for all of them, and the size where it is largest. Seeds scatter over
    decades, so medians count.
    """

    by_layer: tuple[Median, ...]

    @classmethod
    def of(cls, curves: Curves, norm: str, mask: str) -> "Slowing":
        sharp, flat = (curves[norm, mask, term] for term in ("1/64", "64"))
        return cls(by_layer=tuple(median_of(gaps.tolist()) for gaps in (sharp - flat)[1:]))

    @property
    def slowed_until(self) -> int:
        """The last layer of the first ones at which the whole interval is above zero; 0 if not even the first is."""
        signs = [one.low > 0 for one in self.by_layer]
        return signs.index(False) if False in signs else len(signs)

    @property
    def overtaken_from(self) -> int | None:
        """The first layer from which on the whole interval is below zero, to the end; None if it is not in the end."""
        signs = [one.high < 0 for one in self.by_layer]
        if not signs[-1]:
            return None
        return len(signs) + 1 - (signs[::-1].index(False) if False in signs else len(signs))

    @property
    def peak(self) -> tuple[int, Median]:
        """The layer at which the difference is largest, and the difference there."""
        layer = max(range(len(self.by_layer)), key=lambda place: self.by_layer[place].median)
        return layer + 1, self.by_layer[layer]

    @property
    def is_slowed(self) -> bool | None:
        """Whether the first layers are slowed; None if the seeds do not tell."""
        return {1: True, -1: False}.get(self.by_layer[0].sign or 0)

    def section(self) -> dict[str, Any]:
        layer, peak = self.peak
        return {
            "slowed_until_layer": self.slowed_until,
            "overtaken_from_layer": self.overtaken_from,
            "peak_layer": layer,
            "peak": peak.section(),
            "last": self.by_layer[-1].section(),
        }


Slowings = dict[str, dict[str, Slowing]]
"""By norm and mask."""


def verdict(found: Slowings, shape: Shape) -> list[Point]:
    """Three readings of the published figure, over both norms and all masks."""
    every = [one for by_mask in found.values() for one in by_mask.values()]
    early = shape.layers // EARLY
    count = every[0].by_layer[0].count
    over = (
        "95% intervals of medians over seeds"
        if count >= FEWEST
        else f"all of {count} seeds, too few to decide"
    )
    return [
        Point(
            source="reported",
            statement="A smaller temperature term (sharper attention) slows collapse in early layers.",
            measured=f"mu/||X||_F at d_QK = 1/64 is above that at 64 ({over}): "
            + _by_norm(found, lambda mask, one: f"{mask} {_range(one, shape.layers)}"),
            agrees=decided([one.is_slowed for one in every]),
        ),
        Point(
            source="reported",
            statement="More so for global masks than for sparse ones.",
            measured="Largest median difference at any layer, in decades: "
            + _by_norm(found, lambda mask, one: f"{mask} {decades_text(one.peak[1])} at layer {one.peak[0]}"),
            agrees=decided([side for by_mask in found.values() for side in _larger(by_mask, shape)]),
        ),
        Point(
            source="reported",
            statement="The effect is seen in early layers above all.",
            measured=f"Largest within the first {early} layers: {_early(found, early)}. At layer {shape.layers}, in "
            "decades: "
            + _by_norm(found, lambda mask, one: f"{mask} {decades_text(one.by_layer[-1])}")
            + " Below 0 sharper attention has overtaken: each token copies nearly one other, and tokens that copy the "
            "same one are equal at once. With the complete mask a late onset stays ahead, because every layer cubes "
            "the residual.",
            agrees=decided([one.peak[0] <= early for one in every]) if count >= FEWEST else None,
        ),
    ]


EARLY = 4
"""Layers in the first quarter of the depth are early."""


def _larger(found: dict[str, Slowing], shape: Shape) -> list[bool | None]:
    """For complete and causal, whether their largest difference is beyond those of both windows, by intervals."""
    full, causal, *windows = shape.masks
    peaks = {mask: one.peak[1] for mask, one in found.items()}
    sides = list[bool | None]()
    for mask in (full, causal):
        if not peaks[mask].is_enough:
            sides.append(None)
        elif all(peaks[mask].low > peaks[window].high for window in windows):
            sides.append(True)
        else:
            sides.append(False if any(peaks[mask].high < peaks[window].low for window in windows) else None)
    return sides


def _by_norm(found: Slowings, told: Callable[[str, Slowing], str]) -> str:
    parts = [
        f"norm {norm}: {'; '.join(told(mask, one) for mask, one in by_mask.items())}."
        for norm, by_mask in found.items()
    ]
    return " ".join(parts)


def _early(found: Slowings, early: int) -> str:
    names = [
        f"{mask} ({norm})"
        for norm, by_mask in found.items()
        for mask, one in by_mask.items()
        if one.peak[0] <= early
    ]
    return ", ".join(names) or "nowhere"


def _range(one: Slowing, layers: int) -> str:
    slowed = {0: "not at layer 1", layers: "at all layers"}.get(
        one.slowed_until, f"at layers 1 to {one.slowed_until}"
    )
    return slowed + ("" if one.overtaken_from is None else f", overtaken from layer {one.overtaken_from} on")


def _notes(config: WuTemperatureConfig) -> list[str]:
    return [
        "The temperature term is d_QK of softmax(X W_Q (X W_K)^T / sqrt(d_QK)), as in the paper: 64 divides the logits "
        "by 8, 1/64 multiplies them by 8. With weights N(0, 1/dim) the logits of the first layer have standard "
        f"deviation {config.dim**0.5 / 8:.2g}, {config.dim**0.5:.2g} and {8 * config.dim**0.5:.2g}.",
        f"Stacks of {config.layers} layers, dim {config.dim}, {config.tokens} Gaussian tokens, value maps N(0, 1/dim), "
        f"windows of {config.shape.window} tokens to a side; the weights of a seed are the same throughout.",
        "Once tokens are nearly equal their logits are too, whatever the temperature: asymptotic rates do not depend "
        "on it (causal: 1/2 per layer; complete: order 3), only the depth at which they set in.",
    ]


def _chart(table: Table) -> Any:
    from rankscope.plots.wu_temperature_chart import temperature_chart

    return temperature_chart(table)


register(
    Figure(
        name="wu-temperature",
        title="the temperature term and collapse, mask by mask",
        source=Ref(
            key="wu2024",
            where="Section 5, temperature term d_QK in {1/64, 1, 64}",
            differs="random stacks and Gaussian tokens, mu/||X||_F without a floor",
        ),
        question="Does sharper attention slow collapse, and for which masks?",
        durations={
            "fast": "about 3 seconds",
            "usual": "about 90 seconds",
            "full": "about 6 minutes, up to 11 GB (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
