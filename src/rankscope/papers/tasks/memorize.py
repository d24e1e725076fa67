"""The memorization task: tokens of a text in, for each of them a label that was drawn at random.

There is nothing to find out, so the training sequences themselves are scored. It is one of three tasks on which Dong,
Cordonnier and Loukas (2021, Section 4.2) compare short and long paths of a trained network.
"""

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, ModelWrapValidatorHandler, model_validator
from torch import Tensor

from rankscope.core.refs import Ref
from rankscope.errors import ConfigError, FileError
from rankscope.network import generators
from rankscope.papers.tasks.memorize_data import (
    CLASSES,
    ceiling,
    fingerprint,
    random_labels,
    read_sequences,
    sample_sequences,
    unmixed_ceiling,
)
from rankscope.papers.tasks.model import Draw, TaskModel, TokenReader
from rankscope.papers.tasks.task import (
    Batch,
    Task,
    TaskConfig,
    register,
    shuffled,
    token_accuracy,
    token_loss,
)


class MemorizeConfig(TaskConfig):
    """Memorization: 6 layers of 2 heads on 250 channels, 500 sequences of 128 tokens.

    As in the published code the blocks hold attention alone unless ``mlp_width`` is given, there are no positions, and
    some of the training sequences are scored. A text is known by path and content: ``fingerprint`` is filled in when
    a text is named, and a file that has changed since is refused. So is ``vocabulary``, which is all that a model needs
    to know of its text: it can be loaded where the text is not.
    """

    dim: int = Field(default=250, ge=1, strict=True)
    initial_std: float = Field(
        default=0.06,
        gt=0,
        allow_inf_nan=False,
        description="of every weight; 1 / sqrt(dim), so that attention mixes from the start",
    )
    epochs: int = Field(default=20, ge=0, strict=True)
    batch: int = Field(default=8, ge=1, strict=True, description="sequences in one step of the optimizer")
    sequences: int = Field(default=500, ge=1, strict=True, description="how many sequences are memorized")
    length: int = Field(default=128, ge=2, strict=True, description="tokens in a sequence")
    positions: Literal["none", "learned"] = Field(
        default="none", description="without them equal tokens of a sequence cannot be told apart"
    )
    test: int = Field(
        default=88,
        ge=1,
        strict=True,
        description="sequences that are scored, the first ones; or all there are",
    )
    text: str | None = Field(default=None, description="file with the text; None for sentences of the sample")
    fingerprint: str | None = Field(default=None, description="of the text; filled in")
    vocabulary: int | None = Field(
        default=None,
        ge=2,
        strict=True,
        description="different tokens of the sequences of the text; filled in",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _known_text(
        cls, values: dict[str, Any], handler: ModelWrapValidatorHandler["MemorizeConfig"]
    ) -> "MemorizeConfig":
        text = values.get("text")
        if text is None:
            for name in ("fingerprint", "vocabulary"):
                if values.get(name) is not None:
                    raise ConfigError(f"a {name} belongs to a text, and no text was named; leave it out")
            return handler(values)
        if values.get("fingerprint") is None:
            values = values | {"fingerprint": fingerprint(text)}
        values = values | {"text": os.path.abspath(os.path.expanduser(text))}
        found = handler(values)
        if found.vocabulary is None:
            found = handler(values | {"vocabulary": len(_read(_asked(found))[1])})
        return found

    @property
    def examples(self) -> int:
        return self.sequences


def examples(config: MemorizeConfig) -> Batch:
    """All sequences, as integers ``sequences length``, and the label of every token."""
    return _examples(_asked(config), config.seed)[:2]


def vocabulary(config: MemorizeConfig) -> tuple[str, ...]:
    """The token that each integer stands for."""
    return _examples(_asked(config), config.seed)[2]


def held_out(config: MemorizeConfig) -> Batch:
    """The sequences that are scored: the first of those that are trained on."""
    ids, labels = examples(config)
    return ids[: config.test], labels[: config.test]


def batches(config: MemorizeConfig) -> Iterator[list[Batch]]:
    """For every epoch its batches of sequences and labels, in shuffled order."""
    generator = generators(config.seed)[1]
    ids, labels, _ = _drawn(_asked(config), generator)
    yield from shuffled(lambda: (ids, labels), config, generator=generator)


def model(config: MemorizeConfig, generator: torch.Generator) -> TaskModel:
    """Token vectors, if asked for also position vectors, the blocks, a classifier with two classes."""
    draw = Draw(config.initial_std, generator)
    length = config.length if config.positions == "learned" else None
    size = len(vocabulary(config)) if config.vocabulary is None else config.vocabulary
    reader = TokenReader(size, config.dim, draw, length=length)
    return TaskModel(config, reader, draw, classes=CLASSES)


def lines(config: MemorizeConfig) -> Mapping[str, float]:
    """Accuracies to compare with.

    ``ceiling`` is that of the sequences that are scored. ``own token alone`` is that of all sequences: where a network
    ends that was trained on them but mixes no tokens.
    """
    positions = config.positions == "learned"
    return {
        "naive": 1 / CLASSES,
        "own token alone": unmixed_ceiling(*examples(config), positions=positions),
        "ceiling": ceiling(*held_out(config), positions=positions),
    }


Found = tuple[Tensor, Tensor, tuple[str, ...]]


class _Asked(NamedTuple):
    """What decides the data, but for the seed."""

    text: str | None
    fingerprint: str | None
    vocabulary: int | None
    sequences: int
    length: int


def _asked(config: MemorizeConfig) -> _Asked:
    return _Asked(
        text=config.text,
        fingerprint=config.fingerprint,
        vocabulary=config.vocabulary,
        sequences=config.sequences,
        length=config.length,
    )


@lru_cache(maxsize=4)
def _examples(asked: _Asked, seed: int) -> Found:
    return _drawn(asked, generators(seed)[1])


def _drawn(asked: _Asked, generator: torch.Generator) -> Found:
    if asked.text is None:
        ids, words = sample_sequences(sequences=asked.sequences, length=asked.length, generator=generator)
    else:
        ids, words = _read(asked)
        if asked.vocabulary not in (None, len(words)):
            raise ConfigError(
                f"the sequences of {asked.text!r} have {len(words)} different tokens, and "
                f"vocabulary={asked.vocabulary} was given; leave it out"
            )
    return ids, random_labels(ids.shape, generator), words


def _read(asked: _Asked) -> tuple[Tensor, tuple[str, ...]]:
    """Sequences of the text that was named, and their vocabulary."""
    text = asked.text or ""
    if fingerprint(text) != asked.fingerprint:
        raise FileError(
            f"{text!r} is no longer the text it was; put it back, or train anew in another folder"
        )
    return read_sequences(text, sequences=asked.sequences, length=asked.length)


MEMORIZE = register(
    Task(
        name="memorize",
        about="Every token has a label that was drawn at random, to be known by heart.",
        source=Ref(
            key="dong2021",
            where="Section 4.2, memorization",
            differs="words of a text of choice in place of word pieces of RTE, every sequence full; no dropout, no "
            "segment vectors, no linear map in the embedding; own optimizer settings beside the published ones",
        ),
        config=MemorizeConfig,
        settings={
            "official": {
                "initial_std": 0.02,
                "optimizer": "adamw",
                "learning_rate": 3e-4,
                "weight_decay": 0.01,
                "epochs": 50,
                "batch": 8,
                "warmup": 0,
                "decay": "none",
            },
            "fast": {
                "dim": 48,
                "initial_std": 0.14,
                "length": 32,
                "sequences": 80,
                "test": 80,
                "epochs": 30,
                "learning_rate": 2e-3,
                "warmup": 20,
            },
        },
        model=model,
        batches=batches,
        held_out=held_out,
        loss=token_loss,
        score=token_accuracy,
        scored="token accuracy on training sequences",
        in_sample=True,
        lines=lines,
        published={"full model": 0.85, "naive": 0.5},
        notes=(
            "RTE cannot be had here; without a text of your own the sequences are sentences of the bundled sample in "
            "random order.",
            "Without positions equal tokens of a sequence get equal answers, so that no network of this kind exceeds "
            "the ceiling.",
            "At the paper's sizes and with the published optimizer (AdamW at 3e-4) the network has hardly begun after "
            "6 of 50 epochs: a token accuracy of 0.55 in training, that of a network that mixes no tokens.",
        ),
    )
)
