"""Scan: a live model in, numbers per layer, site and text and a verdict in plain words out.

What was measured so far is kept on disk, so that nothing is lost when a scan is interrupted, and it can go on.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, TypedDict, cast, overload

import torch
from torch import Tensor, nn

from rankscope.core.numerics import computed_in, threads_for
from rankscope.errors import (
    ConfigError,
    FileError,
    NotSaved,
    NotTapped,
    Option,
    OutOfMemory,
    Piece,
    RankscopeError,
    is_out_of_memory,
)
from rankscope.findings.embeddings import EmbeddingsFinding
from rankscope.findings.scan import (
    GradientsOf,
    MeasureValue,
    ScanConfig,
    ScanFinding,
    ScanSubject,
    ScanView,
)
from rankscope.findings.tree import TreeValue
from rankscope.findings.verdict import Weight
from rankscope.measures import Measure, find_measure
from rankscope.measures.laws import Law
from rankscope.probe import Panel, Tally, measure_states, own_words, probe_into, tally_table, unwrapped
from rankscope.probe.gradients import GRADIENT_DEFINITIONS, Gradients, gradient_norms
from rankscope.probe.streamed import check_by_blocks, probe_streamed
from rankscope.results import Table, write_atomically
from rankscope.sources import (
    Batch,
    Layout,
    Loaded,
    Seen,
    States,
    load_attribute,
    load_drawn,
    read_states,
    sample_texts,
)
from rankscope.sources.given import not_a_model
from rankscope.sources.layout import check_order
from rankscope.sources.rows import is_rows
from rankscope.sources.seen import Call
from rankscope.sources.states import parse_axes
from rankscope.sources.streams import in_one_stream
from rankscope.sources.tree_report import tree_report
from rankscope.sources.weights import not_finite
from rankscope.studies.inputs import (
    CallInputs,
    MeasuredBatches,
    asked_of,
    chosen_inputs,
    found_layout,
    recording_of,
    resolve_call,
)
from rankscope.studies.rows import run_id
from rankscope.verdict import judge_table

GRADIENT_BATCHES = 2
"""Gradients are taken of this many batches: their mean settles quickly, and a backward pass is dear."""

STATE_FILES = (".npy", ".safetensors")
"""Endings of files of hidden states."""

Advance = Callable[[int, int | None], None]
"""Called after every batch with how many of how many texts are done; the number of texts may not be known."""

LossOf = Callable[[nn.Module, Batch], Tensor]


@overload
def scan(
    model: Any = None, texts: Any = None, *, across: Literal["inputs"], **fields: Any
) -> EmbeddingsFinding: ...
@overload
def scan(
    model: Any = None,
    texts: Any = None,
    *,
    config: ScanConfig | None = None,
    across: Literal["tokens"] = "tokens",
    **fields: Any,
) -> ScanFinding: ...
def scan(
    model: str | os.PathLike[str] | nn.Module | Loaded | Seen | ScanConfig | None = None,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    loss: LossOf | str | None = None,
    config: ScanConfig | None = None,
    load: Mapping[str, Any] | None = None,
    advance: Advance | None = None,
    partial: "Partial | None" = None,
    folder: str | os.PathLike[str] | None = None,
    save: Callable[[ScanFinding], object] | None = None,
    **fields: Any,
) -> ScanFinding | EmbeddingsFinding:
    """Point it at a live model and learn, layer by layer, whether its tokens are collapsing.

    ``model`` is a module, or what ``rankscope scan`` takes: a Hub id, a folder, a built-in name, ``module:attribute``,
    a file of hidden states; or a recording of its calls (``rs.record``). ``texts`` is a list, or a file with one text
    per line; left out, a bundled sample is read. ``inputs`` is whatever the model takes: a tensor, a dict, a tuple of
    arguments, a DataLoader or another iterable of these, a file; ``call`` is a function of the model that runs it.
    ``fields`` are those of ``ScanConfig``; ``load`` is the former place of those about loading (``dtype``, ``device``,
    ``revision``, ``allow_pickle``, ``trust_remote_code``). ``blocks`` names the blocks where they are not found: the
    path of a list of blocks, or blocks one by one, as paths or modules: ``blocks=[model.first, model.second]``.
    With ``across="inputs"`` inputs are compared in place of tokens, one pooled row each, and the finding is that of
    ``scan_embeddings``. ``workers``, ``cluster``, ``shard_size`` or a ``folder`` share a file of texts shard by shard
    (``rankscope.studies.corpus``); what is done is kept in the folder, and the same call goes on with it.
    """
    if load is not None:
        said = ", ".join(f"{name}={value!r}" for name, value in load.items()) or "dtype=..."
        warnings.warn(
            f"rs.scan(load=...) is now written as fields: rs.scan(model, {said})",
            DeprecationWarning,
            stacklevel=2,
        )
    given = CallInputs(texts=texts, images=images, audio=audio, inputs=inputs, call=call)
    named = {"loss": loss} if isinstance(loss, str) else {}
    config, model, given = resolve_call(
        ScanConfig, model, config, given, **(dict(load or {}) | fields | named)
    )
    config.check_across(is_file=is_rows(model))
    config.check_stream(is_kept=folder is not None)
    if config.exact and not config.attention:
        raise ConfigError(Option("exact"), " is about attention maps; add ", Option("attention", True))
    if in_shards(config, folder):
        from rankscope.studies.corpus import scan_corpus

        return scan_corpus(
            model,
            given,
            config,
            objects=[name for name, one in (("tokenizer", tokenizer), ("loss", loss)) if one is not None],
            resume=partial is not None and partial.resume,
            folder=folder,
            save=save,
            advance=advance,
        )
    if config.across == "inputs" and is_rows(model):
        from rankscope.studies.embeddings import scan_embeddings  # slow to import, and few scans need it

        return scan_embeddings(model, config=config, advance=advance)
    measured = asked_measures(config)
    if isinstance(model, str | os.PathLike) and is_states(model):
        config.check_states()
        return scan_states(model, config=config)
    model, given = asked_of(model, given)
    if not isinstance(model, str | os.PathLike | nn.Module | Loaded):
        raise not_a_model(model)
    of_loss = load_loss(config.loss) if config.loss is not None else cast("LossOf | None", loss)
    if of_loss is not None and not config.gradients:
        raise ConfigError(
            "a loss is only used for gradients; add ",
            Option("gradients"),
        )
    ready = ready_model(model, config, tokenizer)
    if ready.promises is not None:
        return scan_finding(_streamed(ready, given, config, advance), config, measured)
    layout, chosen, first = layout_and_inputs(ready, config, given)
    if config.across == "inputs":
        with memory_words(), threads_for(largest_weight(ready)):
            from rankscope.studies.embeddings import scan_pooled  # as above

            return scan_pooled(ready, unwrapped(ready.model), layout, chosen, config, advance)
    trees = [tree_report(recording_of(ready.model, given), batch) for batch in first] if config.tree else []
    table, gradients = _run_scan(ready, layout, chosen, config, of_loss, advance, partial)
    return scan_finding(table, config, measured, gradients=gradients, tree=trees[0] if trees else None)


def in_shards(config: ScanConfig, folder: object) -> bool:
    """Whether texts are cut into shards, which are measured one by one, here or elsewhere."""
    if config.across == "inputs" and folder is None:
        return False  # workers are threads there
    return folder is not None or any(getattr(config, name) is not None for name in ScanConfig.of_shards)


def layout_and_inputs(
    ready: Loaded, config: ScanConfig, given: CallInputs
) -> tuple[Layout, MeasuredBatches, list[Batch]]:
    """The blocks that are measured and what the model is to read, with the first batch where that was looked at."""
    model, first = unwrapped(ready.model), list[Batch]()
    layout = found_layout(model, config.blocks, given)
    if config.across == "inputs" and ready.tokenizer is not None and config.random_tokens is None:
        chosen = _texts_across(ready, config, given, layout)
    else:
        chosen = chosen_inputs(ready, config, given, layout, seed=config.seed)
    if len(layout.stacks) > 1 or config.tree or config.blocks is not None:
        first = list(islice(chosen.batches, 1))
        chosen = replace(chosen, batches=chain(first, chosen.batches), read=chosen.read or chosen.batches)
        for batch in first:
            with own_words(ready.model, batch):
                check_order(model, layout, batch)
                layout = in_one_stream(model, layout, batch)
    return _of_stack(layout, config), chosen, first


def _texts_across(ready: Loaded, config: ScanConfig, given: CallInputs, layout: Layout) -> MeasuredBatches:
    """Inputs to be compared with each other: all texts of the sample, where none are given; texts of one token too."""
    is_sample = not given.kinds
    if is_sample:  # a few texts are enough to compare tokens, not to compare texts
        given = replace(given, texts=list(ready.texts or sample_texts()))
    if given.kinds == ["texts"] and "special" not in config.explicit:
        config = config.model_copy(update={"special": "keep"})
    chosen = chosen_inputs(ready, config, given, layout, seed=config.seed)
    if is_sample:
        chosen.tokens = chosen.tokens.model_copy(update={"inputs": "the bundled sample"})
    return chosen


def scan_batches(
    ready: Loaded,
    layout: Layout,
    chosen: MeasuredBatches,
    config: ScanConfig,
    *,
    advance: Advance | None = None,
) -> ScanFinding:
    """The scan of a model that is loaded, on batches that are chosen already, by a study that also uses them itself."""
    table, _ = _run_scan(ready, _of_stack(layout, config), chosen, config, None, advance, None)
    return scan_finding(table, config, asked_measures(config))


def scan_states(
    source: States | str | os.PathLike[str] | Tensor | Any,
    *,
    config: ScanConfig | None = None,
    advance: Advance | None = None,
    **fields: Any,
) -> ScanFinding:
    """The same of hidden states that are already there: a file, an array, a tensor, or one tensor per layer.

    One tensor of three axes can be layers or texts of tokens: say which with ``axes="layers,tokens,dim"`` or
    ``axes="texts,tokens,dim"``. The tuple ``hidden_states`` of Hugging Face is taken as it is.
    """
    if config is None:
        config = ScanConfig.of(**fields)
    elif fields:
        raise ConfigError(f"{', '.join(fields)} was given beside a configuration; put it into the ScanConfig")
    measured = asked_measures(config)
    config.check_states()
    axes = None if config.axes is None else parse_axes(config.axes)
    states = source if isinstance(source, States) else read_states(source, axes=axes)
    tally, dtype = Tally(), computed_in(states.layers, states.dtype)
    with torch.no_grad():
        measure_states(tally, states.layers, panel=panel_of(config, measured), dtype=dtype)
    notes = list(states.notes())
    if dtype != states.dtype:
        notes.append(
            f"the states are stored as {dtype_name(states.dtype)}, but their numbers have no more digits than "
            f"{dtype_name(dtype)}: taken to be computed in {dtype_name(dtype)}, and judged by its rounding"
        )
    about = ScanSubject(
        read="hidden states",
        axes=states.reading,
        family="hidden states",
        dtype=dtype_name(dtype),
        stored_dtype=dtype_name(states.dtype),
        reported=tuple(notes),
    )
    if advance is not None:
        advance(states.texts, states.texts)
    return scan_finding(scan_table(tally, states.name, about, config), config, measured)


def is_states(model: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a file of hidden states."""
    path = Path(model)
    return path.suffix.lower() in STATE_FILES and path.is_file()


