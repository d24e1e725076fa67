"""Diagnosis of a model: scan, wiring laws, mechanism, three steps of training, remedies; each where it can be had.

One set of batches serves all parts. A part that cannot be had (no tree, no loss, no memory) is named in the finding
and never guessed; the others go on.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankscope.errors import (
    ConfigError,
    NotTranslated,
    NotUnderstood,
    Option,
    Piece,
    RankscopeError,
    ShapeError,
    is_out_of_memory,
)
from rankscope.findings.diagnose import DiagnoseConfig, DiagnoseFinding, Start
from rankscope.findings.laws import Laws
from rankscope.findings.mechanism import Cause, Mechanism
from rankscope.findings.remedies import Kind, NotProbed, Probe, Remedies
from rankscope.findings.scan import ScanConfig, ScanFinding
from rankscope.findings.scan.entries import Entry
from rankscope.findings.stuck import Fit, trivial
from rankscope.findings.trivial import Sizes
from rankscope.findings.verdict import UNIT
from rankscope.probe.gradients_loss import LossFn
from rankscope.probe.graft import Stock, stock_of
from rankscope.probe.run import own_words
from rankscope.probe.training_loss import chosen_loss
from rankscope.results.table import Columns, Table, provenance
from rankscope.sources import Batch, Layout, Loaded, Seen, load_drawn
from rankscope.sources.arguments import tensors_in
from rankscope.sources.batch import POSITIONAL
from rankscope.sources.given import not_a_model
from rankscope.sources.layout import check_order
from rankscope.sources.live import run_batch
from rankscope.sources.operations import Line
from rankscope.sources.operations.lines import raising_line
from rankscope.sources.roles import is_norm, leaf
from rankscope.sources.safety import first_line
from rankscope.sources.seen import Call
from rankscope.sources.stream_layout import without_idle
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import Blocks
from rankscope.sources.taps import unwrapped
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation
from rankscope.sources.writes import check_inputs_stay
from rankscope.studies.inputs import (
    CallInputs,
    MeasuredBatches,
    asked_of,
    chosen_inputs,
    found_layout,
    recording_of,
    resolve_call,
)
from rankscope.studies.mechanism import mechanism
from rankscope.studies.probe import probe_model
from rankscope.studies.recipes import bias_paths, with_recipes, written_of
from rankscope.studies.remedies import graft_prober, remedies, tree_prober
from rankscope.studies.rows import RowBuilder
from rankscope.studies.scan import load_loss, scan_batches
from rankscope.studies.subjects import EmbeddedTexts, feeds_of, memory_words
from rankscope.studies.trial import trial, with_trial
from rankscope.wiring import laws
from rankscope.wiring.culprits import declared_line
from rankscope.wiring.fresh import is_fresh
from rankscope.wiring.rest import at_rest
from rankscope.wiring.skips import line_of_factor, line_of_skip
from rankscope.wiring.statements import changing_line
from rankscope.wiring.subject import shortened

Advance = Callable[[int, int | None], None]
"""Told after every part how many of how many are done."""

MOST_BATCHES = 4
"""Batches that are read; means over some dozens of texts settle quickly."""

MOST_WORK = 3e10
"""Tokens times parameters of a pass on which causes are looked for and remedies are tried, about 256 tokens of a model
of BERT-base's size. They take some hundred passes in float64 and in training, where a scan takes one; what makes tokens
equal is seen in a few texts."""

LEAST_TEXTS = 2
"""So many texts are looked at in any case."""

MOST_WORK_AT_LEAST = 1e10
"""So much work may two texts be, or they are cut, to ``LEAST_TOKENS`` at the least: the probe of every remedy trains a
copy of the whole model."""

LEAST_TOKENS = 24

ADVICE = "ask for a smaller batch size or fewer tokens per text, or leave out parts with --only"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Patient:
    """The model and everything that all parts of the diagnosis use."""

    ready: Loaded
    source: object
    layout: Layout
    chosen: MeasuredBatches
    batches: tuple[Batch, ...]
    few: tuple[Batch, ...]
    """The texts on which causes are looked for and remedies are tried; of a large model less than all."""

    given: CallInputs
    config: DiagnoseConfig
    blocks: Blocks | None
    """The blocks as the user named them, or those that run where others of their list do not."""

    loss: LossFn | None
    fresh: bool

    @property
    def model(self) -> nn.Module:
        return unwrapped(self.ready.model)

    @property
    def mask_token(self) -> int | None:
        found: int | None = getattr(self.ready.tokenizer, "mask_token_id", None)
        return found


def diagnose(
    model: str | os.PathLike[str] | nn.Module | Loaded | Seen | DiagnoseConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    loss: LossFn | str | None = None,
    config: DiagnoseConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> DiagnoseFinding:
    """What is wrong with a model, in which block, on which line of its code, and what would change it.

    ``model`` and what it reads are those of ``scan``; ``loss`` is a function of model and batch. The model is left as
    it was: weights, mode, gradients, hooks and random states.
    """
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    named = {"loss": loss} if isinstance(loss, str) else {}
    config, model, given = resolve_call(DiagnoseConfig, model, config, given, **fields, **named)
    own = load_loss(config.loss) if config.loss is not None else cast("LossFn | None", loss)
    with memory_words("diagnosis", ADVICE):
        try:
            patient = _patient(model, config, given, tokenizer, own)
            if own is not None:
                patient = replace(patient, loss=_fitting(own, patient))
            return _diagnosed(patient, advance)
        except ShapeError as error:
            alone = _by_laws_alone(model, config, given, own, first_line(error))
            if alone is None or not alone.causes:
                raise
            return alone


def _by_laws_alone(
    model: object, config: DiagnoseConfig, given: CallInputs, loss: LossFn | None, obstacle: str
) -> DiagnoseFinding | None:
    """The laws of a model whose texts cannot be told apart, so that nothing can be measured: a law may say why.

    None where the laws were not asked for, or cannot be tried either.
    """
    model, given = asked_of(model, given)
    module = model.model if isinstance(model, Loaded) else model
    if "laws" not in config.only or not isinstance(module, nn.Module) or given.inputs is None:
        return None
    try:
        wired = laws(module, given.inputs, loss=loss)
    except RankscopeError:
        return None
    return DiagnoseFinding(
        model=type(module).__name__,
        fresh=is_fresh(module),
        texts=0,
        verdict=None,
        laws=wired.results,
        obstacle=obstacle,
        asked=config.only,
        table=_law_rows(wired, type(module).__name__).table(config, command="diagnose", seeds=[config.seed]),
    )


def _law_rows(wired: Laws, model: str) -> RowBuilder:
    """The numbers of the laws as rows, where there are no others."""
    rows = RowBuilder()
    for one in wired.results:
        about: Columns = {"model": model, "layer": one.block, "measure": f"law_{one.name.replace('-', '_')}"}
        numbers: Columns = {"value": one.number, "floor": one.floor}
        rows.add(1, {**about, "definition": f"law[{one.name}]", **numbers})
    return rows


def _patient(
    model: object, config: DiagnoseConfig, given: CallInputs, tokenizer: Any, loss: LossFn | None
) -> _Patient:
    model, given = asked_of(model, given)
    if not isinstance(model, str | os.PathLike | nn.Module | Loaded):
        raise not_a_model(model)
    if isinstance(model, Loaded):
        ready = model
    else:
        place = {} if isinstance(model, nn.Module) else {"device": config.device}
        # A loss needs the head of the model, which a checkpoint may not have: it is drawn where it is asked for.
        wants_head = config.weights == "initial" or config.probe or config.try_
        ready = load_drawn(
            model,
            weights=config.weights,
            seed=config.seed,
            with_head=wants_head,
            dtype=config.dtype,
            **place,
            **config.loading,
        )
    if tokenizer is not None:
        ready = replace(ready, tokenizer=tokenizer)
    layout = found_layout(unwrapped(ready.model), config.blocks, given)
    chosen = chosen_inputs(ready, config, given, layout, seed=config.seed)
    batches = tuple(islice(chosen.batches, MOST_BATCHES))
    if not batches:
        raise ConfigError("no text was given; a diagnosis needs at least one")
    if any(value.numel() == 0 for value in batches[0].inputs.values()):
        raise ConfigError("the batch holds no tokens; give two texts of three tokens or more")
    _check_texts(batches, config)
    with own_words(ready.model, batches[0]):
        check_inputs_stay(unwrapped(ready.model), batches[0])
        check_order(unwrapped(ready.model), layout, batches[0])
        running = without_idle(unwrapped(ready.model), layout, batches[0])
        layout, has_idle = running, running != layout
        layout = in_one_stream(unwrapped(ready.model), layout, batches[0])
    return _Patient(
        ready=ready,
        source=model,
        layout=layout,
        chosen=replace(chosen, batches=iter(batches), read=chosen.read or chosen.batches),
        batches=batches,
        few=_few(unwrapped(ready.model), batches),
        given=given,
        config=config,
        blocks=layout.stacks[0].blocks if has_idle and len(layout.stacks) == 1 else config.blocks,
        loss=loss,
        fresh=is_fresh(unwrapped(ready.model)),
    )


def _check_texts(batches: Sequence[Batch], config: DiagnoseConfig) -> None:
    """An error where the laws are to be tried beside other parts on one text alone.

    The laws alone are tried on one text, and say which of them need a second one.
    """
    if sum(len(batch) for batch in batches) > 1 or "laws" not in config.only or config.only == ("laws",):
        return
    more: list[Piece] = [" with ", Option("max_texts", LEAST_TEXTS)] if config.max_texts == 1 else []
    raise ConfigError(
        "a diagnosis needs a batch of two texts or more, found one, in which texts that read each other cannot be "
        "seen; give a second text",
        *more,
        ", or ask for what one text suffices for: ",
        Option("only", tuple(one for one in config.only if one != "laws")),
        " or ",
        Option("only", ("laws",)),
    )


def _fitting(loss: LossFn, patient: _Patient) -> LossFn:
    """The loss as it can be called: with the model and a batch, or with what the model itself takes.

    An error where it takes neither, or is no number although the model puts out numbers.
    """
    model, batch = patient.model, patient.few[0]
    failures = list[tuple[bool, str]]()
    for form in (_as_batch, _as_named, _as_inputs):
        answers = list[None]()
        answered = model.register_forward_hook(lambda *_, answers=answers: answers.append(None))
        try:
            with at_rest(model):
                found: object = loss(model, form(model, batch))
        except Exception as error:
            if is_out_of_memory(error):
                raise
            line = raising_line(error)
            where = "" if line is None else f" at {line.told.file}:{line.told.number}"
            failures.append(
                (bool(answers), f"{type(error).__name__}{where}: {first_line(error).rstrip('.')}")
            )
            continue
        finally:
            answered.remove()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ConfigError(
                f"the loss returned {_described(found)} and not one number; return a tensor with one"
            )
        if not bool(found.isfinite()) and _is_finite(model, batch):
            raise ConfigError(
                f"the loss is {float(found)} at once, although the model puts out numbers; give a loss that is a "
                "number, or leave it out"
            )
        return loss if form is _as_batch else _calling(loss, form)
    has_answer, told = max(failures, key=lambda one: one[0])
    if has_answer:  # it was called as it wants to be, and failed by itself
        raise ConfigError(f"the loss failed with {told}; mend it, or leave it out")
    raise ConfigError(
        f"the loss failed with {told}; it is called with the model and a batch, as in model(**batch.inputs), or with "
        "what the model takes"
    )


def _described(found: object) -> str:
    if not isinstance(found, Tensor):
        return f"{type(found).__name__}"
    return f"a tensor of {' x '.join(map(str, found.shape)) or 'no'} numbers"


def _calling(loss: LossFn, form: Callable[[nn.Module, Batch], Any]) -> LossFn:
    return lambda model, batch: loss(model, form(model, batch))


def _as_batch(_: nn.Module, batch: Batch) -> Batch:
    return batch


def _as_named(model: nn.Module, batch: Batch) -> Batch:
    """The batch with a name for the argument that was given by position, so that ``model(**batch.inputs)`` runs."""
    if POSITIONAL not in batch.inputs:
        return batch
    names = [
        name
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    first = next((name for name in names if name not in batch.inputs), POSITIONAL)

    inputs = {name or first: value for name, value in batch.inputs.items()}
    axes = batch.text_axes
    renamed = None if axes is None else {name or first: axis for name, axis in axes.items()}
    return replace(batch, inputs=inputs, text_axes=renamed, form=None)


def _as_inputs(_: nn.Module, batch: Batch) -> Any:
    """What the model takes: the one tensor of a call, or all of them by name."""
    return next(iter(batch.inputs.values())) if len(batch.inputs) == 1 else dict(batch.inputs)


def _is_finite(model: nn.Module, batch: Batch) -> bool:
    with at_rest(model):
        found = [one for one in tensors_in(run_batch(model, batch)) if one.is_floating_point()]
    return all(bool(one.isfinite().all()) for one in found)


def _few(model: nn.Module, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    """The batches as they are, or of a large model as many texts of the first, and as many of their tokens, as a
    diagnosis has time for."""
    weights = sum(one.numel() for one in model.parameters())
    first = batches[0]
    tokens = max((math.prod(one.shape[:2]) for one in first.inputs.values() if one.ndim > 1), default=0)
    if not tokens or not len(first) or weights * tokens <= MOST_WORK:
        return batches
    few = first.first(max(LEAST_TEXTS, int(MOST_WORK / weights * len(first) / tokens)))
    long = tokens // len(first)
    room = int(MOST_WORK_AT_LEAST / weights / LEAST_TEXTS)
    if long <= max(room, LEAST_TOKENS):
        return (few,)
    room, pair = max(room, LEAST_TOKENS), few.first(LEAST_TEXTS)
    short = shortened(model, pair, LEAST_TEXTS, room)
    if short is pair:
        return (pair,)
    kept = pair.is_token
    kept = None if kept is None or kept.shape[1] != long else kept[:LEAST_TEXTS, :room]
    return (replace(short, is_token=kept, labels=pair.labels[:LEAST_TEXTS]),)


# ------------------------------------------------------------------------------------------------------------ the parts


def _diagnosed(patient: _Patient, advance: Advance | None) -> DiagnoseFinding:
    config, done = patient.config, 0
    parts = len(config.only) + 1

    def step() -> None:
        nonlocal done
        done += 1
        if advance is not None:
            advance(done, parts)

    is_scanned = config.only != ("laws",)  # the laws need no numbers of layers
    scanned = _scan(patient, patient.ready, patient.batches) if is_scanned else None
    step()
    wired = _laws(patient) if "laws" in config.only else None  # looks at the mode that the model is in
    step()
    with _in_evaluation(patient.model):
        tree, obstacle = _tree(patient) if "mechanism" in config.only else (None, "")
        found, fed = None, None
        if tree is not None:
            fed = next(feeds_of(tree, iter(patient.few[:1]), patient.blocks))
            found, obstacle = _mechanism(tree, fed)
        step()
        fell = scanned is not None and scanned.verdict.verdict in ("collapsing", "collapsed")
        is_ill = fell or bool(found is not None and found.causes)
        probe = _probe(patient) if "probe" in config.only else None
        treated = None
        if tree is not None and fed is not None and (is_ill or (isinstance(probe, Probe) and probe.stuck)):
            treated = _treated(patient, tree, fed, found)
        step()
    if "scan" not in config.only and wired is None and found is None and not isinstance(probe, Probe):
        raise _nothing_run(probe, obstacle)
    return DiagnoseFinding(
        model=patient.ready.name,
        fresh=patient.fresh,
        texts=sum(len(batch) for batch in patient.batches),
        verdict=scanned.verdict if scanned is not None and "scan" in config.only else None,
        ratios=() if scanned is None else _ratios(scanned),
        laws=() if wired is None else wired.results,
        copies_of_torch=_copies_of_torch(patient, wired),
        translated=tree is not None,
        obstacle=obstacle,
        mechanism=None if found is None else _with_skips(patient, _with_lines(found, treated)),
        start=_start(patient) if is_ill and not patient.fresh else None,
        probe=probe if isinstance(probe, Probe) else None,
        no_probe=probe if isinstance(probe, NotProbed) else None,
        losses=_trivial(patient, probe),
        remedies=() if treated is None else treated.advised,
        treatment=treated,
        asked=config.only,
        table=_table(patient, scanned, wired),
    )


def _nothing_run(probe: Probe | NotProbed | None, obstacle: str) -> ConfigError:
    """The error where none of the parts that were asked for could be had."""
    said = [f"the model could not be read as a tree of parts: {obstacle}"] if obstacle else []
    said += (
        [probe.sentence[0].lower() + probe.sentence[1:].rstrip(".")] if isinstance(probe, NotProbed) else []
    )
    return ConfigError(f"{'; '.join(said)}; ask for other parts with ", Option("only", "scan,laws"))


def _table(patient: _Patient, scanned: ScanFinding | None, wired: Laws | None) -> Table:
    """The rows of the scan; without one the numbers of the laws."""
    config, name = patient.config, patient.ready.name
    if scanned is None:
        rows = _law_rows(wired or Laws(results=()), name)
        table = rows.table(config, command="diagnose", seeds=[config.seed])
    else:
        table = replace(scanned.table, command="diagnose", sections={})
    own = provenance(config.model_dump(mode="json") | {"model": name}, seeds=[config.seed])
    return replace(table, provenance=own)


def _scan(patient: _Patient, ready: Loaded, batches: Sequence[Batch]) -> ScanFinding:
    shared = set(ScanConfig.model_fields) & set(DiagnoseConfig.model_fields) - {"loss"}
    config = ScanConfig(**{name: getattr(patient.config, name) for name in shared})
    return scan_batches(ready, patient.layout, replace(patient.chosen, batches=iter(batches)), config)


def _ratios(scanned: ScanFinding) -> tuple[Entry, ...]:
    """The unit residual ratio of every layer of the first run of blocks."""
    entries = [one for one in scanned.summary if one.definition == UNIT and one.site == "block"]
    return tuple(one for one in entries if one.stack == entries[0].stack)


def _laws(patient: _Patient) -> Laws:
    loss = patient.loss
    model = recording_of(patient.ready.model, patient.given)
    if isinstance(model, Seen):
        return laws(model, loss=loss)
    return laws(patient.model, patient.batches[0], loss=loss)


def _copies_of_torch(patient: _Patient, wired: Laws | None) -> bool:
    """Whether equal layers, where there are any, are those of a class of torch that copies one layer."""
    if wired is None or "clones" not in wired.names or wired["clones"].reason != "equal layers":
        return False
    holders = (nn.TransformerEncoder, nn.TransformerDecoder)
    copied = [path for path, part in patient.model.named_modules() if isinstance(part, holders)]
    blocks = [path for stack in patient.layout.stacks for path in stack.blocks]
    return bool(blocks) and all(any(path.startswith(one) for one in copied) for path in blocks)


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and afterwards in its own; flags are set, because some ``eval()`` do more."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _tree(patient: _Patient) -> tuple[Translation | None, str]:
    config = patient.config
    try:
        source = recording_of(patient.ready.model, patient.given)
        return translate(source, patient.few[0], stack=config.stack, blocks=patient.blocks), ""
    except NotTranslated as error:
        return None, first_line(error)


def _mechanism(tree: Translation, fed: EmbeddedTexts) -> tuple[Mechanism | None, str]:
    try:
        return mechanism(tree.network, fed.x, fed.context, is_token=fed.keep), ""
    except NotUnderstood as error:
        return None, first_line(error)


LINES: Mapping[str, Kind] = {
    "norm-rescale": "placement",
    "norm-gain": "gain",
    "norm-direct": "gain",
    "no-skip": "skip",
    "skip-scale": "skip-scale",
    "branch-size": "branch-scale",
    "attention-bias": "bias",
    "mlp-bias": "bias",
    "averaging": "temperature",
}
"""The remedy on whose line a cause stands."""


def _with_lines(found: Mechanism, treated: Remedies | None) -> Mechanism:
    """The causes with the lines of the model's own code, where a remedy for them was found to stand on one."""
    known = () if treated is None else (*treated.advised, *treated.dropped)
    lines = {
        one.kind: f"{one.line.file}:{one.line.number}" for one in reversed(known) if one.line is not None
    }

    def placed(cause: Cause) -> Cause:
        line = lines.get(LINES.get(cause.name, "several"))
        return cause if line is None or cause.line is not None else cause.model_copy(update={"line": line})

    return found.model_copy(update={"causes": tuple(map(placed, found.causes))})


