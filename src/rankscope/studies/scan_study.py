"""Scan: a live model in, numbers per layer, site and text and a verdict in plain words out."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any, cast

import torch
from torch import Tensor, nn

from rankscope.core.numerics import computed_in, threads_for
from rankscope.errors import ConfigError, NotTapped, OutOfMemory, is_out_of_memory
from rankscope.probe import Tally, measure_states, own_words, probe_into, tally_table, unwrapped
from rankscope.probe.gradients import GRADIENT_DEFINITIONS, Gradients, gradient_norms
from rankscope.results import Table
from rankscope.sources import (
    Batch,
    Layout,
    Loaded,
    Seen,
    States,
    load_attribute,
    load_drawn,
    read_states,
)
from rankscope.sources.given import not_a_model
from rankscope.sources.seen import Call
from rankscope.sources.streams import in_one_stream
from rankscope.sources.structure import block_paths
from rankscope.sources.tree_report import tree_report
from rankscope.sources.weights import not_finite
from rankscope.studies.inputs import Given, Reading, asked_of, chosen_inputs, found_layout, recording_of
from rankscope.studies.rows import run_id
from rankscope.studies.scan_config import ScanConfig
from rankscope.studies.scan_partial import Partial, weights_digest
from rankscope.verdict import judge

GRADIENT_BATCHES = 2
"""Gradients are taken of so many batches: their mean settles quickly, and a backward pass is dear."""

Progress = Callable[[int, int | None], None]
"""Told after every batch how many of how many texts are done; the number of texts may not be known."""


class Verdict(str):
    """The verdict's name, equal to the plain text, with ``words``, ``stacks`` (layer by layer) and ``thresholds``."""

    words: str
    stacks: list[dict[str, Any]]
    thresholds: dict[str, float]

    def __new__(cls, section: dict[str, Any]) -> "Verdict":
        """The verdict that a table's section holds."""
        self = super().__new__(cls, section["verdict"])
        self.words, self.stacks, self.thresholds = section["words"], section["stacks"], section["thresholds"]
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Scan:
    """What a scan found: all numbers as a table, the verdict, and a report."""

    table: Table
    command: str = ""

    @property
    def verdict(self) -> Verdict:
        """``collapsing``, ``collapsed``, ``undecided``, ``healthy`` or the name of a confounder, with its words."""
        return Verdict(self.table.sections["verdict"])

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the report: one self-contained HTML file."""
        from rankscope.report import scan_page
        from rankscope.results import write_atomically

        name = self.table.sections["scan"]["model"]
        page = scan_page(self.table, title=f"Scan of {name}", command=self.command or "rankscope.scan(...)")
        write_atomically(path, page.encode())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table: .json, .parquet or .csv (rows only)."""
        self.table.save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Scan":
        """The scan saved at ``path``."""
        table = Table.load(path)
        if "verdict" not in table.sections:
            raise ConfigError(f"{os.fspath(path)!r} holds no scan: it has no section 'verdict'")
        return cls(table=table)

    def __repr__(self) -> str:
        return f"Scan({self.table.sections['scan']['model']!r}: {self.verdict})"

    def __str__(self) -> str:
        return f"{self.table.sections['scan']['model']}: {self.verdict.words}"

    def _repr_html_(self) -> str:
        from rankscope.report import scan_summary_html

        return scan_summary_html(self.table)