def asked_measures(config: ScanConfig) -> tuple[MeasureValue, ...]:
    """The measures that were asked for by name, each with what the name means and the values that it can take."""
    return measures_named(config.measures)


def measures_named(names: Sequence[str]) -> tuple[MeasureValue, ...]:
    """Each of these measures with what its name means and the values that it can take."""
    return tuple(_measure_value(name, find_measure(name)) for name in names)


def _measure_value(name: str, measure: Measure) -> MeasureValue:
    if measure.kind != "tokens":
        raise ConfigError(
            Option("measures", name),
            f": {measure.definition} measures attention maps, not token states; use ",
            Option("attention", True),
        )
    least = 1.0 if Law.AT_LEAST_ONE in measure.laws else 0.0 if Law.NOT_NEGATIVE in measure.laws else None
    most = 1.0 if Law.AT_MOST_ONE in measure.laws else None
    return MeasureValue(asked=name, definition=measure.definition, least=least, most=most)


def beyond_panel(measures: Sequence[str]) -> list[str]:
    """The definitions behind these names that a scan does not hold anyway."""
    more = tuple(find_measure(name).definition for name in measures)
    return sorted(Panel(more=more).per_block)


def panel_of(config: ScanConfig, measured: tuple[MeasureValue, ...]) -> Panel:
    """What the probe takes of every state."""
    more = tuple(dict.fromkeys(one.definition for one in measured))
    return Panel(
        spectra=config.spectra,
        full=config.full,
        more=more,
        attention=config.attention,
        exact=config.exact,
    )


