"""Ablation: one model without skips, MLPs or norms, with other masks and skip scales, side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError
from rankscope.measures import Evaluation, Measure, evaluate_many, find_measure
from rankscope.network.jitter import jittered
from rankscope.results import Table
from rankscope.sources.seen import Call
from rankscope.split import LOST, LogValue, log_measure, of_measured, split_states
from rankscope.studies.ablate_config import AblateConfig, feeding
from rankscope.studies.ablate_explain import BLAME_DEFINITION, explained, headline, joined, suggestions
from rankscope.studies.ablate_words import finding
from rankscope.studies.blame import Blame, blame, blame_rows
from rankscope.studies.collapse import traced_states
from rankscope.studies.cuts import Cut, cuts
from rankscope.studies.inputs import Given
from rankscope.studies.rows import Rows, definitions, split_words
from rankscope.studies.subjects import Fed, Source, Subject, memory_words, subjects
from rankscope.studies.suggest import Tried, tried

Progress = Callable[[int, int | None], None]
"""Told after every batch how many of how many passes through a network are done; their number may not be known."""


ADVICE = (
    "lower --batch-size (1 holds one text at a time) or --max-tokens, leave out --split, or load the model in a "
    "smaller dtype (--dtype bfloat16)"
)


class _Ran(AblateConfig):
    """What ran, for the provenance of a table: the model's name and what its dtype turned out to be."""

    model: str
    network: dict[str, Any] | None = None


@dataclass(kw_only=True)
class _Gathered:
    """Everything that is collected while the subjects run."""

    rows: Rows = field(default_factory=Rows)
    about: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    texts: int = 0
    tokens: int = 0
    passes: int = 0
    blamed: list[Blame] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    explained: dict[str, Any] = field(default_factory=dict)  # which network blame and what-ifs are about


