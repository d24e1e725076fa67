"""Attention maps of live models for the figure ``chained-attention``: of untrained BERT, and of trained encoders."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rankscope.errors import ConfigError
from rankscope.probe.attention import attention_maps
from rankscope.sources import (
    BUILTINS,
    Batch,
    Loaded,
    layout_of,
    load_model,
    random_token_batches,
    text_batches,
)
from rankscope.sources.cached import cached_folder
from rankscope.sources.initial import initial_model
from rankscope.sources.live import quiet, run_batch
from rankscope.sources.texts import sample_texts

INITIAL = "bert-base"
TRAINED_HUB = ("bert-base-cased", "google-bert/bert-base-cased")
"""Two names of the checkpoint of the paper; it is used only if it is in the local cache."""

TRAINED_BUILTIN = "minilm"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A model with weights: ``initial`` with the seed that they are drawn from, or ``trained``."""

    model: str
    weights: str
    seed: int | None = None
    folder: str | None = None

    @property
    def key(self) -> str:
        """A name for files."""
        name = re.sub(r"[^a-z0-9.]+", "-", self.model.lower()).strip("-.")
        return "-".join([name, self.weights, *([] if self.seed is None else [str(self.seed)])])


def subjects(seeds: tuple[int, ...]) -> list[Subject]:
    """Untrained BERT of every seed, then the trained models that this machine has. Nothing is fetched."""
    found = [Subject(model=INITIAL, weights="initial", seed=seed) for seed in seeds]
    if (folder := cached_folder(*TRAINED_HUB, files=("vocab.txt",))) is not None:
        found.append(Subject(model="bert-base-cased", weights="trained", folder=str(folder)))
    if BUILTINS[TRAINED_BUILTIN].installed:
        found.append(Subject(model=TRAINED_BUILTIN, weights="trained"))
    return found


def maps_of(subject: Subject, *, tokens: int, texts: int) -> list[Tensor]:
    """Maps of every layer, ``texts heads tokens tokens``, as the whole network makes them, in float64.

    Untrained weights read random tokens, trained ones the bundled English sample, cut to ``tokens`` tokens. Special
    tokens stay: they are attended to.
    """
    if subject.weights == "initial":
        if subject.seed is None:
            raise ValueError("initial weights need a seed")
        found = initial_model(subject.model, seed=subject.seed, dtype="float64")
        batch = next(
            random_token_batches(found.model, f"{texts}x{tokens}", seed=subject.seed, batch_size=texts)
        )
        return _run(found, batch)
    found = load_model(subject.model if subject.folder is None else Path(subject.folder), dtype="float64")
    return _run(found, _english(found, tokens=tokens, texts=texts))


def _run(found: Loaded, batch: Batch) -> list[Tensor]:
    maps: dict[int, Tensor] = {}

    def keep(stack: str, layer: int, own: Tensor) -> None:
        maps[layer] = own.double()

    with quiet(found.model), attention_maps(found.model, layout_of(found.model), keep):
        run_batch(found.model, batch)
    return [maps[layer] for layer in sorted(maps)]


def _english(found: Loaded, *, tokens: int, texts: int) -> Batch:
    """The first texts that fill all tokens, so that there is no padding; paragraphs are too short and are joined."""
    if found.tokenizer is None:
        raise ConfigError(f"the model {found.name!r} came without a tokenizer; install it again")
    batches = text_batches(
        _paragraphs(), found.tokenizer, batch_size=texts, max_tokens=tokens, special="keep", takes=found.takes
    )
    batch = next(iter(batches)).first(texts)
    if not bool(batch.inputs["attention_mask"].all()):
        raise ConfigError(f"the sample texts do not fill {tokens} tokens; ask for fewer")
    return batch


def _paragraphs() -> Iterator[str]:
    """The sample, four paragraphs at a time."""
    sample = sample_texts()
    for start in range(0, len(sample) - 3, 4):
        yield " ".join(sample[start : start + 4])
