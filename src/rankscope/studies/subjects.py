"""What a study of trees runs on: a tree and the token states that enter it, from a live model or drawn at random."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from rankscope.core.numerics import dtype_named
from rankscope.errors import ConfigError, FileError, Option, OutOfMemory, Piece, is_out_of_memory, options
from rankscope.findings import asked
from rankscope.findings.asked import ModelInputs, RandomNetwork
from rankscope.findings.reading import TokensRead
from rankscope.findings.subject import CutSubject, PlaceValue
from rankscope.findings.subject import ProofValue as ToldProof
from rankscope.findings.subject import Subject as ToldSubject
from rankscope.findings.ways import refuse_idle
from rankscope.network import Context, Network, Opaque, Spec, build, gaussian_tokens, generators
from rankscope.probe.run import measured_tokens, own_words
from rankscope.results import Table
from rankscope.sources import Batch, Loaded, Seen, layout_of, load_drawn, load_model
from rankscope.sources.given import not_a_model
from rankscope.sources.initial import without_trained
from rankscope.sources.layout import check_order
from rankscope.sources.loaded import as_device
from rankscope.sources.proof import Proof
from rankscope.sources.structure import Blocks
from rankscope.sources.taps import unwrapped
from rankscope.sources.translate import translate
from rankscope.sources.translation import Translation
from rankscope.sources.weights import Mismatch, refuse_not_finite
from rankscope.studies.cuts import Cut
from rankscope.studies.inputs import CallInputs, asked_of, chosen_inputs, found_layout, recording_of

Model = str | os.PathLike[str] | nn.Module | Loaded | Translation
Source = Model | Spec | Seen
"""What a study takes: what ``load_model`` takes or gives, a translated model, a tree, a random network's spec, or
calls of a model that were recorded."""

DEFAULT_TOKENS = RandomNetwork.network["tokens"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedTexts:
    """A few texts as they enter the first block, and which of their tokens are measured."""

    x: Tensor
    context: Context
    keep: Tensor | None
    """Boolean ``(texts, tokens)``; None: all."""

    first: int
    """Number of its first text, from 0."""

    @property
    def tokens(self) -> list[int]:
        """How many tokens of each text are measured."""
        return [self.x.shape[1]] * len(self.x) if self.keep is None else self.keep.sum(dim=1).tolist()

    def head(self, texts: int) -> "EmbeddedTexts":
        """The first texts of a batch; all of them if they are not more."""
        if texts >= len(self.x):
            return self

        def cut(value: Tensor | None, own: int) -> Tensor | None:
            # ``own`` axes belong to a single text; without a further one, or with one of length 1, all texts share it.
            is_shared = value is None or value.ndim <= own or len(value) == 1
            return value if value is None or is_shared else value[:texts]

        known = self.context
        context = Context(
            is_token=cut(known.is_token, 1),
            positions=cut(known.positions, 1),
            segments=cut(known.segments, 1),
            memory=cut(known.memory, 2),
            memory_is_token=cut(known.memory_is_token, 1),
        )
        return EmbeddedTexts(x=self.x[:texts], context=context, keep=cut(self.keep, 1), first=self.first)

    def each(self) -> Iterator[tuple[int, Tensor, Context]]:
        """Every text alone, without its padding: its number, its tokens, its context."""
        for row, x in enumerate(self.x):
            keep = None if self.context.is_token is None else self.context.is_token[row]
            yield self.first + row, x if keep is None else x[keep], self.context.of_text(row)


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What is known of a subject before its texts run: a model and its inputs, or a random network.

    Args:
        read: what is read, and which of its tokens are measured.
        proof: how far the tree was from the model; None where the network is a tree from the start.
        as_it_is: pieces that stand where attention stands and are run as they are.
        spec: of a random network.
    """

    model: str
    family: str
    kind: str
    weights: str
    parameters: int
    dtype: str
    read: TokensRead
    stack: str | None = None
    proof: ToldProof | None = None
    as_it_is: tuple[PlaceValue, ...] = ()
    spec: Spec | None = None

    def subject_value(self, *, seeds: int, texts: int, tokens: int, notes: Iterable[str]) -> ToldSubject:
        """What a finding keeps of a subject that was run; ``texts`` and ``tokens`` are those of all seeds.

        ``notes`` are what its loader and its readers said.
        """
        return ToldSubject(
            **dict(self.read),
            model=self.model,
            family=self.family,
            kind=self.kind,
            weights=self.weights,
            parameters=self.parameters,
            dtype=self.dtype,
            stack=self.stack,
            seeds=seeds,
            texts=texts // seeds,
            tokens=tokens / texts,
            proof=self.proof,
            as_it_is=self.as_it_is,
            reported=tuple(notes),
        )

    def cut_value(self, cut: Cut, *, seeds: int, texts: int, tokens: int, notes: Iterable[str]) -> CutSubject:
        """The same of one network of it."""
        whole = self.subject_value(seeds=seeds, texts=texts, tokens=tokens, notes=notes)
        return CutSubject(**dict(whole), variant=cut.variant, mask=cut.mask, norm=cut.norm)

    def with_network(self, table: Table) -> Table:
        """The table with the whole description of a random network in its provenance."""
        if self.spec is None:
            return table
        return replace(table, provenance=table.provenance | {"network": self.spec.model_dump(mode="json")})


