"""Certificates of a network on texts: what is proven of the residual of every layer, beside what is printed of it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.bounds.assumption import Assumption
from rankscope.bounds.certificate import COMPOSITE, FROBENIUS, Certificate, LayerBounds
from rankscope.bounds.certify import certify as certificate_of
from rankscope.bounds.enclosure import Enclosed
from rankscope.bounds.facts import Facts, LayerFacts, facts_of
from rankscope.bounds.facts_attention import AttentionFacts
from rankscope.bounds.norm_rules import view
from rankscope.bounds.sizes import SIZES, Interval, composite, ratios, stacked, tightened
from rankscope.bounds.theorem import Theorem
from rankscope.bounds.theorems import PRINTED, THEOREMS
from rankscope.core.numerics import threads_for
from rankscope.errors import ConfigError, Option
from rankscope.findings.asked import OWN
from rankscope.findings.certify import (
    CLOSE,
    COLLAPSED,
    NAMES,
    OURS,
    Bounds,
    CertifiedBlock,
    CertifyConfig,
    CertifyFinding,
    Definition,
    Failed,
    Printed,
    Standing,
    Text,
)
from rankscope.findings.subject import Apart
from rankscope.masks import parse_mask
from rankscope.network import Context, Network, Norm, Part, Spec
from rankscope.network.mask_notes import reading_graph, self_contained
from rankscope.network.surgery import check_variant
from rankscope.results.table import Row
from rankscope.sources.seen import Call
from rankscope.split.run import in_float64
from rankscope.studies.cuts import Cut, one_cut
from rankscope.studies.inputs import CallInputs, resolve_call
from rankscope.studies.rows import RowBuilder, definitions
from rankscope.studies.subjects import About, LiveSubject, Source, memory_words, subjects

Advance = Callable[[int, int | None], None]

FITTING: dict[str, tuple[str, ...]] = {
    COMPOSITE: ("dong-2.2", "dong-2.3", "dong-3.2-mlp", "dong-skip"),
    FROBENIUS: ("wu-masked",),
}
"""Theorems in print by the definition they bound; the first that is about such networks is taken."""

AUTHORS = {"dong2021": "Dong, Cordonnier, Loukas (2021)", "wu2024": "Wu et al. (2024)"}

NEARLY = 1e-6
"""A bound must be below the trivial one by more than what rounding of both explains."""

NO_METHOD, STATE, OTHERS = "nothing", "size of the state", "other sizes"
"""How a bound was found: not by the block, from the size of the state, or from other sizes of the residual, which
bound each other; the composite one is made of two others."""


def certify(
    model: Source | CertifyConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    config: CertifyConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> CertifyFinding:
    """What is proven of the residual of every layer of a network, text by text.

    Of a model, a tree of parts (with ``inputs``, the tokens that enter it), a recording, or a ``Spec`` with its
    ``tokens``: ``rs.certify(model, texts)``; or of the random network that a ``CertifyConfig`` or its fields describe:
    ``rs.certify(layers=6, variant="san+skip")``.

    The table has one row per text, layer and definition. Its numbers are natural logarithms, except ``value`` and
    ``floor``, which are those of the split pass; ``CertifyFinding.columns`` says what each column is.
    """
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    config, source, given = resolve_call(CertifyConfig, model, config, given, **fields)
    source, cut_as = _source_and_cut(source, config)
    check_variant(cut_as.variant or config.of_model["variant"])
    if config.mask not in (None, OWN):
        parse_mask(config.mask)
    found, notes = list[TextCertificate](), dict[str, None]()
    about, cut = None, None
    with memory_words("certificate", "lower ", Option("max_tokens")):
        tokens = config.choice("tokens") if isinstance(source, Spec) else config.tokens
        for subject in subjects(
            source, config, given, seeds=config.seeds, tokens=tokens, tokenizer=tokenizer
        ):
            about = about or subject.about
            cut = one_cut(subject.network, cut_as)
            for one in _texts(subject, cut, config, is_first=not found):
                found.append(one)
                if advance is not None:
                    advance(len(found), None if subject.total is None else subject.total * len(config.seeds))
            notes |= dict.fromkeys(map(str, subject.notes()))
    if not found or cut is None or about is None:
        raise ConfigError("no text was given; a certificate needs at least one")
    return finding_of(found, about, cut, config, list(notes))


def _source_and_cut(source: Any, config: CertifyConfig) -> tuple[Any, CertifyConfig]:
    """What is run, of a random network its ``Spec``; and the configuration by which the network is cut from it.

    A random network is drawn as a whole transformer with its norms, and then cut, so that variants of one seed share
    their weights.
    """
    if source is None:
        spec = Spec.of(**config.spec() | {"variant": "transformer", "mask": "full"})
        return spec, config.model_copy(update={"variant": config.choice("variant"), "norm": None})
    return source, config


@dataclass(frozen=True, kw_only=True, slots=True)
class CertifiedLayer:
    """One layer of one text in one definition. Bounds are natural logarithms, infinite where nothing is proven.

    Args:
        trivial: what the size of the state alone says; an upper bound that is not below it is vacuous.
        bound: the bound as printed; None where there is none, which also holds of the input.
        failing: assumptions of the printed bound that fail.
        measured_floor: of ``measured``, estimated from a perturbed run; infinite where nothing is known of it.
        enclosed_lower: of the computed state, minus what rounding may have moved it by: true of this input, and no
            explanation.
        enclosed_upper: the same, plus.
        no_lower: what kept the lower bound of the certificate from saying more.
        no_upper: the same of the upper bound.
    """

    layer: int
    definition: Definition
    lower: float
    measured: float
    upper: float
    trivial: float
    bound: float | None = None
    bound_name: str | None = None
    lower_by: str | None = None
    upper_by: str | None = None
    gain_lower: float | None = None
    gain_upper: float | None = None
    enclosed_lower: float | None = None
    enclosed_upper: float | None = None
    failing: tuple[Failed, ...] = ()
    no_lower: tuple[Failed, ...] = ()
    no_upper: tuple[Failed, ...] = ()
    error: float | None = None
    measured_floor: float = math.inf

    @property
    def lacking(self) -> tuple[Failed, ...]:
        """What fails: of the printed bound, then what kept the certificate from saying more."""
        return (*self.failing, *self.no_lower, *self.no_upper)

    @property
    def resolved(self) -> bool:
        """Whether what was measured is above its floor."""
        return self.measured > self.measured_floor

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
    def bound_proven(self) -> bool:
        """Whether there is a printed bound all of whose assumptions hold."""
        return self.bound is not None and not self.failing

    @property
    def bound_vacuous(self) -> bool:
        """Whether the printed bound, true or not, says no more than the size of the state does."""
        return self.bound is not None and not self.bound < self.trivial - NEARLY

    @property
    def has_collapsed(self) -> bool:
        """Whether the residual is proven to be a small part of the size of the state."""
        return self.upper == -math.inf or self.upper - self.trivial <= math.log(COLLAPSED)

    @property
    def is_close(self) -> bool:
        """Whether running the network encloses its residual so closely that all of it is near what was measured."""
        low, high, width = self.enclosed_lower, self.enclosed_upper, math.log1p(CLOSE)
        if low is None or high is None or not self.resolved:
            return False
        return high - low <= width and high - width <= self.measured <= low + width


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCertificate:
    """The certificate of one text of one network.

    Args:
        about: model, variant, mask and norm, as a table names them.
        lines: layer by layer, all definitions.
        explain: one entry per block, of the first text.
        left_out: tokens that the rule for special tokens would leave out of a scan.
    """

    about: Mapping[str, str]
    seed: int
    sample: int
    tokens: int
    lines: Sequence[CertifiedLayer]
    explain: tuple[CertifiedBlock, ...] = ()
    printed: Mapping[str, "OnText"]
    apart: Apart | None = None
    left_out: int = 0

    def of(self, definition: str) -> list[CertifiedLayer]:
        """The lines of one definition, by layer."""
        return [line for line in self.lines if line.definition == definition]


def _texts(
    subject: LiveSubject, cut: Cut, config: CertifyConfig, *, is_first: bool
) -> Iterator[TextCertificate]:
    """One text after the other, its padding cut out; constants are explained for the first text of all."""
    about = {
        "model": subject.about.model,
        "variant": cut.variant,
        "mask": cut.mask,
        "norm": cut.norm,
    }
    largest = max((parameter.numel() for parameter in subject.network.parameters()), default=0)
    with threads_for(largest):
        for fed in subject.feeds:
            for sample, x, context in fed.each():
                certificate = certificate_of(cut.network, x, context, joint_side=config.joint_side)
                facts = facts_of(cut.network, x, context, brackets=False)
                printed = printed_bounds(facts, config.certified, config.gamma)
                lines = lines_of(certificate, printed, config.certified, (x.shape[0], x.shape[1]))
                explain: tuple[CertifiedBlock, ...] = ()
                if is_first:
                    factors = norm_factors(cut.network, x, context)
                    explain = explain_blocks(facts, certificate, printed, lines, factors, config.gamma)
                keep = None if fed.keep is None else fed.keep[sample - fed.first]
                yield TextCertificate(
                    about=about,
                    seed=subject.seed,
                    sample=sample,
                    tokens=len(x),
                    lines=lines,
                    explain=explain,
                    printed=printed,
                    apart=_apart(cut, len(x)) if certificate.notes else None,
                    left_out=0 if keep is None else len(x) - int(keep.sum()),
                )
                is_first = False


def _apart(cut: Cut, tokens: int) -> Apart | None:
    """The groups of tokens that read nothing outside themselves in any layer."""
    graph = reading_graph(cut.network, tokens)
    if graph is None:
        return None
    groups = tuple(tuple(int(one) for one in group) for group in self_contained(graph))
    return Apart(mask=cut.mask, tokens=tokens, groups=groups)


# ------------------------------------------------------------------------------------------------- theorems in print


@dataclass(frozen=True, kw_only=True, slots=True)
class OnText:
    """One theorem in print on one text.

    Args:
        name: of the theorem, such as ``dong-2.3``.
        log_bounds: natural logarithms by layer, that of layer 0 is not used; empty if it is not about such networks.
        failing: by layer, the assumptions that fail up to there, the first one first; only that one if it is not
            about such networks.
        printed: where it is stated; None if it is not about such networks.
    """

    name: str
    log_bounds: tuple[float, ...] = ()
    failing: tuple[tuple[Failed, ...], ...] = ()
    printed: Printed | None = None


NO_THEOREM = OnText(name="")
"""Stands in where no theorem in print speaks of a definition."""


def printed_bounds(facts: Facts, names: Sequence[str], gamma: float) -> dict[str, OnText]:
    """The printed bound of each definition that has one. Facts are those of one text, without batch axes.

    Where no theorem is about such networks, the one that comes nearest says what it lacks.
    """
    found = {}
    for definition in names:
        fitting = FITTING.get(definition, ())
        theorems = [PRINTED[name](gamma) if name in PRINTED else THEOREMS[name] for name in fitting]
        if theorems:
            nearest = min(theorems, key=lambda one: len(_failing(one, one.structure(facts))))
            found[definition] = _on_text(nearest, facts)
    return found


def _on_text(theorem: Theorem, facts: Facts) -> OnText:
    layers = range(1, len(facts.layers) + 1)
    if not theorem.covers(facts):
        first = _failing(theorem, theorem.structure(facts))[:1]
        return OnText(name=theorem.name, failing=((), *(first for _ in layers)))
    return OnText(
        name=theorem.name,
        log_bounds=tuple(float(log) for log in theorem.log_bound(facts)),
        failing=((), *(_failing(theorem, theorem.assumptions(_up_to(facts, layer))) for layer in layers)),
        printed=Printed(
            name=theorem.name,
            authors=_authors(theorem),
            where=theorem.ref.where,
            gamma=theorem.gamma,
        ),
    )


def _up_to(facts: Facts, layer: int) -> Facts:
    """The same of the first blocks only, so that an assumption fails at the layer where it first does."""
    return replace(
        facts,
        layers=facts.layers[:layer],
        log_value_products=facts.log_value_products[: layer + 1],
        trivial={name: values[: layer + 1] for name, values in facts.trivial.items()},
    )


def _failing(theorem: Theorem, assumptions: Sequence[Assumption]) -> tuple[Failed, ...]:
    return tuple(
        failed_assumption(theorem.name, one, paper=f"{theorem.ref.where} of {_authors(theorem)}")
        for one in assumptions
        if not _holds(one)
    )


def _authors(theorem: Theorem) -> str:
    return AUTHORS.get(theorem.ref.key, theorem.ref.key)


def _holds(one: Assumption) -> bool:
    """Whether an assumption holds, everywhere if it is about several."""
    return bool(torch.as_tensor(one.holds).all())


def failed_assumption(of: str, one: Assumption, *, paper: str | None = None) -> Failed:
    """The assumption as a typed value; a number that is NaN is none."""
    found, limit = (None if math.isnan(float(value)) else float(value) for value in (one.value, one.limit))
    return Failed(of=of, name=one.name, found=found, limit=limit, relation=one.relation, paper=paper)


# --------------------------------------------------------------------------------------------------------- one text


def lines_of(
    certificate: Certificate,
    printed: Mapping[str, OnText],
    names: Sequence[Definition],
    shape: tuple[int, int],
) -> list[CertifiedLayer]:
    """The lines of one text, whose certificate has no batch axes: layer by layer, in the order of the definitions.

    ``shape`` is that of its tokens, number by width.
    """
    found = []
    for layer in certificate.layers:
        trivial = trivial_of(layer, shape)
        found += [_line(layer, name, printed.get(name, NO_THEOREM), trivial[name]) for name in names]
    return found


def trivial_of(layer: LayerBounds, shape: tuple[int, int]) -> dict[str, float]:
    """What the sizes of the tokens alone say: a size in one norm bounds the residual in every other one too."""
    most = stacked(layer.trivial)
    interval = tightened(Interval(lower=torch.full_like(most, -torch.inf), upper=most), ratios(*shape))
    both = composite(interval, shape[0])[1]
    found = dict(zip(SIZES, interval.upper.tolist(), strict=True))
    return found | {COMPOSITE: min(float(layer.trivial[COMPOSITE]), float(both))}


def _line(layer: LayerBounds, name: Definition, printed: OnText, trivial: float) -> CertifiedLayer:
    at, lower, upper = layer.layer, float(layer.lower[name]), float(layer.upper[name])
    no_lower, no_upper = (
        tuple(failed_assumption(OURS, one) for one in those if not _holds(one))
        for those in (layer.no_lower, layer.no_upper)
    )
    has_bound = 0 < at < len(printed.log_bounds)
    upper_by = _method(layer, layer.upper_by.get(name), upper)
    if upper_by is not None and not upper < trivial - NEARLY:
        upper_by = STATE  # a bound that is no better than the size of the state is that size
    return CertifiedLayer(
        layer=at,
        definition=name,
        lower=lower,
        measured=float(layer.measured[name]),
        upper=upper,
        trivial=trivial,
        bound=printed.log_bounds[at] if has_bound else None,
        bound_name=printed.name if has_bound else None,
        lower_by=_method(layer, layer.lower_by.get(name), lower),
        upper_by=upper_by,
        gain_lower=_number(layer.gain_lower.get(name)),
        gain_upper=_number(layer.gain_upper.get(name)),
        enclosed_lower=_number(layer.enclosed_lower.get(name)),
        enclosed_upper=_number(layer.enclosed_upper.get(name)),
        failing=printed.failing[at] if 0 < at < len(printed.failing) else (),
        no_lower=no_lower,
        no_upper=no_upper,
        error=_number(layer.error),
        measured_floor=float(layer.measured_floor.get(name, math.inf)),
    )


def _method(layer: LayerBounds, place: Tensor | None, bound: float) -> str | None:
    """The name that the index points to; where the block's own rule gives nothing, a bound comes from other sizes."""
    name = NO_METHOD if place is None else layer.methods[int(place)]
    if layer.layer == 0 or math.isinf(bound):
        return None
    return OTHERS if name == NO_METHOD else name


