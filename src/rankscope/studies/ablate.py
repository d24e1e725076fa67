"""Ablation: one model without skips, MLPs or norms, with other masks and skip scales, side by side."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError, Option
from rankscope.findings.ablate import (
    FALLS,
    AblateConfig,
    AblateFinding,
    CutDip,
    Fall,
    Fate,
    Leads,
    parse_blocks,
)
from rankscope.findings.asked import OWN
from rankscope.findings.blame import DEFINITION, MEANING, Headline
from rankscope.findings.remedies import Remedies
from rankscope.masks import parse_mask
from rankscope.measures import Evaluation, Measure, evaluate_many, find_measure
from rankscope.network import VARIANTS, Network, Spec
from rankscope.network.jitter import jittered
from rankscope.network.surgery import check_variant
from rankscope.results import Table, layer_summary
from rankscope.results.statistics import LayerMean
from rankscope.results.table import Columns, read_rows
from rankscope.sources.seen import Call
from rankscope.split import LOST, LogValue, can_measure, log_measure, of_measured, split_states
from rankscope.split.values import cannot_measure
from rankscope.studies.blame import Changes, blame, blame_rows, join_batches, measured_tokens, sum_changes
from rankscope.studies.collapse import traced_states
from rankscope.studies.cuts import Cut, cuts
from rankscope.studies.inputs import CallInputs, resolve_call
from rankscope.studies.mechanism import Run, TakenApart, explain, take_apart
from rankscope.studies.recipes import Written, with_recipes, written_of
from rankscope.studies.remedies import Forecaster, Outcomes, forecaster, rank_remedies, try_remedies
from rankscope.studies.rows import RowBuilder, definitions
from rankscope.studies.subjects import About, EmbeddedTexts, LiveSubject, Source, memory_words, subjects
from rankscope.studies.suggest import WhatIfOutcomes, rank_what_ifs, try_what_ifs
from rankscope.verdict import EQUAL, RatioPoint, Thresholds, deciding_dtype, judge_fall
from rankscope.verdict.falls import number_of

Advance = Callable[[int, int | None], None]
"""Told after every batch how many of how many passes through a network are done; their number may not be known."""

ADVICE = (
    "ask for a smaller batch size (1 holds one text at a time) or fewer tokens per text, leave out the split pass, or "
    "load the model in a smaller dtype such as bfloat16"
)

WANTED = ("residual_ratio[composite,mean]", "residual_ratio[frobenius,mean]")
"""The verdict is about the first of these that was measured, or about any other residual ratio."""

CURED = 2**22
"""Numbers of the tokens on which causes are undone: the first batches, as many as fit."""

KEYS = ("variant", "mask", "skip_scale")
"""What tells cuts apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutPlan:
    """What is asked of a network: the product of variants, masks and skip scales, in some of its blocks or in all."""

    variants: tuple[str, ...]
    masks: tuple[str, ...]
    skip_scales: tuple[float | str, ...]
    norm: str
    """own, or none: the norms of the blocks are taken out."""

    semantics: str
    only: str | None
    """The blocks that are changed; None: all."""

    sites: tuple[str, ...]

    def numbers(self, layers: int) -> tuple[int, ...] | None:
        """The blocks that are changed, from 1, of a network with that many; None for all."""
        if self.only is None:
            return None
        wanted = parse_blocks(self.only)
        if wanted[-1] > layers:
            raise ConfigError(f"block {wanted[-1]} does not exist: the model has blocks 1 to {layers}")
        if self.sites == ("mlp",) and not _some_have("mlp", self.variants) and len(wanted) == layers:
            raise _no_mlp(self.variants)
        return wanted


@dataclass(kw_only=True)
class _Collection:
    """Everything that is collected while the subjects run."""

    rows: RowBuilder = field(default_factory=RowBuilder)
    about: About | None = None
    notes: dict[str, None] = field(default_factory=dict)  # in order, each once
    texts: int = 0
    tokens: int = 0
    passes: int = 0
    blamed: list[Changes] = field(default_factory=list)
    apart: list[TakenApart] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # of the first batches that were taken apart
    tried: list[WhatIfOutcomes] = field(default_factory=list)
    remedied: list[Outcomes] = field(default_factory=list)
    forecast: tuple[Network, Forecaster] | None = None
    written: Written | None = None
    headline: Headline | None = None