def load_loss(text: str) -> Callable[[nn.Module, Batch], Tensor]:
    """The user's own loss ``module:function`` or ``file.py:function``, called with model and batch."""
    found = load_attribute(text)
    if not callable(found) or isinstance(found, nn.Module):
        raise ConfigError(f"{text!r} is not a function of model and batch that returns the loss")
    return cast("Callable[[nn.Module, Batch], Tensor]", found)


def ready_model(
    model: str | os.PathLike[str] | nn.Module | Loaded, config: ScanConfig, tokenizer: Any = None
) -> Loaded:
    """The model, loaded as the configuration says, with the tokenizer that was given."""
    if isinstance(model, Loaded):
        if config.weights == "initial":
            raise ConfigError(
                "the model is loaded already; leave out ",
                Option("weights", "initial"),
                ", or pass its name",
            )
        ready = model
    else:
        place = {} if isinstance(model, nn.Module) else {"device": config.device}
        ready = load_drawn(
            model,
            weights=config.weights,
            seed=config.seed,
            with_head=config.gradients,
            dtype=config.dtype,
            stream=config.stream,
            **place,
            **config.loading,
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in ready.model.modules()):
        raise NotTapped(
            f"{ready.name} is TorchScript, whose parts call no hooks; scan the module it was made from"
        )
    return ready if tokenizer is None else replace(ready, tokenizer=tokenizer)


