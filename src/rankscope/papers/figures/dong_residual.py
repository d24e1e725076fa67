"""``dong-bert``, ``dong-albert``, ``dong-xlnet``: residual ratio per layer with and without skips and MLPs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rankscope.core.config import Config
from rankscope.core.refs import Ref
from rankscope.papers.figures.dong_curves import (
    ALBERT,
    BERT,
    FALLING,
    FIRST,
    NEARBY,
    RATIO,
    REPEATS,
    TOKENS,
    VARIANTS,
    XLNET,
    Subject,
    Trained,
    initial_curves,
    published,
    trained_curves,
    trained_source,
)
from rankscope.papers.figures.dong_residual_words import repeats_note, verdict
from rankscope.papers.figures.dong_rules import Found, Repeated, quotients
from rankscope.papers.figures.figure import Job, OldFigure, Size, register
from rankscope.papers.figures.statistics import mean_of
from rankscope.results import Table
from rankscope.studies.rows import Rows, definitions


class DongResidualConfig(Config):
    """Sizes; ``exact`` is the number of texts on which the split pass runs besides, per draw."""

    figure: str
    size: Size
    tokens: int = TOKENS
    texts: int
    exact: int
    split: tuple[str, ...] = FALLING
    """Variants on which it runs."""

    seeds: tuple[int, ...]
    repeats: tuple[float, ...] = (REPEATS, *(factor * REPEATS for factor in NEARBY))
    """How often tokens of the drawn texts repeat; at all but the first the first layers alone are run."""

    trained: str | None
    """Model whose trained weights were at hand."""


SIZES: dict[Size, dict[str, Any]] = {
    "fast": {"texts": 1, "exact": 1, "split": ("san",), "seeds": range(1)},
    "usual": {"texts": 32, "exact": 2, "seeds": range(3)},
    "full": {"texts": 32, "exact": 8, "seeds": range(12)},
}


def make(subject: Subject, job: Job) -> Table:
    """The table of one model: a row per weights, variant, draw, text and layer."""
    chosen = SIZES[job.size] | ({"seeds": job.seeds} if job.seeds else {})
    source = trained_source(subject)
    config = DongResidualConfig.of(
        figure=subject.figure,
        size=job.size,
        **chosen | {"seeds": tuple(chosen["seeds"])},
        trained=None if source is None else source.name,
    )
    drawn, trained = _pieces(subject, source, config, job)
    rows = Rows()
    for seed, one in zip(config.seeds, drawn, strict=True):
        about = {"model": subject.initial, "weights": "initial", "seed": seed}
        _add(rows, one, about | {"repeats": REPEATS})
        _add_nearby(rows, one, about)
    if source is not None:
        _add(rows, trained, {"model": source.name, "weights": "trained", "seed": None, "repeats": None})
    known = published() if subject is BERT else {}
    found = found_in(subject, drawn, source, trained)
    return rows.table(
        config,
        command="reproduce",
        seeds=config.seeds,
        definitions=definitions([RATIO]),
        setting={
            "label": subject.label,
            "tokens": TOKENS,
            "texts": config.texts,
            "trained": config.trained,
            "is_paper": source is not None and source.is_true,
        },
        curves=_means(found),
        repeats=_repeats(found),
        published=_published(found, known),
        verdict=verdict(found, known),
        notes=_notes(found, config),
    )


def _pieces(
    subject: Subject, source: Trained | None, config: DongResidualConfig, job: Job
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The curves of every draw and of the trained weights, each kept as soon as it is done."""
    sizes: dict[str, Any] = {"texts": config.texts, "exact": config.exact, "split": config.split}
    asked = {"figure": subject.figure, "repeats": config.repeats} | sizes
    total, drawn = len(config.seeds) + (source is not None), []
    for done, seed in enumerate(config.seeds, start=1):
        work = partial(initial_curves, subject, seed, **sizes)
        drawn.append(job.store.remember(f"initial-{seed}", asked | {"seed": seed}, work))
        job.tell(done, total)
    if source is None:
        return drawn, {}
    work = partial(trained_curves, source, **sizes)
    trained = job.store.remember("trained", asked | {"source": source.source}, work)
    job.tell(total, total)
    return drawn, trained


