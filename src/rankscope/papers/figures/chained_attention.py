"""``chained-attention``: how near products of attention maps along single paths are to rank one, against depth."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from rankscope.charts import Chart, Line, Panel, Point
from rankscope.core.numerics import relative_floor
from rankscope.core.refs import Ref
from rankscope.core.words import count, number, power
from rankscope.errors import ConfigError
from rankscope.findings.base import Value
from rankscope.papers.figures.chained_products import (
    COEFFICIENTS,
    MEAN,
    ORDERS,
    RANK_ONE,
    ROWS,
    Order,
    PathRatios,
    RatioCurves,
    path_ratios,
)
from rankscope.papers.figures.figure import Figure, FigureConfig, Job, Statement, all_or_none, register
from rankscope.papers.figures.statistics import Mean, Median, mean_of, median_of
from rankscope.probe.attention import attention_maps
from rankscope.results import Table
from rankscope.sources import (
    BUILTINS,
    Batch,
    Loaded,
    layout_of,
    load_model,
    random_token_batches,
    text_batches,
)
from rankscope.sources.cached import cached_folder
from rankscope.sources.initial import initial_model
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.texts import sample_texts
from rankscope.studies.rows import RowBuilder

DEFINITIONS = {
    RANK_ONE: "distance to the best rank one: ||P - s_1 u v^T|| / ||P||, composite norm sqrt(l1 * linf), best by SVD",
    MEAN: "distance to the mean row: ||P - 1 q|| / ||P||, composite norm sqrt(l1 * linf), q the mean row",
    ROWS: "distance to the mean row: largest row sum of |P - 1 q|; rows of P sum to one",
}

NAMES: dict[Order, str] = {"notebook": "notebook's order", "true": "true order"}

SAME = math.log10(2)
"""Two orders are said to give the same picture if their medians differ by less than a factor 2 at every depth."""

BEND = 2.0
"""Roughly geometric: decades per layer of the later half are between half and twice those of the earlier half."""

OFF = 0.1
"""An ordinary product is off where its ratio differs by more than this share."""

SLACK = 1e-9
"""Decades by which rounding of logarithms may break the bound."""

LN10 = math.log(10)

INITIAL = "bert-base"
TRAINED_HUB = ("bert-base-cased", "google-bert/bert-base-cased")
"""Two names of the checkpoint of the paper; it is used only if it is in the local cache."""

TRAINED_BUILTIN = "minilm"


class ChainedAttentionConfig(FigureConfig):
    """How many paths, texts and seeds; BERT at initial weights has one network per seed."""

    figure: Literal["chained-attention"] = "chained-attention"
    paths: int
    texts: int
    tokens: int
    plain: int
    """Paths that are also multiplied out in float64."""

    window: int
    """Paths that start at every later layer."""


# ------------------------------------------------------------------------------------------------ what is found


class ChainedAttentionSetting(Value):
    """Sizes of the figure; ``shared_depths`` is the depth that all models have."""

    paths: int
    texts: int
    tokens: int
    shared_depths: int


class Bend(Value):
    """Decades per layer of the earlier half of the layers (``e``) and of the later half (``l``), over paths."""

    both: Mean
    """``e + l``."""

    beyond_twice: Mean
    """``l - 2 e``: below zero if later layers take more than twice as many decades as earlier ones."""

    beyond_half: Mean
    """``l - e / 2``: above zero if later layers take less than half as many decades."""

    @property
    def is_geometric(self) -> bool | None:
        """Whether later layers take between half and twice as many decades as earlier ones; None if not decided."""
        if not _is_below(self.both):
            return False if _is_above(self.both) else None
        if _is_above(self.beyond_twice) and _is_below(self.beyond_half):
            return True
        return False if _is_below(self.beyond_twice) or _is_above(self.beyond_half) else None


class Falling(Value):
    """How the distance to the best rank one goes with depth, in one order."""

    medians: tuple[float, ...]
    """log10 of the ratio by depth, median over paths."""

    change: Mean
    """Decades from the first to the last depth."""

    linearity: float | None
    """Share of the variance over depth of the mean curve that a line explains; null for a constant."""

    bend: Bend | None
    """Null for fewer than four depths."""

    @property
    def does_fall(self) -> bool | None:
        """Whether every median is below the one before, and the change is below zero by its interval."""
        if _is_above(self.change):
            return False
        falls = all(later < earlier for earlier, later in zip(self.medians, self.medians[1:], strict=False))
        return True if _is_below(self.change) and falls else None

    @property
    def is_geometric(self) -> bool | None:
        return None if self.bend is None else self.bend.is_geometric


class OrderRatio(Value):
    """The notebook's order over the true one on the same paths: log10 by depth, and the largest of any path."""

    by_depth: tuple[Median, ...]
    largest: float

    @property
    def is_same(self) -> bool | None:
        """Whether the medians differ by less than a factor 2 at every depth, by intervals."""
        if any(not each.is_enough for each in self.by_depth):
            return None
        if any(each.low > SAME or each.high < -SAME for each in self.by_depth):
            return False
        return True if all(each.low > -SAME and each.high < SAME for each in self.by_depth) else None