def _of_stack(layout: Layout, config: ScanConfig) -> Layout:
    """The layout with the one stack that was asked for, or all of them."""
    if config.stack is None:
        return layout
    kept = tuple(one for one in layout.stacks if one.name == config.stack)
    if not kept:
        names = ", ".join(one.name for one in layout.stacks)
        raise ConfigError(
            Option("stack", config.stack),
            f": the model has no run of blocks of that name; it has: {names}",
        )
    return replace(layout, stacks=kept)


def _run_scan(
    ready: Loaded,
    layout: Layout,
    chosen: MeasuredBatches,
    config: ScanConfig,
    loss: LossOf | None,
    advance: Advance | None,
    partial: "Partial | None",
) -> tuple[Table, Gradients | None]:
    model = unwrapped(ready.model)
    batches, kept = chosen.batches, []
    if config.gradients:
        kept = list(islice(batches, GRADIENT_BATCHES))
        batches = chain(kept, batches)
    tally = Tally() if partial is None else partial.start(lambda: _key(ready, chosen, config))
    done = tally.texts
    ill = not_finite(model)

    def table() -> Table:
        about = subject_of(ready, layout, chosen, (*ready.warnings, *chosen.notes), ill)
        return scan_table(tally, ready.name, about, config)

    def step(texts: int) -> None:
        if advance is not None:
            advance(texts, chosen.total)
        if partial is not None:
            partial.step(tally, table)

    with memory_words(), threads_for(largest_weight(ready)):
        try:
            probe_into(
                tally,
                model,
                _after(batches, done),
                layout=layout,
                panel=panel_of(config, asked_measures(config)),
                advance=step,
            )
            gradients = _gradients(model, layout, kept, ready, config, loss) if config.gradients else None
        except BaseException:
            if partial is not None and tally.texts:
                partial.save(tally, table)
            raise
    return table() if gradients is None else _with_gradients(table(), gradients), gradients


