"""``wu-temperature``: how the temperature term of the logits moves the curves, mask by mask."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.results import Table
from rankscope.studies.figures.figure import Advance, Figure, Point, Size, register
from rankscope.studies.figures.stacks import (
    CURVE_MEASURES,
    Shape,
    add_curve,
    cells,
    follow,
    stacks,
    tempered,
)
from rankscope.studies.figures.statistics import Mean, depths, mean_of
from rankscope.studies.rows import Rows, definitions

TERMS: dict[str, float] = {"1/64": 1 / 64, "1": 1.0, "64": 64.0}
"""d_QK of the published figure, by the text that names it."""

NORMS = ("none", "sphere")
MOST = 1e6
"""Decades beyond which only that is said."""

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
    "fast": {"layers": 24, "dim": 16, "tokens": 16, "seeds": range(4)},
    "usual": {"layers": 128, "dim": 64, "tokens": 64, "seeds": range(20)},
    "full": {"layers": 128, "dim": 768, "tokens": 128, "seeds": range(3)},
}

Found = dict[tuple[str, str, str], list[np.ndarray]]
"""Curves of log10 of the ratio, ``layers seeds``, by norm, mask and temperature term."""


def make(size: Size, seeds: Sequence[int], advance: Advance | None = None) -> Table:
    """The table of the figure: column ``temperature`` holds d_QK, logits are divided by its square root."""
    chosen = SIZES[size] | ({"seeds": seeds} if seeds else {})
    config = WuTemperatureConfig.of(size=size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, done = Rows(), 0
    found: Found = {}
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
            found.setdefault(key, []).append(np.asarray(curve.log10_ratio))
            done += len(batch.seeds)
            if advance is not None:
                advance(done, total)
    curves = {key: np.concatenate(parts, axis=1) for key, parts in found.items()}
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
        verdict=_verdict(curves, config.shape),
        notes=_notes(config),
    )


EARLY = 4
"""The layer at which "early" is read."""


def _network(key: tuple[str, str, str], log10: np.ndarray) -> dict[str, Any]:
    reached = [depth for depth in depths(log10, HALF) if depth is not None]
    return {
        "norm": key[0],
        "mask": key[1],
        "temperature": key[2],
        "layers_to_half": mean_of(reached).section() if reached else None,
        "reached_half": len(reached),
        "log10_ratio_early": mean_of(log10[EARLY].tolist()).section(),
        "log10_ratio_at_last_layer": mean_of(log10[-1].tolist()).section(),
    }


def _slowing(curves: dict[tuple[str, str, str], np.ndarray], norm: str, mask: str, layer: int) -> Mean:
    """Decades that the ratio at d_QK = 1/64 lies above that at 64, paired by seed."""
    sharp, flat = (curves[norm, mask, term][layer] for term in ("1/64", "64"))
    return mean_of((sharp - flat).tolist())


def _verdict(curves: dict[tuple[str, str, str], np.ndarray], shape: Shape) -> list[Point]:
    early = {mask: _slowing(curves, "none", mask, EARLY) for mask in shape.masks}
    late = {mask: _slowing(curves, "none", mask, shape.layers) for mask in shape.masks}
    full, causal, *windows = shape.masks
    sparse = max(early[mask].mean for mask in windows)
    return [
        Point(
            published="A smaller temperature term (sharper attention) slows collapse in early layers.",
            measured=f"log10 of mu/||X||_F at layer {EARLY}, d_QK = 1/64 minus 64, no norm: {_told(early)}.",
            agrees=_sign(list(early.values())),
        ),
        Point(
            published="More so for global masks than for sparse ones.",
            measured=f"At layer {EARLY} the complete mask is slowed by {_decades(early[full].mean)} decades, the "
            f"causal one by {_decades(early[causal].mean)}, the windows by at most {_decades(sparse)}.",
            agrees=early[full].mean > sparse and early[causal].mean > sparse,
        ),
        Point(
            published="The effect is seen in early layers above all.",
            measured=f"The same difference at layer {shape.layers}: {_told(late)}. Below 0 sharper attention has "
            "overtaken: each token copies nearly one other, and tokens that copy the same one are equal at once. With "
            "the complete mask a late onset stays ahead, because every layer cubes the residual.",
            agrees=all(late[mask].mean < early[mask].mean for mask in (causal, *windows)),
        ),
    ]


def _told(slower: dict[str, Mean]) -> str:
    return "; ".join(
        f"{mask} {_decades(one.mean)}"
        + (
            ""
            if one.low is None or one.high is None or one.low > MOST
            else f" ({_decades(one.low)} to {_decades(one.high)})"
        )
        for mask, one in slower.items()
    )


def _decades(value: float) -> str:
    if value > MOST:
        return f"more than {MOST:.0f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2g}"


def _sign(found: Sequence[Mean]) -> bool | None:
    """True if all intervals are above zero, False if one is below, None if seeds are too few to tell."""
    if all(one.mean > 0 and (one.low is None or one.low > 0) for one in found):
        return True
    return False if any(one.high is not None and one.high < 0 for one in found) else None


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
            "usual": "about 1 minute",
            "full": "about 6 minutes, up to 11 GB (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