@dataclass(kw_only=True, slots=True)
class LiveSubject:
    """One model of one seed: its tree, what enters it, and what is known about both."""

    seed: int
    network: Network
    feeds: Iterator[EmbeddedTexts]
    total: int | None
    kind: str
    about: About

    notes: Callable[[], list[str]]
    """Warnings so far; complete once all texts are through."""

    tree: Translation | None = None
    """The live model that the tree was read from; None of a random network."""

    @property
    def dtype(self) -> torch.dtype:
        """What the tree computes in."""
        return tree_dtype(self.network)


def subjects(
    model: Source,
    config: ModelInputs,
    given: CallInputs,
    *,
    seeds: Sequence[int],
    tokens: int | None = None,
    tokenizer: Any = None,
) -> Iterator[LiveSubject]:
    """The model of every seed, one at a time; trained weights are loaded once. ``tokens`` are those of a ``Spec``."""
    model, given = asked_of(model, given)
    if not isinstance(model, str | os.PathLike | nn.Module | Loaded | Translation | Spec):
        raise not_a_model(model)
    if isinstance(model, Spec | Network):
        yield from _random(model, config, given, seeds, tokens)
        return
    if tokens is not None:
        raise ConfigError(
            Option("tokens", tokens),
            " is the length of the text of a random network; a model reads ",
            Option("random_tokens", "2x48"),
        )
    if config.weights == "initial" or (config.weights is None and without_trained(model) is not None):
        for seed in seeds:
            ready = _with(_initial(model, config, seed), tokenizer)
            yield _live(ready, None, config, given, seed)
        return
    if len(seeds) > 1 and config.random_tokens is None:
        raise ConfigError(
            f"{len(seeds)} seeds of the same weights on the same inputs would be the same run; draw a model of each "
            "seed with ",
            Option("weights", "initial"),
            ", or tokens with ",
            Option("random_tokens", "2x48"),
        )
    known = model if isinstance(model, Translation) else None
    ready = _with(_load_trained(model, config), tokenizer)
    for seed in seeds:
        yield _live(ready, known, config, given, seed)


@contextmanager
def memory_words(what: str, *advice: Piece) -> Iterator[None]:
    """Running out of memory becomes an error that says what to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(f"not enough memory for this {what}; ", *advice) from error


def tree_dtype(network: Network) -> torch.dtype:
    """The floating-point type of a tree's weights; float64 if it has none."""
    found = (p.dtype for p in network.parameters() if p.is_floating_point())
    return next(found, torch.float64)