# -------------------------------------------------------------------------------------------------------- all texts


def finding_of(
    found: Sequence[TextCertificate], about: About, cut: Cut, config: CertifyConfig, notes: Sequence[str]
) -> CertifyFinding:
    """The finding: rows of every text, what is proven of each of them, and of all together."""
    rows = RowBuilder()
    for one in found:
        _add_rows(rows, one)
    names, seeds = config.certified, len({one.seed for one in found})
    table = about.with_network(rows.table(config, command="certify", seeds=config.seeds))
    shown = {name: one.printed for name, one in found[0].printed.items() if one.printed is not None}
    layers = sorted({line.layer for line in found[0].lines})
    return CertifyFinding(
        subject=about.cut_value(
            cut, seeds=seeds, texts=len(found), tokens=sum(one.tokens for one in found), notes=notes
        ),
        gamma=config.gamma,
        standings={name: standing_of([one.of(name) for one in found]) for name in names},
        certificate=tuple(
            Text(
                text=one.sample,
                seed=one.seed,
                tokens=one.tokens,
                definitions={name: standing_of([one.of(name)]) for name in names},
            )
            for one in found
        ),
        bounds=tuple(
            weakest([one.of(name)[place] for one in found]) for name in names for place in range(len(layers))
        ),
        printed={name: shown[name] for name in names if name in shown},
        explain=found[0].explain,
        left_out=sum(one.left_out for one in found),
        apart=tuple(dict.fromkeys(one.apart for one in found if one.apart is not None)),
        definitions=definitions([name for name in NAMES if name in names]),
        table=table,
    )