def ablate(
    model: Source | AblateConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: AblateConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> AblateFinding:
    """One row per variant, mask, skip scale, seed, text, layer, site and measure of one model, and what they amount to.

    ``model`` is what ``scan`` takes, a translated model, a tree of parts (with ``inputs``, the tokens that enter it),
    or the ``Spec`` of a random network; without one the options describe a random network, ``rs.ablate(layers=12)``.
    With ``weights="initial"`` it is a name or a folder with a ``config.json``, and every seed draws a model. Measured
    are the tokens that a scan measures.

    Besides the fixed columns a row has ``skip_scale`` (null: as the model has it), ``blocks`` (those that are changed)
    and ``tokens`` (how many of the text are measured); with ``split`` also ``float_value`` and ``float_floor``, which
    the ordinary pass gives.
    """
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    config, source, given = resolve_call(AblateConfig, model, config, given, **fields)
    config = _check_config(config)
    if source is None:
        source, norm = Spec.of(**config.spec(), variant="transformer"), OWN
    else:
        norm = _own_or_none(config.norm)
    plan = plan_of(config, norm)
    gathered = _Collection()
    tokens = config.choice("tokens") if isinstance(source, Spec) else None
    with memory_words("ablation", ADVICE):
        for subject in subjects(
            source, config, given, seeds=config.seeds, tokens=tokens, tokenizer=tokenizer
        ):
            _run_subject(gathered, subject, config, plan, advance)
    if not gathered.texts:
        raise ConfigError("no text was given; an ablation needs at least one")
    return _finding(gathered, config)


# ----------------------------------------------------------------------------------------------- what may be asked


def _check_config(config: AblateConfig) -> AblateConfig:
    """The configuration with names in full; an error if a name is none, or if the options contradict each other."""
    for name in config.variants:
        check_variant(name)
    measures = [find_measure(name) for name in config.measures]
    for measure in measures:
        if measure.kind != "tokens":
            raise ConfigError(f"{measure.definition} measures attention maps; ablate measures token states")
        if config.split and not can_measure(measure):
            raise cannot_measure(measure)
    if config.skip_scales != (OWN,) and not _some_have("skip", config.variants) and not config.only_blocks:
        raise ConfigError(
            f"no variant among {', '.join(config.variants)} has a skip to scale; add san+skip or transformer"
        )
    if config.sites == ("mlp",) and not _some_have("mlp", config.variants) and not config.only_blocks:
        raise _no_mlp(config.variants)
    if config.split and config.sites != ("block",):
        raise ConfigError(f"the split pass measures the site block alone, got {', '.join(config.sites)}")
    if config.no_error and not config.split:
        raise ConfigError(
            Option("no_error"),
            " leaves out the perturbed run of the split pass; add ",
            Option("split"),
            ", or leave it out",
        )
    masks = (mask if mask == OWN else parse_mask(mask).text for mask in config.masks)
    return config.model_copy(
        update={
            "masks": tuple(dict.fromkeys(masks)),
            "measures": tuple(dict.fromkeys(measure.definition for measure in measures)),
        }
    )


def _some_have(part: str, variants: Sequence[str]) -> bool:
    """Whether some variant keeps its skips, or its MLPs."""
    return any(part not in VARIANTS[name.removesuffix("-norm")] for name in variants)


def _no_mlp(variants: Sequence[str]) -> ConfigError:
    return ConfigError(f"no variant among {', '.join(variants)} has an MLP to measure; add the site block")


def _own_or_none(norm: str | None) -> str:
    if norm not in (None, OWN, "none"):
        raise ConfigError(
            Option("norm", norm),
            " is of random networks; a model keeps its norms (own) or loses them (none)",
        )
    return norm or OWN


def plan_of(config: AblateConfig, norm: str) -> CutPlan:
    """The plan of a configuration, for a network whose norms are kept (own) or taken out (none)."""
    twice = [name for name in config.variants if f"{name}-norm" in config.variants]
    if norm == "none" and config.semantics == "paper":
        raise ConfigError(
            "the paper's code always keeps the norms, so ",
            Option("norm", "none"),
            " has no paper semantics; leave it out, or use the clean semantics",
        )
    if norm == "none" and twice:
        raise ConfigError(f"without norms {twice[0]} and {twice[0]}-norm are the same network; leave one out")
    return CutPlan(
        variants=config.variants,
        masks=config.masks,
        skip_scales=config.skip_scales,
        norm=norm,
        semantics=config.semantics,
        only=config.only_blocks,
        sites=config.sites,
    )


# ----------------------------------------------------------------------------------------------------------- the run


def _run_subject(
    gathered: _Collection, subject: LiveSubject, config: AblateConfig, plan: CutPlan, advance: Advance | None
) -> None:
    """All cuts of one subject on all of its texts."""
    chosen = list(cuts(subject.network, plan, subject.kind))
    gathered.about = gathered.about or subject.about
    total = None if subject.total is None else subject.total * len(chosen) * len(config.seeds)
    measure = _measure_split if config.split else _measure

    def explained(fed: EmbeddedTexts) -> None:
        _explain(gathered, subject, fed, config, plan, headline(chosen))
        gathered.texts += len(fed.x)
        gathered.tokens += sum(fed.tokens)

    def measured(fed: EmbeddedTexts, cut: Cut) -> None:
        measure(gathered.rows, config, _columns(cut, fed, subject, config), cut, fed)
        gathered.passes += len(fed.x)
        if advance is not None:
            advance(gathered.passes, total)

    run_cuts(subject, chosen, measured, first=explained)
    gathered.notes |= dict.fromkeys(subject.notes())


def run_cuts(
    subject: LiveSubject,
    chosen: Sequence[Cut],
    visit: Callable[[EmbeddedTexts, Cut], None],
    *,
    first: Callable[[EmbeddedTexts], None] | None = None,
) -> None:
    """Every batch of texts through every network: ``first`` sees a batch once, ``visit`` once per network."""
    # Small products run faster on one thread; the largest weight is a measure of their size.
    largest = max((parameter.numel() for parameter in subject.network.parameters()), default=0)
    with torch.no_grad(), threads_for(largest):
        for fed in subject.feeds:
            if first is not None:
                first(fed)
            for cut in chosen:
                visit(fed, cut)


def headline(chosen: Sequence[Cut]) -> Cut:
    """The network that blame and what-ifs are about: of the first mask and skip scale, the full one if it is there."""
    return next((cut for cut in chosen if cut.variant == "transformer"), chosen[0])


def _explain(
    gathered: _Collection,
    subject: LiveSubject,
    fed: EmbeddedTexts,
    config: AblateConfig,
    plan: CutPlan,
    cut: Cut,
) -> None:
    """Blame and what-ifs of ``cut``, the network of the headline: mask, skip scale, norms and blocks as asked for."""
    gathered.headline = Headline(
        variant=cut.variant,
        mask=cut.mask,
        norm=cut.norm,
        skip_scale=cut.skip_scale,
        blocks=config.only_blocks or "all",
        asked_mask=None if config.masks[0] == OWN else config.masks[0],
        without_norms=plan.norm == "none",
    )
    if config.blame:
        changes = blame(
            cut.network, fed.x, fed.context, is_token=fed.keep, split=config.split, error=not config.no_error
        )
        gathered.blamed.append(changes)
        _take_apart(gathered, cut, fed)
        for rows in blame_rows(changes, _columns(cut, fed, subject, config)):
            gathered.rows.add(changes.texts, rows)
    if config.suggest:
        gathered.tried.append(try_what_ifs(cut.network, fed.x, fed.context, is_token=fed.keep))
        gathered.remedied.append(try_remedies(cut.network, fed.x, fed.context, is_token=fed.keep))
        if gathered.forecast is None:
            gathered.forecast = (cut.network, forecaster(fed.x, seed=subject.seed))
            gathered.written = _written(subject)


def _written(subject: LiveSubject) -> Written | None:
    """The code that remedies are written for; None of a random network, which has none."""
    tree = subject.tree
    return None if tree is None else written_of(tree.model, tree.stack.blocks, tree.network)


def _take_apart(gathered: _Collection, cut: Cut, fed: EmbeddedTexts) -> None:
    """The mechanism of the fall on one batch, which is kept if causes can be undone on it later."""
    context = cut.network.checked(fed.x, fed.context)
    run = Run(network=cut.network, x=fed.x, context=context, keep=measured_tokens(fed.x, context, fed.keep))
    gathered.apart.append(take_apart(run))
    held = sum(one.x.numel() for one in gathered.runs)
    if len(gathered.runs) == len(gathered.apart) - 1 and (not held or held + fed.x.numel() <= CURED):
        gathered.runs.append(run)


def _columns(cut: Cut, fed: EmbeddedTexts, subject: LiveSubject, config: AblateConfig) -> Columns:
    return {
        "model": subject.about.model,
        "variant": cut.variant,
        "semantics": config.semantics,
        "mask": cut.mask,
        "norm": cut.norm,
        "seed": subject.seed,
        "sample": list(range(fed.first, fed.first + len(fed.x))),
        "skip_scale": cut.skip_scale,
        "blocks": config.only_blocks or "all",
        "tokens": fed.tokens,
    }


def _measure(rows: RowBuilder, config: AblateConfig, about: Columns, cut: Cut, fed: EmbeddedTexts) -> None:
    inner = [site for site in config.sites if site in ("attention", "mlp")]
    measures = [find_measure(name) for name in config.measures]
    traces = [one.trace(fed.x, fed.context, sites=inner) for one in (cut.network, jittered(cut.network))]
    runs = zip(*(traced_states(trace, config.sites) for trace in traces), strict=True)
    for (layer, site, state), (_, _, again) in runs:
        found = evaluate_texts(measures, state, fed.keep, layer=layer, again=again)
        for measure, one in zip(measures, found, strict=True):
            rows.add_measured(measure, one, {**about, "layer": layer, "site": site})


def _measure_split(
    rows: RowBuilder, config: AblateConfig, about: Columns, cut: Cut, fed: EmbeddedTexts
) -> None:
    measures = [find_measure(name) for name in config.measures]
    splits = split_states(cut.network, fed.x, fed.context, error=not config.no_error, may_overflow=True)
    states, others = (one.states(fed.x, fed.context) for one in (cut.network, jittered(cut.network)))
    for layer, (split, state, again) in enumerate(zip(splits, states, others, strict=True)):
        ordinary = evaluate_texts(measures, state, fed.keep, layer=layer, again=again)
        measured, share = of_measured(split, fed.keep, layer)
        for measure, one in zip(measures, ordinary, strict=True):
            found = _without_lost(log_measure(measure, measured), share)
            rows.add_split(measure, found, one, {**about, "layer": layer, "site": "block"})


def _without_lost(found: LogValue, share: Tensor) -> LogValue:
    """No number where the measured tokens are lost in the rounding of the others."""
    log, low = (torch.where(share < LOST, side, torch.nan) for side in (found.log, found.low))
    return replace(found, log=log, low=low)


def evaluate_texts(
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
    names = ("value", "low", "high", "floor", "resolved")
    return [
        Evaluation(**{name: torch.stack([getattr(one, name) for one in found]) for name in names})
        for found in zip(*each, strict=True)
    ]


# ------------------------------------------------------------------------------------------------ what it amounts to


def _finding(gathered: _Collection, config: AblateConfig) -> AblateFinding:
    about = gathered.about
    if about is None:
        raise ConfigError("no model was run; an ablation needs at least one seed")
    ran = config.model_copy(update={"dtype": about.dtype, "model": about.model})
    words = definitions(config.measures) | ({DEFINITION: MEANING} if gathered.blamed else {})
    table = about.with_network(gathered.rows.table(ran, command="ablate", seeds=config.seeds))
    definition, fates = fates_of(table)
    network = gathered.headline
    return AblateFinding(
        subject=about.subject_value(
            seeds=len(config.seeds), texts=gathered.texts, tokens=gathered.tokens, notes=gathered.notes
        ),
        semantics=config.semantics,
        only_blocks=config.only_blocks,
        definition=definition,
        cuts=fates,
        definitions=words,
        split=config.split,
        has_error=not config.no_error,
        blame=sum_changes(join_batches(gathered.blamed), network) if gathered.blamed and network else None,
        mechanism=explain(gathered.apart, gathered.runs, network) if gathered.apart and network else None,
        suggest=rank_what_ifs(gathered.tried, network) if gathered.tried else None,
        remedies=_remedies(gathered) if gathered.remedied else None,
        table=table,
    )


def _remedies(gathered: _Collection) -> Remedies:
    """The remedies over all batches, with what to write."""
    network, forecast = gathered.forecast or (None, None)
    ranked = rank_remedies(gathered.remedied, network=network, forecaster=forecast)
    return with_recipes(ranked, gathered.written)


def fates_of(table: Table) -> tuple[str | None, tuple[Fate, ...]]:
    """The residual ratio that verdicts are about, and what becomes of every cut; neither if none was measured."""
    summary = layer_summary(table, by=("skip_scale",)).filter(pl.col("site") == "block")
    known = summary["definition"].unique(maintain_order=True).to_list()
    ratios = [name for name in known if name.startswith("residual_ratio[")]
    definition = next((name for name in WANTED if name in ratios), ratios[0] if ratios else None)
    if definition is None:
        return None, ()
    chosen = summary.filter(pl.col("definition") == definition)
    return definition, tuple(_fates(chosen))


def _fates(summary: pl.DataFrame) -> Iterator[Fate]:
    """The verdict on every curve, with where it starts and the last layer at which every text is resolved."""
    limits = Thresholds()
    for key, lines in summary.group_by(KEYS, maintain_order=True):
        rows = read_rows(lines.sort("layer"), LayerMean)
        found = judge_fall([_point(row) for row in rows], limits)
        after = [row for row in rows if found.last is None or row.layer > found.last]
        lost = next((row for row in after if row.log10_most is None), None)
        most = rows[-1].log10_most
        floor = None if not after or lost is not None or most is None else 10**most
        start = rows[0].log10_mean
        is_open = found.verdict == "undecided" and floor is not None
        facts = found.facts()
        is_low = found.value is not None and found.value <= limits.collapsed
        yield Fate(
            **dict(zip(KEYS, key, strict=True)),
            verdict=_fall(found.verdict),
            collapses={"undecided": None, "no numbers": None}.get(found.verdict, found.verdict in EQUAL),
            has_arrived=bool(after) or is_low,
            start=None if rows[0].share_resolved < 1 or start is None else 10**start,
            layer=found.last,
            value=found.value,
            log10_value=found.log10_value,
            floor_from=after[0].layer if after else None,
            all_texts=not after or after[0].share_resolved == 0,
            no_number_from=None if lost is None else lost.layer,
            at_most=floor,
            texts=rows[0].count,
            **{name: facts[name] for name in ("starts", "rate", "rate_is_bound", "equal_from", "pace")},
            log10_rate=found.log10_rate,
            log10_pace=found.log10_pace,
            leads_to=None if facts["leads_to"] is None else Leads(**facts["leads_to"]),
            dip=None
            if found.dip is None
            else CutDip(
                layer=found.dip.layer,
                value=number_of(found.dip.log10),
                log10_value=found.dip.log10,
                at_most=10**found.dip.log10_most,
                recovered=found.dip.recovered,
            ),
            would_decide=deciding_dtype(rows[-1].layer, floor or 0.0, limits.collapsed) if is_open else None,
        )


def _fall(verdict: str) -> Fall:
    """The verdict, as one of the words that a finding knows."""
    return next(one for one in FALLS if one == verdict)


def _point(row: LayerMean) -> RatioPoint:
    """A number if every text is above its floor, else what the mean is at most."""
    known = row.log10_mean if row.share_resolved == 1 else None
    return RatioPoint(layer=row.layer, log10=known, log10_most=row.log10_most)