def scan(
    model: str | os.PathLike[str] | nn.Module | Loaded | Seen,
    texts: Any = None,
    *,
    images: Any = None,
    audio: Any = None,
    inputs: Any = None,
    call: Call | None = None,
    tokenizer: Any = None,
    loss: Callable[[nn.Module, Batch], Tensor] | None = None,
    config: ScanConfig | None = None,
    load: dict[str, Any] | None = None,
    progress: Progress | None = None,
    partial: Partial | None = None,
    **options: Any,
) -> Scan:
    """Point it at a live model and learn, layer by layer, whether its tokens are collapsing.

    ``model`` is a module, or what ``rankscope scan`` takes: a Hub id, a folder, a built-in name,
    ``module:attribute``; or a recording of its calls (``rs.record``). ``texts`` is a list, or a file with one text per
    line; left out, a bundled sample is read. ``inputs`` is whatever the model takes: a tensor, a dict, a tuple of
    arguments, a DataLoader or another iterable of these, a file; ``call`` is a function of the model that runs it.
    ``options`` are fields of ``ScanConfig``; ``load`` are options of loading (``dtype``, ``device``, ``revision``,
    ``allow_pickle``, ``trust_remote_code``). ``blocks`` names the blocks where they are not found: the path of a list
    of blocks, or blocks one by one, as paths or modules: ``blocks=[model.first, model.second]``.
    """
    model, given = asked_of(model, Given(texts=texts, images=images, audio=audio, inputs=inputs, call=call))
    if not isinstance(model, str | os.PathLike | nn.Module | Loaded):
        raise not_a_model(model)
    config = ScanConfig.of(**_with_paths(model, options)) if config is None else config
    if config.axes is not None:
        raise ConfigError(
            "axes are those of hidden states (scan_states, a .npy or .safetensors file); a model shows its own"
        )
    if loss is not None and not config.gradients:
        raise ConfigError("a loss is only used for gradients; add gradients=True")
    ready = _ready(model, config, load or {}, tokenizer)
    if any(isinstance(part, torch.jit.ScriptModule) for part in ready.model.modules()):
        raise NotTapped(
            f"{ready.name} is TorchScript, whose parts call no hooks; scan the module it was made from"
        )
    layout = found_layout(unwrapped(ready.model), config.blocks, given)
    chosen = chosen_inputs(ready, config.feeding(), given, layout, seed=config.seed)
    if len(layout.stacks) > 1 or config.tree:
        first = list(islice(chosen.batches, 1))
        chosen = replace(chosen, batches=chain(first, chosen.batches), read=chosen.read or chosen.batches)
        for batch in first:
            with own_words(ready.model, batch):
                layout = in_one_stream(unwrapped(ready.model), layout, batch)
    trees = [tree_report(recording_of(ready.model, given), batch) for batch in first] if config.tree else []
    table = _scanned(ready, layout, chosen, config, loss, progress, partial)
    for tree in trees:
        table = replace(table, sections=table.sections | {"tree": tree})
    return Scan(table=_judged(table, config))


def scan_states(
    source: States | str | os.PathLike[str] | Tensor | Any,
    *,
    config: ScanConfig | None = None,
    **options: Any,
) -> Scan:
    """The same of hidden states that are already there: a file, an array, a tensor, or one tensor per layer.

    One tensor of three axes can be layers or texts of tokens: say which with ``axes="layers,tokens,dim"`` or
    ``axes="texts,tokens,dim"``. The tuple ``hidden_states`` of Hugging Face is taken as it is.
    """
    config = ScanConfig.of(**options) if config is None else config
    for name in ("attention", "gradients", "tree"):
        if getattr(config, name):
            raise ConfigError(f"{name} needs a live model; hidden states alone do not hold it")
    if config.blocks is not None:
        raise ConfigError("blocks are those of a live model; of hidden states name the axes")
    states = source if isinstance(source, States) else read_states(source, axes=config.axes)
    tally, dtype = Tally(), computed_in(states.layers, states.dtype)
    with torch.no_grad():
        measure_states(tally, states.layers, panel=config.panel, dtype=dtype)
    notes = list(states.notes())
    if dtype != states.dtype:
        notes.append(
            f"the states are stored as {_short(states.dtype)}, but their numbers have no more digits than "
            f"{_short(dtype)}: taken to be computed in {_short(dtype)}, and judged by its rounding"
        )
    about = {
        "family": "hidden states",
        "dtype": _short(dtype),
        "stored dtype": _short(states.dtype),
        "special rule": f"{states.reading.words}; nothing is left out",
        "axes": asdict(states.reading),
        "warnings": notes,
    }
    return Scan(table=_judged(_table(tally, states.name, about, config), config))


def load_loss(text: str) -> Callable[[nn.Module, Batch], Tensor]:
    """The user's own loss ``module:function`` or ``file.py:function``, called with model and batch."""
    found = load_attribute(text)
    if not callable(found) or isinstance(found, nn.Module):
        raise ConfigError(f"{text!r} is not a function of model and batch that returns the loss")
    return cast("Callable[[nn.Module, Batch], Tensor]", found)