def standing_of(texts: Sequence[Sequence[CertifiedLayer]]) -> Standing:
    """What the lines of one definition, from the input to the last layer, say of every text: the weakest statements."""
    first = texts[0]
    last = first[-1].layer
    lower = min(
        (_last_with_lower(lines), not _why(lines, _last_with_lower(lines), "no_lower"), at)
        for at, lines in enumerate(texts)
    )
    upper = min(
        (_last_with_upper(lines), not _why(lines, _last_with_upper(lines), "no_upper"), at)
        for at, lines in enumerate(texts)
    )
    collapses = [_collapse(lines) for lines in texts]
    known = [one for one in collapses if one is not None]
    measured = [_relative(lines[-1].measured, lines[0].measured) for lines in texts]
    return Standing(
        definition=first[0].definition,
        layers=last,
        lower=_least([_relative(lines[-1].lower, lines[0].upper) for lines in texts]),
        measured=_finite_or_none(sum(measured) / len(measured)),
        resolved=all(lines[0].resolved and lines[-1].resolved for lines in texts),
        upper=_most([_relative(lines[-1].upper, lines[0].lower) for lines in texts]),
        upper_vacuous=any(lines[-1].upper_vacuous for lines in texts),
        collapse_layer=max(known) if len(known) == len(collapses) else None,
        lower_until=lower[0],
        lower_there=_least([_relative(lines[lower[0]].lower, lines[0].upper) for lines in texts]),
        upper_until=upper[0],
        upper_there=_most([_relative(lines[upper[0]].upper, lines[0].lower) for lines in texts]),
        proven_until=min(
            max((line.layer for line in lines if not line.vacuous), default=0) for lines in texts
        ),
        enclosed_until=min(
            max(0, next((line.layer - 1 for line in lines if not line.is_close), last)) for lines in texts
        ),
        why_lower=_why(texts[lower[2]], lower[0], "no_lower"),
        why_upper=_why(texts[upper[2]], upper[0], "no_upper"),
    )