def _with(ready: Loaded, tokenizer: Any) -> Loaded:
    return ready if tokenizer is None else replace(ready, tokenizer=tokenizer)


def _initial(model: Model, config: ModelInputs, seed: int) -> Loaded:
    source = model.model if isinstance(model, Loaded | Translation) else model
    return load_drawn(
        source, weights=config.weights, seed=seed, dtype=config.dtype, device=config.device, **config.loading
    )


def _load_trained(model: Model, config: ModelInputs) -> Loaded:
    if isinstance(model, Loaded | Translation):
        own = load_model(model.model, dtype=config.dtype)  # says so if that is not the dtype asked for
        return model if isinstance(model, Loaded) else own
    if isinstance(model, nn.Module):
        return load_model(model, dtype=config.dtype, **config.loading)
    ready = load_drawn(
        model, weights=config.weights, dtype=config.dtype, device=config.device, **config.loading
    )
    for note in ready.warnings:
        if isinstance(note, Mismatch):
            raise FileError(f"{ready.name}: {note}; check that config.json belongs to these weights")
    return ready


def _run_as_it_is(network: Network) -> tuple[PlaceValue, ...]:
    """The pieces of a tree that stay where attention stays and are not recognised."""
    pieces = [one for one in network.modules() if isinstance(one, Opaque) and one.site == "attention"]
    places = dict.fromkeys((one.where, one.what) for one in pieces)
    return tuple(PlaceValue(where=where, what=what) for where, what in places)


def _live(
    ready: Loaded, known: Translation | None, config: ModelInputs, given: CallInputs, seed: int
) -> LiveSubject:
    """The tree of a live model, proven on the first batch, fed with what the live model itself would see."""
    layout = found_layout(unwrapped(ready.model), config.blocks, given)
    chosen = chosen_inputs(ready, config, given, layout, seed=seed)
    first = next(chosen.batches, None)
    if first is None:
        raise ConfigError("no text was given; at least one is needed")
    with own_words(ready.model, first):
        check_order(unwrapped(ready.model), layout, first)
    source = recording_of(ready.model, given)
    found = (
        translate(source, first, stack=config.stack, blocks=config.blocks)
        if known is None
        else known.proven_on(first)
    )
    about = About(
        model=ready.name,
        family=found.family,
        kind=found.kind,
        stack=found.stack.name,
        weights=ready.weights,
        parameters=ready.parameters,
        dtype=short(tree_dtype(found.network)),
        read=chosen.tokens,
        proof=_deviations(found.proof),
        as_it_is=_run_as_it_is(found.network),
    )
    return LiveSubject(
        seed=seed,
        network=found.network,
        feeds=feeds_of(found, chain([first], chosen.batches), config.blocks),
        total=chosen.total,
        kind=found.kind,
        about=about,
        notes=lambda: [*ready.warnings, *chosen.notes],
        tree=found,
    )


def _deviations(proof: Proof) -> ToldProof:
    return ToldProof(
        coarse=proof.is_coarse,
        largest_of_a_block=max(proof.blocks),
        end_to_end=proof.end_to_end,
        last_state=proof.last,
        whole=proof.is_whole,
        after=proof.after,
        allowed=proof.allowed,
        dtype=proof.dtype,
    )


def feeds_of(found: Translation, batches: Iterator[Batch], blocks: Blocks | None) -> Iterator[EmbeddedTexts]:
    """What enters the tree of a model, batch by batch."""
    done = 0
    for batch in batches:
        with own_words(found.model, batch):
            x, context = found.embed(batch)
        yield EmbeddedTexts(x=x, context=context, keep=_measured_tokens(found, x, batch, blocks), first=done)
        done += len(batch)


