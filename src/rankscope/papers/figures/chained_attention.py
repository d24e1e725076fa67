"""``chained-attention``: how near products of attention maps along single paths are to rank one, against depth."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.chained_attention_found import MEAN, RANK_ONE, ROWS, chained
from rankscope.papers.figures.chained_attention_maps import Subject, maps_of, subjects
from rankscope.papers.figures.chained_attention_products import ORDERS
from rankscope.papers.figures.chained_attention_rules import Chains, slopes
from rankscope.papers.figures.chained_attention_words import notes, verdict
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.statistics import mean_of
from rankscope.results import Table
from rankscope.studies.rows import Rows

DEFINITIONS = {
    RANK_ONE: "distance to the best rank one: ||P - s_1 u v^T|| / ||P||, composite norm sqrt(l1 * linf), best by SVD",
    MEAN: "distance to the mean row: ||P - 1 q|| / ||P||, composite norm sqrt(l1 * linf), q the mean row",
    ROWS: "distance to the mean row: largest row sum of |P - 1 q|; rows of P sum to one",
}


class ChainedAttentionConfig(Config):
    """How many paths, texts and seeds; BERT at initial weights has one network per seed."""

    figure: Literal["chained-attention"] = "chained-attention"
    size: Size
    seeds: tuple[int, ...]
    paths: int
    texts: int
    tokens: int
    plain: int
    window: int


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {"seeds": range(1), "paths": 30, "texts": 1, "tokens": 128, "plain": 6, "window": 6},
    "usual": {"seeds": range(3), "paths": 100, "texts": 4, "tokens": 128, "plain": 20, "window": 20},
    "full": {"seeds": range(10), "paths": 100, "texts": 8, "tokens": 128, "plain": 100, "window": 100},
}


def make(job: Job) -> Table:
    """The table of the figure: one row per model, seed, order, path, depth and definition."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    config = ChainedAttentionConfig.of(size=job.size, **chosen | {"seeds": tuple(chosen["seeds"])})
    rows, found = Rows(), list[Chains]()
    asked = subjects(config.seeds)
    for done, subject in enumerate(asked):
        job.tell(done, len(asked))
        piece = job.store.remember(
            subject.key,
            {"config": config.model_dump(mode="json"), "subject": subject.key, "folder": subject.folder},
            lambda subject=subject: _measured(subject, config),  # type: ignore[misc]  # bound now, called now
        )
        _add(rows, subject, piece)
        found.append(_chains(subject, piece, config))
    job.tell(len(asked), len(asked))
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=DEFINITIONS,
        setting={"paths": config.paths, "texts": config.texts, "tokens": config.tokens},
        models=[_section(one) for one in found],
        verdict=verdict(found),
        notes=notes(found, paths=config.paths, texts=config.texts, tokens=config.tokens),
    )


def _measured(subject: Subject, config: ChainedAttentionConfig) -> dict[str, Any]:
    maps = maps_of(subject, tokens=config.tokens, texts=config.texts)
    return chained(maps, paths=config.paths, plain=config.plain, window=config.window, seed=subject.seed or 0)


def _add(rows: Rows, subject: Subject, piece: Mapping[str, Any]) -> None:
    about = {"model": subject.model, "weights": subject.weights, "seed": subject.seed, "semantics": "frozen"}
    for order in ORDERS:
        for name, curves in piece["curves"][order].items():
            plain = piece["plain"][order].get(name)
            for place, (logs, floors) in enumerate(zip(curves["log10"], curves["floor"], strict=True)):
                beside = [None] * len(logs) if plain is None else _padded(plain[place], len(logs))
                _block(
                    rows, logs, floors, {**about, "order": order, "definition": name, "float_value": beside},
                    start=1, depth=place + 1,
                )  # fmt: skip
    for window in piece["windows"]:
        for place, (logs, floors) in enumerate(zip(window["log10"], window["floor"], strict=True)):
            _block(
                rows, logs, floors, {**about, "order": "true", "definition": MEAN},
                start=window["start"], depth=place + 1,
            )  # fmt: skip


def _block(
    rows: Rows, logs: list[float], floors: list[float], about: Mapping[str, object], *, start: int, depth: int
) -> None:
    """The paths of one chain: layers ``start`` to ``start + depth - 1``."""
    values = [10**log for log in logs]
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
            "log10_value": logs,
            "floor": floors,
            "resolved": [value > floor for value, floor in zip(values, floors, strict=True)],
        },
    )


def _padded(values: Sequence[float], count: int) -> list[float | None]:
    return [*values, *[None] * (count - len(values))]


def _chains(subject: Subject, piece: Mapping[str, Any], config: ChainedAttentionConfig) -> Chains:
    return Chains(
        model=subject.model,
        weights=subject.weights,
        seed=subject.seed,
        tokens=config.tokens,
        curves={
            (order, name): np.asarray(curves["log10"])
            for order in ORDERS
            for name, curves in piece["curves"][order].items()
        },
        coefficients={name: np.asarray(piece[name]) for name in ("dobrushin", "spectral", "typical")},
        plain=np.asarray(piece["plain"]["true"][RANK_ONE]),
    )


def _section(one: Chains) -> dict[str, Any]:
    """Decades per layer of every order and definition, and of the coefficients of the maps."""
    return {
        "model": one.model,
        "weights": one.weights,
        "seed": one.seed,
        "layers": len(one.curves["true", MEAN]),
        "decades_per_layer": {
            order: {name: mean_of(slopes(one.curves[order, name])).section() for name in DEFINITIONS}
            for order in ORDERS
        },
        "decades_of_coefficients": {name: float(logs.mean()) for name, logs in one.coefficients.items()},
    }


def _chart(table: Table) -> Any:
    from rankscope.plots.chained_chart import chained_chart

    return chained_chart(table)


register(
    OldFigure(
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
            "fast": "about 8 seconds",
            "usual": "about 1 minute",
            "full": "about 5 minutes (extrapolated)",
        },
        make=make,
        chart=_chart,
    )
)