def _last_with_lower(lines: Sequence[CertifiedLayer]) -> int:
    """The last layer up to which every layer has a lower bound."""
    return max(0, next((line.layer - 1 for line in lines if line.lower_vacuous), lines[-1].layer))


def _last_with_upper(lines: Sequence[CertifiedLayer]) -> int:
    """The last layer with an upper bound below the size of the state."""
    return max((line.layer for line in lines if not line.upper_vacuous), default=0)


def _collapse(lines: Sequence[CertifiedLayer]) -> int | None:
    """The first layer, after the input, from which on every state is proven to have collapsed."""
    low = [line.has_collapsed for line in lines]
    return next((line.layer for at, line in enumerate(lines) if line.layer and all(low[at:])), None)


def _why(lines: Sequence[CertifiedLayer], layer: int, side: str) -> Failed | None:
    """What a side lacked in the block after that layer."""
    return next(
        (getattr(line, side)[0] for line in lines if line.layer == layer + 1 and getattr(line, side)), None
    )


def _relative(bound: float, of: float) -> float:
    """A difference of logarithms in which nothing proven stays nothing proven."""
    return bound if math.isinf(bound) else bound - of if math.isfinite(of) else math.nan


def _least(bounds: Sequence[float]) -> float | None:
    """The weakest of the lower bounds; one that is lost (NaN) leaves nothing to say of all of them."""
    return None if any(map(math.isnan, bounds)) else min(bounds)


