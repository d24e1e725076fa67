"""A live model on batches of texts: every state measured where it appears, only numbers kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.numerics import threads_for, unit_roundoff
from rankscope.errors import ConfigError, ModelError, Option, RankscopeError, ShapeError, is_out_of_memory
from rankscope.measures import (
    MASSIVE,
    PANEL,
    RANKS,
    Evaluation,
    Readings,
    evaluate_many,
    find_measure,
    read_panel,
)
from rankscope.probe.tally import Place, Seen, Tally
from rankscope.results import Table, provenance
from rankscope.sources.axes import located, oriented
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout
from rankscope.sources.layout import layout_of
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.safety import NO_GPU, needs_gpu
from rankscope.sources.taps import Ambiguous, Receive, tapped, unwrapped

FULL = (
    *("residual[frobenius,mean]", "residual_ratio[l1,best]", "residual_ratio[linf,best]"),
    *("residual_ratio[composite,best]", "residual_ratio[spectral,best]", "residual_ratio[max,best]"),
    *("diameter[l1]", "diameter[l2]", "diameter[linf]", "cosine[absolute]", "cosine[with_diagonal]"),
    *("effective_rank[eigenvalues]", "effective_rank[eigenvalues,centered]"),
    *("effective_rank[entropy,unit]", "effective_rank[entropy,centered,unit]"),
    *("stable_rank[frobenius]", "stable_rank[frobenius,centered]"),
    *("participation_ratio[eigenvalues]", "participation_ratio[eigenvalues,centered]"),
    *("numerical_rank[relative]", "numerical_rank[relative,centered]", "numerical_rank[absolute]"),
    *("smallest_singular_value[absolute]", "smallest_singular_value[ratio]"),
    *("smallest_singular_value[absolute,centered]", "smallest_singular_value[ratio,centered]"),
    *("distance_to_rank_one[frobenius]", "distance_to_rank_one[ratio]", "outlier_tokens[10x_median]"),
)
"""What ``--full`` adds once per block: every other measure by name, singular values by SVD, best centers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """What is measured: the panel at every site, ranks and further measures once per block, maps if asked."""

    spectra: bool = True
    full: bool = False
    more: tuple[str, ...] = ()
    attention: bool = False
    exact: bool = False

    @property
    def per_block(self) -> tuple[str, ...]:
        """Definitions besides the panel's own."""
        known = {*PANEL, *MASSIVE, *RANKS}
        wanted = (*(FULL if self.full else ()), *self.more)
        return tuple(dict.fromkeys(name for name in wanted if name not in known))


Advance = Callable[[int], None]
"""Told after every batch how many texts are done."""


def probe(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    name: str,
    layout: Layout | None = None,
    spectra: bool = True,
    full: bool = False,
    attention: bool = False,
    advance: Advance | None = None,
) -> Table:
    """The panel of every layer, site and text of a live model, as a table with the section ``summary``."""
    model = unwrapped(model)
    layout = layout_of(model) if layout is None else layout
    tally = Tally()
    probe_into(
        tally,
        model,
        batches,
        layout=layout,
        panel=Panel(spectra=spectra, full=full, attention=attention),
        advance=advance,
    )
    return tally_table(tally, name=name, about={"family": layout.family})


def probe_into(
    tally: Tally,
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    layout: Layout,
    panel: Panel,
    advance: Advance | None = None,
) -> None:
    """Run every batch and add it to the tally, whole or not at all, so that an interruption loses one batch."""
    dtype, axes = coarsest_dtype(model), None
    for given in batches:
        batch, axes = located(model, layout, given, axes)
        try:
            measured = measured_run(model, batch, layout, panel, dtype)
        except Ambiguous:
            layout = oriented(model, layout, batch)
            measured = measured_run(model, batch, layout, panel, dtype)
        tally.silent.update(measured.silent)
        tally.add(measured.seen, measured.tokens)
        if advance is not None:
            advance(tally.texts)
    if tally.texts == 0:
        raise ConfigError("no text was given; a scan needs at least one")


def measured_run(
    model: nn.Module,
    batch: Batch,
    layout: Layout,
    panel: Panel,
    dtype: torch.dtype,
    run: Callable[[nn.Module, Batch], object] = run_batch,
) -> "Measured":
    """The numbers of one batch; ``run`` runs the model, hooks are in place then."""
    if batch.autocast is not None:
        dtype = max(dtype, batch.autocast[1], key=unit_roundoff)
    measured = Measured([], batch, panel, dtype, is_only=len(layout.stacks) == 1)
    with (
        quiet(model),
        tapped(model, layout, _unwatched(measured.state), texts=len(batch)) as finished,
        _maps(model, layout, panel, measured),
    ):
        with own_words(model, batch):
            run(model, batch)
        measured.silent = finished()
    return measured