def _streamed(ready: Loaded, given: CallInputs, config: ScanConfig, advance: Advance | None) -> Table:
    """The table of a model whose weights are read block by block: all batches go through a block together."""
    promises = ready.promises
    assert promises is not None  # noqa: S101 - tells mypy what the caller has looked at
    if {"inputs", "call"} & set(given.kinds):
        raise ConfigError(
            "ready inputs and calls are run to see where their texts lie, which needs a model that is in memory whole; "
            "give texts, or leave out ",
            Option("stream", True),
        )
    layout = found_layout(ready.model, None, given)
    check_by_blocks(layout, ready.name)
    chosen = chosen_inputs(ready, config, given, layout, seed=config.seed)
    tally, trial = Tally(), chosen.begin
    if trial is not None:
        promises.keep([trial.head])
    with memory_words(), threads_for(largest_weight(ready)):
        losses = probe_streamed(
            tally,
            ready.model,
            promises,
            chosen.batches,
            layout=layout,
            measured=_of_stack(layout, config),
            panel=panel_of(config, asked_measures(config)),
            trials=() if trial is None else trial.runs,
            advance=None if advance is None else lambda texts: advance(texts, chosen.total),
        )
    begin = None if trial is None else trial.judged(losses)
    notes = (*ready.warnings, *(() if begin is None else (begin,)), *chosen.notes)
    about = subject_of(
        ready, _of_stack(layout, config), chosen, notes, not_finite(ready.model, promises.counts)
    )
    return scan_table(tally, ready.name, about, config)


def subject_of(
    ready: Loaded, layout: Layout, chosen: MeasuredBatches, notes: Iterable[str], ill: Sequence[Weight]
) -> ScanSubject:
    """What is known of a scan before its numbers."""
    return ScanSubject(
        **dict(chosen.tokens),
        family=layout.family,
        dtype=dtype_name(ready.dtype),
        parameters=ready.parameters,
        reported=tuple(dict.fromkeys(notes)),
        not_finite=tuple(ill),
    )


def _key(ready: Loaded, chosen: MeasuredBatches, config: ScanConfig) -> dict[str, str]:
    """What must be the same for a scan to go on; how many texts run at a time, and where, may change."""
    return {
        "options": run_id(config.model_copy(update={"batch_size": 1, "device": "cpu"})),
        "model": ready.name,
        "weights": weights_digest(ready.model),
        "dtype": dtype_name(ready.dtype),
        "inputs": chosen.stamp,
    }


def _after(batches: Iterator[Batch], done: int) -> Iterator[Batch]:
    """The batches without the first ``done`` texts, which an earlier run has measured."""
    for batch in batches:
        if done >= len(batch):
            done -= len(batch)
        else:
            yield batch.part(done, len(batch))
            done = 0


def scan_table(tally: Tally, name: str, about: ScanSubject, config: ScanConfig) -> Table:
    return tally_table(
        tally,
        name=name,
        about=about.model_dump(mode="json"),
        config=config.model_dump(mode="json") | {"model": name},
        seeds=[config.seed],
        run=run_id(config),
    )


def scan_finding(
    table: Table,
    config: ScanConfig,
    measured: tuple[MeasureValue, ...],
    *,
    gradients: Gradients | None = None,
    tree: TreeValue | None = None,
) -> ScanFinding:
    return ScanFinding(
        **table.sections,
        verdict=judge_table(table, config.thresholds),
        measured=measured,
        gradients=None if gradients is None else GradientsOf(loss=gradients.loss, texts=gradients.texts),
        tree=tree,
        table=table,
    )


