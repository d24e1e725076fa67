"""One row per input of every layer of a live model: tokens pooled where the state appears, in constant memory."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankscope.core.numerics import unit_roundoff
from rankscope.errors import ConfigError, ShapeError
from rankscope.findings.embeddings import OwnEmbedding, Pooling
from rankscope.measures.row_stream import RowStream
from rankscope.probe.run import coarsest_dtype, own_words
from rankscope.sources.axes import located, oriented
from rankscope.sources.batch import Batch
from rankscope.sources.family import Layout
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.taps import Ambiguous, tapped

SITES = ("block", "final")
"""States that are pooled."""

RETURNED = ("sentence_embedding", "text_embeds", "image_embeds", "embeddings", "pooler_output")
"""Names under which models return one vector per input."""

MODES: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Switches of the pooling of a sentence encoder that are known here."""


@dataclass(slots=True)
class Place:
    """The rows of one place of a model."""

    stream: RowStream
    site: str
    stack: str | None = None
    layer: int | None = None
    own: OwnEmbedding | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pooled:
    """Rows of every place, the model's own embedding last, and how they were made."""

    places: tuple[Place, ...]
    pooling: Pooling
    dtype: torch.dtype


def pooled_rows(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    layout: Layout,
    pooling: Pooling | None,
    folder: Path | None = None,
    with_special: bool = True,
    advance: Callable[[int], None] | None = None,
) -> Pooled:
    """Run every batch, and keep of each state the pooled tokens of every input.

    ``pooling`` None is what the files in ``folder`` declare, else the mean. All tokens that the model reads count,
    special ones too, as sentence encoders pool them; ``with_special`` False leaves special tokens out.
    """
    declared = declared_embedding(folder)
    chosen: Pooling = pooling or (declared.pooling if declared and declared.pooling else "mean")
    dtype, axes, done = coarsest_dtype(model), None, 0
    kept = dict[tuple[str, str, int], Place]()
    own = dict[str, Place]()
    for given in batches:
        batch, axes = located(model, layout, given, axes)
        try:
            seen = _run(model, batch, layout, chosen, declared, with_special)
        except Ambiguous:
            layout = oriented(model, layout, batch)
            seen = _run(model, batch, layout, chosen, declared, with_special)
        if batch.autocast is not None:
            dtype = max(dtype, batch.autocast[1], key=unit_roundoff)
        for key, rows in seen.rows.items():
            site, stack, layer = key
            place = kept.setdefault(key, Place(RowStream(rows.shape[1]), site, stack, layer))
            place.stream.add(_finite(rows, f"layer {layer}"), done)
        for one, rows in seen.own:
            place = own.setdefault(one.name, Place(RowStream(rows.shape[1]), "own", own=one))
            place.stream.add(_finite(rows, one.name), done)
        done += len(batch)
        if advance is not None:
            advance(done)
    if done < 2:
        raise ConfigError(
            f"{'one input was' if done else 'no input was'} given; at least two are needed to differ or not"
        )
    whole = [one for one in own.values() if one.stream.count == done]
    places = [one for one in kept.values() if one.stream.count == done]
    return Pooled(places=(*places, *whole), pooling=chosen, dtype=dtype)


@dataclass(slots=True)
class _Seen:
    rows: dict[tuple[str, str, int], np.ndarray]
    own: list[tuple[OwnEmbedding, np.ndarray]]


def _run(
    model: nn.Module,
    batch: Batch,
    layout: Layout,
    pooling: Pooling,
    declared: OwnEmbedding | None,
    with_special: bool,
) -> _Seen:
    found = _Seen({}, [])
    final = dict[str, Tensor]()

    def receive(stack: str, layer: int, site: str, state: Tensor) -> None:
        if site not in SITES:
            return
        keep = counted_tokens(batch, stack, state, with_special=with_special)
        found.rows[site, stack, layer] = _plain(pooled(state, keep, pooling))
        if declared is not None and declared.pooling is not None:
            final[stack] = pooled(
                state, counted_tokens(batch, stack, state, with_special=True), declared.pooling
            )

    with quiet(model), tapped(model, layout, receive, texts=len(batch)) as finished:
        with own_words(model, batch):
            output = run_batch(model, batch)
        finished()
    if declared is not None and len(final) == 1:
        rows = next(iter(final.values())).double()
        if declared.normalized:
            rows = torch.nn.functional.normalize(rows, dim=-1)
        found.own.append((declared, _plain(rows)))
    else:
        found.own += [(one, _plain(rows)) for one, rows in returned(output, len(batch))]
    return found