class DobrushinBound(Value):
    """Rows of the product against ``2 (1 - 1/n)`` times the product of Dobrushin coefficients."""

    margin: float
    """Decades from what was measured up to the bound, the least over paths and depths."""

    decades: dict[str, float]
    """Per layer from depth 1 to the last: ``measured``, and those of the coefficients of the maps."""

    @property
    def holds(self) -> bool:
        return self.margin >= -SLACK


class Chains(Value):
    """What chains of one model with its weights do: of one seed, or of all seeds together."""

    model: str
    weights: str
    seed: int | None
    seeds: int
    layers: int
    decades_per_layer: dict[Order, dict[str, Mean]]
    """By order and definition, least squares over all depths of a path, mean over paths."""

    decades_of_coefficients: dict[str, float]
    falling: dict[Order, Falling]
    turned: OrderRatio
    bound: DobrushinBound
    shared: Mean
    """Decades per layer of the distance to the mean row, true order, over the depths that all models have."""

    plain_off_from: int | None
    """First depth at which an ordinary float64 product is off; null if none is."""

    @property
    def name(self) -> str:
        """``bert-base, initial, seed 0``."""
        many = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.model}, {self.weights}{many if self.seeds == 1 else f', {self.seeds} seeds'}"


class ChainedAttentionFound(Value):
    """One entry per model and seed, by which everything is decided; with the seeds of a model together for words."""

    setting: ChainedAttentionSetting
    models: tuple[Chains, ...]
    pooled: tuple[Chains, ...]

    def by_seed(self, pooled: Chains) -> list[Chains]:
        """The single networks of an entry of ``pooled``."""
        return [one for one in self.models if (one.model, one.weights) == (pooled.model, pooled.weights)]


def _is_below(mean: Mean) -> bool:
    return mean.high is not None and mean.high < 0


def _is_above(mean: Mean) -> bool:
    return mean.low is not None and mean.low > 0


def is_slower(one: Mean, other: Mean) -> bool | None:
    """Whether the first mean rate lies above the other by their intervals."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return None
    return True if one.low > other.high else False if one.high < other.low else None


# ------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedModel:
    """A model with weights: ``initial`` with the seed that they are drawn from, or ``trained``."""

    model: str
    weights: str
    seed: int | None = None
    folder: str | None = None

    @property
    def key(self) -> str:
        """A name for files."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.model.lower()).strip("-.")
        return "-".join([name, self.weights, *([] if self.seed is None else [str(self.seed)])])