def _gradients(
    model: nn.Module,
    layout: Layout,
    batches: list[Batch],
    ready: Loaded,
    config: ScanConfig,
    loss: Callable[[nn.Module, Batch], Tensor] | None,
) -> Gradients:
    mask = getattr(ready.tokenizer, "mask_token_id", None)
    with own_words(model, batches[0]):
        return gradient_norms(model, layout, batches, loss=loss, seed=config.seed, mask_token=mask)


def _with_gradients(table: Table, gradients: Gradients) -> Table:
    """The table with the norms of gradients as rows of the site ``attention``, and in the summary."""
    rows = gradients.rows
    model = table.sections["scan"]["model"]
    columns = {
        name: [getattr(row, name) for row in rows]
        for name in ("stack", "layer", "measure", "definition", "value", "floor")
    }
    more = Table.from_columns({**columns, "site": "attention", "model": model, "run": table.frame["run"][0]})
    summary = [
        {
            **{name: getattr(row, name) for name in ("stack", "layer", "measure", "definition", "floor")},
            "site": "attention",
            "head": None,
            "texts": gradients.texts,
            "mean": row.value,
            "std": None,
            "min": row.value,
            "max": row.value,
            "resolved": float(row.resolved),
        }
        for row in rows
    ]
    sections = table.sections | {
        "summary": table.sections["summary"] + summary,
        "definitions": table.sections["definitions"] | GRADIENT_DEFINITIONS,
    }
    return Table.concat([table, more], sections=sections, provenance=table.provenance, command=table.command)


@contextmanager
def memory_words() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(*_LESS) from error


_LESS: tuple[Piece, ...] = (
    "not enough memory for this scan; lower ",
    Option("batch_size"),
    " (1 holds one text at a time) or ",
    Option("max_tokens"),
    ", leave out ",
    Option("attention"),
    " and ",
    Option("full"),
    ", or load the model in a smaller dtype (",
    Option("dtype", "bfloat16"),
    ")",
)


def largest_weight(ready: Loaded) -> int:
    """A measure of the size of the model's products: small ones run faster on one thread."""
    return max((parameter.numel() for parameter in ready.model.parameters()), default=0)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --------------------------------------------------------------------------------------------------- unfinished scans

EVERY = 30.0
"""Seconds between two saves."""

SECTION = "partial"