def _most(bounds: Sequence[float]) -> float | None:
    """The same of upper bounds."""
    return None if any(map(math.isnan, bounds)) else max(bounds)


def weakest(lines: Sequence[CertifiedLayer]) -> Bounds:
    """One layer over all texts: the least lower bound, the largest upper one, the mean logarithm of the measured."""
    first = lines[0]
    lowest, highest = min(lines, key=lambda line: line.lower), max(lines, key=lambda line: line.upper)
    bounds = [line.bound for line in lines if line.bound is not None]
    measured = [line.measured for line in lines]
    once: dict[tuple[str, str], Failed] = {}
    for one in (one for line in lines for one in line.lacking):
        once.setdefault((one.of, one.name), one)  # with the numbers of the first text in which it fails
    return Bounds(
        definition=first.definition,
        layer=first.layer,
        lower=lowest.lower,
        measured=_finite_or_none(sum(measured) / len(measured)),
        measured_low=_finite_or_none(min(measured)),
        measured_high=_finite_or_none(max(measured)),
        resolved=all(line.resolved for line in lines),
        upper=highest.upper,
        trivial=max(line.trivial for line in lines),
        bound=max(bounds) if len(bounds) == len(lines) else None,
        bound_name=first.bound_name,
        bound_proven=all(line.bound_proven for line in lines),
        bound_vacuous=any(line.bound_vacuous for line in lines),
        lower_vacuous=lowest.lower_vacuous,
        upper_vacuous=any(line.upper_vacuous for line in lines),
        vacuous=any(line.vacuous for line in lines),
        lower_by=lowest.lower_by,
        upper_by=highest.upper_by,
        lacking=tuple(once.values()),
    )