def _with_skips(patient: _Patient, found: Mechanism) -> Mechanism:
    """The same with the lines at which skips are missing."""

    def line(block: int | None, site: str | None) -> str | None:
        part = site if site in ("attention", "mlp") else "attention"
        known = line_of_skip(patient.model, patient.few[0], patient.layout, block or 1, part)
        return None if known is None else _told(known)

    def placed(cause: Cause) -> Cause:
        if cause.line is not None:
            return cause
        if cause.name == "no-skip":
            return cause.model_copy(update={"line": line(cause.block, cause.site)})
        if cause.name == "skip-scale":
            made = line_of_factor(patient.model, patient.few[0], cause.block or 1)
            return cause.model_copy(update={"line": None if made is None else _told(made)})
        return cause.model_copy(update={"line": _line_of_weights(patient, cause)})

    causes = tuple(map(placed, found.causes))
    notes = tuple(
        one.model_copy(update={"line": line(one.block, one.site)}) if one.name == "no-skip" else one
        for one in found.observations
    )
    return found.model_copy(update={"causes": causes, "observations": notes})


def _line_of_weights(patient: _Patient, cause: Cause) -> str | None:
    """The line that makes the bias, or the norm, that a cause is about; None where no module stands for its block."""
    stack = patient.layout.stacks[0]
    number = (cause.block or 1) - 1
    if not 0 <= number < len(stack.blocks) or not stack.blocks[number] or stack.enters:
        return None
    block = patient.model.get_submodule(stack.blocks[number])
    held = dict(block.named_parameters())
    sizes = dict[str, float]()
    if cause.name in ("attention-bias", "mlp-bias"):
        sizes = {
            path: float(held[path].detach().double().norm())
            for path in bias_paths(block, (cause.name.removesuffix("-bias"),))
        }
    elif cause.name in ("norm-direct", "norm-gain"):
        norms = [path for path, part in block.named_modules() if path and is_norm(leaf(path), part)]
        sizes = {
            path: min(float((one.detach().double() - usual).norm()) for usual in (0.0, 1.0))
            for path, one in held.items()
            if one.ndim == 1 and path.rpartition(".")[0] in norms
        }
    if not sizes:
        return None
    # of parts that a class declares, the one whose numbers are the largest, or the farthest from those of a start
    found = f"{stack.blocks[number]}.{max(sizes, key=lambda path: sizes[path])}"
    line = changing_line(patient.model, found, ("number",)) or declared_line(patient.model, found)
    return None if line is None else _told(line)