class Partial:
    """The file of an unfinished scan: an ordinary table of what was measured, plus what is needed to go on.

    It is a convenience: a disk that is full or may not be written is told in a warning, and the scan goes on.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path, self.resume = path, resume
        self.is_written = False  # by this scan, or resumed by it
        self._key: Callable[[], dict[str, str]] = dict
        self._saved = time.monotonic()

    def start(self, key: Callable[[], dict[str, str]]) -> Tally:
        """The tally to add to: that of the file when resuming, an empty one otherwise.

        ``key`` gives everything that must be the same to go on; it reads all weights, so it is asked for only when
        there is something to save or to resume. Without resuming, the file of an earlier scan is left alone and a new
        name is taken.
        """
        self._key = cache(key)
        if not self.resume:
            self.path = _free(self.path)
            return Tally()
        if not self.path.exists():
            raise FileError(
                f"nothing to resume: there is no {str(self.path)!r}; start without ", Option("resume")
            )
        section = Table.load(self.path).sections.get(SECTION)
        if not isinstance(section, dict) or "tally" not in section:
            raise FileError(f"{str(self.path)!r} is not an unfinished scan, so it cannot be resumed")
        other = [name for name, value in self._key().items() if section.get(name) != value]
        if other:
            raise FileError(
                f"{str(self.path)!r} belongs to another scan: {', '.join(other)} differ; use the same ones, or start "
                "without ",
                Option("resume"),
            )
        self.is_written = True
        return Tally.from_state(section["tally"])

    def step(self, tally: Tally, table: Callable[[], Table]) -> None:
        """Save if the last time is long enough ago."""
        if time.monotonic() - self._saved >= EVERY:
            self.save(tally, table)

    def save(self, tally: Tally, table: Callable[[], Table]) -> None:
        """Write what there is, whole or not at all; if that fails, warn and go on."""
        made = table()
        sections = made.sections | {SECTION: {**self._key(), "tally": tally.state()}}
        try:
            write_atomically(self.path, replace(made, sections=sections).to_json_text().encode())
            self.is_written = True
        except FileError as error:
            warnings.warn(f"what was measured so far is not saved: {error}", NotSaved, stacklevel=2)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """The scan is complete: the file has done its work, if this scan wrote it."""
        if self.is_written:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def weights_digest(model: nn.Module) -> str:
    """A digest of every entry of every parameter and buffer, with their names, shapes and dtypes.

    Tensors are hashed as the bytes they are, a piece at a time, so that no copy of a large model is made.
    """
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        if tensor.device.type == "meta":
            continue
        for piece in tensor.detach().reshape(-1).split(PIECE):
            found.update(_bytes(piece))
    return found.hexdigest()


PIECE = 2**22
"""Entries of a tensor that are hashed at a time."""


def _bytes(piece: Tensor) -> memoryview:
    """The bytes of the entries; those of a quantized tensor are the whole numbers it is stored as."""
    plain = piece.int_repr() if piece.is_quantized else piece
    return plain.contiguous().cpu().view(torch.uint8).numpy().data


LONGEST = 255
"""Bytes of a file name, on the file systems of today."""

ENDING = ".partial.json"


def partial_beside(output: Path) -> Path:
    """The file for an unfinished scan whose results go to ``output``; a name that is too long is shortened.

    >>> partial_beside(Path("a/scan.json"))
    PosixPath('a/scan.json.partial.json')
    """
    name = os.fsencode(output.name)
    if len(name) + len(ENDING) + 4 > LONGEST:  # and a number, see _free
        mark = hashlib.blake2b(name, digest_size=8).hexdigest()
        cut = name[: LONGEST - len(ENDING) - 4 - len(mark) - 1].decode(errors="ignore")
        return output.with_name(f"{cut}-{mark}{ENDING}")
    return output.with_name(f"{output.name}{ENDING}")


def _free(path: Path) -> Path:
    """The path, or the first of its numbered neighbors that does not exist."""
    if not os.path.lexists(path):
        return path
    stem = path.name.removesuffix(".json")
    return next(new for n in count(2) if not os.path.lexists(new := path.with_name(f"{stem}-{n}.json")))


class ScanExtras(TypedDict, total=False):
    """What a scan is given besides its configuration."""

    partial: Partial


@contextmanager
def scan_extras(config: ScanConfig, view: ScanView, output: Path | None) -> Iterator[ScanExtras]:
    """What the command line gives a scan besides its configuration: a file for what is measured so far.

    The file is removed once everything is written. Where the scan ends before that, the message says where it is.
    """
    model = config.model or ""
    if is_states(model) or config.across == "inputs":
        if view.resume:
            kind = "a file of hidden states is" if is_states(model) else "inputs across are"
            raise ConfigError(Option("resume"), f" needs the tokens of a live model; {kind} measured at once")
        yield {}
        return
    if config.stream:
        if view.resume:
            raise ConfigError(
                Option("resume"),
                ": block by block all texts are done at the same time, and nothing is kept before that; leave it out",
            )
        yield {}
        return
    path = partial_beside(output) if output is not None else _partial_of(model)
    partial = Partial(path, resume=view.resume)
    try:
        yield {"partial": partial}
    except KeyboardInterrupt as stop:
        if str(stop):
            raise  # it says itself what became of the work
        saved = f"what was measured is in {partial.path}; go on with --resume" if partial.is_written else ""
        raise KeyboardInterrupt(f"interrupted; {saved or 'nothing was saved'}") from None
    except RankscopeError as error:
        if not partial.is_written:
            raise
        raise error.with_more(f"; what was measured is in {partial.path}") from error
    partial.remove()


def _partial_of(model: str) -> Path:
    """In the current folder, under the model's name."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in Path(model).name)
    return Path(f"rankscope-scan-{name[:60]}.partial.json")