def _with_paths(
    model: str | os.PathLike[str] | nn.Module | Loaded, options: dict[str, Any]
) -> dict[str, Any]:
    """The options with blocks as paths, which can be written down."""
    blocks, holder = options.get("blocks"), model.model if isinstance(model, Loaded) else model
    if blocks is None or isinstance(blocks, str):
        return options
    if isinstance(holder, nn.Module):
        return options | {"blocks": block_paths(unwrapped(holder), blocks)}
    if isinstance(blocks, nn.Module) or not all(isinstance(one, str) for one in blocks):
        raise ConfigError(
            f"blocks of {os.fspath(holder)!r} are named by their paths, such as 'encoder.layers'"
        )
    return options


def _ready(model: Any, config: ScanConfig, load: dict[str, Any], tokenizer: Any) -> Loaded:
    if isinstance(model, Loaded):
        if config.weights == "initial":
            raise ConfigError("the model is loaded already; leave out weights='initial', or pass its name")
        ready = model
    else:
        ready = load_drawn(
            model, weights=config.weights, seed=config.seed, with_head=config.gradients, **load
        )
    return ready if tokenizer is None else replace(ready, tokenizer=tokenizer)


def _scanned(
    ready: Loaded,
    layout: Layout,
    chosen: Reading,
    config: ScanConfig,
    loss: Callable[[nn.Module, Batch], Tensor] | None,
    progress: Progress | None,
    partial: Partial | None,
) -> Table:
    model = unwrapped(ready.model)
    batches, kept = chosen.batches, []
    if config.gradients:
        kept = list(islice(batches, GRADIENT_BATCHES))
        batches = chain(kept, batches)
    tally = Tally() if partial is None else partial.start(lambda: _key(ready, chosen, config))
    done = tally.texts

    ill = [asdict(one) for one in not_finite(model)]

    def table() -> Table:
        warnings = list(dict.fromkeys((*ready.warnings, *chosen.notes)))
        about = _about(ready, layout, chosen, warnings) | {"not finite": ill}
        return _table(tally, ready.name, about, config)

    def advance(texts: int) -> None:
        if progress is not None:
            progress(texts, chosen.total)
        if partial is not None:
            partial.step(tally, table)

    with _memory_words(), threads_for(_entries(ready)):
        try:
            probe_into(
                tally,
                model,
                _after(batches, done),
                layout=layout,
                panel=config.panel,
                advance=advance,
            )
            gradients = _gradients(model, layout, kept, ready, config, loss) if config.gradients else None
        except BaseException:
            if partial is not None and tally.texts:
                partial.save(tally, table)
            raise
    return table() if gradients is None else _with_gradients(table(), gradients)


def _key(ready: Loaded, chosen: Reading, config: ScanConfig) -> dict[str, str]:
    """What must be the same for a scan to go on; how many texts run at a time may change."""
    return {
        "options": run_id(config.model_copy(update={"batch_size": 1})),
        "model": ready.name,
        "weights": weights_digest(ready.model),
        "dtype": _short(ready.dtype),
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


def _about(ready: Loaded, layout: Layout, chosen: Reading, warnings: list[str]) -> dict[str, Any]:
    return {
        "family": layout.family,
        "dtype": _short(ready.dtype),
        "parameters": ready.parameters,
        "inputs": chosen.source,
        **chosen.kinds,
        "special rule": chosen.rule,
        "text axes": None if chosen.axes is None else asdict(chosen.axes),
        "warnings": warnings,
    }


def _table(tally: Tally, name: str, about: dict[str, Any], config: ScanConfig) -> Table:
    return tally_table(
        tally,
        name=name,
        about=about,
        config=config.model_dump(mode="json") | {"model": name},
        seeds=[config.seed],
        run=run_id(config),
    )


def _judged(table: Table, config: ScanConfig) -> Table:
    return replace(table, sections=table.sections | {"verdict": judge(table, config.thresholds)})


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
        "gradients": {"loss": gradients.loss, "texts": gradients.texts},
    }
    joined = Table.concat(
        [table, more], sections=sections, provenance=table.provenance, command=table.command
    )
    return replace(joined)


@contextmanager
def _memory_words() -> Iterator[None]:
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(_LESS) from error


_LESS = (
    "not enough memory for this scan; lower --batch-size (1 holds one text at a time) or --max-tokens, leave out "
    "--attention and --full, or load the model in a smaller dtype (--dtype bfloat16)"
)


def _entries(ready: Loaded) -> int:
    """A measure of the size of the model's products: small ones run faster on one thread."""
    return max((parameter.numel() for parameter in ready.model.parameters()), default=0)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