def _add_rows(rows: RowBuilder, one: TextCertificate) -> None:
    about: Row = {**one.about, "seed": one.seed, "sample": one.sample, "tokens": one.tokens, "site": "block"}
    for line in one.lines:
        columns: Row = {
            "layer": line.layer,
            "measure": line.definition.split("[")[0],
            "definition": line.definition,
            "value": _exp(line.measured),
            "log10_value": _finite(line.measured / math.log(10)),
            "floor": _finite(_exp(line.measured_floor)),
            "log10_floor": _finite(line.measured_floor / math.log(10)),
            "resolved": line.resolved,
            "bound": _finite(line.bound),
            "bound_name": line.bound_name,
            "bound_proven": line.bound_proven,
            "lower": _finite(line.lower),
            "measured": _finite(line.measured),
            "upper": _finite(line.upper),
            "upper_is_zero": _is_zero(line.upper),
            "trivial": _finite(line.trivial),
            "vacuous": line.vacuous,
            "lower_vacuous": line.lower_vacuous,
            "upper_vacuous": line.upper_vacuous,
            "bound_vacuous": line.bound_vacuous,
            "assumptions": "; ".join(f"{failed.of}: {failed.words}" for failed in line.lacking),
            "lower_by": line.lower_by,
            "upper_by": line.upper_by,
            "gain_lower": _finite(line.gain_lower),
            "gain_upper": _finite(line.gain_upper),
            "gain_upper_is_zero": _is_zero(line.gain_upper),
            "enclosed_lower": _finite(line.enclosed_lower),
            "enclosed_upper": _finite(line.enclosed_upper),
            "enclosed_upper_is_zero": _is_zero(line.enclosed_upper),
            "error": _finite(line.error),
        }
        rows.add(1, {**about, **columns})


# ------------------------------------------------------------------------------------- what printed bounds are made of