def subjects(seeds: tuple[int, ...]) -> list[WeightedModel]:
    """Untrained BERT of every seed, then the trained models that this machine has. Nothing is fetched."""
    found = [WeightedModel(model=INITIAL, weights="initial", seed=seed) for seed in seeds]
    if (folder := cached_folder(*TRAINED_HUB, files=("vocab.txt",))) is not None:
        found.append(WeightedModel(model="bert-base-cased", weights="trained", folder=str(folder)))
    if BUILTINS[TRAINED_BUILTIN].installed:
        found.append(WeightedModel(model=TRAINED_BUILTIN, weights="trained"))
    return found


def maps_of(subject: WeightedModel, *, tokens: int, texts: int) -> list[Tensor]:
    """Maps of every layer, ``texts heads tokens tokens``, as the whole network makes them, in float64.

    Untrained weights read random tokens, trained ones the bundled English sample, cut to ``tokens`` tokens. Special
    tokens stay: they are attended to.
    """
    if subject.weights == "initial":
        if subject.seed is None:
            raise ValueError("initial weights need a seed")
        found = initial_model(subject.model, seed=subject.seed, dtype="float64")
        batch = next(
            random_token_batches(found.model, f"{texts}x{tokens}", seed=subject.seed, batch_size=texts)
        )
        return _attention_maps(found, batch)
    found = load_model(subject.model if subject.folder is None else Path(subject.folder), dtype="float64")
    return _attention_maps(found, _english(found, tokens=tokens, texts=texts))


def _attention_maps(found: Loaded, batch: Batch) -> list[Tensor]:
    maps: dict[int, Tensor] = {}

    def keep(stack: str, layer: int, own: Tensor) -> None:
        maps[layer] = own.double()

    with quiet(found.model), attention_maps(found.model, layout_of(found.model), keep):
        run_batch(found.model, batch)
    return [maps[layer] for layer in sorted(maps)]


def _english(found: Loaded, *, tokens: int, texts: int) -> Batch:
    """The first texts that fill all tokens, so that there is no padding; paragraphs are too short and are joined."""
    if found.tokenizer is None:
        raise ConfigError(f"the model {found.name!r} came without a tokenizer; install it again")
    batches = text_batches(
        _paragraphs(), found.tokenizer, batch_size=texts, max_tokens=tokens, special="keep", takes=found.takes
    )
    batch = next(iter(batches)).first(texts)
    if not bool(batch.inputs["attention_mask"].all()):
        raise ConfigError(f"the sample texts do not fill {tokens} tokens; ask for fewer")
    return batch


def _paragraphs() -> Iterator[str]:
    """The sample, four paragraphs at a time."""
    sample = sample_texts()
    for start in range(0, len(sample) - 3, 4):
        yield " ".join(sample[start : start + 4])


# ------------------------------------------------------------------------------------------------- computation


def compute(config: ChainedAttentionConfig, job: Job) -> tuple[Table, ChainedAttentionFound]:
    """One row per model, seed, order, path, depth and definition."""
    rows, each = RowBuilder(), list[PathCurves]()
    asked = subjects(config.seeds)
    for done, subject in enumerate(asked):
        job.tell(done, len(asked))
        piece = PathRatios.model_validate(
            job.store.remember(
                subject.key,
                {"config": config.model_dump(mode="json"), "subject": subject.key, "folder": subject.folder},
                lambda subject=subject: _measure_model(subject, config).model_dump(mode="json"),  # type: ignore[misc]
            )
        )
        _add(rows, subject, piece)
        each.append(_paths(subject, piece, config.tokens))
    job.tell(len(asked), len(asked))
    table = rows.table(config, command="reproduce", seeds=config.seeds, definitions=DEFINITIONS)
    setting = ChainedAttentionSetting(
        paths=config.paths,
        texts=config.texts,
        tokens=config.tokens,
        shared_depths=min(len(one.curves["true", MEAN]) for one in each),
    )
    return table, found_of(each, setting)