def _told(line: Line) -> str:
    """A line as a finding names it."""
    return f"{line.told.file}:{line.told.number}"


def _start(patient: _Patient) -> Start | None:
    """The same configuration freshly drawn, on the same texts; None where there is no configuration to draw from."""
    source, config = patient.source, patient.config
    if not isinstance(source, str | os.PathLike):
        return None
    try:
        drawn = load_drawn(
            source,
            weights="initial",
            seed=config.seed,
            dtype=config.dtype,
            device=config.device,
            **config.loading,
        )
        found = _scan(patient, drawn, patient.batches)
    except RankscopeError:
        return None
    last = _ratios(found)[-1]
    collapsed = {"collapsing": True, "collapsed": True, "undecided": None, "no numbers": None}
    return Start(ratio=last.mean, collapsed=collapsed.get(found.verdict.verdict, False))


# --------------------------------------------------------------------------------------------------- training of copies


def _probe(patient: _Patient) -> Probe | NotProbed:
    config = patient.config
    return probe_model(
        patient.model,
        patient.few,
        generator=torch.Generator().manual_seed(config.seed),
        lr=config.lr,
        loss=patient.loss,
        layout=patient.layout,
        stack=config.stack,
        mask_token=patient.mask_token,
        is_trained=not patient.fresh and not config.probe,
    )