def _measured_tokens(found: Translation, x: Tensor, batch: Batch, blocks: Blocks | None) -> Tensor | None:
    """Which tokens are measured, by the rule of a scan; a text with fewer than two of them is an error."""
    keep = batch.is_token
    fits = keep is not None and keep.shape == x.shape[:2]
    is_only = fits or len(layout_of(found.model, blocks=blocks, batch=batch).stacks) == 1
    measured_tokens(x, batch, keep, is_only=is_only)
    return keep.to(x.device) if keep is not None and fits and not bool(keep.all()) else None


def _random(
    model: Spec | Network, config: ModelInputs, given: CallInputs, seeds: Sequence[int], tokens: int | None
) -> Iterator[LiveSubject]:
    """Random networks on Gaussian tokens, or a tree on the tokens that are given."""
    of_model = [name for name in sorted(config.explicit) if config.home(name) in asked.OF_A_MODEL]
    used = list(dict.fromkeys([*given.kinds, *of_model]))
    if isinstance(model, Network):
        used = [name for name in used if name not in ("inputs", "dtype")]
        if not config.draws:
            refuse_idle(config, ["seed", "seeds"], "on a tree of parts and its inputs")
        yield _of_tree(model, config, seeds[0], given.inputs, used)
        return
    used = [name for name in used if name not in ("device", "dtype", "weights")]
    if used:
        raise ConfigError(
            *options(used),
            " belongs to a model; a random network reads Gaussian tokens: ",
            Option("tokens", 32),
        )
    if config.weights is not None:
        raise ConfigError(
            "a random network has no trained weights to choose from; leave out ",
            Option("weights"),
        )
    whole = model.model_copy(update={"variant": "transformer"})
    device, dtype = as_device(config.device), dtype_named(config.dtype or "float64")
    for seed in seeds:
        for_weights, for_tokens = generators(seed)
        network = build(whole, for_weights).to(device, dtype)
        x = gaussian_tokens(tokens or int(DEFAULT_TOKENS), model.dim, generator=for_tokens).to(device, dtype)
        yield _alone(network, x[None], seed, "random", model)


def _of_tree(network: Network, config: ModelInputs, seed: int, x: Any, used: list[str]) -> LiveSubject:
    if not isinstance(x, Tensor) or x.ndim not in (2, 3) or used:
        wrong = f"; {', '.join(f'{name}=' for name in used)} cannot be used" if used else ""
        if x is not None and not used:
            wrong = f"; got {'a tensor of shape ' + str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__}"
        raise ConfigError(
            f"a tree of parts has no embedding: give inputs=x, a tensor (texts, tokens, dim) that enters block 1{wrong}"
        )
    if config.dtype not in (None, short(tree_dtype(network))):
        raise ConfigError(
            f"the tree is in {short(tree_dtype(network))}, but {config.dtype} was asked for; cast it yourself: "
            f"network.owned().to(torch.{config.dtype})"
        )
    refuse_not_finite(network)
    if not bool(x.isfinite().all()):
        raise ConfigError("the inputs of the tree hold NaN or infinity; expected finite numbers")
    return _alone(network, x if x.ndim == 3 else x[None], seed, "tree", None)


def _alone(network: Network, x: Tensor, seed: int, name: str, spec: Spec | None) -> LiveSubject:
    about = About(
        model=name,
        family=name,
        kind=name,
        weights="given" if spec is None else "random",
        parameters=sum(p.numel() for p in network.parameters()),
        dtype=short(tree_dtype(network)),
        read=TokensRead(inputs="tensors" if spec is None else "Gaussian tokens", read="tokens"),
        spec=spec,
    )
    return LiveSubject(
        seed=seed,
        network=network,
        feeds=iter([EmbeddedTexts(x=x, context=Context(), keep=None, first=0)]),
        total=len(x),
        kind=name,
        about=about,
        notes=list,
    )


def short(dtype: torch.dtype) -> str:
    """The name of a dtype as options spell it.

    >>> short(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")
