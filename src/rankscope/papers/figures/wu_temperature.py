"""``wu-temperature``: how the temperature term of the logits moves the curves, mask by mask."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import polars as pl

from rankscope.charts import Chart
from rankscope.core.refs import Ref
from rankscope.core.words import count as count_of
from rankscope.core.words import listed, number
from rankscope.findings.base import Value
from rankscope.papers.figures.figure import Figure, Job, Statement, all_or_none, register
from rankscope.papers.figures.stacks import (
    CURVE_MEASURES,
    Shape,
    StackConfig,
    add_curve,
    at_temperature,
    cells,
    follow,
    stacks,
)
from rankscope.papers.figures.statistics import FEWEST, Median, depths, median_of
from rankscope.papers.figures.wu_curves import PANEL_NOTES, RATIO, depth_panel
from rankscope.results import Table
from rankscope.studies.rows import RowBuilder, definitions

TERMS: dict[str, float] = {"1/64": 1 / 64, "1": 1.0, "64": 64.0}
"""d_QK of the published figure, by the text that names it."""

NORMS = {"none": "no norm", "sphere": "unit sphere"}

HALF = -0.3
"""Log10 of one half: the first layer below it is when collapse sets in."""

EARLY = 4
"""Layers in the first quarter of the depth are early."""

DEEPEST = -20.0
"""Decades at which the axes of the picture end."""


class WuTemperatureConfig(StackConfig):
    """Sizes of the stacks."""

    figure: Literal["wu-temperature"] = "wu-temperature"


# ------------------------------------------------------------------------------------------------ what is found


class WuTemperatureSetting(Shape):
    """Sizes of the stacks, masks and temperature terms."""

    temperatures: tuple[str, ...]


class NetworkTemperature(Value):
    """Where one network stands: first layers below one half, and the ratio at the last layer."""

    norm: str
    mask: str
    temperature: str
    layers_to_half: Median | None
    reached_half: int
    log10_ratio_at_last_layer: Median


class Slowing(Value):
    """Decades that the ratio at d_QK = 1/64 lies above that at 64, paired by seed.

    No layer is singled out: the sign is known for all of them, and the size where it is largest. Seeds scatter over
    decades, so medians count.
    """

    first: Median
    slowed_until_layer: int
    """The last layer of the first ones at which the whole interval is above zero; 0 if not even the first is."""

    overtaken_from_layer: int | None
    """The first layer from which on the whole interval is below zero, to the end; null if it is not in the end."""

    peak_layer: int
    peak: Median
    last: Median

    @property
    def is_slowed(self) -> bool | None:
        """Whether the first layer is slowed; None if the seeds do not tell."""
        return {1: True, -1: False}.get(self.first.sign or 0)


class WuTemperatureFound(Value):
    """What the curves say: every network, and by norm and mask how much sharp attention slows it."""

    setting: WuTemperatureSetting
    networks: tuple[NetworkTemperature, ...]
    slowing: dict[str, dict[str, Slowing]]


# ------------------------------------------------------------------------------------------------- computation


def compute(config: WuTemperatureConfig, job: Job) -> tuple[Table, WuTemperatureFound]:
    """Column ``temperature`` of the rows holds d_QK; logits are divided by its square root."""
    rows, done = RowBuilder(), 0
    parts: dict[tuple[str, str, str], list[np.ndarray]] = {}
    masks = config.shape.masks
    total = len(config.seeds) * len(NORMS) * len(TERMS) * len(masks)
    for batch in stacks(config.shape, config.seeds, "gaussian"):
        work = [
            at_temperature(cell, (term / config.dim) ** 0.5, temperature=name)
            for cell in cells(batch, masks=masks, norms=tuple(NORMS), values="gaussian")
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
    found = WuTemperatureFound(
        setting=WuTemperatureSetting.of(
            layers=config.layers, dim=config.dim, tokens=config.tokens, temperatures=tuple(TERMS)
        ),
        networks=tuple(_network(*key, log10) for key, log10 in curves.items()),
        slowing={
            norm: {mask: slowing(curves[norm, mask, "1/64"], curves[norm, mask, "64"]) for mask in masks}
            for norm in NORMS
        },
    )
    table = rows.table(
        config, command="reproduce", seeds=config.seeds, definitions=definitions(CURVE_MEASURES)
    )
    return table, found


def _network(norm: str, mask: str, temperature: str, log10: np.ndarray) -> NetworkTemperature:
    reached = [depth for depth in depths(log10, HALF) if depth is not None]
    return NetworkTemperature(
        norm=norm,
        mask=mask,
        temperature=temperature,
        layers_to_half=median_of(reached) if reached else None,
        reached_half=len(reached),
        log10_ratio_at_last_layer=median_of(log10[-1].tolist()),
    )


def slowing(sharp: np.ndarray, flat: np.ndarray) -> Slowing:
    """Of two curves ``layers seeds``, log10; layer 0 is the input, which they share."""
    by_layer = [median_of(gaps.tolist()) for gaps in (sharp - flat)[1:]]
    above, below = ([one.low > 0 for one in by_layer], [one.high < 0 for one in by_layer])
    below_in_the_end = below[::-1].index(False) if False in below else len(below)
    peak = max(range(len(by_layer)), key=lambda place: by_layer[place].median)
    return Slowing(
        first=by_layer[0],
        slowed_until_layer=above.index(False) if False in above else len(above),
        overtaken_from_layer=len(below) + 1 - below_in_the_end if below_in_the_end else None,
        peak_layer=peak + 1,
        peak=by_layer[peak],
        last=by_layer[-1],
    )


# ---------------------------------------------------------------------------------------------------- statements


def points(found: WuTemperatureFound) -> list[Statement]:
    """Three readings of the published figure, over both norms and all masks."""
    every = [one for by_mask in found.slowing.values() for one in by_mask.values()]
    layers, count = found.setting.layers, every[0].first.count
    early, is_enough = layers // EARLY, count >= FEWEST
    over = "95% intervals of medians over seeds" if is_enough else f"all of {count} seeds, too few to decide"
    return [
        Statement(
            source="reported",
            statement="A smaller temperature term (sharper attention) slows collapse in early layers.",
            measured=f"mu/||X||_F at d_QK = 1/64 is above that at 64 ({over}): "
            + _by_norm(found, lambda mask, one: f"{mask} {_range(one, layers)}"),
            agrees=all_or_none([one.is_slowed for one in every]),
        ),
        Statement(
            source="reported",
            statement="More so for global masks than for sparse ones.",
            measured="Largest median difference at any layer, in decades: "
            + _by_norm(found, lambda mask, one: f"{mask} {one.peak.text(2)} at layer {one.peak_layer}"),
            agrees=all_or_none([side for by_mask in found.slowing.values() for side in _larger(by_mask)]),
        ),
        Statement(
            source="reported",
            statement="The effect is seen in early layers above all.",
            measured=f"Largest within the first {early} layers: {_early(found, early)}. At layer {layers}, in "
            f"decades: {_by_norm(found, lambda mask, one: f'{mask} {one.last.text(2)}')} Below 0 sharper "
            "attention has overtaken: each token copies nearly one other, and tokens that copy the same one are equal "
            "at once. With the complete mask a late onset stays ahead, because every layer cubes the residual.",
            agrees=all_or_none([one.peak_layer <= early for one in every]) if is_enough else None,
        ),
    ]


def _larger(found: dict[str, Slowing]) -> list[bool | None]:
    """For complete and causal, whether their largest difference is beyond those of both windows, by intervals."""
    full, causal, *windows = (one.peak for one in found.values())
    sides = list[bool | None]()
    for peak in (full, causal):
        if not peak.is_enough:
            sides.append(None)
        elif all(peak.low > window.high for window in windows):
            sides.append(True)
        else:
            sides.append(False if any(peak.high < window.low for window in windows) else None)
    return sides


def _by_norm(found: WuTemperatureFound, said: Callable[[str, Slowing], str]) -> str:
    parts = [
        f"norm {norm}: {'; '.join(said(mask, one) for mask, one in by_mask.items())}."
        for norm, by_mask in found.slowing.items()
    ]
    return " ".join(parts)


def _early(found: WuTemperatureFound, early: int) -> str:
    names = [
        f"{mask} ({norm})"
        for norm, by_mask in found.slowing.items()
        for mask, one in by_mask.items()
        if one.peak_layer <= early
    ]
    return ", ".join(names) or "nowhere"


def _range(one: Slowing, layers: int) -> str:
    slowed = {0: "not at layer 1", layers: "at all layers"}.get(
        one.slowed_until_layer, f"at layers 1 to {one.slowed_until_layer}"
    )
    overtaken = one.overtaken_from_layer
    return slowed + ("" if overtaken is None else f", overtaken from layer {overtaken} on")


def notes(found: WuTemperatureFound) -> list[str]:
    """Sentences for the reader."""
    setting = found.setting
    size = setting.dim**0.5
    return [
        "The temperature term is d_QK of softmax(X W_Q (X W_K)^T / sqrt(d_QK)), as in the paper: 64 divides the logits "
        "by 8, 1/64 multiplies them by 8. With weights N(0, 1/dim) the logits of the first layer have standard "
        f"deviation {number(size / 8, 2)}, {number(size, 2)} and {number(8 * size, 2)}.",
        f"Stacks of {setting.layers} layers, dim {setting.dim}, {setting.tokens} Gaussian tokens, value maps "
        f"N(0, 1/dim), windows of {count_of(setting.window, 'token')} to a side; the weights of a seed are the "
        "same throughout.",
        "Once tokens are nearly equal their logits are too, whatever the temperature: asymptotic rates do not depend "
        "on it (causal: 1/2 per layer; complete: order 3), only the depth at which they set in.",
    ]


# ------------------------------------------------------------------------------------------------------- picture


def chart(found: WuTemperatureFound, table: Table) -> Chart:
    """Rows are masks, columns no norm and the unit sphere; a line per temperature term."""
    setting = found.setting
    frame = table.frame.filter(pl.col("definition") == RATIO)
    names = [(term, f"d_QK = {term}") for term in setting.temperatures]
    slowed = [mask for mask in setting.masks if all(own[mask].is_slowed for own in found.slowing.values())]
    panels = [
        depth_panel(
            frame.filter((pl.col("mask") == mask) & (pl.col("norm") == norm)),
            "temperature",
            title=f"mask {mask}, {words}",
            names=names,
            deepest=DEEPEST,
            by_median=True,
        )
        for mask in setting.masks
        for norm, words in NORMS.items()
    ]
    return Chart(
        panels,
        title="Sharper attention slows the first layer, "
        + (
            "under every mask"
            if len(slowed) == len(setting.masks)
            else f"for certain under: {listed(slowed)}"
        )
        if slowed
        else "Sharper attention slows the first layer under no mask for certain",
        notes=[
            f"mu(X) / ||X||_F of stacks of width {setting.dim} with {setting.tokens} tokens, one head; logits divided "
            f"by sqrt(d_QK); medians of {frame['seed'].n_unique()} seeds with their 95% interval (all seeds where "
            f"they are fewer than {FEWEST})",
            *PANEL_NOTES,
        ],
    )


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
            "fast": "seconds",
            "usual": "a minute",
            "full": "minutes, about 10 GB of memory",
        },
        sizes={
            "fast": WuTemperatureConfig(size="fast", layers=24, dim=12, tokens=12, seeds=tuple(range(6))),
            "usual": WuTemperatureConfig(size="usual", layers=128, dim=64, tokens=64, seeds=tuple(range(20))),
            "full": WuTemperatureConfig(size="full", layers=128, dim=768, tokens=128, seeds=tuple(range(3))),
        },
        found=WuTemperatureFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