def ablate(
    model: Source,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: AblateConfig | None = None,
    load: dict[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Table:
    """One row per variant, mask, skip scale, seed, text, layer, site and measure of one model.

    ``model`` is what ``scan`` takes, a translated model, a tree of parts (with ``inputs``, the tokens that enter it),
    or the ``Spec`` of a random network. With ``weights="initial"`` it is a name or a folder with a ``config.json``,
    and every seed draws a model. ``options`` are fields of ``AblateConfig``; ``load`` are options of loading
    (``revision``, ``allow_pickle``, ``trust_remote_code``). Measured are the tokens that a scan measures.

    Besides the fixed columns a row has ``skip_scale`` (null: as the model has it), ``blocks`` (those that are changed)
    and ``tokens`` (how many of the text are measured); with ``split`` also ``float_value`` and ``float_floor``, which
    the ordinary pass gives.
    """
    config = AblateConfig.of(**options) if config is None else config
    config.check()
    given = {"texts": texts, "images": images, "audio": audio, "inputs": inputs, "call": call}
    gathered = _Gathered()
    with memory_words("ablation", ADVICE):
        for subject in subjects(
            model,
            feeding(config, load or {}),
            Given(**given),
            seeds=config.seeds,
            tokens=config.tokens,
            tokenizer=tokenizer,
        ):
            _run(gathered, subject, config, progress)
    return _table(gathered, config)


def _run(gathered: _Gathered, subject: Subject, config: AblateConfig, progress: Progress | None) -> None:
    """All cuts of one subject on all of its texts."""
    chosen = list(cuts(subject.network, config, subject.kind))
    gathered.about = gathered.about or subject.about
    total = None if subject.total is None else subject.total * len(chosen) * len(config.seeds)
    measure = _measure_split if config.split else _measure
    with torch.no_grad(), threads_for(_entries(subject)):
        for fed in subject.feeds:
            _explain(gathered, subject, fed, config, headline(chosen))
            for cut in chosen:
                measure(gathered.rows, config, _named(cut, fed, subject, config), cut, fed)
                gathered.passes += len(fed.x)
                if progress is not None:
                    progress(gathered.passes, total)
            gathered.texts += len(fed.x)
            gathered.tokens += sum(fed.tokens)
    gathered.notes |= dict.fromkeys(subject.notes())


def _explain(gathered: _Gathered, subject: Subject, fed: Fed, config: AblateConfig, cut: Cut) -> None:
    """Blame and what-ifs of ``cut``, the network of the headline: mask, skip scale, norms and blocks as asked for."""
    if not (config.blame or config.suggest):
        return
    gathered.explained = explained(cut, config)
    if config.blame:
        found = blame(
            cut.network, fed.x, fed.context, is_token=fed.keep, split=config.split, error=config.error
        )
        gathered.blamed.append(found)
        for rows in blame_rows(found, _named(cut, fed, subject, config)):
            gathered.rows.add(found.texts, rows)
    if config.suggest:
        gathered.tried.append(tried(cut.network, fed.x, fed.context, is_token=fed.keep))


def _named(cut: Cut, fed: Fed, subject: Subject, config: AblateConfig) -> dict[str, Any]:
    return {
        "model": subject.about["model"],
        "variant": cut.variant,
        "semantics": config.semantics,
        "mask": cut.mask,
        "norm": cut.norm,
        "seed": subject.seed,
        "sample": list(range(fed.first, fed.first + len(fed.x))),
        "skip_scale": cut.skip_scale,
        "blocks": config.blocks or "all",
        "tokens": fed.tokens,
    }


def _measure(rows: Rows, config: AblateConfig, about: dict[str, Any], cut: Cut, fed: Fed) -> None:
    inner = [site for site in config.sites if site in ("attention", "mlp")]
    measures = [find_measure(name) for name in config.measures]
    traces = [one.trace(fed.x, fed.context, sites=inner) for one in (cut.network, jittered(cut.network))]
    runs = zip(*(traced_states(trace, config.sites) for trace in traces), strict=True)
    for (layer, site, state), (_, _, again) in runs:
        found = evaluated(measures, state, fed.keep, layer=layer, again=again)
        for measure, one in zip(measures, found, strict=True):
            rows.add_measured(measure, one, {**about, "layer": layer, "site": site})


def _measure_split(rows: Rows, config: AblateConfig, about: dict[str, Any], cut: Cut, fed: Fed) -> None:
    measures = [find_measure(name) for name in config.measures]
    splits = split_states(cut.network, fed.x, fed.context, error=config.error)
    states, others = (one.states(fed.x, fed.context) for one in (cut.network, jittered(cut.network)))
    for layer, (split, state, again) in enumerate(zip(splits, states, others, strict=True)):
        ordinary = evaluated(measures, state, fed.keep, layer=layer, again=again)
        measured, share = of_measured(split, fed.keep, layer)
        for measure, one in zip(measures, ordinary, strict=True):
            found = _known(log_measure(measure, measured), share)
            rows.add_split(measure, found, one, {**about, "layer": layer, "site": "block"})


def _known(found: LogValue, share: Tensor) -> LogValue:
    """No number where the measured tokens are lost in the rounding of the others."""
    log, low = (torch.where(share < LOST, side, torch.nan) for side in (found.log, found.low))
    return replace(found, log=log, low=low)


def evaluated(
    measures: Sequence[Measure], state: Tensor, keep: Tensor | None, *, layer: int, again: Tensor
) -> list[Evaluation]:
    """Every measure of every text on its measured tokens, with the floor of the dtype that the state is in.

    ``again`` is the state of a second run with noise of the size of rounding: floors are wider where the network
    enlarges it.
    """
    state, again, dtype = state.cpu(), again.cpu(), state.dtype
    if keep is None:
        return evaluate_many(measures, state, layer=layer, dtype=dtype, again=again)
    each = [
        evaluate_many(measures, text[kept], layer=layer, dtype=dtype, again=other[kept])
        for text, other, kept in zip(state, again, keep.cpu(), strict=True)
    ]
    return [_joined(found) for found in zip(*each, strict=True)]


def _joined(found: Sequence[Evaluation]) -> Evaluation:
    names = ("value", "low", "high", "floor", "resolved")
    return Evaluation(**{name: torch.stack([getattr(one, name) for one in found]) for name in names})


def _table(gathered: _Gathered, config: AblateConfig) -> Table:
    about, count = gathered.about, max(gathered.texts, 1)
    if not gathered.texts:
        raise ConfigError("no text was given; an ablation needs at least one")
    options = config.model_dump() | {"dtype": about["dtype"]}
    ran = _Ran.of(**options, model=about["model"], network=about.get("network"))
    section = about | {
        "semantics": config.semantics,
        "seeds": len(config.seeds),
        "texts": gathered.texts // len(config.seeds),
        "tokens": gathered.tokens / count,
        "warnings": list(gathered.notes),
    }
    words = definitions(config.measures) | (BLAME_DEFINITION if gathered.blamed else {})
    table = gathered.rows.table(ran, command="ablate", seeds=config.seeds, ablate=section, definitions=words)
    if config.split:
        table = replace(table, sections=table.sections | {"split": split_words(error=config.error)})
    more: dict[str, Any] = {
        "finding": finding(table, [one["where"] for one in about.get("run as it is", ())])
    }
    if gathered.blamed:
        more["blame"] = gathered.explained | joined(gathered.blamed).summary()
    if gathered.tried:
        more["suggest"] = gathered.explained | suggestions(gathered.tried)
    return replace(table, sections=table.sections | more)


def _entries(subject: Subject) -> int:
    """A measure of the size of the products: small ones run faster on one thread."""
    return max((parameter.numel() for parameter in subject.network.parameters()), default=0)