def explain_blocks(
    facts: Facts,
    certificate: Certificate,
    printed: Mapping[str, OnText],
    lines: Sequence[CertifiedLayer],
    norms: Sequence[Sequence[float]],
    gamma: float,
) -> tuple[CertifiedBlock, ...]:
    """One entry per block; ``norms`` are Lipschitz factors of its norms on this text.

    ``cubic`` is the K with which ``rho' <= K rho^3`` would be an equality.
    """
    logs = [float(layer.measured[COMPOSITE]) for layer in certificate.layers]
    floors = [float(layer.measured_floor.get(COMPOSITE, math.inf)) for layer in certificate.layers]
    real = [log > floor for log, floor in zip(logs, floors, strict=True)]
    return tuple(
        CertifiedBlock(
            layer=layer,
            residual=_finite_or_none(logs[layer - 1]),
            residual_resolved=real[layer - 1],
            cubic=_finite_or_none(logs[layer] - 3 * logs[layer - 1])
            if math.isfinite(logs[layer - 1])
            else None,
            cubic_resolved=real[layer - 1] and real[layer],
            mlp=tuple(float(one.l2.exp()) for one in block.mlps),
            norm=tuple(norms[layer - 1]),
            shape=block.shape,
            first_failing=_first(layer, printed, lines),
            **asdict(_attention(block.attentions, block, gamma)),
        )
        for layer, block in enumerate(facts.layers, start=1)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Constants:
    """What printed bounds are made of in the only attention of a block, by the fields of ``CertifiedBlock``."""

    heads: int
    d_qk: int | None = None
    gamma: float | None = None
    value_norms: tuple[float, ...] = ()
    beta: float | None = None
    query_key_norms: tuple[float, ...] = ()
    K: float | None = None
    critical_radius: float | None = None
    theorem_a: float | None = None


def _attention(found: tuple[AttentionFacts, ...], block: LayerFacts, gamma: float) -> _Constants:
    """Constants of the only attention of a block; of none where there are several."""
    if len(found) != 1:
        return _Constants(heads=sum(one.heads for one in found))
    one = found[0]
    known = _Constants(
        heads=one.heads, d_qk=one.head_dim, gamma=gamma, value_norms=_as_floats(one.value["spectral"])
    )
    if one.beta is None or one.query_key is None or one.scale is None:
        return known
    scaled, slopes = float(one.beta), sum(float(mlp.composite) for mlp in block.mlps)
    constant = _log(4 * gamma * one.heads * scaled) + slopes
    spread = float((one.query_key["spectral"] * one.value["spectral"]).sum(dim=-1)) / 4
    # Theorem A speaks of attention alone, where all keys are read and logits hold nothing but content.
    is_plain = block.shape == "attention" and not one.extras and one.mask.is_full
    return replace(
        known,
        beta=scaled / abs(one.scale),
        query_key_norms=tuple(norm / abs(one.scale) for norm in _as_floats(one.query_key["spectral"])),
        K=constant,
        critical_radius=-constant / 2,
        theorem_a=_log(spread) if is_plain else None,
    )


@torch.no_grad()
def norm_factors(network: Network, x: Tensor, context: Context) -> list[list[float]]:
    """For every block, by how much each of its norms enlarges distances of the tokens ``tokens dim`` at most.

    That is ``max |gain| / min_i s_i`` with ``s_i`` what token ``i`` is divided by.
    """
    found = []
    state = x.double()
    for block in map(in_float64, network.blocks):
        with _norm_inputs(block) as seen:
            state = block(state, context)
        found.append([_factor(norm, entered) for norm, entered in seen])
    return found


@contextmanager
def _norm_inputs(block: Part) -> Iterator[list[tuple[Norm, Tensor]]]:
    """What enters every norm of a block while it runs once, in order."""
    seen: list[tuple[Norm, Tensor]] = []

    def note(part: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(part, Norm):
            seen.append((part, inputs[0]))

    handles = [part.register_forward_pre_hook(note) for part in block.modules() if isinstance(part, Norm)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _factor(norm: Norm, x: Tensor) -> float:
    normed = view(norm, Enclosed(x=x, error=x.new_zeros(x.shape[:-1])))
    least = float(normed.range()[0])
    return float(normed.weight[1]) * math.exp(-least) if least > -math.inf else math.inf


def _first(layer: int, printed: Mapping[str, OnText], lines: Sequence[CertifiedLayer]) -> Failed | None:
    """The first assumption of a printed bound that fails in the block, or else what the certificate lacked there."""
    failing = [one.failing[layer] for one in printed.values() if len(one.log_bounds) > layer]
    ours = ((*line.no_lower, *line.no_upper) for line in lines if line.layer == layer)
    return next((those[0] for those in (*failing, *ours) if those), None)


def _as_floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values.reshape(-1))


def _number(value: Tensor | None) -> float | None:
    return None if value is None else float(value)


def _finite_or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _is_zero(log: float | None) -> bool | None:
    """Whether a bound is zero, which tells its null in a table from that of a bound that proves nothing."""
    return None if log is None else log == -math.inf


def _exp(log: float) -> float | None:
    return None if math.isnan(log) or log > 709 else math.exp(log)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