def found_in(
    subject: Subject, drawn: list[dict[str, Any]], source: Trained | None, trained: dict[str, Any]
) -> Found:
    """What the verdict reads: means over texts; of trained weights, of which there is one draw, every text."""

    def means(pieces: list[dict[str, Any]], kind: str) -> dict[str, np.ndarray]:
        each = {name: [piece["variants"][name][kind] for piece in pieces] for name in VARIANTS}
        return {name: np.asarray(one, dtype=float).mean(axis=2) for name, one in each.items() if all(one)}

    return Found(
        subject=subject,
        official=means(drawn, "official"),
        floor=drawn[0]["floor"],
        log10=means(drawn, "log10"),
        source=source,
        trained={
            name: np.asarray(one["official"], dtype=float).T for name, one in trained["variants"].items()
        }
        if source is not None
        else {},
        repeated=_repeated(drawn),
    )


def _repeated(drawn: list[dict[str, Any]]) -> list[Repeated]:
    """The first layers at every R, fewer repeats first."""

    def means(pieces: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        return {
            name: np.asarray([piece[name] for piece in pieces], dtype=float).mean(axis=2) for name in VARIANTS
        }

    own = [{name: one["variants"][name]["official"][: FIRST + 1] for name in VARIANTS} for one in drawn]
    found = [(REPEATS, [one["repeats"]["drawn"] for one in drawn], own)]
    for place, factor in enumerate(NEARBY):
        pieces = [one["repeats"]["nearby"][place] for one in drawn]
        found.append(
            (factor * REPEATS, [one["drawn"] for one in pieces], [one["variants"] for one in pieces])
        )
    return [
        Repeated(repeats=repeats, drawn=float(np.mean(counted)), official=means(pieces))
        for repeats, counted, pieces in sorted(found, key=lambda one: one[0])
    ]


def _add_nearby(rows: Rows, piece: dict[str, Any], about: dict[str, Any]) -> None:
    """The first layers on texts whose tokens repeat otherwise, measured in float32 as the published code does."""
    for near in piece["repeats"]["nearby"]:
        for variant, layers in near["variants"].items():
            for layer, values in enumerate(layers):
                floor = piece["floor"][layer]
                rows.add(
                    len(values),
                    {
                        **about,
                        "repeats": near["repeats"],
                        "variant": variant,
                        "semantics": "paper",
                        "layer": layer,
                        "site": "block",
                        "measure": "residual_ratio",
                        "definition": RATIO,
                        "sample": list(range(len(values))),
                        "arithmetic": "float32",
                        "value": values,
                        "official_value": values,
                        "floor": floor,
                        "resolved": [value > floor for value in values],
                    },
                )


def _repeats(found: Found) -> list[dict[str, Any]]:
    """By R and variant the first layers: mean over draws with its interval."""
    return [
        {
            "repeats": one.repeats,
            "drawn": one.drawn,
            "variant": name,
            "layers": [mean_of(column.tolist()).section() for column in values.T],
        }
        for one in found.repeated
        for name, values in one.official.items()
    ]


def _add(rows: Rows, piece: dict[str, Any], about: dict[str, Any]) -> None:
    """Values of the float32 run with its floor, and beside them those of the split pass, which has none."""
    for variant, kinds in piece["variants"].items():
        for layer, floor in enumerate(piece["floor"]):
            named = {
                **about,
                "variant": variant,
                "semantics": "paper",
                "layer": layer,
                "site": "block",
                "measure": "residual_ratio",
                "definition": RATIO,
            }
            values = kinds["value"][layer]
            rows.add(
                len(values),
                named
                | {
                    "sample": list(range(len(values))),
                    "arithmetic": "float32",
                    "value": values,
                    "official_value": kinds["official"][layer],
                    "floor": floor,
                    "resolved": [value > floor for value in values],
                },
            )
            if kinds["log10"]:
                logs = kinds["log10"][layer]
                kept = kinds.get("log10_floor")  # curves that were stored before floors were have none
                floors = kept[layer] if kept else [None] * len(logs)
                rows.add(
                    len(logs),
                    named
                    | {
                        "sample": list(range(len(logs))),
                        "arithmetic": "split",
                        "value": [10.0**log for log in logs],
                        "log10_value": logs,
                        "floor": [None if floor is None else 10.0**floor for floor in floors],
                        "log10_floor": floors,
                        "resolved": [
                            floor is not None and log > floor for log, floor in zip(logs, floors, strict=True)
                        ],
                    },
                )


def _means(found: Found) -> list[dict[str, Any]]:
    """By weights and variant the mean over draws at every layer, computed as the published code does."""
    trained = {name: one.mean(axis=0, keepdims=True) for name, one in found.trained.items()}
    sets = [("initial", found.official), ("trained", trained)]
    return [
        {
            "weights": weights,
            "variant": name,
            "layers": [mean_of(column.tolist()).section() for column in values.T],
        }
        for weights, curves in sets
        for name, values in curves.items()
    ]


def _published(found: Found, known: dict[str, Any]) -> list[dict[str, Any]]:
    """Point by point: published mean and spread over texts, ours, and the quotient where it is the same model.

    There is no quotient where the published value is below the floor of float32: rounding has no size to compare.
    """
    is_true = found.source is not None and found.source.is_true
    ours = {"init": found.official, "pretrained": found.trained if is_true else {}}
    rows = []
    for weights, variants in known.items():
        for name, curve in variants.items():
            own = ours[weights].get(name)
            for layer, mean in enumerate(curve["mean"]):
                rows.append(
                    {
                        "weights": {"init": "initial", "pretrained": "trained"}[weights],
                        "variant": name,
                        "layer": layer,
                        "published": mean,
                        "published_std": curve["std"][layer],
                        "ours": None if own is None else float(own[:, layer].mean()),
                        "quotient": None
                        if own is None or mean < found.floor[layer]
                        else quotients(own, curve["mean"])[layer],
                    }
                )
    return rows


def _notes(found: Found, config: DongResidualConfig) -> list[str]:
    subject, source = found.subject, found.source
    notes = [
        f"{subject.hub[0]} from a bare config, weights drawn as transformers draws them, evaluation mode, float32, "
        f"{config.texts} text{'s' * (config.texts > 1)} of {TOKENS} tokens, {len(config.seeds)} "
        f"draw{'s' * (len(config.seeds) > 1)}. A draw serves all four variants; in the paper each variant drew its "
        "own. Layer 0 is what enters the first block.",
        repeats_note(found),
        "san is attention alone, san+mlp and san+skip have MLPs or skips back, transformer both. Variants as in the "
        "official code: norms are always kept, 'no skip' takes out the skip of attention alone; "
        + {
            "dong-bert": "'no MLP' takes out the MLP with its skip and norm.",
            "dong-albert": "'no MLP' makes the two linear maps of the MLP the identity: LN(gelu(a) + a) is left.",
            "dong-xlnet": "'no MLP' takes out the MLP with its skip and norm. No segment ids are given.",
        }[subject.figure],
        "The published code measures in float32 too, which lifts the plateau of rounding from 1.0e-7 to 1.9e-7; the "
        "verdict compares such numbers (column official_value), the column value is measured in float64.",
    ]
    true = f"'rankscope ablate {subject.hub[0]} --semantics paper' runs the checkpoint of the paper"
    if source is None:
        notes.append(
            f"Trained weights: none at hand. {true}; once it is in the local cache, this figure shows it."
        )
    elif not source.is_true:
        notes.append(
            f"Trained weights: those of {subject.hub[0]} are not in the local cache. Shown is another model, "
            f"{source.name}: published numbers do not apply to it, only the shape. {true}; once it is cached, "
            "so does this figure."
        )
    return notes


def _chart(table: Table) -> Any:
    from rankscope.plots.dong_chart import dong_chart

    return dong_chart(table)


def _entered(subject: Subject, durations: dict[Size, str]) -> Any:
    work: Callable[[Job], Table] = partial(make, subject)
    return register(
        OldFigure(
            name=subject.figure,
            title=f"residual per layer of {subject.label} without skips, without MLPs, without either",
            source=Ref(
                key="dong2021",
                where=f"Section 4, relative residual per layer, panel of {subject.label}",
                differs="drawn texts whose tokens repeat as those of English do in place of wiki_bio, several draws, "
                "the split pass below rounding",
            ),
            question="Do skips or MLPs keep a real architecture from collapsing?",
            durations=durations,
            make=work,
            chart=_chart,
        )
    )


for _subject in (BERT, ALBERT, XLNET):
    _entered(
        _subject,
        {"fast": "about 10 seconds", "usual": "about 2 minutes", "full": "about 5 minutes (extrapolated)"},
    )