def _trivial(patient: _Patient, probe: Probe | NotProbed | None) -> tuple[Fit, ...]:
    """What the loss that was given stands at, where it is trivial; a fresh model may well start there."""
    if patient.loss is None or patient.fresh or not isinstance(probe, Probe):
        return ()
    return trivial(f"{probe.losses[0]:.4f}", Sizes(batch=len(patient.batches[0])))


def _treated(patient: _Patient, tree: Translation, fed: EmbeddedTexts, found: Mechanism | None) -> Remedies:
    """What would change it: every change run in the tree, those that help probed for three steps."""
    names = [] if found is None else [one.name for one in found.causes]
    stock = _stock(patient, tree)
    loss = None
    if stock is not None:
        loss = chosen_loss(
            stock.base,
            stock.batches[0],
            given=patient.loss,
            seed=patient.config.seed,
            mask_token=patient.mask_token,
        )
    if not (patient.fresh or patient.config.probe):
        prober = None
    elif stock is not None and loss is not None:
        prober = graft_prober(stock, loss, lr=patient.config.lr)
    else:
        prober = tree_prober(
            fed.x, fed.context, keep=fed.keep, seed=patient.config.seed, lr=patient.config.lr
        )
    found_remedies = remedies(
        tree.network,
        fed.x,
        fed.context,
        is_token=fed.keep,
        causes=names,
        seed=patient.config.seed,
        prober=prober,
    )
    written = written_of(tree.model, tree.stack.blocks, tree.network)
    coded = with_recipes(found_remedies, written)
    return _tried(patient, coded) if patient.config.try_ and coded.advised else coded


def _tried(patient: _Patient, coded: Remedies) -> Remedies:
    """The remedies with what some hundred steps of training on copies show."""
    config = patient.config
    shown = trial(
        patient.model,
        patient.batches,
        coded,
        generator=torch.Generator().manual_seed(config.seed),
        steps=config.steps,
        seeds=config.tries,
        lr=config.lr,
        loss=patient.loss,
        stack=config.stack,
        mask_token=patient.mask_token,
        is_fresh=patient.fresh,
    )
    return with_trial(coded, shown)


def _stock(patient: _Patient, tree: Translation) -> Stock | None:
    """The model with changed trees in place of its blocks, where that can be trained."""
    try:
        return stock_of(patient.model, patient.few[:1], stack=patient.config.stack, translation=tree)
    except RankscopeError:
        return None
