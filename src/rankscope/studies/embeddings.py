"""Across inputs: one row per input, from an array, a file or every layer of a model, and what the rows amount to."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from rankscope.core.numerics import DTYPES, computed_in, relative_floor, unit_roundoff
from rankscope.errors import ConfigError
from rankscope.findings.embeddings import (
    DEFINITIONS,
    ChangedRows,
    EmbeddingsFinding,
    InputNumbers,
    InputsState,
    InputsSubject,
    SpectrumPoint,
)
from rankscope.findings.scan import ScanConfig
from rankscope.measures import embeddings as measures
from rankscope.measures import gaussian_rows as gaussian
from rankscope.measures.row_stream import RowStream, RowSummary
from rankscope.measures.spectra import SPECTRAL, Spectrum
from rankscope.probe.pooled import Pooled, pooled_rows
from rankscope.sources import Layout, Loaded
from rankscope.sources.rows import Rows, read_rows
from rankscope.studies.inputs import MeasuredBatches
from rankscope.studies.rows import RowBuilder
from rankscope.verdict.inputs import judge_inputs

Advance = Callable[[int, int | None], None]

PLACES = 48
"""Directions of a spectrum that are kept, evenly on a scale of logarithms."""


def scan_embeddings(
    embeddings: Any,
    labels: Any = None,
    groups: Any = None,
    *,
    workers: int = 1,
    name: str | None = None,
    config: ScanConfig | None = None,
    advance: Advance | None = None,
) -> EmbeddingsFinding:
    """What the rows of an array amount to: ``rs.scan_embeddings(E).verdict``.

    ``embeddings`` is an array of inputs x dimensions, a tensor, a file (.npy, .npz, .safetensors, .pt, .csv, .parquet)
    or an iterator over arrays of some rows each; of millions of rows, ``d x d`` moments and a sample are kept.
    ``labels`` say what a row is (a class, a modality): their means are compared. ``groups`` say which rows belong
    together (views of one image, a caption and its picture): alignment and LiDAR are then measured.
    """
    rows = read_rows(embeddings, labels=labels, groups=groups, name=name)
    if config is None:
        config = ScanConfig.of(across="inputs", workers=workers, model=rows.name)
    summary = _summary(rows, config.workers or 1, advance)
    if summary.count < 2:
        raise ConfigError(f"{rows.name!r} has one row; at least two inputs are needed to differ or not")
    stored = DTYPES.get(rows.dtype, torch.float64)
    dtype = computed_in([torch.from_numpy(summary.sample)], stored)
    state = _state(
        summary,
        relative=unit_roundoff(dtype),
        site="rows",
        marks=_Marks.of(rows, summary),
        whole=True,
    )
    subject = InputsSubject(
        name=rows.name,
        source="rows",
        dtype=str(dtype).removeprefix("torch."),
        labels=None if rows.labels is None else len(np.unique(rows.labels)),
        groups=None if rows.groups is None else len(np.unique(rows.groups)),
    )
    return _finding(subject, [state], config)


def scan_pooled(
    ready: Loaded,
    model: nn.Module,
    layout: Layout,
    chosen: MeasuredBatches,
    config: ScanConfig,
    advance: Advance | None,
) -> EmbeddingsFinding:
    """Every layer of a model, its final state and its own embedding, one row per input each."""

    def step(texts: int) -> None:
        if advance is not None:
            advance(texts, chosen.total)

    by_user = "special" in config.explicit and config.special == "drop"
    found = pooled_rows(
        model,
        chosen.batches,
        layout=layout,
        pooling=config.pooling,
        folder=ready.folder,
        with_special=not by_user,
        advance=step,
    )
    states = [
        _state(
            one.stream.summary(),
            relative=relative_floor(one.layer or 1, found.dtype),
            site=one.site,
            stack=one.stack,
            layer=one.layer,
            whole=one is found.places[-1],
        )
        for one in found.places
    ]
    subject = InputsSubject(
        name=ready.name,
        source="model",
        dtype=str(found.dtype).removeprefix("torch."),
        inputs=chosen.tokens.inputs,
        pooling=found.pooling,
        own=tuple(one.own for one in found.places if one.own is not None),
        reported=tuple(dict.fromkeys((*ready.warnings, *chosen.notes))),
    )
    return _finding(subject, states, config, *_modalities(found))


def _modalities(found: Pooled) -> tuple[float | None, float | None]:
    """The gap between two own embeddings of one width, and that of Gaussian rows."""
    own = [one.stream.summary() for one in found.places if one.own is not None]
    if len(own) != 2 or own[0].dim != own[1].dim:
        return None, None
    marks = np.repeat([0, 1], [len(one.sample) for one in own])
    gap, chance, _ = measures.label_gap(np.concatenate([one.sample for one in own]), marks)
    return _number(gap), _number(chance)


# ------------------------------------------------------------------------------------------------------------ numbers


def _summary(rows: Rows, workers: int, advance: Advance | None) -> RowSummary:
    """All rows read once, by several threads where that was asked for and rows can be read at any place."""
    if rows.count is None or rows.read is None:
        return _read(rows, rows.pieces(), None, advance).summary()
    scale = scale_of(rows.read(0, min(rows.count, 256)))
    if workers == 1:
        return _read(rows, rows.pieces(), scale, advance).summary()
    edges = np.linspace(0, rows.count, workers + 1).round().astype(int)
    with ThreadPoolExecutor(workers) as pool:
        parts = [
            pool.submit(_read, rows, rows.pieces(start, stop), scale, None)
            for start, stop in pairwise(edges.tolist())
        ]
        whole = RowStream(rows.dim)
        for part in parts:
            whole.merge(part.result())
    return whole.summary()


def _read(
    rows: Rows, pieces: Iterator[tuple[int, np.ndarray]], scale: float | None, advance: Advance | None
) -> RowStream:
    stream = RowStream(rows.dim)
    for start, piece in pieces:
        scale = scale_of(piece) if scale is None else scale
        stream.add(piece / scale, start)
        if advance is not None:
            advance(stream.count, rows.count)
    return stream


def scale_of(rows: np.ndarray) -> float:
    """What rows are divided by, so that squares neither overflow nor vanish: 1, but of extreme numbers.

    >>> scale_of(np.array([[3.0, -5.0]])), scale_of(np.array([[1e300]]))
    (1.0, 1e+300)
    """
    size = float(np.abs(rows).max(initial=0.0))
    return size if 0 < size < 1e-100 or 1e100 < size < np.inf else 1.0


@dataclass(frozen=True, slots=True)
class _Marks:
    """Labels and groups of the sample, and the rows that alignment and LiDAR are taken of: whole groups."""

    labels: np.ndarray | None = None
    groups: np.ndarray | None = None
    grouped: np.ndarray | None = None

    @classmethod
    def of(cls, rows: Rows, summary: RowSummary) -> "_Marks":
        labels = None if rows.labels is None else rows.labels[summary.places]
        if rows.groups is None or rows.read is None:
            return cls(labels)
        # Of many rows some groups are taken, with all of their rows: a sample of rows would tear them apart.
        _, place = np.unique(rows.groups, return_inverse=True)
        sizes = np.bincount(place)
        order = np.random.default_rng(gaussian.SEED).permutation(len(sizes))
        taken = order[
            : max(2, int(np.searchsorted(np.cumsum(sizes[order]), len(summary.sample), side="right")))
        ]
        places = (
            np.flatnonzero(np.isin(place, taken)) if len(summary.sample) < summary.count else summary.places
        )
        grouped = np.concatenate([rows.read(int(one), int(one) + 1) for one in places])
        grouped /= scale_of(grouped)
        return cls(labels, place[places], grouped)


def _state(
    summary: RowSummary,
    *,
    relative: float,
    site: str,
    stack: str | None = None,
    layer: int | None = None,
    marks: _Marks | None = None,
    whole: bool = False,
) -> InputsState:
    verdict = judge_inputs(summary.sample)
    marks = marks or _Marks()
    measured, expected = _measured(summary, marks), _expected(summary, marks)
    if verdict.near_duplicates is not None:
        measured = measured.model_copy(update={"near_duplicates": verdict.near_duplicates})
    floors = _floors(summary, relative)
    centered, whitened = (None, None) if verdict.name == "collapsed" else changed(summary.sample)
    return InputsState(
        stack=stack,
        layer=layer,
        site=site,
        rows=summary.count,
        dim=summary.dim,
        sampled=len(summary.sample) if len(summary.sample) < summary.count else None,
        measured=measured,
        expected=expected,
        centered=centered,
        whitened=whitened,
        spectrum=_spectrum(summary, floors.residual_ratio or 0.0) if whole else (),
        verdict=verdict,
        floors=floors,
    )


def _measured(summary: RowSummary, marks: _Marks) -> InputNumbers:
    found = {
        "rankme": measures.rankme(summary.values),
        "effective_rank": measures.effective_rank(summary.values),
        "effective_rank_centered": measures.effective_rank(summary.centered),
        "residual_ratio": summary.ratio,
        "cosine": summary.cosine,
        "spread": summary.spread,
        "uniformity": measures.uniformity(summary.sample),
        "exponent": measures.exponent(summary.centered),
        "largest_channel": summary.channel,
    }
    if marks.groups is not None and marks.grouped is not None:
        found["alignment"] = measures.alignment(marks.grouped, marks.groups)
        found["lidar"] = measures.lidar(marks.grouped, marks.groups)
    if marks.labels is not None:
        found["gap"], _, found["between_labels"] = measures.label_gap(summary.sample, marks.labels)
    return InputNumbers(**{name: _number(value) for name, value in found.items()})


def _expected(summary: RowSummary, marks: _Marks) -> InputNumbers:
    """The same numbers of Gaussian rows of the same number and width."""
    many, dim = summary.measured, summary.dim
    raw, centered = gaussian.gaussian_spectra(many, dim), gaussian.gaussian_spectra(many - 1, dim)
    found = {
        "rankme": float(np.mean([measures.rankme(one) for one in raw])),
        "effective_rank": float(np.mean([measures.effective_rank(one) for one in raw])),
        "effective_rank_centered": float(np.mean([measures.effective_rank(one) for one in centered])),
        "residual_ratio": math.sqrt(1 - 1 / many),
        "cosine": 0.0,
        "spread": math.sqrt((1 - 1 / summary.count) / dim),
        "uniformity": gaussian.gaussian_uniformity(dim),
        "exponent": float(np.mean([measures.exponent(one) for one in centered])),
        "largest_channel": gaussian.gaussian_channel(summary.count, dim),
        "near_duplicates": gaussian.gaussian_duplicates(len(summary.sample), dim, measures.NEAR),
    }
    if marks.groups is not None and marks.grouped is not None:
        drawn = np.random.default_rng(gaussian.SEED).standard_normal(marks.grouped.shape)
        found["alignment"] = 2.0
        found["lidar"] = measures.lidar(drawn, marks.groups)
    if marks.labels is not None:
        _, found["gap"], _ = measures.label_gap(summary.sample, marks.labels)
        labels = len(np.unique(marks.labels))
        found["between_labels"] = (labels - 1) / max(len(summary.sample) - 1, 1)
    return InputNumbers(**{name: _number(value) for name, value in found.items()})


def _floors(summary: RowSummary, relative: float) -> InputNumbers:
    """How far rounding of every entry by ``relative`` can move each number, to first order.

    A row moves by at most ``relative`` of its length, and at length one by twice that: a cosine then moves by four
    times ``relative``, a squared distance by eight. Ranks move as their measures say; nothing is known of the others.
    """
    rank = SPECTRAL["effective_rank", "entropy"][1]
    size = float(np.linalg.norm(summary.values))
    delta = torch.tensor(relative * size, dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    raw, centered = (
        float(rank(Spectrum(values=torch.from_numpy(values.copy()), scale=one), delta))
        if len(values)
        else math.nan
        for values in (summary.values, summary.centered)
    )
    times = {"residual_ratio": 2, "cosine": 4, "spread": 2, "uniformity": 16, "largest_channel": 4}
    times |= {"alignment": 8, "gap": 4}
    found = {"rankme": raw, "effective_rank": raw, "effective_rank_centered": centered}
    found |= {name: many * relative for name, many in times.items()}
    found["residual_ratio"] += summary.count * unit_roundoff(
        torch.float64
    )  # the mean is a sum of so many rows
    return InputNumbers(**{name: _number(value) for name, value in found.items()})


def changed(rows: np.ndarray) -> tuple[ChangedRows | None, ChangedRows | None]:
    """What numbers would be of rows without their mean, and of whitened rows.

    Whitening scales every direction to the same variance; directions below a millionth of the largest stay out. With
    hardly more rows than directions it would make any rows equally far apart, and says nothing.
    """
    offsets = rows - rows.mean(axis=0)
    left, values, _ = np.linalg.svd(offsets, full_matrices=False)
    if not values[0] > 0:
        return None, None
    used = int((values > 1e-6 * values[0]).sum())
    whitened = left[:, :used] if len(rows) >= 1.25 * used else None
    return _changed(offsets), None if whitened is None else _changed(whitened)


def _changed(rows: np.ndarray) -> ChangedRows:
    stream = RowStream(rows.shape[1], sample=len(rows))
    stream.add(rows, 0)
    summary = stream.summary()
    return ChangedRows(
        cosine=_number(summary.cosine),
        uniformity=_number(measures.uniformity(rows)),
        effective_rank=_number(measures.effective_rank(summary.values)),
        spread=_number(summary.spread),
    )


def _spectrum(summary: RowSummary, floor: float) -> tuple[SpectrumPoint, ...]:
    squares = summary.centered**2
    if not squares.sum() > 0 or summary.ratio <= floor:
        return ()
    shares, expected = squares / squares.sum(), gaussian.gaussian_squares(summary.measured - 1, summary.dim)
    places = np.unique(np.geomspace(1, len(shares), PLACES).round().astype(int))
    return tuple(
        SpectrumPoint(place=int(one), share=float(shares[one - 1]), expected=float(expected[one - 1]))
        for one in places
    )


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _finding(
    subject: InputsSubject,
    states: Sequence[InputsState],
    config: ScanConfig,
    gap: float | None = None,
    expected_gap: float | None = None,
) -> EmbeddingsFinding:
    rows = RowBuilder()
    for state in states:
        names = [name for name in DEFINITIONS if getattr(state.measured, name) is not None]
        rows.add(
            len(names),
            {
                "model": subject.name,
                "stack": state.stack,
                "layer": state.layer,
                "site": state.site,
                "measure": [DEFINITIONS[name][0].partition("[")[0] for name in names],
                "definition": [DEFINITIONS[name][0] for name in names],
                "value": [getattr(state.measured, name) for name in names],
                "floor": [getattr(state.floors, name) for name in names],
                "expected": [getattr(state.expected, name) for name in names],
            },
        )
    table = rows.table(config, command="embeddings", seeds=[gaussian.SEED])
    return EmbeddingsFinding(
        subject=subject, states=tuple(states), gap=gap, expected_gap=expected_gap, table=table
    )