def _unwatched(receive: Receive) -> Receive:
    """Without handing its own steps to a mode that follows the model: several thousand in a pass."""

    def quietly(stack: str, layer: int, site: str, state: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            receive(stack, layer, site, state)

    return quietly


def measure_states(
    tally: Tally, states: Iterable[Tensor], *, panel: Panel, dtype: torch.dtype | None = None
) -> None:
    """Add states that someone else computed: layer after layer, each ``(texts, tokens, dim)``."""
    seen: list[Seen] = []
    tokens: tuple[int, ...] = ()
    for layer, state in enumerate(states):
        batch = Batch(inputs={}, is_token=None, labels=tuple(map(str, range(1, len(state) + 1))))
        measured = Measured(seen, batch, panel, dtype or state.dtype)
        measured.state("blocks", layer, "block", state)
        tokens = measured.tokens
    tally.add(seen, tokens)


@contextmanager
def own_words(model: nn.Module, batch: Batch) -> Iterator[None]:
    """What goes wrong inside the model's own code, told as such; memory is the caller's to explain."""
    try:
        yield
    except RankscopeError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        lines = str(error).strip().splitlines() or ["no message"]
        advice = NO_GPU if needs_gpu(error) else "check that the inputs fit the model"
        read = f"the texts {batch.labels[0]!r} to {batch.labels[-1]!r}" if batch.labels else "its inputs"
        raise ModelError(
            f"{type(model).__name__} failed on {read} with {type(error).__name__}: {lines[0]}; {advice}"
        ) from error


def coarsest_dtype(model: nn.Module) -> torch.dtype:
    """The floating-point type with the largest round-off that the model computes in.

    Root-mean-square norms of transformers compute in float32 whatever the model's type is, so a float64 model that
    holds one is no better than float32.
    """
    found = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if any("RMSNorm" in type(module).__name__ for module in model.modules() if _is_foreign(module)):
        found.add(torch.float32)
    usable = [dtype for dtype in found if torch.finfo(dtype).bits >= 16]
    return max(usable, key=unit_roundoff, default=torch.float32)


def _is_foreign(module: nn.Module) -> bool:
    return type(module).__module__.startswith("transformers.")


class Measured:
    """Turns the states of one batch into numbers, in the hooks."""

    def __init__(
        self, seen: list[Seen], batch: Batch, panel: Panel, dtype: torch.dtype, *, is_only: bool = True
    ) -> None:
        self.seen, self.batch, self.panel, self.dtype, self.is_only = seen, batch, panel, dtype, is_only
        self.tokens: tuple[int, ...] = ()
        self.silent: list[str] = []

    def state(self, stack: str, layer: int, site: str, state: Tensor) -> None:
        texts = measured_tokens(state, self.batch, self._kept(stack), is_only=self.is_only)
        self.tokens = self.tokens or tuple(len(text) for text in texts)
        dtype = max(self.dtype, state.dtype, key=unit_roundoff)
        ranks = site == "block" and self.panel.spectra
        # texts are measured one by one, or as many as the processor keeps near: a second thread would only be woken
        with threads_for(max(map(Tensor.numel, texts))):
            readings = read_panel(texts, layer=layer, dtype=dtype, massive=site == "block", ranks=ranks)
            self.seen.append(_seen(Place(stack, layer, site), readings, texts))
            if site == "block" and self.panel.per_block:
                more = read_each(self.panel.per_block, texts, layer=layer, dtype=dtype)
                self.seen.append(_seen(Place(stack, layer, site), more, texts))

    def _kept(self, stack: str) -> Tensor | None:
        """Which tokens of a stack are measured: a decoder may read other tokens than its encoder."""
        inputs, is_token = self.batch.inputs, self.batch.is_token
        ids = inputs.get("decoder_input_ids")
        if stack != "decoder" or ids is None or _same(ids, inputs.get("input_ids")):
            return is_token
        mask = self.batch.by_text("decoder_attention_mask")
        return None if mask is None else mask.bool()

    def maps(self, stack: str, layer: int, maps: Tensor) -> None:
        from rankscope.probe.attention import map_panel

        side = "decoder_attention_mask" if stack == "decoder" else "attention_mask"
        is_real = self.batch.by_text(side)
        if is_real is not None and is_real.shape != (maps.shape[0], maps.shape[-1]):
            is_real = None  # the padding of another input: images beside texts
        found = map_panel(
            maps,
            None if is_real is None else is_real.bool(),
            layer,
            self.dtype,
            exact=self.panel.exact,
        )
        for head in range(maps.shape[1]):
            readings = _joined(
                {name: (one.value[:, head], one.floor[:, head]) for name, one in found.items()}
            )
            self.seen.append(
                Seen(
                    place=Place(stack, layer, "attention", head),
                    definitions=readings.definitions,
                    values=readings.values.numpy(),
                    floors=readings.floors.numpy(),
                    tokens=self.tokens or (maps.shape[-1],) * maps.shape[0],
                )
            )


def _same(a: Tensor, b: Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and torch.equal(a, b)


def measured_tokens(state: Tensor, batch: Batch, is_token: Tensor | None, *, is_only: bool) -> list[Tensor]:
    """The measured tokens of every text; padding and special tokens are dropped before anything is measured.

    ``is_only``: whether the model has one stack. Of several, those that read something else than the texts (images
    beside them) are measured whole.
    """
    if state.shape[1] == 1:
        raise ShapeError(
            "the blocks see one token of each text, and at least two are needed to be equal or not; give longer texts, "
            "or a call on whole texts (generate of a model with a decoder begins with one token)"
        )
    if is_token is None:
        return list(state)
    keep = is_token.to(state.device)
    if keep.shape != state.shape[:2] and not is_only:
        return list(state)
    if keep.shape != state.shape[:2]:
        raise ShapeError(
            f"the inputs hold {tuple(keep.shape)} (texts, tokens), but a block's state is {tuple(state.shape)}; "
            "states must have one row per input token for special tokens to be left out: use ",
            Option("special", "keep"),
        )
    texts = [text if bool(kept.all()) else text[kept] for text, kept in zip(state, keep, strict=True)]
    short = [place for place, text in enumerate(texts) if len(text) < 2]
    if short:
        raise ShapeError(
            f"text {short[0] + 1} of a batch ({batch.labels[short[0]]!r}) has {len(texts[short[0]])} tokens to "
            "measure; at least two are needed to be equal or not: use a longer text or ",
            Option("special", "keep"),
        )
    return texts


def read_each(
    definitions: Sequence[str], texts: Sequence[Tensor], *, layer: int, dtype: torch.dtype
) -> Readings:
    """Any definitions of every text, one after the other; of a certified bracket the high end."""
    measures = [find_measure(definition) for definition in definitions]
    by_text = [evaluate_many(measures, text, layer=layer, dtype=dtype) for text in texts]
    return _joined(
        {name: _stack(each) for name, each in zip(definitions, zip(*by_text, strict=True), strict=True)}
    )


def _stack(each: Sequence[Evaluation]) -> tuple[Tensor, Tensor]:
    return torch.stack([one.value for one in each]), torch.stack([one.floor for one in each])


def _joined(columns: dict[str, tuple[Tensor, Tensor]]) -> Readings:
    values, floors = (torch.stack(list(parts), dim=-1).cpu() for parts in zip(*columns.values(), strict=True))
    return Readings(definitions=tuple(columns), values=values, floors=floors)


def _seen(place: Place, readings: Readings, texts: Sequence[Tensor]) -> Seen:
    return Seen(
        place=place,
        definitions=readings.definitions,
        values=readings.values.numpy(),
        floors=readings.floors.numpy(),
        tokens=tuple(len(text) for text in texts),
        dim=texts[0].shape[-1],
    )


@contextmanager
def _maps(model: nn.Module, layout: Layout, panel: Panel, measured: Measured) -> Iterator[None]:
    if not panel.attention:
        yield
        return
    from rankscope.probe.attention import attention_maps

    with attention_maps(model, layout, measured.maps):
        yield


def tally_table(
    tally: Tally,
    *,
    name: str,
    about: dict[str, Any],
    config: dict[str, Any] | None = None,
    seeds: Sequence[int] | None = None,
    run: str | None = None,
    **sections: Any,
) -> Table:
    """The rows and the summary of a tally."""
    words = {m.definition: f"{m.meaning}: {m.formula}" for m in map(find_measure, tally.definitions())}
    stacks = {
        stack: {"tokens": one["tokens"] / one["texts"], "dim": one["dim"]}
        for stack, one in tally.stacks.items()
    }
    scan = {
        "model": name,
        "texts": tally.texts,
        "tokens": tally.tokens / max(tally.texts, 1),
        "dims": {stack: one["dim"] for stack, one in tally.stacks.items()},
        "stacks": stacks,
        **about,
        "warnings": [
            *about.get("warnings", []),
            *(f"stack {stack!r} did not run on these inputs" for stack in sorted(tally.silent)),
        ],
    }
    return Table.from_columns(
        {"run": run, "model": name, **tally.rows},
        provenance=provenance(config or {}, seeds=seeds),
        command="scan",
        sections={"scan": scan, "summary": tally.summary(), "definitions": words, **sections},
    )