def pooled(state: Tensor, keep: Tensor | None, pooling: Pooling) -> Tensor:
    """One row per text of a state ``(texts, tokens, dim)``; ``keep`` says which tokens count.

    >>> x = torch.tensor([[[1.0], [3.0], [9.0]]])
    >>> keep = torch.tensor([[True, True, False]])
    >>> [pooled(x, keep, how).item() for how in ("mean", "cls", "last", "max")]
    [2.0, 1.0, 3.0, 3.0]
    """
    x = state.double()
    if keep is None:
        keep = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    weights = keep.to(x.device)
    places = torch.arange(x.shape[1], device=x.device).expand_as(weights)
    match pooling:
        case "mean":
            return torch.where(weights[..., None], x, 0.0).sum(dim=1) / weights.sum(dim=1, keepdim=True)
        case "max":
            return torch.where(weights[..., None], x, -torch.inf).amax(dim=1)
        case "cls":
            first = torch.where(weights, places, x.shape[1]).amin(dim=1)
            return x[torch.arange(len(x)), first]
    last = torch.where(weights, places, -1).amax(dim=1)
    return x[torch.arange(len(x)), last]


def counted_tokens(batch: Batch, stack: str, state: Tensor, *, with_special: bool) -> Tensor | None:
    """Which tokens of a state count: those that are no padding, or those that are measured."""
    side = "decoder_attention_mask" if stack == "decoder" else "attention_mask"
    mask = batch.by_text(side)
    found = None if mask is None else mask.bool()
    if not with_special and batch.is_token is not None and stack != "decoder":
        found = batch.is_token
    if found is None or found.shape != state.shape[:2]:
        return None
    if not bool(found.any(dim=1).all()):
        empty = int(torch.argmin(found.any(dim=1).int()))
        raise ShapeError(
            f"the input {batch.labels[empty]!r} has no token to pool; give longer texts, or keep special tokens"
        )
    return found


def _plain(rows: Tensor) -> np.ndarray:
    found: np.ndarray = rows.detach().double().cpu().numpy()
    return found


def _finite(rows: np.ndarray, where: str) -> np.ndarray:
    if not np.isfinite(rows).all():
        raise ShapeError(
            f"{where} of the model gives NaN or infinity for {int((~np.isfinite(rows).all(axis=1)).sum())} of "
            f"{len(rows)} inputs, so its rows cannot be compared; scan without 'across' says where that begins"
        )
    return rows


# ------------------------------------------------------------------------------------------------- own embedding


def declared_embedding(folder: Path | None) -> OwnEmbedding | None:
    """How the files of a sentence encoder say that it pools: ``modules.json`` and the folder of its pooling."""
    modules = None if folder is None else _json(folder / "modules.json")
    if folder is None or not isinstance(modules, list) or not all(isinstance(one, dict) for one in modules):
        return None
    kinds = {str(one.get("type", "")).rpartition(".")[2]: str(one.get("path", "")) for one in modules}
    known = {"Transformer", "Pooling", "Normalize"}
    if "Pooling" not in kinds or not set(kinds) <= known:
        return None  # a projection after pooling is not read
    switches = _json(folder / Path(kinds["Pooling"]).name / "config.json")
    if not isinstance(switches, dict):
        return None
    asked = [name for name, value in switches.items() if name.startswith("pooling_mode") and value is True]
    if len(asked) != 1 or asked[0] not in MODES:
        return None
    return OwnEmbedding(
        kind="declared", name=kinds["Pooling"], pooling=MODES[asked[0]], normalized="Normalize" in kinds
    )


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def returned(output: object, texts: int) -> list[tuple[OwnEmbedding, Tensor]]:
    """What a model returns as one vector per input: under a usual name, or as the whole of its output."""
    if isinstance(output, Tensor):
        held: dict[str, object] = {"its output": output}
        names: tuple[str, ...] = ("its output",)
    else:
        held, names = _named(output), RETURNED
    found = []
    for name in names:
        value = held.get(name)
        if (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and value.ndim == 2
            and len(value) == texts
        ):
            found.append((OwnEmbedding(kind="returned", name=name), value))
    both = [one for one in found if one[0].name in ("text_embeds", "image_embeds")]
    return both or found[:1]


def _named(output: object) -> dict[str, object]:
    if isinstance(output, Mapping):
        return {str(name): value for name, value in output.items()}
    if is_dataclass(output):
        return {field.name: getattr(output, field.name) for field in fields(output)}
    return {}