def _measure_model(subject: WeightedModel, config: ChainedAttentionConfig) -> PathRatios:
    maps = maps_of(subject, tokens=config.tokens, texts=config.texts)
    return path_ratios(
        maps, paths=config.paths, plain=config.plain, window=config.window, seed=subject.seed or 0
    )


def _add(rows: RowBuilder, subject: WeightedModel, piece: PathRatios) -> None:
    about = {"model": subject.model, "weights": subject.weights, "seed": subject.seed, "semantics": "frozen"}
    for order in ORDERS:
        for name, curves in piece.curves[order].items():
            beside = piece.plain[order].get(name, ((),) * piece.layers)
            _block(rows, curves, {**about, "order": order, "definition": name}, start=1, beside=beside)
    for window in piece.windows:
        _block(rows, window, {**about, "order": "true", "definition": MEAN}, start=window.start)


def _block(
    rows: RowBuilder,
    curves: RatioCurves,
    about: Mapping[str, str | int | None],
    *,
    start: int,
    beside: Sequence[Sequence[float]] = (),
) -> None:
    """The paths of chains that begin at layer ``start``, with ordinary products of the first of them beside them."""
    for depth, (logs, floors) in enumerate(zip(curves.log10, curves.floor, strict=True), start=1):
        values = [10**log for log in logs]
        few = beside[depth - 1] if beside else ()
        rows.add(
            len(logs),
            {
                **about,
                "measure": str(about["definition"]).partition("[")[0],
                "layer": start + depth - 1,
                "start": start,
                "depth": depth,
                "path": list(range(len(logs))),
                "value": values,
                "log10_value": list(logs),
                "float_value": [*few, *[None] * (len(logs) - len(few))],
                "floor": list(floors),
                "resolved": [value > floor for value, floor in zip(values, floors, strict=True)],
            },
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PathCurves:
    """Curves of the paths of one model, ``depth path``.

    Args:
        curves: log10 of the ratios, by order and definition.
        coefficients: log10 of the coefficients of the maps on each path, ``layer path``.
        plain: ratios to the best rank one of the first paths as ordinary float64 products, in the true order.
        seeds: how many networks they are of.
    """

    model: str
    weights: str
    seed: int | None
    tokens: int
    curves: Mapping[tuple[Order, str], np.ndarray]
    coefficients: Mapping[str, np.ndarray]
    plain: np.ndarray
    seeds: int = 1


def _paths(subject: WeightedModel, piece: PathRatios, tokens: int) -> PathCurves:
    return PathCurves(
        model=subject.model,
        weights=subject.weights,
        seed=subject.seed,
        tokens=tokens,
        curves={
            (order, name): np.asarray(curves.log10)
            for order in ORDERS
            for name, curves in piece.curves[order].items()
        },
        coefficients={name: np.asarray(rows) for name, rows in piece.coefficients.items()},
        plain=np.asarray(piece.plain["true"][RANK_ONE]),
    )


def found_of(each: Sequence[PathCurves], setting: ChainedAttentionSetting) -> ChainedAttentionFound:
    """What is found, for every network and for all seeds of a model together."""
    groups: dict[tuple[str, str], list[PathCurves]] = {}
    for one in each:
        groups.setdefault((one.model, one.weights), []).append(one)
    together = [_join_models(own) for own in groups.values()]
    models, pooled = (
        tuple(_chains(one, setting.shared_depths) for one in paths) for paths in (each, together)
    )
    return ChainedAttentionFound(setting=setting, models=models, pooled=pooled)


def _join_models(own: Sequence[PathCurves]) -> PathCurves:
    first = own[0]
    if len(own) == 1:
        return first
    return replace(
        first,
        seed=None,
        seeds=len(own),
        curves={key: np.concatenate([one.curves[key] for one in own], axis=1) for key in first.curves},
        coefficients={
            name: np.concatenate([one.coefficients[name] for one in own], axis=1) for name in COEFFICIENTS
        },
        plain=np.concatenate([one.plain for one in own], axis=1),
    )


def _chains(one: PathCurves, shared: int) -> Chains:
    true = one.curves["true", RANK_ONE]
    return Chains(
        model=one.model,
        weights=one.weights,
        seed=one.seed,
        seeds=one.seeds,
        layers=len(true),
        decades_per_layer={
            order: {name: mean_of(slopes(one.curves[order, name])) for name in DEFINITIONS}
            for order in ORDERS
        },
        decades_of_coefficients={name: float(logs.mean()) for name, logs in one.coefficients.items()},
        falling={order: falling(one.curves[order, RANK_ONE]) for order in NAMES},
        turned=order_ratio(one.curves["notebook", RANK_ONE], true),
        bound=dobrushin_bound(one.curves["true", ROWS], one.coefficients, one.tokens),
        shared=mean_of(slopes(one.curves["true", MEAN][:shared])),
        plain_off_from=_plain_off_from(one, true),
    )


def _plain_off_from(one: PathCurves, true: np.ndarray) -> int | None:
    """The plain paths of every network are its first ones."""
    few = one.plain.shape[1] // one.seeds
    split = np.concatenate([own[:, :few] for own in np.split(true, one.seeds, axis=1)], axis=1)
    with np.errstate(divide="ignore"):  # a product that has become zero is off
        over = np.log10(one.plain) - split  # in logs, as the ratios may be below the smallest float
    is_off = ((over > math.log10(1 + OFF)) | (over < math.log10(1 - OFF))).any(axis=1)
    return int(is_off.argmax()) + 1 if is_off.any() else None


def slopes(curves: np.ndarray) -> list[float]:
    """Decades per layer of every path, by least squares."""
    fitted: list[float] = np.polyfit(np.arange(1, len(curves) + 1), curves, 1)[0].tolist()
    return fitted


def falling(curves: np.ndarray) -> Falling:
    """Of log10 of a ratio, ``depth path``."""
    return Falling(
        medians=tuple(np.median(curves, axis=1).tolist()),
        change=mean_of((curves[-1] - curves[0]).tolist()),
        linearity=_linearity(curves.mean(axis=1)),
        bend=_bend(curves),
    )


def _linearity(mean: np.ndarray) -> float | None:
    depth = np.arange(len(mean))
    off = mean - np.polyval(np.polyfit(depth, mean, 1), depth)
    whole = np.square(mean - mean.mean()).sum()
    return float(1 - np.square(off).sum() / whole) if whole else None


def _bend(curves: np.ndarray) -> Bend | None:
    if len(curves) < 4:
        return None
    steps = np.diff(curves, axis=0)
    half = len(steps) // 2
    early, late = steps[:half].mean(axis=0), steps[-half:].mean(axis=0)
    return Bend(
        both=mean_of((early + late).tolist()),
        beyond_twice=mean_of((late - BEND * early).tolist()),
        beyond_half=mean_of((late - early / BEND).tolist()),
    )


def order_ratio(notebook: np.ndarray, true: np.ndarray) -> OrderRatio:
    """Of log10 of a ratio on the same paths, multiplied in both orders."""
    off = notebook - true
    return OrderRatio(
        by_depth=tuple(median_of(row.tolist()) for row in off), largest=float(np.abs(off).max())
    )


def dobrushin_bound(rows: np.ndarray, coefficients: Mapping[str, np.ndarray], tokens: int) -> DobrushinBound:
    """What rows of the product differ by from their mean against the product of Dobrushin coefficients.

    Rows of ``A X`` are at most tau(A) times as far apart as those of ``X``, and rows of the identity are 2 apart in the
    sum norm: rows of the product are at most ``2 tau_1 ... tau_k`` apart. A row differs from the mean of all n by the
    mean of its differences from each, one of which is zero: by at most ``1 - 1/n`` times that.
    """
    upper = math.log10(2 * (1 - 1 / tokens)) + coefficients["dobrushin"].cumsum(axis=0)
    decades = {"measured": float(np.diff(rows, axis=0).mean())} if len(rows) > 1 else {}
    decades |= {name: float(logs[1:].mean()) for name, logs in coefficients.items() if len(logs) > 1}
    return DobrushinBound(margin=float((upper - rows).min()), decades=decades)


# ---------------------------------------------------------------------------------------------------- statements


def points(found: ChainedAttentionFound) -> list[Statement]:
    """Two readings of the notebook, and three statements about orders, a bound and training."""
    return [_falls(found), _geometric(found), _same_order(found), _bound_statement(found), _slower(found)]


ANSWERS = {True: "yes", False: "no", None: "not decided"}


def _falls(found: ChainedAttentionFound) -> Statement:
    said = []
    for one in found.pooled:
        depths = sorted({1, max(one.layers // 2, 1), one.layers})
        for order, name in NAMES.items():
            medians = one.falling[order].medians
            shown = ", ".join(f"{power(medians[depth - 1] * LN10)} at {depth}" for depth in depths)
            falls = all_or_none([each.falling[order].does_fall for each in found.by_seed(one)])
            said.append(f"{one.name}, {name}: {shown} (falls at every depth: {ANSWERS[falls]})")
    return Statement(
        source="reported",
        statement="The distance of a product of attention maps to the best rank-one matrix falls with depth.",
        measured=f"Median ratio over paths by depth. {'; '.join(said)}.",
        agrees=all_or_none([one.falling[order].does_fall for one in found.models for order in NAMES]),
    )


def _geometric(found: ChainedAttentionFound) -> Statement:
    said = []
    for one in found.pooled:
        for order, name in NAMES.items():
            is_so = all_or_none([each.falling[order].is_geometric for each in found.by_seed(one)])
            said.append(
                f"{one.name}, {name}: {_factor(one.decades_per_layer[order][RANK_ONE])}, R^2 of a line "
                f"{number(one.falling[order].linearity, 4)} (geometric: {ANSWERS[is_so]})"
            )
    return Statement(
        source="reported",
        statement="It decays roughly geometrically in depth.",
        measured=f"Factor per layer, geometric mean over paths with its 95% interval. {'; '.join(said)}. Roughly "
        "geometric means that later layers take between half and twice as many decades as earlier ones, by intervals.",
        agrees=all_or_none([one.falling[order].is_geometric for one in found.models for order in NAMES]),
    )


def _same_order(found: ChainedAttentionFound) -> Statement:
    """The notebook multiplies the first layer on the left; does it matter?"""
    said = []
    for one in found.pooled:
        medians = one.turned.by_depth
        worst = max(medians, key=lambda each: abs(each.median))
        between = f" ({number(10**worst.low)} to {number(10**worst.high)})" if worst.is_enough else ""
        said.append(
            f"{one.name}: {number(10**worst.median)}{between} at depth {medians.index(worst) + 1}, for a single path "
            f"up to {number(10**one.turned.largest)} either way"
        )
    return Statement(
        source="ours",
        statement="The notebook multiplies in the reverse of the order in which tokens pass the layers; the picture is "
        "the same within a factor 2.",
        measured="Notebook's order over the true one, median over the same paths with its 95% interval, at the depth "
        f"where it is farthest from 1. {'; '.join(said)}.",
        agrees=all_or_none([one.turned.is_same for one in found.models]),
    )


def _bound_statement(found: ChainedAttentionFound) -> Statement:
    """Against the product of Dobrushin coefficients, a theorem, and of typical gains, a guess."""
    words = {
        "measured": "measured",
        "typical": "typical gain",
        "spectral": "spectral norm",
        "dobrushin": "Dobrushin",
    }
    said = []
    for one in found.pooled:
        rates = {name: one.bound.decades.get(name) for name in words}
        shown = (f"{words[name]} {number(None if log is None else 10**log)}" for name, log in rates.items())
        said.append(f"{one.name}: {', '.join(shown)}")
    return Statement(
        source="ours",
        statement="On every path the rows of the product differ from their mean by at most 2 (1 - 1/n) times the "
        "product of the Dobrushin coefficients of its maps.",
        measured="A theorem, calculated for these maps. Factor per layer after the first, geometric mean over paths, "
        f"true order, beside those of three coefficients of the maps. {'; '.join(said)}.",
        agrees=all_or_none([one.bound.holds for one in found.models]),
    )


def _slower(found: ChainedAttentionFound) -> Statement:
    """Trained against initial, over the depths that both have."""
    initial = [one for one in found.models if one.weights == "initial"]
    trained = [one for one in found.models if one.weights == "trained"]
    said = "; ".join(f"{one.name}: {_factor(one.shared)}" for one in found.pooled)
    return Statement(
        source="ours",
        statement="Chains of trained maps fall more slowly than those of maps at initial weights.",
        measured=f"Factor per layer of the distance to the mean row, depths 1 to {found.setting.shared_depths}, true "
        f"order. {said}. The models differ in depth and width as well."
        if trained and initial
        else "No trained model is on this machine.",
        agrees=all_or_none([is_slower(a.shared, b.shared) for a in trained for b in initial]),
    )


def _factor(decades: Mean) -> str:
    """The factor per layer with its interval."""
    if decades.low is None or decades.high is None:
        return number(10**decades.mean, 4)
    return f"{number(10**decades.mean, 4)} ({number(10**decades.low, 4)} to {number(10**decades.high, 4)})"


def notes(found: ChainedAttentionFound) -> list[str]:
    """What a reader must know."""
    setting = found.setting
    read = "one text" if setting.texts == 1 else f"one of {setting.texts} texts"
    plain = "; ".join(
        f"{one.name}: "
        + (
            "right at every depth"
            if one.plain_off_from is None
            else f"off by more than {OFF:.0%} from depth {one.plain_off_from} on"
        )
        for one in found.pooled
    )
    return [
        f"{setting.paths} random paths per network, each through one head of every layer on {read} of {setting.tokens} "
        "tokens. The chain of depth k has the maps of layers 1 to k, so the depths of one path are nested. Intervals "
        "are over paths, given the maps; each seed is judged alone. Rows with a start above 1 are chains that begin at "
        "a later layer.",
        "Maps are those of the whole network, skips and MLPs included. Doubly exponential decay (Theorem 2.2) is that "
        "of a network without skips, whose maps become more equal from layer to layer.",
        "The distance to the best matrix of rank one (first singular pair) is that of the notebook; the theory speaks "
        "of the distance to the mean row. The first can exceed 1: what is best in the Frobenius norm need not be in "
        "the composite norm.",
        "Products are carried as the mean row plus the product of what the maps differ by from their mean rows. That "
        f"is exact but for the rounding of the maps. Multiplied out in float64, the ratios are: {plain}.",
        "Untrained BERT reads random tokens, trained models the bundled English texts. Typical gain: root mean square "
        "of |E v| over directions v, where E is what a map differs by from its mean row.",
    ]


# ------------------------------------------------------------------------------------------------------- picture

DISTANCES = {RANK_ONE: "to the best rank one", MEAN: "to the mean row"}


def chart(found: ChainedAttentionFound, table: Table) -> Chart:
    """Rows are models, columns the two distances; a line per order."""
    frame = table.frame.filter(pl.col("start") == 1)
    panels = [
        depth_panel(
            frame.filter(
                (pl.col("model") == one.model)
                & (pl.col("weights") == one.weights)
                & (pl.col("definition") == definition)
            ),
            title=f"{one.name.replace(one.weights, f'{one.weights} weights', 1)}: distance {words}",
        )
        for one in found.pooled
        for definition, words in DISTANCES.items()
    ]
    return Chart(
        panels,
        title="Products of attention maps along one path fall to rank one"
        if all(one.falling["true"].does_fall for one in found.models)
        else "Products of attention maps along one path, and how near they are to rank one",
        notes=[
            f"Distance over the norm of the product, composite norms; {count(found.setting.paths, 'random path')} per "
            f"network, {found.setting.tokens} tokens; medians with 90% of the paths",
            "true order: P_k ... P_1; notebook's order: P_1 ... P_k; rings: ordinary float64 products in the true "
            f"order, where they are off by more than {OFF:.0%}; shaded: below the rounding of float64",
        ],
    )


def depth_panel(frame: pl.DataFrame, title: str) -> Panel:
    """Of rows of one model and definition: medians over paths by depth, from the 5% to the 95% quantile."""
    lines = list[Line]()
    for place, order in enumerate(ORDERS):
        made, plain = list[Point](), list[Point]()
        for (depth,), rows in frame.filter(pl.col("order") == order).group_by("depth", maintain_order=True):
            low, middle, high = (
                float(np.quantile(rows["log10_value"], part, method="linear")) for part in (0.05, 0.5, 0.95)
            )
            at = int(str(depth))
            said = f"{NAMES[order]}: {power(middle * LN10)} ({power(low * LN10)} to {power(high * LN10)})"
            made.append(Point(at, middle, said, low=low, high=high))
            if order == "true" and (log := off_plain(rows)) is not None:
                plain.append(Point(at, log, f"ordinary float64: {power(log * LN10)}", hollow=True))
        lines.append(
            Line(name=NAMES[order], points=made, color=place, style="solid" if place == 0 else "dashed")
        )
        lines.append(Line(name="", points=plain, color=-1, style="none"))
    level = math.log10(relative_floor(1, torch.float64))
    least = min(point.y for line in lines for point in line.points if point.y is not None)
    if least < level:
        ends = [point.x for point in lines[0].points]
        floor = [Point(at, level) for at in (min(ends), max(ends))]
        lines.insert(0, Line(name="", points=floor, color=-1, style="dotted", dots=False, shade=True))
    return Panel(title=title, lines=lines, value="distance", across="maps in the product")


def off_plain(rows: pl.DataFrame) -> float | None:
    """log10 of the median of ordinary products where it is off from that of the same paths; else None."""
    seen = rows.filter(pl.col("float_value") > 0)
    if seen.is_empty():
        return None
    plain, split = (float(np.median(one)) for one in (np.log10(seen["float_value"]), seen["log10_value"]))
    return plain if abs(plain - split) > math.log10(1 + OFF) else None


register(
    Figure(
        name="chained-attention",
        title="products of attention maps along single paths: distance to rank one against depth",
        source=Ref(
            key="dong2021",
            where="official notebook, products of BERT's attention maps along random paths",
            differs="both orders of the product, products without a rounding floor, random tokens for untrained BERT "
            "and MiniLM where trained BERT is not in the local cache",
        ),
        question="How fast does one path alone average its tokens away, at initial and at trained weights?",
        durations={
            "fast": "seconds",
            "usual": "a minute",
            "full": "minutes",
        },
        sizes={
            "fast": ChainedAttentionConfig(
                size="fast", seeds=(0,), paths=30, texts=1, tokens=128, plain=6, window=6
            ),
            "usual": ChainedAttentionConfig(
                size="usual", seeds=tuple(range(3)), paths=100, texts=4, tokens=128, plain=20, window=20
            ),
            "full": ChainedAttentionConfig(
                size="full", seeds=tuple(range(10)), paths=100, texts=8, tokens=128, plain=100, window=100
            ),
        },
        found=ChainedAttentionFound,
        compute=compute,
        points=points,
        chart=chart,
        notes=notes,
    )
)
